//! What programs expect of a root: the entry of their user, `/dev/fd` and its kin, terminals, a `/tmp`. As in `apply.rs`, nothing
//! is allocated.

use std::{
    ffi::{CStr, c_int},
    mem, ptr,
};

use crate::{
    apply::{check, check_long, errno, is_absent, write_number},
    mounts::{MOUNT_ATTR_RDONLY, Place, WRITES, already_there, restrict},
    plan::{Fixtures, Plan, Rule},
};

/// Where the lists of users and groups are, of each process that needs another one: a folder to mount on.
const ACCOUNTS: &CStr = c"/etc/sandbox";

/// The user's name. It is not the host's: other users of the machine are nobody's business.
const NAME: &[u8] = b"sandbox";

/// Where programs look for them.
const LISTS: [(&CStr, &CStr); 2] = [(c"/etc/passwd", c"sandbox/passwd"), (c"/etc/group", c"sandbox/group")];

const TEMP: &CStr = c"/tmp";
const TERMINALS: &CStr = c"/dev/pts";

/// What a root has beside what is mounted: who opens one of the first four gets what the process itself has open.
const LINKS: [(&CStr, &CStr); 7] = [
    (c"/dev/fd", c"/proc/self/fd"),
    (c"/dev/stdin", c"/proc/self/fd/0"),
    (c"/dev/stdout", c"/proc/self/fd/1"),
    (c"/dev/stderr", c"/proc/self/fd/2"),
    (c"/dev/ptmx", c"pts/ptmx"),
    (c"/var/tmp", TEMP),
    // Where `shm_open(3)` and `sem_open(3)` keep theirs.
    (c"/dev/shm", TEMP),
];

/// Room for two files of the lists.
const ACCOUNTS_OPTIONS: &CStr = c"mode=755,size=32k,nr_inodes=4";

/// Everybody in there is the call's; the kernel has a limit for the whole machine (`kernel.pty.max`), of which this is a part.
const TERMINAL_OPTIONS: &CStr = c"mode=0620,ptmxmode=0666,max=64";

/// Who passes through the folders on the way to what stays below `/tmp` does not list them, not even as their owner.
const WAY_MASK: libc::mode_t = 0o466;

/// How paths below `/tmp` begin.
const BELOW_TEMP: &[u8] = b"/tmp/";

/// The longest path, and what stands around it in a list of users.
const LIST_BYTES: usize = 4096 + 256;

/// The most places below `/tmp` that stay where they were.
const MAX_KEPT: usize = 32;

/// Whether the host's is not brought to a root that has these: it has its own.
pub(crate) fn replaces(path: &CStr) -> bool {
    path == TEMP || path == TERMINALS || LISTS.iter().any(|(list, _)| *list == path)
}

/// Makes them in a root that is being laid out.
///
/// # Safety
/// As of [`crate::mounts::lay_out`].
pub(crate) unsafe fn lay_out(place: &mut Place, plan: &Plan, fixtures: &Fixtures) -> Result<(), c_int> {
    // SAFETY: system calls on C strings of this file and of the place.
    unsafe {
        for folder in [ACCOUNTS, TEMP, TERMINALS] {
            place.set(folder)?;
            place.make_parents()?;
            check(libc::mkdir(place.pointer(), 0o755)).or_else(already_there)?;
        }
        for (link, target) in LINKS.iter().chain(&LISTS) {
            place.set(link)?;
            place.make_parents()?;
            check(libc::symlink(target.as_ptr(), place.pointer())).or_else(already_there)?;
        }
        write_lists(place, plan, fixtures)
    }
}

/// Makes what a process has for itself alone, once its root is its own.
///
/// # Safety
/// As of [`crate::mounts::lay_out`].
pub(crate) unsafe fn settle(plan: &Plan, fixtures: &Fixtures) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = libc::umask(0o022);
        let done = mount_own(plan, fixtures);
        libc::umask(mask);
        done
    }
}

