//! The highest rung: workers forked from Node processes that have booted, and loaded a tree's packages, already.
//!
//! There is one *base* zygote per [`Breed`] and tenant, as its children share their addresses; it has loaded what many tools need. For a tree whose tools name packages, a
//! *dependent* zygote is forked from it, which loads these packages and serves that tree only. Zygotes boot in the
//! background. A call that has none yet waits, or is told so, by what each costs; one that is to be replaced serves until
//! its successor is up ([`succession`](super::succession)).

use std::os::unix::fs::MetadataExt as _;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{sync::watch, task::AbortHandle};

use super::{
    Breed, NotPreloaded, Rung, ScriptSource, StartError, Worker, WorkerSpec, ZygoteCounts, ZygoteMemory,
    cached::{self, Kind},
    memory, node_modules,
    resolver::Resolver,
    sizing::{self, Cut, Held},
    spawn,
    stock::{Forge, Stock},
    succession::{self, Condition, Costs, Found as Look},
};
use crate::{
    isolation::Zygote,
    log::NATIVE,
    process::{
        BoxFuture, Command, SpawnError, Spawner,
        companions::{self, Library},
        zygote::{Client, ZygoteError, words_of},
    },
    store::{
        RunFolder, Runs,
        compile_cache::{CacheLink, LEFT_FOLDER},
    },
    sys::is_passing,
};

/// After this many forks a zygote is replaced: its children share address layout and hash seeds.
const MAX_FORKS: u64 = 5_000;

/// After this long, too.
const MAX_AGE: Duration = Duration::from_mins(30);

/// A zygote that nobody used for this long ends.
const IDLE_AFTER: Duration = Duration::from_mins(5);

/// How long a refusal counts before a zygote is tried again that said itself that it cannot serve.
const RETRY_AFTER: Duration = Duration::from_mins(10);

/// And one that failed for a reason that may pass: no process, no room, no descriptor.
const RETRY_SOON: Duration = Duration::from_secs(2);

/// And one that ended without a word: it was killed, or it crashes each time.
const RETRY_AFTER_END: Duration = Duration::from_secs(30);

/// The most zygotes of trees; beyond it the least recently used ends. One takes some 5 to 20 MiB.
const MAX_DEPENDENTS: usize = 16;

/// The most base zygotes, of all tenants and kinds of worker; beyond it the least recently used ends, or the newest does without.
const MAX_BASES: usize = 16;

/// A base zygote ends for another one if no call came to it for this long. With more tenants or sets of options at a time than there
/// is room for, the others' calls are booted, instead of each call booting a zygote.
const IDLE_BEFORE_OTHERS: Duration = Duration::from_secs(10);

/// How long a tree has no zygote after its last one ended for want of memory.
const REST_AFTER: Duration = Duration::from_mins(1);

/// How often is looked at what zygotes hold, while calls come.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);

/// What a ready worker holds, as long as none was looked at, bytes.
const WORKER_BYTES: u64 = 4 * 1024 * 1024;

/// How many packages, or sets of them, are told of that are not loaded ahead.
const NOT_PRELOADED_LIMIT: usize = 256;

/// How often a tree's zygote is tried with one package fewer.
const MAX_TRIES: usize = 16;

/// How long one package may take to load, milliseconds.
const LOAD_LIMIT_MS: u32 = 5_000;

/// What a zygote calls a library that it has inherited as descriptor 4; `zygote.cjs` closes that once it is loaded.
const LIBRARY_IN_MEMORY: &str = "/proc/self/fd/4";

/// What costs what, until it was measured, milliseconds.
const BASE_BOOT_MS: u64 = 150;
const TREE_BOOT_MS: u64 = 200;

/// How many times a worker's boot fits into that of a base zygote: both are mostly Node's.
const WORKER_BOOTS_PER_BASE: u32 = 3;

/// Forking a worker takes about this long.
const FORK: Duration = Duration::from_millis(2);

/// Why there is no forked worker.
pub(super) enum NoZygote {
    /// One boots.
    NotYet,
    /// Other zygotes, which are in use, take all the room.
    Crowded,
    /// There will be none for now.
    Refused(String),
}

/// Why a zygote did not come up.
struct NotUp {
    reason: String,
    /// How long nobody tries again.
    rest: Duration,
}

impl NotUp {
    /// For a reason that does not pass.
    fn for_long(reason: String) -> Self {
        Self { reason, rest: RETRY_AFTER }
    }
}

impl From<String> for NotUp {
    /// What the host could not do for it.
    fn from(reason: String) -> Self {
        Self { reason, rest: RETRY_SOON }
    }
}

impl From<ZygoteError> for NotUp {
    fn from(error: ZygoteError) -> Self {
        let rest = match &error {
            ZygoteError::Refused { .. } | ZygoteError::Overran { .. } => RETRY_AFTER,
            ZygoteError::Lost { .. } => RETRY_AFTER_END,
            ZygoteError::Spawn(SpawnError::Step { source, .. })
            | ZygoteError::Step { source, .. }
            | ZygoteError::Fork(source)
                if !is_passing(source) =>
            {
                RETRY_AFTER
            }
            _ => RETRY_SOON,
        };
        Self { reason: error.to_string(), rest }
    }
}

/// All zygotes of the process.
pub(super) struct Zygotes {
    spawner: Arc<dyn Spawner>,
    library: PathBuf,
    lines: Mutex<HashMap<Owner, Line>>,
    /// What they may hold together, bytes; all ones while nobody has said.
    limit_bytes: AtomicU64,
    ended: AtomicU64,
    /// When the last look at that began.
    reviewed: Mutex<Option<Instant>>,
    /// Whether the log has been told that memory is short.
    told: AtomicBool,
    /// The process is to end: nothing boots.
    closed: AtomicBool,
    /// Numbers boots.
    tickets: AtomicU64,
    /// How long the last boot of a base took, and of a tree's zygote, milliseconds.
    base_boot_ms: AtomicU64,
    tree_boot_ms: AtomicU64,
    /// One reference more for each call that boots its own worker, or loads its packages itself.
    alone: Arc<()>,
    cores: usize,
    own: Weak<Self>,
}

/// Whose zygotes they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    breed: Arc<Breed>,
    tenant: Option<Arc<str>>,
}

impl Owner {
    fn of(spec: &WorkerSpec) -> Self {
        Self { breed: Arc::clone(&spec.breed), tenant: spec.tenant.clone() }
    }
}

