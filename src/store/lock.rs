//! Locks between processes: `flock` on small files. The kernel lets go of them when their owner dies, however it dies.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::is_file_at;

/// Tries of a lock file that others remove just then.
const MAX_TRIES: u32 = 16;

/// An exclusive lock on a path. Dropping it removes the file.
#[derive(Debug)]
pub struct PathLock {
    file: fs::File,
    path: PathBuf,
}

impl PathLock {
    /// Locks `path`, made when missing; `None` when somebody else has it. The folder must be there.
    pub(super) fn try_new(path: &Path) -> io::Result<Option<Self>> {
        for _ in 0..MAX_TRIES {
            let file = options().create(true).truncate(false).open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Ok(None),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
            // Its last owner may have removed it between our opening and our locking.
            if is_file_at(&file, path) {
                return Ok(Some(Self { file, path: path.to_owned() }));
            }
        }
        Ok(None)
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // While it is still held: nobody else can have it yet. If the folder was wiped, another file may stand here.
        if is_file_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
        release(&self.file);
    }
}

/// How a lock is opened: what took its place is neither followed nor waited for.
fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Lets go of a lock at once. Closing alone does not, if another thread is starting a process just then: until that process has
/// its own program it has all open files, too, and the lock belongs to the open file.
pub(super) fn release(file: &fs::File) {
    let _ = file.unlock();
}

/// Opens `path` with a shared lock; `None` when it is not there, or goes just now.
pub(super) fn share(path: &Path) -> io::Result<Option<fs::File>> {
    let file = match options().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(is_file_at(&file, path).then_some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Whether nobody shares `path`; then nobody can from now on, as long as the file lives.
pub(super) fn seize(path: &Path) -> io::Result<Seized> {
    let file = match options().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seized::NoFile),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => Ok(Seized::Held(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(Seized::InUse),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// See [`seize`].
#[derive(Debug)]
pub(super) enum Seized {
    Held(fs::File),
    InUse,
    NoFile,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_at_a_time_and_no_file_left() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("lock");
        let held = PathLock::try_new(&path).unwrap().unwrap();
        assert!(PathLock::try_new(&path).unwrap().is_none());
        drop(held);
        assert!(!path.exists());
        assert!(PathLock::try_new(&path).unwrap().is_some());
    }

    #[test]
    fn a_file_that_took_the_place_of_a_lost_lock_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("lock");
        let lost = PathLock::try_new(&path).unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        let held = PathLock::try_new(&path).unwrap().unwrap();
        drop(lost);
        assert!(path.exists());
        drop(held);
    }

    #[test]
    fn what_is_shared_cannot_be_seized() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("lease");
        assert!(share(&path).unwrap().is_none());
        assert!(matches!(seize(&path).unwrap(), Seized::NoFile));
        fs::write(&path, "").unwrap();
        let (one, two) = (share(&path).unwrap().unwrap(), share(&path).unwrap().unwrap());
        drop(one);
        assert!(matches!(seize(&path).unwrap(), Seized::InUse));
        drop(two);
        let seized = seize(&path).unwrap();
        assert!(matches!(seized, Seized::Held(_)));
        assert!(share(&path).unwrap().is_none());
    }

    /// Many threads stand for many processes: the kernel keeps `flock`s apart by open file, not by process.
    #[test]
    fn nobody_is_in_at_the_same_time() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("lock");
        let (inside, entered) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while entered.load(Ordering::SeqCst) < 200 {
                        if let Some(lock) = PathLock::try_new(&path).unwrap() {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            entered.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}
