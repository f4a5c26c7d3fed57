//! The chains of kube-proxy's table: their names, and what their rules do.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use portolan_model::observed::{Fact, ObservedEndpoint};
use portolan_model::{Family, Protocol, ServicePortName};
use portolan_wire::nftables::expr::{Bitwise, BitwiseOperation, Cmp, CmpOperation, Immediate, Lookup, Nat};
use portolan_wire::nftables::{Data, Element, Expr, INTERVAL_END, Register, Rule, Verdict};

use super::super::super::element::{address_length, read_address};
use super::super::super::readback::read_socket;
use super::raw::Raw;

/// Start of the names of the sets with clients.
pub(super) const AFFINITY: &str = "affinity-";
/// Starts of the names of the chains of Service ports.
const KINDS: [&str; 4] = ["service-", "local-", "external-", "firewall-"];
/// Length of the hash and the hyphen at the start of a base.
const HASH: usize = 9;
/// Length of a base that was cut.
const CUT: usize = 240;

/// Splits the name of a chain of a Service port into its kind and its base.
pub(super) fn split(chain: &str) -> Option<(&'static str, &str)> {
    KINDS.into_iter().find_map(|kind| Some((kind, chain.strip_prefix(kind)?)))
}

/// Returns the Service port of a base such as `AXK6CI2C-demo/web/tcp/http`; `None` if the base was cut.
pub(super) fn name_of(base: &str) -> Option<ServicePortName> {
    let mut parts = base.get(HASH..).filter(|_| base.len() < CUT)?.split('/');
    let mut next = || parts.next();
    let (namespace, service, protocol, port) = (next()?, next()?, next()?, next()?);
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|known| known.to_string().eq_ignore_ascii_case(protocol))?;
    let is_whole = next().is_none() && !namespace.is_empty() && !service.is_empty();
    let [namespace, service, port] = [namespace, service, port].map(Arc::from);
    is_whole.then_some(ServicePortName { namespace, service, port, protocol })
}

/// Returns the end of the base of a Service port, after its hash.
pub(super) fn base_of(name: &ServicePortName) -> String {
    let ServicePortName { namespace, service, port, protocol } = name;
    format!("{namespace}/{service}/{}/{port}", protocol.to_string().to_ascii_lowercase())
}

/// Returns the chain that a verdict goes to.
pub(super) fn target_of(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
        _ => None,
    }
}

/// The endpoints of one list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) endpoints: Fact<Vec<ObservedEndpoint>>,
    pub(super) affinity: Fact<Option<u32>>,
}

/// The chains of a table.
pub(super) struct Chains<'a> {
    family: Family,
    raw: &'a Raw,
    /// The chains of Service ports by kind, and by their base with and without its hash.
    by_base: HashMap<(&'static str, &'a str), &'a str>,
}

impl<'a> Chains<'a> {
    pub(super) fn new(family: Family, raw: &'a Raw) -> Self {
        let mut by_base = HashMap::new();
        for chain in raw.chains.keys() {
            let Some((kind, base)) = split(chain) else { continue };
            by_base.insert((kind, base), chain.as_str());
            by_base.extend(base.get(HASH..).map(|end| ((kind, end), chain.as_str())));
        }
        Self { family, raw, by_base }
    }

    /// Returns true if packets that this node receives come to the lookup of frontends.
    pub(super) fn is_entered(&self) -> bool {
        let is_hooked = self.raw.chains.get("nat-prerouting").is_some_and(|chain| chain.base.is_some());
        let jumps = |rule: &Rule| verdicts(rule).any(|verdict| target_of(verdict) == Some("services"));
        let looks_up = |rule: &Rule| lookups(rule).any(|lookup| lookup.set == "service-ips");
        is_hooked
            && self.raw.rules("nat-prerouting").iter().any(jumps)
            && self.raw.rules("services").iter().any(looks_up)
    }

