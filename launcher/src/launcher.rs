//! The loop: requests in, reports out, the dead reaped, the doomed killed. Each turn does a bounded amount of work.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use native_sandbox_protocol::{FromLauncher, Spawn, ToLauncher, VERSION};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, pidfd_open, set_child_subreaper,
        set_dumpable_behavior,
    },
};

use crate::{
    child::{self, Failure, Prepared, Report, Surroundings},
    control::{Control, Received},
    proc::{self, Proc},
    sys,
    table::Table,
};

/// How many requests one turn takes from the socket.
const MAX_REQUESTS_PER_TURN: usize = 64;

/// How often one turn looks for more of the dead.
const MAX_REAPS_PER_TURN: usize = 4;

/// How many processes one pass signals; the next pass takes the rest.
const MAX_VICTIMS_PER_PASS: usize = 4096;

/// How long after a kill the first look for what it has not reached, and the longest wait between looks.
const PASS_DELAY_MIN: Duration = Duration::from_millis(2);
const PASS_DELAY_MAX: Duration = Duration::from_millis(100);

/// What `ps` shows; 15 bytes at most.
const COMM: &std::ffi::CStr = c"sandbox-launch";

/// Runs until the host is gone and everything with it.
pub(crate) fn run() -> io::Result<()> {
    sys::close_inherited();
    let mut control = Control::new(sys::control_fd()?)?;
    sys::ignore_signals();
    // Away from the host's terminal: its Ctrl-C is the host's to handle. Fails only for a group leader, which has one.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(COMM);
    // Keeps no folder of the host busy.
    std::env::set_current_dir("/")?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    // Stopped, it would not see the host's death; with the thread that started it, at the latest, the host ends.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT));
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let signals = sys::child_signals()?;
    let surroundings = Surroundings::new(sys::mark())?;
    // Same-uid processes, workers among them, can then neither trace it nor take its descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    control.send(&FromLauncher::Ready { version: VERSION });
    let proc = Proc::new(rustix::process::getpid().as_raw_pid());
    let launcher = Launcher {
        control,
        signals,
        host: host(),
        surroundings,
        proc,
        table: Table::default(),
        starting: BTreeMap::new(),
        passes: Passes::default(),
        closing: false,
    };
    launcher.run()
}

/// The host's death, as a descriptor. Without one (before Linux 5.3, or a host outside our PID namespace) the end of
/// the control socket says it.
fn host() -> Option<OwnedFd> {
    pidfd_open(rustix::process::getppid().filter(|pid| *pid != Pid::INIT)?, PidfdFlags::empty()).ok()
}

/// When to look for what is to die and does not.
#[derive(Default)]
struct Passes {
    next: Option<(Instant, Duration)>,
}

impl Passes {
    /// There is news: look soon.
    fn soon(&mut self, now: Instant) {
        let at = now + PASS_DELAY_MIN;
        let at = self.next.map_or(at, |(planned, _)| planned.min(at));
        self.next = Some((at, PASS_DELAY_MIN));
    }

    /// A look was taken, and there is something left.
    fn again(&mut self, now: Instant) {
        let delay = self.next.map_or(PASS_DELAY_MIN, |(_, delay)| (delay * 2).min(PASS_DELAY_MAX));
        self.next = Some((now + delay, delay));
    }

    fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|(at, _)| at <= now)
    }
}

/// A child between fork and exec.
struct Starting {
    report: OwnedFd,
    spawn: Spawn,
}

/// Which descriptors have something.
#[derive(Default)]
struct Ready {
    control: bool,
    host_died: bool,
    starting: Vec<u64>,
}

struct Launcher {
    control: Control,
    signals: OwnedFd,
    host: Option<OwnedFd>,
    surroundings: Surroundings,
    proc: Proc,
    table: Table,
    starting: BTreeMap<u64, Starting>,
    passes: Passes,
    closing: bool,
}

