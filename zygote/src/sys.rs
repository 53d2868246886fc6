//! The kernel calls of a zygote, each with its reason to be sound.

use std::{
    ffi::c_int,
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

use crate::wire::{MAX_FDS, MAX_PAYLOAD_BYTES, REQUEST_HEAD_BYTES};

/// The size of the descriptors beside one request.
#[expect(clippy::cast_possible_truncation, reason = "a few small numbers")]
const FDS_BYTES: u32 = (MAX_FDS * mem::size_of::<RawFd>()) as u32;

/// The same of one.
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
const FD_BYTES: u32 = mem::size_of::<RawFd>() as u32;

/// Room for the descriptors beside a packet, with the alignment the kernel's header wants.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// What a look at the control socket gave.
pub(crate) enum Received {
    /// One packet and its descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other end is gone, or sends what cannot be a request.
    Closed,
}

/// Whether this descriptor is a socket that keeps packets apart.
pub(crate) fn is_packet_socket(fd: RawFd) -> bool {
    let (mut kind, mut length) = (0_i32, 4);
    // SAFETY: both pointers are to locals, `length` tells the size of the first.
    let failed = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut length)
    };
    failed == 0 && kind == libc::SOCK_SEQPACKET
}

/// Receives one packet without waiting.
pub(crate) fn receive(socket: RawFd) -> Received {
    // One byte more than any request has, so that a longer one shows.
    let mut packet = vec![0_u8; REQUEST_HEAD_BYTES + MAX_PAYLOAD_BYTES + 1];
    let mut room = Ancillary([0; 64]);
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    // SAFETY: an all-zero msghdr is a valid empty one; it then points to locals that outlive the call; the headers are
    // walked by libc's own macros, and each descriptor in them is new and owned by nobody else.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = room.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(FDS_BYTES) as _;
        let size = libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        if size < 0 {
            let nothing = matches!(errno(), libc::EAGAIN | libc::EINTR);
            return if nothing { Received::Nothing } else { Received::Closed };
        }
        let fds = descriptors(&message);
        let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        if size == 0 || cut {
            return Received::Closed;
        }
        packet.truncate(size.unsigned_abs());
        Received::Packet(packet, fds)
    }
}

/// # Safety
/// `message` was filled by `recvmsg`, and this is called once for it.
unsafe fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the macros stay within the control buffer that the kernel filled.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                #[expect(clippy::cast_ptr_alignment, reason = "read unaligned below")]
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / mem::size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

/// Sends one packet, with a descriptor beside it if there is one. `Ok(false)`: there is no room for now.
pub(crate) fn send(socket: RawFd, packet: &[u8], beside: Option<RawFd>, flags: c_int) -> io::Result<bool> {
    let mut room = Ancillary([0; 64]);
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    // SAFETY: an all-zero msghdr is a valid empty one; it then points to locals that outlive the call and to the slice, which is
    // only read; the one header is written by libc's own macros into room that is large enough.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(fd) = beside {
            message.msg_control = room.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(FD_BYTES) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(FD_BYTES) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        }
        libc::sendmsg(socket, &raw const message, flags | libc::MSG_NOSIGNAL)
    };
    if sent >= 0 {
        return Ok(true);
    }
    match errno() {
        libc::EAGAIN | libc::EINTR | libc::ENOBUFS => Ok(false),
        other => Err(io::Error::from_raw_os_error(other)),
    }
}

/// A descriptor of a child that was not reaped, or of this process: who gets it can tell its number in another PID namespace.
/// `None` before Linux 5.3, where there is no namespace to be told from either.
pub(crate) fn pidfd(pid: i32) -> Option<OwnedFd> {
    // SAFETY: gives a new descriptor, owned here at once.
    unsafe {
        let fd = RawFd::try_from(libc::syscall(libc::SYS_pidfd_open, pid, 0)).ok().filter(|fd| *fd >= 0)?;
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// What the handler of SIGCHLD wakes.
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);

/// Gives a descriptor that becomes readable when a child dies.
///
/// Not a `signalfd`: Node has other threads, which do not block the signal, and the kernel may give it to any of them.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: eventfd gives a new descriptor; an all-zero sigaction is a valid empty one; `wake` does only what is safe
    // in a handler.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        WAKE_FD.store(fd.as_raw_fd(), Relaxed);
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = wake as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_NOCLDSTOP;
        if libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }
}

extern "C" fn wake(_: c_int) {
    // SAFETY: the write reads a local; errno, which the interrupted code may be about to read, is put back.
    unsafe {
        let before = errno();
        let one = 1_u64;
        libc::write(WAKE_FD.load(Relaxed), (&raw const one).cast(), 8);
        *libc::__errno_location() = before;
    }
}

/// Makes that descriptor readable though nobody has died since it was emptied.
pub(crate) fn wake_again() {
    wake(libc::SIGCHLD);
}

/// Empties a non-blocking descriptor whose content says no more than that there is some.
pub(crate) fn drain(fd: &OwnedFd) {
    let mut buffer = [0_u8; 1024];
    // SAFETY: writes into the local buffer.
    while unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
}

/// Whether a look at children that are dead but not reaped shows any; `None` when there is no child at all.
pub(crate) fn any_dead_child() -> Option<bool> {
    dead(libc::P_ALL, 0).map(|pid| pid != 0)
}

