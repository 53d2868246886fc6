//! What a running call takes of disk and memory, and how many processes it has: looked at from the side, at intervals, on the
//! core's threads for blocking work. For what no `RLIMIT_*` can limit: those count per process or per user.

#[cfg(target_os = "linux")]
use std::collections::BTreeMap;
use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use native_sandbox_confine::Mark;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    error::SandboxError,
    group::{Counted, Group},
    limits::{CallLimits, DISK_LIMIT_FILES},
    store::Written,
    supervise::Aside,
    worker::breach::{self, Peak},
};

/// Before the first look, and between two: most calls are over by then, and none takes much in so short a time.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Between two looks at a call that starts a lot.
const NEAR_INTERVAL: Duration = Duration::from_millis(10);

/// However long looks take.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(2);

/// A look may take this part of the time at most, so that a call with many files does not keep a thread busy.
const LOOK_SHARE: u32 = 20;

/// Folders in folders are followed this deep: more is nothing that a tool needs, and what is below could not be named.
const DEPTH_LIMIT_FOLDERS: usize = 1024;

/// How old the count of [`memory_kills`] that a call begins with may be.
const KILLS_FRESH: Duration = Duration::from_secs(1);

/// By what the processes of a call are known.
#[derive(Debug, Clone, Copy)]
pub struct Whose {
    /// Its main process: what is below it is the call's.
    pub pid: u32,
    /// How many of these are not the function's.
    pub keepers: u32,
    /// What all that the function starts is marked by, wherever it is.
    pub mark: Option<Mark>,
}

/// What is seen of a call from the side. `group` is its control group.
pub fn aside(written: Written, whose: Whose, group: Option<Arc<Group>>, limits: CallLimits) -> Aside {
    let before = memory_kills_lately();
    let peak = Arc::new(Mutex::new(Peak::default()));
    let seen = Arc::clone(&peak);
    Aside {
        room_is_limited: !matches!(written, Written::Disk(_)),
        exceeded: Box::pin(exceeded(written, whose, limits, seen)),
        peak: Box::new(move || {
            let (pids, now) = counted(whose);
            note(&peak, Peak { memory_bytes: held::by(&pids, None).memory_bytes(), ..now })
        }),
        oom_killed: Box::new(move || memory_kills().zip(before).is_some_and(|(now, before)| now > before)),
        counted: Box::new(move || group.as_ref().map_or_else(Counted::default, |group| group.counted())),
        talk: None,
        feed: None,
        collecting: None,
    }
}

/// Looks until a limit is exceeded; for ever if none is. `written` is the call's. Cancel-safe: a look under way ends by itself.
async fn exceeded(
    written: Written,
    whose: Whose,
    limits: CallLimits,
    peak: Arc<Mutex<Peak>>,
) -> SandboxError {
    let mut wait = LOOK_INTERVAL;
    let mut written = written;
    loop {
        sleep(wait).await;
        let began = Instant::now();
        let seen = Arc::clone(&peak);
        let looked = spawn_blocking(move || {
            let found = look(&written, whose, &limits, &seen);
            (written, found)
        });
        // Broken off or panicked: there is nobody left to tell.
        let Ok((back, found)) = looked.await else { return std::future::pending().await };
        written = back;
        let interval = match found {
            Found::Exceeded(error) => return *error,
            Found::Near => NEAR_INTERVAL,
            Found::Nothing => LOOK_INTERVAL,
        };
        wait = interval.max((began.elapsed() * LOOK_SHARE).min(LOOK_INTERVAL_MAX));
    }
}

/// What a look gave.
#[derive(Debug)]
enum Found {
    Nothing,
    /// More than half of a limit that is reached in no time.
    Near,
    Exceeded(Box<SandboxError>),
}

/// The numbers of the call's processes, with what of them is seen without a look at each.
fn counted(whose: Whose) -> (Vec<i32>, Peak) {
    let call = of_call(whose);
    let processes = (call.len() as u64).saturating_sub(whose.keepers.into());
    let threads = call.iter().map(|(_, threads)| u64::from(*threads)).sum();
    (call.iter().map(|(pid, _)| *pid).collect(), Peak { processes, threads, memory_bytes: 0 })
}

