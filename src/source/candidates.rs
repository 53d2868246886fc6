//! Which top-level names could be the tool, and which of them the rest of the text uses: a function that other code calls is a helper.

use std::collections::HashMap;

use oxc_ast::ast::{
    Argument, ArrowFunctionExpression, AssignmentExpression, AssignmentTarget, BindingPattern, Class,
    ClassElement, Declaration, ExportNamedDeclaration, Expression, FormalParameters, Function,
    IdentifierReference, ImportDeclarationSpecifier, ModuleExportName, Program, Statement, TSType,
    VariableDeclaration, VariableDeclarator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_semantic::{Scoping, SymbolId};
use oxc_span::Span;
use oxc_str::Ident;
use oxc_syntax::scope::ScopeFlags;

use super::classify::{
    KEYS, Members, PREFERRED, Value, is_nothing, root_of, value_of_function, value_of_literal,
};
use super::parse::Tree;

/// Something named at the top level that could be the tool.
#[derive(Debug)]
pub(super) struct Candidate<'t> {
    pub(super) name: &'t str,
    pub(super) span: Span,
    pub(super) what: What,
    pub(super) exported: bool,
    /// What it is called from outside: the exported name, or else its own.
    pub(super) called: &'t str,
    /// A function without parameters.
    pub(super) takes_nothing: bool,
    /// Who refers to it, other than itself.
    pub(super) use_: Use,
    /// Something else that is exported uses it.
    pub(super) serves: bool,
    /// A function that seems to only show how this other one is used: `main()` that calls it with arguments of its own.
    pub(super) shows: Option<&'t str>,
}

/// What a candidate is, as far as its declaration tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// A function that nothing is ever assigned to again.
    Function {
        is_async: bool,
    },
    /// A value that functions of the text went into: `withRetry(async () => …)`, `new Tool()`, an object with `execute`.
    Made,
    /// A value that running the code has to tell: a call, a member, an awaited value.
    Open,
    /// A class with a method that could be the tool, or something else that can never be one.
    Class,
    Generator,
    Several,
}

/// Who refers to a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    None,
    /// Only the last statement, or calls of `console`: an example of its use.
    Shown,
    /// Statements and variables.
    Run,
    /// Functions or classes.
    Code,
}

impl Candidate<'_> {
    pub(super) fn is_function(&self) -> bool {
        matches!(self.what, What::Function { .. })
    }

    /// Whether it could be the tool as much as a function without a name: nothing uses it, and it is exported or has a preferred name.
    pub(super) fn rivals(&self) -> bool {
        self.use_ == Use::None
            && matches!(self.what, What::Function { .. } | What::Made)
            && (self.exported || PREFERRED.contains(&self.called))
    }

    /// Nothing needs it but an example.
    pub(super) fn stands_alone(&self) -> bool {
        self.use_ <= Use::Shown
    }
}

/// All candidates of a text, in its order.
pub(super) fn gather<'t, 'a>(tree: &'t Tree<'a>) -> Vec<Candidate<'t>> {
    let program: &'t Program<'a> = tree.program;
    let gather = Gather { tree, program };
    let mut found: Vec<(Candidate<'t>, Option<SymbolId>)> = Vec::new();
    for statement in &program.body {
        gather.statement(statement, &mut found);
    }
    for statement in &program.body {
        if let Statement::ExportNamedDeclaration(export) = statement {
            gather.mark_exported(export, &mut found);
        }
    }
    if !found.is_empty() {
        let uses = gather.uses();
        for (candidate, symbol) in &mut found {
            candidate.use_ = symbol.and_then(|symbol| uses.found.get(&symbol)).copied().unwrap_or(Use::None);
        }
        for index in 0..found.len() {
            found[index].0.shows = shown_by(index, &found, &uses.pairs);
            let own = found[index].1;
            found[index].0.serves = found.iter().any(|(other, symbol)| {
                other.exported
                    && matches!((symbol, own), (Some(by), Some(own)) if uses.pairs.contains(&(*by, own)))
            });
        }
    }
    found.into_iter().map(|(candidate, _)| candidate).collect()
}

