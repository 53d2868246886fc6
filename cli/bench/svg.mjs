// A picture of the latencies: one band per measure, all sides on one logarithmic axis. Pure: lines in, SVG text out.

import { short } from './stats.mjs';

const WIDTH = 920;
const LEFT = 250;
const RIGHT = 30;
const TOP = 92;
const BAND = 104;
/** Height of the highest hill of a band, below which there is room for the labels of the medians. */
const HILL = 58;
const BOTTOM = 64;
/** Fewer samples than this are shown as they are: a smooth hill would claim to know what lies between them. */
const FEWEST_FOR_A_HILL = 30;
const HILL_POINTS = 240;
/** Smoothing of a hill at the least, in powers of ten: about the width of its line. */
const LEAST_BANDWIDTH = 0.006;
/** Between the labels of two medians. */
const LABEL_GAP = 8;

const SIDES = {
  ours: { name: 'native-sandbox-executor', color: '#0f766e' },
  node: { name: 'node, spawned for each call', color: '#4f46e5' },
  original: { name: 'the original', color: '#c2410c' },
};

/**
 * @param {Array<{ title: string, sides: Record<string, { value: number, samples: number[] }>, ratio?: number,
 *   than?: string }>} lines `ratio` is how much faster this package is, than the other side or what `than` names
 * @param {{ title: string, subtitle: string }} texts
 */
export function latencies(lines, { title, subtitle }) {
  const scale = scaleOf(lines.flatMap(({ sides }) => Object.values(sides).flatMap(({ samples }) => samples)));
  const height = TOP + lines.length * BAND + BOTTOM;
  const used = Object.keys(SIDES).filter((side) => lines.some(({ sides }) => sides[side]));
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" font-family="system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" role="img" aria-label="${escaped(title)}">`,
    `<rect width="${WIDTH}" height="${height}" rx="10" fill="#ffffff"/>`,
    text(24, 36, title, 'font-size="19" font-weight="600" fill="#111827"'),
    text(24, 58, subtitle, 'font-size="12" fill="#6b7280"'),
    ...legend(used),
    ...grid(scale, height),
    ...lines.flatMap((line, at) => band(line, scale, TOP + at * BAND)),
    '</svg>',
    '',
  ].join('\n');
}

/** From milliseconds to a place, over whole powers of ten. */
function scaleOf(samples) {
  const logs = samples.map(Math.log10);
  const low = Math.floor(logs.reduce((least, log) => Math.min(least, log)));
  const high = Math.max(low + 1, Math.ceil(logs.reduce((most, log) => Math.max(most, log))));
  const unit = (WIDTH - LEFT - RIGHT) / (high - low);
  return { low, high, unit, x: (ms) => LEFT + (Math.log10(ms) - low) * unit };
}

function grid({ low, high, x }, height) {
  const bottom = height - BOTTOM;
  const parts = [];
  for (let power = low; power <= high; power += 1) {
    const at = x(10 ** power);
    parts.push(upright(at, bottom, '#d1d5db'), text(at, bottom + 20, duration(10 ** power), axis('middle')));
    for (let digit = 2; digit < 10 && power < high; digit += 1)
      parts.push(upright(x(digit * 10 ** power), bottom, '#f3f4f6'));
  }
  parts.push(text(WIDTH - RIGHT, bottom + 44, 'time of a call (logarithmic); further left is faster', axis('end')));
  return parts;
}

function upright(x, bottom, color) {
  return `<line x1="${fixed(x)}" y1="${TOP}" x2="${fixed(x)}" y2="${fixed(bottom)}" stroke="${color}"/>`;
}

function axis(anchor) {
  return `font-size="12" fill="#6b7280" text-anchor="${anchor}"`;
}

function legend(sides) {
  return sides.flatMap((side, at) => {
    const x = LEFT + at * 210;
    const { name, color } = SIDES[side];
    return [
      `<rect x="${x}" y="70" width="12" height="12" rx="3" fill="${color}" fill-opacity="0.75"/>`,
      text(x + 18, 80.5, name, 'font-size="12.5" fill="#374151"'),
    ];
  });
}

function band({ title, sides, ratio, than }, scale, top) {
  const ground = top + HILL + 18;
  const words = wrapped(title, 32);
  const named = words.map((part, at) => text(24, top + 38 + at * 17, part, 'font-size="13.5" fill="#111827"'));
  const compared = comparison(ratio, than, top + 38 + words.length * 17 + 2);
  const floor = `<line x1="${LEFT}" y1="${ground}" x2="${WIDTH - RIGHT}" y2="${ground}" stroke="#9ca3af"/>`;
  const shapes = Object.entries(sides).map(([side, { samples }]) => shape(samples, scale, ground, SIDES[side].color));
  return [floor, ...shapes, ...named, ...compared, ...medians(sides, scale, ground)];
}

