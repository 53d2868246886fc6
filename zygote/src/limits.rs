//! Kernel limits of a worker, set by itself right after the fork.

use native_sandbox_confine::set_limit;

use crate::wire::MAX_PAYLOAD_BYTES;

/// Bytes of an encoded set.
const ENCODED_BYTES: usize = 32;
const _: () = assert!(ENCODED_BYTES <= MAX_PAYLOAD_BYTES);

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
    /// many calls. How long it may load is the host's to watch.
    pub(crate) fn set_for_loading(&self) -> bool {
        set_limit(libc::RLIMIT_NOFILE, self.open_files, 0)
            && set_limit(libc::RLIMIT_FSIZE, self.file_size_bytes, 0)
            && set_limit(libc::RLIMIT_DATA, self.data_bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_numbers_and_nothing_else_are_limits() {
        let mut bytes = [0xff; ENCODED_BYTES];
        bytes[8..16].copy_from_slice(&7_u64.to_le_bytes());
        assert_eq!(Limits::decode(&bytes), Some(Limits { file_size_bytes: Some(7), ..Limits::default() }));
        assert_eq!(Limits::decode(&bytes[1..]), None);
        assert!(Limits::default().set());
    }
}