/// Names of functions that call the tool and are not it, if the text calls them.
const DRIVERS: [&str; 5] = ["cli", "init", "main", "run", "start"];

/// Names, at their starts, of functions that call the tool and are not it.
const EXAMPLES: [&str; 5] = ["demo", "example", "sample", "test", "usage"];

/// The function that candidate `index` only shows the use of, if it does.
fn shown_by<'t>(index: usize, found: &Found<'t>, pairs: &[(SymbolId, SymbolId)]) -> Option<&'t str> {
    let (candidate, symbol) = &found[index];
    let name = candidate.name.to_ascii_lowercase();
    let drives = DRIVERS.contains(&&*name) && candidate.use_ > Use::None
        || EXAMPLES.iter().any(|start| name.starts_with(start));
    if !candidate.is_function() || !candidate.takes_nothing || !drives {
        return None;
    }
    let user = (*symbol)?;
    let shown = found.iter().find(|(other, other_symbol)| {
        other.is_function()
            && !other.takes_nothing
            && other_symbol.is_some_and(|used| pairs.contains(&(user, used)))
    });
    shown.map(|(other, _)| other.name)
}

struct Gather<'t, 'a> {
    tree: &'t Tree<'a>,
    program: &'t Program<'a>,
}

type Found<'t> = Vec<(Candidate<'t>, Option<SymbolId>)>;

impl<'t, 'a> Gather<'t, 'a> {
    fn statement(&self, statement: &'t Statement<'a>, found: &mut Found<'t>) {
        match statement {
            Statement::FunctionDeclaration(function) => self.function(function, false, found),
            Statement::VariableDeclaration(variables) => self.variables(variables, false, found),
            Statement::ClassDeclaration(class) => Self::class(class, false, found),
            Statement::ExportDeclaration(export) => match &export.declaration {
                Declaration::FunctionDeclaration(function) => self.function(function, true, found),
                Declaration::VariableDeclaration(variables) => self.variables(variables, true, found),
                Declaration::ClassDeclaration(class) => Self::class(class, true, found),
                _ => {}
            },
            _ => {}
        }
    }

    fn push(
        name: &'t str,
        span: Span,
        symbol: Option<SymbolId>,
        what: What,
        exported: bool,
        found: &mut Found<'t>,
    ) {
        let candidate = Candidate {
            name,
            span,
            what,
            exported,
            called: name,
            takes_nothing: false,
            use_: Use::None,
            serves: false,
            shows: None,
        };
        found.push((candidate, symbol));
    }

    /// Notes on the candidate found last whether it is a function without parameters.
    fn note_parameters(parameters: &FormalParameters<'a>, found: &mut Found<'t>) {
        if let Some((candidate, _)) = found.last_mut() {
            candidate.takes_nothing = parameters.items.is_empty() && parameters.rest.is_none();
        }
    }

    fn function(&self, function: &'t Function<'a>, exported: bool, found: &mut Found<'t>) {
        let (Some(id), Some(_)) = (&function.id, &function.body) else { return };
        let symbol = id.symbol_id.get();
        let what = match value_of_function(function) {
            Value::Function { .. } if self.is_assigned(symbol) => What::Made,
            Value::Function { is_async } => What::Function { is_async },
            _ => What::Generator,
        };
        Self::push(id.name.as_str(), id.span, symbol, what, exported, found);
        Self::note_parameters(&function.params, found);
    }

    fn class(class: &'t Class<'a>, exported: bool, found: &mut Found<'t>) {
        let Some(id) = &class.id else { return };
        if has_tool_method(class) {
            Self::push(id.name.as_str(), id.span, id.symbol_id.get(), What::Class, exported, found);
        }
    }

    fn variables(&self, variables: &'t VariableDeclaration<'a>, exported: bool, found: &mut Found<'t>) {
        if variables.declare {
            return;
        }
        for variable in &variables.declarations {
            let BindingPattern::BindingIdentifier(id) = &variable.id else {
                self.pattern(variable, exported, found);
                continue;
            };
            let symbol = id.symbol_id.get();
            let what = match variable.init.as_ref() {
                None => self.assigned_later(symbol),
                Some(init) => self.what_of(init, symbol, id.name.as_str(), exported),
            };
            if let Some(what) = what {
                Self::push(id.name.as_str(), id.span, symbol, what, exported, found);
                match variable.init.as_ref().map(Expression::get_inner_expression) {
                    Some(Expression::ArrowFunctionExpression(arrow)) => {
                        Self::note_parameters(&arrow.params, found);
                    }
                    Some(Expression::FunctionExpression(function)) => {
                        Self::note_parameters(&function.params, found);
                    }
                    _ => {}
                }
            }
        }
    }

