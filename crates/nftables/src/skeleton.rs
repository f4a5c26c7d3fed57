//! The fixed part of a table: its sets, and its chains with their rules.
//!
//! Owns what both [layouts](super::layout) have: the sets, the first lookup, and the chains that drop and reject. The
//! base chains have kube-proxy's types, hooks and priorities, because CNI plug-ins and policy engines rely on them.

use portolan_model::{Family, NodePortAddresses, Protocol, Settings};
use portolan_wire::nftables::expr::{Counter, MetaKey};
use portolan_wire::nftables::{
    self as wire, ByteOrder, ChainType, DataType, Expr, Hook, NftTable, SetData, SetFlags, UserData,
    concatenated,
};

use super::chain::{ChainBody, FamilyTable, REFUSAL, RuleBody, SERVICES, base, commented, refuse, rule};
use super::class::{Balance, Class};
use super::element::Set;
use super::expression::{
    Side, accept, address, address_is_local, drop, goto, in_cidr, jump, map, member, meta, not_member,
    not_to_loopback, not_zero, priority, protocol_and_port, protocol_is, reject, reset_connection,
    reset_priority, service_key, set_meta, state_new, verdict_map,
};
use super::layout::Layout;
use super::value::CLASS_MASK;

/// Number of bindings that the affinity map can hold, for all Services of a family together.
const AFFINITY_SIZE: u32 = 262_144;

/// Number of classes that fit: as many as have a number. With a size and a key of four bytes, the kernel uses a table that
/// never grows (256 KiB), and its fastest lookup (`nft_hash_lookup_fast`).
const CLASSES_SIZE: u32 = CLASS_MASK;

pub(crate) fn table(place: FamilyTable) -> NftTable {
    let userdata = UserData::comment("Service virtual IPs; made and kept by Portolan");
    NftTable { userdata, ..NftTable::new(place.wire(), place.table) }
}

/// Returns every chain of the skeleton. Each one comes after the chains that it jumps to.
pub(crate) fn chains(layout: Layout<'_>) -> Vec<ChainBody> {
    let settings = layout.settings;
    let mut chains = vec![
        ChainBody::regular(REFUSAL, refusal_rules(settings.family)),
        ChainBody::regular(SERVICES, services_rules(settings)),
    ];
    chains.push(layout.own_chain());
    if layout.has_source_ranges {
        chains.extend(source_range_chains(layout));
    }
    chains.extend([
        ChainBody::regular("service-endpoints-check", service_endpoints_rules(settings.family)),
        ChainBody::regular("node-port-endpoints-check", node_port_endpoints_rules(settings)),
        ChainBody::regular("cluster-ips-check", cluster_ips_rules(settings)),
    ]);
    chains.extend(new_packet_chains(layout));
    chains.extend(check_chains());
    chains.extend(layout.base_chains());
    chains
}

/// Returns the chains that check the source ranges of Services. They exist only while a Service has some: otherwise every
/// packet of the node would meet them for nothing.
pub(crate) fn source_range_chains(layout: Layout<'_>) -> Vec<ChainBody> {
    let settings = layout.settings;
    let mut chains = Vec::new();
    if settings.counters {
        chains.push(ChainBody::regular(SOURCE_RANGE_DROPS, source_range_drop_rules(settings.family)));
    }
    chains.push(ChainBody::regular(
        FIREWALL_CHECK,
        vec![layout.passes_to_endpoints(), firewall_rule(settings)],
    ));
    chains.extend(SOURCE_RANGE_HOOKS.map(|(name, hook)| check(name, hook, -110, FIREWALL_CHECK)));
    chains
}

/// Returns true for the name of a base chain that leads to the check of source ranges.
pub(crate) fn is_for_source_ranges(base_chain: &str) -> bool {
    SOURCE_RANGE_HOOKS.iter().any(|(name, _)| *name == base_chain)
}

/// Returns the chain of a class, which goes to an endpoint chain.
pub(crate) fn class_chain(layout: Layout<'_>, class: Class) -> ChainBody {
    ChainBody::regular(class.to_string(), layout.class_rules(class))
}

/// Returns the chain that leads packets of a class to one of N endpoints.
pub(crate) fn balance_chain(layout: Layout<'_>, balance: Balance) -> ChainBody {
    ChainBody::regular(balance.to_string(), layout.balance_rules(balance))
}

