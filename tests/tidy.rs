//! The tree of sources is what `docs/ARCHITECTURE.md` says it is. Looks at what git tracks; outside of a clone there is
//! nothing to look at.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Hosts that sources and documents may name: of the project itself, of standards, of examples (RFC 2606 and shorter).
const KNOWN_HOSTS: &[&str] = &[
    "127.0.0.1",
    "example.com",
    "github.com",
    "h",
    "host",
    "keepachangelog.com",
    "localhost",
    "r",
    "rustup.rs",
    "semver.org",
    "sh.rustup.rs",
    "vercel.com",
    "www.w3.org",
    "x",
];

/// Folders at the top of a file system in which people's and machines' own folders are.
const MACHINE_FOLDERS: [&str; 4] = ["home", "root", "Users", "work"];

/// A user that examples may have.
const EXAMPLE_HOME: &str = "/home/me/";

/// Made by tools; where these load from is looked at by a test of its own.
const LOCKFILES: [&str; 2] = ["Cargo.lock", "package-lock.json"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Tracked files that are still there, by their path from the root.
fn tracked() -> Vec<String> {
    #[expect(clippy::disallowed_methods, reason = "git is asked by a test, not by the package")]
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let paths = String::from_utf8(listed.stdout).unwrap();
    let there: Vec<_> = paths
        .split('\0')
        .filter(|path| !path.is_empty() && root().join(path).is_file())
        .map(str::to_owned)
        .collect();
    assert!(there.len() > 100, "only {} files", there.len());
    there
}

/// Tracked files of text, with their text; but for this one, which has to name what it forbids.
fn texts() -> Vec<(String, String)> {
    let read = |path: String| fs::read_to_string(root().join(&path)).ok().map(|text| (path, text));
    tracked().into_iter().filter(|path| path != file!()).filter_map(read).collect()
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

fn rust() -> Vec<(String, String)> {
    texts().into_iter().filter(|(path, _)| has_extension(path, "rs")).collect()
}

/// Lines of code, without what follows `//`.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split("//").next().unwrap_or_default())
}

fn architecture() -> String {
    fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap()
}

/// What stands in backticks, `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn named_paths(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).flat_map(expanded).collect()
}

fn expanded(path: &str) -> Vec<String> {
    let braces = path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (choices, tail))) = braces else { return vec![path.to_owned()] };
    choices.split(',').map(|choice| format!("{head}{}{tail}", choice.trim())).collect()
}

/// Whether `path` is one of `named`, or lies in a folder that is.
fn is_within(named: &BTreeSet<String>, path: &str) -> bool {
    named.iter().any(|name| path == name || (name.ends_with('/') && path.starts_with(name.as_str())))
}

/// Everything that is wrong, so that one run shows it all.
#[track_caller]
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn only_the_binding_names_napi() {
    let names_it = |line: &str| {
        let line = line.replace(' ', "");
        ["napi::", "napi_derive", "#[napi"].iter().any(|word| line.contains(word))
    };
    let (inside, outside): (Vec<_>, Vec<_>) = rust()
        .into_iter()
        .filter(|(path, text)| path.starts_with("src/") && code(text).any(names_it))
        .partition(|(path, _)| path.starts_with("src/binding/"));
    assert!(!inside.is_empty(), "the check sees what it looks for");
    assert_none(&outside.into_iter().map(|(path, _)| path).collect::<Vec<_>>());
}

fn is_unsafe(line: &str) -> bool {
    let words = line.match_indices("unsafe").filter(|(at, word)| {
        let before = line[..*at].chars().next_back();
        let after = line[at + word.len()..].trim_start();
        before.is_none_or(|one| !one.is_alphanumeric() && one != '_')
            && (after.is_empty()
                || ["{", "fn ", "impl", "extern", "("].iter().any(|next| after.starts_with(next)))
    });
    words.count() > 0
}

