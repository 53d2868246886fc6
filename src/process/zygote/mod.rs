//! A running zygote, seen from the host: it is asked for children over its control socket, and tells how they end.
//!
//! A worker that was forked is a [`Process`] like any other. The zygote lives as long as somebody holds its [`Client`] or
//! a process it forked; then its socket closes, and it ends itself and whatever is left of its children.

mod wire;

use std::{
    collections::HashMap,
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use native_sandbox_confine::{MAX_SLOTS, Plan, SCRATCH_WORD};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    sync::{Notify, oneshot, watch},
    time::timeout,
};

use self::wire::{Report, Request};
use super::{Command, Control, ExitStatus, Limits, Process, SpawnError, Spawner, Started, TreeState, ends};
use crate::{group::Group, sys};

/// How long a zygote may take to boot and load what it is to load.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Seconds of processor time that a zygote may take to load what it is to load, all threads together; `zygote/src/limits.rs` sets it.
const LOADING_CPU_SECONDS: u32 = 10;

/// What is said of one that was not.
const NOT_READY: &str = "was not ready in time";

/// How long the end of one that is lost may take to be told.
const END_LIMIT: Duration = Duration::from_secs(1);

/// How long a fork may take before the zygote counts as stuck.
const FORK_LIMIT: Duration = Duration::from_secs(10);

/// The most descriptors beside a request.
const MAX_FDS: usize = 4;

/// Why there is no zygote, or no child of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZygoteError {
    /// Its process could not be started.
    #[error("it could not be started: {0}")]
    Spawn(#[from] SpawnError),
    /// A system call on the host's side failed.
    #[error("{step}: {source}")]
    Step {
        /// Which.
        step: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// It said that it cannot serve; the JSON it gave as its reason.
    #[error("it refused to serve: {}", words_of(reason))]
    Refused {
        /// JSON: `{ reason, specifier?, kind? }`.
        reason: String,
        /// See [`Client::take_shown`].
        shown: Vec<OwnedFd>,
    },
    /// It ended, or does not answer.
    #[error("it {what}")]
    Lost {
        /// What happened.
        what: &'static str,
    },
    /// It took more time to load what it was to load than it may.
    #[error("it {what}")]
    Overran {
        /// What happened.
        what: String,
    },
    /// What it was to be told does not fit into one message.
    #[error(
        "it cannot be told about its {what}, which take more than {} bytes together: let fewer variables pass (option env)",
        wire::MAX_PAYLOAD_BYTES
    )]
    TooLarge {
        /// What it was to be told.
        what: &'static str,
    },
    /// `fork` failed in it.
    #[error("fork: {0}")]
    Fork(io::Error),
}

/// The sentence in a zygote's JSON about its refusal; the text itself where it has none.
pub fn words_of(refusal: &str) -> String {
    let read = serde_json::from_str::<serde_json::Value>(refusal).ok();
    let reason = read.as_ref().and_then(|read| read["reason"].as_str());
    reason.unwrap_or(refusal).to_owned()
}

fn step(step: &'static str) -> impl FnOnce(io::Error) -> ZygoteError {
    move |source| ZygoteError::Step { step, source }
}

/// A zygote.
pub struct Client {
    link: Arc<Link>,
    /// What it said when it was ready (JSON).
    report: String,
    shown: Vec<OwnedFd>,
    /// Its process id, where it has one here.
    pid: Option<u32>,
    forks: AtomicU64,
}

/// What the client, its processes and the task that reads share.
struct Link {
    socket: Arc<AsyncFd<OwnedFd>>,
    children: Arc<Mutex<Children>>,
    /// Wakes the task that reads: there is a child to wait for.
    added: Arc<Notify>,
    runtime: Handle,
    /// Kept for as long as the zygote is needed: its process, or the zygote it was forked from.
    _origin: Origin,
}

/// Where a zygote comes from, and what ends it.
enum Origin {
    Launched { _process: Process },
    Forked { _process: Arc<Process>, _link: Arc<Link> },
}

#[derive(Default)]
struct Children {
    next_id: u64,
    closed: bool,
    by_id: HashMap<u64, Child>,
}

