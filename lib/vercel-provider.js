'use strict';

// The provider `vercel`: the user's own installed `@vercel/sandbox`, of any version from 0.0.24 to 3, as a `Provider`. The
// versions differ in what costs a request, in how a stopped sandbox shows, and in what a sandbox is called.

const { randomBytes } = require('node:crypto');
const { posix } = require('node:path');
const { Writable } = require('node:stream');
const { SandboxError, invalidConfig, isSandboxError, reasonOf } = require('./errors.js');
const { quietly } = require('./logger.js');

const PACKAGE = '@vercel/sandbox';
const SUPPORTED = '0.0.24 || ^1.10 || ^2 || ^3';
/** Versions that are too old: all below 1.10 but one. */
const TOO_OLD = /^(?:0\.(?!0\.24$)|1\.\d\.)/;

/** What the sandbox runs; TypeScript is transformed before it gets there. */
const RUNTIME = 'node22';
/** Where the files of a sandbox are, should the SDK not say. */
const DEFAULT_CWD = '/vercel/sandbox';
const CREDENTIALS = ['token', 'teamId', 'projectId'];
/** The answer that a name is taken, the creation's own one included. */
const TAKEN_STATUS = 409;
/** Names that a creation tries. */
const NAMES_LIMIT = 2;
/** Answers about the account: what was asked for plays no part. */
const ACCOUNT_STATUS = [401, 402, 403, 429];
/** Answers that say that the sandbox is gone. */
const GONE_STATUS = [404, 410];
const GONE_CODES = ['sandbox_stopped', 'sandbox_stopping', 'sandbox_snapshotting'];
/** Of an answer's own text, what an error shows. */
const SHOWN_TEXT_CHARS = 500;
/** Time to stop what a failed creation may have made. */
const FORGET_LIMIT_MS = 5_000;
/** Sandboxes that are looked at for dead owners. */
const RECLAIM_LIMIT_SANDBOXES = 500;

const MACHINE_TAG = 'nse-machine';
const OWNER_TAG = 'nse-owner';

let loading;

/** The SDK, at first use. A missing package is asked for again: it may be installed meanwhile. */
async function sdk() {
  // Jest has no `import()` in CommonJS unless it is told to; all supported versions can be required.
  loading ??= import(PACKAGE).catch((error) => {
    if (String(error?.code).startsWith('ERR_VM_DYNAMIC_IMPORT')) return require(PACKAGE);
    throw error;
  });
  try {
    const module = await loading;
    const Sandbox = module.Sandbox ?? module.default?.Sandbox;
    if (typeof Sandbox?.create !== 'function') throw new TypeError('it has no Sandbox.create');
    const version = installedVersion();
    if (TOO_OLD.test(version)) throw new TypeError(`version ${version} is installed`);
    return Sandbox;
  } catch (cause) {
    loading = undefined;
    const text =
      `provider 'vercel' needs the package ${PACKAGE} (${SUPPORTED}), which could not be loaded: install it with ` +
      `\`npm install ${PACKAGE}\`. Reason: ${reasonOf(cause).split('\n')[0]}`;
    throw new SandboxError(text, { code: 'START_FAILED', phase: 'start', cause });
  }
}

/** The SDK's version; empty where it does not show it. */
function installedVersion() {
  try {
    return String(require(`${PACKAGE}/package.json`).version);
  } catch {
    return '';
  }
}

/** Whether sandboxes have names: from version 2 on. */
const isNamed = (Sandbox) => typeof Sandbox.prototype?.currentSession === 'function';

/** All credentials, or none: then the SDK takes those of its environment (OIDC). */
function credentialsOf(config) {
  const given = CREDENTIALS.filter(
    (name) => config[name] !== undefined && config[name] !== null && config[name] !== ''
  );
  if (given.length === 0) return {};
  const missing = CREDENTIALS.filter((name) => !given.includes(name));
  if (missing.length > 0) throw invalidConfig(`provider 'vercel': sandboxConfig lacks ${missing.join(' and ')}`);
  return Object.fromEntries(CREDENTIALS.map((name) => [name, config[name]]));
}

async function create(request) {
  const credentials = credentialsOf(request.config);
  const Sandbox = await sdk();
  const signal = plain(request.signal);
  for (let names = 1; ; names++) {
    const name = `nse-${request.owner.machine}-${process.pid}-${randomBytes(6).toString('hex')}`;
    try {
      return await createNamed(Sandbox, credentials, name, request, signal);
    } catch (error) {
      const status = statusOf(error.cause);
      await forget(Sandbox, credentials, name, status);
      // An earlier request for this one whose answer was lost has it: what that made is stopped by now.
      const isTaken = status === TAKEN_STATUS && isNamed(Sandbox);
      if (!isTaken || names >= NAMES_LIMIT || signal.aborted) throw error;
    }
  }
}

