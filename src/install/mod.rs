//! From a dependency set to a published tree: policy, `package.json`, npm in two phases, one rename.
//!
//! Phase 1 (`npm install --ignore-scripts`) has the user's npm settings, cache and exactly the variables that these
//! settings name; it gets packages of the registry only, unless policy allows others. Phase 2 (`npm rebuild`) runs the packages' own
//! code and has none of them, but for settings that builds need. Both are bounded; an optional package that cannot be built is left out.

mod bounds;
#[cfg_attr(not(target_os = "linux"), path = "first_phase_none.rs")]
mod first_phase;
mod lockfile;
mod look;
mod manifest;
mod npm;
mod npmrc;
pub mod policy;
mod range;
mod redact;
mod scope;
mod scripts;
mod tail;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use native_sandbox_confine::Plan;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{runtime::Handle, task, time};

pub use bounds::Bounds;
pub use look::npm_report;
pub(crate) use npm::DEFAULT_PATH;
pub use policy::{DependencyPolicy, ExtraSpec, NamePattern};
pub use scope::{Scope, abi, can_change};
pub use scripts::InstallScripts;

use bounds::Watch;
use first_phase::FirstPhase;
use lockfile::{Lockfile, MAX_LOCKFILE_BYTES};
use manifest::Scripts;
use npm::{Npm, Scratch};
use npmrc::Settings;
use redact::redact;
use tail::Tail;

use crate::{
    egress::RESOLVER_OPTION,
    error::{Code, Phase, SandboxError},
    gauge,
    isolation::{self, NpmPlaces, Shield},
    log,
    process::{Attend, Command, ExitStatus, Limits, Process, Spawner},
    store::{
        About, Staging, Store, StoreError, Tree, TreeKey,
        reading::{read_below, replace_file},
        remove_dir,
    },
};

/// What npm resolved, in a tree.
const LOCKFILE: &str = "package-lock.json";
/// In a tree, the home folder of its packages' install scripts. `worker.cjs` knows it, too.
const HOME_OF_SCRIPTS: &str = ".home";
/// What is kept of npm's stderr: its end.
pub const MAX_STDERR_BYTES: usize = 64 * 1024;
/// How long a killed npm may take to be gone before its folder is removed under it.
const GONE_WAIT: Duration = Duration::from_secs(10);
/// How long npm's pipes may stay open after its tree is gone: only something that got out of the tree holds them.
const PIPES_WAIT: Duration = Duration::from_secs(1);

/// What an install needs to know besides the dependencies. Cheap to clone.
#[derive(Clone)]
pub struct InstallContext {
    /// Starts npm.
    pub spawner: Arc<dyn Spawner>,
    /// What npm is put under.
    pub shield: Arc<Shield>,
    /// Where trees go.
    pub store: Store,
    /// The Node that runs npm and, later, the tool. Absolute.
    pub node: PathBuf,
    /// The `npmPath` option: npm's program, its `npm-cli.js`, or its folder.
    pub npm_path: Option<PathBuf>,
    /// The host's environment; what npm gets of it is chosen here.
    pub env: Arc<BTreeMap<String, String>>,
    /// What may be asked for.
    pub policy: DependencyPolicy,
    /// Whose install scripts run.
    pub install_scripts: InstallScripts,
    /// For all of npm's work together.
    pub timeout: Duration,
    /// What trees are for, [`Scope::about`], once it is known: written down with each.
    pub about: Arc<OnceLock<serde_json::Value>>,
    /// What it may use of the machine.
    pub bounds: Bounds,
}

impl fmt::Debug for InstallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the environment: it holds secrets.
        f.debug_struct("InstallContext").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Installs `dependencies` and publishes the tree as the newest of `key`. Without dependencies no npm runs.
///
/// Fails with `INVALID_DEPENDENCY`, `INSTALL_FAILED` or `INSTALL_TIMEOUT`. Dropping the future kills npm's whole tree
/// and leaves nothing: the staging folder goes once the processes have.
pub async fn install(
    ctx: &InstallContext,
    dependencies: &BTreeMap<String, String>,
    key: &TreeKey,
) -> Result<Tree, SandboxError> {
    policy::check(dependencies, &ctx.policy)?;
    let started = time::Instant::now();
    let mut attempt = Attempt::begin(ctx).await?;
    match time::timeout(ctx.timeout, Box::pin(attempt.run(ctx, dependencies))).await {
        Ok(done) => done?,
        Err(_) => return Err(attempt.timed_out(ctx.timeout)),
    }
    let tree = attempt.publish(ctx, dependencies, key).await?;
    tracing::debug!(
        target: "native-sandbox-executor",
        sandboxDir = %tree.dir().display(),
        durationMs = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "Dependencies installed successfully"
    );
    Ok(tree)
}

