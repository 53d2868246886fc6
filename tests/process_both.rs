//! What holds for every spawner, tried with real processes on each.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

mod process_support;

use native_sandbox_executor::process::{Command, ExitStatus, Limits, SpawnError, Spawner, Started};
use process_support::{Mark, line, output, soon, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The tests below, once for each spawner.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod with_launcher {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::process_support::launcher()).await;
            })*
        }
        mod plain {
            $(#[tokio::test]
            async fn $test() {
                super::$test(native_sandbox_executor::process::plain::PlainSpawner::new()).await;
            })*
        }
    };
}

on_both!(
    output_and_exit_code,
    death_by_signal,
    use_of_resources,
    channel_carries_both_ways_and_stdin_is_at_its_end,
    only_the_promised_descriptors_are_open,
    environment_is_exact,
    environment_with_a_channel,
    folder_is_the_one_asked_for,
    a_bad_program_is_named,
    a_bad_folder_is_named,
    kill_ends_a_tree,
    kill_ends_what_left_the_group_below_a_living_parent,
    kill_ends_what_the_main_process_left,
    a_drop_kills,
    terminate_can_be_obeyed,
    limits_hold,
    gone_waits_for_what_was_left,
    a_dropped_future_leaves_no_process,
    many_at_once,
);

async fn output_and_exit_code(spawner: impl Spawner) {
    let mark = Mark::new();
    let started = soon(spawner.spawn(mark.shell("echo out; exit 7"))).await.unwrap();
    assert!(started.process.pid() > 1);
    assert!(started.channel.is_none());
    assert_eq!(output(started).await, ("out\n".into(), ExitStatus::Code(7)));
    let started = soon(spawner.spawn(mark.shell("echo err >&2"))).await.unwrap();
    assert_eq!(text(started.stderr).await, "err\n");
}

async fn death_by_signal(spawner: impl Spawner) {
    let started = soon(spawner.spawn(Mark::new().shell("kill -6 $$"))).await.unwrap();
    assert_eq!(output(started).await.1, ExitStatus::Signal(6));
}

async fn use_of_resources(spawner: impl Spawner) {
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let mut process = soon(spawner.spawn(Mark::new().shell(script))).await.unwrap().process;
    soon(process.exited()).await;
    let state = process.state();
    assert!(state.cpu_us > 1000 && state.max_rss_kib > 100, "{state:?}");
}

async fn channel_carries_both_ways_and_stdin_is_at_its_end(spawner: impl Spawner) {
    let command = Command {
        channel: true,
        ..Mark::new().shell("cat; read -r line <&3; echo \"got $line\" >&3; exit 3")
    };
    let started = soon(spawner.spawn(command)).await.unwrap();
    let mut channel = started.channel.unwrap();
    channel.write_all(b"hello\n").await.unwrap();
    let mut answer = String::new();
    soon(channel.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "got hello\n");
    let mut process = started.process;
    assert_eq!(soon(process.exited()).await, ExitStatus::Code(3));
}

async fn only_the_promised_descriptors_are_open(spawner: impl Spawner) {
    // What whoever started this test left open; `plain` cannot close it, the launcher's own test shows that it does.
    let inherited = inherited_fds();
    for (channel, expected) in [(false, vec![0, 1, 2]), (true, vec![0, 1, 2, 3])] {
        let command = Command { channel, ..Mark::new().shell("ls /proc/$$/fd") };
        let (text, _) = output(soon(spawner.spawn(command)).await.unwrap()).await;
        let mut open: Vec<i32> = text.lines().map(|fd| fd.parse().unwrap()).collect();
        open.retain(|fd| expected.contains(fd) || !inherited.contains(fd));
        open.sort_unstable();
        assert_eq!(open, expected);
    }
}

/// This process's descriptors above 2 that `exec` does not close.
fn inherited_fds() -> Vec<i32> {
    let survives = |fd: &i32| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or_default();
        // O_CLOEXEC, in octal.
        i64::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & 0o2_000_000 == 0)
    };
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2 && survives(fd))
        .collect()
}

async fn environment_is_exact(spawner: impl Spawner) {
    let mut command = Mark::new().command("/usr/bin/env", &[]);
    command.env =
        vec![("B".into(), "2 \"'$x".into()), ("a-b/c:d".into(), "=".into()), ("A".into(), "".into())];
    let (text, exit) = output(soon(spawner.spawn(command)).await.unwrap()).await;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!((lines, exit), (vec!["A=", "B=2 \"'$x", "a-b/c:d=="], ExitStatus::Code(0)));
}

async fn environment_with_a_channel(spawner: impl Spawner) {
    let mut command = Command { channel: true, ..Mark::new().command("/usr/bin/env", &[]) };
    command.env = vec![("B".into(), "2".into()), ("TZ".into(), "UTC".into())];
    let (text, _) = output(soon(spawner.spawn(command)).await.unwrap()).await;
    // A shell that is bash cannot be kept from adding `_`.
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("_=")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["B=2", "TZ=UTC"]);
}

async fn folder_is_the_one_asked_for(spawner: impl Spawner) {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().canonicalize().unwrap();
    let command = Command { cwd: cwd.clone(), ..Mark::new().command("/bin/pwd", &[]) };
    let (text, _) = output(soon(spawner.spawn(command)).await.unwrap()).await;
    assert_eq!(text.trim_end(), cwd.to_str().unwrap());
}

