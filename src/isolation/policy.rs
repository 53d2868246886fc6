//! From what a host offers and what it wants to the plans of its processes. Pure.

use std::{
    collections::BTreeMap,
    ffi::CString,
    hash::{Hash, Hasher},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use native_sandbox_confine::{Contents, Domain, Fixtures, Instruction, Plan, Rule, Scratch};

use super::{
    NpmPlaces, identity,
    landlock::{self, Access, DEVICE, OWN, READ, RUN},
    places,
    quota::Quota,
    seccomp::{self, Modes, Part, Terms},
};
use crate::{
    config::Network,
    store::{
        Store,
        compile_cache::{self, CacheLink},
    },
    sys::is_passing,
};

/// `CAP_*` numbers.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const SETPCAP: u32 = 8;
const SYS_ADMIN: u32 = 21;

/// What a base zygote keeps where its children get users of their own: to make them so, and to end them. It has loaded
/// nobody's code, and its children drop all of it before they do.
const OF_A_BASE: u64 = 1 << KILL | 1 << SETGID | 1 << SETUID | 1 << SETPCAP;

/// And where they get PID namespaces of their own, or are forked into such: of its own user namespace where it has one. With the
/// second, its children give up the bounding set.
const OF_A_BASE_OF_NAMESPACES: u64 = 1 << SYS_ADMIN | 1 << SETPCAP;

/// What npm's first phase keeps where it is root: the cache may belong to another user.
const OF_NPM: u64 = 1 << DAC_OVERRIDE;

/// File systems for run folders that a zygote has mounted where its workers cannot mount their own: as many of its calls, with workers
/// that wait for one, may be there at a time. An empty one takes some 10 KiB of the kernel's memory.
const SLOTS: u32 = 32;

/// How many calls of one tree at a time may use all of their threads, and as far as what number of threads all of them may: the kernel
/// counts by user, and theirs is one. A call that has more than its own share is ended by `gauge`, before it has taken that of
/// its neighbours.
const CALLS_OF_A_TREE: u32 = 4;
const MORE_CALLS_OF_A_TREE: u32 = 32;
const TASKS_OF_A_TREE: u32 = 16_384;

/// `CLONE_NEW*`.
const MOUNT_NAMESPACE: u32 = 0x0002_0000;
const UTS_NAMESPACE: u32 = 0x0400_0000;
const IPC_NAMESPACE: u32 = 0x0800_0000;
const USER_NAMESPACE: u32 = 0x1000_0000;
const PID_NAMESPACE: u32 = 0x2000_0000;
const NETWORK_NAMESPACE: u32 = 0x4000_0000;

/// What the kernel, and whatever this host runs in, let a process give up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each says whether one thing is there")]
pub struct Offered {
    /// The version of Landlock; 0 where there is none.
    pub landlock_abi: u32,
    /// Filters of system calls.
    pub seccomp: bool,
    /// Users that nobody else has.
    pub private_users: bool,
    /// Namespaces of names, of shared memory, of the network.
    pub namespaces: bool,
    /// And of mounts, with a root of one's own.
    pub mounts: bool,
    /// And of processes, with a `/proc` of one's own.
    pub pids: bool,
    /// And in those, a file system in memory with a limit.
    pub quotas: bool,
    /// And such a one for each worker that is forked by a base zygote.
    pub worker_pids: bool,
    /// A filter that asks the host, which sees what is asked.
    pub asking: bool,
    /// They are to be had in a user namespace only: the host is not root.
    pub only_in_user_namespaces: bool,
}

/// Where what processes need of the host lies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Places {
    /// Node's program, without symlinks.
    pub node: PathBuf,
    /// Node's own shared libraries, and certificates that the environment names.
    pub files: Vec<PathBuf>,
    /// The scripts of workers and zygotes.
    pub scripts: PathBuf,
    /// The file of the library inside of zygotes; none where they inherit it.
    pub library: Option<PathBuf>,
    /// Folders of all trees.
    pub trees: Vec<PathBuf>,
    /// The folder of all run folders of this host.
    pub runs: PathBuf,
    /// An empty folder.
    pub root: PathBuf,
}