#[test]
fn unsafe_stands_where_the_architecture_says() {
    let document = architecture();
    let rule = document.lines().find(|line| line.starts_with("9. `unsafe`")).unwrap();
    let named: BTreeSet<_> = named_paths(rule).into_iter().filter(|name| name.contains('/')).collect();
    let found: Vec<_> =
        rust().into_iter().filter(|(_, text)| code(text).any(is_unsafe)).map(|(path, _)| path).collect();
    let strangers = found.iter().filter(|path| !is_within(&named, path)).cloned();
    let absent = named.iter().filter(|name| !found.iter().any(|path| path.starts_with(name.as_str())));
    let faults: Vec<_> = strangers
        .map(|path| format!("{path} has it, but is not named"))
        .chain(absent.map(|name| format!("{name} is named, but has none")))
        .collect();
    assert_none(&faults);
}

#[test]
fn the_map_is_current() {
    let document = architecture();
    let map = document.split("## The map").nth(1).unwrap().split("\n## ").next().unwrap();
    let places: BTreeSet<_> = map
        .lines()
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| named_paths(line.split('|').nth(1).unwrap()))
        .collect();
    let files = tracked();
    let exists = |place: &str| match place.split_once('*') {
        Some((head, tail)) => files.iter().any(|path| path.starts_with(head) && path.ends_with(tail)),
        None => files.iter().any(|path| path == place || (place.ends_with('/') && path.starts_with(place))),
    };
    let vanished = places.iter().filter(|place| !exists(place)).map(|place| format!("{place} is not there"));
    let is_own =
        |path: &&String| has_extension(path, "rs") && path.contains("src/") && path.as_str() != "src/lib.rs";
    let unnamed = files
        .iter()
        .filter(is_own)
        .filter(|path| !is_within(&places, path))
        .map(|path| format!("{path} is not on the map"));
    assert_none(&vanished.chain(unnamed).collect::<Vec<_>>());
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    let silent = rust().into_iter().filter(|(_, text)| !text.starts_with("//! "));
    assert_none(&silent.map(|(path, _)| path).collect::<Vec<_>>());
}

/// The host of each address in a text, without a user and a port; but for those that are put together when the code runs.
fn hosts(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |one: char| !one.is_ascii_alphanumeric() && !"-._@*:${}".contains(one);
    text.split("://").skip(1).filter_map(move |rest| {
        let authority = rest.split(is_end).next()?.split('@').next_back()?;
        authority.split(':').next().filter(|host| !host.is_empty() && !host.contains(['{', '$']))
    })
}

#[test]
fn no_file_names_a_machine_or_a_registry() {
    let mut faults = Vec::new();
    for (path, text) in texts() {
        let text = text.replace(EXAMPLE_HOME, "");
        let folders =
            MACHINE_FOLDERS.map(|name| format!("/{name}/")).into_iter().chain(["C:\\Users".to_owned()]);
        faults
            .extend(folders.filter(|folder| text.contains(folder)).map(|folder| format!("{path}: {folder}")));
        if !LOCKFILES.contains(&path.as_str()) {
            // Names below `example` belong to nobody (RFC 2606).
            let is_known = |host: &str| KNOWN_HOSTS.contains(&host) || host.ends_with(".example");
            let strangers = hosts(&text).filter(|host| !is_known(host));
            faults.extend(strangers.map(|host| format!("{path}: {host}")));
        }
    }
    assert_none(&faults);
}

#[test]
fn lockfiles_leave_the_choice_of_registry() {
    let [cargo, npm] = LOCKFILES.map(|path| fs::read_to_string(root().join(path)).unwrap());
    assert!(!npm.contains("\"resolved\": \"http"), "package-lock.json names where packages are loaded from");
    let default = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let other = cargo.lines().filter(|line| line.starts_with("source = ") && *line != default);
    assert_none(&other.map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut faults = Vec::new();
    for (path, text) in texts().into_iter().filter(|(path, _)| has_extension(path, "md")) {
        let folder = root().join(&path).parent().unwrap().to_path_buf();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                faults.push(format!("{path}: {target}"));
            }
        }
    }
    assert_none(&faults);
}

/// The columns of a table of claims that name tests.
const CLAIM_COLUMN: &str = "shown by";

