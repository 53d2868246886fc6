//! Files that a function hands over when it has returned. The worker lists what there is, the host says what it wants, one file after the
//! other, and gets it in pieces; at the end it says that it wants nothing more.
//!
//! At most [`PIECES`] pieces are in the host's memory: beyond that the channel is not read, and the worker waits. What the worker sends is not
//! believed: paths and sizes are checked, and what comes out of turn ends the call.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    sync::{mpsc, oneshot},
};

use super::{
    failed,
    folder::{Folder, Staging},
    given::OWN_MODULE,
    invalid, name,
    selection::Selection,
};
use crate::{
    error::{Code, Phase, SandboxError},
    executor::{CallEvents, EventKind},
    worker::protocol::{Piece, want_frame},
};

/// Pieces that wait to be written or taken.
const PIECES: usize = 4;
/// Files that are listed, matching or not.
const MAX_LISTED: u64 = 1_000_000;
/// See [`Wanted::max_files`].
const MOST_FILES: u32 = 10_000;

/// What a call wants of its function's files, as the surface says it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wanted {
    /// Patterns of paths below the working folder.
    #[serde(rename = "match")]
    pub patterns: Vec<String>,
    /// The caller's folder that gets them; where absent, the surface takes them.
    pub into: Option<PathBuf>,
    /// The most files.
    pub max_files: u32,
    /// The most bytes of all of them together.
    pub max_bytes: u64,
}

/// What is wanted, checked.
#[derive(Debug, Clone)]
pub struct Collect {
    selection: Selection,
    into: Option<Folder>,
    max_files: u32,
    max_bytes: u64,
    /// A path that is the function's own text and no file that it wrote.
    own_module: Option<&'static str>,
}

impl Collect {
    /// Checks what can be told before anything is spent. Blocks.
    pub fn new(wanted: &Wanted, is_module: bool) -> Result<Self, SandboxError> {
        let selection = Selection::new(&wanted.patterns).map_err(invalid)?;
        if wanted.max_files == 0 || wanted.max_files > MOST_FILES {
            return Err(invalid(format!("collect.maxFiles must be a whole number from 1 to {MOST_FILES}")));
        }
        Ok(Self {
            selection,
            into: wanted.into.as_deref().map(Folder::open).transpose()?,
            max_files: wanted.max_files,
            max_bytes: wanted.max_bytes,
            own_module: is_module.then_some(OWN_MODULE),
        })
    }

    /// Where the worker has to look.
    pub fn roots(&self) -> Vec<String> {
        self.selection.roots().to_vec()
    }

    /// Begins, to be waited for once the function has returned. Without a folder to write to, `hand` and `events` lead to who takes the files.
    pub fn begin(self, hand: &Arc<Hand>, events: Option<Arc<dyn CallEvents>>) -> Collecting {
        let (pieces, received) = mpsc::channel(PIECES);
        let (wants, frames) = mpsc::unbounded_channel();
        let sink = match (self.into.clone(), events) {
            (Some(folder), _) => Sink::Folder { folder, staging: None, open: None, paths: Vec::new() },
            (None, events) => Sink::Caller { hand: Arc::clone(hand), events, current: None },
        };
        let taking = Receiver { collect: self, pieces: received, wants, sink };
        Collecting { pieces, frames: Some(frames), done: Box::pin(taking.receive()) }
    }
}

/// Files on their way. Dropping it gives up: nothing is left of them in the caller's folder.
pub struct Collecting {
    /// Takes what the worker sends.
    pub pieces: mpsc::Sender<Piece>,
    /// Frames for the worker.
    pub frames: Option<mpsc::UnboundedReceiver<Vec<u8>>>,
    /// Ready when all were handed over.
    pub done: Pin<Box<dyn Future<Output = Result<(), SandboxError>> + Send>>,
}

struct Receiver {
    collect: Collect,
    pieces: mpsc::Receiver<Piece>,
    wants: mpsc::UnboundedSender<Vec<u8>>,
    sink: Sink,
}

impl Receiver {
    async fn receive(mut self) -> Result<(), SandboxError> {
        let received = self.receive_all().await;
        if received.is_err() {
            // Before the caller hears of it.
            self.sink.discard().await;
        }
        received
    }

