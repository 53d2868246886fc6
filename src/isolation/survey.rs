//! What this machine offers, found out by trying, once per process.
//!
//! Only the kernel's own "no" at a step (see [`is_refusal`]) says that a layer is not offered. Whatever else goes wrong says nothing
//! about the machine: the survey fails with it, and the next call makes another one.

use std::{
    fmt, fs, io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use native_sandbox_confine::Plan;
use native_sandbox_protocol::trial::{ALLOWED_PORT, Attempt, Outcomes, Trial};
use tokio::io::AsyncReadExt;

use super::{
    identity,
    policy::{Offered, Places, Policy, Run, Zygote},
    quota::{Declined, Quota},
    report::Layer,
};
use crate::{
    config::{Network, Tier},
    egress::{Egress, Rules},
    process::{Attend, Command, SpawnError, Spawner},
    store::Store,
    sys,
};

/// How long a child on trial may take.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// More than a trial ever says, bytes.
const MAX_OUTCOME_BYTES: u64 = 4096;

/// How often a trial is begun anew without what did not work.
const MAX_TRIALS: usize = 8;

/// What a trial may write.
const TRIAL_ROOM: Quota = Quota { bytes: 1024 * 1024, files: 100 };

/// Threads of its user: a trial has one.
const TRIAL_TASKS: u32 = 64;

/// Why it is not known what the machine offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SurveyError {
    /// There is no launcher to try it with: a file is missing, or cannot be run. Not the kernel's doing.
    NoLauncher(String),
    /// Something that may pass: no room, no memory, no process, no descriptor; a trial that ended early, or not at all.
    Unknown(String),
}

impl fmt::Display for SurveyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLauncher(reason) | Self::Unknown(reason) => f.write_str(reason),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// What works.
    pub(super) offered: Offered,
    /// What came of the attempts of a worker, with the network open and closed; `None` where there is no launcher to try it with.
    pub(super) open: Option<Outcomes>,
    pub(super) closed: Option<Outcomes>,
    /// Why not, where something is not offered.
    pub(super) no_landlock: Option<String>,
    pub(super) no_seccomp: Option<String>,
    pub(super) no_users: Option<String>,
    pub(super) no_namespaces: Option<String>,
    pub(super) no_mounts: Option<String>,
    pub(super) no_pids: Option<String>,
    pub(super) no_quotas: Option<String>,
    pub(super) no_worker_pids: Option<String>,
    pub(super) no_asking: Option<String>,
    /// Why nothing could be tried at all.
    pub(super) no_trial: Option<String>,
    /// The inodes of the host's namespaces: network, shared memory, names, processes.
    pub(super) namespaces: [u64; 4],
    /// The host's user.
    pub(super) user: u64,
}

impl Survey {
    /// Tries everything.
    ///
    /// # Errors
    ///
    /// What kept it from being found out.
    pub async fn take(spawner: &dyn Spawner, store: &Store) -> Result<Self, SurveyError> {
        let unknown = |what: &dyn fmt::Display| SurveyError::Unknown(what.to_string());
        let beginning = {
            let store = store.clone();
            tokio::task::spawn_blocking(move || {
                let folder = Folder::create(&store)
                    .map_err(|error| unreadable("make a folder for a trial in", store.host_dir(), &error))?;
                Ok((Self::expect(&folder.dir)?, folder))
            })
        };
        let (mut survey, folder) = beginning.await.map_err(|error| unknown(&error))??;
        for network in [Network::Open, Network::None] {
            let outcomes = survey.settle(spawner, &folder, network).await?;
            let place = if network == Network::Open { &mut survey.open } else { &mut survey.closed };
            *place = Some(outcomes);
            if network == Network::Open {
                survey.judge_asking(outcomes);
            }
        }
        survey.try_siblings(spawner, &folder).await?;
        // Removed in the background; what stays goes with the host's folder.
        drop(tokio::task::spawn_blocking(move || drop(folder)));
        Ok(survey)
    }

    /// Of a machine without a launcher, where nothing can be tried: nothing is offered.
    pub fn without_launcher(reason: String) -> Self {
        Self { no_trial: Some(reason), ..Self::default() }
    }