/// Tables that say nothing that could become false by itself: each cell names a layer, which has tests.
const TABLES_WITHOUT_CLAIMS: [&str; 1] = ["what is to be kept from them"];

/// Texts of tests: suites, attempts, Rust tests.
fn tests() -> Vec<(String, String)> {
    let is_test = |path: &str| path.starts_with("__test__/") || has_extension(path, "rs");
    texts().into_iter().filter(|(path, _)| is_test(path)).collect()
}

/// Why `name` is the name of no test: an attempt (`files/private`), a family of them (`files/*`), a suite or its folder, or a Rust test.
fn objection(name: &str, tests: &[(String, String)]) -> Option<String> {
    let family = |family: &str| {
        let path = format!("__test__/escapes/families/{family}.mjs");
        tests.iter().find(|(found, _)| *found == path).map(|(_, text)| text)
    };
    let is_there = if has_extension(name, "mjs") || has_extension(name, "rs") {
        tests.iter().any(|(path, _)| path == name || path.ends_with(&format!("/{name}")))
    } else if let Some((head, tail)) = name.split_once('/') {
        family(head).is_some_and(|text| tail == "*" || text.contains(&format!("'{name}'")))
    } else {
        let marks = [format!("fn {name}("), format!("async fn {name}(")];
        tests.iter().any(|(path, text)| {
            has_extension(path, "rs") && text.contains("#[") && marks.iter().any(|mark| text.contains(mark))
        })
    };
    (!is_there).then(|| format!("there is no test {name}"))
}

/// What is wrong with a list of tests: `` `name`, `suite` "title", … ``; an empty one is wrong, too.
fn objections(list: &str, tests: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut suite = None;
    let mut names = 0;
    for (at, part) in list.split('`').enumerate() {
        if at % 2 == 1 {
            names += 1;
            faults.extend(objection(part, tests));
            suite = Some(part);
            continue;
        }
        // Between two names: titles of the one before.
        for title in part.split('"').skip(1).step_by(2) {
            let title = title.replace('’', "'");
            let has = |(path, text): &(String, String)| {
                suite.is_some_and(|suite| path.ends_with(suite))
                    && text.replace('’', "'").replace("\\'", "'").contains(&title)
            };
            if !tests.iter().any(has) {
                faults.push(format!("no test {title:?} in {suite:?}"));
            }
        }
    }
    if names == 0 {
        faults.push("no test is named".to_owned());
    }
    faults
}

#[test]
fn every_claim_about_isolation_names_tests_that_exist() {
    let document = fs::read_to_string(root().join("docs/ISOLATION.md")).unwrap();
    let tests = tests();
    let mut faults = Vec::new();
    let mut column = None;
    let mut named = 0;
    let mut lines = document.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            column = None;
        } else if lines.peek().is_some_and(|next| next.starts_with("| ---")) {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            column = cells.iter().position(|cell| *cell == CLAIM_COLUMN);
            if column.is_none() && !TABLES_WITHOUT_CLAIMS.contains(&cells[1]) {
                faults.push(format!("a table without a column {CLAIM_COLUMN:?}: {line}"));
            }
        } else if let Some(column) = column.filter(|_| !line.starts_with("| ---")) {
            let cells: Vec<_> = line.split('|').collect();
            let found = objections(cells.get(column).unwrap_or(&""), &tests);
            named += 1;
            faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", cells[1].trim())));
        }
    }
    // And in the text: from the word to the end of the sentence.
    for paragraph in document.split("\n\n").filter(|text| !text.trim_start().starts_with('|')) {
        let text = paragraph.replace('\n', " ");
        for mark in ["Test: ", "Tests: ", "test: ", "tests: "] {
            for list in text.split(mark).skip(1) {
                let end = list.find([')', ';']).into_iter().chain(list.find(". ")).min();
                named += 1;
                faults.extend(objections(&list[..end.unwrap_or(list.len())], &tests));
            }
        }
    }
    assert!(named > 60, "only {named} claims name tests");
    assert_none(&faults);
}