    async fn receive_all(&mut self) -> Result<(), SandboxError> {
        let chosen = self.choose().await?;
        let mut left_bytes = self.collect.max_bytes;
        for path in chosen.into_keys() {
            // A worker that is gone is noticed elsewhere.
            let _ = self.wants.send(want_frame(&path));
            let bytes = match self.next().await {
                Piece::Opened { bytes } => bytes,
                Piece::Unreadable { path, reason } => return Err(unreadable(&path, &reason)),
                _ => return Err(broken("a piece of no file")),
            };
            left_bytes = left_bytes.checked_sub(bytes).ok_or_else(|| self.too_large(None))?;
            self.receive_file(path, bytes).await?;
        }
        self.sink.finish().await?;
        let _ = self.wants.send(want_frame(""));
        Ok(())
    }

    async fn receive_file(&mut self, path: String, bytes: u64) -> Result<(), SandboxError> {
        self.sink.open(path, bytes).await?;
        let mut left = bytes;
        while left > 0 {
            match self.next().await {
                Piece::Data(data) if !data.is_empty() => {
                    let count = data.len() as u64;
                    left = left.checked_sub(count).ok_or_else(|| broken("more of a file than it has"))?;
                    self.sink.write(data).await?;
                }
                Piece::Unreadable { path, reason } => return Err(unreadable(&path, &reason)),
                _ => return Err(broken("a piece of no file")),
            }
        }
        self.sink.close().await
    }

    /// The files that are wanted, of those that there are.
    async fn choose(&mut self) -> Result<BTreeMap<String, u64>, SandboxError> {
        let mut chosen = BTreeMap::new();
        let (mut listed, mut total_bytes) = (0_u64, 0_u64);
        loop {
            let files = match self.next().await {
                Piece::Listed(files) if files.is_empty() => return Ok(chosen),
                Piece::Listed(files) => files,
                Piece::Unreadable { path, reason } => return Err(unreadable(&path, &reason)),
                _ => return Err(broken("a piece of no file")),
            };
            listed += files.len() as u64;
            if listed > MAX_LISTED {
                return Err(over_limit(&format!(
                    "the folders that collect.match leads to have more than {MAX_LISTED} files; let it name the folders that hold what is wanted"
                )));
            }
            for (path, bytes) in files {
                if !self.collect.selection.matches(&path) || self.collect.own_module == Some(&path) {
                    continue;
                }
                name::check(&path).map_err(|why| unfit(&path, &why))?;
                total_bytes = total_bytes.saturating_add(bytes);
                if total_bytes > self.collect.max_bytes {
                    return Err(self.too_large(Some(&path)));
                }
                if chosen.len() >= self.collect.max_files as usize {
                    return Err(over_limit(&format!(
                        "more than {} files match collect.match, which is the limit (collect.maxFiles)",
                        self.collect.max_files
                    )));
                }
                if chosen.insert(path, bytes).is_some() {
                    return Err(broken("one file twice"));
                }
            }
        }
    }

    fn too_large(&self, path: Option<&str>) -> SandboxError {
        let with = path.map_or_else(String::new, |path| format!(", with {}", name::shown(path)));
        over_limit(&format!(
            "the files that match collect.match have more than {} bytes together{with}; that is the limit (collect.maxBytes)",
            self.collect.max_bytes
        ))
    }

    /// What the worker sends next. One that sends nothing more is ended by the deadline, or has ended.
    async fn next(&mut self) -> Piece {
        match self.pieces.recv().await {
            Some(piece) => piece,
            None => std::future::pending().await,
        }
    }
}

fn over_limit(what: &str) -> SandboxError {
    let message = format!("Files of the function exceeded a limit: {what}");
    SandboxError::new(Code::OutputLimit, Phase::Result, message)
}

fn unfit(path: &str, why: &str) -> SandboxError {
    let shown = name::shown(path);
    failed(Phase::Result, format!("Files of the function cannot be collected: the path {shown} {why}"))
}

fn unreadable(path: &str, reason: &str) -> SandboxError {
    const SHOWN_CHARS: usize = 200;
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect();
    let shown = name::shown(path);
    failed(
        Phase::Result,
        format!("Files of the function cannot be collected: {shown} cannot be read: {reason}"),
    )
}

/// The worker does not keep to the rules that its script keeps to.
pub fn broken(what: &str) -> SandboxError {
    let message = format!("Function execution failed: the function broke its own channel ({what})");
    SandboxError::new(Code::ToolError, Phase::Result, message)
}

/// Where files go.
enum Sink {
    Folder { folder: Folder, staging: Option<Staging>, open: Option<tokio::fs::File>, paths: Vec<String> },
    Caller { hand: Arc<Hand>, events: Option<Arc<dyn CallEvents>>, current: Option<Current> },
}

/// The file that the caller is taking.
struct Current {
    path: String,
    /// None once the caller wants no more of it.
    chunks: Option<mpsc::Sender<Chunk>>,
    taken: oneshot::Receiver<Result<(), String>>,
    /// What it said, where it was done before its file was.
    early: Option<Result<(), String>>,
}

