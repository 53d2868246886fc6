//! A process that leaves a child which keeps its output open: the pipe ends when that child does.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::{Host, line, rest};
use native_sandbox_protocol::Status;

#[test]
fn the_pipe_ends_with_the_tree_not_with_the_main_process() {
    let mut host = Host::new();
    let spawn = host.shell("echo out; sleep 1000 & exit 0");
    let (id, _, mut out) = host.start(spawn);
    assert_eq!(line(&mut out), "out");
    assert_eq!(host.exited(id), (Status::Code(0), true));
    host.kill(id);
    host.gone(id);
    assert_eq!(rest(&mut out), "");
}
