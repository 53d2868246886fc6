'use strict';

// What an operator must see of isolation even where no logger is set: one line on stderr for calls that are rejected for want of
// it, and for a machine that offers none. Under `register` the tier is said in any case: in the log, or where `NODE_DEBUG` asks.

const { debuglog } = require('node:util');
const { orUndefined, parse } = require('./intrinsics.js');
const { CORE_NAME, hasLogger, log, quietly } = require('./logger.js');

const REJECTED = 'ISOLATION_UNAVAILABLE';

const debug = debuglog(CORE_NAME);

/** Whether the tier is said even where it is a good one. */
let saysTier = false;
/** Whether a call has had an answer by which the tier is known. */
let isKnown = false;
/** Whether a rejection was told. */
let isRejectionTold = false;

/** From here on the tier is said with the first call that is answered. */
function sayTier() {
  saysTier = true;
}

/**
 * Notes what came of a call. Costs nothing once the tier is known.
 * @param {{ metrics(): string }} core
 * @param {{ ok: boolean, code?: string, message?: string }} outcome
 */
function noteOutcome(core, outcome) {
  if (!outcome.ok && outcome.code === REJECTED) {
    if (!isRejectionTold) reject(outcome.message);
  } else if (!isKnown) {
    orUndefined(() => noteTier(parse(core.metrics())));
  }
}

function reject(message) {
  isRejectionTold = true;
  log(CORE_NAME, 'error', { code: REJECTED, error: message }, 'Calls are rejected: isolation is not available');
  if (!hasLogger()) line(`${REJECTED}: ${message}`);
}

function noteTier({ isolation, withoutLauncher }) {
  // A call that failed before that was looked at.
  if (!isolation) return;
  isKnown = true;
  const { tier, layers } = isolation;
  if (saysTier) {
    log(CORE_NAME, 'info', { tier }, 'Isolation is in force');
    debug('isolation: functions run with the tier %s', tier);
  }
  // Without a launcher somebody has accepted it by name. Elsewhere than on Linux there is nothing else.
  if (tier !== 'base' || withoutLauncher || process.platform !== 'linux' || hasLogger()) return;
  let missing = '';
  for (let i = 0; i < layers.length; i++) {
    const { inForce, name, why } = layers[i];
    if (!inForce && layers[i].tier === 'confined') missing += `${missing && '; '}${name} (${why})`;
  }
  line(
    `isolation: functions run with the tier base, this machine offers no more. Missing: ${missing}. See isolationReport()`
  );
}

function line(text) {
  quietly(() => process.stderr.write(`${CORE_NAME}: ${text}\n`));
}

exports.noteOutcome = noteOutcome;
exports.sayTier = sayTier;
