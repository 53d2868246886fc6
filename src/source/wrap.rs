//! Tool → edits that make the text runnable. The user's lines stay lines, and what is inserted has no line end, so that
//! places in errors are the user's own.

use std::fmt::Write as _;
use std::ops::Range;

use oxc_str::Ident;

use super::Kind;
use super::classify::Entry;
use super::parse::{Language, Reading, Tree};

/// Makes a function of what stands for one (see `classify::members_of` for the rule), or says what it got instead.
const PICK: &str = concat!(
    r#"(t=>{if(typeof t==="function")return t;const o=t!==null&&typeof t==="object"?t:{};"#,
    r#"for(const k of["default","execute","handler","main"])if(typeof o[k]==="function")return o[k].bind(o);"#,
    r#"const f=Object.values(o).filter(v=>typeof v==="function");if(f.length===1)return f[0].bind(o);"#,
    r#"throw new TypeError("The code gives "+(t===null?"null":f.length?"an object with several functions, none of them called execute":"#,
    r#"typeof t==="object"?typeof t.then==="function"?"a promise":"an object without a function":typeof t)+", not a function")})"#,
);

/// What the transform of legacy decorators calls; the meaning is that of TypeScript's own helpers.
const DECORATORS: &str = concat!(
    "const babelHelpers={decorate(list,target,...member){const[key,given]=member;",
    "let result=!member.length?target:given===null?Object.getOwnPropertyDescriptor(target,key):given;",
    "for(const decorator of[...list].reverse())result=(!member.length?decorator(result):",
    "member.length>1?decorator(target,key,result):decorator(target,key))||result;",
    "if(member.length>1&&result)Object.defineProperty(target,key,result);return result},",
    "decorateParam:(index,decorator)=>(target,key)=>decorator(target,key,index)};",
);

/// What the worker passes to a script's function.
const PARAMETERS: [&str; 5] = ["exports", "require", "module", "__filename", "__dirname"];

/// A text and what is to be put into it.
#[derive(Debug, Default)]
pub(super) struct Wrapped {
    /// Before everything, on the user's first line.
    prologue: String,
    /// Offsets in the user's text, ascending, and what goes there.
    inserts: Vec<(usize, String)>,
    /// Behind everything, on a line of its own.
    epilogue: String,
    /// Where the tool starts, in the user's text.
    tool: usize,
}

pub(super) fn wrap(tree: &Tree<'_>, entry: &Entry<'_>) -> Wrapped {
    let mut wrapped = Wrapped { prologue: prologue(tree), tool: usize::MAX, ..Wrapped::default() };
    let give = match tree.kind {
        Kind::Script => "return ",
        Kind::Module => "export default ",
    };
    match *entry {
        Entry::Expression { span, after, last, sure } => {
            let range = tree.range(span);
            let before = if after.is_some() { ";" } else { "" };
            let at = after.map_or(0, |end| end as usize);
            let (open, close) = around(sure);
            wrapped.tool = range.start;
            // The `;` is for a function that was a statement: the next one may stand on its line.
            if last || tree.kind == Kind::Module {
                wrapped.insert(at, format!("{before}{give}{open}"));
                wrapped.insert(range.end, format!("{close};"));
            } else {
                // What stands below has to run, too. The comma keeps the function from getting the variable's name.
                let name = tree.unused_name("__tool");
                wrapped.insert(at, format!("{before}var {name}=(0,{open}"));
                wrapped.insert(range.end, format!("{close});"));
                wrapped.epilogue = format!("return {name};");
            }
        }
        Entry::Named { name } if tree.kind == Kind::Module => {
            wrapped.epilogue = format!("export{{{name} as default}};");
        }
        Entry::Named { name } => wrapped.epilogue = format!("return {name};"),
        Entry::Default { unsure: None } => {}
        Entry::Default { unsure: Some(span) } => {
            let Range { start, end } = tree.range(span);
            let (open, close) = around(false);
            wrapped.insert(start, open);
            wrapped.insert(end, close.to_owned());
        }
        Entry::Assigned => {
            let exports = if tree.declares("module") { "exports" } else { "module.exports" };
            wrapped.epilogue = format!("{give}{PICK}({exports});");
        }
        Entry::Members { end } => {
            wrapped.tool = 0;
            wrapped.insert(0, format!("{give}{PICK}({{"));
            match end {
                Some(method) => {
                    wrapped.insert((method - Reading::ClassMembers.base()) as usize, "})".to_owned());
                }
                None => "});".clone_into(&mut wrapped.epilogue),
            }
        }
    }
    if tree.is_free("__name") {
        // Bundlers call it at any place; a declaration is there before everything.
        wrapped.epilogue.push_str("function __name(f){return f}");
    }
    if tree.kind == Kind::Script && PARAMETERS.iter().any(|name| tree.declares(name)) {
        // `const module` beside a parameter of that name is an error; in a function of its own it is not.
        wrapped.prologue.insert_str(0, "return(()=>{");
        wrapped.epilogue.push_str("})();");
    }
    wrapped
}

