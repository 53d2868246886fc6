//! Makes all memory of the process pass on to its children, and cheaply.

use std::{
    ffi::c_int,
    fs,
    io::{self, Read},
    ops::Range,
};

/// Of x86-64, and of arm64 with pages of 4 KiB.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Linux 6.1; libc knows it for some targets only.
const MADV_COLLAPSE: libc::c_int = 25;

/// One line of `/proc/self/maps`.
pub(crate) struct Mapping {
    pub range: Range<usize>,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    /// Readable, writable and private, in memory alone: a heap or a stack.
    Heap,
    /// Readable, writable and private, begun as a file: the variables of a program or library.
    Variables,
    /// Readable and private, never written, of a file; `protection` is what mmap(2) calls it.
    Program {
        protection: c_int,
    },
    Other,
}

impl Mapping {
    /// What it holds is the process's own as soon as it is written.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.kind, Kind::Heap | Kind::Variables)
    }
}

/// Room for what `/proc/self/maps` tells of a thousand mappings; what is not touched takes no memory.
const TEXT_BYTES: usize = 1024 * 1024;

/// Visits what the process has mapped now, nothing if `/proc` does not tell, without a change to any of it: what it reads into is a
/// mapping of its own, which is visited as well.
pub(crate) fn visit_mappings(mut visit: impl FnMut(Mapping)) -> io::Result<()> {
    let (writable, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a mapping of this function's own, which nothing refers to when it goes.
    unsafe {
        let room = libc::mmap(std::ptr::null_mut(), TEXT_BYTES, writable, flags, -1, 0);
        if room == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let text = std::slice::from_raw_parts_mut(room.cast::<u8>(), TEXT_BYTES);
        let read = read_whole("/proc/self/maps", text);
        if let Ok(length) = read {
            let lines = text[..length].split(|byte| *byte == b'\n');
            lines.filter_map(|line| mapping(str::from_utf8(line).ok()?)).for_each(&mut visit);
        }
        libc::munmap(room, TEXT_BYTES);
        read.map(drop)
    }
}

/// As much of a file as there is room for.
fn read_whole(path: &str, room: &mut [u8]) -> io::Result<usize> {
    let mut file = fs::File::open(path)?;
    let mut length = 0;
    loop {
        match file.read(&mut room[length..])? {
            0 => return Ok(length),
            more => length += more,
        }
    }
}

/// The same as a list; none if `/proc` does not tell.
pub(crate) fn mappings() -> Vec<Mapping> {
    let mut all = Vec::new();
    let told = visit_mappings(|mapping| all.push(mapping));
    if told.is_ok() { all } else { Vec::new() }
}

fn mapping(line: &str) -> Option<Mapping> {
    let (start, end) = range(line)?;
    let mut words = line.split_ascii_whitespace();
    let (permissions, inode) = (words.nth(1)?, words.nth(2)?);
    let kind = match (permissions, inode) {
        ("rw-p" | "rwxp", "0") => Kind::Heap,
        ("rw-p", _) => Kind::Variables,
        ("r--p" | "r-xp", "0") => Kind::Other,
        ("r--p", _) => Kind::Program { protection: libc::PROT_READ },
        ("r-xp", _) => Kind::Program { protection: libc::PROT_READ | libc::PROT_EXEC },
        _ => Kind::Other,
    };
    Some(Mapping { range: start..end, kind })
}

/// Puts the heap into huge pages, of which a fork copies one entry each. Where the kernel refuses, nothing changes.
pub(crate) fn collapse() {
    for Mapping { range, kind } in mappings() {
        let Range { start, end } = whole_huge_pages(&range);
        if kind == Kind::Heap && start < end {
            // SAFETY: advice that changes no content; what can't be collapsed stays as it is.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, MADV_COLLAPSE) };
        }
    }
}

/// Sizes of what `tighten` asks for, from the largest to the smallest chunk that C's allocator makes.
#[cfg(target_env = "gnu")]
const LARGEST_CHUNK_BYTES: usize = 1024 * 1024;
#[cfg(target_env = "gnu")]
const SMALLEST_CHUNK_BYTES: usize = 24;

/// How much free memory `tighten` takes at most.
#[cfg(target_env = "gnu")]
const MAX_TIGHTENED_BYTES: usize = 32 * 1024 * 1024;

/// Takes all the free memory that lies between what C's allocator has given out, and keeps it: what a child allocates then comes from
/// the end of the heap, in one piece, instead of from a hundred pages that it would have to copy for a few bytes each. Gives how
/// many bytes it took.
#[cfg(target_env = "gnu")]
pub(crate) fn tighten() -> usize {
    // SAFETY: reads the allocator's state; what is allocated here is never used.
    unsafe {
        // What is free and a page or more goes back to the system: it need not be copied.
        libc::malloc_trim(0);
        // Of another type it would be a call that C libraries before 2.33 lack.
        let spare = usize::try_from(libc::mallinfo().keepcost).unwrap_or(0);
        let end = libc::sbrk(0) as usize - spare;
        let mut taken = 0;
        let mut size = LARGEST_CHUNK_BYTES;
        while size >= SMALLEST_CHUNK_BYTES && taken < MAX_TIGHTENED_BYTES {
            let chunk = libc::malloc(size);
            if chunk.is_null() || chunk as usize >= end {
                libc::free(chunk);
                // By an eighth while that is more than what the allocator rounds to.
                size -= (size / 8).max(16).min(size);
            } else {
                taken += size;
            }
        }
        taken
    }
}

/// Other C libraries tell nothing about what they have free.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn tighten() -> usize {
    0
}

