//! What a worker's frames and its end mean for the caller: a result, or an error with the text that people and models read. Pure.

use std::{borrow::Cow, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    breach::{self, End},
    protocol::{Frame, Thrown, Violation},
};
use crate::{
    error::{Code, Exit, Phase, SandboxError},
    limits::CallLimits,
    process::ExitStatus,
    source::{declare, package_of},
};

/// A thrown value and its causes, as far as a missing package is looked for in them.
const CAUSES_LOOKED_AT: usize = 8;

/// Said of a result that JSON cannot carry.
const NOT_JSON: &str = "This is about the value that the function returned: it is sent as JSON, so return plain objects, arrays, texts, numbers, booleans or null";

/// Said of a failed connection of a function without network.
const NO_NETWORK: &str = "The function has no network (option network: \"none\"), so nothing can be reached from it, this machine included";

/// What the kernel, or the host's answer for a name, makes of a refused connection.
const REFUSAL_CODES: &[&str] = &["EACCES", "ENOTFOUND", "EAI_AGAIN", "ENODATA", "ECONNREFUSED"];

/// Codes of Node's errors when the kernel refuses a socket or there is no network in the namespace of the call.
const NO_NETWORK_CODES: &[&str] = &[
    "EPERM",
    "EACCES",
    "ENETUNREACH",
    "EHOSTUNREACH",
    "ECONNREFUSED",
    "EADDRNOTAVAIL",
    "EAI_AGAIN",
    "ENOTFOUND",
    "ECONNABORTED",
    "EAFNOSUPPORT",
];

/// How a call ends: the result as JSON text (`None` for `undefined`), or an error.
pub type Outcome = Result<Option<String>, SandboxError>;

/// What the frames of one worker said so far.
#[derive(Debug, Default)]
pub struct Notes {
    started: bool,
    uncached: bool,
    drained: bool,
    exiting: Option<i32>,
    uncaught: Option<Thrown>,
}

impl Notes {
    /// Takes note of a frame; gives the outcome if it is a settling one. Only the first outcome of a worker counts.
    pub fn take(&mut self, frame: Frame, max_output_bytes: u64) -> Option<Outcome> {
        match frame {
            Frame::Unplaced(thrown) if !self.started => return Some(Err(unplaced(thrown))),
            // What it says before its result is `talk`'s, its files are `files::collect`'s; that one cannot be placed is the function's
            // own word once it may have run.
            Frame::Ready | Frame::Said(_) | Frame::Collected(_) | Frame::Unplaced(_) => {}
            // Once the function may have run, what is said of a cache is its word.
            Frame::Uncached => self.uncached |= !self.started,
            Frame::Started => self.started = true,
            Frame::Drained => self.drained = true,
            Frame::Exiting { code } => self.exiting = Some(code),
            Frame::Uncaught(thrown) => self.uncaught = Some(thrown),
            Frame::Returned(json) => return Some(Ok(json)),
            Frame::Threw(thrown) => return Some(Err(threw(Code::ToolError, Phase::Run, 1, thrown))),
            Frame::Unserializable(thrown) => {
                let error = threw(Code::ResultNotSerializable, Phase::Result, 1, thrown);
                let message = format!("{}\n{NOT_JSON}", error.message);
                return Some(Err(SandboxError { message, ..error }));
            }
            Frame::TooLarge { .. } => return Some(Err(output_limit(Phase::Result, max_output_bytes))),
            Frame::Invalid(thrown) => return Some(Err(invalid(thrown))),
        }
        None
    }

    /// Whether V8 took the code cache that the worker was given, if it got so far. Only for a worker that was given one.
    pub fn took_cache(&self) -> Option<bool> {
        self.started.then_some(!self.uncached)
    }

    /// The error of a worker that ended before anything settled its call. `stderr` is the tail of what it printed.
    pub fn ended(&self, end: End, stderr: &str, limits: &CallLimits) -> SandboxError {
        let exit = self.meant(end.exit);
        breach::of_end(End { exit, ..end }, stderr, limits).unwrap_or_else(|| self.ended_by(exit, stderr))
    }

    /// [`Notes::ended`] for a worker elsewhere, of whose limits only the heap's, `memory_mb`, is this package's.
    pub fn ended_elsewhere(&self, exit: ExitStatus, stderr: &str, memory_mb: u32) -> SandboxError {
        let exit = self.meant(exit);
        breach::of_heap(exit, stderr, memory_mb).unwrap_or_else(|| self.ended_by(exit, stderr))
    }

