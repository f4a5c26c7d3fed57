//! Encodes changesets and chains as netlink messages of a transaction.

use portolan_wire::nftables::expr::Counter;
use portolan_wire::nftables::{
    CATCH_ALL, DataRef, ElementRef, ElementsOperation, IfExists, Transaction, UserData, Verdict,
};

use super::chain::{ChainBody, FamilyTable};
use super::changeset::{Changeset, Operation};
use super::class::{Balance, Class};
use super::element::Set;
use super::layout::Layout;
use super::skeleton;
use super::value::Value;

/// Bytes of an element in a message besides key, data and comment.
const ELEMENT_OVERHEAD: usize = 48;

/// Bytes of a counter in an element.
const COUNTER_BYTES: usize = 48;

/// Returns about how many bytes of a transaction the element operations need. `counters` is that of the settings.
pub(super) fn estimate(changes: &Changeset, counters: bool) -> usize {
    let counted = Set::ALL.into_iter().filter(|set| counters && set.has_counters());
    let counted: usize = counted.map(|set| changes.additions(set).len()).sum();
    changes.len() * ELEMENT_OVERHEAD
        + counted * COUNTER_BYTES
        + changes.payload_bytes()
        + changes.len() / 500 * 100
        + 4096
}

/// Writes all element operations. Deletions come first, so that a key can change its data or its owner. `counters` is that of
/// the settings.
pub(super) fn elements(
    transaction: &mut Transaction,
    place: FamilyTable,
    changes: &Changeset,
    counters: bool,
) {
    transaction.reserve(estimate(changes, counters));
    for set in Set::ALL {
        let operations = changes.deletions(set);
        if operations.len() > 0 {
            let mut writer =
                transaction.elements(ElementsOperation::Delete, place.wire(), place.table, set.name());
            operations.for_each(|operation| {
                writer.push(&reference(&operation, false, &[], None));
            });
        }
    }
    for set in Set::ALL {
        let operations = changes.additions(set);
        if operations.len() == 0 {
            continue;
        }
        let mut writer =
            transaction.elements(ElementsOperation::Create, place.wire(), place.table, set.name());
        let counter = counter_of(set, counters);
        let mut last = ("", UserData::empty());
        for operation in operations {
            // The frontends of a Service port follow each other and have the same comment.
            if operation.comment != last.0 {
                last = (operation.comment, UserData::comment(operation.comment));
            }
            let comment = if operation.comment.is_empty() { &[] } else { last.1.as_bytes() };
            writer.push(&reference(&operation, true, comment, counter));
        }
    }
}

/// Writes element operations as several transactions of at most about `limit` bytes, for sockets whose send buffer
/// cannot grow (in a user namespace). What comes is written first: refusals, then endpoints before the frontends that lead to
/// them. What goes is written last, in the opposite order. A key changes its data within one transaction.
pub(super) fn elements_in_parts(
    place: FamilyTable,
    changes: &Changeset,
    counters: bool,
    limit: usize,
    mut begin: impl FnMut() -> Transaction,
) -> Vec<Transaction> {
    let limit = limit.saturating_sub(PART_OVERHEAD);
    let mut parts = Vec::new();
    let mut part = begin();
    let coming = PART_ORDER.into_iter().map(|set| (set, coming(changes, set)));
    let going = PART_ORDER.into_iter().rev().map(|set| (set, going(changes, set)));
    for (set, operations) in coming.chain(going) {
        let mut rest = operations.as_slice();
        while !rest.is_empty() {
            let counter = counter_of(set, counters);
            let fitting = fitting(rest, counter, limit.saturating_sub(part.len()));
            if fitting == 0 && !part.is_empty() {
                parts.push(std::mem::replace(&mut part, begin()));
                continue;
            }
            // If a single one does not fit, sending it returns the error.
            let (now, later) = rest.split_at(fitting.max(1));
            write_keys(&mut part, place, set, now, counter);
            rest = later;
        }
    }
    parts.push(part);
    parts
}

