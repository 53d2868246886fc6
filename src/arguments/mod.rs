//! Checks the arguments of a call against the tool's `inputSchema`. Pure but for a table of schemas that were compiled.
//!
//! The validator is the crate `jsonschema`. A schema may come from a stranger, so what it could take is bounded before: its size, its
//! patterns (which run in linear time), how deep it goes on one value, and the steps that it takes for these arguments ([`graph`]).
//! Nothing is fetched: a reference leads to another place of the same schema or is an error.

mod graph;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
    thread,
};

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::graph::Graph;
use crate::error::{Code, Phase, SandboxError};

/// A schema as text.
const MAX_SCHEMA_BYTES: usize = 256 * 1024;
/// A compiled pattern, and what it may keep of its states while it runs.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;
/// Steps that any arguments may take, and those for each byte of them.
const FREE_STEPS: usize = 100_000;
const STEPS_PER_BYTE: usize = 16;
/// Arguments that take more steps are only said to be wrong, not where: each fault that is noted takes memory.
const MAX_EXPLAINED_STEPS: usize = 50_000;
/// Faults that an error names.
const MAX_NAMED_FAULTS: usize = 5;
/// Bytes of a fault's place and of its sentence.
const MAX_PLACE_BYTES: usize = 256;
const MAX_SENTENCE_BYTES: usize = 512;
/// Schemas that are kept compiled, and what they may weigh together: their texts, and so much for each pattern.
const MAX_KEPT_SCHEMAS: usize = 256;
const MAX_KEPT_BYTES: usize = 16 * 1024 * 1024;
const PATTERN_WEIGHT_BYTES: usize = 64 * 1024;
/// Schemas nest, and the validator calls itself for each level. Pages of a stack that are not used take no memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Levels for which any thread's stack is large enough.
const QUICK_LEVELS: usize = 32;

static COMPILED: LazyLock<Compiled> = LazyLock::new(Compiled::default);

/// Checks arguments (JSON; `None` where none were given) against a schema (JSON).
///
/// # Errors
///
/// `INVALID_CONFIG` says what is wrong with the schema, `INVALID_ARGUMENTS` what is wrong with the arguments.
pub fn check(schema_json: &str, args_json: Option<&str>) -> Result<(), SandboxError> {
    COMPILED.schema(schema_json)?.check(args_json)
}

type Digest = [u8; 32];
type Shared = Arc<OnceLock<Result<Arc<Schema>, SandboxError>>>;

/// Schemas by the digest of their text; the least recently used goes first.
#[derive(Default)]
struct Compiled(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: HashMap<Digest, Entry>,
    now: u64,
    total_bytes: usize,
}

struct Entry {
    schema: Shared,
    bytes: usize,
    used: u64,
}

impl Compiled {
    /// Compiles a schema once, whoever asks for it at the same time.
    fn schema(&self, json: &str) -> Result<Arc<Schema>, SandboxError> {
        if json.len() > MAX_SCHEMA_BYTES {
            let (bytes, most) = (json.len(), MAX_SCHEMA_BYTES);
            return Err(bad_schema(&format!("it has {bytes} bytes as JSON, at most {most} can be checked")));
        }
        let digest: Digest = Sha256::digest(json).into();
        let shared = self.table().shared(digest, json.len());
        let compiled = shared
            .get_or_init(|| on_large_stack(|| Schema::compile(json).map(Arc::new)).and_then(|schema| schema));
        if let Ok(schema) = compiled {
            self.table().weigh(&digest, json.len() + schema.graph.patterns() * PATTERN_WEIGHT_BYTES);
        }
        compiled.clone()
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn shared(&mut self, digest: Digest, bytes: usize) -> Shared {
        self.now += 1;
        if let Some(entry) = self.entries.get_mut(&digest) {
            entry.used = self.now;
            return Arc::clone(&entry.schema);
        }
        let schema = Shared::default();
        self.entries.insert(digest, Entry { schema: Arc::clone(&schema), bytes, used: self.now });
        self.total_bytes += bytes;
        self.make_room();
        schema
    }

    fn weigh(&mut self, digest: &Digest, bytes: usize) {
        let Some(entry) = self.entries.get_mut(digest).filter(|entry| entry.bytes != bytes) else { return };
        self.total_bytes = self.total_bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.entries.len() > MAX_KEPT_SCHEMAS || self.total_bytes > MAX_KEPT_BYTES {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(digest, _)| *digest);
            let Some(entry) = oldest.and_then(|oldest| self.entries.remove(&oldest)) else { return };
            self.total_bytes -= entry.bytes;
        }
    }
}

struct Schema {
    validator: Validator,
    graph: Graph,
}

