//! Compact records of Services and EndpointSlices. Each shared text is stored once.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::PerFamily;
use super::store::{Id, Named};
use crate::object::{EndpointSlice, Fault, ObjectKey, Service, SliceEndpoint, SlicePort};
use crate::selection::{Endpoint, Hint};
use crate::{Backend, Family, Protocol};

/// A Service, its slices, or both. Slices may arrive before their Service and outlive it.
#[derive(Debug, Clone)]
pub(super) struct ServiceRecord {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) service: Option<Service>,
    pub(super) slices: IdList,
    /// The list in which the Service was last seen.
    pub(super) generation: u32,
    pub(super) fault_digest: u32,
    /// True if the record was touched since the last take.
    pub(super) dirty: bool,
    /// True if the record was part of a take, so its former forwardings may be in use.
    pub(super) settled: bool,
    /// True if a slice with a UDP port changed since the last take.
    pub(super) udp_touched: PerFamily<bool>,
}

/// An EndpointSlice.
#[derive(Debug, Clone)]
pub(super) struct SliceRecord {
    pub(super) namespace: Arc<str>,
    pub(super) name: Box<str>,
    /// The Service record that owns the slice.
    pub(super) owner: Id,
    /// The list in which the slice was last seen.
    pub(super) generation: u32,
    pub(super) fault_digest: u32,
    pub(super) content: SliceContent,
}

/// The ids of a Service's slices, without an allocation in the usual case of a single slice.
#[derive(Debug, Clone, Default)]
pub(super) enum IdList {
    /// No slice.
    #[default]
    None,
    /// One slice.
    One(Id),
    /// Several slices.
    Many(Box<[Id]>),
}

impl IdList {
    pub(super) fn as_slice(&self) -> &[Id] {
        match self {
            Self::None => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }

    pub(super) fn push(&mut self, id: Id) {
        *self = self.as_slice().iter().copied().chain([id]).collect();
    }

    pub(super) fn remove(&mut self, id: Id) {
        *self = self.as_slice().iter().copied().filter(|known| *known != id).collect();
    }
}

impl FromIterator<Id> for IdList {
    fn from_iter<I: IntoIterator<Item = Id>>(ids: I) -> Self {
        let ids: Box<[Id]> = ids.into_iter().collect();
        match *ids {
            [] => Self::None,
            [id] => Self::One(id),
            _ => Self::Many(ids),
        }
    }
}

/// The content of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SliceContent {
    pub(super) ports: Arc<[SlicePort]>,
    endpoints: Endpoints,
    /// The distinct lists of zone hints, each sorted.
    pub(super) zone_sets: Box<[ZoneSet]>,
}

/// The zones of a hint, sorted and without duplicates. Each distinct list is stored once in a Catalog.
pub(super) type ZoneSet = Arc<[Box<str>]>;

/// The endpoints of one family. In most slices they differ by their addresses only, so that these are the whole list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoints {
    Ipv4(Box<[CompactEndpoint<Ipv4Addr>]>),
    Ipv6(Box<[CompactEndpoint<Ipv6Addr>]>),
    Ipv4Alike(CompactEndpoint<()>, Box<[Ipv4Addr]>),
    Ipv6Alike(CompactEndpoint<()>, Box<[Ipv6Addr]>),
}

/// An endpoint in 8 bytes, or 20 with an IPv6 address. Its node name and node hints are resolved once to flags,
/// because the name of this node never changes. The node's zone can change, so zone hints are kept by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CompactEndpoint<A> {
    address: A,
    flags: u8,
    zone_set: u16,
}

const READY: u8 = 1;
const SERVING: u8 = 1 << 1;
const TERMINATING: u8 = 1 << 2;
const LOCAL: u8 = 1 << 3;
const NO_NODE: u8 = 1 << 4;
const NODE_HINT: u8 = 1 << 5;
const NODE_HINT_HERE: u8 = 1 << 6;
const ZONE_HINT: u8 = 1 << 7;

impl ServiceRecord {
    pub(super) fn new(namespace: Arc<str>, name: Arc<str>) -> Self {
        Self {
            namespace,
            name,
            service: None,
            slices: IdList::default(),
            generation: 0,
            fault_digest: 0,
            dirty: false,
            settled: false,
            udp_touched: PerFamily::default(),
        }
    }

    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(&*self.namespace, &*self.name)
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.service.is_none() && self.slices.as_slice().is_empty()
    }
}