struct Child {
    state: watch::Sender<TreeState>,
    /// Present until the fork is answered.
    forked: Option<oneshot::Sender<Result<u32, io::Error>>>,
}

impl Client {
    /// Boots a zygote by `command`, which gets its control socket as descriptor 3. Cancelled, it ends by itself.
    pub async fn boot(spawner: &dyn Spawner, command: Command) -> Result<Self, ZygoteError> {
        let (own, theirs) = control_pair()?;
        let command =
            Command { descriptor_3: Some(Arc::new(theirs)), channel: false, forks: true, ..command };
        let shown = shown_by(command.confinement.as_deref());
        let Started { process, stdout, stderr, .. } = spawner.spawn(command).await?;
        for mut output in [stdout, stderr] {
            // A full pipe would stop it. What it has to say goes over its socket.
            tokio::spawn(async move { tokio::io::copy(&mut output, &mut tokio::io::sink()).await });
        }
        Self::open(own, Origin::Launched { _process: process }, shown).await
    }

    /// Forks another zygote from this one; `payload` is JSON for `zygote.cjs`. Cancelled, it ends by itself.
    /// `plan` is what it gives up before it loads anything, and `group` the control group that it is in by then.
    pub async fn fork_zygote(
        &self,
        plan: Option<&Plan>,
        group: Option<Arc<Group>>,
        payload: &str,
    ) -> Result<Self, ZygoteError> {
        let shown = shown_by(plan);
        let plan = encoded(plan)?;
        let (own, theirs) = control_pair()?;
        let process = self
            .fork(&[theirs.as_fd()], group, |id, in_group| Request::ForkZygote {
                id,
                plan: &plan,
                in_group,
                payload: payload.as_bytes(),
            })
            .await?;
        // So that its end is seen.
        drop(theirs);
        let state = process.watch();
        // Held until it is known how it ended: letting go of it ends it.
        let process = Arc::new(process);
        let origin = Origin::Forked { _process: Arc::clone(&process), _link: Arc::clone(&self.link) };
        match Self::open(own, origin, shown).await {
            Err(ZygoteError::Lost { what }) => Err(overrun(state, what).await),
            opened => opened,
        }
    }

    /// Sets the kernel limits of the workers that it forks from now on.
    pub async fn limit(&self, limits: Limits) -> Result<(), ZygoteError> {
        let packet = Request::Limit { limits }.encode().ok_or(ZygoteError::TooLarge { what: "limits" })?;
        self.link.send(&packet, &[]).await.map_err(step("sendmsg"))
    }

    /// Forks a worker, which enters `group`, gives up what `plan` says, and waits for its job. Cancelled, it is killed.
    pub async fn fork_worker(
        &self,
        plan: Option<&Plan>,
        group: Option<Arc<Group>>,
    ) -> Result<Started, ZygoteError> {
        let plan = encoded(plan)?;
        let (host_ends, child_ends) = ends::make(true, "a worker")?;
        let Some(channel) = &child_ends.channel else {
            return Err(ZygoteError::Lost { what: "got no channel" });
        };
        let fds = [channel.as_fd(), child_ends.stdout.as_fd(), child_ends.stderr.as_fd()];
        let request = |id, in_group| Request::ForkWorker { id, plan: &plan, in_group };
        let process = self.fork(&fds, group, request).await?;
        drop(child_ends);
        Ok(host_ends.started(process.marked(), "a worker")?)
    }

    /// Children asked for so far.
    pub fn forks(&self) -> u64 {
        self.forks.load(Ordering::Relaxed)
    }

    /// What it said when it was ready (JSON): what it loaded and what it did not.
    pub fn report(&self) -> &str {
        &self.report
    }

    /// The tops of what it has mounted for run folders, as far as its plan says that it shows them; once.
    pub fn take_shown(&mut self) -> Vec<OwnedFd> {
        mem::take(&mut self.shown)
    }

    /// Its process id; none where it has none here.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether it can be asked for children.
    pub fn is_open(&self) -> bool {
        !self.link.children().closed
    }

