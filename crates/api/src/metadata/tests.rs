use portolan_schema::json::json;

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
            {"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "2"},
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
            "metadata.ownerReferences[2]",
            "metadata.ownerReferences",
            "metadata.finalizers[0]",
        ]
    );
}

#[test]
fn the_same_owner_counts_once() {
    let mut metadata = object(json!({"ownerReferences": [
        {"kind": "A", "uid": "1", "name": "a"}, {"uid": "1", "name": "a", "kind": "A"}, {"kind": "B", "uid": "1"},
    ]}));
    let warning = drop_duplicate_owners(&mut metadata).unwrap();
    assert!(warning.contains("\"1\""), "{warning}");
    let left = json!([{"kind": "A", "uid": "1", "name": "a"}, {"kind": "B", "uid": "1"}]);
    assert_eq!(metadata["ownerReferences"], left);
    assert_eq!(drop_duplicate_owners(&mut metadata), None);
    assert_eq!(drop_duplicate_owners(&mut Object::new()), None);
}

#[test]
fn an_update_is_no_way_to_delete() {
    let fields = |new: Value, old: Value| {
        let errors = forbidden_changes(&object(new), &object(old));
        errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
    };
    let time = || json!({"deletionTimestamp": "2026-11-21T21:03:57Z", "deletionGracePeriodSeconds": 0});
    let both = ["metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds"];
    assert_eq!(fields(time(), json!({})), both);
    assert!(fields(time(), time()).is_empty() && fields(json!({}), time()).is_empty());
    assert!(fields(json!({"deletionTimestamp": "2030-01-01T00:00:00Z"}), time()).is_empty());
    assert_eq!(fields(json!({"deletionGracePeriodSeconds": 5}), time()), both[1..]);
    assert!(fields(json!({"deletionTimestamp": null}), json!({})).is_empty());
}
