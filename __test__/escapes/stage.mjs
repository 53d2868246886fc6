// Where attempts are made: the things worth stealing, spoiling or killing. There are two of a kind: the real one, around a
// running executor, and a stand-in, around plain processes, for the controls.

import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSocket } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { below, marked, newMarker, ROOT, statOf, surface, tool, until } from '../helpers.mjs';
import { argumentsOf, packageFiles, packageName, plainSource, sharesTree, toolOf } from './source.mjs';

const PLAIN = fileURLToPath(new URL('./plain.cjs', import.meta.url));
const POLL_MS = 20;
/** How much of what a process prints is looked at. */
const PRINTED_LIMIT_BYTES = 8 * 1024 * 1024;
/** The descriptor at which the server was left a secret. */
export const INHERITED_FD = 50;
export const VICTIM_PACKAGE = 'victim-package';
export const PRIVATE_PACKAGE = 'private-package';

/** A call of somebody else's, with secrets in memory, environment and folder. It answers when it is let go. */
const VICTIM = `async ({ marker, secret, port, id }) => {
  process.title = marker;
  process.env.VICTIM_SECRET = secret;
  globalThis.kept = Buffer.from(secret);
  require('fs').writeFileSync('notes.txt', secret);
  console.log(JSON.stringify({ victim: marker, pid: process.pid, cwd: process.cwd() }));
  await new Promise((done, fail) => require('http').get({ port, host: '127.0.0.1', path: '/hold/' + id }, (answer) => answer.resume().on('end', done)).on('error', fail));
  return { answer: 'of ' + marker };
}`;

const IDLE =
  'async ({ marker }) => { process.title = marker; setInterval(() => {}, 1000); await new Promise(() => {}); }';

/** The first answer in the frames that a plain process wrote. */
function answerIn(bytes) {
  for (let at = 0; at + 5 <= bytes.length; ) {
    const length = bytes.readUInt32LE(at);
    const payload = bytes.subarray(at + 5, at + 5 + length).toString();
    if (bytes[at + 4] === 18) {
      try {
        return { value: payload === '' ? undefined : JSON.parse(payload) };
      } catch {
        return { error: { message: 'no JSON' } };
      }
    }
    if (bytes[at + 4] === 19) return { error: { message: payload } };
    at += 5 + length;
  }
  return { error: { message: 'no answer' } };
}

function head(file) {
  return readFileSync(file).subarray(0, PRINTED_LIMIT_BYTES);
}

/**
 * Removes a folder as somebody would who does not expect harm: opens up what is closed, follows what leads elsewhere, but not
 * out of `limit`.
 */
function removeNaively(folder, limit) {
  if (!realpathSync(folder).startsWith(`${limit}/`)) throw new Error(`${folder} leads out of ${limit}`);
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    chmodSync(path, 0o777);
    if (statSync(path).isDirectory()) removeNaively(path, limit);
    else rmSync(path, { force: true });
  }
  rmSync(folder, { recursive: true, force: true });
}

/** Kills processes that a control left; how many there were. */
function killed(pids) {
  for (const pid of pids) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // It ended by itself.
    }
  }
  return pids.length;
}

/** Merges as somebody would who does not expect harm. */
function mergeNaively(into, from) {
  for (const name of Object.keys(from)) {
    const value = from[name];
    if (value === null || typeof value !== 'object') {
      into[name] = value;
      continue;
    }
    into[name] ??= {};
    mergeNaively(into[name], value);
  }
}

/** Takes files as somebody would who does not expect harm: whatever is listed under its name, and what is in the folder with what links lead to. */
function collectNaively(into, folder, frames) {
  const filter = (path) => !path.includes('node_modules');
  cpSync(folder, into, { recursive: true, dereference: true, force: true, filter });
  let name;
  for (let at = 0; at + 5 <= frames.length; ) {
    const length = frames.readUInt32LE(at);
    const payload = frames.subarray(at + 5, at + 5 + length);
    if (frames[at + 4] === 32) name ??= JSON.parse(payload)[0][0];
    if (frames[at + 4] === 34 && name !== undefined) {
      const path = resolve(into, name);
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, payload);
    }
    at += 5 + length;
  }
}

