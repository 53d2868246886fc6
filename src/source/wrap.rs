//! Tool → edits that make the text runnable. The user's lines stay lines, and what is inserted has no line end, so that
//! places in errors are the user's own.

use std::fmt::Write as _;
use std::ops::Range;

use super::Kind;
use super::classify::{Choice, Entry};
use super::decorators;
use super::parse::{Language, Reading, Tree};

/// Makes a function of what stands for one (see `classify::members_of` for the rule), or says what it got instead. Takes lists
/// of values, each with what it is called in an error: the one tool among the first is it, else the one among the second. The error's `code`
/// tells the worker that the text is no good.
const PICK: &str = concat!(
    r#"((p,b)=>{const F="function",is=v=>v!==null&&typeof v==="object","#,
    r#"no=v=>/^class\b/.test(Function.prototype.toString.call(v))?"a class":0,"#,
    r#"made=v=>{const o=Object.values(v),t=Object.getPrototypeOf(v);if(t!==null&&t!==Object.prototype)for(const k of Object.getOwnPropertyNames(t)){"#,
    r#"const d=Object.getOwnPropertyDescriptor(t,k);if(k!=="constructor"&&typeof d.value===F)o.push(d.value)}return o.filter(f=>typeof f===F)},"#,
    r#"find=(v,n)=>{if(typeof v===F)return no(v)?0:v;if(!is(v))return 0;"#,
    r#"for(const k of["default","execute","handler","main","run","invoke","call"])if(typeof v[k]===F)return no(v[k])?0:v[k].bind(v);"#,
    r#"const f=n<2&&typeof v.then!==F?made(v):[];return f.length===1&&!no(f[0])?f[0].bind(v):0},"#,
    r#"told=v=>v===null?"null":typeof v===F?no(v):!is(v)?typeof v:typeof v.then===F?"a promise":made(v).length>1?"#,
    r#""an object with several functions, none of them called execute":made(v).some(no)?no(made(v).find(no)):"an object without a function","#,
    r#"fail=m=>{throw Object.assign(new TypeError(m),{code:"ERR_NO_TOOL"})},tools=l=>l.map(([n,v])=>[n,find(v,p.length)]).filter(([,f])=>f);"#,
    r#"let t=tools(p);if(!t.length&&b.length&&p.every(([,v])=>typeof v!==F&&(!is(v)||typeof v.then===F||!made(v).length)))t=tools(b);"#,
    r#"if(t.length===1)return t[0][1];"#,
    r#"if(t.length)fail("Several functions could be the tool: "+t.map(([n])=>n).join(", ")+". Call one `execute`, or end with `export default` and its name");"#,
    r#"fail(p.map(([n,v])=>n+" gives "+told(v)).join(", ")+", not a function")})"#,
);

/// Around the one value that [`PICK`] looks at.
const OPEN: &str = "([[\"The code\",";
const CLOSE: &str = "]],[])";

/// What the transform of legacy decorators calls; the meaning is that of TypeScript's own helpers.
const DECORATORS: &str = concat!(
    "decorate(list,target,...member){const[key,given]=member;",
    "let result=!member.length?target:given===null?Object.getOwnPropertyDescriptor(target,key):given;",
    "for(const decorator of[...list].reverse())result=(!member.length?decorator(result):",
    "member.length>1?decorator(target,key,result):decorator(target,key))||result;",
    "if(member.length>1&&result)Object.defineProperty(target,key,result);return result},",
    "decorateParam:(index,decorator)=>(target,key)=>decorator(target,key,index),",
    "decorateMetadata:(key,value)=>typeof Reflect.metadata===\"function\"?Reflect.metadata(key,value):()=>{},",
);

