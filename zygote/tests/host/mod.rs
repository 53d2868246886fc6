//! Plays the host of a zygote: starts one, forks workers, gives them jobs, hears the reports.

use std::{
    env,
    ffi::c_int,
    fs::File,
    io::{self, Read, Write},
    mem,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use native_sandbox_confine::Plan;
use serde_json::{Value, json};

use crate::dontfork;

/// What `zygote.cjs` asks for.
pub(crate) const FLAGS: [&str; 4] = [
    "--single-threaded",
    "--no-wasm-async-compilation",
    "--no-wasm-dynamic-tiering",
    "--max-old-space-size=256",
];

/// Nothing in here takes that long, so a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The Node executables to test with: `NATIVE_SANDBOX_TEST_NODES`, separated by `:`, else the one on the path.
pub(crate) fn nodes() -> Vec<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "tests are told by the environment what to run over")]
    let named = env::var_os("NATIVE_SANDBOX_TEST_NODES");
    named.map_or_else(|| vec!["node".into()], |names| env::split_paths(&names).collect())
}

/// The library, which cargo builds beside the test programs.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    program.parent().unwrap().join("libnative_sandbox_zygote.so")
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// What a zygote told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    pub(crate) kind: u8,
    pub(crate) left_behind: bool,
    pub(crate) value: i32,
    pub(crate) id: u64,
    pub(crate) cpu_us: u64,
    pub(crate) max_rss_kib: u64,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const READY: u8 = 16;
pub(crate) const FORKED: u8 = 17;
pub(crate) const FORK_FAILED: u8 = 18;
pub(crate) const EXITED: u8 = 19;
pub(crate) const GONE: u8 = 20;
pub(crate) const REFUSED: u8 = 21;

impl Report {
    fn parse(packet: &[u8]) -> Self {
        let number = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().unwrap());
        let payload = packet[40..].to_vec();
        assert_eq!(packet[32..36], u32::try_from(payload.len()).unwrap().to_le_bytes());
        assert_eq!(packet[36..40], 4_u32.to_le_bytes());
        Self {
            kind: packet[0],
            left_behind: packet[1] == 1,
            value: i32::from_le_bytes(packet[4..8].try_into().unwrap()),
            id: number(8),
            cpu_us: number(16),
            max_rss_kib: number(24),
            payload,
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap()
    }
}

/// Two connected sockets.
fn pair(kind: c_int) -> (OwnedFd, OwnedFd) {
    let mut fds = [-1; 2];
    let patience = libc::timeval { tv_sec: PATIENCE.as_secs().cast_signed(), tv_usec: 0 };
    // SAFETY: fills the array with two new descriptors; setsockopt reads one timeval.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()), 0);
        let size = u32::try_from(mem::size_of_val(&patience)).unwrap();
        let option = libc::SO_RCVTIMEO;
        assert_eq!(libc::setsockopt(fds[0], libc::SOL_SOCKET, option, (&raw const patience).cast(), size), 0);
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    }
}

/// The host's end of a zygote's control socket.
pub(crate) struct Zygote {
    control: OwnedFd,
    next_id: u64,
    /// Reports that came before somebody asked for them.
    early: Vec<Report>,
    pub(crate) ready: Report,
    pub(crate) process: Option<Child>,
}

impl Zygote {
    /// Boots a base zygote under the filter, as the launcher does.
    pub(crate) fn boot(node: &Path) -> Self {
        Self::try_boot(node, &FLAGS, true).unwrap_or_else(|report| panic!("{:?}", report.json()))
    }

    /// Gives what it says when it refuses.
    pub(crate) fn try_boot(node: &Path, flags: &[&str], filter: bool) -> Result<Self, Report> {
        Self::try_boot_by(node, flags, filter, || 0)
    }