/// What to put around the tool's expression. The second parenthesis is for `a, b`.
fn around(sure: bool) -> (String, &'static str) {
    if sure { ("(".to_owned(), ")") } else { (format!("{PICK}(("), "))") }
}

/// What the code uses without declaring it.
fn prologue(tree: &Tree<'_>) -> String {
    let mut prologue = String::new();
    if tree.kind == Kind::Module {
        if tree.is_free("require") {
            let create = tree.unused_name("__createRequire");
            let _ = write!(
                prologue,
                "import{{createRequire as {create}}}from\"node:module\";const require={create}(import.meta.url);"
            );
        }
        for (name, value) in [("__filename", "import.meta.filename"), ("__dirname", "import.meta.dirname")] {
            if tree.is_free(name) {
                let _ = write!(prologue, "const {name}={value};");
            }
        }
        match (tree.declares("module"), tree.is_free("module"), tree.is_free("exports")) {
            (false, _, true) => prologue.push_str("const module={exports:{}},exports=module.exports;"),
            (false, true, false) => prologue.push_str("const module={exports:{}};"),
            (true, _, true) => prologue.push_str("const exports={};"),
            _ => {}
        }
    }
    if tree.language != Language::JavaScript && tree.facts.decorators {
        prologue.push_str(DECORATORS);
    }
    // A directive counts only at the very start.
    let strict = tree.kind == Kind::Script
        && tree.program.directives.iter().any(|directive| directive.directive == "use strict");
    if strict && !prologue.is_empty() {
        prologue.insert_str(0, "\"use strict\";");
    }
    prologue
}

impl Tree<'_> {
    /// Whether the text declares `name` at its top level.
    fn declares(&self, name: &str) -> bool {
        self.scoping.get_root_binding(Ident::from(name)).is_some()
    }

    /// `name`, made longer until the text does not have it.
    fn unused_name(&self, name: &str) -> String {
        let mut name = name.to_owned();
        while self.program.source_text.contains(&name) {
            name.push('_');
        }
        name
    }
}

impl Wrapped {
    fn insert(&mut self, at: usize, text: String) {
        self.inserts.push((at, text));
    }

    /// Whether all inserts are within a text of `length` bytes and in order. They are not where the parser, after a second look at
    /// an `await`, has statements that overlap.
    pub(super) fn is_sound(&self, length: usize) -> bool {
        self.inserts.is_sorted_by_key(|(at, _)| *at) && self.inserts.iter().all(|(at, _)| *at <= length)
    }

