//! From the fork up to the point where JavaScript goes on: what a child must not keep of its zygote.

use std::{
    ffi::c_int,
    fs, io, mem,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use native_sandbox_confine::{self as confine, FIRST_CHILD, Failed, Places, Plan};

use crate::sys;

/// Where a worker finds its channel, and a zygote its control socket.
pub(crate) const CHANNEL_FD: RawFd = 3;

/// Whether this process was given a user that nobody else has but what it forks.
static HAS_OWN_USER: AtomicBool = AtomicBool::new(false);

/// Whether every process that this one may signal was forked by it, or by what it forked: it has a PID namespace, or a user, of its
/// own.
pub(crate) fn owns_all() -> bool {
    // SAFETY: takes no memory. A parent of 0 is outside of the namespace.
    HAS_OWN_USER.load(Relaxed) || unsafe { libc::getppid() } == 0
}

/// What a child makes its descriptors of; made before the first fork.
pub(crate) struct Surroundings {
    null: OwnedFd,
    /// Every descriptor above the channel's that the zygote has.
    inherited: Vec<RawFd>,
    zygote: i32,
}

impl Surroundings {
    /// Looks around. The zygote opens nothing lasting afterwards but what it [adds](Self::add), and [`Places`], which children close.
    pub(crate) fn new(zygote: i32) -> io::Result<Self> {
        let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
        let mut inherited = Vec::new();
        for entry in fs::read_dir("/proc/self/fd")? {
            inherited.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
        }
        inherited.retain(|fd| *fd > CHANNEL_FD);
        Ok(Self { null, inherited, zygote })
    }

    /// The zygote has these now as well.
    pub(crate) fn add(&mut self, fds: &[RawFd]) {
        self.inherited.extend(fds);
    }

    /// Cuts the child loose from its zygote. `fds`: channel, or control socket, then stdout and stderr if it has any.
    /// `plan` is what it gives up: before any JavaScript of its own, and while it has one thread.
    /// `places` is what the zygote has looked up for it, of which it keeps nothing.
    /// Only in the child, right after the fork. An error is an errno; the child must then end.
    pub(crate) fn enter(&self, fds: &[OwnedFd], plan: Option<&Plan>, places: &Places) -> Result<(), c_int> {
        let nested = plan.filter(|plan| plan.is_nested());
        if let Some(plan) = nested {
            // SAFETY: plain system calls on numbers.
            if unsafe { libc::setsid() } < 0 {
                return Err(sys::errno());
            }
            die_with(self.zygote)?;
            // SAFETY: after a fork there is one thread.
            unsafe { confine::nest(plan) }.map_err(|failed| told(&failed))?;
            // From here on this is another process.
        }
        let born_nested = plan.is_some_and(|plan| plan.born_nested);
        // SAFETY: takes no memory.
        if born_nested && unsafe { libc::getpid() } != FIRST_CHILD {
            return Err(libc::EINVAL);
        }
        // By the session of what it leaves behind a process is told to be a child's, where no PID namespace says so. Elsewhere there is
        // none: the kernel shares processors out among sessions (sched(7), autogroup), and against one for each worker the host would
        // come off badly.
        // SAFETY: plain system calls on numbers.
        unsafe {
            let own = if born_nested { libc::setpgid(0, 0) } else { libc::setsid() };
            if own < 0 || libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) != 0 {
                return Err(sys::errno());
            }
        }
        reset_signals();
        self.place_descriptors(fds)?;
        if let Some(plan) = plan {
            // SAFETY: after a fork there is one thread.
            unsafe { confine::apply_at(plan, places) }.map_err(|failed| told(&failed))?;
            HAS_OWN_USER.store(plan.identity.is_some(), Relaxed);
        }
        places.close_in_child();
        // Last, because another user's process loses it. A parent outside of the PID namespace is 0 here.
        die_with(if nested.is_some() || born_nested { 0 } else { self.zygote })
    }

    /// `fds` go to 3, 1 and 2, `/dev/null` to what is left of 0 to 2, and on every number that the zygote uses above.
    ///
    /// Closing those would be wrong: `uv_loop_fork` closes the old numbers one by one while it opens new ones, and
    /// must not find a new one under an old number; and V8's platform may write to the wake-up descriptors of
    /// threads that are no more, whose numbers must never come to name a file of the tool.
    fn place_descriptors(&self, fds: &[OwnedFd]) -> Result<(), c_int> {
        let null = self.null.as_raw_fd();
        let given = |index: usize| fds.get(index).map_or(null, AsRawFd::as_raw_fd);
        place(null, 0, 0)?;
        place(given(1), 1, 0)?;
        place(given(2), 2, 0)?;
        // What the tool starts must not keep the channel open.
        place(given(0), CHANNEL_FD, libc::O_CLOEXEC)?;
        for fd in self.inherited.iter().filter(|fd| **fd != null) {
            place(null, *fd, libc::O_CLOEXEC)?;
        }
        Ok(())
    }
}

/// Puts the child into its control group; whether that worked. What did not is said on stderr.
pub(crate) fn enter_group(procs: &OwnedFd) -> bool {
    let Err(errno) = confine::enter_group(procs.as_raw_fd()) else { return true };
    let text = format!("cannot enter its control group: errno {errno}\n");
    // SAFETY: reads the text.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    false
}

/// With the zygote, or with what stands between it and a PID namespace.
fn die_with(parent: c_int) -> Result<(), c_int> {
    // SAFETY: plain system calls on numbers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(sys::errno());
        }
        // One that died before the prctl sends no signal any more.
        if libc::getppid() == parent { Ok(()) } else { Err(libc::ESRCH) }
    }
}

/// Says on stderr what the host will find there when the child ends without a word; gives the errno.
fn told(failed: &Failed) -> c_int {
    let text = format!("cannot be confined: {}: errno {}\n", failed.step.name(), failed.errno);
    // SAFETY: reads the text.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    failed.errno
}

fn place(source: RawFd, target: RawFd, flags: c_int) -> Result<(), c_int> {
    // SAFETY: replaces descriptors of the child only; whoever owned them runs in the zygote.
    if unsafe { libc::dup3(source, target, flags) } < 0 { Err(sys::errno()) } else { Ok(()) }
}

/// An empty mask, and SIGCHLD as it was before the loop. Other handlers stay: they are those of a Node that has just
/// booted (V8's for SIGSEGV is what makes a WebAssembly trap an exception).
fn reset_signals() {
    // SAFETY: a zeroed sigset_t is filled by sigemptyset; SIG_DFL runs no code.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}
