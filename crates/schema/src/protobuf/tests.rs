use crate::json::{Value, json};

use super::*;

mod generated;

const ASSUMED: (&str, &str) = ("v1", "Service");

fn object(value: Value) -> Object {
    let Value::Object(object) = value else { panic!("an object") };
    object
}

fn decoded(bytes: &[u8]) -> Result<Value, String> {
    decode(bytes, ASSUMED, Limits::default()).map(Value::Object).map_err(|error| error.to_string())
}

/// Encodes an envelope without a kind around an object of the assumed kind.
fn nameless(raw: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    wire::put_bytes(&mut out, UNKNOWN_RAW, raw);
    out
}

/// Go writes every plain field, most of them zero. The object must equal that of JSON without these fields.
#[test]
fn a_namespace_as_go_sends_it() {
    let bytes = b"k8s\0\
        \x0a\x0f\x0a\x02v1\x12\x09Namespace\
        \x12\x19\
        \x0a\x11\x0a\x01a\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00\
        \x12\x00\
        \x1a\x02\x0a\x00\
        \x1a\x00\x22\x00";
    assert_eq!(
        decoded(bytes),
        Ok(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}))
    );
}

#[test]
fn known_bytes_in_both_directions() {
    let rows: &[(&[u8], Value)] = &[
        (
            // Pointers keep false, lists are repeated fields, maps are messages of key and value.
            b"k8s\0\x0a\x0d\x0a\x02v1\x12\x07Service\x12\x3a\
              \x0a\x03\x0a\x01s\
              \x12\x33\x0a\x14\x12\x03TCP\x18\x50\x22\x0b\x08\x01\x10\x00\x1a\x05httpd\
              \x12\x06\x0a\x01k\x12\x01v\
              \x92\x01\x024a\x92\x01\x026b\
              \xa0\x01\x00\
              \xb2\x01\x05Local\
              \x1a\x00\x22\x00",
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
                "spec": {
                    "ports": [{"protocol": "TCP", "port": 80, "targetPort": "httpd"}],
                    "selector": {"k": "v"}, "clusterIPs": ["4a", "6b"],
                    "allocateLoadBalancerNodePorts": false, "internalTrafficPolicy": "Local",
                },
            }),
        ),
        (
            // 2026-11-21T21:03:57.000001Z; a negative number takes ten bytes.
            b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease\x12\x1a\
              \x12\x18\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\
              \x22\x09\x08\xbd\x8e\x88\xd8\x06\x10\xe8\x07\
              \x28\x00\
              \x1a\x00\x22\x00",
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "spec": {
                    "leaseDurationSeconds": -1, "renewTime": "2026-11-21T21:03:57.000001Z",
                    "leaseTransitions": 0,
                },
            }),
        ),
        (
            b"k8s\0\x0a\x24\x0a\x13discovery.k8s.io/v1\x12\x0dDeleteOptions\x12\x0e\
              \x08\x00\x22\x0aForeground\
              \x1a\x00\x22\x00",
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "DeleteOptions",
                "gracePeriodSeconds": 0, "propagationPolicy": "Foreground",
            }),
        ),
    ];
    for (bytes, value) in rows {
        assert_eq!(decoded(bytes).as_ref(), Ok(value));
        assert_eq!(encode(&object(value.clone())).unwrap(), *bytes, "{value}");
    }
}

#[test]
fn fields_that_json_always_has_are_there_when_zero() {
    // spec.ports: one empty message.
    let bytes = nameless(b"\x12\x02\x0a\x00");
    assert_eq!(
        decoded(&bytes),
        Ok(json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 0}]}}))
    );
}

