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
        validate(Resource::Service, &metadata, None).into_iter().map(|error| error.field).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.labels",
            "metadata.labels",
            "metadata.annotations",
            "metadata.ownerReferences.uid",
            "metadata.ownerReferences",
            "metadata.ownerReferences",
            "metadata.finalizers",
            "metadata.finalizers[0]",
        ]
    );
}

#[test]
fn the_prefix_of_a_generated_name_is_a_name_too() {
    let fits = |resource, prefix: &str| {
        generate_name_error(resource, &object(json!({"generateName": prefix}))).is_none()
    };
    let long = |length: usize, end: &str| "x".repeat(length) + end;
    assert!(fits(Resource::Service, "web-") && fits(Resource::Service, "web") && fits(Resource::Service, ""));
    assert!(fits(Resource::Service, &long(63, "")) && !fits(Resource::Service, &long(64, "")));
    assert!(fits(Resource::Service, &long(63, "-")) && !fits(Resource::Service, &long(64, "-")));
    assert!(!fits(Resource::Service, "a.b-") && fits(Resource::Node, "a.b-") && !fits(Resource::Node, "AB-"));
    assert!(!fits(Resource::Node, &long(254, "")) && !fits(Resource::Service, "-"));
    assert!(fits(Resource::CoreEvent, "A b") && !fits(Resource::CoreEvent, "a/b"));
    assert!(!fits(Resource::IpAddress, "10-") && fits(Resource::IpAddress, "10.0.0.1"));
}

#[test]
fn owners_name_a_version() {
    for (api_version, version) in
        [("v1", "v1"), ("a/v1", "v1"), ("/v1", "v1"), ("", ""), ("a/", ""), ("a/b/c", "")]
    {
        assert_eq!(version_of(api_version), version, "{api_version}");
    }
}

#[test]
fn finalizers_have_a_domain_where_upstream_asks_for_it() {
    let faults = |resource, finalizer: &str| {
        let errors = finalizer_errors(resource, &object(json!({"finalizers": [finalizer]})), None);
        errors.iter().map(FieldError::brief).collect::<Vec<_>>()
    };
    for finalizer in ["example.com/a", "orphan", "foregroundDeletion", "kubernetes"] {
        assert!(faults(Resource::Service, finalizer).is_empty(), "{finalizer}");
    }
    assert_eq!(faults(Resource::Service, "mine"), ["Invalid metadata.finalizers[0]"]);
    assert_eq!(
        faults(Resource::Service, "a b"),
        ["Invalid metadata.finalizers", "Invalid metadata.finalizers[0]"]
    );
    assert!(faults(Resource::Lease, "mine").is_empty() && faults(Resource::CoreEvent, "mine").is_empty());
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

#[test]
fn stored_finalizers_are_not_checked_again() {
    let stored = object(json!({"finalizers": ["mine", "orphan", "foregroundDeletion"]}));
    let more = object(json!({"finalizers": ["mine", "yours", "orphan", "foregroundDeletion"]}));
    let faults = |new: &Object, old| {
        let errors = finalizer_errors(Resource::Service, new, old);
        errors.iter().map(FieldError::brief).collect::<Vec<_>>()
    };
    assert_eq!(faults(&stored, None), ["Invalid metadata.finalizers[0]", "Invalid metadata.finalizers"]);
    assert_eq!(faults(&stored, Some(&stored)), Vec::<String>::new());
    assert_eq!(faults(&more, Some(&stored)), ["Invalid metadata.finalizers[1]"]);
}
