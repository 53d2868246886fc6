/**
 * Loading this module puts the executor of this package in the place of the published run API's, for everything that this
 * thread loads from then on: `node --import native-sandbox-executor/register server.js`.
 *
 * With the variable `NATIVE_SANDBOX_EXECUTOR=off` it does nothing.
 */
export { type SwapReport, swapReport } from './index.js';
