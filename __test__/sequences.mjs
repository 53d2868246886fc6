// Runs a sequence of operations on the package and reports each broken promise; `properties.test.mjs` generates the sequences. Each sequence
// runs in a worker thread of its own, where the package's JavaScript has its initial state.

import { setTimeout as delay } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { surface, tool } from './helpers.mjs';

/** Longer than any promise of a sequence takes, on a loaded machine, too. */
const STUCK_MS = 20_000;
const SELF = new URL(import.meta.url).href;

/** Codes with which a cleanup or a shutdown ends a call. */
const ENDED = ['CLEANED_UP', 'SHUTTING_DOWN'];

/** Calls by kind: the function, and the outcome that the call has when nothing ends it. */
const CALLS = {
  answers: { source: '({ n }) => n', expected: (n) => `value ${n}` },
  waits: { source: '({ n }) => new Promise((done) => setTimeout(done, n % 60, n))', expected: (n) => `value ${n}` },
  throws: { source: "({ n }) => { throw new Error('call ' + n); }", expected: (n) => `TOOL_ERROR call ${n}` },
  exits: { source: '() => process.exit(3)', expected: () => 'EXITED' },
  'is late': {
    source: '() => new Promise((done) => setTimeout(done, 60000))',
    timeout: 80,
    expected: () => 'TIMEOUT',
  },
  'is aborted': {
    source: '() => new Promise((done) => setTimeout(done, 60000))',
    abortAfterMs: (n) => n % 50,
    expected: () => 'ABORTED',
  },
  'is refused': { source: '() => {', expected: () => 'INVALID_SOURCE' },
};

export const CALL_KINDS = Object.keys(CALLS);

class Sequence {
  #package = surface();
  #problems = [];
  #pending = [];
  #calls = 0;
  /** Whether anything has taken the options: they cannot be configured after that. */
  #isUsed = false;
  #factories = new Map();