function overflows(value) {
  const walk = (one) => (one !== null && typeof one === 'object' ? Object.values(one).forEach(walk) : undefined);
  try {
    walk(value);
    return false;
  } catch (error) {
    return error instanceof RangeError;
  }
}

function stateOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return stat.slice(stat.lastIndexOf(')') + 2)[0];
  } catch {
    return undefined;
  }
}

/** Why a process is not as it was; `undefined` when it is. */
function harmDone(pid, name) {
  const state = stateOf(pid);
  if ([undefined, 'Z', 'X'].includes(state)) return `the ${name} is dead`;
  if (['T', 't'].includes(state)) return `the ${name} is stopped`;
  return undefined;
}

/** What both stages have. */
class Stage {
  constructor(root, secret) {
    this.root = root;
    this.secret = secret;
    this.home = join(root, 'home');
    this.outside = join(root, 'outside');
    this.holds = new Map();
    this.closers = [];
  }

  async open() {
    const { home, outside, secret } = this;
    mkdirSync(outside, { recursive: true });
    chmodSync(outside, 0o777);
    this.reset();
    mkdirSync(join(home, '.ssh'), { recursive: true, mode: 0o700 });
    writeFileSync(join(home, '.npmrc'), `//registry.invalid/:_authToken=${secret}\n`, { mode: 0o600 });
    writeFileSync(join(home, '.ssh', 'id_ed25519'), secret, { mode: 0o600 });
    writeFileSync(join(home, '.profile'), 'true\n');
    await this.#listen();
  }

  /** Puts back what attempts may have changed. */
  reset() {
    const { outside, secret } = this;
    for (const name of readdirSync(outside)) {
      if (!name.endsWith('.sock')) rmSync(join(outside, name), { recursive: true, force: true });
    }
    writeFileSync(join(outside, 'readable.txt'), secret);
    writeFileSync(join(outside, 'module.cjs'), `module.exports = '${secret}';`);
    writeFileSync(join(outside, 'target.txt'), 'as it was');
    chmodSync(join(outside, 'target.txt'), 0o666);
    mkdirSync(join(outside, 'folder'));
    chmodSync(join(outside, 'folder'), 0o777);
    writeFileSync(join(outside, 'folder', 'kept.txt'), 'as it was');
    chmodSync(join(outside, 'folder', 'kept.txt'), 0o666);
  }

