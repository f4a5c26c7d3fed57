//! Random worlds for tests: Services and EndpointSlices of every kind and in every state, as API JSON, and random
//! edits of them. Available with the feature `world`.
//!
//! Everything is derived from one seed, so a number identifies a failing world. The objects are valid for a lenient
//! API server. Some are useless to a proxy on purpose (headless, foreign, FQDN, wrong families).

#![expect(
    clippy::indexing_slicing,
    reason = "`value[key] = …` on JSON objects adds the key; all are made here"
)]

mod edited;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::catalog::PerFamily;
use crate::object::{
    DecodeError, Kind, ObjectKey, decode_endpoint_slice, decode_node, decode_service, decode_service_cidr,
};
use crate::{Event, Family};

pub use edited::Edited;

/// A small deterministic random number generator (`SplitMix64`, by Sebastiano Vigna). Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator whose numbers are determined by the seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to one less than the limit, or 0 if the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = limit.max(1) as u64;
        usize::try_from(self.bits() % limit).unwrap_or(0)
    }

    /// Returns true with this probability in percent.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns a random entry, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let index = self.below(from.len());
        from.get(index)
    }

    /// Returns up to `most` different entries in their order.
    pub fn some<'a, T>(&mut self, from: &'a [T], most: usize) -> Vec<&'a T> {
        let mut wanted = self.below(most.min(from.len()) + 1);
        let mut left = from.len();
        let mut chosen = Vec::new();
        for item in from {
            if self.below(left) < wanted {
                chosen.push(item);
                wanted -= 1;
            }
            left -= 1;
        }
        chosen
    }
}

/// A pod, at which an endpoint can be.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its addresses.
    pub addresses: PerFamily<Option<IpAddr>>,
    /// Its node, or `None` if slices do not name one.
    pub node: Option<String>,
}

/// The values from which worlds are built. Every list may be empty.
#[derive(Debug, Clone)]
pub struct Ranges {
    /// The namespace of all objects.
    pub namespace: String,
    /// Cluster IPs. The Service of an index always has the same ones.
    pub cluster_ips: PerFamily<Vec<IpAddr>>,
    /// External IPs, of both families.
    pub external_ips: Vec<IpAddr>,
    /// Load-balancer IPs, of both families.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Source ranges, of both families.
    pub source_ranges: Vec<IpNet>,
    /// Service ports.
    pub ports: Vec<u16>,
    /// Node ports.
    pub node_ports: Vec<u16>,
    /// Target ports.
    pub target_ports: Vec<u16>,
    /// Pods on this node and on others.
    pub pods: Vec<Pod>,
    /// Names of nodes for node hints.
    pub nodes: Vec<String>,
    /// Names of zones for zone hints.
    pub zones: Vec<String>,
}

/// The port names of all worlds, so that slices match Services.
const PORT_NAMES: [&str; 3] = ["", "a", "b"];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

impl Ranges {
    /// Returns ranges for a dual-stack world. They contain few values of each kind, so that conflicts are common.
    /// This node is `n1`, in zone `z1`.
    pub fn example() -> Self {
        let v4 = |net: u8, host: u8| IpAddr::from([10, net, 0, host]);
        let v6 = |net: u16, host: u16| IpAddr::from([0x2001, 0xdb8, net, 0, 0, 0, 0, host]);
        let pod = |n: u8| Pod {
            addresses: PerFamily { ipv4: Some(v4(244, n)), ipv6: Some(v6(0x244, n.into())) },
            node: (n % 5 != 4).then(|| format!("n{}", 1 + n % 3)),
        };
        Self {
            namespace: "default".to_owned(),
            cluster_ips: PerFamily {
                ipv4: (1..7).map(|n| v4(96, n)).collect(),
                ipv6: (1..7).map(|n| v6(0x96, n)).collect(),
            },
            external_ips: vec![v4(96, 2), v4(1, 1), v4(1, 2), v6(1, 1)],
            load_balancer_ips: vec![v4(1, 2), v4(2, 1), v6(2, 1)],
            source_ranges: ["10.244.0.0/24", "192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32", "2001:db8:1::/48"]
                .iter()
                .filter_map(|net| net.parse().ok())
                .collect(),
            ports: vec![53, 80, 443],
            node_ports: vec![30001, 30002, 30003],
            target_ports: vec![5353, 8080],
            pods: (1..12).map(pod).collect(),
            nodes: vec!["n1".to_owned(), "n2".to_owned(), "n3".to_owned()],
            zones: vec!["z1".to_owned(), "z2".to_owned()],
        }
    }
}

