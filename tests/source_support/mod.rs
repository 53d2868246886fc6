//! What holds of `source::prepare` for every text. The property tests and the fuzz target share it.

use std::time::{Duration, Instant};

use native_sandbox_executor::source::{Kind, Prepared, Runtime, prepare};
use oxc_allocator::Allocator;
use oxc_ast::ast::{AccessorProperty, Decorator, VariableDeclaration, VariableDeclarationKind};
use oxc_ast_visit::{Visit, walk};
use oxc_parser::{ParseOptions, Parser};
use oxc_sourcemap::SourceMap;
use oxc_span::SourceType;

/// An error is a few sentences and a picture.
const MAX_ERROR_BYTES: usize = 4_000;

/// Microseconds are usual; this is for machines that do other things and builds that are not optimised.
const MAX_TIME: Duration = Duration::from_secs(20);

/// Prepares `text` and says what is wrong with what comes, if anything is. Not coming back at all is seen by the caller.
pub(crate) fn fault_of(text: &str, runtime: Runtime) -> Option<String> {
    let began = Instant::now();
    let outcome = prepare(text, runtime);
    let took = began.elapsed();
    if took > MAX_TIME {
        return Some(format!("{took:?} for {} bytes", text.len()));
    }
    let own = text.strip_prefix('\u{feff}').unwrap_or(text);
    match outcome {
        Err(error) => fault_of_error(own, &error.message),
        Ok(prepared) => fault_of_prepared(own, &prepared),
    }
}

fn fault_of_error(own: &str, message: &str) -> Option<String> {
    if message.contains("could not be read") {
        return Some(format!("a panic: {message}"));
    }
    if message.len() > MAX_ERROR_BYTES {
        return Some(format!("{} bytes of error", message.len()));
    }
    let lines = lines(own);
    let Some((line, column)) = place_of(message) else { return Some(format!("no place in: {message}")) };
    let inside =
        (1..=lines.len()).contains(&line) && (1..=lines[line - 1].chars().count() + 1).contains(&column);
    (!inside).then(|| format!("line {line}, column {column} is outside of the text: {message}"))
}

/// `(line 1, column 2)` of an error.
fn place_of(message: &str) -> Option<(usize, usize)> {
    let first = message.split("\n  ").next()?;
    let (_, rest) = first.rsplit_once("(line ")?;
    let (line, rest) = rest.split_once(", column ")?;
    Some((line.parse().ok()?, rest.split_once(')')?.0.parse().ok()?))
}

/// As editors count: `\n`, `\r\n` and `\r` end a line.
fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\n', '\r']) {
        lines.push(&rest[..at]);
        let end = if rest[at..].starts_with("\r\n") { at + 2 } else { at + 1 };
        rest = &rest[end..];
    }
    lines.push(rest);
    lines
}

fn fault_of_prepared(own: &str, prepared: &Prepared) -> Option<String> {
    if let Some(error) = syntax_error(prepared) {
        return Some(format!("what was prepared does not parse: {error}\n{}", prepared.code));
    }
    if let Some(left) = syntax_left(prepared) {
        return Some(format!("{left} was left, which not every Node has:\n{}", prepared.code));
    }
    let outside = prepared.imports.iter().find(|import| own.get(import.range.clone()).is_none());
    if let Some(import) = outside {
        return Some(format!("the import of {} is outside of the text: {:?}", import.package, import.range));
    }
    let unnamed = prepared.imports.iter().find(|import| !prepared.packages.contains(&import.package));
    if let Some(import) = unnamed {
        return Some(format!("{} is imported, and not among {:?}", import.package, prepared.packages));
    }
    match &prepared.source_map {
        Some(map) => fault_of_map(own, prepared, map),
        None => fault_of_offsets(own, prepared),
    }
}

/// Untransformed, the user's lines are lines of the code, where they were.
fn fault_of_offsets(own: &str, prepared: &Prepared) -> Option<String> {
    let (code, user) = (lines(&prepared.code), lines(own));
    if prepared.line_offset != 0 || code.len() < user.len() {
        return Some(format!("{} lines became {}", user.len(), code.len()));
    }
    let first = code[0].encode_utf16().count();
    let offset = usize::try_from(prepared.column_offset).ok();
    if offset.is_none_or(|offset| offset > first) {
        return Some(format!("{} columns before the first", prepared.column_offset));
    }
    let moved = (1..user.len()).find(|&line| !has_in_order(code[line], user[line]));
    moved.map(|line| format!("line {} is another one: {}", line + 1, code[line]))
}

/// Whether `code` is `user` with something put in.
fn has_in_order(code: &str, user: &str) -> bool {
    let mut left = code.chars();
    user.chars().all(|wanted| left.any(|found| found == wanted))
}

fn fault_of_map(own: &str, prepared: &Prepared, json: &str) -> Option<String> {
    let map = match SourceMap::from_json_string(json) {
        Ok(map) => map,
        Err(error) => return Some(format!("no source map: {error}")),
    };
    let (code, user) = (widths(&prepared.code), widths(own));
    let within = |widths: &[usize], line: u32, column: u32| {
        widths.get(line as usize).is_some_and(|&width| column as usize <= width)
    };
    let outside = map.get_tokens().find(|token| {
        let leads = token.get_source_id().is_some();
        !within(&code, token.get_dst_line(), token.get_dst_col())
            || leads && !within(&user, token.get_src_line(), token.get_src_col())
    });
    outside.map(|token| {
        let (line, column) = (token.get_dst_line(), token.get_dst_col());
        let (to_line, to_column) = (token.get_src_line(), token.get_src_col());
        format!("{line}:{column} of the code leads to {to_line}:{to_column}, outside of\n{}", prepared.code)
    })
}

/// UTF-16 units of each line, as V8 counts lines: it ends them at more than editors do.
fn widths(text: &str) -> Vec<usize> {
    let text = text.replace("\r\n", "\n");
    let lines = text.split(['\n', '\r', '\u{2028}', '\u{2029}']);
    lines.map(|line| line.encode_utf16().count()).collect()
}

/// What is lowered must be gone.
fn syntax_left(prepared: &Prepared) -> Option<&'static str> {
    let allocator = Allocator::default();
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let parsed =
        Parser::new(&allocator, &prepared.code, source_type(prepared.kind)).with_options(options).parse();
    let mut left = Left(None);
    left.visit_program(&parsed.program);
    left.0
}

struct Left(Option<&'static str>);

impl<'a> Visit<'a> for Left {
    fn visit_decorator(&mut self, _decorator: &Decorator<'a>) {
        self.0 = Some("a decorator");
    }

    fn visit_accessor_property(&mut self, _accessor: &AccessorProperty<'a>) {
        self.0 = Some("an `accessor`");
    }

    fn visit_variable_declaration(&mut self, variables: &VariableDeclaration<'a>) {
        if matches!(variables.kind, VariableDeclarationKind::Using | VariableDeclarationKind::AwaitUsing) {
            self.0 = Some("a `using`");
        }
        walk::walk_variable_declaration(self, variables);
    }
}

fn source_type(kind: Kind) -> SourceType {
    match kind {
        Kind::Script => SourceType::script(),
        Kind::Module => SourceType::mjs(),
    }
}

fn syntax_error(prepared: &Prepared) -> Option<String> {
    let allocator = Allocator::default();
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let parsed =
        Parser::new(&allocator, &prepared.code, source_type(prepared.kind)).with_options(options).parse();
    parsed.diagnostics.first().map(ToString::to_string)
}
