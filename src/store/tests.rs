//! The store on a real file system.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::json;

use super::*;

/// A temp folder that goes even when trees without write bits are in it.
struct Base(tempfile::TempDir);

impl Base {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        remove_dir(self.path()).unwrap();
    }
}

fn base() -> Base {
    Base(tempfile::tempdir().unwrap())
}

fn store() -> (Base, Store) {
    let base = base();
    let store = Store::open(base.path()).unwrap();
    (base, store)
}

fn key(name: &str) -> TreeKey {
    TreeKey::new(&[(name.to_owned(), "1".to_owned())].into(), &())
}

fn tree_with(store: &Store, file: &str) -> Tree {
    tree_of(store, &key("any"), file)
}

fn tree_of(store: &Store, key: &TreeKey, file: &str) -> Tree {
    let staging = store.staging().unwrap();
    fs::create_dir_all(staging.tree().join("node_modules/pkg")).unwrap();
    fs::write(staging.tree().join("node_modules/pkg").join(file), "x").unwrap();
    store.publish(staging, key, json!({ "dependencies": {} })).unwrap()
}

fn found(store: &Store, key: &TreeKey) -> Option<Tree> {
    let tree = store.find(key, &[]).unwrap();
    // The use is noted in the background, by who has a lease meanwhile.
    store.flush();
    tree
}

/// Hours after 1970: stamps that do not depend on when a test runs.
fn hour(hour: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(hour)
}