    fn ended_by(&self, exit: ExitStatus, stderr: &str) -> SandboxError {
        match exit {
            ExitStatus::Lost => self.lost(),
            _ if !self.started => {
                let why = explained(
                    "the worker ended before the function was started (is nodePath, or what the host runs on, a Node?)",
                    stderr,
                );
                SandboxError::new(Code::StartFailed, Phase::Start, format!("{}: {why}", how(exit)))
            }
            ExitStatus::Code(code) => self.exited(code, stderr),
            ExitStatus::Signal(signal) => killed(signal, stderr),
        }
    }

    /// A process that told its exit code and then crashed while Node tore itself down has ended with that code.
    fn meant(&self, exit: ExitStatus) -> ExitStatus {
        match (exit, self.exiting) {
            (ExitStatus::Signal(signal), Some(code)) if signal_name(signal) == Some("SIGSEGV") => {
                ExitStatus::Code(code)
            }
            _ => exit,
        }
    }

    fn exited(&self, code: i32, stderr: &str) -> SandboxError {
        if let Some(thrown) = self.uncaught.as_ref().filter(|_| code != 0) {
            return threw(Code::ToolError, Phase::Run, code, thrown.clone());
        }
        let why = if self.drained {
            "the event loop ran empty before the function settled (a promise that nothing resolves)"
                .to_owned()
        } else if code == 0 || stderr.trim_end().is_empty() {
            "the process exited before the function settled".to_owned()
        } else {
            stderr.trim_end().to_owned()
        };
        let exit = ExitStatus::Code(code);
        let message = format!("{}: {why}", how(exit));
        SandboxError { exit: Exit::of(exit), ..SandboxError::new(Code::Exited, Phase::Run, message) }
    }

    fn lost(&self) -> SandboxError {
        let hint = if self.started {
            "the function had been started, so call it again only if it may run twice"
        } else {
            "nothing of the function ran, so the call can be made again"
        };
        let message = format!(
            "Function execution failed: the process that watched the worker ended, and the worker with it. This is a fault of \
             the host, not of the function; {hint}"
        );
        SandboxError::new(Code::StartFailed, if self.started { Phase::Run } else { Phase::Start }, message)
    }
}

/// The deadline passed.
pub fn timed_out(timeout: Duration) -> SandboxError {
    let message = format!("Function execution timed out after {}ms", milliseconds(timeout));
    SandboxError::new(Code::Timeout, Phase::Run, message)
}

/// An error of a call whose function has returned.
pub fn while_collecting(error: SandboxError) -> SandboxError {
    let message = format!("{}. The function had returned, and its files were being collected", error.message);
    SandboxError { message, phase: Phase::Result, ..error }
}

/// stdout, stderr and result together are larger than `max_output_bytes`.
pub fn output_limit(phase: Phase, max_output_bytes: u64) -> SandboxError {
    let message = format!("Output size exceeded limit of {max_output_bytes} bytes");
    SandboxError::new(Code::OutputLimit, phase, message)
}

/// A file cannot be written into the working folder; where that is for a limit, [`breach::of_thrown`] says so.
fn unplaced(thrown: Thrown) -> SandboxError {
    let message = format!("Function execution failed: a file of the call cannot be placed: {}", thrown.text);
    SandboxError {
        cause_json: Some(thrown.json),
        ..SandboxError::new(Code::FilesFailed, Phase::Start, message)
    }
}

/// The channel carried what is no frame.
pub fn channel_broken(violation: &Violation) -> SandboxError {
    let message = format!(
        "Function execution failed: descriptor 3 belongs to the runtime, but something else wrote to it ({violation}); the \
         result is lost"
    );
    SandboxError::new(Code::ToolError, Phase::Result, message)
}

/// Adds to an error about a module that was not found what to do, if it is one of a package that is not declared. Node names
/// what it did not find in the text only.
pub fn naming_undeclared(error: SandboxError, is_declared: impl Fn(&str) -> bool) -> SandboxError {
    match error.cause_json.as_deref().and_then(missing_package) {
        Some(package) if !is_declared(&package) => {
            let message =
                format!("{}\nThe package `{package}` is missing; {}", error.message, declare(&package));
            SandboxError { message, ..error }
        }
        _ => error,
    }
}

