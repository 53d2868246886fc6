//! The highest rung: workers forked from Node processes that have booted, and loaded a tree's packages, already.
//!
//! There is one *base* zygote per [`Breed`] and tenant, as its children share their addresses; it has loaded what many tools need. For a tree whose tools name packages, a
//! *dependent* zygote is forked from it, which loads these packages and serves that tree only. Zygotes boot in the
//! background; who comes meanwhile is told so, or waits if he wants to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

use super::{
    Breed, NotPreloaded, Rung, ScriptSource, StartError, Worker, WorkerSpec, ZygoteCounts, ZygoteMemory,
    cached::{self, Kind},
    memory, node_modules,
    resolver::Resolver,
    sizing::{self, Cut, Held},
    spawn,
    stock::{Forge, Stock},
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

/// The most base zygotes that differ by their tenant only; beyond it the least recently used ends, or the newest tenant does without.
const MAX_TENANTS: usize = 16;

/// A tenant's zygotes end for another tenant's if no call came to them for this long. With more tenants at a time than there is room
/// for, the others' calls are booted, instead of each call booting a zygote.
const IDLE_BEFORE_OTHERS: Duration = Duration::from_secs(10);

/// How long a tree has no zygote after its last one ended for want of memory.
const REST_AFTER: Duration = Duration::from_mins(1);

/// How often is looked at what zygotes hold, while calls come.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);

/// What a ready worker holds, as long as none was looked at, bytes.
const WORKER_BYTES: u64 = 4 * 1024 * 1024;

/// How many packages, or sets of them, are told of that are not loaded ahead.
const NOT_PRELOADED_LIMIT: usize = 64;

/// How often a tree's zygote is tried with one package fewer.
const MAX_TRIES: usize = 16;

/// How long one package may take to load, milliseconds.
const LOAD_LIMIT_MS: u32 = 5_000;

/// What a zygote calls a library that it has inherited as descriptor 4; `zygote.cjs` closes that once it is loaded.
const LIBRARY_IN_MEMORY: &str = "/proc/self/fd/4";

/// Why there is no forked worker.
pub(super) enum NoZygote {
    /// One boots.
    NotYet,
    /// The zygotes of other tenants, which are in use, take all the room.
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

#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    Booting(watch::Receiver<()>),
    Up(Arc<Nest>),
    Down {
        reason: String,
        until: Instant,
    },
}

/// A zygote that serves, and the workers it forked ahead.
struct Nest {
    client: Arc<Client>,
    stock: Arc<Stock>,
    born: Instant,
    last_used: Mutex<Instant>,
    /// What it has loaded ahead, dependents only.
    packages: BTreeSet<String>,
    makings: Arc<Makings>,
    /// What it held when it had loaded everything, bytes. Afterwards it only forks.
    zygote_bytes: u64,
    /// What a worker holds that is ready, bytes, as last looked at.
    worker_bytes: AtomicU64,
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
        Ok(Worker { rung: Rung::Zygote, started, run: Some(run) })
    }
}

impl NoZygote {
    /// As callers are told that insist on one.
    pub(super) fn into_error(self) -> StartError {
        let reason = match self {
            Self::NotYet => "it is still booting".to_owned(),
            Self::Crowded => "zygotes of other tenants take all the room (zygoteMemoryMb)".to_owned(),
            Self::Refused(reason) => reason,
        };
        StartError { rung: Rung::Zygote, reason }
    }
}

/// What a look at a slot gives.
enum Found {
    Up(Arc<Nest>),
    Booting(watch::Receiver<()>),
    Crowded,
    Down(String),
}

impl Line {
    /// Those that serve.
    fn nests(&self) -> impl Iterator<Item = &Arc<Nest>> {
        let slots =
            std::iter::once(&self.base).chain(self.dependents.values().map(|dependent| &dependent.slot));
        slots.filter_map(|slot| match slot {
            Slot::Up(nest) => Some(nest),
            _ => None,
        })
    }

