//! How rules of other programs are judged: what takes a packet before Services do, chains of kube-proxy, states of connections, and
//! what is not judged.

use std::net::IpAddr;

use portolan_firewall::{Ruleset, saved};
use portolan_model::Family;
use portolan_model::oracle::ModeDifferences;

use super::kernel::FIREWALL;
use super::world::{World, question};
use crate::facts::Facts;
use crate::obstacles::POLICIES_NOTE;
use crate::question::Flow;
use crate::report::{ObstacleKind, Outcome};
use crate::text::Style;

/// Returns the outcome of a packet of the pod `client`, and of each obstacle its kind and whether it is certain.
fn kinds(world: &World, saved: &str, to: &str) -> (Outcome, Vec<(ObstacleKind, bool)>) {
    let rules = Ruleset::new(saved::chains(Family::Ipv4, saved));
    let facts = Facts { rules: Some(&rules), ..world.facts() };
    let report = crate::answer(&question("pod/client", to), &facts).unwrap();
    let obstacles = report.firewall.unwrap().into_iter();
    (report.outcome, obstacles.map(|obstacle| (obstacle.kind, obstacle.certain)).collect())
}

#[test]
fn a_rule_that_takes_a_packet_before_services_do() {
    let (world, ipvs) = (World::new(), World::in_mode("ipvs", &ModeDifferences::ipvs()));
    let tproxy = World::in_mode("userspace", &ModeDifferences::userspace());
    let (not_tracked, redirected) = ((ObstacleKind::NotTracked, true), (ObstacleKind::Redirects, true));
    assert_eq!(kinds(&world, FIREWALL, "svc/zoned"), (Outcome::NotAService, vec![not_tracked]));
    assert_eq!(kinds(&World::redirecting(), FIREWALL, "svc/zoned").0, Outcome::NotAService);
    for world in [&ipvs, &tproxy] {
        // They do not need connection tracking.
        assert_eq!(kinds(world, FIREWALL, "svc/zoned").0, Outcome::Reachable);
    }
    let late = "*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j CT --notrack\nCOMMIT\n";
    assert_eq!(kinds(&world, late, "svc/web"), (Outcome::Reachable, vec![]), "the packet is tracked by then");
    let dnat = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j DNAT --to-destination 10.9.9.9\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n";
    let iptables = World::in_mode("iptables", &ModeDifferences::iptables(Vec::new()));
    assert_eq!(kinds(&iptables, dnat, "svc/web"), (Outcome::NotAService, vec![redirected]));
    let of_same_priority =
        "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j DNAT --to-destination 10.9.9.9\nCOMMIT\n";
    let unknown = vec![(ObstacleKind::Redirects, false)];
    assert_eq!(kinds(&world, of_same_priority, "svc/web"), (Outcome::Reachable, unknown));
    let tproxy = "*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j TPROXY --on-port 9\nCOMMIT\n";
    let uncertain = (ObstacleKind::Redirects, false);
    assert_eq!(kinds(&world, tproxy, "svc/web"), (Outcome::Reachable, vec![uncertain]));
}

/// Docker sets the policy of FORWARD to DROP. kube-proxy's chain accepts what is masqueraded only.
#[test]
fn in_iptables_mode_a_policy_drops_packets_of_pods() {
    let docker = "*filter\n:FORWARD DROP [0:0]\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n";
    let iptables = World::in_mode("iptables", &ModeDifferences::iptables(Vec::new()));
    let dropped = vec![(ObstacleKind::Drops, true)];
    assert_eq!(kinds(&iptables, docker, "svc/zoned"), (Outcome::Dropped, dropped));
    let rules = Ruleset::new(saved::chains(Family::Ipv4, docker));
    let facts = Facts { rules: Some(&rules), ..iptables.facts() };
    let outside = crate::answer(&question("outside", "svc/zoned"), &facts).unwrap();
    assert_eq!(
        (outside.outcome, outside.firewall),
        (Outcome::Reachable, Some(Vec::new())),
        "it is masqueraded"
    );
    let unknown = vec![(ObstacleKind::Drops, false)];
    assert_eq!(kinds(&World::new(), docker, "svc/zoned"), (Outcome::Reachable, unknown), "of an earlier run");
}

