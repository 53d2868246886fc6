//! How much run folders in memory may take. Pure.

use crate::{
    config::RunFolders,
    limits::{CallLimits, DISK_LIMIT_FILES},
};

/// Unless the operator says so, what one call may write is no more than this part of the machine's memory.
const CALL_SHARE: u64 = 8;

/// What all workers of one zygote may write together is no more than this part.
const ZYGOTE_SHARE: u64 = 4;

/// That many calls of one zygote may use up their limits at a time, without others noticing: those that are over it are ended at the
/// next look.
const CALLS_AT_ONCE: u64 = 8;

/// Folders and links of a call that the host, or its process, makes, and the top of a file system with what leads to a compile cache.
const MADE_FILES: u64 = 6;

/// What a file takes of the kernel's memory, beside its content, with its name; rounded up.
const FILE_BYTES: u64 = 2048;

const MIB: u64 = 1024 * 1024;

/// What a file system has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files, folders and links.
    pub files: u64,
}

/// The limits of run folders in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Of a worker that has a file system of its own.
    pub call: Room,
    /// Of all workers of a zygote together.
    pub zygote: Room,
}

/// Why run folders are not in memory though they could be, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declined {
    /// Why.
    pub why: String,
    /// What would change it.
    pub enable: &'static str,
}

impl Quota {
    /// The limits for calls with these; `memory_bytes` is what the machine, or the container, has. Fails where they are to be on disk.
    pub fn new(limits: &CallLimits, wanted: RunFolders, memory_bytes: Option<u64>) -> Result<Self, Declined> {
        let call = Room { bytes: limits.disk_bytes(), files: DISK_LIMIT_FILES + MADE_FILES };
        match (wanted, memory_bytes) {
            (RunFolders::Disk, _) => {
                let why =
                    "runFolders is \"disk\": the disk space of a call is looked at while it runs".to_owned();
                return Err(Declined { why, enable: "leave runFolders out" });
            }
            (RunFolders::Auto, None) => {
                let why =
                    "the size of the machine's memory cannot be told: run folders are on disk".to_owned();
                return Err(Declined { why, enable: "runFolders: \"memory\"" });
            }
            (RunFolders::Auto, Some(memory)) if call.bytes > memory / CALL_SHARE => {
                let why = format!(
                    "diskMb is {}, which is more than an eighth of the memory that there is ({} MiB): run folders are on disk",
                    limits.disk_mb,
                    memory / MIB
                );
                return Err(Declined { why, enable: "a lower diskMb, or runFolders: \"memory\"" });
            }
            (RunFolders::Auto | RunFolders::Memory, _) => {}
        }
        let share = memory_bytes.map_or(u64::MAX, |memory| memory / ZYGOTE_SHARE);
        let of_all = |one: u64, most: u64| one.saturating_mul(CALLS_AT_ONCE).min(most).max(one);
        let zygote = Room { bytes: of_all(call.bytes, share), files: of_all(call.files, share / FILE_BYTES) };
        Ok(Self { call, zygote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    fn quota(disk_mb: u32, wanted: RunFolders, memory: Option<u64>) -> Result<Quota, Declined> {
        Quota::new(&CallLimits { disk_mb, ..CallLimits::DEFAULT }, wanted, memory)
    }

    #[test]
    fn a_call_has_its_limit_and_a_zygote_that_of_eight_but_no_more_than_a_quarter_of_the_memory() {
        let of = |disk_mb, memory| quota(disk_mb, RunFolders::Auto, Some(memory)).unwrap();
        let large = of(1024, 64 * GIB);
        assert_eq!((large.call.bytes, large.zygote.bytes), (GIB, 8 * GIB));
        assert_eq!((large.call.files, large.zygote.files), (100_006, 800_048));
        let small = of(1024, 8 * GIB);
        assert_eq!((small.call.bytes, small.zygote.bytes), (GIB, 2 * GIB));
        let tiny = of(16, 128 * MIB);
        assert_eq!((tiny.call.bytes, tiny.zygote.bytes), (16 * MIB, 32 * MIB));
        assert_eq!(tiny.zygote.files, 100_006);
    }

    #[test]
    fn what_could_take_too_much_of_the_memory_is_on_disk_unless_somebody_says_otherwise() {
        let declined = quota(1025, RunFolders::Auto, Some(8 * GIB)).unwrap_err();
        assert!(declined.why.contains("diskMb is 1025") && declined.why.contains("8192 MiB"), "{declined:?}");
        assert!(quota(1025, RunFolders::Auto, None).is_err());
        assert!(quota(1, RunFolders::Disk, Some(8 * GIB)).is_err());
        let told = quota(4096, RunFolders::Memory, Some(8 * GIB)).unwrap();
        assert_eq!((told.call.bytes, told.zygote.bytes), (4 * GIB, 4 * GIB));
        assert_eq!(
            quota(u32::MAX, RunFolders::Memory, None).unwrap().zygote.bytes,
            u64::from(u32::MAX) * 8 * MIB
        );
    }
}
