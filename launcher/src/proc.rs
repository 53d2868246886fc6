//! What `/proc` says about processes: the only way to see grandchildren.

use std::{fs, path::Path};

use native_sandbox_protocol::stat::parse;
pub(crate) use native_sandbox_protocol::stat::{Entry, below};

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
