//! The published trees of the store, shared with every other process of this user: finding and leasing, publishing, retiring,
//! and making room.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use super::{
    Shared, Staging, Store, StoreError, TreeKey, base, compile_cache,
    contents::{self, Watched},
    evict::{self, Entry, Eviction, Keep},
    generation,
    janitor::Job,
    lock::{self, PathLock, Seized},
    reading, root,
    tree::{
        About, LEASE_FILE, LIST_FILE, Lease, MARKER_FILE, Marker, TREE_FOLDER, Tree, is_file, is_missing,
    },
    unique_name, write_atomically,
};
use crate::log::NATIVE;

/// A marker longer than this is none of ours.
const MAX_MARKER_BYTES: u64 = 1024 * 1024;
/// A second name longer than this is none of ours.
const MAX_ALIAS_BYTES: u64 = 1024;
/// Trees that a process remembers as checked; beyond it all are checked again.
const MAX_REMEMBERED_TREES: usize = 10_000;
/// Generations found gone while they were being leased, before it is given up: each time another process was faster.
const MAX_LEASE_TRIES: usize = 8;
/// Second names of trees: files that hold the first ones.
const ALIASES: &str = "aliases";
/// The lock of whoever makes room; the others need not.
const ROOM_LOCK: &str = "room";
/// The lock of whoever has compile caches made.
const COMPILE_LOCK: &str = "compile";

/// What the store held when this process last looked, and what it did itself since.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    trees: AtomicU64,
    pub(super) bytes: AtomicU64,
    evictions: AtomicU64,
}

/// See [`Store::usage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Complete generations, as of the last look of this process.
    pub trees: u64,
    /// What they take on disk, bytes, likewise.
    pub bytes: u64,
    /// Generations that this process removed to make room.
    pub evictions: u64,
}

/// What [`Store::make_room`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoomReport {
    /// Generations removed because they were of no use any more.
    pub useless: usize,
    /// Generations removed because all together took too much.
    pub evicted: usize,
    /// What is left, bytes.
    pub bytes: u64,
}

/// What [`Store::prune`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pruned {
    /// Generations removed because they were of no use any more: incomplete, or replaced by a newer one.
    pub useless: usize,
    /// Generations removed because they were too old, or all together took too much.
    pub evicted: usize,
    /// Generations that would have gone, and are in use.
    pub in_use: usize,
    /// What was removed, bytes; of incomplete generations nothing is known.
    pub freed_bytes: u64,
    /// Trees that are left.
    pub trees: u64,
    /// What these take, bytes.
    pub bytes: u64,
}

/// Trees that need no check: published by this process, or checked by it.
pub(super) type Checked = Mutex<HashSet<PathBuf>>;

impl Store {
    /// Leases the newest whole generation of `key`: of the first base store that has one, else of this store. Blocks for some
    /// dozen system calls.
    pub fn find(&self, key: &TreeKey, base_stores: &[PathBuf]) -> Result<Option<Tree>, StoreError> {
        if let Some(tree) = base_stores.iter().find_map(|base| base::find(base, key, &self.shared)) {
            return Ok(Some(tree));
        }
        self.find_own(key)
    }

    /// Like [`Store::find`], without base stores.
    pub fn find_own(&self, key: &TreeKey) -> Result<Option<Tree>, StoreError> {
        let Some(folder) = folder_of(&self.shared.root, key)? else { return Ok(None) };
        let mut seen = Vec::new();
        for _ in 0..MAX_LEASE_TRIES {
            let names = generation::newest_first(names_in(&folder)?);
            // The same ones again: none of them is whole. Others: those seen were removed while they were being leased.
            if names == seen {
                return Ok(None);
            }
            for name in &names {
                if let Some(tree) = self.lease(&folder.join(name))? {
                    return Ok(Some(tree));
                }
            }
            seen = names;
        }
        Ok(None)
    }

    fn lease(&self, generation: &Path) -> Result<Option<Tree>, StoreError> {
        let file = lock::share(&generation.join(LEASE_FILE)).map_err(StoreError::io("lease", generation))?;
        let Some(file) = file else { return Ok(None) };
        let folder = generation.join(TREE_FOLDER);
        let watched = match Watched::of_list(&folder, &generation.join(LIST_FILE)) {
            Ok(watched) => watched,
            // Gone, or not whole: no damage.
            Err(_) if !is_file(&generation.join(MARKER_FILE)) => return Ok(None),
            Err(difference) => {
                tracing::warn!(
                    target: NATIVE,
                    sandboxDir = %folder.display(),
                    difference = difference,
                    "Installed dependencies were damaged; they are installed anew"
                );
                return match fs::remove_file(generation.join(MARKER_FILE)) {
                    Err(error) if !is_missing(&error) => Err(StoreError::io("retire", generation)(error)),
                    _ => Ok(None),
                };
            }
        };
        let tree = Tree::of(generation, Some(file), watched, &self.shared)
            .map_err(StoreError::io("lease", generation))?;
        if let Some(tree) = &tree {
            tree.note_use(SystemTime::now());
        }
        Ok(tree)
    }

