//! Where processes have no users of their own, npm's first phase keeps the host's.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    InstallContext,
    npm::{Npm, Scratch},
    npmrc::Settings,
};
use crate::error::SandboxError;

/// There is none.
#[derive(Debug)]
pub(super) enum FirstPhase {}

impl FirstPhase {
    pub(super) fn prepare(
        _: &InstallContext,
        _: &Npm,
        _: &Settings,
        _: &Scratch,
        _: bool,
    ) -> Result<Option<Self>, SandboxError> {
        Ok(None)
    }

    pub(super) fn user(&self) -> u32 {
        match *self {}
    }

    pub(super) fn cache(&self) -> &Path {
        match *self {}
    }

    pub(super) fn dir(&self) -> &Path {
        match *self {}
    }

    pub(super) fn cache_bytes(&self, _: u64) -> u64 {
        match *self {}
    }

    pub(super) fn args(&self) -> &[OsString] {
        match *self {}
    }

    pub(super) fn env(&self, _: Vec<(OsString, OsString)>, _: PathBuf) -> Vec<(OsString, OsString)> {
        match *self {}
    }

    pub(super) fn end(self, _: u64) -> Result<(), SandboxError> {
        match self {}
    }
}
