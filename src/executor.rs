//! One call from its start to its end. Everything that a call can turn into is decided here, in the order of
//! `docs/ARCHITECTURE.md`, "The life of a call".

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    sync::{OnceCell, mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::task::TaskTracker;
use tracing::Level;

use crate::{
    config::{self, EnvPolicy, HostFacts, NETWORK_FORMS, Network, NetworkProblem, Settings, millis},
    egress::{RESOLVER_OPTION, Rules},
    error::{Code, Phase, SandboxError},
    files::{
        collect::{Chunk, Collect, Hand, Wanted},
        given::{self, Feed, Feeder, GivenFile},
    },
    gauge,
    host::{self, Account, Host, Sandbox},
    install::{DEFAULT_PATH, policy},
    log::{self, CALL_SINK, NATIVE, SinkId},
    maintenance::Task,
    narrow,
    nested::OuterCall,
    pool::Lease,
    process::ExitStatus,
    queue::{self, Acquire, Permit, Vcpus},
    redact::Redactor,
    source::{self, CodeKey, Flags, Prepared, Runtime, Use, own_root},
    start::{Breed, HomeStore, Ladder as _, Rung, Verdict, Worker, WorkerSpec},
    store::{RunFolder, Store},
    supervise::{self, Aside, Cancel, Canceller, OutputSink, RunLimits, RunReport},
    talk::{Outgoing, Talk},
    timeline::{self, Mark, Step, Timeline, ms},
    worker::{
        outcome,
        protocol::{Job, Offer},
    },
};

#[cfg(target_os = "linux")]
use crate::egress::{Caller, Known};

pub use crate::supervise::CancelReason;

/// A source text up to this size is prepared on the core's own threads.
const QUICK_SOURCE_BYTES: usize = 32 * 1024;
/// Dependency sets that are prepared at the same time: npm keeps a processor busy by itself.
const WARM_CONCURRENCY_SETS: usize = 2;
/// Stands for the tool in the log, where a set is prepared before any tool wants it.
const WARM_TOOL_ID: &str = "warm";
/// And where a text is compiled for calls to come.
const COMPILE_TOOL_ID: &str = "compile";
/// A deadline of a shutdown is never longer (a year): timers overflow on the largest durations.
const MAX_DEADLINE: Duration = Duration::from_hours(365 * 24);

/// The temp folder of a Unix where nobody names one.
const COMMON_TEMP_FOLDER: &str = "/tmp";

/// What a call ends with: JSON text (`None` is `undefined`), or why it was rejected.
pub type Answer = Result<Option<String>, SandboxError>;

/// What a caller may hear of a call while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A piece of stdout.
    Stdout,
    /// A piece of stderr.
    Stderr,
    /// JSON of a [`Mark`]: a step of the call begins.
    Step,
    /// JSON of a call of a host function: `{ id, name, args? }`.
    Call,
    /// JSON of how far the function is.
    Progress,
    /// JSON of a value that the function yields; see [`Executor::taken`].
    Yield,
    /// The number of a file of the call, of which a piece is wanted; see [`Executor::feed`].
    Feed,
    /// JSON of a file that the function hands over: `{ path, size }`; see [`Executor::chunk`].
    File,
    /// JSON of what the call used, once, at its end.
    Usage,
}

impl EventKind {
    /// As JavaScript knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Step => "step",
            Self::Call => "call",
            Self::Progress => "progress",
            Self::Yield => "yield",
            Self::Feed => "feed",
            Self::File => "file",
            Self::Usage => "usage",
        }
    }

    /// Whether it is output of the function.
    pub fn is_output(self) -> bool {
        matches!(self, Self::Stdout | Self::Stderr)
    }
}

/// Hears of a call while it runs. Must not block.
pub trait CallEvents: Send + Sync {
    /// Takes one event.
    fn event(&self, kind: EventKind, text: String);
}

/// A call as the JavaScript surface sends it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    tool_id: Arc<str>,
    source: String,
    #[serde(default)]
    dependencies: BTreeMap<String, String>,
    #[serde(default)]
    sandbox_config: Option<Box<RawValue>>,
    timeout_ms: Option<f64>,
    vcpus: Option<f64>,
    runtime: Option<String>,
    #[serde(default)]
    wants_logs: bool,
    #[serde(default)]
    wants_steps: bool,
    #[serde(default)]
    wants_usage: bool,
    /// The host's variables that the option `env` names, where they are not what they were at the executor's first call.
    listed_env: Option<BTreeMap<String, String>>,
    /// Variables of this call, over those of the executor.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// What is placed in the working folder before the function starts.
    #[serde(default)]
    files: Vec<GivenFile>,
    /// Which of its files are taken when it has returned.
    collect: Option<Wanted>,
    /// What the function may say before its result.
    talk: Option<Offer>,
    /// Names this call for calls that its host functions make.
    nest: Option<String>,
    /// The call whose host function makes this one.
    within: Option<String>,
    /// What the call may connect to, of what the executor allows: as its option `network`.
    network: Option<Value>,
}

/// Permits of one `vcpus` value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueClass {
    /// The value, as JavaScript prints it.
    pub vcpus: String,
    /// Free now.
    pub available_permits: u32,
    /// Calls that wait.
    pub queue_length: u32,
}

/// Runs calls under one set of options. Queue, pool, store and launcher are the process's, not the executor's.
pub struct Executor {
    inner: Arc<Inner>,
}

/// What an executor consists of; the host keeps a list of them.
pub struct Inner {
    setup: Result<Setup, SandboxError>,
    /// How many cleanups with a deadline are under way: no call is let in.
    closing: AtomicUsize,
    /// Calls that have not been answered, by the caller's id.
    calls: Mutex<HashMap<u64, Arc<CallState>>>,
    tracker: TaskTracker,
}

struct Setup {
    host: &'static Host,
    settings: Arc<Settings>,
    facts: Arc<HostFacts>,
    account: Account,
    /// What all workers of this executor have in common; known once isolation is.
    breed: OnceCell<Arc<Breed>>,
    /// The same with other values of the host's variables: those of the last call that had others.
    changed: Mutex<Option<Arc<Breed>>>,
}

/// What others may do to a call.
struct CallState {
    canceller: Canceller,
    cancel: Cancel,
    stage: Mutex<Stage>,
    story: Story,
    /// With the function, once it runs and where it may talk.
    talk: Mutex<Option<Arc<Talk>>>,
    /// The surface's side of files that the call is given.
    feeder: Feeder,
    /// And of those that it hands over.
    hand: Arc<Hand>,
    /// Who connects, once a worker is there.
    #[cfg(target_os = "linux")]
    caller: Mutex<Option<Arc<Caller>>>,
}

/// What is told of a call beside its answer.
struct Story {
    began: Instant,
    timeline: Timeline,
    events: Option<Arc<dyn CallEvents>>,
    wants_steps: bool,
    wants_usage: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of the tool has run.
    Waiting,
    /// A worker was asked for.
    Running,
}

impl Executor {
    /// Never fails: what is wrong becomes the answer of every call.
    ///
    /// `node_abi` is `process.versions.modules` of the host, where the host is Node: what is not known is asked for.
    pub fn new(options_json: &str, env_json: &str, node_abi: Option<String>) -> Self {
        Self::with(Setup::read(options_json, env_json, node_abi))
    }

