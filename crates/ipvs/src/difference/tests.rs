use portolan_model::world::{Edit, Ranges, Rng, World, random_edit};
use portolan_model::{Catalog, Family, Settings};

use super::*;
use crate::memory::{Kernel, manner};
use portolan_engine::table::Table;

fn settings(family: Family) -> Settings {
    Settings::plain(family)
}

fn node_addresses(family: Family) -> Vec<IpAddr> {
    match family {
        Family::Ipv4 => vec!["192.168.0.2".parse().unwrap(), "192.168.1.2".parse().unwrap()],
        Family::Ipv6 => vec!["fd00:192:168::2".parse().unwrap()],
    }
}

fn desired(family: Family) -> (Desired, Table) {
    let (mut desired, table) = (Desired::new(settings(family), Vec::new()), Table::new(settings(family)));
    desired.set_node_addresses(node_addresses(family), &table);
    (desired, table)
}

/// Single changes lead to the same state as a comparison, and nothing is written twice.
#[test]
fn changes_lead_to_the_same_state_as_a_comparison() {
    for (seed, family) in (1..=12).zip(Family::BOTH.into_iter().cycle()) {
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let mut world = World::random(&mut rng, 12, &ranges);
        let mut catalog = Catalog::new("n1");
        let ((mut desired, mut table), mut kernel) = (desired(family), Kernel::default());
        let mut draining = Draining::default();
        let mut edits = world.edits();
        for step in 0..150 {
            for edit in std::mem::take(&mut edits) {
                catalog.apply(Edit::event(&edit).unwrap());
            }
            let changes = table.take(catalog.take_changes().changes, []);
            let mut touched = Touched::default();
            desired.apply(&changes, &mut touched);
            let difference = Difference::of_change(&touched, &desired, &draining, manner());
            kernel.take(&difference);
            difference.settled.iter().for_each(|(key, place)| draining.remove(key, *place));
            for (key, place, until) in &difference.draining {
                draining.add(*key, *place, *until);
            }
            let compared = kernel.compared(&desired);
            assert_eq!(compared.len(), 0, "seed {seed}, step {step}: {compared:?}");
            let drains: BTreeSet<_> = draining
                .iter()
                .flat_map(|(key, places)| places.iter().map(|(place, until)| (*key, *place, *until)))
                .collect();
            assert_eq!(
                compared.draining.into_iter().collect::<BTreeSet<_>>(),
                drains,
                "seed {seed}, step {step}"
            );
            edits.push(random_edit(&mut rng, &mut world, &ranges));
        }
        // Draining endpoints go in the end.
        for (key, places) in draining.iter() {
            for place in places.keys() {
                kernel.operate(&Operation::DeleteReal(*key, *place));
            }
        }
        let mut scratch = Kernel::default();
        scratch.take(&scratch.compared(&desired));
        assert_eq!(kernel, scratch, "seed {seed}");
    }
}

/// Virtual servers at changed node addresses are compared like all others.
#[test]
fn virtual_servers_follow_the_node_addresses() {
    let (mut rng, ranges) = (Rng::new(3), Ranges::example());
    let world = World::random(&mut rng, 12, &ranges);
    let mut catalog = Catalog::new("n1");
    for edit in world.edits() {
        catalog.apply(edit.event().unwrap());
    }
    let (mut desired, mut table) = desired(Family::Ipv4);
    let changes = table.take(catalog.take_changes().changes, []);
    desired.apply(&changes, &mut Touched::default());
    let mut kernel = Kernel::default();
    kernel.take(&kernel.compared(&desired));
    let at = |kernel: &Kernel, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        kernel.servers.keys().filter(|key| key.address == address).count()
    };
    assert!(at(&kernel, "192.168.1.2") > 0);
    let addresses = ["192.168.0.2", "192.168.3.2"].map(|address| address.parse().unwrap());
    desired.set_node_addresses(addresses.to_vec(), &table);
    kernel.take(&kernel.compared(&desired));
    assert_eq!(at(&kernel, "192.168.1.2"), 0);
    assert_eq!(at(&kernel, "192.168.3.2"), at(&kernel, "192.168.0.2"));
    assert_eq!(kernel.compared(&desired), Difference::default());
}
