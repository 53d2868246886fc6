//! Which sandboxes there are, who uses them, and when they go. Pure: time is an argument, removal is the caller's.
//!
//! The rules:
//!
//! - A key has at most one current sandbox or one install. Who comes while it installs waits for it.
//! - A sandbox serves until its time to live has passed since its last use (the start or the end of a lease) or it was
//!   used often enough; the next call then installs anew. Leases on the old one go on.
//! - All who waited for an install get what it gave, even where that is more uses than allowed: one install for all.
//! - What is leased is never removed. Every tree that was handed in is handed out for removal exactly once.
//! - At the limit the least recently used idle sandboxes go. Leased ones can exceed it: each belongs to a running call.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use super::key::PoolKey;

/// Until when a sandbox may be lent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Time since the last use.
    pub ttl: Duration,
    /// Uses in all, that of the call that installed it included. 0 is as 1.
    pub max_use_count: u32,
}

/// A sandbox, current or retired. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(u64);

/// An install that is under way. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstallId(u64);

/// A call that waits for an install. Never reused; a later call has a greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(u64);

/// One lease; to be ended by [`State::release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased<T> {
    /// What is leased.
    pub sandbox: SandboxId,
    /// Its tree.
    pub tree: T,
    /// Uses so far, this one included.
    pub use_count: u32,
    /// The last use before this one; for the first, the end of the install.
    pub last_used: Instant,
}

/// The answer to [`State::lease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    /// The sandbox was there.
    Leased(Leased<T>),
    /// An install is under way; the caller waits for it.
    WaitFor(InstallId, WaiterId),
    /// The caller has to start an install, and waits for it.
    MustInstall(InstallId, WaiterId),
}

/// How many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sandboxes that can be leased.
    pub ready: usize,
    /// Sandboxes that cannot be leased any more, and are leased still.
    pub retired: usize,
    /// Installs under way.
    pub installing: usize,
    /// Calls that wait for them.
    pub waiting: usize,
    /// Leases.
    pub leases: usize,
}

/// All sandboxes of a process. `T` is a handle of a tree; its clones are for leases only.
#[derive(Debug)]
pub struct State<T> {
    current: HashMap<PoolKey, Current>,
    sandboxes: HashMap<SandboxId, Sandbox<T>>,
    installs: HashMap<InstallId, Install>,
    /// The current sandboxes without a lease, the least recently used first.
    idle: BTreeSet<(Instant, SandboxId)>,
    max_sandboxes: usize,
    next_id: u64,
}

#[derive(Debug, Clone, Copy)]
enum Current {
    Ready(SandboxId),
    Installing(InstallId),
}

#[derive(Debug)]
struct Sandbox<T> {
    key: PoolKey,
    tree: T,
    /// Of its last lease.
    policy: Policy,
    leases: u32,
    use_count: u32,
    last_used: Instant,
    retired: bool,
}

#[derive(Debug)]
struct Install {
    key: PoolKey,
    policy: Policy,
    /// Never empty.
    waiters: BTreeSet<WaiterId>,
    /// What it gives is for its waiters only.
    retired: bool,
}

impl<T> Sandbox<T> {
    fn is_over(&self, policy: Policy, now: Instant) -> bool {
        self.use_count >= policy.max_use_count || now.saturating_duration_since(self.last_used) >= policy.ttl
    }

    fn touch(&mut self, now: Instant) {
        self.last_used = self.last_used.max(now);
    }
}

impl<T: Clone> State<T> {
    /// An empty pool that keeps at most so many sandboxes, installs included.
    pub fn new(max_sandboxes: usize) -> Self {
        Self {
            current: HashMap::new(),
            sandboxes: HashMap::new(),
            installs: HashMap::new(),
            idle: BTreeSet::new(),
            max_sandboxes,
            next_id: 0,
        }
    }

    /// Leases the key's sandbox, or tells what to wait for. Also returns the trees to remove.
    pub fn lease(&mut self, key: &PoolKey, policy: Policy, now: Instant) -> (Answer<T>, Vec<T>) {
        let mut removals = Vec::new();
        match self.current.get(key) {
            Some(&Current::Installing(install)) => {
                let waiter = WaiterId(self.take_id());
                if let Some(install) = self.installs.get_mut(&install) {
                    install.waiters.insert(waiter);
                }
                return (Answer::WaitFor(install, waiter), removals);
            }
            Some(&Current::Ready(id)) => {
                if let Some(leased) = self.use_again(id, policy, now) {
                    return (Answer::Leased(leased), removals);
                }
                removals.extend(self.retire(id));
            }
            None => {}
        }
        let (install, waiter) = (InstallId(self.take_id()), WaiterId(self.take_id()));
        self.current.insert(key.clone(), Current::Installing(install));
        let waiters = BTreeSet::from([waiter]);
        self.installs.insert(install, Install { key: key.clone(), policy, waiters, retired: false });
        removals.extend(self.evict());
        (Answer::MustInstall(install, waiter), removals)
    }

