//! Slim API objects: only the fields that decide a packet's fate or a health answer.
//!
//! Decoding never fails on a field that is not read. A field that is read and makes no sense is left out
//! and reported as a [`Fault`], so that one bad value harms only its own object.

mod node;
mod service;
mod slice;

pub use node::{Node, ServiceCidr};
pub use service::{Service, ServicePort};
pub use slice::{EndpointSlice, SliceEndpoint, SlicePort};

use std::fmt;

/// Namespace and name of an object; the namespace is empty for cluster-scoped kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, or empty.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// A field of an API object that could not be used, what is wrong with it and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Fault {
    /// Path of the field, such as `spec.clusterIPs[0]`.
    pub field: Box<str>,
    /// What is wrong and what to write instead.
    pub reason: Box<str>,
}
