//! A Node process that has booted once, waits for jobs in native code, and forks itself for each.
//!
//! `src/worker/zygote.cjs` boots, loads what is costly to load, and calls [`serve`](serve::run) with the control
//! socket. From then on the process runs no JavaScript. In each forked child that same call returns, with the role the
//! child is to play. No thread is started, and nothing but libc is linked: Node's own symbols (N-API, libuv) resolve when
//! Node loads the library.

#![cfg_attr(test, allow(dead_code, reason = "most is called by `napi` only, which test programs lack"))]

#[cfg(target_os = "linux")]
mod child;
#[cfg(all(target_os = "linux", not(test)))]
mod exit;
#[cfg(target_os = "linux")]
mod imports;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod memory;
// Its symbols are Node's, so it does not link into a test program.
#[cfg(all(target_os = "linux", not(test)))]
mod napi;
#[cfg(target_os = "linux")]
mod placement;
#[cfg(all(target_os = "linux", not(test)))]
mod platform;
#[cfg(target_os = "linux")]
mod prefault;
#[cfg(all(target_os = "linux", not(test)))]
mod preload;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(target_os = "linux")]
mod reads;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod wire;
