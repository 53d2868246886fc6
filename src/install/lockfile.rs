//! What npm resolved, as its lockfile says it: whether policy allows where each package came from, and what goes with an optional
//! package that cannot be built. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Component, Path},
};

use serde::Deserialize;
use serde_json::Value;

use super::policy::{self, DependencyPolicy, ExtraSpec};

/// A lockfile longer than this is none that npm wrote for the packages of one tool.
pub(super) const MAX_LOCKFILE_BYTES: u64 = 64 * 1024 * 1024;

type Specs = BTreeMap<String, Value>;

/// A lockfile of version 3.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Lockfile {
    /// By folder; `""` is the root.
    #[serde(default)]
    packages: BTreeMap<String, Package>,
}

/// One package.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "npm's own fields")]
pub(super) struct Package {
    /// Written by npm when it is not what the folder says: an alias.
    pub(super) name: Option<String>,
    pub(super) has_install_script: bool,
    /// Everything that leads to it is optional.
    pub(super) optional: bool,
    resolved: Option<Value>,
    link: bool,
    in_bundle: bool,
    dependencies: Specs,
    optional_dependencies: Specs,
    peer_dependencies: Specs,
}

impl Package {
    /// What it asks for, optional or not.
    fn specs(&self) -> impl Iterator<Item = (&String, &str)> {
        [&self.dependencies, &self.optional_dependencies, &self.peer_dependencies]
            .into_iter()
            .flatten()
            .filter_map(|(name, spec)| Some((name, spec.as_str()?)))
    }

    /// What it cannot do without.
    fn needs(&self) -> impl Iterator<Item = &String> {
        let optional = |name: &&String| self.optional_dependencies.contains_key(*name);
        self.dependencies.keys().chain(self.peer_dependencies.keys()).filter(move |name| !optional(name))
    }
}

impl Lockfile {
    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let mut lockfile: Self = serde_json::from_slice(bytes)?;
        // They are used as paths below the tree; what is not, links lead to, which are looked at.
        lockfile.packages.retain(|folder, _| is_below(folder));
        Ok(lockfile)
    }

    /// The packages by their folder, which is below `node_modules`.
    pub(super) fn packages(&self) -> impl Iterator<Item = (&str, &Package)> {
        self.packages
            .iter()
            .filter(|(folder, _)| !folder.is_empty())
            .map(|(folder, package)| (folder.as_str(), package))
    }

    /// The first package that came from where `policy` allows none to come from. What a tool asks for itself has been checked; what its
    /// packages ask for comes from the registry, whatever the tool may ask for: they are not the operator's choice.
    pub(super) fn objection(&self, policy: &DependencyPolicy) -> Option<String> {
        let root = self.packages.get("")?;
        // What the tool asked for, and may.
        let asked = |folder: &str, kind: ExtraSpec| {
            let name = folder.strip_prefix("node_modules/").filter(|rest| !rest.contains("node_modules/"));
            let spec = name.and_then(|name| root.specs().find(|(asked, _)| *asked == name));
            policy.specs.contains(&kind) && spec.is_some_and(|(_, spec)| policy::extra(spec) == Some(kind))
        };
        for (folder, package) in self.packages() {
            let source = package.resolved.as_ref().and_then(Value::as_str).unwrap_or_default();
            let kind = if package.link { Some(ExtraSpec::File) } else { kind_of_source(source) };
            if let Some(kind) = kind.filter(|kind| !asked(folder, *kind)) {
                return Some(told(folder, source, kind));
            }
            if package.in_bundle {
                // What comes in a package's own archive is asked for nowhere.
                continue;
            }
            for (name, spec) in package.specs() {
                let Some(kind) = policy::extra(spec) else { continue };
                let found = self.resolve(folder, name).and_then(|found| self.packages.get(found));
                if found.is_some_and(|found| !found.in_bundle) {
                    return Some(told(&format!("{folder} → {name}"), spec, kind));
                }
            }
        }
        None
    }

    /// The folder that `name` is found in by the package in `folder`.
    fn resolve(&self, folder: &str, name: &str) -> Option<&str> {
        let mut base = folder;
        loop {
            let separator = if base.is_empty() { "" } else { "/" };
            let candidate = format!("{base}{separator}node_modules/{name}");
            if let Some((found, _)) = self.packages.get_key_value(&candidate) {
                return Some(found);
            }
            if base.is_empty() {
                return None;
            }
            base = base.rsplit_once("node_modules/").map_or("", |(above, _)| above.trim_end_matches('/'));
        }
    }

    /// What has to go with the optional package in `folder`, that one included: packages that cannot do without it, up to those that can.
    /// What was needed by these only stays: it does no harm.
    pub(super) fn goes_with(&self, folder: &str) -> BTreeSet<String> {
        let mut going = BTreeSet::from([folder.to_owned()]);
        loop {
            let more: Vec<_> = self
                .packages()
                .filter(|(at, package)| package.optional && !going.contains(*at))
                .filter(|(at, package)| {
                    package
                        .needs()
                        .any(|name| self.resolve(at, name).is_some_and(|found| going.contains(found)))
                })
                .map(|(at, _)| at.to_owned())
                .collect();
            if more.is_empty() {
                break;
            }
            going.extend(more);
        }
        going
    }
}

