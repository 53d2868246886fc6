//! How many workers to keep ready: as many as calls run at once, and more when they come too fast. Pure: time is an argument.

use std::time::{Duration, Instant};

/// The most workers one stock keeps ready.
pub(super) const MAX_READY: usize = 8;

/// Without a call for this long, one fewer is kept ready.
const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// Without a call for this long, none is.
const IDLE_AFTER: Duration = Duration::from_mins(1);

/// The size of a stock: grows with the calls that run at once, shrinks when calls stay away.
#[derive(Debug, Default)]
pub(super) struct Sizing {
    target: usize,
    last_take: Option<Instant>,
    last_change: Option<Instant>,
}

impl Sizing {
    /// How many workers are to be ready.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// A call came while `running` others run workers of this stock or wait for one; `missed`: it found none ready.
    ///
    /// Making a worker takes longer than a short call does, so calls one after the other use a stock up however large it
    /// is. A larger one lets a burst of them be fast, and its limit bounds what that costs.
    pub(super) fn taken(&mut self, running: usize, missed: bool, now: Instant) {
        self.last_take = Some(now);
        let for_burst = if missed { self.target + 1 } else { 0 };
        let wanted = (running + 1).max(for_burst).min(MAX_READY);
        if wanted > self.target {
            self.set(wanted, now);
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now: Instant) {
        let since =
            |then: Option<Instant>| then.map_or(Duration::MAX, |then| now.saturating_duration_since(then));
        if since(self.last_take) >= IDLE_AFTER {
            self.set(0, now);
        } else if since(self.last_take) >= SHRINK_AFTER
            && since(self.last_change) >= SHRINK_AFTER
            && self.target > 1
        {
            self.set(self.target - 1, now);
        }
    }

    fn set(&mut self, target: usize, now: Instant) {
        if self.target != target {
            self.target = target;
            self.last_change = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_the_calls_at_once_up_to_its_limit() {
        let (mut sizing, now) = (Sizing::default(), Instant::now());
        let mut seen = Vec::new();
        for running in [0, 0, 3, 1, 100] {
            sizing.taken(running, false, now);
            seen.push(sizing.target());
        }
        assert_eq!(seen, [1, 1, 4, 4, MAX_READY]);
    }

    #[test]
    fn it_grows_when_calls_find_none_ready() {
        let (mut sizing, now) = (Sizing::default(), Instant::now());
        let mut seen = Vec::new();
        for missed in [true, false, true, true, false] {
            sizing.taken(0, missed, now);
            seen.push(sizing.target());
        }
        assert_eq!(seen, [1, 1, 2, 3, 3]);
        (0..100).for_each(|_| sizing.taken(0, true, now));
        assert_eq!(sizing.target(), MAX_READY);
    }

    #[test]
    fn it_shrinks_step_by_step_and_ends_when_idle() {
        let (mut sizing, start) = (Sizing::default(), Instant::now());
        sizing.taken(3, false, start);
        let mut at = |seconds| {
            sizing.tick(start + Duration::from_secs(seconds));
            sizing.target()
        };
        assert_eq!([at(5), at(10), at(11), at(20), at(30), at(40)], [4, 3, 3, 2, 1, 1]);
        assert_eq!(at(60), 0);
        sizing.taken(0, false, start + Duration::from_secs(61));
        assert_eq!(sizing.target(), 1);
    }
}
