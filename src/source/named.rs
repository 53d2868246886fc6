//! Named imports from packages that turn out to be `CommonJS`. Node finds the names of such a package by a look at its text, and refuses those
//! that it does not see, before anything runs. Bundlers read them from `module.exports` instead, and so does the worker when Node has
//! refused: what to write in the place of each import stands in a comment behind the module's code.

use std::fmt::Write as _;

use oxc_ast::ast::{
    BindingIdentifier, ExportFromDeclaration, ImportDeclaration, ImportDeclarationSpecifier,
    ModuleExportName, Program, Statement,
};
use oxc_span::Span;
use serde::Serialize;

use super::facts::package_of;

/// What the comment starts with; `worker.cjs` looks for it.
const COMMENT: &str = "\n//# namedImports=";

/// Imported as a whole, a module gets one of these names: one UTF-16 unit each, so that the new import is no longer than the old one.
const NAMES: std::ops::RangeInclusive<char> = '\u{a000}'..='\u{a0ff}';

/// What the worker is told of one statement.
#[derive(Debug, Serialize)]
struct Named<'a> {
    specifier: &'a str,
    /// Where the statement up to the specifier stands, in UTF-16 units of the code.
    start: usize,
    end: usize,
    /// What goes there: as long, with the same line ends.
    text: String,
    /// Names that the package has to have.
    names: Vec<&'a str>,
    /// What the package is called by `text`.
    module: String,
    /// Declares the names; `names` were looked at before. With `all`, the one name for all of them.
    declare: String,
    /// `import * as a`: Node refuses nothing, and gives what it sees only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    all: bool,
}

/// The comment for `code`, which `program` was read from; empty where nothing is imported by name from a package.
pub(super) fn comment(program: &Program<'_>, code: &str) -> String {
    let mut free = NAMES.filter(|name| !code.contains(*name));
    let named: Vec<Named<'_>> = program
        .body
        .iter()
        .filter_map(|statement| match statement {
            Statement::ImportDeclaration(import) => of_import(import, code, &mut free),
            Statement::ExportFromDeclaration(export) => of_export(export, code, &mut free),
            _ => None,
        })
        .collect();
    if named.is_empty() {
        return String::new();
    }
    let json = serde_json::to_string(&named).expect("strings and numbers");
    // JSON may hold what ends a line of JavaScript.
    let json = json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    format!("{COMMENT}{json}")
}

fn of_import<'a>(
    import: &'a ImportDeclaration<'_>,
    code: &str,
    free: &mut impl Iterator<Item = char>,
) -> Option<Named<'a>> {
    package_of(&import.source.value)?;
    let specifiers = import.specifiers.as_ref()?;
    let (mut default, mut names, mut pattern) = (None, Vec::new(), String::new());
    for specifier in specifiers {
        match specifier {
            ImportDeclarationSpecifier::ImportDefaultSpecifier(own) => {
                default = Some((own.local.name.as_str(), own.span));
            }
            ImportDeclarationSpecifier::ImportNamespaceSpecifier(all) => {
                return of_all(import, &all.local, code, free);
            }
            ImportDeclarationSpecifier::ImportSpecifier(one) => {
                let name = name_of(&one.imported);
                if name == "default" {
                    let _ = write!(pattern, "{}=$,", one.local.name);
                    continue;
                }
                let _ = write!(pattern, "{}=$[{}],", one.local.name, quoted(name));
                names.push(name);
            }
        }
    }
    if names.is_empty() {
        return None;
    }
    let (module, keep) = match default {
        Some((name, span)) => (name.to_owned(), Some(span)),
        None => (free.next()?.to_string(), None),
    };
    let declare = format!("const {};", pattern.replace('$', &module).trim_end_matches(','));
    named(code, import.span, import.source.span, &import.source.value, module, keep, names, declare)
}

/// `import * as a`: only the name changes place.
fn of_all<'a>(
    import: &'a ImportDeclaration<'_>,
    local: &BindingIdentifier<'_>,
    code: &str,
    free: &mut impl Iterator<Item = char>,
) -> Option<Named<'a>> {
    let (start, end) = (import.span.start as usize, import.source.span.start as usize);
    let (from, to) = (local.span.start as usize, local.span.end as usize);
    let module = free.next()?.to_string();
    let units = |text: &str| text.encode_utf16().count();
    let blanks = " ".repeat(units(code.get(from..to)?).checked_sub(1)?);
    let text = format!("{}{module}{blanks}{}", code.get(start..from)?, code.get(to..end)?);
    let at = units(code.get(..start)?);
    Some(Named {
        specifier: &import.source.value,
        start: at,
        end: at + units(code.get(start..end)?),
        text,
        names: Vec::new(),
        module,
        declare: local.name.to_string(),
        all: true,
    })
}

