'use strict';

// One call by a provider, from start to end: plan, lease, send, run, settle, give back. What may be decided without looking
// at the outside is decided in the core (`src/provider/`).

const { randomBytes } = require('node:crypto');
const { StringDecoder } = require('node:string_decoder');
const { OutOfTime, TIMER_LIMIT_MS, bounded } = require('./bounded.js');
const { envOf } = require('./call-env.js');
const { SandboxError, fromOutcome, invalidConfig, isSandboxError, reasonOf } = require('./errors.js');
const { filesOf } = require('./files.js');
const { Handover } = require('./handover.js');
const { hostIdentity, isDead } = require('./host-identity.js');
const { inertCause } = require('./inert.js');
const { hasOwn, hidden, stringify } = require('./intrinsics.js');
const { log, loggerName, quietly } = require('./logger.js');
const { aborted, companions, parseResult, takeConfigured, whenAborted } = require('./native-executor.js');
const { native } = require('./native.js');
const {
  GivenOptions,
  argsJson,
  environmentJson,
  providerOptionsJson,
  providerRequestJson,
  read,
  shown,
  toolIdText,
} = require('./options.js');
const { idOf, leave, pool } = require('./provider-pool.js');
const { assertOpen, shuttingDown, track } = require('./shutdown.js');

/** Everything of ours in a sandbox is below this folder of its working folder. */
const FOLDER = '.native-sandbox';
/** The scripts have one below it for themselves: the worker leaves frames of files in there out of stacks. */
const SCRIPTS = 'scripts';
const RUNNER = `${SCRIPTS}/runner.cjs`;
/** Time for a job to get into a sandbox. */
const SEND_LIMIT_MS = 10_000;
/** What files of a call add to it: some 1 MiB a second is little for any service. */
const SEND_BYTES_PER_MS = 1024;
/** Files of one call together: they are in memory until they are sent. */
const FILES_LIMIT_BYTES = 64 * 1024 * 1024;
/** What a run has in its working folder already. */
const OWN_NAMES = ['job.json', 'tmp', 'tool.js', 'tool.mjs', '.env'];
/** Time for a run's end to be told after all that it may take, and for a kill. */
const GRACE_MS = 5_000;
/** A creation that has been given up is waited for so much longer, to stop what it makes. */
const LATE_LIMIT_MS = 8_000;
/** Of what an installation prints, what its error shows. */
const INSTALL_TAIL_CHARS = 8 * 1024;
/** Time to look for what dead hosts left. */
const RECLAIM_LIMIT_MS = 60_000;
/** A name that a file of variables can have. */
const PLACEHOLDER = /^[A-Za-z_][\w.-]*$/;
/** Scopes that are remembered as looked into. */
const RECLAIMED_LIMIT = 1_000;
const DAY_MS = 86_400_000;

/** After these the sandbox is as it was before; after all others nobody else gets it. */
const CLEAN = new Set(['TOOL_ERROR', 'EXITED', 'INVALID_SOURCE', 'RESULT_NOT_SERIALIZABLE']);

/** Why an executor's calls end. */
const CLEANED_UP = Symbol('cleaned up');

/** Where it was looked for what dead hosts left, by scope. */
const reclaimed = new Set();

/** Runs calls by one provider under one set of options. */
class ProviderExecutor {
  #name;
  #provider;
  #own;
  #rules;
  /** The calls that have not ended, linger included. */
  #calls = new Set();
  /** How many cleanups with a deadline are under way. */
  #closing = 0;

  constructor(name, provider, options) {
    this.#name = name;
    this.#provider = provider;
    this.#own = GivenOptions.of('the constructor', options);
  }

