//! Which generations go. Pure.

use std::{collections::HashSet, time::SystemTime};

/// A generation on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its key's folder.
    pub(super) key: String,
    /// Its own.
    pub(super) generation: String,
    /// What it takes; of an incomplete one, nothing is known.
    pub(super) bytes: u64,
    /// Its last lease, to the minute.
    pub(super) last_used: SystemTime,
    /// Whether its marker is there.
    pub(super) complete: bool,
}

/// What is to be tried, in this order. What is leased stays all the same: who removes finds that out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// Of no use to anybody: incomplete, or not the newest complete one of its key. Always removed.
    pub(super) useless: Vec<Entry>,
    /// The others, the least recently used first; removed while all of them together take too much.
    pub(super) oldest_first: Vec<Entry>,
}

/// What may stay of the trees that are not in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// What all trees may take together, bytes. Those in use count, and stay whatever they take.
    pub max_bytes: u64,
    /// Trees that were last used before go, however much room there is.
    pub used_since: Option<SystemTime>,
}

impl Keep {
    /// No more than `max_bytes` of them.
    pub fn at_most(max_bytes: u64) -> Self {
        Self { max_bytes, used_since: None }
    }

    /// Whether `entry`, the least recently used one of what takes `bytes` together, stays; then all others do.
    pub(super) fn stays(&self, entry: &Entry, bytes: u64) -> bool {
        bytes <= self.max_bytes && self.used_since.is_none_or(|since| entry.last_used >= since)
    }
}

/// Sorts `entries`. Those of one key must stand newest first.
pub(super) fn plan(entries: Vec<Entry>) -> Plan {
    let mut served = HashSet::new();
    let (mut oldest_first, useless): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.complete && served.insert(entry.key.clone()));
    oldest_first
        .sort_by(|a, b| (a.last_used, &a.key, &a.generation).cmp(&(b.last_used, &b.key, &b.generation)));
    Plan { useless, oldest_first }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn entry(key: &str, generation: &str, used_s: u64, complete: bool) -> Entry {
        Entry {
            key: key.to_owned(),
            generation: generation.to_owned(),
            bytes: 1,
            last_used: SystemTime::UNIX_EPOCH + Duration::from_secs(used_s),
            complete,
        }
    }

    fn names(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(|entry| format!("{}{}", entry.key, entry.generation)).collect()
    }

    #[test]
    fn the_newest_complete_generation_of_a_key_serves() {
        let plan = plan(vec![
            entry("a", "3", 9, false),
            entry("a", "2", 5, true),
            entry("a", "1", 8, true),
            entry("b", "1", 4, true),
            entry("c", "1", 7, false),
        ]);
        assert_eq!(names(&plan.useless), ["a3", "a1", "c1"]);
        assert_eq!(names(&plan.oldest_first), ["b1", "a2"]);
    }

    #[test]
    fn what_is_too_much_or_too_old_goes() {
        let at = |hour| SystemTime::UNIX_EPOCH + Duration::from_secs(hour);
        let entry = entry("a", "1", 5, true);
        assert!(Keep::at_most(10).stays(&entry, 10));
        assert!(!Keep::at_most(10).stays(&entry, 11));
        let since = |hour| Keep { max_bytes: 10, used_since: Some(at(hour)) };
        assert!(since(5).stays(&entry, 10) && !since(5).stays(&entry, 11));
        assert!(!since(6).stays(&entry, 0));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_order_is_by_use(
            raw in proptest::collection::vec((0..4_u8, 0..100_u64, any::<bool>()), 0..20)
        ) {
            let entries: Vec<_> = raw
                .iter()
                .enumerate()
                .map(|(at, (key, used, complete))| entry(&key.to_string(), &at.to_string(), *used, *complete))
                .collect();
            let planned = plan(entries.clone());
            prop_assert_eq!(planned.useless.len() + planned.oldest_first.len(), entries.len());
            prop_assert!(planned.oldest_first.is_sorted_by_key(|entry| entry.last_used));
            let keys: HashSet<_> = planned.oldest_first.iter().map(|entry| &entry.key).collect();
            prop_assert_eq!(keys.len(), planned.oldest_first.len());
            prop_assert!(planned.oldest_first.iter().all(|entry| entry.complete));
        }
    }
}
