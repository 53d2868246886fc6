// What is written, and whether with colours: `FORCE_COLOR` (not 0) wins over `NO_COLOR` as in Node itself, then it is whether
// the stream is a terminal that has colours.

// Not by its name: Node before 20.12 has no `styleText`, and `doctor` has to say there that it is too old.
import * as util from 'node:util';

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
  return (format, text) =>
    isColored && util.styleText ? util.styleText(format, text, { validateStream: false }) : text;
}

/** What a terminal does something about, or that moves the text around it: control characters, and those of directions and lines. */
const DRIVES = String.raw`(?![\n\t])[\p{Cc}\p{Bidi_Control}\u2028\u2029]`;
const DRIVING = new RegExp(DRIVES, 'gu');
/** The same, but for the styles that are written here. */
const DRIVING_OR_STYLE = new RegExp(String.raw`\u001b\[(?:1|2|4|22|24|31|32|33|36|39)m|${DRIVES}`, 'gu');

/** As JSON writes such a character. */
function escaped(character) {
  return `\\u${character.codePointAt(0).toString(16).padStart(4, '0')}`;
}

/** Text of strangers for a terminal: what would drive it is shown as its number. */
export function harmless(text) {
  return text.replaceAll('\r\n', '\n').replace(DRIVING, escaped);
}

/** The same for a text of ours that has those of strangers in it. JSON stays what it is. */
function shownOnTerminal(text) {
  return text.replace(DRIVING_OR_STYLE, (found) => (found.length > 1 ? found : escaped(found)));
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
  #isMute = false;
  /** Ends what `progress` shows. */
  #stop = () => {};

  out(text) {
    this.#write(this.#stdout, text);
  }

  err(text) {
    this.#write(this.#stderr, text);
  }

  /** From now on nothing is written any more. */
  mute() {
    this.#stop();
    this.#isMute = true;
  }

  #write(stream, text) {
    // What is no terminal gets exactly what there is.
    if (!this.#isMute) stream.write(stream.isTTY ? shownOnTerminal(text) : text);
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
    const late = setTimeout(() => {
      this.#stop = this.#stderr.isTTY ? this.#spin(what) : this.#say(what, began);
    }, QUIET_MS);
    try {
      return await work();
    } finally {
      clearTimeout(late);
      this.#stop();
      this.#stop = () => {};
    }
  }

  #say(what, began) {
    this.err(`${what} …\n`);
    return () => this.err(`${what}: ${((performance.now() - began) / 1000).toFixed(1)} s\n`);
  }

  #spin(what) {
    let frame = 0;
    // To the stream itself: it moves the cursor.
    const draw = () =>
      this.#stderr.write(`\r${this.errStyle('cyan', FRAMES[frame++ % FRAMES.length])} ${harmless(what)} …`);
    draw();
    const ticking = setInterval(draw, FRAME_MS);
    return () => {
      clearInterval(ticking);
      this.#stderr.write('\r\u001b[2K');
    };
  }
}