    async fn open(socket: OwnedFd, origin: Origin, shown: usize) -> Result<Self, ZygoteError> {
        let socket =
            sys::register(socket, Interest::READABLE | Interest::WRITABLE).map_err(step("register"))?;
        let shown = if shown > 0 { shown_on(&socket, shown).await? } else { Vec::new() };
        let socket = Arc::new(socket);
        let children = Arc::new(Mutex::new(Children::default()));
        let added = Arc::new(Notify::new());
        let (ready, told) = oneshot::channel();
        tokio::spawn(
            Reader {
                socket: Arc::clone(&socket),
                children: Arc::clone(&children),
                added: Arc::clone(&added),
                ready: Some(ready),
                pid: None,
            }
            .run(),
        );
        let link = Link { socket, children, added, runtime: Handle::current(), _origin: origin };
        match timeout(READY_LIMIT, told).await {
            Ok(Ok(Ok((pid, report)))) => {
                Ok(Self { link: Arc::new(link), report, shown, pid, forks: AtomicU64::new(0) })
            }
            Ok(Ok(Err(reason))) => Err(ZygoteError::Refused { reason, shown }),
            Ok(Err(_)) => Err(ZygoteError::Lost { what: "ended while it booted" }),
            Err(_) => Err(ZygoteError::Lost { what: NOT_READY }),
        }
    }

    async fn fork<'a>(
        &self,
        fds: &[BorrowedFd<'_>],
        group: Option<Arc<Group>>,
        request: impl FnOnce(u64, bool) -> Request<'a>,
    ) -> Result<Process, ZygoteError> {
        let (state, watched) = watch::channel(TreeState::default());
        let (forked, answer) = oneshot::channel();
        let id = self.link.add(Child { state, forked: Some(forked) })?;
        // A request that was not sent has no answer: nobody else would take the entry away.
        let unsent = ForgetOnDrop { link: &self.link, id };
        let packet = request(id, group.is_some())
            .encode()
            .ok_or(ZygoteError::TooLarge { what: "variables and packages" })?;
        let mut beside = fds.to_vec();
        beside.extend(group.as_deref().map(Group::procs));
        self.link.send(&packet, &beside).await.map_err(step("sendmsg"))?;
        mem::forget(unsent);
        self.forks.fetch_add(1, Ordering::Relaxed);
        let control =
            Arc::new(ChildControl { id, link: Arc::clone(&self.link), killed: AtomicBool::new(false) });
        // From here on, whatever ends this future kills what was forked.
        let mut unborn = KillOnDrop(Some(Arc::clone(&control)));
        match timeout(FORK_LIMIT, answer).await {
            Ok(Ok(Ok(pid))) => {
                // Its `Process` sees to its end from here on.
                unborn.0 = None;
                Ok(Process::new(pid, control, watched).in_group(group))
            }
            Ok(Ok(Err(error))) => Err(ZygoteError::Fork(error)),
            Ok(Err(_)) => Err(ZygoteError::Lost { what: "ended" }),
            Err(_) => {
                self.link.close();
                Err(ZygoteError::Lost { what: "did not answer in time" })
            }
        }
    }
}

/// How many file systems who applies this plan shows of what it mounts.
fn shown_by(plan: Option<&Plan>) -> usize {
    let scratch = plan.and_then(|plan| plan.scratch.as_ref());
    scratch.map_or(0, |scratch| scratch.contents.shown())
}

/// Receives as many. They are the first that come, from before the zygote ran anything that could send others.
async fn shown_on(socket: &AsyncFd<OwnedFd>, count: usize) -> Result<Vec<OwnedFd>, ZygoteError> {
    let mut word = [0; SCRATCH_WORD.len() + 1];
    let receive = async {
        loop {
            let mut ready = socket.readable().await?;
            let receive = |socket: &AsyncFd<OwnedFd>| receive_now::<SHOWN_SPACE>(socket.as_fd(), &mut word);
            if let Ok(received) = ready.try_io(receive) {
                break received;
            }
        }
    };
    match timeout(READY_LIMIT, receive).await {
        Ok(Ok((size, tops))) if word[..size] == SCRATCH_WORD && tops.len() == count => Ok(tops),
        Ok(Ok((0, _))) => Err(ZygoteError::Lost { what: "ended before it ran" }),
        Ok(Ok(_)) => Err(ZygoteError::Lost { what: "did not show its places for run folders" }),
        Ok(Err(error)) => Err(step("recvmsg")(error)),
        Err(_) => Err(ZygoteError::Lost { what: "did not begin in time" }),
    }
}

