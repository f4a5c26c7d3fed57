//! Plans the EndpointSlices of Endpoints: the slices that should exist, and the fewest writes that bring the existing
//! slices to this state. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    net::IpAddr,
};

use portolan_api::kinds::usable_address;
use portolan_schema::{
    SERVICE_NAME, json as fields,
    json::{Object, Value, json},
};

use crate::{
    manifests::MARKER,
    object::{MANAGED_BY, MIRROR},
};

/// Most addresses of one subset that are mirrored, and most endpoints of one slice (upstream's default of
/// `--mirroring-max-endpoints-per-subset`).
pub(super) const MAX_ADDRESSES: usize = 1000;
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Annotation of Endpoints that serve only as a lock (client-go `resourcelock.LeaderElectionRecordAnnotationKey`).
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that are not copied to a slice.
const OWN_ANNOTATIONS: [&str; 3] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
    MARKER,
];
/// Most bytes of the Endpoints' name in a slice's name; ten characters follow.
const NAME_PART: usize = 240;

/// The slices that the Endpoints should have.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    groups: BTreeMap<Group, Endpoints>,
    /// Number of addresses beyond the limit of their subset.
    pub(super) surplus: usize,
    /// Number of addresses that an endpoint cannot have.
    pub(super) invalid: usize,
}

