//! What only the API server knows: this Node, the ranges of addresses, and the Services with their endpoints.
//!
//! The caller reads the objects and passes them to [`Cluster::new`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::object::{EndpointSlice, Node, ObjectKey, Service};
use portolan_model::{ExternalPolicy, Family, InternalPolicy};

/// The cluster, from the view of one node.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Name of this node.
    pub node_name: String,
    /// This node's object; `None` if it does not exist.
    pub node: Option<Node>,
    /// The ranges of cluster IPs.
    pub service_cidrs: Vec<IpNet>,
    /// The Services with a cluster IP that no other proxy handles, by name.
    pub services: Vec<ServiceFacts>,
    /// True if the proxy starts only if this node has a pod CIDR (`detectLocalMode: NodeCIDR`).
    pub needs_pod_cidr: bool,
}

/// A Service and the number of its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFacts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Cluster IPs, external IPs and load-balancer IPs.
    pub addresses: Vec<IpAddr>,
    /// Node ports.
    pub node_ports: Vec<u16>,
    /// True if `internalTrafficPolicy` is Local.
    pub internal_local: bool,
    /// True if `externalTrafficPolicy` is Local and the Service can be reached from outside.
    pub external_local: bool,
    /// All endpoints.
    pub endpoints: usize,
    /// Endpoints that receive connections: the ready ones. If there are none, those that serve while they terminate.
    pub usable: usize,
    /// Of these, the ones on this node.
    pub usable_here: usize,
}

/// What requests to the API server showed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Api {
    /// URL of the API server.
    pub url: String,
    /// Why it cannot be reached; `None` if it answered.
    pub failure: Option<String>,
    /// Its version; `None` if it does not say.
    pub version: Option<String>,
    /// Resources that the proxy needs and that it does not have.
    pub lacks: Vec<String>,
    /// Requests that it does not permit.
    pub denied: Vec<Denied>,
    /// Writes to the own Node that the configuration asks for (`readiness`) and that it does not permit, each with what follows.
    pub denied_writes: Vec<String>,
    /// The time of the server minus the time of this node in seconds, from the header `Date` of an answer.
    pub clock_offset: Option<i64>,
}

/// A request that is not permitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The verb, such as `list`.
    pub verb: String,
    /// The resource, such as `endpointslices.discovery.k8s.io`.
    pub resource: String,
    /// The message of its answer, if the request was made. For a request that the proxy does not need, also what follows.
    pub answer: Option<String>,
    /// True if the proxy does not start or follow changes without it.
    pub needed: bool,
}

/// Endpoints of a Service, counted by state.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    all: usize,
    ready: usize,
    ready_here: usize,
    serving: usize,
    serving_here: usize,
}

impl Cluster {
    /// Counts the endpoints of each Service. Services that this proxy does not handle are left out.
    pub fn new(
        node_name: impl Into<String>,
        node: Option<Node>,
        service_cidrs: Vec<IpNet>,
        services: impl IntoIterator<Item = (ObjectKey, Service)>,
        slices: impl IntoIterator<Item = (ObjectKey, EndpointSlice)>,
    ) -> Self {
        let node_name = node_name.into();
        let mut counts: BTreeMap<ObjectKey, Count> = BTreeMap::new();
        for (key, slice) in slices {
            let Some(service) = slice.service.as_deref().filter(|_| !slice.headless) else { continue };
            counts.entry(ObjectKey::new(key.namespace, service)).or_default().add(&slice, &node_name);
        }
        let count = |key: &ObjectKey| counts.get(key).copied().unwrap_or_default();
        let mut services: Vec<ServiceFacts> = services
            .into_iter()
            .filter(|(_, service)| service.is_proxied())
            .map(|(key, service)| ServiceFacts::new(count(&key), key, &service))
            .collect();
        services.sort_by(|a, b| a.key.cmp(&b.key));
        Self { node_name, node, service_cidrs, services, needs_pod_cidr: false }
    }

    /// Returns the pod CIDRs of this node of a family.
    pub fn pod_cidrs(&self, family: Family) -> Vec<IpNet> {
        let cidrs = self.node.iter().flat_map(|node| node.pod_cidrs.iter().copied());
        cidrs.filter(|cidr| Family::of(cidr.addr()) == family).collect()
    }

