//! A process that forks away twice, into a session of its own.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::io::Write;

use common::{Host, line, until};
use native_sandbox_protocol::Status;

const DAEMON: &str = "(setsid sh -c 'sleep 1000 & echo $$; wait' &)";

#[test]
fn it_dies_with_a_living_main_process() {
    let mut host = Host::new();
    let spawn = host.shell(&format!("{DAEMON}; sleep 1000"));
    let (id, _, mut out) = host.start(spawn);
    line(&mut out).parse::<i32>().unwrap();
    until("all four", || host.marked().len() == 4);
    host.kill(id);
    assert_eq!(host.exited(id).0, Status::Signal(9));
    host.gone(id);
    assert!(host.marked().is_empty());
}

#[test]
fn it_outlives_its_main_process_only_until_the_kill() {
    let mut host = Host::new();
    let spawn = host.shell(&format!("{DAEMON}; read -r line < /proc/self/stat"));
    let (id, _, mut out) = host.start(spawn);
    line(&mut out).parse::<i32>().unwrap();
    assert_eq!(host.exited(id), (Status::Code(0), true));
    until("daemon and child", || host.marked().len() == 2);
    host.kill(id);
    host.gone(id);
    assert!(host.marked().is_empty());
}

#[test]
fn it_may_end_by_itself() {
    let mut host = Host::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The pipe keeps it alive exactly as long as the test wants.
    let mut spawn = host.shell("(setsid sh -c 'read -r go' <&3 &); exit 6");
    spawn.fds = vec![3];
    let id = spawn.id;
    host.send(&native_sandbox_protocol::ToLauncher::Spawn(spawn), &[std::os::fd::AsFd::as_fd(&reader)]);
    host.next();
    host.next();
    assert_eq!(host.exited(id), (Status::Code(6), true));
    writer.write_all(b"go\n").unwrap();
    host.gone(id);
}

#[test]
fn a_sibling_with_a_daemon_of_its_own_is_not_hit() {
    let mut host = Host::new();
    let spawn = host.shell(&format!("{DAEMON}; sleep 1000"));
    let (first, _, mut first_out) = host.start(spawn);
    let spawn = host.shell(&format!("{DAEMON}; exit 0"));
    let (second, _, mut second_out) = host.start(spawn);
    line(&mut first_out);
    line(&mut second_out);
    assert_eq!(host.exited(second), (Status::Code(0), true));
    until("four and two", || host.marked().len() == 6);
    host.kill(first);
    host.exited(first);
    host.gone(first);
    assert_eq!(host.marked().len(), 2);
    host.kill(second);
    host.gone(second);
}