impl Launcher {
    fn run(mut self) -> io::Result<()> {
        self.control.flush();
        loop {
            let ready = self.wait()?;
            sys::drain(&self.signals);
            if ready.control && !self.closing {
                self.take_requests();
            }
            for id in ready.starting {
                self.read_report(id);
            }
            let children = self.reap()?;
            if !self.closing {
                self.control.flush();
                if ready.host_died || self.control.is_closed() {
                    self.close();
                }
            }
            if self.closing && !children {
                return Ok(());
            }
            self.pass();
        }
    }

    /// Waits for anything to happen.
    fn wait(&self) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let ids: Vec<u64> = self.starting.keys().copied().collect();
        fds.extend(self.starting.values().map(|starting| PollFd::new(&starting.report, PollFlags::IN)));
        if !self.closing {
            let out = if self.control.has_queued() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(self.control.fd(), PollFlags::IN | out));
            fds.extend(self.host.as_ref().map(|host| PollFd::new(host, PollFlags::IN)));
        }
        match poll(&mut fds, self.timeout().as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let mut fired = fds.iter().skip(1).map(|fd| !fd.revents().is_empty());
        let starting = ids.into_iter().filter(|_| fired.next() == Some(true)).collect();
        Ok(Ready { starting, control: fired.next() == Some(true), host_died: fired.next() == Some(true) })
    }

    /// Until the next pass; none when nothing is to die; none at all when a dead child is known to wait.
    fn timeout(&self) -> Option<Timespec> {
        if matches!(sys::children(), Ok(sys::Children::Dead(_))) {
            return Some(Timespec::default());
        }
        let (at, _) = self.passes.next?;
        let wait = at.saturating_duration_since(Instant::now());
        Timespec::try_from(wait).ok()
    }

    fn take_requests(&mut self) {
        for _ in 0..MAX_REQUESTS_PER_TURN {
            match self.control.receive() {
                Received::Request(request, fds) => match *request {
                    ToLauncher::Spawn(spawn) => self.spawn(spawn, &fds),
                    ToLauncher::Terminate { id } => self.terminate(id),
                    ToLauncher::Kill { id } => self.kill(id),
                },
                Received::Nothing | Received::Closed => return,
            }
        }
    }

    fn spawn(&mut self, spawn: Spawn, fds: &[OwnedFd]) {
        let id = spawn.id;
        if self.table.contains(id) {
            let subject = format!("process {id}").into_bytes();
            let step = native_sandbox_protocol::Step::Arguments;
            return self.control.send(&FromLauncher::SpawnFailed { id, step, subject, errno: libc::EEXIST });
        }
        let started = Prepared::new(&self.surroundings, &spawn, fds).and_then(|prepared| prepared.start());
        match started {
            Ok((pid, report)) => {
                self.control.send(&self.table.forked(id, pid, spawn.forks));
                self.starting.insert(id, Starting { report, spawn });
            }
            Err(Failure { step, subject, errno }) => {
                self.control.send(&FromLauncher::SpawnFailed { id, step, subject, errno });
            }
        }
    }

    /// Takes what a starting child has said.
    fn read_report(&mut self, id: u64) {
        let Some(starting) = self.starting.get(&id) else { return };
        let told = match child::read_report(&starting.report) {
            Report::Pending => return,
            Report::Started => self.table.started(id),
            Report::Failed(step, errno) => {
                self.table.failed(id, step, Prepared::subject(step, &starting.spawn), errno)
            }
        };
        self.starting.remove(&id);
        if let Some(told) = told {
            self.control.send(&told);
        }
    }

    /// Reaps the dead and gives what they left to its tree. Whether there are children at all.
    fn reap(&mut self) -> io::Result<bool> {
        for _ in 0..MAX_REAPS_PER_TURN {
            match sys::children()? {
                sys::Children::None => return Ok(false),
                sys::Children::Alive => return Ok(true),
                sys::Children::Dead(first) => self.reap_once(first)?,
            }
        }
        Ok(true)
    }

    /// Children move to the launcher before their parent can be seen dead. So: who is dead; then, what is there that
    /// we do not know; then whose can that be; and only then are those of the first step reaped.
    fn reap_once(&mut self, first: i32) -> io::Result<()> {
        let dead: Vec<i32> = self.table.children().filter(|pid| sys::is_dead(*pid)).collect();
        let mut unknown = self.proc.own_children(|pid| self.table.knows(pid));
        if !self.table.knows(first) && unknown.iter().all(|entry| entry.pid != first) {
            // Where there are no lists, and /proc hides it (or is not there), the kernel's word is enough to own and reap it.
            unknown.push(proc::listed(first, rustix::process::getpid().as_raw_pid()));
        }
        // Whoever left one of these is dead by now, if not a moment ago.
        let again = || self.table.children().filter(|pid| sys::is_dead(*pid)).collect();
        let left_by: Vec<i32> = if unknown.is_empty() { dead.clone() } else { again() };
        let attributed = self.table.attribute(&unknown, &left_by);
        for pid in &attributed.doomed {
            sys::signal_child(*pid, libc::SIGKILL);
        }
        if !attributed.doomed.is_empty() {
            self.passes.soon(Instant::now());
        }
        dead.into_iter().try_for_each(|pid| self.reap_one(pid))
    }

    fn reap_one(&mut self, pid: i32) -> io::Result<()> {
        if let Some(id) = self.table.tree_of_main(pid) {
            // What it said comes before what became of it.
            self.read_report(id);
        }
        if let Some(reaped) = sys::reap(pid)? {
            for told in self.table.reaped(pid, reaped) {
                self.control.send(&told);
            }
        }
        Ok(())
    }

    fn terminate(&mut self, id: u64) {
        let roots = self.table.roots_of(id);
        let main = self.table.main_of(id);
        let below = proc::below(&self.proc.below_self(), &roots);
        if let Some(main) = main {
            sys::signal_group(main, libc::SIGTERM);
        }
        for root in roots.into_iter().filter(|root| Some(*root) != main) {
            sys::signal_child(root, libc::SIGTERM);
        }
        // Those in the main group have it already.
        for entry in below.iter().filter(|entry| Some(entry.group) != main).take(MAX_VICTIMS_PER_PASS) {
            sys::signal_verified(entry.pid, libc::SIGTERM, || proc::is_same(entry));
        }
    }

    /// The main group dies at once. What left the group becomes ours with the death of the main process, and dies in
    /// `reap`; what does not die so is found by a pass.
    fn kill(&mut self, id: u64) {
        if let Some(main) = self.table.kill(id) {
            sys::signal_group(main, libc::SIGKILL);
            // It may not lead a group yet.
            sys::signal_child(main, libc::SIGKILL);
        }
        self.passes.soon(Instant::now());
    }

    /// The host is gone: so is everything else.
    fn close(&mut self) {
        self.closing = true;
        self.starting.clear();
        self.table.kill_all();
        self.passes.soon(Instant::now());
    }

    /// Looks for all that is to die and kills it. All are stopped before the first is killed: what is stopped forks
    /// no more, so only what was forked during this very look is left for the next one.
    fn pass(&mut self) {
        let now = Instant::now();
        if !self.passes.is_due(now) {
            return;
        }
        let roots = self.table.doomed_roots();
        if roots.is_empty() && !self.closing {
            self.passes.next = None;
            return;
        }
        let all = self.proc.below_self();
        let below = if self.closing { all } else { proc::below(&all, &roots) };
        let victims = &below[..below.len().min(MAX_VICTIMS_PER_PASS)];
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            for entry in victims {
                sys::signal_verified(entry.pid, signal, || proc::is_same(entry));
            }
        }
        for root in roots {
            if self.table.tree_of_main(root).is_some() {
                sys::signal_group(root, libc::SIGKILL);
            }
            sys::signal_child(root, libc::SIGKILL);
        }
        self.passes.again(Instant::now());
    }
}
