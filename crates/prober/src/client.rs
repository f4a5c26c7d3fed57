//! What the prober receives, and the traits through which it writes. The caller implements the traits for a client of
//! the API server, or for the API server itself.

use std::future::Future;

use serde_json::Value;

use crate::lease::{Claim, Held};
use crate::object::{EndpointSlice, Key, Service};
use crate::plan::SliceWrite;

/// An observation of the API server's objects. Nothing is probed before both lists have arrived.
#[derive(Debug, Clone)]
pub enum Input {
    /// All Services: at the start, and after a gap in the watch.
    Services(Vec<Service>),
    /// All EndpointSlices: at the start, and after a gap in the watch.
    EndpointSlices(Vec<EndpointSlice>),
    /// A Service was created or changed.
    Service(Box<Service>),
    /// A Service was deleted.
    ServiceDeleted(Key),
    /// An EndpointSlice was created or changed.
    EndpointSlice(Box<EndpointSlice>),
    /// An EndpointSlice was deleted.
    EndpointSliceDeleted(Key),
}

/// Why an object was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The object has another version (409). The newest version arrives as an [`Input`].
    #[error("the object was changed meanwhile")]
    Conflict,
    /// The object does not exist (404).
    #[error("the object does not exist")]
    Gone,
    /// Anything else. The write is tried again.
    #[error("{0}")]
    Failed(String),
}

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

/// The object of an Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Regarding {
    /// `Service` or `EndpointSlice`.
    pub kind: &'static str,
    /// Namespace and name.
    pub key: Key,
    /// UID.
    pub uid: String,
}

impl Regarding {
    /// Returns the reference as in the field `regarding` of an `events.k8s.io/v1` Event.
    pub fn reference(&self) -> Value {
        let (namespace, name) = self.key.split_once('/').unwrap_or(("", &self.key));
        let api_version = if self.kind == "Service" { "v1" } else { "discovery.k8s.io/v1" };
        serde_json::json!({"apiVersion": api_version, "kind": self.kind, "namespace": namespace, "name": name, "uid": self.uid})
    }
}

/// An Event for users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// The object.
    pub regarding: Regarding,
    /// True for the type `Warning`, false for `Normal`.
    pub is_warning: bool,
    /// `reason`.
    pub reason: &'static str,
    /// `note`, at most 1,024 bytes.
    pub note: String,
}
