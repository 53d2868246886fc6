//! What a running call takes of disk and memory, and how many processes it has: looked at from the side, at intervals, on the
//! core's threads for blocking work. For what no `RLIMIT_*` can limit: those count per process or per user.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    error::SandboxError,
    group::{Counted, Group},
    limits::{CallLimits, DISK_LIMIT_FILES},
    store::Written,
    supervise::Aside,
    worker::breach,
};

/// Before the first look, and between two: most calls are over by then, and none takes much in so short a time.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A look may take this part of the time at most, so that a call with many files does not keep a thread busy.
const LOOK_SHARE: u32 = 20;

/// Folders in folders are followed this deep: more is nothing that a tool needs, and what is below could not be named.
const DEPTH_LIMIT_FOLDERS: usize = 1024;

/// How old the count of [`memory_kills`] that a call begins with may be.
const KILLS_FRESH: Duration = Duration::from_secs(1);

/// What is seen of a call from the side. `keepers` of its processes are not the function's; `group` is its control group.
pub fn aside(
    written: Written,
    pid: u32,
    keepers: u32,
    group: Option<Arc<Group>>,
    limits: CallLimits,
) -> Aside {
    let before = memory_kills_lately();
    Aside {
        room_is_limited: !matches!(written, Written::Disk(_)),
        exceeded: Box::pin(exceeded(written, pid, keepers, limits)),
        oom_killed: Box::new(move || memory_kills().zip(before).is_some_and(|(now, before)| now > before)),
        counted: Box::new(move || group.as_ref().map_or_else(Counted::default, |group| group.counted())),
        talk: None,
    }
}

/// Looks until a limit is exceeded; for ever if none is. `written` is the call's, `pid` is its main process. Cancel-safe: a look
/// under way ends by itself.
async fn exceeded(written: Written, pid: u32, keepers: u32, limits: CallLimits) -> SandboxError {
    let mut wait = LOOK_INTERVAL;
    let mut written = written;
    loop {
        sleep(wait).await;
        let began = Instant::now();
        let looked = spawn_blocking(move || {
            let found = look(&written, pid, keepers, &limits);
            (written, found)
        });
        // Broken off or panicked: there is nobody left to tell.
        let Ok((back, found)) = looked.await else { return std::future::pending().await };
        if let Some(error) = found {
            return error;
        }
        written = back;
        wait = LOOK_INTERVAL.max(began.elapsed() * LOOK_SHARE);
    }
}

fn look(written: &Written, pid: u32, keepers: u32, limits: &CallLimits) -> Option<SandboxError> {
    let tree = tree(pid);
    let processes = (tree.len() as u64).saturating_sub(keepers.into());
    if processes > u64::from(limits.processes) {
        return Some(breach::of_processes(processes, limits));
    }
    let resident = tree.iter().fold(0_u64, |sum, pid| sum.saturating_add(resident_bytes(*pid)));
    if resident > limits.resident_bytes(processes) {
        return Some(breach::of_memory(resident, limits));
    }
    look_at(written, limits)
}

/// Processes of a tree, without its keepers, and resident bytes of all of them; `None` where nothing of it is found.
pub fn of_tree(pid: u32, keepers: u32) -> Option<(u64, u64)> {
    let tree = tree(pid);
    let processes = (tree.len() as u64).saturating_sub(keepers.into());
    let resident = tree.iter().fold(0_u64, |sum, pid| sum.saturating_add(resident_bytes(*pid)));
    (!tree.is_empty()).then_some((processes, resident))
}

/// What folders take on disk together; stops counting above `enough`. Blocks.
pub fn bytes_in(folders: &[std::path::PathBuf], enough: u64) -> u64 {
    let mut used = Used { files_limit: u64::MAX - 1, ..Used::default() };
    for folder in folders.iter().filter_map(|folder| Folder::open(folder)) {
        used.add(folder, enough);
    }
    // Folders without end are more than any limit.
    if used.files == u64::MAX { u64::MAX } else { used.bytes }
}

