//! Addresses of Services of type LoadBalancer.

use portolan_schema::json::Object;

use super::*;

const ANNOTATION: &str = "portolan.dev/load-balancer-ips";

fn config(ranges: &str) -> ApiConfig {
    ApiConfig {
        service_ranges: "10.0.0.0/24,fd00::/112".parse().unwrap(),
        load_balancer_ranges: ranges.parse().unwrap(),
        ..ApiConfig::default()
    }
}

fn balanced(ranges: &str) -> Api {
    Api::new(&config(ranges))
}

fn create_with(api: &Api, name: &str, spec: &Value, annotations: &Value) -> Result<Value, ApiError> {
    let mut spec = spec.clone();
    spec["type"] = "LoadBalancer".into();
    let mut object = service(name, &spec);
    object["metadata"]["annotations"] = annotations.clone();
    let object = object.as_object().unwrap().clone();
    let outcome = api.blocking().create(Resource::Service, "default", object, WriteOptions::default())?;
    Ok(serde_json::from_slice(&outcome.object).unwrap())
}

fn create_lb(api: &Api, name: &str, spec: &Value) -> Result<Value, ApiError> {
    create_with(api, name, spec, &json!({}))
}

fn merge(api: &Api, name: &str, part: Part, patch: &Value) -> Result<Value, ApiError> {
    let patch: Object = patch.as_object().unwrap().clone();
    let target = target(Resource::Service, name);
    let outcome = api.blocking().merge_patch(target, part, patch, WriteOptions::default())?;
    Ok(serde_json::from_slice(&outcome.object).unwrap())
}

fn ips(service: &Value) -> Vec<String> {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
    let ip = |entry: &Value| entry["ip"].as_str().unwrap_or("-").to_owned();
    ingress.into_iter().flatten().map(ip).collect()
}

fn read(api: &Api, name: &str) -> Value {
    stored(api, Resource::Service, &format!("default/{name}"))
}

fn is_recorded(api: &Api, address: &str) -> bool {
    api.store().get(Resource::IpAddress, address).is_some()
}

#[test]
fn a_service_gets_an_address_and_its_object_in_one_write() {
    let api = balanced("192.0.2.0/28");
    let created = create_lb(&api, "a", &json!({})).unwrap();
    let ingress = &created["status"]["loadBalancer"]["ingress"];
    let address = ingress[0]["ip"].as_str().unwrap().to_owned();
    assert_eq!(*ingress, json!([{"ip": address, "ipMode": "VIP"}]));
    assert!(address.starts_with("192.0.2."));
    let object = stored(&api, Resource::IpAddress, &address);
    assert_eq!(
        object["metadata"]["labels"],
        json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "load-balancer.portolan.dev"})
    );
    assert_eq!(
        object["spec"]["parentRef"],
        json!({"resource": "services", "namespace": "default", "name": "a"})
    );
    let managers = created["metadata"]["managedFields"].to_string();
    assert!(!managers.contains("f:status"), "no client owns what the server allocates: {managers}");
    delete(&api, Resource::Service, "a");
    assert_eq!(keys(&api, Resource::IpAddress), Vec::<String>::new());
}

#[test]
fn other_services_get_none() {
    let api = balanced("192.0.2.0/28");
    assert!(!create(&api, "plain", &json!({"type": "NodePort"})).unwrap().is_null());
    let other = create_lb(&api, "other", &json!({"loadBalancerClass": "example.com/cloud"})).unwrap();
    let ours = create_lb(&api, "ours", &json!({"loadBalancerClass": "portolan.dev/load-balancer"})).unwrap();
    assert_eq!((ips(&read(&api, "plain")), ips(&other), ips(&ours).len()), (vec![], vec![], 1));
    // Its own load balancer may write any address that is not allocated.
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}});
    assert_eq!(ips(&merge(&api, "other", Part::Status, &status).unwrap()), ["192.0.2.9"]);
    // Without a range, another program has to write the addresses.
    let api = Api::new(&ApiConfig::default());
    assert_eq!(ips(&create_lb(&api, "a", &json!({})).unwrap()), Vec::<String>::new());
    assert_eq!(ips(&merge(&api, "a", Part::Status, &status).unwrap()), ["192.0.2.9"]);
}

