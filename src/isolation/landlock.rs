//! Landlock's rights, by what the kernel knows (`linux/landlock.h`). Pure.

/// A set of `LANDLOCK_ACCESS_FS_*`.
pub(super) type Access = u64;

const EXECUTE: Access = 1;
const WRITE_FILE: Access = 1 << 1;
const READ_FILE: Access = 1 << 2;
const READ_DIR: Access = 1 << 3;
const REMOVE_DIR: Access = 1 << 4;
const REMOVE_FILE: Access = 1 << 5;
const MAKE_DIR: Access = 1 << 7;
const MAKE_REG: Access = 1 << 8;
const MAKE_FIFO: Access = 1 << 10;
const MAKE_SYM: Access = 1 << 12;
const REFER: Access = 1 << 13;
const TRUNCATE: Access = 1 << 14;
const IOCTL_DEV: Access = 1 << 15;

/// Files and folders can be read.
pub(super) const READ: Access = READ_FILE | READ_DIR;
/// And programs run.
pub(super) const RUN: Access = READ | EXECUTE;
/// Everything that a call does in its own folder. No devices, and no sockets.
pub(super) const OWN: Access = RUN
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE;
/// A device such as `/dev/null`.
pub(super) const DEVICE: Access = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV;

/// The version that brought the scoping of signals and abstract sockets.
pub(super) const SCOPES_SINCE: u32 = 6;
/// The version that brought rules for TCP.
pub(super) const TCP_SINCE: u32 = 4;

/// The last file right of each version, as the set of all up to it.
pub(super) fn all_files(abi: u32) -> Access {
    match abi {
        0 => 0,
        1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    }
}

/// `LANDLOCK_ACCESS_NET_BIND_TCP` and `…_CONNECT_TCP`.
pub(super) fn all_tcp(abi: u32) -> u64 {
    if abi >= TCP_SINCE { 3 } else { 0 }
}

/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` and `…_SIGNAL`.
pub(super) fn all_scopes(abi: u32) -> u64 {
    if abi >= SCOPES_SINCE { 3 } else { 0 }
}
