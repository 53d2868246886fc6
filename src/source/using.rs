//! `for (using a = open(); …; …)` → `{ using a = open(); for (; …; …) }`, which the transform of `using` knows how to go on with.

use oxc_allocator::{Allocator, Box, TakeIn, Vec};
use oxc_ast::ast::{BlockStatement, ForStatementInit, Program, Statement, VariableDeclarationKind};
use oxc_ast_visit::{VisitMut, walk_mut};
use oxc_parser::Parser;
use oxc_span::{SPAN, SourceType};

/// Moves every `using` of a loop's head in front of the loop. What it declares cannot be assigned, so that one for all rounds is enough.
pub(super) fn out_of_loops<'a>(allocator: &'a Allocator, program: &mut Program<'a>) {
    Loops { allocator }.visit_program(program);
}

struct Loops<'a> {
    allocator: &'a Allocator,
}

impl<'a> VisitMut<'a> for Loops<'a> {
    fn visit_statement(&mut self, statement: &mut Statement<'a>) {
        // First from the outermost label: below it, a block would part the label from its loop.
        let declaration = taken(statement);
        walk_mut::walk_statement(self, statement);
        let Some(declaration) = declaration else { return };
        let inner = statement.take_in(&self.allocator);
        let mut block = self.block();
        block.body.push(declaration);
        block.body.push(inner);
        *statement = Statement::BlockStatement(block);
    }
}

impl<'a> Loops<'a> {
    fn block(&self) -> Box<'a, BlockStatement<'a>> {
        let mut program = Parser::new(self.allocator, "{}", SourceType::mjs()).parse().program;
        match program.body.pop() {
            Some(Statement::BlockStatement(mut block)) => {
                block.span = SPAN;
                block.body = Vec::new_in(&self.allocator);
                block
            }
            _ => unreachable!("`{{}}` is a block"),
        }
    }
}

/// Takes the declaration out of the head of the loop that `statement` is, below its labels: these stay with the loop.
fn taken<'a>(statement: &mut Statement<'a>) -> Option<Statement<'a>> {
    match statement {
        Statement::LabeledStatement(labeled) => taken(&mut labeled.body),
        Statement::ForStatement(loop_) => match &mut loop_.init {
            Some(ForStatementInit::VariableDeclaration(variables))
                if matches!(
                    variables.kind,
                    VariableDeclarationKind::Using | VariableDeclarationKind::AwaitUsing
                ) =>
            {
                match loop_.init.take() {
                    Some(ForStatementInit::VariableDeclaration(variables)) => {
                        Some(Statement::VariableDeclaration(variables))
                    }
                    _ => None,
                }
            }
            _ => None,
        },
        _ => None,
    }
}
