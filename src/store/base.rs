//! Base stores: folders with trees that were installed beforehand, for example into an image. Only read, and trusted as the image
//! is. No locks: nobody removes anything there.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use super::{
    Shared, TreeKey,
    contents::Watched,
    generation, root,
    shelf::{folder_of, names_in, read_marker},
    tree::{MARKER_FILE, Tree},
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
            Tree::of(&generation, None, Watched::default(), shared)
                .map_err(|error| report(&generation, &error))
                .ok()
                .flatten()
        })
    })
}

/// Trees of a base store that are looked at for one that was made for others: this is an explanation, not a search.
const EXPLAINED_TREES: usize = 1_000;

/// What is written down about a whole tree of `dependencies` in one of the base stores, whoever it is for, and that base store.
pub fn found_in_bases(dirs: &[PathBuf], dependencies: &Value) -> Option<(PathBuf, Value)> {
    dirs.iter().find_map(|dir| {
        let trees = roots(dir).into_iter().map(|root| root.join("trees"));
        let keys = trees.flat_map(|trees| {
            let names = names_in(&trees).unwrap_or_default();
            names.into_iter().map(move |name| trees.join(name))
        });
        keys.take(EXPLAINED_TREES).find_map(|folder| {
            let newest = generation::newest_first(names_in(&folder).ok()?).into_iter().next()?;
            let what = read_marker(&folder.join(newest).join(MARKER_FILE))?.what;
            (what["dependencies"] == *dependencies).then(|| (dir.clone(), what["about"].clone()))
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
