//! TypeScript, JSX, and JavaScript that not every Node has → JavaScript that all have, and a source map to the user's text.

use std::path::{Path, PathBuf};

use oxc_allocator::Allocator;
use oxc_codegen::{Codegen, CodegenOptions};
use oxc_diagnostics::OxcDiagnostic;
use oxc_parser::{ParseOptions, Parser};
use oxc_semantic::SemanticBuilder;
use oxc_sourcemap::{SourceMap, SourceMapBuilder};
use oxc_span::SourceType;
use oxc_str::Ident;
use oxc_transformer::{HelperLoaderMode, JsxRuntime, TransformOptions, Transformer};

use super::decorators;
use super::diagnostic::Fault;
use super::facts::Facts;
use super::parse::{Language, Tree};
use super::using;
use super::wrap::{Wrapped, epilogue_line, helpers};
use super::{Kind, Prepared, imports};

/// The name of the user's text in the source map.
const SOURCE_NAME: &str = "tool";

/// Transforms the wrapped text. The tool was found in the tree of the bare text, which this leaves alone.
pub(super) fn transform(
    allocator: &Allocator,
    text: &str,
    tree: &Tree<'_>,
    wrapped: &Wrapped,
) -> Result<Prepared, Fault> {
    let code = allocator.alloc_str(&wrapped.code(text));
    let any = match tree.language {
        Language::JavaScript => SourceType::mjs(),
        Language::TypeScript => SourceType::ts(),
        Language::Tsx => SourceType::tsx(),
    };
    let source_type = if tree.kind == Kind::Module { any.with_module(true) } else { any.with_script(true) };
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let parsed = Parser::new(allocator, code, source_type).with_options(options).parse();
    let fault = |error: &OxcDiagnostic| fault(error, wrapped);
    if let Some(error) = parsed.diagnostics.first() {
        return Err(fault(error));
    }
    let mut program = parsed.program;
    if tree.facts.using {
        using::out_of_loops(allocator, &mut program);
    }
    if tree.facts.accessors || tree.facts.decorators && tree.decorators == decorators::Kind::Standard {
        decorators::lower(allocator, &mut program, tree.decorators).map_err(|(message, span)| {
            let range = wrapped.user_offset(span.start as usize)..wrapped.user_offset(span.end as usize);
            Fault { message, range, help: String::new() }
        })?;
    }
    // The transform makes symbols of its own: room for them at once is its authors' advice.
    let semantic = SemanticBuilder::new().with_excess_capacity(2.0).with_enum_eval(true).build(&program);
    let scoping = semantic.semantic.into_scoping();
    let options = options_for(tree, text);
    let transformed = Transformer::new(allocator, Path::new(SOURCE_NAME), &options)
        .build_with_scoping(scoping, &mut program);
    if let Some(error) = transformed.diagnostics.errors().next() {
        return Err(fault(error));
    }
    if tree.facts.decorators && tree.decorators == decorators::Kind::Legacy {
        decorators::statics_last(&mut program);
    }
    let options =
        CodegenOptions { source_map_path: Some(PathBuf::from(SOURCE_NAME)), ..CodegenOptions::default() };
    let facts = Facts::of(&program);
    let generated = Codegen::new().with_options(options).build(&program);
    let (code, moved) = with_helpers(generated.code, &helpers(tree));
    let source_map = generated.map.map(|map| to_user(&map, text, wrapped, moved));
    Ok(Prepared {
        kind: tree.kind,
        code,
        line_offset: 0,
        column_offset: 0,
        source_map,
        packages: facts.packages(),
        imports: imports(tree, &facts),
        code_digest: None,
        names_own_root: false,
    })
}

fn options_for(tree: &Tree<'_>, text: &str) -> TransformOptions {
    let mut options = TransformOptions::default();
    options.decorator.legacy = tree.decorators == decorators::Kind::Legacy;
    // Metadata name types as values, so that what is imported as a type would have to be there.
    options.decorator.emit_decorator_metadata =
        text.contains("reflect-metadata") || text.contains("Reflect.");
    options.env.es2026.explicit_resource_management = tree.facts.using;
    options.helper_loader.mode = HelperLoaderMode::External;
    let react = tree.scoping.get_root_binding(Ident::from("React")).is_some();
    options.jsx.runtime = if react { JsxRuntime::Classic } else { JsxRuntime::Automatic };
    options
}

fn fault(error: &OxcDiagnostic, wrapped: &Wrapped) -> Fault {
    let label = error.labels.first();
    let (start, length) = label.map_or((0, 0), |label| (label.offset() as usize, label.len() as usize));
    let help = error.help.as_ref().map(|help| format!("Help: {help}")).unwrap_or_default();
    let message = format!("SyntaxError: {}", error.message);
    Fault { message, range: wrapped.user_offset(start)..wrapped.user_offset(start + length), help }
}

/// Puts the helpers on the first line of `code` that is no directive. Gives that line, and how far its columns moved.
fn with_helpers(mut code: String, helpers: &str) -> (String, (u32, u32)) {
    const STRICT: &str = "\"use strict\";\n";
    let at = if code.starts_with(STRICT) { STRICT.len() } else { 0 };
    code.insert_str(at, helpers);
    (code, (u32::from(at > 0), u32::try_from(helpers.len()).unwrap_or(u32::MAX)))
}

/// `map` leads to the wrapped text; the result leads to the user's.
fn to_user(map: &SourceMap<'_>, text: &str, wrapped: &Wrapped, moved: (u32, u32)) -> String {
    let marks = wrapped.marks(text);
    let epilogue = epilogue_line(text);
    let mut builder = SourceMapBuilder::default();
    let source = builder.add_source_and_content(SOURCE_NAME, "");
    for token in map.get_tokens() {
        let line = token.get_src_line();
        let own = token.get_source_id().is_some() && line < epilogue;
        let to_column = token.get_dst_col() + if token.get_dst_line() == moved.0 { moved.1 } else { 0 };
        let column = if own { wrapped.user_column(&marks, line, token.get_src_col()) } else { None };
        match column {
            Some(column) => {
                builder.add_token(token.get_dst_line(), to_column, line, column, Some(source), None);
            }
            None => builder.add_token(token.get_dst_line(), to_column, 0, 0, None, None),
        }
    }
    let mut map = builder.into_sourcemap();
    map.set_source_contents(vec![None]);
    map.to_json_string()
}