/// The most that was seen, with this.
fn note(peak: &Mutex<Peak>, now: Peak) -> Peak {
    let mut peak = peak.lock().unwrap_or_else(PoisonError::into_inner);
    *peak = peak.max(now);
    *peak
}

fn look(written: &Written, whose: Whose, limits: &CallLimits, peak: &Mutex<Peak>) -> Found {
    let exceeded = |error| Found::Exceeded(Box::new(error));
    let (pids, now) = counted(whose);
    note(peak, now);
    let Peak { processes, threads, .. } = now;
    if processes > u64::from(limits.processes) {
        return exceeded(breach::of_processes(processes, limits));
    }
    if threads > u64::from(limits.tasks()) {
        return exceeded(breach::of_threads(threads, limits));
    }
    let disk = match written {
        Written::Disk(folders) => Some(&folders[0]),
        Written::Memory => None,
    };
    let held = held::by(&pids, disk.map(std::path::PathBuf::as_path));
    let memory_bytes = held.memory_bytes();
    note(peak, Peak { memory_bytes, ..now });
    let limit_bytes = limits.resident_bytes(processes);
    if memory_bytes > limit_bytes {
        let exact = held.exact_bytes(&pids);
        if exact > limit_bytes {
            return exceeded(breach::of_memory(exact, limits));
        }
    }
    if let Some(error) = look_at(written, held.disk_bytes, limits) {
        return exceeded(error);
    }
    let is_near = threads > u64::from(limits.tasks()) / 4 || processes > u64::from(limits.processes) / 2;
    if is_near { Found::Near } else { Found::Nothing }
}

