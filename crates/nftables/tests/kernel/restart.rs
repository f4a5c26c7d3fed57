//! A data plane starts on the table of an earlier one.

use std::process::Command;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Settings};
use portolan_testkit::eventually;

use super::support::{
    Edited, cluster_ip, collect, every_kind, gone, in_namespace, ip, of, programmed, put, settings, started,
};
use super::table::{Table, generation};

/// Returns settings with every option that rules depend on.
fn all_settings(family: Family) -> Vec<Settings> {
    let cidr = |v4: &str, v6: &str| match family {
        Family::Ipv4 => v4.parse().unwrap(),
        Family::Ipv6 => v6.parse().unwrap(),
    };
    let plain = settings(family);
    vec![
        Settings {
            local_detector: LocalDetector::Cidr(cidr("10.244.0.0/16", "2001:db8:f4::/48")),
            ..plain.clone()
        },
        Settings {
            local_detector: LocalDetector::Cidr(cidr("10.244.16.0/20", "2001:db8:f4::/61")),
            masquerade_bit: 0,
            ..plain.clone()
        },
        Settings {
            local_detector: LocalDetector::Cidr(cidr("0.0.0.0/0", "::/0")),
            masquerade_bit: 31,
            ..plain.clone()
        },
        Settings {
            local_detector: LocalDetector::Cidr(cidr("10.0.0.9/32", "2001:db8::9/128")),
            ..plain.clone()
        },
        Settings { local_detector: LocalDetector::Interface("cni0".into()), ..plain.clone() },
        Settings { local_detector: LocalDetector::Interface("an-interface-15".into()), ..plain.clone() },
        Settings { local_detector: LocalDetector::InterfacePrefix("veth".into()), ..plain.clone() },
        Settings { masquerade_all: true, ..plain.clone() },
        Settings { counters: true, ..plain.clone() },
        Settings {
            node_port_addresses: NodePortAddresses::Addresses(vec![ip(family, 3, 1), ip(family, 3, 2)]),
            node_ip: Some(ip(family, 3, 1)),
            ..plain.clone()
        },
        Settings { node_port_addresses: NodePortAddresses::Addresses(Vec::new()), ..plain.clone() },
        Settings {
            service_cidrs: vec![
                cidr("10.96.0.0/12", "2001:db8:60::/108"),
                cidr("10.112.0.0/16", "2001:db8:61::/112"),
                cidr("10.120.0.0/30", "2001:db8:62::/126"),
            ],
            ..plain.clone()
        },
        plain,
    ]
}

/// Starts a data plane on an existing table and asserts that it writes nothing.
fn restart_writes_nothing(settings: &Settings, state: &[Change]) {
    let family = settings.family;
    let (before, generation_before) = (Table::read(family), generation());
    let (mut nftables, commit) = started(settings.clone(), state);
    assert_eq!((commit.elements, commit.objects, commit.full), (0, 0, true), "{settings:?}");
    assert_eq!(generation(), generation_before, "{settings:?}");
    assert_eq!(Table::read(family), before);
    let commit = nftables.resync().unwrap();
    assert_eq!((commit.elements, commit.objects), (0, 0));
}

#[test]
fn a_restart_with_unchanged_input_writes_nothing() {
    for family in Family::BOTH {
        for settings in all_settings(family) {
            in_namespace(|| {
                let mut state = every_kind(family);
                drop(programmed(settings.clone(), &state));
                state.reverse();
                restart_writes_nothing(&settings, &state);
            });
        }
    }
}

#[test]
fn a_restart_after_edits_writes_nothing() {
    for seed in 0..20 {
        for family in Family::BOTH {
            in_namespace(|| {
                let mut edited = Edited::new(seed, 12);
                let mut nftables = programmed(settings(family), &of(family, &edited.first().changes));
                for _ in 0..20 {
                    nftables.apply(&of(family, &edited.edit(3).changes)).unwrap();
                }
                restart_writes_nothing(&settings(family), &edited.now(family));
                collect(&mut nftables);
                restart_writes_nothing(&settings(family), &edited.now(family));
            });
        }
    }
}

#[test]
fn a_restart_with_other_input_writes_the_difference_only() {
    for family in Family::BOTH {
        in_namespace(|| {
            let state = every_kind(family);
            drop(programmed(settings(family), &state));
            let table = Table::read(family);
            // Without one Service port: its cluster IP, its frontend, two endpoints, and its hairpin connection.
            let (mut nftables, commit) = started(settings(family), &state[1..]);
            assert_eq!((commit.elements, commit.objects), (5, 0));
            nftables.apply(&state[..1]).unwrap();
            assert_eq!(Table::read(family).meaning(), table.meaning());
        });
    }
}

/// Returns a Service port with session affinity, a cluster IP and other frontends.
fn sticky(family: Family, number: u16, hosts: [u16; 3], others: &[Frontend]) -> Forwarding {
    let mut frontends = vec![Frontend::ClusterIp(ip(family, 96, number), 80)];
    frontends.extend(others);
    Forwarding { frontends: frontends.into(), affinity: Some(10_800), ..cluster_ip(family, number, hosts) }
}

