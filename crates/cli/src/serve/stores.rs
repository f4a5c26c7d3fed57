//! Opens the store of `portolan serve`: a file, etcd or memory.

#[cfg_attr(not(feature = "etcd"), path = "stores/without_etcd.rs")]
mod etcd;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use portolan_node::config::parse_duration;
use portolan_serve::{History, MemoryStore, Store};
use portolan_store::{DurableStore, OpenError};

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

/// Where etcd is, and how to talk to it.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "clap makes the flags from these names")]
pub(super) struct EtcdFlags {
    /// Keep objects in etcd, which several servers may share, instead of a file.
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// What the keys in etcd begin with.
    #[arg(long, value_name = "PREFIX", default_value = "/portolan/v1", requires = "etcd_servers")]
    etcd_prefix: String,
    /// Authority of etcd's certificates.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// Certificate to show to etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Private key of --etcd-certfile.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// File with a user and a password for etcd, one a line.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_credentials_file: Option<PathBuf>,
    /// How often versions older than this are removed from etcd, also those of other programs; 0 leaves that to etcd.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10m",
        value_parser = parse_duration,
        requires = "etcd_servers"
    )]
    etcd_compaction_interval: Duration,
}

impl EtcdFlags {
    /// Returns true if the objects are kept in etcd.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.etcd_servers.is_empty()
    }
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
        etcd::connect(&self.etcd, history).await
    }
}
