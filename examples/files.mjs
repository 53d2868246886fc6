// Files for a function, and files out of it: a table goes in, a page comes out, and neither touches a disk of the server's.
//
//   node examples/files.mjs

import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { SandboxExecutorFactory } from 'native-sandbox-executor';

/** What a model wrote: it reads `in/orders.csv` and writes one page for each customer. */
const executeCode = `async () => {
  const fs = require('node:fs');
  const [, ...lines] = fs.readFileSync('in/orders.csv', 'utf8').trim().split('\\n');
  const byCustomer = {};
  for (const line of lines) {
    const [customer, total] = line.split(',');
    (byCustomer[customer] ??= []).push(Number(total));
  }
  fs.mkdirSync('out');
  for (const [customer, totals] of Object.entries(byCustomer)) {
    fs.writeFileSync('out/' + customer + '.md', '# ' + customer + '\\n\\n' + totals.map((total) => '- ' + total).join('\\n') + '\\n');
  }
  return Object.keys(byCustomer).length;
}`;

/** As a database's cursor would give them: line by line, and only when they are wanted. */
async function* orders() {
  yield 'customer,total\n';
  for (let n = 0; n < 1000; n++) yield `${n % 2 === 0 ? 'ann' : 'bob'},${n}\n`;
}

const factory = SandboxExecutorFactory.getInstance();
const pages = await factory.executeFunctionTool(
  'pages',
  {},
  {
    description: 'A page of orders for each customer',
    inputSchema: {},
    executeCode,
    dependencies: {},
    sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 20_000, vcpus: 1 },
  },
  {
    files: { 'in/orders.csv': Readable.from(orders()) },
    collect: {
      match: 'out/*.md',
      maxFiles: 10,
      // Where a server would upload it.
      async onFile({ path, size, stream }) {
        const hash = createHash('sha256');
        for await (const chunk of stream) hash.update(chunk);
        console.log(`${path}: ${size} bytes, ${hash.digest('hex').slice(0, 8)}`);
      },
    },
  }
);
console.log(`${pages} pages`);
await factory.cleanup();
