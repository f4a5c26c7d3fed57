//! API objects of every kind, in JSON and in protobuf, and the Catalog that they are applied to.
//!
//! Choices edit objects of random worlds. Other inputs are decoded as they are.

use std::fmt::Debug;

use portolan_model::object::{DecodeError, Encoded, EndpointSlice, Node, Object, Service, ServiceCidr};
use portolan_model::world::{Ranges, random_service, random_slice};
use portolan_model::{Catalog, Event};
use portolan_schema::Resource;
use portolan_schema::protobuf::{self, Form};
use serde_json::{Value, json};

use crate::script::Script;
use crate::{edits, worlds};

/// The most objects of one input.
const MOST: usize = 16;
/// The most odd values in an object.
const EDITS: usize = 4;
/// What the agent watches. The first two are the most frequent.
pub(crate) const RESOURCES: [Resource; 6] = [
    Resource::Service,
    Resource::Service,
    Resource::EndpointSlice,
    Resource::EndpointSlice,
    Resource::Node,
    Resource::ServiceCidr,
];
/// Services of a world.
const SERVICES: usize = 3;

/// Decodes each part as every kind, and applies what it is. An input that begins with `k8s\0` is one message without an envelope.
pub(crate) fn run(bytes: &[u8]) {
    let mut catalog = Catalog::new("n1");
    if let Some(mut script) = Script::of(bytes) {
        for _ in 0..MOST {
            if script.is_over() {
                break;
            }
            let resource = script.pick(&RESOURCES);
            let object = edited(resource, &mut script);
            // In protobuf, the kind is that of the request.
            let has_kind = object["kind"] == resource.info().kind;
            let object = object.to_string();
            take(&mut catalog, Encoded::Json(object.as_bytes()));
            if has_kind {
                compare(resource, &object);
            }
        }
    } else if let Some(message) = bytes.strip_prefix(b"k8s\0") {
        take(&mut catalog, Encoded::Protobuf { kind: "", message });
    } else {
        bytes.split(|&byte| byte == 0).for_each(|part| take(&mut catalog, Encoded::Json(part)));
    }
    catalog.take_changes();
}

fn take(catalog: &mut Catalog, encoded: Encoded<'_>) {
    let events = [
        Object::<Service>::decode(encoded).ok().map(Event::Service),
        Object::<EndpointSlice>::decode(encoded).ok().map(Event::EndpointSlice),
        Object::<Node>::decode(encoded).ok().map(Event::Node),
        Object::<ServiceCidr>::decode(encoded).ok().map(Event::ServiceCidr),
    ];
    events.into_iter().flatten().for_each(|event| drop(catalog.apply(event)));
}

/// Compares both forms of an object. Returns false if it has no form in protobuf.
fn compare(resource: Resource, json: &str) -> bool {
    match resource {
        Resource::Service => agrees(resource, json, Object::<Service>::decode),
        Resource::EndpointSlice => agrees(resource, json, Object::<EndpointSlice>::decode),
        Resource::Node => agrees(resource, json, Object::<Node>::decode),
        _ => agrees(resource, json, Object::<ServiceCidr>::decode),
    }
}

/// Asserts that an object means the same in protobuf as in JSON. Returns false if it has no form in protobuf.
fn agrees<T: PartialEq + Debug>(
    resource: Resource,
    json: &str,
    decode: fn(Encoded<'_>) -> Result<Object<T>, DecodeError>,
) -> bool {
    let Ok(envelope) = Form::Whole(resource).encode(json.as_bytes()) else { return false };
    let message = message(&envelope).expect("an envelope");
    let of_message = decode(Encoded::Protobuf { kind: "", message });
    match (decode(Encoded::Json(json.as_bytes())), of_message) {
        (Ok(of_json), Ok(of_message)) => assert_eq!(of_json, of_message, "{json}"),
        (Err(_), Err(_)) => {}
        (of_json, of_message) => panic!("{of_json:?}\n{of_message:?}\n{json}"),
    }
    true
}

/// Returns the object in an envelope: the second field of a message, after the type of the object.
fn message(envelope: &[u8]) -> Option<&[u8]> {
    let (_, rest) = field(envelope.strip_prefix(&protobuf::MAGIC)?, 1)?;
    Some(field(rest, 2)?.0)
}

/// Splits off a field of bytes with this number.
fn field(bytes: &[u8], number: u8) -> Option<(&[u8], &[u8])> {
    let (tag, mut rest) = bytes.split_first()?;
    if *tag != number << 3 | 2 {
        return None;
    }
    let (mut length, mut shift) = (0, 0);
    while let Some((byte, after)) = rest.split_first() {
        length |= usize::from(byte & 0x7f) << shift;
        (rest, shift) = (after, shift + 7);
        if byte & 0x80 == 0 {
            return rest.split_at_checked(length);
        }
    }
    None
}

/// Returns an object of a random world, with odd values.
pub(crate) fn edited(resource: Resource, script: &mut Script<'_>) -> Value {
    let mut object = object(resource, script);
    let most = script.below(2 * EDITS + 1).saturating_sub(EDITS);
    edits::value(&mut object, script, most);
    object
}

/// Returns an object of a random world.
pub(crate) fn object(resource: Resource, script: &mut Script<'_>) -> Value {
    let (index, mut rng, ranges) = (script.below(SERVICES), worlds::rng(script), Ranges::example());
    let mut object = match resource {
        Resource::Service => random_service(&mut rng, index, &ranges),
        Resource::EndpointSlice => random_slice(&mut rng, index, script.below(3), &ranges),
        Resource::Node => node(),
        _ => service_cidr(),
    };
    if resource == Resource::Service {
        object["metadata"]["annotations"] = annotations(script);
    }
    object["metadata"]["resourceVersion"] = script.below(1000).to_string().into();
    object
}

/// Returns annotations of a Service that Portolan reads.
fn annotations(script: &mut Script<'_>) -> Value {
    match script.below(4) {
        0 => json!({ "portolan.dev/ipvs-scheduler": "wlc" }),
        1 => json!({ "portolan.dev/userspace-keep-client-address": "true" }),
        2 => json!({ "service.kubernetes.io/topology-mode": "Auto" }),
        _ => json!({}),
    }
}

fn node() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "uid": "u",
            "labels": { "topology.kubernetes.io/zone": "z1" },
            "creationTimestamp": "2026-01-31T12:00:00Z",
        },
        "spec": { "podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "2001:db8:244::/64"], "unschedulable": false,
            "taints": [{ "key": "a", "value": "b", "effect": "NoSchedule" }] },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": "192.0.2.1" },
                { "type": "InternalIP", "address": "2001:db8::1" },
                { "type": "Hostname", "address": "n1" },
            ],
            "capacity": { "cpu": "4", "memory": "16Gi" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn service_cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes", "finalizers": ["networking.k8s.io/service-cidr-finalizer"] },
        "spec": { "cidrs": ["10.96.0.0/16", "2001:db8:96::/112"] },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-31T12:00:00Z" }] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_edits_have_both_forms_and_no_faults() {
        for seed in 0..32 {
            for resource in RESOURCES {
                let json = object(resource, &mut Script::new(&[0, seed, 1])).to_string();
                assert!(compare(resource, &json), "{json}");
            }
        }
        let node = Object::<Node>::decode(Encoded::Json(node().to_string().as_bytes())).expect("a Node");
        assert_eq!(node.faults, []);
    }
}
