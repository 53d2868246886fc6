//! What is in a tree, written down when it is published: the list that a later process compares it with, and its size.
//!
//! The list is `<size> <mtime in ns> <path>\0` for each file, `l <target length> <path>\0` for each symlink, and
//! `d <mtime in ns> <path>\0` for each folder: what is taken out of a folder, or put into it, changes that time. Sizes and times,
//! no hashes: what they are to find is files that a temp cleaner took, that a crash of the machine left empty, or that a program
//! changed, and reading all of a tree would cost more than installing it from the cache.

use std::{
    collections::VecDeque,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::reading;

/// Files that a list names; what a tree has beyond them is not checked.
pub(super) const MAX_LISTED_FILES: usize = 200_000;
/// Files and folders that a tree may have: more are no packages.
pub(super) const MAX_TREE_FILES: u64 = 500_000;
/// Folders that are looked at before each use of a tree, and of the others as many more, in turn.
const ALWAYS_WATCHED: usize = 12;
const WATCHED_IN_TURN: usize = 4;
/// Folders that are watched at all: those next to the top.
const MAX_WATCHED: usize = 512;
/// A list longer than this is none of ours.
const MAX_LIST_BYTES: u64 = 128 * 1024 * 1024;
/// What a file or folder takes on disk is a multiple of this.
const BLOCK_BYTES: u64 = 4096;
/// The unit of `st_blocks`.
#[cfg(unix)]
const STAT_BLOCK_BYTES: u64 = 512;

/// What a tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size {
    /// On disk, rounded up to blocks.
    pub(super) bytes: u64,
    pub(super) files: u64,
}

/// Takes all write bits off `tree` and what is in it, lets everybody read it, and writes the list to `list`. What is neither file nor
/// folder nor link is removed: whoever opens a pipe in a tree waits for ever. Fails where the tree takes more than `max_bytes`. Blocks.
pub(super) fn seal(tree: &Path, list: &Path, max_bytes: u64) -> io::Result<(Size, Watched)> {
    let mut out = io::BufWriter::new(fs::File::create_new(list)?);
    let mut size = Size { bytes: BLOCK_BYTES, files: 0 };
    let (mut folders, mut seen) = (VecDeque::from([tree.to_owned()]), 0);
    let mut watched = Vec::new();
    while let Some(folder) = folders.pop_front() {
        open_up(&folder);
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            // Of the entry itself: a symlink's target is none of ours.
            let metadata = fs::symlink_metadata(&path)?;
            seen += 1;
            size.bytes = size.bytes.saturating_add(taken(&metadata));
            if size.bytes > max_bytes {
                return Err(io::Error::other(TooLarge::Bytes(max_bytes)));
            }
            if seen > MAX_TREE_FILES {
                return Err(io::Error::other(TooLarge::Files));
            }
            if metadata.is_dir() {
                folders.push_back(path);
                continue;
            }
            if !metadata.is_file() && !metadata.is_symlink() {
                fs::remove_file(&path)?;
                continue;
            }
            size.files += 1;
            if size.files <= MAX_LISTED_FILES as u64 {
                note(&mut out, tree, &path, &metadata)?;
            }
            if metadata.is_file() {
                seal_one(&path, &metadata)?;
            }
        }
        let metadata = fs::symlink_metadata(&folder)?;
        note(&mut out, tree, &folder, &metadata)?;
        if watched.len() < MAX_WATCHED {
            watched.push((folder.strip_prefix(tree).unwrap_or(&folder).to_owned(), fingerprint(&metadata)));
        }
        seal_one(&folder, &metadata)?;
    }
    out.flush()?;
    Ok((size, Watched::new(watched)))
}

/// Why a tree is not published.
#[derive(Debug, thiserror::Error)]
pub(super) enum TooLarge {
    #[error(
        "the packages take more than {0} bytes, the most that one set of dependencies may take: raise storeMaxBytes \
             (AGENTS_FUNCTION_TOOL_SANDBOX_STORE_MAX_BYTES), or ask for less"
    )]
    Bytes(u64),
    #[error(
        "the packages have more than {MAX_TREE_FILES} files, the most that one set of dependencies may have"
    )]
    Files,
}

