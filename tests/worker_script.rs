//! The worker's script in a real Node, driven by the real supervision over a real socket.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::{
        fd::OwnedFd,
        unix::{fs::symlink, net::UnixStream, process::CommandExt, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use native_sandbox_executor::{
    error::{Code, Phase, SandboxError},
    limits::CallLimits,
    process::{
        BoxFuture, Command, Control, ExitStatus, Limits, Process, SpawnError, Spawner, Started, TreeState,
    },
    source::Kind,
    start::{Breed, HomeStore, Ladder as _, Rung, RungLadder, ScriptSource, Scripts, WorkerSpec},
    store::Store,
    supervise::{Aside, RunLimits, RunReport, cancellation, supervise},
    worker::{WORKER_SCRIPT, outcome::Outcome, protocol::Job},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::unix::pipe,
    sync::{oneshot, watch},
};

const TIMEOUT: Duration = Duration::from_mins(1);
const MAX_OUTPUT_BYTES: u64 = 1024 * 1024;

// ---- processes, as plainly as possible ----------------------------------------------------------------------------------

struct GroupControl {
    group: rustix::process::Pid,
    state: watch::Sender<TreeState>,
}

impl GroupControl {
    fn signal(&self, signal: rustix::process::Signal) {
        // Held while signalling: the number stays the group's as long as its leader is not known to be reaped.
        let state = self.state.borrow();
        if state.exit.is_none() {
            let _ = rustix::process::kill_process_group(self.group, signal);
        }
    }
}

impl Control for GroupControl {
    fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }
    fn kill(&self) {
        self.signal(rustix::process::Signal::KILL);
    }
}

struct TestSpawner;

impl Spawner for TestSpawner {
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
        Box::pin(async move { Ok(spawn(&command)) })
    }
}

#[expect(clippy::disallowed_methods, reason = "a spawner for tests, without the launcher")]
fn spawn(command: &Command) -> Started {
    let (host, worker) = UnixStream::pair().unwrap();
    let mut child = std::process::Command::new("/bin/sh")
        .args(["-c", "exec \"$@\" 3<&0 0</dev/null", "sh"])
        .arg(&command.program)
        .args(&command.args)
        .env_clear()
        .envs(command.env.iter().cloned())
        .current_dir(&command.cwd)
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(worker)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    host.set_nonblocking(true).unwrap();
    let stdout = pipe::Receiver::from_owned_fd(child.stdout.take().unwrap().into()).unwrap();
    let stderr = pipe::Receiver::from_owned_fd(child.stderr.take().unwrap().into()).unwrap();
    let (state, receiver) = watch::channel(TreeState::default());
    let group = rustix::process::Pid::from_child(&child);
    let control = GroupControl { group, state: state.clone() };
    let pid = child.id();
    std::thread::spawn(move || {
        let status = child.wait().unwrap();
        let exit = match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            (None, None) => ExitStatus::Lost,
        };
        state.send_replace(TreeState { exit: Some(exit), gone: true, ..TreeState::default() });
    });
    Started {
        process: Process::new(pid, Arc::new(control), receiver),
        stdout: Box::new(stdout),
        stderr: Box::new(stderr),
        channel: Some(Box::new(tokio::net::UnixStream::from_std(host).unwrap())),
    }
}

/// `TEST_NODE`, or the first `node` on the path.
#[expect(clippy::disallowed_methods, reason = "a test finds its Node in the environment")]
fn node() -> PathBuf {
    if let Some(node) = std::env::var_os("TEST_NODE") {
        return node.into();
    }
    let path = std::env::var_os("PATH").expect("a PATH with node on it");
    std::env::split_paths(&path)
        .map(|folder| folder.join("node"))
        .find(|node| node.exists())
        .expect("node on the PATH")
}

// ---- calls --------------------------------------------------------------------------------------------------------------

