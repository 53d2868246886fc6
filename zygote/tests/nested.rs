//! Workers with a PID namespace of their own, forked by a real Node, on every Node that is named. For root only: elsewhere a
//! zygote has to be born in a user namespace, which the suites of the package see to.

#![cfg(target_os = "linux")]
#![allow(dead_code, clippy::unwrap_used, reason = "test code, and each part uses its own")]
#![allow(clippy::print_stdout, reason = "tells which Node a failure belongs to")]

#[path = "../../launcher/src/dontfork.rs"]
mod dontfork;
mod host;

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use host::{FORK_FAILED, FORKED, GONE, Zygote, nodes};
use native_sandbox_confine::Plan;
use serde_json::json;

/// More than anything in here takes.
const PATIENCE: Duration = Duration::from_secs(10);

fn with_each(test: impl Fn(&mut Zygote)) {
    // SAFETY: takes no memory.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    for node in nodes() {
        println!("{}", node.display());
        test(&mut Zygote::boot_apart(&node));
    }
}

fn nested() -> Plan {
    Plan { born_nested: true, namespaces: libc::CLONE_NEWNS.cast_unsigned(), ..Plan::default() }
}

/// The living children of a process that has one thread of its own.
fn children(pid: i32) -> BTreeSet<i32> {
    let parent = |stat: &str| -> Option<i32> {
        let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
        if fields.next()? == "Z" { None } else { fields.next()?.parse().ok() }
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|child| {
        fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| parent(&stat) == Some(pid))
    })
    .collect()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

