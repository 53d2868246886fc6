//! Files that a call is given. They follow the job on the channel, one after the other, and the worker writes them into the working folder
//! before anything of the function runs. At most one chunk of them is in the host's memory.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::{failed, invalid, name};
use crate::{
    error::{Code, Phase, SandboxError},
    executor::{CallEvents, EventKind},
    worker::protocol::{FILE_CHUNK_BYTES, Part, part_header},
};

/// Files that one call may be given.
const MAX_FILES: usize = 10_000;
/// What Node calls the function's own module, where the function is one.
pub const OWN_MODULE: &str = "index.mjs";

/// One file of a call, as the surface names it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenFile {
    /// Where it is placed, relative to the working folder.
    pub path: String,
    /// The host's file that it is a copy of; where absent, the surface gives its bytes when it is asked to.
    pub from: Option<PathBuf>,
}

/// Checks what can be told before anything is spent: names, and that the host's files can be read. Blocks.
pub fn check(files: &[GivenFile], is_module: bool) -> Result<(), SandboxError> {
    check_paths(files.iter().map(|file| file.path.as_str()))?;
    for file in files {
        if is_module && file.path == OWN_MODULE {
            return Err(invalid(format!(
                "files: {OWN_MODULE} is the function's own module, which is written there; give the file another name"
            )));
        }
        if let Some(from) = &file.from {
            open(from).map_err(|error| invalid(unreadable(&file.path, from, &error)))?;
        }
    }
    Ok(())
}

/// The part of it that needs no look at the disk.
pub fn check_paths<'a>(paths: impl ExactSizeIterator<Item = &'a str> + Clone) -> Result<(), SandboxError> {
    if paths.len() > MAX_FILES {
        return Err(invalid(format!(
            "files has {} files, a call can be given at most {MAX_FILES}",
            paths.len()
        )));
    }
    for path in paths.clone() {
        name::check(path).map_err(|why| invalid(format!("files: the path {} {why}", name::shown(path))))?;
    }
    match name::conflict(paths) {
        None => Ok(()),
        Some((one, other)) => Err(invalid(format!(
            "files: {} is a file and cannot be the folder of {} too",
            name::shown(one),
            name::shown(other)
        ))),
    }
}

fn unreadable(path: &str, from: &Path, error: &io::Error) -> String {
    format!("files[{}]: {} cannot be read: {error}", name::shown(path), from.display())
}

/// A regular file, which is no link itself. Neither a FIFO nor a device holds this up.
fn open(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let refused = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
    if std::fs::symlink_metadata(path)?.is_symlink() {
        return Err(refused("it is a symbolic link; name the file that it leads to"));
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(refused("it is no regular file"));
    }
    Ok(file)
}

/// What the surface says of a file that it was asked for: a piece and whether it is the last one, or why there is none.
type Piece = Result<(Vec<u8>, bool), String>;

/// The surface's side: it is asked for a piece by an event, and gives it here.
#[derive(Debug)]
pub struct Feeder {
    pieces: mpsc::Sender<Piece>,
    taken: Mutex<Option<mpsc::Receiver<Piece>>>,
}

impl Default for Feeder {
    fn default() -> Self {
        // One is asked for at a time.
        let (pieces, taken) = mpsc::channel(1);
        Self { pieces, taken: Mutex::new(Some(taken)) }
    }
}

impl Feeder {
    /// Gives a piece of the file that was asked for. What nobody asked for is dropped.
    pub fn give(&self, piece: Vec<u8>, is_last: bool) {
        let _ = self.pieces.try_send(Ok((piece, is_last)));
    }

    /// The file that was asked for cannot be had.
    pub fn fail(&self, message: String) {
        let _ = self.pieces.try_send(Err(message));
    }
}

/// The files of one call on their way to its worker.
pub struct Feed {
    files: Vec<GivenFile>,
    pieces: Option<mpsc::Receiver<Piece>>,
    events: Arc<dyn CallEvents>,
    disk_mb: u32,
}

impl Feed {
    /// For `files` of at most `disk_mb` MiB; what of them the surface has is asked for by `events` and given by `feeder`, once.
    pub fn new(files: Vec<GivenFile>, feeder: &Feeder, events: Arc<dyn CallEvents>, disk_mb: u32) -> Self {
        let pieces = feeder.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        Self { files, pieces, events, disk_mb }
    }