/// What exceeds a limit in what the call wrote.
fn look_at(written: &Written, limits: &CallLimits) -> Option<SandboxError> {
    let mut used = Used { files_limit: DISK_LIMIT_FILES, ..Used::default() };
    match written {
        Written::Memory => return None,
        Written::Disk(folders) => {
            for folder in folders.iter().filter_map(|folder| Folder::open(folder)) {
                used.add(folder, limits.disk_bytes());
            }
        }
    }
    if used.files > DISK_LIMIT_FILES {
        return Some(breach::of_files(DISK_LIMIT_FILES));
    }
    (used.bytes > limits.disk_bytes()).then(|| breach::of_disk(used.bytes, limits))
}

/// Disk space and files of folders.
#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    files: u64,
    files_limit: u64,
}

impl Used {
    /// Adds everything below `folder`, until a limit is exceeded. What vanishes meanwhile, or cannot be read, counts nothing;
    /// links are not followed.
    fn add(&mut self, folder: Folder, limit_bytes: u64) {
        let mut open = vec![folder];
        while let Some(entries) = open.last_mut() {
            if self.files > self.files_limit || self.bytes > limit_bytes {
                return;
            }
            let Some(entry) = entries.next() else {
                open.pop();
                continue;
            };
            self.files = self.files.saturating_add(1);
            self.bytes = self.bytes.saturating_add(entry.allocated_bytes);
            match entry.folder {
                Some(below) if open.len() < DEPTH_LIMIT_FOLDERS => open.push(below),
                // Where nobody looks there may be anything.
                Some(_) => self.files = u64::MAX,
                None => {}
            }
        }
    }
}

/// Something in a folder.
struct Entry {
    /// What it takes on disk: a file with holes takes less than its size.
    allocated_bytes: u64,
    /// What is in it.
    folder: Option<Folder>,
}

#[cfg(unix)]
use unix::Folder;

#[cfg(unix)]
mod unix {
    use std::{ffi::CStr, os::fd::BorrowedFd, path::Path};

    use rustix::{
        fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat},
        path::Arg,
    };

    use super::Entry;

    /// Bytes of a block, whatever those of the file system are.
    const BLOCK_BYTES: u64 = 512;

    /// A folder that is read. What is below it is opened by name from itself, so that no link is followed and no path gets too long.
    pub(super) struct Folder(Option<Dir>);

    impl Folder {
        pub(super) fn open(path: &Path) -> Option<Self> {
            Self::open_at(CWD, path)
        }

        fn open_at(at: BorrowedFd<'_>, name: impl Arg) -> Option<Self> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(at, name, flags, Mode::empty()).ok().map(|folder| Self(Dir::new(folder).ok()))
        }

        pub(super) fn next(&mut self) -> Option<Entry> {
            let folder = self.0.as_mut()?;
            loop {
                let entry = folder.read()?.ok()?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                // What vanishes between two looks counts nothing.
                if let Some(found) = folder.fd().ok().and_then(|at| look(at, name)) {
                    return Some(found);
                }
            }
        }
    }

    fn look(at: BorrowedFd<'_>, name: &CStr) -> Option<Entry> {
        let found = statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        Some(Entry {
            allocated_bytes: blocks.saturating_mul(BLOCK_BYTES),
            folder: is_folder.then(|| Folder::open_at(at, name)).flatten(),
        })
    }
}

#[cfg(not(unix))]
struct Folder(std::fs::ReadDir);

#[cfg(not(unix))]
impl Folder {
    fn open(path: &std::path::Path) -> Option<Self> {
        fs::read_dir(path).ok().map(Self)
    }

    fn next(&mut self) -> Option<Entry> {
        loop {
            let entry = self.0.next()?.ok()?;
            let Ok(metadata) = entry.metadata() else { continue };
            let folder = metadata.is_dir().then(|| Self::open(&entry.path())).flatten();
            return Some(Entry { allocated_bytes: metadata.len(), folder });
        }
    }
}

