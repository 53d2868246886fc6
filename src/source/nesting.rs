//! How deep a text can nest, found before it is parsed: the parser and all that walks its tree recurse, and a stack that
//! overflows takes the whole server down. One pass over the bytes, no recursion, no allocation that grows with the text.

/// What one open bracket costs on the stack, in bytes, in the deepest of the passes. `tests/source_corpus.rs` overflows at less than
/// half of it.
#[cfg(debug_assertions)]
const BRACKET_BYTES: usize = 12 * 1024;
#[cfg(not(debug_assertions))]
const BRACKET_BYTES: usize = 4 * 1024;

/// What one link of a chain (`a + b`, `a.b`, `!a`, `if … else if`) costs.
#[cfg(debug_assertions)]
const LINK_BYTES: usize = 6 * 1024;
#[cfg(not(debug_assertions))]
const LINK_BYTES: usize = 2 * 1024;

/// Stack, in bytes, that `text` needs at most when it is read without JSX.
pub(super) fn stack_bytes(text: &str) -> usize {
    let mut scan = Scan::new(text.as_bytes());
    scan.run();
    if scan.unsure { jsx_stack_bytes(text) } else { scan.deepest }
}

/// Stack, in bytes, that `text` needs at most however it is read. Far more than it is likely to use.
pub(super) fn jsx_stack_bytes(text: &str) -> usize {
    count_links(text.as_bytes()).saturating_mul(BRACKET_BYTES)
}

/// An open bracket.
struct Level {
    /// `(`, `[`, `{`, or `$` for the `{` of a template's `${`.
    opener: u8,
    /// Chain links since the last `,` or `;` at this level; a chain of operators cannot reach over those.
    links: usize,
    /// Statement heads (`if`, `else`, `for` …) and `<` at this level: they nest without brackets and over `,` and `;`.
    heads: usize,
    /// The bracket is the head of `if`, `while`, `for` or `with`: a `/` after it starts a regular expression.
    head: bool,
}

/// What the last token was, as far as the meaning of a following `/` depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// An operand ended: `/` divides.
    Operand,
    /// An operand may start: `/` starts a regular expression.
    Operator,
    /// `}`, or a word that is a keyword in some places only.
    Either,
    /// `if`, `while`, `for`, `with`: what the next `(` is the head of.
    Head,
    /// `from`, `import`: after the string that follows, a statement may be over.
    From,
    /// `.`: the next word is a name, even if it is a keyword elsewhere.
    Dot,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    levels: Vec<Level>,
    last: Last,
    /// Stack that the open levels need now.
    now: usize,
    deepest: usize,
    /// A line ended since the last token: a statement may have ended, too.
    line_ended: bool,
    /// The text can be read in ways that this pass does not follow (such as a `/` after `}`).
    unsure: bool,
}

