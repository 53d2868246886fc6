// Files of a call: those that it is given before its function starts, and those that it hands over when it has returned.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { after, before, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { ownWorld, ROOT, RUNGS, rejection, surface, tool, until } from './helpers.mjs';

const LIMIT = { timeout: 180_000 };
const MIB = 1024 * 1024;

let world;
before(() => {
  world = ownWorld();
});
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const newFolder = () => mkdtempSync(join(world.tmp, 'files-'));
const digest = (bytes) => createHash('sha256').update(bytes).digest('hex');

/** All files below a folder, with their contents; nothing else may be there. */
function contents(folder) {
  const found = {};
  for (const entry of readdirSync(folder, { withFileTypes: true, recursive: true })) {
    if (entry.isDirectory()) continue;
    const path = join(entry.parentPath, entry.name);
    assert.ok(entry.isFile(), `${path} is no regular file`);
    found[path.slice(folder.length + 1)] = readFileSync(path, 'utf8');
  }
  return found;
}

/** A function that hands its own script's frames aside and sends frames of its own: `frames` are of type and text. */
const forging = (frames, result = '1') => `async () => {
  const { writeSync } = require('node:fs');
  const frame = (type, text) => { const b = Buffer.from(text); const h = Buffer.alloc(5); h.writeUInt32LE(b.length); h[4] = type; writeSync(3, Buffer.concat([h, b])); };
  frame(18, ${JSON.stringify(result)});
  for (const [type, text] of ${JSON.stringify(frames)}) frame(type, text);
  await new Promise((r) => setTimeout(r, 5000)); }`;

