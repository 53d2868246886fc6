// A function that leaves processes behind: plain children, detached ones, and ones whose parent is gone (double fork).

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { gone, LINUX, newMarker, ownWorld, rejection, run, surface } from '../helpers.mjs';

before(ownWorld);
after(() => surface().SandboxExecutorFactory.getInstance().cleanup());

const UP = 'require("fs").writeFileSync("up", "");';
const SLEEP = `'${UP} setTimeout(() => {}, 60000)'`;
const WAYS = {
  'a child that holds the pipes': `spawn(process.execPath, ['-e', ${SLEEP}, marker], { stdio: 'inherit' })`,
  'a detached child': `spawn(process.execPath, ['-e', ${SLEEP}, marker], { detached: true, stdio: 'ignore' }).unref()`,
  'a grandchild in a session of its own, whose parent is gone': `spawn(process.execPath, ['-e',
    'require("child_process").spawn(process.execPath, ["-e", "require(\\'fs\\').writeFileSync(\\'up\\', \\'\\'); process.on(\\'SIGTERM\\', () => {}); setTimeout(() => {}, 60000)", process.argv[1]], { detached: true, stdio: "ignore" }).unref()',
    marker], { detached: true, stdio: 'ignore' }).unref()`,
};
/** Returns once the process that is left behind runs: it says so in the working folder, as no other process can be seen. */
const SEEN = `while (!require('node:fs').existsSync('up')) await new Promise((done) => setTimeout(done, 20));`;

for (const [what, start] of Object.entries(WAYS)) {
  test(`${what}, after a result`, { skip: !LINUX }, async () => {
    const marker = newMarker();
    const source = `async ({ marker }) => { const { spawn } = require('node:child_process'); ${start}; ${SEEN} return 'answer'; }`;
    assert.equal(await run(source, { marker }), 'answer');
    await gone(marker, 6000);
  });

  test(`${what}, after a timeout`, { skip: !LINUX }, async () => {
    const marker = newMarker();
    const source = `async ({ marker }) => { const { spawn } = require('node:child_process'); ${start}; ${SEEN} for (;;); }`;
    const error = await rejection(run(source, { marker }, { sandbox: { timeout: 1500 } }));
    assert.equal(error.code, 'TIMEOUT');
    await gone(marker, 8000);
  });
}
