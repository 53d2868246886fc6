// The licences of the crates in a platform's binaries, as the text that is shipped beside these.

import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { StepFailed } from './steps.mjs';

/** In the order in which one is elected where a crate offers a choice; those that `deny.toml` allows. */
export const LICENCES = [
  'MIT',
  'Apache-2.0',
  'Apache-2.0 WITH LLVM-exception',
  'ISC',
  'BSD-3-Clause',
  'Unicode-3.0',
  'Zlib',
];

/** Licences that a file's name can say it is the text of. */
const NAMED = [
  ['MIT', /mit/i],
  ['Apache-2.0 WITH LLVM-exception', /llvm/i],
  ['Apache-2.0', /apache/i],
  ['Unlicense', /unlicense/i],
  ['Zlib', /zlib/i],
  ['0BSD', /0bsd/i],
  ['BSL-1.0', /boost|bsl/i],
  ['GPL-2.0-only', /gpl/i],
  ['Unicode-3.0', /unicode/i],
];

const LICENCE_FILE = /^(licen[cs]e|copying|unlicense|notice|copyright)/i;

/** For crates that ship no text of their licence; its holders are the authors that the manifest names. */
const MIT_TEXT = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.`;

/** An expression as SPDX writes it: older manifests have a slash for OR. */
export function spdx(expression) {
  return expression.replaceAll(/\s*\/\s*/g, ' OR ');
}

/**
 * The licences under which a crate is used: of each choice one.
 * @throws {StepFailed} where none of a choice is known here
 */
export function elected({ name, license }) {
  const parts = spdx(license ?? '')
    .replaceAll(/[()]/g, '')
    .split(' AND ');
  return parts.map((part) => {
    const offered = part.split(' OR ').map((one) => one.trim());
    const chosen = LICENCES.find((one) => offered.includes(one));
    if (!chosen) throw new StepFailed(`the crate ${name} has the licence ${license}, which deny.toml does not allow`);
    return chosen;
  });
}

/** The texts that a crate ships, without those of licences that were not elected. */
function textsOf(crate) {
  const folder = dirname(crate.manifest_path);
  const wanted = elected(crate);
  const isWanted = (file) => {
    const [licence] = NAMED.find(([, pattern]) => pattern.test(file)) ?? [];
    return licence === undefined || wanted.includes(licence);
  };
  const files = readdirSync(folder).filter((file) => LICENCE_FILE.test(file) && isWanted(file));
  const texts = files.sort().map((file) => readFileSync(join(folder, file), 'utf8').trim());
  if (files.some((file) => !/^(notice|copyright)/i.test(file))) return texts;
  if (wanted.join() !== 'MIT') {
    throw new StepFailed(`the crate ${crate.name} ships no text of its licence, ${crate.license}`);
  }
  const holders = crate.authors.length > 0 ? crate.authors.join(', ') : `the authors of ${crate.name}`;
  return [...texts, `Copyright (c) ${holders}\n\n${MIT_TEXT}`];
}

/** Texts that differ in their line breaks only are one. */
const keyOf = (text) => text.replaceAll(/\s+/g, ' ');

/** @param {ReturnType<typeof import('./crates.mjs').cratesOf>['crates']} crates @returns {string} */
export function noticesOf(crates) {
  const groups = new Map();
  for (const crate of crates.filter(({ isLinked }) => isLinked)) {
    const texts = textsOf(crate);
    const key = keyOf(texts.join('\n'));
    const group = groups.get(key) ?? { texts, crates: [] };
    group.crates.push(crate);
    groups.set(key, group);
  }
  const sections = [...groups.values()].map(({ texts, crates: users }) => {
    const names = users.map(
      (crate) => `${crate.name} ${crate.version} (${elected(crate).join(' and ')}) ${crate.repository ?? ''}`
    );
    return [...names.map((name) => name.trim()), '', texts.join('\n\n')].join('\n');
  });
  const head =
    'The binaries of this package contain the following Rust crates, each under the licence that is named and printed\nbelow it. A crate that ships no licence text has the standard one, with the authors that its manifest names.';
  const standard = `Rust's standard library (MIT)\n\nCopyright (c) The Rust Project Contributors\n\n${MIT_TEXT}`;
  return `${[head, ...sections, standard].join(`\n\n${'-'.repeat(80)}\n\n`)}\n`;
}
