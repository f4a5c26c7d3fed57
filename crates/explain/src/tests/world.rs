//! A small cluster: node n1 in zone z1, node n2, and Services in all states.

use portolan_model::catalog::PerFamily;
use portolan_model::object::{
    EndpointSlice, ObjectKey, decode_endpoint_slice, decode_node, decode_service, decode_service_cidr,
};
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Catalog, Event, Family, LocalDetector, NodePortAddresses, Settings};

use crate::facts::{Facts, FamilyView, NodeView, Pod};
use crate::question::{Question, Sender, Target};
use crate::report::Report;
use crate::resolve::Unanswerable;

const NODE: &str = r#"{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"z1"}},
    "spec":{"podCIDRs":["10.244.1.0/24"]},
    "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}"#;

const CIDR: &str = r#"{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.96.0.0/16"]}}"#;

const SERVICES: [&str; 11] = [
    r#"{"metadata":{"namespace":"shop","name":"web","creationTimestamp":"2026-01-01T00:00:00Z"},
        "spec":{"type":"LoadBalancer","clusterIP":"10.96.0.80","externalTrafficPolicy":"Local",
          "sessionAffinity":"ClientIP","loadBalancerSourceRanges":["198.51.100.0/24"],
          "ports":[{"name":"http","port":80,"nodePort":30080}]},
        "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.80"}]}}}"#,
    r#"{"metadata":{"namespace":"kube-system","name":"dns"},
        "spec":{"clusterIP":"10.96.0.10","ports":[{"name":"dns","protocol":"UDP","port":53},{"name":"dns-tcp","port":53}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"empty"},
        "spec":{"type":"NodePort","clusterIP":"10.96.0.81","ports":[{"port":80,"nodePort":30081}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"unready"},"spec":{"clusterIP":"10.96.0.82","ports":[{"port":80}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"remote"},
        "spec":{"clusterIP":"10.96.0.83","internalTrafficPolicy":"Local","ports":[{"port":80}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"zoned"},
        "spec":{"clusterIP":"10.96.0.84","externalIPs":["192.0.2.84"],"ports":[{"port":80}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"signals"},
        "spec":{"clusterIP":"10.96.0.85","ports":[{"protocol":"SCTP","port":3868}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"six"},
        "spec":{"clusterIP":"fd00:96::86","clusterIPs":["fd00:96::86"],"ipFamilies":["IPv6"],"ports":[{"port":80}]}}"#,
    r#"{"metadata":{"namespace":"shop","name":"taken","creationTimestamp":"2026-02-01T00:00:00Z"},
        "spec":{"clusterIP":"10.96.0.87","externalIPs":["192.0.2.84"],"ports":[{"port":80}]}}"#,
    r#"{"metadata":{"namespace":"a","name":"twin"},"spec":{"clusterIP":"10.96.0.88","ports":[{"port":80}]}}"#,
    r#"{"metadata":{"namespace":"b","name":"twin"},"spec":{"clusterIP":"10.96.0.89","ports":[{"port":80}]}}"#,
];

/// Name of the slice and its Service, ports and endpoints.
const SLICES: [(&str, &str, &str, &str); 7] = [
    (
        "shop",
        "web",
        r#"[{"name":"http","port":8080}]"#,
        r#"[{"addresses":["10.244.1.11"],"nodeName":"n1"},{"addresses":["10.244.2.12"],"nodeName":"n2"}]"#,
    ),
    (
        "kube-system",
        "dns",
        r#"[{"name":"dns","protocol":"UDP","port":5353},{"name":"dns-tcp","port":5353}]"#,
        r#"[{"addresses":["10.244.1.5"],"nodeName":"n1"},{"addresses":["10.244.2.6"],"nodeName":"n2","conditions":{"ready":false}}]"#,
    ),
    (
        "shop",
        "unready",
        r#"[{"name":"","port":8080}]"#,
        r#"[{"addresses":["10.244.1.13"],"nodeName":"n1","conditions":{"ready":false}},
            {"addresses":["10.244.1.14"],"nodeName":"n1","conditions":{"ready":false,"serving":false,"terminating":true}}]"#,
    ),
    ("shop", "remote", r#"[{"name":"","port":8080}]"#, r#"[{"addresses":["10.244.2.15"],"nodeName":"n2"}]"#),
    (
        "shop",
        "zoned",
        r#"[{"name":"","port":8080}]"#,
        r#"[{"addresses":["10.244.1.16"],"nodeName":"n1","hints":{"forZones":[{"name":"z1"}]}},
            {"addresses":["10.244.2.17"],"nodeName":"n2","hints":{"forZones":[{"name":"z2"}]}}]"#,
    ),
    (
        "shop",
        "signals",
        r#"[{"name":"","protocol":"SCTP","port":3868}]"#,
        r#"[{"addresses":["10.244.1.18"],"nodeName":"n1"}]"#,
    ),
    ("shop", "six", r#"[{"name":"","port":8080}]"#, r#"[{"addresses":["fd00:244::19"],"nodeName":"n1"}]"#),
];

/// The objects and the node.
pub(super) struct World {
    pub(super) node: NodeView,
    pub(super) catalog: Catalog,
    pub(super) pods: Vec<Pod>,
    pub(super) slices: Vec<(ObjectKey, EndpointSlice)>,
}

impl World {
    /// Creates the cluster in nftables mode.
    pub(super) fn new() -> Self {
        let mut catalog = Catalog::new("n1");
        let mut slices = Vec::new();
        catalog.apply(Event::Node(decode_node(NODE.as_bytes()).unwrap()));
        catalog.apply(Event::ServiceCidr(decode_service_cidr(CIDR.as_bytes()).unwrap()));
        for service in SERVICES {
            catalog.apply(Event::Service(decode_service(service.as_bytes()).unwrap()));
        }
        for (namespace, service, ports, endpoints) in SLICES {
            let family = if endpoints.contains("fd00") { "IPv6" } else { "IPv4" };
            let text = format!(
                r#"{{"metadata":{{"namespace":"{namespace}","name":"{service}-abc",
                    "labels":{{"kubernetes.io/service-name":"{service}"}}}},
                    "addressType":"{family}","ports":{ports},"endpoints":{endpoints}}}"#
            );
            let slice = decode_endpoint_slice(text.as_bytes()).unwrap();
            assert_eq!(slice.faults, []);
            slices.push((slice.key.clone(), slice.payload.clone()));
            catalog.apply(Event::EndpointSlice(slice));
        }
        let node = node(&catalog, "nftables", &ModeDifferences::default());
        Self { node, catalog, pods: pods(), slices }
    }

    /// Creates the cluster in another mode.
    pub(super) fn in_mode(name: &str, differences: &ModeDifferences) -> Self {
        let world = Self::new();
        Self { node: node(&world.catalog, name, differences), ..world }
    }

    /// Lets the relay of the userspace mode get packets of IPv4 by redirection to its usual ports.
    pub(super) fn redirecting() -> Self {
        let mut world = Self::in_mode("userspace", &ModeDifferences::redirect());
        if let Some(view) = &mut world.node.families.ipv4 {
            view.redirected_to = Some(10261..=10262);
            view.in_kube_proxys_chains = true;
        }
        world
    }

    /// Replaces the detection of pods in IPv4.
    pub(super) fn detecting(mut self, detector: LocalDetector) -> Self {
        if let Some(view) = &mut self.node.families.ipv4 {
            view.settings.local_detector = detector;
        }
        self
    }

    /// Adds endpoints on another node to a Service of the namespace shop with an SCTP port without name, so that it has this
    /// number of them.
    pub(super) fn endpoints(&mut self, service: &str, count: u8) {
        let endpoint = |index: u8| format!(r#"{{"addresses":["10.244.2.{index}"],"nodeName":"n2"}}"#);
        let endpoints: Vec<String> = (1..count).map(endpoint).collect();
        let text = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"{service}-many","labels":{{"kubernetes.io/service-name":"{service}"}}}},
                "addressType":"IPv4","ports":[{{"name":"","protocol":"SCTP","port":3868}}],"endpoints":[{}]}}"#,
            endpoints.join(",")
        );
        self.catalog.apply(Event::EndpointSlice(decode_endpoint_slice(text.as_bytes()).unwrap()));
    }

    /// Adds a Service of the namespace shop, or replaces the one with this name.
    pub(super) fn service(&mut self, name: &str, annotations: &str, spec: &str) {
        let text = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"{name}","annotations":{annotations}}},"spec":{spec}}}"#
        );
        let service = decode_service(text.as_bytes()).unwrap();
        assert_eq!(service.faults, []);
        self.catalog.apply(Event::Service(service));
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts { pods: &self.pods, slices: &self.slices, ..Facts::new(&self.node, &self.catalog) }
    }

    pub(super) fn try_answer(&self, from: &str, to: &str) -> Result<Report, Unanswerable> {
        crate::answer(&question(from, to), &self.facts())
    }

    pub(super) fn answer(&self, from: &str, to: &str) -> Report {
        self.try_answer(from, to).unwrap()
    }
}