for (const start of RUNGS) {
  describe(`on the rung ${start}`, LIMIT, () => {
    let factory;
    before(() => {
      factory = new (surface().SandboxExecutorFactory)({ start });
    });
    after(() => factory.cleanup());

    const call = (code, options, args = {}, over) =>
      factory.executeFunctionTool('files', args, tool(code, over), options);

    test('files of every kind are in the working folder before the function starts', async () => {
      const own = join(newFolder(), 'own.txt');
      writeFileSync(own, 'of the host');
      const files = {
        'in/text.txt': 'grüße 🎉',
        'in/buffer.bin': Buffer.from([0, 1, 2, 255]),
        'in/bytes.bin': new Uint8Array([5, 6]).subarray(1),
        'in/view.bin': new DataView(Uint8Array.of(7, 8).buffer),
        'in/path.txt': { path: own },
        'in/url.txt': { path: pathToFileURL(own) },
        'stream.txt': Readable.from(['a', Buffer.from('b'), new Uint8Array([99])]),
        'web.txt': new Blob(['we', 'b']).stream(),
        'blob.txt': new Blob(['blob']),
        'generator.txt': (async function* () {
          yield 'x';
          await delay(5);
          yield 'y';
        })(),
        empty: '',
        'empty stream': Readable.from([]),
        'a/b/c/ü 日本.txt': 'deep',
      };
      const code = `() => { const fs = require('node:fs'); const found = {};
        for (const e of fs.readdirSync('.', { recursive: true, withFileTypes: true })) if (e.isFile()) { const p = require('node:path').join(e.parentPath, e.name); found[p] = fs.readFileSync(p, 'latin1'); }
        return found; }`;
      const latin1 = (text) => Buffer.from(text).toString('latin1');
      assert.deepEqual(await call(code, { files }), {
        'in/text.txt': latin1('grüße 🎉'),
        'in/buffer.bin': '\0\x01\x02\xff',
        'in/bytes.bin': '\x06',
        'in/view.bin': '\x07\x08',
        'in/path.txt': 'of the host',
        'in/url.txt': 'of the host',
        'stream.txt': 'abc',
        'web.txt': 'web',
        'blob.txt': 'blob',
        'generator.txt': 'xy',
        empty: '',
        'empty stream': '',
        'a/b/c/ü 日本.txt': 'deep',
      });
    });

    test('a module and a script both find them', async () => {
      const files = { 'data.json': '{"a":1}' };
      assert.equal(
        await call(
          'import fs from "node:fs"; export default () => JSON.parse(fs.readFileSync("data.json", "utf8")).a',
          { files }
        ),
        1
      );
      assert.deepEqual(await call('() => require("./data.json")', { files }), { a: 1 });
    });

    test('large files of all kinds arrive whole, and no pair of halves is torn', async () => {
      const bytes = randomBytes(3 * MIB + 17);
      const own = join(newFolder(), 'own.bin');
      writeFileSync(own, bytes);
      const text = `x${'🎉'.repeat(200_000)}`;
      const files = {
        a: bytes,
        b: { path: own },
        c: Readable.from([bytes.subarray(0, 5), bytes.subarray(5)]),
        d: text,
      };
      const code = `() => ['a', 'b', 'c', 'd'].map((f) => require('node:crypto').createHash('sha256').update(require('node:fs').readFileSync(f)).digest('hex'))`;
      const all = digest(bytes);
      assert.deepEqual(await call(code, { files }), [all, all, all, digest(text)]);
    });

    test('a file that leaves no room is DISK_LIMIT, before the function starts', async () => {
      const ran = join(newFolder(), 'ran');
      const files = { 'in/big': Readable.from(Array.from({ length: 64 }, () => Buffer.alloc(MIB))) };
      const error = await rejection(
        call(`() => require('node:fs').writeFileSync(${JSON.stringify(ran)}, '1')`, { files, limits: { diskMb: 8 } })
      );
      assert.equal(error.code, 'DISK_LIMIT', error.message);
      assert.equal(existsSync(ran), false);
      assert.equal(files['in/big'].destroyed, true);
    });

    test('an error of a stream rejects before the function starts, with the error as its cause', async () => {
      const broken = new Readable({ read() {} });
      broken.push('some');
      setTimeout(() => broken.destroy(new RangeError('the source broke')), 20);
      const other = Readable.from(['a']);
      const error = await rejection(call('() => { throw new Error("ran") }', { files: { broken, other } }));
      assert.equal(error.code, 'FILES_FAILED');
      assert.equal(error.phase, 'start');
      assert.match(error.message, /files\["broken"\] cannot be read: the source broke/);
      assert.equal(error.cause.name, 'RangeError');
      assert.equal(other.destroyed, true);
    });

    test('a stream that ends early, one of objects, and one that broke before its turn are errors', async () => {
      const short = new Readable({ read() {} });
      setTimeout(() => short.destroy(), 20);
      const objects = Readable.from([{ a: 1 }]);
      const early = new Readable({ read() {} }).on('error', () => {});
      early.destroy(new Error('broke before'));
      for (const [stream, message] of [
        [short, /remature|closed/i],
        [objects, /the stream gave an object, where bytes or a text were due/],
      ]) {
        const error = await rejection(call('() => 1', { files: { a: stream } }));
        assert.equal(error.code, 'FILES_FAILED');
        assert.match(error.message, message);
      }
      const error = await rejection(call('() => 1', { files: { a: early } }));
      assert.equal(error.code, 'INVALID_CONFIG');
      assert.match(error.message, /read, destroyed or locked already/);
    });

    test('a source that stalls is ended by the call’s time, before the function starts', async () => {
      const stalled = new Readable({ read() {} });
      const error = await rejection(
        call('() => { throw new Error("ran") }', { files: { stalled } }, {}, { sandbox: { timeout: 700 } })
      );
      assert.equal(error.code, 'TIMEOUT');
      assert.equal(stalled.destroyed, true);
    });

    test('an aborted call destroys the streams', async () => {
      const aborter = new AbortController();
      const endless = new Readable({
        read() {
          setTimeout(() => this.push('x'), 5);
        },
      });
      const cancelled = Promise.withResolvers?.();
      const web = new ReadableStream({
        pull: () => new Promise(() => {}),
        cancel: () => cancelled?.resolve(true),
      });
      setTimeout(() => aborter.abort(), 300);
      const error = await rejection(call('() => 1', { files: { endless, web }, signal: aborter.signal }));
      assert.equal(error.code, 'ABORTED');
      assert.equal(endless.destroyed, true);
      if (cancelled) assert.equal(await cancelled.promise, true);
      assert.equal(await call('() => 1', {}), 1);
    });

    test('with packages loaded ahead, and beside host functions, yields and variables', async () => {
      const files = { 'in/n': '20' };
      const functions = { add: (n) => n + 1 };
      const got = [];
      const code = `async function* f(a, { host }) { const n = Number(require('node:fs').readFileSync('in/n', 'utf8')); yield n; return (await host.add(n)) + Number(process.env.MORE); }`;
      const options = { files, functions, env: { MORE: '21' }, onYield: (value) => got.push(value) };
      assert.equal(await call(code, options), 42);
      assert.deepEqual(got, [20]);
    });

    const write = (files) =>
      `() => { const fs = require('node:fs'), path = require('node:path'); for (const [name, text] of Object.entries(${JSON.stringify(files)})) { fs.mkdirSync(path.dirname(name), { recursive: true }); fs.writeFileSync(name, text); } return 'done'; }`;

    test('files that match are in the folder when the promise settles', async () => {
      const into = newFolder();
      const made = {
        'out/a.txt': 'a',
        'out/deep/er/ü 日本.txt': 'deep',
        'out/.hidden': 'h',
        'out/empty': '',
        'other.txt': 'no',
      };
      assert.equal(await call(write(made), { collect: { match: ['out/**'], into } }), 'done');
      const { 'other.txt': _, ...wanted } = made;
      assert.deepEqual(contents(into), wanted);
      assert.deepEqual(readdirSync(into), ['out']);
    });

    test('a pattern by itself, several of them, and a folder that is not there yet', async () => {
      const into = join(newFolder(), 'new', 'er');
      const made = { 'a.csv': '1', 'b.json': '2', 'c.txt': '3', 'sub/d.csv': '4' };
      await call(write(made), { collect: { match: ['*.{csv,json}', 'sub/d.csv'], into } });
      assert.deepEqual(contents(into), { 'a.csv': '1', 'b.json': '2', 'sub/d.csv': '4' });
      await call(write(made), { collect: { match: 'c.txt', into } });
      assert.equal(readFileSync(join(into, 'c.txt'), 'utf8'), '3');
      await call('() => 1', { collect: { match: 'nothing/**', into } });
    });

    test('onFile gets path, size and a stream of each, one after the other, before the promise settles', async () => {
      const got = [];
      let busy = 0;
      const onFile = async ({ path, size, stream }) => {
        busy += 1;
        assert.equal(busy, 1, 'one at a time');
        const chunks = [];
        for await (const chunk of stream) chunks.push(chunk);
        await delay(5);
        got.push([path, size, Buffer.concat(chunks).toString()]);
        busy -= 1;
      };
      await call(write({ 'out/b': 'bb', 'out/a': 'a', 'out/empty': '' }), { collect: { match: ['out/*'], onFile } });
      assert.deepEqual(got, [
        ['out/a', 1, 'a'],
        ['out/b', 2, 'bb'],
        ['out/empty', 0, ''],
      ]);
    });

    test('a stream that is piped without being awaited is handed over whole; one that nobody reads is left out', async () => {
      const folder = newFolder();
      const { createWriteStream } = await import('node:fs');
      const seen = [];
      const onFile = ({ path, stream }) => {
        seen.push(path);
        if (path === 'out/b') stream.pipe(createWriteStream(join(folder, 'b')));
      };
      const code = `() => { const fs = require('node:fs'); fs.mkdirSync('out'); for (const n of 'abc') fs.writeFileSync('out/' + n, n.repeat(1e6)); }`;
      await call(code, { collect: { match: 'out/*', onFile } });
      assert.deepEqual(seen, ['out/a', 'out/b', 'out/c']);
      await until(() => lstatSync(join(folder, 'b')).size === 1e6, 5000, 'the copy');
    });

    test('what onFile throws rejects the call, as its cause', async () => {
      for (const onFile of [
        () => {
          throw new RangeError('no room');
        },
        async ({ stream }) => {
          for await (const _ of stream) throw new RangeError('no room');
        },
        async ({ stream }) => {
          stream.destroy(new RangeError('no room'));
        },
      ]) {
        const error = await rejection(
          call(write({ 'out/a': 'a'.repeat(300_000) }), { collect: { match: '**', onFile } })
        );
        assert.equal(error.code, 'FILES_FAILED', error.message);
        assert.equal(error.phase, 'result');
        assert.match(error.message, /onFile failed for "out\/a": no room/);
        assert.equal(error.cause.name, 'RangeError');
      }
    });

    test('links, FIFOs, sockets and what is behind them are not collected', async () => {
      const into = newFolder();
      const code = `() => { const fs = require('node:fs'), cp = require('node:child_process'); fs.mkdirSync('out');
        fs.writeFileSync('out/real', 'real'); fs.symlinkSync('/etc/passwd', 'out/link'); fs.symlinkSync('/etc', 'out/folder'); fs.symlinkSync('real', 'out/inner'); fs.symlinkSync('out', 'again');
        try { cp.execFileSync('mkfifo', ['out/fifo']); } catch {} return fs.readdirSync('out').length; }`;
      assert.ok((await call(code, { collect: { match: ['**'], into } })) >= 4);
      assert.deepEqual(contents(into), { 'out/real': 'real' });
    });

    test('a function that throws hands over nothing', async () => {
      const into = newFolder();
      const code = `() => { require('node:fs').writeFileSync('a', 'a'); throw new Error('no'); }`;
      assert.equal((await rejection(call(code, { collect: { match: '**', into } }))).code, 'TOOL_ERROR');
      assert.deepEqual(readdirSync(into), []);
    });

    test('too many, and too large, files are refused, and nothing of them is left', async () => {
      const into = newFolder();
      const left = async () => {
        await until(() => readdirSync(into).length === 0, 5000, 'nothing is left');
      };
      const many = `() => { const fs = require('node:fs'); fs.mkdirSync('out'); for (let i = 0; i < 10_000; i++) fs.writeFileSync('out/' + i, 'x'); }`;
      const patient = { sandbox: { timeout: 90_000 } };
      let error = await rejection(call(many, { collect: { match: 'out/**', into } }, {}, patient));
      assert.equal(error.code, 'OUTPUT_LIMIT');
      assert.match(error.message, /more than 100 files match.*collect\.maxFiles/);
      await left();
      const sparse = `() => { const fs = require('node:fs'); fs.mkdirSync('out'); fs.writeFileSync('out/a', 'a'); fs.writeFileSync('out/z', ''); try { fs.truncateSync('out/z', 2 ** 30); } catch { fs.truncateSync('out/z', 2 ** 27); } }`;
      error = await rejection(call(sparse, { collect: { match: 'out/**', into } }));
      assert.equal(error.code, 'OUTPUT_LIMIT');
      assert.match(error.message, /more than 67108864 bytes together, with "out\/z".*collect\.maxBytes/);
      await left();
      error = await rejection(call(write({ a: '12345', b: '6' }), { collect: { match: '*', into, maxBytes: 5 } }));
      assert.equal(error.code, 'OUTPUT_LIMIT');
      await call(write({ a: '12345' }), { collect: { match: '*', into, maxBytes: 5, maxFiles: 1 } });
      assert.deepEqual(contents(into), { a: '12345' });
    });

    test('a name with a newline that matches is an error that shows it; one that does not match is nobody’s concern', async () => {
      const into = newFolder();
      const code = `() => { const fs = require('node:fs'); fs.writeFileSync('a\\nb', '1'); fs.writeFileSync('good', '2'); }`;
      const error = await rejection(call(code, { collect: { match: '**', into } }));
      assert.equal(error.code, 'FILES_FAILED');
      assert.match(error.message, /the path "a\\nb" has a control character/);
      await until(() => readdirSync(into).length === 0, 5000, 'nothing is left');
      await call(code, { collect: { match: 'good', into } });
      assert.deepEqual(contents(into), { good: '2' });
    });

    test('a name that is no UTF-8, and a folder that cannot be read, are errors', async () => {
      const odd = `() => { const fs = require('node:fs'); fs.writeFileSync(Buffer.from([0x61, 0xff]), '1'); }`;
      let error = await rejection(call(odd, { collect: { match: '**', into: newFolder() } }));
      assert.equal(error.code, 'FILES_FAILED');
      assert.match(error.message, /cannot be read/);
      const deep = `() => { const fs = require('node:fs'); fs.mkdirSync('d/'.repeat(70), { recursive: true }); }`;
      error = await rejection(call(deep, { collect: { match: '**', into: newFolder() } }));
      assert.equal(error.code, 'FILES_FAILED');
      assert.match(error.message, /more than 64 folders deep/);
    });

    test('the function’s own module is none of its files', async () => {
      const into = newFolder();
      const code = 'import fs from "node:fs"; export default () => fs.writeFileSync("mine.mjs", "1")';
      await call(code, { collect: { match: '**', into } });
      assert.deepEqual(contents(into), { 'mine.mjs': '1' });
    });

    test('what goes in can come out, beside answers of host functions that nobody waits for', async () => {
      const into = newFolder();
      const bytes = randomBytes(5 * MIB + 3);
      const functions = { slow: () => delay(20), now: () => 1 };
      const code = `async (a, { host }) => { for (let i = 0; i < 20; i++) host.slow().catch(() => {}); await host.now(); require('node:fs').renameSync('in', 'out'); }`;
      await call(code, { files: { 'in/f': bytes }, collect: { match: 'out/f', into }, functions });
      assert.equal(digest(readFileSync(join(into, 'out/f'))), digest(bytes));
    });

    test('forged frames harm only the call that sends them, and nothing leaves the folder', async () => {
      const outer = newFolder();
      const into = join(outer, 'into');
      mkdirSync(into);
      const end = [32, '[]'];
      const name = (path, more = []) => [[32, JSON.stringify([[path, 1]])], end, ...more];
      const long = 'x'.repeat(2000);
      for (const [frames, code, message] of [
        [
          name('../evil', [
            [33, '{"bytes":1}'],
            [34, 'x'],
          ]),
          'FILES_FAILED',
          /has the part "\.\."/,
        ],
        [name('/etc/evil'), 'FILES_FAILED', /is absolute/],
        [name('a//b'), 'FILES_FAILED', /has an empty part/],
        [name('./a'), 'FILES_FAILED', /has the part "\."/],
        [name('a\0b'), 'FILES_FAILED', /control character/],
        [name(''), 'FILES_FAILED', /is empty/],
        [name(long), 'FILES_FAILED', /at most 1024/],
        [name(`${'d/'.repeat(40)}x`), 'FILES_FAILED', /levels/],
        [[[32, '[["a",1],["a",1]]'], end], 'TOOL_ERROR', /one file twice/],
        [[[32, '[["a",1e30]]'], end], 'TOOL_ERROR', /bad payload/],
        [[[32, '[["a",-1]]'], end], 'TOOL_ERROR', /bad payload/],
        [[[32, '[["a",18446744073709551615],["b",5]]'], end], 'OUTPUT_LIMIT', /collect\.maxBytes/],
        [[[34, 'x']], 'TOOL_ERROR', /a piece of no file/],
        [[[33, '{"bytes":1}']], 'TOOL_ERROR', /a piece of no file/],
        [
          name('a', [
            [33, '{"bytes":1}'],
            [34, 'xx'],
          ]),
          'TOOL_ERROR',
          /more of a file than it has/,
        ],
        [name('a', [[33, '{"bytes":99999999999}']]), 'OUTPUT_LIMIT', /collect\.maxBytes/],
        [
          name('a', [
            [33, '{"bytes":5}'],
            [34, ''],
          ]),
          'TOOL_ERROR',
          /a piece of no file/,
        ],
        [name('a', [[33, '{"bytes":5}'], [34, 'x'], end]), 'TOOL_ERROR', /a piece of no file/],
        [name('a', [[35, '{"path":"../\\u001b[2J","reason":"\\u001b[2J"}']]), 'FILES_FAILED', /cannot be read/],
        [[[34, 'x'.repeat(200_000)]], 'TOOL_ERROR', /at most 131072/],
      ]) {
        const error = await rejection(call(forging(frames), { collect: { match: '**', into } }));
        assert.equal(error.code, code, `${JSON.stringify(frames).slice(0, 200)}: ${error.message}`);
        assert.match(error.message, message);
      }
      await until(() => readdirSync(into).length === 0, 5000, 'nothing is left');
      assert.deepEqual(readdirSync(outer), ['into']);
      for (const frame of [
        [32, '[]'],
        [34, 'x'],
      ]) {
        const error = await rejection(
          call(forging([frame]).replace('frame(18', 'void (18'), { collect: { match: '**', into } })
        );
        assert.match(error.message, /files before its result/);
      }
      // Without `collect` there are no such frames.
      assert.equal(
        (await rejection(call(forging([[32, '[]']]).replace('frame(18', 'void (18'), {}))).code,
        'TOOL_ERROR'
      );
    });

    test('a function that never hands over what it listed is ended by its time', async () => {
      const into = newFolder();
      const error = await rejection(
        call(
          forging([
            [32, '[["a",1]]'],
            [32, '[]'],
          ]),
          { collect: { match: '**', into } },
          {},
          { sandbox: { timeout: 800 } }
        )
      );
      assert.equal(error.code, 'TIMEOUT');
      assert.match(error.message, /The function had returned, and its files were being collected/);
      await until(() => readdirSync(into).length === 0, 5000, 'nothing is left');
    });

    test('a call that is aborted while its files are handed over leaves nothing, and its stream fails', async () => {
      const aborter = new AbortController();
      let failed;
      const onFile = async ({ stream }) => {
        setTimeout(() => aborter.abort(), 50);
        await delay(200);
        await stream.toArray().catch((error) => {
          failed = error;
        });
      };
      const code = write({ a: 'a'.repeat(2_000_000) });
      const error = await rejection(call(code, { collect: { match: '**', onFile }, signal: aborter.signal }));
      assert.equal(error.code, 'ABORTED');
      await until(() => failed, 5000, 'the stream fails');
    });

    test('nothing of the caller’s is replaced, no link of the caller’s is followed, and of a failed call nothing stays', async () => {
      const into = newFolder();
      const elsewhere = newFolder();
      writeFileSync(join(into, 'b'), 'mine');
      let error = await rejection(call(write({ a: '1', b: '2', 'c/d': '3' }), { collect: { match: '**', into } }));
      assert.equal(error.code, 'FILES_FAILED');
      assert.match(error.message, /"b" exists in .* already, and nothing is replaced/);
      await until(() => readdirSync(into).length === 1, 5000, 'only what was there is left');
      assert.deepEqual(contents(into), { b: 'mine' });
      symlinkSync(elsewhere, join(into, 'link'));
      error = await rejection(call(write({ 'link/x': '1' }), { collect: { match: '**', into } }));
      assert.equal(error.code, 'FILES_FAILED');
      assert.match(error.message, /a link or a file/);
      symlinkSync(join(elsewhere, 'x'), join(into, 'dangling'));
      error = await rejection(call(write({ dangling: '1' }), { collect: { match: '**', into } }));
      assert.match(error.message, /exists in/);
      error = await rejection(call(write({ 'b/x': '1' }), { collect: { match: '**', into } }));
      assert.match(error.message, /a link or a file/);
      assert.deepEqual(readdirSync(elsewhere), []);
      mkdirSync(join(into, 'there/is'), { recursive: true });
      await call(write({ 'there/is/x': '1' }), { collect: { match: '**', into } });
      assert.equal(readFileSync(join(into, 'there/is/x'), 'utf8'), '1');
    });
  });
}

