//! What a save has, chain by chain. Lines come in; what Service ports need is kept, in the terms of chains.
//!
//! The state is bounded by the Service ports and endpoints in the kernel: no text of a rule is kept, except for the first
//! ones that are not understood.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::observed::{Counters, ObservedPlace, Refused};
use portolan_model::{Family, Frontend, Protocol, ServicePortName};

use super::comment;
use super::line::{Match, Rule};
use super::node_ports::NodePortRules;
use super::unknown::UnknownRules;
use crate::fixed::{EXTERNAL_SERVICES, JUMPS, MARK_MASQUERADE, NODE_PORTS, PROXY_FIREWALL, RELAY, SERVICES};
use crate::name::{ChainName, Hash, Kind, declared};
use crate::rule::{IptablesTable, unprinted};

/// The chains of this mode, and the rules of the kernel's own chains that jump to them.
#[derive(Debug)]
pub(super) struct Chains {
    pub(super) family: Family,
    /// True if a chain exists that only this mode has. The IPVS mode has chains of the same names as others of this mode.
    pub(super) are_there: bool,
    /// A table that the program cannot print.
    pub(super) unreadable: Option<String>,
    /// The chains of each Service port, by the hash in their names.
    pub(super) ports: BTreeMap<Hash, Port>,
    /// The chains of endpoints, by the hash in their names.
    pub(super) endpoints: BTreeMap<Hash, Endpoint>,
    /// Rules of the nat table that lead from frontends to chains of Service ports, in order.
    pub(super) dispatches: Vec<Dispatch>,
    /// Rules of the filter table that refuse or drop packets to frontends, in order.
    pub(super) verdicts: Vec<Verdict>,
    /// The load-balancer IPs to which the filter table drops packets from sources that are not allowed, with what it has
    /// dropped. No other rule drops packets to them for this reason, so that they are those of one Service port.
    pub(super) guards: HashMap<(Protocol, SocketAddr), Option<Counters>>,
    /// The ports of the relay's listeners, first and last, if the chains are those of the userspace mode.
    pub(super) listeners: Option<(u16, u16)>,
    pub(super) unknown: UnknownRules,
    /// The rules that lead to the chain of node ports.
    pub(super) node_ports: NodePortRules,
    /// The jumps of [`JUMPS`] that exist, by index.
    jumps: BTreeSet<usize>,
    /// Chains whose later rules no packet reaches, because of a rule that is not understood.
    ended: HashSet<(IptablesTable, String)>,
    table: Option<IptablesTable>,
}

/// The chains of one Service port.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// The name, if a comment has it and the hash is that of the name.
    pub(super) name: Option<Arc<ServicePortName>>,
    /// The rules that choose an endpoint of the cluster.
    pub(super) cluster: Vec<Choice>,
    /// The rules that choose an endpoint of this node.
    pub(super) local: Vec<Choice>,
    pub(super) external: External,
    pub(super) firewall: Firewall,
}

impl Port {
    /// Returns the rules that choose an endpoint in the chain of this kind.
    pub(super) fn choices(&self, kind: Kind) -> &[Choice] {
        match kind {
            Kind::Cluster => &self.cluster,
            Kind::Local => &self.local,
            Kind::External | Kind::Firewall | Kind::Endpoint => &[],
        }
    }
}

/// A rule that leads to the chain of an endpoint.
#[derive(Debug)]
pub(super) struct Choice {
    /// The hash in the name of the endpoint's chain.
    pub(super) endpoint: Hash,
    /// For clients whose last connection to this endpoint is at most this many seconds old. `None` for all clients.
    pub(super) within: Option<u32>,
}

/// The chain for traffic to a node port, an external IP or a load-balancer IP.
#[derive(Debug, Default)]
pub(super) struct External {
    pub(super) exists: bool,
    /// The chain that packets from outside go to.
    pub(super) way: Option<Kind>,
    /// True if packets from this node go to the endpoints of the cluster.
    pub(super) has_short_cut: bool,
}

/// The chain that accepts sources.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    pub(super) ranges: Vec<IpNet>,
    /// True if it accepts every source.
    pub(super) is_open: bool,
}

/// The chain of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub(super) to: Option<Destination>,
    /// True if it adds clients to the list that rules of session affinity look up.
    pub(super) remembers: bool,
    pub(super) counters: Option<Counters>,
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    At(SocketAddr),
    /// A port of this node.
    Port(u16),
}

