//! The launcher: starts, watches and ends every process of one host, and ends with it. See `docs/ARCHITECTURE.md`.
//!
//! It has one thread, because it forks, and because a child's parent-death signal is bound to the thread that forked
//! it. It never waits for anything but its poll.

#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
mod dontfork;
#[cfg(target_os = "linux")]
mod launcher;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod trial;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
#[expect(
    clippy::print_stderr,
    reason = "the host gives it no stderr; only somebody who starts it by hand reads this"
)]
fn main() -> ExitCode {
    match launcher::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("native-sandbox-launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::print_stderr, reason = "this line is all it does")]
fn main() -> ExitCode {
    eprintln!("native-sandbox-launcher: works on Linux only; the executor does without it elsewhere");
    ExitCode::FAILURE
}