/// Sets when a tree was last used, as a process that used it then would have.
fn used_at(store: &Store, tree: &Tree, at: SystemTime) {
    tree.note_use(at);
    store.flush();
    let lease = fs::metadata(tree.dir().parent().unwrap().join("lease")).unwrap();
    assert_eq!(lease.modified().unwrap(), at);
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map(|entries| entries.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
}

/// A host that died: its folder with a lock file that nobody holds.
fn dead_host(store: &Store, name: &str) -> PathBuf {
    let dir = store.root().join("hosts").join(name);
    fs::create_dir_all(dir.join("staging/some")).unwrap();
    fs::write(dir.join(LOCK_FILE), "").unwrap();
    dir
}

#[test]
fn a_published_tree_is_alive_until_it_is_removed() {
    let (_base, store) = store();
    let tree = tree_with(&store, "index.js");
    assert!(tree.is_alive());
    let marker: serde_json::Value = serde_json::from_slice(&fs::read(tree.marker()).unwrap()).unwrap();
    assert_eq!(marker, json!({ "bytes": 16384, "files": 1, "what": { "dependencies": {} } }));
    store.retire(&tree).unwrap();
    assert!(!tree.is_alive());
    store.retire(&tree).unwrap();
    // Still leased: nobody may take the files from under whoever runs.
    assert_eq!(store.make_room(u64::MAX).unwrap(), RoomReport::default());
    assert!(tree.dir().join("node_modules/pkg/index.js").is_file());
    drop(tree);
    assert_eq!(store.make_room(u64::MAX).unwrap().useless, 1);
    store.flush();
    for (folder, _) in HOST_FOLDERS {
        assert_eq!(entries(&store.host_dir().join(folder)), [] as [PathBuf; 0]);
    }
    assert_eq!(entries(&store.root().join("trees")), [] as [PathBuf; 0]);
}

#[test]
fn a_tree_is_found_by_whoever_opens_the_store() {
    let (base, store) = store();
    assert!(found(&store, &key("a")).is_none());
    let published = tree_of(&store, &key("a"), "index.js");
    let other = Store::open(base.path()).unwrap();
    let tree = found(&other, &key("a")).unwrap();
    assert_eq!(tree.dir(), published.dir());
    assert!(tree.is_alive() && found(&other, &key("b")).is_none());
    drop((published, store));
    assert!(tree.is_alive(), "trees outlive the host that made them");
}

#[test]
fn the_newest_generation_serves_and_the_old_one_goes_when_it_is_free() {
    let (base, store) = store();
    let old = tree_of(&store, &key("a"), "old.js");
    let new = tree_of(&store, &key("a"), "new.js");
    assert_eq!(found(&store, &key("a")).unwrap().dir(), new.dir());
    let other = Store::open(base.path()).unwrap();
    other.make_room(u64::MAX).unwrap();
    assert!(old.is_alive() && new.is_alive());
    drop((old, new));
    let report = other.make_room(u64::MAX).unwrap();
    assert_eq!((report.useless, report.evicted), (1, 0));
    let left = found(&store, &key("a")).unwrap();
    assert!(left.dir().join("node_modules/pkg/new.js").is_file());
    // Retired: what is left is the answer again, and here nothing is.
    store.retire(&left).unwrap();
    assert!(found(&store, &key("a")).is_none());
}

#[test]
fn the_least_recently_used_trees_make_room_and_leased_ones_never() {
    let (base, store) = store();
    let other = Store::open(base.path()).unwrap();
    let trees = ["a", "b", "c", "d"].map(|name| tree_of(&store, &key(name), "index.js"));
    // The order of use is not the order of making.
    for (tree, at) in trees.iter().zip([4, 1, 3, 2]) {
        used_at(&store, tree, hour(at));
    }
    let [a, b, c, d] = trees;
    let bytes = store.make_room(u64::MAX).unwrap().bytes;
    assert_eq!(store.usage(), Usage { trees: 4, bytes, evictions: 0 });
    drop((a, c, d));
    // Room for two: b is the oldest, but leased, so d and c go.
    let report = other.make_room(bytes / 2).unwrap();
    assert_eq!(report, RoomReport { useless: 0, evicted: 2, bytes: bytes / 2 });
    assert_eq!(other.usage(), Usage { trees: 2, bytes: bytes / 2, evictions: 2 });
    assert!(b.is_alive());
    let there = ["a", "b", "c", "d"].map(|name| found(&store, &key(name)).is_some());
    assert_eq!(there, [true, true, false, false]);
    // Too little for anything: what is leased stays all the same.
    let a = found(&store, &key("a")).unwrap();
    assert_eq!(other.make_room(1).unwrap().evicted, 0);
    drop((a, b));
    assert_eq!(other.make_room(1).unwrap().evicted, 2);
    other.flush();
    assert_eq!(entries(&store.root().join("trees")), [] as [PathBuf; 0]);
}

#[test]
fn old_trees_are_pruned_whatever_room_there_is() {
    let (base, store) = store();
    let other = Store::open(base.path()).unwrap();
    let trees = ["a", "b", "c"].map(|name| tree_of(&store, &key(name), "index.js"));
    for (tree, at) in trees.iter().zip([1, 2, 3]) {
        used_at(&store, tree, hour(at));
    }
    let [a, b, c] = trees;
    let all = store.make_room(u64::MAX).unwrap().bytes;
    drop((b, c));
    let keep = Keep { max_bytes: u64::MAX, used_since: Some(hour(3)) };
    // While somebody else makes room, nothing.
    let locks = store.root().join("locks");
    let held = PathLock::try_new(&locks.join("room")).unwrap().unwrap();
    assert_eq!(other.prune(&keep).unwrap(), None);
    drop(held);
    let pruned = other.prune(&keep).unwrap().unwrap();
    let (one, left) = (all / 3, all / 3 * 2);
    let expected = Pruned { useless: 0, evicted: 1, in_use: 1, freed_bytes: one, trees: 2, bytes: left };
    assert_eq!(pruned, expected);
    assert!(a.is_alive() && found(&store, &key("b")).is_none());
    drop(a);
    let pruned = other.prune(&Keep::at_most(0)).unwrap().unwrap();
    assert_eq!((pruned.evicted, pruned.in_use, pruned.trees, pruned.bytes), (2, 0, 0, 0));
    other.flush();
    assert_eq!(entries(&store.root().join("trees")), [] as [PathBuf; 0]);
}

#[test]
fn the_list_says_what_is_there_and_who_uses_it() {
    let (base, store) = store();
    let old = tree_of(&store, &key("a"), "old.js");
    let new = tree_of(&store, &key("a"), "new.js");
    let other = tree_of(&store, &key("b"), "index.js");
    used_at(&store, &new, hour(2));
    used_at(&store, &other, hour(1));
    drop((old, other));
    let later = Store::open(base.path()).unwrap();
    let list = later.list().unwrap();
    let seen: Vec<_> = list.iter().map(|one| (one.key.as_str(), one.serves, one.in_use)).collect();
    let (a, b) = (key("a"), key("b"));
    assert_eq!(
        seen,
        [(a.as_str(), false, Some(false)), (b.as_str(), true, Some(false)), (a.as_str(), true, Some(true))]
    );
    let leased = list.last().unwrap();
    assert_eq!((leased.last_used, leased.files, &leased.what), (hour(2), 1, &json!({ "dependencies": {} })));
    assert_eq!(leased.dir, new.dir().parent().unwrap());
    assert!(leased.bytes > 0 && leased.resolved > hour(2));
    assert_eq!(json!(leased)["lastUsedMs"], 2 * 3_600_000);
    // Looking changes nothing: what is free can be had, and no lock is left.
    assert!(found(&later, &key("b")).is_some());
    assert_eq!(entries(&store.root().join("locks")), [] as [PathBuf; 0]);
    // Somebody installs it just now: not looked at.
    let _held = store.try_install_lock(&key("b")).unwrap();
    assert!(later.list().unwrap().iter().any(|one| one.key == b.as_str() && one.in_use.is_none()));
}

#[test]
fn a_tree_has_a_second_name_as_long_as_it_is_there() {
    let (image, baked) = store();
    let (named, alias) = (key("a").with_alias(&key("alias")), key("alias"));
    drop(tree_of(&baked, &named, "index.js"));
    let tree = found(&baked, &alias).unwrap();
    assert_eq!(tree.dir(), found(&baked, &named).unwrap().dir());
    let (_base, other) = store();
    assert!(other.find(&alias, &[image.path().to_owned()]).unwrap().unwrap().is_of_base_store());
    drop(tree);
    assert_eq!(baked.make_room(0).unwrap().evicted, 1);
    assert!(found(&baked, &alias).is_none());
    assert_eq!(entries(&baked.root().join("aliases")), [] as [PathBuf; 0]);
    // What a stranger wrote there names nothing.
    fs::write(baked.root().join("aliases").join(alias.as_str()), "../hosts").unwrap();
    assert!(found(&baked, &alias).is_none());
}

#[test]
fn one_installer_per_key() {
    let (base, store) = store();
    let other = Store::open(base.path()).unwrap();
    let lock = store.try_install_lock(&key("a")).unwrap().unwrap();
    assert!(other.try_install_lock(&key("a")).unwrap().is_none());
    assert!(other.try_install_lock(&key("b")).unwrap().is_some());
    drop(lock);
    assert!(other.try_install_lock(&key("a")).unwrap().is_some());
    // One of a process that was killed is nothing but an empty file.
    fs::write(store.root().join("locks").join(key("c").as_str()), "").unwrap();
    assert!(store.try_install_lock(&key("c")).unwrap().is_some());
    fs::write(store.root().join("locks").join(key("d").as_str()), "").unwrap();
    store.make_room(u64::MAX).unwrap();
    assert_eq!(entries(&store.root().join("locks")), [] as [PathBuf; 0]);
}

#[test]
fn a_damaged_tree_is_found_out_once_and_retired() {
    let (base, store) = store();
    let tree = tree_with(&store, "index.js");
    assert!(!store.needs_check(&tree) && store.check(&tree).is_none(), "its maker knows what is in it");
    let later = Store::open(base.path()).unwrap();
    let seen = found(&later, &key("any")).unwrap();
    assert!(later.needs_check(&seen) && later.check(&seen).is_none() && !later.needs_check(&seen));
    // In its place: the folder is what it was.
    let file = tree.dir().join("node_modules/pkg/index.js");
    fs::File::open(&file).unwrap().set_modified(hour(1)).unwrap();
    let later = Store::open(base.path()).unwrap();
    let seen = found(&later, &key("any")).unwrap();
    assert!(later.check(&seen).unwrap().contains("node_modules/pkg/index.js"));
    assert!(!seen.is_alive() && !tree.is_alive() && found(&store, &key("any")).is_none());
}

#[test]
fn a_tree_whose_files_a_cleaner_took_is_no_tree_at_its_next_use() {
    let (base, store) = store();
    let tree = tree_with(&store, "index.js");
    let again = found(&Store::open(base.path()).unwrap(), &key("any")).unwrap();
    let file = tree.dir().join("node_modules/pkg/index.js");
    std::thread::sleep(Duration::from_millis(20));
    remove_below(&file);
    assert!(!tree.is_alive() && !again.is_alive(), "the folders are left");
    assert!(found(&store, &key("any")).is_none());
}

/// Removes a file from a folder without write bits.
fn remove_below(file: &Path) {
    let folder = file.parent().unwrap();
    let sealed = fs::metadata(folder).unwrap().permissions();
    let mut open = sealed.clone();
    std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o755);
    fs::set_permissions(folder, open).unwrap();
    fs::remove_file(file).unwrap();
    fs::set_permissions(folder, sealed).unwrap();
}

