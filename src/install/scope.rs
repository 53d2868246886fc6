//! What decides, beside the dependencies, what a tree holds: the machine, Node, npm and its settings, the options. Trees are named
//! by it.

use std::{
    collections::BTreeMap,
    env::consts,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{io::AsyncReadExt, time};

use super::{
    DependencyPolicy, InstallContext, InstallScripts, blocking,
    npm::{self, Npm},
    npmrc::Settings,
    policy::written_spec,
    range::is_exact,
};
use crate::{
    error::{Code, Phase, SandboxError},
    process::{Command, ExitStatus},
    store::{Store, TreeKey},
};

/// How long a Node may take to say what its ABI is.
const ABI_WAIT: Duration = Duration::from_secs(10);
/// More than this is not the number of an ABI.
const MAX_ABI_BYTES: u64 = 16;
/// The C library of this process, and so of the Node it is loaded into.
const LIBC: &str = if cfg!(target_env = "musl") {
    "musl"
} else if cfg!(target_env = "gnu") {
    "gnu"
} else {
    ""
};

/// Names the trees of one executor. Cheap to clone; see [`Scope::read`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scope {
    platform: &'static str,
    arch: &'static str,
    libc: &'static str,
    /// `process.versions.modules`.
    abi: String,
    /// `None` where there is no npm.
    npm: Option<String>,
    settings: BTreeMap<String, String>,
    policy: DependencyPolicy,
    install_scripts: InstallScripts,
    tenant: Option<String>,
}

impl Scope {
    /// Reads npm's settings and version; Node's ABI is `known_abi`, or asked for once per binary. Where there is no npm, trees that are
    /// there already can be named all the same.
    pub async fn read(
        ctx: &InstallContext,
        tenant: Option<&str>,
        known_abi: Option<&str>,
    ) -> Result<Self, SandboxError> {
        let of_npm = {
            let ctx = ctx.clone();
            blocking(move || Ok(of_npm(&ctx))).await?
        };
        let abi = match known_abi {
            Some(abi) => abi.to_owned(),
            None => abi(ctx, &ctx.node).await?,
        };
        let (npm, settings) = of_npm;
        Ok(Self {
            platform: consts::OS,
            arch: consts::ARCH,
            libc: LIBC,
            abi,
            npm,
            settings,
            policy: ctx.policy.clone(),
            install_scripts: ctx.install_scripts.clone(),
            tenant: tenant.map(str::to_owned),
        })
    }

    /// What the trees are for, to be written down with them: what else names them differs by settings.
    pub fn about(&self) -> Value {
        json!({ "nodeAbi": self.abi, "platform": self.platform, "arch": self.arch, "libc": self.libc, "npm": self.npm })
    }

    /// The name of the tree of a set that is not empty.
    pub fn key(&self, dependencies: &BTreeMap<String, String>) -> TreeKey {
        let dependencies = written(dependencies);
        let key = TreeKey::new(&dependencies, self);
        if self.npm.is_none() {
            return key;
        }
        let without_npm = Self { npm: None, ..self.clone() };
        key.with_alias(&TreeKey::new(&dependencies, &without_npm))
    }

    /// The name of the tree without packages: nothing but the tenant makes a difference, and no npm is needed to know it.
    pub fn key_of_nothing(tenant: Option<&str>) -> TreeKey {
        TreeKey::new(&BTreeMap::new(), &tenant)
    }

    /// What distinguishes this scope, as a short text.
    pub fn digest(&self) -> String {
        TreeKey::new(&BTreeMap::new(), self).as_str().to_owned()
    }
}

/// Whether a set can resolve to something else later on. What it depends on itself is not asked: who wants exact versions gets a tree
/// that stays.
pub fn can_change(dependencies: &BTreeMap<String, String>) -> bool {
    !dependencies.values().all(|spec| is_exact(spec))
}

/// As npm gets them: spaces at the ends of a spec make no other tree.
fn written(dependencies: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    dependencies.iter().map(|(name, spec)| (name.clone(), written_spec(spec).to_owned())).collect()
}

fn of_npm(ctx: &InstallContext) -> (Option<String>, BTreeMap<String, String>) {
    let path = ctx.env.get("PATH").map(String::as_str);
    // That there is none is told by whoever has to install.
    let npm = npm::find(ctx.npm_path.as_deref(), &ctx.node, path).ok();
    let root = npm.as_ref().and_then(|npm| npm.root.as_deref());
    let settings = Settings::read(&ctx.env, npm::prefix(&ctx.node), root);
    (npm.as_ref().map(version), settings.of_trees())
}

