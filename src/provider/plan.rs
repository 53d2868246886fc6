//! What a call needs, worked out before anything is spent on it. Pure.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::desk::Wish;
use crate::{
    config::{HostFacts, Network, Settings, Tier, millis},
    error::{Code, Phase, SandboxError},
    install::{InstallScripts, policy},
    pool::{Policy, PoolKey, key::hex},
    redact::Redactor,
    source::{self, Kind, Prepared, Runtime},
    worker::protocol,
};

/// A request up to this size is planned in so short a time that nobody notices.
const QUICK_REQUEST_BYTES: usize = 32 * 1024;
/// How much longer than its timeout a call's sandbox has to live: the job has to get there, the result back, and what the
/// function left running has its linger.
pub const LIFETIME_MARGIN: Duration = Duration::from_secs(15);
/// A new sandbox is asked to live so much longer than its first call needs, at most: it ends by itself if its host dies.
pub const MAX_REUSE_LIFETIME: Duration = Duration::from_mins(30);

/// A call as the JavaScript surface sends it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    /// Name of the provider.
    provider: String,
    /// As the caller gave it; all of it but the timeout tells sandboxes apart.
    sandbox_config: BTreeMap<String, Value>,
    source: String,
    #[serde(default)]
    dependencies: BTreeMap<String, String>,
    timeout_ms: Option<f64>,
    runtime: Option<String>,
    /// Variables of this call. They get into its sandbox with its job, and tell nothing apart.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// Settings, read once.
#[derive(Debug, Clone)]
pub struct Rules {
    settings: Result<Arc<Settings>, SandboxError>,
}

/// What a call needs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Calls with the same key share a sandbox.
    pub key: PoolKey,
    /// For the desk.
    pub wish: Wish,
    /// Takes the call's secrets out of its errors.
    pub redactor: Redactor,
    /// For JavaScript.
    pub details: Details,
}

/// What JavaScript needs to act.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Of the dependency set, for logs.
    pub dependency_hash: String,
    /// Of everything that a sandbox has in common but its dependencies: a digest, credentials are in it.
    pub scope: String,
    /// Time of the function.
    pub timeout_ms: f64,
    /// How long a sandbox has to live for the call.
    pub needed_lifetime_ms: f64,
    /// How long a new sandbox is asked to live: what the call needs once it is prepared, and some time for others.
    pub lifetime_ms: f64,
    /// How long an idle sandbox is kept.
    pub pool_ttl_ms: f64,
    /// Time of a creation with its installation.
    pub install_timeout_ms: f64,
    /// Between two looks for idle sandboxes.
    pub cleanup_interval_ms: f64,
    /// How long what the function left running may go on.
    pub linger_ms: f64,
    /// Budget of stdout, stderr and result.
    pub max_output_bytes: u64,
    /// Heap limit.
    pub memory_mb: u32,
    /// What is to be installed.
    pub dependencies: BTreeMap<String, String>,
    /// Whose install scripts run.
    pub install_scripts: InstallScripts,
    /// Days that a version must be old to be installed.
    pub min_release_age_days: Option<f64>,
    /// Variables that the code reads and that have a value.
    pub env: BTreeMap<String, String>,
    /// Variables that the code reads.
    pub env_names: Vec<String>,
    /// What the worker compiles.
    pub code: String,
    /// The worker's job, but for what the sandbox knows.
    pub job: JobPart,
}

/// See `docs/worker-protocol.md`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobPart {
    version: u32,
    kind: Kind,
    line_offset: i32,
    column_offset: i32,
    source_map: Option<String>,
    max_result_bytes: u64,
}

impl Rules {
    /// Never fails: what is wrong becomes the answer of every call.
    pub fn new(options_json: &str, env_json: &str) -> Self {
        Self { settings: read(options_json, env_json).map(Arc::new) }
    }

