//! Options and environment variables → [`Settings`], with the origin of each. Pure: the environment is an argument.
//!
//! An option wins over its variable; an empty variable means the default. A bad value is an error that names the option or
//! the variable, what it says, and what would be right.

use std::{
    collections::BTreeMap,
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    egress::{Preset, Rules},
    error::{Code, Phase, SandboxError},
    install::{DependencyPolicy, InstallScripts},
    limits::{CallLimits, MIN_CPUS, MIN_MEMORY_MB, MIN_OPEN_FILES},
    start::Rung,
};

/// Every variable begins with this, except the one of `timeoutMs`, whose name is the original's.
const PREFIX: &str = "AGENTS_FUNCTION_TOOL_SANDBOX_";

/// Variables with that beginning that the original's host reads for itself.
const HOST_VARIABLES: [&str; 1] = ["AGENTS_FUNCTION_TOOL_SANDBOX_VCPUS_DEFAULT"];

/// The longest duration taken at its word, in milliseconds (about 24 days, what a Node timer can hold); longer ones are
/// cut to it: they mean "practically never".
pub const DURATION_LIMIT_MS: f64 = 2_147_483_647.0;

/// Names that pass to tools always: time zone, locale, proxy, certificates. None of them is secret by convention, except
/// that proxies may carry credentials, without which tools could not reach the network at all.
const ENV_ALWAYS: &[&str] = &[
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "NODE_USE_ENV_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Variables that Node reads while it boots, so that the boot environment must have them; a subset of what may pass.
const ENV_BOOT: &[&str] = &[
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    // What goes by the proxy is settled while Node boots, whoever may be asked later.
    "NODE_USE_ENV_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Where a setting's value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Neither option nor variable.
    Default,
    /// An environment variable.
    Variable,
    /// An option given in code.
    Option,
}

/// Which of the host's variables pass to tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvPolicy {
    /// The short list, and these names or `*`-suffixed prefixes besides.
    Allow(Vec<String>),
    /// All of them, as the original does.
    Inherit,
}

/// A level of isolation, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Process group, closed descriptors, clean environment, private run folder, limits.
    Base,
    /// + what an unprivileged Linux process can give up.
    Confined,
    /// + namespaces and cgroups.
    Isolated,
}

impl Tier {
    /// As options and reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Confined => "confined",
            Self::Isolated => "isolated",
        }
    }
}

/// Whether tools may use the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// As the host may.
    Open,
    /// Not at all, loopback included.
    None,
}

/// What the option `network` may be.
pub const NETWORK_FORMS: &str =
    "one of \"open\", \"internet\", \"none\", or an object { preset, allow, deny, audit }";

/// Why a value is none of the option `network`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkProblem {
    /// It is none of [`NETWORK_FORMS`].
    Form,
    /// Something in it is wrong: this.
    Rule(String),
}

/// Reads a value of the option `network`, of an executor or of a call.
pub fn network_of(value: &Value) -> Result<(Network, Arc<Rules>), NetworkProblem> {
    match value {
        Value::String(text) => match text.as_str() {
            "open" => Ok((Network::Open, Arc::default())),
            "internet" => {
                Ok((Network::Open, Arc::new(Rules { preset: Preset::Internet, ..Rules::default() })))
            }
            "none" => Ok((Network::None, Arc::default())),
            _ => Err(NetworkProblem::Form),
        },
        Value::Object(object) => match Rules::read(object) {
            Ok(rules) => Ok((Network::Open, Arc::new(rules))),
            Err(text) => Err(NetworkProblem::Rule(text)),
        },
        _ => Err(NetworkProblem::Form),
    }
}

/// Where run folders are, as far as that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunFolders {
    /// In memory, with a limit of the kernel's, where that can be had and a call's limit is a small part of it; else on the store's disk.
    Auto,
    /// On the store's disk.
    Disk,
    /// In memory, whatever part of it a call's limit is, where that can be had.
    Memory,
}

