//! Makes all memory of the process pass on to its children, and cheaply.

use std::{fs, ops::Range};

/// Of x86-64, and of arm64 with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Linux 6.1; libc knows it for some targets only.
const MADV_COLLAPSE: libc::c_int = 25;

/// One line of `/proc/self/maps`.
pub(crate) struct Mapping {
    pub range: Range<usize>,
    /// Readable, writable and private, in memory alone: a heap or a stack.
    pub is_own: bool,
}

/// What the process has mapped now; none if `/proc` does not tell.
pub(crate) fn mappings() -> Vec<Mapping> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let (start, end) = range(line)?;
    let mut words = line.split_ascii_whitespace();
    let (permissions, inode) = (words.nth(1)?, words.nth(2)?);
    Some(Mapping {
        range: start..end,
        is_own: permissions.starts_with("rw") && permissions.ends_with('p') && inode == "0",
    })
}

/// Puts the heap into huge pages, of which a fork copies one entry each. Where the kernel refuses, nothing changes.
pub(crate) fn collapse() {
    for Mapping { range, is_own } in mappings() {
        let (start, end) =
            (range.start.next_multiple_of(HUGE_PAGE_BYTES), range.end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        if is_own && start < end {
            // SAFETY: advice that changes no content; what can't be collapsed stays as it is.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, MADV_COLLAPSE) };
        }
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
        let is_own = |line| mapping(line).map(|mapping| mapping.is_own);
        assert_eq!(is_own("0f9b5000-10396000 rw-p 00000000 00:00 0    [heap]"), Some(true));
        assert_eq!(is_own("7ff887840000-7ff887dcc000 rw-p 00000000 00:00 0 "), Some(true));
        assert_eq!(is_own("7ff887840000-7ff887dcc000 rwxp 00000000 00:00 0 "), Some(true));
        assert_eq!(is_own("06b15000-06b3e000 rw-p 06714000 fe:00 999451   /usr/bin/node"), Some(false));
        assert_eq!(is_own("1000-2000 r--p 00000000 00:00 0 "), Some(false));
        assert_eq!(is_own("1000-2000 rw-s 00000000 00:05 7 /memfd:x (deleted)"), Some(false));
        assert_eq!(is_own("nonsense"), None);
        assert_eq!(mapping("1000-3000 rw-p 00000000 00:00 0").unwrap().range, 0x1000..0x3000);
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
