//! Run folders on file systems in memory that only a zygote and its workers have mounted: each worker gets one that nobody else
//! has, so that what one writes takes no room of another's. They are reached by a descriptor of their top, and go with the last
//! of those who have them mounted or a descriptor of them.
//!
//! At the top only the host makes anything, but for what packages left while they were loaded, which is removed before the first
//! run folder is made. What is below is others': no link is followed, each step is one name.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, fstatvfs, mkdirat, openat, symlinkat, unlinkat};

use super::remove;

/// The folders of a run folder, and the way to the packages.
const PARTS: [&str; 2] = ["work", "tmp"];
const PACKAGES: &str = "node_modules";

/// Such a file system.
#[derive(Debug)]
pub(super) struct Tmpfs {
    top: OwnedFd,
}

/// What is in use of it: bytes; files, folders and links, its top among them.
type InUse = (u64, u64);

impl Tmpfs {
    /// From a descriptor of its top.
    pub(super) fn new(top: OwnedFd) -> Self {
        Self { top }
    }

    /// Makes a run folder of it; what was made before a failure stays.
    fn create(&self, packages: Option<&Path>, owner: Option<u32>) -> io::Result<()> {
        for part in PARTS {
            mkdirat(&self.top, part, Mode::RWXU)?;
            if let Some(owner) = owner {
                let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
                chownat(&self.top, part, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        if let Some(packages) = packages {
            symlinkat(packages, &self.top, PACKAGES)?;
        }
        Ok(())
    }

    /// Removes everything in it. Blocks.
    fn clear(&self) -> io::Result<()> {
        // Most calls write nothing: then nothing has to be looked at.
        for (part, flags) in
            PARTS.map(|part| (part, AtFlags::REMOVEDIR)).iter().chain([&(PACKAGES, AtFlags::empty())])
        {
            // What stays is the business of the removal below.
            let _ = unlinkat(&self.top, *part, *flags);
        }
        if self.in_use()? == EMPTY { Ok(()) } else { remove::clear(self.top.as_fd()) }
    }

    /// The temp folder of a run folder, to be read.
    pub(super) fn temp_folder(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.top, PARTS[1], flags, Mode::empty())?)
    }

    /// One system call.
    fn in_use(&self) -> io::Result<InUse> {
        let found = fstatvfs(&self.top)?;
        let blocks = found.f_blocks.saturating_sub(found.f_bfree);
        let files = found.f_files.saturating_sub(found.f_ffree);
        Ok((blocks.saturating_mul(found.f_frsize), files))
    }
}

/// In use of one that has its top and nothing else.
const EMPTY: InUse = (0, 1);

/// Those that a zygote has mounted, by their number.
#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Tmpfs>,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Empty, and nobody's.
    free: Vec<usize>,
    /// Nobody's, but somebody still holds what was in it.
    unclean: Vec<usize>,
}

/// One that is somebody's, until this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: usize,
    is_clean: AtomicBool,
}

impl Slots {
    /// From descriptors of their tops, in the order of their numbers; what is in them is removed. Blocks.
    pub(super) fn new(tops: Vec<OwnedFd>) -> io::Result<Self> {
        let all: Vec<_> = tops.into_iter().map(Tmpfs::new).collect();
        for tmpfs in &all {
            tmpfs.clear()?;
        }
        let free = (0..all.len()).rev().collect();
        Ok(Self { all, lists: Mutex::new(Lists { free, unclean: Vec::new() }) })
    }

