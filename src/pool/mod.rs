//! Lending of sandboxes: the async face of [`state`]. One [`Pool`] per process.
//!
//! An install is a task of its own, cancelled when nobody waits for it any more. Trees are checked and removed outside
//! of the lock.

pub mod key;
pub mod state;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime},
};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::error::{Code, Phase, SandboxError};

pub use key::{PoolKey, dependency_hash};
use state::{Answer, InstallId, Leased, SandboxId, State, WaiterId};
pub use state::{Counts, Policy};

/// Sandboxes that one process keeps; see [`state`] for what happens beyond.
pub const MAX_SANDBOXES: usize = 1_000;

/// An install ended without an answer: it panicked, or its runtime was shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The installation of the dependencies was lost before it gave a result: it crashed, or the executor is shutting \
     down. Calling again installs again."
)]
pub struct InstallLost;

impl From<InstallLost> for SandboxError {
    fn from(lost: InstallLost) -> Self {
        Self::new(Code::InstallFailed, Phase::Install, lost.to_string())
    }
}

type Check<T> = Box<dyn Fn(&T) -> bool + Send + Sync>;
type Remover<T> = Box<dyn Fn(T) + Send + Sync>;

/// All sandboxes of a process: trees `T`, installs that fail with `E`. Clones share them.
///
/// Dropping the last clone and the last lease drops the trees that are left, without the remover: drain first.
pub struct Pool<T, E> {
    shared: Arc<Shared<T, E>>,
}

struct Shared<T, E> {
    inner: Mutex<Inner<T, E>>,
    is_alive: Check<T>,
    remove: Remover<T>,
}

struct Inner<T, E> {
    state: State<Arc<T>>,
    waiters: HashMap<WaiterId, oneshot::Sender<Result<Lease<T>, E>>>,
    /// One for each install that the state knows.
    cancels: HashMap<InstallId, CancellationToken>,
}

impl<T, E> Pool<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    /// An empty pool.
    ///
    /// `is_alive` is asked before a sandbox is used again, on the thread of the caller of [`Pool::lease`]: it is to be
    /// quick. `remove` gets every tree once, when nobody uses it any more, on whatever thread that shows: it is to hand
    /// the work over, and must not panic.
    pub fn new(
        is_alive: impl Fn(&T) -> bool + Send + Sync + 'static,
        remove: impl Fn(T) + Send + Sync + 'static,
    ) -> Self {
        Self::with_limit(MAX_SANDBOXES, Box::new(is_alive), Box::new(remove))
    }

    fn with_limit(max_sandboxes: usize, is_alive: Check<T>, remove: Remover<T>) -> Self {
        let inner =
            Inner { state: State::new(max_sandboxes), waiters: HashMap::new(), cancels: HashMap::new() };
        Self { shared: Arc::new(Shared { inner: Mutex::new(inner), is_alive, remove }) }
    }

    /// Leases the sandbox of `key`, after its install if there is none that `policy` lets be used.
    ///
    /// `install` runs as a task of the current tokio runtime, for this and for every call that comes meanwhile; all get
    /// its error. It is dropped when the last of them drops this future. Dropping the future at any time leaves no lease.
    pub async fn lease<F, I>(&self, key: &PoolKey, policy: Policy, install: I) -> Result<Lease<T>, E>
    where
        I: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let waiting = loop {
            match self.shared.enter(key, policy) {
                Entered::Leased(lease) if (self.shared.is_alive)(&lease) => return Ok(lease),
                Entered::Leased(dead) => dead.retire(),
                Entered::Waiting(waiting) => break waiting,
                Entered::MustInstall(waiting, cancel) => {
                    let task = Task { shared: Arc::clone(&self.shared), install: waiting.install };
                    tokio::spawn(task.run(cancel, install).in_current_span());
                    break waiting;
                }
            }
        };
        waiting.lease().await
    }

    /// Removes the idle sandboxes whose time is over or that were used often enough. Returns how many went.
    pub fn sweep(&self, now: Instant) -> usize {
        self.shared.change(|inner| inner.state.sweep(now))
    }

    /// Removes every idle sandbox, and each other one once its last lease ends. Calls that wait for an install still get
    /// it. Returns how many went at once. The pool can be used again.
    pub fn drain(&self) -> usize {
        self.shared.change(|inner| inner.state.drain())
    }

    /// Sandboxes that can be leased.
    pub fn len(&self) -> usize {
        self.counts().ready
    }

    /// Whether no sandbox can be leased.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many sandboxes, installs, waiting calls and leases there are.
    pub fn counts(&self) -> Counts {
        self.shared.lock().state.counts()
    }
}

