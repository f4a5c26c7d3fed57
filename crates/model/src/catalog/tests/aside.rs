//! Endpoints that are set aside.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::catalog::index::Index;
use crate::world::{Ranges, Rng, World, random_edit};

fn set(sockets: &[&str]) -> BTreeSet<SocketAddr> {
    sockets.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn services_lose_an_endpoint_that_is_set_aside_and_get_it_back() {
    let mut catalog = Catalog::new("n1");
    let both = || json!([ready("10.0.0.1"), ready("10.0.0.2")]);
    for (name, address) in [("web", "10.96.0.1"), ("shop", "10.96.0.2")] {
        catalog.apply(cluster_ip(name, address, 80));
        catalog.apply(slice(&format!("{name}-1"), name, "TCP", both()));
    }
    catalog.apply(cluster_ip("single", "10.96.0.3", 80));
    catalog.apply(slice("single-1", "single", "TCP", json!([ready("10.0.0.1")])));
    catalog
        .apply(service("dns", json!({"clusterIP": "10.96.0.4", "ports": [{"port": 53, "protocol": "UDP"}]})));
    catalog.apply(slice("dns-1", "dns", "UDP", both()));
    catalog.take_changes();

    let first: SocketAddr = "10.0.0.1:8080".parse().unwrap();
    let found = catalog.set_aside(set(&["10.0.0.1:8080", "10.0.0.9:8080", "10.0.0.2:8081"]));
    let mut names: Vec<String> = found.iter().map(|(socket, key)| format!("{socket} {}", key.name)).collect();
    names.sort_unstable();
    assert_eq!(names, ["10.0.0.1:8080 shop", "10.0.0.1:8080 single", "10.0.0.1:8080 web"]);
    let mut changes = summary(&catalog.take_changes().changes);
    changes.sort_unstable();
    let lost = r#"1f["10.0.0.1", "10.0.0.2"]->1f["10.0.0.2"]"#;
    // The only endpoint of a Service stays, and datagrams are not judged.
    assert_eq!(changes, [format!("ns/shop IPv4 {lost}"), format!("ns/web IPv4 {lost}")]);

    assert_eq!(catalog.aside_count(), 1, "the other two are no endpoints");

    // The same set changes nothing, and an event of a slice does not bring the endpoint back.
    assert_eq!(catalog.set_aside(set(&["10.0.0.1:8080", "10.0.0.9:8080", "10.0.0.2:8081"])), []);
    catalog.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.1"), ready("10.0.0.3")])));
    let changes = catalog.take_changes().changes;
    assert_eq!(summary(&changes), [r#"ns/web IPv4 1f["10.0.0.2"]->1f["10.0.0.3"]"#]);

    assert_eq!(catalog.set_aside(BTreeSet::new()).iter().filter(|(socket, _)| *socket == first).count(), 3);
    let changes = catalog.take_changes().changes;
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(changes.iter().all(|change| change.new.as_ref().is_some_and(|new| new.cluster.len() == 2)));
}

proptest! {
    #[test]
    fn the_index_leads_to_all_services_of_an_endpoint(seed in any::<u64>(), steps in 1_usize..30) {
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let mut world = World::random(&mut rng, 6, &ranges);
        let mut catalog = Catalog::new("n1");
        for edit in world.edits() {
            catalog.apply(edit.event().expect("worlds decode"));
        }
        for _ in 0..steps {
            let edit = random_edit(&mut rng, &mut world, &ranges);
            catalog.apply(edit.event().expect("worlds decode"));
            let known: Vec<(SocketAddr, Id)> = catalog
                .slices
                .iter()
                .flat_map(|(_, slice)| slice.content.tcp_sockets().map(|socket| (socket, slice.owner)))
                .collect();
            let sockets: Vec<SocketAddr> = known.iter().map(|(socket, _)| *socket).collect();
            let next: BTreeSet<SocketAddr> = rng.some(&sockets, 3).into_iter().copied().collect();
            let differs = |socket| catalog.aside.sockets.contains(&socket) != next.contains(&socket);
            let expected: BTreeSet<(SocketAddr, ObjectKey)> = known
                .iter()
                .filter(|(socket, _)| differs(*socket))
                .filter_map(|(socket, id)| Some((*socket, catalog.services.get(*id)?)))
                .filter(|(_, record)| record.service.is_some())
                .map(|(socket, record)| (socket, record.key()))
                .collect();
            let found = catalog.set_aside(next);
            let count = found.len();
            let found = BTreeSet::from_iter(found);
            prop_assert_eq!(found.len(), count, "each once");
            prop_assert_eq!(found, expected);
        }
        catalog.apply(Event::ListStart(Kind::EndpointSlice));
        catalog.apply(Event::ListEnd(Kind::EndpointSlice));
        prop_assert_eq!(catalog.aside.slices.as_ref().map_or(0, Index::len), 0);
    }
}
