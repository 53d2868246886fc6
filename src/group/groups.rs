//! Groups made, asked, killed and removed. A host has one group for all of its calls', which goes with the host, or with the
//! next one that starts.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use native_sandbox_protocol::trial::Trial;
use rustix::fs::{Access, FlockOperation, access, flock, getxattr, statfs};
use tokio::io::AsyncReadExt;

use super::{
    Counted, Used,
    find::{self, Controllers, Refusal, Seen},
    plan::{self, GroupLimits},
};
use crate::{
    log::NATIVE,
    process::{Command, SpawnError, Spawner},
    sys::is_passing,
};

/// What a host's group is called before its number.
const PREFIX: &str = "nse-";

/// Groups of one host at once. Calls are limited by their permits; this is for what nobody has thought of.
const GROUPS_LIMIT: usize = 4096;

/// Groups of dead hosts that one start removes, and groups in each of them.
const SWEPT_LIMIT: usize = 1024;

/// Kills and removals that wait at most; beyond it whoever asks does it himself.
const QUEUE_JOBS: usize = 4096;

/// Between two attempts to remove a group whose processes are about to die.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// After this long a group that is not empty stays, for the next start to remove.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// How long the trial may take.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// A path at which nothing can be made: a trial of groups is not one of files.
const NOWHERE: &[u8] = b"/proc/self/none/none";

/// `CGROUP2_SUPER_MAGIC`; wider than the kernel's number is on any machine.
const MAGIC: i128 = 0x6367_7270;

/// Where systemd is, it says so here.
const SYSTEMD: &str = "/run/systemd/system";

/// Where groups can be made.
#[derive(Debug)]
pub struct Groups {
    /// The delegated group.
    base: PathBuf,
    controllers: Controllers,
    home: Mutex<Option<Home>>,
    /// One reference for each group that is not removed, besides this one.
    living: Arc<()>,
    cleaner: Arc<Cleaner>,
}

/// The host's group.
#[derive(Debug)]
struct Home {
    dir: PathBuf,
    made: u64,
    /// Held as long as the host lives: without it the group is a dead one's.
    _lock: File,
}

/// The group of one call, or of one zygote that has loaded packages. Dropping it ends what is left in it, and removes it in the
/// background.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    procs: OwnedFd,
    living: Arc<()>,
    cleaner: Arc<Cleaner>,
}

/// Looks where groups can be made, in the group that `named` names or near the server's own, and tries it with a process. Not
/// being able to is no fault, unless somebody has named one.
///
/// # Errors
///
/// Why there are none.
pub async fn detect(spawner: &dyn Spawner, named: Option<PathBuf>) -> Result<Arc<Groups>, Refusal> {
    let opened = tokio::task::spawn_blocking(move || {
        let groups = find(named.as_deref())?;
        let group = groups.make(&TRIAL_LIMITS).map_err(|error| groups.cannot("make groups in", &error))?;
        Ok((groups, group))
    });
    let (groups, group) = opened.await.map_err(|error| Refusal::for_now(error.to_string()))??;
    try_one(spawner, group).await.map_err(|Refusal { why, passing }| {
        let why = format!("a process could not be put into a group in {}: {why}", groups.base.display());
        Refusal { why, passing }
    })?;
    let groups = Arc::new(groups);
    let sweeping = Arc::clone(&groups);
    drop(tokio::task::spawn_blocking(move || sweeping.sweep()));
    Ok(groups)
}

/// More than a trial takes.
const TRIAL_LIMITS: GroupLimits =
    GroupLimits { memory_bytes: 64 * 1024 * 1024, tasks: 16, cpu_thousandths: None };

async fn try_one(spawner: &dyn Spawner, group: Group) -> Result<(), Refusal> {
    let victim = i32::try_from(std::process::id()).unwrap_or(1);
    let command = Command {
        program: "trial".into(),
        cwd: "/".into(),
        trial: Some(Trial { canary: NOWHERE.to_vec(), victim, room_bytes: 0, worker: None }),
        group: Some(Arc::new(group)),
        ..Command::default()
    };
    let mut started = spawner.spawn(command).await.map_err(|error| match error {
        SpawnError::Step { step, source, .. } => {
            Refusal { why: format!("{step}: {source}"), passing: is_passing(&source) }
        }
        SpawnError::LauncherUnavailable { passing: false, .. } => Refusal::new(error.to_string()),
        other => Refusal::for_now(other.to_string()),
    })?;
    let mut told = Vec::new();
    let ended = async {
        let _ = started.stdout.read_to_end(&mut told).await;
        started.process.gone().await;
    };
    tokio::time::timeout(TRIAL_LIMIT, ended).await.map_err(|_| Refusal::for_now("it did not end"))
}

