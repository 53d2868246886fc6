//! Which processes are there: the zygote's own children that it did not fork, and what is below them.

use std::{collections::BTreeMap, fs, ops::RangeInclusive, path::Path};

use crate::sys;

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

/// Parses a `stat` line. The name in it may hold anything, spaces and parentheses included.
fn parse(stat: &[u8]) -> Option<Entry> {
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

fn read(pid: i32) -> Option<Entry> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether this number still names the same process.
pub(crate) fn is_same(entry: &Entry) -> bool {
    read(entry.pid).is_some_and(|now| now.started_ticks == entry.started_ticks)
}

/// Process numbers asked for one by one before reading all of `/proc` is taken to be cheaper: 0.2 µs each against some
/// 10 µs for every process of the machine.
const MAX_PROBED_PIDS: i32 = 4096;

/// How old a dead child may be for its number to bound its own children's: within this time numbers do not go
/// around once (32,768 of them at the least).
const MAX_PROBED_AGE_MS: u64 = 2000;

/// Finds children.
///
/// A clean exit is the rule, so the common question is "did this dead worker leave nothing?". The kernel answers for
/// one number in one cheap call whether it is a child of ours; numbers are given out in order; and the last one given
/// out is in `/proc/loadavg`. So what a worker that died young can have left is found without a look at `/proc/<pid>`.
pub(crate) struct Proc {
    own: i32,
    /// The kernel's own lists of children (`CONFIG_PROC_CHILDREN`).
    lists: bool,
}

impl Proc {
    pub(crate) fn new(own: i32) -> Self {
        Self { own, lists: Path::new(&format!("/proc/{own}/task/{own}/children")).exists() }
    }

    /// This process's own children, without those that `known` knows. `dead` are the pid and the age in milliseconds of
    /// each known child that died: none can have come but from these.
    pub(crate) fn own_children(&self, dead: &[(i32, u64)], known: impl Fn(i32) -> bool) -> Vec<Entry> {
        if self.lists {
            return listed_children(self.own)
                .into_iter()
                .filter(|pid| !known(*pid))
                .filter_map(read)
                .collect();
        }
        if let Some(range) = newest_pid().and_then(|newest| candidates(dead, newest)) {
            let is_ours = |pid: &i32| !known(*pid) && sys::is_dead_child(*pid).is_some();
            return range.filter(is_ours).filter_map(read).collect();
        }
        let mut all = everything();
        all.retain(|entry| entry.parent == self.own && !known(entry.pid));
        all
    }

    /// All processes below these, as far as one look can see, without these themselves. `hidden`: a root may be one that this
    /// process may not look into, but whose children it may.
    pub(crate) fn below(&self, roots: &[i32], hidden: bool) -> Vec<Entry> {
        if !self.lists || hidden {
            return below(&everything(), roots);
        }
        let mut found = Vec::new();
        let mut parents = roots.to_vec();
        while let Some(parent) = parents.pop() {
            for entry in listed_children(parent).into_iter().filter_map(read) {
                parents.push(entry.pid);
                found.push(entry);
            }
        }
        found
    }
}

/// The numbers that children of `dead` can have, if they can be told and are few.
fn candidates(dead: &[(i32, u64)], newest: i32) -> Option<RangeInclusive<i32>> {
    let first = dead.iter().map(|(pid, _)| *pid).min()?;
    let young = dead.iter().all(|(_, age_ms)| *age_ms <= MAX_PROBED_AGE_MS);
    // Numbers that went around in between, or a `/proc/loadavg` that is not the kernel's, show as a last number below.
    let few = (first..=first.saturating_add(MAX_PROBED_PIDS)).contains(&newest);
    (young && few).then(|| first + 1..=newest)
}

/// The number that was given out last in this PID namespace.
fn newest_pid() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
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
fn below(all: &[Entry], roots: &[i32]) -> Vec<Entry> {
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
    fn descendants_are_found_at_any_depth_and_a_circle_ends() {
        let all = [entry(2, 1), entry(3, 2), entry(4, 3), entry(5, 1), entry(6, 7), entry(7, 6)];
        let pids = |roots: &[i32]| below(&all, roots).iter().map(|entry| entry.pid).collect::<Vec<_>>();
        assert_eq!(pids(&[2]), [3, 4]);
        assert_eq!(pids(&[1]), [2, 5, 3, 4]);
        assert_eq!(pids(&[6]), [7, 6]);
        assert!(pids(&[4]).is_empty());
    }

    #[test]
    fn candidates_are_what_came_after_the_first_of_the_dead() {
        assert_eq!(candidates(&[(20, 5), (10, 5)], 30), Some(11..=30));
        assert!(candidates(&[(10, 5)], 10).is_some_and(|range| range.is_empty()));
    }

    #[test]
    fn candidates_that_cannot_be_told_are_none() {
        assert_eq!(candidates(&[], 30), None);
        assert_eq!(candidates(&[(10, MAX_PROBED_AGE_MS + 1)], 30), None);
        assert_eq!(candidates(&[(10, 5)], 9), None);
        assert_eq!(candidates(&[(10, 5)], 11 + MAX_PROBED_PIDS), None);
    }

    #[test]
    fn the_newest_number_is_that_of_the_newest_process_or_thread_or_soon_after() {
        let limit: i32 = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
        // SAFETY: a plain system call.
        let thread = std::thread::spawn(|| unsafe { libc::gettid() }).join().unwrap();
        // Numbers go around, and other tests make processes and threads as well.
        let later = (newest_pid().unwrap() - thread).rem_euclid(limit);
        assert!(later < limit / 4, "{later}");
    }

    #[test]
    fn a_process_is_told_from_another_with_its_number() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(is_same(&read(own).unwrap()));
        assert!(!is_same(&Entry { started_ticks: 1, ..read(own).unwrap() }));
    }
}