    /// An empty one, or `None`: then all are in use.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Slot> {
        let number = self.lists().free.pop()?;
        Some(Slot { slots: Arc::clone(self), number, is_clean: AtomicBool::new(true) })
    }

    /// Whether there is an empty one.
    pub(super) fn has_room(&self) -> bool {
        !self.lists().free.is_empty()
    }

    /// Looks once more at those that were not empty when their calls were over. Blocks.
    pub(super) fn look_again(&self) {
        let unclean = std::mem::take(&mut self.lists().unclean);
        for number in unclean {
            self.give_back(number, self.all[number].clear().is_ok());
        }
    }

    fn give_back(&self, number: usize, is_cleared: bool) {
        let is_empty = is_cleared && self.all[number].in_use().is_ok_and(|found| found == EMPTY);
        let mut lists = self.lists();
        if is_empty { lists.free.push(number) } else { lists.unclean.push(number) }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Its folder's name.
    pub(super) fn name(&self) -> String {
        self.number.to_string()
    }

    /// Makes a run folder of it; what was made before a failure stays until it is cleared.
    pub(super) fn create(&self, packages: Option<&Path>, owner: Option<u32>) -> io::Result<()> {
        self.is_clean.store(false, Ordering::Relaxed);
        self.slots.all[self.number].create(packages, owner)
    }

    /// Removes everything in it. Blocks.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.slots.all[self.number].clear()?;
        self.is_clean.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.give_back(self.number, *self.is_clean.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn open(dir: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(dir, flags, Mode::empty()).unwrap()
    }

    /// Any folder will do for what is done below a descriptor; only a file system of its own tells that it is empty.
    fn tmpfs(dir: &Path) -> Tmpfs {
        Tmpfs::new(open(dir))
    }

    #[test]
    fn a_run_folder_is_made_and_removed_below_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let before = fs::metadata(dir.path()).unwrap().permissions();
        let tmpfs = tmpfs(dir.path());
        tmpfs.create(Some(Path::new("/packages")), None).unwrap();
        assert_eq!(fs::read_link(dir.path().join(PACKAGES)).unwrap(), Path::new("/packages"));
        for part in PARTS {
            let mode = fs::metadata(dir.path().join(part)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        assert!(tmpfs.create(None, None).is_err(), "never one that is there");
        tmpfs.temp_folder().unwrap();
        tmpfs.clear().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions(), before);
        tmpfs.clear().unwrap();
    }

    #[test]
    fn what_others_planted_is_removed_and_nothing_that_it_leads_to() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = outside.path().join("work");
        fs::create_dir_all(kept.join("inner")).unwrap();
        fs::create_dir(outside.path().join("tmp")).unwrap();
        let tmpfs = tmpfs(dir.path());
        let link = |target: &Path, at: &str| std::os::unix::fs::symlink(target, dir.path().join(at)).unwrap();
        // At the top, one of its folders, and something in one.
        link(outside.path(), "planted");
        tmpfs.create(None, None).unwrap();
        fs::remove_dir(dir.path().join("tmp")).unwrap();
        link(&outside.path().join("tmp"), "tmp");
        link(&kept, "work/link");
        fs::create_dir_all(dir.path().join("work/closed/deep")).unwrap();
        fs::set_permissions(dir.path().join("work/closed"), fs::Permissions::from_mode(0o000)).unwrap();
        assert!(tmpfs.temp_folder().is_err());
        tmpfs.clear().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(kept.join("inner").exists() && outside.path().join("tmp").exists());
    }

    /// Slots of file systems that are never empty, as they are the machine's; these were found to be.
    fn slots(dirs: &[tempfile::TempDir]) -> Arc<Slots> {
        Arc::new(Slots::new(dirs.iter().map(|dir| open(dir.path())).collect()).unwrap())
    }

    #[test]
    fn a_slot_is_one_callers_and_one_that_is_not_empty_is_nobodys() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let slots = slots(&dirs);
        let (first, second) = (slots.lease().unwrap(), slots.lease().unwrap());
        assert_eq!((first.name(), second.name()), ("0".to_owned(), "1".to_owned()));
        assert!(slots.lease().is_none() && !slots.has_room());
        first.create(None, None).unwrap();
        assert!(dirs[0].path().join("work").exists() && !dirs[1].path().join("work").exists());
        first.clear().unwrap();
        assert!(!dirs[0].path().join("work").exists());
        // The machine's file systems hold more than this slot: as if somebody still had what was in it.
        drop((first, second));
        assert!(!slots.has_room());
        slots.look_again();
        let lists = slots.lists();
        assert_eq!((lists.free.len(), lists.unclean.len()), (0, 2));
    }
}
