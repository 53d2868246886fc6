//! What a tree says besides its shape, gathered in one walk: which packages it names, what only TypeScript has.

use oxc_ast::ast::{
    AccessorProperty, Argument, CallExpression, Class, Decorator, ExportAllDeclaration,
    ExportFromDeclaration, Expression, ImportDeclaration, ImportExpression, ImportPhase, MethodDefinition,
    Program, PropertyDefinition, StringLiteral, TSExternalModuleReference, TemplateElement,
    VariableDeclaration, VariableDeclarationKind,
};
use oxc_ast_visit::{Visit, walk};
use oxc_span::Span;

use super::own_root;

/// Top-level names of Node's own modules that can be imported without `node:` (Node 22, `module.builtinModules`).
const BUILTINS: &[&str] = &[
    "assert",
    "async_hooks",
    "buffer",
    "child_process",
    "cluster",
    "console",
    "constants",
    "crypto",
    "dgram",
    "diagnostics_channel",
    "dns",
    "domain",
    "events",
    "fs",
    "http",
    "http2",
    "https",
    "inspector",
    "module",
    "net",
    "os",
    "path",
    "perf_hooks",
    "process",
    "punycode",
    "querystring",
    "readline",
    "repl",
    "stream",
    "string_decoder",
    "sys",
    "timers",
    "tls",
    "trace_events",
    "tty",
    "url",
    "util",
    "v8",
    "vm",
    "wasi",
    "worker_threads",
    "zlib",
];

/// Gathered by [`Facts::of`].
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Specifiers of imports and requires, as written.
    specifiers: Vec<String>,
    /// Specifiers of the `import` and `export … from` statements among them: without those modules nothing runs at all.
    statics: Vec<(String, Span)>,
    /// A `using` declaration stands somewhere: not every Node has it.
    pub(super) using: bool,
    /// What no Node runs, in a sentence, and where it is.
    pub(super) unsupported: Option<(String, Span)>,
    /// A decorator stands somewhere.
    pub(super) decorators: bool,
    /// An `accessor` stands somewhere.
    pub(super) accessors: bool,
    /// Something that the parser lets pass in JavaScript and that V8 does not know: `private x`, decorators, `accessor`.
    pub(super) typescript_only: bool,
    /// A string or a template names what only a worker with a root to itself has.
    pub(super) names_own_root: bool,
}

impl Facts {
    pub(super) fn of(program: &Program<'_>) -> Self {
        let mut facts = Self::default();
        facts.visit_program(program);
        facts
    }

    /// The packages of all specifiers, each once.
    pub(super) fn packages(&self) -> Vec<String> {
        let mut packages: Vec<String> = Vec::new();
        for package in self.specifiers.iter().filter_map(|specifier| package_of(specifier)) {
            if !packages.iter().any(|known| known == package) {
                packages.push(package.to_owned());
            }
        }
        packages
    }

    /// The packages that statements import, each once, with the place of the first specifier.
    pub(super) fn imported(&self) -> Vec<(&str, Span)> {
        let mut imported: Vec<(&str, Span)> = Vec::new();
        for (specifier, span) in &self.statics {
            if let Some(package) = package_of(specifier)
                && !imported.iter().any(|(known, _)| *known == package)
            {
                imported.push((package, *span));
            }
        }
        imported
    }

    fn name(&mut self, specifier: &str) {
        self.specifiers.push(specifier.to_owned());
    }

    fn refuse(&mut self, message: String, span: Span) {
        self.unsupported.get_or_insert((message, span));
    }

    /// Other runtimes fetch modules by URL.
    fn check_scheme(&mut self, source: &StringLiteral<'_>) {
        let specifier = source.value.as_str();
        let Some((scheme, _)) = specifier.split_once(':') else { return };
        if !matches!(scheme, "http" | "https" | "npm" | "jsr") {
            return;
        }
        let hint = match specifier.strip_prefix("npm:").and_then(package_of) {
            Some(package) => {
                let name =
                    package.get(1..).and_then(|rest| rest.find('@')).map_or(package, |at| &package[..=at]);
                format!("Import `{name}`, and declare it in the function's `dependencies`")
            }
            None => {
                "Import the package by its name, and declare it in the function's `dependencies`".to_owned()
            }
        };
        self.refuse(format!("Node does not import from `{scheme}:`. {hint}"), source.span);
    }

    fn import(&mut self, source: &StringLiteral<'_>) {
        self.check_scheme(source);
        self.name(&source.value);
        self.statics.push((source.value.to_string(), source.span));
    }

    fn name_literal(&mut self, expression: &Expression<'_>) {
        match expression.get_inner_expression() {
            Expression::StringLiteral(literal) => self.name(&literal.value),
            Expression::TemplateLiteral(template) => {
                if let Some(text) = template.single_quasi() {
                    self.name(&text);
                }
            }
            _ => {}
        }
    }
}

