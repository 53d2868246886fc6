//! Who may run now: permits per `vcpus` value, one optional budget over all of them, fairness between tools. Pure.
//!
//! The rules:
//!
//! - A class (one distinct `vcpus` value) has as many permits as its number says, rounded up.
//! - A call without `max_concurrent` needs a permit of its class; such calls are served first come, first served.
//! - A call with `max_concurrent` also needs fewer calls than that to run in the whole process. Among those that could
//!   run, the tool with the fewest running calls goes first; of several, the one that longest had no call start or end
//!   (a tool that comes anew is behind those who are here); of one tool's calls, the oldest.
//!   (A budget bounds whoever has it: calls with a larger one, or with none, can keep a smaller one waiting.)
//! - Where both kinds wait for one permit, the older of the two calls that would be next goes first.
//!
//! Between operations no waiting call could run. So a new call either runs at once or waits without overtaking anybody,
//! only a release has anybody to choose, and every operation costs `O(log waiting + classes)`.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Instant,
};

/// Calls that may wait in one process; the next one is refused.
pub const MAX_WAITING_CALLS: usize = 10_000;
/// Distinct `vcpus` values in use at once. An idle one makes room for a new one; a call that finds no room is refused.
pub const MAX_VCPUS_CLASSES: usize = 128;
/// What any larger `vcpus` counts as.
pub const MAX_VCPUS: f64 = 4096.0;

/// A normalised `vcpus` value: between 1 and [`MAX_VCPUS`]. Fractions stay apart (2.5 and 3 are two classes).
#[derive(Debug, Clone, Copy)]
pub struct Vcpus(f64);

impl Vcpus {
    /// Takes any number: an absent one, NaN and whatever is below 1 count as 1, as in the original.
    pub fn new(value: Option<f64>) -> Self {
        let number = value.filter(|value| !value.is_nan());
        Self(number.map_or(1.0, |number| number.clamp(1.0, MAX_VCPUS)))
    }

    /// Calls of this class that may run at once.
    pub fn permits(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 1..=MAX_VCPUS")]
        let permits = self.0.ceil() as u32;
        permits
    }
}

/// As JavaScript prints the number: `1`, `2.5`.
impl fmt::Display for Vcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In this range both languages print the shortest digits that read back as the same number, without an exponent.
        self.0.fmt(f)
    }
}

impl PartialEq for Vcpus {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Vcpus {}

impl PartialOrd for Vcpus {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Vcpus {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Hash for Vcpus {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.to_bits().hash(hasher);
    }
}

/// One call's place, waiting or running. Never reused; a later call has a greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What a call asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Its class.
    pub vcpus: Vcpus,
    /// The tool that the call is accounted to.
    pub tool: Arc<str>,
    /// Calls that may run in the process for this one to join them; 0 counts as 1, `None` is no budget.
    pub max_concurrent: Option<u32>,
    /// When waiting ends; `None` waits for ever.
    pub deadline: Option<Instant>,
}

/// What a call found on arrival, itself not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// This call is the first of its class (or the first since the class was dropped as idle).
    pub class_created: bool,
    /// Free permits of its class.
    pub available_permits: u32,
    /// Calls that wait in its class.
    pub queue_length: usize,
}

/// The answer to [`State::acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Runs at once.
    Granted(Ticket),
    /// Waits; [`State::release`] or [`State::expire`] will name it.
    Queued(Ticket),
    /// [`MAX_WAITING_CALLS`] wait already.
    TooManyWaiting,
    /// [`MAX_VCPUS_CLASSES`] are in use already.
    TooManyClasses,
}

/// Usage of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// The class.
    pub vcpus: Vcpus,
    /// Free permits.
    pub available_permits: u32,
    /// Waiting calls.
    pub queue_length: usize,
}

/// All permits of a process.
#[derive(Debug, Default)]
pub struct State {
    classes: BTreeMap<Vcpus, Class>,
    /// Waiting calls with a budget, by class and budget. Empty lanes are dropped.
    lanes: BTreeMap<LaneKey, Lane>,
    /// Tools that wait or run.
    tools: HashMap<Arc<str>, Tool>,
    calls: HashMap<Ticket, Call>,
    deadlines: BTreeSet<(Instant, Ticket)>,
    running: u32,
    next_ticket: u64,
    next_turn: u64,
}

type LaneKey = (Vcpus, u32);
/// Running calls, then the turn. No two tools share a turn, so no two share a rank. The smallest goes first.
type Rank = (u32, u64);

