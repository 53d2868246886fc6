//! Files of a call: those that it is given before its function starts ([`given`]), and those that it hands over once its function has
//! returned ([`collect`]). Both travel on the call's own channel, so it does not matter where its run folder is.
//!
//! | direction | who reads | who writes |
//! | --- | --- | --- |
//! | in | the host: a file of its own, or what the surface gives | the worker, before anything of the function runs |
//! | out | the worker, after the function has returned | the host: below a folder of the caller ([`folder`]), or the caller's callback |
//!
//! After the function has run, the worker may be anybody's: names, sizes and order of what it sends are checked here.

pub mod collect;
pub mod folder;
pub mod given;
pub mod name;
pub mod selection;

use crate::error::{Code, Phase, SandboxError};

/// A file that could not be read, or not be handed over, for a reason that is not a limit.
fn failed(phase: Phase, message: impl Into<String>) -> SandboxError {
    SandboxError::new(Code::FilesFailed, phase, message)
}

/// What the caller asked for cannot be done; nothing was spent on it.
fn invalid(message: impl Into<String>) -> SandboxError {
    SandboxError::new(Code::InvalidConfig, Phase::Validate, message)
}
