//! What both sides read of `/proc/<pid>/stat`: the only way to see grandchildren. Pure.

use std::collections::BTreeMap;

/// One line of `/proc/<pid>/stat`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub pid: i32,
    /// Whether it is dead and only waits to be reaped.
    pub zombie: bool,
    /// Its parent's number.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// Threads of it.
    pub threads: u32,
    /// Clock ticks after boot; together with the pid it names one process for ever. [`UNSEEN`] for one that `/proc` does not show.
    pub started_ticks: u64,
}

/// Of a process that somebody knows of, and that has no entry in `/proc` which may be read: a program that may be run but not read,
/// or one that has made itself so. It is a process like any other: it can be named, counted and ended.
pub const UNSEEN: u64 = u64::MAX;

impl Entry {
    /// A child of `parent`, by the kernel's word: without a look at its entry.
    pub fn unseen(pid: i32, parent: i32, group: i32, session: i32) -> Self {
        Self { pid, zombie: false, parent, group, session, threads: 1, started_ticks: UNSEEN }
    }
}

/// Parses a `stat` line. The name in it may hold anything, spaces and parentheses included.
pub fn parse(stat: &[u8]) -> Option<Entry> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.split(|byte| *byte == b' ').next()?).ok()?;
    let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
    // From the state, field 3 of proc(5), on.
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    Some(Entry {
        pid: pid.parse().ok()?,
        zombie: matches!(fields.first(), Some(&("Z" | "X"))),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Of `all`, those below any of `roots`, without the roots themselves.
pub fn below(all: &[Entry], roots: &[i32]) -> Vec<Entry> {
    let mut children: BTreeMap<i32, Vec<Entry>> = BTreeMap::new();
    for entry in all {
        children.entry(entry.parent).or_default().push(*entry);
    }
    let mut found = Vec::new();
    for root in roots {
        // Taking them out ends a circle, which a scan across a reused number could show.
        found.extend(children.remove(root).unwrap_or_default());
    }
    let mut next = 0;
    while let Some(entry) = found.get(next) {
        let grandchildren = children.remove(&entry.pid).unwrap_or_default();
        found.extend(grandchildren);
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32) -> Entry {
        Entry { pid, zombie: false, parent, group: pid, session: pid, threads: 1, started_ticks: 0 }
    }

    #[test]
    fn a_name_with_spaces_parentheses_and_foreign_bytes_is_no_obstacle() {
        let line = b"42 (a ) S 1 (\xff) R 7 8 9 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 3 0 12345 0 0\n";
        let expected = Entry {
            pid: 42,
            zombie: false,
            parent: 7,
            group: 8,
            session: 9,
            threads: 3,
            started_ticks: 12345,
        };
        assert_eq!(parse(line), Some(expected));
        let dead = String::from_utf8_lossy(line).replace(") R ", ") Z ");
        assert_eq!(parse(dead.as_bytes()), Some(Entry { zombie: true, ..expected }));
    }

    #[test]
    fn cut_lines_are_refused() {
        for line in [&b""[..], b"42", b"42 (x)", b"42 (x) S", b"42 (x) S 1 2 3", b"x (y) S 1 2 3 4"] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_a_circle_ends() {
        let all = [entry(2, 1), entry(3, 2), entry(4, 3), entry(5, 1), entry(6, 7), entry(7, 6)];
        let pids = |roots: &[i32]| below(&all, roots).iter().map(|entry| entry.pid).collect::<Vec<_>>();
        assert_eq!(pids(&[2]), [3, 4]);
        assert_eq!(pids(&[2, 5]), [3, 4]);
        assert_eq!(pids(&[1]), [2, 5, 3, 4]);
        assert_eq!(pids(&[6]), [7, 6]);
        assert!(pids(&[4]).is_empty());
    }
}
