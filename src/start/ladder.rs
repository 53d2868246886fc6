//! Which rung a call gets: the best that works for its tool, said when it is not the best there is.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

#[cfg(target_os = "linux")]
use super::zygotes::{NoZygote, Zygotes};
use super::{
    Breed, Ladder, NotPreloaded, Readiness, Rung, StartError, Verdict, Worker, WorkerSpec, spawn,
    standby::Standby,
};
#[cfg(target_os = "linux")]
use crate::store::RunFolder;
use crate::{
    log::NATIVE,
    process::{BoxFuture, Spawner},
};

/// Tools that a verdict is kept on; beyond it, all begin anew.
const MAX_SUSPECTS: usize = 1024;

/// Breeds whose refusals are kept; beyond it, all begin anew.
const MAX_REFUSED_BREEDS: usize = 64;

/// The ladder of a process.
pub struct RungLadder {
    spawner: Arc<dyn Spawner>,
    #[cfg(target_os = "linux")]
    zygotes: Arc<Zygotes>,
    standby: Standby,
    suspects: Mutex<HashMap<Suspect, Suspicion>>,
    /// Why the last start on a rung did not come about, by breed: what one Node cannot do another can.
    refusals: Mutex<HashMap<Arc<Breed>, HashMap<Rung, String>>>,
}

/// A tool with the tree it runs on.
type Suspect = (PathBuf, Arc<str>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    /// It crashed in a forked process; a booted one will tell whose fault that is.
    Open,
    /// It does not crash in a booted one: it gets no forked one again.
    Demoted,
    /// It crashes anyway, or fails for want of a root to itself with one.
    Cleared,
    /// It failed for want of what a worker of a tree's zygote does not have: it gets one of the base's.
    Unrooted,
}

