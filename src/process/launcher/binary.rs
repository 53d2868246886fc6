//! Starting the launcher's binary: without a fork of the host, and from memory where its file cannot be executed.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt},
};

use crate::process::{SpawnError, own_child::OwnChild};

/// A launcher that was just started: its process, its id, and the host's end of its socket.
pub(super) struct Newborn {
    pub(super) child: OwnChild,
    pub(super) pid: u32,
    pub(super) socket: OwnedFd,
}

pub(super) fn unavailable(binary: &Path, reason: String) -> SpawnError {
    SpawnError::LauncherUnavailable { path: binary.display().to_string(), reason }
}

/// Starts it. Needs a tokio runtime.
pub(super) fn start(binary: &Path) -> Result<Newborn, SpawnError> {
    let failed = |step, source| SpawnError::Step { step, subject: binary.display().to_string(), source };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| failed("socketpair", error.into()))?;
    // More room is welcome, not needed: the kernel gives what its own limit allows.
    let _ = sockopt::set_socket_send_buffer_size(&socket, 2 * native_sandbox_protocol::MAX_PACKET_BYTES);
    let pid = match run(binary, &theirs) {
        // A lost run bit, or a file system mounted noexec.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => run_from_memory(binary, &theirs)
            .map_err(|second| {
                let reason =
                    format!("{error}, and from memory: {second}; make the file executable (chmod +x)");
                unavailable(binary, reason)
            })?,
        Err(error) if is_shortage(&error) => return Err(failed("posix_spawn", error)),
        Err(error) => return Err(unavailable(binary, format!("{error}; reinstall the package"))),
        Ok(pid) => pid,
    };
    Ok(Newborn { child: OwnChild::new(pid), pid, socket })
}

/// Says nothing about the binary.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Nothing in here may need a hook between fork and exec (a working folder, an inherited descriptor): without one, the
/// standard library uses `posix_spawn`, which does not copy the host.
fn run(program: &Path, socket: &OwnedFd) -> io::Result<u32> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the launcher is the one process that the host starts itself"
    )]
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::from(socket.try_clone()?)).stdout(Stdio::null()).stderr(Stdio::null());
    // The handle is given up for a watch that neither blocks nor can be taken for somebody else's.
    command.spawn().map(|child| child.id())
}

fn run_from_memory(binary: &Path, socket: &OwnedFd) -> io::Result<u32> {
    let name = "native-sandbox-launcher";
    // Since Linux 6.3 a system can ask for the intention to execute; before, the flag is unknown.
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
        .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC))?;
    let mut memory = File::from(memory);
    io::copy(&mut File::open(binary)?, &mut memory)?;
    // Open for writing it could not be executed.
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let readable = File::open(&path)?;
    drop(memory);
    run(Path::new(&format!("/proc/self/fd/{}", readable.as_raw_fd())), socket)
}
