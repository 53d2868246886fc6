//! A real Node as a zygote, on every Node that is named.

#![cfg(target_os = "linux")]
#![allow(dead_code, clippy::unwrap_used, reason = "test code, and each part uses its own")]
#![allow(clippy::print_stdout, reason = "tells which Node and which job a failure belongs to")]

#[path = "../../launcher/src/dontfork.rs"]
mod dontfork;
mod host;

use std::{collections::HashSet, time::Instant};

use host::{EXITED, FLAGS, FORK_FAILED, FORKED, GONE, REFUSED, Zygote, nodes};
use serde_json::{Value, json};

/// Runs a test with a zygote of each Node.
fn with_each(test: impl Fn(&mut Zygote)) {
    for node in nodes() {
        println!("{}", node.display());
        test(&mut Zygote::boot(&node));
    }
}

#[test]
fn a_scout_tells_what_workers_need() {
    with_each(|zygote| {
        let pages = zygote.ready.json()["pages"].as_u64().unwrap();
        assert!((50..2000).contains(&pages), "{pages} pages");
    });
}

#[test]
fn everything_that_node_does_works_in_a_worker() {
    let jobs = [
        ("return 6 * 7", json!(42)),
        ("await new Promise((done) => setTimeout(done, 5)); return 'late'", json!("late")),
        ("return (await require('fs').promises.readFile('/dev/null')).length", json!(0)),
        ("return require('fs').readFileSync('/proc/self/comm', 'utf8').length > 0", json!(true)),
        (
            "const { pbkdf2 } = require('crypto'); const { promisify } = require('util');
             const keys = await Promise.all(Array.from({ length: 8 }, () => promisify(pbkdf2)('a', 'b', 100, 8, 'sha1')));
             return new Set(keys.map((key) => key.toString('hex'))).size",
            json!(1),
        ),
        (
            "const { promisify } = require('util'); const zlib = require('zlib');
             const packed = await promisify(zlib.gzip)('x'.repeat(99999));
             return (await promisify(zlib.gunzip)(packed)).length",
            json!(99999),
        ),
        ("return (await require('dns').promises.lookup('localhost')).address.length > 2", json!(true)),
        (
            "const bytes = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]);
             return String(await WebAssembly.compile(bytes))",
            json!("[object WebAssembly.Module]"),
        ),
        (
            // (module (memory 1) (func (export \"f\") (result i32) i32.const -4 i32.load)): traps by a signal.
            "const bytes = new Uint8Array([0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,5,3,1,0,1,7,5,1,1,102,0,0,
               10,9,1,7,0,65,124,40,2,0,11]);
             const { instance } = await WebAssembly.instantiate(bytes);
             try { instance.exports.f() } catch (error) { return error.name }",
            json!("RuntimeError"),
        ),
        (
            "const server = require('http').createServer((q, a) => a.end(JSON.stringify({ path: q.url })));
             await new Promise((done) => server.listen(0, '127.0.0.1', done));
             const answer = await (await fetch(`http://127.0.0.1:${server.address().port}/p`)).json();
             server.close(); server.closeAllConnections(); return answer",
            json!({ "path": "/p" }),
        ),
        (
            "const { Worker } = require('worker_threads');
             const worker = new Worker('require(\"worker_threads\").parentPort.postMessage(6 * 7)', { eval: true });
             return await new Promise((done, fail) => worker.on('message', done).on('error', fail))",
            json!(42),
        ),
        (
            "const { execFileSync, spawn } = require('child_process');
             const sync = execFileSync('echo', ['a']).toString();
             const child = spawn('cat', { stdio: ['pipe', 'pipe', 'inherit'] }); child.stdin.end('b');
             let text = ''; for await (const chunk of child.stdout) text += chunk; return sync + text",
            json!("a\nb"),
        ),
        (
            "const { fork } = require('child_process'); const file = `/tmp/zygote-fork-${process.pid}.cjs`;
             require('fs').writeFileSync(file, 'process.send(process.execArgv)');
             const flags = await new Promise((done) => fork(file).on('message', done));
             require('fs').unlinkSync(file); return flags",
            json!(["--max-old-space-size=256"]),
        ),
        ("return typeof (await import('node:os')).cpus", json!("function")),
        (
            "const file = `/tmp/zygote-import-${process.pid}.mjs`;
             require('fs').writeFileSync(file, 'export default 5'); const { default: five } = await import(file);
             require('fs').unlinkSync(file); return five",
            json!(5),
        ),
        (
            "let kept = []; for (let i = 0; i < 400; i++) { kept.push(new Array(20000).fill({ i })); kept = kept.slice(-50) }
             return kept.length",
            json!(50),
        ),
        ("let sum = 0; for (let i = 0; i < 5e7; i++) sum = (sum + i * 3) | 0; return sum", json!(-445_647_040)),
        (
            "const inspector = require('inspector'); inspector.open(0, '127.0.0.1'); const url = inspector.url();
             inspector.close(); return url.startsWith('ws://127.0.0.1:')",
            json!(true),
        ),
        (
            "const shared = new Int32Array(new SharedArrayBuffer(4)); return Atomics.wait(shared, 0, 0, 1)",
            json!("timed-out"),
        ),
        ("return require('v8').getHeapStatistics().heap_size_limit < 600 * 1024 * 1024", json!(true)),
    ];
    with_each(|zygote| {
        for (job, expected) in &jobs {
            assert_eq!(&zygote.value(job), expected, "{job}");
        }
    });
}