describe('what is wrong with files and collect', LIMIT, () => {
  const call = (options, code = 'async () => 1') =>
    surface().SandboxExecutorFactory.getInstance().executeFunctionTool('files', {}, tool(code), options);
  const none = { collect: { match: '**', onFile() {} } };
  const read = new Readable({ read() {} });
  read.destroy();
  const locked = new ReadableStream();
  locked.getReader();

  for (const [options, message] of [
    [{ files: [] }, /files must be an object of paths and contents, got an array/],
    [{ files: { a: 5 } }, /files\["a"\] must be a text, a Buffer.*got 5/],
    [{ files: { a: null } }, /got null/],
    [{ files: { a: {} } }, /got an object/],
    [{ files: { a: { path: 5 } } }, /files\["a"\]\.path must be the path of a file/],
    [{ files: { a: { path: '' } } }, /must be the path of a file/],
    [{ files: { a: { path: 'x\0y' } } }, /NUL/],
    [{ files: { a: { path: '/nowhere/at/all' } } }, /\/nowhere\/at\/all cannot be read/],
    [{ files: { a: { path: '/dev/null' } } }, /no regular file/],
    [{ files: { a: { path: '/' } } }, /no regular file/],
    [{ files: { '../a': '' } }, /has the part "\.\."/],
    [{ files: { '/a': '' } }, /is absolute/],
    [{ files: { 'a/': '' } }, /has an empty part/],
    [{ files: { '': '' } }, /is empty/],
    [{ files: { 'a\nb': '' } }, /control character/],
    [{ files: { a: '', 'a/b': '' } }, /"a" is a file and cannot be the folder of "a\/b" too/],
    [{ files: { a: read } }, /a stream that was read, destroyed or locked already/],
    [{ files: { a: locked } }, /a stream that was read, destroyed or locked already/],
    [{ collect: [] }, /collect must be an object/],
    [{ collect: { match: '**' } }, /either into.*or onFile/],
    [{ collect: { match: '**', into: '/tmp', onFile() {} } }, /either into.*or onFile/],
    [{ collect: { into: '/tmp' } }, /collect\.match must be a pattern/],
    [{ collect: { ...none.collect, match: [] } }, /collect\.match must be a pattern/],
    [{ collect: { ...none.collect, match: [5] } }, /collect\.match\[0\] must be a string/],
    [{ collect: { ...none.collect, match: ['/etc/**'] } }, /is absolute/],
    [{ collect: { ...none.collect, match: ['[a'] } }, /collect\.match/],
    [{ collect: { ...none.collect, maxFiles: 0 } }, /collect\.maxFiles must be a whole number from 1 to 10000/],
    [{ collect: { ...none.collect, maxBytes: 1.5 } }, /collect\.maxBytes must be a whole number/],
    [{ collect: { ...none.collect, max: 1 } }, /collect has no "max"/],
    [{ collect: { match: '**', into: 5 } }, /collect\.into must be the path/],
    [{ collect: { match: '**', into: '/dev/null' } }, /collect\.into: \/dev\/null cannot be made: it is no folder/],
    [{ collect: { match: '**', into: '/proc/nowhere' } }, /collect\.into: \/proc\/nowhere cannot be made/],
    [{ collect: { match: '**', onFile: 5 } }, /onFile must be a function/],
  ]) {
    test(`${message}`, async () => {
      const error = await rejection(call(options));
      assert.equal(error.code, 'INVALID_CONFIG', error.message);
      assert.equal(error.phase, 'validate');
      assert.match(error.message, message);
    });
  }

  test('a link of the host, a module’s own name, and a folder that cannot be written to', async () => {
    const folder = newFolder();
    writeFileSync(join(folder, 'f'), '1');
    symlinkSync('f', join(folder, 'link'));
    const link = await rejection(call({ files: { a: { path: join(folder, 'link') } } }));
    assert.match(link.message, /symbolic link; name the file that it leads to/);
    const own = await rejection(call({ files: { 'index.mjs': '' } }, 'export default () => 1'));
    assert.match(own.message, /own module/);
    if (process.getuid() === 0) return;
    chmodSync(folder, 0o555);
    const closed = await rejection(call({ collect: { match: '**', into: folder } }));
    assert.equal(closed.code, 'INVALID_CONFIG');
    assert.match(closed.message, /cannot be written to/);
  });

  test('streams of a call that is refused are destroyed', async () => {
    const source = Readable.from(['a']);
    await rejection(call({ files: { a: source }, signal: AbortSignal.abort() }));
    assert.equal(source.destroyed, true);
    const other = Readable.from(['a']);
    await rejection(call({ files: { a: other, b: 5 } }));
    assert.equal(other.destroyed, true);
    const third = Readable.from(['a']);
    await rejection(call({ files: { a: third } }, 'this is no function'));
    assert.equal(third.destroyed, true);
  });
});