/// Returns the chain of a class, after those that it leads to.
pub(crate) fn chains_of(layout: Layout<'_>, class: Class) -> Vec<ChainBody> {
    let balances = class.balances().map(|balance| balance_chain(layout, balance));
    balances.chain([class_chain(layout, class)]).collect()
}

/// Returns the definition of a set. [`Set::Affinity`] is created only when a Service needs it, because the kernel
/// allocates its buckets at creation.
pub(crate) fn set(place: FamilyTable, set: Set) -> wire::Set {
    let ip = match place.family {
        Family::Ipv4 => DataType::IPV4_ADDR,
        Family::Ipv6 => DataType::IPV6_ADDR,
    };
    let (proto, port, mark) = (DataType::INET_PROTO, DataType::INET_SERVICE, DataType::MARK);
    let (host, network) = (ByteOrder::Host, ByteOrder::Network);
    let endpoint = Some((vec![ip, port], network));
    let (key, order, data, comment) = match set {
        Set::Services => {
            (vec![ip, proto, port], network, Some((vec![mark], host)), "id and class of each frontend")
        }
        Set::NodePorts => {
            (vec![proto, port], network, Some((vec![mark], host)), "id and class of each node port")
        }
        Set::Endpoints => {
            (vec![mark, mark], host, endpoint, "id . index : endpoint; local ones from 0x10000 on")
        }
        Set::Classes => (vec![mark], host, None, "chain of each class"),
        Set::AffinityChoices => {
            (vec![mark, mark], host, Some((vec![mark], host)), "id . index : id and slot")
        }
        Set::AffinityEndpoints => (vec![mark], host, endpoint, "id and slot : endpoint"),
        Set::AffinityLocalEndpoints => (vec![mark], host, endpoint, "id and slot : local endpoint"),
        Set::Affinity => (vec![mark, ip], host, Some((vec![mark], host)), "id . client : id and slot"),
        Set::ClusterIps => (vec![ip], network, None, "active cluster IPs"),
        Set::NodePortIps => (vec![ip], network, None, "IPs that accept node ports"),
        Set::NoEndpointServices => (vec![ip, proto, port], network, None, "rejected: no endpoint"),
        Set::NoLocalEndpointServices => (vec![ip, proto, port], network, None, "dropped: no local endpoint"),
        Set::NoEndpointNodePorts => (vec![proto, port], network, None, "rejected: no endpoint"),
        Set::NoLocalEndpointNodePorts => (vec![proto, port], network, None, "dropped: no local endpoint"),
        Set::FirewallIps => (vec![ip, proto, port], network, None, "subject to loadBalancerSourceRanges"),
        Set::SourceRanges => (vec![ip, proto, port, ip], network, None, "allowed sources"),
        Set::HairpinConnections => (vec![ip, ip, proto, port], network, None, "service hairpin connections"),
        Set::ServiceCounters => (vec![mark], host, None, "id: new connections"),
        Set::SourceRangeDrops => (vec![ip, proto, port], network, None, "dropped: source not allowed"),
    };
    let set_data = match (&data, set) {
        (_, Set::Classes) => Some(SetData::Verdict),
        (Some((fields, _)), _) => {
            Some(SetData::Value { kind: concatenated(fields), length: padded_length(fields) })
        }
        (None, _) => None,
    };
    let userdata = UserData::set(order, data.map(|(_, order)| order), comment);
    let (flags, fields, size) = match set {
        Set::Affinity => (SetFlags::TIMEOUT.with(SetFlags::EVAL), Vec::new(), Some(AFFINITY_SIZE)),
        Set::SourceRanges => (
            SetFlags::INTERVAL.with(SetFlags::CONCAT),
            key.iter().map(|&field| field_length(field)).collect(),
            None,
        ),
        Set::Classes => (SetFlags::default(), Vec::new(), Some(CLASSES_SIZE)),
        _ => (SetFlags::default(), Vec::new(), None),
    };
    let definition =
        wire::Set::new(place.wire(), place.table, set.name(), concatenated(&key), padded_length(&key));
    let counter = set.is_for_counters().then(|| Expr::Counter(Counter::default()));
    let expressions = counter.into_iter().collect();
    wire::Set { flags, data: set_data, size, fields, expressions, userdata, ..definition }
}

