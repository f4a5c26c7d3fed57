//! The userspace mode end to end: Services work, modes change under load, and restarts hand over to the kernel. Needs
//! root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;
#[path = "userspace/killed.rs"]
mod killed;
#[path = "userspace/soak.rs"]
mod soak;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;

use portolan_testkit::{
    Family, Namespace, PortolanProcess, Probe, ProbeResult, Protocol, Traffic, TrafficPlan, eventually,
    probe_many,
};
use serde_json::{Value, json};

use common::kernel::nft;
use common::load::{self, assert_lossless_but_answers, busy_services};
use common::{COMPLETE, Cluster, PATIENCE, at, logged, objects, page, proxy_with_capabilities, reaches};

const USERSPACE: &str = "mode: userspace\n";
/// The two ways of capturing packets for the relay.
const TPROXY: &str = "--userspace-capture=tproxy";
const REDIRECT: &str = "--userspace-capture=redirect";
const ENDED: &str = "the relay's last connection has ended";
/// If it is `1`, tests with a bridge fail where packets on bridges cannot pass the rules of the IP layer.
const BRIDGE_MUST_RUN: &str = "PORTOLAN_TEST_BRIDGE";

fn metric(cluster: &Cluster, name: &str) -> u64 {
    let page = page(cluster, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name}")).trim().parse().unwrap()
}

/// Returns the number of routing rules for the relay, of both families.
fn routes(node: &Namespace) -> usize {
    ["-4", "-6"]
        .map(|family| node.output("ip", &[family, "rule"]).unwrap().matches("28783").count())
        .iter()
        .sum()
}

/// How many replies to datagrams one load may lose: each of its three flows one per change of the mode, of which there are
/// at most three. If a client sends its next datagram before the reply arrives, the new mode's conntrack entry of the flow
/// stands in the way of a reply of the relay.
const ANSWERS_LOST: u64 = 9;

/// Returns the ruleset if it has rules of this program, else an empty text. Empty tables of iptables and kubelet's
/// chain are ignored.
fn ours(node: &Namespace) -> String {
    let all = nft(node, "list ruleset");
    if all.contains("KUBE-S") || all.contains("portolan") { all } else { String::new() }
}

/// Starts load from a pod, the node and outside, with `streams` long connections each.
fn start_load(cluster: &Cluster, streams: usize) -> Vec<(&'static str, Traffic)> {
    let (pod, node) = (cluster.world.pods()[0].namespace(), cluster.world.node().namespace());
    let client = cluster.world.client().namespace();
    let ways: [(&str, &Namespace, &str); 5] = [
        ("pod to cluster IP", pod, "10.96.0.10:80"),
        ("node to cluster IP, IPv6", node, "[fd00:96::10]:80"),
        ("client to node port", client, "192.168.100.1:30080"),
        ("client to load balancer", client, "198.51.100.7:80"),
        ("client to load balancer, IPv6", client, "[2001:db8:100::7]:80"),
    ];
    let plan = |to| TrafficPlan { streams, ..load::plan(to) };
    ways.map(|(name, from, to)| (name, Traffic::start(from, plan(to)).unwrap())).into()
}

#[test]
fn services_work_and_what_the_relay_does_is_counted() {
    serve_and_count(TPROXY, "tproxy");
}

#[test]
fn with_redirected_packets_services_work_as_well() {
    serve_and_count(REDIRECT, "redirect");
}

#[test]
#[ignore = "make vm-test runs it in a guest without nft_tproxy"]
fn packets_are_redirected_where_the_kernel_has_no_tproxy() {
    let output = serve_and_count("--userspace-capture=auto", "redirect");
    assert!(output.contains("tproxy cannot be used"), "{output}");
}

fn start_with(cluster: &Cluster, capabilities: &str, capture: &str) -> PortolanProcess {
    proxy_with_capabilities(cluster, capabilities, USERSPACE, &[capture])
}

#[test]
fn the_capabilities_of_the_manifests_are_enough_to_answer_from_low_ports() {
    let cluster = Cluster::new();
    let (pods, client) = (cluster.world.pods(), cluster.world.client().namespace());
    busy_services(&cluster);
    let all = cluster.all_pods();
    let proxy = start_with(&cluster, "+net_admin,+net_bind_service", TPROXY);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(pods[0].namespace(), protocol, at("10.96.0.10:80"), &all);
        reaches(client, protocol, at("[2001:db8:100::7]:80"), &all);
    }
    assert!(!proxy.output().contains("CAP_NET_BIND_SERVICE"), "{}", proxy.output());
}

