//! The traits through which the prober writes. The caller implements them for a client of the API server, or for the API
//! server itself.

use std::future::Future;

use crate::error::WriteError;
use crate::lease::{Claim, Held};
use crate::plan::{Report, SliceWrite};

/// Writes EndpointSlices.
pub trait Writer: Send + Sync + 'static {
    /// Writes the conditions, if the slice has the write's resource version: sends
    /// [`SliceWrite::json_patch`]. Returns the new resource version.
    fn write(&self, write: &SliceWrite) -> impl Future<Output = Result<String, WriteError>> + Send;
}

/// Records Events. Never waits.
pub trait Events: Send + Sync + 'static {
    /// Records an Event.
    fn event(&self, report: Report);
}

/// Reads and writes the Lease.
pub trait LeaseClient: Send + Sync + 'static {
    /// Returns the Lease, or `None` if it does not exist. It must be read as of now, not from a cache.
    fn read(&self) -> impl Future<Output = Result<Option<Held>, WriteError>> + Send;

    /// Creates the Lease, or changes the one with the claim's resource version: sends [`Claim::lease`] or
    /// [`Claim::merge_patch`]. Returns the new resource version.
    fn write(&self, claim: &Claim) -> impl Future<Output = Result<String, WriteError>> + Send;
}

/// A [`LeaseClient`] for a server that is alone. It is never called.
#[derive(Debug, Clone, Copy)]
pub struct NoLease;

impl LeaseClient for NoLease {
    async fn read(&self) -> Result<Option<Held>, WriteError> {
        Ok(None)
    }

    async fn write(&self, _: &Claim) -> Result<String, WriteError> {
        Err(WriteError::Gone)
    }
}
