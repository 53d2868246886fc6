//! Source forms: which one a text has, and what the worker has to compile. Pure.
//!
//! | step | file |
//! | --- | --- |
//! | how much stack the text can need | `nesting.rs` |
//! | text → tree, in the reading that fits | `parse.rs` |
//! | tree → what the tool is, or why there is none | `classify.rs`, over the names of `candidates.rs` |
//! | what else the tree says: packages, free names | `facts.rs` |
//! | named imports from packages that are `CommonJS` | `named.rs` |
//! | which environment variables prepared code reads | `env_names.rs` |
//! | tool → edits that make the text runnable | `wrap.rs` |
//! | `using` in the head of a loop → before it | `using.rs` |
//! | standard decorators and `accessor` → plain classes | `decorators.rs` |
//! | TypeScript and JSX → JavaScript and a source map | `typescript.rs` |
//! | error texts with line, column and picture | `diagnostic.rs` |
//! | what a text is that is no code | `hint.rs` |
//! | what was prepared before | `cache.rs` |
//! | what V8 compiled before | `code_cache.rs` |
//!
//! # Which function is the tool
//!
//! The first rule that applies decides:
//!
//! 1. `export default …` (also `export { f as default }`).
//! 2. `module.exports = …`, `exports.x = …` or TypeScript's `export = …` at the top level.
//! 3. The one statement that is a function: an arrow function, a function expression or an anonymous `function`. What stands
//!    above and below it are helpers. Two of them are refused, and one beside an unused function that is exported or has a name of rule 5.
//! 4. The last statement, if it is an object (`({ execute() {} })`), a name (`tool`), or a call of or with the function
//!    that rule 5 would choose (`withRetry(execute)`).
//! 5. What is named at the top level, only the exported names where any is exported. A function that other functions or variables
//!    use is a helper. Of what is left: the only one; else the one called `execute`, `handler`, `main` or `run` (the exported name
//!    counts). A function without parameters that calls another one with parameters and is called `test…`, `example…` and the like, or is called
//!    `main`, `run` and the like and called by the text, may only show the other's use: that is refused. A value that functions
//!    went into (`withRetry(async …)`, `new Tool()`) or that is exported is looked at when the code runs. More than one, or none, is refused.
//! 6. Code that fills `module` or `exports` in its own way (UMD); else the value of the last statement, if it can be a function.
//!
//! A text that is none of these is read again as a value (`{ execute() {} }`) and as the inside of an object
//! (`async execute(args) {}`, `execute: async () => {}`).
//!
//! An object stands for its function `default`, `execute`, `handler`, `main`, `run`, `invoke` or `call`, in this order, or else for the only function
//! in it; `this` is the object. Where only running the code can tell, a one-line check does, with an error that says so.
//!
//! # JavaScript or TypeScript
//!
//! `typescript` reads TypeScript, and with JSX only what cannot be read without, so that `<T>(x) => …` keeps its meaning.
//! `node22` reads JavaScript, and only what is no JavaScript is read as TypeScript: models annotate without being
//! asked, and running the code is more use than explaining a setting. Valid JavaScript is never stripped of anything.
//! Imports that are used as types only, or not at all, go, as `tsc` has it. JSX calls `React.createElement` where
//! `React` is bound at the top level, else the functions of `react/jsx-runtime`. Decorators are the standard ones, or TypeScript's
//! older ones where the text shows that it is written for these; see `decorators.rs`.

mod cache;
mod candidates;
mod classify;
mod code_cache;
mod decorators;
mod diagnostic;
mod env_names;
mod facts;
mod hint;
mod named;
mod nesting;
pub mod own_root;
mod parse;
mod typescript;
mod using;
mod wrap;

use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use oxc_allocator::Allocator;
use serde::Serialize;

use diagnostic::Fault;
use facts::Facts;
use parse::{Language, Reading, Tree};

pub use cache::Cache;
pub use code_cache::{CodeCache, CodeDigest, Flags, Key as CodeKey, MAX_CACHE_BYTES, Use};
pub(crate) use facts::package_of;

/// Longest text that is read. The widest bundles of tools have some hundred kilobytes.
pub const MAX_SOURCE_BYTES: usize = 4 * 1024 * 1024;

/// Stack that is taken from the caller's thread; callers have 1 MiB at least. Ordinary tools need less than 100 KiB.
const INLINE_STACK_BYTES: usize = 512 * 1024;

/// Stack of the largest thread that is started for a deeply nested text. Only what is used of it is ever committed.
const MAX_STACK_BYTES: usize = 256 * 1024 * 1024;

/// Stack on top of what the nesting needs: the passes' own frames.
const BASE_STACK_BYTES: usize = 512 * 1024;

/// `sandboxConfig.runtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// `node22`: JavaScript.
    Node22,
    /// `typescript`.
    TypeScript,
}

