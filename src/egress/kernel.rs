//! The kernel's side of asking: a listener of a filter (`SECCOMP_RET_USER_NOTIF`, Linux 5.0, `seccomp_unotify(2)`), what a process that waits
//! for its answer has in memory and in its table of descriptors, and the answer.

use std::{
    collections::BTreeSet,
    ffi::CStr,
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::meter::Carried;
use crate::sys;

/// The most that an address of any family takes: `struct sockaddr_storage`.
const MAX_ADDRESS_BYTES: usize = 128;

/// What a process asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// `connect(descriptor, address, length)`.
    Connect { descriptor: i32, address: u64, length: usize },
    /// `socket`, of datagrams, of the Internet.
    Datagrams,
    /// `listen`.
    Listen,
    /// None that the filter should ask about.
    Unknown,
}

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    id: u64,
    /// The thread that waits, as this process sees it; 0 where it does not.
    pub thread: i32,
    pub wish: Wish,
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The kernel carries the call out. Only where all that was decided by stands in registers: memory may have changed meanwhile.
    GoOn,
    /// It was carried out here.
    Done,
    /// It failed so.
    Failed(i32),
}

/// An address that a process named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    Internet(SocketAddr),
    /// `AF_UNSPEC`: undo the connection.
    Nowhere,
    /// Of routes, of this machine.
    Netlink,
    Other,
}

/// Takes the next request; none where there is none now, or its process is gone by now. Blocks for nothing.
///
/// # Errors
///
/// The listener is of no use any more: nobody is under the filter.
pub(super) fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Request>> {
    let mut waiting = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: a pointer to one local.
    let polled = unsafe { libc::poll(&raw mut waiting, 1, 0) };
    if polled < 0 {
        return Err(io::Error::last_os_error());
    }
    if waiting.revents & libc::POLLIN == 0 {
        let over = waiting.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0;
        return if over {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        };
    }
    // SAFETY: plain data that has to be zero before the call, which fills it.
    let request = unsafe {
        let mut request: libc::seccomp_notif = mem::zeroed();
        if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut request) != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // Its process was killed, or the caller was interrupted.
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        request
    };
    let call = i64::from(request.data.nr);
    let wish = if call == libc::SYS_connect {
        #[expect(clippy::cast_possible_truncation, reason = "the kernel takes the low half, too")]
        let [descriptor, length] = [request.data.args[0] as i32, request.data.args[2] as i32];
        Wish::Connect {
            descriptor,
            address: request.data.args[1],
            length: usize::try_from(length).unwrap_or(usize::MAX),
        }
    } else if call == libc::SYS_socket {
        Wish::Datagrams
    } else if call == libc::SYS_listen {
        Wish::Listen
    } else {
        Wish::Unknown
    };
    Ok(Some(Request { id: request.id, thread: request.pid.cast_signed(), wish }))
}

/// Answers. Whoever asked may be gone; then nothing is to be done.
pub(super) fn answer(listener: BorrowedFd<'_>, request: Request, answer: Answer) {
    let (error, flags) = match answer {
        Answer::GoOn => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE),
        Answer::Done => (0, 0),
        Answer::Failed(errno) => (-errno.abs().max(1), 0),
    };
    #[expect(clippy::cast_possible_truncation, reason = "a flag of one bit")]
    let mut response = libc::seccomp_notif_resp { id: request.id, val: 0, error, flags: flags as u32 };
    // SAFETY: a pointer to a local, which the kernel reads.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response);
    }
}

/// Whether the request still waits. What was read by the number of its thread before this is that thread's.
pub(super) fn is_waiting(listener: BorrowedFd<'_>, request: Request) -> bool {
    // SAFETY: a pointer to a local, which the kernel reads.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const request.id) == 0
    }
}

