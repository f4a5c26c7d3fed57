//! Reads the certificates and the credentials for etcd again, because certificates are rotated.
//!
//! The content is compared, so it does not matter how a file is replaced. New ones apply to new connections and logins.
//! If they are unusable, the former ones stay in use, and they are read again: perhaps only one of several files was
//! replaced yet.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::sleep};
use tracing::{info, warn};

use super::{
    Shared,
    options::{EtcdOptions, Renewal},
};
use crate::trouble::Trouble;

/// Pause between two readings.
const PAUSE: Duration = Duration::from_secs(10);

/// Reads the certificates and the credentials from time to time. Never returns.
pub(super) async fn renew(shared: Arc<Shared>, mut options: EtcdOptions, renewal: Renewal) {
    let trouble = Trouble::default();
    loop {
        sleep(PAUSE).await;
        let renewal = renewal.clone();
        // The file system may hang.
        let read =
            spawn_blocking(move || renewal.read()).await.unwrap_or_else(|error| Err(error.to_string()));
        let renewed = read.and_then(|(tls, credentials)| {
            if (&tls, &credentials) == (&options.tls, &options.credentials) {
                return Ok(());
            }
            let new = EtcdOptions { tls, credentials, ..options.clone() };
            shared.client.renew(&new).map_err(|error| error.to_string())?;
            options = new;
            info!("new certificates or credentials for etcd are used");
            Ok(())
        });
        match renewed {
            Ok(()) => {
                trouble.clear();
            }
            Err(reason) => {
                if trouble.set(&reason) {
                    warn!(
                        reason,
                        "the certificates or credentials for etcd cannot be renewed; the former ones stay"
                    );
                }
            }
        }
    }
}