    /// What the kernel says about itself, before anything is tried. `folder` is what a user of a trial has to reach. Blocks.
    fn expect(folder: &Path) -> Result<Self, SurveyError> {
        // Kernels without user namespaces, and older ones, have no such files: all users are there, and groups can be set.
        let or_all = |path: &str, all: &str| match read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(all.to_owned()),
            found => found.map_err(|error| unreadable("read", Path::new(path), &error)),
        };
        let status = "/proc/self/status";
        let status = read(status).map_err(|error| unreadable("read", Path::new(status), &error))?;
        let may_set_groups = or_all("/proc/self/setgroups", "allow")?.trim() != "deny";
        let uid_map = or_all("/proc/self/uid_map", "0 0 4294967295")?;
        let no_users = identity::objection(&status, &uid_map, may_set_groups)
            .or_else(|| identity::closed_folder(folder).map(identity::told_closed));
        let (landlock_abi, no_landlock) = match sys::landlock_abi() {
            Ok(abi) => (abi, None),
            // No path is looked up yet: a filter of the container's is all that can say EACCES.
            Err(error) if is_no(&error) || error.raw_os_error() == Some(libc::EACCES) => {
                (0, Some(format!("the kernel has no Landlock, or does not let it be used ({error})")))
            }
            Err(error) => return Err(SurveyError::Unknown(format!("landlock_create_ruleset: {error}"))),
        };
        let mut namespaces = [0; 4];
        for (inode, name) in namespaces.iter_mut().zip(["net", "ipc", "uts", "pid"]) {
            let path = format!("/proc/self/ns/{name}");
            *inode = match fs::metadata(&path) {
                Ok(metadata) => metadata.ino(),
                // The kernel was built without.
                Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                Err(error) => return Err(unreadable("read", Path::new(&path), &error)),
            };
        }
        Ok(Self {
            offered: Offered {
                landlock_abi,
                seccomp: true,
                private_users: no_users.is_none(),
                namespaces: true,
                mounts: true,
                pids: true,
                quotas: true,
                worker_pids: true,
                asking: true,
                only_in_user_namespaces: !rustix::process::geteuid().is_root(),
            },
            no_landlock,
            no_users,
            namespaces,
            user: rustix::process::getuid().as_raw().into(),
            ..Self::default()
        })
    }

    /// Tries with less and less, until a child comes through.
    async fn settle(
        &mut self,
        spawner: &dyn Spawner,
        folder: &Folder,
        network: Network,
    ) -> Result<Outcomes, SurveyError> {
        for _ in 0..MAX_TRIALS {
            match self.attempt(spawner, folder, network).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(Refused::Step(step, error)) if is_refusal(step, &error) && self.without(step, &error) => {
                }
                Err(refused) => return Err(refused.into_error()),
            }
        }
        Err(SurveyError::Unknown("every trial failed".to_owned()))
    }

    /// Whether the host sees where a process connects to, as far as a filter asks.
    fn judge_asking(&mut self, open: Outcomes) {
        if !self.offered.asking || !self.offered.seccomp || open.is_refused(Attempt::Asking) {
            return;
        }
        self.offered.asking = false;
        self.no_asking = Some(
            if open.get(Attempt::Asking) == 0 {
                "a trial connected to where it may not"
            } else {
                "the host may not look into the memory of its functions' processes (they have users of their own, and CAP_SYS_PTRACE is missing, or a security module says no)"
            }
            .to_owned(),
        );
    }

    /// Gives up what a step could not do; whether that was anything.
    fn without(&mut self, step: &str, error: &io::Error) -> bool {
        let why = |what: &str| Some(format!("{what} ({error})"));
        match step {
            "landlock" if self.offered.landlock_abi > 0 => {
                self.offered.landlock_abi = 0;
                self.no_landlock = why("the kernel refuses a Landlock domain");
            }
            "seccomp" if self.offered.seccomp => {
                self.offered.seccomp = false;
                self.no_seccomp = why("the kernel refuses a filter of system calls");
            }
            "seccomp listener" if self.offered.asking => {
                self.offered.asking = false;
                self.no_asking =
                    why("the kernel has no filter that asks, or one that asks is in force already");
            }
            "setresuid" if self.offered.private_users => {
                self.offered.private_users = false;
                self.no_users = why("the kernel refuses a change of the user");
            }
            "PID namespace" | "mount of /proc" | "unshare" if self.offered.pids => {
                self.offered.pids = false;
                self.no_pids =
                    why("the kernel, or the container, refuses a PID namespace with a /proc of its own");
            }
            "mount of run folders" if self.offered.quotas => {
                self.offered.quotas = false;
                self.no_quotas = why("the kernel, or the container, refuses a file system in memory");
            }
            "mount" if self.offered.mounts => {
                self.offered.mounts = false;
                self.no_mounts = why("the kernel, or the container, refuses mounts");
            }
            "unshare" if self.offered.namespaces => {
                self.offered.namespaces = false;
                self.no_namespaces = why("the kernel, or the container, refuses namespaces");
            }
            _ => return false,
        }
        true
    }

    async fn attempt(
        &self,
        spawner: &dyn Spawner,
        folder: &Folder,
        network: Network,
    ) -> Result<Outcomes, Refused> {
        let parts = folder.parts();
        let (policy, user) = (self.policy(folder, network), drawn()?);
        let plan = policy.worker(Some(user), folder.run(&parts), None);
        let outcomes = tried(spawner, plan, parts[0].clone(), folder.trial(None)).await?;
        match outcomes.unclear() {
            None => Ok(outcomes),
            Some((attempt, error)) => {
                Err(Refused::Other(format!("a trial could not tell about {attempt:?}: {error}")))
            }
        }
    }

    /// Whether a base zygote can give each of its workers a PID namespace: by a child that is as a base zygote is.
    async fn try_siblings(&mut self, spawner: &dyn Spawner, folder: &Folder) -> Result<(), SurveyError> {
        if !self.offered.pids {
            self.offered.worker_pids = false;
            return Ok(());
        }
        let why = match self.attempt_siblings(spawner, folder).await {
            Ok(outcomes) => match i32::try_from(outcomes.get(Attempt::Sibling)).unwrap_or(libc::EIO) {
                libc::ESRCH => return Ok(()),
                0 => "one worker reached another".to_owned(),
                errno => {
                    let error = io::Error::from_raw_os_error(errno);
                    if !is_no(&error) && errno != libc::EACCES {
                        let told = format!("a trial of two workers' PID namespaces failed: {error}");
                        return Err(SurveyError::Unknown(told));
                    }
                    error.to_string()
                }
            },
            Err(Refused::Step(step, error)) if is_refusal(step, &error) => format!("{step}: {error}"),
            Err(refused) => return Err(refused.into_error()),
        };
        self.offered.worker_pids = false;
        self.no_worker_pids = Some(why);
        Ok(())
    }

    async fn attempt_siblings(&self, spawner: &dyn Spawner, folder: &Folder) -> Result<Outcomes, Refused> {
        let parts = folder.parts();
        let (policy, user) = (self.policy(folder, Network::Open), drawn()?);
        let worker = policy.forked_worker(Some(user), folder.run(&parts), None, Zygote::Base);
        let worker = worker.encode().map_err(|error| Refused::Other(error.to_string()))?;
        tried(spawner, policy.base_zygote(), "/".into(), folder.trial(Some(worker))).await
    }

    fn policy(&self, folder: &Folder, network: Network) -> Policy {
        let places = Places {
            node: "/dev/null".into(),
            scripts: folder.own.clone(),
            library: None,
            runs: folder.own.clone(),
            root: folder.root.clone(),
            ..Places::default()
        };
        Policy::new(self.offered, places, network, TRIAL_TASKS, Some(TRIAL_ROOM))
    }
}