/// Returns the additions of a set, with the deletions of the same keys.
fn coming(changes: &Changeset, set: Set) -> Vec<(bool, Operation<'_>)> {
    if set == Set::SourceRanges {
        // Old and new ranges of a frontend may overlap under different keys.
        return changes.deletions_first(set);
    }
    let operations = changes.in_key_order(set);
    let with_addition = by_key(&operations).filter(|same_key| same_key.iter().any(|(addition, _)| *addition));
    with_addition.flatten().copied().collect()
}

/// Returns the deletions of a set without an addition of the same key.
fn going(changes: &Changeset, set: Set) -> Vec<(bool, Operation<'_>)> {
    if set == Set::SourceRanges {
        return Vec::new();
    }
    let operations = changes.in_key_order(set);
    let alone = by_key(&operations).filter(|same_key| same_key.iter().all(|(addition, _)| !addition));
    alone.flatten().copied().collect()
}

/// Returns the operations of each key together.
fn by_key<'a, 'b>(
    operations: &'b [(bool, Operation<'a>)],
) -> impl Iterator<Item = &'b [(bool, Operation<'a>)]> {
    operations.chunk_by(|(_, a), (_, b)| (a.key, a.key_end) == (b.key, b.key_end))
}

/// Upper limit for the bytes of the first message headers of a set and the end of a batch.
const PART_OVERHEAD: usize = 1024;

/// A message ends before it has this many bytes. The next one starts with the names of the table and the set.
const MESSAGE_LENGTH: usize = 60_000;
const MESSAGE_OVERHEAD: usize = 128;

