//! Between fork and exec. Everything is made ready before the fork: the child allocates nothing, takes no lock, and
//! reports a failed step in five bytes through a pipe that a successful exec closes.

use std::{
    ffi::{CString, c_char, c_int},
    io,
    os::fd::{OwnedFd, RawFd},
    ptr,
};

use native_sandbox_confine::{self as confine, Mark, Plan, set_limit};
use native_sandbox_protocol::{Limits, MAX_FDS, MAX_TARGET_FD, Spawn, Step, trial::Trial};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    dontfork,
    sys::{self, Forked},
    trial,
};

/// How many bytes a report has: the step's code and errno.
pub(crate) const REPORT_BYTES: usize = 5;

/// Above any signal number of Linux (64).
const SIGNALS_END: c_int = 65;

/// The size of the kernel's set of signals.
const SIGNAL_SET_BYTES: usize = 8;

/// Where the fallback for a kernel without `close_range` (before 5.9) stops looking.
const MAX_CLOSED_FD: RawFd = 65_536;

/// How far above its parent's a child's `oom_score_adj` is, so that a lack of memory ends a worker before the host.
const OOM_SCORE_ADD: i32 = 200;

/// Why a start failed, before or after the fork.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) subject: Vec<u8>,
    pub(crate) errno: i32,
}

/// What every child needs of the launcher; made once.
pub(crate) struct Surroundings {
    /// `/dev/null`.
    null: OwnedFd,
    /// The launcher's own process id.
    launcher: i32,
    /// What goes into the child's `oom_score_adj`.
    oom_score: Option<Vec<u8>>,
    /// What a child is marked by, if the launcher is.
    mark: Option<u64>,
}

impl Surroundings {
    pub(crate) fn new(mark: Option<Mark>) -> io::Result<Self> {
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").ok();
        let own = own.and_then(|text| text.trim().parse::<i32>().ok());
        let oom_score = own.map(|score| (score + OOM_SCORE_ADD).min(1000).to_string().into_bytes());
        let mark = mark.map(|mark| mark.of_started().limit());
        Ok(Self { null, launcher: rustix::process::getpid().as_raw_pid(), oom_score, mark })
    }
}

/// A process to start, in the shape the kernel wants.
pub(crate) struct Prepared<'a> {
    surroundings: &'a Surroundings,
    program: CString,
    cwd: CString,
    argv: Pointers,
    envp: Pointers,
    /// Descriptor here, number there.
    fds: Vec<(RawFd, RawFd)>,
    limits: Limits,
    forks: bool,
    plan: Option<Plan>,
    /// What it writes to, to be in its control group.
    group: Option<RawFd>,
    trial: Option<Trial>,
}

/// A null-terminated array of C strings, with the strings.
struct Pointers {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

impl Pointers {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, _strings: strings }
    }
}

fn text(bytes: &[u8]) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|_| refused(bytes))
}

fn refused(subject: &[u8]) -> Failure {
    Failure { step: Step::Arguments, subject: subject.to_vec(), errno: libc::EINVAL }
}

impl<'a> Prepared<'a> {
    /// Checks a request and lays it out. `received` are the descriptors that came with it.
    pub(crate) fn new(
        surroundings: &'a Surroundings,
        spawn: &Spawn,
        received: &[OwnedFd],
    ) -> Result<Self, Failure> {
        if received.len() != spawn.fds.len() + usize::from(spawn.in_group) {
            let errno = libc::EMFILE;
            return Err(Failure { step: Step::Receive, subject: spawn.program.clone(), errno });
        }
        for (index, target) in spawn.fds.iter().enumerate() {
            if !(1..=MAX_TARGET_FD).contains(target) || spawn.fds[..index].contains(target) {
                return Err(refused(format!("descriptor {target}").as_bytes()));
            }
        }
        let program = text(&spawn.program)?;
        let plan = spawn.confinement.as_deref().map(Plan::decode).transpose().map_err(|_| Failure {
            step: Step::Plan,
            subject: spawn.program.clone(),
            errno: libc::EINVAL,
        })?;
        let mut argv = vec![program.clone()];
        for arg in &spawn.args {
            argv.push(text(arg)?);
        }
        let mut envp = Vec::with_capacity(spawn.env.len());
        for (name, value) in &spawn.env {
            envp.push(text(&[name.as_slice(), b"=", value.as_slice()].concat())?);
        }
        Ok(Self {
            surroundings,
            cwd: text(&spawn.cwd)?,
            argv: Pointers::new(argv),
            envp: Pointers::new(envp),
            fds: received.iter().map(sys::raw).zip(spawn.fds.iter().copied()).collect(),
            limits: spawn.limits,
            forks: spawn.forks,
            plan,
            group: received.last().filter(|_| spawn.in_group).map(sys::raw),
            trial: spawn.trial.clone(),
            program,
        })
    }

