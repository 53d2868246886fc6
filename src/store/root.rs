//! The one folder that the store owns in a place where others may write: made and checked here.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::StoreError;

/// Write bits of group and others.
#[cfg(unix)]
const FOREIGN_WRITE_BITS: u32 = 0o022;

/// How every root's name begins.
const NAME: &str = "native-sandbox-executor";

/// The root's name; users do not share one.
pub(super) fn name() -> String {
    #[cfg(unix)]
    return format!("{NAME}-{}", rustix::process::geteuid().as_raw());
    #[cfg(not(unix))]
    return NAME.to_owned();
}

/// Whether a folder of this name can be a root, of whatever user.
pub(super) fn is_name(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|rest| {
        rest.is_empty()
            || rest.strip_prefix('-').is_some_and(|uid| uid.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Who may look into a folder of the store. Nobody but this user may write to any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody.
    Open,
    /// Everybody who knows what is in it.
    Through,
    /// This user.
    Private,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::Open => 0o755,
            Self::Through => 0o711,
            Self::Private => 0o700,
        }
    }
}

/// Makes a folder; one that exists is fine. Whatever the umask is, `access` is what it gets.
pub(super) fn dir(dir: &Path, access: Access) -> io::Result<()> {
    match builder(access.mode()).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => set_mode(dir, access.mode()),
    }
}

/// A folder that everybody may look into.
pub(super) fn open_dir(path: &Path) -> io::Result<()> {
    dir(path, Access::Open)
}

/// The base folder, made when missing, as a path without symlinks: Node compares real paths.
pub(super) fn base(base: &Path) -> Result<PathBuf, StoreError> {
    let fail = |source| StoreError::Base { path: base.to_owned(), source };
    if !base.is_absolute() {
        return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "the path is not absolute")));
    }
    fs::create_dir_all(base).map_err(fail)?;
    base.canonicalize().map_err(fail)
}

/// Makes the root, or checks the one that is there.
pub(super) fn ensure(root: &Path) -> Result<(), StoreError> {
    match fs::create_dir(root) {
        // The umask may have taken bits that other uids need.
        Ok(()) => set_mode(root, Access::Open.mode()).map_err(StoreError::io("set the mode of", root))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(StoreError::Base { path: root.to_owned(), source }),
    }
    let metadata =
        fs::symlink_metadata(root).map_err(|source| StoreError::Base { path: root.to_owned(), source })?;
    match objection(&metadata) {
        Some(reason) => Err(StoreError::Refused { path: root.to_owned(), reason }),
        None => Ok(()),
    }
}

/// A builder of folders with `mode`, where there are modes.
pub(super) fn builder(mode: u32) -> fs::DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has modes to set"))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, mode);
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

#[cfg(unix)]
fn set_mode(dir: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

/// Why a folder that is there already cannot be trusted.
#[cfg(unix)]
fn objection(metadata: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let euid = rustix::process::geteuid().as_raw();
    if metadata.is_symlink() {
        return Some("it is a symlink".to_owned());
    }
    if !metadata.is_dir() {
        return Some("it is not a folder".to_owned());
    }
    if metadata.uid() != euid {
        return Some(format!("it belongs to uid {}, not to uid {euid}", metadata.uid()));
    }
    if metadata.mode() & FOREIGN_WRITE_BITS != 0 {
        return Some(format!("others may write to it (mode {:04o})", metadata.mode() & 0o7777));
    }
    None
}

#[cfg(not(unix))]
fn objection(metadata: &fs::Metadata) -> Option<String> {
    (!metadata.is_dir()).then(|| "it is not a folder".to_owned())
}