  async #listen() {
    const { secret, outside } = this;
    const http = createServer((request, answer) => {
      const [, what, id] = request.url.split('/');
      if (what === 'hold') this.holds.set(id, answer);
      else answer.end(secret);
    });
    await new Promise((done) => http.listen(0, '127.0.0.1', done));
    this.port = http.address().port;
    const greet = (socket) => socket.on('error', () => {}).end(secret);
    const path = createSocket(greet);
    this.socketPath = join(outside, 'docker.sock');
    await new Promise((done) => path.listen(this.socketPath, done));
    chmodSync(this.socketPath, 0o777);
    const abstract = createSocket(greet);
    this.abstractName = `nse-${newMarker()}`;
    await new Promise((done) => abstract.listen(`\0${this.abstractName}`, done));
    for (const server of [http, path, abstract]) {
      server.unref();
      this.closers.push(() => server.close());
    }
    this.closers.push(() => http.closeAllConnections());
  }

  /** The surroundings as an attempt is told them. */
  world(marker) {
    const { home, outside } = this;
    return {
      marker,
      home,
      outside,
      secretFile: join(home, '.ssh', 'id_ed25519'),
      npmrc: join(home, '.npmrc'),
      readableFile: join(outside, 'readable.txt'),
      secretModule: join(outside, 'module.cjs'),
      target: join(outside, 'target.txt'),
      folder: join(outside, 'folder'),
      socketPath: this.socketPath,
      abstractName: this.abstractName,
      port: this.port,
      fd: INHERITED_FD,
      packageFolder: ROOT,
      uid: process.getuid?.() ?? -1,
      ...this.places(),
    };
  }

  textOf(path) {
    try {
      return readFileSync(path, 'utf8');
    } catch {
      return undefined;
    }
  }

  exists(path) {
    return lstatSync(path, { throwIfNoEntry: false }) !== undefined;
  }

  modeOf(path) {
    try {
      return lstatSync(path).mode & 0o777;
    } catch {
      return undefined;
    }
  }

  timeOf(path) {
    return lstatSync(path).mtimeMs;
  }

  setMode(path, mode) {
    chmodSync(path, mode);
  }

  setTime(path, ms) {
    utimesSync(path, ms / 1000, ms / 1000);
  }

  write(path, text) {
    writeFileSync(path, text);
  }

  remove(path) {
    rmSync(path, { recursive: true, force: true });
  }

  /** Empties the folder of a caller who takes files, but for a link, and a file of the caller's own. */
  clearCollected() {
    this.collected = join(this.root, 'collected');
    rmSync(this.collected, { recursive: true, force: true });
    mkdirSync(this.collected);
    symlinkSync(this.outside, join(this.collected, 'link'));
    writeFileSync(join(this.collected, 'kept.txt'), 'as it was');
  }

  /** All that is in it, links not followed. */
  collectedText(folder = this.collected) {
    return readdirSync(folder, { withFileTypes: true })
      .map((entry) => {
        const path = join(folder, entry.name);
        if (entry.isDirectory()) return this.collectedText(path);
        return entry.isFile() ? readFileSync(path, 'latin1') : '';
      })
      .join('\n');
  }

  /** Whether the kernel has a shared memory segment of that number. */
  segmentExists(id) {
    if (!(id >= 0)) return false;
    return readFileSync('/proc/sysvipc/shm', 'utf8')
      .split('\n')
      .some((line) => Number(line.trim().split(/\s+/)[1]) === id);
  }

  removeSegment(id) {
    if (this.segmentExists(id)) execFileSync('ipcrm', ['-m', String(id)]);
  }

  /** Whether somebody's merging or copying has changed what all objects inherit. */
  spoilt() {
    const spoilt = {}.spoilt !== undefined;
    delete Object.prototype.spoilt;
    return spoilt && 'all objects are spoilt';
  }

  pidsOf(...names) {
    return Object.fromEntries(names.map((name) => [`${name}Pids`, this.victims[name].pids]));
  }

  /** What has happened to the named victims, or `undefined`. */
  harm(...names) {
    return names.map((name) => this.victims[name].harm()).find(Boolean);
  }

  /** Waits for something to end that should; says whether it went on. */
  async lasts(condition) {
    const end = performance.now() + this.patienceMs;
    while (await condition()) {
      if (performance.now() > end) return true;
      await delay(POLL_MS);
    }
    return false;
  }

  processesLast(marker) {
    // One that is about to become another program has no command line for a moment.
    const isThere = async () => {
      if (marked(marker).length > 0) return true;
      await delay(POLL_MS);
      return marked(marker).length > 0;
    };
    return this.lasts(isThere);
  }

  /** Lets the invited victims go; the first thing that is wrong with what they answer. */
  async settleAll() {
    for (const name of ['sibling', 'neighbour', 'stranger']) {
      const victim = this.victims[name];
      if (!victim) continue;
      delete this.victims[name];
      const wrong = await victim.settle();
      this.wrong ??= wrong;
    }
    return this.wrong;
  }

  async letGo(id) {
    await until(() => this.holds.has(id), 20_000, 'the victim holds on');
    this.holds.get(id).end();
    this.holds.delete(id);
  }

  async close() {
    for (const close of this.closers.reverse()) await close();
  }
}

/** Around plain processes. */
export class StandIn extends Stage {
  patienceMs = 400;
  real = false;

