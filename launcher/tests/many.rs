//! Many processes, one after the other and at once, leave neither descriptors nor zombies.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::os::fd::AsFd;

use common::Host;
use native_sandbox_protocol::{FromLauncher, Step, ToLauncher};

fn children(launcher: u32) -> usize {
    let parent = format!(" {launcher} ");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest[2..].starts_with(&parent)))
        .count()
}

/// Waits for the ends of so many starts; one that failed must have failed by its own fault.
fn finish(host: &Host, count: usize) {
    let mut over = 0;
    while over < count {
        match host.next() {
            FromLauncher::Gone { .. } => over += 1,
            FromLauncher::SpawnFailed { step, .. } => {
                assert_eq!(step, Step::Exec);
                over += 1;
            }
            _ => {}
        }
    }
}

#[test]
fn nothing_is_left() {
    let mut host = Host::new();
    // Half of what a hundred leaks would need, and enough for all that are on their way at once.
    host.limit_fds(50);
    for _ in 0..100 {
        let spawn = host.shell("exit 0");
        let (id, _, _) = host.start(spawn);
        host.exited(id);
        host.gone(id);
    }
    for turn in 0..100 {
        let script = if turn % 2 == 0 { "(setsid sleep 0.01 &); exit 0" } else { "exit 0" };
        let mut spawn = host.shell(script);
        if turn % 10 == 0 {
            spawn.program = b"/no/such".to_vec();
        }
        let (_reader, writer) = std::io::pipe().unwrap();
        spawn.fds = vec![1];
        host.send(&ToLauncher::Spawn(spawn), &[writer.as_fd()]);
        if turn % 10 == 9 {
            finish(&host, 10);
        }
    }
    // The failed starts' children are reaped right after they were reported.
    common::until("nothing is left", || children(host.launcher.id()) == 0);
}
