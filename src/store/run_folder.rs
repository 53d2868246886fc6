//! The folder of one call.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(target_os = "linux")]
use super::tmpfs::{Slot, Slots, Tmpfs};
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
/// and `import`, and so do the processes it starts there. `node_modules` in `dir/work` leads there too, for code that looks for a
/// package's files below its working folder: who installs or writes something else there removes that link first, as npm does, and what
/// he has not installed is still found one folder above. Dropping it removes it in the background; anywhere, no runtime is needed.
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
    /// Where it is, if that is in a zygote.
    #[cfg(target_os = "linux")]
    slot: Option<Slot>,
    /// What its process made and showed.
    #[cfg(target_os = "linux")]
    shown: Option<Tmpfs>,
}

/// What a call writes to.
#[derive(Debug, Clone)]
pub enum Written {
    /// These folders, that have to be looked at.
    Disk([PathBuf; 2]),
    /// A file system in memory that nobody else has: the kernel limits it.
    Memory,
}

/// A folder that run folders are made in. One of a nest goes with its last handle.
#[derive(Debug, Clone)]
pub struct Runs {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    dir: PathBuf,
    /// Which folder it was when this was made: rules of the kernel bind to that one. None where nothing of it is on disk.
    identity: Option<Identity>,
    /// Belongs to one zygote and its workers.
    is_nest: bool,
    /// What is mounted there for a zygote's workers: in it, and not in the folder that the host sees, are the run folders.
    #[cfg(target_os = "linux")]
    slots: Option<Arc<Slots>>,
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
                slots: None,
                shared: Arc::clone(shared),
            }),
        })
    }

    /// The same place, where a zygote has mounted file systems for its workers. `tops` are descriptors of those,
    /// from before the zygote loaded anything; none where each worker mounts its own.
    #[cfg(target_os = "linux")]
    pub fn in_memory(&self, tops: Vec<std::os::fd::OwnedFd>) -> Result<Self, StoreError> {
        let Place { dir, shared, .. } = &*self.place;
        let slots = Slots::new(tops).map_err(StoreError::io("open the run folders at", dir))?;
        Ok(Self {
            place: Arc::new(Place {
                dir: dir.clone(),
                identity: None,
                is_nest: false,
                slots: Some(Arc::new(slots)),
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
        let Some(identity) = &self.place.identity else { return true };
        let found = fs::symlink_metadata(&self.place.dir).ok();
        found.is_some_and(|metadata| Identity::of(&metadata) == *identity)
    }

    /// One that its process makes: nothing is there for the host. `owner` as in [`Self::create`].
    fn own(&self, owner: Option<u32>) -> Result<RunFolder, StoreError> {
        let mut folder = self.folder(self.place.dir.join(unique_name()?), owner);
        folder.is_own = true;
        Ok(folder)
    }

    /// One that its process makes, or one that is made here; see [`Self::own`] and [`Self::create`].
    pub fn prepare(
        &self,
        is_own: bool,
        node_modules: Option<&Path>,
        owner: Option<u32>,
    ) -> Result<RunFolder, StoreError> {
        if is_own { self.own(owner) } else { self.create(node_modules, owner) }
    }

    fn folder(&self, dir: PathBuf, owner: Option<u32>) -> RunFolder {
        RunFolder {
            dir,
            owner,
            compile_cache: None,
            cache_link: None,
            place: Arc::clone(&self.place),
            is_own: false,
            #[cfg(target_os = "linux")]
            slot: None,
            #[cfg(target_os = "linux")]
            shown: None,
        }
    }

    /// Makes a run folder: seven system calls, or ten in memory. `node_modules` is where it leads to packages, if to any; `owner` is the user who
    /// works in it, if that is not the host's.
    pub fn create(&self, node_modules: Option<&Path>, owner: Option<u32>) -> Result<RunFolder, StoreError> {
        let Place { dir: parent, shared, .. } = &*self.place;
        #[cfg(target_os = "linux")]
        if let Some(slots) = &self.place.slots {
            return self.in_slot(slots, node_modules, owner);
        }
        let dir = parent.join(unique_name()?);
        // Another user passes through it, and has what is below.
        let outer = builder(if owner.is_some() { 0o711 } else { 0o700 });
        shared.retrying(|| outer.create(&dir).map_err(StoreError::io("create the run folder", &dir)))?;
        // From here on a failure removes what was made.
        let folder = self.folder(dir, owner);
        let private = builder(0o700);
        let lead = |target: &Path, below: &Path| {
            let link = below.join("node_modules");
            symlink_dir(target, &link).map_err(StoreError::io("create the symlink", &link))
        };
        for part in [folder.cwd(), folder.tmpdir()] {
            private.create(&part).map_err(StoreError::io("create the folder", &part))?;
        }
        if let Some(target) = node_modules {
            lead(target, &folder.dir)?;
            // Before the folder is another's.
            lead(&Path::new("..").join("node_modules"), &folder.cwd())?;
        }
        if let Some(owner) = owner {
            for part in [folder.cwd(), folder.tmpdir()] {
                give(&part, owner).map_err(StoreError::io("give away the folder", &part))?;
            }
        }
        Ok(folder)
    }

    #[cfg(target_os = "linux")]
    fn in_slot(
        &self,
        slots: &Arc<Slots>,
        node_modules: Option<&Path>,
        owner: Option<u32>,
    ) -> Result<RunFolder, StoreError> {
        let parent = &self.place.dir;
        let busy =
            || StoreError::io("find room for a run folder at", parent)(io::ErrorKind::ResourceBusy.into());
        let slot = slots.lease(unique_name()?).ok_or_else(busy)?;
        let mut folder = self.folder(parent.join(slot.path()), owner);
        let made = slot.create(node_modules, owner);
        // From here on a failure removes what was made.
        folder.slot = Some(slot);
        made.map_err(StoreError::io("create the run folder", &folder.dir))?;
        Ok(folder)
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
        } else if self.is_on_disk() {
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
        if let Some(shown) = &self.shown {
            return compile_cache::open_left(
                Some(&shown.temp_folder(self.dir.file_name().unwrap_or_default())?),
                Path::new(compile_cache::LEFT_FOLDER),
            );
        }
        compile_cache::open_left(None, &self.tmpdir().join(compile_cache::LEFT_FOLDER))
    }

    /// Takes what its process showed of it: a descriptor of its top.
    #[cfg(target_os = "linux")]
    pub fn show(&mut self, top: std::os::fd::OwnedFd) {
        self.shown = Some(Tmpfs::new(top));
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
        !self.is_on_disk() || self.dir.is_dir()
    }

    fn is_on_disk(&self) -> bool {
        #[cfg(target_os = "linux")]
        return !self.is_own && self.slot.is_none();
        #[cfg(not(target_os = "linux"))]
        return !self.is_own;
    }

    /// What its call writes to.
    pub fn written(&self) -> Written {
        if self.is_on_disk() { Written::Disk([self.cwd(), self.tmpdir()]) } else { Written::Memory }
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
        if !self.is_own {
            let job = self.removal();
            if let Err(error) = job.act() {
                self.place.shared.janitor.submit(job);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Its removal, which is another's business from here on.
    fn removal(&mut self) -> Job {
        Job {
            #[cfg(target_os = "linux")]
            slot: self.slot.take(),
            ..Job::remove(std::mem::take(&mut self.dir))
        }
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.is_own && !self.dir.as_os_str().is_empty() {
            let job = self.removal();
            self.place.shared.janitor.submit(job);
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
