//! The objects of a cluster of a given size, as its users and controllers write them: with labels, owner references and
//! managed fields, which a proxy does not use but has to read.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde_json::{Value, json};

/// Namespaces over which the Services are distributed.
const NAMESPACES: [&str; 8] =
    ["team-a", "team-b", "payments", "storefront", "search", "logistics", "identity", "reporting"];
/// Namespace of the Services that answer.
pub(crate) const OWN: &str = "bench";
/// Endpoints on each node: a common number of pods.
const PODS_PER_NODE: usize = 110;
/// Maximum endpoints of an EndpointSlice (the controller's default).
const SLICE_LIMIT: usize = 100;
/// The first cluster IP, inside of the default range 10.96.0.0/12.
const FIRST_CLUSTER_IP: u32 = u32::from_be_bytes([10, 96, 1, 0]);
/// The first endpoint.
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 128, 0, 0]);
/// The first address that changes assign to endpoints.
const FIRST_SPARE: u32 = u32::from_be_bytes([10, 192, 0, 0]);
/// Annotation with the managed fields of a real cluster. The API server replaces the managed fields of a new object with
/// its own record, and stores an annotation of the same size unchanged.
const MANAGED_FIELDS: &str = "portolan.example/managed-fields";
/// The name of the node that the proxy runs on.
pub(crate) const NODE: &str = "node-0000";

/// The number of Services and of endpoints of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Number of Services.
    pub(crate) services: usize,
    /// Number of endpoints of each Service.
    pub(crate) endpoints: usize,
}

impl Size {
    /// All sizes of the table.
    pub(crate) const ALL: [Self; 6] = [
        Self::new(100, 10),
        Self::new(1_000, 10),
        Self::new(10_000, 10),
        Self::new(30_000, 4),
        Self::new(50_000, 10),
        Self::new(5_000, 50),
    ];
    /// The sizes of a quick check that everything works.
    pub(crate) const QUICK: [Self; 2] = [Self::new(100, 10), Self::new(1_000, 10)];

    /// Creates a size.
    pub(crate) const fn new(services: usize, endpoints: usize) -> Self {
        Self { services, endpoints }
    }

    /// Returns the Services in order.
    #[expect(clippy::cast_possible_truncation, reason = "the numbers of objects of a benchmark")]
    pub(crate) fn services(self) -> impl Iterator<Item = Value> {
        (0..self.services).map(|number| {
            let address = Ipv4Addr::from_bits(FIRST_CLUSTER_IP.saturating_add(number as u32));
            service(namespace(number), &name(number), address)
        })
    }

    /// Returns their EndpointSlices.
    pub(crate) fn slices(self) -> impl Iterator<Item = Value> {
        (0..self.services)
            .flat_map(move |number| (0..self.slice_count()).map(move |part| self.slice(number, part, None)))
    }

    /// Returns the endpoint change number `round`. Each one changes another Service and replaces its first endpoint.
    #[expect(clippy::cast_possible_truncation, reason = "the numbers of objects of a benchmark")]
    pub(crate) fn change(self, round: usize) -> Value {
        // A step that is coprime to common sizes spreads the changes over all Services.
        let number = round.wrapping_mul(7_919).wrapping_rem(self.services.max(1));
        self.slice(number, 0, Some(FIRST_SPARE.saturating_add(round as u32)))
    }

    fn slice_count(self) -> usize {
        self.endpoints.div_ceil(SLICE_LIMIT)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the numbers of objects of a benchmark")]
    fn slice(self, number: usize, part: usize, first: Option<u32>) -> Value {
        let from = part.saturating_mul(SLICE_LIMIT);
        let to = from.saturating_add(SLICE_LIMIT).min(self.endpoints);
        let mut addresses: Vec<Ipv4Addr> = (from..to)
            .map(|index| number.saturating_mul(self.endpoints).saturating_add(index) as u32)
            .map(|pod| Ipv4Addr::from_bits(FIRST_ENDPOINT.saturating_add(pod)))
            .collect();
        if let (Some(slot), Some(first)) = (addresses.first_mut(), first) {
            *slot = Ipv4Addr::from_bits(first);
        }
        slice(namespace(number), &name(number), part, &addresses)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", thousands(self.services), self.endpoints)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('x').and_then(|(services, endpoints)| {
            Some(Self::new(services.trim().parse().ok()?, endpoints.trim().parse().ok()?))
        });
        // A larger size would exceed the address ranges of the Services and the endpoints.
        let fits = |size: &Self| {
            (1..=100_000).contains(&size.services)
                && (1..=1_000).contains(&size.endpoints)
                && size.services.saturating_mul(size.endpoints) <= 1_000_000
        };
        parsed.filter(fits).ok_or_else(|| {
            format!("{text:?} is no size: write Services x endpoints, such as 1000x10, at most 100000 Services and 1000000 endpoints")
        })
    }
}

/// Returns the namespaces of all objects that have one.
pub(crate) fn namespaces() -> Vec<&'static str> {
    NAMESPACES.into_iter().chain([OWN]).collect()
}