/// A child that is dead and not reaped, if there is one.
pub(crate) fn dead_child() -> Option<i32> {
    dead(libc::P_ALL, 0).filter(|pid| *pid != 0)
}

/// Whether this child is dead and not reaped; `None` when it is no child of ours. Any number may be asked for.
pub(crate) fn is_dead_child(pid: i32) -> Option<bool> {
    dead(libc::P_PID, pid.unsigned_abs()).map(|pid| pid != 0)
}

/// Its number; 0 for none.
fn dead(kind: libc::idtype_t, number: libc::id_t) -> Option<i32> {
    // SAFETY: siginfo_t is plain data that may be all zero; WNOWAIT leaves the child as it is.
    unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        let failed = libc::waitid(kind, number, &raw mut info, flags);
        (failed == 0).then(|| info.si_pid())
    }
}

/// What the kernel says about a reaped process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reaped {
    /// As `wait4(2)` gives it.
    pub(crate) status: c_int,
    pub(crate) cpu_us: u64,
    pub(crate) max_rss_kib: u64,
}

/// Reaps this child if it is dead. A kernel that does not do it ends this process: it would be told of that child for ever.
pub(crate) fn reap(child: i32) -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: rusage is plain data that may be all zero; both pointers are to locals.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        (libc::wait4(child, &raw mut status, libc::WNOHANG | libc::__WALL, &raw mut usage), usage)
    };
    if reaped < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD) {
        end(1);
    }
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    let max_rss_kib = u64::try_from(usage.ru_maxrss).unwrap_or(0);
    (reaped == child).then_some(Reaped { status, cpu_us, max_rss_kib })
}

fn micros(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}

/// The process group and the session of a process, 0 for those that cannot be told. `/proc` is not asked, so nothing hides them.
pub(crate) fn group_and_session(pid: i32) -> (i32, i32) {
    // SAFETY: take no memory.
    unsafe { (libc::getpgid(pid).max(0), libc::getsid(pid).max(0)) }
}

/// Sends a signal to every process that this one may signal, in one step that no fork slips through: init, and this process, are
/// not reached. Only for who has a PID namespace or a user of its own.
pub(crate) fn signal_all_others(signal: c_int) {
    // SAFETY: takes no memory.
    unsafe { libc::kill(-1, signal) };
}

/// Signals a direct child that was not reaped, so that its number is still its own, and the group it leads, if it does.
/// The kernel holds forks off while it walks the group, so nothing in it slips through.
pub(crate) fn signal_child(child: i32, signal: c_int) {
    // Above 1: 0, -1 and 1 would mean other things.
    if child > 1 {
        // SAFETY: touches no memory. A child that leads no group of its own has its number as nobody's group.
        unsafe {
            libc::kill(-child, signal);
            libc::kill(child, signal);
        }
    }
}

/// Ends every other process of the PID namespace that this one is the first program of, so that nothing which a package
/// started while it was loaded is there with the workers. Elsewhere others live in the namespace: nothing is done.
pub(crate) fn end_others() {
    // SAFETY: take no memory. A parent of 0 is outside of the namespace, and there is one such process besides its init, which
    // is not reached.
    unsafe {
        if libc::getppid() == 0 {
            libc::kill(-1, libc::SIGKILL);
        }
    }
}

/// Signals a process that `verify` still recognises once its pidfd is held, so that a reused number is never hit.
pub(crate) fn signal_verified(pid: i32, signal: c_int, verify: impl FnOnce() -> bool) {
    if pid <= 1 {
        return;
    }
    // SAFETY: pidfd_open gives a new descriptor, owned here at once; the signal's info pointer may be null.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
            fd if fd >= 0 => {
                let fd = OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1));
                if verify() {
                    let none = ptr::null::<libc::siginfo_t>();
                    libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, none, 0);
                }
            }
            // Before Linux 5.3 there is no pidfd: the check right before the signal is the best there is.
            _ if errno() == libc::ENOSYS && verify() => drop(libc::kill(pid, signal)),
            _ => {}
        }
    }
}

/// Milliseconds of the monotonic clock.
pub(crate) fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Random bytes from the kernel; fails only where the call is forbidden.
pub(crate) fn random<const SIZE: usize>() -> io::Result<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    // SAFETY: writes into the local array. Up to 256 bytes come whole.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), SIZE, 0) };
    if got == SIZE.cast_signed() { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

/// What became of a fork.
pub(crate) enum Forked {
    Child,
    Parent(i32),
}

/// A pipe, reader first, of which neither end blocks.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: fills the array; both descriptors are new and ours.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Forks by libc, whose handlers make the child's allocator, OpenSSL and libuv's thread pool usable.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the child goes on with the forking thread alone. V8 was started with `--single-threaded`, libuv starts
    // anew by `uv_loop_fork`, and nothing else in here has threads.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Ends the process at once: no destructor, no exit handler, C's buffers left alone.
pub(crate) fn end(status: c_int) -> ! {
    // SAFETY: takes no memory, does not return.
    unsafe { libc::_exit(status) }
}

/// The calling thread's last error.
pub(crate) fn errno() -> c_int {
    // SAFETY: always a valid pointer in the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Page faults of the children that have ended, each of which has some.
pub(crate) fn faults_of_children() -> f64 {
    // SAFETY: fills the local.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    f64::from(u32::try_from(usage.ru_minflt).unwrap_or(u32::MAX))
}
