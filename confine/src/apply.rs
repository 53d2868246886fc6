//! The child's side: system calls in a fixed order on memory that was there before the fork.

use std::{
    ffi::{CStr, c_int},
    mem, ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    fixtures, listener, mounts,
    places::Places,
    plan::{Domain, Instruction, Plan, Rule, Step},
    scratch::bring_scratch,
};

/// `_LINUX_CAPABILITY_VERSION_3`: two words of 32 capabilities each.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// No kernel has more capabilities.
const CAPABILITIES_END: c_int = 64;

/// The capability bounding set of this process, a bit each, once [`remember_bounding`] has read it: children are spared 40 system calls.
/// Nothing adds to the set but a new user namespace.
static BOUNDING: AtomicU64 = AtomicU64::new(0);

/// Set in [`BOUNDING`] if it is known; no capability has this number.
const IS_KNOWN: u64 = 1 << 63;

const LANDLOCK_RULE_PATH_BENEATH: c_int = 1;

/// What a rule for a file, not a folder, may allow: execute, write, read, truncate, ioctl of devices.
const FILE_RIGHTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15;

/// A step that did not succeed. The process must end: it has given up only part of what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub step: Step,
    /// The kernel's reason.
    pub errno: c_int,
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `struct landlock_ruleset_attr`; a kernel that knows fewer fields wants those that it does not know to be zero.
#[repr(C)]
struct RulesetAttributes {
    handled_files: u64,
    handled_network: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: c_int,
}

/// Gives up what the plan says, from the most privileged step to the least. Allocates nothing, takes no lock.
///
/// A plan with a PID namespace is applied by the process that [`nest`](crate::nest) returns in, which has left all namespaces.
///
/// Becoming another user clears the parent-death signal, and a root of one's own leaves the working folder at that root: set
/// both after this.
///
/// # Errors
///
/// The first step that failed; none after it was tried.
///
/// # Safety
///
/// The process has one thread: what is given up counts for the calling one only.
pub unsafe fn apply(plan: &Plan) -> Result<(), Failed> {
    // SAFETY: the caller's promise.
    unsafe { apply_at(plan, &Places::default()) }
}

/// The same; what `places` has open need not be looked up. They stay open.
///
/// # Errors
///
/// As for [`apply`].
///
/// # Safety
///
/// As for [`apply`].
pub unsafe fn apply_at(plan: &Plan, places: &Places) -> Result<(), Failed> {
    let at = |step: Step| move |errno: c_int| Failed { step, errno };
    // In a root of one's own the same path may be another place.
    let (nothing, has_own_root) = (Places::default(), plan.root.is_some());
    let places = if has_own_root { &nothing } else { places };
    // SAFETY: the caller's promise; each is a few system calls on memory of the plan and on locals.
    unsafe {
        let is_nested = plan.is_nested();
        if !is_nested {
            leave_namespaces(plan.namespaces).map_err(at(Step::Namespaces))?;
        }
        if let (Some(root), Some(domain)) = (&plan.root, &plan.landlock) {
            mounts::lay_out(root, domain, plan).map_err(at(Step::Root))?;
            if is_nested {
                mounts::own_proc(root).map_err(at(Step::Proc))?;
            } else {
                mounts::bring_proc(root).map_err(at(Step::Root))?;
            }
            if let Some(scratch) = &plan.scratch {
                bring_scratch(root, scratch, plan.identity).map_err(at(Step::Scratch))?;
            }
            mounts::enter(root).map_err(at(Step::Root))?;
        } else if is_nested || plan.born_nested {
            mounts::own_proc(c"").map_err(at(Step::Proc))?;
            if let Some(scratch) = &plan.scratch {
                bring_scratch(c"", scratch, plan.identity).map_err(at(Step::Scratch))?;
            }
        } else if plan.scratch.is_some() || plan.fixtures.is_some() {
            // It would be mounted where everybody sees it.
            return Err(at(Step::Scratch)(libc::EINVAL));
        }
        if let Some(wanted) = &plan.fixtures {
            fixtures::settle(plan, wanted).map_err(at(Step::Fixtures))?;
        }
        // The bounding set needs a capability to be shrunk, so it goes before the user changes.
        drop_bounding(plan.capabilities).map_err(at(Step::Capabilities))?;
        if let Some(number) = plan.identity {
            become_user(number).map_err(at(Step::Identity))?;
            // By the user that it counts for; a limit can always be lowered.
            if !set_limit(libc::RLIMIT_NPROC, plan.tasks.map(u64::from), 0) {
                return Err(at(Step::Identity)(errno()));
            }
        }
        drop_capabilities(plan.capabilities).map_err(at(Step::Capabilities))?;
        if plan.namespaces & libc::CLONE_NEWUSER.cast_unsigned() != 0 {
            // The programs of root have them anyway.
            keep_over_exec(plan.capabilities).map_err(at(Step::Capabilities))?;
        }
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).map_err(at(Step::NoNewPrivileges))?;
        if let Some(domain) = plan.landlock.as_ref().filter(|domain| !domain.is_empty()) {
            enter(domain, places).map_err(at(Step::Landlock))?;
        }
        if !plan.seccomp.is_empty() {
            let (step, install): (_, Install) =
                if plan.listener { (Step::Listener, listener::install) } else { (Step::Seccomp, filter) };
            let program = program(&plan.seccomp).map_err(at(step))?;
            install(&program).map_err(at(step))?;
        }
    }
    Ok(())
}

