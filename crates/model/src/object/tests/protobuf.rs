//! Objects in protobuf have the meaning that they have in JSON. The encoder is that of the API server.

use portolan_schema::Resource;
use portolan_schema::protobuf::Form;
use serde_json::{Value, json};

use super::super::message::Fields;
use super::*;

/// Returns the kind and the message in an envelope: `k8s\\0` and a message `Unknown`.
fn opened(envelope: &[u8]) -> (String, Vec<u8>) {
    let unknown = envelope.strip_prefix(b"k8s\0").expect("an envelope");
    let field = |message: &[u8], wanted: u32| {
        let mut fields = Fields::new(message).map(Result::unwrap).filter(|(number, _)| *number == wanted);
        fields.next().and_then(|(_, value)| value.bytes()).expect("the field").to_vec()
    };
    let kind = field(&field(unknown, 1), 2);
    (String::from_utf8(kind).unwrap(), field(unknown, 2))
}

/// Decodes an object from protobuf. `None` if the encoder refuses it.
fn from_protobuf<T: ObjectBody>(
    resource: Resource,
    object: &Value,
) -> Option<Result<Object<T>, DecodeError>> {
    let envelope = Form::Whole(resource).encode(object.to_string().as_bytes()).ok()?;
    let (kind, message) = opened(&envelope);
    Some(decode_any(Encoded::Protobuf { kind: &kind, message: &message }))
}

/// Asserts that an object means the same in both forms. Returns false if it has no form in protobuf.
fn agrees<T: ObjectBody + PartialEq + std::fmt::Debug>(resource: Resource, object: &Value) -> bool {
    let Some(message) = from_protobuf::<T>(resource, object) else { return false };
    match (decode::<T>(object.to_string().as_bytes()), message) {
        (Ok(json), Ok(message)) => assert_eq!(json, message, "{object}"),
        (Err(_), Err(_)) => {}
        (json, message) => panic!("{json:?}\n{message:?}\n{object}"),
    }
    true
}

fn node(rng: &mut Rng) -> Value {
    let address = |rng: &mut Rng| {
        let kind = *rng.pick(&["InternalIP", "ExternalIP", "Hostname"]).unwrap();
        json!({"type": kind, "address": rng.pick(&["10.0.0.1", "fd00::1", "n1"])})
    };
    let addresses: Vec<Value> = (0..rng.below(4)).map(|_| address(rng)).collect();
    let mut node = json!({
        "metadata": {
            "name": "n1", "resourceVersion": "7", "creationTimestamp": "2026-01-31T12:00:00Z",
            "labels": {"topology.kubernetes.io/zone": "a", "other": ""},
        },
        "spec": {
            "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"], "unschedulable": true,
            "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}, {"key": "b", "effect": ""}],
        },
        "status": {"addresses": addresses, "nodeInfo": {"kernelVersion": "6.1"}},
    });
    if rng.chance(30) {
        node["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
    }
    node
}

/// Returns a text that is valid in some fields.
fn any_text(rng: &mut Rng) -> Value {
    let texts = [
        "",
        " ",
        "None",
        "ClientIP",
        "Local",
        "TCP",
        "10.0.0.7",
        "10.0.0.300",
        "fd00::7",
        "10.0.0.0/8",
        "IPv6",
        "web",
    ];
    json!(rng.pick(&texts))
}

#[test]
fn objects_of_random_worlds_mean_the_same_as_in_json() {
    let (mut rng, ranges) = (Rng::new(11), Ranges::example());
    for index in 0..300 {
        let mut service = random_service(&mut rng, index, &ranges);
        service["metadata"]["creationTimestamp"] = json!("2026-01-31T12:00:00Z");
        service["metadata"]["annotations"] = json!({"portolan.dev/ipvs-scheduler": "lc", "other": "x"});
        assert!(agrees::<Service>(Resource::Service, &service), "{service}");
        let mut slice = random_slice(&mut rng, index, 0, &ranges);
        slice["metadata"]["annotations"] =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-31T12:00:00.5Z"});
        assert!(agrees::<EndpointSlice>(Resource::EndpointSlice, &slice), "{slice}");
        assert!(agrees::<Node>(Resource::Node, &node(&mut rng)));
    }
    let cidr = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.0.0.0/16", "", "x"]}});
    assert!(agrees::<ServiceCidr>(Resource::ServiceCidr, &cidr));
}

