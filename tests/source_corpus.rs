//! Functions of all shapes (`fixtures/source/*.json`): what each is taken for, what it returns when Node runs it, and
//! where errors in it are said to be. The suite of the package runs the same files through the whole executor.
//!
//! A case has `name`, `runtime`, `code`, and either `refused` (part of the error's text; `place` is its `line:column`), or
//! `args` with `returns`, or with `fails` (part of what is thrown) and `at` (the user's `line:column` where). `kind` and
//! `packages` are what `prepare` has to find. `constructs.json` has what TypeScript can write, `shapes.json` what models write; the
//! results in the former are those of TypeScript's own compiler (`__test__/source-typescript.test.mjs` compares).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers, too")]

mod source_support;

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use native_sandbox_executor::source::{MAX_SOURCE_BYTES, Prepared, Runtime, SourceError, prepare};
use proptest::prelude::*;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use source_support::fault_of;

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
    /// Of `constructs.json`: the version of TypeScript that has the construct, and how its own compiler is to read it.
    since: Option<String>,
    commonjs: Option<bool>,
    legacy: Option<bool>,
    /// What the compiler's own output gives, where that is another result or an error (`null`), and why ours is right.
    #[serde(default, deserialize_with = "present")]
    typescript: Option<Value>,
    why: Option<String>,
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
        include_str!("fixtures/source/constructs.json"),
        include_str!("fixtures/source/forms.json"),
        include_str!("fixtures/source/modules.json"),
        include_str!("fixtures/source/positions.json"),
        include_str!("fixtures/source/refused.json"),
        include_str!("fixtures/source/shapes.json"),
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
    assert!(corpus.len() >= 800, "{}", corpus.len());
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
                faults.push(format!("{name}: not refused ({part}):\n{}", prepared.code));
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

