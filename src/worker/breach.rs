//! Which limit ended a call, told from what is left of it: the thrown value, the signal, the last words of V8 or of C++. Pure.
//!
//! | sign | limit |
//! | --- | --- |
//! | V8 aborts and names the heap limit | heap |
//! | V8 or C++ aborts for want of memory otherwise; a thrown `RangeError` of an allocation, `ENOMEM` | memory outside of the heap |
//! | SIGKILL, and the call's control group has counted a process killed for memory | the call's memory |
//! | SIGKILL that nobody sent, and the kernel has counted one more process killed for memory | the machine's memory |
//! | an abort without such words, and the call's control group has refused a process or thread | processes |
//! | SIGXCPU; SIGKILL once the CPU time is used up | CPU time |
//! | SIGXFSZ; a thrown `EFBIG` | size of a file |
//! | a thrown `ENOSPC`, where run folders are on a file system with that limit | disk space and files of the call |
//! | a thrown `EMFILE` | open files (no code of its own: the function's error, with the limit) |
//! | a thrown `EAGAIN` of a process or thread, where the call itself has had many | processes |
//! | a thrown `EAGAIN` or `ENOMEM` of a process otherwise | none: others took what there was (the function's error, with a word on that) |

use serde::Deserialize;
use serde_json::value::RawValue;

use super::outcome::signal_name;
use crate::{
    error::{Code, Phase, SandboxError},
    group::Counted,
    limits::{CallLimits, DISK_LIMIT_FILES},
    process::ExitStatus,
};

/// What V8 says, and nobody else, when the heap has reached its limit.
const HEAP_WORDS: [&str; 2] = ["Reached heap limit", "near heap limit"];
/// What it says when the system gave it no memory below that limit.
const SYSTEM_WORDS: [&str; 5] = [
    "process out of memory",
    "Committing semi space failed",
    "Failed to reserve virtual memory",
    "NewSpace::EnsureCurrentCapacity",
    "bad_alloc",
];
/// What it says in both cases.
const MEMORY_WORDS: [&str; 3] = ["heap out of memory", "Allocation failed", "JavaScript out of memory"];
/// What the `RangeError` of an allocation says that the system refused.
const ALLOCATION_WORDS: [&str; 4] = [
    "Array buffer allocation failed",
    "could not allocate memory",
    "Unable to grow instance memory",
    "Cannot allocate Wasm memory",
];

/// How a worker's main process ended, with what the system knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Code or signal.
    pub exit: ExitStatus,
    /// Microseconds that it and its waited-for children took.
    pub cpu_us: u64,
    /// Whether the kernel has killed for want of memory meanwhile.
    pub oom_killed: bool,
    /// What the call's own control group has counted.
    pub counted: Counted,
    /// Whether what it wrote was in memory, and so in that group's.
    pub in_memory: bool,
}

/// The error of a process that a limit ended; `None` when it ended otherwise. `stderr` is the tail of what it printed.
pub fn of_end(end: End, stderr: &str, limits: &CallLimits) -> Option<SandboxError> {
    let (code, why) = match end.exit {
        ExitStatus::Signal(signal) => match signal_name(signal) {
            Some("SIGXCPU") => (Code::CpuLimit, cpu_words(limits)),
            // A function that handles SIGXCPU gets the signal that cannot be handled a second later.
            Some("SIGKILL") if limits.cpu_seconds.is_some_and(|limit| end.cpu_us >= u64::from(limit) * 1_000_000) => {
                (Code::CpuLimit, cpu_words(limits))
            }
            Some("SIGKILL") if end.counted.out_of_memory => (Code::MemoryLimit, group_words(limits, end.in_memory)),
            Some("SIGKILL") if end.oom_killed => (
                Code::MemoryLimit,
                "the machine or its container ran out of memory, and the kernel ended the process; hold less at once, or give \
                 the machine more"
                    .to_owned(),
            ),
            Some("SIGXFSZ") => (Code::DiskLimit, file_words(limits)),
            Some("SIGABRT" | "SIGTRAP" | "SIGILL") => of_abort(end, stderr, limits)?,
            _ => return None,
        },
        // 128 + the signal, as a shell or Node itself tells it.
        ExitStatus::Code(133 | 134) => of_abort(end, stderr, limits)?,
        ExitStatus::Code(_) | ExitStatus::Lost => return None,
    };
    Some(SandboxError::new(code, Phase::Run, format!("{}: {why}", super::outcome::how(end.exit))))
}

