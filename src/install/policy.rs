//! Which packages a tool may ask for, and how. Pure.
//!
//! Names and specs are checked before npm sees them: npm links a spec with a slash to a folder that does not exist
//! and reports success, and a spec can name a folder, a host or a repository.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::range::is_range;
use crate::error::{Code, Phase, SandboxError};

/// Packages that one tool may ask for.
pub const MAX_DEPENDENCIES: usize = 200;
/// npm's own limit for names.
pub const MAX_NAME_CHARS: usize = 214;
/// Longest spec that is looked at.
pub const MAX_SPEC_CHARS: usize = 1024;
/// Longest minimum age: a century. More is a mistake.
pub const MAX_RELEASE_AGE_DAYS: f64 = 36_500.0;
/// How the option is named in texts.
const OPTION: &str = "the dependencies option (AGENTS_FUNCTION_TOOL_SANDBOX_DEPENDENCIES)";

/// Names that npm refuses whatever their case.
const FORBIDDEN_NAMES: [&str; 2] = ["node_modules", "favicon.ico"];

/// The `dependencies` option. The default allows any package, by registry version, range or tag only.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(
    default,
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "an object with allow, specs, minReleaseAgeDays"
)]
pub struct DependencyPolicy {
    /// Packages that may be asked for: exact names, `@scope/*`, or a `*` at the end. Absent: any. What they depend on
    /// themselves is not restricted.
    pub allow: Option<Vec<NamePattern>>,
    /// Kinds of spec beyond the registry's.
    pub specs: Vec<ExtraSpec>,
    /// Versions younger than this are not installed. Days, from 0 to [`MAX_RELEASE_AGE_DAYS`].
    #[serde(deserialize_with = "release_age")]
    pub min_release_age_days: Option<f64>,
}

/// A kind of spec that has to be allowed by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtraSpec {
    /// A git repository.
    Git,
    /// A tarball's address.
    Url,
    /// A folder or tarball on this machine, by absolute path.
    File,
    /// `npm:other@range`.
    Alias,
}

impl fmt::Display for ExtraSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Git => "git",
            Self::Url => "url",
            Self::File => "file",
            Self::Alias => "alias",
        })
    }
}

/// An exact name, or the beginning of names when it ends in `*`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct NamePattern(String);

impl TryFrom<String> for NamePattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.find('*') {
            Some(at) if at + 1 < text.len() => Err(format!("\"{text}\": a * may stand at the end only")),
            Some(_) if !text.chars().all(|c| is_url_safe(c) || "@/*".contains(c)) => {
                Err(format!("\"{text}\" is no beginning of package names"))
            }
            Some(_) => Ok(Self(text)),
            None => match name_objection(&text) {
                Some(objection) => Err(format!("\"{text}\" is no package name: {objection}")),
                None => Ok(Self(text)),
            },
        }
    }
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => self.0 == name,
        }
    }
}

fn release_age<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let days = Option::<f64>::deserialize(from)?;
    match days {
        Some(days) if !(0.0..=MAX_RELEASE_AGE_DAYS).contains(&days) => Err(serde::de::Error::custom(
            format!("minReleaseAgeDays is {days}, must be from 0 to {MAX_RELEASE_AGE_DAYS}"),
        )),
        _ => Ok(days),
    }
}

/// What a spec is, by npm's own rules.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind<'a> {
    /// A version, a range or a tag.
    Registry,
    Git,
    Url,
    /// Absolute or not.
    File {
        absolute: bool,
    },
    Alias {
        name: &'a str,
        spec: &'a str,
    },
    /// A scheme that only other tools, or only workspaces, know.
    Foreign,
    Malformed,
}

/// Checks a whole dependency set.
pub fn check(dependencies: &BTreeMap<String, String>, policy: &DependencyPolicy) -> Result<(), SandboxError> {
    let invalid = |message| SandboxError::new(Code::InvalidDependency, Phase::Validate, message);
    if dependencies.len() > MAX_DEPENDENCIES {
        let count = dependencies.len();
        return Err(invalid(format!("{count} dependencies, at most {MAX_DEPENDENCIES} are possible")));
    }
    for (name, spec) in dependencies {
        check_one(name, spec, policy).map_err(invalid)?;
    }
    Ok(())
}

/// What a spec of any package names beyond the registry's own; an alias names what the registry has.
pub(super) fn extra(spec: &str) -> Option<ExtraSpec> {
    match kind(written_spec(spec)) {
        Kind::Git => Some(ExtraSpec::Git),
        Kind::Url => Some(ExtraSpec::Url),
        Kind::File { .. } => Some(ExtraSpec::File),
        Kind::Registry | Kind::Alias { .. } | Kind::Foreign | Kind::Malformed => None,
    }
}

