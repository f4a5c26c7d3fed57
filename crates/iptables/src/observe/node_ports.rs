//! The addresses that accept node ports: the rules by which packets come to the chain of node ports.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use portolan_model::observed::{Fact, NodePortReach};
use portolan_model::{Family, NodePortAddresses};

use super::line::{Match, Rule};

/// All IPv4 loopback addresses (RFC 1122, 3.2.1.3).
const IPV4_LOOPBACK: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));

/// What the rules match, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodePortRules {
    /// A rule matches all addresses of this node.
    all: bool,
    /// A rule matches loopback addresses, too.
    all_with_loopback: bool,
    /// The single addresses that rules match.
    addresses: Vec<IpAddr>,
    /// A rule has other matches, so that it is not known which packets it is for.
    has_other: bool,
}

impl NodePortRules {
    /// Adds a rule of the nat table that leads to the chain of node ports.
    pub(super) fn add(&mut self, rule: &Rule<'_>) {
        let is_loopback = rule.destination.is_some_and(|net| net.addr().is_loopback());
        if rule.has(&[Match::LocalDestination]) {
            (self.all, self.all_with_loopback) = (true, true);
        } else if rule.has(&[Match::LocalDestination, Match::Destination, Match::Other]) && is_loopback {
            self.all = true;
        } else if let Some(address) = rule.to().filter(|_| rule.has(&[Match::Destination])) {
            self.addresses.push(address);
        } else {
            self.has_other = true;
        }
    }

    /// Returns the addresses. IPv6 has no node ports on its loopback address: the kernel does not route it.
    pub(super) fn reach(&self, family: Family) -> Fact<NodePortReach> {
        if self.has_other {
            return Fact::Unknown;
        }
        let (on_loopback, mut others): (Vec<IpAddr>, Vec<IpAddr>) =
            self.addresses.iter().partition(|address| address.is_loopback());
        others.sort_unstable();
        let loopback = match family {
            Family::Ipv4 if self.all_with_loopback => vec![IPV4_LOOPBACK],
            Family::Ipv4 => on_loopback.into_iter().map(IpNet::from).collect(),
            Family::Ipv6 => Vec::new(),
        };
        let addresses =
            if self.all { NodePortAddresses::MatchAll } else { NodePortAddresses::Addresses(others) };
        Fact::Known(NodePortReach { addresses, loopback })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(family: Family, rules: &[&str]) -> Fact<NodePortReach> {
        let mut all = NodePortRules::default();
        for rule in rules {
            let line =
                format!("-A KUBE-SERVICES -m comment --comment \"node ports\" {rule} -j KUBE-NODEPORTS");
            all.add(&Rule::parse(&line).expect("a rule"));
        }
        all.reach(family)
    }

    fn known(addresses: NodePortAddresses, loopback: &[&str]) -> Fact<NodePortReach> {
        let loopback = loopback.iter().map(|net| net.parse().expect("a network")).collect();
        Fact::Known(NodePortReach { addresses, loopback })
    }

    #[test]
    fn rules_for_all_addresses() {
        let all = "-m addrtype --dst-type LOCAL";
        let v4 = |rules: &[&str]| reach(Family::Ipv4, rules);
        assert_eq!(v4(&[all]), known(NodePortAddresses::MatchAll, &["127.0.0.0/8"]));
        let without = format!("! -d 127.0.0.0/8 {all}");
        assert_eq!(v4(&[without.as_str()]), known(NodePortAddresses::MatchAll, &[]));
        let without = format!("! -d ::1/128 {all}");
        assert_eq!(reach(Family::Ipv6, &[without.as_str()]), known(NodePortAddresses::MatchAll, &[]));
    }

    #[test]
    fn rules_for_single_addresses() {
        let addresses = |texts: &[&str]| {
            NodePortAddresses::Addresses(texts.iter().map(|ip| ip.parse().unwrap()).collect())
        };
        let v4 = |rules: &[&str]| reach(Family::Ipv4, rules);
        assert_eq!(v4(&[]), known(addresses(&[]), &[]));
        let both = ["-d 192.0.2.2/32", "-d 192.0.2.1/32", "-d 127.0.0.1/32"];
        assert_eq!(v4(&both), known(addresses(&["192.0.2.1", "192.0.2.2"]), &["127.0.0.1/32"]));
        assert_eq!(v4(&["-d 192.0.2.0/24"]), Fact::Unknown, "no rule of this mode");
        assert_eq!(v4(&["-i eth0"]), Fact::Unknown);
    }
}