/// Returns a Service of about 2 kB, as an API server stores it after `kubectl apply`.
pub(crate) fn service(namespace: &str, name: &str, address: Ipv4Addr) -> Value {
    let applied = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"annotations\":{{}},\"labels\":{{\"app.kubernetes.io/component\":\"backend\",\"app.kubernetes.io/instance\":\"{name}\",\"app.kubernetes.io/managed-by\":\"Helm\",\"app.kubernetes.io/name\":\"{name}\"}},\"name\":\"{name}\",\"namespace\":\"{namespace}\"}},\"spec\":{{\"ports\":[{{\"name\":\"http\",\"port\":80,\"protocol\":\"TCP\",\"targetPort\":8080}}],\"selector\":{{\"app.kubernetes.io/name\":\"{name}\"}}}}}}\n"
    );
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": namespace, "creationTimestamp": "2025-03-11T09:14:27Z",
            "labels": {
                "app.kubernetes.io/component": "backend", "app.kubernetes.io/instance": name,
                "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/name": name,
            },
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": applied, MANAGED_FIELDS: service_fields().to_string(),
                "meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace,
                "prometheus.io/path": "/metrics", "prometheus.io/port": "9090", "prometheus.io/scrape": "true",
            },
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

/// Returns an EndpointSlice as the controller writes it.
pub(crate) fn slice(namespace: &str, service: &str, part: usize, addresses: &[Ipv4Addr]) -> Value {
    let endpoints: Vec<Value> =
        addresses.iter().map(|address| endpoint(namespace, service, *address)).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{service}-x{part:04}"), "generateName": format!("{service}-"), "namespace": namespace,
            "creationTimestamp": "2025-03-11T09:14:27Z", "generation": 4,
            "annotations": {
                "endpoints.kubernetes.io/last-change-trigger-time": "2025-03-11T09:15:02Z",
                MANAGED_FIELDS: slice_fields().to_string(),
            },
            "labels": {
                "app.kubernetes.io/component": "backend", "app.kubernetes.io/instance": service,
                "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": service,
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": service, "uid": uid(0),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// Returns the Node object of the node that the proxy runs on.
pub(crate) fn node(address: IpAddr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": zone(0)}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": NODE},
        ]},
    })
}

fn endpoint(namespace: &str, service: &str, address: Ipv4Addr) -> Value {
    let pod = address.to_bits().wrapping_sub(FIRST_ENDPOINT);
    let node = pod as usize / PODS_PER_NODE;
    json!({
        "addresses": [address],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{node:04}"), "zone": zone(node),
        "targetRef": {
            "kind": "Pod", "namespace": namespace, "uid": uid(pod),
            "name": format!("{service}-6f9c7d5b8d-{:05x}", pod & 0xf_ffff),
        },
    })
}

/// Returns the managed fields of a Service.
fn service_fields() -> Value {
    json!([{
        "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubectl-client-side-apply",
        "operation": "Update", "time": "2025-03-11T09:14:27Z",
        "fieldsV1": {
            "f:metadata": {
                "f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}},
                "f:labels": {
                    ".": {}, "f:app.kubernetes.io/component": {}, "f:app.kubernetes.io/instance": {},
                    "f:app.kubernetes.io/managed-by": {}, "f:app.kubernetes.io/name": {},
                },
            },
            "f:spec": {
                "f:internalTrafficPolicy": {}, "f:selector": {}, "f:sessionAffinity": {}, "f:type": {},
                "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {
                    ".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {},
                }},
            },
        },
    }])
}

/// Returns the managed fields of an EndpointSlice.
fn slice_fields() -> Value {
    json!([{
        "apiVersion": "discovery.k8s.io/v1", "fieldsType": "FieldsV1", "manager": "kube-controller-manager",
        "operation": "Update", "time": "2025-03-11T09:15:02Z",
        "fieldsV1": {
            "f:addressType": {}, "f:endpoints": {}, "f:ports": {},
            "f:metadata": {
                "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
                "f:generateName": {},
                "f:labels": {
                    ".": {}, "f:app.kubernetes.io/component": {}, "f:app.kubernetes.io/instance": {},
                    "f:app.kubernetes.io/managed-by": {}, "f:app.kubernetes.io/name": {},
                    "f:endpointslice.kubernetes.io/managed-by": {}, "f:kubernetes.io/service-name": {},
                },
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"00000000-6f1d-4c52-9a2e-000000000000\"}": {}},
            },
        },
    }])
}

fn name(number: usize) -> String {
    format!("backend-service-{number:05}")
}

fn namespace(number: usize) -> &'static str {
    NAMESPACES.get(number % NAMESPACES.len()).copied().unwrap_or("default")
}

fn zone(node: usize) -> String {
    format!("region-1{}", ["a", "b", "c"].get(node % 3).copied().unwrap_or("a"))
}

fn uid(number: u32) -> String {
    format!("{number:08x}-6f1d-4c52-9a2e-{number:012x}")
}

/// Formats a number with commas.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
