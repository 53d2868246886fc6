//! Standard (TC39) decorators and `accessor` → classes that every Node has.
//!
//! The transform that comes after this one knows TypeScript's older decorators only, so this runs before it, on the same tree. Each class that has
//! one of the two becomes a function called in its place, with the state of the class in a variable (`$` here):
//!
//! ```text
//! @a class C { @b m() {} @c x = 1; accessor y = 2; static s = 3 }
//!
//! let C = (() => { let C; const $ = babelHelpers.decorated([a], "C");
//!   new class extends $.identity {
//!     static [({ "C": class {
//!       static { $.apply(this, […kinds and names…]); C = $.c }
//!       #start = $.start(this);                         // what decorators of methods asked to run
//!       m() {}
//!       x = $.init(1, this, 1); #after1 = $.after(1, this);
//!       #y = 2; get y() { return this.#y } set y(v) { this.#y = v }
//!       static [($.d(0, [b], "m"), $.d(1, [c], "x"), $.host)]() {}   // decorators are evaluated in the order of the text
//!     } }, $.host)];
//!     s = 3;                                            // statics belong to what the decorators of the class gave
//!     constructor() { super($.c); $.end() }
//!   };
//!   return C = $.c })();
//! ```
//!
//! A class without decorators of its own needs nothing around its statics. `wrap::STANDARD` is what is called. The user's nodes are
//! moved and keep their places; what is put around them has none.
//!
//! # Which decorators are meant
//!
//! The two kinds look alike and are called with other arguments. TypeScript decides by a setting of the project, which a text does
//! not have; see [`kind_of`].

use std::collections::HashMap;
use std::fmt::Write as _;

use oxc_allocator::{Allocator, TakeIn};
use oxc_ast::ast::{
    AccessorProperty, AccessorPropertyType, Argument, BindingPattern, Class, ClassElement, Declaration,
    Decorator, ExportDefaultDeclarationKind, Expression, FormalParameter, FormalParameters, Function,
    FunctionBody, IdentifierReference, ImportDeclaration, MethodDefinition, MethodDefinitionKind, Program,
    PropertyDefinition, PropertyKey, Statement, StaticMemberExpression, TSType, VariableDeclarator,
};
use oxc_ast_visit::{Visit, VisitMut, walk, walk_mut};
use oxc_parser::Parser;
use oxc_span::{GetSpan, SPAN, SourceType, Span};
use oxc_syntax::scope::ScopeFlags;

/// A kind of decorators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// TC39's, and TypeScript's since 5.0: `(value, context)`.
    Standard,
    /// TypeScript's `experimentalDecorators`: `(target, key, descriptor)`.
    Legacy,
}

/// Packages whose decorators are of the older kind, by the start of their names.
const LEGACY_PACKAGES: [&str; 16] = [
    "@angular/",
    "@loopback/",
    "@mikro-orm/",
    "@nestjs/",
    "@tsed/",
    "@typegoose/",
    "class-transformer",
    "class-validator",
    "inversify",
    "reflect-metadata",
    "routing-controllers",
    "sequelize-typescript",
    "tsyringe",
    "type-graphql",
    "typedi",
    "typeorm",
];

/// Names of types that only declarations of older decorators need.
const LEGACY_TYPES: [&str; 6] = [
    "ClassDecorator",
    "MethodDecorator",
    "ParameterDecorator",
    "PropertyDecorator",
    "PropertyDescriptor",
    "TypedPropertyDescriptor",
];

/// Names that people give the second parameter of an older decorator, and of a standard one.
const LEGACY_SECOND: [&str; 9] = [
    "key",
    "propertyKey",
    "propertyName",
    "propKey",
    "property",
    "prop",
    "methodName",
    "memberName",
    "fieldName",
];
const STANDARD_SECOND: [&str; 5] = ["context", "ctx", "_context", "_ctx", "decoratorContext"];

/// What a text says of the kind of its decorators, each with one place where it does.
#[derive(Debug, Default)]
pub(super) struct Signs {
    legacy: Option<Span>,
    standard: Option<Span>,
}

/// The kind that the text is written for: what it shows, else the standard one, as TypeScript has it without a setting.
///
/// It shows the older kind by decorated parameters, metadata (`Reflect.metadata`), a package that has only these, a type that only these need, and by
/// decorators of its own whose parameters are `(target, key)` or three; it shows the standard kind by decorators of its own whose second
/// parameter is a context, by decorated private members and class expressions. The comment `@experimentalDecorators` settles it.
///
/// # Errors
///
/// The places of a sign of each kind: one text cannot have both.
pub(super) fn kind_of(program: &Program<'_>) -> Result<Kind, (Span, Span)> {
    let said = program.comments.iter().find_map(|comment| {
        let text = &program.source_text[comment.span.start as usize..comment.span.end as usize];
        let (_, rest) = text.split_once("@experimentalDecorators")?;
        Some(!rest.trim_start_matches([':', ' ']).starts_with("false"))
    });
    match said {
        Some(true) => return Ok(Kind::Legacy),
        Some(false) => return Ok(Kind::Standard),
        None => {}
    }
    let mut shapes = Shapes::default();
    shapes.visit_program(program);
    let mut reader = Reader { shapes: shapes.0, signs: Signs::default() };
    reader.visit_program(program);
    match (reader.signs.standard, reader.signs.legacy) {
        (Some(standard), Some(legacy)) => Err((standard, legacy)),
        (_, Some(_)) => Ok(Kind::Legacy),
        _ => Ok(Kind::Standard),
    }
}

/// What the parameters of a function say; `None` is nothing.
type Shape = Option<Kind>;