/// What of a range huge pages can hold; empty, or the end before the start, if none.
pub(crate) fn whole_huge_pages(range: &Range<usize>) -> Range<usize> {
    range.start.next_multiple_of(HUGE_PAGE_BYTES)..range.end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
}

/// Puts one huge page of a program in memory instead of its file. A child finds it there: of a file, it would have to look for
/// each few pages, in a fault of their own, and give them back one by one. `block` is at the start of a huge page within a
/// mapping of that protection. Gives whether it was done: it is not where the kernel has no huge pages to give.
pub(crate) fn settle_program(block: usize, protection: c_int) -> bool {
    let room_bytes = 2 * HUGE_PAGE_BYTES;
    let (writable, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: `room` is a mapping of this function's own, with a whole huge page in it; what is not moved is unmapped. What
    // replaces the program has the same bytes and protection, and does so at once (mremap(2)): a thread in there sees no difference.
    unsafe {
        let room = libc::mmap(std::ptr::null_mut(), room_bytes, writable, flags, -1, 0);
        if room == libc::MAP_FAILED {
            return false;
        }
        let before = (room as usize).next_multiple_of(HUGE_PAGE_BYTES) - room as usize;
        let copy = room.byte_add(before);
        std::ptr::copy_nonoverlapping(block as *const u8, copy.cast(), HUGE_PAGE_BYTES);
        let settled = libc::madvise(copy, HUGE_PAGE_BYTES, MADV_COLLAPSE) == 0
            && libc::mprotect(copy, HUGE_PAGE_BYTES, protection) == 0
            && libc::mremap(copy, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, moved, block as *mut libc::c_void)
                != libc::MAP_FAILED;
        let after = copy.byte_add(HUGE_PAGE_BYTES);
        for (rest, bytes) in [
            (room, before),
            (copy, if settled { 0 } else { HUGE_PAGE_BYTES }),
            (after, HUGE_PAGE_BYTES - before),
        ] {
            if bytes > 0 {
                libc::munmap(rest, bytes);
            }
        }
        settled
    }
}

/// Takes `MADV_DONTFORK`, which V8 sets on its heap and its code, from every mapping that has it, and gives their
/// number. The filter that the launcher starts a zygote under makes this find nothing; where the filter is refused, this
/// is what makes forking possible.
pub(crate) fn share_with_children() -> usize {
    let Ok(maps) = fs::read_to_string("/proc/self/smaps") else { return 0 };
    let marked = marked(&maps);
    for (start, end) in &marked {
        // SAFETY: advice that changes neither content nor protection; a mapping that went away since gives ENOMEM.
        unsafe { libc::madvise(*start as *mut libc::c_void, end - start, libc::MADV_DOFORK) };
    }
    marked.len()
}

/// The ranges of mappings with the flag `dc` ("do not copy area on fork", proc(5)).
fn marked(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if flags.split_ascii_whitespace().any(|flag| flag == "dc") {
                found.extend(current);
            }
        } else if let Some(range) = range(line) {
            current = Some(range);
        }
    }
    found
}

