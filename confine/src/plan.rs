//! The plan as data. Pure.

use std::ffi::CString;

/// Everything that a process gives up. The default gives up all capabilities, takes `no_new_privs`, and no more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    /// `CLONE_NEW*` flags of the namespaces to leave the host's for. In a user namespace the user and group stay what they
    /// are, and are the only ones. With a PID namespace there is a `/proc` of one's own, so a mount namespace has to be
    /// among them.
    pub namespaces: u32,
    /// The process is forked into a PID namespace that its parent made for it, and so has nothing to leave, but mounts a
    /// `/proc` of it. Needs a mount namespace.
    pub born_nested: bool,
    /// An empty folder to build a root of one's own at, of nothing but what the rules of the domain name and `/proc`:
    /// read-only, but for what the rules let be written. Needs a mount namespace and a domain.
    pub root: Option<CString>,
    /// What programs expect of a root. Needs a mount namespace, and a root that was laid out with it.
    pub fixtures: Option<Fixtures>,
    /// A file system in memory for what calls write, with a limit of its own. Needs a mount namespace.
    pub scratch: Option<Scratch>,
    /// The user and group, of one number, to become; supplementary groups go. Needs `CAP_SETUID` and `CAP_SETGID`.
    pub identity: Option<u32>,
    /// How many threads that user may have in all (`RLIMIT_NPROC`); of use with an identity that nobody else has.
    pub tasks: Option<u32>,
    /// Capabilities that stay, a bit each (`1 << CAP_…`), as far as the process has them.
    pub capabilities: u64,
    /// The Landlock domain to enter. One that handles nothing is not entered: its rules say what is in the root only.
    pub landlock: Option<Domain>,
    /// The seccomp filter to be under; none if empty.
    pub seccomp: Vec<Instruction>,
    /// The filter asks, and its listener is sent through descriptor [`LISTENER_FD`](crate::LISTENER_FD).
    pub listener: bool,
}

/// What programs expect of a root beside the files that the rules of a domain name: an entry for their user in `/etc/passwd` and
/// `/etc/group`, `/dev/fd` and its kin, terminals, a `/tmp`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fixtures {
    /// The user's home folder, as `/etc/passwd` has it.
    pub home: CString,
    /// The temp folder of the call, which is mounted at `/tmp`. Of what lay below `/tmp` only the places that the domain's rules name
    /// can be reached then. With it the process gets terminals of its own. None where calls share the mount namespace.
    pub tmp: Option<CString>,
}

/// A `tmpfs` of a limited size, or several. Files beyond it are refused by `ENOSPC`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scratch {
    /// Where: made in a root of one's own; has to be there otherwise.
    pub path: CString,
    /// Bytes that all files in one may take together, in whole pages.
    pub bytes: u64,
    /// Files, folders and links that may be in one.
    pub files: u64,
    /// What is in it, and who makes that.
    pub contents: Contents,
    /// A way to what others keep: at its top, or in the process's run folder.
    pub cache: Option<CacheLink>,
}

/// A folder in a [`Scratch`] with nothing in it but a link. It belongs to whoever mounts that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheLink {
    /// The folder's name.
    pub folder: CString,
    /// The link's name.
    pub name: CString,
    /// Where it leads.
    pub target: CString,
}

/// What is in a [`Scratch`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Contents {
    /// Nothing, and nothing is mounted: there is a folder, where each child of the process mounts what is its own.
    Later,
    /// In folders called 0, 1 and so on, as many such file systems as this says: one for each run folder that the host makes. It is
    /// sent them in that order, as [`SCRATCH_WORD`] tells.
    Slots(u32),
    /// The process's own run folder, with `work` and `tmp`, which belong to the plan's user, and `node_modules`, a link to this place if to
    /// any. The process makes it itself.
    RunFolder {
        /// Its name.
        name: CString,
        /// Where the packages are.
        packages: Option<CString>,
        /// Whether the host is sent it, as [`SCRATCH_WORD`] tells: to see what is left in it.
        is_shown: bool,
    },
}

