//! The folder of one call.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Identity, Shared, StoreError, Tree,
    compile_cache::{self, CacheName},
    root::{self, Access, builder},
    unique_name,
};

/// Working folder, temp folder and a way to the packages, for one call. Private to this user.
///
/// `dir/node_modules` is a symlink into the tree, so that code compiled under `dir/work` finds packages by `require`
/// and `import`, and so do the processes it starts there. Dropping it removes it in the background; anywhere, no runtime is needed.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    /// Who works in it, where that is not the host's user.
    owner: Option<u32>,
    compile_cache: Option<PathBuf>,
    place: Arc<Place>,
}

/// A folder that run folders are made in. One of a nest goes with its last handle.
#[derive(Debug, Clone)]
pub struct Runs {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    dir: PathBuf,
    /// Which folder it was when this was made: rules of the kernel bind to that one.
    identity: Option<Identity>,
    /// Belongs to one zygote and its workers.
    is_nest: bool,
    shared: Arc<Shared>,
}

impl Runs {
    /// All of this host's.
    pub(super) fn of(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        Self::at(shared, shared.folder("runs"), false)
    }

    /// A folder in it, for the run folders of one zygote's workers.
    pub(super) fn nest(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let dir = shared.folder("runs").join(unique_name()?);
        shared.retrying(|| {
            root::dir(&dir, Access::Through).map_err(StoreError::io("create the folder", &dir))
        })?;
        Self::at(shared, dir, true)
    }

    fn at(shared: &Arc<Shared>, dir: PathBuf, is_nest: bool) -> Result<Self, StoreError> {
        let metadata =
            shared.retrying(|| fs::symlink_metadata(&dir).map_err(StoreError::io("look at", &dir)))?;
        let identity = Some(Identity::of(&metadata));
        Ok(Self { place: Arc::new(Place { dir, identity, is_nest, shared: Arc::clone(shared) }) })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// Whether the folder is still the one it was: temp folders get wiped under long-running hosts.
    pub fn is_current(&self) -> bool {
        let found = fs::symlink_metadata(&self.place.dir).ok();
        found.map(|metadata| Identity::of(&metadata)) == self.place.identity
    }

    /// Makes a run folder: six system calls. `node_modules` is where it leads to packages, if to any; `owner` is the user who
    /// works in it, if that is not the host's.
    pub fn create(&self, node_modules: Option<&Path>, owner: Option<u32>) -> Result<RunFolder, StoreError> {
        let Place { dir: parent, shared, .. } = &*self.place;
        let dir = parent.join(unique_name()?);
        // Another user passes through it, and has what is below.
        let outer = builder(if owner.is_some() { 0o711 } else { 0o700 });
        shared.retrying(|| outer.create(&dir).map_err(StoreError::io("create the run folder", &dir)))?;
        // From here on a failure removes what was made.
        let folder = RunFolder { dir, owner, compile_cache: None, place: Arc::clone(&self.place) };
        let private = builder(0o700);
        for part in [folder.cwd(), folder.tmpdir()] {
            private.create(&part).map_err(StoreError::io("create the folder", &part))?;
            if let Some(owner) = owner {
                give(&part, owner).map_err(StoreError::io("give away the folder", &part))?;
            }
        }
        if let Some(target) = node_modules {
            let link = folder.dir.join("node_modules");
            symlink_dir(target, &link).map_err(StoreError::io("create the symlink", &link))?;
        }
        Ok(folder)
    }
}

impl Runs {
    /// Offers a tree's compile cache to the zygote whose workers' folders these are, and which `user` runs; see
    /// [`RunFolder::offer_compile_cache`].
    pub fn offer_compile_cache(&self, tree: &Path, name: &CacheName, user: Option<u32>) -> Option<PathBuf> {
        compile_cache::offer(self.dir(), tree, name, number_of(user))
    }
}

/// The number of a process's user.
fn number_of(user: Option<u32>) -> u32 {
    #[cfg(unix)]
    return user.unwrap_or_else(|| rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    user.unwrap_or(0)
}

impl RunFolder {
    /// Lets the worker that will be here find a tree's compile cache, if there is one of this name: it can read it, not change it.
    pub fn offer_compile_cache(&mut self, tree: &Path, name: &CacheName) {
        self.compile_cache = compile_cache::offer(&self.dir, tree, name, self.user());
    }

    /// The number of the user who works in it.
    pub fn user(&self) -> u32 {
        number_of(self.owner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_nest {
            self.shared.discard(std::mem::take(&mut self.dir));
        }
    }
}

#[cfg(unix)]
fn give(dir: &Path, owner: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(dir, Some(owner), Some(owner))
}

#[cfg(not(unix))]
fn give(_: &Path, _: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl RunFolder {
    /// One that leads to the packages of `tree`, for the host's own user.
    pub fn create(tree: &Tree) -> Result<Self, StoreError> {
        Runs::of(&tree.shared)?.create(Some(&tree.node_modules()), None)
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        self.dir.is_dir()
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The call's working folder.
    pub fn cwd(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// The call's temp folder.
    pub fn tmpdir(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    /// What Node is to be given as the folder of its compile cache, if there is one.
    pub fn compile_cache(&self) -> Option<&Path> {
        self.compile_cache.as_deref()
    }

    /// Removes it now instead of in the background. Blocks.
    pub fn remove(mut self) -> io::Result<()> {
        // What is left after a failure is tried again by the drop.
        super::remove_dir(&self.dir)?;
        self.dir = PathBuf::new();
        Ok(())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.dir.as_os_str().is_empty() {
            self.place.shared.discard(std::mem::take(&mut self.dir));
        }
    }
}

#[cfg(unix)]
fn symlink_dir(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink_dir(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(target, link)
}