impl Places {
    /// Looks for them. `env` are variables that Node reads while it boots. Blocks.
    ///
    /// # Errors
    ///
    /// What could not be looked at.
    pub fn find(
        store: &Store,
        base_stores: &[PathBuf],
        node: &Path,
        library: Option<PathBuf>,
        env: &BTreeMap<String, String>,
    ) -> io::Result<Self> {
        let certificates =
            ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"].iter().filter_map(|name| env.get(*name));
        let mut files = places::mapped_libraries()?;
        files.extend(certificates.map(PathBuf::from).filter(|path| path.is_absolute()));
        let node = match node.canonicalize() {
            Err(error) if is_passing(&error) => return Err(error),
            // One that cannot be found cannot be started either.
            found => found.unwrap_or_else(|_| node.to_owned()),
        };
        Ok(Self {
            node,
            files,
            scripts: store.scripts_dir(),
            library,
            trees: store.tree_folders(base_stores),
            runs: store.host_dir().join("runs"),
            root: store.empty_dir(),
        })
    }

    /// Why another user than the host's could not get at what a worker needs, if so. Blocks.
    pub fn no_reach(&self, store: &Store) -> Option<String> {
        let scripts = store.host_dir();
        let closed = [self.node.as_path(), scripts].into_iter().find_map(identity::closed_folder)?;
        Some(identity::told_closed(closed))
    }
}

/// The folders of one call.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Read only: the way to the packages.
    pub dir: &'a Path,
    /// The call's own.
    pub own: [&'a Path; 2],
    /// What leads to a compile cache, for its process to make where that makes the folders.
    pub cache: Option<&'a CacheLink>,
}

/// What an executor's processes are put under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// What there is.
    pub offered: Offered,
    /// Where things are.
    pub places: Places,
    /// What is wanted.
    pub network: Network,
    /// Threads that the user of one call may have.
    pub tasks: u32,
    /// How much calls may write where their run folders are in memory; none: those are on the store's disk.
    pub quota: Option<Quota>,
    forked: Derived,
}

/// What forked processes read, worked out once: it takes some 50 µs, and each worker wants it. It follows from the rest, so policies are
/// not compared by it.
#[derive(Debug, Clone)]
struct Derived(Vec<Rule>);

impl PartialEq for Derived {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Derived {}

impl Hash for Derived {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The zygote that a worker is forked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zygote {
    /// A base, which has loaded nobody's code.
    Base,
    /// That of one tree.
    OfTree,
}

/// Whose children a plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Born {
    /// By exec, from the launcher, which gives nothing up.
    Launched,
    /// By fork, under the domain and the filter of its zygote.
    Forked,
}

impl Policy {
    /// A policy; `tasks` are the threads that the user of one call may have.
    pub fn new(offered: Offered, places: Places, network: Network, tasks: u32, quota: Option<Quota>) -> Self {
        let forked = Derived(system(&places, Born::Forked));
        Self { offered, places, network, tasks, quota, forked }
    }

    /// A worker that the launcher starts. `tree` is the one it may read, if the call has dependencies.
    pub fn worker(&self, user: Option<u32>, run: Run<'_>, tree: Option<&Path>) -> Plan {
        let plan = self.of_worker(Born::Launched, user, run, tree);
        let plan = if self.has_root() { with_fixtures(plan, run) } else { plan };
        let scratch = self
            .quota_of_workers()
            .map(|quota| scratch(&self.places.runs, quota, run_folder(run.dir, tree, false), run.cache));
        Plan { scratch, ..plan }
    }

    /// A worker that a zygote forks. What its zygote is under counts on.
    pub fn forked_worker(&self, user: Option<u32>, run: Run<'_>, tree: Option<&Path>, by: Zygote) -> Plan {
        let plan = self.of_worker(Born::Forked, user, run, tree);
        if by == Zygote::OfTree || !self.has_worker_pids() {
            return plan;
        }
        let scratch = self
            .quota_of_zygotes()
            .map(|quota| scratch(&self.places.runs, quota, run_folder(run.dir, tree, false), None));
        let plan = with_fixtures(plan, run);
        // Its number in a `/proc` is not that of its zygote's namespace.
        Plan { born_nested: true, namespaces: MOUNT_NAMESPACE, scratch, ..plan }
    }

