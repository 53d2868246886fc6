//! The ladder: ways to get a worker, best first. Callers ask for a worker and are told on which rung it came.

pub mod cached;
mod ladder;
mod memory;
mod resolver;
mod sizing;
mod spawn;
mod standby;
mod stock;
#[cfg(any(target_os = "linux", test))]
mod succession;
#[cfg(target_os = "linux")]
mod zygotes;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{Hash, Hasher},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

use crate::{
    isolation::Shield,
    process::{BoxFuture, Limits, Started},
    store::{RunFolder, Store},
};

pub use ladder::RungLadder;
pub use memory::{default_limit_bytes, machine_bytes};

/// A way to get a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// Forked from a booted Node (Linux).
    Zygote,
    /// Booted ahead of need, used once.
    Standby,
    /// Booted for the call.
    Spawn,
}

/// What workers have in common that can be made from the same beginnings, whatever call they will serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Breed {
    /// The Node executable.
    pub node: PathBuf,
    /// `--max-old-space-size`, MiB.
    pub memory_mb: u32,
    /// What the kernel lets a worker use.
    pub limits: Limits,
    /// Variables that Node reads while it boots (time zone, locale, certificates); the tool's own come with the job.
    pub boot_env: BTreeMap<String, String>,
    /// Variables that every call has, for packages that read them while they load.
    pub load_env: BTreeMap<String, String>,
    /// What they are put under.
    pub shield: Arc<Shield>,
    /// Where their run folders are.
    pub store: HomeStore,
}

/// A store, compared by its folder of this host.
#[derive(Debug, Clone)]
pub struct HomeStore(pub Store);

impl PartialEq for HomeStore {
    fn eq(&self, other: &Self) -> bool {
        self.0.host_dir() == other.0.host_dir()
    }
}

impl Eq for HomeStore {}

impl Hash for HomeStore {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.host_dir().hash(state);
    }
}

/// The scripts on disk that a worker or zygote runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scripts {
    /// [`crate::worker::WORKER_SCRIPT`].
    pub worker: PathBuf,
    /// [`crate::worker::ZYGOTE_SCRIPT`].
    pub zygote: PathBuf,
}

/// Gives the scripts, written anew where they are missing: temp folders get wiped under long-running hosts. May block.
#[derive(Clone)]
pub struct ScriptSource(Arc<dyn Fn() -> io::Result<Scripts> + Send + Sync>);

impl ScriptSource {
    /// From a function that may block.
    pub fn new(source: impl Fn() -> io::Result<Scripts> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Asks it, off the async threads.
    async fn scripts(&self) -> Result<Scripts, String> {
        let source = Arc::clone(&self.0);
        let told = |error: &dyn fmt::Display| format!("the worker's scripts cannot be put on disk: {error}");
        match tokio::task::spawn_blocking(move || source()).await {
            Ok(Ok(scripts)) => Ok(scripts),
            Ok(Err(error)) => Err(told(&error)),
            Err(error) => Err(told(&error)),
        }
    }
}

impl fmt::Debug for ScriptSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptSource")
    }
}

/// What a worker is started for. Nothing in here comes from the call's source, arguments or environment, but names.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// Its kind.
    pub breed: Arc<Breed>,
    /// What it runs.
    pub scripts: ScriptSource,
    /// The leased tree: holds `node_modules` (may be empty).
    pub tree: Arc<PathBuf>,
    /// Whether the call has dependencies; without, the tree is of no interest to it.
    pub has_dependencies: bool,
    /// Packages of the tree that the function names: worth loading ahead.
    pub packages: BTreeSet<String>,
    /// Whose call it is: zygotes of one tenant serve no other.
    pub tenant: Option<Arc<str>>,
    /// The tool, for what is learnt of it.
    pub tool_id: Arc<str>,
    /// The worker loads packages itself, after it is known whose call it serves: what a zygote has opened for them was opened under wider
    /// rules than the call's, and its workers share a root, which has no `/tmp` and no terminals for one call alone.
    pub loads_itself: bool,
    /// Variables that are not for this call what they are in [`Breed::load_env`]. A package that read one while a zygote loaded it
    /// has what it was there.
    pub own_variables: BTreeSet<String>,
    /// Only this rung will do.
    pub forced: Option<Rung>,
}

