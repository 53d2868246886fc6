//! Frames of a worker's channel; see `docs/worker-protocol.md`. Pure.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::source::Kind;

/// Version of the protocol; the worker refuses a job of another one.
pub const VERSION: u32 = 2;
/// The largest `JOB`, `SOURCE` or `ARGS`. V8 has no longer strings than 512 Mi characters.
pub const MAX_JOB_FRAME_BYTES: usize = 256 * 1024 * 1024;
/// The largest frame from the worker that is no result.
pub const MAX_NOTE_FRAME_BYTES: usize = 1024 * 1024;

/// Of a frame.
pub const HEADER_BYTES: usize = 5;

const JOB: u8 = 1;
const SOURCE: u8 = 2;
const ARGS: u8 = 3;
const CODE_CACHE: u8 = 4;
const ANSWER: u8 = 5;
const RESUME: u8 = 6;
const FILE: u8 = 7;
const FILE_DATA: u8 = 8;
const FILE_END: u8 = 9;
const WANT: u8 = 10;
const READY: u8 = 16;
const STARTED: u8 = 17;
const RETURNED: u8 = 18;
const THREW: u8 = 19;
const UNSERIALIZABLE: u8 = 20;
const TOO_LARGE: u8 = 21;
const UNCAUGHT: u8 = 22;
const DRAINED: u8 = 23;
const EXITING: u8 = 24;
const INVALID: u8 = 25;
/// A code cache, from a worker that was asked for nothing else: in a call it is a violation like any other unknown type.
pub const COMPILED: u8 = 27;
const UNCACHED: u8 = 28;
const CALL: u8 = 29;
const PROGRESS: u8 = 30;
const YIELDED: u8 = 31;
const LISTED: u8 = 32;
const OPENED: u8 = 33;
const DATA: u8 = 34;
const UNREADABLE: u8 = 35;
const UNPLACED: u8 = 36;

/// The largest text of progress, bytes.
pub const MAX_PROGRESS_BYTES: usize = 64 * 1024;
/// The largest part of a file in one frame, bytes, in both directions.
pub const FILE_CHUNK_BYTES: usize = 128 * 1024;
/// The largest list of files in one frame, bytes.
const MAX_LIST_BYTES: usize = 512 * 1024;
/// What a call of a host function takes beside its arguments, at most: its name and its number.
const CALL_ROOM_BYTES: usize = 1024;

/// What a worker is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// How to compile `code`.
    pub kind: Kind,
    /// Absolute path that the code is compiled under; in `cwd`, need not exist.
    pub filename: PathBuf,
    /// Id of the tool, for messages.
    pub tool_id: String,
    /// Working folder.
    pub cwd: PathBuf,
    /// What `os.tmpdir()` has to give.
    pub tmpdir: PathBuf,
    /// The folder that holds `node_modules`.
    pub tree: PathBuf,
    /// The whole environment of the tool.
    pub env: BTreeMap<String, String>,
    /// See [`crate::source::Prepared::line_offset`].
    pub line_offset: i32,
    /// See [`crate::source::Prepared::column_offset`].
    pub column_offset: i32,
    /// See [`crate::source::Prepared::source_map`].
    pub source_map: Option<String>,
    /// The largest result, in bytes of its JSON text.
    pub max_result_bytes: u64,
    /// The folder of Node's compile cache for the packages; see [`crate::store::compile_cache`].
    pub compile_cache: Option<PathBuf>,
    /// Whether it is to compile the code, to send V8's code cache of it, and to end without running anything.
    pub compiles_only: bool,
    /// What the function may say before its result; `None`: nothing.
    pub talk: Option<Offer>,
    /// How many files follow the job.
    pub files: usize,
    /// Below which folders of the working folder the worker lists files once the function has returned; `None`: nothing is collected.
    pub collect: Option<Vec<String>>,
    /// V8's code cache of the code.
    pub code_cache: Option<Arc<[u8]>>,
    /// See [`crate::source::Prepared::code`].
    pub code: String,
    /// The arguments as JSON text; `None` when the caller gave none.
    pub args: Option<String>,
}

