//! The fixed part of a table: its sets, and its chains with their rules.
//!
//! The base chains have kube-proxy's types, hooks and priorities, because CNI plug-ins and policy engines rely on
//! them.

use portolan_model::{Family, NodePortAddresses, Protocol, Settings};
use portolan_wire::nftables::expr::MetaKey;
use portolan_wire::nftables::{
    self as wire, BaseChain, ByteOrder, Chain, ChainType, DataType, Expr, Hook, Policy, Rule, SetData,
    SetFlags, Table, UserData, concatenated,
};

use super::capture::{self, Listeners};
use super::class::{Balance, Class};
use super::element::Set;
use super::expression::{
    Side, accept, address, address_is_local, address_words, delete, dnat, drop, goto, in_cidr, is_marked,
    jump, local_pod, map, mark_for_masquerade, masquerade, member, meta, not_member, not_to_loopback,
    not_zero, priority, protocol_and_port, protocol_is, random, reject, reset_connection, reset_priority,
    service_key, set_meta, state_new, status_dnat, take_mark, update, verdict_map, wire_family,
};
use super::value::{CLASS_MASK, ID_MASK, LOCAL_OFFSET};

/// The name of the nftables mode's table, in either family.
pub const TABLE: &str = "portolan";

/// Number of bindings that the affinity map can hold, for all Services of a family together.
const AFFINITY_SIZE: u32 = 262_144;

/// A table in a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) family: Family,
    pub(crate) table: &'static str,
}

impl Place {
    /// Returns the family in netlink's representation.
    pub(crate) const fn wire(self) -> wire::Family {
        wire_family(self.family)
    }

    /// Returns true if the table leads packets to the relay instead of translating them.
    pub(crate) fn is_capture(self) -> bool {
        self.table == capture::TABLE
    }
}

impl Layout<'_> {
    pub(crate) const fn place(&self) -> Place {
        let table = if self.capture.is_some() { capture::TABLE } else { TABLE };
        Place { family: self.settings.family, table }
    }
}

/// The inputs that determine the fixed part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) capture: Option<Listeners>,
}

/// One rule: its expressions and its comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleBody {
    pub(crate) expressions: Vec<Expr>,
    pub(crate) comment: &'static str,
}

/// A chain as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainBody {
    pub(crate) name: String,
    pub(crate) base: Option<BaseChain>,
    pub(crate) rules: Vec<RuleBody>,
}

impl ChainBody {
    pub(crate) fn chain(&self, place: Place) -> Chain {
        Chain { base: self.base.clone(), ..Chain::regular(place.wire(), place.table, self.name.as_str()) }
    }

    pub(crate) fn rules(&self, place: Place) -> impl Iterator<Item = Rule> + '_ {
        self.rules.iter().map(move |body| {
            let rule = Rule::new(place.wire(), place.table, self.name.as_str(), body.expressions.clone());
            if body.comment.is_empty() {
                rule
            } else {
                Rule { userdata: UserData::comment(body.comment), ..rule }
            }
        })
    }

    fn regular(name: impl Into<String>, rules: Vec<RuleBody>) -> Self {
        Self { name: name.into(), base: None, rules }
    }
}

pub(crate) fn table(place: Place) -> Table {
    let userdata = UserData::comment("Service virtual IPs; made and kept by Portolan");
    Table { userdata, ..Table::new(place.wire(), place.table) }
}

/// Returns every chain of the skeleton. Each one comes after the chains that it jumps to.
pub(crate) fn chains(layout: Layout<'_>) -> Vec<ChainBody> {
    let settings = layout.settings;
    let mut chains = vec![
        ChainBody::regular(REFUSAL, refusal_rules(settings.family)),
        ChainBody::regular(SERVICES, services_rules(settings)),
    ];
    if layout.capture.is_none() {
        chains.push(ChainBody::regular("masquerading", masquerading_rules(settings)));
    }
    chains.extend([
        ChainBody::regular("firewall-check", vec![firewall_rule(settings.family)]),
        ChainBody::regular("service-endpoints-check", service_endpoints_rules(settings.family)),
        ChainBody::regular("node-port-endpoints-check", node_port_endpoints_rules(settings)),
        ChainBody::regular("cluster-ips-check", cluster_ips_rules(settings)),
        all_of("input-check", &["node-port-endpoints-check", "service-endpoints-check"]),
        all_of("forward-check", &["service-endpoints-check", "cluster-ips-check"]),
    ]);
    if layout.capture.is_some() {
        chains.extend(check_chains(&is_marked(capture::capture_mark(settings))));
        chains.extend(capture::base_chains(settings));
    } else {
        chains.extend(check_chains(&status_dnat()));
        chains.extend(nat_chains());
    }
    chains
}

