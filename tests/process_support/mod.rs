//! What the tests of processes share: both spawners, marked commands, and a look at what is left.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "test code, and each test uses its part")]

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use native_sandbox_executor::process::{Command, Limits, Started};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// How long anything may take before a test gives up; generous, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(30);

const MARK: &str = "PROCESS_TEST_MARK";

/// Where `cargo build --workspace` puts the launcher.
#[cfg(target_os = "linux")]
pub fn launcher_binary() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let binary = this.parent().and_then(|deps| deps.parent()).unwrap().join("native-sandbox-launcher");
    assert!(
        binary.is_file(),
        "{} is missing: run `cargo build --workspace --no-default-features` first",
        binary.display()
    );
    binary
}

#[cfg(target_os = "linux")]
pub fn launcher() -> native_sandbox_executor::process::launcher::LauncherSpawner {
    native_sandbox_executor::process::launcher::LauncherSpawner::new(launcher_binary())
}

/// A mark of its own for each test: what it started carries it, all the way down.
pub struct Mark(String);

impl Mark {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn env(&self) -> Vec<(OsString, OsString)> {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        vec![("PATH".into(), path.into()), (MARK.into(), self.0.clone().into())]
    }

    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        Command {
            program: program.into(),
            args: args.iter().map(OsString::from).collect(),
            env: self.env(),
            cwd: "/".into(),
            channel: false,
            limits: Limits::default(),
            ..Command::default()
        }
    }

    pub fn shell(&self, script: &str) -> Command {
        self.command("/bin/sh", &["-c", script])
    }

    /// Living processes that carry it. A zombie has no environment any more.
    pub fn living(&self) -> Vec<i32> {
        let entry = format!("{MARK}={}", self.0);
        let has_mark = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_mark).collect()
    }

    pub async fn until_living(&self, count: usize) {
        until(&format!("{count} processes"), || self.living().len() == count).await;
    }
}

/// Waits for a condition that nothing announces.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whatever it is, in time.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

pub async fn text(mut pipe: impl AsyncRead + Unpin) -> String {
    let mut text = String::new();
    soon(pipe.read_to_string(&mut text)).await.unwrap();
    text
}

pub async fn line(pipe: &mut (impl AsyncRead + Unpin)) -> String {
    let mut line = String::new();
    // One byte at a time, so that nothing is read that a later reader wants.
    soon(BufReader::with_capacity(1, pipe).read_line(&mut line)).await.unwrap();
    line.trim_end().to_owned()
}

/// Everything it wrote to stdout, and its end.
pub async fn output(started: Started) -> (String, native_sandbox_executor::process::ExitStatus) {
    let Started { mut process, stdout, stderr, .. } = started;
    let (out, err) = tokio::join!(text(stdout), text(stderr));
    let exit = soon(process.exited()).await;
    soon(process.gone()).await;
    assert_eq!(err, "");
    (out, exit)
}

/// This process's open descriptors.
pub fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