/// The properties that the slices of a group share: the address type, and the ports as JSON.
type Group = (&'static str, String);
/// Endpoints by their identity.
type Endpoints = BTreeMap<String, Value>;

/// A write of a slice.
#[derive(Debug, PartialEq)]
pub(super) enum Write {
    /// Creates a slice.
    Create(Object),
    /// Replaces the content of the slice with this name.
    Update(String, Object),
    /// Deletes the slice with this name.
    Delete(String),
}

/// Returns true if the Endpoints are mirrored: their Service exists and has no selector, and neither label nor
/// annotation of the Endpoints prevents it.
pub(super) fn is_mirrored(endpoints: &Object, service: Option<&Object>) -> bool {
    let has_selector = |service: &Object| {
        let spec = fields::object(service, "spec");
        spec.and_then(|spec| fields::object(spec, "selector")).is_some_and(|selector| !selector.is_empty())
    };
    let metadata = fields::object(endpoints, "metadata");
    let of = |map, key| metadata.and_then(|it| fields::object(it, map)).and_then(|it| it.get(key));
    service.is_some_and(|service| !has_selector(service))
        && of("labels", SKIP_MIRROR).and_then(Value::as_str) != Some("true")
        && of("annotations", LEADER).is_none()
}

impl Wanted {
    /// Reads the subsets of the Endpoints.
    pub(super) fn of(endpoints: &Object) -> Self {
        let mut wanted = Self::default();
        for subset in fields::list(endpoints, "subsets").iter().filter_map(Value::as_object) {
            wanted.add_subset(subset);
        }
        wanted
    }

    fn add_subset(&mut self, subset: &Object) {
        let ports = ports(subset);
        let with_readiness =
            |key, is_ready| fields::list(subset, key).iter().map(move |address| (address, is_ready));
        let addresses = with_readiness("addresses", true).chain(with_readiness("notReadyAddresses", false));
        let mut mirrored = 0;
        for (address, is_ready) in addresses.filter_map(|(it, ready)| Some((it.as_object()?, ready))) {
            let text = fields::text(address, "ip").unwrap_or_default();
            let Some(ip) = usable_address(text) else {
                self.invalid += 1;
                continue;
            };
            if mirrored == MAX_ADDRESSES {
                self.surplus += 1;
                continue;
            }
            mirrored += 1;
            let group = (if ip.is_ipv4() { "IPv4" } else { "IPv6" }, ports.clone());
            let (identity, endpoint) = endpoint(ip, address, is_ready);
            self.groups.entry(group).or_default().entry(identity).or_insert(endpoint);
        }
    }

    /// Returns the fewest writes that turn the slices `existing` into the wanted ones. Endpoints stay in their slice.
    /// New endpoints go to slices that are written anyway, then to the fullest slice that has room for them, then to
    /// unwanted slices, then to new slices. Deletions come last, and a slice whose endpoints are all replaced is
    /// written once, so that clients never see a Service without endpoints in between.
    pub(super) fn writes(mut self, endpoints: &Object, existing: &[Object]) -> Vec<Write> {
        let (mut creates, mut updates) = (Vec::new(), Vec::new());
        let mut slices: BTreeMap<Group, Vec<(&Object, Vec<Value>)>> = BTreeMap::new();
        let mut unwanted: Vec<&Object> = Vec::new();
        for slice in existing {
            match self.keep(slice) {
                Some((group, kept)) => slices.entry(group).or_default().push((slice, kept)),
                None => unwanted.push(slice),
            }
        }
        let mut homeless: Vec<(Group, Vec<Value>)> = Vec::new();
        for (group, left) in self.groups {
            let mut slices = slices.remove(&group).unwrap_or_default();
            let mut left: Vec<Value> = left.into_values().collect();
            fill(&mut slices, &mut left);
            for (slice, kept) in slices {
                if kept.is_empty() {
                    unwanted.push(slice);
                    continue;
                }
                let new = content(endpoints, &group, &kept, Some(slice));
                if !is_same(&new, slice) {
                    updates.push(Write::Update(name_of(slice).to_owned(), new));
                }
            }
            while !left.is_empty() {
                let rest = left.split_off(left.len().min(MAX_ADDRESSES));
                homeless.push((group.clone(), left));
                left = rest;
            }
        }
        for (group, list) in homeless {
            let of_family = |slice: &&Object| fields::text(slice, "addressType") == Some(group.0);
            let reused = unwanted.iter().position(of_family).map(|index| unwanted.remove(index));
            let new = content(endpoints, &group, &list, reused);
            match reused {
                Some(slice) => updates.push(Write::Update(name_of(slice).to_owned(), new)),
                None => creates.push(Write::Create(new)),
            }
        }
        let deletes = unwanted.into_iter().map(|slice| Write::Delete(name_of(slice).to_owned()));
        creates.into_iter().chain(updates).chain(deletes).collect()
    }

    /// Removes the endpoints that a slice already has from the wanted ones, and returns them with the slice's group.
    /// `None` if no slice with this address type and these ports is wanted.
    fn keep(&mut self, slice: &Object) -> Option<(Group, Vec<Value>)> {
        let address_type =
            ["IPv4", "IPv6"].into_iter().find(|it| fields::text(slice, "addressType") == Some(it))?;
        let group = (address_type, json_of_ports(fields::list(slice, "ports")));
        let wanted = self.groups.get_mut(&group)?;
        let has = fields::list(slice, "endpoints").iter().filter_map(Value::as_object);
        let kept = has.filter_map(|endpoint| wanted.remove(&identity(endpoint))).collect();
        Some((group, kept))
    }
}

/// Adds the remaining endpoints to existing slices that have room.
fn fill(slices: &mut [(&Object, Vec<Value>)], left: &mut Vec<Value>) {
    let room = |kept: &Vec<Value>| MAX_ADDRESSES.saturating_sub(kept.len());
    let is_written = |slice: &Object, kept: &Vec<Value>| fields::list(slice, "endpoints") != kept.as_slice();
    let mut written: Vec<&mut Vec<Value>> =
        slices.iter_mut().filter(|(slice, kept)| is_written(slice, kept)).map(|(_, kept)| kept).collect();
    written.sort_by_key(|kept| room(kept));
    for kept in written {
        let count = room(kept).min(left.len());
        kept.extend(left.drain(..count));
    }
    if left.is_empty() {
        return;
    }
    let fitting = slices.iter_mut().map(|(_, kept)| kept).filter(|kept| room(kept) >= left.len());
    if let Some(kept) = fitting.min_by_key(|kept| room(kept)) {
        kept.append(left);
    }
}

/// Returns the whole slice. Metadata that the server fills in are those of `old`.
fn content(endpoints: &Object, group: &Group, list: &[Value], old: Option<&Object>) -> Object {
    let empty = Object::new();
    let source = fields::object(endpoints, "metadata").unwrap_or(&empty);
    let name = fields::text(source, "name").unwrap_or_default();
    let mut labels = fields::object(source, "labels").cloned().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name.into());
    labels.insert(MANAGED_BY.to_owned(), MIRROR.into());
    let mut annotations = fields::object(source, "annotations").cloned().unwrap_or_default();
    annotations.retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str()));
    let owner = json!([{
        "apiVersion": "v1", "kind": "Endpoints", "name": name, "uid": fields::text(source, "uid"),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let mut metadata = old.and_then(|old| fields::object(old, "metadata")).cloned().unwrap_or_default();
    metadata.insert("namespace".to_owned(), fields::text(source, "namespace").into());
    metadata.insert("labels".to_owned(), labels.into());
    metadata.insert("ownerReferences".to_owned(), owner);
    if annotations.is_empty() {
        metadata.remove("annotations");
    } else {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    if old.is_none() {
        let part = name.get(..NAME_PART).unwrap_or(name);
        metadata.insert("generateName".to_owned(), format!("{part}-").into());
        // Two servers that mirror the same Endpoints at the same time derive the same name, so one of them fails.
        let key = (fields::text(source, "uid"), group, list.first().map(Value::to_string));
        metadata.insert("name".to_owned(), format!("{part}-{}", short_hash(&key)).into());
    }
    let ports: Value = serde_json::from_str(&group.1).unwrap_or_default();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
        "addressType": group.0, "ports": ports, "endpoints": list,
    });
    slice.as_object().cloned().unwrap_or_default()
}

fn is_same(new: &Object, old: &Object) -> bool {
    ["metadata", "endpoints", "ports"].iter().all(|key| new.get(key) == old.get(key))
}

/// Returns the ports of a subset in the form and order of a slice.
fn ports(subset: &Object) -> String {
    let ports = fields::list(subset, "ports").iter().filter_map(Value::as_object).map(|port| {
        let mut new = json!({
            "name": fields::text(port, "name").unwrap_or_default(),
            "protocol": fields::text(port, "protocol").unwrap_or("TCP"),
            "port": port.get("port"),
        });
        if let (Some(protocol), Some(new)) = (port.get("appProtocol"), new.as_object_mut()) {
            new.insert("appProtocol".to_owned(), protocol.clone());
        }
        new
    });
    json_of_ports(&ports.collect::<Vec<_>>())
}

/// Returns the ports as one text, which is the same for the same set of ports.
fn json_of_ports(ports: &[Value]) -> String {
    let sorted: BTreeSet<String> =
        ports.iter().filter(|port| port.is_object()).map(Value::to_string).collect();
    format!("[{}]", sorted.into_iter().collect::<Vec<_>>().join(","))
}

/// Returns an endpoint and its identity.
fn endpoint(ip: IpAddr, address: &Object, is_ready: bool) -> (String, Value) {
    let mut endpoint = Object::new();
    endpoint.insert("addresses".to_owned(), json!([ip]));
    endpoint.insert("conditions".to_owned(), json!({"ready": is_ready}));
    for key in ["hostname", "nodeName", "targetRef"] {
        if let Some(value) = address.get(key) {
            endpoint.insert(key.to_owned(), value.clone());
        }
    }
    (identity(&endpoint), endpoint.into())
}

/// Returns the identity of an endpoint: its addresses, host name and target. Its other properties may change.
fn identity(endpoint: &Object) -> String {
    let target = fields::object(endpoint, "targetRef");
    let of_target = |key| target.and_then(|target| fields::text(target, key));
    let parts = ["kind", "namespace", "name"].map(of_target);
    json!([endpoint.get("addresses"), fields::text(endpoint, "hostname"), parts]).to_string()
}

fn name_of(slice: &Object) -> &str {
    fields::object(slice, "metadata").and_then(|it| fields::text(it, "name")).unwrap_or_default()
}

/// Returns a hash as nine characters that may end a name.
fn short_hash(of: &impl Hash) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    let mut rest = hasher.finish();
    (0..9)
        .filter_map(|_| {
            let index = usize::try_from(rest % ALPHABET.len() as u64).ok()?;
            rest /= ALPHABET.len() as u64;
            ALPHABET.get(index).map(|byte| char::from(*byte))
        })
        .collect()
}