    /// Takes what an install gave, and leases it to all who wait, in the order in which they came. An install that
    /// everybody left is unknown: what it gave all the same is to be removed.
    pub fn installed(
        &mut self,
        id: InstallId,
        tree: T,
        now: Instant,
    ) -> (Vec<(WaiterId, Leased<T>)>, Vec<T>) {
        let Some(install) = self.installs.remove(&id) else { return (Vec::new(), vec![tree]) };
        let sandbox = SandboxId(self.take_id());
        if !install.retired {
            self.current.insert(install.key.clone(), Current::Ready(sandbox));
        }
        let leased: Vec<_> = (1..)
            .zip(install.waiters)
            .map(|(use_count, waiter)| {
                (waiter, Leased { sandbox, tree: tree.clone(), use_count, last_used: now })
            })
            .collect();
        let uses = leased.last().map_or(0, |(_, leased)| leased.use_count);
        let state = Sandbox {
            key: install.key,
            tree,
            policy: install.policy,
            leases: uses,
            use_count: uses,
            last_used: now,
            retired: install.retired,
        };
        self.sandboxes.insert(sandbox, state);
        (leased, Vec::new())
    }

    /// Ends an install that gave nothing. Returns those who waited for it; the next call installs again.
    pub fn install_failed(&mut self, id: InstallId) -> BTreeSet<WaiterId> {
        self.end_install(id).map(|install| install.waiters).unwrap_or_default()
    }

    /// A call waits no more. Returns whether it was the last: then the install is to be cancelled, and is unknown here
    /// from now on.
    pub fn leave(&mut self, id: InstallId, waiter: WaiterId) -> bool {
        let Some(install) = self.installs.get_mut(&id) else { return false };
        install.waiters.remove(&waiter);
        let last = install.waiters.is_empty();
        if last {
            self.end_install(id);
        }
        last
    }

    /// Ends one lease. Returns the trees to remove.
    pub fn release(&mut self, id: SandboxId, now: Instant) -> Vec<T> {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return Vec::new() };
        sandbox.leases = sandbox.leases.saturating_sub(1);
        sandbox.touch(now);
        if sandbox.leases > 0 {
            return Vec::new();
        }
        if sandbox.retired {
            return self.sandboxes.remove(&id).map(|sandbox| sandbox.tree).into_iter().collect();
        }
        self.idle.insert((sandbox.last_used, id));
        self.evict()
    }

    /// Lends the sandbox to nobody any more; what is unknown or retired is left as it is. Returns its tree if it can be
    /// removed at once.
    pub fn retire(&mut self, id: SandboxId) -> Option<T> {
        let sandbox = self.sandboxes.get_mut(&id).filter(|sandbox| !sandbox.retired)?;
        self.current.remove(&sandbox.key);
        if sandbox.leases > 0 {
            sandbox.retired = true;
            return None;
        }
        self.idle.remove(&(sandbox.last_used, id));
        self.sandboxes.remove(&id).map(|sandbox| sandbox.tree)
    }

    /// Takes out the idle sandboxes that are over by the policy of their last lease.
    pub fn sweep(&mut self, now: Instant) -> Vec<T> {
        let is_over = |id: &SandboxId| {
            self.sandboxes.get(id).is_some_and(|sandbox| sandbox.is_over(sandbox.policy, now))
        };
        let over: Vec<SandboxId> = self.idle.iter().map(|&(_, id)| id).filter(is_over).collect();
        over.into_iter().filter_map(|id| self.retire(id)).collect()
    }

    /// Retires everything; installs under way go on for those who wait for them. Returns the trees of the idle ones.
    pub fn drain(&mut self) -> Vec<T> {
        for install in self.installs.values_mut() {
            install.retired = true;
        }
        let ids: Vec<SandboxId> = self.sandboxes.keys().copied().collect();
        let removals = ids.into_iter().filter_map(|id| self.retire(id)).collect();
        self.current.clear();
        removals
    }

    /// How many there are of each kind.
    pub fn counts(&self) -> Counts {
        let retired = self.sandboxes.values().filter(|sandbox| sandbox.retired).count();
        Counts {
            ready: self.sandboxes.len() - retired,
            retired,
            installing: self.installs.len(),
            waiting: self.installs.values().map(|install| install.waiters.len()).sum(),
            leases: self.sandboxes.values().map(|sandbox| sandbox.leases as usize).sum(),
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn use_again(&mut self, id: SandboxId, policy: Policy, now: Instant) -> Option<Leased<T>> {
        let sandbox = self.sandboxes.get_mut(&id).filter(|sandbox| !sandbox.is_over(policy, now))?;
        let last_used = sandbox.last_used;
        if sandbox.leases == 0 {
            self.idle.remove(&(last_used, id));
        }
        sandbox.leases += 1;
        sandbox.use_count = sandbox.use_count.saturating_add(1);
        sandbox.policy = policy;
        sandbox.touch(now);
        Some(Leased { sandbox: id, tree: sandbox.tree.clone(), use_count: sandbox.use_count, last_used })
    }

    fn end_install(&mut self, id: InstallId) -> Option<Install> {
        let install = self.installs.remove(&id)?;
        if !install.retired {
            self.current.remove(&install.key);
        }
        Some(install)
    }

    fn evict(&mut self) -> Vec<T> {
        let mut removals = Vec::new();
        while self.sandboxes.len() + self.installs.len() > self.max_sandboxes
            && let Some(&(_, id)) = self.idle.first()
        {
            removals.extend(self.retire(id));
        }
        removals
    }
}