/// Returns the chain of a class. It marks packets to be masqueraded and goes to an endpoint chain.
pub(crate) fn class_chain(layout: Layout<'_>, class: Class) -> ChainBody {
    let settings = layout.settings;
    // Captured packets need no mark: the relay chooses the source address when it connects to the endpoint.
    let mark = || if layout.capture.is_some() { Vec::new() } else { mark_for_masquerade(settings).to_vec() };
    let to = |balance: Balance| rule(vec![goto(balance.to_string())]);
    let rules = match class {
        Class::Internal(balance) | Class::External(balance) if layout.capture.is_some() => vec![to(balance)],
        Class::Internal(balance) => internal_masquerade(settings).into_iter().chain([to(balance)]).collect(),
        Class::External(balance) => vec![commented(mark(), "masquerade"), to(balance)],
        Class::ExternalLocal(cluster, local) => {
            let short_cut = |expressions: Vec<Expr>| [expressions, vec![goto(cluster.to_string())]].concat();
            let mut rules = Vec::new();
            if let Some(is_local) = local_pod(settings, true) {
                rules.push(commented(short_cut(is_local), "short-circuit pod traffic"));
            }
            let from_node = [address_is_local(Side::Source).to_vec(), mark()].concat();
            rules.push(commented(short_cut(from_node), "short-circuit and masquerade local traffic"));
            rules.push(match local {
                0 => commented(reset_priority(0).to_vec(), "no local endpoint: dropped later"),
                backends => to(Balance { local: true, backends, ..cluster }),
            });
            rules
        }
    };
    ChainBody::regular(class.to_string(), rules)
}

/// Returns the chain that chooses one of N endpoints and translates the destination.
pub(crate) fn balance_chain(layout: Layout<'_>, balance: Balance) -> ChainBody {
    let family = layout.settings.family;
    let rules = match balance.affinity {
        _ if let Some(capture) = layout.capture => capture.rules(layout.settings, balance.local),
        None => plain_balance_rules(family, balance),
        Some(seconds) => affinity_rules(family, balance, seconds),
    };
    ChainBody::regular(balance.to_string(), rules)
}

/// Returns the definition of a set. [`Set::Affinity`] is created only when a Service needs it, because the kernel
/// allocates its buckets at creation.
pub(crate) fn set(place: Place, set: Set) -> wire::Set {
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
        _ => (SetFlags::default(), Vec::new(), None),
    };
    let definition =
        wire::Set::new(place.wire(), place.table, set.name(), concatenated(&key), padded_length(&key));
    wire::Set { flags, data: set_data, size, fields, userdata, ..definition }
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

pub(super) fn rule(expressions: Vec<Expr>) -> RuleBody {
    commented(expressions, "")
}

pub(super) fn commented(expressions: Vec<Expr>, comment: &'static str) -> RuleBody {
    RuleBody { expressions, comment }
}

/// Returns a chain that jumps to each of the given chains.
fn all_of(name: &str, chains: &[&str]) -> ChainBody {
    ChainBody::regular(name, chains.iter().map(|chain| rule(vec![jump(chain)])).collect())
}

/// Returns a base chain.
pub(super) fn base(
    name: &str,
    kind: ChainType,
    hook: Hook,
    priority: i32,
    rules: Vec<RuleBody>,
) -> ChainBody {
    let base = BaseChain { kind, hook, priority, policy: Policy::Accept };
    ChainBody { name: name.into(), base: Some(base), rules }
}