async fn a_bad_program_is_named(spawner: impl Spawner) {
    for (program, kind) in [
        ("/no/such/program", std::io::ErrorKind::NotFound),
        ("/etc/passwd", std::io::ErrorKind::PermissionDenied),
    ] {
        let result = soon(spawner.spawn(Mark::new().command(program, &[]))).await;
        match result.err().unwrap() {
            SpawnError::Step { step: "execve", subject, source } => {
                assert_eq!((subject.as_str(), source.kind()), (program, kind));
            }
            other => panic!("{other:?}"),
        }
    }
    // And the next one is none the worse for it.
    let started = soon(spawner.spawn(Mark::new().shell("exit 0"))).await.unwrap();
    assert_eq!(output(started).await.1, ExitStatus::Code(0));
}

async fn a_bad_folder_is_named(spawner: impl Spawner) {
    for cwd in ["/no/such/folder", "/etc/passwd"] {
        let command = Command { cwd: cwd.into(), ..Mark::new().shell("exit 0") };
        let error = soon(spawner.spawn(command)).await.err().unwrap();
        assert!(
            matches!(&error, SpawnError::Step { step: "chdir", subject, .. } if subject == cwd),
            "{error:?}"
        );
    }
}

async fn kill_ends_a_tree(spawner: impl Spawner) {
    let mark = Mark::new();
    // The middle one forks a second time and goes.
    let script = "trap '' TERM; (sleep 1000 & sleep 1000 &); sleep 1000 & wait";
    let mut process = soon(spawner.spawn(mark.shell(script))).await.unwrap().process;
    mark.until_living(4).await;
    process.kill();
    process.kill();
    assert_eq!(soon(process.exited()).await, ExitStatus::Signal(9));
    soon(process.gone()).await;
    assert_eq!(mark.living(), [0; 0]);
    process.kill();
}

async fn kill_ends_what_left_the_group_below_a_living_parent(spawner: impl Spawner) {
    let mark = Mark::new();
    let mut process = soon(spawner.spawn(mark.shell("setsid sleep 1000 & wait"))).await.unwrap().process;
    mark.until_living(2).await;
    process.kill();
    soon(process.gone()).await;
    process_support::until("both are gone", || mark.living().is_empty()).await;
}

async fn kill_ends_what_the_main_process_left(spawner: impl Spawner) {
    let mark = Mark::new();
    let mut process = soon(spawner.spawn(mark.shell("sleep 1000 & exit 4"))).await.unwrap().process;
    assert_eq!(soon(process.exited()).await, ExitStatus::Code(4));
    mark.until_living(1).await;
    assert!(!process.state().gone);
    process.kill();
    soon(process.gone()).await;
    assert_eq!(mark.living(), [0; 0]);
}

async fn a_drop_kills(spawner: impl Spawner) {
    let mark = Mark::new();
    let started = soon(spawner.spawn(mark.shell("sleep 1000 & wait"))).await.unwrap();
    mark.until_living(2).await;
    drop(started);
    mark.until_living(0).await;
}

async fn terminate_can_be_obeyed(spawner: impl Spawner) {
    let script = "trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 1000 & wait; done";
    let Started { mut process, mut stdout, .. } =
        soon(spawner.spawn(Mark::new().shell(script))).await.unwrap();
    assert_eq!(line(&mut stdout).await, "up");
    process.terminate();
    assert_eq!(line(&mut stdout).await, "asked");
    assert_eq!(soon(process.exited()).await, ExitStatus::Code(5));
    process.kill();
    soon(process.gone()).await;
}

async fn limits_hold(spawner: impl Spawner) {
    let limits = Limits {
        open_files: Some(40),
        file_size_bytes: Some(1024),
        cpu_seconds: Some(9),
        data_bytes: Some(64 * 1024 * 1024),
    };
    let script = "ulimit -n; ulimit -Hn; ulimit -f; ulimit -t; ulimit -Ht; ulimit -c; ulimit -d";
    let command = Command { limits, ..Mark::new().shell(script) };
    let (text, exit) = output(soon(spawner.spawn(command)).await.unwrap()).await;
    assert_eq!((text.as_str(), exit), ("40\n40\n2\n9\n10\n0\n65536\n", ExitStatus::Code(0)));
    let limits = Limits { open_files: Some(1 << 40), ..Limits::default() };
    let command = Command { limits, ..Mark::new().shell("ulimit -n") };
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap();
    assert_eq!(output(soon(spawner.spawn(command)).await.unwrap()).await.0, format!("{hard}\n"));
}

async fn gone_waits_for_what_was_left(spawner: impl Spawner) {
    let command = Command { channel: true, ..Mark::new().shell("(read -r go <&3) & exec 3<&-; exit 0") };
    let Started { mut process, channel, .. } = soon(spawner.spawn(command)).await.unwrap();
    soon(process.exited()).await;
    assert!(!process.state().gone);
    drop(channel);
    soon(process.gone()).await;
    assert!(process.state().gone);
}

async fn a_dropped_future_leaves_no_process(spawner: impl Spawner) {
    let mark = Mark::new();
    // Given up after each number of polls that it may need.
    for polls in 0..12 {
        let mut future = spawner.spawn(mark.shell("exec sleep 1000"));
        for _ in 0..polls {
            let mut once = std::pin::pin!(std::future::poll_fn(|context| {
                std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
            }));
            if once.as_mut().await {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let started = soon(spawner.spawn(mark.shell("exit 0"))).await.unwrap();
    output(started).await;
    mark.until_living(0).await;
}

async fn many_at_once(spawner: impl Spawner) {
    let mark = Mark::new();
    let one = async |number: usize| {
        let started =
            soon(spawner.spawn(mark.shell(&format!("echo {number}; exit {}", number % 100)))).await.unwrap();
        let expected = ExitStatus::Code(i32::try_from(number % 100).unwrap());
        assert_eq!(output(started).await, (format!("{number}\n"), expected));
    };
    let mut all: Vec<_> = (0..150).map(|number| Box::pin(one(number))).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
