//! One running worker from its job to the end of its tree: exactly one thing settles the call, then the tree goes.
//!
//! ```text
//! Running ──settling frame──▶ Lingering ──linger over──▶ Ending ──grace over, or main process dead──▶ Killed
//!    │  └──deadline, cancel, limit, garbage──────────────▲  │                                          │
//!    └──exit──▶ Draining ──settling frame──▶ Lingering      └──────────────────▶ gone ◀────────────────┘
//!                  └──no frame: the exit settles──▶ Killed                        ▼
//!                                                                             Flushing ──▶ report
//! ```

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot, watch,
    },
    time::{Instant, Sleep},
};

use crate::{
    error::{Code, Phase, SandboxError},
    files::{
        collect::{self, Collecting},
        given::Feed,
    },
    group::Counted,
    limits::CallLimits,
    process::{BoxFuture, Duplex, ExitStatus, Process, Shortcut},
    start::Worker,
    talk::{Outgoing, Talk},
    worker::{
        breach::{self, End, Own, Peak},
        outcome::{self, Notes, Outcome},
        output::{Tail, Utf8Stream},
        protocol::{Decoder, Frame, Job, Piece},
    },
};

/// How long what a tool left running may go on after its result, if nobody says otherwise.
pub const DEFAULT_LINGER_MS: u64 = 250;
/// Between SIGTERM and SIGKILL, at least.
pub const MIN_GRACE_MS: u64 = 2_000;
/// Between SIGTERM and SIGKILL, at most.
pub const MAX_GRACE_MS: u64 = 5_000;
/// After the end of a process, for what it wrote last. Only an orphan that holds a pipe makes this wait long.
const DRAIN_MS: u64 = 200;
/// Waits are never longer (a year): clocks and timers overflow on the largest durations.
const MAX_WAIT_MS: u64 = 365 * 24 * 60 * 60 * 1000;
const READ_CHUNK_BYTES: usize = 32 * 1024;
/// What is still read of a dead process when patience ends: more than pipes and socket hold, so that all of it is seen, and
/// no more, so that nobody who got hold of them can go on for ever.
const LEFT_BEHIND_LIMIT_BYTES: usize = 4 * 1024 * 1024;

/// Limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// From the call of [`supervise`] until the function must have settled; of any size.
    pub timeout: Duration,
    /// stdout, stderr and the result's JSON text together.
    pub max_output_bytes: u64,
    /// How long what the function left running may go on after it settled; never beyond the timeout.
    pub linger: Duration,
    /// The other limits, for the errors that tell of them.
    pub call: CallLimits,
}

/// What is known of a run from elsewhere than its process, pipes and channel.
pub struct Aside {
    /// Ends when the call has exceeded a limit that only a look from the side can tell.
    pub exceeded: BoxFuture<'static, SandboxError>,
    /// Whether the kernel has killed some process for want of memory since the run began. Asked after a SIGKILL only.
    pub oom_killed: Box<dyn Fn() -> bool + Send>,
    /// Whether it is the call's own limit, and not the disk's, that there is no room for more of what it writes.
    pub room_is_limited: bool,
    /// What the call's control group has counted, if it has one. Asked where a process ended before its function had settled.
    pub counted: Box<dyn Fn() -> Counted + Send>,
    /// What the call has held so far, at most, with a look now. Asked where the system refused it a process, a thread or memory.
    pub peak: Box<dyn Fn() -> Peak + Send>,
    /// Hears what the function says before its result, and has the frames that go back.
    pub talk: Option<(Arc<Talk>, mpsc::UnboundedReceiver<Outgoing>)>,
    /// Files that follow the job.
    pub feed: Option<Feed>,
    /// Files that are taken when the function has returned.
    pub collecting: Option<Collecting>,
}

impl Aside {
    /// Nothing is known.
    pub fn nothing() -> Self {
        Self {
            exceeded: Box::pin(std::future::pending()),
            oom_killed: Box::new(|| false),
            room_is_limited: false,
            counted: Box::new(Counted::default),
            peak: Box::new(Peak::default),
            talk: None,
            feed: None,
            collecting: None,
        }
    }
}

/// Why a caller gives a call up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// Its `AbortSignal` fired, or it does not wait for the answer any more.
    Aborted,
    /// `cleanup()` ends it: at once, where it runs.
    CleanedUp,
}

impl CancelReason {
    /// The error of a call that was given up in `phase`.
    pub fn error(self, phase: Phase) -> SandboxError {
        match self {
            Self::Aborted => SandboxError::new(Code::Aborted, phase, "Function execution was aborted"),
            Self::CleanedUp => {
                SandboxError::new(Code::CleanedUp, phase, "Function execution was ended by cleanup()")
            }
        }
    }
}

/// A new pair of the one who cancels and what is told of it.
pub fn cancellation() -> (Canceller, Cancel) {
    let (sender, receiver) = watch::channel(None);
    (Canceller(sender), Cancel(receiver))
}

/// Cancels. Dropping it cancels nothing.
#[derive(Debug)]
pub struct Canceller(watch::Sender<Option<CancelReason>>);

impl Canceller {
    /// Cancels once; the first reason counts.
    pub fn cancel(&self, reason: CancelReason) {
        self.0.send_if_modified(|current| current.is_none() && current.replace(reason).is_none());
    }
}

/// Is told of a cancellation. Clones are told of the same one.
#[derive(Debug, Clone)]
pub struct Cancel(watch::Receiver<Option<CancelReason>>);

impl Cancel {
    /// The reason, if it is cancelled already.
    pub fn reason(&self) -> Option<CancelReason> {
        *self.0.borrow()
    }

    /// Waits for the cancellation; for ever if it cannot come any more. Cancel-safe.
    pub async fn cancelled(&mut self) -> CancelReason {
        if let Ok(reason) = self.0.wait_for(Option::is_some).await
            && let Some(reason) = *reason
        {
            return reason;
        }
        std::future::pending().await
    }
}

/// Gets what a worker prints, while it runs, in pieces of whole characters.
pub trait OutputSink: Send {
    /// A piece of stdout.
    fn on_stdout(&mut self, text: &str);
    /// A piece of stderr.
    fn on_stderr(&mut self, text: &str);
}

/// What is known of a run once its tree is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The code of the error that the call was settled with, if it was one.
    pub failure: Option<Code>,
    /// The text of the error, if the function threw it.
    pub thrown: Option<String>,
    /// How the main process ended.
    pub exit: ExitStatus,
    /// stdout, stderr and the result's JSON text together, as far as they were read.
    pub bytes: u64,
    /// See [`crate::process::TreeState::cpu_us`].
    pub cpu_us: u64,
    /// See [`crate::process::TreeState::max_rss_kib`].
    pub max_rss_kib: u64,
    /// The most memory that all processes of the call held together, bytes, where somebody counted.
    pub memory_peak_bytes: Option<u64>,
    /// Whether something was still running at the end of the linger and had to be ended.
    pub lingered: bool,
    /// The last of stdout.
    pub stdout_tail: String,
    /// The last of stderr.
    pub stderr_tail: String,
    /// Whether V8 took the code cache of the job, where it had one and it came to that.
    pub took_cache: Option<bool>,
    /// From the call of [`supervise`] until the answer was known.
    pub settled: Duration,
    /// From the call of [`supervise`] until the tree was gone.
    pub duration: Duration,
}

