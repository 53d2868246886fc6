//! Removal of folders whose content somebody else made: closed folders, any depth, planted symlinks, racing writers.

use std::{fs, io, path::Path, thread, time::Duration};

/// Tries that found the folder filled again by somebody while it was emptied.
const MAX_REFILLED_PASSES: u32 = 16;
/// The pause after such a try, per try so far.
const REFILLED_PAUSE: Duration = Duration::from_millis(2);

/// Removes `path` and all in it; never follows a symlink; what is gone already is fine. Blocks.
///
/// Folders without permissions are opened up. Somebody who keeps creating files is outrun or, after a bounded
/// number of tries, reported as `DirectoryNotEmpty`.
pub fn remove_dir(path: &Path) -> io::Result<()> {
    outrun(|| empty(path), || fs::remove_dir(path))
}

/// The same for what is called `name` in the folder of a descriptor.
#[cfg(target_os = "linux")]
pub(super) fn remove_below(at: std::os::fd::BorrowedFd<'_>, name: &str) -> io::Result<()> {
    use rustix::fs::{AtFlags, unlinkat};
    outrun(|| unix::empty_at(at, name), || Ok(unlinkat(at, name, AtFlags::REMOVEDIR)?))
}

fn outrun(empty: impl Fn() -> io::Result<bool>, remove: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let mut refilled = 0;
    loop {
        let moved = empty()?;
        match remove() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(error),
            Err(_) if moved => {}
            Err(error) if refilled == MAX_REFILLED_PASSES => return Err(error),
            Err(_) => {
                refilled += 1;
                thread::sleep(REFILLED_PAUSE * refilled);
            }
        }
    }
}

#[cfg(unix)]
use unix::empty;

#[cfg(unix)]
mod unix {
    use std::{
        ffi::CStr,
        io,
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        path::Path,
    };

