//! The steps that a call went through, and when: for whoever traces calls, for its usage, and for the histograms. Pure: times
//! are given.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::start::Rung;

/// What a call is at, in this order; a step ends where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// It is checked and waits for a permit.
    Queue,
    /// It gets its sandbox: from the pool, from the store, or by an installation.
    Install,
    /// It gets a worker.
    Start,
    /// The function runs.
    Run,
    /// It was answered; what is left of it ends.
    Settled,
}

/// The steps that take time before the answer.
pub const TIMED: [Step; 4] = [Step::Queue, Step::Install, Step::Start, Step::Run];

impl Step {
    /// As JavaScript knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Install => "install",
            Self::Start => "start",
            Self::Run => "run",
            Self::Settled => "settled",
        }
    }
}

/// The beginning of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Which.
    pub step: Step,
    /// Since the call came.
    #[serde(rename = "atMs", serialize_with = "as_ms")]
    pub at: Duration,
    /// Where the worker came from; with [`Step::Run`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<Rung>,
    /// Whether the sandbox was there already; with [`Step::Start`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reused: Option<bool>,
}

fn as_ms<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(ms(*duration))
}

/// Milliseconds, with their fraction.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The steps of one call so far.
#[derive(Debug)]
pub struct Timeline(Mutex<Vec<Mark>>);

impl Default for Timeline {
    fn default() -> Self {
        let first = Mark { step: Step::Queue, at: Duration::ZERO, rung: None, reused: None };
        Self(Mutex::new(vec![first]))
    }
}

impl Timeline {
    /// Notes that `step` begins; a step that is not later than the last one is not noted, and told by `false`.
    pub fn add(&self, mark: Mark) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = marks.last().is_none_or(|last| last.step < mark.step);
        if is_later {
            marks.push(mark);
        }
        is_later
    }

    /// All of them.
    pub fn marks(&self) -> Vec<Mark> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How long each step took, of those that began before `until`, which ends the last one.
pub fn spans(marks: &[Mark], until: Duration) -> Vec<(Step, Duration)> {
    let ends = marks.iter().skip(1).map(|mark| mark.at).chain([until]);
    marks.iter().zip(ends).map(|(mark, end)| (mark.step, end.saturating_sub(mark.at))).collect()
}

/// The same as an object: `queueMs`, `installMs`, `startMs`, `runMs`, and `endMs` for what came after the answer.
pub fn phases(spans: &[(Step, Duration)]) -> Value {
    let name = |step: Step| if step == Step::Settled { "end" } else { step.name() };
    spans
        .iter()
        .map(|(step, took)| (format!("{}Ms", name(*step)), json!(ms(*took))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(step: Step, at_ms: u64) -> Mark {
        Mark { step, at: Duration::from_millis(at_ms), rung: None, reused: None }
    }

    #[test]
    fn steps_follow_each_other_and_none_comes_twice() {
        let timeline = Timeline::default();
        assert!(timeline.add(mark(Step::Install, 3)));
        assert!(!timeline.add(mark(Step::Install, 4)));
        assert!(timeline.add(mark(Step::Settled, 10)));
        assert!(!timeline.add(mark(Step::Run, 11)), "what was answered does not run");
        let found = spans(&timeline.marks(), Duration::from_millis(25));
        let expected = [(Step::Queue, 3), (Step::Install, 7), (Step::Settled, 15)];
        assert_eq!(found, expected.map(|(step, took)| (step, Duration::from_millis(took))));
        assert_eq!(phases(&found), json!({ "queueMs": 3.0, "installMs": 7.0, "endMs": 15.0 }));
    }

    #[test]
    fn a_mark_tells_only_what_there_is() {
        let run = Mark { rung: Some(Rung::Zygote), ..mark(Step::Run, 2) };
        assert_eq!(json!(run), json!({ "step": "run", "atMs": 2.0, "rung": "zygote" }));
        assert_eq!(json!(mark(Step::Queue, 0)), json!({ "step": "queue", "atMs": 0.0 }));
    }
}
