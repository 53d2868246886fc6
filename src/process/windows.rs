//! Processes on Windows. Written against the documented interfaces, never run: there is no such machine here.
//!
//! The worker connects to the named pipe whose path is in [`CHANNEL_VARIABLE`]; stdout and stderr are named pipes too,
//! as anonymous ones cannot be read without blocking. Only the main process is killed; its descendants are not.

use std::{
    fs::OpenOptions,
    io,
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::windows::named_pipe::{NamedPipeServer, ServerOptions},
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    BoxFuture, Command, Control, Duplex, ExitStatus, Process, SpawnError, Spawner, Started, TreeState,
};

/// The variable that tells a worker where its channel is.
pub const CHANNEL_VARIABLE: &str = "NATIVE_SANDBOX_CHANNEL";

/// How long a worker may take to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How often a process is looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Starts processes as children of the host.
#[derive(Debug, Default)]
pub struct WindowsSpawner(());

impl WindowsSpawner {
    /// Nothing to prepare.
    pub fn new() -> Self {
        Self(())
    }
}

impl Spawner for WindowsSpawner {
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
        Box::pin(start(command))
    }
}

async fn start(command: Command) -> Result<Started, SpawnError> {
    let subject = command.program.display().to_string();
    let failed = |step: &'static str| {
        let subject = subject.clone();
        move |source: io::Error| SpawnError::Step { step, subject, source }
    };
    let (stdout, child_stdout) = output_pipe().map_err(failed("CreateNamedPipe"))?;
    let (stderr, child_stderr) = output_pipe().map_err(failed("CreateNamedPipe"))?;
    let path = pipe_path();
    let server = command.channel.then(|| server(&path)).transpose().map_err(failed("CreateNamedPipe"))?;

    #[expect(clippy::disallowed_methods, reason = "this is the spawner for Windows")]
    let mut process = std::process::Command::new(&command.program);
    process
        .args(&command.args)
        .env_clear()
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&command.cwd)
        .stdin(Stdio::null())
        .stdout(child_stdout)
        .stderr(child_stderr);
    if command.channel {
        process.env(CHANNEL_VARIABLE, &path);
    }
    let child = process.spawn().map_err(failed("CreateProcess"))?;
    // Its copies of the child's ends keep the pipes open.
    drop(process);
    let process = watch_over(child);
    let channel: Option<Box<dyn Duplex>> = match server {
        Some(server) => {
            let connected = timeout(CONNECT_LIMIT, server.connect()).await;
            connected
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(failed("ConnectNamedPipe"))?;
            Some(Box::new(server))
        }
        None => None,
    };
    Ok(Started { process, stdout: Box::new(stdout), stderr: Box::new(stderr), channel })
}

/// A name no other pipe has: process, count, and the clock against a number used again.
fn pipe_path() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(r"\\.\pipe\native-sandbox-{}-{count}-{now:x}", std::process::id())
}

fn server(path: &str) -> io::Result<NamedPipeServer> {
    ServerOptions::new().first_pipe_instance(true).max_instances(1).reject_remote_clients(true).create(path)
}

/// A pipe to read from, and the end to write to.
fn output_pipe() -> io::Result<(NamedPipeServer, Stdio)> {
    let path = pipe_path();
    let server = server(&path)?;
    let client = OpenOptions::new().write(true).open(Path::new(&path))?;
    Ok((server, Stdio::from(client)))
}

struct WindowsTree(Mutex<Child>);

impl Control for WindowsTree {
    /// There is no request to end on Windows.
    fn terminate(&self) {
        self.kill();
    }

    fn kill(&self) {
        // An error means that it has ended.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

fn watch_over(child: Child) -> Process {
    let pid = child.id();
    let tree = Arc::new(WindowsTree(Mutex::new(child)));
    let (state, watched) = watch::channel(TreeState::default());
    let watched_tree = Arc::clone(&tree);
    tokio::spawn(async move {
        loop {
            let ended = watched_tree.0.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            let exit = match ended {
                Ok(None) => {
                    sleep(LOOK_PAUSE).await;
                    continue;
                }
                Ok(Some(status)) => status.code().map_or(ExitStatus::Lost, ExitStatus::Code),
                Err(_) => ExitStatus::Lost,
            };
            state.send_replace(TreeState { exit: Some(exit), gone: true, cpu_us: 0, max_rss_kib: 0 });
            return;
        }
    });
    Process::new(pid, tree, watched)
}