/// Node aborts where it gets no memory, and where it gets no thread.
fn of_abort(end: End, stderr: &str, limits: &CallLimits) -> Option<(Code, String)> {
    let memory = memory_words(stderr, limits).map(|words| (Code::MemoryLimit, words));
    memory.or_else(|| end.counted.tasks_refused.then(|| (Code::ProcessLimit, process_words(limits))))
}

/// [`of_end`] where V8's own limit is the only one that is known.
pub fn of_heap(exit: ExitStatus, stderr: &str, memory_mb: u32) -> Option<SandboxError> {
    let is_abort = match exit {
        ExitStatus::Signal(signal) => matches!(signal_name(signal), Some("SIGABRT" | "SIGTRAP" | "SIGILL")),
        ExitStatus::Code(code) => matches!(code, 133 | 134),
        ExitStatus::Lost => false,
    };
    (is_abort && says(stderr, &HEAP_WORDS)).then(|| {
        let message = format!("{}: {}", super::outcome::how(exit), heap_words(memory_mb));
        SandboxError::new(Code::MemoryLimit, Phase::Run, message)
    })
}

fn says(stderr: &str, words: &[&str]) -> bool {
    words.iter().any(|one| stderr.contains(one))
}

fn heap_words(memory_mb: u32) -> String {
    format!(
        "JavaScript heap out of memory, the limit is {memory_mb} MB; hold less at once, or raise memoryMb"
    )
}

fn memory_words(stderr: &str, limits: &CallLimits) -> Option<String> {
    let says = |words: &[&str]| says(stderr, words);
    if says(&HEAP_WORDS) {
        return Some(heap_words(limits.memory_mb));
    }
    if says(&SYSTEM_WORDS) {
        return Some(native_words(limits));
    }
    (stderr.contains("FATAL ERROR:") || stderr.contains("Fatal ")).then_some(())?;
    says(&MEMORY_WORDS).then(|| {
        format!(
            "JavaScript heap out of memory, the limits are {} MB of heap and {} MB outside of it; hold less at once, or raise \
             memoryMb or nativeMemoryMb",
            limits.memory_mb, limits.native_memory_mb
        )
    })
}

fn native_words(limits: &CallLimits) -> String {
    format!(
        "out of memory outside of the JavaScript heap (buffers, WebAssembly, threads, native code), the limit is {} MB; hold \
         less at once, or raise nativeMemoryMb",
        limits.native_memory_mb
    )
}

fn group_words(limits: &CallLimits, in_memory: bool) -> String {
    let written =
        if in_memory { format!(" (with {} MB for what it writes)", limits.disk_mb) } else { String::new() };
    format!(
        "out of memory: all processes of the call together, with what is cached of files and what the kernel holds for them, reached \
         {} MB, for limits of {} MB of JavaScript heap and {} MB outside of it{written}; hold less at once, or raise memoryMb or \
         nativeMemoryMb",
        limits.of_group(None, in_memory).memory_bytes / (1024 * 1024),
        limits.memory_mb,
        limits.native_memory_mb
    )
}

fn cpu_words(limits: &CallLimits) -> String {
    let limit = limits.cpu_seconds.map_or_else(String::new, |limit| format!(", the limit is {limit} s"));
    format!("CPU time is used up{limit}; compute less, or raise cpuSeconds")
}

fn file_words(limits: &CallLimits) -> String {
    format!("a file grew too large, the limit is {} MB; write less, or raise fileSizeMb", limits.file_size_mb)
}