/// Folders of a call as the executor lays them out, with a tree of two packages.
struct Bench {
    root: TempDir,
    cwd: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let cwd = root.path().canonicalize().unwrap().join("run/cwd");
        let modules = root.path().join("tree/node_modules");
        fs::create_dir_all(cwd.join("tmp")).unwrap();
        fs::create_dir_all(modules.join("cjs-dep")).unwrap();
        fs::create_dir_all(modules.join("esm-dep")).unwrap();
        fs::write(
            modules.join("cjs-dep/index.js"),
            "exports.kind = 'cjs'; exports.parent = module.parent !== undefined;",
        )
        .unwrap();
        let manifest = r#"{"type":"module","exports":"./main.js"}"#;
        fs::write(modules.join("esm-dep/package.json"), manifest).unwrap();
        fs::write(modules.join("esm-dep/main.js"), "export const kind = 'esm';").unwrap();
        symlink(&modules, root.path().join("run/node_modules")).unwrap();
        fs::create_dir(root.path().join("runtime")).unwrap();
        fs::write(root.path().join("runtime/worker.cjs"), WORKER_SCRIPT).unwrap();
        Self { root, cwd }
    }

    /// `text` as `source::prepare` makes a script of it.
    fn job(&self, text: &str) -> Job {
        Job {
            kind: Kind::Script,
            filename: self.cwd.join("tool.js"),
            tool_id: "tool".to_owned(),
            cwd: self.cwd.clone(),
            tmpdir: self.cwd.join("tmp"),
            tree: self.root.path().join("tree"),
            env: BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]),
            line_offset: 1,
            column_offset: 0,
            source_map: None,
            max_result_bytes: MAX_OUTPUT_BYTES,
            compile_cache: None,
            compiles_only: false,
            talk: None,
            files: 0,
            collect: None,
            code_cache: None,
            code: format!("return (\n{text}\n);"),
            args: None,
        }
    }

    fn module(&self, text: &str) -> Job {
        Job { kind: Kind::Module, line_offset: 0, code: text.to_owned(), ..self.job("") }
    }

    async fn run(&self, job: Job) -> (Outcome, RunReport) {
        self.run_within(job, TIMEOUT, 256).await
    }

    async fn run_within(&self, job: Job, timeout: Duration, memory_mb: u32) -> (Outcome, RunReport) {
        let script = self.root.path().join("runtime/worker.cjs");
        let ladder = RungLadder::new(Arc::new(TestSpawner), self.root.path().join("no-library"));
        let scripts = Scripts { zygote: script.clone(), worker: script };
        let spec = WorkerSpec {
            loads_itself: false,
            own_variables: BTreeSet::new(),
            breed: Arc::new(Breed {
                node: node(),
                memory_mb,
                limits: Limits::default(),
                boot_env: [("BOOT_ONLY", "x"), ("TZ", "UTC")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
                load_env: BTreeMap::new(),
                shield: Arc::default(),
                store: HomeStore(Store::open(self.root.path()).unwrap()),
            }),
            scripts: ScriptSource::new(move || Ok(scripts.clone())),
            packages: BTreeSet::new(),
            tenant: None,
            tool_id: "test".into(),
            forced: Some(Rung::Spawn),
            tree: Arc::new(job.tree.clone()),
            has_dependencies: false,
        };
        let worker = ladder.start(spec).await.unwrap();
        let limits = RunLimits {
            timeout,
            max_output_bytes: MAX_OUTPUT_BYTES,
            linger: Duration::from_millis(250),
            call: CallLimits { memory_mb, ..CallLimits::DEFAULT },
        };
        let (_canceller, cancel) = cancellation();
        let (settle, outcome) = oneshot::channel();
        let report = supervise(worker, job, limits, cancel, settle, None, Aside::nothing()).await;
        (outcome.await.unwrap(), report)
    }

    async fn error(&self, job: Job) -> SandboxError {
        self.run(job).await.0.expect_err("an error")
    }
}

async fn value_of(job_of: impl FnOnce(&Bench) -> Job) -> Value {
    let bench = Bench::new();
    let job = job_of(&bench);
    let (outcome, report) = bench.run(job).await;
    let json = outcome.unwrap_or_else(|error| panic!("{error}\n{:?}", error.stderr));
    assert_eq!(report.exit, ExitStatus::Code(0), "{report:?}");
    json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
}

