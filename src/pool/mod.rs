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