fn note(out: &mut impl io::Write, tree: &Path, path: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    let relative = path.strip_prefix(tree).unwrap_or(path);
    write!(out, "{} ", fingerprint(metadata))?;
    out.write_all(relative.as_os_str().as_encoded_bytes())?;
    out.write_all(b"\0")
}

/// What something takes on disk: a file with holes takes less than its length.
fn taken(metadata: &fs::Metadata) -> u64 {
    let rounded = metadata.len().max(1).div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let allocated = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES);
        if metadata.is_file() {
            return allocated.max(BLOCK_BYTES).min(rounded);
        }
    }
    rounded
}

/// Folders of a tree and when each was last changed: a temp cleaner that takes files out of them, and leaves them, is noticed.
#[derive(Debug, Default)]
pub(super) struct Watched {
    folders: Vec<(PathBuf, String)>,
    turn: AtomicUsize,
}

impl Watched {
    fn new(folders: Vec<(PathBuf, String)>) -> Self {
        Self { folders, turn: AtomicUsize::new(0) }
    }

    /// Those of a list. Where a folder is not what the list says, all files are compared: what came to a folder is no damage, what
    /// went is, and the error. Blocks for some µs per folder, or per file.
    pub(super) fn of_list(tree: &Path, list: &Path) -> Result<Self, String> {
        let text = read_list(list)?;
        let mut folders = Vec::new();
        for line in lines(&text) {
            let (mark, time, path) = parts(line).ok_or(MALFORMED)?;
            if mark == b"d" && folders.len() < MAX_WATCHED {
                let time = String::from_utf8_lossy(time).into_owned();
                folders.push((path_of(path), format!("d {time}")));
            }
        }
        if folders.iter().any(|folder| changed(tree, folder).is_some()) {
            if let Some(difference) = difference_of(tree, &text) {
                return Err(difference);
            }
            for (path, stamp) in &mut folders {
                let metadata = fs::symlink_metadata(tree.join(&path)).map_err(|error| error.to_string())?;
                *stamp = fingerprint(&metadata);
            }
        }
        Ok(Self::new(folders))
    }

    /// A folder that is not what it was, as far as a look at some of them tells: a system call for each.
    pub(super) fn difference(&self, tree: &Path) -> Option<String> {
        let (always, others) = self.folders.split_at(self.folders.len().min(ALWAYS_WATCHED));
        let turn = self.turn.fetch_add(WATCHED_IN_TURN, Ordering::Relaxed);
        let count = others.len().min(WATCHED_IN_TURN);
        let in_turn = (0..count).filter_map(|step| others.get(turn.wrapping_add(step) % others.len()));
        always.iter().chain(in_turn).find_map(|folder| changed(tree, folder))
    }
}

fn changed(tree: &Path, (path, expected): &(PathBuf, String)) -> Option<String> {
    match fs::symlink_metadata(tree.join(path)) {
        Err(error) => Some(format!("{}: {error}", path.display())),
        Ok(metadata) => {
            (fingerprint(&metadata) != *expected).then(|| format!("the folder {} was changed", shown(path)))
        }
    }
}

fn shown(path: &Path) -> std::path::Display<'_> {
    if path.as_os_str().is_empty() { Path::new(".").display() } else { path.display() }
}

const MALFORMED: &str = "its list of files is malformed";

fn read_list(list: &Path) -> Result<Vec<u8>, String> {
    let text = reading::read_file(list, MAX_LIST_BYTES)
        .map_err(|error| format!("its list of files cannot be read: {error}"))?;
    if text.last().is_some_and(|last| *last != 0) {
        return Err("its list of files is cut off".to_owned());
    }
    Ok(text)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == 0).filter(|line| !line.is_empty())
}

