//! What goes over a worker's channel, what it means for the caller, and the script that runs inside a worker.

pub mod breach;
pub mod outcome;
pub mod output;
pub mod protocol;

/// The script a worker runs (`CommonJS`, Node built-ins only). `store` writes it to disk for the `spawn` rung.
pub const WORKER_SCRIPT: &str = include_str!("worker.cjs");

/// A function that loads a tree's packages so that Node compiles them into its cache: `{ packages, limitMs }` → `{ compiled }`,
/// `{ unfit }` or `{ reason }`.
pub const COMPILE_FUNCTION: &str = include_str!("compile.js");

/// The script a zygote runs (`CommonJS`, Node built-ins only).
pub const ZYGOTE_SCRIPT: &str = include_str!("zygote.cjs");