/// Everything that can be set, checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a function may run when its `sandboxConfig` does not say.
    pub timeout: Duration,
    /// How long an unused sandbox is kept.
    pub pool_ttl: Duration,
    /// How many calls a sandbox serves.
    pub max_use_count: u32,
    /// Budget of stdout, stderr and result together, bytes.
    pub max_output_bytes: u64,
    /// How long a call waits for a permit.
    pub queue_wait: Duration,
    /// How often expired sandboxes are looked for.
    pub cleanup_interval: Duration,
    /// What one call may use of the machine.
    pub limits: CallLimits,
    /// Thousandths of a processor that all processes of a call together may use at once; none: no limit.
    pub cpu_thousandths: Option<u32>,
    /// What zygotes and the workers that they have ready may hold together, MiB; none: a share of the machine's memory.
    pub zygote_memory_mb: Option<u32>,
    /// The control group in which those of calls are made; none: one is looked for.
    pub cgroup_dir: Option<PathBuf>,
    /// One budget over all permits of the process.
    pub max_concurrent: Option<u32>,
    /// How long what a function left running may go on.
    pub linger: Duration,
    /// How long an install may take.
    pub install_timeout: Duration,
    /// Which install scripts run.
    pub install_scripts: InstallScripts,
    /// Which dependencies are allowed.
    pub dependencies: DependencyPolicy,
    /// Which variables pass to tools.
    pub env: EnvPolicy,
    /// Values for variables that functions read where a provider runs them.
    pub provider_env: BTreeMap<String, String>,
    /// The tier without which nothing runs.
    pub isolation_required: Option<Tier>,
    /// Network access of tools.
    pub network: Network,
    /// Where it is open: to what.
    pub network_rules: Arc<Rules>,
    /// Where run folders are.
    pub run_folders: RunFolders,
    /// A forced rung.
    pub start: Option<Rung>,
    /// Where trees and run folders live; below the host's temp folder if absent.
    pub store_dir: Option<PathBuf>,
    /// Read-only stores baked into an image.
    pub base_store_dirs: Vec<PathBuf>,
    /// Size limit of the store, bytes.
    pub store_max_bytes: u64,
    /// Separates stores of tenants.
    pub tenant_key: Option<String>,
    /// The Node executable.
    pub node_path: PathBuf,
    /// The same as it was given, for texts: `node_path` may be made the real path.
    pub node_given: PathBuf,
    /// npm, if not the one beside Node or on PATH.
    pub npm_path: Option<PathBuf>,
    /// Where each value came from, by option name.
    pub origins: BTreeMap<&'static str, Origin>,
    /// The variable of each, by option name.
    pub variables: BTreeMap<&'static str, String>,
    /// Variables that are named as those of the options are, and set nothing.
    pub unknown_variables: Vec<String>,
}

/// What the JavaScript surface knows of the host.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// `process.env` at first use.
    pub env: Arc<BTreeMap<String, String>>,
    /// `process.execPath`.
    pub exec_path: PathBuf,
    /// `process.versions.modules` of `exec_path`, if it is known.
    pub node_abi: Option<String>,
    /// `os.tmpdir()`.
    pub tmpdir: PathBuf,
}

impl Settings {
    /// Reads options (the JSON of `ExecutorOptions`) and the environment.
    pub fn read(options: &Value, facts: &HostFacts) -> Result<Self, SandboxError> {
        let empty = Map::new();
        let options = match options {
            Value::Null => &empty,
            Value::Object(map) => map,
            other => return Err(invalid(format!("the options must be an object, not {other}"))),
        };
        let mut reader =
            Reader { options, env: &facts.env, origins: BTreeMap::new(), variables: BTreeMap::new() };
        let settings = reader.settings(&facts.exec_path)?;
        reader.refuse_unknown()?;
        let unknown_variables = reader.unknown_variables();
        Ok(Self {
            node_given: settings.node_path.clone(),
            origins: reader.origins,
            variables: reader.variables,
            unknown_variables,
            ..settings
        })
    }

