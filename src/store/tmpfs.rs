//! Run folders on file systems in memory that only a zygote and its workers have mounted: each worker gets one that nobody else
//! has, so that what one writes takes no room of another's. They are reached by a descriptor of their top, and go with the last
//! of those who have them mounted or a descriptor of them.
//!
//! At the top only the host makes anything, and nobody else can list it; what is there has a name that cannot be guessed: workers of one
//! tree are one user, and the kernel lets that look at, and change the mode of, what it can name. Below a run folder it is
//! others': no link is followed, each step is one name.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Uid, chmod, chownat, fstatvfs, mkdirat, openat, symlinkat, unlinkat,
};

use super::remove;

/// The folders of a run folder, and the way to the packages.
const PARTS: [&str; 2] = ["work", "tmp"];
const PACKAGES: &str = "node_modules";
/// The same way once more, for who looks below the working folder.
const PACKAGES_IN_WORK: &str = "work/node_modules";
const PACKAGES_ABOVE: &str = "../node_modules";

const PASSED_THROUGH: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Such a file system.
#[derive(Debug)]
pub(super) struct Tmpfs {
    top: OwnedFd,
}

impl Tmpfs {
    /// From a descriptor of its top.
    pub(super) fn new(top: OwnedFd) -> Self {
        Self { top }
    }

    /// Makes a run folder; what was made before a failure stays.
    fn create(&self, name: &str, packages: Option<&Path>, owner: Option<u32>) -> io::Result<()> {
        // Another user passes through it, and has what is below.
        let outer = if owner.is_some() { Mode::from_bits_retain(0o711) } else { Mode::RWXU };
        mkdirat(&self.top, name, outer)?;
        let folder = openat(&self.top, name, PASSED_THROUGH, Mode::empty())?;
        if let Some(packages) = packages {
            symlinkat(packages, &folder, PACKAGES)?;
        }
        for part in PARTS {
            mkdirat(&folder, part, Mode::RWXU)?;
            if part == PARTS[0] && packages.is_some() {
                // Before the folder is another's.
                symlinkat(PACKAGES_ABOVE, &folder, PACKAGES_IN_WORK)?;
            }
            if let Some(owner) = owner {
                let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
                chownat(&folder, part, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        Ok(())
    }

    /// Removes a run folder and all in it; what is gone already is fine. Blocks.
    fn remove(&self, name: &str) -> io::Result<()> {
        // Most calls write nothing: then nothing has to be looked at.
        if let Ok(folder) = openat(&self.top, name, PASSED_THROUGH, Mode::empty()) {
            // By a descriptor: the user of the working folder may have put a link in its place.
            if let Ok(work) = openat(&folder, PARTS[0], PASSED_THROUGH, Mode::empty()) {
                let _ = unlinkat(&work, PACKAGES, AtFlags::empty());
            }
            for (part, flags) in
                PARTS.map(|part| (part, AtFlags::REMOVEDIR)).iter().chain([&(PACKAGES, AtFlags::empty())])
            {
                // What stays is the business of the removal below.
                let _ = unlinkat(&folder, *part, *flags);
            }
            if unlinkat(&self.top, name, AtFlags::REMOVEDIR).is_ok() {
                return Ok(());
            }
        }
        remove::remove_below(self.top.as_fd(), name)
    }

    /// The temp folder of a run folder, to be read.
    pub(super) fn temp_folder(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let folder = openat(&self.top, name, PASSED_THROUGH, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(folder, PARTS[1], flags, Mode::empty())?)
    }

    /// Lets its owner make folders at the top, where nobody could while packages were loaded.
    fn open(&self) -> io::Result<()> {
        // No `fchmod` on such descriptors; their link in `/proc` leads to exactly what is open.
        let top = format!("/proc/self/fd/{}", self.top.as_raw_fd());
        Ok(chmod(top, Mode::WUSR | Mode::XUSR | Mode::XGRP | Mode::XOTH)?)
    }

    /// Whether there is nothing in it, nor anybody who still holds what was. One system call.
    fn is_empty(&self) -> bool {
        fstatvfs(&self.top).is_ok_and(|found| {
            found.f_blocks == found.f_bfree && found.f_files.saturating_sub(found.f_ffree) == 1
        })
    }
}

/// Those that a zygote has mounted, by their number.
#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Tmpfs>,
    /// Nobody's, that of the longest ago first: what held something in it may have ended meanwhile. The kernel lets go of the rules of
    /// a process that has ended some time later, and of the folders in them.
    idle: Mutex<VecDeque<usize>>,
}

/// One that is somebody's, until this is dropped, with the name of the run folder in it.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: usize,
    name: String,
}

impl Slots {
    /// From descriptors of their tops, in the order of their numbers.
    pub(super) fn new(tops: Vec<OwnedFd>) -> io::Result<Self> {
        let all: Vec<_> = tops.into_iter().map(Tmpfs::new).collect();
        for tmpfs in &all {
            tmpfs.open()?;
        }
        let idle = (0..all.len()).collect();
        Ok(Self { all, idle: Mutex::new(idle) })
    }

