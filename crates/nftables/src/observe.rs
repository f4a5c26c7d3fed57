//! Reads the kernel's table in the terms of Services ([`Observed`]).
//!
//! A decoded table goes in ([`View`]), Service ports come out. It must not know the wanted table, the settings, or what
//! the planner has in mind: what it returns is what packets meet. So it follows them: a frontend's element to its
//! class, the class to its chain, the chain's name to the number of indexes that are drawn, and each index to an
//! endpoint.
//!
//! - The name of a Service port is the comment of its frontends. An entry has no name if the comment is no name, or may
//!   have been cut.
//! - A frontend whose class leads nowhere has no endpoint. If another program wrote the rules of a class, the endpoints
//!   are not known.
//! - A frontend that has only endpoints for packets of this node, and no rule that drops the others, is incomplete.
//!   It is left out.
//! - An endpoint beyond the indexes that are drawn is in an entry of its own without frontends.
//! - An element that this mode cannot have written, such as a frontend of another protocol, becomes an entry without name
//!   and frontends. Its protocol is TCP if the element has none.
//! - If packets do not come to the table's first lookup, there are no Service ports.
//! - Counters are those of elements, if they have any.
//!
//! Not held, or not in these terms: whether a frontend without endpoints rejects or drops, elements that no frontend
//! leads to, cluster IPs, hairpin connections, unused classes, and the rules of the checks.

mod decode;
mod reach;
mod upstream;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_engine::dataplane::Error;
use portolan_model::observed::{
    Counters, Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend, ObservedPlace,
    ObservedPort, Refused,
};
use portolan_model::{Family, Protocol, ServicePortName};
use portolan_sock::{Protocol as NetlinkProtocol, Socket};

use super::chain::FamilyTable;
use super::element::{Key, Set, read_number};
use super::layout::{CAPTURE, Kind, TRANSLATE};
use super::readback::{self, View, choice_key, read_socket};
use super::value::{LOCAL_OFFSET, Value};
use decode::At;
use reach::{Lists, Reach};
#[cfg(feature = "fuzzing")]
pub(super) use upstream::observed_kube_proxy;
pub use upstream::read_kube_proxy;

/// Returns what the kernel has of the nftables mode in the network namespace of this thread. `None` if the table does not
/// exist.
pub fn read(family: Family) -> Result<Option<Observed>, Error> {
    read_kind(TRANSLATE, family)
}

/// Returns what the kernel has of the rules that capture packets for the relay, in the network namespace of this thread.
/// They hold neither endpoints nor affinity. `None` if the table does not exist.
pub fn read_capture(family: Family) -> Result<Option<Observed>, Error> {
    read_kind(CAPTURE, family)
}

/// Reads a table. Returns `None` if it does not exist.
fn read_kind(kind: &Kind, family: Family) -> Result<Option<Observed>, Error> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter)?;
    let place = kind.place(family);
    let view = readback::undisturbed(kind.mode, || Ok(readback::read_with_comments(&mut socket, place)?))?;
    Ok(view.table.is_some().then(|| observed(view, kind, place)))
}

/// Returns an entry for a table without Service ports.
const fn nothing(family: Family) -> Observed {
    Observed { family, node_port_addresses: None, node_ports: Fact::Unknown, ports: Vec::new() }
}

/// Returns what a table means. The view must have the comments of elements.
pub(super) fn observed(view: View, kind: &Kind, place: FamilyTable) -> Observed {
    if !reach::is_in_effect(&view, kind) {
        return nothing(place.family);
    }
    let node_ports = reach::node_ports(&view, place);
    let mut reader = Reader {
        family: place.family,
        holds_endpoints: kind.holds_endpoints,
        reaches: reach::reaches(&view, kind, place),
        view,
        ranges: HashMap::new(),
        guarded: BTreeMap::new(),
        has_unreadable: false,
        ports: Vec::new(),
    };
    reader.has_unreadable = reader.view.unexpected.iter().any(|(set, _)| *set != Set::Classes);
    reader.read_guards();
    let frontends = reader.frontends();
    reader.add_guards_without_frontend(&frontends);
    let mut owners: BTreeMap<Owner, Vec<Found>> = BTreeMap::new();
    for found in frontends.into_values() {
        owners.entry(found.owner()).or_default().push(found);
    }
    for (owner, frontends) in &owners {
        reader.add_ports(owner, frontends);
    }
    if kind.holds_endpoints {
        reader.add_endpoints_without_frontend(&owners);
    }
    if reader.has_unreadable {
        reader.ports.push(without_frontends(None, Protocol::Tcp, ObservedEndpoints::Unknown));
    }
    Observed { ports: reader.ports, node_ports, ..nothing(place.family) }
}

type Name = Option<Arc<ServicePortName>>;

