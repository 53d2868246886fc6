//! What it takes to prepare a TypeScript function of some 2 kB: in this process, without anything that is remembered. Prints the
//! samples as JSON, for `benches/run.mjs`.
//!
//!     cargo run --release --example prepare -- <samples>

#![expect(clippy::print_stdout, reason = "the samples go to whoever started this")]

use std::time::{Duration, Instant};

use native_sandbox_executor::source::{Runtime, prepare};

/// Samples where none are asked for.
const SAMPLES: usize = 1_000;

const TEXT: &str = include_str!("prepare.ts");

fn main() {
    let asked = std::env::args().nth(1).and_then(|samples| samples.parse().ok());
    let first_us = micros(once());
    let samples_us: Vec<f64> = (0..asked.unwrap_or(SAMPLES)).map(|_| micros(once())).collect();
    let report = serde_json::json!({ "bytes": TEXT.len(), "first_us": first_us, "samples_us": samples_us });
    println!("{report}");
}

fn once() -> Duration {
    let began = Instant::now();
    let prepared = prepare(TEXT, Runtime::TypeScript);
    let took = began.elapsed();
    assert!(prepared.is_ok(), "the text is no function");
    took
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