impl Contents {
    /// How many descriptors the host is sent.
    pub const fn shown(&self) -> usize {
        match self {
            Self::Slots(count) => *count as usize,
            Self::RunFolder { is_shown: true, .. } => 1,
            Self::Later | Self::RunFolder { is_shown: false, .. } => 0,
        }
    }
}

/// The packet that descriptors of the tops of a [`Scratch`] come with, on the process's descriptor 3, before anything else runs in the
/// process.
pub const SCRATCH_WORD: [u8; 8] = *b"scratch\0";

/// The most file systems of one [`Scratch`]; the kernel takes 253 descriptors beside a packet (`SCM_MAX_FD`).
pub const MAX_SLOTS: u32 = 64;

/// `CLONE_NEWPID`.
const PID_NAMESPACE: u32 = 0x2000_0000;

impl Plan {
    /// Whether it has a PID namespace, and so is carried out by more processes than one.
    pub const fn is_nested(&self) -> bool {
        self.namespaces & PID_NAMESPACE != 0
    }

    /// How many processes there are beside the confined one.
    pub const fn keepers(&self) -> u32 {
        if self.is_nested() { 2 } else { 0 }
    }
}

impl Domain {
    /// Whether it handles nothing.
    pub const fn is_empty(&self) -> bool {
        self.handled_files | self.handled_network | self.scoped == 0
    }
}

/// A Landlock domain: what it handles is forbidden, but for what the rules allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Domain {
    /// `LANDLOCK_ACCESS_FS_*`.
    pub handled_files: u64,
    /// `LANDLOCK_ACCESS_NET_*`; nothing of it is allowed.
    pub handled_network: u64,
    /// `LANDLOCK_SCOPE_*`.
    pub scoped: u64,
    /// What is allowed below `/proc/<pid>` of the process that applies the plan: only it knows the number.
    pub own_proc: u64,
    /// What is allowed elsewhere.
    pub rules: Vec<Rule>,
}

/// What a domain allows at one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// A file, or a folder with all below it. Symlinks are followed.
    pub path: CString,
    /// `LANDLOCK_ACCESS_FS_*`; what only folders can have counts for folders only.
    pub access: u64,
    /// Whether the process must not run without it. Else a path that is not there is passed over.
    pub needed: bool,
}

/// One instruction of a seccomp filter, laid out as `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// How many instructions to skip where a condition holds.
    pub jump_if: u8,
    /// How many to skip where it does not.
    pub jump_else: u8,
    /// Operand.
    pub operand: u32,
}

/// The steps of [`nest`](crate::nest) and [`apply`](crate::apply).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Leaving the host's namespaces.
    Namespaces,
    /// Making the processes around a PID namespace.
    Init,
    /// Building a root of one's own.
    Root,
    /// Mounting a `/proc` of one's own.
    Proc,
    /// Mounting a file system for what calls write.
    Scratch,
    /// Making what programs expect of a root.
    Fixtures,
    /// Becoming another user.
    Identity,
    /// Dropping capabilities.
    Capabilities,
    /// `no_new_privs`.
    NoNewPrivileges,
    /// Entering the Landlock domain.
    Landlock,
    /// Installing the seccomp filter.
    Seccomp,
    /// Installing one that asks, and sending its listener.
    Listener,
}

impl Step {
    /// The name people read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "unshare",
            Self::Init => "PID namespace",
            Self::Root => "mount",
            Self::Proc => "mount of /proc",
            Self::Scratch => "mount of run folders",
            Self::Fixtures => "mount of /tmp and /etc/passwd",
            Self::Identity => "setresuid",
            Self::Capabilities => "capset",
            Self::NoNewPrivileges => "prctl(PR_SET_NO_NEW_PRIVS)",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::Listener => "seccomp listener",
        }
    }
}