/// The spec as it goes into `package.json`.
pub(super) fn written_spec(spec: &str) -> &str {
    match spec.trim() {
        "" => "*",
        trimmed => trimmed,
    }
}

fn check_one(name: &str, spec: &str, policy: &DependencyPolicy) -> Result<(), String> {
    if let Some(objection) = name_objection(name) {
        return Err(format!("\"{}\" is no valid package name: {objection}", shown(name)));
    }
    allowed(name, policy)?;
    if spec.chars().count() > MAX_SPEC_CHARS {
        return Err(format!("the spec of \"{name}\" is longer than {MAX_SPEC_CHARS} characters"));
    }
    let refuse = |why: &str| Err(format!("dependency \"{name}\" has the spec \"{}\", {why}", shown(spec)));
    let needs = |kind: ExtraSpec, what: &str| {
        if policy.specs.contains(&kind) {
            return Ok(());
        }
        refuse(&format!(
            "which is {what}: only versions, ranges and tags of the registry are allowed, unless {OPTION} says \
             {{ \"specs\": [\"{kind}\"] }}"
        ))
    };
    match kind(written_spec(spec)) {
        Kind::Registry => Ok(()),
        Kind::Git => needs(ExtraSpec::Git, "a git repository"),
        Kind::Url => needs(ExtraSpec::Url, "an address"),
        Kind::File { absolute } => {
            needs(ExtraSpec::File, "a path on this machine")?;
            if absolute { Ok(()) } else { refuse("a relative path: it has to be absolute, as file:/path") }
        }
        Kind::Alias { name: target, spec: inner } => {
            needs(ExtraSpec::Alias, "an alias of another package")?;
            if let Some(objection) = name_objection(target) {
                return refuse(&format!("an alias of no valid package name: {objection}"));
            }
            // The name that counts is the one that is fetched.
            allowed(target, policy)?;
            if kind(written_spec(inner)) == Kind::Registry {
                Ok(())
            } else {
                refuse("an alias of something that is no version, range or tag")
            }
        }
        Kind::Foreign => refuse(
            "which works inside a workspace or with another package manager only; give a version, a range or a tag",
        ),
        Kind::Malformed => {
            refuse("which is neither a version, nor a range, nor a tag (as 1.2.3, ^1.2, >=1 <2, latest)")
        }
    }
}

fn allowed(name: &str, policy: &DependencyPolicy) -> Result<(), String> {
    match &policy.allow {
        Some(patterns) if !patterns.iter().any(|pattern| pattern.matches(name)) => {
            Err(format!("dependency \"{name}\" is not allowed: {OPTION} does not list it under \"allow\""))
        }
        _ => Ok(()),
    }
}

/// npm's rules for packages that exist (`validForOldPackages` of validate-npm-package-name), and its length limit.
pub(super) fn name_objection(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > MAX_NAME_CHARS {
        return Some("it is longer than 214 characters");
    }
    let parts: Vec<_> = match name.strip_prefix('@') {
        Some(scoped) => match scoped.split_once('/') {
            Some((scope, rest)) => vec![scope, rest],
            None => return Some("a scoped name reads @scope/name"),
        },
        None => vec![name],
    };
    parts.into_iter().find_map(part_objection)
}

fn part_objection(part: &str) -> Option<&'static str> {
    match part.chars().next() {
        None => return Some("a part of it is empty"),
        Some('.') => return Some("it starts with a period"),
        Some('_') => return Some("it starts with an underscore"),
        Some('-') => return Some("it starts with a hyphen"),
        Some(_) => {}
    }
    if !part.chars().all(is_url_safe) {
        return Some("only letters, digits and -_.~!'() are possible");
    }
    FORBIDDEN_NAMES.iter().any(|name| part.eq_ignore_ascii_case(name)).then_some("npm reserves it")
}

/// What `encodeURIComponent` leaves alone, but `*`, which no file system of Windows takes.
fn is_url_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.~!'()".contains(c)
}

fn kind(spec: &str) -> Kind<'_> {
    if spec.chars().any(char::is_control) {
        return Kind::Malformed;
    }
    let lower = spec.to_ascii_lowercase();
    if let Some(path) = lower.strip_prefix("file:") {
        return Kind::File { absolute: path.starts_with('/') };
    }
    if lower.starts_with("npm:") {
        return alias(&spec["npm:".len()..]);
    }
    if is_hosted_shorthand(spec) {
        return Kind::Git;
    }
    if let Some((scheme, rest)) = lower.split_once(':') {
        return with_scheme(scheme, rest);
    }
    if spec.starts_with('.') || spec.contains(['/', '\\']) || is_tarball(&lower) {
        return Kind::File { absolute: spec.starts_with('/') };
    }
    if is_range(spec) || is_tag(spec) { Kind::Registry } else { Kind::Malformed }
}

