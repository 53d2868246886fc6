//! npm and its registry, as an installation would find them.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    npm,
    npmrc::{Env, Settings},
    scope,
};

/// `command` (a program and its first arguments), `version`, and `registry` without credentials, `null` where no setting names
/// one: then npm has a default of its own. `problem` where there is no npm. Reads some small files.
pub fn npm_report(env: &Env, npm_path: Option<&Path>, node: &Path) -> Value {
    let found = npm::find(npm_path, node, env.get("PATH").map(String::as_str));
    let root = found.as_ref().ok().and_then(|npm| npm.root.as_deref());
    let settings = Settings::read(env, npm::prefix(node), root).of_trees();
    let registry = settings.get("registry");
    match found {
        Ok(npm) => {
            let lead = npm.lead.iter().map(|argument| argument.to_string_lossy());
            let command: Vec<_> = std::iter::once(npm.program.to_string_lossy()).chain(lead).collect();
            json!({ "command": command, "version": scope::version(&npm), "registry": registry })
        }
        Err(problem) => json!({ "problem": problem, "registry": registry }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn npm_and_its_registry_are_told_without_credentials() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("npm");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/npm-cli.js"), "").unwrap();
        fs::write(root.join("package.json"), r#"{ "version": "1.2.3" }"#).unwrap();
        let node = base.path().join("prefix/bin/node");
        let env: Env =
            [("npm_config_registry".to_owned(), "http://me:hush@127.0.0.1:4873/".to_owned())].into();
        let told = npm_report(&env, Some(&root), &node);
        let script = root.canonicalize().unwrap().join("bin/npm-cli.js");
        assert_eq!(
            told,
            json!({
                "command": [node.to_string_lossy(), script.to_string_lossy()],
                "version": "1.2.3",
                "registry": "http://127.0.0.1:4873",
            })
        );
        let told = npm_report(&Env::new(), Some(&base.path().join("none")), &node);
        assert!(told["problem"].as_str().unwrap().contains("npmPath"), "{told}");
        assert_eq!(told["registry"], Value::Null);
    }
}
