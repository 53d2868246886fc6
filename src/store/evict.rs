//! Which generations go. Pure.

use std::{
    collections::{HashMap, HashSet},
    time::SystemTime,
};

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
    /// Whose it is: a digest of the tenant's name.
    pub(super) tenant: String,
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

    /// Whether `entry` was used lately enough.
    fn is_young(&self, entry: &Entry) -> bool {
        self.used_since.is_none_or(|since| entry.last_used >= since)
    }
}

/// Which trees go, one after the other. Each tenant has an equal share of the room: while all trees take too much, the least recently
/// used one goes of those tenants that take more than theirs, so that nobody's trees go because of another tenant's.
#[derive(Debug)]
pub(super) struct Eviction {
    /// The least recently used first.
    left: Vec<Entry>,
    /// What each tenant's trees take, with those that are in use.
    taken: HashMap<String, u64>,
    keep: Keep,
}

impl Eviction {
    /// Of these trees, the least recently used first.
    pub(super) fn new(oldest_first: Vec<Entry>, keep: Keep) -> Self {
        let mut taken = HashMap::<String, u64>::new();
        for entry in &oldest_first {
            let sum = taken.entry(entry.tenant.clone()).or_default();
            *sum = sum.saturating_add(entry.bytes);
        }
        Self { left: oldest_first, taken, keep }
    }

    /// The next one that has to go, if any has to.
    pub(super) fn next(&mut self) -> Option<Entry> {
        if self.left.first().is_some_and(|oldest| !self.keep.is_young(oldest)) {
            return Some(self.left.remove(0));
        }
        let bytes = self.taken.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        if bytes <= self.keep.max_bytes {
            return None;
        }
        let tenants = self.taken.values().filter(|bytes| **bytes > 0).count().max(1) as u64;
        let share = self.keep.max_bytes / tenants;
        let at = self
            .left
            .iter()
            .position(|entry| self.taken.get(&entry.tenant).is_some_and(|taken| *taken > share))?;
        Some(self.left.remove(at))
    }

    /// To be told of each that went, or was gone.
    pub(super) fn went(&mut self, entry: &Entry) {
        if let Some(taken) = self.taken.get_mut(&entry.tenant) {
            *taken = taken.saturating_sub(entry.bytes);
        }
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
            tenant: String::new(),
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
        let entry = Entry { bytes: 10, ..entry("a", "1", 5, true) };
        let goes = |keep| Eviction::new(vec![entry.clone()], keep).next().is_some();
        assert!(!goes(Keep::at_most(10)) && goes(Keep::at_most(9)));
        let since = |hour, max_bytes| Keep { max_bytes, used_since: Some(at(hour)) };
        assert!(!goes(since(5, 10)) && goes(since(5, 9)) && goes(since(6, 10)));
    }

    fn of(tenant: &str, key: &str, used_s: u64, bytes: u64) -> Entry {
        Entry { tenant: tenant.to_owned(), bytes, ..entry(key, "1", used_s, true) }
    }

    fn evicted(entries: Vec<Entry>, max_bytes: u64, in_use: &str) -> String {
        let mut eviction = Eviction::new(entries, Keep::at_most(max_bytes));
        let mut gone = String::new();
        while let Some(entry) = eviction.next() {
            if !in_use.contains(&entry.key) {
                eviction.went(&entry);
                gone += &entry.key;
            }
        }
        gone
    }

    #[test]
    fn a_tenant_that_takes_more_than_its_share_loses_its_own_trees_only() {
        let entries = || {
            vec![
                of("victim", "v", 1, 30),
                of("evil", "a", 2, 30),
                of("evil", "b", 3, 30),
                of("evil", "c", 4, 30),
            ]
        };
        assert_eq!(evicted(entries(), 100, ""), "a");
        assert_eq!(evicted(entries(), 70, ""), "ab");
        // What is in use stays, and nobody else's goes for it.
        assert_eq!(evicted(entries(), 100, "abc"), "");
        assert_eq!(evicted(entries(), 100, "a"), "b");
    }

    #[test]
    fn one_tenant_has_all_the_room() {
        assert_eq!(evicted(vec![of("", "a", 1, 50), of("", "b", 2, 50)], 100, ""), "");
        assert_eq!(evicted(vec![of("", "a", 1, 50), of("", "b", 2, 51)], 100, ""), "a");
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