fn shape_of(parameters: &FormalParameters<'_>) -> Shape {
    if parameters.items.len() == 3 {
        return Some(Kind::Legacy);
    }
    let [_, second] = parameters.items.as_slice() else { return None };
    let typed = second.type_annotation.as_ref().map(|annotation| &annotation.type_annotation);
    match typed {
        Some(TSType::TSStringKeyword(_) | TSType::TSSymbolKeyword(_) | TSType::TSUnionType(_)) => {
            return Some(Kind::Legacy);
        }
        Some(TSType::TSTypeReference(reference)) => {
            let mut names = TypeNames(Vec::new());
            names.visit_ts_type_reference(reference);
            if names.0.iter().any(|name| name.ends_with("DecoratorContext")) {
                return Some(Kind::Standard);
            }
            if names.0.iter().any(|name| name == "PropertyKey") {
                return Some(Kind::Legacy);
            }
        }
        _ => {}
    }
    match &second.pattern {
        BindingPattern::BindingIdentifier(id) if LEGACY_SECOND.contains(&id.name.as_str()) => {
            Some(Kind::Legacy)
        }
        BindingPattern::BindingIdentifier(id) if STANDARD_SECOND.contains(&id.name.as_str()) => {
            Some(Kind::Standard)
        }
        BindingPattern::ObjectPattern(_) => Some(Kind::Standard),
        _ => None,
    }
}

struct TypeNames(Vec<String>);

impl<'a> Visit<'a> for TypeNames {
    fn visit_identifier_reference(&mut self, name: &IdentifierReference<'a>) {
        self.0.push(name.name.to_string());
    }
}

/// The functions of a text by name: what their parameters say, and those of the functions that they return.
#[derive(Default)]
struct Shapes(HashMap<String, (Shape, Shape)>);

impl<'a> Visit<'a> for Shapes {
    fn visit_function(&mut self, function: &Function<'a>, flags: ScopeFlags) {
        if let Some(id) = &function.id {
            let returned = function.body.as_ref().and_then(|body| returned(body));
            self.0.insert(id.name.to_string(), (shape_of(&function.params), returned));
        }
        walk::walk_function(self, function, flags);
    }

    fn visit_variable_declarator(&mut self, variable: &VariableDeclarator<'a>) {
        if let BindingPattern::BindingIdentifier(id) = &variable.id
            && let Some(init) = &variable.init
            && let Some(shapes) = shapes_of(init)
        {
            self.0.insert(id.name.to_string(), shapes);
        }
        walk::walk_variable_declarator(self, variable);
    }
}

fn shapes_of(function: &Expression<'_>) -> Option<(Shape, Shape)> {
    match function.get_inner_expression() {
        Expression::FunctionExpression(function) => {
            Some((shape_of(&function.params), function.body.as_ref().and_then(|body| returned(body))))
        }
        Expression::ArrowFunctionExpression(arrow) => {
            let within = match arrow.get_expression() {
                Some(value) => shapes_of(value).and_then(|(own, _)| own),
                None => arrow.body.as_function_body().and_then(returned),
            };
            Some((shape_of(&arrow.params), within))
        }
        _ => None,
    }
}

/// What the parameters of the function say that `body` returns.
fn returned(body: &FunctionBody<'_>) -> Shape {
    let functions = body.statements.iter().filter_map(|statement| match statement {
        Statement::FunctionDeclaration(function) => {
            Some((function.id.as_ref()?.name.as_str(), shape_of(&function.params)))
        }
        _ => None,
    });
    let functions: HashMap<&str, Shape> = functions.collect();
    body.statements.iter().find_map(|statement| {
        let Statement::ReturnStatement(statement) = statement else { return None };
        match statement.argument.as_ref()?.get_inner_expression() {
            Expression::Identifier(name) => functions.get(name.name.as_str()).copied().flatten(),
            other => shapes_of(other).and_then(|(own, _)| own),
        }
    })
}

struct Reader {
    shapes: HashMap<String, (Shape, Shape)>,
    signs: Signs,
}

impl Reader {
    fn sign(&mut self, kind: Kind, span: Span) {
        let known = if kind == Kind::Standard { &mut self.signs.standard } else { &mut self.signs.legacy };
        known.get_or_insert(span);
    }

    fn private(&mut self, key: &PropertyKey<'_>, decorators: &[Decorator<'_>]) {
        if let (true, Some(first)) = (key.is_private_identifier(), decorators.first()) {
            self.sign(Kind::Standard, first.span);
        }
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_decorator(&mut self, decorator: &Decorator<'a>) {
        let (called, name) = match decorator.expression.get_inner_expression() {
            Expression::CallExpression(call) => (true, call.callee.get_identifier_reference()),
            other => (false, other.get_identifier_reference()),
        };
        let shapes = name.and_then(|name| self.shapes.get(name.name.as_str()));
        let shape = shapes.and_then(|(own, returned)| if called { *returned } else { *own });
        if let Some(kind) = shape {
            self.sign(kind, decorator.span);
        }
        walk::walk_decorator(self, decorator);
    }

    fn visit_formal_parameter(&mut self, parameter: &FormalParameter<'a>) {
        if let Some(first) = parameter.decorators.first() {
            self.sign(Kind::Legacy, first.span);
        }
        walk::walk_formal_parameter(self, parameter);
    }

    fn visit_method_definition(&mut self, method: &MethodDefinition<'a>) {
        self.private(&method.key, &method.decorators);
        walk::walk_method_definition(self, method);
    }

    fn visit_property_definition(&mut self, property: &PropertyDefinition<'a>) {
        self.private(&property.key, &property.decorators);
        walk::walk_property_definition(self, property);
    }

    fn visit_expression(&mut self, expression: &Expression<'a>) {
        if let Expression::ClassExpression(class) = expression
            && let Some(first) = class.decorators.first()
        {
            self.sign(Kind::Standard, first.span);
        }
        walk::walk_expression(self, expression);
    }

    fn visit_import_declaration(&mut self, import: &ImportDeclaration<'a>) {
        let source = import.source.value.as_str();
        if LEGACY_PACKAGES.iter().any(|package| source.starts_with(package)) {
            self.sign(Kind::Legacy, import.span);
        }
    }

    fn visit_static_member_expression(&mut self, member: &StaticMemberExpression<'a>) {
        if member.object.is_specific_id("Reflect") && member.property.name.to_lowercase().contains("metadata")
        {
            self.sign(Kind::Legacy, member.span);
        }
        walk::walk_static_member_expression(self, member);
    }

    fn visit_string_literal(&mut self, text: &oxc_ast::ast::StringLiteral<'a>) {
        if text.value == "reflect-metadata" {
            self.sign(Kind::Legacy, text.span);
        }
    }

    fn visit_identifier_reference(&mut self, name: &IdentifierReference<'a>) {
        if LEGACY_TYPES.contains(&name.name.as_str()) {
            self.sign(Kind::Legacy, name.span);
        }
        if name.name.ends_with("DecoratorContext") {
            self.sign(Kind::Standard, name.span);
        }
    }
}

