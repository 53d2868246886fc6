//! Tree → what the tool is, or why there is none. The rules are in the module's documentation.

use oxc_ast::ast::{
    Argument, AssignmentTarget, BindingPattern, ClassElement, Declaration, ExportDefaultDeclarationKind,
    Expression, Function, MethodDefinitionKind, ModuleExportName, ObjectExpression, ObjectPropertyKind,
    Program, PropertyKind, Statement,
};
use oxc_span::{GetSpan, Span};

use super::candidates::{self, Candidate, Use, What};
use super::diagnostic::Fault;
use super::parse::{Reading, Tree};

/// Names that make one of several functions the tool.
pub(super) const PREFERRED: [&str; 4] = ["execute", "handler", "main", "run"];

/// Keys of an object that are taken for the tool, in this order.
pub(super) const KEYS: [&str; 7] = ["default", "execute", "handler", "main", "run", "invoke", "call"];

/// What to do where several functions could be the tool.
const CHOOSE: &str = "Call one `execute`, or end with `export default` and its name";

/// Candidates that an error names at most.
const NAMED_IN_ERROR: usize = 5;

/// Names that are followed from one to the next (`const a = b`) at most.
const MAX_ALIASES: usize = 8;

/// Where the tool is. `sure`: it is a function; else running the code has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry<'t> {
    /// A statement's expression.
    Expression {
        span: Span,
        /// End of what stands before it, if anything does.
        after: Option<u32>,
        /// Nothing stands behind it.
        last: bool,
        sure: bool,
    },
    /// A function named at the top level.
    Named { name: &'t str },
    /// The one of these values that is a function, or has the tool in it; only running the code tells which.
    Looked {
        /// The value of the last statement, and the end of what stands before it.
        last: Option<(Span, Option<u32>)>,
        named: Vec<Choice<'t>>,
        /// What is taken when none of them is one.
        otherwise: Vec<Choice<'t>>,
    },
    /// The default export; `unsure` is its expression where that has to be looked at.
    Default { unsure: Option<Span> },
    /// What the code has put into `module.exports`.
    Assigned,
    /// The text is the inside of an object, up to `end` or else to its end.
    Members { end: Option<u32> },
}

/// A name that could be the tool, and its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice<'t> {
    pub(super) name: &'t str,
    pub(super) line: usize,
}

/// Why a well-formed text is no tool.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) fault: Fault,
    /// How sure it is that the text was meant as it was read; 0 is a guess.
    pub(super) rank: usize,
}

/// What is known of a value without running anything.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Function {
        is_async: bool,
    },
    Generator,
    Class,
    /// An object, and whether it can stand for a function.
    Object(Members),
    /// Something that is never a function.
    Data(&'static str),
    Unknown,
}

/// What an object has, as far as the rule for objects asks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Members {
    One,
    MaybeOne,
    None,
    Several,
    OnlyAccessor,
    OnlyGenerator,
}

/// What a `CommonJS` assignment gives.
#[derive(Clone, Copy)]
enum Exports<'t, 'a> {
    /// All of `module.exports`.
    Whole(&'t Expression<'a>),
    /// Something in it.
    Part,
}

pub(super) fn classify<'t>(tree: &'t Tree<'_>) -> Result<Entry<'t>, Refusal> {
    match tree.reading {
        Reading::Program => Text::new(tree).entry(),
        Reading::Value => value_entry(tree),
        Reading::Members => members_entry(tree),
        Reading::ClassMembers => class_members_entry(tree),
    }
}

/// A text read as it is.
struct Text<'t, 'a> {
    tree: &'t Tree<'a>,
    body: &'t [Statement<'a>],
    candidates: Vec<Candidate<'t>>,
}

impl<'t, 'a> Text<'t, 'a> {
    fn new(tree: &'t Tree<'a>) -> Self {
        let program: &'t Program<'a> = tree.program;
        Self { tree, body: &program.body, candidates: candidates::gather(tree) }
    }