    /// `const { execute } = createTool(…)`.
    fn pattern(&self, variable: &'t VariableDeclarator<'a>, exported: bool, found: &mut Found<'t>) {
        let mut names = Names(Vec::new());
        names.visit_binding_pattern(&variable.id);
        let made = variable.init.as_ref().is_some_and(|init| self.is_made(init));
        for (name, span, symbol) in names.0 {
            let Some(name) = self
                .program
                .source_text
                .get(span.start as usize..span.end as usize)
                .filter(|own| *own == name)
            else {
                continue;
            };
            if exported || (KEYS.contains(&name) && !variable.init.as_ref().is_some_and(loads)) {
                let what = if made { What::Made } else { What::Open };
                Self::push(name, span, symbol, what, exported, found);
            }
        }
    }

    fn what_of(
        &self,
        init: &'t Expression<'a>,
        symbol: Option<SymbolId>,
        name: &str,
        exported: bool,
    ) -> Option<What> {
        let value = match init.get_inner_expression() {
            Expression::Identifier(alias) => self.value_of_alias(alias),
            _ => value_of_literal(init),
        };
        Some(match value {
            Value::Function { is_async } if !self.is_assigned(symbol) => What::Function { is_async },
            Value::Function { .. } | Value::Object(Members::One) => What::Made,
            Value::Object(Members::MaybeOne) | Value::Unknown if self.is_made(init) => What::Made,
            Value::Unknown
                if !exported
                    && !KEYS.contains(&name)
                    && matches!(init.get_inner_expression(), Expression::Identifier(alias)
                        if !self.symbol_of(alias).is_some_and(|symbol| self.names_function(symbol))) =>
            {
                return None;
            }
            // What is only loaded is no tool unless it is said to be one.
            Value::Unknown if !exported && !KEYS.contains(&name) && loads(init) => return None,
            Value::Object(Members::MaybeOne) | Value::Unknown => What::Open,
            Value::Generator => What::Generator,
            Value::Object(Members::Several) if exported => What::Several,
            Value::Class => match init.get_inner_expression() {
                Expression::ClassExpression(class) if has_tool_method(class) => What::Class,
                _ => return None,
            },
            Value::Object(_) | Value::Data(_) => return self.assigned_later(symbol),
        })
    }

    fn value_of_alias(&self, alias: &IdentifierReference<'a>) -> Value {
        let own = self.symbol_of(alias);
        let functions = self.program.body.iter().filter_map(|statement| match statement {
            Statement::FunctionDeclaration(function) => Some(function),
            _ => None,
        });
        for function in functions {
            if own.is_some() && function.id.as_ref().and_then(|id| id.symbol_id.get()) == own {
                return value_of_function(function);
            }
        }
        Value::Unknown
    }

    /// A variable that gets a function, or what one goes into, in a statement of its own, be it in a block, an `if` or a `try`.
    fn assigned_later(&self, symbol: Option<SymbolId>) -> Option<What> {
        let mut assigned = Assigned { gather: self, symbol: symbol?, what: None };
        for statement in &self.program.body {
            assigned.visit_statement(statement);
        }
        assigned.what
    }

    fn is_assigned(&self, symbol: Option<SymbolId>) -> bool {
        symbol.is_some_and(|symbol| self.tree.scoping.symbol_is_mutated(symbol))
    }

