//! What was forked: which child belongs to which tree, and what the host is to be told. Pure.
//!
//! A living worker is its own subreaper, so whatever it starts stays below it. When it dies, what it left becomes the
//! zygote's: a child that the zygote did not fork belongs to a dead process of some tree.

use std::collections::BTreeMap;

use crate::{proc::Entry, sys::Reaped, wire::Report};

#[derive(Debug)]
struct Tree {
    main: i32,
    /// Until the main process is reaped its number is its own, and its group's.
    main_there: bool,
    /// Children of the zygote that the main process, or one of them, left behind.
    orphans: usize,
    killed: bool,
    /// It forks processes itself: what they leave is nobody's once it is dead.
    is_zygote: bool,
    /// Of the PID namespace that the main process was born into; until it is reaped, which is when nothing is left in there.
    init: Option<i32>,
}

/// A child not yet reaped.
#[derive(Debug, Clone, Copy)]
struct Child {
    /// None for a stray.
    tree: Option<u64>,
    /// When it became known, milliseconds of the monotonic clock.
    since_ms: u64,
    /// To be killed whatever becomes of its tree: nobody who died has left it.
    is_stray: bool,
}

/// All trees and all children of the zygote.
#[derive(Debug, Default)]
pub(crate) struct Table {
    trees: BTreeMap<u64, Tree>,
    children: BTreeMap<i32, Child>,
}

impl Table {
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.trees.contains_key(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// A tree begins with its fork. `init` is beside the main process, where that has a PID namespace of its own.
    pub(crate) fn forked(&mut self, id: u64, pid: i32, init: Option<i32>, now_ms: u64) -> Report {
        let tree = Tree { main: pid, main_there: true, orphans: 0, killed: false, is_zygote: false, init };
        self.trees.insert(id, tree);
        for pid in init.into_iter().chain([pid]) {
            self.children.insert(pid, Child { tree: Some(id), since_ms: now_ms, is_stray: false });
        }
        Report::Forked { id, pid }
    }

    /// A tree whose main process is a zygote begins.
    pub(crate) fn forked_zygote(&mut self, id: u64, pid: i32, now_ms: u64) -> Report {
        let report = self.forked(id, pid, None, now_ms);
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.is_zygote = true;
        }
        report
    }

    /// The init of the namespace that a child of the zygote is in, that init included.
    pub(crate) fn init_of(&self, pid: i32) -> Option<i32> {
        self.trees.get(&self.children.get(&pid)?.tree?)?.init
    }

    pub(crate) fn knows(&self, pid: i32) -> bool {
        self.children.contains_key(&pid)
    }

    /// When a child became known.
    pub(crate) fn since_ms(&self, pid: i32) -> Option<u64> {
        self.children.get(&pid).map(|child| child.since_ms)
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = i32> + '_ {
        self.children.keys().copied()
    }

    /// The tree whose main process this is, while that is not reaped.
    pub(crate) fn tree_of_main(&self, pid: i32) -> Option<u64> {
        let id = self.children.get(&pid)?.tree?;
        self.trees.get(&id).filter(|tree| tree.main_there && tree.main == pid).map(|_| id)
    }

    /// Gives each unknown child to a tree; those that are to be killed at once. `dead` are known children that are
    /// dead and not reaped: every unknown one was left by one of them. The session tells most of them apart; the rest
    /// goes to the first of the dead. Who belongs to a tree of which none is dead was made a child of the zygote at once
    /// (`CLONE_PARENT`): a stray that nobody may make.
    pub(crate) fn attribute(&mut self, unknown: &[Entry], dead: &[i32], now_ms: u64) -> Vec<i32> {
        let owners: Vec<u64> =
            dead.iter().filter_map(|pid| self.children.get(pid).and_then(|child| child.tree)).collect();
        for (id, tree) in &mut self.trees {
            // A zygote's workers die with it, and nothing of theirs has anybody who waits for it.
            tree.killed |= tree.is_zygote && dead.contains(&tree.main) && owners.contains(id);
        }
        let mut doomed = Vec::new();
        for entry in unknown {
            if self.children.contains_key(&entry.pid) {
                continue;
            }
            let tree = self.tree_of_session(entry.session).or(owners.first().copied());
            let is_stray = tree.is_none_or(|id| !owners.contains(&id));
            self.children.insert(entry.pid, Child { tree, since_ms: now_ms, is_stray });
            let owner = tree.and_then(|id| self.trees.get_mut(&id));
            if is_stray || owner.as_ref().is_none_or(|owner| owner.killed) {
                doomed.push(entry.pid);
            }
            if let Some(owner) = owner {
                owner.orphans += 1;
            }
        }
        doomed
    }

