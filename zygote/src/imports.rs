//! Which modules bind this process's number when they are loaded: `import { pid } from 'node:process'` is no read that anything could
//! notice, as the binding is filled when the first module imports `process`. So the text says it; pure.

/// Whether a module's text imports `pid` or `ppid` of `process`, by name or with everything else.
pub(crate) fn imports_pid(text: &[u8]) -> bool {
    const NAME: &[u8] = b"process";
    let mut from = 0;
    while let Some(at) = find(text, NAME, from) {
        from = at + NAME.len();
        let before = &text[..at];
        let before = before.strip_suffix(b"node:").unwrap_or(before);
        let quotes = (before.last(), text.get(from));
        let (Some(quote @ (b'\'' | b'"' | b'`')), Some(end)) = quotes else { continue };
        if quote == end && binds_pid(before[..before.len() - 1].trim_ascii_end(), text) {
            return true;
        }
    }
    false
}

/// What stands before the name of the module: a clause with `from`, or `import(`.
fn binds_pid(before: &[u8], text: &[u8]) -> bool {
    const CLAUSE_BYTES: usize = 2000;
    if let Some(call) = before.strip_suffix(b"(") {
        return call.trim_ascii_end().ends_with(b"import") && has_pid(text);
    }
    let Some(clause) = before.strip_suffix(b"from") else { return false };
    let clause = &clause[clause.len().saturating_sub(CLAUSE_BYTES)..];
    let begin = [&b"import"[..], b"export"].iter().filter_map(|word| find_last(clause, word)).max();
    let clause = begin.map_or(clause, |begin| &clause[begin..]);
    if clause.contains(&b'*') { has_pid(text) } else { clause.contains(&b'{') && has_pid(clause) }
}

/// Whether `pid` or `ppid` is a word of a text.
fn has_pid(text: &[u8]) -> bool {
    const WORD: &[u8] = b"pid";
    let is_part = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$'))
    };
    let mut from = 0;
    while let Some(at) = find(text, WORD, from) {
        from = at + WORD.len();
        let before = text[..at].strip_suffix(b"p").unwrap_or(&text[..at]);
        if !is_part(before.last()) && !is_part(text.get(from)) {
            return true;
        }
    }
    false
}

fn find(text: &[u8], word: &[u8], from: usize) -> Option<usize> {
    text.get(from..)?.windows(word.len()).position(|window| window == word).map(|at| at + from)
}

fn find_last(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).rposition(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::imports_pid;

    #[test]
    fn a_name_that_is_bound_at_load_is_seen_in_the_text() {
        for text in [
            "import { pid } from 'node:process';",
            "import{pid as a}from\"process\"",
            "import p, { env,\n  ppid } from 'process'",
            "export { pid } from 'node:process'",
            "import * as process from 'node:process'; export const id = process.pid;",
            "export * from 'node:process'; // pid",
            "const { pid } = await import('node:process');",
            "const { pid } = await import( `process` );",
            "import os from 'node:os'; import { pid } from 'node:process'",
        ] {
            assert!(imports_pid(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn other_imports_of_the_module_are_none() {
        for text in [
            "",
            "import process from 'node:process'; export default () => process.pid;",
            "import { env, argv } from 'node:process'; const { pid } = child;",
            "import { pid } from './own.js'; import process from 'node:process';",
            "import { pids } from 'node:process'",
            "import { rapid, pid_file, $pid } from 'node:process'",
            "import * as process from 'node:process'; export const env = process.env;",
            "const process = require('process'); module.exports = process.pid",
            "import { pid } from 'node:child_process'",
            "'process' \"node:process' from 'process",
        ] {
            assert!(!imports_pid(text.as_bytes()), "{text}");
        }
    }
}