    /// Returns the ranges of cluster IPs of a family.
    pub fn service_cidrs(&self, family: Family) -> Vec<IpNet> {
        let cidrs = self.service_cidrs.iter().copied();
        cidrs.filter(|cidr| Family::of(cidr.addr()) == family).collect()
    }
}

impl Count {
    fn add(&mut self, slice: &EndpointSlice, node_name: &str) {
        for endpoint in &slice.endpoints {
            let here = slice.node(endpoint) == Some(node_name);
            self.all += 1;
            if endpoint.ready {
                self.ready += 1;
                self.ready_here += usize::from(here);
            } else if endpoint.serving && endpoint.terminating {
                self.serving += 1;
                self.serving_here += usize::from(here);
            }
        }
    }

    fn usable(self) -> usize {
        if self.ready > 0 { self.ready } else { self.serving }
    }

    /// Among the endpoints of one node, too, those that terminate count if none is ready (KEP-1669).
    fn usable_here(self) -> usize {
        if self.ready_here > 0 { self.ready_here } else { self.serving_here }
    }
}

impl ServiceFacts {
    fn new(count: Count, key: ObjectKey, service: &Service) -> Self {
        let cluster_ips = Family::BOTH.into_iter().filter_map(|family| service.cluster_ip(family));
        let external = service.external_ips().iter().chain(service.load_balancer_ips()).copied();
        let addresses = cluster_ips.chain(external).collect();
        Self {
            key,
            addresses,
            node_ports: service.ports.iter().filter_map(|port| port.node_port).collect(),
            internal_local: service.internal_policy == InternalPolicy::Local,
            external_local: service.external_policy == ExternalPolicy::Local,
            endpoints: count.all,
            usable: count.usable(),
            usable_here: count.usable_here(),
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::object::{decode_endpoint_slice, decode_service};

    use super::*;

    fn service(spec: &str) -> (ObjectKey, Service) {
        let text = format!(r#"{{"metadata":{{"namespace":"shop","name":"web"}},"spec":{spec}}}"#);
        let object = decode_service(text.as_bytes()).expect("a Service");
        (object.key, object.payload)
    }

    fn slice(endpoints: &str) -> (ObjectKey, EndpointSlice) {
        let text = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"web-1","labels":{{"kubernetes.io/service-name":"web"}}}},
               "addressType":"IPv4","ports":[{{"port":8080}}],"endpoints":{endpoints}}}"#
        );
        let object = decode_endpoint_slice(text.as_bytes()).expect("an EndpointSlice");
        (object.key, object.payload)
    }

    fn facts(spec: &str, endpoints: &str) -> Vec<ServiceFacts> {
        Cluster::new("here", None, Vec::new(), [service(spec)], [slice(endpoints)]).services
    }

    const SPEC: &str = r#"{"type":"NodePort","clusterIP":"10.96.0.80","externalTrafficPolicy":"Local",
        "ports":[{"port":80,"nodePort":30080}]}"#;

    #[test]
    fn endpoints_are_counted_by_state_and_node() {
        let all = facts(
            SPEC,
            r#"[{"addresses":["10.0.0.1"],"nodeName":"here","conditions":{"ready":false}},
                {"addresses":["10.0.0.2"],"nodeName":"there"},
                {"addresses":["10.0.0.3"],"nodeName":"here","conditions":{"ready":false,"serving":true,"terminating":true}}]"#,
        );
        let [web] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((web.endpoints, web.usable, web.usable_here), (3, 1, 1));
        assert_eq!(web.node_ports, [30080]);
        assert_eq!(web.addresses, ["10.96.0.80".parse::<IpAddr>().expect("an address")]);
        assert!(web.external_local && !web.internal_local);
    }

    #[test]
    fn headless_services_are_left_out() {
        assert!(facts(r#"{"clusterIP":"None","ports":[{"port":80}]}"#, "[]").is_empty());
        let spec = r#"{"clusterIP":"10.96.0.80","ports":[{"port":80}]}"#;
        assert_eq!(facts(spec, "[]").first().map(|web| web.endpoints), Some(0));
    }
}
