//! The iptables rules around virtual servers: they masquerade, refuse, drop and accept packets.
//!
//! The rules refer to ipsets and do not depend on Services, so they are written once. Each is written as a save
//! prints it, so that rules in the kernel can be compared by their text.

mod guard;
mod in_force;
mod listed;
mod present;
mod removal;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use portolan_model::{Family, LocalDetector, Protocol, Settings};

use portolan_wire::ipset::Type;

use super::set::Set;
use guard::is_guard;
pub use guard::is_kept_while_draining;
pub(super) use in_force::InForce;
pub(super) use listed::{Going, tables as listed_tables};
pub(super) use present::Present;
use present::{FIREWALL_JUMP, FIREWALL_JUMPS, REPLACED_LAST};

/// A table of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum RuleTable {
    Mangle,
    Filter,
    Nat,
}

const TABLES: [RuleTable; 3] = [RuleTable::Mangle, RuleTable::Filter, RuleTable::Nat];

const SERVICES: &str = "KUBE-SERVICES";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const MARK_MASQUERADE: &str = "KUBE-MARK-MASQ";
const FORWARD: &str = "KUBE-FORWARD";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const FILTER: &str = "KUBE-IPVS-FILTER";
/// Two chains have this name. The one in the mangle table filters packets of this node itself before IPVS translates them. The one
/// in the filter table, which kube-proxy has, too, refuses packets of this node to itself.
const OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// The port of loopback to which refused connections of this node are redirected, past IPVS, which gets them before
/// the only table that may refuse. It is the port of tcpmux, which RFC 7805 has made historic. A program that listens
/// there does not get these connections.
const REFUSED_PORT: u16 = 1;

/// Matches the first packets of TCP connections. Later packets may belong to connections that drain.
const FIRST_PACKETS: &str = "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN";
/// Matches packets of new connections.
const NEW: &str = "-m conntrack --ctstate NEW";

/// All chains of this mode.
const CHAINS: [(RuleTable, &str); 13] = [
    (RuleTable::Mangle, OUT_FILTER),
    (RuleTable::Mangle, SOURCE_RANGES),
    (RuleTable::Filter, FORWARD),
    (RuleTable::Filter, NODE_PORT),
    (RuleTable::Filter, PROXY_FIREWALL),
    (RuleTable::Filter, SOURCE_RANGES),
    (RuleTable::Filter, FILTER),
    (RuleTable::Filter, OUT_FILTER),
    (RuleTable::Nat, SERVICES),
    (RuleTable::Nat, POSTROUTING),
    (RuleTable::Nat, NODE_PORT),
    (RuleTable::Nat, LOAD_BALANCER),
    (RuleTable::Nat, MARK_MASQUERADE),
];

/// A rule of one of the kernel's own chains that jumps to a chain of this mode.
pub struct Jump {
    table: RuleTable,
    /// The chain that the rule is in.
    pub from: &'static str,
    /// The chain of this mode that the rule leads to.
    pub to: &'static str,
    /// The comment of the rule.
    pub comment: &'static str,
    /// True if the iptables mode has the same rule.
    is_shared: bool,
}

