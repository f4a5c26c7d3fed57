use crate::json::json;
use proptest::prelude::*;

use super::*;

fn writer(manager: &str) -> Writer<'_> {
    Writer { manager, subresource: "", now: "2030-01-01T00:00:00Z" }
}

fn object(value: Value) -> Object {
    let Value::Object(object) = value else { panic!("an object") };
    object
}

fn service() -> Object {
    object(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "labels": {"app": "x"}, "finalizers": ["example.com/a"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]},
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
            "selector": {"app": "x"}, "externalIPs": ["192.0.2.1"], "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}},
        "status": {"loadBalancer": {}},
    }))
}

fn made_by(manager: &str, mut object: Object) -> Object {
    created(Resource::Service, &mut object, writer(manager));
    object
}

fn with(mut object: Object, pointer: &str, value: Value) -> Object {
    let mut whole = Value::Object(std::mem::take(&mut object));
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    whole.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
    self::object(whole)
}

fn without(object: Object, pointer: &str) -> Object {
    let mut whole = Value::Object(object);
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    whole.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
    self::object(whole)
}

fn written(old: &Object, new: &Object, writer: Writer<'_>) -> Object {
    let mut new = new.clone();
    let asked = present(Resource::Service, writer.subresource, &new);
    updated(Resource::Service, old, &mut new, &asked, writer).unwrap();
    new
}

/// Returns `manager operation: paths` for each entry.
fn owners(object: &Object) -> Vec<String> {
    let managers = Managers::decode_stored(recorded(object)).0;
    let line = |(key, owned): (Key, Owned)| {
        let subresource =
            if key.subresource.is_empty() { String::new() } else { format!("/{}", key.subresource) };
        format!("{}{subresource} {:?}: {}", key.manager, key.operation, owned.fields.paths().join(" "))
    };
    managers.into_iter().map(line).collect()
}

#[test]
fn the_creator_of_an_object_owns_its_fields() {
    let entries = made_by("me", service())["metadata"]["managedFields"].clone();
    let expected = json!([{
        "manager": "me", "operation": "Update", "apiVersion": "v1", "time": "2030-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {
                "f:labels": {".": {}, "f:app": {}},
                "f:finalizers": {".": {}, "v:\"example.com/a\"": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"1\"}": {}},
            },
            "f:spec": {
                "f:ports": {
                    ".": {},
                    "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
                    "k:{\"port\":53,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
                },
                "f:selector": {},
                "f:externalIPs": {},
                "f:sessionAffinityConfig": {".": {}, "f:clientIP": {".": {}, "f:timeoutSeconds": {}}},
            },
        },
    }]);
    assert_eq!(entries, expected);
    assert_eq!(made_by("", service())["metadata"]["managedFields"][0]["manager"], "unknown");
}

#[test]
fn changed_fields_belong_to_the_writer_and_removed_ones_have_no_owner() {
    let small = object(
        json!({"metadata": {"labels": {"a": "1"}}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}),
    );
    let old = made_by("one", small);
    let new =
        with(with(old.clone(), "/spec/type", json!("ClusterIP")), "/metadata/labels", json!({"b": "2"}));
    let new = written(&old, &new, writer("two"));
    let port = ".spec.ports[port=80,protocol=\"TCP\"]";
    assert_eq!(
        owners(&new),
        [
            format!("one Update: .metadata.labels .spec.ports {port} {port}.port"),
            "two Update: .metadata.labels.b .spec.type".to_owned(),
        ]
    );
    let new = written(&new.clone(), &with(new, "/spec/ports", json!([])), writer("two"));
    assert_eq!(
        owners(&new),
        ["one Update: .metadata.labels .spec.ports", "two Update: .metadata.labels.b .spec.type"]
    );
    let gone = without(without(new.clone(), "/spec/type"), "/metadata/labels");
    assert_eq!(owners(&written(&new, &gone, writer("two"))), ["one Update: .spec.ports"]);
}

