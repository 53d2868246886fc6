//! A value that is found out once. A failure is given to all who waited for that attempt, and then forgotten: the next caller
//! tries again.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Mutex;

/// The value, once it is known.
#[derive(Debug)]
pub struct RetryCell<T, E> {
    found: OnceLock<T>,
    /// Attempts that failed so far.
    failures: AtomicU64,
    /// The last failure. Locked for as long as an attempt takes.
    last: Mutex<Option<E>>,
}

impl<T, E> Default for RetryCell<T, E> {
    fn default() -> Self {
        Self { found: OnceLock::new(), failures: AtomicU64::new(0), last: Mutex::new(None) }
    }
}

impl<T, E: Clone> RetryCell<T, E> {
    /// The value, if it is known.
    pub fn get(&self) -> Option<&T> {
        self.found.get()
    }

    /// The value; found out by `attempt` unless it is known. Callers that come while another caller's attempt runs wait for that
    /// attempt and get its failure, too. Cancel-safe: a caller that goes away leaves its attempt to the next one.
    pub async fn get_or_try(&self, attempt: impl Future<Output = Result<T, E>>) -> Result<&T, E> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let seen = self.failures.load(Ordering::Acquire);
        let mut last = self.last.lock().await;
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        if let Some(failure) = last.as_ref().filter(|_| self.failures.load(Ordering::Acquire) != seen) {
            return Err(failure.clone());
        }
        match attempt.await {
            Ok(found) => Ok(self.found.get_or_init(|| found)),
            Err(failure) => {
                *last = Some(failure.clone());
                self.failures.fetch_add(1, Ordering::Release);
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[tokio::test]
    async fn a_failure_is_forgotten_and_a_value_is_not() {
        let cell = RetryCell::<u8, &str>::default();
        assert_eq!(cell.get_or_try(async { Err("no room") }).await, Err("no room"));
        assert_eq!(cell.get(), None);
        assert_eq!(cell.get_or_try(async { Ok(1) }).await, Ok(&1));
        assert_eq!(cell.get_or_try(async { Err("never asked") }).await, Ok(&1));
    }

    #[tokio::test]
    async fn callers_that_wait_share_one_failed_attempt() {
        let cell = Arc::new(RetryCell::<u8, String>::default());
        let attempts = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let (cell, attempts) = (Arc::clone(&cell), Arc::clone(&attempts));
                tokio::spawn(async move {
                    let attempt = async {
                        let number = attempts.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                        Err(format!("attempt {number}"))
                    };
                    cell.get_or_try(attempt).await.copied()
                })
            })
            .collect();
        for caller in callers {
            assert_eq!(caller.await.unwrap(), Err("attempt 0".to_owned()));
        }
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_the_attempt_to_the_next() {
        let cell = RetryCell::<u8, &str>::default();
        let gone = tokio::time::timeout(
            std::time::Duration::from_millis(1),
            cell.get_or_try(std::future::pending::<Result<u8, &str>>()),
        );
        assert!(gone.await.is_err());
        assert_eq!(cell.get_or_try(async { Ok(2) }).await, Ok(&2));
    }
}