#[test]
fn objects_with_other_fields_mean_the_same_as_in_json() {
    let (mut rng, ranges) = (Rng::new(12), Ranges::example());
    let (mut compared, mut faulty) = (0, 0);
    for index in 0..4_000 {
        let graft = match rng.below(8) {
            0 => json!(null),
            1 => json!(rng.chance(50)),
            2 => json!(*rng.pick(&[0, 1, -1, 80, 65_536, i32::MAX]).unwrap()),
            3 => json!([]),
            4 => json!({}),
            _ => any_text(&mut rng),
        };
        // In protobuf, the kind is that of the request.
        let mut changed = |object| {
            let (place, object) = mutate(object, &mut rng, graft.clone());
            (place != "/kind").then_some(object)
        };
        let service = changed(random_service(&mut Rng::new(index as u64), index, &ranges));
        let slice = changed(random_slice(&mut Rng::new(index as u64), index, 0, &ranges));
        let node = changed(node(&mut Rng::new(index as u64)));
        compared +=
            slice.map_or(0, |slice| u32::from(agrees::<EndpointSlice>(Resource::EndpointSlice, &slice)));
        compared += node.map_or(0, |node| u32::from(agrees::<Node>(Resource::Node, &node)));
        let Some(service) = service else { continue };
        compared += u32::from(agrees::<Service>(Resource::Service, &service));
        let with_faults = from_protobuf::<Service>(Resource::Service, &service);
        faulty +=
            u32::from(with_faults.is_some_and(|object| object.is_ok_and(|object| !object.faults.is_empty())));
    }
    assert!(compared > 4_000 && faulty > 100, "{compared} {faulty}");
}

#[test]
fn other_kinds_and_what_is_no_message_are_refused() {
    let service = json!({"metadata": {"name": "a", "namespace": "b"}});
    let (_, message) =
        opened(&Form::Whole(Resource::Service).encode(service.to_string().as_bytes()).unwrap());
    let decode = |kind, message| Object::<Service>::decode(Encoded::Protobuf { kind, message });
    assert_eq!(decode("Service", &message).unwrap().key, ObjectKey::new("b", "a"));
    assert!(decode("", &message).is_ok(), "an item of a list");
    assert!(matches!(decode("Node", &message), Err(DecodeError::Kind { .. })));
    assert!(matches!(decode("Service", b"{}"), Err(DecodeError::Message { .. })));
    assert!(matches!(decode("Service", &[]), Err(DecodeError::Identity { .. })));
    let json = service.to_string();
    assert!(Object::<Service>::decode(Encoded::Json(json.as_bytes())).is_ok());
}

#[test]
fn a_field_of_a_wrong_type_is_a_fault_and_the_others_count() {
    // The metadata, then a spec with two ports, of which one has a text as its number, a cluster IP, and a type that is no text.
    let metadata = [0x0a, 6, 0x0a, 1, b'a', 0x1a, 1, b'b'];
    let ports = [0x0a, 2, 0x18, 80, 0x0a, 3, 0x1a, 1, b'x'];
    let others = [&[0x1a, 8][..], b"10.0.0.1", &[0x22, 2, 0xff, 0xff]].concat();
    let spec = [&ports[..], &others].concat();
    let head = [0x12, u8::try_from(spec.len()).unwrap()];
    let message = [&metadata[..], &head, &spec].concat();
    let decode = |message| Object::<Service>::decode(Encoded::Protobuf { kind: "Service", message });
    let object = decode(&message).unwrap();
    let faults: Vec<String> = object.faults.iter().map(ToString::to_string).collect();
    assert!(faults[0].starts_with("spec.type: is no UTF-8"), "{faults:?}");
    assert!(faults[1].starts_with("spec.ports[1].port: is text"), "{faults:?}");
    assert_eq!(object.payload.ports.len(), 1);
    assert_eq!(object.payload.cluster_ipv4, Some([10, 0, 0, 1].into()));

    // As in JSON, a part that is cut off makes the whole object unreadable.
    let mut cut_off = message.clone();
    let at = message.len() - spec.len() + 2;
    cut_off[at..at + 2].copy_from_slice(&[0x18, 0x80]);
    assert!(matches!(decode(&cut_off), Err(DecodeError::Message { .. })));
    let labels = [0x0a, 11, 0x0a, 1, b'a', 0x1a, 1, b'b', 0x5a, 3, 0x0a, 9, b'x'];
    assert!(matches!(decode(&labels), Err(DecodeError::Message { .. })));
}

proptest! {
    #[test]
    fn messages_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let encoded = Encoded::Protobuf { kind: "", message: &bytes };
        let _ = Object::<Service>::decode(encoded);
        let _ = Object::<EndpointSlice>::decode(encoded);
        let _ = Object::<Node>::decode(encoded);
        let _ = Object::<ServiceCidr>::decode(encoded);
    }
}