/// Resolves the ranges of `dependencies` again. Where they give something else than `current` holds, installs and publishes that;
/// `None` where they do not.
///
/// Meant for the background: fails as [`install`] does, but logs nothing, since nobody waits for it.
pub async fn renew(
    ctx: &InstallContext,
    dependencies: &BTreeMap<String, String>,
    key: &TreeKey,
    current: &Tree,
) -> Result<Option<Tree>, SandboxError> {
    policy::check(dependencies, &ctx.policy)?;
    let mut attempt = Attempt::begin(ctx).await?;
    attempt.in_background = true;
    match time::timeout(ctx.timeout, Box::pin(attempt.run_if_changed(ctx, dependencies, current))).await {
        Ok(Ok(true)) => attempt.publish(ctx, dependencies, key).await.map(Some),
        Ok(Ok(false)) => Ok(None),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(attempt.timed_out(ctx.timeout)),
    }
}

/// One install under way. Dropping it ends its processes, then removes its folder.
struct Attempt {
    staging: Option<Staging>,
    process: Option<Process>,
    /// Of the phase that runs or ran last.
    stderr: Arc<Mutex<Tail>>,
    settings: Settings,
    dir: PathBuf,
    /// A digest of what the first phase resolved.
    lockfile: Option<String>,
    /// Nobody waits for it.
    in_background: bool,
    runtime: Handle,
}

/// How far phase 1 goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Which versions there would be.
    Lockfile,
    /// All of it.
    Tree,
}

/// What both phases need.
struct Prepared {
    npm: Npm,
    settings: Settings,
    scratch: Scratch,
    /// What replaces the user's cache, where that cannot be written, or is not npm's.
    cache: Option<PathBuf>,
    /// The first phase, where it has a user of its own.
    own: Option<FirstPhase>,
    /// What the first phase may touch.
    places: NpmPlaces,
    /// Whether npm itself refuses packages that come from elsewhere than the registry.
    refuses: bool,
}

impl Attempt {
    async fn begin(ctx: &InstallContext) -> Result<Self, SandboxError> {
        let store = ctx.store.clone();
        let staging = blocking(move || store.staging().map_err(|error| of_store(&error))).await?;
        Ok(Self::new(staging))
    }

    fn new(staging: Staging) -> Self {
        Self {
            in_background: false,
            lockfile: None,
            dir: staging.tree(),
            staging: Some(staging),
            process: None,
            stderr: new_tail(),
            settings: Settings::default(),
            runtime: Handle::current(),
        }
    }

    async fn run(
        &mut self,
        ctx: &InstallContext,
        dependencies: &BTreeMap<String, String>,
    ) -> Result<(), SandboxError> {
        self.write_manifest(dependencies, &Scripts::default()).await?;
        if dependencies.is_empty() {
            let modules = self.dir.join("node_modules");
            return blocking(move || fs::create_dir(&modules).map_err(|error| of_io(&modules, &error))).await;
        }
        let mut prepared = self.prepare(ctx).await?;
        let goals: &[Goal] = if prepared.refuses { &[Goal::Tree] } else { &[Goal::Lockfile, Goal::Tree] };
        let mut resolved = Lockfile::default();
        for goal in goals {
            self.install_phase(ctx, &prepared, *goal).await?;
            resolved = self.check_lockfile(ctx).await?;
        }
        self.finish(ctx, dependencies, &mut prepared, &resolved).await
    }

    /// Installs unless the ranges resolve to what `current` holds. Returns whether there is something to publish.
    async fn run_if_changed(
        &mut self,
        ctx: &InstallContext,
        dependencies: &BTreeMap<String, String>,
        current: &Tree,
    ) -> Result<bool, SandboxError> {
        self.write_manifest(dependencies, &Scripts::default()).await?;
        let mut prepared = self.prepare(ctx).await?;
        // First without packages: in most cases nothing has changed, and this costs a question to the registry.
        let mut resolved = Lockfile::default();
        for goal in [Goal::Lockfile, Goal::Tree] {
            self.install_phase(ctx, &prepared, goal).await?;
            resolved = self.check_lockfile(ctx).await?;
            if self.resolves_as(current).await? {
                return Ok(false);
            }
        }
        self.finish(ctx, dependencies, &mut prepared, &resolved).await?;
        Ok(true)
    }