impl Named for ServiceRecord {
    fn namespace(&self) -> &str {
        &self.namespace
    }
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for SliceRecord {
    fn namespace(&self) -> &str {
        &self.namespace
    }
    fn name(&self) -> &str {
        &self.name
    }
}

impl SliceContent {
    /// Compacts a slice as seen from a node.
    pub(super) fn new(
        slice: &EndpointSlice,
        family: Family,
        node: &str,
        ports: &mut Interner<[SlicePort]>,
        zones: &mut Interner<[Box<str>]>,
    ) -> Self {
        let ports = ports.intern(&slice.ports);
        let mut zone_sets: Vec<ZoneSet> = Vec::new();
        let mut compact = |endpoint: &SliceEndpoint| {
            let set = zone_set(slice, endpoint, zones);
            let zone_set = set.map(|set| position(&mut zone_sets, set));
            CompactEndpoint::new(slice, endpoint, node, zone_set)
        };
        let all = slice.endpoints.iter();
        let endpoints = match family {
            Family::Ipv4 => Endpoints::of_ipv4(all.filter_map(|endpoint| match endpoint.address {
                IpAddr::V4(address) => Some(compact(endpoint).at(address)),
                IpAddr::V6(_) => None,
            })),
            Family::Ipv6 => Endpoints::of_ipv6(all.filter_map(|endpoint| match endpoint.address {
                IpAddr::V6(address) => Some(compact(endpoint).at(address)),
                IpAddr::V4(_) => None,
            })),
        };
        Self { ports, endpoints, zone_sets: zone_sets.into_boxed_slice() }
    }

    pub(super) const fn family(&self) -> Family {
        match self.endpoints {
            Endpoints::Ipv4(_) | Endpoints::Ipv4Alike(..) => Family::Ipv4,
            Endpoints::Ipv6(_) | Endpoints::Ipv6Alike(..) => Family::Ipv6,
        }
    }

    /// Returns the addresses of all endpoints.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.endpoints.iter().map(|endpoint| endpoint.address).collect()
    }

    /// Returns the addresses of all endpoints, or nothing if there is no TCP port.
    pub(super) fn tcp_addresses(&self) -> Vec<IpAddr> {
        let has_tcp = self.ports.iter().any(|port| port.protocol == Protocol::Tcp);
        if has_tcp { self.addresses() } else { Vec::new() }
    }

    /// Returns the addresses of endpoints with the TCP ports behind which they are.
    pub(super) fn tcp_sockets(&self) -> impl Iterator<Item = SocketAddr> {
        let ports = self.ports.iter().filter(|port| port.protocol == Protocol::Tcp).map(|port| port.port);
        let ports: Vec<u16> = ports.collect();
        self.tcp_addresses()
            .into_iter()
            .flat_map(move |ip| ports.clone().into_iter().map(move |port| SocketAddr::new(ip, port)))
    }

    /// Appends the endpoints behind one target port, as seen from a zone.
    pub(super) fn expand(&self, port: u16, zone: Option<&str>, into: &mut Vec<Endpoint>) {
        into.reserve_exact(self.endpoints.len());
        into.extend(self.endpoints.iter().map(|endpoint| endpoint.expand(port, &self.zone_sets, zone)));
    }

    /// Returns the endpoints behind one target port, as seen from a zone, each with the zones of its hints.
    pub(super) fn explained(&self, port: u16, zone: Option<&str>) -> Vec<(Endpoint, Option<ZoneSet>)> {
        let mut endpoints = Vec::new();
        self.expand(port, zone, &mut endpoints);
        let zones = self.endpoints.iter().map(|endpoint| endpoint.zones(&self.zone_sets));
        endpoints.into_iter().zip(zones).collect()
    }
}

impl Endpoints {
    fn of_ipv4(endpoints: impl Iterator<Item = CompactEndpoint<Ipv4Addr>>) -> Self {
        let endpoints: Box<[_]> = endpoints.collect();
        match alike(&endpoints) {
            Some((all, addresses)) => Self::Ipv4Alike(all, addresses),
            None => Self::Ipv4(endpoints),
        }
    }