    /// [`Rules::plan`], on a thread of its own where it could take long enough for others to notice.
    pub fn plan_then(
        &self,
        request_json: String,
        done: impl FnOnce(Result<Plan, SandboxError>) + Send + 'static,
    ) {
        if request_json.len() <= QUICK_REQUEST_BYTES {
            return done(self.plan(&request_json));
        }
        let rules = self.clone();
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = move || {
            if let Ok((request_json, done)) = receiver.recv() {
                let done: Box<dyn FnOnce(Result<Plan, SandboxError>) + Send> = done;
                let request_json: String = request_json;
                done(rules.plan(&request_json));
            }
        };
        match thread::Builder::new().name("sandbox-plan".to_owned()).spawn(work) {
            // It waits for exactly this.
            Ok(_) => drop(sender.send((request_json, Box::new(done)))),
            Err(error) => {
                let text = format!("No thread to read the code on: {error}");
                done(Err(SandboxError::new(Code::StartFailed, Phase::Validate, text)));
            }
        }
    }

    /// What the call needs, or why it cannot run.
    pub fn plan(&self, request_json: &str) -> Result<Plan, SandboxError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let request: Request = serde_json::from_str(request_json).map_err(|error| {
            let text = format!("the call cannot be read: {error}");
            SandboxError::new(Code::InvalidConfig, Phase::Validate, text)
        })?;
        policy::check(&request.dependencies, &settings.dependencies)?;
        refuse_local_specs(&request.dependencies)?;
        let runtime = Runtime::named(request.runtime.as_deref())
            .map_err(|text| SandboxError::new(Code::InvalidConfig, Phase::Validate, text))?;
        let prepared = source::prepare(&request.source, runtime)
            .map_err(|error| SandboxError::new(Code::InvalidSource, Phase::Validate, error.message))?;
        Ok(Self::with(settings, request, prepared))
    }

    fn with(settings: &Settings, request: Request, prepared: Prepared) -> Plan {
        let timeout = request.timeout_ms.map_or(settings.timeout, millis);
        let lifetime = timeout + settings.linger + LIFETIME_MARGIN;
        // It may be created in nearly all of its time, and installed in nearly all of its own.
        let preparation = 2 * settings.install_timeout;
        let scope = scope(settings, &request);
        let redactor = Redactor::new(request.env.values());
        let key = PoolKey::new(&request.dependencies, scope.as_str());
        let env_names = source::env_names(&prepared);
        let given = |name: &String| Some((name.clone(), settings.provider_env.get(name)?.clone()));
        let details = Details {
            dependency_hash: key.dependency_hash().to_owned(),
            scope,
            timeout_ms: as_ms(timeout),
            needed_lifetime_ms: as_ms(lifetime),
            lifetime_ms: as_ms(lifetime + preparation + settings.pool_ttl.min(MAX_REUSE_LIFETIME)),
            pool_ttl_ms: as_ms(settings.pool_ttl),
            install_timeout_ms: as_ms(settings.install_timeout),
            cleanup_interval_ms: as_ms(settings.cleanup_interval),
            linger_ms: as_ms(settings.linger),
            max_output_bytes: settings.max_output_bytes,
            memory_mb: settings.limits.memory_mb,
            dependencies: request.dependencies,
            install_scripts: settings.install_scripts.clone(),
            min_release_age_days: settings.dependencies.min_release_age_days,
            env: env_names.iter().filter_map(given).collect(),
            env_names,
            code: prepared.code,
            job: JobPart {
                version: protocol::VERSION,
                kind: prepared.kind,
                line_offset: prepared.line_offset,
                column_offset: prepared.column_offset,
                source_map: prepared.source_map,
                max_result_bytes: settings.max_output_bytes,
            },
        };
        let policy = Policy { ttl: settings.pool_ttl, max_use_count: settings.max_use_count };
        Plan { key, wish: Wish { policy, lifetime }, redactor, details }
    }
}