/// Runs `job` in `worker`: settles once through `settle`, as soon as it is known how, and returns once the tree is gone.
///
/// A dropped receiver of `settle` is an abort. Dropping the future kills the tree.
pub async fn supervise(
    worker: Worker,
    job: Job,
    limits: RunLimits,
    cancel: Cancel,
    settle: oneshot::Sender<Outcome>,
    output: Option<Box<dyn OutputSink>>,
    mut aside: Aside,
) -> RunReport {
    let started = worker.started;
    let talks = aside.talk.is_some();
    let shortcut = started.channel.as_ref().filter(|_| talks).and_then(|channel| channel.shortcut());
    let (channel, writer) = match started.channel.map(tokio::io::split) {
        Some((reader, writer)) => (Some(reader), Some(writer)),
        None => (None, None),
    };
    let talk_and_shortcut = aside.talk.as_ref().map(|(talk, _)| Arc::clone(talk)).zip(shortcut);
    let began = Instant::now();
    let deadline = after(began, limits.timeout);
    let (talk, answers) = aside.talk.take().unzip();
    let mut collecting = aside.collecting.take();
    let frames = Frames {
        feed: aside.feed.take(),
        answers,
        talk_and_shortcut,
        wants: collecting.as_mut().and_then(|collecting| collecting.frames.take()),
    };
    let mut run = Run {
        stage: Stage::Running,
        began,
        deadline,
        timer: Box::pin(tokio::time::sleep_until(deadline)),
        timer_on: true,
        process: started.process,
        exit: None,
        stdout: Input::new(Some(started.stdout)),
        stderr: Input::new(Some(started.stderr)),
        channel: Input::new(channel),
        captured: Captured { bytes: 0, stdout: Captive::default(), stderr: Captive::default(), sink: output },
        decoder: Decoder::new(limits.max_output_bytes)
            .hearing(job.talk.as_ref())
            .collecting(collecting.is_some()),
        talk,
        collecting,
        held: None,
        stalled: None,
        unsent: None,
        collected: Ok(()),
        notes: Notes::default(),
        settle: Some(settle),
        cancel,
        failure: None,
        thrown: None,
        settled: None,
        lingered: false,
        orphans_killed: false,
        aside,
        breach: None,
        limits,
    };
    match job.encode() {
        Ok(bytes) => run.drive(write(writer, bytes, frames)).await,
        Err(error) => {
            let message = format!("Function execution failed: {error}");
            run.give_up(SandboxError::new(Code::InvalidConfig, Phase::Start, message));
            run.drive(std::future::ready(Ok(()))).await;
        }
    }
    run.into_report()
}

/// What follows the job to the worker.
struct Frames {
    feed: Option<Feed>,
    answers: Option<mpsc::UnboundedReceiver<Outgoing>>,
    /// Who may write answers without this writer, once the files are written.
    talk_and_shortcut: Option<(Arc<Talk>, Shortcut)>,
    wants: Option<mpsc::UnboundedReceiver<Vec<u8>>>,
}

/// Writes the job and its files, then the answers to what the function says, while everything else is read: a job can be larger than what
/// a socket holds. An error is that of a file that cannot be read.
async fn write(
    writer: Option<WriteHalf<Box<dyn Duplex>>>,
    job: Vec<u8>,
    Frames { feed, mut answers, talk_and_shortcut, mut wants }: Frames,
) -> Result<(), SandboxError> {
    let Some(mut writer) = writer else { return Ok(()) };
    // A worker that does not take its job ends, or lets its time pass; both are seen elsewhere.
    if writer.write_all(&job).await.is_err() {
        return Ok(());
    }
    drop(job);
    if let Some(feed) = feed {
        feed.write(&mut writer).await?;
    }
    if let Some((talk, shortcut)) = talk_and_shortcut {
        talk.write_by(shortcut);
    }
    loop {
        let written = tokio::select! {
            Some(answer) = received(&mut answers) => writer.write_all(&answer.bytes).await,
            Some(want) = received(&mut wants) => writer.write_all(&want).await,
            else => return Ok(()),
        };
        if written.is_err() {
            return Ok(());
        }
    }
}

async fn received<T>(from: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    match from {
        Some(from) => from.recv().await,
        None => None,
    }
}

/// See the picture above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not settled, the main process lives; the timer is the deadline.
    Running,
    /// Not settled, the main process is dead: what it wrote last is read; the timer is the end of patience.
    Draining,
    /// Settled by the function; the timer is the end of the linger.
    Lingering,
    /// SIGTERM was sent; the timer is the end of the grace.
    Ending,
    /// SIGKILL was sent; no timer.
    Killed,
    /// The tree is gone: what it wrote last is read; the timer is the end of patience.
    Flushing,
    Done,
}

#[derive(Clone, Copy)]
enum Event {
    Cancelled(CancelReason),
    Exceeded,
    Timer,
    Exited(ExitStatus),
    Gone,
    /// Bytes in the chunk of this input; 0 at its end.
    Stdout(usize),
    Stderr(usize),
    Channel(usize),
    JobWritten,
    /// There is room for the piece of a file that waits.
    Room,
    /// All files were handed over, or one could not be.
    Collected,
}

struct Run {
    stage: Stage,
    began: Instant,
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
    timer_on: bool,
    process: Process,
    exit: Option<ExitStatus>,
    stdout: Input<Box<dyn AsyncRead + Send + Unpin>>,
    stderr: Input<Box<dyn AsyncRead + Send + Unpin>>,
    channel: Input<ReadHalf<Box<dyn Duplex>>>,
    captured: Captured,
    decoder: Decoder,
    /// Hears what the function says before its result.
    talk: Option<Arc<Talk>>,
    notes: Notes,
    /// Takes the function's files, until the call is settled.
    collecting: Option<Collecting>,
    /// The result, while files are taken.
    held: Option<Outcome>,
    /// A piece of a file that there is no room for. Until there is, the channel is not read.
    stalled: Option<Piece>,
    /// Why the job could not be sent whole.
    unsent: Option<SandboxError>,
    /// What came of taking files.
    collected: Result<(), SandboxError>,
    /// Taken by what settles the call.
    settle: Option<oneshot::Sender<Outcome>>,
    cancel: Cancel,
    failure: Option<Code>,
    thrown: Option<String>,
    settled: Option<Instant>,
    lingered: bool,
    /// Whether what a dead main process left was killed while its pipes are read.
    orphans_killed: bool,
    aside: Aside,
    /// What the look from the side found; nothing is looked for any more then.
    breach: Option<SandboxError>,
    limits: RunLimits,
}

impl Run {
    async fn drive(&mut self, writing: impl Future<Output = Result<(), SandboxError>>) {
        let mut writing = pin!(writing);
        let mut written = false;
        while self.stage != Stage::Done {
            match self.next(writing.as_mut(), written).await {
                event @ Event::JobWritten => {
                    written = true;
                    self.on(event);
                }
                event @ Event::Channel(_) => {
                    self.catch_up().await;
                    self.on(event);
                }
                Event::Timer if matches!(self.stage, Stage::Draining | Stage::Flushing) => {
                    self.lose_patience().await;
                }
                event => self.on(event),
            }
        }
    }

