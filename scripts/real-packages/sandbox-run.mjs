// Runs one use on one rung and prints its calls as a line of JSON: the first call installs where the store lacks the set, the second
// finds it installed, the later ones come once the tree's zygote serves or is known not to.
import { createRequire } from 'node:module';

const { NativeSandboxExecutor, SandboxExecutorFactory, shutdown } = createRequire(import.meta.url)('../../index.js');
const { name, body, dependencies, rung, url, storeDir } = JSON.parse(process.argv[2]);
/** How long the tree's zygote may take to serve, milliseconds. */
const ZYGOTE_WAIT_MS = 20_000;
const LATER_CALLS = 5;
/** How long to wait for what is told of a call when nothing of it is left, milliseconds. */
const USAGE_WAIT_MS = 5000;

const factory = new SandboxExecutorFactory({ start: rung, storeDir, installTimeoutMs: 600_000 });
const calls = [];

async function call() {
  let tell;
  const told = new Promise((resolve) => (tell = resolve));
  const began = performance.now();
  const config = {
    description: name,
    inputSchema: {},
    executeCode: `async (args) => { ${body} }`,
    dependencies,
    sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 60_000, vcpus: 2 },
  };
  const outcome = await factory.executeFunctionTool(name, { url }, config, { onUsage: tell }).then(
    (value) => ({ value }),
    (error) => ({ error: `${error.code}: ${error.message}`.slice(0, 600) })
  );
  const ms = performance.now() - began;
  const timer = setTimeout(tell, USAGE_WAIT_MS);
  const usage = await told;
  clearTimeout(timer);
  return { ...outcome, ms, installMs: usage?.phases.installMs, rung: usage?.rung };
}

const metrics = () => NativeSandboxExecutor.getInstance().getMetrics();
calls.push(await call());
if (calls[0].error === undefined) {
  calls.push(await call());
  const end = performance.now() + ZYGOTE_WAIT_MS;
  const isSettled = () => metrics().zygotes?.dependents > 0 || metrics().notPreloaded?.length > 0;
  while (rung === 'zygote' && !isSettled() && performance.now() < end)
    await new Promise((resolve) => setTimeout(resolve, 100));
  for (let count = 0; count < LATER_CALLS; count++) calls.push(await call());
}
const { notPreloaded = [], zygotes } = metrics();
process.stdout.write(`\n${JSON.stringify({ calls, notPreloaded, isServed: zygotes?.dependents > 0 })}\n`);
await shutdown?.({ deadlineMs: 3000 });