    /// Whether nobody has used any of it for so long.
    fn rests(&self, now: Instant, idle: Duration) -> bool {
        let used = self.last_used.map_or(Duration::MAX, |used| now.saturating_duration_since(used));
        used >= idle
            && !matches!(self.base, Slot::Booting(_))
            && self.nests().all(|nest| nest.stock.running() == 0)
    }
}

impl Nest {
    fn new(makings: Makings, packages: BTreeSet<String>, zygote_bytes: u64) -> Arc<Self> {
        let makings = Arc::new(makings);
        let stock = Stock::new(Arc::new(Forks(Arc::clone(&makings))));
        stock.prime();
        let now = Instant::now();
        let client = Arc::clone(&makings.client);
        Arc::new(Self {
            client,
            stock,
            born: now,
            last_used: Mutex::new(now),
            packages,
            makings,
            zygote_bytes,
            worker_bytes: AtomicU64::new(WORKER_BYTES),
        })
    }

    /// Whether it can serve: its folder may have been wiped with the temp folder, and its workers may write to no other.
    fn is_fit(&self) -> bool {
        self.client.is_open() && self.makings.runs.is_current()
    }

    fn is_worn(&self, now: Instant) -> bool {
        is_old(self.client.forks(), now.saturating_duration_since(self.born))
            || self.makings.resolver != Resolver::now()
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
            own: Weak::clone(own),
        })
    }

    /// A worker of the tree's zygote, or of the base while there is none. With `wait`, zygotes that boot are waited for.
    pub(super) async fn start(&self, spec: &WorkerSpec, wait: bool) -> Result<Worker, NoZygote> {
        let base = match self.settled(wait, || self.base(spec, wait)).await {
            Err(NoZygote::NotYet) if spec.has_dependencies => {
                self.load_after_boot(spec.clone());
                return Err(NoZygote::NotYet);
            }
            found => found?,
        };
        base.touch();
        self.review_if_due();
        let worker = if spec.has_dependencies {
            match self.settled(wait, || self.dependent(spec, &base)).await {
                Ok(nest) => {
                    nest.touch();
                    match nest.stock.take().await {
                        // As many of its calls as it has room for are there, or it has just ended.
                        Err(_) => base.makings.fork(spec.readable_tree()).await,
                        taken => taken,
                    }
                }
                // The base can do it too, but not ahead of need: the tree has to be known before the worker lives. It then
                // loads the packages itself.
                Err(_) => base.makings.fork(spec.readable_tree()).await,
            }
        } else {
            base.stock.take().await
        };
        worker.map_err(|error| NoZygote::Refused(error.reason))
    }

    /// Has the tree's zygote made as soon as the base is there, so that the next call finds it.
    fn load_after_boot(&self, spec: WorkerSpec) {
        let zygotes = Weak::clone(&self.own);
        tokio::spawn(async move {
            let Some(zygotes) = zygotes.upgrade() else { return };
            if let Ok(base) = zygotes.settled(true, || zygotes.base(&spec, true)).await {
                zygotes.dependent(&spec, &base);
            }
        });
    }

    /// What a look gives, after the boot if that is to be waited for.
    async fn settled(&self, wait: bool, look: impl Fn() -> Found) -> Result<Arc<Nest>, NoZygote> {
        loop {
            match look() {
                Found::Up(nest) => return Ok(nest),
                Found::Down(reason) => return Err(NoZygote::Refused(reason)),
                Found::Crowded => return Err(NoZygote::Crowded),
                Found::Booting(_) if !wait => return Err(NoZygote::NotYet),
                // Ends with an error when the boot is over.
                Found::Booting(mut over) => while over.changed().await.is_ok() {},
            }
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
        let found = look(
            &mut line.base,
            |nest| nest.is_worn(now),
            |over| {
                let (zygotes, scripts) = (Weak::clone(&self.own), spec.scripts.clone());
                tokio::spawn(async move {
                    let Some(zygotes) = zygotes.upgrade() else { return };
                    let booted = zygotes.boot_base(&owner.breed, &scripts).await;
                    zygotes.set(&owner, None, booted);
                    drop(over);
                });
            },
        );
        drop(lines);
        drop(ended); // ends zygotes: outside of the lock
        found
    }

    fn dependent(&self, spec: &WorkerSpec, base: &Arc<Nest>) -> Found {
        let now = Instant::now();
        let mut lines = self.lines();
        let line = lines.entry(Owner::of(spec)).or_default();
        let tree = spec.tree.as_path();
        if !line.dependents.contains_key(tree) {
            make_room(&mut line.dependents);
        }
        let dependent = line.dependents.entry(tree.to_path_buf()).or_insert_with(|| Dependent {
            packages: BTreeSet::new(),
            unfit: BTreeMap::new(),
            slot: Slot::Empty,
            last_used: now,
        });
        dependent.last_used = now;
        dependent.packages.extend(spec.packages.iter().cloned());
        let wanted: BTreeSet<String> =
            dependent.packages.iter().filter(|name| !dependent.unfit.contains_key(*name)).cloned().collect();
        let outdated = |nest: &Nest| nest.is_worn(now) || !wanted.is_subset(&nest.packages);
        look(&mut dependent.slot, outdated, |over| {
            let (zygotes, spec, base) = (Weak::clone(&self.own), spec.clone(), Arc::clone(base));
            let wanted = wanted.clone();
            tokio::spawn(async move {
                let Some(zygotes) = zygotes.upgrade() else { return };
                let booted = zygotes.boot_dependent(&spec, &base, wanted).await;
                zygotes.set(&Owner::of(&spec), Some(spec.tree.as_path()), booted);
                drop(over);
            });
        })
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

    async fn boot_base(&self, breed: &Arc<Breed>, scripts: &ScriptSource) -> Result<Arc<Nest>, NotUp> {
        let scripts = scripts.scripts().await?;
        // Before it boots, so that a file that comes meanwhile is noticed.
        let resolver = Resolver::now();
        let runs = breed.store.0.runs().map_err(|error| error.to_string())?;
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
        let makings = Makings { client, breed: Arc::clone(breed), runs, user: None, tree: None, resolver };
        Ok(Nest::new(makings, BTreeSet::new(), held))
    }

    /// Tries with every package, and with one fewer as long as one turns out to be unfit.
    async fn boot_dependent(
        &self,
        spec: &WorkerSpec,
        base: &Nest,
        mut packages: BTreeSet<String>,
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
                    let (client, breed) = (Arc::new(client), Arc::clone(&spec.breed));
                    let tree = Some(spec.tree.to_path_buf());
                    let resolver = base.makings.resolver;
                    let makings = Makings { client, breed, runs, user, tree, resolver };
                    return Ok(Nest::new(makings, packages, held));
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
            let all = match &dependent.slot {
                Slot::Down { reason, .. } => Some(NotPreloaded {
                    packages: dependent.packages.iter().cloned().collect(),
                    reason: reason.clone(),
                }),
                _ => None,
            };
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
        let up = |slot: &Slot| match slot {
            Slot::Up(nest) => Some(Arc::clone(nest)),
            _ => None,
        };
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
        let is_same = matches!(&dependent.slot, Slot::Up(found) if Arc::ptr_eq(found, nest));
        if !is_same || nest.stock.running() > 0 {
            return;
        }
        let reason = format!(
            "it was not used for longest when zygotes held more than {} MiB (zygoteMemoryMb)",
            limit / (1024 * 1024)
        );
        let down = Slot::Down { reason, until: Instant::now() + REST_AFTER };
        let old = std::mem::replace(&mut dependent.slot, down);
        drop(lines);
        self.ended.fetch_add(1, Ordering::Relaxed);
        drop(old); // `nest` is the last one that holds it
    }

    /// Has the packages of a tree compiled by a process such as the tree's zygote is one; where it worked, see [`RunFolder::left`].
    /// Nothing else ever runs in it. `None` where
    /// none of them can be loaded ahead.
    pub(super) async fn compile(&self, spec: &WorkerSpec) -> Result<Option<RunFolder>, String> {
        let base =
            self.settled(true, || self.base(spec, true)).await.map_err(|none| none.into_error().reason)?;
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

    fn set(&self, owner: &Owner, tree: Option<&Path>, booted: Result<Arc<Nest>, NotUp>) {
        let slot = match booted {
            Ok(nest) => Slot::Up(nest),
            Err(NotUp { reason, rest }) => Slot::Down { reason, until: Instant::now() + rest },
        };
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(owner) else { return };
        let place = match tree {
            None => Some(&mut line.base),
            Some(tree) => line.dependents.get_mut(tree).map(|dependent| &mut dependent.slot),
        };
        if let Some(place) = place {
            let old = std::mem::replace(place, slot);
            drop(lines);
            drop(old); // may end a zygote: outside of the lock
            self.review_soon();
        }
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
            let idle = match &line.base {
                Slot::Up(nest) => nest.is_idle(now),
                Slot::Empty | Slot::Down { .. } => true,
                Slot::Booting(_) => false,
            };
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
                match slot {
                    Slot::Up(nest) => {
                        counts.ready += nest.stock.ready();
                        *if is_dependent { &mut counts.dependents } else { &mut counts.base } += 1;
                    }
                    Slot::Booting(_) => counts.booting += 1,
                    Slot::Down { .. } => counts.refused += 1,
                    Slot::Empty => {}
                }
            }
        }
        counts
    }

    #[expect(clippy::mutable_key_type, reason = "a store is compared by its folder, which does not change")]
    pub(super) fn drain(&self) {
        let lines = std::mem::take(&mut *self.lines());
        drop(lines);
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

/// Looks at a slot and boots what is missing. A nest that is `outdated` serves on while its successor boots.
fn look(slot: &mut Slot, outdated: impl Fn(&Nest) -> bool, boot: impl FnOnce(watch::Sender<()>)) -> Found {
    match slot {
        Slot::Up(nest) if nest.is_fit() && !outdated(nest) => return Found::Up(Arc::clone(nest)),
        Slot::Booting(over) => return Found::Booting(over.clone()),
        Slot::Down { reason, until } if *until > Instant::now() => return Found::Down(reason.clone()),
        _ => {}
    }
    let (sender, over) = watch::channel(());
    boot(sender);
    match std::mem::replace(slot, Slot::Booting(over.clone())) {
        // Whoever holds it may go on using it.
        Slot::Up(nest) if nest.is_fit() => Found::Up(nest),
        _ => Found::Booting(over),
    }
}

/// There is no room for the zygote of another tenant.
struct Full;

/// Has room for the zygotes of an owner where those of other tenants take it: gives what ends for them, which is to be dropped outside
/// of the lock. What differs by more than the tenant is not counted.
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
    let of_others = || lines.iter().filter(|(other, _)| other.breed == owner.breed);
    let tenants = of_others().count();
    let held =
        lines.values().flat_map(Line::nests).fold(0, |sum: u64, nest| sum.saturating_add(nest.bytes()));
    if tenants == 0 || (tenants < MAX_TENANTS && held < limit_bytes) {
        return Ok(None);
    }
    let idle = if insists { Duration::ZERO } else { IDLE_BEFORE_OTHERS };
    let oldest = of_others()
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
fn make_room(dependents: &mut HashMap<PathBuf, Dependent>) {
    if dependents.len() < MAX_DEPENDENTS {
        return;
    }
    let oldest =
        dependents.iter().min_by_key(|(_, dependent)| dependent.last_used).map(|(tree, _)| tree.clone());
    if let Some(oldest) = oldest {
        dependents.remove(&oldest);
    }
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