    /// An executor for calls with narrower limits, and with the host's proxies where those have changed, both given as JSON; everything
    /// else is this one's.
    #[must_use]
    pub fn narrowed(&self, limits_json: &str, proxies_json: Option<&str>) -> Self {
        Self::with(self.inner.setup().and_then(|setup| setup.narrowed(limits_json, proxies_json)))
    }

    fn with(setup: Result<Setup, SandboxError>) -> Self {
        let inner = Arc::new(Inner::new(setup));
        if let Ok(setup) = &inner.setup {
            setup.host.executors().push(Arc::downgrade(&inner));
        }
        Self { inner }
    }

    /// Runs one call and hands its answer to `done`, once, from some thread of the core's, with the steps that it went through if
    /// the call wants them.
    pub fn execute(
        &self,
        call_id: u64,
        request: &str,
        args_json: Option<String>,
        events: Option<Arc<dyn CallEvents>>,
        sink: Option<SinkId>,
        done: impl FnOnce(Answer, Option<Vec<Mark>>) + Send + 'static,
    ) {
        let began = Instant::now();
        let setup = match &self.inner.setup {
            Ok(setup) => setup,
            Err(error) => {
                let error = error.clone();
                tracing::error!(target: NATIVE, code = %error.code, error = %error, "Invalid sandbox executor configuration");
                return done(Err(error), None);
            }
        };
        let request: Request = match serde_json::from_str(request) {
            Ok(request) => request,
            Err(error) => {
                let text = format!("the call cannot be read: {error}");
                return done(Err(SandboxError::new(Code::InvalidConfig, Phase::Validate, text)), None);
            }
        };
        if let Some(refusal) = self.inner.refusal() {
            setup.host.counters().answered(&Err(refusal.clone()));
            return done(Err(refusal), None);
        }
        // Here and not in the task: tasks of calls made one after the other run in any order.
        let place = match setup.place(&request) {
            Ok(place) => place,
            Err(error) => {
                setup.host.counters().answered(&Err(error.clone()));
                return done(Err(error), None);
            }
        };
        let state = Arc::new(CallState::new(Story {
            began,
            timeline: Timeline::default(),
            events,
            wants_steps: request.wants_steps,
            wants_usage: request.wants_usage,
        }));
        self.inner.calls().insert(call_id, Arc::clone(&state));
        state.story.begin();
        let (settle, settled) = oneshot::channel();
        let inner = Arc::clone(&self.inner);
        let request = Arc::new(request);
        let declared = Arc::clone(&request);
        let setup_network = setup.settings.network;
        let call = Arc::clone(&state);
        let life = async move { inner.life(&request, place, args_json, &call, settle).await };
        let host = setup.host;
        host.runtime().spawn(self.inner.tracker.track_future(CALL_SINK.scope(sink, life)));
        let inner = Arc::clone(&self.inner);
        host.runtime().spawn(async move {
            // A sender that is gone without a word means that the call's task panicked.
            let answer = settled.await.unwrap_or_else(|_| Err(internal_failure()));
            inner.calls().remove(&call_id);
            host.counters().answered(&answer);
            state.story.step(Step::Settled, None, None);
            let answer = answer.map_err(|error| {
                let error = Redactor::new(declared.env.values()).error(error);
                let error =
                    outcome::naming_undeclared(error, |name| declared.dependencies.contains_key(name));
                let error =
                    if setup_network == Network::None { outcome::naming_no_network(error) } else { error };
                let error = outcome::naming_refusal(error, || state.last_refusal());
                SandboxError { duration: began.elapsed(), ..error }
            });
            done(answer, state.story.wants_steps.then(|| state.story.timeline.marks()));
        });
    }

    /// A handle that keeps nothing alive, but ends the calls of this executor when nobody is left to answer to.
    pub fn ender(&self) -> Ender {
        Ender(Arc::downgrade(&self.inner))
    }

    /// Ends a call wherever it is. Unknown ids are fine.
    pub fn cancel(&self, call_id: u64, reason: CancelReason) {
        if let Some(state) = self.inner.calls().get(&call_id) {
            state.canceller.cancel(reason);
        }
    }

    /// Hands the function of a call the answer of a host function: JSON of the result (empty for `undefined`), or of
    /// `{ name, message }` where `ok` is false. What is not waited for any more is ignored. With `more` another answer follows at once.
    pub fn answer(&self, call_id: u64, id: u32, ok: bool, json: &str, more: bool) {
        if let Some(talk) = self.talk(call_id) {
            talk.answer(id, ok, json, more);
        }
    }

    /// The caller has taken one value that the function of a call yielded.
    pub fn taken(&self, call_id: u64) {
        if let Some(talk) = self.talk(call_id) {
            talk.taken();
        }
    }

    /// Gives a piece of the file that an event asked for.
    pub fn feed(&self, call_id: u64, piece: Vec<u8>, is_last: bool) {
        if let Some(state) = self.state(call_id) {
            state.feeder.give(piece, is_last);
        }
    }

    /// The file that an event asked for cannot be read: the call fails.
    pub fn feed_failed(&self, call_id: u64, message: String) {
        if let Some(state) = self.state(call_id) {
            state.feeder.fail(message);
        }
    }

    /// Hands the next chunk of the file that is being handed over to `done`, from some thread of the core's; `None` where the call has
    /// ended and the file will never be whole.
    pub fn chunk(&self, call_id: u64, done: impl FnOnce(Option<Chunk>) + Send + 'static) {
        let (Some(state), Ok(setup)) = (self.state(call_id), &self.inner.setup) else { return done(None) };
        let hand = Arc::clone(&state.hand);
        drop(state);
        setup.host.runtime().spawn(async move { done(hand.chunk().await) });
    }

    /// The caller is done with the file that was handed over, or failed with it.
    pub fn file_taken(&self, call_id: u64, said: Result<(), String>) {
        if let Some(state) = self.state(call_id) {
            state.hand.taken(said);
        }
    }

    fn state(&self, call_id: u64) -> Option<Arc<CallState>> {
        self.inner.calls().get(&call_id).cloned()
    }

    fn talk(&self, call_id: u64) -> Option<Arc<Talk>> {
        let state = self.state(call_id)?;
        let talk = state.talk.lock().unwrap_or_else(PoisonError::into_inner);
        talk.clone()
    }

    /// Rejects calls that have not started, waits for those that run; with `drain`, removes idle sandboxes and ends an idle
    /// launcher. The executor works on afterwards.
    ///
    /// With a `deadline` no call is rejected before it has passed, and then those that are left are, whatever they are at; meanwhile
    /// new ones are refused.
    pub fn cleanup(&self, drain: bool, deadline: Option<Duration>, done: impl FnOnce() + Send + 'static) {
        let Ok(setup) = &self.inner.setup else { return done() };
        if deadline.is_none() {
            self.inner.end_waiting();
        } else {
            self.inner.closing.fetch_add(1, Ordering::SeqCst);
        }
        let host = setup.host;
        let inner = Arc::clone(&self.inner);
        host.runtime().spawn(async move {
            match deadline {
                None => inner.idle().await,
                Some(deadline) => {
                    inner.idle_within(deadline).await;
                    inner.closing.fetch_sub(1, Ordering::SeqCst);
                }
            }
            if drain {
                host.drain().await;
            }
            done();
        });
    }

