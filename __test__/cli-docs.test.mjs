// Every example of docs/CLI.md is run: its files are written, its commands must do what it says.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { after, before, test } from 'node:test';
import { command, MAIN } from './cli.mjs';
import { ownWorld, ROOT } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const world = ownWorld();
const folder = join(world.root, 'project');
const shims = join(world.root, 'bin');
/** Of the real one's shape: an object that is a function, whose names no parser sees. */
const lodash = {
  'index.js': `const lodash = () => {}; lodash.sumBy = (all, key) => all.reduce((sum, one) => sum + one[key], 0);
    (module.exports = lodash)._ = lodash;`,
};
let registry;

before(async () => {
  mkdirSync(folder);
  mkdirSync(shims);
  // What npx would find.
  writeFileSync(join(shims, 'npx'), `#!/bin/sh\nshift\nexec "${process.execPath}" "${MAIN}" "$@"\n`, { mode: 0o755 });
  registry = await useRegistry({ lodash: { '4.17.21': lodash } });
});
after(() => registry.close());

/** The fenced blocks of the document, in order. */
function blocks() {
  const text = readFileSync(join(ROOT, 'docs', 'CLI.md'), 'utf8');
  return [...text.matchAll(/^```(\w+)(?: (\S+))?\n(.*?)^```$/gms)].map(([, language, file, body]) => ({
    language,
    file,
    body,
  }));
}

test('the examples do what they say', { skip: process.platform === 'win32' && 'a POSIX shell' }, async () => {
  const env = { PATH: [shims, process.env.PATH].join(delimiter) };
  const ran = [];
  let last;
  for (const { language, file, body } of blocks()) {
    if (file) writeFileSync(join(folder, file), body);
    else if (language !== 'sh') assert.equal(last.out, body, ran.at(-1));
    else {
      for (const line of body.trim().split('\n')) {
        last = await command('sh', ['-c', line], { cwd: folder, env });
        ran.push(line);
        assert.equal(last.code, 0, `${line}\n${last.err}`);
      }
    }
  }
  for (const words of ['doctor', 'run', 'bench', 'completion bash', 'store warm', 'store ls', 'store prune']) {
    assert.ok(
      ran.some((line) => line.includes(`npx native-sandbox-executor ${words} `) || line.endsWith(words)),
      words
    );
  }
  assert.equal(JSON.parse(readFileSync(join(folder, 'doctor.json'), 'utf8')).ok, true);
  assert.deepEqual(JSON.parse(readFileSync(join(folder, 'answer.json'), 'utf8')).result, { total: 0 });
  assert.ok(existsSync(join(folder, 'latency.svg')));
  assert.deepEqual(JSON.parse(last.out), { ...JSON.parse(last.out), evicted: 2, trees: 0, bytes: 0 });
});
