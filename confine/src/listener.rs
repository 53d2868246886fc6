//! A filter that asks: its listener is sent to whoever answers.
//!
//! The filter may stop the very call that a descriptor is sent by, so the sender is another process, made before the filter is
//! installed, with the same table of descriptors (`CLONE_FILES`).

use std::{
    ffi::{c_int, c_ulong},
    ptr,
};

use crate::{
    apply::{check, check_long, errno},
    scratch::send,
};

/// Where the process has the socket that the listener is sent through; closed when that is done.
pub const LISTENER_FD: c_int = 5;

/// The byte that the listener comes with.
pub const LISTENER_WORD: u8 = b'L';

/// Installs a filter and sends its listener.
///
/// # Safety
///
/// The process has one thread, and may install filters.
pub(crate) unsafe fn install(program: &libc::sock_fprog) -> Result<(), c_int> {
    let mut pipe = [-1; 2];
    // SAFETY: system calls on locals, and on descriptors that are this function's own. The sender shares nothing with this process but its
    // table of descriptors; it makes system calls on its copy of the locals, and ends.
    unsafe {
        check(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC))?;
        let [from, to] = pipe;
        let own = libc::getpid();
        // Without a signal at its end; the other arguments are of what it does not have.
        let sender = check_long(libc::syscall(
            libc::SYS_clone,
            c_ulong::from(libc::CLONE_FILES.cast_unsigned()),
            0,
            0,
            0,
            0,
        ))?;
        if sender == 0 {
            libc::_exit(c_int::from(send_what_comes(own, from).is_err()));
        }
        let installed = install_only(program);
        // Whatever it is: the sender ends by what is no descriptor.
        let number = installed.unwrap_or(-1).to_ne_bytes();
        let told = libc::write(to, number.as_ptr().cast(), number.len());
        let mut status = 0;
        let waited = loop {
            let waited = libc::waitpid(sender, &raw mut status, libc::__WALL);
            if waited >= 0 || errno() != libc::EINTR {
                break waited;
            }
        };
        for fd in [from, to, LISTENER_FD] {
            libc::close(fd);
        }
        let listener = installed?;
        libc::close(listener);
        let sent = told == 4 && waited == sender && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        if sent { Ok(()) } else { Err(libc::EPIPE) }
    }
}

unsafe fn install_only(program: &libc::sock_fprog) -> Result<c_int, c_int> {
    let needed = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let install = |flags: c_ulong| {
        // SAFETY: the kernel reads the program, which the caller has.
        let done = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, ptr::from_ref(program))
        };
        // SAFETY: as above.
        unsafe { check_long(done) }
    };
    // With it (Linux 5.19) a signal does not make one request two.
    match install(needed | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(libc::EINVAL) => install(needed),
        done => done,
    }
}

/// The sender's life: it has the number of the listener from a pipe.
unsafe fn send_what_comes(parent: c_int, from: c_int) -> Result<(), c_int> {
    // SAFETY: system calls on locals.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid() != parent {
            return Err(libc::ESRCH);
        }
        let mut number = [0_u8; 4];
        if libc::read(from, number.as_mut_ptr().cast(), number.len()) != 4 {
            return Err(libc::EPIPE);
        }
        let listener = c_int::from_ne_bytes(number);
        if listener < 0 {
            return Err(libc::EBADF);
        }
        send(LISTENER_FD, &[LISTENER_WORD], &[listener])
    }
}
