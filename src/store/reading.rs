//! The one way to read files that others could have made: below a tree, in a run folder, in the store.
//!
//! A package or a function may have put anything in a file's place: a link that leads out, a pipe that nobody writes to, a file of
//! 64 GiB that takes no room. No reader here waits for a writer, follows a link below the folder it was given, or takes more than
//! it was told.

use std::{
    fs,
    io::{self, Read as _},
    path::{Component, Path},
};

use super::unique_name;

/// Reads a regular file of at most `max_bytes`; the file itself is not reached through a link. Blocks for the disk only.
pub fn read_file(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    content(open_file(path)?, max_bytes)
}

/// [`read_file`] of UTF-8 text.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    String::from_utf8(read_file(path, max_bytes)?).map_err(io::Error::other)
}

/// Reads the regular file `relative` below `root`; neither it nor a folder on the way is reached through a link.
pub fn read_below(root: &Path, relative: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    content(open_below(root, relative)?, max_bytes)
}

/// Puts a new file in the place of whatever file is at `path`: neither a link nor a pipe there is written to, and readers see the old
/// file or the new one, whole. Of several that replace one file at the same time, the last counts and none fails.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let hidden = path.with_extension(unique_name().map_err(io::Error::other)?);
    let written = fs::File::create_new(&hidden)
        .and_then(|mut file| io::Write::write_all(&mut file, content))
        .and_then(|()| fs::rename(&hidden, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&hidden);
    })
}

/// Reads at most `max_bytes` of a regular file of the host's own user, which may be a link; without waiting for anybody.
pub fn read_start(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_regular());
    }
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file, not through a link in its place, and without waiting for whoever is at its other end.
pub fn open_file(path: &Path) -> io::Result<fs::File> {
    #[cfg(unix)]
    let file = unix::open_at(rustix::fs::CWD, path.as_os_str())?;
    #[cfg(not(unix))]
    let file = fs::File::open(regular(path)?)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

#[cfg(unix)]
fn open_below(root: &Path, relative: &Path) -> io::Result<fs::File> {
    use std::os::fd::AsFd as _;

    let mut folder = unix::folder_at(rustix::fs::CWD, root.as_os_str())?;
    let mut parts = relative.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        if parts.peek().is_some() {
            folder = unix::folder_at(folder.as_fd(), name)?;
            continue;
        }
        let file = unix::open_at(folder.as_fd(), name)?;
        return if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) };
    }
    Err(io::ErrorKind::InvalidInput.into())
}

#[cfg(not(unix))]
fn open_below(root: &Path, relative: &Path) -> io::Result<fs::File> {
    let mut path = root.to_owned();
    for part in relative.components() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        if fs::symlink_metadata(&path)?.is_symlink() {
            return Err(not_regular());
        }
        path.push(name);
    }
    open_file(&path)
}

#[cfg(not(unix))]
fn regular(path: &Path) -> io::Result<&Path> {
    if fs::symlink_metadata(path)?.is_file() { Ok(path) } else { Err(not_regular()) }
}

#[cfg(unix)]
mod unix {
    use std::{ffi::OsStr, fs, io, os::fd::BorrowedFd};

    use rustix::fs::{Mode, OFlags, openat};

    const FILE: OFlags = OFlags::RDONLY
        .union(OFlags::NOFOLLOW)
        .union(OFlags::NONBLOCK)
        .union(OFlags::NOCTTY)
        .union(OFlags::CLOEXEC);

    pub(super) fn open_at(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<fs::File> {
        Ok(openat(at, name, FILE, Mode::empty())?.into())
    }

    pub(super) fn folder_at(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<std::os::fd::OwnedFd> {
        Ok(openat(at, name, FILE.union(OFlags::DIRECTORY), Mode::empty())?)
    }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")
}

fn content(file: fs::File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let too_large =
        || io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {max_bytes} bytes"));
    let length = file.metadata()?.len();
    if length > max_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // One more than that: a file may grow meanwhile.
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes { Err(too_large()) } else { Ok(bytes) }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    const MAX: u64 = 1000;

    fn pipe(path: &Path) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    #[test]
    fn what_is_no_regular_file_of_that_size_is_not_read_and_not_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        pipe(&at("pipe"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::File::create(at("hole")).unwrap().set_len(64 << 30).unwrap();
        assert_eq!(read_file(&at("file"), 4).unwrap(), b"text");
        assert!(read_file(&at("file"), 3).is_err());
        for name in ["link", "pipe", "socket", "folder", "hole", "absent"] {
            assert!(read_file(&at(name), MAX).is_err(), "{name}");
            assert!(read_below(base.path(), Path::new(name), MAX).is_err(), "{name}");
        }
        assert!(read_file(Path::new("/dev/zero"), MAX).is_err());
    }

    /// Two hosts that ended an install at the same time both noted the size of their shared cache, and one call was rejected.
    #[test]
    fn a_file_that_many_replace_at_once_is_one_of_theirs_and_nobody_fails() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("size");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..200 {
                        replace_file(path, &[b'0' + writer; 8]).unwrap();
                        let found = read_file(path, MAX).unwrap();
                        assert!(found.len() == 8 && found.iter().all(|&byte| byte == found[0]), "{found:?}");
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_in_a_files_place_is_replaced_and_not_written_through() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        fs::write(at("outside"), "as it was").unwrap();
        std::os::unix::fs::symlink(at("outside"), at("file")).unwrap();
        replace_file(&at("file"), b"new").unwrap();
        assert_eq!(read_file(&at("file"), MAX).unwrap(), b"new");
        assert_eq!(fs::read(at("outside")).unwrap(), b"as it was");
    }

    #[test]
    fn no_folder_on_the_way_may_be_a_link() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("root");
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/file"), "in").unwrap();
        std::os::unix::fs::symlink("a", root.join("b")).unwrap();
        let read = |path: &str| read_below(&root, Path::new(path), MAX);
        assert_eq!(read("a/file").unwrap(), b"in");
        for path in ["b/file", "../r/a/file", "/etc/passwd", "", "a"] {
            assert!(read(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_takes_the_place_of_a_link_or_a_pipe_and_what_the_link_led_to_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let (path, outside) = (base.path().join("file"), base.path().join("outside"));
        fs::write(&outside, "kept").unwrap();
        std::os::unix::fs::symlink(&outside, &path).unwrap();
        replace_file(&path, b"new").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&outside).unwrap()),
            (b"new".to_vec(), b"kept".to_vec())
        );
        fs::remove_file(&path).unwrap();
        pipe(&path);
        replace_file(&path, b"new").unwrap();
        assert_eq!(read_file(&path, MAX).unwrap(), b"new");
    }
}