/// What `decorators.rs` calls: `decorated` gives the state of one class, `member` a decorator that is a method. The order of everything, the contexts and the errors
/// are those of TypeScript's own helpers; `Symbol.metadata` is made where the Node lacks it.
const STANDARD: &str = concat!(
    "member:(object,name)=>[object,object[name]],",
    "decorated(list,name){",
    "if(!Symbol.metadata)Object.defineProperty(Symbol,\"metadata\",{value:Symbol.for(\"Symbol.metadata\"),writable:true,configurable:true});",
    "const host=Symbol(\"decorated\"),elements=[],instance=[],ofStatics=[],ofClass=[],",
    "callable=value=>{if(typeof value!==\"function\")throw new TypeError(\"Function expected\");return value},",
    "run=(self,list)=>{for(const each of list)each.call(self)},",
    "apply=(decorators,context,given,take,extra)=>{for(const entry of[...decorators].reverse()){",
    "const[decorator,self]=Array.isArray(entry)?[entry[1],entry[0]]:[entry];",
    "if(typeof decorator!==\"function\")throw new TypeError(\"A decorator has to be a function\");",
    "let done=false;const own={...context};if(own.access)own.access={...own.access};",
    "own.addInitializer=each=>{if(done)throw new TypeError(\"Cannot add initializers after decoration has completed\");extra.push(callable(each))};",
    "const result=decorator.call(self,given(),own);done=true;if(result!==undefined)take(result)}},",
    "nameOf=(value,name,prefix)=>{if(value)Object.defineProperty(value,\"name\",{value:prefix+name,configurable:true})};",
    "return{host,kept:[],c:undefined,o:undefined,identity:function(value){return value},",
    "d(index,decorators,key){elements[index]={decorators,key,init:[],extra:[]}},",
    "k:(index,key)=>elements[index].key=typeof key===\"symbol\"?key:`${key}`,",
    "keep(index,key){return this.kept[index]=typeof key===\"symbol\"?key:`${key}`},",
    "e:index=>elements[index],",
    "hidden:index=>elements[index].at=Symbol(\"hidden\"),",
    "apply(target,described){this.o=this.c=target;delete target[host];if(!list.length&&!described.length)return;",
    "const metadata=Object.create(Object.getPrototypeOf(target)?.[Symbol.metadata]??null),",
    "rank=([,kind,isStatic])=>(kind===\"field\"?2:0)+(isStatic?0:1);",
    "for(const[index,kind,isStatic,hidden,access]of[...described].sort((a,b)=>rank(a)-rank(b))){",
    "const element=elements[index],home=isStatic?target:target.prototype,key=hidden||element.key,at=element.at??element.key,",
    "reads=kind!==\"setter\",writes=kind===\"setter\"||kind===\"field\"||kind===\"accessor\",",
    "context={kind,name:key,static:isStatic,private:hidden!==\"\",access:access??{has:object=>key in object,",
    "...(reads&&{get:object=>object[key]}),...(writes&&{set:(object,value)=>{object[key]=value}})},metadata};",
    "if(kind===\"field\"){apply(element.decorators,context,()=>undefined,result=>element.init.unshift(callable(result)),element.extra);continue}",
    "const found=Object.getOwnPropertyDescriptor(home,at);",
    "if(hidden){delete home[at];nameOf(found.value,hidden,\"\");nameOf(found.get,hidden,\"get \");nameOf(found.set,hidden,\"set \")}",
    "if(kind===\"accessor\")apply(element.decorators,context,()=>({get:found.get,set:found.set}),result=>{",
    "if(result===null||typeof result!==\"object\")throw new TypeError(\"Object expected\");",
    "if(result.get!==undefined)found.get=callable(result.get);if(result.set!==undefined)found.set=callable(result.set);",
    "if(result.init!==undefined)element.init.unshift(callable(result.init))},element.extra);",
    "else{const slot=kind===\"getter\"?\"get\":kind===\"setter\"?\"set\":\"value\";",
    "apply(element.decorators,context,()=>found[slot],result=>{found[slot]=callable(result)},isStatic?ofStatics:instance)}",
    "if(hidden)Object.assign(element,{value:found.value,get:found.get,set:found.set});else Object.defineProperty(home,at,found)}",
    "apply(list,{kind:\"class\",name,metadata},()=>this.c,result=>{this.c=callable(result)},ofClass);",
    "Object.defineProperty(this.c,Symbol.metadata,{value:metadata,writable:true,enumerable:true,configurable:true})},",
    "super(key){return Reflect.get(Object.getPrototypeOf(this.o),key,this.c)},",
    "statics(self){run(self,ofStatics)},start(self){run(self,instance)},",
    "named(index,value){const{key}=elements[index];if(value.name===\"\")nameOf(value,typeof key===\"symbol\"?`[${key.description??\"\"}]`:key,\"\");return value},",
    "init(index,self,value){for(const each of elements[index].init)value=each.call(self,value);return value},",
    "after(index,self){run(self,elements[index].extra)},end(){run(this.c,ofClass)}}},",
);