/// TypeScript calls older decorators of statics after those of instances; the transform has them in the order of the text.
pub(super) fn statics_last(program: &mut Program<'_>) {
    StaticsLast.visit_program(program);
}

struct StaticsLast;

impl<'a> VisitMut<'a> for StaticsLast {
    fn visit_statements(&mut self, statements: &mut oxc_allocator::Vec<'a, Statement<'a>>) {
        let mut at = 0;
        while at < statements.len() {
            let calls = statements[at..].iter().take_while(|statement| decorates_static(statement).is_some());
            let end = at + calls.count();
            statements[at..end].sort_by_key(|statement| decorates_static(statement) == Some(true));
            at = end.max(at + 1);
        }
        walk_mut::walk_statements(self, statements);
    }
}

/// Whether `babelHelpers.decorate([…], A.prototype, "key", …)` is about a static, if `statement` is such a call.
fn decorates_static(statement: &Statement<'_>) -> Option<bool> {
    let Statement::ExpressionStatement(statement) = statement else { return None };
    let Expression::CallExpression(call) = &statement.expression else { return None };
    let Expression::StaticMemberExpression(callee) = &call.callee else { return None };
    let helper = callee.object.is_specific_id("babelHelpers") && callee.property.name == "decorate";
    let target = call.arguments.get(1).and_then(Argument::as_expression)?;
    (helper && call.arguments.len() > 2).then(|| match target {
        Expression::StaticMemberExpression(member) => member.property.name != "prototype",
        _ => true,
    })
}

/// Why a class cannot be lowered, and where.
pub(super) type Unsupported = (String, Span);

/// Lowers what no Node has: standard decorators, unless `kind` is the older one, and `accessor` in either case.
pub(super) fn lower<'a>(
    allocator: &'a Allocator,
    program: &mut Program<'a>,
    kind: Kind,
) -> Result<(), Unsupported> {
    let mut prefix = "__class".to_owned();
    while program.source_text.contains(&prefix) {
        prefix.push('_');
    }
    let mut lowering =
        Lowering { allocator, kind, prefix, classes: 0, name: None, in_namespace: false, unsupported: None };
    lowering.visit_program(program);
    lowering.unsupported.map_or(Ok(()), Err)
}

struct Lowering<'a> {
    allocator: &'a Allocator,
    kind: Kind,
    /// Starts every name that is made here, and is nowhere in the text.
    prefix: String,
    classes: usize,
    /// What an anonymous class is called that comes next: the variable's name, the key's.
    name: Option<String>,
    in_namespace: bool,
    unsupported: Option<Unsupported>,
}

impl<'a> VisitMut<'a> for Lowering<'a> {
    fn visit_statements(&mut self, statements: &mut oxc_allocator::Vec<'a, Statement<'a>>) {
        for statement in statements.iter_mut() {
            walk_mut::walk_statement(self, statement);
            let class = match statement {
                Statement::ClassDeclaration(class) => class,
                Statement::ExportDeclaration(export) => match &mut export.declaration {
                    Declaration::ClassDeclaration(class) => class,
                    _ => continue,
                },
                _ => continue,
            };
            if class.declare || !self.needs(class) {
                continue;
            }
            let Some(id) = class.id.as_ref().map(|id| id.name.to_string()) else { continue };
            if !self.needs_state(class) {
                self.in_place(class);
                continue;
            }
            let mut class = class.take_in(&self.allocator);
            class.r#type = oxc_ast::ast::ClassType::ClassExpression;
            let span = class.span;
            let value = self.class(class, Some(&id));
            let word = if self.in_namespace { "const" } else { "let" };
            let exported = matches!(statement, Statement::ExportDeclaration(_));
            let export = if exported { "export " } else { "" };
            let mut made = self.statement(&format!("{export}{word} {id} = __slot0;"), vec![value]);
            if let Statement::ExportDeclaration(export) = &mut made {
                export.span = span;
            }
            *statement = made;
        }
    }

    fn visit_expression(&mut self, expression: &mut Expression<'a>) {
        let name = self.name.take();
        walk_mut::walk_expression(self, expression);
        if let Expression::ClassExpression(class) = expression
            && self.needs(class)
        {
            if !self.needs_state(class) {
                self.in_place(class);
                return;
            }
            let name = class.id.as_ref().map(|id| id.name.to_string()).or(name);
            let class = class.take_in(&self.allocator);
            *expression = self.class(class, name.as_deref());
        }
    }

    fn visit_export_default_declaration(&mut self, export: &mut oxc_ast::ast::ExportDefaultDeclaration<'a>) {
        walk_mut::walk_export_default_declaration(self, export);
        if let ExportDefaultDeclarationKind::ClassDeclaration(class) = &mut export.declaration
            && self.needs(class)
        {
            if !self.needs_state(class) {
                self.in_place(class);
                return;
            }
            let name = class.id.as_ref().map_or_else(|| "default".to_owned(), |id| id.name.to_string());
            let mut class = class.take_in(&self.allocator);
            class.r#type = oxc_ast::ast::ClassType::ClassExpression;
            export.declaration = ExportDefaultDeclarationKind::from(self.class(class, Some(&name)));
        }
    }

    fn visit_variable_declarator(&mut self, variable: &mut VariableDeclarator<'a>) {
        if let (BindingPattern::BindingIdentifier(id), Some(Expression::ClassExpression(_))) =
            (&variable.id, &variable.init)
        {
            self.name = Some(id.name.to_string());
            if let Some(init) = &mut variable.init {
                self.visit_expression(init);
            }
            return;
        }
        walk_mut::walk_variable_declarator(self, variable);
    }

    fn visit_object_property(&mut self, property: &mut oxc_ast::ast::ObjectProperty<'a>) {
        if let (Some(key), Expression::ClassExpression(_)) = (property.key.static_name(), &property.value) {
            self.visit_property_key(&mut property.key);
            self.name = Some(key.into_owned());
            self.visit_expression(&mut property.value);
            return;
        }
        walk_mut::walk_object_property(self, property);
    }

    fn visit_ts_module_block(&mut self, block: &mut oxc_ast::ast::TSModuleBlock<'a>) {
        let outer = std::mem::replace(&mut self.in_namespace, true);
        walk_mut::walk_ts_module_block(self, block);
        self.in_namespace = outer;
    }

    fn visit_function_body(&mut self, body: &mut FunctionBody<'a>) {
        let outer = std::mem::replace(&mut self.in_namespace, false);
        walk_mut::walk_function_body(self, body);
        self.in_namespace = outer;
    }
}