    /// Whether functions of the text go into the value: as an argument, by a function or a class of the text that is called.
    fn is_made(&self, expression: &Expression<'a>) -> bool {
        match expression.get_inner_expression() {
            Expression::CallExpression(call) => {
                call.arguments.iter().any(|argument| self.is_functional(argument))
                    || call.callee.get_inner_expression().as_member_expression().is_some_and(|member| {
                        matches!(value_of_literal(member.object()), Value::Function { .. })
                            || self.is_made(member.object())
                    })
                    || matches!(value_of_literal(&call.callee), Value::Function { .. })
                    || self.is_made(&call.callee)
            }
            Expression::NewExpression(new) => {
                new.arguments.iter().any(|argument| self.is_functional(argument))
                    || self.is_tool_class(&new.callee)
            }
            Expression::AwaitExpression(await_) => self.is_made(&await_.argument),
            Expression::ConditionalExpression(either) => [&either.consequent, &either.alternate]
                .into_iter()
                .any(|value| self.is_made(value) || self.gives_function(value)),
            Expression::LogicalExpression(either) => [&either.left, &either.right]
                .into_iter()
                .any(|value| self.is_made(value) || self.gives_function(value)),
            Expression::SequenceExpression(list) => {
                list.expressions.last().is_some_and(|value| self.is_made(value) || self.gives_function(value))
            }
            Expression::AssignmentExpression(assignment) => {
                self.is_made(&assignment.right) || self.gives_function(&assignment.right)
            }
            // `tools.getWeather`, `[f][0]`, `new Tool().execute`.
            member => member.as_member_expression().is_some_and(|member| {
                let mut object = member.object().get_inner_expression();
                while let Some(inner) = object.as_member_expression() {
                    object = inner.object().get_inner_expression();
                }
                match object {
                    Expression::Identifier(name) => {
                        self.symbol_of(name).is_some_and(|symbol| !self.is_loaded(symbol))
                    }
                    Expression::ArrayExpression(_) | Expression::ObjectExpression(_) => true,
                    other => self.is_made(other),
                }
            }),
        }
    }

    fn is_functional(&self, argument: &Argument<'a>) -> bool {
        argument.as_expression().is_some_and(|value| self.gives_function(value))
    }

    /// A function, an object with one, or the name of a function of the text.
    fn gives_function(&self, value: &Expression<'a>) -> bool {
        match value.get_inner_expression() {
            Expression::Identifier(name) => {
                self.symbol_of(name).is_some_and(|symbol| self.names_function(symbol))
            }
            Expression::ArrayExpression(list) => list
                .elements
                .iter()
                .any(|element| element.as_expression().is_some_and(|value| self.gives_function(value))),
            Expression::ObjectExpression(object) => object.properties.iter().any(|property| match property {
                oxc_ast::ast::ObjectPropertyKind::ObjectProperty(property) => {
                    self.gives_function(&property.value)
                }
                oxc_ast::ast::ObjectPropertyKind::SpreadProperty(_) => false,
            }),
            Expression::CallExpression(_) | Expression::NewExpression(_) => self.is_made(value),
            literal => matches!(value_of_literal(literal), Value::Function { .. } | Value::Generator),
        }
    }

