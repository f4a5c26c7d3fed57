use futures::FutureExt;
use portolan_schema::{json::json, patch::Apply};
use portolan_store::{Draft, History, Step, faulty::FaultyStore};

use super::*;

fn api(validate: bool) -> Api {
    Api::new(&ApiConfig { validate, service_ranges: "10.0.0.0/24".parse().unwrap(), ..ApiConfig::default() })
}

fn faulty_api() -> (Api, Arc<FaultyStore>) {
    let store = Arc::new(FaultyStore::new(History::default()));
    let config = ApiConfig { service_ranges: "10.0.0.0/24".parse().unwrap(), ..ApiConfig::default() };
    let api = Api::open(Arc::clone(&store) as Arc<dyn Store>, &config).now_or_never().unwrap().unwrap();
    (api, store)
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn decoded(outcome: &WriteResult) -> Value {
    serde_json::from_slice(&outcome.object).unwrap()
}

fn target(name: &str) -> Target<'_> {
    Target { resource: Resource::Service, namespace: "default", name }
}

#[test]
fn a_service_gets_an_address_and_gives_it_back() {
    let api = api(true);
    let ports = json!({"ports": [{"port": 80}]});
    let first = decoded(&api.blocking().apply(service("a", &ports)).unwrap());
    let address = first["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let number: u8 = address.strip_prefix("10.0.0.").unwrap().parse().unwrap();
    assert!((17..=254).contains(&number), "{address}");
    assert_eq!(first["spec"]["clusterIPs"], json!([address]));
    let taken = json!({"clusterIP": address, "ports": [{"port": 80}]});
    let refused = api.blocking().apply(service("b", &taken)).unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (422, "Invalid"));
    assert!(refused.to_string().contains("already allocated to Service default/a"), "{refused}");
    api.blocking().delete(target("a"), &Preconditions::default(), WriteOptions::default()).unwrap();
    assert_eq!(api.blocking().apply(service("b", &taken)).unwrap().effect, Effect::Created);
}

#[test]
fn a_create_of_an_existing_name_is_checked_and_takes_nothing() {
    let api = api(true);
    let create = |spec: &Value| {
        let object = service("a", spec).as_object().unwrap().clone();
        api.blocking().create(Resource::Service, "default", object, WriteOptions::default())
    };
    let open = json!({"type": "NodePort", "ports": [{"port": 80}]});
    create(&open).unwrap();
    let (revision, before) = (api.store().revision(), api.allocator_metrics());
    for spec in [
        open,
        json!({"clusterIP": "10.0.0.5", "ports": [{"port": 80}]}),
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_000}]}),
    ] {
        let refused = create(&spec).unwrap_err();
        assert_eq!((refused.code(), refused.reason()), (409, "AlreadyExists"), "{refused}");
    }
    let refused = create(&json!({"ports": [{"port": 0}]})).unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (422, "Invalid"), "{refused}");
    let after = api.allocator_metrics();
    assert_eq!(api.store().revision(), revision);
    assert_eq!((&after.addresses, after.ports), (&before.addresses, before.ports));
    assert_eq!(
        (after.addresses_allocated, after.ports_allocated),
        (before.addresses_allocated, before.ports_allocated)
    );
}

