//! What npm's first phase gets where it has a user of its own: copies of the settings that only the host can read, and a download
//! cache that is nobody else's.
//!
//! npm then owns what it installs into, that cache and these copies, and nothing else: whatever a package made it do, it could
//! neither write to the host's cache nor read another tenant's settings, and a cache that it spoilt is read for that tenant only.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::{
    InstallContext,
    npm::{self, MAX_CERTIFICATES_BYTES, Npm, Scratch},
    npmrc::{Env, Settings},
};
use crate::{
    error::SandboxError,
    gauge, isolation,
    store::{Downloads, reading::read_start},
};

/// What npm may download for any tree, bytes: its records of packages are larger than small trees.
const LEAST_DOWNLOAD_BYTES: u64 = 64 * 1024 * 1024;

/// Variables that name a file with certificates.
const CERTIFICATE_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"];
/// Settings with which npm does not ask the registry for what the cache has: they mean the cache that the host's user filled.
const OFFLINE_KEYS: [&str; 2] = ["offline", "prefer-offline"];

/// A first phase with a user of its own.
#[derive(Debug)]
pub(super) struct FirstPhase {
    user: u32,
    /// Gone before the second phase: copies of settings, credentials among them.
    dir: PathBuf,
    cache: PathBuf,
    /// What is in the cache already.
    there: u64,
    downloads: Option<Downloads>,
    /// Names the copies.
    args: Vec<OsString>,
    variables: Vec<(&'static str, PathBuf)>,
}

impl FirstPhase {
    /// Makes what it needs; `None` where npm keeps the host's user: processes have no others, npm or Node cannot be reached by another,
    /// or packages may come from places that only the host's can read. Blocks.
    pub(super) fn prepare(
        ctx: &InstallContext,
        npm: &Npm,
        settings: &Settings,
        scratch: &Scratch,
        reads_all: bool,
    ) -> Result<Option<Self>, SandboxError> {
        let reached = || npm.places().iter().all(|path| isolation::others_reach(path));
        if reads_all || !ctx.shield.gives_users() || !reached() {
            return Ok(None);
        }
        let dir = scratch.dir().with_file_name("registry");
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(|error| super::of_io(&dir, &error))?;
        let (user, cache, downloads) = if OFFLINE_KEYS.iter().any(|key| settings.is_on(key)) {
            let cache = dir.join("cache");
            copy_cache(npm::cache(&ctx.env, settings).as_deref(), &cache, ctx.bounds.tree_bytes)
                .map_err(|error| super::of_io(&cache, &error))?;
            (draw(ctx).map_err(|error| super::of_io(&cache, &error))?, cache, None)
        } else {
            let downloads = open_cache(ctx)?;
            (downloads.user(), downloads.cache(), Some(downloads))
        };
        let there = gauge::bytes_in(std::slice::from_ref(&cache), u64::MAX);
        let files = settings.named_files(&ctx.env, npm::prefix(&ctx.node));
        let (args, variables) = copies(&dir, &files, &ctx.env).map_err(|error| super::of_io(&dir, &error))?;
        Ok(Some(Self { user, dir, cache, there, downloads, args, variables }))
    }

    /// Who npm is.
    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// npm's cache.
    pub(super) fn cache(&self) -> &Path {
        &self.cache
    }

    /// What its user gets, besides the tree and the scratch folder; a cache of the tenant's is its user's already.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// How much the cache may take, where a tree may take `tree_bytes`.
    pub(super) fn cache_bytes(&self, tree_bytes: u64) -> u64 {
        self.there.saturating_add(tree_bytes.max(LEAST_DOWNLOAD_BYTES))
    }

    /// Arguments by which npm finds the copies.
    pub(super) fn args(&self) -> &[OsString] {
        &self.args
    }

    /// The environment, with a home folder that npm can read.
    pub(super) fn env(&self, mut env: Vec<(OsString, OsString)>, home: PathBuf) -> Vec<(OsString, OsString)> {
        for (name, path) in self.variables.iter().cloned().chain([("HOME", home)]) {
            env.retain(|(known, _)| known != name);
            env.push((name.into(), path.into()));
        }
        env
    }

