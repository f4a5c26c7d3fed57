//! Services and EndpointSlices with the fields that names and variables need, and their decoding from API objects.
//!
//! A field that cannot be used, such as an address that does not parse, is left out. An object whose name is no DNS
//! label, or whose JSON has another shape, is an error of that object. `model`'s objects are made for forwarding and
//! lack what names need: `externalName`, the endpoints' `hostname` and `publishNotReadyAddresses`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

pub use portolan_net::Protocol;
use serde::Deserialize;

use crate::label::is_label;

#[cfg(test)]
mod tests;

/// Label of an EndpointSlice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Annotation from before `publishNotReadyAddresses`; the specification of names mentions it.
const TOLERATE_UNREADY: &str = "service.alpha.kubernetes.io/tolerate-unready-endpoints";

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name in the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// Makes a name from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// A port of a Service or of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Name; empty if there is none.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Number.
    pub number: u16,
}

/// Where the name of a Service leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// To its cluster IPs, of one family or of both, in the given order.
    ClusterIps(Box<[IpAddr]>),
    /// To its endpoints, because it is headless.
    Headless,
    /// To another name: `externalName`.
    ExternalName(Box<str>),
    /// Nowhere: its cluster IPs are not allocated.
    Unallocated,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// Where its name leads to.
    pub kind: Kind,
    /// Ports in the given order.
    pub ports: Box<[Port]>,
    /// True if endpoints that are not ready have names too (`publishNotReadyAddresses`).
    pub publish_not_ready: bool,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Addresses of the slice's family.
    pub addresses: Box<[IpAddr]>,
    /// `hostname`, a DNS label.
    pub hostname: Option<Arc<str>>,
    /// Condition `ready`; true if it is not known.
    pub ready: bool,
}

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub name: ObjectName,
    /// Name of its Service, or `None` if it belongs to none.
    pub service: Option<Arc<str>>,
    /// Endpoints. Those of a slice of host names (`addressType: FQDN`) are left out.
    pub endpoints: Box<[Endpoint]>,
    /// Ports of all of its endpoints.
    pub ports: Box<[Port]>,
}

/// Why an object cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The JSON is malformed or has another shape.
    #[error("the object cannot be decoded: {0}")]
    Shape(#[from] serde_json::Error),
    /// The namespace or name is no DNS label.
    #[error("{field} {value:?} is no DNS label")]
    Name {
        /// Which field it is.
        field: &'static str,
        /// Its value.
        value: String,
    },
}

#[derive(Deserialize)]
struct RawService {
    metadata: RawMetadata,
    spec: Option<RawSpec>,
}

#[derive(Deserialize)]
struct RawMetadata {
    name: Option<String>,
    namespace: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    external_name: Option<String>,
    ports: Option<Vec<RawPort>>,
    publish_not_ready_addresses: Option<bool>,
}

#[derive(Deserialize)]
struct RawPort {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSlice {
    metadata: RawMetadata,
    address_type: Option<String>,
    endpoints: Option<Vec<RawEndpoint>>,
    ports: Option<Vec<RawPort>>,
}

#[derive(Deserialize)]
struct RawEndpoint {
    addresses: Option<Vec<String>>,
    hostname: Option<String>,
    conditions: Option<RawConditions>,
}

#[derive(Deserialize)]
struct RawConditions {
    ready: Option<bool>,
}

impl Service {
    /// Decodes a Service from the JSON of the API object.
    pub fn decode(json: &[u8]) -> Result<Self, Invalid> {
        serde_json::from_slice::<RawService>(json)?.try_into()
    }
}

impl TryFrom<&serde_json::Value> for Service {
    type Error = Invalid;

    fn try_from(object: &serde_json::Value) -> Result<Self, Invalid> {
        RawService::deserialize(object)?.try_into()
    }
}

impl TryFrom<RawService> for Service {
    type Error = Invalid;

