//! Tests that rules read back from the kernel do not differ from what was written, and that damage is reported in terms
//! of Services.

use std::net::TcpStream;

use portolan_iptables::{Error, Variant, read};
use portolan_model::observed::{Fact, Observed, ObservedEndpoints, ObservedPort};
use portolan_model::table::Entry;
use portolan_model::{Change, Family, Frontend, Protocol};
use portolan_testkit::Namespace;

use super::example::{cluster_ip, ipv4, ipv6, put, settings};
use super::kernel::{Edited, VARIANTS, apply, in_namespace};
use super::load::{IN_USE, data_plane, driven, in_use, programs, programs_of, world};
use super::takeover::KUBE_PROXY;

fn table(changes: &[Change]) -> Vec<Entry> {
    let entry = |change: &Change| Some((change.name.clone(), change.new.clone()?));
    changes.iter().filter_map(entry).collect()
}

fn texts(observed: &Observed, table: &[Entry]) -> Vec<String> {
    observed.difference(table).iter().map(ToString::to_string).collect()
}

#[test]
fn committed_rules_read_back_without_a_difference() {
    for (seed, family) in (11..=14).zip(Family::BOTH.into_iter().cycle()) {
        for variant in VARIANTS {
            in_namespace(|| {
                let mut edited = Edited::new(seed, 8);
                let mut iptables = driven(programs_of(family, variant), settings(family));
                let programs = programs_of(family, variant);
                assert_eq!(read(&programs, family).unwrap(), None, "there are no chains");
                let (changes, _) = edited.first();
                let of_family = |changes: Vec<Change>| -> Vec<Change> {
                    changes.into_iter().filter(|change| change.family == family).collect()
                };
                iptables.apply(&of_family(changes)).unwrap();
                iptables.resync().unwrap();
                for _ in 0..6 {
                    let observed = read(&programs, family).unwrap().unwrap();
                    let differences = texts(&observed, &edited.entries(family));
                    assert_eq!(differences, [""; 0], "seed {seed}, {variant:?}");
                    iptables.apply(&of_family(edited.edit(4).0)).unwrap();
                }
            });
        }
    }
}

/// Restores that damage the rules of the example, and the differences.
const DAMAGE: [(&str, &[&str]); 10] = [
    (
        "*nat\n-D KUBE-SERVICES -d 172.30.10.1/32 -p tcp -m comment --comment \"demo/web:http cluster IP\" -m tcp --dport 80 \
         -j KUBE-SVC-XRY76EGRC3BSCIIJ\nCOMMIT\n",
        &["demo/web:http (TCP): cluster IP 172.30.10.1:80 is not programmed"],
    ),
    (
        "*nat\n-R KUBE-SEP-67ZKS7H6UHUXEHZF 2 -p tcp -m comment --comment \"demo/web:http\" -m tcp -j DNAT --to-destination \
         10.180.1.99:8080\nCOMMIT\n",
        &[
            "demo/web:http (TCP): endpoint 10.180.1.12:8080 is missing in the cluster list",
            "demo/web:http (TCP): extra endpoint 10.180.1.99:8080 in the cluster list",
        ],
    ),
    (
        "*nat\n-A KUBE-SERVICES -d 172.30.10.9/32 -p tcp -m comment --comment \"demo/web:http cluster IP\" -m tcp --dport 80 \
         -j KUBE-SVC-XRY76EGRC3BSCIIJ\nCOMMIT\n",
        &["demo/web:http (TCP): extra cluster IP 172.30.10.9:80"],
    ),
    (
        "*nat\n:KUBE-SVL-ERJE4GOKLZX5YEOG - [0:0]\nCOMMIT\n",
        &["demo/edge:api (TCP): endpoint 10.180.0.21:8443 is missing in the local list"],
    ),
    (
        "*nat\n-D KUBE-SVC-6RPHUCFPUBGIVHOV 2\nCOMMIT\n",
        &["demo/shop:https (TCP): session affinity is none instead of 600 s"],
    ),
    (
        "*nat\n-D KUBE-FW-6RPHUCFPUBGIVHOV -s 203.0.113.0/25 -m comment --comment \"demo/shop:https loadbalancer IP\" -j \
         KUBE-EXT-6RPHUCFPUBGIVHOV\nCOMMIT\n",
        &["demo/shop:https (TCP): source range 203.0.113.0/25 is missing"],
    ),
    (
        "*filter\n-F KUBE-PROXY-FIREWALL\nCOMMIT\n",
        &["demo/shop:https (TCP): all sources are allowed instead of the source ranges"],
    ),
    ("*filter\n-F KUBE-SERVICES\nCOMMIT\n", &["demo/empty:dns (UDP): nothing is programmed"]),
    (
        "*nat\n-I KUBE-SEP-6IU6CSKRWDLZL5LZ -j RETURN\nCOMMIT\n",
        &["demo/web:http (TCP): endpoint 10.180.0.11:8080 is missing in the cluster list"],
    ),
    (
        "*nat\n-F KUBE-NODEPORTS\nCOMMIT\n",
        &[
            "demo/edge:api (TCP): node port 30443 is not programmed",
            "demo/shop:https (TCP): node port 30555 is not programmed",
        ],
    ),
];

