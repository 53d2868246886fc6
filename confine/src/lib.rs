//! What a process gives up before it runs somebody else's code.
//!
//! A [`Plan`] is made by the host, travels as bytes ([`Plan::encode`], [`Plan::decode`]) through launcher and zygote,
//! which know nothing of policy, and is applied by the child itself: between fork and exec, or, in a forked worker, before
//! it runs any JavaScript. Applying allocates nothing and takes no lock; whatever it needs stands in the decoded plan.
//!
//! Linked into the launcher and into the library inside of Node, so it needs libc only and starts no thread.

#[cfg(target_os = "linux")]
mod apply;
mod bytes;
#[cfg(target_os = "linux")]
mod cradle;
#[cfg(target_os = "linux")]
mod fixtures;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod listener;
mod mark;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod pids;
#[cfg(target_os = "linux")]
mod places;
mod plan;
#[cfg(target_os = "linux")]
mod scratch;

#[cfg(target_os = "linux")]
pub use apply::{Failed, apply, apply_at, enter_group, remember_bounding, set_limit};
pub use bytes::{MAX_PLAN_BYTES, Malformed};
#[cfg(target_os = "linux")]
pub use cradle::{Cradle, FIRST_CHILD, dismiss};
#[cfg(target_os = "linux")]
pub use listener::{LISTENER_FD, LISTENER_WORD};
pub use mark::{CALL_NUMBERS_END, Mark};
#[cfg(target_os = "linux")]
pub use pids::nest;
#[cfg(target_os = "linux")]
pub use places::Places;
pub use plan::{
    CacheLink, Contents, Domain, Fixtures, Instruction, MAX_SLOTS, Plan, Rule, SCRATCH_WORD, Scratch, Step,
};
