//! What the API server says: whether it answers, its clock, this Node, ranges of addresses, and Services without usable
//! endpoints.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::facts::{Api, Cluster, Denied, Facts, Role, ServiceFacts};
use crate::finding::{Code, Finding, Severity};

/// Largest difference of clocks, in seconds, that is not reported.
const SKEW: u64 = 30;
/// Difference from which certificates and tokens that were just made are refused: Kubernetes dates certificates five minutes back.
const SKEW_OF_CERTIFICATES: u64 = 300;
/// The collection that the proxy watches and does not need.
const SERVICE_CIDRS: &str = "servicecidrs";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(api) = &facts.api {
        findings.extend(unreachable(api));
        findings.extend(lacking(api));
        findings.extend(denied(api, Code::ApiDenied, Severity::Error));
        findings.extend(denied(api, Code::ServiceCidrsDenied, Severity::Warning));
        findings.extend(denied(api, Code::EventsDenied, Severity::Warning));
        findings.extend(denied_writes(api));
        findings.extend(skewed(api));
        findings.extend(answered(api));
    }
    if let Some(cluster) = &facts.cluster {
        findings.extend(node(cluster));
        findings.extend(overlaps(facts, cluster));
        findings.extend(cluster.services.iter().filter_map(endpoints));
    }
    findings
}

/// Returns the URL of the API server for a path that begins with a slash.
fn base(api: &Api) -> &str {
    api.url.trim_end_matches('/')
}

fn unreachable(api: &Api) -> Option<Finding> {
    let failure = api.failure.as_ref()?;
    let title = format!("the API server {} cannot be reached: {failure}", api.url);
    let mend = format!("curl -k {}/readyz; check clientConnection.kubeconfig", base(api));
    Some(Finding::new(Code::ApiUnreachable, Severity::Error, title, mend))
}

fn lacking(api: &Api) -> Option<Finding> {
    if api.lacks.is_empty() {
        return None;
    }
    let title = format!("the API server {} has no {}", api.url, api.lacks.join(" and no "));
    let mend = format!(
        "curl -k {}/version; check clientConnection.kubeconfig, or upgrade this API server",
        base(api)
    );
    Some(Finding::new(Code::ApiLacks, Severity::Error, title, mend))
}

/// Returns a finding about the requests that have this code and are not permitted.
fn denied(api: &Api, code: Code, severity: Severity) -> Option<Finding> {
    let denied = api.denied.iter().filter(|denied| code_of(denied) == code);
    let refused: Vec<String> = denied.map(|denied| format!("{} {}", denied.verb, denied.resource)).collect();
    if refused.is_empty() {
        return None;
    }
    let title = format!("the API server does not permit: {}", refused.join(", "));
    let mend = match code {
        // It depends on the version of Kubernetes.
        Code::ServiceCidrsDenied => code.usual_mend(),
        _ => "kubectl apply -f deploy/kustomize/base/rbac.yaml",
    };
    Some(Finding::new(code, severity, title, mend))
}

/// Returns the code of the finding about a denied request.
pub fn code_of(denied: &Denied) -> Code {
    match denied {
        Denied { needed: true, .. } => Code::ApiDenied,
        Denied { resource, .. } if resource == SERVICE_CIDRS => Code::ServiceCidrsDenied,
        Denied { .. } => Code::EventsDenied,
    }
}

/// Returns a finding about the permissions that the configuration of the Node's readiness needs.
fn denied_writes(api: &Api) -> Option<Finding> {
    if api.denied_writes.is_empty() {
        return None;
    }
    let title = format!("the API server does not permit: {}", api.denied_writes.join("; "));
    let mend = Code::NodeWritesDenied.usual_mend();
    Some(Finding::new(Code::NodeWritesDenied, Severity::Warning, title, mend))
}