    /// Forks. Gives the child's process id and the pipe to [`read_report`] from.
    pub(crate) fn start(&self) -> Result<(i32, OwnedFd), Failure> {
        let failed = |step: Step, error: &io::Error| Failure {
            step,
            subject: self.program.as_bytes().to_vec(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        };
        let (report, in_child) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| failed(Step::Pipe, &error.into()))?;
        // SAFETY: this process has one thread; `run` calls only what is safe after a fork, and does not return.
        match unsafe { sys::fork() } {
            Err(error) => Err(failed(Step::Fork, &error)),
            Ok(Forked::Parent(pid)) => Ok((pid, report)),
            // SAFETY: this is the child, right after the fork.
            Ok(Forked::Child) => unsafe { self.run(sys::raw(&in_child)) },
        }
    }

    /// What a failed step was about.
    pub(crate) fn subject(step: Step, spawn: &Spawn) -> Vec<u8> {
        if step == Step::Chdir { spawn.cwd.clone() } else { spawn.program.clone() }
    }

    /// The child's life up to exec.
    ///
    /// # Safety
    /// Only in the child, right after the fork.
    unsafe fn run(&self, report: RawFd) -> ! {
        // SAFETY: the steps call only async-signal-safe functions on memory made before the fork.
        unsafe {
            let mut report = report;
            let (step, errno) = self.steps(&mut report);
            let errno = errno.to_ne_bytes();
            let packet: [u8; REPORT_BYTES] = [step.code(), errno[0], errno[1], errno[2], errno[3]];
            // Five bytes fit into an empty pipe whole.
            libc::write(report, packet.as_ptr().cast(), REPORT_BYTES);
            libc::_exit(127)
        }
    }

    /// Everything up to exec, in an order that matters: death with the launcher first, limits after the descriptors
    /// are placed (they may be lower than the numbers in use), confinement when nothing is left to do that it could
    /// forbid, exec last. Returns only what failed.
    unsafe fn steps(&self, report: &mut RawFd) -> (Step, c_int) {
        // SAFETY: plain system calls on live pointers.
        unsafe {
            let launcher = self.surroundings.launcher;
            if !die_with_parent(launcher) {
                return (Step::ParentDeath, errno().max(libc::ESRCH));
            }
            if libc::setsid() < 0 {
                return (Step::Session, errno());
            }
            self.raise_oom_score();
            // Before it has any child, so that each of them is in it.
            if let Some(Err(errno)) = self.group.map(confine::enter_group) {
                return (Step::Group, errno);
            }
            let nested = self.plan.as_ref().filter(|plan| plan.is_nested());
            if let Some(plan) = nested {
                if let Err(failed) = confine::nest(plan) {
                    return (step_of(failed.step), failed.errno);
                }
                // From here on this is another process.
                if libc::setsid() < 0 {
                    return (Step::Session, errno());
                }
            }
            // That of a process in a PID namespace is outside of it, which is 0 here.
            let parent = if nested.is_some() { 0 } else { launcher };
            if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) != 0 {
                return (Step::Subreaper, errno());
            }
            if !self.place_descriptors(report) {
                return (Step::Descriptors, errno());
            }
            if !self.set_limits() {
                return (Step::Limits, errno());
            }
            reset_signals();
            // In a root of its own it may be one that is nowhere else.
            let has_root = self.plan.as_ref().is_some_and(|plan| plan.root.is_some());
            if !has_root && libc::chdir(self.cwd.as_ptr()) != 0 {
                return (Step::Chdir, errno());
            }
            if let Some(plan) = &self.plan {
                if let Err(failed) = confine::apply(plan) {
                    return (step_of(failed.step), failed.errno);
                }
                if has_root && libc::chdir(self.cwd.as_ptr()) != 0 {
                    return (Step::Chdir, errno());
                }
                if !die_with_parent(parent) {
                    return (Step::ParentDeath, errno().max(libc::ESRCH));
                }
            }
            if self.forks {
                // Refused on few systems; the zygote then makes its memory pass on itself.
                dontfork::install();
            }
            if let Some(trial) = &self.trial {
                // The host is told that it runs, as of a program.
                libc::close(*report);
                trial::run(trial);
            }
            libc::execve(self.program.as_ptr(), self.argv.pointers.as_ptr(), self.envp.pointers.as_ptr());
            (Step::Exec, errno())
        }
    }

    /// Puts every descriptor to its number, `/dev/null` to what is left of 0 to 2, and closes all others but the
    /// report's. Sources go above all targets first, so that no step can overwrite what a later one needs.
    unsafe fn place_descriptors(&self, report: &mut RawFd) -> bool {
        let top = self.fds.iter().map(|(_, target)| *target).fold(2, RawFd::max);
        let floor = top + 1;
        // SAFETY: these are descriptors of this child only, owned by nobody after the fork.
        unsafe {
            let raise = |fd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor);
            let moved = raise(*report);
            if moved < 0 {
                return false;
            }
            *report = moved;
            let null = raise(sys::raw(&self.surroundings.null));
            let mut sources = [-1; MAX_FDS];
            for (source, (fd, _)) in sources.iter_mut().zip(&self.fds) {
                *source = raise(*fd);
            }
            for number in 0..=top {
                let source = self.fds.iter().position(|(_, target)| *target == number).map(|at| sources[at]);
                match source.or((number <= 2).then_some(null)) {
                    Some(source) if libc::dup2(source, number) < 0 => return false,
                    Some(_) => {}
                    None => drop(libc::close(number)),
                }
            }
            close_between(floor, moved - 1);
            close_between(moved + 1, RawFd::MAX);
        }
        true
    }

    /// Best effort: a read-only or hidden `/proc` is no reason not to run.
    unsafe fn raise_oom_score(&self) {
        let Some(score) = &self.surroundings.oom_score else { return };
        // SAFETY: a C string literal and a buffer made before the fork.
        unsafe {
            // The launcher is not dumpable, which gives /proc/self to root; exec makes the program dumpable anyway.
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, score.as_ptr().cast(), score.len());
                libc::close(file);
            }
        }
    }

    fn set_limits(&self) -> bool {
        let Limits { open_files, file_size_bytes, cpu_seconds, data_bytes } = self.limits;
        limit_shared()
            && set_limit(libc::RLIMIT_CORE, Some(0), 0)
            && set_limit(libc::RLIMIT_NOFILE, open_files, 0)
            && set_limit(libc::RLIMIT_FSIZE, file_size_bytes, 0)
            && set_limit(libc::RLIMIT_CPU, cpu_seconds, 1)
            && set_limit(libc::RLIMIT_DATA, data_bytes, 0)
            && set_limit(libc::RLIMIT_RTTIME, self.surroundings.mark, 0)
    }
}