    /// The variables of the host that pass to a tool.
    pub fn tool_env(&self, env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let passes = |name: &str| match &self.env {
            EnvPolicy::Inherit => true,
            EnvPolicy::Allow(more) => {
                ENV_ALWAYS.iter().any(|pattern| matches(pattern, name))
                    || more.iter().any(|pattern| matches(pattern, name))
            }
        };
        env.iter()
            // PATH says where programs are, not what to know: a tool's own children need it.
            .filter(|(name, _)| name.as_str() == "PATH" || passes(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// Whether the option `env` names this variable: its value is read anew for each call. PATH is settled once, with what is put before it.
    pub fn lists(&self, name: &str) -> bool {
        let named = match &self.env {
            EnvPolicy::Inherit => true,
            EnvPolicy::Allow(patterns) => patterns.iter().any(|pattern| matches(pattern, name)),
        };
        named && name != "PATH"
    }

    /// The variables that Node itself must see while it boots.
    pub fn boot_env(&self, env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        env.iter()
            .filter(|(name, _)| ENV_BOOT.iter().any(|pattern| matches(pattern, name)))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// `*` at the end of a pattern stands for any rest.
fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

fn invalid(message: impl Into<String>) -> SandboxError {
    SandboxError::new(Code::InvalidConfig, Phase::Validate, message)
}

/// Option name, variable, for messages and look-ups.
struct Key {
    option: &'static str,
    variable: &'static str,
}

const fn key(option: &'static str, variable: &'static str) -> Key {
    Key { option, variable }
}

/// A value as it was found.
enum Found<'a> {
    Absent,
    Option(&'a Value),
    Variable(String, &'a str),
}

struct Reader<'a> {
    options: &'a Map<String, Value>,
    env: &'a BTreeMap<String, String>,
    origins: BTreeMap<&'static str, Origin>,
    /// Those that were looked for.
    variables: BTreeMap<&'static str, String>,
}

impl<'a> Reader<'a> {
    fn settings(&mut self, exec_path: &std::path::Path) -> Result<Settings, SandboxError> {
        let (network, network_rules) = self.network(&key("network", "NETWORK"))?;
        Ok(Settings {
            timeout: self.duration(
                &key("timeoutMs", "AGENTS_FUNCTION_TOOL_EXECUTION_TIMEOUT_MS_DEFAULT"),
                30_000.0,
                1.0,
            )?,
            pool_ttl: self.duration(&key("poolTtlMs", "POOL_TTL_MS"), 300_000.0, 0.0)?,
            max_use_count: self.count(&key("maxUseCount", "MAX_USE_COUNT"), 50)?,
            max_output_bytes: self.bytes(&key("maxOutputBytes", "MAX_OUTPUT_SIZE_BYTES"), 1_048_576.0)?,
            queue_wait: self.duration(&key("queueWaitMs", "QUEUE_WAIT_TIMEOUT_MS"), 30_000.0, 0.0)?,
            cleanup_interval: self.duration(
                &key("cleanupIntervalMs", "CLEANUP_INTERVAL_MS"),
                60_000.0,
                1.0,
            )?,
            limits: self.limits()?,
            cpu_thousandths: self.thousandths(&key("cpus", "CPUS"), MIN_CPUS)?,
            zygote_memory_mb: self.whole(&key("zygoteMemoryMb", "ZYGOTE_MEMORY_MB"), 0.0)?,
            cgroup_dir: self.path(&key("cgroupDir", "CGROUP_DIR"))?,
            max_concurrent: self.optional_count(&key("maxConcurrent", "MAX_CONCURRENT"))?,
            linger: self.duration(&key("lingerMs", "LINGER_MS"), 250.0, 0.0)?,
            install_timeout: self.duration(&key("installTimeoutMs", "INSTALL_TIMEOUT_MS"), 50_000.0, 1.0)?,
            install_scripts: self.install_scripts(&key("installScripts", "INSTALL_SCRIPTS"))?,
            dependencies: self.dependencies(&key("dependencies", "DEPENDENCIES"))?,
            env: self.env_policy(&key("env", "ENV"))?,
            provider_env: self.provider_env(&key("providerEnv", "PROVIDER_ENV"))?,
            isolation_required: self.isolation(&key("isolation", "ISOLATION"))?,
            network,
            network_rules,
            run_folders: self
                .choice(
                    &key("runFolders", "RUN_FOLDERS"),
                    &[("auto", RunFolders::Auto), ("disk", RunFolders::Disk), ("memory", RunFolders::Memory)],
                )?
                .unwrap_or(RunFolders::Auto),
            start: self.choice(
                &key("start", "START"),
                &[("zygote", Rung::Zygote), ("standby", Rung::Standby), ("spawn", Rung::Spawn)],
            )?,
            store_dir: self.store_dir(&key("storeDir", "STORE_DIR"))?,
            base_store_dirs: self.paths(&key("baseStoreDirs", "BASE_STORE_DIRS"))?,
            store_max_bytes: self.bytes(&key("storeMaxBytes", "STORE_MAX_BYTES"), 2_147_483_648.0)?,
            tenant_key: self.text(&key("tenantKey", "TENANT_KEY"))?,
            node_path: self.path(&key("nodePath", "NODE_PATH"))?.unwrap_or_else(|| exec_path.to_path_buf()),
            node_given: PathBuf::new(),
            npm_path: self.path(&key("npmPath", "NPM_PATH"))?,
            origins: BTreeMap::new(),
            variables: BTreeMap::new(),
            unknown_variables: Vec::new(),
        })
    }

    fn limits(&mut self) -> Result<CallLimits, SandboxError> {
        let default = CallLimits::DEFAULT;
        Ok(CallLimits {
            memory_mb: self.whole(&key("memoryMb", "MEMORY_MB"), MIN_MEMORY_MB)?.unwrap_or(default.memory_mb),
            native_memory_mb: self
                .count(&key("nativeMemoryMb", "NATIVE_MEMORY_MB"), default.native_memory_mb)?,
            cpu_seconds: self.optional_count(&key("cpuSeconds", "CPU_SECONDS"))?,
            open_files: self
                .whole(&key("openFiles", "OPEN_FILES"), MIN_OPEN_FILES)?
                .unwrap_or(default.open_files),
            file_size_mb: self.count(&key("fileSizeMb", "FILE_SIZE_MB"), default.file_size_mb)?,
            disk_mb: self.count(&key("diskMb", "DISK_MB"), default.disk_mb)?,
            processes: self.count(&key("maxProcesses", "MAX_PROCESSES"), default.processes)?,
        })
    }

    /// After everything known was asked for, what is left in the options is a slip of the pen.
    fn refuse_unknown(&self) -> Result<(), SandboxError> {
        let Some(unknown) = self.options.keys().find(|name| !self.origins.contains_key(name.as_str())) else {
            return Ok(());
        };
        let near = self.origins.keys().find(|known| known.eq_ignore_ascii_case(unknown));
        let hint = near.map_or_else(
            || format!("known are: {}", self.origins.keys().copied().collect::<Vec<_>>().join(", ")),
            |known| format!("did you mean \"{known}\"?"),
        );
        Err(invalid(format!("unknown option \"{unknown}\"; {hint}")))
    }

    /// Slips of the pen, and variables of a version that knows more: no reason to refuse every call, but one to say so.
    fn unknown_variables(&self) -> Vec<String> {
        let is_unknown = |name: &&String| {
            name.starts_with(PREFIX)
                && !self.variables.values().any(|known| known == *name)
                && !HOST_VARIABLES.contains(&name.as_str())
        };
        self.env.keys().filter(is_unknown).cloned().collect()
    }

    fn find(&mut self, key: &Key) -> Found<'a> {
        let variable = if key.variable.starts_with("AGENTS_") {
            key.variable.to_owned()
        } else {
            format!("{PREFIX}{}", key.variable)
        };
        self.variables.insert(key.option, variable.clone());
        let found = match self.options.get(key.option) {
            Some(value) if !value.is_null() => Found::Option(value),
            _ => match self.env.get(&variable).map(|text| text.trim()) {
                Some(text) if !text.is_empty() => Found::Variable(variable, text),
                _ => Found::Absent,
            },
        };
        let origin = match found {
            Found::Absent => Origin::Default,
            Found::Option(_) => Origin::Option,
            Found::Variable(..) => Origin::Variable,
        };
        self.origins.insert(key.option, origin);
        found
    }

    fn number(&mut self, key: &Key, min: f64) -> Result<Option<f64>, SandboxError> {
        let (subject, shown, number) = match self.find(key) {
            Found::Absent => return Ok(None),
            Found::Option(value) => (format!("option \"{}\"", key.option), value.to_string(), value.as_f64()),
            Found::Variable(name, text) => {
                (format!("variable {name}"), format!("\"{text}\""), js_number(text))
            }
        };
        match number {
            Some(number) if number.is_finite() && number >= min => Ok(Some(number)),
            _ => Err(invalid(format!("{subject} must be a number of at least {min}, not {shown}"))),
        }
    }

    fn duration(&mut self, key: &Key, default_ms: f64, min_ms: f64) -> Result<Duration, SandboxError> {
        Ok(millis(self.number(key, min_ms)?.unwrap_or(default_ms)))
    }

    fn optional_count(&mut self, key: &Key) -> Result<Option<u32>, SandboxError> {
        self.whole(key, 1.0)
    }

    fn whole(&mut self, key: &Key, min: f64) -> Result<Option<u32>, SandboxError> {
        // A fraction counts as the next whole number, as in the original's `useCount < limit`.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range of u32 first"
        )]
        Ok(self.number(key, min)?.map(|number| number.ceil().min(f64::from(u32::MAX)) as u32))
    }

    /// A number with a fraction, in thousandths.
    fn thousandths(&mut self, key: &Key, min: f64) -> Result<Option<u32>, SandboxError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range of u32 first"
        )]
        Ok(self.number(key, min)?.map(|number| (number * 1000.0).round().min(f64::from(u32::MAX)) as u32))
    }

    fn count(&mut self, key: &Key, default: u32) -> Result<u32, SandboxError> {
        Ok(self.optional_count(key)?.unwrap_or(default))
    }

    fn bytes(&mut self, key: &Key, default: f64) -> Result<u64, SandboxError> {
        let number = self.number(key, 1.0)?.unwrap_or(default);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1; `as` saturates at the top"
        )]
        Ok(number.ceil() as u64)
    }

    fn text(&mut self, key: &Key) -> Result<Option<String>, SandboxError> {
        match self.find(key) {
            Found::Absent => Ok(None),
            Found::Variable(_, text) => Ok(Some(text.to_owned())),
            Found::Option(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
            Found::Option(other) => Err(wrong(key, "a text that is not empty", other)),
        }
    }

    fn path(&mut self, key: &Key) -> Result<Option<PathBuf>, SandboxError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let path = PathBuf::from(&text);
        if text.contains('\0') {
            return Err(wrong(key, "a path without NUL characters", &text.escape_debug()));
        }
        if path.is_absolute() { Ok(Some(path)) } else { Err(wrong(key, "an absolute path", &text)) }
    }

    fn store_dir(&mut self, key: &Key) -> Result<Option<PathBuf>, SandboxError> {
        self.path(key)?.map(|path| open_to_modules(key, path)).transpose()
    }

    fn paths(&mut self, key: &Key) -> Result<Vec<PathBuf>, SandboxError> {
        let names = self.list(key, if cfg!(windows) { ';' } else { ':' }, "a list of absolute paths")?;
        if let Some(relative) = names.iter().find(|name| !PathBuf::from(name).is_absolute()) {
            return Err(wrong(key, "a list of absolute paths", relative));
        }
        names.into_iter().map(|name| open_to_modules(key, PathBuf::from(name))).collect()
    }

    fn list(&mut self, key: &Key, separator: char, expected: &str) -> Result<Vec<String>, SandboxError> {
        match self.find(key) {
            Found::Absent => Ok(Vec::new()),
            Found::Variable(_, text) => not_empty(key, expected, text, split(text, separator)),
            Found::Option(value) => strings(value).ok_or_else(|| wrong(key, expected, value)),
        }
    }

    fn choice<T: Copy>(&mut self, key: &Key, choices: &[(&str, T)]) -> Result<Option<T>, SandboxError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        choices.iter().find(|(name, _)| *name == text).map(|(_, value)| Some(*value)).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            wrong(key, &format!("one of {}", names.join(", ")), &text)
        })
    }

    fn install_scripts(&mut self, key: &Key) -> Result<InstallScripts, SandboxError> {
        let value = match self.find(key) {
            Found::Absent => return Ok(InstallScripts::default()),
            Found::Variable(_, text @ ("run" | "ignore")) => Value::from(text),
            Found::Variable(_, text) => Value::from(not_empty(
                key,
                "\"run\", \"ignore\" or a list of package names",
                text,
                split(text, ','),
            )?),
            Found::Option(value) => value.clone(),
        };
        serde_json::from_value(value.clone()).map_err(|error| {
            wrong(key, &format!("\"run\", \"ignore\" or a list of package names ({error})"), &value)
        })
    }

    fn env_policy(&mut self, key: &Key) -> Result<EnvPolicy, SandboxError> {
        const EXPECTED: &str = "\"inherit\" or a list of variable names (a `*` may end a name)";
        match self.find(key) {
            Found::Absent => Ok(EnvPolicy::Allow(Vec::new())),
            Found::Variable(_, "inherit") => Ok(EnvPolicy::Inherit),
            Found::Variable(_, text) => {
                variable_names(key, EXPECTED, not_empty(key, EXPECTED, text, split(text, ','))?)
            }
            Found::Option(Value::String(text)) if text == "inherit" => Ok(EnvPolicy::Inherit),
            Found::Option(value) => {
                let names = strings(value).ok_or_else(|| wrong(key, EXPECTED, value))?;
                variable_names(key, EXPECTED, names)
            }
        }
    }

    /// What the texts show of a bad value has no values in it: they may be secrets.
    fn provider_env(&mut self, key: &Key) -> Result<BTreeMap<String, String>, SandboxError> {
        const EXPECTED: &str = "an object of texts by variable name (in the variable: as JSON)";
        let parsed = match self.find(key) {
            Found::Absent => return Ok(BTreeMap::new()),
            Found::Variable(_, text) => serde_json::from_str(text).ok(),
            Found::Option(value) => serde_json::from_value(value.clone()).ok(),
        };
        let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
        parsed
            .filter(|map: &BTreeMap<String, String>| map.keys().all(is_name))
            .ok_or_else(|| wrong(key, EXPECTED, &"what it is (not shown: it may be secret)"))
    }

    fn network(&mut self, key: &Key) -> Result<(Network, Arc<Rules>), SandboxError> {
        let value = match self.find(key) {
            Found::Absent => return Ok((Network::Open, Arc::default())),
            Found::Variable(_, text) if text.starts_with('{') => serde_json::from_str(text)
                .map_err(|error| wrong(key, &format!("{NETWORK_FORMS} ({error})"), &format!("\"{text}\"")))?,
            Found::Variable(_, text) => Value::from(text),
            Found::Option(value) => value.clone(),
        };
        network_of(&value).map_err(|problem| match problem {
            NetworkProblem::Form => wrong(key, NETWORK_FORMS, &value),
            NetworkProblem::Rule(text) => {
                invalid(format!("option \"{}\" (variable {PREFIX}{}): {text}", key.option, key.variable))
            }
        })
    }

    fn isolation(&mut self, key: &Key) -> Result<Option<Tier>, SandboxError> {
        const EXPECTED: &str = "{ \"require\": \"base\" | \"confined\" | \"isolated\" }";
        let name = match self.find(key) {
            Found::Absent => return Ok(None),
            Found::Variable(_, text) => text.to_owned(),
            Found::Option(value) => match value.as_object() {
                Some(map) if map.len() == 1 => match map.get("require") {
                    Some(Value::String(name)) => name.clone(),
                    _ => return Err(wrong(key, EXPECTED, value)),
                },
                _ => return Err(wrong(key, EXPECTED, value)),
            },
        };
        match name.as_str() {
            "base" => Ok(Some(Tier::Base)),
            "confined" => Ok(Some(Tier::Confined)),
            "isolated" => Ok(Some(Tier::Isolated)),
            other => Err(wrong(key, EXPECTED, &other)),
        }
    }

    fn dependencies(&mut self, key: &Key) -> Result<DependencyPolicy, SandboxError> {
        let value = match self.find(key) {
            Found::Absent => return Ok(DependencyPolicy::default()),
            Found::Variable(name, text) => serde_json::from_str(text).map_err(|error| {
                invalid(format!("variable {name} must be the JSON of the option \"dependencies\": {error}"))
            })?,
            Found::Option(value) => value.clone(),
        };
        if !value.is_object() {
            // serde would take a list for the fields in their order.
            return Err(wrong(key, "a dependency policy (an object)", &value));
        }
        serde_json::from_value(value.clone())
            .map_err(|error| wrong(key, &format!("a dependency policy ({error})"), &value))
    }
}