#[test]
fn failed_and_dry_writes_take_nothing() {
    let api = api(true);
    let explicit = json!({"clusterIP": "10.0.0.5", "ports": [{"port": 80}]});
    let object = service("a", &explicit).as_object().unwrap().clone();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let before = api.store().revision();
    let rendered =
        decoded(&api.blocking().create(Resource::Service, "default", object.clone(), dry).unwrap());
    assert_eq!(rendered["metadata"]["resourceVersion"], Value::Null, "it can be created as it is");
    assert_eq!(rendered["spec"]["clusterIP"], "10.0.0.5");
    assert_eq!(api.store().revision(), before);
    assert!(api.store().get(Resource::Service, "default/a").is_none());
    let bad = json!({"clusterIP": "10.0.0.5", "ports": [{"port": 0}]});
    api.blocking().apply(service("x", &bad)).unwrap_err();
    api.blocking().create(Resource::Service, "default", object, WriteOptions::default()).unwrap();
    let port = |port: u16| json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}});
    let patch = |patch: Value, options| {
        api.blocking().merge_patch(target("a"), Part::Main, patch.as_object().unwrap().clone(), options)
    };
    patch(port(30_000), dry).unwrap();
    let other = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_000}]});
    api.blocking().apply(service("b", &other)).unwrap();
    let refused = patch(port(30_000), WriteOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("spec.ports[0].nodePort"), "{refused}");
    patch(port(30_001), WriteOptions::default()).unwrap();
    patch(port(30_002), WriteOptions::default()).unwrap();
    let held = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_002}]});
    let refused = api.blocking().apply(service("c", &held)).unwrap_err();
    assert!(refused.to_string().contains("already allocated to Service default/a"), "{refused}");
    let freed = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_001}]});
    api.blocking().apply(service("c", &freed)).unwrap();
}

#[test]
fn a_write_that_another_server_has_overtaken_is_stored() {
    let (api, store) = faulty_api();
    let first = api.blocking().apply(service("a", &json!({"ports": [{"port": 80}]}))).unwrap();
    let former = store.get(Resource::Service, "default/a").unwrap();
    let port = |port: u16| json!({"spec": {"ports": [{"port": port}]}}).as_object().unwrap().clone();
    let patch = |body| api.blocking().merge_patch(target("a"), Part::Main, body, WriteOptions::default());
    let second = patch(port(81)).unwrap();
    // This server has not seen the second write. It would leave the object that it knows as it is.
    store.show_former(Resource::Service, former);
    let third = patch(port(80)).unwrap();
    assert!(first.revision < second.revision && second.revision < third.revision);
    assert_eq!((third.effect, &decoded(&third)["spec"]["ports"][0]["port"]), (Effect::Updated, &json!(80)));
}

#[test]
fn a_write_that_changes_nothing_is_answered_when_what_it_found_is_durable() {
    let (api, store) = faulty_api();
    api.blocking().apply(service("a", &json!({"ports": [{"port": 80}]}))).unwrap();
    let patch = json!({"spec": {"ports": [{"port": 81}]}}).as_object().unwrap().clone();
    let patch = || api.merge_patch(target("a"), Part::Main, patch.clone(), WriteOptions::default());
    store.hang();
    let mut first = Box::pin(patch());
    assert!((&mut first).now_or_never().is_none());
    let mut second = Box::pin(patch());
    assert!((&mut second).now_or_never().is_none());
}

#[test]
fn a_write_that_changes_nothing_ends_although_the_object_changes_all_the_time() {
    let (api, store) = faulty_api();
    let created = api.blocking().apply(service("a", &json!({"ports": [{"port": 80}]}))).unwrap();
    store.run_ahead(100);
    let patch = json!({"spec": {"ports": [{"port": 80}]}}).as_object().unwrap().clone();
    let patch = api.merge_patch(target("a"), Part::Main, patch, WriteOptions::default());
    let outcome = patch.now_or_never().unwrap().unwrap();
    assert_eq!((outcome.effect, outcome.revision), (Effect::Unchanged, created.revision + 1));
    assert_eq!(store.ahead(), 99, "one refresh is enough");
    assert!(
        matches!(&store.last_steps()[..], [Step::Require { expected, .. }] if *expected == Some(outcome.revision))
    );
}

#[test]
fn a_write_that_changes_nothing_is_not_stored() {
    let api = api(true);
    let object = service("a", &json!({"ports": [{"port": 80}], "selector": {"b": "1", "a": "2"}}));
    let created = api.blocking().apply(object.clone()).unwrap();
    let again = api.blocking().apply(object).unwrap();
    assert_eq!((again.effect, again.revision), (Effect::Unchanged, created.revision));
    let same = decoded(&created).as_object().unwrap().clone();
    let put = api.blocking().update(target("a"), Part::Main, same, WriteOptions::default()).unwrap();
    assert_eq!(
        (put.effect, put.revision, &put.object),
        (Effect::Unchanged, created.revision, &created.object)
    );
    assert_eq!(api.store().revision(), created.revision);
}