/// A frontend, from all the elements with its key.
#[derive(Debug)]
struct Found {
    at: At,
    name: Name,
    /// Id and class, if packets are forwarded.
    value: Option<Value>,
    /// True if packets that are not forwarded are rejected or dropped.
    is_refused: bool,
    refused: Refused,
}

/// The frontends that are read together, because they have the same endpoints.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// Packets are forwarded to the endpoints of this id.
    Id(u32),
    /// Without endpoints.
    Name(Arc<ServicePortName>),
    /// Without endpoints and without name.
    Alone(At),
}

impl Found {
    fn owner(&self) -> Owner {
        match (self.value, &self.name) {
            (Some(value), _) => Owner::Id(value.id()),
            (None, Some(name)) => Owner::Name(Arc::clone(name)),
            (None, None) => Owner::Alone(self.at),
        }
    }

    /// Returns true if something happens to each packet, whatever its source is.
    fn is_complete(&self, reach: Reach) -> bool {
        self.is_refused || !matches!(reach, Reach::Lists(lists) if lists.drops())
    }
}

struct Reader {
    family: Family,
    holds_endpoints: bool,
    view: View,
    reaches: HashMap<u16, Reach>,
    /// The source ranges of load-balancer IPs.
    ranges: HashMap<At, Vec<IpNet>>,
    /// The load-balancer IPs whose sources are checked.
    guarded: BTreeMap<At, Name>,
    has_unreadable: bool,
    ports: Vec<ObservedPort>,
}

impl Reader {
    /// Returns the keys of a set of frontends, with the name, the data and the count of each.
    fn keys(&self, set: Set) -> impl Iterator<Item = (Option<At>, Name, Option<Value>, Option<u64>)> {
        self.view.rows_of(set).map(move |row| {
            let at = decode::frontend(self.family, set, row.key.as_slice());
            let comment = row.comment.and_then(|hash| self.view.comment(hash));
            let name = comment.zip(at).and_then(|(comment, at)| decode::name(comment, at.protocol));
            let count = self.view.counts.get(&(set, row.key)).copied();
            (at, name, read_number(row.data.as_slice()).map(Value), count)
        })
    }

    /// Reads which sources are checked: none, if packets do not come to the check.
    fn read_guards(&mut self) {
        if !reach::checks_sources(&self.view) {
            return;
        }
        let guarded: Vec<_> = self.keys(Set::FirewallIps).map(|(at, name, ..)| (at, name)).collect();
        for (at, name) in guarded {
            match at {
                Some(at) => drop(self.guarded.insert(at, name)),
                None => self.has_unreadable = true,
            }
        }
        for (key, end) in &self.view.ranges {
            match decode::source_range(self.family, key, end.as_ref()) {
                Some((at, ranges)) => self.ranges.entry(at).or_default().extend(ranges),
                None => self.has_unreadable = true,
            }
        }
    }

    fn frontends(&mut self) -> BTreeMap<At, Found> {
        let mut frontends: BTreeMap<At, Found> = BTreeMap::new();
        let mut has_unreadable = false;
        for set in FRONTENDS {
            for (at, name, value, count) in self.keys(set) {
                let Some(at) = at else {
                    has_unreadable = true;
                    continue;
                };
                let refused = Refused::default();
                let new = Found { at, name: None, value: None, is_refused: false, refused };
                let found = frontends.entry(at).or_insert(new);
                found.name = found.name.take().or(name);
                found.value = found.value.or(value);
                found.is_refused |= !matches!(set, Set::Services | Set::NodePorts);
                match set {
                    Set::NoEndpointServices | Set::NoEndpointNodePorts => found.refused.no_endpoint = count,
                    Set::NoLocalEndpointServices | Set::NoLocalEndpointNodePorts => {
                        found.refused.no_local_endpoint = count;
                    }
                    _ => {}
                }
            }
        }
        for (at, _, _, count) in self.keys(Set::SourceRangeDrops) {
            if let Some(found) = at.and_then(|at| frontends.get_mut(&at)) {
                found.refused.source_range = count;
            }
        }
        self.has_unreadable |= has_unreadable;
        frontends
    }

    /// Adds an entry for each Service port whose sources are checked at an address that is no frontend.
    fn add_guards_without_frontend(&mut self, frontends: &BTreeMap<At, Found>) {
        let alone = self.guarded.iter().filter(|(at, _)| !frontends.contains_key(at));
        let alone: BTreeSet<(Name, Protocol)> = alone.map(|(at, name)| (name.clone(), at.protocol)).collect();
        let entry = |(name, protocol)| without_frontends(name, protocol, ObservedEndpoints::Unknown);
        self.ports.extend(alone.into_iter().map(entry));
    }

