//! What runs: which child belongs to which tree, and what the host is to be told. Pure.
//!
//! A live main process is its own subreaper, so whatever it starts stays below it. When it dies, what it left becomes
//! the launcher's: a child that the launcher did not start belongs to a dead process of some tree.

use std::collections::BTreeMap;

use native_sandbox_protocol::{FromLauncher, Step};

use crate::{proc::Entry, sys::Reaped};

/// How far a tree has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Forked; its program does not run yet.
    Starting,
    Running,
    /// It never ran, and the host knows.
    Failed,
}

#[derive(Debug)]
struct Tree {
    main: i32,
    /// Until the main process is reaped its number is its own, and its group's.
    main_there: bool,
    /// Children of the launcher that the main process, or one of them, left behind.
    orphans: usize,
    stage: Stage,
    killed: bool,
    /// It forks processes itself: what they leave is nobody's once it is dead.
    is_zygote: bool,
}

/// A child not yet reaped.
#[derive(Debug, Clone, Copy)]
struct Child {
    /// None for one that cannot be anybody's.
    tree: Option<u64>,
    /// To be killed whatever becomes of its tree: nobody who died has left it.
    is_stray: bool,
}

/// All trees and all children of the launcher.
#[derive(Debug, Default)]
pub(crate) struct Table {
    trees: BTreeMap<u64, Tree>,
    children: BTreeMap<i32, Child>,
}

/// What became of children that the launcher did not start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributed {
    /// To be killed: they belong to a tree that is being killed, or to none.
    pub(crate) doomed: Vec<i32>,
}

