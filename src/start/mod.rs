//! The ladder: ways to get a worker, best first. Callers ask for a worker and are told on which rung it came.

pub mod spawn;

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use serde::Serialize;

use crate::process::{BoxFuture, Started};

/// A way to get a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// Forked from a booted Node (Linux).
    Zygote,
    /// Booted ahead of need, used once.
    Standby,
    /// Booted for the call.
    Spawn,
}

/// What a worker is started for. Nothing in here comes from the call's source, arguments or environment.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// The Node executable.
    pub node: PathBuf,
    /// `--max-old-space-size`, MiB.
    pub memory_mb: u32,
    /// Variables that Node reads while it boots (time zone, locale, certificates); the tool's own come with the job.
    pub boot_env: Vec<(OsString, OsString)>,
    /// The leased tree: holds `node_modules` (may be empty).
    pub tree: Arc<PathBuf>,
    /// The call's working folder.
    pub cwd: PathBuf,
}

/// A started worker, waiting for its job on its channel.
pub struct Worker {
    /// Where it came from.
    pub rung: Rung,
    /// Process, pipes and channel.
    pub started: Started,
}

/// Why no rung gave a worker: the last rung's reason.
#[derive(Debug, thiserror::Error)]
#[error("could not start a worker ({rung:?}): {reason}")]
pub struct StartError {
    /// The rung tried last.
    pub rung: Rung,
    /// Its reason.
    pub reason: String,
}

/// Gives workers. Dropping the future leaves no process behind.
pub trait Ladder: Send + Sync {
    /// One worker, on the best rung that works.
    fn start(&self, spec: WorkerSpec) -> BoxFuture<'_, Result<Worker, StartError>>;
    /// The rung that the next worker will probably come from, with the reasons why no higher one is used.
    fn in_use(&self) -> (Rung, Vec<(Rung, String)>);
}
