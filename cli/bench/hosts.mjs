// Host processes, one per side, as the rows want them.

import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const HOST = fileURLToPath(new URL('host.mjs', import.meta.url));

/** Beyond this, a host is taken to hang. The longest request makes 10,000 calls. */
const REQUEST_LIMIT_MS = 1_200_000;
const STDERR_TAIL_CHARS = 2000;

/**
 * What a host gets of the environment: both sides the same, and nothing that a package manager or a shell set for
 * others. The original hands it on to its tools.
 */
const PASSED =
  /^(PATH|LANG|LC_.*|TZ|(https?|all|no)_proxy|NODE_EXTRA_CA_CERTS|NODE_USE_SYSTEM_CA|SSL_CERT_(FILE|DIR)|npm_config_(registry|userconfig|cafile|https_proxy|proxy))$/i;

/** Beyond this, a host that is to end at once is killed. */
const END_LIMIT_MS = 5_000;

/** By child process. */
const living = new Map();
process.on('exit', () => {
  for (const child of living.keys()) child.kill('SIGKILL');
});

/** Ends all hosts, with all that they started, whatever they are doing. */
export async function endHosts() {
  await Promise.all([...living.values()].map((host) => host.stop()));
}

export class Host {
  #child;
  #answers = new Map();
  #nextId = 1;
  #stderr = '';
  #closed;
  #onEnd;

  /** `through` makes another command of the one that starts the host. @returns {Promise<Host>} once the side is loaded */
  static async start({ side, file, node, folder, env, through, onEnd }) {
    const host = new Host(side, file, node, folder, env, through);
    host.#onEnd = onEnd;
    Object.assign(host, await host.ask('ready'));
    return host;
  }

  constructor(side, file, node, folder, env, through = (command) => command) {
    this.side = side;
    const variables = environment(node, folder, env);
    const [program, ...args] = through([node, HOST, side, file], variables);
    const child = spawn(program, args, {
      cwd: folder,
      env: variables,
      stdio: ['pipe', 'pipe', 'pipe', 'pipe'],
    });
    this.#child = child;
    living.set(child, this);
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => this.#noise(text));
    child.stdin.on('error', () => {}); // told by the end of the process
    createInterface({ input: child.stdio[3] }).on('line', (line) => this.#answer(JSON.parse(line)));
    this.#closed = new Promise((done) => {
      child.on('error', (error) => done(error.message));
      child.on('close', (code, signal) => done(`code ${code}, signal ${signal}`));
    }).then((how) => this.#end(how));
  }

  get pid() {
    return this.#child.pid;
  }

  /** @returns {Promise<any>} the answer of the host to one request */
  ask(action, request = {}) {
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      const limit = setTimeout(() => this.#child.kill('SIGKILL'), REQUEST_LIMIT_MS);
      this.#answers.set(id, { resolve, reject, limit });
      if (living.has(this.#child)) this.#child.stdin.write(`${JSON.stringify({ id, action, ...request })}\n`);
      else this.#end('it had ended before');
    });
  }

  async end() {
    // One that died has told why already, to whom it failed.
    if (living.has(this.#child)) await this.ask('metrics').then(this.#onEnd, () => {});
    this.#child.stdin.end();
    await this.#closed;
  }

  /** Ends it without asking it anything. */
  async stop() {
    const limit = setTimeout(() => this.#child.kill('SIGKILL'), END_LIMIT_MS);
    this.#child.stdin.end();
    await this.#closed;
    clearTimeout(limit);
  }

  #noise(text) {
    this.#stderr = (this.#stderr + text).slice(-STDERR_TAIL_CHARS);
  }

  #answer({ id, value, error }) {
    const waiting = this.#answers.get(id);
    this.#answers.delete(id);
    clearTimeout(waiting.limit);
    if (error) waiting.reject(new Error(`${this.side}: ${error}`));
    else waiting.resolve(value);
  }

  #end(how) {
    living.delete(this.#child);
    for (const { reject, limit } of this.#answers.values()) {
      clearTimeout(limit);
      reject(new Error(`the host process of ${this.side} ended (${how}). It said last:\n${this.#stderr}`));
    }
    this.#answers.clear();
  }
}

function environment(node, folder, own) {
  const passed = Object.fromEntries(Object.entries(process.env).filter(([name]) => PASSED.test(name)));
  for (const name of ['tmp', 'home']) mkdirSync(join(folder, name), { recursive: true });
  return {
    ...passed,
    // The original takes `node` and `npm` from here.
    PATH: [dirname(node), passed.PATH].join(delimiter),
    TMPDIR: join(folder, 'tmp'),
    HOME: join(folder, 'home'),
    // The original cannot be loaded without the first; with a lower level it logs each call.
    ANTHROPIC_API_KEY: 'none',
    LOG_LEVEL: 'error',
    ...own,
  };
}