#[test]
fn the_parts_of_a_message_are_put_together_and_the_last_number_counts() {
    // spec twice, with clusterIP and type; type twice, the second time empty.
    let bytes = nameless(b"\x12\x03\x1a\x01a\x12\x05\x22\x01b\x22\x00");
    assert_eq!(
        decoded(&bytes),
        Ok(json!({"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "a"}}))
    );
}

#[test]
fn unknown_fields_of_every_wire_type_are_skipped() {
    let unknown = b"\xf8\x06\x05\xf9\x0612345678\xfa\x06\x01x\xfd\x061234";
    let bytes = nameless(&[&unknown[..], b"\x0a\x03\x0a\x01a", unknown].concat());
    assert_eq!(
        decoded(&bytes),
        Ok(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}))
    );
}

#[test]
fn invalid_protobuf_is_refused_with_the_field() {
    let spec = |content: &[u8]| {
        let mut raw = Vec::new();
        wire::put_bytes(&mut raw, 2, content);
        nameless(&raw)
    };
    for (bytes, message) in [
        (Vec::new(), "the body is no Kubernetes protobuf: it must begin with the bytes 6b 38 73 00"),
        (b"{}".to_vec(), "the body is no Kubernetes protobuf: it must begin with the bytes 6b 38 73 00"),
        (
            b"k8s\0\x1a\x04gzip".to_vec(),
            "content encoding \"gzip\" is not supported: send the object as it is",
        ),
        (
            b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Job".to_vec(),
            "kind \"Job\" of \"v1\" is not known in protobuf: send JSON, or a kind that is served here",
        ),
        (b"k8s\0\x12\x05a".to_vec(), "the protobuf message ends too early"),
        (spec(b"\x0a\x05"), "spec.ports[0]: the protobuf message ends too early"),
        (
            spec(b"\x0a\x00\x0a\x03\x22\x01\x08"),
            "spec.ports[1].targetPort: the protobuf message ends too early",
        ),
        (spec(b"\x18\x01"), "spec.clusterIP: protobuf wire type 0, expected 2"),
        (spec(b"\x62\x00"), "spec.healthCheckNodePort: protobuf wire type 2, expected 0"),
        (
            spec(b"\x60\x80\x80\x80\x80\x08"),
            "spec.healthCheckNodePort: a protobuf number is too large for its type",
        ),
        (spec(b"\x1a\x01\xff"), "spec.clusterIP: a string is not valid UTF-8"),
        (spec(b"\x12\x05\x0a\x01k\x12\x03"), "spec.selector[k]: the protobuf message ends too early"),
        (spec(b"\x03"), "spec: a protobuf field has the number 0 or an unsupported wire type"),
        (
            nameless(b"\x0a\x0d\x42\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10"),
            "metadata.creationTimestamp: the protobuf message ends too early",
        ),
        (
            nameless(b"\x0a\x0c\x42\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
            "metadata.creationTimestamp: a time is outside of the years 0000 to 9999",
        ),
        (
            // metadata.managedFields[0].fieldsV1 with the text "[]".
            nameless(b"\x0a\x09\x8a\x01\x06\x3a\x04\x0a\x02[]"),
            "metadata.managedFields[0].fieldsV1: embedded JSON is not valid",
        ),
    ] {
        assert_eq!(decoded(&bytes).unwrap_err(), message);
    }
}

#[test]
fn a_small_body_cannot_become_a_large_object() {
    // An empty port takes two bytes in protobuf, and some hundred when decoded.
    let ports = |count: usize| {
        let mut raw = Vec::new();
        wire::put_bytes(&mut raw, 2, &b"\x0a\x00".repeat(count));
        nameless(&raw)
    };
    let limits = Limits { memory: 1 << 20 };
    assert!(decode(&ports(1_000), ASSUMED, limits).is_ok());
    let error = decode(&ports(100_000), ASSUMED, limits).unwrap_err();
    assert_eq!(error.problem, Problem::TooLarge(1 << 20));
    let far_too_many = decode(&ports(1_500_000), ASSUMED, Limits::default()).unwrap_err();
    assert_eq!(far_too_many.problem, Problem::TooLarge(64 << 20));
}

#[test]
fn lists_hold_their_items_without_kinds() {
    let items = [json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}), json!({})];
    let bytes = list(Form::Whole(Resource::Node), &items);
    let expected = json!({
        "apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "7"},
        "items": [{"metadata": {"name": "a"}}, {}],
    });
    assert_eq!(decoded(&bytes), Ok(expected.clone()));
    assert_eq!(encode(&object(expected)).unwrap(), bytes);
    let empty = list(Form::Whole(Resource::Node), &[]);
    assert_eq!(decoded(&empty).unwrap()["items"], json!([]));
    let partial = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}, {}],
    });
    assert_eq!(decoded(&list(Form::Metadata("meta.k8s.io/v1"), &items)), Ok(partial));
}

/// Encodes a list of revision 7 from its parts.
fn list(form: Form, items: &[Value]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for item in items {
        form.put_item(&mut encoded, item.to_string().as_bytes()).unwrap();
    }
    let metadata = object(json!({"resourceVersion": "7"}));
    let (head, tail) = form.around_items(&metadata, encoded.len()).unwrap();
    [head, encoded, tail].concat()
}

