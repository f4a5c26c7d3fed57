//! Slim API objects with only the fields that determine forwarding or health responses.
//!
//! Fields that are not read never cause a decoding error. A field that is read but invalid is ignored and reported as
//! a [`Fault`], so a bad value affects only its own object.

mod lenient;
pub mod message;
mod node;
mod parse;
mod service;
mod slice;

pub use node::{Node, ServiceCidr, Taint};
pub use parse::{parse_address, parse_cidr, parse_time};
pub use service::{
    DEFAULT_AFFINITY_SECONDS, External, MAX_AFFINITY_SECONDS, Service, ServicePort, UNKNOWN_AGE, no_source,
};
pub use slice::{EndpointSlice, SliceEndpoint, SlicePort};

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _};

use lenient::{Faults, Loose, Shape, Text, entries, record};
use message::{Malformed, Value};

/// Namespace and name of an object. The namespace is empty for cluster-scoped kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl ObjectKey {
    /// Creates the key of an object.
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

/// A field of an API object that could not be used, with the reason and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Fault {
    /// Path of the field, such as `spec.clusterIPs[0]`.
    pub field: Box<str>,
    /// What is wrong and what to write instead.
    pub reason: Box<str>,
    /// Set if the owner of the object should be notified by an Event, too.
    pub notice: Option<Notice>,
}

/// The effect of a fault on the clients of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// An external address of the Service belongs to something else. The Service has no frontend there on this node.
    AddressRefused,
    /// An external address of the Service belongs to something else. The Service is served there nevertheless.
    AddressShared,
    /// The Service claims an address or port at which this node reaches the API server. The frontend is omitted on
    /// this node.
    ApiServerAddress,
    /// No source range of a family can be parsed. The load-balancer IPs of that family are closed to all clients.
    ClosedSourceRanges,
    /// Another Service owns a frontend that this one claims.
    Conflict,
}

impl Fault {
    /// Creates a fault that is only logged.
    pub fn new(field: impl Into<Box<str>>, reason: impl Into<Box<str>>) -> Self {
        Self { field: field.into(), reason: reason.into(), notice: None }
    }

    /// Returns the fault with a notice, so that it is reported by an Event, too.
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
    /// Returns the value of the `kind` field.
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

/// An API object with its key, version, slim content and faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object<T> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.resourceVersion`; empty if it is missing.
    pub resource_version: Box<str>,
    /// The slim content.
    pub payload: T,
    /// Fields that were ignored.
    pub faults: Vec<Fault>,
}

/// The reason why bytes are not a usable API object.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The input is not JSON, or truncated.
    #[error("{kind} is not valid JSON: {source}; the API server must send one complete object")]
    Syntax {
        /// The expected kind.
        kind: Kind,
        /// The position of the syntax error.
        source: serde_json::Error,
    },
    /// The input is not a protobuf message.
    #[error("{kind} is not a protobuf message: {source}; the API server must send one complete object")]
    Message {
        /// The expected kind.
        kind: Kind,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The input is JSON, but not an object.
    #[error("{kind} is {found}; write a JSON object")]
    NotAnObject {
        /// The expected kind.
        kind: Kind,
        /// The type of the value.
        found: &'static str,
    },
    /// The object is of another kind.
    #[error("{found:?} where {kind} is wanted; the API server or a proxy before it mixes up its answers")]
    Kind {
        /// The expected kind.
        kind: Kind,
        /// At most 64 characters of its `kind`, or the type of that value if it is not a text.
        found: Box<str>,
    },
    /// The object has no usable name or namespace, so it cannot be identified.
    #[error("{kind} has no usable {field}; every object needs one")]
    Identity {
        /// The expected kind.
        kind: Kind,
        /// Path of the field.
        field: &'static str,
    },
}

/// An object as the API server sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoded<'a> {
    /// As JSON.
    Json(&'a [u8]),
    /// As a protobuf message. Its kind is not in it, but beside it.
    Protobuf {
        /// The kind, such as `Service`; empty if it is not named.
        kind: &'a str,
        /// The message.
        message: &'a [u8],
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
        /// Fails only on invalid JSON, an object of another kind, or an object without identity.
        impl<'de> Deserialize<'de> for Object<$payload> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                finish::<$payload>(Loose::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    )*};
}
deserialize!(Service, EndpointSlice, Node, ServiceCidr);

