//! Removal of what dead hosts left.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use super::{HOST_FOLDERS, LOCK_FILE, remove_dir, unique_name};

/// A host folder without a lock is one that is just being made, or whose lock a temp cleaner took from a living
/// host; only after this long without a change is it nobody's.
const ABANDONED_AGE: Duration = Duration::from_hours(24);
/// How folders that a sweeper claimed are named; another sweeper may finish the work.
const DEAD_PREFIX: &str = ".dead-";

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Folders of dead hosts that are gone now.
    pub removed: usize,
    /// Folders that could not be removed; the next sweep tries again.
    pub failed: usize,
}

/// Sweeps `hosts`, `own` left out.
pub(super) fn sweep(hosts: &Path, own: &Path, now: SystemTime) -> SweepReport {
    let mut report = SweepReport::default();
    let Ok(entries) = fs::read_dir(hosts) else { return report };
    for entry in entries.flatten() {
        let path = entry.path();
        if path == own {
            continue;
        }
        match sweep_host(hosts, &path, now) {
            Ok(true) => report.removed += 1,
            Ok(false) => {}
            Err(error) => {
                report.failed += 1;
                tracing::warn!(
                    target: "native-sandbox-executor",
                    dir = %path.display(),
                    error = %error,
                    "Failed to remove the folder of a dead server"
                );
            }
        }
    }
    report
}

fn sweep_host(hosts: &Path, path: &Path, now: SystemTime) -> io::Result<bool> {
    if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(DEAD_PREFIX)) {
        remove_dir(path)?;
        return Ok(true);
    }
    // Held until the folder is out of the way: another sweeper then finds it locked or gone.
    let _lock = match super::reading::open_file(&path.join(LOCK_FILE)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => Some(lock),
            Err(fs::TryLockError::WouldBlock) => return Ok(false),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_abandoned(path, now) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let dead = hosts.join(format!("{DEAD_PREFIX}{}", unique_name().map_err(io::Error::other)?));
    match fs::rename(path, &dead) {
        Ok(()) => remove_dir(&dead).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether neither the folder nor one of its parts changed for [`ABANDONED_AGE`].
fn is_abandoned(path: &Path, now: SystemTime) -> bool {
    let parts = HOST_FOLDERS.iter().map(|(name, _)| path.join(name)).chain([path.to_owned()]);
    let changes = parts.filter_map(|part| fs::symlink_metadata(part).ok()?.modified().ok());
    changes.max().is_some_and(|last| now.duration_since(last).is_ok_and(|age| age >= ABANDONED_AGE))
}