    fn entry(&self) -> Result<Entry<'t>, Refusal> {
        if let Some(entry) = self.default_export() {
            return entry;
        }
        if let Some(entry) = self.assigned_exports() {
            return entry;
        }
        if let Some(entry) = self.function_statement() {
            return entry;
        }
        if let Some(entry) = self.last_value() {
            return entry;
        }
        if !self.candidates.is_empty() {
            return self.named();
        }
        if self.tree.is_free("module") || self.tree.is_free("exports") {
            return Ok(Entry::Assigned);
        }
        self.any_value()
    }

    /// A refusal of the text as it stands.
    fn refuse<T>(&self, message: impl Into<String>, span: Span) -> Result<T, Refusal> {
        refuse(self.tree, message, span, 1)
    }

    // Rule 1.

    fn default_export(&self) -> Option<Result<Entry<'t>, Refusal>> {
        self.body.iter().find_map(|statement| match statement {
            Statement::ExportDefaultDeclaration(export) => self.default_declaration(&export.declaration),
            Statement::ExportNamedDeclaration(export) if export.export_kind.is_value() => {
                let specifier =
                    export.specifiers.iter().find(|specifier| specifier.exported.name() == "default")?;
                let value = match &specifier.local {
                    ModuleExportName::IdentifierReference(name) => {
                        self.value_of_name(&name.name, MAX_ALIASES)
                    }
                    _ => Value::Unknown,
                };
                Some(self.accept(value, specifier.span, |_| Entry::Default { unsure: None }))
            }
            Statement::ExportFromDeclaration(export) => {
                let named = export.specifiers.iter().any(|specifier| specifier.exported.name() == "default");
                named.then_some(Ok(Entry::Default { unsure: None }))
            }
            _ => None,
        })
    }

    fn default_declaration(
        &self,
        declaration: &'t ExportDefaultDeclarationKind<'a>,
    ) -> Option<Result<Entry<'t>, Refusal>> {
        let entry = |_| Entry::Default { unsure: None };
        Some(match declaration {
            ExportDefaultDeclarationKind::FunctionDeclaration(function) => {
                function.body.as_ref()?;
                self.accept(value_of_function(function), declaration.span(), entry)
            }
            ExportDefaultDeclarationKind::ClassDeclaration(class) => {
                self.accept(Value::Class, class.span, entry)
            }
            ExportDefaultDeclarationKind::TSInterfaceDeclaration(_) => return None,
            _ => {
                let expression = declaration.as_expression()?;
                let span = expression.span();
                self.accept(self.value_of(expression), span, |sure| Entry::Default {
                    unsure: (!sure).then_some(span),
                })
            }
        })
    }

    // Rule 2.

    fn assigned_exports(&self) -> Option<Result<Entry<'t>, Refusal>> {
        let exports: Vec<Exports<'t, 'a>> = self
            .body
            .iter()
            .filter_map(|statement| match statement {
                Statement::TSExportAssignment(export) => Some(Exports::Whole(&export.expression)),
                Statement::ExpressionStatement(statement) => self.exports_assignment(&statement.expression),
                _ => None,
            })
            .collect();
        match exports[..] {
            [] => None,
            [Exports::Whole(value)] => {
                Some(self.accept(self.value_of(value), value.span(), |_| Entry::Assigned))
            }
            // The object that results is looked at when it is there.
            _ => Some(Ok(Entry::Assigned)),
        }
    }

    /// What `expression` assigns to `module.exports` or to something in it.
    fn exports_assignment(&self, expression: &'t Expression<'a>) -> Option<Exports<'t, 'a>> {
        let Expression::AssignmentExpression(assignment) = expression.get_inner_expression() else {
            return None;
        };
        let value = assignment.right.get_inner_expression();
        let (root, depth) = match &assignment.left {
            AssignmentTarget::AssignmentTargetIdentifier(name) => (name.name.as_str(), 0),
            target => target.as_member_expression().and_then(|member| root_of(member.object()))?,
        };
        // `exports = module.exports = f`
        let through = self.exports_assignment(value);
        if !self.tree.is_free(root) {
            return through;
        }
        match (root, depth) {
            ("module", 1) => Some(Exports::Whole(value)),
            ("module", 2..) | ("exports", 1..) => Some(Exports::Part),
            _ => through,
        }
    }

    // Rule 3.

    fn function_statement(&self) -> Option<Result<Entry<'t>, Refusal>> {
        let found: Vec<(usize, Span, Value)> = self
            .body
            .iter()
            .enumerate()
            .filter_map(|(index, statement)| match statement {
                Statement::ExpressionStatement(statement) => match value_of_literal(&statement.expression) {
                    value @ (Value::Function { .. } | Value::Generator) => {
                        Some((index, statement.expression.span(), value))
                    }
                    _ => None,
                },
                Statement::FunctionDeclaration(function) if function.id.is_none() => {
                    Some((index, function.span, value_of_function(function)))
                }
                _ => None,
            })
            .collect();
        match found[..] {
            [] => None,
            [(index, span, value)] => {
                if let Some(other) = self.candidates.iter().find(|candidate| candidate.rivals()) {
                    let line = candidates::line_of(self.tree, span);
                    return Some(self.refuse(
                        format!(
                            "Several functions could be the tool: {}, and the function without a name on line {line}. {CHOOSE}",
                            self.list(&[other])
                        ),
                        span,
                    ));
                }
                Some(self.accept(value, span, |sure| self.expression_entry(index, span, sure)))
            }
            [_, (_, span, _), ..] => Some(self.refuse(
                format!("The text has {} functions that could be the tool; the second is here", found.len()),
                span,
            )),
        }
    }

    fn expression_entry(&self, index: usize, span: Span, sure: bool) -> Entry<'t> {
        let program: &'t Program<'a> = self.tree.program;
        let before = index.checked_sub(1).map(|before| self.body[before].span().end);
        let after = before.or_else(|| program.directives.last().map(|directive| directive.span.end));
        let last = self.body[index + 1..].iter().all(is_nothing);
        Entry::Expression { span, after, last, sure }
    }

    // Rule 4.

    fn last_value(&self) -> Option<Result<Entry<'t>, Refusal>> {
        let (index, expression) = self.last_expression()?;
        let span = expression.span();
        let accept = |value| Some(self.accept(value, span, |sure| self.expression_entry(index, span, sure)));
        let has_functions = self.candidates.iter().any(Candidate::is_function);
        match expression.get_inner_expression() {
            Expression::Identifier(_) => accept(self.value_of(expression)),
            Expression::ObjectExpression(object) => match members_of(object) {
                // `({ a: 1 })` below a function says nothing about it.
                Members::None if has_functions => None,
                members => accept(Value::Object(members)),
            },
            _ if self.candidates.is_empty() => None,
            // A class of the text, of which the tool is an instance.
            Expression::NewExpression(_) => match self.decide() {
                Ok(Decision::One(only)) if only.use_ == Use::None && only.what != What::Class => None,
                _ => accept(Value::Unknown),
            },
            _ => {
                let call = Call::of(expression)?;
                if call.callee == Some("__name") || call.callee == Some("console") {
                    return None;
                }
                let chosen = match self.decide() {
                    Ok(Decision::One(chosen)) if chosen.is_function() => chosen,
                    // Functions go into the call, so that what comes of it may be the tool.
                    Err(_) if !call.chained && (call.takes_function || call.in_place.is_some()) => {
                        return accept(Value::Unknown);
                    }
                    Err(_) if !call.chained => {
                        let called = self.candidates.iter().filter(|candidate| candidate.is_function());
                        let takes = called.clone().any(|candidate| call.arguments.contains(&candidate.name));
                        return if takes { accept(Value::Unknown) } else { None };
                    }
                    _ => return None,
                };
                if call.callee == Some(chosen.name) {
                    let is_async = chosen.what == What::Function { is_async: true };
                    if is_async || call.chained {
                        return Some(self.refuse(
                            format!("The code calls `{}` itself; the text has to be the function, and the caller calls it", chosen.name),
                            span,
                        ));
                    }
                    return accept(Value::Unknown);
                }
                if call.arguments.contains(&chosen.name) {
                    return accept(Value::Unknown);
                }
                if chosen.use_ == Use::Shown
                    && !call.chained
                    && call.in_place != Some(true)
                    && (call.in_place.is_some() || call.takes_function)
                {
                    // What an expression that uses the function gives may be the tool; else the function is.
                    let program: &'t Program<'a> = self.tree.program;
                    let before = index.checked_sub(1).map(|before| self.body[before].span().end);
                    let after =
                        before.or_else(|| program.directives.last().map(|directive| directive.span.end));
                    let otherwise = vec![self.choice(chosen)];
                    return Some(Ok(Entry::Looked {
                        last: Some((span, after)),
                        named: Vec::new(),
                        otherwise,
                    }));
                }
                None
            }
        }
    }

    fn last_expression(&self) -> Option<(usize, &'t Expression<'a>)> {
        let index = self.body.iter().rposition(|statement| !is_nothing(statement))?;
        match &self.body[index] {
            Statement::ExpressionStatement(statement) => Some((index, &statement.expression)),
            _ => None,
        }
    }

    // Rule 5.

    fn named(&self) -> Result<Entry<'t>, Refusal> {
        match self.decide()? {
            Decision::One(only) if let Some(shown) = only.shows => self.refuse(
                format!(
                    "Several functions could be the tool: {} takes no arguments, and may only show how `{shown}` is called. {CHOOSE}",
                    self.list(&[only])
                ),
                only.span,
            ),
            Decision::One(only) => match only.what {
                What::Function { .. } => Ok(Entry::Named { name: only.name }),
                What::Made | What::Open => {
                    Ok(Entry::Looked { last: None, named: vec![self.choice(only)], otherwise: Vec::new() })
                }
                What::Class => self.refuse_value(Value::Class, only.span),
                What::Generator => self.refuse_value(Value::Generator, only.span),
                What::Several => self.refuse_value(Value::Object(Members::Several), only.span),
            },
            Decision::Looked { named, otherwise } => Ok(Entry::Looked {
                last: None,
                named: named.into_iter().map(|candidate| self.choice(candidate)).collect(),
                otherwise: otherwise.into_iter().map(|candidate| self.choice(candidate)).collect(),
            }),
        }
    }

    fn choice(&self, candidate: &Candidate<'t>) -> Choice<'t> {
        Choice { name: candidate.name, line: candidates::line_of(self.tree, candidate.span) }
    }

    fn refuse_value<T>(&self, value: Value, span: Span) -> Result<T, Refusal> {
        self.refuse(why_not(value).unwrap_or_default(), span)
    }

    fn decide(&self) -> Result<Decision<'_, 't>, Refusal> {
        let weighs = |candidate: &&Candidate<'t>| candidate.exported && candidate.what != What::Open;
        let exported = self.candidates.iter().any(|candidate| weighs(&candidate));
        // A value that is exported (a schema, a client) may be the tool, and need not be: it counts in either case.
        let pool: Vec<&Candidate<'t>> =
            self.candidates.iter().filter(|candidate| candidate.exported || !exported).collect();
        let is_preferred = |candidate: &Candidate<'t>| PREFERRED.contains(&candidate.called);
        let is_firm = |candidate: &Candidate<'t>| match candidate.what {
            What::Function { .. } | What::Made | What::Class => true,
            What::Open => candidate.exported || is_preferred(candidate),
            What::Generator | What::Several => false,
        };
        // The only function that is exported may be the tool, though what is not exported uses it (a demonstration, a recursion).
        let mut functions = pool.iter().filter(|candidate| {
            matches!(candidate.what, What::Function { .. } | What::Made) && !candidate.serves
        });
        let only_function = match (exported, functions.next(), functions.next()) {
            (true, Some(only), None) => Some(only.name),
            _ => None,
        };
        let alone = || {
            let stands = |candidate: &&Candidate<'t>| {
                candidate.stands_alone() || only_function == Some(candidate.name)
            };
            pool.iter().copied().filter(stands)
        };
        let firm: Vec<&Candidate<'t>> = alone().filter(|candidate| is_firm(candidate)).collect();
        if let [only] = firm[..]
            && (only.what != What::Open || is_preferred(only))
        {
            return Ok(Decision::One(only));
        }
        let preferred =
            PREFERRED.iter().find_map(|name| firm.iter().find(|candidate| candidate.called == *name));
        if let Some(preferred) = preferred {
            return Ok(Decision::One(preferred));
        }
        let (sure, open): (Vec<_>, Vec<_>) =
            firm.iter().copied().partition(|candidate| !matches!(candidate.what, What::Made | What::Open));
        let has_class = sure.iter().any(|candidate| candidate.what == What::Class);
        if sure.len() > 1 || (has_class && firm.len() > 1) {
            return self.refuse_several(&firm);
        }
        // The only function of the text, if nothing but variables and statements uses it: its use is an example.
        let functions: Vec<&Candidate<'t>> =
            pool.iter().copied().filter(|candidate| candidate.is_function()).collect();
        let sole = match functions[..] {
            [only] if only.use_ <= Use::Run => Some(only),
            _ => None,
        };
        if !open.is_empty() {
            let only_open = open.iter().all(|candidate| candidate.what == What::Open);
            let otherwise =
                if sure.is_empty() && only_open { sole.into_iter().collect() } else { Vec::new() };
            return Ok(Decision::Looked { named: firm, otherwise });
        }
        let others: Vec<&Candidate<'t>> = alone().filter(|candidate| candidate.what == What::Open).collect();
        if !others.is_empty() {
            return Ok(Decision::Looked { named: others, otherwise: sole.into_iter().collect() });
        }
        if let Some(refused) = alone().find(|candidate| !is_firm(candidate)) {
            return Ok(Decision::One(refused));
        }
        if let Some(sole) = sole {
            return Ok(Decision::One(sole));
        }
        if functions.len() > 1 || pool.is_empty() {
            return self.refuse_several(&functions);
        }
        let helpers = self.list(&pool);
        let span = pool.last().map_or_else(Span::default, |candidate| candidate.span);
        self.refuse(
            format!("No function is left that could be the tool: other code uses {helpers}. End with `export default` and the tool's name"),
            span,
        )
    }

    fn refuse_several<T>(&self, candidates: &[&Candidate<'t>]) -> Result<T, Refusal> {
        let span = candidates.last().map_or_else(Span::default, |candidate| candidate.span);
        if candidates.is_empty() {
            return self.refuse("The text has no function", span);
        }
        let list = self.list(candidates);
        self.refuse(format!("Several functions could be the tool: {list}. {CHOOSE}"), span)
    }

    /// Names, and the lines where they are.
    fn list(&self, candidates: &[&Candidate<'t>]) -> String {
        let shown = &candidates[..candidates.len().min(NAMED_IN_ERROR)];
        let more = if candidates.len() > NAMED_IN_ERROR { ", …" } else { "" };
        let names: Vec<String> = shown.iter().map(|candidate| format!("`{}`", candidate.name)).collect();
        let lines: Vec<String> = shown
            .iter()
            .map(|candidate| candidates::line_of(self.tree, candidate.span).to_string())
            .collect();
        let word = if lines.len() == 1 { "line" } else { "lines" };
        format!("{}{more} ({word} {}{more})", names.join(", "), lines.join(", "))
    }

    // Rule 6.

    fn any_value(&self) -> Result<Entry<'t>, Refusal> {
        if let Some((index, expression)) = self.last_expression() {
            let span = expression.span();
            let value = match Call::of(expression) {
                Some(call) if call.chained => Value::Data("a promise"),
                Some(call) if call.callee == Some("console") => Value::Data("nothing"),
                _ => self.value_of(expression),
            };
            return self.accept(value, span, |sure| self.expression_entry(index, span, sure));
        }
        for statement in self.body {
            let value = match statement {
                Statement::FunctionDeclaration(function) => value_of_function(function),
                Statement::ClassDeclaration(_) => Value::Class,
                Statement::ExportDeclaration(export) => match &export.declaration {
                    Declaration::FunctionDeclaration(function) => value_of_function(function),
                    Declaration::ClassDeclaration(_) => Value::Class,
                    _ => continue,
                },
                _ => continue,
            };
            if let Value::Generator | Value::Class = value {
                return self.accept(value, statement.span(), |_| Entry::Assigned);
            }
        }
        let program: &'t Program<'a> = self.tree.program;
        match (self.body.iter().find(|statement| !is_nothing(statement)), program.directives.first()) {
            (Some(statement), _) => self
                .refuse("The text has statements, but no function that could be the tool", statement.span()),
            (None, Some(directive)) => self.refuse("The text is a string, not a function", directive.span),
            (None, None) => {
                match self.body.iter().find(|statement| !matches!(statement, Statement::EmptyStatement(_))) {
                    Some(types) => self.refuse("The text has types, but no function", types.span()),
                    None => self.refuse("The text has no code", Span::default()),
                }
            }
        }
    }

    // Values.

    /// `entry` if `value` can be a function; it is told whether that is sure.
    fn accept(
        &self,
        value: Value,
        span: Span,
        entry: impl FnOnce(bool) -> Entry<'t>,
    ) -> Result<Entry<'t>, Refusal> {
        match why_not(value) {
            Some(message) => self.refuse(message, span),
            None => Ok(entry(matches!(value, Value::Function { .. }))),
        }
    }

    fn value_of(&self, expression: &Expression<'a>) -> Value {
        self.value_within(expression, MAX_ALIASES)
    }

    fn value_within(&self, expression: &Expression<'a>, aliases: usize) -> Value {
        match expression.get_inner_expression() {
            Expression::Identifier(name) => self.value_of_name(&name.name, aliases),
            literal => value_of_literal(literal),
        }
    }

    /// The value of something declared once at the top level and never assigned again, as far as its declaration tells.
    fn value_of_name(&self, name: &str, aliases: usize) -> Value {
        if aliases == 0 {
            return Value::Unknown;
        }
        let declarations = self.body.iter().filter_map(|statement| match statement {
            Statement::ExportDeclaration(export) => Some(&export.declaration),
            statement => statement.as_declaration(),
        });
        for declaration in declarations {
            match declaration {
                Declaration::FunctionDeclaration(function)
                    if is_named(function.id.as_ref().map(|id| id.name.as_str()), name) =>
                {
                    return value_of_function(function);
                }
                Declaration::ClassDeclaration(class)
                    if is_named(class.id.as_ref().map(|id| id.name.as_str()), name) =>
                {
                    return Value::Class;
                }
                Declaration::VariableDeclaration(variables) => {
                    let same = |pattern: &BindingPattern<'a>| {
                        pattern.get_identifier_name().is_some_and(|bound| bound == name)
                    };
                    if let Some(variable) = variables.declarations.iter().find(|variable| same(&variable.id))
                    {
                        let fixed = variables.kind.is_const();
                        let value = variable
                            .init
                            .as_ref()
                            .map_or(Value::Unknown, |init| self.value_within(init, aliases - 1));
                        // What can be assigned again is at best what it looks like.
                        return if fixed || matches!(value, Value::Function { .. }) {
                            value
                        } else {
                            Value::Unknown
                        };
                    }
                }
                _ => {}
            }
        }
        match name {
            "undefined" | "NaN" | "Infinity" if self.tree.is_free(name) => Value::Data("no function"),
            _ => Value::Unknown,
        }
    }
}

