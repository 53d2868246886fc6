//! What the core and its launcher say to each other: one message per packet of a `SOCK_SEQPACKET` socket pair, in
//! postcard's encoding. Descriptors of a [`ToLauncher::Spawn`] travel beside its packet (`SCM_RIGHTS`), in the order
//! of [`Spawn::fds`]. Pure: nothing in here does input or output.
//!
//! A packet arrives whole or not at all, so there is no framing and no partial state. Both ends come from one build,
//! and [`FromLauncher::Ready`] carries [`VERSION`] for the day they do not.
//!
//! A process that forks workers by itself (a zygote) needs nothing new here: it is one more `Spawn` with a socket
//! among its descriptors, it reaps what it forked, and its orphans are attributed to it when it dies.

pub mod stat;
pub mod trial;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of these messages; raised with every change to them.
pub const VERSION: u32 = 7;

/// The most bytes one message may take. Below the default socket buffer of Linux (212,992 bytes), which a packet
/// must fit into whole.
pub const MAX_PACKET_BYTES: usize = 160 * 1024;

/// The most descriptors that go with one [`Spawn`].
pub const MAX_FDS: usize = 16;

/// The highest descriptor number that a [`Spawn`] may ask for.
pub const MAX_TARGET_FD: i32 = 31;

/// Host → launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and most are of the large kind")]
pub enum ToLauncher {
    /// Start a process. Answered by [`FromLauncher::Forked`] and then `Started`, or by `SpawnFailed` at any point.
    Spawn(Spawn),
    /// SIGTERM to every process of the tree.
    Terminate {
        /// Which tree.
        id: u64,
    },
    /// SIGKILL to every process of the tree, now and until it is gone.
    Kill {
        /// Which tree.
        id: u64,
    },
}

/// A process to start. Text is bytes, as the kernel sees it; stdin is always `/dev/null`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Chosen by the host, never used twice on one launcher.
    pub id: u64,
    /// Absolute path.
    pub program: Vec<u8>,
    /// Arguments after the program's name.
    pub args: Vec<Vec<u8>>,
    /// The whole environment.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working folder.
    pub cwd: Vec<u8>,
    /// Kernel limits.
    pub limits: Limits,
    /// The program will fork itself (it is a zygote): V8's memory must pass on to its children.
    pub forks: bool,
    /// What the process gives up before its program runs: an encoded plan of the crate `native-sandbox-confine`.
    pub confinement: Option<Vec<u8>>,
    /// Instead of running a program, try what the confinement should forbid, and say on stdout what came of it.
    pub trial: Option<trial::Trial>,
    /// One more descriptor is beside the packet, the last: the `cgroup.procs` of the control group that the process enters.
    pub in_group: bool,
    /// The numbers (1 to [`MAX_TARGET_FD`], each once) that the descriptors beside the packet get, in their order.
    pub fds: Vec<i32>,
}

/// Kernel limits; `None` leaves what the launcher has. A value above the hard limit in force means that limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// `RLIMIT_NOFILE`.
    pub open_files: Option<u64>,
    /// `RLIMIT_FSIZE`, bytes.
    pub file_size_bytes: Option<u64>,
    /// `RLIMIT_CPU`, seconds: SIGXCPU then, SIGKILL one second later.
    pub cpu_seconds: Option<u64>,
    /// `RLIMIT_DATA`, bytes.
    pub data_bytes: Option<u64>,
}

/// Launcher → host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromLauncher {
    /// First of all messages.
    Ready {
        /// The launcher's [`VERSION`].
        version: u32,
    },
    /// The process exists; its program does not run yet.
    Forked {
        /// Which tree.
        id: u64,
        /// Its main process.
        pid: i32,
    },
    /// The program runs.
    Started {
        /// Which tree.
        id: u64,
    },
    /// The process could not be started. The last message about this id.
    SpawnFailed {
        /// Which tree.
        id: u64,
        /// What failed.
        step: Step,
        /// What it was about.
        subject: Vec<u8>,
        /// The system's reason.
        errno: i32,
    },
    /// The main process was reaped.
    Exited {
        /// Which tree.
        id: u64,
        /// How it ended.
        status: Status,
        /// CPU time, user and system, of it and its waited-for children, in microseconds.
        cpu_us: u64,
        /// Its peak resident set, in KiB.
        max_rss_kib: u64,
        /// Whether processes it started are still there.
        left_behind: bool,
    },
    /// Nothing of the tree is left. The last message about this id.
    Gone {
        /// Which tree.
        id: u64,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// By `exit`, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// The step of a start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The descriptors did not arrive with the request.
    Receive,
    /// A text holds a NUL byte, or a descriptor number is out of range.
    Arguments,
    /// The pipe that reports what happens in the child.
    Pipe,
    /// `fork`.
    Fork,
    /// Being ended with the launcher.
    ParentDeath,
    /// `setsid`.
    Session,
    /// Becoming the reaper of what it leaves behind.
    Subreaper,
    /// Placing the descriptors.
    Descriptors,
    /// `setrlimit`.
    Limits,
    /// `chdir`.
    Chdir,
    /// `execve`.
    Exec,
    /// The plan of confinement cannot be read.
    Plan,
    /// Leaving the host's namespaces.
    Namespaces,
    /// Becoming another user.
    Identity,
    /// Dropping capabilities.
    Capabilities,
    /// `no_new_privs`.
    NoNewPrivileges,
    /// Entering a Landlock domain.
    Landlock,
    /// Installing a seccomp filter.
    Seccomp,
    /// Building a root of its own.
    Root,
    /// Making the processes around a PID namespace.
    Init,
    /// Mounting a `/proc` of its own.
    Proc,
    /// Mounting a file system for what it writes.
    Scratch,
    /// Entering a control group.
    Group,
    /// Installing a seccomp filter that asks, and sending its listener.
    Listener,
    /// Making what programs expect of a root.
    Fixtures,
}

