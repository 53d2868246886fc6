//! Text → tree. One text can be read in more than one way; see [`Reading`].

use std::ops::Range;

use oxc_allocator::Allocator;
use oxc_ast::ast::{Program, Statement};
use oxc_diagnostics::OxcDiagnostic;
use oxc_parser::{ParseOptions, Parser, ParserReturn};
use oxc_semantic::{Scoping, SemanticBuilder};
use oxc_span::{SourceType, Span};

use super::Kind;
use super::decorators;
use super::diagnostic::{EXPECTED, Fault};
use super::facts::Facts;
use super::named;

/// What the text is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// Without JSX, as Node reads it.
    JavaScript,
    /// Without JSX.
    TypeScript,
    /// TypeScript with JSX.
    Tsx,
}

/// What is put around the text to read it. Places in the tree count the prefix, see [`Tree::range`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Nothing: a program.
    Program,
    /// `void` before: a value, though it starts with `{`.
    Value,
    /// Braces around: the inside of an object, `async execute() {}`.
    Members,
    /// A class around: as `Members`, but a `;` may follow.
    ClassMembers,
}

impl Reading {
    /// In the order in which they are tried.
    pub(super) const ALL: [Self; 4] = [Self::Program, Self::Value, Self::Members, Self::ClassMembers];

    const fn around(self) -> (&'static str, &'static str) {
        match self {
            Self::Program => ("", ""),
            Self::Value => ("void ", ""),
            Self::Members => ("({", "\n})"),
            Self::ClassMembers => ("(class{", "\n})"),
        }
    }

    /// Bytes before the text.
    #[expect(clippy::cast_possible_truncation, reason = "a prefix has a few bytes")]
    pub(super) const fn base(self) -> u32 {
        self.around().0.len() as u32
    }
}

/// A text without syntax errors.
pub(super) struct Tree<'a> {
    pub(super) program: &'a mut Program<'a>,
    pub(super) scoping: Scoping,
    pub(super) facts: Facts,
    pub(super) kind: Kind,
    /// Of what kind decorators in it are.
    pub(super) decorators: decorators::Kind,
    pub(super) language: Language,
    pub(super) reading: Reading,
    /// Length of the user's text in bytes.
    pub(super) length: u32,
}

impl Tree<'_> {
    /// Where `span` is in the user's text.
    pub(super) fn range(&self, span: Span) -> Range<usize> {
        range(span, self.reading)
    }

    /// Whether `name` is used and nowhere declared.
    pub(super) fn is_free(&self, name: &str) -> bool {
        self.scoping.root_unresolved_references().keys().any(|free| free.as_str() == name)
    }
}

/// Reads `text`. On failure: how far the reading came (bytes of the text), and what is wrong there.
pub(super) fn parse<'a>(
    allocator: &'a Allocator,
    text: &str,
    language: Language,
    reading: Reading,
) -> Result<Tree<'a>, (usize, Fault)> {
    let (before, after) = reading.around();
    let padded: &'a str = allocator.alloc_concat_strs_array([before, text, after]);
    let any = match language {
        Language::JavaScript => SourceType::unambiguous(),
        Language::TypeScript => SourceType::ts(),
        Language::Tsx => SourceType::tsx(),
    };
    let (parsed, scoping, mut errors) = check(allocator, padded, any);
    let awaits =
        |scoping: &Scoping| scoping.root_unresolved_references().keys().any(|name| name.as_str() == "await");
    let (program, scoping) = match (parsed, scoping) {
        // `await (x)` at the top level is a call in a script, and `for await` an error; both are fine in a module.
        (Some(program), Some(scoping)) if errors.is_empty() && !awaits(&scoping) => (program, scoping),
        first => match check(allocator, padded, any.with_module(true)) {
            (Some(program), Some(scoping), module_errors) if module_errors.is_empty() => (program, scoping),
            _ => match first {
                (Some(program), Some(scoping)) if errors.is_empty() => (program, scoping),
                (program, _) => return Err(fault(text, reading, program.is_some(), errors.swap_remove(0))),
            },
        },
    };
    let facts = Facts::of(program);
    if language == Language::JavaScript && facts.typescript_only {
        let error = Fault::refused("SyntaxError: The code has syntax of TypeScript", 0..0);
        return Err((text.len(), error));
    }
    if let Some((message, span)) = &facts.unsupported {
        return Err((
            text.len(),
            Fault { message: message.clone(), range: range(*span, reading), help: String::new() },
        ));
    }
    let kind = kind_of(program);
    let decorators = match decorators::kind_of(program) {
        _ if !facts.decorators => decorators::Kind::Standard,
        Ok(kind) => kind,
        Err((standard, legacy)) => {
            return Err((text.len(), two_kinds(text, range(standard, reading), range(legacy, reading))));
        }
    };
    let length = u32::try_from(text.len()).expect("texts are limited");
    Ok(Tree { program, scoping, facts, kind, decorators, language, reading, length })
}