/// Returns the length in bytes without padding.
fn field_length(field: DataType) -> u32 {
    match field {
        DataType::INET_PROTO => 1,
        DataType::INET_SERVICE => 2,
        DataType::IPV6_ADDR => 16,
        _ => 4,
    }
}

fn padded_length(fields: &[DataType]) -> u32 {
    fields.iter().map(|&field| field_length(field).next_multiple_of(4)).sum()
}

/// Returns the chains for first packets of connections: they let pass what a Service has translated or captured, and check the
/// rest. Packets that a Service has taken do not need the value in their priority any more, so
/// it is set back to 0.
fn new_packet_chains(layout: Layout<'_>) -> [ChainBody; 3] {
    let is_taken = &layout.is_taken()[..];
    let taken = || rule([is_taken, &reset_priority(0), &[accept()]].concat());
    // Packets of the relay are not marked, and no Service has translated them.
    let taken_locally = || layout.relayed().into_iter().chain([taken()]);
    let own =
        taken_locally().chain(layout.refuses_own_node_ports().then(|| refused_node_ports(layout.settings)));
    let own = own.collect();
    // `ip_forward` has overwritten the value of most packets, with a priority that is to stay.
    let carries = rule([&[meta(MetaKey::PRIORITY, 0), not_zero(0)], is_taken, &reset_priority(0)].concat());
    let forwarded = rule([is_taken, &[accept()]].concat());
    let checks = |name: &str, mut rules: Vec<RuleBody>, chains: [&str; 2]| {
        rules.extend(chains.map(|chain| rule(vec![jump(chain)])));
        ChainBody::regular(name, rules)
    };
    [
        checks(
            "input-check",
            taken_locally().collect(),
            ["node-port-endpoints-check", "service-endpoints-check"],
        ),
        checks("forward-check", vec![carries, forwarded], ["service-endpoints-check", "cluster-ips-check"]),
        checks("output-check", own, ["service-endpoints-check", "cluster-ips-check"]),
    ]
}

/// Returns a base chain that leads to a chain that drops or rejects. Packets after the first of a connection meet one
/// comparison.
fn check(name: &str, hook: Hook, priority: i32, chain: &str) -> ChainBody {
    let new = rule([state_new(), vec![jump(chain)]].concat());
    base(name, ChainType::Filter, hook, priority, vec![new])
}

/// Returns the base chains that lead to the chains that drop and reject, except for those of source ranges.
fn check_chains() -> [ChainBody; 3] {
    [
        check("filter-input", Hook::INPUT, 0, "input-check"),
        check("filter-forward", Hook::FORWARD, 0, "forward-check"),
        check("filter-output", Hook::OUTPUT, 0, "output-check"),
    ]
}

/// Rejects TCP with a reset, everything else with an ICMP error. An ICMP error for TCP would reach a client on this
/// node while its `connect()` holds the socket, and take effect only when the SYN is repeated, a second later
/// (`tcp_v4_err`, `TCP_TIMEOUT_INIT`).
fn refusal_rules(family: Family) -> Vec<RuleBody> {
    let reset = [&protocol_is(Protocol::Tcp)[..], &[reset_connection()]].concat();
    vec![rule(reset), rule(vec![reject(family)])]
}

/// `meta priority set <key> map @services meta priority & CLASS vmap @classes`, and the same for node ports.
fn services_rules(settings: &Settings) -> Vec<RuleBody> {
    let dispatch = |value: u8| {
        let mut expressions = vec![set_meta(MetaKey::PRIORITY, value)];
        expressions.extend(priority(CLASS_MASK, 0));
        expressions.push(verdict_map(Set::Classes, 0));
        expressions
    };
    let (key, _) = service_key(settings.family);
    let by_address = [key, vec![map(Set::Services, 0, 0)], dispatch(0)].concat();
    // The set lookup comes before the `fib` lookup, which costs more: most packets are not for a node port. The value
    // found is kept in a register that the address checks do not use.
    let found = 12;
    let lookup = [&protocol_and_port(0)[..], &[map(Set::NodePorts, 0, found)]].concat();
    let by_node_port = [lookup, accepts_node_ports(settings), dispatch(found)].concat();
    vec![commented(by_address, ""), commented(by_node_port, "")]
}

