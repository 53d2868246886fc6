//! Processes without a launcher (Unix): where there is no Linux, or the launcher cannot be run.
//!
//! What is missing against the launcher: a descendant that left the process group is found only below a living parent
//! (Linux) or not at all (elsewhere), the death of the host ends nothing by itself, and a descriptor that the host has
//! open without close-on-exec is inherited.

use std::{
    ffi::OsString,
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{sync::watch, time::sleep};

use super::{
    BoxFuture, Command, Control, Limits, Process, SpawnError, Spawner, Started, TreeState,
    ends::{self, ChildEnds},
    own_child::OwnChild,
};

/// The shell that places the channel and sets limits, then becomes the program.
const SHELL: &str = "/bin/sh";

/// How often a group whose main process is gone is looked at: this first, doubled up to the longest.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Variables that a shell sets for itself.
const SHELL_VARIABLES: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

/// Starts processes as children of the host, by `posix_spawn`, each in a process group of its own.
///
/// With a channel or limits the program is started through `/bin/sh`. The environment is then exact but for two things
/// that depend on the shell: variables whose name is no identifier may be missing, and a shell that is bash adds `_`.
#[derive(Debug, Default)]
pub struct PlainSpawner(());

impl PlainSpawner {
    /// Nothing to prepare.
    pub fn new() -> Self {
        Self(())
    }
}

impl Spawner for PlainSpawner {
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
        // Without an await in it: whoever polls it has the process in hand before it can be cancelled.
        Box::pin(async move { start(&command) })
    }
}

fn start(command: &Command) -> Result<Started, SpawnError> {
    let program = command.program.display().to_string();
    let confined = command.confinement.is_some() || command.trial.is_some();
    let given = command.descriptor_3.is_some() || command.descriptor_4.is_some();
    if command.forks || given || command.group.is_some() || confined {
        let source = io::Error::new(io::ErrorKind::Unsupported, "needs the launcher");
        return Err(SpawnError::Step { step: "start", subject: program, source });
    }
    check(command)?;
    let (host_ends, child_ends) = ends::make(command.channel, &program)?;
    let child = run(command, child_ends).map_err(|source| SpawnError::Step {
        step: "posix_spawn",
        subject: program.clone(),
        source,
    })?;
    let tree = Arc::new(PlainTree {
        group: child.id(),
        over: AtomicBool::new(false),
        killed: AtomicBool::new(false),
    });
    let (state, watched) = watch::channel(TreeState::default());
    let watch = Watcher { child: OwnChild::new(child.id()), tree: Arc::clone(&tree), state };
    let process = Process::new(child.id(), tree, watched);
    tokio::spawn(watch.run());
    host_ends.started(process, &program)
}

/// The shell's own words for these would end up in the output, long after the start.
fn check(command: &Command) -> Result<(), SpawnError> {
    let failed =
        |step, path: &Path, source| SpawnError::Step { step, subject: path.display().to_string(), source };
    let folder = std::fs::metadata(&command.cwd).map_err(|error| failed("chdir", &command.cwd, error))?;
    if !folder.is_dir() {
        return Err(failed("chdir", &command.cwd, io::ErrorKind::NotADirectory.into()));
    }
    let program = &command.program;
    let file = std::fs::metadata(program).map_err(|error| failed("execve", program, error))?;
    rustix::fs::access(program, rustix::fs::Access::EXEC_OK)
        .map_err(|error| failed("execve", program, error.into()))?;
    if !file.is_file() {
        return Err(failed("execve", program, io::ErrorKind::PermissionDenied.into()));
    }
    Ok(())
}

/// Nothing in here may need a hook between fork and exec: without one, the standard library uses `posix_spawn`.
fn run(command: &Command, ends: ChildEnds) -> io::Result<std::process::Child> {
    let script = script(command);
    #[expect(clippy::disallowed_methods, reason = "this is the spawner for where there is no launcher")]
    let mut child = match &script {
        Some(script) => {
            let mut shell = std::process::Command::new(SHELL);
            shell.arg("-c").arg(script).arg(SHELL).arg(&command.program);
            shell
        }
        None => std::process::Command::new(&command.program),
    };
    child
        .args(&command.args)
        .env_clear()
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&command.cwd)
        .process_group(0)
        .stdin(ends.channel.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::from(ends.stdout))
        .stderr(Stdio::from(ends.stderr));
    child.spawn()
}

/// What the shell does before it becomes the program; none when it is not needed.
fn script(command: &Command) -> Option<String> {
    let limits = limits(command.limits);
    if limits.is_empty() && !command.channel {
        return None;
    }
    let is_given = |name: &&str| {
        command.env.iter().any(|(given, _): &(OsString, OsString)| given.as_bytes() == name.as_bytes())
    };
    let unset: Vec<&str> = SHELL_VARIABLES.into_iter().filter(|name| !is_given(name)).collect();
    let unset = if unset.is_empty() { String::new() } else { format!("unset {}\n", unset.join(" ")) };
    let channel = if command.channel { " 3<&0 0</dev/null" } else { "" };
    Some(format!("{limits}{unset}exec \"$@\"{channel}"))
}