fn drawn() -> Result<u32, Refused> {
    identity::draw().map_err(|error| Refused::Other(error.to_string()))
}

/// What a child under this plan tells.
async fn tried(spawner: &dyn Spawner, plan: Plan, cwd: PathBuf, trial: Trial) -> Result<Outcomes, Refused> {
    let command = Command {
        program: "trial".into(),
        cwd,
        confinement: Some(Arc::new(plan)),
        attend: Some(attend()),
        trial: Some(trial),
        ..Command::default()
    };
    let mut started = spawner.spawn(command).await.map_err(|error| match error {
        SpawnError::Step { step, source, .. } => Refused::Step(step, source),
        SpawnError::LauncherUnavailable { passing: false, .. } => Refused::NoLauncher(error.to_string()),
        other => Refused::Other(other.to_string()),
    })?;
    let mut text = String::new();
    let mut stdout = (&mut started.stdout).take(MAX_OUTCOME_BYTES);
    match tokio::time::timeout(TRIAL_LIMIT, stdout.read_to_string(&mut text)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(Refused::Other(error.to_string())),
        Err(_) => return Err(Refused::Other("a trial did not end".to_owned())),
    }
    Outcomes::decode(&text).ok_or_else(|| Refused::Other("a trial ended early".to_owned()))
}

