//! A root of one's own: nothing in it but what a domain's rules name, and `/proc`. As in `apply.rs`, nothing is allocated.

use std::{
    ffi::{CStr, c_char, c_int, c_ulong},
    mem, ptr,
};

use crate::{
    apply::{check, check_long, is_absent, write_number},
    fixtures,
    plan::{Domain, Plan},
};

/// Longer paths the kernel does not take.
const PATH_BYTES: usize = 4096;

/// What a rule for something that is written to allows: writing, removing, making.
pub(crate) const WRITES: u64 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8;

/// `mount_setattr(2)`.
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;

/// Room for folders and for files to mount on; nobody writes to it later.
const OPTIONS: &CStr = c"mode=755,size=4m";

/// A link that programs read to learn the time zone; of others its target is what counts.
const TIME_ZONE: &CStr = c"/etc/localtime";

/// `struct mount_attr`.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A path below the new root, in a buffer of its own.
pub(crate) struct Place {
    bytes: [u8; PATH_BYTES],
    root: usize,
    length: usize,
}

impl Place {
    pub(crate) fn new(root: &CStr) -> Result<Self, c_int> {
        let mut place = Self { bytes: [0; PATH_BYTES], root: root.count_bytes(), length: 0 };
        place.bytes.get_mut(..place.root).ok_or(libc::ENAMETOOLONG)?.copy_from_slice(root.to_bytes());
        place.set(c"")?;
        Ok(place)
    }

    /// Names `path` as it will be called in the new root.
    pub(crate) fn set(&mut self, path: &CStr) -> Result<(), c_int> {
        self.set_part(path, path.count_bytes())
    }

