//! The settings in force, each with its value and where that came from, for people. Pure.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

use crate::config::{EnvPolicy, Network, Settings};

/// All settings: `option`, `variable` (the one that counts where the option is absent), `origin` (`default`, `variable`, `option`)
/// and `value`, as the option is written; `null` is none. Of what may be secret it says only that it is set.
pub fn report(settings: &Settings) -> Value {
    let told = values(settings).into_iter().map(|(option, value)| {
        json!({
            "option": option,
            "variable": settings.variables.get(option),
            "origin": settings.origins.get(option),
            "value": value,
        })
    });
    told.collect()
}

fn values(settings: &Settings) -> Vec<(&'static str, Value)> {
    let limits = &settings.limits;
    vec![
        ("timeoutMs", ms(settings.timeout)),
        ("queueWaitMs", ms(settings.queue_wait)),
        ("installTimeoutMs", ms(settings.install_timeout)),
        ("lingerMs", ms(settings.linger)),
        ("maxOutputBytes", json!(settings.max_output_bytes)),
        ("memoryMb", json!(limits.memory_mb)),
        ("nativeMemoryMb", json!(limits.native_memory_mb)),
        ("cpuSeconds", json!(limits.cpu_seconds)),
        ("cpus", json!(settings.cpu_thousandths.map(|cpus| f64::from(cpus) / 1000.0))),
        ("openFiles", json!(limits.open_files)),
        ("fileSizeMb", json!(limits.file_size_mb)),
        ("diskMb", json!(limits.disk_mb)),
        ("maxProcesses", json!(limits.processes)),
        ("zygoteMemoryMb", json!(settings.zygote_memory_mb)),
        ("maxConcurrent", json!(settings.max_concurrent)),
        ("poolTtlMs", ms(settings.pool_ttl)),
        ("maxUseCount", json!(settings.max_use_count)),
        ("cleanupIntervalMs", ms(settings.cleanup_interval)),
        ("storeMaxBytes", json!(settings.store_max_bytes)),
        ("storeDir", json!(settings.store_dir)),
        ("baseStoreDirs", json!(settings.base_store_dirs)),
        ("isolation", settings.isolation_required.map_or(Value::Null, |tier| json!({ "require": tier }))),
        ("cgroupDir", path(settings.cgroup_dir.as_ref())),
        ("network", network(settings)),
        ("runFolders", json!(settings.run_folders)),
        ("start", json!(settings.start)),
        ("installScripts", json!(settings.install_scripts)),
        ("dependencies", json!(settings.dependencies)),
        ("env", env(&settings.env)),
        ("providerEnv", if settings.provider_env.is_empty() { Value::Null } else { set() }),
        ("tenantKey", settings.tenant_key.as_ref().map_or(Value::Null, |_| set())),
        ("nodePath", path(Some(&settings.node_path))),
        ("npmPath", path(settings.npm_path.as_ref())),
    ]
}

fn ms(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn network(settings: &Settings) -> Value {
    match settings.network {
        Network::None => json!("none"),
        Network::Open => settings.network_rules.to_value(),
    }
}

fn path(path: Option<&PathBuf>) -> Value {
    path.map_or(Value::Null, |path| json!(path.to_string_lossy()))
}

fn env(policy: &EnvPolicy) -> Value {
    match policy {
        EnvPolicy::Inherit => json!("inherit"),
        EnvPolicy::Allow(names) => json!(names),
    }
}

fn set() -> Value {
    json!("(set, not shown)")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use super::*;
    use crate::config::HostFacts;

    fn of(options: &Value, env: &[(&str, &str)]) -> Vec<Value> {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let facts = HostFacts { env: Arc::new(env), exec_path: "/bin/node".into(), ..HostFacts::default() };
        let settings = Settings::read(options, &facts).unwrap();
        let names: BTreeSet<_> = values(&settings).into_iter().map(|(option, _)| option).collect();
        assert_eq!(names, settings.origins.keys().copied().collect(), "every option is told");
        serde_json::from_value(report(&settings)).unwrap()
    }

    #[test]
    fn each_setting_says_where_it_comes_from() {
        let told = of(
            &json!({ "memoryMb": 64, "isolation": { "require": "base" } }),
            &[("AGENTS_FUNCTION_TOOL_SANDBOX_DISK_MB", "7"), ("AGENTS_FUNCTION_TOOL_SANDBOX_MEMORY_MB", "9")],
        );
        let one = |option: &str| told.iter().find(|one| one["option"] == option).unwrap();
        let is = |option: &str, variable: &str, origin: &str, value: Value| {
            let variable = format!("AGENTS_FUNCTION_TOOL_{variable}");
            let expected =
                json!({ "option": option, "variable": variable, "origin": origin, "value": value });
            assert_eq!(*one(option), expected);
        };
        is("memoryMb", "SANDBOX_MEMORY_MB", "option", json!(64));
        is("diskMb", "SANDBOX_DISK_MB", "variable", json!(7));
        is("timeoutMs", "EXECUTION_TIMEOUT_MS_DEFAULT", "default", json!(30_000));
        is("cpuSeconds", "SANDBOX_CPU_SECONDS", "default", Value::Null);
        is("isolation", "SANDBOX_ISOLATION", "option", json!({ "require": "base" }));
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        let told = of(&json!({ "tenantKey": "hush-1", "providerEnv": { "KEY": "hush-2" } }), &[]);
        let text = json!(told).to_string();
        assert!(!text.contains("hush") && text.matches("not shown").count() == 2, "{text}");
    }
}
