// Settings of npm that are meant for the user's own projects: they change nothing of an installation here, or are named.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { ownWorld, rejection, surface, tool } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

let world;
let registry;
before(async () => {
  world = ownWorld();
  registry = await useRegistry({
    plain: { '1.0.0': { 'package.json': { bin: { plain: 'index.js' } }, 'index.js': 'module.exports = "plain"' } },
    outer: {
      '1.0.0': {
        'package.json': { optionalDependencies: { plain: '1.0.0' } },
        'index.js': 'module.exports = require("plain")',
      },
    },
  });
});
after(async () => {
  await surface().SandboxExecutorFactory.getInstance().cleanup();
  await registry.close();
});

/** A call in a tenant of its own, so that it installs, under these lines of the user's npmrc. */
async function underNpmrc(lines, env = {}) {
  const npmrc = join(world.root, 'home', '.npmrc');
  writeFileSync(npmrc, `${lines.join('\n')}\n`);
  Object.assign(process.env, env);
  try {
    const factory = new (surface().SandboxExecutorFactory)({ tenantKey: JSON.stringify([lines, env]) });
    const source = `() => [require('outer'), require('fs').existsSync(require.resolve('plain/package.json').replace(/plain.package.json$/, '.bin/plain'))]`;
    return await factory.executeFunctionTool('t', {}, tool(source, { dependencies: { outer: '1.0.0' } }));
  } finally {
    for (const name of Object.keys(env)) delete process.env[name];
    rmSync(npmrc);
  }
}

test('settings that would change the command or leave out parts of the tree do not', { timeout: 180_000 }, async () => {
  for (const lines of [
    ['workspaces=true', 'include-workspace-root=true', 'global=true', 'location=global', 'dry-run=true', 'usage=true'],
    ['package-lock=false', 'package-lock-only=true', 'save=false', 'lockfile-version=1', 'shrinkwrap=false'],
    ['omit[]=optional', 'omit[]=peer', 'optional=false', 'production=true', 'only=prod', 'bin-links=false'],
    ['json=true', 'long=true', 'parseable=true', 'color=always', 'loglevel=silent', 'timing=true', 'heading=x'],
    [
      'ignore-scripts=true',
      'script-shell=/bin/false',
      'node-options=--bad',
      'foreground-scripts=true',
      'if-present=true',
    ],
    [
      'audit=true',
      'audit-level=low',
      'fund=true',
      'prefer-online=true',
      'save-exact=true',
      'save-dev=true',
      'umask=0777',
    ],
  ]) {
    assert.deepEqual(await underNpmrc(lines), ['plain', true], lines.join());
  }
  const env = {
    npm_config_workspace: 'x',
    npm_config_workspaces: 'true',
    npm_config_global: 'true',
    npm_config_omit: 'optional',
  };
  assert.deepEqual(await underNpmrc([], env), ['plain', true], 'the environment of a host that npm started');
});

test('a setting that nothing takes back is named', { timeout: 60_000 }, async () => {
  const error = await rejection(underNpmrc(['workspace=x']));
  assert.deepEqual([error.code, error.phase], ['INSTALL_FAILED', 'install']);
  assert.match(error.message, /workspace=x.*npmrc/);
});