    /// Boots one that sees its own mounts only, so that its workers can have a `/proc` of their own. For root.
    pub(crate) fn boot_apart(node: &Path) -> Self {
        // SAFETY: system calls on numbers and on C strings.
        let apart = || unsafe {
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            let alone = libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
                    == 0;
            if alone { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
        };
        Self::try_boot_by(node, &FLAGS, true, apart).unwrap_or_else(|report| panic!("{:?}", report.json()))
    }

    /// Boots one that has lost all capabilities. For root.
    pub(crate) fn boot_without_privileges(node: &Path) -> Self {
        // SAFETY: between fork and exec of a process of one thread; it allocates nothing.
        let give_up = || match unsafe { native_sandbox_confine::apply(&Plan::default()) } {
            Ok(()) => 0,
            Err(failed) => failed.errno,
        };
        Self::try_boot_by(node, &FLAGS, true, give_up).unwrap_or_else(|report| panic!("{:?}", report.json()))
    }

    fn try_boot_by(
        node: &Path,
        flags: &[&str],
        filter: bool,
        apart: impl Fn() -> c_int + Send + Sync + 'static,
    ) -> Result<Self, Report> {
        let (control, theirs) = pair(libc::SOCK_SEQPACKET);
        let theirs_fd = theirs.as_raw_fd();
        #[expect(clippy::disallowed_methods, reason = "the test is the zygote's launcher")]
        let mut command = Command::new(node);
        command.env("LD_PRELOAD", library());
        command
            .args(flags)
            .arg(file("../src/worker/zygote.cjs"))
            .arg(library())
            .arg(file("tests/worker.cjs"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // SAFETY: only system calls on memory that is there already.
        unsafe {
            command.pre_exec(move || {
                // A source that is 3 already would keep its close-on-exec flag.
                let copy = libc::dup(theirs_fd);
                if copy < 0 || libc::dup2(copy, 3) < 0 || (copy != 3 && libc::close(copy) < 0) {
                    return Err(io::Error::last_os_error());
                }
                let errno = apart();
                match if filter && errno == 0 { dontfork::install() } else { errno } {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            });
        }
        let process = Some(command.spawn().unwrap());
        drop(theirs);
        Self::open(control, process)
    }

    /// Hears the first report.
    fn open(control: OwnedFd, mut process: Option<Child>) -> Result<Self, Report> {
        let ready = receive(&control).expect("a zygote says something before it leaves");
        if ready.kind != READY {
            if let Some(process) = &mut process {
                process.wait().unwrap();
            }
            return Err(ready);
        }
        Ok(Self { control, next_id: 1, early: Vec::new(), ready, process })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.ready.value
    }

    pub(crate) fn send(&self, kind: u8, id: u64, payload: &[u8], fds: &[RawFd]) {
        // What is forked has no plan of confinement in front.
        let plan: &[u8] = if matches!(kind, 1 | 2) { &[0; 4] } else { &[] };
        self.send_all(kind, id, &[plan, payload].concat(), fds);
    }

    fn send_all(&self, kind: u8, id: u64, payload: &[u8], fds: &[RawFd]) {
        let mut packet = vec![kind, 0, 0, 0];
        packet.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        packet.extend_from_slice(&id.to_le_bytes());
        packet.extend_from_slice(payload);
        send(&self.control, &packet, fds);
    }

    /// The first report, early ones included, that is wanted.
    pub(crate) fn wait_for(&mut self, wanted: impl Fn(&Report) -> bool) -> Report {
        if let Some(at) = self.early.iter().position(&wanted) {
            return self.early.remove(at);
        }
        loop {
            let report = receive(&self.control).expect("the zygote is there");
            if wanted(&report) {
                return report;
            }
            self.early.push(report);
        }
    }

    /// Whether such a report has come before somebody asked for it.
    pub(crate) fn has_early(&self, wanted: impl Fn(&Report) -> bool) -> bool {
        self.early.iter().any(wanted)
    }

    pub(crate) fn exited(&mut self, id: u64) -> Report {
        self.wait_for(|report| report.kind == EXITED && report.id == id)
    }

    pub(crate) fn gone(&mut self, id: u64) -> Report {
        self.wait_for(|report| report.kind == GONE && report.id == id)
    }

    /// A worker, forked and waiting for its job.
    pub(crate) fn fork(&mut self) -> Worker {
        self.fork_by(None)
    }

    /// One that gives up what a plan says.
    pub(crate) fn fork_by(&mut self, plan: Option<&Plan>) -> Worker {
        let mut worker = self.ask(plan);
        let forked = self.wait_for(|report| report.kind == FORKED && report.id == worker.id);
        worker.pid = forked.value;
        worker
    }

    /// A worker that is asked for; nobody has said yet that it is there.
    pub(crate) fn ask(&mut self, plan: Option<&Plan>) -> Worker {
        let id = self.next_id;
        self.next_id += 1;
        let (channel, theirs) = pair(libc::SOCK_STREAM);
        let (stdout, out) = io::pipe().unwrap();
        let (stderr, err) = io::pipe().unwrap();
        let plan = plan.map_or_else(Vec::new, |plan| plan.encode().unwrap());
        let payload = [&u32::try_from(plan.len()).unwrap().to_le_bytes(), plan.as_slice()].concat();
        self.send_all(1, id, &payload, &[theirs.as_raw_fd(), out.as_raw_fd(), err.as_raw_fd()]);
        Worker {
            id,
            pid: 0,
            channel: channel.into(),
            stdout: OwnedFd::from(stdout).into(),
            stderr: OwnedFd::from(stderr).into(),
        }
    }

    /// Another zygote, made of this one.
    pub(crate) fn fork_zygote(&mut self, request: &Value) -> (u64, Result<Self, Report>) {
        let id = self.next_id;
        self.next_id += 1;
        let (control, theirs) = pair(libc::SOCK_SEQPACKET);
        self.send(2, id, request.to_string().as_bytes(), &[theirs.as_raw_fd()]);
        drop(theirs);
        (id, Self::open(control, None))
    }

    /// Runs a job in a worker of its own: what it answered, and how it ended.
    pub(crate) fn run(&mut self, job: &str) -> Ended {
        println!("{job}");
        let mut worker = self.fork();
        worker.give(job);
        worker.end(self)
    }

    /// The value that a job gives; its worker must end cleanly.
    pub(crate) fn value(&mut self, job: &str) -> Value {
        let ended = self.run(job);
        assert!(ended.answer.get("value").is_some() && ended.status == 0, "{job}\n{ended:?}");
        ended.answer["value"].clone()
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // SAFETY: half a close is what the zygote sees as the end.
        unsafe { libc::shutdown(self.control.as_raw_fd(), libc::SHUT_RDWR) };
        if let Some(process) = &mut self.process {
            let _ = process.wait();
        }
    }
}

/// A forked worker. Dropped, it hangs up; if it then does not end, the zygote's end ends it.
pub(crate) struct Worker {
    pub(crate) id: u64,
    pub(crate) pid: i32,
    channel: UnixStream,
    stdout: File,
    stderr: File,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Null if it did not answer.
    pub(crate) answer: Value,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// As `wait4(2)` gives it.
    pub(crate) status: i32,
    pub(crate) report: Report,
}

impl Worker {
    pub(crate) fn give(&mut self, job: &str) {
        let mut message = u32::try_from(job.len()).unwrap().to_le_bytes().to_vec();
        message.extend_from_slice(job.as_bytes());
        self.channel.write_all(&message).unwrap();
    }

    pub(crate) fn answer(&mut self) -> Value {
        let mut length = [0; 4];
        if self.channel.read_exact(&mut length).is_err() {
            return json!(null);
        }
        let mut answer = vec![0; u32::from_le_bytes(length) as usize];
        self.channel.read_exact(&mut answer).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// Waits until a line is printed, and forgets it.
    pub(crate) fn wait_for_line(&mut self) {
        let mut byte = [0];
        while byte[0] != b'\n' {
            self.stdout.read_exact(&mut byte).unwrap();
        }
    }

    /// What is printed, up to the end of everybody who could print.
    pub(crate) fn printed(&mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        text
    }

    pub(crate) fn end(mut self, zygote: &mut Zygote) -> Ended {
        let answer = self.answer();
        let report = zygote.exited(self.id);
        zygote.gone(self.id);
        let read = |from: &mut File| {
            let mut text = String::new();
            from.read_to_string(&mut text).unwrap();
            text
        };
        let (stdout, stderr) = (read(&mut self.stdout), read(&mut self.stderr));
        Ended { answer, stdout, stderr, status: report.value, report }
    }
}

fn send(socket: &OwnedFd, packet: &[u8], fds: &[RawFd]) {
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    let mut room = [0_u64; 8];
    // SAFETY: the header is laid out by libc's macros in a buffer with room for eight descriptors.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let bytes = u32::try_from(mem::size_of_val(fds)).unwrap();
            message.msg_control = room.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            libc::CMSG_DATA(header).copy_from(fds.as_ptr().cast(), bytes as usize);
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    assert_eq!(usize::try_from(sent), Ok(packet.len()), "{}", io::Error::last_os_error());
}

/// `None` when the zygote is gone.
fn receive(socket: &OwnedFd) -> Option<Report> {
    let mut packet = vec![0_u8; 128 * 1024];
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    let mut room = [0_u64; 8];
    // SAFETY: writes into the buffers; a descriptor in the header is new and owned here at once.
    let (size, pidfd) = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&room) as _;
        let size = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let header = if size > 0 { libc::CMSG_FIRSTHDR(&raw const message) } else { std::ptr::null_mut() };
        let fd = (!header.is_null())
            .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()));
        (size, fd)
    };
    let error = io::Error::last_os_error();
    assert!(size >= 0 || error.raw_os_error() == Some(libc::ECONNRESET), "{error}");
    let mut report = (size > 0).then(|| Report::parse(&packet[..size.unsigned_abs()]))?;
    if let Some(pidfd) = pidfd {
        assert_eq!(report.value, 0, "what is named by a pidfd has no number");
        report.value = number_of(&pidfd);
    }
    Some(report)
}

/// The number of a pidfd's process; -1 once that was reaped.
fn number_of(pidfd: &OwnedFd) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap();
    number.trim().parse().unwrap()
}
