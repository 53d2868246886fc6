//! The plans of one executor's processes: none where nothing can be given up.

#[cfg(target_os = "linux")]
use std::{
    fmt,
    hash::{Hash, Hasher},
};
use std::{path::Path, sync::Arc};

use native_sandbox_confine::Plan;

#[cfg(not(target_os = "linux"))]
use super::report::{Layer, Report};
use super::{NpmPlaces, identity};
#[cfg(target_os = "linux")]
use super::{
    policy::{Places, Policy, Run, Zygote},
    quota::{Declined, Quota},
    report::{Layer, Report},
    survey::Survey,
};
#[cfg(target_os = "linux")]
use crate::{
    config::Network,
    egress::{Caller, Egress, Known, Rules},
    process::{Attend, Process},
    store::compile_cache::CacheLink,
};
use crate::{
    config::Tier,
    group::{CallGroups, Found, Group, find::ENABLE},
    store::RunFolder,
};

/// What the processes of an executor are put under. Equal shields make equal plans.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Shield {
    #[cfg(target_os = "linux")]
    policy: Option<Policy>,
    /// Who answers what their filters ask.
    #[cfg(target_os = "linux")]
    network: Option<Asked>,
    groups: Option<CallGroups>,
}

/// Who is asked about connections, and by which rules they answer. Compared by the rules.
#[cfg(target_os = "linux")]
#[derive(Clone)]
pub struct Asked {
    /// All callers of the process.
    pub egress: Arc<Egress>,
    /// What the executor allows.
    pub rules: Arc<Rules>,
}

#[cfg(target_os = "linux")]
impl PartialEq for Asked {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

#[cfg(target_os = "linux")]
impl Eq for Asked {}

#[cfg(target_os = "linux")]
impl Hash for Asked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rules.hash(state);
    }
}

#[cfg(target_os = "linux")]
impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)
    }
}

/// What an executor's isolation comes to.
#[derive(Debug, Clone)]
pub struct Ground {
    /// The plans.
    pub shield: Arc<Shield>,
    /// What is in force.
    pub report: Report,
}

impl Shield {
    /// A user for a process, or for a zygote and its workers, that nobody else has; `None` where processes keep the host's.
    pub fn draw_user(&self) -> Result<Option<u32>, getrandom::Error> {
        if self.gives_users() { identity::draw().map(Some) } else { Ok(None) }
    }

    /// A control group for a process and all that it starts; `None` where processes stay in the host's. Where groups can be had,
    /// a process that gets none must not run: the error says why.
    pub async fn group(&self) -> Result<Option<Arc<Group>>, String> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let made = groups.make().await;
        made.map(Some).map_err(|error| format!("its control group cannot be made: {error}"))
    }
}

impl Ground {
    /// With control groups, or why there are none.
    #[must_use]
    pub fn with_groups(mut self, found: Found) -> Self {
        let tier = Tier::Isolated;
        let layer = match &found {
            Ok(groups) => Layer::on("controlGroup", tier).but(groups.told()),
            Err(refusal) => Layer::off("controlGroup", tier, refusal.why.clone(), ENABLE),
        };
        self.report.replace(layer.optional());
        Arc::make_mut(&mut self.shield).groups = found.ok();
        self
    }

    /// Whether the processors of a call can be limited.
    pub fn limits_processors(&self) -> bool {
        self.shield.groups.as_ref().is_some_and(CallGroups::limits_processors)
    }
}

#[cfg(not(target_os = "linux"))]
impl Shield {
    /// Nobody is asked.
    #[cfg(unix)]
    pub fn attend(&self, _: &str) -> Option<Arc<dyn crate::process::Attend>> {
        None
    }

    /// Nobody is asked.
    #[cfg(unix)]
    pub fn attend_npm(&self, _: &[String], _: bool) -> Option<Arc<dyn crate::process::Attend>> {
        None
    }

    /// They are looked up as anywhere.
    pub fn looks_up_names(&self) -> bool {
        false
    }

    /// Whether it gives any.
    pub fn gives_users(&self) -> bool {
        false
    }

    /// Nothing is.
    pub fn guards_trees(&self) -> bool {
        false
    }

    /// Nothing.
    pub fn worker(&self, _: Option<u32>, _: &RunFolder, _: Option<&Path>) -> Option<Arc<Plan>> {
        None
    }

    /// None does.
    pub fn workers_make_run_folders(&self) -> bool {
        false
    }

    /// All are.
    #[must_use]
    pub fn on_disk(&self) -> Self {
        self.clone()
    }

    /// None has.
    pub fn forked_workers_have_own_root(&self) -> bool {
        false
    }