/// Why a zygote that loads packages was lost: the time that it may take was over, or something else.
async fn overrun(mut state: watch::Receiver<TreeState>, what: &'static str) -> ZygoteError {
    if what == NOT_READY {
        let what = format!("did not load within {} s", READY_LIMIT.as_secs());
        return ZygoteError::Overran { what };
    }
    // Its socket is closed before its parent reaps it.
    let ended = timeout(END_LIMIT, state.wait_for(|state| state.exit.is_some())).await;
    match ended {
        Ok(Ok(state)) if state.exit == Some(ExitStatus::Signal(libc::SIGXCPU)) => {
            let what = format!("took more than {LOADING_CPU_SECONDS} s of processor time to load");
            ZygoteError::Overran { what }
        }
        _ => ZygoteError::Lost { what },
    }
}

/// The bytes of a plan, none for none.
fn encoded(plan: Option<&Plan>) -> Result<Vec<u8>, ZygoteError> {
    let bytes = plan.map(Plan::encode).transpose();
    bytes.map(Option::unwrap_or_default).map_err(|error| step("encode")(io::Error::other(error)))
}

fn control_pair() -> Result<(OwnedFd, OwnedFd), ZygoteError> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|error| step("socketpair")(error.into()))?;
    rustix::io::ioctl_fionbio(&own, true).map_err(|error| step("ioctl")(error.into()))?;
    Ok((own, theirs))
}

impl Link {
    fn children(&self) -> std::sync::MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, child: Child) -> Result<u64, ZygoteError> {
        let mut children = self.children();
        if children.closed {
            return Err(ZygoteError::Lost { what: "ended" });
        }
        children.next_id += 1;
        let id = children.next_id;
        children.by_id.insert(id, child);
        self.added.notify_one();
        Ok(id)
    }

    async fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| send_now(socket.as_fd(), packet, fds)) {
                Ok(sent) => return sent,
                Err(_not_yet) => {}
            }
        }
    }

    /// For where nobody can wait; what the socket does not take now is sent by a task.
    fn send_soon(self: &Arc<Self>, request: &Request<'_>) {
        let Some(packet) = request.encode() else { return };
        if send_now(self.socket.as_fd(), &packet, &[]).is_ok() {
            return;
        }
        let link = Arc::clone(self);
        self.runtime.spawn(async move {
            // A zygote that is gone has taken its children along.
            let _ = link.send(&packet, &[]).await;
        });
    }

    /// Tells the zygote, and the task that reads, that this is over.
    fn close(&self) {
        self.children().closed = true;
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The reading task holds the socket too, and ends with this.
        self.close();
    }
}

fn send_now(socket: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(packet)], &mut beside, flags)?;
    Ok(())
}

/// Room for as many descriptors as a zygote may show.
const SHOWN_SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_SLOTS as usize));

/// And for the one of a process.
const NAMED_SPACE: usize = rustix::cmsg_space!(ScmRights(1));

/// A packet, and the descriptors that came with it; what there is no `SPACE` for is closed by the kernel.
fn receive_now<const SPACE: usize>(
    socket: BorrowedFd<'_>,
    packet: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let size = recvmsg(socket, &mut [IoSliceMut::new(packet)], &mut beside, flags)?.bytes;
    let mut received = Vec::new();
    for part in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            received.extend(fds);
        }
    }
    Ok((size, received))
}

/// The number that the process of a pidfd has here; 0 where it has none, or has ended.
fn number_of(pidfd: &OwnedFd) -> u32 {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap_or_default();
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

struct ChildControl {
    id: u64,
    link: Arc<Link>,
    killed: AtomicBool,
}

impl Control for ChildControl {
    fn terminate(&self) {
        self.link.send_soon(&Request::Terminate { id: self.id });
    }

    fn kill(&self) {
        if !self.killed.swap(true, Ordering::AcqRel) {
            self.link.send_soon(&Request::Kill { id: self.id });
        }
    }
}

/// Forgets a child that the zygote was not asked for.
struct ForgetOnDrop<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.link.children().by_id.remove(&self.id);
    }
}

