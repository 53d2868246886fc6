//! PID namespaces that a process makes for children which it then forks into them, while it stays where it is.
//!
//! ```text
//! this process ─┬─ init (1)
//!               └─ child (2) ── whatever it starts; what it leaves becomes init's
//! ```
//!
//! The process forks by itself, as the child goes on with what it is; so the child knows its parent, which reaps it, and
//! no keeper is needed as in `pids.rs`. Needs `CAP_SYS_ADMIN`, of the user namespace that the process was born in.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

use crate::{
    apply::{check, check_long, drop_capabilities, errno},
    init,
    pids::wait_for,
};

/// The number of the first process that is forked into a namespace. Whoever forks it has another one: see `pids.rs`.
pub const FIRST_CHILD: c_int = 2;

/// Descriptors that a cradle keeps.
const CRADLE_FDS: usize = 3;

/// Sixteen bytes, as a stack is aligned to.
type Words = u128;

/// Of the stack that init has until it is a program of its own.
const STACK_WORDS: usize = 2048;

/// The kernel's set of all signals.
static ALL_SIGNALS: u64 = u64::MAX;

/// Where namespaces are made, one after the other. Used by one thread only, the one that made it. Dropping it ends nothing: it is
/// also dropped in children; the inits end with this process.
pub struct Cradle {
    /// The namespace of this process.
    home: OwnedFd,
    /// Tells of the end of this process.
    life: OwnedFd,
    program: OwnedFd,
    stack: Box<[Words]>,
    /// The init of the namespace that the next fork leads into.
    init: Option<c_int>,
}

/// What init is told before it is a program of its own, and what it tells when that fails.
struct Order {
    life: RawFd,
    program: RawFd,
    errno: AtomicI32,
}

impl Cradle {
    /// Prepares what is needed, and sees whether namespaces can be left and entered again; changes nothing yet.
    ///
    /// # Errors
    /// An errno.
    pub fn new() -> Result<Self, c_int> {
        // SAFETY: C strings and numbers; each descriptor is new and owned here at once.
        unsafe {
            if libc::getpid() == FIRST_CHILD {
                return Err(libc::EINVAL);
            }
            let home = owned(libc::open(c"/proc/self/ns/pid".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC))?;
            // Who could not come back must not leave.
            check(libc::setns(home.as_raw_fd(), libc::CLONE_NEWPID))?;
            let life = owned(check_long(libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0))?)?;
            let program = program()?;
            let stack = vec![0; STACK_WORDS].into_boxed_slice();
            Ok(Self { home, life, program, stack, init: None })
        }
    }

    /// What children must not keep.
    pub fn descriptors(&self) -> [RawFd; CRADLE_FDS] {
        [&self.home, &self.life, &self.program].map(AsRawFd::as_raw_fd)
    }

    /// The init of the namespace that the next fork leads into, if there is one.
    pub fn init(&self) -> Option<c_int> {
        self.init
    }

    /// Makes a namespace with its init, unless that is done; what is forked from now on is born into it.
    ///
    /// # Errors
    /// An errno; then nothing has changed.
    pub fn prepare(&mut self) -> Result<(), c_int> {
        if self.init.is_some() {
            return Ok(());
        }
        // SAFETY: takes no memory.
        unsafe { check(libc::unshare(libc::CLONE_NEWPID))? };
        match self.start_init() {
            Ok(init) => {
                self.init = Some(init);
                Ok(())
            }
            Err(errno) => {
                self.go_home();
                Err(errno)
            }
        }
    }

    /// What is forked from now on is a process of this one's namespace again. Gives the init of the other one, which is the
    /// caller's to end and to reap.
    pub fn leave(&mut self) -> Option<c_int> {
        let init = self.init.take()?;
        self.go_home();
        Some(init)
    }

    /// Ends a namespace that nobody was forked into.
    pub fn discard(&mut self) {
        if let Some(init) = self.leave() {
            // SAFETY: a child that was not reaped.
            unsafe {
                libc::kill(init, libc::SIGKILL);
                wait_for(init);
            }
        }
    }

    /// A process that is to fork at home must not do so elsewhere, so it ends where this fails.
    fn go_home(&self) {
        // SAFETY: take no memory. The way back to the namespace that one was born in is always open to whoever may leave it.
        unsafe {
            if libc::setns(self.home.as_raw_fd(), libc::CLONE_NEWPID) != 0 {
                libc::_exit(1);
            }
        }
    }

    fn start_init(&mut self) -> Result<c_int, c_int> {
        let (life, program) = (self.life.as_raw_fd(), self.program.as_raw_fd());
        let order = Order { life, program, errno: AtomicI32::new(0) };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let (size, mut before) = (mem::size_of::<u64>(), 0_u64);
        // SAFETY: `become_init` runs on a stack that nobody else uses, and this thread waits until it has ended or is
        // another program; so it may use what is this thread's: the order, the variables of the C library. A handler of
        // this process's must not run in it.
        let init = unsafe {
            let (block, set) = (libc::SIG_SETMASK, libc::SYS_rt_sigprocmask);
            libc::syscall(set, block, &raw const ALL_SIGNALS, &raw mut before, size);
            let top = self.stack.as_mut_ptr_range().end.cast();
            let init = libc::clone(become_init, top, flags, (&raw const order).cast_mut().cast());
            let failed = errno();
            libc::syscall(set, block, &raw const before, ptr::null_mut::<u64>(), size);
            if init < 0 {
                return Err(failed);
            }
            init
        };
        match order.errno.load(Relaxed) {
            0 => Ok(init),
            errno => {
                // SAFETY: a child that has ended, or is about to.
                unsafe { wait_for(init) };
                Err(errno)
            }
        }
    }
}

