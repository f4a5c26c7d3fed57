use crate::json::{Value, json};
use futures::executor::block_on;

use super::{repair::Repair, service_cidr::sync};
use crate::{
    api::{Api, Outcome, Preconditions, Target, WriteOptions},
    config::Config,
    error::ApiError,
    resource::Resource,
    store::{Draft, Scope, Transaction},
};

fn api() -> Api {
    Api::new(&Config { service_ranges: "10.0.0.0/24".parse().unwrap(), ..Config::default() })
}

fn apply(api: &Api, object: Value) -> Result<Outcome, ApiError> {
    api.blocking().apply(object)
}

fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

fn cidr(name: &str, cidr: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
        "spec": {"cidrs": [cidr]}})
}

fn delete(api: &Api, resource: Resource, name: &str) {
    let namespace = if resource.info().namespaced { "default" } else { "" };
    let target = Target { resource, namespace, name };
    api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()).unwrap();
}

fn get(api: &Api, resource: Resource, key: &str) -> Option<Value> {
    api.store().get(resource, key).map(|object| object.decode().into())
}

fn list(api: &Api, resource: Resource) -> Vec<Value> {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.decode().into()).collect()
}

/// Writes an object without any checks, like imported data.
fn put(api: &Api, resource: Resource, object: &Value) {
    let draft = Draft::new(resource, object.as_object().unwrap());
    let expected = api.store().get(resource, draft.key()).map(|object| object.revision());
    api.blocking().commit(Transaction::put(resource, draft, expected)).unwrap();
}

fn ready(api: &Api, name: &str) -> Value {
    let cidr = get(api, Resource::ServiceCidr, name).unwrap();
    let condition = &cidr["status"]["conditions"][0];
    assert_eq!(condition["type"], "Ready");
    json!([condition["status"], condition["reason"]])
}

#[test]
fn a_service_cidr_goes_when_nothing_needs_it() {
    let api = api();
    apply(&api, cidr("more", "10.1.0.0/24")).unwrap();
    let stored = get(&api, Resource::ServiceCidr, "more").unwrap();
    assert_eq!(stored["metadata"]["finalizers"], json!(["networking.k8s.io/service-cidr-finalizer"]));
    block_on(sync(&api));
    assert_eq!(ready(&api, "more"), json!(["True", ""]));
    apply(&api, service("a", "10.1.0.7")).unwrap();
    delete(&api, Resource::ServiceCidr, "more");
    assert!(block_on(sync(&api)));
    assert_eq!(ready(&api, "more"), json!(["False", "Terminating"]));
    // A ServiceCIDR that is being deleted allocates no addresses.
    assert_eq!(apply(&api, service("b", "10.1.0.8")).unwrap_err().code(), 422);
    let before = api.store().revision();
    block_on(sync(&api));
    assert_eq!(api.store().revision(), before, "nothing new, nothing written");
    delete(&api, Resource::Service, "a");
    block_on(sync(&api));
    assert_eq!(get(&api, Resource::ServiceCidr, "more"), None);
}

#[test]
fn another_service_cidr_that_stays_frees_one_that_goes() {
    let api = api();
    apply(&api, cidr("narrow", "10.1.1.0/24")).unwrap();
    apply(&api, cidr("twin", "10.1.1.0/24")).unwrap();
    apply(&api, cidr("wide", "10.1.0.0/16")).unwrap();
    apply(&api, service("edge", "10.1.1.0")).unwrap();
    apply(&api, service("inside", "10.1.1.9")).unwrap();
    delete(&api, Resource::ServiceCidr, "wide");
    block_on(sync(&api));
    assert!(get(&api, Resource::ServiceCidr, "wide").is_some(), "the edge has no other");
    delete(&api, Resource::Service, "edge");
    block_on(sync(&api));
    assert_eq!(get(&api, Resource::ServiceCidr, "wide"), None);
    // Two ServiceCIDRs that are deleted together do not justify each other's removal.
    delete(&api, Resource::ServiceCidr, "narrow");
    delete(&api, Resource::ServiceCidr, "twin");
    block_on(sync(&api));
    assert!(get(&api, Resource::ServiceCidr, "narrow").is_some());
    assert!(get(&api, Resource::ServiceCidr, "twin").is_some());
}

