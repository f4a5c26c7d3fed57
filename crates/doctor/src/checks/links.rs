//! Interfaces: those that forward nothing, strict reverse path filters, bridges whose packets pass no rules, and sizes of packets.

use portolan_model::Family;

use super::firewall::Path;
use crate::facts::{Facts, Link, Role};
use crate::finding::{Code, Finding, Severity, sysctl_command, sysctl_name};

/// The filter accepts a packet only from the interface through which its answer would leave (`ip-sysctl.rst`).
const STRICT: u64 = 1;
/// Number of interfaces that a title names. Each pod has one.
const NAMED: usize = 4;
const IP_FORWARD: &str = "net/ipv4/ip_forward";
/// Beginnings of names of tunnels between pods of different nodes, by network plug-in. Others may be an operator's VPN.
const OF_PLUGINS: [&str; 10] = [
    "flannel",
    "vxlan.calico",
    "vxlan-v6.calico",
    "tunl",
    "wireguard.cali",
    "wg-v6.cali",
    "cilium",
    "antrea",
    "genev_sys",
    "kube",
];
/// The settings of bridges, of each family.
const BRIDGE_SETTINGS: [(Family, &str); 2] = [
    (Family::Ipv4, "net/bridge/bridge-nf-call-iptables"),
    (Family::Ipv6, "net/bridge/bridge-nf-call-ip6tables"),
];

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(forwarding(facts));
    findings.extend(reverse_path(facts));
    findings.extend(bridges(facts));
    findings.extend(mtu(facts));
    findings
}

/// Finds interfaces whose packets the kernel does not forward, although it forwards others. IPv6 has no such setting.
fn forwarding(facts: &Facts) -> Option<Finding> {
    let path = |link: &Link| format!("net/ipv4/conf/{}/forwarding", link.name);
    // Packets of a port of a bridge arrive through the bridge. An operator may have switched it off for a VPN.
    let is_used = |link: &Link| match link.role(&facts.links) {
        Role::Uplink | Role::Pods => link.master.is_none(),
        Role::Tunnel => is_of_plugin(link),
        Role::None => false,
    };
    let is_off = |link: &&Link| link.up && is_used(link) && facts.setting(&path(link)) == Some("0");
    let off: Vec<&Link> = facts.links.iter().filter(is_off).collect();
    // If it is off everywhere, that is another finding.
    if off.is_empty() || facts.setting(IP_FORWARD) != Some("1") {
        return None;
    }
    let title = format!("the kernel does not forward IPv4 packets that arrive through {}", names(&off));
    let breaks = "Connections to Services that arrive there do not reach endpoints in pods.";
    // Writing the setting of all interfaces would change none: it is 1 already.
    let settings: Vec<String> = off.iter().map(|link| format!("{}=1", sysctl_name(&path(link)))).collect();
    let mend = format!("sysctl -w {}", settings.join(" "));
    let finding = Finding::new(Code::ForwardingOff, Severity::Warning, title, mend);
    Some(Finding { breaks: breaks.to_owned(), ..finding })
}

/// Returns true if the tunnel connects pods of different nodes, as its name tells.
fn is_of_plugin(link: &Link) -> bool {
    OF_PLUGINS.iter().any(|prefix| link.name.starts_with(prefix))
}

/// Returns the first names of interfaces, and the number of the others.
fn names(links: &[&Link]) -> String {
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).take(NAMED).collect();
    match links.len().saturating_sub(names.len()) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Returns the reverse path filter of an interface: the higher of its own value and that of all interfaces.
fn filter(facts: &Facts, name: &str) -> Option<u64> {
    let own = facts.number(&path(name))?;
    Some(own.max(facts.number(&path("all")).unwrap_or(0)))
}

fn path(name: &str) -> String {
    format!("net/ipv4/conf/{name}/rp_filter")
}

