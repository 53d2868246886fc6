//! What one call may use of the machine, as settings, as kernel limits, and as texts for whoever hits one. Pure.
//!
//! Each of these limits has a way of being noticed: the kernel refuses or signals (`RLIMIT_*`), V8 gives up (the heap), or
//! `gauge` looks while the call runs (disk, processes).

use serde_json::{Value, json};

use crate::{group::plan::GroupLimits, process};

const MIB: u64 = 1024 * 1024;

/// Address space that counts as data before a function has run, up to Node 22.
const OLD_NODE_DATA_MB: u64 = 192;
/// What Node 24 and later reserve for code, in a way that counts, for the main thread and for each worker thread.
const CODE_MB: u64 = 512;
/// Worker threads that there is room for. With it the kernel's limit is no more than a stop for the worst; `gauge` looks at what
/// is really there.
const THREADS: u64 = 16;
/// Resident memory of a Node, or of another program, that has done nothing yet.
const PROGRAM_MB: u64 = 64;
/// What a call's control group has on top of its limits, MiB: Node itself, what is cached of files, and what the kernel holds for
/// the processes.
const GROUP_MB: u64 = 256;
/// Threads of one process, as far as the kernel's count of a user's threads goes: a Node has eleven.
const PROCESS_TASKS: u32 = 16;
/// And on top of that, for one that starts many.
const MORE_TASKS: u32 = 256;
/// `process.versions.modules` of Node 22.
const OLD_NODE_ABI: u32 = 127;

/// With less of a heap Node does not boot.
pub const MIN_MEMORY_MB: f64 = 16.0;
/// With less of a processor nothing gets done.
pub const MIN_CPUS: f64 = 0.01;
/// Fewer would not let Node itself work.
pub const MIN_OPEN_FILES: f64 = 64.0;
/// Files and folders in working and temp folder: more cost the machine more than their bytes do.
pub const DISK_LIMIT_FILES: u64 = 100_000;

/// Limits of one call beside time, output and concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// Heap of V8, MiB.
    pub memory_mb: u32,
    /// Memory outside of the heap, MiB.
    pub native_memory_mb: u32,
    /// Processor time of one process, seconds; none: only the call's time counts.
    pub cpu_seconds: Option<u32>,
    /// Open files of one process.
    pub open_files: u32,
    /// Size of one file, MiB.
    pub file_size_mb: u32,
    /// Everything in working and temp folder, MiB.
    pub disk_mb: u32,
    /// Processes at once, the function's own included; a browser takes some 30.
    pub processes: u32,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl CallLimits {
    /// If nobody says otherwise. Ordinary tools do not come near any of these.
    pub const DEFAULT: Self = Self {
        memory_mb: 1024,
        native_memory_mb: 1024,
        cpu_seconds: None,
        open_files: 4096,
        file_size_mb: 1024,
        disk_mb: 1024,
        processes: 128,
    };

    /// What the kernel is told. `node_abi` is that of the Node that runs functions, where it is known.
    ///
    /// Memory outside of the heap can only be limited together with it, as data (`RLIMIT_DATA`). Not as address space:
    /// WebAssembly reserves tens of GiB of that, and uses none of it.
    pub fn of_process(&self, node_abi: Option<&str>) -> process::Limits {
        let is_old = node_abi.and_then(|abi| abi.parse::<u32>().ok()).is_some_and(|abi| abi <= OLD_NODE_ABI);
        let node_mb = OLD_NODE_DATA_MB + if is_old { 0 } else { CODE_MB * (THREADS + 1) };
        process::Limits {
            open_files: Some(self.open_files.into()),
            file_size_bytes: Some(u64::from(self.file_size_mb) * MIB),
            cpu_seconds: self.cpu_seconds.map(u64::from),
            data_bytes: Some((u64::from(self.memory_mb) + u64::from(self.native_memory_mb) + node_mb) * MIB),
        }
    }

    /// Resident bytes of a call's `processes` together.
    pub fn resident_bytes(&self, processes: u64) -> u64 {
        let own_mb = u64::from(self.memory_mb) + u64::from(self.native_memory_mb);
        own_mb.saturating_add(PROGRAM_MB.saturating_mul(processes)).saturating_mul(MIB)
    }

    /// Threads of all processes together: where a call has a user of its own, the kernel lets it have no more.
    pub fn tasks(&self) -> u32 {
        self.processes.saturating_mul(PROCESS_TASKS).saturating_add(MORE_TASKS)
    }

    /// What all processes of a call together may use, where the kernel can be told so. `in_memory`: what it writes is, and counts.
    pub fn of_group(&self, cpu_thousandths: Option<u32>, in_memory: bool) -> GroupLimits {
        let written_mb = if in_memory { u64::from(self.disk_mb) } else { 0 };
        let memory_mb = u64::from(self.memory_mb) + u64::from(self.native_memory_mb) + written_mb + GROUP_MB;
        GroupLimits {
            memory_bytes: memory_mb * MIB,
            // Those that keep a PID namespace count here, so that this is reached before the limit of the call's user: only this one is
            // told as what it is.
            tasks: self.tasks(),
            cpu_thousandths,
        }
    }

    /// Bytes in working and temp folder.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_mb) * MIB
    }
}

