// The hook where Node has asynchronous hooks only (before 22.15): it runs in a thread of Node's own and tells the thread
// that registered it what it swapped.

import { isOriginal } from './swap.js';

let port;
let target;

/** @param given `port` takes `{ module, agentsCore }`; `target` is the URL of what takes the place */
export function initialize(given) {
  ({ port, target } = given);
}

export async function resolve(specifier, context, nextResolve) {
  const found = await nextResolve(specifier, context);
  if (!isOriginal(found.url)) return found;
  const agentsCore = await nextResolve('@inkeep/agents-core', context).then(
    ({ url }) => url,
    () => undefined
  );
  port.postMessage({ module: found.url, agentsCore });
  return { url: target, format: 'commonjs', shortCircuit: true };
}
