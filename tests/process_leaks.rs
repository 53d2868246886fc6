//! Descriptors, counted: this file has one test, so that nobody else opens any meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

mod process_support;

use native_sandbox_executor::process::{
    Command, ExitStatus, SpawnError, Spawner, Started, plain::PlainSpawner,
};
use process_support::{Mark, launcher, open_fds, output, soon, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Past the runtime's own descriptors and the launcher's start.
async fn warm(spawner: &dyn Spawner) -> usize {
    output(soon(spawner.spawn(Mark::new().shell("exit 0"))).await.unwrap()).await;
    open_fds()
}

async fn two_hundred_spawns(spawner: &dyn Spawner) {
    let before = warm(spawner).await;
    for turn in 0..200 {
        let command = Command { channel: turn % 2 == 0, ..Mark::new().shell("exit 0") };
        if turn % 20 == 0 {
            let failing = Mark::new().command("/no/such", &[]);
            assert!(soon(spawner.spawn(failing)).await.is_err());
        }
        let Started { mut process, .. } = soon(spawner.spawn(command)).await.unwrap();
        assert_eq!(soon(process.exited()).await, ExitStatus::Code(0));
        soon(process.gone()).await;
    }
    until("no descriptor is left", || open_fds() == before).await;
}

/// With fewer and fewer descriptors to be had, a start fails at every place it can, and leaves nothing.
async fn shortage(spawner: &dyn Spawner) {
    let before = warm(spawner).await;
    let limit = getrlimit(Resource::Nofile);
    let mark = Mark::new();
    let mut failures = 0;
    for spare in 0..12 {
        let command = Command { channel: true, ..mark.shell("exit 0") };
        let current = Some((before + spare) as u64 - 1);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        let result = soon(spawner.spawn(command)).await;
        setrlimit(Resource::Nofile, limit).unwrap();
        match result {
            Ok(started) => drop(output(started).await),
            Err(SpawnError::Step { .. }) => failures += 1,
            Err(other) => panic!("{other:?}"),
        }
        until("no descriptor is left", || open_fds() == before).await;
    }
    assert!((1..12).contains(&failures), "{failures} of 12 failed");
    mark.until_living(0).await;
}

#[tokio::test]
async fn nothing_is_left_open() {
    let with_launcher = launcher();
    two_hundred_spawns(&with_launcher).await;
    two_hundred_spawns(&PlainSpawner::new()).await;
    shortage(&with_launcher).await;
    shortage(&PlainSpawner::new()).await;
    assert!(with_launcher.shutdown().await);
}
