//! What a child on trial does instead of running a program: it tries what its confinement should forbid.
//!
//! It is the launcher's own code, so that no program has to be found and no user has to reach it. The launcher has one
//! thread, so its child may allocate.

use std::ffi::{CStr, CString, c_int, c_long};

use native_sandbox_confine::{self as confine, Cradle, FIRST_CHILD, Plan};
use native_sandbox_protocol::trial::{ALLOWED_PORT, Attempt, Outcomes, REFUSED_PORT, Trial};

/// The first process of a PID namespace.
const NAMESPACE_INIT: i32 = 1;

/// Tries everything, writes what came of it to stdout, and ends the process.
///
/// # Safety
/// Only in a forked child of the launcher: what is let through (a new namespace) changes the process.
pub(crate) unsafe fn run(trial: &Trial) -> ! {
    let mut outcomes = Outcomes::default();
    if let Some(worker) = &trial.worker {
        // SAFETY: the caller's promise.
        outcomes.set(Attempt::Sibling, unsafe { siblings(worker) });
    } else {
        for attempt in Attempt::ALL {
            // SAFETY: the caller's promise.
            outcomes.set(attempt, unsafe { outcome(attempt, trial) });
        }
    }
    let text = outcomes.encode();
    // SAFETY: reads the text, which fits into an empty pipe whole; the process ends without running anything of the
    // launcher's.
    unsafe {
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(0)
    }
}

unsafe fn outcome(attempt: Attempt, trial: &Trial) -> u64 {
    let path = |tail: &[u8]| CString::new([trial.canary.as_slice(), tail].concat()).unwrap_or_default();
    // A parent in another namespace has no number here.
    let victim = if rustix::process::getppid().is_none() { NAMESPACE_INIT } else { trial.victim };
    // SAFETY: plain system calls on locals. Whatever opens a descriptor or a namespace is at its end with the process.
    unsafe {
        match attempt {
            Attempt::Read => errno_of(open(&path(b""), libc::O_RDONLY).into()),
            Attempt::Write => errno_of(open(&path(b".new"), libc::O_WRONLY | libc::O_CREAT).into()),
            Attempt::Environment => {
                let path = CString::new(format!("/proc/{victim}/environ")).unwrap_or_default();
                let opened = open(&path, libc::O_RDONLY);
                let mut byte = 0_u8;
                // The check may come with the read.
                errno_of(if opened < 0 {
                    opened.into()
                } else {
                    libc::read(opened, (&raw mut byte).cast(), 1) as c_long
                })
            }
            Attempt::Signal => errno_of(libc::kill(victim, 0).into()),
            Attempt::LocalSocket => errno_of(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).into()),
            Attempt::Internet => errno_of(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0).into()),
            Attempt::Trace => errno_of(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0)),
            Attempt::UserNamespace => errno_of(libc::unshare(libc::CLONE_NEWUSER).into()),
            Attempt::NewPrivileges => refused_if(libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1),
            Attempt::Capability => refused_if(!has_capabilities()),
            Attempt::Bounding => refused_if(!has_bounding()),
            Attempt::User => libc::getuid().into(),
            Attempt::NetworkNamespace => inode(c"/proc/self/ns/net"),
            Attempt::IpcNamespace => inode(c"/proc/self/ns/ipc"),
            Attempt::UtsNamespace => inode(c"/proc/self/ns/uts"),
            Attempt::PidNamespace => inode(c"/proc/self/ns/pid"),
            Attempt::Fill => fill(trial.room_bytes),
            Attempt::Asking => asking(),
            // Not a worker's to try.
            Attempt::Sibling => 0,
        }
    }
}

/// What comes of a signal between two children that are forked into PID namespaces of their own, the second under the plan of a
/// worker. Inits and children end with this process.
unsafe fn siblings(worker: &[u8]) -> u64 {
    let refused = |errno: c_int| u64::from(errno.unsigned_abs());
    let Ok(plan) = Plan::decode(worker) else { return refused(libc::EINVAL) };
    // SAFETY: system calls on locals; the children go on in here and end.
    unsafe {
        let mut cradle = match Cradle::new() {
            Ok(cradle) => cradle,
            Err(errno) => return refused(errno),
        };
        if let Err(errno) = cradle.prepare() {
            return refused(errno);
        }
        let victim = libc::fork();
        if victim == 0 {
            libc::pause();
            libc::_exit(0);
        }
        cradle.leave();
        if victim < 0 {
            return errno_of(-1);
        }
        if let Err(errno) = cradle.prepare() {
            return refused(errno);
        }
        let child = libc::fork();
        if child == 0 {
            libc::_exit(try_sibling(&plan, victim));
        }
        cradle.leave();
        let mut status = 0;
        // That it is there to be found.
        if child < 0 || libc::kill(victim, 0) != 0 || libc::waitpid(child, &raw mut status, 0) != child {
            return errno_of(-1);
        }
        if libc::WIFEXITED(status) { refused(libc::WEXITSTATUS(status)) } else { refused(libc::EIO) }
    }
}