/// Processes of a tree, without its keepers, and resident bytes of all of them; `None` where nothing of it is found.
pub fn of_tree(pid: u32, keepers: u32) -> Option<(u64, u64)> {
    let tree = of_call(Whose { pid, keepers, mark: None });
    let processes = (tree.len() as u64).saturating_sub(keepers.into());
    let pids: Vec<i32> = tree.iter().map(|(pid, _)| *pid).collect();
    let resident = held::by(&pids, None).memory_bytes();
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

/// What exceeds a limit in what the call wrote; `unlinked_bytes` of it are in files that have no name any more.
fn look_at(written: &Written, unlinked_bytes: u64, limits: &CallLimits) -> Option<SandboxError> {
    let mut used = Used { bytes: unlinked_bytes, files_limit: DISK_LIMIT_FILES, ..Used::default() };
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

/// The processes of a call with the threads of each: the main one, all below it, and all that have its mark; empty where that cannot
/// be found out.
#[cfg(target_os = "linux")]
fn of_call(whose: Whose) -> Vec<(i32, u32)> {
    let Ok(pid) = i32::try_from(whose.pid) else { return Vec::new() };
    let table = table::all();
    let living: Vec<_> = table.iter().filter(|known| !known.entry.zombie).collect();
    let entries: Vec<_> = living.iter().map(|known| known.entry).collect();
    let at = |pid| living.iter().find(|known| known.entry.pid == pid);
    let main = at(pid);
    let below = native_sandbox_protocol::stat::below(&entries, &[pid]);
    // A user of its own is one that its zygote, or whatever started it, has not.
    let user = main.and_then(|main| {
        main.user.filter(|_| at(main.entry.parent).is_none_or(|parent| parent.user != main.user))
    });
    let is_named = |known: &&&table::Known| {
        (known.mark.is_some() && known.mark == whose.mark) || (known.user.is_some() && known.user == user)
    };
    let named = living.iter().filter(is_named).map(|known| known.entry);
    let all = main.map(|main| main.entry).into_iter().chain(below).chain(named);
    all.map(|entry| (entry.pid, entry.threads)).collect::<BTreeMap<_, _>>().into_iter().collect()
}

#[cfg(not(target_os = "linux"))]
fn of_call(_: Whose) -> Vec<(i32, u32)> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
mod held {
    #[derive(Default)]
    pub(super) struct Held {
        pub(super) disk_bytes: u64,
    }

    impl Held {
        pub(super) fn memory_bytes(&self) -> u64 {
            0
        }

        pub(super) fn exact_bytes(&self, _: &[i32]) -> u64 {
            0
        }
    }

    pub(super) fn by(_: &[i32], _: Option<&std::path::Path>) -> Held {
        Held::default()
    }
}

/// What processes hold of memory, mapped or by descriptors only, and of disk space in files that have no name any more.
#[cfg(target_os = "linux")]
mod held {
    use std::{
        collections::BTreeMap,
        fs,
        os::unix::{ffi::OsStrExt, fs::MetadataExt},
        path::Path,
    };

    const KIB: u64 = 1024;
    /// Bytes of a block, whatever those of the file system are.
    const BLOCK_BYTES: u64 = 512;
    /// How targets of descriptors begin that are memory and no more.
    const MEMORY_FILES: [&[u8]; 3] = [b"/memfd:", b"/dev/shm/", b"/dev/zero"];
    /// How those end that have no name any more.
    const UNLINKED: &[u8] = b" (deleted)";
    /// The kernel's own file system in memory, as `/proc/<pid>/maps` has it: shared memory without a file, and files of memory.
    const KERNELS_MEMORY: &str = "00:01";

    /// The same as `stat(2)` has it.
    const KERNELS_DEVICE: u64 = 1;

    #[derive(Debug, Default)]
    pub(super) struct Held {
        /// Of its own, of all processes.
        anonymous_bytes: u64,
        /// Shared, mapped; what two have mapped counts twice.
        shared_bytes: u64,
        /// In files of memory, by device and number: each counts once.
        files: BTreeMap<(u64, u64), u64>,
        /// In files on disk without a name.
        pub(super) disk_bytes: u64,
    }

    impl Held {
        fn files_bytes(&self) -> u64 {
            self.files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
        }

        /// At most: what is in a file of memory and mapped as well counts more than once.
        pub(super) fn memory_bytes(&self) -> u64 {
            self.anonymous_bytes.saturating_add(self.shared_bytes).saturating_add(self.files_bytes())
        }

        /// The same with each page once. Takes the longer the more is mapped.
        pub(super) fn exact_bytes(&self, pids: &[i32]) -> u64 {
            let mapped = pids.iter().map(|pid| {
                let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).ok();
                maps.map_or_else(|| resident(*pid).1, |maps| shared_in(&maps, &self.files))
            });
            mapped.fold(self.anonymous_bytes.saturating_add(self.files_bytes()), u64::saturating_add)
        }
    }

    /// Looks at these processes. `disk` is a folder on the disk that unlinked files count for.
    pub(super) fn by(pids: &[i32], disk: Option<&Path>) -> Held {
        let disk = disk.and_then(|folder| fs::metadata(folder).ok()).map(|metadata| metadata.dev());
        let (mut held, mut unlinked) = (Held::default(), BTreeMap::new());
        for pid in pids {
            let (anonymous, shared) = resident(*pid);
            held.anonymous_bytes = held.anonymous_bytes.saturating_add(anonymous);
            held.shared_bytes = held.shared_bytes.saturating_add(shared);
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            for (number, ranges) in objects_in(&maps) {
                let bytes = object_bytes(*pid, &ranges);
                // Another process may show more of it.
                let known = held.files.entry((KERNELS_DEVICE, number)).or_default();
                *known = bytes.max(*known);
            }
            let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for descriptor in open.flatten() {
                let path = descriptor.path();
                let Ok(target) = fs::read_link(&path) else { continue };
                let target = target.as_os_str().as_bytes();
                let is_memory = MEMORY_FILES.iter().any(|start| target.starts_with(start));
                let is_unlinked = disk.is_some() && target.ends_with(UNLINKED);
                if !(is_memory || is_unlinked) {
                    continue;
                }
                let Ok(found) = fs::metadata(&path) else { continue };
                let (name, bytes) = ((found.dev(), found.ino()), found.blocks().saturating_mul(BLOCK_BYTES));
                if is_memory && found.is_file() {
                    held.files.insert(name, bytes);
                } else if found.is_file() && found.nlink() == 0 && Some(found.dev()) == disk {
                    unlinked.insert(name, bytes);
                }
            }
        }
        held.disk_bytes = unlinked.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        held
    }

    /// What a process has of its own, its page tables included, and what it shares, without what it has mapped from files of a disk.
    pub(super) fn resident(pid: i32) -> (u64, u64) {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        (kib(&text, "RssAnon:").saturating_add(kib(&text, "VmPTE:")), kib(&text, "RssShmem:"))
    }

    /// The ranges of each object of the kernel's own memory that is in a process's maps, by its number. What is in such an object stays there
    /// for as long as a page of it is mapped anywhere, whether anybody has touched it there or not.
    fn objects_in(maps: &str) -> BTreeMap<u64, Vec<(u64, u64)>> {
        let mut objects = BTreeMap::<_, Vec<_>>::new();
        for line in maps.lines() {
            let mut columns = line.split_ascii_whitespace();
            let (range, device) = (columns.next(), columns.nth(2));
            if device != Some(KERNELS_MEMORY) {
                continue;
            }
            let number = columns.next().and_then(|number| number.parse::<u64>().ok());
            let range = range.and_then(|range| range.split_once('-')).and_then(|(first, end)| {
                Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
            });
            if let Some((number, range)) = number.zip(range) {
                objects.entry(number).or_default().push(range);
            }
        }
        objects
    }

    /// What is in such an object. Only who has `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE` may ask for that (`proc_pid_map_files(5)`); to others
    /// it is as large as it is mapped.
    fn object_bytes(pid: i32, ranges: &[(u64, u64)]) -> u64 {
        let Some((first, end)) = ranges.first() else { return 0 };
        match fs::metadata(format!("/proc/{pid}/map_files/{first:x}-{end:x}")) {
            Ok(found) => found.blocks().saturating_mul(BLOCK_BYTES),
            Err(_) => {
                ranges.iter().fold(0, |sum, (first, end)| sum.saturating_add(end.saturating_sub(*first)))
            }
        }
    }

    fn kib(text: &str, name: &str) -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or(0).saturating_mul(KIB)
    }

    /// Shared memory in a process's maps (`smaps`), each page by its share; without that of `files`, and without files that have a
    /// name: those count as what was written.
    fn shared_in(maps: &str, files: &BTreeMap<(u64, u64), u64>) -> u64 {
        let (mut sum, mut counts) = (0_u64, false);
        for line in maps.lines() {
            if let Some(rest) = line.strip_prefix("Pss:") {
                let kib = rest.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse::<u64>().ok());
                sum = sum.saturating_add(if counts { kib.unwrap_or(0).saturating_mul(KIB) } else { 0 });
            } else if let Some(shares) = shares(line, files) {
                counts = shares;
            }
        }
        sum
    }

    /// Whether the mapping that this line begins is shared memory without a file that counts elsewhere; none if it begins none.
    fn shares(line: &str, files: &BTreeMap<(u64, u64), u64>) -> Option<bool> {
        let mut columns = line.split_ascii_whitespace();
        let (range, mode, _, device, number) =
            (columns.next()?, columns.next()?, columns.next()?, columns.next()?, columns.next()?);
        range.split_once('-').filter(|(first, _)| u64::from_str_radix(first, 16).is_ok())?;
        let number: u64 = number.parse().ok()?;
        let (major, minor) = device.split_once(':')?;
        let part = |hex| u32::from_str_radix(hex, 16).ok();
        let device = rustix::fs::makedev(part(major)?, part(minor)?);
        let is_memory = number != 0 && line.ends_with("(deleted)") && !files.contains_key(&(device, number));
        Some(mode.ends_with('s') && is_memory)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn objects_of_memory_are_told_from_files_and_from_what_has_no_object() {
            let maps = "7f00-7f10 rw-s 00000000 00:01 5 /dev/zero (deleted)\n\
                        7f10-7f20 rw-s 00000000 00:01 6 /memfd:x (deleted)\n\
                        7f40-7f50 r--p 00010000 00:01 6 /memfd:x (deleted)\n\
                        7f20-7f30 rw-p 00000000 00:00 0\n\
                        7f30-7f40 rw-s 00000000 00:2a 7 /w/file\n";
            let found = objects_in(maps);
            let expected =
                BTreeMap::from([(5, vec![(0x7f00, 0x7f10)]), (6, vec![(0x7f10, 0x7f20), (0x7f40, 0x7f50)])]);
            assert_eq!(found, expected);
            assert_eq!(rustix::fs::makedev(0, 1), KERNELS_DEVICE);
            // Of a process that there is not nothing can be asked.
            assert_eq!(object_bytes(i32::MAX, &found[&6]), 0x20);
        }

        #[test]
        fn shared_memory_counts_by_its_share_and_what_has_a_file_that_counts_does_not() {
            let maps = "7f00-7f10 rw-s 00000000 00:01 5 /dev/zero (deleted)\nRss: 64 kB\nPss: 32 kB\nPss_Dirty: 9 kB\n\
                        7f10-7f20 rw-s 00000000 00:01 6 /memfd:x (deleted)\nPss: 8 kB\n\
                        7f20-7f30 rw-p 00000000 00:00 0\nPss: 100 kB\n\
                        7f30-7f40 rw-s 00000000 00:2a 7 /w/file\nPss: 50 kB\n";
            assert_eq!(shared_in(maps, &BTreeMap::new()), 40 * KIB);
            let files = BTreeMap::from([((rustix::fs::makedev(0, 1), 6), 8 * KIB)]);
            assert_eq!(shared_in(maps, &files), 32 * KIB);
        }
    }
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

    use native_sandbox_confine::Mark;
    use native_sandbox_protocol::stat::{Entry, parse};

    use crate::sys;

    /// How old a table may be.
    const FRESH: Duration = Duration::from_millis(40);

    /// More processes are not looked at: no machine that has as many works any more.
    const PROCESSES_LIMIT: usize = 100_000;

    /// A process.
    #[derive(Debug, Clone, Copy)]
    pub(super) struct Known {
        pub(super) entry: Entry,
        pub(super) mark: Option<Mark>,
        /// Of those whose mark cannot be told.
        pub(super) user: Option<u32>,
    }

    type Processes = Arc<[Known]>;
    type Table = Option<(Instant, Processes)>;

    static LAST: Mutex<Table> = Mutex::new(None);

    pub(super) fn all() -> Processes {
        // Held while reading: whoever comes meanwhile wants the same.
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, table)) if at.elapsed() < FRESH => Arc::clone(table),
            _ => {
                let table: Processes = read().into();
                *last = Some((Instant::now(), Arc::clone(&table)));
                table
            }
        }
    }

    fn read() -> Vec<Known> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.take(PROCESSES_LIMIT)
            .filter_map(|pid| parse(&fs::read(format!("/proc/{pid}/stat")).ok()?))
            .map(|entry| {
                let (mark, user) = sys::name_of(entry.pid);
                Known { entry, mark, user }
            })
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

    fn whose() -> Whose {
        Whose { pid: std::process::id(), keepers: 0, mark: None }
    }

    fn code(written: &Written, limits: &CallLimits) -> Option<crate::error::Code> {
        match look(written, whose(), limits, &Mutex::default()) {
            Found::Exceeded(error) => Some(error.code),
            Found::Near | Found::Nothing => None,
        }
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
    fn memory_in_a_file_that_nobody_has_mapped_counts_and_so_does_a_file_without_a_name() {
        use std::io::Write;
        let own = [i32::try_from(std::process::id()).unwrap()];
        let before = held::by(&own, None).memory_bytes();
        let memory = rustix::fs::memfd_create("gauge", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        fs::File::from(memory.try_clone().unwrap()).write_all(&vec![1; 64 << 20]).unwrap();
        assert!(held::by(&own, None).memory_bytes() > before + (48 << 20));
        drop(memory);
        let folder = tempfile::tempdir_in(".").unwrap();
        let mut file = fs::File::create(folder.path().join("file")).unwrap();
        file.write_all(&vec![1; 4 << 20]).unwrap();
        file.sync_all().unwrap();
        let unlinked = || held::by(&own, Some(folder.path())).disk_bytes;
        let before = unlinked();
        fs::remove_file(folder.path().join("file")).unwrap();
        assert!(unlinked() >= before + (4 << 20));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_counts() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(of_call(whose()).iter().any(|(pid, threads)| *pid == own && *threads > 0));
        assert!(of_call(Whose { pid: u32::MAX, ..whose() }).is_empty());
        assert!(held::resident(own).0 > 100_000);
        assert_eq!(
            code(&Written::Memory, &CallLimits { processes: 0, ..LIMITS }),
            Some(crate::error::Code::ProcessLimit)
        );
    }
}
