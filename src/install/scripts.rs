//! Which of the installed packages have install scripts, and which of those are to run.

use std::{collections::BTreeSet, fmt, path::Path};

use serde::{
    Deserialize, Serialize,
    de::{self, Error as _},
};
use serde_json::Value;

use super::{lockfile::Lockfile, manifest::Scripts};
use crate::store::reading::read_below;

/// What npm runs after it unpacked a package from the registry.
const EVENTS: [&str; 3] = ["preinstall", "install", "postinstall"];

/// The `installScripts` option: `"run"`, `"ignore"`, or a list of package names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub enum InstallScripts {
    /// All run, unless the user's npm settings say `ignore-scripts`.
    #[default]
    Run,
    /// None runs.
    Ignore,
    /// Those of these packages run, at whatever depth, whatever npm's settings say.
    Only(BTreeSet<String>),
}

impl<'de> Deserialize<'de> for InstallScripts {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = InstallScripts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"run\", \"ignore\" or a list of package names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<InstallScripts, E> {
                match text {
                    "run" => Ok(InstallScripts::Run),
                    "ignore" => Ok(InstallScripts::Ignore),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<InstallScripts, A::Error> {
                let mut only = BTreeSet::new();
                while let Some(name) = names.next_element::<String>()? {
                    if let Some(objection) = super::policy::name_objection(&name) {
                        return Err(A::Error::custom(format!("\"{name}\" is no package name: {objection}")));
                    }
                    only.insert(name);
                }
                Ok(InstallScripts::Only(only))
            }
        }

        from.deserialize_any(Visitor)
    }
}

/// A `package.json` longer than this is none that npm reads in time.
const MAX_MANIFEST_BYTES: u64 = 16 * 1024 * 1024;

/// Sorts the packages of the tree in `dir`, whose lockfile this is, that have install scripts by what `option` says. Blocks.
pub(super) fn plan(dir: &Path, lockfile: &Lockfile, option: &InstallScripts) -> Scripts {
    let mut scripts = Scripts::default();
    if *option == InstallScripts::Ignore {
        return scripts;
    }
    let mut needed = BTreeSet::new();
    for (location, package) in lockfile.packages() {
        let Some((_, folder)) = location.rsplit_once("node_modules/") else { continue };
        if !package.has_install_script && !has_scripts(dir, location) {
            continue;
        }
        let name = package.name.as_deref().unwrap_or(folder);
        if matches!(option, InstallScripts::Only(names) if !names.contains(name)) {
            scripts.skip.insert(name.to_owned());
            continue;
        }
        scripts.run.insert(name.to_owned());
        scripts.folders.insert(folder.to_owned());
        if package.optional {
            scripts.optional.entry(folder.to_owned()).or_default().push(location.to_owned());
        } else {
            needed.insert(folder.to_owned());
        }
    }
    // npm knows packages by their names: those of one name run together.
    scripts.optional.retain(|folder, _| !needed.contains(folder));
    scripts
}

/// Registries need not say that a package has scripts; the package does. npm adds one of its own for `binding.gyp`.
fn has_scripts(dir: &Path, location: &str) -> bool {
    let folder = Path::new(location);
    let manifest = read_below(dir, &folder.join("package.json"), MAX_MANIFEST_BYTES).ok();
    let manifest: Value = manifest.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    EVENTS.iter().any(|event| manifest["scripts"][event].is_string())
        || (manifest["gypfile"] != Value::Bool(false) && dir.join(folder).join("binding.gyp").is_file())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::fs;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn planned(option: &InstallScripts) -> Scripts {
        let tree = tree();
        let lockfile = fs::read(tree.path().join("package-lock.json")).unwrap();
        plan(tree.path(), &Lockfile::parse(&lockfile).unwrap(), option)
    }

    #[test]
    fn an_optional_package_is_known_unless_another_of_its_name_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let lockfile = json!({ "packages": {
            "node_modules/fast": { "hasInstallScript": true, "optional": true },
            "node_modules/a/node_modules/fast": { "hasInstallScript": true, "optional": true },
            "node_modules/both": { "hasInstallScript": true, "optional": true },
            "node_modules/a/node_modules/both": { "hasInstallScript": true },
        }});
        let lockfile = Lockfile::parse(lockfile.to_string().as_bytes()).unwrap();
        let scripts = plan(dir.path(), &lockfile, &InstallScripts::Run);
        let at = ["node_modules/a/node_modules/fast", "node_modules/fast"].map(str::to_owned);
        assert_eq!(scripts.optional, [("fast".to_owned(), at.to_vec())].into());
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let lockfile = json!({ "packages": {
            "": { "hasInstallScript": true },
            "node_modules/flagged": { "hasInstallScript": true },
            "node_modules/plain": {},
            "node_modules/plain/node_modules/@deep/scripted": {},
            "node_modules/gyp": {},
            "node_modules/nogyp": {},
            "node_modules/alias": { "name": "real", "hasInstallScript": true },
            "../outside": { "hasInstallScript": true },
        }});
        fs::write(dir.path().join("package-lock.json"), lockfile.to_string()).unwrap();
        for (folder, manifest) in [
            ("plain", json!({ "scripts": { "test": "x", "prepare": "y" } })),
            ("plain/node_modules/@deep/scripted", json!({ "scripts": { "postinstall": "x" } })),
            ("gyp", json!({})),
            ("nogyp", json!({ "gypfile": false })),
        ] {
            let folder = dir.path().join("node_modules").join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("package.json"), manifest.to_string()).unwrap();
        }
        for folder in ["gyp", "nogyp"] {
            fs::write(dir.path().join("node_modules").join(folder).join("binding.gyp"), "").unwrap();
        }
        dir
    }

    #[test]
    fn all_scripts_are_found() {
        let scripts = planned(&InstallScripts::Run);
        assert_eq!(scripts.run, set(&["flagged", "@deep/scripted", "gyp", "real"]));
        assert_eq!(scripts.folders, set(&["flagged", "@deep/scripted", "gyp", "alias"]));
        assert_eq!(scripts.skip, set(&[]));
    }

    #[test]
    fn only_the_named_run() {
        let only = InstallScripts::Only(set(&["real", "gyp", "absent"]));
        let scripts = planned(&only);
        assert_eq!(scripts.run, set(&["real", "gyp"]));
        assert_eq!(scripts.folders, set(&["alias", "gyp"]));
        assert_eq!(scripts.skip, set(&["flagged", "@deep/scripted"]));
        assert_eq!(planned(&InstallScripts::Ignore), Scripts::default());
    }

    #[test]
    fn the_option_is_read() {
        let read = |text| serde_json::from_str::<InstallScripts>(text);
        assert_eq!(read("\"run\"").unwrap(), InstallScripts::Run);
        assert_eq!(read("\"ignore\"").unwrap(), InstallScripts::Ignore);
        assert_eq!(read(r#"["a"]"#).unwrap(), InstallScripts::Only(set(&["a"])));
        for text in ["\"maybe\"", "1", "[1]", "null"] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains("expected"), "{message}");
        }
    }
}
