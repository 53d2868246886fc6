//! What one call has instead of its executor: narrower limits, and the proxies of now. Pure.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

use crate::{
    config::{HostFacts, Settings},
    error::{Code, Phase, SandboxError},
    limits::{MIN_CPUS, MIN_MEMORY_MB, MIN_OPEN_FILES},
};

/// `limits` of the options of a call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CallLimits {
    memory_mb: Option<f64>,
    native_memory_mb: Option<f64>,
    cpu_seconds: Option<f64>,
    cpus: Option<f64>,
    open_files: Option<f64>,
    file_size_mb: Option<f64>,
    disk_mb: Option<f64>,
    max_processes: Option<f64>,
    max_output_bytes: Option<f64>,
}

/// The settings of an executor with the limits of a call, given as JSON.
///
/// # Errors
///
/// `INVALID_CONFIG` names the limit that is unknown, no number, or wider than the executor's.
pub fn narrowed(settings: &Settings, limits_json: &str) -> Result<Settings, SandboxError> {
    let wanted: CallLimits =
        serde_json::from_str(limits_json).map_err(|error| invalid(format!("limits of the call: {error}")))?;
    let mut settings = settings.clone();
    let limits = &mut settings.limits;
    narrow(&mut limits.memory_mb, "memoryMb", wanted.memory_mb, MIN_MEMORY_MB)?;
    narrow(&mut limits.native_memory_mb, "nativeMemoryMb", wanted.native_memory_mb, 1.0)?;
    narrow(&mut limits.open_files, "openFiles", wanted.open_files, MIN_OPEN_FILES)?;
    narrow(&mut limits.file_size_mb, "fileSizeMb", wanted.file_size_mb, 1.0)?;
    narrow(&mut limits.disk_mb, "diskMb", wanted.disk_mb, 1.0)?;
    narrow(&mut limits.processes, "maxProcesses", wanted.max_processes, 1.0)?;
    narrow_optional(&mut limits.cpu_seconds, "cpuSeconds", wanted.cpu_seconds)?;
    if let Some(cpus) = wanted.cpus {
        let most = settings.cpu_thousandths.map_or(f64::from(u32::MAX), f64::from) / 1000.0;
        check("cpus", cpus, MIN_CPUS, most, false)?;
        settings.cpu_thousandths = Some(whole(cpus * 1000.0));
    }
    if let Some(bytes) = wanted.max_output_bytes {
        #[expect(clippy::cast_precision_loss, reason = "a limit of 9 PB is none")]
        check("maxOutputBytes", bytes, 1.0, settings.max_output_bytes as f64, true)?;
        settings.max_output_bytes = u64::from(whole(bytes));
    }
    Ok(settings)
}

/// The host with other proxies, given as JSON: variables, and `null` for those that it has no more.
///
/// # Errors
///
/// `INVALID_CONFIG` where they cannot be read.
pub fn with_proxies(facts: &HostFacts, proxies_json: &str) -> Result<HostFacts, SandboxError> {
    // No value gets into the message: there may be a password in it.
    let proxies: BTreeMap<String, Option<String>> = serde_json::from_str(proxies_json)
        .map_err(|error| invalid(format!("the proxies cannot be read ({:?})", error.classify())))?;
    let mut env = BTreeMap::clone(&facts.env);
    for (name, value) in proxies {
        match value {
            Some(value) => env.insert(name, value),
            None => env.remove(&name),
        };
    }
    Ok(HostFacts { env: Arc::new(env), ..facts.clone() })
}

fn narrow(limit: &mut u32, name: &str, wanted: Option<f64>, least: f64) -> Result<(), SandboxError> {
    let Some(wanted) = wanted else { return Ok(()) };
    check(name, wanted, least, f64::from(*limit), true)?;
    *limit = whole(wanted);
    Ok(())
}

fn narrow_optional(limit: &mut Option<u32>, name: &str, wanted: Option<f64>) -> Result<(), SandboxError> {
    let Some(wanted) = wanted else { return Ok(()) };
    check(name, wanted, 1.0, limit.map_or(f64::from(u32::MAX), f64::from), true)?;
    *limit = Some(whole(wanted));
    Ok(())
}

fn check(name: &str, wanted: f64, least: f64, most: f64, is_whole: bool) -> Result<(), SandboxError> {
    if wanted >= least && wanted <= most && (!is_whole || wanted.fract() == 0.0) {
        return Ok(());
    }
    let kind = if is_whole { "a whole number" } else { "a number" };
    Err(invalid(format!(
        "limits.{name} must be {kind} from {least} to {most}, which is the executor's own limit: a call can have narrower limits, not wider ones; got {wanted}"
    )))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be in range; `as` saturates"
)]
fn whole(number: f64) -> u32 {
    number as u32
}

fn invalid(message: String) -> SandboxError {
    SandboxError::new(Code::InvalidConfig, Phase::Validate, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let options = serde_json::json!({ "memoryMb": 256, "maxProcesses": 8 });
        Settings::read(&options, &HostFacts::default()).unwrap()
    }

    #[test]
    fn a_call_gets_narrower_limits() {
        let narrow =
            narrowed(&settings(), r#"{"memoryMb":64,"cpuSeconds":3,"cpus":0.5,"maxOutputBytes":100}"#)
                .unwrap();
        assert_eq!((narrow.limits.memory_mb, narrow.limits.cpu_seconds), (64, Some(3)));
        assert_eq!((narrow.cpu_thousandths, narrow.max_output_bytes), (Some(500), 100));
        assert_eq!(narrow.limits.processes, 8, "what is not named stays");
    }

    #[test]
    fn wider_limits_and_odd_ones_are_refused_by_name() {
        for (json, named) in [
            (r#"{"memoryMb":512}"#, "limits.memoryMb must be a whole number from 16 to 256"),
            (r#"{"memoryMb":1}"#, "limits.memoryMb"),
            (r#"{"maxProcesses":2.5}"#, "limits.maxProcesses"),
            (r#"{"cpuSeconds":-1}"#, "limits.cpuSeconds"),
            (r#"{"memory":5}"#, "unknown field `memory`"),
            (r#"{"diskMb":"5"}"#, "invalid type"),
        ] {
            let message = narrowed(&settings(), json).unwrap_err().message;
            assert!(message.contains(named), "{json}: {message}");
        }
    }
    #[test]
    fn proxies_that_changed_take_the_place_of_those_before() {
        let env = [("HTTP_PROXY", "http://old.example"), ("NO_PROXY", "*"), ("TZ", "UTC")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let facts = HostFacts { env: Arc::new(env.into()), ..HostFacts::default() };
        let json =
            r#"{"HTTP_PROXY":"http://new.example","HTTPS_PROXY":"http://new.example","NO_PROXY":null}"#;
        let changed = with_proxies(&facts, json).unwrap().env;
        let told: Vec<_> = changed.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(told, ["HTTPS_PROXY=http://new.example", "HTTP_PROXY=http://new.example", "TZ=UTC"]);

        let message = with_proxies(&facts, r#"{"HTTP_PROXY":{"user":"sk-1"}}"#).unwrap_err().message;
        assert!(!message.contains("sk-1"), "{message}");
    }
}