/// Finds out and makes ready. Blocks.
fn find(named: Option<&Path>) -> Result<Groups, Refusal> {
    if let Some(named) = named {
        let seen = look(named)?;
        find::judge(&seen, false)?;
        return Groups::open(&seen.dir, seen.controllers);
    }
    let text = |name: &str| told(&Path::new("/proc/self").join(name));
    let standing = find::standing(&text("cgroup")?, &text("mountinfo")?)?;
    let (own, parent) = (look(&standing.own)?, standing.parent.as_deref().map(look).transpose()?);
    let chosen = find::choose(&own, parent.as_ref(), Path::new(SYSTEMD).is_dir())?;
    Groups::open(&chosen.dir, chosen.controllers)
}

/// What a file says; nothing where it is not there, or not for this process to read.
fn told(file: &Path) -> Result<String, Refusal> {
    match fs::read_to_string(file) {
        Err(error) if is_passing(&error) => {
            Err(Refusal::for_now(format!("{} cannot be read: {error}", file.display())))
        }
        found => Ok(found.unwrap_or_default()),
    }
}

/// Looks at a group.
fn look(dir: &Path) -> Result<Seen, Refusal> {
    let is_group = statfs(dir).is_ok_and(|found| i128::from(found.f_type) == MAGIC);
    Ok(Seen { is_group, ..look_into(dir)? })
}

fn look_into(dir: &Path) -> Result<Seen, Refusal> {
    let text = |name: &str| told(&dir.join(name));
    let may = |path: &Path, what| access(path, what).is_ok();
    let says_so = |name: &str| {
        let mut value = [0_u8; 8];
        matches!(getxattr(dir, name, &mut value), Ok(size) if value.get(..size) == Some(b"1"))
    };
    Ok(Seen {
        dir: dir.to_owned(),
        is_group: false,
        is_top: !dir.join("cgroup.type").exists(),
        is_writable: may(dir, Access::WRITE_OK | Access::EXEC_OK)
            && may(&dir.join("cgroup.subtree_control"), Access::WRITE_OK)
            && may(&dir.join("cgroup.procs"), Access::WRITE_OK),
        controllers: Controllers::parse(&text("cgroup.controllers")?),
        enabled: Controllers::parse(&text("cgroup.subtree_control")?),
        has_processes: !text("cgroup.procs")?.trim().is_empty(),
        is_delegated: ["trusted.delegate", "user.delegate"].into_iter().any(says_so),
    })
}

impl Groups {
    /// Makes the host's group in `base`, with what is there of `controllers`. Whether these limit a call is for the caller to
    /// judge. Blocks.
    ///
    /// # Errors
    ///
    /// What the kernel refuses.
    pub fn open(base: &Path, controllers: Controllers) -> Result<Self, Refusal> {
        let mut groups = Self {
            base: base.to_owned(),
            controllers,
            home: Mutex::default(),
            living: Arc::default(),
            cleaner: Arc::default(),
        };
        // Nothing is limited by it that nobody asks for, and some kernels refuse it (real-time processes).
        if controllers.cpu
            && Self::enable_in(base, Controllers { cpu: true, ..Controllers::default() }).is_err()
        {
            groups.controllers.cpu = false;
        }
        let home = groups.settle().map_err(|error| groups.cannot("make groups with limits in", &error))?;
        *groups.home() = Some(home);
        Ok(groups)
    }

    /// What groups can limit.
    pub fn controllers(&self) -> Controllers {
        self.controllers
    }

    fn cannot(&self, what: &str, error: &io::Error) -> Refusal {
        let why = format!("the kernel does not let the server {what} {}: {error}", self.base.display());
        // The kernel answers EAGAIN where an operator limits the number of groups.
        let passing = is_passing(error) && error.kind() != io::ErrorKind::WouldBlock;
        Refusal { why, passing }
    }

    fn home(&self) -> std::sync::MutexGuard<'_, Option<Home>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self) -> io::Result<Home> {
        Self::enable_in(&self.base, self.controllers)?;
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let name = format!("{PREFIX}{}-{:016x}", std::process::id(), u64::from_le_bytes(random));
        let dir = self.base.join(name);
        fs::create_dir(&dir)?;
        let ready = || {
            let lock = File::open(&dir)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Self::enable_in(&dir, self.controllers)?;
            Ok(lock)
        };
        match ready() {
            Ok(lock) => Ok(Home { dir, made: 0, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                Err(error)
            }
        }
    }

    /// Lets the groups in `dir` have limits.
    fn enable_in(dir: &Path, wanted: Controllers) -> io::Result<()> {
        let enabled = Controllers::parse(&fs::read_to_string(dir.join("cgroup.subtree_control"))?);
        for controller in wanted.missing_in(enabled) {
            write(&dir.join("cgroup.subtree_control"), controller)?;
        }
        Ok(())
    }

