//! Slim API objects: only the fields that decide a packet's fate or a health answer.
//!
//! Decoding never fails on a field that is not read. A field that is read and makes no sense is left out
//! and reported as a [`Fault`], so that one bad value harms only its own object.

mod lenient;
mod node;
mod parse;
mod service;
mod slice;

pub use node::{Node, ServiceCidr};
pub use parse::{parse_address, parse_cidr, parse_time};
pub use service::{
    DEFAULT_AFFINITY_SECONDS, External, MAX_AFFINITY_SECONDS, Service, ServicePort, UNKNOWN_AGE, no_source,
};
pub use slice::{EndpointSlice, SliceEndpoint, SlicePort};

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _};

use lenient::{Faults, Loose, Shape, Text, record};

/// Namespace and name of an object; the namespace is empty for cluster-scoped kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, or empty.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl ObjectKey {
    /// The key of an object.
    pub fn new(namespace: impl Into<Box<str>>, name: impl Into<Box<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
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
    /// Present where the owner of the object should be told by an Event, too.
    pub notice: Option<Notice>,
}

/// What a fault means for the clients of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The Service asks for the place where this node reaches the API server; it is left out on this node.
    ApiServerAddress,
    /// No source range of a family can be read: the load-balancer IPs of that family are closed to all.
    ClosedSourceRanges,
    /// Another Service has what this one asks for.
    Conflict,
}

impl Fault {
    /// A fault for the log alone.
    pub fn new(field: impl Into<Box<str>>, reason: impl Into<Box<str>>) -> Self {
        Self { field: field.into(), reason: reason.into(), notice: None }
    }

    /// The same, to be told by an Event as well.
    #[must_use]
    pub fn noticed(self, notice: Notice) -> Self {
        Self { notice: Some(notice), ..self }
    }
}

/// The kinds of objects that a node watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
}

impl Kind {
    /// The name that API objects have in their `kind` field.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An API object: who it is, which version, what it says, and what of it could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object<T> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.resourceVersion`, empty where it is missing.
    pub resource_version: Box<str>,
    /// The slim content.
    pub payload: T,
    /// Fields that were left out.
    pub faults: Vec<Fault>,
}

/// Why bytes are no API object at all.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON, or cut off.
    #[error("{kind} is not valid JSON: {source}; the API server must send one complete object")]
    Syntax {
        /// The kind that was wanted.
        kind: Kind,
        /// Where the syntax breaks.
        source: serde_json::Error,
    },
    /// JSON, but not an object.
    #[error("{kind} is {found}; write a JSON object")]
    NotAnObject {
        /// The kind that was wanted.
        kind: Kind,
        /// What stands there.
        found: &'static str,
    },
    /// It says that it is of another kind.
    #[error("{found:?} where {kind} is wanted; the API server or a proxy before it mixes up its answers")]
    Kind {
        /// The kind that was wanted.
        kind: Kind,
        /// At most 64 characters of what its `kind` says.
        found: Box<str>,
    },
    /// Without a usable name nobody can say which object this is.
    #[error("{kind} has no usable {field}; every object needs one")]
    Identity {
        /// The kind that was wanted.
        kind: Kind,
        /// Path of the field.
        field: &'static str,
    },
}

/// Decodes a Service from JSON.
pub fn decode_service(bytes: &[u8]) -> Result<Object<Service>, DecodeError> {
    decode(bytes)
}

/// Decodes an EndpointSlice from JSON.
pub fn decode_endpoint_slice(bytes: &[u8]) -> Result<Object<EndpointSlice>, DecodeError> {
    decode(bytes)
}

/// Decodes a Node from JSON.
pub fn decode_node(bytes: &[u8]) -> Result<Object<Node>, DecodeError> {
    decode(bytes)
}

/// Decodes a ServiceCIDR from JSON.
pub fn decode_service_cidr(bytes: &[u8]) -> Result<Object<ServiceCidr>, DecodeError> {
    decode(bytes)
}

