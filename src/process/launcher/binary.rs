//! Starting the launcher's binary: without a fork of the host, and from memory where its file is missing or cannot be executed.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::{
    process::{SpawnError, companions, own_child::OwnChild},
    sys,
};

/// A launcher that was just started: its process, its id, and the host's end of its socket.
pub(super) struct Newborn {
    pub(super) child: OwnChild,
    pub(super) pid: u32,
    pub(super) socket: OwnedFd,
}

pub(super) fn unavailable(binary: &Path, reason: String, passing: bool) -> SpawnError {
    SpawnError::LauncherUnavailable { path: binary.display().to_string(), reason, passing }
}

/// Starts it. Needs a tokio runtime.
pub(super) fn start(binary: &Path) -> Result<Newborn, SpawnError> {
    let failed = |step, source| SpawnError::Step { step, subject: binary.display().to_string(), source };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| failed("socketpair", error.into()))?;
    // More room is welcome, not needed: the kernel gives what its own limit allows.
    let _ = sockopt::set_socket_send_buffer_size(&socket, 2 * native_sandbox_protocol::MAX_PACKET_BYTES);
    let pid = match run(binary, binary, &theirs) {
        Ok(pid) => pid,
        Err(error) if sys::is_passing(&error) => return Err(failed("posix_spawn", error)),
        Err(error) => run_a_copy(binary, &theirs, &error)?,
    };
    Ok(Newborn { child: OwnChild::new(pid), pid, socket })
}

/// From memory: the copy inside of this library, else that of a file that cannot be executed (a lost mode, a file system that is
/// mounted noexec). `first` is why the file cannot be run.
fn run_a_copy(binary: &Path, socket: &OwnedFd, first: &io::Error) -> Result<u32, SpawnError> {
    let embedded = companions::LAUNCHER;
    let lost_mode = first.kind() == io::ErrorKind::PermissionDenied;
    if embedded.is_empty() && !lost_mode {
        return Err(unavailable(binary, format!("{first}; reinstall the package"), false));
    }
    let run = |program: &[u8]| {
        let memory = companions::in_memory("native-sandbox-launcher", program)?;
        // Whoever lists processes sees the launcher's name.
        run(Path::new(&format!("/proc/self/fd/{}", memory.as_raw_fd())), binary, socket)
    };
    let started =
        if embedded.is_empty() { fs::read(binary).and_then(|program| run(&program)) } else { run(embedded) };
    started.map_err(|second| {
        let reason = format!(
            "{first}, and from memory: {second}; make the file executable (chmod +x), on a file system that is not mounted noexec"
        );
        unavailable(binary, reason, sys::is_passing(&second))
    })
}

/// Nothing in here may need a hook between fork and exec (a working folder, an inherited descriptor): without one, the
/// standard library uses `posix_spawn`, which does not copy the host.
fn run(program: &Path, name: &Path, socket: &OwnedFd) -> io::Result<u32> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the launcher is the one process that the host starts itself"
    )]
    let mut command = Command::new(program);
    command
        .arg0(name)
        .env_clear()
        .stdin(Stdio::from(socket.try_clone()?))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // The handle is given up for a watch that neither blocks nor can be taken for somebody else's.
    command.spawn().map(|child| child.id())
}