impl Step {
    const ALL: [Self; 25] = [
        Self::Receive,
        Self::Arguments,
        Self::Pipe,
        Self::Fork,
        Self::ParentDeath,
        Self::Session,
        Self::Subreaper,
        Self::Descriptors,
        Self::Limits,
        Self::Chdir,
        Self::Exec,
        Self::Plan,
        Self::Namespaces,
        Self::Identity,
        Self::Capabilities,
        Self::NoNewPrivileges,
        Self::Landlock,
        Self::Seccomp,
        Self::Root,
        Self::Init,
        Self::Proc,
        Self::Scratch,
        Self::Group,
        Self::Listener,
        Self::Fixtures,
    ];

    /// The name people read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receive => "recvmsg",
            Self::Arguments => "arguments",
            Self::Pipe => "pipe",
            Self::Fork => "fork",
            Self::ParentDeath => "prctl(PR_SET_PDEATHSIG)",
            Self::Session => "setsid",
            Self::Subreaper => "prctl(PR_SET_CHILD_SUBREAPER)",
            Self::Descriptors => "dup2",
            Self::Limits => "setrlimit",
            Self::Chdir => "chdir",
            Self::Exec => "execve",
            Self::Plan => "plan of confinement",
            Self::Namespaces => "unshare",
            Self::Identity => "setresuid",
            Self::Capabilities => "capset",
            Self::NoNewPrivileges => "prctl(PR_SET_NO_NEW_PRIVS)",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::Root => "mount",
            Self::Init => "PID namespace",
            Self::Proc => "mount of /proc",
            Self::Scratch => "mount of run folders",
            Self::Group => "cgroup.procs",
            Self::Listener => "seccomp listener",
            Self::Fixtures => "mount of /tmp and /etc/passwd",
        }
    }

    /// One byte, for where nothing can be encoded: between fork and exec.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The step of a [`code`](Self::code).
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Why a message could not be written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not fit into one packet.
    #[error("a message of {bytes} bytes does not fit into a packet of {MAX_PACKET_BYTES} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// More descriptors than one packet carries.
    #[error("{count} descriptors do not fit beside one packet, at most {MAX_FDS} do")]
    TooManyFds {
        /// How many.
        count: usize,
    },
    /// It is no message of this version.
    #[error("not a message of protocol version {VERSION}")]
    Malformed,
}

/// The packet of a message to the launcher.
pub fn encode_request(message: &ToLauncher) -> Result<Vec<u8>, Error> {
    if let ToLauncher::Spawn(spawn) = message
        && spawn.fds.len() + usize::from(spawn.in_group) > MAX_FDS
    {
        return Err(Error::TooManyFds { count: spawn.fds.len() + usize::from(spawn.in_group) });
    }
    encode(message)
}

/// The message of a packet to the launcher.
pub fn decode_request(packet: &[u8]) -> Result<ToLauncher, Error> {
    decode(packet)
}

/// The packet of a message to the host.
pub fn encode_report(message: &FromLauncher) -> Result<Vec<u8>, Error> {
    encode(message)
}

/// The message of a packet to the host.
pub fn decode_report(packet: &[u8]) -> Result<FromLauncher, Error> {
    decode(packet)
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    let packet = postcard::to_allocvec(message).map_err(|_| Error::Malformed)?;
    if packet.len() > MAX_PACKET_BYTES {
        return Err(Error::TooLarge { bytes: packet.len() });
    }
    Ok(packet)
}

fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<T, Error> {
    if packet.len() > MAX_PACKET_BYTES {
        return Err(Error::TooLarge { bytes: packet.len() });
    }
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Ok(message),
        _ => Err(Error::Malformed),
    }
}