/// A base zygote and what descends from it.
#[derive(Default)]
struct Line {
    base: Slot,
    last_used: Option<Instant>,
    dependents: HashMap<PathBuf, Dependent>,
}

struct Dependent {
    /// Every package that a tool of this tree named so far.
    packages: BTreeSet<String>,
    /// Those that must not be loaded ahead, and why.
    unfit: BTreeMap<String, String>,
    slot: Slot,
    last_used: Instant,
}

type Slot = succession::Slot<Arc<Nest>, Boot>;

/// The boot of a zygote. Dropped before it is over, it is broken off.
struct Boot {
    underway: Underway,
    task: AbortHandle,
}

impl Drop for Boot {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What those see of a boot who may wait for it.
#[derive(Clone)]
struct Underway {
    /// Closed when it is over.
    over: watch::Receiver<()>,
    began: Instant,
    waiting: Arc<AtomicUsize>,
}

/// Counts one who waits.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn of(underway: &Underway) -> Self {
        underway.waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&underway.waiting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sees to it that the slot of a boot hears of its end, a panic included.
struct Ending {
    zygotes: Weak<Zygotes>,
    owner: Owner,
    tree: Option<PathBuf>,
    ticket: u64,
    is_told: bool,
}

impl Ending {
    fn settle(mut self, booted: Result<Arc<Nest>, NotUp>) {
        self.is_told = true;
        self.tell(booted);
    }

    fn tell(&self, booted: Result<Arc<Nest>, NotUp>) {
        if let Some(zygotes) = self.zygotes.upgrade() {
            zygotes.set(&self.owner, self.tree.as_deref(), self.ticket, booted);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.is_told {
            let reason = "its boot broke off".to_owned();
            self.tell(Err(NotUp { reason, rest: RETRY_AFTER_END }));
        }
    }
}

/// A zygote that serves, and the workers it forked ahead.
struct Nest {
    client: Arc<Client>,
    stock: Arc<Stock>,
    born: Instant,
    last_used: Mutex<Instant>,
    /// What it has loaded ahead, dependents only.
    packages: BTreeSet<String>,
    /// And what these have read of the environment.
    variables: VariablesRead,
    makings: Arc<Makings>,
    /// What it held when it had loaded everything, bytes. Afterwards it only forks.
    zygote_bytes: u64,
    /// What a worker holds that is ready, bytes, as last looked at.
    worker_bytes: AtomicU64,
}

/// Names of the variables that packages read while their zygote loaded them.
#[derive(Debug, Default, PartialEq, Eq)]
struct VariablesRead(BTreeSet<String>);

impl VariablesRead {
    /// Stands for all of them.
    const EVERY: &str = "*";
    /// The time zone: ICU reads it, and keeps what it read, wherever a date is told in words or hours.
    const UNSEEN: &str = "TZ";

    /// From what a zygote says when it has loaded its packages; all, where it does not say.
    fn of(report: &str) -> Self {
        #[derive(Deserialize)]
        struct Told {
            variables: BTreeSet<String>,
        }
        match serde_json::from_str::<Told>(report) {
            Ok(told) => Self(told.variables),
            Err(_) => Self(BTreeSet::from([Self::EVERY.to_owned()])),
        }
    }

    /// Whether what packages keep may be wrong for a call that has variables of these names of its own.
    fn concern(&self, own: &BTreeSet<String>) -> bool {
        !own.is_empty()
            && (own.contains(Self::UNSEEN) || self.0.contains(Self::EVERY) || !self.0.is_disjoint(own))
    }
}

/// What all workers of one zygote have in common.
struct Makings {
    client: Arc<Client>,
    breed: Arc<Breed>,
    /// Where their folders are.
    runs: Runs,
    /// The user that the zygote, and so each of them, has; none where each gets one of its own, or the host's.
    user: Option<u32>,
    /// The tree that they may read, dependents only.
    tree: Option<PathBuf>,
    /// Who knows the names of hosts for them: a base may read no newer file, and its dependents have what it has.
    resolver: Resolver,
    /// What its root has of the store.
    trees: Trees,
}

/// Which folder the store's trees lie in: a zygote's root has the one that was there when it booted, and no other that took its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trees(Option<(u64, u64)>);

impl Trees {
    fn now(breed: &Breed) -> Self {
        let folder = breed.store.0.tree_folders(&[]).into_iter().next();
        let found = folder.and_then(|folder| std::fs::symlink_metadata(folder).ok());
        Self(found.map(|folder| (folder.dev(), folder.ino())))
    }
}

impl Makings {
    /// Forks a worker that may read `tree`.
    async fn fork(&self, tree: Option<&Path>) -> Result<Worker, StartError> {
        let failed = |reason| StartError { rung: Rung::Zygote, reason };
        let shield = &self.breed.shield;
        // A zygote that keeps the host's user can give each worker another; one that has its own cannot.
        let (new_user, owner) = if self.user.is_some() {
            (None, self.user)
        } else {
            let user = shield.draw_user().map_err(|error| failed(error.to_string()))?;
            (user, user)
        };
        let modules = tree.map(node_modules);
        let by = if self.tree.is_some() { Zygote::OfTree } else { Zygote::Base };
        let is_own = by == Zygote::Base && shield.forked_workers_make_run_folders();
        let run = self.runs.prepare(is_own, modules.as_deref(), owner);
        let run = run.map_err(|error| failed(error.to_string()))?;
        let plan = shield.forked_worker(new_user, &run, tree, by);
        let group = shield.group().await.map_err(failed)?;
        let started = self.client.fork_worker(plan.as_deref(), group).await;
        let started = started.map_err(|error| failed(error.to_string()))?;
        Ok(Worker { rung: Rung::Zygote, started, run: Some(run), shares_root: by == Zygote::OfTree })
    }
}

impl NoZygote {
    /// As callers are told that insist on one.
    pub(super) fn into_error(self) -> StartError {
        let reason = match self {
            Self::NotYet => "it is still booting".to_owned(),
            Self::Crowded => {
                "zygotes of other tenants or options take all the room (zygoteMemoryMb)".to_owned()
            }
            Self::Refused(reason) => reason,
        };
        StartError { rung: Rung::Zygote, reason }
    }
}

/// What a look at a slot gives.
enum Found {
    Up(Arc<Nest>),
    Booting(Underway),
    /// To be waited for in any case.
    Awaited(Underway),
    Crowded,
    Down(String),
}

impl Line {
    /// Those that serve.
    fn nests(&self) -> impl Iterator<Item = &Arc<Nest>> {
        let slots =
            std::iter::once(&self.base).chain(self.dependents.values().map(|dependent| &dependent.slot));
        slots.filter_map(Slot::current)
    }