#[test]
fn a_pipe_in_the_place_of_a_file_of_the_store_keeps_nobody_waiting() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let (base, store) = store();
    let tree = tree_with(&store, "index.js");
    let generation = tree.dir().parent().unwrap().to_owned();
    drop(tree);
    for name in ["complete", "lease", "files"] {
        let path = generation.join(name);
        let _ = fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let later = Store::open(base.path()).unwrap();
        assert!(found(&later, &key("any")).is_none(), "{name}");
        assert_eq!(later.list().unwrap().len(), 1);
    }
}

#[test]
fn a_tree_that_is_checked_while_it_is_wiped_is_no_damage() {
    let (base, store) = store();
    let tree = tree_with(&store, "index.js");
    let later = Store::open(base.path()).unwrap();
    remove_dir(store.root()).unwrap();
    assert!(later.check(&tree).is_none());
}

#[test]
fn when_ranges_were_resolved_is_kept_with_the_tree() {
    let (base, store) = store();
    let tree = tree_with(&store, "index.js");
    assert!(!is_due(tree.resolved(), SystemTime::now(), Duration::from_mins(10)));
    tree.set_resolved(hour(7)).unwrap();
    let other = found(&Store::open(base.path()).unwrap(), &key("any")).unwrap();
    assert_eq!((tree.resolved(), other.resolved()), (hour(7), hour(7)));
    assert!(tree.is_alive() && !tree.is_superseded());
    tree.clone().supersede();
    assert!(tree.is_superseded() && tree.is_alive());
}

