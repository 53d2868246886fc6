//! Gives a worker in few system calls the pages that it would else copy one by one, while it serves its call.
//!
//! A scout - a child forked as workers are - goes the way of a job once and tells which pages of its zygote it made its own, and
//! which parts of the program it ran. Workers then need not go that way themselves to be warm.

use std::{
    fs::File,
    io::{self, Read, Write},
    ops::Range,
    os::unix::fs::FileExt,
};

use crate::memory::{
    HUGE_PAGE_BYTES, Kind, Mapping, mappings, settle_program, visit_mappings, whole_huge_pages,
};

/// Of `/proc/<pid>/pagemap`, which has this many bytes for each page.
const ENTRY_BYTES: usize = 8;

/// In memory; in memory of no file, and shared with no other process (Linux 4.2; readable without privileges, pagemap(7)).
const PRESENT: u64 = 1 << 63;
const OF_FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// Linux 5.14; libc knows it for some targets only.
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// The caller itself, in place of a descriptor (`PIDFD_SELF_THREAD_GROUP` of `linux/pidfd.h`, Linux 6.14).
const PIDFD_SELF: libc::c_int = -10_001;

/// Ranges of one system call: at most `UIO_MAXIOV`, and what has room on a stack.
const MAX_AT_ONCE: usize = 256;

/// A trivial job touches some 300 pages in 170 ranges. More are not remembered.
const MAX_RANGES: usize = 2048;
const RANGE_BYTES: usize = 16;

/// The kernel maps a file's pages around the one that is missed, this many bytes in all (`fault_around_bytes`).
const FAULT_BYTES: usize = 64 * 1024;

/// How many pages are looked at together: a multiple of those that come with one fault.
const LOOK_PAGES: usize = 256;

/// The most huge pages of the program that are looked at: Node has some 50.
const MAX_BLOCKS: usize = 512;

/// A huge page of the program that takes a worker fewer faults than this is not worth its memory.
const FAULTS_WORTH_A_HUGE_PAGE: usize = 5;

/// A zygote holds at most this much of the program in huge pages: 22 MiB are worth it on Node 22.
const MAX_SETTLED_BYTES: usize = 32 * 1024 * 1024;

/// Pages to be made a worker's own.
pub(crate) struct Pages(Vec<Range<usize>>);

/// What a scout tells.
pub(crate) struct Told {
    pub own: Pages,
    /// Huge pages of the program that it ran much of.
    program: Vec<usize>,
}

impl Pages {
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    /// Makes them the calling process's own. What is no longer there stays away; without the call (Linux below 5.14) pages
    /// are copied when they are needed.
    pub(crate) fn take(&self) {
        let mut rest = &self.0[..];
        while !rest.is_empty() {
            match populate(&rest[..rest.len().min(MAX_AT_ONCE)]) {
                // What is not there ends the call: one further.
                Some(taken) => rest = rest.get(taken.max(1)..).unwrap_or_default(),
                None => return rest.iter().for_each(populate_one),
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|range| range.len() / page_bytes()).sum()
    }
}

/// Populates ranges until one is not there; gives how many, or nothing where the kernel does not take it: not many ranges at once
/// (Linux below 6.13), not by that number for the caller itself (below 6.14), or not in a filter. One system call for all instead of
/// one for each takes a worker a tenth less time for its pages.
fn populate(ranges: &[Range<usize>]) -> Option<usize> {
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_AT_ONCE];
    for (part, range) in parts.iter_mut().zip(ranges) {
        *part = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: range.len() };
    }
    let (call, advice) = (libc::SYS_process_madvise, MADV_POPULATE_WRITE);
    // SAFETY: changes no content; the kernel reads as many parts as there are ranges.
    let advised = unsafe { libc::syscall(call, PIDFD_SELF, parts.as_ptr(), ranges.len(), advice, 0) };
    let Ok(mut bytes) = usize::try_from(advised) else {
        let error = io::Error::last_os_error().raw_os_error();
        return matches!(error, Some(libc::ENOMEM | libc::EFAULT)).then_some(0);
    };
    let whole = ranges.iter().take_while(|range| {
        let is_whole = bytes >= range.len();
        bytes = bytes.saturating_sub(range.len());
        is_whole
    });
    Some(whole.count())
}

fn populate_one(range: &Range<usize>) {
    // SAFETY: changes no content.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), MADV_POPULATE_WRITE) };
}