#[test]
fn apply_takes_status_along() {
    let api = api(true);
    let mut object = service("a", &json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}});
    let created = api.blocking().apply(object.clone()).unwrap();
    assert_eq!(created.effect, Effect::Created);
    let ingress = decoded(&created)["status"]["loadBalancer"]["ingress"].clone();
    assert_eq!(ingress, json!([{"ip": "192.0.2.9", "ipMode": "VIP"}]));
    object["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(
        api.blocking().apply(object).unwrap().effect,
        Effect::Unchanged,
        "a saved resourceVersion does not matter"
    );
}

#[test]
fn finalizers_delay_deletion_and_keep_the_address() {
    let api = api(true);
    let mut object = service("a", &json!({"clusterIP": "10.0.0.5", "ports": [{"port": 80}]}));
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.blocking().apply(object).unwrap();
    let delete =
        || api.blocking().delete(target("a"), &Preconditions::default(), WriteOptions::default()).unwrap();
    let marked = delete();
    assert_eq!(marked.effect, Effect::Updated);
    assert!(decoded(&marked)["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(delete().effect, Effect::Unchanged);
    let other = service("b", &json!({"clusterIP": "10.0.0.5", "ports": [{"port": 80}]}));
    assert_eq!(api.blocking().apply(other.clone()).unwrap_err().code(), 422);
    let patch = |finalizers: Value| {
        let patch = json!({"metadata": {"finalizers": finalizers}}).as_object().unwrap().clone();
        api.blocking().merge_patch(target("a"), Part::Main, patch, WriteOptions::default())
    };
    assert_eq!(patch(json!(["example.com/hold", "example.com/more"])).unwrap_err().code(), 422);
    assert_eq!(patch(json!(null)).unwrap().effect, Effect::Deleted);
    assert_eq!(api.blocking().apply(other).unwrap().effect, Effect::Created);
}

#[test]
fn without_validation_anything_well_formed_is_stored() {
    let api = api(false);
    for (name, spec) in [
        ("impossible", json!({"clusterIP": "300.1.2.3", "ports": [{"port": 70000}]})),
        ("shapes", json!({"clusterIP": 5, "clusterIPs": {}, "ports": "none", "type": ["x"]})),
        ("families", json!({"clusterIP": "10.0.0.9", "ipFamilies": ["IPv6"], "ports": [{"port": 1}]})),
        ("twin", json!({"clusterIP": "10.0.0.9", "ports": [{"port": 1}]})),
        ("spec", json!("text")),
    ] {
        let stored = decoded(&api.blocking().apply(service(name, &spec)).unwrap());
        for key in ["clusterIP", "ports"] {
            let kept = stored["spec"].get(key).and_then(|it| it.get(0)).and_then(|it| it.get("port"));
            let given = spec.get(key).and_then(|it| it.get(0)).and_then(|it| it.get("port"));
            assert_eq!(kept, given, "{name} {key}");
        }
    }
    assert_eq!(api.store().count(Resource::Service), 5);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
        "addressType": "IPv9", "ports": [{"port": 70000}, {"port": "x"}], "endpoints": 3});
    let stored = decoded(&api.blocking().apply(slice.clone()).unwrap());
    assert_eq!((&stored["ports"][1]["port"], &stored["endpoints"]), (&json!("x"), &json!(3)));
    for name in ["", "Bad Name", "a/b"] {
        let mut bad = slice.clone();
        bad["metadata"]["name"] = name.into();
        assert!(api.blocking().apply(bad).is_err(), "metadata is always checked: {name:?}");
    }
    api.blocking().delete(target("twin"), &Preconditions::default(), WriteOptions::default()).unwrap();
    let fresh = json!({"clusterIP": "10.0.0.9", "ports": [{"port": 1}]});
    api.blocking().apply(service("again", &fresh)).unwrap();
}