    fn of_worker(&self, born: Born, user: Option<u32>, run: Run<'_>, tree: Option<&Path>) -> Plan {
        let mut rules = self.system(born);
        // A forked one has loaded the worker's script, and without packages there is nothing beside its working and temp folder.
        let has_loaded = born == Born::Forked;
        rules.extend((!has_loaded).then(|| needed(&self.places.scripts, READ)));
        rules.extend((!has_loaded || tree.is_some()).then(|| needed(run.dir, READ)));
        rules.extend(run.own.map(|folder| needed(folder, OWN)));
        rules.extend(tree.map(|tree| needed(tree, RUN)));
        let cached = tree.filter(|_| !has_loaded).map(compile_cache::folder_of);
        rules.extend(cached.map(|folder| optional(&folder, READ)));
        self.plan(born, user, 0, rules, READ, self.terms())
    }

    /// A zygote that has no packages loaded, and will have none: parent of workers without dependencies, and of zygotes
    /// that have.
    pub fn base_zygote(&self) -> Plan {
        let mut rules = self.system(Born::Launched);
        rules.push(needed(&self.places.scripts, READ));
        // One that is not there any more is inherited by then.
        rules.extend(self.places.library.iter().map(|library| optional(library, RUN)));
        rules.extend(self.places.trees.iter().map(|trees| optional(trees, RUN)));
        rules.push(needed(&self.places.runs, OWN));
        // Only each child knows its own number.
        rules.push(optional(Path::new("/proc"), READ));
        let users = if self.offered.private_users { OF_A_BASE } else { 0 };
        let plan = self.plan(Born::Launched, None, users, rules, 0, self.terms());
        // Its children have the places that are made for these.
        let plan = Plan { fixtures: self.has_root().then(|| fixtures(Path::new("/"))), ..plan };
        if !self.has_pids() {
            return Plan { seccomp: self.filter_of_zygote(Part::WithoutDomains), ..plan };
        }
        let scratch = self.quota_of_zygotes().map(|quota| {
            let own = self.has_worker_pids();
            let contents = if own { Contents::Later } else { Contents::Slots(SLOTS) };
            scratch(&self.places.runs, quota, contents, None)
        });
        // The folders in a file system of its children's belong to their users.
        let users = if scratch.is_some() && users != 0 { users | 1 << CHOWN } else { users };
        let plan = Plan { scratch, ..plan };
        // Nobody in a Landlock domain may mount, and what it starts is to have a `/proc` of its own. Its root says the same
        // about files, and it runs nobody's code.
        let domain = plan.landlock.map(|domain| Domain {
            handled_files: 0,
            handled_network: 0,
            scoped: 0,
            own_proc: 0,
            ..domain
        });
        // In a user namespace everybody may make another one.
        let needed = !self.offered.only_in_user_namespaces || self.has_worker_pids();
        let admin = if needed { OF_A_BASE_OF_NAMESPACES } else { 0 };
        let seccomp = self.filter_of_zygote(Part::WithoutNestingAndDomains);
        Plan { landlock: domain, capabilities: users | admin, seccomp, ..plan }
    }

    /// A zygote of one tree: forked from a base, before it loads anything. `runs` is the folder of its workers' folders, where it
    /// makes what leads to a `cache` if that is in memory.
    pub fn dependent_zygote(
        &self,
        user: Option<u32>,
        tree: &Path,
        runs: &Path,
        cache: Option<&CacheLink>,
    ) -> Plan {
        let mut rules = self.system(Born::Forked);
        rules.push(needed(&self.places.scripts, READ));
        rules.push(needed(tree, RUN));
        rules.push(optional(&compile_cache::folder_of(tree), READ));
        rules.push(needed(runs, OWN));
        rules.push(optional(Path::new("/proc"), READ));
        let plan = self.plan(Born::Forked, user, 0, rules, 0, self.terms());
        // Its workers are its user's, too.
        let plan = Plan { tasks: plan.tasks.map(tasks_of_tree), ..plan };
        if !self.has_pids() {
            return Plan { seccomp: Vec::new(), ..plan };
        }
        let plan = Plan { seccomp: self.filter_of_zygote(Part::Nesting), ..plan };
        let own = if self.offered.only_in_user_namespaces { USER_NAMESPACE } else { 0 };
        // Its own lies over that of the base, so that neither it nor its workers see the base's.
        let scratch = self
            .quota_of_zygotes()
            .map(|quota| scratch(&self.places.runs, quota, Contents::Slots(SLOTS), cache));
        // Its workers share its mount namespace, and can have no `/tmp` of their own in it.
        let fixtures = Some(fixtures(Path::new("/")));
        Plan { namespaces: own | MOUNT_NAMESPACE | PID_NAMESPACE, fixtures, scratch, ..plan }
    }

