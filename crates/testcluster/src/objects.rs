//! API objects as JSON.

use portolan_testkit::{Family, Pod, World};
use serde_json::{Value, json};

use super::{BACKEND_PORT, NODE};

/// Returns the Node object of this node, in zone `a`.
pub fn node(world: &World) -> Value {
    let address = |family| json!({"type": "InternalIP", "address": world.node().address(family)});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"]},
        "status": {"addresses": [address(Family::Ipv4), address(Family::Ipv6)]},
    })
}

/// Returns a Service with port 80 of TCP and UDP at a cluster IP.
pub fn cluster_ip(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {
            "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": [if address.contains(':') { "IPv6" } else { "IPv4" }],
            "ports": [
                {"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": BACKEND_PORT},
                {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": BACKEND_PORT},
            ],
        },
    })
}

/// Returns the same Service with a node port, shared by TCP and UDP, and an address of a load balancer.
pub fn load_balancer(name: &str, address: &str, node_port: u16, ingress: &str) -> Value {
    let mut service = cluster_ip(name, address);
    service["spec"]["type"] = "LoadBalancer".into();
    for port in service["spec"]["ports"].as_array_mut().unwrap() {
        port["nodePort"] = node_port.into();
    }
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": ingress}]}});
    service
}

/// Adds an SCTP port to a Service, with the numbers of its TCP port.
pub fn with_sctp(mut service: Value) -> Value {
    let ports = service["spec"]["ports"].as_array_mut().unwrap();
    let mut port = ports[0].clone();
    (port["name"], port["protocol"]) = ("sctp".into(), "SCTP".into());
    ports.push(port);
    service
}

/// Returns an EndpointSlice of a Service with these pods, in the family of the Service's address.
pub fn slice(service: &str, pods: &[&Pod], ports: &[(String, Family)]) -> Value {
    let family = ports.first().map_or(Family::Ipv4, |(_, family)| *family);
    let ports: Vec<Value> = ports
        .iter()
        .map(|(name, _)| json!({"name": name, "port": BACKEND_PORT, "protocol": name.to_uppercase()}))
        .collect();
    let endpoint = |pod: &&Pod| {
        let here = pod.address(Family::Ipv4).to_string().starts_with("10.244.1.");
        json!({
            "addresses": [pod.address(family)], "conditions": {"ready": true},
            "nodeName": if here { NODE } else { "node2" },
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": match family { Family::Ipv4 => "IPv4", Family::Ipv6 => "IPv6" },
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": ports,
    })
}

/// Returns the name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Returns the ports of a Service by name, each with the family of the Service.
pub fn ports(service: &Value) -> Vec<(String, Family)> {
    let family = match service["spec"]["clusterIP"].as_str() {
        Some(address) if address.contains(':') => Family::Ipv6,
        _ => Family::Ipv4,
    };
    let ports = service["spec"]["ports"].as_array().unwrap().iter();
    ports.map(|port| (port["name"].as_str().unwrap().to_owned(), family)).collect()
}
