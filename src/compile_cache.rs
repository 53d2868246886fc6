//! Has compile caches made of the trees that are used, each once, in the background: by a process like those that will take them, which
//! has loaded the packages of that tree, and nothing of anybody's, when it writes, and is gone before anything is kept of it.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{Semaphore, oneshot},
    task, time,
};

use crate::{
    error::{Code, SandboxError},
    limits::CallLimits,
    log::NATIVE,
    source,
    start::{
        Breed, Ladder as _, Rung, RungLadder, WorkerSpec,
        cached::{self, Kind},
    },
    store::{
        RunFolder, Store, StoreError, Tree,
        compile_cache::{CacheName, LEFT_FOLDER, Made},
    },
    supervise::{self, Aside, RunLimits},
    supply::Supply,
    worker::{COMPILE_FUNCTION, protocol::Job},
};

/// A first call's worker, and what follows it at once, need the processor more.
const DELAY: Duration = Duration::from_secs(2);
/// How long all packages of a tree may take to load.
const LIMIT: Duration = Duration::from_mins(1);
/// And one of them, milliseconds.
const PACKAGE_LIMIT_MS: u32 = 5_000;
/// How often it is tried with one package fewer.
const MAX_TRIES: usize = 8;
/// What the function may answer, bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;
/// How long another process's turn is waited for, and how often that is looked at.
const TURN_POLL: Duration = Duration::from_secs(1);
const MAX_TURN_POLLS: usize = 60;
/// Trees that are remembered as looked at; beyond it all are looked at again.
const MAX_CONSIDERED: usize = 1_000;

/// Node and heap limit: what tells the caches of one tree apart within a process.
type Flags = (PathBuf, u32);

/// See the module. One per process.
#[derive(Debug)]
pub struct Compiler {
    /// One at a time.
    turn: Semaphore,
    considered: Mutex<HashMap<PathBuf, Vec<Flags>>>,
    made: AtomicU64,
}

/// What the function says.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    compiled: bool,
    unfit: Option<String>,
    reason: Option<String>,
}

/// Why nothing could be made this time.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Process(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Default for Compiler {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), considered: Mutex::default(), made: AtomicU64::new(0) }
    }
}

impl Compiler {
    /// Caches that this process had made.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// To be called at each use of a tree: has what is missing made in the background. Next to nothing when it was called before.
    pub fn soon(self: &Arc<Self>, supply: &Supply, ladder: &Arc<RungLadder>, spec: &WorkerSpec, tree: &Tree) {
        if tree.is_of_base_store() || !self.is_first(&spec.breed, &spec.tree) {
            return;
        }
        let (compiler, ladder, spec, tree) =
            (Arc::clone(self), Arc::clone(ladder), spec.clone(), tree.clone());
        let work = async move {
            time::sleep(DELAY).await;
            compiler.make(&ladder, &spec, &tree).await;
        };
        supply.spawn_on(work, &tokio::runtime::Handle::current());
    }

    fn is_first(&self, breed: &Breed, tree: &PathBuf) -> bool {
        let mut considered = self.considered.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of = |(node, memory_mb): &Flags| *node == breed.node && *memory_mb == breed.memory_mb;
        if considered.get(tree).is_some_and(|flags| flags.iter().any(is_of)) {
            return false;
        }
        if considered.len() >= MAX_CONSIDERED {
            considered.clear();
        }
        considered.entry(tree.clone()).or_default().push((breed.node.clone(), breed.memory_mb));
        true
    }