/// The range at the start of a mapping's first line.
fn range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn own_memory_is_told_from_files_code_and_shared_memory() {
        let kind = |line| mapping(line).map(|mapping| mapping.kind);
        let (read, run) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_EXEC);
        assert_eq!(kind("0f9b5000-10396000 rw-p 00000000 00:00 0    [heap]"), Some(Kind::Heap));
        assert_eq!(kind("7ff887840000-7ff887dcc000 rw-p 00000000 00:00 0 "), Some(Kind::Heap));
        assert_eq!(kind("7ff887840000-7ff887dcc000 rwxp 00000000 00:00 0 "), Some(Kind::Heap));
        assert_eq!(kind("06b15000-06b3e000 rw-p 06714000 fe:00 99 /usr/bin/node"), Some(Kind::Variables));
        let program = |protection| Some(Kind::Program { protection });
        assert_eq!(kind("00e37000-03400000 r-xp 00a37000 fe:00 99 /usr/bin/node"), program(run));
        assert_eq!(kind("03401000-06b11000 r--p 03001000 fe:00 99 /usr/bin/node"), program(read));
        assert_eq!(kind("1000-2000 r--p 00000000 00:00 0 "), Some(Kind::Other));
        assert_eq!(kind("1000-2000 r-xp 00000000 00:00 0 [vdso]"), Some(Kind::Other));
        assert_eq!(kind("1000-2000 rw-s 00000000 00:05 7 /memfd:x (deleted)"), Some(Kind::Other));
        assert_eq!(kind("1000-2000 r--s 00000000 00:05 7 /memfd:x (deleted)"), Some(Kind::Other));
        assert_eq!(kind("nonsense"), None);
        assert_eq!(mapping("1000-3000 rw-p 00000000 00:00 0").unwrap().range, 0x1000..0x3000);
    }

    #[test]
    fn a_program_in_a_huge_page_is_the_same_program() {
        let path = std::env::temp_dir().join(format!("settled-{}", std::process::id()));
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().skip(7).step_by(3).take(3 * HUGE_PAGE_BYTES).collect();
        fs::write(&path, &bytes).unwrap();
        let file = fs::File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        // SAFETY: a mapping of this test's own, unmapped at the end.
        unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            let start = libc::mmap(ptr::null_mut(), bytes.len(), libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let whole = whole_huge_pages(&(start as usize..start as usize + bytes.len()));
            let settled = settle_program(whole.start, libc::PROT_READ);
            assert_eq!(std::slice::from_raw_parts(start.cast::<u8>(), bytes.len()), bytes);
            let inside = mappings().into_iter().find(|mapping| mapping.range.contains(&whole.start)).unwrap();
            let expected = if settled { Kind::Other } else { Kind::Program { protection: libc::PROT_READ } };
            assert_eq!(inside.kind, expected);
            libc::munmap(start, bytes.len());
        }
    }

    #[test]
    fn only_marked_mappings_are_found() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr mr mw me ac sd \n\
            4000-5000 r-xp 00000000 fe:00 12 /usr/lib/a-b.so\nVmFlags: rd ex dc \n\
            6000-7000 rw-p 00000000 00:00 0\nVmFlags: rd dcx\n";
        assert_eq!(marked(smaps), [(0x4000, 0x5000)]);
    }

    #[test]
    fn a_marked_page_is_shared_again() {
        // SAFETY: a fresh anonymous mapping of this test's own.
        unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(ptr::null_mut(), 4096, prot, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            assert_eq!(libc::madvise(page, 4096, libc::MADV_DONTFORK), 0);
            assert!(share_with_children() >= 1);
            let maps = fs::read_to_string("/proc/self/smaps").unwrap();
            assert!(!marked(&maps).iter().any(|(start, end)| (*start..*end).contains(&(page as usize))));
            libc::munmap(page, 4096);
        }
    }
}
