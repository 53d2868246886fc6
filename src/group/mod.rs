//! Control groups (version 2) of calls: what the kernel limits and counts for all processes of one call together, and the kill
//! that none of them escapes.
//!
//! [`find`] says where groups may be made, from what the kernel and systemd tell; [`plan`] what is written into one. Both are
//! pure. `groups` does it. The server itself is never moved, so that groups can be had only where it is in a group beside or
//! below which others may be made.

pub mod find;
#[cfg(target_os = "linux")]
mod groups;
pub mod plan;

use std::sync::Arc;

use self::find::Refusal;
#[cfg(target_os = "linux")]
pub use groups::{Group, Groups, detect};
use plan::GroupLimits;

/// What the kernel has counted against a call, as far as it tells which limit ended it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// The group was out of memory, and its processes were killed for it.
    pub out_of_memory: bool,
    /// A process or thread was refused.
    pub tasks_refused: bool,
}

/// What a call has used, all of its processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Processor time, microseconds.
    pub cpu_us: Option<u64>,
    /// The most memory at once, bytes; what is cached of files and what the kernel holds for them counts.
    pub memory_peak_bytes: Option<u64>,
}

/// Groups of one kind of call. Equal ones make equal groups.
#[derive(Debug, Clone)]
pub struct CallGroups {
    groups: Arc<Groups>,
    limits: GroupLimits,
}

/// What came of looking for them.
pub type Found = Result<CallGroups, Refusal>;

impl PartialEq for CallGroups {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.groups, &other.groups) && self.limits == other.limits
    }
}

impl Eq for CallGroups {}

impl std::hash::Hash for CallGroups {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.groups).hash(state);
        self.limits.hash(state);
    }
}

impl CallGroups {
    /// Groups with these limits.
    pub fn new(groups: Arc<Groups>, limits: GroupLimits) -> Self {
        Self { groups, limits }
    }

    /// How far they go, for people.
    pub(crate) fn told(&self) -> String {
        let GroupLimits { memory_bytes, tasks, cpu_thousandths } = self.limits;
        let cpus = match (cpu_thousandths, self.limits_processors()) {
            (_, false) => "processors are not limited: the controller cpu is missing".to_owned(),
            (None, true) => "processors are shared fairly between calls".to_owned(),
            (Some(limit), true) => format!("{} processors", f64::from(limit) / 1000.0),
        };
        format!(
            "all processes of a call together: {} MiB of memory, {tasks} processes and threads; {cpus}",
            memory_bytes / (1024 * 1024)
        )
    }

    /// Whether `cpus` can be enforced.
    pub fn limits_processors(&self) -> bool {
        self.groups.controllers().cpu
    }

    /// Makes one, off the async threads: the kernel makes one group after the other.
    pub(crate) async fn make(&self) -> std::io::Result<Arc<Group>> {
        let own = self.clone();
        let made = tokio::task::spawn_blocking(move || own.groups.make(&own.limits)).await;
        made.map_err(std::io::Error::other)?.map(Arc::new)
    }
}

/// There are none elsewhere.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum Group {}

/// There are none elsewhere.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum Groups {}

#[cfg(not(target_os = "linux"))]
impl Groups {
    /// Never called.
    pub fn controllers(&self) -> find::Controllers {
        match *self {}
    }

    /// Never called.
    pub fn make(&self, _: &GroupLimits) -> std::io::Result<Group> {
        match *self {}
    }

    /// Never called.
    pub fn rest(&self) {
        match *self {}
    }
}

#[cfg(not(target_os = "linux"))]
impl Group {
    /// Never called.
    pub fn kill(&self) {
        match *self {}
    }

    /// Never called.
    pub fn counted(&self) -> Counted {
        match *self {}
    }

    /// Never called.
    pub fn used(&self) -> Used {
        match *self {}
    }
}
