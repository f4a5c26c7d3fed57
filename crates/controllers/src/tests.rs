use futures::executor::block_on;
use portolan_api::testing::{self, delete, get, list, service};
use portolan_api::{Api, ApiError, WriteResult};
use portolan_schema::{
    Resource,
    json::{Value, json},
};
use portolan_store::{Draft, Transaction};

use super::{repair::Repair, repair_once};

fn api() -> Api {
    testing::api("10.0.0.0/24")
}

fn apply(api: &Api, object: Value) -> Result<WriteResult, ApiError> {
    api.blocking().apply(object)
}

/// Writes an object without any checks, like imported data.
fn put(api: &Api, resource: Resource, object: &Value) {
    let draft = Draft::new(resource, object.as_object().unwrap());
    let expected = api.store().get(resource, draft.key()).map(|object| object.revision());
    api.blocking().commit(Transaction::put(resource, draft, expected)).unwrap();
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
    let metrics = repair.counters().read();
    assert_eq!(
        (metrics.passes, metrics.address_errors["repair"], metrics.address_errors["duplicate"]),
        (3, 2, 2)
    );
    let (_, after) = block_on(repair_once(&api)).unwrap();
    assert_eq!(after.findings().len(), 2);
}

#[test]
fn load_balancer_addresses_are_repaired() {
    let config = portolan_api::ApiConfig {
        load_balancer_ranges: "192.0.2.0/28".parse().unwrap(),
        ..Default::default()
    };
    let api = Api::new(&config);
    let mut balanced = service("a", "10.96.0.9");
    balanced["spec"]["type"] = "LoadBalancer".into();
    let created: Value = serde_json::from_slice(&apply(&api, balanced).unwrap().object).unwrap();
    let address = created["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().unwrap().to_owned();
    let mut repair = Repair::default();
    assert_eq!(problems(&api, &mut repair), Vec::<String>::new());
    let record = get(&api, Resource::IpAddress, &address).unwrap();
    let mut leak = record.clone();
    leak["metadata"]["name"] = "203.0.113.9".into();
    leak["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    leak["spec"]["parentRef"]["name"] = "nobody".into();
    put(&api, Resource::IpAddress, &leak);
    delete(&api, Resource::IpAddress, &address);
    assert!(api.lacks_address());
    let found = problems(&api, &mut repair);
    assert_eq!(found, ["a LoadBalancerIPNotAllocated", "203.0.113.9 IPAddressNotAllocated"]);
    assert_eq!(problems(&api, &mut repair), Vec::<String>::new());
    let again = get(&api, Resource::IpAddress, &address).unwrap();
    assert_eq!(again["spec"], record["spec"]);
    assert_eq!(again["metadata"]["labels"], record["metadata"]["labels"]);
    assert_eq!(get(&api, Resource::IpAddress, "203.0.113.9"), None);
    // Without the range, the Service keeps its address and is named.
    let api = block_on(Api::open(std::sync::Arc::clone(api.store()), &portolan_api::ApiConfig::default()));
    let found = problems(&api.unwrap(), &mut repair);
    assert_eq!(found, ["a LoadBalancerIPOutOfRange"]);
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
    let lines = |report: &portolan_api::audit::Report| {
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
    let (found, left) = block_on(repair_once(&api)).unwrap();
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
fn a_node_in_a_range_of_cluster_ips_gets_an_event() {
    let api = api();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "inside"},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]}});
    apply(&api, node).unwrap();
    let uid = get(&api, Resource::Node, "inside").unwrap()["metadata"]["uid"].clone();
    let mut repair = Repair::default();
    for count in [json!(null), json!(2)] {
        assert_eq!(problems(&api, &mut repair), ["inside NodeOverlapsServiceCIDR"]);
        let events = list(&api, Resource::Event);
        assert_eq!(events.len(), 1, "{events:?}");
        let regarding = json!({"apiVersion": "v1", "kind": "Node", "name": "inside", "uid": uid});
        assert_eq!((&events[0]["regarding"], &events[0]["series"]["count"]), (&regarding, &count));
        assert!(events[0]["note"].as_str().unwrap().contains("overlaps the range 10.0.0.0/24"));
    }
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