/// Limits as shell commands. A value above the hard limit in force cannot be set, and means that limit. No core files.
fn limits(limits: Limits) -> String {
    use std::fmt::Write as _;

    let mut text = String::new();
    if limits == Limits::default() {
        return text;
    }
    let mut set = |option: &str, value: u64| {
        let _ = writeln!(
            text,
            "ulimit {option} {value} 2>/dev/null || ulimit {option} \"$(ulimit -H {option})\""
        );
    };
    set("-c", 0);
    if let Some(files) = limits.open_files {
        set("-n", files);
    }
    if let Some(bytes) = limits.file_size_bytes {
        // In blocks of 512 bytes, as POSIX has it.
        set("-f", bytes.div_ceil(512));
    }
    if let Some(bytes) = limits.data_bytes {
        set("-d", bytes.div_ceil(1024));
    }
    if let Some(seconds) = limits.cpu_seconds {
        // Soft: SIGXCPU; hard: SIGKILL a second later.
        let hard = seconds.saturating_add(1);
        let _ = writeln!(text, "ulimit -S -t {seconds} 2>/dev/null\nulimit -H -t {hard} 2>/dev/null");
    }
    text
}

/// A process group and what is below its leader.
struct PlainTree {
    group: u32,
    /// Set when nothing of it is left: its number may be another's then.
    over: AtomicBool,
    killed: AtomicBool,
}

impl PlainTree {
    fn pid(&self) -> Option<Pid> {
        let pid = Pid::from_raw(i32::try_from(self.group).ok()?)?;
        (pid != Pid::INIT && !self.over.load(Ordering::Acquire)).then_some(pid)
    }

    fn signal(&self, signal: Signal) {
        let Some(group) = self.pid() else { return };
        // Seen before the signal: afterwards they may have lost the parent by which they are found.
        let outside = Outside::of(group);
        let _ = kill_process_group(group, signal);
        outside.signal(signal);
    }

    fn is_empty(&self) -> bool {
        self.pid().is_none_or(|group| {
            test_kill_process_group(group) == Err(rustix::io::Errno::SRCH) || only_zombies(group)
        })
    }
}

/// Whether all of a group is dead and waits for a parent that may never reap: a host that is a container's first
/// process gets every orphan, and does not ask for them.
#[cfg(target_os = "linux")]
fn only_zombies(group: Pid) -> bool {
    let group = group.as_raw_pid();
    crate::sys::processes().iter().all(|entry| entry.group != group || entry.zombie)
}

#[cfg(not(target_os = "linux"))]
fn only_zombies(_group: Pid) -> bool {
    false
}

impl Control for PlainTree {
    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.signal(Signal::KILL);
    }
}

/// Descendants of a group's leader that left the group, as far as they can be seen.
struct Outside {
    #[cfg(target_os = "linux")]
    group: i32,
    /// All descendants: one that is in the group still may leave it before the group is signalled.
    #[cfg(target_os = "linux")]
    entries: Vec<native_sandbox_protocol::stat::Entry>,
}

impl Outside {
    #[cfg(target_os = "linux")]
    fn of(group: Pid) -> Self {
        use native_sandbox_protocol::stat::below;
        let all = crate::sys::processes();
        let group = group.as_raw_pid();
        // Below any member: a member whose parent died has lost its way to the leader, not its group.
        let members: Vec<i32> =
            all.iter().filter(|entry| entry.group == group).map(|entry| entry.pid).collect();
        Self { group, entries: below(&all, &members) }
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_group: Pid) -> Self {
        Self {}
    }

    #[cfg(target_os = "linux")]
    fn signal(&self, signal: Signal) {
        for entry in &self.entries {
            if crate::sys::is_outside(entry, self.group) {
                crate::sys::signal_exactly(entry, signal);
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn signal(&self, _signal: Signal) {}
}

/// Waits for the end of a tree and tells it. Dropped before that (with its runtime), it kills the tree.
struct Watcher {
    child: OwnChild,
    tree: Arc<PlainTree>,
    state: watch::Sender<TreeState>,
}

impl Watcher {
    async fn run(mut self) {
        let ended = self.child.ended().await;
        let state = TreeState {
            exit: Some(ended.status),
            gone: false,
            cpu_us: ended.cpu_us,
            max_rss_kib: ended.max_rss_kib,
        };
        self.state.send_replace(state);
        let mut pause = LOOK_MIN;
        while !self.tree.is_empty() {
            if self.tree.killed.load(Ordering::Acquire) {
                self.tree.signal(Signal::KILL);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOK_MAX);
        }
        self.tree.over.store(true, Ordering::Release);
        self.state.send_modify(|state| state.gone = true);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.tree.kill();
        self.tree.over.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_is_left_out_where_it_is_not_needed() {
        assert_eq!(script(&Command::default()), None);
        let limits = Limits { open_files: Some(9), ..Limits::default() };
        assert!(script(&Command { limits, ..Command::default() }).is_some());
    }

    #[test]
    fn variables_of_the_shell_stay_when_they_were_given() {
        let command = Command { channel: true, env: vec![("PWD".into(), "/x".into())], ..Command::default() };
        let expected = "unset OLDPWD SHLVL _\nexec \"$@\" 3<&0 0</dev/null";
        assert_eq!(script(&command).as_deref(), Some(expected));
    }
}