    fn names_function(&self, symbol: SymbolId) -> bool {
        let of_variable = |variables: &VariableDeclaration<'a>| {
            variables.declarations.iter().any(|variable| {
                let BindingPattern::BindingIdentifier(id) = &variable.id else { return false };
                id.symbol_id.get() == Some(symbol)
                    && variable.init.as_ref().is_some_and(|init| {
                        matches!(
                            value_of_literal(init),
                            Value::Function { .. } | Value::Object(Members::One | Members::Several)
                        ) || self.is_made(init)
                    })
            })
        };
        self.program.body.iter().any(|statement| match statement {
            Statement::FunctionDeclaration(function) => is(function.id.as_ref(), symbol),
            Statement::VariableDeclaration(variables) => of_variable(variables),
            Statement::ExportDeclaration(export) => match &export.declaration {
                Declaration::FunctionDeclaration(function) => is(function.id.as_ref(), symbol),
                Declaration::VariableDeclaration(variables) => of_variable(variables),
                _ => false,
            },
            _ => false,
        })
    }

    /// Whether a variable holds what `require` or `import()` gave.
    fn is_loaded(&self, symbol: SymbolId) -> bool {
        self.program.body.iter().any(|statement| match statement {
            Statement::VariableDeclaration(variables) => variables.declarations.iter().any(|variable| {
                variable.init.as_ref().is_some_and(loads)
                    && matches!(&variable.id, BindingPattern::BindingIdentifier(id) if id.symbol_id.get() == Some(symbol))
            }),
            Statement::ImportDeclaration(import) => import.specifiers.iter().flatten().any(|specifier| {
                let local = match specifier {
                    ImportDeclarationSpecifier::ImportSpecifier(specifier) => &specifier.local,
                    ImportDeclarationSpecifier::ImportDefaultSpecifier(specifier) => &specifier.local,
                    ImportDeclarationSpecifier::ImportNamespaceSpecifier(specifier) => &specifier.local,
                };
                local.symbol_id.get() == Some(symbol)
            }),
            _ => false,
        })
    }

    fn is_tool_class(&self, callee: &Expression<'a>) -> bool {
        match callee.get_inner_expression() {
            Expression::ClassExpression(_) => true,
            Expression::Identifier(name) => {
                let symbol = self.symbol_of(name);
                symbol.is_some()
                    && self.program.body.iter().any(|statement| match statement {
                        Statement::ClassDeclaration(class) => {
                            class.id.as_ref().and_then(|id| id.symbol_id.get()) == symbol
                        }
                        Statement::ExportDeclaration(export) => matches!(
                            &export.declaration,
                            Declaration::ClassDeclaration(class)
                                if class.id.as_ref().and_then(|id| id.symbol_id.get()) == symbol
                        ),
                        _ => false,
                    })
            }
            _ => false,
        }
    }

    fn symbol_of(&self, name: &IdentifierReference<'_>) -> Option<SymbolId> {
        self.tree.scoping.get_reference(name.reference_id.get()?).symbol_id()
    }

    /// `export { f, g as h }`.
    fn mark_exported(&self, export: &'t ExportNamedDeclaration<'a>, found: &mut Found<'t>) {
        if !export.export_kind.is_value() {
            return;
        }
        for specifier in &export.specifiers {
            let ModuleExportName::IdentifierReference(local) = &specifier.local else { continue };
            if !specifier.export_kind.is_value() {
                continue;
            }
            let known = found.iter_mut().find(|(candidate, _)| candidate.name == local.name.as_str());
            match known {
                Some((candidate, _)) => {
                    let called = specifier.exported.name().as_str();
                    // Exported by two names, it has the better one.
                    if !candidate.exported || PREFERRED.contains(&called) {
                        candidate.called = called;
                    }
                    candidate.exported = true;
                }
                // What is imported, loaded or destructured.
                None if self.is_value(local) => {
                    Self::push(
                        local.name.as_str(),
                        local.span,
                        self.symbol_of(local),
                        What::Open,
                        true,
                        found,
                    );
                }
                None => {}
            }
        }
    }

    /// Whether a name stands for something that only running the code can tell.
    fn is_value(&self, name: &IdentifierReference<'_>) -> bool {
        let Some(symbol) = self.symbol_of(name) else { return false };
        self.is_loaded(symbol) || {
            let mut names = Names(Vec::new());
            for statement in &self.program.body {
                if let Statement::VariableDeclaration(variables) = statement {
                    for variable in &variables.declarations {
                        if !matches!(variable.id, BindingPattern::BindingIdentifier(_)) {
                            names.visit_binding_pattern(&variable.id);
                        }
                    }
                }
            }
            names.0.iter().any(|(_, _, own)| *own == Some(symbol))
        }
    }

    /// The strongest use of each top-level name by something else.
    fn uses(&self) -> Uses<'t> {
        let mut uses = Uses {
            scoping: &self.tree.scoping,
            found: HashMap::new(),
            pairs: Vec::new(),
            user: None,
            use_: Use::None,
        };
        let last = self.program.body.iter().rposition(|statement| !is_nothing(statement));
        for (index, statement) in self.program.body.iter().enumerate() {
            uses.statement(statement, Some(index) == last);
        }
        uses
    }
}

fn is(id: Option<&oxc_ast::ast::BindingIdentifier<'_>>, symbol: SymbolId) -> bool {
    id.and_then(|id| id.symbol_id.get()) == Some(symbol)
}

