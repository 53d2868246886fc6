//! The only place that names napi: an exported class, conversions, nothing else. Decisions are the core's.
//!
//! Calls answer with values ([`Outcome`]), never with native rejections: the JavaScript surface makes real errors of them.
//! Work runs on the core's own runtime, which lives as long as the process; a call's promise keeps the host alive, nothing
//! else does.

// napi's macros generate code that these lints would complain of.
#![allow(
    clippy::needless_pass_by_value,
    clippy::trivially_copy_pass_by_ref,
    missing_docs,
    unreachable_pub,
    reason = "shapes that #[napi] asks for; JavaScript is who reaches them"
)]
#![cfg_attr(test, allow(dead_code, reason = "napi registers nothing in test programs"))]

mod ends;
mod events;
mod logs;
mod provider;
mod watch;

use std::sync::Arc;

use napi::{
    Env, Status,
    bindgen_prelude::{Buffer, Function, Object, Uint8Array},
};
use napi_derive::napi;

use serde_json::json;

use crate::{
    config::millis,
    error::{Exit, SandboxError},
    executor::{Answer, CallEvents, CancelReason, Executor},
    files::collect::Chunk,
    process::ExitStatus,
    timeline::Mark,
};

/// Runs calls under one set of options.
#[napi(js_name = "Executor")]
pub struct BindingExecutor {
    inner: Arc<Executor>,
}

/// How a call ended. `ok` tells which of the other fields are there.
#[napi(object)]
pub struct Outcome {
    pub ok: bool,
    /// JSON text; null means `undefined`.
    pub value: Option<String>,
    pub code: Option<String>,
    pub phase: Option<String>,
    pub message: Option<String>,
    pub duration_ms: Option<f64>,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    pub cause_json: Option<String>,
    /// Of a process whose end is what failed.
    pub exit_code: Option<i32>,
    /// And where a signal ended it.
    pub exit_signal: Option<String>,
    /// JSON of the steps that the call went through, where they were asked for.
    pub steps: Option<String>,
}

/// Permits of one `vcpus` value.
#[napi(object)]
pub struct QueueStats {
    pub vcpus: String,
    pub available_permits: u32,
    pub queue_length: u32,
}

/// A piece of a file of a function.
#[napi(object)]
pub struct FileChunk {
    /// Nothing at the end of the file.
    pub data: Option<Buffer>,
    /// Whether the file is whole up to here; false without data: it never will be.
    pub ok: bool,
}

type Settle<T> = Box<dyn FnOnce(Env) -> napi::Result<T> + Send>;

/// A promise that the returned function settles, from any thread.
fn promise<T: napi::bindgen_prelude::ToNapiValue + Send + 'static>(
    env: &Env,
) -> napi::Result<(impl FnOnce(T) + Send + 'static + use<T>, Object<'_>)> {
    let (deferred, promise) = env.create_deferred::<T, Settle<T>>()?;
    Ok((move |value: T| deferred.resolve(Box::new(move |_| Ok(value))), promise))
}

#[napi]
impl BindingExecutor {
    /// Never throws: what is wrong with options or variables is the answer of every call. `nodeAbi` is the host's
    /// `process.versions.modules`, where the host is Node.
    #[napi(constructor, catch_unwind)]
    pub fn new(
        env: &Env,
        options_json: String,
        env_json: String,
        node_abi: Option<String>,
    ) -> napi::Result<Self> {
        let inner = Arc::new(Executor::new(&options_json, &env_json, node_abi));
        ends::watch(env, &inner)?;
        Ok(Self { inner })
    }

    /// The same with narrower limits, and with the proxies that the host has now where those are others; both as JSON. Never throws:
    /// what is wrong with them is the answer of every call.
    #[napi(catch_unwind)]
    pub fn narrowed(
        &self,
        env: &Env,
        limits_json: String,
        proxies_json: Option<String>,
    ) -> napi::Result<Self> {
        let inner = Arc::new(self.inner.narrowed(&limits_json, proxies_json.as_deref()));
        ends::watch(env, &inner)?;
        Ok(Self { inner })
    }

