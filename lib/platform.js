'use strict';

// The name of this platform in the names of the addon's file, of the launcher's file and of the platform packages.

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

exports.PLATFORMS = PLATFORMS;
exports.platformArchAbi = platformArchAbi;
