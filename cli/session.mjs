// An executor for as long as a command runs.

import { cleanUp, maintain, NativeSandboxExecutor } from '../lib/native-executor.js';

/**
 * Gives `act` an executor, and ends what belongs to it afterwards, whatever came of it.
 * @template T
 * @param {import('../index.js').ExecutorOptions} options
 * @param {(session: Session) => Promise<T>} act
 * @returns {Promise<T>}
 */
export async function withExecutor(options, act) {
  const session = new Session(options);
  try {
    return await act(session);
  } finally {
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

  /** Waits for what runs, then ends everything of this process. */
  async end() {
    await cleanUp(this.executor, true);
  }
}

/** Options of an executor from values of the command line: those that are given. */
export function executorOptions({ 'store-dir': storeDir, network }, absolute) {
  return { ...(storeDir && { storeDir: absolute(storeDir) }), ...(network && { network }) };
}
