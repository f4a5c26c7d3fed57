use portolan_model::observed::{Counters, Difference, Fact, ObservedEndpoints, ObservedPlace, ObservedPort};
use portolan_model::table::Entry;
use portolan_model::{Change, Frontend};

use super::*;
use crate::Variant;
use crate::planner::tests::example::{ipv4, ipv6};
use crate::planner::tests::{loaded, planner};

mod laws;
mod lines;
mod upstream;

pub(super) const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

pub(super) fn reading(family: Family, save: &str) -> Option<Reading> {
    Reading::of_save(family, save)
}

fn read(family: Family, save: &str) -> Observed {
    reading(family, save).expect("chains of this mode").observed
}

pub(super) fn texts(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

pub(super) fn entries(changes: &[Change]) -> Vec<Entry> {
    let entry = |change: &Change| Some((change.name.clone(), change.new.clone()?));
    changes.iter().filter_map(entry).collect()
}

/// Returns the save of a node with a Service of each kind.
fn save(family: Family, variant: Variant) -> String {
    let changes = if family == Family::Ipv4 { ipv4() } else { ipv6() };
    loaded(&mut planner(family, &changes)).save(family, variant)
}

/// Returns the differences after damage to the rules of the example, which are the same for both variants.
fn after(damage: impl Fn(String) -> String) -> Vec<String> {
    let [nft, legacy] = VARIANTS.map(|variant| {
        let before = save(Family::Ipv4, variant);
        let damaged = damage(before.clone());
        assert_ne!(before, damaged, "there is such a rule");
        texts(&read(Family::Ipv4, &damaged).difference(&entries(&ipv4())))
    });
    assert_eq!(nft, legacy);
    nft
}

/// Returns the differences if the lines that have all of these texts are missing.
fn without(parts: &[&str]) -> Vec<String> {
    let stays = |line: &&str| !parts.iter().all(|part| line.contains(part));
    after(|save| save.lines().filter(stays).collect::<Vec<_>>().join("\n"))
}

/// Returns the differences if a text is replaced by another one.
fn with(text: &str, other: &str) -> Vec<String> {
    after(|save| save.replace(text, other))
}

/// Returns the differences and the number of unknown rules if the nat table has another rule before all others.
fn with_first(rule: &str) -> (Vec<String>, usize) {
    let put = |save: &str| save.replacen("\n*nat\n", &format!("\n*nat\n[7:7] {rule}\n"), 1);
    let unknown = |variant| {
        let read = reading(Family::Ipv4, &put(&save(Family::Ipv4, variant))).expect("chains of this mode");
        read.unknown.count
    };
    let [nft, legacy] = VARIANTS.map(unknown);
    assert_eq!(nft, legacy);
    (after(|save| put(&save)), nft)
}

/// Returns the differences if the nat table has another rule after all others.
fn with_last(rule: &str) -> Vec<String> {
    after(|save| {
        let (before, nat) = save.split_once("*nat\n").expect("the table");
        format!("{before}*nat\n{}", nat.replacen("COMMIT", &format!("[7:7] {rule}\nCOMMIT"), 1))
    })
}

#[test]
fn what_was_planned_does_not_differ() {
    for (family, changes) in [(Family::Ipv4, ipv4()), (Family::Ipv6, ipv6())] {
        for variant in VARIANTS {
            let reading = reading(family, &save(family, variant)).unwrap();
            assert_eq!(texts(&reading.observed.difference(&entries(&changes))), [""; 0], "{variant:?}");
            assert_eq!(reading.unknown, UnknownRules::default());
            assert_eq!(reading.listeners, None);
            assert!(reading.observed.ports.iter().all(|port| port.name.is_some()));
        }
    }
}

#[test]
fn only_chains_of_this_mode_are_read() {
    let empty = loaded(&mut planner(Family::Ipv6, &[])).save(Family::Ipv6, Variant::Nft);
    assert_eq!(read(Family::Ipv6, &empty).ports, []);
    let ipvs = "*filter\n:KUBE-FORWARD - [0:0]\n:KUBE-NODE-PORT - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n\
                :KUBE-FIREWALL - [0:0]\nCOMMIT\n*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n\
                [0:0] -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n";
    assert_eq!(reading(Family::Ipv4, ipvs), None);
    assert_eq!(reading(Family::Ipv4, ""), None);
}

#[test]
fn counters_are_those_of_the_rules_that_match() {
    for variant in VARIANTS {
        let text = save(Family::Ipv4, variant);
        // Returns the sum of the counters of the lines that have all of these texts.
        let sum = |parts: &[&str]| {
            let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
            let packets = lines.map(|line| line[1..].split(':').next().unwrap().parse::<u64>().unwrap());
            Some(Counters::of_connections(packets.sum()))
        };
        let observed = read(Family::Ipv4, &text);
        let port = |name: &str| {
            let mut ports = observed.ports.iter();
            ports.find(|port| port.name.as_ref().is_some_and(|own| own.to_string() == name)).unwrap()
        };
        let observed_at = |name: &str, frontend: Frontend| {
            let place = ObservedPlace::Frontend(frontend);
            *port(name).frontends.iter().find(|found| found.place == place).unwrap()
        };
        let frontend = |name: &str, frontend: Frontend| observed_at(name, frontend).counters;
        let node_port = frontend("demo/edge:api", Frontend::NodePort(30443));
        assert_eq!(node_port, sum(&["-A KUBE-NODEPORTS ", "--dport 30443 "]), "also on loopback addresses");
        let ip = |text: &str| text.parse().unwrap();
        let cluster_ip = frontend("demo/web:http", Frontend::ClusterIp(ip("172.30.10.1"), 80));
        assert_eq!(cluster_ip, sum(&["-A KUBE-SERVICES ", "demo/web:http cluster IP"]));
        let empty = observed_at("demo/empty:dns", Frontend::ClusterIp(ip("172.30.10.4"), 53));
        let refused =
            sum(&["-A KUBE-SERVICES ", "demo/empty:dns has no endpoints"]).map(|sum| sum.connections);
        assert_eq!((empty.counters, empty.refused.no_endpoint), (None, refused));
        assert!(refused > Some(0));
        let balancer = observed_at("demo/shop:https", Frontend::LoadBalancerIp(ip("198.51.100.7"), 443));
        let dropped = sum(&["-A KUBE-PROXY-FIREWALL ", "demo/shop:https "]).map(|sum| sum.connections);
        assert_eq!((balancer.refused.source_range, balancer.refused.no_endpoint), (dropped, None));
        assert!(dropped > Some(0));
        let lists = |name: &str| match &port(name).endpoints {
            ObservedEndpoints::Lists { cluster: Fact::Known(cluster), local: Fact::Known(local) } => {
                (cluster.clone(), local.clone())
            }
            other => panic!("{other:?}"),
        };
        let (cluster, local) = lists("demo/edge:api");
        assert_eq!(cluster[0].counters, sum(&["-A KUBE-SEP-", "--to-destination 10.180.0.21:8443"]));
        assert_eq!((local[0].at, local[0].counters), (cluster[0].at, None), "they are those of both lists");
        let (cluster, _) = lists("demo/shop:https");
        let both = sum(&["-A KUBE-SEP-", "--to-destination 10.180.0.31:9443"]);
        assert_eq!(cluster[0].counters, both, "of former clients and of new ones");
    }
}

#[test]
fn rules_of_frontends_that_are_missing() {
    assert_eq!(
        without(&["-A KUBE-SERVICES ", "demo/web:http cluster IP"]),
        ["demo/web:http (TCP): cluster IP 172.30.10.1:80 is not programmed"]
    );
    let node_port = ["demo/edge:api (TCP): node port 30443 is not programmed"];
    assert_eq!(without(&["-A KUBE-NODEPORTS -p", "--dport 30443"]), node_port);
    assert_eq!(without(&["-A KUBE-NODEPORTS -d 127", "--dport 30443"]), [""; 0]);
    assert_eq!(without(&["-j KUBE-SVL-ERJE4GOKLZX5YEOG"]), node_port, "the way of packets from outside");
    assert_eq!(without(&["route LOCAL traffic for demo/edge:api"]), node_port, "the way from this node");
    assert_eq!(
        without(&["demo/empty:dns has no endpoints"]),
        ["demo/empty:dns (UDP): nothing is programmed"]
    );
    let edge = [
        "demo/edge:api (TCP): cluster IP 172.30.10.2:443 is not programmed",
        "demo/edge:api (TCP): node port 30443 is not programmed",
    ];
    let shop = [
        "demo/shop:https (TCP): cluster IP 172.30.10.3:443 is not programmed",
        "demo/shop:https (TCP): load-balancer IP 198.51.100.7:443 is not programmed",
        "demo/shop:https (TCP): node port 30555 is not programmed",
    ];
    let web = ["demo/web:http (TCP): cluster IP 172.30.10.1:80 is not programmed"];
    let all = [&edge[..], &shop, &web].concat();
    assert_eq!(without(&["-A OUTPUT ", "service portals\" -j KUBE-SERVICES", "-m comment"]).len(), 7);
    let nat_jump = "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
    assert_eq!(without(&[nat_jump]), all);
    assert_eq!(
        without(&["-A FORWARD ", "service portals\" -j KUBE-SERVICES"]),
        ["demo/empty:dns (UDP): nothing is programmed"]
    );
    let flush = |save: String| {
        let lines = save.lines().filter(|line| !line.contains("-A KUBE-SERVICES") || line.contains("has no"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let left: Vec<_> = all.iter().copied().filter(|text| !text.contains("node port")).collect();
    assert_eq!(after(flush), left);
}

#[test]
fn without_the_nat_table_only_refusals_are_left() {
    let gone = |save: String| {
        let (before, nat) = save.split_once("*nat\n").unwrap();
        format!("{before}{}", nat.split_once("COMMIT\n").unwrap().1)
    };
    let nothing = ["edge:api", "shop:https", "web:http"];
    assert_eq!(after(gone), nothing.map(|name| format!("demo/{name} (TCP): nothing is programmed")));
}

#[test]
fn endpoints_that_are_missing_or_others() {
    let missing = ["demo/web:http (TCP): endpoint 10.180.1.12:8080 is missing in the cluster list"];
    assert_eq!(without(&["-A KUBE-SVC-", "demo/web:http -> 10.180.1.12:8080"]), missing);
    assert_eq!(without(&["-j DNAT --to-destination 10.180.1.12:8080"]), missing);
    assert_eq!(
        with("--to-destination 10.180.1.12:8080", "--to-destination 10.180.1.99:8080"),
        [missing[0], "demo/web:http (TCP): extra endpoint 10.180.1.99:8080 in the cluster list"]
    );
    assert_eq!(
        without(&["-A KUBE-SVL-"]),
        ["demo/edge:api (TCP): endpoint 10.180.0.21:8443 is missing in the local list"]
    );
    assert_eq!(
        with_last("-A KUBE-SVC-XRY76EGRC3BSCIIJ -j KUBE-SEP-LOBYKJYHXWXZR562"),
        ["demo/web:http (TCP): extra endpoint 10.180.0.31:9443 in the cluster list"]
    );
    assert_eq!(without(&["-A KUBE-SVC-XRY76EGRC3BSCIIJ"]).len(), 3);
}

#[test]
fn session_affinity_needs_both_rules() {
    let none = ["demo/shop:https (TCP): session affinity is none instead of 600 s"];
    assert_eq!(without(&["demo/shop:https -> 10.180.0.31:9443", "--rcheck"]), none);
    assert_eq!(with("-m recent --set --name KUBE-SEP-2EBMXPG5VWM36224", "-m recent --set --name X"), none);
    let is_first = |save: String| save.replacen("--seconds 600", "--seconds 60", 1);
    assert_eq!(after(is_first), ["demo/shop:https (TCP): session affinity is 60 s instead of 600 s"]);
    assert_eq!(
        without(&["demo/shop:https -> 10.180.0.31:9443", "-m statistic"]),
        ["demo/shop:https (TCP): endpoint 10.180.0.31:9443 is missing in the cluster list"],
        "no new client gets it"
    );
}

#[test]
fn source_ranges_of_load_balancer_ips() {
    assert_eq!(
        without(&["-A KUBE-FW-", "-s 203.0.113.0/25"]),
        ["demo/shop:https (TCP): source range 203.0.113.0/25 is missing"]
    );
    assert_eq!(without(&["-A KUBE-FW-", "-s 198.51.100.7/32"]), [""; 0], "the mode adds it");
    let firewall = "KUBE-FW-6RPHUCFPUBGIVHOV";
    let external = "KUBE-EXT-6RPHUCFPUBGIVHOV";
    assert_eq!(
        with_last(&format!("-A {firewall} -s 192.0.2.0/24 -j {external}")),
        ["demo/shop:https (TCP): extra source range 192.0.2.0/24"]
    );
    let open = ["demo/shop:https (TCP): all sources are allowed instead of the source ranges"];
    assert_eq!(with_last(&format!("-A {firewall} -j {external}")), open);
    assert_eq!(without(&["-A KUBE-PROXY-FIREWALL "]), open);
    assert_eq!(without(&["-A INPUT ", "load balancer firewall"]), open);
    let past = format!("--dport 443 -j {firewall}");
    assert_eq!(with(&past, &format!("--dport 443 -j {external}")), open);
    assert_eq!(
        without(&["-A KUBE-FW-", "-j"]),
        ["demo/shop:https (TCP): load-balancer IP 198.51.100.7:443 is not programmed"],
        "no source is allowed"
    );
}

#[test]
fn what_the_table_does_not_have_is_extra() {
    let observed = read(Family::Ipv4, &save(Family::Ipv4, Variant::Nft));
    let table = entries(&ipv4()[1..]);
    assert_eq!(texts(&observed.difference(&table)), ["demo/web:http (TCP): extra Service port"]);
    let rule = |comment: &str| {
        format!(
            "-A KUBE-SERVICES -d 172.30.10.9/32 -p tcp -m comment --comment \"{comment}\" -m tcp --dport 80 -j \
             KUBE-SVC-XRY76EGRC3BSCIIJ"
        )
    };
    let extra = ["demo/web:http (TCP): extra cluster IP 172.30.10.9:80"];
    assert_eq!(with_last(&rule("demo/web:http cluster IP")), extra);
    assert_eq!(with_last(&rule("demo/other:http cluster IP")), extra, "the chain counts");
    assert_eq!(with_last(&rule("mine")), ["demo/web:http (TCP): extra frontend 172.30.10.9:80"]);
    assert_eq!(
        with("-A KUBE-SERVICES -d 172.30.10.1/32 -p tcp", "-A KUBE-SERVICES -d 172.30.10.1/32 -p udp"),
        [
            "no Service (UDP): extra cluster IP 172.30.10.1:80",
            "demo/web:http (TCP): cluster IP 172.30.10.1:80 is not programmed",
        ]
    );
}

#[test]
fn changed_comments_do_not_change_what_rules_do() {
    assert_eq!(with("demo/web:http cluster IP", "demo/other:http cluster IP"), [""; 0]);
    assert_eq!(with("demo/web:http", "mine"), [""; 0], "no comment has the name");
    assert_eq!(with("demo/shop:https", "it said \\\"demo/web:http\\\" \\\\"), [""; 0]);
    assert_eq!(with("demo/empty:dns has no endpoints", "mine"), [""; 0]);
    assert_eq!(
        with("demo/empty:dns has no endpoints", "demo/other:dns has no endpoints"),
        ["demo/empty:dns (UDP): nothing is programmed", "demo/other:dns (UDP): extra Service port"]
    );
}

#[test]
fn rules_that_are_not_understood() {
    let endpoint = "-A KUBE-SEP-6IU6CSKRWDLZL5LZ";
    let missing = "demo/web:http (TCP): endpoint 10.180.0.11:8080 is missing in the cluster list".to_owned();
    assert_eq!(with_first(&format!("{endpoint} -j RETURN")), (vec![missing], 1), "it ends the chain");
    assert_eq!(with_first(&format!("{endpoint} -s 192.0.2.1/32 -j RETURN")), (vec![], 1));
    assert_eq!(with_first(&format!("{endpoint} -m socket -j RETURN")), (vec![], 1), "an unknown match");
    assert_eq!(with_first(&format!("{endpoint} -j MINE")), (vec![], 1), "a chain that may return");
    assert_eq!(with_first("-A MINE -j RETURN"), (vec![], 0), "a chain of others");
    let (differences, unknown) = with_first("-A KUBE-SERVICES -g MINE");
    assert_eq!((differences.len(), unknown), (4, 1), "no address is matched: {differences:?}");
    assert_eq!(with_first("-A KUBE-SERVICES ! -d 172.30.10.9/32 -p tcp -m tcp --dport 80 -j DROP").1, 1);
    let text = save(Family::Ipv4, Variant::Nft).replace("*nat\n", "*nat\n[1:2] -A KUBE-SERVICES -j LOG \n");
    let first = reading(Family::Ipv4, &text).unwrap().unknown.first;
    assert_eq!(first[0].to_string(), "nat: -A KUBE-SERVICES -j LOG");
}

#[test]
fn a_table_that_the_program_cannot_print_is_noticed() {
    let mut chains = Chains::new(Family::Ipv4);
    chains.line("# Table `raw' is incompatible, use 'nft' tool.");
    assert_eq!(chains.unreadable, None);
    chains.line("# Table `nat' is incompatible, use 'nft' tool.");
    assert_eq!(chains.unreadable.as_deref(), Some("nat"));
}