impl<'a> Visit<'a> for Facts {
    fn visit_import_declaration(&mut self, import: &ImportDeclaration<'a>) {
        if let Some(phase) = import.phase {
            let word = if matches!(phase, ImportPhase::Defer) { "defer" } else { "source" };
            self.refuse(
                format!("No supported Node has `import {word}`. Write `import` without `{word}`, or `await import()` where the module is needed"),
                import.span,
            );
        }
        if import.import_kind.is_value() {
            self.import(&import.source);
        }
    }

    fn visit_variable_declaration(&mut self, variables: &VariableDeclaration<'a>) {
        self.using |=
            matches!(variables.kind, VariableDeclarationKind::Using | VariableDeclarationKind::AwaitUsing);
        walk::walk_variable_declaration(self, variables);
    }

    fn visit_export_all_declaration(&mut self, export: &ExportAllDeclaration<'a>) {
        if export.export_kind.is_value() {
            self.import(&export.source);
        }
    }

    fn visit_export_from_declaration(&mut self, export: &ExportFromDeclaration<'a>) {
        if export.export_kind.is_value() {
            self.import(&export.source);
        }
    }

    fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
        self.name_literal(&import.source);
        walk::walk_import_expression(self, import);
    }

    fn visit_ts_external_module_reference(&mut self, reference: &TSExternalModuleReference<'a>) {
        self.name(&reference.expression.value);
    }

    fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
        if requires(&call.callee)
            && let Some(argument) = call.arguments.first().and_then(Argument::as_expression)
        {
            self.name_literal(argument);
        }
        walk::walk_call_expression(self, call);
    }

    fn visit_string_literal(&mut self, literal: &StringLiteral<'a>) {
        self.names_own_root |= own_root::names_place(&literal.value);
    }

    fn visit_template_element(&mut self, element: &TemplateElement<'a>) {
        self.names_own_root |= own_root::names_place(&element.value.raw);
    }

    fn visit_decorator(&mut self, decorator: &Decorator<'a>) {
        self.decorators = true;
        self.typescript_only = true;
        walk::walk_decorator(self, decorator);
    }

    fn visit_class(&mut self, class: &Class<'a>) {
        self.typescript_only |= class.r#abstract || class.declare || !class.implements.is_empty();
        walk::walk_class(self, class);
    }

    fn visit_property_definition(&mut self, property: &PropertyDefinition<'a>) {
        self.typescript_only |= property.accessibility.is_some()
            || property.declare
            || property.r#override
            || property.optional
            || property.definite
            || property.readonly
            || property.r#type.is_abstract();
        walk::walk_property_definition(self, property);
    }

    fn visit_method_definition(&mut self, method: &MethodDefinition<'a>) {
        self.typescript_only |= method.accessibility.is_some()
            || method.r#override
            || method.optional
            || method.r#type.is_abstract();
        walk::walk_method_definition(self, method);
    }

    fn visit_accessor_property(&mut self, property: &AccessorProperty<'a>) {
        self.accessors = true;
        self.typescript_only = true;
        walk::walk_accessor_property(self, property);
    }
}

/// `require` or `require.resolve`.
fn requires(callee: &Expression<'_>) -> bool {
    match callee.get_inner_expression() {
        Expression::Identifier(name) => name.name == "require",
        Expression::StaticMemberExpression(member) => {
            member.property.name == "resolve" && member.object.is_specific_id("require")
        }
        _ => false,
    }
}

/// `@scope/name` or `name` of a specifier, unless it is a path, a URL, an entry of `imports` or built into Node.
pub(crate) fn package_of(specifier: &str) -> Option<&str> {
    if specifier.is_empty() || specifier.starts_with(['.', '/', '#', '\\']) || specifier.contains(':') {
        return None;
    }
    let segments = if specifier.starts_with('@') { 2 } else { 1 };
    let end = specifier.match_indices('/').nth(segments - 1).map_or(specifier.len(), |(at, _)| at);
    let package = &specifier[..end];
    (!BUILTINS.contains(&package)).then_some(package)
}

#[cfg(test)]
mod tests {
    use super::package_of;

    #[test]
    fn specifiers_name_packages() {
        for (specifier, package) in [
            ("lodash", Some("lodash")),
            ("lodash/fp", Some("lodash")),
            ("@scope/name", Some("@scope/name")),
            ("@scope/name/deep/file.js", Some("@scope/name")),
            ("fs", None),
            ("fs/promises", None),
            ("node:test", None),
            ("./here.js", None),
            ("/abs", None),
            ("#internal", None),
            ("https://example.com/x.js", None),
            ("data:text/javascript,1", None),
            ("", None),
        ] {
            assert_eq!(package_of(specifier), package, "{specifier}");
        }
    }
}