    /// Reads what npm resolved, before any package's own code could change it, and checks where all of it comes from.
    async fn check_lockfile(&mut self, ctx: &InstallContext) -> Result<Lockfile, SandboxError> {
        let (dir, policy) = (self.dir.clone(), ctx.policy.clone());
        let (lockfile, digest) = blocking(move || {
            let path = Path::new(LOCKFILE);
            let text = read_below(&dir, path, MAX_LOCKFILE_BYTES).map_err(|error| of_io(path, &error))?;
            let lockfile = Lockfile::parse(&text).map_err(|error| of_io(path, &error))?;
            match lockfile.objection(&policy) {
                Some(objection) => Err(SandboxError::new(Code::InvalidDependency, Phase::Install, objection)),
                None => Ok((lockfile, digest(&text))),
            }
        })
        .await?;
        self.lockfile = Some(digest);
        Ok(lockfile)
    }

    async fn resolves_as(&self, current: &Tree) -> Result<bool, SandboxError> {
        let (new, current) = (self.lockfile.clone(), current.clone());
        blocking(move || {
            // A tree of an older version has none beside it.
            let old = current.lockfile().or_else(|| {
                let text = read_below(current.dir(), Path::new(LOCKFILE), MAX_LOCKFILE_BYTES);
                text.ok().map(|text| digest(&text))
            });
            Ok(new.is_some() && old == new)
        })
        .await
    }

    /// Phase 2, and a look at what there is now.
    async fn finish(
        &mut self,
        ctx: &InstallContext,
        dependencies: &BTreeMap<String, String>,
        prepared: &mut Prepared,
        resolved: &Lockfile,
    ) -> Result<(), SandboxError> {
        let user = prepared.own.as_ref().map(FirstPhase::user);
        let ignores_modes = ctx.shield.ignores_modes(user, &prepared.places);
        if let Some(own) = prepared.own.take() {
            // With credentials in it: the packages' own code comes next.
            let tree_bytes = ctx.bounds.tree_bytes;
            blocking(move || own.end(tree_bytes)).await?;
        }
        if ignores_modes {
            let tree = self.dir.clone();
            blocking(move || Store::make_programs(&tree).map_err(|error| of_store(&error))).await?;
        }
        let scripts = self.plan_scripts(ctx, resolved).await?;
        if !scripts.run.is_empty() {
            self.write_manifest(dependencies, &scripts).await?;
            self.rebuild_phase(ctx, prepared, &scripts, resolved).await?;
        }
        self.verify(dependencies).await
    }

    async fn write_manifest(
        &self,
        dependencies: &BTreeMap<String, String>,
        scripts: &Scripts,
    ) -> Result<(), SandboxError> {
        let text = manifest::text(dependencies, scripts);
        let path = self.dir.join("package.json");
        blocking(move || replace_file(&path, text.as_bytes()).map_err(|error| of_io(&path, &error))).await
    }

    async fn prepare(&mut self, ctx: &InstallContext) -> Result<Prepared, SandboxError> {
        let scratch = self.staging.as_ref().map(Staging::scratch).unwrap_or_default();
        let ctx = ctx.clone();
        let prepared = blocking(move || prepare(&ctx, &scratch)).await?;
        self.settings = prepared.settings.clone();
        Ok(prepared)
    }

