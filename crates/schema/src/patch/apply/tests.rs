use crate::json::json;
use proptest::prelude::*;

use super::*;
use crate::patch::managed;

const NOW: &str = "2030-01-01T00:00:00Z";

fn writer(manager: &str) -> Writer<'_> {
    Writer { manager, subresource: "", now: NOW }
}

fn object(value: Value) -> Object {
    let Value::Object(object) = value else { panic!("an object") };
    object
}

/// Returns a configuration of a Service with additional members.
fn configuration(more: Value) -> Object {
    let mut configuration = object(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}));
    crate::patch::merge(&mut configuration, &object(more));
    configuration
}

fn decoded(more: Value, force: bool) -> Apply {
    Apply::decode(Resource::Service, configuration(more), force).unwrap()
}

fn applied(live: Option<&Object>, manager: &str, more: Value) -> Result<Object, PatchError> {
    decoded(more, false).onto(live, writer(manager))
}

fn forced(live: &Object, manager: &str, more: Value) -> Object {
    decoded(more, true).onto(Some(live), writer(manager)).unwrap()
}

/// Returns the object after a write that is not an apply.
fn written(live: &Object, manager: &str, more: Value) -> Object {
    let mut new = live.clone();
    crate::patch::merge(&mut new, &object(more));
    let asked = managed::present(Resource::Service, "", &new);
    managed::updated(Resource::Service, live, &mut new, &asked, writer(manager)).unwrap();
    new
}

fn owners(object: &Object) -> Vec<String> {
    let managers = Managers::decode_stored(recorded(object)).0;
    let line = |(key, owned): (Key, Owned)| {
        format!("{} {:?}: {}", key.manager, key.operation, owned.fields.paths().join(" "))
    };
    managers.into_iter().map(line).collect()
}

fn spec(object: &Object) -> &Value {
    &object["spec"]
}

