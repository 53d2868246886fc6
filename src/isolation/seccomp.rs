//! The system calls that nothing confined may make, each with its reason, compiled into a filter. Pure.
//!
//! A list of what is refused, not of what is allowed: tools run programs that nobody knows beforehand. What is refused
//! answers `EPERM`, which programs know how to live with; `clone3` answers `ENOSYS`, because its flags lie in memory that a
//! filter cannot see, and C libraries then take `clone`, whose flags it can.

use libc::c_long;
use native_sandbox_confine::Instruction;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;

/// Numbers with this bit are those of the x32 ABI, another way to the same calls.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// Offsets in `seccomp_data` (`linux/seccomp.h`).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Numbers that the C library's headers do not name yet; the same on all architectures.
const SYS_STATMOUNT: c_long = 457;
const SYS_LISTMOUNT: c_long = 458;
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;
const SYS_OPEN_TREE_ATTR: c_long = 467;
const SYS_FILE_SETATTR: c_long = 469;

/// `CLONE_NEW*` flags of `clone`, and of `unshare`, which knows one more.
const CLONE_NAMESPACES: u32 = 0x7E02_0000;
const UNSHARE_NAMESPACES: u32 = CLONE_NAMESPACES | 0x80;

/// `ioctl`s that put characters into the input of a terminal.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;

/// The kinds of a socket without the flags beside them.
const SOCKET_KIND_BITS: u32 = 0xf;

/// `ioctl`s that change a file's flags through a descriptor that can only read: immutable, verity, project.
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_FSSETXATTR: u32 = 0x401C_5820;
const FS_IOC_ENABLE_VERITY: u32 = 0x4080_6685;

const IOCTLS: &[u32] =
    &[TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY];

/// Whom `setpriority` and `ioprio_set` are about: one process.
const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const SOCK_STREAM: u32 = 1;
const SOCK_SEQPACKET: u32 = 5;

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
pub(super) struct Terms {
    /// No socket of any network.
    pub(super) no_network: bool,
    /// Whether modes, owners, times and attributes of files may be changed.
    pub(super) modes: Modes,
    /// Sockets of the machine's own services may be used (npm, for git over ssh).
    pub(super) local_sockets: bool,
}

/// When a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// The argument is not 0 (as a 32-bit number).
    NotZero(u32),
    /// The first argument is not this, or the second not 0: it means others than the caller.
    NotSelf(u32),
    /// Always, but where the argument is a null pointer nothing is done, as if it were done.
    NothingIfNull(u32),
    /// One of these bits is set.
    AnyBit(u32, u32),
    /// The argument is one of these.
    OneOf(u32, &'static [u32]),
    /// The socket is neither of the Internet nor one that asks the kernel about routes.
    ForeignSocket,
    /// The socket is not one that asks the kernel about routes.
    AnySocket,
    /// The pair is not one of streams or of packets.
    ConnectablePair,
}

/// One rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    name: &'static str,
    call: c_long,
    when: When,
    errno: i32,
    why: &'static str,
}

macro_rules! refuse {
    ($why:literal, $when:expr, [$($call:ident),+ $(,)?]) => {
        [$(Rule { name: stringify!($call), call: libc::$call, when: $when, errno: libc::EPERM, why: $why }),+]
    };
}

