//! The chains of one Service port in the nat table. A packet enters them when it has matched a frontend.

use std::fmt::Display;
use std::net::IpAddr;

use portolan_model::{Backend, ExternalPolicy, Frontend, InternalPolicy};

use super::fixed::{MARK_MASQUERADE, detector};
use super::name::{ChainName, Kind};
use super::options::Redirect;
use super::rule::{Chain, Comment};
use super::service::{Service, in_order};

/// Returns every chain of a Service port. A chain comes before the chains that lead to it.
pub(super) fn chains(service: &Service<'_>) -> Vec<Chain> {
    let forwarding = service.forwarding;
    let all = in_order(forwarding.cluster.iter().chain(&forwarding.local));
    let mut chains: Vec<Chain> =
        all.iter().map(|(place, backend)| endpoint(service, place, backend.address)).collect();
    for (kind, backends) in [(Kind::Cluster, &forwarding.cluster), (Kind::Local, &forwarding.local)] {
        if !backends.is_empty() {
            chains.push(balance(service, kind, backends));
        }
    }
    if service.has_external_chain() {
        chains.push(external(service));
    }
    if service.has_firewall() {
        chains.push(firewall(service));
    }
    chains
}

/// Makes the chain that chooses an endpoint: the one of the client's last connection with session affinity, or else
/// each with the same probability.
fn balance(service: &Service<'_>, kind: Kind, backends: &[Backend]) -> Chain {
    let mut rules = Vec::with_capacity(backends.len() + 1);
    let internal = match service.forwarding.internal_policy {
        InternalPolicy::Cluster => Kind::Cluster,
        InternalPolicy::Local => Kind::Local,
    };
    if kind == internal && service.masquerades() {
        rules.extend(masquerade_to_cluster_ip(service));
    }
    let endpoints: Vec<(String, ChainName)> = in_order(backends.iter())
        .into_iter()
        .map(|(place, _)| {
            let chain = service.endpoint_chain(&place);
            (place, chain)
        })
        .collect();
    let comment = |place: &str| {
        let text = Comment(format_args!("{} -> {place}", service.name));
        if service.context.endpoint_comments { format!("{text} ") } else { String::new() }
    };
    if let Some(seconds) = service.forwarding.affinity {
        for (place, chain) in &endpoints {
            let comment = comment(place);
            rules.push(format!(
                "{comment}-m recent --name {chain} --rcheck --seconds {seconds} --reap -j {chain}"
            ));
        }
    }
    let mut left = endpoints.len();
    for (place, chain) in &endpoints {
        rules.push(format!("{}{}-j {chain}", comment(place), one_of(left)));
        left = left.saturating_sub(1);
    }
    Chain { name: service.chain(kind).to_string(), rules }
}

/// Returns a match that takes one packet of `count`.
fn one_of(count: usize) -> String {
    if count < 2 {
        return String::new();
    }
    let probability = 1.0 / f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    format!("-m statistic --mode random --probability {probability:.10} ")
}

/// Returns the rule that masquerades traffic to the cluster IP from outside the pod network: replies return through
/// this node only if they go to an address of this node. The rule matches the cluster IP again, because other traffic
/// passes through this chain, too.
fn masquerade_to_cluster_ip(service: &Service<'_>) -> Option<String> {
    let cluster_ip = service.forwarding.frontends.iter().find_map(|frontend| match frontend {
        Frontend::ClusterIp(address, port) => Some((address, port)),
        _ => None,
    });
    let (address, port) = cluster_ip?;
    let settings = service.context.settings;
    let from = match detector(&settings.local_detector) {
        _ if settings.masquerade_all => String::new(),
        Some(pods) => format!("{} ", pods.others),
        None => return None,
    };
    let comment = Comment(format_args!("{} cluster IP", service.name));
    let protocol = service.protocol;
    let to = format_args!("-m {protocol} -p {protocol} -d {address} --dport {port}");
    Some(format!("{comment} {to} {from}-j {MARK_MASQUERADE}"))
}