    /// Makes the group of a call. Some twenty system calls; blocks.
    ///
    /// # Errors
    ///
    /// What the kernel refuses; too many groups.
    pub fn make(&self, limits: &GroupLimits) -> io::Result<Group> {
        match self.make_one(limits) {
            // Somebody removed the host's group.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *self.home() = None;
                self.make_one(limits)
            }
            made => made,
        }
    }

    fn make_one(&self, limits: &GroupLimits) -> io::Result<Group> {
        if Arc::strong_count(&self.living) > GROUPS_LIMIT {
            return Err(io::Error::other(format!("there are {GROUPS_LIMIT} control groups of calls")));
        }
        let dir = {
            let mut home = self.home();
            if home.is_none() {
                *home = Some(self.settle()?);
            }
            let home = home.as_mut().ok_or(io::ErrorKind::NotFound)?;
            home.made += 1;
            home.dir.join(format!("call-{}", home.made))
        };
        fs::create_dir(&dir)?;
        let ready = || {
            for plan::Write { file, value, needed } in plan::writes(limits, self.controllers) {
                match write(&dir.join(file), &value) {
                    Err(error) if needed || error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            OpenOptions::new().write(true).open(dir.join("cgroup.procs"))
        };
        match ready() {
            Ok(procs) => Ok(Group {
                procs: procs.into(),
                dir,
                living: Arc::clone(&self.living),
                cleaner: Arc::clone(&self.cleaner),
            }),
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                Err(error)
            }
        }
    }

    /// The host's group.
    pub fn dir(&self) -> Option<PathBuf> {
        self.home().as_ref().map(|home| home.dir.clone())
    }

    /// Waits until groups that were dropped are removed, and removes the host's own if it is empty; the next group makes another
    /// one. Blocks, at most for [`REMOVAL_LIMIT`].
    pub fn rest(&self) {
        self.cleaner.flush();
        let mut home = self.home();
        if home.as_ref().is_some_and(|home| fs::remove_dir(&home.dir).is_ok()) {
            *home = None;
        }
    }

    /// Removes what dead hosts have left. Blocks.
    pub fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.base) else { return };
        let own = self.home().as_ref().map(|home| home.dir.clone());
        let is_ours = |name: &OsStr| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let others = entries.flatten().filter(|entry| is_ours(&entry.file_name())).map(|entry| entry.path());
        for dir in others.filter(|dir| Some(dir) != own.as_ref()).take(SWEPT_LIMIT) {
            let Ok(lock) = File::open(&dir) else { continue };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            kill(&dir);
            let groups = fs::read_dir(&dir).into_iter().flatten().flatten();
            let groups = groups.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for group in groups.take(SWEPT_LIMIT) {
                let _ = fs::remove_dir(group.path());
            }
            // What is not empty yet is for the next start.
            let _ = fs::remove_dir(&dir);
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.rest();
    }
}

impl Group {
    /// What a process writes `0` to, to be in it. A process that has this needs no right of its own.
    pub fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends every process in it, however many there are and whatever they do. Does not wait. Needs Linux 5.14; before, nothing
    /// happens.
    pub fn kill(&self) {
        self.cleaner.submit(Job::Kill(self.dir.clone()));
    }

    /// What the kernel has counted so far. Reads two small files.
    pub fn counted(&self) -> Counted {
        let number = |file: &str, name: &str| plan::number_of(&self.text(file), name).unwrap_or(0);
        Counted {
            out_of_memory: number("memory.events", "oom_kill") > 0,
            tasks_refused: number("pids.events", "max") > 0,
        }
    }