#[derive(Debug)]
struct Call {
    ask: Ask,
    running: bool,
}

#[derive(Debug, Default)]
struct Class {
    running: u32,
    waiting: usize,
    /// Waiting calls without a budget.
    plain: BTreeSet<Ticket>,
    /// Ticket of the class's last arrival: the idle class with the smallest is dropped first.
    last_arrival: u64,
}

#[derive(Debug, Default)]
struct Lane {
    queues: HashMap<Arc<str>, BTreeSet<Ticket>>,
    /// The tools of `queues` in the order in which they are served.
    order: BTreeMap<Rank, Arc<str>>,
}

#[derive(Debug, Default)]
struct Tool {
    running: u32,
    /// When it came, or a call of it last started or ended.
    turn: u64,
    /// Where it has waiting calls with a budget.
    lanes: BTreeSet<LaneKey>,
    waiting: usize,
}

impl Tool {
    fn rank(&self) -> Rank {
        (self.running, self.turn)
    }
}

impl State {
    /// No permits given out.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a call run or queues it. The arrival is told in every case.
    pub fn acquire(&mut self, mut ask: Ask) -> (Outcome, Arrival) {
        ask.max_concurrent = ask.max_concurrent.map(|budget| budget.max(1));
        let vcpus = ask.vcpus;
        let class_created = !self.classes.contains_key(&vcpus);
        if class_created && !self.make_room_for_class() {
            let arrival =
                Arrival { class_created: false, available_permits: vcpus.permits(), queue_length: 0 };
            return (Outcome::TooManyClasses, arrival);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let class = self.classes.entry(vcpus).or_default();
        class.last_arrival = ticket.0;
        let available_permits = vcpus.permits() - class.running;
        let arrival = Arrival { class_created, available_permits, queue_length: class.waiting };

        let within_budget = ask.max_concurrent.is_none_or(|budget| self.running < budget);
        let grant = available_permits > 0 && within_budget;
        if !grant && self.waiting() >= MAX_WAITING_CALLS {
            return (Outcome::TooManyWaiting, arrival);
        }
        self.enter_tool(&ask.tool);
        if grant {
            self.calls.insert(ticket, Call { ask, running: false });
            self.start(ticket);
            return (Outcome::Granted(ticket), arrival);
        }
        self.enqueue(ticket, ask);
        (Outcome::Queued(ticket), arrival)
    }

    /// Ends a call, running or waiting; an unknown ticket is nothing. Returns the calls that run now because of that.
    pub fn release(&mut self, ticket: Ticket) -> Vec<Ticket> {
        match self.calls.get(&ticket) {
            None => Vec::new(),
            Some(call) if call.running => {
                self.stop(ticket);
                self.dispatch()
            }
            Some(_) => {
                // It held nothing, so nobody can run because of it.
                self.unqueue(ticket);
                self.forget(ticket);
                Vec::new()
            }
        }
    }

    /// Takes out the calls that have waited until their deadline, the earliest first.
    pub fn expire(&mut self, now: Instant) -> Vec<Ticket> {
        let mut expired = Vec::new();
        while let Some(&(deadline, ticket)) = self.deadlines.first()
            && deadline <= now
        {
            self.unqueue(ticket);
            self.forget(ticket);
            expired.push(ticket);
        }
        expired
    }

    /// Every class in use or not yet dropped, by value.
    pub fn stats(&self) -> Vec<ClassStats> {
        let stats = |(&vcpus, class): (&Vcpus, &Class)| ClassStats {
            vcpus,
            available_permits: vcpus.permits() - class.running,
            queue_length: class.waiting,
        };
        self.classes.iter().map(stats).collect()
    }

    /// Calls that run.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Calls that wait.
    pub fn waiting(&self) -> usize {
        self.calls.len() - self.running as usize
    }

    /// Tools that wait or run: what is remembered of a tool goes with its last call.
    pub fn tools(&self) -> usize {
        self.tools.len()
    }

    fn make_room_for_class(&mut self) -> bool {
        if self.classes.len() < MAX_VCPUS_CLASSES {
            return true;
        }
        let idle = self.classes.iter().filter(|(_, class)| class.running == 0 && class.waiting == 0);
        let Some((&vcpus, _)) = idle.min_by_key(|(_, class)| class.last_arrival) else { return false };
        self.classes.remove(&vcpus);
        true
    }

    fn enter_tool(&mut self, tool: &Arc<str>) {
        if !self.tools.contains_key(tool) {
            let turn = self.take_turn();
            self.tools.insert(Arc::clone(tool), Tool { turn, ..Tool::default() });
        }
    }

    fn take_turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    fn enqueue(&mut self, ticket: Ticket, ask: Ask) {
        let class = self.classes.entry(ask.vcpus).or_default();
        class.waiting += 1;
        if let Some(deadline) = ask.deadline {
            self.deadlines.insert((deadline, ticket));
        }
        let tool = self.tools.entry(Arc::clone(&ask.tool)).or_default();
        tool.waiting += 1;
        if let Some(budget) = ask.max_concurrent {
            let key = (ask.vcpus, budget);
            let lane = self.lanes.entry(key).or_default();
            lane.queues.entry(Arc::clone(&ask.tool)).or_default().insert(ticket);
            lane.order.insert(tool.rank(), Arc::clone(&ask.tool));
            tool.lanes.insert(key);
        } else {
            class.plain.insert(ticket);
        }
        self.calls.insert(ticket, Call { ask, running: false });
    }

    /// Takes a waiting call out of every queue; it stays known.
    fn unqueue(&mut self, ticket: Ticket) {
        let Some(Call { ask, .. }) = self.calls.get(&ticket) else { return };
        if let Some(deadline) = ask.deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        let Some(class) = self.classes.get_mut(&ask.vcpus) else { return };
        class.waiting -= 1;
        let Some(tool) = self.tools.get_mut(&ask.tool) else { return };
        tool.waiting -= 1;
        let Some(budget) = ask.max_concurrent else {
            class.plain.remove(&ticket);
            return;
        };
        let key = (ask.vcpus, budget);
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let Some(queue) = lane.queues.get_mut(&ask.tool) else { return };
        queue.remove(&ticket);
        if queue.is_empty() {
            lane.queues.remove(&ask.tool);
            lane.order.remove(&tool.rank());
            tool.lanes.remove(&key);
        }
        if lane.queues.is_empty() {
            self.lanes.remove(&key);
        }
    }

    /// Drops what is known of a call that neither waits nor runs any more, and of its tool if that was its last.
    fn forget(&mut self, ticket: Ticket) {
        let Some(Call { ask, .. }) = self.calls.remove(&ticket) else { return };
        if self.tools.get(&ask.tool).is_some_and(|tool| tool.running == 0 && tool.waiting == 0) {
            self.tools.remove(&ask.tool);
        }
    }

    /// Gives a permit to a call that is in no queue.
    fn start(&mut self, ticket: Ticket) {
        let turn = self.take_turn();
        let Some(call) = self.calls.get_mut(&ticket) else { return };
        call.running = true;
        self.running += 1;
        if let Some(class) = self.classes.get_mut(&call.ask.vcpus) {
            class.running += 1;
        }
        let tool = Arc::clone(&call.ask.tool);
        self.rerank(&tool, |tool| {
            tool.running += 1;
            tool.turn = turn;
        });
    }

    fn stop(&mut self, ticket: Ticket) {
        let turn = self.take_turn();
        let Some(call) = self.calls.get(&ticket) else { return };
        self.running -= 1;
        if let Some(class) = self.classes.get_mut(&call.ask.vcpus) {
            class.running -= 1;
        }
        let tool = Arc::clone(&call.ask.tool);
        self.rerank(&tool, |tool| {
            tool.running -= 1;
            tool.turn = turn;
        });
        self.forget(ticket);
    }

    fn rerank(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Tool)) {
        let Some(tool) = self.tools.get_mut(name) else { return };
        let before = tool.rank();
        change(tool);
        for key in &tool.lanes {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.order.remove(&before);
                lane.order.insert(tool.rank(), Arc::clone(name));
            }
        }
    }

    fn dispatch(&mut self) -> Vec<Ticket> {
        let mut granted = Vec::new();
        while let Some(ticket) = self.next() {
            self.unqueue(ticket);
            self.start(ticket);
            granted.push(ticket);
        }
        granted
    }

    /// The waiting call that runs next, if one can.
    fn next(&self) -> Option<Ticket> {
        let mut best: Option<(Rank, Ticket)> = None;
        for (&vcpus, class) in &self.classes {
            if class.waiting == 0 || class.running >= vcpus.permits() {
                continue;
            }
            let budgeted = self.next_budgeted(vcpus);
            match class.plain.first() {
                // Only its own class's permit stands between such a call and its run: no other class has a say.
                Some(&plain) if budgeted.is_none_or(|(_, ticket)| plain < ticket) => return Some(plain),
                _ => best = best.into_iter().chain(budgeted).min(),
            }
        }
        best.map(|(_, ticket)| ticket)
    }

    fn next_budgeted(&self, vcpus: Vcpus) -> Option<(Rank, Ticket)> {
        let least = self.running.checked_add(1)?;
        let within_budget = self.lanes.range((vcpus, least)..=(vcpus, u32::MAX));
        within_budget.filter_map(|(_, lane)| lane.first()).min()
    }
}