/// Who answers a trial: one port is allowed.
fn attend() -> Arc<dyn Attend> {
    let rules = Rules::only(SocketAddr::from((Ipv4Addr::LOCALHOST, ALLOWED_PORT)));
    Arc::new(Egress::default()).attendant(vec![Arc::new(rules)], String::new())
}

enum Refused {
    Step(&'static str, io::Error),
    NoLauncher(String),
    Other(String),
}

impl Refused {
    fn into_error(self) -> SurveyError {
        match self {
            Self::Step(step, error) => SurveyError::Unknown(format!("a trial failed at {step}: {error}")),
            Self::NoLauncher(reason) => SurveyError::NoLauncher(reason),
            Self::Other(reason) => SurveyError::Unknown(reason),
        }
    }
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path)
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> SurveyError {
    SurveyError::Unknown(format!("cannot {what} {}: {error}", path.display()))
}

/// Whether the kernel says that it does not have something, or does not let it be used.
fn is_no(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP))
}

/// Whether a step that failed with this error was refused for good. A security module answers `EACCES` to mounts (`AppArmor`) and to new
/// user namespaces (`SELinux`), and a container's filter to any call; where a step also looks up paths, as Landlock's does, `EACCES`
/// tells of these. `ENODEV` of a mount is a file system that the kernel was built without.
fn is_refusal(step: &str, error: &io::Error) -> bool {
    if is_no(error) {
        return true;
    }
    match (step, error.raw_os_error()) {
        ("seccomp listener", Some(libc::EACCES | libc::EBUSY))
        | ("seccomp" | "unshare" | "PID namespace", Some(libc::EACCES))
        | ("mount" | "mount of /proc" | "mount of run folders", Some(libc::EACCES | libc::ENODEV)) => true,
        // A limit of namespaces is reached, which passes, unless it is zero.
        ("unshare" | "PID namespace", Some(libc::ENOSPC | libc::EUSERS)) => namespaces_are_off(),
        _ => false,
    }
}

/// Whether the machine's operator has set a limit of namespaces to none.
fn namespaces_are_off() -> bool {
    ["user", "mnt", "pid", "ipc", "uts", "net"].into_iter().any(|kind| {
        read(&format!("/proc/sys/user/max_{kind}_namespaces")).is_ok_and(|limit| limit.trim() == "0")
    })
}

/// A folder with a file that everybody may read and a folder of the child's own. Goes when it is dropped.
struct Folder {
    dir: PathBuf,
    canary: PathBuf,
    own: PathBuf,
    /// In it.
    run: PathBuf,
    root: PathBuf,
}

