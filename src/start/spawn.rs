//! The lowest rung: a Node process booted for the call. Works wherever Node does.

use std::{ffi::OsString, path::PathBuf};

use super::{Breed, Rung, ScriptSource, StartError, Worker};
use crate::process::{Command, Spawner};

/// Boots a worker in `cwd`; `rung` is where it is told to come from.
pub(super) async fn boot(
    spawner: &dyn Spawner,
    breed: &Breed,
    scripts: &ScriptSource,
    cwd: PathBuf,
    rung: Rung,
) -> Result<Worker, StartError> {
    let failed = |reason| StartError { rung, reason };
    let script = scripts.scripts().await.map_err(failed)?.worker;
    let started =
        spawner.spawn(command(breed, script, cwd)).await.map_err(|error| failed(error.to_string()))?;
    if started.channel.is_none() {
        return Err(failed("the worker was started without a channel".to_owned()));
    }
    Ok(Worker { rung, started })
}

fn command(breed: &Breed, script: PathBuf, cwd: PathBuf) -> Command {
    Command {
        program: breed.node.clone(),
        args: vec![heap_flag(breed), script.into_os_string()],
        env: breed.boot_env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd,
        channel: true,
        limits: breed.limits,
        ..Command::default()
    }
}

/// Node's flag for the heap limit.
pub(super) fn heap_flag(breed: &Breed) -> OsString {
    format!("--max-old-space-size={}", breed.memory_mb).into()
}