impl Lane {
    fn first(&self) -> Option<(Rank, Ticket)> {
        let (&rank, tool) = self.order.first_key_value()?;
        Some((rank, *self.queues.get(tool)?.first()?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ask(vcpus: f64, tool: &str, max_concurrent: Option<u32>) -> Ask {
        Ask { vcpus: Vcpus::new(Some(vcpus)), tool: tool.into(), max_concurrent, deadline: None }
    }

    fn granted(state: &mut State, ask: Ask) -> Ticket {
        match state.acquire(ask).0 {
            Outcome::Granted(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn queued(state: &mut State, ask: Ask) -> Ticket {
        match state.acquire(ask).0 {
            Outcome::Queued(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn vcpus_are_normalised_and_printed_as_javascript_does() {
        let cases = [
            (None, "1", 1),
            (Some(f64::NAN), "1", 1),
            (Some(-1.0), "1", 1),
            (Some(-0.0), "1", 1),
            (Some(0.5), "1", 1),
            (Some(f64::NEG_INFINITY), "1", 1),
            (Some(2.0), "2", 2),
            (Some(2.5), "2.5", 3),
            (Some(1.1), "1.1", 2),
            (Some(1.0 + f64::EPSILON), "1.0000000000000002", 2),
            (Some(100.0), "100", 100),
            (Some(1e9), "4096", 4096),
            (Some(f64::INFINITY), "4096", 4096),
        ];
        for (value, printed, permits) in cases {
            let vcpus = Vcpus::new(value);
            assert_eq!((vcpus.to_string().as_str(), vcpus.permits()), (printed, permits), "{value:?}");
        }
        assert_ne!(Vcpus::new(Some(2.5)), Vcpus::new(Some(3.0)));
        assert_eq!(Vcpus::new(Some(0.5)), Vcpus::new(None));
    }

    #[test]
    fn classes_are_apart_and_first_come_first_served() {
        let mut state = State::new();
        let (outcome, arrival) = state.acquire(ask(1.0, "a", None));
        assert_eq!(arrival, Arrival { class_created: true, available_permits: 1, queue_length: 0 });
        let Outcome::Granted(running) = outcome else { panic!("{outcome:?}") };
        let second = queued(&mut state, ask(1.0, "a", None));
        let third = queued(&mut state, ask(1.0, "b", None));
        granted(&mut state, ask(8.0, "a", None));
        let (_, arrival) = state.acquire(ask(1.0, "a", None));
        assert_eq!(arrival, Arrival { class_created: false, available_permits: 0, queue_length: 2 });
        assert_eq!(state.release(running), [second]);
        assert_eq!(state.release(second), [third]);
        let usage: Vec<_> = state
            .stats()
            .iter()
            .map(|s| (s.vcpus.to_string(), s.available_permits, s.queue_length))
            .collect();
        assert_eq!(usage, [("1".into(), 0, 1), ("8".into(), 7, 0)]);
    }

    #[test]
    fn a_flood_of_one_tool_does_not_keep_another_from_running() {
        let mut state = State::new();
        let budget = Some(2);
        let mut flood = vec![granted(&mut state, ask(8.0, "flood", budget))];
        flood.push(granted(&mut state, ask(8.0, "flood", budget)));
        flood.extend((0..1000).map(|_| queued(&mut state, ask(8.0, "flood", budget))));
        let first = queued(&mut state, ask(8.0, "calm", budget));
        let second = queued(&mut state, ask(8.0, "calm", budget));
        assert_eq!(state.release(flood[0]), [first], "none of its calls ran");
        assert_eq!(state.release(flood[1]), [flood[2]], "one each: the flood's would be the only one");
        assert_eq!(state.release(first), [second]);
    }

    #[test]
    fn tools_with_equally_many_calls_take_turns() {
        let mut state = State::new();
        let mut running = granted(&mut state, ask(4.0, "a", Some(1)));
        let mut waiting = Vec::new();
        for tool in ["a", "b", "c"] {
            for _ in 0..2 {
                waiting.push(queued(&mut state, ask(4.0, tool, Some(1))));
            }
        }
        let [a1, a2, b1, b2, c1, c2] = waiting[..] else { unreachable!() };
        for expected in [b1, c1, a1, b2, c2, a2] {
            assert_eq!(state.release(running), [expected]);
            running = expected;
        }
    }

    #[test]
    fn the_budget_spans_classes_and_a_full_class_blocks_only_itself() {
        let mut state = State::new();
        let small = granted(&mut state, ask(1.0, "a", Some(2)));
        let large = granted(&mut state, ask(2.0, "b", Some(2)));
        let behind_small = queued(&mut state, ask(1.0, "c", Some(2)));
        let behind_budget = queued(&mut state, ask(4.0, "b", Some(2)));
        assert_eq!(state.release(large), [behind_budget], "the permit of class 1 is still taken");
        assert_eq!(state.release(small), [behind_small]);
    }

    #[test]
    fn one_release_can_serve_a_budget_elsewhere_and_a_permit_here() {
        let mut state = State::new();
        let first = granted(&mut state, ask(1.0, "a", None));
        let plain = queued(&mut state, ask(1.0, "a", None));
        let budgeted = queued(&mut state, ask(2.0, "b", Some(1)));
        // The plain call needs no budget, and takes the one running place that the other needs.
        assert_eq!(state.release(first), [plain]);
        assert_eq!(state.release(plain), [budgeted]);
    }

    #[test]
    fn a_budget_of_zero_still_lets_one_run() {
        let mut state = State::new();
        let first = granted(&mut state, ask(4.0, "a", Some(0)));
        let second = queued(&mut state, ask(4.0, "a", Some(0)));
        assert_eq!(state.release(first), [second]);
    }

    #[test]
    fn deadlines_pass_in_order_and_spare_who_runs() {
        let start = Instant::now();
        let at = |ms| Some(start + Duration::from_millis(ms));
        let mut state = State::new();
        let running = granted(&mut state, Ask { deadline: at(1), ..ask(1.0, "a", None) });
        let late = queued(&mut state, Ask { deadline: at(20), ..ask(1.0, "a", None) });
        let early = queued(&mut state, Ask { deadline: at(10), ..ask(1.0, "a", Some(1)) });
        let never = queued(&mut state, ask(1.0, "a", None));
        assert_eq!(state.expire(start + Duration::from_millis(9)), []);
        assert_eq!(state.expire(start + Duration::from_millis(20)), [early, late]);
        assert_eq!(state.release(early), [], "it is gone");
        assert_eq!(state.release(running), [never]);
    }

    #[test]
    fn the_waiting_room_is_bounded_and_only_for_those_who_wait() {
        let mut state = State::new();
        let first = granted(&mut state, ask(1.0, "a", None));
        let mut waiting: Vec<_> =
            (0..MAX_WAITING_CALLS).map(|_| queued(&mut state, ask(1.0, "a", None))).collect();
        assert_eq!(state.acquire(ask(1.0, "z", None)).0, Outcome::TooManyWaiting);
        assert_eq!(state.tools(), 1, "a refused call leaves nothing");
        granted(&mut state, ask(2.0, "a", None));
        let cancelled = waiting.remove(1);
        assert_eq!(state.release(cancelled), []);
        queued(&mut state, ask(1.0, "a", None));
        assert_eq!(state.release(first), [waiting[0]]);
        assert_eq!(state.release(waiting[0]), [waiting[1]], "the cancelled one is passed over");
    }

    #[test]
    fn idle_classes_make_room_and_busy_ones_do_not() {
        let mut state = State::new();
        let vcpus = |i: usize| 1.0 + f64::from(u32::try_from(i).unwrap()) / 1024.0;
        for i in 0..3 * MAX_VCPUS_CLASSES {
            let call = granted(&mut state, ask(vcpus(i), "a", None));
            state.release(call);
        }
        assert_eq!(state.stats().len(), MAX_VCPUS_CLASSES);
        assert_eq!(state.stats()[0].vcpus, Vcpus::new(Some(vcpus(2 * MAX_VCPUS_CLASSES))), "the oldest went");
        let mut state = State::new();
        let busy: Vec<_> =
            (0..MAX_VCPUS_CLASSES).map(|i| granted(&mut state, ask(vcpus(i), "a", None))).collect();
        assert_eq!(state.acquire(ask(99.0, "a", None)).0, Outcome::TooManyClasses);
        granted(&mut state, ask(vcpus(1), "a", None));
        state.release(busy[5]);
        granted(&mut state, ask(99.0, "a", None));
    }
}
