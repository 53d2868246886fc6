//! Runs function tools in fresh processes for a Node server. See `docs/ARCHITECTURE.md` for the map and the invariants.

#[cfg(feature = "napi")]
mod binding;
pub mod code_cache;
pub mod compile_cache;
pub mod config;
pub mod config_report;
pub mod error;
pub mod executor;
pub mod gauge;
pub mod group;
pub mod histogram;
pub mod host;
pub mod install;
pub mod isolation;
pub mod lifecycle;
pub mod limits;
pub mod log;
pub mod mailbox;
pub mod maintenance;
pub mod narrow;
pub mod nested;
pub mod pool;
pub mod process;
pub mod provider;
pub mod queue;
pub mod redact;
pub mod retry_cell;
pub mod source;
pub mod start;
pub mod store;
pub mod supervise;
pub mod supply;
pub mod sys;
pub mod talk;
pub mod timeline;
pub mod worker;