/// What the call itself was seen to hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak {
    /// Processes.
    pub processes: u64,
    /// Their threads.
    pub threads: u64,
    /// Their memory.
    pub memory_bytes: u64,
}

impl Peak {
    /// The larger of both, each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            processes: self.processes.max(other.processes),
            threads: self.threads.max(other.threads),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// What tells a limit of the call's own from a want that others have caused.
pub struct Own<'a> {
    /// Its limits.
    pub limits: &'a CallLimits,
    /// It is the call's own limit that leaves it no room to write.
    pub room_is_limited: bool,
    /// What its control group has counted.
    pub counted: &'a dyn Fn() -> Counted,
    /// What it has held, with a look now.
    pub peak: &'a dyn Fn() -> Peak,
}

impl Own<'_> {
    /// The kernel counts processes of a user, of a container and of the machine as well: others may have taken those. Looks are too rare
    /// for the exact number.
    fn has_many_threads(&self) -> bool {
        (self.counted)().tasks_refused || (self.peak)().threads >= u64::from(self.limits.tasks()) / 2
    }

    fn has_much_memory(&self) -> bool {
        let peak = (self.peak)();
        (self.counted)().out_of_memory || peak.memory_bytes >= self.limits.resident_bytes(peak.processes) / 2
    }
}

/// `error` as the limit that it is about, if what was thrown says so.
pub fn of_thrown(error: SandboxError, own: &Own<'_>) -> SandboxError {
    let can_be_limit = matches!(error.code, Code::ToolError | Code::FilesFailed);
    let thrown = error.cause_json.as_deref().filter(|_| can_be_limit);
    let Some((code, words)) = thrown.and_then(|json| limit_of(json, own)) else {
        return error;
    };
    SandboxError { message: format!("{}\n {words}", error.message), code, ..error }
}

#[derive(Deserialize)]
struct Thrown<'a> {
    name: Option<String>,
    message: Option<String>,
    #[serde(borrow)]
    fields: Option<&'a RawValue>,
    #[serde(borrow)]
    cause: Option<Box<Thrown<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Fields {
    code: Option<String>,
    syscall: Option<String>,
}

fn limit_of(json: &str, own: &Own<'_>) -> Option<(Code, String)> {
    let mut thrown: Option<Box<Thrown<'_>>> = serde_json::from_str(json).ok();
    while let Some(one) = thrown {
        if let Some(found) = limit_of_one(&one, own) {
            return Some(found);
        }
        thrown = one.cause;
    }
    None
}

fn limit_of_one(thrown: &Thrown<'_>, own: &Own<'_>) -> Option<(Code, String)> {
    let limits = own.limits;
    let message = thrown.message.as_deref().unwrap_or_default();
    let is_range = thrown.name.as_deref() == Some("RangeError");
    if is_range && ALLOCATION_WORDS.iter().any(|words| message.contains(words)) {
        return Some((Code::MemoryLimit, native_words(limits)));
    }
    let fields: Fields = serde_json::from_str(thrown.fields?.get()).ok()?;
    let call = fields.syscall.as_deref().unwrap_or_default();
    let is_spawn = call.starts_with("spawn");
    match fields.code.as_deref()? {
        "EFBIG" => Some((Code::DiskLimit, file_words(limits))),
        // `fs.watch` is told so of want of another kind.
        "ENOSPC" if own.room_is_limited && call != "watch" => Some((Code::DiskLimit, room_words(limits))),
        "ENOMEM" if is_spawn && !own.has_much_memory() => Some((Code::ToolError, OTHERS_MEMORY.to_owned())),
        "ENOMEM" | "ERR_WORKER_OUT_OF_MEMORY" => Some((Code::MemoryLimit, native_words(limits))),
        "EAGAIN" if is_spawn => Some(of_refused_task(own)),
        "ERR_WORKER_INIT_FAILED" if message.contains("EAGAIN") => Some(of_refused_task(own)),
        // A number of watchers for each user, which others have, too.
        "EMFILE" if call == "watch" => None,
        "EMFILE" => Some((
            Code::ToolError,
            format!(
                "too many files are open, the limit is {}; close what is not needed, or raise openFiles",
                limits.open_files
            ),
        )),
        _ => None,
    }
}

