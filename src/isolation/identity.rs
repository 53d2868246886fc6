//! Users and groups of one number that nobody else on the machine has. Pure but for the drawing of a number.

use std::path::Path;

/// The first number, and how many there are. Nobody hands these out: they lie above those for people, services and
/// containers, and below 2³¹.
const FIRST: u32 = 0x7000_0000;
const COUNT: u32 = 1 << 27;

/// Capabilities without which a host cannot give processes users of their own, and end them: chown, `dac_override`,
/// fowner, kill, setgid, setuid, setpcap.
const NEEDED: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;

/// A number that is, most likely, nobody's: of 134 million.
pub(super) fn draw() -> Result<u32, getrandom::Error> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)?;
    Ok(FIRST + u32::from_le_bytes(bytes) % COUNT)
}

/// Why a process with this status (`/proc/self/status`) and map of users (`/proc/self/uid_map`) cannot hand numbers out.
pub(super) fn objection(status: &str, uid_map: &str, may_set_groups: bool) -> Option<String> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if effective & NEEDED != NEEDED {
        return Some("the host is not root, or lacks capabilities of root's".to_owned());
    }
    if !may_set_groups {
        return Some("groups cannot be changed in the host's user namespace".to_owned());
    }
    if !is_mapped(uid_map) {
        return Some(format!("the host's user namespace has no users {FIRST} to {}", FIRST + (COUNT - 1)));
    }
    None
}

fn is_mapped(uid_map: &str) -> bool {
    let (first, end) = (u64::from(FIRST), u64::from(FIRST) + u64::from(COUNT));
    uid_map.lines().any(|line| {
        let mut columns = line.split_ascii_whitespace().map(str::parse::<u64>);
        match (columns.next(), columns.next(), columns.next()) {
            (Some(Ok(inside)), Some(Ok(_)), Some(Ok(count))) => inside <= first && inside + count >= end,
            _ => false,
        }
    })
}

/// The first folder on the way to `path` that others cannot pass through, if there is one. Blocks.
#[cfg(unix)]
pub(super) fn closed_folder(path: &Path) -> Option<&Path> {
    use std::os::unix::fs::MetadataExt;
    let folders: Vec<_> = path.ancestors().skip(1).collect();
    folders
        .into_iter()
        .rev()
        .find(|folder| std::fs::metadata(folder).is_ok_and(|metadata| metadata.mode() & 0o001 == 0))
}

/// What is said of such a folder, before its path.
const CLOSED: &str = "other users cannot pass through ";

/// What is said of such a folder.
#[cfg(unix)]
pub(super) fn told_closed(folder: &Path) -> String {
    format!("{CLOSED}{}", folder.display())
}

/// Whether a reason is about such a folder.
pub(super) fn is_closed_folder(why: &str) -> bool {
    why.starts_with(CLOSED)
}

#[cfg(not(unix))]
pub(super) fn closed_folder(_: &Path) -> Option<&Path> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Name:\tnode\nCapEff:\t000001ffffffffff\n";
    const ALL: &str = "         0          0 4294967295\n";

    #[cfg(unix)]
    #[test]
    fn a_closed_folder_is_known_by_its_reason() {
        assert!(is_closed_folder(&told_closed(Path::new("/root"))));
        assert!(!is_closed_folder("the host is not root, or lacks capabilities of root's"));
    }

    #[test]
    fn root_with_all_users_may() {
        assert_eq!(objection(ROOT, ALL, true), None);
        // A default container's root.
        assert_eq!(objection("CapEff:\t00000000a80425fb\n", ALL, true), None);
    }

    #[test]
    fn who_may_not_is_told_why() {
        for (status, map, groups, word) in [
            ("CapEff:\t0000000000000000\n", ALL, true, "not root"),
            ("", ALL, true, "not root"),
            (ROOT, "0 1000 1\n1 100000 65536\n", true, "no users"),
            (ROOT, "", true, "no users"),
            (ROOT, ALL, false, "groups"),
        ] {
            assert!(objection(status, map, groups).unwrap().contains(word), "{word}");
        }
    }

    #[test]
    fn numbers_are_in_their_range_and_differ() {
        let (one, two) = (draw().unwrap(), draw().unwrap());
        assert!((FIRST..FIRST + COUNT).contains(&one) && one != two);
    }
}