fn wrong(key: &Key, expected: &str, found: &dyn Display) -> SandboxError {
    let variable = if key.variable.starts_with("AGENTS_") {
        key.variable.to_owned()
    } else {
        format!("{PREFIX}{}", key.variable)
    };
    invalid(format!("option \"{}\" (variable {variable}) must be {expected}, not {found}", key.option))
}

/// A list that names nothing was meant to name something.
fn not_empty(key: &Key, expected: &str, text: &str, list: Vec<String>) -> Result<Vec<String>, SandboxError> {
    if list.is_empty() { Err(wrong(key, expected, &format!("\"{text}\""))) } else { Ok(list) }
}

/// Names that a variable can have; a `*` may end one.
fn variable_names(key: &Key, expected: &str, names: Vec<String>) -> Result<EnvPolicy, SandboxError> {
    let is_name = |name: &String| {
        let start = name.strip_suffix('*').unwrap_or(name);
        let is_odd = |one: char| one.is_whitespace() || one.is_control() || matches!(one, '=' | '*' | ',');
        !name.is_empty() && !start.contains(is_odd) && !name.eq_ignore_ascii_case("inherit")
    };
    match names.iter().find(|name| !is_name(name)) {
        Some(odd) => Err(wrong(key, expected, &format!("\"{odd}\""))),
        None => Ok(EnvPolicy::Allow(names)),
    }
}

