//! The folder of one call.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(target_os = "linux")]
use super::tmpfs::Tmpfs;
use super::{
    Identity, Shared, StoreError, Tree,
    compile_cache::{self, CacheLink, CacheName},
    janitor::Job,
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
    cache_link: Option<CacheLink>,
    place: Arc<Place>,
    /// Its process makes it, on a file system that goes with the process.
    is_own: bool,
}

/// What a call writes to, as far as it can be looked at from outside.
#[derive(Debug, Clone)]
pub enum Written {
    /// These folders.
    Disk([PathBuf; 2]),
    /// A run folder in memory, beside others of its zygote's workers.
    #[cfg(target_os = "linux")]
    Memory {
        /// Where.
        tmpfs: Arc<Tmpfs>,
        /// The run folder's name in it.
        name: String,
    },
    /// A file system of its own, in memory: the kernel limits it.
    Own,
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
    /// What is mounted there for a zygote and its workers: in it, and not in the folder that the host sees, are the run folders.
    #[cfg(target_os = "linux")]
    tmpfs: Option<Arc<Tmpfs>>,
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
        Ok(Self {
            place: Arc::new(Place {
                dir,
                identity,
                is_nest,
                #[cfg(target_os = "linux")]
                tmpfs: None,
                shared: Arc::clone(shared),
            }),
        })
    }

    /// The same place, with what a zygote has mounted there, which is emptied but for the way to its compile cache. `top` is a
    /// descriptor of that, from before the zygote loaded anything. Blocks.
    #[cfg(target_os = "linux")]
    pub fn in_memory(
        &self,
        top: std::os::fd::OwnedFd,
        cache: Option<&CacheLink>,
    ) -> Result<Self, StoreError> {
        let Place { dir, shared, .. } = &*self.place;
        let tmpfs = Tmpfs::new(top);
        tmpfs.clear().map_err(StoreError::io("empty the run folders at", dir))?;
        // Made anew: what packages did to it while they were loaded is nobody's business.
        cache
            .map_or(Ok(()), |cache| tmpfs.lead_to(cache))
            .map_err(StoreError::io("lead to a compile cache at", dir))?;
        Ok(Self {
            place: Arc::new(Place {
                dir: dir.clone(),
                identity: None,
                is_nest: false,
                tmpfs: Some(Arc::new(tmpfs)),
                shared: Arc::clone(shared),
            }),
        })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// Whether the folder is still the one it was: temp folders get wiped under long-running hosts.
    pub fn is_current(&self) -> bool {
        if self.place.is_in_memory() {
            return true;
        }
        let found = fs::symlink_metadata(&self.place.dir).ok();
        found.map(|metadata| Identity::of(&metadata)) == self.place.identity
    }

    /// One that its process makes: nothing is there for the host. `owner` as in [`Self::create`].
    pub fn own(&self, owner: Option<u32>) -> Result<RunFolder, StoreError> {
        let dir = self.place.dir.join(unique_name()?);
        let mut folder = self.folder(dir, owner);
        folder.is_own = true;
        Ok(folder)
    }

    fn folder(&self, dir: PathBuf, owner: Option<u32>) -> RunFolder {
        RunFolder {
            dir,
            owner,
            compile_cache: None,
            cache_link: None,
            place: Arc::clone(&self.place),
            is_own: false,
        }
    }

    /// Makes a run folder: six system calls, or eight in memory. `node_modules` is where it leads to packages, if to any; `owner` is the user who
    /// works in it, if that is not the host's.
    pub fn create(&self, node_modules: Option<&Path>, owner: Option<u32>) -> Result<RunFolder, StoreError> {
        let Place { dir: parent, shared, .. } = &*self.place;
        let name = unique_name()?;
        let dir = parent.join(&name);
        #[cfg(target_os = "linux")]
        if let Some(tmpfs) = &self.place.tmpfs {
            // From here on a failure removes what was made.
            let folder = self.folder(dir, owner);
            let made = tmpfs.create(&name, node_modules, owner);
            made.map_err(StoreError::io("create the run folder", &folder.dir))?;
            return Ok(folder);
        }
        // Another user passes through it, and has what is below.
        let outer = builder(if owner.is_some() { 0o711 } else { 0o700 });
        shared.retrying(|| outer.create(&dir).map_err(StoreError::io("create the run folder", &dir)))?;
        // From here on a failure removes what was made.
        let folder = self.folder(dir, owner);
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

impl Place {
    fn is_in_memory(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.tmpfs.is_some();
        #[cfg(not(target_os = "linux"))]
        return false;
    }

    /// The removal of a run folder.
    fn removal(&self, dir: PathBuf) -> Job {
        Job {
            #[cfg(target_os = "linux")]
            tmpfs: self.tmpfs.clone(),
            ..Job::remove(dir)
        }
    }
}

impl RunFolder {
    /// Lets the worker that will be here find a tree's compile cache, if there is one of this name: it can read it, not change it.
    /// Of no use to one that a zygote forks, which has loaded what there is.
    pub fn offer_compile_cache(&mut self, tree: &Path, name: &CacheName) {
        let Some(cache) = CacheLink::find(tree, name, self.owner) else { return };
        if self.is_own {
            self.compile_cache = Some(cache.folder_in(&self.dir));
            self.cache_link = Some(cache);
        } else if !self.place.is_in_memory() {
            self.compile_cache = cache.make_in(&self.dir);
        }
    }

    /// What its process has to make for that, where it makes the run folder.
    pub fn cache_link(&self) -> Option<&CacheLink> {
        self.cache_link.as_ref()
    }

    /// What a process left of compiled packages, in [`compile_cache::LEFT_FOLDER`] of its temp folder. No link is followed that
    /// it could have made.
    pub fn left(&self) -> io::Result<fs::File> {
        #[cfg(target_os = "linux")]
        if let Written::Memory { tmpfs, name } = self.written() {
            let [_, tmp] = tmpfs.parts(&name)?;
            return compile_cache::open_left(Some(&tmp), Path::new(compile_cache::LEFT_FOLDER));
        }
        compile_cache::open_left(None, &self.tmpdir().join(compile_cache::LEFT_FOLDER))
    }

    /// The number of the user who works in it.
    pub fn user(&self) -> u32 {
        compile_cache::number_of(self.owner)
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
        // Nobody but its zygote, or its process, knows one in memory.
        self.is_own || self.place.is_in_memory() || self.dir.is_dir()
    }

    /// What its call writes to.
    pub fn written(&self) -> Written {
        if self.is_own {
            return Written::Own;
        }
        #[cfg(target_os = "linux")]
        if let (Some(tmpfs), Some(name)) = (&self.place.tmpfs, self.dir.file_name()) {
            return Written::Memory { tmpfs: Arc::clone(tmpfs), name: name.to_string_lossy().into_owned() };
        }
        Written::Disk([self.cwd(), self.tmpdir()])
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
        if !self.is_own {
            self.place.removal(self.dir.clone()).act()?;
        }
        self.dir = PathBuf::new();
        Ok(())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.is_own && !self.dir.as_os_str().is_empty() {
            self.place.shared.janitor.submit(self.place.removal(std::mem::take(&mut self.dir)));
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
