use serde_json::json;

use super::*;

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

#[test]
fn now_is_read_as_it_is_written() {
    let (before, text, after) = (since_epoch().0, now(), since_epoch().0);
    let seconds = i64::try_from(parse_time(&text).unwrap()).unwrap();
    assert!((before..=after).contains(&seconds), "{text}");
    assert!(timestamp::parse(&now_micro()).is_some_and(|(seconds, _)| seconds >= after));
}

#[test]
fn the_name_of_an_address_is_the_address() {
    let fault = |name: &str| name_error(Resource::IpAddress, &object(json!({"name": name}))).is_some();
    assert!(!fault("10.0.0.1") && !fault("fd00::1"));
    assert!(fault("010.0.0.1") && fault("FD00::1") && fault("::ffff:10.0.0.1") && fault("a"));
}

#[test]
fn uids_are_version_4_and_differ() {
    let (first, second) = (uid(), uid());
    assert_ne!(first, second);
    let shape: Vec<usize> = first.split('-').map(str::len).collect();
    assert_eq!(shape, [8, 4, 4, 4, 12]);
    assert_eq!(first.as_bytes()[14], b'4');
    assert!(b"89ab".contains(&first.as_bytes()[19]));
}

#[test]
fn generated_names_fit_and_the_given_name_wins() {
    let mut metadata = object(json!({"generateName": "x".repeat(80), "uid": "mine", "resourceVersion": "4"}));
    prepare_create(Resource::Service, &mut metadata);
    assert_eq!(json::text(&metadata, "name").unwrap().len(), 63);
    assert_ne!(json::text(&metadata, "uid"), Some("mine"));
    assert!(!metadata.contains_key("resourceVersion"));
    let mut metadata = object(json!({"generateName": "x-", "name": "y"}));
    prepare_create(Resource::Service, &mut metadata);
    assert_eq!(json::text(&metadata, "name"), Some("y"));
}

#[test]
fn bad_metadata_is_named_field_by_field() {
    let metadata = object(json!({
        "name": "A", "namespace": "default",
        "labels": {"ok": "yes", "bad key": "", "k": "-"},
        "annotations": {"Fine/Key": "", "not ok": ""},
        "finalizers": ["a b"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Service", "name": "s", "uid": "1", "controller": true},
            {"apiVersion": "v1", "kind": "Service", "name": "s", "controller": true},
        ],
    }));
    let fields: Vec<String> =
        validate(Resource::Service, &metadata).into_iter().map(|error| error.field).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.labels",
            "metadata.labels[k]",
            "metadata.annotations",
            "metadata.ownerReferences[1].uid",
            "metadata.ownerReferences",
            "metadata.finalizers[0]",
        ]
    );
}