/// What the transform of `using` calls: `u` and `a` take a resource, `e` is what was thrown, `d` disposes of all.
const USING: &str = concat!(
    "usingCtx(){const none={},stack=[],add=(wait,value)=>{",
    "if(value===null||value===undefined){if(wait)stack.push({wait});return value}",
    "if(Object(value)!==value)throw new TypeError(\"using declarations can only be used with objects, functions, null, or undefined\");",
    "let dispose=wait?value[Symbol.asyncDispose]:undefined;const late=wait&&(dispose===undefined||dispose===null);",
    "if(late||!wait)dispose=value[Symbol.dispose];",
    "if(typeof dispose!==\"function\")throw new TypeError(\"Object is not disposable: it has no method Symbol.\"+(wait?\"asyncDispose\":\"dispose\"));",
    "stack.push({wait,late,value,dispose});return value};",
    "const both=(error,suppressed)=>typeof SuppressedError===\"function\"?",
    "new SuppressedError(error,suppressed,\"An error was suppressed during disposal\"):",
    "Object.assign(new Error(\"An error was suppressed during disposal\"),{name:\"SuppressedError\",error,suppressed});",
    "return{e:none,u:value=>add(false,value),a:value=>add(true,value),d(){",
    "const failed=error=>{this.e=this.e===none?error:both(error,this.e)};",
    "const next=()=>{while(stack.length){const{wait,late,value,dispose}=stack.pop();try{",
    "const given=dispose===undefined?undefined:dispose.call(value);",
    "if(wait)return Promise.resolve(late?undefined:given).then(next,error=>{failed(error);return next()})",
    "}catch(error){failed(error)}}if(this.e!==none)throw this.e};return next()}}},",
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
    match entry {
        &Entry::Expression { span, after, last, sure } => {
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
        Entry::Looked { last, named, otherwise } => {
            let mut values = listed(named);
            if let &Some((span, after)) = last {
                let range = tree.range(span);
                let name = tree.unused_name("__last");
                let before = if after.is_some() { ";" } else { "" };
                wrapped.insert(after.map_or(0, |end| end as usize), format!("{before}var {name}=(0,("));
                wrapped.insert(range.end, "));".to_owned());
                values.push(format!("[\"the last statement\",{name}]"));
            }
            let (values, others) = (values.join(","), listed(otherwise).join(","));
            wrapped.epilogue = format!("{give}{PICK}([{values}],[{others}]);");
        }
        Entry::Default { unsure: None } => {}
        &Entry::Default { unsure: Some(span) } => {
            let Range { start, end } = tree.range(span);
            let (open, close) = around(false);
            wrapped.insert(start, open);
            wrapped.insert(end, close.to_owned());
        }
        Entry::Assigned => {
            let exports = if tree.declares("module") { "exports" } else { "module.exports" };
            wrapped.epilogue = format!("{give}{PICK}{OPEN}{exports}{CLOSE};");
        }
        Entry::Members { end } => {
            wrapped.tool = 0;
            wrapped.insert(0, format!("{give}{PICK}{OPEN}{{"));
            match end {
                Some(method) => {
                    wrapped.insert((method - Reading::ClassMembers.base()) as usize, format!("}}{CLOSE}"));
                }
                None => wrapped.epilogue = format!("}}{CLOSE};"),
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

/// Named values, as [`PICK`] takes them.
fn listed(choices: &[Choice<'_>]) -> Vec<String> {
    let each = choices.iter().map(|Choice { name, line }| format!("[\"`{name}` (line {line})\",{name}]"));
    each.collect()
}

/// What to put around the tool's expression. The second parenthesis is for `a, b`.
fn around(sure: bool) -> (String, &'static str) {
    if sure { ("(".to_owned(), ")") } else { (format!("{PICK}{OPEN}("), concat!(")", "]],[])")) }
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
    // A directive counts only at the very start.
    let strict = tree.kind == Kind::Script
        && tree.program.directives.iter().any(|directive| directive.directive == "use strict");
    if strict && !prologue.is_empty() {
        prologue.insert_str(0, "\"use strict\";");
    }
    prologue
}

/// What the transformed code calls; goes in front of it, after the transform: that moves statements, and this has to be there first.
pub(super) fn helpers(tree: &Tree<'_>) -> String {
    let lowers = tree.language != Language::JavaScript;
    let legacy = lowers && tree.facts.decorators && tree.decorators == decorators::Kind::Legacy;
    let standard = lowers && (tree.facts.decorators && !legacy || tree.facts.accessors);
    if !legacy && !standard && !tree.facts.using {
        return String::new();
    }
    let parts = [(legacy, DECORATORS), (standard, STANDARD), (tree.facts.using, USING)];
    let parts = parts.iter().filter(|(needed, _)| *needed).map(|(_, part)| *part);
    format!("const babelHelpers={{{}}};", parts.collect::<String>())
}

impl Tree<'_> {
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