/// What a call gives its function to talk with. Absent fields of the request mean: nothing of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offer {
    /// Names of the host's functions; a dot separates the objects that hold them.
    #[serde(default)]
    pub functions: Vec<String>,
    /// Whether somebody hears of progress.
    #[serde(default)]
    pub progress: bool,
    /// Whether somebody takes yielded values.
    #[serde(default)]
    pub yields: bool,
    /// Calls of host functions that may be under way at once.
    pub max_pending: u32,
    /// Calls of host functions in all.
    pub max_calls: u32,
    /// Bytes of the JSON text of one argument, answer or yielded value.
    pub max_message_bytes: u32,
}

/// Why a job cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A part is larger than a frame may be.
    #[error(
        "{part} of {bytes} bytes is too large, at most {MAX_JOB_FRAME_BYTES} bytes can be handed to a function"
    )]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// A path that JSON cannot carry.
    #[error("a folder of the call cannot be named to the worker: {0}")]
    Path(#[from] serde_json::Error),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobHeader<'a> {
    version: u32,
    kind: Kind,
    filename: &'a PathBuf,
    tool_id: &'a str,
    cwd: &'a PathBuf,
    tmpdir: &'a PathBuf,
    tree: &'a PathBuf,
    /// Names and values in turn: of an object V8 would make a hidden class for each name.
    env: Vec<&'a str>,
    line_offset: i32,
    column_offset: i32,
    source_map: Option<&'a str>,
    max_result_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    compile_cache: Option<&'a PathBuf>,
    #[serde(skip_serializing_if = "is_off")]
    compiles_only: bool,
    #[serde(skip_serializing_if = "is_off")]
    has_code_cache: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    talk: Option<&'a Offer>,
    #[serde(skip_serializing_if = "is_none")]
    files: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    collect: Option<&'a [String]>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's way")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's way")]
fn is_off(flag: &bool) -> bool {
    !flag
}

/// Type and payload length of a frame from its header.
pub fn header(header: [u8; HEADER_BYTES]) -> (u8, usize) {
    let [a, b, c, d, kind] = header;
    (kind, usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX))
}

impl Job {
    /// The three frames of the job, one after the other, and a fourth with a code cache where there is one.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let header = serde_json::to_vec(&JobHeader {
            version: VERSION,
            kind: self.kind,
            filename: &self.filename,
            tool_id: &self.tool_id,
            cwd: &self.cwd,
            tmpdir: &self.tmpdir,
            tree: &self.tree,
            env: self.env.iter().flat_map(|(name, value)| [name.as_str(), value]).collect(),
            line_offset: self.line_offset,
            column_offset: self.column_offset,
            source_map: self.source_map.as_deref(),
            max_result_bytes: self.max_result_bytes,
            compile_cache: self.compile_cache.as_ref(),
            compiles_only: self.compiles_only,
            has_code_cache: self.code_cache.is_some(),
            talk: self.talk.as_ref(),
            files: self.files,
            collect: self.collect.as_deref(),
        })?;
        let args = self.args.as_deref().unwrap_or("null");
        let cache = self.code_cache.as_deref();
        let payloads = header.len() + self.code.len() + args.len() + cache.map_or(0, <[u8]>::len);
        let mut frames = Vec::with_capacity(4 * HEADER_BYTES + payloads);
        put_frame(&mut frames, JOB, "a job description", &header)?;
        put_frame(&mut frames, SOURCE, "a source text", self.code.as_bytes())?;
        put_frame(&mut frames, ARGS, "an arguments text", args.as_bytes())?;
        if let Some(cache) = cache {
            put_frame(&mut frames, CODE_CACHE, "a code cache", cache)?;
        }
        Ok(frames)
    }
}