fn answered(api: &Api) -> Option<Finding> {
    let version = api.version.as_ref().filter(|_| api.failure.is_none())?;
    let title = format!("the API server {} answers; its version is {version}", api.url);
    Some(Finding::new(Code::ApiServer, Severity::Note, title, Code::ApiServer.usual_mend()))
}

fn skewed(api: &Api) -> Option<Finding> {
    let offset = api.clock_offset?;
    let seconds = offset.unsigned_abs();
    if seconds <= SKEW {
        return None;
    }
    let severity = if seconds < SKEW_OF_CERTIFICATES { Severity::Warning } else { Severity::Error };
    let direction = if offset > 0 { "behind" } else { "ahead of" };
    let title = format!("the clock of this node is {seconds} s {direction} the API server's");
    Some(Finding::new(Code::ClockSkewed, severity, title, "timedatectl set-ntp true"))
}

fn node(cluster: &Cluster) -> Option<Finding> {
    let name = &cluster.node_name;
    let Some(node) = &cluster.node else {
        let title = format!("there is no Node {name}");
        let mend = "kubectl get nodes; pass the right one: portolan-proxy --hostname-override=NAME";
        return Some(Finding::new(Code::NodeMissing, Severity::Error, title, mend));
    };
    if !node.pod_cidrs.is_empty() {
        return None;
    }
    let (severity, need) = if cluster.needs_pod_cidr {
        (Severity::Error, ", and detectLocalMode is NodeCIDR")
    } else {
        (Severity::Note, "")
    };
    let title = format!("the Node {name} has no spec.podCIDRs{need}");
    let mend = "start kube-controller-manager with --allocate-node-cidrs and --cluster-cidr";
    Some(Finding::new(Code::NoPodCidr, severity, title, mend))
}

