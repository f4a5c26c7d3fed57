//! The fields of Services and EndpointSlices that health checks need, as the API has them. All other fields stay
//! untouched, because slices are patched. An observation of these objects is an [`Input`].

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_schema::SERVICE_NAME;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::annotations::CHECK;

/// Namespace and name of an object, joined with `/`.
pub type Key = Arc<str>;

/// Label of a slice that names who made it (`LabelManagedBy`).
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Annotation of a slice whose conditions the prober has written.
pub const MARKER: &str = portolan_schema::HEALTH_CHECKED;
/// The field manager of the prober's writes.
pub const MANAGER: &str = "portolan-prober";
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
    /// The field manager besides [`MANAGER`] that wrote the endpoints of a slice last, if one is known.
    #[serde(rename = "managedFields", deserialize_with = "other_manager")]
    pub other_manager: Option<String>,
}

/// Who wrote fields of an object, and when.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ManagedFields {
    #[serde(deserialize_with = "or_default")]
    manager: String,
    /// A time of RFC 3339 in UTC, so times compare as texts.
    #[serde(deserialize_with = "or_default")]
    time: String,
    #[serde(rename = "fieldsV1", deserialize_with = "or_default")]
    fields: OwnedFields,
}

/// Whether the list of endpoints is among the fields. It has one owner, besides those that apply it (`atomic` in the
/// schema of the EndpointSlice).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnedFields {
    #[serde(rename = "f:endpoints")]
    endpoints: Option<IgnoredAny>,
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

fn other_manager<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let all: Vec<ManagedFields> = or_default(from)?;
    let others = all.into_iter().filter(|it| it.manager != MANAGER && it.fields.endpoints.is_some());
    Ok(others.max_by(|one, other| one.time.cmp(&other.time)).map(|entry| entry.manager))
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
    fn the_last_other_manager_of_the_endpoints_is_known() {
        let of = |managed: &str| {
            slice(&format!(r#"{{"metadata":{{"managedFields":{managed}}}}}"#)).metadata.other_manager
        };
        let entry = |manager: &str, second: u8, field: &str| {
            format!(
                r#"{{"manager":"{manager}","time":"2026-03-01T10:00:0{second}Z","fieldsV1":{{"f:{field}":{{}}}}}}"#
            )
        };
        let all = [
            entry("applies", 1, "endpoints"),
            entry("updates", 2, "endpoints"),
            entry(MANAGER, 3, "endpoints"),
            entry("labels", 4, "metadata"),
        ];
        assert_eq!(of(&format!("[{}]", all.join(","))).as_deref(), Some("updates"));
        for none in ["null", "[]", "[{}]", r#"[{"manager":"a","fieldsV1":null}]"#] {
            assert_eq!(of(none), None, "{none}");
        }
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
