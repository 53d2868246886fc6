//! The launcher.

fn main() {}