#[test]
fn a_range_in_the_way_of_nodes_or_pods_is_refused_with_the_reason() {
    let config = Config { pod_ranges: vec!["10.200.0.0/16".parse().unwrap()], ..Config::default() };
    let api = Api::new(&config);
    apply(
        &api,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.201.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.7.1"}, {"type": "Hostname", "address": "n"}]}}),
    )
    .unwrap();
    for (range, part) in [
        ("10.200.3.0/24", "overlaps 10.200.0.0/16, which is a range of pods"),
        ("10.201.0.0/16", "overlaps 10.201.0.0/24, which is a range of pods"),
        ("192.168.0.0/16", "overlaps 192.168.7.1/32, which is a range of nodes"),
        ("127.0.0.0/24", "loopback"),
        ("169.254.1.0/24", "link-local"),
        ("fd00::/48", "too large"),
        ("10.0.0.1/24", "without host bits"),
    ] {
        let error = apply(&api, cidr("x", range)).unwrap_err();
        assert_eq!(error.code(), 422);
        let text = error.to_string();
        assert!(text.contains("spec.cidrs[0]: Invalid value") && text.contains(part), "{text}");
    }
    apply(&api, cidr("x", "10.202.0.0/16")).unwrap();
    assert!(apply(&api, cidr("x", "10.203.0.0/16")).unwrap_err().to_string().contains("may not change"));
}

#[test]
fn the_default_service_cidr_follows_the_configuration_only_to_a_second_family() {
    let first = api();
    let open = |ranges: &str| {
        let config = Config { service_ranges: ranges.parse().unwrap(), ..Config::default() };
        block_on(Api::open(std::sync::Arc::clone(first.store()), &config)).unwrap()
    };
    let cidrs = |api: &Api| get(api, Resource::ServiceCidr, "kubernetes").unwrap()["spec"]["cidrs"].clone();
    let dual = open("10.0.0.0/24,fd00::/112");
    assert_eq!(cidrs(&dual), json!(["10.0.0.0/24", "fd00::/112"]));
    assert_eq!(list(&dual, Resource::Event), Vec::<Value>::new());
    let other = open("10.9.0.0/24");
    assert_eq!(cidrs(&other), json!(["10.0.0.0/24", "fd00::/112"]));
    let events = list(&other, Resource::Event);
    assert_eq!(events[0]["reason"], "KubernetesDefaultServiceCIDRInconsistent");
    block_on(sync(&other));
    let events = list(&other, Resource::Event);
    assert_eq!((events.len(), &events[0]["series"]["count"]), (1, &json!(2)));
}