/// What the names at the top level come to.
enum Decision<'c, 't> {
    One(&'c Candidate<'t>),
    /// Running the code tells.
    Looked {
        named: Vec<&'c Candidate<'t>>,
        otherwise: Vec<&'c Candidate<'t>>,
    },
}

fn is_named(own: Option<&str>, name: &str) -> bool {
    own == Some(name)
}

/// A statement that leaves nothing behind at run time.
pub(super) fn is_nothing(statement: &Statement<'_>) -> bool {
    match statement {
        Statement::EmptyStatement(_)
        | Statement::TSTypeAliasDeclaration(_)
        | Statement::TSInterfaceDeclaration(_) => true,
        Statement::FunctionDeclaration(function) => function.body.is_none(),
        _ => false,
    }
}

/// An `async function*` is a function like any other: whether somebody takes what it yields is the call's affair.
pub(super) fn value_of_function(function: &Function<'_>) -> Value {
    if function.generator && !function.r#async {
        Value::Generator
    } else {
        Value::Function { is_async: function.r#async }
    }
}

/// The value of an expression by its form alone.
pub(super) fn value_of_literal(expression: &Expression<'_>) -> Value {
    match expression.get_inner_expression() {
        Expression::ArrowFunctionExpression(arrow) => Value::Function { is_async: arrow.r#async },
        Expression::FunctionExpression(function) => value_of_function(function),
        Expression::ClassExpression(_) => Value::Class,
        Expression::ObjectExpression(object) => Value::Object(members_of(object)),
        Expression::NumericLiteral(_) | Expression::BigIntLiteral(_) => Value::Data("a number"),
        Expression::StringLiteral(_) | Expression::TemplateLiteral(_) => Value::Data("a string"),
        // A fence of Markdown reads as a template with a template for its tag.
        Expression::TaggedTemplateExpression(tagged)
            if matches!(value_of_literal(&tagged.tag), Value::Data(_)) =>
        {
            Value::Data("in a fence of backquotes")
        }
        Expression::BooleanLiteral(_) => Value::Data("a boolean"),
        Expression::NullLiteral(_) => Value::Data("null"),
        Expression::RegExpLiteral(_) => Value::Data("a regular expression"),
        Expression::ArrayExpression(_) => Value::Data("an array"),
        Expression::JSXElement(_) | Expression::JSXFragment(_) => Value::Data("an element"),
        Expression::ImportExpression(_) => Value::Data("a promise"),
        Expression::UnaryExpression(_)
        | Expression::UpdateExpression(_)
        | Expression::BinaryExpression(_)
        | Expression::PrivateInExpression(_)
        | Expression::ImportMeta(_)
        | Expression::ThisExpression(_) => Value::Data("no function"),
        _ => Value::Unknown,
    }
}

/// What keeps `value` from being a tool.
fn why_not(value: Value) -> Option<String> {
    let generator = "A generator cannot be a tool: what it yields has no way back to the caller. Make it an `async function*` and take what it yields with `onYield`, or return an array";
    Some(match value {
        Value::Function { .. } | Value::Unknown | Value::Object(Members::One | Members::MaybeOne) => {
            return None;
        }
        Value::Generator | Value::Object(Members::OnlyGenerator) => generator.to_owned(),
        Value::Class => {
            "A class cannot be a tool: nobody would make an instance of it. Write a function that does"
                .to_owned()
        }
        Value::Object(Members::None) => "The text is an object without a function".to_owned(),
        Value::Object(Members::Several) => {
            "The object has several functions, none of them called `execute`, `handler` or `main`".to_owned()
        }
        Value::Object(Members::OnlyAccessor) => {
            "A getter or setter cannot be a tool: it takes no arguments. Write a method".to_owned()
        }
        Value::Data("no function") => "The text is not a function".to_owned(),
        Value::Data(what) => format!("The text is {what}, not a function"),
    })
}

/// Tells by the form of an object which function it stands for. `wrap::PICK` decides the same when the code runs.
fn members_of(object: &ObjectExpression<'_>) -> Members {
    let (mut functions, mut plain, mut generators, mut accessors, mut open) = (0, 0, 0, 0, false);
    for property in &object.properties {
        let ObjectPropertyKind::ObjectProperty(property) = property else {
            open = true;
            continue;
        };
        if property.kind != PropertyKind::Init {
            accessors += 1;
            continue;
        }
        let value = value_of_literal(&property.value);
        let key = property.key.static_name();
        if let Value::Function { .. } = value
            && key.as_deref().is_some_and(|key| KEYS.contains(&key))
        {
            return Members::One;
        }
        match value {
            Value::Function { .. } => (functions, plain) = (functions + 1, plain + 1),
            Value::Generator => (functions, generators) = (functions + 1, generators + 1),
            Value::Class => functions += 1,
            Value::Unknown => open = true,
            Value::Object(_) | Value::Data(_) => {}
        }
    }
    match (functions, open) {
        (_, true) => Members::MaybeOne,
        (1, false) if plain == 1 => Members::One,
        (1, false) if generators == 1 => Members::OnlyGenerator,
        (0 | 1, false) if accessors > 0 => Members::OnlyAccessor,
        (0 | 1, false) => Members::None,
        _ => Members::Several,
    }
}

/// The name at the start of `a.b.c`, and how many members were taken of it, the one assigned included.
pub(super) fn root_of<'t>(object: &'t Expression<'_>) -> Option<(&'t str, usize)> {
    let (mut object, mut depth) = (object, 1);
    loop {
        match object.get_inner_expression() {
            Expression::Identifier(name) => return Some((name.name.as_str(), depth)),
            other => (object, depth) = (other.as_member_expression()?.object(), depth + 1),
        }
    }
}

