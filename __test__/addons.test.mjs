// The library that a zygote has preloaded is nothing to addons: they find their own functions, and none of the library's.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { FORKS, ownWorld, RUNGS, surface, tool, until } from './helpers.mjs';
import { useRegistry } from './registry.mjs';

const COMPILER = compiler();
const skip = !FORKS ? 'no zygotes here' : COMPILER === undefined && 'needs a compiler of C (cc)';

function compiler() {
  return ['cc', 'gcc', 'clang'].find((name) => {
    try {
      return execFileSync(name, ['--version'], { stdio: 'ignore' }) === null;
    } catch {
      return false;
    }
  });
}

/**
 * An addon that takes the address of its own `napi_register_module_v1` as the dynamic linker gives it: whoever was loaded
 * before and shows a symbol of that name is asked first. It tells whose function it got, and which symbols of the process it sees.
 */
const REGISTERS_BY_SYMBOL = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

typedef void *napi_env;
typedef void *napi_value;
typedef napi_value (*napi_register)(napi_env, napi_value);
struct napi_module {
  int version; unsigned flags; const char *filename; napi_register registers; const char *name; void *private; void *reserved[4];
};
extern void napi_module_register(struct napi_module *);
extern int napi_create_string_utf8(napi_env, const char *, size_t, napi_value *);
extern int napi_get_boolean(napi_env, _Bool, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);

static void tell(napi_env env, napi_value exports, const char *name, const char *text) {
  napi_value value;
  napi_create_string_utf8(env, text, strlen(text), &value);
  napi_set_named_property(env, exports, name, value);
}

static const char *owner(void *address) {
  Dl_info info;
  if (address == NULL) return "nobody";
  return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "unknown";
}

/* The names that an object shows, by the table in which the dynamic linker looks for them. */
static void shown(void *address, char *to, size_t size) {
  Dl_info info;
  struct link_map *map = NULL;
  const ElfW(Sym) *symbols = NULL;
  const char *names = NULL;
  const unsigned *hash = NULL;
  to[0] = 0;
  if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || map == NULL) return;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) names = (const char *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_GNU_HASH) hash = (const unsigned *)entry->d_un.d_ptr;
  }
  if (symbols == NULL || names == NULL || hash == NULL) return;
  unsigned count = hash[0], offset = hash[1], bloom = hash[2];
  const unsigned *buckets = hash + 4 + bloom * (sizeof(size_t) / sizeof(unsigned)), *chain = buckets + count;
  for (unsigned bucket = 0; bucket < count; bucket++) {
    for (unsigned at = buckets[bucket]; at != 0; at++) {
      const char *name = names + symbols[at].st_name;
      if (strlen(to) + strlen(name) + 2 < size) strcat(strcat(to, name), ",");
      if (chain[at - offset] & 1) break;
    }
  }
}

__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  tell(env, exports, "transformSync", "mine");
  tell(env, exports, "registrar", owner(dlsym(RTLD_DEFAULT, "napi_register_module_v1")));
  static char names[65536];
  void *first = dlsym(RTLD_DEFAULT, "getrandom");
  tell(env, exports, "first", owner(first));
  shown(first, names, sizeof names);
  tell(env, exports, "shown", names);
  return exports;
}

static struct napi_module module = {1, 0, "own", NULL, "own", NULL, {NULL}};