/// Adds to an error of a connection that it could not be made, as the function has no network.
pub fn naming_no_network(error: SandboxError) -> SandboxError {
    if !error.cause_json.as_deref().is_some_and(|thrown| is_about_network(thrown, NO_NETWORK_CODES)) {
        return error;
    }
    let message = format!("{}\n{NO_NETWORK}", error.message);
    SandboxError { message, ..error }
}

/// Adds to an error of a connection which one was refused, if one was, and by which rule.
pub fn naming_refusal(error: SandboxError, refusal: impl FnOnce() -> Option<String>) -> SandboxError {
    let is_meant = error.cause_json.as_deref().is_some_and(|thrown| is_about_network(thrown, REFUSAL_CODES));
    match refusal().filter(|_| is_meant) {
        Some(refusal) => {
            let message = format!("{}\n{refusal} (option network)", error.message);
            SandboxError { message, ..error }
        }
        None => error,
    }
}

/// Whether a thrown value, or one of its causes, is a failed look-up of a name or a failed connection.
fn is_about_network(thrown_json: &str, codes: &[&str]) -> bool {
    let mut at = thrown_json;
    for _ in 0..CAUSES_LOOKED_AT {
        let Ok(link) = serde_json::from_str::<Link<'_>>(at) else { return false };
        let fields: Option<Fields<'_>> = link.fields.and_then(|json| serde_json::from_str(json.get()).ok());
        if let Some(Fields { code: Some(code), syscall: Some(syscall) }) = fields
            && codes.contains(&&*code)
            && ["connect", "getaddrinfo", "socket", "bind", "listen", "send", "query"]
                .iter()
                .any(|name| syscall.starts_with(name))
        {
            return true;
        }
        let Some(cause) = link.cause else { return false };
        at = cause.get();
    }
    false
}

/// The package that a thrown value says was not found, of itself or of one of its causes.
fn missing_package(thrown_json: &str) -> Option<String> {
    let mut at = thrown_json;
    for _ in 0..CAUSES_LOOKED_AT {
        let link: Link<'_> = serde_json::from_str(at).ok()?;
        let fields: Option<Fields<'_>> = link.fields.and_then(|json| serde_json::from_str(json.get()).ok());
        let code = fields.and_then(|fields| fields.code);
        if matches!(code.as_deref(), Some("MODULE_NOT_FOUND" | "ERR_MODULE_NOT_FOUND")) {
            let message = link.message?;
            let rest = message.strip_prefix("Cannot find ")?;
            let quoted = rest.strip_prefix("package '").or_else(|| rest.strip_prefix("module '"))?;
            return package_of(quoted.split_once('\'')?.0).map(str::to_owned);
        }
        at = link.cause?.get();
    }
    None
}

/// What is looked at of a thrown value.
#[derive(Deserialize)]
struct Link<'a> {
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    fields: Option<&'a RawValue>,
    #[serde(borrow)]
    cause: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    code: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    syscall: Option<Cow<'a, str>>,
}

fn threw(code: Code, phase: Phase, exit_code: i32, thrown: Thrown) -> SandboxError {
    let message = format!("{}: {}", how(ExitStatus::Code(exit_code)), with_causes(&thrown));
    let exit = Exit::of(ExitStatus::Code(exit_code));
    SandboxError { cause_json: Some(thrown.json), exit, ..SandboxError::new(code, phase, message) }
}

fn invalid(thrown: Thrown) -> SandboxError {
    let message = with_causes(&thrown);
    SandboxError {
        cause_json: Some(thrown.json),
        ..SandboxError::new(Code::InvalidSource, Phase::Validate, message)
    }
}

fn killed(signal: i32, stderr: &str) -> SandboxError {
    let why = explained("the process was killed before the function settled", stderr);
    let exit = ExitStatus::Signal(signal);
    let message = format!("{}: {why}", how(exit));
    SandboxError { exit: Exit::of(exit), ..SandboxError::new(Code::Killed, Phase::Run, message) }
}

/// What was printed, or `otherwise` if nothing was.
fn explained(otherwise: &str, stderr: &str) -> String {
    match stderr.trim_end() {
        "" => otherwise.to_owned(),
        printed => printed.to_owned(),
    }
}

fn with_causes(thrown: &Thrown) -> String {
    let mut text = thrown.text.clone();
    for cause in &thrown.causes {
        text.push_str("\n ");
        text.push_str(cause);
    }
    text
}

