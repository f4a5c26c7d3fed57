//! Sets of a real table, read by key and listed.

use portolan_engine::Driven;
use portolan_model::world::Edited;
use portolan_model::{Change, Family, Settings};
use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{DataRef, ElementsOperation, SetData, Transaction, Verdict};

use super::super::super::dataplane::Nftables;
use super::super::super::element::Set;
use super::super::super::layout::TRANSLATE;
use super::super::super::skeleton;
use super::super::{KeyRange, Large};
use super::*;

/// A table in a namespace of its own, with a socket to read it.
struct Programmed {
    socket: Socket,
    place: FamilyTable,
    nftables: Driven<Nftables>,
}

impl Programmed {
    fn new(settings: &Settings, seed: u64) -> Self {
        let mut nftables = Driven::new(settings.clone(), Nftables::open(settings.clone()).unwrap());
        let of_family = |changes: Vec<Change>| -> Vec<Change> {
            changes.into_iter().filter(|change| change.family == settings.family).collect()
        };
        let mut edited = Edited::new(seed, 40);
        nftables.apply(&of_family(edited.first().changes)).unwrap();
        nftables.resync().unwrap();
        for _ in 0..5 {
            nftables.apply(&of_family(edited.edit(5).changes)).unwrap();
        }
        let socket = Socket::open(Protocol::Netfilter).unwrap();
        Self { socket, place: TRANSLATE.place(settings.family), nftables }
    }

    fn listed(&mut self) -> View {
        self.filled(u32::MAX)
    }

    fn filled(&mut self, large: u32) -> View {
        View::with_comments()
            .filled((&mut self.socket, None), self.place, Large::of(large), &mut |_, _| Ok(()))
            .unwrap()
    }

    /// Reads a set by key into a view in which everything was listed.
    fn read_by_key(&mut self, view: &mut View, set: Set) -> bool {
        let count = u32::try_from(view.rows_of(set).count()).unwrap();
        self.read_some_by_key(view, set, count)
    }

    fn read_some_by_key(&mut self, view: &mut View, set: Set, count: u32) -> bool {
        view.read_by_key(&mut self.socket, self.place, set, count, &mut |_, _| Ok(())).unwrap()
    }
}

/// Runs a test with random tables of both families, with counters and without.
fn for_random_tables(test: impl Fn(Programmed) + Sync) {
    for seed in 0..6 {
        for family in Family::BOTH {
            let settings = Settings { counters: seed % 2 == 1, ..Settings::plain(family) };
            in_new_network_namespace(|| test(Programmed::new(&settings, seed)))
                .expect("this test needs root");
        }
    }
}

fn rows(view: &View, set: Set) -> Vec<(Vec<u8>, Vec<u8>, Option<u64>)> {
    view.rows_of(set)
        .map(|row| (row.key.as_slice().to_vec(), row.data.as_slice().to_vec(), row.comment))
        .collect()
}

#[test]
fn a_set_read_by_key_is_what_a_listing_shows() {
    for_random_tables(|mut programmed| {
        let (mut view, listed) = (programmed.listed(), programmed.listed());
        for set in ORDER {
            assert!(programmed.read_by_key(&mut view, set), "{set:?}");
            assert_eq!(rows(&view, set), rows(&listed, set), "{set:?}");
        }
        assert_eq!(view.counts, listed.counts);
        assert!(ORDER.iter().any(|&set| !rows(&listed, set).is_empty()));
    });
}

#[test]
fn a_whole_table_is_read_in_the_same_way() {
    for_random_tables(|mut programmed| {
        let listed = programmed.listed();
        let by_key = programmed.filled(0);
        for set in Set::ALL {
            assert_eq!(rows(&by_key, set), rows(&listed, set), "{set:?}");
        }
        drop(programmed.nftables);
    });
}

#[test]
fn other_elements_are_noticed() {
    for_random_tables(|mut programmed| {
        let listed = programmed.listed();
        for set in ORDER.into_iter().filter(|&set| !rows(&listed, set).is_empty()) {
            let count = u32::try_from(rows(&listed, set).len()).unwrap();
            for wrong in [count + 1, count - 1] {
                let mut view = programmed.listed();
                let complete = programmed.read_some_by_key(&mut view, set, wrong);
                assert!(!complete, "{set:?}");
                // What was listed before stays.
                assert_eq!(rows(&view, set), rows(&listed, set), "{set:?}");
            }
            let mut view = programmed.listed();
            view.classes.clear();
            if matches!(set, Set::Endpoints | Set::AffinityChoices) {
                let complete = programmed.read_some_by_key(&mut view, set, count);
                assert!(!complete, "no key leads to the elements of {set:?}");
            }
        }
    });
}

#[test]
fn an_element_for_all_other_keys_is_found_and_deleted() {
    for_random_tables(|mut programmed| {
        let (listed, place) = (programmed.listed(), programmed.place);
        let is_read = |set: &Set| *set != Set::Affinity && listed.sets.contains_key(set.name());
        for set in Set::ALL.into_iter().filter(is_read) {
            let zeros = match skeleton::set(place, set).data {
                Some(SetData::Value { length, .. }) => Some(vec![0; length as usize]),
                Some(SetData::Verdict) | None => None,
            };
            let data = match set {
                Set::Classes => Some(DataRef::Verdict(Verdict::Drop)),
                _ => zeros.as_deref().map(DataRef::Value),
            };
            let element = ElementRef { data, ..ElementRef::catch_all() };
            let mut transaction = Transaction::begin(programmed.socket.next_sequence(10), None);
            transaction
                .elements(ElementsOperation::Add, place.wire(), place.table, set.name())
                .push(&element);
            programmed.socket.commit(&transaction.finish().unwrap()).unwrap();
            for large in [0, u32::MAX] {
                let view = programmed.filled(large);
                let is_range = view.ranges.contains(&(Key::EMPTY, None));
                let found = (view.unexpected.as_slice(), is_range);
                let expected: &[(Set, KeyRange)] = &[(set, (Key::EMPTY, None))];
                let of_ranges = set == Set::SourceRanges;
                assert_eq!(found, (if of_ranges { &[] } else { expected }, of_ranges), "{set:?}, {large}");
            }
            programmed.nftables.mark_unknown();
            assert_eq!(programmed.nftables.resync().unwrap().elements, 1, "{set:?}");
            let after = programmed.listed();
            assert!(after.unexpected.is_empty() && !after.ranges.contains(&(Key::EMPTY, None)), "{set:?}");
        }
    });
}