impl<T, E> Clone for Pool<T, E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T, E> fmt::Debug for Pool<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// Tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

enum Entered<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    Leased(Lease<T>),
    Waiting(Waiting<T, E>),
    MustInstall(Waiting<T, E>, CancellationToken),
}

impl<T, E> Shared<T, E> {
    fn lock(&self) -> MutexGuard<'_, Inner<T, E>> {
        // The state is never left half-changed: nothing in it panics. Should it ever, later calls still get sandboxes.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, E> Shared<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    fn enter(self: &Arc<Self>, key: &PoolKey, policy: Policy) -> Entered<T, E> {
        let mut inner = self.lock();
        let (answer, removals) = inner.state.lease(key, policy, now());
        let entered = match answer {
            Answer::Leased(leased) => Entered::Leased(self.lend(leased)),
            Answer::WaitFor(install, waiter) => Entered::Waiting(self.wait(&mut inner, install, waiter)),
            Answer::MustInstall(install, waiter) => {
                let cancel = CancellationToken::new();
                inner.cancels.insert(install, cancel.clone());
                Entered::MustInstall(self.wait(&mut inner, install, waiter), cancel)
            }
        };
        drop(inner);
        self.remove_all(removals);
        entered
    }

    fn wait(
        self: &Arc<Self>,
        inner: &mut Inner<T, E>,
        install: InstallId,
        waiter: WaiterId,
    ) -> Waiting<T, E> {
        let (sender, answer) = oneshot::channel();
        inner.waiters.insert(waiter, sender);
        Waiting { answer, shared: Arc::clone(self), install, waiter }
    }

    fn lend(self: &Arc<Self>, leased: Leased<Arc<T>>) -> Lease<T> {
        let idle = now().saturating_duration_since(leased.last_used);
        let wall = SystemTime::now();
        let home: Arc<dyn Home> = Arc::<Self>::clone(self);
        Lease {
            tree: leased.tree,
            use_count: leased.use_count,
            last_used: wall.checked_sub(idle).unwrap_or(wall),
            held: Held { home, sandbox: leased.sandbox },
        }
    }

    /// Changes the state, then removes what that set free. Returns how many.
    fn change(&self, change: impl FnOnce(&mut Inner<T, E>) -> Vec<Arc<T>>) -> usize {
        let removals = change(&mut self.lock());
        self.remove_all(removals)
    }

    fn remove_all(&self, removals: Vec<Arc<T>>) -> usize {
        let count = removals.len();
        // No clone is left: each is in a lease, which drops it before it tells the state.
        removals.into_iter().filter_map(Arc::into_inner).for_each(&self.remove);
        count
    }

    fn installed(self: &Arc<Self>, install: InstallId, tree: T) {
        let (answers, removals) = {
            let mut inner = self.lock();
            inner.cancels.remove(&install);
            let (leased, removals) = inner.state.installed(install, Arc::new(tree), now());
            let answer = |(waiter, leased)| (inner.waiters.remove(&waiter), leased);
            (leased.into_iter().map(answer).collect::<Vec<_>>(), removals)
        };
        self.remove_all(removals);
        for (sender, leased) in answers {
            // A lease whose call is gone is dropped here, and so given back.
            let lease = self.lend(leased);
            if let Some(sender) = sender {
                let _ = sender.send(Ok(lease));
            }
        }
    }

    fn install_failed(&self, install: InstallId, error: &E) {
        let waiters: Vec<_> = {
            let mut inner = self.lock();
            inner.cancels.remove(&install);
            let waiters = inner.state.install_failed(install);
            waiters.iter().filter_map(|waiter| inner.waiters.remove(waiter)).collect()
        };
        for sender in waiters {
            let _ = sender.send(Err(error.clone()));
        }
    }

    fn leave(&self, install: InstallId, waiter: WaiterId) {
        let cancel = {
            let mut inner = self.lock();
            inner.waiters.remove(&waiter);
            inner.state.leave(install, waiter).then(|| inner.cancels.remove(&install)).flatten()
        };
        if let Some(cancel) = cancel {
            cancel.cancel();
        }
    }
}

