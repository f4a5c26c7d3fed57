//! A preview says what the next comparison writes, and writes nothing itself.

use portolan_engine::Driven;
use portolan_model::{Family, NodePortAddresses, Settings};
use portolan_nftables::Nftables;

use super::support::{Edited, collect, in_namespace, ip, list, nft, of, open, programmed, settings};

fn preview(nftables: &Driven<Nftables>) -> Vec<String> {
    let table = nftables.table();
    Nftables::open(table.settings().clone()).unwrap().preview(table).unwrap()
}

/// Without the lines that depend on the order in which ids were given.
fn with(lines: &[String], part: &str) -> usize {
    lines.iter().filter(|line| line.contains(part)).count()
}

#[test]
fn after_a_commit_nothing_is_left_to_write() {
    for seed in 300..306 {
        for family in Family::BOTH {
            in_namespace(|| {
                let mut edited = Edited::new(seed, 10);
                let node_ip = Some(ip(family, 244, 1));
                let settings = Settings { node_ip, ..settings(family) };
                let nftables = open(settings.clone());
                assert!(with(&preview(&nftables), "add table") == 1);
                drop(nftables);
                let mut nftables = programmed(settings, &of(family, &edited.first().changes));
                assert_eq!(preview(&nftables), [""; 0], "seed {seed}");
                for step in 0..5 {
                    nftables.apply(&of(family, &edited.edit(3).changes)).unwrap();
                    collect(&mut nftables);
                    assert_eq!(preview(&nftables), [""; 0], "seed {seed} step {step}");
                }
            });
        }
    }
}

#[test]
fn damage_and_other_settings_are_shown_and_left() {
    let family = Family::Ipv4;
    in_namespace(|| {
        let mut edited = Edited::new(7, 8);
        let first = of(family, &edited.first().changes);
        let mut nftables = programmed(settings(family), &first);
        nft("flush map ip portolan services");
        nft("flush chain ip portolan cluster-ips-check");
        let before = list(family);
        let lines = preview(&nftables);
        assert!(with(&lines, "add element ip portolan services {") > 0, "{lines:#?}");
        assert_eq!(with(&lines, "refill chain ip portolan cluster-ips-check"), 1, "{lines:#?}");
        assert_eq!(list(family), before, "nothing is written");
        nftables.resync().unwrap();
        assert_eq!(preview(&nftables), [""; 0]);
        let addresses = NodePortAddresses::Addresses(vec![ip(family, 3, 1)]);
        let mut other =
            portolan_engine::Table::new(Settings { node_port_addresses: addresses, ..settings(family) });
        other.take(first, []);
        let lines = Nftables::open(other.settings().clone()).unwrap().preview(&other).unwrap();
        assert_eq!(with(&lines, "add element ip portolan node-port-ips { 10.3.0.1 }"), 1, "{lines:#?}");
    });
}