impl Told {
    /// What the process has for itself, and has run. What is looked at must not grow by the looking, so that little is allocated.
    pub(crate) fn by_this_process() -> io::Result<Self> {
        let pagemap = File::open("/proc/self/pagemap")?;
        let page_bytes = page_bytes();
        let (mut ranges, mut program) = (Vec::with_capacity(MAX_RANGES), Vec::with_capacity(MAX_BLOCKS));
        let mut looked = Ok(());
        visit_mappings(|mapping| {
            let range = match mapping.kind {
                Kind::Heap | Kind::Variables => mapping.range.clone(),
                Kind::Program { .. } => whole_huge_pages(&mapping.range),
                Kind::Other => return,
            };
            for start in range.clone().step_by(LOOK_PAGES * page_bytes) {
                let mut entries = [0; LOOK_PAGES * ENTRY_BYTES];
                let pages = ((range.end - start) / page_bytes).min(LOOK_PAGES);
                let entries = &mut entries[..pages * ENTRY_BYTES];
                if let Err(error) = pagemap.read_exact_at(entries, (start / page_bytes * ENTRY_BYTES) as u64)
                {
                    looked = Err(error);
                    return;
                }
                let entries = entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry));
                if mapping.is_own() {
                    add(&mut ranges, start, page_bytes, entries);
                } else {
                    count(&mut program, start, page_bytes, entries);
                }
            }
        })?;
        looked?;
        Ok(Self { own: Pages(ranges), program: worth_it(program) })
    }

    pub(crate) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let own = self.own.0.iter().flat_map(|range| [range.start, range.end]);
        let program = self.program.iter().flat_map(|block| [*block, block + HUGE_PAGE_BYTES]);
        to.write_all(
            &program.chain(own).flat_map(|number| (number as u64).to_ne_bytes()).collect::<Vec<u8>>(),
        )
    }

    /// Reads what `write` wrote, up to its end. Only what lies in a heap, a stack or the variables of the calling process is taken,
    /// and whole huge pages of its program.
    pub(crate) fn read(from: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.take((MAX_RANGES * RANGE_BYTES) as u64).read_to_end(&mut bytes)?;
        let mappings = mappings();
        let number = |bytes: &[u8; 8]| usize::try_from(u64::from_ne_bytes(*bytes)).unwrap_or(0);
        let (mut own, mut program) = (Vec::new(), Vec::new());
        for range in bytes.as_chunks::<RANGE_BYTES>().0 {
            let halves = range.as_chunks::<8>().0;
            let range = number(&halves[0])..number(&halves[1]);
            match around(&mappings, &range) {
                Some(mapping) if mapping.is_own() => own.push(range),
                Some(Mapping { kind: Kind::Program { .. }, .. })
                    if range.len() == HUGE_PAGE_BYTES && range.start.is_multiple_of(HUGE_PAGE_BYTES) =>
                {
                    program.push(range.start);
                }
                _ => {}
            }
        }
        Ok(Self { own: Pages(own), program })
    }

    /// In the zygote: puts what is run most of the program into huge pages, for all that is forked from now on.
    pub(crate) fn settle(&self) {
        let mappings = mappings();
        for block in self.program.iter().take(MAX_SETTLED_BYTES / HUGE_PAGE_BYTES) {
            let range = *block..block + HUGE_PAGE_BYTES;
            if let Some(Mapping { kind: Kind::Program { protection }, .. }) = around(&mappings, &range)
                && !settle_program(*block, *protection)
            {
                return;
            }
        }
    }
}

fn around<'a>(mappings: &'a [Mapping], range: &Range<usize>) -> Option<&'a Mapping> {
    let holds = |mapping: &&Mapping| mapping.range.start <= range.start && range.end <= mapping.range.end;
    mappings.iter().find(holds).filter(|_| !range.is_empty())
}

/// Adds, for each huge page, how many faults it took to map the pages from `at` on: up to as many pages as are looked at together,
/// the first of which is the first of those that come with one fault.
fn count(
    program: &mut Vec<(usize, usize)>,
    at: usize,
    page_bytes: usize,
    entries: impl Iterator<Item = u64>,
) {
    let mut last = None;
    for (index, _) in entries.enumerate().filter(|(_, entry)| entry & PRESENT != 0) {
        let around = (at + index * page_bytes) / FAULT_BYTES;
        if last.replace(around) == Some(around) {
            continue;
        }
        let block = around * FAULT_BYTES / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let is_full = program.len() == MAX_BLOCKS;
        match program.last_mut() {
            Some((faults, of)) if *of == block => *faults += 1,
            _ if is_full => return,
            _ => program.push((1, block)),
        }
    }
}

/// Those that are worth a huge page, the best first.
fn worth_it(mut program: Vec<(usize, usize)>) -> Vec<usize> {
    program.retain(|(faults, _)| *faults >= FAULTS_WORTH_A_HUGE_PAGE);
    program.sort_unstable_by(|a, b| b.cmp(a));
    program.into_iter().map(|(_, block)| block).collect()
}

