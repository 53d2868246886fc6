// What the suites share: a world of their own on disk, short ways to make a call, and a look at the machine.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('..', import.meta.url));
export const SURFACE = join(ROOT, 'index.js');
export const LINUX = process.platform === 'linux';

/** Ways to get a worker that the machine has: booted for the call, booted ahead of need, forked. */
export const FORKS = LINUX && [22, 24, 26].includes(Number.parseInt(process.versions.node, 10));
export const RUNGS = ['spawn', 'standby', ...(FORKS ? ['zygote'] : [])];

const require = createRequire(import.meta.url);

/** Between two looks at something that has no event of its own. */
const POLL_MS = 25;

/** Tries again: the core's own threads go on to make folders until the process is gone, and `maxRetries` looks at one level only. */
function removeWorld(root) {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (let triesLeft = 60; ; triesLeft--) {
    try {
      return rmSync(root, { recursive: true, force: true });
    } catch (error) {
      if (triesLeft === 0) throw error;
      // Installed trees are read-only, which stops everybody but root.
      if (error.code === 'EACCES' || error.code === 'EPERM') letWrite(root);
      Atomics.wait(pause, 0, 0, 50);
    }
  }
}

/** Makes folders writable for their owner, as far as they are this user's. */
function letWrite(dir) {
  try {
    chmodSync(dir, 0o755);
    for (const entry of readdirSync(dir, { withFileTypes: true })) {
      if (entry.isDirectory()) letWrite(join(dir, entry.name));
    }
  } catch {
    // Gone meanwhile, or another user's: the removal says so.
  }
}

/**
 * A temp folder and a home of this process's own, so that what the package keeps on disk starts empty and can be
 * judged afterwards. To be called before the first call.
 */
export function ownWorld() {
  const root = realpathSync(mkdtempSync(join(tmpdir(), 'nse-test-')));
  chmodSync(root, 0o755);
  for (const name of ['tmp', 'home']) mkdirSync(join(root, name));
  chmodSync(join(root, 'tmp'), 0o1777);
  Object.assign(process.env, { TMPDIR: join(root, 'tmp'), HOME: join(root, 'home') });
  for (const key of Object.keys(process.env)) {
    if (/^(npm_config_|XDG_|AGENTS_FUNCTION_TOOL_)/i.test(key)) delete process.env[key];
  }
  process.on('exit', () => removeWorld(root));
  return { root, tmp: join(root, 'tmp') };
}

/** The package, as a server has it. */
export function surface() {
  return require(SURFACE);
}

/** A function tool; `over` may hold `sandbox` (parts of sandboxConfig) and any other part of the configuration. */
export function tool(executeCode, { sandbox, ...over } = {}) {
  return {
    description: 'a test',
    inputSchema: {},
    executeCode: String(executeCode),
    dependencies: {},
    sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 10_000, vcpus: 4, ...sandbox },
    ...over,
  };
}

/** Runs a tool on the process's factory. */
export function run(executeCode, args, over, call) {
  return surface()
    .SandboxExecutorFactory.getInstance()
    .executeFunctionTool('test-tool', args, tool(executeCode, over), call);
}

/** A function that throws, for getters and traps of proxies. */
export const refuse = () => {
  throw new Error('no entry');
};

/** A proxy that cannot be looked at. */
export function revoked() {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}

/** The error of a call, after a look at what every rejection must have. */
export async function rejection(promise) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    const { SandboxError } = surface();
    assert.ok(error instanceof SandboxError, `rejected with something else: ${error?.stack ?? error}`);
    assert.equal(error.name, 'SandboxError');
    assert.match(error.code, /^[A-Z_]+$/);
    assert.match(error.phase, /^(validate|queue|install|start|run|result)$/);
    assert.ok(error.durationMs >= 0, `durationMs is ${error.durationMs}`);
    return error;
  }
  assert.fail(`resolved with ${String(JSON.stringify(value)).slice(0, 200)} where a rejection was due`);
}