/// The answer to a call of a host function: `[id, ok, json]`, or `[id, ok]` where `json` is empty.
pub fn answer_frame(id: u32, ok: bool, json: &str) -> Result<Vec<u8>, EncodeError> {
    let comma = if json.is_empty() { "" } else { "," };
    let payload = format!("[{id},{ok}{comma}{json}]");
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    put_frame(&mut frame, ANSWER, "an answer of a host function", payload.as_bytes())?;
    Ok(frame)
}

/// Says that the host has taken one yielded value.
pub fn resume_frame() -> Vec<u8> {
    vec![0, 0, 0, 0, RESUME]
}

/// What files travel in to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A file begins: its path.
    File,
    /// Bytes of it.
    FileData,
    /// It is whole.
    FileEnd,
}

/// The header of a frame of a file, whose payload has at most [`FILE_CHUNK_BYTES`].
pub fn part_header(part: Part, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    let kind = match part {
        Part::File => FILE,
        Part::FileData => FILE_DATA,
        Part::FileEnd => FILE_END,
    };
    let [a, b, c, d] = u32::try_from(payload_bytes).unwrap_or(u32::MAX).to_le_bytes();
    [a, b, c, d, kind]
}

/// Asks the worker for the file at `path`; with an empty one it is asked for nothing more.
pub fn want_frame(path: &str) -> Vec<u8> {
    let mut frame = u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    frame.push(WANT);
    frame.extend_from_slice(path.as_bytes());
    frame
}

fn put_frame(frames: &mut Vec<u8>, kind: u8, part: &'static str, payload: &[u8]) -> Result<(), EncodeError> {
    let bytes = payload.len();
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAX_JOB_FRAME_BYTES);
    let length = length.ok_or(EncodeError::TooLarge { part, bytes })?;
    frames.extend_from_slice(&length.to_le_bytes());
    frames.push(kind);
    frames.extend_from_slice(payload);
    Ok(())
}

/// What a function threw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thrown {
    /// `Name: message` of an error, else the value as text.
    pub text: String,
    /// One line for each cause and each error of an aggregate, outermost first: `[cause]: Name: message`.
    pub causes: Vec<String>,
    /// The whole thrown value, as JSON text.
    pub json: String,
}

/// A frame from the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// In a provider's sandbox: the run is its own from here on.
    Ready,
    /// V8 refused the code cache, and compiled the text.
    Uncached,
    /// From here on the user's code may have run.
    Started,
    /// The result as JSON text; `None` for `undefined`.
    Returned(Option<String>),
    /// The function threw, or its promise was rejected.
    Threw(Thrown),
    /// `JSON.stringify` of the result threw.
    Unserializable(Thrown),
    /// The result has this many bytes, more than allowed.
    TooLarge {
        /// Bytes of the result's JSON text.
        bytes: u64,
    },
    /// An error that nobody handled.
    Uncaught(Thrown),
    /// The event loop ran empty before the function settled.
    Drained,
    /// The process means to end with this code.
    Exiting {
        /// The exit code.
        code: i32,
    },
    /// The text is no function.
    Invalid(Thrown),
    /// It talks with its host.
    Said(Said),
    /// A file that the call was given cannot be written; nothing of the function runs.
    Unplaced(Thrown),
    /// It hands over files, after the function has returned.
    Collected(Piece),
}

/// Files of a function on their way to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Some files that there are, with their sizes in bytes; none at the end of the list.
    Listed(Vec<(String, u64)>),
    /// The file that was asked for, with its size.
    Opened {
        /// Bytes that follow.
        bytes: u64,
    },
    /// Bytes of it.
    Data(Vec<u8>),
    /// A file or folder that cannot be read.
    Unreadable {
        /// Its path, below the working folder.
        path: String,
        /// Why, in the system's words.
        reason: String,
    },
}

