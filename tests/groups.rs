//! Control groups on a real kernel, as far as a hierarchy without controllers goes: processes are put into them by the launcher, and
//! ended and counted with them, and nothing of them is left. What their limits do is shown in a machine that has the
//! controllers: see `scripts/cgroups/run.mjs`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

mod process_support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use native_sandbox_executor::{
    group::{
        Counted, Groups, detect,
        find::{Controllers, standing},
        plan::GroupLimits,
    },
    process::{Command, ExitStatus, Spawner, Started, plain::PlainSpawner},
};
use process_support::{Mark, launcher, output, soon, until};

const LIMITS: GroupLimits = GroupLimits { memory_bytes: 1 << 30, tasks: 100, cpu_thousandths: None };

#[expect(clippy::print_stdout, reason = "no test is left out silently")]
fn tell_not_run() {
    println!("not run: no control group can be made here");
}

/// A group of this test's own, in which others can be made; none where the machine lets nobody make one.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap();
        let place = standing(&text("cgroup"), &text("mountinfo"))
            .ok()
            .map(|found| found.own.join(format!("test-{}-{name}", std::process::id())))
            .filter(|place| fs::create_dir(place).is_ok());
        if place.is_none() {
            tell_not_run();
        }
        place.map(Self)
    }

    fn groups(&self) -> Groups {
        Groups::open(&self.0, Controllers::default()).unwrap()
    }

    fn below(&self) -> Vec<PathBuf> {
        groups_in(&self.0)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.0);
        assert!(std::thread::panicking() || removed.is_ok(), "nothing is left in {}", self.0.display());
    }
}

fn groups_in(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect()
}

fn processes_in(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_process_is_in_its_group_before_its_program_runs_and_has_no_way_to_any() {
    let Some(place) = Place::new("placed") else { return };
    let groups = place.groups();
    let group = Arc::new(groups.make(&LIMITS).unwrap());
    let name = group.dir().file_name().unwrap().to_str().unwrap().to_owned();
    let script = "cat /proc/self/cgroup; ls /proc/self/fd | wc -l";
    let command = Command { group: Some(Arc::clone(&group)), ..Mark::new().shell(script) };
    let (text, exit) = output(soon(launcher().spawn(command)).await.unwrap()).await;
    assert_eq!(exit, ExitStatus::Code(0));
    assert!(
        text.lines().any(|line| line.starts_with("0::") && line.ends_with(&format!("/{name}"))),
        "{text}"
    );
    // 0 to 2, and the folder that `ls` reads.
    assert_eq!(text.lines().last(), Some("4"), "no descriptor of a group is left");
    assert_eq!(group.counted(), Counted::default());
    let used = group.used();
    assert!(used.cpu_us.is_some_and(|took| took > 0) && used.memory_peak_bytes.is_none(), "{used:?}");
    drop(group);
    groups.rest();
    assert!(place.below().is_empty());
    // The next one makes the host's group anew.
    drop(groups.make(&LIMITS).unwrap());
    drop(groups);
}

#[tokio::test]
async fn the_end_of_a_process_ends_all_of_its_group_and_the_group_goes() {
    let Some(place) = Place::new("ended") else { return };
    let groups = place.groups();
    let group = Arc::new(groups.make(&LIMITS).unwrap());
    let dir = group.dir().to_owned();
    let mark = Mark::new();
    let script = "for i in 1 2 3; do (setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' &) ; done; sleep 1000";
    let command = Command { group: Some(group), ..mark.shell(script) };
    let Started { mut process, .. } = soon(launcher().spawn(command)).await.unwrap();
    // A shell may become its last command, or wait for it.
    until("all are there", || mark.living().len() >= 10).await;
    let (living, inside) = (mark.living(), processes_in(&dir));
    assert!(living.iter().all(|pid| inside.contains(pid)), "{living:?} in {inside:?}");
    process.kill();
    soon(process.gone()).await;
    until("nothing of it is left", || processes_in(&dir).is_empty() && mark.living().is_empty()).await;
    drop(process);
    until("its group is gone", || !dir.exists()).await;
    drop(groups);
}

#[tokio::test]
async fn what_is_in_a_group_that_is_dropped_ends_whoever_started_it() {
    let Some(place) = Place::new("dropped") else { return };
    let groups = place.groups();
    let group = groups.make(&LIMITS).unwrap();
    let dir = group.dir().to_owned();
    let mark = Mark::new();
    let Started { mut process, .. } =
        soon(launcher().spawn(mark.command("/bin/sleep", &["1000"]))).await.unwrap();
    fs::write(dir.join("cgroup.procs"), process.pid().to_string()).unwrap();
    drop(group);
    assert_eq!(soon(process.exited()).await, ExitStatus::Signal(libc::SIGKILL));
    groups.rest();
    assert!(!dir.exists());
    drop(groups);
}

#[tokio::test]
async fn what_a_dead_host_left_goes_with_the_next_start_and_what_a_living_one_has_stays() {
    let Some(place) = Place::new("swept") else { return };
    let living = place.groups();
    let used = living.make(&LIMITS).unwrap();
    let dead = place.0.join("nse-1-0");
    fs::create_dir_all(dead.join("call-1")).unwrap();
    let others = place.0.join("somebody-else");
    fs::create_dir(&others).unwrap();
    let groups = place.groups();
    groups.sweep();
    assert!(!dead.exists() && others.exists());
    assert_eq!(groups_in(&living.dir().unwrap()).len(), 1);
    fs::remove_dir(others).unwrap();
    drop((used, living, groups));
}

#[tokio::test]
async fn without_the_launcher_or_a_way_in_nothing_runs() {
    let Some(place) = Place::new("refused") else { return };
    let groups = place.groups();
    let group = Arc::new(groups.make(&LIMITS).unwrap());
    let in_group = || Command { group: Some(Arc::clone(&group)), ..Mark::new().shell("true") };
    assert!(soon(PlainSpawner::new().spawn(in_group())).await.is_err());
    fs::remove_dir(group.dir()).unwrap();
    let error = soon(launcher().spawn(in_group())).await.err().unwrap().to_string();
    assert!(error.starts_with("cgroup.procs "), "{error}");
    drop((group, groups));
}

#[tokio::test]
async fn groups_that_cannot_limit_are_none() {
    let Some(place) = Place::new("bare") else { return };
    let controllers = fs::read_to_string(place.0.join("cgroup.controllers")).unwrap();
    for (named, word) in [
        (place.0.clone(), "controllers memory and pids"),
        (std::env::temp_dir(), "is no folder of a cgroup v2 file system"),
        (place.0.join("absent"), "is no folder of a cgroup v2 file system"),
    ] {
        let found = soon(detect(&launcher(), Some(named.clone()))).await;
        if named == place.0 && Controllers::parse(&controllers).suffice() {
            let groups = found.unwrap();
            groups.rest();
            continue;
        }
        let refusal = found.err().unwrap();
        assert!(refusal.why.contains(word), "{}", refusal.why);
    }
    assert!(place.below().is_empty());
}
