//! Folders on disk: staging, publish by rename, trees, run folders, room, and the sweep of what dead hosts left.
//!
//! ```text
//! <base>/native-sandbox-executor-<euid>/    0755, ours, never through a symlink
//!   trees/<key>/<generation>/               shared by every host of this user, and by the next ones
//!     tree/                                 package.json, package-lock.json, node_modules; without write bits
//!     complete                              the marker: without it all of this counts as nothing; its time: last resolved
//!     lease                                 flock, shared by whoever uses the tree; its time: last used
//!     files                                 what is in the tree, to be compared after a restart
//!     compile-cache/                        what Node compiled of its packages
//!   aliases/<other key>                     names a key, for hosts that cannot tell npm's version
//!   locks/<key>                             flock of whoever installs
//!   locks/room                              flock of whoever makes room
//!   runtime/<hash>/worker.cjs               shared by every host of this version
//!   npm-cache/                              only where the user has no writable one
//!   npm-caches/<tenant>/                    where npm has users of its own: cache/ of the tenant's, lease, size
//!   hosts/<pid>-<random>/                   one per process
//!     lock                                  flock held while the process lives
//!     runs/ staging/ trash/
//! ```
//!
//! All of it is readable for other users, so that workers can run under a uid of their own, but for staging, trash, locks, the
//! cache and what is in a call's folder.
//!
//! Any of it may vanish between two calls (temp cleaners do that); what is missing is made again when it is needed.
//! Calls block for a few system calls at most, except where they say so; slow removals go to a thread of the store's own.

mod base;
pub mod compile_cache;
mod contents;
#[cfg(target_os = "linux")]
mod downloads;
mod evict;
mod generation;
mod inventory;
mod janitor;
mod key;
mod lock;
mod owner;
pub mod reading;
mod remove;
mod root;
mod run_folder;
mod shelf;
mod sweep;
#[cfg(target_os = "linux")]
mod tmpfs;
mod tree;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use sha2::{Digest, Sha256};

pub use base::found_in_bases;
#[cfg(target_os = "linux")]
pub use downloads::Downloads;
pub use evict::Keep;
pub use generation::is_due;
pub use inventory::Listed;
pub use key::TreeKey;
pub use lock::PathLock;
pub use remove::remove_dir;
pub use run_folder::{RunFolder, Runs, Written};
pub use shelf::{Pruned, RoomReport, Usage};
pub use sweep::SweepReport;
pub use tree::{About, Staging, Tree};

use janitor::{Janitor, Job};
use root::Access;

use crate::worker::{WORKER_SCRIPT, ZYGOTE_SCRIPT};

/// How often something is done again because a folder of it was missing.
const MAX_RETRIES: usize = 8;
/// Hex digits of the worker script's SHA-256 that name its folder.
const SCRIPT_HASH_CHARS: usize = 16;
/// Random bytes in the name of every folder of the store: never met twice, never guessed.
const NAME_RANDOM_BYTES: usize = 16;
/// A note longer than this is none of ours.
const MAX_NOTE_BYTES: u64 = 64 * 1024;
/// The file whose lock says that its host lives.
const LOCK_FILE: &str = "lock";
/// The folders of a host, and who may look into them.
const HOST_FOLDERS: [(&str, Access); 4] = [
    ("runs", Access::Through),
    ("staging", Access::Through),
    ("trash", Access::Private),
    (EMPTY_FOLDER, Access::Private),
];
/// Nothing is ever in it: processes with a mount namespace of their own build their root on it.
const EMPTY_FOLDER: &str = "empty";
/// The folders of the root.
const ROOT_FOLDERS: [(&str, Access); 5] = [
    ("trees", Access::Open),
    ("aliases", Access::Open),
    ("locks", Access::Private),
    ("runtime", Access::Open),
    ("hosts", Access::Through),
];

/// What to do where a disk that was writable is not any more.
fn read_only_advice(source: &io::Error) -> &'static str {
    if source.kind() != io::ErrorKind::ReadOnlyFilesystem {
        return "";
    }
    "; set the storeDir option (AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR) or TMPDIR to a folder on a disk that can be written"
}