#[test]
fn generation_of_slices_counts_content_and_labels() {
    let api = api(true);
    let slice = |annotation: &str, label: &str, ready: bool| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "s", "annotations": {"a": annotation}, "labels": {"l": label}},
            "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": ready}}]})
    };
    let generation =
        |value: Value| decoded(&api.blocking().apply(value).unwrap())["metadata"]["generation"].clone();
    assert_eq!(generation(slice("1", "1", true)), 1);
    assert_eq!(generation(slice("2", "1", true)), 1);
    assert_eq!(generation(slice("2", "2", true)), 2);
    assert_eq!(generation(slice("2", "2", false)), 3);
}

#[test]
fn events_are_bounded() {
    let api = api(true);
    for number in 0..MAX_EVENTS + EVENTS_AT_ONCE {
        assert!(api.store().count(Resource::Event) < MAX_EVENTS + EVENTS_AT_ONCE);
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("e{number}")}});
        let event = event.as_object().unwrap().clone();
        api.blocking().create(Resource::CoreEvent, "default", event, WriteOptions::default()).unwrap();
    }
    assert_eq!(api.store().count(Resource::Event), MAX_EVENTS);
    assert!(api.store().get(Resource::Event, "default/e99").is_none());
    assert!(api.store().get(Resource::Event, "default/e100").is_some());
}

/// Stores an object as an earlier version might have, without any check.
fn store(api: &Api, resource: Resource, object: &Value) {
    let draft = Draft::new(resource, object.as_object().unwrap());
    let step = Step::Put { resource, draft, expected: None };
    let done = api.store().commit(Transaction { steps: vec![step] });
    done.now_or_never().unwrap().unwrap();
}

#[test]
fn the_status_can_be_written_when_the_ranges_have_changed() {
    let api = api(true);
    let dual = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"], "sessionAffinity": "None",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30_080}]}});
    store(&api, Resource::Service, &dual);
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    let write = |part, patch: &Value| {
        let patch = patch.as_object().unwrap().clone();
        api.blocking().merge_patch(target("a"), part, patch, WriteOptions::default())
    };
    let written = decoded(&write(Part::Status, &status).unwrap());
    assert_eq!(written["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    assert_eq!(written["spec"]["clusterIPs"], dual["spec"]["clusterIPs"]);
    let refused = write(Part::Main, &json!({"metadata": {"labels": {"a": "b"}}})).unwrap_err();
    assert!(refused.to_string().contains("spec.ipFamilyPolicy"), "{refused}");
    // One of before dual stack has no families.
    let old = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b", "namespace": "default", "uid": "v"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.6", "sessionAffinity": "None",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30_081}]}});
    store(&api, Resource::Service, &old);
    let patch = status.as_object().unwrap().clone();
    let written = api.blocking().merge_patch(target("b"), Part::Status, patch, WriteOptions::default());
    let written = decoded(&written.unwrap());
    assert_eq!(written["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    assert_eq!(written["spec"]["ipFamilies"], json!(["IPv4"]));
}

fn patched(api: &Api, resource: Resource, (namespace, name): (&str, &str), patch: &Value) -> WriteResult {
    let target = Target { resource, namespace, name };
    let patch = patch.as_object().unwrap().clone();
    api.blocking().merge_patch(target, Part::Main, patch, WriteOptions::default()).unwrap()
}

#[test]
fn an_allocated_address_can_be_labelled() {
    let api = api(true);
    api.blocking().apply(service("a", &json!({"clusterIP": "10.0.0.5", "ports": [{"port": 80}]}))).unwrap();
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let address = decoded(&patched(&api, Resource::IpAddress, ("", "10.0.0.5"), &labels));
    let parent = json!({"resource": "services", "namespace": "default", "name": "a"});
    assert_eq!((&address["spec"]["parentRef"], &address["metadata"]["labels"]["a"]), (&parent, &"b".into()));
    // An earlier version has stored the empty group.
    let old = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.6", "uid": "u"},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "b"}}});
    store(&api, Resource::IpAddress, &old);
    patched(&api, Resource::IpAddress, ("", "10.0.0.6"), &labels);
}

#[test]
fn stored_zero_values_do_not_freeze_objects() {
    let api = api(true);
    let meta = |name: &str| json!({"name": name, "namespace": "default", "uid": "u"});
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": meta("e"), "note": "", "deprecatedCount": 0,
        "eventTime": "2024-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
        "action": "a", "reason": "r", "type": "Normal", "regarding": {"namespace": "default"}});
    store(&api, Resource::Event, &event);
    let series = json!({"series": {"count": 2, "lastObservedTime": "2024-01-01T00:00:01.000000Z"}});
    let changed = decoded(&patched(&api, Resource::Event, ("default", "e"), &series));
    assert_eq!(changed["series"]["count"], 2);

    let mut metadata = meta("s");
    metadata["generation"] = 1.into();
    let port = json!({"name": "", "port": 80, "protocol": "TCP", "appProtocol": ""});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "deprecatedTopology": {}}], "ports": [port]});
    store(&api, Resource::EndpointSlice, &slice);
    let note = json!({"metadata": {"annotations": {"a": "b"}}});
    let changed = decoded(&patched(&api, Resource::EndpointSlice, ("default", "s"), &note));
    assert_eq!(
        (&changed["metadata"]["generation"], &changed["metadata"]["annotations"]["a"]),
        (&1.into(), &"b".into())
    );
}