impl Sink {
    async fn open(&mut self, path: String, bytes: u64) -> Result<(), SandboxError> {
        match self {
            Self::Folder { folder, staging, open, paths } => {
                let (folder, ready) = (folder.clone(), staging.take());
                let (ready, file) = blocking(move || {
                    let mut staging = ready.map_or_else(|| folder.staging(), Ok)?;
                    let file = staging.create()?;
                    Ok((staging, file))
                })
                .await?;
                (*staging, *open) = (Some(ready), Some(tokio::fs::File::from_std(file)));
                paths.push(path);
            }
            Self::Caller { hand, events, current } => {
                let (chunks, taken) = hand.begin();
                if let Some(events) = events {
                    events.event(EventKind::File, json!({ "path": path, "size": bytes }).to_string());
                }
                *current = Some(Current { path, chunks: Some(chunks), taken, early: None });
            }
        }
        Ok(())
    }

    async fn write(&mut self, data: Vec<u8>) -> Result<(), SandboxError> {
        match self {
            Self::Folder { open: Some(file), .. } => {
                file.write_all(&data).await.map_err(|error| unwritable(&error))
            }
            Self::Caller { current: Some(current), .. } => {
                current.give(Chunk::Data(data)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The file is whole; returns when it is the next one's turn.
    async fn close(&mut self) -> Result<(), SandboxError> {
        match self {
            Self::Folder { open, .. } => match open.take() {
                Some(mut file) => file.flush().await.map_err(|error| unwritable(&error)),
                None => Ok(()),
            },
            Self::Caller { current, .. } => match current.take() {
                Some(current) => current.close().await,
                None => Ok(()),
            },
        }
    }

    /// Nothing of it is wanted any more.
    async fn discard(&mut self) {
        if let Self::Folder { staging, .. } = self
            && let Some(mut staging) = staging.take()
        {
            let discarded = blocking(move || {
                staging.discard();
                Ok(())
            });
            let _ = discarded.await;
        }
    }

    /// All are there.
    async fn finish(&mut self) -> Result<(), SandboxError> {
        if let Self::Folder { staging, paths, .. } = self
            && let Some(staging) = staging.take()
        {
            let paths = std::mem::take(paths);
            // Where nobody waits for it any more, what was published is removed again.
            blocking(move || staging.publish(paths)).await?.keep();
        }
        Ok(())
    }
}

impl Current {
    /// Waits for room, or for the caller to say that it is done with the file.
    async fn give(&mut self, chunk: Chunk) {
        let Some(chunks) = &self.chunks else { return };
        tokio::select! {
            biased;
            said = &mut self.taken => {
                self.early = Some(said.unwrap_or(Ok(())));
                self.chunks = None;
            }
            sent = chunks.send(chunk) => {
                if sent.is_err() {
                    self.chunks = None;
                }
            }
        }
    }

    async fn close(mut self) -> Result<(), SandboxError> {
        self.give(Chunk::End).await;
        let said = match self.early.take() {
            Some(said) => said,
            None => (&mut self.taken).await.unwrap_or(Ok(())),
        };
        said.map_err(|why| {
            failed(Phase::Result, format!("collect.onFile failed for {}: {why}", name::shown(&self.path)))
        })
    }
}

fn unwritable(error: &std::io::Error) -> SandboxError {
    failed(Phase::Result, format!("collect.into: a file cannot be written: {error}"))
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|_| Err(failed(Phase::Result, "collect: the host ends and writes no files any more")))
}

/// What the caller gets of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes.
    Data(Vec<u8>),
    /// It is whole.
    End,
}

/// The caller's side of files that it takes itself: it asks for chunks, and says when it is done with a file.
#[derive(Debug, Default)]
pub struct Hand(Mutex<Handed>);

#[derive(Debug, Default)]
struct Handed {
    chunks: Option<Arc<tokio::sync::Mutex<mpsc::Receiver<Chunk>>>>,
    taken: Option<oneshot::Sender<Result<(), String>>>,
}

impl Hand {
    fn begin(&self) -> (mpsc::Sender<Chunk>, oneshot::Receiver<Result<(), String>>) {
        let (chunks, waiting) = mpsc::channel(1);
        let (said, taken) = oneshot::channel();
        let mut handed = self.lock();
        handed.chunks = Some(Arc::new(tokio::sync::Mutex::new(waiting)));
        handed.taken = Some(said);
        (chunks, taken)
    }

    /// The next chunk of the file that is being handed over; `None` where there is none, or where it will never be whole.
    pub async fn chunk(&self) -> Option<Chunk> {
        let chunks = self.lock().chunks.clone()?;
        let mut chunks = chunks.lock().await;
        chunks.recv().await
    }

    /// The caller is done with the file, or failed.
    pub fn taken(&self, said: Result<(), String>) {
        let taken = self.lock().taken.take();
        if let Some(taken) = taken {
            let _ = taken.send(said);
        }
    }

    /// Waits for the first file.
    #[cfg(test)]
    pub async fn begun(&self) {
        while self.lock().chunks.is_none() {
            tokio::task::yield_now().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Handed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl CallEvents for Heard {
        fn event(&self, kind: EventKind, text: String) {
            assert_eq!(kind, EventKind::File);
            self.0.lock().unwrap().push(text);
        }
    }

    fn wanted(into: Option<PathBuf>) -> Wanted {
        Wanted { patterns: vec!["**".to_owned()], into, max_files: 3, max_bytes: 10 }
    }

    struct Worker {
        pieces: mpsc::Sender<Piece>,
        wants: mpsc::UnboundedReceiver<Vec<u8>>,
        done: tokio::task::JoinHandle<Result<(), SandboxError>>,
    }

    impl Worker {
        fn start(wanted: &Wanted, hand: &Arc<Hand>, events: Option<Arc<dyn CallEvents>>) -> Self {
            let mut collecting = Collect::new(wanted, true).unwrap().begin(hand, events);
            Self {
                pieces: collecting.pieces,
                wants: collecting.frames.take().unwrap(),
                done: tokio::spawn(collecting.done),
            }
        }

        async fn list(&self, files: &[(&str, u64)]) {
            let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), *bytes)).collect();
            self.say(Piece::Listed(files)).await;
        }

        async fn say(&self, piece: Piece) {
            let _ = self.pieces.send(piece).await;
        }

        async fn wants(&mut self) -> String {
            let frame = self.wants.recv().await.unwrap();
            String::from_utf8(frame[5..].to_vec()).unwrap()
        }
    }

    #[tokio::test]
    async fn files_get_their_names_when_all_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("new/into");
        let mut worker = Worker::start(&wanted(Some(into.clone())), &Arc::default(), None);
        worker.list(&[("b/c", 3), (OWN_MODULE, 99)]).await;
        worker.list(&[("a", 0)]).await;
        worker.list(&[]).await;
        assert_eq!(worker.wants().await, "a");
        worker.say(Piece::Opened { bytes: 0 }).await;
        assert_eq!(worker.wants().await, "b/c");
        assert!(!into.join("a").exists(), "not before the others");
        worker.say(Piece::Opened { bytes: 4 }).await;
        worker.say(Piece::Data(b"12".to_vec())).await;
        worker.say(Piece::Data(b"34".to_vec())).await;
        assert_eq!(worker.wants().await, "");
        worker.done.await.unwrap().unwrap();
        assert_eq!(std::fs::read(into.join("b/c")).unwrap(), b"1234");
        assert_eq!(std::fs::read_dir(&into).unwrap().count(), 2, "no private folder is left");
    }

