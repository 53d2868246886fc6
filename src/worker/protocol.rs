//! Frames of a worker's channel; see `docs/worker-protocol.md`. Pure.
