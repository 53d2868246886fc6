//! Lending of a provider's sandboxes: [`State`] with what remote ones need besides. They end by themselves, so a lease is
//! given only where enough of their life is left; they cost money, so there are few of them; and what happened to a call
//! decides whether another one may have the same. Pure: time is an argument, and what is to be done is the answer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use crate::pool::{
    Counts, Policy, PoolKey,
    state::{Answer, InstallId, Leased, SandboxId, State, WaiterId},
};

/// Sandboxes that one desk keeps, those being created included.
pub const MAX_SANDBOXES: usize = 200;
/// Calls that may wait for sandboxes that are being created.
pub const MAX_WAITING_CALLS: usize = 1_000;

/// A sandbox, by the number of its creation. Never reused.
pub type Creation = u64;
/// A call that waits. Never reused.
pub type Ticket = u64;
/// A lease. Never reused.
pub type LeaseId = u64;

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Until when a sandbox may be lent again.
    pub policy: Policy,
    /// How long the sandbox has to live from now on, or from its creation on.
    pub lifetime: Duration,
}

/// A sandbox lent to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// For [`Desk::release`].
    pub lease: LeaseId,
    /// What is lent.
    pub sandbox: Creation,
    /// Uses so far, this one included.
    pub use_count: u32,
}

/// The answer to [`Desk::acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// There was one.
    Granted(Grant),
    /// One is being created; the call waits.
    Wait(Ticket),
    /// The caller has to create one, and waits for it.
    Create(Creation, Ticket),
    /// Too many wait, or too many sandboxes are in use.
    Rejected,
}

/// What a finished creation means for those who waited.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// These have it.
    pub granted: Vec<(Ticket, Grant)>,
    /// It does not live long enough for these: they are to ask again.
    pub again: Vec<Ticket>,
    /// To be stopped.
    pub stops: Vec<Creation>,
}

/// What a call did to its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Nothing that another call could notice.
    Clean,
    /// A deadline, a limit, a lost answer, an error of the infrastructure: nobody else gets it.
    Suspect,
}

/// What a sandbox is in [`State`].
#[derive(Debug, Clone, Copy)]
struct Remote {
    creation: Creation,
    /// Its end; none for one that lives until it is stopped.
    until: Option<Instant>,
}

impl Remote {
    fn lives(&self, lifetime: Duration, now: Instant) -> bool {
        self.until.is_none_or(|until| until.saturating_duration_since(now) >= lifetime)
    }
}

#[derive(Debug)]
struct Waiting {
    install: InstallId,
    waiter: WaiterId,
    lifetime: Duration,
}

/// A sandbox that is there.
#[derive(Debug)]
struct Known {
    id: SandboxId,
    scope: String,
    until: Option<Instant>,
}

/// All sandboxes of a JavaScript environment: its objects cannot leave it.
#[derive(Debug)]
pub struct Desk {
    state: State<Remote>,
    creations: HashMap<Creation, (InstallId, String)>,
    tickets: BTreeMap<Ticket, Waiting>,
    leases: HashMap<LeaseId, (SandboxId, Creation)>,
    known: BTreeMap<Creation, Known>,
    max_sandboxes: usize,
    next: u64,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new(MAX_SANDBOXES)
    }
}

impl Desk {
    /// An empty desk that keeps at most so many sandboxes.
    pub fn new(max_sandboxes: usize) -> Self {
        Self {
            state: State::new(max_sandboxes),
            creations: HashMap::new(),
            tickets: BTreeMap::new(),
            leases: HashMap::new(),
            known: BTreeMap::new(),
            max_sandboxes,
            next: 0,
        }
    }

    /// Lends a sandbox, or says what the call has to do. Also returns what is to be stopped.
    pub fn acquire(&mut self, key: &PoolKey, wish: Wish, now: Instant) -> (Reply, Vec<Creation>) {
        let mut stops = Vec::new();
        loop {
            let (answer, removals) = self.state.lease(key, wish.policy, now);
            stops.extend(self.forget(removals));
            match answer {
                Answer::Leased(leased) if leased.tree.lives(wish.lifetime, now) => {
                    return (Reply::Granted(self.grant(&leased)), stops);
                }
                Answer::Leased(leased) => {
                    self.state.retire(leased.sandbox);
                    let removals = self.state.release(leased.sandbox, now);
                    stops.extend(self.forget(removals));
                }
                Answer::WaitFor(install, waiter) if self.tickets.len() >= MAX_WAITING_CALLS => {
                    self.state.leave(install, waiter);
                    return (Reply::Rejected, stops);
                }
                Answer::WaitFor(install, waiter) => {
                    return (Reply::Wait(self.ticket(install, waiter, wish.lifetime)), stops);
                }
                Answer::MustInstall(install, waiter) if self.is_full() => {
                    self.state.leave(install, waiter);
                    return (Reply::Rejected, stops);
                }
                Answer::MustInstall(install, waiter) => {
                    let creation = self.take_number();
                    self.creations.insert(creation, (install, key.scope().to_owned()));
                    let ticket = self.ticket(install, waiter, wish.lifetime);
                    return (Reply::Create(creation, ticket), stops);
                }
            }
        }
    }