    /// Returns the set of the addresses that accept node ports; `None` if all addresses do.
    pub(super) fn node_ports_at(&self) -> Fact<Option<&'static str>> {
        const SET: &str = "nodeport-ips";
        let is_it = |rule: &&Rule| lookups(rule).any(|lookup| lookup.set == "service-nodeports");
        match self.raw.rules("services").iter().find(is_it) {
            Some(rule) => Fact::Known(lookups(rule).any(|lookup| lookup.set == SET).then_some(SET)),
            None => Fact::Unknown,
        }
    }

    /// Returns the endpoints of the chain of a kind and a base, with or without its hash.
    pub(super) fn list(&self, kind: &'static str, base: &str) -> List {
        let rules = self.rules(kind, base);
        let mut list = List { endpoints: Fact::Known(Vec::new()), affinity: Fact::Unknown };
        if rules.is_empty() {
            return list;
        }
        let mut found = BTreeSet::new();
        let (mut timeouts, mut is_known) = (BTreeSet::new(), false);
        for rule in rules {
            for lookup in lookups(rule) {
                if lookup.set.starts_with(AFFINITY) {
                    timeouts.extend(self.raw.timeout(&lookup.set));
                } else if lookup.destination.is_some() {
                    let endpoints =
                        self.raw.elements(&lookup.set).iter().map(|element| self.endpoint(element));
                    let Some(endpoints) = endpoints.collect::<Option<Vec<SocketAddr>>>() else {
                        list.endpoints = Fact::Unknown;
                        return list;
                    };
                    is_known = true;
                    found.extend(endpoints);
                }
            }
        }
        let endpoints = found.into_iter().map(ObservedEndpoint::at).collect();
        list.endpoints = if is_known { Fact::Known(endpoints) } else { Fact::Unknown };
        list.affinity = Fact::Known(timeouts.pop_first());
        list
    }

    /// Returns the endpoint that an element of a map leads to.
    fn endpoint(&self, element: &Element) -> Option<SocketAddr> {
        match element.data.as_ref()? {
            Data::Value(bytes) => read_socket(self.family, bytes),
            Data::Verdict(verdict) => {
                let rules = self.raw.rules(target_of(verdict)?);
                rules.iter().find_map(|rule| self.translation(rule))
            }
        }
    }

    /// Returns the endpoint to which a rule translates, if it is a constant.
    fn translation(&self, rule: &Rule) -> Option<SocketAddr> {
        let nat = rule.expressions.iter().find_map(|expression| match expression {
            Expr::Nat(nat) => Some(nat),
            _ => None,
        });
        let Nat { address_min, port_min, .. } = nat?;
        let address = read_address(self.family, constant(rule, (*address_min)?)?)?;
        let port = constant(rule, (*port_min)?)?.first_chunk::<2>()?;
        Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
    }

    /// Returns the sources that may reach the load-balancer IPs; empty if all may.
    pub(super) fn source_ranges(&self, base: &str) -> Fact<Vec<IpNet>> {
        let rules = self.rules("firewall-", base);
        let Some(rule) = rules.first() else { return Fact::Known(Vec::new()) };
        let drops = verdicts(rule).any(|verdict| *verdict == Verdict::Drop);
        let ranges = if rules.len() == 1 && drops { self.excepted(rule) } else { None };
        ranges.map_or(Fact::Unknown, Fact::Known)
    }

    /// Returns the networks whose packets a rule does not match.
    fn excepted(&self, rule: &Rule) -> Option<Vec<IpNet>> {
        if let Some(lookup) = lookups(rule).next() {
            return lookup.inverted.then(|| self.intervals(self.raw.elements(&lookup.set)))?;
        }
        // nft writes a single network as a comparison.
        let mut mask = None;
        for expression in &rule.expressions {
            match expression {
                Expr::Bitwise(Bitwise {
                    operation: BitwiseOperation::MaskXor { mask: bits, .. }, ..
                }) => {
                    mask = Some(bits.iter().map(|byte| byte.count_ones()).sum::<u32>());
                }
                Expr::Cmp(Cmp { operation: CmpOperation::NEQ, data, .. }) => {
                    let compared = u32::try_from(data.len()).ok()?.checked_mul(8)?;
                    let mut bytes = data.clone();
                    bytes.resize(address_length(self.family) as usize, 0);
                    let prefix = u8::try_from(mask.unwrap_or(compared)).ok()?;
                    return Some(vec![IpNet::new(read_address(self.family, &bytes)?, prefix).ok()?]);
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the networks of an interval set: each begins at an element, and ends before the next one that is marked as an
    /// end, or with the last address.
    fn intervals(&self, elements: &[Element]) -> Option<Vec<IpNet>> {
        let mut sorted: Vec<(IpAddr, bool)> = Vec::with_capacity(elements.len());
        for element in elements {
            sorted.push((read_address(self.family, &element.key)?, element.flags & INTERVAL_END != 0));
        }
        // At one address, an end comes before a start.
        sorted.sort_by_key(|(address, is_end)| (*address, !is_end));
        let (mut ranges, mut start) = (Vec::new(), None);
        for (address, is_end) in sorted {
            match (start, is_end) {
                (Some(first), true) => {
                    ranges.extend(networks(first, before(address)?)?);
                    start = None;
                }
                (None, false) => start = Some(address),
                // The end before the first start.
                (None, true) => {}
                (Some(_), false) => return None,
            }
        }
        if let Some(first) = start {
            let last = match self.family {
                Family::Ipv4 => IpAddr::from([u8::MAX; 4]),
                Family::Ipv6 => IpAddr::from([u8::MAX; 16]),
            };
            ranges.extend(networks(first, last)?);
        }
        Some(ranges)
    }

    /// Returns the rules of the chain of a kind and a base, with or without its hash.
    fn rules(&self, kind: &'static str, base: &str) -> &'a [Rule] {
        self.by_base.get(&(kind, base)).map(|chain| self.raw.rules(chain)).unwrap_or_default()
    }
}

/// Returns the address before another one.
fn before(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).checked_sub(1)?.into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).checked_sub(1)?.into()),
    })
}

