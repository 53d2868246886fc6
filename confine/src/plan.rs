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
}

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
}

impl Step {
    /// The name people read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "unshare",
            Self::Init => "PID namespace",
            Self::Root => "mount",
            Self::Proc => "mount of /proc",
            Self::Identity => "setresuid",
            Self::Capabilities => "capset",
            Self::NoNewPrivileges => "prctl(PR_SET_NO_NEW_PRIVS)",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
        }
    }
}