fn problems(api: &Api, repair: &mut Repair) -> Vec<String> {
    let report = block_on(repair.pass(api)).unwrap().report;
    let json = report.to_json();
    let findings = json["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["problem"].as_str().unwrap()))
        .collect()
}

#[test]
fn repair_fixes_what_it_may_and_reports_the_rest() {
    let api = api();
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        apply(&api, service(name, address)).unwrap();
    }
    let mut repair = Repair::default();
    assert_eq!(problems(&api, &mut repair), Vec::<String>::new());
    // A lost IPAddress, one with another parent, an orphan, a duplicate, one outside of all ranges.
    delete(&api, Resource::IpAddress, "10.0.0.1");
    assert!(api.lacks_address() && !api.lacks_address());
    let mut object = get(&api, Resource::IpAddress, "10.0.0.2").unwrap();
    object["spec"]["parentRef"]["name"] = "nobody".into();
    put(&api, Resource::IpAddress, &object);
    object["metadata"]["name"] = "10.0.0.99".into();
    object["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    put(&api, Resource::IpAddress, &object);
    let mut twin = get(&api, Resource::Service, "default/c").unwrap();
    twin["metadata"]["name"] = "twin".into();
    put(&api, Resource::Service, &twin);
    let mut outside = twin.clone();
    outside["metadata"]["name"] = "outside".into();
    outside["spec"]["clusterIP"] = "10.9.9.9".into();
    outside["spec"]["clusterIPs"] = json!(["10.9.9.9"]);
    put(&api, Resource::Service, &outside);
    let mut found = problems(&api, &mut repair);
    found.sort();
    assert_eq!(
        found,
        [
            "10.0.0.99 IPAddressNotAllocated",
            "a ClusterIPNotAllocated",
            "b ClusterIPNotAllocated",
            "outside ClusterIPOutOfRange",
            "twin ClusterIPAlreadyAllocated"
        ]
    );
    let mut reasons: Vec<String> = list(&api, Resource::Event)
        .iter()
        .map(|event| {
            format!("{} {}", event["regarding"]["name"].as_str().unwrap(), event["reason"].as_str().unwrap())
        })
        .collect();
    reasons.sort();
    assert_eq!(reasons, found);
    let mut left = problems(&api, &mut repair);
    left.sort();
    assert_eq!(left, ["outside ClusterIPOutOfRange", "twin ClusterIPAlreadyAllocated"]);
    let parent =
        |address| get(&api, Resource::IpAddress, address).unwrap()["spec"]["parentRef"]["name"].clone();
    assert_eq!((parent("10.0.0.1"), parent("10.0.0.2")), (json!("a"), json!("b")));
    assert_eq!(get(&api, Resource::IpAddress, "10.0.0.99"), None);
    let metrics = api.repair_metrics();
    assert_eq!(
        (metrics.passes, metrics.address_errors["repair"], metrics.address_errors["duplicate"]),
        (3, 2, 2)
    );
    let (_, after) = block_on(api.repair_once()).unwrap();
    assert_eq!(after.findings().len(), 2);
}

#[test]
fn each_kind_of_problem_is_found_and_repaired_or_only_reported() {
    let api = api();
    let old = "2020-01-01T00:00:00Z";
    let with = |name: &str, address: &str, port: u16| {
        json!({"metadata": {"name": name, "namespace": "default", "creationTimestamp": old},
            "spec": {"type": "NodePort", "clusterIP": address, "clusterIPs": [address],
                "ports": [{"port": 1, "nodePort": port}]}})
    };
    let address = |name: &str, manager: &str, resource: &str, owner: &str| {
        json!({"metadata": {"name": name, "creationTimestamp": old,
                "labels": {"ipaddress.kubernetes.io/managed-by": manager, "ipaddress.kubernetes.io/ip-family": "IPv4"}},
            "spec": {"parentRef": {"group": "", "resource": resource, "namespace": "default", "name": owner}}})
    };
    let ours = "ipallocator.k8s.io";
    for (name, cluster_ip, port) in [
        ("a-text", "10.0.0.256", 30001),
        ("b-family", "fd00::1", 30002),
        ("c-labels", "10.0.0.3", 30003),
        ("d-unrecorded", "10.0.0.4", 30004),
        ("e-port-twin", "10.0.0.5", 30004),
        ("f-port-outside", "10.0.0.6", 99),
        ("g-gateway", "10.0.0.7", 30007),
        ("h-of-a-pod", "10.0.0.8", 30008),
    ] {
        put(&api, Resource::Service, &with(name, cluster_ip, port));
        if name != "d-unrecorded" && port != 30004 && port != 99 {
            let port = json!({"metadata": {"name": port.to_string()}, "spec": {"parentRef":
                {"group": "", "resource": "services", "namespace": "default", "name": name}}});
            put(&api, Resource::NodePort, &port);
        }
    }
    for (name, manager, resource, owner) in [
        ("10.0.0.3", "nobody", "services", "c-labels"),
        ("10.0.0.4", ours, "services", "d-unrecorded"),
        ("10.0.0.5", ours, "services", "e-port-twin"),
        ("10.0.0.6", ours, "services", "f-port-outside"),
        ("10.0.0.7", "gateway", "gateways", "g"),
        ("10.0.0.8", ours, "pods", "p"),
        ("10.0.0.9", ours, "pods", "p"),
        ("10.0.0.10", ours, "services", "d-unrecorded"),
    ] {
        put(&api, Resource::IpAddress, &address(name, manager, resource, owner));
    }
    let lines = |report: &crate::audit::Report| {
        let text = report.to_string();
        let lines = text.lines().filter(|line| line.ends_with(']'));
        let mut lines: Vec<String> = lines
            .map(|line| {
                let (subject, rest) = line.split_once(": ").unwrap();
                format!("{subject} {}", rest.rsplit_once('[').unwrap().1.trim_end_matches(']'))
            })
            .collect();
        lines.sort();
        lines
    };
    let for_people = [
        "Service default/a-text ClusterIPNotValid",
        "Service default/b-family ClusterIPNotValid",
        "Service default/e-port-twin PortAlreadyAllocated",
        "Service default/f-port-outside PortOutOfRange",
        "Service default/g-gateway ClusterIPAlreadyAllocated",
    ];
    let mut all = [
        &for_people[..],
        &[
            "IPAddress 10.0.0.10 IPAddressWrongReference",
            "IPAddress 10.0.0.9 IPAddressNotAllocated",
            "Service default/c-labels IPAddressWrongLabels",
            "Service default/d-unrecorded PortNotAllocated",
            "Service default/h-of-a-pod ClusterIPNotAllocated",
        ],
    ]
    .concat();
    all.sort_unstable();
    let (found, left) = block_on(api.repair_once()).unwrap();
    assert_eq!(lines(&found), all);
    assert_eq!(lines(&left), for_people);
    let parent =
        |key: &str| get(&api, Resource::IpAddress, key).map(|it| it["spec"]["parentRef"]["name"].clone());
    assert_eq!(
        (parent("10.0.0.3"), parent("10.0.0.8")),
        (Some("c-labels".into()), Some("h-of-a-pod".into()))
    );
    assert_eq!((parent("10.0.0.7"), parent("10.0.0.9"), parent("10.0.0.10")), (Some("g".into()), None, None));
    assert!(get(&api, Resource::NodePort, "30004").is_some());
}

#[test]
fn a_leaked_node_port_goes_at_the_third_sighting() {
    let api = api();
    let port = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"parentRef": {"group": "", "resource": "services",
        "namespace": "default", "name": "gone"}}})
    };
    put(&api, Resource::NodePort, &port("30005"));
    let mut repair = Repair::default();
    for _ in 0..2 {
        assert_eq!(problems(&api, &mut repair), ["30005 PortLeaked"]);
        // A missing IPAddress causes such passes between the regular ones.
        (0..3).for_each(|_| assert!(block_on(repair.pass_between(&api)).is_some()));
        assert!(get(&api, Resource::NodePort, "30005").is_some());
    }
    assert_eq!(problems(&api, &mut repair), ["30005 PortLeaked"]);
    assert_eq!(get(&api, Resource::NodePort, "30005"), None);
    assert_eq!(problems(&api, &mut repair), Vec::<String>::new());
    // Leaked, used, leaked again: the count starts anew.
    put(&api, Resource::NodePort, &port("30006"));
    problems(&api, &mut repair);
    problems(&api, &mut repair);
    let user = json!({"metadata": {"name": "user", "namespace": "default"},
        "spec": {"type": "NodePort", "clusterIP": "None", "ports": [{"port": 1, "nodePort": 30006}]}});
    put(&api, Resource::Service, &user);
    assert_eq!(problems(&api, &mut repair), Vec::<String>::new());
    let stored = api.store().get(Resource::Service, "default/user").unwrap();
    let removal = Transaction::remove(Resource::Service, stored.key(), stored.revision());
    api.blocking().commit(removal).unwrap();
    problems(&api, &mut repair);
    assert!(get(&api, Resource::NodePort, "30006").is_some());
}

#[test]
fn the_servers_own_service_is_there_before_clients_are() {
    let config = Config {
        service_ranges: "10.0.0.0/24".parse().unwrap(),
        kubernetes_service: true,
        advertise_address: Some("192.0.2.7".parse().unwrap()),
        ..Config::default()
    };
    let server = crate::Server::start(config).unwrap();
    let port = server.local_addr().port();
    let target = Target { resource: Resource::Service, namespace: "default", name: "kubernetes" };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while server.store().get(Resource::Service, &target.key()).is_none() {
        assert!(std::time::Instant::now() < deadline, "never made");
        std::thread::yield_now();
    }
    let service = get(server.api(), Resource::Service, "default/kubernetes").unwrap();
    assert_eq!(
        (&service["spec"]["clusterIP"], &service["spec"]["ports"][0]["targetPort"]),
        (&json!("10.0.0.1"), &json!(port))
    );
    assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    let api = server.stop().unwrap();
    assert_eq!(list(&api, Resource::EndpointSlice), Vec::<Value>::new(), "the endpoint goes with the server");
    assert!(get(&api, Resource::Service, "default/kubernetes").is_some());
}