    /// Of one whose workers add the rest to it.
    fn filter_of_zygote(&self, part: Part) -> Vec<Instruction> {
        if self.offered.seccomp { seccomp::filter(self.terms(), part) } else { Vec::new() }
    }

    /// A process that is as such a zygote, but has no workers, and leaves what it makes in a run folder.
    pub fn compiling_zygote(&self, user: Option<u32>, tree: &Path, run: &Path) -> Plan {
        let scratch = self
            .quota_of_zygotes()
            .map(|quota| scratch(&self.places.runs, quota, run_folder(run, None, true), None));
        Plan { scratch, ..self.dependent_zygote(user, tree, run, None) }
    }

    /// npm's first phase: nobody's code runs in it, and if it did, it would find what npm has. Without a `user` that is the host's, whose
    /// cache npm reads and fills; of files outside of a root of its own it changes no modes and owners then.
    pub fn npm_install(&self, user: Option<u32>, places: &NpmPlaces) -> Plan {
        let modes = if self.ignores_modes(user, places) { Modes::Ignored } else { Modes::Free };
        let terms = Terms {
            no_network: false,
            routes: true,
            modes,
            one_user: self.terms().one_user,
            local_sockets: places.reads_all,
            asks: self.asks(),
        };
        let plan = self.npm(user, places, terms);
        let is_host = user.is_none() && !self.offered.only_in_user_namespaces;
        // Installs of one tenant have one user.
        Plan { capabilities: if is_host { OF_NPM } else { 0 }, tasks: plan.tasks.map(tasks_of_tree), ..plan }
    }

    /// npm's second phase: the packages' own scripts.
    pub fn npm_rebuild(&self, user: Option<u32>, places: &NpmPlaces) -> Plan {
        let modes = if self.ignores_modes(user, places) { Modes::Ignored } else { Modes::Free };
        self.npm(user, places, Terms { modes, ..self.terms() })
    }

    /// Whether what npm's second phase makes programs of is none afterwards: it could do that to files of the host's.
    pub fn ignores_modes(&self, user: Option<u32>, places: &NpmPlaces) -> bool {
        self.offered.seccomp && user.is_none() && (places.reads_all || !self.has_root())
    }

    fn npm(&self, user: Option<u32>, places: &NpmPlaces, terms: Terms) -> Plan {
        let mut rules = self.system(Born::Launched);
        rules.extend(places.own.iter().map(|folder| needed(folder, OWN)));
        rules.extend(places.read.iter().map(|folder| optional(folder, RUN)));
        if places.reads_all {
            rules.push(needed(Path::new("/"), RUN));
        }
        let plan = self.plan(Born::Launched, user, 0, rules, READ, terms);
        if places.reads_all {
            // There is no root to build where everything is in it.
            let namespaces = plan.namespaces & !(MOUNT_NAMESPACE | PID_NAMESPACE);
            return Plan { root: None, namespaces, ..plan };
        }
        plan
    }

    fn terms(&self) -> Terms {
        let no_network = self.network == Network::None;
        Terms {
            no_network,
            // In a network namespace of one's own there is nothing to be told.
            routes: !no_network || self.offered.namespaces,
            modes: if self.offered.private_users { Modes::Free } else { Modes::Refused },
            one_user: !self.offered.private_users,
            local_sockets: false,
            asks: self.asks(),
        }
    }

    /// Whether the host is asked about connections. Without a network there are none.
    pub(super) fn asks(&self) -> bool {
        self.offered.asking && self.offered.seccomp && self.network == Network::Open
    }