fn of_refused_task(own: &Own<'_>) -> (Code, String) {
    if own.has_many_threads() {
        return (Code::ProcessLimit, process_words(own.limits));
    }
    (Code::ToolError, OTHERS_TASKS.to_owned())
}

/// The call's own limit is far.
const OTHERS_TASKS: &str = "the machine, its container or the server's user has no process or thread left, and it is not this call that has \
                            them; try again, or raise the limit of processes there (ulimit -u, pids.max)";
/// The call's own limit is far.
const OTHERS_MEMORY: &str = "the machine or its container has no memory left for another process, and it is not this call that holds it; \
                             try again, or give the machine more";

fn process_words(limits: &CallLimits) -> String {
    format!(
        "too many processes at once, the limit is {}; start fewer, or raise maxProcesses",
        limits.processes
    )
}

fn room_words(limits: &CallLimits) -> String {
    format!(
        "no room is left to write to, the limit is {} MB in working and temp folder together and {DISK_LIMIT_FILES} files; write less, \
         or raise diskMb",
        limits.disk_mb
    )
}

/// The tree of the call has grown to `count` processes.
pub fn of_processes(count: u64, limits: &CallLimits) -> SandboxError {
    let text = format!("Function execution failed: {} ({count} were found)", process_words(limits));
    SandboxError::new(Code::ProcessLimit, Phase::Run, text)
}

/// The processes of the call have `count` threads together.
pub fn of_threads(count: u64, limits: &CallLimits) -> SandboxError {
    let text = format!(
        "Function execution failed: too many threads at once, the limit is {} for {} processes ({count} were found); start fewer, or \
         raise maxProcesses",
        limits.tasks(),
        limits.processes
    );
    SandboxError::new(Code::ProcessLimit, Phase::Run, text)
}

/// The call's processes hold `bytes` of memory together.
pub fn of_memory(bytes: u64, limits: &CallLimits) -> SandboxError {
    let text = format!(
        "Function execution failed: out of memory: its processes hold {bytes} bytes, the limits are {} MB of JavaScript heap and {} \
         MB outside of it; hold less at once, or raise memoryMb or nativeMemoryMb",
        limits.memory_mb, limits.native_memory_mb
    );
    SandboxError::new(Code::MemoryLimit, Phase::Run, text)
}

/// Working and temp folder have grown to `bytes`.
pub fn of_disk(bytes: u64, limits: &CallLimits) -> SandboxError {
    let text = format!(
        "Function execution failed: too much was written to disk, the limit is {} MB in working and temp folder together; write \
         less, or raise diskMb ({bytes} bytes were found)",
        limits.disk_mb
    );
    SandboxError::new(Code::DiskLimit, Phase::Run, text)
}

