//! A PID namespace of one's own. As in `apply.rs`, nothing is allocated.
//!
//! The process that asks for one becomes the *keeper*: it stays in the namespace it is in, waits, and ends as the
//! confined process does. Its first child is the *init* of the new namespace; with it everything in there ends. Another
//! child goes on to be confined: the first process of a namespace is deaf to its own signals, so that one is none for programs.
//!
//! ```text
//! parent ── keeper ─┬─ init (1)
//!                   └─ confined (3, or 4) ── whatever it starts; what it leaves becomes init's
//! ```
//!
//! The confined process has another number than the process that it is a copy of, and than those have that it forks into
//! namespaces of their own ([`FIRST_CHILD`]): by its number a library knows that it was forked. OpenSSL would give the same
//! random numbers in each copy.
//!
//! The keeper dies with its parent, and init with the keeper, unless the keeper said that the confined process has ended: then
//! init goes on for as long as something is left, or until the keeper's parent, whose child it then is, ends or kills it.

use std::{
    ffi::{c_int, c_uint},
    mem, ptr,
};

use crate::{
    apply::{Failed, check, check_long, drop_capabilities, errno, leave_namespaces},
    cradle::FIRST_CHILD,
    plan::{Plan, Step},
};

/// The number of a confined process, unless its parent has that.
const CONFINED: c_int = FIRST_CHILD + 1;

/// Names that `ps` shows; 15 bytes at most.
const KEEPER: &std::ffi::CStr = c"sandbox-keeper";
const INIT: &std::ffi::CStr = c"sandbox-init";

/// The keeper's word that the confined process has ended, and init's that something is left.
static WORD: u8 = 1;

/// The keeper's descriptor.
const LINK: c_int = 0;

/// Init's: the keeper, the keeper's parent, deaths.
const INIT_LINK: c_int = 0;
const INIT_PARENT: c_int = 1;
const INIT_DEATHS: c_int = 2;

/// The kernel's set of all signals.
static ALL_SIGNALS: u64 = u64::MAX;

/// Leaves the namespaces of a plan that has one of PIDs among them. Returns in the process to be confined only, whose parent
/// it then cannot see (`getppid` gives 0); or in the caller, where it fails.
///
/// # Errors
/// The step that failed.
///
/// # Safety
/// The process has one thread, was just forked, leads a session, and is to die with its parent.
pub unsafe fn nest(plan: &Plan) -> Result<(), Failed> {
    let at = |step: Step| move |errno: c_int| Failed { step, errno };
    // SAFETY: system calls on locals; each descriptor made here is closed here, in each of the three.
    unsafe {
        // Asked for here: what is in another namespace cannot be named from inside.
        let above = libc::getppid();
        let parent = check_long(libc::syscall(libc::SYS_pidfd_open, above, 0)).map_err(at(Step::Init))?;
        // Newer than the other (Linux 5.9), and a failure could not be told later.
        let close_none = libc::syscall(libc::SYS_close_range, c_uint::MAX, c_uint::MAX, 0);
        check_long(close_none).map_err(at(Step::Init))?;
        let mut link = [-1; 2];
        let (family, kind) = (libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
        check(libc::socketpair(family, kind, 0, link.as_mut_ptr())).map_err(at(Step::Init))?;
        leave_namespaces(plan.namespaces).map_err(at(Step::Namespaces))?;
        let init = libc::fork();
        check(init).map_err(at(Step::Init))?;
        if init == 0 {
            be_init(link[1], parent);
        }
        pass_over().map_err(at(Step::Init))?;
        if above == CONFINED {
            pass_over().map_err(at(Step::Init))?;
        }
        let confined = libc::fork();
        // Init ends by itself, as its link does with this process.
        check(confined).map_err(at(Step::Init))?;
        if confined != 0 {
            keep(link[0], init, confined);
        }
        for mine in [link[0], link[1], parent] {
            libc::close(mine);
        }
    }
    Ok(())
}

/// Uses up a number of the new namespace.
unsafe fn pass_over() -> Result<(), c_int> {
    // SAFETY: the child ends at once.
    unsafe {
        let child = libc::fork();
        check(child)?;
        if child == 0 {
            libc::_exit(0);
        }
        wait_for(child);
    }
    Ok(())
}

/// The keeper's life.
unsafe fn keep(link: c_int, init: c_int, confined: c_int) -> ! {
    // SAFETY: system calls on locals, in a process that does nothing else.
    unsafe {
        withdraw(KEEPER);
        own_only([link, -1, -1]);
        let status = wait_for(confined);
        // It has no children left, as they became init's.
        libc::write(LINK, (&raw const WORD).cast(), 1);
        let mut word = 0_u8;
        if libc::read(LINK, (&raw mut word).cast(), 1) != 1 {
            wait_for(init);
        }
        end_like(status)
    }
}

/// Init's life: reaps, and ends when nothing is left to be reaped, or nobody to be told.
unsafe fn be_init(link: c_int, parent: c_int) -> ! {
    // SAFETY: system calls on locals, in a process that does nothing else.
    unsafe {
        withdraw(INIT);
        let mut children: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut children);
        libc::sigaddset(&raw mut children, libc::SIGCHLD);
        let deaths = libc::signalfd(-1, &raw const children, libc::SFD_NONBLOCK);
        if deaths < 0 {
            libc::_exit(1);
        }
        own_only([link, parent, deaths]);
        let (mut told, mut answered) = (false, false);
        loop {
            let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // One that is negative is passed over.
            let link = if answered { -1 } else { INIT_LINK };
            let mut fds = [watched(INIT_PARENT), watched(INIT_DEATHS), watched(link)];
            libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1);
            if fds[0].revents != 0 {
                libc::_exit(1);
            }
            if fds[2].revents != 0 {
                let mut word = 0_u8;
                if libc::read(INIT_LINK, (&raw mut word).cast(), 1) != 1 {
                    // The keeper was killed.
                    libc::_exit(1);
                }
                told = true;
            }
            let mut seen = [0_u8; 1024];
            while libc::read(INIT_DEATHS, seen.as_mut_ptr().cast(), seen.len()) > 0 {}
            let some_left = reap_all();
            if told && !some_left {
                libc::_exit(0);
            }
            if told && !answered {
                libc::write(INIT_LINK, (&raw const WORD).cast(), 1);
                answered = true;
            }
        }
    }
}