impl Folder {
    fn create(store: &Store) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("trial-").tempdir_in(store.host_dir())?;
        let folder = Self {
            canary: dir.path().join("canary"),
            own: dir.path().join("own"),
            run: dir.path().join("own").join("run"),
            root: dir.path().join("root"),
            dir: dir.keep(),
        };
        open_to_all(&folder.dir)?;
        fs::write(&folder.canary, "readable")?;
        fs::set_permissions(&folder.canary, fs::Permissions::from_mode(0o644))?;
        fs::create_dir(&folder.own)?;
        fs::create_dir(&folder.run)?;
        open_to_all(&folder.run)?;
        for part in folder.parts() {
            fs::create_dir(&part)?;
            open_to_all(&part)?;
        }
        fs::create_dir(&folder.root)?;
        Ok(folder)
    }

    /// What a run folder has, and is made again where that is in memory.
    fn parts(&self) -> [PathBuf; 2] {
        ["work", "tmp"].map(|part| self.run.join(part))
    }

    fn run<'a>(&'a self, [work, tmp]: &'a [PathBuf; 2]) -> Run<'a> {
        Run { dir: &self.run, own: [work, tmp], cache: None }
    }

    fn trial(&self, worker: Option<Vec<u8>>) -> Trial {
        let canary = std::os::unix::ffi::OsStringExt::into_vec(self.canary.clone().into_os_string());
        Trial {
            canary,
            victim: i32::try_from(std::process::id()).unwrap_or(1),
            room_bytes: TRIAL_ROOM.bytes,
            worker,
        }
    }
}

