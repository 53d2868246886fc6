// What goes wrong while it is found out what isolation the machine offers. Each of these made every later function of the process run
// without any, as the host's user, and nothing said so. Now such a call is rejected, and the next one finds all that there is.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { after, before } from 'node:test';
import { pathToFileURL } from 'node:url';
import { FORKS, host, LINUX, newMarker, ownWorld, ROOT, surface } from './helpers.mjs';
import { linkOrCopy } from './runners/project.mjs';

const world = ownWorld();
const isRoot = process.getuid?.() === 0;
const options = { skip: !LINUX && 'there is the tier base only outside of Linux', timeout: 120_000 };
const asRoot = {
  ...options,
  skip: options.skip || (!isRoot && 'mounts, and namespaces of processes, are root’s to make'),
};
let tier;

before(async () => {
  if (LINUX) ({ tier } = await surface().isolationReport());
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

/** A file that the host's user may read, and no function. */
const secret = join(world.root, 'secret');
writeFileSync(secret, 'x', { mode: 0o600 });

const READ = `({ secret }) => { try { require('fs').readFileSync(secret); return 'read'; } catch (error) { return error.code; } }`;

/** In a host: what a call comes to, an answer or the code of its error; and the tier that is then in force. */
const AT_HAND = `
  import fs from 'node:fs';
  const { isolationReport, NativeSandboxExecutor } = rest;
  const call = (over) => run(${JSON.stringify(READ)}, { secret: ${JSON.stringify(secret)} }, over).catch(({ code, message }) => code + ': ' + message);
  const inForce = async () => (await isolationReport()).tier;
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
`;

/** No function has read the secret, and the last call found all that there is. Where the tier base is all, there is nothing to read it from. */
function assertSafe({ said: [told], err }, expected = tier) {
  assert.ok(told, err);
  const { answers, tier: inForce } = told;
  assert.equal(inForce, expected, JSON.stringify(told));
  if (tier === 'base') return;
  for (const answer of answers) assert.notEqual(answer, 'read', JSON.stringify(told));
  assert.match(answers.at(-1), /^(EACCES|ENOENT)$/, `control: the last call runs, confined: ${JSON.stringify(told)}`);
}

test('no descriptor is left for the first call', options, async () => {
  const { exited } = host(
    `${AT_HAND}
    const held = [];
    NativeSandboxExecutor.getInstance().getMetrics();
    try { for (;;) held.push(fs.openSync('/dev/null')); } catch {}
    for (const fd of held.splice(0, 4)) fs.closeSync(fd);
    const answers = [await call()];
    for (const fd of held) fs.closeSync(fd);
    answers.push(await call());
    say({ answers, tier: await inForce() });
    process.exit(0);`
  );
  assertSafe(await exited);
});

for (const [what, mount] of [
  ['no room', 'size=4m'],
  ['no inode', 'nr_inodes=40'],
]) {
  test(`${what} is left on the store's disk for the first call`, asRoot, async () => {
    const small = join(world.root, `small-${newMarker()}`);
    mkdirSync(small);
    execFileSync('mount', ['-t', 'tmpfs', '-o', `mode=755,${mount}`, 'none', small]);
    const { exited } = host(
      `${AT_HAND}
      const small = ${JSON.stringify(small)};
      const fill = () => { let count = 0; try { for (;;) { const fd = fs.openSync(small + '/filler' + count++, 'w'); fs.writeSync(fd, Buffer.alloc(65536, 1)); fs.closeSync(fd); } } catch {} return count; };
      const count = fill();
      const answers = [await call()];
      for (let i = 0; i < count; i++) fs.rmSync(small + '/filler' + i, { force: true });
      answers.push(await call());
      say({ answers, tier: await inForce() });
      process.exit(0);`,
      { env: { AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR: small } }
    );
    try {
      assertSafe(await exited);
    } finally {
      spawnSync('umount', ['-l', small]);
    }
  });
}

test('register has the tier said, once', options, async () => {
  const register = pathToFileURL(join(ROOT, 'register.js')).href;
  const { exited } = host(
    `${AT_HAND}
    const told = [];
    rest.setLogger({ level: 'info', info: ({ tier }, text) => text === 'Isolation is in force' && told.push(tier) });
    const answers = [await call(), await call()];
    say({ answers, tier: await inForce(), told });
    process.exit(0);`,
    { nodeArgs: ['--import', register], env: { NODE_DEBUG: 'native-sandbox-executor' } }
  );
  const ended = await exited;
  assertSafe(ended);
  assert.deepEqual(ended.said[0].told, [tier]);
  assert.equal(ended.err.split('functions run with the tier').length, 2, ended.err);
});

/** In a host: kills every launcher of it for as long as it is told to. */
const KILLS = `
  const launchers = () => {
    const found = [];
    for (const id of fs.readdirSync('/proc')) {
      if (!/^\\d+$/.test(id)) continue;
      try {
        const parent = fs.readFileSync('/proc/' + id + '/stat', 'latin1').split(') ').at(-1).split(' ')[1];
        if (parent === String(process.pid) && /launcher/.test(fs.readFileSync('/proc/' + id + '/cmdline', 'latin1'))) found.push(Number(id));
      } catch {}
    }
    return found;
  };
  let killed = 0;
  const killing = (until) => (async () => { while (!until()) { for (const pid of launchers()) { try { process.kill(pid, 'SIGKILL'); killed++; } catch {} } await sleep(2); } })();
`;

test('the launcher is killed again and again while the machine is looked at', options, async () => {
  const { exited } = host(`${AT_HAND} ${KILLS}
    let over = false;
    const killer = killing(() => over);
    const answers = [await call(), await call()];
    over = true;
    await killer;
    await sleep(6000);
    answers.push(await call());
    say({ answers, tier: await inForce(), killed });
    process.exit(0);`);
  const ended = await exited;
  assert.ok(ended.said[0]?.killed > 0, `control: none was killed ${ended.err}`);
  assertSafe(ended);
});

test('the launcher is killed between the look at the machine and a call', options, async () => {
  const { exited } = host(`${AT_HAND} ${KILLS}
    await inForce();
    for (const pid of launchers()) { process.kill(pid, 'SIGKILL'); killed++; }
    const answers = [await call(), await call()];
    say({ answers, tier: await inForce(), killed });
    process.exit(0);`);
  const ended = await exited;
  assert.equal(ended.said[0]?.killed, 1, ended.err);
  assertSafe(ended);
});

/** This package in a folder of its own; `change` gets the paths of launcher and zygote library there. */
function copyOf(change) {
  const folder = join(world.root, `copy-${newMarker()}`);
  mkdirSync(folder, { recursive: true });
  for (const name of readdirSync(ROOT)) {
    if (/\.node$/.test(name)) linkOrCopy(join(ROOT, name), join(folder, name));
    else if (/^(launcher|zygote)\..*-/.test(name)) cpSync(join(ROOT, name), join(folder, name));
    else if (/^(index\.js|binding\.cjs|package\.json|lib)$/.test(name))
      cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  }
  const part = (name) =>
    join(
      folder,
      readdirSync(folder).find((file) => file.startsWith(`${name}.`))
    );
  change?.({ launcher: part('launcher'), zygote: part('zygote'), folder });
  return folder;
}

const REMOVED = ({ launcher, zygote }) => {
  for (const file of [launcher, zygote]) spawnSync('rm', [file]);
};

/** A server with that copy: waits for a forked call. */
const withCopy = (folder, more = '') => `
  import fs from 'node:fs';
  const { NativeSandboxExecutor, isolationReport } = await import(${JSON.stringify(pathToFileURL(join(folder, 'index.js')).href)});
  const executor = new NativeSandboxExecutor(JSON.parse(process.env.OPTIONS ?? '{}'));
  const config = { description: '', inputSchema: {}, dependencies: {}, executeCode: ${JSON.stringify(READ)}, sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 10000 } };
  const call = () => executor.executeFunctionTool('t', { secret: ${JSON.stringify(secret)} }, config).catch(({ code, message }) => code + ': ' + message);
  const answers = [await call()];
  const forked = () => executor.getMetrics().counters.workers.zygote > 0;
  for (const end = Date.now() + 20000; ${FORKS} && !/:/.test(answers[0]) && process.env.OPTIONS === undefined && !forked() && Date.now() < end; ) answers[1] = await call();
  ${more}
  process.stdout.write(JSON.stringify({ answers, tier: (await isolationReport()).tier, forked: forked(), withoutLauncher: executor.getMetrics().withoutLauncher }) + '\\n');
  await executor.cleanup();
  process.exit(0);`;

for (const [what, change] of [
  ['missing', REMOVED],
  ['not executable', ({ launcher }) => chmodSync(launcher, 0o644)],
  [
    'not whole',
    ({ launcher, zygote }) => {
      for (const file of [launcher, zygote]) writeFileSync(file, 'half of it');
    },
  ],
]) {
  test(
    `a copy of the package whose launcher and zygote library are ${what} has all of the isolation, and forks`,
    options,
    async () => {
      const ended = await host(withCopy(copyOf(change)), { bare: true }).exited;
      assertSafe(ended);
      const { forked, withoutLauncher } = ended.said[0];
      assert.deepEqual({ forked, withoutLauncher }, { forked: FORKS, withoutLauncher: null }, JSON.stringify(ended));
    }
  );
}

test('a copy of the package on a file system from which no program may be run', asRoot, async () => {
  const place = join(world.root, `noexec-${newMarker()}`);
  mkdirSync(place);
  execFileSync('mount', ['--bind', copyOf(), place]);
  execFileSync('mount', ['-o', 'remount,bind,noexec,ro', place]);
  // Node maps code of an addon, so that one has to lie elsewhere.
  try {
    const env = {
      NAPI_RS_NATIVE_LIBRARY_PATH: join(
        ROOT,
        readdirSync(ROOT).find((name) => name.endsWith('.node'))
      ),
    };
    const ended = await host(withCopy(place), { bare: true, env }).exited;
    assertSafe(ended);
  } finally {
    spawnSync('umount', ['-l', place]);
  }
});

/** Runs a host where no program runs from memory either: then there is no way to a launcher. */
const NOEXEC = '/proc/sys/vm/memfd_noexec';
const noMemory = { ...asRoot, skip: asRoot.skip || (!existsSync(NOEXEC) && 'needs Linux 6.3') };

function withoutLauncher(env = {}) {
  const folder = copyOf(REMOVED);
  const file = join(folder, 'server.mjs');
  writeFileSync(file, withCopy(folder));
  const script = `echo 2 > ${NOEXEC} && exec "$0" "$@"`;
  const args = ['-p', '-f', '--mount-proc', 'sh', '-c', script, process.execPath, file];
  const { stdout, stderr } = spawnSync('unshare', args, {
    encoding: 'utf8',
    env: { ...process.env, ...env },
    timeout: 60_000,
  });
  assert.ok(stdout, stderr);
  return { told: JSON.parse(stdout), stderr };
}

test('without any launcher calls are rejected, with the remedy, and one line on stderr says so', noMemory, () => {
  const { told, stderr } = withoutLauncher();
  assert.match(told.answers[0], /^ISOLATION_UNAVAILABLE: .*launcher.*Install the package whole.*require: "base"/);
  assert.equal(told.tier, 'base', 'the report says what is left');
  assert.match(told.withoutLauncher, /launcher/);
  assert.equal(
    stderr.split('\n').filter((line) => line.startsWith('native-sandbox-executor: ISOLATION_UNAVAILABLE')).length,
    1,
    stderr
  );
});

test('the tier base, required by name, accepts that', noMemory, () => {
  for (const env of [
    { AGENTS_FUNCTION_TOOL_SANDBOX_ISOLATION: 'base' },
    { OPTIONS: '{"isolation":{"require":"base"}}' },
  ]) {
    const { told, stderr } = withoutLauncher(env);
    assert.equal(told.answers[0], 'read', JSON.stringify(told));
    assert.equal(told.tier, 'base');
    assert.doesNotMatch(stderr, /ISOLATION_UNAVAILABLE/);
  }
});

test('where a logger is set, nothing is written to stderr', noMemory, () => {
  const folder = copyOf(REMOVED);
  const file = join(folder, 'server.mjs');
  const told = `const { setLogger } = await import('./index.js'); setLogger({ error(fields, text) { if (fields.code) console.log(JSON.stringify([fields.code, text])); } });`;
  writeFileSync(file, `${told} ${withCopy(folder)}`);
  const script = `echo 2 > ${NOEXEC} && exec "$0" "$@"`;
  const found = spawnSync('unshare', ['-p', '-f', '--mount-proc', 'sh', '-c', script, process.execPath, file], {
    encoding: 'utf8',
    timeout: 60_000,
  });
  assert.equal(found.stderr, '');
  assert.deepEqual(JSON.parse(found.stdout.split('\n')[0]), [
    'ISOLATION_UNAVAILABLE',
    'Calls are rejected: isolation is not available',
  ]);
});
