//! The objects of the demo: a Node, Services of several kinds, and their EndpointSlices.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_serve::json::{Value, json};
use portolan_testkit::{Addresses, Family, Pod, Protocol, Site};

/// Names of the node that the proxy runs on and of the other node.
pub(super) const NODE: &str = "node";
pub(super) const REMOTE_NODE: &str = "remote-node";
/// Ranges of cluster IPs.
pub(super) const SERVICE_CIDRS: &str = "10.96.0.0/16,fd00:10:96::/112";
/// Ranges of pod addresses.
pub(super) const CLUSTER_CIDRS: &str = "10.244.0.0/16,fd00:10:244::/48";

/// The special property of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    Ordinary,
    /// `sessionAffinity: ClientIP`
    Affinity,
    /// `externalTrafficPolicy: Local`
    ExternalLocal,
}

/// A dual-stack Service of type `LoadBalancer` with one port.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: &'static str,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) target_port: u16,
    /// The last two digits of its cluster IPs, load-balancer IPs and node port.
    number: u8,
    pub(super) nature: Nature,
}

/// The kind of address of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frontend {
    ClusterIp,
    NodePort,
    LoadBalancerIp,
}

pub(super) const WEB: Service = tcp("web", 80, Nature::Ordinary);
pub(super) const DNS: Service = Service {
    name: "dns",
    protocol: Protocol::Udp,
    port: 53,
    target_port: 5353,
    number: 53,
    nature: Nature::Ordinary,
};
pub(super) const CART: Service = tcp("cart", 81, Nature::Affinity);
pub(super) const AUDIT: Service = tcp("audit", 82, Nature::ExternalLocal);
/// The Service without endpoints.
pub(super) const EMPTY: Service = tcp("empty", 83, Nature::Ordinary);

const fn tcp(name: &'static str, number: u8, nature: Nature) -> Service {
    Service { name, protocol: Protocol::Tcp, port: 80, target_port: 8080, number, nature }
}

impl Service {
    /// Returns the address and port of a frontend. Node ports: at the node's own address.
    pub(super) const fn at(&self, frontend: Frontend, family: Family) -> SocketAddr {
        match frontend {
            Frontend::ClusterIp => SocketAddr::new(self.cluster_ips().of(family), self.port),
            Frontend::NodePort => SocketAddr::new(Site::Local.node().of(family), self.node_port()),
            Frontend::LoadBalancerIp => SocketAddr::new(self.load_balancer_ips().of(family), self.port),
        }
    }

    pub(super) fn object(&self) -> Value {
        let ingress = self.load_balancer_ips().both().map(|ip| json!({ "ip": ip, "ipMode": "VIP" }));
        let port = json!({
            "name": "main", "protocol": self.protocol.to_string(), "port": self.port,
            "targetPort": self.target_port, "nodePort": self.node_port(),
        });
        let affinity = if self.nature == Nature::Affinity { "ClientIP" } else { "None" };
        let policy = if self.nature == Nature::ExternalLocal { "Local" } else { "Cluster" };
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "namespace": "default", "name": self.name },
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": self.cluster_ips().ipv4,
                "clusterIPs": self.cluster_ips().both(),
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [port],
                "sessionAffinity": affinity,
                "externalTrafficPolicy": policy,
            },
            "status": { "loadBalancer": { "ingress": ingress } },
        })
    }

    /// Returns the EndpointSlice of one family, with these pods as ready endpoints.
    pub(super) fn slice(&self, family: Family, pods: &[&Pod]) -> Value {
        let endpoints = pods.iter().map(|pod| {
            let address = pod.address(family);
            let node = if is_remote(pod) { REMOTE_NODE } else { NODE };
            json!({ "addresses": [address], "conditions": { "ready": true }, "nodeName": node })
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": format!("{}-{}", self.name, family.to_string().to_lowercase()),
                "labels": { "kubernetes.io/service-name": self.name },
            },
            "addressType": family.to_string(),
            "ports": [{ "name": "main", "protocol": self.protocol.to_string(), "port": self.target_port }],
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }

    const fn node_port(&self) -> u16 {
        30_000 + self.number as u16
    }

    const fn cluster_ips(&self) -> Addresses {
        Addresses {
            ipv4: Ipv4Addr::new(10, 96, 0, self.number),
            ipv6: Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, self.hexadecimal()),
        }
    }

    const fn load_balancer_ips(&self) -> Addresses {
        Addresses {
            ipv4: Ipv4Addr::new(198, 51, 100, self.number),
            ipv6: Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, self.hexadecimal()),
        }
    }

    /// Returns the number whose hexadecimal digits are the decimal digits of `number`, for IPv6 addresses.
    const fn hexadecimal(&self) -> u16 {
        (self.number / 10 * 16 + self.number % 10) as u16
    }
}

/// Returns true if the pod is on the other node.
pub(super) fn is_remote(pod: &Pod) -> bool {
    let IpAddr::V4(address) = pod.address(Family::Ipv4) else { return false };
    let [_, _, site, _] = address.octets();
    let [_, _, remote, _] = Site::Remote.gateway().ipv4.octets();
    site == remote
}

/// Returns the Node object of the node.
pub(super) fn node() -> Value {
    let addresses = Site::Local.node().both();
    let addresses = addresses.map(|address| json!({ "type": "InternalIP", "address": address }));
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": NODE },
        "status": { "addresses": addresses },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontends_are_easy_to_read() {
        let places = [Frontend::ClusterIp, Frontend::NodePort, Frontend::LoadBalancerIp]
            .map(|frontend| Family::BOTH.map(|family| WEB.at(frontend, family).to_string()));
        let expected = [
            ["10.96.0.80:80", "[fd00:10:96::80]:80"],
            ["192.168.100.1:30080", "[fd00:192:168:100::1]:30080"],
            ["198.51.100.80:80", "[2001:db8:51::80]:80"],
        ];
        assert_eq!(places, expected);
    }
}
