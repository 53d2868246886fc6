//! The launcher's end of the control socket.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use native_sandbox_protocol::{
    FromLauncher, MAX_FDS, MAX_PACKET_BYTES, ToLauncher, decode_request, encode_report,
};
use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketType, recvmsg,
        sockopt,
    },
};

/// How many messages wait for a host that does not read; one more means that it never will again.
const MAX_QUEUED_REPORTS: usize = 16_384;

/// What a look at the socket gave.
pub(crate) enum Received {
    /// A request and the descriptors beside it.
    Request(Box<ToLauncher>, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The host is gone, or does not speak this protocol.
    Closed,
}

pub(crate) struct Control {
    socket: OwnedFd,
    queue: VecDeque<Vec<u8>>,
    packet: Vec<u8>,
    closed: bool,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let wrong = |_| io::Error::other("is started by the executor, with its control socket as stdin");
        if sockopt::socket_type(&socket).map_err(wrong)? != SocketType::SEQPACKET {
            return Err(wrong(Errno::INVAL));
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        // More room is welcome, not needed: the kernel gives what its own limit allows.
        let _ = sockopt::set_socket_send_buffer_size(&socket, 2 * MAX_PACKET_BYTES);
        Ok(Self { socket, queue: VecDeque::new(), packet: vec![0; MAX_PACKET_BYTES], closed: false })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether something waits to be written.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the host is gone, or to be treated so.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes one request.
    pub(crate) fn receive(&mut self) -> Received {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.packet)];
        let message = match recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return self.close(),
        };
        let mut fds = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        // Descriptors that did not fit into our table are missing in `fds`; the request is refused for that.
        if message.bytes == 0 || message.flags.contains(ReturnFlags::TRUNC) {
            return self.close();
        }
        match decode_request(&self.packet[..message.bytes]) {
            Ok(request) => Received::Request(Box::new(request), fds),
            Err(_) => self.close(),
        }
    }

    fn close(&mut self) -> Received {
        self.closed = true;
        Received::Closed
    }

    /// Puts a message behind those that wait.
    pub(crate) fn send(&mut self, report: &FromLauncher) {
        match encode_report(report) {
            Ok(packet) if self.queue.len() < MAX_QUEUED_REPORTS => self.queue.push_back(packet),
            _ => self.closed = true,
        }
    }

    /// Writes what the socket takes.
    pub(crate) fn flush(&mut self) {
        while let Some(packet) = self.queue.front() {
            match rustix::net::sendmsg(
                &self.socket,
                &[IoSlice::new(packet)],
                &mut rustix::net::SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL,
            ) {
                Ok(_) => drop(self.queue.pop_front()),
                // ENOBUFS and ENOMEM pass; the next turn of the loop tries again.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }
}