fn alias(target: &str) -> Kind<'_> {
    // An @ at the start belongs to a scope.
    match target.get(1..).and_then(|rest| rest.find('@')) {
        Some(at) => Kind::Alias { name: &target[..=at], spec: &target[at + 2..] },
        None => Kind::Alias { name: target, spec: "" },
    }
}

fn with_scheme(scheme: &str, rest: &str) -> Kind<'static> {
    let host = rest.trim_start_matches('/').split(['/', '@']).next().unwrap_or_default();
    match scheme {
        // npm fetches these hosts with git whatever the scheme says.
        "http" | "https"
            if ["github.com", "gitlab.com", "bitbucket.org", "gist.github.com"].contains(&host) =>
        {
            Kind::Git
        }
        "http" | "https" => Kind::Url,
        "git" | "ssh" | "github" | "gitlab" | "bitbucket" | "gist" => Kind::Git,
        // git+https:, and user@host:path
        _ if scheme.starts_with("git+") || scheme.contains('@') => Kind::Git,
        // A drive of Windows.
        _ if scheme.len() == 1 => Kind::File { absolute: true },
        _ if !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphabetic()) => Kind::Foreign,
        _ => Kind::Malformed,
    }
}

/// `user/repository`, which npm looks for at a well-known host.
fn is_hosted_shorthand(spec: &str) -> bool {
    let path = spec.split('#').next().unwrap_or_default();
    let parts: Vec<_> = path.split('/').collect();
    parts.len() == 2
        && parts.iter().all(|part| !part.is_empty())
        && !path.contains([':', '@', '\\'])
        && !path.starts_with(['.', '~', '-'])
}

fn is_tarball(lower: &str) -> bool {
    [".tgz", ".tar.gz", ".tar"].iter().any(|ending| lower.ends_with(ending))
}

fn is_tag(spec: &str) -> bool {
    spec.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && spec.chars().all(is_url_safe)
}