/// Texts that nest `times` deep, each in another way.
fn nested(times: usize) -> Vec<(&'static str, String)> {
    let deep = |open: &str, middle: &str, close: &str| {
        format!("{}{middle}{}", open.repeat(times), close.repeat(times))
    };
    let row = |link: &str| link.repeat(times);
    vec![
        ("parentheses", deep("(", "() => 1", ")")),
        ("brackets", format!("() => {}", deep("[", "", "]"))),
        ("blocks", format!("() => {}", deep("{", "", "}"))),
        ("objects", format!("() => {}", deep("({a:", "1", "})"))),
        ("unclosed", row("(")),
        ("unclosed braces", row("{")),
        ("arrows", format!("{}1", row("a=>"))),
        ("defaults of arrows", deep("(a=", "1", ")=>1")),
        ("not", format!("() => {}1", row("!"))),
        ("sums", format!("() => 1{}", row("+1"))),
        ("members", format!("() => a{}", row(".b"))),
        ("optional members", format!("() => a{}", row("?.b"))),
        ("calls", format!("() => a{}", row("()"))),
        ("tags", format!("() => a{}", row("``"))),
        ("powers", format!("() => 2{}", row("**2"))),
        ("and", format!("() => 2{}", row("&&2"))),
        ("words", format!("() => 2{}", row(" in 2"))),
        ("typeof", format!("() => {}2", row("typeof "))),
        ("conditions", format!("() => {}1", row("a?b:"))),
        ("conditions in conditions", format!("() => {}", deep("a?", "1", ":2"))),
        ("conditions with parentheses", format!("() => {}1", row("a?(b):"))),
        ("assignments", format!("() => {}1", row("a="))),
        ("else", format!("() => {{ {} }}", row("if(a){}else "))),
        ("if", format!("() => {{ {} }}", row("if(a)") + ";")),
        ("loops", format!("() => {{ {}; }}", row("for(;;)"))),
        ("labels", (0..times).map(|n| format!("a{n}:")).collect::<Vec<_>>().concat() + "() => 1"),
        ("templates", format!("() => {}", deep("`${", "1", "}`"))),
        ("new", format!("() => {}A", row("new "))),
        ("functions", deep("()=>{", "", "}")),
        ("function expressions", deep("(function(){return ", "1", "})")),
        ("parameters", deep("({a:[", "b", "]})=>1").replacen("()", "", 1)),
        ("patterns", format!("({}) => 1", deep("{a:", "b", "}"))),
        ("assigned patterns", format!("() => {{ ({} = 1) }}", deep("[", "b", "]"))),
        ("classes", format!("() => {}", deep("class{a=", "1", "}"))),
        ("heritage", format!("() => {}", deep("class extends ", "A", "{}"))),
        ("groups of a regular expression", format!("() => /{}/", deep("(", "x", ")"))),
        ("types", format!("(a: {}) => 1", deep("A<", "B", ">"))),
        ("types over commas", format!("(a: {}) => 1", deep("A<x,", "B", ">"))),
        ("arrays of types", format!("(a: A{}) => 1", row("[]"))),
        ("types of objects", format!("(a: {}) => 1", deep("{a:", "b", "}"))),
        ("types of functions", format!("(a: {}x) => 1", row("(a)=>"))),
        ("conditional types", format!("(a: {}x) => 1", row("a extends b?c:"))),
        ("keys of types", format!("(a: {}x) => 1", row("keyof "))),
        ("as", format!("() => a{}", row(" as b"))),
        ("non-null", format!("() => a{}", row("!"))),
        ("namespaces", format!("namespace a{} {{}} () => 1", row(".b"))),
        ("enums and namespaces", format!("{} () => 1", deep("namespace a { ", "", "}"))),
        ("elements", format!("() => {}", deep("<a>", "", "</a>"))),
        ("elements behind a quote", format!("() => <a>'{}'</a>", deep("<b>", "", "</b>"))),
        ("attributes", format!("() => {}", deep("<a b={", "1", "}/>"))),
        ("unclosed elements", format!("() => {}", row("<a>"))),
        ("names of elements", format!("() => <a{}/>", row(".b"))),
        ("behind what looks like a string", format!("() => {{}}/\"/.x({}\")", row("("))),
        ("behind a condition", format!("() => {{ if (1) /\"/.x({}\") }}", row("("))),
        ("behind a line end", format!("() => {{ type A = B\n/\"/.x({}\") }}", row("("))),
        ("behind a spread", format!("() => [...typeof /\"/.x({}\")]", row("("))),
        ("behind type arguments", format!("() => a<b>/\"/.x({}\")", row("("))),
    ]
}

#[test]
fn texts_that_nest_deeply_are_read_or_refused() {
    let mut read = 0;
    for times in [100, 1_000, 10_000, 20_000, 200_000] {
        for (name, text) in nested(times) {
            for runtime in [Runtime::Node22, Runtime::TypeScript] {
                // Coming back at all is what is asked: an overflow would end this process.
                let started = Instant::now();
                match prepare(&text, runtime) {
                    Ok(_) => read += 1,
                    Err(error) => {
                        assert!(
                            error.message.len() < 2_000,
                            "{name}: {} bytes of error",
                            error.message.len()
                        );
                    }
                }
                assert!(started.elapsed() < Duration::from_mins(1), "{name}: {:?}", started.elapsed());
            }
        }
    }
    assert!(read > 100, "{read}");
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
    let rows: Vec<String> = (0..20_000)
        .map(|n| format!("{{ id: {n}, name: \"row (\", tags: [\"a\", \"b\"], at: {{ x: 1, y: -2.5 }} }},\n"))
        .collect();
    let text = format!("const rows = [\n{}];\n({{ n }}) => rows[n]", rows.concat());
    assert!(text.len() > 1024 * 1024);
    prepare(&text, Runtime::Node22).unwrap();
    prepare(&text, Runtime::TypeScript).unwrap();
}

