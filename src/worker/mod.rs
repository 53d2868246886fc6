//! What goes over a worker's channel, and the script that runs inside it.

pub mod protocol;

/// The script a worker runs (CommonJS, Node built-ins only). `store` writes it to disk for the `spawn` rung.
pub const WORKER_SCRIPT: &str = include_str!("worker.cjs");
