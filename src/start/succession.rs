//! Which zygote of a kind serves, and which one boots to take its place. Pure: time is an argument.
//!
//! ```text
//!  nobody ──boot──▶ booting ──up──▶ serving ──worn──▶ serving, with a successor that boots
//!    ▲                 │               ▲                  │ up: takes over; the old one drains
//!    └─ rest is over ──┴─fails         └──────────────────┘ fails: serves on; the next try comes after a rest
//! ```
//!
//! So nobody is without a zygote because of its age, its forks or what it has loaded. One that must not get new calls ([`Condition::Stale`])
//! has its callers wait for the successor.

use std::time::{Duration, Instant};

/// How a zygote is that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// As it should be.
    Sound,
    /// Serves on until its successor is up.
    Worn,
    /// Its workers would lack something that others have: new calls wait for the successor, where there can be one.
    Stale,
    /// Ended, or its folder is gone.
    Dead,
}

/// The place of a zygote of type `N`, whose boots are of type `B`.
#[derive(Debug)]
pub(super) struct Slot<N, B> {
    current: Option<N>,
    successor: Option<(u64, B)>,
    rest: Option<Rest>,
}

/// After a boot that failed.
#[derive(Debug)]
struct Rest {
    reason: String,
    until: Instant,
}

/// What a look gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<N, B> {
    /// This one serves.
    Up(N),
    /// None serves yet.
    Booting(B),
    /// None serves before the successor is up, and it has to be waited for.
    Awaited(B),
    /// There is none for now.
    Down(String),
}

impl<N, B> Default for Slot<N, B> {
    fn default() -> Self {
        Self { current: None, successor: None, rest: None }
    }
}

impl<N: Clone, B> Slot<N, B> {
    /// Finds who serves; `boot` is called if one has to be booted, under the number `ticket`, which no other boot has. The second is a dead
    /// one, to be dropped outside of any lock.
    pub(super) fn look(
        &mut self,
        now: Instant,
        ticket: u64,
        condition: impl FnOnce(&N) -> Condition,
        boot: impl FnOnce(u64) -> B,
    ) -> (Found<N, &B>, Option<N>) {
        let condition = self.current.as_ref().map_or(Condition::Dead, condition);
        let dead = if condition == Condition::Dead { self.current.take() } else { None };
        let rests = self.rest.as_ref().is_some_and(|rest| rest.until > now);
        if condition != Condition::Sound && self.successor.is_none() && !rests {
            self.rest = None;
            self.successor = Some((ticket, boot(ticket)));
        }
        let found = match (condition, &self.current, &self.successor, &self.rest) {
            (Condition::Stale, Some(_), Some((_, boot)), _) => Found::Awaited(boot),
            (_, Some(current), ..) => Found::Up(current.clone()),
            (_, None, Some((_, boot)), _) => Found::Booting(boot),
            (_, None, None, rest) => {
                Found::Down(rest.as_ref().map_or_else(String::new, |rest| rest.reason.clone()))
            }
        };
        (found, dead)
    }

    /// A boot is over. Gives what is to be dropped, outside of any lock: the one that served, or the new one where its slot does not
    /// wait for it any more.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        ticket: u64,
        booted: Result<N, (String, Duration)>,
    ) -> (Option<N>, Option<B>) {
        if !self.waits_for(ticket) {
            return (booted.ok(), None);
        }
        let boot = self.successor.take().map(|(_, boot)| boot);
        match booted {
            Ok(new) => {
                self.rest = None;
                (self.current.replace(new), boot)
            }
            Err((reason, rest)) => {
                self.rest = Some(Rest { reason, until: now + rest });
                (None, boot)
            }
        }
    }

    /// Ends the one that serves; none boots for `rest`.
    pub(super) fn end(&mut self, now: Instant, reason: String, rest: Duration) -> Option<N> {
        self.rest = Some(Rest { reason, until: now + rest });
        self.current.take()
    }

    /// The one that serves.
    pub(super) fn current(&self) -> Option<&N> {
        self.current.as_ref()
    }

    /// Whether one boots.
    pub(super) fn is_booting(&self) -> bool {
        self.successor.is_some()
    }

    /// The boot under way.
    pub(super) fn boot(&self) -> Option<&B> {
        self.successor.as_ref().map(|(_, boot)| boot)
    }

    /// Whether it waits for this boot.
    pub(super) fn waits_for(&self, ticket: u64) -> bool {
        self.successor.as_ref().is_some_and(|(number, _)| *number == ticket)
    }

    /// Why there is none.
    pub(super) fn refusal(&self) -> Option<&str> {
        let is_refused = self.current.is_none() && self.successor.is_none();
        self.rest.as_ref().filter(|_| is_refused).map(|rest| rest.reason.as_str())
    }
}

/// What zygotes and workers cost, as last measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Costs {
    /// From the start of a zygote's boot until it serves.
    pub(super) zygote: Duration,
    /// What a call takes longer by itself: the boot of a worker, or loading the packages.
    pub(super) alone: Duration,
    /// Of one worker that is forked.
    pub(super) fork: Duration,
}

