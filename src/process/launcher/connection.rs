//! One launcher: the task that owns its control socket, and the handle to that task.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use native_sandbox_confine::Mark;
use native_sandbox_protocol::{
    FromLauncher, MAX_FDS, MAX_PACKET_BYTES, Status, ToLauncher, VERSION, decode_report, encode_request,
};
use rustix::{
    cmsg_space,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot, watch},
    time::{Interval, timeout},
};
use tracing::{debug, warn};

use super::{
    Patience,
    binary::{self, Newborn, unavailable},
    lost::{sweep, sweep_of_others},
};
use crate::{
    process::{ExitStatus, SpawnError, TreeState, own_child::OwnChild},
    sys,
};

/// At most this many answers to one spawn.
pub(super) const MAX_ANSWERS: usize = 2;

/// How many packets wait for the socket to take them; the rest waits in the queue of requests.
const MAX_OUTGOING: usize = 64;

/// How many reports are taken in before anything else gets its turn.
const MAX_REPORTS_PER_TURN: usize = 64;

/// What the launcher is asked for. Unbounded as a queue, bounded in use: spawns by the permits of the spawner,
/// signals by one of each kind per living tree.
pub(super) type Requests = mpsc::UnboundedSender<Request>;

pub(super) enum Request {
    Spawn {
        id: u64,
        program: String,
        packet: Vec<u8>,
        fds: Vec<OwnedFd>,
        answers: mpsc::Sender<Answer>,
        state: watch::Sender<TreeState>,
    },
    /// The flag is cleared once the request is on its way, so that another one can be made.
    Terminate {
        id: u64,
        waiting: Arc<AtomicBool>,
    },
    Kill {
        id: u64,
    },
    /// The launcher did not answer in time.
    Stuck,
    /// End if idle; told whether it did.
    Shutdown(oneshot::Sender<bool>),
}

/// How a spawn goes.
pub(super) enum Answer {
    Forked(u32),
    Started,
    Failed(SpawnError),
}

/// The handle to a launcher.
pub(super) struct Connection {
    requests: Requests,
    next_id: u64,
    launcher_pid: u32,
    born: Instant,
    died: Arc<OnceLock<Instant>>,
}

impl Connection {
    /// Starts a launcher and waits until it is ready. Cancelled, the launcher ends by itself.
    pub(super) async fn open(binary: &Path, patience: Patience) -> Result<Self, SpawnError> {
        let Patience { answer_limit, look_interval } = patience;
        let born = Instant::now();
        let Newborn { mut child, pid, socket } = binary::start(binary)?;
        let socket = sys::register(socket, Interest::READABLE | Interest::WRITABLE).map_err(|source| {
            let subject = binary.display().to_string();
            SpawnError::Step { step: "register the socket of", subject, source }
        })?;
        let mut packet = vec![0; MAX_PACKET_BYTES];
        match timeout(answer_limit, first_report(&socket, &mut packet)).await {
            Ok(Ok(FromLauncher::Ready { version: VERSION })) => {}
            Ok(Ok(other)) => {
                child.kill();
                let reason = format!("it speaks another version ({other:?}); reinstall the package");
                return Err(unavailable(binary, reason, false));
            }
            Ok(Err(error)) => {
                child.kill();
                let status = child.ended().await.status;
                let reason = format!("it ended at once ({status:?}, {error})");
                return Err(unavailable(binary, reason, was_killed(status)));
            }
            Err(_) => {
                child.kill();
                let reason = format!("it said nothing within {} ms", answer_limit.as_millis());
                return Err(unavailable(binary, reason, true));
            }
        }
        debug!(pid, "launcher started");
        // Before it says that it is ready it is marked, if it can be.
        let mark = sys::mark_of(pid.cast_signed()).filter(|mark| mark.is_launcher());
        tokio::spawn(sweep_of_others());
        let (requests, queue) = mpsc::unbounded_channel();
        let died = Arc::new(OnceLock::new());
        let actor = Actor {
            launcher: Launcher { socket: Some(socket), child, pid, mark },
            queue,
            queue_open: true,
            trees: HashMap::new(),
            outgoing: VecDeque::new(),
            packet,
            died: Arc::clone(&died),
            look: super::super::looks_for_a_stop(look_interval),
        };
        tokio::spawn(actor.run());
        Ok(Self { requests, next_id: 1, launcher_pid: pid, born, died })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    /// When it began and when it ended (by now, if its task was dropped with its runtime).
    pub(super) fn life(&self) -> (Instant, Instant) {
        (self.born, self.died.get().copied().unwrap_or_else(Instant::now))
    }

    pub(super) fn launcher_pid(&self) -> u32 {
        self.launcher_pid
    }

    pub(super) fn next_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    pub(super) fn requests(&self) -> Requests {
        self.requests.clone()
    }

    /// Ends the launcher if it is idle; whether it is gone.
    pub(super) async fn shutdown(&self) -> bool {
        let (ended, told) = oneshot::channel();
        if self.requests.send(Request::Shutdown(ended)).is_err() {
            return true;
        }
        // A task that ends without a word has lost its launcher.
        told.await.unwrap_or(true)
    }
}

/// Whether it ended for a reason that is not its own: its binary may be sound.
fn was_killed(status: ExitStatus) -> bool {
    let outside = [libc::SIGKILL, libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];
    match status {
        ExitStatus::Signal(signal) => outside.contains(&signal),
        ExitStatus::Lost => true,
        ExitStatus::Code(_) => false,
    }
}

async fn first_report(socket: &AsyncFd<OwnedFd>, packet: &mut [u8]) -> io::Result<FromLauncher> {
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(size) = ready.try_io(|socket| receive(socket.as_fd(), packet)) {
            return decode_report(&packet[..size?]).map_err(io::Error::other);
        }
    }
}