fn is_running(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

fn is_init(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sandbox-init\n")
}

/// Leaves this command behind, in a session of its own and with the worker's output, and says that it did.
fn leaving(command: &str) -> String {
    format!(
        "const child = require('child_process').spawn('sh', ['-c', `{command}`], {{ detached: true, stdio: ['ignore', 1, 2] }});
         await new Promise((done) => child.once('spawn', done)); child.unref(); return child.pid"
    )
}

#[test]
fn a_worker_is_alone_and_knows_itself() {
    with_each(|zygote| {
        let job = "const fs = require('fs'); const attempt = (pid) => { try { process.kill(pid, 0); return 'done' } catch (e) { return e.code } };
            return { pid: process.pid, ppid: process.ppid, self: fs.readlinkSync('/proc/self'),
              stat: fs.readFileSync('/proc/2/stat', 'utf8').split(') ')[1].split(' ').slice(1, 4).map(Number),
              all: fs.readdirSync('/proc').filter((name) => Number(name) > 0).sort(), everybody: attempt(-1), next: attempt(3),
              child: require('child_process').execFileSync('sh', ['-c', 'echo $PPID']).toString() }";
        // The first is made for it, the next one ahead.
        for _ in 0..3 {
            let mut worker = zygote.fork_by(Some(&nested()));
            assert!(worker.pid > 2, "the host knows it by another number");
            worker.give(job);
            let ended = worker.end(zygote);
            let expected = json!({ "pid": 2, "ppid": 0, "self": "2", "stat": [0, 2, 0], "all": ["1", "2"],
                "everybody": "ESRCH", "next": "ESRCH", "child": "2\n" });
            assert_eq!((&ended.answer["value"], ended.status), (&expected, 0), "{ended:?}");
            assert!(ended.report.cpu_us > 0 && ended.report.max_rss_kib > 0);
        }
        // One without, and a zygote, are at home.
        let plain = zygote.fork();
        assert!(zygote.value("return process.ppid") == zygote.pid());
        let (_, inner) = zygote.fork_zygote(&json!({ "cwd": "/", "env": {}, "modules": [] }));
        let mut inner = inner.unwrap();
        assert_eq!(inner.value("return process.ppid"), inner.pid());
        drop((plain, inner));
        let pid = zygote.pid();
        until("nobody but the next init is there", || children(pid).iter().all(|child| is_init(*child)));
    });
}

#[test]
fn what_is_left_behind_ends_by_itself_by_a_request_or_by_a_signal() {
    with_each(|zygote| {
        // Until somebody writes into it.
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
        let by_itself = leaving(&format!("read word < {}; echo $word", fifo.display()));
        let deaf = leaving("trap '' TERM; echo ready; while :; do sleep 60; done");
        let polite = leaving("trap 'echo over; exit' TERM; echo ready; while :; do sleep 0.1; done");
        for (job, request) in [(&by_itself, None), (&deaf, Some(4)), (&polite, Some(3))] {
            let mut worker = zygote.fork_by(Some(&nested()));
            worker.give(job);
            assert!(worker.answer()["value"].as_i64().unwrap() > 2);
            assert_eq!(zygote.exited(worker.id).value, 0);
            let id = worker.id;
            // It is in there still, or a `GONE` would come before the answer to what is asked for after it.
            let mut probe = zygote.fork_by(Some(&nested()));
            probe.give("return 1");
            probe.end(zygote);
            assert!(!zygote.has_early(|report| report.kind == GONE && report.id == id));
            match request {
                None => fs::write(&fifo, "word\n").unwrap(),
                Some(kind) => {
                    worker.wait_for_line();
                    zygote.send(kind, id, b"", &[]);
                }
            }
            zygote.gone(id);
            let printed = worker.printed();
            assert_eq!(
                printed,
                match request {
                    None => "word\n",
                    Some(3) => "over\n",
                    _ => "",
                }
            );
        }
    });
}

#[test]
fn a_killed_init_takes_its_worker_along_and_a_killed_spare_one_is_replaced() {
    with_each(|zygote| {
        let before = children(zygote.pid());
        let worker = zygote.fork_by(Some(&nested()));
        let pid = zygote.pid();
        until("there is one for the worker, and one for the next", || {
            children(pid).iter().filter(|child| is_init(**child)).count() == 2
        });
        let inits: Vec<i32> =
            children(pid).difference(&before).copied().filter(|child| is_init(*child)).collect();
        for init in inits {
            // SAFETY: signals a child of the test's own zygote.
            unsafe { libc::kill(init, libc::SIGKILL) };
        }
        assert_eq!(zygote.exited(worker.id).value, libc::SIGKILL);
        zygote.gone(worker.id);
        let mut next = zygote.fork_by(Some(&nested()));
        next.give("return process.pid");
        assert_eq!(next.end(zygote).answer["value"], 2);
    });
}

#[test]
fn nothing_outlives_a_zygote_that_is_killed_in_the_middle_of_a_fork() {
    // SAFETY: takes no memory.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let node = nodes().remove(0);
    for round in 0..12 {
        let mut zygote = Zygote::boot_apart(&node);
        let pid = zygote.pid();
        let first = zygote.fork_by(Some(&nested()));
        let mut asked: Vec<_> = (0..8).map(|_| zygote.ask(Some(&nested()))).collect();
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(round * 300) {
            std::hint::spin_loop();
        }
        // Whatever is there now has to be gone afterwards; what is just being made is seen by its pipes.
        let seen = children(pid);
        // SAFETY: signals the test's own child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        zygote.process.take().unwrap().wait().unwrap();
        drop(first);
        for worker in &mut asked {
            assert_eq!(worker.printed(), "", "everybody has let go of it");
        }
        until("what the zygote had made is gone", || !seen.iter().any(|pid| is_running(*pid)));
    }
}

#[test]
fn where_no_namespace_can_be_made_there_is_no_worker() {
    // SAFETY: takes no memory.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let node = nodes().remove(0);
    // Its mounts are its own, but its user is nobody who may make namespaces.
    let mut zygote = Zygote::boot_without_privileges(&node);
    let worker = zygote.ask(Some(&nested()));
    let failed = zygote.wait_for(|report| report.kind == FORK_FAILED || report.kind == FORKED);
    assert_eq!((failed.kind, failed.id, failed.value), (FORK_FAILED, worker.id, libc::EPERM));
    assert_eq!(zygote.value("return 1"), 1);
}
