//! Node's compile caches of a tree's packages, beside the tree in the folder of its generation.
//!
//! ```text
//! <generation>/compile-cache/<name>/   one per kind of process, published by one rename
//!   about                              the marker: size and Node's own name for it; of one without a name there is nothing
//!   code/                              Node's files, without write bits
//! ```
//!
//! V8 checks version, flags and length of the source, not the bytecode: whoever writes to a cache decides what runs. So what is
//! in here is copied from where a process worked that had loaded the packages of this very tree and nothing else, and nobody
//! that runs a function is let write to it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{StoreError, Tree, hex, reading, remove_dir, root, shelf::names_in, unique_name};

/// All compile caches of a generation.
const FOLDER: &str = "compile-cache";
/// What is known of one.
const ABOUT_FILE: &str = "about";
/// One itself.
const CODE_FOLDER: &str = "code";
/// Hexadecimal digits of a name.
const NAME_DIGITS: usize = 16;
/// Of one tree at most; the oldest goes. Each Node, heap limit and way of starting has its own.
const MAX_CACHES: usize = 8;
/// What one may hold; of a larger one the rest is left out, and compiled by each process.
const MAX_CACHE_FILES: usize = 4096;
const MAX_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// What a file takes on disk is a multiple of this.
const BLOCK_BYTES: u64 = 4096;
/// An `about` longer than this is none of ours.
const MAX_ABOUT_BYTES: u64 = 1024;
/// Node's name for a cache is shorter than this.
const MAX_TAG_CHARS: usize = 100;

/// Which kind of process takes a cache: a digest of all that V8 and Node ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheName(String);

impl CacheName {
    /// From what tells kinds apart.
    pub fn of(kind: &impl Serialize) -> Self {
        let text = serde_json::to_string(kind).unwrap_or_default();
        Self(hex(&Sha256::digest(text))[..NAME_DIGITS].to_owned())
    }
}

/// In its temp folder, what Node is given as the folder of a cache that is to be made.
pub const LEFT_FOLDER: &str = "compiled";

/// What a process left that loaded a tree's packages.
#[derive(Debug)]
pub struct Made<'a> {
    /// The folder that Node was given, open; nothing in it is trusted but to be this tree's.
    pub dir: &'a fs::File,
    /// The user that the process had.
    pub user: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct About {
    /// What it takes on disk.
    bytes: u64,
    /// Node's name for it, without the user at its end.
    tag: Option<String>,
}

/// What leads Node from its own name for a cache to the one of a tree: Node puts its user's number into that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLink {
    /// Node's name.
    pub name: String,
    /// The cache.
    pub target: PathBuf,
}

impl CacheLink {
    /// The one to a tree's cache, for processes of `user`, or of the host's if that is none; `None` where there is no cache. Reads a
    /// small file.
    pub fn find(tree: &Path, name: &CacheName, user: Option<u32>) -> Option<Self> {
        // Names of users are none of Node's where they are no numbers.
        if !cfg!(unix) {
            return None;
        }
        let cache = folder_of(tree).join(&name.0);
        let tag = about(&cache)?.tag?;
        Some(Self { name: format!("{tag}-{}", number_of(user)), target: cache.join(CODE_FOLDER) })
    }

    /// The name of the folder that it lies in.
    pub const fn folder() -> &'static str {
        FOLDER
    }

    /// Where that folder, which Node is told, is or will be in `dir`.
    pub fn folder_in(&self, dir: &Path) -> PathBuf {
        dir.join(FOLDER)
    }

    /// Makes it in a folder that the process cannot write to; what Node is to be told.
    #[cfg(unix)]
    pub fn make_in(&self, dir: &Path) -> Option<PathBuf> {
        let folder = self.folder_in(dir);
        root::open_dir(&folder).ok()?;
        std::os::unix::fs::symlink(&self.target, folder.join(&self.name)).ok()?;
        Some(folder)
    }

    /// There is none.
    #[cfg(not(unix))]
    pub fn make_in(&self, _: &Path) -> Option<PathBuf> {
        None
    }
}

