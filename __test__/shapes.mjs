// Values as no caller means to give them, for `properties.test.mjs`. An arbitrary gives a function that makes the value: some values can be used
// once only, and each run has to have its own.

import { Readable } from 'node:stream';
import fc from 'fast-check';
import { refuse, revoked, tool } from './helpers.mjs';

/** A function that makes a value, shown as `label` where it is part of a counterexample. */
export const maker = (make, label) => Object.assign(make, { [fc.toStringMethod]: () => label });
/** A maker of an object from makers of its fields. */
const objectMaker = (makers, base = {}) => {
  const fields = Object.entries(makers);
  return maker(
    () => ({ ...base, ...Object.fromEntries(fields.map(([name, make]) => [name, make()])) }),
    `{ ${fields.map(([name, make]) => `${JSON.stringify(name)}: ${fc.stringify(make)}`).join(', ')} }`
  );
};

const transferred = () => {
  const buffer = new ArrayBuffer(8);
  structuredClone(buffer, { transfer: [buffer] });
  return buffer;
};
const transferredView = () => {
  const bytes = new Uint8Array(8);
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
  return bytes;
};
const circle = () => {
  const object = { list: [] };
  object.list.push(object);
  return object;
};
/** What is thrown is hostile, too. */
const refuseOddly = () => {
  throw revoked();
};
const TRAPS = ['get', 'has', 'ownKeys', 'getPrototypeOf', 'getOwnPropertyDescriptor'];

/** Values that no caller means to give. Made anew for each run: some of them can be used once. */
const hostile = fc.constantFrom(
  revoked,
  circle,
  ...TRAPS.map((trap) => maker(() => new Proxy({}, { [trap]: refuse }), `a proxy that refuses ${trap}`)),
  () => new Proxy([], { get: refuse }),
  () => new Proxy({}, { get: refuseOddly, ownKeys: refuseOddly }),
  () => new Proxy(() => 1, { get: refuse, apply: refuse }),
  () => ({ toString: refuse, valueOf: refuse, toJSON: refuse, [Symbol.toPrimitive]: refuse }),
  () => Object.defineProperty({}, 'then', { get: refuse, enumerable: true }),
  () => Object.fromEntries([['then', (done) => done(1)]]),
  () => Promise.resolve(1),
  () => ({ stream: refuse }),
  () => ({ stream: () => revoked() }),
  () => ({ addEventListener: refuse, removeEventListener: refuse, aborted: false }),
  () => ({ addEventListener() {}, removeEventListener: refuse, aborted: 'no' }),
  () => ({ on: refuse, [Symbol.asyncIterator]: refuse }),
  () => ({
    async *[Symbol.asyncIterator]() {
      yield 7;
    },
  }),
  () => Readable.from(['text']).destroy(),
  () => Readable.from(['text']),
  () => new Blob(['text']),
  transferred,
  transferredView,
  () => new URL('file:///%2e%2e/nowhere'),
  () => new URL('https://example.com/'),
  () =>
    new (class Own {
      #secret = 1;
      get field() {
        return this.#secret;
      }
    })(),
  () => refuse,
  () => async () => refuse(),
  () => Symbol('s'),
  () => 5n,
  () => Number.NaN,
  () => AbortSignal.abort(),
  () => AbortSignal.timeout(1)
);

/** A text that names no file of the machine: options with paths make folders. */
const harmless = fc.string().map((one) => one.replaceAll('/', '|'));
const plain = fc.oneof(
  fc.anything({ maxDepth: 2 }).filter((value) => typeof value !== 'string'),
  harmless,
  fc.double(),
  fc.constantFrom(
    '',
    'none',
    'zygote',
    'memory',
    '0',
    '-1',
    'true',
    '__proto__',
    'native',
    'typescript',
    'x'.repeat(70_000)
  )
);
/** @returns {fc.Arbitrary<() => unknown>} */
export const odd = fc.oneof(
  hostile,
  plain.map((value) => maker(() => value, fc.stringify(value).slice(0, 200)))
);
/** @returns {fc.Arbitrary<() => unknown>} */
export const good = (...values) => fc.constantFrom(...values.map((value) => maker(() => value, fc.stringify(value))));

/**
 * An object over `base`, of which up to `most` fields are good or odd; or, seldom, an odd value in its place. Few fields: the first bad one is
 * the end of a call.
 */