#[test]
fn rules_that_became_stricter_do_not_freeze_services() {
    let api = api(true);
    let spec = json!({"type": "LoadBalancer", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ipFamilies": ["IPv4"],
        "loadBalancerClass": "", "trafficDistribution": "",
        "ports": [{"port": 10_250, "protocol": "TCP", "targetPort": 80, "nodePort": 30_005, "appProtocol": ""}]});
    let mut old = service("a", &spec);
    old["metadata"] = json!({"name": "a", "namespace": "default", "uid": "u", "finalizers": ["mine"]});
    assert_eq!(api.blocking().apply(old.clone()).unwrap_err().code(), 422);
    store(&api, Resource::Service, &old);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let changed = decoded(&patched(&api, Resource::Service, ("default", "a"), &labels));
    assert_eq!(
        (&changed["metadata"]["labels"]["a"], &changed["spec"]["ports"][0]["port"]),
        (&"b".into(), &10_250.into())
    );
}

/// Returns an EndpointSlice `web-1` of a manifest.
fn slice(endpoints: &Value) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1", "annotations": null},
        "addressType": "IPv4", "endpoints": endpoints})
}

/// Applies a slice again after health checks have written its conditions.
fn applied_after_checks(keeps_health_checks: bool, before: &Value, after: &Value) -> WriteResult {
    let api = Api::new(&ApiConfig { keeps_health_checks, ..ApiConfig::default() });
    api.blocking().apply(slice(before)).unwrap();
    let failed = json!({"ready": false, "serving": false});
    let written = json!({"metadata": {"annotations": {"portolan.dev/health-checked": "true"}},
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": failed}, {"addresses": ["10.1.0.2"], "conditions": failed},
            {"addresses": ["10.1.0.3"], "conditions": {"ready": false, "serving": false, "terminating": true}}]});
    let slices = Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" };
    let written = written.as_object().cloned().unwrap();
    api.blocking().merge_patch(slices, Part::Main, written, WriteOptions::default()).unwrap();
    api.blocking().apply(slice(after)).unwrap()
}

#[test]
fn an_applied_slice_keeps_the_results_of_health_checks() {
    let plain = json!([{"addresses": ["10.1.0.1"]}, {"addresses": ["10.1.0.2"]},
        {"addresses": ["10.1.0.3"], "conditions": {"terminating": true}}]);
    let outcome = applied_after_checks(true, &plain, &plain);
    assert_eq!(outcome.effect, Effect::Unchanged, "{:#}", decoded(&outcome));

    let other = json!([{"addresses": ["10.1.0.9"]}, {"addresses": ["10.1.0.2"], "conditions": {"ready": true}},
        {"addresses": ["10.1.0.1"], "conditions": null}]);
    let kept = decoded(&applied_after_checks(true, &plain, &other));
    assert_eq!(kept["metadata"]["annotations"], json!({"portolan.dev/health-checked": "true"}));
    let conditions = [0, 1, 2].map(|index| kept["endpoints"][index]["conditions"].clone());
    let failed = json!({"ready": false, "serving": false});
    assert_eq!(conditions, [Value::Null, json!({"ready": true}), failed], "by address, and as given");

    // A server without health checks: nothing would mend the results.
    let erased = decoded(&applied_after_checks(false, &plain, &plain));
    assert!(!erased.to_string().contains("health-checked"), "{erased:#}");
    assert_eq!(erased["endpoints"][0]["conditions"], Value::Null);
}