async fn value(text: &str) -> Value {
    value_of(|bench| bench.job(text)).await
}

async fn error(text: &str) -> SandboxError {
    let bench = Bench::new();
    bench.error(bench.job(text)).await
}

async fn thrown(text: &str) -> (String, Value) {
    let error = error(text).await;
    assert_eq!((error.code, error.phase), (Code::ToolError, Phase::Run), "{error}");
    let cause = error.cause_json.unwrap_or_else(|| panic!("no cause: {}", error.message));
    (error.message, serde_json::from_str(&cause).unwrap())
}

// ---- results ------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn results_go_the_way_of_json() {
    let bench = Bench::new();
    let cases = [
        (
            "async () => ({ a: undefined, d: new Date(0), m: new Map([[1, 2]]), n: NaN })",
            Some(r#"{"d":"1970-01-01T00:00:00.000Z","m":{},"n":null}"#),
        ),
        ("() => {}", None),
        ("() => () => 1", None),
        ("async () => Symbol('x')", None),
        ("() => null", Some("null")),
        ("() => ({ then(ok) { setTimeout(() => ok([1]), 5); } })", Some("[1]")),
        (
            r#"async () => JSON.parse('{"a":1,"__proto__":{"admin":true}}')"#,
            Some(r#"{"a":1,"__proto__":{"admin":true}}"#),
        ),
        (
            r"async () => ({ cut: 'ab\ud83d', ok: '\ud83d\ude00' })",
            Some("{\"cut\":\"ab\\ud83d\",\"ok\":\"😀\"}"),
        ),
    ];
    for (text, expected) in cases {
        let (outcome, _) = bench.run(bench.job(text)).await;
        assert_eq!(outcome.unwrap().as_deref(), expected, "{text}");
    }
}

#[tokio::test]
async fn arguments_arrive_as_they_are() {
    let args = r#"{"user":"u1","half":"\ud83d","ls":"  </script>","__proto__":{"admin":true}}"#;
    let text = "async (a) => [Object.keys(a), a.admin === undefined, Object.getPrototypeOf(a) === Object.prototype, a.half.length, a.ls]";
    let got = value_of(|bench| Job { args: Some(args.to_owned()), ..bench.job(text) }).await;
    assert_eq!(got, json!([["user", "half", "ls", "__proto__"], true, true, 1, "  </script>"]));
    assert_eq!(value("async (a) => a === null").await, json!(true));
}

#[tokio::test]
async fn large_arguments_and_results_arrive_whole() {
    let args =
        serde_json::to_string(&json!({ "text": "値".repeat(5 * 1024 * 1024 / 3), "end": "tail" })).unwrap();
    let text = "async ({ text, end }) => ({ length: text.length, bad: text.includes('\\ufffd'), end })";
    let got = value_of(|bench| Job { args: Some(args), ..bench.job(text) }).await;
    assert_eq!(got, json!({ "length": 5 * 1024 * 1024 / 3, "bad": false, "end": "tail" }));
    let long = value("async () => '値'.repeat(300 * 1024)").await;
    assert_eq!(long.as_str().unwrap(), "値".repeat(300 * 1024));
}

#[tokio::test]
async fn a_result_over_the_limit_is_refused() {
    let error = error("async () => 'r'.repeat(3 * 1024 * 1024)").await;
    assert_eq!(error.message, "Output size exceeded limit of 1048576 bytes");
    assert_eq!(error.code, Code::OutputLimit);
}

#[tokio::test]
async fn results_that_json_cannot_carry_are_errors_that_say_so() {
    for (text, said) in [
        ("async () => ({ wei: 10n ** 18n })", "TypeError: Do not know how to serialize a BigInt"),
        (
            "async () => { const a = {}; a.a = a; return a; }",
            "TypeError: Converting circular structure to JSON",
        ),
        ("async () => ({ toJSON() { throw new RangeError('no way'); } })", "RangeError: no way"),
    ] {
        let error = error(text).await;
        assert_eq!((error.code, error.phase), (Code::ResultNotSerializable, Phase::Result));
        assert!(
            error.message.starts_with(&format!("Function execution failed with code 1: {said}")),
            "{error}"
        );
    }
}

// ---- thrown values ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn whatever_is_thrown_is_told() {
    for (what, told) in [
        ("new TypeError('no such customer')", "TypeError: no such customer"),
        ("'plain text'", "plain text"),
        ("{ code: 'QUOTA', limit: 50 }", r#"{"code":"QUOTA","limit":50}"#),
        ("undefined", "undefined"),
        ("null", "null"),
        ("10n", "10"),
        ("Symbol('s')", "Symbol(s)"),
        ("new Map([[1, 2]])", "Map(1) { 1 => 2 }"),
        ("Object.create(null)", "[Object: null prototype] {}"),
        (
            "(() => { const o = { name: 'o' }; o.o = o; return o; })()",
            "<ref *1> { name: 'o', o: [Circular *1] }",
        ),
        ("new DOMException('gone', 'AbortError')", "AbortError: gone"),
        ("require('vm').runInNewContext('new RangeError(\"elsewhere\")')", "RangeError: elsewhere"),
        ("Object.assign(new Error('x'), { name: 'RateLimit' })", "RateLimit: x"),
        ("new (class Custom extends Error { get name() { throw 1; } })('y')", "Error: y"),
        ("Object.assign(new Error(), { message: { code: 1 } })", r#"Error: {"code":1}"#),
        ("new Error('half \\ud83d')", "Error: half \u{fffd}"),
        ("new Proxy({ a: 1 }, {})", r#"{"a":1}"#),
        ("(() => { const r = Proxy.revocable({}, {}); r.revoke(); return r.proxy; })()", "<Revoked Proxy>"),
        ("new Proxy(new Error('z'), { get() { throw 1; }, ownKeys() { throw 1; } })", "Error"),
        ("{ message: 'm', stack: 's' }", "Error: m"),
    ] {
        let (message, _) = thrown(&format!("async () => {{ throw {what}; }}")).await;
        assert_eq!(message, format!("Function execution failed with code 1: {told}"), "throw {what}");
    }
}

#[tokio::test]
async fn a_thrown_error_brings_its_fields_and_causes() {
    let (message, cause) = thrown(
        "async () => {
            const inner = new Error('certificate has expired');
            inner.cause = 'the clock';
            throw Object.assign(new TypeError('could not load', { cause: inner }), { status: 503, big: 1n, deep: { a: [1] } });
        }",
    )
    .await;
    assert_eq!(
        message,
        "Function execution failed with code 1: TypeError: could not load\n [cause]: Error: certificate has expired\n \
         [cause]: the clock"
    );
    assert_eq!(cause["name"], "TypeError");
    assert_eq!(cause["message"], "could not load");
    assert_eq!(cause["fields"], json!({ "status": 503, "deep": { "a": [1] } }));
    assert_eq!(cause["cause"]["cause"]["text"], "the clock");
}

#[tokio::test]
async fn causes_end() {
    let (message, _) = thrown("async () => { const e = new Error('loop'); e.cause = e; throw e; }").await;
    assert_eq!(message, "Function execution failed with code 1: Error: loop");
    let (message, _) = thrown(
        "async () => { let e = new Error('0'); for (let i = 1; i < 100; i++) e = new Error(`${i}`, { cause: e }); throw e; }",
    )
    .await;
    assert_eq!(message.matches("[cause]").count(), 7);
    let (message, _) =
        thrown("async () => { throw new AggregateError([new Error('a'), 'b'], 'both'); }").await;
    assert_eq!(
        message,
        "Function execution failed with code 1: AggregateError: both\n [error 1]: Error: a\n [error 2]: b"
    );
}

#[tokio::test]
async fn the_largest_thrown_value_fits_a_frame() {
    let (message, _) = thrown(
        "async () => {
            const text = '\\u0001'.repeat(1e6);
            const make = (cause) => Object.assign(new Error(text, { cause }), { a: text, b: text.slice(0, 20000), c: '値'.repeat(20000) });
            throw make(make(make()));
        }",
    )
    .await;
    assert!(message.len() < 1024 * 1024);
}

// ---- ends ---------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn ends_without_a_result_are_told() {
    for (text, code, message) in [
        ("async () => { process.exit(0); }", Code::Exited, "failed with code 0: the process exited before"),
        (
            "async () => { console.error('config missing'); process.exit(7); }",
            Code::Exited,
            "failed with code 7: config missing",
        ),
        ("async () => new Promise(() => {})", Code::Exited, "failed with code 0: the event loop ran empty"),
        (
            "async () => { process.exitCode = 3; await new Promise(() => {}); }",
            Code::Exited,
            "failed with code 3: the event loop ran empty",
        ),
        (
            "async () => { process.kill(process.pid, 'SIGKILL'); await new Promise((r) => setTimeout(r, 5000)); }",
            Code::Killed,
            "killed by signal SIGKILL: ",
        ),
        (
            "async () => { Promise.reject(new Error('pool broke')); await new Promise((r) => setTimeout(r, 5000)); }",
            Code::ToolError,
            "failed with code 1: Error: pool broke",
        ),
        (
            "async () => { setTimeout(() => { throw new TypeError('in a timer'); }); await new Promise((r) => setTimeout(r, 5000)); }",
            Code::ToolError,
            "failed with code 1: TypeError: in a timer",
        ),
        (
            "async () => { process.removeAllListeners(); await new Promise(() => {}); }",
            Code::Exited,
            "failed with code 0: the process exited",
        ),
    ] {
        let error = error(text).await;
        assert_eq!(error.code, code, "{text}: {error}");
        assert!(error.message.starts_with(&format!("Function execution {message}")), "{text}: {error}");
    }
}

