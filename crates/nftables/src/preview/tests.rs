use std::sync::Arc;

use insta::assert_snapshot;
use portolan_model::{Backend, Change, ExternalPolicy, Forwarding, Frontend, ServicePortName};

use super::*;
use crate::planner::tests::settings;

fn table(forwarding: Forwarding) -> Table {
    let mut table = Table::new(settings(Family::Ipv4));
    let name = ServicePortName {
        namespace: "demo".into(),
        service: "web".into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let new = Some(Arc::new(forwarding));
    table.take([Change { name: Arc::new(name), family: Family::Ipv4, old: None, new }], []);
    table
}

#[test]
fn a_start_writes_everything() {
    let backend = |host| Backend { address: [10, 244, 0, host].into(), port: 8080, may_hairpin: host == 2 };
    let plain = Forwarding::plain(([10, 96, 0, 1], 80).into(), Protocol::Tcp, [2, 3].map(backend).into());
    let frontends = [
        Frontend::ClusterIp([10, 96, 0, 1].into(), 80),
        Frontend::LoadBalancerIp([192, 0, 2, 20].into(), 80),
        Frontend::NodePort(30_080),
    ];
    let forwarding = Forwarding {
        frontends: frontends.into(),
        local: [backend(2)].into(),
        external_policy: ExternalPolicy::Local,
        source_ranges: ["203.0.113.0/24".parse().unwrap(), "198.51.100.7/32".parse().unwrap()].into(),
        affinity: Some(60),
        ..plain
    };
    assert_snapshot!(preview_of_all(&table(forwarding)).join("\n"));
}

#[test]
fn ranges_are_networks_if_possible() {
    assert_eq!(range("192.0.2.0", "192.0.2.255"), "192.0.2.0/24");
    assert_eq!(range("192.0.2.7", "192.0.2.7"), "192.0.2.7");
    assert_eq!(range("192.0.2.1", "192.0.2.2"), "192.0.2.1-192.0.2.2");
    assert_eq!(range("0.0.0.0", "255.255.255.255"), "0.0.0.0/0");
    assert_eq!(range("fd00::", "fd00::ffff"), "fd00::/112");
}

#[test]
fn the_fields_of_a_set_have_the_length_of_its_keys() {
    for (set, family) in Set::ALL.into_iter().flat_map(|set| Family::BOTH.map(|family| (set, family))) {
        let length = |fields: &[Field]| -> u32 {
            let of = |field: &Field| if *field == Field::Address { address_length(family) } else { 4 };
            fields.iter().map(of).sum()
        };
        let shape = skeleton::set(FamilyTable { family, table: "t" }, set);
        assert_eq!(length(fields(set).0), shape.key_length, "{set:?}");
    }
}
