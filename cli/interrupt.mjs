// Signals that end a command: what it has under way is ended first, then the process with the exit code that shells give such an end.

import { constants } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';

const SIGNALS = ['SIGINT', 'SIGTERM'];
/** What is not ended by then is left to the end of the process. */
const LIMIT_MS = 10_000;
/** This and the signal's number. */
const EXIT_CODE_BASE = 128;

/** What is to be ended. */
const acts = new Set();
const controller = new AbortController();

/** Fires when the command is interrupted. */
export const interrupted = controller.signal;

/**
 * Has something ended when the command is interrupted.
 * @param {() => unknown} act what it gives is waited for
 * @returns {() => void} takes it back
 */
export function whenInterrupted(act) {
  acts.add(act);
  return () => acts.delete(act);
}

/** Listens from now on. @param {(signal: string) => void} say */
export function interruptible(say) {
  const onSignal = (signal) => {
    // A second one ends the process at once.
    for (const one of SIGNALS) process.off(one, onSignal);
    say(signal);
    controller.abort();
    end(signal);
  };
  for (const signal of SIGNALS) process.on(signal, onSignal);
}

async function end(signal) {
  await Promise.race([Promise.allSettled([...acts].map(async (act) => act())), delay(LIMIT_MS)]);
  process.exit(EXIT_CODE_BASE + constants.signals[signal]);
}
