//! Functions of all shapes (`fixtures/source/*.json`): what each is taken for, what it returns when Node runs it, and
//! where errors in it are said to be. The suite of the package runs the same files through the whole executor.
//!
//! A case has `name`, `runtime`, `code`, and either `refused` (part of the error's text; `place` is its `line:column`), or
//! `args` with `returns`, or with `fails` (part of what is thrown) and `at` (the user's `line:column` where). `kind` and
//! `packages` are what `prepare` has to find.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use native_sandbox_executor::source::{MAX_SOURCE_BYTES, Prepared, Runtime, SourceError, prepare};
use proptest::prelude::*;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    runtime: String,
    code: String,
    #[serde(default)]
    args: Value,
    #[serde(default, deserialize_with = "present")]
    returns: Option<Value>,
    fails: Option<String>,
    at: Option<String>,
    refused: Option<String>,
    place: Option<String>,
    kind: Option<String>,
    packages: Option<Vec<String>>,
}

/// A value that is there, though it may be `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Case {
    fn runtime(&self) -> Runtime {
        match self.runtime.as_str() {
            "node22" => Runtime::Node22,
            "typescript" => Runtime::TypeScript,
            other => panic!("{}: no runtime {other}", self.name),
        }
    }

    fn prepare(&self) -> Result<Prepared, SourceError> {
        prepare(&self.code, self.runtime())
    }
}

fn corpus() -> Vec<Case> {
    let files = [
        include_str!("fixtures/source/bundled.json"),
        include_str!("fixtures/source/forms.json"),
        include_str!("fixtures/source/modules.json"),
        include_str!("fixtures/source/positions.json"),
        include_str!("fixtures/source/refused.json"),
        include_str!("fixtures/source/trivia.json"),
        include_str!("fixtures/source/typescript.json"),
    ];
    files.iter().flat_map(|file| serde_json::from_str::<Vec<Case>>(file).unwrap()).collect()
}