unsafe fn mount_own(plan: &Plan, fixtures: &Fixtures) -> Result<(), c_int> {
    // SAFETY: the caller's promise; C strings of this file.
    unsafe {
        let mut place = Place::new(c"")?;
        // Else they were written when the root was laid out.
        if plan.root.is_none() {
            let kind = c"tmpfs".as_ptr();
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            check(libc::mount(kind, ACCOUNTS.as_ptr(), kind, flags, ACCOUNTS_OPTIONS.as_ptr().cast()))?;
            write_lists(&mut place, plan, fixtures)?;
        }
        let Some(tmp) = &fixtures.tmp else { return Ok(()) };
        let kind = c"devpts".as_ptr();
        let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
        // Where the kernel has none to give there is none: `/dev/ptmx` leads nowhere then.
        libc::mount(kind, TERMINALS.as_ptr(), kind, flags, TERMINAL_OPTIONS.as_ptr().cast());
        let rules = plan.landlock.as_ref().map_or(&[][..], |domain| &domain.rules);
        libc::umask(WAY_MASK);
        match plan.identity {
            Some(user) => as_owner(user, || cover(&mut place, tmp, rules)),
            None => cover(&mut place, tmp, rules),
        }
    }
}

/// Runs it with the rights to files that the owner of the temp folder has, as not every process that may mount has all rights to
/// files.
unsafe fn as_owner(user: u32, run: impl FnOnce() -> Result<(), c_int>) -> Result<(), c_int> {
    // SAFETY: take numbers. They count for the only thread, and tell nobody whether they worked: what follows does.
    unsafe {
        let (user_before, group_before) = (libc::geteuid(), libc::getegid());
        libc::syscall(libc::SYS_setfsgid, user);
        libc::syscall(libc::SYS_setfsuid, user);
        let done = run();
        libc::syscall(libc::SYS_setfsuid, user_before);
        libc::syscall(libc::SYS_setfsgid, group_before);
        done
    }
}

/// Mounts the temp folder at `/tmp`, and in it again what the rules name below.
///
/// In a domain, who may write in `/tmp` may write in all that is below it. So nothing else is there; the folders on the way to what
/// is there, and that unless it is the call's own, are mounted read-only. The folders on the way are the temp folder's: who changes
/// them there, where it is reached by its own name, takes a way from himself.
unsafe fn cover(place: &mut Place, tmp: &CStr, rules: &[Rule]) -> Result<(), c_int> {
    /// The kernel never gives this one.
    const NONE: c_int = -1;
    let mut kept = [NONE; MAX_KEPT];
    if below_temp(rules).count() > MAX_KEPT {
        return Err(libc::E2BIG);
    }
    // SAFETY: system calls on C strings of the plan and of the place; the descriptors are this function's own.
    unsafe {
        // Opened while they can be seen.
        for (rule, fd) in below_temp(rules).zip(&mut kept) {
            *fd = libc::open(rule.path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if *fd < 0 {
                let error = errno();
                if rule.needed || !is_absent(error) {
                    return Err(error);
                }
            }
        }
        let none = ptr::null();
        check(libc::mount(tmp.as_ptr(), TEMP.as_ptr(), none, libc::MS_BIND, ptr::null()))?;
        for (at, rule) in below_temp(rules).enumerate() {
            if is_first_of_way(rules, at, rule) {
                place.set_part(&rule.path, way_length(rule).unwrap_or(0))?;
                check(libc::mkdir(place.pointer(), 0o755))?;
                // So that it can be made read-only: a mount of the folder itself costs a third of a new file system.
                check(libc::mount(place.pointer(), place.pointer(), none, libc::MS_BIND, ptr::null()))?;
            }
        }
        for (rule, fd) in below_temp(rules).zip(&kept).filter(|(_, fd)| **fd >= 0) {
            place.set(&rule.path)?;
            bind_open(place, *fd)?;
            if rule.access & WRITES == 0 {
                restrict(place, MOUNT_ATTR_RDONLY, false)?;
            }
            libc::close(*fd);
        }
        for (at, rule) in below_temp(rules).enumerate() {
            if is_first_of_way(rules, at, rule) {
                place.set_part(&rule.path, way_length(rule).unwrap_or(0))?;
                restrict(place, MOUNT_ATTR_RDONLY, false)?;
            }
        }
    }
    Ok(())
}

/// Mounts what is open at a place, which is made, with the folders above it where they are missing: mostly they are there.
unsafe fn bind_open(place: &mut Place, fd: c_int) -> Result<(), c_int> {
    // SAFETY: paths that end by a zero, and a local.
    unsafe {
        let mut found: libc::stat = mem::zeroed();
        check(libc::fstat(fd, &raw mut found))?;
        let make = |place: &Place| {
            let made = if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                libc::mkdir(place.pointer(), 0o755)
            } else {
                libc::mknod(place.pointer(), libc::S_IFREG | 0o444, 0)
            };
            check(made).or_else(already_there)
        };
        if make(place) == Err(libc::ENOENT) {
            place.make_parents()?;
            make(place)?;
        }
        let source = descriptor_path(fd);
        let (none, flags) = (ptr::null(), libc::MS_BIND);
        check(libc::mount(source.as_ptr().cast(), place.pointer(), none, flags, ptr::null()))
    }
}

