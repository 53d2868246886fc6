// The packages as a release publishes them: what is in them, what linters say of them, and that a project which installs
// them runs tools, by require, by import and by the flag; and what a platform without a package is told.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, posix } from 'node:path';
import { after, before, test } from 'node:test';
import { binariesOf, makePackages } from '../../scripts/pack.mjs';
import { StepFailed, tool } from '../../scripts/steps.mjs';
import { LINUX, ownWorld, ROOT, RUNGS } from '../helpers.mjs';
import { emptyProject, NAME, node, npm, packed, registryWith } from './packed.mjs';

const require = createRequire(import.meta.url);
const { PLATFORMS, platformArchAbi } = require('../../lib/platform.js');
/** What a platform's package says of the crates in its binaries. */
const ABOUT = ['THIRD-PARTY-NOTICES.txt', 'sbom.cdx.json'];
const OWN = `${NAME}-${platformArchAbi()}`;

/** What an installation may take, in bytes: the main package, and a platform's as releases build it. */
const MAIN_MAX_BYTES = 0.8e6;
const PLATFORM_MAX_BYTES = 14e6;

let scratch;
let packages;
let main;
let own;
let project;
let registry;

before(async () => {
  scratch = ownWorld().root;
  packages = packed();
  main = packages.at(-1);
  own = packages.find(({ name }) => name === OWN);
  project = emptyProject(join(scratch, 'a project'));
  await npm(['install', '--offline', main.archive, own.archive], project);
});
after(() => registry?.close());

const installed = (name = NAME) => join(project, 'node_modules', name);
const pathsOf = ({ files }) => files.map(({ path }) => path).sort();

test('the main package holds what it needs, no binary, and nothing of the workshop', () => {
  const files = pathsOf(main);
  for (const path of [
    'index.js',
    'index.d.ts',
    'register.js',
    'register.d.ts',
    'lib/factory.js',
    'lib/hooks-thread.mjs',
    'cli/main.mjs',
    'cli/bench/host.mjs',
    'docs/CLI.md',
  ]) {
    assert.ok(files.includes(path), `${path} is missing`);
  }
  for (const path of ['binding.cjs', 'README.md', 'LICENSE', 'CHANGELOG.md', 'docs/MIGRATING.md', 'package.json']) {
    assert.ok(files.includes(path), `${path} is missing`);
  }
  assert.deepEqual(
    files.filter((path) => !/^(bin|cli|docs|examples|lib)\/|^[\w.-]+\.(c?js|d\.ts|json|md)$|^LICENSE$/.test(path)),
    []
  );
  assert.deepEqual(
    files.filter(
      (path) =>
        /node_modules|\.test\.|test-d|^binding\.d|^(launcher|zygote)/.test(path) && !path.startsWith('examples/')
    ),
    []
  );
});

test('the package of this platform holds its binaries, and what is in these', { skip: !LINUX }, () => {
  const platform = platformArchAbi();
  const binaries = [`${NAME}.${platform}.node`, `launcher.${platform}`, `zygote.${platform}`];
  assert.deepEqual(pathsOf(own), [...ABOUT, 'LICENSE', 'README.md', 'package.json', ...binaries].sort());
  assert.equal(statSync(join(installed(OWN), `launcher.${platform}`)).mode & 0o111, 0o111);
});

