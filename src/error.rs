//! The one error of a call: a stable code, the phase it happened in, and the text that models and people read. Pure.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::process::ExitStatus;

/// Stable identifiers of what went wrong; `SandboxError.code` in JavaScript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Code {
    /// An option, a variable or the call's configuration has a bad value.
    InvalidConfig,
    /// The source text is no runnable function.
    InvalidSource,
    /// A dependency's name or spec is malformed or forbidden by policy, or the code imports a package that is not declared.
    InvalidDependency,
    /// No permit came free in time, or too many calls wait already.
    QueueTimeout,
    /// The caller's `AbortSignal` fired.
    Aborted,
    /// `cleanup()` ended the call before it ran, or at its deadline.
    CleanedUp,
    /// The process, or the executor, takes no more calls.
    ShuttingDown,
    /// npm failed.
    InstallFailed,
    /// npm did not finish in time.
    InstallTimeout,
    /// No worker could be started, or it was lost through no doing of the function.
    StartFailed,
    /// The native addon could not be loaded (raised by the JavaScript surface).
    AddonMissing,
    /// The required isolation tier is not to be had.
    IsolationUnavailable,
    /// The function did not settle in time.
    Timeout,
    /// stdout, stderr and result together were too large.
    OutputLimit,
    /// The heap limit was reached.
    MemoryLimit,
    /// The CPU time limit was reached.
    CpuLimit,
    /// The process limit was reached.
    ProcessLimit,
    /// The disk limit was reached.
    DiskLimit,
    /// The function threw, or an error in it was not handled.
    ToolError,
    /// The process ended by itself before the function settled.
    Exited,
    /// The process was killed by a signal that was not ours.
    Killed,
    /// A file of the call could not be read or placed, or one of its function's not be handed over.
    FilesFailed,
    /// The function returned something that JSON cannot carry.
    ResultNotSerializable,
    /// The answer was lost; the function may have run.
    OutcomeUnknown,
}

/// Where in its life a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Checks of configuration, source and dependencies.
    Validate,
    /// Waiting for a permit.
    Queue,
    /// Installing dependencies, or waiting for another call's install.
    Install,
    /// Getting a worker.
    Start,
    /// The function ran.
    Run,
    /// The result was on its way back.
    Result,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How a worker's process ended, in two bytes: errors are passed by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(i16);

impl Exit {
    /// Nothing for a process that was lost, and for codes that only Windows has.
    pub fn of(status: ExitStatus) -> Option<Self> {
        let number = match status {
            ExitStatus::Code(code) => i16::try_from(code).ok().filter(|code| *code >= 0)?,
            ExitStatus::Signal(signal) => {
                i16::try_from(signal).ok().filter(|signal| *signal > 0)?.wrapping_neg()
            }
            ExitStatus::Lost => return None,
        };
        Some(Self(number))
    }

    /// The same as it was.
    pub fn status(self) -> ExitStatus {
        if self.0 < 0 { ExitStatus::Signal(i32::from(-self.0)) } else { ExitStatus::Code(i32::from(self.0)) }
    }
}

/// Why a call was rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct SandboxError {
    /// Stable identifier.
    pub code: Code,
    /// Where it happened.
    pub phase: Phase,
    /// What the caller reads; the original's texts where the original has one.
    pub message: String,
    /// From the call's start to its rejection; filled in by `executor`.
    pub duration: Duration,
    /// Tail of the worker's (or npm's) stdout.
    pub stdout: Option<String>,
    /// Tail of the worker's (or npm's) stderr.
    pub stderr: Option<String>,
    /// What the function threw, as JSON text: `{name, message, stack, cause?, …fields}`.
    pub cause_json: Option<String>,
    /// How the worker's process ended, where that is what failed.
    pub exit: Option<Exit>,
}

impl SandboxError {
    /// An error without output and cause.
    pub fn new(code: Code, phase: Phase, message: impl Into<String>) -> Self {
        Self {
            code,
            phase,
            message: message.into(),
            duration: Duration::ZERO,
            stdout: None,
            stderr: None,
            cause_json: None,
            exit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_survives_its_few_bytes() {
        for status in
            [ExitStatus::Code(0), ExitStatus::Code(255), ExitStatus::Signal(9), ExitStatus::Signal(64)]
        {
            assert_eq!(Exit::of(status).map(Exit::status), Some(status));
        }
        for status in [ExitStatus::Lost, ExitStatus::Code(-1), ExitStatus::Code(0x4000_0015)] {
            assert_eq!(Exit::of(status), None);
        }
    }
}
