//! What becomes of sandboxes, and which connections were refused, told to whoever watches: one watcher for each JavaScript environment that has asked for it. While
//! nobody has, telling costs one load.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use serde_json::Value;

/// Hears of it. Must not block.
pub trait Watcher: Send + Sync {
    /// Takes one event, as a JSON object.
    fn event(&self, json: String);
}

/// Names a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatcherId(u64);

static WATCHERS: Mutex<Vec<(WatcherId, Arc<dyn Watcher>)>> = Mutex::new(Vec::new());
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Adds a watcher.
pub fn register(watcher: Arc<dyn Watcher>) -> WatcherId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = WatcherId(NEXT.fetch_add(1, Ordering::Relaxed));
    let mut watchers = watchers();
    watchers.push((id, watcher));
    WATCHED.store(true, Ordering::Relaxed);
    id
}

/// Takes one away; unknown ones are fine.
pub fn unregister(id: WatcherId) {
    let mut watchers = watchers();
    watchers.retain(|(of, _)| *of != id);
    WATCHED.store(!watchers.is_empty(), Ordering::Relaxed);
}

/// Tells all watchers; `event` is not asked for where there is none.
pub fn tell(event: impl FnOnce() -> Value) {
    if !WATCHED.load(Ordering::Relaxed) {
        return;
    }
    let json = event().to_string();
    let told: Vec<_> = watchers().iter().map(|(_, watcher)| Arc::clone(watcher)).collect();
    for watcher in told {
        watcher.event(json.clone());
    }
}

fn watchers() -> std::sync::MutexGuard<'static, Vec<(WatcherId, Arc<dyn Watcher>)>> {
    WATCHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Heard(Mutex<Vec<String>>);

    impl Watcher for Heard {
        fn event(&self, json: String) {
            self.0.lock().unwrap().push(json);
        }
    }

    #[test]
    fn nothing_is_made_while_nobody_watches() {
        tell(|| panic!("nobody has asked"));
        let heard = Arc::new(Heard(Mutex::default()));
        let id = register(Arc::clone(&heard) as _);
        tell(|| json!({ "event": "created" }));
        unregister(id);
        tell(|| panic!("nobody asks any more"));
        assert_eq!(*heard.0.lock().unwrap(), [r#"{"event":"created"}"#]);
    }
}
