//! The `package.json` of a dependency set. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::policy::written_spec;

/// The name in every manifest; trees of one set must not differ by the tool that asked first.
const NAME: &str = "function-tool-sandbox";

/// The text for `dependencies`, with npm's verdict on install scripts (`allowScripts` of npm 11, unknown to older ones)
/// for the packages that have any: what is not listed draws a warning, whether it runs or not.
pub(super) fn text(dependencies: &BTreeMap<String, String>, scripts: &Scripts) -> String {
    let specs: BTreeMap<_, _> = dependencies.iter().map(|(name, spec)| (name, written_spec(spec))).collect();
    let mut manifest = json!({ "name": NAME, "version": "0.0.0", "private": true, "dependencies": specs });
    let run = scripts.run.iter().map(|name| (name, true));
    let verdicts: BTreeMap<_, _> = run.chain(scripts.skip.iter().map(|name| (name, false))).collect();
    if !verdicts.is_empty() {
        manifest["allowScripts"] = json!(verdicts);
    }
    format!("{manifest:#}")
}

/// Packages with install scripts, by what is to be done about them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Scripts {
    /// Names of those that are to run.
    pub(super) run: BTreeSet<String>,
    /// The folders of these below `node_modules`: others than their names where they are installed under an alias.
    pub(super) folders: BTreeSet<String>,
    /// Of these folders those whose package nothing needs, with where it is installed.
    pub(super) optional: BTreeMap<String, Vec<String>>,
    /// Names of those that are not.
    pub(super) skip: BTreeSet<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest() {
        let dependencies =
            [("zod", " ^4 "), ("@a/b", "")].map(|(name, spec)| (name.to_owned(), spec.to_owned()));
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let scripts = Scripts { run: set("esbuild"), skip: set("sharp"), ..Scripts::default() };
        let parsed: serde_json::Value = serde_json::from_str(&text(&dependencies.into(), &scripts)).unwrap();
        assert_eq!(
            parsed,
            serde_json::json!({
                "name": "function-tool-sandbox",
                "version": "0.0.0",
                "private": true,
                "dependencies": { "@a/b": "*", "zod": "^4" },
                "allowScripts": { "esbuild": true, "sharp": false },
            })
        );
    }

    #[test]
    fn without_scripts_there_is_no_verdict() {
        assert!(!text(&BTreeMap::new(), &Scripts::default()).contains("allowScripts"));
    }
}
