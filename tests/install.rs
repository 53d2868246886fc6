//! Installs with the real npm, against a registry on the loopback address.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod install_support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpListener,
    path::PathBuf,
    time::{Duration, Instant},
};

use install_support::{Bench, is_running, npm_cli, until};
use native_sandbox_executor::{
    error::{Code, Phase, SandboxError},
    install::{self, InstallContext, InstallScripts, Scope},
    store::{RunFolder, Tree},
};

async fn install(
    ctx: &InstallContext,
    dependencies: &BTreeMap<String, String>,
) -> Result<Tree, SandboxError> {
    let key = Scope::key_of_nothing(Some("any"));
    install::install(ctx, dependencies, &key).await
}

fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, spec)| ((*name).to_owned(), (*spec).to_owned())).collect()
}

fn version_of(tree: &Tree, package: &str) -> String {
    let text = fs::read_to_string(tree.node_modules().join(package).join("package.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    manifest["version"].as_str().unwrap().to_owned()
}

fn failed(result: Result<Tree, SandboxError>) -> SandboxError {
    let error = result.unwrap_err();
    assert_eq!(error.phase, Phase::Install);
    error
}

#[tokio::test]
async fn packages_are_found_by_require_and_import_from_a_run_folder() {
    let bench = Bench::new();
    let tree = install(&bench.ctx, &set(&[("tiny", "^1"), ("esm", "latest")])).await.unwrap();
    assert!(tree.is_alive());
    assert_eq!(version_of(&tree, "tiny"), "1.1.0");
    assert!(tree.dir().join("package-lock.json").is_file());
    let run = RunFolder::create(&tree).unwrap();
    let code = "import('esm').then((esm) => console.log(require('tiny'), esm.default))";
    assert_eq!(bench.node(&["-e", code], &run.cwd()), "1.1.0 esm\n");
    bench.nothing_staged().await;
}

#[tokio::test]
async fn without_dependencies_there_is_no_npm() {
    let mut bench = Bench::new();
    bench.ctx.npm_path = Some(PathBuf::from("/nowhere"));
    let tree = install(&bench.ctx, &BTreeMap::new()).await.unwrap();
    assert!(tree.node_modules().is_dir() && tree.dir().join("package.json").is_file());
    let error = failed(install(&bench.ctx, &set(&[("tiny", "1")])).await);
    assert!(error.message.contains("npmPath"), "{}", error.message);
}

#[tokio::test]
async fn a_package_that_does_not_exist() {
    let bench = Bench::new();
    let error = failed(install(&bench.ctx, &set(&[("missing", "1")])).await);
    assert_eq!(error.code, Code::InstallFailed);
    assert!(error.message.starts_with("npm install failed with code 1: "), "{}", error.message);
    assert!(error.message.contains("404"), "{}", error.message);
    assert!(error.stderr.unwrap().contains("404"));
    bench.nothing_staged().await;
}

#[tokio::test]
async fn a_bad_spec_never_reaches_npm() {
    let bench = Bench::new();
    let error = install(&bench.ctx, &set(&[("tiny", "some/where")])).await.unwrap_err();
    assert_eq!((error.code, error.phase), (Code::InvalidDependency, Phase::Validate));
}

#[tokio::test]
async fn a_dead_registry_is_given_up_soon() {
    let mut bench = Bench::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    bench.set_env("npm_config_registry", &format!("http://127.0.0.1:{port}/"));
    let started = Instant::now();
    let error = failed(install(&bench.ctx, &set(&[("tiny", "1")])).await);
    assert_eq!(error.code, Code::InstallFailed);
    assert!(error.message.contains("ECONNREFUSED"), "{}", error.message);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_silent_registry_runs_into_the_deadline() {
    let mut bench = Bench::new();
    bench.ctx.timeout = Duration::from_secs(3);
    let error = failed(install(&bench.ctx, &set(&[("silent", "1")])).await);
    assert_eq!(error.code, Code::InstallTimeout);
    assert!(
        error.message.contains("3000ms") && error.message.contains("installTimeoutMs"),
        "{}",
        error.message
    );
    bench.nothing_staged().await;
}

#[tokio::test]
async fn the_deadline_ends_an_install_script() {
    let mut bench = Bench::new();
    bench.ctx.timeout = Duration::from_secs(6);
    let error = failed(install(&bench.ctx, &set(&[("stuck", "1")])).await);
    assert_eq!(error.code, Code::InstallTimeout);
    let pid = bench.probe("pid").unwrap();
    until(|| !is_running(pid)).await;
    bench.nothing_staged().await;
}

#[tokio::test]
async fn an_install_that_nobody_waits_for_leaves_nothing() {
    let bench = Bench::new();
    let ctx = bench.ctx.clone();
    let install = tokio::spawn(async move { install(&ctx, &set(&[("stuck", "1")])).await });
    until(|| bench.probe("pid").is_some()).await;
    install.abort();
    assert!(install.await.unwrap_err().is_cancelled());
    let pid = bench.probe("pid").unwrap();
    until(|| !is_running(pid)).await;
    bench.nothing_staged().await;
    assert_eq!(bench.trees(), 0);
}

#[tokio::test]
async fn what_an_install_script_leaves_running_ends_before_the_tree_is_published() {
    let bench = Bench::new();
    let tree = install(&bench.ctx, &set(&[("leaver", "1")])).await.unwrap();
    assert!(tree.is_alive());
    assert!(!is_running(bench.probe("left-pid").unwrap()));
}

#[tokio::test]
async fn a_failing_install_script_tells_why_within_bounds() {
    let bench = Bench::new();
    let error = failed(install(&bench.ctx, &set(&[("noisy", "1")])).await);
    assert_eq!(error.code, Code::InstallFailed);
    assert!(error.message.starts_with("npm install failed with code 3: "), "{}", error.message);
    assert!(error.message.contains("the reason"), "{}", error.message);
    assert!(error.message.len() < 70 * 1024);
}

#[tokio::test]
async fn secrets_stay_out_of_install_scripts_and_the_token_gets_to_the_registry() {
    let mut bench = Bench::new();
    let line = format!("//127.0.0.1:{}/:_authToken=${{REGISTRY_TOKEN}}\n", bench.port());
    fs::write(bench.home().join(".npmrc"), line).unwrap();
    bench.set_env("REGISTRY_TOKEN", "open-sesame");
    bench.set_env("DATABASE_PASSWORD", "hunter2-and-more");
    bench.set_env("NODE_OPTIONS", "--import=not-there");
    bench.set_env("npm_config__auth", "YWxhZGRpbg==");
    let tree = install(&bench.ctx, &set(&[("@scope/tool", "1"), ("scripted", "1")])).await.unwrap();
    assert_eq!(version_of(&tree, "@scope/tool"), "1.0.0");
    assert_eq!(version_of(&tree, "tiny"), "1.1.0");
    let seen = fs::read_to_string(tree.node_modules().join("scripted/env.json")).unwrap();
    for secret in ["sesame", "hunter2", "not-there", "YWxhZGRpbg", bench.home().to_str().unwrap()] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
    let env: BTreeMap<String, String> = serde_json::from_str(&seen).unwrap();
    assert!(env["HOME"].starts_with(bench.ctx.store.host_dir().to_str().unwrap()), "{}", env["HOME"]);
    assert!(!bench.home().join("node_modules").exists());
}

#[tokio::test]
async fn a_token_does_not_show_in_an_error() {
    let mut bench = Bench::new();
    let registry = format!("http://me:${{REGISTRY_TOKEN}}@127.0.0.1:{}/", bench.port());
    fs::write(bench.home().join(".npmrc"), format!("registry={registry}\n")).unwrap();
    bench.unset_env("npm_config_registry");
    bench.set_env("REGISTRY_TOKEN", "close-sesame");
    let error = failed(install(&bench.ctx, &set(&[("missing", "1")])).await);
    assert!(error.message.contains("404") && !error.message.contains("close-sesame"), "{}", error.message);
}

#[tokio::test]
async fn install_scripts_run_as_the_option_says() {
    let mut bench = Bench::new();
    let dependencies = set(&[("scripted", "1"), ("scripted-too", "1")]);
    let ran = |tree: &Tree| {
        ["scripted", "scripted-too"].map(|name| tree.node_modules().join(name).join("env.json").exists())
    };
    assert_eq!(ran(&install(&bench.ctx, &dependencies).await.unwrap()), [true, true]);
    bench.ctx.install_scripts = InstallScripts::Ignore;
    assert_eq!(ran(&install(&bench.ctx, &dependencies).await.unwrap()), [false, false]);
    bench.ctx.install_scripts = InstallScripts::Only(BTreeSet::from(["scripted-too".to_owned()]));
    assert_eq!(ran(&install(&bench.ctx, &dependencies).await.unwrap()), [false, true]);
    bench.ctx.install_scripts = InstallScripts::Run;
    fs::write(bench.home().join(".npmrc"), "ignore-scripts=true\n").unwrap();
    assert_eq!(ran(&install(&bench.ctx, &dependencies).await.unwrap()), [false, false]);
}

#[tokio::test]
async fn two_versions_live_side_by_side() {
    let bench = Bench::new();
    let (one, two) = (set(&[("tiny", "1.0.0")]), set(&[("tiny", "^2")]));
    let (one, two) = tokio::join!(install(&bench.ctx, &one), install(&bench.ctx, &two));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(
        (version_of(&one, "tiny"), version_of(&two, "tiny")),
        ("1.0.0".to_owned(), "2.0.0".to_owned())
    );
    bench.ctx.store.retire(&one).unwrap();
    assert!(!one.is_alive() && two.is_alive());
}

#[tokio::test]
async fn young_versions_wait() {
    let mut bench = Bench::new();
    bench.ctx.policy.min_release_age_days = Some(2.0);
    let tree = install(&bench.ctx, &set(&[("tiny", "^1")])).await.unwrap();
    assert_eq!(version_of(&tree, "tiny"), "1.0.0");
}

#[tokio::test]
async fn a_wiped_temp_folder_is_made_anew() {
    let bench = Bench::new();
    let first = install(&bench.ctx, &set(&[("tiny", "1")])).await.unwrap();
    native_sandbox_executor::store::remove_dir(bench.ctx.store.root()).unwrap();
    assert!(!first.is_alive());
    let second = install(&bench.ctx, &set(&[("tiny", "1")])).await.unwrap();
    assert!(second.is_alive() && RunFolder::create(&second).is_ok());
}

#[tokio::test]
async fn without_a_home_the_cache_is_the_stores() {
    let mut bench = Bench::new();
    bench.unset_env("HOME");
    let tree = install(&bench.ctx, &set(&[("tiny", "1")])).await.unwrap();
    assert!(tree.is_alive());
    assert!(bench.ctx.store.root().join("npm-cache/_cacache").is_dir());
}

#[tokio::test]
async fn a_host_that_npm_started_hands_its_own_settings_to_nobody() {
    let mut bench = Bench::new();
    for (name, value) in [
        ("npm_config_global", "true"),
        ("npm_config_local_prefix", "/nowhere/app"),
        ("npm_config_prefix", "/nowhere/app"),
        ("npm_config_global_prefix", "/nowhere"),
        ("npm_config_workspace", "other"),
        ("npm_config_omit", "optional"),
        ("npm_config_dry_run", "true"),
        ("npm_config_allow_scripts", "other"),
        ("npm_config_package_lock", "false"),
        ("npm_config_user_agent", "npm/1.0.0"),
        ("npm_config_node_gyp", "/nowhere/node-gyp.js"),
        ("npm_config_noproxy", ""),
        ("npm_command", "run-script"),
        ("INIT_CWD", "/nowhere"),
    ] {
        bench.set_env(name, value);
    }
    let tree = install(&bench.ctx, &set(&[("scripted", "1")])).await.unwrap();
    assert!(tree.node_modules().join("scripted/env.json").exists());
    assert!(tree.dir().join("package-lock.json").exists());
}

#[tokio::test]
async fn a_program_that_is_none_is_a_clear_error() {
    let mut bench = Bench::new();
    bench.ctx.node = bench.home().join("no-node");
    bench.ctx.npm_path = Some(npm_cli());
    let error = failed(install(&bench.ctx, &set(&[("tiny", "1")])).await);
    assert!(
        error.message.contains("could not start npm") && error.message.contains("no-node"),
        "{}",
        error.message
    );
    bench.nothing_staged().await;
}

#[test]
fn an_install_can_move_between_threads() {
    fn is_send<T: Send>(_: T) {}
    let bench = Bench::new();
    is_send(install(&bench.ctx, &BTreeMap::new()));
}

#[tokio::test]
async fn trees_are_named_by_what_changes_them() {
    let mut bench = Bench::new();
    let wanted = set(&[("tiny", "^1")]);
    let same = Scope::read(&bench.ctx, None, Some("127")).await.unwrap();
    let key = same.key(&wanted);
    assert_eq!(Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted), key);
    assert_eq!(same.key(&set(&[("tiny", " ^1 ")])), key);
    let mut others = vec![
        same.key(&set(&[("tiny", "^1.0")])),
        Scope::read(&bench.ctx, Some("tenant"), Some("127")).await.unwrap().key(&wanted),
        Scope::read(&bench.ctx, None, Some("999")).await.unwrap().key(&wanted),
    ];
    let original = bench.ctx.clone();
    bench.ctx.install_scripts = InstallScripts::Ignore;
    others.push(Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted));
    bench.ctx = original.clone();
    bench.ctx.policy.min_release_age_days = Some(2.0);
    others.push(Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted));
    bench.ctx = original.clone();
    bench.set_env("npm_config_registry", "http://127.0.0.1:1/");
    others.push(Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted));
    bench.ctx = original.clone();
    fs::write(bench.home().join(".npmrc"), "@scope:registry=http://127.0.0.1:1/\n").unwrap();
    others.push(Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted));
    fs::remove_file(bench.home().join(".npmrc")).unwrap();
    // Another npm, as its package.json says.
    let npm = bench.home().join("npm");
    fs::create_dir_all(npm.join("bin")).unwrap();
    fs::write(npm.join("bin/npm-cli.js"), "").unwrap();
    for version in ["1.0.0", "2.0.0"] {
        fs::write(npm.join("package.json"), format!(r#"{{"version":"{version}"}}"#)).unwrap();
        bench.ctx.npm_path = Some(npm.clone());
        others.push(Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted));
    }
    let different: BTreeSet<_> = others.iter().chain([&key]).collect();
    assert_eq!(different.len(), others.len() + 1, "{others:#?}");
}

