//! Where the heap of a zygote lies: close together, so that a fork copies few page tables.
//!
//! V8 asks for each 256 KiB of its heap at an address drawn from 46 bits, so each has page tables of its own: 900 KiB of
//! them for a heap of 12 MiB, copied by every fork and freed at every end (measured on Node 22: 270 KiB when the kernel
//! chooses). V8 has no flag for it. Loaded by `LD_PRELOAD`, this library answers Node's `mmap`; loaded by `dlopen` alone, or
//! where the preload is refused, it changes nothing. What the kernel chooses is random once per process, as its own
//! mappings are.

#[cfg(not(test))]
use std::ffi::c_long;
use std::ffi::{c_int, c_void};

/// Nothing that large is a chunk of V8's heap: the range for code, which has to be near the program, and those of WebAssembly.
const MAX_CHUNK_BYTES: usize = 16 * 1024 * 1024;

/// Whether this asks for a chunk of V8's heap, at an address that it would only like to have. Node 22 reserves it first, Node 24 takes
/// it at once.
fn is_chunk(hint: *mut c_void, length: usize, protection: c_int, flags: c_int) -> bool {
    const WANTED: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    !hint.is_null()
        && length <= MAX_CHUNK_BYTES
        && protection & libc::PROT_EXEC == 0
        && flags & WANTED == WANTED
        && !is_fixed
}

/// # Safety
/// As mmap(2).
#[cfg(not(test))]
unsafe fn map(
    hint: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let hint = if is_chunk(hint, length, protection, flags) { std::ptr::null_mut() } else { hint };
    let (protection, flags) = (c_long::from(protection), c_long::from(flags));
    // SAFETY: the caller's own call, but for an address that it did not insist on. The kernel's -1 is `MAP_FAILED`, and
    // `errno` is set.
    unsafe {
        libc::syscall(libc::SYS_mmap, hint, length, protection, flags, c_long::from(fd), offset)
            as *mut c_void
    }
}

/// # Safety
/// As mmap(2).
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    hint: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { map(hint, length, protection, flags, fd, offset) }
}

/// # Safety
/// As mmap(2).
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    hint: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { map(hint, length, protection, flags, fd, offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chunks_of_the_heap_are_moved() {
        let hint = 0x1234_5678_0000 as *mut c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let chunk = |length, protection, flags| is_chunk(hint, length, protection, flags);
        assert!(chunk(508 * 1024, libc::PROT_NONE, flags));
        assert!(chunk(508 * 1024, libc::PROT_NONE, flags | libc::MAP_NORESERVE));
        assert!(chunk(508 * 1024, libc::PROT_READ | libc::PROT_WRITE, flags));
        assert!(
            !chunk(508 * 1024, libc::PROT_NONE, flags | libc::MAP_FIXED),
            "an address that is insisted on"
        );
        assert!(
            !chunk(508 * 1024, libc::PROT_NONE, flags | libc::MAP_FIXED_NOREPLACE),
            "and one without replacing"
        );
        assert!(!chunk(128 * 1024 * 1024, libc::PROT_NONE, flags), "the range for code");
        assert!(!chunk(4096, libc::PROT_READ | libc::PROT_EXEC, flags), "code");
        assert!(!chunk(4096, libc::PROT_NONE, libc::MAP_PRIVATE), "a file");
        assert!(!is_chunk(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags), "no address");
    }
}