#[test]
fn fields_that_the_server_sets_have_no_owner() {
    let old = made_by(
        "one",
        object(json!({"metadata": {}, "spec": {"type": "ClusterIP", "ports": [{"port": 80}]}})),
    );
    let asked = with(old.clone(), "/spec/type", json!("NodePort"));
    let asked = present(Resource::Service, "", &asked);
    let mut new = with(old.clone(), "/spec/type", json!("NodePort"));
    new["spec"]["ports"][0]["nodePort"] = 30_000.into();
    updated(Resource::Service, &old, &mut new, &asked, writer("two")).unwrap();
    assert_eq!(owners(&new)[1..], ["two Update: .spec.type"]);
}

#[test]
fn an_entry_of_an_element_without_protocol_is_that_of_tcp() {
    let old = made_by("one", object(json!({"metadata": {}, "spec": {"ports": [{"port": 80}]}})));
    let new = with(old.clone(), "/spec/ports", json!([{"port": 80, "protocol": "TCP"}]));
    let port = ".spec.ports[port=80,protocol=\"TCP\"]";
    assert_eq!(
        owners(&written(&old, &new, writer("two"))),
        [format!("one Update: .spec.ports {port} {port}.port"), format!("two Update: {port}.protocol")]
    );
}

#[test]
fn status_is_owned_apart() {
    let old = made_by("one", object(json!({"metadata": {}, "spec": {"type": "NodePort"}})));
    let new = with(old.clone(), "/status", json!({"conditions": [{"type": "Ready", "status": "True"}]}));
    let status = Writer { subresource: "status", ..writer("one") };
    let condition = ".status.conditions[type=\"Ready\"]";
    let new = written(&old, &new, status);
    assert_eq!(
        owners(&new),
        [
            "one Update: .spec.type".to_owned(),
            format!("one/status Update: .status.conditions {condition} {condition}.status {condition}.type"),
        ]
    );
    let edited = with(new.clone(), "/metadata/managedFields", json!([]));
    assert_eq!(owners(&written(&new, &edited, status)), owners(&new), "not edited through a subresource");
}

#[test]
fn times_move_only_with_what_is_owned() {
    let later = Writer { now: "2031-01-01T00:00:00Z", ..writer("one") };
    let old = made_by("one", service());
    assert_eq!(written(&old, &old, later), old);
    let mut touched = Value::Object(old.clone());
    touched["metadata"]["managedFields"][0]["time"] = "2032-01-01T00:00:00Z".into();
    assert_eq!(written(&old, &object(touched), later), old, "times alone are no change");
    let new = written(&old, &with(old.clone(), "/spec/type", json!("NodePort")), later);
    assert_eq!(new["metadata"]["managedFields"][0]["time"], "2031-01-01T00:00:00Z");
}

#[test]
fn clients_can_forget_keep_and_edit_the_record() {
    let old = made_by("one", service());
    for reset in [json!([]), json!([{}])] {
        let new = written(&old, &with(old.clone(), "/metadata/managedFields", reset), writer("two"));
        assert!(!new["metadata"].as_object().unwrap().contains_key("managedFields"));
        let untracked = written(&new, &with(new.clone(), "/spec/type", json!("NodePort")), writer("two"));
        assert!(recorded(&untracked).is_none(), "until the first apply");
    }
    let silent = without(old.clone(), "/metadata/managedFields");
    assert_eq!(written(&old, &silent, writer("two")), old);
    let entry = json!({"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:type": {}}}});
    let edited = with(old.clone(), "/metadata/managedFields", json!([entry]));
    assert_eq!(owners(&written(&old, &edited, writer("two"))), ["x Apply: .spec.type"]);
    for (bad, reason) in [
        (json!({"manager": "x", "operation": "apply"}), "operation is \"apply\""),
        (json!({"manager": "x".repeat(129), "operation": "Apply"}), "at most 128"),
        (json!({"manager": "x\n", "operation": "Apply"}), "printable"),
        (json!({"operation": "Apply", "fieldsType": "FieldsV2"}), "fieldsType"),
        (json!({"operation": "Apply", "fieldsV1": {"x": {}}}), "fieldsV1: \"x\" is not a field"),
    ] {
        let mut edited = with(old.clone(), "/metadata/managedFields", json!([entry, bad]));
        let error = updated(Resource::Service, &old, &mut edited, &Fields::default(), writer("two"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("metadata.managedFields[1]: ") && error.contains(reason), "{error}");
    }
}