fn parts(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// The first thing in which `tree` is not what `list` says; `None` when there is none. Blocks for some µs per file.
pub(super) fn difference(tree: &Path, list: &Path) -> Option<String> {
    match read_list(list) {
        Ok(text) => difference_of(tree, &text),
        Err(problem) => Some(problem),
    }
}

fn difference_of(tree: &Path, list: &[u8]) -> Option<String> {
    lines(list).find_map(|line| {
        let Some((size, time, path)) = parts(line) else { return Some(MALFORMED.to_owned()) };
        let path = path_of(path);
        match fs::symlink_metadata(tree.join(&path)) {
            Err(_) if size == b"d" => None,
            Err(error) => Some(format!("{}: {error}", shown(&path))),
            // What came to a folder, or a folder that went with nothing in it, is no damage.
            Ok(metadata) if size == b"d" => {
                (!metadata.is_dir()).then(|| format!("{} was changed", shown(&path)))
            }
            Ok(metadata) => {
                let expected = [size, b" ", time].concat();
                (fingerprint(&metadata).as_bytes() != expected)
                    .then(|| format!("{} was changed", shown(&path)))
            }
        }
    })
}

fn fingerprint(metadata: &fs::Metadata) -> String {
    if metadata.is_symlink() {
        return format!("l {}", metadata.len());
    }
    let time = metadata.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let time = time.unwrap_or_default().as_nanos();
    if metadata.is_dir() { format!("d {time}") } else { format!("{} {time}", metadata.len()) }
}

#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// Packages may hold folders that their owner cannot read.
fn open_up(folder: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o755));
    }
    #[cfg(not(unix))]
    let _ = folder;
}

/// Readable for all, writable for none; programs stay programs. Workers may run under a uid of their own.
#[cfg(unix)]
fn seal_one(path: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let runs = metadata.is_dir() || metadata.permissions().mode() & 0o111 != 0;
    fs::set_permissions(path, fs::Permissions::from_mode(if runs { 0o555 } else { 0o444 }))
}

