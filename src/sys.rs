//! The few calls of kernel and loader without a safe wrapper, and what is read of `/proc`. Next to nothing where there is no Unix.

#[cfg(unix)]
pub use unix::{Reaped, is_passing, own_library, reap, register, wait_until_dead};

#[cfg(target_os = "linux")]
pub use linux::{
    is_dead, is_outside, landlock_abi, mark_of, name_of, numbers, process_of, processes, resume_if_stopped,
    set_mark, signal_exactly, signal_marked,
};

/// See the one for Unix.
#[cfg(not(unix))]
pub fn is_passing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, OutOfMemory, StorageFull, TimedOut};
    matches!(error.kind(), Interrupted | OutOfMemory | StorageFull | TimedOut)
}

#[cfg(unix)]
mod unix {
    use std::{
        ffi::{CStr, OsStr},
        io,
        os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
        path::PathBuf,
    };

    use tokio::io::{Interest, unix::AsyncFd};

    use crate::process::ExitStatus;

    /// Whether an error says that something is short, or slow, at the moment: it says nothing about what the machine offers, and the
    /// same call may succeed later.
    pub fn is_passing(error: &io::Error) -> bool {
        const PASSING: [i32; 11] = [
            libc::EAGAIN,
            libc::EDQUOT,
            libc::EINTR,
            libc::EIO,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::ENOSPC,
            libc::ETIMEDOUT,
            libc::ETXTBSY,
        ];
        error.kind() == io::ErrorKind::TimedOut
            || error.raw_os_error().is_some_and(|errno| PASSING.contains(&errno))
    }