    /// Whether nobody has used any of it for so long.
    fn rests(&self, now: Instant, idle: Duration) -> bool {
        let used = self.last_used.map_or(Duration::MAX, |used| now.saturating_duration_since(used));
        used >= idle && !self.base.is_booting() && self.nests().all(|nest| nest.stock.running() == 0)
    }
}

impl Nest {
    /// `ready` workers are forked at once.
    fn new(
        makings: Makings,
        (packages, variables): (BTreeSet<String>, VariablesRead),
        zygote_bytes: u64,
        ready: usize,
    ) -> Arc<Self> {
        let makings = Arc::new(makings);
        let stock = Stock::new(Arc::new(Forks(Arc::clone(&makings))));
        stock.prime(ready);
        let now = Instant::now();
        let client = Arc::clone(&makings.client);
        Arc::new(Self {
            client,
            stock,
            born: now,
            last_used: Mutex::new(now),
            packages,
            variables,
            makings,
            zygote_bytes,
            worker_bytes: AtomicU64::new(WORKER_BYTES),
        })
    }

    /// Whether it can serve: its folder may have been wiped with the temp folder, and its workers may write to no other.
    fn is_fit(&self) -> bool {
        let makings = &self.makings;
        self.client.is_open() && makings.runs.is_current() && makings.trees == Trees::now(&makings.breed)
    }

    fn condition(&self, now: Instant) -> Condition {
        if !self.is_fit() {
            Condition::Dead
        } else if self.makings.resolver != Resolver::now() {
            Condition::Stale
        } else if is_old(self.client.forks(), now.saturating_duration_since(self.born)) {
            Condition::Worn
        } else {
            Condition::Sound
        }
    }

    fn touch(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last_used(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_used()) >= IDLE_AFTER
    }

    /// What it holds with its workers. `is_base`: it must not end. Looks at one of them; blocks.
    fn held(&self, is_base: bool) -> Held {
        if let Some(bytes) = self.stock.sample().and_then(memory::private_bytes) {
            self.worker_bytes.store(bytes, Ordering::Relaxed);
        }
        let is_idle = !is_base && self.stock.running() == 0;
        Held {
            zygote_bytes: self.zygote_bytes,
            worker_bytes: self.worker_bytes.load(Ordering::Relaxed),
            wanted: self.stock.wanted(),
            idle_since: is_idle.then(|| self.last_used()),
        }
    }