/// A call as a statement.
struct Call<'t> {
    /// The name that is called, or the one whose member is.
    callee: Option<&'t str>,
    /// Something is done with the result: `f().catch(…)`.
    chained: bool,
    /// Names among the arguments.
    arguments: Vec<&'t str>,
    /// Functions are among the arguments.
    takes_function: bool,
    /// What is called is a function written in its place; whether it is async.
    in_place: Option<bool>,
}

impl<'t> Call<'t> {
    fn of(expression: &'t Expression<'_>) -> Option<Self> {
        let mut expression = expression.get_inner_expression();
        let mut chained = false;
        loop {
            match expression {
                Expression::AwaitExpression(await_) => expression = await_.argument.get_inner_expression(),
                Expression::UnaryExpression(unary) => expression = unary.argument.get_inner_expression(),
                Expression::CallExpression(call) => {
                    let callee = call.callee.get_inner_expression();
                    if let Some(member) = callee.as_member_expression() {
                        let then =
                            matches!(member.static_property_name(), Some("then" | "catch" | "finally"));
                        let inner = member.object().get_inner_expression();
                        if then && matches!(inner, Expression::CallExpression(_)) {
                            (expression, chained) = (inner, true);
                            continue;
                        }
                    }
                    let values = call.arguments.iter().filter_map(Argument::as_expression);
                    let takes_function = values.clone().any(|value| {
                        matches!(
                            value_of_literal(value),
                            Value::Function { .. } | Value::Object(Members::One | Members::MaybeOne)
                        )
                    });
                    let in_place = match value_of_literal(callee) {
                        Value::Function { is_async } => Some(is_async),
                        _ => None,
                    };
                    let arguments = values
                        .filter_map(|argument| {
                            argument.get_identifier_reference().map(|name| name.name.as_str())
                        })
                        .collect();
                    let callee = root_of(callee).map(|(name, _)| name);
                    return Some(Self { callee, chained, arguments, takes_function, in_place });
                }
                _ => return None,
            }
        }
    }
}