    /// Adds the entries of frontends that have the same endpoints: one, unless the frontends contradict each other, or some
    /// have source ranges.
    fn add_ports(&mut self, owner: &Owner, frontends: &[Found]) {
        let lists = frontends.iter().filter_map(|found| match self.reach(found) {
            Reach::Lists(lists) => Some(lists),
            _ => None,
        });
        let together = lists.map(Some).reduce(|one, two| one?.and(two?)).flatten();
        let own_ips: BTreeSet<IpAddr> =
            frontends.iter().filter(|found| self.guarded.contains_key(&found.at)).filter_map(ip).collect();
        let mut entries: BTreeMap<_, Vec<ObservedFrontend>> = BTreeMap::new();
        for found in frontends {
            let reach = match (self.reach(found), together) {
                (Reach::Lists(_), Some(lists)) => Reach::Lists(lists),
                (reach, _) => reach,
            };
            let key = (found.at.protocol, found.name.clone(), reach, self.source_ranges(found, &own_ips));
            let entry = entries.entry(key).or_default();
            if found.is_complete(self.reach(found)) {
                entry.push(ObservedFrontend {
                    refused: found.refused,
                    ..ObservedFrontend::at(found.at.place)
                });
            }
        }
        for ((protocol, name, reach, source_ranges), frontends) in entries {
            let affinity = match reach {
                Reach::Lists(lists) if self.holds_endpoints => Fact::Known(lists.affinity),
                _ => Fact::Unknown,
            };
            let endpoints = self.endpoints(owner, reach, together.is_some());
            let source_ranges = Fact::Known(source_ranges);
            let counters = self.counters(owner);
            self.ports.push(ObservedPort {
                name,
                protocol,
                frontends,
                endpoints,
                affinity,
                source_ranges,
                counters,
            });
        }
    }

    /// Returns what went to the endpoints of an id. If several entries have it, the first of them gets the count.
    fn counters(&mut self, owner: &Owner) -> Option<Counters> {
        let Owner::Id(id) = owner else { return None };
        let key = Key::EMPTY.number(Value::new(*id, 0).0);
        self.view.counts.remove(&(Set::ServiceCounters, key)).map(Counters::of_connections)
    }

    fn reach(&self, found: &Found) -> Reach {
        let Some(value) = found.value else { return Reach::Nowhere };
        self.reaches.get(&value.low()).copied().unwrap_or(Reach::Nowhere)
    }

    /// Returns the source ranges of a frontend, without the Service port's own load-balancer IPs, which this mode adds.
    fn source_ranges(&self, found: &Found, own_ips: &BTreeSet<IpAddr>) -> Vec<IpNet> {
        if !self.guarded.contains_key(&found.at) {
            return Vec::new();
        }
        let is_own =
            |range: &IpNet| range.prefix_len() == range.max_prefix_len() && own_ips.contains(&range.addr());
        let mut ranges = self.ranges.get(&found.at).cloned().unwrap_or_default();
        ranges.retain(|range| !is_own(range));
        ranges.sort_unstable();
        if ranges.is_empty() {
            // No source is allowed. An empty list would mean that all are; the own IP is never compared.
            ranges.extend(ip(found).map(IpNet::from));
        }
        ranges
    }

    /// Returns the endpoints of an id. `is_whole` is true if no other entry has endpoints of this id: then this one also
    /// has the list that no frontend leads to.
    fn endpoints(&mut self, owner: &Owner, reach: Reach, is_whole: bool) -> ObservedEndpoints {
        match (reach, owner) {
            (Reach::Lists(lists), Owner::Id(id)) if self.holds_endpoints => {
                let Lists { cluster, local, has_slots, .. } = lists;
                let mut list = |of: List, count: Option<u16>| match count {
                    None if !is_whole => Fact::Unknown,
                    _ => Fact::Known(self.list(*id, of, count)),
                };
                let with = |is_local| List { is_local, has_slots };
                let cluster = list(with(false), cluster);
                ObservedEndpoints::Lists { cluster, local: list(with(true), local) }
            }
            (Reach::Nowhere, _) => ObservedEndpoints::Shared(Vec::new()),
            _ => ObservedEndpoints::Unknown,
        }
    }

    /// Returns the endpoints of the first `count` indexes; `None` stands for all up to the first gap.
    fn list(&mut self, id: u32, of: List, count: Option<u16>) -> Vec<ObservedEndpoint> {
        let first = if of.is_local { LOCAL_OFFSET } else { 0 };
        let mut endpoint = |index: u32| self.endpoint(id, index, of);
        match count {
            Some(count) => (first..first + u32::from(count)).filter_map(endpoint).collect(),
            None => (first..first + LOCAL_OFFSET).map_while(&mut endpoint).collect(),
        }
    }

