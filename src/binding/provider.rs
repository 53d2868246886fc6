//! Providers: the plan of a call, the desk, the reading of a run. Conversions only.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use napi::{
    Either, Env, Status,
    bindgen_prelude::{Object, Uint8Array},
};
use napi_derive::napi;

use super::{Outcome, promise};
use crate::{
    config::millis,
    files::given,
    provider::{
        self, Desk, Plan, Rules, Run,
        desk::{After, Grant, Reply},
        run::Stream,
    },
    worker::{WORKER_SCRIPT, outcome},
};

/// The scripts that a provider's sandbox needs, by file name.
#[napi(object)]
pub struct ProviderScripts {
    pub runner: String,
    pub worker: String,
}

#[napi(catch_unwind)]
pub fn provider_scripts() -> ProviderScripts {
    ProviderScripts { runner: provider::RUNNER_SCRIPT.to_owned(), worker: WORKER_SCRIPT.to_owned() }
}

/// What is wrong with the paths of the files of a call, if something is, in words for the caller.
#[napi(catch_unwind)]
pub fn file_paths_problem(paths: Vec<String>) -> Option<String> {
    given::check_paths(paths.iter().map(String::as_str)).err().map(|error| error.message)
}

/// What calls need under one set of options.
#[napi(js_name = "ProviderRules")]
pub struct BindingRules {
    inner: Rules,
}

/// What one call needs.
#[napi(js_name = "ProviderPlan")]
pub struct BindingPlan {
    inner: Plan,
}

#[napi]
impl BindingRules {
    /// Never throws: what is wrong with options or variables is the answer of every call.
    #[napi(constructor, catch_unwind)]
    pub fn new(options_json: String, env_json: String) -> Self {
        Self { inner: Rules::new(&options_json, &env_json) }
    }

    /// A plan, or the outcome of a call that cannot run.
    #[napi(catch_unwind, ts_return_type = "Promise<ProviderPlan | Outcome>")]
    pub fn plan<'env>(&self, env: &'env Env, request: String) -> napi::Result<Object<'env>> {
        let (settle, promise) = promise(env)?;
        self.inner.plan_then(request, move |plan| {
            settle(match plan {
                Ok(inner) => Either::A(BindingPlan { inner }),
                Err(error) => Either::B(Outcome::from(error)),
            });
        });
        Ok(promise)
    }
}

#[napi]
impl BindingPlan {
    /// What JavaScript needs to act, as JSON.
    #[napi(catch_unwind)]
    pub fn details(&self) -> napi::Result<String> {
        serde_json::to_string(&self.inner.details)
            .map_err(|error| napi::Error::new(Status::GenericFailure, error.to_string()))
    }
}

/// Which sandbox a call gets, who waits, what is to be stopped. One per JavaScript environment.
#[napi(js_name = "ProviderDesk")]
pub struct BindingDesk {
    inner: Mutex<Desk>,
}

/// A sandbox lent to a call.
#[napi(object)]
pub struct DeskGrant {
    /// The call that has it; 0 where it did not wait.
    pub ticket: f64,
    pub lease: f64,
    pub sandbox: f64,
    pub use_count: u32,
}

/// `kind`: `granted`, `wait`, `create`, `rejected`.
#[napi(object)]
pub struct DeskReply {
    pub kind: String,
    pub grant: Option<DeskGrant>,
    pub ticket: Option<f64>,
    pub creation: Option<f64>,
    pub stops: Vec<f64>,
}

/// What a finished creation means for those who waited.
#[napi(object)]
pub struct DeskArrived {
    pub granted: Vec<DeskGrant>,
    pub again: Vec<f64>,
    pub stops: Vec<f64>,
}

#[napi(object)]
pub struct DeskCounts {
    pub ready: u32,
    pub retired: u32,
    pub creating: u32,
    pub waiting: u32,
    pub leases: u32,
}

#[napi]
impl BindingDesk {
    #[napi(constructor, catch_unwind)]
    pub fn new() -> Self {
        Self { inner: Mutex::default() }
    }

    #[napi(catch_unwind)]
    pub fn acquire(&self, plan: &BindingPlan) -> DeskReply {
        let (reply, stops) = self.desk().acquire(&plan.inner.key, plan.inner.wish, Instant::now());
        let empty = DeskReply {
            kind: String::new(),
            grant: None,
            ticket: None,
            creation: None,
            stops: numbers(stops),
        };
        match reply {
            Reply::Granted(given) => {
                DeskReply { kind: "granted".to_owned(), grant: Some(grant(0, given)), ..empty }
            }
            Reply::Wait(ticket) => {
                DeskReply { kind: "wait".to_owned(), ticket: Some(number(ticket)), ..empty }
            }
            Reply::Create(creation, ticket) => DeskReply {
                kind: "create".to_owned(),
                ticket: Some(number(ticket)),
                creation: Some(number(creation)),
                ..empty
            },
            Reply::Rejected => DeskReply { kind: "rejected".to_owned(), ..empty },
        }
    }