/** The most memory that this process held while `act` ran, above what it held before, bytes. */
async function growth(act) {
  globalThis.gc?.();
  const before = process.memoryUsage.rss();
  let most = before;
  const timer = setInterval(() => {
    most = Math.max(most, process.memoryUsage.rss());
  }, 5);
  try {
    await act();
  } finally {
    clearInterval(timer);
  }
  return most - before;
}

describe('the host, while large files pass', LIMIT, () => {
  const BYTES = 256 * MIB;
  const big = { sandbox: { timeout: 120_000 } };
  let factory;
  before(() => {
    factory = new (surface().SandboxExecutorFactory)({ diskMb: 1024 });
  });
  after(() => factory.cleanup());
  const call = (code, options) => factory.executeFunctionTool('files', {}, tool(code, big), options);

  test('holds little of them, in and out', async () => {
    const folder = newFolder();
    const own = join(folder, 'own');
    writeFileSync(own, '');
    truncateSync(own, BYTES);
    await call('() => 1', {});
    const code = `() => { const fs = require('node:fs'); const size = fs.statSync('in').size; fs.renameSync('in', 'out'); return size; }`;
    let size;
    const options = { files: { in: { path: own } }, collect: { match: 'out', into: folder, maxBytes: BYTES } };
    const grown = await growth(async () => {
      size = await call(code, options);
    });
    assert.equal(size, BYTES);
    assert.equal(lstatSync(join(folder, 'out')).size, BYTES);
    assert.ok(grown < 64 * MIB, `${Math.round(grown / MIB)} MiB more`);
  });

  test('holds little of them where JavaScript gives and takes them, and a slow one holds the function up', async () => {
    const chunk = Buffer.alloc(MIB);
    let given = 0;
    const source = new Readable({
      read() {
        given += MIB;
        this.push(given > BYTES ? null : chunk);
      },
    });
    let seen = 0;
    const onFile = async ({ size, stream }) => {
      assert.equal(size, BYTES);
      for await (const piece of stream) {
        seen += piece.length;
        if (seen < 3 * MIB) await delay(20);
      }
    };
    const code = `() => { require('node:fs').renameSync('in', 'out'); }`;
    const grown = await growth(() =>
      call(code, { files: { in: source }, collect: { match: 'out', onFile, maxBytes: BYTES } })
    );
    assert.equal(seen, BYTES);
    assert.ok(grown < 128 * MIB, `${Math.round(grown / MIB)} MiB more`);
  });
});

