//! Refuses the store in etcd, in a build without the feature `etcd`.

use std::sync::Arc;

use portolan_serve::{History, Store};

use super::EtcdFlags;

/// Returns an error that says how to build with etcd.
#[expect(clippy::unused_async, reason = "as the function of a build with etcd")]
pub(super) async fn connect(_: &EtcdFlags, _: History) -> anyhow::Result<Arc<dyn Store>> {
    anyhow::bail!(
        "--etcd-servers: this program was built without etcd; build it with its default features: cargo build --release \
         -p portolan"
    )
}