#[cfg(not(unix))]
fn seal_one(path: &Path, metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Ok(());
    }
    let mut permissions = metadata.permissions();
    permissions.set_readonly(true);
    fs::set_permissions(path, permissions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remove_dir;

    struct Scene(tempfile::TempDir);

    impl Scene {
        fn new() -> Self {
            let scene = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(scene.tree().join("node_modules/pkg/bin")).unwrap();
            fs::write(scene.tree().join("node_modules/pkg/index.js"), "module.exports = 1").unwrap();
            fs::write(scene.tree().join("node_modules/pkg/line\nbreak and blank"), "").unwrap();
            scene
        }

        fn tree(&self) -> PathBuf {
            self.0.path().join("tree")
        }

        fn list(&self) -> PathBuf {
            self.0.path().join("files")
        }

        fn difference(&self) -> Option<String> {
            difference(&self.tree(), &self.list())
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            remove_dir(self.0.path()).unwrap();
        }
    }

    #[test]
    fn a_tree_is_what_its_list_says_until_somebody_changes_it() {
        let scene = Scene::new();
        let (size, _) = seal(&scene.tree(), &scene.list(), u64::MAX).unwrap();
        assert_eq!((size.files, size.bytes % BLOCK_BYTES), (2, 0));
        assert_eq!(scene.difference(), None);
        let file = scene.tree().join("node_modules/pkg/index.js");
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        remove_dir(&scene.tree().join("node_modules/pkg/bin")).unwrap();
        // Same size, other time.
        let opened = fs::File::open(&file).unwrap();
        opened.set_modified(time + std::time::Duration::from_secs(1)).unwrap();
        assert_eq!(scene.difference().unwrap(), "node_modules/pkg/index.js was changed");
        opened.set_modified(time).unwrap();
        assert_eq!(scene.difference(), None);
        remove_dir(&scene.tree().join("node_modules")).unwrap();
        assert!(scene.difference().unwrap().contains("node_modules/pkg/"));
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_sockets_are_removed_and_holes_take_no_room() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let scene = Scene::new();
        let pkg = scene.tree().join("node_modules/pkg");
        mknodat(CWD, pkg.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(pkg.join("socket")).unwrap();
        fs::File::create(pkg.join("hole")).unwrap().set_len(64 << 30).unwrap();
        let (size, _) = seal(&scene.tree(), &scene.list(), 1 << 20).unwrap();
        assert!(size.bytes < 1 << 20, "{size:?}");
        assert_eq!(size.files, 3);
        assert!(!pkg.join("pipe").exists() && !pkg.join("socket").exists());
        assert_eq!(scene.difference(), None);
    }

    #[test]
    fn a_tree_that_takes_too_much_is_not_sealed() {
        let scene = Scene::new();
        fs::write(scene.tree().join("node_modules/large"), vec![1; 1 << 20]).unwrap();
        let error = seal(&scene.tree(), &scene.list(), 1 << 19).unwrap_err().to_string();
        assert!(error.contains("storeMaxBytes"), "{error}");
    }

    #[test]
    fn a_folder_whose_files_a_cleaner_took_is_noticed_at_a_look_and_a_file_that_came_is_no_damage() {
        let scene = Scene::new();
        let (_, watched) = seal(&scene.tree(), &scene.list(), u64::MAX).unwrap();
        assert_eq!(watched.difference(&scene.tree()), None);
        let again = Watched::of_list(&scene.tree(), &scene.list()).unwrap();
        assert_eq!(again.difference(&scene.tree()), None);
        let pkg = scene.tree().join("node_modules/pkg");
        open_up(&pkg);
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(pkg.join("more"), "").unwrap();
        assert!(watched.difference(&scene.tree()).is_some());
        let again = Watched::of_list(&scene.tree(), &scene.list()).unwrap();
        assert_eq!(again.difference(&scene.tree()), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::remove_file(pkg.join("index.js")).unwrap();
        assert!(again.difference(&scene.tree()).is_some());
        assert!(Watched::of_list(&scene.tree(), &scene.list()).unwrap_err().contains("index.js"));
    }

    #[test]
    fn a_list_that_is_gone_or_cut_off_vouches_for_nothing() {
        let scene = Scene::new();
        seal(&scene.tree(), &scene.list(), u64::MAX).unwrap();
        let whole = fs::read(scene.list()).unwrap();
        fs::write(scene.list(), &whole[..whole.len() - 1]).unwrap();
        assert!(scene.difference().unwrap().contains("cut off"));
        fs::write(scene.list(), "1\0").unwrap();
        assert!(scene.difference().unwrap().contains("malformed"));
        fs::remove_file(scene.list()).unwrap();
        assert!(scene.difference().unwrap().contains("cannot be read"));
    }

    #[cfg(unix)]
    #[test]
    fn everybody_can_read_and_nobody_can_write() {
        use std::os::unix::fs::PermissionsExt;
        let scene = Scene::new();
        let pkg = scene.tree().join("node_modules/pkg");
        let outside = scene.0.path().join("outside");
        fs::write(&outside, "").unwrap();
        fs::write(pkg.join("bin/run"), "").unwrap();
        std::os::unix::fs::symlink(&outside, pkg.join("link")).unwrap();
        for (path, mode) in
            [(pkg.join("bin/run"), 0o700), (pkg.join("index.js"), 0o600), (pkg.join("bin"), 0o000)]
        {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        seal(&scene.tree(), &scene.list(), u64::MAX).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
        for (path, expected) in [("bin/run", 0o555), ("index.js", 0o444), ("bin", 0o555), ("", 0o555)] {
            assert_eq!(mode(&pkg.join(path)), expected, "{path}");
        }
        assert_eq!(mode(&scene.tree()), 0o555);
        assert_ne!(mode(&outside) & 0o222, 0, "a symlink's target is left alone");
        assert_eq!(scene.difference(), None);
    }
}
