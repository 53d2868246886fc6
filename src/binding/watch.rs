//! What becomes of sandboxes → a JavaScript callback, one per JavaScript environment that has asked for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use napi::{
    Env, Status,
    bindgen_prelude::Function,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};

use crate::lifecycle::{self, Watcher, WatcherId};

/// Events that may wait for the JavaScript thread; more are dropped rather than kept without limit.
const QUEUE_LIMIT_EVENTS: usize = 1024;

type Callback = ThreadsafeFunction<String, (), String, Status, false, true, QUEUE_LIMIT_EVENTS>;

struct JsWatcher(Callback);

impl Watcher for JsWatcher {
    fn event(&self, json: String) {
        self.0.call(json, ThreadsafeFunctionCallMode::NonBlocking);
    }
}

/// Watchers by environment.
fn registry() -> &'static Mutex<HashMap<usize, WatcherId>> {
    static REGISTRY: OnceLock<Mutex<HashMap<usize, WatcherId>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

/// Replaces this environment's watcher.
pub(super) fn set(env: &Env, function: Option<Function<'_, String, ()>>) -> napi::Result<()> {
    let key = env.raw() as usize;
    forget(key);
    let Some(function) = function else { return Ok(()) };
    let callback = function
        .build_threadsafe_function::<String>()
        .weak::<true>()
        .callee_handled::<false>()
        .max_queue_size::<QUEUE_LIMIT_EVENTS>()
        .build_callback(|context| Ok(context.value))?;
    let id = lifecycle::register(Arc::new(JsWatcher(callback)));
    registry().lock().unwrap_or_else(PoisonError::into_inner).insert(key, id);
    env.add_env_cleanup_hook((), move |()| forget(key))?;
    Ok(())
}

fn forget(key: usize) {
    let old = registry().lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    if let Some(old) = old {
        lifecycle::unregister(old);
    }
}
