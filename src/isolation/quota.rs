//! How much a run folder in memory may take. Pure.

use crate::{
    config::RunFolders,
    limits::{CallLimits, DISK_LIMIT_FILES},
};

/// Unless the operator says so, what one call may write is no more than this part of the machine's memory.
const CALL_SHARE: u64 = 8;

/// Folders and links of a call that the host, or its process, makes, and the top of a file system with what leads to a compile cache.
const MADE_FILES: u64 = 7;

const MIB: u64 = 1024 * 1024;

/// What the file system of one call has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Bytes.
    pub bytes: u64,
    /// Files, folders and links.
    pub files: u64,
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
        let call = Self { bytes: limits.disk_bytes(), files: DISK_LIMIT_FILES + MADE_FILES };
        match (wanted, memory_bytes) {
            (RunFolders::Disk, _) => {
                let why =
                    "runFolders is \"disk\": the disk space of a call is looked at while it runs".to_owned();
                Err(Declined { why, enable: "leave runFolders out" })
            }
            (RunFolders::Auto, None) => {
                let why =
                    "the size of the machine's memory cannot be told: run folders are on disk".to_owned();
                Err(Declined { why, enable: "runFolders: \"memory\"" })
            }
            (RunFolders::Auto, Some(memory)) if call.bytes > memory / CALL_SHARE => {
                let why = format!(
                    "diskMb is {}, which is more than an eighth of the memory that there is ({} MiB): run folders are on disk",
                    limits.disk_mb,
                    memory / MIB
                );
                Err(Declined { why, enable: "a lower diskMb, or runFolders: \"memory\"" })
            }
            (RunFolders::Auto | RunFolders::Memory, _) => Ok(call),
        }
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
    fn a_call_has_room_for_what_it_may_write_and_for_what_is_made_for_it() {
        for (disk_mb, memory) in [(1024, 8 * GIB), (16, 128 * MIB)] {
            let found = quota(disk_mb, RunFolders::Auto, Some(memory)).unwrap();
            assert_eq!((found.bytes, found.files), (u64::from(disk_mb) * MIB, 100_007));
        }
    }

    #[test]
    fn what_could_take_too_much_of_the_memory_is_on_disk_unless_somebody_says_otherwise() {
        let declined = quota(1025, RunFolders::Auto, Some(8 * GIB)).unwrap_err();
        assert!(declined.why.contains("diskMb is 1025") && declined.why.contains("8192 MiB"), "{declined:?}");
        assert!(quota(1025, RunFolders::Auto, None).is_err());
        assert!(quota(1, RunFolders::Disk, Some(8 * GIB)).is_err());
        let told = quota(4096, RunFolders::Memory, Some(8 * GIB)).unwrap();
        assert_eq!(told.bytes, 4 * GIB);
        assert_eq!(quota(u32::MAX, RunFolders::Memory, None).unwrap().bytes, u64::from(u32::MAX) * MIB);
    }
}