    /// Hands a descriptor to the current tokio runtime, which it must be called in.
    pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
        // SAFETY: an `OwnedFd` gives the same open descriptor for as long as it lives, and the `AsyncFd` owns it.
        unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
    }

    /// Path of the file that this code was loaded from: the addon, or a test's executable. The launcher lies beside it.
    pub fn own_library() -> PathBuf {
        // SAFETY: Dl_info is plain data that may be all zero; dladdr(3) fills it for any address of this process.
        let name = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let found = libc::dladdr(own_library as *const libc::c_void, &raw mut info);
            if found == 0 || info.dli_fname.is_null() {
                return std::env::current_exe().unwrap_or_default();
            }
            CStr::from_ptr(info.dli_fname)
        };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    }

    /// What the kernel says about a reaped process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Reaped {
        /// How it ended; lost when somebody else in this process reaped it first.
        pub status: ExitStatus,
        /// User and system time of it and its waited-for children, microseconds.
        pub cpu_us: u64,
        /// Its peak resident set, KiB.
        pub max_rss_kib: u64,
    }

    /// Reaps exactly this child if it is dead, without waiting.
    pub fn reap(child: i32) -> Option<Reaped> {
        let mut status = 0;
        // SAFETY: rusage is plain data that may be all zero; both pointers are to locals.
        let (reaped, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(child, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
        };
        if reaped == 0 || (reaped < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD)) {
            return None;
        }
        if reaped != child {
            return Some(Reaped { status: ExitStatus::Lost, cpu_us: 0, max_rss_kib: 0 });
        }
        let status = if libc::WIFSIGNALED(status) {
            ExitStatus::Signal(libc::WTERMSIG(status))
        } else {
            ExitStatus::Code(libc::WEXITSTATUS(status))
        };
        let max_rss = u64::try_from(usage.ru_maxrss).unwrap_or(0);
        // Apple counts bytes, everybody else KiB.
        let max_rss_kib = if cfg!(target_vendor = "apple") { max_rss / 1024 } else { max_rss };
        Some(Reaped { status, cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime), max_rss_kib })
    }

    fn micros(time: libc::timeval) -> u64 {
        let whole = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000;
        whole + u64::try_from(time.tv_usec).unwrap_or(0)
    }

    /// Blocks until this child is dead, and leaves it to be reaped. Returns at once when there is no such child.
    pub fn wait_until_dead(child: i32) {
        let Ok(id) = libc::id_t::try_from(child) else { return };
        loop {
            // SAFETY: siginfo_t is plain data that may be all zero, and the pointer is to a local.
            let waited = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                libc::waitid(libc::P_PID, id, &raw mut info, libc::WEXITED | libc::WNOWAIT)
            };
            if waited == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return;
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{fs, io};

    use native_sandbox_confine::Mark;
    use native_sandbox_protocol::stat::{Entry, parse};
    use rustix::{
        io::Errno,
        process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
    };

    /// The version of Landlock that the kernel has, and lets this process use.
    pub fn landlock_abi() -> io::Result<u32> {
        const VERSION: libc::c_ulong = 1;
        // SAFETY: with this flag the kernel reads nothing.
        let abi =
            unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) };
        u32::try_from(abi).map_err(|_| io::Error::last_os_error())
    }

    /// The mark of a process, if it has one. Asks the kernel, and `/proc` only where that does not tell this user.
    pub fn mark_of(pid: i32) -> Option<Mark> {
        match told_mark_of(pid) {
            Err(errno) if errno == libc::EPERM => {}
            told => return told.ok().flatten(),
        }
        let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Max realtime timeout"))?;
        Mark::of_limit(line.split_ascii_whitespace().nth(1)?.parse().ok()?)
    }

    /// By what a process is told from those of others: its mark, or, where the kernel does not tell that, as it belongs to another user,
    /// that user.
    pub fn name_of(pid: i32) -> (Option<Mark>, Option<u32>) {
        match told_mark_of(pid) {
            Ok(mark) => (mark, None),
            Err(errno) if errno == libc::EPERM => (None, user_of(pid)),
            Err(_) => (None, None),
        }
    }

    /// The process of a thread, and its parent.
    pub fn process_of(thread: i32) -> Option<(i32, i32)> {
        let text = status_of(thread)?;
        Some((number(&text, "Tgid:")?, number(&text, "PPid:")?))
    }

    fn user_of(pid: i32) -> Option<u32> {
        number(&status_of(pid)?, "Uid:")
    }

    fn status_of(pid: i32) -> Option<String> {
        fs::read_to_string(format!("/proc/{pid}/status")).ok()
    }

    /// The first number of a line of a process's status.
    fn number<T: std::str::FromStr>(status: &str, name: &str) -> Option<T> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    fn told_mark_of(pid: i32) -> Result<Option<Mark>, i32> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a null pointer for what is not to be set, and one to a local.
        match unsafe { libc::prlimit(pid, libc::RLIMIT_RTTIME, std::ptr::null(), &raw mut limit) } {
            0 => Ok(Mark::of_limit(limit.rlim_max)),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Marks a process; whether that could be done.
    pub fn set_mark(pid: i32, mark: Mark) -> bool {
        let limit = libc::rlimit { rlim_cur: mark.limit(), rlim_max: mark.limit() };
        // SAFETY: a pointer to a local, and a null pointer for what is not asked for. 0 would mean this process.
        pid > 1
            && unsafe { libc::prlimit(pid, libc::RLIMIT_RTTIME, &raw const limit, std::ptr::null_mut()) } == 0
    }

    /// The numbers of all processes that `/proc` shows.
    pub fn numbers() -> Vec<i32> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Every process that `/proc` shows. Takes some 10 µs for each.
    pub fn processes() -> Vec<Entry> {
        numbers().into_iter().filter_map(read).collect()
    }

    fn read(pid: i32) -> Option<Entry> {
        parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Sends SIGCONT to a process of ours that somebody stopped (a function may signal whatever runs under its uid).
    pub fn resume_if_stopped(pid: i32) {
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return };
        // The state stands behind the name, which may hold anything, parentheses too.
        let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
        if state == Some(&b'T')
            && let Some(entry) = parse(&stat)
        {
            signal_exactly(&entry, Signal::CONT);
        }
    }

    /// Whether this process lives, and in another process group than `group`.
    pub fn is_outside(entry: &Entry, group: i32) -> bool {
        read(entry.pid).is_some_and(|now| now.started_ticks == entry.started_ticks && now.group != group)
    }

    /// Signals this process, never another that got its number since it was seen.
    pub fn signal_exactly(entry: &Entry, signal: Signal) {
        signal_if(entry.pid, signal, || {
            read(entry.pid).is_some_and(|now| now.started_ticks == entry.started_ticks)
        });
    }

    /// Signals the process of this number if it is marked so.
    pub fn signal_marked(pid: i32, mark: Mark, signal: Signal) {
        signal_if(pid, signal, || mark_of(pid) == Some(mark));
    }

    /// Whether it is dead and only waits to be reaped, or is no more.
    pub fn is_dead(pid: i32) -> bool {
        match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => parse(&stat).is_none_or(|entry| entry.zombie),
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
        }
    }

    fn signal_if(pid: i32, signal: Signal, same: impl Fn() -> bool) {
        let Some(pid) = Pid::from_raw(pid).filter(|pid| *pid != Pid::INIT) else { return };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) if same() => drop(pidfd_send_signal(fd, signal)),
            // Before Linux 5.3 there is no pidfd: the check right before the signal is the best there is.
            Err(Errno::NOSYS) if same() => drop(kill_process(pid, signal)),
            _ => {}
        }
    }
}
