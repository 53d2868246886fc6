//! The core's log records → a JavaScript callback, one per JavaScript environment (main thread, each worker thread).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use napi::{
    Env, Status,
    bindgen_prelude::Function,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use napi_derive::napi;
use tracing::level_filters::LevelFilter;

use crate::log::{self, Record, Sink, SinkId};

/// Records that may wait for the JavaScript thread; more are dropped rather than kept without limit.
const QUEUE_LIMIT_RECORDS: usize = 8192;

/// A record as JavaScript sees it.
#[napi(object)]
pub struct LogRecord {
    pub name: String,
    pub level: String,
    pub message: String,
    /// JSON of the fields.
    pub fields: String,
}

type Callback = ThreadsafeFunction<Record, (), LogRecord, Status, false, true, QUEUE_LIMIT_RECORDS>;

struct JsSink(Callback);

impl Sink for JsSink {
    fn emit(&self, record: Record) -> bool {
        !matches!(
            self.0.call(record, ThreadsafeFunctionCallMode::NonBlocking),
            Status::Closing | Status::InvalidArg
        )
    }
}

/// Sinks by environment.
fn registry() -> &'static Mutex<HashMap<usize, SinkId>> {
    static REGISTRY: OnceLock<Mutex<HashMap<usize, SinkId>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

fn key(env: &Env) -> usize {
    env.raw() as usize
}

/// The sink that this environment set.
pub(super) fn sink_of(env: &Env) -> Option<SinkId> {
    registry().lock().unwrap_or_else(PoisonError::into_inner).get(&key(env)).copied()
}

/// Replaces this environment's sink.
pub(super) fn set(env: &Env, level: &str, function: Option<Function<'_, LogRecord, ()>>) -> napi::Result<()> {
    let filter: LevelFilter = level
        .parse()
        .map_err(|_| napi::Error::new(Status::InvalidArg, format!("unknown log level: {level}")))?;
    forget(key(env));
    let Some(function) = function.filter(|_| filter != LevelFilter::OFF) else { return Ok(()) };
    let callback = function
        .build_threadsafe_function::<Record>()
        .weak::<true>()
        .callee_handled::<false>()
        .max_queue_size::<QUEUE_LIMIT_RECORDS>()
        .build_callback(|context| {
            let Record { name, level, message, fields_json } = context.value;
            Ok(LogRecord { name, level: level.to_owned(), message, fields: fields_json })
        })?;
    let id = log::register(filter, Arc::new(JsSink(callback)));
    registry().lock().unwrap_or_else(PoisonError::into_inner).insert(key(env), id);
    let key = key(env);
    env.add_env_cleanup_hook((), move |()| forget(key))?;
    Ok(())
}

fn forget(key: usize) {
    let old = registry().lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    if let Some(old) = old {
        log::unregister(old);
    }
}
