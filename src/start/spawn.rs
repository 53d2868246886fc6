//! The lowest rung: a Node process booted for the call. Works wherever Node does.

use std::{ffi::OsString, io, path::PathBuf, sync::Arc};

use super::{Ladder, Rung, StartError, Worker, WorkerSpec};
use crate::process::{BoxFuture, Command, Limits, Spawner};

/// Gives the worker script's path, writing the script if it is not there. May block.
type Script = dyn Fn() -> io::Result<PathBuf> + Send + Sync;

/// A ladder of this one rung.
pub struct SpawnRung {
    spawner: Arc<dyn Spawner>,
    script: Arc<Script>,
}

impl SpawnRung {
    /// `script` gives the path of [`crate::worker::WORKER_SCRIPT`] on disk. It is asked for each worker, off the async
    /// threads, since temp folders get wiped under long-running hosts.
    pub fn new(
        spawner: Arc<dyn Spawner>,
        script: impl Fn() -> io::Result<PathBuf> + Send + Sync + 'static,
    ) -> Self {
        Self { spawner, script: Arc::new(script) }
    }

    async fn spawn(&self, spec: WorkerSpec) -> Result<Worker, String> {
        let script = Arc::clone(&self.script);
        let path = match tokio::task::spawn_blocking(move || script()).await {
            Ok(Ok(path)) => path,
            Ok(Err(error)) => return Err(format!("the worker's script cannot be put on disk: {error}")),
            Err(error) => return Err(format!("the worker's script cannot be put on disk: {error}")),
        };
        let started = self.spawner.spawn(command(spec, path)).await.map_err(|error| error.to_string())?;
        if started.channel.is_none() {
            return Err("the worker was started without a channel".to_owned());
        }
        Ok(Worker { rung: Rung::Spawn, started })
    }
}

impl Ladder for SpawnRung {
    fn start(&self, spec: WorkerSpec) -> BoxFuture<'_, Result<Worker, StartError>> {
        Box::pin(
            async move { self.spawn(spec).await.map_err(|reason| StartError { rung: Rung::Spawn, reason }) },
        )
    }

    fn in_use(&self) -> (Rung, Vec<(Rung, String)>) {
        (Rung::Spawn, Vec::new())
    }
}

fn command(spec: WorkerSpec, script: PathBuf) -> Command {
    let heap = OsString::from(format!("--max-old-space-size={}", spec.memory_mb));
    Command {
        program: spec.node,
        args: vec![heap, script.into_os_string()],
        env: spec.boot_env,
        cwd: spec.cwd,
        channel: true,
        limits: Limits::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::watch;

    use super::*;
    use crate::process::{Control, Process, SpawnError, Started, TreeState};

    struct Inert;

    impl Control for Inert {
        fn terminate(&self) {}
        fn kill(&self) {}
    }

    /// Starts nothing; keeps what was asked for.
    #[derive(Default)]
    struct FakeSpawner {
        asked: Mutex<Vec<Command>>,
        channel: bool,
        fails: bool,
    }

    impl Spawner for FakeSpawner {
        fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
            let subject = command.program.display().to_string();
            self.asked.lock().unwrap().push(command);
            let answer = if self.fails {
                let source = io::Error::from(io::ErrorKind::NotFound);
                Err(SpawnError::Step { step: "execve", subject, source })
            } else {
                let (_, state) = watch::channel(TreeState { gone: true, ..TreeState::default() });
                Ok(Started {
                    process: Process::new(1, Arc::new(Inert), state),
                    stdout: Box::new(tokio::io::empty()),
                    stderr: Box::new(tokio::io::empty()),
                    channel: self.channel.then(|| Box::new(tokio::io::empty()) as _),
                })
            };
            Box::pin(async move { answer })
        }
    }

    fn spec() -> WorkerSpec {
        WorkerSpec {
            node: "/bin/node".into(),
            memory_mb: 64,
            boot_env: vec![("TZ".into(), "UTC".into())],
            tree: Arc::new("/t".into()),
            cwd: "/r/1".into(),
        }
    }

    async fn start(
        spawner: FakeSpawner,
        script: io::Result<&'static str>,
    ) -> (Arc<FakeSpawner>, Result<Rung, String>) {
        let spawner = Arc::new(spawner);
        let script = script.map(PathBuf::from).map_err(|error| error.kind());
        let rung = SpawnRung::new(Arc::clone(&spawner) as _, move || script.clone().map_err(io::Error::from));
        assert_eq!(rung.in_use(), (Rung::Spawn, Vec::new()));
        let started = rung.start(spec()).await;
        (spawner, started.map(|worker| worker.rung).map_err(|error| error.to_string()))
    }

    #[tokio::test]
    async fn a_worker_is_node_with_the_script_and_a_channel() {
        let (spawner, started) =
            start(FakeSpawner { channel: true, ..Default::default() }, Ok("/s/worker.cjs")).await;
        assert_eq!(started, Ok(Rung::Spawn));
        let asked = spawner.asked.lock().unwrap();
        let [command] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!(command.program, PathBuf::from("/bin/node"));
        assert_eq!(command.args, ["--max-old-space-size=64", "/s/worker.cjs"]);
        assert_eq!(command.env, [(OsString::from("TZ"), OsString::from("UTC"))]);
        assert_eq!(command.cwd, PathBuf::from("/r/1"));
        assert!(command.channel);
    }

    #[tokio::test]
    async fn reasons_can_be_read() {
        let (_, started) =
            start(FakeSpawner { fails: true, ..Default::default() }, Ok("/s/worker.cjs")).await;
        assert_eq!(
            started.unwrap_err(),
            "could not start a worker (Spawn): execve /bin/node: entity not found"
        );

        let denied = Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let (spawner, started) = start(FakeSpawner { channel: true, ..Default::default() }, denied).await;
        assert_eq!(
            started.unwrap_err(),
            "could not start a worker (Spawn): the worker's script cannot be put on disk: permission denied"
        );
        assert!(spawner.asked.lock().unwrap().is_empty());

        let (_, started) = start(FakeSpawner::default(), Ok("/s/worker.cjs")).await;
        assert!(started.unwrap_err().ends_with("without a channel"));
    }
}