/// Puts the calling process into the control group whose `cgroup.procs` is open as `procs`: whoever opened it had the right to. What
/// it has mapped already stays charged to the group that it leaves. Not to be undone by the process: nothing in here gives it a
/// way to any group.
///
/// # Errors
///
/// The kernel's reason, an errno.
pub fn enter_group(procs: c_int) -> Result<(), c_int> {
    // SAFETY: reads one byte of a literal; 0 stands for whoever writes it.
    unsafe { check_long(libc::write(procs, c"0".as_ptr().cast(), 1) as libc::c_long).map(drop) }
}

pub(crate) unsafe fn errno() -> c_int {
    // SAFETY: always a valid pointer in the calling thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) unsafe fn check(result: c_int) -> Result<(), c_int> {
    // SAFETY: as above.
    if result < 0 { Err(unsafe { errno() }) } else { Ok(()) }
}

pub(crate) unsafe fn check_long(result: libc::c_long) -> Result<c_int, c_int> {
    // SAFETY: as above.
    c_int::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(|| unsafe { errno() })
}

pub(crate) unsafe fn leave_namespaces(flags: u32) -> Result<(), c_int> {
    if flags == 0 {
        return Ok(());
    }
    let flags = flags.cast_signed();
    // SAFETY: take no memory.
    unsafe {
        let (user, group) = (libc::geteuid(), libc::getegid());
        check(libc::unshare(flags))?;
        if flags & libc::CLONE_NEWUSER != 0 {
            // In there the process has all capabilities again.
            BOUNDING.store(0, Relaxed);
            // Without the right to change groups, an unprivileged process may map its own.
            write_file(c"/proc/self/setgroups", b"deny")?;
            map_one(c"/proc/self/gid_map", group)?;
            map_one(c"/proc/self/uid_map", user)?;
        }
    }
    Ok(())
}

/// Maps a number to itself, alone.
unsafe fn map_one(path: &CStr, number: u32) -> Result<(), c_int> {
    // "4294967295 4294967295 1"
    let mut text = [0_u8; 23];
    let mut length = 0;
    for part in [number, number, 1] {
        if length > 0 {
            text[length] = b' ';
            length += 1;
        }
        length += write_number(&mut text[length..], part.into());
    }
    // SAFETY: as the caller's.
    unsafe { write_file(path, &text[..length]) }
}

