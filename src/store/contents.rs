//! What is in a tree, written down when it is published: the list that a later process compares it with, and its size.
//!
//! The list is `<size> <mtime in ns> <path>\0` for each file and `l <target length> <path>\0` for each symlink. Sizes and times,
//! no hashes: what they are to find is files that a temp cleaner took, that a crash of the machine left empty, or that a program
//! changed, and reading all of a tree would cost more than installing it from the cache.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Files that a list names; what a tree has beyond them is not checked.
pub(super) const MAX_LISTED_FILES: usize = 200_000;
/// A list longer than this is none of ours.
const MAX_LIST_BYTES: u64 = 128 * 1024 * 1024;
/// What a file or folder takes on disk is a multiple of this.
const BLOCK_BYTES: u64 = 4096;

/// What a tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size {
    /// On disk, rounded up to blocks.
    pub(super) bytes: u64,
    pub(super) files: u64,
}

/// Takes all write bits off `tree` and what is in it, lets everybody read it, and writes the list to `list`. Blocks.
pub(super) fn seal(tree: &Path, list: &Path) -> io::Result<Size> {
    let mut out = io::BufWriter::new(fs::File::create_new(list)?);
    let mut size = Size { bytes: BLOCK_BYTES, files: 0 };
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        open_up(&folder);
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            // Of the entry itself: a symlink's target is none of ours.
            let metadata = fs::symlink_metadata(&path)?;
            size.bytes += metadata.len().max(1).div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
            if metadata.is_dir() {
                folders.push(path);
                continue;
            }
            size.files += 1;
            if size.files <= MAX_LISTED_FILES as u64 {
                let relative = path.strip_prefix(tree).unwrap_or(&path);
                write!(out, "{} ", fingerprint(&metadata))?;
                out.write_all(relative.as_os_str().as_encoded_bytes())?;
                out.write_all(b"\0")?;
            }
            if metadata.is_file() {
                seal_one(&path, &metadata)?;
            }
        }
        seal_one(&folder, &fs::symlink_metadata(&folder)?)?;
    }
    out.flush()?;
    Ok(size)
}

/// The first thing in which `tree` is not what `list` says; `None` when there is none. Blocks for some µs per file.
pub(super) fn difference(tree: &Path, list: &Path) -> Option<String> {
    let text = match fs::metadata(list).and_then(|metadata| {
        if metadata.len() > MAX_LIST_BYTES {
            return Err(io::Error::other("too long"));
        }
        fs::read(list)
    }) {
        Ok(text) => text,
        Err(error) => return Some(format!("its list of files cannot be read: {error}")),
    };
    if text.last().is_some_and(|last| *last != 0) {
        return Some("its list of files is cut off".to_owned());
    }
    text.split(|byte| *byte == 0).filter(|line| !line.is_empty()).find_map(|line| {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let (Some(size), Some(time), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Some("its list of files is malformed".to_owned());
        };
        let path = path_of(path);
        match fs::symlink_metadata(tree.join(&path)) {
            Err(error) => Some(format!("{}: {error}", path.display())),
            Ok(metadata) => {
                let expected = [size, b" ", time].concat();
                (fingerprint(&metadata).as_bytes() != expected)
                    .then(|| format!("{} was changed", path.display()))
            }
        }
    })
}

fn fingerprint(metadata: &fs::Metadata) -> String {
    if metadata.is_symlink() {
        return format!("l {}", metadata.len());
    }
    let time = metadata.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    format!("{} {}", metadata.len(), time.unwrap_or_default().as_nanos())
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
        let size = seal(&scene.tree(), &scene.list()).unwrap();
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

    #[test]
    fn a_list_that_is_gone_or_cut_off_vouches_for_nothing() {
        let scene = Scene::new();
        seal(&scene.tree(), &scene.list()).unwrap();
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
        seal(&scene.tree(), &scene.list()).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
        for (path, expected) in [("bin/run", 0o555), ("index.js", 0o444), ("bin", 0o555), ("", 0o555)] {
            assert_eq!(mode(&pkg.join(path)), expected, "{path}");
        }
        assert_eq!(mode(&scene.tree()), 0o555);
        assert_ne!(mode(&outside) & 0o222, 0, "a symlink's target is left alone");
        assert_eq!(scene.difference(), None);
    }
}
