//! Whether a text is a semver range as npm reads them. Pure.
//!
//! The grammar is the one that node-semver documents, with what its loose mode adds: a `v` or `=` before a version, and
//! a prerelease without its hyphen. Loose mode also drops words that it cannot read; those are refused here.

/// Whether `text` is a version or a range. The empty range is one: any version.
pub(super) fn is_range(text: &str) -> bool {
    text.split("||").all(|alternative| {
        let words: Vec<_> = alternative.split_ascii_whitespace().collect();
        match words.as_slice() {
            [from, "-", to] => is_partial(from) && is_partial(to),
            words => are_comparators(words),
        }
    })
}

/// Whether `text` names one version: it will never resolve to another.
pub(super) fn is_exact(text: &str) -> bool {
    let text = text.trim();
    let version = text.strip_prefix('=').unwrap_or(text).trim_start();
    let version = version.strip_prefix('v').unwrap_or(version);
    let (core, _) = version.split_once('+').unwrap_or((version, ""));
    let (core, _) = core.split_once('-').unwrap_or((core, ""));
    let parts: Vec<_> = core.split('.').collect();
    let is_whole = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.len() == 3 && parts.iter().all(is_whole) && is_partial(version)
}

/// `>=1.2 <2`; an operator may stand apart from its version.
fn are_comparators(words: &[&str]) -> bool {
    let mut operator_waits = false;
    for word in words {
        let version = strip_operator(word);
        if version.is_empty() {
            if operator_waits {
                return false;
            }
            operator_waits = true;
        } else if (operator_waits && version.len() != word.len()) || !is_partial(version) {
            return false;
        } else {
            operator_waits = false;
        }
    }
    !operator_waits
}

fn strip_operator(word: &str) -> &str {
    ["~>", ">=", "<=", "^", "~", ">", "<", "="]
        .iter()
        .find_map(|operator| word.strip_prefix(operator))
        .unwrap_or(word)
}

/// `1`, `1.2`, `1.x`, `*`, `1.2.3-beta.1+build`.
fn is_partial(text: &str) -> bool {
    let text = text.trim_start_matches(['v', '=']);
    let (version, build) = text.split_once('+').unwrap_or((text, "0"));
    let mut parts = version.splitn(3, '.');
    let (major, minor, patch) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let leading = is_number(major) && minor.is_none_or(is_number);
    leading && patch.is_none_or(is_patch_with_prerelease) && are_identifiers(build)
}

fn is_number(part: &str) -> bool {
    matches!(part, "x" | "X" | "*") || (!part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

fn is_patch_with_prerelease(part: &str) -> bool {
    if is_number(part) {
        return true;
    }
    let digits = part.bytes().take_while(u8::is_ascii_digit).count();
    let (patch, rest) = match part.as_bytes().first() {
        Some(b'x' | b'X' | b'*') => part.split_at(1),
        _ => part.split_at(digits),
    };
    !patch.is_empty() && are_identifiers(rest.strip_prefix('-').unwrap_or(rest))
}

fn are_identifiers(text: &str) -> bool {
    text.split('.')
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::{is_exact, is_range};

    #[test]
    fn ranges() {
        let ranges = [
            "",
            " ",
            "*",
            "x",
            "X",
            "1",
            "1.2",
            "1.2.3",
            "v1",
            "=1.2.3",
            "=v1.2.3",
            "^1",
            "~1.2",
            "~>1.2",
            "^v1.2",
            "1.x",
            "1.X.x",
            "1.*",
            ">=1 <2",
            ">= 1.2 < 2",
            "^ 1",
            "1 - 2",
            "1.2.3 - 2.x",
            "1||2",
            "1 || 2 || 3.x",
            "||",
            "1.2.3-beta",
            "1.2.3-beta.1",
            "1.2.3beta",
            "1.2.3+build.5",
            "1.2.3-rc.1+b",
            "<1.0.0 || >=2.3.1 <2.4.5 || >=2.5.2 <3.0.0",
            "01.2.3",
        ];
        for range in ranges {
            assert!(is_range(range), "{range:?}");
        }
    }

    #[test]
    fn exact_versions() {
        for exact in
            ["1.2.3", " 1.2.3 ", "=1.2.3", "v1.2.3", "= v1.2.3", "1.2.3-beta.1", "1.2.3-x-y+b.1", "1.2.3+b-1"]
        {
            assert!(is_exact(exact) && is_range(exact.trim()), "{exact:?}");
        }
        for other in [
            "",
            "*",
            "1",
            "1.2",
            "1.2.x",
            "^1.2.3",
            "~1.2.3",
            ">=1.2.3",
            "1.2.3 || 2.0.0",
            "1.2.3 - 2.0.0",
            "latest",
            "1.2.3 1.2.3",
            "1.2.3-",
            "npm:a@1.2.3",
            "git+https://h/r.git#1.2.3",
            "x.1.2",
            "1.2.3.4",
            "1.2.3b",
        ] {
            assert!(!is_exact(other), "{other:?}");
        }
    }

    #[test]
    fn not_ranges() {
        let others = [
            "latest",
            "1.2.3.4.",
            ">",
            ">>1",
            "> > 1",
            "^^1",
            "> =1",
            "1.",
            ".1",
            "1..2",
            "a.b",
            "1 -",
            "- 1",
            "1 - 2 - 3",
            "-1",
            "1,2",
            "^",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-é",
            "1 latest",
            "@1",
            "1/2",
        ];
        for other in others {
            assert!(!is_range(other), "{other:?}");
        }
    }
}
