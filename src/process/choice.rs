//! Through the launcher. Without it outside of Linux, and where somebody has accepted that by name; said once in the log.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

#[cfg(target_os = "linux")]
use super::launcher::LauncherSpawner;
#[cfg(target_os = "linux")]
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use super::{BoxFuture, Command, SpawnError, Spawner, Started, plain::PlainSpawner};
use crate::log::NATIVE;

/// How long a start waits for a launcher that is being replaced.
#[cfg(target_os = "linux")]
const REPLACEMENT_LIMIT: Duration = Duration::from_secs(10);

/// How often it looks.
#[cfg(target_os = "linux")]
const REPLACEMENT_POLL: Duration = Duration::from_millis(50);

/// The process's starter of processes.
pub struct ProcessStarter {
    #[cfg(target_os = "linux")]
    launcher: LauncherSpawner,
    plain: PlainSpawner,
    /// Whether the launcher ever started something.
    #[cfg(target_os = "linux")]
    worked: AtomicBool,
    /// Why processes may be started without the launcher; set once.
    refusal: OnceLock<String>,
}

impl Default for ProcessStarter {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessStarter {
    /// With the launcher that lies beside this library.
    pub fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            launcher: LauncherSpawner::new(beside(&crate::sys::own_library(), "launcher")),
            plain: PlainSpawner::new(),
            #[cfg(target_os = "linux")]
            worked: AtomicBool::new(false),
            refusal: OnceLock::new(),
        }
    }

    /// Why processes are started without the launcher, if they are: then no subreaper watches over what they leave.
    pub fn refusal(&self) -> Option<&str> {
        if cfg!(target_os = "linux") { self.refusal.get().map(String::as_str) } else { Some("needs Linux") }
    }

    /// Goes on without the launcher where it cannot be run: somebody has accepted the tier base by name. Processes that are to be
    /// confined are still refused.
    #[cfg(target_os = "linux")]
    pub fn accept_without_launcher(&self, reason: &str) {
        if self.refusal.set(reason.to_owned()).is_ok() {
            tracing::warn!(
                target: NATIVE,
                reason,
                "Processes are started without the launcher: what a function leaves behind is ended as far as it can be found"
            );
        }
    }

    /// Ends an idle launcher; whether there is none any more.
    pub async fn shutdown(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.launcher.shutdown().await;
        #[cfg(not(target_os = "linux"))]
        true
    }

    /// Never without the launcher by itself: a process that was started so is not confined.
    async fn start(&self, command: Command) -> Result<Started, SpawnError> {
        #[cfg(target_os = "linux")]
        match self.through_launcher(&command).await {
            Err(SpawnError::LauncherUnavailable { .. }) if self.refusal.get().is_some() => {}
            other => return other,
        }
        self.plain.spawn(command).await
    }

    /// One that ran before and died again and again is waited for.
    #[cfg(target_os = "linux")]
    async fn through_launcher(&self, command: &Command) -> Result<Started, SpawnError> {
        let end = Instant::now() + REPLACEMENT_LIMIT;
        loop {
            let started = self.launcher.spawn(command.clone()).await;
            match &started {
                Ok(_) => self.worked.store(true, Ordering::Relaxed),
                Err(SpawnError::LauncherUnavailable { .. })
                    if self.worked.load(Ordering::Relaxed) && Instant::now() < end =>
                {
                    tokio::time::sleep(REPLACEMENT_POLL).await;
                    continue;
                }
                Err(_) => {}
            }
            return started;
        }
    }
}

impl Spawner for ProcessStarter {
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Started, SpawnError>> {
        Box::pin(self.start(command))
    }
}

/// Where the zygote's native library lies: beside this one. See [`companions`](super::companions) for where it does not.
pub fn zygote_library() -> PathBuf {
    beside(&crate::sys::own_library(), "zygote")
}

/// `native-sandbox-executor.<platform>.node` → `<part>.<platform>` in the same folder.
fn beside(library: &Path, part: &str) -> PathBuf {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    let platform = name.split_once('.').and_then(|(_, rest)| rest.strip_suffix(".node"));
    library.with_file_name(platform.map_or_else(|| part.to_owned(), |platform| format!("{part}.{platform}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It used to start every process of the host without confinement, with a line in the log.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn without_a_launcher_nothing_starts_unless_that_is_accepted() {
        let starter = ProcessStarter {
            launcher: LauncherSpawner::new("/nowhere/launcher".into()),
            ..ProcessStarter::new()
        };
        let command = || Command { program: "/bin/true".into(), cwd: "/".into(), ..Command::default() };
        let unavailable = |started: Result<Started, SpawnError>| match started {
            Err(SpawnError::LauncherUnavailable { reason, passing: false, .. }) => reason,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("started"),
        };
        let reason = unavailable(starter.spawn(command()).await);
        assert!(reason.contains("reinstall the package"), "{reason}");
        assert_eq!(starter.refusal(), None);
        starter.accept_without_launcher(&reason);
        starter.spawn(command()).await.map(drop).unwrap();
        let confined = Command { confinement: Some(std::sync::Arc::default()), ..command() };
        assert!(starter.spawn(confined).await.is_err(), "what is to be confined never runs without");
    }

    #[test]
    fn the_launcher_is_named_after_the_addon() {
        let beside = |library: &str| beside(Path::new(library), "launcher").display().to_string();
        assert_eq!(beside("/x/native-sandbox-executor.linux-x64-gnu.node"), "/x/launcher.linux-x64-gnu");
        assert_eq!(beside("/x/libnative_sandbox_executor.so"), "/x/launcher");
    }
}
