use crate::json::json;
use proptest::prelude::*;

use super::*;

fn patched(object: Value, patch: &Value) -> Result<Value, PatchError> {
    let Value::Object(mut object) = object else { panic!("an object") };
    merge(Resource::Service, &mut object, patch.as_object().unwrap()).map(|()| Value::Object(object))
}

fn ports(ports: impl Into<Value>) -> Value {
    let ports = ports.into();
    json!({"spec": {"ports": ports}})
}

fn finalizers(finalizers: impl Into<Value>) -> Value {
    let finalizers = finalizers.into();
    json!({"metadata": {"finalizers": finalizers}})
}

#[test]
fn objects_merge_and_lists_without_a_key_are_replaced() {
    let live = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"type": "NodePort",
        "selector": {"x": "1"}, "externalIPs": ["192.0.2.1"], "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}});
    let patch = json!({"metadata": {"labels": {"b": null, "c": "3"}, "annotations": {"n": null}}, "spec": {"type": null,
        "selector": {"y": "2"}, "externalIPs": ["192.0.2.2"], "sessionAffinityConfig": {"$patch": "replace"}}});
    let expected = json!({"metadata": {"labels": {"a": "1", "c": "3"}, "annotations": {}}, "spec": {
        "selector": {"x": "1", "y": "2"}, "externalIPs": ["192.0.2.2"], "sessionAffinityConfig": {}}});
    assert_eq!(patched(live, &patch).unwrap(), expected);
}

#[test]
fn elements_merge_by_their_key() {
    for (live, patch, expected) in [
        // An element with a known key is changed; a new one is added before those that the patch does not name.
        (
            json!([{"port": 80, "nodePort": 30080}, {"port": 81}]),
            json!([{"port": 80, "targetPort": "web"}]),
            json!([{"port": 80, "nodePort": 30080, "targetPort": "web"}, {"port": 81}]),
        ),
        (json!([{"port": 80}]), json!([{"port": 81}]), json!([{"port": 81}, {"port": 80}])),
        // The elements that the patch names get its order; the rest keep their places.
        (
            json!([{"port": 1}, {"port": 2}, {"port": 3}]),
            json!([{"port": 3}, {"port": 1}]),
            json!([{"port": 2}, {"port": 3}, {"port": 1}]),
        ),
        (
            json!([{"port": 80}, {"port": 81}]),
            json!([{"$patch": "delete", "port": 80}]),
            json!([{"port": 81}]),
        ),
        (
            json!([{"port": 80}, {"port": 81}]),
            json!([{"$patch": "replace"}, {"port": 82, "name": null}]),
            json!([{"port": 82}]),
        ),
        (json!([{"port": 80, "name": "a"}]), json!([{"port": 80, "name": null}]), json!([{"port": 80}])),
        (
            json!([{"port": 80, "name": "a"}]),
            json!([{"port": 80, "$patch": "merge"}]),
            json!([{"port": 80, "name": "a"}]),
        ),
        (json!([{"port": 80}]), json!([]), json!([{"port": 80}])),
        // If two elements have the same key, the patch changes the first, as in upstream.
        (
            json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]),
            json!([{"port": 53, "name": "dns"}]),
            json!([{"port": 53, "protocol": "TCP", "name": "dns"}, {"port": 53, "protocol": "UDP"}]),
        ),
        // Directives in new elements are processed, too.
        (
            json!([]),
            json!([{"port": 1, "name": null}, {"port": 2, "$patch": "delete"}]),
            json!([{"port": 1}]),
        ),
    ] {
        assert_eq!(patched(ports(live), &ports(patch.clone())).unwrap(), ports(expected), "{patch}");
    }
    let absent = patched(json!({}), &ports(json!([{"port": 1, "name": null}]))).unwrap();
    assert_eq!(absent, ports(json!([{"port": 1}])));
}

#[test]
fn the_order_of_elements_can_be_set() {
    let live = ports(json!([{"port": 1}, {"port": 2}, {"port": 3}]));
    let patch = json!({"spec": {
        "$setElementOrder/ports": [{"port": 4}, {"port": 3}, {"port": 1}],
        "ports": [{"port": 4}, {"port": 2, "$patch": "delete"}],
    }});
    assert_eq!(patched(live.clone(), &patch).unwrap(), ports(json!([{"port": 4}, {"port": 3}, {"port": 1}])));
    let order_alone = json!({"spec": {"$setElementOrder/ports": [{"port": 3}, {"port": 1}]}});
    let expected = ports(json!([{"port": 2}, {"port": 3}, {"port": 1}]));
    assert_eq!(patched(live, &order_alone).unwrap(), expected);
    assert_eq!(patched(json!({"spec": {}}), &order_alone).unwrap(), json!({"spec": {}}));
}

#[test]
fn lists_of_scalars_merge_and_delete_named_values() {
    assert_eq!(
        patched(finalizers(json!(["a", "b"])), &finalizers(json!(["c", "a"]))).unwrap(),
        finalizers(json!(["c", "a", "b"]))
    );
    let drop = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "x"]}});
    assert_eq!(patched(finalizers(json!(["a", "b"])), &drop).unwrap(), finalizers(json!(["b"])));
    let both = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"],
        "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}});
    assert_eq!(patched(finalizers(json!(["a", "b"])), &both).unwrap(), finalizers(json!(["c", "b"])));
    assert_eq!(patched(json!({"metadata": {}}), &drop).unwrap(), json!({"metadata": {}}));
}