fn open_to_all(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays goes with the host's folder.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A kernel with what is missing.
const NEWER_KERNEL: &str =
    "Linux 5.13 or newer with Landlock enabled, and a container whose own filter lets it through";

impl Survey {
    /// The layers of the tier confined, each by what came of the attempts.
    pub(super) fn confined_layers(&self) -> Vec<Layer> {
        let tier = Tier::Confined;
        let Some(open) = self.open else {
            let why = self.no_trial.clone().unwrap_or_else(|| "nothing could be tried".to_owned());
            let enable = "let the launcher run: reinstall the package, or put its files launcher.* and zygote.* beside the addon";
            let deciding = ["noNewPrivileges", "capabilities", "files", "systemCalls"];
            let mut layers: Vec<_> = deciding.map(|name| Layer::off(name, tier, why.clone(), enable)).into();
            let others = ["signals", "privateUser", "networkClosed", "networkRules", "metadataAddresses"];
            layers.extend(others.map(|name| Layer::off(name, tier, why.clone(), enable).optional()));
            return layers;
        };
        let is_refused = |attempts: &[Attempt]| attempts.iter().all(|attempt| open.is_refused(*attempt));
        let tried = |name, why: &Option<String>, enable: &str, attempts: &[Attempt]| {
            if let Some(why) = why {
                Layer::off(name, tier, why.clone(), enable)
            } else if is_refused(attempts) {
                Layer::on(name, tier)
            } else {
                Layer::off(
                    name,
                    tier,
                    format!("an attempt was let through: {}", through(open, attempts)),
                    enable,
                )
            }
        };
        let files = [Attempt::Read, Attempt::Write, Attempt::Environment];
        let calls = [Attempt::LocalSocket, Attempt::Trace, Attempt::UserNamespace];
        vec![
            tried("noNewPrivileges", &None, "", &[Attempt::NewPrivileges]),
            capabilities(tried("capabilities", &None, "", &[Attempt::Capability]), open),
            tried("files", &self.no_landlock, NEWER_KERNEL, &files),
            tried("systemCalls", &self.no_seccomp, "a kernel with seccomp filters", &calls),
            tried("signals", &self.no_landlock, "Linux 6.12 or newer", &[Attempt::Signal]).optional(),
            self.private_user(open).optional(),
            self.network_closed().optional(),
            self.network_rules("networkRules").optional(),
            self.network_rules("metadataAddresses").optional(),
        ]
    }

    /// The layers of the tier isolated.
    pub(super) fn isolated_layers(&self, quota: Result<&Quota, &Declined>) -> Vec<Layer> {
        let enable =
            "a container that lets namespaces be made: CAP_SYS_ADMIN, or user namespaces for everybody";
        let tier = Tier::Isolated;
        let own = |name, attempt, host| match (&self.no_trial, &self.no_namespaces, self.open) {
            (Some(why), ..) | (None, Some(why), _) => Layer::off(name, tier, why.clone(), enable),
            (None, None, Some(open)) if is_own(open.get(attempt), host) => Layer::on(name, tier),
            _ => Layer::off(name, tier, "a trial had the host's, or could not tell", enable),
        };
        let mounts = match (&self.no_mounts, &self.no_landlock, self.open) {
            (Some(why), ..) | (None, Some(why), _) => Layer::off("mountNamespace", tier, why.clone(), enable),
            (None, None, Some(open)) if open.is_hidden(Attempt::Read) => Layer::on("mountNamespace", tier),
            _ => {
                let why = self.no_trial.as_ref().or(self.no_namespaces.as_ref()).cloned();
                Layer::off(
                    "mountNamespace",
                    tier,
                    why.unwrap_or_else(|| "a trial saw the host's files".to_owned()),
                    enable,
                )
            }
        };
        vec![
            mounts,
            own("ipcNamespace", Attempt::IpcNamespace, self.namespaces[1]),
            own("utsNamespace", Attempt::UtsNamespace, self.namespaces[2]),
            self.pid_namespace(enable),
            self.disk_quota(quota, enable).optional(),
            // Of each executor's own: see `Ground::with_groups`.
            Layer::off("controlGroup", tier, "not looked for", "").optional(),
        ]
    }

    /// Run folders in memory, with a limit of the kernel's.
    fn disk_quota(&self, quota: Result<&Quota, &Declined>, enable: &str) -> Layer {
        let (name, tier) = ("diskQuota", Tier::Isolated);
        let refused =
            [&self.no_trial, &self.no_namespaces, &self.no_mounts, &self.no_landlock, &self.no_quotas];
        if let Some(why) = refused.into_iter().flatten().next() {
            return Layer::off(name, tier, why.clone(), enable);
        }
        if !self.open.is_some_and(|open| open.is_full(Attempt::Fill)) {
            return Layer::off(name, tier, "a trial wrote more than it may", enable);
        }
        let quota = match quota {
            Ok(quota) => quota,
            Err(declined) => return Layer::off(name, tier, declined.why.clone(), declined.enable),
        };
        let forked = if self.offered.pids {
            ""
        } else {
            "; those of workers that are forked are on the store's disk, as for those there has to be a PID namespace"
        };
        let mebibytes = quota.bytes >> 20;
        Layer::on(name, tier)
            .but(format!("run folders are in memory, each with room for {mebibytes} MiB{forked}"))
    }

    /// Of use with a `/proc` of one's own only, and so with a root of one's own.
    fn pid_namespace(&self, enable: &str) -> Layer {
        let refused =
            [&self.no_trial, &self.no_pids, &self.no_namespaces, &self.no_mounts, &self.no_landlock];
        let why = match (refused.into_iter().flatten().next(), self.open) {
            (Some(why), _) => why.clone(),
            (None, Some(open)) if is_own(open.get(Attempt::PidNamespace), self.namespaces[3]) => {
                let how_far = self.no_worker_pids.as_ref().map_or_else(
                    || "one for each worker, but for those of a tree's zygote, which are in that zygote's".to_owned(),
                    |why| {
                        format!(
                            "one for each worker that is started; those that are forked are in their zygote's, as it cannot give each one of its own here: {why}"
                        )
                    },
                );
                return Layer::on("pidNamespace", Tier::Isolated).but(how_far);
            }
            _ => "a trial had the host's, or could not tell".to_owned(),
        };
        Layer::off("pidNamespace", Tier::Isolated, why, enable)
    }

    fn private_user(&self, open: Outcomes) -> Layer {
        let enable = "run the server as root (a container's will do), with the store and Node in folders that all users can pass through";
        match &self.no_users {
            Some(why) if super::identity::is_closed_folder(why) => {
                let enable = "move what is below that folder (Node, the package or the store) to one that all users can pass through, such as \
                              /opt or /usr/local, or let them pass: chmod o+x";
                Layer::off("privateUser", Tier::Confined, why.clone(), enable)
            }
            Some(why) => Layer::off("privateUser", Tier::Confined, why.clone(), enable),
            None if open.get(Attempt::User) == self.user => {
                Layer::off("privateUser", Tier::Confined, "a trial kept the host's user", enable)
            }
            None => Layer::on("privateUser", Tier::Confined),
        }
    }

    /// What `network: 'none'` comes to here, whether it is asked for or not.
    fn network_closed(&self) -> Layer {
        let enable = "a kernel with seccomp filters";
        let Some(closed) = self.closed.filter(|closed| closed.is_refused(Attempt::Internet)) else {
            let why = self.no_seccomp.clone().unwrap_or_else(|| "a socket was let through".to_owned());
            return Layer::off("networkClosed", Tier::Confined, why, enable);
        };
        let own = is_own(closed.get(Attempt::NetworkNamespace), self.namespaces[0]);
        let by = if own {
            "by a network namespace and by a filter of system calls"
        } else {
            "by a filter of system calls"
        };
        Layer::on("networkClosed", Tier::Confined).but(format!("with network: \"none\", {by}"))
    }
}

/// What would let the host be asked.
const LET_ASK: &str = "Linux 5.9 or newer; in a container with a root server --cap-add SYS_PTRACE, or run the server as a user that is not root";

impl Survey {
    /// Connections one by one, decided by the host.
    fn network_rules(&self, name: &'static str) -> Layer {
        let tier = Tier::Confined;
        match self.no_seccomp.as_ref().or(self.no_asking.as_ref()) {
            Some(why) => Layer::off(name, tier, why.clone(), LET_ASK),
            None if self.offered.asking => Layer::on(name, tier).but(
                "the filter of system calls stops each connection, and the host makes it or refuses it (seccomp_unotify(2))",
            ),
            None => Layer::off(name, tier, "it could not be tried", LET_ASK),
        }
    }
}

/// Whether the inode of a trial's namespace is known, and not the host's.
fn is_own(found: u64, host: u64) -> bool {
    found != 0 && found != host
}

/// How far the layer goes where the bounding set could not be emptied: a process of a user needs a user namespace for that.
fn capabilities(layer: Layer, open: Outcomes) -> Layer {
    if !layer.in_force || open.is_refused(Attempt::Bounding) {
        return layer;
    }
    layer.but(
        "none is held, and none can be gained (noNewPrivileges); the bounding set stays as the server's, as it takes CAP_SETPCAP, or a user namespace, to empty it",
    )
}

fn through(outcomes: Outcomes, attempts: &[Attempt]) -> String {
    let through = attempts.iter().filter(|attempt| !outcomes.is_refused(**attempt));
    through.map(|attempt| format!("{attempt:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    const STEPS: [&str; 8] = [
        "unshare",
        "PID namespace",
        "mount",
        "mount of /proc",
        "mount of run folders",
        "setresuid",
        "landlock",
        "seccomp",
    ];

    #[test]
    fn the_kernels_no_is_one_at_every_step() {
        for step in STEPS {
            for errno in [libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::EOPNOTSUPP] {
                assert!(is_refusal(step, &error(errno)), "{step}: {}", error(errno));
            }
        }
    }

    #[test]
    fn what_may_pass_is_no_refusal_at_any_step() {
        let passing = [
            libc::EAGAIN,
            libc::ENOMEM,
            libc::EMFILE,
            libc::ENFILE,
            libc::EIO,
            libc::EINTR,
            libc::EBUSY,
            libc::ENOENT,
            libc::EDQUOT,
            libc::ETIMEDOUT,
        ];
        for step in STEPS.into_iter().chain(["fork", "pipe", "execve", "posix_spawn", "socketpair", "encode"])
        {
            for errno in passing {
                assert!(!is_refusal(step, &error(errno)), "{step}: {}", error(errno));
            }
        }
        // No room on a disk, where no limit of namespaces is zero.
        for step in ["mount", "mount of run folders", "landlock"] {
            assert!(!is_refusal(step, &error(libc::ENOSPC)), "{step}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_looked_up_is_no_word_about_landlock() {
        assert!(!is_refusal("landlock", &error(libc::EACCES)));
        assert!(is_refusal("mount", &error(libc::EACCES)));
    }

    #[test]
    fn an_unknown_namespace_is_nobodys_own() {
        assert!(is_own(2, 1));
        assert!(!is_own(1, 1) && !is_own(0, 1));
    }
}
