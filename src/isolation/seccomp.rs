//! Which system calls confined processes may make, compiled into a filter. Pure.
//!
//! `syscalls.tsv` lists every system call of the newest kernel with a verdict and a reason; the rules here carry it out, and a test
//! compares the two. What is refused answers `EPERM`, which programs know how to live with. `ENOSYS` is the answer for numbers
//! that the list does not have: calls of later kernels are refused until somebody has looked at them, and programs take them for
//! calls that the kernel lacks. `clone3` answers the same, because its flags lie in memory that a filter cannot see, and C
//! libraries then take `clone`, whose flags it can.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use native_sandbox_confine::Instruction;

/// An architecture that there are filters for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(not(test), expect(dead_code, reason = "outside of tests there is the host's only"))]
enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    #[cfg(target_arch = "x86_64")]
    const HOST: Self = Self::X86_64;
    #[cfg(target_arch = "aarch64")]
    const HOST: Self = Self::Aarch64;

    /// `AUDIT_ARCH_*`.
    const fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xC000_003E,
            Self::Aarch64 => 0xC000_00B7,
        }
    }
}

/// Every system call, with its numbers, the verdict about it and the reason for that.
const LIST: &str = include_str!("syscalls.tsv");

/// A line of [`LIST`].
#[derive(Debug, Clone, Copy)]
struct Listed {
    name: &'static str,
    x86_64: Option<u32>,
    aarch64: Option<u32>,
    #[cfg(test)]
    verdict: &'static str,
    #[cfg(test)]
    reason: &'static str,
}

impl Listed {
    fn read(line: &'static str) -> Option<Self> {
        let mut cells = line.split('\t');
        let name = cells.next()?;
        let [x86_64, aarch64] = [cells.next()?, cells.next()?].map(|cell| cell.parse().ok());
        let (verdict, reason) = (cells.next()?, cells.next()?);
        let _ = (verdict, reason);
        Some(Self {
            name,
            x86_64,
            aarch64,
            #[cfg(test)]
            verdict,
            #[cfg(test)]
            reason,
        })
    }

    const fn number(&self, arch: Arch) -> Option<u32> {
        match arch {
            Arch::X86_64 => self.x86_64,
            Arch::Aarch64 => self.aarch64,
        }
    }
}

static LISTED: LazyLock<Vec<Listed>> =
    LazyLock::new(|| LIST.lines().filter(|line| !line.starts_with('#')).filter_map(Listed::read).collect());

/// The number of a call; none where the architecture has no such call.
fn number(name: &str, arch: Arch) -> Option<u32> {
    LISTED.iter().find(|listed| listed.name == name)?.number(arch)
}

/// The numbers that [`LIST`] has, as ranges from the first to the last of each.
fn known(arch: Arch) -> Vec<(u32, u32)> {
    let mut numbers: Vec<u32> = LISTED.iter().filter_map(|listed| listed.number(arch)).collect();
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// Numbers with this bit are those of the x32 ABI, another way to the same calls.
const X32_BIT: u32 = 0x4000_0000;

/// Offsets in `seccomp_data` (`linux/seccomp.h`).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `CLONE_NEW*` flags of `clone`, and of `unshare`, which knows one more.
const CLONE_NAMESPACES: u32 = 0x7E02_0000;
const UNSHARE_NAMESPACES: u32 = CLONE_NAMESPACES | 0x80;

/// Makes a child of the caller's parent, which no limit of the caller would count.
const CLONE_PARENT: u32 = 0x8000;

/// What `fcntl` may do (`linux/fcntl.h`): copies and flags of descriptors, locks, seals and hints. Not among it: leases and delegations,
/// which make the opens of others wait; signals about folders, and to others; the sizes of pipes, which are counted by user.
const FCNTL: &[u32] = &[
    3,    // F_GETFL
    4,    // F_SETFL
    2,    // F_SETFD
    1,    // F_GETFD
    1030, // F_DUPFD_CLOEXEC
    0,    // F_DUPFD
    6,    // F_SETLK
    5,    // F_GETLK
    7,    // F_SETLKW
    36,   // F_OFD_GETLK
    37,   // F_OFD_SETLK
    38,   // F_OFD_SETLKW
    9,    // F_GETOWN
    11,   // F_GETSIG
    16,   // F_GETOWN_EX
    1025, // F_GETLEASE
    1027, // F_DUPFD_QUERY
    1028, // F_CREATED_QUERY
    1032, // F_GETPIPE_SZ
    1033, // F_ADD_SEALS
    1034, // F_GET_SEALS
    1035, // F_GET_RW_HINT
    1036, // F_SET_RW_HINT
    1037, // F_GET_FILE_RW_HINT
    1038, // F_SET_FILE_RW_HINT
];

/// `ioctl`s of terminals that do more than to the own one: type into it, change what its line leads to, redirect the console.
const REFUSED_IOCTLS: &[u32] = &[
    0x5412, // TIOCSTI
    0x541C, // TIOCLINUX
    0x541D, // TIOCCONS
    0x5423, // TIOCSETD
    // Who is sent signals about a socket: FIOSETOWN, SIOCSPGRP.
    0x8901,
    0x8902,
    // Flags of a file through a descriptor that can only read: immutable, verity, project.
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x401C_5820, // FS_IOC_FSSETXATTR
    0x4080_6685, // FS_IOC_ENABLE_VERITY
];

/// Bits of an `ioctl`'s number that say of what kind it is, and those kinds that are allowed: of terminals, of sockets.
const IOCTL_KIND: u32 = 0xFF00;
const IOCTL_KINDS: [u32; 2] = [0x5400, 0x8900];

/// And single ones of files. File systems have many others, some of which make whole folders in a place that can only be read.
const IOCTLS: &[u32] = &[
    0x4004_9409, // FICLONE
    0x4020_940D, // FICLONERANGE
    0xC018_9436, // FIDEDUPERANGE
    0x8008_6601, // FS_IOC_GETFLAGS
    0x801C_581F, // FS_IOC_FSGETXATTR
    0xC020_660B, // FS_IOC_FIEMAP
    0xC068_6611, // PROCMAP_QUERY
    2,           // FIGETBSZ
];

/// `prctl`s that are about more than the caller, or let others at it.
const PRCTLS: &[u32] = &[
    35,          // PR_SET_MM
    57,          // PR_SET_IO_FLUSHER
    62,          // PR_SCHED_CORE
    67,          // PR_SET_MEMORY_MERGE
    0x5961_6D61, // PR_SET_PTRACER
];

/// Linux as it is, 32-bit, old version numbers, both; and the question.
const PERSONALITIES: &[u32] = &[u32::MAX, 0, 8, 0x2_0000, 0x2_0008];

/// The caller's own thread and process, in place of descriptors (`linux/pidfd.h`): -10000 and -10001.
const PIDFDS_OF_SELF: &[u32] = &[0xFFFF_D8F0, 0xFFFF_D8EF];

/// Whom `setpriority` and `ioprio_set` are about: one process.
const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const NETLINK_ROUTE: u32 = 0;
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Options of sockets by which packets go elsewhere than to the address that the socket is connected to, or come from one that is not this
/// machine's, per level.
const STEERING: [(u32, &[u32]); 2] = [
    (
        0,
        &[
            4,  // IP_OPTIONS: a source route
            19, // IP_TRANSPARENT
        ],
    ),
    (
        41,
        &[
            6,  // IPV6_2292PKTOPTIONS: the same, by the old way
            54, // IPV6_HOPOPTS
            55, // IPV6_RTHDRDSTOPTS
            57, // IPV6_RTHDR: a routing header
            59, // IPV6_DSTOPTS
            75, // IPV6_TRANSPARENT
        ],
    ),
];
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const SOCK_SEQPACKET: u32 = 5;
/// The kinds of a socket without the flags beside them.
const SOCKET_KIND_BITS: u32 = 0xf;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;

/// What becomes of changes to modes, owners, times and attributes of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Modes {
    /// They are made: nothing of the host's is the process's to change.
    Free,
    /// They are refused: files of the host belong to the same user.
    Refused,
    /// They are not made, but said to be: npm and install scripts cannot do without.
    Ignored,
}