/// What a function says before its result.
#[derive(Debug, Clone)]
pub enum Said {
    /// It calls a function of the host.
    Call {
        /// Its number, chosen by the worker.
        id: u32,
        /// Which function.
        name: String,
        /// The argument as JSON; `None` for `undefined`.
        args: Option<Box<RawValue>>,
    },
    /// How far it is, as JSON.
    Progress(String),
    /// A value that it yields, as JSON.
    Yielded(String),
}

impl PartialEq for Said {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Call { id, name, args },
                Self::Call { id: other_id, name: other_name, args: other_args },
            ) => {
                let text = |args: &Option<Box<RawValue>>| args.as_ref().map(|args| args.get().to_owned());
                (id, name, text(args)) == (other_id, other_name, text(other_args))
            }
            (Self::Progress(one), Self::Progress(other)) | (Self::Yielded(one), Self::Yielded(other)) => {
                one == other
            }
            _ => false,
        }
    }
}

impl Eq for Said {}

/// Bytes on the channel that the worker's script does not send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// No frame has this type.
    #[error("a frame of unknown type {kind}")]
    UnknownType {
        /// The type.
        kind: u8,
    },
    /// A frame that announces more than its type may have.
    #[error("a frame of type {kind} with {bytes} bytes, at most {limit_bytes} are allowed")]
    TooLarge {
        /// Its type.
        kind: u8,
        /// Its announced size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A payload that is not what its type has.
    #[error("a frame of type {kind} with a bad payload: {reason}")]
    Payload {
        /// Its type.
        kind: u8,
        /// What is wrong with it.
        reason: String,
    },
}

/// Takes frames out of a byte stream that comes in any chunks. Holds at most one frame and one chunk.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Where the next frame starts in `bytes`.
    start: usize,
    max_result_bytes: usize,
    /// The largest message to the host; `None` where none may come.
    max_message_bytes: Option<usize>,
    /// Whether files may come.
    collects: bool,
}

impl Decoder {
    /// For results of at most `max_result_bytes` bytes.
    pub fn new(max_result_bytes: u64) -> Self {
        let max_result_bytes = usize::try_from(max_result_bytes).unwrap_or(usize::MAX);
        Self { bytes: Vec::new(), start: 0, max_result_bytes, max_message_bytes: None, collects: false }
    }

    /// Takes what the function says before its result as well, where the call offers that.
    #[must_use]
    pub fn hearing(self, offer: Option<&Offer>) -> Self {
        let max_message_bytes =
            offer.map(|offer| usize::try_from(offer.max_message_bytes).unwrap_or(usize::MAX));
        Self { max_message_bytes, ..self }
    }

    /// Takes files after the result as well, where the call wants them.
    #[must_use]
    pub fn collecting(self, collects: bool) -> Self {
        Self { collects, ..self }
    }

    /// Adds what was read. Call [`Decoder::next_frame`] until it gives `None` before the next chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(chunk);
    }

    /// The next whole frame, if there is one. After a violation the stream has no frames any more: drop the decoder.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Violation> {
        let rest = &self.bytes[self.start..];
        let Some((header, rest)) = rest.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let kind = header[4];
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let limit_bytes = self.limit_bytes(kind)?;
        if bytes > limit_bytes {
            return Err(Violation::TooLarge { kind, bytes, limit_bytes });
        }
        let Some(payload) = rest.get(..bytes) else { return Ok(None) };
        let frame = parse(kind, payload)?;
        self.start += HEADER_BYTES + bytes;
        Ok(Some(frame))
    }

    fn limit_bytes(&self, kind: u8) -> Result<usize, Violation> {
        match kind {
            READY | STARTED | DRAINED | UNCACHED => Ok(0),
            RETURNED => Ok(self.max_result_bytes),
            THREW | UNSERIALIZABLE | TOO_LARGE | UNCAUGHT | EXITING | INVALID | UNPLACED => {
                Ok(MAX_NOTE_FRAME_BYTES)
            }
            LISTED if self.collects => Ok(MAX_LIST_BYTES),
            DATA if self.collects => Ok(FILE_CHUNK_BYTES),
            OPENED | UNREADABLE if self.collects => Ok(CALL_ROOM_BYTES * 16),
            CALL | PROGRESS | YIELDED => {
                let most = self.max_message_bytes.ok_or(Violation::UnknownType { kind })?;
                Ok(if kind == PROGRESS { MAX_PROGRESS_BYTES } else { most.saturating_add(CALL_ROOM_BYTES) })
            }
            _ => Err(Violation::UnknownType { kind }),
        }
    }
}

