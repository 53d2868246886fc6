// Which crates are in the binaries of a platform, as cargo resolves them.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { output, ROOT } from './steps.mjs';

const isMacro = ({ targets }) => targets.some(({ kind }) => kind.includes('proc-macro'));

/** Checksums of the archives that crates.io hands out, by `name version`. */
function checksums() {
  const lock = readFileSync(join(ROOT, 'Cargo.lock'), 'utf8');
  const entry = /\[\[package\]\]\nname = "(.+)"\nversion = "(.+)"\nsource = .+\nchecksum = "(.+)"/g;
  return new Map([...lock.matchAll(entry)].map(([, name, version, checksum]) => [`${name} ${version}`, checksum]));
}

/** What `cargo metadata` says, for one target. */
function metadata(target) {
  const args = ['metadata', '--format-version', '1', '--locked', '--filter-platform', target];
  // The manifests of some 250 crates, as text.
  return JSON.parse(output('cargo', args));
}

/**
 * Crates that addon, launcher and zygote library are built of, without this workspace's own and what only tests use, in the order of
 * their names.
 * @param {string} target a triple
 * @returns {{ crates: Array<{ id: string, name: string, version: string, license: string, authors: string[], repository?: string,
 *   manifest_path: string, checksum?: string, isLinked: boolean, uses: string[] }>, direct: string[] }} `isLinked`: in a binary, not a
 *   macro or what only builds use; `uses` and `direct` are ids
 */
export function cratesOf(target) {
  const { packages, resolve, workspace_members: members } = metadata(target);
  const byId = new Map(packages.map((one) => [one.id, one]));
  const nodes = new Map(resolve.nodes.map((node) => [node.id, node]));
  const known = checksums();
  const usesOf = (id, kinds) =>
    nodes
      .get(id)
      .deps.filter(({ dep_kinds }) => dep_kinds.some(({ kind }) => kinds.includes(kind)))
      .map(({ pkg }) => pkg);
  const reach = (kinds, goesOn) => {
    const found = new Set(members);
    for (const id of found) if (goesOn(byId.get(id))) for (const used of usesOf(id, kinds)) found.add(used);
    return found;
  };
  const linked = reach([null], (one) => !isMacro(one));
  const built = reach([null, 'build'], () => true);
  const isOwn = (id) => members.includes(id);
  const crates = [...built]
    .filter((id) => !isOwn(id))
    .map((id) => {
      const { name, version, license, authors, repository, manifest_path } = byId.get(id);
      const uses = usesOf(id, [null, 'build']).filter((used) => !isOwn(used));
      const isLinked = linked.has(id) && !isMacro(byId.get(id));
      const checksum = known.get(`${name} ${version}`);
      return { id, name, version, license, authors, repository, manifest_path, checksum, isLinked, uses };
    })
    .sort((one, other) => `${one.name} ${one.version}`.localeCompare(`${other.name} ${other.version}`, 'en'));
  const direct = [...new Set(members.flatMap((id) => usesOf(id, [null, 'build'])))].filter((id) => !isOwn(id));
  return { crates, direct };
}