/// Text of the caller's, cut and without control characters.
pub(super) fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    text.chars().take(SHOWN_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(name: &str, spec: &str, policy: &str) -> Result<(), String> {
        let policy: DependencyPolicy = serde_json::from_str(policy).unwrap();
        let dependencies = BTreeMap::from([(name.to_owned(), spec.to_owned())]);
        check(&dependencies, &policy).map_err(|error| {
            assert_eq!((error.code, error.phase), (Code::InvalidDependency, Phase::Validate));
            error.message
        })
    }

    #[test]
    fn what_the_registry_has_passes() {
        for name in
            ["lodash", "@scope/name", "JSONStream", "crypto-js", "a.b", "~x", "constructor", "node_modules2"]
        {
            for spec in [
                "",
                "*",
                "latest",
                "next",
                "1.2.3",
                "^1",
                "~1.2",
                ">=1 <2 || 3.x",
                "1 - 2",
                "v1.2.3",
                " ^4.17.0 ",
            ] {
                assert_eq!(verdict(name, spec, "{}"), Ok(()), "{name}@{spec}");
            }
        }
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let names = [
            "",
            ".",
            "..",
            ".hidden",
            "_private",
            "__proto__",
            "-rf",
            "node_modules",
            "Favicon.ICO",
            "a/b",
            "../x",
            "@/x",
            "@scope",
            "@scope/",
            "@scope/../x",
            "@scope/.x",
            "@../x",
            "a b",
            " a",
            "a\n",
            "a@1",
            "a*",
            "a\\b",
            "/abs",
            "é",
            "@a/node_modules",
            "%2e%2e",
        ];
        for name in names {
            let message = verdict(name, "1", "{}").unwrap_err();
            assert!(message.contains("no valid package name"), "{name}: {message}");
        }
        assert!(verdict(&"a".repeat(MAX_NAME_CHARS + 1), "1", "{}").is_err());
        assert!(verdict(&"a".repeat(MAX_NAME_CHARS), "1", "{}").is_ok());
    }

    #[test]
    fn other_kinds_need_to_be_allowed_and_say_so() {
        let cases = [
            ("git+https://host/x.git", "git"),
            ("git@host.example:u/r.git", "git"),
            ("github:u/r", "git"),
            ("u/r", "git"),
            ("u/r#semver:^1", "git"),
            ("https://github.com/u/r", "git"),
            ("gist:11081aaa281", "git"),
            ("git://h/x", "git"),
            ("https://host.example/x.tgz", "url"),
            ("http://host.example/x", "url"),
            ("file:/x", "file"),
            ("/x/y/z", "file"),
            ("FILE:/x", "file"),
            ("npm:other@^1", "alias"),
            ("npm:@a/b", "alias"),
            ("NPM:other@latest", "alias"),
        ];
        for (spec, kind) in cases {
            let message = verdict("pkg", spec, "{}").unwrap_err();
            for part in ["\"pkg\"", spec, &format!("[\"{kind}\"]"), "dependencies option"] {
                assert!(message.contains(part), "{spec}: {message}");
            }
            assert_eq!(verdict("pkg", spec, &format!(r#"{{"specs":["{kind}"]}}"#)), Ok(()), "{spec}");
        }
    }

    #[test]
    fn what_no_option_allows() {
        let all = r#"{"specs":["git","url","file","alias"]}"#;
        for spec in [
            "workspace:*",
            "link:../x",
            "portal:/x",
            "catalog:",
            "file:../x",
            "./x",
            "../x",
            "~/x",
            "x/../y/z",
            "..",
            "x.tgz",
            "npm:../x@1",
            "npm:x@../y",
            "npm:x@npm:y",
            "npm:",
            "npm:é",
            ">>1",
            "a b",
            "^^",
            "1 -2-",
            "@1",
            "::",
            "\u{0}",
            "1\n2",
            "latest || ^1",
            ".5",
        ] {
            assert!(verdict("pkg", spec, all).is_err(), "{spec}");
        }
    }

    #[test]
    fn the_allow_list_counts_for_the_package_that_is_fetched() {
        let policy = r#"{"allow":["lodash","@scope/*","react-*"],"specs":["alias"]}"#;
        for name in ["lodash", "@scope/a", "react-dom"] {
            assert_eq!(verdict(name, "1", policy), Ok(()), "{name}");
        }
        for name in ["lodash2", "@scoped/a", "react"] {
            assert!(verdict(name, "1", policy).unwrap_err().contains("\"allow\""), "{name}");
        }
        assert_eq!(verdict("lodash", "npm:@scope/fork@1", policy), Ok(()));
        assert!(verdict("lodash", "npm:other@1", policy).unwrap_err().contains("other"));
        assert!(verdict("a", "1", r#"{"allow":[]}"#).is_err());
    }

    #[test]
    fn a_bad_policy_is_explained() {
        let cases = [
            (r#"{"alow":[]}"#, "unknown field `alow`"),
            (r#"{"specs":["tarball"]}"#, "unknown variant `tarball`"),
            (r#"{"minReleaseAgeDays":-1}"#, "must be from 0"),
            (r#"{"minReleaseAgeDays":1e9}"#, "must be from 0"),
            (r#"{"allow":["a*b"]}"#, "at the end only"),
            (r#"{"allow":["../x"]}"#, "no package name"),
            ("true", "an object with allow"),
        ];
        for (text, part) in cases {
            let message = serde_json::from_str::<DependencyPolicy>(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn the_number_is_bounded() {
        let many = |count: usize| (0..count).map(|n| (format!("p{n}"), "1".to_owned())).collect();
        assert!(check(&many(MAX_DEPENDENCIES), &DependencyPolicy::default()).is_ok());
        let error = check(&many(MAX_DEPENDENCIES + 1), &DependencyPolicy::default()).unwrap_err();
        assert!(error.message.contains("at most 200"), "{}", error.message);
    }

    proptest! {
        #[test]
        fn nothing_panics_and_nothing_climbs(name in "\\PC{0,20}", spec in "\\PC{0,30}") {
            if verdict(&name, &spec, "{}").is_ok() {
                prop_assert!(!name.contains("..") || !name.split('/').any(|part| part == ".." || part == "."));
                prop_assert!(!name.starts_with('/') && !name.contains('\\') && name.matches('/').count() <= 1);
                prop_assert!(!spec.contains(['/', '\\', ':', '@']));
            }
        }

        #[test]
        fn nothing_that_looks_like_a_path_or_an_address_passes(
            spec in "(\\.\\./|/|\\./|~/|[a-z]+:|@|[a-z]+/)[a-z0-9./:@^*-]{0,20}"
        ) {
            let refused = verdict("pkg", &spec, "{}").is_err();
            prop_assert!(refused);
        }

        #[test]
        fn with_everything_allowed_nothing_panics(name in "@?[a-z./_-]{0,12}", spec in "(npm:|file:|git\\+)?\\PC{0,20}") {
            let _ = verdict(&name, &spec, r#"{"specs":["git","url","file","alias"]}"#);
        }
    }
}
