//! Events of `tracing` → the host's logger, through a [`Sink`] that the binding implements.
//!
//! An event's target is the logger's name, its message the message, its fields the object. A field whose name begins
//! with `json_` carries JSON text and arrives as that value under the rest of its name. An event of a call goes to the sink of
//! the JavaScript environment that made the call, any other event to all sinks.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    subscriber::Interest,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
};

/// The original's logger name for everything that the native executor says.
pub const NATIVE: &str = "native-sandbox-executor";

/// One event, ready for a host's logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Logger name.
    pub name: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// The message.
    pub message: String,
    /// The fields, as a JSON object.
    pub fields_json: String,
}

/// Where records go. Must not block.
pub trait Sink: Send + Sync {
    /// Takes one record; `false` means that the sink is closed and will not be asked again.
    fn emit(&self, record: Record) -> bool;
}

/// Names a registered sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(u64);

tokio::task_local! {
    /// The sink of the call that a task belongs to.
    pub static CALL_SINK: Option<SinkId>;
    /// The tool on whose behalf a task works.
    pub static CALL_TOOL: String;
}

/// The tool on whose behalf this task works, where there is one.
pub fn tool_id() -> Option<String> {
    CALL_TOOL.try_with(Clone::clone).ok()
}

type Sinks = HashMap<SinkId, (LevelFilter, Arc<dyn Sink>)>;

fn sinks() -> &'static RwLock<Sinks> {
    static SINKS: OnceLock<RwLock<Sinks>> = OnceLock::new();
    SINKS.get_or_init(RwLock::default)
}

/// The most talkative sink's level, as `filter_rank`; 0 while nobody listens, so that an event costs one load.
static LOUDEST: AtomicUsize = AtomicUsize::new(0);

const fn rank(level: Level) -> usize {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

fn filter_rank(filter: LevelFilter) -> usize {
    filter.into_level().map_or(0, rank)
}

/// Adds a sink that hears events up to `filter`.
pub fn register(filter: LevelFilter, sink: Arc<dyn Sink>) -> SinkId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // Fails only if this copy of the crate has a subscriber already, as a test may have.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(HostLayer));
    });
    let id = SinkId(NEXT.fetch_add(1, Ordering::Relaxed));
    change(|sinks| {
        sinks.insert(id, (filter, sink));
    });
    id
}

/// Takes a sink away; unknown ones are fine.
pub fn unregister(id: SinkId) {
    change(|sinks| {
        sinks.remove(&id);
    });
}

fn change(edit: impl FnOnce(&mut Sinks)) {
    let mut sinks = sinks().write().unwrap_or_else(PoisonError::into_inner);
    edit(&mut sinks);
    LOUDEST
        .store(sinks.values().map(|(filter, _)| filter_rank(*filter)).max().unwrap_or(0), Ordering::Relaxed);
}

/// Whether an event of this level would be heard: for callers whose fields are costly to make.
pub fn heard(level: Level) -> bool {
    rank(level) <= LOUDEST.load(Ordering::Relaxed)
}

struct HostLayer;

impl<S: Subscriber> Layer<S> for HostLayer {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes() // sinks come and go
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == NATIVE && heard(*metadata.level())
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let mut visitor = FieldVisitor::default();
        event.record(&mut visitor);
        let record = Record {
            name: event.metadata().target().to_owned(),
            level: match level {
                Level::ERROR => "error",
                Level::WARN => "warn",
                Level::INFO => "info",
                Level::DEBUG | Level::TRACE => "debug",
            },
            message: visitor.message,
            fields_json: Value::Object(visitor.fields).to_string(),
        };
        deliver(level, &record);
    }
}

fn deliver(level: Level, record: &Record) {
    let of_call = CALL_SINK.try_with(|sink| *sink).ok();
    let mut closed = Vec::new();
    for (id, (filter, sink)) in sinks().read().unwrap_or_else(PoisonError::into_inner).iter() {
        let addressed = of_call.is_none_or(|call| call == Some(*id));
        if addressed && rank(level) <= filter_rank(*filter) && !sink.emit(record.clone()) {
            closed.push(*id);
        }
    }
    closed.into_iter().for_each(unregister);
}

#[derive(Default)]
struct FieldVisitor {
    message: String,
    fields: Map<String, Value>,
}

impl FieldVisitor {
    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for FieldVisitor {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // Whole numbers without a fraction, as JavaScript prints them.
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small")]
        let json = if value.fract() == 0.0 && value.abs() < 1e15 {
            Value::from(value as i64)
        } else {
            Value::from(value)
        };
        self.put(field, json);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => match name.strip_prefix("json_") {
                Some(name) => {
                    let json = serde_json::from_str(value).unwrap_or_else(|_| value.into());
                    self.fields.insert(name.to_owned(), json);
                }
                None => self.put(field, value.into()),
            },
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// What a redacted value reads.
const REDACTED: &str = "[redacted]";

/// A copy of a configuration that is fit for a log: the values of keys that name credentials are replaced, at any depth.
pub fn redacted(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(name, value)| {
                let shown = if names_credential(name) && !value.is_null() {
                    REDACTED.into()
                } else {
                    redacted(value)
                };
                (name.clone(), shown)
            })
            .collect(),
        Value::Array(items) => items.iter().map(redacted).collect(),
        other => other.clone(),
    }
}

fn names_credential(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    [
        "token",
        "secret",
        "password",
        "passwd",
        "credential",
        "apikey",
        "accesskey",
        "privatekey",
        "authorization",
        "cookie",
    ]
    .iter()
    .any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Memory(Mutex<Vec<Record>>);

    impl Sink for Memory {
        fn emit(&self, record: Record) -> bool {
            self.0.lock().unwrap().push(record);
            true
        }
    }

    #[tokio::test]
    async fn events_reach_the_sink_of_their_call_with_name_message_and_keys() {
        let (mine, other) = (Arc::new(Memory::default()), Arc::new(Memory::default()));
        let id = register(LevelFilter::DEBUG, Arc::<Memory>::clone(&mine));
        let other_id = register(LevelFilter::DEBUG, Arc::<Memory>::clone(&other));
        CALL_SINK
            .scope(Some(id), async {
                tracing::debug!(target: NATIVE, toolId = "t", vcpus = 4.0, json_sandboxConfig = %json!({ "a": 1 }), "Acquiring");
                tracing::debug!(target: "elsewhere", "not ours");
            })
            .await;
        unregister(id);
        unregister(other_id);
        let records = mine.0.lock().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(
            (records[0].name.as_str(), records[0].level, records[0].message.as_str()),
            (NATIVE, "debug", "Acquiring")
        );
        let fields: Value = serde_json::from_str(&records[0].fields_json).unwrap();
        assert_eq!(fields, json!({ "toolId": "t", "vcpus": 4, "sandboxConfig": { "a": 1 } }));
        assert!(other.0.lock().unwrap().is_empty());
    }

    #[test]
    fn credentials_are_redacted_at_any_depth() {
        let config = json!({ "provider": "vercel", "token": "t", "nested": [{ "apiKey": "k", "teamId": "x" }], "accessToken": null });
        let expected = json!({ "provider": "vercel", "token": REDACTED, "nested": [{ "apiKey": REDACTED, "teamId": "x" }], "accessToken": null });
        assert_eq!(redacted(&config), expected);
    }
}