/// What becomes of the elements of one class.
struct Elements<'a> {
    /// Name of the state.
    state: String,
    /// The elements that stay in the class.
    body: Vec<ClassElement<'a>>,
    /// Statics that go around a class with decorators of its own.
    statics: Vec<ClassElement<'a>>,
    /// Evaluates decorators; goes into the next computed key.
    pending: Vec<(String, Vec<Expression<'a>>)>,
    /// What `$.apply` is told: one array literal each.
    described: Vec<String>,
    /// Something of an instance has to run before its fields.
    starts: bool,
    moves: bool,
    uses_state: bool,
}

/// The getter and the setter of one `accessor`: their bodies.
struct Halves {
    index: usize,
    is_static: bool,
    get: String,
    set: String,
}

impl Halves {
    const fn prefix(&self) -> &'static str {
        if self.is_static { "static " } else { "" }
    }
}

impl Elements<'_> {
    const fn new(state: String, moves: bool, uses_state: bool) -> Self {
        Self {
            state,
            body: Vec::new(),
            statics: Vec::new(),
            pending: Vec::new(),
            described: Vec::new(),
            starts: false,
            moves,
            uses_state,
        }
    }
}

impl<'a> Lowering<'a> {
    fn standard(&self) -> bool {
        self.kind == Kind::Standard
    }

    fn needs(&self, class: &Class<'a>) -> bool {
        let decorated = self.standard()
            && (!class.decorators.is_empty()
                || class.body.body.iter().any(|element| match element {
                    ClassElement::MethodDefinition(method) => !method.decorators.is_empty(),
                    ClassElement::PropertyDefinition(property) => !property.decorators.is_empty(),
                    _ => false,
                }));
        decorated
            || class.body.body.iter().any(|element| matches!(element, ClassElement::AccessorProperty(_)))
    }

