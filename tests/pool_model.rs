//! The pool's state machine against a model that keeps one plain list of everything that ever was.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use native_sandbox_executor::pool::{
    Counts, Policy, PoolKey,
    state::{Answer, InstallId, Leased, SandboxId, State, WaiterId},
};
use proptest::prelude::*;

const MAX_SANDBOXES: usize = 4;

#[derive(Debug, Clone)]
enum Op {
    Lease {
        key: usize,
        policy: Policy,
    },
    /// Which one, modulo their number.
    Installed(usize),
    InstallFailed(usize),
    Leave(usize),
    Release(usize),
    Retire(usize),
    Pass {
        ms: u64,
    },
    Sweep,
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let policy = (prop::sample::select(vec![0_u64, 10, 40]), 0..5_u32)
        .prop_map(|(ttl, max_use_count)| Policy { ttl: Duration::from_millis(ttl), max_use_count });
    prop_oneof![
        8 => (0..7_usize, policy).prop_map(|(key, policy)| Op::Lease { key, policy }),
        4 => any::<usize>().prop_map(Op::Installed),
        1 => any::<usize>().prop_map(Op::InstallFailed),
        2 => any::<usize>().prop_map(Op::Leave),
        6 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::Retire),
        2 => (0..20_u64).prop_map(|ms| Op::Pass { ms }),
        1 => Just(Op::Sweep),
        1 => Just(Op::Drain),
    ]
}

/// What an install gives.
type Tree = usize;

#[derive(Debug)]
struct Sandbox {
    key: usize,
    id: Option<SandboxId>,
    tree: Tree,
    policy: Policy,
    leases: usize,
    use_count: u32,
    last_used: Instant,
    retired: bool,
    removed: bool,
}

#[derive(Debug)]
struct Install {
    id: InstallId,
    key: usize,
    policy: Policy,
    waiters: Vec<WaiterId>,
    retired: bool,
}

struct Model {
    now: Instant,
    sandboxes: Vec<Sandbox>,
    installs: Vec<Install>,
    /// One tree for each lease.
    leases: Vec<Tree>,
    trees: usize,
}

impl Model {
    fn is_over(&self, sandbox: &Sandbox, policy: Policy) -> bool {
        sandbox.use_count >= policy.max_use_count || self.now - sandbox.last_used >= policy.ttl
    }

    fn current(&self, key: usize) -> Option<usize> {
        let mut found =
            (0..self.sandboxes.len()).filter(|&i| self.sandboxes[i].key == key && !self.sandboxes[i].retired);
        let current = found.next();
        assert_eq!(found.next(), None, "two current sandboxes of one key");
        current
    }

    fn use_once(&mut self, i: usize) {
        let now = self.now;
        let sandbox = &mut self.sandboxes[i];
        assert!(!sandbox.removed);
        sandbox.use_count += 1;
        sandbox.leases += 1;
        sandbox.last_used = now;
        self.leases.push(sandbox.tree);
    }

    /// Removes what nobody can use any more, then what is above the limit.
    fn settle(&mut self, removed: &mut Vec<Tree>) {
        for sandbox in &mut self.sandboxes {
            if sandbox.retired && sandbox.leases == 0 && !sandbox.removed {
                sandbox.removed = true;
                removed.push(sandbox.tree);
            }
        }
    }

    fn evict(&mut self, removed: &mut Vec<Tree>) {
        loop {
            let kept = self.sandboxes.iter().filter(|sandbox| !sandbox.removed);
            let idle = kept.clone().filter(|sandbox| sandbox.leases == 0);
            let Some(oldest) = idle.min_by_key(|s| (s.last_used, s.tree)).map(|s| s.tree) else { break };
            if kept.count() + self.installs.len() <= MAX_SANDBOXES {
                break;
            }
            self.sandboxes[oldest].retired = true;
            self.settle(removed);
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            ready: self.sandboxes.iter().filter(|sandbox| !sandbox.retired).count(),
            retired: self.sandboxes.iter().filter(|sandbox| sandbox.retired && !sandbox.removed).count(),
            installing: self.installs.len(),
            waiting: self.installs.iter().map(|install| install.waiters.len()).sum(),
            leases: self.leases.len(),
        }
    }
}