// Other readings.

fn refuse<T>(tree: &Tree<'_>, message: impl Into<String>, span: Span, rank: usize) -> Result<T, Refusal> {
    Err(Refusal { fault: Fault::refused(message, tree.range(span)), rank })
}

/// A reading that the text was surely not meant for.
fn misread<T>(tree: &Tree<'_>) -> Result<T, Refusal> {
    refuse(tree, "The text is not a function", Span::default(), 0)
}

fn only_expression<'t, 'a>(tree: &'t Tree<'a>) -> Option<&'t Expression<'a>> {
    let program: &'t Program<'a> = tree.program;
    match program.body.as_slice() {
        [Statement::ExpressionStatement(statement), rest @ ..] if rest.iter().all(is_nothing) => {
            Some(&statement.expression)
        }
        _ => None,
    }
}

fn value_entry<'t>(tree: &'t Tree<'_>) -> Result<Entry<'t>, Refusal> {
    let Some(Expression::UnaryExpression(void)) = only_expression(tree) else { return misread(tree) };
    let Expression::ObjectExpression(object) = void.argument.get_inner_expression() else {
        return misread(tree);
    };
    match why_not(Value::Object(members_of(object))) {
        Some(message) => refuse(tree, message, object.span, 2),
        None => Ok(Entry::Expression { span: void.argument.span(), after: None, last: true, sure: false }),
    }
}

