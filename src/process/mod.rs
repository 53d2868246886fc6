//! Processes as the core sees them: started by a [`Spawner`], ended as a tree, waited for without blocking.
//!
//! `launcher.rs` is the Linux implementation (through the launcher process), `plain.rs` the one without it.

#[cfg(unix)]
pub mod choice;
#[cfg(target_os = "linux")]
pub mod companions;
#[cfg(unix)]
mod ends;
#[cfg(target_os = "linux")]
pub mod launcher;
#[cfg(unix)]
mod own_child;
#[cfg(unix)]
pub mod plain;
#[cfg(windows)]
pub mod windows;
#[cfg(target_os = "linux")]
pub mod zygote;

#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU32, Ordering};
use std::{ffi::OsString, fmt, future::Future, path::PathBuf, pin::Pin, sync::Arc};

use native_sandbox_confine::{Mark, Plan};
use native_sandbox_protocol::trial::Trial;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

use crate::group::Group;

/// How often a process that serves the host is looked at: a function may have stopped it.
#[cfg(target_os = "linux")]
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(250);

/// Ticks at which such a process is looked at, the first of them one interval from now.
#[cfg(target_os = "linux")]
fn looks_for_a_stop(interval: std::time::Duration) -> tokio::time::Interval {
    let mut looks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    looks
}

/// A bidirectional byte stream to a worker: descriptor 3 on its side.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    /// A second way to write to it; `None` where there is none.
    fn shortcut(&self) -> Option<Shortcut> {
        None
    }
}

#[cfg(unix)]
impl Duplex for tokio::net::UnixStream {
    #[cfg(target_os = "linux")]
    fn shortcut(&self) -> Option<Shortcut> {
        // Without a descriptor to spare everything goes the usual way.
        std::os::fd::AsFd::as_fd(self).try_clone_to_owned().ok().map(Shortcut)
    }
}

#[cfg(windows)]
impl Duplex for tokio::net::windows::named_pipe::NamedPipeServer {}

#[cfg(test)]
impl Duplex for tokio::io::DuplexStream {}

/// Writes to a channel from any thread, without waking the runtime. It keeps the channel open.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "made on Linux only"))]
pub struct Shortcut(#[cfg(unix)] std::os::fd::OwnedFd, #[cfg(not(unix))] std::convert::Infallible);

impl Shortcut {
    /// Writes what there is room for at once, and gives how many bytes that were. Never blocks, raises no signal.
    #[cfg(target_os = "linux")]
    pub fn write(&self, bytes: &[u8]) -> std::io::Result<usize> {
        use rustix::{
            io::Errno,
            net::{SendFlags, send},
        };
        match send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            sent => Ok(sent?),
        }
    }

    /// See above: there is none to call this on.
    #[cfg(not(target_os = "linux"))]
    pub fn write(&self, _bytes: &[u8]) -> std::io::Result<usize> {
        Ok(0)
    }
}

/// What to start. stdin is at its end, stdout and stderr are pipes, every other descriptor is closed.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Working folder.
    pub cwd: PathBuf,
    /// Whether the process gets a channel at descriptor 3.
    pub channel: bool,
    /// Kernel limits set before the program starts.
    pub limits: Limits,
    /// What the process gets as descriptor 3 instead of a channel.
    #[cfg(unix)]
    pub descriptor_3: Option<Arc<std::os::fd::OwnedFd>>,
    /// What the process gets as descriptor 4. Only the launcher can do that.
    #[cfg(unix)]
    pub descriptor_4: Option<Arc<std::os::fd::OwnedFd>>,
    /// The program will fork itself: the memory of V8 must pass on to its children.
    pub forks: bool,
    /// What the process gives up before the program runs. Only the launcher can do that.
    pub confinement: Option<Arc<Plan>>,
    /// The control group that the process enters before anything else. Only the launcher can do that.
    pub group: Option<Arc<Group>>,
    /// Who answers what a filter of the plan that asks wants to know: needed with such a plan.
    #[cfg(unix)]
    pub attend: Option<Arc<dyn Attend>>,
    /// Instead of running the program, try what the confinement should forbid, and say on stdout what came of it.
    pub trial: Option<Trial>,
}

/// Answers what the filter of a process asks.
#[cfg(unix)]
pub trait Attend: Send + Sync {
    /// Takes the filter's listener, in the tokio runtime current then. Closing it closes what is asked about.
    fn attend(&self, listener: std::os::fd::OwnedFd);
}

#[cfg(unix)]
impl fmt::Debug for dyn Attend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attend")
    }
}

/// Kernel limits of a process; `None` leaves what the host has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// `RLIMIT_NOFILE`.
    pub open_files: Option<u64>,
    /// `RLIMIT_FSIZE`, bytes.
    pub file_size_bytes: Option<u64>,
    /// `RLIMIT_CPU`, seconds.
    pub cpu_seconds: Option<u64>,
    /// `RLIMIT_DATA`, bytes.
    pub data_bytes: Option<u64>,
}

/// A started process with its ends of pipes and channel.
pub struct Started {
    /// The process itself; dropping it kills its tree.
    pub process: Process,
    /// What it writes to stdout.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// What it writes to stderr.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Present when [`Command::channel`] was set.
    pub channel: Option<Box<dyn Duplex>>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// By `exit`, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Unknown: whoever watched it (the launcher) is gone, and the process was ended with it.
    Lost,
}

impl ExitStatus {
    /// The code, where it ended by one.
    pub fn code(self) -> Option<i32> {
        if let Self::Code(code) = self { Some(code) } else { None }
    }

