//! What keeps a function apart from the machine: decided here, given up by the child itself (`confine/`).
//!
//! [`Survey`] finds out what there is, [`Policy`] makes the plans of processes of it, [`Report`] says what is in force. Where
//! there is no Linux, or no launcher, nothing of it is, and the report says so.

use std::path::{Path, PathBuf};

mod identity;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(target_os = "linux")]
mod places;
#[cfg(target_os = "linux")]
mod policy;
#[cfg(target_os = "linux")]
mod quota;
mod report;
#[cfg(target_os = "linux")]
mod seccomp;
mod shield;
#[cfg(all(test, target_os = "linux"))]
mod snapshot;
#[cfg(target_os = "linux")]
mod survey;

#[cfg(target_os = "linux")]
pub use policy::{Offered, Places, Policy, Run, Zygote};
#[cfg(target_os = "linux")]
pub use quota::{Declined, Quota};
pub use report::{Layer, Report};
#[cfg(target_os = "linux")]
pub use shield::Asked;
pub use shield::{Ground, Shield};
#[cfg(target_os = "linux")]
pub use survey::{Survey, SurveyError};

/// What npm may touch in one phase.
#[derive(Debug, Clone, Default)]
pub struct NpmPlaces {
    /// Written to, and all below.
    pub own: Vec<PathBuf>,
    /// Read, and all below.
    pub read: Vec<PathBuf>,
    /// The user has allowed specs (git, folders), or an npm, that may need anything of his.
    pub reads_all: bool,
}

/// Whether users other than the host's can pass through all folders above `path`. Blocks.
pub fn others_reach(path: &Path) -> bool {
    identity::closed_folder(path).is_none()
}