/// The number of a process's user.
pub(super) fn number_of(user: Option<u32>) -> u32 {
    #[cfg(unix)]
    return user.unwrap_or_else(|| rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    user.unwrap_or(0)
}

/// Opens what a process left, at a path or by its name in a folder; not through a link in its place.
#[cfg(unix)]
pub(super) fn open_left(folder: Option<&std::os::fd::OwnedFd>, name: &Path) -> io::Result<fs::File> {
    use std::os::fd::AsFd as _;

    let at = folder.map_or(rustix::fs::CWD, |folder| folder.as_fd());
    let opened =
        rustix::fs::openat(at, name, READING | rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty());
    Ok(opened?.into())
}

/// Nothing is left there.
#[cfg(not(unix))]
pub(super) fn open_left(_: Option<&fs::File>, _: &Path) -> io::Result<fs::File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// How what others left is opened.
#[cfg(unix)]
const READING: rustix::fs::OFlags = rustix::fs::OFlags::RDONLY
    .union(rustix::fs::OFlags::NOFOLLOW)
    .union(rustix::fs::OFlags::NONBLOCK)
    .union(rustix::fs::OFlags::CLOEXEC);

/// Where the compile caches of the tree in `tree` are.
pub fn folder_of(tree: &Path) -> PathBuf {
    tree.with_file_name(FOLDER)
}

impl Tree {
    /// Whether there is one of this name, or it is known that there will be none.
    pub fn has_compile_cache(&self, name: &CacheName) -> bool {
        about(&folder_of(self.dir()).join(&name.0)).is_some()
    }

    /// Keeps a copy of what a process left, or that there will be nothing (`None`), unless another host was faster; its size on
    /// disk. Blocks.
    pub fn keep_compile_cache(&self, name: &CacheName, made: Option<&Made<'_>>) -> Result<u64, StoreError> {
        let staged = self.shared.folder("staging").join(unique_name()?);
        let kept = self
            .shared
            .retrying(|| root::open_dir(&staged).map_err(StoreError::io("create the folder", &staged)));
        let kept = kept.and_then(|()| self.publish_compile_cache(&staged, name, made));
        if !matches!(kept, Ok(Some(_))) {
            self.shared.discard(staged);
        }
        let bytes = kept?.unwrap_or(0);
        self.shared.gauges.add_bytes(bytes);
        Ok(bytes)
    }

    /// `None` when there was one.
    fn publish_compile_cache(
        &self,
        staged: &Path,
        name: &CacheName,
        made: Option<&Made<'_>>,
    ) -> Result<Option<u64>, StoreError> {
        let about = match made {
            Some(made) => copy(made, &staged.join(CODE_FOLDER)).map_err(StoreError::io("copy to", staged))?,
            None => About::default(),
        };
        let file = staged.join(ABOUT_FILE);
        let written =
            serde_json::to_vec(&about).map_err(io::Error::other).and_then(|text| fs::write(&file, text));
        written.map_err(StoreError::io("write", &file))?;
        let folder = folder_of(self.dir());
        // Not a folder deeper: the generation may be gone.
        match root::builder(0o755).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::io("create the folder", &folder)(error));
            }
            _ => {}
        }
        drop_oldest(&folder)?;
        let place = folder.join(&name.0);
        match fs::rename(staged, &place) {
            Ok(()) => Ok(Some(about.bytes)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(StoreError::io("publish", place)(error)),
        }
    }
}

/// What all compile caches of a generation take on disk.
pub(super) fn bytes_in(generation: &Path) -> u64 {
    let folder = generation.join(FOLDER);
    let names = names_in(&folder).unwrap_or_default();
    names.iter().filter_map(|name| about(&folder.join(name))).map(|about| about.bytes).sum()
}

fn about(cache: &Path) -> Option<About> {
    let path = cache.join(ABOUT_FILE);
    let about: About = serde_json::from_slice(&reading::read_file(&path, MAX_ABOUT_BYTES).ok()?).ok()?;
    about.tag.as_deref().is_none_or(is_tag).then_some(about)
}

/// Whether Node may have given a cache this name: one step of a path.
fn is_tag(tag: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    tag.len() < MAX_TAG_CHARS && tag.starts_with('v') && tag.bytes().all(is_fit)
}