/// A rule that leads from a frontend to a chain of a Service port.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) place: ObservedPlace,
    pub(super) protocol: Protocol,
    pub(super) to: ChainName,
    pub(super) counters: Option<Counters>,
    /// True if the rule is for node ports on loopback addresses, and another one is for all addresses.
    pub(super) is_on_loopback: bool,
}

/// A rule that refuses or drops packets to a frontend.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) name: Option<Arc<ServicePortName>>,
    pub(super) place: ObservedPlace,
    pub(super) protocol: Protocol,
    /// True if the rule is for traffic from outside. Then a rule of the nat table may be for other traffic.
    pub(super) is_external: bool,
    pub(super) drops: bool,
    pub(super) counters: Option<Counters>,
}

impl Verdict {
    /// Returns the packets that met the rule. Each of them is counted: the rule is one of the filter table.
    pub(super) fn refused(&self) -> Refused {
        let packets = self.counters.map(|counters| counters.connections);
        if self.drops {
            Refused { no_local_endpoint: packets, ..Refused::default() }
        } else {
            Refused { no_endpoint: packets, ..Refused::default() }
        }
    }
}

impl Chains {
    pub(super) fn new(family: Family) -> Self {
        Self {
            family,
            are_there: false,
            unreadable: None,
            ports: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            dispatches: Vec::new(),
            verdicts: Vec::new(),
            guards: HashMap::new(),
            listeners: None,
            unknown: UnknownRules::default(),
            node_ports: NodePortRules::default(),
            jumps: BTreeSet::new(),
            ended: HashSet::new(),
            table: None,
        }
    }

