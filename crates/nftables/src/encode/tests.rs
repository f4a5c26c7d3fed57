use std::collections::BTreeMap;

use portolan_wire::nftables::{Data as WireData, NftablesEvent};
use portolan_wire::{Batch, Frame};
use proptest::prelude::*;

use super::super::element::{Data, Element, Key};
use portolan_model::Family;

use super::*;
use crate::layout::TABLE;

const PLACE: FamilyTable = FamilyTable { family: Family::Ipv4, table: TABLE };

const LIMIT: usize = 8_000;

/// Data, comment and counter of each element, by set and key.
type Model = BTreeMap<(String, Vec<u8>), (Option<WireData>, Vec<u8>, Option<Counter>)>;

fn frames(batch: &Batch) -> impl Iterator<Item = Frame<'_>> {
    (batch.first_sequence()..batch.next_sequence()).filter_map(|sequence| batch.frame(sequence))
}

/// Applies a transaction to the model as the kernel would. Panics if the kernel would refuse it.
fn replay(model: &mut Model, transaction: Transaction) {
    let batch = transaction.finish().unwrap();
    for frame in frames(&batch) {
        let (list, deletion) = match NftablesEvent::decode(&frame).unwrap() {
            NftablesEvent::NewElements(list) => (list, false),
            NftablesEvent::DeleteElements(list) => (list, true),
            _ => continue,
        };
        for element in list.elements() {
            let element = element.unwrap().to_owned();
            let place = (list.set.to_owned(), element.key);
            if deletion {
                assert!(model.remove(&place).is_some(), "{place:?} is not there");
            } else {
                assert_eq!(model.insert(place, (element.data, element.userdata, element.counter)), None);
            }
        }
    }
}

fn element(set: Set, key: u16, data: u8) -> Element {
    Element { set, key: Key::EMPTY.number(key.into()), key_end: None, data: Data::EMPTY.number(data.into()) }
}

/// Generates a state of some sets, as sorted elements.
fn state() -> impl Strategy<Value = Vec<Element>> {
    let sets = prop_oneof![
        Just(Set::Services),
        Just(Set::Endpoints),
        Just(Set::NodePorts),
        Just(Set::AffinityEndpoints)
    ];
    proptest::collection::btree_map((sets, 0..400_u16), 0..3_u8, 0..400).prop_map(|elements| {
        let mut elements: Vec<Element> =
            elements.into_iter().map(|((set, key), data)| element(set, key, data)).collect();
        elements.sort_unstable();
        elements
    })
}

proptest! {
    #[test]
    fn parts_do_what_one_transaction_does(old in state(), new in state(), counters: bool) {
        let difference = |old: &[Element], new: &[Element]| {
            let mut changes = Changeset::default();
            changes.difference(old, new, "demo/web:http");
            changes
        };
        let mut whole = Model::new();
        for changes in [difference(&[], &old), difference(&old, &new)] {
            let mut parts_model = whole.clone();
            let mut transaction = Transaction::begin(1, None);
            elements(&mut transaction, PLACE, &changes, counters);
            prop_assert!(transaction.len() <= estimate(&changes, counters) + 200, "the estimate holds");
            replay(&mut whole, transaction);
            let parts = elements_in_parts(PLACE, &changes, counters, LIMIT, || Transaction::begin(1, None));
            for part in parts {
                prop_assert!(part.len() <= LIMIT);
                replay(&mut parts_model, part);
            }
            prop_assert_eq!(&parts_model, &whole);
        }
    }
}

#[test]
fn every_set_that_changes_has_its_place_among_the_parts() {
    let sets = |sets: &[Set]| sets.iter().copied().collect::<std::collections::BTreeSet<_>>();
    let mut all = sets(&Set::ALL);
    // The kernel's rules fill it.
    all.remove(&Set::Affinity);
    assert_eq!(sets(&PART_ORDER), all);
}
