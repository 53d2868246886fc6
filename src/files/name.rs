//! Which paths of files cross between host and function, in both directions. Pure.

/// A path, bytes.
pub const MAX_PATH_BYTES: usize = 1024;
/// One part of it, bytes: what file systems take.
const MAX_PART_BYTES: usize = 255;
/// Parts of a path.
pub const MAX_LEVELS: usize = 32;

/// Checks that `path` leads to a file below a folder, whichever that is: relative, with `/` between its parts. An error says what is
/// wrong with it, to be put behind the path.
pub fn check(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("is empty: name a file, relative to the working folder".to_owned());
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(format!("has {} bytes, at most {MAX_PATH_BYTES} are allowed", path.len()));
    }
    if path.chars().any(char::is_control) {
        return Err("has a control character (a newline, a NUL or the like)".to_owned());
    }
    if path.starts_with('/') {
        return Err("is absolute: name a file relative to the working folder".to_owned());
    }
    if cfg!(windows) && path.contains(['\\', ':']) {
        return Err("has a backslash or a colon: put / between folders".to_owned());
    }
    let parts = path.split('/');
    if parts.clone().count() > MAX_LEVELS {
        return Err(format!("has more than {MAX_LEVELS} levels of folders"));
    }
    for part in parts {
        match part {
            "" => return Err("has an empty part (two slashes, or one at its end)".to_owned()),
            "." | ".." => {
                return Err(format!(
                    "has the part {part:?}: name a file below the working folder, without . and .."
                ));
            }
            _ if part.len() > MAX_PART_BYTES => {
                return Err(format!(
                    "has a part of {} bytes, at most {MAX_PART_BYTES} are allowed",
                    part.len()
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A path for a message: quoted, its control characters escaped, and cut.
pub fn shown(path: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let mut chars = path.chars();
    let start: String = chars.by_ref().take(SHOWN_CHARS).collect();
    let more = if chars.next().is_some() { "…" } else { "" };
    format!("{start:?}{more}")
}

/// Two of `paths` of which one is a file and would have to be a folder for the other; or the same one twice.
pub fn conflict<'a>(paths: impl Iterator<Item = &'a str>) -> Option<(&'a str, &'a str)> {
    let all: std::collections::BTreeSet<&str> = paths.collect();
    all.iter().find_map(|path| {
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        above.find_map(|folder| all.get(folder).map(|file| (*file, *path)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_that_stay_below_a_folder_are_fine() {
        for path in ["a", "in/data.csv", ".hidden", "a/..b/c..", "…/ü/日本.txt", "a b/c", "-rf", "a\\b"]
        {
            assert_eq!(check(path), Ok(()), "{path}");
        }
        assert_eq!(check(&vec!["d"; MAX_LEVELS].join("/")), Ok(()));
        assert_eq!(check(&"d".repeat(MAX_PART_BYTES)), Ok(()));
    }

    #[test]
    fn paths_that_lead_elsewhere_or_nowhere_are_not() {
        let long = "d".repeat(MAX_PART_BYTES + 1);
        let longer = vec!["dddddddd"; 200].join("/");
        let deep = vec!["d"; MAX_LEVELS + 1].join("/");
        for (path, why) in [
            ("", "is empty"),
            ("/etc/passwd", "is absolute"),
            ("..", "has the part"),
            ("a/../../b", "has the part"),
            ("./a", "has the part"),
            ("a/.", "has the part"),
            ("a//b", "has an empty part"),
            ("a/", "has an empty part"),
            ("a\nb", "control character"),
            ("a\0b", "control character"),
            ("a/\u{1b}[2J", "control character"),
            ("a\u{85}", "control character"),
            (&long, "has a part of 256 bytes"),
            (&longer, "bytes, at most 1024"),
            (&deep, "more than 32 levels"),
        ] {
            let error = check(path).unwrap_err();
            assert!(error.contains(why), "{path:?}: {error}");
        }
    }

    #[test]
    fn a_file_is_no_folder_as_well() {
        assert_eq!(conflict(["a/b/c", "x", "a/b"].into_iter()), Some(("a/b", "a/b/c")));
        assert_eq!(conflict(["a-b/c", "a", "ab"].into_iter()), None);
    }

    #[test]
    fn a_shown_path_has_no_control_characters() {
        assert_eq!(shown("a\nb"), r#""a\nb""#);
        assert!(shown(&"x".repeat(500)).ends_with("\"…"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_passes_never_leaves_its_folder(path in "[a./\\\\\u{0}-\u{1f}]{0,40}") {
            if check(&path).is_ok() {
                let joined = std::path::Path::new("/base").join(&path);
                prop_assert!(joined.components().all(|part| part != std::path::Component::ParentDir));
                prop_assert!(joined.starts_with("/base") && joined != std::path::Path::new("/base"));
            }
        }
    }
}