impl<'a> Scan<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let root = Level { opener: 0, links: 0, heads: 0, head: false };
        let (levels, last) = (vec![root], Last::Operator);
        Self { bytes, at: 0, levels, last, now: 0, deepest: 0, line_ended: true, unsure: false }
    }

    fn run(&mut self) {
        if self.bytes.starts_with(b"#!") {
            self.line_comment();
        }
        while let Some(&byte) = self.bytes.get(self.at) {
            let rest = &self.bytes[self.at..];
            match byte {
                b' ' | b'\t' | 0x0b | 0x0c => self.at += 1,
                b'\n' | b'\r' => {
                    self.at += 1;
                    self.line_ended = true;
                }
                b'/' if rest.starts_with(b"//") => self.line_comment(),
                b'/' if rest.starts_with(b"/*") => self.block_comment(),
                _ => {
                    self.token(byte, rest);
                    self.line_ended = false;
                }
            }
        }
    }

    fn token(&mut self, byte: u8, rest: &[u8]) {
        match byte {
            b'"' | b'\'' => self.string(byte),
            b'`' => self.template(),
            b'/' => self.slash(),
            b'(' | b'[' | b'{' => {
                self.open(byte);
                self.last = Last::Operator;
            }
            b')' | b']' | b'}' => self.close(byte),
            b',' | b';' => self.separator(),
            // Comments of old in sloppy scripts; the second kind only where nothing but comments is before it on its line.
            b'<' if rest.starts_with(b"<!--") => self.doubt(),
            b'-' if rest.starts_with(b"-->") && self.line_ended => self.doubt(),
            b'\\' => self.doubt(),
            byte if is_word(byte) => self.word(),
            _ => self.operator(byte),
        }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the root level is never closed")
    }

    fn deepen(&mut self, bytes: usize) {
        self.now = self.now.saturating_add(bytes);
        self.deepest = self.deepest.max(self.now);
    }

    fn doubt(&mut self) {
        self.unsure = true;
        self.at += 1;
    }

    fn open(&mut self, opener: u8) {
        let head = opener == b'(' && self.last == Last::Head;
        self.levels.push(Level { opener, links: 0, heads: 0, head });
        self.deepen(BRACKET_BYTES);
        self.at += 1;
    }

    fn close(&mut self, closer: u8) {
        self.at += 1;
        let opener = self.level().opener;
        let fits = matches!((opener, closer), (b'(', b')') | (b'[', b']') | (b'{' | b'$', b'}'));
        if !fits {
            // The parser ends here, too; should the pass be wrong instead, the safe bound holds.
            self.unsure = true;
            return;
        }
        let Some(level) = self.levels.pop() else { return };
        self.now -= BRACKET_BYTES + (level.links + level.heads) * LINK_BYTES;
        if opener == b'$' {
            self.template_text();
            return;
        }
        self.last = match closer {
            b'}' => Last::Either,
            b')' if level.head => Last::Operator,
            _ => Last::Operand,
        };
        // What was closed can be called, indexed or followed by another statement.
        self.link();
    }

    fn link(&mut self) {
        self.level().links += 1;
        self.deepen(LINK_BYTES);
    }

    fn head(&mut self) {
        self.level().heads += 1;
        self.deepen(LINK_BYTES);
    }

    fn separator(&mut self) {
        let level = self.level();
        let links = std::mem::take(&mut level.links);
        self.now -= links * LINK_BYTES;
        self.at += 1;
        self.last = Last::Operator;
    }

    fn operator(&mut self, byte: u8) {
        let next = self.bytes.get(self.at + 1).copied();
        let postfix = self.last == Last::Operand && next == Some(byte) && matches!(byte, b'+' | b'-');
        let exclaims = byte == b'!' && self.last == Last::Operand && next != Some(b'=');
        self.at += if postfix { 2 } else { 1 };
        match byte {
            // Type arguments nest over commas.
            b'<' => self.head(),
            _ => self.link(),
        }
        self.last = match byte {
            b'.' if self.bytes[..self.at].ends_with(b"...") => Last::Operator,
            b'.' => Last::Dot,
            // The end of type arguments, unless it is an arrow.
            b'>' if !self.bytes[..self.at].ends_with(b"=>") => Last::Either,
            _ if postfix => Last::Operand,
            // TypeScript's `a!` leaves an operand.
            _ if exclaims => Last::Either,
            _ => Last::Operator,
        };
    }

    fn word(&mut self) {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(|&byte| is_word(byte)) {
            // Outside ASCII there are blanks and line ends, too.
            self.unsure |= self.bytes[self.at] >= 0x80;
            self.at += 1;
        }
        let word = &self.bytes[start..self.at];
        if self.last == Last::Dot {
            self.last = Last::Operand;
            return;
        }
        self.last = match word {
            b"if" | b"while" | b"for" | b"with" => {
                self.head();
                Last::Head
            }
            b"else" | b"do" | b"try" | b"finally" | b"catch" | b"switch" => {
                self.head();
                Last::Operator
            }
            b"return" | b"typeof" | b"instanceof" | b"in" | b"new" | b"delete" | b"void" | b"throw"
            | b"case" | b"extends" => {
                self.link();
                Last::Operator
            }
            b"from" | b"import" => Last::From,
            b"await" | b"yield" | b"of" | b"async" | b"as" | b"satisfies" | b"default" | b"keyof"
            | b"readonly" | b"infer" | b"asserts" | b"unique" | b"is" | b"abstract" | b"function"
            | b"class" | b"export" | b"declare" | b"namespace" | b"module" | b"let" => {
                // `for await (` is the head of a loop.
                let heads = word == b"await" && self.last == Last::Head;
                self.link();
                if heads { Last::Head } else { Last::Either }
            }
            _ => Last::Operand,
        };
    }

    fn slash(&mut self) {
        match self.last {
            Last::Operand if !self.line_ended => self.operator(b'/'),
            Last::Operator => self.regular_expression(),
            _ if self.slash_is_harmless() => {
                self.regular_expression();
                self.last = Last::Either;
            }
            _ => self.doubt(),
        }
    }

    /// Whether what follows nests the same, be it a regular expression or a division and then another: up to the next `/`
    /// on the line nothing is quoted and brackets are balanced.
    fn slash_is_harmless(&self) -> bool {
        let mut open = 0_usize;
        for &byte in &self.bytes[self.at + 1..] {
            match byte {
                b'/' => return open == 0,
                b'\n' | b'\r' | b'"' | b'\'' | b'`' => return false,
                b'\\' => return self.escaped_is_harmless(),
                b'(' | b'[' | b'{' => open += 1,
                b')' | b']' | b'}' if open == 0 => return false,
                b')' | b']' | b'}' => open -= 1,
                _ => {}
            }
        }
        false
    }

    /// A backslash is an error in a division, where the parser ends; so it is a regular expression, if that ends well.
    fn escaped_is_harmless(&self) -> bool {
        let rest = &self.bytes[self.at + 1..];
        let line = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
        rest[..line].contains(&b'/')
    }

    fn line_comment(&mut self) {
        self.line_ended = true;
        while let Some(&byte) = self.bytes.get(self.at) {
            let separator = self.bytes[self.at..].starts_with(b"\xe2\x80\xa8")
                || self.bytes[self.at..].starts_with(b"\xe2\x80\xa9");
            if matches!(byte, b'\n' | b'\r') || separator {
                return;
            }
            self.at += 1;
        }
    }

    fn block_comment(&mut self) {
        self.line_ended = true;
        self.at += 2;
        while self.at < self.bytes.len() {
            if self.bytes[self.at..].starts_with(b"*/") {
                self.at += 2;
                return;
            }
            self.at += 1;
        }
    }

    fn string(&mut self, quote: u8) {
        let ends = self.last == Last::From;
        self.at += 1;
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\\' => self.at += 2,
                b'\n' | b'\r' => return self.doubt(),
                _ => self.at += 1,
            }
            if byte == quote {
                break;
            }
        }
        self.last = if ends { Last::Either } else { Last::Operand };
    }

    fn template(&mut self) {
        // A tag in front makes it a link of a chain.
        self.link();
        self.at += 1;
        self.template_text();
    }

    /// From inside a template to its end or to its next `${`.
    fn template_text(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\\' => self.at += 2,
                b'`' => {
                    self.at += 1;
                    self.last = Last::Operand;
                    return;
                }
                b'$' if self.bytes.get(self.at + 1) == Some(&b'{') => {
                    self.at += 1;
                    self.open(b'$');
                    self.last = Last::Operator;
                    return;
                }
                _ => self.at += 1,
            }
        }
    }

    /// The groups of a regular expression nest as brackets do.
    fn regular_expression(&mut self) {
        let start = self.at;
        let mut class = false;
        self.at += 1;
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\\' => self.at += 1,
                b'\n' | b'\r' => return self.doubt(),
                b'[' => class = true,
                b']' => class = false,
                b'/' if !class => break,
                _ => {}
            }
            self.at += 1;
        }
        self.at += 1;
        let end = self.at.min(self.bytes.len());
        let groups = self.bytes[start..end].iter().filter(|byte| matches!(byte, b'(' | b'[' | b'{')).count();
        self.deepest = self.deepest.max(self.now.saturating_add(groups.saturating_mul(BRACKET_BYTES)));
        self.last = Last::Operand;
    }
}

