//! The table after edits equals a table created from the same state.

use portolan_model::Family;

use super::support::{Edited, collect, in_namespace, of, programmed, settings};
use super::table::Table;

#[test]
fn after_edits_the_table_is_that_from_scratch() {
    for seed in 100..140 {
        for family in Family::BOTH {
            let mut edited = Edited::new(seed, 12);
            let incremental = in_namespace(|| {
                let mut nftables = programmed(settings(family), &of(family, &edited.first().changes));
                for step in 0..25 {
                    let size = 1 + edited.rng().below(6);
                    let changes = of(family, &edited.edit(size).changes);
                    let commit = nftables.apply(&changes).unwrap();
                    assert!(!commit.full && commit.refused.is_empty(), "seed {seed} step {step}");
                    if step % 7 == 3 {
                        nftables.collect().unwrap();
                    }
                }
                collect(&mut nftables);
                Table::read(family).meaning()
            });
            let scratch = in_namespace(|| {
                drop(programmed(settings(family), &edited.now(family)));
                Table::read(family).meaning()
            });
            assert_eq!(incremental, scratch, "seed {seed}");
        }
    }
}
