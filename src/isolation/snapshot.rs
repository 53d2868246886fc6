//! Texts kept beside the tests. `UPDATE_SNAPSHOTS=1` writes them anew; the change then shows in the diff.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

use std::{fs, path::Path};

/// Compares `text` with the file `name`.
#[track_caller]
pub(super) fn check(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/isolation/snapshots").join(name);
    #[expect(clippy::disallowed_methods, reason = "a switch for people who run the tests")]
    let update = std::env::var_os("UPDATE_SNAPSHOTS").is_some();
    if update {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == text, "{name} differs from what is kept; this is it now:\n{text}");
}
