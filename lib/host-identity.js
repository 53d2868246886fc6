'use strict';

// Who made a sandbox: a text for its tag, and whether the process behind such a text is dead.

const { createHash } = require('node:crypto');
const { readFileSync, readlinkSync } = require('node:fs');
const { hostname } = require('node:os');

/** Digits of the machine's part. */
const MACHINE_DIGITS = 16;

/** `machine`: this boot of this machine, as far as process ids mean the same on it. `owner`: this process on it. */
function hostIdentity() {
  const boot = text(() => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim());
  const pids = text(() => readlinkSync('/proc/self/ns/pid'));
  const digest = createHash('sha256')
    .update(JSON.stringify([hostname(), boot, pids]))
    .digest('hex');
  const machine = digest.slice(0, MACHINE_DIGITS);
  return { machine, owner: `${machine}-${process.pid}-${birth(process.pid)}` };
}

/** Whether `owner` names a process of this machine that is gone. Of others nothing is known: they are not dead. */
function isDead(owner) {
  const [, machine, pid, born] = /^([0-9a-f]+)-(\d+)-(\d+)$/.exec(owner) ?? [];
  if (machine !== hostIdentity().machine) return false;
  if (!exists(Number(pid))) return true;
  const now = birth(Number(pid));
  return born !== '0' && now !== '0' && now !== born;
}

function exists(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code !== 'ESRCH';
  }
}

/** When a process started, in clock ticks since the boot; `0` where that cannot be known. A process id is used again. */
function birth(pid) {
  const stat = text(() => readFileSync(`/proc/${pid}/stat`, 'latin1'));
  // The name, in parentheses, may have anything in it.
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '0';
}

function text(act) {
  try {
    return act();
  } catch {
    return '';
  }
}

exports.hostIdentity = hostIdentity;
exports.isDead = isDead;