macro_rules! decode_encoded {
    ($($payload:ty),*) => {$(
        impl Object<$payload> {
            /// Decodes an object from JSON or protobuf.
            ///
            /// # Errors
            /// It cannot be read, is of another kind, or has no identity.
            pub fn decode(encoded: Encoded<'_>) -> Result<Self, DecodeError> {
                decode_any(encoded)
            }
        }
    )*};
}
decode_encoded!(Service, EndpointSlice, Node, ServiceCidr);

record!(
    RawMetadata {
        name: "name" = 1 => Text<'de>,
        namespace: "namespace" = 3 => Text<'de>,
        resource_version: "resourceVersion" = 6 => Text<'de>,
        creation_timestamp: "creationTimestamp" = 8 => Moment<'de>,
        deletion_timestamp: "deletionTimestamp" = 9 => Moment<'de>,
        labels: "labels" = 11 => Labels<'de>,
        annotations: "annotations" = 12 => Annotations<'de>,
    }
);
entries!(
    /// The labels that a proxy reads.
    Labels {
        service_name: "kubernetes.io/service-name",
        headless: "service.kubernetes.io/headless",
        service_proxy_name: "service.kubernetes.io/service-proxy-name",
        zone: "topology.kubernetes.io/zone",
    }
);
entries!(Annotations {
    trigger_time: "endpoints.kubernetes.io/last-change-trigger-time",
    ipvs_scheduler: "portolan.dev/ipvs-scheduler",
    keep_client_address: "portolan.dev/userspace-keep-client-address",
});

/// A time: a text in JSON, and a message with seconds since the Unix epoch in protobuf. Go writes an empty message for no time.
#[derive(Debug)]
pub(crate) enum Moment<'de> {
    Text(Text<'de>),
    Seconds(i64),
}

impl<'de> Shape<'de> for Moment<'de> {
    fn field(field: Value<'de>, _: Loose<Self>) -> Result<Loose<Self>, Malformed> {
        let take = |seconds: &mut Option<Value<'de>>, number, field| {
            if number == 1 {
                *seconds = Some(field);
            }
            Ok(())
        };
        Ok(match lenient::merge(field, Loose::Absent, take)? {
            Loose::Value(Some(Value::Number(seconds))) => Loose::Value(Self::Seconds(seconds.cast_signed())),
            Loose::Value(None) => Loose::Absent,
            Loose::Mismatch(found) => Loose::Mismatch(found),
            _ => Loose::Mismatch("no time"),
        })
    }

    fn text(text: Text<'de>) -> Option<Self> {
        Some(Self::Text(text))
    }
}

/// The metadata that object bodies read.
struct Metadata<'de> {
    deleting: bool,
    creation_timestamp: Loose<Moment<'de>>,
    labels: Labels<'de>,
    annotations: Annotations<'de>,
}

/// The common part of the raw objects of all kinds.
trait WithMetadata<'de> {
    fn kind(&self) -> &Loose<Text<'de>>;
    /// Takes the metadata out of the raw object.
    fn metadata(&mut self) -> Loose<RawMetadata<'de>>;
}

/// The part of decoding that differs between kinds.
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

fn decode_any<T: ObjectBody>(encoded: Encoded<'_>) -> Result<Object<T>, DecodeError> {
    let (said, message) = match encoded {
        Encoded::Json(bytes) => return decode(bytes),
        Encoded::Protobuf { kind, message } => (kind, message),
    };
    check_kind(T::KIND, &Loose::Value(said.into()))?;
    let raw = T::Raw::field(Value::Bytes(message), Loose::Absent);
    finish(raw.map_err(|source| DecodeError::Message { kind: T::KIND, source })?)
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

/// Checks the kind of an object. Objects of a list may omit it. If it is present, it must be the expected one,
/// because other kinds such as Pod have a namespace and a name, too.
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
