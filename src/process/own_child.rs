//! A child of the host itself, watched by its own descriptor: no signal handler, no wait for whatever comes.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::sys::{self, Reaped};

/// How long until a watch that failed is set up again.
const RETRY: Duration = Duration::from_millis(20);

/// How the end of a child is noticed.
enum Watch {
    #[cfg(target_os = "linux")]
    Pidfd(tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>),
    /// A thread that blocks until it is dead: where there is no pidfd.
    Thread(oneshot::Receiver<()>),
}

/// A child that this process started. It is reaped even when this is dropped first.
pub(super) struct OwnChild {
    pid: i32,
    watch: Watch,
    reaped: Option<Reaped>,
}

impl OwnChild {
    /// Watches a child that nobody else waits for. Needs a tokio runtime.
    pub(super) fn new(pid: u32) -> Self {
        let pid = i32::try_from(pid).unwrap_or(0);
        Self { pid, watch: Watch::new(pid), reaped: None }
    }

    /// Waits for its end and reaps it. Cancel-safe; may be called again.
    pub(super) async fn ended(&mut self) -> Reaped {
        loop {
            if let Some(reaped) = self.reaped {
                return reaped;
            }
            self.watch.wait().await;
            self.reaped = sys::reap(self.pid);
            if self.reaped.is_none() {
                // The watch could not be set up (no thread to be had); it must not turn into a busy loop.
                tokio::time::sleep(RETRY).await;
                self.watch = Watch::new(self.pid);
            }
        }
    }

    /// SIGKILL to it alone, unless it is reaped.
    pub(super) fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid).filter(|_| self.reaped.is_none());
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        if self.reaped.is_none() && sys::reap(self.pid).is_none() {
            let pid = self.pid;
            // Whoever drops it has seen to its end; this only takes the zombie away.
            let _ = std::thread::Builder::new().name("sandbox-reap".into()).spawn(move || {
                sys::wait_until_dead(pid);
                sys::reap(pid);
            });
        }
    }
}

impl Watch {
    fn new(pid: i32) -> Self {
        #[cfg(target_os = "linux")]
        if let Some(fd) = Self::pidfd(pid) {
            return Self::Pidfd(fd);
        }
        Self::thread(pid)
    }

    #[cfg(target_os = "linux")]
    fn pidfd(pid: i32) -> Option<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        sys::register(fd, tokio::io::Interest::READABLE).ok()
    }

    fn thread(pid: i32) -> Self {
        let (dead, watch) = oneshot::channel();
        // Without a thread the sender is dropped, which reads as "look now".
        let _ = std::thread::Builder::new().name("sandbox-wait".into()).spawn(move || {
            sys::wait_until_dead(pid);
            let _ = dead.send(());
        });
        Self::Thread(watch)
    }

    async fn wait(&mut self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Pidfd(fd) => drop(fd.readable().await),
            Self::Thread(dead) => drop(dead.await),
        }
    }
}