#[derive(Deserialize)]
struct CallShape {
    id: u32,
    name: String,
    #[serde(default)]
    args: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct SizeShape {
    bytes: u64,
}

#[derive(Deserialize)]
struct UnreadableShape {
    path: String,
    reason: String,
}

#[derive(Deserialize)]
struct CodeShape {
    code: i32,
}

/// What the host reads of a thrown value; the rest only passes through.
#[derive(Deserialize)]
struct ThrownShape {
    text: String,
    cause: Option<Box<ThrownShape>>,
    #[serde(default)]
    errors: Vec<ThrownShape>,
}

fn parse(kind: u8, payload: &[u8]) -> Result<Frame, Violation> {
    let bad = |reason: String| Violation::Payload { kind, reason };
    if kind == DATA {
        return Ok(Frame::Collected(Piece::Data(payload.to_vec())));
    }
    let text = std::str::from_utf8(payload).map_err(|error| bad(error.to_string()))?;
    let frame = match kind {
        READY => Ok(Frame::Ready),
        STARTED => Ok(Frame::Started),
        DRAINED => Ok(Frame::Drained),
        UNCACHED => Ok(Frame::Uncached),
        RETURNED => parse_result(text).map(Frame::Returned),
        THREW => parse_thrown(text).map(Frame::Threw),
        UNSERIALIZABLE => parse_thrown(text).map(Frame::Unserializable),
        UNCAUGHT => parse_thrown(text).map(Frame::Uncaught),
        INVALID => parse_thrown(text).map(Frame::Invalid),
        TOO_LARGE => serde_json::from_str(text).map(|SizeShape { bytes }| Frame::TooLarge { bytes }),
        EXITING => serde_json::from_str(text).map(|CodeShape { code }| Frame::Exiting { code }),
        CALL => serde_json::from_str(text)
            .map(|CallShape { id, name, args }| Frame::Said(Said::Call { id, name, args })),
        PROGRESS => checked_json(text).map(|json| Frame::Said(Said::Progress(json))),
        YIELDED => checked_json(text).map(|json| Frame::Said(Said::Yielded(json))),
        UNPLACED => parse_thrown(text).map(Frame::Unplaced),
        LISTED => serde_json::from_str(text).map(|files| Frame::Collected(Piece::Listed(files))),
        OPENED => {
            serde_json::from_str(text).map(|SizeShape { bytes }| Frame::Collected(Piece::Opened { bytes }))
        }
        UNREADABLE => serde_json::from_str(text)
            .map(|UnreadableShape { path, reason }| Frame::Collected(Piece::Unreadable { path, reason })),
        _ => return Err(Violation::UnknownType { kind }),
    };
    frame.map_err(|error| bad(error.to_string()))
}

/// Results are passed on as text; that they are JSON is made sure of here, so that parsing them later cannot fail.
fn parse_result(text: &str) -> Result<Option<String>, serde_json::Error> {
    if text.is_empty() {
        return Ok(None);
    }
    checked_json(text).map(Some)
}

fn checked_json(text: &str) -> Result<String, serde_json::Error> {
    serde_json::from_str::<IgnoredAny>(text)?;
    Ok(text.to_owned())
}

fn parse_thrown(text: &str) -> Result<Thrown, serde_json::Error> {
    let shape: ThrownShape = serde_json::from_str(text)?;
    let mut causes = Vec::new();
    collect_causes(&shape, &mut causes);
    Ok(Thrown { text: shape.text, causes, json: text.to_owned() })
}

fn collect_causes(shape: &ThrownShape, lines: &mut Vec<String>) {
    if let Some(cause) = &shape.cause {
        lines.push(format!("[cause]: {}", cause.text));
        collect_causes(cause, lines);
    }
    for (index, error) in shape.errors.iter().enumerate() {
        lines.push(format!("[error {}]: {}", index + 1, error.text));
        collect_causes(error, lines);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_RESULT_BYTES: u64 = 4096;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn decode_all(stream: &[u8], chunk_bytes: usize) -> (Vec<Frame>, Option<Violation>) {
        let mut decoder = Decoder::new(MAX_RESULT_BYTES);
        let mut frames = Vec::new();
        for chunk in stream.chunks(chunk_bytes) {
            decoder.push(chunk);
            let most = HEADER_BYTES + MAX_NOTE_FRAME_BYTES + chunk_bytes;
            assert!(decoder.bytes.len() <= most, "{} bytes are held", decoder.bytes.len());
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(violation) => return (frames, Some(violation)),
                }
            }
        }
        (frames, None)
    }

