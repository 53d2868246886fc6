//! What to say of a text that is not code but has code in it: Markdown, JSON, HTML, quotes around everything, characters of word processors.
//! The text is never taken apart: which part of it is meant would be a guess.

use std::ops::Range;

use serde_json::Value;

/// Characters that look like one of JavaScript, and that one.
const LOOK_ALIKES: [(char, &str); 14] = [
    ('\u{2018}', "'"),
    ('\u{2019}', "'"),
    ('\u{201c}', "\""),
    ('\u{201d}', "\""),
    ('\u{201e}', "\""),
    ('\u{2010}', "-"),
    ('\u{2013}', "-"),
    ('\u{2014}', "-"),
    ('\u{2212}', "-"),
    ('\u{2026}', "..."),
    ('\u{21d2}', "=>"),
    ('\u{2264}', "<="),
    ('\u{2265}', ">="),
    ('\u{2260}', "!=="),
];

/// Characters behind the place of an error that are looked at.
const NEAR_CHARS: usize = 8;

/// Entities of HTML that stand in the place of code.
const ENTITIES: [&str; 6] = ["&gt;", "&lt;", "&amp;", "&quot;", "&#39;", "&nbsp;"];

/// The help for a text that failed at `range`, where it can be told what the text is instead of code.
pub(super) fn of(text: &str, range: &Range<usize>) -> Option<String> {
    fence(text)
        .or_else(|| json(text))
        .or_else(|| quotes(text))
        .or_else(|| at_place(text, range))
        .or_else(|| escaped(text))
}

fn fence(text: &str) -> Option<String> {
    let is_fence = |line: &str| line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
    let at = text.lines().position(is_fence)? + 1;
    Some(format!(
        "Help: The text is Markdown with a fence on line {at}. Give the code alone, without the fence and what is around it"
    ))
}

fn json(text: &str) -> Option<String> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return None };
    let (key, _) = fields.iter().find(|(_, value)| value.as_str().is_some_and(looks_like_code))?;
    Some(format!("Help: The text is JSON with code in it. Give what `{key}` holds alone"))
}

fn quotes(text: &str) -> Option<String> {
    let text = text.trim();
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '\'' | '`'))?;
    let inner = text.strip_prefix(quote)?.trim_end_matches(';').strip_suffix(quote)?;
    looks_like_code(inner).then(|| {
        format!("Help: The whole text stands in quotes. Give the code without the {quote} around it")
    })
}

fn looks_like_code(text: &str) -> bool {
    ["=>", "function", "module.exports", "export "].iter().any(|sign| text.contains(sign))
}

/// Something at the place of the error, or on its line, that is no JavaScript.
fn at_place(text: &str, range: &Range<usize>) -> Option<String> {
    let start = text.floor_char_boundary(range.start);
    let line_start = text[..start].rfind(['\n', '\r']).map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    if let Some(entity) = ENTITIES.iter().find(|entity| line.contains(**entity)) {
        return Some(format!(
            "Help: The text has entities of HTML, such as `{entity}`. Give the code as plain text"
        ));
    }
    // Where the parser took a step back, the place is a little before.
    let after = line[start - line_start..].chars().take(NEAR_CHARS);
    let known = |odd: char| LOOK_ALIKES.iter().find(|(alike, _)| *alike == odd);
    if let Some((odd, plain)) = after.clone().find_map(known) {
        return Some(format!(
            "Help: The character `{odd}` (U+{:04X}) is not JavaScript's `{plain}`. Write `{plain}`",
            u32::from(*odd)
        ));
    }
    let odd = text[start..].chars().next()?;
    matches!(odd, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{00ad}')
        .then(|| format!("Help: The invisible character U+{:04X} stands here. Take it out", u32::from(odd)))
}

/// Line ends and quotes that were escaped once too often.
fn escaped(text: &str) -> Option<String> {
    let one_line = !text.trim().contains('\n');
    (one_line && text.contains("\\n") && looks_like_code(text)).then(|| {
        "Help: The text has `\\n` where lines end: it was escaped twice. Give the code with real line ends"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::of;

    #[track_caller]
    fn assert_hint(text: &str, at: usize, part: Option<&str>) {
        let hint = of(text, &(at..at));
        match part {
            Some(part) => assert!(hint.as_ref().is_some_and(|hint| hint.contains(part)), "{text}: {hint:?}"),
            None => assert_eq!(hint, None, "{text}"),
        }
    }

    #[test]
    fn what_is_no_code_is_named() {
        assert_hint("Sure:\n\n```js\n() => 1\n```", 0, Some("a fence on line 3"));
        assert_hint("  ~~~\n() => 1\n~~~", 0, Some("a fence on line 1"));
        assert_hint("{\"code\": \"() => 1\"}", 0, Some("`code`"));
        assert_hint("{\"name\": \"x\"}", 0, None);
        assert_hint("\"() => 1\";", 0, Some("quotes"));
        assert_hint("'hello'", 0, None);
        assert_hint("() =&gt; 1", 4, Some("`&gt;`"));
        assert_hint("() => \u{201c}a\u{201d}", 6, Some("Write `\"`"));
        assert_hint("\u{200b}() => 1", 0, Some("U+200B"));
        assert_hint("() => a \u{2013} 1", 7, Some("Write `-`"));
        assert_hint("() => {\\n return 1\\n}", 7, Some("escaped twice"));
        assert_hint("() => é", 7, None);
        assert_hint("", 5, None);
    }
}