  /**
   * Runs one call; `sandboxConfig` is what `providerFields` made.
   * @throws {SandboxError}
   */
  async run(toolId, args, config, sandboxConfig, call, observer) {
    assertOpen();
    if (this.#closing > 0) throw shuttingDown('The executor is being cleaned up: it takes no function calls');
    if (config === null || typeof config !== 'object') {
      throw invalidConfig(`the function tool's config must be an object, got ${shown(config)}`);
    }
    refuseNativeOnly(this.#name, call);
    const { signal, isAborted, onLogs, onUsage } = companions(call);
    const toolText = toolIdText(toolId);
    const argsText = argsJson(args);
    const env = envOf(call);
    const request = providerRequestJson(this.#name, config, sandboxConfig, env);
    const files = filesOf(call);
    try {
      if (isAborted) throw aborted(signal);
      checkFiles(this.#name, files);
    } catch (error) {
      files?.end();
      throw error;
    }

    const stop = new AbortController();
    const leave = signal ? whenAborted(signal, () => stop.abort(signal)) : undefined;
    const record = new CallRecord(observer);
    const handover = new Handover();
    const entry = { toolId: toolText, env, stop, started: false, settled: undefined, record };
    entry.onLogs = (stream, text) => text && quietly(() => onLogs?.({ stream, text }));
    entry.files = files;
    entry.contents = [];
    const life = this.#live(entry, request, argsText, sandboxConfig);
    entry.over = life.then(
      () => entry.background,
      () => entry.background
    );
    this.#calls.add(entry);
    const untrack = track(this);
    entry.over.then(() => {
      this.#calls.delete(entry);
      if (this.#calls.size === 0) untrack();
      if (!onUsage && !observer) return;
      const usage = record.usage();
      handover.after(() => {
        observer?.use(usage);
        if (onUsage) quietly(() => onUsage(usage));
      });
    });
    try {
      const value = await life;
      record.settled('completed');
      return value;
    } catch (error) {
      record.settled(error.code);
      throw error;
    } finally {
      leave?.();
      files?.end();
      handover.settled();
    }
  }

  /**
   * Rejects what waits, waits for what runs, and gives up the idle sandboxes that no other executor has a use for. With a deadline all
   * calls may go on until it has passed, and no other is taken meanwhile.
   */
  async cleanup(deadlineMs) {
    if (deadlineMs === undefined) {
      for (const call of this.#calls) if (!call.started) call.stop.abort(CLEANED_UP);
      await this.#idle();
    } else {
      const deadline = setTimeout(() => {
        for (const call of this.#calls) call.stop.abort(CLEANED_UP);
      }, deadlineMs);
      this.#closing += 1;
      await this.#idle();
      this.#closing -= 1;
      clearTimeout(deadline);
    }
    await leave(this);
  }

  async #idle() {
    while (this.#calls.size > 0) await Promise.all([...this.#calls].map(({ over }) => over));
  }

  async #live(entry, request, argsText, sandboxConfig) {
    const plan = await this.#takeRules().plan(request);
    if (typeof plan.details !== 'function') throw fromOutcome(plan);
    const details = JSON.parse(plan.details());
    pool().sweepEvery(details.cleanupIntervalMs);
    quietly(() => this.#reclaim(details, sandboxConfig));
    const { toolId } = entry;
    this.#log('debug', { functionId: toolId, dependencyHash: details.dependencyHash }, 'Executing function tool');
    try {
      // Once, as a stream can be read once and the job may be sent to a second sandbox; before a sandbox is asked for.
      if (entry.files) {
        entry.contents = await bounded(details.installTimeoutMs, entry.stop.signal, () =>
          entry.files.contents(FILES_LIMIT_BYTES)
        );
      }
      const { lease, id, nonce } = await this.#leased(entry, plan, details, argsText, sandboxConfig);
      return await this.#supervised(entry, lease, id, nonce, plan, details);
    } catch (error) {
      throw this.#known(entry, error);
    }
  }

  #known({ stop, started, record }, error) {
    if (isSandboxError(error)) return error;
    if (stop.signal.aborted && stop.signal.reason === CLEANED_UP) {
      const text = `Function execution was ended by cleanup()${started ? '' : ' before it ran'}`;
      return new SandboxError(text, { __proto__: null, code: 'CLEANED_UP', phase: started ? 'run' : 'queue' });
    }
    if (stop.signal.aborted && error === stop.signal.reason) return aborted(error, { phase: record.step() });
    return failure('START_FAILED', 'start', `Provider "${this.#name}" failed`, error);
  }

  /** A sandbox that has the job. A sandbox that turns out to be gone before anything ran is replaced, once. */
  async #leased(entry, plan, details, argsText, sandboxConfig) {
    const call = {
      user: this,
      name: this.#name,
      scope: details.scope,
      lifetimeMs: details.neededLifetimeMs,
      make: (signal) => this.#make(details, sandboxConfig, signal),
      signal: entry.stop.signal,
    };
    for (let attempts = 1; ; attempts++) {
      entry.record.mark('install');
      const lease = await pool().lease(plan, call);
      entry.record.mark('start', { reused: lease.useCount > 1 });
      const id = randomBytes(8).toString('hex');
      const nonce = randomBytes(16).toString('hex');
      try {
        const files = [...givenFiles(id, entry.contents), ...jobFiles(id, nonce, details, argsText, entry.env)];
        await bounded(sendLimitMs(entry.contents), entry.stop.signal, (signal) =>
          lease.sandbox.writeFiles(files, { signal })
        );
        entry.stop.signal.throwIfAborted();
        return { lease, id, nonce };
      } catch (error) {
        const isGone = quietly(() => lease.sandbox.alive()) !== true;
        // A call that was given up says nothing about the sandbox; its file may still arrive, and nothing runs it. Nobody is to read it
        // where there are secrets in it.
        lease.release(!entry.stop.signal.aborted || entry.env !== undefined);
        if (entry.stop.signal.aborted || !isGone || attempts > 1) throw this.#sendFailed(entry, error);
        const why = { sandbox: idOf(lease.sandbox), error: reasonOf(error) };
        this.#log('debug', why, 'Sandbox is gone, taking another');
      }
    }
  }

  #sendFailed({ stop }, error) {
    if (stop.signal.aborted) return error;
    return failure('START_FAILED', 'start', 'The function could not be sent to its sandbox; nothing of it ran', error);
  }

  /** Starts the run and waits until exactly one thing settles it; what comes after that is the background's. */
  #supervised(entry, lease, id, nonce, plan, details) {
    entry.started = true;
    const run = new (native().ProviderRun)(nonce, plan);
    entry.record.run = run;
    entry.record.mark('run');
    const { promise, resolve, reject } = Promise.withResolvers?.() ?? withResolvers();
    const end = new AbortController();
    let settled = false;
    let over = false;
    let command;
    const settle = (outcome, error = errorOf(outcome)) => {
      if (settled) return;
      settled = true;
      clearTimeout(deadline);
      entry.stop.signal.removeEventListener('abort', onStop);
      const suspect = this.#judged(lease, error);
      entry.background = finish(lease, id, () => command, end, suspect, details.lingerMs).finally(() => {
        over = true;
      });
      if (error) reject(error);
      else answer(outcome, resolve, reject);
    };
    const onStop = () => settle(undefined, this.#known(entry, entry.stop.signal.reason));
    entry.stop.signal.addEventListener('abort', onStop, { once: true });
    const deadline = setTimeout(() => settle(run.timedOut(details.timeoutMs)), details.timeoutMs);
    const onOutput = (stream, chunk) => {
      // A provider may go on after it has stopped the sandbox.
      if (over) return;
      try {
        const taken = run.push(stream, typeof chunk === 'string' ? Buffer.from(chunk) : chunk);
        entry.onLogs(stream, taken.text);
        if (hasOwn(taken, 'outcome') && taken.outcome) settle(taken.outcome);
      } catch (error) {
        // Thrown into the provider's own callbacks it could end the host.
        settle(run.lost(`provider "${this.#name}" gave output that cannot be read: ${reasonOf(error)}`));
      }
    };
    command = (async () =>
      lease.sandbox.run({
        command: 'node',
        args: [`--max-old-space-size=${details.memoryMb}`, RUNNER, 'run', id],
        cwd: FOLDER,
        env: { NATIVE_SANDBOX_RUNNER: id },
        timeoutMs: Math.min(details.timeoutMs + details.lingerMs + GRACE_MS, TIMER_LIMIT_MS),
        onOutput,
        signal: end.signal,
      }))();
    command.then(
      (ended) => {
        entry.record.exitCode = exitCodeOf(ended);
        settle(run.ended(entry.record.exitCode));
      },
      (error) => settle(undefined, lostBy(error, run.lost(`the connection to the sandbox failed: ${reasonOf(error)}`)))
    );
    return promise;
  }

  /** Whether nobody else may have the sandbox after what happened to a call. */
  #judged(lease, error) {
    if (!error) return false;
    if (CLEAN.has(error.code)) return false;
    lease.retire();
    return true;
  }

  async #make(details, sandboxConfig, signal) {
    const began = performance.now();
    const request = {
      config: { ...sandboxConfig },
      lifetimeMs: details.lifetimeMs,
      owner: hostIdentity(),
      // Not `signal`: a creation that is broken off half-way may leave a sandbox that nobody knows of. It is stopped when it comes.
      signal: AbortSignal.timeout(details.installTimeoutMs),
    };
    const { scope, installTimeoutMs } = details;
    // It may be a sandbox all the same, only not one that can be used.
    const discard = (unused) => {
      if (typeof quietly(() => unused?.stop) === 'function') pool().discard(this.#name, scope, unused);
    };
    const create = () => {
      const creation = (async () => this.#provider.create(request))();
      // What comes late is stopped; what never comes is not waited for.
      pool().track(
        scope,
        bounded(installTimeoutMs + LATE_LIMIT_MS, undefined, () => creation, { __proto__: null, holds: false })
      );
      return creation;
    };
    let sandbox;
    try {
      sandbox = await bounded(installTimeoutMs, signal, create, { __proto__: null, late: discard });
      assertSandbox(this.#name, sandbox);
    } catch (error) {
      discard(sandbox);
      if (signal.aborted) throw error;
      throw failure('START_FAILED', 'start', `Provider "${this.#name}" could not create a sandbox`, error);
    }
    try {
      await this.#prepare(sandbox, details, signal);
    } catch (error) {
      discard(sandbox);
      throw error;
    }
    const ms = Math.round(performance.now() - began);
    this.#log('debug', { sandbox: idOf(sandbox), dependencyHash: details.dependencyHash, ms }, 'Created new sandbox');
    return sandbox;
  }

  /** Puts the scripts into a new sandbox and installs its dependencies. */
  async #prepare(sandbox, details, signal) {
    const { runner, worker } = native().providerScripts();
    const { dependencies } = details;
    const files = [
      { path: `${FOLDER}/${RUNNER}`, content: runner },
      { path: `${FOLDER}/${SCRIPTS}/worker.cjs`, content: worker },
      { path: `${FOLDER}/package.json`, content: JSON.stringify({ private: true, dependencies }) },
    ];
    const end = performance.now() + details.installTimeoutMs;
    try {
      await bounded(details.installTimeoutMs, signal, (stop) => sandbox.writeFiles(files, { signal: stop }));
    } catch (error) {
      if (signal.aborted) throw error;
      throw failure('START_FAILED', 'start', `Provider "${this.#name}" could not prepare a sandbox`, error);
    }
    for (const args of npmCommands(details))
      await install(sandbox, [RUNNER, 'once', args[0], 'npm', ...args], details, end, signal);
    if (Object.keys(dependencies).length > 0) {
      this.#log('debug', { sandbox: idOf(sandbox), dependencies }, 'Dependencies installed successfully');
    }
  }

  /** Has the provider stop what dead hosts left, once for each account; nobody waits for it. */
  #reclaim({ scope }, config) {
    if (typeof this.#provider.reclaim !== 'function' || reclaimed.has(scope)) return;
    if (reclaimed.size >= RECLAIMED_LIMIT) reclaimed.clear();
    reclaimed.add(scope);
    const controller = new AbortController();
    const look = (signal) => this.#provider.reclaim({ config: { ...config }, owner: hostIdentity(), isDead, signal });
    const looked = bounded(RECLAIM_LIMIT_MS, controller.signal, look, { __proto__: null, holds: false }).then(
      (count) => count > 0 && this.#log('info', { count }, 'Stopped sandboxes that dead hosts left'),
      (error) => {
        // The next call looks again.
        if (controller.signal.aborted) reclaimed.delete(scope);
        this.#log('debug', { error: reasonOf(error) }, 'Could not look for sandboxes of dead hosts');
      }
    );
    pool().track(scope, looked, () => controller.abort(new Error('cleanup() was called')));
  }

  #takeRules() {
    this.#rules ??= takeConfigured(
      (configured) => new (native().ProviderRules)(providerOptionsJson(configured, this.#own), environmentJson())
    );
    return this.#rules;
  }

  #log(level, fields, message) {
    log(loggerName(this.#name), level, { provider: this.#name, ...fields }, message);
  }
}

/** The steps of one call, and what it used, as `CallUsage` has it. */
class CallRecord {
  exitCode;
  /** The core's reading of the run. */
  run;
  #observer;
  #began = performance.now();
  #marks = [{ step: 'queue', atMs: 0 }];
  #settledMs;
  #reason;

  constructor(observer) {
    this.#observer = observer;
    observer?.mark(this.#marks[0]);
  }

  /** A step begins; one that is repeated, with another sandbox, goes on. */
  mark(step, more) {
    if (this.#marks.some((mark) => mark.step === step)) return;
    const mark = { step, atMs: this.#now(), ...more };
    this.#marks.push(mark);
    this.#observer?.mark(mark);
  }

  /** The step under way. */
  step() {
    return this.#marks.at(-1).step;
  }

  settled(reason) {
    this.#settledMs = this.#now();
    this.#reason = reason;
  }

  usage() {
    const phases = {};
    const settledMs = this.#settledMs ?? this.#now();
    this.#marks.forEach(({ step, atMs }, at) => {
      phases[`${step}Ms`] = (this.#marks[at + 1]?.atMs ?? settledMs) - atMs;
    });
    const durationMs = this.#now();
    const usage = { durationMs, phases, exit: { reason: this.#reason } };
    if (!('runMs' in phases)) return usage;
    phases.endMs = durationMs - settledMs;
    usage.outputBytes = this.run.outputBytes();
    if (this.exitCode !== undefined) usage.exit.code = this.exitCode;
    const used = this.run.used();
    if (used) {
      usage.cpuMs = used.cpuUs / 1000;
      usage.maxRssBytes = used.maxRssKib * 1024;
    }
    return usage;
  }

  #now() {
    return performance.now() - this.#began;
  }
}

/** After a call was answered: its run gets the linger, or is ended; then the sandbox is given back. */
async function finish(lease, id, command, end, suspect, lingerMs) {
  let broken = suspect;
  // The run may have been settled while it was being started.
  await undefined;
  if (!broken) {
    // It ends by itself when the linger is over.
    await bounded(lingerMs + GRACE_MS, undefined, command).catch(() => {
      broken = true;
    });
  }
  if (broken) {
    lease.retire();
    end.abort(new Error('the run is over'));
    // Alone in its sandbox it ends with it.
    if (lease.isShared()) await killed(lease.sandbox, id);
  }
  lease.release(broken);
}

/** Ends a run whose sandbox others use; where that fails, it ends with the sandbox. */
function killed(sandbox, id) {
  const args = [RUNNER, 'end', id];
  return bounded(GRACE_MS, undefined, (signal) =>
    sandbox.run({ command: 'node', args, cwd: FOLDER, env: {}, timeoutMs: GRACE_MS, onOutput() {}, signal })
  ).catch(() => {});
}

function errorOf(outcome) {
  return outcome.ok ? undefined : fromOutcome(outcome);
}

/** What a provider gave as exit code, if it is one. */
function exitCodeOf(ended) {
  const code = quietly(() => ended.exitCode);
  return Number.isInteger(code) ? code | 0 : undefined;
}

/** The error of a run whose answer was lost because of `error`; an error of ours stays what it is. */
function lostBy(error, outcome) {
  if (isSandboxError(error)) return error;
  const lost = fromOutcome(outcome);
  hidden(lost, 'cause', inertCause(error));
  return lost;
}

function answer(outcome, resolve, reject) {
  try {
    resolve(parseResult(outcome.value));
  } catch (error) {
    reject(error);
  }
}

function withResolvers() {
  const deferred = {};
  deferred.promise = new Promise((resolve, reject) => Object.assign(deferred, { resolve, reject }));
  return deferred;
}

/** The files of one run. */
function jobFiles(id, nonce, { job, code, env, envNames, lingerMs }, argsText, callEnv) {
  const folder = `${FOLDER}/runs/${id}`;
  const files = [
    {
      path: `${folder}/job.json`,
      content: JSON.stringify({
        nonce,
        lingerMs,
        job: { ...job, env: { ...env, ...callEnv } },
        code,
        args: argsText ?? 'null',
      }),
    },
  ];
  // The original's placeholders, for tools that load such a file.
  const names = envNames.filter((name) => PLACEHOLDER.test(name));
  if (names.length > 0) {
    const lines = names.map((name) => `${name}=${hasOwn(env, name) ? JSON.stringify(env[name]) : ''}`);
    files.push({ path: `${folder}/.env`, content: `${lines.join('\n')}\n` });
  }
  return files;
}

/** Refuses files that a provider's sandbox could not have, before anything is spent. */
function checkFiles(provider, files) {
  const paths = files?.given?.map(({ path }) => path) ?? [];
  const problem = paths.length === 0 ? undefined : native().filePathsProblem(paths);
  if (problem) throw invalidConfig(problem);
  const own = paths.find((path) => OWN_NAMES.includes(path.split('/')[0]));
  if (own === undefined) return;
  throw invalidConfig(
    `files: ${stringify(own)} is a name that the package uses itself where the provider ${stringify(provider)} runs a function; give the file another name`
  );
}

/** The files of a call as its sandbox gets them: in the folder of the run, which is the function's working folder. */
function givenFiles(id, contents) {
  return contents.map(({ path, content }) => ({ path: `${FOLDER}/runs/${id}/${path}`, content }));
}

/** Time for a job to get into a sandbox, with the files of the call. */
function sendLimitMs(contents) {
  const bytes = contents.reduce((sum, { content }) => sum + content.length, 0);
  return SEND_LIMIT_MS + Math.ceil(bytes / SEND_BYTES_PER_MS);
}

/** What npm has to do for a dependency set, as arguments. */
function npmCommands({ dependencies, installScripts, minReleaseAgeDays }) {
  if (Object.keys(dependencies).length === 0) return [];
  const quiet = ['--no-audit', '--no-fund', '--no-progress', '--no-update-notifier', '--loglevel=error'];
  const scripts = scriptsOf(installScripts);
  const age =
    minReleaseAgeDays > 0 ? [`--before=${new Date(Date.now() - minReleaseAgeDays * DAY_MS).toISOString()}`] : [];
  const ignore = scripts === 'run' ? [] : ['--ignore-scripts'];
  const commands = [['install', ...ignore, ...quiet, ...age]];
  if (Array.isArray(scripts) && scripts.length > 0) commands.push(['rebuild', ...quiet, '--', ...scripts]);
  return commands;
}

/** The core's value as the option has it. */
function scriptsOf(option) {
  if (typeof option === 'string') return option.toLowerCase();
  return option.Only;
}

async function install(sandbox, args, details, end, signal) {
  let tail = '';
  const decoder = new StringDecoder();
  // Never throws: it is called in the provider's own callbacks.
  const onOutput = (stream, chunk) =>
    quietly(() => {
      if (stream === 'stderr') tail = `${tail}${decoder.write(Buffer.from(chunk))}`.slice(-INSTALL_TAIL_CHARS);
    });
  const timeoutMs = Math.max(end - performance.now(), 1);
  let exitCode;
  try {
    exitCode = exitCodeOf(
      await bounded(timeoutMs, signal, (stop) =>
        sandbox.run({ command: 'node', args, cwd: FOLDER, env: {}, timeoutMs, onOutput, signal: stop })
      )
    );
  } catch (error) {
    if (signal.aborted) throw error;
    if (error instanceof OutOfTime) {
      const text = `Failed to install dependencies: not done within ${details.installTimeoutMs}ms`;
      throw new SandboxError(text, { __proto__: null, code: 'INSTALL_TIMEOUT', phase: 'install', stderr: tail });
    }
    throw failure('INSTALL_FAILED', 'install', 'Failed to install dependencies', error);
  }
  if (exitCode === 0) return;
  const ended = exitCode === undefined ? 'the sandbox did not say how npm ended' : `npm ended with code ${exitCode}`;
  const why = tail.trimEnd() || ended;
  const text = `Failed to install dependencies: ${why}`;
  throw new SandboxError(text, { __proto__: null, code: 'INSTALL_FAILED', phase: 'install', stderr: tail });
}

const METHODS = ['writeFiles', 'run', 'stop', 'alive', 'remainingLifetimeMs'];

function assertSandbox(name, sandbox) {
  const missing = METHODS.filter((method) => typeof sandbox?.[method] !== 'function');
  if (missing.length > 0) throw new TypeError(`what create() of "${name}" gives has no ${missing.join(', ')}`);
  // Asked before each call: what cannot be understood would look like a dead sandbox, or like one that never ends.
  assertAnswer(
    name,
    'alive',
    'boolean',
    quietly(() => sandbox.alive())
  );
  assertAnswer(
    name,
    'remainingLifetimeMs',
    'number',
    quietly(() => sandbox.remainingLifetimeMs())
  );
}

function assertAnswer(name, method, type, answer) {
  const isKnown = typeof answer === type && !Number.isNaN(answer);
  if (isKnown) return;
  const what = typeof answer?.then === 'function' ? 'a promise' : shown(answer);
  throw new TypeError(`${method}() of what create() of "${name}" gives must give a ${type} at once, and gave ${what}`);
}

/** An error of the provider's, with ours around it; an error of ours stays what it is. */
function failure(code, phase, what, error) {
  if (isSandboxError(error)) return error;
  return new SandboxError(`${what}: ${reasonOf(error)}`, { __proto__: null, code, phase, cause: error });
}

/** Options of a call that need this machine's own channel to the function. */
const NATIVE_ONLY = ['functions', 'functionLimits', 'collect', 'onProgress', 'onYield', 'limits', 'network'];

/** Refuses a call that asks for what a provider cannot give, before anything is spent on it. */
function refuseNativeOnly(provider, call) {
  if (call === undefined || call === null || typeof call !== 'object') return;
  const name = NATIVE_ONLY.find((one) => (read(one, call, one) ?? undefined) !== undefined);
  if (name === undefined) return;
  throw invalidConfig(
    `${name} cannot be had where the provider ${stringify(provider)} runs a function: leave it out, or run the tool with the provider "native"`
  );
}

exports.ProviderExecutor = ProviderExecutor;