/// Adds the pages from `at` on that belong to nobody else, as ranges.
fn add(ranges: &mut Vec<Range<usize>>, at: usize, page_bytes: usize, entries: impl Iterator<Item = u64>) {
    for (index, entry) in entries.enumerate() {
        if entry & (PRESENT | EXCLUSIVE | OF_FILE_OR_SHARED) != PRESENT | EXCLUSIVE {
            continue;
        }
        let start = at + index * page_bytes;
        let is_full = ranges.len() == MAX_RANGES;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end += page_bytes,
            _ if is_full => return,
            _ => ranges.push(start..start + page_bytes),
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range_and_shared_pages_none() {
        let (own, shared, of_file) = (PRESENT | EXCLUSIVE, PRESENT, PRESENT | EXCLUSIVE | OF_FILE_OR_SHARED);
        let mut ranges = Vec::new();
        add(&mut ranges, 0x1000, 0x1000, [own, own, shared, own, of_file, 0, EXCLUSIVE].into_iter());
        add(&mut ranges, 0x8000, 0x1000, [own, shared].into_iter());
        assert_eq!(ranges, [0x1000..0x3000, 0x4000..0x5000, 0x8000..0x9000]);
    }

    #[test]
    fn parts_of_the_program_that_are_run_much_come_first_and_few_faults_are_worth_nothing() {
        let mut pages = vec![0; 1024];
        let mut found = Vec::new();
        count(&mut found, HUGE_PAGE_BYTES, 4096, pages.iter().copied());
        assert_eq!(found, []);
        for at in [0, 3, 15, 16, 511, 600] {
            pages[at] = PRESENT;
        }
        for (start, pages) in (HUGE_PAGE_BYTES..).step_by(LOOK_PAGES * 4096).zip(pages.chunks(LOOK_PAGES)) {
            count(&mut found, start, 4096, pages.iter().copied());
        }
        let blocks = [(3, HUGE_PAGE_BYTES), (1, 2 * HUGE_PAGE_BYTES)];
        assert_eq!(found, blocks, "sixteen pages come with one fault");
        let worth = FAULTS_WORTH_A_HUGE_PAGE;
        assert_eq!(worth_it(vec![(worth, 1), (worth - 1, 2), (worth + 9, 3), (worth + 1, 4)]), [3, 4, 1]);
    }

    #[test]
    fn own_pages_are_found_told_and_taken() {
        let told = Told::by_this_process().unwrap();
        assert!(!told.own.is_empty());
        let mut bytes = Vec::new();
        told.write(&mut bytes).unwrap();
        let read = Told::read(&*bytes).unwrap();
        assert!(!read.own.is_empty());
        assert_eq!(read.program, told.program);
        read.own.take();
        read.settle();
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "nothing that is told is trusted")]
    fn what_is_no_heap_of_the_reader_is_not_taken() {
        let text = page_bytes as *const () as usize / 4096 * 4096;
        let foreign =
            Pages(vec![0..4096, text..text + 4096, usize::MAX - 8191..usize::MAX - 4095, 8192..4096]);
        let mut bytes = Vec::new();
        let program = vec![HUGE_PAGE_BYTES, text / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES + 4096];
        Told { own: foreign, program }.write(&mut bytes).unwrap();
        bytes.push(1);
        let read = Told::read(&*bytes).unwrap();
        assert!(read.own.is_empty());
        assert!(read.program.is_empty());
    }

    /// One system call for all ranges ends at the first that is not there.
    #[test]
    fn what_comes_after_a_range_that_is_gone_is_taken_too() {
        let bytes = page_bytes();
        let count = MAX_AT_ONCE + 8;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a mapping of this test's own.
        let base = unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                count * bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            for gone in [0, 3, MAX_AT_ONCE] {
                assert_eq!(libc::munmap(map.byte_add(gone * bytes), bytes), 0);
            }
            map as usize
        };
        // With room between them, so that none is a neighbour's.
        let wanted: Vec<usize> = (0..count).filter(|at| at % 2 == 0 || *at == 3).collect();
        Pages(wanted.iter().map(|at| base + at * bytes..base + (at + 1) * bytes).collect()).take();
        let entry = |at: usize| {
            let mut entry = [0; 8];
            let pagemap = File::open("/proc/self/pagemap").unwrap();
            let offset = (base / bytes + at) * entry.len();
            std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, offset as u64).unwrap();
            u64::from_ne_bytes(entry) & PRESENT != 0
        };
        let found: Vec<usize> = (0..count).filter(|at| entry(*at)).collect();
        let there: Vec<usize> = wanted.into_iter().filter(|at| ![0, 3, MAX_AT_ONCE].contains(at)).collect();
        assert_eq!(found, there);
    }

    #[test]
    fn looking_adds_nothing_to_what_is_looked_at() {
        // In a process of one thread, where nobody else allocates.
        // SAFETY: the child looks, and ends; what it allocates comes from an allocator that glibc keeps usable across a fork.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let counts = [0; 2].map(|_| Told::by_this_process().map_or(0, |told| told.own.count()));
                // The text of what is mapped, and what is read of the pages, would be more.
                libc::_exit(i32::from(counts[0] == 0 || counts[1] > counts[0] + 12));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }

    #[test]
    fn what_is_told_has_a_limit() {
        let bytes = vec![0_u8; MAX_RANGES * RANGE_BYTES * 2];
        assert!(Told::read(&*bytes).unwrap().own.0.len() <= MAX_RANGES);
    }
}
