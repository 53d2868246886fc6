//! Where npm is, and how it is called: program, arguments, environment.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    npmrc::{Env, Settings, env_key},
    policy::{DependencyPolicy, ExtraSpec},
};
use crate::store::reading::{read_start, replace_file};

/// Enough of a file to see its first line.
const FIRST_LINE_BYTES: u64 = 256;
/// Where programs are looked for when the host has no PATH.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Variables of the host that npm gets in both phases: whereabouts of programs, network, certificates, locale.
const PASSED: [&str; 16] = [
    "PATH",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TZDIR",
    "SHELL",
];
/// What no program starts without on Windows.
#[cfg(windows)]
const PASSED_ON_WINDOWS: [&str; 8] =
    ["SystemRoot", "ComSpec", "PATHEXT", "windir", "SystemDrive", "APPDATA", "LOCALAPPDATA", "USERPROFILE"];

/// `npm_config_*` of the host that are not handed on. A host that was itself started by a package manager carries that
/// manager's settings for *its* command and *its* project.
const NOT_PASSED_KEYS: [&str; 48] = [
    // Another kind of command than an install here.
    "global",
    "location",
    "dry-run",
    "package-lock-only",
    "usage",
    "help",
    "version",
    "versions",
    "call",
    "package",
    "script",
    "if-present",
    "ignore-scripts",
    "workspace",
    "workspaces",
    "include-workspace-root",
    "save",
    "save-dev",
    "save-exact",
    "save-optional",
    "save-peer",
    "save-prod",
    "save-bundle",
    "package-lock",
    "lockfile-version",
    // Parts of the tree left out.
    "omit",
    "include",
    "only",
    "also",
    "production",
    "dev",
    "optional",
    "force",
    // npm 11 refuses the first for an install in a project.
    "allow-scripts",
    "strict-allow-scripts",
    "dangerously-allow-all-scripts",
    // What is printed, and how.
    "loglevel",
    "json",
    "long",
    "parseable",
    "timing",
    "foreground-scripts",
    // Of the other npm, or of its child.
    "user-agent",
    "node-gyp",
    "npm-version",
    "local-prefix",
    "global-prefix",
    "node-options",
];

/// Retry settings with the value used where the user sets none: npm's own make a dead registry take 70 s.
const RETRY_CAPS: [(&str, &str); 3] =
    [("fetch-retries", "2"), ("fetch-retry-mintimeout", "1000"), ("fetch-retry-maxtimeout", "5000")];

/// How npm is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Npm {
    /// Node, or a wrapper that is no JavaScript.
    pub(super) program: PathBuf,
    /// Arguments before npm's own: the script, where `program` is Node.
    pub(super) lead: Vec<OsString>,
    /// npm's package folder, when known; its built-in settings are in it.
    pub(super) root: Option<PathBuf>,
}

impl Npm {
    /// What has to be read to run it.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let script = self.lead.first().map(PathBuf::from);
        std::iter::once(self.program.clone()).chain(self.root.clone()).chain(script).collect()
    }
}

/// Finds npm: the option, the npm beside `node`, the one on PATH. The error says where it was looked for.
pub(super) fn find(option: Option<&Path>, node: &Path, path: Option<&str>) -> Result<Npm, String> {
    const OPTION: &str = "the npmPath option (AGENTS_FUNCTION_TOOL_SANDBOX_NPM_PATH)";
    if let Some(path) = option {
        return at(path, node).ok_or_else(|| {
            format!(
                "{OPTION} is {}, which is neither npm's program, nor its npm-cli.js, nor its folder",
                path.display()
            )
        });
    }
    let candidates = candidates(node, path);
    candidates.iter().find_map(|candidate| at(candidate, node)).ok_or_else(|| {
        format!(
            "no npm found beside {} or on PATH; install npm, or set {OPTION} to npm's program or its npm-cli.js",
            node.display()
        )
    })
}

fn candidates(node: &Path, path: Option<&str>) -> Vec<PathBuf> {
    let real = node.canonicalize().ok();
    let folders: Vec<_> =
        [Some(node), real.as_deref()].into_iter().flatten().filter_map(Path::parent).collect();
    let mut found = Vec::new();
    for folder in &folders {
        found.extend(folder.parent().map(|prefix| prefix.join("lib/node_modules/npm")));
        // The layout of Windows.
        found.push(folder.join("node_modules/npm"));
        found.push(folder.join("npm"));
    }
    let searched = std::env::split_paths(path.unwrap_or(DEFAULT_PATH)).filter(|folder| folder.is_absolute());
    for folder in searched {
        found.push(folder.join("node_modules/npm"));
        found.push(folder.join("npm"));
    }
    found
}

