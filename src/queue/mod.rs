//! Waiting for a permit to run: the async face of [`state`]. One [`Queue`] per process.
//!
//! The truth is in the state alone. What is sent to a waiting call only wakes it: whoever goes away gives its ticket
//! back, granted or not, so a grant that crosses a departure reaches the next in line.

pub mod state;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    sync::oneshot,
    time::{Sleep, sleep_until},
};

use crate::error::{Code, Phase, SandboxError};

pub use state::{Arrival, ClassStats, MAX_VCPUS, MAX_VCPUS_CLASSES, MAX_WAITING_CALLS, Vcpus};
use state::{Ask, Outcome, State, Ticket};

/// What a call asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its class of permits.
    pub vcpus: Vcpus,
    /// The tool that the call is accounted to, for fairness under `max_concurrent`.
    pub tool_id: Arc<str>,
    /// Calls that may run in the whole process for this one to join them (0 counts as 1); `None` is no budget.
    pub max_concurrent: Option<u32>,
    /// How long it may wait for its permit.
    pub max_wait: Duration,
}

/// Why a call got no permit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal {
    /// No permit came free within [`Request::max_wait`], which is told here.
    #[error(
        "Function execution queue timeout after {}ms. Too many concurrent executions.",
        .0.as_millis()
    )]
    Timeout(Duration),
    /// [`MAX_WAITING_CALLS`] wait already.
    #[error("Function execution queue is full: {MAX_WAITING_CALLS} calls are waiting. Try again later.")]
    Full,
    /// [`MAX_VCPUS_CLASSES`] distinct values have calls already.
    #[error(
        "Function execution queue is full: calls with {MAX_VCPUS_CLASSES} different values of vcpus are running or \
         waiting. Use fewer different values."
    )]
    TooManyClasses,
}

impl From<QueueRefusal> for SandboxError {
    fn from(refusal: QueueRefusal) -> Self {
        Self::new(Code::QueueTimeout, Phase::Queue, refusal.to_string())
    }
}

/// All permits of a process. Clones share them.
#[derive(Clone, Default)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    state: State,
    /// One for each waiting ticket whose future is alive.
    wakers: HashMap<Ticket, oneshot::Sender<Verdict>>,
}

#[derive(Debug, Clone, Copy)]
enum Verdict {
    Granted,
    TimedOut,
}

/// Permits and waiting calls of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Permits given out.
    pub running: u32,
    /// Calls that wait.
    pub waiting: usize,
}

impl Queue {
    /// A queue with all permits free.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a place in the queue, at once: the order is that of these calls, not of the first polls. The future gives
    /// the permit; dropping it at any time gives the place back. It must be polled inside a tokio runtime with time.
    pub fn acquire(&self, request: Request) -> Acquire {
        let max_wait = request.max_wait;
        let deadline = now().checked_add(max_wait);
        let ask = Ask {
            vcpus: request.vcpus,
            tool: request.tool_id,
            max_concurrent: request.max_concurrent,
            deadline,
        };
        let mut inner = self.shared.lock();
        let (outcome, arrival) = inner.state.acquire(ask);
        let place = match outcome {
            Outcome::Granted(ticket) => Place::Granted(Permit::new(&self.shared, ticket)),
            Outcome::Queued(ticket) => {
                let (sender, verdict) = oneshot::channel();
                inner.wakers.insert(ticket, sender);
                let permit = Permit::new(&self.shared, ticket);
                Place::Waiting(Waiting { verdict, timer: None, deadline, max_wait, permit })
            }
            Outcome::TooManyWaiting => Place::Refused(QueueRefusal::Full),
            Outcome::TooManyClasses => Place::Refused(QueueRefusal::TooManyClasses),
        };
        Acquire { arrival, place }
    }

    /// Every class of permits seen, by value; idle ones may be missing once there are [`MAX_VCPUS_CLASSES`].
    pub fn stats(&self) -> Vec<ClassStats> {
        self.shared.lock().state.stats()
    }

    /// The sums over all classes.
    pub fn totals(&self) -> Totals {
        let state = &self.shared.lock().state;
        Totals { running: state.running(), waiting: state.waiting() }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

/// Tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The state is never left half-changed: nothing in it panics. Should it ever, later calls still get permits.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, ticket: Ticket) {
        self.change(Verdict::Granted, |inner| {
            inner.wakers.remove(&ticket);
            inner.state.release(ticket)
        });
    }

    /// Ends the wait of every call whose deadline has come.
    fn expire(&self, now: Instant) {
        self.change(Verdict::TimedOut, |inner| inner.state.expire(now));
    }