/// npm's version; of a program that is no JavaScript, what tells it from another.
pub(super) fn version(npm: &Npm) -> String {
    let manifest = npm.root.as_deref().and_then(|root| fs::read(root.join("package.json")).ok());
    let manifest = manifest.and_then(|text| serde_json::from_slice::<Value>(&text).ok()).unwrap_or_default();
    match manifest["version"].as_str() {
        Some(version) => version.to_owned(),
        None => stamp(npm.root.as_deref().unwrap_or(&npm.program)),
    }
}

/// A file's path, size and time of change.
fn stamp(path: &Path) -> String {
    let metadata = fs::metadata(path).ok();
    let changed = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    let changed = changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_nanos();
    format!("{} {} {changed}", path.display(), metadata.map_or(0, |metadata| metadata.len()))
}

/// Asks `node` for its ABI, or remembers what it said: the note goes by the binary's path, size and time. What does not
/// answer is no Node.
pub async fn abi(ctx: &InstallContext, given: &Path) -> Result<String, SandboxError> {
    let (store, node) = (ctx.store.clone(), ctx.node.clone());
    let (name, known) = blocking(move || {
        let name = note_name(&node);
        Ok((name.clone(), store.note(&name).filter(|text| is_abi(text))))
    })
    .await?;
    if let Some(known) = known {
        return Ok(known);
    }
    let asked =
        time::timeout(ABI_WAIT, ask(ctx)).await.unwrap_or_else(|_| Err("it did not answer".to_owned()));
    let abi = asked.map_err(|reason| {
        let text = format!(
            "the option \"nodePath\" (variable AGENTS_FUNCTION_TOOL_SANDBOX_NODE_PATH) is {}, which is no Node that runs here: \
             {reason}. Set it to the absolute path of a Node binary, or leave it out to use the host's own",
            given.display()
        );
        SandboxError::new(Code::InvalidConfig, Phase::Validate, text)
    })?;
    let (store, text) = (ctx.store.clone(), abi.clone());
    blocking(move || {
        remember(&store, &name, &text);
        Ok(())
    })
    .await?;
    Ok(abi)
}

fn remember(store: &Store, name: &str, abi: &str) {
    // Asked again by the next process, then.
    if let Err(error) = store.set_note(name, abi) {
        tracing::debug!(target: crate::log::NATIVE, error = %error, "Failed to note the ABI of a Node binary");
    }
}

fn note_name(node: &Path) -> String {
    let real = node.canonicalize().unwrap_or_else(|_| node.to_owned());
    format!("node-{}", crate::store::hex(&Sha256::digest(stamp(&real))))
}

fn is_abi(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The oldest Node that runs functions: `engines` of package.json, and `lib/platform.js`.
const OLDEST_NODE: (u32, u32) = (20, 17);

/// Why a Node of this version cannot run functions, if it cannot.
fn too_old(version: &str) -> Option<String> {
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    let found = (parts.next()?, parts.next()?);
    let (major, minor) = OLDEST_NODE;
    (found < OLDEST_NODE)
        .then(|| format!("it is Node {version}, and functions need Node {major}.{minor} or newer"))
}

fn ended(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("ended with code {code}"),
        ExitStatus::Signal(signal) => format!("was ended by signal {signal}"),
        ExitStatus::Lost => "was lost".to_owned(),
    }
}

async fn ask(ctx: &InstallContext) -> Result<String, String> {
    let command = Command {
        program: ctx.node.clone(),
        args: ["-p", "`${process.versions.modules} ${process.versions.node}`"].map(OsString::from).to_vec(),
        env: Vec::new(),
        cwd: PathBuf::from(ctx.store.root()),
        ..Command::default()
    };
    let mut started = ctx.spawner.spawn(command).await.map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = (&mut started.stdout).take(MAX_ABI_BYTES).read_to_string(&mut text).await;
    read.map_err(|error| error.to_string())?;
    let status = started.process.exited().await;
    match text.trim() {
        said if status == ExitStatus::Code(0) && said.split_once(' ').is_some_and(|(abi, _)| is_abi(abi)) => {
            let (abi, version) = said.split_once(' ').unwrap_or_default();
            too_old(version).map_or_else(|| Ok(abi.to_owned()), Err)
        }
        "" => Err(format!("asked for its version it printed nothing and {}", ended(status))),
        other => Err(format!("asked for its version it printed \"{other}\" and {}", ended(status))),
    }
}

#[cfg(test)]
mod tests {
    use super::too_old;

    #[test]
    fn a_node_that_is_too_old_is_told_by_its_version() {
        for version in ["18.20.4", "20.9.0", "20.16.9"] {
            let text = too_old(version).unwrap_or_default();
            assert!(text.contains(version) && text.contains("20.17 or newer"), "{version}: {text}");
        }
        for version in ["20.17.0", "22.0.0", "26.3.0-nightly", "odd"] {
            assert_eq!(too_old(version), None, "{version}");
        }
    }
}