  constructor(root, secret) {
    super(root, secret);
    this.work = join(root, 'plain');
    this.store = join(root, 'store');
    this.victims = {};
    mkdirSync(this.work, { recursive: true });
  }

  async open() {
    await super.open();
    this.#fillStore();
    this.look();
    this.closers.push(() => Promise.all(['host', 'launcher', 'zygote'].map((name) => this.victims[name].end())));
  }

  /** Puts somebody in the place of who was killed. */
  look() {
    for (const name of ['host', 'launcher', 'zygote']) {
      if (this.victims[name] && !this.harm(name)) continue;
      this.victims[name]?.end();
      const process = this.#start(IDLE, { marker: newMarker() });
      this.victims[name] = {
        pids: [process.pid],
        harm: () => harmDone(process.pid, name) ?? process.debugged(),
        end: process.end,
      };
    }
  }

  reset() {
    super.reset();
    if (existsSync(this.store)) this.#fillStore();
  }

  #fillStore() {
    // The folders of calls stay: the victims' are among them.
    for (const name of ['trees', 'runtime']) rmSync(join(this.store, name), { recursive: true, force: true });
    for (const [key, name] of [
      ['one', VICTIM_PACKAGE],
      ['two', PRIVATE_PACKAGE],
    ]) {
      const generation = join(this.store, 'trees', key, '1-a');
      const folder = join(generation, 'tree', 'node_modules', name);
      mkdirSync(folder, { recursive: true });
      writeFileSync(join(folder, 'package.json'), `{"name":"${name}","version":"1.0.0"}`);
      writeFileSync(join(folder, 'index.js'), `module.exports = '${this.secret}';`, { mode: 0o444 });
      for (const file of ['complete', 'lease', 'files']) writeFileSync(join(generation, file), '');
    }
    for (const folder of ['runtime', 'locks', 'aliases', 'hosts/1-a/runs', 'hosts/1-a/staging']) {
      mkdirSync(join(this.store, folder), { recursive: true });
    }
    writeFileSync(join(this.store, 'runtime', 'worker.cjs'), '');
    mkdirSync(join(this.home, '.npm', '_cacache', 'index-v5'), { recursive: true });
  }

  places() {
    const { sibling, stranger } = this.victims;
    const ownTree = join(this.store, 'trees', 'one', '1-a');
    return {
      treeTime: this.timeOf(join(ownTree, 'tree', 'node_modules', VICTIM_PACKAGE, 'index.js')),
      store: this.store,
      ownTree,
      strangerTree: join(this.store, 'trees', 'two', '1-a'),
      cache: join(this.home, '.npm', '_cacache'),
      ...(sibling && { siblingFolder: sibling.folder }),
      ...(stranger && { strangerFolder: stranger.folder }),
      ...this.pidsOf(...Object.keys(this.victims)),
    };
  }

  #start(source, args, handedOn) {
    const id = newMarker();
    const cwd = join(this.store, 'hosts', '1-a', 'runs', id);
    mkdirSync(cwd, { recursive: true });
    symlinkSync(join(this.store, 'trees', 'one', '1-a', 'tree', 'node_modules'), join(cwd, 'node_modules'));
    const files = Object.fromEntries(
      ['job', 'out', 'err', 'answer'].map((name) => [name, join(this.work, `${id}.${name}`)])
    );
    writeFileSync(files.job, JSON.stringify({ source, args }));
    const paths = [files.out, files.err, files.answer, ...(handedOn ? [handedOn] : [])];
    const descriptors = paths.map((path) => openSync(path, 'a'));
    const child = spawn(process.execPath, [PLAIN, files.job], {
      cwd,
      env: { ...process.env, NODE_OPTIONS: '--inspect-port=0' },
      stdio: ['ignore', ...descriptors],
    });
    for (const fd of descriptors) closeSync(fd);
    const exited = new Promise((done) => child.on('exit', (code, signal) => done({ code, signal })));
    return {
      pid: child.pid,
      cwd,
      exited,
      channel: files.answer,
      debugged: () => (String(head(files.err)).includes('Debugger listening') ? 'it can be debugged' : undefined),
      printed: () => String(head(files.out)) + String(head(files.err)),
      sizes: () => Object.fromEntries(['out', 'err', 'answer'].map((name) => [name, lstatSync(files[name]).size])),
      outcome: () => answerIn(head(files.answer)),
      end: async () => {
        child.kill('SIGKILL');
        await exited;
        for (const file of Object.values(files)) rmSync(file, { force: true });
        // Deeper than Node can remove, maybe.
        execFileSync('rm', ['-rf', cwd]);
      },
    };
  }

  /** Starts a victim; `settle()` lets it go and says what is wrong with its answer. */
  async invite(name) {
    const id = newMarker();
    const marker = newMarker();
    const process = this.#start(VICTIM, { marker, secret: this.secret, port: this.port, id });
    await until(() => this.holds.has(id), 20_000, `the ${name} is there`);
    this.victims[name] = {
      pids: [process.pid],
      folder: process.cwd,
      channel: process.channel,
      harm: () => harmDone(process.pid, name) ?? process.debugged(),
      printed: process.printed,
      settle: async () => {
        const dead = harmDone(process.pid, name);
        if (!dead) {
          await this.letGo(id);
          await process.exited;
        }
        const { value } = process.outcome();
        await process.end();
        return dead ?? (value?.answer === `of ${marker}` ? undefined : `the ${name} answers ${JSON.stringify(value)}`);
      },
    };
  }

  /** Makes an attempt. What it leaves is there until `tidy()`. */
  async make(attempt, world) {
    const process = this.#start(plainSource(attempt), world, this.victims[attempt.handsOn]?.channel);
    let tooLong = false;
    const limit = setTimeout(() => {
      tooLong = true;
      globalThis.process.kill(process.pid, 'SIGKILL');
    }, attempt.controlMs ?? 20_000);
    await process.exited;
    clearTimeout(limit);
    if (attempt.removal) removeNaively(process.cwd, this.root);
    if (attempt.collects) {
      this.clearCollected();
      collectNaively(this.collected, process.cwd, head(process.channel));
    }
    const outcome = process.outcome();
    if (attempt.naive === 'merge') mergeNaively({}, outcome.value);
    this.overflown = attempt.naive === 'recurse' && overflows(outcome.value) && 'whoever walks it overflows';
    return {
      ...outcome,
      killed: tooLong,
      printed: process.printed(),
      sizes: process.sizes(),
      folder: process.cwd,
      tidy: async () => {
        await until(() => killed(marked(world.marker)) === 0, 30_000, 'the processes of a control end');
        await process.end();
      },
    };
  }
}