/// A started worker, waiting for its job on its channel.
pub struct Worker {
    /// Where it came from.
    pub rung: Rung,
    /// Process, pipes and channel.
    pub started: Started,
    /// Its folder, made with it: what it is confined to has to be known before it lives. Taken by whoever serves the call.
    pub run: Option<RunFolder>,
    /// Whether other workers have its root, too.
    pub shares_root: bool,
}

impl WorkerSpec {
    /// The tree that the call may read.
    fn readable_tree(&self) -> Option<&Path> {
        self.has_dependencies.then_some(self.tree.as_path())
    }
}

/// The way from a run folder to the packages of a tree.
fn node_modules(tree: &Path) -> PathBuf {
    tree.join("node_modules")
}

/// Why no rung gave a worker: the last rung's reason.
#[derive(Debug, thiserror::Error)]
#[error("could not start a worker ({rung:?}): {reason}")]
pub struct StartError {
    /// The rung tried last.
    pub rung: Rung,
    /// Its reason.
    pub reason: String,
}

impl StartError {
    /// Of a stock that ended while somebody waited for it.
    fn ended() -> Self {
        Self { rung: Rung::Standby, reason: "it was ended meanwhile".to_owned() }
    }
}

/// How a worker's run went, as far as it tells something about the rung it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The process ended as processes do.
    Sound,
    /// It died of a signal of its own making, or before the function was called.
    Crashed,
    /// It failed for want of what only a worker with a root to itself has.
    Unrooted {
        /// Whether it had none.
        shares_root: bool,
    },
}

/// What is kept ready for calls to come, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Processes that workers are forked from.
    pub zygotes: ZygoteCounts,
    /// And what they hold.
    pub memory: ZygoteMemory,
    /// Workers booted ahead of need.
    pub standby: StockCounts,
}

/// Zygotes of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ZygoteCounts {
    /// Up, without a tree's packages.
    pub base: usize,
    /// Up, with the packages of one tree.
    pub dependents: usize,
    /// Booting.
    pub booting: usize,
    /// Refused; tried again later.
    pub refused: usize,
    /// Workers forked ahead that no call has taken.
    pub ready: usize,
}

/// Memory of zygotes and of the workers that they have ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ZygoteMemory {
    /// What they hold, bytes, as last looked at.
    pub bytes: u64,
    /// What they may hold; none before the first call.
    pub limit_bytes: Option<u64>,
    /// Zygotes that ended because all together held more.
    pub ended: u64,
}

/// Packages that are not loaded ahead of the calls that use them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotPreloaded {
    /// Their names.
    pub packages: Vec<String>,
    /// Why not.
    pub reason: String,
}

/// Stocks of booted workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StockCounts {
    /// Stocks: one for each tree and kind of worker.
    pub stocks: usize,
    /// Workers that no call has taken.
    pub ready: usize,
}

/// Gives workers. Dropping the future leaves no process behind.
pub trait Ladder: Send + Sync {
    /// One worker, on the best rung that works.
    fn start(&self, spec: WorkerSpec) -> BoxFuture<'_, Result<Worker, StartError>>;
    /// Learns how a run on a rung went.
    fn learn(&self, rung: Rung, tree: &Path, tool_id: &Arc<str>, verdict: Verdict);
    /// Ends what is kept ready for a tree.
    fn forget(&self, tree: &Path);
    /// The rung that the next worker of this breed will probably come from, with the reasons why no higher one is used: the best there may be, while none is known.
    fn in_use(&self, breed: Option<&Arc<Breed>>) -> (Rung, Vec<(Rung, String)>);
    /// What is kept ready.
    fn readiness(&self) -> Readiness;
    /// Ends everything that is kept ready, and what boots.
    fn drain(&self);
    /// From now on no zygote boots; or again, where not `closed`.
    fn close(&self, closed: bool);
}
