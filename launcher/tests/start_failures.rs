//! A start that fails says which step, about what, and why; nothing is left of it, and the next start works.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::os::fd::AsFd;

use common::{Host, until};
use native_sandbox_protocol::{FromLauncher, Spawn, Status, Step, ToLauncher};

/// Sends it and gives the failure, past a fork that may come first.
fn failure(host: &Host, spawn: Spawn, fds: usize) -> (Step, String, i32) {
    let expected = spawn.id;
    let (_reader, writer) = std::io::pipe().unwrap();
    host.send(&ToLauncher::Spawn(spawn), &vec![writer.as_fd(); fds]);
    loop {
        match host.next() {
            FromLauncher::Forked { .. } => {}
            FromLauncher::SpawnFailed { id, step, subject, errno } => {
                assert_eq!(id, expected);
                return (step, String::from_utf8(subject).unwrap(), errno);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn each_step_is_named() {
    let mut host = Host::new();
    let not_there = host.request("/no/such/program", &[]);
    let enoent = libc::ENOENT;
    assert_eq!(failure(&host, not_there, 0), (Step::Exec, "/no/such/program".into(), enoent));

    let no_program = host.request("/etc/passwd", &[]);
    assert_eq!(failure(&host, no_program, 0), (Step::Exec, "/etc/passwd".into(), libc::EACCES));

    let nowhere = Spawn { cwd: "/no/such/folder".into(), ..host.shell("exit 0") };
    assert_eq!(failure(&host, nowhere, 0), (Step::Chdir, "/no/such/folder".into(), enoent));

    let nul = Spawn { args: vec![b"a\0b".to_vec()], ..host.shell("exit 0") };
    assert_eq!(failure(&host, nul, 0), (Step::Arguments, "a\0b".into(), libc::EINVAL));

    for fds in [vec![0], vec![32], vec![-1], vec![3, 3]] {
        let count = fds.len();
        let subject = format!("descriptor {}", fds.last().unwrap());
        let spawn = Spawn { fds, ..host.shell("exit 0") };
        assert_eq!(failure(&host, spawn, count), (Step::Arguments, subject, libc::EINVAL));
    }

    let lost = Spawn { fds: vec![1, 2], ..host.shell("exit 0") };
    assert_eq!(failure(&host, lost, 1).0, Step::Receive);

    let spawn = host.shell("exit 4");
    let (id, _, _) = host.start(spawn);
    assert_eq!(host.exited(id), (Status::Code(4), false));
    host.gone(id);
}

#[test]
fn a_number_in_use_is_refused_and_its_owner_unharmed() {
    let mut host = Host::new();
    let spawn = host.shell("exec sleep 1000");
    let (id, _, _) = host.start(spawn.clone());
    assert_eq!(failure(&host, spawn, 0).2, libc::EEXIST);
    // Between two programs a process has no environment to be seen.
    until("the owner is there", || host.marked().len() == 1);
    host.kill(id);
    assert_eq!(host.exited(id), (Status::Signal(9), false));
    host.gone(id);
}