/// npm at `path`: its folder, its script or a wrapper.
fn at(path: &Path, node: &Path) -> Option<Npm> {
    let path = path.canonicalize().ok()?;
    if path.is_dir() {
        let script = path.join("bin/npm-cli.js");
        return script.is_file().then(|| through_node(script, node));
    }
    if !path.is_file() {
        return None;
    }
    if is_javascript(&path) {
        return Some(through_node(path, node));
    }
    is_executable(&path).then(|| Npm { program: path, lead: Vec::new(), root: None })
}

/// The folder that npm run by `node` takes for its global prefix.
pub(super) fn prefix(node: &Path) -> &Path {
    node.ancestors().nth(2).unwrap_or(Path::new("/"))
}

fn through_node(script: PathBuf, node: &Path) -> Npm {
    let root = script.parent().and_then(Path::parent).map(Path::to_owned);
    Npm { program: node.to_owned(), lead: vec![script.into_os_string()], root }
}

fn is_javascript(path: &Path) -> bool {
    if path.extension().and_then(OsStr::to_str).is_some_and(|ending| ["js", "cjs", "mjs"].contains(&ending)) {
        return true;
    }
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(FIRST_LINE_BYTES).read_to_end(&mut start));
    let first = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    // `#!/usr/bin/env node`, with or without options.
    read.is_ok() && first.starts_with("#!") && first.split(['/', ' ']).any(|word| word.trim_end() == "node")
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ending| ending.eq_ignore_ascii_case("exe"))
}

/// Folders that a run of npm may use up.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: PathBuf,
    home: PathBuf,
    tmp: PathBuf,
    cache: PathBuf,
    user_config: PathBuf,
    global_config: PathBuf,
    /// A folder with `node` in it: the one that will run the tool, whatever its program is called.
    bin: PathBuf,
    /// What refuses to be git.
    no_git: PathBuf,
    guard: PathBuf,
}

/// Files of certificates are shorter than this.
pub(super) const MAX_CERTIFICATES_BYTES: u64 = 16 * 1024 * 1024;

/// Stands for git where no repository may be fetched, whatever npm knows.
const NO_GIT: &str = "#!/bin/sh\necho 'git repositories are not allowed among dependencies' >&2\nexit 1\n";

/// Loaded into npm's first phase before npm. For a git repository npm starts another npm in the clone, which installs what the clone is
/// built with, by the clone's own settings: nothing of that is needed where no scripts run, and the settings name programs. git gets no
/// credential of npm's.
const GUARD: &str = r"'use strict';
if (process.env._PACOTE_NO_PREPARE_) process.exit(0);
const own = new Set((process.env.NATIVE_SANDBOX_OF_NPM ?? '').split(','));
const child = require('node:child_process');
const { spawn } = child;
child.spawn = (program, args = [], options = {}) => {
  if (!Array.isArray(args)) [args, options] = [[], args];
  const kept = Object.entries(options.env ?? process.env).filter(([key]) => !own.has(key) && !/^npm_config_/i.test(key));
  return spawn(program, args, { ...options, env: Object.fromEntries(kept) });
};
";

/// What git does not take from a repository: hooks, programs that watch files, and addresses that are programs.
const GIT_SETTINGS: [(&str, &str); 3] =
    [("core.hooksPath", "/dev/null"), ("core.fsmonitor", "false"), ("protocol.ext.allow", "never")];

/// Kinds of spec, with npm's settings for them.
const ALLOW_SETTINGS: [(&str, ExtraSpec); 4] = [
    ("allow-git", ExtraSpec::Git),
    ("allow-remote", ExtraSpec::Url),
    ("allow-file", ExtraSpec::File),
    ("allow-directory", ExtraSpec::File),
];
/// npm's list of its settings is shorter than this.
const MAX_DEFINITIONS_BYTES: u64 = 4 * 1024 * 1024;

/// Whether this npm refuses kinds of spec at every depth when it is told to.
pub(super) fn knows_allow_settings(npm: &Npm) -> bool {
    let file = "node_modules/@npmcli/config/lib/definitions/definitions.js";
    let text = npm.root.as_deref().and_then(|root| read_start(&root.join(file), MAX_DEFINITIONS_BYTES).ok());
    let text = text.unwrap_or_default();
    ALLOW_SETTINGS.iter().all(|(key, _)| {
        let quoted = format!("'{key}'").into_bytes();
        text.windows(quoted.len()).any(|part| part == quoted)
    })
}

