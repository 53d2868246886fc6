//! npm's download caches that belong to users of their own: one per tenant, so that what npm wrote for one tenant is never read for
//! another.
//!
//! Packages are stored by their digest, and npm checks it when it reads one. The answers of registries have none that anything else
//! knows, so a cache is trusted as far as the npm that wrote it, and that is not far.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{
    Store, StoreError,
    lock::{self, Seized},
    owner, reading, remove_dir,
    root::{self, Access},
    unique_name,
};

/// The folder of all of them.
const FOLDER: &str = "npm-caches";
/// In a tenant's: what its user writes to.
const CACHE: &str = "cache";
/// And the lock of its users; its time: last used.
const LEASE: &str = "lease";
/// And how much was in it at the end of its last use.
const SIZE: &str = "size";
/// How the names of those begin that are being removed.
const GONE: &str = ".gone-";
/// A number has no more digits.
const MAX_SIZE_BYTES: u64 = 32;
/// The name where there is no tenant.
const NOBODYS: &str = "none";
/// How many tenants have a cache.
const MAX_CACHES: usize = 256;
/// How often one is opened again that somebody removes just then.
const MAX_TRIES: u32 = 8;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// One that has not been used for so long is removed.
const MAX_AGE: Duration = Duration::from_hours(30 * 24);

/// A cache in use. Nobody removes it meanwhile.
#[derive(Debug)]
pub struct Downloads {
    dir: PathBuf,
    user: u32,
    lease: fs::File,
}

impl Downloads {
    /// The folder: its user's, and of nobody else.
    pub fn cache(&self) -> PathBuf {
        self.dir.join(CACHE)
    }

    /// Who may write to it.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Notes what it takes, and removes caches that nobody uses until all of them together take no more than `max_bytes`. Blocks.
    pub fn settle(self, max_bytes: u64) -> Result<(), StoreError> {
        let bytes = crate::gauge::bytes_in(&[self.cache()], u64::MAX);
        let size = self.dir.join(SIZE);
        match reading::replace_file(&size, bytes.to_string().as_bytes()) {
            // Somebody who clears temporary folders took it: what is not there takes no room.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            noted => noted.map_err(StoreError::io("write", &size))?,
        }
        let folder = self.dir.parent().map(Path::to_owned).unwrap_or_default();
        drop(self);
        make_room(&folder, max_bytes, SystemTime::now());
        Ok(())
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        let _ = self.lease.set_modified(SystemTime::now());
        lock::release(&self.lease);
    }
}

impl Store {
    /// The cache of a tenant, whose digest is `tenant`. A new one belongs to the user that `draw` gives. Blocks.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or given away.
    pub fn downloads(
        &self,
        tenant: &str,
        draw: impl Fn() -> io::Result<u32>,
    ) -> Result<Downloads, StoreError> {
        let folder = self.shared.root.join(FOLDER);
        let dir = folder.join(if tenant.is_empty() { NOBODYS } else { tenant });
        let make =
            |path: &Path| root::dir(path, Access::Through).map_err(StoreError::io("create the folder", path));
        self.shared.retrying(|| {
            make(&folder)?;
            for _ in 0..MAX_TRIES {
                make(&dir)?;
                if let Some(lease) = lease_of(&dir)? {
                    let user = user_of(&dir, &draw)?;
                    return Ok(Downloads { dir: dir.clone(), user, lease });
                }
                thread::sleep(PAUSE);
            }
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, "it is removed again and again");
            Err(StoreError::Io { act: "lock", path: dir.clone(), source: busy })
        })
    }
}

fn lease_of(dir: &Path) -> Result<Option<fs::File>, StoreError> {
    let path = dir.join(LEASE);
    match fs::File::create_new(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(StoreError::Io { act: "create the lock", path, source: error });
        }
        _ => {}
    }
    lock::share(&path).map_err(StoreError::io("lock", &path))
}

/// Whose the cache is; made when missing, with an owner from the start.
fn user_of(dir: &Path, draw: &impl Fn() -> io::Result<u32>) -> Result<u32, StoreError> {
    let cache = dir.join(CACHE);
    let fail = |source| StoreError::Io { act: "create the folder", path: cache.clone(), source };
    loop {
        match fs::symlink_metadata(&cache) {
            Ok(found) if found.is_dir() && found.uid() != 0 => return Ok(found.uid()),
            Ok(_) => remove_dir(&cache).map_err(fail)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            Err(_) => {}
        }
        let made = dir.join(unique_name()?);
        let placed = fs::create_dir(&made)
            .and_then(|()| fs::set_permissions(&made, fs::Permissions::from_mode(0o700)))
            .and_then(|()| owner::give(&made, Some(draw()?)))
            .and_then(|()| Ok(renameat_with(CWD, &made, CWD, &cache, RenameFlags::NOREPLACE)?));
        if let Err(error) = placed {
            let _ = fs::remove_dir(&made);
            // Another host was first: its user counts.
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(fail(error));
            }
        }
    }
}

