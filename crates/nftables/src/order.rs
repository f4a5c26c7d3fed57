//! Which parts of a change are transactions of their own, because packets meet the kernel's objects one after the other.
//!
//! # The ends of refusals
//!
//! A packet meets the rules that translate in one hook and those that refuse or drop in a later one, and the generation of
//! the ruleset may change between the two. If the first endpoint of a Service port comes, a packet that found no endpoint
//! in the first hook has to find the refusal in the second one: a packet that meets neither leaves this node as it is, and
//! connection tracking keeps it so for the whole connection. So a refusal goes after what takes its place: a translation, or
//! a drop in the place of a rejection.
//!
//! ```text
//! first transaction:  + services 192.0.2.1 . tcp . 80   (no-endpoint-services has it, too)
//! second transaction:                                   - no-endpoint-services 192.0.2.1 . tcp . 80
//! ```
//!
//! Between the two, translated packets pass the refusals, as at any other time. The other direction needs one transaction: a
//! packet that is not translated any more meets the refusal of the same generation or of a later one.
//!
//! # Source ranges
//!
//! A packet meets the set of checked frontends and then the set of ranges, and is dropped if it is in the first one only. So
//! ranges come before the check of their frontend, and go after it.
//!
//! ```text
//! first transaction:   + source-ranges 192.0.2.1 . tcp . 80 . 198.51.100.0/24
//! second transaction:  + firewall-ips 192.0.2.1 . tcp . 80
//! ```
//!
//! One transaction would do for the coming of ranges if the kernel changed both sets at once. Before Linux 6.17 (c4eaca2e1052) it
//! does not: while it commits, new elements of a set of intervals are not found yet, and old ones that the transaction deletes are
//! not found any more. Ranges of which some replace others may overlap, which the kernel accepts only within one transaction. So
//! they stay together, and until that kernel an allowed client of such a frontend can be dropped during the commit. So it is with
//! ranges that a comparison adds: it is one transaction, because the kernel has to refuse it if another program has committed.
//!
//! # New chains, and endpoints under other keys
//!
//! The kernel takes the rules of all chains that a packet meets in one hook from the generation in which the packet entered the
//! hook (`nft_do_chain`). It looks up elements in the current generation. So a packet that entered before a commit may find an
//! element of after it. Therefore
//!
//! - new chains are written before the elements that lead to them: in the former generation, a new chain is empty,
//! - endpoints that a Service port finds by other keys now are deleted after the frontends that lead to the former keys: other
//!   session affinity or another policy moves them,
//! - so are those of a Service port whose frontends pass to another one.
//!
//! An endpoint that goes needs no order as long as others stay: the rules look up another one then. A comparison writes chains and
//! elements in one transaction, and does not know to which Service port a frontend has led.
//!
//! Nothing waits between transactions. A packet that stays between its hooks while two are committed meets neither: another program
//! holds it (`NFQUEUE`), or the processor that handles it is paused, as a virtual one may be.
//!
//! Pure. It must not know classes and the kernel.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use portolan_model::{Forwarding, Frontend};

use super::changeset::Changeset;
use super::content;
use super::element::{Data, Element, Key, Set, frontend_of_range, read_number};
use super::value::{LOCAL_OFFSET, Value};

/// The sets whose elements refuse or drop. Each has the sets that may take its place and that packets meet before: drops come
/// before rejections.
const REFUSALS: [(Set, &[Set]); 4] = [
    (Set::NoEndpointServices, &[Set::Services, Set::NoLocalEndpointServices]),
    (Set::NoLocalEndpointServices, &[Set::Services]),
    (Set::NoEndpointNodePorts, &[Set::NodePorts, Set::NoLocalEndpointNodePorts]),
    (Set::NoLocalEndpointNodePorts, &[Set::NodePorts]),
];