    /// Prepares the trees of dependency sets (a JSON array of `name → range` objects): afterwards the first call of each needs no
    /// install. All are tried; `done` gets the first failure. `cleanup` breaks it off.
    pub fn warm(&self, sets_json: &str, sink: Option<SinkId>, done: impl FnOnce(Answer) + Send + 'static) {
        let began = Instant::now();
        let (setup, sets) = match self.inner.setup().and_then(|setup| Ok((setup, read_sets(sets_json)?))) {
            Ok(ready) => ready,
            Err(error) => return done(Err(error)),
        };
        let id = WARM_IDS.fetch_sub(1, Ordering::Relaxed);
        if let Some(refusal) = self.inner.refusal() {
            return done(Err(refusal));
        }
        let state = Arc::new(CallState::new(Story::untold(began)));
        self.inner.calls().insert(id, Arc::clone(&state));
        let inner = Arc::clone(&self.inner);
        let work = async move {
            let answer = inner.warm(sets, &state).await;
            inner.calls().remove(&id);
            done(answer.map_err(|error| SandboxError { duration: began.elapsed(), ..error }));
        };
        setup.host.runtime().spawn(self.inner.tracker.track_future(CALL_SINK.scope(sink, work)));
    }

    /// Does one task of [`maintenance`](crate::maintenance), given as JSON; the answer is JSON text. `cleanup` waits for it.
    pub fn maintain(
        &self,
        task_json: &str,
        sink: Option<SinkId>,
        done: impl FnOnce(Answer) + Send + 'static,
    ) {
        let (setup, task) = match self.inner.setup().and_then(|setup| Ok((setup, Task::read(task_json)?))) {
            Ok(ready) => ready,
            Err(error) => return done(Err(error)),
        };
        let inner = Arc::clone(&self.inner);
        let work = async move {
            let answer = match inner.setup() {
                Ok(setup) => task.run(setup.host, &setup.settings, &setup.facts).await,
                Err(error) => Err(error),
            };
            done(answer);
        };
        setup.host.runtime().spawn(self.inner.tracker.track_future(CALL_SINK.scope(sink, work)));
    }

    /// What the option `env` names: JSON of `"inherit"` or of a list of names and prefixes.
    pub fn listed_env(&self) -> Value {
        match self.inner.setup.as_ref().map(|setup| &setup.settings.env) {
            Ok(EnvPolicy::Inherit) => json!("inherit"),
            Ok(EnvPolicy::Allow(names)) => json!(names),
            Err(_) => json!([]),
        }
    }

    /// Permits and queue lengths of the whole process; empty before the first call.
    pub fn queue_stats(&self) -> Vec<QueueClass> {
        self.inner.setup.as_ref().map(|setup| setup.host.queue_stats()).unwrap_or_default()
    }

    /// Everything countable.
    pub fn metrics(&self) -> Value {
        match &self.inner.setup {
            Ok(setup) => setup.host.metrics(&setup.settings, &setup.facts, setup.breed.get()),
            Err(error) => json!({ "error": error.message }),
        }
    }
}

/// See [`Executor::ender`].
pub struct Ender(Weak<Inner>);

impl Ender {
    /// Whether the executor, and every call of it, is gone.
    pub fn is_spent(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends all its calls.
    pub fn end(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.end_all(CancelReason::Aborted);
        }
    }
}

/// From now on no executor of this process takes a call; what was taken may go on until `deadline` has passed, and is then ended and
/// rejected. `done` is called when nothing of it is left, and no process of ours runs any more.
pub fn shutdown(deadline: Duration, done: impl FnOnce() + Send + 'static) {
    host::close();
    let Some(host) = host::existing() else { return done() };
    host.runtime().spawn(async move {
        let executors: Vec<_> = host.executors().iter().filter_map(Weak::upgrade).collect();
        let mut ends: JoinSet<()> = JoinSet::new();
        for inner in executors {
            ends.spawn(async move { inner.idle_within(deadline).await });
        }
        while ends.join_next().await.is_some() {}
        host.drain_all().await;
        done();
    });
}

/// Takes [`shutdown`] back: calls are taken again.
pub fn reopen() {
    host::open();
}

/// What isolation is in force for the executor that last asked, or for one with the settings that the environment (JSON)
/// gives: the JSON of a [`Report`](crate::isolation::Report).
pub fn isolation_report(env_json: &str, done: impl FnOnce(Result<Value, SandboxError>) + Send + 'static) {
    match Setup::read("null", env_json, None) {
        Err(error) => done(Err(error)),
        Ok(setup) => {
            let runtime = setup.host.runtime();
            runtime.spawn(async move { done(setup.host.isolation(&setup.account).await) });
        }
    }
}

/// What can be said of the files of a call before anything is spent on it. Looks at the disk, on a thread for that.
async fn check_files(request: &Request, kind: source::Kind) -> Result<Option<Collect>, SandboxError> {
    if request.files.is_empty() && request.collect.is_none() {
        return Ok(None);
    }
    let (files, wanted) = (request.files.clone(), request.collect.clone());
    let is_module = kind == source::Kind::Module;
    let checked = tokio::task::spawn_blocking(move || {
        given::check(&files, is_module)?;
        wanted.map(|wanted| Collect::new(&wanted, is_module)).transpose()
    });
    checked.await.unwrap_or_else(|_| Err(internal_failure()))
}

/// Whether the call needs what workers of a tree's zygote do not have.
fn wants_own_root(request: &Request, prepared: &Prepared, args_json: Option<&str>) -> bool {
    // Without packages every worker has it.
    let mut packages = request.dependencies.keys();
    packages.len() > 0
        && (prepared.names_own_root
            || packages.any(|name| own_root::opens_terminals(name))
            || args_json
                .into_iter()
                .chain(request.env.values().map(String::as_str))
                .any(own_root::names_place))
}

fn internal_failure() -> SandboxError {
    SandboxError::new(
        Code::StartFailed,
        Phase::Run,
        "The sandbox executor failed internally while it served this call; whether the function ran is unknown. Please report this.",
    )
}