    /// The same for the first bytes of a path.
    pub(crate) fn set_part(&mut self, path: &CStr, length: usize) -> Result<(), c_int> {
        let path = path.to_bytes().get(..length).ok_or(libc::EINVAL)?;
        let end = self.root + path.len();
        // One more for the final zero.
        if end >= PATH_BYTES {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes[self.root..end].copy_from_slice(path);
        self.bytes[end] = 0;
        self.length = end;
        Ok(())
    }

    /// Names what is called by this number in the folder that is named.
    pub(crate) fn enter(&mut self, number: u32) -> Result<(), c_int> {
        let mut digits = [0; 10];
        let count = write_number(&mut digits, number.into());
        let end = self.length + 1 + count;
        if end >= PATH_BYTES {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes[self.length] = b'/';
        self.bytes[self.length + 1..end].copy_from_slice(&digits[..count]);
        self.bytes[end] = 0;
        self.length = end;
        Ok(())
    }

    pub(crate) fn pointer(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// Makes the folders above the place.
    pub(crate) unsafe fn make_parents(&mut self) -> Result<(), c_int> {
        for at in self.root + 1..self.length {
            if self.bytes[at] == b'/' {
                self.bytes[at] = 0;
                // SAFETY: the bytes end by a zero.
                let made = unsafe { check(libc::mkdir(self.pointer(), 0o755)) };
                self.bytes[at] = b'/';
                made.or_else(already_there)?;
            }
        }
        Ok(())
    }
}

pub(crate) fn already_there(errno: c_int) -> Result<(), c_int> {
    if errno == libc::EEXIST { Ok(()) } else { Err(errno) }
}

/// What a `/proc` of a PID namespace is mounted with: of processes that one may not look into nothing is seen.
const PROC_OPTIONS: &CStr = c"hidepid=2";

/// Whether it is at or below a place.
fn is_below(path: &CStr, place: &CStr) -> bool {
    let rest = path.to_bytes().strip_prefix(place.to_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Lays out the root at the folder `root`, without `/proc`, and without what the plan's `scratch` is for.
///
/// # Safety
/// In a process of one thread that is alone in its mount namespace.
pub(crate) unsafe fn lay_out(root: &CStr, domain: &Domain, plan: &Plan) -> Result<(), c_int> {
    let mut place = Place::new(root)?;
    let is_left_out = |path: &CStr| {
        path.to_bytes().starts_with(b"/proc")
            || plan.scratch.as_ref().is_some_and(|scratch| is_below(path, &scratch.path))
            || plan.fixtures.is_some() && fixtures::replaces(path)
    };
    // SAFETY: system calls on C strings of the plan and of this file, and on buffers of this function's.
    unsafe {
        let none = ptr::null();
        // Other users pass through the folders that are made here, whatever the host's mask is.
        let mask = libc::umask(0o022);
        // What is mounted from here on stays in here.
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, ptr::null()))?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        let kind = c"tmpfs".as_ptr();
        check(libc::mount(kind, root.as_ptr(), kind, flags, OPTIONS.as_ptr().cast()))?;
        for rule in domain.rules.iter().filter(|rule| !is_left_out(&rule.path)) {
            match bring(&mut place, &rule.path, rule.access) {
                Err(error) if rule.needed || !is_absent(error) => return Err(error),
                _ => {}
            }
        }
        place.set(c"/proc")?;
        check(libc::mkdir(place.pointer(), 0o755)).or_else(already_there)?;
        if let Some(wanted) = &plan.fixtures {
            fixtures::lay_out(&mut place, plan, wanted)?;
        }
        libc::umask(mask);
    }
    Ok(())
}

/// Mounts the host's `/proc` below a root that is laid out.
///
/// # Safety
/// As of [`lay_out`].
pub(crate) unsafe fn bring_proc(root: &CStr) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe { bring(&mut Place::new(root)?, c"/proc", WRITES) }
}

/// Mounts a `/proc` of the PID namespace that this process is in, below a root that is laid out or at its place.
///
/// # Safety
/// As of [`lay_out`].
pub(crate) unsafe fn own_proc(root: &CStr) -> Result<(), c_int> {
    let mut place = Place::new(root)?;
    place.set(c"/proc")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let kind = c"proc".as_ptr();
    // SAFETY: C strings of this file, and one in a buffer of this function's.
    unsafe { check(libc::mount(kind, place.pointer(), kind, flags, PROC_OPTIONS.as_ptr().cast())) }
}

/// Enters a root that is laid out; the working folder is then `/`.
///
/// # Safety
/// As of [`lay_out`].
pub(crate) unsafe fn enter(root: &CStr) -> Result<(), c_int> {
    let place = Place::new(root)?;
    // SAFETY: as above.
    unsafe {
        // The folders and files that were made to mount on.
        restrict(&place, MOUNT_ATTR_RDONLY, false)?;
        check(libc::chdir(root.as_ptr()))?;
        // The old root comes to lie on top of the new one, and goes.
        check_long(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        check(libc::chdir(c"/".as_ptr()))
    }
}

/// Mounts what a rule names at its place.
unsafe fn bring(place: &mut Place, path: &CStr, access: u64) -> Result<(), c_int> {
    let source = path.as_ptr();
    // SAFETY: as the caller's.
    unsafe {
        let mut found: libc::stat = mem::zeroed();
        check(libc::lstat(source, &raw mut found))?;
        place.set(path)?;
        place.make_parents()?;
        if found.st_mode & libc::S_IFMT == libc::S_IFLNK && is_kept(path) {
            return copy_link(place, source);
        }
        check(libc::stat(source, &raw mut found))?;
        // Brought with a folder above it, which nobody can write to either: each mount costs every worker a copy of it.
        if access & WRITES == 0 && is_there(place, &found) {
            return Ok(());
        }
        let kind = found.st_mode & libc::S_IFMT;
        if kind == libc::S_IFDIR {
            check(libc::mkdir(place.pointer(), 0o755)).or_else(already_there)?;
        } else {
            check(libc::mknod(place.pointer(), libc::S_IFREG | 0o444, 0)).or_else(already_there)?;
        }
        let flags = libc::MS_BIND | libc::MS_REC;
        check(libc::mount(source, place.pointer(), ptr::null(), flags, ptr::null()))?;
        if kind == libc::S_IFCHR {
            return Ok(());
        }
        let read_only = if access & WRITES == 0 { MOUNT_ATTR_RDONLY } else { 0 };
        restrict(place, read_only | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, true)
    }
}

/// Whether what is at the place is that very file or folder, not something to mount it on, in a mount that is read-only.
unsafe fn is_there(place: &Place, wanted: &libc::stat) -> bool {
    // SAFETY: a path that ends by a zero, and locals.
    unsafe {
        let mut found: libc::stat = mem::zeroed();
        let mut mount: libc::statvfs = mem::zeroed();
        libc::stat(place.pointer(), &raw mut found) == 0
            && (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
            && libc::statvfs(place.pointer(), &raw mut mount) == 0
            && mount.f_flag & libc::ST_RDONLY != 0
    }
}

/// Links at the top (`/bin` to `usr/bin`), and that of the time zone.
fn is_kept(path: &CStr) -> bool {
    path == TIME_ZONE || !path.to_bytes().iter().skip(1).any(|byte| *byte == b'/')
}

unsafe fn copy_link(place: &Place, source: *const c_char) -> Result<(), c_int> {
    let mut target = [0_u8; PATH_BYTES];
    // SAFETY: reads at most one byte less than there is room for, so that a zero is left at the end.
    unsafe {
        let length = libc::readlink(source, target.as_mut_ptr().cast(), PATH_BYTES - 1);
        check_long(length as libc::c_long)?;
        check(libc::symlink(target.as_ptr().cast(), place.pointer())).or_else(already_there)
    }
}

pub(crate) unsafe fn restrict(place: &Place, set: u64, below_too: bool) -> Result<(), c_int> {
    let attributes = Attributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    let flags: c_ulong = if below_too { libc::AT_RECURSIVE.cast_unsigned().into() } else { 0 };
    let size = mem::size_of::<Attributes>();
    // SAFETY: the kernel reads `size` bytes of a local.
    unsafe {
        let call = libc::SYS_mount_setattr;
        check_long(libc::syscall(call, libc::AT_FDCWD, place.pointer(), flags, &raw const attributes, size))
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numbered_place_is_in_the_folder_and_no_longer_than_the_kernel_takes() {
        let mut place = Place::new(c"/top").unwrap();
        for (number, expected) in [(0, c"/top/runs/0"), (u32::MAX, c"/top/runs/4294967295")] {
            place.set(c"/runs").unwrap();
            place.enter(number).unwrap();
            assert_eq!(CStr::from_bytes_until_nul(&place.bytes).unwrap(), expected);
        }
        place.set(&std::ffi::CString::new(vec![b'a'; PATH_BYTES - 8]).unwrap()).unwrap();
        assert_eq!((place.enter(9999), place.enter(9)), (Err(libc::ENAMETOOLONG), Ok(())));
    }

    /// A place that may only be read, below one that may be written to, would have stayed writable.
    #[test]
    fn what_is_there_but_can_be_written_to_is_brought_all_the_same() {
        let folder = std::env::temp_dir();
        let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
        let mut place = Place::new(c"").unwrap();
        place.set(&path).unwrap();
        // SAFETY: a path that ends by a zero, and a local.
        unsafe {
            let mut found: libc::stat = mem::zeroed();
            assert_eq!(libc::stat(path.as_ptr(), &raw mut found), 0);
            assert!(!is_there(&place, &found), "{} is mounted read-only", folder.display());
        }
    }

    #[test]
    fn a_neighbour_with_a_longer_name_is_not_below() {
        for (path, below) in [(c"/a/b", true), (c"/a/b/c", true), (c"/a/bc", false), (c"/a", false)] {
            assert_eq!(is_below(path, c"/a/b"), below);
        }
    }
}