/// Arguments by which npm refuses what `policy` does not allow: a tool's own packages may be of the kinds that it names, their packages
/// never.
pub(super) fn refusal_args(policy: &DependencyPolicy, knows_allow: bool, scratch: &Scratch) -> Vec<OsString> {
    let mut args = Vec::new();
    if !policy.specs.contains(&ExtraSpec::Git) {
        let mut git = OsString::from("--git=");
        git.push(&scratch.no_git);
        args.push(git);
    }
    if knows_allow {
        args.extend(ALLOW_SETTINGS.iter().map(|(key, kind)| {
            let whom = if policy.specs.contains(kind) { "root" } else { "none" };
            OsString::from(format!("--{key}={whom}"))
        }));
    }
    args
}

impl Scratch {
    /// Makes them in `dir`. Blocks.
    pub(super) fn create(dir: &Path) -> std::io::Result<Self> {
        let scratch = Self {
            dir: dir.to_owned(),
            home: dir.join("home"),
            tmp: dir.join("tmp"),
            cache: dir.join("cache"),
            // Two: npm refuses one file in two roles.
            user_config: dir.join("npmrc-user"),
            global_config: dir.join("npmrc-global"),
            bin: dir.join("bin"),
            no_git: dir.join("no-git"),
            guard: dir.join("guard.cjs"),
        };
        for folder in [&scratch.home, &scratch.tmp, &scratch.cache, &scratch.bin] {
            fs::create_dir_all(folder)?;
        }
        for file in [&scratch.user_config, &scratch.global_config] {
            fs::write(file, "")?;
        }
        fs::write(&scratch.guard, GUARD)?;
        fs::write(&scratch.no_git, NO_GIT)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&scratch.no_git, fs::Permissions::from_mode(0o755))?;
        }
        Ok(scratch)
    }

    /// Lets scripts find `node` by that name. Blocks.
    pub(super) fn name_node(&self, node: &Path) -> std::io::Result<()> {
        #[cfg(unix)]
        std::os::unix::fs::symlink(node, self.bin.join("node"))?;
        #[cfg(not(unix))]
        let _ = node;
        Ok(())
    }

    /// A copy of a file of certificates that the user's settings name, for scripts, which may have another user. Blocks.
    pub(super) fn copy_certificates(&self, from: &Path) -> Option<PathBuf> {
        let copy = self.dir.join("ca.pem");
        let text = read_start(from, MAX_CERTIFICATES_BYTES).ok()?;
        // The first phase could write here: it may have left a link.
        replace_file(&copy, &text).ok()?;
        Some(copy)
    }

    fn headers(&self) -> PathBuf {
        self.dir.join("headers")
    }

    /// A home folder that is there for one install.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// The folder of all of them.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A setting that no argument takes back, and with which npm installs nothing here; `None` if there is none in the files that npm
/// reads. (Of the environment npm does not get it.)
pub(super) fn fatal_setting(host: &Env, node: &Path, root: Option<&Path>) -> Option<String> {
    const KEY: &str = "workspace";
    let passed = host.iter().filter(|(name, _)| env_key(name).as_deref() != Some(KEY));
    let passed: Env = passed.map(|(name, value)| (name.clone(), value.clone())).collect();
    let value = Settings::read(&passed, prefix(node), root).get(KEY)?.to_owned();
    Some(format!(
        "npm's settings say {KEY}={value}, with which npm looks for workspaces and installs nothing: take that line out of the npmrc \
         that has it (`npm config ls -l` tells which one), or name another file by npm_config_userconfig"
    ))
}

