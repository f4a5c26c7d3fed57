//! Lookup of a name and a type in the zone.

use std::net::IpAddr;

use hickory_proto::rr::domain::LabelIter;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, RecordType};

use super::{Pointer, SCHEMA_VERSION, Zone};
use crate::label::Lower;
use crate::object::Protocol;
use crate::records::{Records, Srv};
use crate::reverse::ReverseName;

/// Maximum number of aliases that are followed in one answer.
const MAX_ALIASES: usize = 8;
/// Priority of all SRV records. The specification leaves it open.
const PRIORITY: u16 = 0;
/// Weight of all SRV records: equal, so that clients choose evenly.
const WEIGHT: u16 = 100;
/// Times of the SOA record in seconds, for secondary servers, which this zone does not have: RFC 1912, 2.2.
const REFRESH: i32 = 7200;
const RETRY: i32 = 1800;
const EXPIRE: i32 = 86_400;

/// A record of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rr {
    /// Owner; `None` if it is the name in the question.
    pub owner: Option<Name>,
    /// Type and content.
    pub data: RData,
}

/// Records that are made when they are asked for, because few of a large set may fit into an answer.
pub type Rrs<'a> = Box<dyn Iterator<Item = Rr> + 'a>;

/// Whether a name and a type have records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupResult {
    /// There are records.
    Found,
    /// The name exists, but has no records of the type.
    NoData,
    /// The name does not exist.
    NoName,
    /// There are no records, but objects are missing.
    NotInSync,
}

/// The result of a lookup.
pub struct Lookup<'a> {
    /// Whether there are records. With aliases, that of the last name.
    pub outcome: LookupResult,
    /// The records, and before them the aliases that lead to them.
    pub answers: Rrs<'a>,
    /// Addresses of names in the answers.
    pub additional: Rrs<'a>,
    /// The SOA record of the zone, if there are no records and the name is in one of the cluster's zones.
    pub authority: Option<Rr>,
    /// Target of the last alias, if it is a name of another server.
    pub beyond: Option<Name>,
}

/// What a name is in the zone.
enum Node<'a> {
    /// A name that does not exist.
    Absent,
    /// A name without records that has names below it.
    Empty,
    /// The apex of a zone.
    Apex,
    /// `dns-version`.
    Version,
    /// A Service, a host, or the name server. The addresses are sorted, IPv4 first.
    Addresses(&'a [IpAddr]),
    /// The name of a pod that spells its address.
    Address(IpAddr),
    /// A Service with `externalName`.
    Alias(&'a Name),
    /// A named port of a Service.
    Port(&'a [Srv], ZoneService<'a>),
    /// A reverse name.
    Pointers(&'a [Pointer]),
}

/// A Service of the zone.
#[derive(Clone, Copy)]
struct ZoneService<'a> {
    namespace: &'a str,
    service: &'a str,
    records: &'a Records,
}

impl Node<'_> {
    /// The type that answers a question for any type (RFC 8482, 4.1: one is enough).
    fn first_type(&self) -> RecordType {
        match self {
            Self::Absent | Self::Empty | Self::Apex => RecordType::SOA,
            Self::Version => RecordType::TXT,
            Self::Addresses([IpAddr::V4(_), ..]) | Self::Address(IpAddr::V4(_)) => RecordType::A,
            Self::Addresses(_) | Self::Address(_) => RecordType::AAAA,
            Self::Alias(_) => RecordType::CNAME,
            Self::Port(..) => RecordType::SRV,
            Self::Pointers(_) => RecordType::PTR,
        }
    }
}

