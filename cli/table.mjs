// Rows of cells → aligned lines. Pure.

import { stripVTControlCharacters } from 'node:util';

/** Places that a text takes; colours take none. */
export function width(text) {
  return [...stripVTControlCharacters(text)].length;
}

/** @param {string} text @param {number} to @param {boolean} toTheRight */
export function padded(text, to, toTheRight = false) {
  const space = ' '.repeat(Math.max(0, to - width(text)));
  return toTheRight ? space + text : text + space;
}

/** The widest cell of each column. */
export function widths(rows) {
  return (rows[0] ?? []).map((_, column) => Math.max(...rows.map((cells) => width(cells[column]))));
}

/**
 * @param {string[][]} rows all of the same length
 * @param {{ indent?: string, right?: number[] }} how `right` are the columns whose cells end at the same place
 * @returns {string[]} lines
 */
export function columns(rows, { indent = '', right = [] } = {}) {
  const to = widths(rows);
  return rows.map((cells) => {
    const shown = cells.map((cell, column) => padded(cell, to[column], right.includes(column)));
    return (indent + shown.join('  ')).trimEnd();
  });
}
