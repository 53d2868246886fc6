//! Has V8's code cache of a text made: by a worker that was started for it and is told to compile the text, and nothing else. It runs
//! nothing of anybody's, it has loaded no package, and its channel is the only one that such bytes are read from.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time,
};

use crate::{
    source::MAX_CACHE_BYTES,
    start::{Ladder as _, RungLadder, Worker, WorkerSpec},
    worker::protocol::{self, Job},
};

/// From asking for the worker to its cache.
const LIMIT: Duration = Duration::from_secs(20);

/// The cache of `job`'s code, from a worker that `spec` describes; none where anything goes wrong: then the text is compiled, as ever.
pub async fn make(ladder: &RungLadder, spec: WorkerSpec, job: Job) -> Option<Vec<u8>> {
    let work = async {
        let worker = ladder.start(spec).await.ok()?;
        let made = ask(worker, &job).await;
        made.ok().flatten()
    };
    time::timeout(LIMIT, work).await.ok().flatten()
}

/// The worker ends with this.
async fn ask(mut worker: Worker, job: &Job) -> std::io::Result<Option<Vec<u8>>> {
    let Some(channel) = &mut worker.started.channel else { return Ok(None) };
    let job = job.encode().map_err(std::io::Error::other)?;
    channel.write_all(&job).await?;
    let mut header = [0; protocol::HEADER_BYTES];
    channel.read_exact(&mut header).await?;
    let (kind, bytes) = protocol::header(header);
    if kind != protocol::COMPILED || bytes > MAX_CACHE_BYTES {
        return Ok(None);
    }
    let mut cache = vec![0; bytes];
    channel.read_exact(&mut cache).await?;
    Ok(Some(cache))
}
