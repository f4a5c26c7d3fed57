use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Numbers close enough to fill chunks and words, and some at the upper end.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..700_u64, 3 => 4000..4300_u64, 1 => (u64::MAX - 3)..=u64::MAX]
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u64),
    Remove(u64),
    InsertRun(u64, u64),
    RemoveRun(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => number().prop_map(Op::Insert),
        4 => number().prop_map(Op::Remove),
        1 => (0..20_000_u64, 0..9_000_u64).prop_map(|(from, count)| Op::InsertRun(from, from + count)),
        1 => (0..20_000_u64, 0..9_000_u64).prop_map(|(from, count)| Op::RemoveRun(from, from + count)),
    ]
}

fn next_absent(model: &BTreeSet<u64>, from: u64) -> Option<u64> {
    (from..=u64::MAX).find(|number| !model.contains(number))
}

fn apply(op: &Op, bitmap: &mut Bitmap, model: &mut BTreeSet<u64>) {
    match *op {
        Op::Insert(number) => assert_eq!(bitmap.insert(number), model.insert(number)),
        Op::Remove(number) => assert_eq!(bitmap.remove(number), model.remove(&number)),
        Op::InsertRun(from, to) => {
            (from..to).for_each(|number| assert_eq!(bitmap.insert(number), model.insert(number)));
        }
        Op::RemoveRun(from, to) => {
            (from..to).for_each(|number| assert_eq!(bitmap.remove(number), model.remove(&number)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn is_a_set(ops in prop::collection::vec(op(), 1..60), probes in prop::collection::vec(number(), 8)) {
        let (mut bitmap, mut model) = (Bitmap::new(), BTreeSet::new());
        for op in &ops {
            apply(op, &mut bitmap, &mut model);
            prop_assert_eq!(bitmap.len(), model.len() as u64);
            for probe in &probes {
                prop_assert_eq!(bitmap.contains(*probe), model.contains(probe));
                prop_assert_eq!(bitmap.next_absent(*probe), next_absent(&model, *probe));
            }
        }
        prop_assert!(bitmap.iter().eq(model.iter().copied()));
        prop_assert_eq!(&bitmap, &model.iter().copied().collect::<Bitmap>());
        // Runs of full chunks do not touch, and no number is stored twice.
        let mut expected_first = 0;
        for (first, last) in &bitmap.full {
            prop_assert!(*first >= expected_first && last >= first);
            expected_first = last + 2;
            prop_assert!(bitmap.partial.range(first..=last).next().is_none());
        }
        prop_assert!(bitmap.partial.values().all(|chunk| !chunk.is_empty() && !chunk.is_full()));
    }
}

#[test]
fn a_full_range_takes_no_more_memory_than_its_ends() {
    let bitmap: Bitmap = (0..1_048_574).collect();
    assert_eq!(bitmap.full.iter().collect::<Vec<_>>(), [(&0, &254)]);
    assert_eq!(bitmap.partial.len(), 1);
    assert_eq!(bitmap.next_absent(0), Some(1_048_574));
}

#[test]
fn scattered_numbers_are_kept_as_short_lists() {
    let bitmap: Bitmap = (0..1000).map(|i| i << 40).collect();
    assert!(bitmap.partial.values().all(|chunk| matches!(chunk, Chunk::Few(list) if list.len() == 1)));
}

#[test]
fn a_chunk_that_empties_is_a_short_list_again() {
    let mut bitmap: Bitmap = (0..4095).collect();
    assert!(matches!(bitmap.partial[&0], Chunk::Bits(_)));
    for number in 10..4095 {
        bitmap.remove(number);
    }
    assert!(matches!(&bitmap.partial[&0], Chunk::Few(list) if list.len() == 10));
    bitmap.remove(3);
    assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
}