/// Working and temp folder hold more files than may be.
pub fn of_files(limit: u64) -> SandboxError {
    let text = format!(
        "Function execution failed: more than {limit} files are in working and temp folder together, or folders in folders \
         without end"
    );
    SandboxError::new(Code::DiskLimit, Phase::Run, text)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const LIMITS: CallLimits = CallLimits {
        memory_mb: 64,
        native_memory_mb: 32,
        cpu_seconds: Some(2),
        open_files: 100,
        file_size_mb: 8,
        disk_mb: 9,
        processes: 4,
    };

    fn ended(exit: ExitStatus, stderr: &str) -> Option<(Code, String)> {
        of_end(
            End { exit, cpu_us: 5, oom_killed: false, counted: Counted::default(), in_memory: false },
            stderr,
            &LIMITS,
        )
        .map(|error| (error.code, error.message))
    }

    #[test]
    fn a_full_heap_is_told_from_a_system_that_gives_no_memory() {
        let heap = "<--- Last few GCs --->\nFATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory";
        let abort = ExitStatus::Signal(libc::SIGABRT);
        for (stderr, option) in [
            (heap, "raise memoryMb"),
            ("FATAL ERROR: Ineffective mark-compacts near heap limit Allocation failed", "raise memoryMb"),
            ("terminate called after throwing an instance of 'std::bad_alloc'", "raise nativeMemoryMb"),
            ("FATAL ERROR: Zone Allocation failed - process out of memory", "raise nativeMemoryMb"),
            (
                "FATAL ERROR: Committing semi space failed. Allocation failed - JavaScript heap out of memory",
                "nativeMemoryMb",
            ),
            ("# Fatal JavaScript out of memory: MemoryChunk", "memoryMb or nativeMemoryMb"),
        ] {
            for exit in [abort, ExitStatus::Signal(libc::SIGTRAP), ExitStatus::Code(134)] {
                let (code, message) = ended(exit, stderr).unwrap();
                assert_eq!(code, Code::MemoryLimit);
                assert!(message.ends_with(option), "{message}");
            }
        }
        for (exit, stderr) in [
            (abort, "Assertion failed"),
            (ExitStatus::Code(1), heap),
            (ExitStatus::Signal(libc::SIGSEGV), heap),
            (ExitStatus::Lost, heap),
        ] {
            assert_eq!(ended(exit, stderr), None);
        }
    }

    #[test]
    fn a_kill_is_told_from_a_kill() {
        let exit = ExitStatus::Signal(libc::SIGKILL);
        let code = |cpu_us, oom_killed, limits: &CallLimits| {
            of_end(
                End { exit, cpu_us, oom_killed, counted: Counted::default(), in_memory: false },
                "",
                limits,
            )
            .map(|error| error.code)
        };
        assert_eq!(code(1_999_999, false, &LIMITS), None);
        assert_eq!(code(1_999_999, true, &LIMITS), Some(Code::MemoryLimit));
        assert_eq!(code(2_000_000, true, &LIMITS), Some(Code::CpuLimit));
        assert_eq!(code(u64::MAX, false, &CallLimits { cpu_seconds: None, ..LIMITS }), None);
        assert_eq!(ended(ExitStatus::Signal(libc::SIGXCPU), "").unwrap().0, Code::CpuLimit);
        assert_eq!(ended(ExitStatus::Signal(libc::SIGXFSZ), "").unwrap().0, Code::DiskLimit);
    }

    fn thrown_by(json: &str, peak: Peak, counted: Counted) -> (Code, String) {
        let error = SandboxError::new(Code::ToolError, Phase::Run, "it failed");
        let own = Own { limits: &LIMITS, room_is_limited: true, counted: &|| counted, peak: &|| peak };
        let told = of_thrown(SandboxError { cause_json: Some(json.to_owned()), ..error }, &own);
        (told.code, told.message)
    }

    const REFUSED_PROCESS: &str = r#"{"text":"","fields":{"code":"EAGAIN","syscall":"spawn /x"}}"#;
    const REFUSED_THREAD: &str = r#"{"text":"","message":"Worker initialization failure: EAGAIN","fields":{"code":"ERR_WORKER_INIT_FAILED"}}"#;
    const NO_MEMORY: &str = r#"{"text":"","fields":{"code":"ENOMEM","syscall":"spawn /x"}}"#;

    #[test]
    fn a_process_or_thread_that_others_have_taken_is_no_limit_of_the_calls() {
        let few = Peak { processes: 3, threads: u64::from(LIMITS.tasks()) / 2 - 1, memory_bytes: 1 };
        for (json, word) in [
            (REFUSED_PROCESS, "no process or thread left"),
            (REFUSED_THREAD, "no process or thread left"),
            (NO_MEMORY, "no memory left"),
        ] {
            let (code, message) = thrown_by(json, few, Counted::default());
            assert_eq!(code, Code::ToolError);
            assert!(message.contains(word) && message.contains("not this call"), "{message}");
        }
    }

    #[test]
    fn a_process_or_thread_that_the_call_itself_has_taken_is_its_limit() {
        let many = Peak { threads: u64::from(LIMITS.tasks()) / 2, ..Peak::default() };
        let refused = Counted { tasks_refused: true, ..Counted::default() };
        for json in [REFUSED_PROCESS, REFUSED_THREAD] {
            assert_eq!(thrown_by(json, many, Counted::default()).0, Code::ProcessLimit);
            assert_eq!(thrown_by(json, Peak::default(), refused).0, Code::ProcessLimit);
        }
        let much = Peak { memory_bytes: LIMITS.resident_bytes(0) / 2, ..Peak::default() };
        assert_eq!(thrown_by(NO_MEMORY, much, Counted::default()).0, Code::MemoryLimit);
    }

    #[test]
    fn what_all_users_share_is_no_limit_of_the_calls() {
        for fields in [
            // All files of the machine, watchers of a user, and its watches.
            r#"{"code":"ENFILE","syscall":"open"}"#,
            r#"{"code":"EMFILE","syscall":"watch"}"#,
            r#"{"code":"ENOSPC","syscall":"watch"}"#,
        ] {
            let json = format!(r#"{{"text":"","fields":{fields}}}"#);
            let told = thrown_by(&json, Peak::default(), Counted::default());
            assert_eq!(told, (Code::ToolError, "it failed".to_owned()), "{json}");
        }
    }

    #[test]
    fn a_thrown_refusal_of_the_system_is_its_limit_wherever_it_is_in_the_chain() {
        let all = Peak { threads: LIMITS.tasks().into(), ..Peak::default() };
        let told = |json: &str| thrown_by(json, all, Counted::default());
        for (json, code, words) in [
            (
                r#"{"text":"","name":"RangeError","message":"Array buffer allocation failed"}"#,
                Code::MemoryLimit,
                "nativeMemoryMb",
            ),
            (
                r#"{"text":"","name":"Error","fields":{"code":"ENOMEM","half":"\ud83d"}}"#,
                Code::MemoryLimit,
                "nativeMemoryMb",
            ),
            (r#"{"text":"","name":"Error","fields":{"code":"EFBIG"}}"#, Code::DiskLimit, "limit is 8 MB"),
            (
                r#"{"text":"","name":"Error","fields":{"code":"ENOSPC","syscall":"write"}}"#,
                Code::DiskLimit,
                "limit is 9 MB",
            ),
            (
                r#"{"text":"","cause":{"text":"","name":"E","fields":{"code":"EFBIG"}}}"#,
                Code::DiskLimit,
                "fileSizeMb",
            ),
            (
                r#"{"text":"","fields":{"code":"EAGAIN","syscall":"spawn /x"}}"#,
                Code::ProcessLimit,
                "limit is 4",
            ),
            (r#"{"text":"","fields":{"code":"EMFILE"}}"#, Code::ToolError, "limit is 100"),
        ] {
            let (found, message) = told(json);
            assert_eq!(found, code, "{json}");
            assert!(message.starts_with("it failed\n ") && message.contains(words), "{message}");
        }
        for json in [
            r#"{"text":"","name":"TypeError","message":"Array buffer allocation failed"}"#,
            r#"{"text":"","fields":{"code":"EAGAIN","syscall":"read"}}"#,
            r#"{"text":"","fields":[1]}"#,
            r#"{"text":"","fields":{"code":5}}"#,
            "no json",
        ] {
            assert_eq!(told(json), (Code::ToolError, "it failed".to_owned()), "{json}");
        }
    }

    #[test]
    fn a_full_disk_of_the_machine_is_no_limit_of_the_call() {
        let json = r#"{"text":"","name":"Error","fields":{"code":"ENOSPC"}}"#;
        let error = SandboxError::new(Code::ToolError, Phase::Run, "it failed");
        let error = SandboxError { cause_json: Some(json.to_owned()), ..error };
        let own =
            Own { limits: &LIMITS, room_is_limited: false, counted: &Counted::default, peak: &Peak::default };
        assert_eq!(of_thrown(error, &own).code, Code::ToolError);
    }
}