/// The install of one key. Dropping it before its end tells those who wait that it is lost.
struct Task<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    shared: Arc<Shared<T, E>>,
    install: InstallId,
}

impl<T, E> Task<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    async fn run<F, I>(self, cancel: CancellationToken, install: I)
    where
        I: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            result = async { install().await } => match result {
                Ok(tree) => self.shared.installed(self.install, tree),
                Err(error) => self.shared.install_failed(self.install, &error),
            },
        }
    }
}

impl<T, E> Drop for Task<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    fn drop(&mut self) {
        // Nobody waits any more for one that was answered or cancelled.
        self.shared.install_failed(self.install, &InstallLost.into());
    }
}

/// A call that waits for an install.
struct Waiting<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    answer: oneshot::Receiver<Result<Lease<T>, E>>,
    shared: Arc<Shared<T, E>>,
    install: InstallId,
    waiter: WaiterId,
}

impl<T, E> Waiting<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    async fn lease(mut self) -> Result<Lease<T>, E> {
        // The sender is dropped unused only by our own leaving.
        Pin::new(&mut self.answer).await.unwrap_or_else(|_| Err(InstallLost.into()))
    }
}

impl<T, E> Drop for Waiting<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    fn drop(&mut self) {
        self.shared.leave(self.install, self.waiter);
    }
}

/// The right to use a sandbox; derefs to its tree. Dropping it gives the sandbox back.
#[must_use = "dropping it gives the sandbox back"]
pub struct Lease<T> {
    // The order of the fields matters: the tree goes before the sandbox is given back.
    tree: Arc<T>,
    use_count: u32,
    last_used: SystemTime,
    held: Held,
}

impl<T> Lease<T> {
    /// Uses of the sandbox so far, this one included: 1 for the call that had it installed.
    pub fn use_count(&self) -> u32 {
        self.use_count
    }

    /// Whether another call used, or uses, the sandbox before this one.
    pub fn reused(&self) -> bool {
        self.use_count > 1
    }

    /// The last use before this one; where this one is the first, the end of the install.
    pub fn last_used(&self) -> SystemTime {
        self.last_used
    }

    /// Lets no other call have this sandbox: the next one installs anew. Leases that exist go on.
    pub fn retire(&self) {
        self.held.home.retire(self.held.sandbox);
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.tree
    }
}

impl<T: fmt::Debug> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("tree", &self.tree)
            .field("use_count", &self.use_count)
            .finish_non_exhaustive()
    }
}

/// Where a lease goes back to, whatever the pool's error type.
trait Home: Send + Sync {
    fn release(&self, sandbox: SandboxId);
    fn retire(&self, sandbox: SandboxId);
}

impl<T, E> Home for Shared<T, E>
where
    T: Send + Sync + 'static,
    E: Clone + From<InstallLost> + Send + 'static,
{
    fn release(&self, sandbox: SandboxId) {
        self.change(|inner| inner.state.release(sandbox, now()));
    }

    fn retire(&self, sandbox: SandboxId) {
        self.change(|inner| inner.state.retire(sandbox).into_iter().collect());
    }
}