    /// Whether the class needs more than a getter, a setter and a field for each `accessor`.
    fn needs_state(&self, class: &Class<'a>) -> bool {
        self.standard()
            && (!class.decorators.is_empty()
                || class.body.body.iter().any(|element| match element {
                    ClassElement::MethodDefinition(method) => !method.decorators.is_empty(),
                    ClassElement::PropertyDefinition(property) => !property.decorators.is_empty(),
                    ClassElement::AccessorProperty(accessor) => {
                        !accessor.decorators.is_empty()
                            || accessor.computed
                            || (accessor.r#static && class.id.is_none())
                    }
                    _ => false,
                }))
    }

    /// Lowers each `accessor` of a class without decorators, or with older ones, which stay.
    fn in_place(&mut self, class: &mut Class<'a>) {
        let state = self.next_state();
        let own = class.id.as_ref().map(|id| id.name.to_string());
        let mut elements = Elements::new(state, false, false);
        let body = std::mem::replace(&mut class.body.body, oxc_allocator::Vec::new_in(&self.allocator));
        for (index, element) in body.into_iter().enumerate() {
            self.element(index, element, own.as_deref(), &mut elements);
        }
        class.body.body.extend(elements.body);
    }

    fn next_state(&mut self) -> String {
        self.classes += 1;
        format!("{}{}", self.prefix, self.classes - 1)
    }

    fn refuse(&mut self, message: &str, span: Span) {
        self.unsupported.get_or_insert_with(|| (message.to_owned(), span));
    }

    /// The expression that takes the place of `class`, whose elements were visited.
    fn class(&mut self, mut class: Class<'a>, name: Option<&str>) -> Expression<'a> {
        let state = self.next_state();
        let span = class.span;
        let waits = awaits_in(&class);
        let decorators =
            std::mem::replace(&mut class.decorators, oxc_allocator::Vec::new_in(&self.allocator));
        let own = class.id.as_ref().map(|id| id.name.to_string());
        let mut elements = Elements::new(state, !decorators.is_empty(), true);
        let body = std::mem::replace(&mut class.body.body, oxc_allocator::Vec::new_in(&self.allocator));
        for (index, element) in body.into_iter().enumerate() {
            self.element(index, element, own.as_deref(), &mut elements);
        }
        if waits == Waits::Yield {
            self.refuse(
                "SyntaxError: `yield` in the decorators, keys or base class of a decorated class is not supported. Put the value into a variable above the class",
                span,
            );
        }
        self.whole(class, name, own.as_deref(), decorators, elements, waits == Waits::Await)
    }

    fn whole(
        &mut self,
        mut class: Class<'a>,
        name: Option<&str>,
        own: Option<&str>,
        decorators: oxc_allocator::Vec<'a, Decorator<'a>>,
        mut elements: Elements<'a>,
        waits: bool,
    ) -> Expression<'a> {
        let state = elements.state.clone();
        if !elements.pending.is_empty() {
            let (text, slots) = pending(&mut elements, &format!("{state}.host"));
            let host = self.element_of(&format!("static [({text})]() {{}}"), slots);
            elements.body.push(host);
        }
        let described = elements.described.join(",");
        // Everything of the class is there by then, but for what is static and has a value.
        let named = match (own, elements.moves) {
            (Some(own), true) => format!("{own} = {state}.c;"),
            _ => String::new(),
        };
        let statics = if elements.moves { String::new() } else { format!("{state}.statics(this);") };
        let apply = format!("static {{ {state}.apply(this, [{described}]); {named}{statics} }}");
        let mut body = vec![self.element_of(&apply, vec![])];
        if elements.starts {
            body.push(self.element_of(&format!("#{state}_start = {state}.start(this);"), vec![]));
        }
        body.append(&mut elements.body);
        class.body.body.extend(body);
        if elements.moves {
            class.id = None;
        }
        let quoted = name.map(quoted);
        let anonymous = class.id.is_none();
        let inner = Expression::ClassExpression(oxc_allocator::Box::new_in(class, &self.allocator));
        // The name of a property is the name of an anonymous class.
        let inner = match (&quoted, anonymous) {
            (Some(key), true) => self.expression(&format!("({{ {key}: __slot0 }})[{key}]"), vec![inner]),
            _ => inner,
        };
        let (open, close) = if waits { ("await (async () => {", "})()") } else { ("(() => {", "})()") };
        let (mut slots, mut list) = (Vec::new(), Vec::new());
        for decorator in decorators {
            list.push(listed(decorator, &mut slots));
        }
        let (list, given) = (list.join(","), quoted.unwrap_or_else(|| "undefined".to_owned()));
        let class_slot = slots.len();
        let decorated = format!("const {state} = babelHelpers.decorated([{list}], {given});");
        if !elements.moves {
            slots.push(inner);
            return self.expression(&format!("{open} {decorated} return __slot{class_slot}; {close}"), slots);
        }
        let around = format!(
            "(class extends {state}.identity {{ static [(__slot0, {state}.host)]; #{state}_first = {state}.statics(this); constructor() {{ super({state}.c); {state}.end(); }} }})"
        );
        let mut around = self.expression(&around, vec![inner]);
        if let Expression::ParenthesizedExpression(inside) = around {
            around = inside.unbox().expression;
        }
        if let Expression::ClassExpression(outer) = &mut around {
            let mut supers = Supers { lowering: self, state: &state };
            for element in &mut elements.statics {
                supers.visit_class_element(element);
            }
            outer.body.body.extend(elements.statics);
        }
        slots.push(around);
        let (declared, assigned) = match own {
            Some(own) => (format!("let {own};"), format!("{own} = ")),
            None => (String::new(), String::new()),
        };
        self.expression(
            &format!("{open} {declared} {decorated} new (__slot{class_slot})(); return {assigned}{state}.c; {close}"),
            slots,
        )
    }

    fn element(
        &mut self,
        index: usize,
        element: ClassElement<'a>,
        own: Option<&str>,
        elements: &mut Elements<'a>,
    ) {
        match element {
            ClassElement::MethodDefinition(method) => self.method(index, method.unbox(), elements),
            ClassElement::PropertyDefinition(property) => self.property(index, property.unbox(), elements),
            ClassElement::AccessorProperty(accessor) => self.accessor(index, accessor.unbox(), own, elements),
            ClassElement::StaticBlock(block) if elements.moves => {
                let name = format!("#{}_block{index}", elements.state);
                let mut made = self.element_of(&format!("{name} = (() => {{}})();"), vec![]);
                let mut fill = FillBlock { body: Some(block.unbox().body) };
                fill.visit_class_element(&mut made);
                elements.statics.push(made);
            }
            other => elements.body.push(other),
        }
    }

    /// `decorators`, evaluated for element `index`, which is called `key` unless that is to be computed.
    fn evaluate(
        index: usize,
        decorators: oxc_allocator::Vec<'a, Decorator<'a>>,
        key: Option<&str>,
        elements: &mut Elements<'a>,
    ) {
        let (mut slots, mut list) = (Vec::new(), Vec::new());
        for decorator in decorators {
            list.push(listed(decorator, &mut slots));
        }
        let key = key.map_or_else(|| "undefined".to_owned(), quoted);
        let text = format!("{}.d({index}, [{}], {key})", elements.state, list.join(","));
        elements.pending.push((text, slots));
    }

    /// Puts the pending evaluations into a computed key; gives the new key.
    fn key(
        &mut self,
        key: Expression<'a>,
        index: Option<usize>,
        elements: &mut Elements<'a>,
    ) -> PropertyKey<'a> {
        let value = match index {
            Some(index) => format!("{}.k({index}, __slot0)", elements.state),
            None => "__slot0".to_owned(),
        };
        let (text, mut slots) = pending(elements, "");
        let shifted = slots.len();
        slots.push(key);
        let value = value.replace("__slot0", &format!("__slot{shifted}"));
        let text = if text.is_empty() { value } else { format!("({text}{value})") };
        PropertyKey::from(self.expression(&text, slots))
    }

    fn method(&mut self, index: usize, mut method: MethodDefinition<'a>, elements: &mut Elements<'a>) {
        let decorators = if self.standard() {
            std::mem::replace(&mut method.decorators, oxc_allocator::Vec::new_in(&self.allocator))
        } else {
            oxc_allocator::Vec::new_in(&self.allocator)
        };
        let word = match method.kind {
            MethodDefinitionKind::Constructor => None,
            MethodDefinitionKind::Method => Some("method"),
            MethodDefinitionKind::Get => Some("getter"),
            MethodDefinitionKind::Set => Some("setter"),
        };
        let decorated = !decorators.is_empty() && method.value.body.is_some();
        let Some(word) = word.filter(|_| decorated) else {
            if method.computed && !elements.pending.is_empty() {
                let key = method.key.take_in(&self.allocator);
                method.key = self.key(key.into_expression(), None, elements);
            }
            let method = oxc_allocator::Box::new_in(method, &self.allocator);
            elements.body.push(ClassElement::MethodDefinition(method));
            return;
        };
        elements.starts |= !method.r#static;
        let state = elements.state.clone();
        let is_static = method.r#static;
        if let Some(name) = method.key.private_name() {
            let name = format!("#{name}");
            Self::evaluate(index, decorators, Some(&name), elements);
            let (word_of_access, forward) = match method.kind {
                MethodDefinitionKind::Set => {
                    ("set", format!("set {name}(value) {{ {state}.e({index}).set.call(this, value); }}"))
                }
                MethodDefinitionKind::Get => {
                    ("get", format!("get {name}() {{ return {state}.e({index}).get.call(this); }}"))
                }
                _ => ("get", format!("get {name}() {{ return {state}.e({index}).value; }}")),
            };
            let access = access(&name, word_of_access == "get", word_of_access == "set");
            elements.described.push(describe(index, word, is_static, &name, &access));
            let prefix = if is_static { "static " } else { "" };
            let forward = self.element_of(&format!("{prefix}{forward}"), vec![]);
            method.key = PropertyKey::from(self.expression(&format!("{state}.hidden({index})"), vec![]));
            method.computed = true;
            // The key is computed before the state knows of the element otherwise.
            let key = method.key.take_in(&self.allocator);
            method.key = self.key(key.into_expression(), None, elements);
            elements.body.push(forward);
        } else {
            self.public(index, word, is_static, &mut method.key, &mut method.computed, decorators, elements);
        }
        let method = oxc_allocator::Box::new_in(method, &self.allocator);
        elements.body.push(ClassElement::MethodDefinition(method));
    }