#[test]
fn a_use_is_written_down_once_a_minute() {
    let (_base, store) = store();
    let tree = tree_with(&store, "index.js");
    used_at(&store, &tree, hour(1));
    tree.note_use(hour(1) + Duration::from_secs(59));
    store.flush();
    let lease = fs::metadata(tree.dir().parent().unwrap().join("lease")).unwrap();
    assert_eq!(lease.modified().unwrap(), hour(1));
    used_at(&store, &tree, hour(1) + Duration::from_mins(1));
}

#[test]
fn a_base_store_answers_first_and_is_not_touched() {
    let (image, baked) = store();
    tree_of(&baked, &key("a"), "baked.js");
    let (_base, store) = self::store();
    let own = tree_of(&store, &key("a"), "own.js");
    let [by_base, by_root] = [image.path().to_owned(), baked.root().to_owned()];
    // What publishing left to be removed goes in the background.
    baked.flush();
    let before = everything_in(&by_root);
    for dir in [&by_base, &by_root] {
        let bases = [PathBuf::from("/nowhere"), dir.clone()];
        let tree = store.find(&key("a"), &bases).unwrap().unwrap();
        assert!(tree.is_of_base_store() && tree.is_alive());
        assert!(tree.dir().join("node_modules/pkg/baked.js").is_file());
        tree.note_use(hour(9));
        assert!(!store.needs_check(&tree) && store.check(&tree).is_none());
        store.retire(&tree).unwrap();
        store.flush();
        let run = RunFolder::create(&tree).unwrap();
        assert!(
            run.dir().starts_with(store.host_dir()) && run.dir().join("node_modules/pkg/baked.js").exists()
        );
        assert!(store.find(&key("b"), &bases).unwrap().is_none());
    }
    assert_eq!(everything_in(&by_root), before);
    assert_eq!(store.find_own(&key("a")).unwrap().unwrap().dir(), own.dir());
}

/// Every path below a folder, with its time of change.
fn everything_in(dir: &Path) -> Vec<(PathBuf, SystemTime)> {
    let mut found: Vec<_> = entries(dir)
        .into_iter()
        .flat_map(|path| {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let below = if metadata.is_dir() { everything_in(&path) } else { Vec::new() };
            below.into_iter().chain([(path, metadata.modified().unwrap())])
        })
        .collect();
    found.sort();
    found
}

/// A host's umask may be narrower than what workers under another uid need.
#[cfg(unix)]
#[test]
fn others_can_read_trees_and_nothing_else() {
    use std::os::unix::fs::PermissionsExt;
    let (_base, store) = store();
    let tree = tree_with(&store, "index.js");
    store.scripts().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut folder = tree.dir().parent().unwrap();
    while folder != store.root().parent().unwrap() {
        assert_eq!(mode(folder), 0o755, "{}", folder.display());
        folder = folder.parent().unwrap();
    }
    for (path, expected) in [("locks", 0o700), ("hosts", 0o711), ("runtime", 0o755)] {
        assert_eq!(mode(&store.root().join(path)), expected, "{path}");
    }
    for (path, expected) in [("", 0o711), ("runs", 0o711), ("staging", 0o711), ("trash", 0o700)] {
        assert_eq!(mode(&store.host_dir().join(path)), expected, "{path}");
    }
}