#[test]
fn without_the_capability_for_low_ports_packets_are_redirected() {
    let cluster = Cluster::new();
    let client = cluster.world.client().namespace();
    busy_services(&cluster);
    let all = cluster.all_pods();
    let proxy = start_with(&cluster, "+net_admin,+net_raw", "--userspace-capture=auto");
    let output = proxy.output();
    assert!(output.contains("tproxy cannot be used") && output.contains("CAP_NET_BIND_SERVICE"), "{output}");
    reaches(client, Protocol::Udp, at("198.51.100.7:80"), &all);
}

#[test]
fn without_the_capability_for_low_ports_the_start_says_which_answers_are_lost() {
    let cluster = Cluster::new();
    let client = cluster.world.client().namespace();
    busy_services(&cluster);
    let all = cluster.all_pods();
    let proxy = start_with(&cluster, "+net_admin", TPROXY);
    assert!(proxy.output().contains("CAP_NET_BIND_SERVICE"), "{}", proxy.output());
    reaches(client, Protocol::Tcp, at("198.51.100.7:80"), &all);
    // Of higher ports only.
    reaches(client, Protocol::Udp, at("192.168.100.1:30080"), &all);
    let probe = Probe::new(Protocol::Udp, at("198.51.100.7:80")).expecting_silence();
    assert_eq!(client.probe(probe).unwrap(), ProbeResult::TimedOut);
    assert!(proxy.output().contains("no answer can leave from this UDP port"), "{}", proxy.output());
}

/// Returns a cluster with a further pod on a bridge of the node, as with a CNI plug-in that uses a bridge. Packets on bridges
/// pass the rules of the IP layer. Returns `None` if the kernel cannot do that; if `PORTOLAN_TEST_BRIDGE` is `1`, the test fails
/// instead.
fn with_a_bridge() -> Option<(Cluster, Namespace)> {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let has_setting = || std::path::Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
    if !node.run(has_setting).unwrap() {
        let must_run = std::env::var(BRIDGE_MUST_RUN).is_ok_and(|value| value == "1");
        assert!(
            !must_run,
            "the kernel module br_netfilter is not loaded; {BRIDGE_MUST_RUN}=0 leaves this test out"
        );
        eprintln!("left out: the kernel module br_netfilter is not loaded");
        return None;
    }
    pass_rules_on_bridges(node, "1");
    let pod = Namespace::new("bridged").unwrap();
    let path = pod.path();
    let links = format!(
        "link add cni0 type bridge\nlink set cni0 up\naddr add 10.244.9.1/24 dev cni0\n\
         link add bridged type veth peer name eth0 netns {path}\nlink set bridged master cni0 up"
    );
    node.ip(&links).unwrap();
    let own =
        "link set lo up\nlink set eth0 up\naddr add 10.244.9.2/24 dev eth0\nroute add default via 10.244.9.1";
    pod.ip(own).unwrap();
    busy_services(&cluster);
    Some((cluster, pod))
}

fn pass_rules_on_bridges(node: &Namespace, value: &str) {
    node.write_sysctls(&[("net/bridge/bridge-nf-call-iptables".to_owned(), value)]).unwrap();
}

#[test]
fn packets_of_pods_on_a_bridge_are_redirected() {
    let Some((cluster, pod)) = with_a_bridge() else { return };
    let proxy = cluster.proxy_with_arguments(USERSPACE, &["--userspace-capture=auto"]);
    let output = proxy.output();
    assert!(output.contains("tproxy cannot be used: net.bridge.bridge-nf-call-iptables is 1"), "{output}");
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(&pod, protocol, at("10.96.0.10:80"), &cluster.all_pods());
    }
}

#[test]
fn packets_of_pods_on_a_bridge_that_tproxy_loses_are_named() {
    let Some((cluster, pod)) = with_a_bridge() else { return };
    let proxy = cluster.proxy_with_arguments(USERSPACE, &[TPROXY]);
    assert!(proxy.output().contains("packets of pods on a bridge do not arrive"), "{}", proxy.output());
    let probe = Probe::new(Protocol::Tcp, at("10.96.0.10:80")).expecting_silence();
    assert_eq!(pod.probe(probe).unwrap(), ProbeResult::TimedOut);
    pass_rules_on_bridges(cluster.world.node().namespace(), "0");
    reaches(&pod, Protocol::Tcp, at("10.96.0.10:80"), &cluster.all_pods());
}