    /// A creation gave a sandbox that lives until `until`.
    pub fn ready(&mut self, creation: Creation, until: Option<Instant>, now: Instant) -> Arrived {
        let Some((install, scope)) = self.creations.remove(&creation) else {
            // Everybody left: nobody will ask for it.
            return Arrived { stops: vec![creation], ..Arrived::default() };
        };
        let (leased, removals) = self.state.installed(install, Remote { creation, until }, now);
        let mut arrived = Arrived::default();
        if let Some((_, first)) = leased.first() {
            self.known.insert(creation, Known { id: first.sandbox, scope, until });
        } else {
            arrived.stops.extend(removals.iter().map(|remote| remote.creation));
        }
        let mut tickets = self.tickets_of(install);
        for (waiter, leased) in leased {
            let Some((ticket, lifetime)) = tickets.remove(&waiter) else { continue };
            if leased.tree.lives(lifetime, now) {
                arrived.granted.push((ticket, self.grant(&leased)));
            } else {
                self.state.retire(leased.sandbox);
                let removals = self.state.release(leased.sandbox, now);
                arrived.stops.extend(self.forget(removals));
                arrived.again.push(ticket);
            }
        }
        arrived
    }

    /// A creation failed. Returns the calls that waited for it.
    pub fn failed(&mut self, creation: Creation) -> Vec<Ticket> {
        let Some((install, _)) = self.creations.remove(&creation) else { return Vec::new() };
        self.state.install_failed(install);
        self.tickets_of(install).into_values().map(|(ticket, _)| ticket).collect()
    }