/// Compares the ranges of Services, of this node's pods and of the node's networks with each other. Addresses of pods are
/// also addresses of the interfaces of pods.
fn overlaps(facts: &Facts, cluster: &Cluster) -> Vec<Finding> {
    let services = cluster.service_cidrs.iter().map(|cidr| ("the Service range", *cidr));
    let pods = cluster.node.iter().flat_map(|node| &node.pod_cidrs).map(|cidr| ("the pod range", *cidr));
    let outside = facts.links.iter().filter(|link| link.role(&facts.links) == Role::Uplink);
    let networks = outside.flat_map(|link| &link.addresses).filter(|network| !is_link_local(network.addr()));
    let networks = networks.map(|network| ("the node's network", network.trunc()));
    let ranges: Vec<(&str, IpNet)> = services.chain(pods).chain(networks).collect();
    let mut findings = Vec::new();
    for (at, (what, range)) in ranges.iter().enumerate() {
        for (other_what, other) in ranges.iter().skip(at.saturating_add(1)) {
            // Two Service ranges may overlap: a cluster IP is allocated once. One node may have several networks.
            if what == other_what || !(range.contains(other) || other.contains(range)) {
                continue;
            }
            let title = format!("{what} {range} and {other_what} {other} overlap");
            let mend = "move Services: create a ServiceCIDR with another range, then delete this one";
            findings.push(Finding::new(Code::OverlappingRanges, Severity::Error, title, mend));
        }
    }
    findings
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn endpoints(service: &ServiceFacts) -> Option<Finding> {
    let key = &service.key;
    if service.endpoints > 0 && service.usable == 0 {
        let title = format!("all {} endpoints of the Service {key} are unready", service.endpoints);
        let mend = format!(
            "kubectl -n {} get endpointslices -l kubernetes.io/service-name={} -o yaml",
            key.namespace, key.name
        );
        return Some(Finding::new(Code::EndpointsUnready, Severity::Warning, title, mend));
    }
    let (policy, severity) = match (service.internal_local, service.external_local) {
        (true, _) => ("internalTrafficPolicy", Severity::Warning),
        // Load balancers leave out nodes without an endpoint, by their health checks.
        (false, true) => ("externalTrafficPolicy", Severity::Note),
        (false, false) => return None,
    };
    if service.usable == 0 || service.usable_here > 0 {
        return None;
    }
    let title = format!("the Service {key} has {policy} Local and no endpoint on this node");
    let mend = format!(
        "kubectl -n {} patch service {} -p '{{\"spec\":{{\"{policy}\":\"Cluster\"}}}}'",
        key.namespace, key.name
    );
    Some(Finding::new(Code::NoLocalEndpoint, severity, title, mend))
}

#[cfg(test)]
mod tests {
    use portolan_model::object::{Node, ObjectKey};

    use super::*;
    use crate::checks::testing::codes;
    use crate::facts::Link;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    fn api(api: Api) -> Vec<Finding> {
        findings(&Facts { api: Some(api), ..Facts::default() })
    }

    fn cluster(pod_cidrs: &[&str], service_cidrs: &[&str], services: Vec<ServiceFacts>) -> Facts {
        let nets = |texts: &[&str]| texts.iter().map(|text| net(text)).collect::<Vec<_>>();
        let node = Some(Node { pod_cidrs: nets(pod_cidrs), ..Node::default() });
        let node_name = "node-1".to_owned();
        let service_cidrs = nets(service_cidrs);
        let cluster = Cluster { node_name, node, service_cidrs, services, needs_pod_cidr: false };
        Facts { cluster: Some(cluster), ..Facts::default() }
    }

    fn service(endpoints: usize, usable: usize, usable_here: usize) -> ServiceFacts {
        ServiceFacts {
            key: ObjectKey::new("shop", "web"),
            addresses: Vec::new(),
            node_ports: Vec::new(),
            internal_local: false,
            external_local: false,
            endpoints,
            usable,
            usable_here,
        }
    }

    #[test]
    fn an_api_server_that_does_not_answer_or_permit() {
        let url = "https://10.0.0.1:6443".to_owned();
        let failure = Some("connection refused".to_owned());
        let found = api(Api { url: url.clone(), failure, ..Api::default() });
        assert_eq!(codes(&found), [(Code::ApiUnreachable, Severity::Error)]);
        let denied = |verb: &str, resource: &str, needed| {
            let (verb, resource) = (verb.to_owned(), resource.to_owned());
            Denied { verb, resource, answer: None, needed }
        };
        let denied = vec![
            denied("list", "services", true),
            denied("list", "servicecidrs", false),
            denied("create", "events", false),
        ];
        let found = api(Api { url: url.clone(), denied, ..Api::default() });
        let expected = [
            (Code::ApiDenied, Severity::Error),
            (Code::ServiceCidrsDenied, Severity::Warning),
            (Code::EventsDenied, Severity::Warning),
        ];
        assert_eq!(codes(&found), expected);
        assert_eq!(found[0].title, "the API server does not permit: list services");
        assert_eq!(found[1].title, "the API server does not permit: list servicecidrs");
        assert_eq!(found[2].title, "the API server does not permit: create events");
        let denied_writes = vec!["patch nodes node-1, so the taint stays".to_owned()];
        let found = api(Api { url: url.clone(), denied_writes, ..Api::default() });
        assert_eq!(codes(&found), [(Code::NodeWritesDenied, Severity::Warning)]);
        assert_eq!(found[0].title, "the API server does not permit: patch nodes node-1, so the taint stays");
        let lacks = vec!["services".to_owned(), "nodes".to_owned()];
        let found = api(Api { url: url.clone(), lacks, ..Api::default() });
        assert_eq!(codes(&found), [(Code::ApiLacks, Severity::Error)]);
        assert_eq!(found[0].title, "the API server https://10.0.0.1:6443 has no services and no nodes");
        let version = Some("v1.36.0".to_owned());
        let found = api(Api { url: url.clone(), version, ..Api::default() });
        assert_eq!(codes(&found), [(Code::ApiServer, Severity::Note)]);
        assert_eq!(found[0].title, "the API server https://10.0.0.1:6443 answers; its version is v1.36.0");
        assert_eq!(api(Api { url, ..Api::default() }), []);
    }

    /// The URL of a server without a path ends in a slash.
    #[test]
    fn a_path_is_added_to_the_url_with_one_slash() {
        for url in ["https://10.0.0.1:6443/", "https://10.0.0.1:6443"] {
            let failure = Some("connection refused".to_owned());
            let found = api(Api { url: url.to_owned(), failure, ..Api::default() });
            assert!(found[0].mend.starts_with("curl -k https://10.0.0.1:6443/readyz; "), "{}", found[0].mend);
            let lacks = vec!["services".to_owned()];
            let found = api(Api { url: url.to_owned(), lacks, ..Api::default() });
            assert!(
                found[0].mend.starts_with("curl -k https://10.0.0.1:6443/version; "),
                "{}",
                found[0].mend
            );
        }
    }

    #[test]
    fn clocks_that_differ() {
        let with = |offset| api(Api { clock_offset: Some(offset), ..Api::default() });
        assert_eq!(with(-30), []);
        assert_eq!(codes(&with(31)), [(Code::ClockSkewed, Severity::Warning)]);
        assert_eq!(with(31)[0].title, "the clock of this node is 31 s behind the API server's");
        assert_eq!(with(-40)[0].title, "the clock of this node is 40 s ahead of the API server's");
        assert_eq!(codes(&with(i64::MIN)), [(Code::ClockSkewed, Severity::Error)]);
    }

    #[test]
    fn the_node_object() {
        let mut without = cluster(&[], &[], Vec::new());
        assert_eq!(codes(&findings(&without)), [(Code::NoPodCidr, Severity::Note)]);
        if let Some(cluster) = &mut without.cluster {
            cluster.needs_pod_cidr = true;
        }
        assert_eq!(codes(&findings(&without)), [(Code::NoPodCidr, Severity::Error)]);
        assert_eq!(findings(&cluster(&["10.244.1.0/24"], &["10.96.0.0/12"], Vec::new())), []);
        let missing = Facts { cluster: Some(Cluster::default()), ..Facts::default() };
        assert_eq!(codes(&findings(&missing)), [(Code::NodeMissing, Severity::Error)]);
    }

    #[test]
    fn ranges_that_overlap() {
        let found = findings(&cluster(&["10.96.4.0/24"], &["10.96.0.0/12"], Vec::new()));
        assert_eq!(codes(&found), [(Code::OverlappingRanges, Severity::Error)]);
        assert_eq!(found[0].title, "the Service range 10.96.0.0/12 and the pod range 10.96.4.0/24 overlap");
        let uplink = Link {
            has_default_route: true,
            addresses: vec![net("10.100.0.7/16"), net("fe80::1/64")],
            ..Link::default()
        };
        let facts = cluster(&["10.244.0.0/24"], &["10.96.0.0/12", "fe80::/64"], Vec::new());
        let found = findings(&Facts { links: vec![uplink], ..facts });
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].title,
            "the Service range 10.96.0.0/12 and the node's network 10.100.0.0/16 overlap"
        );
    }

    #[test]
    fn services_without_usable_endpoints() {
        let found = |service| codes(&findings(&cluster(&["10.244.1.0/24"], &[], vec![service])));
        assert_eq!(found(service(3, 0, 0)), [(Code::EndpointsUnready, Severity::Warning)]);
        assert_eq!(found(service(0, 0, 0)), [], "scaled to zero");
        assert_eq!(found(service(3, 2, 0)), []);
        let external = |here| ServiceFacts { external_local: true, ..service(3, 2, here) };
        assert_eq!(found(external(0)), [(Code::NoLocalEndpoint, Severity::Note)]);
        assert_eq!(found(external(1)), []);
        let internal = ServiceFacts { internal_local: true, ..service(3, 2, 0) };
        assert_eq!(found(internal), [(Code::NoLocalEndpoint, Severity::Warning)]);
    }
}
