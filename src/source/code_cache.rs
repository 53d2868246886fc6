//! V8's code caches of texts, so that a large text is compiled once and not by each worker. Pure: a bounded table, least recently used
//! out first, and what is to be done with a text at each of its uses.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use sha2::{Digest, Sha256};

use super::{Kind, Prepared, cache::Limits};

/// A shorter text is compiled in less time than it takes to hand a cache over.
const MIN_CODE_BYTES: usize = 8 * 1024;
/// Texts that something is known of at most.
const MAX_ENTRIES: usize = 256;
/// What all caches may hold together.
const MAX_TOTAL_BYTES: usize = 16 * 1024 * 1024;
/// A larger cache is not kept. They are smaller than their texts: functions that nothing has called are not in them.
pub const MAX_CACHE_BYTES: usize = MAX_TOTAL_BYTES / 4;

/// Names a text: the SHA-256 of its code.
pub type CodeDigest = [u8; 32];

/// What V8 asks for, beside the text: a cache made under others is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Flags {
    /// The Node executable.
    pub node: PathBuf,
    /// Its heap limit.
    pub memory_mb: u32,
    /// Whether workers are forked from a zygote.
    pub forked: bool,
}

/// A text for workers of one kind.
pub type Key = (CodeDigest, Flags);

/// What a use of a text is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    /// Compile it.
    Plain,
    /// And have a cache made, for later uses.
    Make,
    /// With this.
    With(Arc<[u8]>),
}

/// See the module. Nothing that runs in a worker reaches this table.
#[derive(Debug)]
pub struct CodeCache {
    entries: HashMap<Key, Entry>,
    total_bytes: usize,
    /// Counts uses: the clock of this table.
    now: u64,
    limits: Limits,
    counts: Counts,
}

/// Totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Caches made.
    pub made: u64,
    /// Uses that were spared the compilation.
    pub accepted: u64,
    /// Caches that V8 refused, or that came as none.
    pub refused: u64,
}

#[derive(Debug)]
struct Entry {
    used: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Used once: most texts never come again.
    Seen,
    Making,
    Kept(Arc<[u8]>),
    /// Not tried again.
    None,
}

impl Default for CodeCache {
    fn default() -> Self {
        Self::with_limits(Limits {
            entries: MAX_ENTRIES,
            total_bytes: MAX_TOTAL_BYTES,
            entry_bytes: MAX_CACHE_BYTES,
        })
    }
}

impl CodeCache {
    fn with_limits(limits: Limits) -> Self {
        Self { entries: HashMap::new(), total_bytes: 0, now: 0, limits, counts: Counts::default() }
    }

    /// Notes a use of a text and says what it is to do.
    pub fn take(&mut self, key: &Key) -> Use {
        self.now += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.used = self.now;
            return match &entry.state {
                State::Kept(bytes) => Use::With(Arc::clone(bytes)),
                State::Making | State::None => Use::Plain,
                State::Seen => {
                    entry.state = State::Making;
                    Use::Make
                }
            };
        }
        self.entries.insert(key.clone(), Entry { used: self.now, state: State::Seen });
        self.shrink();
        Use::Plain
    }

    /// What came of a [`Use::Make`]. Of a text that was forgotten meanwhile, nothing is kept.
    pub fn made(&mut self, key: &Key, bytes: Option<Vec<u8>>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let fit = bytes.filter(|bytes| !bytes.is_empty() && bytes.len() <= self.limits.entry_bytes);
        let Some(bytes) = fit else {
            self.counts.refused += 1;
            entry.state = State::None;
            return;
        };
        self.counts.made += 1;
        self.total_bytes += bytes.len();
        let before = std::mem::replace(&mut entry.state, State::Kept(bytes.into()));
        self.total_bytes -= before.bytes();
        self.shrink();
    }

    /// What V8 said to a [`Use::With`]. What it refused once it is not given again.
    pub fn judged(&mut self, key: &Key, accepted: bool) {
        if accepted {
            self.counts.accepted += 1;
            return;
        }
        self.counts.refused += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            self.total_bytes -= std::mem::replace(&mut entry.state, State::None).bytes();
        }
    }

    /// Caches that are kept, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let kept = self.entries.values().filter(|entry| matches!(entry.state, State::Kept(_)));
        (kept.count(), self.total_bytes)
    }

    /// Totals.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A walk over all: there are few, and it is only taken when one comes and the table is full.
    fn shrink(&mut self) {
        while self.entries.len() > self.limits.entries || self.total_bytes > self.limits.total_bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(gone) = oldest.and_then(|key| self.entries.remove(&key)) else { return };
            self.total_bytes -= gone.state.bytes();
        }
    }
}

