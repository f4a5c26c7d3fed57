mod protobuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::world::{Ranges, Rng, random_service, random_slice};

#[test]
fn input_that_is_no_object_is_an_error_with_a_reason() {
    let error = |text: &str| decode_service(text.as_bytes()).expect_err("must fail").to_string();
    assert!(error("").contains("not valid JSON"));
    assert!(error("{\"metadata\":").contains("not valid JSON"));
    assert_eq!(error("null"), "Service is null; write a JSON object");
    assert_eq!(error("[1]"), "Service is a list; write a JSON object");
    assert_eq!(error("{}"), "Service has no usable metadata; every object needs one");
    assert_eq!(
        error(r#"{"metadata":{"namespace":"a"}}"#),
        "Service has no usable metadata.name; every object needs one"
    );
    assert_eq!(
        error(r#"{"metadata":{"name":"a"}}"#),
        "Service has no usable metadata.namespace; every object needs one"
    );
    assert!(error(r#"{"metadata":{"name":{},"namespace":"a"}}"#).contains("metadata.name"));
}

#[test]
fn an_object_of_another_kind_is_refused_by_all() {
    type Decode = fn(&[u8]) -> Result<(), DecodeError>;
    let object = |kind: Value| {
        json!({"kind": kind, "metadata": {"name": "a", "namespace": "ns"}}).to_string().into_bytes()
    };
    let decoders: [(Kind, Decode); 4] = [
        (Kind::Service, |bytes| decode_service(bytes).map(drop)),
        (Kind::EndpointSlice, |bytes| decode_endpoint_slice(bytes).map(drop)),
        (Kind::Node, |bytes| decode_node(bytes).map(drop)),
        (Kind::ServiceCidr, |bytes| decode_service_cidr(bytes).map(drop)),
    ];
    for (kind, decode) in decoders {
        for other in [json!("Pod"), json!(7)] {
            let error = decode(&object(other)).expect_err("must fail");
            assert!(matches!(error, DecodeError::Kind { kind: wanted, .. } if wanted == kind), "{error}");
        }
        for own in [json!(kind.name()), json!(null), json!("")] {
            decode(&object(own)).expect("decodes");
        }
    }
    let error = decode_service(&object(json!("Pod"))).expect_err("must fail").to_string();
    assert!(error.starts_with(r#""Pod" where Service is wanted"#), "{error}");
}

#[test]
fn escapes_repeated_keys_and_unknown_fields() {
    let text = r#"{"zzz":[{"a":[1,{"b":null}]}],
        "metadata":{"name":"first","n\u0061me":"w\u0065b","namespace":"n\u0073","managedFields":[{}]},
        "spec":{"clusterIP":"10.0.0.\u0031","ports":[{"port":80}],"ports":[{"port":81}]}}"#;
    let object = decode_service(text.as_bytes()).expect("decodes");
    assert_eq!(object.key, ObjectKey::new("ns", "web"));
    assert_eq!(object.payload.cluster_ipv4, Some([10, 0, 0, 1].into()));
    assert_eq!(object.payload.ports[0].port, 81);
}

#[test]
fn deserialize_and_decode_agree() {
    let mut rng = Rng::new(1);
    let ranges = Ranges::example();
    for index in 0..50 {
        let service = random_service(&mut rng, index, &ranges);
        let decoded = decode_service(service.to_string().as_bytes()).expect("decodes");
        assert_eq!(serde_json::from_value::<Object<Service>>(service).expect("decodes"), decoded);
        let slice = random_slice(&mut rng, index, 0, &ranges);
        let decoded = decode_endpoint_slice(slice.to_string().as_bytes()).expect("decodes");
        assert_eq!(serde_json::from_value::<Object<EndpointSlice>>(slice).expect("decodes"), decoded);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[0-9a-f:./]{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key =
            prop_oneof!["metadata|name|namespace|spec|ports|endpoints|addresses|labels", any::<String>()];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

fn decode_all(bytes: &[u8]) {
    let _ = decode_service(bytes);
    let _ = decode_endpoint_slice(bytes);
    let _ = decode_node(bytes);
    let _ = decode_service_cidr(bytes);
}

/// Lists every position in a value as a JSON pointer.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                places(item, &format!("{path}/{index}"), found);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(item, &format!("{path}/{key}"), found);
            }
        }
        _ => {}
    }
}

fn mutate(mut object: Value, rng: &mut Rng, graft: Value) -> (String, Value) {
    let mut found = Vec::new();
    places(&object, "", &mut found);
    let place = rng.pick(&found).expect("there is always the root").clone();
    *object.pointer_mut(&place).expect("the place exists") = graft;
    (place, object)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }

    #[test]
    fn json_never_panics(value in any_json()) {
        decode_all(value.to_string().as_bytes());
        let inside = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": value, "status": value });
        let inside = inside.to_string();
        prop_assert!(decode_service(inside.as_bytes()).is_ok());
        prop_assert!(decode_node(inside.as_bytes()).is_ok());
        let slice = json!({
            "metadata": { "name": "a", "namespace": "b" },
            "addressType": "IPv4", "ports": value, "endpoints": [value],
        });
        prop_assert!(decode_endpoint_slice(slice.to_string().as_bytes()).is_ok());
    }

    /// A change of one field never fails the object, unless it affects the object's identity.
    #[test]
    fn one_bad_field_does_not_fail_the_object(seed in any::<u64>(), graft in any_json()) {
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let touches_identity = |place: &str| {
            ["", "/kind", "/metadata", "/metadata/name", "/metadata/namespace"].contains(&place)
        };
        let (place, service) = mutate(random_service(&mut rng, 1, &ranges), &mut rng, graft.clone());
        let decoded = decode_service(service.to_string().as_bytes());
        prop_assert!(decoded.is_ok() || touches_identity(&place), "{}: {:?}", place, decoded);
        let (place, slice) = mutate(random_slice(&mut rng, 1, 0, &ranges), &mut rng, graft);
        let decoded = decode_endpoint_slice(slice.to_string().as_bytes());
        prop_assert!(decoded.is_ok() || touches_identity(&place), "{}: {:?}", place, decoded);
    }

    #[test]
    fn cut_off_input_is_an_error(seed in any::<u64>(), cut in 0.0..1.0_f64) {
        let slice = random_slice(&mut Rng::new(seed), 1, 0, &Ranges::example()).to_string();
        #[allow(
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "a part of a short length"
        )]
        let length = (slice.len() as f64 * cut) as usize;
        prop_assert!(decode_endpoint_slice(&slice.as_bytes()[..length]).is_err());
    }
}