function comparison(ratio, than, y) {
  if (!ratio) return [];
  const faster = ratio >= 1;
  const words = compared(ratio) + (than ? ` than ${than}` : '');
  return [text(24, y, words, `font-size="12.5" font-weight="600" fill="${faster ? '#0f766e' : '#6b7280'}"`)];
}

/** A ratio in words. */
export function compared(ratio) {
  return ratio >= 1 ? `${short(ratio)}× faster` : `${short(1 / ratio)}× slower`;
}

/** A hill of the density where there are samples enough, dots where not. */
function shape(samples, scale, ground, color) {
  if (samples.length < FEWEST_FOR_A_HILL) {
    return samples
      .map((ms, at) => {
        const y = ground - 8 - ((at * 5) % 9) * 4;
        return `<circle cx="${fixed(scale.x(ms))}" cy="${fixed(y)}" r="3.5" fill="${color}" fill-opacity="0.6"/>`;
      })
      .join('');
  }
  const points = hill(samples, scale).map(([x, share]) => `${fixed(x)},${fixed(ground - share * HILL)}`);
  return `<path d="M${points[0].split(',')[0]},${ground} L${points.join(' L')} L${points.at(-1).split(',')[0]},${ground} Z" fill="${color}" fill-opacity="0.3" stroke="${color}" stroke-width="1.6" stroke-linejoin="round"/>`;
}

/** Gaussian kernel density of the logarithms; heights as shares of the highest. */
function hill(samples, { x, unit }) {
  const logs = samples.map(Math.log10).sort((one, other) => one - other);
  const width = Math.max(bandwidth(logs), LEAST_BANDWIDTH);
  const [from, to] = [logs[0] - 3 * width, logs.at(-1) + 3 * width];
  const points = Array.from({ length: HILL_POINTS + 1 }, (_, at) => {
    const log = from + ((to - from) * at) / HILL_POINTS;
    const density = logs.reduce((sum, one) => sum + Math.exp(-0.5 * ((log - one) / width) ** 2), 0);
    return [x(1) + log * unit, density];
  });
  const highest = Math.max(...points.map(([, density]) => density));
  return points.map(([at, density]) => [Math.min(Math.max(at, LEFT), WIDTH - RIGHT), density / highest]);
}

/** Silverman's rule, by the quartiles too: a far tail must not blur the hill. */
function bandwidth(logs) {
  const mean = logs.reduce((sum, log) => sum + log, 0) / logs.length;
  const deviation = Math.sqrt(logs.reduce((sum, log) => sum + (log - mean) ** 2, 0) / logs.length);
  const quartiles = (logs[Math.floor(logs.length * 0.75)] - logs[Math.floor(logs.length * 0.25)]) / 1.34;
  return 0.9 * Math.min(deviation, quartiles || deviation) * logs.length ** -0.2;
}

/** Ticks at the medians, and what they are; labels make way for each other. */
function medians(sides, { x }, ground) {
  const marks = Object.entries(sides)
    .map(([side, { value }]) => ({ value, at: x(value), color: SIDES[side].color, words: `p50 ${duration(value)}` }))
    .sort((one, other) => one.at - other.at);
  let free = LEFT;
  return marks.flatMap(({ at, color, words }) => {
    const width = words.length * 6.6;
    const from = Math.min(Math.max(at - width / 2, free), WIDTH - RIGHT - width);
    free = from + width + LABEL_GAP;
    return [
      `<line x1="${fixed(at)}" y1="${ground - HILL}" x2="${fixed(at)}" y2="${ground + 4}" stroke="${color}" stroke-width="1.4" stroke-dasharray="3 2"/>`,
      text(from + width / 2, ground + 17, words, `font-size="11.5" fill="${color}" text-anchor="middle"`),
    ];
  });
}

function duration(ms) {
  if (ms >= 1000) return `${trimmed(ms / 1000)} s`;
  return ms >= 1 ? `${trimmed(ms)} ms` : `${trimmed(ms * 1000)} µs`;
}

function trimmed(value) {
  return String(Number(value.toPrecision(3)));
}

function wrapped(title, limit) {
  const parts = [''];
  for (const word of title.split(' ')) {
    const longer = `${parts.at(-1)} ${word}`.trim();
    if (longer.length <= limit) parts[parts.length - 1] = longer;
    else parts.push(word);
  }
  return parts;
}

function text(x, y, words, attributes) {
  return `<text x="${fixed(x)}" y="${fixed(y)}" ${attributes}>${escaped(words)}</text>`;
}

function escaped(words) {
  return words.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);
}

function fixed(value) {
  return String(Number(value.toFixed(1)));
}
