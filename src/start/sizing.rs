//! How many workers to keep ready: as many as calls run at once, as far as memory goes; and which zygotes end where it does not go
//! far enough. Pure: time is an argument.

use std::time::{Duration, Instant};

/// The most workers one stock keeps ready.
pub(super) const MAX_READY: usize = 8;

/// Without a call for this long, one fewer is kept ready.
const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// Without a call for this long, none is.
const IDLE_AFTER: Duration = Duration::from_mins(1);

/// The size of a stock: grows with the calls that run at once, shrinks when calls stay away.
#[derive(Debug)]
pub(super) struct Sizing {
    target: usize,
    /// What memory allows.
    cap: usize,
    last_take: Option<Instant>,
    last_change: Option<Instant>,
}

impl Default for Sizing {
    fn default() -> Self {
        Self { target: 0, cap: MAX_READY, last_take: None, last_change: None }
    }
}

impl Sizing {
    /// How many workers are to be ready.
    pub(super) fn target(&self) -> usize {
        self.target.min(self.cap)
    }

    /// How many would be, if memory were no matter.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn wanted(&self) -> usize {
        self.target
    }

    /// No more than this are to be ready, whatever calls come.
    #[cfg(any(target_os = "linux", test))]
    pub(super) fn cap(&mut self, most: usize) {
        self.cap = most;
    }

    /// A call came while `running` others run workers of this stock or wait for one.
    ///
    /// Not the calls that found none ready: one after the other they would find none now and then however many there
    /// are, since making one takes longer than using it.
    pub(super) fn taken(&mut self, running: usize, now: Instant) {
        self.last_take = Some(now);
        let wanted = (running + 1).min(MAX_READY);
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

/// A zygote with the workers that it keeps ready.
#[cfg(any(target_os = "linux", test))]
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Of the zygote itself, bytes.
    pub(super) zygote_bytes: u64,
    /// Of each worker that is ready, bytes.
    pub(super) worker_bytes: u64,
    /// How many would be ready, if memory were no matter.
    pub(super) wanted: usize,
    /// When it was last used; none for one that must not end: a base, or one with calls that run.
    pub(super) idle_since: Option<Instant>,
}

/// What keeps all zygotes within their limit.
#[cfg(any(target_os = "linux", test))]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Which of them end.
    pub(super) ended: Vec<usize>,
    /// How many workers each of the others may keep ready.
    pub(super) cap: usize,
}

/// Fewer workers are kept ready first, down to one of each kind; then the least recently used idle zygotes end, until what is left
/// fits; and where nothing is left to end, no worker is kept ready.
#[cfg(any(target_os = "linux", test))]
pub(super) fn cut(held: &[Held], limit_bytes: u64) -> Cut {
    let mut kept: Vec<usize> = (0..held.len()).collect();
    let mut ended = Vec::new();
    while total(held, &kept, 1) > limit_bytes {
        let idle = kept.iter().enumerate().filter_map(|(at, index)| Some((held[*index].idle_since?, at)));
        let Some((_, at)) = idle.min() else { break };
        ended.push(kept.remove(at));
    }
    let fits = |cap: &usize| total(held, &kept, *cap) <= limit_bytes;
    let cap = (0..=MAX_READY).rev().find(fits).unwrap_or(0);
    Cut { ended, cap }
}