    async fn install_phase(
        &mut self,
        ctx: &InstallContext,
        prepared: &Prepared,
        goal: Goal,
    ) -> Result<(), SandboxError> {
        let age = ctx.policy.min_release_age_days;
        let age = age.map(|days| npm::release_age_arg(days, &prepared.settings, SystemTime::now()));
        let mut args = npm::install_args(&prepared.settings, prepared.cache.as_deref(), age);
        if goal == Goal::Lockfile {
            args.push("--package-lock-only".into());
        }
        args.extend(npm::refusal_args(&ctx.policy, prepared.refuses, &prepared.scratch));
        let mut env = npm::install_env(&ctx.env, &prepared.settings, &ctx.node, &prepared.scratch);
        let mut cache = None;
        let mut given = Vec::new();
        if let Some(own) = &prepared.own {
            args.extend(own.args().iter().cloned());
            env = own.env(env, prepared.scratch.home().to_owned());
            cache = Some((own.cache().to_owned(), own.cache_bytes(ctx.bounds.tree_bytes)));
            given = vec![self.dir.clone(), prepared.scratch.dir().to_owned(), own.dir().to_owned()];
        }
        let user = prepared.own.as_ref().map(FirstPhase::user);
        let run = Run {
            args,
            env,
            plan: ctx.shield.npm_install(user, &prepared.places),
            #[cfg(unix)]
            attend: ctx.shield.attend_npm(&prepared.settings.hosts(&ctx.env), prepared.places.reads_all),
            limits: Limits::default(),
            watch: ctx.bounds.first_phase(vec![self.dir.clone()], cache),
        };
        give(&given, user).await?;
        let failed = self.phase(ctx, &prepared.npm, run).await?;
        give(&given, None).await?;
        failed.map_or(Ok(()), |failed| Err(self.failed(failed)))
    }

    /// The packages' own code, as a user of its own where there can be one. What it leaves is the host's again.
    async fn rebuild_phase(
        &mut self,
        ctx: &InstallContext,
        prepared: &Prepared,
        scripts: &Scripts,
        resolved: &Lockfile,
    ) -> Result<(), SandboxError> {
        let home = self.dir.join(HOME_OF_SCRIPTS);
        let (made, own) = (home.clone(), vec![self.dir.clone(), prepared.scratch.dir().to_owned()]);
        let counted = own.clone();
        let there = blocking(move || {
            fs::create_dir_all(&made).map_err(|error| of_io(&made, &error))?;
            Ok(gauge::bytes_in(&counted, u64::MAX))
        })
        .await?;
        let read = prepared.npm.places();
        let drawn = ctx.shield.draw_user().map_err(|error| failure(format!("no user for npm: {error}")))?;
        let user = drawn.filter(|_| read.iter().all(|path| isolation::others_reach(path)));
        let read = read.into_iter().chain(prepared.settings.places_of_scripts(&ctx.env)).collect();
        let places = NpmPlaces { own, read, reads_all: prepared.npm.root.is_none() };
        let mut builder = Builder {
            user,
            env: npm::rebuild_env(&ctx.env, prepared.of_builds(ctx), &ctx.node, &prepared.scratch, &home),
            watch: ctx.bounds.second_phase(places.own.clone(), there),
            places,
        };
        self.build(ctx, prepared, scripts, resolved, &mut builder).await?;
        if ctx.shield.ignores_modes(user, &builder.places) {
            let tree = self.dir.clone();
            blocking(move || Store::make_programs(&tree).map_err(|error| of_store(&error))).await?;
        }
        blocking(move || tidy_home(&home).map_err(|error| of_io(&home, &error))).await
    }

    /// All scripts in one run of npm. Where that fails, the optional packages one by one: those that cannot be built are left out, and
    /// what cannot do without them, as npm itself does when it installs.
    async fn build(
        &mut self,
        ctx: &InstallContext,
        prepared: &Prepared,
        scripts: &Scripts,
        resolved: &Lockfile,
        builder: &mut Builder,
    ) -> Result<(), SandboxError> {
        let Some(failed) = self.rebuild(ctx, prepared, builder, &scripts.folders).await? else {
            return Ok(());
        };
        if scripts.optional.is_empty() || matches!(failed, Failed::Exceeded(_)) {
            return Err(self.failed(failed));
        }
        let mut rest = scripts.folders.clone();
        let mut left_out = Vec::new();
        for (folder, locations) in &scripts.optional {
            rest.remove(folder);
            match self.rebuild(ctx, prepared, builder, [folder]).await? {
                None => {}
                Some(exceeded @ Failed::Exceeded(_)) => return Err(self.failed(exceeded)),
                Some(_) => {
                    left_out.push(folder.clone());
                    let going: Vec<_> = locations.iter().flat_map(|at| resolved.goes_with(at)).collect();
                    let (dir, gone) = (self.dir.clone(), going.clone());
                    blocking(move || leave_out(&dir, &gone).map_err(|error| of_io(&dir, &error))).await?;
                    let is_there = |name: &String| {
                        let mut at = resolved.packages().map(|(at, _)| at);
                        at.any(|at| {
                            at.ends_with(&format!("node_modules/{name}"))
                                && !going.iter().any(|gone| gone == at)
                        })
                    };
                    rest.retain(is_there);
                }
            }
        }
        tracing::warn!(
            target: log::NATIVE,
            sandboxDir = %self.dir.display(),
            json_packages = %json!(left_out),
            stderr = self.stderr(),
            "Optional dependencies could not be built and were left out"
        );
        if rest.is_empty() {
            return Ok(());
        }
        let failed = self.rebuild(ctx, prepared, builder, &rest).await?;
        failed.map_or(Ok(()), |failed| Err(self.failed(failed)))
    }