#[test]
fn each_family_gets_one() {
    let api = balanced("192.0.2.0/28,2001:db8::/124");
    let dual = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]});
    let created = create_lb(&api, "dual", &dual).unwrap();
    let [six, four]: [String; 2] = ips(&created).try_into().unwrap();
    assert!(six.starts_with("2001:db8::") && four.starts_with("192.0.2."), "{six} {four}");
    // The Service drops a family, and gets it back.
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"],
        "clusterIPs": [created["spec"]["clusterIP"]]}});
    assert_eq!(ips(&merge(&api, "dual", Part::Main, &single).unwrap()), [six.as_str()]);
    assert!(!is_recorded(&api, &four));
    let again = json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}});
    let again = ips(&merge(&api, "dual", Part::Main, &again).unwrap());
    assert_eq!((again.len(), &again[0]), (2, &six));
    assert_eq!(ips(&create_lb(&api, "single", &json!({})).unwrap()).len(), 1);
}

#[test]
fn a_request_is_met_or_refused() {
    let api = balanced("192.0.2.0/28,2001:db8::/124");
    let requests = |text: &str| json!({ ANNOTATION: text });
    let created = create_with(&api, "a", &json!({}), &requests("192.0.2.5")).unwrap();
    assert_eq!(ips(&created), ["192.0.2.5"]);
    let field = create_lb(&api, "field", &json!({"loadBalancerIP": "192.0.2.6"})).unwrap();
    assert_eq!(ips(&field), ["192.0.2.6"]);
    let dual = json!({"ipFamilyPolicy": "RequireDualStack", "loadBalancerIP": "192.0.2.5"});
    let both = create_with(&api, "both", &dual, &requests("2001:db8::9, 192.0.2.7")).unwrap();
    assert_eq!(ips(&both), ["192.0.2.7", "2001:db8::9"], "the annotation is preferred to the field");
    for (text, cause) in [
        ("192.0.2.5", "is already allocated to Service default/a"),
        ("192.0.2.15", "the ranges of --load-balancer-ip-range are 192.0.2.0/28,2001:db8::/124"),
        ("10.0.0.9", "the ranges of --load-balancer-ip-range are"),
        ("nonsense", "must be a valid IP address"),
        ("2001:db8::1", "spec.ipFamilies does not have this family"),
        ("192.0.2.8,192.0.2.9", "is the second IPv4 address"),
    ] {
        let error = create_with(&api, "x", &json!({}), &requests(text)).unwrap_err();
        let message = error.to_string();
        assert_eq!(error.code(), 422, "{message}");
        assert!(message.contains("metadata.annotations[portolan.dev/load-balancer-ips]: Invalid value"));
        assert!(message.contains(cause), "{message}");
    }
    let message = create_lb(&api, "x", &json!({"loadBalancerIP": "192.0.2.5"})).unwrap_err().to_string();
    assert!(message.contains("spec.loadBalancerIP: Invalid value: \"192.0.2.5\""), "{message}");
    // A changed request moves the Service; one that is refused changes nothing.
    let annotate = |text: &str| json!({"metadata": {"annotations": requests(text)}});
    assert_eq!(ips(&merge(&api, "a", Part::Main, &annotate("192.0.2.10")).unwrap()), ["192.0.2.10"]);
    assert!(!is_recorded(&api, "192.0.2.5"));
    assert_eq!(merge(&api, "a", Part::Main, &annotate("192.0.2.7")).unwrap_err().code(), 422);
    assert_eq!(ips(&read(&api, "a")), ["192.0.2.10"]);
    let removed = json!({"metadata": {"annotations": null}});
    assert_eq!(ips(&merge(&api, "a", Part::Main, &removed).unwrap()), ["192.0.2.10"]);
}

#[test]
fn addresses_of_nodes_are_not_given_away() {
    let api = balanced("192.0.2.0/30");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let outcome = api.blocking().apply(node).unwrap();
    let warning = outcome.warnings.join("");
    assert!(warning.contains("overlaps the range 192.0.2.0/30 of load-balancer addresses"), "{warning}");
    assert_eq!(ips(&create_lb(&api, "a", &json!({})).unwrap()), ["192.0.2.2"]);
    assert_eq!(ips(&create_lb(&api, "b", &json!({})).unwrap()), Vec::<String>::new());
    let error = create_lb(&api, "c", &json!({"loadBalancerIP": "192.0.2.1"})).unwrap_err().to_string();
    assert!(error.contains("is an address of a Node"), "{error}");
}

