//! Calls that host functions make while the call that called them waits for their answer.
//!
//! The outer call holds a permit and needs the inner one to go on, so the inner one must not wait for a permit of the same queue: with one
//! permit both would wait for ever. Instead an inner call has its turn on the outer call's permit: one inner call of an outer one runs at a time,
//! in the order in which they come. So the number of processes is bounded by permits times depth.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    error::{Code, Phase, SandboxError},
    queue::Queue,
};

/// How deep calls may nest: an outer one, and so many inside of each other.
pub const MAX_NESTED_LEVELS: u32 = 8;

/// The calls of this process whose host functions may make calls, by the name that the surface gave them. Clones share them.
#[derive(Clone, Default)]
pub struct NestedCalls(Arc<Mutex<HashMap<String, Outer>>>);

#[derive(Clone)]
struct Outer {
    queue: Queue,
    level: u32,
}

/// A call that others may be made within, as long as this lives.
pub struct OuterCall {
    calls: NestedCalls,
    name: String,
}

impl NestedCalls {
    /// The queue in which a call made within `outer` waits; `None` where that call is over: then it waits as any other.
    pub fn queue_within(&self, outer: &str) -> Option<Queue> {
        self.lock().get(outer).map(|outer| outer.queue.clone())
    }

    /// Lets calls be made within the call `name`, which is made within `outer` itself where that is given; see [`Self::check`].
    pub fn open(&self, name: &str, outer: Option<&str>) -> OuterCall {
        let mut calls = self.lock();
        let level = outer.and_then(|outer| calls.get(outer)).map_or(0, |outer| outer.level + 1);
        calls.insert(name.to_owned(), Outer { queue: Queue::default(), level });
        OuterCall { calls: self.clone(), name: name.to_owned() }
    }

    /// Whether a call may be made within `outer`.
    ///
    /// # Errors
    ///
    /// `INVALID_CONFIG` where calls nest too deep.
    pub fn check(&self, outer: &str) -> Result<(), SandboxError> {
        match self.lock().get(outer) {
            Some(outer) if outer.level >= MAX_NESTED_LEVELS => Err(too_deep()),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Outer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OuterCall {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.name);
    }
}

fn too_deep() -> SandboxError {
    let text = format!(
        "Function calls nest too deep: a host function called a function tool, whose host function called another, and so on, {MAX_NESTED_LEVELS} times, which is the limit"
    );
    SandboxError::new(Code::InvalidConfig, Phase::Validate, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_nest_to_a_limit() {
        let calls = NestedCalls::default();
        let mut open = vec![calls.open("0", None)];
        for level in 1..=MAX_NESTED_LEVELS {
            let outer = (level - 1).to_string();
            calls.check(&outer).unwrap();
            open.push(calls.open(&level.to_string(), Some(&outer)));
        }
        let deepest = MAX_NESTED_LEVELS.to_string();
        assert!(calls.check(&deepest).unwrap_err().message.contains("nest too deep"));
    }

    #[test]
    fn an_outer_call_that_is_over_has_no_queue() {
        let calls = NestedCalls::default();
        let outer = calls.open("a", None);
        assert!(calls.queue_within("a").is_some());
        drop(outer);
        assert!(calls.queue_within("a").is_none());
        assert!(calls.check("a").is_ok());
    }
}