    /// Nothing is confined, so nothing is ignored.
    pub fn ignores_modes(&self, _: Option<u32>, _: &NpmPlaces) -> bool {
        false
    }

    /// Nothing.
    pub fn npm_install(&self, _: Option<u32>, _: &NpmPlaces) -> Option<Arc<Plan>> {
        None
    }

    /// Nothing.
    pub fn npm_rebuild(&self, _: Option<u32>, _: &NpmPlaces) -> Option<Arc<Plan>> {
        None
    }
}

#[cfg(target_os = "linux")]
impl Shield {
    /// Whether processes get users that nobody else has.
    pub fn gives_users(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.offered.private_users)
    }

    /// Who answers what a process asks that is started for this; none where none asks.
    pub fn attend(&self, what: &str) -> Option<Arc<dyn Attend>> {
        let Asked { egress, rules } = self.asked()?;
        Some(egress.attendant(vec![Arc::clone(rules)], what.to_owned()))
    }

    /// Who answers what npm asks: where not all is open, it may connect to these hosts, wherever they are, and to nothing else. Where it may
    /// need git, also to what functions may connect to, and to local sockets.
    pub fn attend_npm(&self, hosts: &[String], may_need_git: bool) -> Option<Arc<dyn Attend>> {
        let Asked { egress, rules } = self.asked()?;
        if may_need_git {
            let rules = Arc::new(rules.with_hosts(hosts));
            return Some(egress.attendant_with_local_sockets(vec![rules], "npm".to_owned()));
        }
        let rules = if rules.is_restricted() { Arc::new(Rules::of_hosts(hosts)) } else { Arc::clone(rules) };
        Some(egress.attendant(vec![rules], "npm".to_owned()))
    }

    /// Whether names are looked up by the host, over TCP.
    pub fn looks_up_names(&self) -> bool {
        self.asked().is_some_and(|asked| asked.rules.is_restricted())
    }

    fn asked(&self) -> Option<&Asked> {
        self.network.as_ref().filter(|_| self.policy.as_ref().is_some_and(Policy::asks))
    }

    /// A call, under the executor's rules and its own; none where nobody is asked.
    pub fn caller(&self, own: Option<Arc<Rules>>, name: &str) -> Option<Arc<Caller>> {
        let Asked { egress, rules } = self.asked()?;
        Some(egress.caller([Arc::clone(rules)].into_iter().chain(own).collect(), name.to_owned()))
    }

    /// What this process and all below it asks for is the caller's, until what this gives is dropped.
    pub fn know(&self, caller: Arc<Caller>, process: &Process) -> Option<Known> {
        let Asked { egress, .. } = self.asked()?;
        let number = i32::try_from(process.pid()).ok().filter(|number| *number > 1)?;
        Some(egress.know(caller, number, process.mark()))
    }

    /// Whether no process that it is for can write to a tree, nor to what lies beside it, whatever it does.
    pub fn guards_trees(&self) -> bool {
        self.gives_users() || self.policy.as_ref().is_some_and(|policy| policy.offered.landlock_abi > 0)
    }

    /// See [`Policy::worker`].
    pub fn worker(&self, user: Option<u32>, run: &RunFolder, tree: Option<&Path>) -> Option<Arc<Plan>> {
        self.of_run(run, |policy, run| policy.worker(user, run, tree))
    }

    /// See [`Policy::forked_worker`].
    pub fn forked_worker(
        &self,
        user: Option<u32>,
        run: &RunFolder,
        tree: Option<&Path>,
        by: Zygote,
    ) -> Option<Arc<Plan>> {
        self.of_run(run, |policy, run| policy.forked_worker(user, run, tree, by))
    }

    /// Whether a worker that is started makes its run folder itself.
    pub fn workers_make_run_folders(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.quota_of_workers().is_some())
    }

    /// Whether a worker that a base zygote forks makes its run folder itself.
    pub fn forked_workers_make_run_folders(&self) -> bool {
        self.policy.as_ref().is_some_and(Policy::forked_workers_make_run_folders)
    }

    /// Whether a worker that a base zygote forks has a root to itself, which one of a tree's zygote never has.
    pub fn forked_workers_have_own_root(&self) -> bool {
        self.policy.as_ref().is_some_and(Policy::has_worker_pids)
    }

    /// Whether a zygote of a tree has places of its own, in memory, for the run folders of its workers.
    pub fn zygotes_have_run_folders(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.quota_of_zygotes().is_some())
    }

    /// See [`Policy::base_zygote`].
    pub fn base_zygote(&self) -> Option<Arc<Plan>> {
        self.policy.as_ref().map(|policy| Arc::new(policy.base_zygote()))
    }

    /// See [`Policy::dependent_zygote`].
    pub fn dependent_zygote(
        &self,
        user: Option<u32>,
        tree: &Path,
        runs: &Path,
        cache: Option<&CacheLink>,
    ) -> Option<Arc<Plan>> {
        self.policy.as_ref().map(|policy| Arc::new(policy.dependent_zygote(user, tree, runs, cache)))
    }

    /// See [`Policy::compiling_zygote`].
    pub fn compiling_zygote(&self, user: Option<u32>, tree: &Path, run: &Path) -> Option<Arc<Plan>> {
        self.policy.as_ref().map(|policy| Arc::new(policy.compiling_zygote(user, tree, run)))
    }

    /// The same, but for run folders: those are on the store's disk.
    #[must_use]
    pub fn on_disk(&self) -> Self {
        let mut shield = self.clone();
        if let Some(policy) = &mut shield.policy {
            policy.quota = None;
        }
        shield
    }

    /// See [`Policy::npm_install`].
    pub fn npm_install(&self, user: Option<u32>, places: &NpmPlaces) -> Option<Arc<Plan>> {
        self.policy.as_ref().map(|policy| Arc::new(policy.npm_install(user, places)))
    }

    /// See [`Policy::ignores_modes`].
    pub fn ignores_modes(&self, user: Option<u32>, places: &NpmPlaces) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.ignores_modes(user, places))
    }

    /// See [`Policy::npm_rebuild`].
    pub fn npm_rebuild(&self, user: Option<u32>, places: &NpmPlaces) -> Option<Arc<Plan>> {
        self.policy.as_ref().map(|policy| Arc::new(policy.npm_rebuild(user, places)))
    }

    fn of_run(&self, run: &RunFolder, plan: impl FnOnce(&Policy, Run<'_>) -> Plan) -> Option<Arc<Plan>> {
        let policy = self.policy.as_ref()?;
        let (work, tmp) = (run.cwd(), run.tmpdir());
        Some(Arc::new(plan(policy, Run { dir: run.dir(), own: [&work, &tmp], cache: run.cache_link() })))
    }
}