#[test]
fn the_oldest_of_many_writers_become_one() {
    let mut live = made_by("m00", object(json!({"metadata": {"labels": {"l0": "1"}}})));
    for number in 1..15 {
        let (manager, now) = (format!("m{number:02}"), format!("2030-01-01T00:00:{number:02}Z"));
        let mut labels = live["metadata"]["labels"].clone();
        labels[format!("l{number}")] = "1".into();
        let new = with(live.clone(), "/metadata/labels", labels);
        live = written(&live, &new, Writer { manager: &manager, now: &now, subresource: "" });
        assert!(owners(&live).len() <= MAX_UPDATE_ENTRIES);
    }
    let owners = owners(&live);
    assert_eq!(owners.len(), MAX_UPDATE_ENTRIES);
    assert!(
        owners[0].starts_with("ancient-changes Update: .metadata.labels .metadata.labels.l0"),
        "{owners:?}"
    );
    let together = owners.join(" ");
    for number in 0..15 {
        assert!(together.contains(&format!(".metadata.labels.l{number}")), "{number}: {owners:?}");
    }
}

fn services() -> impl Strategy<Value = Object> {
    let texts = || proptest::collection::btree_map("[a-c]", "[a-c]", 0..3);
    let ports = proptest::collection::btree_map((1..4_u16, any::<bool>()), "[a-c]", 0..4);
    (texts(), texts(), ports, any::<bool>()).prop_map(|(labels, selector, ports, node_port)| {
        let port = |((port, udp), name): ((u16, bool), String)| {
            let protocol = if udp { "UDP" } else { "TCP" };
            json!({"port": port, "protocol": protocol, "name": name})
        };
        let ports = ports.into_iter().map(port).collect::<Vec<_>>();
        let kind = if node_port { "NodePort" } else { "ClusterIP" };
        object(json!({"metadata": {"labels": labels}, "spec": {"selector": selector, "ports": ports, "type": kind}}))
    })
}

proptest! {
    #[test]
    fn every_field_has_exactly_its_last_writer(
        first in services(), writes in proptest::collection::vec((services(), 0..3_u8), 0..6),
    ) {
        let scope = Scope { resource: Resource::Service, subresource: "" };
        let mut live = made_by("m9", first);
        for (new, manager) in writes {
            let manager = format!("m{manager}");
            let before = live.clone();
            live = written(&live, &new, writer(&manager));
            let managers = Managers::decode_stored(recorded(&live)).0;
            let mut union = Fields::default();
            let mut count = 0;
            for owned in managers.values() {
                count += owned.fields.paths().len();
                union.add(&owned.fields);
            }
            prop_assert_eq!(count, union.paths().len(), "no field has two owners: {:?}", owners(&live));
            prop_assert_eq!(union, scope.compare(&Object::new(), &live).changed);
            let changed = scope.compare(&before, &live).changed;
            let own = managers.get(&Key::new(Operation::Update, Resource::Service, writer(&manager)));
            prop_assert_eq!(own.map(|own| own.fields.common(&changed)).unwrap_or_default(), changed);
        }
    }
}

#[test]
fn an_object_with_very_many_fields_has_no_record_of_owners() {
    let labels = |count: usize| -> Value { (0..count).map(|number| (format!("l{number}"), "")).collect() };
    let service = |count: usize| json!({"metadata": {"name": "a", "labels": labels(count)}});
    let created = |count: usize| {
        let Value::Object(mut object) = service(count) else { panic!("an object") };
        super::created(Resource::Service, &mut object, Writer { manager: "m", subresource: "", now: "now" });
        object
    };
    assert!(recorded(&created(16_000)).is_some());
    assert!(recorded(&created(17_000)).is_none());
    let writer = Writer { manager: "n", subresource: "", now: "later" };
    let mut grown = created(17_000);
    updated(Resource::Service, &created(10), &mut grown, &Fields::default(), writer).unwrap();
    assert!(recorded(&grown).is_none());
    let mut configuration = created(17_000);
    configuration.insert("apiVersion", "v1".into());
    configuration.insert("kind", "Service".into());
    let apply = crate::patch::Apply::decode(Resource::Service, configuration, false).unwrap();
    assert!(matches!(apply.onto(None, writer), Err(PatchError::TooLarge(_))));
}
