//! A file system in memory for what calls write. As in `apply.rs`, nothing is allocated.

use std::{
    ffi::{CStr, c_int},
    mem, ptr,
};

use crate::{
    apply::{check, check_long, write_number},
    mounts::{Place, already_there},
    plan::{CacheLink, Contents, MAX_SLOTS, SCRATCH_WORD, Scratch},
};

/// Where a process has its channel to the host.
const CHANNEL: c_int = 3;

/// Everybody passes through; only who mounts it makes anything at its top.
const OWN: &[u8] = b"mode=711,size=";

/// The same, but its owner makes nothing and lists nothing either, until the host says otherwise: packages of the same user may be
/// loaded before that.
const CLOSED: &[u8] = b"mode=111,size=";

/// What holds other file systems has only their folders, which take no bytes, and the way to a compile cache: at most a page.
const HOLDER_BYTES: u64 = 4096;
const HOLDER_FILES: u64 = 8;

/// How folders are opened that others are made in.
const PASSED_THROUGH: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;

/// Nobody gains anything by what is in them.
const MOUNT_FLAGS: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV;

/// Longer texts than this are not made of two numbers.
const OPTIONS_BYTES: usize = 80;

/// A control message with as many descriptors as there may be, laid out as `CMSG_SPACE` says.
#[repr(C)]
struct Beside {
    header: libc::cmsghdr,
    descriptors: [c_int; MAX_SLOTS as usize],
}

/// Brings what it asks for to its place, below a root that is laid out or in the root that there is. `owner` gets the folders of the
/// process's own run folder.
///
/// # Safety
/// In a process of one thread that is alone in its mount namespace.
pub(crate) unsafe fn bring_scratch(root: &CStr, scratch: &Scratch, owner: Option<u32>) -> Result<(), c_int> {
    let mut place = Place::new(root)?;
    place.set(&scratch.path)?;
    // SAFETY: system calls on C strings of the plan and of this file, and on buffers of this function's that end by a zero.
    unsafe {
        let mask = libc::umask(0o022);
        let done = match &scratch.contents {
            Contents::Later => make_folder(&mut place),
            Contents::Slots(count) => bring_slots(&mut place, scratch, *count),
            Contents::RunFolder { name, packages, is_shown } => {
                let top = mount(&mut place, OWN, scratch.bytes, scratch.files)?;
                check(libc::mkdirat(top, name.as_ptr(), 0o711))?;
                let folder = libc::openat(top, name.as_ptr(), PASSED_THROUGH);
                check(folder)?;
                lead(folder, scratch.cache.as_ref())?;
                fill(folder, packages.as_deref(), owner)?;
                libc::close(folder);
                let told = if *is_shown { send(CHANNEL, &SCRATCH_WORD, &[top]) } else { Ok(()) };
                libc::close(top);
                told
            }
        };
        libc::umask(mask);
        done
    }
}

/// What holds them is nobody's to write to.
unsafe fn bring_slots(place: &mut Place, scratch: &Scratch, count: u32) -> Result<(), c_int> {
    let mut tops = [-1; MAX_SLOTS as usize];
    let tops = tops.get_mut(..count as usize).ok_or(libc::E2BIG)?;
    // SAFETY: as the caller's.
    unsafe {
        let holder = mount(place, OWN, HOLDER_BYTES, u64::from(count) + HOLDER_FILES)?;
        lead(holder, scratch.cache.as_ref())?;
        for (number, top) in (0..count).zip(tops.iter_mut()) {
            place.set(&scratch.path)?;
            place.enter(number)?;
            *top = mount(place, CLOSED, scratch.bytes, scratch.files)?;
        }
        place.set(&scratch.path)?;
        // By the call that a zygote's filter lets through.
        let none = ptr::null();
        let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | MOUNT_FLAGS;
        check(libc::mount(none, place.pointer(), none, flags, ptr::null()))?;
        send(CHANNEL, &SCRATCH_WORD, tops)?;
        for fd in tops.iter().chain([&holder]) {
            libc::close(*fd);
        }
    }
    Ok(())
}

/// Makes a folder, and those above it.
unsafe fn make_folder(place: &mut Place) -> Result<(), c_int> {
    // SAFETY: the place ends by a zero.
    unsafe {
        place.make_parents()?;
        check(libc::mkdir(place.pointer(), 0o755)).or_else(already_there)
    }
}