/// Signals with data, and timers that send such, which may wait for one process. The kernel counts them by user: where calls and server
/// are one user, calls together get no more than this of what the server may have.
const QUEUED_SIGNALS: u64 = 256;

/// Memory that one process may lock, bytes: what the kernel lets users lock by default.
const LOCKED_BYTES: u64 = 8 * 1024 * 1024;

/// Limits of what a process shares with others of its user, or of the machine. Nothing lifts them again. Whether that worked.
fn limit_shared() -> bool {
    set_limit(libc::RLIMIT_SIGPENDING, Some(QUEUED_SIGNALS), 0)
        && set_limit(libc::RLIMIT_MEMLOCK, Some(LOCKED_BYTES), 0)
        && set_limit(libc::RLIMIT_MSGQUEUE, Some(0), 0)
        // No priority above that of the server.
        && set_limit(libc::RLIMIT_NICE, Some(0), 0)
        && set_limit(libc::RLIMIT_RTPRIO, Some(0), 0)
}

/// With the launcher, or with what stands between it and a PID namespace.
unsafe fn die_with_parent(parent: i32) -> bool {
    // SAFETY: plain system calls on numbers. One that died before the prctl sends no signal any more.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 && libc::getppid() == parent }
}

/// What a failed step of the confinement is called here.
fn step_of(step: confine::Step) -> Step {
    match step {
        confine::Step::Namespaces => Step::Namespaces,
        confine::Step::Init => Step::Init,
        confine::Step::Root => Step::Root,
        confine::Step::Proc => Step::Proc,
        confine::Step::Scratch => Step::Scratch,
        confine::Step::Fixtures => Step::Fixtures,
        confine::Step::Identity => Step::Identity,
        confine::Step::Capabilities => Step::Capabilities,
        confine::Step::NoNewPrivileges => Step::NoNewPrivileges,
        confine::Step::Landlock => Step::Landlock,
        confine::Step::Seccomp => Step::Seccomp,
        confine::Step::Listener => Step::Listener,
    }
}

/// An empty mask and default dispositions: ignored signals would stay ignored in the program.
unsafe fn reset_signals() {
    // SIG_DFL, no flags, an empty mask: all zero, and no kernel's struct is larger.
    let default = [0_usize; 8];
    // SAFETY: the kernel reads one struct from `default`, and refuses numbers that cannot be set; a zeroed sigset_t is
    // filled by sigemptyset. The raw call, because the C library keeps two signals (32, 33) to itself.
    unsafe {
        for signal in 1..SIGNALS_END {
            let none = ptr::null_mut::<usize>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, SIGNAL_SET_BYTES);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Closes `first..=last`.
unsafe fn close_between(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: these are descriptors of the child only, owned by nobody after the fork.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) != 0 {
            for fd in first..=last.min(MAX_CLOSED_FD) {
                libc::close(fd);
            }
        }
    }
}

unsafe fn errno() -> c_int {
    // SAFETY: always a valid pointer in the calling thread.
    unsafe { *libc::__errno_location() }
}

/// What a child's pipe says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It is still on its way.
    Pending,
    /// The program runs, or the child died before it could say anything.
    Started,
    /// A step failed, with this errno.
    Failed(Step, i32),
}

/// Reads a child's pipe without waiting.
pub(crate) fn read_report(pipe: &OwnedFd) -> Report {
    let mut packet = [0_u8; REPORT_BYTES];
    match rustix::io::read(pipe, &mut packet) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Report::Pending,
        Ok(REPORT_BYTES) => {
            let errno = i32::from_ne_bytes([packet[1], packet[2], packet[3], packet[4]]);
            Step::from_code(packet[0]).map_or(Report::Started, |step| Report::Failed(step, errno))
        }
        _ => Report::Started,
    }
}