#[tokio::test]
async fn an_uncaught_error_that_is_handled_ends_nothing() {
    let text = "async () => {
        process.on('uncaughtException', () => {});
        setTimeout(() => { throw new Error('handled'); });
        await new Promise((r) => setTimeout(r, 50));
        return 'went on';
    }";
    assert_eq!(value(text).await, json!("went on"));
}

#[tokio::test]
async fn a_result_comes_although_something_goes_on() {
    let bench = Bench::new();
    let (outcome, report) =
        bench.run(bench.job("async () => { setInterval(() => {}, 1000); return 'done'; }")).await;
    assert_eq!(outcome, Ok(Some("\"done\"".to_owned())));
    assert!(report.lingered);
    assert_eq!(report.exit, ExitStatus::Signal(15));
    let late = "async () => { (async () => { throw new Error('telemetry'); })(); process.nextTick(() => {}); return 'value'; }";
    let (outcome, report) = bench.run(bench.job(late)).await;
    assert_eq!((outcome, report.exit), (Ok(Some("\"value\"".to_owned())), ExitStatus::Code(1)));
}

#[tokio::test]
async fn an_endless_loop_is_ended() {
    let bench = Bench::new();
    let job = bench.job("() => { console.log('looping'); for (;;); }");
    let (outcome, report) = bench.run_within(job, Duration::from_millis(1500), 256).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.message, "Function execution timed out after 1500ms");
    assert_eq!(error.stdout.as_deref(), Some("looping\n"));
    assert_eq!(report.exit, ExitStatus::Signal(15));
}