/// Takes the ends of refusals out of a change, as far as the change puts something in their place. They are the transaction
/// after it.
///
/// `wanted` returns the Service ports with their states after the change. There may be others among them. It is called
/// only if there is such a refusal.
pub(crate) fn take_replaced_refusals<I>(changes: &mut Changeset, wanted: impl FnOnce() -> I) -> Changeset
where
    I: IntoIterator<Item = Arc<Forwarding>>,
{
    let deleted = |set: Set| changes.deletions(set).filter_map(|operation| Key::from_kernel(operation.key));
    let replaced = replaced(changes, deleted, wanted);
    let mut later = Changeset::default();
    for (set, _) in REFUSALS.into_iter().filter(|_| !replaced.is_empty()) {
        let ends = |key: &[u8]| Key::from_kernel(key).is_some_and(|key| replaced.contains(&(set, key)));
        changes.move_deletions(set, &mut later, ends);
    }
    later
}

/// Adds the refusals of a table that is created anew to the new table, as far as the change puts something in their place.
/// Returns their ends, which are the transaction after it. `former` returns the keys of the old table's sets.
pub(crate) fn keep_replaced_refusals<I, K>(
    changes: &mut Changeset,
    former: impl Fn(Set) -> K,
    wanted: impl FnOnce() -> I,
) -> Changeset
where
    I: IntoIterator<Item = Arc<Forwarding>>,
    K: IntoIterator<Item = Key>,
{
    let mut later = Changeset::default();
    for (set, key) in replaced(changes, former, wanted) {
        changes.add(&Element { set, key, key_end: None, data: Data::EMPTY }, "");
        later.delete(set, &key, None);
    }
    later
}

/// Takes the source ranges that come out of a change, except for those of frontends of which ranges go. They are the transaction
/// before it.
pub(crate) fn take_first_ranges(changes: &mut Changeset) -> Changeset {
    let edited: HashSet<Vec<u8>> = changes
        .deletions(Set::SourceRanges)
        .map(|operation| frontend_of_range(operation.key).to_vec())
        .collect();
    let mut first = Changeset::default();
    let is_first = |range: &[u8]| !edited.contains(frontend_of_range(range));
    changes.move_additions(Set::SourceRanges, &mut first, is_first);
    first
}

/// Takes the source ranges of frontends that are not checked any more out of a change, and adds them to the transaction after it.
pub(crate) fn take_last_ranges(changes: &mut Changeset, later: &mut Changeset) {
    let stays: HashSet<&[u8]> = changes.additions(Set::FirewallIps).map(|operation| operation.key).collect();
    let ended = changes.deletions(Set::FirewallIps).map(|operation| operation.key);
    let ended: HashSet<Vec<u8>> = ended.filter(|key| !stays.contains(key)).map(<[u8]>::to_vec).collect();
    let is_last = |range: &[u8]| ended.contains(frontend_of_range(range));
    changes.move_deletions(Set::SourceRanges, later, is_last);
}

/// Takes the endpoints of Service ports that find theirs by other keys after a change out of it, and adds them to the transaction
/// after it.
pub(crate) fn take_moved_endpoints(changes: &mut Changeset, later: &mut Changeset) {
    let moved = moved(changes);
    if moved.is_empty() {
        return;
    }
    let sets = [Set::Endpoints, Set::AffinityChoices, Set::AffinityEndpoints, Set::AffinityLocalEndpoints];
    for set in sets {
        let stay: HashSet<Vec<u8>> = changes.additions(set).map(|operation| operation.key.to_vec()).collect();
        let is_moved = |key: &[u8]| {
            let range = match set {
                Set::AffinityEndpoints => of_slot(key).map(|id| (id, false)),
                Set::AffinityLocalEndpoints => of_slot(key).map(|id| (id, true)),
                _ => of_index(key).map(|(id, index)| (id, index >= LOCAL_OFFSET)),
            };
            range.is_some_and(|range| moved.contains(&range)) && !stay.contains(key)
        };
        changes.move_deletions(set, later, is_moved);
    }
}

