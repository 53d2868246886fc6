//! What exists once per process, whatever the number of factories, sessions and worker threads: the runtime, the queue, the
//! pool, the stores, the launcher, the counters.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::{
    runtime::{Handle, Runtime},
    sync::OnceCell,
};

use crate::{
    code_cache,
    compile_cache::Compiler,
    config::{HostFacts, Settings, Tier},
    error::{Code, Phase, SandboxError},
    executor::{Answer, Inner, QueueClass, Spent},
    group::{self, CallGroups, Groups, find::Refusal},
    histogram::{BOUNDS_MS, Histogram},
    install::{self, Bounds, InstallContext, Scope},
    isolation::{Ground, Report},
    lifecycle, limits,
    log::{CALL_TOOL, NATIVE},
    nested::NestedCalls,
    pool::{Lease, Policy, Pool, PoolKey},
    process::{self, choice::ProcessStarter},
    queue::Queue,
    retry_cell::RetryCell,
    source::{self, CodeCache, CodeKey, Prepared, Runtime as SourceRuntime, SourceError},
    start::{self, Breed, Ladder as _, Rung, RungLadder, ScriptSource, Scripts, WorkerSpec},
    store::{Store, Tree},
    supply::{self, Order, Supply, Terms},
    timeline::{TIMED, ms},
    worker::protocol::Job,
};

#[cfg(target_os = "linux")]
use crate::{
    config::Network,
    egress::Egress,
    isolation::{Asked, Declined, Places, Quota, Survey, SurveyError, others_reach},
};

/// Threads of the core's runtime. Two, because nothing on it computes for long: it waits for processes.
const RUNTIME_THREADS: usize = 2;

/// Threads for blocking work (removal of folders, writing of small files). More work than this waits.
const BLOCKING_THREADS_LIMIT: usize = 8;

/// How long a sandbox that the pool gave up waits for a successor on the same tree, so that what is kept ready for the tree need not
/// be made again.
const SUCCESSION_WAIT: Duration = Duration::from_secs(1);

/// What was kept ready is killed: it is gone within this, or something is wrong with the machine.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Folders for control groups that one process uses.
const CGROUP_DIRS_LIMIT: usize = 16;

/// How long a cleanup waits for that, where nothing runs.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Between two looks whether it is.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// What the pool lends: a tree, and the store that it lies in.
#[derive(Debug)]
pub struct Sandbox {
    /// First, so that what is kept ready for the tree ends before the tree's lease does.
    _live: Alive,
    /// The original's name of the dependency set.
    pub dependency_hash: String,
    /// The published tree.
    pub tree: Tree,
    /// Its store.
    pub store: Store,
}

/// How many sandboxes there are of each tree.
type Live = Mutex<HashMap<Arc<PathBuf>, usize>>;

/// One of them. The end of the last one ends what is kept ready for the tree.
struct Alive {
    dir: Arc<PathBuf>,
    live: Arc<Live>,
    ladder: Arc<RungLadder>,
}

impl Alive {
    fn new(dir: &Arc<PathBuf>, live: &Arc<Live>, ladder: &Arc<RungLadder>) -> Self {
        *live.lock().unwrap_or_else(PoisonError::into_inner).entry(Arc::clone(dir)).or_default() += 1;
        Self { dir: Arc::clone(dir), live: Arc::clone(live), ladder: Arc::clone(ladder) }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = live.get_mut(&self.dir).is_none_or(|count| {
            *count -= 1;
            *count == 0
        });
        if is_last {
            live.remove(&self.dir);
            // Under the lock: a sandbox that is just being made has its own made ready after this.
            self.ladder.forget(&self.dir);
        }
    }
}

impl std::fmt::Debug for Alive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alive").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The process's one instance.
pub struct Host {
    runtime: Runtime,
    queue: Queue,
    nested: NestedCalls,
    pool: Pool<Sandbox, SandboxError>,
    supply: Arc<Supply>,
    compiler: Arc<Compiler>,
    starter: Arc<ProcessStarter>,
    ladder: Arc<RungLadder>,
    /// Sandboxes of each tree.
    live: Arc<Live>,
    stores: Mutex<HashMap<PathBuf, OpenStore>>,
    counters: Counters,
    prepared: Mutex<source::Cache>,
    compiled: Mutex<CodeCache>,
    sweeping: AtomicBool,
    /// What the machine offers: where other users cannot get at what is in a store, and where they can.
    #[cfg(target_os = "linux")]
    surveys: [RetryCell<Survey, SurveyError>; 2],
    /// Who is asked about connections.
    #[cfg(target_os = "linux")]
    egress: Arc<Egress>,
    /// Why there is no launcher, as long as there is none.
    #[cfg(target_os = "linux")]
    no_launcher: Mutex<Option<String>>,
    /// The best tier that was in force so far.
    best_tier: Mutex<Option<Tier>>,
    /// Control groups, by the folder that was named for them.
    groups: Mutex<BTreeMap<Option<PathBuf>, Arc<FoundGroups>>>,
    executors: Mutex<Vec<Weak<Inner>>>,
    /// Of the executor that last found out what it is put under.
    last_report: Mutex<Option<Report>>,
}