describe('where a provider runs the function', LIMIT, () => {
  const call = (code, options) =>
    surface()
      .SandboxExecutorFactory.getInstance()
      .executeFunctionTool('files', {}, tool(code, { sandbox: { provider: 'files-folders' } }), options);
  before(async () => {
    const { localFolders } = await import('../examples/local-folder-provider.mjs');
    surface().registerProvider('files-folders', localFolders);
  });

  test('files are in the working folder of the call, and of no other', async () => {
    const own = join(newFolder(), 'own');
    writeFileSync(own, 'of the host');
    const files = { 'in/a.txt': 'é', 'in/b': { path: own }, c: Readable.from(['x', 'y']), empty: '' };
    const code = `() => { const fs = require('node:fs'); return ['in/a.txt', 'in/b', 'c', 'empty'].map((name) => fs.existsSync(name) && fs.readFileSync(name, 'utf8')); }`;
    assert.deepEqual(await call(code, { files }), ['é', 'of the host', 'xy', '']);
    assert.deepEqual(await call(code, {}), [false, false, false, false]);
  });

  test('what cannot be had is refused by name, before anything is spent', async () => {
    const link = join(newFolder(), 'link');
    symlinkSync('/etc/passwd', link);
    const large = () => Readable.from(Array.from({ length: 65 }, () => Buffer.alloc(MIB)));
    for (const [options, code, message] of [
      [
        { collect: { match: '**', onFile() {} } },
        'INVALID_CONFIG',
        /collect cannot be had where the provider "files-folders" runs a function/,
      ],
      [{ files: { '../a': '' } }, 'INVALID_CONFIG', /has the part/],
      [{ files: { 'job.json': '' } }, 'INVALID_CONFIG', /a name that the package uses itself where the provider/],
      [{ files: { 'tmp/x': '' } }, 'INVALID_CONFIG', /a name that the package uses itself where the provider/],
      [{ files: { a: { path: '/nowhere/at/all' } } }, 'INVALID_CONFIG', /\/nowhere\/at\/all cannot be read/],
      [{ files: { a: { path: '/dev/zero' } } }, 'INVALID_CONFIG', /no regular file/],
      [{ files: { a: { path: link } } }, 'INVALID_CONFIG', /symbolic link/],
      [{ files: { a: large() } }, 'INVALID_CONFIG', /more than 67108864 bytes in all/],
      [{ files: { a: Readable.from([5]) } }, 'FILES_FAILED', /the stream gave 5/],
    ]) {
      const error = await rejection(call('() => 1', options));
      assert.equal(error.code, code, error.message);
      assert.match(error.message, message);
    }
  });

  test('an aborted call destroys the streams', async () => {
    const endless = new Readable({ read() {} });
    const error = await rejection(call('() => 1', { files: { endless }, signal: AbortSignal.timeout(100) }));
    assert.equal(error.code, 'ABORTED');
    assert.equal(endless.destroyed, true);
  });
});