struct Found {
    dir: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Removes the least recently used ones while there is too much, and those that are old. What cannot be looked at stays.
fn make_room(folder: &Path, max_bytes: u64, now: SystemTime) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let dirs = entries.flatten().map(|entry| entry.path()).filter(|dir| !is_gone(dir));
    let mut found: Vec<_> = dirs.filter_map(look).collect();
    found.sort_by_key(|one| one.used);
    let mut bytes = found.iter().fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
    let mut count = found.len();
    for one in found {
        let is_old = now.duration_since(one.used).is_ok_and(|age| age > MAX_AGE);
        if !is_old && bytes <= max_bytes && count <= MAX_CACHES {
            continue;
        }
        let Ok(Seized::Held(lease)) = lock::seize(&one.dir.join(LEASE)) else { continue };
        // Out of the way first: removing takes long, and the tenant may want another one meanwhile.
        let gone = unique_name().map(|name| folder.join(format!("{GONE}{name}")));
        let moved = gone.is_ok_and(|gone| fs::rename(&one.dir, gone).is_ok());
        lock::release(&lease);
        if moved {
            bytes = bytes.saturating_sub(one.bytes);
            count -= 1;
        }
    }
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_gone(&entry.path())) {
        // What cannot be removed now is tried again the next time.
        let _ = remove_dir(&entry.path());
    }
}

fn is_gone(dir: &Path) -> bool {
    dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(GONE))
}

fn look(dir: PathBuf) -> Option<Found> {
    let used = fs::symlink_metadata(dir.join(LEASE)).and_then(|found| found.modified()).ok()?;
    let text = reading::read_text(&dir.join(SIZE), MAX_SIZE_BYTES).unwrap_or_default();
    Some(Found { dir, bytes: text.trim().parse().unwrap_or(0), used })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let base = tempfile::tempdir().unwrap();
        let store = Store::open(base.path()).unwrap();
        (base, store)
    }

    /// Who is not root gives files to nobody but himself.
    fn drawn() -> u32 {
        let own = rustix::process::geteuid().as_raw();
        if own == 0 { 1_900_000_000 } else { own }
    }

    #[test]
    fn a_cache_is_its_users_and_stays_so() {
        let (_base, store) = store();
        let first = store.downloads("one", || Ok(drawn())).unwrap();
        let again = store.downloads("one", || panic!("it has a user")).unwrap();
        assert_eq!((first.user(), first.cache()), (again.user(), again.cache()));
        let found = fs::metadata(first.cache()).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (drawn(), 0o700));
        let above = fs::metadata(first.cache().parent().unwrap()).unwrap();
        assert_eq!((above.uid(), above.mode() & 0o777), (rustix::process::geteuid().as_raw(), 0o711));
        assert_ne!(store.downloads("two", || Ok(drawn())).unwrap().cache(), first.cache());
        assert!(store.downloads("", || Ok(drawn())).unwrap().cache().ends_with("none/cache"));
    }

    #[test]
    fn what_stands_in_a_caches_place_is_no_cache() {
        if drawn() != 1_900_000_000 {
            return;
        }
        let (base, store) = store();
        let dir = store.downloads("one", || Ok(drawn())).unwrap().cache();
        fs::remove_dir(&dir).unwrap();
        std::os::unix::fs::symlink(base.path(), &dir).unwrap();
        let cache = store.downloads("one", || Ok(drawn())).unwrap().cache();
        assert!(fs::symlink_metadata(cache).unwrap().is_dir());
    }

    #[test]
    fn caches_that_nobody_uses_go_when_all_take_too_much() {
        let (_base, store) = store();
        let open = |tenant: &str| store.downloads(tenant, || Ok(drawn())).unwrap();
        let (old, used) = (open("old"), open("used"));
        let (old_dir, used_dir) = (old.cache(), used.cache());
        fs::write(old_dir.join("file"), vec![1; 100_000]).unwrap();
        fs::write(used_dir.join("file"), vec![1; 100_000]).unwrap();
        old.settle(u64::MAX).unwrap();
        assert!(old_dir.is_dir());
        open("new").settle(10_000).unwrap();
        assert!(!old_dir.exists() && used_dir.join("file").is_file(), "{old_dir:?} {used_dir:?}");
        used.settle(10_000).unwrap();
        assert!(!used_dir.exists());
        open("used");
    }

    #[test]
    fn one_that_was_taken_away_in_use_is_no_failure() {
        let (_base, store) = store();
        let cache = store.downloads("one", || Ok(drawn())).unwrap();
        fs::remove_dir_all(cache.cache().parent().unwrap()).unwrap();
        cache.settle(u64::MAX).unwrap();
        store.downloads("one", || Ok(drawn())).unwrap().settle(u64::MAX).unwrap();
    }

    #[test]
    fn one_that_is_old_goes() {
        let (_base, store) = store();
        let cache = store.downloads("one", || Ok(drawn())).unwrap();
        let (dir, folder) = (cache.cache(), store.root().join(FOLDER));
        fs::create_dir(folder.join(".gone-1")).unwrap();
        drop(cache);
        make_room(&folder, u64::MAX, SystemTime::now());
        assert!(dir.is_dir());
        make_room(&folder, u64::MAX, SystemTime::now() + MAX_AGE * 2);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }
}
