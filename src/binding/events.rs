//! Live events of one call (its output, its steps, its usage) → a JavaScript callback.

use std::sync::Arc;

use napi::{
    Status,
    bindgen_prelude::Function,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use napi_derive::napi;

use super::Events;
use crate::{
    executor::{CallEvents, EventKind},
    mailbox::Mailbox,
};

/// Times that the callback may wait to be called: once for what is in the mailbox, and once while it is just being called.
const QUEUE_LIMIT_CALLS: usize = 2;

/// An event as JavaScript sees it.
#[napi(object)]
pub struct CallEvent {
    /// `stdout`, `stderr`, `step`, `call`, `progress`, `yield`, `feed`, `file` or `usage`.
    pub kind: String,
    /// A piece of output, or JSON.
    pub text: String,
}

type Callback = ThreadsafeFunction<(), (), Vec<CallEvent>, Status, false, true, QUEUE_LIMIT_CALLS>;

struct Listener {
    mailbox: Arc<Mailbox>,
    callback: Callback,
}

impl CallEvents for Listener {
    fn event(&self, kind: EventKind, text: String) {
        if self.mailbox.push(kind, text) {
            self.callback.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

/// A listener that never keeps the host alive.
pub(super) fn listener(function: &Function<'_, Vec<CallEvent>, ()>) -> napi::Result<Events> {
    let mailbox = Arc::new(Mailbox::default());
    let waiting = Arc::clone(&mailbox);
    let callback = function
        .build_threadsafe_function::<()>()
        .weak::<true>()
        .callee_handled::<false>()
        .max_queue_size::<QUEUE_LIMIT_CALLS>()
        .build_callback(move |_| {
            let pieces = waiting.take().into_iter();
            Ok(pieces.map(|(kind, text)| CallEvent { kind: kind.name().to_owned(), text }).collect())
        })?;
    Ok(Arc::new(Listener { mailbox, callback }))
}