/// Leases, installs and removals at once, by many owners of open files, as many processes are.
#[test]
fn nobody_loses_a_leased_tree() {
    let (base, _store) = store();
    let keys = ["a", "b", "c"].map(key);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let store = Store::open(base.path()).unwrap();
                for round in 0..60 {
                    let key = &keys[round % keys.len()];
                    let tree = found(&store, key).unwrap_or_else(|| tree_of(&store, key, "index.js"));
                    assert!(tree.dir().join("node_modules/pkg/index.js").is_file(), "{tree:?}");
                    std::thread::yield_now();
                    assert!(tree.dir().join("node_modules/pkg/index.js").is_file(), "{tree:?}");
                }
            });
        }
        scope.spawn(|| {
            let store = Store::open(base.path()).unwrap();
            for _ in 0..60 {
                store.make_room(1).unwrap();
                std::thread::yield_now();
            }
        });
    });
}

#[test]
fn a_tree_that_was_swapped_for_another_is_not_alive() {
    let (_base, store) = store();
    let tree = tree_with(&store, "index.js");
    fs::rename(tree.dir().as_path(), tree.dir().with_extension("moved")).unwrap();
    fs::create_dir(tree.dir().as_path()).unwrap();
    assert!(!tree.is_alive());
}

#[cfg(unix)]
#[test]
fn a_published_tree_has_no_write_bits() {
    use std::os::unix::fs::PermissionsExt;
    let (_base, store) = store();
    let tree = tree_with(&store, "index.js");
    for path in ["", "node_modules", "node_modules/pkg", "node_modules/pkg/index.js"] {
        let mode = fs::metadata(tree.dir().join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o222, 0, "{path}: {mode:o}");
    }
}

#[test]
fn a_dropped_staging_leaves_nothing() {
    let (_base, store) = store();
    let staging = store.staging().unwrap();
    fs::write(staging.tree().join("file"), "x").unwrap();
    drop(staging);
    store.flush();
    assert_eq!(entries(&store.host_dir().join("staging")), [] as [PathBuf; 0]);
    assert_eq!(entries(&store.root().join("trees")), [] as [PathBuf; 0]);
}

#[test]
fn a_run_folder_is_private_reaches_the_packages_and_goes_with_its_owner() {
    let (_base, store) = store();
    let tree = tree_with(&store, "index.js");
    let run = RunFolder::create(&tree).unwrap();
    assert!(run.cwd().is_dir() && run.tmpdir().is_dir());
    assert!(run.cwd().join("../node_modules/pkg/index.js").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(run.dir()).unwrap().permissions().mode() & 0o777, 0o700);
    }
    fs::write(run.cwd().join("left"), "x").unwrap();
    let (dropped, removed) = (run.dir().to_owned(), RunFolder::create(&tree).unwrap());
    drop(run);
    let removed_dir = removed.dir().to_owned();
    removed.remove().unwrap();
    assert!(!removed_dir.exists());
    store.flush();
    assert!(!dropped.exists());
    assert!(tree.dir().join("node_modules/pkg/index.js").exists());
}

#[test]
fn all_of_it_may_be_wiped_between_two_calls() {
    let base = base();
    let temp = base.path().join("tmp");
    let store = Store::open(&temp).unwrap();
    let tree = tree_with(&store, "index.js");
    let script = store.scripts().unwrap().0;
    remove_dir(&temp).unwrap();
    assert!(!tree.is_alive());
    assert!(RunFolder::create(&tree).is_ok());
    assert!(tree_with(&store, "index.js").is_alive());
    remove_dir(&temp).unwrap();
    assert_eq!(store.scripts().unwrap().0, script);
    assert_eq!(fs::read_to_string(&script).unwrap(), WORKER_SCRIPT);
    remove_dir(&temp).unwrap();
    assert!(store.npm_cache().unwrap().is_dir());
    // Locked again: another host's sweep leaves it alone.
    let other = Store::open(&temp).unwrap();
    assert_eq!(other.sweep(), SweepReport::default());
    assert!(store.host_dir().is_dir());
}