/// Everything that is wrong, so that one run shows it all.
#[track_caller]
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_corpus_is_classified() {
    let corpus = corpus();
    assert!(corpus.len() >= 150, "{}", corpus.len());
    let mut faults = Vec::new();
    for case in &corpus {
        let name = &case.name;
        match (case.prepare(), &case.refused) {
            (Err(error), Some(part)) => {
                let (line, column) =
                    case.place.as_ref().and_then(|place| place.split_once(':')).unwrap_or_default();
                let place = if line.is_empty() {
                    "(line ".to_owned()
                } else {
                    format!("(line {line}, column {column})")
                };
                let pictured = error.message.contains("\n  ") && error.message.contains('^');
                if !error.message.contains(part) || !error.message.contains(&place) || !pictured {
                    faults.push(format!("{name}: wanted `{part}` {place}, got\n{error}"));
                }
            }
            (Err(error), None) => faults.push(format!("{name}: refused\n{error}")),
            (Ok(prepared), Some(part)) => {
                faults.push(format!("{name}: not refused ({part}):\n{}", prepared.code))
            }
            (Ok(prepared), None) => {
                let kind = serde_json::to_value(prepared.kind).unwrap();
                if case.kind.as_ref().is_some_and(|wanted| kind != *wanted) {
                    faults.push(format!("{name}: is a {kind}"));
                }
                if case.packages.as_ref().is_some_and(|wanted| prepared.packages != *wanted) {
                    faults.push(format!("{name}: names {:?}", prepared.packages));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn what_is_prepared_runs() {
    let corpus: Vec<Case> = corpus().into_iter().filter(|case| case.refused.is_none()).collect();
    let jobs = corpus.iter().map(|case| {
        let prepared = case.prepare().unwrap();
        json!({
            "kind": prepared.kind,
            "code": prepared.code,
            "args": case.args,
            "lineOffset": prepared.line_offset,
            "columnOffset": prepared.column_offset,
            "sourceMap": prepared.source_map,
        })
    });
    let results = run_in_node(&jobs.collect());
    assert_eq!(results.len(), corpus.len());
    let mut faults = Vec::new();
    for (case, result) in corpus.iter().zip(&results) {
        let thrown = result["error"].as_str();
        let good = match (&case.returns, &case.fails) {
            (Some(wanted), None) => result.get("value") == Some(wanted),
            (None, Some(part)) => {
                let there = case.at.as_ref().is_none_or(|at| result["at"] == **at);
                thrown.is_some_and(|text| text.contains(part)) && there
            }
            _ => panic!("{}: wants neither or both of a result and an error", case.name),
        };
        if !good {
            let code = case.prepare().unwrap().code;
            faults.push(format!(
                "{}: {result}, wanted {:?} {:?} {:?}\n{code}\n",
                case.name, case.returns, case.fails, case.at
            ));
        }
    }
    assert_none(&faults);
}

/// Runs the jobs with `run.cjs`, all in one process.
fn run_in_node(jobs: &Value) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/source/run.cjs");
    let folder = tempfile::tempdir().unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "the code runs as a plain script here, without the package around it"
    )]
    let mut node = std::process::Command::new("node")
        .arg(script)
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    node.stdin.take().unwrap().write_all(jobs.to_string().as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn texts_that_nest_deeply_are_read_or_refused() {
    let deep = |open: &str, middle: &str, close: &str, times: usize| {
        format!("{}{middle}{}", open.repeat(times), close.repeat(times))
    };
    let texts: HashMap<&str, String> = [
        ("parentheses", deep("(", "() => 1", ")", 100_000)),
        ("brackets", format!("() => {}", deep("[", "", "]", 100_000))),
        ("blocks", format!("() => {}", deep("{", "", "}", 100_000))),
        ("objects", format!("() => {}", deep("({a:", "1", "})", 100_000))),
        ("unclosed", "(".repeat(100_000)),
        ("unclosed braces", "{".repeat(4_000_000)),
        ("arrows", format!("{}1", "a=>".repeat(100_000))),
        ("not", format!("() => {}1", "!".repeat(100_000))),
        ("sums", format!("() => 1{}", "+1".repeat(100_000))),
        ("members", format!("() => a{}", ".b".repeat(100_000))),
        ("calls", format!("() => a{}", "()".repeat(100_000))),
        ("powers", format!("() => 2{}", "**2".repeat(100_000))),
        ("conditions", format!("() => {}1", "a?b:".repeat(100_000))),
        ("assignments", format!("() => {}1", "a=".repeat(100_000))),
        ("else", format!("() => {{ {} }}", "if(a){}else ".repeat(100_000))),
        ("loops", format!("() => {{ {}; }}", "for(;;)".repeat(100_000))),
        ("labels", (0..50_000).map(|n| format!("a{n}:")).collect::<String>() + "() => 1"),
        ("templates", format!("() => {}", deep("`${", "1", "}`", 100_000))),
        ("new", format!("() => {}A", "new ".repeat(100_000))),
        ("functions", deep("()=>{", "", "}", 100_000)),
        ("classes", format!("() => {}", deep("class{a=", "1", "}", 50_000))),
        ("groups of a regular expression", format!("() => /{}/", deep("(", "x", ")", 100_000))),
        ("types", format!("(a: {}) => 1", deep("A<", "B", ">", 50_000))),
        ("types over commas", format!("(a: {}) => 1", deep("A<x,", "B", ">", 50_000))),
        ("arrays of types", format!("(a: A{}) => 1", "[]".repeat(100_000))),
        ("elements", format!("() => {}", deep("<a>", "", "</a>", 50_000))),
        ("elements behind a quote", format!("() => <a>'{}'</a>", deep("<b>", "", "</b>", 50_000))),
        ("unclosed elements", format!("() => {}", "<a>".repeat(100_000))),
        ("hidden in what looks like a string", format!("() => {{}}/\"/.x({}\")", "(".repeat(100_000))),
        ("hidden behind a condition", format!("() => {{ if (1) /\"/.x({}\") }}", "(".repeat(100_000))),
        ("hidden behind a line end", format!("() => {{ type A = B\n/\"/.x({}\") }}", "(".repeat(100_000))),
    ]
    .into();
    for (name, text) in &texts {
        for runtime in [Runtime::Node22, Runtime::TypeScript] {
            // Coming back at all is what is asked: an overflow would end this process.
            let started = Instant::now();
            let read = prepare(text, runtime);
            if let Err(error) = read {
                assert!(error.message.len() < 2_000, "{name}: {} bytes of error", error.message.len());
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{name}: {:?}", started.elapsed());
        }
    }
}

#[test]
fn what_people_nest_is_read() {
    for times in [10, 100, 500] {
        let text = format!("() => {}1{}", "[".repeat(times), "]".repeat(times));
        prepare(&text, Runtime::Node22).unwrap();
        prepare(&text, Runtime::TypeScript).unwrap();
        let text = format!("() => 'a'{}", " +\n 'b'".repeat(times * 4));
        prepare(&text, Runtime::Node22).unwrap();
    }
}

#[test]
fn large_data_is_read() {
    let rows: String = (0..20_000)
        .map(|n| format!("{{ id: {n}, name: \"row (\", tags: [\"a\", \"b\"], at: {{ x: 1, y: -2.5 }} }},\n"))
        .collect();
    let text = format!("const rows = [\n{rows}];\n({{ n }}) => rows[n]");
    assert!(text.len() > 1024 * 1024);
    prepare(&text, Runtime::Node22).unwrap();
    prepare(&text, Runtime::TypeScript).unwrap();
}

#[test]
fn too_long_texts_are_refused() {
    let text = format!("() => '{}'", "a".repeat(MAX_SOURCE_BYTES));
    let error = prepare(&text, Runtime::Node22).unwrap_err();
    assert!(error.message.contains("bytes"), "{error}");
    assert!(error.message.len() < 1_000, "{error}");
    let text = format!("() => '{}'", "a".repeat(MAX_SOURCE_BYTES - 9));
    prepare(&text, Runtime::Node22).unwrap();
}

fn runtimes() -> impl Strategy<Value = Runtime> {
    prop_oneof![Just(Runtime::Node22), Just(Runtime::TypeScript)]
}

/// Pieces of code that can follow each other in many ways.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "=>",
        "async ",
        "function ",
        "function* ",
        "class A ",
        "a",
        "b",
        ",",
        ";",
        "\n",
        "\r\n",
        ":",
        "?",
        ".",
        "...",
        "`",
        "${",
        "\"",
        "'",
        "/",
        "//",
        "/*",
        "*/",
        "<",
        ">",
        "</",
        "/>",
        "=",
        "==",
        "+",
        "-",
        "!",
        "export default ",
        "export ",
        "import ",
        "import x from 'y'",
        "module.exports=",
        "exports.a=",
        "return ",
        "await ",
        "yield ",
        "get ",
        "set ",
        "static ",
        "'use strict'",
        "#!",
        "\u{feff}",
        "1",
        "010",
        "\\",
        "\u{2028}",
        "ä",
        "😀",
        "enum E ",
        "namespace N ",
        "type T = ",
        "interface I ",
        "as ",
        "satisfies ",
        "@d ",
        "private ",
        "constructor",
        "__name(",
        "require('x')",
        "if ",
        "else ",
        "for ",
        "(a)",
        "{}",
        "execute",
        "() => 1",
        "abstract ",
        "declare ",
        "#x",
        "<!--",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// A case of the corpus with some of it cut, doubled or replaced.
fn mutants() -> impl Strategy<Value = String> {
    let codes: Vec<String> = corpus().into_iter().map(|case| case.code).collect();
    (
        prop::sample::select(codes.clone()),
        prop::sample::select(codes),
        any::<[prop::sample::Index; 4]>(),
        pieces(),
    )
        .prop_map(|(one, other, at, piece)| {
            let cut =
                |text: &str, at: &prop::sample::Index| text.floor_char_boundary(at.index(text.len() + 1));
            let (from, to) = (cut(&one, &at[0]), cut(&one, &at[1]));
            let (start, end) = (cut(&other, &at[2]), cut(&other, &at[3]));
            format!(
                "{}{}{}{}",
                &one[..from.min(to)],
                piece,
                &other[start.min(end)..start.max(end)],
                &one[from.max(to)..]
            )
        })
}

/// What holds for every text: it comes back, with an error that shows a place, or with the user's lines where they were.
fn check(text: &str, runtime: Runtime) -> Result<(), TestCaseError> {
    match prepare(text, runtime) {
        Err(error) => {
            prop_assert!(error.message.contains("(line "), "{}", error.message);
            prop_assert!(error.message.len() < 4_000, "{}", error.message);
        }
        Ok(prepared) if prepared.source_map.is_none() => {
            let own = text.strip_prefix('\u{feff}').unwrap_or(text);
            prop_assert!(prepared.code.lines().count() >= own.lines().count());
            prop_assert_eq!(prepared.line_offset, 0);
            prop_assert!(prepared.column_offset >= 0);
        }
        Ok(prepared) => {
            let map: Value = serde_json::from_str(&prepared.source_map.unwrap_or_default()).unwrap();
            prop_assert_eq!(&map["version"], 3);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in ".{0,200}", runtime in runtimes()) {
        check(&text, runtime)?;
    }

    #[test]
    fn any_pieces_come_back(text in pieces(), runtime in runtimes()) {
        check(&text, runtime)?;
    }

    #[test]
    fn any_mutant_comes_back(text in mutants(), runtime in runtimes()) {
        check(&text, runtime)?;
    }
}
