//! A killed proxy cannot hand over: connections break, new ones are refused at once, and the next start repairs everything.

use std::time::Duration;

use portolan_testkit::{Family, Namespace, Probe, ProbeResult, Protocol, Traffic, eventually, probe_many};

use super::{REDIRECT, TPROXY, USERSPACE, routes, start_load};
use crate::common::kernel::nft;
use crate::common::load::busy_services;
use crate::common::{Cluster, PATIENCE, at, differences};

/// The source port of the datagrams before and after: all are of one flow for each way.
const SOURCE_PORT: u16 = 40_000;

type Ways<'a> = [(&'a Namespace, &'static str); 4];

#[test]
fn after_a_kill_a_restart_in_any_mode_repairs_everything() {
    kill_and_restart(TPROXY);
}

#[test]
fn with_redirected_packets_after_a_kill_a_restart_repairs_everything_as_well() {
    kill_and_restart(REDIRECT);
}

fn kill_and_restart(capture: &str) {
    let cluster = Cluster::new();
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    busy_services(&cluster);
    let ways: Ways<'_> = [
        (client, "198.51.100.7:80"),
        (client, "192.168.100.1:30080"),
        (cluster.world.pods()[0].namespace(), "10.96.0.10:80"),
        (node, "[fd00:96::10]:80"),
    ];
    for next in [USERSPACE, "mode: nftables\n", "mode: iptables\n"] {
        let mut proxy = cluster.proxy_with_arguments(USERSPACE, &[capture]);
        all_work(&ways);
        // The load's connections go through the relay only when the former mode's rules are gone.
        let alone = eventually(PATIENCE, "this mode's rules alone", || !leads_to_endpoints(&cluster));
        assert!(alone.is_ok(), "{}", proxy.output());
        let load = start_load(&cluster, 3);
        proxy.kill().unwrap();
        all_are_refused(&ways);
        all_streams_break(load);
        assert!(has_traces(node, "nftables"), "{}", nft(node, "list ruleset"));
        let mut proxy = cluster.proxy_with_arguments(next, &[capture]);
        all_work(&ways);
        if next != USERSPACE {
            assert_in_force(&cluster, next);
            assert!(leads_to_endpoints(&cluster), "{}", nft(node, "list ruleset"));
        }
        assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    }
}

fn all_work(ways: &Ways<'_>) {
    for (from, to) in ways {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            // A datagram is lost if it arrives after the new rules and before the kernel has forgotten the flow's destination.
            // The next one is not.
            let probe = Probe::new(protocol, at(to)).timeout(Duration::from_secs(1));
            let probe = if protocol == Protocol::Udp { probe.from_port(SOURCE_PORT) } else { probe };
            let reached = || matches!(probe_many(&[(*from, probe)]).unwrap()[..], [ProbeResult::Reached(_)]);
            eventually(PATIENCE, &format!("{protocol} to {to}"), reached).unwrap();
        }
    }
}

fn all_are_refused(ways: &Ways<'_>) {
    for (from, to) in ways {
        let probe = Probe::new(Protocol::Tcp, at(to)).timeout(PATIENCE);
        let result = &probe_many(&[(*from, probe)]).unwrap()[0];
        assert!(matches!(result, ProbeResult::Refused), "{to}: {result:?}");
    }
}

fn all_streams_break(load: Vec<(&'static str, Traffic)>) {
    for (_, traffic) in &load {
        traffic.wind_down();
    }
    for (name, traffic) in load {
        let report = traffic.stop().unwrap();
        assert_eq!(report.streams_broken, report.streams, "{name}: {report}");
    }
}

/// Returns true if rules of the mode nftables or iptables lead to an endpoint, and not to the relay.
fn leads_to_endpoints(cluster: &Cluster) -> bool {
    let node = cluster.world.node().namespace();
    let translations = ["iptables-nft-save", "ip6tables-nft-save"]
        .map(|program| node.output(program, &["-t", "nat"]).unwrap())
        .concat();
    let is_endpoint = |address: &str| translations.contains(&format!("--to-destination {address}"));
    let mut pods = cluster.all_pods().into_iter();
    has_table(node, "portolan")
        || pods.any(|pod| {
            let (ipv4, ipv6) = (pod.address(Family::Ipv4), pod.address(Family::Ipv6));
            is_endpoint(&format!("{ipv4}:")) || is_endpoint(&format!("[{ipv6}]:"))
        })
}

/// Waits until the kernel has what the objects ask for in this mode, and nothing of a relay.
fn assert_in_force(cluster: &Cluster, mode: &str) {
    let node = cluster.world.node().namespace();
    let mut plan = None;
    let outcome = eventually(PATIENCE, "no trace of a relay", || {
        plan = Some(differences(cluster));
        plan.as_ref().is_some_and(|plan| plan.status.code() == Some(0)) && !has_traces(node, mode)
    });
    assert!(outcome.is_ok(), "{mode} {plan:?} {}", nft(node, "list ruleset"));
}

/// Returns true if the node has something that another mode than `mode` has written for a relay.
fn has_traces(node: &Namespace, mode: &str) -> bool {
    let ruleset = nft(node, "list ruleset");
    // The iptables mode has these chains, too. The plan compares their rules.
    let has_chains = !mode.contains("iptables") && ruleset.contains("KUBE-S");
    routes(node) > 0 || ruleset.contains("portolan-") || has_chains
}

fn has_table(node: &Namespace, name: &str) -> bool {
    nft(node, "list tables").lines().any(|table| table.ends_with(&format!(" {name}")))
}
