//! Which calls can share a sandbox. Pure.

use std::{collections::BTreeMap, fmt, fmt::Write as _, sync::Arc};

use sha2::{Digest, Sha256};

/// Hexadecimal digits of a dependency hash.
const DEPENDENCY_HASH_DIGITS: usize = 16;

/// The original's name of a dependency set, for logs: the first 16 hexadecimal digits of the SHA-256 of `name@range`,
/// sorted by name and joined by commas.
pub fn dependency_hash(dependencies: &BTreeMap<String, String>) -> String {
    let mut sorted: Vec<_> = dependencies.iter().collect();
    // JavaScript sorts by UTF-16 code units. Beyond the basic plane that is another order than the map's: a surrogate
    // is smaller than U+E000 to U+FFFF.
    sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    let items: Vec<String> = sorted.iter().map(|(name, range)| format!("{name}@{range}")).collect();
    let mut hash = hex(&Sha256::digest(items.join(",")));
    hash.truncate(DEPENDENCY_HASH_DIGITS);
    hash
}

/// In lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A dependency set within a scope. Calls with equal keys share a sandbox.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// Of an unambiguous encoding: the 64 bits of the dependency hash can be made to collide, and its text does not tell
    /// `{a: "1,b@2"}` from `{a: "1", b: "2"}`. One tool must not get another's packages by such means.
    digest: [u8; 32],
    scope: Arc<str>,
    dependency_hash: Arc<str>,
}

impl PoolKey {
    /// `scope` is opaque here; it names whatever else keeps sandboxes apart (store folder, tenant, policy, …).
    pub fn new(dependencies: &BTreeMap<String, String>, scope: impl Into<Arc<str>>) -> Self {
        let mut digest = Sha256::new();
        for text in dependencies.iter().flat_map(|(name, range)| [name, range]) {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        Self {
            digest: digest.finalize().into(),
            scope: scope.into(),
            dependency_hash: dependency_hash(dependencies).into(),
        }
    }

    /// See [`dependency_hash`].
    pub fn dependency_hash(&self) -> &str {
        &self.dependency_hash
    }

    /// As it was given.
    pub fn scope(&self) -> &str {
        &self.scope
    }
}

/// The dependency hash and the scope: enough to read, not the whole identity.
impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolKey")
            .field("dependency_hash", &self.dependency_hash)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<const N: usize>(dependencies: [(&str, &str); N]) -> BTreeMap<String, String> {
        dependencies.into_iter().map(|(name, range)| (name.to_owned(), range.to_owned())).collect()
    }

    /// The expected values were printed by the original's expression under Node.
    #[test]
    fn the_hash_is_the_originals() {
        assert_eq!(dependency_hash(&set([])), "e3b0c44298fc1c14");
        assert_eq!(dependency_hash(&set([("lodash", "^4.17.21")])), "49a3e19b3d331156");
        let mixed = set([("zod", "^3"), ("lodash", "^4.17.21"), ("@scope/a", "1.0.0"), ("Zod", "1")]);
        assert_eq!(dependency_hash(&mixed), "c234b1968a7e653e");
        let beyond_the_basic_plane = set([("\u{1F600}", "1"), ("\u{E000}", "2"), ("z", "3")]);
        assert_eq!(dependency_hash(&beyond_the_basic_plane), "88a4ebe0fe3916bf");
    }

    #[test]
    fn keys_tell_apart_what_the_hash_does_not() {
        let (one, two) = (set([("a", "1,b@2")]), set([("a", "1"), ("b", "2")]));
        assert_eq!(dependency_hash(&one), dependency_hash(&two));
        assert_ne!(PoolKey::new(&one, "s"), PoolKey::new(&two, "s"));
        assert_ne!(PoolKey::new(&one, "s"), PoolKey::new(&one, "t"));
        assert_eq!(PoolKey::new(&one, "s"), PoolKey::new(&one.clone(), "s"));
        assert_eq!(PoolKey::new(&one, "s").dependency_hash(), dependency_hash(&one));
    }
}