#[derive(Debug, Clone)]
struct OpenStore {
    store: Store,
    /// The smallest limit that any executor asked for, bytes.
    max_bytes: u64,
}

/// What came of looking for control groups; the second refusal may pass.
type FoundGroups = RetryCell<Result<Arc<Groups>, Refusal>, Refusal>;

/// What one executor wants, found out at its first calls.
#[derive(Debug)]
pub struct Account {
    settings: Arc<Settings>,
    facts: Arc<HostFacts>,
    terms: OnceCell<Arc<Terms>>,
    ground: RetryCell<(Store, Ground), SandboxError>,
    scope: OnceCell<(Scope, Arc<str>)>,
    /// Set once the Node that was named has said that it is one.
    node: OnceCell<()>,
}

/// A dependency set, with its names in the store and in the pool.
#[derive(Debug, Clone)]
pub struct Wanted {
    order: Order,
    key: PoolKey,
}

impl Wanted {
    /// The original's name of the set, for logs.
    pub fn dependency_hash(&self) -> &str {
        self.key.dependency_hash()
    }
}

impl Account {
    /// Nothing is looked at yet.
    pub fn new(settings: Arc<Settings>, facts: Arc<HostFacts>) -> Self {
        Self {
            settings,
            facts,
            terms: OnceCell::new(),
            ground: RetryCell::default(),
            scope: OnceCell::new(),
            node: OnceCell::new(),
        }
    }

    /// The store, and what processes that use it are put under. What cannot be found out now is an error, and is tried again.
    pub async fn ground(&self, host: &'static Host) -> Result<&(Store, Ground), SandboxError> {
        self.ground
            .get_or_try(Box::pin(async {
                let store = host.store(&self.settings, &self.facts).await?;
                let ground = host.ground(&store, &self.settings, &self.facts).await?;
                let ground = {
                    let in_memory = ground.shield.workers_make_run_folders();
                    let found = host.groups(&self.settings, in_memory).await;
                    ground.with_groups(found.map_err(|refusal| not_known(&refusal.why))?)
                };
                if self.settings.cpu_thousandths.is_some() && !ground.limits_processors() {
                    tracing::warn!(target: NATIVE, "The option cpus is not in force: see controlGroup in isolationReport()");
                }
                host.note(&ground.report);
                *host.last_report.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(ground.report.clone());
                Ok((store, ground))
            }))
            .await
    }

    async fn terms(&self, host: &'static Host) -> Result<&Arc<Terms>, SandboxError> {
        self.terms
            .get_or_try_init(|| async {
                let (settings, facts) = (&self.settings, &self.facts);
                let (store, ground) = self.ground(host).await?;
                Ok(Arc::new(Terms {
                    ctx: InstallContext {
                        spawner: Arc::clone(&host.starter) as _,
                        store: store.clone(),
                        shield: Arc::clone(&ground.shield),
                        node: settings.node_path.clone(),
                        npm_path: settings.npm_path.clone(),
                        env: Arc::clone(&facts.env),
                        policy: settings.dependencies.clone(),
                        install_scripts: settings.install_scripts.clone(),
                        timeout: settings.install_timeout,
                        about: Arc::default(),
                        bounds: Bounds {
                            calls: settings.limits,
                            tree_bytes: settings.store_max_bytes,
                            tenant: install::tenant_digest(settings.tenant_key.as_deref()),
                        },
                    },
                    base_stores: settings.base_store_dirs.clone(),
                    max_bytes: settings.store_max_bytes,
                    ttl: settings.pool_ttl,
                }))
            })
            .await
    }

    /// What names trees beside the dependencies, and what of it, and besides, names sandboxes.
    async fn scope(&self, terms: &Terms) -> Result<&(Scope, Arc<str>), SandboxError> {
        self.scope
            .get_or_try_init(|| async {
                let known = (self.settings.node_path == self.facts.exec_path)
                    .then_some(self.facts.node_abi.as_deref())
                    .flatten();
                let scope = Scope::read(&terms.ctx, self.settings.tenant_key.as_deref(), known).await?;
                let _ = terms.ctx.about.set(scope.about());
                let pool = self.pool_scope(&scope.digest());
                Ok((scope, pool))
            })
            .await
    }