fn external(service: &Service<'_>) -> Chain {
    let name = &service.name;
    let forwarding = service.forwarding;
    let comment =
        |what: &dyn Display| Comment(format_args!("{what} {name} external destinations")).to_string();
    let mut rules = Vec::new();
    let policy = match forwarding.external_policy {
        ExternalPolicy::Cluster => {
            if service.masquerades() {
                rules.push(format!("{} -j {MARK_MASQUERADE}", comment(&"masquerade traffic for")));
            }
            Kind::Cluster
        }
        ExternalPolicy::Local => {
            if !forwarding.cluster.is_empty() {
                short_cut(service, &comment, &mut rules);
            }
            Kind::Local
        }
    };
    if service.has_external() {
        rules.push(format!("-j {}", service.chain(policy)));
    }
    Chain { name: service.chain(Kind::External).to_string(), rules }
}

/// Adds rules by which this node and its pods reach all endpoints in spite of policy Local.
fn short_cut(service: &Service<'_>, comment: &dyn Fn(&dyn Display) -> String, rules: &mut Vec<String>) {
    let all = service.chain(Kind::Cluster);
    if let Some(pods) = detector(&service.context.settings.local_detector) {
        rules.push(format!("{} {} -j {all}", comment(&"pod traffic for"), pods.own));
    }
    let local = "-m addrtype --src-type LOCAL";
    if service.masquerades() {
        rules.push(format!("{} {local} -j {MARK_MASQUERADE}", comment(&"masquerade LOCAL traffic for")));
    }
    rules.push(format!("{} {local} -j {all}", comment(&"route LOCAL traffic for")));
}

/// Makes the chain that accepts sources that may use the load-balancer IPs. Other packets are not translated, and the
/// filter table drops them.
fn firewall(service: &Service<'_>) -> Chain {
    let name = &service.name;
    let forwarding = service.forwarding;
    let ranges = &forwarding.source_ranges;
    let next = service.chain(Kind::External);
    let comment = Comment(format_args!("{name} loadbalancer IP")).to_string();
    let mut rules: Vec<String> =
        ranges.iter().map(|range| format!("{comment} -s {range} -j {next}")).collect();
    let node_ip = service.context.settings.node_ip;
    if node_ip.is_some_and(|address| ranges.iter().any(|range| range.contains(&address))) {
        // A node whose own address is the load-balancer IP may send from it.
        for frontend in &forwarding.frontends {
            if let Frontend::LoadBalancerIp(address, _) = frontend {
                rules.push(format!("{comment} -s {address} -j {next}"));
            }
        }
    }
    let other = format_args!("other traffic to {name} will be dropped by KUBE-PROXY-FIREWALL");
    rules.push(Comment(other).to_string());
    Chain { name: service.chain(Kind::Firewall).to_string(), rules }
}

fn endpoint(service: &Service<'_>, place: &str, address: IpAddr) -> Chain {
    let chain = service.endpoint_chain(place);
    let (name, protocol) = (&service.name, service.protocol);
    let comment = if service.context.endpoint_comments {
        format!("-m comment --comment {name} ")
    } else {
        String::new()
    };
    if let Some(redirect) = service.context.options.redirect {
        return Chain {
            name: chain.to_string(),
            rules: listener(service, &comment, redirect, place, address),
        };
    }
    let remember = match service.forwarding.affinity {
        Some(_) => format!("-m recent --name {chain} --set "),
        None => String::new(),
    };
    let rules = vec![
        format!("{comment}-s {address} -j {MARK_MASQUERADE}"),
        format!("{comment}{remember}-m {protocol} -p {protocol} -j DNAT --to-destination {place}"),
    ];
    Chain { name: chain.to_string(), rules }
}

/// Returns the rules of a listener that takes the place of endpoints.
fn listener(
    service: &Service<'_>,
    comment: &str,
    redirect: Redirect,
    place: &str,
    address: IpAddr,
) -> Vec<String> {
    let protocol = service.protocol;
    let mark = format!("{:#010x}", redirect.own_mark);
    let target = match place.rsplit_once(':') {
        Some((_, port)) if address.is_unspecified() => format!("REDIRECT --to-ports {port}"),
        _ => format!("DNAT --to-destination {place}"),
    };
    vec![
        format!("{comment}-m mark --mark {mark}/{mark} -j RETURN"),
        format!("{comment}-m {protocol} -p {protocol} -j {target}"),
    ]
}