impl Table {
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.trees.contains_key(&id)
    }

    /// A tree begins with its fork.
    pub(crate) fn forked(&mut self, id: u64, pid: i32, is_zygote: bool) -> FromLauncher {
        let (stage, killed) = (Stage::Starting, false);
        let tree = Tree { main: pid, main_there: true, orphans: 0, stage, killed, is_zygote };
        self.trees.insert(id, tree);
        self.children.insert(pid, Child { tree: Some(id), is_stray: false });
        FromLauncher::Forked { id, pid }
    }

    /// Its program runs.
    pub(crate) fn started(&mut self, id: u64) -> Option<FromLauncher> {
        let tree = self.trees.get_mut(&id)?;
        tree.stage = Stage::Running;
        Some(FromLauncher::Started { id })
    }

    /// Its program could not be started; nothing more is told about it.
    pub(crate) fn failed(
        &mut self,
        id: u64,
        step: Step,
        subject: Vec<u8>,
        errno: i32,
    ) -> Option<FromLauncher> {
        let tree = self.trees.get_mut(&id)?;
        tree.stage = Stage::Failed;
        Some(FromLauncher::SpawnFailed { id, step, subject, errno })
    }

    /// The tree whose main process this is, while that is not reaped.
    pub(crate) fn tree_of_main(&self, pid: i32) -> Option<u64> {
        let id = self.children.get(&pid)?.tree?;
        self.trees.get(&id).filter(|tree| tree.main_there && tree.main == pid).map(|_| id)
    }

    pub(crate) fn knows(&self, pid: i32) -> bool {
        self.children.contains_key(&pid)
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = i32> + '_ {
        self.children.keys().copied()
    }

    /// Gives each unknown child to a tree. `dead` are known children that are dead and not reaped: every unknown
    /// one was left by one of them. The session tells most of them apart; of the rest the first of the dead is the owner.
    /// Who belongs to a tree of which none is dead was made a child of the launcher at once (`CLONE_PARENT`): a stray
    /// that nobody may make.
    pub(crate) fn attribute(&mut self, unknown: &[Entry], dead: &[i32]) -> Attributed {
        let owners: Vec<u64> =
            dead.iter().filter_map(|pid| self.children.get(pid).and_then(|child| child.tree)).collect();
        for (id, tree) in &mut self.trees {
            // A zygote's workers die with it, and nothing of theirs has anybody who waits for it.
            tree.killed |= tree.is_zygote && dead.contains(&tree.main) && owners.contains(id);
        }
        let mut attributed = Attributed::default();
        for entry in unknown {
            if self.children.contains_key(&entry.pid) {
                continue;
            }
            let owner = self.tree_of_session(entry.session).or(owners.first().copied());
            let is_stray = owner.is_none_or(|id| !owners.contains(&id));
            self.children.insert(entry.pid, Child { tree: owner, is_stray });
            let tree = owner.and_then(|id| self.trees.get_mut(&id));
            if is_stray || tree.as_ref().is_none_or(|tree| tree.killed) {
                attributed.doomed.push(entry.pid);
            }
            if let Some(tree) = tree {
                tree.orphans += 1;
            }
        }
        attributed
    }

    /// A number stays taken while a session has it, so at most one tree's session has this one: that of a main
    /// process which is there, else of one that was.
    fn tree_of_session(&self, session: i32) -> Option<u64> {
        self.tree_of_main(session)
            .or_else(|| self.trees.iter().find(|(_, tree)| tree.main == session).map(|(id, _)| *id))
    }

    /// A child was reaped. What the host is told, in order.
    pub(crate) fn reaped(&mut self, pid: i32, reaped: Reaped) -> Vec<FromLauncher> {
        let Some(Child { tree: Some(id), .. }) = self.children.remove(&pid) else { return Vec::new() };
        let Some(tree) = self.trees.get_mut(&id) else { return Vec::new() };
        let mut told = Vec::new();
        if tree.main_there && tree.main == pid {
            tree.main_there = false;
            let Reaped { status, cpu_us, max_rss_kib } = reaped;
            let left_behind = tree.orphans > 0;
            told.push(FromLauncher::Exited { id, status, cpu_us, max_rss_kib, left_behind });
        } else {
            tree.orphans -= 1;
        }
        let gone = !tree.main_there && tree.orphans == 0;
        if gone {
            told.push(FromLauncher::Gone { id });
        }
        if tree.stage == Stage::Failed {
            told.clear();
        }
        if gone {
            self.trees.remove(&id);
        }
        told
    }

    /// Marks a tree as killed; its main process, if that is still there.
    pub(crate) fn kill(&mut self, id: u64) -> Option<i32> {
        let tree = self.trees.get_mut(&id)?;
        tree.killed = true;
        tree.main_there.then_some(tree.main)
    }

    /// Marks every tree as killed.
    pub(crate) fn kill_all(&mut self) {
        for tree in self.trees.values_mut() {
            tree.killed = true;
        }
    }

    /// The main process of a tree, if it is still there.
    pub(crate) fn main_of(&self, id: u64) -> Option<i32> {
        self.trees.get(&id).filter(|tree| tree.main_there).map(|tree| tree.main)
    }

    /// The launcher's children in this tree.
    pub(crate) fn roots_of(&self, id: u64) -> Vec<i32> {
        self.children.iter().filter(|(_, child)| child.tree == Some(id)).map(|(pid, _)| *pid).collect()
    }

    /// The launcher's children that are to die: those of killed trees, and strays.
    pub(crate) fn doomed_roots(&self) -> Vec<i32> {
        let doomed = |child: &Child| {
            child.is_stray || child.tree.is_none_or(|id| self.trees.get(&id).is_none_or(|tree| tree.killed))
        };
        self.children.iter().filter(|(_, child)| doomed(child)).map(|(pid, _)| *pid).collect()
    }
}

#[cfg(test)]
mod tests {
    use native_sandbox_protocol::Status;

    use super::*;

    const OK: Reaped = Reaped { status: Status::Code(0), cpu_us: 1, max_rss_kib: 2 };

    fn unknown(pid: i32, session: i32) -> Entry {
        Entry { pid, zombie: false, parent: 1, group: session, session, threads: 1, started_ticks: 0 }
    }

    fn exited(id: u64, left_behind: bool) -> FromLauncher {
        FromLauncher::Exited { id, status: Status::Code(0), cpu_us: 1, max_rss_kib: 2, left_behind }
    }

    /// Trees 1 and 2 with main processes 10 and 20.
    fn two() -> Table {
        let mut table = Table::default();
        for (id, pid) in [(1, 10), (2, 20)] {
            assert_eq!(table.forked(id, pid, false), FromLauncher::Forked { id, pid });
            assert_eq!(table.started(id), Some(FromLauncher::Started { id }));
        }
        table
    }

    #[test]
    fn without_orphans_exit_and_gone_come_together() {
        let mut table = two();
        assert_eq!(table.reaped(10, OK), [exited(1, false), FromLauncher::Gone { id: 1 }]);
        assert!(!table.contains(1));
        assert!(table.contains(2));
    }

