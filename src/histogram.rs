//! Counts of durations by size, for metrics. Lock-free; the bounds are fixed, so that what is exported has a known size.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

/// Upper bounds, each inclusive; what is longer than the last has a place of its own.
pub const BOUNDS_MS: [u64; 15] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];

/// See the module.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Counts one.
    pub fn add(&self, duration: Duration) {
        let at = BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < duration);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// `counts` are those of each range by itself, the last one of what is beyond all bounds.
    pub fn to_json(&self) -> Value {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum = Duration::from_micros(self.sum_us.load(Ordering::Relaxed));
        json!({ "counts": counts, "count": counts.iter().sum::<u64>(), "sumMs": crate::timeline::ms(sum) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_range() {
        let histogram = Histogram::default();
        for us in [0, 1_000, 1_001, 2_000, 60_000_000, 60_000_001] {
            histogram.add(Duration::from_micros(us));
        }
        let found = histogram.to_json();
        let counts = found["counts"].as_array().unwrap();
        assert_eq!(
            (&counts[0], &counts[1], &counts[14], &counts[15]),
            (&json!(2), &json!(2), &json!(1), &json!(1))
        );
        assert_eq!((&found["count"], &found["sumMs"]), (&json!(6), &json!(120_004.002)));
    }
}