    /// What was used so far. Reads two small files.
    pub fn used(&self) -> Used {
        Used {
            cpu_us: plan::number_of(&self.text("cpu.stat"), "usage_usec"),
            // Linux 5.19.
            memory_peak_bytes: self.text("memory.peak").trim().parse().ok(),
        }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let living = Arc::clone(&self.living);
        self.cleaner.submit(Job::Remove(Doomed {
            dir: std::mem::take(&mut self.dir),
            since: Instant::now(),
            _living: living,
        }));
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    // Not created: what is not there is none of the kernel's.
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn kill(dir: &Path) {
    // Not there before Linux 5.14: whoever watches the processes ends them one by one.
    let _ = write(&dir.join("cgroup.kill"), "1");
}

/// Whether the group is gone.
fn remove(dir: &Path) -> bool {
    match fs::remove_dir(dir) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// A group to remove.
struct Doomed {
    dir: PathBuf,
    since: Instant,
    _living: Arc<()>,
}

enum Job {
    Kill(PathBuf),
    Remove(Doomed),
    Flush(SyncSender<()>),
}

/// One thread that kills and removes: the kernel may make whoever does it wait, and a group can be removed only once its last
/// process has ended. Started with the first job; ends once nobody has a group any more.
#[derive(Debug, Default)]
struct Cleaner {
    queue: Mutex<Option<SyncSender<Job>>>,
}

impl Cleaner {
    fn submit(&self, job: Job) {
        let job = match self.queue() {
            None => job,
            Some(queue) => match queue.try_send(job) {
                Ok(()) => return,
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job,
            },
        };
        match job {
            Job::Kill(dir) => kill(&dir),
            // What is not empty goes with the host's group, by the next start.
            Job::Remove(doomed) => drop(remove(&doomed.dir)),
            Job::Flush(_) => {}
        }
    }

    /// Waits until what was submitted is done, or given up. Nothing, where nothing was.
    fn flush(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (done, wait) = sync_channel(1);
        if queue.is_some_and(|queue| queue.send(Job::Flush(done)).is_ok()) {
            let _ = wait.recv();
        }
    }

    fn queue(&self) -> Option<SyncSender<Job>> {
        let mut slot = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let (queue, jobs) = sync_channel(QUEUE_JOBS);
            let started = thread::Builder::new().name("sandbox-groups".to_owned()).spawn(move || work(&jobs));
            *slot = started.ok().map(|_| queue);
        }
        slot.clone()
    }
}

fn work(jobs: &Receiver<Job>) {
    // As many as there are groups at most, which are limited.
    let mut doomed: Vec<Doomed> = Vec::new();
    let mut waiting: Vec<SyncSender<()>> = Vec::new();
    loop {
        let job = if doomed.is_empty() {
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            jobs.recv_timeout(RETRY_INTERVAL)
        };
        match job {
            Ok(Job::Kill(dir)) => kill(&dir),
            Ok(Job::Remove(one)) => {
                if !remove(&one.dir) {
                    kill(&one.dir);
                    doomed.push(one);
                }
                retry(&mut doomed);
            }
            Ok(Job::Flush(done)) => waiting.push(done),
            Err(RecvTimeoutError::Timeout) => retry(&mut doomed),
            Err(RecvTimeoutError::Disconnected) if doomed.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(RETRY_INTERVAL);
                retry(&mut doomed);
            }
        }
        if doomed.is_empty() {
            // Nobody waits any more where nobody hears it.
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
        }
    }
}

/// Tries again to remove what is left, and gives up what takes too long.
fn retry(doomed: &mut Vec<Doomed>) {
    doomed.retain(|Doomed { dir, since, .. }| {
        if remove(dir) {
            return false;
        }
        let is_lost = since.elapsed() >= REMOVAL_LIMIT;
        if is_lost {
            tracing::warn!(
                target: NATIVE,
                dir = %dir.display(),
                "A control group is not empty after its call has ended; the next start of a server removes it"
            );
        }
        !is_lost
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a group, which are plain ones: what is read of it is what the kernel would say.
    fn group(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn a_group_is_seen_as_its_files_say() {
        let root = tempfile::tempdir().unwrap();
        let (top, below) = (root.path().join("top"), root.path().join("top/server"));
        let files = [
            ("cgroup.controllers", "cpuset cpu memory pids\n"),
            ("cgroup.subtree_control", "\n"),
            ("cgroup.procs", ""),
        ];
        group(&top, &files);
        group(&below, &files);
        group(
            &below,
            &[
                ("cgroup.type", "domain\n"),
                ("cgroup.procs", "7\n"),
                ("cgroup.subtree_control", "memory pids\n"),
            ],
        );
        let seen = [&top, &below].map(|dir| look_into(dir).unwrap());
        let all = Controllers { memory: true, pids: true, cpu: true };
        assert!(seen.iter().all(|seen| seen.controllers == all && seen.is_writable && !seen.is_delegated));
        assert_eq!(
            seen.each_ref().map(|seen| (seen.is_top, seen.has_processes)),
            [(true, false), (false, true)]
        );
        assert_eq!(seen.each_ref().map(|seen| seen.enabled.suffice()), [false, true]);
        assert!(!look(&top).unwrap().is_group, "plain files are no control group");
        assert_eq!(
            look(&root.path().join("absent")).unwrap(),
            Seen { is_top: true, dir: root.path().join("absent"), ..Seen::default() }
        );
    }

    #[test]
    fn what_is_missing_is_enabled_in_the_delegated_group_and_in_the_hosts() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), &[("cgroup.subtree_control", "memory")]);
        let controllers = Controllers { memory: true, pids: true, cpu: false };
        // The kernel would make the file of the host's group with it.
        let refused = Groups::open(root.path(), controllers).unwrap_err();
        assert!(refused.why.contains("make groups with limits in"), "{}", refused.why);
        assert_eq!(fs::read_to_string(root.path().join("cgroup.subtree_control")).unwrap(), "+pidsy");
        let left = fs::read_dir(root.path()).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["cgroup.subtree_control"], "what was begun is taken back");
        assert!(Groups::open(&root.path().join("absent"), controllers).is_err());
    }
}