    /// An empty one, for a run folder of this name; `None` if there is none. A system call for each that is looked at, mostly one.
    pub(super) fn lease(self: &Arc<Self>, name: String) -> Option<Slot> {
        let mut idle = self.idle();
        let at = idle.iter().position(|number| self.all[*number].is_empty())?;
        let number = idle.remove(at)?;
        Some(Slot { slots: Arc::clone(self), number, name })
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Where the run folder is, in the folder that holds all.
    pub(super) fn path(&self) -> PathBuf {
        Path::new(&self.number.to_string()).join(&self.name)
    }

    /// Makes the run folder; what was made before a failure stays.
    pub(super) fn create(&self, packages: Option<&Path>, owner: Option<u32>) -> io::Result<()> {
        self.slots.all[self.number].create(&self.name, packages, owner)
    }

    /// Removes the run folder. Blocks.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.slots.all[self.number].remove(&self.name)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.idle().push_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn tmpfs(dir: &Path) -> Tmpfs {
        Tmpfs::new(rustix::fs::open(dir, PASSED_THROUGH, Mode::empty()).unwrap())
    }

    #[test]
    fn a_run_folder_is_made_and_removed_below_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let tmpfs = tmpfs(dir.path());
        tmpfs.create("one", Some(Path::new("/packages")), None).unwrap();
        let run = dir.path().join("one");
        assert_eq!(fs::read_link(run.join(PACKAGES)).unwrap(), Path::new("/packages"));
        let above = fs::read_link(run.join(PACKAGES_IN_WORK)).unwrap();
        assert_eq!(above, Path::new(PACKAGES_ABOVE));
        assert_eq!(fs::read_link(run.join("work").join(above)).unwrap(), Path::new("/packages"));
        for part in [run.clone(), run.join("work"), run.join("tmp")] {
            assert_eq!(fs::metadata(part).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert!(tmpfs.create("one", None, None).is_err(), "never one that is there");
        tmpfs.temp_folder("one".as_ref()).unwrap();
        tmpfs.remove("one").unwrap();
        assert!(!run.exists());
        tmpfs.remove("one").unwrap();
    }

    #[test]
    fn what_others_planted_is_removed_and_nothing_that_it_leads_to() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = outside.path().join("work");
        fs::create_dir_all(kept.join("inner")).unwrap();
        fs::create_dir(outside.path().join("tmp")).unwrap();
        let tmpfs = tmpfs(dir.path());
        let link = |target: &Path, at: &str| std::os::unix::fs::symlink(target, dir.path().join(at)).unwrap();
        // The run folder itself, one of its folders, and something in one.
        link(outside.path(), "planted");
        tmpfs.create("one", None, None).unwrap();
        fs::remove_dir(dir.path().join("one/tmp")).unwrap();
        link(outside.path(), "one/tmp");
        let work = dir.path().join("one").join("work");
        std::os::unix::fs::symlink(&kept, work.join("link")).unwrap();
        fs::create_dir_all(work.join("closed/deep")).unwrap();
        fs::set_permissions(work.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        assert!(tmpfs.create("planted", None, None).is_err());
        // Nor is one followed to what a process left.
        assert!(["planted", "one"].iter().all(|name| tmpfs.temp_folder(name.as_ref()).is_err()));
        for name in ["planted", "one"] {
            tmpfs.remove(name).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(kept.join("inner").exists() && outside.path().join("tmp").exists());
    }

    #[test]
    fn the_top_is_made_to_only_by_its_owner_and_listed_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        tmpfs(dir.path()).open().unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o311);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn what_is_not_empty_is_leased_to_nobody() {
        // On the machine's own file system, where there always is something.
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let all = dirs.iter().map(|dir| tmpfs(dir.path())).collect();
        let slots = Arc::new(Slots { all, idle: Mutex::new([0, 1].into()) });
        assert!(slots.lease("one".to_owned()).is_none());
        assert_eq!(slots.idle().len(), 2);
        let slot = Slot { slots: Arc::clone(&slots), number: 1, name: "one".to_owned() };
        assert_eq!(slot.path(), Path::new("1/one"));
        slot.create(None, None).unwrap();
        assert!(dirs[1].path().join("one/work").exists() && !dirs[0].path().join("one").exists());
        slot.clear().unwrap();
        assert!(!dirs[1].path().join("one").exists());
        drop(slot);
        assert_eq!(*slots.idle(), [0, 1, 1], "the longest idle is looked at first");
    }
}