#[test]
fn in_iptables_mode_an_early_verdict_prevents_the_translation() {
    let early = |verdict: &str| {
        format!(
            "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n\
             -A PREROUTING -d 10.96.0.84/32 -j {verdict}\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
        )
    };
    let iptables = World::in_mode("iptables", &ModeDifferences::iptables(Vec::new()));
    for verdict in ["ACCEPT", "RETURN"] {
        let found = kinds(&iptables, &early(verdict), "svc/zoned");
        assert_eq!(found, (Outcome::NotAService, vec![(ObstacleKind::NotTranslated, true)]), "{verdict}");
    }
    assert_eq!(kinds(&iptables, &early("ACCEPT"), "svc/web"), (Outcome::Reachable, Vec::new()));
    assert_eq!(kinds(&World::new(), &early("ACCEPT"), "svc/zoned"), (Outcome::Reachable, Vec::new()));
}

#[test]
fn a_later_packet_of_a_flow_is_established() {
    let world = World::new();
    let ask = |saved: &str| {
        let rules = Ruleset::new(saved::chains(Family::Ipv4, saved));
        let mut later = question("pod/client", "svc/zoned");
        later.flow = Flow::Established { endpoint: Some("10.244.1.16:8080".parse().unwrap()) };
        let facts = Facts { rules: Some(&rules), ..world.facts() };
        crate::answer(&later, &facts).unwrap().outcome
    };
    let accept = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n";
    assert_eq!((ask(accept), kinds(&world, accept, "svc/zoned").0), (Outcome::Reachable, Outcome::Dropped));
    let new = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m conntrack --ctstate NEW -j DROP\nCOMMIT\n";
    assert_eq!((ask(new), kinds(&world, new, "svc/zoned").0), (Outcome::Reachable, Outcome::Dropped));
    let nat = "*nat\n:PREROUTING DROP [0:0]\nCOMMIT\n";
    assert_eq!(ask(nat), Outcome::Reachable, "only the first packet meets it");
}

#[test]
fn what_is_not_judged_is_said() {
    let world = World::new();
    let report = |saved: &str| {
        let rules = Ruleset::new(saved::chains(Family::Ipv4, saved));
        let facts = Facts { rules: Some(&rules), ..world.facts() };
        crate::answer(&question("pod/client", "svc/zoned"), &facts).unwrap()
    };
    let queue = report("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j NFQUEUE --queue-num 0\nCOMMIT\n");
    let text = queue.text(Style::Plain);
    assert!(
        text.contains("may decide about the packet in a way that is not known here: `FORWARD -j NFQUEUE"),
        "{text}"
    );
    assert_eq!(queue.outcome, Outcome::Reachable);
    assert!(
        queue.summary.ends_with(", unless a rule of another program stops or redirects it"),
        "{}",
        queue.summary
    );
    let calico = report(
        "*filter\n:FORWARD ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -j DROP\nCOMMIT\n",
    );
    let text = calico.text(Style::Plain);
    assert!(
        text.contains("no rule of another program affects the packet, besides network policies"),
        "{text}"
    );
    assert!(
        text.contains("the network policies of Calico were not evaluated; they may stop the packet"),
        "{text}"
    );
    assert!(calico.summary.ends_with(", unless a network policy of Calico stops it"), "{}", calico.summary);
    let proxy = report(
        "*filter\n:FORWARD ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -j DROP\nCOMMIT\n",
    );
    assert_eq!(proxy.firewall, Some(Vec::new()));
    assert!(!proxy.notes.iter().any(|note| note.code == POLICIES_NOTE), "Services know them");
}