/// Copies an address out of the memory of the thread that waits.
///
/// # Errors
///
/// An errno: what `connect` would say, or why memory cannot be read.
pub(super) fn read_address(request: Request, address: u64, length: usize) -> Result<(Address, Vec<u8>), i32> {
    let mut bytes = vec![0_u8; MAX_ADDRESS_BYTES];
    if length > bytes.len() || length < 2 {
        return Err(libc::EINVAL);
    }
    bytes.truncate(length);
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let remote =
        libc::iovec { iov_base: usize::try_from(address).unwrap_or(0) as *mut libc::c_void, iov_len: length };
    // SAFETY: the kernel writes at most `length` bytes to the vector, which has that many, and checks the other process's address itself.
    let read =
        unsafe { libc::process_vm_readv(request.thread, &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(read).ok() != Some(length) {
        let errno = io::Error::last_os_error().raw_os_error();
        return Err(if read < 0 { errno.unwrap_or(libc::EFAULT) } else { libc::EFAULT });
    }
    Ok((parse(&bytes)?, bytes))
}

/// What the bytes of a `struct sockaddr` say.
fn parse(bytes: &[u8]) -> Result<Address, i32> {
    let field = |at: usize| bytes.get(at..at + 2).and_then(|two| two.try_into().ok()).ok_or(libc::EINVAL);
    let family = i32::from(u16::from_ne_bytes(field(0)?));
    match family {
        libc::AF_UNSPEC => Ok(Address::Nowhere),
        libc::AF_NETLINK => Ok(Address::Netlink),
        libc::AF_INET => {
            if bytes.len() < mem::size_of::<libc::sockaddr_in>() {
                return Err(libc::EINVAL);
            }
            let octets: [u8; 4] = bytes[4..8].try_into().map_err(|_| libc::EINVAL)?;
            let port = u16::from_be_bytes(field(2)?);
            Ok(Address::Internet(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port)))
        }
        libc::AF_INET6 => {
            // The field behind the address (RFC 2553) may be missing.
            let octets =
                bytes.get(8..24).and_then(|octets| <[u8; 16]>::try_from(octets).ok()).ok_or(libc::EINVAL)?;
            let port = u16::from_be_bytes(field(2)?);
            Ok(Address::Internet(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(octets)), port)))
        }
        _ => Ok(Address::Other),
    }
}

/// A copy of a descriptor of the thread that waits: the same socket.
///
/// # Errors
///
/// An errno.
pub(super) fn copy_descriptor(request: Request, descriptor: i32) -> Result<OwnedFd, i32> {
    let errno = |error: rustix::io::Errno| error.raw_os_error();
    let process = match open_process(request.thread) {
        // It is not the first thread of its process.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
            let (leader, _) = sys::process_of(request.thread).ok_or(libc::ESRCH)?;
            open_process(leader).map_err(errno)?
        }
        other => other.map_err(errno)?,
    };
    // SAFETY: takes numbers; the descriptor that it returns is nobody else's.
    unsafe {
        let copied = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0);
        match i32::try_from(copied).ok().filter(|copied| *copied >= 0) {
            Some(copied) => Ok(OwnedFd::from_raw_fd(copied)),
            None => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EBADF)),
        }
    }
}

fn open_process(number: i32) -> rustix::io::Result<OwnedFd> {
    pidfd_open(Pid::from_raw(number).ok_or(rustix::io::Errno::SRCH)?, PidfdFlags::empty())
}

/// What kind of socket a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Socket {
    /// `AF_*`.
    pub family: i32,
    /// `SOCK_*`.
    pub kind: i32,
    /// Whether `connect` waits.
    pub blocks: bool,
}

/// What kind of socket this is.
///
/// # Errors
///
/// An errno: it is none.
pub(super) fn socket_of(descriptor: BorrowedFd<'_>) -> Result<Socket, i32> {
    let option = |name: i32| {
        let (mut value, mut size) = (0_i32, 4);
        // SAFETY: pointers to locals of the size that is said.
        let got = unsafe {
            libc::getsockopt(
                descriptor.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                (&raw mut value).cast(),
                &raw mut size,
            )
        };
        if got == 0 {
            Ok(value)
        } else {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOTSOCK))
        }
    };
    let flags = rustix::fs::fcntl_getfl(descriptor).map_err(rustix::io::Errno::raw_os_error)?;
    Ok(Socket {
        family: option(libc::SO_DOMAIN)?,
        kind: option(libc::SO_TYPE)?,
        blocks: !flags.contains(rustix::fs::OFlags::NONBLOCK),
    })
}

