//! What a lost launcher leaves: its direct children die with it, by the kernel's hand; what these had started is looked
//! for by the mark that all of them have, and by session, as each of them led one. And what launchers of hosts left that are gone as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use native_sandbox_confine::Mark;
use rustix::process::Signal;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tracing::warn;

use crate::sys;

/// How long to look; after that a number could be another's.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);

/// Between two looks.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// Between the two looks that have to agree on what nobody is left for.
const AGREEMENT_PAUSE: Duration = Duration::from_millis(50);

/// Kills what is left in the sessions of these main processes, and what has the mark of their launcher; whether nothing is.
pub(super) async fn sweep(mains: BTreeSet<i32>, mark: Option<Mark>) -> bool {
    if mains.is_empty() && mark.is_none() {
        return true;
    }
    let until = Instant::now() + SWEEP_LIMIT;
    loop {
        let sessions = mains.clone();
        // Reading all of /proc takes milliseconds: not on a thread that others wait for.
        let kill = move || kill_sessions(&sessions) + mark.map_or(0, kill_marked);
        let left = spawn_blocking(kill).await.unwrap_or(0);
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
    if sessions.is_empty() {
        return 0;
    }
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

/// Kills every process that has this mark's launcher; how many there were. All are stopped before the first is killed: what is
/// stopped forks no more.
fn kill_marked(of: Mark) -> usize {
    let marked: Vec<(i32, Mark)> = marks().into_iter().filter(|(_, mark)| mark.has_launcher_of(of)).collect();
    for signal in [Signal::STOP, Signal::KILL] {
        for (pid, mark) in &marked {
            sys::signal_marked(*pid, *mark, signal);
        }
    }
    marked.len()
}

/// Every living process that is marked.
fn marks() -> Vec<(i32, Mark)> {
    let all = sys::numbers().into_iter();
    all.filter_map(|pid| Some((pid, sys::mark_of(pid)?))).filter(|(pid, _)| !sys::is_dead(*pid)).collect()
}

/// Ends what launchers left that nobody follows: those of hosts that were killed together with them.
pub(super) async fn sweep_of_others() {
    // What runs this host is not ours to end, if that is marked.
    let own = sys::mark_of(std::process::id().cast_signed());
    let look = move || abandoned(&marks(), own);
    let Ok(first) = spawn_blocking(look).await else { return };
    if first.is_empty() {
        return;
    }
    // A launcher is there before what it starts, so one that was missed because it had just come is seen now.
    sleep(AGREEMENT_PAUSE).await;
    let Ok(second) = spawn_blocking(look).await else { return };
    for mark in first.into_iter().filter(|mark| second.iter().any(|other| other.has_launcher_of(*mark))) {
        warn!("processes of an earlier server outlived it; they are ended");
        if !sweep(BTreeSet::new(), Some(mark)).await {
            warn!("processes of an earlier server could not be ended in time");
        }
    }
}

/// One mark for each launcher that is not among those that have its mark, but for that of `own`.
fn abandoned(all: &[(i32, Mark)], own: Option<Mark>) -> Vec<Mark> {
    let mut launchers: BTreeMap<u64, (Mark, bool)> = BTreeMap::new();
    for (_, mark) in all.iter().filter(|(_, mark)| own.is_none_or(|own| !mark.has_launcher_of(own))) {
        let (_, is_there) = launchers.entry(mark.of_started().limit()).or_insert((*mark, false));
        *is_there |= mark.is_launcher();
    }
    launchers.into_values().filter(|(_, is_there)| !is_there).map(|(mark, _)| mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_launcher_any_more_is_abandoned_and_what_runs_this_host_is_not() {
        let (one, two) = (Mark::of_launcher(1 << 8), Mark::of_launcher(2 << 8));
        let all = [
            (10, one),
            (11, one.of_started()),
            (12, one.of_call(1)),
            (20, two.of_call(1)),
            (21, two.of_call(2)),
        ];
        assert_eq!(abandoned(&all, None), [two.of_call(1)]);
        assert!(abandoned(&all, Some(two.of_call(9))).is_empty());
        assert!(abandoned(&all[..3], None).is_empty());
    }
}