export function shape(fields, { base = {}, most = 2 } = {}) {
  const members = Object.entries(fields).map(([name, good]) =>
    fc.tuple(fc.constant(name), good === undefined ? odd : fc.oneof({ weight: 2, arbitrary: good }, odd))
  );
  const object = fc
    .array(fc.oneof(...members), { maxLength: most })
    .map((chosen) => objectMaker(Object.fromEntries(chosen), base));
  return fc.oneof({ weight: 20, arbitrary: object }, odd);
}

/** The same, of any names. */
export const named = (names, value) =>
  fc
    .dictionary(fc.oneof(harmless, fc.constantFrom(...names)), value, { maxKeys: 4 })
    .map((makers) => objectMaker(makers));

const LIMIT_NAMES = [
  'memoryMb',
  'nativeMemoryMb',
  'cpuSeconds',
  'cpus',
  'openFiles',
  'fileSizeMb',
  'diskMb',
  'maxProcesses',
];
/** None that is taken: a run would boot a zygote for it. */
const badLimits = shape(Object.fromEntries(LIMIT_NAMES.map((name) => [name, good(-1, '64')])));

const networkShape = shape({
  preset: good('internet'),
  allow: good(['api.example.com:443'], []),
  deny: good(['10.0.0.0/8']),
  audit: good(true),
});

const ignore = () => {};
const fileContent = fc.oneof(good('text', Buffer.from('text'), { path: 'missing' }), odd);

export const callShape = shape({
  signal: good(new AbortController().signal),
  onLogs: good(ignore, refuse),
  onUsage: good(ignore, refuse),
  env: named(['SECRET', 'NODE_OPTIONS', 'PATH', 'TMPDIR', ''], fc.oneof(good('value'), odd)),
  functions: named(
    ['echo', 'crm.find', 'then', 'a.b.c'],
    fc.oneof(
      good((args) => args),
      odd
    )
  ),
  functionLimits: shape({ pending: good(2), calls: good(3), messageBytes: good(1000) }),
  onProgress: good(ignore),
  onYield: good(ignore),
  limits: badLimits,
  files: named(['in/a.txt', '../a', 'a', 'a/b'], fileContent),
  collect: shape(
    {
      match: good('out/**', ['*']),
      onFile: good(({ stream }) => void stream.resume()),
      maxFiles: good(2),
      maxBytes: good(2000),
    },
    { base: { match: '*', onFile: ignore } }
  ),
  network: fc.oneof(good('open', 'none'), networkShape),
});

/** A call without faults. */
export const GOOD_CONFIG = tool('(args) => args');

export const configShape = shape(
  {
    name: good('a name'),
    executeCode: good('() => {}', 'async () => { throw null; }', '() =>'),
    dependencies: fc.oneof(good({}), named(['alpha', 'fs', '@a/b'], odd)),
    sandboxConfig: shape(
      {
        provider: good('native'),
        runtime: good('node22', 'typescript'),
        timeout: good(10_000, '10000'),
        vcpus: good(4),
      },
      { base: GOOD_CONFIG.sandboxConfig }
    ),
  },
  { base: GOOD_CONFIG }
);

export const optionsShape = shape({
  timeoutMs: good(5000, -1),
  poolTtlMs: undefined,
  maxUseCount: undefined,
  maxOutputBytes: undefined,
  queueWaitMs: good(60_000),
  cleanupIntervalMs: undefined,
  memoryMb: good(1, '64'),
  maxConcurrent: undefined,
  lingerMs: good(10),
  installTimeoutMs: good(1),
  installScripts: good('ignore', ['alpha']),
  dependencies: shape({ allow: good(['alpha']), specs: good(['git']), minReleaseAgeDays: good(1) }),
  env: good(['NSE_*'], 'inherit'),
  providerEnv: good({ A: 'b' }),
  isolation: shape({ require: good('base') }),
  network: networkShape,
  runFolders: undefined,
  cgroupDir: good('/nonexistent'),
  start: good('spawn', 'standby'),
  storeDir: good('relative'),
  baseStoreDirs: good(['/nonexistent']),
  storeMaxBytes: undefined,
  tenantKey: undefined,
  nodePath: good('/nonexistent'),
  npmPath: good('/nonexistent'),
  nonsense: undefined,
});