    /// The lock of whoever installs `key`, over all processes; `None` while somebody else has it. Some system calls.
    pub fn try_install_lock(&self, key: &TreeKey) -> Result<Option<PathLock>, StoreError> {
        let path = self.shared.locks().join(key.as_str());
        self.shared.retrying(|| PathLock::try_new(&path).map_err(StoreError::io("lock", &path)))
    }

    /// The right to have compile caches made, over all processes; `None` while somebody else has it. Some system calls.
    pub fn try_compile_lock(&self) -> Result<Option<PathLock>, StoreError> {
        let path = self.shared.locks().join(COMPILE_LOCK);
        self.shared.retrying(|| PathLock::try_new(&path).map_err(StoreError::io("lock", &path)))
    }

    /// Makes a staged tree the newest generation of `key`, by one rename, and leases it. `what` goes into the marker, for people.
    /// Blocks while it takes the write bits off every file.
    pub fn publish(
        &self,
        staging: Staging,
        key: &TreeKey,
        what: serde_json::Value,
    ) -> Result<Tree, StoreError> {
        self.publish_as(staging, key, About { what, ..About::default() })
    }

    /// Like [`Store::publish`], with all that is to be known of the tree.
    #[expect(clippy::needless_pass_by_value, reason = "a staging is published once")]
    pub fn publish_as(&self, staging: Staging, key: &TreeKey, about: About) -> Result<Tree, StoreError> {
        let staged = staging.generation();
        let (size, watched) =
            contents::seal(&staged.join(TREE_FOLDER), &staged.join(LIST_FILE), about.max_bytes)
                .map_err(StoreError::io("seal", staging.tree()))?;
        let lease = staged.join(LEASE_FILE);
        let file = fs::File::create_new(&lease).and_then(|file| {
            file.try_lock_shared()?;
            Ok(file)
        });
        let file = file.map_err(StoreError::io("lock", &lease))?;
        let marker = staged.join(MARKER_FILE);
        let About { what, tenant, lockfile, .. } = about;
        serde_json::to_vec(&Marker { bytes: size.bytes, files: size.files, what, tenant, lockfile })
            .map_err(io::Error::other)
            .and_then(|text| fs::write(&marker, text))
            .map_err(StoreError::io("write", &marker))?;
        let place = self.place(&staged, key)?;
        if let Some(alias) = key.alias() {
            let path = self.shared.root.join(ALIASES).join(alias);
            self.shared.retrying(|| write_atomically(&path, key.as_str().as_bytes()))?;
        }
        self.shared.remember(&place);
        self.shared.gauges.trees.fetch_add(1, Ordering::Relaxed);
        self.shared.gauges.bytes.fetch_add(size.bytes, Ordering::Relaxed);
        let tree =
            Tree::of(&place, Some(file), watched, &self.shared).map_err(StoreError::io("read", &place))?;
        tree.ok_or_else(|| {
            StoreError::io("read", &place)(io::Error::new(io::ErrorKind::NotFound, "it was removed at once"))
        })
    }

    /// The rename. Returns the generation's folder.
    fn place(&self, staged: &Path, key: &TreeKey) -> Result<PathBuf, StoreError> {
        let folder = self.shared.trees().join(key.as_str());
        let random = unique_name()?;
        self.shared.retrying(|| {
            // The folder of a key goes when it is empty, so it may do so right now: then this is tried again.
            root::open_dir(&folder).map_err(StoreError::io("create the folder", &folder))?;
            let names = names_in(&folder)?;
            let place = folder.join(generation::next_name(names.iter().map(String::as_str), &random));
            fs::rename(staged, &place).map_err(StoreError::io("publish", &place))?;
            Ok(place)
        })
    }

