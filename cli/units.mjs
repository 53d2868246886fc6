// Times, sizes and dependencies: as people write them, and as they are shown. Pure.

const MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const BYTES = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

/** Roughly: what a name may have in it is npm's business. */
const PACKAGE_NAME = /^(@[^/@\s]+\/)?[^/@\s]+$/;

const NUMBER_AND_UNIT = /^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*$/;

/** @returns {number | undefined} milliseconds of `5s`, `500ms`, `1.5m`, `2h`, `7d` */
export function milliseconds(text) {
  const [, number, unit] = NUMBER_AND_UNIT.exec(text) ?? [];
  return Object.hasOwn(MS, unit ?? '') ? Number(number) * MS[unit] : undefined;
}

/** @returns {number | undefined} bytes of `500MB`, `1.5GiB`, `0B`; the case of letters does not count */
export function bytes(text) {
  const [, number, name = ''] = NUMBER_AND_UNIT.exec(text) ?? [];
  const unit = Object.keys(BYTES).find((one) => one.toLowerCase() === name.toLowerCase());
  return unit && Math.round(Number(number) * BYTES[unit]);
}

/** JSON of a file or a pipe: some programs put a byte-order mark in front of what they write. */
export function parsedJson(text) {
  return JSON.parse(text.replace(/^\ufeff/, ''));
}

/** @returns {[string, string] | undefined} name and spec of `lodash@4`, `@scope/name@^1`; without a spec it is the tag `latest` */
export function dependency(text) {
  const at = text.indexOf('@', 1);
  const name = at < 0 ? text : text.slice(0, at);
  const spec = at < 0 ? 'latest' : text.slice(at + 1);
  return PACKAGE_NAME.test(name) && spec !== '' ? [name, spec] : undefined;
}

/** `{ lodash: '4', zod: '3' }` in words. */
export function dependencies(set) {
  const named = Object.entries(set ?? {}).map(([name, spec]) => `${name}@${spec}`);
  return named.join(', ') || '(no packages)';
}

/** Three digits and a unit. */
export function shownBytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const at = Math.min(units.length - 1, count < 1 ? 0 : Math.floor(Math.log2(count) / 10));
  return `${threeDigits(count / 2 ** (10 * at))} ${units[at]}`;
}

/** Three digits and a unit, from microseconds to days. */
export function shownTime(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  const [unit, size] = Object.entries(MS).findLast(([name, size]) => size <= ms && (name !== 'm' || ms >= 2 * size));
  return `${threeDigits(ms / size)} ${unit === 'm' ? 'min' : unit}`;
}

function threeDigits(value) {
  return String(Number(value < 100 ? value.toPrecision(3) : value.toFixed(0)));
}
