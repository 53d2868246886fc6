//! Texts of errors: what is wrong, where (line and column, 1-based, as editors count), and a picture of the place.

use std::fmt::Write as _;
use std::ops::Range;

use super::SourceError;

/// What every refusal ends with.
pub(super) const EXPECTED: &str =
    "The text has to be one function, for example `async ({ city }) => { return { city }; }`.";

/// Characters of a line that the picture shows at most.
const PICTURE_WIDTH_CHARS: usize = 100;

/// Characters kept to the left of the place when a long line is cut.
const PICTURE_LEAD_CHARS: usize = 60;

/// An error at a place of the user's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// One sentence; starts with `SyntaxError: ` where it is one.
    pub(super) message: String,
    /// Bytes of the text that it is about. Need not lie within the text or on character borders.
    pub(super) range: Range<usize>,
    /// What to do.
    pub(super) help: String,
}

impl Fault {
    /// A well-formed text that cannot be run as a tool.
    pub(super) fn refused(message: impl Into<String>, range: Range<usize>) -> Self {
        Self { message: message.into(), range, help: EXPECTED.to_owned() }
    }

    /// The whole error text, with the place pictured.
    pub(super) fn render(&self, text: &str) -> SourceError {
        let place = Place::of(text, &self.range);
        let mut message = format!("{} (line {}, column {})\n", self.message, place.line, place.column);
        place.draw(text, &mut message);
        if !self.help.is_empty() {
            let _ = write!(message, "\n{}", self.help);
        }
        SourceError { message }
    }
}

/// A place in a text, found by byte offset.
struct Place {
    /// 1-based; `\n`, `\r\n` and `\r` end a line.
    line: usize,
    /// 1-based, in characters.
    column: usize,
    /// Characters to underline, all on `line`.
    width: usize,
    /// Where `line` starts, in bytes.
    line_start: usize,
}

impl Place {
    fn of(text: &str, range: &Range<usize>) -> Self {
        let start = floor_char(text, range.start);
        let end = floor_char(text, range.end).max(start);
        let bytes = text.as_bytes();
        let (mut line, mut line_start) = (1, 0);
        for at in 0..start {
            let ends = match bytes[at] {
                b'\n' => true,
                b'\r' => bytes.get(at + 1) != Some(&b'\n'),
                _ => false,
            };
            if ends {
                (line, line_start) = (line + 1, at + 1);
            }
        }
        let marked = text[start..end].split(['\n', '\r']).next().unwrap_or_default();
        Self {
            line,
            column: text[line_start..start].chars().count() + 1,
            width: marked.chars().count().max(1),
            line_start,
        }
    }

    /// The line before, the line, and a row of carets.
    fn draw(&self, text: &str, out: &mut String) {
        let digits = self.line.to_string().len();
        let cut = self.column.saturating_sub(PICTURE_LEAD_CHARS + 1);
        let before = text[..self.line_start].trim_end_matches(['\n', '\r']);
        let previous = before.rsplit(['\n', '\r']).next().unwrap_or_default();
        if !previous.trim().is_empty() && before.len() + 2 >= self.line_start {
            let _ = write!(out, "\n  {:>digits$} | {}", self.line - 1, visible(previous, cut));
        }
        let current = text[self.line_start..].split(['\n', '\r']).next().unwrap_or_default();
        let gap = self.column - 1 - cut;
        let carets = self.width.min(PICTURE_WIDTH_CHARS.saturating_sub(gap)).max(1);
        let _ = write!(
            out,
            "\n  {} | {}\n  {:digits$} | {:gap$}{}\n",
            self.line,
            visible(current, cut),
            "",
            "",
            "^".repeat(carets),
        );
    }
}

/// `PICTURE_WIDTH_CHARS` of `line` from `cut` on. Control and direction characters become blanks: the text ends in logs and terminals.
fn visible(line: &str, cut: usize) -> String {
    let shown = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    line.chars().skip(cut).take(PICTURE_WIDTH_CHARS).map(|c| if shown(c) { c } else { ' ' }).collect()
}

/// The last character border at or before `at`.
fn floor_char(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, range: Range<usize>) -> String {
        Fault::refused("Bad", range).render(text).message
    }

    #[test]
    fn names_line_and_column_in_characters() {
        let message = render("const ä = 1;\r\n  é + ;", 22..23);
        assert!(message.starts_with("Bad (line 2, column 7)\n"), "{message}");
        assert!(message.contains("\n  1 | const ä = 1;\n  2 |   é + ;\n    |       ^\n"), "{message}");
    }

    #[test]
    fn underlines_no_further_than_the_line() {
        let message = render("abc\ndef", 1..7);
        assert!(message.contains("\n  1 | abc\n    |  ^^\n"), "{message}");
    }

    #[test]
    fn cuts_long_lines_around_the_place() {
        let text = format!("{}!{}", "a".repeat(5_000), "b".repeat(5_000));
        let message = render(&text, 5_000..5_001);
        assert!(message.contains("column 5001"), "{message}");
        assert!(message.contains(&format!("{}^", " ".repeat(PICTURE_LEAD_CHARS))), "{message}");
        assert!(message.len() < 500, "{message}");
    }

    #[test]
    fn survives_places_outside_the_text() {
        assert!(render("", 9..12).starts_with("Bad (line 1, column 1)"));
        assert!(render("é", 1..2).starts_with("Bad (line 1, column 1)"));
        assert!(render("a\n", 2..2).starts_with("Bad (line 2, column 1)"));
    }

    #[test]
    fn control_characters_do_not_reach_terminals() {
        let message = render("\u{1b}[31m x \u{202e}", 0..1);
        assert!(!message.contains('\u{1b}') && !message.contains('\u{202e}'));
    }
}