/// A relative path below `node_modules`, or nothing.
fn is_below(folder: &str) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    folder.is_empty() || (folder.starts_with("node_modules/") && Path::new(folder).components().all(is_plain))
}

/// By where a package came from. The address of an archive tells nothing: the registry's archives have one, too.
fn kind_of_source(source: &str) -> Option<ExtraSpec> {
    let scheme = source.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase())?;
    match scheme.as_str() {
        "http" | "https" => None,
        "file" => Some(ExtraSpec::File),
        _ => Some(ExtraSpec::Git),
    }
}

fn told(folder: &str, source: &str, kind: ExtraSpec) -> String {
    let what = match kind {
        ExtraSpec::Git => "a git repository",
        ExtraSpec::Url => "an archive at an address",
        ExtraSpec::File => "a path on this machine",
        ExtraSpec::Alias => "an alias",
    };
    format!(
        "a dependency brings {what}: {} ({}). Packages may bring what the registry has, and nothing else; a tool may name such a package \
         among its own dependencies where the dependencies option says {{ \"specs\": [\"{kind}\"] }}",
        policy::shown(folder),
        policy::shown(source),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lockfile(packages: &Value) -> Lockfile {
        Lockfile::parse(serde_json::json!({ "packages": packages }).to_string().as_bytes()).unwrap()
    }

    fn objection(packages: &Value, specs: &str) -> Option<String> {
        let policy = serde_json::from_str(&format!(r#"{{"specs":[{specs}]}}"#)).unwrap();
        lockfile(packages).objection(&policy)
    }

    #[test]
    fn what_the_registry_has_may_come_from_anywhere() {
        let packages = serde_json::json!({
            "": { "dependencies": { "a": "^1" } },
            "node_modules/a": { "resolved": "https://cdn.example/a.tgz", "dependencies": { "b": "npm:c@1", "gone": "u/r" } },
            "node_modules/b": { "name": "c", "resolved": "http://r.example/c.tgz", "bundleDependencies": ["d"], "dependencies": { "d": "git://h/x" } },
            "node_modules/b/node_modules/d": { "inBundle": true, "dependencies": { "e": "u/r" } },
            "node_modules/b/node_modules/e": { "inBundle": true },
        });
        assert_eq!(objection(&packages, ""), None);
    }

    #[test]
    fn a_git_repository_an_address_or_a_folder_at_depth_is_refused_whatever_the_tool_may_ask_for() {
        let all = r#""git","url","file","alias""#;
        for (spec, resolved) in [
            ("git://h/x.git", "git+ssh://h/x.git#1"),
            ("u/r", "git+ssh://git@github.com/u/r.git#1"),
            ("https://h.example/x.tgz", "https://h.example/x.tgz"),
            ("file:../x", "file:../x"),
        ] {
            let packages = serde_json::json!({
                "": { "dependencies": { "a": "1" } },
                "node_modules/a": { "resolved": "https://r/a.tgz", "optionalDependencies": { "b": spec } },
                "node_modules/b": { "resolved": resolved },
            });
            for specs in ["", all] {
                let text = objection(&packages, specs).unwrap();
                assert!(text.contains("node_modules/"), "{text}");
            }
        }
        let linked = serde_json::json!({ "": {}, "node_modules/a": { "resolved": "../x", "link": true } });
        assert!(objection(&linked, all).is_some());
    }

    #[test]
    fn what_the_tool_asks_for_is_allowed_where_policy_says_so() {
        let packages = serde_json::json!({
            "": { "dependencies": { "a": "git://h/a", "@s/b": "file:/b" } },
            "node_modules/a": { "resolved": "git://h/a#1" },
            "node_modules/@s/b": { "resolved": "file:../b" },
        });
        assert_eq!(objection(&packages, r#""git","file""#), None);
        assert!(objection(&packages, r#""git""#).unwrap().contains("@s/b"));
        assert!(objection(&packages, r#""file""#).unwrap().contains("git repository"));
    }

    #[test]
    fn folders_outside_of_node_modules_are_none() {
        for folder in ["../x", "node_modules/../../x", "/etc", "x", "node_modules/a/./b/.."] {
            let text = serde_json::json!({ "packages": { folder: {} } }).to_string();
            assert_eq!(Lockfile::parse(text.as_bytes()).unwrap().packages().count(), 0, "{folder}");
        }
        assert!(Lockfile::parse(b"{}").is_ok() && Lockfile::parse(b"[").is_err());
    }

    #[test]
    fn with_an_optional_package_goes_what_cannot_do_without_it() {
        let found = lockfile(&serde_json::json!({
            "": { "dependencies": { "main": "1" } },
            "node_modules/main": { "optionalDependencies": { "fast": "1" }, "dependencies": { "fast": "1", "slow": "1" } },
            "node_modules/fast": { "optional": true, "dependencies": { "native": "1" } },
            "node_modules/fast/node_modules/native": { "optional": true, "dependencies": { "slow": "1" } },
            "node_modules/native": {},
            "node_modules/slow": {},
        }));
        let going = found.goes_with("node_modules/fast/node_modules/native");
        assert_eq!(
            going,
            ["node_modules/fast", "node_modules/fast/node_modules/native"].map(str::to_owned).into()
        );
        assert_eq!(found.goes_with("node_modules/fast").len(), 1);
    }
}