/// Writes decimal digits to the front of `place`, which has room for them; gives how many.
pub(crate) fn write_number(place: &mut [u8], mut number: u64) -> usize {
    let mut length = 0;
    loop {
        place[length] = b'0' + (number % 10) as u8;
        number /= 10;
        length += 1;
        if number == 0 {
            place[..length].reverse();
            return length;
        }
    }
}

unsafe fn write_file(path: &CStr, text: &[u8]) -> Result<(), c_int> {
    // SAFETY: a C string, and bytes of the caller's; the descriptor is this function's own.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(file)?;
        let written = check_long(libc::write(file, text.as_ptr().cast(), text.len()) as libc::c_long);
        libc::close(file);
        written.map(drop)
    }
}

/// What is not there to be dropped is fine - asked first, as each drop makes new credentials, and a zygote's child has few left to
/// drop -, and so is not being allowed to: the kernel has no way to shrink the set but this one, which takes `CAP_SETPCAP` in the user
/// namespace. A process without it holds nothing, and `no_new_privs` keeps it from getting anything. The report says so.
unsafe fn drop_bounding(kept: u64) -> Result<(), c_int> {
    let known = BOUNDING.load(Relaxed);
    let may_be_held = |number: &c_int| known & IS_KNOWN == 0 || known & (1 << number) != 0;
    let dropped = (0..CAPABILITIES_END).filter(|number| kept & (1 << number) == 0);
    for capability in dropped.filter(may_be_held) {
        // SAFETY: take no memory.
        let gone = unsafe {
            libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) == 0
                || libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
        };
        if gone {
            continue;
        }
        // SAFETY: as above.
        match unsafe { errno() } {
            // Beyond the last that this kernel knows, or not allowed.
            libc::EINVAL | libc::EPERM => return Ok(()),
            other => return Err(other),
        }
    }
    Ok(())
}

/// Reads the capability bounding set of this process ahead, for the children that it forks from now on.
pub fn remember_bounding() {
    let mut held = 0;
    for capability in 0..CAPABILITIES_END - 1 {
        // SAFETY: takes no memory.
        match unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) } {
            0 => {}
            1 => held |= 1 << capability,
            // Beyond the last that this kernel knows.
            _ => break,
        }
    }
    BOUNDING.store(held | IS_KNOWN, Relaxed);
}

/// By raw calls: the C library's would signal threads that a forked child does not have.
unsafe fn become_user(number: u32) -> Result<(), c_int> {
    // SAFETY: an empty list of groups is read from nowhere; the others take numbers.
    unsafe {
        check_long(libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()))?;
        check_long(libc::syscall(libc::SYS_setresgid, number, number, number))?;
        check_long(libc::syscall(libc::SYS_setresuid, number, number, number))?;
        // The kernel takes this away with the user's change, and with it the process's own `/proc/self`.
        check(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))
    }
}

pub(crate) unsafe fn drop_capabilities(kept: u64) -> Result<(), c_int> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapabilityData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: the kernel reads the header, and reads or writes two structs.
    unsafe {
        check_long(libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()))?;
        for (index, word) in data.iter_mut().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "one half after the other")]
            let kept = (kept >> (32 * index)) as u32;
            word.permitted &= kept;
            word.effective = word.permitted;
            word.inheritable = 0;
        }
        check_long(libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()))?;
        match check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)) {
            // Kernels before 4.3 have none.
            Err(libc::EINVAL) => Ok(()),
            other => other,
        }
    }
}

/// Lets the next program have capabilities that this process has, and keep them: in a user namespace of its own, where it is not
/// root.
unsafe fn keep_over_exec(kept: u64) -> Result<(), c_int> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapabilityData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    if kept == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe {
        check_long(libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()))?;
        for word in &mut data {
            word.inheritable = word.permitted;
        }
        check_long(libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()))?;
        for capability in (0..CAPABILITIES_END).filter(|number| kept & (1 << number) != 0) {
            check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0))?;
        }
    }
    Ok(())
}