/// A process and all below it; empty where that cannot be found out.
#[cfg(target_os = "linux")]
fn tree(pid: u32) -> Vec<i32> {
    let Ok(pid) = i32::try_from(pid) else { return Vec::new() };
    let living = table::all();
    let living: Vec<_> = living.iter().filter(|entry| !entry.zombie).copied().collect();
    let main = living.iter().find(|entry| entry.pid == pid).map(|entry| entry.pid);
    main.into_iter()
        .chain(native_sandbox_protocol::stat::below(&living, &[pid]).into_iter().map(|entry| entry.pid))
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn tree(_: u32) -> Vec<i32> {
    Vec::new()
}

/// What a process holds of its own; without what it has mapped from files.
#[cfg(target_os = "linux")]
fn resident_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let anonymous = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = anonymous.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(not(target_os = "linux"))]
fn resident_bytes(_: i32) -> u64 {
    0
}

/// The processes of the machine. Many calls look at about the same time, and each process costs some 10 µs to read: what one
/// has read serves the others for a while.
#[cfg(target_os = "linux")]
mod table {
    use std::{
        fs,
        sync::{Arc, Mutex, PoisonError},
        time::{Duration, Instant},
    };

    use native_sandbox_protocol::stat::{Entry, parse};

    /// How old a table may be.
    const FRESH: Duration = Duration::from_millis(40);

    /// More processes are not looked at: no machine that has as many works any more.
    const PROCESSES_LIMIT: usize = 100_000;

    type Table = Option<(Instant, Arc<[Entry]>)>;

    static LAST: Mutex<Table> = Mutex::new(None);

    pub(super) fn all() -> Arc<[Entry]> {
        // Held while reading: whoever comes meanwhile wants the same.
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, table)) if at.elapsed() < FRESH => Arc::clone(table),
            _ => {
                let table: Arc<[Entry]> = read().into();
                *last = Some((Instant::now(), Arc::clone(&table)));
                table
            }
        }
    }

    fn read() -> Vec<Entry> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.take(PROCESSES_LIMIT)
            .filter_map(|pid| parse(&fs::read(format!("/proc/{pid}/stat")).ok()?))
            .collect()
    }
}

/// How many processes the kernel has killed for want of memory: those of this container, or of the machine. `None` where nothing
/// tells. Reads one small file.
fn memory_kills() -> Option<u64> {
    let text = fs::read_to_string("/sys/fs/cgroup/memory.events")
        .ok()
        .filter(|text| text.contains("oom_kill "))
        .or_else(|| fs::read_to_string("/proc/vmstat").ok())?;
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

/// The same, as it was not long ago: read once for many calls.
fn memory_kills_lately() -> Option<u64> {
    static LAST: Mutex<Option<(Instant, Option<u64>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match *last {
        Some((at, count)) if at.elapsed() < KILLS_FRESH => count,
        _ => {
            let count = memory_kills();
            *last = Some((Instant::now(), count));
            count
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CallLimits = CallLimits {
        memory_mb: 1000,
        native_memory_mb: 1000,
        cpu_seconds: None,
        open_files: 64,
        file_size_mb: 1,
        disk_mb: 1,
        processes: 1000,
    };

    fn code(written: &Written, limits: &CallLimits) -> Option<crate::error::Code> {
        look(written, std::process::id(), 0, limits).map(|error| error.code)
    }

    #[cfg(unix)]
    #[test]
    fn what_is_in_folders_counts_and_what_links_lead_to_does_not() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("large"), vec![1; 3 << 20]).unwrap();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        fs::create_dir_all(inside.path().join("a/b")).unwrap();
        let folders = Written::Disk([inside.path().to_owned(), inside.path().join("absent")]);
        assert_eq!(code(&folders, &LIMITS), None);
        let hole = fs::File::create(inside.path().join("a/hole")).unwrap();
        hole.set_len(1 << 30).unwrap();
        assert_eq!(code(&folders, &LIMITS), None, "a hole takes no room");
        fs::write(inside.path().join("a/b/large"), vec![1; (1 << 20) + 4096]).unwrap();
        assert_eq!(code(&folders, &LIMITS), Some(crate::error::Code::DiskLimit));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_counts() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(tree(std::process::id()).contains(&own));
        assert!(tree(u32::MAX).is_empty());
        assert!(resident_bytes(own) > 100_000);
        assert_eq!(
            code(&Written::Memory, &CallLimits { processes: 0, ..LIMITS }),
            Some(crate::error::Code::ProcessLimit)
        );
    }
}
