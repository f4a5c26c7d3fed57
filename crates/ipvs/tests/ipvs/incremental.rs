//! Tests with random edits that single changes lead to the same state as one load.

use std::net::Ipv6Addr;

use portolan_model::world::{Edit, Ranges, Rng, World, random_edit};
use portolan_model::{Catalog, Change, Family};
use portolan_sock::{Protocol, Socket};
use portolan_wire::route::path;

use super::example::{cluster_ip, put};
use super::support::{everything, in_namespace, ipvsadm, open};

const EDITS: usize = 120;
const SIZE: usize = 12;

#[test]
fn edits_one_by_one_and_all_at_once_are_the_same() {
    in_namespace(|| {
        let seed = std::env::var("PORTOLAN_SEED").map_or(7, |seed| seed.parse().unwrap());
        let mut rng = Rng::new(seed);
        let ranges = Ranges::example();
        let mut world = World::random(&mut rng, SIZE, &ranges);
        let mut first = world.edits();
        let mut catalog = Catalog::new("n1");
        let mut planes = Family::BOTH.map(open);
        for plane in &mut planes {
            plane.resync().unwrap();
        }
        for index in 0..EDITS {
            // First the whole world, then one change after the other.
            let edits = if index == 0 {
                std::mem::take(&mut first)
            } else {
                vec![random_edit(&mut rng, &mut world, &ranges)]
            };
            for edit in edits {
                catalog.apply(Edit::event(&edit).unwrap());
            }
            let changes = catalog.take_changes().changes;
            for (plane, family) in planes.iter_mut().zip(Family::BOTH) {
                let own: Vec<Change> =
                    changes.iter().filter(|change| change.family == family).cloned().collect();
                let commit = plane.apply(&own).unwrap();
                assert!(!commit.full, "seed {seed}, edit {index}: a surprise");
            }
        }
        for plane in &mut planes {
            while plane.collect().unwrap() {}
        }
        let one_by_one = everything();
        for (plane, family) in planes.iter_mut().zip(Family::BOTH) {
            let commit = plane.resync().unwrap();
            assert_eq!(commit.elements, 0, "seed {seed}, {family}");
        }
        assert_eq!(everything(), one_by_one);
        for plane in &mut planes {
            plane.remove().unwrap();
        }
        assert_eq!(ipvsadm("--list --numeric").lines().count(), 3);
        for family in Family::BOTH {
            let mut plane = open(family);
            let all: Vec<Change> = catalog
                .forwardings(family)
                .map(|(name, new)| Change { name, family, old: None, new: Some(new) })
                .collect();
            plane.apply(&all).unwrap();
            plane.resync().unwrap();
        }
        assert_eq!(everything(), one_by_one, "seed {seed}");
    });
}

/// Without its local route, packets to a new IPv6 address would leave by another one.
#[test]
fn a_new_address_takes_packets_when_the_commit_is_done() {
    in_namespace(|| {
        let mut plane = open(Family::Ipv6);
        plane.resync().unwrap();
        let mut socket = Socket::open(Protocol::Route).unwrap();
        for number in 1..=100 {
            let address = Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 7, number);
            let service = put(
                &format!("service-{number}"),
                "",
                cluster_ip(&address.to_string(), 80, &["[fd00:10:244::5]:8080"]),
            );
            assert!(!plane.apply(&[service]).unwrap().full);
            let mut is_local = false;
            let asked = socket.query(&mut path::to_ipv6(address), |frame| {
                is_local |= path::is_local(frame);
                Ok(())
            });
            assert!(asked.is_ok() && is_local, "{address}: {asked:?}");
        }
    });
}