    /// In this order, so that no flood holds up the deadline, and output that was written before a result counts before it.
    async fn next(
        &mut self,
        writing: Pin<&mut impl Future<Output = Result<(), SandboxError>>>,
        written: bool,
    ) -> Event {
        let stage = self.stage;
        let Self { timer, process, exit, stdout, stderr, channel, settle, cancel, aside, breach, .. } = self;
        let Self { collecting, held, stalled, unsent, collected, .. } = self;
        tokio::select! {
            biased;
            reason = cancel.cancelled(), if matches!(stage, Stage::Running | Stage::Lingering) => Event::Cancelled(reason),
            () = receiver_dropped(settle), if stage == Stage::Running => Event::Cancelled(CancelReason::Aborted),
            error = aside.exceeded.as_mut(), if matches!(stage, Stage::Running | Stage::Lingering) && breach.is_none() => {
                *breach = Some(error);
                Event::Exceeded
            }
            () = timer.as_mut(), if self.timer_on => Event::Timer,
            event = process_event(process, stage, exit.is_some()) => event,
            count = stdout.read() => Event::Stdout(count),
            count = stderr.read() => Event::Stderr(count),
            result = collects(collecting, stalled.is_some()), if held.is_some() => match result {
                Some(result) => {
                    *collected = result;
                    Event::Collected
                }
                None => Event::Room,
            },
            count = channel.read(), if stalled.is_none() => Event::Channel(count),
            result = writing, if !written => {
                *unsent = result.err();
                Event::JobWritten
            }
        }
    }

    /// Takes in the output that is there already: what was written before a result counts before it. The system tells
    /// of it first, but [`Self::next`] may have looked at the pipes just before that.
    async fn catch_up(&mut self) {
        while self.settle.is_some()
            && let Some(event) = self.at_hand(false).await
        {
            self.on(event);
        }
    }

    /// The end of reading what a dead process wrote. What is there already is taken in first: on a busy machine the end of
    /// patience can be noticed before it, and it may be the result.
    async fn lose_patience(&mut self) {
        let stage = self.stage;
        let mut left_bytes = LEFT_BEHIND_LIMIT_BYTES;
        while self.stage == stage
            && left_bytes > 0
            && let Some(event) = self.at_hand(true).await
        {
            if let Event::Stdout(count) | Event::Stderr(count) | Event::Channel(count) = event {
                left_bytes = left_bytes.saturating_sub(count);
            }
            self.on(event);
        }
        if self.stage == stage {
            self.on(Event::Timer);
        }
    }

    /// A piece of output, or of the channel too, that needs no waiting for.
    async fn at_hand(&mut self, with_channel: bool) -> Option<Event> {
        let Self { stdout, stderr, channel, stalled, .. } = self;
        // Without tokio's budget, under which a pipe may pretend to be empty.
        tokio::task::unconstrained(async {
            tokio::select! {
                biased;
                count = stdout.read() => Some(Event::Stdout(count)),
                count = stderr.read() => Some(Event::Stderr(count)),
                count = channel.read(), if with_channel && stalled.is_none() => Some(Event::Channel(count)),
                () = std::future::ready(()) => None,
            }
        })
        .await
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Cancelled(reason) => {
                if self.stage == Stage::Running {
                    self.settle(Err(reason.error(Phase::Run)));
                }
                match reason {
                    CancelReason::Aborted => self.end(self.grace()),
                    // It had all the time there was.
                    CancelReason::CleanedUp => self.kill(),
                }
            }
            Event::Exceeded => {
                // At once: what exceeds such a limit goes on doing so for as long as it is let.
                if let Some(error) = self.breach.clone() {
                    self.settle(Err(error));
                }
                self.kill();
            }
            Event::Timer => self.on_timer(),
            Event::Exited(status) => self.on_exit(status),
            Event::Gone => self.enter_reading(Stage::Flushing),
            Event::Stdout(count) => {
                self.captured.stdout(&self.stdout.chunk[..count], self.limits.max_output_bytes);
                self.check_output();
            }
            Event::Stderr(count) => {
                self.captured.stderr(&self.stderr.chunk[..count], self.limits.max_output_bytes);
                self.check_output();
            }
            Event::Channel(count) => self.on_channel(count),
            Event::JobWritten => {
                if let Some(error) = self.unsent.take().filter(|_| self.settle.is_some()) {
                    self.give_up(error);
                }
            }
            Event::Room => {
                if let Some(piece) = self.stalled.take() {
                    self.take_piece(piece);
                }
                self.take_frames();
            }
            Event::Collected => self.on_collected(),
        }
        self.check_ends();
    }

    fn on_timer(&mut self) {
        self.timer_on = false;
        match self.stage {
            Stage::Running => {
                let error = outcome::timed_out(self.limits.timeout);
                self.give_up(if self.held.is_some() { outcome::while_collecting(error) } else { error });
            }
            Stage::Draining => self.settle_by_exit(),
            Stage::Lingering => {
                self.lingered = true;
                self.end(Duration::from_millis(MIN_GRACE_MS));
            }
            Stage::Ending => self.kill(),
            Stage::Flushing => self.stage = Stage::Done,
            Stage::Killed | Stage::Done => {}
        }
    }

    fn on_exit(&mut self, status: ExitStatus) {
        self.exit = Some(status);
        match self.stage {
            // Its last frame may still be in the socket.
            Stage::Running => self.enter_reading(Stage::Draining),
            Stage::Ending => self.kill(),
            _ => {}
        }
    }

    fn on_channel(&mut self, count: usize) {
        // Once settled, the channel is only kept from filling up.
        if self.settle.is_some() {
            self.decoder.push(&self.channel.chunk[..count]);
            self.take_frames();
        }
    }

    fn take_frames(&mut self) {
        while self.settle.is_some() && self.stalled.is_none() {
            match self.decoder.next_frame() {
                Ok(Some(Frame::Collected(piece))) => self.take_piece(piece),
                Ok(Some(Frame::Said(said))) => {
                    let heard = self.talk.as_ref().map_or(Ok(()), |talk| talk.hear(said));
                    if let Err(error) = heard {
                        self.give_up(error);
                    }
                }
                Ok(Some(frame)) => {
                    if let Some(outcome) = self.notes.take(frame, self.limits.max_output_bytes) {
                        self.settle_by_frame(outcome);
                    }
                }
                Ok(None) => return,
                Err(violation) => self.give_up(outcome::channel_broken(&violation)),
            }
        }
    }

    /// Hands on a piece of the function's files, or keeps it until there is room.
    fn take_piece(&mut self, piece: Piece) {
        let sent = match self.collecting.as_ref().filter(|_| self.held.is_some()) {
            Some(collecting) => collecting.pieces.try_send(piece),
            None => return self.give_up(collect::broken("files before its result")),
        };
        if let Err(TrySendError::Full(piece)) = sent {
            self.stalled = Some(piece);
        }
    }

    fn on_collected(&mut self) {
        let Some(outcome) = self.held.take() else { return };
        match std::mem::replace(&mut self.collected, Ok(())) {
            Ok(()) => self.conclude(outcome),
            Err(error) => self.give_up(error),
        }
    }

    fn settle_by_frame(&mut self, outcome: Outcome) {
        // The first one counts, also while files are taken.
        if self.held.is_some() {
            return;
        }
        if let Ok(Some(json)) = &outcome {
            self.captured.bytes = self.captured.bytes.saturating_add(json.len() as u64);
            if self.captured.bytes > self.limits.max_output_bytes {
                return self.give_up(outcome::output_limit(Phase::Result, self.limits.max_output_bytes));
            }
        }
        if self.collecting.is_some() && outcome.is_ok() {
            if let Some(talk) = &self.talk {
                talk.close();
            }
            self.held = Some(outcome);
            return;
        }
        self.conclude(outcome);
    }

    /// The function settled, and its files are taken.
    fn conclude(&mut self, outcome: Outcome) {
        self.settle(outcome);
        let until = after(Instant::now(), self.limits.linger).min(self.deadline);
        self.enter(Stage::Lingering, until);
    }

    fn settle_by_exit(&mut self) {
        let exit = self.exit.unwrap_or(ExitStatus::Lost);
        let end = End {
            exit,
            cpu_us: self.process.state().cpu_us,
            oom_killed: matches!(exit, ExitStatus::Signal(_)) && (self.aside.oom_killed)(),
            counted: (self.aside.counted)(),
            in_memory: self.aside.room_is_limited,
        };
        let error = self.notes.ended(end, &self.captured.stderr.tail.text(), &self.limits.call);
        self.settle(Err(if self.held.is_some() { outcome::while_collecting(error) } else { error }));
        self.kill();
    }

    fn check_output(&mut self) {
        let max_output_bytes = self.limits.max_output_bytes;
        if self.settle.is_some() && self.captured.bytes > max_output_bytes {
            self.give_up(outcome::output_limit(Phase::Run, max_output_bytes));
        }
    }

    /// The ends of inputs matter once the main process is dead.
    fn check_ends(&mut self) {
        let pipes_ended = self.stdout.ended() && self.stderr.ended();
        match self.stage {
            Stage::Draining if self.channel.ended() && pipes_ended => self.settle_by_exit(),
            // No result can come any more: whoever still holds the pipes is of no use.
            Stage::Draining if self.channel.ended() && !self.orphans_killed => {
                self.orphans_killed = true;
                self.process.kill();
            }
            Stage::Flushing if pipes_ended => self.stage = Stage::Done,
            _ => {}
        }
    }

    /// Answers with `error` and ends the worker.
    fn give_up(&mut self, error: SandboxError) {
        self.settle(Err(error));
        self.end(self.grace());
    }

    fn settle(&mut self, outcome: Outcome) {
        let Some(settle) = self.settle.take() else { return };
        self.settled = Some(Instant::now());
        // Where they were not all taken, none is left.
        (self.collecting, self.held, self.stalled) = (None, None, None);
        if let Some(talk) = &self.talk {
            talk.close();
        }
        let own = Own {
            limits: &self.limits.call,
            room_is_limited: self.aside.room_is_limited,
            counted: &self.aside.counted,
            peak: &self.aside.peak,
        };
        let outcome = outcome.map_err(|error| breach::of_thrown(error, &own));
        if let Err(error) = &outcome {
            self.failure = Some(error.code);
            self.thrown = (error.code == Code::ToolError).then(|| error.message.clone());
        }
        // What is left of the call needs no worker kept ready.
        self.process.release();
        let outcome = outcome.map_err(|error| SandboxError {
            stdout: Some(self.captured.stdout.tail.text()),
            stderr: Some(self.captured.stderr.tail.text()),
            ..error
        });
        // A caller that went away needs no answer.
        let _ = settle.send(outcome);
    }

    /// SIGTERM, and SIGKILL after `grace`; at once if the main process is dead, for only it may have something to tidy up.
    fn end(&mut self, grace: Duration) {
        if self.exit.is_some() {
            return self.kill();
        }
        self.process.terminate();
        self.enter(Stage::Ending, after(Instant::now(), grace));
    }

    fn kill(&mut self) {
        self.process.kill();
        self.stage = Stage::Killed;
        self.timer_on = false;
    }

    fn enter(&mut self, stage: Stage, until: Instant) {
        self.stage = stage;
        self.timer.as_mut().reset(until);
        self.timer_on = true;
    }

    /// A stage in which only what was written already is read.
    fn enter_reading(&mut self, stage: Stage) {
        self.enter(stage, after(Instant::now(), Duration::from_millis(DRAIN_MS)));
    }

    fn grace(&self) -> Duration {
        let (least, most) = (Duration::from_millis(MIN_GRACE_MS), Duration::from_millis(MAX_GRACE_MS));
        (self.limits.timeout / 10).clamp(least, most)
    }

    fn into_report(self) -> RunReport {
        let state = self.process.state();
        RunReport {
            failure: self.failure,
            thrown: self.thrown,
            exit: state.exit.or(self.exit).unwrap_or(ExitStatus::Lost),
            bytes: self.captured.bytes,
            cpu_us: state.cpu_us,
            max_rss_kib: state.max_rss_kib,
            memory_peak_bytes: None,
            lingered: self.lingered,
            took_cache: self.notes.took_cache(),
            stdout_tail: self.captured.stdout.tail.text(),
            stderr_tail: self.captured.stderr.tail.text(),
            settled: self.settled.map_or_else(|| self.began.elapsed(), |at| at - self.began),
            duration: self.began.elapsed(),
        }
    }
}