/// Returns the chains that drop and reject. `is_taken` matches packets that a Service has translated or captured.
/// Such packets do not need the value in their priority any more, so it is set back to 0.
fn check_chains(is_taken: &[Expr]) -> [ChainBody; 5] {
    let new = |chain: &str| rule([state_new(), vec![jump(chain)]].concat());
    let taken = [&state_new()[..], is_taken, &reset_priority(0)].concat();
    let untaken = |chain: &str| vec![rule([&taken[..], &[accept()]].concat()), new(chain)];
    // Most packets fail the test for a priority, which comes first because it is the quickest: `ip_forward` has
    // overwritten the value, or the packet is not the first of its connection.
    let carries = [vec![meta(MetaKey::PRIORITY, 0), not_zero(0)], taken.clone()].concat();
    let forwarded = rule([is_taken, &[accept()]].concat());
    let check = |name, hook, rules| base(name, ChainType::Filter, hook, 0, rules);
    let firewall = |name, hook| base(name, ChainType::Filter, hook, -110, vec![new("firewall-check")]);
    [
        firewall("filter-prerouting-pre-dnat", Hook::PREROUTING),
        firewall("filter-output-pre-dnat", Hook::OUTPUT),
        check("filter-input", Hook::INPUT, untaken("input-check")),
        check("filter-forward", Hook::FORWARD, vec![rule(carries), forwarded, new("forward-check")]),
        check("filter-output", Hook::OUTPUT, untaken("forward-check")),
    ]
}

/// Returns true for a base chain that translates, drops or rejects packets, and false for the one that masquerades.
pub(super) fn leads_in(chain: &str) -> bool {
    chain != MASQUERADES
}

/// The chain with the first lookup of a packet.
pub(super) const SERVICES: &str = "services";

/// The base chain that translates packets that this node receives.
const PREROUTING_CHAIN: &str = "nat-prerouting";

/// Returns the name of the base chain that leads packets that this node receives to [`SERVICES`].
pub(super) fn first_base_chain(place: Place) -> &'static str {
    if place.is_capture() { capture::PREROUTING_CHAIN } else { PREROUTING_CHAIN }
}

/// The base chain that masquerades translated packets.
const MASQUERADES: &str = "nat-postrouting";

fn nat_chains() -> [ChainBody; 3] {
    let nat = |name, hook, priority, chain| {
        base(name, ChainType::Nat, hook, priority, vec![rule(vec![jump(chain)])])
    };
    [
        nat(PREROUTING_CHAIN, Hook::PREROUTING, -100, SERVICES),
        nat("nat-output", Hook::OUTPUT, -100, SERVICES),
        nat(MASQUERADES, Hook::POSTROUTING, 100, "masquerading"),
    ]
}

/// The chain that rejects packets. The name is kube-proxy's.
const REFUSAL: &str = "reject-chain";

