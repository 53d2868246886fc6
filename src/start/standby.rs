//! Processes booted ahead of need, on every platform: each waits for one job, serves it and dies.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Breed, Rung, ScriptSource, StartError, StockCounts, Worker, WorkerSpec,
    resolver::Resolver,
    spawn,
    stock::{Forge, Stock},
};
use crate::process::{BoxFuture, Spawner};

/// The most kinds of workers that stocks are kept for; beyond it, all are dropped and begin anew.
const MAX_STOCKS: usize = 16;

/// What a stock is of: a breed, and what its workers may read, a tree and who knows the names of hosts. That cannot be widened
/// once they live.
type Kind = (Arc<Breed>, Option<PathBuf>, Resolver);

/// The standby stocks of the process.
pub(super) struct Standby {
    spawner: Arc<dyn Spawner>,
    stocks: Mutex<HashMap<Kind, Arc<Stock>>>,
}

impl Standby {
    pub(super) fn new(spawner: Arc<dyn Spawner>) -> Self {
        Self { spawner, stocks: Mutex::default() }
    }

    pub(super) async fn take(&self, spec: &WorkerSpec) -> Result<Worker, StartError> {
        self.stock(spec).take().await
    }

    /// Ends what is kept ready for a tree.
    pub(super) fn forget(&self, tree: &Path) {
        let ended: Vec<_> = self.lock().extract_if(|(_, of, _), _| of.as_deref() == Some(tree)).collect();
        drop(ended); // outside of the lock
    }

    pub(super) fn counts(&self) -> StockCounts {
        let stocks = self.lock();
        StockCounts { stocks: stocks.len(), ready: stocks.values().map(|stock| stock.ready()).sum() }
    }

    #[expect(clippy::mutable_key_type, reason = "a store is compared by its folder, which does not change")]
    pub(super) fn drain(&self) {
        let stocks = std::mem::take(&mut *self.lock());
        drop(stocks);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Kind, Arc<Stock>>> {
        self.stocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stock(&self, spec: &WorkerSpec) -> Arc<Stock> {
        let resolver = Resolver::now();
        let kind = (Arc::clone(&spec.breed), spec.readable_tree().map(Path::to_path_buf), resolver);
        let mut stocks = self.lock();
        if let Some(stock) = stocks.get(&kind) {
            return Arc::clone(stock);
        }
        stocks.retain(|(.., of), _| *of == resolver);
        if stocks.len() >= MAX_STOCKS {
            stocks.clear();
        }
        let (spawner, scripts) = (Arc::clone(&self.spawner), spec.scripts.clone());
        let stock = Stock::new(Arc::new(Boots { spawner, kind: kind.clone(), scripts }));
        stocks.insert(kind, Arc::clone(&stock));
        stock
    }
}

struct Boots {
    spawner: Arc<dyn Spawner>,
    kind: Kind,
    scripts: ScriptSource,
}

impl Forge for Boots {
    fn make(&self) -> BoxFuture<'_, Result<Worker, StartError>> {
        let (breed, tree, _) = &self.kind;
        Box::pin(spawn::boot(&*self.spawner, breed, &self.scripts, tree.as_deref(), Rung::Standby))
    }
}
