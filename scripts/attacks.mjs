// Runs the attacks of the shared cases in every setting: Node, user, what is refused to the server, how workers start.
//
//   node scripts/attacks.mjs                        all settings that are not filtered out
//     --node 22,24        these versions of Node only (below target/node-*)
//     --user root,user    as root, or as a user without privileges
//     --refused none,n,nl nothing, namespaces, or namespaces and Landlock
//     --start zygote,standby,spawn
//     --only id[,id]      these cases only
//     --jobs N            cases at the same time
//
// Prints a line per setting at the end; exit 1 if any of them failed.

import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { runCases } from './cases.mjs';
import { argumentsOf, ROOT, StepFailed, seconds } from './steps.mjs';

const NODES = ['22', '24', '26'];
const USERS = ['root', 'user'];
const STARTS = ['zygote', 'standby', 'spawn'];
/** By the letters of the cases' own program for it. */
const REFUSED = { none: [], n: ['namespaces'], nl: ['namespaces', 'landlock'] };

/** Every setting, or those that `wanted` names. */
export function settings(wanted = {}) {
  const chosen = (name, all) => {
    const names = wanted[name]?.split(',') ?? all;
    const unknown = names.filter((one) => !all.includes(one));
    if (unknown.length > 0) throw new StepFailed(`--${name} knows ${all.join(', ')}, not ${unknown.join(', ')}`);
    return names;
  };
  return chosen('node', NODES).flatMap((node) =>
    chosen('user', USERS).flatMap((user) =>
      chosen('refused', Object.keys(REFUSED)).flatMap((refused) =>
        chosen('start', STARTS).map((start) => ({ node, user, refused, start }))
      )
    )
  );
}

/** @returns {string} what became of the attacks in one setting. @throws {StepFailed} */
export function attackIn({ node, user, refused, start }, { withoutNpm = {}, only, jobs = 1 } = {}) {
  if (user === 'root' && process.getuid?.() !== 0) return 'not run: this run is not root';
  const program = join(ROOT, 'target', `node-${node}`, 'node_modules', 'node', 'bin', 'node');
  if (!existsSync(program)) throw new StepFailed(`there is no Node ${node} at ${program}: npm test installs it`);
  const how = {
    withoutNpm,
    asUser: user === 'user' && process.getuid?.() === 0,
    refused: REFUSED[refused],
    start,
    only,
    jobs,
  };
  const results = runCases(program, 'attacks/attacks', how);
  return results === undefined ? 'not run' : `${results.filter(({ ok }) => ok).length} of ${results.length} pass`;
}

/** Runs the attacks in all of `chosen`; says at the end what became of each. @throws {StepFailed} when any failed */
export function attackInAll(chosen, how) {
  const table = [];
  let failed = 0;
  for (const setting of chosen) {
    const began = performance.now();
    const name = `Node ${setting.node}, ${setting.user}, refused: ${setting.refused}, start: ${setting.start}`;
    console.log(`\n--- attacks: ${name}`);
    let became;
    try {
      became = attackIn(setting, how);
    } catch (error) {
      if (!(error instanceof StepFailed)) throw error;
      failed += 1;
      became = `FAILED\n    ${error.message.replaceAll('\n', '\n    ')}`;
    }
    table.push(`${name}: ${became} (${seconds(performance.now() - began)})`);
    console.log(table.at(-1));
  }
  console.log(`\n${table.join('\n')}`);
  if (failed > 0) throw new StepFailed(`the attacks failed in ${failed} of ${chosen.length} settings`);
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const text = { type: 'string' };
  const { values } = argumentsOf(import.meta.url, {
    ...{ node: text, user: text, refused: text, start: text, only: text, jobs: text },
  });
  try {
    attackInAll(settings(values), { only: values.only, jobs: Number(values.jobs ?? 1) });
  } catch (error) {
    if (!(error instanceof StepFailed)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}
