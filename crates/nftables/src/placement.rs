//! The positions of a Service port's backends in the maps: dense indexes for the random choice, stable slots for
//! session affinity.
//!
//! Indexes must have no gap, because `numgen` draws from 0 to n-1. So the last backend moves into the gap that a
//! removed one leaves. A slot never changes while its backend exists.

use std::collections::HashSet;
use std::net::SocketAddr;

use portolan_model::{Backend, Forwarding};

use super::value::{MAX_BACKENDS, MAX_CLASS};

/// The indexes and slots of a Service port's backends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Placement {
    /// Cluster backends by index.
    pub(crate) cluster: Order,
    /// `None` if it has its default value, as for most Service ports.
    rare: Option<Box<Extras>>,
}

/// The parts of a placement that most Service ports do not need.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Extras {
    /// Local backends by index.
    local: Order,
    /// With slots: slot of each backend of both sets, sorted by backend.
    slots: Box<[(SocketAddr, u16)]>,
    /// With slots: the next slot to assign. It wraps around, so that a slot is reused as late as possible
    /// and a binding to a removed backend does not lead to the backend that has its slot next.
    next_slot: u16,
}

/// Backends by index, as positions in the sorted list of the forwarding table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// In the order of the sorted list. The value is the number of backends.
    Sorted(u16),
    /// In another order. Holds the position in the sorted list of each index.
    Permuted(Box<[u16]>),
}

impl Default for Order {
    fn default() -> Self {
        Self::Sorted(0)
    }
}

impl Order {
    /// Returns the number of indexes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Sorted(length) => usize::from(*length),
            Self::Permuted(positions) => positions.len(),
        }
    }

    /// Returns the backends by index.
    pub(crate) fn backends<'a>(&'a self, sorted: &'a [Backend]) -> impl Iterator<Item = &'a Backend> {
        (0..self.len()).filter_map(move |index| sorted.get(self.position(index)?))
    }

    fn position(&self, index: usize) -> Option<usize> {
        match self {
            Self::Sorted(_) => Some(index),
            Self::Permuted(positions) => positions.get(index).map(|&position| usize::from(position)),
        }
    }

    /// Orders `new` so that as few indexes as possible change compared with `old` (endpoints by index). Remaining
    /// backends keep their indexes, new ones fill the gaps, and only then the last ones move.
    #[expect(clippy::cast_possible_truncation, reason = "a placement has at most 65,535 endpoints")]
    pub(crate) fn after(old: impl Iterator<Item = SocketAddr>, new: &[Backend]) -> Self {
        let length = new.len().min(MAX_BACKENDS);
        let new = new.get(..length).unwrap_or_default();
        let mut by_index: Vec<Option<u16>> = vec![None; length];
        let mut placed = vec![false; length];
        for (index, socket) in old.enumerate().take(length) {
            let Ok(position) = new.binary_search_by_key(&socket, Backend::socket) else { continue };
            if let (Some(place), Some(seen)) = (by_index.get_mut(index), placed.get_mut(position))
                && !*seen
            {
                *place = Some(position as u16);
                *seen = true;
            }
        }
        let mut rest = (0..length as u16).filter(|&p| placed.get(usize::from(p)) == Some(&false));
        let positions: Vec<u16> =
            by_index.into_iter().filter_map(|place| place.or_else(|| rest.next())).collect();
        Self::from_positions(positions)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a placement has at most 65,535 endpoints")]
    fn from_positions(positions: Vec<u16>) -> Self {
        if positions.iter().enumerate().all(|(index, &position)| index == usize::from(position)) {
            Self::Sorted(positions.len() as u16)
        } else {
            Self::Permuted(positions.into())
        }
    }
}

/// The placement of a Service port in the kernel, or before a change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    /// Cluster endpoints by index.
    pub(crate) cluster: Vec<SocketAddr>,
    /// Local endpoints by index.
    pub(crate) local: Vec<SocketAddr>,
    /// Slots in use.
    pub(crate) slots: Vec<(SocketAddr, u16)>,
    /// The next slot to assign, see [`Placement`].
    pub(crate) next_slot: u16,
}