/// Mounts a file system in memory at a place, which is made if it is missing; gives its top.
unsafe fn mount(place: &mut Place, mode: &[u8], bytes: u64, files: u64) -> Result<c_int, c_int> {
    let mut options = [0_u8; OPTIONS_BYTES];
    write_options(&mut options, mode, bytes, files);
    let kind = c"tmpfs".as_ptr();
    // SAFETY: C strings of this file, and buffers that end by a zero.
    unsafe {
        let mount = |place: &Place| {
            check(libc::mount(kind, place.pointer(), kind, MOUNT_FLAGS, options.as_ptr().cast()))
        };
        // In most roots the folder is there: trying costs one system call instead of one for each part of the path.
        if let Err(error) = mount(place) {
            if error != libc::ENOENT {
                return Err(error);
            }
            make_folder(place)?;
            mount(place)?;
        }
        check_long(libc::open(place.pointer(), PASSED_THROUGH).into())
    }
}

/// The rest of the buffer stays zero.
fn write_options(place: &mut [u8; OPTIONS_BYTES], mode: &[u8], bytes: u64, files: u64) {
    let mut length = 0;
    for (name, number) in [(mode, bytes), (b",nr_inodes=", files)] {
        place[length..length + name.len()].copy_from_slice(name);
        length += name.len();
        length += write_number(&mut place[length..], number);
    }
}

/// Makes the process's own run folder.
unsafe fn fill(folder: c_int, packages: Option<&CStr>, owner: Option<u32>) -> Result<(), c_int> {
    // SAFETY: system calls on C strings and a descriptor of the caller's.
    unsafe {
        if let Some(packages) = packages {
            check(libc::symlinkat(packages.as_ptr(), folder, c"node_modules".as_ptr()))?;
        }
        for part in [c"work", c"tmp"] {
            check(libc::mkdirat(folder, part.as_ptr(), 0o700))?;
            if part == c"work" && packages.is_some() {
                // For code that looks for a package's files below the working folder. Before the folder is another's.
                check(libc::symlinkat(c"../node_modules".as_ptr(), folder, c"work/node_modules".as_ptr()))?;
            }
            if let Some(owner) = owner {
                check(libc::fchownat(folder, part.as_ptr(), owner, owner, libc::AT_SYMLINK_NOFOLLOW))?;
            }
        }
        Ok(())
    }
}

/// Makes the way to what others keep. It stays the mounter's, so that another user cannot change it.
unsafe fn lead(folder: c_int, cache: Option<&CacheLink>) -> Result<(), c_int> {
    let Some(cache) = cache else { return Ok(()) };
    // SAFETY: system calls on C strings and a descriptor of the caller's, and on one of this function's own.
    unsafe {
        check(libc::mkdirat(folder, cache.folder.as_ptr(), 0o755))?;
        let inner = libc::openat(folder, cache.folder.as_ptr(), PASSED_THROUGH);
        check(inner)?;
        let made = check(libc::symlinkat(cache.target.as_ptr(), inner, cache.name.as_ptr()));
        libc::close(inner);
        made
    }
}

/// Sends descriptors beside a word.
///
/// # Safety
///
/// `socket` is one that the process may send to.
pub(crate) unsafe fn send(socket: c_int, word: &[u8], descriptors: &[c_int]) -> Result<(), c_int> {
    let mut part = libc::iovec { iov_base: word.as_ptr().cast_mut().cast(), iov_len: word.len() };
    let size = mem::offset_of!(Beside, descriptors) + mem::size_of_val(descriptors);
    // SAFETY: both are plain data that may be all zero (padding included); the kernel reads the message, whose pointers lead to
    // locals of the sizes given.
    unsafe {
        let mut beside: Beside = mem::zeroed();
        beside.header.cmsg_len = size;
        beside.header.cmsg_level = libc::SOL_SOCKET;
        beside.header.cmsg_type = libc::SCM_RIGHTS;
        beside.descriptors.get_mut(..descriptors.len()).ok_or(libc::E2BIG)?.copy_from_slice(descriptors);
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = ptr::from_mut(&mut part);
        message.msg_iovlen = 1;
        message.msg_control = ptr::from_mut(&mut beside).cast();
        message.msg_controllen = size;
        let sent = libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL);
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
            let mut place = [0; OPTIONS_BYTES];
            write_options(&mut place, OWN, bytes, files);
            assert_eq!(CStr::from_bytes_until_nul(&place).unwrap().to_str().unwrap(), expected);
        }
    }
}