/// Returns the ids whose cluster endpoints, or with `true` local endpoints, lose their first key although a frontend still leads to
/// the id, or has led to it before it passed to another one.
fn moved(changes: &Changeset) -> HashSet<(u32, bool)> {
    let mut moved = HashSet::new();
    for set in [Set::Endpoints, Set::AffinityChoices] {
        let deleted = changes.deletions(set).map(|operation| operation.key);
        let first = deleted.filter(|key| of_index(key).is_some_and(|(_, index)| index % LOCAL_OFFSET == 0));
        let mut first: HashSet<&[u8]> = first.collect();
        if first.is_empty() {
            continue;
        }
        for operation in changes.additions(set) {
            first.remove(operation.key);
        }
        moved.extend(first.into_iter().filter_map(of_index).map(|(id, index)| (id, index >= LOCAL_OFFSET)));
    }
    if !moved.is_empty() {
        let used = used(changes);
        moved.retain(|(id, _)| used.contains(id));
    }
    moved
}

/// Returns the ids to which frontends lead that the change adds, and those to which they led before.
fn used(changes: &Changeset) -> HashSet<u32> {
    let mut used = HashSet::new();
    for set in [Set::Services, Set::NodePorts] {
        let added: HashMap<&[u8], &[u8]> =
            changes.additions(set).map(|operation| (operation.key, operation.data)).collect();
        let replaced = changes.deletions(set).filter(|operation| added.contains_key(operation.key));
        used.extend(replaced.filter_map(|operation| of_slot(operation.data)));
        used.extend(added.values().copied().filter_map(of_slot));
    }
    used
}

/// Returns the id and the index of a key.
fn of_index(key: &[u8]) -> Option<(u32, u32)> {
    let (id, index) = key.split_at_checked(4)?;
    Some((of_slot(id)?, read_number(index)?))
}

/// Returns the id of a slot, or of a frontend's value.
fn of_slot(bytes: &[u8]) -> Option<u32> {
    read_number(bytes).map(|value| Value(value).id())
}

/// Returns those of the refusals that end whose frontends the change adds to another set.
fn replaced<I, K>(
    changes: &Changeset,
    ending: impl Fn(Set) -> K,
    wanted: impl FnOnce() -> I,
) -> BTreeSet<(Set, Key)>
where
    I: IntoIterator<Item = Arc<Forwarding>>,
    K: IntoIterator<Item = Key>,
{
    let mut replaced = BTreeSet::new();
    for (refusal, places) in REFUSALS {
        let mut ending = ending(refusal).into_iter().peekable();
        if ending.peek().is_none() {
            continue;
        }
        let added = |set: Set| changes.additions(set).map(|operation| operation.key);
        let elsewhere: HashSet<&[u8]> = places.iter().copied().flat_map(added).collect();
        // A refusal that stays and gets another name is written in one transaction.
        let stays: HashSet<&[u8]> = added(refusal).collect();
        let is_replaced = |key: &Key| elsewhere.contains(key.as_slice()) && !stays.contains(key.as_slice());
        replaced.extend(ending.filter(is_replaced).map(|key| (refusal, key)));
    }
    if !replaced.is_empty() {
        wanted().into_iter().for_each(|forwarding| leave_out(&mut replaced, &forwarding));
    }
    replaced
}

/// Leaves out frontends that are the address and port of one of their own endpoints. The translation of their packets changes
/// nothing, so the kernel does not mark them as translated, and a refusal that is still there would hit them. If one is not
/// translated, it arrives at the same endpoint.
fn leave_out(replaced: &mut BTreeSet<(Set, Key)>, forwarding: &Forwarding) {
    for &frontend in forwarding.frontends.iter().filter(|frontend| leads_to_itself(forwarding, **frontend)) {
        let (key, _) = content::frontend_key(frontend, forwarding.protocol);
        for (set, _) in REFUSALS {
            replaced.remove(&(set, key));
        }
    }
}

/// Returns true if a packet to a frontend may go to the same address and port. Node ports are on addresses that are not known
/// here.
fn leads_to_itself(forwarding: &Forwarding, frontend: Frontend) -> bool {
    let mut backends = forwarding.cluster.iter().chain(&forwarding.local);
    match frontend {
        Frontend::NodePort(port) => backends.any(|backend| backend.port == port),
        _ => backends.any(|backend| Some(backend.socket()) == frontend.socket()),
    }
}

#[cfg(test)]
mod tests;
