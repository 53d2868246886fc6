//! What exists once per process, whatever the number of factories, sessions and worker threads: the runtime, the queue, the
//! pool, the stores, the launcher, the counters.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::task::TaskTracker;

use crate::{
    config::{HostFacts, Settings},
    error::{Code, Phase, SandboxError},
    executor::{Answer, QueueClass},
    install::{self, InstallContext},
    log::NATIVE,
    pool::{Lease, Policy, Pool, PoolKey},
    process::{self, choice::ProcessStarter},
    queue::Queue,
    start::{Ladder as _, Rung, RungLadder, ScriptSource, Scripts},
    store::{Store, Tree},
};

/// Threads of the core's runtime. Two, because nothing on it computes for long: it waits for processes.
const RUNTIME_THREADS: usize = 2;

/// Threads for blocking work (removal of folders, writing of small files). More work than this waits.
const BLOCKING_THREADS_LIMIT: usize = 8;

/// What the pool lends: a tree, and the store that it lies in.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// The published tree.
    pub tree: Tree,
    /// Its store.
    pub store: Store,
}

/// The process's one instance.
pub struct Host {
    runtime: Runtime,
    queue: Queue,
    pool: Pool<Sandbox, SandboxError>,
    /// Removals of sandboxes under way.
    removals: TaskTracker,
    starter: Arc<ProcessStarter>,
    ladder: Arc<RungLadder>,
    stores: Mutex<HashMap<PathBuf, Store>>,
    counters: Counters,
    sweeping: AtomicBool,
}

/// The process's instance, made at first use.
///
/// # Errors
///
/// When the system gives no threads; every later call gets the same error.
pub fn get(settings: &Settings) -> Result<&'static Host, SandboxError> {
    static HOST: OnceLock<Result<Host, SandboxError>> = OnceLock::new();
    let host = HOST.get_or_init(Host::new).as_ref().map_err(Clone::clone)?;
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
        let (handle, removals) = (runtime.handle().clone(), TaskTracker::new());
        let tracker = removals.clone();
        let starter = Arc::new(ProcessStarter::new());
        let library = process::choice::zygote_library();
        let ladder = Arc::new(RungLadder::new(Arc::clone(&starter) as _, library));
        let kept_ready = Arc::clone(&ladder);
        let pool = Pool::new(
            |sandbox: &Sandbox| sandbox.tree.is_alive(),
            move |sandbox: Sandbox| {
                kept_ready.forget(sandbox.tree.dir());
                tracker.spawn_blocking_on(move || remove(&sandbox), &handle);
            },
        );
        Ok(Self {
            runtime,
            queue: Queue::new(),
            pool,
            removals,
            ladder,
            starter,
            stores: Mutex::default(),
            counters: Counters::default(),
            sweeping: AtomicBool::new(false),
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
            }
        });
    }

    /// Runs everything of the core.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Permits.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Sandboxes.
    pub fn pool(&self) -> &Pool<Sandbox, SandboxError> {
        &self.pool
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

    /// What names a sandbox: the dependencies, and everything else that makes it another one.
    pub fn key(
        &self,
        settings: &Settings,
        facts: &HostFacts,
        dependencies: &BTreeMap<String, String>,
    ) -> PoolKey {
        let base = store_base(settings, facts);
        let scope = json!([
            base,
            settings.tenant_key,
            settings.node_path,
            settings.npm_path,
            format!("{:?}", settings.install_scripts),
            format!("{:?}", settings.dependencies),
        ]);
        PoolKey::new(dependencies, scope.to_string())
    }

    /// The sandbox of a dependency set, installed by the first who asks.
    pub async fn lease(
        &'static self,
        settings: &Arc<Settings>,
        facts: &Arc<HostFacts>,
        tool_id: &str,
        dependencies: &BTreeMap<String, String>,
        key: &PoolKey,
    ) -> Result<Lease<Sandbox>, SandboxError> {
        let store = self.store(settings, facts).await?;
        let hash = key.dependency_hash().to_owned();
        let policy = Policy { ttl: settings.pool_ttl, max_use_count: settings.max_use_count };
        let install = self.install(settings, facts, store, tool_id.to_owned(), dependencies.clone(), hash);
        let lease = self.pool.lease(key, policy, move || install).await?;
        if lease.reused() {
            tracing::debug!(
                target: NATIVE,
                poolKey = key.dependency_hash(),
                useCount = lease.use_count(),
                sandboxDir = %lease.tree.dir().display(),
                lastUsed = %iso_time(SystemTime::now()),
                "Reusing cached sandbox"
            );
        }
        Ok(lease)
    }

    /// The work of installing one set; runs as the pool's task, whoever waits for it.
    fn install(
        &self,
        settings: &Arc<Settings>,
        facts: &Arc<HostFacts>,
        store: Store,
        tool_id: String,
        dependencies: BTreeMap<String, String>,
        hash: String,
    ) -> impl Future<Output = Result<Sandbox, SandboxError>> + Send + 'static {
        let context = InstallContext {
            spawner: Arc::clone(&self.starter) as _,
            store: store.clone(),
            node: settings.node_path.clone(),
            npm_path: settings.npm_path.clone(),
            env: Arc::clone(&facts.env),
            policy: settings.dependencies.clone(),
            install_scripts: settings.install_scripts.clone(),
            timeout: settings.install_timeout,
        };
        async move {
            tracing::debug!(
                target: NATIVE,
                toolId = tool_id,
                dependencyHash = hash,
                sandboxDir = %store.host_dir().display(),
                json_dependencies = %json!(dependencies),
                "Creating new sandbox"
            );
            let tree = install::install(&context, &dependencies).await?;
            tracing::debug!(target: NATIVE, poolKey = hash, sandboxDir = %tree.dir().display(), "Added sandbox to pool");
            Ok(Sandbox { tree, store })
        }
    }

    async fn store(&'static self, settings: &Settings, facts: &HostFacts) -> Result<Store, SandboxError> {
        let base = store_base(settings, facts);
        let open = self.stores().get(&base).cloned();
        if let Some(store) = open {
            return Ok(store);
        }
        let opened = self.runtime.spawn_blocking(move || self.open_store(&base)).await;
        opened.map_err(|_| {
            SandboxError::new(Code::StartFailed, Phase::Install, "opening the store failed internally")
        })?
    }

    /// Opens a store once, even when asked by many at the same time.
    fn open_store(&self, base: &Path) -> Result<Store, SandboxError> {
        let mut stores = self.stores();
        if let Some(store) = stores.get(base) {
            return Ok(store.clone());
        }
        let store = Store::open(base)
            .map_err(|error| SandboxError::new(Code::InstallFailed, Phase::Install, error.to_string()))?;
        let sweeping = store.clone();
        self.runtime.spawn_blocking(move || sweeping.sweep());
        stores.insert(base.to_path_buf(), store.clone());
        Ok(store)
    }

    fn stores(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, Store>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where workers come from.
    pub fn ladder(&self) -> &RungLadder {
        &self.ladder
    }

    /// The scripts that workers run, on disk in `store`.
    pub fn scripts(&self, store: &Store) -> ScriptSource {
        let store = store.clone();
        ScriptSource::new(move || {
            let (worker, zygote) = store.scripts().map_err(std::io::Error::other)?;
            Ok(Scripts { worker, zygote })
        })
    }

    /// Removes idle sandboxes and ends an idle launcher.
    pub async fn drain(&self) {
        self.pool.drain();
        self.ladder.drain();
        self.removals.close();
        self.removals.wait().await;
        self.removals.reopen();
        let stores: Vec<_> = self.stores().values().cloned().collect();
        let flushed = self.runtime.spawn_blocking(move || stores.iter().for_each(Store::flush));
        self.starter.shutdown().await;
        let _ = flushed.await;
    }

    /// Everything countable.
    pub fn metrics(&self, settings: &Settings) -> Value {
        let queue: serde_json::Map<_, _> = self
            .queue_stats()
            .into_iter()
            .map(|class| {
                let stats =
                    json!({ "availablePermits": class.available_permits, "queueLength": class.queue_length });
                (format!("vcpu_{}", class.vcpus), stats)
            })
            .collect();
        let (rung, not_used) = self.ladder.in_use();
        json!({
            "queue": queue,
            "pool": { "sandboxes": self.pool.len() },
            "rung": rung,
            "rungsNotUsed": not_used.iter().map(|(rung, reason)| json!({ "rung": rung, "reason": reason })).collect::<Vec<_>>(),
            "withoutLauncher": self.starter.refusal(),
            "isolation": isolation_report(),
            "counters": self.counters.to_json(),
            "settings": settings.origins,
        })
    }
}