    use rustix::{
        fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, openat, renameat, unlinkat},
        io::Errno,
        path::Arg,
    };

    /// Folders open at once. What is deeper is moved up to the top first, so that neither descriptors, nor the
    /// stack, nor `PATH_MAX` set an end to the depth.
    const MAX_DEPTH: usize = 32;
    const OWNER_ALL: Mode = Mode::RWXU;

    /// One pass. Says whether deep folders were moved to the top: then another pass has to follow.
    pub(super) fn empty(path: &Path) -> io::Result<bool> {
        empty_at(CWD, path)
    }

    /// The same below a descriptor.
    pub(super) fn empty_at(at: BorrowedFd<'_>, path: impl Arg + Copy) -> io::Result<bool> {
        let top = match open_folder(at, path) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                unlinkat(at, path, AtFlags::empty())?;
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let mut pass = Pass { top: top.as_fd(), moved: 0 };
        pass.empty(Dir::read_from(&top)?, 0)?;
        Ok(pass.moved > 0)
    }

    struct Pass<'a> {
        top: BorrowedFd<'a>,
        moved: u64,
    }

    impl Pass<'_> {
        fn empty(&mut self, mut folder: Dir, depth: usize) -> io::Result<()> {
            while let Some(entry) = folder.read() {
                let entry = entry?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                let at = folder.fd()?;
                let is_folder = match entry.file_type() {
                    FileType::Directory => true,
                    _ => unlink(at, name)? == Unlinked::IsFolder,
                };
                if is_folder {
                    self.remove_folder(at, name, depth)?;
                }
            }
            Ok(())
        }

        fn remove_folder(&mut self, at: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
            let folder = match open_folder(at, name) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => return Ok(()),
                // Swapped for something else meanwhile.
                Err(Errno::NOTDIR | Errno::LOOP) => return unlink(at, name).map(drop),
                Err(error) => return Err(error.into()),
            };
            if depth + 1 == MAX_DEPTH {
                drop(folder);
                return self.move_to_top(at, name);
            }
            self.empty(Dir::new(folder)?, depth + 1)?;
            match unlinkat(at, name, AtFlags::REMOVEDIR) {
                // Not empty: somebody added to it; the next pass sees it again.
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }

        fn move_to_top(&mut self, at: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
            let new_name =
                format!("{}-{}", super::super::unique_name().map_err(io::Error::other)?, self.moved);
            self.moved += 1;
            match renameat(at, name, self.top, new_name) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }

    #[derive(PartialEq, Eq)]
    enum Unlinked {
        Done,
        IsFolder,
    }

    fn unlink(at: BorrowedFd<'_>, name: &CStr) -> io::Result<Unlinked> {
        match unlinkat(at, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Done),
            // POSIX says EPERM for folders, Linux EISDIR.
            Err(Errno::ISDIR) => Ok(Unlinked::IsFolder),
            Err(Errno::PERM) if is_folder(at, name) => Ok(Unlinked::IsFolder),
            Err(error) => Err(error.into()),
        }
    }

    fn is_folder(at: BorrowedFd<'_>, name: &CStr) -> bool {
        rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Opens a folder for reading and makes it changeable for its owner.
    fn open_folder(at: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(at, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                unlock(at, name)?;
                openat(at, name, flags, Mode::empty())?
            }
            other => other?,
        };
        // Not ours: then emptying it says what is wrong, if anything is in it.
        let _ = fchmod(&folder, OWNER_ALL);
        Ok(folder)
    }

    /// Gives a closed folder its permissions back, without following a symlink that took its place.
    #[cfg(target_os = "linux")]
    fn unlock(at: BorrowedFd<'_>, name: impl Arg) -> Result<(), Errno> {
        use std::os::fd::AsRawFd;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(at, name, flags, Mode::empty())?;
        // fchmod refuses O_PATH descriptors; their /proc link leads to exactly what was opened.
        rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), OWNER_ALL)
    }

    #[cfg(not(target_os = "linux"))]
    fn unlock(at: BorrowedFd<'_>, name: impl Arg) -> Result<(), Errno> {
        rustix::fs::chmodat(at, name, OWNER_ALL, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Elsewhere the standard library's removal does; it leaves `path` itself to the caller only when it is gone.
#[cfg(not(unix))]
fn empty(path: &Path) -> io::Result<bool> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|()| false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_removed() {
        let base = tempfile::tempdir().unwrap();
        remove_dir(&base.path().join("none")).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_symlink_is_removed_and_its_target_is_not() {
        let base = tempfile::tempdir().unwrap();
        let target = base.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("kept"), "").unwrap();
        let folder = base.path().join("folder");
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&target, folder.join("link")).unwrap();
        std::os::unix::fs::symlink(&target, base.path().join("top-link")).unwrap();
        remove_dir(&folder).unwrap();
        remove_dir(&base.path().join("top-link")).unwrap();
        assert!(!folder.exists());
        assert!(base.path().join("top-link").symlink_metadata().is_err());
        assert!(target.join("kept").exists());
    }

    #[cfg(unix)]
    #[test]
    fn closed_folders_are_opened_up() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        let inner = folder.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "").unwrap();
        for dir in [&inner, &folder.join("a"), &folder] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_dir(&folder).unwrap();
        assert!(!folder.exists());
    }

    #[cfg(unix)]
    #[test]
    fn no_depth_is_too_deep() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        fs::create_dir(&folder).unwrap();
        nest(&folder, 3_000);
        remove_dir(&folder).unwrap();
        assert!(!folder.exists());
    }

    /// Deeper than any path can name.
    #[cfg(unix)]
    fn nest(folder: &Path, levels: u32) {
        use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = open(folder, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = openat(&at, "deeper", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn a_racing_writer_is_outrun() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        fs::create_dir_all(folder.join("sub")).unwrap();
        let writer = {
            let sub = folder.join("sub");
            thread::spawn(move || {
                for number in 0..u32::MAX {
                    if fs::write(sub.join(number.to_string()), "").is_err() {
                        return;
                    }
                }
            })
        };
        remove_dir(&folder).unwrap();
        writer.join().unwrap();
        assert!(!folder.exists());
    }
}
