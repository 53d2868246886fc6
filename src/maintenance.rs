//! What people who look after a machine ask for: what is in the store, room in it, the settings in force, npm as an installation
//! would find it.

use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use crate::{
    config::{HostFacts, Settings},
    config_report,
    error::{Code, Phase, SandboxError},
    executor::Answer,
    host::Host,
    install,
    store::{Keep, Pruned, Store, StoreError},
};

/// How long a prune waits for another process that makes room.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Between two looks whether it is done.
const ROOM_POLL: Duration = Duration::from_millis(50);

/// One task, as the JavaScript surface names it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "task", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Task {
    /// The settings: [`config_report::report`].
    Settings,
    /// npm: [`install::npm_report`].
    Npm,
    /// The store's folder and everything in it: `root`, and as `trees` the [`Listed`](crate::store::Listed) generations.
    Trees,
    /// Removes trees that nobody uses; answers with what was done: [`Pruned`]. One of the measures must be given.
    Prune {
        /// What all trees may take together afterwards, bytes, at least 0.
        max_bytes: Option<f64>,
        /// Milliseconds without a use after which a tree goes.
        unused_for_ms: Option<f64>,
    },
}

impl Task {
    /// Reads one.
    pub fn read(json: &str) -> Result<Self, SandboxError> {
        let task = serde_json::from_str(json)
            .map_err(|error| invalid(format!("the task cannot be read: {error}")))?;
        let measures = match task {
            Self::Prune { max_bytes, unused_for_ms } => [max_bytes, unused_for_ms],
            Self::Settings | Self::Npm | Self::Trees => return Ok(task),
        };
        let mut given = measures.into_iter().flatten().peekable();
        if given.peek().is_none() || given.any(f64::is_sign_negative) {
            return Err(invalid("prune needs maxBytes or unusedForMs, of at least 0"));
        }
        Ok(task)
    }

    /// Does it; the answer is JSON text.
    pub async fn run(self, host: &'static Host, settings: &Settings, facts: &HostFacts) -> Answer {
        let value = match self {
            Self::Settings => config_report::report(settings),
            Self::Npm => npm(settings, facts).await?,
            Self::Trees => trees(&host.store(settings, facts).await?).await?,
            Self::Prune { max_bytes, unused_for_ms } => {
                let keep = keep(max_bytes, unused_for_ms, SystemTime::now());
                json!(prune(&host.store(settings, facts).await?, keep).await?)
            }
        };
        Ok(Some(value.to_string()))
    }
}

/// Measures as the store takes them.
fn keep(max_bytes: Option<f64>, unused_for_ms: Option<f64>, now: SystemTime) -> Keep {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; `as` saturates at the top"
    )]
    let max_bytes = max_bytes.map_or(u64::MAX, |bytes| bytes as u64);
    // Not cut as the times of calls are: a tree may well be unused for months.
    let age = |ms: f64| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or(Duration::MAX);
    let used_since = unused_for_ms.map(|ms| now.checked_sub(age(ms)).unwrap_or(SystemTime::UNIX_EPOCH));
    Keep { max_bytes, used_since }
}

async fn npm(settings: &Settings, facts: &HostFacts) -> Result<Value, SandboxError> {
    let (env, node, npm_path) = (facts.env.clone(), settings.node_path.clone(), settings.npm_path.clone());
    on_a_thread(move || Ok(install::npm_report(&env, npm_path.as_deref(), &node))).await
}

async fn trees(store: &Store) -> Result<Value, SandboxError> {
    let store = store.clone();
    on_a_thread(move || Ok(json!({ "root": store.root(), "trees": store.list()? }))).await
}

async fn prune(store: &Store, keep: Keep) -> Result<Pruned, SandboxError> {
    let end = Instant::now() + ROOM_WAIT;
    loop {
        let store = store.clone();
        let pruned = on_a_thread(move || {
            let pruned = store.prune(&keep)?;
            // Whoever prunes wants the room now.
            store.flush();
            Ok(pruned)
        });
        if let Some(pruned) = pruned.await? {
            return Ok(pruned);
        }
        if Instant::now() > end {
            let text = format!(
                "another process has been making room in the store for {} s; try again when it is done",
                ROOM_WAIT.as_secs()
            );
            return Err(failure(text));
        }
        time::sleep(ROOM_POLL).await;
    }
}

async fn on_a_thread<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, SandboxError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done.map_err(|error| failure(error.to_string())),
        Err(error) => Err(failure(format!("the look into the store was broken off: {error}"))),
    }
}

fn failure(text: String) -> SandboxError {
    SandboxError::new(Code::InstallFailed, Phase::Install, text)
}

fn invalid(text: impl Into<String>) -> SandboxError {
    SandboxError::new(Code::InvalidConfig, Phase::Validate, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read_strictly() {
        assert_eq!(Task::read(r#"{ "task": "trees" }"#).unwrap(), Task::Trees);
        let prune = Task::Prune { max_bytes: Some(0.0), unused_for_ms: None };
        assert_eq!(Task::read(r#"{ "task": "prune", "maxBytes": 0 }"#).unwrap(), prune);
        for bad in [
            "{}",
            r#"{ "task": "wipe" }"#,
            r#"{ "task": "prune" }"#,
            r#"{ "task": "prune", "maxBytes": -1 }"#,
            r#"{ "task": "prune", "olderThan": 1 }"#,
        ] {
            assert_eq!(Task::read(bad).unwrap_err().code, Code::InvalidConfig, "{bad}");
        }
    }

    #[test]
    fn measures_are_turned_into_what_stays() {
        let days = |days: u64| Duration::from_hours(24 * days);
        let now = SystemTime::UNIX_EPOCH + days(10_000);
        let since = |ms| keep(None, Some(ms), now).used_since;
        assert_eq!(since(365.0 * 86_400_000.0), Some(now - days(365)));
        assert_eq!(since(f64::MAX), Some(SystemTime::UNIX_EPOCH));
        assert_eq!(keep(Some(5.5), None, now), Keep::at_most(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_prune_waits_for_whoever_makes_room_but_not_for_ever() {
        let base = tempfile::tempdir().unwrap();
        let store = Store::open(base.path()).unwrap();
        let room = store.root().join("locks/room");
        let held = std::fs::File::create(&room).unwrap();
        held.lock().unwrap();
        let error = prune(&store, Keep::at_most(0)).await.unwrap_err();
        assert!(error.message.contains("making room"), "{}", error.message);
        drop(held);
        assert_eq!(prune(&store, Keep::at_most(0)).await.unwrap(), Pruned::default());
    }
}