/// Bytes of these, each with `cap` workers ready at most.
#[cfg(any(target_os = "linux", test))]
fn total(held: &[Held], kept: &[usize], cap: usize) -> u64 {
    let of_one = |one: &Held| {
        let ready = u64::try_from(one.wanted.min(cap)).unwrap_or(u64::MAX);
        one.zygote_bytes.saturating_add(one.worker_bytes.saturating_mul(ready))
    };
    kept.iter().fold(0, |sum: u64, index| sum.saturating_add(of_one(&held[*index])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(zygote_bytes: u64, wanted: usize, idle_since: Option<Instant>) -> Held {
        Held { zygote_bytes, worker_bytes: 10, wanted, idle_since }
    }

    #[test]
    fn stocks_shrink_before_zygotes_end_and_the_least_recently_used_ends_first() {
        let now = Instant::now();
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        let all = [held(50, 8, None), held(100, 4, at(2)), held(100, 0, at(1)), held(100, 2, None)];
        let of = |limit| cut(&all, limit);
        assert_eq!(of(1000), Cut { ended: vec![], cap: 8 });
        assert_eq!(of(490), Cut { ended: vec![], cap: 8 });
        assert_eq!(of(489), Cut { ended: vec![], cap: 7 });
        assert_eq!(of(380), Cut { ended: vec![], cap: 1 });
        assert_eq!(of(379), Cut { ended: vec![2], cap: 6 }, "its room is the others'");
        assert_eq!(of(250), Cut { ended: vec![2, 1], cap: 8 });
        assert_eq!(of(170), Cut { ended: vec![2, 1], cap: 1 });
        assert_eq!(of(169), Cut { ended: vec![2, 1], cap: 0 });
        assert_eq!(of(0), Cut { ended: vec![2, 1], cap: 0 }, "a base stays, and so does what is in use");
        assert_eq!(cut(&[], 0), Cut { ended: vec![], cap: 8 });
    }

    fn any_held() -> impl Strategy<Value = Vec<Held>> {
        let start = Instant::now();
        let one = (0_u64..200, 0_u64..30, 0_usize..=MAX_READY, prop::option::of(0_u64..20)).prop_map(
            move |(zygote_bytes, worker_bytes, wanted, idle)| Held {
                zygote_bytes,
                worker_bytes,
                wanted,
                idle_since: idle.map(|seconds| start + Duration::from_secs(seconds)),
            },
        );
        prop::collection::vec(one, 0..20)
    }

    proptest! {
        #[test]
        fn what_is_kept_fits_unless_nothing_more_can_end(held in any_held(), limit in 0_u64..3000) {
            let Cut { ended, cap } = cut(&held, limit);
            let kept: Vec<usize> = (0..held.len()).filter(|index| !ended.contains(index)).collect();
            let idle_left = kept.iter().filter(|index| held[**index].idle_since.is_some()).count();
            prop_assert!(total(&held, &kept, cap) <= limit || (idle_left == 0 && cap == 0));
            // None that must stay ends, and none before one that was used less recently.
            let ends: Vec<_> = ended.iter().map(|index| held[*index].idle_since).collect();
            prop_assert!(ends.iter().all(Option::is_some) && ends.is_sorted());
            let newest = ends.last().copied().flatten();
            prop_assert!(kept.iter().all(|index| held[*index].idle_since.is_none_or(|since| newest.is_none_or(|newest| newest <= since))));
            // None ends in vain: without the last of them it would not fit.
            if let Some(last) = ended.last() {
                let with_it: Vec<usize> = kept.iter().copied().chain([*last]).collect();
                prop_assert!(total(&held, &with_it, 1) > limit);
            }
        }

        #[test]
        fn more_memory_never_ends_more(held in any_held(), limit in 0_u64..3000, more in 0_u64..500) {
            let (less, more) = (cut(&held, limit), cut(&held, limit + more));
            prop_assert!(more.ended.len() <= less.ended.len());
        }
    }

    #[test]
    fn it_grows_with_the_calls_at_once_up_to_its_limit() {
        let (mut sizing, now) = (Sizing::default(), Instant::now());
        let mut seen = Vec::new();
        for running in [0, 0, 3, 1, 100] {
            sizing.taken(running, now);
            seen.push(sizing.target());
        }
        assert_eq!(seen, [1, 1, 4, 4, MAX_READY]);
    }

    #[test]
    fn it_shrinks_step_by_step_and_ends_when_idle() {
        let (mut sizing, start) = (Sizing::default(), Instant::now());
        sizing.taken(3, start);
        let mut at = |seconds| {
            sizing.tick(start + Duration::from_secs(seconds));
            sizing.target()
        };
        assert_eq!([at(5), at(10), at(11), at(20), at(30), at(40)], [4, 3, 3, 2, 1, 1]);
        assert_eq!(at(60), 0);
        sizing.taken(0, start + Duration::from_secs(61));
        assert_eq!(sizing.target(), 1);
    }
}