    fn try_from(raw: RawService) -> Result<Self, Invalid> {
        let tolerates = raw.metadata.annotations.as_ref().and_then(|all| all.get(TOLERATE_UNREADY));
        let tolerates = tolerates.is_some_and(|value| value == "true");
        let name = raw.metadata.object_name()?;
        let spec = raw.spec.unwrap_or_default();
        Ok(Self {
            name,
            kind: spec.kind(),
            publish_not_ready: spec.publish_not_ready_addresses == Some(true) || tolerates,
            ports: ports(spec.ports),
        })
    }
}

impl Slice {
    /// Decodes an EndpointSlice from the JSON of the API object.
    pub fn decode(json: &[u8]) -> Result<Self, Invalid> {
        serde_json::from_slice::<RawSlice>(json)?.try_into()
    }
}

impl TryFrom<&serde_json::Value> for Slice {
    type Error = Invalid;

    fn try_from(object: &serde_json::Value) -> Result<Self, Invalid> {
        RawSlice::deserialize(object)?.try_into()
    }
}

impl TryFrom<RawSlice> for Slice {
    type Error = Invalid;

    fn try_from(raw: RawSlice) -> Result<Self, Invalid> {
        let service = raw.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_LABEL));
        let service = service.filter(|name| is_label(name)).map(|name| name.as_str().into());
        let name = raw.metadata.slice_name()?;
        let endpoints = match raw.address_type.as_deref() {
            Some("FQDN") => Box::default(),
            _ => raw.endpoints.unwrap_or_default().into_iter().map(Endpoint::from).collect(),
        };
        Ok(Self { name, service, endpoints, ports: ports(raw.ports) })
    }
}

impl From<RawEndpoint> for Endpoint {
    fn from(raw: RawEndpoint) -> Self {
        let hostname = raw.hostname.filter(|hostname| is_label(hostname));
        Self {
            addresses: addresses(raw.addresses.unwrap_or_default().iter()),
            hostname: hostname.map(Into::into),
            ready: raw.conditions.and_then(|conditions| conditions.ready).unwrap_or(true),
        }
    }
}

impl RawMetadata {
    fn object_name(self) -> Result<ObjectName, Invalid> {
        let name = label("metadata.name", self.name)?;
        Ok(ObjectName { namespace: label("metadata.namespace", self.namespace)?, name })
    }

    /// The name of a slice may have dots and is part of no DNS name.
    fn slice_name(self) -> Result<ObjectName, Invalid> {
        let name = self.name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Invalid::Name { field: "metadata.name", value: String::new() })?.into();
        Ok(ObjectName { namespace: label("metadata.namespace", self.namespace)?, name })
    }
}

impl RawSpec {
    fn kind(&self) -> Kind {
        if self.kind.as_deref() == Some("ExternalName") {
            return self
                .external_name
                .as_deref()
                .map_or(Kind::Unallocated, |name| Kind::ExternalName(name.into()));
        }
        if self.cluster_ip.as_deref() == Some("None") {
            return Kind::Headless;
        }
        let ips = self.cluster_ips.as_deref().filter(|ips| !ips.is_empty());
        let ips = ips.map_or_else(|| addresses(self.cluster_ip.iter()), |ips| addresses(ips.iter()));
        if ips.is_empty() { Kind::Unallocated } else { Kind::ClusterIps(ips) }
    }
}

fn label(field: &'static str, value: Option<String>) -> Result<Arc<str>, Invalid> {
    let value = value.unwrap_or_default();
    if is_label(&value) { Ok(value.into()) } else { Err(Invalid::Name { field, value }) }
}

fn addresses<'a>(texts: impl Iterator<Item = &'a String>) -> Box<[IpAddr]> {
    texts.filter_map(|text| text.parse().ok()).collect()
}

fn ports(raw: Option<Vec<RawPort>>) -> Box<[Port]> {
    raw.unwrap_or_default().into_iter().filter_map(port).collect()
}

/// A slice's port without a number means all ports, which no record can express.
fn port(raw: RawPort) -> Option<Port> {
    let name = raw.name.unwrap_or_default();
    if !name.is_empty() && !is_label(&name) {
        return None;
    }
    let number = u16::try_from(raw.port?).ok().filter(|number| *number > 0)?;
    Some(Port { name: name.into(), protocol: protocol(raw.protocol.as_deref())?, number })
}

fn protocol(text: Option<&str>) -> Option<Protocol> {
    match text {
        None | Some("") => Some(Protocol::default()),
        Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}