    fn pool_scope(&self, tree_scope: &str) -> Arc<str> {
        let (settings, base) = (&self.settings, store_base(&self.settings, &self.facts));
        json!([base, settings.base_store_dirs, settings.tenant_key, settings.node_path, tree_scope])
            .to_string()
            .into()
    }

    /// Makes sure that what `nodePath` names is a Node; the host's own needs no looking at.
    pub async fn check_node(&self, host: &'static Host) -> Result<(), SandboxError> {
        if self.settings.node_path == self.facts.exec_path {
            return Ok(());
        }
        let asked = self.node.get_or_try_init(|| async {
            let terms = self.terms(host).await?;
            install::abi(&terms.ctx, &self.settings.node_given).await.map(drop)
        });
        asked.await.copied()
    }

    /// Names a dependency set. Without dependencies neither npm nor its settings are looked for.
    pub async fn wanted(
        &self,
        host: &'static Host,
        dependencies: &BTreeMap<String, String>,
    ) -> Result<Wanted, SandboxError> {
        let terms = self.terms(host).await?;
        let (key, pool_scope) = if dependencies.is_empty() {
            (Scope::key_of_nothing(self.settings.tenant_key.as_deref()), self.pool_scope(""))
        } else {
            let (scope, pool_scope) = self.scope(terms).await?;
            (scope.key(dependencies), Arc::clone(pool_scope))
        };
        let order = Order { terms: Arc::clone(terms), dependencies: Arc::new(dependencies.clone()), key };
        Ok(Wanted { order, key: PoolKey::new(dependencies, pool_scope) })
    }
}

static HOST: OnceLock<Host> = OnceLock::new();

/// Whether the process takes no more calls.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// The process takes no more calls.
pub fn close() {
    CLOSED.store(true, Ordering::SeqCst);
}

/// It takes calls again.
pub fn open() {
    CLOSED.store(false, Ordering::SeqCst);
    if let Some(host) = existing() {
        host.ladder.close(false);
    }
}

/// Whether it takes none.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst)
}

/// The process's instance, if there is one.
pub fn existing() -> Option<&'static Host> {
    HOST.get()
}

/// The process's instance, made at first use.
///
/// # Errors
///
/// When the system gives no threads; tried again by the next caller.
pub fn get(settings: &Settings) -> Result<&'static Host, SandboxError> {
    /// Makes it: one at a time.
    static MAKING: Mutex<()> = Mutex::new(());
    let host = if let Some(host) = HOST.get() {
        host
    } else {
        let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = HOST.get() {
            host
        } else {
            let made = Host::new()?;
            HOST.get_or_init(|| made)
        }
    };
    host.keep_swept(settings.cleanup_interval);
    Ok(host)
}