    /// Takes a tree out of use at once, for every process; its files go when nobody has it leased any more. One that is gone
    /// already, or lies in a base store, is left as it is.
    pub fn retire(&self, tree: &Tree) -> Result<(), StoreError> {
        if tree.is_of_base_store() {
            return Ok(());
        }
        match fs::remove_file(tree.marker()) {
            Err(error) if !is_missing(&error) => Err(StoreError::io("retire", tree.marker())(error)),
            _ => Ok(()),
        }
    }

    /// Whether [`Store::check`] would look at a tree.
    pub fn needs_check(&self, tree: &Tree) -> bool {
        let checked = self.shared.checked.lock().unwrap_or_else(PoisonError::into_inner);
        !tree.is_of_base_store() && !checked.contains(tree.generation())
    }

    /// Compares a tree with what was published, once per process; what another process may have left damaged is retired. Says
    /// what is wrong. Blocks for some µs per file: meant for a background thread.
    pub fn check(&self, tree: &Tree) -> Option<String> {
        let generation = tree.generation();
        if tree.is_of_base_store() || !self.shared.remember(generation) {
            return None;
        }
        let difference = contents::difference(tree.dir(), &generation.join(LIST_FILE))?;
        // Gone as a whole, or retired by somebody else, is no damage.
        if !tree.is_alive() {
            return None;
        }
        if let Err(error) = self.retire(tree) {
            return Some(format!("{difference}; {error}"));
        }
        Some(difference)
    }

    /// Removes generations that are of no use any more, then the least recently used ones while all of them take more than
    /// `max_bytes`; leased ones never. Also what is left of locks and empty folders. Blocks: meant for a background thread.
    ///
    /// While another process does it, nothing.
    pub fn make_room(&self, max_bytes: u64) -> Result<RoomReport, StoreError> {
        let pruned = self.prune(&Keep::at_most(max_bytes))?.unwrap_or_default();
        Ok(RoomReport { useless: pruned.useless, evicted: pruned.evicted, bytes: pruned.bytes })
    }

    /// The same by other measures; `None` while another process does it. The files are gone after [`Store::flush`].
    pub fn prune(&self, keep: &Keep) -> Result<Option<Pruned>, StoreError> {
        let path = self.shared.locks().join(ROOM_LOCK);
        let lock =
            self.shared.retrying(|| PathLock::try_new(&path).map_err(StoreError::io("lock", &path)))?;
        let Some(_lock) = lock else { return Ok(None) };
        let plan = evict::plan(self.entries()?);
        let mut pruned = Pruned {
            trees: plan.oldest_first.len() as u64,
            bytes: plan.oldest_first.iter().map(|entry| entry.bytes).sum(),
            ..Pruned::default()
        };
        for entry in &plan.useless {
            match self.remove(entry)? {
                Removal::Done => {
                    pruned.useless += 1;
                    pruned.freed_bytes += entry.bytes;
                }
                Removal::InUse => pruned.in_use += 1,
                Removal::WasGone => {}
            }
        }
        let mut eviction = Eviction::new(plan.oldest_first, *keep);
        while let Some(entry) = eviction.next() {
            match self.remove(&entry)? {
                Removal::Done => {
                    pruned.evicted += 1;
                    pruned.freed_bytes += entry.bytes;
                }
                Removal::InUse => {
                    pruned.in_use += 1;
                    continue;
                }
                Removal::WasGone => {}
            }
            eviction.went(&entry);
            pruned.bytes -= entry.bytes;
            pruned.trees -= 1;
        }
        let gauges = &self.shared.gauges;
        gauges.trees.store(pruned.trees, Ordering::Relaxed);
        gauges.bytes.store(pruned.bytes, Ordering::Relaxed);
        gauges.evictions.fetch_add(pruned.evicted as u64, Ordering::Relaxed);
        self.tidy();
        Ok(Some(pruned))
    }

    /// What is known of the store without looking.
    pub fn usage(&self) -> Usage {
        let gauges = &self.shared.gauges;
        Usage {
            trees: gauges.trees.load(Ordering::Relaxed),
            bytes: gauges.bytes.load(Ordering::Relaxed),
            evictions: gauges.evictions.load(Ordering::Relaxed),
        }
    }