impl Zone {
    /// Looks up a name and a type. Returns `None` if the name is not the cluster's. Sets of records start at
    /// the position `turn`, so that a random number for each request spreads clients over a headless Service.
    pub fn lookup(&self, name: &Name, kind: RecordType, turn: usize) -> Option<Lookup<'_>> {
        self.follow(name, kind, turn, MAX_ALIASES)
    }

    fn follow(&self, name: &Name, kind: RecordType, turn: usize, aliases: usize) -> Option<Lookup<'_>> {
        let node = self.find(name)?;
        let kind = if kind == RecordType::ANY { node.first_type() } else { kind };
        if let Node::Alias(target) = node {
            return Some(self.alias(target, kind, turn, aliases));
        }
        if matches!(node, Node::Absent) {
            return Some(self.negative(name, LookupResult::NoName));
        }
        let mut answers = self.answers(&node, kind, turn).peekable();
        if answers.peek().is_none() {
            return Some(self.negative(name, LookupResult::NoData));
        }
        Some(Lookup {
            outcome: LookupResult::Found,
            answers: Box::new(answers),
            additional: self.additional(&node, turn),
            authority: None,
            beyond: None,
        })
    }

    fn negative(&self, name: &Name, outcome: LookupResult) -> Lookup<'_> {
        let outcome = if self.in_sync { outcome } else { LookupResult::NotInSync };
        Lookup { outcome, answers: none(), additional: none(), authority: self.authority(name), beyond: None }
    }

    fn alias<'a>(&'a self, target: &'a Name, kind: RecordType, turn: usize, aliases: usize) -> Lookup<'a> {
        let own = std::iter::once(Rr { owner: None, data: RData::CNAME(CNAME(target.clone())) });
        let found = |beyond| Lookup {
            outcome: LookupResult::Found,
            answers: none(),
            additional: none(),
            authority: None,
            beyond,
        };
        let next = match aliases.checked_sub(1) {
            Some(left) if kind != RecordType::CNAME => {
                self.follow(target, kind, turn, left).unwrap_or_else(|| found(Some(target.clone())))
            }
            _ => found(None),
        };
        let rest = next
            .answers
            .map(move |rr| Rr { owner: rr.owner.or_else(|| Some(target.clone())), data: rr.data });
        Lookup { answers: Box::new(own.chain(rest)), ..next }
    }

    /// Returns `None` if the name is not the cluster's.
    fn find(&self, name: &Name) -> Option<Node<'_>> {
        match self.below_domain(name) {
            Some(labels) => Some(self.find_forward(labels).unwrap_or(Node::Absent)),
            None => self.find_reverse(ReverseName::of(name)?),
        }
    }

    /// Returns the labels of `name` below the cluster domain, or `None` if the name is not in it.
    fn below_domain<'a>(&self, name: &'a Name) -> Option<LabelIter<'a>> {
        let mut labels = name.iter();
        for label in self.settings.domain.iter().rev() {
            labels.next_back().filter(|found| found.eq_ignore_ascii_case(label))?;
        }
        Some(labels)
    }

    /// Returns `None` if the name does not exist.
    fn find_forward(&self, mut labels: LabelIter<'_>) -> Option<Node<'_>> {
        let Some(first) = labels.next_back() else { return Some(Node::Apex) };
        match (Lower::new(first).as_str(), labels.next_back()) {
            ("svc" | "dns", None) => Some(Node::Empty),
            ("svc", Some(namespace)) => self.find_in_namespace(namespace, labels),
            ("pod", namespace) if self.settings.pod_names => find_pod(namespace, labels),
            ("dns", Some(host)) => {
                let is_server = host.eq_ignore_ascii_case(b"ns") && labels.next_back().is_none();
                is_server.then(|| Node::Addresses(self.server_addresses()))
            }
            ("dns-version", None) => Some(Node::Version),
            _ => None,
        }
    }

    fn find_in_namespace(&self, namespace: &[u8], mut labels: LabelIter<'_>) -> Option<Node<'_>> {
        let (namespace, all) = self.namespaces.get_key_value(Lower::new(namespace).as_str())?;
        let Some(service) = labels.next_back() else { return (all.visible > 0).then_some(Node::Empty) };
        let (service, entry) = all.services.get_key_value(Lower::new(service).as_str())?;
        let place = ZoneService { namespace, service, records: &entry.records };
        if place.records.is_empty() {
            return None;
        }
        match (labels.next_back(), labels.next_back(), labels.next_back()) {
            (None, ..) => {
                let addresses = Node::Addresses(&place.records.addresses);
                Some(place.records.alias.as_deref().map_or(addresses, Node::Alias))
            }
            (Some(label), None, _) => {
                if let Some(protocol) = protocol(label) {
                    return place.records.has_protocol(protocol).then_some(Node::Empty);
                }
                let host = place.records.hosts.get(Lower::new(label).as_str());
                host.map(|addresses| Node::Addresses(addresses))
            }
            (Some(label), Some(port), None) => {
                let port = Lower::new(port.strip_prefix(b"_")?);
                let found = place.records.srv_of(protocol(label)?, port.as_str());
                (!found.is_empty()).then_some(Node::Port(found, place))
            }
            _ => None,
        }
    }

    /// A reverse name that leads to a Service is the cluster's, whatever its address. Other names are the cluster's
    /// only in the ranges of cluster IPs.
    fn find_reverse(&self, name: ReverseName) -> Option<Node<'_>> {
        if let Some(owners) = name.address().and_then(|address| self.pointers.get(&address)) {
            return Some(Node::Pointers(owners));
        }
        if name.zone(&self.settings.ranges)? == name {
            return Some(Node::Apex);
        }
        let below = self.pointers.range(name.range()).next();
        Some(below.map_or(Node::Absent, |_| Node::Empty))
    }

    /// Returns the addresses of the Service through which this server is reached.
    pub fn server_addresses(&self) -> &[IpAddr] {
        let name = &self.settings.server;
        let entry = self.namespaces.get(&name.namespace).and_then(|all| all.services.get(&name.name));
        entry.map_or(&[], |entry| &entry.records.addresses)
    }

    fn answers<'a>(&'a self, node: &Node<'a>, kind: RecordType, turn: usize) -> Rrs<'a> {
        match (node, kind) {
            (Node::Apex, RecordType::SOA) => own(self.soa()),
            (Node::Apex, RecordType::NS) => own(self.server_name().map(|name| RData::NS(NS(name)))),
            (Node::Version, RecordType::TXT) => {
                own(Some(RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_owned()]))))
            }
            (Node::Addresses(all), RecordType::A | RecordType::AAAA) => Box::new(
                turned(of_type(all, kind), turn).map(|address| Rr { owner: None, data: data(*address) }),
            ),
            (Node::Address(address), _) => {
                let data = data(*address);
                own((data.record_type() == kind).then_some(data))
            }
            (Node::Port(srv, place), RecordType::SRV) => {
                let place = *place;
                Box::new(turned(srv, turn).filter_map(move |srv| {
                    let target = self.name_of(place.namespace, place.service, srv.host.as_deref())?;
                    let data = RData::SRV(SRV::new(PRIORITY, WEIGHT, srv.number, target));
                    Some(Rr { owner: None, data })
                }))
            }
            (Node::Pointers(owners), RecordType::PTR) => {
                Box::new(leading(owners).iter().filter_map(|owner| {
                    let target = self.name_of(&owner.namespace, &owner.service, owner.host.as_deref())?;
                    Some(Rr { owner: None, data: RData::PTR(PTR(target)) })
                }))
            }
            _ => none(),
        }
    }

    fn additional<'a>(&'a self, node: &Node<'a>, turn: usize) -> Rrs<'a> {
        match node {
            Node::Apex => {
                let server = self.server_name();
                Box::new(
                    self.server_addresses()
                        .iter()
                        .map(move |address| Rr { owner: server.clone(), data: data(*address) }),
                )
            }
            Node::Port(srv, place) => {
                let place = *place;
                Box::new(turned(srv, turn).flat_map(move |srv| {
                    let owner = self.name_of(place.namespace, place.service, srv.host.as_deref());
                    let addresses = match &srv.host {
                        Some(host) => place.records.hosts.get(host),
                        None => Some(&place.records.addresses),
                    };
                    let addresses =
                        addresses.filter(|_| owner.is_some()).map(|all| &**all).unwrap_or_default();
                    addresses.iter().map(move |address| Rr { owner: owner.clone(), data: data(*address) })
                }))
            }
            _ => none(),
        }
    }

    /// Returns the SOA record of the zone that `name` is in, for answers without records.
    fn authority(&self, name: &Name) -> Option<Rr> {
        let apex = match self.below_domain(name) {
            Some(_) => self.settings.domain.clone(),
            None => ReverseName::of(name)?.zone(&self.settings.ranges)?.name()?,
        };
        Some(Rr { owner: Some(apex), data: self.soa()? })
    }

    fn soa(&self) -> Option<RData> {
        let contact = below(&["hostmaster"], &self.settings.domain)?;
        let minimum = self.settings.ttl;
        Some(RData::SOA(SOA::new(self.server_name()?, contact, self.serial, REFRESH, RETRY, EXPIRE, minimum)))
    }

    fn server_name(&self) -> Option<Name> {
        below(&["ns", "dns"], &self.settings.domain)
    }

    /// Returns the name of a Service or of one of its hosts, or `None` if the cluster domain makes it too long.
    fn name_of(&self, namespace: &str, service: &str, host: Option<&str>) -> Option<Name> {
        match host {
            Some(host) => below(&[host, service, namespace, "svc"], &self.settings.domain),
            None => below(&[service, namespace, "svc"], &self.settings.domain),
        }
    }
}

