//! Opens the store of `portolan serve`: a file, etcd or memory.

#[cfg_attr(not(feature = "etcd"), path = "stores/without_etcd.rs")]
mod etcd;

use std::{path::Path, sync::Arc};

use clap::Args;
use portolan_serve::{History, MemoryStore, Store};
use portolan_store::{DurableStore, OpenError};

use self::etcd::EtcdFlags;
use super::backup::rescuable;

/// A file in the data folder, unless something else is asked for.
#[derive(Debug, Args)]
pub(super) struct StoreOptions {
    /// Keep objects in memory only: they end with the process.
    #[arg(long, conflicts_with = "etcd_servers")]
    in_memory: bool,
    #[command(flatten)]
    etcd: EtcdFlags,
}

impl StoreOptions {
    /// Returns true if other servers may use the same store.
    pub(super) fn is_shared(&self) -> bool {
        self.etcd.is_asked_for()
    }

    /// Returns true if the objects end with the process.
    pub(super) const fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Opens the store. The tasks of an etcd store run on the current runtime.
    pub(super) async fn open(&self, data_dir: &Path, history: History) -> anyhow::Result<Arc<dyn Store>> {
        if self.in_memory {
            return Ok(Arc::new(MemoryStore::new(history)));
        }
        if !self.etcd.is_asked_for() {
            return match DurableStore::open(data_dir, history) {
                Ok(store) => Ok(Arc::new(store)),
                Err(error @ OpenError::Corrupt { .. }) => {
                    Err(anyhow::anyhow!("--data-dir: {error}. {}", rescuable(data_dir)))
                }
                // The error's message contains its source.
                Err(error) => Err(anyhow::anyhow!("--data-dir: {error}")),
            };
        }
        self.etcd.connect(history).await
    }
}