impl Setup {
    fn read(options_json: &str, env_json: &str, node_abi: Option<String>) -> Result<Self, SandboxError> {
        let bad = |what: &str, error| {
            SandboxError::new(Code::InvalidConfig, Phase::Validate, format!("{what} cannot be read: {error}"))
        };
        let options: Value = serde_json::from_str(options_json).map_err(|error| bad("the options", error))?;
        let env: BTreeMap<String, String> =
            serde_json::from_str(env_json).map_err(|error| bad("the environment", error))?;
        let facts = HostFacts {
            exec_path: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("node")),
            node_abi,
            tmpdir: temp_folder(&env),
            env: Arc::new(env),
        };
        let mut settings = Settings::read(&options, &facts)?;
        // A root of a call's own shows the place of the binary, not links on the way to it. What is no file is told by who starts it.
        if settings.node_path != facts.exec_path {
            settings.node_path = settings.node_path.canonicalize().unwrap_or(settings.node_path);
        }
        for variable in &settings.unknown_variables {
            tracing::warn!(target: NATIVE, variable, "Unknown variable: it sets nothing");
        }
        let host = host::get(&settings)?;
        let (settings, facts) = (Arc::new(settings), Arc::new(facts));
        let account = Account::new(Arc::clone(&settings), Arc::clone(&facts));
        Ok(Self { host, settings, facts, account, breed: OnceCell::new(), changed: Mutex::default() })
    }

    fn narrowed(&self, limits_json: &str, proxies_json: Option<&str>) -> Result<Self, SandboxError> {
        let settings = Arc::new(narrow::narrowed(&self.settings, limits_json)?);
        let facts = match proxies_json {
            Some(proxies) => Arc::new(narrow::with_proxies(&self.facts, proxies)?),
            None => Arc::clone(&self.facts),
        };
        let account = Account::new(Arc::clone(&settings), Arc::clone(&facts));
        Ok(Self {
            host: self.host,
            settings,
            facts,
            account,
            breed: OnceCell::new(),
            changed: Mutex::default(),
        })
    }

    /// The variables that every call has. What it starts as `node` is the Node that runs it, whatever comes first on the host's PATH.
    fn call_env(&self, store: &Store) -> BTreeMap<String, String> {
        let mut env = self.settings.tool_env(&self.facts.env);
        let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let node = &self.settings.node_path;
        #[cfg(unix)]
        let first = Some(store.node_dir(&node.canonicalize().unwrap_or_else(|_| node.clone())));
        #[cfg(not(unix))]
        let (_, first) = (store, node.parent().map(Path::to_owned));
        let folders = first.into_iter().chain(std::env::split_paths(path));
        // A store below a folder with a colon in its name cannot be named in there.
        if let Some(path) = std::env::join_paths(folders).ok().and_then(|path| path.into_string().ok()) {
            env.insert("PATH".to_owned(), path);
        }
        env
    }

    async fn breed(&self) -> Result<&Arc<Breed>, SandboxError> {
        self.breed
            .get_or_try_init(|| async {
                let (store, ground) = self.account.ground(self.host).await?;
                let (settings, facts) = (&self.settings, &self.facts);
                self.host.limit_zygotes(settings.zygote_memory_mb).await;
                // Of another Node than the host's it is not known yet.
                let abi = facts.node_abi.as_deref().filter(|_| settings.node_path == facts.exec_path);
                let mut boot_env = settings.boot_env(&facts.env);
                if ground.shield.looks_up_names() {
                    // c-ares reads it when Node makes its first resolver, which a zygote does while it boots.
                    boot_env.insert("RES_OPTIONS".to_owned(), RESOLVER_OPTION.to_owned());
                }
                Ok(Arc::new(Breed {
                    node: settings.node_path.clone(),
                    memory_mb: settings.limits.memory_mb,
                    limits: settings.limits.of_process(abi),
                    boot_env,
                    load_env: self.call_env(store),
                    shield: Arc::clone(&ground.shield),
                    store: HomeStore(store.clone()),
                }))
            })
            .await
    }

    /// The breed of a call: where variables have changed since the first one, one that has never seen what they were.
    async fn breed_of(&self, request: &Request) -> Result<Arc<Breed>, SandboxError> {
        let first = self.breed().await?;
        let Some(listed) = &request.listed_env else { return Ok(Arc::clone(first)) };
        let mut env = first.load_env.clone();
        env.retain(|name, _| !self.settings.lists(name));
        env.extend(
            listed
                .iter()
                .filter(|(name, _)| self.settings.lists(name))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        if env == first.load_env {
            return Ok(Arc::clone(first));
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*changed {
            Some(breed) if breed.load_env == env => Ok(Arc::clone(breed)),
            _ => Ok(Arc::clone(changed.insert(Arc::new(Breed { load_env: env, ..Breed::clone(first) })))),
        }
    }

    /// The breed of the last call, for what no call has asked for.
    async fn last_breed(&self) -> Result<Arc<Breed>, SandboxError> {
        let first = self.breed().await?;
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(changed.as_ref().unwrap_or(first)))
    }

    /// Isolation never weakens silently: what is asked for and not to be had is an error.
    /// `own` are rules of the call's own.
    async fn shielded(&self, own: Option<&Rules>) -> Result<(), SandboxError> {
        let (_, ground) = self.account.ground(self.host).await?;
        let without_group = || self.settings.cgroup_dir.as_ref().and_then(|_| ground.report.no_group());
        let settings = &self.settings;
        let required = settings.isolation_required;
        let objection = ground.report.objection(required, settings.network, &settings.network_rules);
        let of_call = || own.and_then(|own| ground.report.objection(None, Network::Open, own));
        match objection.or_else(of_call).or_else(without_group) {
            None => Ok(()),
            Some(text) => Err(SandboxError::new(Code::IsolationUnavailable, Phase::Validate, text)),
        }
    }
}

/// Names of the variables that a call has other values of than all calls have.
fn own_variables(own: &BTreeMap<String, String>, common: &BTreeMap<String, String>) -> BTreeSet<String> {
    let differs = |(name, value): &(&String, &String)| common.get(*name) != Some(*value);
    own.iter().filter(differs).map(|(name, _)| name.clone()).collect()
}

/// `os.tmpdir()` as Node works it out from the environment.
fn temp_folder(env: &BTreeMap<String, String>) -> PathBuf {
    let named =
        ["TMPDIR", "TMP", "TEMP"].iter().find_map(|name| env.get(*name).filter(|value| !value.is_empty()));
    // Rust takes an empty variable for a name; Node takes it for none.
    let unnamed = || if cfg!(unix) { PathBuf::from(COMMON_TEMP_FOLDER) } else { std::env::temp_dir() };
    let folder = named.map_or_else(unnamed, PathBuf::from);
    if config::is_closed_to_modules(&folder) {
        tracing::warn!(
            target: NATIVE,
            folder = %folder.display(),
            instead = COMMON_TEMP_FOLDER,
            "Node imports no modules from a folder with a backslash in its path: another temp folder is used"
        );
        return PathBuf::from(COMMON_TEMP_FOLDER);
    }
    folder
}

/// Everything that a call holds from the moment its worker runs until its processes are gone. Fields are given back in
/// the order in which they stand.
struct Running {
    job: Job,
    /// What of the function's files is wanted.
    collect: Option<Collect>,
    /// Names the code cache that the job has or may have.
    code_key: Option<CodeKey>,
    connections: Connections,
    run: RunFolder,
    lease: Lease<Sandbox>,
    /// Whether another worker would have what one of a tree's zygote does not.
    could_be_rooted: bool,
    permit: Permit,
}

/// What the worker of a call connects to, until nothing of it is left.
#[derive(Default)]
struct Connections {
    #[cfg(target_os = "linux")]
    known: Option<Known>,
}

#[cfg(target_os = "linux")]
impl Connections {
    /// From here on what the worker connects to is the call's.
    fn of(
        breed: &Breed,
        request: &Request,
        own: Option<Arc<Rules>>,
        worker: &Worker,
        state: &CallState,
    ) -> Self {
        let Some(caller) = breed.shield.caller(own, &request.tool_id) else { return Self::default() };
        *state.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&caller));
        Self { known: breed.shield.know(caller, &worker.started.process) }
    }

    fn is_restricted(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.caller().is_restricted())
    }

    /// JSON of what was connected to, if anything was.
    async fn usage(&self) -> Option<Value> {
        self.known.as_ref()?.usage().await.map(|usage| json!(usage))
    }
}

