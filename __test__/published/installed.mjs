// The published original and the database that it needs, installed once below the user's cache folder.

import { join } from 'node:path';
import { defaultCache, original } from '../../benches/cache.mjs';
import { installOnce } from '../../scripts/published.mjs';

const PGLITE = { '@electric-sql/pglite': '0.5.14', '@electric-sql/pglite-socket': '0.2.17' };

/**
 * To be called before the home folder is another.
 * @returns {Promise<{ file: string, modules: string }>} the file that has the executor, the folder of packages
 */
export function originalInstalled() {
  return original(defaultCache());
}

/** @returns {Promise<string>} the folder of packages; apart, as the run API brings another version along */
export function pgliteInstalled() {
  const folder = join(defaultCache(), `pglite-${PGLITE['@electric-sql/pglite']}`);
  return installOnce(folder, PGLITE, { size: 'about 30 MB', args: ['--ignore-scripts'] });
}