/// Makes room for one more.
fn drop_oldest(folder: &Path) -> Result<(), StoreError> {
    let mut caches: Vec<(SystemTime, PathBuf)> = names_in(folder)?
        .iter()
        .map(|name| folder.join(name))
        .map(|cache| {
            let made = fs::symlink_metadata(cache.join(ABOUT_FILE)).and_then(|about| about.modified());
            (made.unwrap_or(UNIX_EPOCH), cache)
        })
        .collect();
    caches.sort();
    let surplus = (caches.len() + 1).saturating_sub(MAX_CACHES);
    // Whoever reads it compiles what he does not find.
    caches
        .iter()
        .take(surplus)
        .try_for_each(|(_, cache)| remove_dir(cache).map_err(StoreError::io("remove", cache)))
}

/// Copies the files of the one cache in a folder that a process filled which may have become anybody's: nothing but regular files of
/// that process's own user, without other names, by descriptors, and so much of them.
#[cfg(unix)]
fn copy(made: &Made<'_>, to: &Path) -> io::Result<About> {
    use std::{
        io::Read as _,
        os::{
            fd::{AsFd as _, BorrowedFd},
            unix::fs::PermissionsExt,
        },
    };

    use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, openat};

    let names = |folder: BorrowedFd<'_>| -> io::Result<Vec<String>> {
        let entries =
            Dir::read_from(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        entries.take(2 * MAX_CACHE_FILES).collect()
    };
    let top = made.dir.as_fd();
    let suffix = format!("-{}", made.user);
    let name = names(top)?.into_iter().find(|name| name.strip_suffix(&*suffix).is_some_and(is_tag));
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "Node left none"))?;
    let code = openat(top, &*name, READING | OFlags::DIRECTORY, Mode::empty())?;
    root::open_dir(to)?;
    let mut about = About { bytes: 2 * BLOCK_BYTES, tag: name.strip_suffix(&*suffix).map(str::to_owned) };
    let is_hash = |name: &String| name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    for name in names(code.as_fd())?.into_iter().filter(is_hash).take(MAX_CACHE_FILES) {
        // A link, for one.
        let Ok(file) = openat(&code, &*name, READING, Mode::empty()) else { continue };
        let found = fstat(&file)?;
        let is_plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1;
        let length = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        let bytes = length.saturating_add(1).div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        if !is_plain || found.st_uid != made.user || about.bytes.saturating_add(bytes) > MAX_CACHE_BYTES {
            continue;
        }
        let mut text = Vec::new();
        fs::File::from(file).take(length).read_to_end(&mut text)?;
        let copied = to.join(&name);
        fs::write(&copied, text)?;
        fs::set_permissions(&copied, fs::Permissions::from_mode(0o444))?;
        about.bytes += bytes;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o555))?;
    Ok(about)
}

#[cfg(not(unix))]
fn copy(_: &Made<'_>, _: &Path) -> io::Result<About> {
    Err(io::ErrorKind::Unsupported.into())
}

impl super::shelf::Gauges {
    fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::store::{Keep, RunFolder, Store, TreeKey};

    const TAG: &str = "v22.1.0-x64-0123abcd";

    struct Scene {
        base: tempfile::TempDir,
        store: Store,
        tree: Tree,
        user: u32,
    }

    impl Scene {
        fn new() -> Self {
            let base = tempfile::tempdir().unwrap();
            let store = Store::open(base.path()).unwrap();
            let staging = store.staging().unwrap();
            fs::write(staging.tree().join("package.json"), "{}").unwrap();
            let tree = store.publish(staging, &TreeKey::new(&[].into(), &""), serde_json::json!({})).unwrap();
            Self { base, store, tree, user: rustix::process::getuid().as_raw() }
        }

        /// As Node leaves it.
        fn left(&self) -> PathBuf {
            let dir = self.base.path().join("left");
            let code = dir.join(format!("{TAG}-{}", self.user));
            fs::create_dir_all(&code).unwrap();
            fs::write(code.join("0123abcd"), "bytecode").unwrap();
            dir
        }

        fn code(&self) -> PathBuf {
            self.left().join(format!("{TAG}-{}", self.user))
        }

        fn keep(&self, name: &CacheName) -> Result<u64, StoreError> {
            let left = open_left(None, &self.left()).unwrap();
            self.tree.keep_compile_cache(name, Some(&Made { dir: &left, user: self.user }))
        }

        fn kept(&self, name: &CacheName) -> PathBuf {
            folder_of(self.tree.dir()).join(&name.0).join(CODE_FOLDER)
        }
    }

