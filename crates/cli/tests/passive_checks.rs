//! Passive health checks in the modes of the kernel: an endpoint that refuses connections gets no new ones for a while. Needs
//! root, nft and iptables, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_testkit::{Family, Namespace, Pod, PortolanProcess, Probe, ProbeResult, Protocol, eventually};

use common::{BACKEND_PORT, Cluster, PATIENCE, at, backend, logged, objects, page, reaches};

const WEB: &str = "10.96.0.10:80";
const NODE_PORT: &str = "192.168.100.1:30080";
const ON: &str = "portolan: {passiveHealthChecks: true}\n";

/// Returns the outcomes of connections, enough to meet every one of two endpoints.
fn outcomes(from: &Namespace, to: SocketAddr) -> BTreeSet<Option<SocketAddr>> {
    let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_secs(5));
    let results = from.probe_many(&[probe; 24]).unwrap();
    assert!(
        results.iter().all(|result| result.backend().is_some() || *result == ProbeResult::Refused),
        "{results:?}"
    );
    results.iter().map(ProbeResult::backend).collect()
}

/// Connects until these are the outcomes of all connections. `None` is a refused one.
fn ends_with(from: &Namespace, to: &str, wanted: &[Option<SocketAddr>], proxy: &PortolanProcess) {
    let (wanted, mut seen) = (wanted.iter().copied().collect(), BTreeSet::new());
    let outcome = eventually(PATIENCE, "the outcomes of connections", || {
        seen = outcomes(from, at(to));
        seen == wanted
    });
    assert!(outcome.is_ok(), "{to}: {seen:?} in place of {wanted:?}: {}", proxy.output());
}

fn metric(cluster: &Cluster, name: &str) -> String {
    let page = page(cluster, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

/// Returns the endpoints of two pods that a Service has.
fn two_endpoints(cluster: &Cluster) -> ([&Pod; 2], [SocketAddr; 2]) {
    let pods = [&cluster.world.pods()[0], &cluster.world.pods()[1]];
    let service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    cluster.service(service, &pods);
    let v4 = IpAddr::from([10, 96, 0, 10]);
    (pods, pods.map(|pod| backend(pod, v4)))
}

fn an_endpoint_that_refuses_is_set_aside_and_comes_back(cluster: &Cluster, yaml: &str) {
    let (pods, [sound, failing]) = two_endpoints(cluster);
    let client = cluster.world.client().namespace();
    let mut proxy = cluster.proxy_with_arguments(yaml, &["--passive-health-checks"]);
    reaches(client, Protocol::Tcp, at(NODE_PORT), &pods);
    cluster.world.echo().close(pods[1].namespace(), Protocol::Tcp, failing).unwrap();
    ends_with(client, NODE_PORT, &[Some(sound)], &proxy);
    logged(&mut proxy, "an endpoint is set aside", 1);
    let output = proxy.output();
    let line = output.lines().find(|line| line.contains("an endpoint is set aside")).unwrap();
    for part in [&failing.to_string(), "default/web", "it refuses connections", "10s"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // The pause may be over by now. Then connections begin a trial, which fails.
    let is_aside = || {
        outcomes(client, at(NODE_PORT));
        metric(cluster, "portolan_passive_endpoints_aside") == "1"
    };
    eventually(PATIENCE, "an endpoint is set aside", is_aside).unwrap();
    // Pods connect to the same endpoints, and datagrams go on to both.
    ends_with(pods[0].namespace(), WEB, &[Some(sound)], &proxy);
    reaches(client, Protocol::Udp, at(NODE_PORT), &pods);

    cluster.world.echo().listen(pods[1].namespace(), Protocol::Tcp, failing).unwrap();
    logged(&mut proxy, "an endpoint is used again", 1);
    reaches(client, Protocol::Tcp, at(NODE_PORT), &pods);
    let is_back = || metric(cluster, "portolan_passive_endpoints_aside") == "0";
    eventually(PATIENCE, "no endpoint is set aside", is_back).unwrap();
    assert_ne!(metric(cluster, "portolan_passive_set_aside_total"), "0");
}

#[test]
fn in_the_nftables_mode() {
    an_endpoint_that_refuses_is_set_aside_and_comes_back(&Cluster::new(), "");
}

#[test]
fn in_the_iptables_mode() {
    an_endpoint_that_refuses_is_set_aside_and_comes_back(&Cluster::new(), "mode: iptables\n");
}

/// Left out without IPVS in the kernel.
#[test]
fn in_ipvs_mode() {
    let Some(cluster) = common::ipvs::cluster() else { return };
    an_endpoint_that_refuses_is_set_aside_and_comes_back(&cluster, "mode: ipvs\n");
}

#[test]
fn the_configuration_turns_them_on_and_off() {
    let cluster = Cluster::new();
    let (pods, [sound, failing]) = two_endpoints(&cluster);
    let client = cluster.world.client().namespace();
    let mut proxy = cluster.proxy();
    cluster.world.echo().close(pods[1].namespace(), Protocol::Tcp, failing).unwrap();
    let both = [None, Some(sound)];
    for _ in 0..3 {
        assert_eq!(outcomes(client, at(NODE_PORT)), both.into(), "they are off");
    }
    cluster.configure(ON);
    ends_with(client, NODE_PORT, &[Some(sound)], &proxy);
    cluster.configure("");
    ends_with(client, NODE_PORT, &both, &proxy);
    logged(&mut proxy, "an endpoint is used again", 1);
    // If all endpoints refuse, they stay: clients see at once that nothing serves.
    cluster.configure(ON);
    let first = SocketAddr::new(pods[0].address(Family::Ipv4), BACKEND_PORT);
    cluster.world.echo().close(pods[0].namespace(), Protocol::Tcp, first).unwrap();
    let all_aside = || {
        let seen = outcomes(client, at(NODE_PORT));
        assert_eq!(seen, [None].into());
        metric(&cluster, "portolan_passive_endpoints_aside") == "2"
    };
    eventually(PATIENCE, "both endpoints fail", all_aside).unwrap();
    // The first one that answers is used.
    cluster.world.echo().listen(pods[0].namespace(), Protocol::Tcp, first).unwrap();
    ends_with(client, NODE_PORT, &[Some(sound)], &proxy);
}

#[test]
fn a_kernel_that_reports_nothing_is_named() {
    let cluster = Cluster::new();
    let setting = "net/netfilter/nf_conntrack_events".to_owned();
    cluster.world.node().namespace().write_sysctls(&[(setting, "0")]).unwrap();
    let mut proxy = cluster.proxy_with_arguments("", &["--passive-health-checks"]);
    logged(&mut proxy, "sysctl -w net.netfilter.nf_conntrack_events=1", 1);
}

#[test]
fn a_mode_without_them_says_so() {
    let cluster = Cluster::new();
    let mut proxy = cluster.proxy_with_arguments("mode: userspace\n", &["--passive-health-checks"]);
    logged(&mut proxy, "portolan.passiveHealthChecks has no effect in this mode", 1);
}