#[test]
fn a_changed_worker_script_is_written_anew() {
    let (_base, store) = store();
    let script = store.scripts().unwrap().0;
    fs::write(&script, "process.exit(1) // not ours").unwrap();
    assert_eq!(store.scripts().unwrap().0, script);
    assert_eq!(fs::read_to_string(&script).unwrap(), WORKER_SCRIPT);
}

#[test]
fn the_folders_of_dead_hosts_are_swept_and_those_of_living_ones_are_not() {
    let (base, store) = store();
    let living = Store::open(base.path()).unwrap();
    let tree = tree_with(&living, "index.js");
    let dead = [dead_host(&store, "1-dead"), dead_host(&store, "2-dead")];
    let starting = store.root().join("hosts/3-starting");
    fs::create_dir(&starting).unwrap();
    let half_swept = store.root().join("hosts").join(".dead-half");
    fs::create_dir_all(half_swept.join("runs")).unwrap();
    let reports: Vec<_> = std::thread::scope(|scope| {
        let sweepers: Vec<_> = (0..4).map(|_| scope.spawn(|| store.sweep())).collect();
        sweepers.into_iter().map(|sweeper| sweeper.join().unwrap()).collect()
    });
    assert!(reports.iter().all(|report| report.failed == 0), "{reports:?}");
    assert!(dead.iter().all(|dir| !dir.exists()) && !half_swept.exists());
    assert!(starting.exists() && tree.is_alive());
}

#[test]
fn a_host_folder_without_lock_is_swept_once_it_is_old() {
    let (_base, store) = store();
    let abandoned = store.root().join("hosts/1-abandoned");
    fs::create_dir(&abandoned).unwrap();
    let hosts = store.root().join("hosts");
    let later = |hours| SystemTime::now() + Duration::from_hours(hours);
    assert_eq!(sweep::sweep(&hosts, store.host_dir(), later(23)).removed, 0);
    assert_eq!(sweep::sweep(&hosts, store.host_dir(), later(25)).removed, 1);
    assert!(!abandoned.exists());
}

#[test]
fn the_host_folder_goes_with_the_last_handle() {
    let (_base, store) = store();
    let host = store.host_dir().to_owned();
    let tree = tree_with(&store, "index.js");
    drop(store);
    assert!(host.exists());
    drop(tree);
    while host.exists() {
        std::thread::yield_now();
    }
}

#[cfg(unix)]
#[test]
fn a_planted_symlink_is_refused() {
    let base = base();
    let elsewhere = self::base();
    let root = base.path().canonicalize().unwrap().join(root::name());
    std::os::unix::fs::symlink(elsewhere.path(), &root).unwrap();
    let message = Store::open(base.path()).unwrap_err().to_string();
    assert!(message.contains("symlink") && message.contains(root.to_str().unwrap()), "{message}");
    assert!(message.contains("for the store") && message.contains("storeDir"), "{message}");
    assert_eq!(entries(elsewhere.path()), [] as [PathBuf; 0]);
}

#[cfg(unix)]
#[test]
fn a_root_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let base = base();
    let root = base.path().join(root::name());
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    let message = Store::open(base.path()).unwrap_err().to_string();
    assert!(message.contains("others may write") && message.contains("0777"), "{message}");
}

#[test]
fn an_unusable_base_is_named() {
    let base = base();
    let file = base.path().join("file");
    fs::write(&file, "").unwrap();
    let message = Store::open(&file).unwrap_err().to_string();
    assert!(message.contains("for the store") && message.contains("file"), "{message}");
    let relative = Store::open(Path::new("relative")).unwrap_err();
    assert!(
        matches!(relative, StoreError::Base { source, .. } if source.kind() == io::ErrorKind::InvalidInput)
    );
}

#[test]
fn a_read_only_disk_is_told_with_what_to_set_once() {
    let read_only = || io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
    let base = StoreError::Base { path: "/x".into(), source: read_only() };
    let inside = StoreError::io("create the folder", "/x/hosts/1")(read_only());
    for text in [base.to_string(), inside.to_string()] {
        assert_eq!(text.matches("or TMPDIR to a folder").count(), 1, "{text}");
        assert_eq!(text.matches("storeDir").count(), 1, "{text}");
    }
    let other = StoreError::io("read the folder", "/x")(io::ErrorKind::PermissionDenied.into()).to_string();
    assert!(!other.contains("TMPDIR"), "{other}");
}
