//! Processes booted ahead of need, on every platform: each waits for one job, serves it and dies.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Breed, Rung, ScriptSource, StartError, Worker, spawn,
    stock::{Forge, Stock},
};
use crate::process::{BoxFuture, Spawner};

/// The most kinds of workers that stocks are kept for; beyond it, all are dropped and begin anew.
const MAX_BREEDS: usize = 16;

/// The standby stocks of the process.
pub(super) struct Standby {
    spawner: Arc<dyn Spawner>,
    stocks: Mutex<HashMap<Arc<Breed>, Arc<Stock>>>,
}

impl Standby {
    pub(super) fn new(spawner: Arc<dyn Spawner>) -> Self {
        Self { spawner, stocks: Mutex::default() }
    }

    pub(super) async fn take(
        &self,
        breed: &Arc<Breed>,
        scripts: &ScriptSource,
    ) -> Result<Worker, StartError> {
        self.stock(breed, scripts).take().await
    }

    pub(super) fn drain(&self) {
        let stocks = std::mem::take(&mut *self.lock());
        drop(stocks);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<Breed>, Arc<Stock>>> {
        self.stocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stock(&self, breed: &Arc<Breed>, scripts: &ScriptSource) -> Arc<Stock> {
        let mut stocks = self.lock();
        if let Some(stock) = stocks.get(breed) {
            return Arc::clone(stock);
        }
        if stocks.len() >= MAX_BREEDS {
            stocks.clear();
        }
        let forge =
            Boots { spawner: Arc::clone(&self.spawner), breed: breed.clone(), scripts: scripts.clone() };
        let stock = Stock::new(Arc::new(forge));
        stocks.insert(breed.clone(), Arc::clone(&stock));
        stock
    }
}

struct Boots {
    spawner: Arc<dyn Spawner>,
    breed: Arc<Breed>,
    scripts: ScriptSource,
}

impl Forge for Boots {
    fn make(&self) -> BoxFuture<'_, Result<Worker, StartError>> {
        // The job brings the working folder; until then any that is sure to be there will do.
        let cwd = PathBuf::from(if cfg!(windows) { "C:\\" } else { "/" });
        Box::pin(spawn::boot(&*self.spawner, &self.breed, &self.scripts, cwd, Rung::Standby))
    }
}
