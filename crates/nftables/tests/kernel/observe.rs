//! The kernel's table read back in the terms of Services.

use std::sync::mpsc;

use portolan_engine::{Driven, Error};
use portolan_model::table::Entry;
use portolan_model::{Family, NodePortAddresses, Settings};
use portolan_nftables::{Nftables, read, read_capture};

use super::support::{
    Edited, cluster_ip, collect, every_kind, in_namespace, ip, nft, of, programmed, put, settings,
};

fn wanted(nftables: &Driven<Nftables>) -> Vec<Entry> {
    nftables.table().iter().map(|(name, forwarding)| (name.clone(), forwarding)).collect()
}

/// Returns the texts of the differences from the wanted table.
fn differences(nftables: &Driven<Nftables>) -> Vec<String> {
    let observed = read(nftables.table().family()).unwrap().unwrap();
    observed.difference(&wanted(nftables)).iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_programmed_is_read_back() {
    for family in Family::BOTH {
        let own = Some(ip(family, 1, 1));
        let addresses = NodePortAddresses::Addresses(vec![ip(family, 3, 1)]);
        for settings in [
            settings(family),
            Settings { counters: true, ..settings(family) },
            Settings { node_ip: own, ..settings(family) },
            Settings { masquerade_all: true, node_port_addresses: addresses, ..settings(family) },
        ] {
            in_namespace(|| {
                assert_eq!(read(family).unwrap(), None, "no table");
                let mut nftables = programmed(settings, &every_kind(family));
                assert_eq!(differences(&nftables), [""; 0]);
                assert_eq!(read_capture(family).unwrap(), None);
                nftables.remove().unwrap();
                assert_eq!(read(family).unwrap(), None, "removed");
            });
        }
    }
}

#[test]
fn after_edits_the_wanted_table_is_read_back() {
    for seed in 200..215 {
        for family in Family::BOTH {
            in_namespace(|| {
                let mut edited = Edited::new(seed, 12);
                let node_ip = Some(ip(family, 244, 1));
                let settings = Settings { node_ip, counters: seed % 2 == 0, ..settings(family) };
                let mut nftables = programmed(settings, &of(family, &edited.first().changes));
                for step in 0..12 {
                    let count = 1 + edited.rng().below(6);
                    nftables.apply(&of(family, &edited.edit(count).changes)).unwrap();
                    assert_eq!(differences(&nftables), [""; 0], "seed {seed} step {step}");
                    if step % 5 == 3 {
                        collect(&mut nftables);
                    }
                }
            });
        }
    }
}

/// Damage as nft commands, and the differences that are read back. The first backend of `demo/web` is an index of id 1.
const DAMAGE: [(&str, &[&str]); 14] = [
    (
        "delete element ip portolan services { 10.96.0.1 . tcp . 80 }",
        &["demo/web (TCP): nothing is programmed"],
    ),
    (
        "delete element ip portolan services { 10.1.0.4 . tcp . 80 }",
        &["demo/local (TCP): external IP 10.1.0.4:80 is not programmed"],
    ),
    (
        "delete element ip portolan node-ports { tcp . 30003 }",
        &["demo/ranges (TCP): node port 30003 is not programmed"],
    ),
    (
        "delete element ip portolan no-endpoint-services { 10.96.0.8 . tcp . 80 }",
        &["demo/empty (TCP): cluster IP 10.96.0.8:80 is not programmed"],
    ),
    (
        "add element ip portolan services { 10.99.9.9 . tcp . 81 : 0x1 }",
        &["no Service (TCP): extra frontend 10.99.9.9:81"],
    ),
    (
        "add element ip portolan no-endpoint-node-ports { udp . 30099 comment \"other/web\" }",
        &["other/web (UDP): extra Service port"],
    ),
    (
        "delete element ip portolan firewall-ips { 10.2.0.3 . tcp . 80 }",
        &["demo/ranges (TCP): all sources are allowed instead of the source ranges"],
    ),
    (
        "delete element ip portolan source-ranges { 10.2.0.3 . tcp . 80 . 10.0.0.0/8 }",
        &["demo/ranges (TCP): source range 10.0.0.0/8 is missing"],
    ),
    (
        "add element ip portolan source-ranges { 10.2.0.3 . tcp . 80 . 203.0.113.1-203.0.113.2 }",
        &[
            "demo/ranges (TCP): extra source range 203.0.113.1/32",
            "demo/ranges (TCP): extra source range 203.0.113.2/32",
        ],
    ),
    (
        "flush map ip portolan affinity-choices",
        &[
            "demo/affinity (TCP): endpoint 10.244.0.1:8080 is missing in the cluster list",
            "demo/affinity (TCP): endpoint 10.244.0.2:8080 is missing in the cluster list",
            "demo/affinity (TCP): endpoint 10.244.0.3:8080 is missing in the cluster list",
            "demo/affinity-local (TCP): endpoint 10.244.0.1:8080 is missing in the cluster list",
            "demo/affinity-local (TCP): endpoint 10.244.0.2:8080 is missing in the cluster list",
            "demo/affinity-local (TCP): endpoint 10.244.0.3:8080 is missing in the cluster list",
            "demo/affinity-local (TCP): endpoint 10.244.0.3:8080 is missing in the local list",
        ],
    ),
    (
        "flush chain ip portolan local-endpoints-2",
        &[
            "demo/internal-local (SCTP): endpoint 10.244.0.1:8080 is missing behind frontend 10.96.0.10:80",
            "demo/internal-local (SCTP): endpoint 10.244.0.2:8080 is missing behind frontend 10.96.0.10:80",
        ],
    ),
    ("add rule ip portolan endpoints-1 accept", &[]),
    ("add chain ip portolan mine", &[]),
    ("add element ip portolan cluster-ips { 10.99.9.9 }", &[]),
];

#[test]
fn damage_is_read_back_as_what_it_does_to_services() {
    in_namespace(|| {
        let mut nftables = programmed(settings(Family::Ipv4), &every_kind(Family::Ipv4));
        for (command, expected) in DAMAGE {
            nft(command);
            assert_eq!(differences(&nftables), expected, "{command}");
            nftables.mark_unknown();
            nftables.resync().unwrap();
            collect(&mut nftables);
            assert_eq!(differences(&nftables), [""; 0], "after {command}");
        }
        nft("add table ip portolan { flags dormant ; }");
        let texts = differences(&nftables);
        assert_eq!(texts.len(), nftables.table().len());
        assert!(texts.iter().all(|text| text.ends_with(": nothing is programmed")), "{texts:?}");
    });
}

#[test]
fn an_endpoint_that_another_program_changed_is_missing_and_extra() {
    in_namespace(|| {
        let state = [put("web", cluster_ip(Family::Ipv4, 1, [1, 2]))];
        let nftables = programmed(settings(Family::Ipv4), &state);
        let id = "0x00004000";
        let change = |index: u32, endpoint: &str| {
            nft(&format!("add element ip portolan endpoints {{ {id} . {index} : {endpoint} }}"));
        };
        nft(&format!("delete element ip portolan endpoints {{ {id} . 1 }}"));
        let missing = "demo/web (TCP): endpoint 10.244.0.2:8080 is missing in the cluster list";
        assert_eq!(differences(&nftables), [missing]);
        change(1, "10.99.9.9 . 83");
        let extra = "demo/web (TCP): extra endpoint 10.99.9.9:83 in the cluster list";
        assert_eq!(differences(&nftables), [missing, extra]);
        change(5, "10.244.0.2 . 8080");
        assert_eq!(differences(&nftables), [missing, extra], "no packet gets there");
    });
}

#[test]
fn what_is_read_is_one_state_of_the_table() {
    in_namespace(|| {
        let family = Family::Ipv4;
        let states = [[1, 2, 3], [4, 5, 6]]
            .map(|hosts| (1..40).map(move |n| put(&format!("web-{n}"), cluster_ip(family, n, hosts))));
        let states = states.map(Iterator::collect::<Vec<_>>);
        let mut nftables = programmed(settings(family), &states[0]);
        let tables = states.each_ref().map(|state| {
            let entry = |change: &portolan_model::Change| (change.name.clone(), change.new.clone().unwrap());
            state.iter().map(entry).collect::<Vec<Entry>>()
        });
        std::thread::scope(|scope| {
            // Ends with this closure, and so does the thread.
            let (sender, receiver) = mpsc::channel::<()>();
            scope.spawn(move || {
                let mut next = states.iter().cycle().skip(1);
                for () in receiver {
                    for state in next.by_ref().take(3) {
                        nftables.apply(state).unwrap();
                    }
                }
            });
            let mut reads = 0;
            for _ in 0..60 {
                sender.send(()).unwrap();
                match read(family) {
                    Ok(observed) => {
                        let observed = observed.unwrap();
                        let fits = tables.iter().any(|table| observed.difference(table).is_empty());
                        assert!(fits, "a mixture of two states");
                        reads += 1;
                    }
                    Err(Error::Contended { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(reads > 0);
        });
    });
}