    /// Changes the state, and tells those concerned outside of the lock.
    fn change(&self, verdict: Verdict, change: impl FnOnce(&mut Inner) -> Vec<Ticket>) {
        let told: Vec<_> = {
            let mut inner = self.lock();
            let tickets = change(&mut inner);
            tickets.iter().filter_map(|ticket| inner.wakers.remove(ticket)).collect()
        };
        for waker in told {
            // Fails when its future was dropped meanwhile; that has given the ticket back.
            let _ = waker.send(verdict);
        }
    }
}

/// A place in the queue, and the future of its permit. Dropping it gives up the place or the permit.
#[derive(Debug)]
#[must_use = "dropping it gives up the place in the queue"]
pub struct Acquire {
    arrival: Arrival,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Waiting(Waiting),
    Granted(Permit),
    Refused(QueueRefusal),
    Over,
}

#[derive(Debug)]
struct Waiting {
    verdict: oneshot::Receiver<Verdict>,
    /// Set by the first poll.
    timer: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
    max_wait: Duration,
    /// The right to the ticket, granted or not yet.
    permit: Permit,
}

impl Acquire {
    /// What the call found when it came (for the log lines that go before the wait).
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }
}

impl Future for Acquire {
    type Output = Result<Permit, QueueRefusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let verdict = match &mut self.place {
            Place::Waiting(waiting) => std::task::ready!(waiting.poll_verdict(cx)),
            _ => Verdict::Granted,
        };
        Poll::Ready(match (std::mem::replace(&mut self.place, Place::Over), verdict) {
            (Place::Waiting(Waiting { permit, .. }) | Place::Granted(permit), Verdict::Granted) => Ok(permit),
            (Place::Waiting(waiting), Verdict::TimedOut) => Err(QueueRefusal::Timeout(waiting.max_wait)),
            (Place::Refused(refusal), _) => Err(refusal),
            (Place::Granted(_) | Place::Over, _) => panic!("polled after it was ready"),
        })
    }
}

impl Waiting {
    fn poll_verdict(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        if let Poll::Ready(verdict) = self.poll_told(cx) {
            return Poll::Ready(verdict);
        }
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline.into())));
        std::task::ready!(timer.as_mut().poll(cx));
        // A permit may have been granted meanwhile; the state knows, and now has told one or the other.
        self.permit.shared.expire(now().max(deadline));
        self.poll_told(cx)
    }

    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        // The sender is dropped unused only by the release of this ticket, which `permit` alone does.
        Pin::new(&mut self.verdict).poll(cx).map(|told| told.unwrap_or(Verdict::TimedOut))
    }
}

/// The right to run. Dropping it lets the next call run.
#[must_use = "dropping it gives the permit back"]
pub struct Permit {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Permit {
    fn new(shared: &Arc<Shared>, ticket: Ticket) -> Self {
        Self { shared: Arc::clone(shared), ticket }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.release(self.ticket);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.ticket).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const WAIT: Duration = Duration::from_millis(200);

    fn request(vcpus: f64) -> Request {
        Request {
            vcpus: Vcpus::new(Some(vcpus)),
            tool_id: "tool".into(),
            max_concurrent: None,
            max_wait: WAIT,
        }
    }