#[cfg(not(target_os = "linux"))]
impl Connections {
    fn of(_: &Breed, _: &Request, _: Option<Arc<Rules>>, _: &Worker, _: &CallState) -> Self {
        Self::default()
    }

    fn is_restricted(&self) -> bool {
        false
    }

    #[expect(clippy::unused_async, reason = "as elsewhere")]
    async fn usage(&self) -> Option<Value> {
        None
    }
}

/// Ids of what is no call, but can be broken off as one: counted down, while callers count up.
static WARM_IDS: AtomicU64 = AtomicU64::new(u64::MAX);

fn read_sets(json: &str) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
    serde_json::from_str(json).map_err(|error| {
        let text = format!("the dependency sets cannot be read: {error}");
        SandboxError::new(Code::InvalidConfig, Phase::Validate, text)
    })
}

impl Inner {
    fn new(setup: Result<Setup, SandboxError>) -> Self {
        let tracker = TaskTracker::new();
        // For good: only a closed tracker tells those who wait that it is empty, and it takes tasks all the same.
        tracker.close();
        Self { setup, closing: AtomicUsize::new(0), calls: Mutex::default(), tracker }
    }

    fn setup(&self) -> Result<&Setup, SandboxError> {
        self.setup.as_ref().map_err(Clone::clone)
    }

    /// See [`Executor::warm`].
    async fn warm(self: &Arc<Self>, sets: Vec<BTreeMap<String, String>>, state: &CallState) -> Answer {
        // Dropped when the call is cancelled, and its tasks with it.
        let work = async {
            let mut running = JoinSet::new();
            let mut first_failure = Ok(None);
            let mut sets = sets.into_iter();
            loop {
                while running.len() < WARM_CONCURRENCY_SETS
                    && let Some(set) = sets.next()
                {
                    let inner = Arc::clone(self);
                    running.spawn(async move { inner.setup()?.warm(&set).await });
                }
                let Some(done) = running.join_next().await else { return first_failure };
                let done = done.unwrap_or_else(|_| Err(internal_failure()));
                first_failure = first_failure.and(done.map(|()| None));
            }
        };
        state.unless_cancelled(Phase::Install, work).await?
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<CallState>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why no call is let in, if none is.
    fn refusal(&self) -> Option<SandboxError> {
        let text = if host::is_closed() {
            "The process is shutting down: it takes no more function calls"
        } else if self.closing.load(Ordering::SeqCst) > 0 {
            "The executor is being cleaned up: it takes no function calls until that is done"
        } else {
            return None;
        };
        Some(SandboxError::new(Code::ShuttingDown, Phase::Validate, text))
    }

    /// Ends the calls of which nothing has run.
    fn end_waiting(&self) {
        for state in self.calls().values() {
            let stage = state.stage.lock().unwrap_or_else(PoisonError::into_inner);
            if *stage == Stage::Waiting {
                state.canceller.cancel(CancelReason::CleanedUp);
            }
        }
    }

    fn end_all(&self, reason: CancelReason) {
        self.calls().values().for_each(|state| state.canceller.cancel(reason));
    }

    /// As [`Self::idle`]; what is not over by itself within `deadline` is ended.
    async fn idle_within(&self, deadline: Duration) {
        let deadline = deadline.min(MAX_DEADLINE);
        if tokio::time::timeout(deadline, self.idle()).await.is_err() {
            self.end_all(CancelReason::CleanedUp);
            self.idle().await;
        }
    }

    /// Waits until no call of this executor holds anything.
    async fn idle(&self) {
        self.tracker.wait().await;
    }

    async fn life(
        &self,
        request: &Request,
        place: Acquire,
        args_json: Option<String>,
        state: &CallState,
        settle: oneshot::Sender<Answer>,
    ) {
        // `execute` lets no call in without a setup.
        let Ok(setup) = &self.setup else { return };
        match setup.begin(request, place, args_json, state).await {
            Err(error) => {
                setup.host.counters().spent(&state.story.over(None, Some(error.code), None));
                let _ = settle.send(Err(error));
            }
            Ok((worker, running)) => setup.finish(request, worker, running, state, settle).await,
        }
    }
}

impl Setup {
    /// Steps 1 to 4: everything up to a worker that waits for its job.
    async fn begin(
        &self,
        request: &Request,
        place: Acquire,
        args_json: Option<String>,
        state: &CallState,
    ) -> Result<(Worker, Running), SandboxError> {
        let prepared = self.check(request)?;
        let collect = state.unless_cancelled(Phase::Queue, check_files(request, prepared.kind)).await??;
        state.unless_cancelled(Phase::Queue, self.account.check_node(self.host)).await??;
        let own_rules = request.network_rules()?;
        state.unless_cancelled(Phase::Queue, self.shielded(own_rules.as_deref())).await??;
        let permit = state.unless_cancelled(Phase::Queue, self.permit(request, place)).await??;
        state.story.step(Step::Install, None, None);
        let lease = state.unless_cancelled(Phase::Install, self.lease(request)).await??;
        state.start()?;
        state.story.step(Step::Start, None, Some(lease.reused()));
        let breed = self.breed_of(request).await?;
        let could_be_rooted = !request.dependencies.is_empty() && breed.shield.forked_workers_have_own_root();
        let loads_itself = request.network.is_some()
            || could_be_rooted && wants_own_root(request, &prepared, args_json.as_deref());
        let starting = self.worker(request, Arc::clone(&breed), &prepared.packages, loads_itself, &lease);
        let (worker, run) = state.unless_cancelled(Phase::Start, starting).await??;
        let mut job = self.job(request, &breed, &prepared, args_json, &lease, &run);
        job.collect = collect.as_ref().map(Collect::roots);
        let connections = Connections::of(&breed, request, own_rules, &worker, state);
        if connections.is_restricted() {
            // Names are looked up by the host, over TCP.
            let options = job.env.entry("RES_OPTIONS".to_owned()).or_default();
            if !options.is_empty() {
                options.push(' ');
            }
            options.push_str(RESOLVER_OPTION);
        }
        let code_key = self.code_key(&prepared, worker.rung).await?;
        if let Some(key) = &code_key {
            job.code_cache = self.code_cache(key, worker.rung, &job, &lease).await?;
        }
        Ok((worker, Running { job, collect, code_key, connections, run, lease, could_be_rooted, permit }))
    }

    /// Names what V8's code cache of a text is good for; nothing for what is compiled in no time.
    async fn code_key(&self, prepared: &Prepared, rung: Rung) -> Result<Option<CodeKey>, SandboxError> {
        let Some(digest) = prepared.code_digest else { return Ok(None) };
        let breed = self.breed().await?;
        let flags =
            Flags { node: breed.node.clone(), memory_mb: breed.memory_mb, forked: rung == Rung::Zygote };
        Ok(Some((digest, flags)))
    }