    /// Adds one line of a save.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix('*') {
            self.table = IptablesTable::named(name.trim_end());
        } else if let Some(table) = unprinted(line) {
            self.incompatible(table);
        } else if let Some(table) = self.table {
            if let Some(chain) = line.strip_prefix(':') {
                if let Some(name) = declared(chain) {
                    self.declare(table, name);
                }
            } else if let Some(rule) = Rule::parse(line) {
                self.rule(table, &rule, line);
            }
        }
    }

    /// Notes a table that the save does not print.
    fn incompatible(&mut self, table: &str) {
        if IptablesTable::named(table).is_some() {
            self.unreadable = Some(table.to_owned());
        }
    }

    fn declare(&mut self, table: IptablesTable, chain: &str) {
        let name = ChainName::parse(chain).filter(|_| table == IptablesTable::Nat);
        let own = [
            (IptablesTable::Filter, SERVICES),
            (IptablesTable::Filter, EXTERNAL_SERVICES),
            (IptablesTable::Nat, NODE_PORTS),
        ];
        self.are_there |= name.is_some() || own.contains(&(table, chain));
        if let Some(name) = name.filter(|name| name.kind() == Kind::External) {
            self.port(name.hash()).external.exists = true;
        }
    }

    fn rule(&mut self, table: IptablesTable, rule: &Rule<'_>, line: &str) {
        let chain = &*rule.chain;
        if !self.ended.is_empty() && self.ended.contains(&(table, chain.to_owned())) {
            return;
        }
        let of_service = ChainName::parse(chain).filter(|_| table == IptablesTable::Nat);
        let is_understood = match (table, chain, of_service) {
            (IptablesTable::Nat, SERVICES, _) => self.dispatch(rule),
            (IptablesTable::Nat, NODE_PORTS, _) => self.node_port(rule),
            (IptablesTable::Filter, SERVICES, _) if rule.target() == EXTERNAL_SERVICES => {
                rule.has_only(&[Match::LocalDestination])
            }
            (IptablesTable::Filter, SERVICES, _) => self.verdict(rule, false),
            (IptablesTable::Filter, EXTERNAL_SERVICES, _) => self.verdict(rule, true),
            (IptablesTable::Filter, PROXY_FIREWALL, _) => self.guard(rule),
            (IptablesTable::Filter, NODE_PORTS, _) => self.open_port(rule),
            (_, _, Some(name)) => self.of_service(name, rule),
            _ => {
                self.jump(table, rule);
                true
            }
        };
        if !is_understood {
            self.unknown.add(table, line);
            if rule.ends_chain() {
                self.ended.insert((table, chain.to_owned()));
            }
        }
    }

    fn port(&mut self, hash: Hash) -> &mut Port {
        self.ports.entry(hash).or_default()
    }

    /// Notes the name of a Service port, if the rule's comment has it.
    fn name(&mut self, hash: Hash, rule: &Rule<'_>) {
        let port = self.port(hash);
        if port.name.is_none() {
            port.name = comment::name_of(&rule.comment, hash).map(Arc::new);
        }
    }

    fn jump(&mut self, table: IptablesTable, rule: &Rule<'_>) {
        let is_same = |index: &usize| {
            let jump = JUMPS.get(*index);
            jump.is_some_and(|jump| {
                (jump.table, jump.from, jump.to()) == (table, &*rule.chain, rule.target())
            })
        };
        if rule.has_only(&[Match::New]) {
            self.jumps.extend((0..JUMPS.len()).find(is_same));
        }
    }

    /// Returns true if every packet that a chain is for enters it.
    pub(super) fn is_entered(&self, table: IptablesTable, chain: &str) -> bool {
        let mut jumps =
            JUMPS.iter().enumerate().filter(|(_, jump)| (jump.table, jump.to()) == (table, chain));
        jumps.all(|(index, _)| self.jumps.contains(&index))
    }

    /// Reads a rule that matches an address and port in the nat table. Returns false if it is not understood.
    fn dispatch(&mut self, rule: &Rule<'_>) -> bool {
        if rule.target() == NODE_PORTS {
            self.node_ports.add(rule);
            return true;
        }
        let (Some(at), Some(to)) = (address(rule), rule.chain_of_service()) else { return false };
        let place = match (to.kind(), comment::split(&rule.comment).map(|(_, what)| what)) {
            (Kind::Endpoint, _) => return false,
            (Kind::Cluster | Kind::Local, Some("cluster IP")) => {
                exact(Frontend::ClusterIp(at.ip(), at.port()))
            }
            (Kind::External, Some("external IP")) => exact(Frontend::ExternalIp(at.ip(), at.port())),
            (Kind::External | Kind::Firewall, Some("loadbalancer IP")) => {
                exact(Frontend::LoadBalancerIp(at.ip(), at.port()))
            }
            _ => ObservedPlace::Address(at),
        };
        self.add_dispatch(rule, to, place, false)
    }

    /// Reads a rule that matches a node port in the nat table.
    fn node_port(&mut self, rule: &Rule<'_>) -> bool {
        let to = rule.chain_of_service().filter(|to| to.kind() == Kind::External);
        let (Some(to), Some(port)) = (to, rule.port()) else { return false };
        let is_on_loopback = rule.has(&[Match::Destination, Match::Protocol, Match::Port, Match::Counter])
            && rule.destination.is_some_and(|net| net.addr().is_loopback());
        if !is_on_loopback && !rule.has(&[Match::Protocol, Match::Port]) {
            return false;
        }
        self.add_dispatch(rule, to, exact(Frontend::NodePort(port)), is_on_loopback)
    }

    fn add_dispatch(
        &mut self,
        rule: &Rule<'_>,
        to: ChainName,
        place: ObservedPlace,
        is_on_loopback: bool,
    ) -> bool {
        let Some(protocol) = rule.protocol else { return false };
        self.name(to.hash(), rule);
        self.dispatches.push(Dispatch { place, protocol, to, counters: rule.counters, is_on_loopback });
        true
    }

    /// Reads a rule that refuses or drops packets to a frontend.
    fn verdict(&mut self, rule: &Rule<'_>, is_external: bool) -> bool {
        let drops = rule.target() == "DROP";
        let Some(protocol) = rule.protocol.filter(|_| drops || rule.target() == "REJECT") else {
            return false;
        };
        let named = comment::split(&rule.comment).filter(|(_, what)| what.starts_with("has no "));
        let name = named.and_then(|(name, _)| comment::name(name, protocol)).map(Arc::new);
        let is_node_port = is_external && rule.has(&[Match::LocalDestination, Match::Protocol, Match::Port]);
        let place = match (address(rule), rule.port()) {
            (Some(at), _) if is_external || name.is_none() => ObservedPlace::Address(at),
            (Some(at), _) => exact(Frontend::ClusterIp(at.ip(), at.port())),
            (None, Some(port)) if is_node_port => exact(Frontend::NodePort(port)),
            _ => return false,
        };
        let counters = rule.counters;
        self.verdicts.push(Verdict { name, place, protocol, is_external, drops, counters });
        true
    }

    /// Reads a rule that drops packets to a load-balancer IP, unless they have been translated.
    fn guard(&mut self, rule: &Rule<'_>) -> bool {
        let (Some(at), Some(protocol)) = (address(rule), rule.protocol) else { return false };
        let is_guard = rule.target() == "DROP";
        if is_guard {
            let dropped = self.guards.entry((protocol, at)).or_default();
            *dropped = Counters::sum(*dropped, rule.counters);
        }
        is_guard
    }

    /// Reads a rule of the filter table about a port of this node: a health-check node port is opened, or the ports of
    /// the relay are closed.
    fn open_port(&mut self, rule: &Rule<'_>) -> bool {
        if rule.target() == "REJECT" && rule.comment == RELAY {
            self.listeners = self.listeners.or(rule.ports);
            return rule.ports.is_some();
        }
        rule.target() == "ACCEPT" && rule.has(&[Match::Protocol, Match::Port])
    }

    /// Reads a rule of a chain of a Service port.
    fn of_service(&mut self, chain: ChainName, rule: &Rule<'_>) -> bool {
        if chain.kind() == Kind::Endpoint {
            return rule.target() == MARK_MASQUERADE || self.endpoint(chain, rule);
        }
        self.name(chain.hash(), rule);
        match chain.kind() {
            _ if rule.target() == MARK_MASQUERADE => true,
            Kind::Cluster | Kind::Local => self.choice(chain, rule),
            Kind::External => self.external(chain.hash(), rule),
            Kind::Firewall | Kind::Endpoint => self.firewall(chain.hash(), rule),
        }
    }

    fn choice(&mut self, chain: ChainName, rule: &Rule<'_>) -> bool {
        let to = rule.chain_of_service().filter(|to| to.kind() == Kind::Endpoint);
        let Some(to) = to else { return false };
        let within = if rule.has(&[Match::Recent]) {
            let is_own_list = ChainName::parse(&rule.recent.list) == Some(to);
            let within = rule.recent.within.filter(|_| rule.recent.is_check && is_own_list);
            if within.is_none() {
                return false;
            }
            within
        } else if rule.has_only(&[Match::Random]) {
            None
        } else {
            return false;
        };
        let choice = Choice { endpoint: to.hash(), within };
        let port = self.port(chain.hash());
        let choices = if chain.kind() == Kind::Cluster { &mut port.cluster } else { &mut port.local };
        choices.push(choice);
        true
    }

    fn external(&mut self, hash: Hash, rule: &Rule<'_>) -> bool {
        let Some(to) = rule.chain_of_service().filter(|to| to.hash() == hash) else { return false };
        let external = &mut self.port(hash).external;
        match to.kind() {
            Kind::Cluster | Kind::Local if rule.has(&[]) => {
                external.way = external.way.or(Some(to.kind()));
                true
            }
            Kind::Cluster if rule.has(&[Match::LocalSource]) => {
                external.has_short_cut = true;
                true
            }
            // Which sources are pods of this node depends on the settings.
            Kind::Cluster => rule.has(&[Match::Source]) || rule.has(&[Match::Interface]),
            _ => false,
        }
    }

    fn firewall(&mut self, hash: Hash, rule: &Rule<'_>) -> bool {
        if rule.target.is_none() {
            // A note for people who read the rules.
            return rule.has(&[]);
        }
        if rule.chain_of_service() != Some(hash.chain(Kind::External)) {
            return false;
        }
        let is_for_source = rule.has(&[Match::Source]);
        let firewall = &mut self.port(hash).firewall;
        if is_for_source {
            firewall.ranges.extend(rule.source);
        }
        firewall.is_open |= rule.has(&[]);
        is_for_source || rule.has(&[])
    }

    fn endpoint(&mut self, chain: ChainName, rule: &Rule<'_>) -> bool {
        let to = match rule.target() {
            "DNAT" => rule.argument("--to-destination").and_then(|to| to.parse().ok()).map(Destination::At),
            "REDIRECT" => rule.argument("--to-ports").and_then(|to| to.parse().ok()).map(Destination::Port),
            // The relay's own packets are not translated.
            "RETURN" => return rule.has(&[Match::Mark]),
            _ => None,
        };
        if to.is_none() || !rule.has_only(&[Match::Protocol, Match::Recent]) {
            return false;
        }
        let is_own_list = ChainName::parse(&rule.recent.list) == Some(chain);
        let endpoint = self.endpoints.entry(chain.hash()).or_default();
        if endpoint.to.is_none() {
            let remembers = rule.recent.is_set && is_own_list;
            *endpoint = Endpoint { to, remembers, counters: rule.counters };
        }
        true
    }
}

const fn exact(frontend: Frontend) -> ObservedPlace {
    ObservedPlace::Frontend(frontend)
}

/// Returns the address and port that a rule matches, if it matches nothing else but the protocol.
fn address(rule: &Rule<'_>) -> Option<SocketAddr> {
    let matches = rule.has(&[Match::Destination, Match::Protocol, Match::Port]);
    let (address, port) = (rule.to()?, rule.port()?);
    matches.then_some(SocketAddr::new(address, port))
}
