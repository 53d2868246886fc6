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

use super::diagnostic::Fault;
use super::facts::Facts;
use super::parse::{Language, Tree};
use super::wrap::{Wrapped, epilogue_line};
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
    // The transform makes symbols of its own: room for them at once is its authors' advice.
    let semantic = SemanticBuilder::new().with_excess_capacity(2.0).with_enum_eval(true).build(&program);
    let scoping = semantic.semantic.into_scoping();
    let options = options_for(tree, text);
    let transformed = Transformer::new(allocator, Path::new(SOURCE_NAME), &options)
        .build_with_scoping(scoping, &mut program);
    if let Some(error) = transformed.diagnostics.errors().next() {
        return Err(fault(error));
    }
    let options =
        CodegenOptions { source_map_path: Some(PathBuf::from(SOURCE_NAME)), ..CodegenOptions::default() };
    let facts = Facts::of(&program);
    let generated = Codegen::new().with_options(options).build(&program);
    let source_map = generated.map.map(|map| to_user(&map, text, wrapped));
    Ok(Prepared {
        kind: tree.kind,
        code: generated.code,
        line_offset: 0,
        column_offset: 0,
        source_map,
        packages: facts.packages(),
        imports: imports(tree, &facts),
        code_digest: None,
    })
}

fn options_for(tree: &Tree<'_>, text: &str) -> TransformOptions {
    let mut options = TransformOptions::default();
    options.decorator.legacy = true;
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

/// `map` leads to the wrapped text; the result leads to the user's.
fn to_user(map: &SourceMap<'_>, text: &str, wrapped: &Wrapped) -> String {
    let marks = wrapped.marks(text);
    let epilogue = epilogue_line(text);
    let mut builder = SourceMapBuilder::default();
    let source = builder.add_source_and_content(SOURCE_NAME, "");
    for token in map.get_tokens() {
        let line = token.get_src_line();
        let own = token.get_source_id().is_some() && line < epilogue;
        let column = if own { wrapped.user_column(&marks, line, token.get_src_col()) } else { None };
        match column {
            Some(column) => {
                builder.add_token(
                    token.get_dst_line(),
                    token.get_dst_col(),
                    line,
                    column,
                    Some(source),
                    None,
                );
            }
            None => builder.add_token(token.get_dst_line(), token.get_dst_col(), 0, 0, None, None),
        }
    }
    let mut map = builder.into_sourcemap();
    map.set_source_contents(vec![None]);
    map.to_json_string()
}
