// What the package is made of: each direct dependency has its reason, each crate in the binaries its licence and a line in the bill of
// materials.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { cratesOf } from '../../scripts/crates.mjs';
import { elected, LICENCES, noticesOf } from '../../scripts/notices.mjs';
import { sbomOf } from '../../scripts/sbom.mjs';
import { hostTriple, output, ROOT, StepFailed } from '../../scripts/steps.mjs';

const textOf = (...path) => readFileSync(join(ROOT, ...path), 'utf8');
const PLATFORM = 'linux-x64-gnu';

const found = cratesOf(hostTriple());
const linked = found.crates.filter(({ isLinked }) => isLinked);

/** Direct dependencies of all crates here, from their manifests. */
function directCrates() {
  const manifests = ['Cargo.toml', join('fuzz', 'Cargo.toml')];
  const packages = manifests.flatMap((manifest) => {
    const args = ['metadata', '--format-version', '1', '--no-deps', '--manifest-path', join(ROOT, manifest)];
    return JSON.parse(output('cargo', args)).packages;
  });
  const isOwn = (name) => packages.some((one) => one.name === name);
  return packages.flatMap(({ dependencies }) => dependencies.map(({ name }) => name)).filter((name) => !isOwn(name));
}

test('each direct dependency has a line with its reason, and no line is of another', () => {
  const { devDependencies, peerDependencies, dependencies = {} } = JSON.parse(textOf('package.json'));
  const npm = [devDependencies, peerDependencies, dependencies].flatMap((one) => Object.keys(one));
  const lines = [...textOf('docs', 'DEPENDENCIES.md').matchAll(/^\| `(.+?)` \| (.+?) \|/gm)];
  const named = lines.map(([, name]) => name);
  assert.deepEqual([...new Set(named)].sort(), [...new Set([...directCrates(), ...npm])].sort());
  for (const [, name, reason] of lines) assert.ok(reason.length > 3, `${name} has no reason`);
});

test('licences: those that deny.toml allows, one of each choice, and an error for others', () => {
  const [, allowed] = /^allow = \[(.+)\]$/m.exec(textOf('deny.toml'));
  assert.deepEqual(JSON.parse(`[${allowed}]`), LICENCES);
  const of = (license) => elected({ name: 'a-crate', license });
  assert.deepEqual(of('Apache-2.0/MIT'), ['MIT']);
  assert.deepEqual(of('(MIT OR Apache-2.0) AND Unicode-3.0'), ['MIT', 'Unicode-3.0']);
  assert.deepEqual(of('Apache-2.0 OR GPL-2.0-only'), ['Apache-2.0']);
  for (const license of ['GPL-3.0-only', 'MIT AND GPL-3.0-only', null]) {
    assert.throws(
      () => of(license),
      (error) => error instanceof StepFailed && error.message.includes('a-crate')
    );
  }
});

test('the notices name each crate in the binaries, with the text of its licence', () => {
  const sections = noticesOf(found.crates).split(/\n-{80}\n/);
  assert.ok(linked.length > 50, `${linked.length} crates`);
  for (const { name, version } of linked) {
    const own = sections.filter((section) => section.includes(`\n${name} ${version} (`));
    assert.equal(own.length, 1, `${name} stands in ${own.length} sections`);
    assert.match(own[0], /permission|licen[cs]e/i, name);
  }
  assert.match(sections.at(-1), /standard library/);
  // What only runs while a build compiles is not in the binaries.
  assert.ok(!sections.some((section) => /\n(syn|napi-derive|proptest) \d/.test(section)));
});

test('the bill of materials has each crate once, with its checksum, and each reference leads somewhere', () => {
  const { components, dependencies, metadata, bomFormat, specVersion } = sbomOf(PLATFORM, found);
  assert.deepEqual([bomFormat, specVersion], ['CycloneDX', '1.6']);
  const { name, version } = JSON.parse(textOf('package.json'));
  assert.equal(metadata.component.purl, `pkg:npm/${name}-${PLATFORM}@${version}`);
  const refs = components.map((one) => one['bom-ref']);
  assert.equal(new Set(refs).size, refs.length);
  assert.equal(refs.length, found.crates.length);
  for (const { name: crate, hashes, licenses } of components) {
    assert.match(hashes[0]?.content ?? '', /^[0-9a-f]{64}$/, crate);
    assert.ok(licenses[0]?.expression, crate);
  }
  assert.equal(components.filter(({ scope }) => scope === 'required').length, linked.length);
  for (const { ref, dependsOn } of dependencies) {
    for (const one of dependsOn) assert.ok(refs.includes(one), `${ref} depends on ${one}`);
  }
  assert.deepEqual(sbomOf(PLATFORM, found), { components, dependencies, metadata, bomFormat, specVersion, version: 1 });
});