/// The next thing to know of the process in this stage.
async fn process_event(process: &mut Process, stage: Stage, exit_known: bool) -> Event {
    match stage {
        Stage::Draining | Stage::Flushing | Stage::Done => std::future::pending().await,
        Stage::Running | Stage::Lingering | Stage::Ending if !exit_known => {
            Event::Exited(process.exited().await)
        }
        _ => {
            process.gone().await;
            Event::Gone
        }
    }
}

/// What came of taking files; nothing where a piece is stalled and there is room for it now. Cancel-safe.
async fn collects(collecting: &mut Option<Collecting>, is_stalled: bool) -> Option<Result<(), SandboxError>> {
    let Some(Collecting { pieces, done, .. }) = collecting else { return std::future::pending().await };
    tokio::select! {
        biased;
        result = done.as_mut() => Some(result),
        // Whether there is room, or nobody to take it, the next attempt shows.
        _ = pieces.reserve(), if is_stalled => None,
    }
}

async fn receiver_dropped(settle: &mut Option<oneshot::Sender<Outcome>>) {
    match settle {
        Some(settle) => settle.closed().await,
        None => std::future::pending().await,
    }
}

/// `wait` after `now`, as far as clocks reach.
fn after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(Duration::from_millis(MAX_WAIT_MS))
}

/// One stream from the worker, read in chunks until its end.
struct Input<R> {
    from: Option<R>,
    chunk: Box<[u8]>,
}

impl<R: AsyncRead + Unpin> Input<R> {
    fn new(from: Option<R>) -> Self {
        Self { from, chunk: vec![0; READ_CHUNK_BYTES].into_boxed_slice() }
    }

    /// Reads into `chunk`; 0 at the end, or on an error, which ends a pipe as well; never again after that. Cancel-safe.
    async fn read(&mut self) -> usize {
        let Some(from) = &mut self.from else { return std::future::pending().await };
        let count = from.read(&mut self.chunk).await.unwrap_or(0);
        if count == 0 {
            self.from = None;
        }
        count
    }

    fn ended(&self) -> bool {
        self.from.is_none()
    }
}

/// What the worker printed.
struct Captured {
    /// stdout, stderr and the result together.
    bytes: u64,
    stdout: Captive,
    stderr: Captive,
    sink: Option<Box<dyn OutputSink>>,
}

#[derive(Default)]
struct Captive {
    tail: Tail,
    text: Utf8Stream,
}