impl Schema {
    fn compile(json: &str) -> Result<Self, SandboxError> {
        let value = parse(json).map_err(|reason| bad_schema(&reason))?;
        let draft = draft(&value)?;
        let graph = Graph::new(&value).map_err(|reason| bad_schema(&reason))?;
        let patterns =
            PatternOptions::regex().size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES);
        let options = jsonschema::options().with_draft(draft).offline().with_pattern_options(patterns);
        let validator = options.should_validate_formats(false).build(&value).map_err(|error| {
            let place = cut(error.instance_path().as_str(), MAX_PLACE_BYTES).into_owned();
            bad_schema(&format!("at {:?}: {}", place, cut(&error.masked().to_string(), MAX_SENTENCE_BYTES)))
        })?;
        Ok(Self { validator, graph })
    }

    fn check(&self, args_json: Option<&str>) -> Result<(), SandboxError> {
        let json = args_json.unwrap_or("null");
        let args = parse(json).map_err(|reason| bad_arguments(&reason))?;
        let work = self
            .graph
            .work(&args, FREE_STEPS + STEPS_PER_BYTE * json.len())
            .map_err(|reason| bad_schema(&reason))?;
        let judge = || self.judge(&args, work.steps);
        let faults = if work.levels > QUICK_LEVELS { on_large_stack(judge)? } else { judge() };
        match faults {
            None => Ok(()),
            Some(text) if args_json.is_none() => {
                Err(bad_arguments(&format!("{text} (the call has no arguments)")))
            }
            Some(text) => Err(bad_arguments(&text)),
        }
    }

    /// What is wrong with arguments, if anything is.
    fn judge(&self, args: &Value, steps: usize) -> Option<String> {
        if self.validator.is_valid(args) {
            return None;
        }
        if steps > MAX_EXPLAINED_STEPS {
            return Some("they do not fit it, and are too large to say where".to_owned());
        }
        let mut named = Vec::new();
        let mut more = 0;
        for error in self.validator.iter_errors(args) {
            if named.len() < MAX_NAMED_FAULTS {
                let place = cut(error.instance_path().as_str(), MAX_PLACE_BYTES).into_owned();
                named.push(format!("at {place:?}: {}", cut(&error.masked().to_string(), MAX_SENTENCE_BYTES)));
            } else {
                more += 1;
            }
        }
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        Some(named.join("; "))
    }
}

/// By `$schema`; 2020-12 where there is none.
fn draft(schema: &Value) -> Result<Draft, SandboxError> {
    let named = match schema.get("$schema") {
        None => return Ok(Draft::Draft202012),
        Some(Value::String(named)) => named.trim_end_matches('#'),
        Some(_) => return Err(bad_schema("its $schema must be a text")),
    };
    match named.trim_start_matches("https://").trim_start_matches("http://") {
        "json-schema.org/draft/2020-12/schema" => Ok(Draft::Draft202012),
        "json-schema.org/draft-07/schema" => Ok(Draft::Draft7),
        _ => Err(bad_schema(&format!(
            "its $schema is {:?}; known are \"https://json-schema.org/draft/2020-12/schema\", which is taken where there is none, and \"http://json-schema.org/draft-07/schema#\"",
            cut(named, MAX_PLACE_BYTES)
        ))),
    }
}

/// JSON as JavaScript writes it, half surrogate pairs included.
fn parse(json: &str) -> Result<Value, String> {
    serde_json::from_str(&without_halves(json)).map_err(|error| match error.classify() {
        // serde_json's own limit; it has no kind of its own.
        _ if error.to_string().starts_with("recursion limit") => "nested deeper than 127 levels".to_owned(),
        _ => format!("no JSON: {error}"),
    })
}

/// JavaScript escapes half surrogate pairs, and nothing else, as `\ud8…` to `\udf…`. No text in Rust can have one.
fn without_halves(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        text.push_str(before);
        let bytes = escape.as_bytes();
        let is_half = bytes.starts_with(b"\\ud")
            && bytes.get(3).is_some_and(|digit| matches!(digit, b'8'..=b'9' | b'a'..=b'f'));
        if is_half && escape.is_char_boundary(6) {
            text.push_str("\\ufffd");
            rest = &escape[6..];
        } else {
            // What is escaped is ASCII; where it is not, the reader says so.
            let end = if escape.is_char_boundary(2) { 2 } else { escape.len() };
            text.push_str(&escape[..end]);
            rest = &escape[end..];
        }
    }
    text.push_str(rest);
    Cow::Owned(text)
}

fn cut(text: &str, most_bytes: usize) -> Cow<'_, str> {
    if text.len() <= most_bytes {
        return Cow::Borrowed(text);
    }
    let end = (0..=most_bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

/// Does what may call itself often.
fn on_large_stack<T: Send>(act: impl FnOnce() -> T + Send) -> Result<T, SandboxError> {
    thread::scope(|scope| {
        let failed = |reason: &str| {
            let text = format!("The arguments cannot be checked: {reason}");
            SandboxError::new(Code::StartFailed, Phase::Validate, text)
        };
        let builder = thread::Builder::new().name("sandbox-schema".to_owned()).stack_size(STACK_BYTES);
        let running = builder
            .spawn_scoped(scope, act)
            .map_err(|error| failed(&format!("no thread for it: {error}")))?;
        running.join().map_err(|_| failed("the validator failed internally; please report this"))
    })
}

fn bad_schema(reason: &str) -> SandboxError {
    let text = format!("inputSchema of the function tool cannot be used to check arguments: {reason}");
    SandboxError::new(Code::InvalidConfig, Phase::Validate, text)
}

fn bad_arguments(faults: &str) -> SandboxError {
    let text = format!("The arguments do not fit the inputSchema of the function tool: {faults}");
    SandboxError::new(Code::InvalidArguments, Phase::Validate, text)
}

#[cfg(test)]
mod tests;
