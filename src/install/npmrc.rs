//! What the user's npm settings set, and which variables they name by `${VAR}`. Parsing is pure; [`Settings::read`] reads files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::store::reading::read_start;

/// Larger files are none that npm users write; what is beyond is not looked at.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Variables that are never handed on, whoever names them: they change the program itself.
const NEVER_PASSED: [&str; 3] = ["NODE_OPTIONS", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES"];
/// Keys whose values are credentials; npm writes them below a registry's address or alone.
const CREDENTIAL_KEYS: [&str; 5] = ["_authtoken", "_auth", "_password", "cert", "key"];

/// Settings that change what npm puts into a tree, beside the registries.
const TREE_KEYS: [&str; 16] = [
    "before",
    "cpu",
    "engine-strict",
    "global-style",
    "ignore-scripts",
    "include",
    "install-strategy",
    "legacy-bundling",
    "legacy-peer-deps",
    "libc",
    "min-release-age",
    "omit",
    "os",
    "prefer-dedupe",
    "strict-peer-deps",
    "tag",
];

/// Settings of npm, of node-gyp and of what fetches binaries, that scripts read.
const SCRIPT_KEYS: [&str; 17] = [
    "build_from_source",
    "cafile",
    "clang",
    "dist_url",
    "disturl",
    "fallback_to_build",
    "http_proxy",
    "https_proxy",
    "jobs",
    "make",
    "maxsockets",
    "msvs_version",
    "nodedir",
    "noproxy",
    "proxy",
    "python",
    "strict_ssl",
];
/// And those of single packages: `sharp_binary_host`, `electron_mirror`, `canvas_binary_host_mirror`.
const SCRIPT_KEY_PARTS: [&str; 7] =
    ["_binary_host", "_binary_site", "_binary_path", "_binary_url", "_mirror", "_dist_url", "_download_url"];

/// The host's environment.
pub(super) type Env = BTreeMap<String, String>;

/// The effective npm settings: environment before user before global before npm's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Settings {
    values: BTreeMap<String, String>,
    variables: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

impl Settings {
    /// Reads what npm would read. Files that are missing or unreadable count as empty, as they do for npm.
    ///
    /// `prefix` is the folder that npm takes for its global prefix: two above the `node` that runs it.
    pub(super) fn read(env: &Env, prefix: &Path, npm_root: Option<&Path>) -> Self {
        let mut settings = Self::default();
        settings.add(env_pairs(env), env);
        let user = settings.path("userconfig", env).or_else(|| Some(home(env)?.join(".npmrc")));
        settings.add_file(user.as_deref(), env);
        // PREFIX is not among what is handed on, so npm does not see it either.
        let prefix = settings.prefix(env, prefix);
        let global = settings.path("globalconfig", env).unwrap_or_else(|| prefix.join("etc/npmrc"));
        settings.add_file(Some(&global), env);
        settings.add_file(npm_root.map(|root| root.join("npmrc")).as_deref(), env);
        settings
    }

    /// The files that settings are in, or name.
    pub(super) fn files(&self, env: &Env, prefix: &Path) -> Vec<PathBuf> {
        let of_home = home(env).map(|home| home.join(".npmrc"));
        let prefix_file = self.prefix(env, prefix).join("etc/npmrc");
        self.named_files(env, prefix)
            .into_iter()
            .map(|(_, path)| path)
            .chain(of_home)
            .chain([prefix_file])
            .collect()
    }

    /// The same, each with the setting by which npm is told where it is.
    pub(super) fn named_files(&self, env: &Env, prefix: &Path) -> Vec<(String, PathBuf)> {
        let user = self.path("userconfig", env).or_else(|| Some(home(env)?.join(".npmrc")));
        let global = self.path("globalconfig", env);
        let global = global.unwrap_or_else(|| self.prefix(env, prefix).join("etc/npmrc"));
        let in_files = [("userconfig", user), ("globalconfig", Some(global))];
        let named = ["cafile", "certfile", "keyfile"].map(|key| (key, self.path(key, env)));
        let all = in_files.into_iter().chain(named).filter_map(|(key, path)| Some((key.to_owned(), path?)));
        // Below a registry's address they have that in front.
        let scoped = self.values.keys().filter(|key| key.ends_with(":certfile") || key.ends_with(":keyfile"));
        all.chain(scoped.filter_map(|key| Some((key.clone(), self.path(key, env)?)))).collect()
    }

    fn prefix(&self, env: &Env, default: &Path) -> PathBuf {
        self.path("prefix", env).unwrap_or_else(|| default.to_owned())
    }

    /// The value of `key`, by npm's name for it (`fetch-retries`), with its variables in place.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Whether a yes-or-no setting is on.
    pub(super) fn is_on(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.is_empty() || value == "true" || value == "1")
    }

    /// A path setting; `~/` is the home folder.
    pub(super) fn path(&self, key: &str, env: &Env) -> Option<PathBuf> {
        let value = self.get(key).filter(|value| !value.is_empty())?;
        match (value.strip_prefix("~/"), env.get("HOME")) {
            (Some(rest), Some(home)) => Some(Path::new(home).join(rest)),
            _ => Some(PathBuf::from(value)),
        }
    }

    /// The hosts that npm itself talks to, as `host:port`: registries, and proxies of the settings and of the environment.
    pub(super) fn hosts(&self, env: &Env) -> Vec<String> {
        /// Where no setting names a registry.
        const DEFAULT: &str = "registry.npmjs.org:443";
        let is_host = |key: &str| {
            key == "registry"
                || key.ends_with(":registry")
                || ["proxy", "https-proxy", "http-proxy"].contains(&key)
        };
        let settings = self.values.iter().filter(|(key, _)| is_host(key)).map(|(_, value)| value.as_str());
        let of_env = ["http_proxy", "https_proxy", "proxy"].into_iter().flat_map(|name| {
            [name.to_owned(), name.to_uppercase()]
                .into_iter()
                .filter_map(|name| env.get(&name))
                .map(String::as_str)
        });
        let default = self.get("registry").is_none().then_some(DEFAULT);
        settings.chain(of_env).filter_map(host_of).chain(default.map(str::to_owned)).collect()
    }

    /// The settings that decide what is in a tree: where packages come from (`registry`, `@scope:registry`), and how npm lays them
    /// out. Without credentials: who asks does not change what a version is.
    pub(super) fn of_trees(&self) -> BTreeMap<String, String> {
        let counts = |key: &str| {
            key == "registry"
                || (key.starts_with('@') && key.ends_with(":registry"))
                || TREE_KEYS.contains(&key)
        };
        let settings = self.values.iter().filter(|(key, _)| counts(key));
        settings.map(|(key, value)| (key.clone(), without_credentials(value))).collect()
    }

    /// Settings that the packages' own scripts need to build or to fetch something, as the variables that npm gives them; never a
    /// credential: what could be one is taken off addresses.
    pub(super) fn for_scripts(&self, env: &Env) -> BTreeMap<String, String> {
        let counts = |key: &str| {
            let key = key.replace('-', "_").to_ascii_lowercase();
            !is_credential(&key)
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && (SCRIPT_KEYS.contains(&key.as_str())
                    || SCRIPT_KEY_PARTS
                        .iter()
                        .any(|part| key.ends_with(part) || key.contains(&format!("{part}_"))))
        };
        let found = self.values.iter().filter(|(key, _)| counts(key));
        let named = found.map(|(key, value)| {
            let name = format!("npm_config_{}", key.replace('-', "_").to_ascii_lowercase());
            let path = self.path(key, env).filter(|_| value.starts_with("~/"));
            let value = path.map_or_else(|| value.clone(), |path| path.to_string_lossy().into_owned());
            (name, if value.contains("://") { without_credentials(&value) } else { value })
        });
        named.filter(|(_, value)| !self.secrets.contains(value)).collect()
    }

    /// What of the file system these settings name, to be read: Node's headers, and Python.
    pub(super) fn places_of_scripts(&self, env: &Env) -> Vec<PathBuf> {
        let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
        let python = self.path("python", env).filter(|path| path.is_absolute());
        // An installation of its own, not `~/bin`, nor what everything is in.
        let prefix = python.as_deref().and_then(|python| python.ancestors().nth(2)).filter(|prefix| {
            !home.starts_with(prefix) && prefix.join("lib").is_dir() && *prefix != Path::new("/usr")
        });
        let prefix = prefix.map(Path::to_owned);
        let nodedir = self.path("nodedir", env).filter(|dir| dir.is_absolute() && !home.starts_with(dir));
        nodedir.into_iter().chain(python).chain(prefix).collect()
    }

    /// Variables that the settings name.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(String::as_str).filter(|name| !NEVER_PASSED.contains(name))
    }

    /// What must not show in a text: credentials, and the values of the variables.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }

    fn add_file(&mut self, path: Option<&Path>, env: &Env) {
        let text = path.and_then(|path| {
            let text = read_start(path, MAX_FILE_BYTES).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        });
        self.add(parse(&text.unwrap_or_default()), env);
    }

    /// Adds a source of lower precedence than those before.
    fn add(&mut self, pairs: Vec<(String, String)>, env: &Env) {
        let mut source = BTreeMap::new();
        for (key, value) in pairs {
            for name in references(&key).into_iter().chain(references(&value)) {
                self.secrets.extend(env.get(&name).cloned());
                self.variables.insert(name);
            }
            let (key, value) = (expand(&key, env), expand(&value, env));
            if is_credential(&key) {
                self.secrets.insert(value.clone());
            }
            // Within one source the last line wins.
            source.insert(key, value);
        }
        for (key, value) in source {
            self.values.entry(key).or_insert(value);
        }
    }
}

