//! The fields of Services and EndpointSlices that health checks need, as the API has them. All other fields stay
//! untouched, because slices are patched. An observation of these objects is an [`Input`].

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_schema::SERVICE_NAME;
use serde::{Deserialize, Deserializer};

use crate::annotations::CHECK;

/// Namespace and name of an object, joined with `/`.
pub type Key = Arc<str>;

/// Label of a slice that names who made it (`LabelManagedBy`).
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Annotation of a slice whose conditions the prober has written.
pub const MARKER: &str = portolan_schema::HEALTH_CHECKED;
/// End of the [`MANAGED_BY`] values of Kubernetes' own controllers.
const CONTROLLERS: &str = ".k8s.io";
/// [`MANAGED_BY`] of the slices in which `portolan serve` lists its own addresses.
const SERVER: &str = "apiserver.portolan";

/// Metadata of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// UID.
    pub uid: String,
    /// Version of the object, for conditional writes.
    pub resource_version: String,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations. `None` if the object does not have the field, which a patch must then add first.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Owners.
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}

/// A reference to an owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OwnerReference {
    /// True if the owner is the controller that made the object.
    #[serde(deserialize_with = "or_default")]
    pub controller: bool,
}

/// A Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(deserialize_with = "or_default")]
    pub spec: ServiceSpec,
}

/// Specification of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// True if endpoints that are not ready are shown as ready.
    #[serde(deserialize_with = "or_default")]
    pub publish_not_ready_addresses: bool,
}

/// An EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Metadata.
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// Endpoints.
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<Endpoint>,
    /// Ports of all endpoints.
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<Port>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Addresses. Proxies use the first one only.
    #[serde(deserialize_with = "or_default")]
    pub addresses: Vec<String>,
    /// Conditions. `None` if the endpoint does not have the field, which a patch must then add first.
    pub conditions: Option<Conditions>,
}

/// The conditions of an endpoint. `None` is an absent field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// True if the endpoint gets traffic. Absent means true.
    pub ready: Option<bool>,
    /// True if the endpoint answers, ready or not.
    pub serving: Option<bool>,
    /// True if the endpoint is about to end.
    pub terminating: Option<bool>,
}

/// A port of a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Number. `None` means all ports.
    pub port: Option<u16>,
    /// Protocol. Absent means TCP.
    pub protocol: Option<String>,
}

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

/// Reads `null` as the default, as Kubernetes does.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl Metadata {
    /// Returns the object's key.
    pub fn key(&self) -> Key {
        format!("{}/{}", self.namespace, self.name).into()
    }

    /// Returns an annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

impl Service {
    /// Returns true if the Service has an annotation that asks for checks, valid or not.
    pub fn asks_for_checks(&self) -> bool {
        self.metadata.annotation(CHECK.name).is_some()
    }
}

impl EndpointSlice {
    /// Returns the key of the slice's Service, or `None` if the label is absent.
    pub fn service(&self) -> Option<Key> {
        let name = self.metadata.labels.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
        Some(format!("{}/{name}", self.metadata.namespace).into())
    }

    /// Returns true if a controller maintains the slice. Kubernetes asks people to set [`MANAGED_BY`] to a name of
    /// their own, so only the names of known controllers count, and an owner that is a controller.
    pub fn is_managed(&self) -> bool {
        let manager = self.metadata.labels.get(MANAGED_BY);
        manager.is_some_and(|manager| manager.ends_with(CONTROLLERS) || manager == SERVER)
            || self.metadata.owner_references.iter().any(|owner| owner.controller)
    }

    /// Returns true if the prober has written conditions of the slice.
    pub fn is_marked(&self) -> bool {
        self.metadata.annotation(MARKER).is_some()
    }
}

impl Port {
    /// Returns true if the port is a TCP port.
    pub fn is_tcp(&self) -> bool {
        self.protocol.as_deref().is_none_or(|protocol| protocol == "TCP" || protocol.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(json: &str) -> EndpointSlice {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn nulls_and_unknown_fields_are_accepted() {
        let slice = slice(
            r#"{"kind":"EndpointSlice","metadata":{"name":"a","namespace":"n","labels":null,"ownerReferences":null},
                "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":null},"zone":"z"}],"ports":null}"#,
        );
        assert_eq!(&*slice.metadata.key(), "n/a");
        assert_eq!(slice.endpoints[0].conditions, Some(Conditions::default()));
        assert!(slice.ports.is_empty() && slice.service().is_none() && !slice.is_marked());
    }

    #[test]
    fn slices_of_controllers_are_managed_and_those_of_people_are_not() {
        let with = |manager: &str| {
            slice(&format!(r#"{{"metadata":{{"labels":{{"{MANAGED_BY}":"{manager}"}}}}}}"#)).is_managed()
        };
        assert!(with("endpointslice-controller.k8s.io"));
        assert!(with("endpointslicemirroring-controller.k8s.io"));
        assert!(with("apiserver.portolan"));
        assert!(!with("staff") && !with("cluster-admins"));
        assert!(!slice("{}").is_managed());
        let owned = |controller: &str| {
            slice(&format!(r#"{{"metadata":{{"ownerReferences":[{{"controller":{controller}}}]}}}}"#))
                .is_managed()
        };
        assert!(owned("true") && !owned("false") && !owned("null"));
    }
}