    /// Prepares the trees of dependency sets, given as JSON.
    #[napi(catch_unwind, ts_return_type = "Promise<Outcome>")]
    pub fn warm<'env>(&self, env: &'env Env, sets_json: String) -> napi::Result<Object<'env>> {
        let (settle, promise) = promise(env)?;
        self.inner.warm(&sets_json, logs::sink_of(env), move |answer: Answer| settle(Outcome::from(answer)));
        Ok(promise)
    }

    /// Does one task of those who look after the machine, given as JSON; the value is JSON.
    #[napi(catch_unwind, ts_return_type = "Promise<Outcome>")]
    pub fn maintain<'env>(&self, env: &'env Env, task_json: String) -> napi::Result<Object<'env>> {
        let (settle, promise) = promise(env)?;
        self.inner.maintain(&task_json, logs::sink_of(env), move |answer: Answer| {
            settle(Outcome::from(answer));
        });
        Ok(promise)
    }

    /// Runs one call. `callId` names it for `abort`.
    #[napi(catch_unwind, ts_return_type = "Promise<Outcome>")]
    pub fn execute<'env>(
        &self,
        env: &'env Env,
        call_id: f64,
        request: String,
        args_json: Option<String>,
        on_event: Option<Function<'env, Vec<events::CallEvent>, ()>>,
    ) -> napi::Result<Object<'env>> {
        let events = on_event.map(|function| events::listener(&function)).transpose()?;
        let (settle, promise) = promise(env)?;
        let done = move |answer: Answer, steps: Option<Vec<Mark>>| {
            settle(Outcome { steps: steps.map(|steps| json!(steps).to_string()), ..Outcome::from(answer) });
        };
        self.inner.execute(call_key(call_id), &request, args_json, events, logs::sink_of(env), done);
        Ok(promise)
    }

    /// Ends a call, wherever it is; unknown ids are fine.
    #[napi(catch_unwind)]
    pub fn abort(&self, call_id: f64, reason: String) -> napi::Result<()> {
        let reason = match reason.as_str() {
            "aborted" => CancelReason::Aborted,
            "cleanup" => CancelReason::CleanedUp,
            other => return Err(napi::Error::new(Status::InvalidArg, format!("unknown reason: {other}"))),
        };
        self.inner.cancel(call_key(call_id), reason);
        Ok(())
    }

    /// The answer of a host function that a call's function has called: JSON, or the JSON of `{ name, message }`. With `more` it waits
    /// for the next one.
    #[napi(catch_unwind)]
    pub fn answer(&self, call_id: f64, id: u32, ok: bool, json: String, more: bool) {
        self.inner.answer(call_key(call_id), id, ok, &json, more);
    }

    /// One value that a call's function yielded was taken.
    #[napi(catch_unwind)]
    pub fn taken(&self, call_id: f64) {
        self.inner.taken(call_key(call_id));
    }

    /// A piece of the file that an event `feed` asked for.
    #[napi(catch_unwind)]
    pub fn feed(&self, call_id: f64, piece: Uint8Array, is_last: bool) {
        self.inner.feed(call_key(call_id), piece.to_vec(), is_last);
    }

    /// The file that an event `feed` asked for cannot be read.
    #[napi(catch_unwind)]
    pub fn feed_failed(&self, call_id: f64, message: String) {
        self.inner.feed_failed(call_key(call_id), message);
    }

    /// The next chunk of the file that the last event `file` told of.
    #[napi(catch_unwind, ts_return_type = "Promise<FileChunk>")]
    pub fn next_chunk<'env>(&self, env: &'env Env, call_id: f64) -> napi::Result<Object<'env>> {
        let (settle, promise) = promise(env)?;
        self.inner.chunk(call_key(call_id), move |chunk| {
            settle(match chunk {
                Some(Chunk::Data(data)) => FileChunk { data: Some(Buffer::from(data)), ok: true },
                Some(Chunk::End) => FileChunk { data: None, ok: true },
                None => FileChunk { data: None, ok: false },
            });
        });
        Ok(promise)
    }

    /// The caller is done with that file; with a message, it failed.
    #[napi(catch_unwind)]
    pub fn file_taken(&self, call_id: f64, failure: Option<String>) {
        self.inner.file_taken(call_key(call_id), failure.map_or(Ok(()), Err));
    }

    /// Rejects what has not started, waits for what runs; with `drain`, idle sandboxes and the launcher go too. With a deadline,
    /// all may go on until it has passed, and nothing new begins.
    #[napi(catch_unwind, ts_return_type = "Promise<void>")]
    pub fn cleanup<'env>(
        &self,
        env: &'env Env,
        drain: bool,
        deadline_ms: Option<f64>,
    ) -> napi::Result<Object<'env>> {
        let (settle, promise) = promise(env)?;
        self.inner.cleanup(drain, deadline_ms.map(millis), move || settle(()));
        Ok(promise)
    }

    /// What the option `env` names: JSON of `"inherit"` or of a list of names and prefixes.
    #[napi(catch_unwind)]
    pub fn listed_env(&self) -> String {
        self.inner.listed_env().to_string()
    }

    /// Permits and queue lengths of the whole process.
    #[napi(catch_unwind)]
    pub fn stats(&self) -> Vec<QueueStats> {
        let stats = self.inner.queue_stats().into_iter();
        stats
            .map(|class| QueueStats {
                vcpus: class.vcpus,
                available_permits: class.available_permits,
                queue_length: class.queue_length,
            })
            .collect()
    }

    /// Everything countable, as JSON.
    #[napi(catch_unwind)]
    pub fn metrics(&self) -> String {
        self.inner.metrics().to_string()
    }
}

