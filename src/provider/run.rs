//! One run in a sandbox elsewhere, seen from the host: what comes over stdout and stderr is the function's output and,
//! between it, the worker's frames. Pure.
//!
//! There is no other channel: a provider hands over two streams of text. Frames stand between marks that begin with the
//! run's nonce, which the runner deletes before the function starts; so nothing that a function prints is taken for one.
//!
//! ```text
//! RS nonce number(8 hex) length(4 hex) type(2 digits) '+' or '.' payload RS LF
//! ```
//!
//! `+`: the payload goes on in the next piece. The payload is JSON in ASCII, and a piece fits into one atomic write to a pipe:
//! what other processes print comes before or after it. Pieces are numbered from 0 on, and `length` is that of the payload: a
//! transport may lose what it carries, or bring it twice.

use std::{collections::BTreeSet, time::Duration};

use serde::Deserialize;

use crate::{
    error::{Code, Phase, SandboxError},
    process::ExitStatus,
    redact::Redactor,
    worker::{
        outcome::{self, Notes, Outcome},
        output::{Tail, Utf8Stream},
        protocol::{Decoder, Frame, MAX_NOTE_FRAME_BYTES},
    },
};

/// Begins and ends a piece of a frame.
const MARK: char = '\u{1e}';
/// The longest piece that is waited for; the runner's are shorter than one page.
const MAX_PIECE_BYTES: usize = 8 * 1024;
/// Escapes make six bytes of one.
const ASCII_FACTOR: u64 = 6;
/// The runner's exit code when the run was started before: a request that was sent twice.
pub const ALREADY_STARTED_EXIT_CODE: i32 = 97;
/// A shell's, and most engines', exit codes where the program could not be started.
const NO_PROGRAM_EXIT_CODES: [i32; 2] = [126, 127];
/// A shell's, and most engines', exit code of a process that a signal ended is this plus the signal's number.
const SIGNAL_EXIT_CODE_BASE: i32 = 128;
/// The runner's own frame: what its process used, in one piece.
const USED: u8 = 26;
/// The highest signal.
const MAX_SIGNAL: i32 = 64;

/// Where text came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Output and frames.
    Stdout,
    /// Output.
    Stderr,
}

/// How far the process that prints has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has told nothing; another process may have the run.
    Nothing,
    /// The run is its own.
    Claimed,
    /// The function may have run.
    Started,
}

/// What the process of a run used, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// Processor time (user and system), microseconds.
    pub cpu_us: u64,
    /// Peak resident set, KiB.
    pub max_rss_kib: u64,
}

/// What a chunk was.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// The function's own output in it.
    pub text: String,
    /// How the call ends, if that shows by now. Given once.
    pub settled: Option<Outcome>,
}

/// The state of one run.
#[derive(Debug)]
pub struct Run {
    open: String,
    pending: String,
    skip_line_end: bool,
    /// The number of the next piece.
    next_piece: u32,
    frame: Option<(u8, String)>,
    decoder: Decoder,
    notes: Notes,
    progress: Progress,
    exiting: Option<i32>,
    settled: bool,
    used: Option<Used>,
    used_bytes: u64,
    max_output_bytes: u64,
    memory_mb: u32,
    declared: BTreeSet<String>,
    redactor: Redactor,
    chars: [Utf8Stream; 2],
    tails: [Tail; 2],
}

impl Run {
    /// `nonce`: as the runner has it, hexadecimal. `memory_mb` is the heap limit, for texts.
    pub fn new(nonce: &str, max_output_bytes: u64, memory_mb: u32) -> Self {
        Self {
            open: format!("{MARK}{nonce}"),
            pending: String::new(),
            skip_line_end: false,
            next_piece: 0,
            frame: None,
            decoder: Decoder::new(max_output_bytes.saturating_mul(ASCII_FACTOR)),
            notes: Notes::default(),
            progress: Progress::Nothing,
            exiting: None,
            settled: false,
            used: None,
            used_bytes: 0,
            max_output_bytes,
            memory_mb,
            declared: BTreeSet::new(),
            redactor: Redactor::default(),
            chars: Default::default(),
            tails: Default::default(),
        }
    }

    /// With the names of the declared dependencies: an error about a package that is not among them says so.
    #[must_use]
    pub fn declaring(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { declared: names.into_iter().collect(), ..self }
    }

    /// With the secrets of the call: errors have none of them.
    #[must_use]
    pub fn redacting(self, redactor: Redactor) -> Self {
        Self { redactor, ..self }
    }

