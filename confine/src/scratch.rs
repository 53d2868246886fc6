//! A file system in memory for what calls write. As in `apply.rs`, nothing is allocated.

use std::{
    ffi::{CStr, c_int},
    mem, ptr,
};

use crate::{
    apply::{check, check_long, write_number},
    mounts::{Place, already_there},
    plan::{CacheLink, Contents, SCRATCH_WORD, Scratch},
};

/// Where a process has its channel to the host.
const CHANNEL: c_int = 3;

/// Longer texts than this are not made of two numbers.
const OPTIONS_BYTES: usize = 80;

/// A control message with one descriptor, laid out as `CMSG_SPACE` says.
#[repr(C)]
struct Beside {
    header: libc::cmsghdr,
    descriptor: c_int,
}

/// Mounts it below a root that is laid out, or at its place, and does what its contents ask for. `owner` gets the folders of the
/// process's own run folder.
///
/// # Safety
/// In a process of one thread that is alone in its mount namespace.
pub(crate) unsafe fn bring_scratch(root: &CStr, scratch: &Scratch, owner: Option<u32>) -> Result<(), c_int> {
    let mut place = Place::new(root)?;
    place.set(&scratch.path)?;
    let mut options = [0_u8; OPTIONS_BYTES];
    write_options(&mut options, scratch);
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let kind = c"tmpfs".as_ptr();
    // SAFETY: system calls on C strings of the plan and of this file, and on buffers of this function's that end by a zero.
    unsafe {
        let mask = libc::umask(0o022);
        place.make_parents()?;
        check(libc::mkdir(place.pointer(), 0o755)).or_else(already_there)?;
        check(libc::mount(kind, place.pointer(), kind, flags, options.as_ptr().cast()))?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let folder = libc::open(place.pointer(), flags);
        check(folder)?;
        let linked = scratch.cache.as_ref().map_or(Ok(()), |cache| lead(folder, cache));
        let done = linked.and_then(|()| match &scratch.contents {
            Contents::RunFolders => send(folder),
            Contents::RunFolder { packages } => fill(folder, packages.as_deref(), owner),
        });
        libc::close(folder);
        libc::umask(mask);
        done
    }
}

/// Everybody passes through; only who mounts it makes anything at its top. The rest of the buffer stays zero.
fn write_options(place: &mut [u8; OPTIONS_BYTES], scratch: &Scratch) {
    let mut length = 0;
    for (name, number) in [(&b"mode=711,size="[..], scratch.bytes), (b",nr_inodes=", scratch.files)] {
        place[length..length + name.len()].copy_from_slice(name);
        length += name.len();
        length += write_number(&mut place[length..], number);
    }
}

/// Makes the process's own run folder.
unsafe fn fill(folder: c_int, packages: Option<&CStr>, owner: Option<u32>) -> Result<(), c_int> {
    // SAFETY: system calls on C strings and a descriptor of the caller's.
    unsafe {
        for part in [c"work", c"tmp"] {
            check(libc::mkdirat(folder, part.as_ptr(), 0o700))?;
            if let Some(owner) = owner {
                check(libc::fchownat(folder, part.as_ptr(), owner, owner, libc::AT_SYMLINK_NOFOLLOW))?;
            }
        }
        match packages {
            Some(packages) => check(libc::symlinkat(packages.as_ptr(), folder, c"node_modules".as_ptr())),
            None => Ok(()),
        }
    }
}

/// Makes the way to what others keep. It stays the mounter's, so that another user cannot change it.
unsafe fn lead(folder: c_int, cache: &CacheLink) -> Result<(), c_int> {
    // SAFETY: system calls on C strings and a descriptor of the caller's, and on one of this function's own.
    unsafe {
        check(libc::mkdirat(folder, cache.folder.as_ptr(), 0o755))?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let inner = libc::openat(folder, cache.folder.as_ptr(), flags);
        check(inner)?;
        let made = check(libc::symlinkat(cache.target.as_ptr(), inner, cache.name.as_ptr()));
        libc::close(inner);
        made
    }
}

/// Sends the folder to the host.
unsafe fn send(folder: c_int) -> Result<(), c_int> {
    let mut word = SCRATCH_WORD;
    let mut part = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    // SAFETY: both are plain data that may be all zero (padding included); the kernel reads the message, whose pointers lead to
    // locals of the sizes given.
    unsafe {
        let mut beside: Beside = mem::zeroed();
        beside.header.cmsg_len = mem::offset_of!(Beside, descriptor) + mem::size_of::<c_int>();
        beside.header.cmsg_level = libc::SOL_SOCKET;
        beside.header.cmsg_type = libc::SCM_RIGHTS;
        beside.descriptor = folder;
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = ptr::from_mut(&mut part);
        message.msg_iovlen = 1;
        message.msg_control = ptr::from_mut(&mut beside).cast();
        message.msg_controllen = mem::size_of::<Beside>();
        let sent = libc::sendmsg(CHANNEL, &raw const message, libc::MSG_NOSIGNAL);
        check_long(sent as libc::c_long).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_numbers_have_room() {
        for (bytes, files, expected) in [
            (1_048_576, 7, "mode=711,size=1048576,nr_inodes=7"),
            (u64::MAX, u64::MAX, "mode=711,size=18446744073709551615,nr_inodes=18446744073709551615"),
        ] {
            let scratch =
                Scratch { path: c"/".into(), bytes, files, contents: Contents::RunFolders, cache: None };
            let mut place = [0; OPTIONS_BYTES];
            write_options(&mut place, &scratch);
            assert_eq!(CStr::from_bytes_until_nul(&place).unwrap().to_str().unwrap(), expected);
        }
    }
}
