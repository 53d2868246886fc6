//! Base stores: folders with trees that were installed beforehand, for example into an image. Only read, and trusted as the image
//! is. No locks: nobody removes anything there.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Shared, TreeKey, generation, root,
    shelf::{folder_of, names_in},
    tree::Tree,
};
use crate::log::NATIVE;

/// The newest whole generation of `key` in the base store at `dir`.
///
/// `dir` is what was the `storeDir` option when the trees were installed, by whatever user, or a root folder of that layout. What
/// cannot be read is as if it were not there, and logged.
pub(super) fn find(dir: &Path, key: &TreeKey, shared: &Arc<Shared>) -> Option<Tree> {
    roots(dir).into_iter().find_map(|root| {
        let folder = folder_of(&root, key).map_err(|error| report(&root, &error)).ok().flatten()?;
        let names = names_in(&folder).map_err(|error| report(&folder, &error)).unwrap_or_default();
        generation::newest_first(names).into_iter().find_map(|name| {
            let generation = folder.join(name);
            Tree::of(&generation, None, shared).map_err(|error| report(&generation, &error)).ok().flatten()
        })
    })
}

pub(super) fn roots(dir: &Path) -> Vec<PathBuf> {
    let names = names_in(dir).map_err(|error| report(dir, &error)).unwrap_or_default();
    let roots = names.iter().filter(|name| root::is_name(name)).map(|name| dir.join(name));
    // Node compares real paths.
    [dir.to_owned()].into_iter().chain(roots).filter_map(|root| root.canonicalize().ok()).collect()
}

fn report(path: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(target: NATIVE, path = %path.display(), error = %error, "Failed to read a base store");
}
