//! From a dependency set to a leased tree: found in the store, waited for while another process installs it, or installed; then,
//! in the background, checked, resolved again, and room made. One [`Supply`] per process.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    task::{self, JoinSet},
    time::{self, Instant},
};

use crate::{
    error::{Code, Phase, SandboxError},
    install::{self, InstallContext},
    log::NATIVE,
    store::{self, PathLock, Store, StoreError, Tree, TreeKey},
};

/// Between two looks at a lock that another process holds: the first, and the most that it grows to.
const LOCK_POLL_FIRST: Duration = Duration::from_millis(10);
const LOCK_POLL_MAX: Duration = Duration::from_millis(200);
/// After a set was resolved again, or could not be, it is left alone for its TTL, but for no longer and no shorter than this.
const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(30);
const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(500);
/// No renewal lasts longer: both its installs have an end.
const RENEWAL_MAX: Duration = Duration::from_hours(24 * 60);
/// Renewals at a time; what is due beyond them is so at its next use, too.
const MAX_RENEWALS: usize = 2;
/// Sets that are remembered as failing; beyond it each is news again.
const MAX_FAILING: usize = 1_000;
/// Housekeeping waits for so long after a first call: that call's worker needs the processor more.
const HOUSEKEEPING_DELAY: Duration = Duration::from_secs(2);

/// What the orders of one executor have in common.
#[derive(Debug)]
pub struct Terms {
    /// How to install, and into which store.
    pub ctx: InstallContext,
    /// Where to look before anything else.
    pub base_stores: Vec<PathBuf>,
    /// What the store may hold, bytes.
    pub max_bytes: u64,
    /// After how long ranges are resolved again.
    pub ttl: Duration,
}

/// One dependency set as one executor wants it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Order {
    /// Of its executor.
    pub terms: Arc<Terms>,
    /// The set.
    pub dependencies: Arc<BTreeMap<String, String>>,
    /// Its tree's name.
    pub key: TreeKey,
}

impl Order {
    fn ctx(&self) -> &InstallContext {
        &self.terms.ctx
    }