fn conflicts(result: Result<Object, PatchError>) -> Vec<String> {
    match result {
        Err(PatchError::Conflicts(conflicts)) => {
            conflicts.into_iter().map(|conflict| format!("{} {}", conflict.owner, conflict.field)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_object_is_what_the_configuration_says() {
    let new = applied(None, "m", json!({"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}})).unwrap();
    assert_eq!(new["spec"], json!({"ports": [{"port": 80}], "selector": {"a": "b"}}));
    let expected = json!([{
        "manager": "m", "operation": "Apply", "apiVersion": "v1", "time": NOW, "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {
            "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
            "f:selector": {},
        }},
    }]);
    assert_eq!(new["metadata"]["managedFields"], expected);
}

#[test]
fn the_same_configuration_changes_nothing() {
    let configuration =
        json!({"metadata": {"labels": {"a": "1"}}, "spec": {"ports": [{"port": 80}], "type": "NodePort"}});
    let live = applied(None, "m", configuration.clone()).unwrap();
    let later = Writer { now: "2031-01-01T00:00:00Z", ..writer("m") };
    assert_eq!(decoded(configuration, false).onto(Some(&live), later).unwrap(), live);
}

#[test]
fn unnamed_fields_are_removed_unless_another_manager_owns_them() {
    let live = applied(None, "m", json!({"metadata": {"labels": {"a": "1"}}, "spec": {
        "type": "NodePort", "externalIPs": ["192.0.2.1"], "ports": [{"port": 80, "name": "x"}, {"port": 81}]}})).unwrap();
    let live = written(
        &live,
        "server",
        json!({"spec": {"clusterIP": "10.0.0.1"}, "metadata": {"labels": {"b": "2"}}}),
    );
    // The node port of an element has no owner; it is removed with the element.
    let mut live = live;
    live["spec"]["ports"][1]["nodePort"] = 30_000.into();
    let live = applied(Some(&live), "other", json!({"spec": {"externalIPs": ["192.0.2.1"]}})).unwrap();
    let new = applied(Some(&live), "m", json!({"spec": {"ports": [{"port": 80}]}})).unwrap();
    assert_eq!(
        spec(&new),
        &json!({"clusterIP": "10.0.0.1", "externalIPs": ["192.0.2.1"], "ports": [{"port": 80}]})
    );
    assert_eq!(new["metadata"]["labels"], json!({"b": "2"}));
    let port = ".spec.ports[port=80,protocol=\"TCP\"]";
    assert_eq!(
        owners(&new),
        [
            format!("m Apply: {port} {port}.port"),
            "other Apply: .spec.externalIPs".to_owned(),
            "server Update: .metadata.labels.b .spec.clusterIP".to_owned(),
        ]
    );
    let empty = applied(Some(&new), "m", json!({})).unwrap();
    assert_eq!(spec(&empty), &json!({"clusterIP": "10.0.0.1", "externalIPs": ["192.0.2.1"]}));
    assert_eq!(owners(&empty).len(), 2, "a manager without fields has no entry");
}

/// Returns a configuration with members that may be null.
fn exactly(more: Value) -> Apply {
    let mut configuration = configuration(json!({}));
    configuration.extend(object(more));
    Apply::decode(Resource::Service, configuration, false).unwrap()
}

#[test]
fn a_null_or_zero_value_claims_its_field_and_removes_the_value() {
    let live = json!({"spec": {"publishNotReadyAddresses": true, "externalIPs": ["192.0.2.1"], "loadBalancerIP": "192.0.2.2",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}});
    let live = applied(None, "a", live).unwrap();
    for (name, nothing) in [
        ("publishNotReadyAddresses", json!(false)),
        ("publishNotReadyAddresses", json!(null)),
        ("externalIPs", json!([])),
        ("externalIPs", json!(null)),
        ("loadBalancerIP", json!("")),
    ] {
        let wanted = json!({"spec": {name: nothing}});
        let refused = exactly(wanted.clone()).onto(Some(&live), writer("b"));
        let expected = format!("\"a\" .spec.{name}");
        assert!(conflicts(refused).contains(&expected), "{wanted}");
        let own = exactly(wanted.clone()).onto(Some(&live), writer("a")).unwrap();
        assert!(!own["spec"].as_object().unwrap().contains_key(name), "{wanted}");
        assert_eq!(owners(&own), [format!("a Apply: .spec.{name}")]);
        let later = Writer { now: "2031-01-01T00:00:00Z", ..writer("a") };
        assert_eq!(exactly(wanted.clone()).onto(Some(&own), later).unwrap(), own, "{wanted}");
    }
    // The members of an object go without a conflict.
    let wanted = json!({"spec": {"sessionAffinityConfig": null}});
    let new = exactly(wanted).onto(Some(&live), writer("b")).unwrap();
    assert_eq!(new["spec"].get("sessionAffinityConfig"), None);
    // A value that is absent already is no change.
    let new = exactly(json!({"spec": {"healthCheckNodePort": 0}})).onto(Some(&live), writer("b")).unwrap();
    assert_eq!(new["spec"], live["spec"]);
}

#[test]
fn nulls_without_an_owner_are_ignored() {
    let wanted =
        json!({"metadata": {"name": "a", "creationTimestamp": null, "managedFields": null}, "status": null});
    let new = exactly(wanted).onto(None, writer("a")).unwrap();
    assert_eq!(new["metadata"], json!({"name": "a"}));
}

#[test]
fn a_configuration_has_no_managed_fields() {
    for entries in [json!([]), json!([{}])] {
        let wanted = configuration(json!({"metadata": {"managedFields": entries}}));
        let refused = Apply::decode(Resource::Service, wanted, false).unwrap_err();
        assert!(refused.to_string().contains("metadata.managedFields"), "{refused}");
    }
}

#[test]
fn an_object_is_removed_with_its_last_field() {
    let live = applied(None, "m", json!({"metadata": {"labels": {"a": "1"}}})).unwrap();
    let new = applied(Some(&live), "m", json!({"spec": {"type": "NodePort"}})).unwrap();
    assert!(!new["metadata"].as_object().unwrap().contains_key("labels"), "{new:?}");
}

#[test]
fn fields_of_other_managers_are_conflicts_unless_equal_or_forced() {
    let live = applied(
        None,
        "a",
        json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080}]}}),
    )
    .unwrap();
    let live = written(&live, "b", json!({"spec": {"sessionAffinity": "ClientIP"}}));
    let wanted = json!({"spec": {"type": "ClusterIP", "sessionAffinity": "None", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 9}]}});
    let refused = applied(Some(&live), "c", wanted.clone());
    let message = refused.as_ref().unwrap_err().to_string();
    assert_eq!(
        message,
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.ports[port=80,protocol=\"TCP\"].targetPort\n- \
         .spec.type conflicts with \"b\" using v1 at 2030-01-01T00:00:00Z:\n- .spec.sessionAffinity"
    );
    assert_eq!(conflicts(refused).len(), 3);
    let single = applied(Some(&live), "c", json!({"spec": {"type": "ClusterIP"}})).unwrap_err().to_string();
    assert_eq!(single, "Apply failed with 1 conflict: conflict with \"a\": .spec.type");

    let equal = applied(Some(&live), "c", json!({"spec": {"type": "NodePort"}})).unwrap();
    assert!(owners(&equal).contains(&"c Apply: .spec.type".to_owned()), "shared: {:?}", owners(&equal));
    assert_eq!(spec(&equal), spec(&live));

    let new = forced(&live, "c", wanted);
    assert_eq!(spec(&new)["type"], "ClusterIP");
    let port = ".spec.ports[port=80,protocol=\"TCP\"]";
    assert_eq!(
        owners(&new),
        [
            format!("a Apply: {port} {port}.port"),
            format!(
                "c Apply: {port} {port}.port {port}.protocol {port}.targetPort .spec.sessionAffinity .spec.type"
            ),
        ]
    );
    let live = written(&live, "d", json!({"status": {"conditions": [{"type": "X", "status": "True"}]}}));
    applied(Some(&live), "c", json!({"status": {"conditions": [{"type": "X", "status": "False"}]}})).unwrap();
}

