//! The end of a JavaScript environment (a worker thread that is terminated, the main thread at exit): its calls have
//! nobody to answer to any more, and end.

use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock, PoisonError},
};

use napi::Env;

use crate::executor::{Ender, Executor};

/// What ends the calls of each environment's executors.
fn registry() -> &'static Mutex<HashMap<usize, Vec<Ender>>> {
    static REGISTRY: OnceLock<Mutex<HashMap<usize, Vec<Ender>>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

/// Remembers an executor of this environment.
pub(super) fn watch(env: &Env, executor: &Executor) -> napi::Result<()> {
    let key = env.raw() as usize;
    let mut registry = registry().lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = !registry.contains_key(&key);
    let enders = registry.entry(key).or_default();
    // Sessions come and go, each with an executor.
    enders.retain(|ender| !ender.is_spent());
    enders.push(executor.ender());
    drop(registry);
    if is_new {
        env.add_env_cleanup_hook((), move |()| end(key))?;
    }
    Ok(())
}

fn end(key: usize) {
    let enders = registry().lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    enders.iter().flatten().for_each(Ender::end);
}