fn reverse_path(facts: &Facts) -> Option<Finding> {
    let used = |link: &&Link| link.up && link.role(&facts.links) != Role::None;
    let is_strict = |link: &&Link| filter(facts, &link.name) == Some(STRICT);
    let strict: Vec<&Link> = facts.links.iter().filter(used).filter(is_strict).collect();
    let first = strict.first()?;
    let uplinks = facts.links.iter().filter(|link| link.has_default_route).count();
    let is_uplink = |link: &&Link| link.role(&facts.links) == Role::Uplink;
    // With one way out, answers leave through the interface at which their packets arrive.
    let severity =
        if uplinks > 1 && strict.iter().any(is_uplink) { Severity::Warning } else { Severity::Note };
    let title = format!("the reverse path filter is strict (rp_filter 1) on {}", names(&strict));
    // The higher of both values counts, so 2 in either place is loose.
    let mend = match strict.len() {
        1 => sysctl_command(&path(&first.name), "2"),
        _ => sysctl_command(&path("all"), "2"),
    };
    Some(Finding::new(Code::ReversePathStrict, severity, title, mend))
}

/// Pods on one bridge reach each other without the IP layer of the node. If one of them connects to the other through a
/// Service, the answer is not translated back, unless packets on bridges pass iptables and nftables. In the userspace mode
/// with tproxy, nothing is translated, and the kernel loses captured packets that pass the rules on the bridge.
fn bridges(facts: &Facts) -> Vec<Finding> {
    let has_pods = |bridge: &&Link| {
        bridge.kind == "bridge"
            && bridge.role(&facts.links) == Role::Pods
            && facts.links.iter().any(|link| link.master == Some(bridge.index))
    };
    let Some(bridge) = facts.links.iter().find(has_pods) else { return Vec::new() };
    let is_served = |(family, _): &(Family, &str)| facts.serves(*family);
    let settings: Vec<_> = BRIDGE_SETTINGS.into_iter().filter(is_served).collect();
    let is_lost = Path::of(facts) == Path::Tproxy;
    if !is_lost && settings.iter().all(|(_, setting)| facts.setting(setting).is_none()) {
        return vec![without_br_netfilter(bridge, &settings)];
    }
    settings.iter().filter_map(|&(family, setting)| bridge_setting(facts, bridge, family, setting)).collect()
}

/// Finds that a setting of bridges has the wrong value.
fn bridge_setting(facts: &Facts, bridge: &Link, family: Family, setting: &str) -> Option<Finding> {
    let name = &bridge.name;
    match (Path::of(facts) == Path::Tproxy, facts.setting(setting)?) {
        (true, "1") => {
            let title = format!("{family} packets of pods on the bridge {name} to Services are lost");
            Some(Finding::setting(Code::BridgeLosesPackets, Severity::Error, title, setting, "0"))
        }
        (false, "0") => {
            let title =
                format!("{family} packets between pods on the bridge {name} pass no rules of the node");
            Some(Finding::setting(Code::BridgeBypassesRules, Severity::Warning, title, setting, "1"))
        }
        _ => None,
    }
}

fn without_br_netfilter(bridge: &Link, settings: &[(Family, &str)]) -> Finding {
    let title = format!(
        "packets between pods on the bridge {} pass no rules of the node: br_netfilter is not loaded",
        bridge.name
    );
    let commands = settings.iter().map(|(_, setting)| format!(" && {}", sysctl_command(setting, "1")));
    let mend = format!("modprobe br_netfilter{}", commands.collect::<String>());
    Finding::new(Code::BridgeBypassesRules, Severity::Warning, title, mend)
}