#[test]
fn where_the_mark_counts_in_the_check_of_sources_packets_are_redirected() {
    let cluster = Cluster::new();
    let (pods, client) = (cluster.world.pods(), cluster.world.client().namespace());
    busy_services(&cluster);
    let node = cluster.world.node().namespace();
    node.write_sysctls(&[("net/ipv4/conf/all/src_valid_mark".to_owned(), "1")]).unwrap();
    let all = cluster.all_pods();
    let proxy = cluster.proxy_with_arguments(USERSPACE, &["--userspace-capture=auto"]);
    let output = proxy.output();
    assert!(output.contains("tproxy cannot be used: net.ipv4.conf.all.src_valid_mark is 1"), "{output}");
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(client, protocol, at("198.51.100.7:80"), &all);
        reaches(pods[0].namespace(), protocol, at("10.96.0.10:80"), &all);
    }
}

/// Returns the findings of `portolan doctor` on a node: code, severity and mend.
fn found(node: &Namespace) -> Vec<[String; 3]> {
    let mut command = node.command(env!("CARGO_BIN_EXE_portolan"));
    command.args(["doctor", "-o", "json"]).stdout(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|found| ["code", "severity", "mend"].map(|key| found[key].as_str().unwrap().to_owned()))
        .collect()
}

/// Drops what arrives for the node and what it forwards, except for packets of known connections.
const DROPS: &str = "table inet fw {
    chain input { type filter hook input priority 0; policy drop; iif lo accept; ct state established accept; }
    chain forward { type filter hook forward priority 0; policy drop; ct state established accept; }
}";

#[test]
fn doctor_names_a_firewall_that_drops_what_is_captured_and_its_command_helps() {
    for (capture, accepts) in [(TPROXY, "meta mark and 0x1000 == 0x1000"), (REDIRECT, "ct status dnat")] {
        let cluster = Cluster::new();
        let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
        busy_services(&cluster);
        let all = cluster.all_pods();
        let _proxy = cluster.proxy_with_arguments(USERSPACE, &[capture]);
        node.output_with_input("nft", &["-f", "-"], DROPS).unwrap();
        let to = at("198.51.100.7:80");
        let probe = Probe::new(Protocol::Tcp, to).expecting_silence();
        assert_eq!(client.probe(probe).unwrap(), ProbeResult::TimedOut);
        let dropped: Vec<_> =
            found(node).into_iter().filter(|[code, ..]| code.ends_with("-dropped")).collect();
        let mend = format!("nft insert rule inet fw input {accepts} accept");
        let [input, forward] = dropped.as_slice() else { panic!("{dropped:?}") };
        assert_eq!(input, &["input-dropped".to_owned(), "error".to_owned(), mend.clone()]);
        // Other nodes may send packets to endpoints here.
        assert_eq!((forward[0].as_str(), forward[1].as_str()), ("forward-dropped", "warning"));
        node.output("sh", &["-ec", &mend]).unwrap();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            reaches(client, protocol, to, &all);
        }
    }
}

#[test]
fn a_rule_of_policy_routing_that_is_deleted_comes_back_at_once_and_counts_as_drift() {
    let cluster = Cluster::new();
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    busy_services(&cluster);
    let proxy = cluster.proxy_with_arguments(USERSPACE, &[TPROXY]);
    let repairs = || metric(&cluster, "portolan_dataplane_drift_repairs_total");
    for (family, count) in [("-4", 1), ("-6", 2)] {
        node.output("ip", &[family, "rule", "del", "priority", "500"]).unwrap();
        let is_repaired = || routes(node) == 2 && repairs() == count;
        eventually(PATIENCE, "the rule of policy routing", is_repaired)
            .unwrap_or_else(|error| panic!("{error}: {}", proxy.output()));
    }
    reaches(client, Protocol::Tcp, at("198.51.100.7:80"), &cluster.all_pods());
}