#[tokio::test]
async fn a_full_heap_is_told_as_memory() {
    let bench = Bench::new();
    let job = bench.job("() => { const all = []; for (;;) all.push(new Array(1000).fill({})); }");
    let (outcome, _) = bench.run_within(job, TIMEOUT, 32).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.code, Code::MemoryLimit, "{error}");
    assert!(error.message.contains("out of memory, the limit is 32 MB"), "{error}");
}

#[tokio::test]
async fn a_worker_without_a_job_leaves_quietly() {
    let bench = Bench::new();
    let command = Command {
        program: node(),
        args: vec![bench.root.path().join("runtime/worker.cjs").into()],
        cwd: bench.cwd.clone(),
        channel: true,
        ..Command::default()
    };
    let mut started = spawn(&command);
    started.channel = None;
    assert_eq!(started.process.exited().await, ExitStatus::Code(0));
    let mut printed = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut started.stderr, &mut printed).await.unwrap();
    assert_eq!(printed, "");
}

#[tokio::test]
async fn a_worker_that_cannot_enter_its_folder_is_a_failed_start() {
    let bench = Bench::new();
    let job = Job { cwd: "/nowhere/at/all".into(), ..bench.job("() => 1") };
    let error = bench.error(job).await;
    assert_eq!((error.code, error.phase), (Code::StartFailed, Phase::Start));
    assert!(error.message.contains("chdir"), "{error}");
}