fn read(options_json: &str, env_json: &str) -> Result<Settings, SandboxError> {
    let bad = |what: &str, error| {
        SandboxError::new(Code::InvalidConfig, Phase::Validate, format!("{what} cannot be read: {error}"))
    };
    let options: Value = serde_json::from_str(options_json).map_err(|error| bad("the options", error))?;
    let env: BTreeMap<String, String> =
        serde_json::from_str(env_json).map_err(|error| bad("the environment", error))?;
    let settings = Settings::read(&options, &HostFacts { env: Arc::new(env), ..HostFacts::default() })?;
    refuse_what_cannot_be_enforced(&settings)?;
    Ok(settings)
}

/// Isolation never weakens silently. Tiers are of this machine; what a provider's have is not known here.
fn refuse_what_cannot_be_enforced(settings: &Settings) -> Result<(), SandboxError> {
    let refuse = |what: &str| {
        let text = format!(
            "{what} is enforced on this machine only: a function that a provider runs cannot have it"
        );
        Err(SandboxError::new(Code::IsolationUnavailable, Phase::Validate, text))
    };
    match settings.isolation_required {
        Some(Tier::Confined | Tier::Isolated) => refuse("isolation { require: … }"),
        _ if settings.network == Network::None => refuse("network: \"none\""),
        _ if *settings.network_rules != crate::egress::Rules::default() => {
            refuse("a rule of the option network")
        }
        _ => Ok(()),
    }
}

/// A folder of this machine is nothing there.
fn refuse_local_specs(dependencies: &BTreeMap<String, String>) -> Result<(), SandboxError> {
    let local = dependencies.iter().find(|(_, spec)| spec.starts_with("file:") || spec.starts_with('/'));
    let Some((name, spec)) = local else { return Ok(()) };
    let text = format!(
        "dependency \"{name}\": {spec} is a path of this machine, and the provider's sandbox is another one"
    );
    Err(SandboxError::new(Code::InvalidDependency, Phase::Validate, text))
}

/// Everything that keeps sandboxes apart beside dependencies, as a digest: provider, credentials, project, runtime and vcpus,
/// which the configuration holds, tenant, and what changes how dependencies are installed.
fn scope(settings: &Settings, request: &Request) -> String {
    let config: BTreeMap<_, _> =
        request.sandbox_config.iter().filter(|(name, _)| *name != "timeout").collect();
    let parts = [
        request.provider.clone(),
        canonical(&serde_json::to_value(config).unwrap_or_default()),
        settings.tenant_key.clone().unwrap_or_default(),
        canonical(&serde_json::to_value(&settings.install_scripts).unwrap_or_default()),
        canonical(&serde_json::to_value(&settings.dependencies).unwrap_or_default()),
    ];
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

/// JSON text that does not depend on the order of keys.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().collect();
            let members: Vec<_> = sorted
                .into_iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        plain => plain.to_string(),
    }
}