    /// Evaluates the decorators of an element with a public name, and notes it for `$.apply`.
    #[expect(clippy::too_many_arguments, reason = "the parts of three kinds of nodes")]
    fn public(
        &mut self,
        index: usize,
        word: &str,
        is_static: bool,
        key: &mut PropertyKey<'a>,
        computed: &mut bool,
        decorators: oxc_allocator::Vec<'a, Decorator<'a>>,
        elements: &mut Elements<'a>,
    ) {
        let name = if *computed { None } else { key.static_name().map(std::borrow::Cow::into_owned) };
        Self::evaluate(index, decorators, name.as_deref(), elements);
        if name.is_none() {
            let own = key.take_in(&self.allocator);
            *key = self.key(own.into_expression(), Some(index), elements);
            *computed = true;
        }
        elements.described.push(describe(index, word, is_static, "", ""));
    }

    fn property(&mut self, index: usize, mut property: PropertyDefinition<'a>, elements: &mut Elements<'a>) {
        let decorators = if self.standard() {
            std::mem::replace(&mut property.decorators, oxc_allocator::Vec::new_in(&self.allocator))
        } else {
            oxc_allocator::Vec::new_in(&self.allocator)
        };
        let is_static = property.r#static;
        let is_type = property.declare || property.r#type.is_abstract();
        if decorators.is_empty() || is_type {
            if property.computed && !elements.pending.is_empty() && !is_type {
                let key = property.key.take_in(&self.allocator);
                property.key = self.key(key.into_expression(), None, elements);
            }
            self.place(property, is_static && !is_type, elements);
            return;
        }
        if let Some(name) = property.key.private_name() {
            let name = format!("#{name}");
            Self::evaluate(index, decorators, Some(&name), elements);
            elements.described.push(describe(index, "field", is_static, &name, &access(&name, true, true)));
        } else {
            let (key, computed) = (&mut property.key, &mut property.computed);
            self.public(index, "field", is_static, key, computed, decorators, elements);
        }
        let value = property.value.take();
        property.value = Some(self.initial(index, value, &elements.state));
        self.place(property, is_static, elements);
        self.after(index, is_static, elements);
    }

    /// Where a property goes: statics of a class with decorators go around it.
    fn place(&mut self, mut property: PropertyDefinition<'a>, is_static: bool, elements: &mut Elements<'a>) {
        if is_static && elements.moves {
            property.r#static = false;
            if property.computed {
                // Its key is computed where it stood.
                let key = property.key.take_in(&self.allocator);
                let at = elements.statics.len();
                let state = elements.state.clone();
                let kept = format!("{state}.keep({at}, __slot0)");
                let kept = self.expression(&kept, vec![key.into_expression()]);
                let (text, mut slots) = pending(elements, "");
                let slot = slots.len();
                slots.push(kept);
                elements.pending.push((format!("{text}__slot{slot}"), slots));
                let key = self.expression(&format!("{state}.kept[{at}]"), vec![]);
                property.key = PropertyKey::from(key);
            }
            let property = oxc_allocator::Box::new_in(property, &self.allocator);
            elements.statics.push(ClassElement::PropertyDefinition(property));
        } else {
            let property = oxc_allocator::Box::new_in(property, &self.allocator);
            elements.body.push(ClassElement::PropertyDefinition(property));
        }
    }

    /// What `addInitializer` was given runs behind the field.
    fn after(&mut self, index: usize, is_static: bool, elements: &mut Elements<'a>) {
        let state = &elements.state;
        let moved = is_static && elements.moves;
        let prefix = if is_static && !moved { "static " } else { "" };
        let made = self
            .element_of(&format!("{prefix}#{state}_after{index} = {state}.after({index}, this);"), vec![]);
        if moved { elements.statics.push(made) } else { elements.body.push(made) }
    }

    fn initial(&self, index: usize, value: Option<Expression<'a>>, state: &str) -> Expression<'a> {
        let Some(value) = value else {
            return self.expression(&format!("{state}.init({index}, this, undefined)"), vec![]);
        };
        let anonymous = match &value {
            Expression::ArrowFunctionExpression(_) => true,
            Expression::FunctionExpression(function) => function.id.is_none(),
            Expression::ClassExpression(class) => class.id.is_none(),
            _ => false,
        };
        let text = if anonymous { format!("{state}.named({index}, __slot0)") } else { "__slot0".to_owned() };
        self.expression(&format!("{state}.init({index}, this, {text})"), vec![value])
    }

    fn accessor(
        &mut self,
        index: usize,
        mut accessor: AccessorProperty<'a>,
        own: Option<&str>,
        elements: &mut Elements<'a>,
    ) {
        if accessor.r#type == AccessorPropertyType::TSAbstractAccessorProperty {
            return;
        }
        let state = elements.state.clone();
        let all = std::mem::replace(&mut accessor.decorators, oxc_allocator::Vec::new_in(&self.allocator));
        let (decorators, older) = if self.standard() {
            (all, oxc_allocator::Vec::new_in(&self.allocator))
        } else {
            (oxc_allocator::Vec::new_in(&self.allocator), all)
        };
        let decorated = !decorators.is_empty();
        let is_static = accessor.r#static;
        if !elements.uses_state && (accessor.computed || is_static && own.is_none()) {
            self.refuse(
                "SyntaxError: `accessor` with a computed name, or static in a class without a name, is not supported beside decorators of the older kind. Write a getter and a setter",
                accessor.span,
            );
            return;
        }
        let storage = format!("#{state}_value{index}");
        let holder = match (is_static, elements.uses_state) {
            (false, _) => "this".to_owned(),
            (true, true) => format!("{state}.c"),
            (true, false) => own.unwrap_or("this").to_owned(),
        };
        let prefix = if is_static { "static " } else { "" };
        // The storage comes where the accessor stood.
        let value = accessor.value.take();
        let value = match (decorated, value) {
            (true, value) => Some(self.initial(index, value, &state)),
            (false, value) => value,
        };
        let field = match value {
            Some(value) => self.element_of(&format!("{prefix}{storage} = __slot0;"), vec![value]),
            None => self.element_of(&format!("{prefix}{storage};"), vec![]),
        };
        let halves = Halves {
            index,
            is_static,
            get: format!("return {holder}.{storage};"),
            set: format!("{holder}.{storage} = value;"),
        };
        match accessor.key.private_name().map(|name| format!("#{name}")) {
            Some(name) => self.private_accessor(&name, decorators, &halves, elements),
            None => self.public_accessor(&mut accessor, decorators, older, &halves, elements),
        }
        if is_static && elements.moves {
            if let ClassElement::PropertyDefinition(mut property) = field {
                property.r#static = false;
                elements.statics.push(ClassElement::PropertyDefinition(property));
            }
        } else {
            elements.body.push(field);
        }
        if decorated {
            self.after(index, is_static, elements);
        }
    }

