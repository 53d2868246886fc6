//! The launcher as the host sees it: started when needed, replaced when lost, ended when idle.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

mod process_support;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use native_sandbox_executor::process::{
    Command, ExitStatus, SpawnError, Spawner, Started, launcher::LauncherSpawner,
};
use process_support::{Mark, launcher, launcher_binary, line, output, soon, until};
use rustix::process::{Pid, Signal, kill_process};

async fn signal(spawner: &LauncherSpawner, signal: Signal) -> u32 {
    let pid = spawner.launcher_pid().await.unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
    pid
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

async fn works(spawner: &LauncherSpawner) {
    let started = soon(spawner.spawn(Mark::new().shell("echo fine"))).await.unwrap();
    assert_eq!(output(started).await, ("fine\n".into(), ExitStatus::Code(0)));
}

#[tokio::test]
async fn a_crashed_launcher_takes_its_processes_along_and_is_replaced() {
    let spawner = launcher();
    let mark = Mark::new();
    let Started { mut process, .. } = soon(spawner.spawn(mark.shell("sleep 1000 & wait"))).await.unwrap();
    mark.until_living(2).await;
    let crashed = signal(&spawner, Signal::KILL).await;
    assert_eq!(soon(process.exited()).await, ExitStatus::Lost);
    soon(process.gone()).await;
    assert_eq!(mark.living(), [0; 0]);
    assert!(!exists(crashed));
    works(&spawner).await;
    assert_ne!(spawner.launcher_pid().await, Some(crashed));
}

#[tokio::test]
async fn a_stuck_launcher_is_replaced() {
    let spawner = launcher()
        .with_answer_limit(Duration::from_millis(300))
        .with_look_interval(Duration::from_secs(1000));
    let mark = Mark::new();
    let Started { mut process, .. } = soon(spawner.spawn(mark.shell("exec sleep 1000"))).await.unwrap();
    let stuck = signal(&spawner, Signal::STOP).await;
    let error = soon(spawner.spawn(mark.shell("exec sleep 1000"))).await.err().unwrap();
    assert!(matches!(error, SpawnError::LauncherLost { .. }), "{error:?}");
    assert_eq!(soon(process.exited()).await, ExitStatus::Lost);
    soon(process.gone()).await;
    assert_eq!(mark.living(), [0; 0]);
    assert!(!exists(stuck));
    let spawner = spawner.with_answer_limit(Duration::from_secs(10));
    works(&spawner).await;
}

#[tokio::test]
async fn a_stopped_launcher_goes_on() {
    let spawner = launcher().with_look_interval(Duration::from_millis(20));
    let mark = Mark::new();
    let Started { mut process, .. } = soon(spawner.spawn(mark.shell("exec sleep 1000"))).await.unwrap();
    let stopped = signal(&spawner, Signal::STOP).await;
    works(&spawner).await;
    assert_eq!(spawner.launcher_pid().await, Some(stopped));
    process.kill();
    assert_eq!(soon(process.exited()).await, ExitStatus::Signal(Signal::KILL.as_raw()));
    soon(process.gone()).await;
}

#[tokio::test]
async fn only_the_promised_descriptors_are_open() {
    let spawner = launcher();
    for (channel, expected) in [(false, "0, 1, 2\n"), (true, "0, 1, 2, 3\n")] {
        let command = Command { channel, ..Mark::new().shell("ls -m /proc/$$/fd") };
        assert_eq!(output(soon(spawner.spawn(command)).await.unwrap()).await.0, expected);
    }
}

#[tokio::test]
async fn what_forked_away_dies_with_the_kill() {
    let spawner = launcher();
    let mark = Mark::new();
    let script = "(setsid sh -c 'sleep 1000 & echo up; wait' &); exit 0";
    let Started { mut process, mut stdout, .. } = soon(spawner.spawn(mark.shell(script))).await.unwrap();
    assert_eq!(line(&mut stdout).await, "up");
    soon(process.exited()).await;
    mark.until_living(2).await;
    process.kill();
    soon(process.gone()).await;
    assert_eq!(mark.living(), [0; 0]);
}

#[tokio::test]
async fn it_is_started_once_and_ended_when_idle() {
    let spawner = launcher();
    assert_eq!(spawner.launcher_pid().await, None);
    assert!(spawner.shutdown().await);
    works(&spawner).await;
    let first = spawner.launcher_pid().await.unwrap();
    works(&spawner).await;
    assert_eq!(spawner.launcher_pid().await, Some(first));

    let mark = Mark::new();
    let Started { mut process, .. } = soon(spawner.spawn(mark.shell("exec sleep 1000"))).await.unwrap();
    assert!(!spawner.shutdown().await);
    assert!(exists(first));
    process.kill();
    soon(process.gone()).await;
    assert!(soon(spawner.shutdown()).await);
    assert!(!exists(first));
    works(&spawner).await;
}

#[tokio::test]
async fn it_ends_with_the_spawner_and_the_last_process() {
    let spawner = launcher();
    let mark = Mark::new();
    let started = soon(spawner.spawn(mark.shell("exec sleep 1000"))).await.unwrap();
    let pid = spawner.launcher_pid().await.unwrap();
    drop(spawner);
    assert_eq!(started.process.state().exit, None);
    drop(started);
    until("the launcher is gone", || !exists(pid)).await;
    assert_eq!(mark.living(), [0; 0]);
}

#[test]
fn it_ends_with_its_runtime_and_another_one_starts_another() {
    let spawner = launcher();
    let mark = Mark::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let mut started =
        first.block_on(async { soon(spawner.spawn(mark.shell("sleep 1000 & wait"))).await.unwrap() });
    let pid = first.block_on(spawner.launcher_pid()).unwrap();
    drop(first);
    let second = runtime();
    second.block_on(async {
        assert_eq!(soon(started.process.exited()).await, ExitStatus::Lost);
        until("the launcher is gone", || !exists(pid)).await;
        mark.until_living(0).await;
        works(&spawner).await;
        assert!(spawner.shutdown().await);
    });
}

#[tokio::test]
async fn a_binary_without_its_run_bit_runs_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("launcher");
    fs::copy(launcher_binary(), &binary).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o644)).unwrap();
    let spawner = LauncherSpawner::new(binary);
    works(&spawner).await;
    assert!(spawner.shutdown().await);
}