#[test]
fn a_status_takes_nothing_away() {
    let api = balanced("192.0.2.0/28");
    let first = ips(&create_lb(&api, "first", &json!({})).unwrap()).remove(0);
    let second = ips(&create_lb(&api, "second", &json!({})).unwrap()).remove(0);
    let write = |ingress: Value| {
        let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        ips(&merge(&api, "second", Part::Status, &status).unwrap())
    };
    assert_eq!(write(json!([{"ip": first}])), [second.as_str()], "the address of another Service");
    assert_eq!(write(json!([{"ip": "192.0.2.14"}])), [second.as_str()], "one that it does not have");
    for never in ["192.0.2.0", "192.0.2.15"] {
        assert_eq!(
            write(json!([{"ip": never}])),
            [second.as_str()],
            "{never} is in the range, and never allocated"
        );
    }
    assert_eq!(write(Value::Null), [second.as_str()], "its own stays");
    assert_eq!(
        write(json!([{"ip": "203.0.113.1"}, {"hostname": "lb.example"}])),
        [second.as_str(), "203.0.113.1", "-"],
        "entries of other programs stay"
    );
    assert_eq!(write(json!([{"ip": second, "ipMode": "Proxy"}])), [second.as_str()]);
    assert_eq!(read(&api, "second")["status"]["loadBalancer"]["ingress"][0]["ipMode"], "Proxy");
    assert_eq!(ips(&read(&api, "first")), [first]);
    let before = api.store().revision();
    merge(&api, "second", Part::Status, &json!({})).unwrap();
    assert_eq!(api.store().revision(), before, "an unchanged Service is not written");
}

#[test]
fn an_address_is_released_with_the_type_or_the_last_finalizer() {
    let api = balanced("192.0.2.0/30");
    create_lb(&api, "a", &json!({})).unwrap();
    let address = ips(&read(&api, "a")).remove(0);
    let plain = merge(&api, "a", Part::Main, &json!({"spec": {"type": "ClusterIP"}})).unwrap();
    assert_eq!((ips(&plain), is_recorded(&api, &address)), (vec![], false));
    let again = json!({"metadata": {"finalizers": ["example.com/hold"]}, "spec": {"type": "LoadBalancer"}});
    let address = ips(&merge(&api, "a", Part::Main, &again).unwrap()).remove(0);
    delete(&api, Resource::Service, "a");
    assert_eq!((ips(&read(&api, "a")), is_recorded(&api, &address)), (vec![address.clone()], true));
    merge(&api, "a", Part::Main, &json!({"metadata": {"finalizers": null}})).unwrap();
    assert!(!is_recorded(&api, &address));
    // One that is being deleted gets none.
    create_lb(&api, "b", &json!({})).unwrap();
    create_lb(&api, "c", &json!({})).unwrap();
    let late = create_lb(&api, "d", &json!({})).unwrap();
    assert_eq!(ips(&late), Vec::<String>::new(), "the range is full: the Service is stored without");
    merge(&api, "d", Part::Main, &json!({"metadata": {"finalizers": ["example.com/hold"]}})).unwrap();
    delete(&api, Resource::Service, "d");
    delete(&api, Resource::Service, "c");
    assert_eq!(ips(&merge(&api, "d", Part::Status, &json!({})).unwrap()), Vec::<String>::new());
}

#[test]
fn a_cluster_ip_and_a_load_balancer_address_are_never_the_same() {
    let api = balanced("192.0.2.0/28");
    let cidr = |cidr: &str| json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"}, "spec": {"cidrs": [cidr]}});
    let error = api.blocking().apply(cidr("192.0.2.0/24")).unwrap_err();
    assert_eq!(error.code(), 422);
    assert!(error.to_string().contains("which is a range of load-balancer addresses"), "{error}");
    // A server that does not know the range may have created it.
    let other = block_on(Api::open(std::sync::Arc::clone(api.store()), &config("198.51.100.0/28"))).unwrap();
    other.blocking().apply(cidr("192.0.2.0/24")).unwrap();
    let address = ips(&create_lb(&api, "a", &json!({"loadBalancerIP": "192.0.2.3"})).unwrap()).remove(0);
    let (code, message) = refusal(&api, "b", &json!({"clusterIP": address}));
    assert_eq!(code, 422);
    assert!(message.contains("already allocated to Service default/a"), "{message}");
    create(&api, "c", &json!({"clusterIP": "192.0.2.9"})).unwrap();
    let error = create_lb(&api, "d", &json!({"loadBalancerIP": "192.0.2.9"})).unwrap_err().to_string();
    assert!(error.contains("is already allocated to Service default/c"), "{error}");
    // The address does not keep the ServiceCIDR.
    delete(&api, Resource::Service, "c");
    delete(&api, Resource::ServiceCidr, "more");
    block_on(crate::service_cidr::sync(&api));
    assert_eq!(api.store().get(Resource::ServiceCidr, "more").map(|it| it.key().to_owned()), None);
}