/// Returns the verdict that leads to the chain that rejects. That chain tests for TCP, so the checks cost packets
/// that are not rejected nothing more.
pub(super) fn refuse() -> Expr {
    goto(REFUSAL)
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

/// `fib daddr type local ip daddr != 127.0.0.0/8`, or `ip daddr @node-port-ips`.
fn accepts_node_ports(settings: &Settings) -> Vec<Expr> {
    match settings.node_port_addresses {
        NodePortAddresses::MatchAll => {
            [address_is_local(Side::Destination), not_to_loopback(settings.family)].concat()
        }
        NodePortAddresses::Addresses(_) => {
            vec![address(settings.family, Side::Destination, 0), member(Set::NodePortIps, 0)]
        }
    }
}

fn masquerading_rules(settings: &Settings) -> Vec<RuleBody> {
    let family = settings.family;
    let words = address_words(family);
    let hairpin = [
        status_dnat(),
        vec![address(family, Side::Source, 0), address(family, Side::Destination, words)],
        protocol_and_port(words * 2).to_vec(),
        vec![member(Set::HairpinConnections, 0), masquerade()],
    ];
    vec![rule([&take_mark(settings)[..], &[masquerade()]].concat()), commented(hairpin.concat(), "hairpin")]
}

/// `<key> @firewall-ips <key> . ip saddr != @source-ranges drop`
fn firewall_rule(family: Family) -> RuleBody {
    let (key, words) = service_key(family);
    let ranges =
        [key.clone(), vec![address(family, Side::Source, words), not_member(Set::SourceRanges, 0), drop()]];
    rule([key, vec![member(Set::FirewallIps, 0)], ranges.concat()].concat())
}

fn service_endpoints_rules(family: Family) -> Vec<RuleBody> {
    let (key, _) = service_key(family);
    vec![
        rule([key.clone(), vec![member(Set::NoLocalEndpointServices, 0), drop()]].concat()),
        rule([key, vec![member(Set::NoEndpointServices, 0), refuse()]].concat()),
    ]
}

fn node_port_endpoints_rules(settings: &Settings) -> Vec<RuleBody> {
    let check = |set, verdict| {
        let lookup = [&protocol_and_port(0)[..], &[member(set, 0)]].concat();
        rule([lookup, accepts_node_ports(settings), vec![verdict]].concat())
    };
    vec![check(Set::NoLocalEndpointNodePorts, drop()), check(Set::NoEndpointNodePorts, refuse())]
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

fn internal_masquerade(settings: &Settings) -> Option<RuleBody> {
    let mark = mark_for_masquerade(settings).to_vec();
    if settings.masquerade_all {
        return Some(commented(mark, "masquerade all clusterIP traffic"));
    }
    let from_outside = local_pod(settings, false)?;
    Some(commented([from_outside, mark].concat(), "masquerade clusterIP traffic from outside cluster"))
}

/// Returns the index of the first endpoint of the set.
const fn offset(balance: Balance) -> u32 {
    if balance.local { LOCAL_OFFSET } else { 0 }
}

/// `dnat to meta priority & ID . numgen random mod N map @endpoints`
///
/// The second rule serves a packet that drew the last index just when that index was removed. It takes the first
/// index.
fn plain_balance_rules(family: Family, balance: Balance) -> Vec<RuleBody> {
    let choose = |modulus: u16| {
        let mut expressions = priority(ID_MASK, 0).to_vec();
        expressions.extend([random(modulus, offset(balance), 1), map(Set::Endpoints, 0, 0)]);
        expressions.push(dnat(family, 0));
        rule(expressions)
    };
    let mut rules = vec![choose(balance.backends)];
    if balance.backends > 1 {
        rules.push(choose(1));
    }
    rules.push(rule(reset_priority(0).to_vec()));
    rules
}

/// Draws a slot, then creates or refreshes the client's binding, reads it, and translates to its endpoint. If that
/// endpoint is gone, the binding is deleted and the rules do the same once more.
fn affinity_rules(family: Family, balance: Balance, seconds: u32) -> Vec<RuleBody> {
    let id_and_client = || [&priority(ID_MASK, 0)[..], &[address(family, Side::Source, 1)]].concat();
    let after_client = 1 + address_words(family);
    let choose = |modulus: u16| {
        let mut expressions = priority(ID_MASK, 0).to_vec();
        let draw = random(modulus, offset(balance), 1);
        expressions.extend([draw, map(Set::AffinityChoices, 0, 0), set_meta(MetaKey::PRIORITY, 0)]);
        rule(expressions)
    };
    let remember = || {
        let value = [meta(MetaKey::PRIORITY, after_client), update(Set::Affinity, 0, after_client, seconds)];
        rule([id_and_client(), value.to_vec()].concat())
    };
    let recall = || {
        let value = [map(Set::Affinity, 0, 0), set_meta(MetaKey::PRIORITY, 0)];
        rule([id_and_client(), value.to_vec()].concat())
    };
    let follow = || {
        let slots = if balance.local { Set::AffinityLocalEndpoints } else { Set::AffinityEndpoints };
        rule(vec![meta(MetaKey::PRIORITY, 0), map(slots, 0, 0), dnat(family, 0)])
    };
    let forget = rule([id_and_client(), vec![delete(Set::Affinity, 0, 0)]].concat());
    vec![
        choose(balance.backends),
        remember(),
        recall(),
        follow(),
        forget,
        choose(1),
        choose(balance.backends),
        remember(),
        recall(),
        follow(),
        rule(reset_priority(0).to_vec()),
    ]
}
