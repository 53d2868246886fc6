//! The messages on a zygote's control socket (`SOCK_SEQPACKET`, one message per packet). Pure.
//!
//! All numbers are little-endian. A request has a head of [`REQUEST_HEAD_BYTES`]: `u8` kind, `u8` flags (bit 0: in a group), two zero
//! bytes, `u32` payload length, `u64` id; a report one of [`REPORT_HEAD_BYTES`]: `u8` kind, `u8` flags (bit 0: left behind; never set
//! of a worker with a PID namespace of its own, whose init knows), two zero
//! bytes, `i32` value, `u64` id, `u64` CPU microseconds, `u64` peak resident KiB, `u32` payload length, `u32` version.
//!
//! | request | kind | descriptors | payload |
//! | --- | --- | --- | --- |
//! | `FORK_WORKER` | 1 | channel, stdout, stderr | a plan |
//! | `FORK_ZYGOTE` | 2 | control socket, or that with stdout and stderr | a plan, then JSON for `zygote.cjs` |
//! | `TERMINATE` | 3 | none | none |
//! | `KILL` | 4 | none | none |
//! | `LIMIT` | 5 | none | four `u64`: open files, bytes of a file, CPU seconds, bytes of data; all ones for none |
//!
//! With the flag, one more descriptor comes last: the `cgroup.procs` of the control group that the child enters. Only the first two
//! kinds have it.
//!
//! A plan, what the child gives up before it goes on, is a `u32` length and as many bytes, encoded by the crate
//! `native-sandbox-confine`; the length 0 means none.
//!
//! A report about a process has a pidfd of it beside it, and 0 for its id: host and zygote may be in different PID
//! namespaces. Where there are no pidfds, it has the id.
//!
//! | report | kind | value | payload |
//! | --- | --- | --- | --- |
//! | `READY` | 16 | own process id | JSON from `zygote.cjs` |
//! | `FORKED` | 17 | process id | none |
//! | `FORK_FAILED` | 18 | errno | none |
//! | `EXITED` | 19 | wait status, as `wait4(2)` gives it | none |
//! | `GONE` | 20 | 0 | none |
//! | `REFUSED` | 21 | 0 | JSON from `zygote.cjs`; the zygote then leaves |

use native_sandbox_confine::Plan;

use crate::limits::Limits;

/// Version of this layout, told with every report.
pub(crate) const VERSION: u32 = 4;

/// Length of a request without its payload.
pub(crate) const REQUEST_HEAD_BYTES: usize = 16;

/// Length of a report without its payload.
pub(crate) const REPORT_HEAD_BYTES: usize = 40;

/// Largest payload of either direction.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

/// Descriptors that one request may carry.
pub(crate) const MAX_FDS: usize = 4;

/// What the host asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A worker; `fds` come with it.
    ForkWorker { id: u64, plan: Option<Plan>, in_group: bool },
    /// Another zygote, made of this one.
    ForkZygote { id: u64, plan: Option<Plan>, in_group: bool, payload: Vec<u8> },
    /// SIGTERM to all of a tree.
    Terminate { id: u64 },
    /// SIGKILL to all of a tree.
    Kill { id: u64 },
    /// Kernel limits of the workers that are forked from now on.
    Limit { limits: Limits },
}

/// Reads a request; `None` for what is none, or has other descriptors than it must.
pub(crate) fn decode(packet: &[u8], fds: usize) -> Option<Request> {
    let (head, payload) = packet.split_at_checked(REQUEST_HEAD_BYTES)?;
    let length = u32::from_le_bytes(head[4..8].try_into().ok()?);
    let id = u64::from_le_bytes(head[8..].try_into().ok()?);
    let in_group = head[1] == 1;
    if head[1] > 1
        || head[2..4] != [0; 2]
        || length as usize != payload.len()
        || payload.len() > MAX_PAYLOAD_BYTES
    {
        return None;
    }
    let fds = if in_group { fds.checked_sub(1)? } else { fds };
    match (head[0], fds, payload.is_empty()) {
        (1, 3, false) => match planned(payload)? {
            (plan, []) => Some(Request::ForkWorker { id, plan, in_group }),
            _ => None,
        },
        (2, 1 | 3, false) => match planned(payload)? {
            (_, []) => None,
            (plan, json) => Some(Request::ForkZygote { id, plan, in_group, payload: json.to_vec() }),
        },
        _ if in_group => None,
        (3, 0, true) => Some(Request::Terminate { id }),
        (4, 0, true) => Some(Request::Kill { id }),
        (5, 0, false) => Some(Request::Limit { limits: Limits::decode(payload)? }),
        _ => None,
    }
}