/// Creates the Service of an index in a random state. Its name is `svc-<index>`.
pub fn random_service(rng: &mut Rng, index: usize, ranges: &Ranges) -> Value {
    let kind = *rng.pick(&["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]).unwrap_or(&"ClusterIP");
    let families = families(rng);
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": ranges.namespace, "name": format!("svc-{index}"), "labels": {} },
        "spec": { "type": kind, "ports": ports(rng, index, kind, ranges) },
        "status": { "loadBalancer": {} },
    });
    let ips: Vec<&IpAddr> = families
        .iter()
        .filter_map(|family| {
            let pool = ranges.cluster_ips.get(*family);
            pool.get(index % pool.len().max(1))
        })
        .collect();
    let spec = &mut service["spec"];
    spec["clusterIP"] = json!(ips.first());
    spec["clusterIPs"] = json!(ips);
    spec["ipFamilies"] = families.iter().map(|family| json!(family.to_string())).collect();
    policies(rng, kind, spec);
    if rng.chance(25) {
        spec["externalIPs"] = json!(rng.some(&ranges.external_ips, 2));
    }
    if kind == "LoadBalancer" {
        if rng.chance(40) {
            let source_ranges = rng.some(&ranges.source_ranges, 3).into_iter();
            spec["loadBalancerSourceRanges"] = source_ranges.map(|range| json!(range.to_string())).collect();
            if rng.chance(10) {
                spec["loadBalancerSourceRanges"] = json!(["not a range"]);
            }
        }
        spec["healthCheckNodePort"] = json!(rng.chance(80).then_some(31000 + index));
        service["status"]["loadBalancer"]["ingress"] = ingress(rng, ranges);
    }
    disable(rng, &mut service);
    if rng.chance(60) {
        let time = format!("2026-01-31T12:00:{:02}Z", rng.below(3));
        service["metadata"]["creationTimestamp"] = json!(time);
    }
    service
}

fn families(rng: &mut Rng) -> Vec<Family> {
    match rng.below(5) {
        0 | 1 => vec![Family::Ipv4],
        2 => vec![Family::Ipv6],
        3 => vec![Family::Ipv4, Family::Ipv6],
        _ => vec![Family::Ipv6, Family::Ipv4],
    }
}

fn ports(rng: &mut Rng, index: usize, kind: &str, ranges: &Ranges) -> Value {
    let count = 1 + rng.below(2);
    let first = rng.below(PORT_NAMES.len());
    let port = |number: usize| {
        let name = (first + number) % PORT_NAMES.len();
        let mut port = json!({
            "name": PORT_NAMES.get(name),
            "protocol": protocol(index, name),
            "port": rng.pick(&ranges.ports),
        });
        if kind != "ClusterIP" && rng.chance(85) {
            port["nodePort"] = json!(rng.pick(&ranges.node_ports));
        }
        port
    };
    (0..count).map(port).collect()
}

/// Returns a protocol determined by Service and port name, so that the slices of a Service can match it.
fn protocol(index: usize, name: usize) -> &'static str {
    PROTOCOLS.get((index + name) % PROTOCOLS.len()).unwrap_or(&"TCP")
}

fn policies(rng: &mut Rng, kind: &str, spec: &mut Value) {
    let mut policy = |local| if rng.chance(local) { "Local" } else { "Cluster" };
    spec["internalTrafficPolicy"] = json!(policy(30));
    if kind != "ClusterIP" {
        spec["externalTrafficPolicy"] = json!(policy(50));
    }
    if rng.chance(25) {
        spec["sessionAffinity"] = json!("ClientIP");
        spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": 5 + rng.below(60) } });
    }
}

fn ingress(rng: &mut Rng, ranges: &Ranges) -> Value {
    let mut entries: Vec<Value> =
        rng.some(&ranges.load_balancer_ips, 2).into_iter().map(|ip| json!({ "ip": ip })).collect();
    for entry in &mut entries {
        match rng.below(5) {
            0 => entry["ipMode"] = json!("Proxy"),
            1 | 2 => entry["ipMode"] = json!("VIP"),
            _ => {}
        }
    }
    if rng.chance(10) {
        entries.push(json!({ "hostname": "lb.example.net" }));
    }
    entries.into()
}