    /// A call waits no more. Returns the creation that nobody waits for now: it is to be broken off.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Creation> {
        let waiting = self.tickets.remove(&ticket)?;
        if !self.state.leave(waiting.install, waiting.waiter) {
            return None;
        }
        let creation = self.creations.iter().find(|(_, (install, _))| *install == waiting.install);
        let creation = creation.map(|(&creation, _)| creation)?;
        self.creations.remove(&creation);
        Some(creation)
    }

    /// Ends a lease, once. Returns what is to be stopped.
    pub fn release(&mut self, lease: LeaseId, after: After, now: Instant) -> Vec<Creation> {
        let Some((sandbox, _)) = self.leases.remove(&lease) else { return Vec::new() };
        if after == After::Suspect {
            self.state.retire(sandbox);
        }
        let removals = self.state.release(sandbox, now);
        self.forget(removals)
    }

    /// Nobody else gets the sandbox of this lease from now on.
    pub fn retire(&mut self, lease: LeaseId) {
        if let Some(&(sandbox, _)) = self.leases.get(&lease) {
            // It is leased, so nothing is to be stopped yet.
            self.state.retire(sandbox);
        }
    }

    /// Whether others use what this lease lends.
    pub fn is_shared(&self, lease: LeaseId) -> bool {
        let sandbox = self.leases.get(&lease).map(|(sandbox, _)| *sandbox);
        sandbox.is_some_and(|own| self.leases.values().filter(|(other, _)| *other == own).count() > 1)
    }

    /// Takes out what is idle for too long, was used often enough, or has come to its end.
    pub fn sweep(&mut self, now: Instant) -> Vec<Creation> {
        let mut removals = self.state.sweep(now);
        let ended = self.known.values().filter(|known| known.until.is_some_and(|until| until <= now));
        let ended: Vec<SandboxId> = ended.map(|known| known.id).collect();
        removals.extend(ended.into_iter().filter_map(|id| self.state.retire(id)));
        self.forget(removals)
    }

    /// Lends the sandboxes of `scope`, or all, to nobody any more. Returns what is to be stopped now; those in use follow.
    pub fn drain(&mut self, scope: Option<&str>) -> Vec<Creation> {
        let removals = match scope {
            None => self.state.drain(),
            Some(scope) => {
                let of_scope = self.known.values().filter(|known| known.scope == scope);
                let ids: Vec<SandboxId> = of_scope.map(|known| known.id).collect();
                ids.into_iter().filter_map(|id| self.state.retire(id)).collect()
            }
        };
        self.forget(removals)
    }

    /// How many there are of each kind.
    pub fn counts(&self) -> Counts {
        self.state.counts()
    }

    fn is_full(&self) -> bool {
        let Counts { ready, retired, installing, .. } = self.state.counts();
        ready + retired + installing > self.max_sandboxes
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn ticket(&mut self, install: InstallId, waiter: WaiterId, lifetime: Duration) -> Ticket {
        let ticket = self.take_number();
        self.tickets.insert(ticket, Waiting { install, waiter, lifetime });
        ticket
    }

    fn tickets_of(&mut self, install: InstallId) -> BTreeMap<WaiterId, (Ticket, Duration)> {
        let of_install: BTreeSet<Ticket> = self
            .tickets
            .iter()
            .filter(|(_, waiting)| waiting.install == install)
            .map(|(&ticket, _)| ticket)
            .collect();
        let taken = of_install.into_iter().filter_map(|ticket| Some((ticket, self.tickets.remove(&ticket)?)));
        taken.map(|(ticket, waiting)| (waiting.waiter, (ticket, waiting.lifetime))).collect()
    }

    fn grant(&mut self, leased: &Leased<Remote>) -> Grant {
        let lease = self.take_number();
        let sandbox = leased.tree.creation;
        self.leases.insert(lease, (leased.sandbox, sandbox));
        Grant { lease, sandbox, use_count: leased.use_count }
    }

    fn forget(&mut self, removals: Vec<Remote>) -> Vec<Creation> {
        let creations = removals.into_iter().map(|remote| remote.creation);
        creations.inspect(|creation| drop(self.known.remove(creation))).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: [Creation; 0] = [];
    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn key(scope: &str) -> PoolKey {
        PoolKey::new(&BTreeMap::new(), scope)
    }

    fn wish(lifetime: Duration) -> Wish {
        Wish { policy: Policy { ttl: 100 * SECOND, max_use_count: 3 }, lifetime }
    }

    fn create(desk: &mut Desk, scope: &str, now: Instant) -> (Creation, Ticket) {
        match desk.acquire(&key(scope), wish(SECOND), now).0 {
            Reply::Create(creation, ticket) => (creation, ticket),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn first_calls_share_one_creation_and_then_the_sandbox() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, first) = create(&mut desk, "a", now);
        let Reply::Wait(second) = desk.acquire(&key("a"), wish(SECOND), now).0 else { panic!("waits") };
        let arrived = desk.ready(creation, None, now);
        assert_eq!(arrived.granted.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(), [first, second]);
        assert!(arrived.granted.iter().all(|(_, grant)| grant.sandbox == creation));
        let lease = arrived.granted[0].1.lease;
        assert!(desk.is_shared(lease));
        assert_eq!(desk.release(lease, After::Clean, now), NONE);
        assert_eq!(desk.release(lease, After::Suspect, now), NONE, "a lease ends once");
        let other = arrived.granted[1].1.lease;
        assert!(!desk.is_shared(other));
        let (reply, stops) = desk.acquire(&key("a"), wish(SECOND), now);
        assert!(matches!(reply, Reply::Granted(Grant { sandbox, use_count: 3, .. }) if sandbox == creation));
        assert_eq!(stops, NONE);
    }

    #[test]
    fn what_is_in_use_is_stopped_only_after_its_last_lease() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, _) = create(&mut desk, "a", now);
        let one = desk.ready(creation, None, now).granted[0].1.lease;
        let Reply::Granted(two) = desk.acquire(&key("a"), wish(SECOND), now).0 else { panic!("granted") };
        assert_eq!(desk.release(one, After::Suspect, now), NONE);
        let (next, _) = create(&mut desk, "a", now);
        assert_ne!(next, creation);
        assert_eq!(desk.drain(None), NONE);
        assert_eq!(desk.release(two.lease, After::Clean, now), [creation]);
    }

    #[test]
    fn a_retired_sandbox_is_lent_to_nobody_while_its_lease_goes_on() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, _) = create(&mut desk, "a", now);
        let lease = desk.ready(creation, None, now).granted[0].1.lease;
        desk.retire(lease);
        create(&mut desk, "a", now);
        assert_eq!(desk.release(lease, After::Clean, now), [creation]);
    }

    #[test]
    fn a_sandbox_that_ends_too_soon_is_not_lent() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, _) = create(&mut desk, "a", now);
        let lease = desk.ready(creation, Some(now + 10 * SECOND), now).granted[0].1.lease;
        desk.release(lease, After::Clean, now);
        let (reply, stops) = desk.acquire(&key("a"), wish(11 * SECOND), now);
        assert!(matches!(reply, Reply::Create(..)));
        assert_eq!(stops, [creation]);
    }

    #[test]
    fn who_needs_a_longer_life_than_was_created_asks_again() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, short) = create(&mut desk, "a", now);
        let Reply::Wait(long) = desk.acquire(&key("a"), wish(60 * SECOND), now).0 else { panic!("waits") };
        let arrived = desk.ready(creation, Some(now + 30 * SECOND), now);
        assert_eq!(arrived.granted[0].0, short);
        assert_eq!(arrived.again, [long]);
        assert_eq!(arrived.stops, NONE, "the short one has it still");
        assert!(matches!(desk.acquire(&key("a"), wish(60 * SECOND), now).0, Reply::Create(..)));
        assert_eq!(desk.release(arrived.granted[0].1.lease, After::Clean, now), [creation]);
    }

    #[test]
    fn a_creation_that_everybody_left_is_broken_off_and_its_sandbox_stopped() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, first) = create(&mut desk, "a", now);
        let Reply::Wait(second) = desk.acquire(&key("a"), wish(SECOND), now).0 else { panic!("waits") };
        assert_eq!(desk.leave(first), None);
        assert_eq!(desk.leave(second), Some(creation));
        assert_eq!(desk.ready(creation, None, now).stops, [creation]);
        assert_eq!(desk.counts(), Counts::default());
    }

    #[test]
    fn a_failed_creation_tells_all_and_the_next_call_tries_again() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, first) = create(&mut desk, "a", now);
        assert_eq!(desk.failed(creation), [first]);
        create(&mut desk, "a", now);
    }

    #[test]
    fn the_sandboxes_of_one_scope_are_drained_alone() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        for scope in ["a", "b"] {
            let (creation, _) = create(&mut desk, scope, now);
            let lease = desk.ready(creation, None, now).granted[0].1.lease;
            desk.release(lease, After::Clean, now);
        }
        assert_eq!(desk.drain(Some("a")).len(), 1);
        assert_eq!(desk.counts().ready, 1);
    }

    #[test]
    fn what_has_ended_is_swept() {
        let (mut desk, now) = (Desk::default(), Instant::now());
        let (creation, _) = create(&mut desk, "a", now);
        let lease = desk.ready(creation, Some(now + 5 * SECOND), now).granted[0].1.lease;
        desk.release(lease, After::Clean, now);
        assert_eq!(desk.sweep(now + 4 * SECOND), NONE);
        assert_eq!(desk.sweep(now + 5 * SECOND), [creation]);
    }

    #[test]
    fn beyond_the_limit_calls_are_rejected_while_all_are_in_use() {
        let (mut desk, now) = (Desk::new(1), Instant::now());
        let (creation, _) = create(&mut desk, "a", now);
        let lease = desk.ready(creation, None, now).granted[0].1.lease;
        assert_eq!(desk.acquire(&key("b"), wish(SECOND), now), (Reply::Rejected, Vec::new()));
        desk.release(lease, After::Clean, now);
        let (reply, stops) = desk.acquire(&key("b"), wish(SECOND), now);
        assert!(matches!(reply, Reply::Create(..)));
        assert_eq!(stops, [creation], "an idle one makes room");
    }

    #[derive(Debug, Clone)]
    enum Op {
        Acquire { scope: usize, lifetime_s: u64 },
        Ready { which: usize, life_s: Option<u64> },
        Failed(usize),
        Leave(usize),
        Release(usize, bool),
        Pass(u64),
        Sweep,
        Drain(Option<usize>),
    }

    fn op() -> impl Strategy<Value = Op> {
        let which = any::<usize>;
        prop_oneof![
            6 => (0..3_usize, 1..40_u64).prop_map(|(scope, lifetime_s)| Op::Acquire { scope, lifetime_s }),
            4 => (which(), prop::option::of(0..80_u64)).prop_map(|(which, life_s)| Op::Ready { which, life_s }),
            1 => which().prop_map(Op::Failed),
            1 => which().prop_map(Op::Leave),
            5 => (which(), any::<bool>()).prop_map(|(which, clean)| Op::Release(which, clean)),
            1 => (0..30_u64).prop_map(Op::Pass),
            1 => Just(Op::Sweep),
            1 => prop::option::of(0..3_usize).prop_map(Op::Drain),
        ]
    }

    /// Everything that JavaScript would hold.
    #[derive(Default)]
    struct World {
        creating: Vec<Creation>,
        /// Given up, and still to come.
        orphans: Vec<Creation>,
        waiting: Vec<Ticket>,
        leases: Vec<Grant>,
        alive: BTreeSet<Creation>,
    }

    impl World {
        fn stop(&mut self, stops: Vec<Creation>) {
            for creation in stops {
                assert!(self.alive.remove(&creation), "{creation} is stopped once");
                assert!(self.leases.iter().all(|grant| grant.sandbox != creation), "{creation} is in use");
            }
        }

        fn arrive(&mut self, arrived: Arrived) {
            let done = arrived.granted.iter().map(|(ticket, _)| ticket).chain(&arrived.again);
            let done: Vec<Ticket> = done.copied().collect();
            self.waiting.retain(|ticket| !done.contains(ticket));
            self.leases.extend(arrived.granted.into_iter().map(|(_, grant)| grant));
            self.stop(arrived.stops);
        }
    }

    fn pick<T: Copy>(from: &mut Vec<T>, which: usize) -> Option<T> {
        if from.is_empty() { None } else { Some(from.swap_remove(which % from.len())) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_in_use_is_stopped_and_nothing_is_left(ops in prop::collection::vec(op(), 0..80)) {
            let (mut desk, mut now, mut world) = (Desk::new(3), Instant::now(), World::default());
            for op in ops {
                match op {
                    Op::Acquire { scope, lifetime_s } => {
                        let key = key(&scope.to_string());
                        let (reply, stops) = desk.acquire(&key, wish(seconds(lifetime_s)), now);
                        world.stop(stops);
                        match reply {
                            Reply::Granted(grant) => world.leases.push(grant),
                            Reply::Wait(ticket) => world.waiting.push(ticket),
                            Reply::Create(creation, ticket) => {
                                world.creating.push(creation);
                                world.waiting.push(ticket);
                            }
                            Reply::Rejected => {}
                        }
                    }
                    Op::Ready { which, life_s } => {
                        let creation = pick(&mut world.orphans, which).or_else(|| pick(&mut world.creating, which));
                        if let Some(creation) = creation {
                            world.alive.insert(creation);
                            let until = life_s.map(|life| now + seconds(life));
                            let arrived = desk.ready(creation, until, now);
                            world.arrive(arrived);
                        }
                    }
                    Op::Failed(which) => if let Some(creation) = pick(&mut world.creating, which) {
                        let failed = desk.failed(creation);
                        world.waiting.retain(|ticket| !failed.contains(ticket));
                    },
                    Op::Leave(which) => if let Some(ticket) = pick(&mut world.waiting, which)
                        && let Some(creation) = desk.leave(ticket)
                    {
                        world.creating.retain(|one| *one != creation);
                        world.orphans.push(creation);
                    },
                    Op::Release(which, clean) => if let Some(grant) = pick(&mut world.leases, which) {
                        let after = if clean { After::Clean } else { After::Suspect };
                        let stops = desk.release(grant.lease, after, now);
                        world.stop(stops);
                    },
                    Op::Pass(passed) => now += seconds(passed),
                    Op::Sweep => { let stops = desk.sweep(now); world.stop(stops); }
                    Op::Drain(scope) => {
                        let stops = desk.drain(scope.map(|scope| scope.to_string()).as_deref());
                        world.stop(stops);
                    }
                }
                prop_assert_eq!(desk.counts().leases, world.leases.len());
                prop_assert_eq!(desk.counts().waiting, world.waiting.len());
                prop_assert_eq!(desk.tickets.len(), world.waiting.len());
                prop_assert_eq!(desk.known.len(), world.alive.len());
            }
            for creation in std::mem::take(&mut world.creating).into_iter().chain(std::mem::take(&mut world.orphans)) {
                world.alive.insert(creation);
                let arrived = desk.ready(creation, None, now);
                world.arrive(arrived);
            }
            for grant in std::mem::take(&mut world.leases) {
                let stops = desk.release(grant.lease, After::Clean, now);
                world.stop(stops);
            }
            let stops = desk.drain(None);
            world.stop(stops);
            prop_assert!(world.alive.is_empty(), "left: {:?}", world.alive);
            prop_assert!(world.waiting.is_empty());
            prop_assert_eq!(desk.counts(), Counts::default());
        }
    }
}
