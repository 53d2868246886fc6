//! The two binaries that go with the addon: the launcher, and the library inside of zygotes. Their files lie beside the addon. A
//! build of the packages carries a copy of both inside of the addon as well, as bundlers and tracers often copy that file alone:
//! such a copy runs from memory, so that it needs no folder that is writable, or from which programs may be run.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write as _},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::fs::{MemfdFlags, SealFlags, StatVfsMountFlags, fcntl_add_seals, memfd_create, statvfs};

/// The launcher; empty where this build carries none.
pub(super) static LAUNCHER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/launcher"));

/// The zygote's library; empty where this build carries none.
static ZYGOTE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/zygote"));

/// The zygote's library.
#[derive(Debug, Clone)]
pub enum Library {
    /// A file that zygotes can load.
    File(PathBuf),
    /// In memory: zygotes inherit this descriptor.
    Memory(Arc<OwnedFd>),
}

/// What was found for a path. A library in memory stays the one in use, because plans made meanwhile know of no file.
static FOUND: Mutex<Option<HashMap<PathBuf, Library>>> = Mutex::new(None);

/// The library that zygotes load: the file at `beside`, else the copy inside of this library. Blocks.
///
/// # Errors
///
/// There is neither, or no memory for a copy. Not remembered.
pub fn library(beside: &Path) -> io::Result<Library> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    match found.get(beside) {
        Some(Library::File(_)) if can_be_loaded(beside) => return Ok(Library::File(beside.to_owned())),
        Some(library @ Library::Memory(_)) => return Ok(library.clone()),
        _ => {}
    }
    let library = look_for(beside, ZYGOTE)?;
    found.insert(beside.to_owned(), library.clone());
    Ok(library)
}

/// `embedded` is the copy, empty where there is none.
fn look_for(beside: &Path, embedded: &[u8]) -> io::Result<Library> {
    if embedded.is_empty() {
        // Whatever there is to say about the file, the zygote says it.
        return fs::metadata(beside).map(|_| Library::File(beside.to_owned()));
    }
    // A file of another version would not understand this library.
    if can_be_loaded(beside) && fs::read(beside).is_ok_and(|content| content == embedded) {
        return Ok(Library::File(beside.to_owned()));
    }
    in_memory("native-sandbox-zygote", embedded).map(|memory| Library::Memory(Arc::new(memory)))
}

/// Whether code of a file may be mapped, as far as its mount says.
fn can_be_loaded(file: &Path) -> bool {
    statvfs(file).is_ok_and(|mount| !mount.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// An anonymous file with this content, which nobody can change any more. It can be executed.
pub(super) fn in_memory(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Since Linux 6.3 a system can ask for the intention to execute; before, the flag is unknown.
    let memory = memfd_create(name, flags | MemfdFlags::EXEC).or_else(|error| match error {
        rustix::io::Errno::INVAL => memfd_create(name, flags),
        other => Err(other),
    })?;
    let mut memory = File::from(memory);
    memory.write_all(content)?;
    fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    // Open for writing it could not be executed.
    File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).map(Into::into)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_copy_in_memory_cannot_be_changed() {
        let memory = in_memory("a-test", b"content").unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        assert!(fs::write(&path, b"other").is_err(), "written over");
        let mut found = String::new();
        File::from(memory).read_to_string(&mut found).unwrap();
        assert_eq!(found, "content");
    }

    #[test]
    fn the_file_is_taken_only_if_it_is_the_copy_of_this_build() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("zygote");
        assert!(matches!(look_for(&file, b"library").unwrap(), Library::Memory(_)), "no file");
        fs::write(&file, "libr").unwrap();
        assert!(matches!(look_for(&file, b"library").unwrap(), Library::Memory(_)), "another file");
        fs::write(&file, "library").unwrap();
        assert!(matches!(look_for(&file, b"library").unwrap(), Library::File(_)));
    }

    #[test]
    fn a_build_without_copies_says_which_file_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("zygote");
        assert_eq!(look_for(&file, b"").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&file, "library").unwrap();
        assert!(matches!(look_for(&file, b"").unwrap(), Library::File(_)));
    }
}