    fn endpoint(&mut self, id: u32, index: u32, of: List) -> Option<ObservedEndpoint> {
        let key = choice_key(id, index);
        if !of.has_slots {
            return self.take(Set::Endpoints, &key, read_socket).map(ObservedEndpoint::at);
        }
        let slot = self.take(Set::AffinityChoices, &key, |_, data| read_number(data))?;
        let key = Key::EMPTY.number(slot);
        let at = self.take(of.slots(), &key, read_socket)?;
        // If several entries have the endpoint, the first of them gets the count.
        let count = self.view.counts.remove(&(of.slots(), key));
        Some(ObservedEndpoint { at, counters: count.map(Counters::of_connections) })
    }

    fn take<T>(&mut self, set: Set, key: &Key, read: impl Fn(Family, &[u8]) -> Option<T>) -> Option<T> {
        read(self.family, self.view.rows.get_mut(&set)?.take(key)?.data.as_slice())
    }

    /// Adds an entry for each Service port with endpoints that its frontends do not lead to.
    fn add_endpoints_without_frontend(&mut self, owners: &BTreeMap<Owner, Vec<Found>>) {
        let mut beside: BTreeMap<u32, [BTreeSet<SocketAddr>; 2]> = BTreeMap::new();
        for set in ENDPOINTS {
            for (id, is_local, endpoint) in self.left(set) {
                let lists = beside.entry(id).or_default();
                let [cluster, local] = lists;
                if is_local { local } else { cluster }.insert(endpoint);
            }
        }
        for (id, [cluster, local]) in beside {
            let Some(frontends) = owners.get(&Owner::Id(id)) else { continue };
            if frontends.iter().any(|found| self.reach(found) == Reach::Unknown) {
                continue;
            }
            let named = frontends.iter().find(|found| found.name.is_some()).or(frontends.first());
            let Some(Found { at, name, .. }) = named else { continue };
            let list = |sockets: BTreeSet<SocketAddr>| {
                Fact::Known(sockets.into_iter().map(ObservedEndpoint::at).collect())
            };
            let lists = ObservedEndpoints::Lists { cluster: list(cluster), local: list(local) };
            self.ports.push(without_frontends(name.clone(), at.protocol, lists));
        }
    }

    /// Returns the elements of a set that no list has: the id, whether the endpoint is a local one, and the endpoint.
    fn left(&self, set: Set) -> Vec<(u32, bool, SocketAddr)> {
        let Some(rows) = self.view.rows.get(&set) else { return Vec::new() };
        let read = |key: Key| {
            let data = rows.get(&key)?.data;
            let data = data.as_slice();
            let owner = Value(read_number(key.as_slice())?);
            let is_local = match set {
                Set::AffinityEndpoints => false,
                Set::AffinityLocalEndpoints => true,
                _ => read_number(key.as_slice().get(4..)?)? >= LOCAL_OFFSET,
            };
            let endpoint = if set == Set::AffinityChoices {
                let slots = List { is_local, has_slots: true }.slots();
                self.view.endpoint(self.family, slots, Key::EMPTY.number(read_number(data)?))?
            } else {
                read_socket(self.family, data)?
            };
            Some((owner.id(), is_local, endpoint))
        };
        rows.left().filter_map(read).collect()
    }
}

/// The sets whose keys are frontends. The first two lead to endpoints.
const FRONTENDS: [Set; 6] = [
    Set::Services,
    Set::NodePorts,
    Set::NoEndpointServices,
    Set::NoLocalEndpointServices,
    Set::NoEndpointNodePorts,
    Set::NoLocalEndpointNodePorts,
];

/// The sets with endpoints.
const ENDPOINTS: [Set; 4] =
    [Set::Endpoints, Set::AffinityChoices, Set::AffinityEndpoints, Set::AffinityLocalEndpoints];

/// One of the two lists of an id, and where it is.
#[derive(Debug, Clone, Copy)]
struct List {
    is_local: bool,
    /// True if indexes lead to slots, and slots to endpoints.
    has_slots: bool,
}

impl List {
    const fn slots(self) -> Set {
        if self.is_local { Set::AffinityLocalEndpoints } else { Set::AffinityEndpoints }
    }
}

fn without_frontends(name: Name, protocol: Protocol, endpoints: ObservedEndpoints) -> ObservedPort {
    ObservedPort {
        name,
        protocol,
        frontends: Vec::new(),
        endpoints,
        affinity: Fact::Unknown,
        source_ranges: Fact::Unknown,
        counters: None,
    }
}

/// Returns the address of a frontend; `None` for a node port.
fn ip(found: &Found) -> Option<IpAddr> {
    match found.at.place {
        ObservedPlace::Address(socket) | ObservedPlace::NodePortAt(socket) => Some(socket.ip()),
        ObservedPlace::Frontend(frontend) => frontend.socket().map(|socket| socket.ip()),
    }
}

#[cfg(test)]
mod tests;
