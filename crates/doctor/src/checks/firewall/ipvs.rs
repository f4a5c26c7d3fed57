//! What differs if IPVS translates packets: they pass input, and connection tracking does not count them as translated.

use ipnet::IpNet;
use portolan_model::Family;

use crate::checks::{Mode, mode};
use crate::facts::Facts;
use crate::finding::shell_word;
use crate::rules::{Hit, Hook, Packet, Passage, Program};

/// Returns true if IPVS translates packets of Services on this node.
pub(super) fn translates(facts: &Facts) -> bool {
    mode(facts) == Some(Mode::Ipvs)
}

/// Returns the command that lets packets of Services pass. `None` if nothing in a packet tells that it is one.
pub(super) fn mend(facts: &Facts, hit: &Hit<'_>, packet: &Packet) -> Option<String> {
    let base = hit.base.base?;
    match base.hook {
        Hook::Input => to_services(facts, hit, packet.family),
        // These chains also see the packets that the node itself sends to Services.
        Hook::Output if Passage::BeforeIpvs(Hook::Output).is_of(base) => None,
        Hook::Output | Hook::Postrouting => accept(hit, "-m ipvs --ipvs", None),
        Hook::Forward => of_pods(hit, packet),
        Hook::Ingress | Hook::Prerouting | Hook::Egress => None,
    }
}

/// Accepts what is for cluster IPs. Load-balancer IPs are not accepted as a whole: their source ranges are checked later.
fn to_services(facts: &Facts, hit: &Hit<'_>, family: Family) -> Option<String> {
    let known = facts.cluster.as_ref().and_then(|cluster| cluster.service_cidrs(family).into_iter().next());
    let set = if family == Family::Ipv4 { "KUBE-CLUSTER-IP" } else { "KUBE-6-CLUSTER-IP" };
    let command = match known {
        Some(range) => accept_range(hit, Side::Destination, range),
        None => accept(hit, &format!("-m set --match-set {set} dst,dst"), None),
    }?;
    Some(format!("{command}; and accept the external addresses and node ports that clients may use"))
}

/// Accepts packets of other nodes for pods of this one, or answers.
fn of_pods(hit: &Hit<'_>, packet: &Packet) -> Option<String> {
    match (packet.destination, packet.source) {
        (Some(pods), _) => accept_range(hit, Side::Destination, pods),
        (None, Some(pods)) => accept_range(hit, Side::Source, pods),
        (None, None) => None,
    }
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn accept_range(hit: &Hit<'_>, side: Side, range: IpNet) -> Option<String> {
    let (short, long) = match side {
        Side::Source => ("-s", "saddr"),
        Side::Destination => ("-d", "daddr"),
    };
    let protocol = if range.addr().is_ipv4() { "ip" } else { "ip6" };
    accept(hit, &format!("{short} {range}"), Some(&format!("{protocol} {long} {range}")))
}

/// Returns the command that accepts packets with a condition: of iptables, and of nft if it has one.
fn accept(hit: &Hit<'_>, of_iptables: &str, of_nft: Option<&str>) -> Option<String> {
    let (place, chain) = (&hit.base.place, &hit.base.name);
    match place.program {
        Program::Nft => {
            let (table, chain) = (shell_word(&place.table), shell_word(chain));
            of_nft.map(|test| format!("nft insert rule {} {table} {chain} {test} accept", place.family))
        }
        Program::IptablesNft | Program::IptablesLegacy => {
            let table = if place.table == "filter" { String::new() } else { format!("-t {} ", place.table) };
            Some(format!("{} {table}-I {chain} {of_iptables} -j ACCEPT", place.command()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{findings, tests::facts};
    use super::*;
    use crate::checks::testing::codes;
    use crate::facts::{Cluster, Link};
    use crate::finding::{Code, Finding, Severity};

    /// Returns facts with one rule of the older iptables and the device of the IPVS mode.
    fn with(table: &str, rule: &str) -> Facts {
        let chain = rule.split(' ').next().expect("a chain");
        let device = Link { name: "kube-ipvs0".to_owned(), ..Link::default() };
        let text = format!("*{table}\n:{chain} ACCEPT [0:0]\n-A {rule}\nCOMMIT\n");
        Facts { links: vec![device], ..facts(&text) }
    }

    fn only(facts: &Facts) -> Finding {
        let mut found = findings(facts);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn input_stops_packets_to_every_service() {
        let dropped = with("filter", "INPUT -j DROP");
        assert_eq!(codes(&findings(&dropped)), [(Code::InputDropped, Severity::Error)]);
        assert_eq!(
            only(&dropped).mend,
            "iptables-legacy -I INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT; and accept the external \
             addresses and node ports that clients may use"
        );
        let range = "10.96.0.0/12".parse().expect("a range");
        let cluster = Some(Cluster { service_cidrs: vec![range], ..Cluster::default() });
        let known = only(&Facts { cluster, ..dropped }).mend;
        assert!(known.starts_with("iptables-legacy -I INPUT -d 10.96.0.0/12 -j ACCEPT; and "), "{known}");
    }

    #[test]
    fn a_rule_for_what_connection_tracking_translates_does_not_help() {
        let chains = ":OUTPUT DROP [0:0]\n-A OUTPUT -m conntrack --ctstate DNAT -j ACCEPT";
        let text = format!("*filter\n{chains}\nCOMMIT\n");
        assert_eq!(codes(&findings(&facts(&text))), [], "in other modes it does");
        let ipvs = Facts { links: with("filter", "OUTPUT -j DROP").links, ..facts(&text) };
        let found = only(&ipvs);
        assert_eq!((found.code, found.severity), (Code::OutputDropped, Severity::Error));
        assert_eq!(found.mend, "iptables-legacy -I OUTPUT -m ipvs --ipvs -j ACCEPT");
        let early = only(&with("raw", "OUTPUT -j DROP"));
        assert_eq!(early.mend, "iptables-legacy -t raw -D OUTPUT -j DROP");
    }

    #[test]
    fn packets_of_other_nodes_to_pods_are_forwarded() {
        let dropped = with("filter", "FORWARD -j DROP");
        assert_eq!(only(&dropped).mend, "iptables-legacy -t filter -D FORWARD -j DROP");
        let pods = vec!["10.244.1.0/24".parse().expect("a range")];
        let node = portolan_model::object::Node { pod_cidrs: pods, ..Default::default() };
        let cluster = Some(Cluster { node: Some(node), ..Cluster::default() });
        let known = only(&Facts { cluster, ..dropped });
        assert_eq!(known.mend, "iptables-legacy -I FORWARD -d 10.244.1.0/24 -j ACCEPT");
    }
}