    async fn rebuild<'a>(
        &mut self,
        ctx: &InstallContext,
        prepared: &Prepared,
        builder: &Builder,
        folders: impl IntoIterator<Item = &'a String>,
    ) -> Result<Option<Failed>, SandboxError> {
        if builder.user.is_some() {
            give(&builder.places.own, builder.user).await?;
        }
        let run = Run {
            args: npm::rebuild_args(folders),
            env: builder.env.clone(),
            plan: ctx.shield.npm_rebuild(builder.user, &builder.places),
            #[cfg(unix)]
            attend: ctx.shield.attend("an install script"),
            limits: ctx.bounds.of_process(),
            watch: builder.watch.clone(),
        };
        let ended = self.phase(ctx, &prepared.npm, run).await?;
        if builder.user.is_some() {
            give(&builder.places.own, None).await?;
        }
        Ok(ended)
    }

    async fn plan_scripts(&self, ctx: &InstallContext, resolved: &Lockfile) -> Result<Scripts, SandboxError> {
        // The user's own `ignore-scripts` counts, unless the option names packages.
        if ctx.install_scripts == InstallScripts::Run && self.settings.is_on("ignore-scripts") {
            return Ok(Scripts::default());
        }
        let (dir, option, resolved) = (self.dir.clone(), ctx.install_scripts.clone(), resolved.clone());
        blocking(move || Ok(scripts::plan(&dir, &resolved, &option))).await
    }

    /// Runs npm once, to the end of its whole tree; how it failed, if it did.
    async fn phase(
        &mut self,
        ctx: &InstallContext,
        npm: &Npm,
        run: Run,
    ) -> Result<Option<Failed>, SandboxError> {
        #[cfg(unix)]
        let attend = run.attend.clone();
        let Run { args, mut env, plan, limits, watch, .. } = run;
        if ctx.shield.looks_up_names() {
            env.push(("RES_OPTIONS".into(), RESOLVER_OPTION.into()));
        }
        self.stderr = new_tail();
        let group = match watch.scripts {
            Some(_) => ctx.shield.group().await.map_err(failure)?,
            None => None,
        };
        let command = Command {
            program: npm.program.clone(),
            args: npm.lead.iter().cloned().chain(args).collect(),
            env,
            cwd: self.dir.clone(),
            confinement: plan,
            #[cfg(unix)]
            attend,
            limits,
            group,
            ..Command::default()
        };
        let started = ctx.spawner.spawn(command).await.map_err(|error| self.not_spawned(&error))?;
        let process = self.process.insert(started.process);
        let mut exceeded = pin!(watch.clone().exceeded(process.pid(), process.keepers()));
        let mut reason = None;
        let status = {
            let mut output = pin!(async {
                tokio::join!(tail::drain(started.stdout), tail::keep(started.stderr, &self.stderr));
            });
            let mut open = true;
            let control = process.control();
            let mut end = pin!(end_of(process));
            let status = loop {
                tokio::select! {
                    status = &mut end => break status,
                    text = &mut exceeded, if reason.is_none() => {
                        reason = Some(text);
                        control.kill();
                    }
                    () = &mut output, if open => open = false,
                }
            };
            if open {
                let _ = time::timeout(PIPES_WAIT, output).await;
            }
            status
        };
        self.process = None;
        // It may have been over before a look found what it left.
        let counted = watch.clone();
        let too_much = blocking(move || Ok(counted.written_too_much()));
        match reason.or(too_much.await?) {
            Some(reason) => Ok(Some(Failed::Exceeded(reason))),
            None if status == ExitStatus::Code(0) => Ok(None),
            None => Ok(Some(Failed::Ended(status))),
        }
    }

    /// npm says "success" for some specs that it did nothing about.
    async fn verify(&self, dependencies: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        let modules = self.dir.join("node_modules");
        let names: Vec<_> = dependencies.keys().cloned().collect();
        blocking(move || {
            let is_missing = |name: &&String| !modules.join(name).join("package.json").is_file();
            let missing: Vec<_> = names.iter().filter(is_missing).map(String::as_str).collect();
            if missing.is_empty() {
                return Ok(());
            }
            Err(failure(format!("npm install reported success but did not install {}", missing.join(", "))))
        })
        .await
    }

    async fn publish(
        mut self,
        ctx: &InstallContext,
        dependencies: &BTreeMap<String, String>,
        key: &TreeKey,
    ) -> Result<Tree, SandboxError> {
        let Some(staging) = self.staging.take() else { return Err(failure("the staging folder is gone")) };
        let (store, key) = (ctx.store.clone(), key.clone());
        let mut what = json!({ "dependencies": dependencies });
        if let Some(about) = ctx.about.get().filter(|_| !dependencies.is_empty()) {
            what["about"] = about.clone();
        }
        let about = About {
            what,
            tenant: ctx.bounds.tenant.clone(),
            lockfile: self.lockfile.clone(),
            max_bytes: ctx.bounds.tree_bytes,
        };
        blocking(move || store.publish_as(staging, &key, about).map_err(|error| of_store(&error))).await
    }

    /// npm's stderr so far, fit to be shown.
    fn stderr(&self) -> String {
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let text = redact(&tail.text(), self.settings.secrets());
        if tail.total_bytes() > MAX_STDERR_BYTES as u64 {
            return format!("(the end of {} bytes)\n{text}", tail.total_bytes());
        }
        text
    }

    fn failed(&self, failed: Failed) -> SandboxError {
        let stderr = self.stderr();
        let status = match failed {
            Failed::Ended(status) => status,
            Failed::Exceeded(reason) => {
                let message = format!("npm install was ended: {reason}");
                return self.report(Code::InstallFailed, message, "limit", stderr);
            }
        };
        if let Some(kind) = refused_kind(&stderr) {
            let message = format!(
                "a dependency brings {kind}, which the dependencies option (AGENTS_FUNCTION_TOOL_SANDBOX_DEPENDENCIES) does not allow: \
                 packages may bring what the registry has, and nothing else: {stderr}"
            );
            return self.report(Code::InvalidDependency, message, "refused", stderr);
        }
        let (message, code) = match status {
            ExitStatus::Code(code) => {
                (format!("npm install failed with code {code}: {stderr}"), code.to_string())
            }
            ExitStatus::Signal(signal) => {
                let name = signal_name(signal);
                (format!("npm install was killed by signal {name}: {stderr}"), name)
            }
            ExitStatus::Lost => {
                ("npm install was lost: the process that watched it ended".to_owned(), "lost".to_owned())
            }
        };
        self.report(Code::InstallFailed, message, &code, stderr)
    }

    fn timed_out(&self, timeout: Duration) -> SandboxError {
        let stderr = self.stderr();
        let mut message = format!(
            "npm install timed out after {}ms; raise installTimeoutMs (AGENTS_FUNCTION_TOOL_SANDBOX_INSTALL_TIMEOUT_MS) \
             if the registry is that slow",
            timeout.as_millis()
        );
        if !stderr.is_empty() {
            message = format!("{message}: {stderr}");
        }
        self.report(Code::InstallTimeout, message, "timeout", stderr)
    }

    fn report(&self, code: Code, message: String, npm_code: &str, stderr: String) -> SandboxError {
        if !self.in_background {
            tracing::error!(
                target: "native-sandbox-executor",
                sandboxDir = %self.dir.display(),
                json_toolId = %json!(log::tool_id()),
                code = %code,
                phase = %Phase::Install,
                json_message = %json!(message),
                npmExit = npm_code,
                stderr = stderr,
                "Failed to install dependencies"
            );
        }
        SandboxError { stderr: Some(stderr), ..SandboxError::new(code, Phase::Install, message) }
    }

    fn not_spawned(&self, error: &crate::process::SpawnError) -> SandboxError {
        if !self.in_background {
            tracing::error!(
                target: "native-sandbox-executor",
                sandboxDir = %self.dir.display(),
                json_toolId = %json!(log::tool_id()),
                code = %Code::InstallFailed,
                phase = %Phase::Install,
                json_message = %json!(error.to_string()),
                error = %error,
                "Failed to spawn npm install"
            );
        }
        failure(format!("could not start npm: {error}"))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        process.kill();
        let staging = self.staging.take();
        self.runtime.spawn(async move {
            let _ = time::timeout(GONE_WAIT, process.gone()).await;
            drop(staging);
        });
    }
}