    /// The text with everything in it.
    pub(super) fn code(&self, text: &str) -> String {
        let added: usize = self.inserts.iter().map(|(_, insert)| insert.len()).sum();
        let mut code =
            String::with_capacity(self.prologue.len() + text.len() + added + self.epilogue.len() + 1);
        code.push_str(&self.prologue);
        let mut done = 0;
        for (at, insert) in &self.inserts {
            push_text(&mut code, text, done..*at);
            code.push_str(insert);
            done = *at;
        }
        push_text(&mut code, text, done..text.len());
        if !self.epilogue.is_empty() {
            code.push('\n');
            code.push_str(&self.epilogue);
        }
        code
    }

    /// See [`super::Prepared::column_offset`].
    pub(super) fn column_offset(&self, text: &str) -> i32 {
        let first_line = text.find(['\n', '\r']).unwrap_or(text.len());
        let until = if self.tool <= first_line { self.tool } else { 0 };
        let inserts = self.inserts.iter().filter(|(at, _)| *at <= until && self.tool <= first_line);
        let columns: usize = self.prologue.len() + inserts.map(|(_, insert)| insert.len()).sum::<usize>();
        i32::try_from(columns).unwrap_or(i32::MAX)
    }

    /// Where offset `at` of [`Self::code`] is in the user's text; places that were put in are where they were put.
    pub(super) fn user_offset(&self, at: usize) -> usize {
        let mut at = at.saturating_sub(self.prologue.len());
        for (place, insert) in &self.inserts {
            if at <= *place {
                break;
            }
            at = place + at.saturating_sub(place + insert.len());
        }
        at
    }

    /// The same for a line and a column (0-based, UTF-16 units) of [`Self::code`]; `None` for what was put in.
    pub(super) fn user_column(&self, marks: &[Mark], line: u32, column: u32) -> Option<u32> {
        let mut column = column;
        if line == 0 {
            column = column.checked_sub(units(&self.prologue))?;
        }
        let first = marks.partition_point(|mark| mark.line < line);
        for mark in marks[first..].iter().take_while(|mark| mark.line == line) {
            if column < mark.column {
                break;
            }
            column = if column >= mark.column + mark.units { column - mark.units } else { return None };
        }
        Some(column)
    }

    /// The inserts as places, for [`Self::user_column`].
    pub(super) fn marks(&self, text: &str) -> Vec<Mark> {
        let (mut line, mut line_start, mut done) = (0, 0, 0);
        let mut marks = Vec::with_capacity(self.inserts.len());
        for (at, insert) in &self.inserts {
            for (end, length) in line_ends(&text[done..*at]) {
                (line, line_start) = (line + 1, done + end + length);
            }
            done = *at;
            marks.push(Mark { line, column: units(&text[line_start..*at]), units: units(insert) });
        }
        marks
    }
}

/// Line (0-based) of [`Wrapped::code`] on which what was put behind `text` starts.
pub(super) fn epilogue_line(text: &str) -> u32 {
    u32::try_from(line_ends(text).count()).map_or(u32::MAX, |line| line + 1)
}

/// An insert's place in the user's text: line and column (0-based, UTF-16 units) and how long it is.
pub(super) struct Mark {
    line: u32,
    column: u32,
    units: u32,
}

/// A shebang is no JavaScript except in the first column of a file; as a comment it takes the same room.
fn push_text(code: &mut String, text: &str, range: Range<usize>) {
    let part = &text[range.clone()];
    match part.strip_prefix("#!") {
        Some(rest) if range.start == 0 => {
            code.push_str("//");
            code.push_str(rest);
        }
        _ => code.push_str(part),
    }
}

fn units(text: &str) -> u32 {
    u32::try_from(text.encode_utf16().count()).unwrap_or(u32::MAX)
}

/// Offsets and lengths of the line ends of JavaScript.
fn line_ends(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let ends = text.match_indices(['\n', '\r', '\u{2028}', '\u{2029}']);
    ends.filter(|(at, end)| !(*end == "\r" && text[at + 1..].starts_with('\n')))
        .map(|(at, end)| (at, end.len()))
}
