//! The chains and rules that exist independently of Services: the chains that the kernel's own chains jump to, and
//! the rules before and after those of Services.

use portolan_model::{Family, LocalDetector, NodePortAddresses};

use super::options::{COUNTER_INVALID, Redirect};
use super::rule::{self, Comment, IptablesTable, Rule, UNTRANSLATED};
use super::service::Context;

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(super) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(super) const FORWARD: &str = "KUBE-FORWARD";
pub(super) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// Shared with kubelet, which may have written the same rule. Never removed.
pub(super) const FIREWALL: &str = "KUBE-FIREWALL";
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(super) const MARK_MASQUERADE: &str = "KUBE-MARK-MASQ";
/// An empty chain. A flush of the table removes it, by which kube-proxy and this data plane notice the flush.
pub(super) const CANARY: &str = "KUBE-PROXY-CANARY";

pub(super) const LOOPBACK: &str = "127.0.0.0/8";

/// The comment of the rules that guard the relay's listeners. Rules with it show that the chains are those of the
/// userspace mode.
pub(super) const RELAY: &str = "relay of the userspace mode, by Services only";

/// The chains that exist independently of Services, except for the one that kubelet shares. A clean-up removes them.
pub(super) const OWN: [(IptablesTable, &str); 12] = [
    (IptablesTable::Mangle, CANARY),
    (IptablesTable::Filter, SERVICES),
    (IptablesTable::Filter, EXTERNAL_SERVICES),
    (IptablesTable::Filter, FORWARD),
    (IptablesTable::Filter, NODE_PORTS),
    (IptablesTable::Filter, PROXY_FIREWALL),
    (IptablesTable::Filter, CANARY),
    (IptablesTable::Nat, SERVICES),
    (IptablesTable::Nat, NODE_PORTS),
    (IptablesTable::Nat, POSTROUTING),
    (IptablesTable::Nat, MARK_MASQUERADE),
    (IptablesTable::Nat, CANARY),
];

/// Chains of the filter table that exist independently of Services, except for the one that kubelet shares.
pub(super) const FILTER_CHAINS: [&str; 5] =
    [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL];
/// Those that have rules of Services. The order of their rules is free.
pub(super) const FILTER_DISPATCH: [&str; 4] = [SERVICES, EXTERNAL_SERVICES, NODE_PORTS, PROXY_FIREWALL];
/// Chains of the nat table that lead to those of Service ports.
pub(super) const NAT_DISPATCH: [&str; 2] = [SERVICES, NODE_PORTS];
/// Chains of the nat table without rules of Services.
pub(super) const NAT_FIXED: [&str; 2] = [POSTROUTING, MARK_MASQUERADE];

/// Returns the rules of the filter table that come before those of Services.
pub(super) fn filter_first(context: Context<'_>) -> Vec<Rule> {
    if !context.options.on_loopback(context.settings.family) {
        return Vec::new();
    }
    let comment = Comment("block incoming localnet connections");
    // Loopback addresses can be reached from the network once `route_localnet` is set.
    let state = "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT";
    let text = format!("{comment} -d {LOOPBACK} ! -s {LOOPBACK} {state} -j DROP");
    vec![Rule { table: IptablesTable::Filter, chain: FIREWALL, text }]
}

/// Returns the rules of the filter table that come after those of Services.
pub(super) fn filter_last(context: Context<'_>) -> Vec<Rule> {
    let rule = |text| Rule { table: IptablesTable::Filter, chain: FORWARD, text };
    let mark = mark(context);
    let mut rules = Vec::new();
    if context.options.drop_invalid {
        let count = if context.options.count_invalid {
            format!("-m nfacct --nfacct-name {COUNTER_INVALID} ")
        } else {
            String::new()
        };
        rules.push(rule(format!("-m conntrack --ctstate INVALID {count}-j DROP")));
    }
    let comment = Comment("kubernetes forwarding rules");
    rules.push(rule(format!("{comment} -m mark --mark {mark}/{mark} -j ACCEPT")));
    let comment = Comment("kubernetes forwarding conntrack rule");
    rules.push(rule(format!("{comment} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")));
    rules.extend(filter_dispatch(context));
    rules
}

/// Returns the fixed rules of those chains of the filter table that also have rules of Services.
pub(super) fn filter_dispatch(context: Context<'_>) -> Vec<Rule> {
    let mut rules = vec![own_node_ports()];
    rules.extend(context.options.redirect.into_iter().flat_map(listeners));
    rules
}

/// Returns the rule that refuses this node's packets to its own node ports without endpoints in OUTPUT. kube-proxy refuses them in
/// INPUT.
///
/// Such a packet passes OUTPUT and POSTROUTING first, where connection tracking keeps an entry for it. If only INPUT refused it,
/// later packets from the same port would find this entry and not be translated, even if endpoints have come.
fn own_node_ports() -> Rule {
    let comment = Comment("kubernetes externally-visible service portals on this node");
    let text = format!("{comment} -m addrtype --dst-type LOCAL -j {EXTERNAL_SERVICES}");
    Rule { table: IptablesTable::Filter, chain: SERVICES, text }
}

/// Returns rules that refuse packets to the listeners that take the place of endpoints, unless a Service translated
/// them.
fn listeners(redirect: Redirect) -> [Rule; 2] {
    let comment = Comment(RELAY);
    let (first, last) = redirect.ports;
    ["tcp", "udp"].map(|protocol| {
        let to = format_args!("-m {protocol} -p {protocol} --dport {first}:{last}");
        let text = format!("{comment} {to} {UNTRANSLATED} -j {}", rule::refusal(protocol));
        Rule { table: IptablesTable::Filter, chain: NODE_PORTS, text }
    })
}