impl Host {
    fn new() -> Result<Self, SandboxError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .max_blocking_threads(BLOCKING_THREADS_LIMIT)
            .thread_name("sandbox-core")
            .enable_all()
            .build()
            .map_err(|error| {
                let text = format!("could not start the threads of the sandbox executor: {error}");
                SandboxError::new(Code::StartFailed, Phase::Start, text)
            })?;
        let starter = Arc::new(ProcessStarter::new());
        let library = process::choice::zygote_library();
        let ladder = Arc::new(RungLadder::new(Arc::clone(&starter) as _, library));
        let supply = Arc::new(Supply::default());
        // A superseded tree goes on for those who use it; the next call gets the newer one.
        let is_usable = |sandbox: &Sandbox| !sandbox.tree.is_superseded() && sandbox.tree.is_alive();
        let (handle, background) = (runtime.handle().clone(), Arc::clone(&supply));
        let pool = Pool::new(is_usable, move |sandbox: Sandbox| give_back(sandbox, &background, &handle));
        Ok(Self {
            runtime,
            queue: Queue::new(),
            nested: NestedCalls::default(),
            pool,
            supply,
            compiler: Arc::default(),
            live: Arc::default(),
            ladder,
            starter,
            stores: Mutex::default(),
            counters: Counters::default(),
            prepared: Mutex::default(),
            compiled: Mutex::default(),
            sweeping: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            surveys: Default::default(),
            #[cfg(target_os = "linux")]
            egress: Arc::default(),
            #[cfg(target_os = "linux")]
            no_launcher: Mutex::default(),
            best_tier: Mutex::default(),
            groups: Mutex::default(),
            executors: Mutex::default(),
            last_report: Mutex::default(),
        })
    }

    /// Looks for expired sandboxes from now on, at the interval of whoever came first.
    fn keep_swept(&'static self, interval: Duration) {
        if self.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                self.ladder.sweep(Instant::now());
                let count = self.pool.sweep(Instant::now());
                if count > 0 {
                    tracing::debug!(target: NATIVE, cleanedCount = count, "Cleaned up expired sandboxes");
                }
                for OpenStore { store, max_bytes } in self.open_stores() {
                    let _ = self.runtime.spawn_blocking(move || supply::make_room(&store, max_bytes)).await;
                }
            }
        });
    }

    /// Runs everything of the core.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Classifies `text` and makes it runnable, or remembers what came of it.
    pub fn prepare(&self, text: &str, runtime: SourceRuntime) -> Result<Arc<Prepared>, SourceError> {
        let cache = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = cache().get(text, runtime) {
            return Ok(prepared);
        }
        // Not under the lock: other texts need not wait for this one.
        let prepared = Arc::new(source::prepare(text, runtime)?);
        cache().insert(text, runtime, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// What V8 compiled of texts before.
    pub fn compiled(&self) -> MutexGuard<'_, CodeCache> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has V8's code cache of `job`'s code made in the background, by a worker that `spec` describes and that does nothing else.
    pub fn compile_text(&'static self, key: CodeKey, spec: WorkerSpec, job: Job) {
        let work = async move {
            let made = code_cache::make(&self.ladder, spec, job).await;
            self.compiled().made(&key, made);
        };
        self.supply.spawn_on(work, self.runtime.handle());
    }

    /// Calls that host functions make.
    pub fn nested(&self) -> &NestedCalls {
        &self.nested
    }

    /// Permits.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Sandboxes.
    pub fn pool(&self) -> &Pool<Sandbox, SandboxError> {
        &self.pool
    }

    /// All executors that are in use, and some that were.
    pub fn executors(&self) -> MutexGuard<'_, Vec<Weak<Inner>>> {
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions come and go, each with an executor.
        executors.retain(|executor| executor.strong_count() > 0);
        executors
    }

    /// Totals since the process began.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All classes.
    pub fn queue_stats(&self) -> Vec<QueueClass> {
        let classes = self.queue.stats().into_iter();
        classes
            .map(|class| QueueClass {
                vcpus: class.vcpus.to_string(),
                available_permits: class.available_permits,
                queue_length: u32::try_from(class.queue_length).unwrap_or(u32::MAX),
            })
            .collect()
    }

    /// The sandbox of a dependency set; the first who asks gets its tree from the store, or has it installed.
    pub async fn lease(
        &'static self,
        wanted: &Wanted,
        settings: &Settings,
        tool_id: &str,
    ) -> Result<Lease<Sandbox>, SandboxError> {
        let policy = Policy { ttl: settings.pool_ttl, max_use_count: settings.max_use_count };
        let make = self.sandbox(wanted, tool_id.to_owned());
        let lease = self.pool.lease(&wanted.key, policy, move || make).await?;
        self.supply.used(&wanted.order, &lease.tree, SystemTime::now());
        if lease.reused() {
            tracing::debug!(
                target: NATIVE,
                poolKey = wanted.dependency_hash(),
                useCount = lease.use_count(),
                sandboxDir = %lease.tree.dir().display(),
                lastUsed = %iso_time(SystemTime::now()),
                "Reusing cached sandbox"
            );
        }
        Ok(lease)
    }

    /// The work of getting one set's tree; runs as the pool's task, whoever waits for it.
    fn sandbox(
        &self,
        wanted: &Wanted,
        tool_id: String,
    ) -> impl Future<Output = Result<Sandbox, SandboxError>> + Send + 'static {
        let (supply, order) = (Arc::clone(&self.supply), wanted.order.clone());
        let (live, ladder) = (Arc::clone(&self.live), Arc::clone(&self.ladder));
        let hash = wanted.dependency_hash().to_owned();
        async move {
            let store = order.terms.ctx.store.clone();
            tracing::debug!(
                target: NATIVE,
                toolId = &*tool_id,
                dependencyHash = hash,
                sandboxDir = %store.tree_dir(&order.key).display(),
                json_dependencies = %json!(order.dependencies),
                "Creating new sandbox"
            );
            let began = Instant::now();
            let tree = CALL_TOOL.scope(tool_id, supply.tree(&order)).await?;
            lifecycle::tell(
                || json!({ "event": "created", "provider": "native", "dependencyHash": hash, "durationMs": ms(began.elapsed()) }),
            );
            tracing::debug!(target: NATIVE, poolKey = hash, sandboxDir = %tree.dir().display(), "Added sandbox to pool");
            Ok(Sandbox { _live: Alive::new(tree.dir(), &live, &ladder), dependency_hash: hash, tree, store })
        }
    }

    /// The store that these settings name, opened at first use.
    pub async fn store(&'static self, settings: &Settings, facts: &HostFacts) -> Result<Store, SandboxError> {
        let (base, max_bytes) = (store_base(settings, facts), settings.store_max_bytes);
        let opened = self.runtime.spawn_blocking(move || self.open_store(&base, max_bytes)).await;
        opened.map_err(|_| {
            SandboxError::new(Code::StartFailed, Phase::Install, "opening the store failed internally")
        })?
    }

    /// Opens a store once, even when asked by many at the same time.
    fn open_store(&self, base: &Path, max_bytes: u64) -> Result<Store, SandboxError> {
        let mut stores = self.stores();
        if let Some(open) = stores.get_mut(base) {
            open.max_bytes = open.max_bytes.min(max_bytes);
            return Ok(open.store.clone());
        }
        let store = Store::open(base)
            .map_err(|error| SandboxError::new(Code::InstallFailed, Phase::Install, error.to_string()))?;
        let sweeping = store.clone();
        self.runtime.spawn_blocking(move || sweeping.sweep());
        let _in_runtime = self.runtime.enter();
        self.supply.keep_house_soon(store.clone(), max_bytes);
        stores.insert(base.to_path_buf(), OpenStore { store: store.clone(), max_bytes });
        Ok(store)
    }

    fn stores(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, OpenStore>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_stores(&self) -> Vec<OpenStore> {
        self.stores().values().cloned().collect()
    }

    /// Where workers come from.
    pub fn ladder(&self) -> &RungLadder {
        &self.ladder
    }

    /// Lets zygotes hold so many MiB, or a share of the machine's memory.
    pub async fn limit_zygotes(&self, memory_mb: Option<u32>) {
        let bytes = if let Some(mb) = memory_mb {
            u64::from(mb) * 1024 * 1024
        } else {
            let found = self.runtime.spawn_blocking(start::machine_bytes).await;
            // What cannot be read is taken for little.
            start::default_limit_bytes(found.ok().and_then(Result::ok).flatten())
        };
        self.ladder.limit_memory(bytes);
    }

    /// Has the compile caches of a tree in use made, later, where they are missing. `spec.packages` are all of the tree's.
    pub fn compile_soon(&self, spec: &WorkerSpec, tree: &Tree) {
        self.compiler.soon(&self.supply, &self.ladder, spec, tree);
    }

    /// Now.
    pub async fn compile(&self, spec: &WorkerSpec, tree: &Tree) {
        self.compiler.make(&self.ladder, spec, tree).await;
    }

    /// The scripts that workers run, on disk in `store`, and beside them what calls start as `node`.
    pub fn scripts(&self, store: &Store, node: &Path) -> ScriptSource {
        let store = store.clone();
        #[cfg(unix)]
        let node = node.to_owned();
        #[cfg(not(unix))]
        let _ = node;
        ScriptSource::new(move || {
            let (worker, zygote) = store.scripts().map_err(std::io::Error::other)?;
            #[cfg(unix)]
            store
                .link_node(&node.canonicalize().unwrap_or_else(|_| node.clone()))
                .map_err(std::io::Error::other)?;
            Ok(Scripts { worker, zygote })
        })
    }

    #[cfg(target_os = "linux")]
    async fn ground(
        &'static self,
        store: &Store,
        settings: &Settings,
        facts: &HostFacts,
    ) -> Result<Ground, SandboxError> {
        let surveyed = self.survey(store).await;
        let mut no_launcher = None;
        let survey = match &surveyed {
            Ok(survey) => Ok(*survey),
            Err(SurveyError::NoLauncher(reason)) => {
                no_launcher = Some(reason.clone());
                // Somebody has accepted by name what is left without it.
                let accepted = settings.isolation_required == Some(Tier::Base);
                if accepted { Err(reason) } else { return Err(self.lost(reason)) }
            }
            Err(SurveyError::Unknown(reason)) => return Err(not_known(reason)),
        };
        let without;
        let survey = match survey {
            Ok(survey) => survey,
            Err(reason) => {
                self.starter.accept_without_launcher(reason);
                without = Survey::without_launcher(reason.clone());
                &without
            }
        };
        *self.no_launcher.lock().unwrap_or_else(PoisonError::into_inner) = no_launcher;
        let (at, base_stores) = (store.clone(), settings.base_store_dirs.clone());
        let (node, env) = (settings.node_path.clone(), settings.boot_env(&facts.env));
        let found = tokio::task::spawn_blocking(move || {
            // Of no use where it cannot be had; whoever boots a zygote says why.
            let library = match process::companions::library(&process::choice::zygote_library()) {
                Ok(process::companions::Library::File(path)) => Some(path),
                _ => None,
            };
            let places = Places::find(&at, &base_stores, &node, library, &env)?;
            let no_reach = places.no_reach(&at);
            Ok::<_, std::io::Error>((places, no_reach, start::machine_bytes()?))
        });
        let found = found.await.map_err(|error| not_known(&error))?;
        let (places, no_reach, memory) = found.map_err(|error| not_known(&error))?;
        let quota = Quota::new(&settings.limits, settings.run_folders, memory);
        let tasks = settings.limits.tasks();
        let rules = Arc::clone(&settings.network_rules);
        let asked = Asked { egress: Arc::clone(&self.egress), rules };
        Ok(Ground::new(survey, settings.network, places, no_reach, tasks, quota, Some(asked)))
    }

    /// What the machine offers to processes that use this store.
    #[cfg(target_os = "linux")]
    async fn survey(&'static self, store: &Store) -> Result<&'static Survey, SurveyError> {
        let place = store.host_dir().join("trial");
        let reached = tokio::task::spawn_blocking(move || others_reach(&place)).await;
        let reached = reached.map_err(|error| SurveyError::Unknown(error.to_string()))?;
        self.surveys[usize::from(reached)].get_or_try(Box::pin(Survey::take(&*self.starter, store))).await
    }

    /// Less than the kernel offers, for a reason that is not the kernel's.
    #[cfg(target_os = "linux")]
    fn lost(&self, reason: &str) -> SandboxError {
        *self.no_launcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        let text = format!(
            "The isolation that this machine offers cannot be set up: {reason}. Nothing was run. Install the package whole, with \
             launcher.* and zygote.* beside its .node file (a bundler or a copied folder may have left them out); or accept to run \
             functions without isolation: isolation {{ require: \"base\" }}, or AGENTS_FUNCTION_TOOL_SANDBOX_ISOLATION=base"
        );
        SandboxError::new(Code::IsolationUnavailable, Phase::Validate, text)
    }

    /// Says once which tier is in force, and each time that it is less than it was.
    fn note(&self, report: &Report) {
        let mut best = self.best_tier.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *best;
        *best = Some(before.map_or(report.tier, |before| before.max(report.tier)));
        match before {
            // Without a launcher it is by somebody's choice, which was said.
            None if report.tier == Tier::Base && self.without_launcher().is_none() => tracing::warn!(
                target: NATIVE,
                tier = report.tier.name(),
                missing = report.missing_names(Tier::Confined),
                "Functions run with the isolation tier base: this machine does not offer more"
            ),
            None => tracing::debug!(target: NATIVE, tier = report.tier.name(), "Isolation is in force"),
            Some(before) => {
                if let Some(missing) = report.fall_from(before) {
                    tracing::warn!(
                        target: NATIVE,
                        tier = report.tier.name(),
                        before = before.name(),
                        missing,
                        "Functions run with less isolation than before in this process"
                    );
                }
            }
        }
    }

    /// Control groups for calls with these settings, whose run folders may be `in_memory`; looked for once for each folder that is named.
    ///
    /// # Errors
    ///
    /// What kept it from being found out whether there are any.
    async fn groups(&'static self, settings: &Settings, in_memory: bool) -> Result<group::Found, Refusal> {
        let found = {
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            if groups.len() >= CGROUP_DIRS_LIMIT && !groups.contains_key(&settings.cgroup_dir) {
                return Ok(Err(Refusal::new(format!(
                    "more than {CGROUP_DIRS_LIMIT} folders are named by cgroupDir"
                ))));
            }
            Arc::clone(groups.entry(settings.cgroup_dir.clone()).or_default())
        };
        let look = async {
            match self.look_for_groups(settings.cgroup_dir.clone()).await {
                Err(refusal) if refusal.passing => Err(refusal),
                found => Ok(found),
            }
        };
        let found = found.get_or_try(look).await?.clone();
        Ok(found.map(|groups| {
            CallGroups::new(groups, settings.limits.of_group(settings.cpu_thousandths, in_memory))
        }))
    }

    #[cfg(target_os = "linux")]
    async fn look_for_groups(&'static self, named: Option<PathBuf>) -> Result<Arc<Groups>, Refusal> {
        group::detect(&*self.starter, named).await
    }

    #[cfg(not(target_os = "linux"))]
    async fn look_for_groups(&'static self, _: Option<PathBuf>) -> Result<Arc<Groups>, Refusal> {
        Err(Refusal::new("needs Linux"))
    }

    fn all_groups(&self) -> Vec<Arc<Groups>> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.values().filter_map(|found| found.get()?.as_ref().ok()).cloned().collect()
    }

    /// Removes control groups that nobody uses.
    async fn rest_groups(&self) {
        let groups = self.all_groups();
        let _ = self.runtime.spawn_blocking(move || groups.iter().for_each(|groups| groups.rest())).await;
    }

    /// Whether any control groups limit processors.
    fn limits_processors(&self) -> bool {
        self.all_groups().iter().any(|groups| groups.controllers().cpu)
    }

    #[cfg(not(target_os = "linux"))]
    async fn ground(&'static self, _: &Store, _: &Settings, _: &HostFacts) -> Result<Ground, SandboxError> {
        Ok(Ground::base())
    }

    /// What is in force: for the executor that last served a call, else for `account`.
    pub async fn isolation(&'static self, account: &Account) -> Result<Value, SandboxError> {
        let last = self.last_report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let report = match last {
            Some(report) => report,
            None => match account.ground(self).await {
                Ok((_, ground)) => ground.report.clone(),
                Err(error) => self.report_without_launcher().ok_or(error)?,
            },
        };
        let in_groups = report.has("controlGroup");
        let cpus = in_groups && self.limits_processors();
        let mut report = json!(report);
        report["limits"] = limits::report(in_groups, cpus);
        Ok(report)
    }

    /// What is left where calls are rejected because there is no launcher.
    #[cfg(target_os = "linux")]
    fn report_without_launcher(&self) -> Option<Report> {
        let reason = self.no_launcher.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let declined = Declined { why: reason.clone(), enable: "" };
        let survey = Survey::without_launcher(reason);
        Some(Ground::new(&survey, Network::Open, Places::default(), None, 0, Err(declined), None).report)
    }

    #[cfg(not(target_os = "linux"))]
    fn report_without_launcher(&self) -> Option<Report> {
        None
    }

    /// Why processes are started without the launcher, or are not started for want of it.
    fn without_launcher(&self) -> Option<String> {
        #[cfg(target_os = "linux")]
        if let Some(reason) = &*self.no_launcher.lock().unwrap_or_else(PoisonError::into_inner) {
            return Some(reason.clone());
        }
        self.starter.refusal().map(str::to_owned)
    }

    /// Gives idle sandboxes back, breaks off what runs in the background, and ends an idle launcher. Installed trees stay in the
    /// store.
    pub async fn drain(&self) {
        self.pool.drain();
        self.supply.stop().await;
        // Nothing in the background has any more made ready.
        self.ladder.drain();
        let stores = self.open_stores();
        let flushed = self.runtime.spawn_blocking(move || stores.iter().for_each(|open| open.store.flush()));
        // What was ready ends by and by, and holds the launcher until it is reaped. What runs for others holds it, too.
        let end = Instant::now() + END_LIMIT;
        while !self.starter.shutdown().await && self.queue.totals().running == 0 && Instant::now() < end {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        let _ = flushed.await;
        self.rest_groups().await;
    }

    /// As [`Self::drain`], and waits until the launcher, and so everything that it started, is gone.
    pub async fn drain_all(&self) {
        self.ladder.close(is_closed());
        self.drain().await;
        let end = Instant::now() + DRAIN_LIMIT;
        while !self.starter.shutdown().await && Instant::now() < end {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        self.rest_groups().await;
    }

    /// Everything countable.
    /// `breed`, once there was a call, and `settings` are those of the executor that asks.
    pub fn metrics(&self, settings: &Settings, facts: &HostFacts, breed: Option<&Arc<Breed>>) -> Value {
        let queue: serde_json::Map<_, _> = self
            .queue_stats()
            .into_iter()
            .map(|class| {
                let stats =
                    json!({ "availablePermits": class.available_permits, "queueLength": class.queue_length });
                (format!("vcpu_{}", class.vcpus), stats)
            })
            .collect();
        let (best, not_used) = self.ladder.in_use(breed);
        let (calls, pool, ready) = (self.queue.totals(), self.pool.counts(), self.ladder.readiness());
        // A forced rung is the one that serves, or none does.
        let rung = settings.start.unwrap_or(best);
        json!({
            "queue": queue,
            "calls": { "running": calls.running, "waiting": calls.waiting },
            "pool": {
                "sandboxes": pool.ready,
                "retired": pool.retired,
                "leases": pool.leases,
                "installing": pool.installing,
                "waiting": pool.waiting,
            },
            "zygotes": ready.zygotes,
            "zygoteMemory": ready.memory,
            "notPreloaded": self.ladder.not_preloaded(),
            "standby": ready.standby,
            "store": self.store_metrics(settings, facts),
            "sources": self.source_metrics(),
            "rung": rung,
            "rungsNotUsed": not_used.iter().map(|(rung, reason)| json!({ "rung": rung, "reason": reason })).collect::<Vec<_>>(),
            "withoutLauncher": self.without_launcher(),
            "isolation": *self.last_report.lock().unwrap_or_else(PoisonError::into_inner),
            "counters": self.counters.to_json(),
            "connectionsRefused": self.connections_refused(),
            "durations": self.counters.durations(),
            "settings": settings.origins,
        })
    }

    #[cfg(target_os = "linux")]
    fn connections_refused(&self) -> u64 {
        self.egress.refusals()
    }

    #[cfg(not(target_os = "linux"))]
    fn connections_refused(&self) -> u64 {
        0
    }

    fn source_metrics(&self) -> Value {
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = self.compiled();
        let ((kept, bytes), counts) = (compiled.held(), compiled.counts());
        json!({
            "kept": prepared.len(),
            "reused": prepared.hits(),
            "codeCaches": {
                "kept": kept,
                "bytes": bytes,
                "made": counts.made,
                "accepted": counts.accepted,
                "refused": counts.refused,
            },
        })
    }

    /// The executor's own store, and what this process did in all of its stores.
    fn store_metrics(&self, settings: &Settings, facts: &HostFacts) -> Value {
        let open = self.stores().get(&store_base(settings, facts)).cloned();
        let usage = open.as_ref().map(|open| open.store.usage()).unwrap_or_default();
        let mut metrics = json!({
            "root": open.map(|open| open.store.root().to_owned()),
            "trees": usage.trees,
            "bytes": usage.bytes,
            "evictions": usage.evictions,
            "compileCaches": self.compiler.made(),
        });
        for (name, count) in self.supply.counts() {
            metrics[name] = count;
        }
        metrics
    }
}

/// A sandbox that the pool lends no more: its tree stays in the store, for the next one, until the store needs the room.
fn give_back(sandbox: Sandbox, background: &Supply, runtime: &Handle) {
    lifecycle::tell(
        || json!({ "event": "removed", "provider": "native", "dependencyHash": sandbox.dependency_hash }),
    );
    tracing::debug!(target: NATIVE, sandboxDir = %sandbox.tree.dir().display(), "Cleaned up sandbox");
    let wait = async move {
        tokio::time::sleep(SUCCESSION_WAIT).await;
        drop(sandbox);
    };
    background.spawn_on(wait, runtime);
}

/// What isolation there is cannot be told at the moment, and nothing runs without it.
fn not_known(reason: &dyn std::fmt::Display) -> SandboxError {
    let text = format!(
        "It could not be found out which isolation this machine offers: {reason}. Nothing was run; the next call tries again"
    );
    SandboxError::new(Code::IsolationUnavailable, Phase::Validate, text)
}

/// The folder that an executor's store lies in.
pub fn store_base(settings: &Settings, facts: &HostFacts) -> PathBuf {
    settings.store_dir.clone().unwrap_or_else(|| facts.tmpdir.clone())
}

fn iso_time(time: SystemTime) -> String {
    // ISO 8601 in UTC, civil date from days by Howard Hinnant's algorithm (chrono-Compatible Low-Level Date Algorithms).
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Totals since the process began.
#[derive(Debug, Default)]
pub struct Counters {
    succeeded: AtomicU64,
    workers: [AtomicU64; 3],
    failed: Mutex<BTreeMap<String, u64>>,
    cpu_us: AtomicU64,
    output_bytes: AtomicU64,
    answered: Histogram,
    steps: [Histogram; TIMED.len()],
}

impl Counters {
    /// Counts an answer.
    pub fn answered(&self, answer: &Answer) {
        match answer {
            Ok(_) => {
                self.succeeded.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                *failed.entry(error.code.to_string()).or_default() += 1;
            }
        }
    }

    /// Counts what a call took that is over.
    pub fn spent(&self, spent: &Spent) {
        self.cpu_us.fetch_add(spent.cpu_us, Ordering::Relaxed);
        self.output_bytes.fetch_add(spent.output_bytes, Ordering::Relaxed);
        self.answered.add(spent.answered);
        for (step, took) in &spent.steps {
            if let Some(at) = TIMED.iter().position(|timed| timed == step) {
                self.steps[at].add(*took);
            }
        }
    }

    fn durations(&self) -> Value {
        let mut durations = json!({ "boundsMs": BOUNDS_MS, "call": self.answered.to_json() });
        for (step, histogram) in TIMED.iter().zip(&self.steps) {
            durations[step.name()] = histogram.to_json();
        }
        durations
    }

    /// Counts a worker.
    pub fn started(&self, rung: Rung) {
        self.workers[rung as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn to_json(&self) -> Value {
        let workers = |rung: Rung| self.workers[rung as usize].load(Ordering::Relaxed);
        json!({
            "succeeded": self.succeeded.load(Ordering::Relaxed),
            "failed": *self.failed.lock().unwrap_or_else(PoisonError::into_inner),
            "cpuMs": ms(Duration::from_micros(self.cpu_us.load(Ordering::Relaxed))),
            "outputBytes": self.output_bytes.load(Ordering::Relaxed),
            "workers": { "zygote": workers(Rung::Zygote), "standby": workers(Rung::Standby), "spawn": workers(Rung::Spawn) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_iso_8601() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_772_323_199, "2026-02-28T23:59:59.000Z"),
        ] {
            assert_eq!(iso_time(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
