//! How soon a launcher that keeps dying is started again. Pure.

use std::time::{Duration, Instant};

/// A life shorter than this is a failure to live.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// How many short lives in a row are taken for bad luck.
const FREE_DEATHS: u32 = 3;

/// The first wait, doubled by each further short life up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    short_lives: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    /// A launcher lived from `born` to `died`.
    pub(super) fn died(&mut self, born: Instant, died: Instant) {
        if died.saturating_duration_since(born) >= SHORT_LIFE {
            *self = Self::default();
            return;
        }
        self.short_lives = self.short_lives.saturating_add(1);
        let doublings = self.short_lives.checked_sub(FREE_DEATHS);
        self.not_before = doublings.map(|doublings| {
            let wait = WAIT_MIN.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
            died + wait.min(WAIT_MAX)
        });
    }

    /// How long until the next try; none: now.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let wait = self.not_before?.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_short_lives_are_free_then_waits_double_up_to_a_limit() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..12)
            .map(|_| {
                backoff.died(now, now);
                backoff.wait(now).map_or(0, |wait| wait.as_millis())
            })
            .collect();
        assert_eq!(waits, [0, 0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]);
        assert_eq!(backoff.wait(now + WAIT_MAX), None);
        for _ in 0..100 {
            backoff.died(now, now);
        }
        assert_eq!(backoff.wait(now), Some(WAIT_MAX));
    }

    #[test]
    fn a_long_life_forgives() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        for _ in 0..5 {
            backoff.died(now, now);
        }
        backoff.died(now, now + SHORT_LIFE);
        assert_eq!(backoff.wait(now), None);
        backoff.died(now, now);
        assert_eq!(backoff.wait(now), None);
    }
}
