//! The way back to kube-proxy, by the commands of `docs/migrate.md`, under load.

use std::time::Duration;

use portolan_testkit::{Namespace, PortolanProcess, Protocol, Traffic, eventually};

use crate::common::kernel::nft;
use crate::common::load::assert_lossless_but_answers;
use crate::common::migrate::{
    BACK, CHECK, CLEANUP, CONNECTIONS_ENDED, EDIT, GONE, HEALTHZ, LOGS, MODE, PERMISSIONS, REPLACED, STATUS,
    UNDO, all_commands, commands, looked_for, run,
};
use crate::common::{BINARY, COMPLETE, Cluster, PATIENCE, at, http, ipvs, load, logged, page, reaches};
use crate::{
    ended, iptables_rules, kube_proxy_table, pod_address, service, use_service, use_service_from,
    way_back_ipvs,
};

/// Returns what a kube-proxy in iptables mode writes over existing rules: all of its chains again, and no second
/// jump.
fn written_over(pod: &str) -> String {
    let is_jump = |line: &&str| line.starts_with("-A PREROUTING") || line.starts_with("-A OUTPUT");
    let is_there =
        |line: &&str| is_jump(line) || line.starts_with("-A FORWARD") || line.starts_with("-A INPUT");
    iptables_rules(pod).split_inclusive('\n').filter(|line| !is_there(line)).collect()
}

/// Writes the rules of kube-proxy in a mode, for the Service with this endpoint.
pub(crate) fn kube_proxy(node: &Namespace, mode: &str, pod: &str) {
    match mode {
        "nftables" => kube_proxy_table(node, pod),
        "ipvs" => ipvs::kube_proxy(node),
        _ => {
            node.output_with_input("iptables-nft-restore", &["--noflush"], &written_over(pod)).unwrap();
        }
    }
}

/// Does the same with another endpoint, as after a change.
fn change_kube_proxy(node: &Namespace, mode: &str, pod: &str) {
    match mode {
        "nftables" => {
            let rule = format!(
                "flush chain ip kube-proxy services\nadd rule ip kube-proxy services ip daddr 10.96.0.10 meta l4proto {{ \
                 tcp, udp }} th dport 80 dnat to {pod}:8080\n"
            );
            node.output_with_input("nft", &["-f", "-"], &rule).unwrap();
        }
        "ipvs" => way_back_ipvs::change_endpoint(node, pod),
        _ => kube_proxy(node, mode, pod),
    }
}

fn leads_back(from: &str, to: &str) {
    leads_back_in(&Cluster::new(), from, to);
}

/// Follows the section in a new cluster.
pub(crate) fn leads_back_in(cluster: &Cluster, from: &str, to: &str) {
    let node = cluster.world.node().namespace();
    service(cluster);
    let mut proxy = cluster.proxy_with(&yaml(from));
    let mut plan = load::plan("10.96.0.10:80");
    if from == "userspace" {
        // At a shorter interval, a flow may have several replies on their way when the mode changes; `connections_end` allows
        // for one.
        plan.udp_interval = Duration::from_millis(200);
    }
    let mut load = use_service(cluster, plan);
    let why = format!("{from} to {to}");
    let mut done = Vec::new();
    for command in commands(BACK) {
        done.push(command);
        if command.starts_with(EDIT) {
            cluster.configure(&yaml(to));
            in_force(&mut proxy, from, to);
        } else if command.starts_with(LOGS) && command.contains(CONNECTIONS_ENDED) {
            if waits_for_connections(from, to) {
                load = connections_end(cluster, &mut proxy, from, load, &why);
            }
        } else if command.starts_with(LOGS) {
            let text = looked_for(command);
            assert!(from == to || proxy.output().contains(text), "{command}: {}", proxy.output());
        } else if command == UNDO {
            assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
        } else if command == STATUS {
            // kube-proxy itself does not run in this test.
        } else if command.starts_with(GONE) && to != "nftables" {
            // These are rules of the running mode.
        } else if command.starts_with(CHECK) {
            // kube-proxy may be healthy and ready long before it has programmed anything.
            if to == "nftables" {
                assert!(!run(node, command).0, "{why}: nothing of kube-proxy is there");
                refuses_to_clean(node, &why);
                let tables = nft(node, "list tables");
                assert!(tables.contains("table ip portolan"), "{why}: {tables}");
            }
            if to == "ipvs" {
                let before = way_back_ipvs::everything(node);
                refuses_to_clean(node, &why);
                assert_eq!(way_back_ipvs::everything(node), before, "{why}");
            }
            kube_proxy(node, to, &pod_address(&cluster.world));
            let (found, output) = run(node, command);
            assert!(found, "{why}: {output}");
        } else if command.starts_with(REPLACED) && to == "ipvs" {
            // The state before the replacement is tested with `refuses_to_clean`.
            assert!(run(node, command).0, "{why}: {:?}", run(node, command));
            way_back_ipvs::only_what_is_ours_goes(node);
        } else if command == HEALTHZ {
            let path = "/healthz";
            let healthy =
                || http::get(node, at("127.0.0.1:10256"), path).is_some_and(|answer| answer.status == 200);
            assert!(eventually(PATIENCE, command, healthy).is_ok(), "{}", proxy.output());
        } else if command == MODE {
            assert_eq!(page(cluster, "/proxyMode"), to);
        } else {
            let outcome = eventually(PATIENCE, command, || run(node, command).0);
            assert!(outcome.is_ok(), "{why}: {command}: {:?}", run(node, command));
        }
    }
    assert!(done.contains(&UNDO) && done.contains(&CLEANUP), "{done:?}");
    assert!(done.iter().any(|command| command.starts_with(CHECK)), "{done:?}");
    let tables = nft(node, "list tables");
    assert!(!tables.contains("portolan"), "{tables}");
    if from == "ipvs" && to != "ipvs" {
        way_back_ipvs::assert_nothing_is_left(node, &why);
    }
    assert_lossless_but_answers(load, 0, &why);
    // Only kube-proxy's rules are active.
    let other = &cluster.world.pods()[1];
    change_kube_proxy(node, to, &other.address(portolan_testkit::Family::Ipv4).to_string());
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[other]);
}