/// A usual script for servers: no packet of a client elsewhere passes, but to SSH.
const SERVER: &str = "\
*filter
:INPUT DROP [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j ACCEPT
-A INPUT -m addrtype ! --dst-type LOCAL -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
";

#[test]
fn a_usual_script_certainly_drops_packets_of_clients_elsewhere() {
    let certain = vec![(ObstacleKind::Drops, true)];
    let redirect = World::redirecting();
    assert_eq!(kinds(&redirect, SERVER, "svc/zoned"), (Outcome::Dropped, certain.clone()));
    let (_, found) = kinds(&World::new(), SERVER, "192.0.2.1:80");
    assert_eq!(found, certain);
    assert_eq!(kinds(&World::new(), SERVER, "192.0.2.1:22").1, []);
    assert_eq!(kinds(&World::new(), SERVER, "svc/zoned"), (Outcome::Reachable, vec![]), "it is forwarded");
    let ipvs = World::in_mode("ipvs", &ModeDifferences::ipvs());
    let found = kinds(&ipvs, SERVER, "svc/zoned");
    assert_eq!(found, (Outcome::Dropped, certain), "the node has the address");
}

/// In the hook input, redirected packets have the relay's port, and are translated.
#[test]
fn the_relay_gets_redirected_packets_at_its_own_port() {
    let outcome = |world: &World, rule: &str| {
        kinds(world, &format!("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {rule}\nCOMMIT\n"), "svc/zoned").0
    };
    let (redirect, tproxy) =
        (World::redirecting(), World::in_mode("userspace", &ModeDifferences::userspace()));
    let of_both = |rule: &str| [outcome(&redirect, rule), outcome(&tproxy, rule)];
    let (dropped, reachable) = (Outcome::Dropped, Outcome::Reachable);
    assert_eq!(of_both("-p tcp -m tcp --dport 80 -j DROP"), [reachable, dropped]);
    assert_eq!(of_both("-p tcp -m tcp --dport 10261:10262 -j DROP"), [dropped, reachable]);
    assert_eq!(of_both("-d 192.0.2.1/32 -j DROP"), [dropped, reachable]);
    assert_eq!(of_both("-m conntrack --ctstate DNAT -j DROP"), [dropped, reachable]);
    let early = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j ACCEPT\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n";
    assert_eq!(kinds(&redirect, early, "svc/zoned").0, Outcome::NotAService);
}

#[test]
fn endpoints_see_clients_whose_address_a_service_keeps() {
    let mut tproxy = World::in_mode("userspace", &ModeDifferences::userspace());
    let keeps = r#"{"portolan.dev/userspace-keep-client-address":"true"}"#;
    let spec = r#"{"clusterIP":"10.96.0.84","externalIPs":["192.0.2.84"],"ports":[{"port":80}]}"#;
    let of_relay = |source: &str| {
        format!("*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -s {source} -d 10.244.1.16/32 -j DROP\nCOMMIT\n")
    };
    let found = |world: &World| {
        let outcome = |source| kinds(world, &of_relay(source), "svc/zoned").0;
        ["10.244.1.10/32", "192.0.2.1/32"].map(|source| outcome(source) == Outcome::Dropped)
    };
    assert_eq!(found(&tproxy), [false, true], "the client's address, and the relay's");
    tproxy.service("zoned", keeps, spec);
    assert_eq!(found(&tproxy), [true, false]);
}

/// The kernel routes a packet before it translates its destination, and again afterwards.
#[test]
fn output_sees_the_interface_of_the_route_to_the_destination() {
    let on_the_node = |mut world: World| {
        world
            .node
            .addresses
            .extend(["10.244.1.16", "10.244.1.18"].map(|address| address.parse::<IpAddr>().unwrap()));
        world
    };
    let ask = |world: &World, table: &str, rules: &str, to: &str| {
        let rules = Ruleset::new(saved::chains(Family::Ipv4, &format!("*{table}\n{rules}\nCOMMIT\n")));
        let facts = Facts { rules: Some(&rules), ..world.facts() };
        let report = crate::answer(&question("node", to), &facts).unwrap();
        (report.outcome, report.firewall.unwrap().len())
    };
    let loopback_only = ":OUTPUT DROP [0:0]\n-A OUTPUT -o lo -j ACCEPT";
    let sent_to_itself = ":POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o lo -j DROP";
    let tproxy = on_the_node(World::in_mode("userspace", &ModeDifferences::userspace()));
    for (world, to) in [
        (on_the_node(World::new()), "svc/signals"),
        (on_the_node(World::redirecting()), "svc/zoned"),
        (tproxy, "svc/zoned"),
    ] {
        assert_eq!(ask(&world, "filter", loopback_only, to), (Outcome::Dropped, 1));
        let device = ":OUTPUT ACCEPT [0:0]\n-A OUTPUT -o eth0 -j DROP";
        assert_eq!(ask(&world, "filter", device, to), (Outcome::Reachable, 1), "not known");
        assert_eq!(ask(&world, "mangle", sent_to_itself, to), (Outcome::Dropped, 1));
    }
    let world = World::new();
    let node_port = "192.0.2.1:30080";
    assert_eq!(ask(&world, "filter", loopback_only, node_port), (Outcome::Reachable, 0));
    assert_eq!(ask(&world, "mangle", sent_to_itself, node_port), (Outcome::Reachable, 0));
}
