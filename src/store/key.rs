//! What names a tree in the store. Pure.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::hex;

/// Part of every name: a change of the layout of trees makes other names, so that versions of this package do not meet in one.
const LAYOUT_VERSION: u32 = 1;
/// Hexadecimal digits of a key.
const KEY_DIGITS: usize = 64;

/// The name of a tree: the SHA-256 of everything that changes what is in it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreeKey {
    name: Arc<str>,
    alias: Option<Arc<str>>,
}

impl TreeKey {
    /// `scope` is everything beside the dependencies. Its serialized form must not depend on anything but its value: maps are
    /// to be sorted.
    pub fn new(dependencies: &BTreeMap<String, String>, scope: &impl Serialize) -> Self {
        // JSON tells apart what plain joining does not: `{a: "1,b@2"}` and `{a: "1", b: "2"}`.
        let text = serde_json::to_string(&(LAYOUT_VERSION, dependencies, scope)).unwrap_or_default();
        Self { name: hex(&Sha256::digest(text)).into(), alias: None }
    }

    /// Gives the tree a second name, for those who cannot know all that the first is made of.
    #[must_use]
    pub fn with_alias(self, alias: &Self) -> Self {
        Self { alias: Some(Arc::clone(&alias.name)), ..self }
    }

    /// See [`TreeKey::with_alias`].
    pub(super) fn alias(&self) -> Option<&str> {
        self.alias.as_deref()
    }

    /// 64 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Whether a folder of this name can be one of ours.
    pub(super) fn is_one(name: &str) -> bool {
        name.len() == KEY_DIGITS
            && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
    }
}

impl fmt::Debug for TreeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, spec)| ((*name).to_owned(), (*spec).to_owned())).collect()
    }

    #[test]
    fn a_key_is_a_folder_name() {
        let key = TreeKey::new(&set(&[("a", "1")]), &"scope");
        assert!(TreeKey::is_one(key.as_str()), "{key:?}");
        for other in ["", "abc", &"g".repeat(64), &"A".repeat(64), &"a".repeat(63)] {
            assert!(!TreeKey::is_one(other), "{other}");
        }
    }

    #[test]
    fn keys_differ_where_trees_may() {
        let one = TreeKey::new(&set(&[("a", "1,b@2")]), &"x");
        let others = [
            TreeKey::new(&set(&[("a", "1"), ("b", "2")]), &"x"),
            TreeKey::new(&set(&[("a", "1,b@2")]), &"y"),
            TreeKey::new(&set(&[]), &"x"),
        ];
        assert!(others.iter().all(|other| *other != one));
    }

    proptest! {
        #[test]
        fn equal_keys_mean_equal_sets(
            one in proptest::collection::btree_map("[a\",:@]{0,3}", "[1\",:@]{0,3}", 0..3),
            two in proptest::collection::btree_map("[a\",:@]{0,3}", "[1\",:@]{0,3}", 0..3),
        ) {
            prop_assert_eq!(TreeKey::new(&one, &0) == TreeKey::new(&two, &0), one == two);
        }
    }
}