macro_rules! deserialize {
    ($($payload:ty),*) => {$(
        /// Fails only on broken JSON or an object without identity.
        impl<'de> Deserialize<'de> for Object<$payload> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                finish::<$payload>(Loose::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    )*};
}
deserialize!(Service, EndpointSlice, Node, ServiceCidr);

record!(
    RawMetadata {
        name: "name" => Text<'de>,
        namespace: "namespace" => Text<'de>,
        resource_version: "resourceVersion" => Text<'de>,
        creation_timestamp: "creationTimestamp" => Text<'de>,
        deletion_timestamp: "deletionTimestamp" => Text<'de>,
        labels: "labels" => Labels<'de>,
        annotations: "annotations" => Annotations<'de>,
    }
);
record!(
    /// The labels that mean something to a proxy.
    Labels {
        service_name: "kubernetes.io/service-name" => Text<'de>,
        headless: "service.kubernetes.io/headless" => Text<'de>,
        service_proxy_name: "service.kubernetes.io/service-proxy-name" => Text<'de>,
        zone: "topology.kubernetes.io/zone" => Text<'de>,
    }
);
record!(
    Annotations {
        trigger_time: "endpoints.kubernetes.io/last-change-trigger-time" => Text<'de>,
        ipvs_scheduler: "portolan.dev/ipvs-scheduler" => Text<'de>,
        keep_client_address: "portolan.dev/userspace-keep-client-address" => Text<'de>,
    }
);

/// Metadata that bodies look at.
struct Metadata<'de> {
    deleting: bool,
    creation_timestamp: Loose<Text<'de>>,
    labels: Labels<'de>,
    annotations: Annotations<'de>,
}

/// What all kinds have.
trait WithMetadata<'de> {
    fn kind(&self) -> &Loose<Text<'de>>;
    /// Gives it up.
    fn metadata(&mut self) -> Loose<RawMetadata<'de>>;
}

/// What differs between kinds.
trait ObjectBody: Sized {
    type Raw<'de>: Shape<'de> + WithMetadata<'de>;
    const KIND: Kind;
    fn build(raw: Self::Raw<'_>, metadata: &Metadata<'_>, faults: &mut Faults) -> Self;
}

fn decode<T: ObjectBody>(bytes: &[u8]) -> Result<Object<T>, DecodeError> {
    let raw =
        serde_json::from_slice(bytes).map_err(|source| DecodeError::Syntax { kind: T::KIND, source })?;
    finish(raw)
}

fn finish<T: ObjectBody>(raw: Loose<T::Raw<'_>>) -> Result<Object<T>, DecodeError> {
    let kind = T::KIND;
    let mut raw = match raw {
        Loose::Value(raw) => raw,
        Loose::Absent | Loose::Null => return Err(DecodeError::NotAnObject { kind, found: "null" }),
        Loose::Mismatch(found) => return Err(DecodeError::NotAnObject { kind, found }),
    };
    check_kind(kind, raw.kind())?;
    let Loose::Value(metadata) = raw.metadata() else {
        return Err(DecodeError::Identity { kind, field: "metadata" });
    };
    let key = identity(kind, &metadata)?;
    let mut faults = Faults::new();
    let resource_version = metadata.resource_version.text().unwrap_or_default().into();
    let metadata = Metadata {
        deleting: !metadata.deletion_timestamp.is_missing(),
        creation_timestamp: metadata.creation_timestamp,
        labels: metadata.labels.or_empty(&mut faults, "metadata.labels", "an object"),
        annotations: metadata.annotations.or_empty(&mut faults, "metadata.annotations", "an object"),
    };
    let payload = T::build(raw, &metadata, &mut faults);
    faults.shrink_to_fit();
    Ok(Object { key, resource_version, payload, faults })
}

/// An object of a list need not say what it is. One that does must be of the kind that is wanted: a Pod has a
/// namespace and a name, too.
fn check_kind(kind: Kind, said: &Loose<Text<'_>>) -> Result<(), DecodeError> {
    let found = match said {
        Loose::Absent | Loose::Null => return Ok(()),
        Loose::Value(text) if text.is_empty() || text == kind.name() => return Ok(()),
        Loose::Value(text) => text.chars().take(64).collect(),
        Loose::Mismatch(found) => (*found).into(),
    };
    Err(DecodeError::Kind { kind, found })
}

fn identity(kind: Kind, metadata: &RawMetadata<'_>) -> Result<ObjectKey, DecodeError> {
    let name = metadata.name.text().filter(|name| !name.is_empty());
    let name = name.ok_or(DecodeError::Identity { kind, field: "metadata.name" })?;
    let namespaced = matches!(kind, Kind::Service | Kind::EndpointSlice);
    let namespace = metadata.namespace.text().unwrap_or_default();
    if namespaced && namespace.is_empty() {
        return Err(DecodeError::Identity { kind, field: "metadata.namespace" });
    }
    Ok(ObjectKey::new(if namespaced { namespace } else { "" }, name))
}

#[cfg(test)]
mod tests;