struct Held {
    home: Arc<dyn Home>,
    sandbox: SandboxId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.home.release(self.sandbox);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll, Waker},
        time::Duration,
    };

    use tokio::sync::Notify;

    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    enum Failure {
        Npm(&'static str),
        Lost,
    }

    impl From<InstallLost> for Failure {
        fn from(_: InstallLost) -> Self {
            Self::Lost
        }
    }

    /// A tree that is no clone of anything: the pool cannot remove it twice.
    #[derive(Debug, PartialEq)]
    struct Tree(usize);

    const POLICY: Policy = Policy { ttl: Duration::from_secs(10), max_use_count: 3 };

    /// A pool whose installs and removals are counted.
    #[derive(Clone)]
    struct Rig {
        pool: Pool<Tree, Failure>,
        removed: Arc<Mutex<Vec<usize>>>,
        dead: Arc<Mutex<Vec<usize>>>,
        installs: Arc<AtomicUsize>,
        /// Install futures that are alive.
        running: Arc<AtomicUsize>,
        /// Lets one install end.
        go: Arc<Notify>,
    }

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn key(name: &str) -> PoolKey {
        PoolKey::new(&BTreeMap::from([(name.to_owned(), "1".to_owned())]), "scope")
    }

    impl Rig {
        fn new() -> Self {
            Self::with_limit(MAX_SANDBOXES)
        }

        fn with_limit(limit: usize) -> Self {
            let removed = Arc::<Mutex<Vec<usize>>>::default();
            let dead = Arc::<Mutex<Vec<usize>>>::default();
            let (gone, bin) = (Arc::clone(&dead), Arc::clone(&removed));
            let is_alive = move |tree: &Tree| !gone.lock().unwrap().contains(&tree.0);
            let remove = move |tree: Tree| bin.lock().unwrap().push(tree.0);
            Self {
                pool: Pool::with_limit(limit, Box::new(is_alive), Box::new(remove)),
                removed,
                dead,
                installs: Arc::default(),
                running: Arc::default(),
                go: Arc::default(),
            }
        }

        /// An install that ends at once, numbered from 1.
        async fn lease(&self, name: &str) -> Lease<Tree> {
            let installs = Arc::clone(&self.installs);
            let install = move || async move { Ok(Tree(installs.fetch_add(1, Ordering::SeqCst) + 1)) };
            self.pool.lease(&key(name), POLICY, install).await.unwrap()
        }

        /// An install that ends with `result` once it is let.
        fn slow(&self, result: Result<usize, Failure>) -> LeaseFuture {
            let rig = self.clone();
            Box::pin(async move {
                let (go, running) = (Arc::clone(&rig.go), Arc::clone(&rig.running));
                let install = move || async move {
                    running.fetch_add(1, Ordering::SeqCst);
                    let _alive = Counted(running);
                    go.notified().await;
                    result.map(Tree)
                };
                rig.pool.lease(&key("slow"), POLICY, install).await
            })
        }

        fn removed(&self) -> Vec<usize> {
            self.removed.lock().unwrap().clone()
        }

        #[track_caller]
        fn assert_empty(&self) {
            self.pool.drain();
            assert_eq!(self.pool.counts(), Counts::default());
            assert_eq!(self.running.load(Ordering::SeqCst), 0);
            let inner = self.pool.shared.lock();
            assert!(inner.waiters.is_empty() && inner.cancels.is_empty());
        }
    }

    type LeaseFuture = Pin<Box<dyn Future<Output = Result<Lease<Tree>, Failure>> + Send>>;

    fn poll(future: &mut LeaseFuture) -> Poll<Result<Lease<Tree>, Failure>> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Lets every task that can run do so: the test's runtime has one thread.
    async fn settle() {
        yields(10).await;
    }

    async fn yields(times: usize) {
        for _ in 0..times {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_serves_until_it_was_used_often_enough() {
        let rig = Rig::new();
        for (tree, use_count) in [(1, 1), (1, 2), (1, 3), (2, 1)] {
            let lease = rig.lease("a").await;
            assert_eq!((&*lease, lease.use_count(), lease.reused()), (&Tree(tree), use_count, use_count > 1));
        }
        assert_eq!(rig.removed(), [1]);
        rig.assert_empty();
        assert_eq!(rig.removed(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_to_live_counts_from_the_end_of_the_last_lease() {
        let rig = Rig::new();
        let lease = rig.lease("a").await;
        tokio::time::advance(POLICY.ttl * 2).await;
        drop(lease);
        tokio::time::advance(POLICY.ttl / 2).await;
        assert_eq!(rig.pool.sweep(now()), 0);
        let lease = rig.lease("a").await;
        assert_eq!((&*lease, lease.use_count()), (&Tree(1), 2));
        let idle = SystemTime::now().duration_since(lease.last_used()).unwrap();
        assert!(idle >= POLICY.ttl / 2 && idle < POLICY.ttl, "{idle:?}");
        drop(lease);
        tokio::time::advance(POLICY.ttl).await;
        assert_eq!(*rig.lease("a").await, Tree(2));
        tokio::time::advance(POLICY.ttl).await;
        assert_eq!((rig.pool.sweep(now()), rig.pool.sweep(now())), (1, 0));
        assert_eq!(rig.removed(), [1, 2]);
        rig.assert_empty();
    }

    #[tokio::test(start_paused = true)]
    async fn leases_on_a_replaced_sandbox_go_on() {
        let rig = Rig::new();
        let leases = [rig.lease("a").await, rig.lease("a").await, rig.lease("a").await];
        let new = rig.lease("a").await;
        assert_eq!(*new, Tree(2));
        let [first, second, third] = leases;
        drop((first, second));
        assert!(rig.removed().is_empty());
        drop(third);
        assert_eq!(rig.removed(), [1]);
        assert_eq!(rig.pool.drain(), 0, "the other one is leased");
        assert_eq!(rig.pool.counts(), Counts { retired: 1, leases: 1, ..Counts::default() });
        assert_eq!(*rig.lease("a").await, Tree(3), "the pool goes on");
        drop(new);
        assert_eq!(rig.removed(), [1, 2]);
        rig.assert_empty();
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_first_calls_share_one_install_and_its_uses() {
        let rig = Rig::new();
        let calls: Vec<_> = (0..5).map(|_| tokio::spawn(rig.slow(Ok(7)))).collect();
        settle().await;
        assert_eq!(rig.running.load(Ordering::SeqCst), 1);
        rig.go.notify_one();
        let mut counts = Vec::new();
        for call in calls {
            let lease = call.await.unwrap().unwrap();
            assert_eq!(*lease, Tree(7));
            counts.push(lease.use_count());
        }
        assert_eq!(counts, [1, 2, 3, 4, 5], "one install for all, though the limit is 3");
        rig.assert_empty();
        assert_eq!(rig.removed(), [7]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_install_fails_all_who_waited_and_the_next_call_tries_again() {
        let rig = Rig::new();
        let calls: Vec<_> = (0..3).map(|_| tokio::spawn(rig.slow(Err(Failure::Npm("404"))))).collect();
        settle().await;
        rig.go.notify_one();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap_err(), Failure::Npm("404"));
        }
        rig.go.notify_one();
        assert_eq!(*rig.slow(Ok(1)).await.unwrap(), Tree(1));
        rig.assert_empty();
    }

    #[tokio::test(start_paused = true)]
    async fn an_install_outlives_its_caller_while_others_wait_and_no_longer() {
        let rig = Rig::new();
        let (mut first, mut second) = (rig.slow(Ok(1)), rig.slow(Ok(2)));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        settle().await;
        drop(first);
        settle().await;
        assert_eq!(rig.running.load(Ordering::SeqCst), 1);
        rig.go.notify_one();
        let lease = second.await.unwrap();
        assert_eq!((&*lease, lease.use_count()), (&Tree(1), 1));
        lease.retire();
        drop(lease);

        let (mut first, mut second) = (rig.slow(Ok(3)), rig.slow(Ok(4)));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        settle().await;
        drop((first, second));
        settle().await;
        assert_eq!(rig.running.load(Ordering::SeqCst), 0, "the install was dropped");
        rig.go.notify_one();
        assert_eq!(*rig.slow(Ok(5)).await.unwrap(), Tree(5));
        rig.assert_empty();
        assert_eq!(rig.removed(), [1, 5]);
    }

    /// Not polled, polled, answered but not polled; as the one that installs and as one that waits.
    #[tokio::test(start_paused = true)]
    async fn a_future_dropped_at_any_point_keeps_nothing() {
        for polls in 0..3 {
            for answered in [None, Some(Ok(1)), Some(Err(Failure::Npm("broken")))] {
                for other_first in [None, Some(true), Some(false)] {
                    let rig = Rig::new();
                    let result = answered.clone().unwrap_or(Ok(1));
                    let mut leaver = rig.slow(result.clone());
                    let mut other = other_first.map(|_| rig.slow(result.clone()));
                    let mut poll_other = |when| {
                        if let Some(other) = other.as_mut().filter(|_| other_first == Some(when)) {
                            assert!(poll(other).is_pending());
                        }
                    };
                    poll_other(true);
                    for _ in 0..polls {
                        assert!(poll(&mut leaver).is_pending());
                    }
                    poll_other(false);
                    settle().await;
                    if answered.is_some() {
                        rig.go.notify_one();
                        settle().await;
                    }
                    drop(leaver);
                    settle().await;
                    rig.go.notify_one();
                    if let Some(other) = other {
                        assert_eq!(other.await.map(|lease| lease.0), result);
                    }
                    settle().await;
                    rig.assert_empty();
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_install_that_panics_is_an_error_for_all_who_wait() {
        let rig = Rig::new();
        let install = || async { panic!("an install that panics") };
        let error = rig.pool.lease(&key("a"), POLICY, install).await.unwrap_err();
        assert_eq!(error, Failure::Lost);
        assert_eq!(SandboxError::from(InstallLost).code, Code::InstallFailed);
        assert_eq!(*rig.lease("a").await, Tree(1));
        rig.assert_empty();
    }

    #[test]
    fn the_end_of_the_runtime_ends_the_wait() {
        let rig = Rig::new();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let mut waiting = rig.slow(Ok(1));
        let guard = runtime.enter();
        assert!(poll(&mut waiting).is_pending());
        drop(guard);
        drop(runtime);
        assert!(matches!(poll(&mut waiting), Poll::Ready(Err(Failure::Lost))));
        rig.assert_empty();
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_whose_tree_vanished_is_replaced() {
        let rig = Rig::new();
        let held = rig.lease("a").await;
        rig.dead.lock().unwrap().push(1);
        assert_eq!(*rig.lease("a").await, Tree(2));
        assert!(rig.removed().is_empty());
        drop(held);
        assert_eq!(rig.removed(), [1]);
        rig.assert_empty();
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_the_least_recently_used_idle_sandbox_goes() {
        let rig = Rig::with_limit(2);
        let held = rig.lease("a").await;
        for name in ["b", "c"] {
            drop(rig.lease(name).await);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((rig.removed(), rig.pool.len()), (vec![2], 2));
        let more = [rig.lease("d").await, rig.lease("e").await];
        assert_eq!((rig.removed(), rig.pool.len()), (vec![2, 3], 3), "leased ones may exceed it");
        drop(more);
        assert_eq!((rig.removed(), rig.pool.len()), (vec![2, 3, 4], 2));
        drop(held);
        rig.assert_empty();
        let mut removed = rig.removed();
        removed.sort_unstable();
        assert_eq!(removed, [1, 2, 3, 4, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_during_an_install_leaves_it_to_those_who_wait() {
        let rig = Rig::new();
        let mut waiting = rig.slow(Ok(1));
        assert!(poll(&mut waiting).is_pending());
        settle().await;
        rig.pool.drain();
        rig.go.notify_one();
        let lease = waiting.await.unwrap();
        assert_eq!((rig.pool.len(), rig.removed()), (0, vec![]));
        drop(lease);
        assert_eq!(rig.removed(), [1]);
        rig.assert_empty();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn every_tree_is_removed_once_after_a_crowd_that_comes_and_goes() {
        let rig = Rig::new();
        let callers = (0..32_usize).map(|caller| {
            let rig = rig.clone();
            tokio::spawn(async move {
                for round in 0..50 {
                    let number = Arc::clone(&rig.installs);
                    let install = move || async move {
                        tokio::task::yield_now().await;
                        if (caller + round) % 5 == 0 {
                            return Err(Failure::Npm("now and then"));
                        }
                        Ok(Tree(number.fetch_add(1, Ordering::SeqCst)))
                    };
                    let key = key(["a", "b", "c"][(caller + round) % 3]);
                    tokio::select! {
                        biased;
                        lease = rig.pool.lease(&key, POLICY, install) => if let Ok(lease) = lease {
                            tokio::task::yield_now().await;
                            assert!(!rig.removed.lock().unwrap().contains(&lease.0));
                        },
                        () = yields(round % 4), if caller % 2 == 0 => {}
                    }
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        // A cancelled install may just be on its way out; each holds the pool.
        let tasks_over = async {
            while Arc::strong_count(&rig.pool.shared) > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), tasks_over).await.unwrap();
        rig.assert_empty();
        let mut removed = rig.removed();
        removed.sort_unstable();
        assert!(removed.into_iter().eq(0..rig.installs.load(Ordering::SeqCst)), "each once");
    }
}