pub(super) fn question(from: &str, to: &str) -> Question {
    Question::new(from.parse::<Sender>().unwrap(), to.parse::<Target>().unwrap())
}

fn node(catalog: &Catalog, mode: &str, differences: &ModeDifferences) -> NodeView {
    let view = |family: Family| {
        let pods = if family == Family::Ipv4 { "10.244.0.0/16" } else { "fd00:244::/64" };
        let settings = Settings {
            local_detector: LocalDetector::Cidr(pods.parse().unwrap()),
            node_port_addresses: NodePortAddresses::Addresses(vec!["192.0.2.1".parse().unwrap()]),
            node_ip: (family == Family::Ipv4).then(|| "192.0.2.1".parse().unwrap()),
            service_cidrs: catalog.service_cidrs(family),
            counters: false,
            ..Settings::plain(family)
        };
        Some(FamilyView {
            mode: mode.to_owned(),
            settings,
            differences: differences.clone(),
            in_kube_proxys_chains: mode == "iptables",
            redirected_to: None,
        })
    };
    NodeView {
        name: "n1".to_owned(),
        mode: mode.to_owned(),
        addresses: ["192.0.2.1", "192.0.2.100"].map(|address| address.parse().unwrap()).to_vec(),
        pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
        families: PerFamily { ipv4: view(Family::Ipv4), ipv6: view(Family::Ipv6) },
    }
}

fn pods() -> Vec<Pod> {
    let pod = |namespace: &str, name: &str, address: &str, node: &str| Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        node: Some(node.to_owned()),
    };
    vec![
        pod("shop", "client", "10.244.1.10", "n1"),
        pod("shop", "web-1", "10.244.1.11", "n1"),
        pod("shop", "web-2", "10.244.2.12", "n2"),
        pod("a", "twin", "10.244.1.20", "n1"),
        pod("b", "twin", "10.244.1.21", "n1"),
        pod("shop", "with.dots", "10.244.1.22", "n1"),
    ]
}