/// Whole milliseconds: some timers take no others.
#[expect(clippy::cast_precision_loss, reason = "some weeks, far below 2^53")]
fn as_ms(duration: Duration) -> f64 {
    duration.as_nanos().div_ceil(1_000_000) as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(options: &Value) -> Rules {
        Rules::new(&options.to_string(), "{}")
    }

    fn request(config: &Value, over: &Value) -> String {
        let mut request = json!({ "provider": "p", "sandboxConfig": config, "source": "() => 1" });
        for (name, value) in over.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        request.to_string()
    }

    fn plan(config: &Value, over: &Value) -> Plan {
        rules(&json!({})).plan(&request(config, over)).unwrap()
    }

    fn refusal(options: &Value, over: &Value) -> Code {
        rules(options).plan(&request(&json!({}), over)).unwrap_err().code
    }

    #[test]
    fn variables_of_a_call_share_a_sandbox_and_stay_out_of_errors() {
        let with = plan(&json!({}), &json!({ "env": { "KEY": "hunter2-hunter2" } }));
        assert_eq!(with.key, plan(&json!({}), &json!({})).key);
        assert!(!serde_json::to_string(&with.details).unwrap().contains("hunter2"));
        assert_eq!(with.redactor.text("a hunter2-hunter2".to_owned()), "a [redacted]");
    }

    #[test]
    fn sandboxes_are_shared_within_one_configuration_only() {
        let base = json!({ "token": "t", "teamId": "a", "projectId": "b", "runtime": "node22", "vcpus": 2 });
        let none = json!({});
        let key = plan(&base, &none).key;
        for (name, value) in
            [("token", "u"), ("teamId", "x"), ("projectId", "x"), ("runtime", "typescript"), ("vcpus", "4")]
        {
            let mut other = base.clone();
            other[name] = json!(value);
            assert!(plan(&other, &none).key != key, "{name}");
        }
        assert!(plan(&base, &json!({ "dependencies": { "a": "1" } })).key != key);
        assert!(plan(&base, &json!({ "provider": "q" })).key != key);
        let reordered = json!({ "vcpus": 2, "runtime": "node22", "projectId": "b", "teamId": "a", "token": "t", "timeout": 5 });
        assert!(plan(&reordered, &none).key == key, "order and timeout do not matter");
        assert!(!plan(&base, &none).details.scope.contains('t'), "a digest");
    }

    #[test]
    fn the_sandbox_outlives_the_timeout() {
        let plan = plan(&json!({}), &json!({ "timeoutMs": 60_000 }));
        assert!(plan.wish.lifetime >= Duration::from_mins(1) + LIFETIME_MARGIN);
    }

    #[test]
    fn a_sandbox_that_took_all_its_time_to_be_prepared_still_does() {
        let rules = rules(&json!({ "poolTtlMs": 0, "installTimeoutMs": 20_000 }));
        let details = rules.plan(&request(&json!({}), &json!({}))).unwrap().details;
        assert!(details.lifetime_ms - 2.0 * 20_000.0 >= details.needed_lifetime_ms);
    }

    #[test]
    fn times_are_whole_milliseconds() {
        let rules =
            rules(&json!({ "installTimeoutMs": 1001, "lingerMs": 0.5, "cleanupIntervalMs": 4350.25 }));
        let details = rules.plan(&request(&json!({}), &json!({ "timeoutMs": 1001 }))).unwrap().details;
        let times =
            [details.install_timeout_ms, details.linger_ms, details.cleanup_interval_ms, details.timeout_ms];
        assert_eq!(times.map(|ms| ms.to_string()), ["1001", "1", "4351", "1001"]);
    }

    #[test]
    fn only_given_values_of_names_that_the_code_reads_are_passed() {
        let rules = rules(&json!({ "providerEnv": { "A": "1", "SECRET": "2" } }));
        let plan = rules
            .plan(&request(&json!({}), &json!({ "source": "() => process.env.A + process.env.B" })))
            .unwrap();
        assert_eq!(plan.details.env_names, ["A", "B"]);
        assert_eq!(plan.details.env, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
    }

    #[test]
    fn what_cannot_run_is_refused_first() {
        let none = json!({});
        assert_eq!(refusal(&none, &json!({ "source": "(" })), Code::InvalidSource);
        assert_eq!(refusal(&none, &json!({ "dependencies": { "../x": "1" } })), Code::InvalidDependency);
        let files = json!({ "dependencies": { "specs": ["file"] } });
        assert_eq!(
            refusal(&files, &json!({ "dependencies": { "x": "file:/tmp/x" } })),
            Code::InvalidDependency
        );
        assert_eq!(refusal(&json!({ "network": "none" }), &none), Code::IsolationUnavailable);
        assert_eq!(
            refusal(&json!({ "isolation": { "require": "confined" } }), &none),
            Code::IsolationUnavailable
        );
        assert_eq!(refusal(&json!({ "providerEnv": ["A"] }), &none), Code::InvalidConfig);
        assert_eq!(refusal(&json!({ "timeoutMs": -1 }), &none), Code::InvalidConfig);
    }

    #[test]
    fn typescript_is_transformed_here() {
        let plan =
            plan(&json!({}), &json!({ "source": "(a: number): number => a", "runtime": "typescript" }));
        assert!(!plan.details.code.contains(": number"));
        assert!(plan.details.job.source_map.is_some());
    }
}
