//! How many bytes connections carried. The kernel counts them; here is only asked: it tells of each TCP socket that is gone
//! (`SKNLGRP_INET_TCP_DESTROY` of `sock_diag(7)`, which needs no privilege), and of one that is still there when it is asked for.
//!
//! It tells of all sockets of the machine, so it is listened to only while there is a connection that is counted.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
    netlink::{self, SocketAddrNetlink},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::AbortHandle,
};

use super::{
    caller::{Caller, Place},
    kernel,
};
use crate::sys;

/// Connections that are counted at a time, of all callers; what those beyond carry is not.
const MAX_COUNTED: usize = 10_000;

/// How often, and after how long each time, the kernel is asked again for a connection that it has neither told of nor has any more:
/// it tells from a queue of its own.
const LATE_ROUNDS: usize = 5;
const LATE: Duration = Duration::from_millis(4);

/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY`, as bits (`linux/sock_diag.h`).
const ENDED_GROUPS: u32 = 1 << 0 | 1 << 2;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `INET_DIAG_INFO`, of what is told of a socket (`linux/inet_diag.h`).
const INFO: u16 = 2;

/// Sizes of `nlmsghdr`, `inet_diag_req_v2`, `inet_diag_msg`.
const HEADER: usize = 16;
const QUESTION: usize = 56;
const ABOUT: usize = 72;
/// Where in an `inet_diag_msg` the cookie is.
const COOKIE: usize = 44;

/// What a connection carried, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub sent: u64,
    pub received: u64,
}

impl Carried {
    /// Of a `struct tcp_info`; none of a kernel before 4.19.
    pub(super) fn of_info(info: &[u8]) -> Option<Self> {
        let field = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
        // tcpi_bytes_sent, less tcpi_bytes_retrans; tcpi_bytes_received.
        Some(Self { sent: field(200)?.saturating_sub(field(208)?), received: field(128)? })
    }
}

struct Counted {
    caller: Weak<Caller>,
    place: Place,
    local: SocketAddr,
    remote: SocketAddr,
}

struct Listening {
    socket: Arc<AsyncFd<OwnedFd>>,
    reader: AbortHandle,
}

#[derive(Default)]
struct State {
    counted: HashMap<u64, Counted>,
    listening: Option<Listening>,
    /// The kernel lacks it.
    is_absent: bool,
}

/// One per host.
#[derive(Default)]
pub(super) struct Meter {
    state: Mutex<State>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.state().stop();
    }
}

impl State {
    fn stop(&mut self) {
        if let Some(Listening { reader, .. }) = self.listening.take() {
            reader.abort();
        }
    }

    /// Notes what a connection carried, if it is one that is counted.
    fn note(&mut self, cookie: u64, carried: Option<Carried>) {
        let Some(Counted { caller, place, .. }) = self.counted.remove(&cookie) else { return };
        if let (Some(caller), Some(carried)) = (caller.upgrade(), carried) {
            caller.carried(&place, carried);
        }
    }

    /// Reads what the kernel has told by now.
    fn hear(&mut self) {
        let Some(socket) = self.listening.as_ref().map(|listening| Arc::clone(&listening.socket)) else {
            return;
        };
        let mut bytes = [0_u8; 8192];
        loop {
            match rustix::net::recv(socket.as_fd(), bytes.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    for (cookie, carried) in told(bytes.get(..length).unwrap_or_default()) {
                        self.note(cookie, carried);
                    }
                }
                // More came than fits: some connections are not counted.
                Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl Meter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what this connection carries from now on. In the tokio runtime. Before its caller knows that it is connected, as it may end
    /// at once.
    pub(super) fn count(
        self: &Arc<Self>,
        socket: BorrowedFd<'_>,
        caller: &Arc<Caller>,
        to: SocketAddr,
        place: Place,
    ) {
        let Ok(cookie) = rustix::net::sockopt::socket_cookie(socket) else { return };
        let Some(local) = kernel::own_address(socket) else { return };
        let mut state = self.state();
        if state.is_absent || state.counted.len() >= MAX_COUNTED {
            return;
        }
        if state.listening.is_none() {
            match self.listen() {
                Ok(listening) => state.listening = Some(listening),
                Err(error) => {
                    state.is_absent = true;
                    tracing::debug!(%error, "bytes of connections are not counted");
                    return;
                }
            }
        }
        let counted = Counted { caller: Arc::downgrade(caller), place, local, remote: to };
        state.counted.insert(cookie, counted);
    }

    /// The connection of this socket is about to be undone, and with it what the kernel has counted.
    pub(super) fn undone(&self, socket: BorrowedFd<'_>) {
        let Ok(cookie) = rustix::net::sockopt::socket_cookie(socket) else { return };
        let mut state = self.state();
        if state.counted.contains_key(&cookie) {
            state.note(cookie, kernel::carried(socket));
        }
    }

    fn listen(self: &Arc<Self>) -> io::Result<Listening> {
        let socket = open()?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, ENDED_GROUPS))?;
        let socket = Arc::new(sys::register(socket, Interest::READABLE)?);
        let (heard, meter) = (Arc::clone(&socket), Arc::downgrade(self));
        let reader = tokio::spawn(async move {
            while let Ok(mut ready) = heard.readable().await {
                let Some(meter) = meter.upgrade() else { return };
                meter.state().hear();
                ready.clear_ready();
            }
        });
        Ok(Listening { socket, reader: reader.abort_handle() })
    }

    /// Notes what is known by now, and of the others, where that was the last time to ask, that nothing is. Whether all are noted.
    fn noted(&self, answers: Vec<(u64, Option<Carried>)>, is_last: bool) -> bool {
        let mut state = self.state();
        let mut all = true;
        for (cookie, carried) in answers {
            if carried.is_some() || is_last {
                state.note(cookie, carried);
            } else {
                all = false;
            }
        }
        all
    }

    /// All that the caller's connections carried is noted when this is over: its processes are gone, its sockets are on their way.
    pub(super) async fn settle(&self, caller: &Arc<Caller>) {
        for round in 0..=LATE_ROUNDS {
            let left = {
                let mut state = self.state();
                state.hear();
                let is_callers = |counted: &Counted| Weak::as_ptr(&counted.caller) == Arc::as_ptr(caller);
                let mut left = Vec::new();
                for (cookie, counted) in state.counted.iter().filter(|(_, counted)| is_callers(counted)) {
                    left.push((*cookie, counted.local, counted.remote));
                }
                left
            };
            if left.is_empty() {
                break;
            }
            // Each question takes some microseconds, of which a runtime's thread has few to give.
            let answers = tokio::task::spawn_blocking(move || ask(&left)).await.unwrap_or_default();
            if self.noted(answers, round == LATE_ROUNDS) {
                break;
            }
            tokio::time::sleep(LATE).await;
        }
        let mut state = self.state();
        if state.counted.is_empty() {
            state.stop();
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?)
}

/// Asks for sockets, each by cookie and addresses. Does not wait: the kernel answers at once.
fn ask(sockets: &[(u64, SocketAddr, SocketAddr)]) -> Vec<(u64, Option<Carried>)> {
    let asked = |cookie, local, remote| {
        let socket = open().ok()?;
        rustix::net::send(&socket, &question(cookie, local, remote), SendFlags::empty()).ok()?;
        let mut bytes = [0_u8; 8192];
        let (length, _) = rustix::net::recv(&socket, bytes.as_mut_slice(), RecvFlags::DONTWAIT).ok()?;
        told(bytes.get(..length)?).into_iter().find_map(|(of, carried)| carried.filter(|_| of == cookie))
    };
    sockets.iter().map(|(cookie, local, remote)| (*cookie, asked(*cookie, *local, *remote))).collect()
}

/// The question for one socket.
fn question(cookie: u64, local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    const IS_REQUEST: u16 = 1;
    const TCP: u8 = 6;
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let address = |of: IpAddr| match of {
        IpAddr::V4(four) => [four.octets().as_slice(), &[0; 12]].concat(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    let mut bytes = Vec::with_capacity(HEADER + QUESTION);
    bytes.extend(u32::try_from(HEADER + QUESTION).unwrap_or(0).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(IS_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([u8::try_from(family).unwrap_or(0), TCP, 1 << (INFO - 1), 0]);
    // In any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    bytes.extend(address(local.ip()));
    bytes.extend(address(remote.ip()));
    bytes.extend([0; 4]);
    bytes.extend(cookie.to_ne_bytes());
    bytes
}

/// The sockets that messages of the kernel are about. Pure.
fn told(mut bytes: &[u8]) -> Vec<(u64, Option<Carried>)> {
    let mut all = Vec::new();
    while let Some((message, kind, rest)) = next(bytes) {
        bytes = rest;
        let cookie = message.get(COOKIE..COOKIE + 8).and_then(|cookie| cookie.try_into().ok());
        let (Some(cookie), BY_FAMILY) = (cookie, kind) else { continue };
        let mut attributes = message.get(ABOUT..).unwrap_or_default();
        let mut carried = None;
        while let Some((length, kind)) = head(attributes) {
            if kind == INFO {
                carried = attributes.get(4..length).and_then(Carried::of_info);
            }
            attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        all.push((u64::from_ne_bytes(cookie), carried));
    }
    all
}

/// What is behind the header of a message, its type, and what follows it.
fn next(bytes: &[u8]) -> Option<(&[u8], u16, &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let message = bytes.get(HEADER..length)?;
    Some((message, kind, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Length and type of an attribute.
fn head(bytes: &[u8]) -> Option<(usize, u16)> {
    let field = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let length = usize::from(field(0)?);
    (length >= 4).then_some((length, field(2)?))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use serde_json::json;

    use super::*;
    use crate::egress::rules::Rules;

    fn caller() -> Arc<Caller> {
        let rules = Rules::read(json!({ "allow": ["127.0.0.1"] }).as_object().unwrap()).unwrap();
        Caller::new(vec![Arc::new(rules)], "test".to_owned(), Arc::default())
    }

    fn connection(meter: &Arc<Meter>, caller: &Arc<Caller>) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut near = TcpStream::connect(to).unwrap();
        let (_, place) = caller.decide(to, std::time::Instant::now());
        meter.count(near.as_fd(), caller, to, place);
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[1; 3000]).unwrap();
        far.write_all(&[2; 500]).unwrap();
        far.read_exact(&mut [0; 3000]).unwrap();
        near.read_exact(&mut [0; 500]).unwrap();
        (near, far)
    }

    fn counted(caller: &Caller) -> Vec<(Option<u64>, Option<u64>)> {
        let usage = caller.usage().unwrap();
        usage.places.iter().map(|told| (told.sent_bytes, told.received_bytes)).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_connections_carry_is_counted_whether_they_are_gone_or_not() {
        let (meter, caller) = (Arc::new(Meter::default()), caller());
        let open = connection(&meter, &caller);
        drop(connection(&meter, &caller));
        // Undone, as `connect` with AF_UNSPEC does it.
        let undone = connection(&meter, &caller);
        meter.undone(undone.0.as_fd());
        meter.settle(&caller).await;
        if meter.state().is_absent {
            return;
        }
        let mut all = counted(&caller);
        all.sort_unstable();
        assert_eq!(all.len(), 3);
        for (sent, received) in all {
            // The end of a stream may count as a byte.
            assert!(sent == Some(3000) && (500..=501).contains(&received.unwrap()), "{sent:?} {received:?}");
        }
        assert!(meter.state().listening.is_none());
        drop(open);
    }

    #[test]
    fn what_is_no_message_is_passed_over() {
        let whole = question(7, "127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        for length in 0..whole.len() {
            assert_eq!(told(&whole[..length]), []);
        }
        assert_eq!(told(&[0; 64]), []);
        assert_eq!(told(&[0xff; 64]), []);
    }
}