test('every platform has a package, of one version, which npm installs there and nowhere else', async () => {
  const binaries = join(scratch, 'binaries');
  emptyProject(binaries);
  const none = () => makePackages({ out: join(scratch, 'played'), binaries, all: true });
  for (const platform of PLATFORMS.slice(1)) {
    for (const { name } of binariesOf(platform)) writeFileSync(join(binaries, name), 'played');
  }
  assert.throws(none, (error) => error instanceof StepFailed && error.message.includes(PLATFORMS[0]));
  for (const { name } of binariesOf(PLATFORMS[0])) writeFileSync(join(binaries, name), 'played');
  const all = makePackages({ out: join(scratch, 'played'), binaries, all: true });

  // In the order of publishing: nobody finds the main one before what it needs.
  assert.deepEqual(
    all.map(({ name }) => name),
    [...PLATFORMS.map((platform) => `${NAME}-${platform}`), NAME]
  );
  const { version } = require('../../package.json');
  const cargo = readFileSync(join(ROOT, 'Cargo.toml'), 'utf8');
  assert.equal(/^version = "(.+)"$/m.exec(cargo)[1], version);
  assert.ok(all.every((one) => one.version === version));
  assert.deepEqual(
    main.manifest.optionalDependencies,
    Object.fromEntries(PLATFORMS.map((platform) => [`${NAME}-${platform}`, version]))
  );
  for (const { name, manifest } of all.slice(0, -1)) {
    const [os, cpu, abi] = name.slice(NAME.length + 1).split('-');
    const libc = { gnu: ['glibc'], musl: ['musl'] }[abi];
    assert.deepEqual([manifest.os, manifest.cpu, manifest.libc], [[os], [cpu], libc], name);
    // Provenance is checked against it.
    assert.deepEqual(manifest.repository, main.manifest.repository);
  }

  registry = await registryWith([...all.slice(0, -1).filter(({ name }) => name !== OWN), own, main]);
  const user = emptyProject(join(scratch, 'by name', 'a project'));
  await npm(['install', NAME, '--registry', registry.url], user);
  const brought = readdirSync(join(user, 'node_modules')).filter((name) => !name.startsWith('.'));
  assert.deepEqual(brought, [NAME, OWN]);
});

test('the targets of napi, of the build and of the packages are the same', () => {
  const { napi } = require('../../package.json');
  assert.equal(napi.targets.length, PLATFORMS.length);
  const build = readFileSync(join(ROOT, 'scripts', 'build.mjs'), 'utf8');
  const named = [...build.matchAll(/^ {2}'([\w-]+)': '([\w-]+)',$/gm)];
  assert.deepEqual(
    named.map(([, triple]) => triple),
    napi.targets
  );
  assert.deepEqual(
    named.map(([, , platform]) => platform),
    PLATFORMS
  );
});

test('it brings no package along but that of its platform', () => {
  const names = readdirSync(join(project, 'node_modules')).filter((name) => !name.startsWith('.'));
  assert.deepEqual(names, [NAME, OWN]);
  assert.deepEqual(Object.keys(main.manifest.dependencies ?? {}), []);
});

test('publint and arethetypeswrong have nothing to say', () => {
  const publint = node([tool('publint'), 'run', main.archive, '--strict'], ROOT);
  assert.equal(publint.code, 0, publint.out + publint.err);
  assert.match(publint.out, /All good/);
  const attw = node([tool('@arethetypeswrong/cli', 'attw'), main.archive, '--format', 'json'], ROOT);
  assert.equal(attw.code, 0, attw.out + attw.err);
  const { analysis, problems } = JSON.parse(attw.out);
  assert.deepEqual(Object.keys(analysis.entrypoints).sort(), ['.', './conformance', './package.json', './register']);
  assert.deepEqual(problems ?? {}, {});
});

/** Links and pictures of a Markdown text, with the line of each. */
function linksOf(text) {
  const prose = text.replace(/^```.*?^```$/gms, (block) => block.replace(/[^\n]/g, ''));
  const found = [
    ...prose.matchAll(/\]\(([^)\s]+)(?: "[^"]*")?\)|<(?:a|img)[^>]* (?:href|src)="([^"]+)"|^\[[^\]]+\]: (\S+)/gm),
  ];
  return found.map((match) => ({
    target: match[1] ?? match[2] ?? match[3],
    line: prose.slice(0, match.index).split('\n').length,
  }));
}

