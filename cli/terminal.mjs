// What is written, and whether with colours: `FORCE_COLOR` (not 0) wins over `NO_COLOR` as in Node itself, then it is whether
// the stream is a terminal that has colours.

import { stripVTControlCharacters, styleText } from 'node:util';

const FRAMES = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const FRAME_MS = 80;
/** What is done sooner is not announced. */
const QUIET_MS = 300;

/**
 * Whether to write colours. Pure.
 * @param {Record<string, string | undefined>} env
 * @param {boolean} isTerminal
 */
export function wantsColor({ FORCE_COLOR, NO_COLOR, TERM }, isTerminal) {
  if (FORCE_COLOR !== undefined && FORCE_COLOR !== '') return !['0', 'false'].includes(FORCE_COLOR);
  if (NO_COLOR) return false;
  return isTerminal && TERM !== 'dumb';
}

/** `style('red', text)` → with colour or without. */
function styleOf(stream, env) {
  const isColored = wantsColor(env, Boolean(stream.isTTY));
  // Asked here: Node's own question is about stdout only, and not asked at all before version 22.
  return (format, text) => (isColored ? styleText(format, text, { validateStream: false }) : text);
}

/** Text of strangers for a terminal: no control characters but the ends of lines and tabs. */
export function harmless(text) {
  const kept = (one) => (one === '\n' || one === '\t' ? one : '');
  // Control characters, and those that change the direction of text.
  return stripVTControlCharacters(text).replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]/gu, kept);
}

/** The terminal of a command: `out` is for what it was asked for, `err` for everything else. */
export class Terminal {
  constructor({ stdout = process.stdout, stderr = process.stderr, env = process.env } = {}) {
    this.#stdout = stdout;
    this.#stderr = stderr;
    this.style = styleOf(stdout, env);
    this.errStyle = styleOf(stderr, env);
  }

  #stdout;
  #stderr;

  out(text) {
    this.#stdout.write(text);
  }

  err(text) {
    this.#stderr.write(text);
  }

  json(value) {
    this.out(`${JSON.stringify(value, null, 2)}\n`);
  }

  /**
   * Says on stderr that something takes its time, if it does.
   * @template T
   * @param {string} what @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  async progress(what, work) {
    const began = performance.now();
    let stop = () => {};
    const late = setTimeout(() => {
      stop = this.#stderr.isTTY ? this.#spin(what) : this.#say(what, began);
    }, QUIET_MS);
    try {
      return await work();
    } finally {
      clearTimeout(late);
      stop();
    }
  }

  #say(what, began) {
    this.err(`${what} …\n`);
    return () => this.err(`${what}: ${((performance.now() - began) / 1000).toFixed(1)} s\n`);
  }

  #spin(what) {
    let frame = 0;
    const draw = () => this.err(`\r${this.errStyle('cyan', FRAMES[frame++ % FRAMES.length])} ${what} …`);
    draw();
    const ticking = setInterval(draw, FRAME_MS);
    return () => {
      clearInterval(ticking);
      this.err('\r\u001b[2K');
    };
  }
}