/// Applies a slice as `kubectl apply --server-side` does.
fn server_side_applied(api: &Api, slice: &Value) -> Result<WriteResult, ApiError> {
    let configuration = slice.as_object().cloned().unwrap();
    let apply = Apply::decode(Resource::EndpointSlice, configuration, false).unwrap();
    let target = Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" };
    let options = WriteOptions { field_manager: FieldManager::new("me").unwrap(), ..WriteOptions::default() };
    api.change(target, Part::Main, Change::Apply(apply), options).now_or_never().unwrap()
}

#[test]
fn a_repeated_server_side_apply_is_not_stored() {
    let mut wanted = slice(&json!([{"addresses": ["10.1.0.1"]}]));
    // The server fills in the protocol.
    wanted["ports"] = json!([{"port": 80}]);
    let mut old = decoded(&server_side_applied(&api(true), &wanted).unwrap());
    old["metadata"]["managedFields"][0]["time"] = "2020-01-01T00:00:00Z".into();
    let api = api(true);
    store(&api, Resource::EndpointSlice, &old);
    let again = server_side_applied(&api, &wanted).unwrap();
    assert_eq!(again.effect, Effect::Unchanged, "{:#}", decoded(&again));
    wanted["endpoints"] = json!([{"addresses": ["10.1.0.2"]}]);
    let changed = decoded(&server_side_applied(&api, &wanted).unwrap());
    assert_ne!(changed["metadata"]["managedFields"][0]["time"], "2020-01-01T00:00:00Z");
}

#[test]
fn a_server_side_apply_keeps_the_results_of_health_checks_of_the_same_service() {
    let of = |service: &str| {
        let mut slice = slice(&json!([{"addresses": ["10.1.0.1"]}]));
        slice["metadata"] = json!({"name": "web-1", "labels": {"kubernetes.io/service-name": service}});
        slice
    };
    for keeps_health_checks in [true, false] {
        let api = Api::new(&ApiConfig { keeps_health_checks, ..ApiConfig::default() });
        let owners = |outcome: &WriteResult| decoded(outcome)["metadata"]["managedFields"].clone();
        let before = owners(&server_side_applied(&api, &of("a")).unwrap());
        let results = json!({"metadata": {"annotations": {"portolan.dev/health-checked": "true"}},
            "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": false, "serving": false}}]});
        let results = results.as_object().cloned().unwrap();
        let target = Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" };
        let options = WriteOptions { keeps_owners: true, ..WriteOptions::default() };
        let written = api.blocking().merge_patch(target, Part::Main, results.clone(), options).unwrap();
        assert_eq!(owners(&written), before);
        let again = server_side_applied(&api, &of("a")).unwrap();
        assert_eq!(again.effect == Effect::Unchanged, keeps_health_checks, "{:#}", decoded(&again));
        let moved = decoded(&server_side_applied(&api, &of("b")).unwrap());
        assert_eq!(moved["endpoints"][0]["conditions"], Value::Null, "{moved:#}");
        // A client that writes the same becomes the owner.
        api.blocking().merge_patch(target, Part::Main, results, WriteOptions::default()).unwrap();
        assert_eq!(
            server_side_applied(&api, &of("b")).is_ok(),
            keeps_health_checks,
            "the same but for results"
        );
        let mut other = of("b");
        other["endpoints"] = json!([{"addresses": ["10.1.0.2"]}]);
        assert_eq!(server_side_applied(&api, &other).unwrap_err().code(), 409);
    }
}
