//! Creates or opens an API with the objects that every cluster has.

use std::sync::Arc;

use futures::executor::block_on;
use portolan_store::{MemoryStore, Store};

use crate::{
    api::{Api, SYSTEM_NAMESPACES},
    config::ApiConfig,
    error::ApiError,
    service_cidr,
};

impl Api {
    /// Creates an in-memory API with the Namespaces and the ServiceCIDR that every cluster has.
    pub fn new(config: &ApiConfig) -> Self {
        let api = Self::over(Arc::new(MemoryStore::new(config.history)), config);
        if let Err(error) = block_on(api.create_initial_objects()) {
            tracing::error!(%error, "what every cluster has could not be made");
        }
        api
    }

    /// Opens an API over a given store, and creates the Namespaces and the ServiceCIDR that every cluster has if they
    /// are missing. Returns an error if they cannot be created: without the ServiceCIDR no Service gets an address.
    pub async fn open(store: Arc<dyn Store>, config: &ApiConfig) -> Result<Self, ApiError> {
        let api = Self::over(store, config);
        api.create_initial_objects().await?;
        Ok(api)
    }

    async fn create_initial_objects(&self) -> Result<(), ApiError> {
        for name in SYSTEM_NAMESPACES {
            self.ensure_namespace(name).await?;
        }
        service_cidr::ensure_default(self).await?;
        service_cidr::settle(self).await;
        Ok(())
    }
}