    /// A number stays taken while a session has it, so at most one tree's session has this one: that of a main
    /// process which is there, else of one that was.
    fn tree_of_session(&self, session: i32) -> Option<u64> {
        self.tree_of_main(session)
            .or_else(|| self.trees.iter().find(|(_, tree)| tree.main == session).map(|(id, _)| *id))
    }

    /// A child was reaped. What the host is told, in order.
    pub(crate) fn reaped(&mut self, pid: i32, reaped: Reaped) -> Vec<Report> {
        let Some(Child { tree: Some(id), .. }) = self.children.remove(&pid) else { return Vec::new() };
        let Some(tree) = self.trees.get_mut(&id) else { return Vec::new() };
        let mut told = Vec::new();
        if tree.main_there && tree.main == pid {
            tree.main_there = false;
            let Reaped { status, cpu_us, max_rss_kib } = reaped;
            let left_behind = tree.orphans > 0;
            told.push(Report::Exited { id, status, cpu_us, max_rss_kib, left_behind });
        } else if tree.init == Some(pid) {
            tree.init = None;
        } else {
            tree.orphans -= 1;
        }
        if !tree.main_there && tree.orphans == 0 && tree.init.is_none() {
            self.trees.remove(&id);
            told.push(Report::Gone { id });
        }
        told
    }

