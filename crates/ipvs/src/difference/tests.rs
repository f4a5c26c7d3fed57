use std::sync::Arc;

use portolan_model::world::{Edit, Ranges, Rng, World, random_edit};
use portolan_model::{Catalog, Change, Family, Forwarding, Frontend, ServicePortName, Settings};

use super::*;
use crate::memory::{Kernel, manner};
use portolan_engine::table::{Changes, Table};

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

/// Returns the changes that give a Service these source ranges.
fn restricted(table: &mut Table, ranges: &[&str]) -> Changes {
    let place: SocketAddr = "203.0.113.1:80".parse().unwrap();
    let forwarding = Forwarding {
        frontends: Box::new([Frontend::LoadBalancerIp(place.ip(), place.port())]),
        source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..Forwarding::plain(place, Protocol::Tcp, Box::default())
    };
    let [namespace, service, port] = ["shop", "web", "http"].map(Arc::from);
    let name = Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp });
    table.take([Change { name, family: Family::Ipv4, old: None, new: Some(Arc::new(forwarding)) }], [])
}

/// Fails unless the member of the firewall comes after, or before, those that allow clients.
fn assert_order(members: &[(Set, Member)], is_last: bool) {
    let place = |wanted: Set| members.iter().position(|(set, _)| *set == wanted).unwrap();
    for allows in [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp] {
        let is_after = place(Set::LoadBalancerFirewall) > place(allows);
        assert_eq!(is_after, is_last, "{allows:?}: {members:?}");
    }
}

/// While a member of the firewall is there, and none that allows a client, the client's packets are dropped.
#[test]
fn clients_are_allowed_as_long_as_others_are_dropped() {
    let node = "192.168.0.2".parse().unwrap();
    let settings = Settings { node_ip: Some(node), ..settings(Family::Ipv4) };
    let (mut desired, mut table) = (Desired::new(settings.clone(), Vec::new()), Table::new(settings));
    let mut kernel = Kernel::default();
    let ranges: [&[&str]; 3] = [&[], &["192.168.0.0/24"], &[]];
    for (step, ranges) in ranges.into_iter().enumerate() {
        let mut touched = Touched::default();
        desired.apply(&restricted(&mut table, ranges), &mut touched);
        let change = Difference::of_change(&touched, &desired, &Draining::default(), manner());
        for difference in [&change, &kernel.compared(&desired)] {
            match step {
                0 => assert!(!difference.add.is_empty()),
                1 => assert_order(&difference.add, true),
                _ => assert_order(&difference.remove, false),
            }
        }
        kernel.take(&change);
    }
}
