//! Which processes are there: the zygote's own children that it did not fork, and what is below them.

use std::{collections::BTreeMap, fs, ops::RangeInclusive, path::Path};

use crate::sys;

/// A process, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Clock ticks after boot; together with the pid it names one process for ever. [`UNSEEN`] for one that `/proc` does not show.
    pub(crate) started_ticks: u64,
}

/// Of what is on a list of children, and has no entry that this process may read: a program that may be run but not read, or one
/// that has made itself so. It is a process like any other: it can be named, and ended.
const UNSEEN: u64 = u64::MAX;

impl Entry {
    /// A child of `parent`, by the kernel's word: without a look at its entry.
    fn listed(pid: i32, parent: i32) -> Self {
        let (group, session) = sys::group_and_session(pid);
        Self { pid, parent, group, session, started_ticks: UNSEEN }
    }
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

/// Whether this number still names the same process, or, where its entry cannot be read, another child of the same parent at worst.
pub(crate) fn is_same(entry: &Entry) -> bool {
    if entry.started_ticks == UNSEEN {
        return listed_children(entry.parent).is_some_and(|pids| pids.contains(&entry.pid));
    }
    read(entry.pid).is_some_and(|now| now.started_ticks == entry.started_ticks)
}

/// Process numbers asked for one by one before reading all of `/proc` is taken to be cheaper: 0.2 µs each against some
/// 10 µs for every process of the machine.
const MAX_PROBED_PIDS: i32 = 4096;

/// The most numbers that are asked for where there are no lists and the numbers cannot be told: some 50 ms.
const MAX_PROBED_WITHOUT_LISTS_PIDS: i32 = 262_144;

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
    ///
    /// A child is who the kernel says is one, whether `/proc` shows it or not.
    pub(crate) fn own_children(&self, dead: &[(i32, u64)], known: impl Fn(i32) -> bool) -> Vec<Entry> {
        if let Some(pids) = self.lists.then(|| listed_children(self.own)).flatten() {
            let unknown = pids.into_iter().filter(|pid| !known(*pid));
            return unknown.map(|pid| Entry::listed(pid, self.own)).collect();
        }
        let near = newest_pid().and_then(|newest| candidates(dead, newest));
        let is_near = near.is_some();
        let probed = near.unwrap_or_else(|| 2..=last_pid().min(MAX_PROBED_WITHOUT_LISTS_PIDS));
        let mut found: Vec<Entry> = probed
            .filter(|pid| !known(*pid) && sys::is_dead_child(*pid).is_some())
            .map(|pid| Entry::listed(pid, self.own))
            .collect();
        if !is_near {
            let others =
                everything().into_iter().filter(|entry| entry.parent == self.own && !known(entry.pid));
            let others: Vec<Entry> =
                others.filter(|entry| found.iter().all(|one| one.pid != entry.pid)).collect();
            found.extend(others);
        }
        found
    }

    /// All processes below these, as far as one look can see, without these themselves: what is below one that cannot be looked
    /// into comes to light when that one ends. `hidden`: a root may be one that this process may not look into, but whose
    /// children it may.
    pub(crate) fn below(&self, roots: &[i32], hidden: bool) -> Vec<Entry> {
        if !self.lists || hidden {
            return below(&everything(), roots);
        }
        let mut found = Vec::new();
        let mut parents = roots.to_vec();
        while let Some(parent) = parents.pop() {
            for pid in listed_children(parent).unwrap_or_default() {
                parents.push(pid);
                found.push(read(pid).unwrap_or_else(|| Entry::listed(pid, parent)));
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

/// The children of all threads of a process, by the kernel's lists; `None` where they cannot be read, which says nothing about the
/// children.
fn listed_children(pid: i32) -> Option<Vec<i32>> {
    let mut pids = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        match fs::read_to_string(thread.ok()?.path().join("children")) {
            Ok(list) => pids.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            // A thread that has ended since; its children have gone over to another.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(_) => return None,
        }
    }
    Some(pids)
}

/// The last number that the kernel gives out.
fn last_pid() -> i32 {
    let text = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    text.trim().parse().unwrap_or(MAX_PROBED_WITHOUT_LISTS_PIDS)
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