fn home(env: &Env) -> Option<&Path> {
    env.get("HOME").filter(|home| !home.is_empty()).map(Path::new)
}

/// The key that an environment variable sets, as npm derives it; `None` for other variables.
pub(super) fn env_key(name: &str) -> Option<String> {
    const START: &str = "npm_config_";
    let start = name.get(..START.len())?;
    let key = &name[START.len()..];
    if !start.eq_ignore_ascii_case(START) || key.is_empty() {
        return None;
    }
    // Keys below a registry's address are taken as they are; an underscore at the start stays.
    if key.starts_with("//") {
        return Some(key.to_owned());
    }
    let (first, rest) = key.split_at(key.chars().next().map_or(0, char::len_utf8));
    Some(format!("{first}{}", rest.replace('_', "-")).to_lowercase())
}

fn env_pairs(env: &Env) -> Vec<(String, String)> {
    let set = env.iter().filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, value)| Some((env_key(name)?, value.clone()))).collect()
}

/// An address without its `user:password@` and without the slash at its end; any other text as it is.
fn without_credentials(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{}", rest[end..].trim_end_matches('/'))
}

fn is_credential(key: &str) -> bool {
    let last = key.rsplit(':').next().unwrap_or(key).to_ascii_lowercase();
    CREDENTIAL_KEYS.contains(&last.as_str())
}

