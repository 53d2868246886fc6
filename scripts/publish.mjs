// Publishes what scripts/pack.mjs has made, in its order, with provenance: `node scripts/publish.mjs <folder>`.
//
// Runs in the release workflow, whose identity provenance is made from. A token comes by the variable NODE_AUTH_TOKEN; without
// one, npm asks for the workflow's own rights (trusted publishing). What is published already is left alone, so that a run
// which broke off can be repeated.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { LIST } from './pack.mjs';
import { argumentsOf, output, StepFailed, sh } from './steps.mjs';

/** Settings of npm that name the token's variable, not the token. */
function withToken(scratch) {
  if (!process.env.NODE_AUTH_TOKEN) return [];
  const file = join(scratch, 'npmrc');
  const { host, pathname } = new URL(output('npm', ['config', 'get', 'registry']).trim());
  writeFileSync(file, `//${host}${pathname}:_authToken=\${NODE_AUTH_TOKEN}\n`);
  return ['--userconfig', file];
}

function isPublished(name, version) {
  try {
    return output('npm', ['view', `${name}@${version}`, 'version']).trim() === version;
  } catch (error) {
    if (error.message.includes('E404')) return false;
    throw error;
  }
}

function publish(folder) {
  const scratch = mkdtempSync(join(tmpdir(), 'nse-publish-'));
  try {
    const settings = withToken(scratch);
    for (const { name, version, archive } of JSON.parse(readFileSync(join(folder, LIST), 'utf8'))) {
      if (isPublished(name, version)) console.log(`${name} ${version} is there already`);
      else sh('npm', ['publish', archive, '--provenance', '--access', 'public', ...settings]);
    }
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

const [folder] = argumentsOf(import.meta.url, {}, { allowPositionals: true }).positionals;
try {
  if (!folder) throw new StepFailed('which folder? node scripts/publish.mjs <folder>');
  publish(resolve(folder));
} catch (error) {
  if (!(error instanceof StepFailed)) throw error;
  console.error(error.message);
  process.exitCode = 1;
}