    /// The cache, if there is one; has it made at the text's second use.
    async fn code_cache(
        &self,
        key: &CodeKey,
        rung: Rung,
        job: &Job,
        sandbox: &Sandbox,
    ) -> Result<Option<Arc<[u8]>>, SandboxError> {
        let found = self.host.compiled().take(key);
        match found {
            Use::Plain => Ok(None),
            Use::With(cache) => Ok(Some(cache)),
            Use::Make => {
                let breed = self.last_breed().await?;
                let spec = self.spec(breed, &BTreeMap::new(), COMPILE_TOOL_ID.into(), sandbox);
                let forced = if rung == Rung::Zygote { Rung::Zygote } else { Rung::Spawn };
                let spec = WorkerSpec { forced: Some(forced), ..spec };
                let job = Job {
                    compiles_only: true,
                    compile_cache: None,
                    args: None,
                    talk: None,
                    files: 0,
                    collect: None,
                    ..job.clone()
                };
                self.host.compile_text(key.clone(), spec, job);
                Ok(None)
            }
        }
    }

    fn check(&self, request: &Request) -> Result<Arc<Prepared>, SandboxError> {
        let runtime = request.runtime()?;
        policy::check(&request.dependencies, &self.settings.dependencies)?;
        let prepare = || self.host.prepare(&request.source, runtime);
        // Microseconds for what people write; what takes longer must not hold up other calls.
        let prepared = if request.source.len() > QUICK_SOURCE_BYTES {
            tokio::task::block_in_place(prepare)
        } else {
            prepare()
        };
        let prepared = prepared
            .map_err(|error| SandboxError::new(Code::InvalidSource, Phase::Validate, error.message))?;
        self.check_imports(request, &prepared)?;
        Ok(prepared)
    }

    /// Refuses an `import` of a package that cannot be there. Where something is installed it may be, as a dependency of that.
    fn check_imports(&self, request: &Request, prepared: &Prepared) -> Result<(), SandboxError> {
        if !request.dependencies.is_empty() {
            return Ok(());
        }
        let folder = host::store_base(&self.settings, &self.facts);
        // Where Node looks for packages of a file below `folder`.
        let is_around =
            |package: &str| folder.ancestors().any(|above| above.join("node_modules").join(package).exists());
        match prepared.imports.iter().find(|import| !is_around(&import.package)) {
            None => Ok(()),
            Some(import) => {
                let error = Prepared::undeclared(&request.source, import);
                Err(SandboxError::new(Code::InvalidDependency, Phase::Validate, error.message))
            }
        }
    }

    /// A place in the queue, taken at once; for a call that a host function makes, in that of the call that waits for it.
    fn place(&self, request: &Request) -> Result<Acquire, SandboxError> {
        let outer = request.within.as_deref();
        outer.map_or(Ok(()), |outer| self.host.nested().check(outer))?;
        let inner_queue = outer.and_then(|outer| self.host.nested().queue_within(outer));
        let is_inner = inner_queue.is_some();
        Ok(inner_queue.as_ref().unwrap_or_else(|| self.host.queue()).acquire(queue::Request {
            vcpus: Vcpus::new(request.vcpus.filter(|_| !is_inner)),
            tool_id: Arc::clone(&request.tool_id),
            max_concurrent: self.settings.max_concurrent.filter(|_| !is_inner),
            max_wait: self.settings.queue_wait,
        }))
    }

    /// Lets the host functions of a call make calls, if it has any.
    fn outer_call(&self, request: &Request) -> Option<OuterCall> {
        let has_functions = request.talk.as_ref().is_some_and(|offer| !offer.functions.is_empty());
        let name = request.nest.as_deref().filter(|_| has_functions)?;
        Some(self.host.nested().open(name, request.within.as_deref()))
    }

    async fn permit(&self, request: &Request, place: Acquire) -> Result<Permit, SandboxError> {
        let vcpus = Vcpus::new(request.vcpus);
        if log::heard(Level::DEBUG) {
            let found = place.arrival();
            if found.class_created {
                tracing::debug!(target: NATIVE, json_vcpus = %vcpus, "Creating new execution semaphore");
            }
            tracing::debug!(
                target: NATIVE,
                toolId = &*request.tool_id,
                json_vcpus = %vcpus,
                availablePermits = found.available_permits,
                queueLength = found.queue_length,
                json_sandboxConfig = %request.loggable_config(),
                poolSize = self.host.pool().len(),
                "Acquiring execution slot for function tool"
            );
        }
        place.await.map_err(SandboxError::from)
    }

    async fn warm(&self, dependencies: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        policy::check(dependencies, &self.settings.dependencies)?;
        self.account.check_node(self.host).await?;
        self.shielded(None).await?;
        let wanted = self.account.wanted(self.host, dependencies).await?;
        let sandbox = self.host.lease(&wanted, &self.settings, WARM_TOOL_ID).await?;
        if !dependencies.is_empty() {
            let breed = self.last_breed().await?;
            let spec = self.spec(breed, dependencies, WARM_TOOL_ID.into(), &sandbox);
            self.host.compile(&spec, &sandbox.tree).await;
        }
        Ok(())
    }

    async fn lease(&self, request: &Request) -> Result<Lease<Sandbox>, SandboxError> {
        let wanted = self.account.wanted(self.host, &request.dependencies).await?;
        if log::heard(Level::DEBUG) {
            tracing::debug!(
                target: NATIVE,
                toolId = &*request.tool_id,
                json_dependencies = %json!(request.dependencies),
                dependencyHash = wanted.dependency_hash(),
                json_sandboxConfig = %request.loggable_config(),
                poolSize = self.host.pool().len(),
                "Executing function tool"
            );
        }
        self.host.lease(&wanted, &self.settings, &request.tool_id).await
    }

    /// For workers of a sandbox; with all of its packages.
    fn spec(
        &self,
        breed: Arc<Breed>,
        dependencies: &BTreeMap<String, String>,
        tool_id: Arc<str>,
        sandbox: &Sandbox,
    ) -> WorkerSpec {
        WorkerSpec {
            breed,
            scripts: self.host.scripts(&sandbox.store, &self.settings.node_path),
            tree: Arc::clone(sandbox.tree.dir()),
            packages: dependencies.keys().cloned().collect(),
            has_dependencies: !dependencies.is_empty(),
            tenant: self.settings.tenant_key.as_deref().map(Arc::from),
            tool_id,
            loads_itself: false,
            own_variables: BTreeSet::new(),
            forced: self.settings.start,
        }
    }

    async fn worker(
        &self,
        request: &Request,
        breed: Arc<Breed>,
        packages: &[String],
        loads_itself: bool,
        sandbox: &Sandbox,
    ) -> Result<(Worker, RunFolder), SandboxError> {
        let mut spec = self.spec(breed, &request.dependencies, Arc::clone(&request.tool_id), sandbox);
        if spec.has_dependencies {
            self.host.compile_soon(&spec, &sandbox.tree);
        }
        spec.packages.retain(|name| packages.contains(name));
        spec.loads_itself = loads_itself;
        spec.own_variables = own_variables(&request.env, &spec.breed.load_env);
        let mut worker = self.host.ladder().start(spec).await.map_err(|error| {
            tracing::error!(
                target: NATIVE,
                toolId = &*request.tool_id,
                code = %Code::StartFailed,
                phase = %Phase::Start,
                json_message = %json!(error.to_string()),
                sandboxDir = %sandbox.tree.dir().display(),
                error = %error,
                "Failed to spawn node process"
            );
            SandboxError::new(Code::StartFailed, Phase::Start, error.to_string())
        })?;
        let run = worker.run.take().ok_or_else(internal_failure)?;
        Ok((worker, run))
    }