// ---- hostile realms -----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_spoilt_realm_spoils_no_frame() {
    const SPOIL: &str = "
        const { ownKeys } = Reflect, { defineProperty } = Object, text = String, fs = require('fs');
        const protos = [Array.prototype, Promise.prototype, String.prototype, RegExp.prototype, Map.prototype, Buffer.prototype, Function.prototype];
        for (let p = 0; p < protos.length; p++) {
            const proto = protos[p], keys = ownKeys(proto);
            for (let k = 0; k < keys.length; k++) {
                const key = keys[k];
                if (key === 'caller' || key === 'arguments') continue;
                try { defineProperty(proto, key, { value() { throw new Error('spoilt ' + text(key)); }, configurable: true, writable: true }); } catch {}
            }
        }
        Object.defineProperty(Object.prototype, 'text', { get: () => 'spoilt', set() {}, configurable: true });
        Object.defineProperty(Object.prototype, 'get', { get: () => () => 'spoilt', set() {}, configurable: true });
        Object.defineProperty(Array.prototype, 0, { set() { throw new Error('spoilt index'); }, configurable: true });
        JSON.stringify = () => 'spoilt'; JSON.parse = () => 'spoilt';
        Buffer.from = Buffer.byteLength = () => { throw new Error('spoilt'); };
        fs.writeSync = () => { throw new Error('spoilt'); };
        Reflect.apply = () => 'spoilt';
        globalThis.process = globalThis.Atomics = globalThis.TextEncoder = undefined;
        globalThis.Promise = globalThis.Object = globalThis.Array = globalThis.JSON = globalThis.Buffer = globalThis.String = undefined;
    ";
    let bench = Bench::new();
    let (outcome, _) =
        bench.run(bench.job(&format!("async () => {{ {SPOIL} return {{ fine: [1] }}; }}"))).await;
    // How Node itself ends in such a realm is its own affair.
    assert_eq!(outcome, Ok(Some(r#"{"fine":[1]}"#.to_owned())));
    let (message, cause) =
        thrown(&format!("async () => {{ {SPOIL} throw new TypeError('still told'); }}")).await;
    assert_eq!(message, "Function execution failed with code 1: TypeError: still told");
    assert_eq!(cause["name"], "TypeError");
    let to_json = "async () => { Object.prototype.toJSON = () => 'spoilt'; throw new Error('told', { cause: new Error('why') }); }";
    let (message, _) = thrown(to_json).await;
    assert_eq!(message, "Function execution failed with code 1: Error: told\n [cause]: Error: why");
    let deleted =
        "async () => { delete Promise.prototype.then; delete Promise.prototype.constructor; return 1; }";
    assert_eq!(value(deleted).await, json!(1));
}

#[tokio::test]
async fn garbage_on_the_channel_is_an_error() {
    let error = error("async () => { require('fs').writeSync(3, 'hello hello'); await new Promise((r) => setTimeout(r, 5000)); }").await;
    assert!(error.message.contains("descriptor 3 belongs to the runtime"), "{error}");
}

#[tokio::test]
async fn children_of_the_function_do_not_get_the_channel() {
    let text = "async () => {
        const { spawnSync } = require('child_process');
        const probe = `try { require('fs').fstatSync(3).isSocket() ? console.log('socket') : console.log('other'); } catch (e) { console.log(e.code); }`;
        const shell = spawnSync('/bin/sh', ['-c', '[ -S /proc/self/fd/3 ] && echo socket || echo none'], { encoding: 'utf8' });
        const node = spawnSync(process.execPath, ['-e', probe], { encoding: 'utf8' });
        return [shell.stdout.trim(), node.stdout.trim() === 'socket', require('fs').fstatSync(3).isSocket()];
    }";
    // The last one shows that the probe would see it.
    assert_eq!(value(text).await, json!(["none", false, true]));
}

// ---- what the function finds --------------------------------------------------------------------------------------------

#[tokio::test]
async fn the_process_is_as_the_job_says() {
    let text = "async () => ({
        env: { ...process.env, TMPDIR: undefined },
        tmpdir: require('os').tmpdir() === process.cwd() + '/tmp',
        argv: [process.argv.length, process.argv[0] === process.execPath, process.argv[1]],
        files: [__filename, __dirname],
        main: require.main === module,
        cached: Object.keys(require.cache).length,
        stdin: require('fs').readFileSync(0, 'utf8'),
        globals: [typeof globalThis.require, typeof globalThis.module, typeof globalThis.__filename],
        boot: process.env.BOOT_ONLY === undefined,
    })";
    let bench = Bench::new();
    let (outcome, _) = bench.run(bench.job(text)).await;
    let got: Value = serde_json::from_str(&outcome.unwrap().unwrap()).unwrap();
    let tool = bench.cwd.join("tool.js");
    let expected = json!({
        "env": { "GREETING": "hello" },
        "tmpdir": true,
        "argv": [2, true, tool],
        "files": [tool, bench.cwd],
        "main": true,
        "cached": 0,
        "stdin": "",
        "globals": ["undefined", "undefined", "undefined"],
        "boot": true,
    });
    assert_eq!(got, expected);
}

