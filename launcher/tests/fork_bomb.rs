//! A process that forks, into sessions of their own, as fast as it can (up to 255), and is killed meanwhile.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::io::Write;

use common::{Host, line};
use native_sandbox_protocol::Status;

const BOMB: &str = r#"
if [ "$1" -gt 0 ]; then
  setsid /bin/sh "$0" $(($1 - 1)) &
  setsid /bin/sh "$0" $(($1 - 1)) &
else
  echo leaf
fi
sleep 1000
"#;

fn bomb(kill_after_leaves: usize) {
    let mut script = tempfile::NamedTempFile::new().unwrap();
    script.write_all(BOMB.as_bytes()).unwrap();
    let mut host = Host::new();
    let spawn = host.request("/bin/sh", &[script.path().to_str().unwrap(), "7"]);
    let (id, _, mut out) = host.start(spawn);
    for _ in 0..kill_after_leaves {
        assert_eq!(line(&mut out), "leaf");
    }
    host.kill(id);
    assert_eq!(host.exited(id).0, Status::Signal(9));
    host.gone(id);
    assert!(host.marked().is_empty());
}

#[test]
fn killed_while_it_grows() {
    bomb(1);
}

#[test]
fn killed_when_it_is_full_grown() {
    bomb(128);
}
