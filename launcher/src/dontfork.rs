//! A seccomp filter under which `madvise(…, MADV_DONTFORK)` succeeds and does nothing.
//!
//! V8 marks its heap and its code with `MADV_DONTFORK`: a forked Node has neither and dies in its first interpreted
//! function. A Node that is to fork (a zygote) therefore runs under this filter, from before its exec on.

use std::ffi::c_int;

/// What the kernel calls this machine in `seccomp_data.arch` (`linux/audit.h`); a filter must not judge by the number of a
/// call of another architecture.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;

/// Offsets in `seccomp_data` (`linux/seccomp.h`); of the third argument the low half, as `madvise` takes an `int`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const THIRD_ARGUMENT: u32 = 16 + 2 * 8;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

#[expect(
    clippy::cast_possible_truncation,
    reason = "operation codes have 16 bits, numbers of calls are small"
)]
const fn step(code: u32, k: u32, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k }
}

#[expect(clippy::cast_possible_truncation, reason = "small positive constants")]
static FILTER: [libc::sock_filter; 8] = [
    step(LOAD, ARCHITECTURE, 0),
    step(JUMP_IF_EQUAL, AUDIT_ARCH, 5),
    step(LOAD, NUMBER, 0),
    step(JUMP_IF_EQUAL, libc::SYS_madvise as u32, 3),
    step(LOAD, THIRD_ARGUMENT, 0),
    step(JUMP_IF_EQUAL, libc::MADV_DONTFORK as u32, 1),
    // "Failed with errno 0", which is what success looks like.
    step(RETURN, libc::SECCOMP_RET_ERRNO, 0),
    step(RETURN, libc::SECCOMP_RET_ALLOW, 0),
];

/// Puts the calling thread, and whatever it forks or execs, under the filter, and under `no_new_privs`, without which
/// the kernel takes no filter from an unprivileged process. Gives 0 or the errno: `EINVAL` or `ENOSYS` for a kernel without
/// seccomp, `EACCES` where an outer filter refuses it. Safe between fork and exec: three system calls on static memory.
pub(crate) fn install() -> c_int {
    let program = libc::sock_fprog { len: 8, filter: (&raw const FILTER).cast_mut().cast() };
    // SAFETY: plain system calls; the kernel only reads the program, which lives across the calls.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return *libc::__errno_location();
        }
        // Without this flag (Linux 4.17), kernels before 5.16 slow filtered processes down by a Spectre mitigation.
        let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        if libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) == 0 {
            return 0;
        }
        if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0 {
            return 0;
        }
        *libc::__errno_location()
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, thread};

    use super::*;

    /// A page of zeros with a 7 in front.
    fn page() -> *mut u8 {
        // SAFETY: a fresh anonymous page, written at its start.
        unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(ptr::null_mut(), 4096, prot, flags, -1, 0).cast::<u8>();
            assert_ne!(page.cast(), libc::MAP_FAILED);
            *page = 7;
            page
        }
    }

    /// Whether a forked child has the page.
    fn is_in_child(page: *mut u8) -> bool {
        let mut status = 0;
        // SAFETY: the child calls only what is safe after a fork: mincore tells unmapped memory by ENOMEM.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut resident = 0_u8;
                libc::_exit(libc::mincore(page.cast(), 4096, &raw mut resident));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        status == 0
    }

    fn advise(page: *mut u8, advice: c_int) -> c_int {
        // SAFETY: the page is this test's own, and no test reads it after advice that drops it, except for that.
        unsafe { libc::madvise(page.cast(), 4096, advice) }
    }

    #[test]
    fn only_the_advice_not_to_fork_is_ignored() {
        // A thread of its own: the filter stays with it.
        let under_filter = thread::spawn(|| {
            let (kept, dropped) = (page(), page());
            assert_eq!(install(), 0);
            assert_eq!(advise(kept, libc::MADV_DONTFORK), 0);
            assert!(is_in_child(kept));
            // Other advice goes through: the page is zeros again.
            assert_eq!(advise(dropped, libc::MADV_DONTNEED), 0);
            // SAFETY: still mapped.
            assert_eq!(unsafe { *dropped }, 0);
            assert_eq!(advise(kept, -1), -1);
            // A second filter on top changes nothing.
            assert_eq!(install(), 0);
            assert!(is_in_child(kept));
        });
        under_filter.join().unwrap();
        let lost = page();
        assert_eq!(advise(lost, libc::MADV_DONTFORK), 0);
        assert!(!is_in_child(lost));
    }
}
