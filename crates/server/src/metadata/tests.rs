use serde_json::json;

use super::*;

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

#[test]
fn timestamps_are_utc_in_whole_seconds() {
    assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
    assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
    assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
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
