//! Any text at all: it is classified or refused, in bounded time and stack, and what comes of it holds together.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use native_sandbox_executor::source::Runtime;

#[path = "../tests/source_support/mod.rs"]
mod source_support;

fuzz_target!(|data: &[u8]| -> Corpus {
    // The first byte chooses the runtime, so that one corpus serves both.
    let Some((choice, text)) = data.split_first() else { return Corpus::Reject };
    let Ok(text) = std::str::from_utf8(text) else { return Corpus::Reject };
    let runtime = if choice & 1 == 0 { Runtime::Node22 } else { Runtime::TypeScript };
    if let Some(fault) = source_support::fault_of(text, runtime) {
        panic!("{fault}");
    }
    Corpus::Keep
});
