//! The queue's state machine against a model that keeps plain lists and searches them.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use native_sandbox_executor::queue::state::{Ask, Outcome, State, Ticket, Vcpus};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Acquire {
        vcpus: f64,
        tool: &'static str,
        max_concurrent: Option<u32>,
        wait_ms: Option<u64>,
    },
    /// Ends one of the calls that run or wait: which one, modulo their number.
    ReleaseRunning(usize),
    CancelWaiting(usize),
    /// A ticket that ended before.
    ReleaseAgain(usize),
    Pass {
        ms: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let vcpus = prop::sample::select(vec![1.0, 1.5, 2.0, 3.0]);
    let tool = prop::sample::select(vec!["a", "b", "c"]);
    let budget = prop_oneof![Just(None), (1..5_u32).prop_map(Some)];
    let wait = prop_oneof![Just(None), (0..50_u64).prop_map(Some)];
    prop_oneof![
        6 => (vcpus, tool, budget, wait)
            .prop_map(|(vcpus, tool, max_concurrent, wait_ms)| Op::Acquire { vcpus, tool, max_concurrent, wait_ms }),
        3 => any::<usize>().prop_map(Op::ReleaseRunning),
        1 => any::<usize>().prop_map(Op::CancelWaiting),
        1 => any::<usize>().prop_map(Op::ReleaseAgain),
        1 => (0..30_u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

#[derive(Debug, Clone)]
struct Call {
    ticket: Ticket,
    ask: Ask,
}

#[derive(Default)]
struct Model {
    /// In order of arrival.
    waiting: Vec<Call>,
    running: Vec<Call>,
    ended: Vec<Ticket>,
    /// When each tool came, or last had a call start or end.
    turns: HashMap<String, usize>,
    clock: usize,
}

impl Model {
    fn running_of(&self, tool: &str) -> usize {
        self.running.iter().filter(|call| &*call.ask.tool == tool).count()
    }

    fn class_running(&self, vcpus: Vcpus) -> u32 {
        self.running.iter().map(|call| u32::from(call.ask.vcpus == vcpus)).sum()
    }

    fn can_run(&self, ask: &Ask) -> bool {
        self.class_running(ask.vcpus) < ask.vcpus.permits()
            && ask.max_concurrent.is_none_or(|budget| self.running.len() < budget as usize)
    }

    fn touch(&mut self, tool: &str) {
        self.clock += 1;
        self.turns.insert(tool.into(), self.clock);
    }

    fn arrive(&mut self, tool: &str) {
        let known = self.waiting.iter().chain(&self.running).any(|call| &*call.ask.tool == tool);
        if !known {
            self.touch(tool);
        }
    }

    fn start(&mut self, call: Call) {
        self.touch(&call.ask.tool.clone());
        self.running.push(call);
    }

    fn next(&self) -> Option<usize> {
        let able: Vec<usize> =
            (0..self.waiting.len()).filter(|&i| self.can_run(&self.waiting[i].ask)).collect();
        let fair = |&i: &usize| {
            let tool = &*self.waiting[i].ask.tool;
            (self.running_of(tool), self.turns[tool], i)
        };
        let budgeted = |i: &usize| self.waiting[*i].ask.max_concurrent.is_some();
        // A call without a budget waits only for older calls of its class that would run before it.
        let mut plain: Vec<usize> = able
            .iter()
            .copied()
            .filter(|i| !budgeted(i))
            .filter(|&i| {
                let vcpus = self.waiting[i].ask.vcpus;
                let rivals = able.iter().copied().filter(|j| self.waiting[*j].ask.vcpus == vcpus);
                let rival = rivals.clone().filter(budgeted).min_by_key(fair);
                let first_plain = rivals.clone().find(|j| !budgeted(j)) == Some(i);
                first_plain && rival.is_none_or(|rival| i < rival)
            })
            .collect();
        plain.sort_by_key(|&i| self.waiting[i].ask.vcpus);
        let held_up = |i: &usize| {
            let vcpus = self.waiting[*i].ask.vcpus;
            plain.iter().any(|&p| self.waiting[p].ask.vcpus == vcpus)
        };
        plain
            .first()
            .copied()
            .or_else(|| able.iter().copied().filter(budgeted).filter(|i| !held_up(i)).min_by_key(fair))
    }

    fn release(&mut self, index: usize) -> Vec<Ticket> {
        let call = self.running.remove(index);
        self.touch(&call.ask.tool);
        self.ended.push(call.ticket);
        let mut granted = Vec::new();
        while let Some(i) = self.next() {
            let call = self.waiting.remove(i);
            granted.push(call.ticket);
            self.start(call);
        }
        granted
    }

    fn expire(&mut self, now: Instant) -> Vec<Ticket> {
        let (mut over, rest): (Vec<Call>, Vec<Call>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|call| call.ask.deadline.is_some_and(|deadline| deadline <= now));
        self.waiting = rest;
        over.sort_by_key(|call| (call.ask.deadline, call.ticket));
        let over: Vec<Ticket> = over.into_iter().map(|call| call.ticket).collect();
        self.ended.extend(&over);
        over
    }

    /// What must hold whatever the rules of order are.
    fn check(&self, state: &State) {
        assert_eq!(state.running() as usize, self.running.len());
        assert_eq!(state.waiting(), self.waiting.len());
        for call in &self.waiting {
            assert!(!self.can_run(&call.ask), "{call:?} waits for nothing");
        }
        for class in state.stats() {
            let running = self.class_running(class.vcpus);
            assert_eq!(running + class.available_permits, class.vcpus.permits());
            let waiting = self.waiting.iter().filter(|call| call.ask.vcpus == class.vcpus).count();
            assert_eq!(class.queue_length, waiting);
        }
    }
}

fn run(ops: Vec<Op>) {
    let (mut state, mut model, mut now) = (State::new(), Model::default(), Instant::now());
    for op in ops {
        match op {
            Op::Acquire { vcpus, tool, max_concurrent, wait_ms } => {
                let ask = Ask {
                    vcpus: Vcpus::new(Some(vcpus)),
                    tool: tool.into(),
                    max_concurrent,
                    deadline: wait_ms.map(|ms| now + Duration::from_millis(ms)),
                };
                model.arrive(tool);
                let able = model.can_run(&ask);
                match state.acquire(ask.clone()).0 {
                    Outcome::Granted(ticket) => {
                        assert!(able);
                        model.start(Call { ticket, ask });
                    }
                    Outcome::Queued(ticket) => {
                        assert!(!able);
                        model.waiting.push(Call { ticket, ask });
                    }
                    refused => panic!("{refused:?}"),
                }
            }
            Op::ReleaseRunning(i) if !model.running.is_empty() => {
                let i = i % model.running.len();
                let ticket = model.running[i].ticket;
                assert_eq!(state.release(ticket), model.release(i));
            }
            Op::CancelWaiting(i) if !model.waiting.is_empty() => {
                let call = model.waiting.remove(i % model.waiting.len());
                assert_eq!(state.release(call.ticket), []);
                model.ended.push(call.ticket);
            }
            Op::ReleaseAgain(i) if !model.ended.is_empty() => {
                assert_eq!(state.release(model.ended[i % model.ended.len()]), []);
            }
            Op::Pass { ms } => {
                now += Duration::from_millis(ms);
                assert_eq!(state.expire(now), model.expire(now));
            }
            Op::ReleaseRunning(_) | Op::CancelWaiting(_) | Op::ReleaseAgain(_) => {}
        }
        model.check(&state);
    }
    // Every call that still waits gets its turn when those that run end.
    while !model.running.is_empty() {
        let ticket = model.running[0].ticket;
        assert_eq!(state.release(ticket), model.release(0));
        model.check(&state);
    }
    assert_eq!((state.running(), state.waiting(), state.tools()), (0, 0, 0));
    assert_eq!(state.expire(now + Duration::from_hours(1)), [], "no deadline is left behind");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model(ops in prop::collection::vec(op(), 0..150)) {
        run(ops);
    }

    /// Whatever the others do, a tool's calls of one class and budget start in their order.
    #[test]
    fn a_tools_calls_start_in_order(ops in prop::collection::vec((0..3_usize, any::<bool>()), 1..200)) {
        let (mut state, mut running, mut started) = (State::new(), Vec::new(), HashMap::new());
        let mut tool_of = HashMap::new();
        let mut start = |ticket: Ticket, tool: usize| {
            let last = started.insert(tool, ticket);
            assert!(last < Some(ticket));
        };
        for (tool, acquire) in ops {
            if acquire {
                let name = ["a", "b", "c"][tool];
                let vcpus = Vcpus::new(Some(2.0));
                let ask = Ask { vcpus, tool: name.into(), max_concurrent: Some(2), deadline: None };
                match state.acquire(ask).0 {
                    Outcome::Granted(ticket) => {
                        tool_of.insert(ticket, tool);
                        start(ticket, tool);
                        running.push(ticket);
                    }
                    Outcome::Queued(ticket) => {
                        tool_of.insert(ticket, tool);
                    }
                    refused => panic!("{refused:?}"),
                }
            } else if !running.is_empty() {
                for ticket in state.release(running.remove(0)) {
                    start(ticket, tool_of[&ticket]);
                    running.push(ticket);
                }
            }
        }
    }
}