    /// Every generation, those of one key together and newest first.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let trees = self.shared.trees();
        let mut entries = Vec::new();
        for key in names_in(&trees)?.into_iter().filter(|name| TreeKey::is_one(name)) {
            let folder = trees.join(&key);
            for name in generation::newest_first(names_in(&folder)?) {
                entries.push(entry(&folder, key.clone(), name));
            }
        }
        Ok(entries)
    }

    /// Takes a generation away if nobody uses it; its files go in the background.
    fn remove(&self, entry: &Entry) -> Result<Removal, StoreError> {
        let dir = self.shared.trees().join(&entry.key).join(&entry.generation);
        let lock = match lock::seize(&dir.join(LEASE_FILE)).map_err(StoreError::io("lock", &dir))? {
            Seized::InUse => return Ok(Removal::InUse),
            Seized::NoFile => None,
            Seized::Held(file) => Some(file),
        };
        let trash = self.shared.folder("trash").join(unique_name()?);
        let moved = self
            .shared
            .retrying(|| fs::rename(&dir, &trash).map_err(StoreError::io("remove the tree", &dir)));
        let gone = match moved {
            Ok(()) => trash,
            Err(error) if error.is_missing() => return Ok(Removal::WasGone),
            // A folder from a lower layer of an overlay cannot be moved. Without its marker it is nothing, too.
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::CrossesDevices => {
                let marker = dir.join(MARKER_FILE);
                fs::remove_file(&marker).map_err(StoreError::io("retire", &marker))?;
                dir
            }
            Err(error) => return Err(error),
        };
        self.shared.janitor.submit(Job { lock, ..Job::remove(gone) });
        Ok(Removal::Done)
    }

    /// Locks that killed processes left, and folders of keys without a generation.
    fn tidy(&self) {
        let locks = self.shared.locks();
        for name in names_in(&locks).unwrap_or_default().iter().filter(|name| TreeKey::is_one(name)) {
            // Dropping the lock removes the file.
            let _ = PathLock::try_new(&locks.join(name));
        }
        let trees = self.shared.trees();
        for name in names_in(&trees).unwrap_or_default().iter().filter(|name| TreeKey::is_one(name)) {
            // Fails where there is a generation.
            let _ = fs::remove_dir(trees.join(name));
        }
        let aliases = self.shared.root.join(ALIASES);
        for name in names_in(&aliases).unwrap_or_default() {
            let path = aliases.join(name);
            if reading::read_text(&path, MAX_ALIAS_BYTES).is_ok_and(|key| !trees.join(key).exists()) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// See [`Store::remove`].
enum Removal {
    Done,
    InUse,
    WasGone,
}

/// The folder of the generations of `key`, by its name or, where there is none of that name, by its alias.
pub(super) fn folder_of(root: &Path, key: &TreeKey) -> Result<Option<PathBuf>, StoreError> {
    let folder = root.join("trees").join(key.as_str());
    if folder.is_dir() {
        return Ok(Some(folder));
    }
    let alias = root.join(ALIASES).join(key.as_str());
    match reading::read_text(&alias, MAX_ALIAS_BYTES) {
        Ok(name) => Ok(TreeKey::is_one(&name).then(|| root.join("trees").join(name))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(StoreError::io("read", alias)(error)),
    }
}

impl Shared {
    pub(super) fn trees(&self) -> PathBuf {
        self.root.join("trees")
    }

    pub(super) fn locks(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// Whether the generation was not known before.
    fn remember(&self, generation: &Path) -> bool {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.len() >= MAX_REMEMBERED_TREES {
            checked.clear();
        }
        checked.insert(generation.to_owned())
    }
}

/// What can be told of a generation without locking it.
fn entry(folder: &Path, key: String, generation: String) -> Entry {
    let dir = folder.join(&generation);
    let marker = read_marker(&dir.join(MARKER_FILE));
    let last_used = fs::symlink_metadata(dir.join(LEASE_FILE)).and_then(|lease| lease.modified());
    Entry {
        key,
        generation,
        bytes: marker.as_ref().map_or(0, |marker| marker.bytes + compile_cache::bytes_in(&dir)),
        last_used: last_used.unwrap_or(UNIX_EPOCH),
        complete: marker.is_some(),
        tenant: marker.map(|marker| marker.tenant).unwrap_or_default(),
    }
}

pub(super) fn read_marker(path: &Path) -> Option<Marker> {
    serde_json::from_slice(&reading::read_file(path, MAX_MARKER_BYTES).ok()?).ok()
}

/// The names in a folder; none when it is not there.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>, StoreError> {
    let names = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    });
    match names {
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        other => other.map_err(StoreError::io("read the folder", folder)),
    }
}

/// Writes the use of a tree down: the time of change of its lease file.
pub(super) fn stamp(lease: &Lease, now: SystemTime) {
    let Some(file) = &lease.file else { return };
    if let Err(error) = file.set_modified(now) {
        tracing::debug!(target: NATIVE, error = %error, "Failed to note the use of a tree");
    }
}