/// One run of npm.
struct Run {
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    plan: Option<Arc<Plan>>,
    #[cfg(unix)]
    attend: Option<Arc<dyn Attend>>,
    limits: Limits,
    watch: Watch,
}

/// How npm failed.
enum Failed {
    Ended(ExitStatus),
    /// It was ended, and why.
    Exceeded(String),
}

/// What all runs of the second phase have in common.
struct Builder {
    user: Option<u32>,
    env: Vec<(OsString, OsString)>,
    places: NpmPlaces,
    watch: Watch,
}

impl Prepared {
    /// The user's settings that builds need. Blocks for a small file.
    fn of_builds(&self, ctx: &InstallContext) -> BTreeMap<String, String> {
        let mut settings = self.settings.for_scripts(&ctx.env);
        if let Some(file) = settings.remove("npm_config_cafile")
            && let Some(copy) = self.scratch.copy_certificates(Path::new(&file))
        {
            settings.insert("npm_config_cafile".to_owned(), copy.to_string_lossy().into_owned());
        }
        settings
    }
}

/// The kind of package that npm, or what stands for git, refused.
fn refused_kind(stderr: &str) -> Option<&'static str> {
    [
        ("EALLOWGIT", "a git repository"),
        ("git repositories are not allowed among dependencies", "a git repository"),
        ("EALLOWREMOTE", "an archive at an address"),
        ("EALLOWFILE", "an archive on this machine"),
        ("EALLOWDIRECTORY", "a folder on this machine"),
    ]
    .into_iter()
    .find_map(|(mark, kind)| stderr.contains(mark).then_some(kind))
}