/// Reaps whoever is dead; whether there are others.
unsafe fn reap_all() -> bool {
    loop {
        // SAFETY: no pointer is given.
        match unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG | libc::__WALL) } {
            0 => return true,
            reaped if reaped > 0 => {}
            _ => return false,
        }
    }
}

/// Keeps nothing that the process could be used for: no privilege, no memory that others may look at, no signal that
/// runs anything.
unsafe fn withdraw(name: &std::ffi::CStr) {
    // SAFETY: a set of signals of the kernel's size, a C string, numbers.
    unsafe {
        let (all, size) = (&raw const ALL_SIGNALS, mem::size_of::<u64>());
        // The C library's function would leave out two.
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, all, ptr::null_mut::<u64>(), size);
        // A handler of the program's that this is a copy of would not run, but an ignored death would be reaped by itself.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if drop_capabilities(0).is_err() {
            libc::_exit(1);
        }
    }
}

/// Moves these to 0, 1 and 2, and closes everything else.
unsafe fn own_only(fds: [c_int; 3]) {
    const FIRST: c_int = 3;
    // SAFETY: descriptors of this process, which nobody uses any more.
    unsafe {
        let raised = fds.map(|fd| if fd < 0 { -1 } else { libc::fcntl(fd, libc::F_DUPFD, FIRST) });
        for (target, fd) in (0..).zip(raised) {
            if fd < 0 {
                libc::close(target);
            } else if libc::dup2(fd, target) < 0 {
                libc::_exit(1);
            }
        }
        if libc::syscall(libc::SYS_close_range, FIRST, c_uint::MAX, 0) != 0 {
            libc::_exit(1);
        }
    }
}

pub(crate) unsafe fn wait_for(child: c_int) -> c_int {
    let mut status = 0;
    // SAFETY: a pointer to a local.
    unsafe { while libc::waitpid(child, &raw mut status, libc::__WALL) < 0 && errno() == libc::EINTR {} }
    status
}

/// Ends as that child did.
unsafe fn end_like(status: c_int) -> ! {
    // SAFETY: a set of signals that is filled here, numbers.
    unsafe {
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            let mut one: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&raw mut one);
            libc::sigaddset(&raw mut one, signal);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const one, ptr::null_mut());
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}