/// The layers that every tier has. `without_launcher` is why there is none.
fn base_layers(without_launcher: Option<&str>) -> Vec<Layer> {
    let by_launcher = |name, what: &str| {
        let on = Layer::on(name, Tier::Base);
        without_launcher.map_or(on.clone(), |reason| on.but(format!("{what}: {reason}")))
    };
    vec![
        Layer::on("processGroup", Tier::Base),
        by_launcher("descriptors", "a descriptor that the host has open without close-on-exec is inherited"),
        Layer::on("environment", Tier::Base),
        Layer::on("runFolder", Tier::Base).but(
            "what the tier base alone does not hide: whatever the host's user can read, /proc and the run folders of other calls included",
        ),
        by_launcher("treeKill", "what a function leaves behind is ended as far as it can be found"),
    ]
}

#[cfg(not(target_os = "linux"))]
impl Ground {
    /// Without Linux there is the tier base.
    pub fn base() -> Self {
        let mut layers = base_layers(Some("needs Linux"));
        for name in ["noNewPrivileges", "capabilities", "files", "systemCalls", "networkClosed"] {
            layers.push(Layer::off(name, Tier::Confined, "needs Linux", "run the server on Linux"));
        }
        for name in ["mountNamespace", "ipcNamespace", "utsNamespace", "pidNamespace"] {
            layers.push(Layer::off(name, Tier::Isolated, "needs Linux", "run the server on Linux"));
        }
        Self { shield: Arc::default(), report: Report::new(layers) }
    }
}

#[cfg(target_os = "linux")]
impl Ground {
    /// From what was found, what is wanted, and where things are. `no_reach` is why another user could not get at what
    /// a worker needs, if so. `tasks`: threads that the user of one call may have. `quota`: how much it may write in memory.
    pub fn new(
        survey: &Survey,
        network: Network,
        places: Places,
        no_reach: Option<String>,
        tasks: u32,
        quota: Result<Quota, Declined>,
        asked: Option<Asked>,
    ) -> Self {
        let mut survey = survey.clone();
        if let Some(reason) = no_reach.filter(|_| survey.offered.private_users) {
            survey.offered.private_users = false;
            survey.no_users = Some(reason);
        }
        let mut layers = base_layers(survey.no_trial.as_deref());
        layers.extend(survey.confined_layers());
        layers.extend(survey.isolated_layers(quota.as_ref()));
        let policy = Policy::new(survey.offered, places, network, tasks, quota.ok());
        let shield =
            Shield { policy: survey.no_trial.is_none().then_some(policy), network: asked, groups: None };
        Self { shield: Arc::new(shield), report: Report::new(layers) }
    }
}