/// Decorators of both kinds in one text.
fn two_kinds(text: &str, standard: Range<usize>, legacy: Range<usize>) -> Fault {
    let line = |at: usize| text[..text.floor_char_boundary(at)].matches('\n').count() + 1;
    let message = format!(
        "The decorators are of two kinds: the standard ones of `(value, context)` on line {}, and the older ones of `(target, key, descriptor)` on line {}",
        line(standard.start),
        line(legacy.start)
    );
    let help = "Help: Write all of them in one way, or say with a comment `// @experimentalDecorators` that the older kind is meant, with `// @experimentalDecorators false` that the standard one is";
    Fault { message, range: legacy, help: help.to_owned() }
}

type Checked<'a> = (Option<&'a mut Program<'a>>, Option<Scoping>, Vec<OxcDiagnostic>);

/// Parses, resolves names and checks all early errors.
fn check<'a>(allocator: &'a Allocator, text: &'a str, source_type: SourceType) -> Checked<'a> {
    let options = ParseOptions { parse_regular_expression: true, ..ParseOptions::default() };
    let ParserReturn { program, diagnostics, irregular_whitespaces, panicked, .. } =
        Parser::new(allocator, text, source_type).with_options(options).parse();
    let mut errors = diagnostics.into_vec();
    if panicked {
        // The last one ended the parse; those before it are often its first signs.
        errors.reverse();
        return (None, None, errors);
    }
    drop_nameless_function(&program, &mut errors);
    errors.extend(irregular_whitespaces.iter().filter_map(|span| no_blank(text, *span)));
    let program = allocator.alloc(program);
    if !errors.is_empty() {
        return (Some(program), None, errors);
    }
    let (scoping, errors) = resolve(program);
    (Some(program), Some(scoping), errors)
}

/// Zero-width characters pass the parser as blanks; Node knows them as none.
fn no_blank(text: &str, span: Span) -> Option<OxcDiagnostic> {
    let character = text.get(span.start as usize..)?.chars().next()?;
    matches!(character, '\u{180e}' | '\u{200b}')
        .then(|| OxcDiagnostic::error("Invalid or unexpected token").with_label(span))
}

/// What is wrong with code that is to run as `kind`. The parser lets some things pass in a text of which the code, with what was
/// put around it, is the clearer view: `export` behind a label, modifiers of TypeScript on a method.
///
/// Of what is sound, gives the comment that goes behind it; see `named.rs`.
pub(super) fn last_look(allocator: &Allocator, code: &str, kind: Kind) -> Result<String, OxcDiagnostic> {
    let source_type = match kind {
        Kind::Script => SourceType::script(),
        Kind::Module => SourceType::mjs(),
    };
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let code: &str = allocator.alloc_str(code);
    let parsed = Parser::new(allocator, code, source_type).with_options(options).parse();
    match parsed.diagnostics.into_vec().into_iter().next() {
        Some(error) => Err(error),
        None if kind == Kind::Module => Ok(named::comment(&parsed.program, code)),
        None => Ok(String::new()),
    }
}

/// Names of a program, and the early errors that need them.
fn resolve(program: &Program<'_>) -> (Scoping, Vec<OxcDiagnostic>) {
    let checked = SemanticBuilder::new_compiler().with_enum_eval(true).build(program);
    (checked.semantic.into_scoping(), checked.diagnostics.into_vec())
}

/// `function ({ a }) { … }` as a statement lacks a name, which the parser tells and survives. As the tool it needs none.
fn drop_nameless_function(program: &Program<'_>, errors: &mut Vec<OxcDiagnostic>) {
    let mut nameless = program.body.iter().filter_map(|statement| match statement {
        Statement::FunctionDeclaration(function) if function.id.is_none() => Some(function.params.span.start),
        _ => None,
    });
    let (Some(parameters), None, [error]) = (nameless.next(), nameless.next(), errors.as_slice()) else {
        return;
    };
    let about_it = error.labels.first().is_some_and(|label| label.offset() <= parameters);
    if about_it && error.message.starts_with("Expected function name") {
        errors.clear();
    }
}

/// `export =` makes a TypeScript file a module for the parser; what it means is `module.exports =`.
fn kind_of(program: &Program<'_>) -> Kind {
    let assigns = program.body.iter().any(|statement| matches!(statement, Statement::TSExportAssignment(_)));
    if program.source_type.is_module() && !assigns { Kind::Module } else { Kind::Script }
}

fn range(span: Span, reading: Reading) -> Range<usize> {
    let of_text = |at: u32| at.saturating_sub(reading.base()) as usize;
    of_text(span.start)..of_text(span.end)
}

/// `whole`: the parser came to the end in spite of the error.
fn fault(text: &str, reading: Reading, whole: bool, error: OxcDiagnostic) -> (usize, Fault) {
    let inner = error.inner_owned();
    let label = inner.labels.first();
    let (start, length) = label.map_or((0, 0), |label| (label.offset() as usize, label.len() as usize));
    let at = |offset: usize| offset.saturating_sub(reading.base() as usize).min(text.len());
    let place = at(start)..at(start + length);
    let mut help = inner.help.map(|help| format!("Help: {help}")).unwrap_or_default();
    if inner.message.contains("'return' statement") {
        EXPECTED.clone_into(&mut help);
    }
    let progress = if whole { text.len() } else { place.start };
    (progress, Fault { message: format!("SyntaxError: {}", inner.message), range: place, help })
}