#[test]
fn json_text_is_encoded_like_the_decoded_object() {
    let form = Form::Whole(Resource::Service);
    let object = |value: Value| decode(&encode(&object(value)).unwrap(), ASSUMED, Limits::default());
    for text in [
        "{}",
        r#" { "metadata" : { "name" : "a\u0062\n" , "labels": {"x\"y": "", "z": "\ud83d\ude00"} } } "#,
        r#"{"metadata": {"labels": {}, "deletionTimestamp": null, "unknown": [{}, 1.5e9]}, "more": {"a": [1]}}"#,
        r#"{"spec": {"ports": [{"port": 80, "targetPort": "x"}, {"targetPort": -7}, {}], "selector": null}}"#,
        r#"{"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}], "generation": 9007199254740993}}"#,
    ] {
        let mut value: Value = serde_json::from_str(text).unwrap();
        let sent = form.encode(text.as_bytes()).unwrap();
        value["apiVersion"] = "v1".into();
        value["kind"] = "Service".into();
        assert_eq!(decode(&sent, ("", ""), Limits::default()), object(value.clone()), "{text}");
        let frame = form.encode_watch_event("ADDED", text.as_bytes()).unwrap();
        assert!(frame.windows(sent.len()).any(|window| window == sent), "{text}");
        let mut item = Vec::new();
        form.put_item(&mut item, text.as_bytes()).unwrap();
        assert_eq!(form.watch_event_of_item("ADDED", &item).unwrap(), frame, "{text}");
    }
}

#[test]
fn json_text_of_wrong_types_is_refused_with_the_field() {
    let form = Form::Whole(Resource::Service);
    let mut out = b"before".to_vec();
    for (text, message) in [
        (
            r#"{"metadata": {"name": "a"}, "spec": {"ports": [{}, {"port": "x"}]}}"#,
            "spec.ports[1].port: expected",
        ),
        (r#"{"spec": {"ports": {}}}"#, "spec.ports: expected a list"),
        (r#"{"spec": {"clusterIPs": [null]}}"#, "spec.clusterIPs[0]: expected a string"),
        (r#"{"spec": {"selector": {"a": null}}}"#, "spec.selector[a]: expected a string"),
        (r#"{"spec": {"healthCheckNodePort": 1.5}}"#, "spec.healthCheckNodePort: expected"),
        (r#"{"spec": {"healthCheckNodePort": 18446744073709551615}}"#, "spec.healthCheckNodePort: expected"),
        (r#"{"metadata": {"creationTimestamp": "now"}}"#, "metadata.creationTimestamp: expected"),
        (
            r#"{"metadata": {"managedFields": [{"fieldsV1": []}]}}"#,
            "metadata.managedFields[0].fieldsV1: expected",
        ),
        (r#"{"metadata": []}"#, "metadata: expected an object"),
    ] {
        let error = encode::text(&mut out, shape::of(Resource::Service), text.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(form.encode(text.as_bytes()).is_err());
        out.truncate(6);
        assert_eq!(out, b"before");
    }
    let beta = Form::Metadata("meta.k8s.io/v1beta1").encode(b"{}").unwrap_err();
    assert!(beta.to_string().starts_with("kind \"PartialObjectMetadata\""), "{beta}");
}

#[test]
fn a_watch_frame_has_its_length_and_an_enveloped_object() {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}});
    let frame = encode_watch_event("ADDED", &object(namespace.clone())).unwrap();
    let (length, event) = frame.split_first_chunk::<4>().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, event.len());
    let mut reader = wire::Reader::new(event);
    assert_eq!(reader.key(), Ok(Some((1, wire::LENGTH))));
    assert_eq!(reader.bytes(), Ok(&b"ADDED"[..]));
    assert_eq!(reader.key(), Ok(Some((2, wire::LENGTH))));
    let mut extension = wire::Reader::new(reader.bytes().unwrap());
    assert_eq!(extension.key(), Ok(Some((1, wire::LENGTH))));
    assert_eq!(decoded(extension.bytes().unwrap()), Ok(namespace));
    assert_eq!((extension.key(), reader.key()), (Ok(None), Ok(None)));
}

#[test]
fn objects_without_protobuf_form_are_refused() {
    let error = |value: Value| encode(&object(value)).unwrap_err().to_string();
    assert_eq!(
        error(json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table"})),
        "kind \"Table\" of \"meta.k8s.io/v1\" has no protobuf form: ask for JSON"
    );
    assert!(
        error(json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": "x"}]}}))
            .starts_with("spec.ports[0].port: expected a 32-bit integer")
    );
    assert!(
        error(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"creationTimestamp": "now"}}))
            .starts_with("metadata.creationTimestamp: expected an RFC 3339 time")
    );
    for (api_version, kind, known) in [
        ("v1", "Service", true),
        ("discovery.k8s.io/v1", "EndpointSliceList", true),
        ("v1", "Status", true),
        ("meta.k8s.io/v1", "PartialObjectMetadataList", true),
        ("meta.k8s.io/v1", "Table", false),
        ("v1", "Job", false),
        ("portolan.internal/v1", "NodePort", false),
    ] {
        assert_eq!(is_known(api_version, kind), known, "{kind}");
    }
}
