//! Rules of other programs that exempt packets of Services from connection tracking, or send them elsewhere.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use portolan_model::Family;

use super::firewall::{is_foreign, remove};
use super::kernel::NODE_PORTS;
use crate::facts::{Facts, Role};
use crate::finding::{Code, Finding, Severity};
use crate::rules::{
    CONNTRACK_PRIORITY, Chain, Hit, Hook, Kind, Packet, TRANSLATION_PRIORITY, Test, is_named, walk,
};

/// The port of DNS. `NodeLocal DNSCache` exempts the packets of the DNS Service on purpose, to answer them itself.
const DNS: u16 = 53;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found: BTreeMap<(Code, String), Finding> = BTreeMap::new();
    for family in Family::BOTH {
        for hook in [Hook::Prerouting, Hook::Output] {
            for base in facts.rules.base_chains(family, hook).into_iter().filter(|chain| is_foreign(chain)) {
                for finding in of_chain(facts, family, base) {
                    let key = (finding.code, finding.title.clone());
                    // The same rule may hit several ranges; the worst counts.
                    let known = found.get(&key).is_some_and(|known| known.severity <= finding.severity);
                    if !known {
                        found.insert(key, finding);
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

fn of_chain(facts: &Facts, family: Family, base: &Chain) -> Vec<Finding> {
    let mut findings = Vec::new();
    let priority = base.base.map_or(0, |base| base.priority);
    for packet in to_services(facts, family, base) {
        for hit in walk(&facts.rules, base, &packet) {
            match hit.kind {
                Kind::NoTrack if priority < CONNTRACK_PRIORITY => {
                    findings.extend(not_tracked(facts, &hit, &packet));
                }
                Kind::Redirect if priority <= TRANSLATION_PRIORITY => {
                    findings.extend(taken(facts, &hit, &packet));
                }
                _ => {}
            }
        }
    }
    if priority <= TRANSLATION_PRIORITY {
        let packet = Packet { port: Some(NODE_PORTS), ..arriving(facts, family, base) };
        let hits = walk(&facts.rules, base, &packet);
        findings.extend(hits.iter().filter_map(|hit| node_port(facts, hit)));
    }
    findings
}

/// Returns descriptions of the packets to cluster IPs: one for each range, or one with an unknown destination.
fn to_services(facts: &Facts, family: Family, base: &Chain) -> Vec<Packet> {
    let packet = arriving(facts, family, base);
    let cidrs: Vec<IpNet> = facts.cluster.iter().flat_map(|cluster| cluster.service_cidrs(family)).collect();
    if cidrs.is_empty() {
        return vec![packet];
    }
    cidrs.into_iter().map(|cidr| Packet { destination: Some(cidr), ..packet.clone() }).collect()
}

fn arriving(facts: &Facts, family: Family, base: &Chain) -> Packet {
    Packet { translated: false, ..super::firewall::service_packet(facts, family, base) }
}

/// What the conditions of a hit say about packets of Services.
#[expect(clippy::struct_excessive_bools, reason = "four independent observations")]
#[derive(Debug, Clone, Copy, Default)]
struct Scope {
    /// A condition is not understood.
    unknown: bool,
    /// A condition names an interface that packets of Services do not use.
    elsewhere: bool,
    /// A condition names a destination.
    destination: bool,
    /// A condition names the port of DNS.
    dns: bool,
}

fn scope(facts: &Facts, hit: &Hit<'_>) -> Scope {
    let mut scope = Scope::default();
    for test in &hit.only_if {
        match test {
            Test::Input(name) | Test::Output(name) => {
                let mut used = facts.links.iter().filter(|link| link.role(&facts.links) != Role::None);
                scope.elsewhere |= !facts.links.is_empty() && !used.any(|link| is_named(name, &link.name));
            }
            Test::Destination(_) => scope.destination = true,
            Test::Port(range) => scope.dns |= *range == (DNS..=DNS),
            Test::Protocol(_) | Test::Family(_) => {}
            Test::Source(_)
            | Test::State(_)
            | Test::TcpFlags { .. }
            | Test::SourceIsLocal
            | Test::DestinationIsLocal
            | Test::Any(_)
            | Test::Not(_)
            | Test::Unknown(_) => {
                scope.unknown = true;
            }
        }
    }
    scope
}

fn not_tracked(facts: &Facts, hit: &Hit<'_>, packet: &Packet) -> Option<Finding> {
    let scope = scope(facts, hit);
    if scope.unknown || scope.elsewhere {
        return None;
    }
    // Without the ranges of cluster IPs, whether a Service has the destination is not known.
    let may_be_meant = scope.dns || (scope.destination && packet.destination.is_none());
    let severity = if hit.is_certain() {
        Severity::Error
    } else if may_be_meant {
        Severity::Note
    } else {
        Severity::Warning
    };
    let title = format!("a rule of {} exempts packets from connection tracking: `{}`", hit.chain, hit.rule?);
    Some(Finding::new(Code::NotTracked, severity, title, remove(hit)))
}

fn taken(facts: &Facts, hit: &Hit<'_>, packet: &Packet) -> Option<Finding> {
    let scope = scope(facts, hit);
    let not_a_service = scope.destination && packet.destination.is_none();
    if scope.unknown || scope.elsewhere || not_a_service {
        return None;
    }
    let severity = if hit.is_certain() { Severity::Error } else { Severity::Warning };
    let title = format!("a rule of {} sends packets to Services elsewhere: `{}`", hit.chain, hit.rule?);
    Some(Finding::new(Code::ServiceAddressTaken, severity, title, remove(hit)))
}

/// Finds rules for one or some of the node ports. That they also test for the addresses of the node does not matter.
fn node_port(facts: &Facts, hit: &Hit<'_>) -> Option<Finding> {
    if hit.kind != Kind::Redirect {
        return None;
    }
    let within =
        |range: &RangeInclusive<u16>| NODE_PORTS.contains(range.start()) && NODE_PORTS.contains(range.end());
    let ports = hit.only_if.iter().find_map(|test| match test {
        Test::Port(range) if within(range) => Some(range),
        _ => None,
    })?;
    let rule = hit.rule?;
    let services = facts.cluster.as_ref().map(|cluster| cluster.services.as_slice());
    let owner = services.and_then(|services| {
        services.iter().find(|service| service.node_ports.iter().any(|port| ports.contains(port)))
    });
    let (severity, whose) = match (services, owner) {
        (_, Some(service)) => (Severity::Error, format!(", which Service {} uses", service.key)),
        (Some(_), None) => (Severity::Note, ", which no Service uses".to_owned()),
        (None, _) => (Severity::Warning, String::new()),
    };
    let which = if ports.start() == ports.end() {
        format!("the node port {}", ports.start())
    } else {
        format!("the node ports {}-{}", ports.start(), ports.end())
    };
    let title = format!("a rule of {} takes packets to {which}{whose}: `{rule}`", hit.chain);
    let mend = format!("publish it at a port below {}, or {}", NODE_PORTS.start(), remove(hit));
    Some(Finding::new(Code::NodePortTaken, severity, title, mend))
}

#[cfg(test)]
mod tests {
    use portolan_model::object::ObjectKey;

    use super::*;
    use crate::checks::testing::codes;
    use crate::facts::{Cluster, ServiceFacts};
    use crate::rules::{Ruleset, saved};

    fn facts(saved: &str) -> Facts {
        Facts { rules: Ruleset::new(saved::chains(Family::Ipv4, saved)), ..Facts::default() }
    }

    fn with_cluster(facts: Facts, node_port: u16) -> Facts {
        let service = ServiceFacts {
            key: ObjectKey::new("shop", "web"),
            addresses: Vec::new(),
            node_ports: vec![node_port],
            internal_local: false,
            external_local: false,
            endpoints: 1,
            usable: 1,
            usable_here: 0,
        };
        let cidr = "10.96.0.0/12".parse().expect("a range");
        let cluster = Cluster { service_cidrs: vec![cidr], services: vec![service], ..Cluster::default() };
        Facts { cluster: Some(cluster), ..facts }
    }

    fn raw(rule: &str) -> Facts {
        facts(&format!("*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING {rule}\nCOMMIT\n"))
    }

    fn nat(rules: &str) -> Facts {
        facts(&format!(
            "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n:KUBE-SERVICES - [0:0]\n{rules}\nCOMMIT\n"
        ))
    }

    #[test]
    fn packets_that_are_not_tracked() {
        let found = |rule| codes(&findings(&raw(rule)));
        assert_eq!(found("-j CT --notrack"), [(Code::NotTracked, Severity::Error)]);
        assert_eq!(found("-p tcp -j NOTRACK"), [(Code::NotTracked, Severity::Warning)]);
        assert_eq!(found("-p udp -m udp --dport 53 -j CT --notrack"), [(Code::NotTracked, Severity::Note)]);
        assert_eq!(found("-d 169.254.20.10/32 -j CT --notrack"), [(Code::NotTracked, Severity::Note)]);
        assert_eq!(found("-s 10.0.0.1/32 -j CT --notrack"), [], "one source");
        assert_eq!(found("-j CT --zone 5"), []);
        let known = |rule| codes(&findings(&with_cluster(raw(rule), 30080)));
        assert_eq!(known("-d 10.96.0.10/32 -j CT --notrack"), [(Code::NotTracked, Severity::Warning)]);
        assert_eq!(known("-d 10.0.0.0/8 -j CT --notrack"), [(Code::NotTracked, Severity::Error)]);
        assert_eq!(known("-d 192.168.0.0/16 -j CT --notrack"), []);
        let mend = &findings(&raw("-j CT --notrack"))[0].mend;
        assert_eq!(mend, "iptables-legacy -t raw -D PREROUTING -j CT --notrack");
    }

    #[test]
    fn addresses_of_services_that_are_taken() {
        let found = |rules: &str| codes(&findings(&nat(rules)));
        let dnat = "-j DNAT --to-destination 10.0.0.9";
        assert_eq!(found(&format!("-A PREROUTING {dnat}")), [(Code::ServiceAddressTaken, Severity::Error)]);
        let port = format!("-A PREROUTING -p tcp -m tcp --dport 80 {dnat}");
        assert_eq!(found(&port), [(Code::ServiceAddressTaken, Severity::Warning)]);
        let one = format!("-A PREROUTING -d 10.96.0.10/32 {dnat}");
        assert_eq!(found(&one), [], "whose address this is is not known");
        let known = codes(&findings(&with_cluster(nat(&one), 30080)));
        assert_eq!(known, [(Code::ServiceAddressTaken, Severity::Warning)]);
        let after = format!("-A PREROUTING -j KUBE-SERVICES\n-A PREROUTING {dnat}");
        assert_eq!(found(&after), [(Code::ServiceAddressTaken, Severity::Warning)], "after the Services");
    }

    #[test]
    fn node_ports_that_are_taken() {
        let rules = |port: u16| {
            nat(&format!(
                "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
                 -A DOCKER ! -i docker0 -p tcp -m tcp --dport {port} -j DNAT --to-destination 172.17.0.2:80"
            ))
        };
        assert_eq!(codes(&findings(&rules(8080))), []);
        assert_eq!(codes(&findings(&rules(30080))), [(Code::NodePortTaken, Severity::Warning)]);
        let with_service = findings(&with_cluster(rules(30080), 30080));
        assert_eq!(codes(&with_service), [(Code::NodePortTaken, Severity::Error)]);
        assert!(with_service[0].title.contains("Service shop/web"), "{}", with_service[0].title);
        let free = findings(&with_cluster(rules(30080), 30081));
        assert_eq!(codes(&free), [(Code::NodePortTaken, Severity::Note)]);
    }
}