/// Model and machine side by side.
struct Pair {
    keys: Vec<PoolKey>,
    state: State<Tree>,
    model: Model,
    removed: HashSet<Tree>,
}

impl Pair {
    fn new() -> Self {
        let key = |i: usize| PoolKey::new(&BTreeMap::from([("a".into(), i.to_string())]), "scope");
        let model = Model {
            now: Instant::now(),
            sandboxes: Vec::new(),
            installs: Vec::new(),
            leases: Vec::new(),
            trees: 0,
        };
        Self {
            keys: (0..7).map(key).collect(),
            state: State::new(MAX_SANDBOXES),
            model,
            removed: HashSet::new(),
        }
    }

    fn same_removals(&mut self, mut removals: Vec<Tree>, mut expected: Vec<Tree>) {
        for &tree in &removals {
            assert!(!self.model.leases.contains(&tree), "tree {tree} is leased");
            assert!(self.removed.insert(tree), "tree {tree} was removed before");
        }
        removals.sort_unstable();
        expected.sort_unstable();
        assert_eq!(removals, expected);
    }

    fn lease(&mut self, key: usize, policy: Policy) {
        let (answer, removals) = self.state.lease(&self.keys[key], policy, self.model.now);
        let mut expected = Vec::new();
        let installing = |install: &Install| install.key == key && !install.retired;
        if let Some(install) = self.model.installs.iter_mut().find(|install| installing(install)) {
            let Answer::WaitFor(id, waiter) = answer else { panic!("{answer:?}") };
            assert_eq!(id, install.id);
            install.waiters.push(waiter);
            return self.same_removals(removals, expected);
        }
        if let Some(i) = self.model.current(key) {
            let sandbox = &self.model.sandboxes[i];
            if !self.model.is_over(sandbox, policy) {
                let leased = Leased {
                    sandbox: sandbox.id.unwrap(),
                    tree: sandbox.tree,
                    use_count: sandbox.use_count + 1,
                    last_used: sandbox.last_used,
                };
                assert_eq!(answer, Answer::Leased(leased));
                self.model.sandboxes[i].policy = policy;
                self.model.use_once(i);
                return self.same_removals(removals, expected);
            }
            self.model.sandboxes[i].retired = true;
            self.model.settle(&mut expected);
        }
        let Answer::MustInstall(id, waiter) = answer else { panic!("{answer:?}") };
        self.model.installs.push(Install { id, key, policy, waiters: vec![waiter], retired: false });
        self.model.evict(&mut expected);
        self.same_removals(removals, expected);
    }

    fn installed(&mut self, i: usize) {
        let install = self.model.installs.remove(i);
        let tree = self.model.trees;
        self.model.trees += 1;
        let (leased, removals) = self.state.installed(install.id, tree, self.model.now);
        self.model.sandboxes.push(Sandbox {
            key: install.key,
            id: Some(leased[0].1.sandbox),
            tree,
            policy: install.policy,
            leases: 0,
            use_count: 0,
            last_used: self.model.now,
            retired: install.retired,
            removed: false,
        });
        assert_eq!(leased.len(), install.waiters.len(), "every one that waits gets it");
        for ((waiter, leased), expected) in leased.into_iter().zip(install.waiters) {
            assert_eq!((waiter, leased.tree, leased.last_used), (expected, tree, self.model.now));
            self.model.use_once(tree);
            assert_eq!(leased.use_count, self.model.sandboxes[tree].use_count);
        }
        self.same_removals(removals, Vec::new());
    }

    fn leave(&mut self, i: usize) {
        let all: Vec<_> = self
            .model
            .installs
            .iter()
            .flat_map(|install| install.waiters.iter().map(|&waiter| (install.id, waiter)))
            .collect();
        if all.is_empty() {
            return;
        }
        let (id, waiter) = all[i % all.len()];
        let install = self.model.installs.iter_mut().find(|install| install.id == id).unwrap();
        install.waiters.retain(|&other| other != waiter);
        let last = install.waiters.is_empty();
        assert_eq!(self.state.leave(id, waiter), last);
        if last {
            self.model.installs.retain(|install| install.id != id);
            // It may have ended before the cancellation reached it.
            let tree = self.model.trees;
            self.model.trees += 1;
            let (leased, removals) = self.state.installed(id, tree, self.model.now);
            assert_eq!(leased, []);
            let nobodys = Sandbox {
                key: usize::MAX,
                id: None,
                tree,
                policy: Policy { ttl: Duration::ZERO, max_use_count: 0 },
                leases: 0,
                use_count: 0,
                last_used: self.model.now,
                retired: true,
                removed: true,
            };
            self.model.sandboxes.push(nobodys);
            self.same_removals(removals, vec![tree]);
        }
    }