/** Around an executor. */
export class Real extends Stage {
  patienceMs = 8000;
  real = true;

  constructor(root, secret, { rung, options, registry }) {
    super(root, secret);
    const { SandboxExecutorFactory: Factory } = surface();
    this.registry = registry;
    this.options = { start: rung, ...options };
    this.factory = new Factory(this.options);
    this.others = new Factory({ ...this.options, tenantKey: 'others' });
    this.special = new Map();
    this.victims = {
      host: { pids: [process.pid], harm: () => (this.inspector?.url() ? 'the host can be debugged' : undefined) },
    };
  }

  async open() {
    this.inspector = await import('node:inspector');
    await super.open();
    const dependencies = { [VICTIM_PACKAGE]: '1.0.0' };
    this.dependencies = dependencies;
    // One call of each kind first, so that everything that is kept warm exists.
    await this.factory.executeFunctionTool('first', {}, tool(`() => require('${VICTIM_PACKAGE}')`, { dependencies }));
    await this.others.executeFunctionTool(
      'first',
      {},
      tool('() => 1', { dependencies: { [PRIVATE_PACKAGE]: '1.0.0' } })
    );
    this.store = new (surface().NativeSandboxExecutor)(this.options).getMetrics().store.root;
    this.look();
  }

  /** Sees who is there now. */
  look() {
    const pids = below(process.pid);
    const named = (part) =>
      pids.filter((pid) => {
        try {
          return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(part);
        } catch {
          return false;
        }
      });
    // What keeps a PID namespace is a copy of the launcher, and goes with its call.
    const isChild = (pid) => statOf(pid)?.parent === process.pid;
    for (const [name, found] of [
      ['launcher', named('launcher').filter(isChild)],
      ['zygote', named('zygote')],
    ]) {
      this.victims[name] = {
        pids: found,
        // A zygote may go by itself; that it went while it was attacked is what counts.
        harm: () => found.map((pid) => harmDone(pid, name)).find(Boolean),
      };
    }
  }