    /// Takes a chunk of a stream, cut anywhere.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) -> Taken {
        let text = self.chars[stream as usize].push(bytes);
        match stream {
            Stream::Stderr => self.printed(stream, text),
            Stream::Stdout => self.read(&text),
        }
    }

    /// The command ended; `None` when with what is not known. The outcome of a run that nothing has settled.
    pub fn ended(&mut self, exit_code: Option<i32>) -> Outcome {
        let rest = std::mem::take(&mut self.pending);
        if let Some(outcome) = self.printed(Stream::Stdout, rest).settled {
            return outcome;
        }
        let error = match (exit_code, self.progress) {
            (None, _) => Self::unknown("the sandbox did not say how the run ended"),
            // It tells how it ends, unless it is killed.
            (Some(0), Progress::Started) if self.exiting.is_none() => {
                Self::unknown("what it printed broke off before its end")
            }
            (Some(code), Progress::Started) => {
                let stderr = self.tail(Stream::Stderr);
                self.notes.ended_elsewhere(self.exit_status(code), &stderr, self.memory_mb)
            }
            (Some(code), Progress::Claimed) if self.exiting.is_some() => self.not_started(code),
            (Some(code), Progress::Claimed) => Self::unknown(&format!(
                "its process ended with code {code}, and whether it had started the function was not told"
            )),
            (Some(ALREADY_STARTED_EXIT_CODE), Progress::Nothing) => {
                Self::unknown("the request that started the run was answered twice or never, and came again")
            }
            (Some(code), Progress::Nothing) if NO_PROGRAM_EXIT_CODES.contains(&code) => {
                self.not_started(code)
            }
            // The request may have come twice, and what ended here be the one that did not get the run.
            (Some(code), Progress::Nothing) => self.never_claimed(code),
        };
        Err(self.failed(error))
    }

    /// What the process used; known at its end, where that was not a kill.
    pub fn used(&self) -> Option<Used> {
        self.used
    }

    /// Bytes of output and result so far.
    pub fn output_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The deadline passed.
    pub fn timed_out(&self, timeout: Duration) -> SandboxError {
        self.with_tails(outcome::timed_out(timeout))
    }

    /// The answer will not come. Whether the function ran is not known, so nobody may run it again but its caller.
    pub fn lost(&self, reason: &str) -> SandboxError {
        self.with_tails(Self::unknown(reason))
    }

    fn unknown(reason: &str) -> SandboxError {
        let message = format!(
            "The outcome of the function is unknown: {reason}. It may have run, and was not run again; call it again only if it \
             may run twice"
        );
        SandboxError::new(Code::OutcomeUnknown, Phase::Run, message)
    }

    fn never_claimed(&self, code: i32) -> SandboxError {
        let printed = self.tail(Stream::Stderr);
        let why =
            format!("its process ended with code {code} before it had taken the job {}", printed.trim_end());
        Self::unknown(why.trim_end())
    }

    fn not_started(&self, code: i32) -> SandboxError {
        let printed = self.tail(Stream::Stderr);
        let why = match printed.trim_end() {
            "" => "the run ended before the function was started",
            printed => printed,
        };
        let message = format!("Function execution failed with code {code}: {why}");
        SandboxError::new(Code::StartFailed, Phase::Start, message)
    }

    fn exit_status(&self, code: i32) -> ExitStatus {
        let signal = code - SIGNAL_EXIT_CODE_BASE;
        if self.exiting != Some(code) && (1..=MAX_SIGNAL).contains(&signal) {
            ExitStatus::Signal(signal)
        } else {
            ExitStatus::Code(code)
        }
    }

    fn tail(&self, stream: Stream) -> String {
        self.tails[stream as usize].text()
    }

    fn with_tails(&self, error: SandboxError) -> SandboxError {
        self.redactor.error(SandboxError {
            stdout: Some(self.tail(Stream::Stdout)),
            stderr: Some(self.tail(Stream::Stderr)),
            ..error
        })
    }

    fn settle(&mut self, outcome: Outcome) -> Option<Outcome> {
        if std::mem::replace(&mut self.settled, true) {
            return None;
        }
        Some(outcome.map_err(|error| self.failed(error)))
    }

    fn failed(&self, error: SandboxError) -> SandboxError {
        self.with_tails(outcome::naming_undeclared(error, |name| self.declared.contains(name)))
    }

    fn printed(&mut self, stream: Stream, text: String) -> Taken {
        self.tails[stream as usize].push(text.as_bytes());
        let settled = self.spend(text.len() as u64, Phase::Run);
        Taken { text, settled }
    }

    fn spend(&mut self, bytes: u64, phase: Phase) -> Option<Outcome> {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
        if self.used_bytes <= self.max_output_bytes {
            return None;
        }
        self.settle(Err(outcome::output_limit(phase, self.max_output_bytes)))
    }

    fn read(&mut self, text: &str) -> Taken {
        let mut buffer = std::mem::take(&mut self.pending);
        buffer.push_str(text);
        let mut rest = buffer.as_str();
        let mut printed = String::new();
        let mut settled = None;
        while !rest.is_empty() {
            if std::mem::take(&mut self.skip_line_end) {
                rest = rest.strip_prefix('\n').unwrap_or(rest);
            }
            let Some(at) = rest.find(MARK) else {
                printed.push_str(rest);
                rest = "";
                break;
            };
            printed.push_str(&rest[..at]);
            rest = &rest[at..];
            let Some(piece) = rest.strip_prefix(self.open.as_str()) else {
                if self.open.starts_with(rest) {
                    break;
                }
                printed.push(MARK);
                rest = &rest[MARK.len_utf8()..];
                continue;
            };
            match piece.find(MARK) {
                Some(end) => {
                    settled = settled.or(self.piece(&piece[..end]));
                    rest = &piece[end + MARK.len_utf8()..];
                    self.skip_line_end = true;
                }
                None if piece.len() <= MAX_PIECE_BYTES => break,
                None => {
                    settled = settled.or(self.broken("a piece without an end"));
                    rest = "";
                }
            }
        }
        self.pending = rest.to_owned();
        let taken = self.printed(Stream::Stdout, printed);
        Taken { settled: settled.or(taken.settled), ..taken }
    }

    fn piece(&mut self, piece: &str) -> Option<Outcome> {
        let Some(Piece { number, kind, more, payload }) = Piece::read(piece) else {
            return self.broken("a malformed piece");
        };
        match number.checked_sub(self.next_piece) {
            Some(0) => self.next_piece += 1,
            Some(_) => return self.broken("a piece is missing"),
            // It came before.
            None => return None,
        }
        let (known, mut whole) = self.frame.take().unwrap_or_else(|| (kind, String::new()));
        if known != kind {
            return self.broken("a piece of another frame");
        }
        whole.push_str(payload);
        let limit_bytes = self.max_output_bytes.saturating_mul(ASCII_FACTOR);
        if whole.len() as u64 > limit_bytes.max(MAX_NOTE_FRAME_BYTES as u64) {
            return self.settle(Err(outcome::output_limit(Phase::Result, self.max_output_bytes)));
        }
        if more {
            self.frame = Some((kind, whole));
            return None;
        }
        if kind == USED {
            // A function that spoils it has no usage.
            self.used = serde_json::from_str(&whole).ok();
            return None;
        }
        self.whole(kind, &whole)
    }

    fn whole(&mut self, kind: u8, payload: &str) -> Option<Outcome> {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.decoder.push(&length.to_le_bytes());
        self.decoder.push(&[kind]);
        self.decoder.push(payload.as_bytes());
        let frame = match self.decoder.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return None,
            Err(violation) => return self.settle(Err(outcome::channel_broken(&violation))),
        };
        match frame {
            Frame::Ready => self.progress = Progress::Claimed,
            Frame::Started => self.progress = Progress::Started,
            Frame::Exiting { code } => self.exiting = Some(code),
            _ => {}
        }
        let result_bytes = match &frame {
            Frame::Returned(Some(json)) => unescaped_bytes(json),
            _ => 0,
        };
        let outcome = self.notes.take(frame, self.max_output_bytes)?;
        self.spend(result_bytes, Phase::Result).or_else(|| self.settle(outcome))
    }

    fn broken(&mut self, what: &str) -> Option<Outcome> {
        let message = format!("Function execution failed: the result was garbled on its way ({what})");
        self.settle(Err(SandboxError::new(Code::OutcomeUnknown, Phase::Result, message)))
    }
}

