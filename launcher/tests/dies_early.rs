//! A process that ends at once, in each way it can, is reported with its status and use of resources.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::{Host, rest};
use native_sandbox_protocol::{FromLauncher, Status};

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let mut host = Host::new();
    for (script, expected) in [
        ("exit 0", Status::Code(0)),
        ("exit 7", Status::Code(7)),
        ("kill -9 $$", Status::Signal(9)),
        ("kill -15 $$", Status::Signal(15)),
    ] {
        let spawn = host.shell(script);
        let (id, _, _) = host.start(spawn);
        assert_eq!(host.exited(id), (expected, false), "{script}");
        host.gone(id);
    }
}

#[test]
fn use_of_resources_is_measured() {
    let mut host = Host::new();
    let spawn = host.shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
    let (id, _, mut out) = host.start(spawn);
    assert_eq!(rest(&mut out), "");
    let FromLauncher::Exited { cpu_us, max_rss_kib, .. } = host.next() else { panic!("no exit") };
    assert!(cpu_us > 1000, "{cpu_us} µs");
    assert!((100..1_000_000).contains(&max_rss_kib), "{max_rss_kib} KiB");
    host.gone(id);
}

#[test]
fn signals_to_what_is_gone_or_never_was_do_nothing() {
    let mut host = Host::new();
    let spawn = host.shell("exit 0");
    let (id, _, _) = host.start(spawn);
    host.exited(id);
    host.gone(id);
    for id in [id, 12_345] {
        host.terminate(id);
        host.kill(id);
    }
    let spawn = host.shell("exit 3");
    let (id, _, _) = host.start(spawn);
    assert_eq!(host.exited(id), (Status::Code(3), false));
    host.gone(id);
}
