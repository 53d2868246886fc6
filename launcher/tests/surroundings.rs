//! What a process finds around it: exactly what was asked for.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::os::fd::AsFd;

use common::{Host, rest};
use native_sandbox_protocol::{FromLauncher, Limits, Status, ToLauncher};

fn output(host: &mut Host, script: &str, limits: Limits) -> String {
    let mut spawn = host.shell(script);
    spawn.limits = limits;
    let (id, _, mut out) = host.start(spawn);
    let text = rest(&mut out);
    assert_eq!(host.exited(id).0, Status::Code(0), "{text}");
    host.gone(id);
    text
}

#[test]
fn descriptors_stand_where_they_were_asked_for_and_nothing_else_is_open() {
    let mut host = Host::new();
    // Names in reverse, so that every target is another's source or near it.
    let pipes: Vec<_> = (0..5).map(|_| std::io::pipe().unwrap()).collect();
    let mut spawn =
        host.shell("for fd in 1 2 3 4 9; do echo $fd >&$fd; done; ls -m /proc/$$/fd; readlink /proc/$$/fd/0");
    spawn.fds = vec![9, 4, 3, 2, 1];
    let id = spawn.id;
    let writers: Vec<_> = pipes.iter().map(|(_, writer)| writer.as_fd()).collect();
    host.send(&ToLauncher::Spawn(spawn), &writers);
    assert!(matches!(host.next(), FromLauncher::Forked { .. }));
    assert_eq!(host.next(), FromLauncher::Started { id });
    assert_eq!(host.exited(id).0, Status::Code(0));
    host.gone(id);
    let texts: Vec<String> = pipes
        .into_iter()
        .map(|(mut reader, writer)| {
            drop(writer);
            rest(&mut reader)
        })
        .collect();
    assert_eq!(texts, ["9\n", "4\n", "3\n", "2\n", "1\n0, 1, 2, 3, 4, 9\n/dev/null\n"]);
}

#[test]
fn it_leads_its_own_session_and_group_and_has_default_signals() {
    let mut host = Host::new();
    let script = "read -r pid comm state ppid pgrp session rest < /proc/self/stat; \
                  echo $((pid == $$)) $((pgrp == $$)) $((session == $$))";
    assert_eq!(output(&mut host, script, Limits::default()), "1 1 1\n");
    let signals = "grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let text = output(&mut host, signals, Limits::default());
    assert_eq!(text.split_whitespace().filter(|mask| *mask == "0000000000000000").count(), 2, "{text}");
}

#[test]
fn environment_and_folder_are_those_of_the_request() {
    let mut host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let mut spawn = host.request("/usr/bin/env", &[]);
    spawn.env.push(("odd//name:x".into(), "a=b\n".into()));
    let expected: Vec<u8> =
        spawn.env.iter().flat_map(|(name, value)| [name.as_slice(), b"=", value, b"\n"].concat()).collect();
    let (id, _, mut out) = host.start(spawn);
    assert_eq!(rest(&mut out).into_bytes(), expected);
    host.exited(id);
    host.gone(id);
    let mut spawn = host.request("/bin/pwd", &[]);
    spawn.cwd = folder.path().to_str().unwrap().into();
    let (id, _, mut out) = host.start(spawn);
    assert_eq!(rest(&mut out).trim(), folder.path().canonicalize().unwrap().to_str().unwrap());
    host.exited(id);
    host.gone(id);
}

#[test]
fn limits_hold() {
    let mut host = Host::new();
    let limits = Limits {
        open_files: Some(40),
        file_size_bytes: Some(1_048_576),
        cpu_seconds: Some(9),
        data_bytes: Some(67_108_864),
    };
    let script = "ulimit -n; ulimit -Hn; ulimit -t; ulimit -Ht; ulimit -c; ulimit -Hc; ulimit -d; \
                  while read -r line; do case $line in 'Max file size'*) echo $line;; esac; done < /proc/self/limits";
    let text = output(&mut host, script, limits);
    assert_eq!(text, "40\n40\n9\n10\n0\n0\n65536\nMax file size 1048576 1048576 bytes\n");
    // Above what is allowed is what is allowed, for root as for anybody.
    let all = Limits { open_files: Some(u64::MAX), ..Limits::default() };
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap();
    assert_eq!(output(&mut host, "ulimit -n", all), format!("{own}\n"));
}

#[test]
fn cpu_time_ends_with_a_signal_of_its_own() {
    let mut host = Host::new();
    let mut spawn = host.shell("while :; do :; done");
    spawn.limits.cpu_seconds = Some(1);
    let (id, _, _) = host.start(spawn);
    assert_eq!(host.exited(id), (Status::Signal(libc::SIGXCPU), false));
    host.gone(id);
}

#[test]
fn memory_pressure_prefers_it_to_its_host() {
    let mut host = Host::new();
    let own: i32 = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    let text = output(&mut host, "cat /proc/self/oom_score_adj", Limits::default());
    assert_eq!(text.trim(), (own + 200).min(1000).to_string());
}