async function createNamed(Sandbox, credentials, name, { config, lifetimeMs, owner }, signal) {
  let resumed = false;
  const began = performance.now();
  const sandbox = await explained(credentials, () =>
    Sandbox.create({
      ...credentials,
      runtime: RUNTIME,
      timeout: Math.ceil(lifetimeMs),
      ...(config.vcpus === undefined ? {} : { resources: { vcpus: config.vcpus } }),
      // SDKs before 2 drop what follows.
      name,
      persistent: false,
      tags: { [MACHINE_TAG]: owner.machine, [OWNER_TAG]: owner.owner },
      onResume: () => {
        resumed = true;
      },
      signal,
    })
  );
  return new VercelSandbox(sandbox, credentials, began, lifetimeMs, () => resumed);
}

/** A creation whose answer was lost or cannot be read may have made a sandbox all the same: from SDK 2 on its name is known. */
async function forget(Sandbox, credentials, name, status) {
  const isRefused = status >= 400 && status < 500 && status !== TAKEN_STATUS;
  if (isRefused || !isNamed(Sandbox)) return;
  const signal = plain(AbortSignal.timeout(FORGET_LIMIT_MS));
  try {
    const made = await Sandbox.get({ ...credentials, name, resume: false, signal });
    await made.stop({ signal });
  } catch {
    // There is none, or it cannot be reached: it ends with its lifetime.
  }
}

/** A signal that fires as `abort()` does. Requests that another reason ends are sent again by SDK 0.0.24, for half a minute. */
function plain(signal) {
  if (!signal) return undefined;
  const controller = new AbortController();
  if (signal.aborted) controller.abort();
  else signal.addEventListener('abort', () => controller.abort(), { once: true });
  return controller.signal;
}

class VercelSandbox {
  #sandbox;
  /** What runs commands: from version 2 on a session, whose methods do not start another machine when it has stopped. */
  #machine;
  #credentials;
  #endsAt;
  #isResumed;
  #gone = false;
  #isStopped = false;
  #needsFolders = false;

  constructor(sandbox, credentials, began, lifetimeMs, isResumed) {
    this.#sandbox = sandbox;
    this.#machine = typeof sandbox.currentSession === 'function' ? sandbox.currentSession() : sandbox;
    this.#credentials = credentials;
    // Counted from before the request: the service's clock started later.
    this.#endsAt = began + (this.#machine.timeout ?? lifetimeMs);
    this.#isResumed = isResumed;
  }

  get id() {
    return this.#machine.sessionId ?? this.#sandbox.sandboxId;
  }

  alive() {
    return !this.#gone && !this.#isOther() && this.remainingLifetimeMs() > 0;
  }

  remainingLifetimeMs() {
    return this.#endsAt - performance.now();
  }

