//! The objects that record who holds an address or port (IPAddress and NodePort), and the ServiceCIDRs of the
//! addresses.

use std::net::IpAddr;

use portolan_ipam::{AddressRange, Family, Holder, Holders, ServiceKey, family::parse_address};
use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
};
use portolan_store::{Draft, Store, StoredObject};
use serde::Deserialize;

use super::BALANCER;
use crate::metadata;

/// Label of an IPAddress that names its manager (`k8s.io/api/networking/v1` `LabelManagedBy`).
pub(crate) const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] for cluster IPs (`ControllerName` of `pkg/registry/core/service/ipallocator`).
pub(crate) const MANAGER: &str = "ipallocator.k8s.io";
/// Label of an IPAddress that names its family.
pub(crate) const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// A ServiceCIDR.
#[derive(Debug)]
pub(crate) struct Cidr {
    /// Its name.
    pub(crate) name: Box<str>,
    /// Its revision.
    pub(crate) revision: u64,
    /// Its ranges, without invalid ones.
    pub(crate) ranges: Vec<AddressRange>,
    /// True if addresses are allocated from it: it is not being deleted, and its condition Ready is `True` or absent.
    pub(crate) is_ready: bool,
    /// True if it is being deleted.
    pub(crate) is_being_deleted: bool,
}

impl Cidr {
    pub(crate) fn of(object: &StoredObject) -> Self {
        let decoded = object.decode();
        let ranges = json::object(&decoded, "spec").into_iter().flat_map(|spec| json::texts(spec, "cidrs"));
        let is_being_deleted =
            json::object(&decoded, "metadata").is_some_and(|it| it.contains_key("deletionTimestamp"));
        Self {
            name: object.key().into(),
            revision: object.revision(),
            ranges: ranges.filter_map(|text| AddressRange::new(text.parse().ok()?).ok()).collect(),
            is_ready: !is_being_deleted && ready_condition(&decoded).is_none_or(|status| status == "True"),
            is_being_deleted,
        }
    }
}

/// Returns the `status` of the condition Ready.
pub(crate) fn ready_condition(object: &Object) -> Option<&str> {
    let status = json::object(object, "status")?;
    let mut conditions = json::list(status, "conditions").iter().filter_map(Value::as_object);
    json::text(conditions.find(|it| json::text(it, "type") == Some("Ready"))?, "status")
}

/// Looks up the holders of addresses and ports in the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded<'a>(pub(super) &'a dyn Store);

impl Holders for Recorded<'_> {
    fn of_address(&self, address: IpAddr) -> Holder {
        let object = self.0.latest(Resource::IpAddress, &address.to_string());
        object.map_or(Holder::Unknown, |object| parent_of(&object))
    }

    fn of_port(&self, port: u16) -> Holder {
        let object = self.0.latest(Resource::NodePort, &port.to_string());
        object.map_or(Holder::Unknown, |object| parent_of(&object))
    }
}

#[derive(Deserialize)]
struct HasParent {
    spec: ParentSpec,
}

#[derive(Deserialize)]
struct ParentSpec {
    #[serde(rename = "parentRef")]
    parent: ParentRef,
}

#[derive(Deserialize)]
struct ParentRef {
    #[serde(default)]
    group: String,
    resource: String,
    #[serde(default)]
    namespace: String,
    name: String,
}

/// Returns the holder that an IPAddress or NodePort names.
pub(crate) fn parent_of(object: &StoredObject) -> Holder {
    match serde_json::from_slice::<HasParent>(object.body()).map(|object| object.spec.parent) {
        Ok(parent) if parent.group.is_empty() && parent.resource == "services" => {
            Holder::Service(ServiceKey::new(parent.namespace, parent.name))
        }
        _ => Holder::Other,
    }
}

/// Returns the address of an IPAddress.
pub(crate) fn address_of(object: &StoredObject) -> Option<IpAddr> {
    parse_address(object.key())
}

/// Returns the number of a NodePort.
pub(super) fn port_of(object: &StoredObject) -> Option<u16> {
    object.key().parse().ok()
}

/// Returns a new IPAddress of a Service.
pub fn address_draft(address: IpAddr, owner: &ServiceKey) -> Draft {
    let labels = json!({FAMILY: Family::of(address).name(), MANAGED_BY: MANAGER});
    draft(Resource::IpAddress, &address.to_string(), Some(labels), owner)
}

/// Returns a new IPAddress of a Service for its load-balancer address.
pub fn load_balancer_draft(address: IpAddr, owner: &ServiceKey) -> Draft {
    let labels = json!({FAMILY: Family::of(address).name(), MANAGED_BY: BALANCER});
    draft(Resource::IpAddress, &address.to_string(), Some(labels), owner)
}

/// Returns a new NodePort of a Service.
pub fn port_draft(port: u16, owner: &ServiceKey) -> Draft {
    draft(Resource::NodePort, &port.to_string(), None, owner)
}

fn draft(resource: Resource, name: &str, labels: Option<Value>, owner: &ServiceKey) -> Draft {
    let mut meta = Object::new();
    meta.insert("name".to_owned(), name.into());
    metadata::prepare_create(resource, &mut meta);
    if let Some(labels) = labels {
        meta.insert("labels".to_owned(), labels);
    }
    let parent = json!({"resource": "services", "namespace": owner.namespace, "name": owner.name});
    let mut object = Object::new();
    object.insert("metadata".to_owned(), meta.into());
    object.insert("spec".to_owned(), json!({"parentRef": parent}));
    Draft::new(resource, &object)
}