  treeOf(name) {
    const trees = join(this.store, 'trees');
    for (const key of readdirSync(trees)) {
      for (const generation of readdirSync(join(trees, key))) {
        const folder = join(trees, key, generation);
        if (existsSync(join(folder, 'tree', 'node_modules', name))) return folder;
      }
    }
    throw new Error(`no tree of ${name}`);
  }

  places() {
    const { sibling, stranger } = this.victims;
    const ownTree = this.treeOf(VICTIM_PACKAGE);
    return {
      treeTime: this.timeOf(join(ownTree, 'tree', 'node_modules', VICTIM_PACKAGE, 'index.js')),
      store: this.store,
      ownTree,
      strangerTree: this.treeOf(PRIVATE_PACKAGE),
      cache: join(this.home, '.npm', '_cacache'),
      ...(sibling && { siblingFolder: sibling.folder }),
      ...(stranger && { strangerFolder: stranger.folder }),
      ...this.pidsOf(...Object.keys(this.victims)),
    };
  }

  async invite(name) {
    const id = newMarker();
    const marker = newMarker();
    const factory = name === 'stranger' ? this.others : this.factory;
    const dependencies = { sibling: this.dependencies, neighbour: {}, stranger: { [PRIVATE_PACKAGE]: '1.0.0' } }[name];
    let printed = '';
    const call = factory
      .executeFunctionTool(
        name,
        { marker, secret: this.secret, port: this.port, id },
        tool(VICTIM, { dependencies, sandbox: { timeout: 300_000, vcpus: 8 } }),
        {
          onLogs: ({ text }) => {
            printed += text;
          },
        }
      )
      .then(
        (value) => ({ value }),
        (error) => ({ error })
      );
    let early;
    call.then((outcome) => {
      early = outcome;
    });
    const introduction = await until(
      () => {
        if (early) throw early.error ?? new Error('the victim ended early');
        const line = printed.split('\n').find((text) => text.includes('"victim"'));
        return line && this.holds.has(id) && JSON.parse(line);
      },
      30_000,
      `the ${name} is there`
    );
    const outside = marked(marker);
    this.victims[name] = {
      pids: [...new Set([...outside, introduction.pid])],
      folder: introduction.cwd,
      harm: () => outside.map((pid) => harmDone(pid, name)).find(Boolean) ?? debugged(printed),
      printed: () => printed,
      settle: async () => {
        const harm = outside.map((pid) => harmDone(pid, name)).find(Boolean);
        if (!early && this.holds.has(id)) this.holds.get(id).end();
        const { value, error } = await call;
        if (harm) return harm;
        return value?.answer === `of ${marker}`
          ? undefined
          : `the ${name} answers ${JSON.stringify(value) ?? error?.message}`;
      },
    };
  }

  /** How much memory the host has needed at its peak since the attempt began: more than that many MB, or nothing. */
  grown(limitMb) {
    const grownMb = (peakBytes() - this.residentBefore) / 1e6;
    return grownMb > limitMb && `the host has grown by ${Math.round(grownMb)} MB`;
  }

  /** The factory for an attempt with options of its own. */
  factoryFor({ options }) {
    if (!options) return this.factory;
    const key = JSON.stringify(options);
    if (!this.special.has(key)) {
      this.special.set(key, new (surface().SandboxExecutorFactory)({ ...this.options, ...options }));
    }
    return this.special.get(key);
  }

