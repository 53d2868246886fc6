// A look at the machine: what it is, which processes are below a host, what they take. Linux.

import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism, cpus, loadavg, release, totalmem, version } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';

const POLL_MS = 25;
/** Processor time is counted in ticks of 10 ms: a process that shows none for this long does nothing worth naming. */
const QUIET_MS = 250;
const QUIET_LIMIT_MS = 120_000;

export function facts() {
  return {
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: `${release()} (${version()})`,
    loadAverageAtStart: loadAverage(),
  };
}

/** Of the last 1, 5 and 15 minutes. */
export function loadAverage() {
  return loadavg().map((value) => Number(value.toFixed(2)));
}

/** Fields of /proc/<pid>/stat from the third on, or nothing when the process is gone. */
function stat(pid) {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return text.slice(text.lastIndexOf(')') + 2).split(' ');
  } catch {
    return undefined;
  }
}

/** Living processes below one, by pid, with the processor time they took, in ticks. */
function below(root) {
  const children = new Map();
  const ticks = new Map();
  for (const name of readdirSync('/proc')) {
    const fields = /^\d+$/.test(name) ? stat(name) : undefined;
    if (!fields || fields[0] === 'Z' || fields[0] === 'X') continue;
    const parent = Number(fields[1]);
    children.set(parent, [...(children.get(parent) ?? []), Number(name)]);
    ticks.set(Number(name), Number(fields[11]) + Number(fields[12]));
  }
  const found = [...(children.get(root) ?? [])];
  for (const pid of found) found.push(...(children.get(pid) ?? []));
  return new Map(found.map((pid) => [pid, ticks.get(pid)]));
}

/** Proportional share of the memory of all processes below a host, in bytes, and how many they are. */
export function memoryBelow(root) {
  let bytes = 0;
  let processes = 0;
  for (const pid of below(root).keys()) {
    const pss = pssBytes(pid);
    if (pss === undefined) continue;
    bytes += pss;
    processes += 1;
  }
  return { bytes, processes };
}

/** Nothing when the process is gone. What may not be read is an error: a sum without it would be too good. */
function pssBytes(pid) {
  let text;
  try {
    text = readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1');
  } catch (error) {
    if (error.code === 'ENOENT' || error.code === 'ESRCH') return undefined;
    throw new Error(`the memory of process ${pid} may not be read (${error.code}): run the bench as root`);
  }
  const kib = /^Pss:\s+(\d+) kB$/m.exec(text);
  return kib ? Number(kib[1]) * 1024 : undefined;
}

/**
 * Waits until neither the host nor anything below it does anything, and at least `processes` are below it: what it
 * prepares after an answer must not be counted among the next one's cost.
 *
 * @param {number} root
 * @param {{ processes?: number, over?: () => boolean }} what `over` tells that there is no point in waiting any more
 * @returns {Promise<boolean>} whether it came to that, and was not over before
 */
export async function quiet(root, { processes = 0, over = () => false } = {}) {
  const began = performance.now();
  let before = '';
  let since = began;
  while (!over()) {
    const now = performance.now();
    const found = below(root);
    const state = JSON.stringify([stat(root)?.slice(11, 13), ...found]);
    if (state !== before || found.size < processes) since = now;
    else if (now - since >= QUIET_MS) return true;
    if (now - began > QUIET_LIMIT_MS) {
      throw new Error(`not quiet after ${QUIET_LIMIT_MS} ms: ${found.size} processes below the host, ${processes} due`);
    }
    before = state;
    await delay(POLL_MS);
  }
  return false;
}

/**
 * Whether a 64-bit little-endian ELF file has a section of this name. Its text alone does not tell: whoever reads
 * backtraces has the names of sections among its strings.
 */
export function hasSection(file, name) {
  if (file.readUInt32BE(0) !== 0x7f454c46) throw new Error('not an ELF file');
  const [table, size, names] = [Number(file.readBigUInt64LE(0x28)), file.readUInt16LE(0x3a), file.readUInt16LE(0x3e)];
  const strings = table + names * size;
  const start = Number(file.readBigUInt64LE(strings + 0x18));
  const end = start + Number(file.readBigUInt64LE(strings + 0x20));
  return file.subarray(start, end).toString('latin1').split('\0').includes(name);
}