/// Compares the largest packet of pods with that of the interfaces through which it leaves. Whether packets of pods leave
/// through a tunnel that is not of a network plug-in is not known.
fn mtu(facts: &Facts) -> Option<Finding> {
    let of = |roles: &'static [Role]| {
        facts.links.iter().filter(|link| link.up && link.mtu > 0 && roles.contains(&link.role(&facts.links)))
    };
    let pods = of(&[Role::Pods]).max_by_key(|link| link.mtu)?;
    let out = of(&[Role::Uplink, Role::Tunnel]).min_by_key(|link| link.mtu)?;
    if pods.mtu <= out.mtu {
        return None;
    }
    let title = format!(
        "{} of pods has an MTU of {}, and {}, through which packets leave, one of {}",
        pods.name, pods.mtu, out.name, out.mtu
    );
    // A smaller MTU of the node's end of a pair alone makes it worse: the kernel then drops larger packets of the pod without an answer.
    let mend =
        format!("set the MTU of pods to {} in the network plug-in, then start the pods again", out.mtu);
    let is_known = out.has_default_route || is_of_plugin(out);
    let severity = if is_known { Severity::Warning } else { Severity::Note };
    Some(Finding::new(Code::MtuMismatch, severity, title, mend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::testing::{chain, codes, with_settings};
    use crate::facts::Cluster;
    use crate::rules::{Program, Ruleset};

    fn link(index: u32, name: &str, kind: &str, mtu: u32) -> Link {
        Link { index, name: name.to_owned(), kind: kind.to_owned(), mtu, up: true, ..Link::default() }
    }

    fn uplink(index: u32, name: &str, mtu: u32) -> Link {
        Link { has_default_route: true, ..link(index, name, "", mtu) }
    }

    #[test]
    fn strict_reverse_path_filters() {
        let settings = [
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/eth0.5/rp_filter", "1"),
            ("net/ipv4/conf/eth1/rp_filter", "2"),
        ];
        let one = Facts { links: vec![uplink(2, "eth0.5", 1500)], ..with_settings(&settings) };
        let found = findings(&one);
        assert_eq!(codes(&found), [(Code::ReversePathStrict, Severity::Note)]);
        assert_eq!(found[0].mend, "sysctl -w net.ipv4.conf.eth0/5.rp_filter=2");
        let two = Facts { links: vec![uplink(2, "eth0.5", 1500), uplink(3, "eth1", 1500)], ..one.clone() };
        assert_eq!(codes(&findings(&two)), [(Code::ReversePathStrict, Severity::Warning)]);
        let mut many = one.clone();
        many.links.extend((1..9).map(|index| link(index, &format!("cali{index}"), "veth", 1500)));
        let strict = (1..9).map(|index| (format!("net/ipv4/conf/cali{index}/rp_filter"), "1".to_owned()));
        many.settings.extend(strict);
        let title =
            "the reverse path filter is strict (rp_filter 1) on eth0.5, cali1, cali2, cali3 and 5 more";
        assert_eq!(findings(&many)[0].title, title);
        let mut loose = one;
        loose.settings.insert("net/ipv4/conf/all/rp_filter".to_owned(), "2".to_owned());
        assert_eq!(findings(&loose), [], "the higher value counts");
    }

    #[test]
    fn interfaces_that_forward_nothing() {
        let settings = |eth0, cali1| {
            with_settings(&[
                ("net/ipv4/ip_forward", "1"),
                ("net/ipv4/conf/eth0/forwarding", eth0),
                ("net/ipv4/conf/cali1/forwarding", cali1),
                ("net/ipv4/conf/docker0/forwarding", "0"),
            ])
        };
        let links =
            vec![uplink(2, "eth0", 1500), link(3, "cali1", "veth", 1500), link(4, "docker0", "bridge", 1500)];
        let of = |eth0, cali1| findings(&Facts { links: links.clone(), ..settings(eth0, cali1) });
        assert_eq!(of("1", "1"), []);
        let one = of("0", "1");
        assert_eq!(codes(&one), [(Code::ForwardingOff, Severity::Warning)]);
        assert_eq!(one[0].title, "the kernel does not forward IPv4 packets that arrive through eth0");
        assert_eq!(one[0].mend, "sysctl -w net.ipv4.conf.eth0.forwarding=1");
        let both = of("0", "0");
        assert_eq!(
            both[0].mend,
            "sysctl -w net.ipv4.conf.eth0.forwarding=1 net.ipv4.conf.cali1.forwarding=1"
        );
        assert_eq!(both[0].fix, None, "it may be off on purpose");
        let ports =
            vec![link(3, "cni0", "bridge", 1500), Link { master: Some(3), ..link(4, "veth1", "veth", 1500) }];
        let off = [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/conf/veth1/forwarding", "0"),
            ("net/bridge/bridge-nf-call-iptables", "1"),
        ];
        assert_eq!(findings(&Facts { links: ports, ..with_settings(&off) }), [], "a port of a bridge");
        let vpn = [("net/ipv4/ip_forward", "1"), ("net/ipv4/conf/wg0/forwarding", "0")];
        assert_eq!(
            findings(&Facts { links: vec![link(5, "wg0", "wireguard", 1420)], ..with_settings(&vpn) }),
            []
        );
        let mut nowhere = Facts { links, ..settings("0", "0") };
        nowhere.settings.insert("net/ipv4/ip_forward".to_owned(), "0".to_owned());
        assert_eq!(findings(&nowhere), [], "that is a finding about the kernel");
    }

    #[test]
    fn bridges_with_pods() {
        let veth = Link { master: Some(3), ..link(4, "veth1", "veth", 1500) };
        let links = vec![link(3, "cni0", "bridge", 1500), veth];
        let [(_, ipv4), (_, ipv6)] = BRIDGE_SETTINGS;
        let facts = |value| Facts { links: links.clone(), ..with_settings(&[(ipv4, value)]) };
        let found = findings(&facts("0"));
        assert_eq!(codes(&found), [(Code::BridgeBypassesRules, Severity::Warning)]);
        assert!(found[0].fix.is_some());
        assert_eq!(findings(&facts("1")), []);
        let captured = |value| Facts {
            rules: Ruleset::new(vec![chain(Program::Nft, "portolan-userspace", "capture")]),
            ..facts(value)
        };
        let found = findings(&captured("1"));
        assert_eq!(codes(&found), [(Code::BridgeLosesPackets, Severity::Error)]);
        assert!(found[0].fix.is_some());
        assert_eq!(findings(&captured("0")), [], "in the userspace mode, answers are not translated");
        // IPv6 has a setting of its own, and counts only where it is served.
        let of_ipv6 = |facts: Facts, value: &str| {
            let cidr = "fd00::/108".parse().expect("a range");
            let cluster = Some(Cluster { service_cidrs: vec![cidr], ..Cluster::default() });
            let mut facts = Facts { cluster, ..facts };
            facts.settings.insert(ipv6.to_owned(), value.to_owned());
            findings(&facts)
        };
        assert_eq!(of_ipv6(facts("1"), "1"), []);
        let found = of_ipv6(facts("1"), "0");
        assert_eq!(codes(&found), [(Code::BridgeBypassesRules, Severity::Warning)]);
        assert_eq!(found[0].mend, "sysctl -w net.bridge.bridge-nf-call-ip6tables=1");
        assert_eq!(codes(&of_ipv6(captured("0"), "1")), [(Code::BridgeLosesPackets, Severity::Error)]);
        assert_eq!(of_ipv6(facts("0"), "0").len(), 2);
        let absent = findings(&Facts { links: links.clone(), ..Facts::default() });
        assert_eq!(codes(&absent), [(Code::BridgeBypassesRules, Severity::Warning)]);
        assert!(absent[0].fix.is_none(), "a module has to be loaded");
        let empty = Facts { links: vec![link(3, "cni0", "bridge", 1500)], ..Facts::default() };
        assert_eq!(findings(&empty), [], "no pod is on the bridge");
        let docker = Facts {
            links: vec![
                link(3, "docker0", "bridge", 1500),
                Link { master: Some(3), ..link(4, "veth1", "veth", 1500) },
            ],
            ..Facts::default()
        };
        assert_eq!(findings(&docker), []);
    }

    #[test]
    fn pods_with_larger_packets_than_the_way_out() {
        let facts = |links: Vec<Link>| Facts { links, ..Facts::default() };
        let pod = |mtu| link(4, "cali1", "veth", mtu);
        assert_eq!(findings(&facts(vec![uplink(2, "eth0", 1500), pod(1450)])), []);
        let found = findings(&facts(vec![uplink(2, "eth0", 1400), pod(1500)]));
        assert_eq!(codes(&found), [(Code::MtuMismatch, Severity::Warning)]);
        let tunnel = link(5, "flannel.1", "vxlan", 1450);
        assert_eq!(findings(&facts(vec![uplink(2, "eth0", 1500), tunnel, pod(1500)])).len(), 1);
        assert_eq!(findings(&facts(vec![pod(9000)])), [], "no way out is known");
        let vpn = facts(vec![uplink(2, "eth0", 1500), link(5, "wg0", "wireguard", 1420), pod(1500)]);
        assert_eq!(codes(&findings(&vpn)), [(Code::MtuMismatch, Severity::Note)]);
    }
}
