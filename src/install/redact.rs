//! Takes credentials out of what npm prints. Pure.

/// Stands for what was taken out.
const REDACTED: &str = "***";
/// Shorter values are no secrets, and replacing them would spoil every text.
const MIN_SECRET_CHARS: usize = 4;
/// What npm writes before a credential.
const CREDENTIAL_MARKS: [&str; 4] = ["_authToken=", "_auth=", "_password=", "authorization: "];

/// `text` without `secrets`, without user and password in addresses, and without `_authToken=…` and its like.
pub(super) fn redact<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let mut secrets: Vec<_> =
        secrets.into_iter().filter(|secret| secret.chars().count() >= MIN_SECRET_CHARS).collect();
    // The longest first: one may hold another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    let mut text = text.to_owned();
    for secret in secrets {
        text = text.replace(secret, REDACTED);
    }
    for mark in CREDENTIAL_MARKS {
        text = after_mark(&text, mark);
    }
    without_userinfo(&text)
}

fn after_mark(text: &str, mark: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = find_ignoring_case(rest, mark) {
        let (before, value) = rest.split_at(at + mark.len());
        // A header's value has words; the others are one.
        let ends = |c: char| c == '\n' || (c.is_whitespace() && mark.ends_with('='));
        result.push_str(before);
        result.push_str(REDACTED);
        rest = &value[value.find(ends).unwrap_or(value.len())..];
    }
    result + rest
}

fn find_ignoring_case(text: &str, mark: &str) -> Option<usize> {
    text.to_ascii_lowercase().find(&mark.to_ascii_lowercase())
}

/// `scheme://user:password@host` → `scheme://***@host`.
fn without_userinfo(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        result.push_str(before);
        let authority =
            &after[..after.find(|c: char| c == '/' || c.is_whitespace() || c == '"').unwrap_or(after.len())];
        rest = after;
        if let Some(end) = authority.rfind('@') {
            result.push_str(REDACTED);
            rest = &after[end..];
        }
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::redact;

    #[test]
    fn credentials_go() {
        for (text, expected) in [
            ("GET https://me:pw@host/x failed", "GET https://***@host/x failed"),
            ("https://tok@host:80\nnext https://h/@scope/x", "https://***@host:80\nnext https://h/@scope/x"),
            ("//host/:_authToken=abc.def rest", "//host/:_authToken=*** rest"),
            ("_AUTH=\"x\" y", "_AUTH=*** y"),
            ("Authorization: Bearer abc def\nnext", "Authorization: ***\nnext"),
            ("token s3cret-long and s3cret", "token *** and ***"),
            ("yes 1", "yes 1"),
            ("npm error 404 Not Found", "npm error 404 Not Found"),
        ] {
            assert_eq!(redact(text, ["s3cret", "s3cret-long", "1", ""]), expected);
        }
    }

    proptest! {
        #[test]
        fn no_secret_stays(before in "\\PC{0,20}", secret in "[a-z0-9]{4,12}", after in "\\PC{0,20}") {
            let text = format!("{before}{secret}{after}");
            prop_assert!(!redact(&text, [secret.as_str()]).contains(&secret));
        }

        #[test]
        fn nothing_panics(text in "([a-zé]|://|@|_auth=|Authorization: | |\"|\n){0,30}") {
            let _ = redact(&text, []);
        }
    }
}