impl State {
    fn bytes(&self) -> usize {
        if let Self::Kept(bytes) = self { bytes.len() } else { 0 }
    }
}

/// The name of a text for which a cache pays. Modules have none: Node loads them from files, and takes no cache with one.
pub(super) fn digest(prepared: &Prepared) -> Option<CodeDigest> {
    let pays = prepared.kind == Kind::Script && prepared.code.len() >= MIN_CODE_BYTES;
    pays.then(|| Sha256::digest(prepared.code.as_bytes()).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::{Runtime, prepare};

    fn key(text: u8) -> Key {
        ([text; 32], Flags { node: "/node".into(), memory_mb: 64, forked: true })
    }

    fn small() -> CodeCache {
        CodeCache::with_limits(Limits { entries: 3, total_bytes: 1_000, entry_bytes: 600 })
    }

    #[test]
    fn the_second_use_has_it_made_and_later_ones_take_it() {
        let mut cache = CodeCache::default();
        assert_eq!(cache.take(&key(1)), Use::Plain);
        assert_eq!(cache.take(&key(1)), Use::Make);
        assert_eq!(cache.take(&key(1)), Use::Plain);
        cache.made(&key(1), Some(vec![7]));
        assert_eq!(cache.take(&key(1)), Use::With([7].into()));
        cache.judged(&key(1), true);
        let other = (key(1).0, Flags { forked: false, ..key(1).1 });
        assert_eq!(cache.take(&other), Use::Plain);
        assert_eq!(cache.held(), (1, 1));
        assert_eq!(cache.counts(), Counts { made: 1, accepted: 1, refused: 0 });
    }

    #[test]
    fn what_was_refused_or_never_came_is_not_tried_again() {
        let mut cache = small();
        for (text, made) in [(1, Some(vec![7])), (2, None), (3, Some(vec![0; 601]))] {
            cache.take(&key(text));
            assert_eq!(cache.take(&key(text)), Use::Make);
            cache.made(&key(text), made);
        }
        cache.judged(&key(1), false);
        for text in 1..4 {
            assert_eq!(cache.take(&key(text)), Use::Plain);
        }
        assert_eq!((cache.held(), cache.counts().refused), ((0, 0), 3));
        cache.made(&key(9), Some(vec![7]));
        assert_eq!(cache.held(), (0, 0));
    }

    #[test]
    fn small_texts_and_modules_have_none() {
        let text = |body: &str| format!("{body} // {}", "x".repeat(MIN_CODE_BYTES));
        let prepared = |text: &str| prepare(text, Runtime::TypeScript).unwrap();
        assert_eq!(prepared("() => 1").code_digest, None);
        assert_eq!(prepared(&text("export default () => 1;")).code_digest, None);
        let long = format!("() => '{}'", "x".repeat(MIN_CODE_BYTES));
        let (one, two) = (prepared(&long), prepare(&long, Runtime::Node22).unwrap());
        assert_eq!(one.code_digest, Some(Sha256::digest(&one.code).into()));
        assert_eq!(two.code_digest, Some(Sha256::digest(&two.code).into()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn limits_hold_whatever_comes(steps in prop::collection::vec((0..8_u8, 0..700_usize, any::<bool>()), 0..80)) {
            let mut cache = small();
            for (text, bytes, accepted) in steps {
                match cache.take(&key(text)) {
                    Use::Make => cache.made(&key(text), Some(vec![0; bytes])),
                    Use::With(_) => cache.judged(&key(text), accepted),
                    Use::Plain => {}
                }
                let held: usize = cache.entries.values().map(|entry| entry.state.bytes()).sum();
                prop_assert_eq!(held, cache.total_bytes);
                prop_assert!(cache.entries.len() <= 3 && held <= 1_000);
            }
        }
    }
}