#[tokio::test]
async fn the_time_zone_of_the_job_counts() {
    let hours = "async () => [new Date(0).getHours(), process.env.TZ ?? null]";
    for (zone, expected) in [(Some("Asia/Tokyo"), json!([9, "Asia/Tokyo"])), (None, json!([0, null]))] {
        let got = value_of(|bench| {
            let mut job = bench.job(hours);
            job.env.extend(zone.map(|zone| ("TZ".to_owned(), zone.to_owned())));
            job
        })
        .await;
        assert_eq!(got, expected);
    }
}

#[tokio::test]
async fn packages_load_by_require_and_by_import() {
    let both = "async () => [
        require('cjs-dep').kind,
        (await import('esm-dep')).kind,
        (await import('cjs-dep')).default.kind,
        (await import('node:path')).basename(require.resolve('cjs-dep')),
    ]";
    assert_eq!(value(both).await, json!(["cjs", "esm", "cjs", "index.js"]));
    let module = "import { kind } from 'esm-dep';
        import path from 'node:path';
        const answer = await Promise.resolve(42);
        export default async (args) => [kind, require('cjs-dep').kind, (await import('esm-dep')).kind, path.basename(__filename), path.basename(process.argv[1]), answer, args];";
    let got = value_of(|bench| bench.module(module)).await;
    assert_eq!(got, json!(["esm", "cjs", "esm", "tool.mjs", "tool.mjs", 42, null]));
    let own = "import { createRequire } from 'node:module';\nconst require = createRequire(import.meta.url);\nexport default () => require('cjs-dep').kind;";
    assert_eq!(value_of(|bench| bench.module(own)).await, json!("cjs"));
}

#[tokio::test]
async fn a_missing_package_is_named() {
    for text in ["async () => require('left-out')", "async () => import('left-out')"] {
        let (message, cause) = thrown(text).await;
        assert!(message.contains("left-out"), "{message}");
        assert!(cause["fields"]["code"].as_str().unwrap().contains("MODULE_NOT_FOUND"), "{cause}");
    }
}

// ---- code that is none --------------------------------------------------------------------------------------------------