#[test]
fn directives_for_whole_objects() {
    let live = json!({"spec": {"type": "NodePort", "externalName": "x"}, "metadata": {"name": "a"}});
    for (spec, expected) in [
        (json!({"$patch": "delete"}), json!({})),
        (json!({"$patch": "replace", "type": "ClusterIP"}), json!({"type": "ClusterIP"})),
        (json!({"$retainKeys": ["type"]}), json!({"type": "NodePort"})),
        (json!({"$retainKeys": ["type"], "type": "A", "clusterIP": null}), json!({"type": "A"})),
    ] {
        let expected = json!({"spec": expected, "metadata": {"name": "a"}});
        assert_eq!(patched(live.clone(), &json!({"spec": spec})).unwrap(), expected, "{spec}");
    }
}

#[test]
fn invalid_patches_are_refused_with_the_path() {
    let live = ports(json!([{"port": 80}]));
    for (patch, message) in [
        (
            ports(json!([{"name": "a"}])),
            "spec.ports.[0]: the element has no \"port\", the merge key of this list",
        ),
        (ports(json!([{"$patch": "delete"}])), "spec.ports.[0]: the element has no \"port\""),
        (ports(json!([80])), "spec.ports.[0]: an element of this list is an object"),
        (json!({"spec": {"$patch": "reverse"}}), "at spec: $patch is not one of"),
        (json!({"spec": {"$bogus": 1}}), "at spec: unknown directive \"$bogus\""),
        (
            json!({"spec": {"$retainKeys": ["type"], "externalName": "x"}}),
            "$retainKeys does not name \"externalName\"",
        ),
        (json!({"spec": {"$retainKeys": "type"}}), "a list belongs here"),
        (json!({"spec": {"$setElementOrder/ports": {}}}), "spec.ports: a list belongs here"),
        (
            json!({"spec": {"$setElementOrder/ports": [{"port": 80}], "ports": [{"port": 81}]}}),
            "spec.ports: $setElementOrder does not name 81 in the place",
        ),
        (
            json!({"spec": {"$setElementOrder/ports": [{"port": 80}, {"port": 81}],
                "ports": [{"port": 81}, {"port": 82, "$patch": "delete"}, {"port": 80}]}}),
            "spec.ports: $setElementOrder does not name 80 in the place",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["a"], "finalizers": ["b"]}}),
            "metadata.finalizers: $setElementOrder does not name \"b\"",
        ),
    ] {
        let error = patched(live.clone(), &patch).unwrap_err().to_string();
        assert!(error.contains(message), "{patch}: {error}");
    }
}

#[test]
fn long_lists_take_no_quadratic_time() {
    let many = |name: &str| (0..60_000).map(|port| json!({"port": port, "name": name})).collect::<Value>();
    let (live, patch) = (ports(many("a")), ports(many("b")));
    assert_eq!(patched(live, &patch).unwrap(), patch);
}

fn services() -> impl Strategy<Value = Value> {
    let texts = || proptest::collection::btree_map("[a-c]", "[a-c]", 0..3);
    let ports = proptest::collection::btree_map(1..6_u16, proptest::option::of("[a-c]"), 0..4);
    let finalizers = proptest::collection::btree_set("[a-e]", 0..4);
    (texts(), texts(), ports, finalizers).prop_map(|(labels, selector, ports, finalizers)| {
        let ports = ports.into_iter().map(|(port, name)| match name {
            Some(name) => json!({"port": port, "name": name}),
            None => json!({"port": port}),
        });
        let ports = ports.collect::<Vec<_>>();
        json!({"metadata": {"labels": labels, "finalizers": finalizers}, "spec": {"selector": selector, "ports": ports}})
    })
}

/// Returns the patch that changes `old` to `new`, as kubectl would send it.
fn difference(old: &Value, new: &Value) -> Value {
    let empty = List::new();
    let list = |object: &'_ Value, pointer: &str| {
        object.pointer(pointer).and_then(Value::as_array).unwrap_or(&empty).clone()
    };
    let map = |pointer: &str| {
        let object =
            |object: &Value| object.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
        let (old, new) = (object(old), object(new));
        let mut patch: Object =
            old.keys().filter(|key| !new.contains_key(key)).map(|key| (key.clone(), Value::Null)).collect();
        patch.extend(new.into_iter().filter(|(key, value)| old.get(key) != Some(value)));
        patch
    };
    let (old_ports, new_ports) = (list(old, "/spec/ports"), list(new, "/spec/ports"));
    let is_there = |ports: &[Value], port: &Value| ports.iter().any(|other| other["port"] == port["port"]);
    let mut ports: Vec<Value> = new_ports
        .iter()
        .map(|port| json!({"port": port["port"], "name": port.get("name").unwrap_or(&Value::Null)}))
        .collect();
    ports.extend(
        old_ports
            .iter()
            .filter(|port| !is_there(&new_ports, port))
            .map(|port| json!({"$patch": "delete", "port": port["port"]})),
    );
    let order: Vec<Value> = new_ports.iter().map(|port| json!({"port": port["port"]})).collect();
    let (old_names, new_names) = (list(old, "/metadata/finalizers"), list(new, "/metadata/finalizers"));
    let gone: Vec<&Value> = old_names.iter().filter(|name| !new_names.contains(name)).collect();
    json!({
        "metadata": {"labels": map("/metadata/labels"), "finalizers": new_names,
            "$deleteFromPrimitiveList/finalizers": gone, "$setElementOrder/finalizers": new_names},
        "spec": {"selector": map("/spec/selector"), "ports": ports, "$setElementOrder/ports": order},
    })
}

proptest! {
    #[test]
    fn the_difference_of_two_services_makes_the_second_of_the_first(old in services(), new in services()) {
        prop_assert_eq!(patched(old.clone(), &difference(&old, &new)).unwrap(), new);
    }

    #[test]
    fn a_patch_without_directives_can_be_repeated(old in services(), patch in services()) {
        let once = patched(old, &patch).unwrap();
        prop_assert_eq!(patched(once.clone(), &patch).unwrap(), once);
    }
}