/// The jumps, in the order in which they are created. Each is put before the rules that exist.
const JUMPS: [Jump; 10] = {
    const fn jump(table: RuleTable, from: &'static str, to: &'static str, comment: &'static str) -> Jump {
        Jump { table, from, to, comment, is_shared: false }
    }
    const fn shared(table: RuleTable, from: &'static str, to: &'static str, comment: &'static str) -> Jump {
        Jump { table, from, to, comment, is_shared: true }
    }
    [
        shared(RuleTable::Nat, "OUTPUT", SERVICES, "kubernetes service portals"),
        shared(RuleTable::Nat, "PREROUTING", SERVICES, "kubernetes service portals"),
        shared(RuleTable::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
        shared(RuleTable::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
        jump(RuleTable::Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
        jump(RuleTable::Filter, "INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),
        jump(RuleTable::Filter, "FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
        jump(RuleTable::Filter, "INPUT", FILTER, "kubernetes ipvs access filter"),
        jump(RuleTable::Filter, "OUTPUT", OUT_FILTER, "kubernetes ipvs access filter"),
        jump(RuleTable::Mangle, "OUTPUT", OUT_FILTER, "kubernetes ipvs access filter"),
    ]
};

/// The chains with their rules, for the settings of a family.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rules {
    chains: BTreeMap<(RuleTable, &'static str), Vec<String>>,
}

/// The part of the rules that a restore writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything that virtual servers need: all rules, except for those of a chain that the iptables mode has
    /// filled.
    Before,
    /// The rules of that chain, once virtual servers have replaced the iptables mode.
    After,
}

/// Returns true if the chain is one of this mode.
pub fn uses(table: &str, chain: &str) -> bool {
    CHAINS.iter().any(|(of, name)| of.name() == table && *name == chain)
}

/// Returns the rules of a table by which the kernel's own chains enter this mode and no other.
pub fn own_jumps(table: &str) -> impl Iterator<Item = &'static Jump> {
    JUMPS.iter().filter(move |jump| !jump.is_shared && jump.table.name() == table)
}

impl RuleTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl Jump {
    /// Returns the rule as a save prints it, without its chain.
    pub fn rule(&self) -> String {
        format!("-m comment --comment \"{}\" -j {}", self.comment, self.to)
    }
}

impl Rules {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut writer =
            Writer { settings, rules: Self { chains: CHAINS.map(|chain| (chain, Vec::new())).into() } };
        writer.services();
        writer.load_balancers();
        writer.node_ports();
        writer.masquerade();
        writer.forward();
        writer.firewall();
        writer.filter();
        writer.rules
    }

    /// Returns the restore that writes what is missing or differs; empty if nothing does.
    pub(super) fn restore(&self, present: &Present, part: Part) -> String {
        let mut text = String::new();
        for table in TABLES {
            let differs = |chain: &&(RuleTable, &'static str)| {
                chain.0 == table
                    && self.chains.get(chain).is_some_and(|rules| Some(rules) != present.chains.get(chain))
                    && (part == Part::After) == (**chain == REPLACED_LAST && present.is_of_another_mode())
            };
            let chains: Vec<_> = CHAINS.iter().filter(differs).collect();
            let jumps: Vec<&Jump> = if part == Part::Before {
                let is_wanted = |jump: &&Jump| jump.table == table && self.has_chain(jump);
                present.missing().filter(is_wanted).collect()
            } else {
                Vec::new()
            };
            let is_last = (part == Part::After) == present.is_of_another_mode();
            let has_firewall =
                table == RuleTable::Filter && self.chains.contains_key(&(table, PROXY_FIREWALL));
            let outdated = present.firewall_jumps.iter().filter(|_| is_last && has_firewall);
            if chains.is_empty() && jumps.is_empty() && outdated.clone().next().is_none() {
                continue;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "*{}", table.name());
            for from in outdated {
                let _ = writeln!(text, "-D {from} {FIREWALL_JUMP}");
            }
            for (_, name) in &chains {
                let _ = writeln!(text, ":{name} - [0:0]");
            }
            for chain in chains {
                for rule in self.chains.get(chain).into_iter().flatten() {
                    let _ = writeln!(text, "-A {} {rule}", chain.1);
                }
            }
            for jump in jumps {
                let _ = writeln!(text, "-I {} {}", jump.from, jump.rule());
            }
            text.push_str("COMMIT\n");
        }
        text
    }

    /// Returns true if the jump leads to one of the chains.
    fn has_chain(&self, jump: &Jump) -> bool {
        self.chains.keys().any(|(table, chain)| (*table, *chain) == (jump.table, jump.to))
    }

    /// Returns the jumps and all rules of chains: table, chain and rule. They are looked for one by one in a table that a save does
    /// not print.
    pub(super) fn looked_for(&self) -> Vec<(&'static str, &'static str, String)> {
        let jumps = JUMPS.iter().map(|jump| (jump.table.name(), jump.from, jump.rule()));
        let of_chain = |((table, chain), rules): (&(RuleTable, &'static str), &Vec<String>)| {
            let (table, chain) = (table.name(), *chain);
            rules.iter().map(move |rule| (table, chain, rule.clone())).collect::<Vec<_>>()
        };
        let outdated = FIREWALL_JUMPS.map(|from| (RuleTable::Filter.name(), from, FIREWALL_JUMP.to_owned()));
        jumps.chain(outdated).chain(self.chains.iter().flat_map(of_chain)).collect()
    }

    /// Returns true if all rules are in the kernel.
    pub(super) fn are_in(&self, present: &Present) -> bool {
        self.restore(present, Part::Before).is_empty() && self.restore(present, Part::After).is_empty()
    }
}

/// Returns the chain that a rule of a save leads to. A save prints it last.
fn target(rule: &str) -> Option<&str> {
    let mut words = rule.rsplit(' ');
    let to = words.next()?;
    matches!(words.next(), Some("-j" | "-g")).then_some(to)
}

fn known(table: RuleTable, name: &str) -> Option<(RuleTable, &'static str)> {
    CHAINS.into_iter().find(|(of, chain)| *of == table && *chain == name)
}

struct Writer<'a> {
    settings: &'a Settings,
    rules: Rules,
}

impl Writer<'_> {
    /// Adds the rules that mark packets to Services for masquerading. They accept packets to the addresses of
    /// Services, so that no later rules of the nat table see these.
    fn services(&mut self) {
        let loopback = match self.settings.family {
            Family::Ipv4 => "127.0.0.0/8",
            Family::Ipv6 => "::1/128",
        };
        let refused = self.bare(Set::Reject, "dst,dst");
        let own = format!("{FIRST_PACKETS} -m addrtype --src-type LOCAL");
        self.add(RuleTable::Nat, SERVICES, format!("{own} {refused} -j REDIRECT --to-ports {REFUSED_PORT}"));
        self.add(RuleTable::Nat, SERVICES, format!("-s {loopback} -j RETURN"));
        let to = self.matching(Set::LoadBalancer, "dst,dst");
        self.add(RuleTable::Nat, SERVICES, format!("{to} -j {LOAD_BALANCER}"));
        let to = self.matching(Set::ClusterIp, "dst,dst");
        // A process of this node that connects to an address of the device has the same address as source.
        let to_itself = self.matching(Set::ClusterIp, "src,dst");
        let outside = match (self.settings.masquerade_all, self.not_from_pods()) {
            (true, _) => to,
            (false, Some(not_from_pods)) => format!("{not_from_pods} {to}"),
            (false, None) => to_itself,
        };
        self.add(RuleTable::Nat, SERVICES, format!("{outside} -j {MARK_MASQUERADE}"));
        let to = self.matching(Set::ExternalIp, "dst,dst");
        self.add(RuleTable::Nat, SERVICES, format!("{to} -j {MARK_MASQUERADE}"));
        self.masquerade_own(SERVICES, Set::ExternalIpLocal, None);
        for set in [Set::ClusterIp, Set::LoadBalancer, Set::ExternalIp, Set::ExternalIpLocal] {
            let to = self.bare(set, "dst,dst");
            self.add(RuleTable::Nat, SERVICES, format!("{to} -j ACCEPT"));
        }
        self.add(RuleTable::Nat, SERVICES, format!("-m addrtype --dst-type LOCAL -j {NODE_PORT}"));
    }

    fn load_balancers(&mut self) {
        self.masquerade_own(LOAD_BALANCER, Set::LoadBalancerLocal, None);
        let local = self.matching(Set::LoadBalancerLocal, "dst,dst");
        self.add(RuleTable::Nat, LOAD_BALANCER, format!("{local} -j RETURN"));
        self.add(RuleTable::Nat, LOAD_BALANCER, format!("-j {MARK_MASQUERADE}"));
    }

    fn node_ports(&mut self) {
        for (protocol, name) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp"), (Protocol::Sctp, "sctp")] {
            let fields = if protocol == Protocol::Sctp { "dst,dst" } else { "dst" };
            let local = self.matching(Set::NodePortLocal(protocol), fields);
            let all = self.matching(Set::NodePort(protocol), fields);
            self.masquerade_own(NODE_PORT, Set::NodePortLocal(protocol), Some(name));
            self.add(RuleTable::Nat, NODE_PORT, format!("-p {name} {local} -j RETURN"));
            self.add(RuleTable::Nat, NODE_PORT, format!("-p {name} {all} -j {MARK_MASQUERADE}"));
        }
        let health = self.matching(Set::HealthCheckNodePort, "dst");
        self.add(RuleTable::Filter, NODE_PORT, format!("{health} -j ACCEPT"));
    }

    /// Adds a rule that masquerades packets of this node itself, even with policy Local: an endpoint on another node
    /// could not reply to an address that its own node has, too.
    fn masquerade_own(&mut self, chain: &'static str, set: Set, protocol: Option<&str>) {
        let fields = if set.kind() == Type::BitmapPort { "dst" } else { "dst,dst" };
        let not_from_pods = self.not_from_pods().map(|not| format!("{not} ")).unwrap_or_default();
        let protocol = protocol.map(|name| format!("-p {name} ")).unwrap_or_default();
        let to = self.matching(set, fields);
        let own = "-m addrtype --src-type LOCAL";
        self.add(RuleTable::Nat, chain, format!("{not_from_pods}{protocol}{to} {own} -j {MARK_MASQUERADE}"));
    }

    fn masquerade(&mut self) {
        let mark = self.mark();
        let hairpin = self.matching(Set::LoopBack, "dst,dst,src");
        self.add(RuleTable::Nat, POSTROUTING, format!("{hairpin} -j MASQUERADE"));
        self.add(RuleTable::Nat, POSTROUTING, format!("-m mark ! --mark {mark}/{mark} -j RETURN"));
        // A packet that passes a second time, in a tunnel, is not masqueraded again.
        self.add(RuleTable::Nat, POSTROUTING, format!("-j MARK --set-xmark {mark}/0x0"));
        let comment = comment("kubernetes service traffic requiring SNAT");
        self.add(RuleTable::Nat, POSTROUTING, format!("{comment} -j MASQUERADE --random-fully"));
        self.add(RuleTable::Nat, MARK_MASQUERADE, format!("-j MARK --set-xmark {mark}/{mark}"));
    }

    fn forward(&mut self) {
        let mark = self.mark();
        let marked = comment("kubernetes forwarding rules");
        self.add(RuleTable::Filter, FORWARD, format!("{marked} -m mark --mark {mark}/{mark} -j ACCEPT"));
        let known = comment("kubernetes forwarding conntrack rule");
        let state = "-m conntrack --ctstate RELATED,ESTABLISHED";
        self.add(RuleTable::Filter, FORWARD, format!("{known} {state} -j ACCEPT"));
    }

    /// Adds the rules for source ranges, and for policy Local without an endpoint on this node. Sets that count are
    /// matched last, so that they count only what the rule refuses.
    fn firewall(&mut self) {
        // What this node sends to itself was checked when it left, and has the address of its endpoint now. That can be one of
        // another Service.
        self.add(RuleTable::Filter, PROXY_FIREWALL, "-i lo -j RETURN".to_owned());
        for (table, chain) in [(RuleTable::Filter, PROXY_FIREWALL), (RuleTable::Mangle, OUT_FILTER)] {
            let guarded = self.matching(Set::LoadBalancerFirewall, "dst,dst");
            self.add(table, chain, format!("{guarded} -j {SOURCE_RANGES}"));
            for set in [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp] {
                let allowed = self.matching(set, "dst,dst,src");
                self.add(table, SOURCE_RANGES, format!("{allowed} -j RETURN"));
            }
            let counted = self.bare(Set::SourceRanges, "dst,dst");
            self.add(table, SOURCE_RANGES, format!("{counted} -j DROP"));
            self.add(table, SOURCE_RANGES, "-j DROP".to_owned());
            let no_endpoint = self.bare(Set::Drop, "dst,dst");
            self.add(table, chain, format!("{NEW} {no_endpoint} -j DROP"));
            // A rule without a target only counts.
            let refused = self.bare(Set::CountReject, "dst,dst");
            self.add(table, chain, format!("{NEW} {refused}"));
        }
        self.refuse();
        let elsewhere = self.bare(Set::DropExternal, "dst,dst");
        let not_from_pods = self.not_from_pods().map(|not| format!("{not} ")).unwrap_or_default();
        let rule = format!("{not_from_pods}-m addrtype ! --src-type LOCAL {NEW} {elsewhere} -j DROP");
        self.add(RuleTable::Filter, PROXY_FIREWALL, rule);
    }

    /// Adds the rules that reset TCP to frontends without endpoints before IPVS gets it. IPVS refuses with an ICMP
    /// error, which reaches a client of this node while its `connect()` holds the socket, and takes effect only when
    /// the SYN is repeated, a second later.
    ///
    /// Connections of this node are reset in OUTPUT, before connection tracking keeps an entry. Otherwise later ones from the same
    /// port would be redirected and refused for ten seconds more, even if endpoints have come.
    fn refuse(&mut self) {
        let refused = format!("{FIRST_PACKETS} {}", self.bare(Set::Reject, "dst,dst"));
        self.add(RuleTable::Filter, PROXY_FIREWALL, format!("{refused} -j REJECT --reject-with tcp-reset"));
        let loopback = match self.settings.family {
            Family::Ipv4 => "127.0.0.1/32",
            Family::Ipv6 => "::1/128",
        };
        let own = format!("-d {loopback} -p tcp -m tcp --dport {REFUSED_PORT} -m conntrack --ctstate DNAT");
        self.add(RuleTable::Filter, OUT_FILTER, format!("{own} -j REJECT --reject-with tcp-reset"));
    }

    /// Adds the rules that refuse connections to addresses of the device, unless they are to Services.
    fn filter(&mut self) {
        for set in [Set::LoadBalancer, Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal] {
            let service = self.bare(set, "dst,dst");
            self.add(RuleTable::Filter, FILTER, format!("{service} -j RETURN"));
        }
        let health = self.bare(Set::HealthCheckNodePort, "dst");
        self.add(RuleTable::Filter, FILTER, format!("{health} -j RETURN"));
        let other = self.bare(Set::IpvsIps, "dst");
        let refusal = match self.settings.family {
            Family::Ipv4 => "icmp-port-unreachable",
            Family::Ipv6 => "icmp6-port-unreachable",
        };
        let other = format!("-m conntrack --ctstate NEW {other} -j REJECT --reject-with");
        self.add(RuleTable::Filter, FILTER, format!("-p tcp {other} tcp-reset"));
        self.add(RuleTable::Filter, FILTER, format!("{other} {refusal}"));
        // Packets of this node to itself are refused in OUTPUT, before connection tracking keeps an entry, as in `refuse`. IPVS
        // also sends packets of other clients through OUTPUT. Those leave by another interface.
        self.add(RuleTable::Filter, OUT_FILTER, format!("-o lo {NEW} -j {FILTER}"));
    }

    fn add(&mut self, table: RuleTable, chain: &'static str, rule: String) {
        self.rules.chains.entry((table, chain)).or_default().push(rule);
    }

    fn matching(&self, set: Set, fields: &str) -> String {
        match set.comment() {
            Some(text) => format!("{} {}", comment(text), self.bare(set, fields)),
            None => self.bare(set, fields),
        }
    }

    fn bare(&self, set: Set, fields: &str) -> String {
        format!("-m set --match-set {} {fields}", set.name(self.settings.family))
    }

    fn not_from_pods(&self) -> Option<String> {
        match &self.settings.local_detector {
            LocalDetector::None => None,
            LocalDetector::Cidr(cidr) => Some(format!("! -s {cidr}")),
            LocalDetector::Interface(name) => Some(format!("! -i {name}")),
            LocalDetector::InterfacePrefix(prefix) => Some(format!("! -i {prefix}+")),
        }
    }

    /// Returns the mark of packets that are to be masqueraded.
    fn mark(&self) -> String {
        format!("{:#x}", self.settings.masquerade_mark())
    }
}

/// Returns a comment match. A save prints a backslash before a single quote.
fn comment(text: &str) -> String {
    format!("-m comment --comment \"{}\"", text.replace('\'', "\\'"))
}

#[cfg(test)]
mod tests;