    fn system(&self, born: Born) -> Vec<Rule> {
        match born {
            Born::Forked => self.forked.0.clone(),
            Born::Launched => system(&self.places, born),
        }
    }
    /// What there is in such a root is what a domain allows.
    fn has_root(&self) -> bool {
        self.offered.mounts && self.offered.namespaces && self.offered.landlock_abi > 0
    }

    /// The limits of run folders in memory, of workers that have a root of their own.
    pub(super) fn quota_of_workers(&self) -> Option<Quota> {
        self.quota.filter(|_| self.offered.quotas && self.has_root())
    }

    /// And of those that zygotes fork: only who gets a PID namespace may mount when its base serves already.
    pub(super) fn quota_of_zygotes(&self) -> Option<Quota> {
        self.quota_of_workers().filter(|_| self.has_pids())
    }

    /// Whether workers that a base zygote forks make their run folders, as those do that are started.
    pub(super) fn forked_workers_make_run_folders(&self) -> bool {
        self.has_worker_pids() && self.quota_of_zygotes().is_some()
    }

    fn has_pids(&self) -> bool {
        self.offered.pids && self.has_root()
    }

    /// Whether workers that a base zygote forks have a root of their own, as those have that are started.
    pub(super) fn has_worker_pids(&self) -> bool {
        self.offered.worker_pids && self.has_pids()
    }

    fn namespaces(&self, terms: Terms) -> u32 {
        if !self.offered.namespaces {
            return 0;
        }
        let user = if self.offered.only_in_user_namespaces { USER_NAMESPACE } else { 0 };
        let network = if terms.no_network { NETWORK_NAMESPACE } else { 0 };
        let mounts = if self.has_root() { MOUNT_NAMESPACE } else { 0 };
        let pids = if self.has_pids() { PID_NAMESPACE } else { 0 };
        user | network | mounts | pids | IPC_NAMESPACE | UTS_NAMESPACE
    }