/// The table.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn rules(terms: Terms) -> Vec<Rule> {
    use When::{Always, AnyBit, NotSelf, NotZero, OneOf};
    let mut rules = Vec::new();
    let named = |name, call, when, why| Rule { name, call, when, errno: libc::EPERM, why };
    rules.extend(refuse!(
        "reads and changes other processes",
        Always,
        [
            SYS_ptrace,
            SYS_process_vm_readv,
            SYS_process_vm_writev,
            SYS_process_madvise,
            SYS_kcmp,
            SYS_pidfd_getfd
        ]
    ));
    rules.extend(refuse!(
        "changes what is mounted, or the root folder",
        Always,
        [
            SYS_mount,
            SYS_umount2,
            SYS_pivot_root,
            SYS_chroot,
            SYS_open_tree,
            SYS_move_mount,
            SYS_fsopen,
            SYS_fsconfig,
            SYS_fsmount,
            SYS_fspick,
            SYS_mount_setattr
        ]
    ));
    rules.push(named(
        "SYS_open_tree_attr",
        SYS_OPEN_TREE_ATTR,
        Always,
        "changes what is mounted, or the root folder",
    ));
    rules.push(named("SYS_statmount", SYS_STATMOUNT, Always, "tells what the host has mounted"));
    rules.push(named("SYS_listmount", SYS_LISTMOUNT, Always, "tells what the host has mounted"));
    rules.extend(refuse!("opens files past the checks on their paths", Always, [SYS_open_by_handle_at]));
    rules.extend(refuse!("watches the whole machine's files", Always, [SYS_fanotify_init]));
    rules.extend(refuse!(
        "a new user namespace has all capabilities in it",
        AnyBit(0, CLONE_NAMESPACES),
        [SYS_clone]
    ));
    rules.extend(refuse!(
        "a new user namespace has all capabilities in it",
        AnyBit(0, UNSHARE_NAMESPACES),
        [SYS_unshare]
    ));
    rules.extend(refuse!("enters the namespaces of others", Always, [SYS_setns]));
    rules.push(Rule {
        name: "SYS_clone3",
        call: libc::SYS_clone3,
        when: Always,
        errno: libc::ENOSYS,
        why: "its flags lie where no filter sees them; C libraries then take clone",
    });
    rules.extend(refuse!(
        "runs code in the kernel, or changes it",
        Always,
        [SYS_bpf, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load]
    ));
    rules.extend(refuse!(
        "a wide way into the kernel that tools do not need",
        Always,
        [SYS_perf_event_open, SYS_userfaultfd]
    ));
    rules.extend(refuse!(
        "makes calls that no filter sees",
        Always,
        [SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register]
    ));
    rules.extend(refuse!("keys of the host's user", Always, [SYS_keyctl, SYS_add_key, SYS_request_key]));
    rules.extend(refuse!(
        "the machine's own settings",
        Always,
        [
            SYS_reboot,
            SYS_swapon,
            SYS_swapoff,
            SYS_sethostname,
            SYS_setdomainname,
            SYS_settimeofday,
            SYS_clock_settime,
            SYS_adjtimex,
            SYS_clock_adjtime,
            SYS_acct,
            SYS_quotactl,
            SYS_quotactl_fd,
            SYS_vhangup,
            SYS_syslog
        ]
    ));
    rules.extend(refuse!(
        "memory, queues and locks that outlive the call and that siblings see",
        Always,
        [
            SYS_shmget,
            SYS_shmat,
            SYS_shmctl,
            SYS_msgget,
            SYS_msgctl,
            SYS_msgsnd,
            SYS_msgrcv,
            SYS_semget,
            SYS_semctl,
            SYS_semop,
            SYS_semtimedop,
            SYS_mq_open,
            SYS_mq_unlink
        ]
    ));
    rules.extend(refuse!("moves the memory of other processes", Always, [SYS_move_pages, SYS_migrate_pages]));
    // 0 is the caller itself.
    rules.extend(refuse!("sets limits of other processes of the same user", NotZero(0), [SYS_prlimit64]));
    rules.extend(refuse!(
        "slows other processes of the same user down",
        NotZero(0),
        [SYS_sched_setaffinity, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr]
    ));
    let slows = "slows other processes of the same user down";
    rules.push(named("SYS_setpriority", libc::SYS_setpriority, NotSelf(PRIO_PROCESS), slows));
    rules.push(named("SYS_ioprio_set", libc::SYS_ioprio_set, NotSelf(IOPRIO_WHO_PROCESS), slows));
    rules.extend(refuse!(
        "types into a terminal, or changes the flags of a file that can only be read",
        OneOf(1, IOCTLS),
        [SYS_ioctl]
    ));
    #[cfg(target_arch = "x86_64")]
    rules.extend(refuse!(
        "old ways to the hardware and to the processor's tables",
        Always,
        [
            SYS_iopl,
            SYS_ioperm,
            SYS_modify_ldt,
            SYS_kexec_file_load,
            SYS_uselib,
            SYS_ustat,
            SYS_sysfs,
            SYS_lookup_dcookie,
            SYS__sysctl
        ]
    ));
    if terms.no_network {
        rules.extend(refuse!("all network is closed", When::AnySocket, [SYS_socket]));
    } else if !terms.local_sockets {
        let foreign = When::ForeignSocket;
        rules.extend(refuse!(
            "services of the machine (a container engine's, a hypervisor's) listen on local sockets",
            foreign,
            [SYS_socket]
        ));
    }
    if !terms.local_sockets {
        let pair = When::ConnectablePair;
        rules.extend(refuse!(
            "a pair of datagram sockets can be connected to a service afterwards",
            pair,
            [SYS_socketpair]
        ));
    }
    rules.extend(modes(terms.modes));
    rules
}