    /// The name of the signal, where one that has a name ended it.
    pub fn signal_name(self) -> Option<&'static str> {
        if let Self::Signal(signal) = self { crate::worker::outcome::signal_name(signal) } else { None }
    }
}

/// What is known of a process tree; only ever advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeState {
    /// Set once the main process was reaped.
    pub exit: Option<ExitStatus>,
    /// Set once nothing of the tree is left (implies `exit`).
    pub gone: bool,
    /// CPU time (user + system) of the main process and its waited-for children, in microseconds; set with `exit`.
    pub cpu_us: u64,
    /// Peak resident set of the main process, in KiB; set with `exit`.
    pub max_rss_kib: u64,
}

/// What can be done to a running tree. Calls never block and never fail: what is dead already is fine.
pub trait Control: Send + Sync {
    /// SIGTERM to every process of the tree that can be found.
    fn terminate(&self);
    /// SIGKILL to every process of the tree, and to whatever turns up of it later, until it is gone.
    fn kill(&self);
}

/// The owner of a process tree. Dropping it kills the tree.
pub struct Process {
    pid: u32,
    control: Arc<dyn Control>,
    state: watch::Receiver<TreeState>,
    held: Option<Arc<()>>,
    keepers: u32,
    group: Option<Arc<Group>>,
    mark: Option<Mark>,
}

impl Process {
    /// Made by a [`Spawner`]; tests make their own.
    pub fn new(pid: u32, control: Arc<dyn Control>, state: watch::Receiver<TreeState>) -> Self {
        Self { pid, control, state, held: None, keepers: 0, group: None, mark: None }
    }

    /// Keeps `token` for as long as this lives: who gave it out can count what is in use.
    pub fn hold(&mut self, token: Arc<()>) {
        self.held = Some(token);
    }

    /// Gives the token of [`Self::hold`] back before the process is gone.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Process id in the host's PID namespace; valid until `gone`. 0 if it has none there.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Says how many of the tree's processes only keep its PID namespace.
    #[must_use]
    pub fn kept_by(mut self, keepers: u32) -> Self {
        self.keepers = keepers;
        self
    }

    /// How many of the tree's processes are nobody's but only keep its PID namespace.
    pub fn keepers(&self) -> u32 {
        self.keepers
    }

    /// What can be done to it while another waits for it.
    pub fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    /// Marks it as a call's, so that all it starts from now on can be told from what others started. Where that cannot be done there is no
    /// mark.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn marked(mut self) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pid = i32::try_from(self.pid).unwrap_or(0);
        let launcher = Some(pid).filter(|pid| *pid > 1).and_then(crate::sys::mark_of);
        let mark = launcher.map(|mark| mark.of_call(NEXT.fetch_add(1, Ordering::Relaxed)));
        self.mark = mark.filter(|mark| crate::sys::set_mark(pid, *mark));
        self
    }

    /// What it and all that it starts is marked by.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Says which control group it and all that it starts are in.
    #[must_use]
    pub fn in_group(mut self, group: Option<Arc<Group>>) -> Self {
        self.group = group;
        self
    }

    /// Its control group, if it has one of its own.
    pub fn group(&self) -> Option<&Arc<Group>> {
        self.group.as_ref()
    }

    /// See [`Control::terminate`].
    pub fn terminate(&self) {
        self.control.terminate();
    }

    /// See [`Control::kill`].
    pub fn kill(&self) {
        self.control.kill();
        if let Some(group) = &self.group {
            group.kill();
        }
    }

    /// What becomes of it.
    #[cfg(target_os = "linux")]
    fn watch(&self) -> watch::Receiver<TreeState> {
        self.state.clone()
    }

    /// What is known now.
    pub fn state(&self) -> TreeState {
        *self.state.borrow()
    }

    /// Waits for the main process to end. Cancel-safe; may be called again.
    pub async fn exited(&mut self) -> ExitStatus {
        match self.state.wait_for(|state| state.exit.is_some()).await {
            Ok(state) => state.exit.unwrap_or(ExitStatus::Lost),
            Err(_) => ExitStatus::Lost,
        }
    }

    /// Waits until nothing of the tree is left. Cancel-safe; may be called again.
    pub async fn gone(&mut self) {
        // A watcher that went away without saying so has ended its trees.
        let _ = self.state.wait_for(|state| state.gone).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let is_gone = self.state.borrow().gone;
        if !is_gone {
            self.kill();
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("pid", &self.pid)
            .field("held", &self.held.is_some())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// A step on the way failed; `step` names it (`execve`, `chdir`, `pipe`, …).
    #[error("{step} {subject}: {source}")]
    Step {
        /// The system call or act that failed.
        step: &'static str,
        /// What it was about, often a path.
        subject: String,
        /// The system's word.
        source: std::io::Error,
    },
    /// The launcher went away before it answered.
    #[error("the launcher ended before it could start {program}")]
    LauncherLost {
        /// What was to be started.
        program: String,
    },
    /// There is no launcher: its binary cannot be run, or a launcher has just failed to start.
    #[error("the launcher {path} cannot be used: {reason}")]
    LauncherUnavailable {
        /// Its binary.
        path: String,
        /// Why, and what to do.
        reason: String,
        /// Whether the reason may pass by itself: a shortage, a time-out, a launcher that somebody killed.
        passing: bool,
    },
    /// Arguments and environment do not fit into one request.
    #[error("arguments and environment of {program} are too large: {bytes} bytes, at most {limit_bytes}")]
    TooLarge {
        /// What was to be started.
        program: String,
        /// Their size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
}

/// A pinned, boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Starts processes. Dropping the future before it is ready leaves no process behind.
pub trait Spawner: Send + Sync {
    /// Starts one.
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>>;
}