    /// What it and its ready workers hold, as far as that is known.
    fn bytes(&self) -> u64 {
        let ready = u64::try_from(self.stock.ready()).unwrap_or(u64::MAX);
        self.zygote_bytes.saturating_add(self.worker_bytes.load(Ordering::Relaxed).saturating_mul(ready))
    }
}

struct Forks(Arc<Makings>);

impl Forge for Forks {
    fn make(&self) -> BoxFuture<'_, Result<Worker, StartError>> {
        Box::pin(self.0.fork(self.0.tree.as_deref()))
    }
}

impl Zygotes {
    pub(super) fn new(spawner: Arc<dyn Spawner>, library: PathBuf) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            spawner,
            library,
            lines: Mutex::default(),
            limit_bytes: AtomicU64::new(u64::MAX),
            ended: AtomicU64::new(0),
            reviewed: Mutex::default(),
            told: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            tickets: AtomicU64::new(0),
            base_boot_ms: AtomicU64::new(BASE_BOOT_MS),
            tree_boot_ms: AtomicU64::new(TREE_BOOT_MS),
            alone: Arc::default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            own: Weak::clone(own),
        })
    }

    /// A worker of the tree's zygote, or of the base while there is none. With `wait`, zygotes that boot are waited for; without, where
    /// that is what costs less.
    pub(super) async fn start(&self, spec: &WorkerSpec, wait: bool) -> Result<Worker, NoZygote> {
        let base = match self.settled(wait, self.base_costs(), || self.base(spec, wait)).await {
            Err(NoZygote::NotYet) if spec.has_dependencies => {
                self.load_after_boot(spec.clone());
                return Err(NoZygote::NotYet);
            }
            found => found?,
        };
        base.touch();
        self.review_if_due();
        let worker = if spec.has_dependencies && spec.loads_itself {
            base.makings.fork(spec.readable_tree()).await
        } else if spec.has_dependencies {
            match self.settled(wait, self.tree_costs(), || self.dependent(spec, &base)).await {
                // The packages are to find the call's own variables.
                Ok(nest) if nest.variables.concern(&spec.own_variables) => self.fork_alone(spec, &base).await,
                Ok(nest) => {
                    nest.touch();
                    match nest.stock.take().await {
                        // As many of its calls as it has room for are there, or it has just ended.
                        Err(_) => self.fork_alone(spec, &base).await,
                        taken => taken,
                    }
                }
                // The base can do it too, but not ahead of need: the tree has to be known before the worker lives. It then
                // loads the packages itself.
                Err(_) => self.fork_alone(spec, &base).await,
            }
        } else {
            base.stock.take().await
        };
        worker.map_err(|error| NoZygote::Refused(error.reason))
    }

    /// A worker of the base for a tree: it loads the packages itself.
    async fn fork_alone(&self, spec: &WorkerSpec, base: &Nest) -> Result<Worker, StartError> {
        // While it is forked, too.
        let counted = Arc::clone(&self.alone);
        let forked = base.makings.fork(spec.readable_tree()).await;
        drop(counted);
        forked.map(|worker| self.count_alone(worker))
    }

    /// Counts a worker among those that do without what boots, until its call is settled.
    pub(super) fn count_alone(&self, mut worker: Worker) -> Worker {
        worker.started.process.hold(Arc::clone(&self.alone));
        worker
    }

    /// Counts whoever holds it among those that do without what boots.
    pub(super) fn alone(&self) -> Arc<()> {
        Arc::clone(&self.alone)
    }

    fn base_costs(&self) -> Costs {
        let zygote = Duration::from_millis(self.base_boot_ms.load(Ordering::Relaxed));
        Costs { zygote, alone: zygote / WORKER_BOOTS_PER_BASE, fork: FORK }
    }

    /// Loading the packages takes a call about as long as it takes their zygote.
    fn tree_costs(&self) -> Costs {
        let zygote = Duration::from_millis(self.tree_boot_ms.load(Ordering::Relaxed));
        Costs { zygote, alone: zygote, fork: FORK }
    }

    fn waits_for(&self, underway: &Underway, costs: &Costs) -> bool {
        let ahead = underway.waiting.load(Ordering::Relaxed);
        let alone = Arc::strong_count(&self.alone) - 1;
        succession::waits(costs, underway.began.elapsed(), ahead, alone, self.cores)
    }

    /// Has the tree's zygote made as soon as the base is there, so that the next call finds it.
    fn load_after_boot(&self, spec: WorkerSpec) {
        let zygotes = Weak::clone(&self.own);
        tokio::spawn(async move {
            let Some(zygotes) = zygotes.upgrade() else { return };
            let costs = zygotes.base_costs();
            if let Ok(base) = zygotes.settled(true, costs, || zygotes.base(&spec, true)).await {
                zygotes.dependent(&spec, &base);
            }
        });
    }

    /// What a look gives, after the boot if that is to be waited for.
    async fn settled(
        &self,
        wait: bool,
        costs: Costs,
        look: impl Fn() -> Found,
    ) -> Result<Arc<Nest>, NoZygote> {
        let mut waits = wait;
        loop {
            let underway = match look() {
                Found::Up(nest) => return Ok(nest),
                Found::Down(reason) => return Err(NoZygote::Refused(reason)),
                Found::Crowded => return Err(NoZygote::Crowded),
                Found::Awaited(underway) => underway,
                Found::Booting(underway) => {
                    // Decided once: who has begun to wait has done most of it.
                    waits = waits || self.waits_for(&underway, &costs);
                    if !waits {
                        return Err(NoZygote::NotYet);
                    }
                    underway
                }
            };
            let _counted = Waiting::of(&underway);
            let Underway { mut over, .. } = underway;
            // Ends with an error when the boot is over.
            while over.changed().await.is_ok() {}
        }
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, HashMap<Owner, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `insists`: it has to be a zygote, so that one that ends for it may have been used a moment ago.
    fn base(&self, spec: &WorkerSpec, insists: bool) -> Found {
        let now = Instant::now();
        let owner = Owner::of(spec);
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let mut lines = self.lines();
        let ended = match make_room_for(&mut lines, &owner, now, limit, insists) {
            Ok(ended) => ended,
            Err(Full) => return Found::Crowded,
        };
        let line = lines.entry(owner.clone()).or_default();
        line.last_used = Some(now);
        let ready = line.base.current().map_or(1, |nest| nest.stock.wanted());
        let (found, dead) = self.look(
            &mut line.base,
            now,
            |nest| nest.condition(now),
            owner.clone(),
            None,
            || {
                let (zygotes, scripts, breed) = (Weak::clone(&self.own), spec.scripts.clone(), owner.breed);
                async move {
                    let zygotes =
                        zygotes.upgrade().ok_or_else(|| NotUp::for_long("its host is gone".to_owned()))?;
                    zygotes.boot_base(&breed, &scripts, ready).await
                }
            },
        );
        drop(lines);
        drop((ended, dead)); // ends zygotes: outside of the lock
        found
    }

    /// Looks at a slot, and boots what is missing.
    fn look<F>(
        &self,
        slot: &mut Slot,
        now: Instant,
        condition: impl FnOnce(&Nest) -> Condition,
        owner: Owner,
        tree: Option<PathBuf>,
        boot: impl FnOnce() -> F,
    ) -> (Found, Option<Arc<Nest>>)
    where
        F: Future<Output = Result<Arc<Nest>, NotUp>> + Send + 'static,
    {
        if self.closed.load(Ordering::Relaxed) {
            return (Found::Down("the process is shutting down".to_owned()), None);
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let (found, dead) = slot.look(
            now,
            ticket,
            |nest| condition(nest),
            |ticket| {
                let (teller, over) = watch::channel(());
                let ending = Ending { zygotes: Weak::clone(&self.own), owner, tree, ticket, is_told: false };
                let booting = boot();
                let task = tokio::spawn(async move {
                    // Dropped after `ending`, whatever happens.
                    let _over = teller;
                    let ending = ending;
                    let booted = booting.await;
                    ending.settle(booted);
                });
                let underway = Underway { over, began: now, waiting: Arc::default() };
                Boot { underway, task: task.abort_handle() }
            },
        );
        let found = match found {
            Look::Up(nest) => Found::Up(nest),
            Look::Booting(boot) => Found::Booting(boot.underway.clone()),
            Look::Awaited(boot) => Found::Awaited(boot.underway.clone()),
            Look::Down(reason) => Found::Down(reason),
        };
        (found, dead)
    }

    fn dependent(&self, spec: &WorkerSpec, base: &Arc<Nest>) -> Found {
        let now = Instant::now();
        let mut lines = self.lines();
        let line = lines.entry(Owner::of(spec)).or_default();
        let tree = spec.tree.as_path();
        let ended = if line.dependents.contains_key(tree) { None } else { make_room(&mut line.dependents) };
        let dependent = line.dependents.entry(tree.to_path_buf()).or_insert_with(|| Dependent {
            packages: BTreeSet::new(),
            unfit: BTreeMap::new(),
            slot: Slot::default(),
            last_used: now,
        });
        dependent.last_used = now;
        dependent.packages.extend(spec.packages.iter().cloned());
        let wanted: BTreeSet<String> =
            dependent.packages.iter().filter(|name| !dependent.unfit.contains_key(*name)).cloned().collect();
        let condition = |nest: &Nest| match nest.condition(now) {
            Condition::Sound if !wanted.is_subset(&nest.packages) => Condition::Worn,
            condition => condition,
        };
        let ready = dependent.slot.current().map_or(1, |nest| nest.stock.wanted());
        let place = Some(spec.tree.to_path_buf());
        let (found, dead) = self.look(&mut dependent.slot, now, condition, Owner::of(spec), place, || {
            let (zygotes, spec, base) = (Weak::clone(&self.own), spec.clone(), Arc::clone(base));
            let wanted = wanted.clone();
            async move {
                let zygotes =
                    zygotes.upgrade().ok_or_else(|| NotUp::for_long("its host is gone".to_owned()))?;
                zygotes.boot_dependent(&spec, &base, wanted, ready).await
            }
        });
        drop(lines);
        drop((ended, dead)); // outside of the lock
        found
    }

    async fn library(&self) -> Result<Library, String> {
        let beside = self.library.clone();
        let told = |error: &dyn std::fmt::Display| {
            format!(
                "the zygote's library {} cannot be used: {error}; reinstall the package",
                self.library.display()
            )
        };
        match tokio::task::spawn_blocking(move || companions::library(&beside)).await {
            Ok(found) => found.map_err(|error| told(&error)),
            Err(error) => Err(told(&error)),
        }
    }

    async fn boot_base(
        &self,
        breed: &Arc<Breed>,
        scripts: &ScriptSource,
        ready: usize,
    ) -> Result<Arc<Nest>, NotUp> {
        let scripts = scripts.scripts().await?;
        let runs = breed.store.0.runs().map_err(|error| error.to_string())?;
        // Before it boots, so that what comes or goes meanwhile is noticed.
        let (resolver, trees) = (Resolver::now(), Trees::now(breed));
        let mut env: Vec<_> =
            breed.boot_env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let library = self.library().await?;
        let (library, descriptor_4) = match library {
            Library::File(path) => (path.into_os_string(), None),
            Library::Memory(memory) => (LIBRARY_IN_MEMORY.into(), Some(memory)),
        };
        env.extend(preload(&library).map(|library| ("LD_PRELOAD".into(), library)));
        let command = Command {
            program: breed.node.clone(),
            args: vec![
                "--single-threaded".into(),
                "--no-wasm-async-compilation".into(),
                "--no-wasm-dynamic-tiering".into(),
                "--no-memory-reducer".into(),
                "--no-flush-bytecode".into(),
                "--no-lazy".into(),
                "--v8-pool-size=1".into(),
                spawn::heap_flag(breed),
                scripts.zygote.into_os_string(),
                library,
                scripts.worker.into_os_string(),
            ],
            env,
            cwd: PathBuf::from("/"),
            confinement: breed.shield.base_zygote(),
            attend: breed.shield.attend("packages that are loaded ahead"),
            descriptor_4,
            ..Command::default()
        };
        let began = Instant::now();
        let mut client = Client::boot(&*self.spawner, command).await?;
        let runs = settle_runs(runs, breed, &mut client)?;
        client.limit(breed.limits).await?;
        tracing::debug!(target: NATIVE, durationMs = ms(began), "Zygote booted");
        let held = held_by(&client).await;
        let client = Arc::new(client);
        let makings =
            Makings { client, breed: Arc::clone(breed), runs, user: None, tree: None, resolver, trees };
        Ok(Nest::new(makings, (BTreeSet::new(), VariablesRead::default()), held, ready))
    }

    /// Tries with every package, and with one fewer as long as one turns out to be unfit.
    async fn boot_dependent(
        &self,
        spec: &WorkerSpec,
        base: &Nest,
        mut packages: BTreeSet<String>,
        ready: usize,
    ) -> Result<Arc<Nest>, NotUp> {
        let began = Instant::now();
        for _ in 0..MAX_TRIES {
            let modules = packages.iter().map(|specifier| Module { specifier, kind: "require" }).collect();
            let shield = &spec.breed.shield;
            let user = shield.draw_user().map_err(|error| error.to_string())?;
            let store = &spec.breed.store.0;
            let in_memory = shield.zygotes_have_run_folders();
            let runs = if in_memory { store.runs() } else { store.nest() };
            let runs = runs.map_err(|error| error.to_string())?;
            let name = cached::name(&spec.breed, Kind::Forked);
            let cache = name.and_then(|name| CacheLink::find(&spec.tree, &name, user));
            // In memory it is made by who mounts that.
            let compile_cache = cache.as_ref().and_then(|cache| {
                if in_memory { Some(cache.folder_in(runs.dir())) } else { cache.make_in(runs.dir()) }
            });
            let load = Load {
                cwd: &spec.tree,
                env: &spec.breed.load_env,
                modules,
                limit_ms: LOAD_LIMIT_MS,
                compile_cache,
                compiles: false,
            };
            let payload = serde_json::to_string(&load).map_err(|error| error.to_string())?;
            let plan = shield.dependent_zygote(user, &spec.tree, runs.dir(), cache.as_ref());
            let group = shield.group().await?;
            let refused = match base.client.fork_zygote(plan.as_deref(), group, &payload).await {
                Ok(mut client) => {
                    let runs = settle_runs(runs, &spec.breed, &mut client)?;
                    client.limit(spec.breed.limits).await?;
                    tracing::debug!(
                        target: NATIVE,
                        sandboxDir = %spec.tree.display(),
                        durationMs = ms(began),
                        json_report = client.report(),
                        "Zygote loaded packages"
                    );
                    let held = held_by(&client).await;
                    self.too_large(held).map_err(NotUp::for_long)?;
                    let variables = VariablesRead::of(client.report());
                    let (client, breed) = (Arc::new(client), Arc::clone(&spec.breed));
                    let tree = Some(spec.tree.to_path_buf());
                    let (resolver, trees) = (base.makings.resolver, base.makings.trees);
                    let makings = Makings { client, breed, runs, user, tree, resolver, trees };
                    return Ok(Nest::new(makings, (packages, variables), held, ready));
                }
                Err(ZygoteError::Refused { reason, .. }) => reason,
                // Nobody knows which of them it was.
                Err(ZygoteError::Overran { what }) if !packages.is_empty() => {
                    let reason = format!("with the packages of its set: {what}");
                    self.unfit(spec, std::mem::take(&mut packages), &reason);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let refusal = serde_json::from_str::<Refusal>(&refused).unwrap_or_default();
            let known = packages.len();
            for Unfit { specifier, reason } in refusal.unfit() {
                if packages.remove(&specifier) {
                    self.unfit(spec, BTreeSet::from([specifier]), reason.as_deref().unwrap_or(&refused));
                }
            }
            if packages.len() == known {
                return Err(NotUp::for_long(words_of(&refused)));
            }
        }
        Err(NotUp::for_long("too many of its packages cannot be loaded ahead".to_owned()))
    }

    /// Notes that these packages of a tree are not loaded ahead.
    fn unfit(&self, spec: &WorkerSpec, packages: BTreeSet<String>, reason: &str) {
        let mut lines = self.lines();
        let line = lines.get_mut(&Owner::of(spec));
        let dependent = line.and_then(|line| line.dependents.get_mut(spec.tree.as_path()));
        tracing::debug!(target: NATIVE, json_packages = %json!(packages), reason, "Packages are not loaded ahead");
        if let Some(dependent) = dependent {
            dependent.unfit.extend(packages.into_iter().map(|package| (package, reason.to_owned())));
        }
    }

    /// See [`RungLadder::not_preloaded`](super::RungLadder::not_preloaded).
    pub(super) fn not_preloaded(&self) -> Vec<NotPreloaded> {
        let lines = self.lines();
        let dependents = lines.values().flat_map(|line| line.dependents.values());
        let told = dependents.flat_map(|dependent| {
            let unfit = dependent.unfit.iter().map(|(package, reason)| NotPreloaded {
                packages: vec![package.clone()],
                reason: reason.clone(),
            });
            let all = dependent.slot.refusal().map(|reason| NotPreloaded {
                packages: dependent.packages.iter().cloned().collect(),
                reason: reason.to_owned(),
            });
            unfit.chain(all)
        });
        told.take(NOT_PRELOADED_LIMIT).collect()
    }

    /// See [`RungLadder::limit_memory`](super::RungLadder::limit_memory).
    pub(super) fn limit_memory(&self, bytes: u64) {
        self.limit_bytes.fetch_min(bytes, Ordering::Relaxed);
    }

    /// Refuses a zygote that alone holds more than all may: it would end as soon as it is idle, and boot again with the next call.
    fn too_large(&self, bytes: u64) -> Result<(), String> {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        if bytes <= limit {
            return Ok(());
        }
        let mib = |bytes: u64| bytes / (1024 * 1024);
        Err(format!(
            "with its packages it holds {} MiB, and all zygotes may hold {} (zygoteMemoryMb)",
            mib(bytes),
            mib(limit)
        ))
    }

    /// [`Self::review`], if the last one was long ago.
    fn review_if_due(&self) {
        let last = *self.reviewed.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= REVIEW_INTERVAL) {
            self.review_soon();
        }
    }

    /// [`Self::review`], on a thread for blocking work. Needs a runtime.
    fn review_soon(&self) {
        *self.reviewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let own = Weak::clone(&self.own);
        tokio::task::spawn_blocking(move || {
            if let Some(own) = own.upgrade() {
                own.review();
            }
        });
    }

    /// Keeps zygotes and the workers that they have ready within what they may hold. Blocks.
    fn review(&self) {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let nests = self.nests();
        let now = Instant::now();
        // Bases that another tenant's could take the place of. Their trees' zygotes end before them.
        let at_rest: Vec<Owner> = {
            let lines = self.lines();
            let newest = lines.values().filter_map(|line| line.last_used).max();
            let may_end = |(owner, line): (&Owner, &Line)| {
                let ends = line.last_used != newest
                    && line.rests(now, IDLE_BEFORE_OTHERS)
                    && line.nests().count() == 1;
                ends.then(|| owner.clone())
            };
            lines.iter().filter_map(may_end).collect()
        };
        let stays = |owner: &Owner, tree: &Option<PathBuf>| tree.is_none() && !at_rest.contains(owner);
        let held: Vec<Held> = nests.iter().map(|(owner, tree, nest)| nest.held(stays(owner, tree))).collect();
        let Cut { ended, cap } = sizing::cut(&held, limit);
        for (index, (owner, tree, nest)) in nests.iter().enumerate() {
            match tree {
                Some(tree) if ended.contains(&index) => self.end_for_memory(owner, tree, nest, limit),
                None if ended.contains(&index) => self.end_at_rest(owner),
                _ => nest.stock.cap(cap),
            }
        }
        if (!ended.is_empty() || cap == 0) && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: NATIVE,
                limitMb = limit / (1024 * 1024),
                "Zygotes hold more memory than they may: those that were not used for longest end, and fewer workers are kept ready; with more of it (zygoteMemoryMb) calls start faster"
            );
        }
    }

    /// All that serve, with the tree of each that is not a base.
    fn nests(&self) -> Vec<(Owner, Option<PathBuf>, Arc<Nest>)> {
        let up = |slot: &Slot| slot.current().map(Arc::clone);
        let mut nests = Vec::new();
        for (owner, line) in &*self.lines() {
            nests.extend(up(&line.base).map(|nest| (owner.clone(), None, nest)));
            nests.extend(line.dependents.iter().filter_map(|(tree, dependent)| {
                Some((owner.clone(), Some(tree.clone()), up(&dependent.slot)?))
            }));
        }
        nests
    }

    /// Ends a base with all that it has, unless a call has come to it meanwhile.
    fn end_at_rest(&self, owner: &Owner) {
        let mut lines = self.lines();
        let rests = lines.get(owner).is_some_and(|line| line.rests(Instant::now(), IDLE_BEFORE_OTHERS));
        let line = if rests { lines.remove(owner) } else { None };
        drop(lines);
        if line.is_some() {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        drop(line); // outside of the lock
    }

    /// Ends a tree's zygote, unless a call has come to it meanwhile.
    fn end_for_memory(&self, owner: &Owner, tree: &Path, nest: &Arc<Nest>, limit: u64) {
        let mut lines = self.lines();
        let dependent = lines.get_mut(owner).and_then(|line| line.dependents.get_mut(tree));
        let Some(dependent) = dependent else { return };
        let is_same = dependent.slot.current().is_some_and(|found| Arc::ptr_eq(found, nest));
        if !is_same || dependent.slot.is_booting() || nest.stock.running() > 0 {
            return;
        }
        let reason = format!(
            "it was not used for longest when zygotes held more than {} MiB (zygoteMemoryMb)",
            limit / (1024 * 1024)
        );
        let old = dependent.slot.end(Instant::now(), reason, REST_AFTER);
        drop(lines);
        self.ended.fetch_add(1, Ordering::Relaxed);
        drop(old); // `nest` is the last one that holds it
    }

    /// Has the packages of a tree compiled by a process such as the tree's zygote is one; where it worked, see [`RunFolder::left`].
    /// Nothing else ever runs in it. `None` where
    /// none of them can be loaded ahead.
    pub(super) async fn compile(&self, spec: &WorkerSpec) -> Result<Option<RunFolder>, String> {
        let base = self
            .settled(true, self.base_costs(), || self.base(spec, true))
            .await
            .map_err(|none| none.into_error().reason)?;
        base.touch();
        let mut packages = spec.packages.clone();
        for _ in 0..MAX_TRIES {
            let shield = &spec.breed.shield;
            let user = shield.draw_user().map_err(|error| error.to_string())?;
            let run = base.makings.runs.prepare(shield.zygotes_have_run_folders(), None, user);
            let mut run = run.map_err(|error| error.to_string())?;
            let dir = run.tmpdir().join(LEFT_FOLDER);
            let load = Load {
                cwd: &spec.tree,
                env: &spec.breed.load_env,
                modules: packages.iter().map(|specifier| Module { specifier, kind: "require" }).collect(),
                limit_ms: LOAD_LIMIT_MS,
                compile_cache: Some(dir),
                compiles: true,
            };
            let payload = serde_json::to_string(&load).map_err(|error| error.to_string())?;
            let plan = shield.compiling_zygote(user, &spec.tree, run.dir());
            let group = shield.group().await?;
            let told = match base.client.fork_zygote(plan.as_deref(), group, &payload).await {
                Err(ZygoteError::Refused { reason, shown }) => {
                    for top in shown {
                        run.show(top);
                    }
                    reason
                }
                Err(error) => return Err(error.to_string()),
                Ok(_) => return Err("it serves, but was to end".to_owned()),
            };
            match serde_json::from_str(&told) {
                Ok(Refusal { compiled: true, .. }) => return Ok(Some(run)),
                Ok(Refusal { specifier: Some(unfit), .. })
                    if packages.remove(&unfit) && !packages.is_empty() => {}
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The end of a boot. What does not belong to a slot any more is dropped, and so ends.
    fn set(&self, owner: &Owner, tree: Option<&Path>, ticket: u64, booted: Result<Arc<Nest>, NotUp>) {
        let now = Instant::now();
        let booted = booted.map_err(|NotUp { reason, rest }| (reason, rest));
        let mut lines = self.lines();
        let slot = lines.get_mut(owner).and_then(|line| match tree {
            None => Some(&mut line.base),
            Some(tree) => line.dependents.get_mut(tree).map(|dependent| &mut dependent.slot),
        });
        let Some(slot) = slot else {
            drop(lines);
            return; // ends a zygote: outside of the lock
        };
        if let (Err((reason, _)), Some(_)) = (&booted, slot.current()) {
            tracing::warn!(target: NATIVE, reason, "A zygote could not be replaced: the old one serves on");
        }
        let took =
            if slot.waits_for(ticket) && booted.is_ok() { Some(slot_boot_ms(slot, now)) } else { None };
        let ended = slot.settle(now, ticket, booted);
        drop(lines);
        if let Some(Some(ms)) = took {
            let known = if tree.is_some() { &self.tree_boot_ms } else { &self.base_boot_ms };
            known.store(ms, Ordering::Relaxed);
        }
        drop(ended); // may end a zygote: outside of the lock
        self.review_soon();
    }

    /// Ends what nobody has used for long.
    pub(super) fn sweep(&self, now: Instant) {
        self.review_soon();
        let mut ended = Vec::new();
        self.lines().retain(|_, line| {
            ended.extend(
                line.dependents.extract_if(|_, dependent| {
                    now.saturating_duration_since(dependent.last_used) >= IDLE_AFTER
                }),
            );
            let idle = !line.base.is_booting() && line.base.current().is_none_or(|nest| nest.is_idle(now));
            !(idle && line.dependents.is_empty())
        });
        drop(ended);
    }

    pub(super) fn forget(&self, tree: &Path) {
        let ended: Vec<_> =
            self.lines().values_mut().filter_map(|line| line.dependents.remove(tree)).collect();
        drop(ended);
    }

    pub(super) fn memory(&self) -> ZygoteMemory {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        let nests = self.nests();
        ZygoteMemory {
            bytes: nests.iter().fold(0, |sum: u64, (.., nest)| sum.saturating_add(nest.bytes())),
            limit_bytes: (limit < u64::MAX).then_some(limit),
            ended: self.ended.load(Ordering::Relaxed),
        }
    }

    pub(super) fn counts(&self) -> ZygoteCounts {
        let mut counts = ZygoteCounts::default();
        for line in self.lines().values() {
            let dependents = line.dependents.values().map(|dependent| (true, &dependent.slot));
            for (is_dependent, slot) in std::iter::once((false, &line.base)).chain(dependents) {
                if let Some(nest) = slot.current() {
                    counts.ready += nest.stock.ready();
                    *if is_dependent { &mut counts.dependents } else { &mut counts.base } += 1;
                }
                counts.booting += usize::from(slot.is_booting());
                counts.refused += usize::from(slot.refusal().is_some());
            }
        }
        counts
    }

    #[expect(clippy::mutable_key_type, reason = "a store is compared by its folder, which does not change")]
    pub(super) fn drain(&self) {
        // Boots under way are broken off with it.
        let lines = std::mem::take(&mut *self.lines());
        drop(lines);
    }

    /// From now on nothing boots, or, where not `closed`, again.
    pub(super) fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::Relaxed);
    }
}

/// The library, where the dynamic linker can be told its path: spaces and colons separate (ld.so(8)).
fn preload(library: &OsStr) -> Option<OsString> {
    let separates = |byte: &u8| matches!(byte, b' ' | b':' | b'\t' | b'\n');
    (!library.as_encoded_bytes().iter().any(separates)).then(|| library.to_os_string())
}

/// Where the run folders of a zygote's workers are: what is mounted there, where they are in memory.
fn settle_runs(runs: Runs, breed: &Breed, client: &mut Client) -> Result<Runs, String> {
    if !breed.shield.zygotes_have_run_folders() {
        return Ok(runs);
    }
    runs.in_memory(client.take_shown()).map_err(|error| error.to_string())
}

/// What a zygote holds that has just booted, bytes; 0 where that cannot be found out.
async fn held_by(client: &Client) -> u64 {
    let Some(pid) = client.pid() else { return 0 };
    tokio::task::spawn_blocking(move || memory::held_bytes(pid)).await.unwrap_or(0)
}

/// How long the boot under way in a slot has taken, milliseconds.
fn slot_boot_ms(slot: &Slot, now: Instant) -> Option<u64> {
    let took = now.saturating_duration_since(slot.boot()?.underway.began);
    u64::try_from(took.as_millis()).ok()
}

/// There is no room for another base zygote.
struct Full;

/// Has room for the zygotes of an owner where those of others take it: gives what ends for them, which is to be dropped outside
/// of the lock.
#[expect(clippy::mutable_key_type, reason = "a store is compared by its folder, which does not change")]
fn make_room_for(
    lines: &mut HashMap<Owner, Line>,
    owner: &Owner,
    now: Instant,
    limit_bytes: u64,
    insists: bool,
) -> Result<Option<Line>, Full> {
    if lines.contains_key(owner) {
        return Ok(None);
    }
    let held =
        lines.values().flat_map(Line::nests).fold(0, |sum: u64, nest| sum.saturating_add(nest.bytes()));
    if lines.is_empty() || (lines.len() < MAX_BASES && held < limit_bytes) {
        return Ok(None);
    }
    let idle = if insists { Duration::ZERO } else { IDLE_BEFORE_OTHERS };
    let oldest = lines
        .iter()
        .filter(|(_, line)| line.rests(now, idle))
        .min_by_key(|(_, line)| line.last_used)
        .map(|(other, _)| other.clone());
    match oldest {
        Some(oldest) => Ok(lines.remove(&oldest)),
        // Those that run calls are as many as calls may run at once.
        None if insists => Ok(None),
        None => Err(Full),
    }
}

/// Ends the least recently used, if there are as many as there may be.
fn make_room(dependents: &mut HashMap<PathBuf, Dependent>) -> Option<Dependent> {
    if dependents.len() < MAX_DEPENDENTS {
        return None;
    }
    let oldest =
        dependents.iter().min_by_key(|(_, dependent)| dependent.last_used).map(|(tree, _)| tree.clone());
    oldest.and_then(|oldest| dependents.remove(&oldest))
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What `zygote.cjs` is told to load.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Load<'a> {
    cwd: &'a PathBuf,
    env: &'a BTreeMap<String, String>,
    modules: Vec<Module<'a>>,
    limit_ms: u32,
    /// The folder of Node's compile cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    compile_cache: Option<PathBuf>,
    /// Whether it is to fill that folder, and to end then.
    compiles: bool,
}

#[derive(Serialize)]
struct Module<'a> {
    specifier: &'a str,
    kind: &'a str,
}

/// What it says when it will not.
#[derive(Deserialize, Default)]
struct Refusal {
    specifier: Option<String>,
    reason: Option<String>,
    /// Packages that are not to be loaded ahead; the one above may be among them.
    #[serde(default)]
    unfit: Vec<Unfit>,
    /// It did what it was to do instead.
    #[serde(default)]
    compiled: bool,
}

/// A package that is not to be loaded ahead.
#[derive(Deserialize, Debug, PartialEq)]
struct Unfit {
    specifier: String,
    reason: Option<String>,
}

impl Refusal {
    /// All that it names.
    fn unfit(self) -> Vec<Unfit> {
        let Self { specifier, reason, mut unfit, .. } = self;
        if let Some(specifier) = specifier.filter(|named| unfit.iter().all(|other| other.specifier != *named))
        {
            unfit.push(Unfit { specifier, reason });
        }
        unfit
    }
}

/// Whether its workers have shared their addresses long enough.
fn is_old(forks: u64, age: Duration) -> bool {
    forks >= MAX_FORKS || age >= MAX_AGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(error: ZygoteError) -> Duration {
        NotUp::from(error).rest
    }

    /// A shortage at the boot of a base zygote used to cost all calls of ten minutes the fast start.
    #[test]
    fn what_may_pass_is_soon_tried_again() {
        let step = |errno| ZygoteError::Step {
            step: "socketpair",
            source: std::io::Error::from_raw_os_error(errno),
        };
        for errno in [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENOSPC] {
            assert_eq!(rest(step(errno)), RETRY_SOON);
        }
        assert_eq!(rest(step(libc::EPERM)), RETRY_AFTER);
        assert_eq!(rest(SpawnError::LauncherLost { program: "node".into() }.into()), RETRY_SOON);
        assert_eq!(rest(ZygoteError::Lost { what: "ended while it booted" }), RETRY_AFTER_END);
        assert_eq!(
            rest(ZygoteError::Refused { reason: "an old Node".into(), shown: Vec::new() }),
            RETRY_AFTER
        );
    }

    #[test]
    fn a_zygote_ends_after_its_forks_and_its_time() {
        assert!(!is_old(4_999, Duration::from_secs(30 * 60 - 1)));
        assert!(is_old(5_000, Duration::ZERO));
        assert!(is_old(0, Duration::from_mins(30)));
    }

    #[test]
    fn packages_that_read_a_variable_are_no_good_for_a_call_that_has_its_own() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let concern = |report: &str, own: &[&str]| VariablesRead::of(report).concern(&names(own));
        let read = r#"{"loaded":[],"variables":["A","B"]}"#;
        assert!(concern(read, &["B", "C"]));
        assert!(!concern(read, &["C"]));
        assert!(!concern(read, &[]));
        assert!(concern(read, &["TZ"]), "nobody sees who reads it");
        for all in [r#"{"variables":["*"]}"#, r#"{"loaded":[]}"#, "no JSON"] {
            assert!(concern(all, &["C"]), "{all}");
            assert!(!concern(all, &[]), "{all}");
        }
    }

    #[test]
    fn all_packages_that_a_refusal_names_are_unfit_each_once() {
        let unfit = |json: &str| serde_json::from_str::<Refusal>(json).unwrap().unfit();
        let named = |name: &str, reason: &str| Unfit { specifier: name.into(), reason: Some(reason.into()) };
        assert_eq!(unfit(r#"{"reason":"r"}"#), []);
        assert_eq!(unfit(r#"{"specifier":"a","kind":"require","reason":"r"}"#), [named("a", "r")]);
        let both = r#"{"specifier":"a","reason":"r","unfit":[{"specifier":"a","reason":"r"},{"specifier":"b","reason":"s"}]}"#;
        assert_eq!(unfit(both), [named("a", "r"), named("b", "s")]);
        let other = r#"{"specifier":"c","reason":"t","unfit":[{"specifier":"a","reason":"r"}]}"#;
        assert_eq!(unfit(other), [named("a", "r"), named("c", "t")]);
    }
}