#[tokio::test]
async fn a_binary_that_cannot_be_run_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let text = folder.path().join("text");
    fs::write(&text, "no program").unwrap();
    for binary in [missing, text] {
        let spawner = LauncherSpawner::new(binary.clone());
        let error = soon(spawner.spawn(Mark::new().shell("exit 0"))).await.err().unwrap();
        assert!(
            matches!(&error, SpawnError::LauncherUnavailable { path, .. } if *path == binary.display().to_string()),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_launcher_that_keeps_dying_is_not_started_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("launcher");
    let starts = folder.path().join("starts");
    fs::write(&binary, format!("#!/bin/sh\necho x >> {}\nexit 9\n", starts.display())).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let spawner = LauncherSpawner::new(binary);
    let mut reasons = Vec::new();
    for _ in 0..5 {
        let error = soon(spawner.spawn(Mark::new().shell("exit 0"))).await.err().unwrap();
        let SpawnError::LauncherUnavailable { reason, .. } = error else { panic!("{error:?}") };
        reasons.push(reason);
    }
    assert!(reasons[..3].iter().all(|reason| reason.contains("it ended at once")), "{reasons:?}");
    assert!(reasons.last().unwrap().contains("the next try is in"), "{reasons:?}");
    assert!(fs::read_to_string(starts).unwrap().lines().count() < 5);
}

#[tokio::test]
async fn too_much_text_is_refused_with_numbers() {
    let spawner = launcher();
    let mark = Mark::new();
    let error = soon(spawner.spawn(mark.command("/bin/echo", &[&"x".repeat(200_000)]))).await.err().unwrap();
    assert!(
        matches!(error, SpawnError::TooLarge { bytes: 200_000.., limit_bytes: 163_840, .. }),
        "{error:?}"
    );
    let started = soon(spawner.spawn(mark.command("/bin/echo", &[&"x".repeat(100_000)]))).await.unwrap();
    assert_eq!(output(started).await.0.len(), 100_001);
}

#[tokio::test]
async fn the_host_is_left_as_it_was() {
    let spawner = launcher();
    works(&spawner).await;
    assert_eq!(rustix::process::child_subreaper().unwrap(), None);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
    let sigchld = 1_u64 << (17 - 1);
    assert_eq!(u64::from_str_radix(caught, 16).unwrap() & sigchld, 0);
}