/// No more than so many calls for each core help themselves at a time while a zygote is under way.
const ALONE_PER_CORE: usize = 3;

/// Whether a call waits for a zygote that boots since `elapsed`, behind `ahead` others, or goes alone as `alone` others do now. A core
/// is the zygote's.
pub(super) fn waits(costs: &Costs, elapsed: Duration, ahead: usize, alone: usize, cores: usize) -> bool {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let waiting =
        costs.zygote.saturating_sub(elapsed).saturating_add(costs.fork.saturating_mul(count(ahead) + 1));
    let turns = count(alone / cores.saturating_sub(1).max(1)) + 1;
    alone >= cores * ALONE_PER_CORE || waiting <= costs.alone.saturating_mul(turns)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Zygotes = Slot<u32, u64>;

    fn look(slot: &mut Zygotes, now: Instant, ticket: u64, condition: Condition) -> Found<u32, u64> {
        match slot.look(now, ticket, |_| condition, |ticket| ticket).0 {
            Found::Up(one) => Found::Up(one),
            Found::Booting(boot) => Found::Booting(*boot),
            Found::Awaited(boot) => Found::Awaited(*boot),
            Found::Down(why) => Found::Down(why),
        }
    }

    fn refused(reason: &str) -> Result<u32, (String, Duration)> {
        Err((reason.to_owned(), Duration::from_secs(10)))
    }

    /// Every 5,000 forks all callers but one were told "not yet", and booted processes of their own.
    #[test]
    fn a_worn_zygote_serves_every_caller_until_its_successor_is_up() {
        let (mut slot, now) = (Zygotes::default(), Instant::now());
        assert_eq!(look(&mut slot, now, 1, Condition::Sound), Found::Booting(1));
        assert_eq!(slot.settle(now, 1, Ok(100)), (None, Some(1)));
        for ticket in 2..50 {
            assert_eq!(look(&mut slot, now, ticket, Condition::Worn), Found::Up(100));
        }
        assert!(slot.waits_for(2), "one successor boots, the first caller's");
        assert_eq!(slot.settle(now, 2, Ok(101)), (Some(100), Some(2)), "the old one drains");
        assert_eq!(look(&mut slot, now, 50, Condition::Sound), Found::Up(101));
        assert!(!slot.is_booting());
    }

    #[test]
    fn a_successor_that_fails_leaves_the_worn_one_serving() {
        let (mut slot, now) = (Zygotes::default(), Instant::now());
        look(&mut slot, now, 1, Condition::Sound);
        slot.settle(now, 1, Ok(100));
        look(&mut slot, now, 2, Condition::Worn);
        slot.settle(now, 2, refused("no memory"));
        assert_eq!(look(&mut slot, now, 3, Condition::Worn), Found::Up(100));
        assert_eq!(look(&mut slot, now, 4, Condition::Stale), Found::Up(100), "better than none");
        assert!(!slot.is_booting(), "not at each call");
        let later = now + Duration::from_secs(10);
        assert_eq!(look(&mut slot, later, 5, Condition::Worn), Found::Up(100));
        assert!(slot.waits_for(5));
    }

    /// Its workers may not read the file that replaced the one of the resolver.
    #[test]
    fn callers_of_a_stale_zygote_wait_for_its_successor() {
        let (mut slot, now) = (Zygotes::default(), Instant::now());
        look(&mut slot, now, 1, Condition::Sound);
        slot.settle(now, 1, Ok(100));
        for ticket in 2..5 {
            assert_eq!(look(&mut slot, now, ticket, Condition::Stale), Found::Awaited(2));
        }
        slot.settle(now, 2, Ok(101));
        assert_eq!(look(&mut slot, now, 5, Condition::Sound), Found::Up(101));
    }

    /// A boot under way came up after the end of everything.
    #[test]
    fn a_boot_that_nobody_waits_for_any_more_serves_nobody() {
        let (mut slot, now) = (Zygotes::default(), Instant::now());
        assert_eq!(slot.settle(now, 7, Ok(100)), (Some(100), None), "it is to be dropped");
        assert_eq!(slot.current(), None);
        look(&mut slot, now, 8, Condition::Sound);
        assert_eq!(slot.settle(now, 7, Ok(100)), (Some(100), None));
        assert!(slot.waits_for(8));
    }

    #[test]
    fn a_refusal_rests_and_is_tried_again() {
        let (mut slot, now) = (Zygotes::default(), Instant::now());
        look(&mut slot, now, 1, Condition::Sound);
        slot.settle(now, 1, refused("too old"));
        assert_eq!(look(&mut slot, now, 2, Condition::Sound), Found::Down("too old".into()));
        assert_eq!(slot.refusal(), Some("too old"));
        let later = now + Duration::from_secs(11);
        assert_eq!(look(&mut slot, later, 3, Condition::Sound), Found::Booting(3));
        assert_eq!(slot.refusal(), None);
    }

    #[derive(Debug, Clone)]
    enum Act {
        Look(Condition),
        Settle(bool),
        Late(bool),
        Wait(u64),
        End,
    }

    fn any_act() -> impl Strategy<Value = Act> {
        let condition = prop_oneof![
            Just(Condition::Sound),
            Just(Condition::Worn),
            Just(Condition::Stale),
            Just(Condition::Dead)
        ];
        prop_oneof![
            4 => condition.prop_map(Act::Look),
            2 => any::<bool>().prop_map(Act::Settle),
            1 => any::<bool>().prop_map(Act::Late),
            1 => (0_u64..20).prop_map(Act::Wait),
            1 => Just(Act::End),
        ]
    }

    proptest! {
        /// Whatever happens: one boots at a time, each zygote is dropped once, and whoever has one that can serve serves.
        #[test]
        fn it_keeps_its_promises(acts in prop::collection::vec(any_act(), 1..60)) {
            let (mut slot, mut now) = (Zygotes::default(), Instant::now());
            let (mut next, mut booting) = (1_u64, None);
            let mut living: BTreeMap<u32, bool> = BTreeMap::new();
            for act in acts {
                next += 1;
                match act {
                    Act::Look(condition) => {
                        let had = slot.current().copied();
                        let mut begun = None;
                        let (found, dead) = slot.look(now, next, |_| condition, |ticket| { begun = Some(ticket); ticket });
                        let is_up = matches!(found, Found::Up(_));
                        if let Some(dead) = dead { living.remove(&dead); }
                        if let Some(begun) = begun {
                            prop_assert_eq!(booting.replace(begun), None, "two boot");
                        }
                        match (had, condition) {
                            (Some(_), Condition::Sound | Condition::Worn) => prop_assert!(is_up),
                            (Some(_), Condition::Stale) => prop_assert!(is_up != booting.is_some()),
                            _ => prop_assert!(!is_up),
                        }
                    }
                    Act::Settle(well) => {
                        let Some(ticket) = booting.take() else { continue };
                        let new = u32::try_from(ticket).unwrap();
                        if well { living.insert(new, true); }
                        let (old, boot) = slot.settle(now, ticket, if well { Ok(new) } else { refused("no") });
                        prop_assert_eq!(boot, Some(ticket));
                        if let Some(old) = old { prop_assert!(living.remove(&old).is_some(), "dropped twice"); }
                    }
                    Act::Late(well) => {
                        let new = u32::MAX;
                        let (back, boot) = slot.settle(now, u64::MAX, if well { Ok(new) } else { refused("no") });
                        prop_assert_eq!((back, boot), (well.then_some(new), None));
                    }
                    Act::Wait(seconds) => now += Duration::from_secs(seconds),
                    Act::End => {
                        if let Some(old) = slot.end(now, "memory".into(), Duration::from_secs(5)) { living.remove(&old); }
                    }
                }
                prop_assert_eq!(slot.is_booting(), booting.is_some());
                prop_assert_eq!(living.keys().copied().collect::<Vec<_>>(), slot.current().copied().into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn with_more_that_go_alone_waiting_never_gets_worse(
            elapsed in 0_u64..400, ahead in 0_usize..50, alone in 0_usize..50, cores in 1_usize..17
        ) {
            let elapsed = Duration::from_millis(elapsed);
            let waits = |alone| waits(&COSTS, elapsed, ahead, alone, cores);
            prop_assert!(!waits(alone) || waits(alone + 1));
            prop_assert!(waits(cores * ALONE_PER_CORE));
        }
    }

    const COSTS: Costs = Costs {
        zygote: Duration::from_millis(150),
        alone: Duration::from_millis(50),
        fork: Duration::from_millis(2),
    };

    /// Forty calls as the first thing that a process does all booted, and kept the zygote from booting.
    #[test]
    fn of_a_burst_a_few_boot_and_the_rest_waits() {
        for (cores, booted) in [(1, 3), (2, 3), (8, 15)] {
            let (mut alone, mut waiting) = (0, 0);
            for _ in 0..40 {
                let counted = if waits(&COSTS, Duration::ZERO, waiting, alone, cores) {
                    &mut waiting
                } else {
                    &mut alone
                };
                *counted += 1;
            }
            assert!(alone.abs_diff(booted) <= booted, "{alone} of 40 boot on {cores} cores");
            assert!(alone >= 1 && alone <= cores * ALONE_PER_CORE, "{alone} of 40 boot on {cores} cores");
        }
    }

    #[test]
    fn a_zygote_that_is_nearly_up_is_waited_for() {
        assert!(!waits(&COSTS, Duration::ZERO, 0, 0, 2));
        assert!(waits(&COSTS, Duration::from_millis(120), 0, 0, 2));
        assert!(!waits(&COSTS, Duration::from_millis(120), 40, 0, 2), "too many are ahead");
    }
}
