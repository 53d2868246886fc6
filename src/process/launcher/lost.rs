//! What a lost launcher leaves: its direct children die with it, by the kernel's hand; what these had started is looked
//! for by session, as each of them led one.

use std::{collections::BTreeSet, time::Duration};

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::sys;

/// How long to look; after that a number could be another's.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);

/// Between two looks.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// Kills what is left in the sessions of these main processes; whether nothing is.
pub(super) async fn sweep(mains: BTreeSet<i32>) -> bool {
    if mains.is_empty() {
        return true;
    }
    let until = Instant::now() + SWEEP_LIMIT;
    loop {
        let sessions = mains.clone();
        // Reading all of /proc takes milliseconds: not on a thread that others wait for.
        let left = tokio::task::spawn_blocking(move || kill_sessions(&sessions)).await.unwrap_or(0);
        if left == 0 {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        sleep(SWEEP_PAUSE).await;
    }
}

/// Kills every process in these sessions; how many there were. What is dead does not count: its new
/// parent may be one that never reaps.
fn kill_sessions(sessions: &BTreeSet<i32>) -> usize {
    let mut left = 0;
    for entry in sys::processes() {
        // A main process that had not got its own session yet is found by its number.
        let is_ours = sessions.contains(&entry.session) || sessions.contains(&entry.pid);
        if is_ours && !entry.zombie {
            sys::signal_exactly(&entry, Signal::KILL);
            left += 1;
        }
    }
    left
}