impl Runtime {
    /// The runtime of this name in `sandboxConfig`; without one, or an empty one, the default.
    ///
    /// # Errors
    ///
    /// A sentence for the caller, where the name is none of them.
    pub fn named(name: Option<&str>) -> Result<Self, String> {
        match name {
            None | Some("" | "node22") => Ok(Self::Node22),
            Some("typescript") => Ok(Self::TypeScript),
            Some(other) => {
                Err(format!("sandboxConfig.runtime must be \"node22\" or \"typescript\", got {other:?}"))
            }
        }
    }
}

/// How the worker has to compile [`Prepared::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The body of a `CommonJS` function `(exports, require, module, __filename, __dirname) { … }` that *returns* the tool
    /// function. Sloppy mode unless the text says otherwise; `import()` works.
    Script,
    /// An ES module whose default export is the tool function. It has to be loaded from a file: it brings its own `require`,
    /// `__filename` and `__dirname` where it uses them, made from `import.meta`.
    Module,
}

/// A text that is ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// How to compile it.
    pub kind: Kind,
    /// What to compile. Line `n` of the user's text is line `n + line_offset` of this, unless `source_map` is set.
    pub code: String,
    /// Lines put before the user's first line.
    pub line_offset: i32,
    /// Columns (UTF-16 units) put before the tool function on the user's first line; 0 if it starts on another.
    pub column_offset: i32,
    /// Source map (version 3, JSON) from `code` to the user's text, when the text was transformed. Its one source is `tool`,
    /// without content; places that are not the user's have no segment.
    pub source_map: Option<String>,
    /// Packages that the code imports or requires by a literal name, in order of appearance, each once; no built-ins, no
    /// relative paths, no URLs. For hints: what stands in a branch that never runs is named, too.
    pub packages: Vec<String>,
    /// Those of `packages` that an `import` statement needs, and where in the user's text the statement names it. Without them
    /// nothing of the code runs.
    pub imports: Vec<Import>,
    /// Names `code`, where compiling it takes so long that V8's code cache is worth it.
    pub code_digest: Option<CodeDigest>,
    /// Whether a string or a template of the user's text names what only a worker with a root to itself has.
    pub names_own_root: bool,
}

/// A package that the code cannot do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Its name.
    pub package: String,
    /// Bytes of the user's text, a byte-order mark left out; empty, at the start, where the text itself does not name it (JSX).
    pub range: Range<usize>,
}

/// Why a text cannot run. The message names line and column (1-based) and shows the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// For people and models; starts with `SyntaxError:` where it is one.
    pub message: String,
}

impl Prepared {
    /// What is wrong with `text`, which this was made of, when there is no `package` (one of [`Self::imports`]) to import from.
    pub fn undeclared(text: &str, import: &Import) -> SourceError {
        let package = &import.package;
        let message = format!(
            "The code imports the package `{package}`, which is not among the function's dependencies"
        );
        let help = match versioned(package) {
            Some((name, _)) => {
                format!("Help: import `{name}`, without the version, and {}", declare(package))
            }
            None => format!("Help: {}", declare(package)),
        };
        Fault { message, range: import.range.clone(), help }.render(without_mark(text))
    }
}

/// What to do about a package that the code names and that is not declared.
pub(crate) fn declare(package: &str) -> String {
    let (name, version) = versioned(package).unwrap_or((package, "latest"));
    format!("declare it in the function's `dependencies`, for example {{ \"{name}\": \"{version}\" }}")
}

/// Name and version of `name@version`, as some runtimes write imports; versions belong to `dependencies`.
fn versioned(package: &str) -> Option<(&str, &str)> {
    let at = package.get(1..)?.find('@')? + 1;
    let (name, version) = (&package[..at], &package[at + 1..]);
    Some((name, if version.is_empty() { "latest" } else { version }))
}

/// Editors do not count a byte-order mark, so neither do places.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Classifies `text` and makes it runnable.
///
/// Microseconds for an ordinary tool. A text whose nesting could need more stack than a caller is sure to have is read on
/// a thread of its own, for as long as this call takes.
pub fn prepare(text: &str, runtime: Runtime) -> Result<Prepared, SourceError> {
    let text = without_mark(text);
    if text.len() > MAX_SOURCE_BYTES {
        let message =
            format!("The source text has {} bytes; at most {MAX_SOURCE_BYTES} are read", text.len());
        return Err(Fault::refused(message, 0..0).render(&text[..text.floor_char_boundary(200)]));
    }
    let languages: &[Language] = match runtime {
        Runtime::Node22 => &[Language::JavaScript, Language::TypeScript],
        Runtime::TypeScript => &[Language::TypeScript],
    };
    let plain = on_stack(nesting::stack_bytes(text), || read(text, languages))
        .unwrap_or_else(|fault| Err((usize::MAX, fault)));
    let (progress, fault) = match plain {
        Ok(prepared) => return Ok(prepared),
        Err(failed) => failed,
    };
    if progress < text.len()
        && text.contains('<')
        && let Ok(Ok(prepared)) = on_stack(nesting::jsx_stack_bytes(text), || read(text, &[Language::Tsx]))
    {
        return Ok(prepared);
    }
    let help = hint::of(text, &fault.range).unwrap_or(fault.help);
    Err(Fault { help, ..fault }.render(text))
}