/// One packet; the launcher's end of the socket closed is an error, as every other way of not getting one.
fn receive(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<usize> {
    let (_, size) = recv(socket, packet, RecvFlags::empty())?;
    if size == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(size) }
}

/// The process and the socket. The socket closes first; that alone makes the launcher kill all it runs and leave.
struct Launcher {
    /// Present until the end.
    socket: Option<AsyncFd<OwnedFd>>,
    child: OwnChild,
    pid: u32,
    /// What it and all that it starts is marked by.
    mark: Option<Mark>,
}

struct Tree {
    program: String,
    pid: Option<i32>,
    answers: mpsc::Sender<Answer>,
    state: watch::Sender<TreeState>,
}

/// A packet on its way out.
struct Outgoing {
    packet: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// The spawn that fails when the packet cannot be sent.
    spawn: Option<u64>,
}

struct Actor {
    launcher: Launcher,
    queue: mpsc::UnboundedReceiver<Request>,
    queue_open: bool,
    trees: HashMap<u64, Tree>,
    outgoing: VecDeque<Outgoing>,
    packet: Vec<u8>,
    died: Arc<OnceLock<Instant>>,
    /// When to look whether the launcher was stopped.
    look: Interval,
}

/// Why the task ends.
enum End {
    /// Idle, and told to.
    Idle(Option<oneshot::Sender<bool>>),
    Lost(String),
}

impl Actor {
    async fn run(mut self) {
        let end = loop {
            if let Some(end) = self.turn().await {
                break end;
            }
        };
        self.queue.close();
        let _ = self.died.set(Instant::now());
        match end {
            End::Idle(told) => {
                self.leave().await;
                if let Some(told) = told {
                    let _ = told.send(true);
                }
            }
            End::Lost(reason) => self.lost(&reason).await,
        }
    }