/// Returns how many of the operations fit into `room` bytes. Operations of one key are not separated.
fn fitting(operations: &[(bool, Operation<'_>)], counter: Option<Counter>, room: usize) -> usize {
    let (mut count, mut bytes) = (0, 2 * MESSAGE_OVERHEAD);
    for same_key in by_key(operations) {
        bytes += same_key.iter().map(|(_, operation)| element_bytes(operation, counter)).sum::<usize>();
        if bytes + bytes / MESSAGE_LENGTH * MESSAGE_OVERHEAD > room {
            break;
        }
        count += same_key.len();
    }
    count
}

/// Returns the counter with which elements of a set are written.
fn counter_of(set: Set, counters: bool) -> Option<Counter> {
    (counters && set.has_counters()).then(Counter::default)
}

fn element_bytes(operation: &Operation<'_>, counter: Option<Counter>) -> usize {
    let Operation { key, key_end, data, comment } = operation;
    let counter = if counter.is_some() { COUNTER_BYTES } else { 0 };
    ELEMENT_OVERHEAD + counter + key.len() + key_end.len() + data.len() + comment.len()
}

fn write_keys(
    transaction: &mut Transaction,
    place: FamilyTable,
    set: Set,
    operations: &[(bool, Operation<'_>)],
    counter: Option<Counter>,
) {
    for (addition, kind) in [(false, ElementsOperation::Delete), (true, ElementsOperation::Create)] {
        let mut writer = transaction.elements(kind, place.wire(), place.table, set.name());
        for (_, operation) in operations.iter().filter(|(is_addition, _)| *is_addition == addition) {
            let comment = UserData::comment(operation.comment);
            let comment = if operation.comment.is_empty() { &[] } else { comment.as_bytes() };
            writer.push(&reference(operation, addition, comment, counter.filter(|_| addition)));
        }
    }
}

/// The order of the sets in parts: refusals, what counts, endpoints, then what the checks need, then frontends.
const PART_ORDER: [Set; 18] = [
    Set::NoEndpointServices,
    Set::NoLocalEndpointServices,
    Set::NoEndpointNodePorts,
    Set::NoLocalEndpointNodePorts,
    Set::ServiceCounters,
    Set::SourceRangeDrops,
    Set::Endpoints,
    Set::AffinityChoices,
    Set::AffinityEndpoints,
    Set::AffinityLocalEndpoints,
    Set::HairpinConnections,
    Set::SourceRanges,
    Set::FirewallIps,
    Set::NodePortIps,
    Set::Services,
    Set::NodePorts,
    Set::ClusterIps,
    // Only elements of other programs, which are deleted. Those of classes are written with their chains.
    Set::Classes,
];

fn reference<'a>(
    operation: &Operation<'a>,
    is_addition: bool,
    userdata: &'a [u8],
    counter: Option<Counter>,
) -> ElementRef<'a> {
    ElementRef {
        key: operation.key,
        key_end: (!operation.key_end.is_empty()).then_some(operation.key_end),
        data: (is_addition && !operation.data.is_empty()).then_some(DataRef::Value(operation.data)),
        userdata,
        counter,
        // Other programs may have written the element for all other keys. It is deleted like any element of theirs.
        flags: if operation.key.is_empty() { CATCH_ALL } else { 0 },
        ..ElementRef::default()
    }
}

/// Creates the table with its sets and its chains, except for the base chains. The sets are empty.
pub(super) fn skeleton(transaction: &mut Transaction, layout: Layout<'_>) {
    let place = layout.place();
    transaction.new_table(&skeleton::table(place), IfExists::Keep);
    for set in Set::ALL.into_iter().filter(|&set| layout.has_at_start(set)) {
        new_set(transaction, place, set);
    }
    for body in skeleton::chains(layout).iter().filter(|body| body.base.is_none()) {
        chain(transaction, place, body);
    }
}

/// Creates the base chains. The table has no effect before that.
pub(super) fn base_chains(transaction: &mut Transaction, layout: Layout<'_>) {
    for body in skeleton::chains(layout).iter().filter(|body| body.base.is_some()) {
        chain(transaction, layout.place(), body);
    }
}

/// Creates a chain with its rules. If the chain exists, its rules are replaced.
pub(super) fn chain(transaction: &mut Transaction, place: FamilyTable, body: &ChainBody) {
    transaction.new_chain(&body.chain(place), IfExists::Keep);
    refill(transaction, place, body);
}

/// Replaces the rules of an existing chain.
pub(super) fn refill(transaction: &mut Transaction, place: FamilyTable, body: &ChainBody) {
    transaction.flush_chain(place.wire(), place.table, &body.name);
    body.rules(place).for_each(|rule| {
        transaction.append_rule(&rule);
    });
}

/// Creates a set. Its elements are written later.
pub(super) fn new_set(transaction: &mut Transaction, place: FamilyTable, set: Set) {
    transaction.new_set(&skeleton::set(place, set), IfExists::Keep);
}

/// Creates an endpoint chain.
pub(super) fn balance(transaction: &mut Transaction, layout: Layout<'_>, balance: Balance) {
    chain(transaction, layout.place(), &skeleton::balance_chain(layout, balance));
}

/// Creates the chain of a class and the element that leads to it.
pub(super) fn class(transaction: &mut Transaction, layout: Layout<'_>, number: u16, class: Class) {
    chain(transaction, layout.place(), &skeleton::class_chain(layout, class));
    class_element(transaction, layout.place(), number, class);
}

/// Creates the element that leads to the chain of a class.
pub(super) fn class_element(transaction: &mut Transaction, place: FamilyTable, number: u16, class: Class) {
    let (key, name) = (class_key(number), class.to_string());
    let data = DataRef::Verdict(Verdict::Goto(&name));
    let mut writer =
        transaction.elements(ElementsOperation::Create, place.wire(), place.table, Set::Classes.name());
    writer.push(&ElementRef::mapping(&key, data));
}

/// Deletes the element that leads to the chain of a class.
pub(super) fn delete_class_element(transaction: &mut Transaction, place: FamilyTable, number: u16) {
    let mut writer =
        transaction.elements(ElementsOperation::Delete, place.wire(), place.table, Set::Classes.name());
    writer.push(&ElementRef::key(&class_key(number)));
}

fn class_key(number: u16) -> [u8; 4] {
    Value::new(0, number).0.to_ne_bytes()
}

#[cfg(test)]
mod tests;