fn below_temp(rules: &[Rule]) -> impl Iterator<Item = &Rule> {
    rules.iter().filter(|rule| rule.path.to_bytes().starts_with(BELOW_TEMP))
}

/// How much of a rule's path names the folder of `/tmp` that it is somewhere in; none where it is in `/tmp` itself.
fn way_length(rule: &Rule) -> Option<usize> {
    let rest = rule.path.to_bytes().get(BELOW_TEMP.len()..)?;
    rest.iter().position(|byte| *byte == b'/').map(|length| BELOW_TEMP.len() + length)
}

fn way_of(rule: &Rule) -> Option<&[u8]> {
    rule.path.to_bytes().get(..way_length(rule)?)
}

/// Whether no rule before this one, of those below `/tmp`, is in the same folder of it.
fn is_first_of_way(rules: &[Rule], at: usize, rule: &Rule) -> bool {
    let Some(own) = way_of(rule) else { return false };
    !below_temp(rules).take(at).any(|other| way_of(other).is_some_and(|other| other == own))
}

/// The path of what is open, with a zero at its end.
fn descriptor_path(fd: c_int) -> [u8; 32] {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    let mut path = [0; 32];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    write_number(&mut path[FOLDER.len()..], u64::from(fd.unsigned_abs()));
    path
}

/// Writes the lists to where the root that the place is in has them.
unsafe fn write_lists(place: &mut Place, plan: &Plan, fixtures: &Fixtures) -> Result<(), c_int> {
    let mut text = List { bytes: [0; LIST_BYTES], length: 0 };
    // SAFETY: take no memory, or C strings of this file.
    unsafe {
        let (user, group) = match plan.identity {
            Some(number) => (number, number),
            None => (libc::geteuid(), libc::getegid()),
        };
        users(&mut text, user, group, &fixtures.home);
        place.set(c"/etc/sandbox/passwd")?;
        write_list(place, &text)?;
        text.length = 0;
        groups(&mut text, group);
        place.set(c"/etc/sandbox/group")?;
        write_list(place, &text)
    }
}

/// One that is there stays as it is.
unsafe fn write_list(place: &Place, text: &List) -> Result<(), c_int> {
    // SAFETY: reads bytes of the text; the descriptor is this function's own.
    unsafe {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let file = libc::open(place.pointer(), flags, 0o444);
        check(file)?;
        let written = libc::write(file, text.bytes.as_ptr().cast(), text.length);
        libc::close(file);
        check_long(written as libc::c_long).map(drop)
    }
}

struct List {
    bytes: [u8; LIST_BYTES],
    length: usize,
}

impl List {
    /// Adds what there is room for.
    fn add(&mut self, parts: &[&[u8]]) {
        for part in parts {
            if let Some(room) = self.bytes.get_mut(self.length..self.length + part.len()) {
                room.copy_from_slice(part);
                self.length += part.len();
            }
        }
    }
}

