//! The file that says who knows the names of hosts. What confines a process names it by its inode, so that workers made
//! before it was replaced cannot read the new one.

#[cfg(unix)]
use std::fs;
use std::path::Path;

const RESOLVER: &str = "/etc/resolv.conf";

/// Which file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Resolver(Option<(u64, u64)>);

impl Resolver {
    /// The one that is there now. One system call.
    pub(super) fn now() -> Self {
        Self::at(Path::new(RESOLVER))
    }

    #[cfg(unix)]
    fn at(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(fs::metadata(path).ok().map(|file| (file.dev(), file.ino())))
    }

    /// Nothing is confined here.
    #[cfg(not(unix))]
    fn at(_: &Path) -> Self {
        Self(None)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_to_is_the_same_and_one_that_is_replaced_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("resolv.conf"), folder.path().join("new"));
        let absent = Resolver::at(&path);
        fs::write(&path, "nameserver 192.0.2.1").unwrap();
        let first = Resolver::at(&path);
        fs::write(&path, "nameserver 192.0.2.2").unwrap();
        assert_eq!(Resolver::at(&path), first);
        fs::write(&new, "nameserver 192.0.2.3").unwrap();
        fs::rename(&new, &path).unwrap();
        assert!(Resolver::at(&path) != first && absent != first);
    }
}