#[test]
fn a_restart_keeps_addresses_whatever_the_range() {
    let before = balanced("192.0.2.0/30");
    create_lb(&before, "a", &json!({})).unwrap();
    create_lb(&before, "b", &json!({})).unwrap();
    let open = |ranges: Option<&str>| {
        let config = ranges.map_or_else(ApiConfig::default, config);
        let config = ApiConfig { service_ranges: "10.0.0.0/24,fd00::/112".parse().unwrap(), ..config };
        block_on(Api::open(std::sync::Arc::clone(before.store()), &config)).unwrap()
    };
    let (a, b) = (ips(&read(&before, "a")), ips(&read(&before, "b")));
    let same = open(Some("192.0.2.0/30"));
    assert_eq!(ips(&create_lb(&same, "c", &json!({})).unwrap()), Vec::<String>::new(), "both are taken");
    for ranges in [None, Some("198.51.100.0/28")] {
        let after = open(ranges);
        let label = json!({"metadata": {"labels": {"changed": ranges.map_or(0, str::len).to_string()}}});
        assert_eq!(ips(&merge(&after, "a", Part::Main, &label).unwrap()), a);
        let status = json!({"status": {"loadBalancer": {"ingress": null}}});
        assert_eq!(ips(&merge(&after, "b", Part::Status, &status).unwrap()), b);
    }
    let after = open(Some("198.51.100.0/28"));
    let taken = json!({"status": {"loadBalancer": {"ingress": [{"ip": a[0]}]}}});
    let new = ips(&create_lb(&after, "d", &json!({})).unwrap());
    assert!(new[0].starts_with("198.51.100."));
    assert_eq!(ips(&merge(&after, "d", Part::Status, &taken).unwrap()), new, "it is the address of a");
    delete(&after, Resource::Service, "a");
    assert!(!is_recorded(&after, &a[0]));
}

#[test]
fn addresses_from_before_the_range_are_adopted() {
    let before = Api::new(&ApiConfig {
        service_ranges: "10.0.0.0/24,fd00::/112".parse().unwrap(),
        ..ApiConfig::default()
    });
    for (name, ip) in [("a", "192.0.2.9"), ("twin", "192.0.2.9"), ("outside", "203.0.113.9")] {
        create_lb(&before, name, &json!({"loadBalancerIP": "203.0.113.200"})).unwrap();
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        merge(&before, name, Part::Status, &status).unwrap();
    }
    let after = block_on(Api::open(std::sync::Arc::clone(before.store()), &config("192.0.2.0/28"))).unwrap();
    // An unchanged request that the range cannot meet prevents no write.
    for name in ["a", "twin", "outside"] {
        merge(&after, name, Part::Status, &json!({})).unwrap();
    }
    assert_eq!(ips(&read(&after, "outside")), ["203.0.113.9"]);
    let free = json!({"spec": {"loadBalancerIP": null}});
    assert_eq!(ips(&merge(&after, "a", Part::Main, &free).unwrap()), ["192.0.2.9"]);
    let twin = ips(&merge(&after, "twin", Part::Main, &free).unwrap());
    assert!(twin.len() == 1 && twin[0] != "192.0.2.9", "{twin:?}");
}

#[test]
fn an_ip_address_that_was_deleted_by_hand_is_not_given_to_another_service() {
    let api = balanced("192.0.2.0/30");
    create_lb(&api, "a", &json!({})).unwrap();
    create_lb(&api, "b", &json!({})).unwrap();
    let address = ips(&read(&api, "a")).remove(0);
    delete(&api, Resource::IpAddress, &address);
    assert!(api.lacks_address());
    assert_eq!(ips(&create_lb(&api, "c", &json!({})).unwrap()), Vec::<String>::new());
    let error = create_lb(&api, "d", &json!({"loadBalancerIP": address})).unwrap_err().to_string();
    assert!(error.contains("is already allocated"), "{error}");
    // The next write of its Service records it again.
    assert_eq!(ips(&merge(&api, "a", Part::Status, &json!({})).unwrap()), [address.as_str()]);
    assert!(is_recorded(&api, &address));
}

#[test]
fn a_dry_run_allocates_nothing() {
    let api = balanced("192.0.2.0/30");
    let object = service("a", &json!({"type": "LoadBalancer"})).as_object().unwrap().clone();
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let outcome = api.blocking().create(Resource::Service, "default", object, options).unwrap();
    let seen: Value = serde_json::from_slice(&outcome.object).unwrap();
    assert_eq!((ips(&seen).len(), keys(&api, Resource::IpAddress)), (1, vec![]));
}