    /// Writes them. A worker that takes no more ends this without an error: that is seen elsewhere.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or files that are too large together. Nothing of the function has run, and nothing will.
    pub async fn write(mut self, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), SandboxError> {
        let left_bytes = u64::from(self.disk_mb) * 1024 * 1024;
        let mut out = Out { writer, is_gone: false, left_bytes, disk_mb: self.disk_mb };
        for (index, file) in std::mem::take(&mut self.files).into_iter().enumerate() {
            out.part(Part::File, file.path.as_bytes()).await;
            match &file.from {
                Some(from) => copy(&file.path, from, &mut out).await?,
                None => self.ask(index, &file.path, &mut out).await?,
            }
            out.part(Part::FileEnd, &[]).await;
            if out.is_gone {
                break;
            }
        }
        Ok(())
    }

    async fn ask<W: AsyncWrite + Unpin>(
        &mut self,
        index: usize,
        path: &str,
        out: &mut Out<'_, W>,
    ) -> Result<(), SandboxError> {
        let Some(pieces) = &mut self.pieces else { return Ok(()) };
        while !out.is_gone {
            self.events.event(EventKind::Feed, index.to_string());
            // Where nobody is left to give it, the call is over.
            let piece = match pieces.recv().await {
                Some(piece) => piece,
                None => std::future::pending().await,
            };
            let (bytes, is_last) = piece.map_err(|why| {
                failed(Phase::Start, format!("files[{}] cannot be read: {why}", name::shown(path)))
            })?;
            for chunk in bytes.chunks(FILE_CHUNK_BYTES) {
                out.data(chunk).await?;
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }
}

async fn copy<W: AsyncWrite + Unpin>(
    path: &str,
    from: &Path,
    out: &mut Out<'_, W>,
) -> Result<(), SandboxError> {
    let cannot = |error: &io::Error| failed(Phase::Start, unreadable(path, from, error));
    let place = from.to_owned();
    let opened = tokio::task::spawn_blocking(move || open(&place)).await;
    let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()));
    let mut file = tokio::fs::File::from_std(opened.map_err(|error| cannot(&error))?);
    let mut chunk = vec![0; FILE_CHUNK_BYTES];
    while !out.is_gone {
        match file.read(&mut chunk).await {
            Ok(0) => break,
            Ok(count) => out.data(&chunk[..count]).await?,
            Err(error) => return Err(cannot(&error)),
        }
    }
    Ok(())
}

fn too_large(disk_mb: u32) -> SandboxError {
    let message = format!(
        "Function execution failed: the files of the call have more than {disk_mb} MB together, which is all that it may have on disk; give it less, or raise diskMb"
    );
    SandboxError::new(Code::DiskLimit, Phase::Start, message)
}

struct Out<'a, W> {
    writer: &'a mut W,
    is_gone: bool,
    left_bytes: u64,
    disk_mb: u32,
}

