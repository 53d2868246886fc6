//! What was prepared before, so that the same text costs nothing twice. Pure: a bounded table, least recently used out first.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Prepared, Runtime};

/// Texts that are remembered at most.
const MAX_ENTRIES: usize = 512;

/// What all entries may hold together: texts, codes, source maps.
const MAX_TOTAL_BYTES: usize = 16 * 1024 * 1024;

/// The part of [`MAX_TOTAL_BYTES`] that one entry may take. What is larger is prepared each time.
const MAX_ENTRY_BYTES: usize = MAX_TOTAL_BYTES / 4;

/// What [`super::prepare`] made of the texts that came last. Refusals are not kept: a refused text costs no more than this.
///
/// The key is all that the result depends on: the whole text, not a digest of it, and the runtime. Nothing that runs in a
/// worker reaches this table.
#[derive(Debug)]
pub struct Cache {
    entries: [HashMap<Arc<str>, Entry>; 2],
    total_bytes: usize,
    /// Counts look-ups and insertions: the clock of this table.
    now: u64,
    hits: u64,
    limits: Limits,
}

/// Of a table of what was made of texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) entries: usize,
    pub(super) total_bytes: usize,
    pub(super) entry_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    prepared: Arc<Prepared>,
    bytes: usize,
    used: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Self::with_limits(Limits {
            entries: MAX_ENTRIES,
            total_bytes: MAX_TOTAL_BYTES,
            entry_bytes: MAX_ENTRY_BYTES,
        })
    }
}

impl Cache {
    fn with_limits(limits: Limits) -> Self {
        Self { entries: Default::default(), total_bytes: 0, now: 0, hits: 0, limits }
    }

    /// What was made of `text`, if it is remembered.
    pub fn get(&mut self, text: &str, runtime: Runtime) -> Option<Arc<Prepared>> {
        self.now += 1;
        let entry = self.entries[runtime as usize].get_mut(text)?;
        entry.used = self.now;
        self.hits += 1;
        Some(Arc::clone(&entry.prepared))
    }

    /// Remembers what was made of `text`.
    pub fn insert(&mut self, text: &str, runtime: Runtime, prepared: Arc<Prepared>) {
        let bytes = bytes_of(text, &prepared);
        if bytes > self.limits.entry_bytes {
            return;
        }
        self.now += 1;
        let entry = Entry { prepared, bytes, used: self.now };
        self.total_bytes += bytes;
        if let Some(before) = self.entries[runtime as usize].insert(Arc::from(text), entry) {
            self.total_bytes -= before.bytes;
        }
        while self.len() > self.limits.entries || self.total_bytes > self.limits.total_bytes {
            self.drop_oldest();
        }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.iter().map(HashMap::len).sum()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often something was remembered.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// A walk over all: there are few, and it is only taken when one comes and the table is full.
    fn drop_oldest(&mut self) {
        let all = self.entries.iter().enumerate();
        let used =
            all.flat_map(|(of, entries)| entries.iter().map(move |(text, entry)| (entry.used, of, text)));
        let Some((_, of, text)) = used.min_by_key(|(used, ..)| *used) else { return };
        let text = Arc::clone(text);
        if let Some(entry) = self.entries[of].remove(&text) {
            self.total_bytes -= entry.bytes;
        }
    }
}

fn bytes_of(text: &str, prepared: &Prepared) -> usize {
    let names = prepared.packages.iter().chain(prepared.imports.iter().map(|import| &import.package));
    let names: usize = names.map(|name| name.len() + size_of::<String>()).sum();
    let source_map = prepared.source_map.as_ref().map_or(0, String::len);
    text.len() + prepared.code.len() + source_map + names + size_of::<Entry>() + size_of::<Prepared>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::prepare;

    fn made(text: &str) -> Arc<Prepared> {
        Arc::new(prepare(text, Runtime::Node22).expect("it is a function"))
    }

    fn small() -> Cache {
        Cache::with_limits(Limits { entries: 3, total_bytes: 4_000, entry_bytes: 2_000 })
    }

    #[test]
    fn what_was_put_in_comes_out_for_the_same_text_and_runtime_only() {
        let mut cache = Cache::default();
        let prepared = made("() => 1");
        cache.insert("() => 1", Runtime::Node22, Arc::clone(&prepared));
        assert_eq!(cache.get("() => 1", Runtime::Node22), Some(prepared));
        assert_eq!(cache.get("() => 1", Runtime::TypeScript), None);
        assert_eq!(cache.get("() => 1 ", Runtime::Node22), None);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = small();
        for text in ["() => 1", "() => 2", "() => 3"] {
            cache.insert(text, Runtime::Node22, made(text));
        }
        assert!(cache.get("() => 1", Runtime::Node22).is_some());
        cache.insert("() => 4", Runtime::TypeScript, made("() => 4"));
        assert!(cache.get("() => 2", Runtime::Node22).is_none());
        assert!(cache.get("() => 1", Runtime::Node22).is_some());
        assert!(cache.get("() => 4", Runtime::TypeScript).is_some());
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let mut cache = small();
        let text = format!("() => '{}'", "a".repeat(2_000));
        cache.insert(&text, Runtime::Node22, made(&text));
        assert!(cache.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn limits_hold_whatever_comes(steps in prop::collection::vec((0..12_usize, any::<bool>(), 0..900_usize), 0..60)) {
            let mut cache = small();
            for (name, typescript, length) in steps {
                let runtime = if typescript { Runtime::TypeScript } else { Runtime::Node22 };
                let text = format!("() => {name} // {}", "x".repeat(length));
                if cache.get(&text, runtime).is_none() {
                    cache.insert(&text, runtime, made(&text));
                }
                let held: usize = cache.entries.iter().flat_map(HashMap::values).map(|entry| entry.bytes).sum();
                prop_assert_eq!(held, cache.total_bytes);
                prop_assert!(cache.len() <= 3 && held <= 4_000);
            }
        }
    }
}
