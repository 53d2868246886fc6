//! The store between real processes, some of which are killed.
//!
//! A child is this test binary, asked for one test: [`child`], which plays the part that a variable names, says a line, and stays
//! until it is killed or its stdin ends.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use native_sandbox_executor::store::{Store, SweepReport, Tree, TreeKey, remove_dir};
use serde_json::json;

const PART: &str = "STORE_TEST_PART";
const BASE: &str = "STORE_TEST_BASE";
/// What a child says when it has done its part. The test harness says other things.
const READY: &str = "-ready-";

fn key() -> TreeKey {
    TreeKey::new(&[("a".to_owned(), "1".to_owned())].into(), &())
}

fn publish(store: &Store) -> Tree {
    let staging = store.staging().unwrap();
    fs::create_dir(staging.tree().join("node_modules")).unwrap();
    fs::write(staging.tree().join("node_modules/file"), "x").unwrap();
    store.publish(staging, &key(), json!({})).unwrap()
}

fn find(store: &Store) -> Option<Tree> {
    let tree = store.find(&key(), &[]).unwrap();
    // The use is noted in the background, by who has a lease meanwhile.
    store.flush();
    tree
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a child is told its part by variables")]
fn child() {
    let (Some(part), Some(base)) = (std::env::var_os(PART), std::env::var_os(BASE)) else { return };
    let store = Store::open(Path::new(&base)).unwrap();
    let held: Box<dyn std::any::Any> = match part.to_str().unwrap() {
        "install" => {
            let lock = store.try_install_lock(&key()).unwrap().unwrap();
            let staging = store.staging().unwrap();
            fs::write(staging.tree().join("half"), "x").unwrap();
            Box::new((lock, staging))
        }
        "lease" => Box::new(find(&store).unwrap()),
        "publish" => Box::new(publish(&store)),
        other => panic!("no part {other}"),
    };
    say_ready();
    // As long as the parent wants.
    let _ = std::io::stdin().read(&mut [0]);
    drop(held);
}

#[expect(clippy::print_stdout, reason = "how a child answers")]
fn say_ready() {
    println!("{READY}");
}

/// A child that did its part. Killed, as by `kill -9`, when dropped.
struct Player {
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Player {
    #[expect(clippy::disallowed_methods, reason = "the test's own process")]
    fn start(part: &str, base: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(BASE, base)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(READY) {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the child ended before it did its part");
        }
        Self { child, _stdout: stdout }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temp folder that goes even when trees without write bits are in it.
struct Base(tempfile::TempDir);

impl Base {
    fn new() -> (Self, Store) {
        let base = Self(tempfile::tempdir().unwrap());
        let store = Store::open(base.path()).unwrap();
        (base, store)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        remove_dir(self.path()).unwrap();
    }
}

fn hosts(store: &Store) -> Vec<PathBuf> {
    fs::read_dir(store.root().join("hosts")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_killed_install_leaves_nothing_that_counts() {
    let (base, store) = Base::new();
    let installer = Player::start("install", base.path());
    assert!(store.try_install_lock(&key()).unwrap().is_none());
    assert!(find(&store).is_none(), "what is staged is no tree");
    assert_eq!(store.sweep(), SweepReport::default(), "its owner lives");
    drop(installer);
    assert!(find(&store).is_none());
    drop(store.try_install_lock(&key()).unwrap().unwrap());
    assert_eq!(store.sweep(), SweepReport { removed: 1, failed: 0 });
    assert_eq!(hosts(&store), [store.host_dir()]);
    assert!(fs::read_dir(store.root().join("locks")).unwrap().next().is_none());
}

#[test]
fn what_another_process_has_leased_is_not_removed_until_it_dies() {
    let (base, store) = Base::new();
    drop(publish(&store));
    let user = Player::start("lease", base.path());
    assert_eq!(store.make_room(0).unwrap().evicted, 0);
    // Retired for good, and still there for who uses it.
    let tree = find(&store).unwrap();
    store.retire(&tree).unwrap();
    let file = tree.node_modules().join("file");
    drop(tree);
    assert_eq!(store.make_room(0).unwrap().useless, 0);
    assert!(file.exists() && find(&store).is_none());
    drop(user);
    assert_eq!(store.make_room(0).unwrap().useless, 1);
    store.flush();
    assert!(!file.exists());
}

#[test]
fn a_tree_outlives_the_process_that_published_it() {
    let (base, store) = Base::new();
    drop(Player::start("publish", base.path()));
    store.sweep();
    let tree = find(&store).unwrap();
    assert!(tree.is_alive() && tree.node_modules().join("file").exists());
    assert!(store.needs_check(&tree) && store.check(&tree).is_none());
}
