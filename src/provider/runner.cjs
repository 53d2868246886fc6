'use strict';
// Runs in a sandbox elsewhere, beside `worker.cjs`: takes the job of one run from its folder, once, and tells over stdout
// what the worker tells. Jobs are in `runs`, beside the folder of the two scripts. Node 20.12 and later; built-ins only.
//
//   node runner.cjs run <id>    runs the job in ../runs/<id>/job.json
//   node runner.cjs end <id>    kills whatever that run left
//
// The function shares this realm and may change anything in it: what runs after it began is captured here, as in `worker.cjs`.

const fs = require('node:fs');
const { join } = require('node:path');

const self = process;
const { min } = Math;
const { wait } = Atomics;
const { writeSync, rmSync, readdirSync, readFileSync } = fs;
const { kill } = self;
const exit = self.reallyExit.bind(self);
const resourceUsage = self.resourceUsage.bind(self);
const later = setTimeout;
const idle = new Int32Array(new SharedArrayBuffer(4));
const encode = TextEncoder.prototype.encode.bind(new TextEncoder());
const uncurry = Function.prototype.bind.bind(Function.prototype.call);
const charCodeAt = uncurry(String.prototype.charCodeAt);
const slice = uncurry(String.prototype.slice);
const includes = uncurry(String.prototype.includes);
const toText = String;
const toNumber = Number;

const STDOUT = 1;
/** The host knows it: this run was started before. */
const ALREADY_STARTED = 97;
/** Nothing larger is written to a pipe in one piece on every system. */
const PIECE_BYTES = 4096;
const MARK = '\x1e';
const HEX = '0123456789abcdef';
const BUSY_WAIT_MS = 2;
/** Types of frames, the later ones settle a call; see docs/worker-protocol.md. */
const READY = 16;
const RETURNED = 18;
const TOO_LARGE = 21;
const INVALID = 25;
/** This script's own: what the process used. */
const USED = 26;
/** How what a function starts is found again. */
const RUN_VARIABLE = 'NATIVE_SANDBOX_RUN';
/** How the host names the process of a run: of each process, should the request have come twice. */
const RUNNER_VARIABLE = 'NATIVE_SANDBOX_RUNNER';

const [, , action, id] = self.argv;
const folder = join(__dirname, '..', 'runs', id);

if (action === 'end') endProcesses(true);
else run();

/** Takes the run: exactly one process ever gets past this, however often the request for it was sent. */
function claim() {
  try {
    fs.mkdirSync(`${folder}.started`);
  } catch (error) {
    if (error.code === 'EEXIST') self.exit(ALREADY_STARTED);
    throw error;
  }
}

function run() {
  claim();
  const file = join(folder, 'job.json');
  const { nonce, lingerMs, job, code, args } = JSON.parse(fs.readFileSync(file, 'utf8'));
  // Before anything of the function is there to read it.
  fs.unlinkSync(file);
  const tmpdir = join(folder, 'tmp');
  fs.mkdirSync(tmpdir);
  const env = { ...self.env, ...job.env, [RUN_VARIABLE]: id };
  delete env[RUNNER_VARIABLE];
  const { serveJob } = require('./worker.cjs');
  const opening = `${MARK}${nonce}`;
  const room = PIECE_BYTES - opening.length - 5;
  const tell = (type, payload) => {
    const text = ascii(payload);
    let start = 0;
    do {
      const end = min(start + room, text.length);
      write(`${opening}${type}${end < text.length ? '+' : '.'}${slice(text, start, end)}${MARK}\n`);
      start = end;
    } while (start < text.length);
    if ((type >= RETURNED && type <= TOO_LARGE) || type === INVALID) goSoon(lingerMs, leave);
  };
  const leave = () => {
    const { userCPUTime, systemCPUTime, maxRSS } = resourceUsage();
    tell(USED, `{"cpuUs":${userCPUTime + systemCPUTime},"maxRssKib":${maxRSS}}`);
    cleanUp();
  };
  self.on('exit', leave);
  // The run is this process's: from here on the host knows what did not happen.
  tell(READY, '');
  serveJob({ ...job, env, cwd: folder, tmpdir, filename: join(folder, 'tool.js') }, code, args, tell);
}

/** What the function left running does not hold the run open for longer than this. */
function goSoon(lingerMs, leave) {
  later(() => {
    leave();
    exit(0);
  }, lingerMs).unref();
}

/** Leaves nothing of the run but the mark that it was. */
function cleanUp() {
  endProcesses(false);
  try {
    rmSync(folder, { __proto__: null, recursive: true, force: true });
  } catch {
    // The sandbox goes in its time, and the folder with it.
  }
}

/** Writes whole pieces; what cannot be written is given up, as there is nobody to tell. */
function write(text) {
  const bytes = encode(text);
  let sent = 0;
  while (sent < bytes.length) {
    try {
      sent += writeSync(STDOUT, bytes, sent, bytes.length - sent);
    } catch (error) {
      if (error?.code !== 'EAGAIN') return;
      wait(idle, 0, 0, BUSY_WAIT_MS);
    }
  }
}

/** JSON text without anything that a transport could take apart: a character may be cut by whoever carries bytes. */
function ascii(json) {
  let text = '';
  let done = 0;
  for (let at = 0; at < json.length; at++) {
    const unit = charCodeAt(json, at);
    if (unit < 0x7f) continue;
    text += `${slice(json, done, at)}\\u${HEX[unit >>> 12]}${HEX[(unit >>> 8) & 15]}${HEX[(unit >>> 4) & 15]}${HEX[unit & 15]}`;
    done = at + 1;
  }
  return done === 0 ? json : text + slice(json, done);
}

/**
 * Kills what the function started and, `withRunners`, the run's own processes; where there is no /proc, none is found. A run that
 * ends leaves the others alone: one that came too late has to say so.
 */
function endProcesses(withRunners) {
  let names;
  try {
    names = readdirSync('/proc');
  } catch {
    return;
  }
  for (let at = 0; at < names.length; at++) {
    const pid = toNumber(names[at]);
    if (!(pid > 1) || pid === self.pid) continue;
    try {
      const environment = toText(readFileSync(`/proc/${pid}/environ`, 'latin1'));
      const isRunner = withRunners && includes(environment, `${RUNNER_VARIABLE}=${id}`);
      if (isRunner || includes(environment, `${RUN_VARIABLE}=${id}`)) kill(pid, 'SIGKILL');
    } catch {
      // It ended, or is another user's.
    }
  }
}