/// What the connection of a socket has carried so far; none where it has none, or the kernel does not say.
pub(super) fn carried(socket: BorrowedFd<'_>) -> Option<Carried> {
    // Kernels have more from version to version, and write as much as there is room for.
    let mut info = [0_u8; 512];
    let mut size = 512;
    // SAFETY: pointers to locals of the size that is said.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    if got != 0 {
        return None;
    }
    Carried::of_info(info.get(..usize::try_from(size).ok()?)?)
}

/// Connects a socket to an address that is this process's own copy.
pub(super) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> Answer {
    let Ok(length) = libc::socklen_t::try_from(address.len()) else { return Answer::Failed(libc::EINVAL) };
    // SAFETY: the kernel reads `length` bytes of the slice.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) };
    if connected == 0 {
        return Answer::Done;
    }
    match io::Error::last_os_error().raw_os_error() {
        // A signal of this process's is none of the other's: it goes on, and the socket can be waited for.
        Some(libc::EINTR) => Answer::Failed(libc::EINPROGRESS),
        errno => Answer::Failed(errno.unwrap_or(libc::EIO)),
    }
}

/// The bytes of an address, in the family of the socket that is to be connected to it.
pub(super) fn bytes_of(to: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(mem::size_of::<libc::sockaddr_in6>());
    match to {
        SocketAddr::V4(to) => {
            bytes.extend(u16::try_from(libc::AF_INET).unwrap_or(0).to_ne_bytes());
            bytes.extend(to.port().to_be_bytes());
            bytes.extend(to.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(to) => {
            bytes.extend(u16::try_from(libc::AF_INET6).unwrap_or(0).to_ne_bytes());
            bytes.extend(to.port().to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(to.ip().octets());
            bytes.extend([0; 4]);
        }
    }
    bytes
}

/// The address that a socket has on this machine.
pub(super) fn own_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// All addresses of a name, by `getaddrinfo(3)`. Blocks.
///
/// # Errors
///
/// Whether it may be known later; if not, there is no such name.
pub(super) fn addresses_of(name: &CStr) -> Result<BTreeSet<IpAddr>, bool> {
    // SAFETY: plain data that may be all zero; a C string; a pointer to a local. What is found is read while it is there, and freed once.
    unsafe {
        let hints = libc::addrinfo { ai_socktype: libc::SOCK_STREAM, ..mem::zeroed() };
        let mut found: *mut libc::addrinfo = ptr::null_mut();
        match libc::getaddrinfo(name.as_ptr(), ptr::null(), &raw const hints, &raw mut found) {
            0 => {}
            libc::EAI_NONAME | libc::EAI_NODATA => return Err(false),
            _ => return Err(true),
        }
        let mut addresses = BTreeSet::new();
        let mut next = found;
        while let Some(one) = next.as_ref() {
            let bytes = std::slice::from_raw_parts(one.ai_addr.cast::<u8>(), one.ai_addrlen as usize);
            if let Ok(Address::Internet(address)) = parse(bytes) {
                addresses.insert(address.ip());
            }
            next = one.ai_next;
        }
        libc::freeaddrinfo(found);
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        for text in ["127.0.0.1:80", "[2001:db8::1]:443", "[::ffff:10.0.0.1]:1"] {
            let to: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(&bytes_of(to)), Ok(Address::Internet(to)));
        }
        let mut short = bytes_of("1.2.3.4:5".parse().unwrap());
        short.truncate(15);
        assert_eq!(parse(&short), Err(libc::EINVAL));
        let mut without_scope = bytes_of("[::1]:5".parse().unwrap());
        without_scope.truncate(24);
        assert_eq!(parse(&without_scope), Ok(Address::Internet("[::1]:5".parse().unwrap())));
        without_scope.truncate(23);
        assert_eq!(parse(&without_scope), Err(libc::EINVAL));
        assert_eq!(parse(&[0, 0, 1, 2]), Ok(Address::Nowhere));
        assert_eq!(parse(&[1, 0, b'/', b'x']), Ok(Address::Other));
        assert_eq!(parse(&[1]), Err(libc::EINVAL));
    }
}