/// Keys and values of an ini text, in order. Sections do not matter here: npm knows none.
fn parse(text: &str) -> Vec<(String, String)> {
    text.split(['\r', '\n'])
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with([';', '#', '[']))
        .map(|line| match line.split_once('=') {
            Some((key, value)) => (unescape(key), unescape(value)),
            None => (unescape(line), "true".to_owned()),
        })
        .map(|(key, value)| (key.trim_end_matches("[]").to_owned(), value))
        .collect()
}

/// Quotes off, comment at the end off, `\;`, `\#` and `\\` resolved: what the ini reader of npm does.
fn unescape(text: &str) -> String {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            let json = format!("\"{inner}\"");
            return serde_json::from_str(&json).unwrap_or_else(|_| inner.to_owned());
        }
    }
    let mut result = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ';' | '#' => break,
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ';' | '#')) => result.push(escaped),
                Some(other) => result.extend(['\\', other]),
                None => result.push('\\'),
            },
            _ => result.push(c),
        }
    }
    result.trim().to_owned()
}

/// The names in `${NAME}` and `${NAME?}` that an odd number of backslashes does not escape.
fn references(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    replace(text, |name, _| {
        names.push(name.to_owned());
        String::new()
    });
    names
}

/// `text` with its variables in place; one that is not set stays as it is, or is empty with `?`.
fn expand(text: &str, env: &Env) -> String {
    replace(text, |name, optional| match env.get(name) {
        Some(value) => value.clone(),
        None if optional => String::new(),
        None => format!("${{{name}}}"),
    })
}