/// Checks Services and metrics with one way of capturing. Returns the proxy's log.
fn serve_and_count(capture: &str, way: &str) -> String {
    let cluster = Cluster::new();
    let (pods, client) = (cluster.world.pods(), cluster.world.client().namespace());
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with_arguments(USERSPACE, &[capture]);
    assert_eq!(page(&cluster, "/proxyMode"), "userspace");
    let node = cluster.world.node().namespace();
    assert_eq!(node.output("sysctl", &["-n", "net.ipv4.tcp_tw_reuse"]).unwrap().trim(), "1");
    if way == "tproxy" {
        // systemd-networkd removes rules of other programs, but none of the kernel.
        let rules = ["-4", "-6"].map(|family| node.output("ip", &[family, "-d", "rule"]).unwrap()).concat();
        assert_eq!(rules.matches("lookup 28783 proto kernel").count(), 2, "{rules}");
    }
    assert!(proxy.output().contains(&format!("capture=\"{way}\"")), "{}", proxy.output());
    let all = cluster.all_pods();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(pods[0].namespace(), protocol, at("10.96.0.10:80"), &all);
        reaches(client, protocol, at("192.168.100.1:30080"), &all);
        reaches(client, protocol, at("[2001:db8:100::7]:80"), &all);
        reaches(cluster.world.node().namespace(), protocol, at("[fd00:96::10]:80"), &all);
    }
    assert!(metric(&cluster, "portolan_relay_connections_total") >= 96);
    assert!(metric(&cluster, "portolan_relay_udp_flows_total") >= 1);
    assert_eq!(metric(&cluster, "portolan_relay_failed_connections_total"), 0);
    assert!(metric(&cluster, "portolan_relay_bytes_to_clients_total") > 0);
    assert_eq!(metric(&cluster, "portolan_relay_failing_endpoints"), 0);
    assert_eq!(metric(&cluster, "portolan_relay_redirected"), u64::from(way == "redirect"));
    // One backend that refuses is not a failure, because the relay tries the next one.
    let mut slice = objects::slice("v4", &all, &[("tcp".to_owned(), Family::Ipv4)]);
    slice["endpoints"].as_array_mut().unwrap().push(json!({"addresses": ["192.168.100.1"]}));
    cluster.apply(slice);
    let failed = || metric(&cluster, "portolan_relay_failed_attempts_total");
    let tried = eventually(PATIENCE, "an attempt at the dead endpoint", || {
        reaches(pods[0].namespace(), Protocol::Tcp, at("10.96.0.10:80"), &all);
        failed() > 0
    });
    assert!(tried.is_ok(), "{}", proxy.output());
    assert!(metric(&cluster, "portolan_relay_failing_endpoints") > 0);
    // SCTP is refused. The log and an Event report it once.
    let mut sctp = objects::cluster_ip("signals", "10.96.0.77");
    sctp["spec"]["ports"] = json!([{"name": "sctp", "port": 80, "protocol": "SCTP"}]);
    cluster.service(sctp, &[&pods[0]]);
    logged(&mut proxy, "this Service port cannot be programmed", 1);
    let event = cluster.event("ServicePortNotProgrammed");
    assert_eq!(event["regarding"]["name"], "signals");
    assert!(event["note"].as_str().unwrap().contains("SCTP"), "{event}");
    cluster.service(objects::cluster_ip("late", "10.96.0.78"), &[&pods[1]]);
    reaches(client, Protocol::Tcp, at("10.96.0.78:80"), &[&pods[1]]);
    let reports = proxy.output().matches("this Service port cannot be programmed").count();
    assert_eq!(reports, 1, "{}", proxy.output());
    proxy.output()
}

/// Returns each endpoint with the source address that it sees.
fn seen(from: &Namespace, protocol: Protocol, to: &str) -> BTreeSet<(IpAddr, IpAddr)> {
    let probe = Probe::new(protocol, at(to));
    // A datagram that the machine loses on its own is repeated only if the timeout is the usual one. The kernel repeats SYNs.
    let probe = if protocol == Protocol::Tcp { probe.timeout(PATIENCE) } else { probe };
    let flows = [(from, probe); 12];
    let reached = |result| match result {
        ProbeResult::Reached(reached) => (reached.backend.ip(), reached.seen_source.ip()),
        other => panic!("{to}: {other:?}"),
    };
    probe_many(&flows).unwrap().into_iter().map(reached).collect()
}

