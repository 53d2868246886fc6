//! The kernel calls of the launcher that have no safe wrapper.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use native_sandbox_confine::{Mark, set_limit};
use native_sandbox_protocol::Status;
use rustix::fd::AsFd;

/// The control socket: the launcher's stdin.
pub(crate) fn control_fd() -> io::Result<OwnedFd> {
    // SAFETY: descriptor 0 is open for the life of the process: the standard library opens what is closed at start.
    let stdin = unsafe { BorrowedFd::borrow_raw(0) };
    // A copy that `exec` closes; 0 itself is replaced in every child.
    rustix::io::fcntl_dupfd_cloexec(stdin, 3).map_err(Into::into)
}

/// Closes every descriptor above 2: what the host had open without close-on-exec is not ours to keep.
pub(crate) fn close_inherited() {
    // SAFETY: called first of all, when this process has opened nothing, so nobody owns what is closed here.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    if closed == 0 {
        return;
    }
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<RawFd> =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: as above; the directory's own descriptor is closed already, closing it again only gives EBADF.
        unsafe { libc::close(fd) };
    }
}

/// Marks this process, and so all that it starts, as one launcher's. None where its limits do not allow it: it is run by something
/// that is marked already, or that has set this limit.
pub(crate) fn mark() -> Option<Mark> {
    let mut random = [0_u8; 4];
    // SAFETY: writes into the array.
    let drawn = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    let mark = Mark::of_launcher(u32::from_ne_bytes(random));
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a pointer to a local.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limit) } == 0;
    let may =
        drawn == 4 && known && limit.rlim_max >= mark.limit() && Mark::of_limit(limit.rlim_max).is_none();
    (may && set_limit(libc::RLIMIT_RTTIME, Some(mark.limit()), 0)).then_some(mark)
}

/// Ignores the signals that reach a whole session or service at once: the launcher ends when its host does.
pub(crate) fn ignore_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE] {
        // SAFETY: SIG_IGN runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Blocks SIGCHLD and gives a descriptor that becomes readable with it.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is a valid place for sigemptyset to fill; SIGCHLD is a valid signal; the other
    // pointers are null where the calls allow it.
    unsafe {
        // A host that ignores SIGCHLD would hand that down, and the kernel would then reap in our place.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// What there is of children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Children {
    /// None.
    None,
    /// Some, and none of them is dead.
    Alive,
    /// One that is dead and not yet reaped.
    Dead(i32),
}

/// Looks for a child that is dead and not yet reaped. Leaves it as it is.
///
/// # Errors
///
/// The kernel does not tell.
pub(crate) fn children() -> io::Result<Children> {
    Ok(match peek(libc::P_ALL, 0)? {
        None => Children::None,
        Some(0) => Children::Alive,
        Some(pid) => Children::Dead(pid),
    })
}

/// Whether this child is dead and not yet reaped. Leaves it as it is.
pub(crate) fn is_dead(child: i32) -> bool {
    u32::try_from(child).is_ok_and(|id| matches!(peek(libc::P_PID, id), Ok(Some(dead)) if dead == child))
}

/// The number of a dead child, 0 when none of those asked for is dead, `None` when there are none of those.
fn peek(kind: libc::idtype_t, id: libc::id_t) -> io::Result<Option<i32>> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: siginfo_t is plain data that may be all zero, and waitid fills it or leaves si_pid at 0.
    let (failed, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::waitid(kind, id, &raw mut info, options), info.si_pid())
    };
    if failed == 0 { Ok(Some(pid)) } else { none_if_absent() }
}

/// What failed is about no child; or it is something else.
fn none_if_absent<T>() -> io::Result<Option<T>> {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) }
}

/// What the kernel says about a reaped process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reaped {
    pub(crate) status: Status,
    pub(crate) cpu_us: u64,
    pub(crate) max_rss_kib: u64,
}

/// Reaps this child if it is dead.
///
/// # Errors
///
/// The kernel does not do it. Whoever then asked for the next dead child would be told of this one for ever.
pub(crate) fn reap(child: i32) -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: rusage is plain data that may be all zero; both pointers are to locals.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(child, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    if reaped < 0 {
        return none_if_absent();
    }
    if reaped != child {
        return Ok(None);
    }
    let status = if libc::WIFSIGNALED(status) {
        Status::Signal(libc::WTERMSIG(status))
    } else {
        Status::Code(libc::WEXITSTATUS(status))
    };
    let cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    Ok(Some(Reaped { status, cpu_us, max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0) }))
}

fn micros(time: libc::timeval) -> u64 {
    let whole = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000;
    whole + u64::try_from(time.tv_usec).unwrap_or(0)
}

/// The process group and the session of a process, 0 for those that cannot be told. `/proc` is not asked, so nothing hides them.
pub(crate) fn group_and_session(pid: i32) -> (i32, i32) {
    // SAFETY: take no memory.
    unsafe { (libc::getpgid(pid).max(0), libc::getsid(pid).max(0)) }
}

/// Signals a direct child that was not reaped, so that its number is still its own.
pub(crate) fn signal_child(child: i32, signal: i32) {
    // 0, -1 and 1 would mean other things.
    if child > 1 {
        // SAFETY: kill touches no memory.
        unsafe { libc::kill(child, signal) };
    }
}

/// Signals the process group of a direct child that leads one and was not reaped. The kernel holds forks off while it
/// walks the group, so nothing in it slips through.
pub(crate) fn signal_group(leader: i32, signal: i32) {
    if leader > 1 {
        // SAFETY: killpg touches no memory.
        unsafe { libc::killpg(leader, signal) };
    }
}

/// Signals a process that `verify` still recognises once its pidfd is held, so that a reused number is never hit.
pub(crate) fn signal_verified(pid: i32, signal: i32, verify: impl Fn() -> bool) {
    let Some(target) = rustix::process::Pid::from_raw(pid).filter(|_| pid > 1) else { return };
    let Some(named) = rustix::process::Signal::from_named_raw(signal) else { return };
    match rustix::process::pidfd_open(target, rustix::process::PidfdFlags::empty()) {
        Ok(fd) if verify() => drop(rustix::process::pidfd_send_signal(fd, named)),
        // Before Linux 5.3 there is no pidfd: the check right before the signal is the best there is.
        Err(rustix::io::Errno::NOSYS) if verify() => drop(rustix::process::kill_process(target, named)),
        _ => {}
    }
}

/// Empties a non-blocking descriptor whose content says no more than that there is some.
pub(crate) fn drain(fd: impl AsFd) {
    let mut buffer = [0_u8; 1024];
    while matches!(rustix::io::read(&fd, &mut buffer), Ok(size) if size > 0) {}
}

/// What became of a fork.
pub(crate) enum Forked {
    Child,
    Parent(i32),
}

/// Forks.
///
/// # Safety
/// The calling process has one thread, and the child calls nothing but what is safe after a fork until it execs or
/// exits.
pub(crate) unsafe fn fork() -> io::Result<Forked> {
    // SAFETY: the caller's promise.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// The number of a descriptor, for the calls above and for the child.
pub(crate) fn raw(fd: &OwnedFd) -> RawFd {
    fd.as_raw_fd()
}