/// Arguments of phase 1: everything but scripts. `cache` replaces the user's where that cannot be written.
pub(super) fn install_args(
    settings: &Settings,
    cache: Option<&Path>,
    release_age: Option<String>,
) -> Vec<OsString> {
    let fixed = [
        "install",
        "--ignore-scripts",
        "--no-audit",
        // What settings may turn the command into.
        "--no-global",
        "--location=project",
        "--no-dry-run",
        "--no-package-lock-only",
        "--no-usage",
        "--no-workspaces",
        "--no-fund",
        "--loglevel=error",
        "--heading=npm",
        "--no-progress",
        "--no-update-notifier",
        "--logs-max=0",
        "--no-timing",
        "--no-json",
        "--no-long",
        "--no-parseable",
        "--no-color",
        "--no-foreground-scripts",
        // Users switch these off for their own projects; here they are needed.
        "--save",
        "--package-lock",
        "--lockfile-version=3",
        "--include=optional",
        "--include=peer",
        "--bin-links",
        // A folder is copied, not linked: a tree must not change after it was published.
        "--install-links",
    ];
    let caps = RETRY_CAPS.iter().filter(|(key, _)| settings.get(key).is_none());
    let mut args: Vec<OsString> = fixed.iter().map(OsString::from).collect();
    args.extend(caps.map(|(key, value)| format!("--{key}={value}").into()));
    args.extend(release_age.map(OsString::from));
    args.extend(cache.map(|cache| {
        let mut arg = OsString::from("--cache=");
        arg.push(cache);
        arg
    }));
    args
}

/// Arguments of phase 2: the scripts of `names`, or of all packages when there are none.
pub(super) fn rebuild_args<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<OsString> {
    let fixed =
        ["rebuild", "--loglevel=error", "--no-progress", "--no-update-notifier", "--logs-max=0", "--"];
    fixed.into_iter().map(OsString::from).chain(names.into_iter().map(OsString::from)).collect()
}

/// The argument for a minimum age of `days`; the stricter of it and the user's own age wins.
///
/// Some versions of npm refuse `before` and `min-release-age` together, from whatever source: the key in use stays in use.
pub(super) fn release_age_arg(days: f64, settings: &Settings, now: SystemTime) -> String {
    if let Some(theirs) = settings.get("min-release-age") {
        let days = theirs.parse::<f64>().map_or(days, |theirs| theirs.max(days));
        return format!("--min-release-age={days}");
    }
    let age = Duration::from_secs_f64(days * 86_400.0);
    let before = now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let seconds = before.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("--before={}", iso_8601(seconds))
}