/** Waits for a condition; fails when it has not come true after `ms`. */
export async function until(condition, ms, what) {
  const end = performance.now() + ms;
  for (;;) {
    const found = await condition();
    if (found) return found;
    assert.ok(performance.now() < end, `${what}: not so after ${ms} ms`);
    await delay(POLL_MS);
  }
}

export function newMarker() {
  return `nse${randomBytes(5).toString('hex')}`;
}

export function statOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { state, parent: Number(parent) };
  } catch {
    return undefined;
  }
}

function pids() {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

function textOf(pid, file) {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8');
  } catch {
    return '';
  }
}

/** Living processes whose name or command line has the marker. */
export function marked(marker) {
  return pids().filter(
    (pid) =>
      pid !== process.pid &&
      !['Z', 'X', undefined].includes(statOf(pid)?.state) &&
      (textOf(pid, 'comm') + textOf(pid, 'cmdline')).includes(marker)
  );
}

/** Whether there is such a process, dead ones that nobody reaped included. */
export function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Waits until no process has the marker. */
export function gone(marker, ms = 10_000) {
  return until(() => marked(marker).length === 0, ms, `processes marked ${marker} are gone`);
}

/** Waits until a process has the marker; gives its id. */
export async function appears(marker, ms = 10_000) {
  await until(() => marked(marker).length > 0, ms, `a process marked ${marker}`);
  return marked(marker)[0];
}

/** Ids of the processes below one, zombies included. */
export function below(pid) {
  const parents = new Map(pids().map((id) => [id, statOf(id)?.parent]));
  const found = [pid];
  for (const id of found) for (const [child, parent] of parents) if (parent === id) found.push(child);
  return found.slice(1);
}

/** The launcher of this process. */
export function launcherPid() {
  return below(process.pid).find((pid) => textOf(pid, 'cmdline').includes('launcher'));
}

export function openDescriptors() {
  return readdirSync('/proc/self/fd').length;
}

/** Paths below a folder. */
export function filesBelow(folder) {
  const found = [];
  const look = (below, entries) => {
    for (const entry of entries) {
      const path = join(below, entry.name);
      found.push(path);
      if (entry.isDirectory()) look(path, entriesOf(join(folder, path)));
    }
  };
  look('', readdirSync(folder, { withFileTypes: true }));
  return found;
}

/** None of a folder that has gone since it was seen: what works in the background removes what it has made. */
function entriesOf(folder) {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch (error) {
    if (error.code === 'ENOENT') return [];
    throw error;
  }
}

/**
 * Runs a script that has `factory`, `Factory`, `run` and `say` at hand in a host process of its own. `exited` gives what
 * it said, as values. A `bare` one has nothing at hand. `by` is a program, with its arguments, that becomes the host.
 */
export function host(body, { env = {}, nodeArgs = [], limitMs = 60_000, bare = false, by = [] } = {}) {
  const file = join(process.env.TMPDIR, `host-${newMarker()}.mjs`);
  const atHand = `import { run, surface, tool } from ${JSON.stringify(import.meta.url)};
const { SandboxExecutorFactory: Factory, ...rest } = surface();
const factory = Factory.getInstance();
const say = (value) => process.stdout.write(JSON.stringify(value) + '\\n');
void [run, tool, factory, rest, say];
`;
  writeFileSync(file, (bare ? '' : atHand) + body);
  const [program, ...args] = [...by, process.execPath, ...nodeArgs, file];
  const child = spawn(program, args, {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let out = '';
  let err = '';
  child.stdout.setEncoding('utf8').on('data', (text) => {
    out += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text) => {
    err += text;
  });
  const limit = setTimeout(() => child.kill('SIGKILL'), limitMs);
  const exited = new Promise((done) => {
    child.on('close', (code, signal) => {
      clearTimeout(limit);
      rmSync(file, { force: true });
      done({
        code,
        signal,
        err,
        said: out
          .split('\n')
          .filter(Boolean)
          .map((line) => JSON.parse(line)),
      });
    });
  });
  return { child, exited };
}
