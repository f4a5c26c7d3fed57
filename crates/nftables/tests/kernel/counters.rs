//! Counters switched on and off: the kernel ends with the table of a start with these settings, in one transaction.

use portolan_model::observed::{Counters, Refused};
use portolan_model::{Family, Settings};
use portolan_nftables::read;

use super::support::{Edited, collect, every_kind, in_namespace, of, programmed, settings};
use super::table::{Table, generation};

#[test]
fn the_switch_ends_with_the_table_of_a_start() {
    for seed in 400..408 {
        for family in Family::BOTH {
            in_namespace(|| {
                let with = |counters| Settings { counters, ..settings(family) };
                let mut edited = Edited::new(seed, 10);
                let mut nftables = programmed(with(false), &of(family, &edited.first().changes));
                for is_on in [true, false, true] {
                    let before = generation();
                    nftables.configure(with(is_on));
                    nftables.resync().unwrap();
                    assert_eq!(generation(), before + 1, "seed {seed}: one transaction");
                    collect(&mut nftables);
                    for _ in 0..3 {
                        nftables.apply(&of(family, &edited.edit(3).changes)).unwrap();
                    }
                    collect(&mut nftables);
                    let (here, now) = (Table::read(family).meaning(), edited.now(family));
                    let fresh = in_namespace(|| {
                        drop(programmed(with(is_on), &now));
                        Table::read(family).meaning()
                    });
                    assert_eq!(here, fresh, "seed {seed} {is_on}");
                }
            });
        }
    }
}

#[test]
fn what_can_be_counted_starts_at_0() {
    let family = Family::Ipv4;
    in_namespace(|| {
        let on = Settings { counters: true, ..settings(family) };
        let nftables = programmed(on, &every_kind(family));
        let table: Vec<_> =
            nftables.table().iter().map(|(name, forwarding)| (name.clone(), forwarding)).collect();
        let counted = read(family).unwrap().unwrap().counted(&table);
        for ((name, forwarding), counted) in table.iter().zip(counted) {
            let has_endpoints = !forwarding.cluster.is_empty();
            let served = has_endpoints && &*name.service != "internal-local-elsewhere";
            assert_eq!(counted.total.passed, served.then(Counters::default), "{name}");
            let refused = match &*name.service {
                "empty" => Refused { no_endpoint: Some(0), ..Refused::default() },
                "local-elsewhere" | "internal-local-elsewhere" => {
                    Refused { no_local_endpoint: Some(0), ..Refused::default() }
                }
                "ranges" => Refused { source_range: Some(0), ..Refused::default() },
                _ => Refused::default(),
            };
            assert_eq!(counted.total.refused, refused, "{name}");
            let in_use = if served { forwarding.cluster.len() } else { 0 };
            assert!(counted.endpoints.len() >= in_use, "{name}: {counted:?}");
        }
    });
}