  async make(attempt, world) {
    const { executeCode, dependencies } = toolOf(attempt, this.dependencies);
    if (attempt.script || attempt.module) {
      this.registry.publish(packageName(attempt), '1.0.0', packageFiles(attempt, world));
    }
    const sandbox = { timeout: attempt.timeoutMs ?? 15_000, vcpus: 8 };
    // From now on the peak is counted anew.
    writeFileSync('/proc/self/clear_refs', '5');
    this.residentBefore = peakBytes();
    const sizes = { stdout: 0, stderr: 0 };
    let printed = '';
    if (attempt.collects) this.clearCollected();
    const outcome = await this.factoryFor(attempt)
      .executeFunctionTool(attempt.id, argumentsOf(attempt, world), tool(executeCode, { dependencies, sandbox }), {
        onLogs: ({ stream, text }) => {
          sizes[stream] += text.length;
          if (printed.length < PRINTED_LIMIT_BYTES) printed += text;
        },
        ...(attempt.collects && { collect: { match: '**', into: this.collected } }),
      })
      .then(
        (value) => ({ value }),
        (error) => ({ error })
      );
    return { ...outcome, printed, sizes, tidy: async () => {} };
  }

  /** One more call, which must not notice what the one before it did. Says what it notices. */
  async after(attempt) {
    const probe = `() => {
      const fs = require('fs');
      const odd = [];
      for (const name in {}) odd.push('Object.prototype.' + name);
      for (const name in []) odd.push('Array.prototype.' + name);
      if (JSON.stringify({ a: [1] }) !== '{"a":[1]}') odd.push('JSON.stringify');
      if (Object.keys(globalThis).some((name) => name.startsWith('left'))) odd.push('globalThis');
      if (require('util').left || require('module').left || process.left) odd.push('a built-in module');
      for (const name of Object.keys(process.env)) if (name.startsWith('LEFT_')) odd.push('process.env.' + name);
      const tmp = require('os').tmpdir();
      const inode = (path) => fs.statSync(path, { throwIfNoEntry: false })?.ino;
      // Where the temp folder is that of the root, the call's own folders of a store below are in it. Its path is not named: a worker of the tree's zygote is wanted.
      const own = inode('/' + 'tmp') === inode(tmp) ? tmp + '/' + process.cwd().split('/')[2] : undefined;
      // The link to the tool's packages, which is there for every call of a tool that has some.
      const packages = process.cwd() + '/node_modules';
      const isOurs = ${sharesTree(attempt)} && require.resolve('${VICTIM_PACKAGE}').startsWith(fs.realpathSync(packages) + '/');
      for (const folder of [process.cwd(), tmp]) {
        for (const name of fs.readdirSync(folder)) odd.push(folder + '/' + name);
      }
      if (isOurs && fs.lstatSync(packages).isSymbolicLink()) odd.splice(odd.indexOf(packages), 1);
      if (odd.includes(own)) odd.splice(odd.indexOf(own), 1);
      const dependency = ${sharesTree(attempt) ? `require('${VICTIM_PACKAGE}')` : '{}'};
      if (dependency.left) odd.push('a dependency');
      return odd;
    }`;
    const dependencies = sharesTree(attempt) ? this.dependencies : {};
    try {
      const odd = await this.factory.executeFunctionTool('after', {}, tool(probe, { dependencies }));
      return odd.length > 0 ? `the next call finds ${odd.join(', ')}` : undefined;
    } catch (error) {
      return `the next call fails: ${error.message}`;
    }
  }

  async close() {
    await this.factory.cleanup();
    await this.others.cleanup();
    for (const factory of this.special.values()) await factory.cleanup();
    await super.close();
  }
}

function peakBytes() {
  return 1024 * Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1]);
}

function debugged(printed) {
  return printed.includes('Debugger listening') ? 'it can be debugged' : undefined;
}

/** A secret nobody can guess. */
export function newSecret() {
  return `SECRET-${randomBytes(12).toString('hex')}`;
}