impl<W: AsyncWrite + Unpin> Out<'_, W> {
    /// Counted here, as on a disk nobody else does before it is too late.
    async fn data(&mut self, chunk: &[u8]) -> Result<(), SandboxError> {
        let left = self.left_bytes.checked_sub(chunk.len() as u64);
        self.left_bytes = left.ok_or_else(|| too_large(self.disk_mb))?;
        self.part(Part::FileData, chunk).await;
        Ok(())
    }

    async fn part(&mut self, part: Part, payload: &[u8]) {
        if self.is_gone {
            return;
        }
        let header = part_header(part, payload.len());
        let written = match self.writer.write_all(&header).await {
            Ok(()) => self.writer.write_all(payload).await,
            error => error,
        };
        self.is_gone = written.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::protocol::header;

    struct Asked(mpsc::UnboundedSender<String>);

    impl CallEvents for Asked {
        fn event(&self, kind: EventKind, text: String) {
            assert_eq!(kind, EventKind::Feed);
            let _ = self.0.send(text);
        }
    }

    fn given(path: &str, from: Option<&Path>) -> GivenFile {
        GivenFile { path: path.to_owned(), from: from.map(Path::to_owned) }
    }

    fn frames(mut bytes: &[u8]) -> Vec<(u8, String)> {
        let mut found = Vec::new();
        while let Some((first, rest)) = bytes.split_first_chunk() {
            let (kind, length) = header(*first);
            found.push((kind, String::from_utf8_lossy(&rest[..length]).into_owned()));
            bytes = &rest[length..];
        }
        found
    }

    #[test]
    fn names_are_checked_before_anything_is_spent() {
        for (files, is_module, why) in [
            (vec![given("../a", None)], false, "has the part \"..\""),
            (vec![given("a", None), given("a/b", None)], false, "is a file and cannot be the folder of"),
            (vec![given(OWN_MODULE, None)], true, "own module"),
            (vec![given("a", Some(Path::new("/nowhere/at/all")))], false, "cannot be read"),
            (vec![given("a", Some(Path::new("/dev/null")))], false, "no regular file"),
            (vec![given("a", Some(Path::new("/")))], false, "no regular file"),
            (vec![given("a", None); MAX_FILES + 1], false, "at most 10000"),
        ] {
            let error = check(&files, is_module).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig);
            assert!(error.message.contains(why), "{}", error.message);
        }
        check(&[given(OWN_MODULE, None)], false).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn neither_a_link_nor_a_fifo_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, fifo) = (dir.path().join("f"), dir.path().join("l"), dir.path().join("p"));
        std::fs::write(&file, "1").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        open(&file).unwrap();
        assert!(open(&link).unwrap_err().to_string().contains("symbolic link"));
        assert!(open(&fifo).unwrap_err().to_string().contains("no regular file"));
    }

    #[tokio::test]
    async fn files_go_out_in_order_a_piece_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        std::fs::write(&own, "of the host").unwrap();
        let (asked, mut events) = mpsc::unbounded_channel();
        let feeder = Feeder::default();
        let files = vec![given("a", None), given("b", Some(&own)), given("c", None)];
        let feed = Feed::new(files, &feeder, Arc::new(Asked(asked)), 1);
        let mut bytes = Vec::new();
        let giving = async {
            assert_eq!(events.recv().await.unwrap(), "0");
            feeder.give(b"one".to_vec(), false);
            assert_eq!(events.recv().await.unwrap(), "0");
            feeder.give(b"two".to_vec(), true);
            assert_eq!(events.recv().await.unwrap(), "2");
            feeder.give(Vec::new(), true);
        };
        let (written, ()) = tokio::join!(feed.write(&mut bytes), giving);
        written.unwrap();
        let expected = [
            (7, "a"),
            (8, "one"),
            (8, "two"),
            (9, ""),
            (7, "b"),
            (8, "of the host"),
            (9, ""),
            (7, "c"),
            (9, ""),
        ];
        assert_eq!(frames(&bytes), expected.map(|(kind, text)| (kind, text.to_owned())));
    }

    #[tokio::test]
    async fn files_of_more_than_the_call_may_write_are_refused_by_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        std::fs::write(&own, vec![0; 1024 * 1024]).unwrap();
        let (asked, _events) = mpsc::unbounded_channel();
        for (more, fits) in [(0, true), (1, false)] {
            let feeder = Feeder::default();
            let feed = Feed::new(
                vec![given("a", Some(&own)), given("b", None)],
                &feeder,
                Arc::new(Asked(asked.clone())),
                1,
            );
            feeder.give(vec![0; more], true);
            let written = feed.write(&mut Vec::new()).await;
            assert_eq!(written.is_ok(), fits);
            assert!(fits || written.unwrap_err().code == Code::DiskLimit);
        }
    }

    #[tokio::test]
    async fn a_source_that_fails_is_an_error() {
        let feeder = Feeder::default();
        let (asked, _events) = mpsc::unbounded_channel();
        let feed = Feed::new(vec![given("a", None)], &feeder, Arc::new(Asked(asked)), 1);
        feeder.fail("it broke".to_owned());
        let error = feed.write(&mut Vec::new()).await.unwrap_err();
        assert_eq!((error.code, error.phase), (Code::FilesFailed, Phase::Start));
        assert_eq!(error.message, "files[\"a\"] cannot be read: it broke");
    }
}