/// What isolation is in force: JSON in an outcome. `envJson` is for where no call was served yet.
#[napi(catch_unwind, ts_return_type = "Promise<Outcome>")]
pub fn isolation_report(env: &Env, env_json: String) -> napi::Result<Object<'_>> {
    let (settle, promise) = promise(env)?;
    crate::executor::isolation_report(&env_json, move |report| {
        settle(Outcome::from(report.map(|report| Some(report.to_string()))));
    });
    Ok(promise)
}

/// No executor of the process takes a call from now on; resolves when those that were taken are over, or ended at the deadline.
#[napi(catch_unwind, ts_return_type = "Promise<void>")]
pub fn shutdown(env: &Env, deadline_ms: f64) -> napi::Result<Object<'_>> {
    let (settle, promise) = promise(env)?;
    crate::executor::shutdown(millis(deadline_ms), move || settle(()));
    Ok(promise)
}

/// Takes `shutdown` back.
#[napi(catch_unwind)]
pub fn reopen() {
    crate::executor::reopen();
}

/// Where this JavaScript environment hears of sandboxes; null: nowhere.
#[napi(catch_unwind)]
pub fn set_sandbox_watcher(env: &Env, watcher: Option<Function<'_, String, ()>>) -> napi::Result<()> {
    watch::set(env, watcher)
}

/// Where this JavaScript environment's log records go; a null sink or `"off"` means nowhere.
#[napi(catch_unwind)]
pub fn set_log_sink(
    env: &Env,
    level: String,
    sink: Option<Function<'_, logs::LogRecord, ()>>,
) -> napi::Result<()> {
    logs::set(env, &level, sink)
}

/// The version of the core.
#[napi]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// JavaScript counts calls with whole numbers below 2^53.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; ids are whole and positive"
)]
fn call_key(call_id: f64) -> u64 {
    call_id as u64
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        match answer {
            Ok(value) => Self { ok: true, value, ..Self::empty() },
            Err(error) => Self::from(error),
        }
    }
}

impl From<SandboxError> for Outcome {
    fn from(error: SandboxError) -> Self {
        let exit = error.exit.map(Exit::status);
        Self {
            code: Some(error.code.to_string()),
            phase: Some(error.phase.to_string()),
            message: Some(error.message),
            duration_ms: Some(error.duration.as_secs_f64() * 1000.0),
            stdout: error.stdout,
            stderr: error.stderr,
            cause_json: error.cause_json,
            exit_code: exit.and_then(ExitStatus::code),
            exit_signal: exit.and_then(ExitStatus::signal_name).map(str::to_owned),
            ..Self::empty()
        }
    }
}

impl Outcome {
    fn empty() -> Self {
        Self {
            ok: false,
            value: None,
            code: None,
            phase: None,
            message: None,
            duration_ms: None,
            stdout: None,
            stderr: None,
            cause_json: None,
            exit_code: None,
            exit_signal: None,
            steps: None,
        }
    }
}

/// Silences the compiler where a listener is built but the trait object is what counts.
pub(crate) type Events = Arc<dyn CallEvents>;
