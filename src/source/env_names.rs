//! Which environment variables code reads by name.

use std::collections::BTreeSet;

use oxc_allocator::Allocator;
use oxc_ast::ast::{
    BindingPattern, ComputedMemberExpression, Expression, StaticMemberExpression, VariableDeclarator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_parser::{ParseOptions, Parser};
use oxc_span::SourceType;

use super::Kind;

/// Names in `code`, as [`super::prepare`] made it; sorted.
pub(super) fn of(code: &str, kind: Kind) -> Vec<String> {
    // Parsing again costs more than looking for what most tools do not have.
    if !code.contains("process") {
        return Vec::new();
    }
    let allocator = Allocator::default();
    let source_type = match kind {
        Kind::Script => SourceType::cjs(),
        Kind::Module => SourceType::mjs(),
    };
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let parsed = Parser::new(&allocator, code, source_type).with_options(options).parse();
    let mut names = Names::default();
    names.visit_program(&parsed.program);
    names.0.into_iter().collect()
}

#[derive(Default)]
struct Names(BTreeSet<String>);

impl<'a> Visit<'a> for Names {
    fn visit_static_member_expression(&mut self, member: &StaticMemberExpression<'a>) {
        if is_env(&member.object) {
            self.0.insert(member.property.name.to_string());
        }
        walk::walk_static_member_expression(self, member);
    }

    fn visit_computed_member_expression(&mut self, member: &ComputedMemberExpression<'a>) {
        if is_env(&member.object)
            && let Expression::StringLiteral(name) = &member.expression
        {
            self.0.insert(name.value.to_string());
        }
        walk::walk_computed_member_expression(self, member);
    }

    fn visit_variable_declarator(&mut self, declarator: &VariableDeclarator<'a>) {
        if declarator.init.as_ref().is_some_and(is_env)
            && let BindingPattern::ObjectPattern(pattern) = &declarator.id
        {
            let names = pattern.properties.iter().filter_map(|property| property.key.static_name());
            self.0.extend(names.map(|name| name.to_string()));
        }
        walk::walk_variable_declarator(self, declarator);
    }
}

/// `process.env`, optional or not.
fn is_env(expression: &Expression<'_>) -> bool {
    match expression.get_inner_expression() {
        Expression::StaticMemberExpression(member) => {
            member.property.name == "env" && member.object.is_specific_id("process")
        }
        Expression::ChainExpression(chain) => chain.expression.as_member_expression().is_some_and(|member| {
            member.static_property_name().is_some_and(|name| name == "env")
                && member.object().is_specific_id("process")
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Runtime, env_names, prepare};

    #[test]
    fn names_are_found_however_they_are_read() {
        for (source, names) in [
            ("() => process.env.A", vec!["A"]),
            ("() => process.env['B'] ?? process?.env?.C", vec!["B", "C"]),
            ("() => { const { D, e: f = 1 } = process.env; return [D, f] }", vec!["D", "e"]),
            ("export default () => `${process.env.G}`", vec!["G"]),
            ("(name) => process.env[name] + 'process.env.H' // process.env.I", vec![]),
            ("() => 1", vec![]),
        ] {
            let prepared = prepare(source, Runtime::Node22).unwrap();
            assert_eq!(env_names(&prepared), names, "{source}");
        }
        let typed =
            prepare("(a: { k: string }): string => process.env.J! + a.k", Runtime::TypeScript).unwrap();
        assert_eq!(env_names(&typed), ["J"]);
    }
}