/// Makes some Services ones that a proxy ignores.
fn disable(rng: &mut Rng, service: &mut Value) {
    match rng.below(40) {
        0 => service["spec"]["clusterIP"] = json!("None"),
        1 => service["spec"]["type"] = json!("ExternalName"),
        2 => service["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = json!("other"),
        _ => {}
    }
}

/// Creates up to three slices of the Service of an index in random states. Their names are `svc-<index>-<number>`.
pub fn random_slices(rng: &mut Rng, index: usize, ranges: &Ranges) -> Vec<Value> {
    (0..rng.below(4)).map(|number| random_slice(rng, index, number, ranges)).collect()
}

/// Creates a slice of the Service of an index.
pub fn random_slice(rng: &mut Rng, index: usize, number: usize, ranges: &Ranges) -> Value {
    let family = if rng.chance(50) { Family::Ipv4 } else { Family::Ipv6 };
    let mut ports = Vec::new();
    for (name, text) in PORT_NAMES.iter().enumerate() {
        if rng.chance(80) {
            let port = rng.pick(&ranges.target_ports);
            ports.push(json!({ "name": text, "protocol": protocol(index, name), "port": port }));
        }
    }
    let hints = (rng.chance(40), rng.chance(20));
    let pods = rng.some(&ranges.pods, 5);
    let endpoints: Vec<Value> =
        pods.into_iter().filter_map(|pod| endpoint(rng, pod, family, hints, ranges)).collect();
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": ranges.namespace,
            "name": format!("svc-{index}-{number}"),
            "labels": { "kubernetes.io/service-name": format!("svc-{index}") },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z" },
        },
        "addressType": family.to_string(),
        "ports": ports,
        "endpoints": endpoints,
    });
    match rng.below(40) {
        0 => slice["metadata"]["labels"]["service.kubernetes.io/headless"] = json!(""),
        1 => slice["addressType"] = json!("FQDN"),
        _ => {}
    }
    slice
}

fn endpoint(
    rng: &mut Rng,
    pod: &Pod,
    family: Family,
    (zones, nodes): (bool, bool),
    ranges: &Ranges,
) -> Option<Value> {
    let address = (*pod.addresses.get(family))?;
    let mut endpoint = json!({ "addresses": [address] });
    if let Some(node) = &pod.node {
        endpoint["nodeName"] = json!(node);
    }
    endpoint["conditions"] = match rng.below(10) {
        0 => json!({}),
        1 => json!({ "ready": false, "serving": false }),
        2 | 3 => json!({ "ready": false, "serving": true, "terminating": true }),
        4 => json!({ "ready": false, "serving": false, "terminating": true }),
        5 => json!({ "ready": true, "serving": true, "terminating": true }),
        _ => json!({ "ready": true, "serving": true, "terminating": false }),
    };
    let names =
        |names: Vec<&String>| names.into_iter().map(|name| json!({ "name": name })).collect::<Value>();
    if zones && rng.chance(90) {
        endpoint["hints"]["forZones"] = names(rng.some(&ranges.zones, 2));
    }
    if nodes && rng.chance(90) {
        endpoint["hints"]["forNodes"] = names(rng.some(&ranges.nodes, 2));
    }
    Some(endpoint)
}

/// A change of a world, as a watch reports it.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// The object was added or changed.
    Upsert(Kind, Value),
    /// The object was deleted.
    Delete(Kind, ObjectKey),
}

impl Edit {
    /// Converts the edit to an event for the Catalog.
    pub fn event(&self) -> Result<Event, DecodeError> {
        Ok(match self {
            Self::Upsert(kind, value) => {
                let bytes = value.to_string();
                let bytes = bytes.as_bytes();
                match kind {
                    Kind::Service => Event::Service(decode_service(bytes)?),
                    Kind::EndpointSlice => Event::EndpointSlice(decode_endpoint_slice(bytes)?),
                    Kind::Node => Event::Node(decode_node(bytes)?),
                    Kind::ServiceCidr => Event::ServiceCidr(decode_service_cidr(bytes)?),
                }
            }
            Self::Delete(kind, key) => match kind {
                Kind::Service => Event::ServiceDeleted(key.clone()),
                Kind::EndpointSlice => Event::EndpointSliceDeleted(key.clone()),
                Kind::Node => Event::NodeDeleted(key.clone()),
                Kind::ServiceCidr => Event::ServiceCidrDeleted(key.clone()),
            },
        })
    }
}

