//! Getting trees: found, waited for, installed, renewed, checked. Real npm, a registry on the loopback address, and two supplies
//! over one folder in the place of two processes.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod install_support;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use install_support::{Bench, until};
use native_sandbox_executor::{
    error::Code,
    install::{InstallContext, Scope},
    store::{Tree, TreeKey},
    supply::{Order, Supply, Terms},
};
use serde_json::json;

const TTL: Duration = Duration::from_mins(5);

fn order(ctx: InstallContext, dependencies: &[(&str, &str)]) -> Order {
    let dependencies: BTreeMap<_, _> =
        dependencies.iter().map(|(name, spec)| ((*name).to_owned(), (*spec).to_owned())).collect();
    let key = TreeKey::new(&dependencies, &"test");
    let terms = Terms { ctx, base_stores: Vec::new(), max_bytes: u64::MAX, ttl: TTL };
    Order { terms: Arc::new(terms), dependencies: Arc::new(dependencies), key }
}

fn count(supply: &Supply, name: &str) -> u64 {
    supply.counts().iter().find(|(found, _)| *found == name).unwrap().1.as_u64().unwrap()
}

fn long_ago() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(1)
}

fn version_of(tree: &Tree) -> String {
    let text = fs::read_to_string(tree.node_modules().join("tiny/package.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    manifest["version"].as_str().unwrap().to_owned()
}

/// A tree as it could have been installed before version 1.1.0 was there.
fn older_tree(order: &Order) -> Tree {
    let store = &order.terms.ctx.store;
    let staging = store.staging().unwrap();
    let package = staging.tree().join("node_modules/tiny");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("package.json"), r#"{"name":"tiny","version":"1.0.0"}"#).unwrap();
    fs::write(staging.tree().join("package-lock.json"), "{}").unwrap();
    let tree = store.publish(staging, &order.key, json!({})).unwrap();
    tree.set_resolved(long_ago()).unwrap();
    tree
}

#[tokio::test]
async fn concurrent_processes_install_once() {
    let bench = Bench::new();
    let supplies = [Arc::new(Supply::default()), Arc::new(Supply::default())];
    let orders = [bench.ctx.clone(), bench.another_process()].map(|ctx| order(ctx, &[("tiny", "^1")]));
    let (one, two) = tokio::join!(supplies[0].tree(&orders[0]), supplies[1].tree(&orders[1]));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.dir(), two.dir());
    assert_eq!(supplies.iter().map(|supply| count(supply, "installs")).sum::<u64>(), 1);
    assert_eq!(supplies.iter().map(|supply| count(supply, "hits")).sum::<u64>(), 1);
    let third = Arc::new(Supply::default());
    assert_eq!(
        third.tree(&order(bench.another_process(), &[("tiny", "^1")])).await.unwrap().dir(),
        one.dir()
    );
    for supply in supplies.iter().chain([&third]) {
        supply.stop().await;
    }
}

#[tokio::test]
async fn a_wait_for_another_process_has_an_end() {
    let mut bench = Bench::new();
    bench.ctx.timeout = Duration::from_millis(300);
    let order = order(bench.ctx.clone(), &[("tiny", "^1")]);
    let _held = bench.another_process().store.try_install_lock(&order.key).unwrap().unwrap();
    let error = Arc::new(Supply::default()).tree(&order).await.unwrap_err();
    assert_eq!(error.code, Code::InstallTimeout);
    assert!(
        error.message.contains("300ms") && error.message.contains("another process"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn after_a_failed_install_of_another_the_next_one_tries() {
    let bench = Bench::new();
    let order = order(bench.ctx.clone(), &[("tiny", "^1")]);
    let held = bench.another_process().store.try_install_lock(&order.key).unwrap().unwrap();
    let supply = Arc::new(Supply::default());
    let waiting = tokio::spawn({
        let (supply, order) = (Arc::clone(&supply), order.clone());
        async move { supply.tree(&order).await }
    });
    tokio::task::yield_now().await;
    drop(held);
    assert_eq!(version_of(&waiting.await.unwrap().unwrap()), "1.1.0");
}

#[tokio::test]
async fn a_newer_version_comes_in_the_background_and_the_old_tree_serves_meanwhile() {
    let bench = Bench::new();
    let order = order(bench.ctx.clone(), &[("tiny", "^1")]);
    older_tree(&order);
    let supply = Arc::new(Supply::default());
    let old = supply.tree(&order).await.unwrap();
    let now = SystemTime::now();
    supply.used(&order, &old, now);
    supply.used(&order, &old, now);
    assert_eq!(version_of(&supply.tree(&order).await.unwrap()), "1.0.0");
    assert!(old.is_alive() && !old.is_superseded());
    until(|| old.is_superseded()).await;
    let new = supply.tree(&order).await.unwrap();
    assert_eq!(version_of(&new), "1.1.0");
    assert_eq!((count(&supply, "renewals"), count(&supply, "installs")), (1, 0));
    assert!(old.is_alive(), "who runs in it goes on");
    assert!(!new.is_superseded() && new.resolved() >= now - Duration::from_secs(1));
    // Another process that still has the old one finds out at its next use, without npm.
    let (other, theirs) = (Arc::new(Supply::default()), old.clone());
    let mut stale = order.clone();
    stale.terms =
        Arc::new(Terms { ctx: bench.another_process(), base_stores: vec![], max_bytes: 1, ttl: TTL });
    other.used(&stale, &theirs, now);
    until(|| theirs.resolved() == new.resolved()).await;
    assert_eq!(count(&other, "renewals"), 0);
    supply.stop().await;
}

#[tokio::test]
async fn what_resolves_to_the_same_stays() {
    let bench = Bench::new();
    let order = order(bench.ctx.clone(), &[("tiny", "^1"), ("scripted", "latest")]);
    let supply = Arc::new(Supply::default());
    let tree = supply.tree(&order).await.unwrap();
    supply.used(&order, &tree, SystemTime::now());
    supply.stop().await;
    assert_eq!(count(&supply, "renewals"), 0, "it is not due");
    tree.set_resolved(long_ago()).unwrap();
    supply.used(&order, &tree, SystemTime::now());
    until(|| tree.resolved() > long_ago()).await;
    assert!(!tree.is_superseded() && tree.is_alive());
    assert_eq!(count(&supply, "renewals"), 1);
    assert_eq!(supply.tree(&order).await.unwrap().dir(), tree.dir());
    bench.nothing_staged().await;
}

#[tokio::test]
async fn exact_versions_are_not_resolved_again() {
    let bench = Bench::new();
    let order = order(bench.ctx.clone(), &[("tiny", "1.0.0")]);
    let tree = older_tree(&order);
    let supply = Arc::new(Supply::default());
    supply.used(&order, &tree, SystemTime::now());
    // Nothing was begun: there is nothing to be broken off, and the lock is free.
    assert!(bench.ctx.store.try_install_lock(&order.key).unwrap().is_some());
    supply.stop().await;
    assert_eq!((count(&supply, "renewals"), tree.resolved()), (0, long_ago()));
}

#[tokio::test]
async fn a_renewal_that_fails_changes_nothing() {
    let mut bench = Bench::new();
    bench.set_env("npm_config_registry", "http://127.0.0.1:1/");
    bench.set_env("npm_config_fetch_retries", "0");
    let order = order(bench.ctx.clone(), &[("tiny", "^1")]);
    let old = older_tree(&order);
    let supply = Arc::new(Supply::default());
    supply.used(&order, &old, SystemTime::now());
    // It holds the lock as long as it lasts.
    let is_free = || bench.ctx.store.try_install_lock(&order.key).unwrap().is_some();
    until(|| !is_free()).await;
    until(is_free).await;
    assert!(old.is_alive() && !old.is_superseded());
    assert_eq!((old.resolved(), count(&supply, "renewals")), (long_ago(), 0));
    assert_eq!(supply.tree(&order).await.unwrap().dir(), old.dir());
    bench.nothing_staged().await;
    // Not again at once.
    supply.used(&order, &old, SystemTime::now());
    assert!(is_free());
}

#[tokio::test]
async fn a_renewal_that_is_broken_off_leaves_nothing() {
    let bench = Bench::new();
    let order = order(bench.ctx.clone(), &[("silent", "^1")]);
    let old = older_tree(&order);
    let supply = Arc::new(Supply::default());
    supply.used(&order, &old, SystemTime::now());
    until(|| bench.staged() == 1).await;
    supply.stop().await;
    bench.nothing_staged().await;
    assert!(bench.ctx.store.try_install_lock(&order.key).unwrap().is_some());
    assert!(old.is_alive());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_tree_is_found_out_in_the_background() {
    let bench = Bench::new();
    let order = order(bench.ctx.clone(), &[("tiny", "^1")]);
    let made = older_tree(&order);
    // Another content: no folder tells of it, as one does where files are gone.
    let file = made.node_modules().join("tiny/package.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&file, "changed").unwrap();
    let supply = Arc::new(Supply::default());
    let later = {
        let mut later = order.clone();
        later.terms =
            Arc::new(Terms { ctx: bench.another_process(), base_stores: vec![], max_bytes: 1, ttl: TTL });
        later
    };
    // What is in it is not looked at before it serves: that would cost every first call.
    let tree = supply.tree(&later).await.unwrap();
    assert_eq!(tree.dir(), made.dir());
    until(|| !tree.is_alive()).await;
    assert!(bench.ctx.store.find(&order.key, &[]).unwrap().is_none());
}

#[tokio::test]
async fn a_base_store_needs_no_npm_and_no_lock() {
    let image = Bench::new();
    let baked = order(image.ctx.clone(), &[("tiny", "^1")]);
    older_tree(&baked);
    let mut bench = Bench::new();
    bench.ctx.npm_path = Some("/nowhere".into());
    let mut order = order(bench.ctx.clone(), &[("tiny", "^1")]);
    let bases = vec![image.ctx.store.root().to_owned()];
    order.terms =
        Arc::new(Terms { ctx: bench.ctx.clone(), base_stores: bases, max_bytes: u64::MAX, ttl: TTL });
    let supply = Arc::new(Supply::default());
    let tree = supply.tree(&order).await.unwrap();
    assert!(tree.is_of_base_store());
    supply.used(&order, &tree, SystemTime::now());
    supply.stop().await;
    assert_eq!((count(&supply, "hits"), count(&supply, "renewals")), (1, 0));
    assert_eq!(bench.trees(), 0);
}

#[test]
fn a_set_without_packages_has_one_tree_per_tenant() {
    assert_eq!(Scope::key_of_nothing(None), Scope::key_of_nothing(None));
    assert_ne!(Scope::key_of_nothing(None), Scope::key_of_nothing(Some("a")));
}