/// Returns a mode as a line of the configuration. In the IPVS mode, the kernel forgets connections early.
fn yaml(mode: &str) -> String {
    let ipvs = if mode == "ipvs" { way_back_ipvs::OPTIONS } else { "" };
    format!("mode: {mode}\n{ipvs}")
}

fn refuses_to_clean(node: &Namespace, why: &str) {
    let (cleaned, output) = run(node, CLEANUP);
    assert!(!cleaned && output.contains("kube-proxy has no rules here yet"), "{why}: {output}");
}

/// Returns true if a relay or virtual servers of the former mode drain for a while.
fn waits_for_connections(from: &str, to: &str) -> bool {
    from != to && ["userspace", "ipvs"].contains(&from)
}

/// Stops the load on the former mode, waits until that mode has drained, and returns another load.
fn connections_end(
    cluster: &Cluster,
    proxy: &mut PortolanProcess,
    from: &str,
    load: Vec<(&'static str, Traffic)>,
    why: &str,
) -> Vec<(&'static str, Traffic)> {
    // The load is IPv4. Connections of the other family have ended at once.
    let is_end = |line: &str| line.contains(CONNECTIONS_ENDED) && !line.contains("family=\"IPv6\"");
    assert!(!proxy.output().lines().any(is_end), "{}", proxy.output());
    let plan = load::plan("10.96.0.10:80");
    let is_ipvs = from == "ipvs";
    // Connections of the node itself may break if they start while the address of the IPVS mode still exists.
    let from_where = if is_ipvs { &["pod", "client"][..] } else { &["pod", "node", "client"] };
    let mut other = use_service_from(cluster, plan, from_where);
    // Each flow may lose the reply that was on its way from the relay when the mode changed.
    let answers = if is_ipvs { 0 } else { plan.udp_flows as u64 };
    assert_lossless_but_answers(load, answers, why);
    logged(proxy, CONNECTIONS_ENDED, if is_ipvs { 2 } else { 1 });
    if is_ipvs {
        other.extend(use_service_from(cluster, plan, &["node"]));
    }
    other
}

/// Waits until a changed mode is active in both families.
fn in_force(proxy: &mut PortolanProcess, from: &str, to: &str) {
    if from != to {
        logged(proxy, COMPLETE, 2);
    }
}

/// An agent that is not root refuses the modes iptables and IPVS.
#[test]
fn the_page_gives_the_permissions_of_a_mode_before_it_changes_the_mode() {
    let all = all_commands(BACK);
    let first = |beginning: &str| all.iter().position(|command| command.starts_with(beginning)).unwrap();
    assert!(first(PERMISSIONS) < first(STATUS) && first(STATUS) < first(EDIT), "{all:?}");
}

#[test]
fn the_page_leads_back_from_the_nftables_mode() {
    leads_back("nftables", "iptables");
    leads_back("nftables", "nftables");
}

#[test]
fn the_page_leads_back_from_the_iptables_mode() {
    leads_back("iptables", "iptables");
    leads_back("iptables", "nftables");
}

#[test]
fn the_page_leads_back_from_the_userspace_mode() {
    leads_back("userspace", "iptables");
    leads_back("userspace", "nftables");
}

#[test]
fn only_ours_leaves_what_kube_proxy_uses() {
    for mode in ["nftables", "userspace"] {
        let cluster = Cluster::new();
        let node = cluster.world.node().namespace();
        service(&cluster);
        let mut proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
        proxy.kill().unwrap();
        let pod = pod_address(&cluster.world);
        kube_proxy_table(node, &pod);
        node.output_with_input("iptables-nft-restore", &["--noflush"], &iptables_rules(&pod)).unwrap();
        node.output("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet"]).unwrap();
        let others = || {
            let settings =
                node.output("sysctl", &["-a", "-r", "route_localnet|conntrack_tcp_timeout"]).unwrap();
            let rules = ["-4", "-6"].map(|family| node.output("ip", &[family, "rule"]).unwrap());
            (node.output("iptables-nft-save", &[]).unwrap().replace(char::is_numeric, ""), settings, rules)
        };
        let before = others();
        for arguments in [&["cleanup", "--only-ours"][..], &["proxy", "--cleanup", "--only-ours"]] {
            let (code, output) = ended(node, BINARY, arguments);
            assert_eq!(code, Some(0), "{output}");
            let tables = nft(node, "list tables");
            assert!(!tables.contains("portolan"), "{mode}: {tables}");
            assert!(
                tables.contains("table ip kube-proxy") && tables.contains("table ip6 kube-proxy"),
                "{tables}"
            );
            let after = others();
            assert_eq!((&after.0, &after.1), (&before.0, &before.1), "{mode}");
            assert!(!after.2.concat().contains("28783"), "{mode}: {after:?}");
        }
    }
    let (code, output) = ended(&Namespace::new("only-ours").unwrap(), BINARY, &["proxy", "--only-ours"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("--only-ours says what --cleanup removes"), "{output}");
}