/// In a worker: an errno.
unsafe fn try_sibling(plan: &Plan, victim: c_int) -> c_int {
    // SAFETY: takes no memory; this child has one thread.
    unsafe {
        if libc::getpid() != FIRST_CHILD {
            return libc::EPERM;
        }
        if let Err(failed) = confine::apply(plan) {
            return failed.errno;
        }
        // By the number that it has outside, and whoever there is.
        for number in [victim, -1] {
            let found = if libc::kill(number, 0) == 0 { 0 } else { *libc::__errno_location() };
            if found != libc::ESRCH {
                return found;
            }
        }
        libc::ESRCH
    }
}

unsafe fn open(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: a C string; the mode counts for a file that is made.
    unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) }
}

/// Writes a file in the working folder until it is refused, or larger than it may be; none where there is no such limit.
unsafe fn fill(room_bytes: u64) -> u64 {
    if room_bytes == 0 {
        return 0;
    }
    let block = [1_u8; 4096];
    // SAFETY: a C string and a local; the descriptor goes with the process.
    unsafe {
        let file = open(c"filling", libc::O_WRONLY | libc::O_CREAT);
        if file < 0 {
            return errno_of(file.into());
        }
        let mut written = 0;
        while written <= room_bytes {
            let more = libc::write(file, block.as_ptr().cast(), block.len());
            match u64::try_from(more) {
                Ok(more) if more > 0 => written += more,
                _ => return errno_of(more as c_long),
            }
        }
        0
    }
}

fn errno_of(result: c_long) -> u64 {
    if result >= 0 {
        return 0;
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    errno.and_then(|errno| u64::try_from(errno).ok()).unwrap_or(0)
}

fn refused_if(refused: bool) -> u64 {
    if refused { libc::EPERM.unsigned_abs().into() } else { 0 }
}

/// Whether any capability is permitted.
unsafe fn has_capabilities() -> bool {
    let header = [0x2008_0522_u32, 0];
    let mut data = [0_u32; 6];
    // SAFETY: version 3 of the header, and room for the two structs of three words that it stands for.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
    let [_, permitted, _, _, permitted_high, _] = data;
    got != 0 || permitted != 0 || permitted_high != 0
}

/// Whether any capability is in the bounding set. Numbers beyond the last that the kernel knows are answered by an error.
fn has_bounding() -> bool {
    // SAFETY: takes no memory.
    (0..64).any(|capability| unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) == 1 })
}

/// Whether whoever is asked about connections sees where they go.
unsafe fn asking() -> u64 {
    // SAFETY: the caller's promise.
    let [allowed, refused] = unsafe { [ALLOWED_PORT, REFUSED_PORT].map(|port| connect(port)) };
    match (allowed == libc::EACCES, refused == libc::EACCES) {
        (false, true) => libc::EPERM.unsigned_abs().into(),
        (true, _) => libc::ENOENT.unsigned_abs().into(),
        (false, false) => 0,
    }
}

/// An errno.
unsafe fn connect(port: u16) -> c_int {
    // SAFETY: plain data that may be all zero, filled as the kernel wants it; the descriptor is this function's own.
    unsafe {
        let socket =
            libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        if socket < 0 {
            return *libc::__errno_location();
        }
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0);
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
        let length = libc::socklen_t::try_from(std::mem::size_of::<libc::sockaddr_in>()).unwrap_or(0);
        let connected = libc::connect(socket, (&raw const address).cast(), length);
        let errno = if connected == 0 { 0 } else { *libc::__errno_location() };
        libc::close(socket);
        errno
    }
}

unsafe fn inode(path: &CStr) -> u64 {
    // SAFETY: stat is plain data that may be all zero, filled by the call.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        if libc::stat(path.as_ptr(), &raw mut found) == 0 { found.st_ino } else { 0 }
    }
}