/// Kills what was forked for a caller that is gone before it had it.
struct KillOnDrop(Option<Arc<ChildControl>>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(control) = &self.0 {
            control.kill();
        }
    }
}

/// Its process id and what it said; or why it refuses.
type Readiness = Result<(Option<u32>, String), String>;

/// The task that reads what a zygote tells.
struct Reader {
    socket: Arc<AsyncFd<OwnedFd>>,
    children: Arc<Mutex<Children>>,
    added: Arc<Notify>,
    ready: Option<oneshot::Sender<Readiness>>,
    /// The zygote's process id, once it said so.
    pid: Option<i32>,
}

impl Reader {
    async fn run(mut self) {
        let mut packet = vec![0; wire::MAX_REPORT_BYTES];
        let mut look = super::looks_for_a_stop(super::LOOK_INTERVAL);
        loop {
            tokio::select! {
                report = self.next(&mut packet) => match report {
                    Some((report, named)) => self.take(report, named.as_ref()),
                    None => break,
                },
                _ = look.tick(), if self.is_needed() => self.pid.into_iter().for_each(sys::resume_if_stopped),
                // Whether it is needed is asked when this begins to wait: a child that is added meanwhile changes that.
                () = self.added.notified() => {}
            }
        }
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.closed = true;
        for (_, child) in children.by_id.drain() {
            // They had asked to die with their zygote (PR_SET_PDEATHSIG).
            child.state.send_modify(|state| {
                state.exit = state.exit.or(Some(ExitStatus::Lost));
                state.gone = true;
            });
        }
    }

    /// Whether somebody waits for something of it.
    fn is_needed(&self) -> bool {
        !self.children.lock().unwrap_or_else(PoisonError::into_inner).by_id.is_empty()
    }