/// Removes packages, and programs of theirs that lead nowhere then. Nothing of the packages runs meanwhile.
fn leave_out(dir: &Path, locations: &[String]) -> std::io::Result<()> {
    for location in locations {
        let mut path = dir.to_owned();
        let mut parts = Path::new(location).components().peekable();
        let mut is_plain = true;
        while let Some(part) = parts.next() {
            path.push(part);
            // A script may have put a link in a folder's place: what that leads to is not the tree's.
            is_plain &=
                parts.peek().is_none() || fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        }
        if is_plain {
            remove_dir(&path)?;
        }
    }
    let modules = dir.join("node_modules");
    // npm believes it rather than what is there.
    let _ = fs::remove_file(modules.join(".package-lock.json"));
    let bin = modules.join(".bin");
    if !fs::symlink_metadata(&bin).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    for entry in fs::read_dir(&bin)? {
        let entry = entry?;
        if entry.file_type()?.is_symlink() && fs::metadata(entry.path()).is_err() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Below the home folder of scripts what no function has a use for.
const NOT_OF_HOME: [&str; 5] = [".npm", ".node-gyp", ".electron-gyp", ".cache/node-gyp", ".cache/yarn"];

/// Removes what no function has a use for from a home folder of scripts, and that folder where nothing is in it then.
fn tidy_home(home: &Path) -> std::io::Result<()> {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if !is_folder(home) {
        return remove_dir(home);
    }
    for path in NOT_OF_HOME.map(|path| home.join(path)) {
        if path.parent().is_some_and(is_folder) {
            remove_dir(&path)?;
        }
    }
    for folder in [home.join(".cache"), home.to_owned()] {
        if is_folder(&folder) {
            // Fails where something is in it.
            let _ = fs::remove_dir(&folder);
        }
    }
    Ok(())
}

/// What a lockfile is known by.
fn digest(text: &[u8]) -> String {
    crate::store::hex(&Sha256::digest(text))
}

/// What a tenant is known by in the store.
pub fn tenant_digest(tenant: Option<&str>) -> String {
    tenant.map_or_else(String::new, |tenant| digest(tenant.as_bytes()))
}

/// Waits for the main process, then ends whatever it left: nothing may write into the tree from here on.
async fn end_of(process: &mut Process) -> ExitStatus {
    let status = process.exited().await;
    process.kill();
    process.gone().await;
    status
}

fn prepare(ctx: &InstallContext, scratch: &Path) -> Result<Prepared, SandboxError> {
    let path = ctx.env.get("PATH").map(String::as_str);
    let npm = npm::find(ctx.npm_path.as_deref(), &ctx.node, path).map_err(failure)?;
    let settings = Settings::read(&ctx.env, npm::prefix(&ctx.node), npm.root.as_deref());
    if settings.get("workspace").is_some()
        && let Some(problem) = npm::fatal_setting(&ctx.env, &ctx.node, npm.root.as_deref())
    {
        return Err(failure(problem));
    }
    let scratch = Scratch::create(scratch).map_err(|error| of_io(scratch, &error))?;
    let needs_more = |spec: &ExtraSpec| matches!(spec, ExtraSpec::Git | ExtraSpec::File);
    let reads_all = npm.root.is_none() || ctx.policy.specs.iter().any(needs_more);
    let own = FirstPhase::prepare(ctx, &npm, &settings, &scratch, reads_all)?;
    let cache = match &own {
        Some(own) => Some(own.cache().to_owned()),
        None if npm::has_writable_cache(&ctx.env, &settings) => None,
        None => Some(ctx.store.npm_cache().map_err(|error| of_store(&error))?),
    };
    let places =
        NpmPlaces { reads_all, ..places(ctx, &npm, &settings, &scratch, cache.as_deref(), own.as_ref()) };
    if let Some(cache) = places.own.last() {
        // npm may write to it, but not make it: what is not there has no rule. What cannot be made fails there, with a reason.
        let _ = fs::create_dir_all(cache);
    }
    let refuses = npm::knows_allow_settings(&npm);
    scratch.name_node(&ctx.node).map_err(|error| of_io(scratch.dir(), &error))?;
    Ok(Prepared { npm, settings, scratch, cache, own, places, refuses })
}

/// What the first phase may touch; the cache is the last of its own.
fn places(
    ctx: &InstallContext,
    npm: &Npm,
    settings: &Settings,
    scratch: &Scratch,
    cache: Option<&Path>,
    own: Option<&FirstPhase>,
) -> NpmPlaces {
    let cache = cache.map(Path::to_owned).or_else(|| npm::cache(&ctx.env, settings));
    let mut read = npm.places();
    if own.is_none() {
        read.extend(settings.files(&ctx.env, npm::prefix(&ctx.node)));
    }
    let written = [scratch.dir().with_file_name("generation"), scratch.dir().to_owned()];
    let copies = own.map(|own| own.dir().to_owned());
    NpmPlaces { own: written.into_iter().chain(copies).chain(cache).collect(), read, reads_all: false }
}

/// Gives folders to a user, or back to the host's.
async fn give(folders: &[PathBuf], user: Option<u32>) -> Result<(), SandboxError> {
    let folders = folders.to_vec();
    blocking(move || {
        folders.iter().try_for_each(|dir| Store::give(dir, user).map_err(|error| of_store(&error)))
    })
    .await
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    match task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(error) => Err(failure(format!("the install was broken off: {error}"))),
    }
}

fn new_tail() -> Arc<Mutex<Tail>> {
    Arc::new(Mutex::new(Tail::new(MAX_STDERR_BYTES)))
}

fn failure(message: impl Into<String>) -> SandboxError {
    SandboxError::new(Code::InstallFailed, Phase::Install, message)
}

fn of_store(error: &StoreError) -> SandboxError {
    failure(format!("the folder for dependencies could not be made: {error}"))
}

fn of_io(path: &Path, error: &std::io::Error) -> SandboxError {
    failure(format!("cannot prepare {}: {error}", path.display()))
}

#[cfg(unix)]
fn signal_name(signal: i32) -> String {
    rustix::process::Signal::from_named_raw(signal)
        .map_or_else(|| signal.to_string(), |named| format!("{named:?}").replace("Signal::", "SIG"))
}

#[cfg(not(unix))]
fn signal_name(signal: i32) -> String {
    signal.to_string()
}