    fn decode_one(kind: u8, payload: &[u8]) -> Result<Frame, Violation> {
        let (frames, violation) = decode_all(&frame(kind, payload), 7);
        violation.map_or_else(|| Ok(frames[0].clone()), Err)
    }

    fn job() -> Job {
        Job {
            kind: Kind::Module,
            filename: "/r/1/tool.js".into(),
            tool_id: "t".to_owned(),
            cwd: "/r/1".into(),
            tmpdir: "/r/1/tmp".into(),
            tree: "/t".into(),
            env: BTreeMap::from([("TZ".to_owned(), "UTC".to_owned())]),
            line_offset: 1,
            column_offset: 0,
            source_map: None,
            max_result_bytes: 10,
            compile_cache: None,
            compiles_only: false,
            talk: None,
            files: 0,
            collect: None,
            code_cache: None,
            code: "export default 1".to_owned(),
            args: None,
        }
    }

    #[test]
    fn a_job_is_three_frames() {
        let bytes = job().encode().unwrap();
        let header = r#"{"version":2,"kind":"module","filename":"/r/1/tool.js","toolId":"t","cwd":"/r/1","tmpdir":"/r/1/tmp","tree":"/t","env":["TZ","UTC"],"lineOffset":1,"columnOffset":0,"sourceMap":null,"maxResultBytes":10}"#;
        let expected =
            [frame(JOB, header.as_bytes()), frame(SOURCE, b"export default 1"), frame(ARGS, b"null")]
                .concat();
        assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&expected));
    }

    #[test]
    fn a_code_cache_is_a_fourth_frame_and_told_of_before() {
        let job = Job { code_cache: Some([1, 2, 255].into()), compiles_only: true, ..job() };
        let bytes = job.encode().unwrap();
        assert!(bytes.ends_with(&frame(CODE_CACHE, &[1, 2, 255])));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains(r#""maxResultBytes":10,"compilesOnly":true,"hasCodeCache":true}"#), "{text}");
        assert_eq!(header([2, 1, 0, 0, COMPILED]), (COMPILED, 258));
        assert_eq!(decode_one(COMPILED, b""), Err(Violation::UnknownType { kind: COMPILED }));
    }

    #[test]
    fn files_and_what_is_collected_are_told_of_in_the_job() {
        let job = Job { files: 2, collect: Some(vec!["out".to_owned()]), ..job() };
        let text = String::from_utf8_lossy(&job.encode().unwrap()).into_owned();
        assert!(text.contains(r#""maxResultBytes":10,"files":2,"collect":["out"]}"#), "{text}");
        assert_eq!(want_frame("out/a"), frame(WANT, b"out/a"));
        assert_eq!(part_header(Part::FileData, 258), [2, 1, 0, 0, FILE_DATA]);
    }

    #[test]
    fn files_come_only_where_they_are_collected() {
        let stream = [
            frame(LISTED, br#"[["a",1],["b",2]]"#),
            frame(OPENED, br#"{"bytes":2}"#),
            frame(DATA, b"\xff\0"),
            frame(UNREADABLE, br#"{"path":"b","reason":"EACCES"}"#),
        ];
        for one in &stream {
            let mut decoder = Decoder::new(MAX_RESULT_BYTES);
            decoder.push(one);
            assert!(matches!(decoder.next_frame(), Err(Violation::UnknownType { .. })));
        }
        let mut decoder = Decoder::new(MAX_RESULT_BYTES).collecting(true);
        decoder.push(&stream.concat());
        let mut pieces = Vec::new();
        while let Some(Frame::Collected(piece)) = decoder.next_frame().unwrap() {
            pieces.push(piece);
        }
        assert_eq!(
            pieces,
            [
                Piece::Listed(vec![("a".to_owned(), 1), ("b".to_owned(), 2)]),
                Piece::Opened { bytes: 2 },
                Piece::Data(vec![255, 0]),
                Piece::Unreadable { path: "b".to_owned(), reason: "EACCES".to_owned() },
            ]
        );
        let mut decoder = Decoder::new(MAX_RESULT_BYTES).collecting(true);
        decoder.push(&u32::try_from(FILE_CHUNK_BYTES + 1).unwrap().to_le_bytes());
        decoder.push(&[DATA]);
        assert!(matches!(decoder.next_frame(), Err(Violation::TooLarge { kind: DATA, .. })));
    }

    #[test]
    fn a_job_that_is_too_large_says_which_part() {
        let job = Job { args: Some(" ".repeat(MAX_JOB_FRAME_BYTES + 1)), ..job() };
        let message = job.encode().unwrap_err().to_string();
        assert_eq!(
            message,
            "an arguments text of 268435457 bytes is too large, at most 268435456 bytes can be handed to a function"
        );
    }

    #[test]
    fn a_result_keeps_its_text() {
        assert_eq!(decode_one(RETURNED, b""), Ok(Frame::Returned(None)));
        let text = r#"{"a":1e400,"cut":"ab\ud83d","__proto__":{}}"#;
        assert_eq!(decode_one(RETURNED, text.as_bytes()), Ok(Frame::Returned(Some(text.to_owned()))));
        let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
        assert_eq!(decode_one(RETURNED, deep.as_bytes()), Ok(Frame::Returned(Some(deep))));
    }

    #[test]
    fn a_thrown_value_tells_its_causes() {
        let json = r#"{"text":"E: a","fields":{"half":"\ud83d"},"cause":{"text":"b","cause":{"text":"c"}},"errors":[{"text":"d"},{"text":"e","cause":{"text":"f"}}]}"#;
        let Ok(Frame::Threw(thrown)) = decode_one(THREW, json.as_bytes()) else { panic!("no thrown value") };
        assert_eq!(thrown.text, "E: a");
        assert_eq!(thrown.causes, ["[cause]: b", "[cause]: c", "[error 1]: d", "[error 2]: e", "[cause]: f"]);
        assert_eq!(thrown.json, json);
    }

    #[test]
    fn what_is_no_frame_is_a_violation() {
        assert_eq!(decode_one(7, b""), Err(Violation::UnknownType { kind: 7 }));
        assert_eq!(
            decode_one(READY, b"x"),
            Err(Violation::TooLarge { kind: READY, bytes: 1, limit_bytes: 0 })
        );
        let over = vec![b' '; usize::try_from(MAX_RESULT_BYTES).unwrap() + 1];
        assert!(matches!(decode_one(RETURNED, &over), Err(Violation::TooLarge { kind: RETURNED, .. })));
        for (kind, payload) in [
            (RETURNED, "{".as_bytes()),
            (RETURNED, b"\xff"),
            (THREW, b"{}"),
            (THREW, b"\"x\""),
            (THREW, "{\"text\":\"\\ud83d\"}".as_bytes()),
            (TOO_LARGE, b"{\"bytes\":-1}"),
            (EXITING, b"{\"code\":1e99}"),
        ] {
            let decoded = decode_one(kind, payload);
            assert!(matches!(decoded, Err(Violation::Payload { .. })), "{kind}: {decoded:?}");
        }
        let nested =
            format!(r#"{}"text":""{}"#, r#"{"text":"","cause":"#.repeat(100_000), "}".repeat(100_001));
        assert!(decode_one(THREW, nested.as_bytes()).is_err(), "nested without end");
    }

    #[test]
    fn an_announced_size_is_refused_before_it_is_read() {
        let mut decoder = Decoder::new(MAX_RESULT_BYTES);
        decoder.push(&[0xff, 0xff, 0xff, 0xff, THREW]);
        assert!(matches!(decoder.next_frame(), Err(Violation::TooLarge { .. })));
    }

    fn any_frame() -> impl Strategy<Value = (Vec<u8>, Frame)> {
        let thrown = |text: String| {
            let json = serde_json::json!({ "text": text, "cause": { "text": "why" } }).to_string();
            Thrown { text, causes: vec!["[cause]: why".to_owned()], json }
        };
        prop_oneof![
            Just((frame(READY, b""), Frame::Ready)),
            Just((frame(STARTED, b""), Frame::Started)),
            Just((frame(DRAINED, b""), Frame::Drained)),
            Just((frame(UNCACHED, b""), Frame::Uncached)),
            Just((frame(RETURNED, b""), Frame::Returned(None))),
            any::<i32>().prop_map(|code| (
                frame(EXITING, format!("{{\"code\":{code}}}").as_bytes()),
                Frame::Exiting { code }
            )),
            any::<u64>().prop_map(|bytes| (
                frame(TOO_LARGE, format!("{{\"bytes\":{bytes}}}").as_bytes()),
                Frame::TooLarge { bytes }
            )),
            ".{0,200}".prop_map(|text| {
                let json = serde_json::to_string(&text).unwrap();
                (frame(RETURNED, json.as_bytes()), Frame::Returned(Some(json)))
            }),
            (".{0,200}", 0..4_usize).prop_map(move |(text, which)| {
                let thrown = thrown(text);
                let kind = [THREW, UNSERIALIZABLE, UNCAUGHT, INVALID][which];
                let bytes = frame(kind, thrown.json.as_bytes());
                let make = [Frame::Threw, Frame::Unserializable, Frame::Uncaught, Frame::Invalid][which];
                (bytes, make(thrown))
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn frames_come_whole_out_of_any_chunks(
            frames in prop::collection::vec(any_frame(), 0..12),
            chunk_bytes in 1..600_usize,
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            let (decoded, violation) = decode_all(&stream, chunk_bytes);
            prop_assert_eq!(violation, None);
            prop_assert_eq!(decoded, frames.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>());
        }

        #[test]
        fn garbage_never_panics(
            frames in prop::collection::vec(any_frame(), 0..3),
            garbage in prop::collection::vec(any::<u8>(), 0..2000),
            chunk_bytes in 1..600_usize,
        ) {
            let mut stream: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            stream.extend_from_slice(&garbage);
            let (decoded, _) = decode_all(&stream, chunk_bytes);
            prop_assert!(decoded.len() >= frames.len());
        }

        #[test]
        fn any_payload_of_any_type_is_a_frame_or_a_violation(
            kind in 14..40_u8,
            payload in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                "[\\[\\]{}\",:a-f0-9\\\\ ]{0,100}".prop_map(String::into_bytes),
            ],
        ) {
            let (decoded, violation) = decode_all(&frame(kind, &payload), 64);
            prop_assert_eq!(decoded.len() + usize::from(violation.is_some()), 1);
        }
    }
}