/// A list of users: root, nobody, and this one.
fn users(list: &mut List, user: u32, group: u32, home: &CStr) {
    let home = home.to_bytes();
    // Either would end the field.
    let home = if home.iter().any(|byte| matches!(byte, b':' | b'\n')) { b"/" } else { home };
    let (mut digits, mut more) = ([0; 10], [0; 10]);
    let user_digits = write_number(&mut digits, user.into());
    let group_digits = write_number(&mut more, group.into());
    let numbers: [&[u8]; 3] = [&digits[..user_digits], b":", &more[..group_digits]];
    if user == 0 {
        list.add(&[b"root:x:0:", numbers[2], b":root:", home, b":/bin/sh\n"]);
    } else {
        list.add(&[b"root:x:0:0:root:/root:/bin/sh\n"]);
        list.add(&[NAME, b":x:", numbers[0], numbers[1], numbers[2], b"::", home, b":/bin/sh\n"]);
    }
    list.add(&[b"nobody:x:65534:65534:nobody:/:/bin/false\n"]);
}

/// A list of groups: that of root, that of nobody, and this one.
fn groups(list: &mut List, group: u32) {
    let mut digits = [0; 10];
    let length = write_number(&mut digits, group.into());
    list.add(&[b"root:x:0:\n"]);
    if group != 0 {
        list.add(&[NAME, b":x:", &digits[..length], b":\n"]);
    }
    list.add(&[b"nogroup:x:65534:\n"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fill: impl FnOnce(&mut List)) -> String {
        let mut list = List { bytes: [0; LIST_BYTES], length: 0 };
        fill(&mut list);
        String::from_utf8(list.bytes[..list.length].to_vec()).unwrap()
    }

    #[test]
    fn a_list_of_users_names_the_one_who_runs_and_nobody_of_the_host() {
        assert_eq!(
            text(|list| users(list, 1_879_048_193, 7, c"/runs/a/work")),
            "root:x:0:0:root:/root:/bin/sh\n\
             sandbox:x:1879048193:7::/runs/a/work:/bin/sh\n\
             nobody:x:65534:65534:nobody:/:/bin/false\n"
        );
        let root = text(|list| users(list, 0, 0, c"/runs/a/work"));
        assert_eq!(root.lines().next(), Some("root:x:0:0:root:/runs/a/work:/bin/sh"));
        assert_eq!(root.matches(":0:").count(), 1);
        assert_eq!(text(|list| groups(list, 7)), "root:x:0:\nsandbox:x:7:\nnogroup:x:65534:\n");
        assert_eq!(text(|list| groups(list, 0)), "root:x:0:\nnogroup:x:65534:\n");
    }

    #[test]
    fn a_home_that_would_be_two_fields_is_none() {
        for home in [c"/a:b", c"/a\nroot::0:0::/:/bin/sh"] {
            assert!(text(|list| users(list, 5, 5, home)).contains("sandbox:x:5:5::/:/bin/sh\n"));
        }
    }

    #[test]
    fn the_longest_path_fits_into_a_list() {
        let home = std::ffi::CString::new(vec![b'a'; 4095]).unwrap();
        assert!(text(|list| users(list, u32::MAX, u32::MAX, &home)).ends_with(":/bin/false\n"));
    }

    #[test]
    fn each_folder_of_temp_that_rules_are_in_is_found_once() {
        let rule = |path: &CStr| Rule { path: path.into(), access: 4, needed: true };
        let rules =
            [c"/usr/lib", c"/tmp/a/b", c"/tmp/a/c", c"/tmp/ca.pem", c"/tmp/aa/b/c", c"/tmpx/a", c"/tmp"]
                .map(rule);
        let found: Vec<_> = below_temp(&rules)
            .enumerate()
            .filter(|(at, rule)| is_first_of_way(&rules, *at, rule))
            .filter_map(|(_, rule)| way_of(rule))
            .collect();
        assert_eq!(found, [&b"/tmp/a"[..], b"/tmp/aa"]);
    }

    #[test]
    fn the_path_of_a_descriptor_ends_by_a_zero() {
        for (fd, path) in [(7, c"/proc/self/fd/7"), (c_int::MAX, c"/proc/self/fd/2147483647")] {
            assert_eq!(CStr::from_bytes_until_nul(&descriptor_path(fd)).unwrap(), path);
        }
    }
}
