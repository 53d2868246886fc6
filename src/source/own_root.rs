//! What only a worker with a root to itself has: a `/tmp` that can be written to, shared memory, terminals. Workers of a tree's zygote share
//! a root, so a call that names one of these is better served by another worker, which loads its packages itself. Pure.

use memchr::memmem;

/// What a root has for one call alone (`confine/src/fixtures.rs`).
const PLACES: [&str; 5] = ["/tmp", "/var/tmp", "/dev/shm", "/dev/ptmx", "/dev/pts"];

/// Whether a text names one of those places, or something below. A name that is put together while the code runs is not found.
pub fn names_place(text: &str) -> bool {
    let text = text.as_bytes();
    PLACES.iter().any(|place| {
        memmem::find_iter(text, place).any(|at| {
            let before = at.checked_sub(1).map(|at| text[at]);
            let after = text.get(at + place.len()).copied();
            // `./tmp`, `build/tmp` and `/tmpl` are others.
            !before.is_some_and(|byte| is_part_of_name(byte) || byte == b'.')
                && !after.is_some_and(is_part_of_name)
        })
    })
}

/// Whether an error says that one of those places could not be written to or read, and not one below `store`, which may lie there.
pub fn is_refused(message: &str, store: &str) -> bool {
    let is_refusal = ["EROFS", "EACCES", "Read-only file system", "Permission denied"]
        .iter()
        .any(|refusal| message.contains(refusal));
    is_refusal && names_place(&message.replace(store, ""))
}

/// Whether a package opens terminals, as far as its name tells: `node-pty`, `@lydell/node-pty`, `node-pty-prebuilt-multiarch`.
pub fn opens_terminals(package: &str) -> bool {
    package.split(['-', '/', '.', '@', '_']).any(|word| word == "pty")
}

fn is_part_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_however_it_is_written() {
        for text in [
            "/tmp",
            "() => fs.writeFileSync('/tmp/a')",
            "`/tmp/${name}`",
            "const dir = \"/tmp\";",
            r#"{"path":"/tmp/a"}"#,
            "file:///tmp/a",
            "cd /tmp; ls",
            "it is in /tmp.",
            "/var/tmp/a",
            "shm_open uses /dev/shm",
            "open('/dev/ptmx')",
            "/dev/pts/0",
            "'build/tmp', '/tmp'",
        ] {
            assert!(names_place(text), "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_a_place_is_none() {
        for text in [
            "",
            "tmp",
            "./tmp/a",
            "build/tmp",
            "/tmpl",
            "/tmp_a",
            "/tmp-a",
            "/tmpä",
            "os.tmpdir()",
            "/dev/null",
        ] {
            assert!(!names_place(text), "{text}");
        }
    }

    #[test]
    fn a_text_names_a_place_in_its_strings_and_templates_and_not_in_its_comments() {
        let names = |text| {
            let prepared = crate::source::prepare(text, crate::source::Runtime::TypeScript).unwrap();
            prepared.names_own_root
        };
        for text in [
            "() => fs.readFileSync('/tmp/a')",
            "(name: string) => `/tmp/${name}`",
            "async () => { const { writeFile } = await import('node:fs/promises'); await writeFile(\"/tmp/a\", ''); }",
            "class A { b = '/tmp' }\nexport default () => new A().b",
        ] {
            assert!(names(text), "{text}");
        }
        for text in ["() => 1 // not in /tmp", "/* /tmp */ () => 'a'", "() => require('lodash')"] {
            assert!(!names(text), "{text}");
        }
    }

    #[test]
    fn a_refusal_of_a_place_is_told_from_others() {
        let store = "/tmp/native-sandbox-executor-0";
        for (message, refused) in [
            ("Error: EROFS: read-only file system, open '/tmp/x'", true),
            ("OSError: [Errno 30] Read-only file system: '/tmp/x'", true),
            ("Error: EACCES: permission denied, open '/dev/shm/x'", true),
            ("Error: ENOENT: no such file or directory, open '/tmp/x'", false),
            ("Error: EROFS: read-only file system, open '/tmp/native-sandbox-executor-0/trees/a/x'", false),
            ("Error: EACCES: permission denied, open '/etc/shadow'", false),
        ] {
            assert_eq!(is_refused(message, store), refused, "{message}");
        }
    }

    #[test]
    fn packages_that_open_terminals_are_known_by_the_word_in_their_names() {
        for name in ["node-pty", "@lydell/node-pty", "@homebridge/node-pty-prebuilt-multiarch", "pty.js"] {
            assert!(opens_terminals(name), "{name}");
        }
        for name in ["empty", "is-empty", "ptype", "crypto-js", "@scope/typty"] {
            assert!(!opens_terminals(name), "{name}");
        }
    }
}