fn replace(text: &str, mut value: impl FnMut(&str, bool) -> String) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        let Some((name, optional, length)) = reference(after) else {
            result.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
            continue;
        };
        let plain = before.trim_end_matches('\\');
        let backslashes = before.len() - plain.len();
        result.push_str(plain);
        result.push_str(&"\\".repeat(backslashes / 2));
        if backslashes % 2 == 1 {
            result.push_str(&after[..length]);
        } else {
            result.push_str(&value(name, optional));
        }
        rest = &after[length..];
    }
    result + rest
}

/// The reference at the start of `text`: name, whether it ends in `?`, and length.
fn reference(text: &str) -> Option<(&str, bool, usize)> {
    let inner = text.strip_prefix("${")?;
    let end = inner.find('}')?;
    let (name, optional) = match inner[..end].strip_suffix('?') {
        Some(name) => (name, true),
        None => (&inner[..end], false),
    };
    let is_name = !name.is_empty() && !name.contains(['$', '{', '?']);
    is_name.then_some((name, optional, "${".len() + end + 1))
}

/// `host:port` of an address.
fn host_of(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let has_port =
        host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    match (host.is_empty(), has_port) {
        (true, _) => None,
        (false, true) => Some(host.to_owned()),
        (false, false) => {
            Some(format!("{host}:{}", if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_hosts_that_npm_talks_to_are_those_of_its_registries_and_proxies() {
        let text = "registry=https://me:x@npm.example/a/b\n@acme:registry=http://127.0.0.1:4873/\nhttps-proxy=http://[::1]:3128";
        let env = env(&[("HTTP_PROXY", "http://proxy.example"), ("NO_PROXY", "x")]);
        let mut hosts = settings(text, &env).hosts(&env);
        hosts.sort();
        assert_eq!(hosts, ["127.0.0.1:4873", "[::1]:3128", "npm.example:443", "proxy.example:80"]);
        assert_eq!(Settings::default().hosts(&Env::new()), ["registry.npmjs.org:443"]);
        for none in ["", "npm.example", "http://", "http:///x"] {
            assert_eq!(host_of(none), None, "{none}");
        }
    }

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn settings(text: &str, env: &Env) -> Settings {
        let mut settings = Settings::default();
        settings.add(parse(text), env);
        settings
    }

    #[test]
    fn variables_are_found_where_npm_finds_them() {
        let text = concat!(
            "; ${COMMENT}\n# ${COMMENT}\n//host.example/:_authToken=${TOKEN}\n${KEY}=1\r\nproxy=http://${USER}:${PASS?}@h\n",
            "a=x ; ${TRAILING}\nb=\\\\${ESCAPED}\nc=\"${QUOTED}\"\nlist[]=${LISTED}\nd=${}\ne=${OPEN\nf=${NODE_OPTIONS}\n",
        );
        let settings = settings(text, &Env::new());
        let names: Vec<_> = settings.variables().collect();
        assert_eq!(names, ["KEY", "LISTED", "PASS", "QUOTED", "TOKEN", "USER"]);
    }

    #[test]
    fn values_and_secrets() {
        let env = env(&[("TOKEN", "s3cret"), ("H", "host")]);
        let settings = settings(
            "//r/:_authToken=${TOKEN}\nregistry=https://${H}/${GONE}${GONE?}\n_auth = lit;x\nyes",
            &env,
        );
        assert_eq!(settings.get("//r/:_authToken"), Some("s3cret"));
        assert_eq!(settings.get("registry"), Some("https://host/${GONE}"));
        assert!(settings.is_on("yes") && !settings.is_on("no"));
        assert_eq!(settings.secrets().collect::<Vec<_>>(), ["host", "lit", "s3cret"]);
    }

    #[test]
    fn what_changes_a_tree() {
        let text = concat!(
            "registry=https://me:secret@host.example/npm/\n@acme:registry=http://other.example?x=/@\n//host.example/:_authToken=t\n",
            "omit=dev\ncache=/c\nlegacy-peer-deps\n",
        );
        let found = settings(text, &Env::new()).of_trees();
        let expected = [
            ("@acme:registry", "http://other.example?x=/@"),
            ("legacy-peer-deps", "true"),
            ("omit", "dev"),
            ("registry", "https://host.example/npm"),
        ];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn environment_keys() {
        for (name, key) in [
            ("npm_config_fetch_retries", Some("fetch-retries")),
            ("NPM_CONFIG__AUTH", Some("_auth")),
            ("npm_config_//r/:_authToken", Some("//r/:_authToken")),
            ("npm_config_", None),
            ("npm_package_name", None),
            ("é", None),
        ] {
            assert_eq!(env_key(name).as_deref(), key, "{name}");
        }
    }

    #[test]
    fn files_are_read_in_npms_order() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("home");
        let prefix = base.path().join("prefix");
        let npm = base.path().join("npm");
        for dir in [&home, &prefix.join("etc"), &npm] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(home.join(".npmrc"), "a=user\nb=user\ncache=~/c\n").unwrap();
        fs::write(prefix.join("etc/npmrc"), "b=global\nc=global\nd=${G}\n").unwrap();
        fs::write(npm.join("npmrc"), "c=builtin\ne=builtin\n").unwrap();
        let env = env(&[("HOME", home.to_str().unwrap()), ("npm_config_a", "env"), ("npm_config_empty", "")]);
        let settings = Settings::read(&env, &prefix, Some(&npm));
        for (key, value) in [("a", "env"), ("b", "user"), ("c", "global"), ("d", "${G}"), ("e", "builtin")] {
            assert_eq!(settings.get(key), Some(value), "{key}");
        }
        assert_eq!(settings.get("empty"), None);
        assert_eq!(settings.variables().collect::<Vec<_>>(), ["G"]);
        assert_eq!(settings.path("cache", &env), Some(home.join("c")));
    }

    #[test]
    fn what_builds_need_reaches_scripts_and_credentials_do_not() {
        let text = concat!(
            "nodedir=/opt/headers\nsharp_binary_host=https://me:hush@mirror.example/x/\nelectron_mirror=http://m.example\n",
            "python=~/py/bin/python3\nproxy=http://me:${PASS}@proxy.example:3128\nhttps-proxy=http://proxy.example\nnoproxy=a,b\n",
            "cafile=/etc/ca.pem\nstrict-ssl=false\n//r/:_authToken=t\n_auth=x\n//mirror_mirror/:_password=p\nregistry=http://r\n",
            "cache=/c\nscript-shell=/bin/evil\nnode-options=--require x\nignore-scripts=true\nx_mirror=${TOKEN}\nuserconfig=/u\n",
        );
        let env = env(&[("HOME", "/h"), ("PASS", "hush"), ("TOKEN", "s3cret")]);
        let found = settings(text, &env).for_scripts(&env);
        let expected = [
            ("cafile", "/etc/ca.pem"),
            ("electron_mirror", "http://m.example"),
            ("https_proxy", "http://proxy.example"),
            ("nodedir", "/opt/headers"),
            ("noproxy", "a,b"),
            ("proxy", "http://proxy.example:3128"),
            ("python", "/h/py/bin/python3"),
            ("sharp_binary_host", "https://mirror.example/x"),
            ("strict_ssl", "false"),
        ];
        let expected = expected.map(|(key, value)| (format!("npm_config_{key}"), value.to_owned()));
        assert_eq!(found, expected.into());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[\\$\\{\\}?\\\\A-C=;#\n\"é\\[\\]]{0,40}") {
            let _ = settings(&text, &Env::new());
            let _ = env_key(&text);
        }

        #[test]
        fn without_references_nothing_changes(text in "[a-z:/=\\\\]{0,30}") {
            prop_assert_eq!(expand(&text, &Env::new()), text);
        }
    }
}
