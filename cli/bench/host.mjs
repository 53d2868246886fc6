// A server in the small: loads one of the two executors, makes the calls that the runner asks for, and times them.
//
// Lines of JSON: requests come in on stdin, answers go out on descriptor 3 (stdout is the original's for its log).
// Arguments: the side (`ours`, `original`) and the file that has its class. Ends when stdin ends, with all that it started.

import { tracingChannel } from 'node:diagnostics_channel';
import { createRequire } from 'node:module';
import { Socket } from 'node:net';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { configOf, TOOLS } from './tools.mjs';

/** Between two samples of the event loop's delay; the smallest there is. What is idle shows about this much. */
const LOOP_RESOLUTION_MS = 1;
const NS_PER_MS = 1e6;
const US_PER_MS = 1000;
const ASKING_BLOCKS = 20;

/** What a subscriber does at least. */
const HEARS = Object.fromEntries(['start', 'end', 'asyncStart', 'asyncEnd', 'error'].map((event) => [event, () => {}]));

const [side, file] = process.argv.slice(2);
const loadBegan = performance.now();
const surface = await import(pathToFileURL(file));
const loadMs = performance.now() - loadBegan;
const { SandboxExecutorFactory } = surface;

/** Number of the next call; part of its arguments, so that an answer meant for another call is found out. */
let nextNumber = 1;
let inFlight = 0;
let loopDelay;
let stopLoad;

const SESSIONS = {
  ours: (id) => SandboxExecutorFactory.getForSession(id),
  // 0.37.2 has no sessions. Its later versions give each session a factory with a native executor of its own, which is
  // what is put together here from the same classes.
  original: () => {
    const { nativeExecutor } = SandboxExecutorFactory.getInstance();
    if (!nativeExecutor) throw new Error('a session needs a first call on the process-wide factory');
    const session = new SandboxExecutorFactory();
    session.nativeExecutor = new nativeExecutor.constructor();
    return session;
  },
};

/** Makes one call, times it, looks at its answer. Never rejects. */
async function call(factory, { tool, args, sameArgs, ...over }, seen) {
  const given = { n: sameArgs ? 0 : nextNumber++, ...TOOLS[tool].args, ...args };
  const began = performance.now();
  inFlight += 1;
  try {
    const answer = await factory().executeFunctionTool(`bench-${tool}`, given, configOf(tool, over));
    seen.ms.push(performance.now() - began);
    if (!TOOLS[tool].right(given, answer)) seen.wrong += 1;
    seen.last = answer;
  } catch (error) {
    const text = String(error?.message ?? error).slice(0, 300);
    seen.failed[text] = (seen.failed[text] ?? 0) + 1;
  } finally {
    inFlight -= 1;
  }
}

/**
 * `callers` callers, each with one call at a time, until `count` calls were made, or `forMs` are over, or told to stop.
 * They begin `rampMs` apart, and each waits `pauseMs` before its next call.
 */
async function calls(
  { count = Number.POSITIVE_INFINITY, forMs, callers = 1, rampMs = 0, pauseMs = 0, ...what },
  goesOn = () => true
) {
  const seen = { ms: [], wrong: 0, failed: {}, last: undefined };
  const began = performance.now();
  const end = began + (forMs ?? Number.POSITIVE_INFINITY);
  let left = count;
  const caller = async (_, at) => {
    if (rampMs > 0) await delay(at * rampMs);
    while (left-- > 0 && performance.now() < end && goesOn()) {
      await call(() => SandboxExecutorFactory.getInstance(), what, seen);
      if (pauseMs > 0) await delay(pauseMs);
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return { ...seen, elapsedMs: performance.now() - began };
}

const ACTIONS = {
  ready: () => ({ loadMs, node: process.version, execPath: process.execPath }),
  calls: (request) => calls(request),
  /** One call each in new sessions. */
  async sessions({ count, ...what }) {
    const seen = { ms: [], wrong: 0, failed: {}, last: undefined };
    for (let at = 0; at < count; at += 1) await call(() => SESSIONS[side](`bench-session-${at}`), what, seen);
    return seen;
  },
  /** Processor time of single calls that call a function of this host `rounds` times, microseconds: of host and worker together. */
  async conversations({ count, rounds }) {
    const seen = { us: [], wrong: 0, failed: {} };
    for (let at = 0; at < count; at += 1) {
      const args = { n: nextNumber++, rounds };
      const before = process.cpuUsage();
      let told;
      const usage = new Promise((done) => {
        told = done;
      });
      const functions = { next: (n) => n + 1 };
      const options = { functions, functionLimits: { calls: Math.max(1, rounds) }, onUsage: told };
      const answer = await SandboxExecutorFactory.getInstance()
        .executeFunctionTool('bench-conversing', args, configOf('conversing'), options)
        .catch((error) => {
          seen.failed[error.message] = (seen.failed[error.message] ?? 0) + 1;
        });
      const { cpuMs = 0 } = await usage;
      const { user, system } = process.cpuUsage(before);
      seen.us.push(user + system + cpuMs * US_PER_MS);
      if (!TOOLS.conversing.right(args, answer)) seen.wrong += 1;
    }
    return seen;
  },
  inFlight: () => inFlight,
  /** Subscribes to all channels of calls, or ends that. */
  listen({ on }) {
    for (const what of ['call', 'queue', 'install', 'start', 'run']) {
      const channel = tracingChannel(`native-sandbox-executor:${what}`);
      if (on) channel.subscribe(HEARS);
      else channel.unsubscribe(HEARS);
    }
  },
  /** What a call pays for the question whether anybody listens, as nanoseconds each. */
  asking({ count }) {
    const { observe } = createRequire(file)('./lib/observe.js');
    const samples = [];
    for (let block = 0; block < ASKING_BLOCKS; block += 1) {
      const began = performance.now();
      for (let at = 0; at < count; at += 1) if (observe('native', 'a-tool')) throw new Error('somebody listens');
      samples.push(((performance.now() - began) * NS_PER_MS) / count);
    }
    return samples;
  },
  /** Begins to watch the event loop. */
  watch() {
    loopDelay = monitorEventLoopDelay({ resolution: LOOP_RESOLUTION_MS });
    loopDelay.enable();
  },
  /** Ends it. */
  watched() {
    loopDelay.disable();
    return { n: loopDelay.count, p99Ms: loopDelay.percentile(99) / NS_PER_MS, maxMs: loopDelay.max / NS_PER_MS };
  },
  /** Calls until `stop`. */
  load(request) {
    let going = true;
    const done = calls(request, () => going);
    stopLoad = () => {
      going = false;
      return done;
    };
  },
  stop: () => stopLoad(),
  async metrics() {
    if (side !== 'ours') return undefined;
    const native = surface.NativeSandboxExecutor.getInstance();
    return { metrics: native.getMetrics(), isolation: await surface.isolationReport() };
  },
};

const out = new Socket({ fd: 3, readable: false });

async function serve(line) {
  const { id, action, ...request } = JSON.parse(line);
  const answer = await Promise.resolve()
    .then(() => ACTIONS[action](request))
    .then(
      (value) => ({ id, value }),
      (error) => ({ id, error: error.stack ?? String(error) })
    );
  out.write(`${JSON.stringify(answer)}\n`);
}

async function end() {
  // The original has none.
  await surface.shutdown?.({ deadlineMs: 0 });
  // Its timers would hold the process.
  process.exit();
}

createInterface({ input: process.stdin }).on('line', serve).on('close', end);
// A terminal tells all of its processes; what is to be done about it the runner decides.
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => {});