#[test]
fn an_update_takes_fields_from_appliers() {
    let live = applied(None, "a", json!({"spec": {"type": "NodePort"}})).unwrap();
    let live = written(&live, "b", json!({"spec": {"type": "ClusterIP"}}));
    assert_eq!(owners(&live), ["b Update: .spec.type"]);
    assert_eq!(
        conflicts(applied(Some(&live), "a", json!({"spec": {"type": "NodePort"}}))),
        ["\"b\" using v1 at 2030-01-01T00:00:00Z .spec.type"]
    );
}

#[test]
fn lists_by_key_sets_and_whole_lists() {
    let base = json!({"metadata": {"finalizers": ["x/a"]}, "spec": {
        "ports": [{"port": 1}, {"port": 2}, {"port": 3}], "externalIPs": ["192.0.2.1", "192.0.2.2"], "selector": {"a": "1"}}});
    let live = applied(None, "a", base).unwrap();
    let new = forced(
        &live,
        "b",
        json!({"metadata": {"finalizers": ["x/b"]}, "spec": {
        "ports": [{"port": 4}, {"port": 3, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}],
        "externalIPs": ["192.0.2.2"], "selector": {"b": "2"}}}),
    );
    assert_eq!(new["metadata"]["finalizers"], json!(["x/a", "x/b"]));
    assert_eq!(
        spec(&new),
        &json!({
            "ports": [{"port": 1}, {"port": 2}, {"port": 4}, {"port": 3, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}],
            "externalIPs": ["192.0.2.2"], "selector": {"b": "2"},
        })
    );
    let reordered = forced(
        &new,
        "a",
        json!({"metadata": {"finalizers": ["x/a"]}, "spec": {"ports": [{"port": 3}, {"port": 2}]}}),
    );
    let order: Vec<&Value> =
        reordered["spec"]["ports"].as_array().unwrap().iter().map(|port| &port["port"]).collect();
    assert_eq!(order, [4, 3, 1, 2]);
}