fn none<'a>() -> Rrs<'a> {
    Box::new(std::iter::empty())
}

fn own<'a>(data: Option<RData>) -> Rrs<'a> {
    Box::new(data.map(|data| Rr { owner: None, data }).into_iter())
}

fn below(labels: &[&str], domain: &Name) -> Option<Name> {
    let mut name = Name::new();
    for label in labels {
        name = name.append_label(label.as_bytes()).ok()?;
    }
    name.append_domain(domain).ok()
}

fn data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

/// Returns the part of sorted addresses that has type A or type AAAA.
fn of_type(addresses: &[IpAddr], kind: RecordType) -> &[IpAddr] {
    let middle = addresses.partition_point(IpAddr::is_ipv4);
    let (ipv4, ipv6) = addresses.split_at_checked(middle).unwrap_or_default();
    if kind == RecordType::A { ipv4 } else { ipv6 }
}

/// Returns all items, beginning at the position `turn`.
fn turned<T>(items: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let start = turn.checked_rem(items.len()).unwrap_or_default();
    let (last, first) = items.split_at_checked(start).unwrap_or_default();
    first.iter().chain(last)
}

/// If a cluster IP is also an endpoint's address, only the Service is its owner.
fn leading(owners: &[Pointer]) -> &[Pointer] {
    let services = owners.partition_point(|owner| owner.host.is_none());
    match owners.get(..services) {
        Some(services) if !services.is_empty() => services,
        _ => owners,
    }
}

fn protocol(label: &[u8]) -> Option<Protocol> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let label = label.strip_prefix(b"_")?;
    all.into_iter().find(|protocol| label.eq_ignore_ascii_case(protocol.name().as_bytes()))
}

/// Finds `10-1-2-3.namespace.pod`. Every namespace exists there, because the names do not depend on objects.
fn find_pod<'a>(namespace: Option<&[u8]>, mut labels: LabelIter<'_>) -> Option<Node<'a>> {
    match (namespace, labels.next_back(), labels.next_back()) {
        (None, ..) | (_, None, _) => Some(Node::Empty),
        (_, Some(label), None) => {
            let label = Lower::new(label);
            let ipv4 = label.as_str().replace('-', ".").parse().map(IpAddr::V4);
            let ipv6 = || label.as_str().replace('-', ":").parse().map(IpAddr::V6);
            ipv4.or_else(|_| ipv6()).ok().map(Node::Address)
        }
        _ => None,
    }
}