  /** A factory or an executor by name: `main`, `native`, a name of a session, or one of its own. */
  #executor(name) {
    const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native } = this.#package;
    if (name === 'main') return Factory.getInstance();
    if (name === 'native') return Native.getInstance();
    if (name.startsWith('session')) return Factory.getForSession(name);
    if (!this.#factories.has(name)) this.#factories.set(name, new Factory());
    return this.#factories.get(name);
  }

  /** Adds the end of a promise to what `finish` waits for; `check` names a problem of its outcome, if there is one. */
  #watch(what, promise, check) {
    let settled = 0;
    const note = (outcome) => {
      settled += 1;
      const problem = settled > 1 ? 'settled twice' : check(outcome);
      if (problem) this.#problems.push(`${what}: ${problem}`);
    };
    const seen = promise.then(
      (value) => note({ value }),
      (error) => note({ error })
    );
    this.#pending.push(
      Promise.race([seen, delay(STUCK_MS, 'stuck', { ref: false })]).then((end) => end === 'stuck' && what)
    );
  }

  #call({ kind, target }) {
    const n = this.#calls++;
    const what = `call ${n} (${kind}) of ${target}`;
    const { source, timeout = 15_000, abortAfterMs, expected } = CALLS[kind];
    const controller = new AbortController();
    const reports = { usage: 0, settled: false };
    const onUsage = () => {
      reports.usage += 1;
      if (!reports.settled) this.#problems.push(`${what}: its usage came before its answer`);
      if (reports.usage > 1) this.#problems.push(`${what}: its usage came twice`);
    };
    const promise = this.#executor(target).executeFunctionTool(
      what,
      { n },
      tool(source, { sandbox: { timeout, vcpus: 3 } }),
      { signal: controller.signal, onUsage }
    );
    if (abortAfterMs) setTimeout(() => controller.abort(), abortAfterMs(n));
    this.#watch(what, promise, (outcome) => {
      reports.settled = true;
      return this.#callProblem(outcome, expected(n));
    });
  }

  #callProblem({ value, error }, expected) {
    if (error === undefined)
      return `value ${value}` === expected ? undefined : `resolved with ${value}, not ${expected}`;
    if (!(error instanceof this.#package.SandboxError)) return `rejected with ${error?.stack ?? error}`;
    const said = error.code === 'TOOL_ERROR' ? `TOOL_ERROR ${error.cause.message}` : error.code;
    if (said === expected || ENDED.includes(error.code)) return undefined;
    return `rejected with ${said}: ${error.message}, not ${expected}`;
  }

  /** An operation that has to succeed, whatever else is under way. */
  #succeeds(what, promise) {
    this.#watch(what, promise, ({ error }) => error && `rejected with ${error.stack ?? error}`);
  }

  /** One that a cleanup or a shutdown may end. */
  #mayEnd(what, promise) {
    this.#watch(
      what,
      promise,
      ({ error }) => error && !ENDED.includes(error.code) && `rejected with ${error.stack ?? error}`
    );
  }

  async step(operation) {
    const { SandboxExecutorFactory: Factory, NativeSandboxExecutor: Native, ...rest } = this.#package;
    const { op, target, deadlineMs } = operation;
    this.#isUsed ||= ['call', 'warm', 'look'].includes(op);
    const options = deadlineMs === undefined ? undefined : { deadlineMs };
    if (op === 'call') this.#call(operation);
    else if (op === 'cleanup') this.#succeeds(`cleanup of ${target}`, this.#executor(target).cleanup(options));
    else if (op === 'cleanupSession') this.#succeeds(`end of ${target}`, Factory.cleanupSession(target, options));
    else if (op === 'warm') this.#mayEnd(`warm of ${target}`, this.#executor(target).warm([{}]));
    else if (op === 'shutdown') this.#succeeds('shutdown', rest.shutdown(options));
    else if (op === 'reopen') rest.gracefulShutdown({ signals: [] })();
    else if (op === 'configure') this.#configure(Factory);
    else if (op === 'look') void [new Native().getExecutionStats(), new Native().getMetrics()];
    else await delay(operation.ms);
  }

  #configure(Factory) {
    try {
      Factory.configure({ lingerMs: 100 });
    } catch (error) {
      if (error.code !== 'INVALID_CONFIG' || !this.#isUsed) this.#problems.push(`configure threw ${error.stack}`);
    }
  }

  /** Waits for all promises, then makes one more call, which has to be answered. */
  async finish() {
    const stuck = (await Promise.all(this.#pending)).filter(Boolean);
    for (const what of stuck) this.#problems.push(`${what}: not settled after ${STUCK_MS} ms`);
    this.#package.gracefulShutdown({ signals: [] })();
    const { SandboxExecutorFactory: Factory } = this.#package;
    const last = Factory.getInstance().executeFunctionTool('last', { n: 'last' }, tool('({ n }) => n'));
    const answer = await last.catch((error) => error);
    if (answer !== 'last') this.#problems.push(`a call after the sequence came to ${answer}`);
    for (const id of ['session 1', 'session 2']) await Factory.cleanupSession(id);
    await Promise.all([...this.#factories.values(), Factory.getInstance()].map((one) => one.cleanup()));
    return this.#problems;
  }
}

/** In the thread. */
export async function runHere(operations) {
  const sequence = new Sequence();
  for (const operation of operations) await sequence.step(operation);
  return await sequence.finish();
}

/** Runs a sequence in a thread; gives its problems, as texts. */
export function runInThread(operations) {
  const source = `import { parentPort, workerData } from 'node:worker_threads';
    const { runHere } = await import(${JSON.stringify(SELF)});
    parentPort.postMessage(await runHere(workerData));`;
  const thread = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), { workerData: operations });
  return new Promise((done) => {
    let problems = ['the thread ended without an answer'];
    thread.on('message', (found) => {
      problems = found;
    });
    // What nobody handled in the thread: a rejection, an exception of a callback.
    thread.on('error', (error) => done([`nobody handled: ${error?.stack ?? error}`]));
    thread.on('exit', () => done(problems));
  });
}
