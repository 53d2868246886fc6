// The software bill of materials of a platform's package, in CycloneDX's JSON. Without times and random numbers: the same sources give the
// same bytes.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { spdx } from './notices.mjs';
import { ROOT } from './steps.mjs';

const purlOf = ({ name, version }) => `pkg:cargo/${name}@${version}`;

function component(crate) {
  return {
    type: 'library',
    'bom-ref': purlOf(crate),
    name: crate.name,
    version: crate.version,
    // Of a build only: macros, and what builds run.
    scope: crate.isLinked ? 'required' : 'excluded',
    hashes: crate.checksum ? [{ alg: 'SHA-256', content: crate.checksum }] : [],
    licenses: crate.license ? [{ expression: spdx(crate.license) }] : [],
    purl: purlOf(crate),
    ...(crate.repository && { externalReferences: [{ type: 'vcs', url: crate.repository }] }),
  };
}

/** npm packages that an installation brings along, by the lockfile: there are none so far. */
function npmComponents() {
  const { packages } = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8'));
  return Object.entries(packages)
    .filter(([path, { dev, devOptional, peer }]) => path !== '' && !dev && !devOptional && !peer)
    .map(([path, { version, license }]) => {
      const name = path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length);
      const purl = `pkg:npm/${name.replace('@', '%40')}@${version}`;
      const licenses = license ? [{ expression: license }] : [];
      return { type: 'library', 'bom-ref': purl, name, version, scope: 'required', licenses, purl };
    });
}

/**
 * @param {string} platform its package's name ends so
 * @param {ReturnType<typeof import('./crates.mjs').cratesOf>} found
 */
export function sbomOf(platform, { crates, direct }) {
  const { name, version, license } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const own = `pkg:npm/${name}-${platform}@${version}`;
  const purls = new Map(crates.map((crate) => [crate.id, purlOf(crate)]));
  const npm = npmComponents();
  return {
    bomFormat: 'CycloneDX',
    specVersion: '1.6',
    version: 1,
    metadata: {
      component: {
        type: 'library',
        'bom-ref': own,
        name: `${name}-${platform}`,
        version,
        licenses: [{ license: { id: license } }],
        purl: own,
      },
    },
    components: [...crates.map(component), ...npm],
    dependencies: [
      { ref: own, dependsOn: [...direct.map((id) => purls.get(id)), ...npm.map(({ purl }) => purl)].sort() },
      ...crates.map((crate) => ({ ref: purlOf(crate), dependsOn: crate.uses.map((id) => purls.get(id)).sort() })),
    ],
  };
}
