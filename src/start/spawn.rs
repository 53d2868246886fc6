//! The lowest rung: a Node booted for the call.

use std::{io, path::PathBuf, sync::Arc};

use super::{Ladder, Rung, StartError, Worker, WorkerSpec};
use crate::process::{BoxFuture, Command, Limits, Spawner};

/// Starts `node worker.cjs` for each call.
pub struct SpawnRung<S> {
    spawner: Arc<dyn Spawner>,
    script: S,
}

impl<S> SpawnRung<S>
where
    S: Fn() -> io::Result<PathBuf> + Send + Sync,
{
    /// `script` gives the path of the worker's script, anew for every worker: temp folders get wiped.
    pub fn new(spawner: Arc<dyn Spawner>, script: S) -> Self {
        Self { spawner, script }
    }

    async fn worker(&self, spec: WorkerSpec) -> Result<Worker, StartError> {
        let failed = |reason: String| StartError { rung: Rung::Spawn, reason };
        let script = (self.script)().map_err(|error| failed(format!("the worker script: {error}")))?;
        let command = Command {
            program: spec.node,
            args: vec![format!("--max-old-space-size={}", spec.memory_mb).into(), script.into_os_string()],
            env: spec.boot_env,
            cwd: spec.cwd,
            channel: true,
            limits: Limits::default(),
        };
        let started = self.spawner.spawn(command).await.map_err(|error| failed(error.to_string()))?;
        Ok(Worker { rung: Rung::Spawn, started })
    }
}

impl<S> Ladder for SpawnRung<S>
where
    S: Fn() -> io::Result<PathBuf> + Send + Sync,
{
    fn start(&self, spec: WorkerSpec) -> BoxFuture<'_, Result<Worker, StartError>> {
        Box::pin(self.worker(spec))
    }

    fn in_use(&self) -> (Rung, Vec<(Rung, String)>) {
        (Rung::Spawn, Vec::new())
    }
}