unsafe fn enter(domain: &Domain, places: &Places) -> Result<(), c_int> {
    let attributes = RulesetAttributes {
        handled_files: domain.handled_files,
        handled_network: domain.handled_network,
        scoped: domain.scoped,
    };
    let size = mem::size_of::<RulesetAttributes>();
    // SAFETY: the kernel reads `size` bytes of a local; the descriptor is this function's own and closed at its end.
    unsafe {
        let create = libc::SYS_landlock_create_ruleset;
        let ruleset = check_long(libc::syscall(create, &raw const attributes, size, 0))?;
        let entered = allow_all(ruleset, domain, places)
            .and_then(|()| check_long(libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0)).map(drop));
        libc::close(ruleset);
        entered
    }
}

unsafe fn allow_all(ruleset: c_int, domain: &Domain, places: &Places) -> Result<(), c_int> {
    // SAFETY: as the caller's.
    unsafe {
        for Rule { path, access, needed } in &domain.rules {
            let access = access & domain.handled_files;
            let allowed = match places.get(path) {
                Some(place) => allow_at(ruleset, place, access),
                None => allow(ruleset, path, access),
            };
            match allowed {
                Err(error) if *needed || !is_absent(error) => return Err(error),
                _ => {}
            }
        }
        if domain.own_proc != 0 {
            allow_own_proc(ruleset, domain.own_proc & domain.handled_files)?;
        }
    }
    Ok(())
}

/// What a process may read of its own entry in `/proc`: these, and the names of what else there is. A rule for the whole entry would
/// let `net` be read, in the entry and in those of its threads: all connections and local sockets of the machine. Each costs a worker
/// some 10 µs, as it is the first to look in its `/proc`; so those are left out that programs get in other ways (`auxv`, `environ`),
/// or that only tools for watching read (`fdinfo`, `io`, `smaps`, `smaps_rollup`).
const OF_OWN_PROC: [&CStr; 10] = [
    c"cgroup",
    c"cmdline",
    c"comm",
    c"limits",
    c"maps",
    c"mountinfo",
    c"mounts",
    c"stat",
    c"statm",
    c"status",
];

/// `LANDLOCK_ACCESS_FS_READ_DIR`.
const READ_DIR: u64 = 1 << 3;