    fn poll(acquire: &mut Acquire) -> Poll<Result<Permit, QueueRefusal>> {
        Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[track_caller]
    fn assert_idle(queue: &Queue) {
        assert_eq!(queue.totals(), Totals { running: 0, waiting: 0 });
        assert!(queue.shared.lock().wakers.is_empty());
        for class in queue.stats() {
            assert_eq!((class.available_permits, class.queue_length), (class.vcpus.permits(), 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_ends_at_its_time_with_the_originals_text() {
        let queue = Queue::new();
        let permit = queue.acquire(request(1.0)).await.unwrap();
        let start = now();
        let waiting = queue.acquire(request(1.0));
        assert_eq!(
            waiting.arrival(),
            Arrival { class_created: false, available_permits: 0, queue_length: 0 }
        );
        let refusal = waiting.await.unwrap_err();
        assert_eq!(now() - start, WAIT);
        let error = SandboxError::from(refusal);
        assert_eq!((error.code, error.phase), (Code::QueueTimeout, Phase::Queue));
        assert_eq!(
            error.message,
            "Function execution queue timeout after 200ms. Too many concurrent executions."
        );
        drop(permit);
        assert_idle(&queue);
    }

    #[tokio::test(start_paused = true)]
    async fn the_order_is_that_of_the_calls_and_not_of_the_polls() {
        let queue = Queue::new();
        let first = queue.acquire(request(1.0)).await.unwrap();
        let mut second = queue.acquire(request(1.0));
        let mut third = queue.acquire(request(1.0));
        assert!(poll(&mut third).is_pending());
        assert!(poll(&mut second).is_pending());
        drop(first);
        assert!(poll(&mut third).is_pending());
        let permit = second.await.unwrap();
        drop(permit);
        drop(third.await.unwrap());
        assert_idle(&queue);
    }

    /// Not polled, polled, granted but not told, told but not polled: whenever it goes, the next one runs.
    #[tokio::test(start_paused = true)]
    async fn a_future_dropped_at_any_point_keeps_nothing() {
        for polls in 0..3 {
            for granted in [false, true] {
                let queue = Queue::new();
                let running = queue.acquire(request(1.0)).await.unwrap();
                let mut leaver = queue.acquire(request(1.0));
                let next = queue.acquire(request(1.0));
                for _ in 0..polls {
                    assert!(poll(&mut leaver).is_pending());
                }
                if granted {
                    drop(running);
                    assert_eq!(queue.totals(), Totals { running: 1, waiting: 1 });
                    drop(leaver);
                } else {
                    drop(leaver);
                    assert_eq!(queue.totals(), Totals { running: 1, waiting: 1 });
                    drop(running);
                }
                drop(next.await.unwrap());
                assert_idle(&queue);
            }
        }
        let queue = Queue::new();
        drop(queue.acquire(request(1.0)));
        assert_idle(&queue);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_comes_with_the_deadline_is_taken() {
        let queue = Queue::new();
        let running = queue.acquire(request(1.0)).await.unwrap();
        let mut waiting = queue.acquire(request(1.0));
        assert!(poll(&mut waiting).is_pending());
        tokio::time::advance(WAIT).await;
        drop(running);
        drop(waiting.await.unwrap());
        assert_idle(&queue);
    }

    #[tokio::test(start_paused = true)]
    async fn one_timer_ends_every_wait_of_its_time() {
        let queue = Queue::new();
        let running = queue.acquire(request(1.0)).await.unwrap();
        let mut waiting: Vec<_> = (0..100).map(|_| queue.acquire(request(1.0))).collect();
        for acquire in &mut waiting {
            assert!(poll(acquire).is_pending());
        }
        tokio::time::advance(WAIT).await;
        for mut acquire in waiting {
            assert!(matches!(poll(&mut acquire), Poll::Ready(Err(QueueRefusal::Timeout(WAIT)))));
        }
        drop(running);
        assert_idle(&queue);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_wait_has_no_deadline() {
        let queue = Queue::new();
        let running = queue.acquire(request(1.0)).await.unwrap();
        let waiting = queue.acquire(Request { max_wait: Duration::MAX, ..request(1.0) });
        tokio::time::advance(Duration::from_hours(24 * 365)).await;
        drop(running);
        drop(waiting.await.unwrap());
        assert_idle(&queue);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_at_once() {
        let queue = Queue::new();
        let running = queue.acquire(request(1.0)).await.unwrap();
        let waiting: Vec<_> = (0..MAX_WAITING_CALLS).map(|_| queue.acquire(request(1.0))).collect();
        let error = SandboxError::from(queue.acquire(request(1.0)).await.unwrap_err());
        assert_eq!(error.code, Code::QueueTimeout);
        assert!(error.message.starts_with("Function execution queue is full"), "{}", error.message);
        drop(waiting);
        drop(running);
        assert_idle(&queue);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn permits_survive_a_crowd_that_comes_and_goes() {
        let queue = Queue::new();
        let callers = (0..64_u32).map(|caller| {
            let queue = queue.clone();
            tokio::spawn(async move {
                for round in 0..50 {
                    let acquire = queue.acquire(Request {
                        tool_id: format!("tool {}", caller % 5).into(),
                        max_concurrent: caller.is_multiple_of(2).then_some(3),
                        max_wait: Duration::from_mins(1),
                        ..request(f64::from(1 + caller % 3))
                    });
                    tokio::select! {
                        biased;
                        permit = acquire => {
                            let permit = permit.unwrap();
                            tokio::task::yield_now().await;
                            drop(permit);
                        }
                        // Leaves after a few polls of its neighbours: a grant may be on its way.
                        () = yields((caller + round) % 7), if (caller + round) % 3 == 0 => {}
                    }
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert_idle(&queue);
    }

    async fn yields(times: u32) {
        for _ in 0..times {
            tokio::task::yield_now().await;
        }
    }
}