#[test]
fn status_is_applied_through_its_endpoint_alone() {
    let live = applied(None, "a", json!({"spec": {"type": "NodePort"}})).unwrap();
    let both =
        json!({"spec": {"type": "ClusterIP"}, "status": {"conditions": [{"type": "X", "status": "True"}]}});
    let status = Writer { subresource: "status", ..writer("a") };
    let new = decoded(both.clone(), false).onto(Some(&live), status).unwrap();
    assert_eq!(spec(&new), &json!({"type": "NodePort"}));
    assert_eq!(new["status"], json!({"conditions": [{"type": "X", "status": "True"}]}));
    assert_eq!(new["metadata"]["managedFields"][1]["subresource"], "status");
    let main = applied(Some(&live), "a", both).unwrap();
    assert!(!main.contains_key("status"));
}

#[test]
fn fields_from_before_the_first_apply_have_an_owner() {
    let live = configuration(json!({"spec": {"type": "NodePort", "externalName": "x"}}));
    let refused = applied(Some(&live), "a", json!({"spec": {"type": "ClusterIP"}}));
    assert_eq!(conflicts(refused), ["\"before-first-apply\" using v1 at 2030-01-01T00:00:00Z .spec.type"]);
    let new = forced(&live, "a", json!({"spec": {"type": "ClusterIP"}}));
    assert_eq!(owners(&new), ["a Apply: .spec.type", "before-first-apply Update: .spec.externalName"]);
}

