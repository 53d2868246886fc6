//! Workers made ahead of need: each is used once, and another is made in its place.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::oneshot};

use super::{StartError, Worker, sizing::Sizing};
use crate::{process::BoxFuture, store::RunFolder};

/// How often a stock looks whether it is larger than it need be.
const TICK: Duration = Duration::from_secs(1);

/// Makes workers of one kind. Dropping the future leaves no process behind.
pub(super) trait Forge: Send + Sync + 'static {
    /// One more.
    fn make(&self) -> BoxFuture<'_, Result<Worker, StartError>>;
}

/// A stock of workers of one kind. Dropping it ends those that nobody took.
pub(super) struct Stock {
    forge: Arc<dyn Forge>,
    inner: Mutex<Inner>,
    /// One reference for each worker in use, besides this one.
    in_use: Arc<()>,
    runtime: Handle,
    own: Weak<Self>,
}

#[derive(Default)]
struct Inner {
    ready: VecDeque<Worker>,
    waiting: VecDeque<oneshot::Sender<Result<Worker, StartError>>>,
    making: usize,
    sizing: Sizing,
}

impl Inner {
    /// How many more have to be made now; counts them as being made.
    fn missing(&mut self) -> usize {
        let wanted = self.sizing.target() + self.waiting.len();
        let missing = wanted.saturating_sub(self.ready.len() + self.making);
        self.making += missing;
        missing
    }
}

impl Stock {
    /// An empty stock; it fills with the first call. Must be made inside a tokio runtime.
    pub(super) fn new(forge: Arc<dyn Forge>) -> Arc<Self> {
        let stock = Arc::new_cyclic(|own| Self {
            forge,
            inner: Mutex::default(),
            in_use: Arc::default(),
            runtime: Handle::current(),
            own: Weak::clone(own),
        });
        stock.runtime.spawn(tick(Arc::downgrade(&stock)));
        stock
    }

    /// A worker: one that is ready, else the next that is made.
    pub(super) async fn take(&self) -> Result<Worker, StartError> {
        let told = {
            let mut inner = self.lock();
            let ready = next_alive(&mut inner.ready);
            let running = Arc::strong_count(&self.in_use) - 1 + inner.waiting.len();
            inner.sizing.taken(running, Instant::now());
            if let Some(worker) = ready {
                self.fill(&mut inner);
                return Ok(self.in_use(worker));
            }
            let (teller, told) = oneshot::channel();
            inner.waiting.push_back(teller);
            self.fill(&mut inner);
            told
        };
        told.await.unwrap_or_else(|_| Err(StartError::ended())).map(|worker| self.in_use(worker))
    }

    /// Makes the first ones before anybody asks: so many, but at least one.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn prime(&self, ready: usize) {
        let mut inner = self.lock();
        inner.sizing.taken(ready.saturating_sub(1), Instant::now());
        self.fill(&mut inner);
    }

    /// Counts a worker as in use until its call is settled, or its process dropped.
    fn in_use(&self, mut worker: Worker) -> Worker {
        worker.started.process.hold(Arc::clone(&self.in_use));
        worker
    }

    /// How many are ready.
    pub(super) fn ready(&self) -> usize {
        self.lock().ready.len()
    }

    /// How many would be, if memory were no matter.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn wanted(&self) -> usize {
        self.lock().sizing.wanted()
    }

    /// How many are in use, or waited for.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn running(&self) -> usize {
        Arc::strong_count(&self.in_use) - 1 + self.lock().waiting.len()
    }

    /// The process of one that is ready.
    #[cfg(target_os = "linux")]
    pub(super) fn sample(&self) -> Option<u32> {
        self.lock().ready.front().map(|worker| worker.started.process.pid())
    }

    /// Keeps no more than `most` ready, whatever calls come; ends those that are too many.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn cap(&self, most: usize) {
        let surplus: Vec<Worker> = {
            let mut inner = self.lock();
            inner.sizing.cap(most);
            let keep = inner.sizing.target().min(inner.ready.len());
            // What was capped before may be wanted by now.
            self.fill(&mut inner);
            inner.ready.drain(keep..).collect()
        };
        drop(surplus); // ends them, outside of the lock
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, inner: &mut Inner) {
        for _ in 0..inner.missing() {
            let (forge, own) = (Arc::clone(&self.forge), Weak::clone(&self.own));
            self.runtime.spawn(async move {
                let made = forge.make().await;
                // A stock that is gone needs none; the worker ends with this.
                if let Some(stock) = own.upgrade() {
                    stock.made(made);
                }
            });
        }
    }

    fn made(&self, made: Result<Worker, StartError>) {
        let mut inner = self.lock();
        inner.making -= 1;
        let mut made = Some(made);
        while let Some(one) = made.take() {
            match (inner.waiting.pop_front(), one) {
                // One that does not wait any more gives it back.
                (Some(waiting), one) => made = waiting.send(one).err(),
                (None, Ok(worker)) => inner.ready.push_back(worker),
                // Told to nobody: the next call tries again, and is told.
                (None, Err(_)) => {}
            }
        }
    }

    fn tick(&self, now: Instant) {
        let surplus: Vec<Worker> = {
            let mut inner = self.lock();
            inner.sizing.tick(now);
            let keep = inner.sizing.target().min(inner.ready.len());
            inner.ready.drain(keep..).collect()
        };
        drop(surplus); // ends them, outside of the lock
    }
}