#[tokio::test]
async fn a_tree_that_is_there_is_found_without_npm() {
    let mut bench = Bench::new();
    let wanted = set(&[("tiny", "^1")]);
    let scope = Scope::read(&bench.ctx, None, Some("127")).await.unwrap();
    let tree = install::install(&bench.ctx, &wanted, &scope.key(&wanted)).await.unwrap();
    bench.ctx.npm_path = Some(PathBuf::from("/nowhere"));
    let without = Scope::read(&bench.ctx, None, Some("127")).await.unwrap().key(&wanted);
    assert_ne!(without, scope.key(&wanted));
    let found = bench.another_process().store.find(&without, &[]).unwrap().unwrap();
    assert_eq!(found.dir(), tree.dir());
    let other = Scope::read(&bench.ctx, None, Some("999")).await.unwrap().key(&wanted);
    assert!(bench.ctx.store.find(&other, &[]).unwrap().is_none());
}

#[tokio::test]
async fn a_node_of_unknown_abi_is_asked_once() {
    let bench = Bench::new();
    let abi = bench.node(&["-p", "process.versions.modules"], &bench.home()).trim().to_owned();
    let version = bench.node(&["-p", "process.versions.node"], &bench.home()).trim().to_owned();
    let wanted = set(&[("tiny", "1")]);
    let known = Scope::read(&bench.ctx, None, Some(&abi)).await.unwrap();
    // A program that can answer only once. Written by another process: one that this process had open for writing could be
    // so in a child of another test just then, and not be run.
    let node = bench.home().join("node");
    let write = |script: &str| {
        let code = "fs.writeFileSync(process.argv[1], process.argv[2], { mode: 0o755 })";
        bench.node(&["-e", code, node.to_str().unwrap(), script], &bench.home());
    };
    write(&format!("#!/bin/sh\nmkdir {} && echo {abi} {version}\n", bench.home().join("asked").display()));
    let mut first = bench.ctx.clone();
    first.npm_path = Some(npm_cli());
    first.node = node.clone();
    let second = InstallContext { store: bench.another_process().store, ..first.clone() };
    for ctx in [&first, &second] {
        assert_eq!(Scope::read(ctx, None, None).await.unwrap().key(&wanted), known.key(&wanted));
    }
    // Another binary of that name is asked again, and this one does not answer.
    write("#!/bin/sh\necho what\n");
    let error = Scope::read(&first, None, None).await.unwrap_err();
    assert!(error.message.contains("\"what\"") && error.message.contains("nodePath"), "{}", error.message);
}