#[test]
fn minified_bundles_are_read() {
    let part = "function n(e,t){var r,i=/[\"'`(]/g;if(e){for(;t-->0;)r=e/t}/^x{2}(y|z)$/.test(r)&&(r=`${e}/${t}`);return i?r:{a:1,b:[2]}}";
    let text = format!("\"use strict\";{}module.exports=({{a}})=>n(a);", part.repeat(6_000));
    assert!(text.len() > 512 * 1024);
    prepare(&text, Runtime::Node22).unwrap();
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

#[test]
fn every_construct_has_its_version_and_every_difference_its_reason() {
    let constructs: Vec<Case> = corpus().into_iter().filter(|case| case.since.is_some()).collect();
    assert!(constructs.len() >= 120, "{}", constructs.len());
    let faults = constructs.iter().filter(|case| case.typescript.is_some() != case.why.is_some());
    assert_none(&faults.map(|case| case.name.clone()).collect::<Vec<_>>());
    assert!(constructs.iter().any(|case| case.legacy == Some(true)));
    assert!(constructs.iter().any(|case| case.commonjs == Some(true)));
}

/// Texts come cut off: a model stops in the middle, a limit is reached.
#[test]
fn what_holds_for_every_text_holds_for_beginnings_of_the_corpus() {
    let mut faults = Vec::new();
    for case in corpus() {
        let step = (case.code.len() / 8).max(1);
        for at in (0..case.code.len()).step_by(step) {
            let text = &case.code[..case.code.floor_char_boundary(at)];
            if let Some(fault) = fault_of(text, case.runtime()) {
                faults.push(format!("{} up to {at}: {fault}", case.name));
            }
        }
    }
    assert_none(&faults);
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
        "accessor ",
        "using ",
        "await using ",
        "static {",
        "@d ",
        "@d() ",
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

/// Texts that each property is tried with; `PROPTEST_CASES` asks for more.
const CASES: u32 = 2_000;

fn cases() -> u32 {
    #[expect(clippy::disallowed_methods, reason = "it is about this test, not about the package")]
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(CASES)
}

/// See `source_support`.
fn check(text: &str, runtime: Runtime) -> Result<(), TestCaseError> {
    let fault = fault_of(text, runtime);
    prop_assert_eq!(fault, None, "{:?}", text);
    Ok(())
}

#[test]
fn what_holds_for_every_text_holds_for_the_corpus() {
    let faults = corpus().into_iter().filter_map(|case| {
        let fault = fault_of(&case.code, case.runtime())?;
        Some(format!("{}: {fault}", case.name))
    });
    assert_none(&faults.collect::<Vec<_>>());
}

/// A case of the corpus taken apart at its tokens: some gone, some doubled, some in other places.
fn shuffled() -> impl Strategy<Value = String> {
    let codes: Vec<String> = corpus().into_iter().map(|case| case.code).collect();
    let index = any::<prop::sample::Index>;
    let edits = prop::collection::vec((index(), index(), 0..3_u8), 1..6);
    (prop::sample::select(codes), edits).prop_map(|(code, edits)| {
        let mut tokens = tokens(&code);
        for (one, other, edit) in edits {
            if tokens.is_empty() {
                break;
            }
            let (one, other) = (one.index(tokens.len()), other.index(tokens.len()));
            match edit {
                0 => drop(tokens.remove(one)),
                1 => tokens.insert(one, tokens[other]),
                _ => tokens.swap(one, other),
            }
        }
        tokens.concat()
    })
}

/// Words, and single other characters.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (token, after) = rest.split_at(if is_word(first) { word } else { first.len_utf8() });
        tokens.push(token);
        rest = after;
    }
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in ".{0,200}", runtime in runtimes()) {
        check(&text, runtime)?;
    }

    #[test]
    fn any_pieces_come_back(text in pieces(), runtime in runtimes()) {
        check(&text, runtime)?;
    }

    #[test]
    fn any_shuffled_text_comes_back(text in shuffled(), runtime in runtimes()) {
        check(&text, runtime)?;
    }

    #[test]
    fn any_mutant_comes_back(text in mutants(), runtime in runtimes()) {
        check(&text, runtime)?;
    }
}