/// A piece of a frame, between its nonce and its end.
struct Piece<'a> {
    number: u32,
    kind: u8,
    more: bool,
    payload: &'a str,
}

impl<'a> Piece<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let hex = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let number = hex(text.get(..8)?)?;
        let length = hex(text.get(8..12)?)?;
        let kind = text.get(12..14)?.parse().ok()?;
        let more = match text.get(14..15)? {
            "+" => true,
            "." => false,
            _ => return None,
        };
        let payload = text.get(15..)?;
        let is_whole = payload.is_ascii() && usize::try_from(length) == Ok(payload.len());
        is_whole.then_some(Self { number, kind, more, payload })
    }
}

/// Bytes of `json` in UTF-8 with the escapes undone that ASCII needs.
fn unescaped_bytes(json: &str) -> u64 {
    let mut bytes = json.len();
    for (at, _) in json.match_indices("\\u") {
        let Some(unit) = json.get(at + 2..at + 6).and_then(|digits| u16::from_str_radix(digits, 16).ok())
        else {
            continue;
        };
        bytes -= match unit {
            0..0x80 => 0,
            // The latter: half of a pair that has four bytes.
            0x80..0x800 | 0xd800..0xe000 => 4,
            _ => 3,
        };
    }
    bytes as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: &str = "0123456789abcdef";
    const LIMIT_BYTES: u64 = 1_000;

    fn run() -> Run {
        Run::new(NONCE, LIMIT_BYTES, 64)
    }

    fn piece(number: u32, kind: u8, more: char, payload: &str) -> String {
        format!("{MARK}{NONCE}{number:08x}{:04x}{kind:02}{more}{payload}{MARK}\n", payload.len())
    }

    fn all(run: &mut Run, text: &str) -> Taken {
        run.push(Stream::Stdout, text.as_bytes())
    }

    fn code(outcome: Option<Outcome>) -> Code {
        outcome.expect("settled").expect_err("an error").code
    }

    #[test]
    fn output_and_result_come_apart() {
        let mut run = run();
        let text = format!("a{}b\nc{}d", piece(0, 17, '.', ""), piece(1, 18, '.', "[1]"));
        let taken = all(&mut run, &text);
        assert_eq!(taken.text, "ab\ncd");
        assert_eq!(taken.settled, Some(Ok(Some("[1]".to_owned()))));
        assert_eq!(all(&mut run, &piece(2, 18, '.', "[2]")).settled, None, "the first counts");
    }

    #[test]
    fn what_the_process_used_is_told_beside_the_outcome() {
        let mut run = run();
        assert_eq!(run.used(), None);
        let text =
            format!("{}{}", piece(0, 18, '.', "[1]"), piece(1, 26, '.', r#"{"cpuUs":7,"maxRssKib":9}"#));
        assert_eq!(all(&mut run, &text).settled, Some(Ok(Some("[1]".to_owned()))));
        assert_eq!(run.used(), Some(Used { cpu_us: 7, max_rss_kib: 9 }));
        all(&mut run, &piece(2, 26, '.', "spoilt"));
        assert_eq!(run.used(), None);
    }

    #[test]
    fn what_only_looks_like_a_frame_is_output() {
        let mut run = run();
        let forged = format!("{MARK}0123456789abcdee18.[2]{MARK}\n{MARK}{MARK}.");
        assert_eq!(all(&mut run, &forged), Taken { text: forged, settled: None });
    }

    #[test]
    fn a_package_that_is_not_declared_is_named() {
        let thrown = piece(
            0,
            19,
            '.',
            r#"{"text":"Error: Cannot find module 'got'","name":"Error","message":"Cannot find module 'got'","fields":{"code":"MODULE_NOT_FOUND"}}"#,
        );
        let message =
            |mut run: Run| all(&mut run, &thrown).settled.expect("settled").expect_err("an error").message;
        assert!(message(run()).contains("The package `got` is missing"));
        assert!(!message(run().declaring(["got".to_owned()])).contains("is missing"));
    }

    #[test]
    fn a_long_result_comes_in_pieces() {
        let mut run = run();
        assert_eq!(all(&mut run, &piece(0, 18, '+', "[1,")).settled, None);
        assert_eq!(all(&mut run, "between").text, "between");
        assert_eq!(all(&mut run, &piece(1, 18, '.', "2]")).settled, Some(Ok(Some("[1,2]".to_owned()))));
    }

    #[test]
    fn output_and_result_share_the_limit() {
        let mut over = run();
        assert_eq!(code(over.push(Stream::Stderr, &[b'x'; 1_001]).settled), Code::OutputLimit);
        let mut over = run();
        assert_eq!(all(&mut over, &"x".repeat(990)).settled, None);
        assert_eq!(code(all(&mut over, &piece(0, 18, '.', "\"12345678901\"")).settled), Code::OutputLimit);
        let mut fits = run();
        assert_eq!(all(&mut fits, &"x".repeat(990)).settled, None);
        let taken = all(&mut fits, &piece(0, 18, '.', "\"\\u20ac\\u20ac\""));
        assert!(matches!(taken.settled, Some(Ok(Some(_)))), "{taken:?}: 8 bytes, not 14");
    }

    #[test]
    fn a_result_without_end_is_cut_off() {
        let mut run = run();
        let payload = "1".repeat(4_000);
        let settled = (0..1_000).find_map(|number| all(&mut run, &piece(number, 18, '+', &payload)).settled);
        assert_eq!(code(settled), Code::OutputLimit);
    }

    #[test]
    fn what_comes_twice_counts_once() {
        let mut run = run();
        let [one, two] = [piece(0, 18, '+', "\"aa"), piece(1, 18, '.', "bb\"")];
        assert_eq!(all(&mut run, &format!("{one}{one}")).settled, None);
        assert_eq!(all(&mut run, &format!("{one}{two}")).settled, Some(Ok(Some("\"aabb\"".to_owned()))));
    }

    #[test]
    fn what_is_lost_of_a_result_is_missed() {
        let result = [piece(0, 18, '+', "\"aa"), piece(1, 18, '+', "bb"), piece(2, 18, '.', "cc\"")];
        for left in [[0, 2], [1, 2]] {
            let mut run = run();
            let stream: String = left.iter().map(|&number| result[number].as_str()).collect();
            assert_eq!(code(all(&mut run, &stream).settled), Code::OutcomeUnknown, "{left:?}");
        }
        let mut run = run();
        let cut = result[0].replace("aa", "a");
        assert_eq!(code(all(&mut run, &cut).settled), Code::OutcomeUnknown, "a part of a piece");
    }

    #[test]
    fn the_end_says_what_happened() {
        let ended = |frames: &[String], stderr: &str, exit: Option<i32>| {
            let mut run = run();
            for frame in frames {
                assert_eq!(all(&mut run, frame).settled, None);
            }
            run.push(Stream::Stderr, stderr.as_bytes());
            let error = run.ended(exit).expect_err("an error");
            (error.code, error.message)
        };
        let started = piece(0, 17, '.', "");
        let exiting = piece(1, 24, '.', "{\"code\":137}");
        assert_eq!(ended(&[], "no node", Some(127)).0, Code::StartFailed);
        assert_eq!(ended(&[], "", Some(137)).0, Code::OutcomeUnknown, "another process may have the run");
        let ready = piece(0, 16, '.', "");
        let not_started = [ready.clone(), piece(1, 24, '.', "{\"code\":1}")];
        assert_eq!(ended(&not_started, "", Some(1)).0, Code::StartFailed);
        assert_eq!(ended(&[ready], "", Some(1)).0, Code::OutcomeUnknown, "what followed may be lost");
        assert_eq!(ended(&[], "", Some(ALREADY_STARTED_EXIT_CODE)).0, Code::OutcomeUnknown);
        assert_eq!(ended(std::slice::from_ref(&started), "", None).0, Code::OutcomeUnknown);
        assert_eq!(ended(std::slice::from_ref(&started), "", Some(97)).0, Code::Exited);
        assert_eq!(ended(std::slice::from_ref(&started), "", Some(0)).0, Code::OutcomeUnknown, "broken off");
        assert_eq!(ended(&[started.clone(), exiting], "", Some(137)).0, Code::Exited);
        let (code, message) = ended(&[started], "", Some(137));
        assert_eq!(code, Code::Killed);
        assert!(message.starts_with("Function execution killed by signal SIGKILL"), "{message}");
    }

    #[test]
    fn escaped_bytes_are_counted_as_what_they_stand_for() {
        for text in ["plain", "é", "€", "😀"] {
            let mut escaped = String::new();
            for unit in text.encode_utf16() {
                match u8::try_from(unit) {
                    Ok(byte) if byte.is_ascii() => escaped.push(char::from(byte)),
                    _ => escaped.extend([format!("\\u{unit:04x}")]),
                }
            }
            assert_eq!(unescaped_bytes(&escaped), text.len() as u64, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn chunks_may_be_cut_anywhere(
            parts in prop::collection::vec(prop_oneof!["[a-z\u{1e}\n€]{0,6}".prop_map(Ok), Just(Err(()))], 0..8),
            cuts in prop::collection::vec(1..40_usize, 1..30),
        ) {
            let mut expected = String::new();
            let mut stream = piece(0, 17, '.', "");
            let mut number = 0;
            for part in parts {
                if let Ok(text) = part {
                    expected.push_str(&text);
                    stream.push_str(&text);
                } else {
                    number += 1;
                    stream.push_str(&piece(number, 16, '.', ""));
                }
            }
            stream.push_str(&piece(number + 1, 18, '.', "7"));
            let (mut run, mut found, mut settled) = (run(), String::new(), Vec::new());
            let mut rest = stream.as_bytes();
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() { break }
                let (chunk, later) = rest.split_at(cut.min(rest.len()));
                let taken = run.push(Stream::Stdout, chunk);
                found.push_str(&taken.text);
                settled.extend(taken.settled);
                rest = later;
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(settled, vec![Ok(Some("7".to_owned()))]);
        }
    }
}
