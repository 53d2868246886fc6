//! Processes by way of the launcher: one small process per host that forks, watches and kills in its place (Linux).

mod backoff;
mod binary;
mod connection;
mod lost;

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStringExt, net::UnixDatagram},
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use native_sandbox_confine as confine;
use native_sandbox_protocol::{self as protocol, MAX_PACKET_BYTES, Spawn, ToLauncher, encode_request};
use rustix::{
    cmsg_space,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};
use tokio::{
    sync::{Mutex, Semaphore, mpsc, watch},
    time::timeout,
};

use self::{
    backoff::Backoff,
    connection::{Answer, Connection, Request, Requests},
};
use super::{
    Attend, BoxFuture, Command, Control, Limits, Process, SpawnError, Spawner, Started, TreeState, ends,
};

/// How many processes are being started at once; more wait their turn. Bounds descriptors and requests in flight.
const MAX_STARTING: u32 = 64;

/// How long a start waits for descriptors, and how long it waits between two looks.
const DESCRIPTORS_LIMIT: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// How long the launcher may take to answer before it counts as stuck, and a program to come to life.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Starts processes through the launcher, which it starts with the first of them, in the tokio runtime current then.
///
/// A launcher that dies takes its processes with it ([`ExitStatus::Lost`](super::ExitStatus::Lost)); the next spawn starts
/// a new one. Dropping this and every [`Process`] it gave ends the launcher.
pub struct LauncherSpawner {
    binary: PathBuf,
    patience: Patience,
    starting: Semaphore,
    slot: Mutex<Slot>,
}

/// How long the launcher is waited for, and how often it is looked at.
#[derive(Clone, Copy)]
struct Patience {
    answer_limit: Duration,
    look_interval: Duration,
}

#[derive(Default)]
struct Slot {
    connection: Option<Connection>,
    backoff: Backoff,
    /// Why the last launcher did not start.
    last_failure: Option<String>,
}

impl LauncherSpawner {
    /// `binary` is the absolute path of `native-sandbox-launcher`; where that cannot be run, the copy inside of this library is, if it
    /// has one. Nothing is started yet.
    pub fn new(binary: PathBuf) -> Self {
        Self {
            binary,
            patience: Patience { answer_limit: ANSWER_LIMIT, look_interval: super::LOOK_INTERVAL },
            starting: Semaphore::new(MAX_STARTING as usize),
            slot: Mutex::default(),
        }
    }

    /// Sets how long an answer of the launcher may take (10 s unless set) before it is killed and replaced.
    #[must_use]
    pub fn with_answer_limit(mut self, limit: Duration) -> Self {
        self.patience.answer_limit = limit;
        self
    }

    /// Sets how often to look whether somebody stopped the launcher (250 ms unless set), to have it go on.
    #[must_use]
    pub fn with_look_interval(mut self, interval: Duration) -> Self {
        self.patience.look_interval = interval;
        self
    }

    /// Ends the launcher if nothing runs under it and nothing is being started; whether there is none now. The next
    /// spawn starts a new one. Cancelled, it may have ended it or not.
    pub async fn shutdown(&self) -> bool {
        let Ok(_all) = self.starting.try_acquire_many(MAX_STARTING) else { return false };
        let mut slot = self.slot.lock().await;
        let Some(connection) = &slot.connection else { return true };
        let ended = connection.shutdown().await;
        if ended {
            slot.connection = None;
        }
        ended
    }

    /// The launcher's process id, while there is one.
    pub async fn launcher_pid(&self) -> Option<u32> {
        let slot = self.slot.lock().await;
        slot.connection.as_ref().filter(|connection| connection.is_open()).map(Connection::launcher_pid)
    }

    /// The requests of a living launcher, and the next process's number on it. The number is taken under the lock, so
    /// it belongs to that launcher.
    async fn requests(&self) -> Result<(u64, Requests), SpawnError> {
        let mut slot = self.slot.lock().await;
        if let Some(connection) = slot.connection.take_if(|connection| !connection.is_open()) {
            let (born, died) = connection.life();
            slot.backoff.died(born, died);
        }
        if slot.connection.is_none() {
            let connection = self.connect(&mut slot).await?;
            slot.connection = Some(connection);
        }
        let connection =
            slot.connection.as_mut().ok_or_else(|| self.unavailable("it did not start".into(), true))?;
        Ok((connection.next_id(), connection.requests()))
    }