/// The names of environment variables that prepared code reads by literal name, sorted: `process.env.A`, `process.env['B']`,
/// `const { C } = process.env`.
pub fn env_names(prepared: &Prepared) -> Vec<String> {
    let code = prepared.code.as_str();
    let read = || env_names::of(code, prepared.kind);
    // What was read once can be read again; should it not be, no name is known.
    on_stack(nesting::stack_bytes(code), read).unwrap_or_default()
}

/// Runs `work` where it has `bytes` of stack. A panic in it is a fault like others: the parser is not ours, the texts are anyone's.
fn on_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, Fault> {
    let unreadable = |_| Fault::refused("SyntaxError: The code could not be read", 0..0);
    if bytes <= INLINE_STACK_BYTES {
        return panic::catch_unwind(AssertUnwindSafe(work)).map_err(unreadable);
    }
    if bytes > MAX_STACK_BYTES {
        let message = "SyntaxError: The code nests too deeply, or is too large to tell";
        return Err(Fault::refused(message, 0..0));
    }
    thread::scope(|scope| {
        thread::Builder::new()
            .name("sandbox-source".to_owned())
            .stack_size(bytes + BASE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| Fault::refused(format!("No thread to read the code on: {error}"), 0..0))?
            .join()
            .map_err(unreadable)
    })
}

/// The first reading of `text` in which it is a tool; else the fault of the one that came furthest, with how far.
///
/// A refusal of something well-formed counts as the whole text.
fn read(text: &str, languages: &[Language]) -> Result<Prepared, (usize, Fault)> {
    let mut furthest: Option<(usize, Fault)> = None;
    for &language in languages {
        for reading in Reading::ALL {
            let allocator = Allocator::default();
            match read_as(&allocator, text, language, reading) {
                Ok(prepared) => return Ok(prepared),
                Err(failed) => {
                    if furthest.as_ref().is_none_or(|known| failed.0 > known.0) {
                        furthest = Some(failed);
                    }
                }
            }
        }
        // What is well-formed JavaScript is not tried as TypeScript.
        if furthest.as_ref().is_some_and(|(progress, _)| *progress > text.len()) {
            break;
        }
    }
    Err(furthest.expect("there is a reading in a language"))
}

/// What the statements of the final code import (`code`, its facts), at the places of the user's text (`tree`).
fn imports(tree: &Tree<'_>, code: &Facts) -> Vec<Import> {
    let written = tree.facts.imported();
    let place =
        |package: &str| written.iter().find(|(name, _)| *name == package).map(|(_, span)| tree.range(*span));
    let needed = code.imported().into_iter();
    needed
        .map(|(package, _)| Import { package: package.to_owned(), range: place(package).unwrap_or_default() })
        .collect()
}

fn read_as(
    allocator: &Allocator,
    text: &str,
    language: Language,
    reading: Reading,
) -> Result<Prepared, (usize, Fault)> {
    let tree = parse::parse(allocator, text, language, reading)?;
    let entry = classify::classify(&tree).map_err(|refusal| (text.len() + refusal.rank, refusal.fault))?;
    let wrapped = wrap::wrap(&tree, &entry);
    if !wrapped.is_sound(text.len()) {
        let message = "SyntaxError: The code can be read in more than one way; end its statements with `;`";
        return Err((text.len(), Fault::refused(message, 0..text.len())));
    }
    let mut prepared = if language == Language::JavaScript && !tree.facts.using {
        Prepared {
            kind: tree.kind,
            code: wrapped.code(text),
            line_offset: 0,
            column_offset: wrapped.column_offset(text),
            source_map: None,
            packages: tree.facts.packages(),
            imports: imports(&tree, &tree.facts),
            code_digest: None,
            names_own_root: false,
        }
    } else {
        typescript::transform(allocator, text, &tree, &wrapped).map_err(|fault| (text.len(), fault))?
    };
    match parse::last_look(allocator, &prepared.code, prepared.kind) {
        Ok(comment) => {
            prepared.code.push_str(&comment);
            let names_own_root = tree.facts.names_own_root;
            Ok(Prepared { code_digest: code_cache::digest(&prepared), names_own_root, ..prepared })
        }
        Err(error) => {
            let place = prepared.source_map.is_none().then(|| error.labels.first()).flatten();
            let range = place.map_or(0..0, |label| {
                let start = label.offset() as usize;
                wrapped.user_offset(start)..wrapped.user_offset(start + label.len() as usize)
            });
            Err((text.len(), Fault::refused(format!("SyntaxError: {}", error.message), range)))
        }
    }
}