/// Whether Node refuses to import modules from below `path`: it takes an encoded backslash in an address for a way to trick it.
pub fn is_closed_to_modules(path: &Path) -> bool {
    cfg!(not(windows)) && path.to_string_lossy().contains('\\')
}

fn open_to_modules(key: &Key, path: PathBuf) -> Result<PathBuf, SandboxError> {
    if is_closed_to_modules(&path) {
        let expected = "a path without a backslash, below which Node imports no modules";
        return Err(wrong(key, expected, &path.display()));
    }
    Ok(path)
}

fn split(text: &str, separator: char) -> Vec<String> {
    text.split(separator).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// A duration of `ms` milliseconds, cut to [`DURATION_LIMIT_MS`]; not a number counts as zero.
pub fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64(ms.clamp(0.0, DURATION_LIMIT_MS).max(0.0) / 1000.0)
}

/// A number as JavaScript's `Number(text)` reads it, as far as people write it into variables.
fn js_number(text: &str) -> Option<f64> {
    let radix = |prefix: [&str; 2], radix| {
        let digits = text.strip_prefix(prefix[0]).or_else(|| text.strip_prefix(prefix[1]))?;
        // A sign is no digit, though Rust takes one.
        let digits = Some(digits).filter(|digits| !digits.starts_with('+'))?;
        #[expect(clippy::cast_precision_loss, reason = "JavaScript loses the same digits")]
        u64::from_str_radix(digits, radix).ok().map(|number| number as f64)
    };
    radix(["0x", "0X"], 16)
        .or_else(|| radix(["0o", "0O"], 8))
        .or_else(|| radix(["0b", "0B"], 2))
        .or_else(|| text.parse::<f64>().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(options: &Value, env: &[(&str, &str)]) -> Result<Settings, SandboxError> {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let facts = HostFacts {
            env: Arc::new(env),
            exec_path: "/bin/node".into(),
            node_abi: None,
            tmpdir: "/tmp".into(),
        };
        Settings::read(options, &facts)
    }

    fn message(result: Result<Settings, SandboxError>) -> String {
        let error = result.expect_err("accepted");
        assert_eq!(error.code, Code::InvalidConfig);
        error.message
    }

    #[test]
    fn defaults_are_the_originals() {
        let settings = read(&Value::Null, &[]).unwrap();
        assert_eq!(settings.timeout, Duration::from_secs(30));
        assert_eq!(settings.pool_ttl, Duration::from_mins(5));
        assert_eq!((settings.max_use_count, settings.max_output_bytes), (50, 1_048_576));
        assert_eq!(settings.node_path, PathBuf::from("/bin/node"));
        assert!(settings.origins.values().all(|origin| *origin == Origin::Default));
    }

    #[test]
    fn an_option_wins_over_its_variable_and_an_empty_variable_is_none() {
        let env = [
            ("AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS", "7"),
            ("AGENTS_FUNCTION_TOOL_SANDBOX_MEMORY_MB", " "),
        ];
        let settings = read(&json!({ "poolTtlMs": 9 }), &env).unwrap();
        assert_eq!((settings.pool_ttl, settings.limits.memory_mb), (Duration::from_millis(9), 1024));
        assert_eq!(
            (settings.origins["poolTtlMs"], settings.origins["memoryMb"]),
            (Origin::Option, Origin::Default)
        );
        assert_eq!(read(&Value::Null, &env).unwrap().origins["poolTtlMs"], Origin::Variable);
    }

    #[test]
    fn numbers_in_variables_are_read_as_javascript_does() {
        for (text, bytes) in [("1e3", 1000), (" 5 ", 5), ("0x10", 16), ("1.5", 2)] {
            let env = [("AGENTS_FUNCTION_TOOL_SANDBOX_MAX_OUTPUT_SIZE_BYTES", text)];
            assert_eq!(read(&Value::Null, &env).unwrap().max_output_bytes, bytes, "{text}");
        }
    }

    #[test]
    fn bad_values_name_the_variable_or_option() {
        for text in ["abc", "Infinity", "NaN", "-1"] {
            let env = [("AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS", text)];
            assert!(
                message(read(&Value::Null, &env))
                    .contains("AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS"),
                "{text}"
            );
        }
        for (options, part) in [
            (json!({ "lingerMs": "x" }), "lingerMs"),
            (json!({ "storeDir": "relative" }), "absolute"),
            (json!({ "timeoutms": 1 }), "did you mean \"timeoutMs\"?"),
            (json!({ "isolation": "confined" }), "require"),
            (json!({ "network": "off" }), "\"open\", \"internet\", \"none\""),
            (
                json!({ "network": { "allow": ["https://x.example"] } }),
                "network.allow: \"https://x.example\" is no rule",
            ),
            (json!({ "network": 7 }), "\"open\", \"internet\""),
            (json!({ "runFolders": "ram" }), "\"auto\", \"disk\", \"memory\""),
            (json!({ "dependencies": { "alow": [] } }), "dependencies"),
            (json!([]), "object"),
        ] {
            assert!(message(read(&options, &[])).contains(part), "{options}");
        }
    }

    #[test]
    fn a_value_without_meaning_is_named_whatever_it_is_of() {
        for (name, texts) in [
            ("INSTALL_SCRIPTS", &["a b", "=true", ",", "run,../x", "RUN NOW", "@/x"][..]),
            ("ENV", &["=,", ",", "A B", "A=1", "*A", "A*B", "Inherit", "inherit,A", "A,=", "A**"]),
            ("BASE_STORE_DIRS", &[":", "relative", "/a:b", "/a\\b"]),
            ("STORE_DIR", &["relative", "/a\\b", "~/x"]),
            ("NODE_PATH", &["node", "./node"]),
            ("NPM_PATH", &["npm"]),
            (
                "DEPENDENCIES",
                &[
                    "{",
                    "[]",
                    "lodash",
                    "{\"allow\":\"x\"}",
                    "{\"allow\":[\"a b\"]}",
                    "{\"specs\":[\"ftp\"]}",
                    "{\"minReleaseAgeDays\":-1}",
                ],
            ),
            ("ISOLATION", &["full", "{\"require\":\"base\"}", "base confined"]),
            ("NETWORK", &["off", "OPEN", "true"]),
            ("START", &["fork", "Zygote"]),
            ("MEMORY_MB", &["0", "15", "-5", "0x", "0x+5", "1_000", "1,5", "12MB", "true"]),
            ("NATIVE_MEMORY_MB", &["0", "all"]),
            ("CPU_SECONDS", &["0", "1s"]),
            ("CPUS", &["0", "0.001", "all"]),
            ("ZYGOTE_MEMORY_MB", &["-1", "2GB"]),
            ("CGROUP_DIR", &["server", "./x"]),
            ("OPEN_FILES", &["0", "63"]),
            ("FILE_SIZE_MB", &["0", "1GB"]),
            ("DISK_MB", &["0", "none"]),
            ("MAX_PROCESSES", &["0", "few"]),
            ("MAX_CONCURRENT", &["0", "no"]),
            ("STORE_MAX_BYTES", &["0", "2GiB"]),
        ] {
            let variable = format!("{PREFIX}{name}");
            for text in texts {
                let env = [(variable.as_str(), *text)];
                let Err(error) = read(&Value::Null, &env) else { panic!("{variable}={text} is accepted") };
                assert_eq!(error.code, Code::InvalidConfig);
                assert!(error.message.contains(&variable), "{}", error.message);
            }
        }
        for (name, text) in [
            ("INSTALL_SCRIPTS", "sharp, @acme/x"),
            ("ENV", "A_*, ProgramFiles(x86) ,b"),
            ("ENV", "*"),
            ("BASE_STORE_DIRS", "/a::/b"),
            ("OPEN_FILES", "64"),
        ] {
            let variable = format!("{PREFIX}{name}");
            read(&Value::Null, &[(variable.as_str(), text)]).unwrap();
        }
    }

    #[test]
    fn variables_that_set_nothing_are_told() {
        let of = |name: &str| format!("{PREFIX}{name}");
        let (slip, host, known) = (of("ISOLATOIN"), of("VCPUS_DEFAULT"), of("START"));
        let env =
            [(slip.as_str(), "confined"), (host.as_str(), "2"), (known.as_str(), "spawn"), ("OTHER", "x")];
        assert_eq!(read(&Value::Null, &env).unwrap().unknown_variables, [slip]);
    }

    #[test]
    fn durations_beyond_the_limit_are_cut_not_wrapped() {
        assert_eq!(millis(2f64.powi(31) + 1000.0), millis(DURATION_LIMIT_MS));
        assert_eq!(millis(f64::NAN), Duration::ZERO);
    }

    #[test]
    fn only_listed_variables_pass_to_tools() {
        let host: BTreeMap<String, String> =
            ["TZ", "LC_ALL", "PATH", "DATABASE_URL", "MY_ONE", "MY_TWO", "NODE_OPTIONS"]
                .map(|name| (name.to_owned(), "x".to_owned()))
                .into();
        let passed =
            |options: Value| read(&options, &[]).unwrap().tool_env(&host).into_keys().collect::<Vec<_>>();
        assert_eq!(passed(json!({})), ["LC_ALL", "PATH", "TZ"]);
        assert_eq!(passed(json!({ "env": ["MY_*"] })), ["LC_ALL", "MY_ONE", "MY_TWO", "PATH", "TZ"]);
        assert_eq!(passed(json!({ "env": "inherit" })).len(), host.len());
        assert!(
            !read(&json!({ "env": "inherit" }), &[]).unwrap().boot_env(&host).contains_key("NODE_OPTIONS")
        );
    }
}