    /// Waits for one thing to happen and does what follows from it.
    async fn turn(&mut self) -> Option<End> {
        if !self.queue_open && self.trees.is_empty() {
            return Some(End::Idle(None));
        }
        let interest = if self.outgoing.is_empty() {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        let Some(socket) = &self.launcher.socket else { return Some(End::Lost("no socket".into())) };
        let mut end = None;
        tokio::select! {
            request = self.queue.recv(), if self.queue_open && self.outgoing.len() < MAX_OUTGOING => match request {
                Some(request) => end = self.take(request),
                None => self.queue_open = false,
            },
            ready = socket.ready(interest) => if let Err(error) = ready {
                end = Some(End::Lost(error.to_string()));
            },
            _ = self.look.tick(), if !self.trees.is_empty() => sys::resume_if_stopped(self.launcher.pid.cast_signed()),
            reaped = self.launcher.child.ended() => end = Some(End::Lost(format!("it ended: {:?}", reaped.status))),
        }
        end.or_else(|| self.exchange().err().map(|error| End::Lost(error.to_string())))
    }

    fn take(&mut self, request: Request) -> Option<End> {
        match request {
            Request::Spawn { id, program, packet, fds, answers, state } => {
                self.trees.insert(id, Tree { program, pid: None, answers, state });
                self.outgoing.push_back(Outgoing { packet, fds, spawn: Some(id) });
                None
            }
            Request::Terminate { id, waiting } => {
                waiting.store(false, Ordering::Release);
                self.signal(id, &ToLauncher::Terminate { id })
            }
            Request::Kill { id } => self.signal(id, &ToLauncher::Kill { id }),
            Request::Stuck => Some(End::Lost("it did not answer in time".into())),
            Request::Shutdown(told) if self.trees.is_empty() => Some(End::Idle(Some(told))),
            Request::Shutdown(told) => {
                let _ = told.send(false);
                None
            }
        }
    }

    fn signal(&mut self, id: u64, message: &ToLauncher) -> Option<End> {
        if !self.trees.contains_key(&id) {
            return None;
        }
        match encode_request(message) {
            Ok(packet) => self.outgoing.push_back(Outgoing { packet, fds: Vec::new(), spawn: None }),
            Err(error) => return Some(End::Lost(error.to_string())),
        }
        None
    }

    /// Reads and writes what the socket gives and takes now. An error is the end of this launcher.
    fn exchange(&mut self) -> io::Result<()> {
        self.read()?;
        self.write()
    }

    fn read(&mut self) -> io::Result<()> {
        for _ in 0..MAX_REPORTS_PER_TURN {
            let Some(socket) = &self.launcher.socket else { break };
            let packet = &mut self.packet;
            match socket.try_io(Interest::READABLE, |socket| receive(socket.as_fd(), packet)) {
                Ok(size) => {
                    let report = decode_report(&self.packet[..size]).map_err(io::Error::other)?;
                    self.report(report);
                }
                Err(error) if is_for_later(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while let (Some(socket), Some(out)) = (&self.launcher.socket, self.outgoing.front()) {
            match socket.try_io(Interest::WRITABLE, |socket| send(socket.as_fd(), out)) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(error) if is_for_later(&error) => break,
                Err(error) => self.unsent(error)?,
            }
        }
        Ok(())
    }

    /// A spawn that cannot be sent fails alone (too many descriptors in flight, no memory); anything else that cannot
    /// be sent means that the launcher cannot be steered any more.
    fn unsent(&mut self, error: io::Error) -> io::Result<()> {
        let closed = [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN].map(Errno::raw_os_error);
        let spawn = self.outgoing.pop_front().and_then(|out| out.spawn);
        match spawn.and_then(|id| self.trees.remove(&id)) {
            Some(tree) if !error.raw_os_error().is_some_and(|errno| closed.contains(&errno)) => {
                let source = error;
                tree.answer(Answer::Failed(SpawnError::Step {
                    step: "sendmsg",
                    subject: tree.program.clone(),
                    source,
                }));
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn report(&mut self, report: FromLauncher) {
        match report {
            FromLauncher::Ready { .. } => {}
            FromLauncher::Forked { id, pid } => {
                if let Some(tree) = self.trees.get_mut(&id) {
                    tree.pid = Some(pid);
                    tree.answer(Answer::Forked(pid.unsigned_abs()));
                }
            }
            FromLauncher::Started { id } => {
                if let Some(tree) = self.trees.get(&id) {
                    tree.answer(Answer::Started);
                }
            }
            FromLauncher::SpawnFailed { id, step, subject, errno } => {
                if let Some(tree) = self.trees.remove(&id) {
                    let subject = String::from_utf8_lossy(&subject).into_owned();
                    let source = io::Error::from_raw_os_error(errno);
                    tree.answer(Answer::Failed(SpawnError::Step { step: step.name(), subject, source }));
                }
            }
            FromLauncher::Exited { id, status, cpu_us, max_rss_kib, left_behind: _ } => {
                if let Some(tree) = self.trees.get(&id) {
                    let exit = Some(exit_status(status));
                    tree.state.send_replace(TreeState { exit, gone: false, cpu_us, max_rss_kib });
                }
            }
            FromLauncher::Gone { id } => {
                if let Some(tree) = self.trees.remove(&id) {
                    tree.state.send_modify(|state| state.gone = true);
                }
            }
        }
    }

    /// Nothing runs: the closed socket tells the launcher to leave, which it does at once.
    async fn leave(&mut self) {
        self.launcher.socket = None;
        if timeout(super::ANSWER_LIMIT, self.launcher.child.ended()).await.is_err() {
            self.launcher.child.kill();
            self.launcher.child.ended().await;
        }
        debug!(pid = self.launcher.pid, "launcher ended");
    }

    /// The launcher is dead, or as good as: its trees are over. They are told so at once, and that nothing of them is
    /// left once that was seen to.
    async fn lost(&mut self, reason: &str) {
        warn!(pid = self.launcher.pid, reason, "launcher lost; what ran under it is ended");
        // Its last words may be the true end of a process.
        let _ = self.read();
        // Answers that wait end with this: their spawns see that nobody will answer.
        let trees: Vec<Tree> = self.trees.drain().map(|(_, tree)| tree).collect();
        while self.queue.try_recv().is_ok() {}
        self.outgoing.clear();
        let mut states = Vec::new();
        let mut mains = std::collections::BTreeSet::new();
        for tree in trees {
            mains.extend(tree.pid);
            tree.state.send_modify(|state| state.exit = state.exit.or(Some(ExitStatus::Lost)));
            states.push(tree.state);
        }
        self.launcher.child.kill();
        self.launcher.child.ended().await;
        self.launcher.socket = None;
        if !sweep(mains, self.launcher.mark).await {
            warn!("processes of a lost launcher could not be ended in time");
        }
        for state in states {
            state.send_modify(|state| state.gone = true);
        }
    }
}

impl Tree {
    /// There is room for all answers that can come; more, or nobody who waits, is nothing to care about.
    fn answer(&self, answer: Answer) {
        let _ = self.answers.try_send(answer);
    }
}

fn exit_status(status: Status) -> ExitStatus {
    match status {
        Status::Code(code) => ExitStatus::Code(code),
        Status::Signal(signal) => ExitStatus::Signal(signal),
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn send(socket: BorrowedFd<'_>, out: &Outgoing) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = out.fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&out.packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
