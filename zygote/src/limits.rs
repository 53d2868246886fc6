//! Kernel limits of a worker, set by itself right after the fork.

use std::sync::atomic::{AtomicU64, Ordering};

use native_sandbox_confine::set_limit;

use crate::wire::MAX_PAYLOAD_BYTES;

/// Bytes of an encoded set.
const ENCODED_BYTES: usize = 32;
const _: () = assert!(ENCODED_BYTES <= MAX_PAYLOAD_BYTES);

/// Seconds of processor time that a zygote may take to load packages, all threads together. Ten times what large ones take.
const LOADING_CPU_SECONDS: libc::rlim_t = 10;

/// What the soft limit of processor time is to be again once everything is loaded; [`NOT_LOADING`] where it was left alone.
static BEFORE_LOADING: AtomicU64 = AtomicU64::new(NOT_LOADING);
const NOT_LOADING: u64 = u64::MAX - 1;

/// What stands for no limit.
const NONE: u64 = u64::MAX;

/// `RLIMIT_*` by their names; `None` leaves what the zygote has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    open_files: Option<u64>,
    file_size_bytes: Option<u64>,
    cpu_seconds: Option<u64>,
    data_bytes: Option<u64>,
}

impl Limits {
    /// Reads four numbers; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENCODED_BYTES] = bytes.try_into().ok()?;
        let at = |index: usize| {
            let number = bytes[index * 8..index * 8 + 8].try_into().map_or(NONE, u64::from_le_bytes);
            (number != NONE).then_some(number)
        };
        Some(Self { open_files: at(0), file_size_bytes: at(1), cpu_seconds: at(2), data_bytes: at(3) })
    }

    /// Sets them for this process. Whether that worked: a worker must not run without them.
    pub(crate) fn set(&self) -> bool {
        // SIGXCPU first, SIGKILL a second later.
        self.set_for_loading() && set_limit(libc::RLIMIT_CPU, self.cpu_seconds, 1)
    }

    /// Sets those that what a zygote loads is held to as well: all but processor time, of which a zygote uses a little for each of
    /// many calls. For that see [`limit_loading`].
    pub(crate) fn set_for_loading(&self) -> bool {
        set_limit(libc::RLIMIT_NOFILE, self.open_files, 0)
            && set_limit(libc::RLIMIT_FSIZE, self.file_size_bytes, 0)
            && set_limit(libc::RLIMIT_DATA, self.data_bytes, 0)
    }
}

/// Limits the processor time that this new zygote takes to load packages: SIGXCPU ends one that does not come to an end. The soft
/// limit only, so that it can be lifted: it is for faults. Who means harm is stopped by the host, which waits so long and no longer.
pub(crate) fn limit_loading() -> bool {
    let Some(limit) = cpu_limit() else { return false };
    BEFORE_LOADING.store(limit.rlim_cur, Ordering::Relaxed);
    set_cpu_limit(libc::rlimit { rlim_cur: LOADING_CPU_SECONDS.min(limit.rlim_cur), ..limit })
}

/// Lifts it, if it was set: everything is loaded.
pub(crate) fn lift_loading() -> bool {
    match BEFORE_LOADING.swap(NOT_LOADING, Ordering::Relaxed) {
        NOT_LOADING => true,
        before => cpu_limit().is_some_and(|limit| set_cpu_limit(libc::rlimit { rlim_cur: before, ..limit })),
    }
}

fn cpu_limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a pointer to a local.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_CPU, &raw mut limit) };
    (got == 0).then_some(limit)
}

fn set_cpu_limit(limit: libc::rlimit) -> bool {
    // SAFETY: a pointer to a local.
    unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_loading_is_lifted_to_what_was_before() {
        let before = cpu_limit().unwrap();
        assert!(lift_loading(), "nothing to lift");
        assert!(limit_loading());
        let during = cpu_limit().unwrap();
        assert_eq!(
            (during.rlim_cur, during.rlim_max),
            (LOADING_CPU_SECONDS.min(before.rlim_cur), before.rlim_max)
        );
        assert!(lift_loading());
        assert_eq!(cpu_limit().unwrap().rlim_cur, before.rlim_cur);
    }

    #[test]
    fn four_numbers_and_nothing_else_are_limits() {
        let mut bytes = [0xff; ENCODED_BYTES];
        bytes[8..16].copy_from_slice(&7_u64.to_le_bytes());
        assert_eq!(Limits::decode(&bytes), Some(Limits { file_size_bytes: Some(7), ..Limits::default() }));
        assert_eq!(Limits::decode(&bytes[1..]), None);
        assert!(Limits::default().set());
    }
}