/// The oldest that still lives: its pages are the warmest, and it has waited longest.
fn next_alive(ready: &mut VecDeque<Worker>) -> Option<Worker> {
    while let Some(worker) = ready.pop_front() {
        // Its folder may have been wiped with the temp folder.
        let has_folder = worker.run.as_ref().is_none_or(RunFolder::is_there);
        if has_folder && worker.started.process.state().exit.is_none() {
            return Some(worker);
        }
    }
    None
}

async fn tick(stock: Weak<Stock>) {
    loop {
        tokio::time::sleep(TICK).await;
        match stock.upgrade() {
            Some(stock) => stock.tick(Instant::now()),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Semaphore, watch};

    use super::*;
    use crate::{
        process::{Control, Process, Started, TreeState},
        start::Rung,
    };

    /// Makes workers when it is let to; counts the living.
    struct FakeForge {
        gate: Semaphore,
        fails: bool,
        living: Arc<AtomicUsize>,
    }

    struct Living(Arc<AtomicUsize>, watch::Sender<TreeState>);

    impl Control for Living {
        fn terminate(&self) {}
        fn kill(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
            self.1.send_modify(|state| state.gone = true);
        }
    }

    impl FakeForge {
        fn new(gate: usize, fails: bool) -> Arc<Self> {
            Arc::new(Self { gate: Semaphore::new(gate), fails, living: Arc::default() })
        }
    }

    impl Forge for FakeForge {
        fn make(&self) -> BoxFuture<'_, Result<Worker, StartError>> {
            Box::pin(async move {
                self.gate.acquire().await.unwrap().forget();
                if self.fails {
                    return Err(StartError { rung: Rung::Zygote, reason: "no".into() });
                }
                self.living.fetch_add(1, Ordering::SeqCst);
                let (state, watched) = watch::channel(TreeState::default());
                let started = Started {
                    process: Process::new(1, Arc::new(Living(Arc::clone(&self.living), state)), watched),
                    stdout: Box::new(tokio::io::empty()),
                    stderr: Box::new(tokio::io::empty()),
                    channel: None,
                };
                Ok(Worker { rung: Rung::Zygote, started, run: None, shares_root: false })
            })
        }
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_is_taken_and_another_is_made() {
        let forge = FakeForge::new(100, false);
        let stock = Stock::new(Arc::<FakeForge>::clone(&forge));
        let first = stock.take().await.unwrap();
        settle().await;
        assert_eq!((stock.ready(), forge.living.load(Ordering::SeqCst)), (1, 2));
        drop(first);
        drop(stock.take().await.unwrap());
        settle().await;
        assert_eq!((stock.ready(), forge.living.load(Ordering::SeqCst)), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_left_the_queue_leaves_his_worker_to_the_next() {
        let forge = FakeForge::new(0, false);
        let stock = Stock::new(Arc::<FakeForge>::clone(&forge));
        let left = {
            let stock = Arc::clone(&stock);
            tokio::spawn(async move { stock.take().await.map(drop) })
        };
        settle().await;
        left.abort();
        settle().await;
        let stays = tokio::spawn({
            let stock = Arc::clone(&stock);
            async move { stock.take().await.is_ok() }
        });
        settle().await;
        forge.gate.add_permits(1);
        assert!(stays.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_to_who_waits_and_does_not_spin() {
        let forge = FakeForge::new(3, true);
        let stock = Stock::new(Arc::<FakeForge>::clone(&forge));
        assert!(stock.take().await.is_err());
        settle().await;
        assert!(forge.gate.available_permits() <= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cap_ends_what_is_too_many_and_calls_are_served_all_the_same() {
        let forge = FakeForge::new(100, false);
        let stock = Stock::new(Arc::<FakeForge>::clone(&forge));
        let running = [stock.take().await.unwrap(), stock.take().await.unwrap(), stock.take().await.unwrap()];
        settle().await;
        assert_eq!((stock.ready(), stock.running(), stock.wanted()), (3, 3, 3));
        stock.cap(0);
        settle().await;
        assert_eq!((stock.ready(), forge.living.load(Ordering::SeqCst)), (0, 3));
        drop(stock.take().await.unwrap());
        settle().await;
        assert_eq!((stock.ready(), stock.wanted()), (0, 4), "none is made ahead");
        stock.cap(2);
        settle().await;
        assert_eq!(stock.ready(), 2);
        drop(running);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_or_idle_stock_ends_its_workers() {
        let forge = FakeForge::new(100, false);
        let stock = Stock::new(Arc::<FakeForge>::clone(&forge));
        drop(stock.take().await.unwrap());
        settle().await;
        assert_eq!(stock.ready(), 1);
        stock.tick(Instant::now() + Duration::from_secs(61));
        assert_eq!((stock.ready(), forge.living.load(Ordering::SeqCst)), (0, 0));
        drop(stock.take().await.unwrap());
        settle().await;
        drop(stock);
        settle().await;
        assert_eq!(forge.living.load(Ordering::SeqCst), 0);
    }
}