    #[tokio::test]
    async fn nothing_is_left_of_files_that_were_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = Worker::start(&wanted(Some(dir.path().to_owned())), &Arc::default(), None);
        worker.list(&[("a", 5)]).await;
        worker.list(&[]).await;
        worker.wants().await;
        worker.say(Piece::Opened { bytes: 5 }).await;
        worker.say(Piece::Data(b"12".to_vec())).await;
        while std::fs::read_dir(dir.path()).unwrap().count() == 0 {
            tokio::task::yield_now().await;
        }
        worker.done.abort();
        assert!(worker.done.await.unwrap_err().is_cancelled());
        while std::fs::read_dir(dir.path()).unwrap().count() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn what_was_published_goes_again_unless_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("there")).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        for is_kept in [false, true] {
            let folder = folder.clone();
            let act = move || {
                let mut staging = folder.staging().unwrap();
                staging.create().unwrap();
                staging.create().unwrap();
                staging.publish(vec!["new/x".to_owned(), "there/y".to_owned()]).unwrap()
            };
            // Off the runtime, so that tidying up is done at once.
            let published = std::thread::spawn(act).join().unwrap();
            assert!(dir.path().join("new/x").is_file() && dir.path().join("there/y").is_file());
            if is_kept {
                published.keep();
            } else {
                std::thread::spawn(move || drop(published)).join().unwrap();
            }
            assert_eq!(dir.path().join("new").exists(), is_kept);
            assert_eq!(dir.path().join("there/y").exists(), is_kept);
            assert!(dir.path().join("there").is_dir(), "it was the caller's");
        }
    }

    #[tokio::test]
    async fn what_comes_out_of_turn_or_over_a_limit_is_an_error() {
        let listed = |files: &[(&str, u64)]| {
            Piece::Listed(files.iter().map(|(path, bytes)| ((*path).to_owned(), *bytes)).collect())
        };
        let one = || vec![listed(&[("a", 2)]), listed(&[])];
        let and = |mut pieces: Vec<Piece>, more: Vec<Piece>| {
            pieces.extend(more);
            pieces
        };
        for (pieces, code, why) in [
            (vec![Piece::Data(vec![1])], Code::ToolError, "a piece of no file"),
            (vec![listed(&[("../a", 1)])], Code::FilesFailed, "has the part"),
            (vec![listed(&[("a", 6), ("b", 5)])], Code::OutputLimit, "maxBytes"),
            (vec![listed(&[("a", u64::MAX), ("b", 5)])], Code::OutputLimit, "maxBytes"),
            (vec![listed(&[("a", 0), ("b", 0), ("c", 0), ("d", 0)])], Code::OutputLimit, "maxFiles"),
            (vec![listed(&[("a", 0)]), listed(&[("a", 0)])], Code::ToolError, "one file twice"),
            (and(one(), vec![Piece::Opened { bytes: 11 }]), Code::OutputLimit, "maxBytes"),
            (and(one(), vec![listed(&[])]), Code::ToolError, "a piece of no file"),
            (
                and(one(), vec![Piece::Opened { bytes: 1 }, Piece::Data(vec![1, 2])]),
                Code::ToolError,
                "more of a file than it has",
            ),
            (
                vec![Piece::Unreadable { path: "a\nb".to_owned(), reason: "E\u{1b}ACCES".to_owned() }],
                Code::FilesFailed,
                r#""a\nb" cannot be read: EACCES"#,
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let worker = Worker::start(&wanted(Some(dir.path().to_owned())), &Arc::default(), None);
            for piece in pieces {
                worker.say(piece).await;
            }
            let error = worker.done.await.unwrap().unwrap_err();
            assert_eq!(error.code, code, "{}", error.message);
            assert!(error.message.contains(why), "{}", error.message);
        }
    }

    #[tokio::test]
    async fn a_caller_takes_a_file_at_its_own_pace() {
        let (hand, heard) = (Arc::new(Hand::default()), Arc::new(Heard::default()));
        let events = Some(Arc::clone(&heard) as Arc<dyn CallEvents>);
        let mut worker = Worker::start(&wanted(None), &hand, events);
        worker.list(&[("a", 3), ("b", 1)]).await;
        worker.list(&[]).await;
        worker.wants().await;
        worker.say(Piece::Opened { bytes: 3 }).await;
        for byte in 1..=3 {
            worker.say(Piece::Data(vec![byte])).await;
        }
        hand.begun().await;
        for byte in 1..=3 {
            assert_eq!(hand.chunk().await, Some(Chunk::Data(vec![byte])));
        }
        assert_eq!(hand.chunk().await, Some(Chunk::End));
        assert!(worker.wants.try_recv().is_err(), "it is not done with the first one");
        hand.taken(Ok(()));
        worker.wants().await;
        worker.say(Piece::Opened { bytes: 1 }).await;
        while heard.0.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        // It wants nothing of the second one: its bytes go nowhere.
        hand.taken(Ok(()));
        worker.say(Piece::Data(vec![1])).await;
        assert_eq!(worker.wants().await, "");
        worker.done.await.unwrap().unwrap();
        assert_eq!(*heard.0.lock().unwrap(), [r#"{"path":"a","size":3}"#, r#"{"path":"b","size":1}"#]);
    }

    #[tokio::test]
    async fn a_caller_that_fails_ends_it_and_a_call_that_ends_tells_the_caller() {
        let hand = Arc::new(Hand::default());
        let mut worker = Worker::start(&wanted(None), &hand, None);
        worker.list(&[("a", 0)]).await;
        worker.list(&[]).await;
        worker.wants().await;
        worker.say(Piece::Opened { bytes: 0 }).await;
        hand.begun().await;
        assert_eq!(hand.chunk().await, Some(Chunk::End));
        hand.taken(Err("no room".to_owned()));
        let error = worker.done.await.unwrap().unwrap_err();
        assert_eq!(error.message, "collect.onFile failed for \"a\": no room");
        assert_eq!(hand.chunk().await, None);
    }
}