    fn store(&self) -> Store {
        self.terms.ctx.store.clone()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Supply {
    hits: AtomicU64,
    installs: AtomicU64,
    renewals: AtomicU64,
    /// What runs in the background, and may be broken off at any time.
    background: Mutex<JoinSet<()>>,
    /// Renewals under way, and when a set may be tried again.
    renewing: Mutex<Renewing>,
}

#[derive(Debug, Default)]
struct Renewing {
    running: usize,
    not_before: HashMap<TreeKey, Instant>,
    /// Sets whose last renewal failed.
    failing: HashSet<TreeKey>,
}

impl Supply {
    /// The set's tree, leased. Installs it when no store has it; while another process does, waits for that, for as long as an
    /// install may take.
    ///
    /// Fails as [`install::install`] does. Dropping the future breaks off an install of its own.
    pub async fn tree(self: &Arc<Self>, order: &Order) -> Result<Tree, SandboxError> {
        if let Some(tree) = self.find(order).await? {
            return Ok(tree);
        }
        tell_of_base_stores(order).await?;
        let _lock = lock(order).await?;
        // Whoever had the lock may have installed it.
        if let Some(tree) = self.find(order).await? {
            return Ok(tree);
        }
        let tree = install::install(order.ctx(), &order.dependencies, &order.key).await?;
        // Without dependencies npm had nothing to do.
        self.installs.fetch_add(u64::from(!order.dependencies.is_empty()), Ordering::Relaxed);
        self.make_room_soon(order);
        Ok(tree)
    }

    async fn find(self: &Arc<Self>, order: &Order) -> Result<Option<Tree>, SandboxError> {
        let (store, key, terms) = (order.store(), order.key.clone(), Arc::clone(&order.terms));
        let found = blocking(move || store.find(&key, &terms.base_stores)).await?;
        if let Some(tree) = &found {
            self.hits.fetch_add(1, Ordering::Relaxed);
            self.check_soon(order.store(), tree);
        }
        Ok(found)
    }

    /// To be called at each use of a tree: when its ranges are due, they are resolved again in the background. Where that gives
    /// another tree, this one is marked as superseded; what runs in it goes on. Costs next to nothing when nothing is due.
    pub fn used(self: &Arc<Self>, order: &Order, tree: &Tree, now: SystemTime) {
        tree.note_use(now);
        let is_due = !tree.is_of_base_store()
            && store::is_due(tree.resolved(), now, order.terms.ttl)
            && install::can_change(&order.dependencies);
        let Some(turn) = is_due.then(|| self.take_turn(order)).flatten() else { return };
        let (order, tree) = (order.clone(), tree.clone());
        self.spawn(async move {
            let renewed = turn.supply.renew(&order, &tree).await;
            if turn.supply.is_news(&order.key, renewed.is_err())
                && let Err(error) = renewed
            {
                tracing::warn!(
                    target: NATIVE,
                    sandboxDir = %tree.dir().display(),
                    json_dependencies = %json!(order.dependencies),
                    error = %error,
                    "Failed to look for newer versions of dependencies; the installed ones stay in use"
                );
            }
        });
    }

    /// Whether it went otherwise with this set the last time: a registry that is away for a day is worth one line in the log.
    fn is_news(&self, key: &TreeKey, failed: bool) -> bool {
        let failing = &mut self.renewing().failing;
        if failing.len() >= MAX_FAILING {
            failing.clear();
        }
        if failed { failing.insert(key.clone()) } else { failing.remove(key) }
    }

    async fn renew(&self, order: &Order, tree: &Tree) -> Result<(), SandboxError> {
        // Another process that installs this set does the same.
        let Some(_lock) = try_lock(order).await? else { return Ok(()) };
        let (store, key) = (order.store(), order.key.clone());
        let newest = blocking(move || store.find_own(&key)).await?;
        let Some(newest) = newest else { return Ok(()) };
        if newest.dir() != tree.dir() {
            tree.supersede();
        }
        let now = SystemTime::now();
        if store::is_due(newest.resolved(), now, order.terms.ttl) {
            let renewed = install::renew(order.ctx(), &order.dependencies, &order.key, &newest).await?;
            self.renewals.fetch_add(1, Ordering::Relaxed);
            if let Some(renewed) = renewed {
                tracing::debug!(
                    target: NATIVE,
                    sandboxDir = %renewed.dir().display(),
                    json_dependencies = %json!(order.dependencies),
                    "Newer versions of dependencies installed"
                );
                tree.supersede();
                return Ok(());
            }
            let stamped = newest.clone();
            blocking(move || stamped.set_resolved(SystemTime::now())).await?;
        }
        tree.set_known_resolved(newest.resolved());
        Ok(())
    }

    /// The right to renew a set, if it is not too soon and not too much.
    fn take_turn(self: &Arc<Self>, order: &Order) -> Option<Turn> {
        let now = Instant::now();
        let mut renewing = self.renewing();
        renewing.not_before.retain(|_, not_before| *not_before > now);
        if renewing.running >= MAX_RENEWALS || renewing.not_before.contains_key(&order.key) {
            return None;
        }
        renewing.running += 1;
        // Held by the turn while it lasts; the end of the turn puts the pause in its place.
        renewing.not_before.insert(order.key.clone(), now + RENEWAL_MAX);
        let pause = order.terms.ttl.clamp(RENEWAL_PAUSE_MIN, RENEWAL_PAUSE_MAX);
        Some(Turn { supply: Arc::clone(self), key: order.key.clone(), pause })
    }

    /// Compares a tree that another process made with what it should be, once, in the background.
    fn check_soon(&self, store: Store, tree: &Tree) {
        if !store.needs_check(tree) {
            return;
        }
        let tree = tree.clone();
        self.spawn(async move {
            time::sleep(HOUSEKEEPING_DELAY).await;
            let dir = tree.dir().display().to_string();
            let checked = task::spawn_blocking(move || store.check(&tree)).await;
            if let Ok(Some(difference)) = checked {
                tracing::warn!(
                    target: NATIVE,
                    sandboxDir = dir,
                    difference = difference,
                    "Installed dependencies were damaged; the next call installs them anew"
                );
            }
        });
    }

    /// Makes room in the background, some time after the first call.
    pub fn keep_house_soon(&self, store: Store, max_bytes: u64) {
        self.spawn(async move {
            time::sleep(HOUSEKEEPING_DELAY).await;
            let _ = task::spawn_blocking(move || make_room(&store, max_bytes)).await;
        });
    }

    fn make_room_soon(&self, order: &Order) {
        let (store, max_bytes) = (order.store(), order.terms.max_bytes);
        self.spawn(async move {
            let _ = task::spawn_blocking(move || make_room(&store, max_bytes)).await;
        });
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(work, &Handle::current());
    }

    /// Runs something in the background that [`Supply::stop`] may break off.
    pub fn spawn_on(&self, work: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        while background.try_join_next().is_some() {}
        background.spawn_on(work, runtime);
    }

    /// Breaks off what runs in the background and waits until it is gone.
    pub async fn stop(&self) {
        let mut background =
            std::mem::take(&mut *self.background.lock().unwrap_or_else(PoisonError::into_inner));
        background.shutdown().await;
    }

    /// `installs`, `hits` and `renewals` of this process.
    pub fn counts(&self) -> [(&'static str, Value); 3] {
        let count = |counter: &AtomicU64| Value::from(counter.load(Ordering::Relaxed));
        [
            ("installs", count(&self.installs)),
            ("hits", count(&self.hits)),
            ("renewals", count(&self.renewals)),
        ]
    }

    fn renewing(&self) -> MutexGuard<'_, Renewing> {
        self.renewing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A renewal under way. Its end, however it comes, begins the pause.
struct Turn {
    supply: Arc<Supply>,
    key: TreeKey,
    pause: Duration,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut renewing = self.supply.renewing();
        renewing.running -= 1;
        renewing.not_before.insert(self.key.clone(), Instant::now() + self.pause);
    }
}

/// Removes what the store need not keep. Blocks.
pub fn make_room(store: &Store, max_bytes: u64) {
    match store.make_room(max_bytes) {
        Ok(report) if report.evicted > 0 => tracing::debug!(
            target: NATIVE,
            evictedCount = report.evicted,
            bytes = report.bytes,
            "Removed the least recently used dependencies"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(target: NATIVE, error = %error, "Failed to make room in the store"),
    }
}

async fn lock(order: &Order) -> Result<PathLock, SandboxError> {
    let wait = async {
        let mut pause = LOCK_POLL_FIRST;
        loop {
            if let Some(lock) = try_lock(order).await? {
                return Ok(lock);
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(LOCK_POLL_MAX);
        }
    };
    time::timeout(order.ctx().timeout, wait)
        .await
        .unwrap_or_else(|_| Err(waited_in_vain(order.ctx().timeout)))
}

/// Says why a base store that has this very set does not serve it: the installation that follows is what it was to save.
async fn tell_of_base_stores(order: &Order) -> Result<(), SandboxError> {
    if order.terms.base_stores.is_empty() || order.dependencies.is_empty() {
        return Ok(());
    }
    let (terms, what) = (Arc::clone(&order.terms), serde_json::json!(order.dependencies));
    let found = blocking(move || Ok(store::found_in_bases(&terms.base_stores, &what))).await?;
    let Some((folder, about)) = found else { return Ok(()) };
    tracing::warn!(
        target: NATIVE,
        baseStoreDir = %folder.display(),
        json_dependencies = %serde_json::json!(order.dependencies),
        reason = mismatch(&about, order.ctx().about.get()),
        "A base store has these dependencies, but not for this process: they are installed"
    );
    Ok(())
}

/// In which of what is written down with a tree it differs from what is wanted.
fn mismatch(there: &serde_json::Value, here: Option<&serde_json::Value>) -> String {
    let here = here.and_then(serde_json::Value::as_object);
    let mut differing: Vec<_> = here
        .into_iter()
        .flatten()
        .filter(|(name, value)| there.get(name.as_str()).is_some_and(|other| other != *value))
        .map(|(name, value)| format!("{name} is {} there and {value} here", there[name.as_str()]))
        .collect();
    differing.sort();
    if differing.is_empty() {
        "a setting that names trees differs: npm's registry or layout, the options dependencies, installScripts or tenantKey".to_owned()
    } else {
        differing.join(", ")
    }
}

async fn try_lock(order: &Order) -> Result<Option<PathLock>, SandboxError> {
    let (store, key) = (order.store(), order.key.clone());
    blocking(move || store.try_install_lock(&key)).await
}

fn waited_in_vain(timeout: Duration) -> SandboxError {
    let text = format!(
        "npm install timed out after {}ms, all of them spent waiting for another process that installs the same dependencies; \
         raise installTimeoutMs (AGENTS_FUNCTION_TOOL_SANDBOX_INSTALL_TIMEOUT_MS) if the registry is that slow",
        timeout.as_millis()
    );
    SandboxError::new(Code::InstallTimeout, Phase::Install, text)
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, SandboxError> {
    let fail = |text| SandboxError::new(Code::InstallFailed, Phase::Install, text);
    match task::spawn_blocking(act).await {
        Ok(result) => {
            result.map_err(|error| fail(format!("the folder for dependencies cannot be used: {error}")))
        }
        Err(error) => Err(fail(format!("the look into the store was broken off: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::mismatch;

    #[test]
    fn a_base_store_that_does_not_match_says_in_what() {
        let here = json!({ "nodeAbi": "127", "libc": "gnu", "npm": "11.0.0" });
        let there = json!({ "nodeAbi": "115", "libc": "musl", "npm": "11.0.0" });
        let text = mismatch(&there, Some(&here));
        assert_eq!(
            text,
            "libc is \"musl\" there and \"gnu\" here, nodeAbi is \"115\" there and \"127\" here"
        );
        for alike in [json!({}), here.clone()] {
            assert!(mismatch(&alike, Some(&here)).contains("a setting that names trees differs"));
        }
        assert!(mismatch(&there, None).contains("a setting"));
    }
}