fn networks(first: IpAddr, last: IpAddr) -> Option<Vec<IpNet>> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            Some(Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            Some(Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect())
        }
        _ => None,
    }
}

/// Returns the constant that a rule loads into a register.
fn constant(rule: &Rule, register: Register) -> Option<&[u8]> {
    rule.expressions.iter().find_map(|expression| match expression {
        Expr::Immediate(Immediate { destination, data: Data::Value(bytes) }) if *destination == register => {
            Some(bytes.as_slice())
        }
        _ => None,
    })
}

fn lookups(rule: &Rule) -> impl Iterator<Item = &Lookup> {
    rule.expressions.iter().filter_map(|expression| match expression {
        Expr::Lookup(lookup) => Some(lookup),
        _ => None,
    })
}

fn verdicts(rule: &Rule) -> impl Iterator<Item = &Verdict> {
    rule.expressions.iter().filter_map(|expression| match expression {
        Expr::Immediate(Immediate { data: Data::Verdict(verdict), .. }) => Some(verdict),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kube_proxy() {
        let name = name_of("AXK6CI2C-demo/web/tcp/http").unwrap();
        assert_eq!((name.to_string().as_str(), name.protocol), ("demo/web:http", Protocol::Tcp));
        assert_eq!(base_of(&name), "demo/web/tcp/http");
        let name = name_of("RP252AW2-demo/dual/sctp/").unwrap();
        assert_eq!((name.to_string().as_str(), name.protocol), ("demo/dual", Protocol::Sctp));
        for base in
            ["", "AXK6CI2C-", "AXK6CI2C-demo/web/tcp", "AXK6CI2C-demo/web/icmp/http", "A-/web/tcp/http"]
        {
            assert_eq!(name_of(base), None, "{base}");
        }
        let cut = format!("CI6C53Q3-{}/web/tcp/http", "n".repeat(CUT));
        assert_eq!(name_of(&cut), None);
        assert_eq!(split("local-AXK6CI2C-demo/web/tcp/http"), Some(("local-", "AXK6CI2C-demo/web/tcp/http")));
        assert_eq!(split("reject-chain"), None);
    }

    #[test]
    fn ranges_are_networks() {
        assert_eq!(before("10.0.0.0".parse().unwrap()), Some("9.255.255.255".parse().unwrap()));
        assert_eq!(before("::".parse().unwrap()), None);
        let nets = networks("192.0.2.0".parse().unwrap(), "192.0.2.130".parse().unwrap()).unwrap();
        let texts: Vec<String> = nets.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["192.0.2.0/25", "192.0.2.128/31", "192.0.2.130/32"]);
    }
}
