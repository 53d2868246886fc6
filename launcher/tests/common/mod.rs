//! A host for tests: speaks the protocol with the real launcher, and looks at the processes there are.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "test code, and each test uses its part")]

use std::{
    fs,
    io::{IoSlice, Read},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use native_sandbox_protocol::{
    FromLauncher, MAX_PACKET_BYTES, Spawn, Status, ToLauncher, VERSION, decode_report, encode_request,
};
use rustix::{
    cmsg_space,
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, recv, sendmsg, socketpair,
    },
};

/// How long anything may take before a test gives up; generous, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The variable that marks what a test started, all the way down.
const MARK: &str = "LAUNCHER_TEST_MARK";

/// A launcher and the host's end of its socket. Dropping it is the host's death.
pub struct Host {
    pub launcher: Child,
    socket: Option<OwnedFd>,
    next_id: u64,
    mark: String,
}

impl Host {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        #[expect(clippy::disallowed_methods, reason = "this is the start of the launcher itself")]
        let launcher = Command::new(env!("CARGO_BIN_EXE_native-sandbox-launcher"))
            .stdin(Stdio::from(theirs))
            .env_clear()
            .spawn()
            .unwrap();
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let host = Self { launcher, socket: Some(ours), next_id: 1, mark };
        assert_eq!(host.next(), FromLauncher::Ready { version: VERSION });
        host
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("the host lives").as_fd()
    }

    /// Sends a request with descriptors.
    pub fn send(&self, request: &ToLauncher, fds: &[BorrowedFd<'_>]) {
        self.send_bytes(&encode_request(request).unwrap(), fds);
    }

    pub fn send_bytes(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(self.socket(), &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next report.
    pub fn next(&self) -> FromLauncher {
        self.next_within(PATIENCE).expect("the launcher says something in time")
    }

    /// The next report, if one comes in time.
    pub fn next_within(&self, time: Duration) -> Option<FromLauncher> {
        let time = Timespec::try_from(time).unwrap();
        let socket = self.socket();
        if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&time)).unwrap() == 0 {
            return None;
        }
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let (size, _) = recv(self.socket(), packet.as_mut_slice(), RecvFlags::empty()).unwrap();
        assert!(size > 0, "the launcher closed its socket");
        Some(decode_report(&packet[..size]).unwrap())
    }

    /// A request for `/bin/sh -c script`, marked.
    pub fn shell(&mut self, script: &str) -> Spawn {
        self.request("/bin/sh", &["-c", script])
    }

    pub fn request(&mut self, program: &str, args: &[&str]) -> Spawn {
        let id = self.next_id;
        self.next_id += 1;
        Spawn {
            id,
            program: program.into(),
            args: args.iter().map(|arg| (*arg).into()).collect(),
            env: vec![
                ("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into()),
                (MARK.into(), self.mark.clone().into()),
            ],
            cwd: "/".into(),
            ..Spawn::default()
        }
    }

    /// Starts it, with its stdout and stderr in one pipe.
    pub fn start(&mut self, mut spawn: Spawn) -> (u64, i32, std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        spawn.fds = vec![1, 2];
        let id = spawn.id;
        self.send(&ToLauncher::Spawn(spawn), &[writer.as_fd(), writer.as_fd()]);
        let FromLauncher::Forked { id: forked, pid } = self.next() else { panic!("not forked") };
        assert_eq!((forked, self.next()), (id, FromLauncher::Started { id }));
        (id, pid, reader)
    }

    pub fn kill(&self, id: u64) {
        self.send(&ToLauncher::Kill { id }, &[]);
    }

    pub fn terminate(&self, id: u64) {
        self.send(&ToLauncher::Terminate { id }, &[]);
    }

    /// The next report must be the exit of this tree; its status and whether something is left.
    pub fn exited(&self, id: u64) -> (Status, bool) {
        match self.next() {
            FromLauncher::Exited { id: which, status, left_behind, .. } if which == id => {
                (status, left_behind)
            }
            other => panic!("{other:?} instead of the exit of {id}"),
        }
    }

    pub fn gone(&self, id: u64) {
        assert_eq!(self.next(), FromLauncher::Gone { id });
    }

    /// Living processes that this host's requests led to.
    pub fn marked(&self) -> Vec<i32> {
        marked(&self.mark)
    }

    pub fn mark(&self) -> String {
        self.mark.clone()
    }

    /// Lets the launcher have no more than this many descriptors. (It is not dumpable: they cannot be counted.)
    pub fn limit_fds(&self, count: u64) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let limit = Rlimit { current: Some(count), maximum: Some(count) };
        prlimit(Some(Pid::from_child(&self.launcher)), Resource::Nofile, limit).unwrap();
    }

    /// Ends the host: its socket closes, the launcher has to leave.
    pub fn die(&mut self) {
        self.socket = None;
        let deadline = Instant::now() + PATIENCE;
        while self.launcher.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                self.launcher.kill().unwrap();
                self.launcher.wait().unwrap();
                panic!("the launcher did not leave");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.socket.is_some() && !std::thread::panicking() {
            self.die();
            assert_eq!(self.marked(), [0; 0], "left behind");
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Living processes with this mark in their environment.
pub fn marked(mark: &str) -> Vec<i32> {
    let entry = format!("{MARK}={mark}");
    let has_mark = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_mark).collect()
}

/// Waits for a condition that nothing announces.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One line, without its end.
pub fn line(pipe: &mut impl Read) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while pipe.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// Everything until the end.
pub fn rest(pipe: &mut impl Read) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    text
}