    async fn connect(&self, slot: &mut Slot) -> Result<Connection, SpawnError> {
        let now = Instant::now();
        if let Some(wait) = slot.backoff.wait(now) {
            let last = slot.last_failure.as_ref().map(|last| format!(" (last: {last})")).unwrap_or_default();
            let wait = wait.as_millis();
            let text = format!("it ended at once several times{last}; the next try is in {wait} ms");
            return Err(self.unavailable(text, true));
        }
        let connection = Connection::open(&self.binary, self.patience).await;
        match &connection {
            Err(SpawnError::LauncherUnavailable { reason, .. }) => {
                slot.backoff.died(now, now);
                slot.last_failure = Some(reason.clone());
            }
            Err(_) => {}
            Ok(_) => slot.last_failure = None,
        }
        connection
    }

    fn unavailable(&self, reason: String, passing: bool) -> SpawnError {
        SpawnError::LauncherUnavailable { path: self.binary.display().to_string(), reason, passing }
    }

    async fn start(&self, command: Command) -> Result<Started, SpawnError> {
        let program = command.program.display().to_string();
        // Behind a keeper it has another number, and what it starts is below that.
        let is_worker =
            command.channel && command.confinement.as_ref().is_none_or(|plan| plan.keepers() == 0);
        let keepers = command.confinement.as_ref().map_or(0, |plan| plan.keepers());
        let group = command.group.clone();
        // Never closed, so this only waits.
        let _turn = self.starting.acquire().await;
        let ends = || Ok((Listener::expected(&command, &program)?, ends::make(command.channel, &program)?));
        let (listener, (host_ends, child_ends)) = with_descriptors(ends).await?;
        let (id, requests) = self.requests().await?;
        let (listener, listener_end) = listener.unzip();
        let (packet, fds) = pack(id, command, child_ends, listener_end, &program)?;
        let (answers, mut answered) = mpsc::channel(connection::MAX_ANSWERS);
        let (state, watched) = watch::channel(TreeState::default());
        let lost = || SpawnError::LauncherLost { program: program.clone() };

        let request = Request::Spawn { id, program: program.clone(), packet, fds, answers, state };
        requests.send(request).map_err(|_| lost())?;
        let control = Arc::new(TreeControl::new(id, requests));
        // From here on, whatever ends this future kills what it started.
        let unborn = KillOnDrop(&control);
        let pid = match timeout(self.patience.answer_limit, answered.recv()).await {
            Ok(Some(Answer::Forked(pid))) => pid,
            Ok(Some(Answer::Failed(error))) => return Err(error),
            Ok(Some(Answer::Started) | None) => return Err(lost()),
            Err(_) => {
                control.send(Request::Stuck);
                return Err(lost());
            }
        };
        // The launcher lives; what is slow now is the program's file or folder.
        match timeout(self.patience.answer_limit, answered.recv()).await {
            Ok(Some(Answer::Started)) => {}
            Ok(Some(Answer::Failed(error))) => return Err(error),
            Ok(Some(Answer::Forked(_)) | None) => return Err(lost()),
            Err(_) => {
                let source = io::Error::from(io::ErrorKind::TimedOut);
                return Err(SpawnError::Step { step: "execve", subject: program, source });
            }
        }
        if let Some(listener) = listener {
            listener.receive(&program)?;
        }
        unborn.defuse();
        let process = Process::new(pid, control, watched).kept_by(keepers).in_group(group);
        let process = if is_worker { process.marked() } else { process };
        host_ends.started(process, &program)
    }
}

impl Spawner for LauncherSpawner {
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
        Box::pin(self.start(command))
    }
}

