use portolan_schema::json::json;

use super::*;

fn object(value: &portolan_schema::json::Value) -> Object {
    value.as_object().unwrap().clone()
}

fn service(name: &str, age: u64, spec: &portolan_schema::json::Value) -> Object {
    let created = format!("2026-01-01T00:00:{:02}Z", 59 - age);
    object(&json!({"metadata": {"namespace": "n", "name": name, "creationTimestamp": created}, "spec": spec}))
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new("30000-30010".parse().unwrap());
    cluster.add_service_cidr(&object(&json!({"spec": {"cidrs": ["10.0.0.0/24"]}})));
    cluster
}

fn lines(cluster: Cluster) -> Vec<String> {
    let report = cluster.report(SystemTime::now(), Vec::new());
    report.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn without_addresses_services_are_compared_with_each_other() {
    let mut cluster = cluster();
    let node_port =
        json!({"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [{"port": 1, "nodePort": 30001}]});
    // The order of a list does not matter: the older Service keeps the address.
    cluster.add_service(&service("younger", 1, &node_port));
    cluster.add_service(&service("elder", 9, &node_port));
    cluster.add_service(&service("out", 0, &json!({"clusterIP": "10.9.0.1", "ports": [{"port": 1}]})));
    assert_eq!(
        lines(cluster),
        [
            "Service n/younger: cluster IP 10.0.0.1 is already allocated to n/elder; recreate the Service [ClusterIPAlreadyAllocated]",
            "Service n/out: cluster IP 10.9.0.1 is in no configured range; recreate the Service [ClusterIPOutOfRange]",
            "Service n/younger: node port 30001 is already allocated to Service n/elder; recreate the Service [PortAlreadyAllocated]",
            "3 Services, 0 IPAddresses, 3 findings"
        ]
    );
}

#[test]
fn addresses_that_are_known_to_be_missing_are_missed() {
    let mut cluster = cluster();
    cluster.add_service(&service("a", 9, &json!({"clusterIP": "10.0.0.1", "ports": [{"port": 1}]})));
    cluster.knows_addresses();
    cluster.add_address(&object(&json!({"metadata": {"name": "no address"}})));
    let found = lines(cluster);
    assert_eq!(found[0], "Service n/a: cluster IP 10.0.0.1 is not allocated [ClusterIPNotAllocated]");
}

#[test]
fn a_node_inside_a_range_is_found() {
    let mut cluster = cluster();
    let node = |name: &str, address: &str, pods: &str| {
        object(&json!({"metadata": {"name": name}, "spec": {"podCIDRs": [pods, "nothing"]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]}}))
    };
    cluster.add_node(&node("fine", "192.0.2.1", "10.1.0.0/24"));
    cluster.add_node(&node("inside", "10.0.0.9", "10.0.0.128/25"));
    let problem =
        "overlaps the range 10.0.0.0/24 of cluster IPs; change one of them [NodeOverlapsServiceCIDR]";
    assert_eq!(
        lines(cluster),
        [
            format!("Node inside: 10.0.0.9/32, an address of the Node, {problem}"),
            format!("Node inside: 10.0.0.128/25, a range of pods of the Node, {problem}"),
            "0 Services, 0 IPAddresses, 2 findings".to_owned(),
        ]
    );
}

#[test]
fn two_audits_keep_only_common_findings() {
    let looks = |name: &str| {
        let mut cluster = cluster();
        for name in ["stays", name] {
            cluster.add_service(&service(name, 1, &json!({"clusterIP": "10.9.0.1", "ports": [{"port": 1}]})));
        }
        cluster.report(SystemTime::now(), vec!["a note".to_owned()])
    };
    let report = looks("came").also_in(&looks("went"));
    let json = report.to_json();
    assert_eq!(json["findings"][0]["name"], "stays");
    assert_eq!((json["findings"].as_array().unwrap().len(), &json["notes"]), (1, &json!(["a note"])));
    assert!(!report.is_clean());
}
