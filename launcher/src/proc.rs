//! What `/proc` says about processes: the only way to see grandchildren.

use std::{collections::BTreeMap, fs, path::Path};

/// One line of `/proc/<pid>/stat`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Clock ticks after boot; together with the pid it names one process for ever.
    pub(crate) started_ticks: u64,
}

impl Entry {
    /// A process of which no more than the number is known.
    pub(crate) fn unseen(pid: i32) -> Self {
        Self { pid, parent: 0, group: 0, session: 0, started_ticks: 0 }
    }
}

/// Parses a `stat` line. The name in it may hold anything, spaces and parentheses included.
pub(crate) fn parse(stat: &[u8]) -> Option<Entry> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.split(|byte| *byte == b' ').next()?).ok()?;
    let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
    // From the state, field 3 of proc(5), on.
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    Some(Entry {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Reads one process.
pub(crate) fn read(pid: i32) -> Option<Entry> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether this number still names the same process.
pub(crate) fn is_same(entry: &Entry) -> bool {
    read(entry.pid).is_some_and(|now| now.started_ticks == entry.started_ticks)
}

/// The way to find children: by the kernel's own lists where it keeps them (`CONFIG_PROC_CHILDREN`), else by reading
/// every process of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proc {
    own: i32,
    lists: bool,
}

impl Proc {
    pub(crate) fn new(own: i32) -> Self {
        Self { own, lists: Path::new(&format!("/proc/{own}/task/{own}/children")).exists() }
    }

    /// This process's own children, without those that `known` knows.
    ///
    /// The kernel's list of our own children is complete: only our reaping takes entries out of it.
    pub(crate) fn own_children(self, known: impl Fn(i32) -> bool) -> Vec<Entry> {
        if self.lists {
            return listed_children(self.own)
                .into_iter()
                .filter(|pid| !known(*pid))
                .filter_map(read)
                .collect();
        }
        let mut all = everything();
        all.retain(|entry| entry.parent == self.own && !known(entry.pid));
        all
    }

    /// All processes below this one, as far as one look can see.
    pub(crate) fn below_self(self) -> Vec<Entry> {
        if !self.lists {
            return below(&everything(), &[self.own]);
        }
        let mut found: Vec<Entry> = listed_children(self.own).into_iter().filter_map(read).collect();
        let mut next = 0;
        while let Some(entry) = found.get(next).copied() {
            found.extend(listed_children(entry.pid).into_iter().filter_map(read));
            next += 1;
        }
        found
    }
}

/// The children of all threads of a process, by the kernel's lists.
fn listed_children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn everything() -> Vec<Entry> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.flatten().filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Of `all`, those below any of `roots`, without the roots themselves.
pub(crate) fn below(all: &[Entry], roots: &[i32]) -> Vec<Entry> {
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
        Entry { pid, parent, group: pid, session: pid, started_ticks: 0 }
    }

    #[test]
    fn a_name_with_spaces_parentheses_and_foreign_bytes_is_no_obstacle() {
        let line = b"42 (a ) S 1 (\xff) R 7 8 9 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let expected = Entry { pid: 42, parent: 7, group: 8, session: 9, started_ticks: 12345 };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn cut_lines_are_refused() {
        for line in [&b""[..], b"42", b"42 (x)", b"42 (x) S", b"42 (x) S 1 2 3", b"x (y) S 1 2 3 4"] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn this_process_finds_itself() {
        let own = std::process::id().try_into().unwrap();
        let entry = read(own).unwrap();
        assert_eq!(entry.pid, own);
        assert!(is_same(&entry));
        assert!(!is_same(&Entry { started_ticks: entry.started_ticks + 1, ..entry }));
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
