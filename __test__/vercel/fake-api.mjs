// A fake of the HTTP API that `@vercel/sandbox` speaks, for tests: it really executes commands, in folders of this machine.
// Written from what the SDKs 0.0.24, 1.10, 2.9 and 3.5 send and accept; it was never compared with the real service. What
// the service does where the SDKs do not show it (an unknown runtime, a stopped sandbox) is assumed, and said so below.
//
// Faults are set per route (`fault`), every request is written down (`requests`).

import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { mkdir, mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { constants, tmpdir } from 'node:os';
import { delimiter, dirname, join, posix } from 'node:path';
import { StringDecoder } from 'node:string_decoder';
import { setTimeout as delay } from 'node:timers/promises';

/** Where the API says that commands run; below a folder of the sandbox's own. */
const CWD = '/vercel/sandbox';
const RUNTIMES = ['node22', 'node24', 'node26', 'python3.13'];
const DEFAULT_TIMEOUT_MS = 300_000;
const NDJSON = 'application/x-ndjson';
const REQUEST_LIMIT_BYTES = 64 * 1024 * 1024;

/** Method, path and name of each route; the name is what faults and counts go by. */
const ROUTES = [
  ['POST', /^\/v1\/sandboxes$/, 'create', 1],
  ['GET', /^\/v1\/sandboxes$/, 'list', 1],
  ['GET', /^\/v1\/sandboxes\/([^/]+)$/, 'get', 1],
  ['POST', /^\/v1\/sandboxes\/([^/]+)\/([^/]+)\/kill$/, 'kill', 1],
  ...machineRoutes('v1/sandboxes', 1),
  ['POST', /^\/v[23]\/sandboxes$/, 'create', 2],
  ['GET', /^\/v2\/sandboxes$/, 'list', 2],
  ['GET', /^\/v2\/sandboxes\/sessions\/([^/]+)$/, 'get-session', 2],
  ['POST', /^\/v2\/sandboxes\/sessions\/([^/]+)\/cmd\/([^/]+)\/kill$/, 'kill', 2],
  ['POST', /^\/v2\/sandboxes\/sessions\/([^/]+)\/network-policy$/, 'network-policy', 2],
  ...machineRoutes('v2/sandboxes/sessions', 2),
  ['GET', /^\/v2\/sandboxes\/([^/]+)$/, 'get', 2],
  ['PATCH', /^\/v2\/sandboxes\/([^/]+)$/, 'update', 2],
  ['DELETE', /^\/v2\/sandboxes\/([^/]+)$/, 'delete', 2],
];

function machineRoutes(base, version) {
  const route = (method, rest, name) => [method, new RegExp(`^/${base}/([^/]+)/${rest}$`), name, version];
  return [
    route('POST', 'cmd', 'cmd'),
    route('GET', 'cmd/([^/]+)', 'wait'),
    route('GET', 'cmd/([^/]+)/logs', 'logs'),
    route('POST', 'fs/write', 'write'),
    route('POST', 'fs/read', 'read'),
    route('POST', 'fs/mkdir', 'mkdir'),
    route('POST', 'stop', 'stop'),
    route('POST', 'extend-timeout', 'extend'),
  ];
}

class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** One machine: what v1 calls a sandbox and v2 a session. */
class Machine extends EventEmitter {
  commands = new Map();
  status = 'running';

  constructor(id, root, { timeout = DEFAULT_TIMEOUT_MS, resources, runtime = 'node22' }, env) {
    super();
    this.setMaxListeners(0);
    Object.assign(this, { id, root, timeout, runtime, env, vcpus: resources?.vcpus ?? 2, createdAt: Date.now() });
    this.armExpiry();
  }

  armExpiry() {
    clearTimeout(this.expiry);
    this.expiry = setTimeout(() => this.stop(), this.createdAt + this.timeout - Date.now());
  }

  /** Of this machine's folder, what a path inside is. */
  inside(path) {
    return join(this.root, posix.resolve(CWD, path ?? ''));
  }

  json() {
    const { id, status, timeout, runtime, vcpus, skewMs } = this;
    const createdAt = this.createdAt + skewMs;
    const times = { requestedAt: createdAt, startedAt: createdAt, createdAt, updatedAt: createdAt };
    return { id, status, timeout, runtime, vcpus, memory: vcpus * 2048, region: 'iad1', cwd: CWD, ...times };
  }

  start(body, ownerKey) {
    const command = new Command(this, body, ownerKey);
    this.commands.set(command.id, command);
    return command;
  }

  async stop() {
    if (this.status === 'stopped') return;
    this.status = 'stopped';
    clearTimeout(this.expiry);
    for (const command of this.commands.values()) command.kill('SIGKILL');
    await Promise.all([...this.commands.values()].map(({ over }) => over));
    this.emit('stopped');
    await rm(this.root, { recursive: true, force: true, maxRetries: 5 });
  }
}

class Command extends EventEmitter {
  id = `cmd_${randomBytes(8).toString('hex')}`;
  startedAt = Date.now();
  exitCode = null;
  log = [];

  constructor(machine, { command, args = [], cwd, env = {}, timeout }, ownerKey) {
    super();
    this.setMaxListeners(0);
    Object.assign(this, { machine, name: command, args, cwd: cwd ?? CWD, ownerKey });
    const path = [dirname(process.execPath), process.env.PATH].join(delimiter);
    this.child = spawn(command, args, {
      cwd: machine.inside(cwd),
      env: { PATH: path, HOME: machine.inside('.home'), ...machine.env, ...env },
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of ['stdout', 'stderr']) {
      const decoder = new StringDecoder();
      this.child[stream].on('data', (bytes) => this.print(stream, decoder.write(bytes)));
    }
    const timer = timeout && setTimeout(() => this.kill('SIGKILL'), timeout);
    this.over = new Promise((done) => {
      this.child.on('error', (error) => {
        this.print('stderr', `${error.message}\n`);
        done(127);
      });
      this.child.on('close', (code, signal) => done(code ?? 128 + constants.signals[signal]));
    }).then((exitCode) => {
      clearTimeout(timer);
      this.exitCode = exitCode;
      this.emit('over');
    });
  }

  print(stream, data) {
    if (data === '') return;
    this.log.push({ stream, data });
    this.emit('line');
  }

  kill(signal) {
    try {
      if (this.child.pid && this.exitCode === null) process.kill(-this.child.pid, signal);
    } catch {
      // It has ended meanwhile.
    }
  }

  json() {
    const { id, name, args, cwd, startedAt, exitCode, machine, ownerKey } = this;
    return { id, name, args, cwd, startedAt, exitCode, [ownerKey]: machine.id };
  }

  /** The lines so far, and those to come. */
  async *lines() {
    for (let at = 0; ; ) {
      while (at < this.log.length) yield this.log[at++];
      if (this.exitCode !== null) return;
      await Promise.race([once(this, 'line'), this.over]);
    }
  }
}

/**
 * @param {{ accounts?: Array<{ token: string, teamId: string, projectId: string }>, env?: Record<string, string> }} options
 *   `env`: what commands see besides
 */
export async function fakeApi({ accounts = [ACCOUNT], env = {} } = {}) {
  const api = new FakeApi(accounts, env);
  await api.listen();
  return api;
}

export const ACCOUNT = { token: 'token-one', teamId: 'team_one', projectId: 'prj_one' };

class FakeApi {
  /** What was asked, in order: method, path, route, machine, body of creations and commands. */
  requests = [];
  /** Named sandboxes of v2: their current machine, tags and so on. */
  named = new Map();
  machines = new Map();
  /** How far the service's clock is ahead of this machine's. */
  skewMs = 0;
  #faults = new Map();
  #sockets = new Set();

  constructor(accounts, env) {
    this.accounts = accounts;
    this.env = env;
    this.server = createServer((request, response) => this.#serve(request, response));
    this.server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
  }

  async listen() {
    this.server.listen(0, '127.0.0.1');
    await once(this.server, 'listening');
    this.origin = `http://127.0.0.1:${this.server.address().port}`;
  }

  /**
   * Lets the next `times` requests of a route go wrong.
   * @param {object} fault `status` (with `headers`, `code`) answers that; `delayMs` waits before the first byte; `cut: 'before'` ends
   *   the connection without acting, `'after'` acted but not answered, `'early'` as soon as the command
   *   runs, `'during'` in the middle of the answer; `end: n` ends a stream as if
   *   it were whole after n lines of output; `twice: true` sends each line of output twice; `stall: true` acts and never answers,
   *   `'during'` begins to answer; `type` is a wrong content type; `without` a field left out; `stop` stops the machine once the
   *   command has printed that text
   */
  fault(route, fault, times = 1) {
    this.#faults.set(route, { ...fault, times });
  }

  clearFaults() {
    this.#faults.clear();
  }

  /** How often each route was asked since `from`. */
  counts(from = 0) {
    const counts = {};
    for (const { route } of this.requests.slice(from)) counts[route] = (counts[route] ?? 0) + 1;
    return counts;
  }

  running() {
    return [...this.machines.values()].filter(({ status }) => status === 'running');
  }

  async close() {
    await Promise.all([...this.machines.values()].map((machine) => machine.stop()));
    for (const socket of this.#sockets) socket.destroy();
    this.server.close();
    await once(this.server, 'close');
  }

  async #serve(request, response) {
    response.on('error', () => {});
    try {
      await this.#answer(request, response);
    } catch (error) {
      if (response.headersSent) return response.destroy();
      const { status = 500, code = 'internal_error', message } = error;
      send(response, status, { error: { code, message } });
    }
  }

  async #answer(request, response) {
    const url = new URL(request.url, this.origin);
    const path = url.pathname.replace(/^\/api/, '');
    const [, pattern, route, version] =
      ROUTES.find(([method, regex]) => method === request.method && regex.test(path)) ?? [];
    const [, id, commandId] = pattern?.exec(path) ?? [];
    const entry = { method: request.method, path, route: route ?? 'unknown', id, query: url.search };
    this.requests.push(entry);
    const body = await bodyOf(request);
    const isJson = body.length > 0 && request.headers['content-type'] === 'application/json';
    entry.body = isJson ? JSON.parse(body) : undefined;
    if (!route) throw new Refused(404, 'not_found', `no route ${request.method} ${path}`);
    const account = this.#authorized(request, url);

    const fault = this.#takeFault(route);
    if (fault.delayMs) await delay(fault.delayMs, undefined, { ref: false });
    if (fault.cut === 'before') return request.socket.destroy();
    if (fault.status) {
      const error = { code: fault.code ?? 'made_up', message: `as the test wants: ${fault.status}` };
      return send(response, fault.status, { error }, fault.headers);
    }
    const context = { id, commandId, version, url, body: entry.body, bytes: body, account, request, response, fault };
    respond(context, await this.#act(route, context));
  }

  #authorized(request, url) {
    const token = request.headers.authorization?.replace(/^Bearer /, '');
    const account = this.accounts.find((one) => one.token === token && one.teamId === url.searchParams.get('teamId'));
    if (!account) throw new Refused(403, 'forbidden', 'Not authorized');
    return account;
  }

  #takeFault(route) {
    const fault = this.#faults.get(route);
    if (!fault) return {};
    if (--fault.times <= 0) this.#faults.delete(route);
    return fault;
  }

  #act(route, context) {
    const acts = {
      create: () => this.#create(context),
      list: () => this.#list(context),
      get: () => (context.version === 1 ? this.#machineJson(context) : this.#getNamed(context)),
      'get-session': () => this.#machineJson(context),
      update: () => this.#update(context),
      delete: () => this.#delete(context),
      'network-policy': () => ({ session: this.#machine(context).json() }),
      cmd: () => this.#command(context),
      wait: () => this.#wait(context),
      logs: () => this.#logs(context),
      kill: () => this.#kill(context),
      write: () => this.#write(context),
      read: () => this.#read(context),
      mkdir: () => this.#mkdir(context),
      stop: () => this.#stop(context),
      extend: () => this.#extend(context),
    };
    return acts[route]();
  }

  async #create({ version, body, account }) {
    if (body.projectId !== account.projectId) throw new Refused(403, 'forbidden', 'Not authorized for the project');
    // An assumption: the SDKs do not show what the service says.
    if (body.runtime !== undefined && !RUNTIMES.includes(body.runtime)) {
      throw new Refused(400, 'bad_request', `Invalid runtime: ${body.runtime}`);
    }
    const name = body.name ?? `sandbox-${randomBytes(8).toString('hex')}`;
    // An assumption, too.
    if (version === 2 && this.named.has(name)) throw new Refused(409, 'conflict', `There is a sandbox ${name} already`);
    const machine = await this.#boot(body, version);
    if (version === 1) return { sandbox: machine.json(), routes: [] };
    const { persistent = true, tags = {} } = body;
    const sandbox = { name, persistent, tags, options: body, machine, createdAt: Date.now() };
    this.named.set(name, sandbox);
    return { sandbox: namedJson(sandbox), session: machine.json(), routes: [] };
  }

  async #boot(options, version) {
    const root = await mkdtemp(join(tmpdir(), 'fake-vercel-'));
    await mkdir(join(root, CWD), { recursive: true });
    const id = `${version === 1 ? 'sbx' : 'sess'}_${randomBytes(8).toString('hex')}`;
    const machine = new Machine(id, root, options, this.env);
    machine.skewMs = this.skewMs;
    this.machines.set(id, machine);
    return machine;
  }

  #list({ version, url }) {
    const wanted = url.searchParams.getAll('tags').map((tag) => tag.split(':'));
    const named = [...this.named.values()].filter(({ tags }) => wanted.every(([key, value]) => tags[key] === value));
    const pagination = { count: named.length, next: null, prev: null };
    if (version === 2) return { sandboxes: named.map(namedJson), pagination };
    return { sandboxes: [...this.machines.values()].map((machine) => machine.json()), pagination };
  }

  async #getNamed({ id, url }) {
    const sandbox = this.#named(id);
    const resumed = url.searchParams.get('resume') !== 'false' && sandbox.machine.status === 'stopped';
    // What was not persistent starts empty.
    if (resumed) sandbox.machine = await this.#boot(sandbox.options, 2);
    return { sandbox: namedJson(sandbox), session: sandbox.machine.json(), routes: [], resumed };
  }

  #update({ id, body }) {
    const sandbox = this.#named(id);
    if (body.tags) sandbox.tags = body.tags;
    return { sandbox: namedJson(sandbox), routes: [] };
  }

  async #delete({ id }) {
    const sandbox = this.#named(id);
    await sandbox.machine.stop();
    this.named.delete(id);
    return { sandbox: namedJson(sandbox) };
  }

  #named(name) {
    const sandbox = this.named.get(decodeURIComponent(name));
    if (!sandbox) throw new Refused(404, 'not_found', `There is no sandbox ${name}`);
    return sandbox;
  }

  #machine({ id }) {
    const machine = this.machines.get(id);
    if (!machine) throw new Refused(404, 'not_found', `There is no sandbox ${id}`);
    return machine;
  }

  /** A machine that works; a stopped one is gone, and v2 says by its code that it could be resumed. */
  #runningMachine(context) {
    const machine = this.#machine(context);
    if (machine.status !== 'running') throw new Refused(410, 'sandbox_stopped', 'The sandbox has stopped');
    return machine;
  }

  #machineJson(context) {
    const key = context.version === 1 ? 'sandbox' : 'session';
    return { [key]: this.#machine(context).json(), routes: [] };
  }

  async #command(context) {
    const { body, version, fault } = context;
    const machine = this.#runningMachine(context);
    const command = machine.start(body, version === 1 ? 'sandboxId' : 'sessionId');
    if (fault.cut === 'early') return void context.request.socket.destroy();
    if (fault.stop) {
      for await (const { data } of command.lines()) if (data.includes(fault.stop)) break;
      await machine.stop();
    }
    return body.wait ? this.#streamed(command, context) : { command: command.json() };
  }

  /** The one answer of a command that is waited for. */
  async #streamed(command, { body, request, response, fault }) {
    if (fault.stall === true) return {};
    if (fault.cut === 'after') {
      await command.over;
      return {};
    }
    response.writeHead(200, { 'content-type': fault.type ?? NDJSON });
    writeLine(response, { command: command.json() });
    if (fault.cut === 'during') {
      await command.over;
      return void request.socket.destroy();
    }
    if (fault.stall) return;
    if (body.logs && !(await writeLines(response, command, fault))) return;
    await command.over;
    if (fault.end !== undefined) return void response.end();
    writeLine(response, { command: command.json() });
    response.end();
  }

  async #wait(context) {
    const command = this.#commandOf(context);
    if (context.url.searchParams.get('wait') === 'true') await command.over;
    return { command: command.json() };
  }

  async #logs(context) {
    const { response, fault, request } = context;
    const command = this.#commandOf(context);
    if (fault.stall === true || fault.cut === 'after') return {};
    response.writeHead(200, { 'content-type': fault.type ?? NDJSON });
    response.flushHeaders();
    if (fault.stall) return;
    if (fault.cut === 'during') {
      for await (const _ of command.lines()) break;
      return void request.socket.destroy();
    }
    if (await writeLines(response, command, fault)) response.end();
  }

  #kill(context) {
    const command = this.#commandOf(context);
    command.kill(context.body.signal);
    return { command: command.json() };
  }

  #commandOf(context) {
    const command = this.#machine(context).commands.get(context.commandId);
    if (!command) throw new Refused(404, 'not_found', `There is no command ${context.commandId}`);
    return command;
  }

  async #write(context) {
    const machine = this.#runningMachine(context);
    const tar = spawn('tar', ['-xz', '-C', join(machine.root, context.request.headers['x-cwd'] ?? '/')], {
      stdio: ['pipe', 'ignore', 'pipe'],
    });
    tar.stdin.end(context.bytes);
    const [code] = await once(tar, 'close');
    if (code !== 0) throw new Refused(400, 'bad_request', 'The archive cannot be read');
    return {};
  }

  async #read(context) {
    const file = this.#runningMachine(context).inside(posix.resolve(context.body.cwd ?? CWD, context.body.path));
    if (!(await stat(file).catch(() => undefined))) throw new Refused(404, 'not_found', 'There is no such file');
    context.response.writeHead(200, { 'content-type': 'application/octet-stream' });
    context.response.end(await readFile(file));
  }

  async #mkdir(context) {
    const folder = this.#runningMachine(context).inside(posix.resolve(context.body.cwd ?? CWD, context.body.path));
    await mkdir(folder).catch(({ code }) => {
      throw new Refused(400, 'bad_request', `Cannot create the directory: ${code}`);
    });
    return {};
  }

  async #stop(context) {
    const machine = this.#machine(context);
    await machine.stop();
    return context.version === 1 ? { sandbox: machine.json() } : { session: machine.json() };
  }

  #extend(context) {
    const machine = this.#runningMachine(context);
    machine.timeout += context.body.duration;
    machine.armExpiry();
    return { [context.version === 1 ? 'sandbox' : 'session']: machine.json() };
  }
}