    /// Removes the copies, and makes room in the caches. npm is over. Blocks.
    pub(super) fn end(self, tree_bytes: u64) -> Result<(), SandboxError> {
        crate::store::remove_dir(&self.dir).map_err(|error| super::of_io(&self.dir, &error))?;
        match self.downloads {
            Some(downloads) => downloads.settle(tree_bytes).map_err(|error| super::of_store(&error)),
            None => Ok(()),
        }
    }
}

fn draw(ctx: &InstallContext) -> io::Result<u32> {
    let drawn = ctx.shield.draw_user().map_err(io::Error::other)?;
    drawn.ok_or_else(|| io::Error::other("processes have no users of their own"))
}

/// The tenant's cache; a new one where it had grown too large and nobody uses it.
fn open_cache(ctx: &InstallContext) -> Result<Downloads, SandboxError> {
    let open =
        || ctx.store.downloads(&ctx.bounds.tenant, || draw(ctx)).map_err(|error| super::of_store(&error));
    let (found, max) = (open()?, ctx.bounds.tree_bytes);
    if gauge::bytes_in(&[found.cache()], max) <= max {
        return Ok(found);
    }
    found.settle(max).map_err(|error| super::of_store(&error))?;
    open()
}

type Named = (Vec<OsString>, Vec<(&'static str, PathBuf)>);

/// Copies the files that settings are in, or name; returns what tells npm of them.
fn copies(dir: &Path, files: &[(String, PathBuf)], env: &Env) -> io::Result<Named> {
    let mut args = Vec::new();
    let mut made = 0;
    let mut copy = |from: &Path, is_needed: bool| -> io::Result<Option<PathBuf>> {
        let text = match read_start(from, MAX_CERTIFICATES_BYTES) {
            Ok(text) => text,
            // As for npm, settings that cannot be read are none; of certificates it says so itself.
            Err(_) if is_needed => Vec::new(),
            Err(_) => return Ok(None),
        };
        made += 1;
        let to = dir.join(format!("copy-{made}"));
        fs::write(&to, text)?;
        Ok(Some(to))
    };
    for (key, from) in files {
        if let Some(to) = copy(from, key == "userconfig" || key == "globalconfig")? {
            let mut arg = OsString::from(format!("--{key}="));
            arg.push(to);
            args.push(arg);
        }
    }
    let mut variables = Vec::new();
    for name in CERTIFICATE_VARIABLES {
        let from = env.get(name).filter(|path| !path.is_empty()).map(Path::new);
        if let Some(to) = from.map(|from| copy(from, false)).transpose()?.flatten() {
            variables.push((name, to));
        }
    }
    Ok((args, variables))
}

/// Copies what npm reads of a cache, at most `max_bytes`. Nobody but the host can write to either.
fn copy_cache(from: Option<&Path>, to: &Path, max_bytes: u64) -> io::Result<()> {
    fs::create_dir(to)?;
    let Some(from) = from else { return Ok(()) };
    let mut left = max_bytes;
    let mut folders = vec![PathBuf::from("_cacache")];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(from.join(&folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        fs::create_dir(to.join(&folder))?;
        for entry in entries {
            let entry = entry?;
            let (name, found) = (folder.join(entry.file_name()), entry.metadata()?);
            if found.is_dir() {
                folders.push(name);
            } else if found.is_file() {
                left = left.checked_sub(found.len()).ok_or_else(|| {
                    io::Error::other(format!(
                        "npm is told to work offline, and its cache {} takes more than storeMaxBytes allows to copy for a process with a \
                         user of its own; raise storeMaxBytes, or name a smaller cache by npm_config_cache",
                        from.display()
                    ))
                })?;
                fs::copy(from.join(&name), to.join(&name))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_certificates_are_copied_and_npm_is_told_where() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        fs::create_dir(path("copies")).unwrap();
        fs::write(path("npmrc"), "//r/:_authToken=t\n").unwrap();
        fs::write(path("ca"), "CA").unwrap();
        let files = [
            ("userconfig".to_owned(), path("npmrc")),
            ("globalconfig".to_owned(), path("none")),
            ("cafile".to_owned(), path("none")),
            ("//r/:certfile".to_owned(), path("ca")),
        ];
        let env = Env::from([("NODE_EXTRA_CA_CERTS".to_owned(), path("ca").to_string_lossy().into_owned())]);
        let (args, variables) = copies(&path("copies"), &files, &env).unwrap();
        let read = |arg: &OsString, key: &str| {
            let path = arg.to_str().unwrap().strip_prefix(&format!("--{key}=")).unwrap().to_owned();
            fs::read_to_string(path).unwrap()
        };
        assert_eq!(read(&args[0], "userconfig"), "//r/:_authToken=t\n");
        assert_eq!(read(&args[1], "globalconfig"), "");
        assert_eq!(read(&args[2], "//r/:certfile"), "CA");
        assert_eq!(args.len(), 3);
        assert_eq!(variables.len(), 1);
        assert_eq!(fs::read_to_string(&variables[0].1).unwrap(), "CA");
    }

    #[test]
    fn a_cache_is_copied_as_far_as_it_may_be() {
        let base = tempfile::tempdir().unwrap();
        let (from, to) = (base.path().join("from"), base.path().join("to"));
        fs::create_dir_all(from.join("_cacache/index-v5/ab")).unwrap();
        fs::create_dir_all(from.join("_logs")).unwrap();
        fs::write(from.join("_cacache/index-v5/ab/entry"), "entry").unwrap();
        fs::write(from.join("_logs/log"), "secret").unwrap();
        std::os::unix::fs::symlink("/", from.join("_cacache/link")).unwrap();
        copy_cache(Some(&from), &to, 5).unwrap();
        assert_eq!(fs::read_to_string(to.join("_cacache/index-v5/ab/entry")).unwrap(), "entry");
        assert!(!to.join("_logs").exists() && !to.join("_cacache/link").exists());
        fs::remove_dir_all(&to).unwrap();
        let error = copy_cache(Some(&from), &to, 4).unwrap_err();
        assert!(error.to_string().contains("storeMaxBytes"), "{error}");
        copy_cache(Some(&base.path().join("none")), &base.path().join("empty"), 5).unwrap();
    }
}
