//! Which of a function's files are wanted: patterns of paths. Pure.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns of one call.
const MAX_PATTERNS: usize = 100;
/// One pattern, bytes.
const MAX_PATTERN_BYTES: usize = 1024;
/// What makes a part of a pattern more than a name.
const META: [char; 6] = ['*', '?', '[', ']', '{', '\\'];

/// Patterns, compiled. Matching takes time that is linear in the path, whatever the pattern.
#[derive(Debug, Clone)]
pub struct Selection {
    globs: GlobSet,
    roots: Vec<String>,
}

impl Selection {
    /// From patterns such as `out/**` and `*.{csv,json}`. They are matched by byte: `?` and `[…]` are for ASCII. An error is a sentence for the caller.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            return Err(format!(
                "collect.match must have 1 to {MAX_PATTERNS} patterns, it has {}",
                patterns.len()
            ));
        }
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns {
            check(pattern)?;
            let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            globs.add(glob.map_err(|error| format!("collect.match: {error}"))?);
        }
        let globs = globs.build().map_err(|error| format!("collect.match: {error}"))?;
        Ok(Self { globs, roots: roots(patterns) })
    }

    /// Whether the file at `path` is wanted.
    pub fn matches(&self, path: &str) -> bool {
        self.globs.is_match(path)
    }

    /// Folders (or files) below which all that matches is; one empty text for the working folder itself.
    pub fn roots(&self) -> &[String] {
        &self.roots
    }
}

fn check(pattern: &str) -> Result<(), String> {
    let bad = |why: &str| Err(format!("collect.match: the pattern {} {why}", super::name::shown(pattern)));
    if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES {
        return bad("must have 1 to 1024 bytes");
    }
    if pattern.chars().any(char::is_control) {
        return bad("has a control character");
    }
    if pattern.starts_with('/') {
        return bad("is absolute: patterns are relative to the working folder, as in out/**");
    }
    if pattern.starts_with('!') {
        return bad(
            "is an exclusion, which there is not: name what is wanted, or use onFile and leave out what is not",
        );
    }
    if pattern.ends_with('/') {
        return bad("ends in a slash and would match no file: all that is below a folder is out/**");
    }
    if pattern.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return bad(
            "has an empty part, . or ..: patterns are of paths below the working folder, as in out/**",
        );
    }
    Ok(())
}

fn roots(patterns: &[String]) -> Vec<String> {
    let mut all: Vec<String> = patterns
        .iter()
        .map(|pattern| {
            let literal: Vec<&str> = pattern.split('/').take_while(|part| !part.contains(META)).collect();
            literal.join("/")
        })
        .collect();
    all.sort();
    all.dedup();
    let kept: Vec<String> = all.clone();
    all.retain(|root| !kept.iter().any(|other| is_below(root, other)));
    all
}

fn is_below(path: &str, folder: &str) -> bool {
    path != folder
        && (folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(patterns: &[&str]) -> Result<Selection, String> {
        Selection::new(&patterns.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, matching, other) in [
            ("out/**", &["out/a", "out/b/c", "out/.hidden"][..], &["out", "in/a", "a/out/b"][..]),
            ("**", &["a", "a/b"], &[]),
            ("*.csv", &["a.csv"], &["a/b.csv", "a.csv.gz"]),
            ("**/*.csv", &["a.csv", "a/b.csv"], &["a.txt"]),
            ("*.{csv,json}", &["a.csv", "b.json"], &["a.xml"]),
            ("out/?.txt", &["out/1.txt"], &["out/12.txt", "out//.txt"]),
            ("[ab]/x", &["a/x"], &["c/x"]),
            ("ü*/日本", &["ü/日本", "üß/日本"], &["u/日本"]),
            ("\\*", &["*"], &["a"]),
        ] {
            let selection = selection(&[pattern]).unwrap();
            for path in matching {
                assert!(selection.matches(path), "{pattern} {path}");
            }
            for path in other {
                assert!(!selection.matches(path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn only_folders_that_can_hold_something_are_walked() {
        for (patterns, expected) in [
            (&["out/**"][..], &["out"][..]),
            (&["out/a/*.csv", "out/**", "log.txt"], &["log.txt", "out"]),
            (&["outer/**", "out/**"], &["out", "outer"]),
            (&["*.csv", "out/**"], &[""]),
            (&["a/b/c.txt", "a/b/c.txt"], &["a/b/c.txt"]),
        ] {
            assert_eq!(selection(patterns).unwrap().roots(), expected, "{patterns:?}");
        }
    }

    #[test]
    fn patterns_that_can_match_nothing_are_refused() {
        for (pattern, why) in [
            ("", "1 to 1024 bytes"),
            ("/etc/*", "is absolute"),
            ("../*", "has an empty part, . or .."),
            ("./a", "has an empty part, . or .."),
            ("a//b", "has an empty part, . or .."),
            ("!a", "is an exclusion"),
            ("out/", "ends in a slash"),
            ("a\nb", "control character"),
            ("[a", "collect.match: "),
            ("{a", "collect.match: "),
        ] {
            let error = selection(&[pattern]).unwrap_err();
            assert!(error.contains(why), "{pattern}: {error}");
        }
        assert!(selection(&[]).is_err());
        assert!(selection(&vec!["a"; 101]).is_err());
    }
}
