//! Run folders on a file system in memory that only a zygote and its workers have mounted. It is reached by a descriptor of its
//! top, and goes with the last of those who have it mounted or a descriptor of it.
//!
//! At its top only the host makes anything, but for what packages left while they were loaded, which is removed before the first
//! run folder is made. What is below a run folder is others': no link is followed, each step is one name.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, fstatvfs, mkdirat, openat, symlinkat, unlinkat};

use super::{compile_cache::CacheLink, remove};

/// The folders of a run folder, and the way to the packages.
const PARTS: [&str; 2] = ["work", "tmp"];
const PACKAGES: &str = "node_modules";

const PASSED_THROUGH: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Such a file system.
#[derive(Debug)]
pub struct Tmpfs {
    top: OwnedFd,
}

/// What is in use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// Of its bytes.
    pub bytes: u64,
    /// Of its files, folders and links; its top counts.
    pub files: u64,
}

impl Tmpfs {
    /// From a descriptor of its top.
    pub(super) fn new(top: OwnedFd) -> Self {
        Self { top }
    }

    /// Makes a run folder; what was made before a failure stays.
    pub(super) fn create(&self, name: &str, packages: Option<&Path>, owner: Option<u32>) -> io::Result<()> {
        // Another user passes through it, and has what is below.
        let outer = if owner.is_some() { Mode::from_bits_retain(0o711) } else { Mode::RWXU };
        mkdirat(&self.top, name, outer)?;
        let folder = openat(&self.top, name, PASSED_THROUGH, Mode::empty())?;
        for part in PARTS {
            mkdirat(&folder, part, Mode::RWXU)?;
            if let Some(owner) = owner {
                let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
                chownat(&folder, part, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        if let Some(packages) = packages {
            symlinkat(packages, &folder, PACKAGES)?;
        }
        Ok(())
    }

    /// Makes the way to a compile cache, at the top.
    pub(super) fn lead_to(&self, cache: &CacheLink) -> io::Result<()> {
        let open = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        mkdirat(&self.top, CacheLink::folder(), open)?;
        let folder = openat(&self.top, CacheLink::folder(), PASSED_THROUGH, Mode::empty())?;
        Ok(symlinkat(&cache.target, &folder, &cache.name)?)
    }

    /// Removes a run folder and all in it; what is gone already is fine. Blocks.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        // Most calls write nothing: then nothing has to be looked at.
        if let Ok(folder) = openat(&self.top, name, PASSED_THROUGH, Mode::empty()) {
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

    /// Removes everything. Blocks.
    pub(super) fn clear(&self) -> io::Result<()> {
        remove::clear(self.top.as_fd())
    }

    /// The folders of a run folder that are its call's, to be read.
    pub fn parts(&self, name: &str) -> io::Result<[OwnedFd; 2]> {
        let folder = openat(&self.top, name, PASSED_THROUGH, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let [work, tmp] = PARTS.map(|part| openat(&folder, part, flags, Mode::empty()));
        Ok([work?, tmp?])
    }

    /// What all run folders take together. One system call.
    pub fn in_use(&self) -> io::Result<InUse> {
        let found = fstatvfs(&self.top)?;
        let blocks = found.f_blocks.saturating_sub(found.f_bfree);
        let files = found.f_files.saturating_sub(found.f_ffree);
        Ok(InUse { bytes: blocks.saturating_mul(found.f_frsize), files })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// Any folder will do for what is done below a descriptor.
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
        for part in [run.clone(), run.join("work"), run.join("tmp")] {
            assert_eq!(fs::metadata(part).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert!(tmpfs.create("one", None, None).is_err(), "never one that is there");
        assert_eq!(tmpfs.parts("one").unwrap().len(), 2);
        tmpfs.remove("one").unwrap();
        assert!(!run.exists() && tmpfs.parts("one").is_err());
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
        assert!(tmpfs.parts("planted").is_err() && tmpfs.parts("one").is_err());
        assert!(tmpfs.create("planted", None, None).is_err());
        for name in ["planted", "one"] {
            tmpfs.remove(name).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(kept.join("inner").exists() && outside.path().join("tmp").exists());
    }

    #[test]
    fn all_of_it_is_cleared_but_its_top() {
        let dir = tempfile::tempdir().unwrap();
        let before = fs::metadata(dir.path()).unwrap().permissions();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        let tmpfs = tmpfs(dir.path());
        let cache = CacheLink { name: "v22-0".to_owned(), target: "/cache/code".into() };
        tmpfs.lead_to(&cache).unwrap();
        assert!(tmpfs.lead_to(&cache).is_err(), "never one that is there");
        let link = dir.path().join(CacheLink::folder()).join("v22-0");
        assert_eq!(fs::read_link(link).unwrap(), Path::new("/cache/code"));
        tmpfs.clear().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions(), before);
    }
}
