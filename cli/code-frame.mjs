// Where in its file an error is, and a picture of the place. Pure.

import { harmless } from './terminal.mjs';

/** Lines around the one of the error. */
const CONTEXT_LINES = 2;
const WIDTH_CHARS = 160;

/** The file in which a worker has the text of its function: a path or a URL. */
const OWN_FILE = /(?:file:\/\/)?[^\s()]*[\\/]work[\\/]index\.[cm]js/g;
const OWN_PLACE = /[\\/]work[\\/]index\.[cm]js:(\d+):(\d+)/;
/** A frame of Node itself. */
const NODES_FRAME = /[\s(]node:[\w/]+:\d+:\d+\)?$/;
/** How the errors of source texts name their place. */
const TOLD_PLACE = /\(line (\d+), column (\d+)\)/;

/**
 * @param {{ message: string, cause?: unknown }} error of a call
 * @returns {{ line: number, column: number, isPictured: boolean } | undefined} both from 1; whether the message has the picture
 */
export function placeOf({ message, cause }) {
  const thrown = OWN_PLACE.exec(stackOf(cause));
  if (thrown) return { line: Number(thrown[1]), column: Number(thrown[2]), isPictured: false };
  const told = TOLD_PLACE.exec(message);
  return told ? { line: Number(told[1]), column: Number(told[2]), isPictured: true } : undefined;
}

/** The frames of a thrown error, with the user's file in place of the worker's; frames that are none of the user's left out. */
export function framesOf(cause, file) {
  return stackOf(cause)
    .split('\n')
    .filter((line) => /^\s+at /.test(line) && !NODES_FRAME.test(line))
    .map((line) => line.replace(OWN_FILE, file).trim());
}

function stackOf(cause) {
  return typeof cause?.stack === 'string' ? cause.stack : '';
}

/**
 * @param {string} source @param {{ line: number, column: number }} place
 * @param {(format: string, text: string) => string} style
 * @returns {string[]} lines; none where the text has no such line
 */
export function codeFrame(source, { line, column }, style) {
  const lines = source.split(/\r\n|\r|\n/);
  if (line < 1 || line > lines.length) return [];
  const first = Math.max(1, line - CONTEXT_LINES);
  const last = Math.min(lines.length, line + CONTEXT_LINES);
  const digits = String(last).length;
  const frame = [];
  for (let at = first; at <= last; at++) {
    const isIt = at === line;
    const number = `${isIt ? '>' : ' '} ${String(at).padStart(digits)} |`;
    frame.push(`${isIt ? style('red', number) : style('dim', number)} ${shown(lines[at - 1])}`.trimEnd());
    if (isIt && column <= WIDTH_CHARS) {
      const gap = shown(lines[at - 1])
        .slice(0, column - 1)
        .replace(/[^\t]/g, ' ');
      frame.push(`${style('dim', `  ${' '.repeat(digits)} |`)} ${gap}${style('red', '^')}`);
    }
  }
  return frame;
}

function shown(line) {
  return harmless(line.slice(0, WIDTH_CHARS));
}