/// What differs between the filters of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing")]
pub(super) struct Terms {
    /// No socket of any network.
    pub(super) no_network: bool,
    /// Whether the kernel may be asked about addresses and routes: those of the machine, where there is no network namespace.
    pub(super) routes: bool,
    /// Whether modes, owners, times and attributes of files may be changed.
    pub(super) modes: Modes,
    /// The user is the server's, and so are the kernel's counters by user.
    pub(super) one_user: bool,
    /// Sockets of the machine's own services may be used (npm, for git over ssh).
    pub(super) local_sockets: bool,
    /// The host is asked about connections, listening, and sockets of datagrams.
    pub(super) asks: bool,
}

/// Which part of the rules a filter has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// All of them: for a process whose children are under what it is under.
    Whole,
    /// All but [`NESTING`] and [`DOMAINS`]: for a base zygote, which runs nobody's code, and whose children are all put under [`Part::Nesting`] or
    /// [`Part::NestingAndDomains`].
    WithoutNestingAndDomains,
    /// All but [`DOMAINS`]: for a base zygote that gives its children no namespaces.
    WithoutDomains,
    /// For a tree's zygote, whose workers have domains of their own.
    Nesting,
    /// For a worker that a zygote forks: the rest.
    NestingAndDomains,
    /// The same where there are no namespaces to be made.
    Domains,
}

impl Part {
    fn has(self, name: &str) -> bool {
        let (nesting, domains) = (NESTING.contains(&name), DOMAINS.contains(&name));
        match self {
            Self::Whole => true,
            Self::WithoutNestingAndDomains => !nesting && !domains,
            Self::WithoutDomains => !domains,
            Self::Nesting => nesting,
            Self::NestingAndDomains => nesting || domains,
            Self::Domains => domains,
        }
    }

    /// Whether its process is under the rest of the rules already.
    fn adds_to_others(self) -> bool {
        matches!(self, Self::Nesting | Self::NestingAndDomains | Self::Domains)
    }
}

/// When a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// The argument is not 0 (as a 32-bit number).
    NotZero(u32),
    /// The first argument is not this, or the second not 0: it means others than the caller.
    NotSelf(u32),
    /// The first argument is not 0, the caller itself, or the second is this limit and the third says what it is to be.
    ForeignLimit(u32),
    /// Never: the host is asked.
    Asked,
    /// Always, but where the argument is a null pointer nothing is done, as if it were done.
    NothingIfNull(u32),
    /// One of these bits is set.
    AnyBit(u32, u32),
    /// The argument is one of these.
    OneOf(u32, &'static [u32]),
    /// The argument is none of these.
    NoneOf(u32, &'static [u32]),
    /// It is none of terminals, of sockets, or of those that only read or clone files. The kernel answers `ENOTTY` to what it does
    /// not know, and so does this.
    ForeignIoctl,
    /// The socket is none of those that may be had.
    ForeignSocket {
        internet: bool,
        routes: bool,
        local: bool,
        asks: bool,
    },
    /// The pair is not one of streams or of packets.
    ConnectablePair,
    /// The option of a socket is one of [`STEERING`].
    Steering,
}

/// One rule.
#[derive(Debug, Clone, Copy)]
struct Rule {
    name: &'static str,
    when: When,
    errno: i32,
    why: &'static str,
}

/// The same rule for several calls.
fn refuse_all(why: &'static str, when: When, names: &[&'static str]) -> impl Iterator<Item = Rule> {
    names.iter().map(move |name| Rule { name, when, errno: libc::EPERM, why })
}

/// The filter; empty where there is nothing to refuse. Compiled once.
pub(super) fn filter(terms: Terms, part: Part) -> Vec<Instruction> {
    type Filters = HashMap<(Terms, Part), Vec<Instruction>>;
    static COMPILED: LazyLock<Mutex<Filters>> = LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.entry((terms, part)).or_insert_with(|| compile(&rules_of(terms, part), part, Arch::HOST)).clone()
}