    fn job(
        &self,
        request: &Request,
        breed: &Breed,
        prepared: &Prepared,
        args_json: Option<String>,
        sandbox: &Sandbox,
        run: &RunFolder,
    ) -> Job {
        let (cwd, tmpdir) = (run.cwd(), run.tmpdir());
        let mut env = breed.load_env.clone();
        let tmp = tmpdir.to_string_lossy().into_owned();
        for name in ["TMPDIR", "TMP", "TEMP"] {
            env.insert(name.to_owned(), tmp.clone());
        }
        env.insert("HOME".to_owned(), cwd.to_string_lossy().into_owned());
        env.extend(request.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        Job {
            kind: prepared.kind,
            filename: cwd.join(if prepared.kind == source::Kind::Module { "index.mjs" } else { "index.cjs" }),
            tool_id: request.tool_id.to_string(),
            cwd,
            tmpdir,
            tree: sandbox.tree.dir().to_path_buf(),
            env,
            line_offset: prepared.line_offset,
            column_offset: prepared.column_offset,
            source_map: prepared.source_map.clone(),
            max_result_bytes: self.settings.max_output_bytes,
            compile_cache: run.compile_cache().map(Path::to_path_buf),
            compiles_only: false,
            talk: request.talk.clone(),
            files: request.files.len(),
            collect: None,
            code_cache: None,
            code: prepared.code.clone(),
            args: args_json,
        }
    }

    /// Steps 5 and 6: the function runs, the call is answered, everything is given back.
    async fn finish(
        &self,
        request: &Request,
        worker: Worker,
        running: Running,
        state: &CallState,
        settle: oneshot::Sender<Answer>,
    ) {
        let Running { job, collect, code_key, connections, run, lease, could_be_rooted, permit } = running;
        let given = code_key.filter(|_| job.code_cache.is_some());
        let (rung, shares_root) = (worker.rung, worker.shares_root);
        state.story.step(Step::Run, Some(rung), None);
        self.host.counters().started(rung);
        let limits = RunLimits {
            timeout: request.timeout(&self.settings),
            max_output_bytes: self.settings.max_output_bytes,
            linger: self.settings.linger,
            call: self.settings.limits,
        };
        let process = &worker.started.process;
        let group = process.group().cloned();
        let whose = gauge::Whose { pid: process.pid(), keepers: process.keepers(), mark: process.mark() };
        let aside = gauge::aside(run.written(), whose, group.clone(), limits.call);
        let events = &state.story.events;
        let feed = events.clone().filter(|_| !request.files.is_empty());
        let aside = Aside {
            talk: state.talk(request),
            feed: feed.map(|events| {
                Feed::new(request.files.clone(), &state.feeder, events, self.settings.limits.disk_mb)
            }),
            collecting: collect.map(|collect| collect.begin(&state.hand, events.clone())),
            ..aside
        };
        let _outer = self.outer_call(request);
        let output = state.story.events.clone().filter(|_| request.wants_logs);
        let output = output.map(|events| Box::new(Output { events }) as Box<dyn OutputSink>);
        let mut report =
            supervise::supervise(worker, job, limits, state.cancel.clone(), settle, output, aside).await;
        if let Some(group) = group {
            // Off the async threads: the kernel adds up what all processors have counted.
            let used = tokio::task::spawn_blocking(move || group.used()).await.unwrap_or_default();
            report.cpu_us = report.cpu_us.max(used.cpu_us.unwrap_or(0));
            report.memory_peak_bytes = used.memory_peak_bytes;
        }
        let redactor = Redactor::new(request.env.values());
        report.stdout_tail = redactor.text(report.stdout_tail);
        report.stderr_tail = redactor.text(report.stderr_tail);
        let network = connections.usage().await;
        self.host.counters().spent(&state.story.over(Some((rung, &report)), report.failure, network));
        if let Some((key, accepted)) = given.zip(report.took_cache) {
            self.host.compiled().judged(&key, accepted);
        }
        let store = could_be_rooted.then(|| lease.store.root().to_string_lossy());
        let verdict = verdict(&report, store.as_deref(), shares_root);
        self.host.ladder().learn(rung, lease.tree.dir(), &request.tool_id, verdict);
        log_report(request, &report, &limits, &lease.tree.dir().to_string_lossy());
        drop(connections);
        drop(run); // removed in the background
        drop(lease);
        drop(permit);
    }
}

impl Request {
    /// `sandboxConfig` without credentials. Only ever logged, so that it is read only here, and may be of any depth.
    fn loggable_config(&self) -> Value {
        let raw = self.sandbox_config.as_ref().map(|config| config.get());
        raw.and_then(|json| serde_json::from_str(json).ok())
            .map_or(Value::Null, |config| log::redacted(&config))
    }

    /// The call's own rules.
    fn network_rules(&self) -> Result<Option<Arc<Rules>>, SandboxError> {
        let Some(value) = &self.network else { return Ok(None) };
        let invalid = |text: String| SandboxError::new(Code::InvalidConfig, Phase::Validate, text);
        match config::network_of(value) {
            Ok((Network::Open, rules)) => Ok(Some(rules)),
            // Sockets can be had, but lead nowhere.
            Ok((Network::None, _)) => Ok(Some(Arc::new(Rules::nothing()))),
            Err(NetworkProblem::Form) => {
                Err(invalid(format!("network of the call must be {NETWORK_FORMS}, not {value}")))
            }
            Err(NetworkProblem::Rule(text)) => Err(invalid(format!("network of the call: {text}"))),
        }
    }

    fn runtime(&self) -> Result<Runtime, SandboxError> {
        Runtime::named(self.runtime.as_deref())
            .map_err(|text| SandboxError::new(Code::InvalidConfig, Phase::Validate, text))
    }

    fn timeout(&self, settings: &Settings) -> Duration {
        self.timeout_ms.filter(|ms| *ms > 0.0).map_or(settings.timeout, millis)
    }
}

impl CallState {
    fn new(story: Story) -> Self {
        let (canceller, cancel) = supervise::cancellation();
        Self {
            canceller,
            cancel,
            stage: Mutex::new(Stage::Waiting),
            story,
            talk: Mutex::default(),
            feeder: Feeder::default(),
            hand: Arc::default(),
            #[cfg(target_os = "linux")]
            caller: Mutex::default(),
        }
    }

    /// Begins the conversation that the call offers its function, if it does.
    fn talk(&self, request: &Request) -> Option<(Arc<Talk>, mpsc::UnboundedReceiver<Outgoing>)> {
        let (offer, events) = request.talk.clone().zip(self.story.events.clone())?;
        let (talk, answers) = Talk::new(offer, events);
        *self.talk.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&talk));
        Some((talk, answers))
    }

    #[cfg(target_os = "linux")]
    fn last_refusal(&self) -> Option<String> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.last_refusal()
    }

    #[cfg(not(target_os = "linux"))]
    fn last_refusal(&self) -> Option<String> {
        None
    }

    /// From here on, `cleanup` waits for the call instead of ending it.
    fn start(&self) -> Result<(), SandboxError> {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = self.cancel.reason() {
            return Err(reason.error(Phase::Start));
        }
        *stage = Stage::Running;
        Ok(())
    }

    async fn unless_cancelled<T>(
        &self,
        phase: Phase,
        work: impl Future<Output = T>,
    ) -> Result<T, SandboxError> {
        let mut cancel = self.cancel.clone();
        tokio::select! {
            biased;
            reason = cancel.cancelled() => Err(reason.error(phase)),
            done = work => Ok(done),
        }
    }
}