  async writeFiles(files, options = {}) {
    const signal = plain(options.signal);
    const write = () =>
      this.#machine.writeFiles(
        files.map(({ path, content }) => ({ path, content: Buffer.from(content) })),
        { signal }
      );
    await this.#noticing(async () => {
      if (this.#needsFolders) await this.#makeFolders(files, signal);
      try {
        await write();
      } catch (error) {
        if (isGone(error) || !isRefusal(error) || isAboutAccount(error) || this.#needsFolders) throw error;
        // The archive makes the folders of its files; a service that does not is asked for them from now on.
        await this.#makeFolders(files, signal);
        await write();
        this.#needsFolders = true;
      }
    });
  }

  async #makeFolders(files, signal) {
    const folders = new Set();
    for (const { path } of files) {
      const parts = posix.dirname(path).split('/');
      for (let depth = 1; depth <= parts.length; depth++) folders.add(parts.slice(0, depth).join('/'));
    }
    for (const folder of folders) {
      try {
        await this.#machine.mkDir(folder, { signal });
      } catch (error) {
        // It may be there; whether it is, the files will show.
        if (isGone(error) || !isRefusal(error)) throw error;
      }
    }
  }

  run({ command, args, cwd, env, timeoutMs, onOutput, ...options }) {
    const signal = plain(options.signal);
    const params = {
      cmd: command,
      args,
      cwd: posix.join(this.#machine.cwd ?? DEFAULT_CWD, cwd),
      env,
      signal,
      // SDKs before 2.1 ignore it.
      timeoutMs: Math.ceil(timeoutMs),
    };
    // Version 1 and later wait within the request that starts the command; 0.0.24 has to be asked for everything.
    const waits = typeof this.#sandbox.snapshot === 'function';
    return this.#noticing(() => (waits ? this.#runWaiting(params, onOutput) : this.#runDetached(params, onOutput)));
  }

  async #runWaiting(params, onOutput) {
    const stdout = sink('stdout', onOutput);
    const stderr = sink('stderr', onOutput);
    const { exitCode } = await this.#machine.runCommand({ ...params, stdout, stderr });
    return { exitCode };
  }

  async #runDetached(params, onOutput) {
    const { signal } = params;
    const command = await this.#machine.runCommand({ ...params, detached: true });
    // Without a wait for the answer: the caller has its reason to be gone.
    // In a listener: what it throws would end the host.
    const kill = () => void quietly(() => command.kill('SIGKILL'));
    if (signal?.aborted) kill();
    signal?.addEventListener('abort', kill, { once: true });
    const reading = (async () => {
      for await (const { stream, data } of command.logs({ signal })) onOutput(stream, data);
    })();
    try {
      // A function of its own: where `wait` throws at once, nobody would take the rejection of `reading`.
      const waiting = (async () => command.wait({ signal }))();
      const [{ exitCode }] = await Promise.all([waiting, reading]);
      return { exitCode };
    } finally {
      signal?.removeEventListener('abort', kill);
    }
  }

  /** Asks the service also where an answer said that the sandbox is gone: it may have been about something else. */
  async stop(options = {}) {
    if (this.#isStopped) return;
    this.#gone = true;
    try {
      await explained(this.#credentials, () => this.#machine.stop({ signal: plain(options.signal) }));
    } catch (error) {
      if (!isGone(error.cause ?? error)) throw error;
    }
    this.#isStopped = true;
  }

  /** Whether the SDK has put another machine, without our files, in the place of this one. */
  #isOther() {
    if (this.#isResumed()) return true;
    return typeof this.#sandbox.currentSession === 'function' && this.#sandbox.currentSession() !== this.#machine;
  }

  async #noticing(act) {
    if (!this.alive()) throw new Error('the sandbox has ended');
    try {
      return await explained(this.#credentials, act);
    } catch (error) {
      if (isGone(error.cause ?? error)) this.#gone = true;
      throw error;
    }
  }
}

/** A stream for the SDK to write to; what the SDK reports on it shows in the command's answer, too. */
function sink(stream, onOutput) {
  const writable = new Writable({
    decodeStrings: false,
    write(chunk, _encoding, done) {
      onOutput(stream, chunk);
      done();
    },
  });
  return writable.on('error', () => {});
}

const statusOf = (error) => error?.response?.status;
const codeOf = (error) => error?.json?.error?.code ?? error?.code;

function isGone(error) {
  return GONE_STATUS.includes(statusOf(error)) || GONE_CODES.includes(codeOf(error));
}

/** Whether the service said no, as against not being reached. */
function isRefusal(error) {
  return statusOf(error) >= 400 && statusOf(error) < 500 && statusOf(error) !== 429;
}

function isAboutAccount(error) {
  return ACCOUNT_STATUS.includes(statusOf(error));
}

/** Runs what the SDK does; its errors get the service's own words and lose what nobody is to read. */
async function explained(credentials, act) {
  try {
    return await act();
  } catch (error) {
    if (isSandboxError(error) || error?.name === 'AbortError') throw error;
    const status = statusOf(error);
    const retryAfter = status === 429 ? error.response.headers?.get('retry-after') : undefined;
    const parts = [
      reasonOf(error),
      serverText(error),
      retryAfter && `rate limited, to be tried again after ${retryAfter} s`,
    ].filter(Boolean);
    // Newer SDKs have the service's words in their own text.
    const text = parts.filter((part, at) => !parts.some((other, n) => n < at && other.includes(part))).join(': ');
    const clean = credentials.token ? text.replaceAll(String(credentials.token), '[redacted]') : text;
    throw new Error(clean, { cause: summary(error, status) });
  }
}

function serverText(error) {
  const text = error?.json?.error?.message;
  return typeof text === 'string' ? text.slice(0, SHOWN_TEXT_CHARS) : undefined;
}

/** What the decisions above need of an SDK's error; the error itself holds the whole answer. */
function summary(error, status) {
  return { name: error?.name, ...(status === undefined ? {} : { response: { status } }), code: codeOf(error) };
}

/** Stops the sandboxes that dead processes of this machine left. SDKs before 2 have no tags: theirs end with their lifetime. */
async function reclaim({ config, owner, isDead, ...request }) {
  const Sandbox = await sdk();
  if (!isNamed(Sandbox)) return 0;
  const credentials = credentialsOf(config);
  const signal = plain(request.signal);
  const end = async (name) => {
    try {
      const left = await Sandbox.get({ ...credentials, name, resume: false, signal });
      await left.stop({ signal });
      return 1;
    } catch {
      // It has ended meanwhile, or another process was faster; the others are looked at all the same.
      return 0;
    }
  };
  return explained(credentials, async () => {
    const listed = await Sandbox.list({ ...credentials, tags: { [MACHINE_TAG]: owner.machine }, signal });
    let count = 0;
    let seen = 0;
    for await (const { name, status, tags } of listed) {
      if (++seen > RECLAIM_LIMIT_SANDBOXES || signal?.aborted) break;
      if (['pending', 'running'].includes(status) && isDead(tags?.[OWNER_TAG] ?? '')) count += await end(name);
    }
    return count;
  });
}

exports.vercelProvider = { create, reclaim };