/// `fib daddr type local ip daddr != 127.0.0.0/8`, `ip daddr ADDRESS`, or `ip daddr @node-port-ips`.
fn accepts_node_ports(settings: &Settings) -> Vec<Expr> {
    match &settings.node_port_addresses {
        NodePortAddresses::MatchAll => {
            [address_is_local(Side::Destination), not_to_loopback(settings.family)].concat()
        }
        NodePortAddresses::Addresses(addresses) => match &**addresses {
            // A comparison is faster than a lookup, and most nodes have one address of a family.
            [only] => in_cidr(settings.family, Side::Destination, (*only).into(), true),
            _ => vec![address(settings.family, Side::Destination, 0), member(Set::NodePortIps, 0)],
        },
    }
}

/// `<key> @firewall-ips <key> . ip saddr != @source-ranges drop`, or the same with `goto` to the chain that counts.
fn firewall_rule(settings: &Settings) -> RuleBody {
    let family = settings.family;
    let (key, words) = service_key(family);
    let verdict = if settings.counters { goto(SOURCE_RANGE_DROPS) } else { drop() };
    let ranges =
        [key.clone(), vec![address(family, Side::Source, words), not_member(Set::SourceRanges, 0), verdict]];
    rule([key, vec![member(Set::FirewallIps, 0)], ranges.concat()].concat())
}

/// The chain that checks source ranges.
pub(crate) const FIREWALL_CHECK: &str = "firewall-check";

/// The base chains that lead to it.
const SOURCE_RANGE_HOOKS: [(&str, Hook); 2] =
    [("filter-prerouting-pre-dnat", Hook::PREROUTING), ("filter-output-pre-dnat", Hook::OUTPUT)];

/// The chain that counts packets from sources that are not allowed, and drops them.
const SOURCE_RANGE_DROPS: &str = "source-range-drops";

/// `<key> @source-range-drops` and `drop`. The rule that drops has no lookup that could fail.
fn source_range_drop_rules(family: Family) -> Vec<RuleBody> {
    let (key, _) = service_key(family);
    vec![rule([key, vec![member(Set::SourceRangeDrops, 0)]].concat()), rule(vec![drop()])]
}

fn service_endpoints_rules(family: Family) -> Vec<RuleBody> {
    let (key, _) = service_key(family);
    vec![
        rule([key.clone(), vec![member(Set::NoLocalEndpointServices, 0), drop()]].concat()),
        rule([key, vec![member(Set::NoEndpointServices, 0), refuse()]].concat()),
    ]
}

fn node_port_endpoints_rules(settings: &Settings) -> Vec<RuleBody> {
    let dropped = check_node_ports(settings, Set::NoLocalEndpointNodePorts, drop());
    vec![dropped, refused_node_ports(settings)]
}

/// Returns the rule that refuses packets to node ports without endpoints.
fn refused_node_ports(settings: &Settings) -> RuleBody {
    check_node_ports(settings, Set::NoEndpointNodePorts, refuse())
}

/// `<protocol and port> @SET <address> VERDICT`. An element counts each packet that is looked up, so with counters the address
/// comes first.
fn check_node_ports(settings: &Settings, set: Set, verdict: Expr) -> RuleBody {
    let lookup = [&protocol_and_port(0)[..], &[member(set, 0)]].concat();
    let address = accepts_node_ports(settings);
    let parts = if settings.counters { [address, lookup] } else { [lookup, address] };
    rule([parts.concat(), vec![verdict]].concat())
}

fn cluster_ips_rules(settings: &Settings) -> Vec<RuleBody> {
    let family = settings.family;
    let wrong_port = vec![address(family, Side::Destination, 0), member(Set::ClusterIps, 0), refuse()];
    let mut rules = vec![commented(wrong_port, "Reject traffic to invalid ports of ClusterIPs")];
    rules.extend(settings.service_cidrs.iter().map(|cidr| {
        let unallocated = [in_cidr(family, Side::Destination, *cidr, true), vec![drop()]].concat();
        commented(unallocated, "Drop traffic to unallocated ClusterIPs")
    }));
    rules
}