    fn release(&mut self, i: usize) {
        let tree = self.model.leases.swap_remove(i);
        let sandbox = &mut self.model.sandboxes[tree];
        sandbox.leases -= 1;
        sandbox.last_used = self.model.now;
        let removals = self.state.release(sandbox.id.unwrap(), self.model.now);
        let mut expected = Vec::new();
        self.model.settle(&mut expected);
        if self.model.sandboxes[tree].leases == 0 {
            self.model.evict(&mut expected);
        }
        self.same_removals(removals, expected);
    }

    fn sweep(&mut self) {
        let over: Vec<Tree> = self
            .model
            .sandboxes
            .iter()
            .filter(|s| s.leases == 0 && !s.retired && self.model.is_over(s, s.policy))
            .map(|s| s.tree)
            .collect();
        for &tree in &over {
            self.model.sandboxes[tree].retired = true;
        }
        let mut expected = Vec::new();
        self.model.settle(&mut expected);
        let removals = self.state.sweep(self.model.now);
        self.same_removals(removals, expected);
    }

    fn drain(&mut self) {
        for sandbox in &mut self.model.sandboxes {
            sandbox.retired = true;
        }
        for install in &mut self.model.installs {
            install.retired = true;
        }
        let mut expected = Vec::new();
        self.model.settle(&mut expected);
        let removals = self.state.drain();
        self.same_removals(removals, expected);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Lease { key, policy } => self.lease(key, policy),
            Op::Installed(i) if !self.model.installs.is_empty() => {
                self.installed(i % self.model.installs.len());
            }
            Op::InstallFailed(i) if !self.model.installs.is_empty() => {
                let install = self.model.installs.remove(i % self.model.installs.len());
                let told: Vec<_> = self.state.install_failed(install.id).into_iter().collect();
                assert_eq!(told, install.waiters, "every one that waits is told");
            }
            Op::Leave(i) => self.leave(i),
            Op::Release(i) if !self.model.leases.is_empty() => self.release(i % self.model.leases.len()),
            Op::Retire(i) if !self.model.sandboxes.is_empty() => {
                let i = i % self.model.sandboxes.len();
                let Some(id) = self.model.sandboxes[i].id else { return };
                self.model.sandboxes[i].retired = true;
                let mut expected = Vec::new();
                self.model.settle(&mut expected);
                let removals = self.state.retire(id).into_iter().collect();
                self.same_removals(removals, expected);
            }
            Op::Pass { ms } => self.model.now += Duration::from_millis(ms),
            Op::Sweep => self.sweep(),
            Op::Drain => self.drain(),
            Op::Installed(_) | Op::InstallFailed(_) | Op::Release(_) | Op::Retire(_) => {}
        }
        assert_eq!(self.state.counts(), self.model.counts());
        let Counts { ready, retired, installing, .. } = self.state.counts();
        let leased = self.model.sandboxes.iter().filter(|sandbox| sandbox.leases > 0).count();
        assert!(ready + retired + installing <= MAX_SANDBOXES.max(leased + installing));
    }

    fn finish(mut self) {
        while !self.model.installs.is_empty() {
            self.step(&Op::Installed(0));
        }
        while !self.model.leases.is_empty() {
            self.step(&Op::Release(0));
        }
        self.step(&Op::Drain);
        assert_eq!(self.state.counts(), Counts::default());
        assert_eq!(self.removed.len(), self.model.trees, "every tree was removed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model(ops in prop::collection::vec(op(), 0..150)) {
        let mut pair = Pair::new();
        for op in ops {
            pair.step(&op);
        }
        pair.finish();
    }
}