impl Before {
    /// Returns the positions that a placement assigns to the backends of a forwarding.
    pub(crate) fn of(forwarding: &Forwarding, placement: &Placement) -> Self {
        Self {
            cluster: placement.cluster.backends(&forwarding.cluster).map(Backend::socket).collect(),
            local: placement.local().backends(&forwarding.local).map(Backend::socket).collect(),
            slots: placement.rare.as_ref().map(|rare| rare.slots.to_vec()).unwrap_or_default(),
            next_slot: placement.rare.as_ref().map_or(0, |rare| rare.next_slot),
        }
    }
}

impl Placement {
    /// Places the backends of a forwarding, moving as few as possible.
    pub(crate) fn after(before: &Before, forwarding: &Forwarding, slots: Slots) -> Self {
        let limit = limit(forwarding, slots);
        let cluster = limited(&forwarding.cluster, limit);
        let local = limited(&forwarding.local, limit);
        let (slots, next_slot) = if slots.are_for(forwarding) {
            assign_slots(before, cluster, local)
        } else {
            (Box::default(), before.next_slot)
        };
        let local = Order::after(before.local.iter().copied(), local);
        let rare = Extras { local, slots, next_slot };
        Self {
            cluster: Order::after(before.cluster.iter().copied(), cluster),
            rare: (rare != Extras::default()).then(|| Box::new(rare)),
        }
    }

    /// Returns the number of endpoints if this is the usual placement: cluster backends only, in the order of the
    /// sorted list, without slots.
    pub(crate) fn usual(&self) -> Option<u16> {
        match (&self.cluster, &self.rare) {
            (Order::Sorted(length), None) => Some(*length),
            _ => None,
        }
    }

    /// Returns the usual placement of this number of endpoints.
    pub(crate) const fn of_usual(length: u16) -> Self {
        Self { cluster: Order::Sorted(length), rare: None }
    }

    /// Returns the local backends by index.
    pub(crate) fn local(&self) -> &Order {
        self.rare.as_ref().map_or(&Order::Sorted(0), |rare| &rare.local)
    }

    /// Returns the slot of a backend.
    pub(crate) fn slot(&self, socket: SocketAddr) -> Option<u16> {
        let slots = &self.rare.as_ref()?.slots;
        let position = slots.binary_search_by_key(&socket, |&(socket, _)| socket).ok()?;
        slots.get(position).map(|&(_, slot)| slot)
    }
}

/// Which Service ports have slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slots {
    /// Those with session affinity.
    ForAffinity,
    /// All, because the elements of slots count.
    ForAll,
}

impl Slots {
    /// Returns true if the backends of a Service port have slots.
    pub(crate) fn are_for(self, forwarding: &Forwarding) -> bool {
        self == Self::ForAll || forwarding.affinity.is_some()
    }
}

/// Returns how many backends of a set can be used. If there are slots, every backend of both sets needs one.
fn limit(forwarding: &Forwarding, slots: Slots) -> usize {
    if slots.are_for(forwarding) { usize::from(MAX_CLASS) / 2 } else { MAX_BACKENDS }
}

/// Returns the reason why not every endpoint is used, and what to do about it, or `None` if all are.
pub(crate) fn too_many(forwarding: &Forwarding, slots: Slots) -> Option<&'static str> {
    if forwarding.cluster.len().max(forwarding.local.len()) <= limit(forwarding, slots) {
        return None;
    }
    Some(match forwarding.affinity {
        Some(_) => {
            "it has more than 8,191 endpoints, the most with session affinity; the first ones, by address, are used: \
             spread the others over more Services, or turn session affinity off"
        }
        None if slots == Slots::ForAll => {
            "it has more than 8,191 endpoints, the most with counters; the first ones, by address, are used: spread the \
             others over more Services, or turn portolan.serviceCounters off"
        }
        None => {
            "it has more than 65,535 endpoints; the first ones, by address, are used: spread the others over more Services"
        }
    })
}

