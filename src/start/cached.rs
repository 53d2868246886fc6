//! Which compile caches processes take: Node's are good for one Node, one set of V8's flags and one kind of processor.

use std::{
    fs,
    sync::OnceLock,
    time::{Duration, UNIX_EPOCH},
};

use serde::Serialize;

use super::Breed;
use crate::store::compile_cache::CacheName;

/// A way of starting, which has its own flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Kind {
    /// A Node that is started for the tree.
    Booted,
    /// A zygote of the tree.
    Forked,
}

/// The name of the cache for processes of this breed; none where they are not kept from writing to it, or the Node cannot be
/// looked at. A few system calls.
pub fn name(breed: &Breed, kind: Kind) -> Option<CacheName> {
    if !breed.shield.guards_trees() {
        return None;
    }
    let node = fs::metadata(&breed.node).ok()?;
    let changed =
        node.modified().ok()?.duration_since(UNIX_EPOCH).map_or(0, |since| Duration::as_nanos(&since));
    Some(CacheName::of(&(
        env!("CARGO_PKG_VERSION"),
        &breed.node,
        node.len(),
        changed.to_string(),
        breed.memory_mb,
        kind,
        processor(),
    )))
}

/// What V8 looks at when it chooses instructions.
fn processor() -> &'static str {
    static FEATURES: OnceLock<String> = OnceLock::new();
    FEATURES.get_or_init(|| {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let is_features = |line: &&str| line.starts_with("flags") || line.starts_with("Features");
        text.lines().find(is_features).unwrap_or_default().to_owned()
    })
}