/// Where there is no `/proc`, there is nothing to allow.
unsafe fn allow_own_proc(ruleset: c_int, access: u64) -> Result<(), c_int> {
    let passed_over = |allowed: Result<(), c_int>| match allowed {
        Err(error) if !is_absent(error) => Err(error),
        _ => Ok(()),
    };
    // SAFETY: C strings of this file; the descriptors are this function's own.
    unsafe {
        let own = libc::open(c"/proc/self".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        if own < 0 {
            return passed_over(Err(errno()));
        }
        let mut done = add_rule(ruleset, own, access & READ_DIR);
        for name in OF_OWN_PROC {
            if done.is_err() {
                break;
            }
            let place = libc::openat(own, name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            done = passed_over(check(place).and_then(|()| add_rule(ruleset, place, access & FILE_RIGHTS)));
            if place >= 0 {
                libc::close(place);
            }
        }
        libc::close(own);
        done
    }
}

/// What keeps a path from being opened by this very process: then it needs no rule either.
pub(crate) fn is_absent(errno: c_int) -> bool {
    matches!(errno, libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP)
}

unsafe fn allow(ruleset: c_int, path: &CStr, access: u64) -> Result<(), c_int> {
    // SAFETY: a C string, and a descriptor of this function's own.
    unsafe {
        let place = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        check(place)?;
        let added = allow_at(ruleset, place, access);
        libc::close(place);
        added
    }
}

/// What a file cannot have the kernel refuses (`EINVAL`): asking it what the place is would cost a system call for each of them.
unsafe fn allow_at(ruleset: c_int, place: c_int, access: u64) -> Result<(), c_int> {
    // SAFETY: as the caller's.
    unsafe {
        match add_rule(ruleset, place, access) {
            Err(libc::EINVAL) if access & !FILE_RIGHTS != 0 => add_rule(ruleset, place, access & FILE_RIGHTS),
            added => added,
        }
    }
}

unsafe fn add_rule(ruleset: c_int, place: c_int, allowed: u64) -> Result<(), c_int> {
    // A rule that allows nothing is refused by the kernel, and says nothing.
    if allowed == 0 {
        return Ok(());
    }
    let rule = PathBeneath { allowed, parent: place };
    let (add, kind) = (libc::SYS_landlock_add_rule, LANDLOCK_RULE_PATH_BENEATH);
    // SAFETY: the kernel reads a local.
    unsafe { check_long(libc::syscall(add, ruleset, kind, &raw const rule, 0)).map(drop) }
}

/// A way to put the process under a filter.
type Install = unsafe fn(&libc::sock_fprog) -> Result<(), c_int>;

/// The steps as the kernel reads them; an instruction is laid out as the kernel's. Lives no longer than they do.
fn program(steps: &[Instruction]) -> Result<libc::sock_fprog, c_int> {
    let len = u16::try_from(steps.len()).map_err(|_| libc::E2BIG)?;
    Ok(libc::sock_fprog { len, filter: steps.as_ptr().cast_mut().cast() })
}

unsafe fn filter(program: &libc::sock_fprog) -> Result<(), c_int> {
    // SAFETY: the kernel only reads the program, which lives across the calls.
    unsafe {
        // Without this flag (Linux 4.17), kernels before 5.16 slow filtered processes down by a Spectre mitigation.
        let (operation, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
        if libc::syscall(libc::SYS_seccomp, operation, flags, ptr::from_ref(program)) == 0 {
            return Ok(());
        }
        check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, ptr::from_ref(program)))
    }
}

/// Sets a limit of this process, the hard one `grace` above it, neither above the hard limit in force; `None` leaves what is in
/// force. Whether that worked. Allocates nothing.
pub fn set_limit(resource: libc::__rlimit_resource_t, value: Option<u64>, grace: u64) -> bool {
    let Some(value) = value else { return true };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a pointer to a local.
    unsafe {
        if libc::getrlimit(resource, &raw mut limit) != 0 {
            return false;
        }
        limit.rlim_cur = value.min(limit.rlim_max);
        limit.rlim_max = value.saturating_add(grace).min(limit.rlim_max);
        libc::setrlimit(resource, &raw const limit) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal_digits() {
        for number in [0, 7, 10, 65_534, u64::MAX] {
            let mut place = [0; 20];
            let length = write_number(&mut place, number);
            assert_eq!(std::str::from_utf8(&place[..length]).unwrap(), number.to_string());
        }
    }

    /// What a child's plan came to: 0, or the number of the step and the errno.
    fn outcome(plan: &Plan, look: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child makes system calls only, and ends without running what is the parent's.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let status = match apply(plan) {
                    Ok(()) if look() => 0,
                    Ok(()) => 99,
                    Err(failed) => failed.step as c_int + 1,
                };
                libc::_exit(status);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WEXITSTATUS(status)
        }
    }

    fn can_read(path: &CStr) -> bool {
        // SAFETY: a C string; the descriptor goes with the process.
        unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) >= 0 }
    }

    #[test]
    fn without_more_a_plan_takes_capabilities_and_new_privileges() {
        // SAFETY: takes no memory.
        let held = || unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 };
        assert_eq!(outcome(&Plan::default(), || held() && can_read(c"/proc/self/status")), 0);
    }

    /// A plan with nothing but a PID namespace and what that needs; none where it cannot be had.
    fn nested() -> Plan {
        // SAFETY: takes no memory.
        let user = if unsafe { libc::geteuid() } == 0 { 0 } else { libc::CLONE_NEWUSER };
        let flags = user | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
        Plan { namespaces: flags.cast_unsigned(), ..Plan::default() }
    }

    /// The keeper of what runs in a PID namespace. It ends by `REFUSED` where there can be none.
    fn kept(run: impl FnOnce()) -> c_int {
        // SAFETY: as in `outcome`.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child != 0 {
                return child;
            }
            let plan = nested();
            if libc::setsid() < 0 || crate::nest(&plan).is_err() {
                libc::_exit(REFUSED);
            }
            // What is mounted here is to be seen nowhere else.
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            let alone = libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) == 0;
            if !alone || apply(&plan).is_err() {
                libc::_exit(REFUSED);
            }
            run();
            libc::_exit(0);
        }
    }

    const REFUSED: c_int = 99;

    fn status_of(child: c_int) -> c_int {
        let mut status = 0;
        // SAFETY: a pointer to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    #[test]
    fn a_keeper_ends_as_what_it_keeps() {
        // SAFETY: take no memory.
        let code = status_of(kept(|| unsafe { libc::_exit(if libc::getpid() == 3 { 7 } else { 8 }) }));
        if libc::WEXITSTATUS(code) == REFUSED {
            return;
        }
        assert_eq!((libc::WIFEXITED(code), libc::WEXITSTATUS(code)), (true, 7));
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGXCPU] {
            // SAFETY: takes no memory.
            let status = status_of(kept(|| unsafe {
                libc::kill(libc::getpid(), signal);
            }));
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{signal}: {status}");
        }
    }

    #[test]
    fn a_killed_keeper_takes_everything_along() {
        /// More than it ever takes, milliseconds.
        const PATIENCE_MS: c_int = 20_000;
        let mut pipe = [-1; 2];
        // SAFETY: fills the array with two new descriptors; the children make system calls on these and on locals.
        unsafe {
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let keeper = kept(|| {
                // In a session of its own, and nobody's child once the other ends: that is what a daemon is.
                if libc::fork() == 0 {
                    libc::setsid();
                    libc::write(pipe[1], b"x".as_ptr().cast(), 1);
                }
                libc::pause();
            });
            libc::close(pipe[1]);
            let mut byte = 0_u8;
            let read = libc::read(pipe[0], (&raw mut byte).cast(), 1);
            if read == 1 {
                libc::kill(keeper, libc::SIGKILL);
                let mut end = libc::pollfd { fd: pipe[0], events: libc::POLLIN, revents: 0 };
                assert_eq!(libc::poll(&raw mut end, 1, PATIENCE_MS), 1, "somebody still holds the pipe");
                assert_eq!(libc::read(pipe[0], (&raw mut byte).cast(), 1), 0);
            }
            libc::close(pipe[0]);
            let status = status_of(keeper);
            assert!(libc::WIFSIGNALED(status) || (read == 0 && libc::WEXITSTATUS(status) == REFUSED));
        }
    }

    #[test]
    fn a_domain_leaves_what_its_rules_say_and_the_own_proc() {
        let read = 1 << 2 | 1 << 3;
        let rule = |path: &CStr, needed| Rule { path: path.into(), access: read, needed };
        let domain = |rules| Domain { handled_files: read, own_proc: read, rules, ..Domain::default() };
        let plan = |rules| Plan { landlock: Some(domain(rules)), ..Plan::default() };
        let there = plan(vec![rule(c"/proc/version", true), rule(c"/not/there", false)]);
        let parent = std::ffi::CString::new(format!("/proc/{}/status", std::process::id())).unwrap();
        let holds = || {
            can_read(c"/proc/version")
                && can_read(c"/proc/self/status")
                && !can_read(&parent)
                && !can_read(c"/etc/passwd")
        };
        // SAFETY: with this flag the kernel reads nothing.
        let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<u8>(), 0, 1) };
        if abi < 1 {
            assert_eq!(outcome(&there, || true), Step::Landlock as c_int + 1);
            return;
        }
        assert_eq!(outcome(&there, holds), 0);
        let absent = plan(vec![rule(c"/not/there", true)]);
        assert_eq!(outcome(&absent, || true), Step::Landlock as c_int + 1);
    }
}
