//! A registry, a home, a store and a plain spawner for one test.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each test takes what it needs")]

use std::{
    collections::BTreeMap,
    fs, io,
    io::{BufRead, BufReader},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};

use native_sandbox_executor::{
    install::{Bounds, DependencyPolicy, InstallContext, InstallScripts},
    process::{BoxFuture, Command, Control, ExitStatus, Process, SpawnError, Spawner, Started, TreeState},
    store::{Store, remove_dir},
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{net::unix::pipe, sync::watch};

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    pub(crate) ctx: InstallContext,
    registry: Registry,
    // Last, so that it goes after everything in it is let go of.
    folder: Folder,
}

/// A temp folder that goes even when trees without write bits are in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove_dir(self.path()).unwrap();
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        for name in ["home", "probes"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let node = node();
        let registry = Registry::start(&node, &folder.path().join("probes"));
        let home = folder.path().join("home");
        let env = [
            ("HOME", home.to_str().unwrap().to_owned()),
            ("PATH", path()),
            ("npm_config_registry", format!("http://127.0.0.1:{}/", registry.port)),
        ];
        let ctx = InstallContext {
            shield: Arc::default(),
            spawner: Arc::new(PlainSpawner),
            store: Store::open(&folder.path().join("tmp")).unwrap(),
            node,
            npm_path: None,
            env: Arc::new(env.map(|(name, value)| (name.to_owned(), value)).into()),
            policy: DependencyPolicy::default(),
            install_scripts: InstallScripts::Run,
            timeout: Duration::from_secs(50),
            about: Arc::default(),
            bounds: Bounds::default(),
        };
        Self { ctx, registry, folder }
    }

    pub(crate) fn port(&self) -> u16 {
        self.registry.port
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.edit_env(|env| drop(env.insert(name.to_owned(), value.to_owned())));
    }

    pub(crate) fn unset_env(&mut self, name: &str) {
        self.edit_env(|env| drop(env.remove(name)));
    }

    fn edit_env(&mut self, edit: impl FnOnce(&mut BTreeMap<String, String>)) {
        let mut env = (*self.ctx.env).clone();
        edit(&mut env);
        self.ctx.env = Arc::new(env);
    }

    /// The process id that a package wrote down.
    pub(crate) fn probe(&self, name: &str) -> Option<i32> {
        fs::read_to_string(self.folder.path().join("probes").join(name)).ok()?.parse().ok()
    }

    /// What node prints.
    pub(crate) fn node(&self, args: &[&str], cwd: &Path) -> String {
        let output = command(&self.ctx.node).args(args).current_dir(cwd).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn staged(&self) -> usize {
        fs::read_dir(self.ctx.store.host_dir().join("staging")).unwrap().count()
    }

    /// Folders of keys; empty ones count.
    pub(crate) fn trees(&self) -> usize {
        fs::read_dir(self.ctx.store.root().join("trees")).unwrap().count()
    }

    /// What a second process would have: the same folders, nothing else in common.
    pub(crate) fn another_process(&self) -> InstallContext {
        InstallContext { store: Store::open(&self.folder.path().join("tmp")).unwrap(), ..self.ctx.clone() }
    }

    /// After an install that was waited for, its staging is on its way out or gone.
    pub(crate) async fn nothing_staged(&self) {
        until(|| self.staged() == 0).await;
    }
}

/// Waits until `condition` holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the condition holds in time");
}

/// Whether the process lives; one that only waits to be reaped does not.
pub(crate) fn is_running(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

/// State and process group, as the kernel tells them.
fn stat(pid: i32) -> Option<(String, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let mut fields = text.rsplit(')').next()?.split_ascii_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, fields.nth(1)?.parse().ok()?))
}

struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    fn start(node: &Path, probes: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/registry.mjs");
        let mut child = command(node)
            .arg(script)
            .arg(probes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts processes in groups of their own; a tree is its group.
struct PlainSpawner;

struct Group(Pid);

impl Control for Group {
    fn terminate(&self) {
        let _ = kill_process_group(self.0, Signal::TERM);
    }

    fn kill(&self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

impl Spawner for PlainSpawner {
    fn spawn(&self, wanted: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
        Box::pin(async move {
            let subject = wanted.program.display().to_string();
            start(&wanted).map_err(|source| SpawnError::Step { step: "spawn", subject, source })
        })
    }
}

fn start(wanted: &Command) -> io::Result<Started> {
    let mut child = command(&wanted.program)
        .args(&wanted.args)
        .env_clear()
        .envs(wanted.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&wanted.cwd)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = pipe::Receiver::from_owned_fd(OwnedFd::from(child.stdout.take().unwrap()))?;
    let stderr = pipe::Receiver::from_owned_fd(OwnedFd::from(child.stderr.take().unwrap()))?;
    let pid = child.id();
    let group = Pid::from_child(&child);
    let (state, watched) = watch::channel(TreeState::default());
    std::thread::spawn(move || {
        let status = child.wait().unwrap();
        let exit = status.code().map_or(ExitStatus::Signal(0), ExitStatus::Code);
        state.send_modify(|state| state.exit = Some(exit));
        while kill_process_group(group, Signal::KILL).is_ok() && is_any_running(group) {
            std::thread::sleep(Duration::from_millis(1));
        }
        state.send_modify(|state| state.gone = true);
    });
    let process = Process::new(pid, Arc::new(Group(group)), watched);
    Ok(Started { process, stdout: Box::new(stdout), stderr: Box::new(stderr), channel: None })
}

/// Whether anything but zombies is left of a group.
fn is_any_running(group: Pid) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.into_iter().filter_map(stat).any(|(state, found)| found == group.as_raw_pid() && state != "Z")
}

pub(crate) fn npm_cli() -> PathBuf {
    let npm = std::env::split_paths(&path()).map(|dir| dir.join("npm")).find(|npm| npm.exists());
    npm.expect("npm is on PATH").canonicalize().unwrap()
}

fn node() -> PathBuf {
    let node = std::env::split_paths(&path()).map(|dir| dir.join("node")).find(|node| node.exists());
    node.expect("node is on PATH")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no JavaScript surface that reads the environment for it"
)]
fn path() -> String {
    std::env::var("PATH").unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the tests' own processes")]
fn command(program: &Path) -> std::process::Command {
    std::process::Command::new(program)
}