/** Names of the places in a Markdown text, as GitHub makes them of headings. */
function anchorsOf(text) {
  const headings = [...text.replace(/^```.*?^```$/gms, '').matchAll(/^#+ (.+)$/gm)];
  return headings.map(([, words]) =>
    words
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-')
  );
}

test('every relative link of a packed document leads to what is packed', () => {
  const folder = installed();
  const files = pathsOf(main);
  const documents = files.filter((path) => path.endsWith('.md'));
  assert.ok(documents.length > 8, documents.join());
  let looked = 0;
  for (const path of documents) {
    const text = readFileSync(join(folder, path), 'utf8');
    for (const { target, line } of linksOf(text)) {
      const where = `${path}:${line}: ${target}`;
      if (/^[a-z]+:/.test(target)) continue;
      looked += 1;
      const [to, anchor] = target.split('#');
      const found = to === '' ? path : posix.join(posix.dirname(path), to);
      assert.ok(
        files.some((one) => one === found || one.startsWith(`${found}/`)),
        `${where} is not in the package`
      );
      if (!anchor) continue;
      assert.ok(anchorsOf(readFileSync(join(folder, found), 'utf8')).includes(anchor), `${where}: no such place`);
    }
  }
  assert.ok(looked > 25, `${looked} links`);
});

test('absolute links to the sources name the repository, and what is there', () => {
  const own = /^git\+(https:.*)\.git$/.exec(main.manifest.repository.url)[1];
  for (const path of pathsOf(main).filter((one) => one.endsWith('.md'))) {
    for (const { target } of linksOf(readFileSync(join(installed(), path), 'utf8'))) {
      const [, inside] = /\/native-sandbox-executor\/blob\/[^/]+\/([^#]+)/.exec(target) ?? [];
      if (!inside) continue;
      assert.ok(target.startsWith(`${own}/blob/main/`), `${path}: ${target}`);
      assert.ok(existsSync(join(ROOT, inside)), `${path}: ${target}`);
    }
  }
});

test('scripts tell how they are used, without a stack', () => {
  for (const script of [
    'scripts/pack.mjs',
    'scripts/build.mjs',
    'scripts/check.mjs',
    'scripts/deny.mjs',
    'scripts/publish.mjs',
    'scripts/soak.mjs',
    'scripts/test.mjs',
    'benches/run.mjs',
  ]) {
    const help = node([join(ROOT, script), '--help'], ROOT);
    assert.deepEqual([help.code, help.err], [0, ''], script);
    assert.match(help.out, /\n {2}(node |npm )|`node scripts/, script);
    const wrong = node([join(ROOT, script), '--no-such-option'], ROOT);
    assert.deepEqual([wrong.code, wrong.out], [2, ''], script);
    assert.match(wrong.err, /^Unknown option '--no-such-option'/, script);
    assert.doesNotMatch(wrong.err, /^ {4}at /m, script);
  }
  const target = node([join(ROOT, 'scripts/build.mjs'), '--target', 'none'], ROOT);
  assert.deepEqual([target.code, target.err.startsWith('unknown target none; known are ')], [2, true]);
});

test('the sizes are what the documents say, and bounded', (t) => {
  assert.ok(main.unpackedSize < MAIN_MAX_BYTES, `the main package has ${main.unpackedSize} bytes`);
  if (own.debug) {
    t.diagnostic('of a debug build: the size of the package of a platform is that of releases only');
    return;
  }
  assert.ok(own.unpackedSize < PLATFORM_MAX_BYTES, `the platform's package has ${own.unpackedSize} bytes`);
  const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
  const [, packedMb, unpackedMb] = /([\d.]+) MB packed, ([\d.]+) MB unpacked/.exec(readme);
  for (const [said, bytes] of [
    [packedMb, main.size + own.size],
    [unpackedMb, main.unpackedSize + own.unpackedSize],
  ]) {
    assert.ok(
      Math.abs(Number(said) * 1e6 - bytes) < bytes / 10,
      `${said} MB are ${bytes} bytes: npm run build && npm run packages`
    );
  }
});

const CALL = `SandboxExecutorFactory.getInstance().executeFunctionTool('t', { n: 20 }, {
  description: '', inputSchema: {}, dependencies: {}, executeCode: '({ n }) => n + 1',
  sandboxConfig: { provider: 'native', runtime: 'node22' },
}).then((value) => console.log('answer', value));`;

for (const [how, file, line] of [
  ['require', 'use.cjs', "const { SandboxExecutorFactory } = require('native-sandbox-executor');"],
  ['import', 'use.mjs', "import { SandboxExecutorFactory } from 'native-sandbox-executor';"],
]) {
  test(`a call by ${how}`, () => {
    writeFileSync(join(project, file), `${line}\n${CALL}\n`);
    const { code, out, err } = node([file], project);
    assert.deepEqual([code, out, err], [0, 'answer 21\n', '']);
  });
}

/** The run API's one place that matters, played. */
function playRunApi() {
  const dist = join(emptyProject(join(project, 'node_modules/@inkeep/agents-run-api'), { type: 'module' }), 'dist');
  emptyProject(dist, { type: 'module' });
  const factory = 'SandboxExecutorFactory-A2LTPE2X.js';
  writeFileSync(join(dist, factory), 'export const SandboxExecutorFactory = "the original";');
  writeFileSync(join(dist, 'index.js'), `export const load = () => import('./${factory}');`);
}

/** The fastest that this Node can; forced, so that a missing file is seen. */
const RUNG = RUNGS.at(-1);

test('a call by the flag, on the launcher and the zygote of the package', () => {
  playRunApi();
  const script = `import { load } from './node_modules/@inkeep/agents-run-api/dist/index.js';
    const { SandboxExecutorFactory, NativeSandboxExecutor } = await load();
    await ${CALL}
    const { counters, withoutLauncher } = new NativeSandboxExecutor().getMetrics();
    console.log(JSON.stringify({ workers: counters.workers, withoutLauncher }));`;
  writeFileSync(join(project, 'flag.mjs'), script);
  for (const flag of ['--import', '--require']) {
    const env = { AGENTS_FUNCTION_TOOL_SANDBOX_START: RUNG };
    const { code, out, err } = node([flag, 'native-sandbox-executor/register', 'flag.mjs'], project, env);
    assert.deepEqual([code, err], [0, '']);
    const [answer, found] = out.trim().split('\n');
    assert.equal(answer, 'answer 21');
    const { workers, withoutLauncher } = JSON.parse(found);
    assert.equal(workers[RUNG], 1);
    if (LINUX) assert.equal(withoutLauncher, null);
  }
});

test('the conformance suite comes with it', () => {
  const line =
    "console.log(require('native-sandbox-executor/conformance').conformanceTests({ provider: { create() {} } }).length > 10);";
  writeFileSync(join(project, 'conform.cjs'), `${line}\n`);
  assert.equal(node(['conform.cjs'], project).out, 'true\n');
});

test('its command runs, by the name that npm gives it', () => {
  const program = join(project, 'node_modules', '.bin', NAME);
  const { stdout } = spawnSync(program, ['--version'], { encoding: 'utf8', shell: process.platform === 'win32' });
  assert.equal(stdout, `${main.version}\n`);
});

const TYPE_ROOTS = join(ROOT, 'node_modules', '@types');

test('importing TypeScript projects find the types, with TypeScript 5 and newer', () => {
  writeFileSync(
    join(project, 'use.mts'),
    "import { type FunctionToolConfig, SandboxExecutorFactory } from 'native-sandbox-executor';\nexport const run = (config: FunctionToolConfig): Promise<unknown> => SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, config);\n"
  );
  const five = require.resolve('typescript/package.json', {
    paths: [require.resolve('@arethetypeswrong/core/package.json')],
  });
  assert.match(require(five).version, /^5\./);
  // The type tests as they are, but for names that newer versions have only.
  const { compilerOptions, files } = JSON.parse(readFileSync(join(ROOT, 'tsconfig.json'), 'utf8'));
  const older = {
    compilerOptions: { ...compilerOptions, module: 'nodenext', moduleResolution: 'nodenext', typeRoots: [TYPE_ROOTS] },
    files: [...files.map((file) => join(ROOT, file)), 'use.mts'],
  };
  writeFileSync(join(project, 'tsconfig.json'), JSON.stringify(older));
  const flags = ['--noEmit', '--strict', '--target', 'es2022', '--module', 'nodenext', '--types', 'node'];
  for (const [manifest, args] of [
    [five, ['-p', '.']],
    [require.resolve('typescript/package.json'), [...flags, '--ignoreConfig', '--typeRoots', TYPE_ROOTS, 'use.mts']],
  ]) {
    const { code, out } = node([join(manifest, '..', 'bin', 'tsc'), ...args], project);
    assert.equal(code, 0, `${manifest}: ${out}`);
  }
});

test('the types need neither those of Node nor those of the DOM, and take either', () => {
  const folder = join(project, 'types');
  emptyProject(folder, { type: 'module' });
  const source = `import { type CallOptions, type FunctionToolConfig, type Provider, SandboxExecutorFactory } from 'native-sandbox-executor';
    import { conformanceTests } from 'native-sandbox-executor/conformance';
    import { swapReport } from 'native-sandbox-executor/register';
    export const run = (config: FunctionToolConfig, call: CallOptions): Promise<unknown> =>
      SandboxExecutorFactory.getInstance().executeFunctionTool('t', {}, config, call);
    export const provider: Provider = { create: ({ signal }) => Promise.reject(signal.aborted satisfies boolean) };
    export const rest: unknown = [conformanceTests({ provider }), swapReport()];`;
  writeFileSync(join(folder, 'plain.ts'), source);
  writeFileSync(
    join(folder, 'signals.ts'),
    `${source}
    export const call: CallOptions = { signal: AbortSignal.timeout(1) };
    export const same = (signal: AbortSignal): typeof call.signal => signal;
    export const back = (given: CallOptions): AbortSignal | undefined => given.signal;`
  );
  const compilers = [
    require.resolve('typescript/package.json', { paths: [require.resolve('@arethetypeswrong/core/package.json')] }),
    require.resolve('typescript/package.json'),
  ];
  for (const [file, lib, types] of [
    ['plain.ts', ['es2022'], []],
    ['signals.ts', ['es2022', 'dom'], []],
    ['signals.ts', ['es2022'], ['node']],
  ]) {
    const compilerOptions = {
      ...{ target: 'es2022', module: 'nodenext', moduleResolution: 'nodenext', strict: true, noEmit: true },
      ...{ lib, types, typeRoots: [TYPE_ROOTS], skipLibCheck: false },
    };
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: [file] }));
    for (const manifest of compilers) {
      const { code, out } = node([join(manifest, '..', 'bin', 'tsc'), '-p', '.'], folder);
      assert.equal(code, 0, `${file} with ${lib} and ${types}, ${manifest}: ${out}`);
    }
  }
});

/** What a call says that cannot run. */
const REFUSED = `import { SandboxExecutorFactory } from 'native-sandbox-executor';
${CALL.replace(".then((value) => console.log('answer', value))", '.catch(({ code, message }) => console.log(code, message))')}`;

test('a platform that has no package is told so, and which have one', () => {
  writeFileSync(join(project, 'refused.mjs'), REFUSED);
  writeFileSync(join(project, 's390x.cjs'), "Object.defineProperty(process, 'arch', { value: 's390x' });");
  const { code, out } = node(['--require', './s390x.cjs', 'refused.mjs'], project);
  assert.equal(code, 0, out);
  assert.match(out, /^ADDON_MISSING The native addon .* could not be loaded on linux-s390x/);
  assert.ok(out.includes(`has no package; those that have one: ${PLATFORMS.join(', ')}`), out);
});

test("without its platform's package it still imports, and its calls say what to do", () => {
  rmSync(installed(OWN), { recursive: true });
  writeFileSync(join(project, 'refused.mjs'), REFUSED);
  const { code, out } = node(['refused.mjs'], project);
  assert.equal(code, 0, out);
  assert.match(out, /^ADDON_MISSING The native addon/);
  assert.ok(out.includes(`the package ${OWN}`), out);
  assert.match(out, /with optional dependencies \(no --omit=optional/);
  // There never was a package of WebAssembly.
  assert.doesNotMatch(out, /wasm|wasi|npm has a bug/);
  const doctor = node([join(installed(), 'cli', 'main.mjs'), 'doctor'], project);
  assert.equal(doctor.code, 1, doctor.err);
  assert.match(doctor.out, /^✖ ADDON_MISSING The native addon/m);
  // Once per process, at its start.
  const flag = node(['--import', 'native-sandbox-executor/register', '--print', '1'], project);
  assert.deepEqual([flag.code, flag.out], [0, '1\n']);
  assert.match(flag.err, /^native-sandbox-executor: The native addon .* NATIVE_SANDBOX_EXECUTOR=off goes back/);
});
