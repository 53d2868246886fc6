//! Staged and published trees.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Identity, Shared, StoreError,
    remove::{make_read_only, take_write_bits},
    root, unique_name,
};

/// Stands in every published tree and says what it is; written last.
pub const MARKER_FILE: &str = ".complete";

/// A tree in the making. Dropping it removes it in the background.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    shared: Arc<Shared>,
}

impl Staging {
    pub(super) fn create(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let dir = shared.folder("staging").join(unique_name()?);
        shared.retrying(|| {
            root::builder(0o700).create(&dir).map_err(StoreError::io("create the folder", &dir))
        })?;
        let staging = Self { dir, shared: Arc::clone(shared) };
        for folder in [staging.tree(), staging.scratch()] {
            root::builder(0o755).create(&folder).map_err(StoreError::io("create the folder", &folder))?;
        }
        Ok(staging)
    }

    /// What becomes the tree.
    pub fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    /// For what the making needs and the tree does not: gone with the staging.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("scratch")
    }

    /// See [`super::Store::publish`].
    pub(super) fn publish(self, what: &impl serde::Serialize) -> Result<Tree, StoreError> {
        let staged = self.tree();
        let marker = staged.join(MARKER_FILE);
        let text = serde_json::to_vec(what).map_err(std::io::Error::other);
        text.and_then(|text| fs::write(&marker, text)).map_err(StoreError::io("write", &marker))?;
        make_read_only(&staged);
        let dir = self.shared.folder("trees").join(unique_name()?);
        fs::rename(&staged, &dir).map_err(StoreError::io("publish", &dir))?;
        let metadata = fs::symlink_metadata(&dir).map_err(StoreError::io("read", &dir))?;
        // Only now: a folder without write bits cannot be moved to another parent.
        let _ = take_write_bits(&dir, &metadata);
        Ok(Tree { dir: Arc::new(dir), identity: Identity::of(&metadata), shared: Arc::clone(&self.shared) })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.shared.discard(std::mem::take(&mut self.dir));
    }
}

/// A published tree. Dropping the handle removes nothing; see [`super::Store::remove`].
#[derive(Debug, Clone)]
pub struct Tree {
    dir: Arc<PathBuf>,
    identity: Identity,
    pub(super) shared: Arc<Shared>,
}

impl Tree {
    /// The folder that holds `package.json` and `node_modules`.
    pub fn dir(&self) -> &Arc<PathBuf> {
        &self.dir
    }

    /// `<dir>/node_modules`.
    pub fn node_modules(&self) -> PathBuf {
        self.dir.join("node_modules")
    }

    /// Whether it is still there and still the one that was published. Two system calls.
    pub fn is_alive(&self) -> bool {
        let same = |metadata: fs::Metadata| metadata.is_dir() && Identity::of(&metadata) == self.identity;
        fs::symlink_metadata(self.dir.as_path()).is_ok_and(same) && is_file(&self.dir.join(MARKER_FILE))
    }

    /// See [`super::Store::remove`].
    pub(super) fn retire(&self) -> Result<(), StoreError> {
        let trash = self.shared.folder("trash").join(unique_name()?);
        let dir = self.dir.as_path();
        let act = || {
            open_up(dir);
            fs::rename(dir, &trash).map_err(StoreError::io("remove the tree", dir))
        };
        match self.shared.retrying(act) {
            Err(error) if error.is_missing() => return Ok(()),
            other => other?,
        }
        self.shared.discard(trash);
        Ok(())
    }
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Gives the folder itself its write bit back: without it, it cannot be moved.
fn open_up(dir: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if fs::symlink_metadata(dir).is_ok_and(|metadata| metadata.is_dir()) {
            let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
        }
    }
    #[cfg(not(unix))]
    let _ = dir;
}