fn members_entry<'t>(tree: &'t Tree<'_>) -> Result<Entry<'t>, Refusal> {
    let Some(Expression::ParenthesizedExpression(around)) = only_expression(tree) else {
        return misread(tree);
    };
    let Expression::ObjectExpression(object) = &around.expression else { return misread(tree) };
    let whole = object.span.start == 1 && object.span.end == tree.length + tree.reading.base() + 2;
    let members = members_of(object);
    // `({name})` is an object, too, but nobody writes a tool as that.
    let has_function = object.properties.iter().any(|property| match property {
        ObjectPropertyKind::ObjectProperty(property) => {
            matches!(value_of_literal(&property.value), Value::Function { .. } | Value::Generator)
        }
        ObjectPropertyKind::SpreadProperty(_) => false,
    });
    if !whole || !has_function {
        return misread(tree);
    }
    match why_not(Value::Object(members)) {
        None => Ok(Entry::Members { end: None }),
        Some(message) => {
            let span = object.properties.first().map_or(object.span, GetSpan::span);
            refuse(tree, message, span, 2)
        }
    }
}

fn class_members_entry<'t>(tree: &'t Tree<'_>) -> Result<Entry<'t>, Refusal> {
    let Some(Expression::ParenthesizedExpression(around)) = only_expression(tree) else {
        return misread(tree);
    };
    let Expression::ClassExpression(class) = &around.expression else { return misread(tree) };
    let whole = class.span.end == tree.length + tree.reading.base() + 2;
    let [ClassElement::MethodDefinition(method)] = class.body.body.as_slice() else { return misread(tree) };
    let kind = if method.value.generator { Value::Generator } else { Value::Object(Members::OnlyAccessor) };
    match method.kind {
        MethodDefinitionKind::Constructor => misread(tree),
        _ if !whole || method.r#static || method.computed || !method.decorators.is_empty() => misread(tree),
        MethodDefinitionKind::Method if !method.value.generator => {
            Ok(Entry::Members { end: Some(method.span.end) })
        }
        _ => refuse(tree, why_not(kind).unwrap_or_default(), method.span, 2),
    }
}