#[tokio::test]
async fn what_is_no_function_is_invalid() {
    let bench = Bench::new();
    let cases = [
        (bench.job("42"), "TypeError: the source text must be one function, but its value is of type number"),
        (bench.job("null"), "TypeError: the source text must be one function, but its value is null"),
        (
            bench.module("export const a = 1;"),
            "TypeError: the module's default export must be the tool function, but it is undefined",
        ),
        (bench.job("async () => {\n  return a +;\n}"), "SyntaxError: Unexpected token ';' (line 2)"),
        (
            bench.module("export default () => 1;\nconst a = 1; const a = 2;"),
            "SyntaxError: Identifier 'a' has already been declared",
        ),
    ];
    for (job, message) in cases {
        let error = bench.error(job).await;
        assert_eq!((error.code, error.phase), (Code::InvalidSource, Phase::Validate), "{error}");
        assert_eq!(error.message, message);
    }
    let linked =
        bench.error(bench.module("import { nothing } from 'esm-dep';\nexport default () => 1;")).await;
    assert_eq!(linked.code, Code::InvalidSource);
    assert!(linked.message.contains("does not provide an export named 'nothing'"), "{linked}");
}

#[tokio::test]
async fn an_error_while_the_text_is_evaluated_is_the_functions_own() {
    let bench = Bench::new();
    for job in [
        Job { code: "const a = require('left-out');\nreturn () => 1;".to_owned(), ..bench.job("") },
        bench.module("throw new SyntaxError('left-out');"),
    ] {
        let error = bench.error(job).await;
        assert_eq!(error.code, Code::ToolError);
        assert!(error.message.contains("left-out"), "{error}");
    }
}

// ---- stack traces -------------------------------------------------------------------------------------------------------

fn frames(cause: &Value, cwd: &Path) -> Vec<String> {
    let stack = cause["stack"].as_str().unwrap();
    stack.lines().skip(1).map(|line| line.trim().replace(cwd.to_str().unwrap(), "")).collect()
}

async fn frames_of(job_of: impl FnOnce(&Bench) -> Job) -> Vec<String> {
    let bench = Bench::new();
    let error = bench.error(job_of(&bench)).await;
    frames(&serde_json::from_str(&error.cause_json.unwrap()).unwrap(), &bench.cwd)
}

#[tokio::test]
async fn stacks_have_the_users_frames_and_lines_only() {
    let text =
        "async () => {\n  const inner = () => { throw new Error('x'); };\n  await null;\n  inner();\n}";
    let got = frames_of(|bench| bench.job(text)).await;
    assert_eq!(got, ["at inner (/tool.js:2:31)", "at /tool.js:4:3"]);

    let got = frames_of(|bench| Job {
        column_offset: 10,
        code: "return (\n1234567890() => { throw new Error('x'); }\n);".replace("1234567890", "/*23456*/ "),
        ..bench.job("")
    })
    .await;
    assert_eq!(got, ["at /tool.js:1:15"]);

    let got = frames_of(|bench| Job {
        line_offset: 0,
        column_offset: 8,
        code: "return (() => { throw new Error('x'); });".to_owned(),
        ..bench.job("")
    })
    .await;
    assert_eq!(got, ["at /tool.js:1:15"]);

    let module = "/* put before */\nexport default () => {\n  throw new Error('x');\n};";
    let got = frames_of(|bench| Job { line_offset: 1, ..bench.module(module) }).await;
    assert_eq!(got, ["at default (file:///tool.mjs:2:9)"], "names of frames vary: {got:?}");
}

#[tokio::test]
async fn source_maps_lead_back_to_the_users_text() {
    // One segment: line 3, column 6 of the code is line 11, column 4 of the user's text.
    let map = r#"{"version":3,"sources":["tool.ts"],"names":[],"mappings":";;MAUI"}"#;
    let code = "return (\nasync () => {\n      throw new Error('x');\n}\n);";
    for kind in [Kind::Script, Kind::Module] {
        let code =
            if kind == Kind::Module { code.replace("return (", "export default (") } else { code.to_owned() };
        let got = frames_of(|bench| Job {
            kind,
            code,
            source_map: Some(map.to_owned()),
            line_offset: 0,
            ..bench.job("")
        })
        .await;
        assert_eq!(got.len(), 1, "{got:?}");
        assert!(got[0].contains(":11:5"), "{got:?}");
    }
}
