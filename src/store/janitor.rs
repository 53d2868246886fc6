//! One thread that removes folders and notes uses, so that nobody waits for it: not a caller, not a runtime, not an event loop.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use super::remove::remove_dir;
#[cfg(target_os = "linux")]
use super::tmpfs::Slot;

/// Removals waiting at most; beyond it whoever asks does the removal itself.
const QUEUE_JOBS: usize = 1024;

/// A folder to remove.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) dir: PathBuf,
    /// What it is in, where that is in a zygote only; it is let go of after that.
    #[cfg(target_os = "linux")]
    pub(super) slot: Option<Slot>,
    /// Let go of only once the folder is gone, so that no sweeper meets it half removed.
    pub(super) lock: Option<fs::File>,
}

impl Job {
    pub(super) fn remove(dir: PathBuf) -> Self {
        Self {
            dir,
            #[cfg(target_os = "linux")]
            slot: None,
            lock: None,
        }
    }

    pub(super) fn act(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(slot) = &self.slot {
            return slot.clear();
        }
        remove_dir(&self.dir)
    }

    fn run(self) {
        if let Err(error) = self.act() {
            tracing::warn!(
                target: "native-sandbox-executor",
                dir = %self.dir.display(),
                error = %error,
                "Failed to remove a folder; it is tried again, by the next start of a server at the latest"
            );
        }
        drop(self.lock);
    }
}

enum Message {
    Job(Job),
    /// Something small that may be left undone.
    Note(Box<dyn FnOnce() + Send>),
    Flush(SyncSender<()>),
}

/// The thread, started with the first job; it ends once its owner is dropped and its queue is empty.
#[derive(Debug, Default)]
pub(super) struct Janitor {
    queue: Mutex<Option<SyncSender<Message>>>,
}

impl Janitor {
    /// Removes in the background; here and now if there is no thread to be had or its queue is full.
    pub(super) fn submit(&self, job: Job) {
        let Some(queue) = self.queue() else { return job.run() };
        if let Err(TrySendError::Full(Message::Job(job)) | TrySendError::Disconnected(Message::Job(job))) =
            queue.try_send(Message::Job(job))
        {
            job.run();
        }
    }

    /// Runs something small in the background; not at all if there is no thread to be had or its queue is full.
    pub(super) fn run(&self, note: impl FnOnce() + Send + 'static) {
        if let Some(queue) = self.queue() {
            let _ = queue.try_send(Message::Note(Box::new(note)));
        }
    }

    /// Waits until all jobs submitted so far are done.
    pub(super) fn flush(&self) {
        let Some(queue) = self.queue() else { return };
        let (done, wait) = sync_channel(1);
        if queue.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv();
        }
    }

    fn queue(&self) -> Option<SyncSender<Message>> {
        let mut slot = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let (queue, jobs) = sync_channel(QUEUE_JOBS);
            let started =
                thread::Builder::new().name("sandbox-janitor".to_owned()).spawn(move || work(&jobs));
            *slot = started.ok().map(|_| queue);
        }
        slot.clone()
    }
}

fn work(jobs: &Receiver<Message>) {
    for message in jobs {
        match message {
            Message::Job(job) => job.run(),
            Message::Note(note) => note(),
            Message::Flush(done) => drop(done.send(())),
        }
    }
}