/** The answer of an act, unless it has answered by itself or the fault will not have it. */
function respond({ request, response, fault }, answer) {
  if (fault.cut === 'after' || fault.cut === 'early') return request.socket.destroy();
  if (fault.stall || answer === undefined) return;
  if (fault.without) delete (answer.sandbox ?? answer.session ?? answer.command)?.[fault.without];
  send(response, 200, answer, fault.type && { 'content-type': fault.type });
}

function namedJson({ name, persistent, tags, machine, createdAt }) {
  const { id: currentSessionId, status } = machine;
  return { name, persistent, tags, createdAt, updatedAt: createdAt, currentSessionId, status };
}

async function bodyOf(request) {
  const chunks = [];
  let bytes = 0;
  for await (const chunk of request) {
    bytes += chunk.length;
    if (bytes > REQUEST_LIMIT_BYTES) throw new Refused(413, 'too_large', 'The request is too large');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Sends what a command prints; gives whether the answer goes on. */
async function writeLines(response, command, { end, twice }) {
  let sent = 0;
  for await (const line of command.lines()) {
    if (sent++ === end) {
      response.end();
      return false;
    }
    writeLine(response, line);
    if (twice) writeLine(response, line);
  }
  return true;
}

function writeLine(response, value) {
  response.write(`${JSON.stringify(value)}\n`);
}

function send(response, status, json, headers) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(json));
}
