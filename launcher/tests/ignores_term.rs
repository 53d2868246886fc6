//! A process that ignores SIGTERM, itself and in its children, inside and outside its group.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::{Host, line, until};
use native_sandbox_protocol::Status;

#[test]
fn term_is_survived_and_kill_is_not() {
    let mut host = Host::new();
    let spawn =
        host.shell("trap '' TERM; (setsid sleep 1000 &) ; sleep 1000 & echo up; while :; do wait; done");
    let (id, _, mut out) = host.start(spawn);
    assert_eq!(line(&mut out), "up");
    until("three processes", || host.marked().len() == 3);
    host.terminate(id);
    // Answered in order: once this one is done, the signals above were sent.
    let other = host.shell("exit 0");
    let (other, _, _) = host.start(other);
    host.exited(other);
    host.gone(other);
    assert_eq!(host.marked().len(), 3);
    host.kill(id);
    assert_eq!(host.exited(id).0, Status::Signal(9));
    host.gone(id);
    assert!(host.marked().is_empty());
}

#[test]
fn term_reaches_those_outside_the_group() {
    let mut host = Host::new();
    let spawn = host.shell(
        "trap 'exit 5' TERM; setsid sh -c 'trap \"echo asked; exit 0\" TERM; echo up; while :; do sleep 1000 & wait; done' & \
         while :; do wait; done",
    );
    let (id, _, mut out) = host.start(spawn);
    assert_eq!(line(&mut out), "up");
    until("its sleep", || host.marked().len() >= 3);
    host.terminate(id);
    assert_eq!(line(&mut out), "asked");
    assert_eq!(host.exited(id).0, Status::Code(5));
    host.kill(id);
    host.gone(id);
}
