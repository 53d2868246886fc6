//! Egress by name: what functions may connect to, asked at each connection and decided here.
//!
//! The filter of a confined process stops `connect`, `listen`, and `socket` of datagrams in the kernel (`SECCOMP_RET_USER_NOTIF`), and its
//! listener comes to the host, which reads the address once, decides, and connects a duplicate of the socket to its own copy of that
//! address: what the caller changes meanwhile counts for nothing. The host's end closes the listener, and the kernel then refuses what
//! the filter asks about: nothing opens the network by dying.
//!
//! TCP only, where not all is open: the address that a datagram goes to can stand in each packet (`sendmsg`), in memory that another thread may
//! change; so there the sockets of datagrams are refused, and names are looked up over TCP (`use-vc` of resolv.conf(5)).
//!
//! `rules` and `addresses` say what may be, `answers` reads and writes DNS messages, all pure; `caller` is who asks, with what it was given;
//! `kernel` the listener, `attend` who reads and answers it; `resolver` answers for names; `meter` knows what connections carried.

mod addresses;
#[cfg(target_os = "linux")]
mod answers;
#[cfg(target_os = "linux")]
mod attend;
#[cfg(target_os = "linux")]
mod caller;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod meter;
#[cfg(target_os = "linux")]
mod resolver;
mod rules;

#[cfg(target_os = "linux")]
pub use attend::{Egress, Known};
#[cfg(target_os = "linux")]
pub use caller::{Caller, Usage};
pub use rules::{Preset, Rules};

/// What glibc and c-ares are told where names are looked up by the host: to ask over TCP (resolv.conf(5)).
pub const RESOLVER_OPTION: &str = "use-vc";
