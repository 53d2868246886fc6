//! A folder of the caller that gets a function's files. What is written is written by descriptors below the folder's own: no link in it is
//! followed, and no existing file is replaced.
//!
//! Files are received into a private folder inside of it, on the same file system, and get their final names when all are there. So
//! a call that fails on the way leaves nothing under a final name; what was moved before a failure is removed again.

#[cfg(unix)]
mod unix {
    use std::{io, os::fd::OwnedFd, path::Path, sync::Arc};

    use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, linkat, mkdirat, openat, unlinkat};

    use crate::{
        error::{Phase, SandboxError},
        files::{failed, invalid, name},
    };

    const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    /// Of files and folders, less what the host's umask takes away.
    const FILE_MODE: Mode = Mode::from_bits_retain(0o666);
    const FOLDER_MODE: Mode = Mode::from_bits_retain(0o777);
    /// What the private folder's name begins with.
    const STAGING_PREFIX: &str = ".native-sandbox-";

    /// See the module.
    #[derive(Debug, Clone)]
    pub struct Folder {
        top: Arc<OwnedFd>,
        shown: String,
    }

    impl Folder {
        /// Opens the folder, and makes it where there is none. Blocks.
        pub fn open(path: &Path) -> Result<Self, SandboxError> {
            let shown = path.display().to_string();
            let cannot = |what: &str, error: io::Error| {
                let why = match error.kind() {
                    io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                        "it is no folder".to_owned()
                    }
                    _ => error.to_string(),
                };
                invalid(format!("collect.into: {shown} cannot be {what}: {why}"))
            };
            std::fs::create_dir_all(path).map_err(|error| cannot("made", error))?;
            let top =
                openat(CWD, path, FOLDER, Mode::empty()).map_err(|error| cannot("opened", error.into()))?;
            let writes = Access::WRITE_OK.union(Access::EXEC_OK);
            accessat(&top, ".", writes, AtFlags::EACCESS)
                .map_err(|error| cannot("written to", error.into()))?;
            Ok(Self { top: Arc::new(top), shown })
        }

        /// A private folder in it for files that are not whole yet. Blocks.
        pub fn staging(&self) -> Result<Staging, SandboxError> {
            self.make_staging().map_err(|error| self.cannot("make a folder in", &error))
        }

        fn make_staging(&self) -> io::Result<Staging> {
            let mut seed = [0; 8];
            getrandom::fill(&mut seed).map_err(io::Error::other)?;
            let name = format!("{STAGING_PREFIX}{:016x}", u64::from_le_bytes(seed));
            mkdirat(&*self.top, &name, Mode::RWXU)?;
            let dir = openat(&*self.top, &name, FOLDER.union(OFlags::NOFOLLOW), Mode::empty())?;
            Ok(Staging { folder: self.clone(), dir: Arc::new(dir), name, files: 0 })
        }

        fn cannot(&self, what: &str, error: &io::Error) -> SandboxError {
            failed(Phase::Result, format!("collect.into: cannot {what} {}: {error}", self.shown))
        }

        /// The folder that a file at `path` is in, made where it is missing. Each step is one name, and no link is followed.
        fn parent<'a>(&self, path: &'a str, made: &mut Vec<String>) -> io::Result<(Arc<OwnedFd>, &'a str)> {
            let mut at = Arc::clone(&self.top);
            let mut start = 0;
            while let Some(length) = path[start..].find('/') {
                let part = &path[start..start + length];
                match mkdirat(&*at, part, FOLDER_MODE) {
                    Ok(()) => made.push(path[..start + length].to_owned()),
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                at = Arc::new(openat(&*at, part, FOLDER.union(OFlags::NOFOLLOW), Mode::empty())?);
                start += length + 1;
            }
            Ok((at, &path[start..]))
        }

        fn remove(&self, path: &str, flags: AtFlags) {
            let mut made = Vec::new();
            if let Ok((parent, file)) = self.parent(path, &mut made) {
                let _ = unlinkat(&*parent, file, flags);
            }
        }
    }

    /// Files that are on their way. Dropping it removes them, and the folder that they are in.
    #[derive(Debug)]
    pub struct Staging {
        folder: Folder,
        dir: Arc<OwnedFd>,
        name: String,
        files: u32,
    }

    impl Staging {
        /// A file for the next path. Blocks for a moment.
        pub fn create(&mut self) -> Result<std::fs::File, SandboxError> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&*self.dir, self.files.to_string(), flags, FILE_MODE)
                .map_err(|error| self.folder.cannot("make a file in", &error.into()))?;
            self.files += 1;
            Ok(std::fs::File::from(file))
        }

        /// Gives the files their paths, in the order in which they were made: all, or none. Blocks. Nothing is left of it.
        pub fn publish(mut self, paths: Vec<String>) -> Result<Published, SandboxError> {
            let mut published = Published {
                folder: self.folder.clone(),
                files: Vec::new(),
                folders: Vec::new(),
                is_kept: false,
            };
            for (number, path) in paths.into_iter().enumerate() {
                if let Err(error) = self.publish_one(number, &path, &mut published.folders) {
                    published.undo();
                    let refused = self.refused(&path, &error);
                    self.discard();
                    return Err(refused);
                }
                published.files.push(path);
            }
            self.discard();
            Ok(published)
        }

        /// Removes what is still in it, and itself. Blocks.
        pub fn discard(&mut self) {
            if let Some(tidy) = self.tidy() {
                tidy();
            }
        }

        fn tidy(&mut self) -> Option<impl FnOnce() + Send + 'static + use<>> {
            let (folder, dir) = (self.folder.clone(), Arc::clone(&self.dir));
            let (name, files) = (std::mem::take(&mut self.name), self.files);
            // Without a name it was done before.
            (!name.is_empty()).then_some(move || {
                for number in 0..files {
                    let _ = unlinkat(&*dir, number.to_string(), AtFlags::empty());
                }
                let _ = unlinkat(&*folder.top, &name, AtFlags::REMOVEDIR);
            })
        }

        fn publish_one(&self, number: usize, path: &str, made: &mut Vec<String>) -> io::Result<()> {
            let (parent, file) = self.folder.parent(path, made)?;
            let from = number.to_string();
            match rename_new(&self.dir, &from, &parent, file) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    // File systems that cannot move without replacing: a second name, which never replaces, then the first one goes.
                    linkat(&*self.dir, &from, &*parent, file, AtFlags::empty()).map_err(|_| error)?;
                    let _ = unlinkat(&*self.dir, &from, AtFlags::empty());
                    Ok(())
                }
                moved => moved,
            }
        }

        fn refused(&self, path: &str, error: &io::Error) -> SandboxError {
            let shown = name::shown(path);
            let into = &self.folder.shown;
            let message = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    format!(
                        "collect.into: {shown} exists in {into} already, and nothing is replaced; collect into an empty folder"
                    )
                }
                _ if is_no_folder(error) => {
                    format!(
                        "collect.into: the folder of {shown} is a link or a file in {into}, which is not followed or replaced"
                    )
                }
                _ => format!("collect.into: {shown} cannot be written in {into}: {error}"),
            };
            failed(Phase::Result, message)
        }
    }

    fn is_no_folder(error: &io::Error) -> bool {
        matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP))
    }

    #[cfg(any(target_os = "linux", target_os = "macos"))]
    fn rename_new(from_dir: &OwnedFd, from: &str, to_dir: &OwnedFd, to: &str) -> io::Result<()> {
        use rustix::fs::{RenameFlags, renameat_with};
        Ok(renameat_with(from_dir, from, to_dir, to, RenameFlags::NOREPLACE)?)
    }

    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    fn rename_new(_: &OwnedFd, _: &str, _: &OwnedFd, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    impl Drop for Staging {
        fn drop(&mut self) {
            if let Some(tidy) = self.tidy() {
                off_the_async_threads(tidy);
            }
        }
    }

    /// Files under their final names. Dropping it removes them, unless they are to be kept.
    #[derive(Debug)]
    pub struct Published {
        folder: Folder,
        files: Vec<String>,
        folders: Vec<String>,
        is_kept: bool,
    }

    impl Published {
        /// The call is settled with them.
        pub fn keep(mut self) {
            self.is_kept = true;
        }
    }

    impl Published {
        /// Removes them, now. Blocks.
        fn undo(mut self) {
            self.is_kept = true;
            Self::remove(&self.folder, &self.files, &self.folders);
        }

        /// Innermost folders first; one in which the caller has put something meanwhile stays.
        fn remove(folder: &Folder, files: &[String], folders: &[String]) {
            for path in files {
                folder.remove(path, AtFlags::empty());
            }
            for path in folders.iter().rev() {
                folder.remove(path, AtFlags::REMOVEDIR);
            }
        }
    }

    impl Drop for Published {
        fn drop(&mut self) {
            if self.is_kept {
                return;
            }
            let folder = self.folder.clone();
            let (files, folders) = (std::mem::take(&mut self.files), std::mem::take(&mut self.folders));
            off_the_async_threads(move || Self::remove(&folder, &files, &folders));
        }
    }

    fn off_the_async_threads(act: impl FnOnce() + Send + 'static) {
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(act)),
            Err(_) => act(),
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use std::path::Path;

    use crate::{
        error::{Phase, SandboxError},
        files::{failed, invalid},
    };

    /// Only Unix has calls that write below a folder without following links.
    #[derive(Debug, Clone)]
    pub struct Folder;

    impl Folder {
        /// Refuses.
        pub fn open(_: &Path) -> Result<Self, SandboxError> {
            Err(invalid("collect.into is not to be had on this platform: take the files by onFile"))
        }

        /// Refuses.
        pub fn staging(&self) -> Result<Staging, SandboxError> {
            Err(unsupported())
        }
    }

    /// There is none.
    #[derive(Debug)]
    pub struct Staging;

    impl Staging {
        /// Refuses.
        pub fn create(&mut self) -> Result<std::fs::File, SandboxError> {
            Err(unsupported())
        }

        /// Nothing to do.
        pub fn discard(&mut self) {}

        /// Refuses.
        pub fn publish(self, _: Vec<String>) -> Result<Published, SandboxError> {
            Err(unsupported())
        }
    }

    /// There are none.
    #[derive(Debug)]
    pub struct Published;

    impl Published {
        /// Nothing to do.
        pub fn keep(self) {}
    }

    fn unsupported() -> SandboxError {
        failed(Phase::Result, "collect.into is not to be had on this platform")
    }
}

#[cfg(not(unix))]
pub use elsewhere::{Folder, Published, Staging};
#[cfg(unix)]
pub use unix::{Folder, Published, Staging};