    fn of_ipv6(endpoints: impl Iterator<Item = CompactEndpoint<Ipv6Addr>>) -> Self {
        let endpoints: Box<[_]> = endpoints.collect();
        match alike(&endpoints) {
            Some((all, addresses)) => Self::Ipv6Alike(all, addresses),
            None => Self::Ipv6(endpoints),
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::Ipv4(list) => list.len(),
            Self::Ipv6(list) => list.len(),
            Self::Ipv4Alike(_, addresses) => addresses.len(),
            Self::Ipv6Alike(_, addresses) => addresses.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = CompactEndpoint<IpAddr>> {
        (0..self.len()).filter_map(|index| {
            Some(match self {
                Self::Ipv4(list) => list.get(index).map(|endpoint| endpoint.at(endpoint.address.into()))?,
                Self::Ipv6(list) => list.get(index).map(|endpoint| endpoint.at(endpoint.address.into()))?,
                Self::Ipv4Alike(all, addresses) => all.at((*addresses.get(index)?).into()),
                Self::Ipv6Alike(all, addresses) => all.at((*addresses.get(index)?).into()),
            })
        })
    }
}

/// Returns what all endpoints have besides their addresses, and the addresses. `None` if they differ, or if there are none.
fn alike<A: Copy>(endpoints: &[CompactEndpoint<A>]) -> Option<(CompactEndpoint<()>, Box<[A]>)> {
    let all = endpoints.first()?.at(());
    let are_alike = endpoints.iter().all(|endpoint| endpoint.at(()) == all);
    are_alike.then(|| (all, endpoints.iter().map(|endpoint| endpoint.address).collect()))
}

fn zone_set(
    slice: &EndpointSlice,
    endpoint: &SliceEndpoint,
    zones: &mut Interner<[Box<str>]>,
) -> Option<ZoneSet> {
    let mut names: Vec<Box<str>> = slice.zone_hints(endpoint).map(Into::into).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| zones.intern(&names))
}

/// Returns the index of a set and adds the set if it is new. If there are more than 65,535 sets, the index of further
/// ones is out of bounds, which means that the zone is not this node's.
fn position(sets: &mut Vec<ZoneSet>, set: ZoneSet) -> u16 {
    let known = sets.iter().position(|known| Arc::ptr_eq(known, &set));
    let index = known.unwrap_or_else(|| {
        if sets.len() < usize::from(u16::MAX) {
            sets.push(set);
            sets.len() - 1
        } else {
            usize::from(u16::MAX)
        }
    });
    u16::try_from(index).unwrap_or(u16::MAX)
}

impl CompactEndpoint<()> {
    /// Creates the endpoint without its address.
    fn new(slice: &EndpointSlice, endpoint: &SliceEndpoint, node: &str, zone_set: Option<u16>) -> Self {
        let on = slice.node(endpoint).filter(|name| !name.is_empty());
        let is_here = |name: &str| !node.is_empty() && name == node;
        let mut hints = slice.node_hints(endpoint).peekable();
        let pairs = [
            (READY, endpoint.ready),
            (SERVING, endpoint.serving),
            (TERMINATING, endpoint.terminating),
            (LOCAL, on.is_some_and(is_here)),
            (NO_NODE, on.is_none()),
            (NODE_HINT, hints.peek().is_some()),
            (NODE_HINT_HERE, hints.any(is_here)),
            (ZONE_HINT, zone_set.is_some()),
        ];
        let flags = pairs.iter().filter(|(_, set)| *set).fold(0, |flags, (flag, _)| flags | flag);
        Self { address: (), flags, zone_set: zone_set.unwrap_or(0) }
    }
}

impl<A> CompactEndpoint<A> {
    /// Returns the same endpoint with another address.
    const fn at<B: Copy>(&self, address: B) -> CompactEndpoint<B> {
        CompactEndpoint { address, flags: self.flags, zone_set: self.zone_set }
    }
}

impl CompactEndpoint<IpAddr> {
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the zones of the hints, or `None` if there are none.
    fn zones(&self, zone_sets: &[ZoneSet]) -> Option<ZoneSet> {
        let set = self.has(ZONE_HINT).then(|| zone_sets.get(usize::from(self.zone_set)));
        set.flatten().cloned()
    }

    fn expand(&self, port: u16, zone_sets: &[ZoneSet], zone: Option<&str>) -> Endpoint {
        let hint = |present, here| match (self.has(present), here) {
            (false, _) => Hint::Absent,
            (true, false) => Hint::Elsewhere,
            (true, true) => Hint::Here,
        };
        let zones = zone_sets.get(usize::from(self.zone_set));
        let zone_here =
            || zone.is_some_and(|z| zones.is_some_and(|zones| zones.iter().any(|name| **name == *z)));
        let local = self.has(LOCAL);
        Endpoint {
            backend: Backend { address: self.address, port, may_hairpin: local || self.has(NO_NODE) },
            ready: self.has(READY),
            serving: self.has(SERVING),
            terminating: self.has(TERMINATING),
            aside: false,
            local,
            node_hint: hint(NODE_HINT, self.has(NODE_HINT_HERE)),
            zone_hint: hint(ZONE_HINT, self.has(ZONE_HINT) && zone_here()),
        }
    }
}

/// Stores each distinct value once. Values without other references are removed when the number of values has
/// doubled, from 64 on.
#[derive(Debug)]
pub(super) struct Interner<T: ?Sized> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), sweep_at: 64 }
    }
}

impl<T: ?Sized> Clone for Interner<T> {
    fn clone(&self) -> Self {
        Self { values: self.values.clone(), sweep_at: self.sweep_at }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    pub(super) fn intern(&mut self, value: &T) -> Arc<T>
    where
        Arc<T>: for<'a> From<&'a T>,
    {
        if let Some(known) = self.values.get(value) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = (self.values.len() * 2).max(64);
        }
        let value = Arc::from(value);
        self.values.insert(Arc::clone(&value));
        value
    }
}

/// Returns a digest by which repeated faults are recognised, or zero if there are none. Not for security.
#[expect(clippy::cast_possible_truncation, reason = "a part of a hash is a hash")]
pub(super) fn fault_digest(faults: &[Fault]) -> u32 {
    if faults.is_empty() {
        return 0;
    }
    let mut hasher = std::collections::hash_map::DefaultHasher::new();
    for fault in faults {
        (&fault.field, &fault.reason).hash(&mut hasher);
    }
    (hasher.finish() as u32).max(1)
}

#[cfg(test)]
mod tests;