    fn private_accessor(
        &mut self,
        name: &str,
        decorators: oxc_allocator::Vec<'a, Decorator<'a>>,
        halves: &Halves,
        elements: &mut Elements<'a>,
    ) {
        let Halves { index, is_static, get, set } = halves;
        let prefix = halves.prefix();
        let (mut own_get, mut own_set) = (get.clone(), set.clone());
        if !decorators.is_empty() {
            let state = elements.state.clone();
            Self::evaluate(*index, decorators, Some(name), elements);
            let access = access(name, true, true);
            elements.described.push(describe(*index, "accessor", *is_static, name, &access));
            // The two that decorators see; what others see leads to what the decorators gave.
            let key = self.expression(&format!("{state}.hidden({index})"), vec![]);
            let key = self.key(key, None, elements);
            let mut getter = self.element_of(&format!("{prefix}get [0]() {{ {get} }}"), vec![]);
            set_key(&mut getter, key);
            let key = PropertyKey::from(self.expression(&format!("{state}.e({index}).at"), vec![]));
            let mut setter = self.element_of(&format!("{prefix}set [0](value) {{ {set} }}"), vec![]);
            set_key(&mut setter, key);
            elements.body.extend([getter, setter]);
            own_get = format!("return {state}.e({index}).get.call(this);");
            own_set = format!("{state}.e({index}).set.call(this, value);");
        }
        elements.body.push(self.element_of(&format!("{prefix}get {name}() {{ {own_get} }}"), vec![]));
        elements.body.push(self.element_of(&format!("{prefix}set {name}(value) {{ {own_set} }}"), vec![]));
    }

    fn public_accessor(
        &mut self,
        accessor: &mut AccessorProperty<'a>,
        decorators: oxc_allocator::Vec<'a, Decorator<'a>>,
        older: oxc_allocator::Vec<'a, Decorator<'a>>,
        halves: &Halves,
        elements: &mut Elements<'a>,
    ) {
        let Halves { index, is_static, get, set } = halves;
        let (prefix, decorated, span) = (halves.prefix(), !decorators.is_empty(), accessor.key.span());
        let name = accessor.key.static_name().filter(|_| !accessor.computed);
        let (first, second) = if let Some(name) = &name {
            if decorated {
                Self::evaluate(*index, decorators, Some(name), elements);
            }
            let own = accessor.key.take_in(&self.allocator);
            (own, PropertyKey::from(self.expression(&quoted(name), vec![])))
        } else {
            Self::evaluate(*index, decorators, None, elements);
            let own = accessor.key.take_in(&self.allocator);
            let first = self.key(own.into_expression(), Some(*index), elements);
            let second = format!("{}.e({index}).key", elements.state);
            (first, PropertyKey::from(self.expression(&second, vec![])))
        };
        let shape = if name.is_some() { "a" } else { "[0]" };
        let mut getter = self.element_of(&format!("{prefix}get {shape}() {{ {get} }}"), vec![]);
        set_key(&mut getter, first);
        if let ClassElement::MethodDefinition(method) = &mut getter {
            method.span = span;
            method.decorators = older;
        }
        let mut setter = self.element_of(&format!("{prefix}set {shape}(value) {{ {set} }}"), vec![]);
        set_key(&mut setter, second);
        elements.body.extend([getter, setter]);
        if decorated {
            elements.described.push(describe(*index, "accessor", *is_static, "", ""));
        }
    }

    // Pieces of code.

    /// `text` as an expression with `slots` in the place of `__slot0`, `__slot1` and so on.
    fn expression(&self, text: &str, slots: Vec<Expression<'a>>) -> Expression<'a> {
        let text = self.allocator.alloc_str(text);
        let mut made = Parser::new(self.allocator, text, SourceType::mjs())
            .parse_expression()
            .unwrap_or_else(|_| unreachable!("what is made here parses: {text}"));
        fill(slots).visit_expression(&mut made);
        made
    }

    fn statement(&self, text: &str, slots: Vec<Expression<'a>>) -> Statement<'a> {
        let text = self.allocator.alloc_str(text);
        let mut program = Parser::new(self.allocator, text, SourceType::mjs()).parse().program;
        let mut made = program.body.pop().expect("there is one statement");
        fill(slots).visit_statement(&mut made);
        made
    }

    fn element_of(&self, text: &str, slots: Vec<Expression<'a>>) -> ClassElement<'a> {
        let made = self.expression(&format!("class {{ {text} }}"), slots);
        let Expression::ClassExpression(class) = made else { unreachable!("it is a class") };
        class.unbox().body.unbox().body.pop().expect("there is one element")
    }
}

/// A decorator for a list: with what it is a method of, if it is one.
fn listed<'a>(decorator: Decorator<'a>, slots: &mut Vec<Expression<'a>>) -> String {
    let slot = slots.len();
    match decorator.expression {
        Expression::StaticMemberExpression(member) if !matches!(member.object, Expression::Super(_)) => {
            let member = member.unbox();
            slots.push(member.object);
            format!("babelHelpers.member(__slot{slot}, {})", quoted(&member.property.name))
        }
        other => {
            slots.push(other);
            format!("__slot{slot}")
        }
    }
}

fn set_key<'a>(element: &mut ClassElement<'a>, key: PropertyKey<'a>) {
    if let ClassElement::MethodDefinition(method) = element {
        method.key = key;
    }
}

/// Takes the pending evaluations: their text, each with a comma behind it but for the last if `end` is empty, and their slots, numbered through.
fn pending<'a>(elements: &mut Elements<'a>, end: &str) -> (String, Vec<Expression<'a>>) {
    let (mut text, mut slots) = (String::new(), Vec::new());
    for (part, own) in elements.pending.drain(..) {
        let first = slots.len();
        text.push_str(&renumbered(&part, first));
        text.push(',');
        slots.extend(own);
    }
    text.push_str(end);
    (text, slots)
}

