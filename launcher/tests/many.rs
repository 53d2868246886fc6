//! Many processes, one after the other and at once, leave neither descriptors nor zombies.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::Host;
use native_sandbox_protocol::{FromLauncher, ToLauncher};

fn children(launcher: u32) -> usize {
    let parent = format!(" {launcher} ");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest[2..].starts_with(&parent)))
        .count()
}

#[test]
fn nothing_is_left() {
    let mut host = Host::new();
    let before = host.launcher_fds();
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
        host.send(&ToLauncher::Spawn(spawn), &[]);
    }
    let mut over = 0;
    while over < 100 {
        over +=
            usize::from(matches!(host.next(), FromLauncher::Gone { .. } | FromLauncher::SpawnFailed { .. }));
    }
    // The failed starts' children are reaped right after they were reported.
    common::until("nothing is left", || host.launcher_fds() == before && children(host.launcher.id()) == 0);
}