    /// Has what is missing made now. `spec.packages` are all that the tree was made for. What fails is logged: nobody depends on it.
    pub async fn make(&self, ladder: &RungLadder, spec: &WorkerSpec, tree: &Tree) {
        if tree.is_of_base_store() {
            return;
        }
        let Ok(_turn) = self.turn.acquire().await else { return };
        for kind in kinds(spec.forced) {
            let Some(name) = cached::name(&spec.breed, kind).filter(|name| !tree.has_compile_cache(name))
            else {
                continue;
            };
            let made = self.make_one(ladder, spec, tree, (kind, &name)).await;
            let dir = tree.dir().display();
            match made {
                Ok(bytes) => {
                    tracing::debug!(target: NATIVE, sandboxDir = %dir, kind = ?kind, bytes, "Packages compiled ahead");
                }
                Err(error) => {
                    tracing::debug!(target: NATIVE, sandboxDir = %dir, kind = ?kind, error = %error, "Packages could not be compiled ahead");
                }
            }
        }
    }

    async fn make_one(
        &self,
        ladder: &RungLadder,
        spec: &WorkerSpec,
        tree: &Tree,
        (kind, name): (Kind, &CacheName),
    ) -> Result<u64, Failure> {
        let _lock = lock(&spec.breed.store.0).await?;
        if tree.has_compile_cache(name) {
            return Ok(0);
        }
        let left = match kind {
            Kind::Booted => booted(ladder, spec).await?,
            Kind::Forked => forked(ladder, spec).await?,
        };
        let (tree, name) = (tree.clone(), name.clone());
        let kept = task::spawn_blocking(move || match &left {
            Some(run) => {
                let dir = run.left().map_err(StoreError::io("open what was compiled in", run.dir()))?;
                tree.keep_compile_cache(&name, Some(&Made { dir: &dir, user: run.user() }))
            }
            None => tree.keep_compile_cache(&name, None),
        });
        let bytes = kept.await.map_err(|error| Failure::Process(error.to_string()))??;
        self.made.fetch_add(u64::from(bytes > 0), Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Those that calls may get.
fn kinds(rung: Option<Rung>) -> impl Iterator<Item = Kind> {
    let boots = rung != Some(Rung::Zygote);
    let forks = cfg!(target_os = "linux") && matches!(rung, None | Some(Rung::Zygote));
    boots.then_some(Kind::Booted).into_iter().chain(forks.then_some(Kind::Forked))
}

/// The turn among the processes that share a store.
async fn lock(store: &Store) -> Result<crate::store::PathLock, Failure> {
    for _ in 0..MAX_TURN_POLLS {
        let store = store.clone();
        let lock = task::spawn_blocking(move || store.try_compile_lock()).await;
        if let Some(lock) = lock.map_err(|error| Failure::Process(error.to_string()))?? {
            return Ok(lock);
        }
        time::sleep(TURN_POLL).await;
    }
    Err(Failure::Process("other processes are at it".to_owned()))
}

/// Where a process left something; see [`RunFolder::left`].
type Left = Option<RunFolder>;

#[cfg(target_os = "linux")]
async fn forked(ladder: &RungLadder, spec: &WorkerSpec) -> Result<Left, Failure> {
    ladder.compile(spec).await.map_err(Failure::Process)
}

#[cfg(not(target_os = "linux"))]
async fn forked(_: &RungLadder, _: &WorkerSpec) -> Result<Left, Failure> {
    Ok(None)
}

async fn booted(ladder: &RungLadder, spec: &WorkerSpec) -> Result<Left, Failure> {
    let mut packages = spec.packages.clone();
    // What it leaves in memory would go with it.
    let breed = Arc::new(Breed { shield: Arc::new(spec.breed.shield.on_disk()), ..(*spec.breed).clone() });
    let spec = WorkerSpec { forced: Some(Rung::Spawn), breed, ..spec.clone() };
    for _ in 0..MAX_TRIES {
        let mut worker =
            ladder.start(spec.clone()).await.map_err(|error| Failure::Process(error.to_string()))?;
        let run = worker.run.take().ok_or_else(|| Failure::Process("it has no folder".to_owned()))?;
        let dir = run.tmpdir().join(LEFT_FOLDER);
        let job = job(&spec, &run, &dir, &packages);
        let limits = RunLimits {
            timeout: LIMIT,
            max_output_bytes: MAX_ANSWER_BYTES,
            linger: Duration::ZERO,
            call: CallLimits { memory_mb: spec.breed.memory_mb, ..CallLimits::DEFAULT },
        };
        let (_canceller, cancel) = supervise::cancellation();
        let (settle, mut settled) = oneshot::channel();
        // Returns when nothing of it lives any more.
        supervise::supervise(worker, job, limits, cancel, settle, None, Aside::nothing()).await;
        match answer(settled.try_recv())? {
            Answer { compiled: true, .. } => return Ok(Some(run)),
            Answer { unfit: Some(unfit), .. } if packages.remove(&unfit) && !packages.is_empty() => {}
            Answer { reason, .. } => {
                tracing::debug!(target: NATIVE, reason, "Packages are not compiled ahead");
                return Ok(None);
            }
        }
    }
    Ok(None)
}

/// What came of it; a package that ends the process, or never lets it end, leaves nothing.
fn answer(
    settled: Result<Result<Option<String>, SandboxError>, oneshot::error::TryRecvError>,
) -> Result<Answer, Failure> {
    let nothing = |reason: String| Answer { compiled: false, unfit: None, reason: Some(reason) };
    match settled {
        Ok(Ok(json)) => {
            let answer = serde_json::from_str(&json.unwrap_or_default());
            Ok(answer.unwrap_or_else(|_| nothing("the packages changed what is told of them".to_owned())))
        }
        Ok(Err(error)) if error.code == Code::StartFailed => Err(Failure::Process(error.message)),
        Ok(Err(error)) => Ok(nothing(error.message)),
        Err(_) => Err(Failure::Process("it was broken off".to_owned())),
    }
}

fn job(spec: &WorkerSpec, run: &RunFolder, dir: &std::path::Path, packages: &BTreeSet<String>) -> Job {
    let (cwd, tmpdir) = (run.cwd(), run.tmpdir());
    let mut env = spec.breed.load_env.clone();
    for (name, folder) in [("TMPDIR", &tmpdir), ("TMP", &tmpdir), ("TEMP", &tmpdir), ("HOME", &cwd)] {
        env.insert(name.to_owned(), folder.to_string_lossy().into_owned());
    }
    Job {
        kind: source::Kind::Script,
        filename: cwd.join("compile.cjs"),
        tool_id: "compile".to_owned(),
        tmpdir,
        tree: spec.tree.to_path_buf(),
        env,
        cwd,
        line_offset: 0,
        column_offset: 0,
        source_map: None,
        max_result_bytes: MAX_ANSWER_BYTES,
        compile_cache: Some(dir.to_owned()),
        compiles_only: false,
        talk: None,
        files: 0,
        collect: None,
        code_cache: None,
        code: format!("return (\n{}\n);", COMPILE_FUNCTION.trim_end().trim_end_matches(';')),
        args: Some(json!({ "packages": packages, "limitMs": PACKAGE_LIMIT_MS }).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_taken_for_what_it_is() {
        let said = |json: &str| answer(Ok(Ok(Some(json.to_owned())))).unwrap();
        assert!(said(r#"{"compiled":true}"#).compiled);
        assert_eq!(said(r#"{"unfit":"a"}"#).unfit.unwrap(), "a");
        for odd in ["[]", "", "{\"compiled\":1}"] {
            assert!(said(odd).reason.is_some(), "{odd}");
        }
    }

    #[test]
    fn who_never_boots_needs_no_cache_for_it() {
        let kinds = |forced| kinds(forced).collect::<Vec<_>>();
        assert_eq!(kinds(Some(Rung::Spawn)), [Kind::Booted]);
        assert_eq!(kinds(Some(Rung::Standby)), [Kind::Booted]);
        if cfg!(target_os = "linux") {
            assert_eq!(kinds(None), [Kind::Booted, Kind::Forked]);
            assert_eq!(kinds(Some(Rung::Zygote)), [Kind::Forked]);
        }
    }
}