    fn name(kind: usize) -> CacheName {
        CacheName::of(&("kind", kind))
    }

    #[test]
    fn what_was_left_is_offered_to_who_has_the_same_flags_and_another_user() {
        let scene = Scene::new();
        assert!(!scene.tree.has_compile_cache(&name(1)));
        let run = RunFolder::create(&scene.tree).unwrap();
        let offer = || CacheLink::find(scene.tree.dir(), &name(1), Some(7))?.make_in(run.dir());
        assert_eq!(offer(), None);
        assert_eq!(scene.keep(&name(1)).unwrap(), 3 * BLOCK_BYTES);
        assert!(scene.tree.has_compile_cache(&name(1)) && !scene.tree.has_compile_cache(&name(2)));
        let offered = offer().unwrap();
        assert_eq!(fs::read(offered.join(format!("{TAG}-7/0123abcd"))).unwrap(), b"bytecode");
        // Whoever comes second changes nothing.
        fs::write(scene.code().join("0123abcd"), "another").unwrap();
        assert_eq!(scene.keep(&name(1)).unwrap(), 0);
        assert_eq!(fs::read(scene.kept(&name(1)).join("0123abcd")).unwrap(), b"bytecode");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&scene.kept(&name(1))), 0o555);
        assert_eq!(mode(&scene.kept(&name(1)).join("0123abcd")), 0o444);
    }

    #[test]
    fn that_there_is_none_is_remembered() {
        let scene = Scene::new();
        assert_eq!(scene.tree.keep_compile_cache(&name(1), None).unwrap(), 0);
        assert!(scene.tree.has_compile_cache(&name(1)));
        assert_eq!(CacheLink::find(scene.tree.dir(), &name(1), Some(7)), None);
    }

    #[test]
    fn nothing_but_files_of_the_process_is_taken() {
        let scene = Scene::new();
        let secret = scene.base.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, scene.code().join("11111111")).unwrap();
        fs::hard_link(&secret, scene.code().join("22222222")).unwrap();
        fs::create_dir(scene.code().join("33333333")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, scene.code().join("44444444"), rustix::fs::Mode::RWXU).unwrap();
        fs::write(scene.code().join("about"), "other").unwrap();
        let left = open_left(None, &scene.left()).unwrap();
        let foreign = Made { dir: &left, user: scene.user + 1 };
        assert!(scene.tree.keep_compile_cache(&name(1), Some(&foreign)).is_err());
        scene.keep(&name(1)).unwrap();
        assert_eq!(names_in(&scene.kept(&name(1))).unwrap(), ["0123abcd"]);
        // Nor through a link in place of the folder.
        let moved = scene.base.path().join("moved");
        fs::rename(scene.left(), &moved).unwrap();
        symlink(&moved, scene.base.path().join("left")).unwrap();
        assert!(open_left(None, &scene.base.path().join("left")).is_err());
        assert!(!scene.tree.has_compile_cache(&name(2)));
    }

    #[test]
    fn they_are_few_and_count_as_the_tree_does() {
        let scene = Scene::new();
        let bytes = || scene.store.list().unwrap()[0].bytes;
        let before = bytes();
        scene.keep(&name(0)).unwrap();
        assert_eq!(
            (bytes(), scene.store.usage().bytes),
            (before + 3 * BLOCK_BYTES, before + 3 * BLOCK_BYTES)
        );
        for kind in 1..=MAX_CACHES {
            scene.keep(&name(kind)).unwrap();
        }
        let there = (0..=MAX_CACHES).filter(|kind| scene.tree.has_compile_cache(&name(*kind)));
        assert_eq!(there.count(), MAX_CACHES);
        assert!(scene.tree.has_compile_cache(&name(MAX_CACHES)));
        let Scene { store, tree, base, .. } = scene;
        let generation = tree.generation().to_owned();
        drop(tree);
        assert_eq!(store.prune(&Keep::at_most(0)).unwrap().unwrap().evicted, 1);
        store.flush();
        assert!(!generation.exists());
        drop(base);
    }

    #[test]
    fn names_of_node_are_one_step_of_a_path() {
        for (tag, fit) in [(TAG, true), ("..", false), ("v/../..", false), ("", false), ("v22\0", false)] {
            assert_eq!(is_tag(tag), fit, "{tag}");
        }
    }
}
