//! What must hold after each request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_api::Api;
use portolan_schema::{Resource, json::Value};
use portolan_store::Scope;

/// Label of the records of addresses (`k8s.io/api/networking/v1`, `LabelManagedBy`).
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Its value in records of load-balancer addresses.
const BALANCER: &str = "load-balancer.portolan.dev";

/// Namespace and name of a Service by the name of its record.
type Records = BTreeMap<String, String>;

/// Checks what a request has left. `sent` names the request.
///
/// A Service and the records of its addresses and node ports (IPAddress and the server's own NodePort) are written in one
/// transaction, so they agree after each request. In a cluster, a client may create and delete IPAddresses as in Kubernetes;
/// then they disagree until the server's audit repairs that. Clients of this target only read IPAddresses.
pub(super) fn check(api: &Api, sent: &str) {
    let (mut addresses, mut balanced) = (Records::new(), Records::new());
    let (mut numbers, mut ports) = (Records::new(), BTreeSet::new());
    for service in objects(api, Resource::Service) {
        let (spec, name) = (&service["spec"], key(&service["metadata"]));
        for address in list(&spec["clusterIPs"]).iter().map(text).filter(|address| address != "None") {
            add_address(&mut addresses, &address, &name, sent);
        }
        for address in load_balancer_addresses(api, &service) {
            add_address(&mut balanced, &address, &name, sent);
        }
        let node_ports =
            list(&spec["ports"]).iter().map(|port| (text(&port["protocol"]), port["nodePort"].as_u64()));
        let health_check = ("TCP".to_owned(), spec["healthCheckNodePort"].as_u64());
        for (protocol, number) in node_ports.chain([health_check]) {
            let Some(number) = number.filter(|number| *number > 0) else { continue };
            let place = (protocol, number);
            assert!(ports.insert(place.clone()), "{place:?} has two uses after {sent}: {service}");
            // Ports of one Service may share a number if their protocols differ, and those of two Services may not.
            let other = numbers.insert(number.to_string(), name.clone());
            let is_own = other.as_ref().is_none_or(|other| *other == name);
            assert!(is_own, "{number} has two Services after {sent}: {other:?}, {name}");
        }
    }
    assert_eq!(cluster_ip_records(api), addresses, "IPAddresses and cluster IPs after {sent}");
    assert_eq!(load_balancer_records(api), balanced, "IPAddresses and load-balancer addresses after {sent}");
    assert_eq!(node_port_records(api), numbers, "recorded and used node ports after {sent}");
}

/// Returns the records of load-balancer addresses.
pub(super) fn load_balancer_records(api: &Api) -> Records {
    records(api, Resource::IpAddress, |record| record["metadata"]["labels"][MANAGED_BY] == BALANCER)
}

fn cluster_ip_records(api: &Api) -> Records {
    records(api, Resource::IpAddress, |record| record["metadata"]["labels"][MANAGED_BY] != BALANCER)
}

fn node_port_records(api: &Api) -> Records {
    records(api, Resource::NodePort, |_| true)
}

fn records(api: &Api, resource: Resource, is_of_them: impl Fn(&Value) -> bool) -> Records {
    let records = objects(api, resource).into_iter().filter(is_of_them);
    records.map(|record| (text(&record["metadata"]["name"]), key(&record["spec"]["parentRef"]))).collect()
}

fn objects(api: &Api, resource: Resource) -> Vec<Value> {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).expect("the newest revision");
    snapshot.objects.iter().map(|object| object.decode().into()).collect()
}

/// Returns the addresses in the status of a Service that this server gives to Services.
fn load_balancer_addresses(api: &Api, service: &Value) -> Vec<String> {
    let spec = &service["spec"];
    let class = spec["loadBalancerClass"].as_str();
    if spec["type"] != "LoadBalancer" || class.is_some_and(|class| class != "portolan.dev/load-balancer") {
        return Vec::new();
    }
    let entries = list(&service["status"]["loadBalancer"]["ingress"]).iter();
    let is_in_range = |text: &String| {
        let address: Option<IpAddr> = text.parse().ok();
        address.is_some_and(|address| {
            api.load_balancer_ranges().iter().any(|range| range.net().contains(&address))
        })
    };
    entries.map(|entry| text(&entry["ip"])).filter(is_in_range).collect()
}

fn add_address(to: &mut Records, address: &str, name: &str, sent: &str) {
    // A record has the canonical form of its address as its name, and a Service the form that its client wrote.
    let address: IpAddr = address.parse().expect("an address");
    let other = to.insert(address.to_string(), name.to_owned());
    assert!(other.is_none(), "{address} has two Services after {sent}: {other:?}, {name}");
}

/// Returns the namespace and name in the metadata of a Service, or in a reference to one.
fn key(of: &Value) -> String {
    format!("{}/{}", text(&of["namespace"]), text(&of["name"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(|list| &**list).unwrap_or_default()
}
