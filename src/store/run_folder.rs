//! The folder of one call.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Shared, StoreError, Tree, root::builder, unique_name};

/// Working folder, temp folder and a way to the packages, for one call. Private to this user.
///
/// `dir/node_modules` is a symlink into the tree, so that code compiled under `dir/work` finds packages by `require`
/// and `import`, and so do the processes it starts there. Dropping it removes it in the background; anywhere, no runtime is needed.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    shared: Arc<Shared>,
}

impl RunFolder {
    /// Makes one: six system calls.
    pub fn create(tree: &Tree) -> Result<Self, StoreError> {
        let shared = Arc::clone(&tree.shared);
        let dir = shared.folder("runs").join(unique_name()?);
        let private = builder(0o700);
        shared.retrying(|| private.create(&dir).map_err(StoreError::io("create the run folder", &dir)))?;
        // From here on a failure removes what was made.
        let folder = Self { dir, shared };
        for part in [folder.cwd(), folder.tmpdir()] {
            private.create(&part).map_err(StoreError::io("create the folder", &part))?;
        }
        let link = folder.dir.join("node_modules");
        symlink_dir(&tree.node_modules(), &link).map_err(StoreError::io("create the symlink", &link))?;
        Ok(folder)
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
            self.shared.discard(std::mem::take(&mut self.dir));
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
