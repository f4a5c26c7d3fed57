//! Short notation for objects.

use portolan_model::Family;
use portolan_model::object::Kind;
use portolan_model::world::Edit;
use portolan_testkit::{Addresses, Site};
use serde_json::{Value, json};

use crate::{NODE_NAME, REMOTE_NODE_NAME, TARGET_PORTS};

/// The port of every test Service, in TCP, UDP and SCTP.
pub(crate) const PORT: u16 = 80;
/// The node port, in each protocol.
pub(crate) const NODE_PORT: u16 = 30_080;
/// The cluster IPs, by family.
pub(crate) const CLUSTER_IPS: [&str; 2] = ["10.96.0.10", "fd00:10:96::a"];
/// The external IPs, by family.
pub(crate) const EXTERNAL_IPS: [&str; 2] = ["198.51.100.1", "2001:db8:51::1"];
/// The load-balancer IPs, by family.
pub(crate) const LOAD_BALANCER_IPS: [&str; 2] = ["198.51.100.2", "2001:db8:51::2"];

/// The Service `default/web`: dual stack, with one port in three protocols. Methods add further fields.
#[derive(Debug, Clone)]
pub struct Service(Value);

/// Returns a Service with cluster IPs and nothing else.
pub fn service() -> Service {
    let port =
        |protocol: &str| json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": PORT });
    Service(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "default", "name": "web", "labels": {} },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": CLUSTER_IPS[0],
            "clusterIPs": CLUSTER_IPS,
            "ipFamilies": ["IPv4", "IPv6"],
            "internalTrafficPolicy": "Cluster",
            "ports": [port("TCP"), port("UDP"), port("SCTP")],
        },
        "status": { "loadBalancer": {} },
    }))
}

impl Service {
    /// Adds external IPs, load-balancer IPs and node ports.
    #[must_use]
    pub fn external(self) -> Self {
        let ingress = LOAD_BALANCER_IPS.map(|ip| json!({ "ip": ip, "ipMode": "VIP" }));
        let mut service = self
            .with("/spec/type", json!("LoadBalancer"))
            .with("/spec/externalIPs", json!(EXTERNAL_IPS))
            .with("/spec/externalTrafficPolicy", json!("Cluster"))
            .with("/status/loadBalancer/ingress", json!(ingress));
        for port in service.0["spec"]["ports"].as_array_mut().unwrap() {
            port["nodePort"] = json!(NODE_PORT);
        }
        service
    }

    /// `internalTrafficPolicy: Local`.
    #[must_use]
    pub fn internal_local(self) -> Self {
        self.with("/spec/internalTrafficPolicy", json!("Local"))
    }

    /// Adds external IPs, load-balancer IPs and node ports, with `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn external_local(self) -> Self {
        self.external().with("/spec/externalTrafficPolicy", json!("Local"))
    }

    /// Adds session affinity by client IP, with this timeout in seconds.
    #[must_use]
    pub fn affinity(self, seconds: u32) -> Self {
        self.with("/spec/sessionAffinity", json!("ClientIP"))
            .with("/spec/sessionAffinityConfig", json!({ "clientIP": { "timeoutSeconds": seconds } }))
    }

    /// Adds external IPs, load-balancer IPs and node ports, with these source ranges for the load-balancer IPs.
    #[must_use]
    pub fn source_ranges(self, ranges: &[&str]) -> Self {
        self.external().with("/spec/loadBalancerSourceRanges", json!(ranges))
    }

    /// Sets any other field, by JSON pointer. Its parent must exist.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = self.0.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
        parent[field.replace("~1", "/")] = value;
        self
    }

    /// Returns the object as a change.
    pub fn edit(&self, version: u64) -> Edit {
        let version = json!(version.to_string());
        Edit::Upsert(Kind::Service, self.clone().with("/metadata/resourceVersion", version).0)
    }
}

/// One endpoint in short notation, such as `Rl1`, `Tr2`, `Rl1{a;n1}` or `Rl1?`.
///
/// Condition: `R` ready, `T` terminating but serving, `N` not ready, `D` terminating and not serving, `P` published
/// although terminating. Place: `l` on the node, `r` on the other node. Then the number of the pod, or 0 for
/// the node itself (`hostNetwork`). In braces its
/// hints: zones, then nodes after a semicolon. With `?` the endpoint has no node name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    condition: char,
    site: Site,
    number: u8,
    zones: Vec<String>,
    nodes: Vec<String>,
    states_node: bool,
}

impl Endpoint {
    /// Parses all endpoints of a text, separated by spaces.
    pub fn parse_all(text: &str) -> Vec<Self> {
        text.split_whitespace().map(Self::parse).collect()
    }

    fn parse(text: &str) -> Self {
        let (text, states_node) = text.strip_suffix('?').map_or((text, true), |text| (text, false));
        let (name, hints) = text.trim_end_matches('}').split_once('{').unwrap_or((text, ""));
        let (zones, nodes) = hints.split_once(';').unwrap_or((hints, ""));
        let list = |text: &str| text.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect();
        let mut letters = name.chars();
        let condition = letters.next().unwrap();
        let site = if letters.next() == Some('l') { Site::Local } else { Site::Remote };
        let number = letters.as_str().parse().unwrap();
        Self { condition, site, number, zones: list(zones), nodes: list(nodes), states_node }
    }

    fn object(&self, family: Family) -> Value {
        let (ready, serving, terminating) = match self.condition {
            'R' => (true, true, false),
            'T' => (false, true, true),
            'N' => (false, false, false),
            'D' => (false, false, true),
            'P' => (true, true, true),
            other => panic!("no such condition: {other}"),
        };
        let names = |names: &[String]| names.iter().map(|name| json!({ "name": name })).collect::<Value>();
        let mut endpoint = json!({
            "addresses": [place(self.site, self.number).of(family)],
            "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
            "hints": { "forZones": names(&self.zones), "forNodes": names(&self.nodes) },
        });
        if self.states_node {
            endpoint["nodeName"] = json!(if self.site == Site::Local { NODE_NAME } else { REMOTE_NODE_NAME });
        }
        endpoint
    }
}

/// Returns the addresses of the pod with this number, or those of the node for 0.
pub(crate) const fn place(site: Site, number: u8) -> Addresses {
    if number == 0 { site.node() } else { site.pod(number) }
}

/// Returns the slices of `default/web` with these endpoints, one of each family.
pub fn slices(endpoints: &[Endpoint], version: u64) -> Vec<Edit> {
    let port = |protocol: &str| json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": TARGET_PORTS[0] });
    let slice = |family: Family| {
        json!({
            "metadata": {
                "namespace": "default",
                "name": format!("web-{}", family.to_string().to_lowercase()),
                "resourceVersion": version.to_string(),
                "labels": { "kubernetes.io/service-name": "web" },
            },
            "addressType": family.to_string(),
            "ports": [port("TCP"), port("UDP"), port("SCTP")],
            "endpoints": endpoints.iter().map(|endpoint| endpoint.object(family)).collect::<Vec<_>>(),
        })
    };
    Family::BOTH.into_iter().map(|family| Edit::Upsert(Kind::EndpointSlice, slice(family))).collect()
}
