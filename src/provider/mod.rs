//! Tools that run elsewhere. A provider's sandboxes are objects of JavaScript, and JavaScript acts on them; what is to
//! be done is decided here. Pure.
//!
//! | file | what it decides |
//! | --- | --- |
//! | `plan.rs` | what a call needs: prepared source, limits, installation, which sandboxes will do |
//! | `desk.rs` | which sandbox a call gets, who waits, what is to be stopped; over `pool::state` |
//! | `run.rs` | what a run prints → output, result, limit, error |
//! | `runner.cjs` | runs inside the sandbox, around the worker's script |

pub mod desk;
pub mod plan;
pub mod run;

pub use desk::Desk;
pub use plan::{Plan, Rules};
pub use run::Run;

/// The script that takes a run's job inside a sandbox (`CommonJS`, Node built-ins only); needs the worker's script beside it.
pub const RUNNER_SCRIPT: &str = include_str!("runner.cjs");
