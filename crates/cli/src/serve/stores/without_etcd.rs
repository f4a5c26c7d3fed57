//! The flag of the store in etcd, in a build without the feature `etcd`: it is refused.

use std::sync::Arc;

use clap::Args;
use portolan_serve::{History, Store};

/// The flag that asks for etcd.
#[derive(Debug, Args)]
pub(super) struct EtcdFlags {
    /// This program was built without etcd.
    #[arg(long, value_name = "URL,...", value_delimiter = ',', hide = true)]
    etcd_servers: Vec<String>,
}

impl EtcdFlags {
    /// Returns true if the objects should be in etcd.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Returns an error that names the missing feature.
    #[expect(clippy::unused_async, reason = "as the function of a build with etcd")]
    pub(super) async fn connect(&self, _: History) -> anyhow::Result<Arc<dyn Store>> {
        anyhow::bail!(
            "--etcd-servers: this program was built without etcd; build it with its default features: \
             cargo build --release -p portolan"
        )
    }
}
