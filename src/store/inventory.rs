//! What is in the store, for people who look after one.

use std::{
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Serialize, Serializer};

use super::{
    Store, StoreError, TreeKey,
    evict::{self, Entry},
    lock::{self, PathLock, Seized},
    shelf::read_marker,
    tree::{LEASE_FILE, MARKER_FILE, Marker},
};

/// One generation of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// Its tree's name: 64 hexadecimal digits.
    pub key: String,
    /// Its own, unique within the tree.
    pub generation: String,
    /// Its folder.
    pub dir: PathBuf,
    /// What was written down when it was made: `dependencies`, name to spec.
    pub what: serde_json::Value,
    /// What it takes on disk, bytes; 0 for one that is incomplete.
    pub bytes: u64,
    /// How many files are in it; 0 for one that is incomplete.
    pub files: u64,
    /// When it was last used, to the minute: milliseconds since 1970.
    #[serde(rename = "lastUsedMs", serialize_with = "millis")]
    pub last_used: SystemTime,
    /// When its ranges were last resolved: milliseconds since 1970, which is what an incomplete one says.
    #[serde(rename = "resolvedMs", serialize_with = "millis")]
    pub resolved: SystemTime,
    /// Whether it is the one that calls get: complete, and no newer one is.
    pub serves: bool,
    /// Whether somebody, in whatever process, has it leased; `None` where it cannot be told just now.
    pub in_use: Option<bool>,
}

impl Store {
    /// Everything in the store, the least recently used first, what serves nobody before that. Blocks for some system calls per
    /// tree: meant for a background thread.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let plan = evict::plan(self.entries()?);
        let useless = plan.useless.into_iter().map(|entry| self.listed(entry, false));
        Ok(useless.chain(plan.oldest_first.into_iter().map(|entry| self.listed(entry, true))).collect())
    }

    fn listed(&self, entry: Entry, serves: bool) -> Listed {
        let dir = self.shared.trees().join(&entry.key).join(&entry.generation);
        let path = dir.join(MARKER_FILE);
        let Marker { files, what, .. } = read_marker(&path).unwrap_or_default();
        let resolved = fs::symlink_metadata(&path).and_then(|marker| marker.modified());
        Listed {
            in_use: self.is_in_use(&entry),
            key: entry.key,
            generation: entry.generation,
            dir,
            what,
            bytes: entry.bytes,
            files,
            last_used: entry.last_used,
            resolved: resolved.unwrap_or(UNIX_EPOCH),
            serves,
        }
    }

    /// Found out by locking the lease for a moment. Who wants the tree just then does not get it; so its install lock is held
    /// meanwhile: whoever finds no tree waits for that, and looks again.
    fn is_in_use(&self, entry: &Entry) -> Option<bool> {
        debug_assert!(TreeKey::is_one(&entry.key), "the name of a file to lock");
        let _installing = PathLock::try_new(&self.shared.locks().join(&entry.key)).ok().flatten()?;
        let lease = self.shared.trees().join(&entry.key).join(&entry.generation).join(LEASE_FILE);
        match lock::seize(&lease).ok()? {
            Seized::InUse => Some(true),
            Seized::NoFile => Some(false),
            Seized::Held(file) => {
                lock::release(&file);
                Some(false)
            }
        }
    }
}

fn millis<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    serializer.serialize_u64(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
