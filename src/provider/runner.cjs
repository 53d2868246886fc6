'use strict';
// Runs in a sandbox elsewhere, beside `worker.cjs`: takes the job of one run from its folder, once, and tells over stdout
// what the worker tells. Jobs are in `runs`, beside the folder of the two scripts. Node 20.12 and later; built-ins only.
//
//   node runner.cjs run <id>    runs the job in ../runs/<id>/job.json
//   node runner.cjs end <id>    kills whatever that run left
//   node runner.cjs once <id> <command> [<argument> …]    runs a command, once for each id; whoever comes late waits for its end
//
// The function shares this realm and may change anything in it: what runs after it began is captured here, as in `worker.cjs`.

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const { dirname, join } = require('node:path');

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
const POLL_MS = 50;
/** A shell's code of a program that is not there. */
const NO_PROGRAM = 127;
/** Types of frames, the later ones settle a call; see docs/worker-protocol.md. */
const READY = 16;
const STARTED = 17;
const RETURNED = 18;
const TOO_LARGE = 21;
const EXITING = 24;
const INVALID = 25;
/** Of a piece, what stands beside nonce and payload: number, length, type, whether more comes, the end. */
const PIECE_FRAME_BYTES = 8 + 4 + 2 + 1 + 2;
/** This script's own: what the process used. */
const USED = 26;
/** How what a function starts is found again. */
const RUN_VARIABLE = 'NATIVE_SANDBOX_RUN';
/** How the host names the process of a run: of each process, should the request have come twice. */
const RUNNER_VARIABLE = 'NATIVE_SANDBOX_RUNNER';

const [, , action, id, ...command] = self.argv;
const folder = join(__dirname, '..', 'runs', id);

if (action === 'end') endProcesses(true);
else if (action === 'once') once(command);
else run();

/** Whether this is the one process that takes the run, however often the request for it was sent. */
function claim() {
  try {
    fs.mkdirSync(`${folder}.started`);
    return true;
  } catch (error) {
    if (error.code === 'EEXIST') return false;
    throw error;
  }
}

/** Two installations in one folder at the same time would spoil it, and two that follow cost twice. */
function once([program, ...args]) {
  fs.mkdirSync(dirname(folder), { recursive: true });
  const said = `${folder}.err`;
  const ended = `${folder}.ended`;
  if (!claim()) {
    const timer = setInterval(() => {
      if (!fs.existsSync(ended)) return;
      clearInterval(timer);
      self.stderr.write(fs.readFileSync(said));
      self.exitCode = Number(fs.readFileSync(ended, 'utf8'));
    }, POLL_MS);
    return;
  }
  fs.writeFileSync(said, '');
  const child = spawn(program, args, { stdio: ['ignore', 'inherit', 'pipe'] });
  const say = (text) => {
    self.stderr.write(text);
    fs.appendFileSync(said, text);
  };
  const end = (code) => {
    // By rename: whoever waits never finds half a file.
    fs.writeFileSync(`${ended}.new`, String(code));
    fs.renameSync(`${ended}.new`, ended);
    self.exitCode = code;
  };
  child.stderr.on('data', say);
  child.on('error', (error) => {
    say(`${error.message}\n`);
    end(NO_PROGRAM);
  });
  child.on('close', (code, signal) => end(code ?? 128 + (require('node:os').constants.signals[signal] ?? 0)));
}

function run() {
  if (!claim()) self.exit(ALREADY_STARTED);
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
  const room = PIECE_BYTES - opening.length - PIECE_FRAME_BYTES;
  let number = 0;
  let isStarted = false;
  const tell = (type, payload) => {
    const text = ascii(payload);
    let start = 0;
    do {
      const end = min(start + room, text.length);
      const head = `${opening}${hex(number++, 8)}${hex(end - start, 4)}${type}${end < text.length ? '+' : '.'}`;
      write(`${head}${slice(text, start, end)}${MARK}\n`);
      start = end;
    } while (start < text.length);
    if (type === STARTED) isStarted = true;
    if ((type >= RETURNED && type <= TOO_LARGE) || type === INVALID) goSoon(lingerMs, leave);
  };
  const leave = () => {
    const { userCPUTime, systemCPUTime, maxRSS } = resourceUsage();
    tell(USED, `{"cpuUs":${userCPUTime + systemCPUTime},"maxRssKib":${maxRSS}}`);
    cleanUp();
  };
  self.on('exit', (code) => {
    // From the start of the function on the worker tells it.
    if (!isStarted) tell(EXITING, `{"code":${code | 0}}`);
    leave();
  });
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

function hex(value, digits) {
  let text = '';
  for (let at = digits - 1; at >= 0; at--) text += HEX[(value >>> (4 * at)) & 15];
  return text;
}

/** JSON text without anything that a transport could take apart: a character may be cut by whoever carries bytes. */
function ascii(json) {
  let text = '';
  let done = 0;
  for (let at = 0; at < json.length; at++) {
    const unit = charCodeAt(json, at);
    if (unit < 0x7f) continue;
    text += `${slice(json, done, at)}\\u${hex(unit, 4)}`;
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