describe('what the documents show', LIMIT, () => {
  const ran = (args) =>
    new Promise((done, fail) => {
      const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] });
      let out = '';
      child.stdout.setEncoding('utf8').on('data', (text) => {
        out += text;
      });
      child.on('error', fail);
      child.on('close', (code) => done([code, out]));
    });

  for (const name of ['FILES.md', 'CODE-MODE.md']) {
    test(`the example of docs/${name} prints what its comments say`, async () => {
      const [, text] = /^```js\n(.*?)^```$/ms.exec(readFileSync(join(ROOT, 'docs', name), 'utf8'));
      const [code, out] = await ran(['--input-type=module', '-e', text]);
      assert.equal(code, 0);
      const expected = [...text.matchAll(/^console\.log\(.*\); \/\/ (.*)$/gm)].map(([, line]) => line);
      assert.ok(expected.length > 0);
      assert.deepEqual(out.trim().split('\n').slice(-expected.length), expected);
    });
  }

  test('examples/files.mjs hands pages over', async () => {
    const [code, out] = await ran([join(ROOT, 'examples/files.mjs')]);
    assert.equal(code, 0);
    assert.match(out, /^out\/ann\.md: \d+ bytes, [0-9a-f]{8}\nout\/bob\.md: \d+ bytes, [0-9a-f]{8}\n2 pages\n$/);
  });
});
