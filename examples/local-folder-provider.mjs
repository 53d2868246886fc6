// A provider in sixty lines: each sandbox is a folder of this machine, each command a child process in it. It isolates
// nothing; it shows what a provider has to do. docs/PROVIDERS.md builds it step by step.

import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { constants, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

export const localFolders = {
  async create({ lifetimeMs }) {
    return new LocalFolder(await mkdtemp(join(tmpdir(), 'local-folder-')), Date.now() + lifetimeMs);
  },
};

class LocalFolder {
  #endsAt;
  #running = new Set();
  #stopped = false;

  constructor(root, endsAt) {
    this.id = root;
    this.#endsAt = endsAt;
  }

  alive() {
    return !this.#stopped && this.remainingLifetimeMs() > 0;
  }

  remainingLifetimeMs() {
    return this.#endsAt - Date.now();
  }

  async writeFiles(files) {
    if (!this.alive()) throw new Error('the sandbox has ended');
    for (const { path, content } of files) {
      await mkdir(dirname(join(this.id, path)), { recursive: true });
      await writeFile(join(this.id, path), content);
    }
  }

  run({ command, args, cwd, env, timeoutMs, onOutput, signal }) {
    if (!this.alive()) return Promise.reject(new Error('the sandbox has ended'));
    const options = { cwd: join(this.id, cwd), env: { PATH: process.env.PATH, HOME: this.id, ...env }, detached: true };
    const child = spawn(command, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    const kill = () => child.pid && process.kill(-child.pid, 'SIGKILL');
    const timer = setTimeout(kill, timeoutMs);
    signal?.addEventListener('abort', kill, { once: true });
    this.#running.add(kill);
    for (const stream of ['stdout', 'stderr']) child[stream].on('data', (chunk) => onOutput(stream, chunk));
    return new Promise((resolve, reject) => {
      child.on('error', reject);
      child.on('close', (code, signalName) => resolve({ exitCode: code ?? 128 + constants.signals[signalName] }));
    }).finally(() => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', kill);
      this.#running.delete(kill);
    });
  }

  async stop() {
    this.#stopped = true;
    for (const kill of this.#running) kill();
    await rm(this.id, { recursive: true, force: true, maxRetries: 3 });
  }
}