/// Who enforces each limit here, for `isolationReport()`. `in_groups`: calls have control groups; `cpus`: which limit processors.
pub fn report(in_groups: bool, cpus: bool) -> Value {
    let by_group = |what: &str| {
        if in_groups {
            format!("{what}. All of the call's processes together: its control group")
        } else {
            what.to_owned()
        }
    };
    let limit =
        |option: &str, in_force: bool, by: &str| json!({ "option": option, "inForce": in_force, "by": by });
    let linux = cfg!(target_os = "linux");
    json!([
        limit("memoryMb", true, "V8"),
        limit(
            "nativeMemoryMb",
            linux,
            &by_group(
                "the kernel (RLIMIT_DATA), per process, with room for what Node reserves; and looks at what the call's processes hold \
                 together, page tables, shared memory and files of memory included: a call can exceed it between two looks. Shared memory and \
                 files of memory without a descriptor count as what is in them where the host has CAP_SYS_ADMIN, else as what is mapped of \
                 them, so that one page that is mapped may keep fileSizeMb, or what was mapped of shared memory before. Not looked at: what is \
                 in pipes (64 KiB each) and sockets (some 0.4 MiB each) and files of memory on their way through a socket \
                 (fileSizeMb each), up to openFiles descriptors for each process",
            ),
        ),
        limit("cpuSeconds", cfg!(unix), "the kernel (RLIMIT_CPU), per process"),
        limit(
            "cpus",
            cpus,
            "the kernel, all of the call's processes together: its control group (layer controlGroup)"
        ),
        limit("openFiles", cfg!(unix), "the kernel (RLIMIT_NOFILE), per process"),
        limit("fileSizeMb", cfg!(unix), "the kernel (RLIMIT_FSIZE)"),
        limit(
            "diskMb",
            true,
            "the kernel, where run folders are in memory (layer diskQuota); else looks at the call's \
             folders while it runs: a call can exceed it between two looks"
        ),
        limit(
            "maxProcesses",
            linux,
            &by_group(
                "looks at the call's processes, wherever they are, while it runs; a call can exceed it between two looks. They may have 16 \
                 threads for each of these processes, and 256, together: looked at as well, and where a call has a user of its own (layer \
                 privateUser) kept by the kernel (RLIMIT_NPROC); calls of one tree have one user, whose limit is that of 32 calls up to \
                 16,384 threads, and of 4 calls above",
            ),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_heap_and_the_rest_and_what_node_takes() {
        let limits = CallLimits { memory_mb: 100, native_memory_mb: 50, ..CallLimits::default() };
        let data_mb = |abi| limits.of_process(abi).data_bytes.unwrap() / MIB;
        assert_eq!((data_mb(Some("127")), data_mb(Some("137")), data_mb(None)), (342, 9046, 9046));
        assert_eq!(CallLimits { processes: 10, ..limits }.tasks(), 416);
        assert_eq!(CallLimits { processes: u32::MAX, ..limits }.tasks(), u32::MAX);
        let group = limits.of_group(Some(500), false);
        assert_eq!((group.memory_bytes / MIB, group.tasks, group.cpu_thousandths), (406, 2304, Some(500)));
        let written = CallLimits { disk_mb: 7, ..limits }.of_group(None, true);
        assert_eq!(written.memory_bytes / MIB, 413, "what is written in memory has its own limit");
        let most = CallLimits { memory_mb: u32::MAX, native_memory_mb: u32::MAX, ..limits };
        assert!(most.of_process(None).data_bytes.is_some());
    }
}