/// What a zygote needs to give its children namespaces and a `/proc` of their own.
const NESTING: &[c_long] = &[libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount];

/// The table without what nesting needs: for a process that runs nobody's code, and whose children are all put under
/// [`without_nesting`].
pub(super) fn with_nesting(terms: Terms) -> Vec<Rule> {
    let mut rules = rules(terms);
    rules.retain(|rule| !NESTING.contains(&rule.call));
    rules
}

/// The rest of the table.
pub(super) fn without_nesting(terms: Terms) -> Vec<Rule> {
    let mut rules = rules(terms);
    rules.retain(|rule| NESTING.contains(&rule.call));
    rules
}

/// Calls that change modes, owners, times and attributes of files, none of which Landlock guards.
fn modes(modes: Modes) -> Vec<Rule> {
    const WHY: &str = "Landlock does not guard modes, owners, times and attributes of the user's files";
    if modes == Modes::Free {
        return Vec::new();
    }
    let mut rules = Vec::from(refuse!(
        "Landlock does not guard modes, owners, times and attributes of the user's files",
        When::Always,
        [
            SYS_fchmodat,
            SYS_fchmodat2,
            SYS_fchownat,
            SYS_fchown,
            SYS_setxattr,
            SYS_lsetxattr,
            SYS_fsetxattr,
            SYS_removexattr,
            SYS_lremovexattr,
            SYS_fremovexattr
        ]
    ));
    #[cfg(target_arch = "x86_64")]
    rules.extend(refuse!(
        "Landlock does not guard modes, owners, times and attributes of the user's files",
        When::Always,
        [SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat]
    ));
    for (name, call) in [
        ("SYS_setxattrat", SYS_SETXATTRAT),
        ("SYS_removexattrat", SYS_REMOVEXATTRAT),
        ("SYS_file_setattr", SYS_FILE_SETATTR),
    ] {
        rules.push(Rule { name, call, when: When::Always, errno: libc::EPERM, why: WHY });
    }
    rules.push(Rule {
        name: "SYS_utimensat",
        call: libc::SYS_utimensat,
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
        name: "SYS_fchmod",
        call: libc::SYS_fchmod,
        when: When::Always,
        errno: 0,
        why: "the same; but libuv copies a file by it, whose mode it set when it made the copy, so it does nothing",
    });
    rules
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno = match self.errno {
            0 => "nothing, as if done",
            libc::ENOSYS => "ENOSYS",
            _ => "EPERM",
        };
        write!(f, "{} {:?} {errno}: {}", self.name.trim_start_matches("SYS_"), self.when, self.why)
    }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
#[cfg(target_arch = "x86_64")]
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn step(code: u32, operand: u32, jump_if: u8, jump_else: u8) -> Instruction {
    #[expect(clippy::cast_possible_truncation, reason = "operation codes have 16 bits")]
    Instruction { code: code as u16, jump_if, jump_else, operand }
}

fn allow() -> Instruction {
    step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0)
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

/// The filter of a table. Calls of another architecture are refused whole: their numbers mean other calls.
pub(super) fn compile(rules: &[Rule]) -> Vec<Instruction> {
    let mut steps = vec![
        step(LOAD, ARCHITECTURE, 0, 0),
        step(IF_EQUAL, AUDIT_ARCH, 1, 0),
        refuse(libc::EPERM),
        step(LOAD, NUMBER, 0, 0),
    ];
    #[cfg(target_arch = "x86_64")]
    steps.extend([step(IF_AT_LEAST, X32_BIT, 0, 1), refuse(libc::EPERM)]);
    for rule in rules {
        let body = body(rule);
        let number = u32::try_from(rule.call).unwrap_or(u32::MAX);
        // A body ends by an answer, so the number is still loaded where it was skipped.
        steps.push(step(IF_EQUAL, number, 0, u8::try_from(body.len()).unwrap_or(u8::MAX)));
        steps.extend(body);
    }
    steps.push(allow());
    steps
}

