//! Staged and published trees.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::{
    Identity, Shared, StoreError, contents::Watched, lock, reading, root, shelf::read_marker, unique_name,
};

/// The tree itself, in the folder of its generation.
pub(super) const TREE_FOLDER: &str = "tree";
/// Says that a generation is whole, and what it is; the time of its last change is when its ranges were last resolved.
pub(super) const MARKER_FILE: &str = "complete";
/// Locked shared by whoever uses the generation; the time of its last change is the last use.
pub(super) const LEASE_FILE: &str = "lease";
/// See [`super::contents`].
pub(super) const LIST_FILE: &str = "files";
/// How often a use is written down at most.
const USE_STAMP_INTERVAL: Duration = Duration::from_mins(1);

/// What a marker says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Marker {
    /// What the tree takes on disk.
    pub(super) bytes: u64,
    pub(super) files: u64,
    /// For people who look.
    #[serde(default)]
    pub(super) what: serde_json::Value,
    /// A digest of the tenant's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) tenant: String,
    /// A digest of the lockfile, from before the packages' own code ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lockfile: Option<String>,
}

/// What is to be known of a tree that is published.
#[derive(Debug, Clone)]
pub struct About {
    /// For people who look.
    pub what: serde_json::Value,
    /// A digest of the tenant's name: tenants have shares of the room.
    pub tenant: String,
    /// A digest of the lockfile. It is kept beside the tree: in the tree the packages' own code could have changed it.
    pub lockfile: Option<String>,
    /// The tree may take no more.
    pub max_bytes: u64,
}

impl Default for About {
    fn default() -> Self {
        Self { what: serde_json::Value::Null, tenant: String::new(), lockfile: None, max_bytes: u64::MAX }
    }
}

/// A tree in the making. Dropping it removes it in the background.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    pub(super) shared: Arc<Shared>,
}

impl Staging {
    pub(super) fn create(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let dir = shared.folder("staging").join(unique_name()?);
        shared.retrying(|| {
            root::builder(0o711).create(&dir).map_err(StoreError::io("create the folder", &dir))
        })?;
        let staging = Self { dir, shared: Arc::clone(shared) };
        for folder in [staging.generation(), staging.tree(), staging.scratch()] {
            root::open_dir(&folder).map_err(StoreError::io("create the folder", &folder))?;
        }
        Ok(staging)
    }

    /// What becomes the tree.
    pub fn tree(&self) -> PathBuf {
        self.generation().join(TREE_FOLDER)
    }

    /// For what the making needs and the tree does not: gone with the staging.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    pub(super) fn generation(&self) -> PathBuf {
        self.dir.join("generation")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.shared.discard(std::mem::take(&mut self.dir));
    }
}

/// A published tree, leased: as long as a clone of the handle lives, no process removes it from the store.
#[derive(Debug, Clone)]
pub struct Tree {
    dir: Arc<PathBuf>,
    pub(super) lease: Arc<Lease>,
    pub(super) shared: Arc<Shared>,
}

/// What clones of a tree share.
#[derive(Debug)]
pub(super) struct Lease {
    identity: Identity,
    marker: PathBuf,
    /// Locked shared; none in a base store, which nobody writes to.
    pub(super) file: Option<fs::File>,
    /// When its ranges were last resolved, milliseconds since 1970.
    resolved_ms: AtomicU64,
    /// When its use was last written down, milliseconds since 1970.
    stamped_ms: AtomicU64,
    superseded: AtomicBool,
    watched: Watched,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            lock::release(file);
        }
    }
}

impl Tree {
    /// The tree of the generation in `generation`, if it is whole.
    pub(super) fn of(
        generation: &Path,
        file: Option<fs::File>,
        watched: Watched,
        shared: &Arc<Shared>,
    ) -> std::io::Result<Option<Self>> {
        let dir = generation.join(TREE_FOLDER);
        let marker = generation.join(MARKER_FILE);
        let found = (|| Ok((fs::symlink_metadata(&dir)?, fs::symlink_metadata(&marker)?)))();
        let (tree, whole) = match found {
            Ok(found) => found,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if !(tree.is_dir() && whole.is_file()) {
            return Ok(None);
        }
        let lease = Lease {
            identity: Identity::of(&tree),
            marker,
            file,
            resolved_ms: AtomicU64::new(millis(whole.modified()?)),
            stamped_ms: AtomicU64::new(0),
            superseded: AtomicBool::new(false),
            watched,
        };
        Ok(Some(Self { dir: Arc::new(dir), lease: Arc::new(lease), shared: Arc::clone(shared) }))
    }

    /// The folder that holds `package.json` and `node_modules`.
    pub fn dir(&self) -> &Arc<PathBuf> {
        &self.dir
    }

    /// `<dir>/node_modules`.
    pub fn node_modules(&self) -> PathBuf {
        self.dir.join("node_modules")
    }

    /// The file that says that the tree is whole; without it the tree counts as gone.
    pub fn marker(&self) -> &Path {
        &self.lease.marker
    }

    /// The folder of its generation.
    pub(super) fn generation(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    /// The digest that [`About::lockfile`] gave.
    pub fn lockfile(&self) -> Option<String> {
        read_marker(&self.lease.marker)?.lockfile
    }

    /// Whether it is still there and still the one that was published, as far as some of its folders tell. At most 18 system calls.
    pub fn is_alive(&self) -> bool {
        let same =
            |metadata: fs::Metadata| metadata.is_dir() && Identity::of(&metadata) == self.lease.identity;
        fs::symlink_metadata(self.dir.as_path()).is_ok_and(same)
            && is_file(&self.lease.marker)
            && self.lease.watched.difference(&self.dir).is_none()
    }

    /// Whether it lies in a base store: then it is never resolved again, changed or removed.
    pub fn is_of_base_store(&self) -> bool {
        self.lease.file.is_none()
    }

    /// When its ranges were last resolved.
    pub fn resolved(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.lease.resolved_ms.load(Ordering::Relaxed))
    }

    /// Writes down that its ranges resolve to what it holds at `now`, too. A system call.
    pub fn set_resolved(&self, now: SystemTime) -> Result<(), StoreError> {
        let stamped = reading::open_file(&self.lease.marker).and_then(|marker| marker.set_modified(now));
        stamped.map_err(StoreError::io("stamp", &self.lease.marker))?;
        self.set_known_resolved(now);
        Ok(())
    }

    /// Takes note of what another handle, or another process, wrote down so.
    pub fn set_known_resolved(&self, at: SystemTime) {
        self.lease.resolved_ms.store(millis(at), Ordering::Relaxed);
    }

    /// Whether a newer generation was found to serve in its place.
    pub fn is_superseded(&self) -> bool {
        self.lease.superseded.load(Ordering::Relaxed)
    }

    /// See [`Tree::is_superseded`]; what runs in it goes on.
    pub fn supersede(&self) {
        self.lease.superseded.store(true, Ordering::Relaxed);
    }

    /// Notes a use at `now`: what was used long ago goes first when the store is full. Written down in the background, and at
    /// most once a minute, so that it costs the caller nothing.
    pub fn note_use(&self, now: SystemTime) {
        let (now, last) = (millis(now), self.lease.stamped_ms.load(Ordering::Relaxed));
        let interval = u64::try_from(USE_STAMP_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        if self.is_of_base_store() || now.abs_diff(last) < interval {
            return;
        }
        let first = self.lease.stamped_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() {
            self.shared.stamp(Arc::clone(&self.lease), UNIX_EPOCH + Duration::from_millis(now));
        }
    }
}

/// Whether an error means that there is nothing of that name.
pub(super) fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

pub(super) fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