/// `require(…)`, `await import(…)`, or something in what they give.
fn loads(expression: &Expression<'_>) -> bool {
    match expression.get_inner_expression() {
        Expression::AwaitExpression(await_) => loads(&await_.argument),
        Expression::ImportExpression(_) => true,
        Expression::CallExpression(call) => call.callee.is_specific_id("require"),
        other => other.as_member_expression().is_some_and(|member| loads(member.object())),
    }
}

/// Looks for what a variable is assigned outside of functions.
struct Assigned<'g, 't, 'a> {
    gather: &'g Gather<'t, 'a>,
    symbol: SymbolId,
    what: Option<What>,
}

impl<'a> Visit<'a> for Assigned<'_, '_, 'a> {
    fn visit_assignment_expression(&mut self, assignment: &AssignmentExpression<'a>) {
        let AssignmentTarget::AssignmentTargetIdentifier(name) = &assignment.left else { return };
        if self.what.is_none() && self.gather.symbol_of(name) == Some(self.symbol) {
            self.what = match value_of_literal(&assignment.right) {
                Value::Function { .. } | Value::Object(Members::One) => Some(What::Made),
                Value::Unknown if self.gather.is_made(&assignment.right) => Some(What::Made),
                Value::Unknown => Some(What::Open),
                _ => None,
            };
        }
        self.visit_expression(&assignment.right);
    }

    fn visit_function(&mut self, _function: &Function<'a>, _flags: ScopeFlags) {}

    fn visit_arrow_function_expression(&mut self, _arrow: &ArrowFunctionExpression<'a>) {}

    fn visit_class(&mut self, _class: &Class<'a>) {}
}

/// Whether an instance of the class has a method that stands for a tool.
fn has_tool_method(class: &Class<'_>) -> bool {
    let is_key =
        |key: &oxc_ast::ast::PropertyKey<'_>| key.static_name().is_some_and(|name| KEYS.contains(&&*name));
    class.body.body.iter().any(|element| match element {
        ClassElement::MethodDefinition(method) => is_key(&method.key),
        ClassElement::PropertyDefinition(property) => is_key(&property.key),
        _ => false,
    })
}

/// Names that a pattern binds.
struct Names(Vec<(String, Span, Option<SymbolId>)>);

impl<'a> Visit<'a> for Names {
    fn visit_binding_identifier(&mut self, id: &oxc_ast::ast::BindingIdentifier<'a>) {
        self.0.push((id.name.to_string(), id.span, id.symbol_id.get()));
    }

    fn visit_expression(&mut self, _default: &Expression<'a>) {}
}

/// One walk over the text, statement by statement.
struct Uses<'s> {
    scoping: &'s Scoping,
    found: HashMap<SymbolId, Use>,
    /// Which named declaration uses which.
    pairs: Vec<(SymbolId, SymbolId)>,
    /// What is being walked, if it has a name: it does not use itself.
    user: Option<SymbolId>,
    use_: Use,
}

impl Uses<'_> {
    fn by<T>(&mut self, own: Option<SymbolId>, kind: Use, walk: impl FnOnce(&mut Self) -> T) {
        (self.user, self.use_) = (own, kind);
        walk(self);
    }

    fn statement(&mut self, statement: &Statement<'_>, last: bool) {
        match statement {
            Statement::ExportDeclaration(export) => self.declaration(&export.declaration),
            Statement::FunctionDeclaration(_)
            | Statement::VariableDeclaration(_)
            | Statement::ClassDeclaration(_) => {
                if let Some(declaration) = statement.as_declaration() {
                    self.declaration(declaration);
                }
            }
            Statement::ExportNamedDeclaration(_) | Statement::ImportDeclaration(_) => {}
            Statement::ExpressionStatement(expression) => self.expression(&expression.expression, last),
            other => {
                self.by(None, if last { Use::Shown } else { Use::Run }, |uses| uses.visit_statement(other));
            }
        }
    }

    fn declaration(&mut self, declaration: &Declaration<'_>) {
        match declaration {
            Declaration::FunctionDeclaration(function) => {
                let own = function.id.as_ref().and_then(|id| id.symbol_id.get());
                self.by(own, Use::Code, |uses| walk::walk_declaration(uses, declaration));
            }
            Declaration::ClassDeclaration(class) => {
                let own = class.id.as_ref().and_then(|id| id.symbol_id.get());
                self.by(own, Use::Code, |uses| uses.visit_class(class));
            }
            Declaration::VariableDeclaration(variables) => {
                for variable in &variables.declarations {
                    let mut names = Names(Vec::new());
                    names.visit_binding_pattern(&variable.id);
                    let own = names.0.first().and_then(|(_, _, symbol)| *symbol);
                    let code = variable.init.as_ref().is_some_and(|init| {
                        matches!(
                            value_of_literal(init),
                            Value::Function { .. } | Value::Generator | Value::Class
                        )
                    });
                    let use_ = if code { Use::Code } else { Use::Run };
                    self.by(own, use_, |uses| uses.visit_variable_declarator(variable));
                }
            }
            other => self.by(None, Use::Code, |uses| walk::walk_declaration(uses, other)),
        }
    }

    fn expression(&mut self, expression: &Expression<'_>, last: bool) {
        let shown = if last { Use::Shown } else { Use::Run };
        match expression.get_inner_expression() {
            Expression::AssignmentExpression(assignment) => {
                // `f = withLog(f)` and `f.description = '…'` say something about `f` and do not use it.
                let own = match &assignment.left {
                    AssignmentTarget::AssignmentTargetIdentifier(name) => self.symbol_of(name),
                    target => target
                        .as_member_expression()
                        .and_then(|member| root_reference(member.object()))
                        .and_then(|name| self.symbol_of(name)),
                };
                self.by(own, Use::Run, |uses| uses.visit_expression(&assignment.right));
            }
            Expression::CallExpression(call) => {
                let callee = root_of(call.callee.get_inner_expression()).map(|(name, _)| name);
                let (skip, use_) = match callee {
                    Some("__name" | "Object") => (1, Use::Run),
                    Some("console") => (0, Use::Shown),
                    _ => (0, shown),
                };
                self.by(None, use_, |uses| {
                    uses.visit_expression(&call.callee);
                    for argument in call.arguments.iter().skip(skip) {
                        uses.visit_argument(argument);
                    }
                });
            }
            other => self.by(None, shown, |uses| uses.visit_expression(other)),
        }
    }

    fn symbol_of(&self, name: &IdentifierReference<'_>) -> Option<SymbolId> {
        self.scoping.get_reference(name.reference_id.get()?).symbol_id()
    }
}

impl<'a> Visit<'a> for Uses<'_> {
    fn visit_identifier_reference(&mut self, name: &IdentifierReference<'a>) {
        let Some(symbol) = self.symbol_of(name) else { return };
        if self.user == Some(symbol) || self.scoping.symbol_scope_id(symbol) != self.scoping.root_scope_id() {
            return;
        }
        if let Some(user) = self.user {
            self.pairs.push((user, symbol));
        }
        let strongest = self.found.entry(symbol).or_insert(Use::None);
        *strongest = (*strongest).max(self.use_);
    }

    fn visit_ts_type(&mut self, _types: &TSType<'a>) {}
}

/// The name at the start of `a.b.c`.
fn root_reference<'t, 'a>(expression: &'t Expression<'a>) -> Option<&'t IdentifierReference<'a>> {
    let mut expression = expression.get_inner_expression();
    loop {
        match expression {
            Expression::Identifier(name) => return Some(name),
            other => expression = other.as_member_expression()?.object().get_inner_expression(),
        }
    }
}

impl Tree<'_> {
    /// Whether the text declares `name` at its top level.
    pub(super) fn declares(&self, name: &str) -> bool {
        self.scoping.get_root_binding(Ident::from(name)).is_some()
    }
}

/// The line (1-based) on which `span` starts.
pub(super) fn line_of(tree: &Tree<'_>, span: Span) -> usize {
    let text = tree.program.source_text;
    let start = tree.range(span).start + tree.reading.base() as usize;
    let before = &text[..text.floor_char_boundary(start)];
    let mut ends = before.matches(['\n', '\r']).count();
    ends -= before.matches("\r\n").count();
    ends + 1
}
