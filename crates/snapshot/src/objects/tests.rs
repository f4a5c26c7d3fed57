#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;

use portolan_model::object::{decode_endpoint_slice, decode_node, decode_service, decode_service_cidr};
use portolan_model::table::Entry;
use portolan_model::world::{Ranges, Rng, World, random_edit};
use portolan_model::{Event, Family};
use proptest::prelude::*;

use super::*;

fn event(manifest: &Value) -> Event {
    let bytes = manifest.to_string().into_bytes();
    let (event, faults) = match manifest["kind"].as_str().unwrap() {
        "Service" => decode_service(&bytes).map(|it| (Event::Service(it.clone()), it.faults)).unwrap(),
        "EndpointSlice" => {
            decode_endpoint_slice(&bytes).map(|it| (Event::EndpointSlice(it.clone()), it.faults)).unwrap()
        }
        "Node" => decode_node(&bytes).map(|it| (Event::Node(it.clone()), it.faults)).unwrap(),
        _ => decode_service_cidr(&bytes).map(|it| (Event::ServiceCidr(it.clone()), it.faults)).unwrap(),
    };
    assert_eq!(faults, [], "{manifest:#}");
    event
}

fn objects(catalog: &Catalog) -> Objects {
    Objects { catalog: catalog.clone(), node: catalog.node().cloned() }
}

/// Returns the Catalog of the manifests.
fn again(of: &Objects) -> Catalog {
    let mut catalog = Catalog::new(of.catalog.node_name());
    for manifest in of.iter() {
        catalog.apply(event(&manifest));
    }
    catalog
}

fn table(catalog: &Catalog, family: Family) -> BTreeMap<String, Entry> {
    let named = |(name, forwarding): Entry| (format!("{name} {}", name.protocol.name()), (name, forwarding));
    catalog.forwardings(family).map(named).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A Catalog of the manifests has the same table, with the same reasons, health checks and conflicts.
    #[test]
    fn the_manifests_make_the_same_catalog(seed in any::<u64>()) {
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let mut world = World::random(&mut rng, 8, &ranges);
        let mut catalog = Catalog::new("n1");
        if rng.chance(70) {
            catalog.apply(event(&json!({
                "kind": "Node",
                "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}},
                "spec": {"podCIDRs": ["10.244.0.0/24"], "taints": [{"key": "a", "effect": "NoSchedule"}]},
                "status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}]},
            })));
        }
        for edit in world.edits() {
            catalog.apply(edit.event().unwrap());
        }
        for _ in 0..8 {
            catalog.apply(random_edit(&mut rng, &mut world, &ranges).event().unwrap());
        }
        let mut copy = again(&objects(&catalog));
        prop_assert_eq!(copy.node(), catalog.node());
        for family in Family::BOTH {
            let (want, got) = (table(&catalog, family), table(&copy, family));
            prop_assert_eq!(&got, &want);
            for (name, _) in want.values() {
                prop_assert_eq!(copy.explain(name, family), catalog.explain(name, family));
            }
            prop_assert_eq!(copy.service_cidrs(family), catalog.service_cidrs(family));
        }
        let sorted = |catalog: &Catalog| {
            let mut conflicts: Vec<String> =
                catalog.conflicts().map(|fault| format!("{} {}", fault.key, fault.fault)).collect();
            conflicts.sort();
            conflicts
        };
        prop_assert_eq!(sorted(&copy), sorted(&catalog));
        copy.take_changes();
        catalog.take_changes();
        prop_assert_eq!(copy.health_checks(), catalog.health_checks());
    }
}

/// Texts that people or programs put into objects for other programs do not come back.
#[test]
fn what_the_catalog_does_not_keep_is_not_there() {
    let service = json!({
        "metadata": {
            "namespace": "a", "name": "web", "labels": {"team": "PLANTED"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "PLANTED",
                "portolan.dev/ipvs-scheduler": "PLANTED",
                "portolan.dev/userspace-keep-client-address": "true",
            },
        },
        "spec": {
            "clusterIP": "10.96.0.1", "token": "PLANTED", "selector": {"app": "PLANTED"},
            "ports": [{"name": "http", "port": 80, "appProtocol": "PLANTED"}],
        },
    });
    let slice = json!({
        "metadata": {
            "namespace": "a", "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web", "x": "PLANTED"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "PLANTED"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "PLANTED", "targetRef": {"name": "PLANTED"}}],
    });
    let mut catalog = Catalog::new("n1");
    catalog.apply(Event::Service(decode_service(service.to_string().as_bytes()).unwrap()));
    catalog.apply(Event::EndpointSlice(decode_endpoint_slice(slice.to_string().as_bytes()).unwrap()));
    let text = serde_json::to_string_pretty(&objects(&catalog)).unwrap();
    assert!(!text.contains("PLANTED"), "{text}");
    insta::assert_snapshot!(text);
}