fn body(rule: &Rule) -> Vec<Instruction> {
    let (allow, refuse) = (allow(), refuse(rule.errno));
    match rule.when {
        When::Always => vec![refuse],
        When::NotZero(argument) => vec![load(argument), step(IF_EQUAL, 0, 0, 1), allow, refuse],
        When::NotSelf(which) => {
            vec![load(0), step(IF_EQUAL, which, 0, 3), load(1), step(IF_EQUAL, 0, 0, 1), allow, refuse]
        }
        When::NothingIfNull(argument) => vec![
            load(argument),
            step(IF_EQUAL, 0, 0, 3),
            load_high(argument),
            step(IF_EQUAL, 0, 0, 1),
            self::refuse(0),
            refuse,
        ],
        When::AnyBit(argument, bits) => vec![load(argument), step(IF_ANY_BIT, bits, 1, 0), allow, refuse],
        When::OneOf(argument, values) => {
            let mut steps = vec![load(argument)];
            for (index, value) in values.iter().enumerate() {
                let to_refusal = u8::try_from(values.len() - index).unwrap_or(u8::MAX);
                steps.push(step(IF_EQUAL, *value, to_refusal, 0));
            }
            steps.extend([allow, refuse]);
            steps
        }
        When::ForeignSocket => vec![
            load(0),
            step(IF_EQUAL, AF_INET, 4, 0),
            step(IF_EQUAL, AF_INET6, 3, 0),
            step(IF_EQUAL, AF_NETLINK, 0, 3),
            load(2),
            step(IF_EQUAL, 0, 0, 1),
            allow,
            refuse,
        ],
        When::AnySocket => {
            vec![load(0), step(IF_EQUAL, AF_NETLINK, 0, 3), load(2), step(IF_EQUAL, 0, 0, 1), allow, refuse]
        }
        When::ConnectablePair => vec![
            load(0),
            step(IF_EQUAL, AF_UNIX, 0, 5),
            load(1),
            step(AND, SOCKET_KIND_BITS, 0, 0),
            step(IF_EQUAL, SOCK_STREAM, 1, 0),
            step(IF_EQUAL, SOCK_SEQPACKET, 0, 1),
            allow,
            refuse,
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const OPEN: Terms = Terms { no_network: false, modes: Modes::Refused, local_sockets: false };

    /// What the kernel does with a filter, as far as ours go.
    fn run(filter: &[Instruction], arch: u32, number: c_long, arguments: [u64; 6]) -> u32 {
        let (mut at, mut register) = (0, 0_u32);
        loop {
            let Instruction { code, jump_if, jump_else, operand } = filter[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jump_if } else { jump_else });
            match u32::from(code) {
                LOAD => {
                    register = match operand {
                        NUMBER => u32::try_from(number).unwrap(),
                        ARCHITECTURE => arch,
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
                #[cfg(target_arch = "x86_64")]
                IF_AT_LEAST => at += jump(register >= operand),
                RETURN => return operand,
                other => panic!("operation {other:#x}"),
            }
        }
    }

    fn answer(terms: Terms, number: c_long, arguments: [u64; 6]) -> Option<i32> {
        match run(&compile(&rules(terms)), AUDIT_ARCH, number, arguments) {
            libc::SECCOMP_RET_ALLOW => None,
            refused => Some((refused & 0xffff).cast_signed()),
        }
    }

    const EPERM: Option<i32> = Some(libc::EPERM);

    #[test]
    fn a_base_and_its_children_have_the_whole_table_between_them() {
        let names = |rules: Vec<Rule>| rules.iter().map(|rule| rule.name).collect::<Vec<_>>();
        let (base, rest) = (names(with_nesting(OPEN)), names(without_nesting(OPEN)));
        assert_eq!(rest, ["SYS_mount", "SYS_unshare", "SYS_setns"]);
        assert_eq!(base.len() + rest.len(), rules(OPEN).len());
        assert!(!base.iter().any(|name| rest.contains(name)));
    }

    #[test]
    fn each_rule_refuses_and_what_has_none_is_allowed() {
        for rule in rules(OPEN).iter().filter(|rule| rule.when == When::Always) {
            assert_eq!(answer(OPEN, rule.call, [0; 6]), Some(rule.errno), "{rule}");
        }
        for call in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_futex, libc::SYS_mkdirat] {
            assert_eq!(answer(OPEN, call, [1; 6]), None);
        }
    }

    #[test]
    fn a_call_has_one_rule() {
        let mut calls: Vec<_> = rules(OPEN).iter().map(|rule| rule.call).collect();
        let count = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), count);
    }

    #[test]
    fn other_architectures_and_the_x32_way_are_refused() {
        let filter = compile(&rules(OPEN));
        assert_eq!(
            run(&filter, 0x4000_0003, 0, [0; 6]),
            libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()
        );
        #[cfg(target_arch = "x86_64")]
        assert_eq!(answer(OPEN, 0x4000_0000 | libc::SYS_ptrace, [0; 6]), EPERM);
    }

    #[test]
    fn sockets_are_those_of_the_internet_and_pairs_those_that_stay_connected() {
        let socket = |terms, family, kind, protocol| {
            answer(terms, libc::SYS_socket, [family, kind, protocol, 0, 0, 0])
        };
        for family in [2, 10] {
            assert_eq!(socket(OPEN, family, 1, 6), None);
            assert_eq!(socket(Terms { no_network: true, ..OPEN }, family, 1, 6), EPERM);
        }
        // netlink's routes, and its other protocols; local; packets; virtual machines
        assert_eq!(socket(OPEN, 16, 3, 0), None);
        assert_eq!(socket(Terms { no_network: true, ..OPEN }, 16, 3, 0), None);
        for (family, protocol) in [(16, 15), (1, 0), (17, 0), (40, 0), (38, 0)] {
            assert_eq!(socket(OPEN, family, 1, protocol), EPERM);
            assert_eq!(socket(Terms { no_network: true, ..OPEN }, family, 1, protocol), EPERM);
        }
        // The kernel looks at 32 bits.
        assert_eq!(socket(OPEN, 1 << 32 | 1, 1, 0), EPERM);
        assert_eq!(socket(Terms { local_sockets: true, ..OPEN }, 1, 1, 0), None);
        let pair = |family, kind| answer(OPEN, libc::SYS_socketpair, [family, kind, 0, 0, 0, 0]);
        for kind in [1, 5, 0o2_000_001] {
            assert_eq!(pair(1, kind), None);
        }
        for (family, kind) in [(1, 2), (1, 3), (1, 0o2_000_002), (2, 1)] {
            assert_eq!(pair(family, kind), EPERM);
        }
    }

    #[test]
    fn arguments_decide_where_they_should() {
        let first = |call, argument| answer(OPEN, call, [argument, 0, 0, 0, 0, 0]);
        let second = |call, argument| answer(OPEN, call, [0, argument, 0, 0, 0, 0]);
        assert_eq!((first(libc::SYS_prlimit64, 0), first(libc::SYS_prlimit64, 7)), (None, EPERM));
        // What libc forks and starts threads by.
        assert_eq!((first(libc::SYS_clone, 0x0120_0011), first(libc::SYS_clone, 0x003d_0f00)), (None, None));
        assert_eq!((first(libc::SYS_clone, 0x1000_0011), first(libc::SYS_unshare, 0x80)), (EPERM, EPERM));
        assert_eq!(answer(OPEN, libc::SYS_clone3, [0; 6]), Some(libc::ENOSYS));
        assert_eq!((second(libc::SYS_ioctl, 0x5401), second(libc::SYS_ioctl, 0x5412)), (None, EPERM));
        assert_eq!(second(libc::SYS_ioctl, 0x541C), EPERM);
        let priority = |which, who| answer(OPEN, libc::SYS_setpriority, [which, who, 5, 0, 0, 0]);
        // The process itself; another; its user's; its group's.
        assert_eq!(
            [priority(0, 0), priority(0, 7), priority(2, 0), priority(1, 0)],
            [None, EPERM, EPERM, EPERM]
        );
        let of_disk = |which, who| answer(OPEN, libc::SYS_ioprio_set, [which, who, 5, 0, 0, 0]);
        assert_eq!([of_disk(1, 0), of_disk(1, 7), of_disk(3, 0)], [None, EPERM, EPERM]);
        assert_eq!(answer(OPEN, libc::SYS_fchmod, [1; 6]), Some(0));
        let times = |path| second(libc::SYS_utimensat, path);
        assert_eq!([times(0), times(1), times(1 << 32)], [Some(0), EPERM, EPERM]);
        let private = Terms { modes: Modes::Free, ..OPEN };
        let install = Terms { modes: Modes::Ignored, ..OPEN };
        for call in [libc::SYS_fchmodat, libc::SYS_fchmod, libc::SYS_utimensat] {
            assert_eq!(answer(private, call, [1; 6]), None);
            assert_eq!(answer(install, call, [1; 6]), Some(0));
        }
    }

    #[test]
    fn the_table_is_what_it_was() {
        let mut text = String::new();
        for (name, terms) in
            [("one user", OPEN), ("no network", Terms { no_network: true, modes: Modes::Free, ..OPEN })]
        {
            writeln!(text, "{name}").unwrap();
            for rule in rules(terms) {
                writeln!(text, "  {rule}").unwrap();
            }
        }
        super::super::snapshot::check("seccomp.txt", &text);
    }
}
