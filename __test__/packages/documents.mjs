// Code blocks of Markdown documents.

/**
 * The fenced blocks of a text, in order.
 * @returns {Array<{ language: string, text: string, heading: string, line: number }>} with the heading above each, and the line
 *   where its text begins
 */
export function blocksOf(markdown) {
  const found = [];
  let heading = '';
  let open;
  for (const [at, line] of markdown.split('\n').entries()) {
    const fence = /^```(\w*)$/.exec(line);
    if (open && fence) {
      found.push({ ...open, text: open.lines.join('\n') });
      open = undefined;
    } else if (open) open.lines.push(line);
    else if (fence) open = { language: fence[1], heading, line: at + 2, lines: [] };
    else heading = /^#+ (.+)$/.exec(line)?.[1] ?? heading;
  }
  return found;
}