impl Captive {
    /// Adds a chunk, empty at the end of the stream; gives the text that is whole now.
    fn take(&mut self, chunk: &[u8]) -> String {
        self.tail.push(chunk);
        if chunk.is_empty() { self.text.finish() } else { self.text.push(chunk) }
    }
}

impl Captured {
    fn stdout(&mut self, chunk: &[u8], max_output_bytes: u64) {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        let text = self.stdout.take(chunk);
        if let Some(sink) = self.sink.as_mut().filter(|_| !text.is_empty() && self.bytes <= max_output_bytes)
        {
            sink.on_stdout(&text);
        }
    }

    fn stderr(&mut self, chunk: &[u8], max_output_bytes: u64) {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        let text = self.stderr.take(chunk);
        if let Some(sink) = self.sink.as_mut().filter(|_| !text.is_empty() && self.bytes <= max_output_bytes)
        {
            sink.on_stderr(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use tokio::{
        io::DuplexStream,
        sync::mpsc,
        task::JoinHandle,
        time::{advance, sleep},
    };

    use super::*;
    use crate::{
        files::collect::{Chunk, Collect, Hand, Wanted},
        process::{Control, Started, TreeState},
        source::Kind,
        start::Rung,
    };

    const SIGKILL: i32 = 9;
    const PIPE_BYTES: usize = 64 * 1024;
    const LIMITS: RunLimits = RunLimits {
        timeout: Duration::from_secs(30),
        max_output_bytes: 1000,
        linger: Duration::from_millis(250),
        call: CallLimits { memory_mb: 64, ..CallLimits::DEFAULT },
    };

    #[derive(Debug, PartialEq, Eq)]
    enum Act {
        Terminate,
        Kill,
    }

    struct Recorder(mpsc::UnboundedSender<(Act, Instant)>);

    impl Control for Recorder {
        fn terminate(&self) {
            let _ = self.0.send((Act::Terminate, Instant::now()));
        }
        fn kill(&self) {
            let _ = self.0.send((Act::Kill, Instant::now()));
        }
    }

    /// The worker's side of a supervised run, played by the test.
    struct Fake {
        began: Instant,
        state: watch::Sender<TreeState>,
        acts: mpsc::UnboundedReceiver<(Act, Instant)>,
        stdout: Option<DuplexStream>,
        stderr: Option<DuplexStream>,
        channel: Option<DuplexStream>,
        canceller: Canceller,
        outcome: Option<oneshot::Receiver<Outcome>>,
        printed: Arc<Mutex<String>>,
        run: JoinHandle<RunReport>,
    }

    struct Printed(Arc<Mutex<String>>);

    impl OutputSink for Printed {
        fn on_stdout(&mut self, text: &str) {
            self.0.lock().unwrap().push_str(text);
        }
        fn on_stderr(&mut self, text: &str) {
            self.0.lock().unwrap().push_str(&text.to_uppercase());
        }
    }

    fn job(args: Option<String>) -> Job {
        Job {
            kind: Kind::Script,
            filename: "/r/tool.js".into(),
            tool_id: "t".to_owned(),
            cwd: "/r".into(),
            tmpdir: "/r".into(),
            tree: "/t".into(),
            env: BTreeMap::new(),
            line_offset: 0,
            column_offset: 0,
            source_map: None,
            max_result_bytes: 1000,
            compile_cache: None,
            compiles_only: false,
            talk: None,
            files: 0,
            collect: None,
            code_cache: None,
            code: "return () => 1".to_owned(),
            args,
        }
    }

    fn start(limits: RunLimits) -> Fake {
        start_with(limits, job(None))
    }

    fn start_with(limits: RunLimits, job: Job) -> Fake {
        start_beside(limits, job, Aside::nothing())
    }

    fn start_beside(limits: RunLimits, job: Job, aside: Aside) -> Fake {
        let (acts_in, acts) = mpsc::unbounded_channel();
        let (state, receiver) = watch::channel(TreeState::default());
        let (stdout, host_stdout) = tokio::io::duplex(PIPE_BYTES);
        let (stderr, host_stderr) = tokio::io::duplex(PIPE_BYTES);
        let (channel, host_channel) = tokio::io::duplex(PIPE_BYTES);
        let worker = Worker {
            rung: Rung::Spawn,
            run: None,
            started: Started {
                process: Process::new(1, Arc::new(Recorder(acts_in)), receiver),
                stdout: Box::new(host_stdout),
                stderr: Box::new(host_stderr),
                channel: Some(Box::new(host_channel)),
            },
            shares_root: false,
        };
        let (canceller, cancel) = cancellation();
        let (settle, outcome) = oneshot::channel();
        let printed = Arc::new(Mutex::new(String::new()));
        let sink: Box<dyn OutputSink> = Box::new(Printed(Arc::clone(&printed)));
        let run = tokio::spawn(supervise(worker, job, limits, cancel, settle, Some(sink), aside));
        Fake {
            began: Instant::now(),
            state,
            acts,
            stdout: Some(stdout),
            stderr: Some(stderr),
            channel: Some(channel),
            canceller,
            outcome: Some(outcome),
            printed,
            run,
        }
    }

    impl Fake {
        async fn send(&mut self, kind: u8, payload: &str) {
            let mut frame = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
            frame.push(kind);
            frame.extend_from_slice(payload.as_bytes());
            self.channel.as_mut().unwrap().write_all(&frame).await.unwrap();
        }

        async fn started(&mut self) {
            self.send(16, "").await;
            self.send(17, "").await;
        }

        async fn returned(&mut self, json: &str) {
            self.started().await;
            self.send(18, json).await;
        }

        async fn print(&mut self, text: &str) {
            self.stdout.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
        }

        async fn complain(&mut self, text: &str) {
            self.stderr.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
        }

        /// The main process dies; with `leftovers`, something of the tree still holds the pipes.
        fn exit(&mut self, exit: ExitStatus, leftovers: bool) {
            self.channel = None;
            if !leftovers {
                self.stdout = None;
                self.stderr = None;
            }
            self.state.send_modify(|state| {
                *state = TreeState { exit: Some(exit), gone: !leftovers, cpu_us: 7, max_rss_kib: 8 };
            });
        }

        fn gone(&mut self) {
            self.stdout = None;
            self.stderr = None;
            self.channel = None;
            self.state.send_modify(|state| {
                state.exit.get_or_insert(ExitStatus::Signal(SIGKILL));
                state.gone = true;
            });
        }

        async fn outcome(&mut self) -> Outcome {
            self.outcome.take().unwrap().await.unwrap()
        }

        /// The error, its code as text, and when it came.
        async fn error(&mut self) -> (SandboxError, Duration) {
            let error = self.outcome().await.unwrap_err();
            (error, self.began.elapsed())
        }

        async fn act(&mut self) -> (Act, Duration) {
            let (act, at) = self.acts.recv().await.unwrap();
            (act, at - self.began)
        }

        /// The report; nothing else may have been done to the process.
        async fn report(mut self) -> RunReport {
            let report = self.run.await.unwrap();
            assert_eq!(self.acts.try_recv().ok(), None, "done to the process at last");
            report
        }
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_then_an_exit_needs_no_force() {
        let mut fake = start(LIMITS);
        fake.print("a値").await;
        fake.complain("b").await;
        fake.returned("[1]").await;
        assert_eq!(fake.outcome().await, Ok(Some("[1]".to_owned())));
        fake.exit(ExitStatus::Code(0), false);
        let printed = Arc::clone(&fake.printed);
        let report = fake.report().await;
        let expected = RunReport {
            failure: None,
            thrown: None,
            exit: ExitStatus::Code(0),
            bytes: 8,
            cpu_us: 7,
            max_rss_kib: 8,
            memory_peak_bytes: None,
            lingered: false,
            took_cache: Some(true),
            stdout_tail: "a値".to_owned(),
            stderr_tail: "b".to_owned(),
            settled: Duration::ZERO,
            duration: Duration::ZERO,
        };
        assert_eq!(report, expected);
        assert_eq!(*printed.lock().unwrap(), "a値B");
    }

    #[tokio::test(start_paused = true)]
    async fn undefined_is_a_result() {
        let mut fake = start(LIMITS);
        fake.returned("").await;
        assert_eq!(fake.outcome().await, Ok(None));
        fake.exit(ExitStatus::Code(0), false);
        assert!(!fake.report().await.lingered);
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_on_after_the_result_lingers_then_ends() {
        let mut fake = start(LIMITS);
        sleep(ms(100)).await;
        fake.returned("1").await;
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        assert_eq!(fake.act().await, (Act::Terminate, ms(350)));
        assert_eq!(fake.act().await, (Act::Kill, ms(350 + MIN_GRACE_MS)));
        fake.gone();
        assert!(fake.report().await.lingered);
    }

    #[tokio::test(start_paused = true)]
    async fn the_linger_ends_with_the_timeout() {
        let mut fake = start(RunLimits { timeout: ms(1000), linger: Duration::MAX, ..LIMITS });
        sleep(ms(900)).await;
        fake.returned("1").await;
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        assert_eq!(fake.act().await, (Act::Terminate, ms(1000)));
        fake.exit(ExitStatus::Code(0), false);
        assert_eq!(fake.act().await.0, Act::Kill);
        assert!(fake.report().await.lingered);
    }

    #[tokio::test(start_paused = true)]
    async fn leftovers_of_a_dead_worker_linger_then_are_killed() {
        let mut fake = start(LIMITS);
        fake.returned("1").await;
        fake.outcome().await.unwrap();
        fake.exit(ExitStatus::Code(0), true);
        assert_eq!(fake.act().await, (Act::Kill, ms(250)));
        fake.gone();
        let report = fake.report().await;
        assert_eq!((report.exit, report.lingered), (ExitStatus::Code(0), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_races_with_the_exit_counts() {
        let mut fake = start(LIMITS);
        fake.returned("1").await;
        fake.exit(ExitStatus::Signal(SIGKILL), true);
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        assert_eq!(fake.act().await, (Act::Kill, ms(250)));
        fake.gone();
        assert!(fake.report().await.lingered);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_settling_frame_counts() {
        let mut fake = start(LIMITS);
        fake.returned("1").await;
        fake.send(18, "2").await;
        fake.send(99, "no frame").await;
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        fake.exit(ExitStatus::Code(0), false);
        assert_eq!(fake.report().await.bytes, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_answers_then_terminates_then_kills() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.print("so far").await;
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::Timeout, ms(30_000)));
        assert_eq!(error.message, "Function execution timed out after 30000ms");
        assert_eq!((error.stdout.as_deref(), error.stderr.as_deref()), (Some("so far"), Some("")));
        assert_eq!(fake.act().await, (Act::Terminate, ms(30_000)));
        assert_eq!(fake.act().await, (Act::Kill, ms(33_000)));
        fake.gone();
        let report = fake.report().await;
        assert_eq!((report.exit, report.lingered), (ExitStatus::Signal(SIGKILL), false));
        assert_eq!(report.duration, ms(33_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_seen_from_the_side_answers_and_kills_at_once() {
        let (tell, told) = oneshot::channel();
        let aside = Aside { exceeded: Box::pin(async { told.await.unwrap() }), ..Aside::nothing() };
        let mut fake = start_beside(LIMITS, job(None), aside);
        fake.started().await;
        sleep(ms(70)).await;
        tell.send(breach::of_processes(200, &LIMITS.call)).unwrap();
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::ProcessLimit, ms(70)));
        assert_eq!(fake.act().await, (Act::Kill, ms(70)));
        fake.gone();
        assert_eq!(fake.report().await.failure, Some(Code::ProcessLimit));
    }

    #[tokio::test(start_paused = true)]
    async fn what_lingers_is_held_to_its_limits() {
        let (tell, told) = oneshot::channel();
        let aside = Aside { exceeded: Box::pin(async { told.await.unwrap() }), ..Aside::nothing() };
        let mut fake = start_beside(RunLimits { linger: ms(10_000), ..LIMITS }, job(None), aside);
        fake.returned("1").await;
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        sleep(ms(70)).await;
        tell.send(breach::of_files(1)).unwrap();
        assert_eq!(fake.act().await, (Act::Kill, ms(70)));
        fake.gone();
        assert_eq!(fake.report().await.failure, None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_control_group_has_counted_tells_why_a_process_ended() {
        let (killed, aborted) = (ExitStatus::Signal(SIGKILL), ExitStatus::Signal(libc::SIGABRT));
        let nothing = Counted::default();
        for (exit, counted, code) in [
            (killed, Counted { out_of_memory: true, ..nothing }, Code::MemoryLimit),
            (aborted, Counted { tasks_refused: true, ..nothing }, Code::ProcessLimit),
            (killed, nothing, Code::Killed),
        ] {
            let aside = Aside { counted: Box::new(move || counted), ..Aside::nothing() };
            let mut fake = start_beside(LIMITS, job(None), aside);
            fake.started().await;
            fake.exit(exit, false);
            assert_eq!(fake.error().await.0.code, code);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_for_want_of_memory_is_told_from_any_other() {
        for (oom_killed, code) in [(true, Code::MemoryLimit), (false, Code::Killed)] {
            let aside = Aside { oom_killed: Box::new(move || oom_killed), ..Aside::nothing() };
            let mut fake = start_beside(LIMITS, job(None), aside);
            fake.started().await;
            fake.exit(ExitStatus::Signal(SIGKILL), false);
            assert_eq!(fake.error().await.0.code, code);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_is_a_tenth_of_the_timeout_within_bounds() {
        for (timeout, grace) in [(100, 2000), (40_000, 4000), (900_000, 5000)] {
            let mut fake = start(RunLimits { timeout: ms(timeout), ..LIMITS });
            assert_eq!(fake.act().await, (Act::Terminate, ms(timeout)));
            assert_eq!(fake.act().await, (Act::Kill, ms(timeout + grace)));
            fake.gone();
            fake.report().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn once_the_main_process_is_dead_the_rest_is_killed_at_once() {
        let mut fake = start(LIMITS);
        assert_eq!(fake.act().await.0, Act::Terminate);
        sleep(ms(10)).await;
        fake.exit(ExitStatus::Signal(15), true);
        assert_eq!(fake.act().await, (Act::Kill, ms(30_010)));
        fake.gone();
        assert_eq!(fake.report().await.exit, ExitStatus::Signal(15));
    }

    #[tokio::test(start_paused = true)]
    async fn timeouts_of_any_size_do_not_wrap() {
        for timeout in [ms(2_147_484_648), Duration::from_secs_f64(1e15), Duration::MAX] {
            let mut fake = start(RunLimits { timeout, linger: Duration::MAX, ..LIMITS });
            fake.started().await;
            sleep(ms(2_147_483_000)).await;
            fake.send(18, "1").await;
            assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
            fake.exit(ExitStatus::Code(0), false);
            assert!(!fake.report().await.lingered);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_says_why() {
        for (reason, code) in
            [(CancelReason::Aborted, Code::Aborted), (CancelReason::CleanedUp, Code::CleanedUp)]
        {
            let mut fake = start(LIMITS);
            fake.started().await;
            sleep(ms(5)).await;
            fake.canceller.cancel(reason);
            fake.canceller.cancel(CancelReason::Aborted);
            let (error, at) = fake.error().await;
            assert_eq!((error.code, error.phase, at), (code, Phase::Run, ms(5)));
            if reason == CancelReason::Aborted {
                assert_eq!(fake.act().await, (Act::Terminate, ms(5)));
                assert_eq!(fake.act().await, (Act::Kill, ms(3005)));
            } else {
                assert_eq!(fake.act().await, (Act::Kill, ms(5)), "a cleanup has waited already");
            }
            fake.gone();
            assert_eq!(fake.report().await.settled, ms(5));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancellation_cuts_the_linger_short() {
        let mut fake = start(LIMITS);
        fake.returned("1").await;
        fake.outcome().await.unwrap();
        fake.canceller.cancel(CancelReason::Aborted);
        assert_eq!(fake.act().await, (Act::Terminate, Duration::ZERO));
        fake.exit(ExitStatus::Signal(15), false);
        assert_eq!(fake.act().await.0, Act::Kill);
        assert!(!fake.report().await.lingered);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_canceller_cancels_nothing() {
        let (canceller, mut cancel) = cancellation();
        assert_eq!(cancel.reason(), None);
        drop(canceller);
        assert!(tokio::time::timeout(ms(1000), cancel.cancelled()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_went_away_is_an_abort() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.outcome = None;
        assert_eq!(fake.act().await, (Act::Terminate, Duration::ZERO));
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.gone();
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_run_kills() {
        let mut fake = start(LIMITS);
        fake.started().await;
        advance(ms(1)).await;
        fake.run.abort();
        assert_eq!(fake.act().await.0, Act::Kill);
    }

    /// In real time: a paused clock stands still while there is something to do.
    #[tokio::test]
    async fn a_flood_after_the_end_is_cut_off() {
        let mut fake = start(RunLimits { max_output_bytes: u64::MAX, ..LIMITS });
        fake.returned("1").await;
        assert!(fake.outcome().await.is_ok());
        let mut pipe = fake.stdout.take().unwrap();
        fake.gone();
        let flood = tokio::spawn(async move {
            let chunk = vec![b'x'; PIPE_BYTES];
            while pipe.write_all(&chunk).await.is_ok() {}
        });
        fake.report().await;
        flood.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_refused_and_read_until_it_ends() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.complain(&"e".repeat(600)).await;
        fake.print(&"o".repeat(400)).await;
        advance(ms(1)).await;
        fake.print("o").await;
        let (error, _) = fake.error().await;
        assert_eq!((error.code, error.phase), (Code::OutputLimit, Phase::Run));
        assert_eq!(error.message, "Output size exceeded limit of 1000 bytes");
        assert_eq!(error.stdout.map(|tail| tail.len()), Some(401));
        assert_eq!(fake.act().await.0, Act::Terminate);
        // More than the pipe holds: it is read on, but kept nowhere.
        fake.print(&"o".repeat(4 * PIPE_BYTES)).await;
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.print(&"p".repeat(4 * PIPE_BYTES)).await;
        assert_eq!(fake.printed.lock().unwrap().len(), 1000);
        fake.gone();
        let report = fake.report().await;
        assert_eq!(report.stdout_tail, "p".repeat(8 * 1024));
        assert_eq!(report.bytes, 1001 + 8 * PIPE_BYTES as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn output_before_the_result_counts_with_it() {
        let mut fake = start(LIMITS);
        fake.print(&"o".repeat(990)).await;
        fake.returned("\"123456789\"").await;
        let (error, _) = fake.error().await;
        assert_eq!((error.code, error.phase), (Code::OutputLimit, Phase::Result));
        assert_eq!(fake.act().await.0, Act::Terminate);
        fake.exit(ExitStatus::Code(0), false);
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn output_up_to_the_limit_is_fine() {
        let mut fake = start(LIMITS);
        fake.print(&"o".repeat(989)).await;
        fake.returned("\"123456789\"").await;
        assert!(fake.outcome().await.is_ok());
        // Too much after the answer spoils nothing.
        fake.print(&"o".repeat(5000)).await;
        fake.exit(ExitStatus::Code(0), false);
        assert_eq!(fake.report().await.bytes, 6000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_over_the_limit_is_refused() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.send(21, r#"{"bytes":1001}"#).await;
        assert_eq!(fake.error().await.0.message, "Output size exceeded limit of 1000 bytes");
        fake.exit(ExitStatus::Code(0), false);
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_throw_settles_with_the_output_so_far() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.complain("careful").await;
        fake.send(19, r#"{"text":"Error: boom","name":"Error","message":"boom"}"#).await;
        let (error, _) = fake.error().await;
        assert_eq!((error.code, error.phase), (Code::ToolError, Phase::Run));
        assert_eq!(error.message, "Function execution failed with code 1: Error: boom");
        assert_eq!(error.stderr.as_deref(), Some("careful"));
        assert_eq!(
            error.cause_json.as_deref(),
            Some(r#"{"text":"Error: boom","name":"Error","message":"boom"}"#)
        );
        fake.exit(ExitStatus::Code(1), false);
        assert_eq!(fake.report().await.exit, ExitStatus::Code(1));
    }

    #[tokio::test(start_paused = true)]
    async fn ends_without_a_result_say_how() {
        let cases = [
            (ExitStatus::Code(0), Code::Exited, "code 0: the process exited before"),
            (ExitStatus::Code(7), Code::Exited, "code 7: last words"),
            (ExitStatus::Signal(SIGKILL), Code::Killed, "killed by signal"),
            (ExitStatus::Lost, Code::StartFailed, "the process that watched the worker ended"),
        ];
        for (exit, code, text) in cases {
            let mut fake = start(LIMITS);
            fake.started().await;
            fake.complain("last words\n").await;
            fake.exit(exit, false);
            let (error, at) = fake.error().await;
            assert_eq!((error.code, at), (code, Duration::ZERO), "{}", error.message);
            assert!(error.message.contains(text), "{}", error.message);
            assert_eq!(error.stderr.as_deref(), Some("last words\n"));
            assert_eq!(fake.act().await.0, Act::Kill);
            assert_eq!(fake.report().await.exit, exit);
        }
    }

    /// As on a busy machine, the run is not asked while time passes, and finds the end of patience together with the rest:
    /// what the test does right after `advance` comes before the run is asked.
    #[tokio::test(start_paused = true)]
    async fn what_is_seen_late_still_counts() {
        let mut fake = start(LIMITS);
        fake.state.send_modify(|state| state.exit = Some(ExitStatus::Code(0)));
        tokio::task::yield_now().await;
        advance(ms(10 * DRAIN_MS)).await;
        fake.print("said before").await;
        fake.returned("1").await;
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        assert_eq!(fake.act().await.0, Act::Kill);

        fake.state.send_modify(|state| state.gone = true);
        tokio::task::yield_now().await;
        advance(ms(10 * DRAIN_MS)).await;
        fake.complain("last words").await;
        let report = fake.report().await;
        assert_eq!((report.stdout_tail.as_str(), report.stderr_tail.as_str()), ("said before", "last words"));
    }

    #[tokio::test(start_paused = true)]
    async fn orphans_of_an_exit_without_result_are_killed_and_hold_nothing_up() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.exit(ExitStatus::Code(7), true);
        assert_eq!(fake.act().await, (Act::Kill, Duration::ZERO));
        // Whoever holds the pipes does not die of it.
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::Exited, ms(DRAIN_MS)));
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.gone();
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_uncaught_error_settles_with_the_exit() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.send(22, r#"{"origin":"unhandledRejection","text":"Error: pool broke"}"#).await;
        sleep(ms(3)).await;
        fake.send(24, r#"{"code":1}"#).await;
        fake.exit(ExitStatus::Code(1), false);
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::ToolError, ms(3)));
        assert_eq!(error.message, "Function execution failed with code 1: Error: pool broke");
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_loop_settles_with_the_exit() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.send(23, "").await;
        fake.exit(ExitStatus::Code(0), false);
        let (error, _) = fake.error().await;
        assert!(error.message.contains("the event loop ran empty"), "{}", error.message);
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_on_the_channel_is_told_at_once() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.send(200, "garbage").await;
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::ToolError, Duration::ZERO));
        assert!(error.message.contains("a frame of unknown type 200"), "{}", error.message);
        assert_eq!(fake.act().await.0, Act::Terminate);
        fake.exit(ExitStatus::Signal(15), false);
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_channel_is_no_end() {
        let mut fake = start(LIMITS);
        fake.started().await;
        fake.channel = None;
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::Timeout, ms(30_000)));
        fake.gone();
        fake.run.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_never_takes_its_job_times_out() {
        let mut fake = start_with(LIMITS, job(Some(format!("\"{}\"", "a".repeat(4 * PIPE_BYTES)))));
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::Timeout, ms(30_000)));
        fake.gone();
        fake.run.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_job_goes_out_while_output_comes_in() {
        let text = format!("\"{}\"", "a".repeat(40 * PIPE_BYTES));
        let job = job(Some(text));
        let expected = job.encode().unwrap();
        let limits = RunLimits { max_output_bytes: u64::MAX, ..LIMITS };
        let mut fake = start_with(limits, job);
        // Nothing of the job is read before more was printed than the pipe holds.
        fake.print(&"o".repeat(3 * PIPE_BYTES)).await;
        let mut received = vec![0; expected.len()];
        fake.channel.as_mut().unwrap().read_exact(&mut received).await.unwrap();
        assert!(received == expected, "the job arrived changed");
        fake.returned("1").await;
        assert!(fake.outcome().await.is_ok());
        fake.exit(ExitStatus::Code(0), false);
        fake.report().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_cannot_be_sent_is_an_error() {
        let mut fake = start_with(LIMITS, Job { args: Some(" ".repeat(256 * 1024 * 1024 + 1)), ..job(None) });
        let (error, _) = fake.error().await;
        assert_eq!((error.code, error.phase), (Code::InvalidConfig, Phase::Start));
        assert!(error.message.contains("an arguments text of 268435457 bytes"), "{}", error.message);
        assert_eq!(fake.act().await.0, Act::Terminate);
        fake.exit(ExitStatus::Code(0), false);
        assert_eq!(fake.act().await.0, Act::Kill);
        fake.report().await;
    }

    fn collecting(hand: &Arc<Hand>) -> Aside {
        let wanted = Wanted {
            patterns: vec!["**".to_owned()],
            into: None,
            max_files: 10,
            max_bytes: 100 * PIPE_BYTES as u64,
        };
        let collect = Collect::new(&wanted, false).unwrap();
        Aside { collecting: Some(collect.begin(hand, None)), ..Aside::nothing() }
    }

    #[tokio::test]
    async fn a_result_waits_for_the_files_and_a_slow_caller_holds_the_worker_up() {
        const FRAMES: usize = 40;
        let hand = Arc::new(Hand::default());
        let mut fake = start_beside(LIMITS, job(None), collecting(&hand));
        fake.returned("1").await;
        fake.send(18, "2").await;
        fake.send(32, &format!(r#"[["a",{}]]"#, FRAMES * PIPE_BYTES)).await;
        fake.send(32, "[]").await;
        fake.send(33, &format!(r#"{{"bytes":{}}}"#, FRAMES * PIPE_BYTES)).await;
        let chunk = "x".repeat(PIPE_BYTES);
        let mut sent = 0;
        while tokio::time::timeout(ms(200), fake.send(34, &chunk)).await.is_ok() {
            sent += 1;
            assert!(sent < 12, "the host takes in what nobody has room for");
        }
        assert!(fake.outcome.as_mut().unwrap().try_recv().is_err());
        // The frame that was cut short is of no use any more: the call ends as one that broke its channel, or is aborted.
        fake.canceller.cancel(CancelReason::Aborted);
        assert_eq!(fake.error().await.0.code, Code::Aborted);
        assert_eq!(hand.chunk().await, Some(Chunk::Data(chunk.into_bytes())));
        assert_eq!(hand.chunk().await, None, "the rest never comes");
        fake.gone();
        fake.run.await.unwrap();
    }

    #[tokio::test]
    async fn a_result_is_answered_once_its_files_are_taken() {
        let hand = Arc::new(Hand::default());
        let mut fake = start_beside(LIMITS, job(None), collecting(&hand));
        fake.returned("1").await;
        for (kind, payload) in [(32, r#"[["a",1]]"#), (32, "[]"), (33, r#"{"bytes":1}"#), (34, "x")] {
            fake.send(kind, payload).await;
        }
        hand.begun().await;
        assert_eq!(hand.chunk().await, Some(Chunk::Data(b"x".to_vec())));
        assert_eq!(hand.chunk().await, Some(Chunk::End));
        assert!(fake.outcome.as_mut().unwrap().try_recv().is_err());
        hand.taken(Ok(()));
        assert_eq!(fake.outcome().await, Ok(Some("1".to_owned())));
        fake.exit(ExitStatus::Code(0), false);
        let report = fake.run.await.unwrap();
        assert!(report.failure.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_ends_or_lingers_before_its_files_are_taken_has_failed() {
        let mut fake = start_beside(LIMITS, job(None), collecting(&Arc::default()));
        fake.returned("1").await;
        fake.exit(ExitStatus::Code(0), false);
        let (error, _) = fake.error().await;
        assert_eq!((error.code, error.phase), (Code::Exited, Phase::Result));
        assert!(error.message.contains("its files were being collected"), "{}", error.message);
        fake.run.await.unwrap();
        let mut fake = start_beside(LIMITS, job(None), collecting(&Arc::default()));
        fake.returned("1").await;
        let (error, at) = fake.error().await;
        assert_eq!((error.code, at), (Code::Timeout, ms(30_000)));
        fake.gone();
        fake.run.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn files_before_a_result_break_the_channel() {
        let mut fake = start_beside(LIMITS, job(None), collecting(&Arc::default()));
        fake.started().await;
        fake.send(32, "[]").await;
        let (error, _) = fake.error().await;
        assert_eq!(error.code, Code::ToolError);
        assert!(error.message.contains("files before its result"), "{}", error.message);
        fake.gone();
        fake.run.await.unwrap();
    }
}