/// Bytes of names, numbers and everything outside ASCII.
const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'#' | b'@') || byte >= 0x80
}

/// All bytes that could be a nesting token in any reading of the text: punctuation, and the start of every word.
fn count_links(bytes: &[u8]) -> usize {
    let mut in_word = false;
    let mut count = 0;
    for &byte in bytes {
        let word = is_word(byte);
        let blank = byte.is_ascii_whitespace();
        count += usize::from(!(blank || word && in_word));
        in_word = word;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Scan<'_> {
        let mut scan = Scan::new(text.as_bytes());
        scan.run();
        scan
    }

    #[test]
    fn what_people_write_is_followed() {
        for text in [
            "() => 1",
            "({ a, b }) => a < b && b > (a)",
            "async () => { const r = /[\"'(]+/g; return 'x'.replace(r, '') / 2; }",
            "function f() { if (a) /x\"/.test(a); while (n-->0) b = a / 2 / 1; }",
            "() => { if (a) { b() } /^[a-z]+(x)$/.test(c) && d() }",
            "() => { if (a) { b() } /\\/\"/.test(c) }",
            "() => `a${`b${c}`}d` / 2",
            "() => a?.b ?? c // it's\n/* it's */",
            "import x from 'y'\nexport default () => x",
            "#!/usr/bin/env it's\n() => 1",
            "const s = \"ä(\";\nconst row = { a: 1, b: [2, 3] };\n(x) => x",
            "for await (const x of y) /x/.test(x)",
            "class A { static #x = 1; get y() { return this.#x } }",
        ] {
            assert!(!scan(text).unsure, "{text}");
        }
    }

    #[test]
    fn what_could_be_read_in_another_way_is_not_trusted() {
        for text in [
            "{} /\"/ ((((",
            "type A = B\n/\"/ ((((",
            "a<b>/\"/ ((((",
            "if\u{a0}(1) /\"/ ((((",
            "[...typeof x, a! /\"/ ((((]",
            "<!-- \"\n((((",
            "--> \"\n((((",
            "import 'x'\n/\"/ ((((",
            "\\u0069f (1) /\"/ ((((",
        ] {
            assert!(scan(text).unsure, "{text}");
        }
    }

    #[test]
    fn depth_counts_and_length_does_not() {
        let flat = "const a = { b: [1, 2], c: f(3) };\n".repeat(10_000);
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(stack_bytes(&flat) < 10 * BRACKET_BYTES, "{}", stack_bytes(&flat));
        assert!(stack_bytes(&deep) >= 100 * BRACKET_BYTES);
        assert!(stack_bytes(&deep) < 110 * BRACKET_BYTES);
        assert!(stack_bytes(&format!("`{}`", "(".repeat(1_000))) < 10 * BRACKET_BYTES);
        assert!(stack_bytes(&format!("'{}'", "(".repeat(1_000))) < 10 * BRACKET_BYTES);
    }
}
