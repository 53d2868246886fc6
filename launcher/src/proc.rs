//! What `/proc` says about processes: the only way to see grandchildren.

use std::{fs, path::Path};

pub(crate) use native_sandbox_protocol::stat::{Entry, below};
use native_sandbox_protocol::stat::{UNSEEN, parse};

use crate::sys;

/// Reads one process.
pub(crate) fn read(pid: i32) -> Option<Entry> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// A child of `parent`, by the kernel's word: without a look at its entry.
pub(crate) fn listed(pid: i32, parent: i32) -> Entry {
    let (group, session) = sys::group_and_session(pid);
    Entry::unseen(pid, parent, group, session)
}

/// Whether this number still names the same process, or, where its entry cannot be read, another child of the same parent at worst.
pub(crate) fn is_same(entry: &Entry) -> bool {
    if entry.started_ticks == UNSEEN {
        return listed_children(entry.parent).is_some_and(|pids| pids.contains(&entry.pid));
    }
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

    /// This process's own children, without those that `known` knows. A child is who the kernel says is one, whether `/proc` shows
    /// it or not.
    ///
    /// The kernel's list of our own children is complete: only our reaping takes entries out of it.
    pub(crate) fn own_children(self, known: impl Fn(i32) -> bool) -> Vec<Entry> {
        if let Some(pids) = self.lists.then(|| listed_children(self.own)).flatten() {
            let unknown = pids.into_iter().filter(|pid| !known(*pid));
            return unknown.map(|pid| listed(pid, self.own)).collect();
        }
        let mut all = everything();
        all.retain(|entry| entry.parent == self.own && !known(entry.pid));
        all
    }

    /// All processes below this one, as far as one look can see: what is below one that cannot be looked into comes to light when
    /// that one ends.
    pub(crate) fn below_self(self) -> Vec<Entry> {
        if !self.lists {
            return below(&everything(), &[self.own]);
        }
        let mut found: Vec<Entry> = seen_children(self.own);
        let mut next = 0;
        while let Some(entry) = found.get(next).copied() {
            found.extend(seen_children(entry.pid));
            next += 1;
        }
        found
    }
}

/// The children of a process, each as far as it can be seen.
fn seen_children(parent: i32) -> Vec<Entry> {
    let pids = listed_children(parent).unwrap_or_default();
    pids.into_iter().map(|pid| read(pid).unwrap_or_else(|| listed(pid, parent))).collect()
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

fn everything() -> Vec<Entry> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.flatten().filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_finds_itself() {
        let own = std::process::id().try_into().unwrap();
        let entry = read(own).unwrap();
        assert_eq!(entry.pid, own);
        assert!(is_same(&entry));
        assert!(!is_same(&Entry { started_ticks: entry.started_ticks + 1, ..entry }));
    }
}
