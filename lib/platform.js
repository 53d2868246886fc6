'use strict';

// The name of this platform in the names of the addon's file, of the launcher's file and of the platform packages.

const { indexOf, slice } = require('./intrinsics.js');

/** The platforms that have a package; those of `napi.targets` in package.json. */
const PLATFORMS = [
  'linux-x64-gnu',
  'linux-arm64-gnu',
  'linux-x64-musl',
  'linux-arm64-musl',
  'darwin-x64',
  'darwin-arm64',
  'win32-x64-msvc',
];

/** `gnu` or `musl` on Linux, `msvc` on Windows, nothing elsewhere. */
function abi() {
  if (process.platform === 'win32') return 'msvc';
  if (process.platform !== 'linux') return '';
  const { header } = process.report.getReport();
  return header.glibcVersionRuntime ? 'gnu' : 'musl';
}

/** For example `linux-x64-gnu`, as napi-rs names it. */
function platformArchAbi() {
  return [process.platform, process.arch, abi()].filter(Boolean).join('-');
}

/** The oldest Node that this package runs on; `engines` of package.json, and `src/install/scope.rs`. */
const OLDEST_NODE = [20, 17];

/**
 * What runs this process, where its own executable cannot run function tools, in words for a sentence; nothing where it can.
 * Bun and Deno have a `process.versions.node` as well.
 * @param {Record<string, string | undefined>} versions
 */
function otherHost({ electron, bun, deno, node }) {
  if (electron) return 'Electron';
  if (bun) return 'Bun';
  if (deno) return 'Deno';
  const dot = indexOf(node, '.');
  const major = Number(slice(node, 0, dot));
  const minor = Number(slice(node, dot + 1, indexOf(node, '.', dot + 1)));
  const isTooOld = major < OLDEST_NODE[0] || (major === OLDEST_NODE[0] && minor < OLDEST_NODE[1]);
  return isTooOld ? `Node ${node}` : undefined;
}

/** The variable that names another Node. */
const NODE_PATH_VARIABLE = 'AGENTS_FUNCTION_TOOL_SANDBOX_NODE_PATH';

/**
 * Why function tools cannot run on this host's own executable, in one sentence that says what to do; nothing where they can.
 * @param {unknown} nodePath the option
 */
function hostProblem(nodePath) {
  const host = otherHost(process.versions);
  if (!host || nodePath || process.env[NODE_PATH_VARIABLE]) return undefined;
  const oldest = OLDEST_NODE.join('.');
  return (
    `this host is ${host}, and function tools need Node ${oldest} or newer: run the host on one, or set the option nodePath ` +
    `or the variable ${NODE_PATH_VARIABLE} to the path of its binary`
  );
}

exports.PLATFORMS = PLATFORMS;
exports.hostProblem = hostProblem;
exports.otherHost = otherHost;
exports.platformArchAbi = platformArchAbi;