__attribute__((constructor)) static void loaded(void) {
  module.registers = napi_register_module_v1;
  napi_module_register(&module);
}
`;

/** The usual way: Node looks for the symbol in the file. */
const REGISTERS_BY_NAME = REGISTERS_BY_SYMBOL.split('__attribute__((constructor))')[0];

function build(source) {
  const folder = mkdtempSync(join(tmpdir(), 'addon-'));
  try {
    writeFileSync(join(folder, 'a.c'), source);
    execFileSync(COMPILER, ['-shared', '-fPIC', '-o', join(folder, 'a.node'), join(folder, 'a.c'), '-ldl']);
    return readFileSync(join(folder, 'a.node'));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const LIBRARY = /[^/]*(?:zygote|memfd)[^/]*$/;

let registry;
let executors;
before(async () => {
  if (skip) return;
  ownWorld();
  const files = (source) => ({
    '1.0.0': { 'index.js': `module.exports = require('./a.node');`, 'a.node': build(source) },
  });
  registry = await useRegistry({
    'by-symbol': files(REGISTERS_BY_SYMBOL),
    'by-name': files(REGISTERS_BY_NAME),
    plain: { '1.0.0': { 'index.js': 'module.exports = 1;' } },
  });
  const { NativeSandboxExecutor: Executor } = surface();
  executors = Object.fromEntries(RUNGS.map((start) => [start, new Executor({ start })]));
});
after(async () => {
  for (const executor of Object.values(executors ?? {})) await executor.cleanup();
  await registry?.close();
});

const dependencies = { 'by-symbol': '1.0.0', 'by-name': '1.0.0', plain: '1.0.0' };
const call = (start, code) => executors[start].executeFunctionTool('t', {}, tool(code, { dependencies }));

/** What a text uses is loaded ahead. */
const USED = `const isAhead = Object.keys(require.cache).some((at) => at.includes('/plain/')); [require('plain'), require('by-symbol'), require('by-name')]`;

/** Calls until a worker is forked from a zygote that has loaded the packages. */
const whenForked = () =>
  until(() => call('zygote', `() => { ${USED}; return isAhead; }`), 60_000, 'packages are loaded ahead');

test('an addon that registers itself by its symbol is handed itself', { skip, timeout: 240_000 }, async () => {
  await whenForked();
  for (const start of RUNGS) {
    for (const name of ['by-symbol', 'by-name']) {
      const { at, ...found } = await call(
        start,
        `() => { ${USED}; return { ...require('${name}'), at: Object.keys(require('${name}')).sort() }; }`
      );
      assert.deepEqual(at, ['first', 'registrar', 'shown', 'transformSync'], `${start}, ${name}`);
      assert.equal(found.transformSync, 'mine', `${start}, ${name}`);
      assert.ok(found.registrar.endsWith(`/${name}/a.node`), `${start}, ${name}: ${found.registrar}`);
    }
  }
});

/** Shows a symbol of that name before the addon does, as the library must not. */
const DECOY = `
#include <stddef.h>
extern int napi_create_object(void *, void **);
void *napi_register_module_v1(void *env, void *exports) { void *other; napi_create_object(env, &other); return other; }
`;

test('such an addon is handed whoever shows the symbol before it', { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'addon-'));
  try {
    for (const [name, source] of [
      ['decoy.node', DECOY],
      ['by-symbol.node', REGISTERS_BY_SYMBOL],
    ])
      writeFileSync(join(folder, name), build(source));
    const load = ['-p', `typeof require('${join(folder, 'by-symbol.node')}').transformSync`];
    const told = (env) =>
      execFileSync(process.execPath, load, { env: { ...process.env, ...env }, encoding: 'utf8' }).trim();
    assert.equal(told({}), 'string');
    assert.equal(told({ LD_PRELOAD: join(folder, 'decoy.node') }), 'undefined');
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

/** All ways by which a function asks Node for the library that its zygote has in memory. */
const ASKS = `() => {
  try { require('plain'), require('by-symbol'), require('by-name'); } catch {}
  const fs = require('fs');
  const paths = new Set(['/proc/self/fd/3', '/proc/self/fd/4', process.argv[1] ?? '']);
  for (const line of fs.readFileSync('/proc/self/maps', 'utf8').split('\\n')) {
    const path = line.split(/\\s+/).slice(5).join(' ');
    if (/zygote|memfd/.test(path)) paths.add(path.replace(/ \\(deleted\\)$/, ''));
    if (/zygote|memfd/.test(path)) paths.add('/proc/self/map_files/' + line.split(' ')[0]);
  }
  const got = {};
  const seen = (how, exports) => {
    const names = Reflect.ownKeys(Object(exports)).map(String);
    if (names.length > 0) got[how] = names;
  };
  for (const path of paths) {
    for (const flags of [undefined, require('os').constants.dlopen.RTLD_NOW | require('os').constants.dlopen.RTLD_GLOBAL]) {
      const module = { exports: {} };
      try {
        flags === undefined ? process.dlopen(module, path) : process.dlopen(module, path, flags);
      } catch {}
      seen('dlopen ' + path, module.exports);
    }
    try { seen('require ' + path, require(path)); } catch {}
  }
  for (const name of ['native_sandbox_zygote', 'own', 'a', '']) {
    try { seen('linked ' + name, process._linkedBinding(name)); } catch {}
    try { seen('binding ' + name, process.binding(name)); } catch {}
  }
  return { got, tried: paths.size, maps: [...paths] };
}`;

test("no function gets at the zygote's own functions through process.dlopen", { skip, timeout: 240_000 }, async () => {
  await whenForked();
  for (const start of RUNGS) {
    const { got, maps } = await call(start, ASKS);
    assert.deepEqual(got, {}, `${start}: ${maps}`);
  }
  // Without packages the worker is a child of the base zygote.
  const { got } = await executors.zygote.executeFunctionTool('t', {}, tool(ASKS));
  assert.deepEqual(got, {});
});

/** What the library stands in front of, as packages that take them at load are noticed, and memory is placed by it. */
const ANSWERED = [
  'access',
  'arc4random',
  'arc4random_buf',
  'arc4random_uniform',
  'clock_gettime',
  'fopen',
  'fopen64',
  'getcwd',
  'getentropy',
  'getenv',
  'getrandom',
  'gettimeofday',
  'mmap',
  'mmap64',
  'open',
  'open64',
  'openat',
  'openat64',
  'opendir',
  'readlink',
  'realpath',
  'scandir',
  'scandir64',
  'statx',
  'syscall',
  'time',
];

test("the library shows functions of the C library, and none of a name of Node's", {
  skip,
  timeout: 240_000,
}, async () => {
  await whenForked();
  const { first, shown } = await call('zygote', `() => { ${USED}; return require('by-name'); }`);
  assert.match(first, LIBRARY, 'where the library is preloaded it is asked first');
  assert.deepEqual(shown.split(',').filter(Boolean).sort(), ANSWERED);
});
