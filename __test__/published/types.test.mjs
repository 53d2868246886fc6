// The types that the published run API has are those of this package.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { tool } from '../../scripts/steps.mjs';
import { ownWorld, ROOT } from '../helpers.mjs';
import { originalInstalled } from './installed.mjs';

// Before the home folder is another.
const { modules } = await originalInstalled();
const folder = join(ownWorld().root, 'types');

const SOURCE = `import type * as theirs from '@inkeep/agents-run-api';
import type * as ours from 'native-sandbox-executor';

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<_Answer extends true>(): void {}
/** All fields in one type, however many types they were put together of. */
type Flat<T> = T extends unknown ? { [Key in keyof T]: T[Key] } : never;

same<Same<Flat<theirs.NativeSandboxConfig>, Flat<ours.NativeSandboxConfig>>>();
same<Same<Flat<theirs.VercelSandboxConfig>, Flat<ours.VercelSandboxConfig>>>();
same<Same<Flat<theirs.SandboxConfig>, Flat<ours.SandboxConfig>>>();

/** What a server hands to the run API it can hand to this package. */
type Given = NonNullable<NonNullable<Parameters<typeof theirs.createExecutionApp>[0]>['sandboxConfig']>;
same<Same<Flat<Given>, Flat<ours.SandboxConfig>>>();

// @ts-expect-error: the check above can fail
same<Same<Flat<theirs.NativeSandboxConfig>, Flat<ours.VercelSandboxConfig>>>();
`;

test("SandboxConfig and its two kinds are the original's", { timeout: 120_000 }, () => {
  mkdirSync(join(folder, 'node_modules'), { recursive: true });
  symlinkSync(join(modules, '@inkeep'), join(folder, 'node_modules', '@inkeep'), 'junction');
  symlinkSync(ROOT, join(folder, 'node_modules', 'native-sandbox-executor'), 'junction');
  writeFileSync(join(folder, 'use.mts'), SOURCE);
  // What the original's own types import is not of this package's making: they are not checked.
  const flags = [
    '--noEmit',
    '--strict',
    '--skipLibCheck',
    '--target',
    'es2022',
    '--module',
    'nodenext',
    '--types',
    'node',
  ];
  const roots = ['--typeRoots', join(ROOT, 'node_modules', '@types')];
  const { status, stdout } = spawnSync(process.execPath, [tool('typescript', 'tsc'), ...flags, ...roots, 'use.mts'], {
    cwd: folder,
    encoding: 'utf8',
  });
  assert.equal(status, 0, stdout);
});