fn limited(backends: &[Backend], limit: usize) -> &[Backend] {
    backends.get(..backends.len().min(limit)).unwrap_or_default()
}

/// Keeps the slots of remaining backends and assigns the next free ones to new backends. Returns the slots and the
/// slot to assign next.
fn assign_slots(before: &Before, cluster: &[Backend], local: &[Backend]) -> (Box<[(SocketAddr, u16)]>, u16) {
    let mut sockets: Vec<SocketAddr> = cluster.iter().chain(local).map(Backend::socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    let mut old = before.slots.clone();
    old.sort_unstable();
    let kept = |socket: &SocketAddr| {
        let position = old.binary_search_by_key(socket, |&(socket, _)| socket).ok()?;
        old.get(position).map(|&(_, slot)| slot)
    };
    let mut result: Vec<(SocketAddr, Option<u16>)> =
        sockets.iter().map(|socket| (*socket, kept(socket))).collect();
    // Others may have given one slot to two endpoints. The second one gets another slot.
    let mut used = HashSet::with_capacity(result.len());
    for (_, slot) in &mut result {
        slot.take_if(|slot| !used.insert(*slot));
    }
    let start = before.next_slot.min(MAX_CLASS);
    let mut free = (start..=MAX_CLASS).chain(0..start).filter(|slot| !used.contains(slot));
    let mut next = start;
    for (_, slot) in result.iter_mut().filter(|(_, slot)| slot.is_none()) {
        *slot = free.next();
        next = slot.map_or(next, |slot| if slot == MAX_CLASS { 0 } else { slot + 1 });
    }
    (result.into_iter().filter_map(|(socket, slot)| Some((socket, slot?))).collect(), next)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn backends(last_octets: &BTreeSet<u8>) -> Vec<Backend> {
        last_octets
            .iter()
            .map(|&octet| Backend {
                address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, octet)),
                port: 80,
                may_hairpin: false,
            })
            .collect()
    }

    fn sockets(order: &Order, sorted: &[Backend]) -> Vec<SocketAddr> {
        order.backends(sorted).map(Backend::socket).collect()
    }

    #[test]
    fn two_endpoints_with_one_slot_get_two() {
        let backends = backends(&BTreeSet::from([1, 2, 3]));
        let slots = backends.iter().map(|backend| (backend.socket(), 7)).collect();
        let before = Before { slots, next_slot: 8, ..Before::default() };
        let (slots, next) = assign_slots(&before, &backends, &[]);
        assert_eq!((slots.iter().map(|&(_, slot)| slot).collect::<Vec<_>>(), next), (vec![7, 8, 9], 10));
    }

    proptest! {
        #[test]
        fn few_indexes_change(old in any::<BTreeSet<u8>>(), new in any::<BTreeSet<u8>>()) {
            let (old_backends, new_backends) = (backends(&old), backends(&new));
            let before = sockets(&Order::after(std::iter::empty(), &old_backends), &old_backends);
            let after = sockets(&Order::after(before.iter().copied(), &new_backends), &new_backends);
            let mut sorted = after.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, new_backends.iter().map(Backend::socket).collect::<Vec<_>>());
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            prop_assert!(changed <= old.difference(&new).count());
        }

        #[test]
        fn slots_stay(steps in proptest::collection::vec(any::<BTreeSet<u8>>(), 1..6)) {
            let mut known: HashMap<SocketAddr, u16> = HashMap::new();
            let mut before = Before::default();
            for step in steps {
                let cluster = backends(&step);
                let (now, next_slot) = assign_slots(&before, &cluster, &[]);
                let distinct: BTreeSet<u16> = now.iter().map(|&(_, slot)| slot).collect();
                prop_assert_eq!(distinct.len(), cluster.len());
                for (socket, slot) in &now {
                    if let Some(earlier) = known.get(socket) {
                        prop_assert_eq!(earlier, slot);
                    }
                }
                known = now.iter().copied().collect();
                before = Before { slots: now.to_vec(), next_slot, ..Before::default() };
            }
        }
    }

    fn many(first: u32, count: u32) -> Vec<Backend> {
        let address = |n: u32| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n));
        (first..first + count)
            .map(|n| Backend { address: address(n), port: 80, may_hairpin: false })
            .collect()
    }

    fn forwarding(cluster: Vec<Backend>, local: Vec<Backend>, affinity: Option<u32>) -> Forwarding {
        let frontend = ([10, 96, 0, 1], 80).into();
        Forwarding {
            frontends: Box::default(),
            local: local.into(),
            external_policy: portolan_model::ExternalPolicy::Local,
            affinity,
            ..Forwarding::plain(frontend, portolan_model::Protocol::Tcp, cluster.into())
        }
    }

    #[test]
    fn more_backends_than_indexes_are_cut_and_stay_dense() {
        let mut last: Option<(Forwarding, Placement)> = None;
        for (first, count) in [(0, 70_000), (5, 70_000), (5, 65_535), (9, 65_536), (0, 3)] {
            let now = forwarding(many(first, count), many(first, count), None);
            let before = last.as_ref().map(|(old, placement)| Before::of(old, placement)).unwrap_or_default();
            let placement = Placement::after(&before, &now, Slots::ForAffinity);
            for (order, sorted) in [(&placement.cluster, &now.cluster), (placement.local(), &now.local)] {
                assert_eq!(order.len(), sorted.len().min(MAX_BACKENDS));
                let distinct: BTreeSet<SocketAddr> = order.backends(sorted).map(Backend::socket).collect();
                assert_eq!(distinct.len(), order.len());
            }
            last = Some((now, placement));
        }
    }

    #[test]
    fn with_affinity_every_backend_that_has_an_index_has_a_slot() {
        let now = forwarding(many(0, 20_000), many(50_000, 20_000), Some(60));
        let placement = Placement::after(&Before::default(), &now, Slots::ForAffinity);
        let placed = placement.cluster.backends(&now.cluster).chain(placement.local().backends(&now.local));
        let slots: BTreeSet<u16> = placed.map(|backend| placement.slot(backend.socket()).unwrap()).collect();
        assert_eq!(slots.len(), placement.cluster.len() + placement.local().len());
        assert_eq!(slots.len(), usize::from(MAX_CLASS) / 2 * 2);
        let later = forwarding(many(10_000, 20_000), many(60_000, 20_000), Some(60));
        let after = Placement::after(&Before::of(&now, &placement), &later, Slots::ForAffinity);
        let placed = after.cluster.backends(&later.cluster).chain(after.local().backends(&later.local));
        assert!(placed.into_iter().all(|backend| after.slot(backend.socket()).is_some()));
    }

    #[test]
    fn a_slot_is_given_again_as_late_as_possible() {
        let mut before = Before::default();
        let mut given = Vec::new();
        // A rolling update in which each step is a separate change: a backend is removed, then its replacement is
        // added.
        for step in
            [BTreeSet::from([1, 2]), BTreeSet::from([1]), BTreeSet::from([1, 3]), BTreeSet::from([3, 4])]
        {
            let (now, next_slot) = assign_slots(&before, &backends(&step), &[]);
            given.push(now.iter().map(|&(_, slot)| slot).collect::<Vec<_>>());
            before = Before { slots: now.to_vec(), next_slot, ..Before::default() };
        }
        assert_eq!(given, [vec![0, 1], vec![0], vec![0, 2], vec![2, 3]]);
        let last = Before { next_slot: MAX_CLASS, ..before };
        let (now, next_slot) = assign_slots(&last, &backends(&BTreeSet::from([3, 4, 5, 6])), &[]);
        assert_eq!(now.iter().map(|&(_, slot)| slot).collect::<Vec<_>>(), [2, 3, MAX_CLASS, 0]);
        assert_eq!(next_slot, 1);
    }
}