fn of_export<'a>(
    export: &'a ExportFromDeclaration<'_>,
    code: &str,
    free: &mut impl Iterator<Item = char>,
) -> Option<Named<'a>> {
    package_of(&export.source.value)?;
    let module = free.next()?.to_string();
    let (mut names, mut variables, mut exported) = (Vec::new(), String::new(), String::new());
    for specifier in &export.specifiers {
        let name = name_of(&specifier.local);
        let variable = free.next()?;
        if name == "default" {
            let _ = write!(variables, "{variable}={module},");
        } else {
            let _ = write!(variables, "{variable}={module}[{}],", quoted(name));
            names.push(name);
        }
        let _ = write!(exported, "{variable} as {},", quoted(name_of(&specifier.exported)));
    }
    if names.is_empty() {
        return None;
    }
    let declare = format!("const {};export{{{exported}}};", variables.trim_end_matches(','));
    named(code, export.span, export.source.span, &export.source.value, module, None, names, declare)
}

#[expect(clippy::too_many_arguments, reason = "the two kinds of statement differ in all of them")]
fn named<'a>(
    code: &str,
    statement: Span,
    source: Span,
    specifier: &'a str,
    module: String,
    keep: Option<Span>,
    names: Vec<&'a str>,
    declare: String,
) -> Option<Named<'a>> {
    let before = code.get(..statement.start as usize)?;
    let old = code.get(statement.start as usize..source.start as usize)?;
    let kept = match keep {
        Some(span) => (span.start - statement.start) as usize..(span.end - statement.start) as usize,
        None => 0..0,
    };
    let text = rewritten(old, &module, kept)?;
    let start = before.encode_utf16().count();
    let end = start + old.encode_utf16().count();
    Some(Named { specifier, start, end, text, names, module, declare, all: false })
}

/// `import {a, b as c} from`: the same units and lines, with `module` in the place of the names.
fn rewritten(old: &str, module: &str, kept: std::ops::Range<usize>) -> Option<String> {
    let mut units: Vec<char> = Vec::with_capacity(old.len());
    for (at, character) in old.char_indices() {
        let stays = matches!(character, '\n' | '\r' | '\u{2028}' | '\u{2029}') || kept.contains(&at);
        let width = character.len_utf16();
        units.extend(std::iter::repeat_n(' ', width - 1));
        units.push(if stays { character } else { ' ' });
    }
    let mut put = |at: usize, text: &str| {
        for (index, character) in text.chars().enumerate() {
            let place = units.get_mut(at + index)?;
            if *place != ' ' {
                return None;
            }
            *place = character;
        }
        Some(())
    };
    put(0, "import")?;
    if kept.is_empty() {
        put("import ".len(), module)?;
    }
    let end = old.encode_utf16().count();
    put(end.checked_sub("from".len())?, "from")?;
    let text: String = units.iter().collect();
    // The three words have to be three.
    (text.split_whitespace().collect::<Vec<_>>() == ["import", module, "from"]).then_some(text)
}

fn name_of<'a>(name: &'a ModuleExportName<'_>) -> &'a str {
    match name {
        ModuleExportName::IdentifierName(name) => name.name.as_str(),
        ModuleExportName::IdentifierReference(name) => name.name.as_str(),
        ModuleExportName::StringLiteral(name) => name.value.as_str(),
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string")
}

#[cfg(test)]
mod tests {
    use super::rewritten;

    #[test]
    fn imports_keep_their_lengths_and_lines() {
        for (old, new) in [
            ("import{a}from", Some("import ꀀ from")),
            ("import { a as b, c } from ", None),
            ("import { a as b } from", Some("import ꀀ          from")),
            ("import {\n  a,\n  b,\n} from", Some("import ꀀ\n    \n    \n  from")),
            ("import\n{a}from", None),
            ("export { a } from", Some("import ꀀ     from")),
        ] {
            let text = rewritten(old, "ꀀ", 0..0);
            if let Some(new) = new {
                assert_eq!(text.as_deref(), Some(new), "{old:?}");
            }
            if let Some(text) = text {
                assert_eq!(text.chars().count(), old.chars().count());
            }
        }
        assert_eq!(rewritten("import d, { a } from", "d", 7..8).as_deref(), Some("import d        from"));
    }
}