#[test]
fn kubectl_takes_over_what_it_applied_from_the_client() {
    let annotated = configuration(json!({"spec": {"type": "NodePort"}}));
    let mut live = configuration(json!({
        "metadata": {"annotations": {LAST_APPLIED: Value::Object(annotated).to_string()}},
        "spec": {"type": "NodePort", "externalName": "x"},
    }));
    managed::created(Resource::Service, &mut live, writer("kubectl-client-side-apply"));
    let wanted = json!({"spec": {"type": "ClusterIP"}});
    assert_eq!(conflicts(applied(Some(&live), "other", wanted.clone())).len(), 1);
    let new = applied(Some(&live), "kubectl", wanted).unwrap();
    let annotation = new["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    assert!(annotation.contains("ClusterIP"), "{annotation}");
    let refused =
        applied(Some(&live), "kubectl", json!({"spec": {"type": "ClusterIP", "externalName": "y"}}));
    assert_eq!(conflicts(refused).len(), 1, "never applied by kubectl");
}

#[test]
fn configurations_that_cannot_be_applied_are_refused() {
    for (more, reason) in [
        (json!({"apiVersion": "v2"}), "apiVersion must be v1"),
        (json!({"kind": null}), "kind must be Service"),
        (json!({"metadata": {"managedFields": [{"manager": "x"}]}}), "managedFields must not be"),
        (json!({"spec": {"bogus": 1}}), "unknown fields in a configuration to apply: spec.bogus"),
        (
            json!({"spec": {"ports": [{"name": "x"}]}}),
            "spec.ports: an element has none of its keys: port, protocol",
        ),
        (
            json!({"spec": {"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}}),
            "spec.ports: two elements have the same keys",
        ),
        (json!({"metadata": {"finalizers": ["a", "a"]}}), "metadata.finalizers: two elements"),
        (json!({"spec": {"ports": {}}}), "spec.ports: expected a list, got object"),
    ] {
        let error =
            Apply::decode(Resource::Service, configuration(more.clone()), true).unwrap_err().to_string();
        assert!(error.contains(reason), "{more}: {error}");
    }
}

fn configurations() -> impl Strategy<Value = Value> {
    let texts = || proptest::collection::btree_map("[a-c]", "[a-c]", 0..3);
    let ports =
        proptest::collection::btree_map((1..4_u16, any::<bool>()), proptest::option::of("[a-c]"), 0..4);
    let finalizers = proptest::collection::btree_set("x/[a-c]", 0..3);
    (texts(), texts(), ports, finalizers, proptest::option::of("[a-c]")).prop_map(
        |(labels, selector, ports, finalizers, name)| {
            let port = |((port, udp), name): ((u16, bool), Option<String>)| {
                let mut port = json!({"port": port});
                if udp {
                    port["protocol"] = "UDP".into();
                }
                if let Some(name) = name {
                    port["name"] = name.into();
                }
                port
            };
            let ports: Vec<Value> = ports.into_iter().map(port).collect();
            let mut configuration = json!({"metadata": {"labels": labels, "finalizers": finalizers}, "spec": {"selector": selector, "ports": ports}});
            if let Some(name) = name {
                configuration["spec"]["externalName"] = name.into();
            }
            configuration
        },
    )
}

/// Returns true if `outer` contains every value of `inner`. Elements of lists are compared by their keys.
fn holds(node: Node, outer: &Value, inner: &Value) -> bool {
    match (node.form(outer), node.form(inner)) {
        (Form::Members(outer), Form::Members(inner)) => inner
            .iter()
            .all(|(name, inner)| outer.get(name).is_some_and(|outer| holds(node.member(name), outer, inner))),
        (Form::Elements(outer), Form::Elements(inner)) => inner.iter().all(|(step, inner)| {
            outer.iter().any(|(other, outer)| step == other && holds(node.element(), outer, inner))
        }),
        _ => outer == inner,
    }
}

/// Removes an empty `spec`. Upstream's plain structs are always present, so that an empty one is as good as none.
fn without_empty_spec(mut object: Object) -> Object {
    object.retain(|name, value| name.as_str() != "spec" || !is_empty(value));
    object
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(
        before in proptest::collection::vec((configurations(), 0..3_u8), 0..4), last in configurations(),
    ) {
        let mut live = None;
        for (configuration, manager) in before {
            let apply = decoded(configuration, true);
            live = Some(apply.onto(live.as_ref(), writer(&format!("m{manager}"))).unwrap());
        }
        let apply = decoded(last, true);
        let once = apply.onto(live.as_ref(), writer("m0")).unwrap();
        let later = Writer { now: "2031-01-01T00:00:00Z", ..writer("m0") };
        prop_assert_eq!(apply.onto(Some(&once), later).unwrap(), once);
    }

    #[test]
    fn the_object_holds_what_was_applied_last_and_owns_every_field(
        applies in proptest::collection::vec((configurations(), 0..3_u8), 1..5),
    ) {
        let scope = Scope { resource: Resource::Service, subresource: "" };
        let mut live: Option<Object> = None;
        for (configuration, manager) in applies {
            let apply = decoded(configuration, true);
            let new = apply.onto(live.as_ref(), writer(&format!("m{manager}"))).unwrap();
            let mut wanted = apply.configuration.clone();
            shape::drop_absent(Resource::Service, &mut wanted);
            let (whole, wanted) = (Value::Object(new.clone()), Value::Object(wanted));
            prop_assert!(holds(Node::root(Resource::Service), &whole, &wanted), "{} {}", whole, wanted);
            let mut union = Fields::default();
            Managers::decode_stored(recorded(&new)).0.values().for_each(|owned| union.add(&owned.fields));
            let mut present = scope.named(&without_empty_spec(new.clone()));
            // Objects and lists that are only present are not owned.
            present.subtract(&union);
            prop_assert!(present.paths().is_empty(), "without an owner: {:?}", present.paths());
            live = Some(new);
        }
    }

    #[test]
    fn managers_of_disjoint_fields_never_conflict(
        applies in proptest::collection::vec((any::<bool>(), configurations()), 1..6),
    ) {
        let mut live = None;
        for (first, mut configuration) in applies {
            if first {
                configuration["metadata"] = json!({});
            } else {
                configuration["spec"] = json!({});
            }
            let manager = if first { "spec" } else { "metadata" };
            live = Some(applied(live.as_ref(), manager, configuration).unwrap());
        }
    }

    #[test]
    fn fields_are_removed_when_no_manager_applies_them(
        applies in proptest::collection::vec((configurations(), 0..3_u8), 1..5),
    ) {
        let mut live = None;
        for (configuration, manager) in applies {
            live = Some(decoded(configuration, true).onto(live.as_ref(), writer(&format!("m{manager}"))).unwrap());
        }
        let mut live = live.unwrap();
        for manager in 0..3 {
            live = forced(&live, &format!("m{manager}"), json!({}));
        }
        prop_assert_eq!(Value::Object(without_empty_spec(live)), Value::Object(configuration(json!({}))));
    }
}