    #[test]
    fn gone_waits_for_the_last_orphan_and_for_orphans_of_orphans() {
        let mut table = two();
        assert!(table.attribute(&[unknown(11, 11)], &[10]).doomed.is_empty());
        assert_eq!(table.reaped(10, OK), [exited(1, true)]);
        assert!(table.attribute(&[unknown(12, 12)], &[11]).doomed.is_empty());
        assert!(table.reaped(11, OK).is_empty());
        assert_eq!(table.roots_of(1), [12]);
        assert_eq!(table.reaped(12, OK), [FromLauncher::Gone { id: 1 }]);
    }

    #[test]
    fn the_session_decides_between_two_that_died_together() {
        let mut table = two();
        table.attribute(&[unknown(21, 20), unknown(11, 10), unknown(31, 31)], &[10, 20]);
        assert_eq!(table.roots_of(1), [10, 11, 31]);
        assert_eq!(table.roots_of(2), [20, 21]);
    }

    #[test]
    fn the_session_of_a_reaped_main_still_counts_and_a_new_one_of_that_number_counts_more() {
        let mut table = two();
        table.attribute(&[unknown(11, 10)], &[10]);
        table.reaped(10, OK);
        table.attribute(&[unknown(12, 10)], &[20]);
        assert_eq!(table.roots_of(1), [11, 12]);
        table.forked(3, 10, false);
        table.attribute(&[unknown(13, 10)], &[20]);
        assert_eq!(table.roots_of(3), [10, 13]);
    }

    #[test]
    fn orphans_of_a_killed_tree_are_doomed_and_those_of_its_sibling_are_not() {
        let mut table = two();
        assert_eq!(table.kill(1), Some(10));
        assert_eq!(table.attribute(&[unknown(11, 10), unknown(21, 20)], &[10, 20]).doomed, [11]);
        assert_eq!(table.doomed_roots(), [10, 11]);
        table.reaped(10, OK);
        assert_eq!(table.kill(1), None);
        assert_eq!(table.doomed_roots(), [11]);
        assert_eq!(table.kill(9), None);
    }

    #[test]
    fn a_child_that_nobody_dead_can_have_left_is_a_stray() {
        let mut table = two();
        assert_eq!(table.attribute(&[unknown(99, 99)], &[]).doomed, [99]);
        assert_eq!(table.doomed_roots(), [99]);
        assert!(table.reaped(99, OK).is_empty());
        assert!(!table.knows(99));
    }

    #[test]
    fn who_has_a_living_trees_session_and_was_left_by_nobody_is_a_stray_of_that_tree() {
        let mut table = two();
        assert_eq!(table.attribute(&[unknown(11, 10)], &[20]).doomed, [11]);
        assert_eq!((table.roots_of(1), table.doomed_roots()), (vec![10, 11], vec![11]));
        assert!(table.reaped(11, OK).is_empty());
        assert_eq!(table.reaped(10, OK), [exited(1, false), FromLauncher::Gone { id: 1 }]);
    }

    #[test]
    fn what_a_dead_zygote_leaves_is_doomed() {
        let mut table = two();
        table.forked(3, 30, true);
        table.started(3);
        assert_eq!(table.attribute(&[unknown(31, 31), unknown(21, 20)], &[30, 20]).doomed, [31]);
        assert_eq!(table.reaped(30, OK), [exited(3, true)]);
        assert_eq!(table.attribute(&[unknown(32, 32)], &[31]).doomed, [32]);
        table.reaped(31, OK);
        assert_eq!(table.reaped(32, OK), [FromLauncher::Gone { id: 3 }]);
    }

    #[test]
    fn a_failed_start_is_told_once() {
        let mut table = Table::default();
        table.forked(1, 10, false);
        let told = table.failed(1, Step::Exec, b"/x".to_vec(), 2);
        assert_eq!(
            told,
            Some(FromLauncher::SpawnFailed { id: 1, step: Step::Exec, subject: b"/x".to_vec(), errno: 2 })
        );
        assert!(table.reaped(10, OK).is_empty());
        assert!(!table.contains(1));
    }

    #[test]
    fn what_is_unknown_is_ignored() {
        let mut table = Table::default();
        assert_eq!(table.started(1), None);
        assert_eq!(table.failed(1, Step::Exec, Vec::new(), 2), None);
        assert!(table.reaped(10, OK).is_empty());
        assert!(table.roots_of(1).is_empty());
        assert_eq!(table.main_of(1), None);
    }

    #[test]
    fn killing_all_dooms_all() {
        let mut table = two();
        table.kill_all();
        assert_eq!(table.doomed_roots(), [10, 20]);
        assert_eq!(table.children().collect::<Vec<_>>(), [10, 20]);
    }
}
