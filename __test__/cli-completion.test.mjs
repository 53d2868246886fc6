// `completion`: what shells offer for a command line.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { cli } from './cli.mjs';
import { ownWorld } from './helpers.mjs';

const world = ownWorld();
const SHELLS = ['bash', 'zsh', 'fish'];
const scripts = {};
const has = (shell) => spawnSync(shell, ['-c', 'exit 0']).status === 0;

before(async () => {
  for (const shell of SHELLS) {
    const { code, out, err } = await cli(['completion', shell]);
    assert.deepEqual([code, err], [0, '']);
    scripts[shell] = join(world.root, `completion.${shell}`);
    writeFileSync(scripts[shell], out);
  }
});

for (const shell of SHELLS) {
  test(`${shell} can read its script`, { skip: !has(shell) && `there is no ${shell}` }, () => {
    const { status, stderr } = spawnSync(shell, ['-n', scripts[shell]], { encoding: 'utf8' });
    assert.deepEqual([status, stderr], [0, '']);
  });
}

/** What bash offers; the last word is the one that is being written. */
function offered(...words) {
  const line = ['native-sandbox-executor', ...words];
  const set = line.map((word) => `'${word}'`).join(' ');
  const script = `source '${scripts.bash}'; COMP_WORDS=(${set}); COMP_CWORD=${line.length - 1}; _native_sandbox_executor; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const { status, stdout, stderr } = spawnSync('bash', ['-c', script], { encoding: 'utf8', cwd: world.root });
  assert.deepEqual([status, stderr], [0, '']);
  return stdout.split('\n').filter((one) => one !== '');
}

test('bash offers commands, options and values', { skip: !has('bash') && 'there is no bash' }, () => {
  assert.deepEqual(offered(''), ['doctor', 'run', 'bench', 'store', 'completion', '--help', '--version']);
  assert.deepEqual(offered('do'), ['doctor']);
  assert.deepEqual(offered('store', ''), ['ls', 'prune', 'warm', '--help']);
  assert.deepEqual(offered('store', 'prune', '--m'), ['--max-size']);
  assert.deepEqual(offered('run', 'a.js', '--network', ''), ['open', 'none']);
  assert.deepEqual(offered('run', '--wa'), ['--watch']);
  assert.deepEqual(offered('completion', 'z'), ['zsh']);
  // Names of files are bash's own affair.
  for (const words of [
    ['run', ''],
    ['run', 'a.js', '--env-file', ''],
    ['whatever', '--x'],
  ]) {
    assert.deepEqual(offered(...words), [], words.join(' '));
  }
});

test('the other scripts have every option of every command', async () => {
  const { out } = await cli(['run', '--help']);
  const options = [...out.matchAll(/^ {2}(?:-\w, )?--([\w-]+)/gm)].map(([, name]) => name);
  assert.ok(options.length > 10);
  const { readFileSync } = await import('node:fs');
  for (const name of options) {
    assert.match(readFileSync(scripts.fish, 'utf8'), new RegExp(`from run' -l ${name}[ '-]`));
    assert.ok(readFileSync(scripts.zsh, 'utf8').includes(`--${name}[`), name);
  }
});

test('a shell that is not known is wrong usage, and help says how to use it', async () => {
  const { code, err } = await cli(['completion', 'tcsh']);
  assert.equal(code, 2);
  assert.match(err, /completion is for bash, zsh or fish, not for tcsh/);
  assert.match((await cli(['completion', '--help'])).out, /source <\(native-sandbox-executor completion bash\)/);
  assert.equal((await cli(['completion'])).code, 2);
});

test('a bare command prints help', async () => {
  const { code, out } = await cli([]);
  assert.equal(code, 0);
  assert.match(out, /Usage: native-sandbox-executor <command>/);
  assert.match(out, /completion/);
});
