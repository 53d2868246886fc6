//! Live events of one call (its output, its usage) → a JavaScript callback.

use std::sync::Arc;

use napi::{
    Status,
    bindgen_prelude::Function,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use napi_derive::napi;

use super::Events;
use crate::executor::{CallEvents, EventKind};

/// Events that may wait for the JavaScript thread, per call; more are dropped: output is bounded anyway, and a host that
/// does not listen must not be flooded.
const QUEUE_LIMIT_EVENTS: usize = 4096;

/// An event as JavaScript sees it.
#[napi(object)]
pub struct CallEvent {
    /// `stdout`, `stderr` or `usage`.
    pub kind: String,
    /// A piece of output, or JSON of the usage.
    pub text: String,
}

type Callback = ThreadsafeFunction<CallEvent, (), CallEvent, Status, false, true, QUEUE_LIMIT_EVENTS>;

struct Listener(Callback);

impl CallEvents for Listener {
    fn event(&self, kind: EventKind, text: String) {
        self.0
            .call(CallEvent { kind: kind.name().to_owned(), text }, ThreadsafeFunctionCallMode::NonBlocking);
    }
}

/// A listener that never keeps the host alive.
pub(super) fn listener(function: &Function<'_, CallEvent, ()>) -> napi::Result<Events> {
    let callback = function
        .build_threadsafe_function::<CallEvent>()
        .weak::<true>()
        .callee_handled::<false>()
        .max_queue_size::<QUEUE_LIMIT_EVENTS>()
        .build_callback(|context| Ok(context.value))?;
    Ok(Arc::new(Listener(callback)))
}
