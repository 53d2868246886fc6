//! Makes all memory of the process pass on to its children.

use std::fs;

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
