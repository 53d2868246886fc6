//! What npm and the packages' own scripts may use of the machine: limits of an install, and a look from the side at what it takes.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::sleep};

use crate::{gauge, limits::CallLimits, process};

/// Before the first look, and between two.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A look may take this part of the time at most.
const LOOK_SHARE: u32 = 20;
/// npm, a shell and a program of a script are there with the smallest script: limits of functions may be lower than what these take.
const MIN_PROCESSES: u32 = 16;
const MIN_MEMORY_MB: u32 = 256;
const MIN_DISK_MB: u32 = 64;
const MIN_FILE_MB: u32 = 64;
const MIN_OPEN_FILES: u32 = 1024;
const MIB: u64 = 1024 * 1024;

/// What the installs of one executor may use.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Those of calls: install scripts have them, too, but no lower ones than a script needs.
    pub calls: CallLimits,
    /// What one tree may take, bytes.
    pub tree_bytes: u64,
    /// A digest of the tenant's name.
    pub tenant: String,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { calls: CallLimits::DEFAULT, tree_bytes: u64::MAX, tenant: String::new() }
    }
}

/// What is looked at while npm runs.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// What is written to.
    pub(super) folders: Vec<PathBuf>,
    /// What they may take together, bytes.
    pub(super) bytes: u64,
    /// What is to be raised where they take more.
    pub(super) option: &'static str,
    /// A cache that is written to, and what it may take.
    pub(super) cache: Option<(PathBuf, u64)>,
    /// Limits of the processes, but in the first phase, in which npm alone runs.
    pub(super) scripts: Option<CallLimits>,
}

impl Bounds {
    /// Limits of install scripts.
    pub(super) fn of_scripts(&self) -> CallLimits {
        let calls = self.calls;
        CallLimits {
            memory_mb: calls.memory_mb.max(MIN_MEMORY_MB),
            native_memory_mb: calls.native_memory_mb.max(MIN_MEMORY_MB),
            cpu_seconds: None,
            open_files: calls.open_files.max(MIN_OPEN_FILES),
            file_size_mb: calls.file_size_mb.max(MIN_FILE_MB),
            disk_mb: calls.disk_mb.max(MIN_DISK_MB),
            processes: calls.processes.max(MIN_PROCESSES),
        }
    }

    /// And what of them the kernel is told. Of memory it is not: it counts what a compiler reserves.
    pub(super) fn of_process(&self) -> process::Limits {
        process::Limits { data_bytes: None, ..self.of_scripts().of_process(None) }
    }

    /// For the first phase: the tree's own limit.
    pub(super) fn first_phase(&self, folders: Vec<PathBuf>, cache: Option<(PathBuf, u64)>) -> Watch {
        Watch { folders, bytes: self.tree_bytes, option: "storeMaxBytes", cache, scripts: None }
    }

    /// For the second, which may write so much beyond what is there.
    pub(super) fn second_phase(&self, folders: Vec<PathBuf>, there: u64) -> Watch {
        let scripts = self.of_scripts();
        let bytes = there.saturating_add(scripts.disk_bytes());
        Watch { folders, bytes, option: "diskMb", cache: None, scripts: Some(scripts) }
    }
}

impl Watch {
    /// Looks until something is exceeded, and says what; for ever if nothing is. Cancel-safe: a look under way ends by itself.
    pub(super) async fn exceeded(self, pid: u32, keepers: u32) -> String {
        let (mut wait, mut watch) = (LOOK_INTERVAL, self);
        loop {
            sleep(wait).await;
            let began = Instant::now();
            let looked = spawn_blocking(move || {
                let found = watch.look(pid, keepers);
                (watch, found)
            });
            let Ok((back, found)) = looked.await else { return std::future::pending().await };
            if let Some(text) = found {
                return text;
            }
            watch = back;
            wait = LOOK_INTERVAL.max(began.elapsed() * LOOK_SHARE);
        }
    }

    fn look(&self, pid: u32, keepers: u32) -> Option<String> {
        if let Some(limits) = &self.scripts
            && let Some((processes, resident)) = gauge::of_tree(pid, keepers)
        {
            if processes > u64::from(limits.processes) {
                return Some(format!(
                    "install scripts have too many processes, the limit is {}; raise maxProcesses ({processes} were found)",
                    limits.processes
                ));
            }
            if resident > limits.resident_bytes(processes) {
                return Some(format!(
                    "install scripts take too much memory, the limits are {} and {} MB; raise memoryMb or nativeMemoryMb ({resident} \
                     bytes were found)",
                    limits.memory_mb, limits.native_memory_mb
                ));
            }
        }
        self.written_too_much()
    }

    /// What is said where too much is there; also a look after the end finds that. Blocks.
    pub(super) fn written_too_much(&self) -> Option<String> {
        if gauge::bytes_in(&self.folders, self.bytes) > self.bytes {
            return Some(self.too_much());
        }
        let (cache, bytes) = self.cache.as_ref()?;
        (gauge::bytes_in(std::slice::from_ref(cache), *bytes) > *bytes).then(|| {
            format!(
                "npm has downloaded more than one set of dependencies may take; raise {}, or ask for less",
                self.option
            )
        })
    }

    /// Text where too much was written.
    fn too_much(&self) -> String {
        match &self.scripts {
            Some(limits) => format!(
                "install scripts have written too much to disk, the limit is {} MB beyond the packages themselves; raise {}",
                limits.disk_mb, self.option
            ),
            None => format!(
                "the packages take more than {} MB, the most that one set of dependencies may take; raise {}, or ask for less",
                self.bytes / MIB,
                self.option
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_the_limits_of_calls_but_none_with_which_no_script_runs() {
        let calls = CallLimits { processes: 1, disk_mb: 1, memory_mb: 16, ..CallLimits::DEFAULT };
        let least = Bounds { calls, ..Bounds::default() }.of_scripts();
        assert_eq!((least.processes, least.disk_mb, least.memory_mb), (16, 64, 256));
        assert_eq!(Bounds::default().of_scripts(), CallLimits::DEFAULT);
    }

    #[test]
    fn what_is_written_beyond_the_limit_is_told_with_the_option_to_raise() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("file"), vec![1; 2 << 20]).unwrap();
        let bounds = Bounds { tree_bytes: 1 << 20, ..Bounds::default() };
        let first = bounds.first_phase(vec![base.path().to_owned()], None);
        assert!(first.look(u32::MAX, 0).unwrap().contains("storeMaxBytes"));
        let cache = Some((base.path().to_owned(), 1 << 20));
        let downloads = bounds.first_phase(vec![], cache).look(u32::MAX, 0).unwrap();
        assert!(downloads.contains("downloaded") && downloads.contains("storeMaxBytes"), "{downloads}");
        assert_eq!(bounds.second_phase(vec![base.path().to_owned()], 0).look(u32::MAX, 0), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processes_beyond_the_limit_are_told_with_the_option_to_raise() {
        let none = CallLimits { processes: 0, ..CallLimits::DEFAULT };
        let watch = Watch { folders: vec![], bytes: 0, option: "diskMb", cache: None, scripts: Some(none) };
        assert!(watch.look(std::process::id(), 0).unwrap().contains("maxProcesses"));
    }
}