/// Tells an init to end as soon as nobody is left in its namespace.
pub fn dismiss(init: c_int) {
    // SAFETY: takes no memory; the caller has not reaped it.
    unsafe { libc::kill(init, init::DISMISS) };
}

/// A descriptor that was just made.
unsafe fn owned(fd: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: as the caller promises.
    unsafe {
        check(fd)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Init's program, in a file that is nowhere but in memory, and that nobody can change.
fn program() -> Result<OwnedFd, c_int> {
    let image = init::image();
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: a C string, and bytes that are there.
    unsafe {
        // Kernels before 6.3 do not know that flag, and make programs of all.
        let mut file = libc::memfd_create(init::NAME.as_ptr(), flags | libc::MFD_EXEC);
        if file < 0 && errno() == libc::EINVAL {
            file = libc::memfd_create(init::NAME.as_ptr(), flags);
        }
        let file = owned(file)?;
        let written = libc::write(file.as_raw_fd(), image.as_ptr().cast(), image.len());
        if usize::try_from(written) != Ok(image.len()) {
            return Err(libc::EIO);
        }
        check(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        Ok(file)
    }
}

/// What init does before it is a program of its own: gives up what it has.
extern "C" fn become_init(order: *mut c_void) -> c_int {
    // SAFETY: the thread that this was started by waits, with the order on its stack.
    unsafe {
        let order = &*order.cast::<Order>();
        let failed = prepare_init(order).err().unwrap_or_else(|| {
            let (arguments, environment) = ([init::NAME.as_ptr(), ptr::null()], [ptr::null::<u8>()]);
            let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
            let execute = libc::SYS_execveat;
            libc::syscall(execute, order.program, path, arguments.as_ptr(), environment.as_ptr(), flags);
            errno()
        });
        order.errno.store(failed, Relaxed);
        libc::_exit(1)
    }
}

unsafe fn prepare_init(order: &Order) -> Result<(), c_int> {
    // SAFETY: plain system calls on numbers and on locals.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // A parent that died before that sends no signal any more; in here it has no number that could be asked for.
        let mut life = libc::pollfd { fd: order.life, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut life, 1, 0) != 0 {
            return Err(libc::ESRCH);
        }
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        drop_capabilities(0)?;
        // With the new program all of them go.
        let flags = libc::CLOSE_RANGE_CLOEXEC;
        check_long(libc::syscall(libc::SYS_close_range, 0, c_uint::MAX, flags)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{Plan, mounts};

    const REFUSED: c_int = 99;

    /// More than anything in here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Runs this in a process that may make namespaces, also where this one may not; it gives what it found wrong.
    fn within(run: impl FnOnce(Cradle) -> Result<(), &'static str>) {
        let user = if root() { 0 } else { libc::CLONE_NEWUSER };
        let flags = user | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
        let plan = Plan { namespaces: flags.cast_unsigned(), ..Plan::default() };
        let (mut reader, mut text) = (-1, [0_u8; 200]);
        // SAFETY: system calls on locals; the child runs what it was given and ends.
        let (length, status) = unsafe {
            let mut ends = [-1; 2];
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let flags = libc::MS_REC | libc::MS_PRIVATE;
                let ready = libc::setsid() >= 0
                    && crate::nest(&plan).is_ok()
                    && libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) == 0
                    && mounts::own_proc(c"").is_ok();
                if !ready {
                    libc::_exit(REFUSED);
                }
                let wrong = Cradle::new().map_err(|_| "there is no cradle").and_then(run).err().unwrap_or("");
                libc::write(ends[1], wrong.as_ptr().cast(), wrong.len());
                libc::_exit(0);
            }
            libc::close(ends[1]);
            mem::swap(&mut reader, &mut ends[0]);
            let length = libc::read(reader, text.as_mut_ptr().cast(), text.len());
            libc::close(reader);
            (length, status_of(child))
        };
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == REFUSED && !root() {
            return;
        }
        let told = std::str::from_utf8(&text[..usize::try_from(length).unwrap()]).unwrap();
        assert_eq!((told, status), ("", 0));
    }

    fn root() -> bool {
        // SAFETY: takes no memory.
        unsafe { libc::geteuid() == 0 }
    }

    fn status_of(child: c_int) -> c_int {
        let mut status = 0;
        // SAFETY: a pointer to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
        status
    }

    /// A child that ends by 0 if this holds in it.
    fn fork(holds: impl FnOnce() -> bool) -> c_int {
        // SAFETY: the child makes system calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(c_int::from(!holds()));
            }
            child
        }
    }

    fn check_that(holds: bool, wrong: &'static str) -> Result<(), &'static str> {
        if holds { Ok(()) } else { Err(wrong) }
    }

    fn pid() -> c_int {
        // SAFETY: takes no memory.
        unsafe { libc::getpid() }
    }

    fn kill(pid: c_int, signal: c_int) -> Result<(), c_int> {
        // SAFETY: takes no memory.
        unsafe { check(libc::kill(pid, signal)) }
    }

    fn pipe() -> [c_int; 2] {
        let mut ends = [-1; 2];
        // SAFETY: fills the array.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        ends
    }

    /// Whether everybody has let go of the other end.
    fn is_hung_up(reader: c_int) -> bool {
        let mut end = libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 };
        // SAFETY: one struct.
        unsafe {
            libc::poll(&raw mut end, 1, PATIENCE.as_millis().try_into().unwrap()) == 1
                && end.revents & libc::POLLHUP != 0
        }
    }

    #[test]
    fn what_is_forked_is_alone_with_its_init_and_afterwards_at_home() {
        within(|mut cradle| {
            for _ in 0..3 {
                cradle.prepare().map_err(|_| "no namespace can be made")?;
                let alone = fork(|| pid() == FIRST_CHILD && kill(-1, 0) == Err(libc::ESRCH));
                let init = cradle.leave().ok_or("there is no init")?;
                let home = fork(|| pid() != FIRST_CHILD);
                check_that(status_of(alone) == 0, "a child is not alone, or not the second")?;
                check_that(status_of(home) == 0, "a child after it is not at home")?;
                dismiss(init);
                check_that(status_of(init) == 0, "an init does not end as it is told to")?;
            }
            Ok(())
        });
    }

    #[test]
    fn an_init_can_do_nothing_and_shows_nothing() {
        within(|mut cradle| {
            cradle.prepare().map_err(|_| "no namespace can be made")?;
            let init = cradle.init().ok_or("there is no init")?;
            let look = || fs::read_to_string(format!("/proc/{init}/status")).map_err(|_| "it has no status");
            let mut status = look()?;
            let end = Instant::now() + PATIENCE;
            // The first thing that it does.
            while !status.contains("sandbox-init") {
                check_that(Instant::now() < end, "it has another name")?;
                std::thread::yield_now();
                status = look()?;
            }
            let field =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
            for name in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
                check_that(field(name) == "0000000000000000", "it has a capability")?;
            }
            check_that(field("NoNewPrivs:") == "1", "it may gain privileges")?;
            let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap_or(0);
            check_that(blocked.count_ones() >= 60, "it has signals that are not blocked")?;
            // Only root may look.
            match fs::read_dir(format!("/proc/{init}/fd")) {
                Ok(open) => check_that(open.count() == 0, "it has a descriptor")?,
                Err(_) => check_that(!root(), "its descriptors cannot be seen")?,
            }
            cradle.discard();
            check_that(kill(init, 0) == Err(libc::ESRCH), "it is still there")
        });
    }

    #[test]
    fn from_inside_an_init_is_neither_told_to_end_nor_killed() {
        within(|mut cradle| {
            cradle.prepare().map_err(|_| "no namespace can be made")?;
            let child = fork(|| {
                let signals = [libc::SIGKILL, libc::SIGSTOP, libc::SIGTERM, libc::SIGSEGV, init::DISMISS];
                let all_sent = signals.into_iter().all(|signal| kill(1, signal).is_ok());
                // Its own child, which init has to reap first if it is told to end.
                all_sent && status_of(fork(|| true)) == 0
            });
            let init = cradle.leave().ok_or("there is no init")?;
            check_that(status_of(child) == 0, "the child did not survive its signals")?;
            check_that(kill(init, 0).is_ok(), "init is gone")?;
            // And it is not ended by one that is sent, but was not told, when its last child ends: it still waits.
            dismiss(init);
            check_that(status_of(init) == 0, "init does not end by itself")
        });
    }

    #[test]
    fn an_init_waits_for_what_is_left_behind_and_takes_it_along_when_it_is_killed() {
        within(|mut cradle| {
            for killed in [false, true] {
                let (hold, kept) = (pipe(), pipe());
                cradle.prepare().map_err(|_| "no namespace can be made")?;
                let child = fork(|| {
                    // A daemon, until somebody lets go of the first pipe.
                    fork(|| {
                        // SAFETY: takes no memory; two descriptors that nobody else closes.
                        unsafe {
                            libc::setsid();
                            libc::close(hold[1]);
                            libc::close(kept[0]);
                        }
                        is_hung_up(hold[0])
                    }) > 0
                });
                let init = cradle.leave().ok_or("there is no init")?;
                // SAFETY: descriptors of this process.
                unsafe {
                    libc::close(hold[0]);
                    libc::close(kept[1]);
                }
                check_that(status_of(child) == 0, "no daemon")?;
                if killed {
                    kill(init, libc::SIGKILL).map_err(|_| "init is gone")?;
                } else {
                    dismiss(init);
                    // SAFETY: a child; a null pointer for what nobody wants to know.
                    let ended = unsafe { libc::waitpid(init, ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
                    check_that(ended == 0, "init does not wait")?;
                    // SAFETY: a descriptor of this process.
                    unsafe { libc::close(hold[1]) };
                }
                check_that(is_hung_up(kept[0]), "the daemon goes on")?;
                let status = status_of(init);
                check_that(killed || status == 0, "init does not end as it is told to")?;
                // SAFETY: descriptors of this process.
                unsafe {
                    libc::close(hold[1]);
                    libc::close(kept[0]);
                }
            }
            Ok(())
        });
    }

    #[test]
    fn whatever_the_moment_at_which_its_maker_is_killed_nothing_is_left() {
        within(|_| {
            for round in 0..60 {
                let (begun, kept) = (pipe(), pipe());
                let maker = fork(|| {
                    // A cradle knows whose it is.
                    let Ok(mut cradle) = Cradle::new() else { return false };
                    // SAFETY: one byte of a local.
                    unsafe { libc::write(begun[1], b"x".as_ptr().cast(), 1) };
                    while cradle.prepare().is_ok() {
                        fork(|| {
                            // SAFETY: takes no memory.
                            unsafe { libc::pause() };
                            true
                        });
                        cradle.leave();
                    }
                    false
                });
                let mut byte = 0_u8;
                // SAFETY: descriptors of this process, one byte of a local, a short wait.
                unsafe {
                    libc::close(begun[1]);
                    libc::close(kept[1]);
                    check_that(libc::read(begun[0], (&raw mut byte).cast(), 1) == 1, "nobody begins")?;
                    libc::usleep(round * 37);
                }
                kill(maker, libc::SIGKILL).map_err(|_| "the maker is gone")?;
                status_of(maker);
                check_that(is_hung_up(kept[0]), "somebody goes on without the maker")?;
                // SAFETY: descriptors of this process.
                unsafe {
                    libc::close(begun[0]);
                    libc::close(kept[0]);
                }
            }
            Ok(())
        });
    }
}