    /// `lifetimeMs`: how long the sandbox lives from now on; absent where it lives until it is stopped.
    #[napi(catch_unwind)]
    pub fn ready(&self, creation: f64, lifetime_ms: Option<f64>) -> DeskArrived {
        let now = Instant::now();
        let until = lifetime_ms.map(|ms| now + millis(ms));
        let arrived = self.desk().ready(key(creation), until, now);
        DeskArrived {
            granted: arrived.granted.into_iter().map(|(ticket, given)| grant(ticket, given)).collect(),
            again: numbers(arrived.again),
            stops: numbers(arrived.stops),
        }
    }

    #[napi(catch_unwind)]
    pub fn failed(&self, creation: f64) -> Vec<f64> {
        numbers(self.desk().failed(key(creation)))
    }

    #[napi(catch_unwind)]
    pub fn leave(&self, ticket: f64) -> Option<f64> {
        self.desk().leave(key(ticket)).map(number)
    }

    /// `suspect`: nobody else gets the sandbox.
    #[napi(catch_unwind)]
    pub fn release(&self, lease: f64, suspect: bool) -> Vec<f64> {
        let after = if suspect { After::Suspect } else { After::Clean };
        numbers(self.desk().release(key(lease), after, Instant::now()))
    }

    #[napi(catch_unwind)]
    pub fn retire(&self, lease: f64) {
        self.desk().retire(key(lease));
    }

    #[napi(catch_unwind)]
    pub fn is_shared(&self, lease: f64) -> bool {
        self.desk().is_shared(key(lease))
    }

    #[napi(catch_unwind)]
    pub fn sweep(&self) -> Vec<f64> {
        numbers(self.desk().sweep(Instant::now()))
    }

    /// Of one scope, or of all.
    #[napi(catch_unwind)]
    pub fn drain(&self, scope: Option<String>) -> Vec<f64> {
        numbers(self.desk().drain(scope.as_deref()))
    }

    #[napi(catch_unwind)]
    pub fn counts(&self) -> DeskCounts {
        let counts = self.desk().counts();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        DeskCounts {
            ready: count(counts.ready),
            retired: count(counts.retired),
            creating: count(counts.installing),
            waiting: count(counts.waiting),
            leases: count(counts.leases),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one run.
#[napi(js_name = "ProviderRun")]
pub struct BindingRun {
    inner: Run,
}

/// What a run's process used.
#[napi(object)]
pub struct RunUsed {
    pub cpu_us: f64,
    pub max_rss_kib: f64,
}

/// What a chunk was.
#[napi(object)]
pub struct RunTaken {
    /// The function's own output in it.
    pub text: String,
    pub outcome: Option<Outcome>,
}

#[napi]
impl BindingRun {
    #[napi(constructor, catch_unwind)]
    pub fn new(nonce: String, plan: &BindingPlan) -> Self {
        let details = &plan.inner.details;
        let run = Run::new(&nonce, details.max_output_bytes, details.memory_mb);
        let run = run.redacting(plan.inner.redactor.clone());
        Self { inner: run.declaring(details.dependencies.keys().cloned()) }
    }

    #[napi(catch_unwind)]
    pub fn push(&mut self, stream: String, bytes: Uint8Array) -> napi::Result<RunTaken> {
        let stream = match stream.as_str() {
            "stdout" => Stream::Stdout,
            "stderr" => Stream::Stderr,
            other => return Err(napi::Error::new(Status::InvalidArg, format!("unknown stream: {other}"))),
        };
        let taken = self.inner.push(stream, &bytes);
        Ok(RunTaken { text: taken.text, outcome: taken.settled.map(from) })
    }

    /// The command ended, with this code if it is known.
    #[napi(catch_unwind)]
    pub fn ended(&mut self, exit_code: Option<i32>) -> Outcome {
        from(self.inner.ended(exit_code))
    }

    /// What the process used, once it has said so.
    #[napi(catch_unwind)]
    pub fn used(&self) -> Option<RunUsed> {
        let used = self.inner.used()?;
        Some(RunUsed { cpu_us: number(used.cpu_us), max_rss_kib: number(used.max_rss_kib) })
    }

    /// Bytes of output and result so far.
    #[napi(catch_unwind)]
    pub fn output_bytes(&self) -> f64 {
        number(self.inner.output_bytes())
    }

    #[napi(catch_unwind)]
    pub fn timed_out(&self, timeout_ms: f64) -> Outcome {
        self.inner.timed_out(millis(timeout_ms)).into()
    }

    #[napi(catch_unwind)]
    pub fn lost(&self, reason: String) -> Outcome {
        self.inner.lost(&reason).into()
    }
}

fn from(outcome: outcome::Outcome) -> Outcome {
    Outcome::from(outcome)
}

fn grant(ticket: u64, grant: Grant) -> DeskGrant {
    DeskGrant {
        ticket: number(ticket),
        lease: number(grant.lease),
        sandbox: number(grant.sandbox),
        use_count: grant.use_count,
    }
}

fn numbers(from: Vec<u64>) -> Vec<f64> {
    from.into_iter().map(number).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counted from 1: far below 2^53")]
fn number(from: u64) -> f64 {
    from as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates; the numbers are whole and positive"
)]
fn key(from: f64) -> u64 {
    from as u64
}
