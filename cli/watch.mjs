// Files that are looked at until what is in them changes.

import { readFileSync, watch } from 'node:fs';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { CommandError } from './usage.mjs';

/** Where a folder tells nothing of its changes, files are read so often. */
const POLL_MS = 500;

/** Watches files by what is in them: an editor writes one in pieces, under another name, or as it was. */
export class WatchedFiles {
  #files;
  #watchers;
  #contents;
  #changed = () => {};

  /** @param {string[]} files */
  constructor(files) {
    this.#files = [...new Set(files)];
    this.#contents = this.#read();
    // Their folders: a file that is replaced is another one.
    this.#watchers = [...new Set(this.#files.map((file) => dirname(file)))].map((folder) => {
      try {
        return watch(folder, () => this.#changed()).on('error', () => {});
      } catch ({ message }) {
        throw new CommandError(`cannot watch ${folder}: ${message}`);
      }
    });
  }

  /** Resolves when they are other than when this resolved last, or at first. @param {AbortSignal} signal rejects it */
  async changed(signal) {
    for (;;) {
      const contents = this.#read();
      // Between two writes a file may be absent or empty: that is none that anybody wants to run.
      const isWhole = !contents.includes('');
      if (isWhole && contents.join('\0') !== this.#contents.join('\0')) {
        this.#contents = contents;
        return;
      }
      await this.#event(signal);
    }
  }

  async #event(signal) {
    const told = new Promise((resolve) => {
      this.#changed = resolve;
    });
    const stop = new AbortController();
    const either = AbortSignal.any([signal, stop.signal]);
    try {
      await Promise.race([told, delay(POLL_MS, undefined, { signal: either })]);
    } finally {
      stop.abort();
    }
  }

  #read() {
    return this.#files.map((file) => {
      try {
        return readFileSync(file, 'utf8');
      } catch {
        return '';
      }
    });
  }

  close() {
    for (const watcher of this.#watchers) watcher.close();
  }
}