/// Makes what takes descriptors, after a while where there are none: calls that end give theirs back.
async fn with_descriptors<T>(make: impl Fn() -> Result<T, SpawnError>) -> Result<T, SpawnError> {
    let until = Instant::now() + DESCRIPTORS_LIMIT;
    loop {
        match make() {
            Err(SpawnError::Step { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
                    && Instant::now() < until =>
            {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            ends => return ends,
        }
    }
}

/// The request for a command, and the descriptors that go with it.
fn pack(
    id: u64,
    command: Command,
    ends: ends::ChildEnds,
    listener: Option<OwnedFd>,
    program: &str,
) -> Result<(Vec<u8>, Vec<OwnedFd>), SpawnError> {
    let mut fds = vec![ends.stdout, ends.stderr];
    fds.extend(ends.channel);
    let copied = |given: BorrowedFd<'_>| {
        let copy = given.try_clone_to_owned();
        copy.map_err(|source| SpawnError::Step { step: "dup", subject: program.to_owned(), source })
    };
    if let Some(given) = &command.descriptor_3 {
        fds.push(copied(given.as_fd())?);
    }
    let mut targets = [1, 2, 3][..fds.len()].to_vec();
    if let Some(given) = &command.descriptor_4 {
        fds.push(copied(given.as_fd())?);
        targets.push(4);
    }
    if let Some(listener) = listener {
        fds.push(listener);
        targets.push(confine::LISTENER_FD);
    }
    if let Some(group) = &command.group {
        fds.push(copied(group.procs())?);
    }
    let Limits { open_files, file_size_bytes, cpu_seconds, data_bytes } = command.limits;
    let bytes = OsStringExt::into_vec;
    let confinement = command.confinement.map(|plan| plan.encode()).transpose();
    let confinement = confinement.map_err(|error| SpawnError::Step {
        step: "encode",
        subject: program.to_owned(),
        source: io::Error::other(error),
    })?;
    let request = ToLauncher::Spawn(Spawn {
        id,
        program: bytes(command.program.into_os_string()),
        args: command.args.into_iter().map(bytes).collect(),
        env: command.env.into_iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        cwd: bytes(command.cwd.into_os_string()),
        limits: protocol::Limits { open_files, file_size_bytes, cpu_seconds, data_bytes },
        forks: command.forks,
        confinement,
        trial: command.trial,
        in_group: command.group.is_some(),
        fds: targets,
    });
    match encode_request(&request) {
        Ok(packet) => Ok((packet, fds)),
        Err(protocol::Error::TooLarge { bytes }) => {
            Err(SpawnError::TooLarge { program: program.to_owned(), bytes, limit_bytes: MAX_PACKET_BYTES })
        }
        Err(error) => {
            let source = io::Error::other(error);
            Err(SpawnError::Step { step: "encode", subject: program.to_owned(), source })
        }
    }
}

/// A listener that is to come from a process before it runs its program.
struct Listener {
    socket: UnixDatagram,
    attend: Arc<dyn Attend>,
}

impl Listener {
    /// What is expected of a command, and the end that its process gets.
    fn expected(command: &Command, program: &str) -> Result<Option<(Self, OwnedFd)>, SpawnError> {
        let failed = |source| SpawnError::Step { step: "socketpair", subject: program.to_owned(), source };
        if !command.confinement.as_ref().is_some_and(|plan| plan.listener) {
            return Ok(None);
        }
        let Some(attend) = command.attend.clone() else {
            return Err(failed(io::Error::other("nobody answers what its filter asks")));
        };
        let (socket, end) = UnixDatagram::pair().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Some((Self { socket, attend }, end.into())))
    }

    /// Takes it: it was sent before the program started.
    fn receive(self, program: &str) -> Result<(), SpawnError> {
        let failed =
            |source| SpawnError::Step { step: "seccomp listener", subject: program.to_owned(), source };
        let mut word = [0];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let parts = &mut [IoSliceMut::new(&mut word)];
        recvmsg(&self.socket, parts, &mut ancillary, flags).map_err(|error| failed(error.into()))?;
        let mut received = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let listener =
            received.next().and_then(|mut fds| fds.next()).filter(|_| word == [confine::LISTENER_WORD]);
        let listener = listener.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        self.attend.attend(listener);
        Ok(())
    }
}

/// Signals for one tree. Each waits in the queue of requests at most once, which bounds the queue.
struct TreeControl {
    id: u64,
    requests: Requests,
    killed: AtomicBool,
    terminating: Arc<AtomicBool>,
}

impl TreeControl {
    fn new(id: u64, requests: Requests) -> Self {
        Self { id, requests, killed: AtomicBool::new(false), terminating: Arc::default() }
    }

    fn send(&self, request: Request) {
        // A launcher that is gone has taken the tree along.
        let _ = self.requests.send(request);
    }
}

impl Control for TreeControl {
    fn terminate(&self) {
        if !self.terminating.swap(true, Ordering::AcqRel) {
            self.send(Request::Terminate { id: self.id, waiting: Arc::clone(&self.terminating) });
        }
    }

    fn kill(&self) {
        if !self.killed.swap(true, Ordering::AcqRel) {
            self.send(Request::Kill { id: self.id });
        }
    }
}

/// Kills what was started for a caller that is gone before it had it.
struct KillOnDrop<'a>(&'a Arc<TreeControl>);

impl KillOnDrop<'_> {
    /// The caller has it; its [`Process`] sees to its end.
    fn defuse(self) {
        // Holds nothing but a reference.
        std::mem::forget(self);
    }
}

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}
