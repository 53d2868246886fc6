//! The host goes away: so does everything, by itself.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::{Host, line, marked, until};
use native_sandbox_protocol::{MAX_PACKET_BYTES, ToLauncher};

const FAMILY: &str =
    "trap '' TERM HUP INT; (setsid sleep 1000 &); sleep 1000 & echo up; while :; do wait; done";

fn family(host: &mut Host) {
    for _ in 0..3 {
        let spawn = host.shell(FAMILY);
        let (_, _, mut out) = host.start(spawn);
        assert_eq!(line(&mut out), "up");
    }
    let spawn = host.shell("(setsid sleep 1000 &); exit 0");
    let (id, _, _) = host.start(spawn);
    assert!(host.exited(id).1);
    until("ten processes", || host.marked().len() == 10);
}

#[test]
fn a_closed_socket_ends_everything() {
    let mut host = Host::new();
    family(&mut host);
    host.die();
    assert!(host.marked().is_empty());
}

#[test]
fn a_packet_that_is_no_request_ends_everything() {
    for garbage in [vec![0xff; 40], vec![0; MAX_PACKET_BYTES + 1], vec![1]] {
        let mut host = Host::new();
        let spawn = host.shell("sleep 1000");
        host.start(spawn);
        host.send_bytes(&garbage, &[]);
        host.die();
        assert!(host.marked().is_empty());
    }
}

#[test]
fn a_killed_launcher_takes_its_children_along() {
    let mut host = Host::new();
    let spawn = host.shell("exec sleep 1000");
    host.start(spawn);
    host.launcher.kill().unwrap();
    host.launcher.wait().unwrap();
    let mark = host.mark();
    until("its child is gone", || marked(&mark).is_empty());
}

#[test]
fn signals_to_the_launcher_from_a_terminal_or_a_service_manager_are_ignored() {
    let mut host = Host::new();
    let launcher = rustix::process::Pid::from_child(&host.launcher);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(launcher, signal).unwrap();
    }
    let spawn = host.shell("exit 0");
    let (id, _, _) = host.start(spawn);
    host.exited(id);
    host.gone(id);
}

#[test]
fn a_host_that_does_not_read_is_waited_for() {
    let mut host = Host::new();
    let mut ids = Vec::new();
    for _ in 0..300 {
        let spawn = host.shell("exit 0");
        ids.push(spawn.id);
        host.send(&ToLauncher::Spawn(spawn), &[]);
    }
    let mut gone = 0;
    while gone < ids.len() {
        gone += usize::from(matches!(host.next(), native_sandbox_protocol::FromLauncher::Gone { .. }));
    }
}