    /// A report, and a pidfd of the process that it is about. `None` when the zygote is gone or not to be understood.
    async fn next(&self, packet: &mut [u8]) -> Option<(Report, Option<OwnedFd>)> {
        loop {
            let mut ready = self.socket.readable().await.ok()?;
            match ready.try_io(|socket| receive_now::<NAMED_SPACE>(socket.as_fd(), packet)) {
                Ok(Ok((size, named))) if size > 0 => {
                    return wire::decode(&packet[..size]).map(|report| (report, named.into_iter().next()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) => return None,
                Err(_not_yet) => {}
            }
        }
    }

    fn take(&mut self, report: Report, named: Option<&OwnedFd>) {
        let named = named.map(number_of);
        let text = |payload: Vec<u8>| String::from_utf8_lossy(&payload).into_owned();
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        match report {
            Report::Ready { pid, payload } => {
                // Said once. A package that is loaded later may write here too, and would name a process that is not the zygote's.
                if let Some(ready) = self.ready.take() {
                    self.pid =
                        named.map_or(Some(pid), |named| i32::try_from(named).ok()).filter(|pid| *pid > 0);
                    let pid = self.pid.and_then(|pid| u32::try_from(pid).ok());
                    let _ = ready.send(Ok((pid, text(payload))));
                }
            }
            Report::Refused { payload } => {
                if let Some(ready) = self.ready.take() {
                    let _ = ready.send(Err(text(payload)));
                }
            }
            Report::Forked { id, pid } => {
                if let Some(forked) = children.by_id.get_mut(&id).and_then(|child| child.forked.take()) {
                    let _ = forked.send(Ok(named.unwrap_or(pid)));
                }
            }
            Report::ForkFailed { id, errno } => {
                if let Some(forked) = children.by_id.remove(&id).and_then(|child| child.forked) {
                    let _ = forked.send(Err(io::Error::from_raw_os_error(errno)));
                }
            }
            Report::Exited { id, status, cpu_us, max_rss_kib } => {
                if let Some(child) = children.by_id.get(&id) {
                    child.state.send_replace(TreeState {
                        exit: Some(status),
                        gone: false,
                        cpu_us,
                        max_rss_kib,
                    });
                }
            }
            Report::Gone { id } => {
                if let Some(child) = children.by_id.remove(&id) {
                    child.state.send_modify(|state| state.gone = true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child as Program, Command as Start},
        time::Instant,
    };

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Has nothing to end.
    struct Uncontrolled;

    impl Control for Uncontrolled {
        fn terminate(&self) {}
        fn kill(&self) {}
    }

    /// A client whose zygote is this test: it is ready, and says nothing more. Its process id is that of `program`.
    async fn silent_zygote(program: Option<&Program>) -> (Client, OwnedFd) {
        let (own, theirs) = control_pair().unwrap();
        say_ready(&theirs, program.map_or(0, Program::id));
        let (_, state) = watch::channel(TreeState::default());
        let origin = Origin::Launched { _process: Process::new(0, Arc::new(Uncontrolled), state) };
        (Client::open(own, origin, 0).await.unwrap(), theirs)
    }

    fn say_ready(zygote: &OwnedFd, pid: u32) {
        let mut ready = vec![0; wire::MAX_REPORT_BYTES - wire::MAX_PAYLOAD_BYTES];
        ready[0] = 16;
        ready[4..8].copy_from_slice(&pid.to_le_bytes());
        ready[36..40].copy_from_slice(&wire::VERSION.to_le_bytes());
        send_now(zygote.as_fd(), &ready, &[]).unwrap();
    }

    fn is_stopped(program: &Program) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", program.id())).unwrap().contains(") T ")
    }

    fn entries(client: &Client) -> usize {
        client.link.children().by_id.len()
    }

    #[tokio::test]
    async fn a_request_that_does_not_fit_leaves_no_entry() {
        let (client, _theirs) = silent_zygote(None).await;
        let many_variables = "x".repeat(wire::MAX_PAYLOAD_BYTES + 1);
        let error = client.fork_zygote(None, None, &many_variables).await.err().unwrap();
        assert!(matches!(error, ZygoteError::TooLarge { .. }), "{error}");
        assert!(error.to_string().contains("option env"), "{error}");
        assert_eq!(entries(&client), 0);
        assert!(client.is_open(), "it can be asked for other children");
    }

    #[tokio::test]
    async fn a_request_that_was_given_up_before_it_was_sent_leaves_no_entry() {
        let (client, _theirs) = silent_zygote(None).await;
        let pause = Duration::from_millis(50);
        while timeout(pause, client.limit(Limits::default())).await.is_ok() {}
        assert!(timeout(pause, client.fork_worker(None, None)).await.is_err(), "the socket is full");
        assert_eq!(entries(&client), 0);
    }

    /// A package that a zygote loads may write to its socket: it named another process, and the host let that one go on.
    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "only stands for zygotes")]
    async fn who_a_zygote_is_it_says_once() {
        let mut programs = [(); 2].map(|()| Start::new("sleep").arg("60").spawn().unwrap());
        let [own, other] = &programs;
        let (client, theirs) = silent_zygote(Some(own)).await;
        say_ready(&theirs, other.id());
        for program in &programs {
            kill_process(Pid::from_child(program), Signal::STOP).unwrap();
        }
        // A signal takes effect when its process runs next.
        while !programs.iter().all(is_stopped) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let asked = client.fork_worker(None, None);
        let resumed = async {
            while is_stopped(own) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = asked => panic!("nobody answers"),
            done = timeout(Duration::from_secs(5), resumed) => done.expect("it is stopped still"),
        }
        assert!(is_stopped(other), "it is no zygote");
        for program in &mut programs {
            program.kill().unwrap();
            program.wait().unwrap();
        }
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "only stands for a zygote")]
    async fn a_zygote_that_is_stopped_after_a_request_is_noticed() {
        let mut program = Start::new("sleep").arg("60").spawn().unwrap();
        let (client, _theirs) = silent_zygote(Some(&program)).await;
        // The task that reads waits by now, for a zygote that nobody wants anything of.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let pid = Pid::from_child(&program);
        kill_process(pid, Signal::STOP).unwrap();
        while !is_stopped(&program) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let asked = client.fork_worker(None, None);
        let resumed = async {
            let began = Instant::now();
            while is_stopped(&program) {
                assert!(began.elapsed() < Duration::from_secs(5), "it is stopped still");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = asked => panic!("nobody answers"),
            () = resumed => {}
        }
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