/// `text` with the numbers of its slots moved up by `first`.
fn renumbered(text: &str, first: usize) -> String {
    let mut parts = text.split("__slot");
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let number: usize = part[..digits].parse().unwrap_or_default();
        let _ = write!(made, "__slot{}{}", number + first, &part[digits..]);
    }
    made
}

/// An element for `$.apply`: index, kind, whether it is static, private name, and how the private name is got at.
fn describe(index: usize, kind: &str, is_static: bool, private: &str, access: &str) -> String {
    let access = if access.is_empty() { "undefined" } else { access };
    format!("[{index},\"{kind}\",{is_static},{},{access}]", quoted(private))
}

fn access(name: &str, get: bool, set: bool) -> String {
    let get = if get { format!(",get:o=>o.{name}") } else { String::new() };
    let set = if set { format!(",set:(o,v)=>{{o.{name}=v}}") } else { String::new() };
    format!("{{has:o=>{name} in o{get}{set}}}")
}

/// `text` as a literal of JavaScript.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(text).expect("a string");
    json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Puts expressions in the place of `__slotN`, and takes the places from everything else.
struct Fill<'a> {
    slots: Vec<Option<Expression<'a>>>,
}

fn fill(slots: Vec<Expression<'_>>) -> Fill<'_> {
    Fill { slots: slots.into_iter().map(Some).collect() }
}

impl<'a> VisitMut<'a> for Fill<'a> {
    fn visit_expression(&mut self, expression: &mut Expression<'a>) {
        if let Expression::Identifier(name) = expression
            && let Some(number) = name.name.strip_prefix("__slot")
            && let Ok(number) = number.parse::<usize>()
            && let Some(slot) = self.slots.get_mut(number).and_then(Option::take)
        {
            *expression = slot;
            return;
        }
        walk_mut::walk_expression(self, expression);
    }

    fn visit_span(&mut self, span: &mut Span) {
        *span = SPAN;
    }
}

/// Puts statements into the empty function of `#x = (() => {})()`.
struct FillBlock<'a> {
    body: Option<oxc_allocator::Vec<'a, Statement<'a>>>,
}

impl<'a> VisitMut<'a> for FillBlock<'a> {
    fn visit_function_body(&mut self, function: &mut FunctionBody<'a>) {
        if let Some(body) = self.body.take() {
            function.statements = body;
        }
    }
}

/// `super.x` in statics that went around their class.
struct Supers<'l, 'a> {
    lowering: &'l Lowering<'a>,
    state: &'l str,
}

impl<'a> VisitMut<'a> for Supers<'_, 'a> {
    fn visit_expression(&mut self, expression: &mut Expression<'a>) {
        if let Expression::CallExpression(call) = expression
            && let Some(looked) = self.member(&mut call.callee)
        {
            call.callee = self.lowering.expression("__slot0.call", vec![looked]);
            let this = self.lowering.expression(&format!("{}.c", self.state), vec![]);
            call.arguments.insert(0, this.into());
        } else if let Some(looked) = self.member(expression) {
            *expression = looked;
        }
        walk_mut::walk_expression(self, expression);
    }

    // Their `super` is another one.
    fn visit_function(&mut self, _function: &mut Function<'a>, _flags: ScopeFlags) {}

    fn visit_class(&mut self, _class: &mut Class<'a>) {}
}

impl<'a> Supers<'_, 'a> {
    fn member(&self, expression: &mut Expression<'a>) -> Option<Expression<'a>> {
        let (key, is_super) = match expression {
            Expression::StaticMemberExpression(member) => {
                let key = self.lowering.expression(&quoted(&member.property.name), vec![]);
                (key, matches!(member.object, Expression::Super(_)))
            }
            Expression::ComputedMemberExpression(member) if matches!(member.object, Expression::Super(_)) => {
                (member.expression.take_in(&self.lowering.allocator), true)
            }
            _ => return None,
        };
        is_super.then(|| self.lowering.expression(&format!("{}.super(__slot0)", self.state), vec![key]))
    }
}

/// What of the function around a class its decorators, keys and base need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    No,
    Await,
    Yield,
}

fn awaits_in(class: &Class<'_>) -> Waits {
    let mut search = Search(Waits::No);
    walk::walk_class(&mut search, class);
    search.0
}

/// Looks at what runs when the class is made; values of fields and static blocks can have neither.
struct Search(Waits);

impl<'a> Visit<'a> for Search {
    fn visit_await_expression(&mut self, await_: &oxc_ast::ast::AwaitExpression<'a>) {
        if self.0 == Waits::No {
            self.0 = Waits::Await;
        }
        walk::walk_await_expression(self, await_);
    }

    fn visit_yield_expression(&mut self, _yield: &oxc_ast::ast::YieldExpression<'a>) {
        self.0 = Waits::Yield;
    }

    fn visit_function(&mut self, _function: &Function<'a>, _flags: ScopeFlags) {}

    fn visit_arrow_function_expression(&mut self, _arrow: &oxc_ast::ast::ArrowFunctionExpression<'a>) {}
}
