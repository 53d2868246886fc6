//! Whose a folder's content is, and what of it can be run.

use std::{io, path::Path};

/// Gives `dir` and all in it to `owner`, to the host's own user if `None`. Follows no symlink.
#[cfg(unix)]
pub(super) fn give(dir: &Path, owner: Option<u32>) -> io::Result<()> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (user, group) = owner.map_or(own, |owner| (owner, owner));
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        std::os::unix::fs::lchown(&folder, Some(user), Some(group))?;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                std::os::unix::fs::lchown(entry.path(), Some(user), Some(group))?;
            }
        }
    }
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn give(_: &Path, _: Option<u32>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes executable what begins as a program or a script does. Follows no symlink.
#[cfg(unix)]
pub(super) fn make_programs(dir: &Path) -> io::Result<()> {
    use std::{fs, io::Read, os::unix::fs::PermissionsExt};
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, metadata) = (entry.path(), entry.metadata()?);
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && metadata.permissions().mode() & 0o111 == 0 {
                let mut start = Vec::new();
                // Of another kind by now: nothing to make a program of.
                let Ok(file) = super::reading::open_file(&path) else { continue };
                file.take(4).read_to_end(&mut start)?;
                if start == b"\x7fELF" || start.starts_with(b"#!") {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn make_programs(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn a_folder_is_given_with_all_in_it_and_taken_back() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can give files away.
            assert!(give(tempfile::tempdir().unwrap().path(), Some(7)).is_err());
            return;
        }
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("dir");
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(outer.path().join("outside"), "").unwrap();
        fs::write(dir.join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink(outer.path().join("outside"), dir.join("a/link")).unwrap();
        let owners = || {
            ["", "a", "a/b", "a/b/file", "a/link"].map(|path| {
                let metadata = fs::symlink_metadata(dir.join(path)).unwrap();
                (metadata.uid(), metadata.gid())
            })
        };
        give(&dir, Some(1_900_000_000)).unwrap();
        assert_eq!(owners(), [(1_900_000_000, 1_900_000_000); 5]);
        assert_eq!(fs::metadata(outer.path().join("outside")).unwrap().uid(), 0);
        give(&dir, None).unwrap();
        assert_eq!(owners()[3].0, 0);
    }

    #[test]
    fn what_looks_like_a_program_becomes_one() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        for (name, text) in
            [("bin/tool", "#!/bin/sh\n"), ("bin/elf", "\x7fELF\x02"), ("data", "#"), ("empty", "")]
        {
            fs::write(dir.path().join(name), text).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        std::os::unix::fs::symlink("bin/tool", dir.path().join("link")).unwrap();
        make_programs(dir.path()).unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(["bin/tool", "bin/elf", "data", "empty"].map(mode), [0o755, 0o755, 0o644, 0o644]);
    }
}