/// The beginning of a text about an end by itself.
pub(super) fn how(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("Function execution failed with code {code}"),
        ExitStatus::Signal(signal) => match signal_name(signal) {
            Some(name) => format!("Function execution killed by signal {name}"),
            None => format!("Function execution killed by signal {signal}"),
        },
        ExitStatus::Lost => "Function execution failed".to_owned(),
    }
}

/// Whole milliseconds where it is whole, as JavaScript prints a number.
fn milliseconds(duration: Duration) -> String {
    let fraction = duration.subsec_nanos() % 1_000_000;
    if fraction == 0 {
        duration.as_millis().to_string()
    } else {
        (duration.as_secs_f64() * 1000.0).to_string()
    }
}

/// The name of a signal, as Node gives it; `None` for one that has none.
#[cfg(unix)]
pub fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

/// Windows ends processes with codes only.
#[cfg(not(unix))]
pub fn signal_name(_signal: i32) -> Option<&'static str> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::group::Counted;

    const LIMITS: CallLimits = CallLimits { memory_mb: 64, ..CallLimits::DEFAULT };

    fn thrown(text: &str, causes: &[&str]) -> Thrown {
        Thrown {
            text: text.to_owned(),
            causes: causes.iter().map(|&cause| cause.to_owned()).collect(),
            json: format!("{{\"text\":\"{text}\"}}"),
        }
    }

    fn settled(frame: Frame) -> SandboxError {
        Notes::default().take(frame, 10).expect("a settling frame").expect_err("an error")
    }

    fn ended_after(frames: &[Frame], exit: ExitStatus, stderr: &str) -> (Code, String) {
        let mut notes = Notes::default();
        for frame in frames {
            assert_eq!(notes.take(frame.clone(), 10), None);
        }
        let error = notes.ended(
            End { exit, cpu_us: 0, oom_killed: false, counted: Counted::default(), in_memory: false },
            stderr,
            &LIMITS,
        );
        (error.code, error.message)
    }

    fn ended(exit: ExitStatus, stderr: &str) -> (Code, String) {
        ended_after(&[Frame::Ready, Frame::Started], exit, stderr)
    }

    #[test]
    fn a_result_is_passed_on() {
        let json = Some("[1]".to_owned());
        assert_eq!(Notes::default().take(Frame::Returned(json.clone()), 10), Some(Ok(json)));
        assert_eq!(Notes::default().take(Frame::Returned(None), 10), Some(Ok(None)));
    }

    #[test]
    fn a_throw_tells_the_error_and_its_causes() {
        let error = settled(Frame::Threw(thrown("TypeError: a", &["[cause]: Error: b", "[cause]: c"])));
        assert_eq!((error.code, error.phase), (Code::ToolError, Phase::Run));
        assert_eq!(
            error.message,
            "Function execution failed with code 1: TypeError: a\n [cause]: Error: b\n [cause]: c"
        );
        assert_eq!(error.cause_json.as_deref(), Some("{\"text\":\"TypeError: a\"}"));
    }

    fn missing(json: &str, declared: &[&str]) -> String {
        let error = SandboxError {
            cause_json: Some(json.to_owned()),
            ..SandboxError::new(Code::ToolError, Phase::Run, "m")
        };
        naming_undeclared(error, |name| declared.contains(&name)).message
    }

    #[test]
    fn a_missing_package_that_is_not_declared_is_named() {
        let hint = |name: &str| {
            format!(
                "m\nThe package `{name}` is missing; declare it in the function's `dependencies`, for example {{ \"{name}\": \"latest\" }}"
            )
        };
        let required = r#"{"text":"","message":"Cannot find module '@a/b/c.js'\nRequire stack:\n- /w","fields":{"code":"MODULE_NOT_FOUND"}}"#;
        assert_eq!(missing(required, &["@a/c"]), hint("@a/b"));
        assert_eq!(missing(required, &["@a/b"]), "m", "what is declared lacks a file, not a declaration");
        let imported = r#"{"text":"","message":"Cannot find package 'x' imported from /w","fields":{"code":"ERR_MODULE_NOT_FOUND"}}"#;
        assert_eq!(missing(imported, &[]), hint("x"));
        assert_eq!(missing(&format!(r#"{{"text":"","message":"m","cause":{imported}}}"#), &[]), hint("x"));
        for other in [
            r#"{"text":"Cannot find package 'x'","message":"Cannot find package 'x'"}"#,
            r#"{"text":"","message":"Cannot find module './x'","fields":{"code":"MODULE_NOT_FOUND"}}"#,
            r#"{"text":"","message":"Cannot find module '/x'","fields":{"code":"ERR_MODULE_NOT_FOUND"}}"#,
            r#"{"text":"","message":"Cannot find x","fields":{"code":"MODULE_NOT_FOUND"}}"#,
            r#"{"text":"","message":5,"fields":{"code":"MODULE_NOT_FOUND"}}"#,
            r#"{"text":"","fields":[1]}"#,
            "no JSON",
        ] {
            assert_eq!(missing(other, &[]), "m", "{other}");
        }
        let deep = format!("{}{imported}{}", r#"{"text":"","cause":"#.repeat(5_000), "}".repeat(5_000));
        assert_eq!(missing(&deep, &[]), "m");
    }

    #[test]
    fn a_connection_that_no_network_refuses_says_so() {
        let told = |json: &str| {
            let error = SandboxError {
                cause_json: Some(json.to_owned()),
                ..SandboxError::new(Code::ToolError, Phase::Run, "m")
            };
            naming_no_network(error).message != "m"
        };
        let refused = r#"{"text":"","message":"connect EPERM","fields":{"code":"EPERM","syscall":"connect","errno":-1}}"#;
        assert!(told(refused));
        assert!(told(&format!(r#"{{"text":"fetch failed","message":"fetch failed","cause":{refused}}}"#)));
        assert!(told(r#"{"text":"","fields":{"code":"EAI_AGAIN","syscall":"getaddrinfo"}}"#));
        assert!(!told(r#"{"text":"","fields":{"code":"EPERM","syscall":"open"}}"#), "a file");
        assert!(!told(r#"{"text":"","fields":{"code":"ENOENT","syscall":"connect"}}"#));
        assert!(!told(r#"{"text":"fetch failed","message":"fetch failed"}"#));
        assert!(!told("no JSON"));
    }

    #[test]
    fn a_refused_connection_is_named_with_its_rule() {
        let told = |json: &str| {
            let error = SandboxError {
                cause_json: Some(json.to_owned()),
                ..SandboxError::new(Code::ToolError, Phase::Run, "m")
            };
            naming_refusal(error, || Some("x.example was refused: not in network.allow".to_owned())).message
        };
        let refused = r#"{"text":"","message":"connect EACCES","fields":{"code":"EACCES","syscall":"connect","errno":-13}}"#;
        assert_eq!(told(refused), "m\nx.example was refused: not in network.allow (option network)");
        assert_eq!(told(r#"{"text":"","fields":{"code":"EACCES","syscall":"open"}}"#), "m");
        assert_ne!(told(r#"{"text":"","fields":{"code":"ENOTFOUND","syscall":"getaddrinfo"}}"#), "m");
    }

    #[test]
    fn a_result_that_is_no_json_says_so() {
        let error =
            settled(Frame::Unserializable(thrown("TypeError: Do not know how to serialize a BigInt", &[])));
        assert_eq!((error.code, error.phase), (Code::ResultNotSerializable, Phase::Result));
        assert_eq!(
            error.message,
            format!(
                "Function execution failed with code 1: TypeError: Do not know how to serialize a BigInt\n{NOT_JSON}"
            )
        );
    }

    #[test]
    fn a_result_that_is_too_large_names_the_limit() {
        let error = settled(Frame::TooLarge { bytes: 11 });
        assert_eq!((error.code, error.phase), (Code::OutputLimit, Phase::Result));
        assert_eq!(error.message, "Output size exceeded limit of 10 bytes");
    }

    #[test]
    fn code_that_does_not_compile_is_invalid() {
        let error = settled(Frame::Invalid(thrown("SyntaxError: Unexpected end (line 2)", &[])));
        assert_eq!((error.code, error.phase), (Code::InvalidSource, Phase::Validate));
        assert_eq!(error.message, "SyntaxError: Unexpected end (line 2)");
    }

    #[test]
    fn an_exit_code_comes_with_what_was_printed() {
        let expect = |exit, stderr, message: &str| {
            assert_eq!(ended(ExitStatus::Code(exit), stderr), (Code::Exited, message.to_owned()));
        };
        expect(7, "config missing\n", "Function execution failed with code 7: config missing");
        expect(
            7,
            " \n",
            "Function execution failed with code 7: the process exited before the function settled",
        );
        expect(
            0,
            "log",
            "Function execution failed with code 0: the process exited before the function settled",
        );
    }

    #[test]
    fn a_drained_loop_is_told() {
        let frames = [Frame::Started, Frame::Drained, Frame::Exiting { code: 0 }];
        let expected = "Function execution failed with code 0: the event loop ran empty before the function settled (a \
                        promise that nothing resolves)";
        assert_eq!(ended_after(&frames, ExitStatus::Code(0), "noise"), (Code::Exited, expected.to_owned()));
    }

    #[test]
    fn an_uncaught_error_counts_if_the_process_ends_of_it() {
        let frames = [Frame::Started, Frame::Uncaught(thrown("Error: pool broke", &[]))];
        assert_eq!(
            ended_after(&frames, ExitStatus::Code(1), "stack"),
            (Code::ToolError, "Function execution failed with code 1: Error: pool broke".to_owned())
        );
        assert_eq!(ended_after(&frames, ExitStatus::Code(0), "").0, Code::Exited);
        assert_eq!(ended_after(&frames, ExitStatus::Signal(libc::SIGKILL), "").0, Code::Killed);
    }

    #[test]
    fn a_signal_is_named() {
        assert_eq!(
            ended(ExitStatus::Signal(libc::SIGKILL), "help\n"),
            (Code::Killed, "Function execution killed by signal SIGKILL: help".to_owned())
        );
        let silent = ended(ExitStatus::Signal(libc::SIGABRT), "").1;
        assert_eq!(
            silent,
            "Function execution killed by signal SIGABRT: the process was killed before the function settled"
        );
        assert!(ended(ExitStatus::Signal(99), "").1.starts_with("Function execution killed by signal 99: "));
        assert_eq!(ended(ExitStatus::Signal(libc::SIGXCPU), "").0, Code::CpuLimit);
        assert_eq!(ended(ExitStatus::Signal(libc::SIGXFSZ), "").0, Code::DiskLimit);
    }

    #[test]
    fn a_full_heap_is_told_as_memory() {
        let v8 =
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n 1: 0xb7c";
        for exit in
            [ExitStatus::Signal(libc::SIGABRT), ExitStatus::Signal(libc::SIGTRAP), ExitStatus::Code(134)]
        {
            let (code, message) = ended(exit, v8);
            assert_eq!(code, Code::MemoryLimit);
            assert!(message.contains("out of memory") && message.contains("64 MB"), "{message}");
        }
        // The words alone are nothing: the tool may print them.
        assert_eq!(ended(ExitStatus::Code(1), v8).0, Code::Exited);
        assert_eq!(ended(ExitStatus::Signal(libc::SIGABRT), "abort").0, Code::Killed);
    }

    #[test]
    fn a_crash_after_the_code_was_told_is_that_code() {
        let frames = [Frame::Started, Frame::Exiting { code: 3 }];
        assert_eq!(
            ended_after(&frames, ExitStatus::Signal(libc::SIGSEGV), "x").1,
            "Function execution failed with code 3: x"
        );
        assert_eq!(ended_after(&frames, ExitStatus::Signal(libc::SIGKILL), "x").0, Code::Killed);
    }

    #[test]
    fn an_end_before_the_start_is_no_fault_of_the_function() {
        assert_eq!(
            ended_after(&[Frame::Ready], ExitStatus::Code(9), "node: bad option\n"),
            (Code::StartFailed, "Function execution failed with code 9: node: bad option".to_owned())
        );
        let (code, message) = ended_after(&[], ExitStatus::Lost, "");
        assert_eq!(code, Code::StartFailed);
        assert!(message.contains("the process that watched the worker ended"), "{message}");
        assert!(message.ends_with("can be made again"), "{message}");
        let (code, message) = ended(ExitStatus::Lost, "");
        assert_eq!(code, Code::StartFailed);
        assert!(message.ends_with("only if it may run twice"), "{message}");
    }

    #[test]
    fn a_timeout_is_told_in_milliseconds() {
        let text = |timeout| timed_out(timeout).message;
        assert_eq!(text(Duration::from_millis(700)), "Function execution timed out after 700ms");
        assert_eq!(text(Duration::from_micros(1500)), "Function execution timed out after 1.5ms");
        assert_eq!(
            text(Duration::from_millis(2_147_484_647)),
            "Function execution timed out after 2147484647ms"
        );
    }
}
