//! The loop of a zygote: requests in, forks out, the dead reaped and reported. It runs no JavaScript and starts no
//! thread; only what a fork makes comes back from it.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{Mutex, PoisonError},
};

use native_sandbox_confine::{Cradle, Places, Plan, dismiss, remember_bounding};

use crate::{
    child::{self, Surroundings},
    limits::{self, Limits},
    memory,
    prefault::{Pages, Told},
    proc::{Proc, is_same},
    reads,
    sys::{self, Forked, Received},
    table::Table,
    wire::{Report, Request, decode},
};

/// How many messages wait for a host that does not read; one more means that it never will again.
const MAX_QUEUED_REPORTS: usize = 16_384;

/// How many requests one turn takes from the socket.
const MAX_REQUESTS_PER_TURN: usize = 64;

/// How many processes one pass signals; the next pass takes the rest.
const MAX_VICTIMS_PER_PASS: usize = 4096;

/// How often one turn looks for more of the dead.
const MAX_REAPS_PER_TURN: usize = 256;

/// After how many looks that each found somebody new to kill everything is stopped.
const MAX_CHASED_ROUNDS: u32 = 32;

/// How long everything stays stopped at most, and how long nobody's death is waited for meanwhile.
const FREEZE_LIMIT_MS: u64 = 100;
const FREEZE_PAUSE_MS: i32 = 10;

/// How long the trial child may take, and how long Node's threads may take to come to rest.
const TRIAL_MS: u64 = 5000;

/// What a child is told by a status when it cannot even start.
pub(crate) const CANNOT_START_STATUS: i32 = 127;

/// What a forked child is to be.
pub(crate) enum Role {
    /// `warm`: it has the pages that its job will need.
    Worker {
        id: u64,
        warm: bool,
    },
    Zygote {
        id: u64,
        payload: Vec<u8>,
    },
}

/// What a forked child begins with.
struct Child {
    role: Role,
    plan: Option<Plan>,
    fds: Vec<OwnedFd>,
    /// What it writes to, to be in its control group.
    group: Option<OwnedFd>,
}

