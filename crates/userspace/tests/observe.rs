//! What the kernel and the relay have is read back in the terms of Services.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test program")]

use portolan_engine::Driven;
use portolan_model::observed::{Fact, Observed, ObservedEndpoints};
use portolan_model::table::Entry;
use portolan_model::world::Edited;
use portolan_model::{Change, Family, InternalPolicy, Protocol, Settings};
use portolan_relay::RelayOptions;
use portolan_testkit::Namespace;
use portolan_userspace::{Userspace, read};

fn plane(family: Family) -> Driven<Userspace> {
    let settings = Settings::plain(family);
    let relay = portolan_relay::spawn(&[family], RelayOptions::default()).unwrap();
    Driven::new(settings.clone(), Userspace::open(settings, relay).unwrap())
}

/// Returns what the mode carries of the wanted table.
fn carried(plane: &Driven<Userspace>) -> Vec<Entry> {
    let table = plane.table().iter().filter(|(name, _)| name.protocol != Protocol::Sctp);
    table.map(|(name, forwarding)| (name.clone(), forwarding)).collect()
}

fn differences(observed: &Observed, plane: &Driven<Userspace>) -> Vec<String> {
    observed.difference(&carried(plane)).iter().map(ToString::to_string).collect()
}

fn of(family: Family, mut changes: Vec<Change>) -> Vec<Change> {
    changes.retain(|change| change.family == family);
    changes
}

#[test]
fn what_is_captured_and_relayed_is_read_back() {
    for (seed, family) in (0..6).flat_map(|seed| Family::BOTH.map(|family| (seed, family))) {
        let namespace = Namespace::new("observe").unwrap();
        namespace.ip("link set lo up").unwrap();
        let work = || {
            assert_eq!(read(family, None).unwrap(), None);
            let mut edited = Edited::new(seed, 10);
            let mut plane = plane(family);
            plane.apply(&of(family, edited.first().changes)).unwrap();
            plane.resync().unwrap();
            for step in 0..8 {
                let observed = read(family, Some(plane.relay())).unwrap().unwrap();
                assert_eq!(differences(&observed, &plane), [""; 0], "seed {seed} step {step}");
                let rules = read(family, None).unwrap().unwrap();
                assert_eq!(differences(&rules, &plane), [""; 0], "seed {seed} step {step}: rules only");
                plane.apply(&of(family, edited.edit(3).changes)).unwrap();
            }
        };
        namespace.run(work).unwrap();
    }
}

#[test]
fn damage_is_read_back_as_what_it_does_to_services() {
    let family = Family::Ipv4;
    let namespace = Namespace::new("observe").unwrap();
    namespace.ip("link set lo up").unwrap();
    let work = || {
        let mut edited = Edited::new(3, 10);
        let mut plane = plane(family);
        plane.apply(&of(family, edited.first().changes)).unwrap();
        plane.resync().unwrap();
        let has_endpoints = |(_, forwarding): &&Entry| {
            !forwarding.cluster.is_empty() && forwarding.internal_policy == InternalPolicy::Cluster
        };
        let (name, forwarding) = carried(&plane).iter().find(has_endpoints).cloned().unwrap();
        // The relay has other endpoints than the table.
        let fewer = portolan_model::Forwarding { cluster: Box::default(), ..(*forwarding).clone() };
        let change = |new| Change { name: name.clone(), family, old: None, new: Some(new) };
        plane.relay().apply(family, vec![change(fewer.into())]);
        let observed = read(family, Some(plane.relay())).unwrap().unwrap();
        let texts = differences(&observed, &plane);
        assert_eq!(texts.len(), forwarding.cluster.len(), "{texts:?}");
        assert!(texts.iter().all(|text| text.contains("is missing in the cluster list")), "{texts:?}");
        assert_eq!(differences(&read(family, None).unwrap().unwrap(), &plane), [""; 0], "not in the rules");
        plane.relay().apply(family, vec![change(forwarding.clone())]);
        assert_eq!(differences(&read(family, Some(plane.relay())).unwrap().unwrap(), &plane), [""; 0]);
        // Without the relay, its part is not known.
        plane.relay().drain(std::time::Duration::ZERO);
        let rules = read(family, Some(plane.relay())).unwrap().unwrap();
        assert!(rules.ports.iter().all(|port| {
            port.affinity == Fact::Unknown && !matches!(port.endpoints, ObservedEndpoints::Lists { .. })
        }));
        assert_eq!(differences(&rules, &plane), [""; 0]);
        namespace.output("nft", &["flush", "map", "ip", "portolan-userspace", "services"]).unwrap();
        let texts = differences(&read(family, Some(plane.relay())).unwrap().unwrap(), &plane);
        assert!(texts.iter().any(|text| text.ends_with("programmed")), "{texts:?}");
    };
    namespace.run(work).unwrap();
}