impl Story {
    /// Of what nobody hears.
    fn untold(began: Instant) -> Self {
        Self { began, timeline: Timeline::default(), events: None, wants_steps: false, wants_usage: false }
    }

    /// The first step has begun with the call.
    fn begin(&self) {
        self.timeline.marks().iter().for_each(|mark| self.tell(mark));
    }

    fn step(&self, step: Step, rung: Option<Rung>, reused: Option<bool>) {
        let mark = Mark { step, at: self.began.elapsed(), rung, reused };
        if self.timeline.add(mark) {
            self.tell(&mark);
        }
    }

    fn tell(&self, mark: &Mark) {
        if let Some(events) = self.events.as_ref().filter(|_| self.wants_steps) {
            events.event(EventKind::Step, json!(mark).to_string());
        }
    }

    /// The call holds nothing any more: tells its usage, to who wants it, and gives how long its steps took.
    fn over(&self, run: Option<(Rung, &RunReport)>, failure: Option<Code>, network: Option<Value>) -> Spent {
        let mut marks = self.timeline.marks();
        // The answer may not have got where that is noted.
        let settled = match (run, marks.iter().find(|mark| mark.step == Step::Run)) {
            (Some((_, report)), Some(began)) => began.at + report.settled,
            _ => self.began.elapsed(),
        };
        marks.retain(|mark| mark.step < Step::Settled);
        let mut spans = timeline::spans(&marks, settled);
        if run.is_some() {
            spans.push((Step::Settled, self.began.elapsed().saturating_sub(settled)));
        }
        if let Some(events) = self.events.as_ref().filter(|_| self.wants_usage) {
            let mut usage = usage(run, failure, self.began.elapsed(), &spans);
            if let Some(network) = network {
                usage["network"] = network;
            }
            events.event(EventKind::Usage, usage.to_string());
        }
        Spent {
            answered: settled,
            steps: spans,
            cpu_us: run.map_or(0, |(_, report)| report.cpu_us),
            output_bytes: run.map_or(0, |(_, report)| report.bytes),
        }
    }
}

/// What the host's counters are told of a call that is over.
pub struct Spent {
    /// From the call to its answer.
    pub answered: Duration,
    /// How long each step took.
    pub steps: Vec<(Step, Duration)>,
    /// Processor time, microseconds.
    pub cpu_us: u64,
    /// What it printed and returned.
    pub output_bytes: u64,
}

struct Output {
    events: Arc<dyn CallEvents>,
}

impl OutputSink for Output {
    fn on_stdout(&mut self, text: &str) {
        self.events.event(EventKind::Stdout, text.to_owned());
    }

    fn on_stderr(&mut self, text: &str) {
        self.events.event(EventKind::Stderr, text.to_owned());
    }
}

/// What a run says about the rung that its worker came from.
/// `store` is the folder of the store, if another worker would have a root to itself.
fn verdict(report: &RunReport, store: Option<&str>, shares_root: bool) -> Verdict {
    let fatal = match report.exit {
        ExitStatus::Signal(signal) => {
            matches!(
                outcome::signal_name(signal),
                Some("SIGSEGV" | "SIGBUS" | "SIGILL" | "SIGABRT" | "SIGTRAP")
            )
        }
        ExitStatus::Code(_) | ExitStatus::Lost => false,
    };
    let is_unrooted = || {
        report
            .thrown
            .as_deref()
            .zip(store)
            .is_some_and(|(message, store)| own_root::is_refused(message, store))
    };
    match report.failure {
        Some(Code::ToolError) if is_unrooted() => Verdict::Unrooted { shares_root },
        Some(Code::StartFailed) => Verdict::Crashed,
        Some(Code::Killed) if fatal => Verdict::Crashed,
        _ => Verdict::Sound,
    }
}

/// `CallUsage` of `index.d.ts`.
fn usage(
    run: Option<(Rung, &RunReport)>,
    failure: Option<Code>,
    duration: Duration,
    spans: &[(Step, Duration)],
) -> Value {
    let reason = failure.map_or_else(|| "completed".to_owned(), |code| code.to_string());
    let mut usage = json!({
        "durationMs": ms(duration),
        "phases": timeline::phases(spans),
        "exit": { "reason": reason },
    });
    let Some((rung, report)) = run else { return usage };
    usage["rung"] = json!(rung);
    usage["outputBytes"] = json!(report.bytes);
    let exit = &mut usage["exit"];
    exit["leftRunning"] = json!(report.lingered);
    match report.exit {
        ExitStatus::Code(code) => exit["code"] = json!(code),
        ExitStatus::Signal(signal) => exit["signal"] = json!(outcome::signal_name(signal)),
        ExitStatus::Lost => {}
    }
    // What nobody measured is not told as nothing.
    if cfg!(unix) && report.exit != ExitStatus::Lost {
        usage["cpuMs"] = json!(ms(Duration::from_micros(report.cpu_us)));
        usage["maxRssBytes"] = json!(report.max_rss_kib.saturating_mul(1024));
    }
    if let Some(bytes) = report.memory_peak_bytes {
        usage["memoryPeakBytes"] = json!(bytes);
    }
    usage
}

/// The original's lines about a run that went wrong, and the tool's own output.
fn log_report(request: &Request, report: &RunReport, limits: &RunLimits, sandbox_dir: &str) {
    let tool = &*request.tool_id;
    match report.failure {
        None => {
            if !(report.stdout_tail.is_empty() && report.stderr_tail.is_empty()) {
                tracing::debug!(target: NATIVE, toolId = tool, stdout = report.stdout_tail, stderr = report.stderr_tail, "Function output");
            }
        }
        Some(code) => {
            if code == Code::Timeout {
                tracing::warn!(
                    target: NATIVE,
                    toolId = tool,
                    code = %code,
                    phase = %Phase::Run,
                    json_message = %json!(outcome::timed_out(limits.timeout).message),
                    sandboxDir = sandbox_dir,
                    timeout = ms(limits.timeout),
                    "Function execution timed out, killing process"
                );
            }
            // What failed was logged when the call was answered: here is what is known at the end of its processes.
            tracing::warn!(
                target: NATIVE,
                toolId = tool,
                code = %code,
                json_exitCode = %json!(report.exit.code()),
                json_signal = %json!(report.exit.signal_name()),
                stdout = report.stdout_tail,
                stderr = report.stderr_tail,
                "Function output of a failed call"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn a_second_cleanup_does_not_wait_for_ever() {
        let inner = Inner::new(Err(internal_failure()));
        let mut context = Context::from_waker(Waker::noop());
        let first_call = inner.tracker.token();
        let mut first = pin!(inner.idle());
        assert_eq!(first.as_mut().poll(&mut context), Poll::Pending);
        drop(first_call);
        let second_call = inner.tracker.token();
        let mut second = pin!(inner.idle());
        assert_eq!(second.as_mut().poll(&mut context), Poll::Pending, "a call runs");
        // Its end must not undo what the second one waits for.
        assert_eq!(first.as_mut().poll(&mut context), Poll::Ready(()));
        drop(second_call);
        assert_eq!(second.as_mut().poll(&mut context), Poll::Ready(()));
    }
}