/// Why the store cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The base folder itself cannot be used.
    #[error(
        "cannot use the folder {path} for the store: {source}; free or repair it, or set the storeDir option \
         (AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR) or TMPDIR to a folder that this user can write"
    )]
    Base {
        /// What was to be made or read.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The store's folder exists, but somebody else could control what is in it.
    #[error(
        "refusing to use {path} for the store: {reason}; remove it, or set the storeDir option \
         (AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR) to another folder"
    )]
    Refused {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An act on something inside the store failed.
    #[error("cannot {act} {path}: {source}{}", read_only_advice(source))]
    Io {
        /// A verb.
        act: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The system gave no random bytes for a name.
    #[error("the system gave no random bytes for a folder's name: {0}")]
    Random(getrandom::Error),
}

impl StoreError {
    /// Maps a system error of `act` on `path`.
    pub(crate) fn io(act: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { act, path, source }
    }

    /// Whether something on the way was missing: the reason to make the folders again and retry.
    fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The store of this process. Cheap to clone. When the last clone, tree, staging and run folder is gone, so is the host's folder.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What every handle of the store keeps alive.
#[derive(Debug)]
struct Shared {
    base: PathBuf,
    root: PathBuf,
    /// This process's folder; the same path for the process's whole life.
    host: PathBuf,
    lock: Mutex<Option<fs::File>>,
    checked: shelf::Checked,
    gauges: shelf::Gauges,
    janitor: Janitor,
}

impl Store {
    /// Opens the store below `base` (made when missing) and claims a folder in it for this process.
    ///
    /// Does not sweep; see [`Store::sweep`].
    pub fn open(base: &Path) -> Result<Self, StoreError> {
        let base = root::base(base)?;
        let root = base.join(root::name());
        let host = root.join("hosts").join(format!("{}-{}", std::process::id(), unique_name()?));
        let shared = Shared {
            base,
            root,
            host,
            lock: Mutex::new(None),
            checked: Mutex::default(),
            gauges: shelf::Gauges::default(),
            janitor: Janitor::default(),
        };
        shared.ensure()?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `<base>/native-sandbox-executor-<euid>`.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// The folder of the generations of a tree.
    pub fn tree_dir(&self, key: &TreeKey) -> PathBuf {
        self.shared.trees().join(key.as_str())
    }

    /// This process's folder in it.
    pub fn host_dir(&self) -> &Path {
        &self.shared.host
    }

    /// A folder with nothing in it.
    pub fn empty_dir(&self) -> PathBuf {
        self.shared.folder(EMPTY_FOLDER)
    }

    /// Where the run folders of this host are.
    pub fn runs(&self) -> Result<Runs, StoreError> {
        Runs::of(&self.shared)
    }

    /// A folder of its own for the run folders of one zygote's workers.
    pub fn nest(&self) -> Result<Runs, StoreError> {
        Runs::nest(&self.shared)
    }

    /// The folders of all trees that this store, and these base stores, have.
    pub fn tree_folders(&self, base_stores: &[PathBuf]) -> Vec<PathBuf> {
        let of_bases = base_stores.iter().flat_map(|dir| base::roots(dir)).map(|root| root.join("trees"));
        std::iter::once(self.shared.trees()).chain(of_bases).collect()
    }

    /// The folder of [`Self::scripts`], there or not.
    pub fn scripts_dir(&self) -> PathBuf {
        // Once per process: the texts are constants, and each worker's start asks.
        static DIGEST: LazyLock<String> =
            LazyLock::new(|| hex(&Sha256::digest([WORKER_SCRIPT, ZYGOTE_SCRIPT].concat())));
        self.shared.root.join("runtime").join(&DIGEST[..SCRIPT_HASH_CHARS])
    }

    /// The scripts of workers and of zygotes on disk, written anew when one is missing or is not what it should be.
    ///
    /// The content is compared every time: where tools share the host's uid, one of them could have changed a file
    /// under the next call.
    pub fn scripts(&self) -> Result<(PathBuf, PathBuf), StoreError> {
        let dir = self.scripts_dir();
        let worker = self.script(&dir, "worker.cjs", WORKER_SCRIPT)?;
        Ok((worker, self.script(&dir, "zygote.cjs", ZYGOTE_SCRIPT)?))
    }

    /// A folder with nothing in it but a link called `node` to this program, there or not.
    #[cfg(unix)]
    pub fn node_dir(&self, node: &Path) -> PathBuf {
        let digest = hex(&Sha256::digest(node.as_os_str().as_encoded_bytes()));
        self.scripts_dir().join(format!("bin-{}", &digest[..SCRIPT_HASH_CHARS]))
    }

    /// That folder, made where it is missing, or is not what it should be.
    #[cfg(unix)]
    pub fn link_node(&self, node: &Path) -> Result<PathBuf, StoreError> {
        let dir = self.node_dir(node);
        let link = dir.join("node");
        if fs::read_link(&link).is_ok_and(|target| target == node) {
            return Ok(dir);
        }
        self.shared.ensure()?;
        for folder in [&self.scripts_dir(), &dir] {
            root::open_dir(folder).map_err(StoreError::io("create the folder", folder))?;
        }
        // Made aside: another host of this user may be doing the same.
        let fresh = dir.join(unique_name()?);
        let made = std::os::unix::fs::symlink(node, &fresh).and_then(|()| fs::rename(&fresh, &link));
        if made.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        made.map_err(StoreError::io("create the symlink", &link))?;
        Ok(dir)
    }

    fn script(&self, dir: &Path, name: &str, content: &str) -> Result<PathBuf, StoreError> {
        let path = dir.join(name);
        let max = content.len() as u64;
        if reading::read_file(&path, max).is_ok_and(|found| found == content.as_bytes()) {
            return Ok(path);
        }
        self.shared.ensure()?;
        root::open_dir(dir).map_err(StoreError::io("create the folder", dir))?;
        write_atomically(&path, content.as_bytes())?;
        Ok(path)
    }

    /// A small file beside the worker's script: something that took long to find out. `None` when it is not there.
    pub fn note(&self, name: &str) -> Option<String> {
        reading::read_text(&self.shared.root.join("runtime").join(name), MAX_NOTE_BYTES).ok()
    }

    /// Writes such a file.
    pub fn set_note(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let path = self.shared.root.join("runtime").join(name);
        self.shared.retrying(|| write_atomically(&path, text.as_bytes()))
    }

    /// A folder for npm's downloads where npm runs as the host's user, for a user who has no writable one. Shared by the hosts of this user.
    pub fn npm_cache(&self) -> Result<PathBuf, StoreError> {
        let dir = self.shared.root.join("npm-cache");
        self.shared.retrying(|| {
            root::dir(&dir, Access::Private).map_err(StoreError::io("create the folder", &dir))
        })?;
        Ok(dir)
    }

    /// Gives a folder, and all in it, to a user (and the group of that number), or back to the host's; follows no symlink.
    /// Nothing of somebody else's may run in it meanwhile. Blocks.
    pub fn give(dir: &Path, owner: Option<u32>) -> Result<(), StoreError> {
        owner::give(dir, owner).map_err(StoreError::io("give away the folder", dir))
    }

    /// Makes a program of each file in a folder that looks like one. Blocks.
    pub fn make_programs(dir: &Path) -> Result<(), StoreError> {
        owner::make_programs(dir).map_err(StoreError::io("make programs in", dir))
    }

    /// A new, empty staging folder.
    pub fn staging(&self) -> Result<Staging, StoreError> {
        Staging::create(&self.shared)
    }

    /// Removes the folders of hosts that are dead. Blocks; meant for a background thread. Any number may run at once.
    pub fn sweep(&self) -> SweepReport {
        sweep::sweep(&self.shared.root.join("hosts"), &self.shared.host, std::time::SystemTime::now())
    }

    /// Waits until every removal asked for so far is done. Blocks.
    pub fn flush(&self) {
        self.shared.janitor.flush();
    }
}

impl Shared {
    fn folder(&self, name: &str) -> PathBuf {
        self.host.join(name)
    }

    /// Makes what is missing of root, host folder and lock; checks the root's ownership every time.
    fn ensure(&self) -> Result<(), StoreError> {
        let mut lock = self.lock();
        fs::create_dir_all(&self.base)
            .map_err(|source| StoreError::Base { path: self.base.clone(), source })?;
        root::ensure(&self.root)?;
        let of_root = ROOT_FOLDERS.map(|(name, access)| (self.root.join(name), access));
        let of_host = HOST_FOLDERS.map(|(name, access)| (self.folder(name), access));
        let folders = of_root.into_iter().chain([(self.host.clone(), Access::Through)]).chain(of_host);
        for (dir, access) in folders {
            root::dir(&dir, access).map_err(StoreError::io("create the folder", &dir))?;
        }
        let path = self.folder(LOCK_FILE);
        if !lock.as_ref().is_some_and(|held| is_file_at(held, &path)) {
            *lock = Some(claim(&path)?);
        }
        Ok(())
    }

    /// Runs `act`; when something was missing, makes the folders again and runs it once more, a few times: another process may remove an
    /// empty folder at any moment.
    fn retrying<T>(&self, act: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut outcome = act();
        for _ in 0..MAX_RETRIES {
            match &outcome {
                Err(error) if error.is_missing() => {
                    self.ensure()?;
                    outcome = act();
                }
                _ => break,
            }
        }
        outcome
    }

    /// Removes a folder of this host in the background.
    fn discard(&self, dir: PathBuf) {
        self.janitor.submit(Job::remove(dir));
    }

    /// Writes the use of a tree down in the background.
    fn stamp(&self, lease: Arc<tree::Lease>, now: std::time::SystemTime) {
        self.janitor.run(move || shelf::stamp(&lease, now));
    }

    fn lock(&self) -> MutexGuard<'_, Option<fs::File>> {
        // Every state in between is one that `ensure` repairs.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let lock = self.lock().take();
        self.janitor.submit(Job { lock, ..Job::remove(self.host.clone()) });
    }
}

/// Makes the lock file at `path`, visible only once its lock is held: a sweeper never sees it free.
fn claim(path: &Path) -> Result<fs::File, StoreError> {
    let hidden = path.with_extension(unique_name()?);
    let file = fs::File::create_new(&hidden).map_err(StoreError::io("create the lock", &hidden))?;
    let placed = file.try_lock().map_err(io::Error::from).and_then(|()| fs::rename(&hidden, path));
    if let Err(source) = placed {
        let _ = fs::remove_file(&hidden);
        return Err(StoreError::Io { act: "lock", path: path.to_owned(), source });
    }
    Ok(file)
}

/// Whether `held` is the file that `path` names now.
fn is_file_at(held: &fs::File, path: &Path) -> bool {
    let (Ok(held), Ok(found)) = (held.metadata(), fs::symlink_metadata(path)) else { return false };
    Identity::of(&held) == Identity::of(&found)
}

/// Tells one file or folder from another that took its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    fn of(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(metadata.dev(), metadata.ino())
    }

    /// The creation time stands in where the standard library names no file id.
    #[cfg(not(unix))]
    fn of(metadata: &fs::Metadata) -> Self {
        let since = metadata.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        Self(since.map_or(0, |since| since.as_secs()), since.map_or(0, |since| since.subsec_nanos().into()))
    }
}

/// Writes a file that readers see either not at all or whole.
fn write_atomically(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    reading::replace_file(path, content).map_err(StoreError::io("write", path))
}

fn unique_name() -> Result<String, StoreError> {
    let mut bytes = [0; NAME_RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(StoreError::Random)?;
    Ok(hex(&bytes))
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
