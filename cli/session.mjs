// An executor for as long as a command runs.

import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { cleanUp, maintain, NativeSandboxExecutor } from '../lib/native-executor.js';
import { shutdown } from '../lib/shutdown.js';
import { whenInterrupted } from './interrupt.mjs';

/** Folders of a process in the store, with what is only for a while. */
const PLACES = ['runs', 'staging', 'trash'];
const REMOVAL_LIMIT_MS = 5_000;
const REMOVAL_POLL_MS = 20;

/**
 * Gives `act` an executor, and ends what belongs to it afterwards, whatever came of it; at once, where the command is interrupted.
 * @template T
 * @param {import('../index.js').ExecutorOptions} options
 * @param {(session: Session) => Promise<T>} act
 * @returns {Promise<T>}
 */
export async function withExecutor(options, act) {
  const session = new Session(options);
  const undo = whenInterrupted(() => session.abort());
  try {
    return await act(session);
  } finally {
    undo();
    await session.end();
  }
}

class Session {
  constructor(options) {
    this.executor = new NativeSandboxExecutor(options);
  }

  /** One of the tasks of `src/maintenance.rs`. */
  maintain(task) {
    return maintain(this.executor, task);
  }

  /** Ends everything of this process at once, and waits until what that leaves on disk is removed. */
  async abort() {
    await shutdown({ deadlineMs: 0 });
    const end = performance.now() + REMOVAL_LIMIT_MS;
    while (this.#leavings().length > 0 && performance.now() < end) await delay(REMOVAL_POLL_MS);
  }

  /** What this process has for calls and installations: the core removes it in the background. */
  #leavings() {
    try {
      const hosts = join(this.executor.getMetrics().store.root, 'hosts');
      const own = readdirSync(hosts).filter((name) => name.startsWith(`${process.pid}-`));
      return own.flatMap((name) => PLACES.flatMap((place) => readdirSync(join(hosts, name, place))));
    } catch {
      // There was no call, or it is gone altogether.
      return [];
    }
  }

  /** Waits for what runs, then ends everything of this process. */
  async end() {
    await cleanUp(this.executor, true);
  }
}

/** Options of an executor from values of the command line: those that are given. */
export function executorOptions({ 'store-dir': storeDir, network }, absolute) {
  return { ...(storeDir && { storeDir: absolute(storeDir) }), ...(network && { network }) };
}