impl RungLadder {
    /// `library` is the zygote's native library. Nothing is started yet.
    pub fn new(spawner: Arc<dyn Spawner>, library: PathBuf) -> Self {
        #[cfg(not(target_os = "linux"))]
        drop(library);
        Self {
            #[cfg(target_os = "linux")]
            zygotes: Zygotes::new(Arc::clone(&spawner), library),
            standby: Standby::new(Arc::clone(&spawner)),
            spawner,
            suspects: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Ends what nobody has used for long. To be called now and then.
    pub fn sweep(&self, now: Instant) {
        #[cfg(target_os = "linux")]
        self.zygotes.sweep(now);
        #[cfg(not(target_os = "linux"))]
        let _ = now;
    }

    /// Lets zygotes, and the workers that they have ready, hold so many bytes; the smallest number counts that was ever given.
    pub fn limit_memory(&self, bytes: u64) {
        #[cfg(target_os = "linux")]
        self.zygotes.limit_memory(bytes);
        #[cfg(not(target_os = "linux"))]
        let _ = bytes;
    }

    /// Packages that calls load themselves, although zygotes could have, as far as there is room to tell.
    pub fn not_preloaded(&self) -> Vec<NotPreloaded> {
        #[cfg(target_os = "linux")]
        return self.zygotes.not_preloaded();
        #[cfg(not(target_os = "linux"))]
        Vec::new()
    }

    async fn climb(&self, mut spec: WorkerSpec) -> Result<Worker, StartError> {
        spec.loads_itself |= self.suspicion(&spec) == Some(Suspicion::Unrooted);
        match spec.forced {
            Some(Rung::Spawn) => self.spawn(&spec).await,
            Some(Rung::Standby) => self.standby.take(&spec).await,
            Some(Rung::Zygote) => self.forked(&spec, true).await.map_err(NoZygote::into_error),
            None => self.best(&spec).await,
        }
    }

    async fn best(&self, spec: &WorkerSpec) -> Result<Worker, StartError> {
        if !self.is_suspect(spec) {
            match self.forked(spec, false).await {
                Ok(worker) => {
                    self.works(Rung::Zygote, spec);
                    return Ok(worker);
                }
                // It will be there for later calls; a stock of booted ones would not be needed any more by then.
                Err(NoZygote::NotYet) => return self.spawn_meanwhile(spec).await,
                // Many tenants at once. A worker that is booted has addresses of its own, and a stock of such serves them all.
                Err(NoZygote::Crowded) => {}
                Err(NoZygote::Refused(reason)) => self.refuse(Rung::Zygote, spec, reason),
            }
        }
        match self.standby.take(spec).await {
            Ok(worker) => {
                self.works(Rung::Standby, spec);
                Ok(worker)
            }
            Err(error) => {
                self.refuse(Rung::Standby, spec, error.reason);
                self.spawn(spec).await
            }
        }
    }

    async fn spawn(&self, spec: &WorkerSpec) -> Result<Worker, StartError> {
        spawn::boot(&*self.spawner, &spec.breed, &spec.scripts, spec.readable_tree(), Rung::Spawn).await
    }

    /// A booted worker, counted among those that go without the zygote that boots.
    #[cfg(target_os = "linux")]
    async fn spawn_meanwhile(&self, spec: &WorkerSpec) -> Result<Worker, StartError> {
        // While it is started, too.
        let counted = self.zygotes.alone();
        let worker = self.spawn(spec).await;
        drop(counted);
        worker.map(|worker| self.zygotes.count_alone(worker))
    }

    #[cfg(not(target_os = "linux"))]
    async fn spawn_meanwhile(&self, spec: &WorkerSpec) -> Result<Worker, StartError> {
        self.spawn(spec).await
    }

    #[cfg(target_os = "linux")]
    async fn forked(&self, spec: &WorkerSpec, wait: bool) -> Result<Worker, NoZygote> {
        self.zygotes.start(spec, wait).await
    }

    #[cfg(not(target_os = "linux"))]
    async fn forked(&self, _: &WorkerSpec, _: bool) -> Result<Worker, NoZygote> {
        Err(NoZygote::Refused("needs Linux".to_owned()))
    }

    #[cfg(target_os = "linux")]
    /// Has the packages of a tree compiled, by a process that is as a tree's zygote; where it worked, see [`RunFolder::left`].
    pub async fn compile(&self, spec: &WorkerSpec) -> Result<Option<RunFolder>, String> {
        self.zygotes.compile(spec).await
    }

    fn refuse(&self, rung: Rung, spec: &WorkerSpec, reason: String) {
        let mut refusals = self.refusals();
        if refusals.len() >= MAX_REFUSED_BREEDS && !refusals.contains_key(&spec.breed) {
            refusals.clear();
        }
        let refused = refusals.entry(Arc::clone(&spec.breed)).or_default();
        if refused.get(&rung) != Some(&reason) {
            tracing::warn!(target: NATIVE, rung = ?rung, reason, "A faster way to start functions is not available");
            refused.insert(rung, reason);
        }
    }

    /// What was refused before is not any more.
    fn works(&self, rung: Rung, spec: &WorkerSpec) {
        let mut refusals = self.refusals();
        if refusals.is_empty() {
            return;
        }
        if let Some(refused) = refusals.get_mut(&spec.breed) {
            refused.remove(&rung);
        }
    }

    fn refusals(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<Breed>, HashMap<Rung, String>>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn suspects(&self) -> std::sync::MutexGuard<'_, HashMap<Suspect, Suspicion>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn suspicion(&self, spec: &WorkerSpec) -> Option<Suspicion> {
        let suspects = self.suspects();
        // The look-up of an owned pair costs a clone of a path; almost always there is nothing to look up.
        if suspects.is_empty() {
            return None;
        }
        suspects.get(&(spec.tree.to_path_buf(), Arc::clone(&spec.tool_id))).copied()
    }

    fn is_suspect(&self, spec: &WorkerSpec) -> bool {
        matches!(self.suspicion(spec), Some(Suspicion::Open | Suspicion::Demoted))
    }
}

impl Ladder for RungLadder {
    fn start(&self, spec: WorkerSpec) -> BoxFuture<'_, Result<Worker, StartError>> {
        Box::pin(self.climb(spec))
    }

    fn learn(&self, rung: Rung, tree: &Path, tool_id: &Arc<str>, verdict: Verdict) {
        let mut suspects = self.suspects();
        if suspects.is_empty() && verdict == Verdict::Sound {
            return;
        }
        if suspects.len() >= MAX_SUSPECTS {
            suspects.clear();
        }
        let suspect = (tree.to_path_buf(), Arc::clone(tool_id));
        let new = match (rung, verdict, suspects.get(&suspect)) {
            (Rung::Zygote, Verdict::Crashed, None) => Suspicion::Open,
            (Rung::Standby | Rung::Spawn, Verdict::Crashed, Some(Suspicion::Open))
            | (Rung::Zygote, Verdict::Unrooted { shares_root: false }, Some(Suspicion::Unrooted)) => {
                Suspicion::Cleared
            }
            // Others that were started before this was known say the same again.
            (Rung::Zygote, Verdict::Unrooted { shares_root: true }, None) => {
                tracing::warn!(
                    target: NATIVE,
                    toolId = &**tool_id,
                    "A function failed because /tmp, shared memory or a terminal, which its text does not name, is not its own; its next calls get one, and load their packages themselves"
                );
                Suspicion::Unrooted
            }
            (Rung::Standby | Rung::Spawn, Verdict::Sound, Some(Suspicion::Open)) => {
                tracing::warn!(
                    target: NATIVE,
                    toolId = &**tool_id,
                    "A function crashed in a forked process but not in a booted one; it gets booted ones from now on"
                );
                Suspicion::Demoted
            }
            _ => return,
        };
        suspects.insert(suspect, new);
    }

    fn forget(&self, tree: &Path) {
        self.suspects().retain(|(of, _), _| of != tree);
        self.standby.forget(tree);
        #[cfg(target_os = "linux")]
        self.zygotes.forget(tree);
    }

    fn in_use(&self, breed: Option<&Arc<Breed>>) -> (Rung, Vec<(Rung, String)>) {
        let refused = breed.and_then(|breed| self.refusals().get(breed).cloned()).unwrap_or_default();
        let rung = [Rung::Zygote, Rung::Standby].into_iter().find(|rung| !refused.contains_key(rung));
        let mut refused: Vec<_> = refused.into_iter().collect();
        refused.sort();
        (rung.unwrap_or(Rung::Spawn), refused)
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            #[cfg(target_os = "linux")]
            zygotes: self.zygotes.counts(),
            #[cfg(not(target_os = "linux"))]
            zygotes: Default::default(),
            #[cfg(target_os = "linux")]
            memory: self.zygotes.memory(),
            #[cfg(not(target_os = "linux"))]
            memory: Default::default(),
            standby: self.standby.counts(),
        }
    }

    fn drain(&self) {
        self.standby.drain();
        #[cfg(target_os = "linux")]
        self.zygotes.drain();
    }

    fn close(&self, closed: bool) {
        #[cfg(target_os = "linux")]
        self.zygotes.close(closed);
        #[cfg(not(target_os = "linux"))]
        let _ = closed;
    }
}

#[cfg(not(target_os = "linux"))]
enum NoZygote {
    NotYet,
    Crowded,
    Refused(String),
}

#[cfg(not(target_os = "linux"))]
impl NoZygote {
    fn into_error(self) -> StartError {
        let reason = match self {
            Self::NotYet => "it is still booting".to_owned(),
            Self::Crowded => "there is no room".to_owned(),
            Self::Refused(reason) => reason,
        };
        StartError { rung: Rung::Zygote, reason }
    }
}