#[test]
fn on_request_endpoints_see_clients_if_replies_return_through_the_node() {
    const KEEP: &str = "portolan.dev/userspace-keep-client-address";
    let cluster = Cluster::new();
    let world = &cluster.world;
    let (here, there) = (&world.pods()[..2], &world.remote_pods()[0]);
    let client = world.client().namespace();
    let all = [&here[0], &here[1], there];
    let own = world.node().all_addresses();
    let _proxy = cluster.proxy_with(USERSPACE);
    for (name, address, port, ingress, family) in [
        ("v4", "10.96.0.10", 30080, "198.51.100.7", Family::Ipv4),
        ("v6", "fd00:96::10", 30081, "2001:db8:100::7", Family::Ipv6),
    ] {
        let frontend = |address: &str| match family {
            Family::Ipv4 => format!("{address}:80"),
            Family::Ipv6 => format!("[{address}]:80"),
        };
        let (internal, external) = (frontend(address), frontend(ingress));
        let mut service = objects::load_balancer(name, address, port, ingress);
        cluster.service(service.clone(), &all);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            reaches(client, protocol, at(&external), &all);
            let sources = seen(here[0].namespace(), protocol, &internal);
            assert!(sources.iter().all(|(_, source)| own.contains(source)), "{sources:?}");
        }
        service["metadata"]["annotations"] = json!({ KEEP: "true" });
        cluster.service(service, &all);
        let pod = here[0].address(family);
        let kept =
            || seen(here[0].namespace(), Protocol::Tcp, &internal).iter().any(|(_, source)| *source == pod);
        eventually(PATIENCE, "the annotation counts", kept).unwrap();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            // An endpoint that reaches itself sees the node, because it would not reply to itself.
            let sources = seen(here[0].namespace(), protocol, &internal);
            assert_eq!(sources.len(), all.len(), "{sources:?}");
            for (backend, source) in sources {
                assert!(
                    if backend == pod { own.contains(&source) } else { source == pod },
                    "{backend} {source}"
                );
            }
            // An endpoint on another node would reply directly to the client and bypass this node, so it sees the
            // node.
            let sources = seen(client, protocol, &external);
            assert_eq!(sources.len(), all.len(), "{sources:?}");
            for (backend, source) in sources {
                let is_node = own.contains(&source);
                assert_eq!(is_node, backend == there.address(family), "{protocol}: {backend} sees {source}");
            }
        }
    }
}

#[test]
fn modes_change_under_load_and_connections_of_the_relay_go_on() {
    change_modes_under_load(TPROXY);
}

#[test]
fn with_redirected_packets_modes_change_as_well() {
    change_modes_under_load(REDIRECT);
}

fn change_modes_under_load(capture: &str) {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with_arguments(USERSPACE, &[capture]);
    let load = start_load(&cluster, 3);
    for (round, mode) in ["nftables", "userspace", "iptables", "userspace"].into_iter().enumerate() {
        cluster.configure(&format!("mode: {mode}\n"));
        logged(&mut proxy, COMPLETE, 2 * (round + 1));
        assert_eq!(page(&cluster, "/proxyMode"), mode);
        let backend = &cluster.world.pods()[round % 2];
        let address = format!("10.96.3.{}", round + 1);
        cluster.service(objects::cluster_ip(&format!("new-{round}"), &address), &[backend]);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            reaches(cluster.world.client().namespace(), protocol, at(&format!("{address}:80")), &[backend]);
        }
    }
    let output = proxy.output();
    assert_lossless_but_answers(load, ANSWERS_LOST, &output);
    // Until a data plane of another mode takes over, the current one keeps the settings of its own mode.
    assert!(!output.contains("settings changed"), "{output}");
    // When their connections have ended, all traces of the relays are removed.
    cluster.configure("mode: nftables\n");
    logged(&mut proxy, ENDED, 1);
    let gone = eventually(PATIENCE, "no trace of a relay", || {
        routes(node) == 0
            && !["portolan-relay", "portolan-userspace", "KUBE-S"]
                .iter()
                .any(|table| nft(node, "list ruleset").contains(table))
    });
    assert!(gone.is_ok(), "{} {}", nft(node, "list ruleset"), proxy.output());
}

#[test]
fn a_restart_hands_over_to_the_kernel() {
    hand_over_to_the_kernel(TPROXY);
}

#[test]
fn with_redirected_packets_a_restart_hands_over_as_well() {
    hand_over_to_the_kernel(REDIRECT);
}

fn hand_over_to_the_kernel(capture: &str) {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with_arguments(USERSPACE, &[capture]);
    let load = start_load(&cluster, 0);
    let mut output = String::new();
    for _ in 0..3 {
        assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
        output += &proxy.output();
        // The proxy does not run here.
        reaches(
            cluster.world.client().namespace(),
            Protocol::Tcp,
            at("198.51.100.7:80"),
            &cluster.all_pods(),
        );
        proxy = cluster.proxy_with_arguments(USERSPACE, &[capture]);
    }
    assert_lossless_but_answers(load, ANSWERS_LOST, &(output + &proxy.output()));
    proxy.terminate(PATIENCE).unwrap();
    let mut proxy = cluster.proxy_with("");
    let gone = eventually(PATIENCE, "no routes to a relay", || routes(node) == 0);
    assert!(gone.is_ok(), "{}", proxy.output());
    proxy.terminate(PATIENCE).unwrap();
    drop(cluster.proxy_with_arguments(USERSPACE, &[capture]));
    let mut cleanup = cluster.run(&["proxy", "--cleanup"]);
    assert_eq!(cleanup.wait_for_end(PATIENCE).unwrap().code(), Some(0), "{}", cleanup.output());
    assert_eq!((routes(node), ours(node)), (0, String::new()));
}