    fn plan(
        &self,
        born: Born,
        user: Option<u32>,
        capabilities: u64,
        rules: Vec<Rule>,
        own_proc: Access,
        terms: Terms,
    ) -> Plan {
        let Offered { landlock_abi: abi, seccomp, private_users, .. } = self.offered;
        let domain = Domain {
            handled_files: landlock::all_files(abi),
            handled_network: if terms.no_network { landlock::all_tcp(abi) } else { 0 },
            scoped: landlock::all_scopes(abi),
            own_proc,
            rules,
        };
        // A forked process has the filter, and the namespaces, of its zygote.
        let is_first = born == Born::Launched;
        let part = match (born, self.has_pids()) {
            (Born::Launched, _) => Part::Whole,
            // Its zygote was left what namespaces and domains are made with.
            (Born::Forked, true) => Part::NestingAndDomains,
            (Born::Forked, false) => Part::Domains,
        };
        Plan {
            namespaces: if is_first { self.namespaces(terms) } else { 0 },
            root: (is_first && self.has_root()).then(|| text(&self.places.root)),
            fixtures: None,
            scratch: None,
            identity: user.filter(|_| private_users),
            tasks: user.filter(|_| private_users).map(|_| self.tasks),
            capabilities,
            landlock: (abi > 0).then_some(domain),
            born_nested: false,
            // What is forked is under the filter of its zygote, which asks for it.
            listener: terms.asks && is_first,
            seccomp: if seccomp { seccomp::filter(terms, part) } else { Vec::new() },
        }
    }
}

/// Threads of all calls of a tree together, for so many of one.
fn tasks_of_tree(tasks: u32) -> u32 {
    let many = tasks.saturating_mul(MORE_CALLS_OF_A_TREE).min(TASKS_OF_A_TREE);
    many.max(tasks.saturating_mul(CALLS_OF_A_TREE))
}

/// What every process reads. A forked one is under its zygote's exact rules already: to it the folders at the top count,
/// which are few, but for those in which there is more than its zygote needs itself.
fn system(all: &Places, born: Born) -> Vec<Rule> {
    let node = places::of_node(&all.node);
    let exact = places::PROGRAMS
        .iter()
        .map(|path| (PathBuf::from(path), RUN))
        .chain(places::DATA.iter().map(|path| (PathBuf::from(path), READ)))
        .chain(node.into_iter().chain(all.files.iter().cloned()).map(|path| (path, RUN)));
    let mut rules: Vec<Rule> = Vec::new();
    for (path, access) in exact {
        let path = if born == Born::Forked { widened(all, &path) } else { path };
        let access = if born == Born::Forked && path.components().count() == 2 { RUN } else { access };
        let rule = optional(&path, access);
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules.extend(places::DEVICES.iter().map(|path| optional(Path::new(path), DEVICE)));
    rules
}

fn widened(all: &Places, path: &Path) -> PathBuf {
    let mut ancestors: Vec<_> = path.ancestors().collect();
    ancestors.pop();
    // Of `/tmp` a worker has its own.
    let is_whole = |top: &&&Path| !places::NOT_WIDENED.contains(&top.to_str().unwrap_or_default());
    let Some(top) = ancestors.last().filter(is_whole) else {
        return path.to_owned();
    };
    let is_shared = |folder: &PathBuf| folder.starts_with(top);
    if all.trees.iter().chain([&all.runs]).any(is_shared) { path.to_owned() } else { (*top).to_owned() }
}

/// Without what only a process with a mount namespace to itself can have.
fn fixtures(home: &Path) -> Fixtures {
    Fixtures { home: text(home), tmp: None }
}

/// For a worker that is alone in its mount namespace.
fn with_fixtures(mut plan: Plan, run: Run<'_>) -> Plan {
    let [work, tmp] = run.own;
    plan.fixtures = Some(Fixtures { tmp: Some(text(tmp)), ..fixtures(work) });
    if let Some(domain) = &mut plan.landlock {
        // Not one that its zygote has open: what is mounted there is its own. The folder is in each root.
        domain.rules.push(needed(Path::new(places::TERMINALS), DEVICE | READ));
    }
    plan
}

fn needed(path: &Path, access: Access) -> Rule {
    Rule { needed: true, ..optional(path, access) }
}

/// One that its process makes.
fn run_folder(dir: &Path, tree: Option<&Path>, is_shown: bool) -> Contents {
    let name = text(Path::new(dir.file_name().unwrap_or_default()));
    Contents::RunFolder { name, packages: tree.map(|tree| text(&tree.join("node_modules"))), is_shown }
}

fn scratch(path: &Path, quota: Quota, contents: Contents, cache: Option<&CacheLink>) -> Scratch {
    let cache = cache.map(|cache| native_sandbox_confine::CacheLink {
        folder: text(Path::new(CacheLink::folder())),
        name: text(Path::new(&cache.name)),
        target: text(&cache.target),
    });
    Scratch { path: text(path), bytes: quota.bytes, files: quota.files, contents, cache }
}

/// A path with a NUL byte is none that the kernel could open either.
fn optional(path: &Path, access: Access) -> Rule {
    Rule { path: text(path), access, needed: false }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn policy(private_users: bool, network: Network) -> Policy {
        Policy::new(
            Offered {
                landlock_abi: 7,
                seccomp: true,
                private_users,
                namespaces: true,
                mounts: true,
                pids: true,
                quotas: true,
                worker_pids: true,
                asking: true,
                only_in_user_namespaces: !private_users,
            },
            Places {
                node: "/opt/node/bin/node".into(),
                files: vec!["/srv/ca.pem".into()],
                scripts: "/tmp/store/runtime/1".into(),
                library: Some("/srv/app/node_modules/sandbox/zygote".into()),
                trees: vec!["/tmp/store/trees".into()],
                runs: "/tmp/store/hosts/1/runs".into(),
                root: "/tmp/store/hosts/1/empty".into(),
            },
            network,
            100,
            Some(Quota { bytes: 1000, files: 10 }),
        )
    }

    const RUN_FOLDER: &str = "/tmp/store/hosts/1/runs/a";

    fn run(own: &[PathBuf; 2]) -> Run<'_> {
        Run { dir: Path::new(RUN_FOLDER), own: [&own[0], &own[1]], cache: None }
    }

    fn cache() -> CacheLink {
        CacheLink { name: "v22-7".to_owned(), target: "/tmp/store/trees/k/1/compile-cache/0/code".into() }
    }

    fn own() -> [PathBuf; 2] {
        ["work", "tmp"].map(|part| Path::new(RUN_FOLDER).join(part))
    }

    fn shown(plan: &Plan) -> String {
        let mut text = format!(
            "  namespaces {:#x}{}, root {:?}, user {:?} (threads {:?}), capabilities {:#x}, filter {}\n",
            plan.namespaces,
            if plan.born_nested { " (born nested)" } else { "" },
            plan.root,
            plan.identity,
            plan.tasks,
            plan.capabilities,
            match plan.seccomp.len() {
                0 => "none",
                1..20 => "of nesting",
                _ if plan.listener => "that asks",
                _ => "yes",
            },
        );
        if let Some(Fixtures { home, tmp }) = &plan.fixtures {
            writeln!(text, "  home {home:?}, /tmp {tmp:?}").unwrap();
        }
        if let Some(Scratch { path, bytes, files, contents, cache }) = &plan.scratch {
            writeln!(text, "  in memory: {path:?}, {bytes} bytes, {files} files, {contents:?}").unwrap();
            if let Some(native_sandbox_confine::CacheLink { folder, name, target }) = cache {
                writeln!(text, "    {folder:?}: {name:?} leads to {target:?}").unwrap();
            }
        }
        if let Some(domain) = &plan.landlock {
            writeln!(
                text,
                "  handles {:#x}, tcp {:#x}, scopes {:#x}, own /proc {:#x}",
                domain.handled_files, domain.handled_network, domain.scoped, domain.own_proc
            )
            .unwrap();
            for rule in &domain.rules {
                let needed = if rule.needed { ", needed" } else { "" };
                writeln!(text, "    {} {:#x}{needed}", rule.path.to_string_lossy(), rule.access).unwrap();
            }
        }
        text
    }

    #[test]
    fn the_plans_are_what_they_were() {
        let own = own();
        let tree = Path::new("/tmp/store/trees/k/1/tree");
        let npm = NpmPlaces {
            own: vec!["/tmp/store/staging/1".into(), "/srv/cache".into()],
            read: vec!["/opt/node/lib/node_modules/npm".into()],
            reads_all: false,
        };
        let mut text = String::new();
        for (name, policy) in
            [("root", policy(true, Network::Open)), ("user, no network", policy(false, Network::None))]
        {
            let user = Some(1_900_000_000);
            for (kind, plan) in [
                ("worker", policy.worker(user, Run { cache: Some(&cache()), ..run(&own) }, Some(tree))),
                ("base zygote", policy.base_zygote()),
                ("forked worker", policy.forked_worker(user, run(&own), None, Zygote::Base)),
                (
                    "forked worker of a tree",
                    policy.forked_worker(user, run(&own), Some(tree), Zygote::OfTree),
                ),
                (
                    "dependent zygote",
                    policy.dependent_zygote(
                        user,
                        tree,
                        Path::new("/tmp/store/hosts/1/runs/z"),
                        Some(&cache()),
                    ),
                ),
                (
                    "compiling zygote",
                    policy.compiling_zygote(user, tree, Path::new("/tmp/store/hosts/1/runs/c")),
                ),
                ("npm install", policy.npm_install(user, &npm)),
                ("npm install by the host's user", policy.npm_install(None, &npm)),
                ("npm rebuild", policy.npm_rebuild(user, &npm)),
            ] {
                write!(text, "{name}: {kind}\n{}", shown(&plan)).unwrap();
            }
        }
        super::super::snapshot::check("plans.txt", &text);
    }

    #[test]
    fn every_plan_fits_into_its_packet() {
        let own = own();
        for plan in [
            policy(false, Network::Open).worker(None, run(&own), None),
            policy(false, Network::Open).base_zygote(),
        ] {
            assert!(plan.encode().unwrap().len() < native_sandbox_confine::MAX_PLAN_BYTES / 2);
        }
    }

    #[test]
    fn without_pid_namespaces_a_base_zygote_is_in_a_domain_and_its_children_in_its_namespaces() {
        let mut policy = policy(true, Network::Open);
        policy.offered.pids = false;
        let (base, tree) = (policy.base_zygote(), Path::new("/t"));
        assert!(!base.is_nested() && !base.landlock.unwrap().is_empty());
        assert_eq!(base.capabilities, OF_A_BASE);
        let dependent = policy.dependent_zygote(Some(1), tree, tree, None);
        assert_eq!((dependent.namespaces, dependent.seccomp.len()), (0, 0));
        // And what needs another layer is not there without it.
        policy.offered = Offered { pids: true, mounts: false, ..policy.offered };
        assert!(!policy.base_zygote().is_nested());
    }

    #[test]
    fn run_folders_are_in_memory_where_there_is_a_namespace_of_mounts_and_a_limit() {
        let (own, tree) = (own(), Path::new("/t"));
        let has = |policy: &Policy| {
            [
                policy.worker(None, run(&own), None),
                policy.base_zygote(),
                policy.dependent_zygote(None, tree, tree, None),
                policy.forked_worker(None, run(&own), None, Zygote::Base),
                policy.npm_rebuild(None, &NpmPlaces::default()),
            ]
            .map(|plan| plan.scratch.is_some())
        };
        let whole = policy(true, Network::Open);
        assert_eq!(has(&whole), [true, true, true, true, false]);
        let with = |offered| has(&Policy { offered, ..whole.clone() });
        assert_eq!(with(Offered { worker_pids: false, ..whole.offered }), [true, true, true, false, false]);
        assert_eq!(with(Offered { pids: false, ..whole.offered }), [true, false, false, false, false]);
        assert_eq!(with(Offered { mounts: false, ..whole.offered }), [false; 5]);
        assert_eq!(with(Offered { quotas: false, ..whole.offered }), [false; 5]);
        assert_eq!(has(&Policy { quota: None, ..whole.clone() }), [false; 5]);
    }

    #[test]
    fn nothing_that_runs_the_code_of_others_may_make_namespaces() {
        let own = own();
        for policy in [policy(true, Network::Open), policy(false, Network::None)] {
            let whole = policy.worker(None, run(&own), None).seccomp.len();
            let rest = policy.forked_worker(None, run(&own), None, Zygote::Base).seccomp;
            assert_eq!(rest, policy.forked_worker(None, run(&own), None, Zygote::OfTree).seccomp);
            // Its workers are put under domains of their own.
            let of_tree = policy.dependent_zygote(None, Path::new("/t"), Path::new("/r"), None).seccomp;
            assert!(!of_tree.is_empty() && of_tree.len() < rest.len());
            assert!(!rest.is_empty() && policy.base_zygote().seccomp.len() < whole);
        }
    }

    #[test]
    fn nothing_that_runs_the_code_of_others_keeps_a_capability() {
        let own = own();
        let policy = policy(true, Network::Open);
        for plan in [
            policy.worker(Some(1), run(&own), None),
            policy.forked_worker(Some(1), run(&own), None, Zygote::Base),
            policy.dependent_zygote(Some(1), Path::new("/t"), Path::new("/r"), None),
            policy.npm_rebuild(Some(1), &NpmPlaces::default()),
        ] {
            assert_eq!((plan.capabilities, plan.identity), (0, Some(1)));
        }
    }

    #[test]
    fn an_older_kernel_is_asked_for_no_more_than_it_knows() {
        let own = own();
        for (abi, files, tcp, scopes) in [
            (1, 0x1fff, 0, 0),
            (2, 0x3fff, 0, 0),
            (3, 0x7fff, 0, 0),
            (4, 0x7fff, 3, 0),
            (5, 0xffff, 3, 0),
            (6, 0xffff, 3, 3),
        ] {
            let mut policy = policy(false, Network::None);
            policy.offered.landlock_abi = abi;
            let domain = policy.worker(None, run(&own), None).landlock.unwrap();
            assert_eq!((domain.handled_files, domain.handled_network, domain.scoped), (files, tcp, scopes));
        }
        let mut bare = policy(false, Network::Open);
        bare.offered = Offered::default();
        assert_eq!(bare.worker(Some(1), run(&own), None), Plan::default());
    }
}