    /// Marks a tree as killed.
    pub(crate) fn kill(&mut self, id: u64) {
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.killed = true;
        }
    }

    /// Marks every tree as killed.
    pub(crate) fn kill_all(&mut self) {
        for tree in self.trees.values_mut() {
            tree.killed = true;
        }
    }

    /// The zygote's children in this tree.
    pub(crate) fn roots_of(&self, id: u64) -> Vec<i32> {
        self.children.iter().filter(|(_, child)| child.tree == Some(id)).map(|(pid, _)| *pid).collect()
    }

    /// The zygote's children that are to die: those of killed trees, and strays.
    pub(crate) fn doomed_roots(&self) -> Vec<i32> {
        let doomed = |child: &Child| {
            child.is_stray || child.tree.is_none_or(|id| self.trees.get(&id).is_none_or(|tree| tree.killed))
        };
        self.children.iter().filter(|(_, child)| doomed(child)).map(|(pid, _)| *pid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Reaped = Reaped { status: 0, cpu_us: 1, max_rss_kib: 2 };

    fn unknown(pid: i32, session: i32) -> Entry {
        Entry { pid, parent: 1, group: session, session, started_ticks: 0 }
    }

    fn exited(id: u64, left_behind: bool) -> Report {
        Report::Exited { id, status: 0, cpu_us: 1, max_rss_kib: 2, left_behind }
    }

    /// Trees 1 and 2 with main processes 10 and 20.
    fn two() -> Table {
        let mut table = Table::default();
        for (id, pid) in [(1, 10), (2, 20)] {
            assert_eq!(table.forked(id, pid, None, 5), Report::Forked { id, pid });
        }
        table
    }

    #[test]
    fn without_orphans_exit_and_gone_come_together() {
        let mut table = two();
        assert_eq!(table.reaped(10, OK), [exited(1, false), Report::Gone { id: 1 }]);
        assert!(!table.contains(1));
        assert!(table.contains(2));
        assert_eq!(table.since_ms(20), Some(5));
    }

    #[test]
    fn gone_waits_for_the_last_orphan_and_for_orphans_of_orphans() {
        let mut table = two();
        assert!(table.attribute(&[unknown(11, 11)], &[10], 6).is_empty());
        assert_eq!(table.reaped(10, OK), [exited(1, true)]);
        assert!(table.attribute(&[unknown(12, 12)], &[11], 6).is_empty());
        assert!(table.reaped(11, OK).is_empty());
        assert_eq!(table.roots_of(1), [12]);
        assert_eq!(table.reaped(12, OK), [Report::Gone { id: 1 }]);
    }

    #[test]
    fn gone_waits_for_the_init_beside_the_main_process() {
        let mut table = two();
        assert_eq!(table.forked(3, 31, Some(30), 5), Report::Forked { id: 3, pid: 31 });
        assert_eq!((table.init_of(31), table.init_of(30), table.init_of(10)), (Some(30), Some(30), None));
        assert_eq!(table.roots_of(3), [30, 31]);
        table.kill(3);
        assert_eq!(table.doomed_roots(), [30, 31]);
        assert_eq!(table.reaped(31, OK), [exited(3, false)]);
        assert_eq!((table.init_of(31), table.init_of(30)), (None, Some(30)));
        assert_eq!(table.reaped(30, OK), [Report::Gone { id: 3 }]);
        assert!(!table.contains(3) && !table.knows(30));
    }

    #[test]
    fn the_session_decides_between_two_that_died_together() {
        let mut table = two();
        table.attribute(&[unknown(21, 20), unknown(11, 10), unknown(31, 31)], &[10, 20], 6);
        assert_eq!(table.roots_of(1), [10, 11, 31]);
        assert_eq!(table.roots_of(2), [20, 21]);
    }

    #[test]
    fn orphans_of_a_killed_tree_are_doomed_and_those_of_its_sibling_are_not() {
        let mut table = two();
        table.kill(1);
        assert_eq!(table.attribute(&[unknown(11, 10), unknown(21, 20)], &[10, 20], 6), [11]);
        assert_eq!(table.doomed_roots(), [10, 11]);
        table.reaped(10, OK);
        assert_eq!(table.doomed_roots(), [11]);
    }

    #[test]
    fn a_child_that_nobody_dead_can_have_left_is_a_stray() {
        let mut table = two();
        assert_eq!(table.attribute(&[unknown(99, 99)], &[], 6), [99]);
        assert_eq!(table.doomed_roots(), [99]);
        assert!(table.reaped(99, OK).is_empty());
        assert!(!table.knows(99));
    }

    #[test]
    fn who_has_a_living_trees_session_and_was_left_by_nobody_is_a_stray_of_that_tree() {
        let mut table = two();
        assert_eq!(table.attribute(&[unknown(11, 10)], &[20], 6), [11]);
        assert_eq!((table.roots_of(1), table.doomed_roots()), (vec![10, 11], vec![11]));
        assert!(table.reaped(11, OK).is_empty());
        assert_eq!(table.reaped(10, OK), [exited(1, false), Report::Gone { id: 1 }]);
    }

    #[test]
    fn what_a_dead_zygote_leaves_is_doomed() {
        let mut table = two();
        table.forked_zygote(3, 30, 5);
        assert_eq!(table.attribute(&[unknown(31, 31), unknown(21, 20)], &[30, 20], 6), [31]);
        assert_eq!(table.reaped(30, OK), [exited(3, true)]);
        assert_eq!(table.attribute(&[unknown(32, 32)], &[31], 6), [32]);
        table.reaped(31, OK);
        assert_eq!(table.reaped(32, OK), [Report::Gone { id: 3 }]);
    }

    #[test]
    fn killing_all_dooms_all_and_what_is_unknown_is_ignored() {
        let mut table = two();
        table.kill(9);
        assert!(table.doomed_roots().is_empty());
        assert!(table.reaped(99, OK).is_empty());
        table.kill_all();
        assert_eq!(table.doomed_roots(), [10, 20]);
        table.reaped(10, OK);
        table.reaped(20, OK);
        assert!(table.is_empty());
    }
}