fn store_base(settings: &Settings, facts: &HostFacts) -> PathBuf {
    settings.store_dir.clone().unwrap_or_else(|| facts.tmpdir.clone())
}

fn remove(sandbox: &Sandbox) {
    let dir = sandbox.tree.dir().display().to_string();
    match sandbox.store.remove(&sandbox.tree) {
        Ok(()) => tracing::debug!(target: NATIVE, sandboxDir = dir, "Cleaned up sandbox"),
        Err(error) => {
            tracing::warn!(target: NATIVE, sandboxDir = dir, error = %error, "Failed to clean up sandbox");
        }
    }
}

/// What is in force: the base tier, and what it does not hide.
pub fn isolation_report() -> Value {
    let layer =
        |name: &str, in_force: bool, note: &str| json!({ "layer": name, "inForce": in_force, "note": note });
    json!({
        "tier": "base",
        "layers": [
            layer("processGroup", true, "every call has a process, a session and a process group of its own"),
            layer("descriptors", true, "no descriptor of the host is inherited"),
            layer("environment", true, "only listed variables reach a tool"),
            layer("runFolder", true, "working and temp folder are private to the call and removed after it"),
            layer("treeKill", cfg!(target_os = "linux"), "every process that a call started is ended with it; best effort elsewhere than on Linux"),
            layer("landlock", false, "not in this version: a tool can read what the host's user can read, /proc included"),
            layer("seccomp", false, "not in this version"),
            layer("namespaces", false, "not in this version"),
            layer("network", false, "not in this version: the network is open, cloud metadata addresses included"),
        ],
    })
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

    /// Counts a worker.
    pub fn started(&self, rung: Rung) {
        self.workers[rung as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn to_json(&self) -> Value {
        let workers = |rung: Rung| self.workers[rung as usize].load(Ordering::Relaxed);
        json!({
            "succeeded": self.succeeded.load(Ordering::Relaxed),
            "failed": *self.failed.lock().unwrap_or_else(PoisonError::into_inner),
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