/// Returns the rules of the nat table that mark packets and masquerade marked ones.
pub(super) fn nat_first(context: Context<'_>) -> Vec<Rule> {
    let rule = |chain, text| Rule { table: IptablesTable::Nat, chain, text };
    let mark = mark(context);
    let comment = Comment("kubernetes service traffic requiring SNAT");
    vec![
        rule(POSTROUTING, format!("-m mark ! --mark {mark}/{mark} -j RETURN")),
        // A packet that passes a second time, in a tunnel, is not masqueraded again.
        rule(POSTROUTING, format!("-j MARK --xor-mark {mark}")),
        rule(POSTROUTING, format!("{comment} -j MASQUERADE --random-fully")),
        rule(MARK_MASQUERADE, format!("-j MARK --or-mark {mark}")),
    ]
}

/// Returns the last rules of `KUBE-SERVICES` in the nat table: packets to addresses of this node go to the node
/// ports.
pub(super) fn nat_last(context: Context<'_>) -> Vec<Rule> {
    let comment = Comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain");
    let rule = |to: &str| {
        let text = format!("{comment} {to} -j {NODE_PORTS}");
        Rule { table: IptablesTable::Nat, chain: SERVICES, text }
    };
    let on_loopback = context.options.on_loopback(context.settings.family);
    match &context.settings.node_port_addresses {
        NodePortAddresses::MatchAll => {
            let except = match context.settings.family {
                Family::Ipv4 if on_loopback => "",
                Family::Ipv4 => " ! -d 127.0.0.0/8",
                Family::Ipv6 => " ! -d ::1/128",
            };
            vec![rule(&format!("-m addrtype --dst-type LOCAL{except}"))]
        }
        NodePortAddresses::Addresses(addresses) => {
            let loopback = if on_loopback { &*context.options.loopback_addresses } else { &[] };
            addresses.iter().chain(loopback).map(|address| rule(&format!("-d {address}"))).collect()
        }
    }
}

/// Returns the mark of packets that are to be masqueraded.
fn mark(context: Context<'_>) -> String {
    let mark = 1_u32.checked_shl(context.settings.masquerade_bit.into()).unwrap_or_default();
    format!("{mark:#010x}")
}

/// The matches for packets from this node's pods, and for packets from all other sources.
pub(super) struct Pods {
    pub(super) own: String,
    pub(super) others: String,
}

pub(super) fn detector(detector: &LocalDetector) -> Option<Pods> {
    let own = match detector {
        LocalDetector::None => return None,
        LocalDetector::Cidr(cidr) => format!("-s {cidr}"),
        LocalDetector::Interface(name) => format!("-i {name}"),
        LocalDetector::InterfacePrefix(prefix) => format!("-i {prefix}+"),
    };
    Some(Pods { others: format!("! {own}"), own })
}

/// A rule of one of the kernel's own chains that jumps to a chain of this mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Jump {
    pub(super) table: IptablesTable,
    pub(super) from: &'static str,
    /// The text of the rule, as a save prints it.
    pub(super) rule: &'static str,
    /// True if kubelet has the same rule. It stays at a clean-up.
    pub(super) shared: bool,
}

impl Jump {
    /// Returns the chain that the rule jumps to.
    pub(super) fn to(&self) -> &'static str {
        self.rule.rsplit(' ').next().unwrap_or_default()
    }
}

/// The rules by which every packet enters `KUBE-PROXY-FIREWALL` in the IPVS mode, kube-proxy's too. The packets of its connections
/// still have the Service's address there, and are not in conntrack's state DNAT.
pub(super) const IPVS_JUMPS: [Jump; 2] = {
    const RULE: &str = "-m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL";
    const fn jump(from: &'static str) -> Jump {
        Jump { table: IptablesTable::Filter, from, rule: RULE, shared: false }
    }
    [jump("INPUT"), jump("FORWARD")]
};

/// The jumps, in the order in which they are created. Each is put before the rules that exist.
pub(super) const JUMPS: [Jump; 14] = {
    const EXTERNAL: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service \
                            portals\" -j KUBE-EXTERNAL-SERVICES";
    const HEALTH: &str = "-m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS";
    const PORTALS: &str =
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
    const FORWARDING: &str = "-m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD";
    const BALANCER: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j \
                            KUBE-PROXY-FIREWALL";
    const NAT: &str = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
    const OUT: &str = "-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING";
    const SHARED: &str = "-j KUBE-FIREWALL";
    const fn jump(table: IptablesTable, from: &'static str, rule: &'static str) -> Jump {
        Jump { table, from, rule, shared: false }
    }
    [
        jump(IptablesTable::Filter, "INPUT", EXTERNAL),
        jump(IptablesTable::Filter, "FORWARD", EXTERNAL),
        jump(IptablesTable::Filter, "INPUT", HEALTH),
        jump(IptablesTable::Filter, "FORWARD", PORTALS),
        jump(IptablesTable::Filter, "OUTPUT", PORTALS),
        jump(IptablesTable::Filter, "FORWARD", FORWARDING),
        jump(IptablesTable::Filter, "INPUT", BALANCER),
        jump(IptablesTable::Filter, "OUTPUT", BALANCER),
        jump(IptablesTable::Filter, "FORWARD", BALANCER),
        jump(IptablesTable::Nat, "OUTPUT", NAT),
        jump(IptablesTable::Nat, "PREROUTING", NAT),
        jump(IptablesTable::Nat, "POSTROUTING", OUT),
        Jump { table: IptablesTable::Filter, from: "INPUT", rule: SHARED, shared: true },
        Jump { table: IptablesTable::Filter, from: "OUTPUT", rule: SHARED, shared: true },
    ]
};
