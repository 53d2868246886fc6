// Runs the shared field cases: behaviour as data, in a folder beside this project or where SHARED_CASES says.

import { chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { writeRefusing } from '../__test__/escapes/refusal.mjs';
import { output, ROOT, StepFailed, sh } from './steps.mjs';

/** A user without privileges, and without processes of anybody else. */
const PLAIN_USER = 64_242;

/** Variables that a test run sets for itself and a case must not inherit. */
function environment(withoutNpm, folder, user) {
  return user === undefined ? withoutNpm : { ...withoutNpm, HOME: folder, TMPDIR: folder };
}

/** The exceptions of a set that count in a setting: `{ id: reason }`, or `{ id: { refused?, start?, reason } }` for what is refused or chosen there. */
function exceptionsOf(set, refused, start) {
  const all = JSON.parse(readFileSync(join(ROOT, '__test__', 'shared-exceptions.json'), 'utf8'));
  const counts = ({ refused: refusals, start: starts }) =>
    (refusals === undefined || refusals.includes(refused.join('+'))) &&
    (starts === undefined || starts.includes(start));
  const listed = Object.entries(all[set] ?? {}).map(([id, one]) => [id, [one].flat()]);
  const reasons = listed.map(([id, some]) => [
    id,
    some.find((one) => typeof one === 'string') ?? some.find((one) => typeof one !== 'string' && counts(one))?.reason,
  ]);
  return Object.fromEntries(reasons.filter(([, reason]) => reason !== undefined));
}

/** Which results are wrong: each case must pass, but those listed as exceptions, which must not. */
function complaintsOf(results, exceptions) {
  const ran = new Map(results.map(({ id, ok }) => [id, ok]));
  const listed = Object.keys(exceptions);
  const failed = results.filter(({ id, ok }) => !ok && !listed.includes(id));
  return [
    ...failed.map(({ id, why }) => `${id} failed: ${why}`),
    ...listed.filter((id) => ran.get(id) === true).map((id) => `${id} passes: take it off the list of exceptions`),
    ...(results.length === 0 ? ['no case ran'] : []),
  ];
}

/** Why a set cannot run as another user; `undefined` when it can. */
function objection(node, user) {
  if (user === undefined) return undefined;
  if (process.getuid?.() !== 0) return 'this run has no privileges to change the user with';
  try {
    output('setpriv', [...changeTo(user), node, '--check', join(ROOT, 'index.js')], { env: { HOME: '/' } });
    return undefined;
  } catch (error) {
    return `a user without privileges cannot run ${node} or read this package: ${error.message}`;
  }
}

function changeTo(user) {
  return ['--reuid', `${user}`, '--regid', `${user}`, '--clear-groups'];
}

/** The folder of the cases; `undefined`, said aloud, where there is none. */
function casesFolder() {
  const folder = process.env.SHARED_CASES ? resolve(process.env.SHARED_CASES) : resolve(ROOT, '..', 'shared', 'cases');
  if (existsSync(join(folder, 'run.mjs'))) return folder;
  if (process.env.SHARED_CASES) throw new StepFailed(`SHARED_CASES is set, but ${folder} has no run.mjs`);
  notRun(`there are no shared cases beside this project (${folder}). Set SHARED_CASES to their folder.`);
  return undefined;
}

/**
 * The results of one run.
 * @param {{ user?: number, refused: string[], start?: string }} how `user` runs it without privileges, `refused` names what a filter of
 *   system calls refuses to it, `start` how workers are started
 */
function resultsOf(command, { scratch, user, refused, start, withoutNpm }) {
  const home = join(scratch, 'home');
  mkdirSync(home);
  if (user !== undefined) for (const path of [scratch, home]) chownSync(path, user, user);
  const report = join(scratch, 'report.json');
  const chosen = start === undefined ? {} : { AGENTS_FUNCTION_TOOL_SANDBOX_START: start };
  const env = { ...environment(withoutNpm, home, user), ...chosen };
  let whole = [...command, '--report', report];
  if (refused.length > 0) {
    const program = join(scratch, 'refusing');
    const present = Object.entries({ ...process.env, ...env }).filter(([, value]) => value !== undefined);
    writeRefusing(program, refused, whole, Object.fromEntries(present));
    whole = [program];
  }
  const [program, ...args] = user === undefined ? whole : ['setpriv', ...changeTo(user), ...whole];
  try {
    sh(program, args, { env });
  } catch (error) {
    // Failing cases end it with 1 too; without a report it broke.
    if (!existsSync(report)) throw error;
  }
  return JSON.parse(readFileSync(report, 'utf8'));
}

/**
 * Runs one set of cases on a Node.
 * @param {string} node its path
 * @param {'shared' | 'field-2' | 'attacks/attacks'} set
 * @param {{ withoutNpm: Record<string, string | undefined>, asUser?: boolean, refused?: string[], start?: string, jobs?: number,
 *   only?: string }} options
 * @returns {Array<{ id: string, ok: boolean }> | undefined} the results, but where the set could not run
 * @throws {StepFailed} naming what failed
 */
export function runCases(node, set, { withoutNpm, asUser = false, refused = [], start, jobs = 1, only }) {
  const folder = casesFolder();
  if (folder === undefined) return undefined;
  const user = asUser ? PLAIN_USER : undefined;
  const why = objection(node, user);
  if (why) {
    notRun(`the cases of ${set} as a user: ${why}`);
    return undefined;
  }
  const command = [
    node,
    join(folder, 'run.mjs'),
    join(ROOT, 'index.js'),
    join(folder, `${set}.mjs`),
    '--jobs',
    `${jobs}`,
    ...(only === undefined ? [] : ['--only', only]),
  ];
  const scratch = mkdtempSync(join(tmpdir(), 'nse-cases-'));
  try {
    const exceptions = exceptionsOf(set, refused, start);
    const results = resultsOf(command, { scratch, user, refused, start, withoutNpm });
    const complaints = complaintsOf(results, exceptions);
    for (const [id, reason] of Object.entries(exceptions)) console.log(`known exception: ${id}: ${reason}`);
    if (complaints.length > 0) throw new StepFailed(complaints.join('\n'));
    return results;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function notRun(why) {
  console.log(`\n*** NOT RUN: ${why} ***\n`);
}
