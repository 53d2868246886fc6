//! Takes values that were given as secrets out of texts that are kept. A help, no promise: a function can print a secret in any other
//! form. Pure.

use crate::error::SandboxError;

/// Shorter values are no secrets, but parts of other words.
const MIN_SECRET_BYTES: usize = 8;
/// What stands for a value.
const REDACTED: &str = "[redacted]";

/// The values of one call.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    /// Longest first: one may be a part of another.
    secrets: Vec<String>,
}

impl Redactor {
    /// For these values; those of fewer than eight bytes are left alone.
    pub fn new<'a>(values: impl Iterator<Item = &'a String>) -> Self {
        let mut secrets = Vec::new();
        for value in values.filter(|value| value.len() >= MIN_SECRET_BYTES) {
            secrets.push(value.clone());
            // As it stands in JSON, where that is another text.
            let json = serde_json::Value::from(value.as_str()).to_string();
            let escaped = &json[1..json.len() - 1];
            if escaped != value {
                secrets.push(escaped.to_owned());
            }
        }
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { secrets }
    }

    /// The text without the values.
    pub fn text(&self, text: String) -> String {
        let whole = self.secrets.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), REDACTED) } else { text }
        });
        self.without_cut_start(whole)
    }

    /// A tail may begin in the middle of a value.
    fn without_cut_start(&self, text: String) -> String {
        for secret in &self.secrets {
            let cut = (1..=secret.len() - MIN_SECRET_BYTES)
                .filter(|at| secret.is_char_boundary(*at))
                .find(|at| text.starts_with(&secret[*at..]));
            if let Some(at) = cut {
                return format!("{REDACTED}{}", &text[secret.len() - at..]);
            }
        }
        text
    }

    /// The error without the values in any of its texts.
    pub fn error(&self, error: SandboxError) -> SandboxError {
        if self.secrets.is_empty() {
            return error;
        }
        SandboxError {
            message: self.text(error.message),
            stdout: error.stdout.map(|text| self.text(text)),
            stderr: error.stderr.map(|text| self.text(text)),
            cause_json: error.cause_json.map(|text| self.text(text)),
            ..error
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Phase};

    fn redactor(values: &[&str]) -> Redactor {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        Redactor::new(values.iter())
    }

    #[test]
    fn values_are_taken_out_wherever_they_stand() {
        let redactor = redactor(&["hunter2-hunter2", "hunter2-hunter2-long", "short"]);
        assert_eq!(
            redactor.text("a hunter2-hunter2, hunter2-hunter2-long, short".to_owned()),
            "a [redacted], [redacted], short"
        );
    }

    #[test]
    fn a_tail_that_begins_in_a_value_shows_none_of_it() {
        let redactor = redactor(&["0123456789abcdef"]);
        assert_eq!(redactor.text("456789abcdef and more".to_owned()), "[redacted] and more");
        assert_eq!(redactor.text("abcdef and more".to_owned()), "abcdef and more", "too little to tell");
    }

    #[test]
    fn an_error_has_it_in_none_of_its_texts() {
        let redactor = redactor(&["line\none\"two"]);
        let error = SandboxError::new(Code::ToolError, Phase::Run, "got line\none\"two");
        let error = SandboxError {
            stderr: Some("line\none\"two".to_owned()),
            cause_json: Some(r#"{"text":"line\none\"two"}"#.to_owned()),
            ..error
        };
        let error = redactor.error(error);
        assert_eq!(error.message, "got [redacted]");
        assert_eq!(error.stderr.as_deref(), Some("[redacted]"));
        assert_eq!(error.cause_json.as_deref(), Some(r#"{"text":"[redacted]"}"#));
    }
}