/// The objects of a world by key.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Services.
    pub services: BTreeMap<ObjectKey, Value>,
    /// EndpointSlices.
    pub slices: BTreeMap<ObjectKey, Value>,
    /// Limit of the number of Services.
    pub size: usize,
    version: u64,
}

impl World {
    /// Creates a world of this many Services and their slices.
    pub fn random(rng: &mut Rng, size: usize, ranges: &Ranges) -> Self {
        let mut world = Self { size, ..Self::default() };
        for index in 0..size {
            let service = random_service(rng, index, ranges);
            world.put(Kind::Service, service);
            for slice in random_slices(rng, index, ranges) {
                world.put(Kind::EndpointSlice, slice);
            }
        }
        world
    }

    /// Returns every object as an addition, Services first.
    pub fn edits(&self) -> Vec<Edit> {
        let services = self.services.values().map(|value| Edit::Upsert(Kind::Service, value.clone()));
        let slices = self.slices.values().map(|value| Edit::Upsert(Kind::EndpointSlice, value.clone()));
        services.chain(slices).collect()
    }

    /// Adds or replaces an object with the next resource version.
    pub fn put(&mut self, kind: Kind, mut value: Value) -> Edit {
        self.version += 1;
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = ObjectKey::new(text("namespace"), text("name"));
        self.objects(kind).insert(key, value.clone());
        Edit::Upsert(kind, value)
    }

    fn remove(&mut self, kind: Kind, key: &ObjectKey) -> Edit {
        self.objects(kind).remove(key);
        Edit::Delete(kind, key.clone())
    }

    fn objects(&mut self, kind: Kind) -> &mut BTreeMap<ObjectKey, Value> {
        if kind == Kind::Service { &mut self.services } else { &mut self.slices }
    }
}

/// Makes one change in a world: a Service or slice is added, changed, deleted or sent again.
pub fn random_edit(rng: &mut Rng, world: &mut World, ranges: &Ranges) -> Edit {
    let index = rng.below(world.size);
    let kind = if rng.chance(35) { Kind::Service } else { Kind::EndpointSlice };
    let keys: Vec<ObjectKey> = world.objects(kind).keys().cloned().collect();
    let known = rng.pick(&keys).cloned();
    match (rng.below(10), known) {
        (0 | 1, Some(key)) => world.remove(kind, &key),
        (2, Some(key)) => {
            let same = world.objects(kind).get(&key).cloned().unwrap_or_default();
            world.put(kind, same)
        }
        (3, Some(key)) if kind == Kind::EndpointSlice => {
            let mut slice = world.slices.get(&key).cloned().unwrap_or_default();
            slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(format!("svc-{index}"));
            world.put(kind, slice)
        }
        (4..=6, Some(key)) if kind == Kind::EndpointSlice => {
            let slice = world.slices.get(&key).cloned().unwrap_or_default();
            let slice = flip_endpoint(rng, slice);
            world.put(kind, slice)
        }
        _ if kind == Kind::Service => {
            let service = random_service(rng, index, ranges);
            world.put(kind, service)
        }
        _ => {
            let number = rng.below(3);
            let slice = random_slice(rng, index, number, ranges);
            world.put(kind, slice)
        }
    }
}

/// Makes the most common edit: an endpoint becomes ready, unready or terminating.
fn flip_endpoint(rng: &mut Rng, mut slice: Value) -> Value {
    let endpoints = slice["endpoints"].as_array_mut();
    if let Some(endpoints) = endpoints.filter(|list| !list.is_empty()) {
        let index = rng.below(endpoints.len());
        if let Some(endpoint) = endpoints.get_mut(index) {
            let (ready, terminating) = (rng.chance(50), rng.chance(30));
            endpoint["conditions"] = json!({ "ready": ready, "serving": true, "terminating": terminating });
        }
    }
    slice
}
