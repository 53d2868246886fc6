// What came of a call → texts and values. Pure.

import { codeFrame, framesOf, placeOf } from './code-frame.mjs';
import { harmless } from './terminal.mjs';
import { shownBytes, shownTime } from './units.mjs';

/** Frames of a stack that are shown. */
const FRAMES_MAX = 6;

/**
 * Milliseconds of each phase of a call, until it was answered.
 * @param {{ totalMs: number, installMs: number, usage?: import('../index.js').CallUsage }} measured `installMs` before the call
 */
export function timings({ totalMs, installMs, usage }) {
  if (!usage) return installMs > 0 ? { totalMs, installMs } : { totalMs };
  const { queueMs, installMs: within = 0, startMs, runMs } = usage.phases;
  return { totalMs, queueMs, installMs: installMs + within, startMs, runMs };
}

/** Of what the core tells about a call what its processes used. */
export function resources({ cpuMs, maxRssBytes, outputBytes } = {}) {
  return { cpuMs, maxRssBytes, outputBytes };
}

/** One line on times, one on resources. */
export function summaryLines({ ok, times, used }, style) {
  const steps = Object.entries({
    queue: times.queueMs,
    install: times.installMs,
    start: times.startMs,
    run: times.runMs,
  }).filter(([, ms]) => ms !== undefined);
  const mark = ok ? style('green', '✔') : style('red', '✖');
  const parts = steps.map(([name, ms]) => `${style('dim', name)} ${shownTime(ms)}`);
  const lines = [`${mark} ${style('bold', shownTime(times.totalMs))}  ${parts.join('  ')}`.trimEnd()];
  if (used.cpuMs === undefined) return lines;
  return [
    ...lines,
    `  ${style('dim', 'processor')} ${shownTime(used.cpuMs)}  ${style('dim', 'memory')} ${shownBytes(used.maxRssBytes)}  ${style('dim', 'output')} ${shownBytes(used.outputBytes)}`,
  ];
}

/**
 * @param {import('../index.js').SandboxError} error @param {{ file: string, source: string }} tool
 * @returns {string[]} lines
 */
export function errorLines(error, { file, source }, style) {
  const place = placeOf(error);
  const frames = framesOf(error.cause, file).slice(0, FRAMES_MAX);
  return [
    `${style('red', style('bold', error.code))} ${harmless(error.message).trimEnd()}`,
    ...(place ? ['', style('cyan', `${file}:${place.line}:${place.column}`)] : []),
    ...(place && !place.isPictured ? codeFrame(source, place, style) : []),
    ...(frames.length > 0 ? ['', ...frames.map((frame) => style('dim', `  ${harmless(frame)}`))] : []),
  ];
}

/** The same for programs. */
export function errorValue(error, { file, source }) {
  const place = placeOf(error);
  const { code, phase, message, stdout, stderr, cause } = error;
  const plain = (_format, text) => text;
  return {
    code,
    phase,
    message,
    ...(place && { place: { file, line: place.line, column: place.column } }),
    ...(place && !place.isPictured && { frame: codeFrame(source, place, plain).join('\n') }),
    ...(stdout !== undefined && { stdout }),
    ...(stderr !== undefined && { stderr }),
    ...(typeof cause?.stack === 'string' && { cause: withoutStack(cause) }),
  };
}

/** The frames are in the place and the picture of it. */
function withoutStack({ stack: _, ...cause }) {
  return cause;
}
