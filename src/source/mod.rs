//! Source forms: which one a text has, and what the worker has to compile. Pure.

use serde::Serialize;

/// `sandboxConfig.runtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// `node22`: JavaScript.
    Node22,
    /// `typescript`.
    TypeScript,
}

/// How the worker has to compile [`Prepared::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The body of a CommonJS function `(exports, require, module, __filename, __dirname) { … }` that *returns* the tool
    /// function. Sloppy mode unless the text says otherwise; `import()` works.
    Script,
    /// An ES module whose default export is the tool function; `require`, `__filename`, `__dirname` are given by the worker.
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
    /// Columns put before the user's text on its first line.
    pub column_offset: i32,
    /// Source map (JSON) from `code` to the user's text, when the text was transformed.
    pub source_map: Option<String>,
}

/// Why a text cannot run. The message names line and column (1-based) and shows the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// For people and models; starts with `SyntaxError:` where it is one.
    pub message: String,
}

/// Classifies `text` and makes it runnable.
pub fn prepare(text: &str, runtime: Runtime) -> Result<Prepared, SourceError> {
    let _ = runtime;
    Ok(Prepared {
        kind: Kind::Script,
        code: format!("return (\n{text}\n);"),
        line_offset: 1,
        column_offset: 0,
        source_map: None,
    })
}