/// Work that makes V8 post tasks to threads, which only the zygote has; more of them than an idle pool takes by chance.
#[test]
fn a_worker_can_post_any_number_of_tasks_to_the_threads_it_lacks() {
    let jobs = [
        // Some hundred scavenges, and full collections with their sweepers.
        "let kept = []; for (let i = 0; i < 3e6; i++) { kept.push({ i, text: `${i}` }); if (kept.length > 2e5) kept = [] }
         return 'collected'",
        "require('v8').setFlagsFromString('--expose-gc'); const gc = require('vm').runInNewContext('gc');
         for (let i = 0; i < 100; i++) gc({ type: i % 2 ? 'minor' : 'major' }); return 'collected'",
        // Compilers: modules one after the other, and functions that become hot.
        "const bytes = new Uint8Array([0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,7,5,1,1,102,0,0,10,6,1,4,0,65,7,11]);
         for (let i = 0; i < 50; i++) { const { instance } = await WebAssembly.instantiate(bytes);
           for (let n = 0; n < 20000; n++) if (instance.exports.f() !== 7) return 'wrong' }
         return 'collected'",
        "for (let i = 0; i < 60; i++) { const f = new Function('n', `let s = ${i}; for (let j = 0; j < n; j++) s ^= j * ${i};
           return s`); for (let k = 0; k < 300; k++) f(300) } return 'collected'",
    ];
    with_each(|zygote| {
        for job in jobs {
            assert_eq!(zygote.value(job), "collected");
        }
    });
}

/// The library tells V8 that its platform has no threads, so the flag that kept it from giving them tasks changes nothing.
#[test]
fn a_v8_that_would_give_tasks_to_threads_gives_none() {
    let flags: Vec<&str> = FLAGS.into_iter().filter(|flag| *flag != "--no-wasm-dynamic-tiering").collect();
    for node in nodes() {
        let mut zygote =
            Zygote::try_boot(&node, &flags, true).unwrap_or_else(|report| panic!("{:?}", report.json()));
        assert_eq!(zygote.value("return 1"), 1);
    }
}

#[test]
fn a_worker_ends_as_a_node_of_its_own_would() {
    // What is run, and the status as `wait4` gives it.
    let jobs = [
        ("", 0),
        ("process.exitCode = 4", 4 << 8),
        ("process.exit(3)", 3 << 8),
        ("process.exit()", 0),
        ("process.exitCode = 5; process.exit()", 5 << 8),
        ("throw new Error('thrown')", 1 << 8),
        ("setTimeout(() => { throw new TypeError('thrown late') })", 1 << 8),
        ("Promise.reject(new Error('rejected'))", 1 << 8),
        (
            "process.on('uncaughtException', () => { throw new Error('twice') }); throw new Error('once')",
            7 << 8,
        ),
        ("process.on('exit', () => { process.exitCode = 9 })", 9 << 8),
        ("process.on('exit', () => process.exit(8)); throw new Error('thrown')", 8 << 8),
        ("process.on('exit', () => { throw new Error('in exit') })", 1 << 8),
        ("process.on('exit', () => { throw new Error('in exit') }); process.exit(0)", 1 << 8),
        ("process.on('exit', () => { throw new Error('in exit') }); process.exit(6)", 6 << 8),
        ("process.removeAllListeners(); throw new Error('no listeners')", 1 << 8),
        ("process.removeAllListeners(); process.exitCode = 2", 2 << 8),
        ("process.reallyExit(11)", 11 << 8),
        (
            "'use strict'; const { emit, reallyExit } = process;
             process.emit = function (...all) { console.log(all[0]); return emit.apply(this, all) };
             process.reallyExit = (code) => reallyExit.call(process, code + 1); process.exit(11)",
            12 << 8,
        ),
        (
            "new (require('worker_threads').Worker)('setInterval(() => {}, 9)', { eval: true })
            .on('online', () => process.exit(13))",
            13 << 8,
        ),
        ("process.kill(process.pid, 'SIGKILL')", libc::SIGKILL),
        ("process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 60000)", libc::SIGTERM),
        (
            "process.on('SIGUSR2', () => { throw new Error('later') }); setTimeout(() => {}, 60000);
            process.kill(process.pid, 'SIGUSR2')",
            1 << 8,
        ),
        (
            "process.on('SIGTERM', () => { throw new Error('later') }); setTimeout(() => {}, 60000);
            process.kill(process.pid, 'SIGTERM')",
            1 << 8,
        ),
        ("process.abort()", libc::SIGABRT),
        (
            "process.on('SIGTERM', () => process.exit(14)); setTimeout(() => {}, 60000);
            process.kill(process.pid, 'SIGTERM')",
            14 << 8,
        ),
    ];
    with_each(|zygote| {
        for (job, status) in jobs {
            let ended = zygote.run(&format!("//raw\n{job}"));
            // Without the flag for a core file.
            assert_eq!(ended.status & !0x80, status, "{job}\n{ended:?}");
            assert!(ended.report.max_rss_kib > 0 && !ended.report.left_behind);
            if job.starts_with("throw") {
                assert!(ended.stderr.contains("Error: thrown"), "{ended:?}");
            }
        }
    });
}

#[test]
fn all_output_is_written_before_the_end() {
    with_each(|zygote| {
        let job =
            "//raw\nfor (let i = 0; i < 2000; i++) { console.log(i); console.error(i) } process.exit(1)";
        let ended = zygote.run(job);
        let lines: Vec<String> = (0..2000).map(|i| format!("{i}\n")).collect();
        let lines = lines.concat();
        assert_eq!((ended.stdout, ended.stderr), (lines.clone(), lines));
    });
}

#[test]
fn nothing_random_is_shared() {
    let job = "const { randomUUID, randomBytes, randomInt } = require('crypto'); const vm = require('vm');
        return [randomUUID(), crypto.randomUUID(), randomBytes(16).toString('hex'), String(randomInt(2 ** 47)),
          String(Math.random()), `vm ${vm.runInNewContext('Math.random()')}`,
          String(crypto.getRandomValues(new Uint32Array(4)))]";
    with_each(|zygote| {
        let mut seen = HashSet::new();
        for _ in 0..50 {
            for drawn in zygote.value(job).as_array().unwrap() {
                assert!(seen.insert(drawn.to_string()), "{drawn} came twice");
            }
        }
        let native = zygote.value("return [String(Math.random), Math.random.name, crypto.randomUUID.name]");
        assert_eq!(native, json!(["function random() { [native code] }", "random", "randomUUID"]));
    });
}

#[test]
fn a_worker_knows_itself() {
    with_each(|zygote| {
        let mut worker = zygote.fork();
        let job = "performance.mark('m'); const { startTime } = performance.getEntriesByName('m')[0];
            const { duration } = performance.measure('d', 'm');
            return { pid: process.pid, ppid: process.ppid, now: performance.now(), uptime: process.uptime(), startTime,
              duration, age: Date.now() - performance.timeOrigin, json: performance.toJSON().timeOrigin === performance.timeOrigin,
              stat: require('fs').readFileSync('/proc/self/stat', 'utf8').split(') ')[1].split(' ').slice(1, 4).map(Number),
              status: require('fs').readFileSync('/proc/self/status', 'utf8').match(/SigBlk:\\s*(\\w+)/)[1],
              timers: await new Promise((done) => { const t = performance.now(); setTimeout(() => done(performance.now() - t), 20) }) }";
        let pid = worker.pid;
        worker.give(job);
        let value = worker.end(zygote).answer["value"].clone();
        assert_eq!((&value["pid"], &value["ppid"]), (&json!(pid), &json!(zygote.pid())));
        assert_eq!(value["stat"], json!([zygote.pid(), pid, pid]));
        assert_eq!(value["status"], "0000000000000000");
        let number = |name: &str| value[name].as_f64().unwrap();
        assert!((0.0..2000.0).contains(&number("now")), "{value}");
        assert!((0.0..2.0).contains(&number("uptime")), "{value}");
        assert!((0.0..2000.0).contains(&number("startTime")), "{value}");
        assert!((0.0..2000.0).contains(&number("duration")), "{value}");
        assert!((-2.0..2000.0).contains(&number("age")), "{value}");
        assert!(number("timers") >= 18.0, "{value}");
        assert_eq!(value["json"], true);
    });
}

#[test]
fn a_worker_has_no_descriptor_of_the_zygote_or_its_siblings() {
    let job =
        "const fs = require('fs'); return Object.fromEntries(fs.readdirSync('/proc/self/fd').map((fd) => {
        try { return [fd, fs.readlinkSync(`/proc/self/fd/${fd}`)] } catch { return [fd, 'gone'] } }))";
    with_each(|zygote| {
        let sibling = zygote.fork();
        let value = zygote.value(job);
        let fds = value.as_object().unwrap();
        let name = |fd: &str| fds[fd].as_str().unwrap();
        assert_eq!(name("0"), "/dev/null");
        assert!(name("1").starts_with("pipe:") && name("2").starts_with("pipe:"), "{value}");
        assert!(name("3").starts_with("socket:"), "{value}");
        for (fd, target) in fds.iter().filter(|(fd, _)| fd.parse::<i32>().unwrap() > 3) {
            let target = target.as_str().unwrap();
            let own = [
                "/dev/null",
                "gone",
                "anon_inode:[eventpoll]",
                "anon_inode:[eventfd]",
                "anon_inode:[io_uring]",
            ]
            .contains(&target);
            let given = (1..=3).any(|number: i32| name(&number.to_string()) == target);
            assert!(!given, "{fd} is one of the given ones again\n{value}");
            // libuv's signal pipe, made anew: in no other process.
            let zygotes = std::fs::read_dir(format!("/proc/{}/fd", zygote.pid())).unwrap();
            let shared = zygotes.flatten().any(|entry| {
                std::fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy() == target)
            });
            assert!(own || (target.starts_with("pipe:") && !shared), "{fd}: {target}\n{value}");
        }
        // One event loop, and neither the control socket nor the sibling's channel.
        let count = |what: &str| fds.values().filter(|name| name.as_str().unwrap().contains(what)).count();
        assert_eq!((count("eventpoll"), count("eventfd"), count("socket:")), (1, 1, 1), "{value}");
        drop(sibling);
    });
}

#[test]
fn what_a_dead_worker_left_is_told_and_killed_on_demand() {
    let job = "const { spawn } = require('child_process');
        const child = spawn('sleep', ['1000'], { detached: true, stdio: 'ignore' }); child.unref(); return child.pid";
    with_each(|zygote| {
        let mut worker = zygote.fork();
        let id = worker.id;
        worker.give(job);
        let pid = worker.answer()["value"].clone();
        let exited = zygote.exited(id);
        assert!(exited.left_behind);
        let path = format!("/proc/{pid}/stat");
        assert!(std::fs::exists(&path).unwrap());
        zygote.send(4, id, b"", &[]);
        zygote.gone(id);
        assert!(!std::fs::exists(&path).unwrap());
    });
}

#[test]
fn terminate_reaches_the_whole_tree_and_kill_ends_what_resists() {
    // A child with a session of its own, and one that starts another when it is told to end.
    let job = "//raw
        const { spawn } = require('child_process'); process.on('SIGTERM', () => {});
        const first = spawn('sleep', ['1000'], { detached: true });
        const second = spawn('sh', ['-c', 'trap \"sleep 1000 & sleep 1000 & setsid sleep 1000\" TERM; echo up; sleep 1000 & wait'],
          { detached: true, stdio: ['ignore', 'pipe', 'ignore'] });
        second.stdout.once('data', () => require('fs').writeSync(3, '\\x02\\0\\0\\0[]'));
        first.on('exit', () => require('fs').writeSync(3, '\\x02\\0\\0\\0{}'));";
    with_each(|zygote| {
        let mut worker = zygote.fork();
        let id = worker.id;
        worker.give(job);
        assert_eq!(worker.answer(), json!([]));
        zygote.send(3, id, b"", &[]);
        // The first child has left by SIGTERM, although the worker itself takes none.
        assert_eq!(worker.answer(), json!({}));
        zygote.send(4, id, b"", &[]);
        assert_eq!(zygote.exited(id).value, libc::SIGKILL);
        zygote.gone(id);
        assert_eq!(below(zygote.pid()), Vec::<i32>::new());
    });
}

/// The process numbers of all living processes below this one.
fn below(root: i32) -> Vec<i32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let pid: i32 = stat.split(' ').next().unwrap().parse().unwrap();
        let parent: i32 = stat.rsplit(')').next().unwrap().split(' ').nth(2).unwrap().parse().unwrap();
        parents.push((pid, parent));
    }
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

#[test]
fn the_end_of_the_control_socket_ends_everything() {
    with_each(|zygote| {
        let mut worker = zygote.fork();
        worker.give(
            "require('child_process').spawn('sleep', ['1000'], { detached: true }); setInterval(() => {}, 1000);
             process.on('SIGTERM', () => {}); return 1",
        );
        assert_eq!(worker.answer()["value"], 1);
        let waiting = zygote.fork();
        let (_, inner) = zygote.fork_zygote(&json!({ "cwd": "/", "env": {}, "modules": [] }));
        let mut inner = inner.unwrap();
        let deep = inner.fork();
        let all = below(zygote.pid());
        assert!(all.len() >= 5 && all.contains(&deep.pid) && all.contains(&waiting.pid), "{all:?}");
        zygote.send(255, 0, b"", &[]);
        let mut process = zygote.process.take().unwrap();
        assert!(process.wait().unwrap().success());
        for pid in all {
            assert!(!is_running(pid), "{pid} is left");
        }
    });
}

/// Whether a process is there and not merely unreaped by somebody else.
fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

#[test]
fn a_dead_zygote_takes_its_workers_with_it() {
    with_each(|zygote| {
        let worker = zygote.fork();
        // SAFETY: signals the test's own child.
        unsafe { libc::kill(zygote.pid(), libc::SIGKILL) };
        zygote.process.take().unwrap().wait().unwrap();
        let end = Instant::now() + std::time::Duration::from_secs(10);
        while is_running(worker.pid) {
            assert!(Instant::now() < end, "the worker lives on");
            std::thread::yield_now();
        }
    });
}

#[test]
fn requests_that_cannot_be_met_are_answered() {
    with_each(|zygote| {
        let worker = zygote.fork();
        let null = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&null);
        zygote.send(1, worker.id, b"", &[fd, fd, fd]);
        let failed = zygote.wait_for(|report| report.kind == FORK_FAILED);
        assert_eq!((failed.id, failed.value), (worker.id, libc::EEXIST));
        // Ids that nobody has are no error: the tree may just be gone.
        zygote.send(3, 999, b"", &[]);
        zygote.send(4, 999, b"", &[]);
        // A worker whose host hangs up leaves by itself.
        let id = worker.id;
        drop(worker);
        assert_eq!(zygote.exited(id).value, 0);
        assert_eq!(zygote.value("return 1"), 1);
    });
}

#[test]
fn the_pass_over_memory_does_without_the_filter() {
    for node in nodes() {
        let mut zygote = Zygote::try_boot(&node, &FLAGS, false).ok().unwrap();
        assert_eq!(zygote.value("return [1, 2].map((n) => n + 1)"), json!([2, 3]));
        let (_, inner) = zygote.fork_zygote(&json!({ "cwd": "/", "env": {}, "modules": [] }));
        assert_eq!(inner.unwrap().value("return 3"), 3);
    }
}

/// A folder with packages.
fn tree(packages: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, code) in packages {
        let package = folder.path().join("node_modules").join(name);
        std::fs::create_dir_all(&package).unwrap();
        let main = if code.contains("export ") { "index.mjs" } else { "index.cjs" };
        std::fs::write(package.join("package.json"), json!({ "name": name, "main": main }).to_string())
            .unwrap();
        std::fs::write(package.join(main), code).unwrap();
    }
    folder
}

#[test]
fn a_module_that_reads_the_folders_of_its_call_at_load_is_refused() {
    let modules = [
        ("tmp", "module.exports = require('os').tmpdir()"),
        ("home", "module.exports = require('node:os').homedir()"),
        ("esm-home", "import { homedir } from 'node:os'; export const home = homedir()"),
        ("variable", "module.exports = { ...process.env }.HOME"),
        ("folder", "module.exports = require('path').resolve('x')"),
    ];
    let folder = tree(&modules);
    with_each(|zygote| {
        for (name, _) in modules {
            let kind = if name == "esm-home" { "import" } else { "require" };
            let wanted = json!([{ "specifier": name, "kind": kind }]);
            let request = json!({ "cwd": folder.path(), "env": { "HOME": "/h" }, "modules": wanted });
            let (_, inner) = zygote.fork_zygote(&request);
            let refused = inner.err().unwrap_or_else(|| panic!("{name} was loaded")).json();
            assert!(refused["reason"].as_str().unwrap().contains("when it is loaded"), "{refused}");
        }
    });
}

#[test]
fn a_module_may_keep_the_environment() {
    let folder = tree(&[(
        "keeper",
        "const { env } = process; module.exports = () => { env.B = 'b'; return env.HOME + env.B + process.env.B }",
    )]);
    with_each(|zygote| {
        let wanted = json!([{ "specifier": "keeper", "kind": "require" }]);
        let (_, inner) =
            zygote.fork_zygote(&json!({ "cwd": folder.path(), "env": { "HOME": "/h" }, "modules": wanted }));
        assert_eq!(
            inner.unwrap().value("process.env.HOME = '/w'; return require('keeper')()"),
            json!("/wbb")
        );
    });
}

#[test]
fn no_collection_of_the_zygotes_goes_on_in_a_worker() {
    // Loading it makes V8 begin to mark.
    let folder =
        tree(&[("large", "exports.kept = Array.from({ length: 300_000 }, (_, i) => ({ i, list: [i] }))")]);
    let job = "const collections = []; const { PerformanceObserver, constants } = require('perf_hooks');
        new PerformanceObserver((list) => collections.push(...list.getEntries())).observe({ entryTypes: ['gc'] });
        let last; for (let i = 0; i < 20_000; i++) last = [i];
        await new Promise((done) => setTimeout(done, 50));
        return [last.length, collections.filter(({ detail }) => detail.kind !== constants.NODE_PERFORMANCE_GC_MINOR).length,
          typeof gc, require('vm').runInNewContext('typeof gc')]";
    with_each(|zygote| {
        let wanted = json!([{ "specifier": "large", "kind": "require" }]);
        let (_, inner) = zygote.fork_zygote(&json!({ "cwd": folder.path(), "env": {}, "modules": wanted }));
        assert_eq!(inner.unwrap().value(job), json!([1, 0, "undefined", "undefined"]));
    });
}

#[test]
fn a_dependency_zygote_has_its_modules_loaded() {
    let folder = tree(&[
        (
            "counted",
            "globalThis.loads = (globalThis.loads ?? 0) + 1; module.exports = { random: Math.random }",
        ),
        ("esm", "globalThis.esm = (globalThis.esm ?? 0) + 1; export const E = process.env.E"),
        ("broken", "throw new Error('not here')"),
        ("chatty", "module.exports = process.stdout.isTTY || process.stderr.columns"),
    ]);
    let modules = json!([
        { "specifier": "counted", "kind": "require" }, { "specifier": "esm", "kind": "import" },
        { "specifier": "broken", "kind": "require" }, { "specifier": "missing", "kind": "import" },
        { "specifier": "chatty", "kind": "require" },
    ]);
    with_each(|zygote| {
        let request = json!({ "cwd": folder.path(), "env": { "E": "e" }, "modules": modules });
        let (id, inner) = zygote.fork_zygote(&request);
        let mut inner = inner.unwrap();
        let ready = inner.ready.json();
        let names = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|module| module["specifier"].to_string()).collect()
        };
        assert_eq!(names(&ready["loaded"]), ["\"counted\"", "\"esm\"", "\"chatty\""], "{ready}");
        assert_eq!(names(&ready["skipped"]), ["\"broken\"", "\"missing\""]);
        assert!(ready["skipped"][0]["reason"].as_str().unwrap().contains("not here"), "{ready}");

        let job = "const { random } = require('counted'); const { E } = await import('esm');
            console.log('out'); return [globalThis.loads, globalThis.esm, E, process.env.UV_THREADPOOL_SIZE ?? null,
              random(), Math.random(), require('crypto').randomUUID()]";
        let mut drawn = HashSet::new();
        for _ in 0..10 {
            let ended = inner.run(job);
            assert_eq!(ended.stdout, "out\n", "{ended:?}");
            let value = ended.answer["value"].as_array().unwrap_or_else(|| panic!("{ended:?}")).clone();
            assert_eq!(value[..4], [json!(1), json!(1), json!("e"), json!(null)]);
            assert!(value[4..].iter().all(|number| drawn.insert(number.to_string())), "{value:?}");
        }
        // Its parent tells when it is gone, and goes on.
        drop(inner);
        assert_eq!(zygote.exited(id).value, 0);
        zygote.gone(id);
        assert_eq!(zygote.value("return globalThis.loads ?? null"), json!(null));
    });
}

#[test]
fn a_module_that_takes_nothing_of_a_call_stays_loaded() {
    let folder = tree(&[
        (
            "looks",
            "module.exports = [process.argv.includes('--no-color'), process.argv.indexOf('-x'), require.main === module]",
        ),
        ("lists", "module.exports = Object.keys(process.env).includes('HOME')"),
        (
            "asks",
            "module.exports = [process.env.NODE_ENV, require('os').cpus().length, require('os').totalmem(), require('os').hostname()]",
        ),
        ("keeps", "const { random } = Math, { now } = Date; module.exports = () => [random(), now()]"),
        ("lodash", "const { now } = Date; module.exports = now()"),
        (
            "main",
            "const main = require.main, { argv } = process; module.exports = () => [main === process.mainModule, argv === process.argv || argv.length === process.argv.length, process.execArgv.length]",
        ),
        (
            "scripts",
            "module.exports = Object.keys(require.cache).some((name) => /zygote|worker\\.cjs/.test(name))",
        ),
    ]);
    let names = ["looks", "lists", "asks", "keeps", "lodash", "main", "scripts"];
    with_each(|zygote| {
        let modules: Vec<Value> =
            names.iter().map(|name| json!({ "specifier": name, "kind": "require" })).collect();
        let request = json!({ "cwd": folder.path(), "env": {}, "modules": modules });
        let (_, inner) = zygote.fork_zygote(&request);
        let mut inner = inner.unwrap_or_else(|report| panic!("{}", report.json()));
        assert_eq!(inner.ready.json()["loaded"].as_array().unwrap().len(), names.len());
        let job =
            "return [require('looks'), require('lists'), require('scripts'), require('main')().slice(0, 2)]";
        assert_eq!(inner.value(job), json!([[false, -1, false], true, false, [true, true]]));
        let drawn: HashSet<String> =
            (0..5).map(|_| inner.value("return require('keeps')()[0]").to_string()).collect();
        assert_eq!(drawn.len(), 5);
    });
}

#[test]
fn all_modules_that_are_unfit_are_told_at_once() {
    let folder = tree(&[
        ("one", "module.exports = Math.random()"),
        ("two", "0"),
        ("three", "module.exports = Date.now()"),
    ]);
    with_each(|zygote| {
        let modules: Vec<Value> = ["one", "two", "three"]
            .iter()
            .map(|name| json!({ "specifier": name, "kind": "require" }))
            .collect();
        let (_, inner) = zygote.fork_zygote(&json!({ "cwd": folder.path(), "env": {}, "modules": modules }));
        let refused = inner.err().expect("two of them are unfit").json();
        let unfit: Vec<&Value> =
            refused["unfit"].as_array().unwrap().iter().map(|unfit| &unfit["specifier"]).collect();
        assert_eq!(unfit, ["one", "three"], "{refused}");
    });
}

/// What the library offers is nobody's but `zygote.cjs`'s: not by its path, nor by the name that Node has it under.
#[test]
fn no_function_gets_at_what_the_library_offers() {
    with_each(|zygote| {
        let job = "const fs = require('fs'); const names = [];
            const paths = new Set(fs.readFileSync('/proc/self/maps', 'utf8').split('\\n')
              .map((line) => line.slice(line.indexOf('/'))).filter((path) => path.includes('zygote')));
            if (paths.size === 0) throw new Error('the library is not mapped');
            for (const path of paths) {
              const copy = require('path').join(require('os').tmpdir(), `copy-${process.pid}.node`);
              fs.copyFileSync(path, copy);
              for (const at of [path, copy]) {
                const module = { exports: {} };
                try { process.dlopen(module, at); } catch {}
                names.push(...Object.keys(module.exports));
              }
              fs.rmSync(copy);
            }
            try { names.push(...Object.keys(process._linkedBinding('native_sandbox_zygote'))); } catch {}
            return names";
        assert_eq!(zygote.value(job), json!([]));
    });
}

#[test]
fn a_module_that_does_more_than_load_is_refused() {
    let cases = [
        ("setInterval(() => {}, 1000).unref()", "handle or timer"),
        ("require('net').createServer().listen(0).unref()", "open"),
        (
            "new (require('worker_threads').Worker)('setInterval(() => {}, 9)', { eval: true }).unref()",
            "threads",
        ),
        ("globalThis.kept = require('fs').openSync('/dev/null')", "open"),
        ("console.log('hello')", "writes to stdout"),
        ("require('crypto').randomInt(5)", "crypto"),
        ("module.exports = crypto.getRandomValues(new Uint8Array(4))", "crypto"),
        ("require('crypto').generateKeyPairSync('ed25519')", "crypto"),
        ("const { random } = Math; module.exports = random()", "Math.random"),
        ("module.exports = require('vm').runInNewContext('Math.random()')", "realm"),
        ("module.exports = new (require('vm').Script)('Math.random()').runInNewContext()", "realm"),
        ("module.exports = process.binding('contextify')", "binding"),
        (
            "module.exports = require('fs').readFileSync('/proc/sys/kernel/random/uuid', 'utf8')",
            "random bytes",
        ),
        (
            "const fs = require('fs'); const fd = fs.openSync('/dev/urandom'); fs.readSync(fd, Buffer.alloc(4)); fs.closeSync(fd)",
            "random bytes",
        ),
        ("module.exports = process.pid", "process.pid"),
        ("module.exports = process.ppid", "process.ppid"),
        ("module.exports = process.argv[1]", "argv"),
        ("module.exports = process.argv.slice(1)", "argv"),
        ("module.exports = require.main.filename", "require.main"),
        ("module.exports = module.parent.filename", "module.parent"),
        ("module.exports = new Date()", "time of day"),
        ("const D = Date; module.exports = D.now() % 1000", "time of day"),
        ("module.exports = performance.now()", "performance.now"),
        ("module.exports = performance.timeOrigin", "timeOrigin"),
        ("module.exports = process.uptime()", "uptime"),
        ("module.exports = process.hrtime.bigint()", "hrtime"),
        ("module.exports = process.memoryUsage().rss", "memoryUsage"),
        ("module.exports = require('os').loadavg()", "loadavg"),
        ("module.exports = require('os').freemem()", "freemem"),
        ("module.exports = require('os').cpus()[0].times.user", "times"),
        ("module.exports = { ...process.env }.TMPDIR", "the variable"),
        ("module.exports = require('child_process').execFileSync('echo', ['a'])", "program"),
        ("Math.random = () => 0.5", "Math.random"),
        ("process.env.ADDED = '1'", "environment"),
        ("process.chdir('/')", "working folder"),
        ("process.exit(3)", "ends the process"),
        ("const end = Date.now() + 150; while (Date.now() < end);", "ms to load"),
        ("require('child_process').spawn('sleep', ['1000']).unref()", "open"),
    ];
    with_each(|zygote| {
        for (code, reason) in cases {
            let folder = tree(&[("odd", code)]);
            let modules = json!([{ "specifier": "odd", "kind": "require" }]);
            let request = json!({ "cwd": folder.path(), "env": {}, "modules": modules, "limitMs": 100 });
            let (id, inner) = zygote.fork_zygote(&request);
            let refused = inner.err().unwrap_or_else(|| panic!("{code} was loaded"));
            assert_eq!(refused.kind, REFUSED);
            assert_eq!(refused.json()["specifier"], "odd");
            let given = refused.json()["reason"].as_str().unwrap().to_owned();
            assert!(given.contains(reason), "{code}: {given}");
            assert_eq!(zygote.exited(id).value, 1 << 8);
            zygote.send(4, id, b"", &[]);
            zygote.gone(id);
        }
    });
}

#[test]
fn many_forks_stay_flat() {
    const FORKS: usize = 300;
    let rss_kib = |pid: i32| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    with_each(|zygote| {
        let mut times_us = Vec::new();
        let mut rss_early_kib = 0;
        for round in 0..FORKS {
            let began = Instant::now();
            assert_eq!(zygote.value("return 1"), 1);
            times_us.push(began.elapsed().as_micros());
            if round == 20 {
                rss_early_kib = rss_kib(zygote.pid());
            }
        }
        // The best of each: other work on the machine makes times longer, never shorter.
        let best = |part: &[u128]| part.iter().copied().min().unwrap();
        let (first, last) = (best(&times_us[..100]), best(&times_us[FORKS - 100..]));
        let grown_kib = rss_kib(zygote.pid()).saturating_sub(rss_early_kib);
        println!("best of the first 100 {first} µs, of the last {last} µs; resident set +{grown_kib} KiB");
        assert!(last < first * 2, "{first} µs became {last} µs");
        assert!(grown_kib < 10 * 1024, "{grown_kib} KiB more");
    });
}

/// From writing the job to reading the answer, of workers forked ahead. Prints; asserts only what no machine misses.
#[test]
fn workers_forked_ahead_answer_at_once() {
    with_each(|zygote| {
        let mut times_us = Vec::new();
        let mut all_us = Vec::new();
        for _ in 0..100 {
            let began = Instant::now();
            let mut worker = zygote.fork();
            // It is warm once it sleeps in its read.
            while !std::fs::read_to_string(format!("/proc/{}/stat", worker.pid)).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
            let written = Instant::now();
            worker.give("return 1");
            assert_eq!(worker.answer()["value"], 1);
            times_us.push(written.elapsed().as_micros());
            let id = worker.id;
            drop(worker);
            let report = zygote.wait_for(|report| report.kind == EXITED && report.id == id);
            assert!(report.cpu_us > 0);
            all_us.push(began.elapsed().as_micros());
            zygote.wait_for(|report| report.kind == GONE && report.id == id);
        }
        times_us.sort_unstable();
        all_us.sort_unstable();
        println!(
            "job to answer: p50 {} µs, p90 {} µs; fork to exit: p50 {} µs",
            times_us[50], times_us[90], all_us[50]
        );
        assert!(times_us[50] < 50_000);
    });
    let _ = FORKED;
}