/// The plan in front of a payload, and the rest.
fn planned(payload: &[u8]) -> Option<(Option<Plan>, &[u8])> {
    let (length, rest) = payload.split_first_chunk()?;
    let (plan, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    if plan.is_empty() {
        return Some((None, rest));
    }
    Some((Some(Plan::decode(plan).ok()?), rest))
}

/// What the host is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// Booted; forks from now on.
    Ready { pid: i32, payload: Vec<u8> },
    /// The child runs.
    Forked { id: u64, pid: i32 },
    /// There is no child. `EEXIST`: the id is in use.
    ForkFailed { id: u64, errno: i32 },
    /// The child is reaped.
    Exited { id: u64, status: i32, cpu_us: u64, max_rss_kib: u64, left_behind: bool },
    /// The child and everything it left are gone.
    Gone { id: u64 },
    /// This process can't be a zygote and leaves.
    Refused { payload: Vec<u8> },
}

impl Report {
    /// The process that it is about, if there is one.
    pub(crate) fn pid(&self) -> Option<i32> {
        match *self {
            Self::Ready { pid, .. } | Self::Forked { pid, .. } => Some(pid),
            _ => None,
        }
    }

    /// The packet. `is_named`: a pidfd goes beside it.
    pub(crate) fn encode(&self, is_named: bool) -> Vec<u8> {
        let (kind, value, id) = match *self {
            Self::Ready { pid, .. } => (16, if is_named { 0 } else { pid }, 0),
            Self::Forked { id, pid } => (17, if is_named { 0 } else { pid }, id),
            Self::ForkFailed { id, errno } => (18, errno, id),
            Self::Exited { id, status, .. } => (19, status, id),
            Self::Gone { id } => (20, 0, id),
            Self::Refused { .. } => (21, 0, 0),
        };
        let (cpu_us, max_rss_kib, flags) = match *self {
            Self::Exited { cpu_us, max_rss_kib, left_behind, .. } => {
                (cpu_us, max_rss_kib, u8::from(left_behind))
            }
            _ => (0, 0, 0),
        };
        let payload = match self {
            Self::Ready { payload, .. } | Self::Refused { payload } => payload.as_slice(),
            _ => &[],
        };
        let payload = &payload[..payload.len().min(MAX_PAYLOAD_BYTES)];
        let mut packet = Vec::with_capacity(REPORT_HEAD_BYTES + payload.len());
        packet.extend_from_slice(&[kind, flags, 0, 0]);
        packet.extend_from_slice(&value.to_le_bytes());
        packet.extend_from_slice(&id.to_le_bytes());
        packet.extend_from_slice(&cpu_us.to_le_bytes());
        packet.extend_from_slice(&max_rss_kib.to_le_bytes());
        packet.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(0).to_le_bytes());
        packet.extend_from_slice(&VERSION.to_le_bytes());
        packet.extend_from_slice(payload);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: u8, id: u64, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![kind, 0, 0, 0];
        packet.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        packet.extend_from_slice(&id.to_le_bytes());
        packet.extend_from_slice(payload);
        packet
    }

    fn with_plan(plan: &[u8], rest: &[u8]) -> Vec<u8> {
        let length = u32::try_from(plan.len()).unwrap().to_le_bytes();
        [length.as_slice(), plan, rest].concat()
    }

    #[test]
    fn requests_are_read() {
        let none = with_plan(b"", b"");
        assert_eq!(
            decode(&packet(1, 7, &none), 3),
            Some(Request::ForkWorker { id: 7, plan: None, in_group: false })
        );
        let plan = Plan { identity: Some(5), ..Plan::default() };
        let encoded = with_plan(&plan.encode().unwrap(), b"");
        let expected = Some(Request::ForkWorker { id: 7, plan: Some(plan), in_group: false });
        assert_eq!(decode(&packet(1, 7, &encoded), 3), expected);
        let json = with_plan(b"", b"{}");
        let zygote =
            Some(Request::ForkZygote { id: u64::MAX, plan: None, in_group: false, payload: b"{}".to_vec() });
        assert_eq!(decode(&packet(2, u64::MAX, &json), 1), zygote);
        assert_eq!(decode(&packet(2, u64::MAX, &json), 3), zygote);
        assert_eq!(decode(&packet(3, 1, b""), 0), Some(Request::Terminate { id: 1 }));
        assert_eq!(decode(&packet(4, 1, b""), 0), Some(Request::Kill { id: 1 }));
        assert!(
            matches!(decode(&packet(5, 0, &[255; 32]), 0), Some(Request::Limit { limits }) if limits == Limits::default())
        );
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let good = packet(1, 7, &with_plan(b"", b""));
        for end in 0..good.len() {
            assert_eq!(decode(&good[..end], 3), None);
        }
        let mut padded = good.clone();
        padded[2] = 1;
        let mut longer = good.clone();
        longer.push(0);
        let with_flag = |flag| {
            let mut packet = good.clone();
            packet[1] = flag;
            packet
        };
        let in_group = Some(Request::ForkWorker { id: 7, plan: None, in_group: true });
        assert_eq!(decode(&with_flag(1), 4), in_group);
        for (packet, fds) in [(with_flag(1), 3), (with_flag(1), 0), (with_flag(2), 3)] {
            assert_eq!(decode(&packet, fds), None);
        }
        let mut kill = self::packet(4, 1, b"");
        kill[1] = 1;
        assert_eq!(decode(&kill, 1), None, "nothing else has a group");
        for (packet, fds) in [(good.clone(), 2), (good, 0), (padded, 3), (longer, 3)] {
            assert_eq!(decode(&packet, fds), None);
        }
        assert_eq!(decode(&packet(5, 0, &[0; 31]), 0), None);
        for kind in [0, 5, 16, 255] {
            assert_eq!(decode(&packet(kind, 1, b""), 0), None);
        }
        // Something behind a worker's plan, no plan, a plan that is none, and nothing behind a zygote's plan.
        for (kind, payload) in [
            (1, with_plan(b"", b"{}")),
            (1, b"".to_vec()),
            (1, with_plan(b"x", b"")),
            (2, with_plan(b"", b"")),
            (2, b"{}".to_vec()),
        ] {
            assert_eq!(decode(&packet(kind, 1, &payload), if kind == 1 { 3 } else { 1 }), None);
        }
        assert_eq!(decode(&packet(2, 1, &with_plan(b"", b"{}")), 2), None);
        assert_eq!(decode(&packet(2, 1, &with_plan(b"", &vec![b' '; MAX_PAYLOAD_BYTES])), 1), None);
    }

    #[test]
    fn a_report_has_its_fields_where_the_table_says() {
        let report = Report::Exited { id: 2, status: 3 << 8, cpu_us: 4, max_rss_kib: 5, left_behind: true };
        let packet = report.encode(false);
        assert_eq!(packet.len(), REPORT_HEAD_BYTES);
        assert_eq!(packet[..4], [19, 1, 0, 0]);
        assert_eq!(packet[4..8], (3_i32 << 8).to_le_bytes());
        assert_eq!(packet[8..16], 2_u64.to_le_bytes());
        assert_eq!(packet[16..24], 4_u64.to_le_bytes());
        assert_eq!(packet[24..32], 5_u64.to_le_bytes());
        assert_eq!(packet[32..36], [0; 4]);
        assert_eq!(packet[36..], VERSION.to_le_bytes());
    }

    #[test]
    fn a_process_that_is_named_otherwise_has_no_number() {
        for report in [Report::Forked { id: 1, pid: 7 }, Report::Ready { pid: 7, payload: b"{}".to_vec() }] {
            assert_eq!(report.pid(), Some(7));
            assert_eq!(report.encode(false)[4..8], 7_i32.to_le_bytes());
            assert_eq!(report.encode(true)[4..8], [0; 4]);
        }
        assert_eq!(Report::Gone { id: 1 }.pid(), None);
    }

    #[test]
    fn a_payload_is_cut_at_its_limit() {
        let packet = Report::Refused { payload: vec![b'x'; MAX_PAYLOAD_BYTES + 1] }.encode(false);
        assert_eq!(packet.len(), REPORT_HEAD_BYTES + MAX_PAYLOAD_BYTES);
    }
}