/// `YYYY-MM-DDTHH:MM:SSZ` for seconds since 1970.
fn iso_8601(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

/// The environment of phase 1: the user's npm settings and what these name, nothing else of the host's.
pub(super) fn install_env(
    host: &Env,
    settings: &Settings,
    node: &Path,
    scratch: &Scratch,
) -> Vec<(OsString, OsString)> {
    let mut env = common_env(host, node, scratch);
    let mut private = Vec::new();
    for (name, value) in host.iter().filter(|(name, _)| is_passed_setting(name, host)) {
        env.insert(name.clone(), value.into());
        private.push(name.as_str());
    }
    for name in settings.variables() {
        if let Some(value) = host.get(name) {
            // What all programs get is none of npm's.
            if !env.contains_key(name) {
                private.push(name);
            }
            env.insert(name.to_owned(), value.into());
        }
    }
    env.insert("NATIVE_SANDBOX_OF_NPM".to_owned(), private.join(",").into());
    let guard = scratch.guard.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    env.insert("NODE_OPTIONS".to_owned(), format!("--require \"{guard}\"").into());
    env.insert("GIT_CONFIG_COUNT".to_owned(), GIT_SETTINGS.len().to_string().into());
    for (at, (key, value)) in GIT_SETTINGS.iter().enumerate() {
        env.insert(format!("GIT_CONFIG_KEY_{at}"), key.into());
        env.insert(format!("GIT_CONFIG_VALUE_{at}"), value.into());
    }
    let home = host.get("HOME").filter(|home| !home.is_empty());
    env.insert("HOME".to_owned(), home.map_or_else(|| scratch.home.clone().into(), OsString::from));
    with_tmp(env, scratch)
}

/// The environment of phase 2, in which third-party code runs: no settings, no cache, no credentials.
///
/// But for settings that builds need, `of_builds`. `home` is kept with the tree.
pub(super) fn rebuild_env(
    host: &Env,
    of_builds: BTreeMap<String, String>,
    node: &Path,
    scratch: &Scratch,
    home: &Path,
) -> Vec<(OsString, OsString)> {
    let mut env = common_env(host, node, scratch);
    env.extend(of_builds.into_iter().map(|(name, value)| (name, value.into())));
    env.insert("HOME".to_owned(), home.into());
    for (name, path) in [
        // Headers of Node, which no function needs.
        ("npm_config_devdir", &scratch.headers()),
        ("npm_config_cache", &scratch.cache),
        ("npm_config_userconfig", &scratch.user_config),
        ("npm_config_globalconfig", &scratch.global_config),
    ] {
        env.insert(name.to_owned(), path.into());
    }
    with_tmp(env, scratch)
}

fn common_env(host: &Env, node: &Path, scratch: &Scratch) -> BTreeMap<String, OsString> {
    let passed = |name: &str| PASSED.contains(&name) || name.starts_with("LC_") || is_passed_on_windows(name);
    let mut env: BTreeMap<_, OsString> = host
        .iter()
        .filter(|(name, _)| passed(name))
        .map(|(name, value)| (name.clone(), value.into()))
        .collect();
    env.insert("PATH".to_owned(), path_with_node(host.get("PATH").map(String::as_str), node, scratch));
    env
}

#[cfg(windows)]
fn is_passed_on_windows(name: &str) -> bool {
    PASSED_ON_WINDOWS.iter().any(|passed| passed.eq_ignore_ascii_case(name))
}

#[cfg(not(windows))]
fn is_passed_on_windows(_: &str) -> bool {
    false
}

/// Scripts say `node` and mean the one that will run the tool.
fn path_with_node(path: Option<&str>, node: &Path, scratch: &Scratch) -> OsString {
    let path = path.unwrap_or(DEFAULT_PATH);
    let own = [Some(scratch.bin.clone()), node.parent().map(Path::to_owned)];
    let folders = own.into_iter().flatten().chain(std::env::split_paths(path));
    std::env::join_paths(folders).unwrap_or_else(|_| path.into())
}

fn with_tmp(mut env: BTreeMap<String, OsString>, scratch: &Scratch) -> Vec<(OsString, OsString)> {
    let names: &[&str] = if cfg!(windows) { &["TMPDIR", "TEMP", "TMP"] } else { &["TMPDIR"] };
    for name in names {
        env.insert((*name).to_owned(), scratch.tmp.clone().into());
    }
    env.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

fn is_passed_setting(name: &str, host: &Env) -> bool {
    let Some(key) = env_key(name) else { return false };
    if key == "prefix" {
        // From `npm --prefix <project> …`, not from the user: it would move the global settings into the project.
        return host.get("npm_config_local_prefix") != host.get(name);
    }
    !NOT_PASSED_KEYS.contains(&key.as_str())
}

/// The user's cache.
pub(super) fn cache(host: &Env, settings: &Settings) -> Option<PathBuf> {
    let default = || Some(Path::new(host.get("HOME").filter(|home| !home.is_empty())?).join(".npm"));
    settings.path("cache", host).or_else(default)
}

/// Whether npm can write the user's cache. Blocks.
pub(super) fn has_writable_cache(host: &Env, settings: &Settings) -> bool {
    cache(host, settings).is_some_and(|cache| is_writable(&cache))
}

/// Whether `path`, or the first folder above it that exists, can be written.
fn is_writable(path: &Path) -> bool {
    let existing = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
    existing.is_some_and(|folder| folder.is_dir() && may_write(folder))
}

#[cfg(unix)]
fn may_write(folder: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(not(unix))]
fn may_write(folder: &Path) -> bool {
    folder.metadata().is_ok_and(|metadata| !metadata.permissions().readonly())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn names(env: Vec<(OsString, OsString)>) -> Vec<String> {
        env.into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
    }

    fn file(path: &Path, text: &str, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let _ = mode;
    }

    #[cfg(unix)]
    #[test]
    fn npm_is_found_beside_node_then_on_path() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (node, other) = (base.join("a/bin/node"), base.join("b/bin"));
        file(&node, "", 0o755);
        file(&other.join("npm"), "#!/bin/sh\nexec something\n", 0o755);
        let wrapper = find(None, &node, other.to_str()).unwrap();
        assert_eq!(wrapper, Npm { program: other.join("npm"), lead: vec![], root: None });
        let cli = base.join("a/lib/node_modules/npm/bin/npm-cli.js");
        file(&cli, "", 0o644);
        let beside = find(None, &node, other.to_str()).unwrap();
        assert_eq!(beside.program, node);
        assert_eq!(beside.lead, [cli.as_os_str()]);
        assert_eq!(beside.root, Some(base.join("a/lib/node_modules/npm")));
        for option in [cli.clone(), base.join("a/lib/node_modules/npm")] {
            assert_eq!(find(Some(&option), &node, None).unwrap(), beside);
        }
        std::os::unix::fs::symlink(&cli, base.join("a/bin/npm")).unwrap();
        assert_eq!(find(Some(&base.join("a/bin/npm")), &node, None).unwrap(), beside);
    }

    #[cfg(unix)]
    #[test]
    fn without_npm_the_error_says_what_to_set() {
        let base = tempfile::tempdir().unwrap();
        let node = base.path().join("bin/node");
        file(&node, "", 0o755);
        file(&base.path().join("bin/npm"), "#!/bin/sh\n", 0o644);
        let message = find(None, &node, base.path().to_str()).unwrap_err();
        assert!(message.contains("npmPath") && message.contains(node.to_str().unwrap()), "{message}");
        let message = find(Some(&base.path().join("none")), &node, None).unwrap_err();
        assert!(message.contains("npmPath") && message.contains("none"), "{message}");
    }

    #[test]
    fn a_script_for_node_is_told_from_a_wrapper() {
        let base = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("#!/usr/bin/env node\n", true),
            ("#!/usr/bin/env -S node --no-warnings\n", true),
            ("#!/opt/node\r\n", true),
            ("#!/bin/sh\nnode x", false),
            ("#!/usr/bin/env nodejs-wrapper\n", false),
            ("", false),
        ] {
            let path = base.path().join("npm");
            fs::write(&path, text).unwrap();
            assert_eq!(is_javascript(&path), expected, "{text:?}");
        }
    }

    #[test]
    fn phase_one_gets_the_settings_and_phase_two_does_not() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().to_str().unwrap();
        fs::write(base.path().join(".npmrc"), "//r/:_authToken=${NPM_TOKEN}\nx=${NODE_OPTIONS}\n").unwrap();
        let host = env(&[
            ("HOME", home),
            ("PATH", "/bin"),
            ("NODE_OPTIONS", "--import x"),
            ("NPM_TOKEN", "t"),
            ("SECRET", "s"),
            ("LC_ALL", "C"),
            ("https_proxy", "p"),
            ("NODE_EXTRA_CA_CERTS", "c"),
            ("npm_package_name", "host"),
            ("npm_lifecycle_event", "start"),
            ("npm_config_registry", "r"),
            ("NPM_CONFIG__AUTH", "a"),
            ("INIT_CWD", "/"),
            ("npm_config_local_prefix", "/app"),
            ("npm_config_prefix", "/app"),
            ("npm_config_global", "true"),
            ("npm_config_user_agent", "npm/1"),
            ("npm_config_workspace", "w"),
            ("npm_config_allow_scripts", "x"),
            ("npm_config_noproxy", ""),
            ("npm_config_node_gyp", "/x"),
            ("TMPDIR", "/elsewhere"),
        ]);
        let scratch = Scratch::create(&base.path().join("scratch")).unwrap();
        let node = Path::new("/opt/node/bin/node");
        let settings = Settings::read(&host, Path::new("/nowhere"), None);
        let first = install_env(&host, &settings, node, &scratch);
        assert!(first.contains(&("HOME".into(), home.into())));
        assert!(first.contains(&("TMPDIR".into(), scratch.tmp.clone().into())));
        #[cfg(unix)]
        {
            let path = format!("{}:/opt/node/bin:/bin", scratch.bin.display());
            assert!(first.contains(&("PATH".into(), path.into())));
        }
        assert!(first.contains(&(
            "NATIVE_SANDBOX_OF_NPM".into(),
            "NPM_CONFIG__AUTH,npm_config_noproxy,npm_config_registry,NPM_TOKEN".into()
        )));
        assert_eq!(
            names(first),
            [
                "GIT_CONFIG_COUNT",
                "GIT_CONFIG_KEY_0",
                "GIT_CONFIG_KEY_1",
                "GIT_CONFIG_KEY_2",
                "GIT_CONFIG_VALUE_0",
                "GIT_CONFIG_VALUE_1",
                "GIT_CONFIG_VALUE_2",
                "HOME",
                "LC_ALL",
                "NATIVE_SANDBOX_OF_NPM",
                "NODE_EXTRA_CA_CERTS",
                "NODE_OPTIONS",
                "NPM_CONFIG__AUTH",
                "NPM_TOKEN",
                "PATH",
                "TMPDIR",
                "https_proxy",
                "npm_config_noproxy",
                "npm_config_registry",
            ]
        );
        let of_builds = BTreeMap::from([("npm_config_nodedir".to_owned(), "/h".to_owned())]);
        let second = rebuild_env(&host, of_builds, node, &scratch, Path::new("/tree/.home"));
        assert!(second.contains(&("HOME".into(), "/tree/.home".into())));
        assert_eq!(
            names(second),
            [
                "HOME",
                "LC_ALL",
                "NODE_EXTRA_CA_CERTS",
                "PATH",
                "TMPDIR",
                "https_proxy",
                "npm_config_cache",
                "npm_config_devdir",
                "npm_config_globalconfig",
                "npm_config_nodedir",
                "npm_config_userconfig",
            ]
        );
    }

    #[test]
    fn a_prefix_of_the_users_own_is_kept() {
        let host = env(&[("npm_config_prefix", "/home/me/npm"), ("npm_config_local_prefix", "/app")]);
        assert!(is_passed_setting("npm_config_prefix", &host));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_the_first_phase_left_is_not_written_through() {
        let base = tempfile::tempdir().unwrap();
        let (outside, ca) = (base.path().join("outside"), base.path().join("ca"));
        fs::write(&outside, "as it was").unwrap();
        fs::write(&ca, "CA").unwrap();
        let scratch = Scratch::create(&base.path().join("scratch")).unwrap();
        std::os::unix::fs::symlink(&outside, scratch.dir().join("ca.pem")).unwrap();
        let copy = scratch.copy_certificates(&ca).unwrap();
        assert_eq!(fs::read_to_string(copy).unwrap(), "CA");
        assert_eq!(fs::read_to_string(&outside).unwrap(), "as it was");
    }

    #[test]
    fn retries_are_capped_unless_the_user_sets_them() {
        let has = |settings: &Settings, arg: &str| install_args(settings, None, None).contains(&arg.into());
        let nothing = Settings::default();
        assert!(has(&nothing, "--fetch-retries=2") && has(&nothing, "--fetch-retry-maxtimeout=5000"));
        let theirs = Settings::read(&env(&[("NPM_CONFIG_FETCH_RETRIES", "9")]), Path::new("/nowhere"), None);
        assert!(!has(&theirs, "--fetch-retries=2") && has(&theirs, "--fetch-retry-maxtimeout=5000"));
    }

    #[test]
    fn a_workspace_in_a_file_is_named_and_one_in_the_environment_is_not_passed_on() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().to_str().unwrap();
        let host = env(&[("HOME", home), ("npm_config_workspace", "of-the-host")]);
        let node = Path::new("/nowhere/bin/node");
        assert_eq!(fatal_setting(&host, node, None), None);
        fs::write(base.path().join(".npmrc"), "workspace[]=x\n").unwrap();
        assert!(fatal_setting(&host, node, None).unwrap().contains("workspace=x"));
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("home");
        let host = env(&[("HOME", home.to_str().unwrap())]);
        let settings = Settings::default();
        assert!(has_writable_cache(&host, &settings));
        fs::write(&home, "a file").unwrap();
        assert!(!has_writable_cache(&host, &settings));
        assert!(!has_writable_cache(&Env::new(), &settings));
        let set = env(&[("npm_config_cache", base.path().to_str().unwrap())]);
        assert!(has_writable_cache(&set, &Settings::read(&set, base.path(), None)));
    }

    #[test]
    fn release_ages() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(474_804); // 2024-03-01T12:00:00Z
        let none = Settings::default();
        assert_eq!(release_age_arg(1.5, &none, now), "--before=2024-02-29T00:00:00Z");
        assert_eq!(release_age_arg(0.0, &none, now), "--before=2024-03-01T12:00:00Z");
        assert_eq!(release_age_arg(36_500.0, &none, now), "--before=1970-01-01T00:00:00Z");
        let theirs =
            Settings::read(&env(&[("npm_config_min_release_age", "7")]), Path::new("/nowhere"), None);
        assert_eq!(release_age_arg(3.0, &theirs, now), "--min-release-age=7");
        assert_eq!(release_age_arg(9.0, &theirs, now), "--min-release-age=9");
    }

    proptest! {
        #[test]
        fn dates_are_real_and_in_order(seconds in 0_u64..10_000_000_000, more in 1_u64..10_000_000) {
            let (one, two) = (iso_8601(seconds), iso_8601(seconds + more));
            prop_assert!(one < two);
            prop_assert_eq!(one.len(), 20);
        }
    }
}