/// The kernel's bindings of clients outlast the Service ports. So they must not count for new ones.
#[test]
fn a_new_service_port_gets_no_id_that_a_former_run_used() {
    for family in Family::BOTH {
        in_namespace(|| {
            let [a, b, c] = ["a", "b", "c"].map(|name| put(name, sticky(family, 1, [1, 2, 3], &[])));
            let other = put("other", cluster_ip(family, 2, [1]));
            drop(programmed(settings(family), &[other.clone(), a.clone()]));
            let first = Table::read(family).id_of("demo/a");
            let mut nftables = programmed(settings(family), &[other.clone(), a.clone()]);
            nftables.apply(&[gone(&a)]).unwrap();
            nftables.apply(std::slice::from_ref(&b)).unwrap();
            let second = Table::read(family).id_of("demo/b");
            assert!(second > first, "{second} after {first}");
            // This one is deleted while nothing watches. The next run has not had its id at all.
            drop(nftables);
            let mut nftables = programmed(settings(family), &[other]);
            nftables.apply(&[c]).unwrap();
            let third = Table::read(family).id_of("demo/c");
            assert!(third > second, "{third} after {second}");
        });
    }
}

#[test]
fn a_frontend_that_moved_between_two_runs_leaves_its_former_owner_the_id() {
    for family in Family::BOTH {
        for moves in [Frontend::ExternalIp(ip(family, 1, 7), 80), Frontend::NodePort(30007)] {
            in_namespace(|| {
                let zeta = |others: &[Frontend]| put("zeta", sticky(family, 1, [1, 2, 3], others));
                // Without the first endpoint, the slots are not those of a new placement.
                let with_another = put("zeta", sticky(family, 1, [9, 2, 3], &[moves]));
                let mut nftables = programmed(settings(family), &[with_another]);
                nftables.apply(&[zeta(&[moves])]).unwrap();
                drop(nftables);
                let before = Table::read(family);
                let id = before.id_of("demo/zeta");
                let alpha = Forwarding { frontends: Box::new([moves]), ..cluster_ip(family, 2, [4, 5]) };
                let state = [put("alpha", alpha), zeta(&[])];
                drop(programmed(settings(family), &state));
                let after = Table::read(family);
                assert_eq!(after.id_of("demo/zeta"), id);
                assert_eq!(after.slots_of(id), before.slots_of(id));
                assert_ne!(after.id_of("demo/alpha"), id);
                restart_writes_nothing(&settings(family), &state);
            });
        }
    }
}

/// The kernel takes any bytes as a chain's name, and so does iptables.
#[test]
fn names_of_other_programs_need_not_be_text() {
    in_namespace(|| {
        let chain = "printf '*filter\\n:G\\304STE - [0:0]\\n-A FORWARD -j G\\304STE\\nCOMMIT\\n' | iptables-nft-restore --noflush";
        let status = Command::new("sh").args(["-c", chain]).status().unwrap();
        assert!(status.success());
        let settings = settings(Family::Ipv4);
        let changes = of(Family::Ipv4, &every_kind(Family::Ipv4));
        let mut nftables = programmed(settings, &changes);
        assert_eq!(nftables.resync().unwrap().elements, 0);
    });
}

#[test]
fn new_settings_are_programmed_on_the_old_table() {
    for family in Family::BOTH {
        in_namespace(|| {
            let state = every_kind(family);
            let mut nftables = programmed(settings(family), &state);
            for settings in all_settings(family) {
                nftables.configure(settings.clone());
                let commit = nftables.resync().unwrap();
                assert!(commit.bytes < 40_000, "the Services themselves are left alone: {commit:?}");
                collect(&mut nftables);
                let here = Table::read(family).meaning();
                let fresh = in_namespace(|| {
                    drop(programmed(settings.clone(), &state));
                    Table::read(family).meaning()
                });
                assert_eq!(here, fresh);
                restart_writes_nothing(&settings, &state);
            }
        });
    }
}

#[test]
fn leftovers_of_a_former_run_are_collected() {
    for family in Family::BOTH {
        in_namespace(|| {
            let state = every_kind(family);
            drop(programmed(settings(family), &state));
            let mut nftables = programmed(settings(family), &state[..1]);
            assert!(Table::read(family).sets().contains("affinity"));
            collect(&mut nftables);
            assert!(!Table::read(family).sets().contains("affinity"));
            // A map without users, as after a fault between the creation of the map and of its first Service.
            let mut nftables = programmed(settings(family), &state);
            nftables.apply(&state[1..].iter().map(gone).collect::<Vec<_>>()).unwrap();
            nftables.collect().unwrap();
            let mut nftables = programmed(settings(family), &state[..1]);
            collect(&mut nftables);
            let table = Table::read(family);
            assert!(!table.sets().contains("affinity"));
            let classes = ["endpoints-2", "internal-2"];
            let others =
                table.chains().into_iter().filter(|name| name.ends_with(|c: char| c.is_ascii_digit()));
            assert_eq!(others.collect::<Vec<_>>(), classes);
        });
    }
}

/// If the checks outlasted the translation, they would reject packets that another mode has taken over.
#[test]
fn a_removed_table_stops_translating_before_it_is_deleted() {
    for family in Family::BOTH {
        in_namespace(|| {
            let state = every_kind(family);
            let mut nftables = programmed(settings(family), &state);
            let rules = |chain: &str| Table::read(family).rules_of(chain);
            assert!(nftables.remove_part(None).unwrap());
            for chain in ["nat-prerouting", "nat-output", "filter-input", "filter-forward", "filter-output"] {
                assert_eq!(rules(chain), 0, "{chain}");
            }
            assert!(rules("nat-postrouting") > 0, "what is on its way is still masqueraded");
            let due = nftables.removal_due().unwrap();
            eventually(Duration::from_secs(120), "the table has left", || {
                !nftables.remove_part(None).unwrap()
            })
            .unwrap();
            assert!(Instant::now() >= due);
            assert!(Table::read_or_empty(family).is_none());
            assert!(!nftables.remove_part(None).unwrap(), "there is nothing to do");
        });
    }
}
