//! The host's side of the messages on a zygote's control socket; their layout is told in `zygote/src/wire.rs`. Pure.

use super::super::{ExitStatus, Limits};

/// Version of the layout that this side speaks.
pub(super) const VERSION: u32 = 4;

/// Largest payload of either direction.
pub(super) const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

/// Largest packet that a zygote sends.
pub(super) const MAX_REPORT_BYTES: usize = REPORT_HEAD_BYTES + MAX_PAYLOAD_BYTES;

const REPORT_HEAD_BYTES: usize = 40;

/// What a zygote is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// A worker; channel, stdout and stderr go beside it, and `cgroup.procs` if it is `in_group`. `plan` is an encoded plan of confinement, empty for none.
    ForkWorker { id: u64, plan: &'a [u8], in_group: bool },
    /// Another zygote; its control socket goes beside it.
    ForkZygote { id: u64, plan: &'a [u8], in_group: bool, payload: &'a [u8] },
    /// SIGTERM to all of a tree.
    Terminate { id: u64 },
    /// SIGKILL to all of a tree.
    Kill { id: u64 },
    /// Kernel limits of the workers that are forked from now on.
    Limit { limits: Limits },
}

impl Request<'_> {
    /// The packet; `None` when the payload is too large.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let (kind, id, payload) = match self {
            Self::ForkWorker { id, plan, .. } => (1, *id, with_plan(plan, &[])?),
            Self::ForkZygote { id, plan, payload, .. } => (2, *id, with_plan(plan, payload)?),
            Self::Terminate { id } => (3, *id, Vec::new()),
            Self::Kill { id } => (4, *id, Vec::new()),
            Self::Limit { limits } => (5, 0, encoded(limits).to_vec()),
        };
        let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MAX_PAYLOAD_BYTES)?;
        let in_group =
            matches!(self, Self::ForkWorker { in_group: true, .. } | Self::ForkZygote { in_group: true, .. });
        let mut packet = vec![kind, u8::from(in_group), 0, 0];
        packet.extend_from_slice(&length.to_le_bytes());
        packet.extend_from_slice(&id.to_le_bytes());
        packet.extend_from_slice(&payload);
        Some(packet)
    }
}

/// Four numbers: open files, bytes of a file, CPU seconds, bytes of data; all ones for none.
fn encoded(limits: &Limits) -> [u8; 32] {
    let Limits { open_files, file_size_bytes, cpu_seconds, data_bytes } = limits;
    let mut bytes = [0; 32];
    for (place, limit) in
        bytes.chunks_exact_mut(8).zip([open_files, file_size_bytes, cpu_seconds, data_bytes])
    {
        place.copy_from_slice(&limit.unwrap_or(u64::MAX).to_le_bytes());
    }
    bytes
}

/// The plan's length, the plan, the rest.
fn with_plan(plan: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(plan.len()).ok()?.to_le_bytes();
    Some([length.as_slice(), plan, rest].concat())
}

/// What a zygote tells. A process id is that of the zygote's PID namespace, and 0 where a pidfd goes beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// It serves.
    Ready { pid: i32, payload: Vec<u8> },
    /// The child exists.
    Forked { id: u64, pid: u32 },
    /// There is no child.
    ForkFailed { id: u64, errno: i32 },
    /// The child was reaped.
    Exited { id: u64, status: ExitStatus, cpu_us: u64, max_rss_kib: u64 },
    /// Nothing of the tree is left.
    Gone { id: u64 },
    /// It cannot serve, and leaves.
    Refused { payload: Vec<u8> },
}

/// Reads a report; `None` for what is none of this version.
pub(super) fn decode(packet: &[u8]) -> Option<Report> {
    let (head, payload) = packet.split_at_checked(REPORT_HEAD_BYTES)?;
    let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes);
    let long = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes);
    let (value, id, length, version) =
        (word(4).ok()?.cast_signed(), long(8).ok()?, word(32).ok()?, word(36).ok()?);
    if version != VERSION || usize::try_from(length) != Ok(payload.len()) {
        return None;
    }
    Some(match head[0] {
        16 => Report::Ready { pid: value, payload: payload.to_vec() },
        17 => Report::Forked { id, pid: u32::try_from(value).ok()? },
        18 => Report::ForkFailed { id, errno: value },
        19 => {
            Report::Exited { id, status: status(value), cpu_us: long(16).ok()?, max_rss_kib: long(24).ok()? }
        }
        20 => Report::Gone { id },
        21 => Report::Refused { payload: payload.to_vec() },
        _ => return None,
    })
}

/// A wait status as wait4(2) gives it.
fn status(wait_status: i32) -> ExitStatus {
    if libc::WIFSIGNALED(wait_status) {
        ExitStatus::Signal(libc::WTERMSIG(wait_status))
    } else {
        ExitStatus::Code(libc::WEXITSTATUS(wait_status))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(kind: u8, value: i32, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![kind, 0, 0, 0];
        packet.extend_from_slice(&value.to_le_bytes());
        for number in [7_u64, 8, 9] {
            packet.extend_from_slice(&number.to_le_bytes());
        }
        packet.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        packet.extend_from_slice(&VERSION.to_le_bytes());
        packet.extend_from_slice(payload);
        packet
    }

    #[test]
    fn reports_are_read() {
        assert_eq!(decode(&report(16, 5, b"{}")), Some(Report::Ready { pid: 5, payload: b"{}".to_vec() }));
        assert_eq!(decode(&report(17, 5, b"")), Some(Report::Forked { id: 7, pid: 5 }));
        let exited = |status| Some(Report::Exited { id: 7, status, cpu_us: 8, max_rss_kib: 9 });
        assert_eq!(decode(&report(19, 3 << 8, b"")), exited(ExitStatus::Code(3)));
        assert_eq!(decode(&report(19, 9, b"")), exited(ExitStatus::Signal(9)));
        assert_eq!(decode(&report(99, 0, b"")), None);
        assert_eq!(decode(&report(20, 0, b"")[..39]), None);
    }

    #[test]
    fn a_request_has_a_head_of_sixteen_bytes() {
        let packet =
            Request::ForkZygote { id: 2, plan: b"p", in_group: true, payload: b"{}" }.encode().unwrap();
        assert_eq!(packet[..16], [2, 1, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(packet[16..], [1, 0, 0, 0, b'p', b'{', b'}']);
        let large = vec![0; MAX_PAYLOAD_BYTES];
        assert_eq!(Request::ForkZygote { id: 2, plan: b"", in_group: false, payload: &large }.encode(), None);
    }

    #[test]
    fn limits_are_four_numbers() {
        let limits = Limits { open_files: Some(1), cpu_seconds: Some(3), ..Limits::default() };
        let packet = Request::Limit { limits }.encode().unwrap();
        assert_eq!(packet[..8], [5, 0, 0, 0, 32, 0, 0, 0]);
        let numbers: Vec<_> =
            packet[16..].chunks_exact(8).map(|at| u64::from_le_bytes(at.try_into().unwrap())).collect();
        assert_eq!(numbers, [1, u64::MAX, 3, u64::MAX]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(packet in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&packet);
        }
    }
}