/// Why a process cannot serve.
pub(crate) enum Refusal {
    /// The socket is no packet socket, or a system call failed.
    Io(io::Error),
    /// A forked child does not live; its wait status.
    Trial(i32),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Forks a child on trial and waits until it has ended by status 0. Gives whether this is that child.
pub(crate) fn try_fork() -> Result<bool, Refusal> {
    memory::share_with_children();
    wait_for_threads()?;
    let child = match sys::fork()? {
        Forked::Child => return Ok(true),
        Forked::Parent(child) => child,
    };
    match wait_for(child) {
        0 => Ok(false),
        status => Err(Refusal::Trial(status)),
    }
}

/// Waits until a child has ended, and ends it where that takes too long. Gives its wait status.
fn wait_for(child: i32) -> i32 {
    let end_ms = sys::now_ms() + TRIAL_MS;
    loop {
        if let Some(reaped) = sys::reap(child) {
            return reaped.status;
        }
        if sys::now_ms() > end_ms {
            sys::signal_child(child, libc::SIGKILL);
        }
        pause();
    }
}

/// What workers take at their start; those of the zygote that this one was forked from, until a scout was sent.
static PAGES: Mutex<Pages> = Mutex::new(Pages::none());

/// Who returns from [`scout`].
pub(crate) enum Scouted {
    /// The scout, with the pipe that it is to [`report`] to.
    Scout(OwnedFd),
    /// The zygote, once the scout has ended; workers take what it reported, and nothing if it failed.
    Zygote { pages: usize },
}

/// Forks a scout.
pub(crate) fn scout() -> io::Result<Scouted> {
    let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    *pages = Pages::none();
    reads::look_up();
    memory::share_with_children();
    memory::tighten();
    wait_for_threads()?;
    let (reader, writer) = sys::pipe()?;
    let scout = match sys::fork()? {
        Forked::Child => return Ok(Scouted::Scout(writer)),
        Forked::Parent(scout) => scout,
    };
    drop(writer);
    // All it reports has room in the pipe.
    if wait_for(scout) == 0 {
        let told = Told::read(File::from(reader))?;
        told.settle();
        *pages = told.own;
    }
    Ok(Scouted::Zygote { pages: pages.count() })
}

/// In the scout: reports, and ends.
pub(crate) fn report(pipe: OwnedFd) -> ! {
    let told = Told::by_this_process().and_then(|told| told.write(File::from(pipe)));
    sys::end(i32::from(told.is_err()))
}

/// Waits until all other threads of Node sleep: one that works may hold a lock, which a child would never get.
fn wait_for_threads() -> io::Result<()> {
    let end_ms = sys::now_ms() + TRIAL_MS;
    while any_thread_works()? {
        if sys::now_ms() > end_ms {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        pause();
    }
    Ok(())
}

fn any_thread_works() -> io::Result<bool> {
    let own = std::process::id().to_string();
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?;
        // Empty for one that has ended since.
        let stat = fs::read(thread.path().join("stat")).unwrap_or_default();
        let sleeps = stat.rsplit(|byte| *byte == b')').next().is_some_and(|rest| rest.starts_with(b" S"));
        if !sleeps && !stat.is_empty() && thread.file_name() != own.as_str() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A millisecond.
fn pause() {
    // SAFETY: no descriptor is given; this only waits.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
}

/// Serves until a child comes out of it (then that child is running) or the host is gone (then the process ends).
/// `ready` is told once, before the first request is taken; `restart` gives the child its event loop back.
pub(crate) fn run(control: RawFd, ready: Vec<u8>, restart: impl FnOnce() -> bool) -> Result<Role, Refusal> {
    if !sys::is_packet_socket(control) {
        return Err(io::Error::from_raw_os_error(libc::ENOTSOCK).into());
    }
    // SAFETY: plain system calls on numbers. Orphans of dead workers are to become ours.
    let own = unsafe {
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) != 0 {
            return Err(io::Error::last_os_error().into());
        }
        libc::getpid()
    };
    sys::end_others();
    if !limits::lift_loading() {
        return Err(io::Error::last_os_error().into());
    }
    memory::share_with_children();
    memory::collapse();
    wait_for_threads()?;
    let signals = sys::child_signals()?;
    let mut zygote = Zygote {
        signals,
        surroundings: Surroundings::new(own)?,
        proc: Proc::new(own),
        control: Control { socket: control, queue: VecDeque::new(), closed: false },
        table: Table::default(),
        limits: Limits::default(),
        cradle: None,
        chase: Chase::default(),
        places: Places::default(),
    };
    remember_bounding();
    zygote.control.send(&Report::Ready { pid: own, payload: ready });
    // A child shares the buffers of C's streams with its zygote and would write what is in them once more.
    flush_streams();
    let Child { mut role, plan, fds, group } = zygote.run();
    // Before it has any child, so that each of them is in it, and before anything of others runs.
    if group.is_some_and(|group| !child::enter_group(&group)) {
        sys::end(CANNOT_START_STATUS);
    }
    let limited = match &mut role {
        Role::Worker { warm, .. } => {
            let pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
            pages.take();
            *warm = !pages.is_empty();
            zygote.limits.set()
        }
        Role::Zygote { .. } => zygote.limits.set_for_loading() && limits::limit_loading(),
    };
    if !limited {
        sys::end(CANNOT_START_STATUS);
    }
    match zygote.surroundings.enter(&fds, plan.as_ref(), &zygote.places) {
        Ok(()) if restart() => {
            drop(fds);
            // Its descriptors are the child's own by now, and must stay open: see `place_descriptors`.
            std::mem::forget(zygote);
            Ok(role)
        }
        _ => sys::end(CANNOT_START_STATUS),
    }
}

/// Tells the host that this process is no zygote, and why, and ends it.
pub(crate) fn refuse(control: RawFd, payload: Vec<u8>) -> ! {
    // An error would only say that nobody is there to be told.
    let _ = sys::send(control, &Report::Refused { payload }.encode(false), None, 0);
    sys::end(1)
}

/// Writes out what C's streams hold.
pub(crate) fn flush_streams() {
    // SAFETY: null means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

struct Control {
    socket: RawFd,
    /// Packets, and what goes beside them.
    queue: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    closed: bool,
}

impl Control {
    fn send(&mut self, report: &Report) {
        let beside = report.pid().and_then(sys::pidfd);
        if self.queue.len() >= MAX_QUEUED_REPORTS {
            self.closed = true;
        }
        if !self.closed {
            self.queue.push_back((report.encode(beside.is_some()), beside));
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some((packet, beside)) = self.queue.front() {
            let beside = beside.as_ref().map(AsRawFd::as_raw_fd);
            match sys::send(self.socket, packet, beside, libc::MSG_DONTWAIT) {
                Ok(true) => drop(self.queue.pop_front()),
                Ok(false) => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }
}

struct Zygote {
    signals: OwnedFd,
    surroundings: Surroundings,
    proc: Proc,
    control: Control,
    table: Table,
    /// What workers are forked with.
    limits: Limits,
    /// Where workers are born that have a PID namespace of their own; once there was one.
    cradle: Option<Cradle>,
    chase: Chase,
    /// What the rules of its workers name, opened once.
    places: Places,
}

/// The hunt for what forks faster than it is found.
#[derive(Default)]
struct Chase {
    /// Looks in a row that found somebody new to kill.
    rounds: u32,
    /// When everything was stopped, milliseconds of the monotonic clock.
    frozen_ms: Option<u64>,
}

impl Zygote {
    /// Returns in a forked child only.
    fn run(&mut self) -> Child {
        loop {
            self.wait();
            sys::drain(&self.signals);
            self.control.flush();
            if !self.control.closed
                && let Some(child) = self.take_requests()
            {
                return child;
            }
            self.reap();
            if self.control.closed {
                self.close();
            } else if let Some(cradle) = &mut self.cradle {
                // Ahead of need. Why there is none is told to whoever needs it.
                let _ = cradle.prepare();
            }
        }
    }

    /// Waits for anything to happen.
    fn wait(&self) {
        let out = if self.control.queue.is_empty() { 0 } else { libc::POLLOUT };
        let mut fds = [
            libc::pollfd { fd: self.signals.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            libc::pollfd { fd: self.control.socket, events: libc::POLLIN | out, revents: 0 },
        ];
        // Once the host is gone its socket is always readable; only deaths matter then.
        let count = if self.control.closed { 1 } else { 2 };
        let patience_ms = if self.chase.frozen_ms.is_some() { FREEZE_PAUSE_MS } else { -1 };
        // SAFETY: the array is a local of at least `count`. A death shows in
        // `signals`, so none is missed.
        unsafe { libc::poll(fds.as_mut_ptr(), count, patience_ms) };
    }

    fn take_requests(&mut self) -> Option<Child> {
        for _ in 0..MAX_REQUESTS_PER_TURN {
            let request = match sys::receive(self.control.socket) {
                Received::Packet(packet, fds) => decode(&packet, fds.len()).map(|request| (request, fds)),
                Received::Nothing => return None,
                Received::Closed => None,
            };
            let child = match request {
                Some((Request::ForkWorker { id, plan, in_group }, mut fds)) => {
                    let group = if in_group { fds.pop() } else { None };
                    Child { role: Role::Worker { id, warm: false }, plan, fds, group }
                }
                Some((Request::ForkZygote { id, plan, in_group, payload }, mut fds)) => {
                    let group = if in_group { fds.pop() } else { None };
                    Child { role: Role::Zygote { id, payload }, plan, fds, group }
                }
                Some((Request::Terminate { id }, _)) => {
                    self.terminate(id);
                    continue;
                }
                Some((Request::Kill { id }, _)) => {
                    self.kill(id);
                    continue;
                }
                Some((Request::Limit { limits }, _)) => {
                    self.limits = limits;
                    continue;
                }
                // Gone, or it does not speak this protocol.
                None => {
                    self.control.closed = true;
                    return None;
                }
            };
            let forked = self.fork(child);
            if forked.is_some() {
                return forked;
            }
        }
        None
    }

    /// `Some` in the child.
    fn fork(&mut self, child: Child) -> Option<Child> {
        let id = match child.role {
            Role::Worker { id, .. } | Role::Zygote { id, .. } => id,
        };
        if self.table.contains(id) {
            self.control.send(&Report::ForkFailed { id, errno: libc::EEXIST });
            return None;
        }
        let is_nested = child.plan.as_ref().is_some_and(|plan| plan.born_nested);
        if let Err(errno) = self.choose_namespace(is_nested) {
            self.control.send(&Report::ForkFailed { id, errno });
            return None;
        }
        let is_zygote = matches!(child.role, Role::Zygote { .. });
        if let Some(plan) = child.plan.as_ref().filter(|_| !is_zygote) {
            self.places.look_up(plan);
        }
        let report = match sys::fork() {
            Ok(Forked::Child) => return Some(child),
            Ok(Forked::Parent(pid)) if is_zygote => self.table.forked_zygote(id, pid, sys::now_ms()),
            Ok(Forked::Parent(pid)) => {
                let init = if is_nested { self.cradle.as_mut().and_then(Cradle::leave) } else { None };
                self.table.forked(id, pid, init, sys::now_ms())
            }
            Err(error) => Report::ForkFailed { id, errno: error.raw_os_error().unwrap_or(libc::EIO) },
        };
        self.control.send(&report);
        None
    }

    /// Sees to it that the next fork leads into a new PID namespace, or into the zygote's own.
    fn choose_namespace(&mut self, is_nested: bool) -> Result<(), i32> {
        if !is_nested {
            if let Some(cradle) = &mut self.cradle {
                cradle.discard();
            }
            return Ok(());
        }
        let cradle = match &mut self.cradle {
            Some(cradle) => cradle,
            none => {
                let cradle = Cradle::new()?;
                self.surroundings.add(&cradle.descriptors());
                none.insert(cradle)
            }
        };
        cradle.prepare()
    }

    /// SIGTERM to everything that is now in the tree.
    fn terminate(&self, id: u64) {
        let roots = self.table.roots_of(id);
        // An init has what was left behind below it, shows nothing, and is deaf.
        let has_init = roots.iter().any(|root| self.table.init_of(*root).is_some());
        let below = self.proc.below(&roots, has_init);
        for root in &roots {
            sys::signal_child(*root, libc::SIGTERM);
        }
        // Those in a root's group have it already.
        for entry in below.iter().filter(|entry| !roots.contains(&entry.group)).take(MAX_VICTIMS_PER_PASS) {
            sys::signal_verified(entry.pid, libc::SIGTERM, || is_same(entry));
        }
    }

    fn kill(&mut self, id: u64) {
        self.table.kill(id);
        for root in self.table.roots_of(id) {
            sys::signal_child(root, libc::SIGKILL);
        }
    }

    /// Children move to the zygote before their parent can be seen dead. So: who is dead; then, what is there that we
    /// do not know; and only then are those of the first step reaped.
    ///
    /// A killed process's children become ours with its death, which a signal tells: they are found here, and killed in
    /// turn, until none is left. So no look is ever needed at another time.
    fn reap(&mut self) {
        for _ in 0..MAX_REAPS_PER_TURN {
            let Some(first) = sys::dead_child() else { break };
            if self.cradle.as_ref().and_then(Cradle::init) == Some(first) {
                // Somebody killed it. Nobody was forked into its namespace yet.
                self.cradle.as_mut().map(Cradle::discard);
                continue;
            }
            if let Some(init) = self.table.init_of(first) {
                self.reap_nested(first, init);
                continue;
            }
            if !self.reap_left(first) {
                break;
            }
        }
        // It goes on with the next turn: see `wait`.
        if sys::dead_child().is_some() {
            sys::wake_again();
        }
        self.end_chase();
    }

    /// One look of [`Self::reap`]; whether there may be more.
    fn reap_left(&mut self, first: i32) -> bool {
        let dead = self.dead_children();
        let now_ms = sys::now_ms();
        let age = |pid: &i32| (*pid, now_ms - self.table.since_ms(*pid).unwrap_or(0));
        let ages: Vec<(i32, u64)> = dead.iter().map(age).collect();
        let prepared = self.cradle.as_ref().and_then(Cradle::init);
        let unknown = self.proc.own_children(&ages, |pid| self.table.knows(pid) || Some(pid) == prepared);
        if dead.is_empty() && unknown.is_empty() {
            // Neither a list nor `/proc` shows it. It must not stay in front of the others.
            return !self.table.knows(first) && sys::reap(first).is_some();
        }
        // Whoever left one of these is dead by now, if not a moment ago.
        let left_by = if unknown.is_empty() { Vec::new() } else { self.dead_children() };
        let doomed =
            self.table.attribute(&unknown, if unknown.is_empty() { &dead } else { &left_by }, now_ms);
        for pid in dead {
            if let Some(reaped) = sys::reap(pid) {
                for report in self.table.reaped(pid, reaped) {
                    self.control.send(&report);
                }
            }
        }
        if !doomed.is_empty() {
            self.chase.rounds += 1;
            if self.chase.rounds > MAX_CHASED_ROUNDS && self.chase.frozen_ms.is_none() && child::owns_all() {
                // What is stopped forks no more, so each generation that comes to light is the last but those below it.
                sys::signal_all_others(libc::SIGSTOP);
                self.chase.frozen_ms = Some(now_ms);
            }
            self.kill_doomed();
        }
        true
    }

    /// The known children that are dead and not reaped, but for those that have an init.
    fn dead_children(&self) -> Vec<i32> {
        let is_dead =
            |pid: &i32| self.table.init_of(*pid).is_none() && sys::is_dead_child(*pid) == Some(true);
        self.table.children().filter(is_dead).collect()
    }

    /// Lets everything go on once nobody is left to be killed, or after a while.
    fn end_chase(&mut self) {
        let is_over = self.chase.rounds > 0 && self.table.doomed_roots().is_empty();
        let is_late =
            self.chase.frozen_ms.is_some_and(|since_ms| sys::now_ms() >= since_ms + FREEZE_LIMIT_MS);
        if is_over || is_late {
            self.chase.rounds = 0;
            if self.chase.frozen_ms.take().is_some() {
                sys::signal_all_others(libc::SIGCONT);
            }
        }
    }

    /// What a process with a PID namespace of its own leaves behind becomes its init's, never ours: init sees to the rest, and
    /// ends when nothing is left.
    fn reap_nested(&mut self, pid: i32, init: i32) {
        let Some(reaped) = sys::reap(pid) else { return };
        if self.table.tree_of_main(pid).is_some() {
            dismiss(init);
        }
        for report in self.table.reaped(pid, reaped) {
            self.control.send(&report);
        }
    }

    /// Kills all that is to die, roots and what is below them. All are stopped before the first is killed: what is
    /// stopped forks no more, so only what was forked during this very look is left for the next one.
    fn kill_doomed(&self) {
        let roots = self.table.doomed_roots();
        let below = self.proc.below(&roots, false);
        let victims = &below[..below.len().min(MAX_VICTIMS_PER_PASS)];
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            for entry in victims {
                sys::signal_verified(entry.pid, signal, || is_same(entry));
            }
        }
        for root in roots {
            sys::signal_child(root, libc::SIGKILL);
        }
    }

    /// The host is gone: so is everything else, and, once that is, this process.
    fn close(&mut self) {
        self.table.kill_all();
        self.kill_doomed();
        self.cradle.as_mut().map(Cradle::discard);
        if self.table.is_empty() && sys::any_dead_child().is_none() {
            sys::end(0);
        }
    }
}
