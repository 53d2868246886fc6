//! The two ends of a process's pipes and channel. Every descriptor closes on exec; the host's ends never block.

use std::{
    io::{self, PipeReader, pipe},
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use tokio::{io::AsyncRead, net::unix::pipe::Receiver};

use super::{Duplex, Process, SpawnError, Started};

/// What the process gets.
pub(super) struct ChildEnds {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) channel: Option<OwnedFd>,
}

/// What the host keeps.
pub(super) struct HostEnds {
    stdout: PipeReader,
    stderr: PipeReader,
    channel: Option<UnixStream>,
}

fn failed(step: &'static str, program: &str) -> impl FnOnce(io::Error) -> SpawnError {
    move |source| SpawnError::Step { step, subject: program.to_owned(), source }
}

/// Makes both. What was made before a failure is closed again.
pub(super) fn make(channel: bool, program: &str) -> Result<(HostEnds, ChildEnds), SpawnError> {
    let (stdout, child_stdout) = pipe().map_err(failed("pipe", program))?;
    let (stderr, child_stderr) = pipe().map_err(failed("pipe", program))?;
    let pair = channel.then(UnixStream::pair).transpose().map_err(failed("socketpair", program))?;
    let (channel, child_channel) = pair.unzip();
    let child = ChildEnds {
        stdout: child_stdout.into(),
        stderr: child_stderr.into(),
        channel: child_channel.map(Into::into),
    };
    Ok((HostEnds { stdout, stderr, channel }, child))
}

impl HostEnds {
    /// Hands the host's ends to the current runtime. An error drops `process`, and with it its tree.
    pub(super) fn started(self, process: Process, program: &str) -> Result<Started, SpawnError> {
        let stdout = reader(self.stdout).map_err(failed("register stdout of", program))?;
        let stderr = reader(self.stderr).map_err(failed("register stderr of", program))?;
        let channel = self.channel.map(stream).transpose().map_err(failed("register channel of", program))?;
        Ok(Started { process, stdout, stderr, channel })
    }
}

fn reader(pipe: PipeReader) -> io::Result<Box<dyn AsyncRead + Send + Unpin>> {
    Ok(Box::new(Receiver::from_owned_fd(pipe.into())?))
}

fn stream(stream: UnixStream) -> io::Result<Box<dyn Duplex>> {
    stream.set_nonblocking(true)?;
    Ok(Box::new(tokio::net::UnixStream::from_std(stream)?))
}