#[test]
fn damage_is_reported_in_terms_of_services() {
    for variant in VARIANTS {
        in_namespace(|| {
            let mut iptables = driven(programs(variant), settings(Family::Ipv4));
            iptables.apply(&ipv4()).unwrap();
            iptables.resync().unwrap();
            for (damage, expected) in DAMAGE {
                apply(&programs(variant), damage);
                let observed = read(&programs(variant), Family::Ipv4).unwrap().unwrap();
                let differences = texts(&observed, &table(&ipv4()));
                assert_eq!(differences, expected, "{variant:?}: {damage}");
                iptables.resync().unwrap();
                let observed = read(&programs(variant), Family::Ipv4).unwrap().unwrap();
                assert_eq!(texts(&observed, &table(&ipv4())), [""; 0]);
            }
        });
    }
}

#[test]
fn what_kube_proxy_wrote_is_read_without_an_agent() {
    let old =
        |port: &str, number, places: &[&str]| put("old", port, cluster_ip("10.96.0.99", number, places));
    let mut http = old("http", 80, &["10.244.1.11:8080"]);
    let mut forwarding = (**http.new.as_ref().unwrap()).clone();
    forwarding.frontends = [&forwarding.frontends[..], &[Frontend::NodePort(30099)]].concat().into();
    http.new = Some(forwarding.into());
    let wanted = table(&[in_use(), vec![http, old("metrics", 9, &[])]].concat());
    for variant in VARIANTS {
        in_namespace(|| {
            assert_eq!(read(&programs(variant), Family::Ipv4).unwrap(), None, "nothing is there");
            apply(&programs(variant), KUBE_PROXY);
            let observed = read(&programs(variant), Family::Ipv4).unwrap().unwrap();
            assert_eq!(texts(&observed, &wanted), [""; 0], "{variant:?}");
            let of_ours = texts(&observed, &table(&in_use()));
            assert_eq!(
                of_ours,
                ["demo/old:http (TCP): extra Service port", "demo/old:metrics (TCP): extra Service port"]
            );
            assert_eq!(read(&programs_of(Family::Ipv6, variant), Family::Ipv6).unwrap(), None);
        });
    }
}

#[test]
fn counters_show_which_endpoint_got_a_connection() {
    for variant in VARIANTS {
        let world = world();
        let node = world.node().namespace();
        let observe = || {
            let observed = read(&programs(variant), Family::Ipv4).unwrap().unwrap();
            let tcp = |port: &&ObservedPort| port.protocol == Protocol::Tcp;
            let port = observed.ports.iter().find(tcp).unwrap().clone();
            let ObservedEndpoints::Lists { cluster: Fact::Known(cluster), .. } = port.endpoints else {
                panic!("{port:?}")
            };
            let packets: Vec<u64> =
                cluster.iter().map(|endpoint| endpoint.counters.unwrap().connections).collect();
            (port.frontends[0].counters.unwrap(), packets)
        };
        node.run(|| {
            let mut iptables = data_plane(programs(variant));
            iptables.apply(&in_use()).unwrap();
            iptables.resync().unwrap();
            let (frontend, endpoints) = observe();
            assert_eq!((frontend.connections, endpoints), (0, vec![0; 3]), "{variant:?}");
        })
        .unwrap();
        let connect = |from: &Namespace| from.run(|| TcpStream::connect(IN_USE).unwrap()).unwrap();
        let connections = [connect(node), connect(world.pods()[0].namespace()), connect(node)];
        let (frontend, endpoints) = node.run(observe).unwrap();
        assert_eq!(frontend.connections, 3, "{variant:?}: the first packet of each connection");
        assert_eq!(endpoints.iter().sum::<u64>(), 3, "{variant:?}: {endpoints:?}");
        drop(connections);
    }
}

/// The front end of nftables leaves out a table with rules that iptables does not have.
#[test]
fn a_table_that_iptables_cannot_print_is_an_error() {
    in_namespace(|| {
        let mut iptables = driven(programs(Variant::Nft), settings(Family::Ipv4));
        iptables.apply(&ipv4()).unwrap();
        iptables.resync().unwrap();
        let rule = ["add", "rule", "ip", "nat", "KUBE-MARK-MASQ", "ct", "mark", "set", "3"];
        let nft = std::process::Command::new("nft").args(rule).status().unwrap();
        assert!(nft.success());
        let error = read(&programs(Variant::Nft), Family::Ipv4).unwrap_err();
        assert!(matches!(error, Error::Unreadable { .. }), "{error}");
        assert!(error.to_string().starts_with("iptables-nft-save cannot print the nat table"), "{error}");
    });
}

#[test]
fn the_families_are_read_apart() {
    for variant in VARIANTS {
        in_namespace(|| {
            let mut iptables = driven(programs_of(Family::Ipv6, variant), settings(Family::Ipv6));
            iptables.apply(&ipv6()).unwrap();
            iptables.resync().unwrap();
            let observed = read(&programs_of(Family::Ipv6, variant), Family::Ipv6).unwrap().unwrap();
            assert_eq!(texts(&observed, &table(&ipv6())), [""; 0]);
            assert_eq!(read(&programs(variant), Family::Ipv4).unwrap(), None);
        });
    }
}