/// The rules.
#[expect(clippy::too_many_lines, reason = "a table")]
fn rules(terms: Terms) -> Vec<Rule> {
    use When::{Always, AnyBit, ForeignIoctl, NoneOf, NotSelf, NotZero, OneOf};
    // Those that look at arguments come first: a kernel remembers the answers of the others, and asks about these each time.
    let mut rules = Vec::new();
    let mut add = |why, when, names: &[&'static str]| rules.extend(refuse_all(why, when, names));
    add(
        "a lease makes others wait who open the file, even one that can only be read; signals and sizes of pipes reach beyond the process",
        NoneOf(1, FCNTL),
        &["fcntl"],
    );
    add(
        "types into a terminal, changes the flags of a file that can only be read, or makes what no check on paths sees",
        ForeignIoctl,
        &["ioctl"],
    );
    add(
        "a new user namespace has all capabilities in it, and a child of the caller's parent is in no limit of the caller's",
        AnyBit(0, CLONE_NAMESPACES | CLONE_PARENT),
        &["clone"],
    );
    add("is about more than the caller, or lets others at it", OneOf(0, PRCTLS), &["prctl"]);
    let socket = When::ForeignSocket {
        internet: !terms.no_network,
        routes: terms.routes,
        local: terms.local_sockets,
        asks: terms.asks,
    };
    let why = if terms.no_network {
        "all network is closed"
    } else {
        "services of the machine (a container engine's, a hypervisor's) listen on local sockets, and the kernel's rarer protocols are a wide way into it"
    };
    add(why, socket, &["socket"]);
    if !terms.local_sockets {
        add(
            "a pair of datagram sockets can be connected to a service afterwards",
            When::ConnectablePair,
            &["socketpair"],
        );
    }
    if terms.asks {
        let why = "the host says where to: src/egress/";
        add(why, When::Asked, &["connect", "listen"]);
        // Clients then connect first, which is asked about.
        let fast = |argument| When::AnyBit(argument, MSG_FASTOPEN);
        let why = "connects by the way, and the address may lie where another thread changes it";
        rules.extend([("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)].map(|(name, argument)| Rule {
            name,
            when: fast(argument),
            errno: libc::EOPNOTSUPP,
            why,
        }));
        let why = "sends packets elsewhere than where the host said that they may go";
        rules.extend(refuse_all(why, When::Steering, &["setsockopt"]));
    }
    let mut add = |why, when, names: &[&'static str]| rules.extend(refuse_all(why, when, names));
    let mark = "takes off the mark that what a launcher starts is known by";
    add(
        "sets limits of other processes of the same user, or takes off the mark that what a launcher starts is known by",
        When::ForeignLimit(libc::RLIMIT_RTTIME),
        &["prlimit64"],
    );
    add(mark, OneOf(0, &[libc::RLIMIT_RTTIME]), &["setrlimit"]);
    add(
        "slows other processes of the same user down",
        NotZero(0),
        &["sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"],
    );
    let slows = "slows other processes of the same user down";
    add(slows, NotSelf(PRIO_PROCESS), &["setpriority"]);
    add(slows, NotSelf(IOPRIO_WHO_PROCESS), &["ioprio_set"]);
    add("tells addresses in other processes of the same user", NotZero(0), &["get_robust_list"]);
    add("is about the memory of other processes", NoneOf(0, PIDFDS_OF_SELF), &["process_madvise"]);
    add("takes the randomness from addresses", NoneOf(0, PERSONALITIES), &["personality"]);
    add("a new user namespace has all capabilities in it", AnyBit(0, UNSHARE_NAMESPACES), &["unshare"]);
    if terms.modes != Modes::Free {
        rules.extend(modes(terms.modes));
    }
    // As where a file system has none: programs that copy files go on without.
    rules.extend(["setxattr", "lsetxattr", "fsetxattr", "setxattrat"].map(|name| Rule {
        name,
        when: Always,
        errno: libc::EOPNOTSUPP,
        why: "attributes take memory of the machine that no limit of a call counts, and Landlock does not guard them",
    }));
    let mut add = |why, names: &[&'static str]| rules.extend(refuse_all(why, Always, names));
    add(
        "reads and changes other processes",
        &["ptrace", "process_vm_readv", "process_vm_writev", "process_mrelease", "kcmp", "pidfd_getfd"],
    );
    add(
        "changes what is mounted, or the root folder",
        &[
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "open_tree",
            "open_tree_attr",
            "move_mount",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "mount_setattr",
        ],
    );
    add("tells what the host has mounted", &["statmount", "listmount"]);
    add("opens files past the checks on their paths", &["open_by_handle_at", "name_to_handle_at"]);
    add("watches the whole machine's files", &["fanotify_init", "fanotify_mark"]);
    if terms.one_user {
        add(
            "instances are counted by user: a function would take those of the server",
            &["inotify_init", "inotify_init1"],
        );
    }
    add("enters and lists the namespaces of others", &["setns", "listns"]);
    add(
        "runs code in the kernel, or changes it",
        &["bpf", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load"],
    );
    add("a wide way into the kernel that tools do not need", &["perf_event_open", "userfaultfd"]);
    add("makes calls that no filter sees", &["io_uring_setup", "io_uring_enter", "io_uring_register"]);
    add("takes from a number of requests that the whole machine shares", &["io_setup"]);
    add("memory that nobody can look at", &["memfd_secret"]);
    add("rules take memory of the machine that no limit of a call counts", DOMAINS);
    add("tells what others have read", &["cachestat"]);
    add("keys of the host's user", &["keyctl", "add_key", "request_key"]);
    add("changes and lists what guards the machine", &["lsm_set_self_attr", "lsm_list_modules"]);
    add(
        "the machine's own settings",
        &[
            "reboot",
            "swapon",
            "swapoff",
            "sethostname",
            "setdomainname",
            "settimeofday",
            "clock_settime",
            "adjtimex",
            "clock_adjtime",
            "acct",
            "quotactl",
            "quotactl_fd",
            "vhangup",
            "syslog",
        ],
    );
    add(
        "memory, queues and locks that outlive the call and that siblings see",
        &[
            "shmget",
            "shmat",
            "shmctl",
            "msgget",
            "msgctl",
            "msgsnd",
            "msgrcv",
            "semget",
            "semctl",
            "semop",
            "semtimedop",
            "mq_open",
            "mq_unlink",
            "mq_timedsend",
            "mq_timedreceive",
            "mq_notify",
            "mq_getsetattr",
        ],
    );
    add("moves the memory of other processes", &["move_pages", "migrate_pages"]);
    add(
        "old ways to the hardware and to the processor's tables",
        &["iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs", "lookup_dcookie", "_sysctl"],
    );
    let absent = |why, names: &[&'static str]| {
        refuse_all(why, Always, names).map(|rule| Rule { errno: libc::ENOSYS, ..rule }).collect::<Vec<_>>()
    };
    rules.extend(absent("its flags lie where no filter sees them; C libraries then take clone", &["clone3"]));
    rules.extend(absent(
        "no kernel has it any more",
        &[
            "create_module",
            "get_kernel_syms",
            "query_module",
            "nfsservctl",
            "getpmsg",
            "putpmsg",
            "afs_syscall",
            "tuxcall",
            "security",
            "set_thread_area",
            "get_thread_area",
            "epoll_ctl_old",
            "epoll_wait_old",
            "vserver",
        ],
    ));
    rules
}

/// What a zygote needs to give its children namespaces, a `/proc` and a `/tmp` of their own.
const NESTING: &[&str] = &["unshare", "setns", "mount", "mount_setattr"];

/// What a zygote needs to confine its workers to files.
const DOMAINS: &[&str] = &["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"];

fn rules_of(terms: Terms, part: Part) -> Vec<Rule> {
    let mut rules = rules(terms);
    rules.retain(|rule| part.has(rule.name));
    rules
}

/// Calls that change modes, owners, times and attributes of files, none of which Landlock guards.
fn modes(modes: Modes) -> Vec<Rule> {
    const WHY: &str = "Landlock does not guard modes, owners, times and attributes of the user's files";
    let calls = [
        "fchmodat",
        "fchmodat2",
        "fchownat",
        "fchown",
        "removexattr",
        "lremovexattr",
        "fremovexattr",
        "removexattrat",
        "file_setattr",
        "chmod",
        "chown",
        "lchown",
        "utime",
        "utimes",
        "futimesat",
    ];
    let mut rules: Vec<Rule> = refuse_all(WHY, When::Always, &calls).collect();
    rules.push(Rule {
        name: "utimensat",
        when: When::NothingIfNull(1),
        errno: libc::EPERM,
        why: "the same; but libuv sets the times of a copied file through a descriptor, and that does nothing",
    });
    if modes == Modes::Ignored {
        for rule in &mut rules {
            rule.errno = 0;
        }
    }
    rules.push(Rule {
        name: "fchmod",
        when: When::Always,
        errno: 0,
        why: "the same; but libuv copies a file by it, whose mode it set when it made the copy, so it does nothing",
    });
    rules
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno = match self.errno {
            _ if self.when == When::Asked => "the host",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            0 => "nothing, as if done",
            libc::ENOSYS => "ENOSYS",
            _ => "EPERM",
        };
        write!(f, "{} {:?} {errno}: {}", self.name, self.when, self.why)
    }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_MORE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn step(code: u32, operand: u32, jump_if: u8, jump_else: u8) -> Instruction {
    #[expect(clippy::cast_possible_truncation, reason = "operation codes have 16 bits")]
    Instruction { code: code as u16, jump_if, jump_else, operand }
}

fn allow() -> Instruction {
    step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0)
}

/// The kernel waits for the answer of whoever has the filter's listener.
fn ask() -> Instruction {
    step(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0)
}

fn refuse(errno: i32) -> Instruction {
    step(RETURN, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(), 0, 0)
}

/// The low half of an argument: what the kernel takes of a 32-bit one. Both architectures are little-endian.
fn load(argument: u32) -> Instruction {
    step(LOAD, ARGUMENTS + 8 * argument, 0, 0)
}

fn load_high(argument: u32) -> Instruction {
    step(LOAD, ARGUMENTS + 8 * argument + 4, 0, 0)
}

/// Answers where what is loaded is one of these, and goes on where not.
fn answer_if(values: &[u32], answer: Instruction) -> impl Iterator<Item = Instruction> {
    values.iter().flat_map(move |value| [step(IF_EQUAL, *value, 0, 1), answer])
}

/// The steps where what is loaded is this, and what follows where not. They end by an answer.
fn only_if(value: u32, steps: Vec<Instruction>) -> Vec<Instruction> {
    let mut all = vec![step(IF_EQUAL, value, 0, skipped(&steps))];
    all.extend(steps);
    all
}

/// How far to jump to pass these. A jump has 8 bits; `every_jump_is_within_reach` sees to it that none is longer.
fn skipped(steps: &[Instruction]) -> u8 {
    u8::try_from(steps.len()).unwrap_or(u8::MAX)
}

/// The filter of a table. Calls of another architecture are refused whole: their numbers mean other calls.
fn compile(rules: &[Rule], part: Part, arch: Arch) -> Vec<Instruction> {
    let mut steps = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        step(IF_EQUAL, arch.audit(), 1, 0),
        refuse(libc::EPERM),
        step(LOAD, NUMBER, 0, 0),
    ];
    if arch == Arch::X86_64 {
        steps.extend([step(IF_AT_LEAST, X32_BIT, 0, 1), refuse(libc::EPERM)]);
    }
    for rule in rules {
        // Not every architecture has every call. A body ends by an answer, so the number is still loaded where it was skipped.
        if let Some(number) = number(rule.name, arch) {
            steps.extend(only_if(number, body(rule)));
        }
    }
    if part.adds_to_others() {
        steps.push(allow());
        return steps;
    }
    for (first, last) in known(arch) {
        // At least the first, and not more than the last.
        steps.extend([step(IF_AT_LEAST, first, 0, 2), step(IF_MORE, last, 1, 0), allow()]);
    }
    steps.push(refuse(libc::ENOSYS));
    steps
}

fn body(rule: &Rule) -> Vec<Instruction> {
    let (allow, refuse) = (allow(), refuse(rule.errno));
    let mut steps = Vec::new();
    match rule.when {
        When::Always => steps.push(refuse),
        When::Asked => steps.push(ask()),
        When::NotZero(argument) => {
            steps.push(load(argument));
            steps.extend(answer_if(&[0], allow));
            steps.push(refuse);
        }
        When::NotSelf(which) => {
            steps.push(load(0));
            let mut about = vec![load(1)];
            about.extend(answer_if(&[0], allow));
            about.push(refuse);
            steps.extend(only_if(which, about));
            steps.push(refuse);
        }
        When::ForeignLimit(limit) => {
            let mut new = vec![load(2)];
            new.extend(only_if(0, vec![load_high(2), step(IF_EQUAL, 0, 0, 1), allow, refuse]));
            new.push(refuse);
            let mut own = vec![load(1)];
            own.extend(only_if(limit, new));
            own.push(allow);
            steps.push(load(0));
            steps.extend(only_if(0, own));
            steps.push(refuse);
        }
        When::NothingIfNull(argument) => {
            steps.push(load(argument));
            steps.extend(only_if(
                0,
                vec![load_high(argument), step(IF_EQUAL, 0, 0, 1), self::refuse(0), refuse],
            ));
            steps.push(refuse);
        }
        When::AnyBit(argument, bits) => {
            steps.extend([load(argument), step(IF_ANY_BIT, bits, 1, 0), allow, refuse]);
        }
        When::OneOf(argument, values) => {
            steps.push(load(argument));
            steps.extend(answer_if(values, refuse));
            steps.push(allow);
        }
        When::NoneOf(argument, values) => {
            steps.push(load(argument));
            steps.extend(answer_if(values, allow));
            steps.push(refuse);
        }
        When::ForeignIoctl => {
            steps.push(load(1));
            steps.extend(answer_if(REFUSED_IOCTLS, refuse));
            steps.extend(answer_if(IOCTLS, allow));
            steps.push(step(AND, IOCTL_KIND, 0, 0));
            steps.extend(answer_if(&IOCTL_KINDS, allow));
            steps.push(self::refuse(libc::ENOTTY));
        }
        When::ForeignSocket { internet, routes, local, asks } => {
            let protocol_of = |protocols: &[u32], answer| {
                let mut steps = vec![load(2)];
                steps.extend(answer_if(protocols, answer));
                steps.push(refuse);
                steps
            };
            let mut of_internet = vec![load(1), step(AND, SOCKET_KIND_BITS, 0, 0)];
            of_internet.extend(only_if(SOCK_STREAM, protocol_of(&[0, IPPROTO_TCP], allow)));
            let of_datagrams = if asks { ask() } else { allow };
            of_internet.extend(only_if(SOCK_DGRAM, protocol_of(&[0, IPPROTO_UDP], of_datagrams)));
            of_internet.push(refuse);
            let of_routes = if routes { allow } else { refuse };
            let mut of_netlink = vec![load(2)];
            of_netlink.extend(answer_if(&[NETLINK_ROUTE], of_routes));
            of_netlink.push(refuse);
            steps.push(load(0));
            for family in [AF_INET, AF_INET6].into_iter().filter(|_| internet) {
                steps.extend(only_if(family, of_internet.clone()));
            }
            steps.extend(only_if(AF_NETLINK, of_netlink));
            steps.extend(answer_if(&[AF_UNIX], if local { allow } else { refuse }));
            steps.push(refuse);
        }
        When::ConnectablePair => {
            let mut local = vec![load(1), step(AND, SOCKET_KIND_BITS, 0, 0)];
            local.extend(answer_if(&[SOCK_STREAM, SOCK_SEQPACKET], allow));
            local.push(refuse);
            steps.push(load(0));
            steps.extend(only_if(AF_UNIX, local));
            steps.push(refuse);
        }
        When::Steering => steps.extend(of_options(refuse)),
    }
    steps
}

/// Of `setsockopt`.
fn of_options(refuse: Instruction) -> Vec<Instruction> {
    let mut steps = Vec::new();
    for (level, options) in STEERING {
        let mut of_level = vec![load(2)];
        of_level.extend(answer_if(options, refuse));
        of_level.push(allow());
        steps.push(load(1));
        steps.extend(only_if(level, of_level));
    }
    steps.push(allow());
    steps
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const OPEN: Terms = Terms {
        no_network: false,
        routes: true,
        modes: Modes::Refused,
        one_user: true,
        local_sockets: false,
        asks: false,
    };
    const ASKING: Terms = Terms { asks: true, ..OPEN };
    const CLOSED: Terms = Terms { no_network: true, routes: false, ..OPEN };
    const PRIVATE: Terms = Terms { modes: Modes::Free, one_user: false, ..OPEN };
    const INSTALL: Terms = Terms { modes: Modes::Ignored, ..OPEN };
    const GIT: Terms = Terms { local_sockets: true, ..PRIVATE };
    const ALL_TERMS: [Terms; 6] = [OPEN, CLOSED, PRIVATE, INSTALL, GIT, ASKING];
    const ARCHS: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    /// What the kernel does with a filter, as far as ours go.
    fn run(filter: &[Instruction], audit: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let (mut at, mut register) = (0, 0_u32);
        loop {
            let Instruction { code, jump_if, jump_else, operand } = filter[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jump_if } else { jump_else });
            match u32::from(code) {
                LOAD => {
                    register = match operand {
                        NUMBER => number,
                        ARCHITECTURE => audit,
                        other => {
                            let argument = arguments[((other - ARGUMENTS) / 8) as usize];
                            let half =
                                if (other - ARGUMENTS).is_multiple_of(8) { argument } else { argument >> 32 };
                            (half & 0xffff_ffff) as u32
                        }
                    }
                }
                AND => register &= operand,
                IF_EQUAL => at += jump(register == operand),
                IF_ANY_BIT => at += jump(register & operand != 0),
                IF_AT_LEAST => at += jump(register >= operand),
                IF_MORE => at += jump(register > operand),
                RETURN => return operand,
                other => panic!("operation {other:#x}"),
            }
        }
    }

    fn whole(terms: Terms, arch: Arch) -> Vec<Instruction> {
        type Filters = HashMap<(Terms, Arch), Vec<Instruction>>;
        static COMPILED: LazyLock<Mutex<Filters>> = LazyLock::new(Mutex::default);
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.entry((terms, arch)).or_insert_with(|| compile(&rules(terms), Part::Whole, arch)).clone()
    }

    /// None: allowed.
    fn answer_of(filter: &[Instruction], arch: Arch, number: u32, arguments: [u64; 6]) -> Option<i32> {
        match run(filter, arch.audit(), number, arguments) {
            libc::SECCOMP_RET_ALLOW => None,
            libc::SECCOMP_RET_USER_NOTIF => Some(ASKED),
            refused => Some((refused & 0xffff).cast_signed()),
        }
    }

    /// The same on both architectures.
    fn answer(terms: Terms, name: &str, arguments: [u64; 6]) -> Option<i32> {
        let answers = ARCHS.map(|arch| {
            number(name, arch).map(|number| answer_of(&whole(terms, arch), arch, number, arguments))
        });
        let [first, second] = answers;
        assert!(first.is_some() && (second.is_none() || first == second), "{name}: {answers:?}");
        first.flatten()
    }

    const EPERM: Option<i32> = Some(libc::EPERM);
    const ENOSYS: Option<i32> = Some(libc::ENOSYS);
    /// No errno.
    const ASKED: i32 = -1;
    /// Arguments of which the kernel, and a filter, could make anything.
    const SOME_ARGUMENTS: [[u64; 6]; 3] = [[0; 6], [1; 6], [u64::MAX; 6]];

    #[test]
    fn every_system_call_is_listed_with_a_verdict_that_the_filter_carries_out() {
        let lines = LIST.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(LISTED.len(), lines, "a line of the list cannot be read");
        for arch in ARCHS {
            for terms in ALL_TERMS {
                let filter = whole(terms, arch);
                for Listed { name, verdict, reason, .. } in LISTED.iter() {
                    assert!(reason.len() > 5, "{name} has no reason");
                    let Some(number) = number(name, arch) else { continue };
                    let answers = SOME_ARGUMENTS.map(|arguments| answer_of(&filter, arch, number, arguments));
                    let is_ruled = rules(terms).iter().find(|rule| rule.name == *name).map(|rule| rule.when);
                    let holds = match *verdict {
                        "allow" => answers == [None; 3] && is_ruled.is_none(),
                        "refuse" => answers == [EPERM; 3] && is_ruled == Some(When::Always),
                        "unsupported" => {
                            answers == [Some(libc::EOPNOTSUPP); 3] && is_ruled == Some(When::Always)
                        }
                        "absent" => answers == [ENOSYS; 3],
                        "asked" if !terms.asks => answers == [None; 3] && is_ruled.is_none(),
                        "asked" => {
                            is_ruled.is_some()
                                && answers.contains(&Some(ASKED)) == (is_ruled == Some(When::Asked))
                        }
                        "one user" if !terms.one_user => answers == [None; 3] && is_ruled.is_none(),
                        "one user" => !answers.contains(&None),
                        "arguments" if *name == "socketpair" && terms.local_sockets => is_ruled.is_none(),
                        "arguments" => is_ruled.is_some_and(|when| when != When::Always),
                        other => panic!("{name}: verdict {other}"),
                    };
                    assert!(holds, "{name} ({verdict}, {arch:?}, {terms:?}): {answers:?}");
                }
            }
        }
    }

    #[test]
    fn every_rule_is_about_a_call_of_the_list() {
        for terms in ALL_TERMS {
            for rule in rules(terms) {
                assert!(ARCHS.iter().any(|arch| number(rule.name, *arch).is_some()), "{rule}");
            }
        }
    }

    #[test]
    fn numbers_that_the_list_does_not_have_are_absent() {
        for arch in ARCHS {
            let filter = whole(OPEN, arch);
            let listed: Vec<u32> = LISTED.iter().filter_map(|listed| listed.number(arch)).collect();
            for number in (0..2000).chain([0x3fff_ffff]).filter(|number| !listed.contains(number)) {
                assert_eq!(answer_of(&filter, arch, number, [0; 6]), ENOSYS, "{arch:?} {number}");
            }
        }
    }

    #[test]
    fn numbers_of_the_list_are_those_of_this_machines_header() {
        // Of other names in there: numbers that only 32-bit architectures have, and limits.
        let is_call = |name: &str| {
            !name.contains("64_64")
                && !name.starts_with("3264_")
                && !["syscalls", "arch_specific_syscall"].contains(&name)
        };
        for (arch, file) in [
            (Arch::X86_64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
            (Arch::Aarch64, "/usr/include/aarch64-linux-gnu/asm/unistd_64.h"),
        ] {
            // Not every machine has it.
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            for line in text.lines() {
                let mut words = line.split_whitespace();
                let (Some("#define"), Some(name), Some(value)) = (words.next(), words.next(), words.next())
                else {
                    continue;
                };
                let Some(name) = name.strip_prefix("__NR_").filter(|name| is_call(name)) else { continue };
                assert_eq!(number(name, arch), value.parse().ok(), "{name} in {file}");
            }
        }
    }

    #[test]
    fn the_list_is_in_the_order_of_its_numbers_and_names_nothing_twice() {
        for arch in ARCHS {
            let mut numbers: Vec<u32> = LISTED.iter().filter_map(|listed| listed.number(arch)).collect();
            let count = numbers.len();
            assert!(arch == Arch::Aarch64 || numbers.is_sorted());
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), count);
        }
        let mut names: Vec<_> = LISTED.iter().map(|listed| listed.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LISTED.len());
    }

    #[test]
    fn every_jump_is_within_reach() {
        for terms in ALL_TERMS {
            assert!(rules(terms).iter().all(|rule| body(rule).len() < 255), "{terms:?}");
            for arch in ARCHS {
                let filter = whole(terms, arch);
                // BPF_MAXINSNS
                assert!(filter.len() < 4096);
                for (at, Instruction { jump_if, jump_else, .. }) in filter.iter().enumerate() {
                    assert!(at + usize::from(*jump_if.max(jump_else)) < filter.len());
                }
            }
        }
    }

    #[test]
    fn a_base_and_its_children_have_the_whole_table_between_them() {
        use std::collections::BTreeSet;

        let names = |part| rules_of(OPEN, part).iter().map(|rule| rule.name).collect::<BTreeSet<_>>();
        let all = names(Part::Whole);
        for (base, worker) in
            [(Part::WithoutNestingAndDomains, Part::NestingAndDomains), (Part::WithoutDomains, Part::Domains)]
        {
            assert!(names(base).is_disjoint(&names(worker)));
            assert_eq!(names(base).union(&names(worker)).copied().collect::<BTreeSet<_>>(), all);
            for (part, unknown) in [(base, ENOSYS), (worker, None)] {
                let filter = compile(&rules_of(OPEN, part), part, Arch::HOST);
                assert_eq!(answer_of(&filter, Arch::HOST, 1000, [0; 6]), unknown);
                assert_eq!(filter, super::filter(OPEN, part));
            }
        }
        assert_eq!(names(Part::Nesting), NESTING.iter().copied().collect());
        assert_eq!(names(Part::Domains), DOMAINS.iter().copied().collect());
    }

    #[test]
    fn a_call_has_one_rule() {
        for terms in ALL_TERMS {
            let mut calls: Vec<_> = rules(terms).iter().map(|rule| rule.name).collect();
            let count = calls.len();
            calls.sort_unstable();
            calls.dedup();
            assert_eq!(calls.len(), count);
        }
    }

    #[test]
    fn other_architectures_and_the_x32_way_are_refused() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
        for arch in ARCHS {
            let filter = whole(OPEN, arch);
            for audit in [0x4000_0003, 0x4000_0028, 0xC000_003E, 0xC000_00B7] {
                let number = number("getpid", arch).unwrap();
                assert_eq!(run(&filter, audit, number, [0; 6]) == refused, audit != arch.audit());
            }
        }
        let filter = whole(OPEN, Arch::X86_64);
        for number in [101, 0, 512, 547] {
            assert_eq!(run(&filter, Arch::X86_64.audit(), X32_BIT | number, [0; 6]), refused);
        }
    }

    #[test]
    fn sockets_are_tcp_and_udp_and_pairs_those_that_stay_connected() {
        let socket =
            |terms, family, kind, protocol| answer(terms, "socket", [family, kind, protocol, 0, 0, 0]);
        let flags = 0o2_004_000;
        for family in [2, 10] {
            for (kind, protocol) in [(1, 0), (1, 6), (2, 0), (2, 17), (1 | flags, 6), (2 | flags, 0)] {
                assert_eq!(socket(OPEN, family, kind, protocol), None);
                assert_eq!(socket(CLOSED, family, kind, protocol), EPERM);
            }
            // MPTCP; SCTP both ways; UDP-Lite; L2TP; ping; DCCP; raw; packets by the old way; DCCP and a raw one with flags
            for (kind, protocol) in [
                (1, 262),
                (1, 132),
                (5, 132),
                (2, 136),
                (2, 115),
                (2, 1),
                (2, 58),
                (6, 33),
                (3, 255),
                (3, 1),
                (10, 3),
                (6 | flags, 0),
                (3 | flags, 6),
                (1, 17),
                (2, 6),
                (0, 0),
                (4, 0),
            ] {
                for terms in ALL_TERMS {
                    assert_eq!(socket(terms, family, kind, protocol), EPERM, "{family} {kind} {protocol}");
                }
            }
        }
        // Routes, where they may be asked for; and the other protocols of netlink.
        assert_eq!(socket(OPEN, 16, 3, 0), None);
        assert_eq!(socket(CLOSED, 16, 3, 0), EPERM);
        assert_eq!(socket(Terms { routes: true, ..CLOSED }, 16, 3, 0), None);
        for protocol in 1..32 {
            assert_eq!(socket(OPEN, 16, 3, protocol), EPERM);
            assert_eq!(socket(CLOSED, 16, 3, protocol), EPERM);
        }
        // Every other family that there is, and those to come.
        for family in (0..64).filter(|family| ![2, 10, 16].contains(family)) {
            for kind in 0..16 {
                assert_eq!(socket(OPEN, family, kind, 0), EPERM);
                assert_eq!(socket(CLOSED, family, kind, 0), EPERM);
                assert_eq!(socket(GIT, family, kind, 0), if family == 1 { None } else { EPERM });
            }
        }
        // The kernel looks at 32 bits.
        assert_eq!(socket(OPEN, 1 << 32 | 1, 1, 0), EPERM);
        assert_eq!(socket(OPEN, 2, 1, 1 << 32 | 0x106), EPERM);
        let pair = |family, kind| answer(OPEN, "socketpair", [family, kind, 0, 0, 0, 0]);
        for kind in [1, 5, 0o2_000_001] {
            assert_eq!(pair(1, kind), None);
        }
        for (family, kind) in [(1, 2), (1, 3), (1, 0o2_000_002), (2, 1)] {
            assert_eq!(pair(family, kind), EPERM);
        }
    }

    #[test]
    fn where_connections_are_asked_about_no_way_leads_around_the_question() {
        let socket = |kind, protocol| answer(ASKING, "socket", [2, kind, protocol, 0, 0, 0]);
        assert_eq!([socket(1, 0), socket(1, 6)], [None; 2]);
        for kind in [2, 2 | 0o2_004_000] {
            assert_eq!([socket(kind, 0), socket(kind, 17)], [Some(ASKED); 2]);
            assert_eq!(socket(kind, 136), EPERM);
        }
        assert_eq!(["connect", "listen"].map(|call| answer(ASKING, call, [3; 6])), [Some(ASKED); 2]);
        for (call, at) in [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)] {
            let with = |flags| {
                let mut arguments = [3, 1, 1, 0, 1, 16];
                arguments[at] = flags;
                answer(ASKING, call, arguments)
            };
            // MSG_NOSIGNAL, MSG_DONTWAIT; MSG_FASTOPEN, alone and with these.
            assert_eq!([with(0x4000), with(0x4040)], [None; 2]);
            assert_eq!([with(0x2000_0000), with(0x2000_4040)], [Some(libc::EOPNOTSUPP); 2]);
        }
    }

    #[test]
    fn no_option_of_a_socket_sends_packets_elsewhere_than_was_decided() {
        let set = |terms, level, option| answer(terms, "setsockopt", [3, level, option, 1, 4, 0]);
        for (level, option) in [(0, 4), (0, 19), (41, 57), (41, 6), (41, 54), (41, 55), (41, 59), (41, 75)] {
            assert_eq!(set(ASKING, level, option), EPERM, "{level} {option}");
            // The kernel looks at 32 bits.
            assert_eq!(set(ASKING, 1 << 32 | level, 1 << 32 | option), EPERM, "{level} {option}");
            assert_eq!(set(OPEN, level, option), None);
        }
        // SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER; TCP_NODELAY, TCP_KEEPIDLE, TCP_FASTOPEN_CONNECT; IP_TOS; IPV6_V6ONLY
        for (level, option) in [(1, 2), (1, 9), (1, 13), (6, 1), (6, 4), (6, 30), (0, 1), (41, 26)] {
            assert_eq!(set(ASKING, level, option), None, "{level} {option}");
        }
    }

    #[test]
    fn descriptors_are_copied_and_locked_but_give_no_lease_and_no_signal() {
        let fcntl = |command| answer(OPEN, "fcntl", [0, command, 0, 0, 0, 0]);
        // What libuv, C libraries and databases do.
        for command in [0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1033, 1034] {
            assert_eq!(fcntl(command), None, "{command}");
        }
        // F_SETLEASE, F_NOTIFY, F_SETDELEG, F_SETPIPE_SZ, F_SETOWN, F_SETSIG, F_SETOWN_EX; and what is not known
        for command in [1024, 1026, 1040, 1031, 8, 10, 15, 1041, 99, 1 << 32 | 1024] {
            assert_eq!(fcntl(command), EPERM, "{command}");
        }
    }

    #[test]
    fn ioctls_are_of_terminals_sockets_and_what_reads_or_clones_files() {
        let ioctl = |request| answer(OPEN, "ioctl", [0, request, 0, 0, 0, 0]);
        // TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, TCGETS2, TIOCGPTN, SIOCGIFCONF, FICLONE, FS_IOC_GETFLAGS
        for request in [
            0x5401,
            0x5413,
            0x541B,
            0x5421,
            0x5451,
            0x802C_542A,
            0x8004_5430,
            0x8912,
            0x4004_9409,
            0x8008_6601,
        ] {
            assert_eq!(ioctl(request), None, "{request:#x}");
        }
        // TIOCSTI, TIOCLINUX, TIOCSETD, FIOSETOWN, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
        for request in [0x5412, 0x541C, 0x5423, 0x8901, 0x4008_6602, 0x401C_5820, 1 << 32 | 0x5412] {
            assert_eq!(ioctl(request), EPERM, "{request:#x}");
        }
        // Subvolumes and snapshots of btrfs and bcachefs, keys of encrypted folders, namespaces by a pidfd, loop devices, leases of DRM
        for request in [
            0x5000_940E,
            0x5000_9401,
            0x5000_9417,
            0x4020_BC10,
            0xC050_6617,
            0xC040_6618,
            0xFF09,
            0xB703,
            0x4C00,
            0xC01C_64C6,
        ] {
            assert_eq!(ioctl(request), Some(libc::ENOTTY), "{request:#x}");
        }
    }

    #[test]
    fn arguments_decide_where_they_should() {
        let first = |call, argument| answer(OPEN, call, [argument, 0, 0, 0, 0, 0]);
        let second = |call, argument| answer(OPEN, call, [0, argument, 0, 0, 0, 0]);
        assert_eq!((first("prlimit64", 0), first("prlimit64", 7)), (None, EPERM));
        let of_itself = |limit, new| answer(OPEN, "prlimit64", [0, limit, new, 1, 0, 0]);
        let mark = u64::from(libc::RLIMIT_RTTIME);
        assert_eq!([of_itself(7, 1), of_itself(mark, 0), of_itself(mark, 1)], [None, None, EPERM]);
        assert_eq!((of_itself(mark, 1 << 32), of_itself(1 << 32 | mark, 1)), (EPERM, EPERM));
        assert_eq!((first("setrlimit", 7), first("setrlimit", mark)), (None, EPERM));
        assert_eq!((first("get_robust_list", 0), first("get_robust_list", 7)), (None, EPERM));
        // What libc forks and starts threads by.
        assert_eq!((first("clone", 0x0120_0011), first("clone", 0x003d_0f00)), (None, None));
        assert_eq!((first("clone", 0x1000_0011), first("unshare", 0x80)), (EPERM, EPERM));
        // CLONE_PARENT, alone and with what threads are made with
        assert_eq!((first("clone", 0x8011), first("clone", 0x003d_8f00)), (EPERM, EPERM));
        assert_eq!(answer(OPEN, "clone3", [0; 6]), ENOSYS);
        // PR_SET_NAME, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_VMA
        for operation in [15, 1, 36, 38, 0x5356_4d41] {
            assert_eq!(first("prctl", operation), None, "{operation}");
        }
        // PR_SET_MM, PR_SET_PTRACER, PR_SCHED_CORE
        for operation in [35, 0x5961_6D61, 62] {
            assert_eq!(first("prctl", operation), EPERM, "{operation}");
        }
        assert_eq!([0xffff_ffff, 0, 8].map(|persona| first("personality", persona)), [None; 3]);
        // ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC, MMAP_PAGE_ZERO
        assert_eq!([0x4_0000, 0x40_0000, 0x10_0000].map(|persona| first("personality", persona)), [EPERM; 3]);
        let priority = |which, who| answer(OPEN, "setpriority", [which, who, 5, 0, 0, 0]);
        // The process itself; another; its user's; its group's.
        assert_eq!(
            [priority(0, 0), priority(0, 7), priority(2, 0), priority(1, 0)],
            [None, EPERM, EPERM, EPERM]
        );
        let of_disk = |which, who| answer(OPEN, "ioprio_set", [which, who, 5, 0, 0, 0]);
        assert_eq!([of_disk(1, 0), of_disk(1, 7), of_disk(3, 0)], [None, EPERM, EPERM]);
        assert_eq!(answer(OPEN, "fchmod", [1; 6]), Some(0));
        let times = |path| second("utimensat", path);
        assert_eq!([times(0), times(1), times(1 << 32)], [Some(0), EPERM, EPERM]);
        for call in ["fchmodat", "fchmod", "utimensat"] {
            assert_eq!(answer(PRIVATE, call, [1; 6]), None);
            assert_eq!(answer(INSTALL, call, [1; 6]), Some(0));
        }
    }

    #[test]
    fn the_table_is_what_it_was() {
        let mut text = String::new();
        for (name, terms) in [
            ("one user", OPEN),
            ("connections asked about", ASKING),
            ("no network, users of their own", Terms { no_network: true, routes: false, ..PRIVATE }),
        ] {
            writeln!(text, "{name}").unwrap();
            for rule in rules(terms) {
                writeln!(text, "  {rule}").unwrap();
            }
        }
        super::super::snapshot::check("seccomp.txt", &text);
    }
}
