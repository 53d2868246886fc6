//! The lowest rung: a Node process booted for the call. Works wherever Node does.

use std::{ffi::OsString, path::Path};

use super::{
    Breed, Rung, ScriptSource, StartError, Worker,
    cached::{self, Kind},
    node_modules,
};
use crate::process::{Command, Spawner};

/// Boots a worker that may read `tree`; `rung` is where it is told to come from.
pub(super) async fn boot(
    spawner: &dyn Spawner,
    breed: &Breed,
    scripts: &ScriptSource,
    tree: Option<&Path>,
    rung: Rung,
) -> Result<Worker, StartError> {
    let failed = |reason| StartError { rung, reason };
    let script = scripts.scripts().await.map_err(failed)?.worker;
    let user = breed.shield.draw_user().map_err(|error| failed(error.to_string()))?;
    let modules = tree.map(node_modules);
    let makes_its_own = breed.shield.workers_make_run_folders();
    let run = breed.store.0.runs().and_then(|runs| runs.prepare(makes_its_own, modules.as_deref(), user));
    let mut run = run.map_err(|error| failed(error.to_string()))?;
    if let Some((tree, name)) = tree.zip(cached::name(breed, Kind::Booted)) {
        run.offer_compile_cache(tree, &name);
    }
    let command = Command {
        program: breed.node.clone(),
        args: vec![heap_flag(breed), script.into_os_string()],
        env: breed.boot_env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: run.cwd(),
        channel: true,
        limits: breed.limits,
        confinement: breed.shield.worker(user, &run, tree),
        #[cfg(target_os = "linux")]
        attend: breed.shield.attend("a worker that is not yet a call's"),
        group: breed.shield.group().await.map_err(failed)?,
        ..Command::default()
    };
    let started = spawner.spawn(command).await.map_err(|error| failed(error.to_string()))?;
    if started.channel.is_none() {
        return Err(failed("the worker was started without a channel".to_owned()));
    }
    Ok(Worker { rung, started, run: Some(run), shares_root: false })
}

/// Node's flag for the heap limit.
pub(super) fn heap_flag(breed: &Breed) -> OsString {
    format!("--max-old-space-size={}", breed.memory_mb).into()
}
