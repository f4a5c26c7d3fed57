//! After each mode, a clean-up restores rules, counters, routes and kernel settings to the state before the start.

use std::collections::BTreeMap;

use portolan_iptables::{Counted, counted};
use portolan_testkit::Namespace;

use crate::common::kernel::{hint_at_legacy, nft};
use crate::common::load::busy_services;
use crate::common::{BINARY, Cluster, PATIENCE, logged};
use crate::ended;

/// The kernel settings that a start writes in every mode but IPVS. `nf_conntrack_max` and `nf_conntrack_buckets`
/// belong to the whole machine and cannot be written in the network namespace of a test.
const SETTINGS: [&str; 6] = [
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_udp_timeout",
    "net/netfilter/nf_conntrack_udp_timeout_stream",
];
pub(crate) const CONNTRACK: &str =
    "conntrack: {tcpEstablishedTimeout: 1h, tcpBeLiberal: true, udpTimeout: 10s, udpStreamTimeout: 40s}\n";

/// The state of a node that a start may change. Empty tables of iptables are ignored.
#[derive(Debug, PartialEq)]
struct State {
    settings: BTreeMap<&'static str, String>,
    /// Rules and KUBE chains, by the program that prints them.
    rules: BTreeMap<String, Vec<String>>,
    tables: String,
    routing: Vec<String>,
    counters: Counted,
}

fn state(node: &Namespace, variants: &[&str]) -> State {
    let read = |path| (path, node.output("cat", &[&format!("/proc/sys/{path}")]).unwrap());
    let programs = variants
        .iter()
        .flat_map(|variant| ["iptables", "ip6tables"].map(|program| format!("{program}-{variant}-save")));
    let rules = |save: String| {
        let saved = node.output(&save, &[]).unwrap();
        let is_meant = |line: &&str| line.starts_with("-A ") || line.starts_with(":KUBE-");
        let lines = saved.lines().filter(is_meant).map(str::to_owned).collect();
        (save, lines)
    };
    let tables = nft(node, "list tables");
    let of_iptables = ["filter", "nat", "mangle"];
    let others = |line: &&str| !of_iptables.iter().any(|name| line.ends_with(&format!(" {name}")));
    State {
        settings: SETTINGS.into_iter().map(read).collect(),
        rules: programs.map(rules).collect(),
        tables: tables.lines().filter(others).collect(),
        routing: ["-4", "-6"].map(|family| node.output("ip", &[family, "rule"]).unwrap()).into(),
        counters: node.run(|| counted().unwrap()).unwrap(),
    }
}

/// Runs a mode for a moment, cleans up after it, and asserts that nothing of it is left.
fn leaves_nothing(mode: &str, arguments: &[&str], variants: &[&str]) {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    if variants.contains(&"legacy") && !hint_at_legacy(node) {
        return;
    }
    if variants.contains(&"legacy") {
        // A kubelet would share this chain, but none runs here. The tables stay.
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            node.output(program, &["-w", "-t", "mangle", "-X", "KUBE-IPTABLES-HINT"]).unwrap();
        }
    }
    let before = state(node, variants);
    busy_services(&cluster);
    let yaml = format!("mode: {mode}\n{CONNTRACK}");
    let wrapper = wrapper(variants);
    let mut proxy = if let Some(path) = &wrapper {
        cluster.configure(&yaml);
        let (file, master) = (cluster.configuration_file(), cluster.master());
        let program =
            [&format!("PATH={}", path.path().display()), BINARY, "proxy", "--config", file.to_str().unwrap()];
        let all = [&program[..], &["--master", &master]].concat();
        let mut proxy = portolan_testkit::PortolanProcess::start(node, "env".as_ref(), &all).unwrap();
        crate::common::in_sync(&mut proxy);
        proxy
    } else {
        cluster.proxy_with_arguments(&yaml, arguments)
    };
    let running = state(node, variants);
    assert_ne!(running, before, "{mode}");
    assert_eq!(running.settings[SETTINGS[1]], "3600\n");
    assert_eq!(running.settings[SETTINGS[0]] == "1\n", mode == "iptables", "{running:?}");
    proxy.kill().unwrap();
    let file = cluster.configuration_file();
    for _ in 0..2 {
        let (code, output) = ended(node, BINARY, &["cleanup", "--config", file.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{output}");
        assert_eq!(state(node, variants), before, "{mode}: {output}");
    }
}

/// Creates a folder in which the programs without a suffix are those of the older iptables.
pub(crate) fn wrapper(variants: &[&str]) -> Option<tempfile::TempDir> {
    variants.contains(&"legacy").then(|| {
        let folder = tempfile::tempdir().unwrap();
        for program in ["iptables", "ip6tables"] {
            for suffix in ["", "-save", "-restore"] {
                let link = folder.path().join(format!("{program}{suffix}"));
                std::os::unix::fs::symlink("/usr/sbin/xtables-legacy-multi", link).unwrap();
            }
        }
        folder
    })
}

#[test]
fn a_cleanup_leaves_nothing_of_the_nftables_mode() {
    leaves_nothing("nftables", &[], &["nft"]);
}

#[test]
fn a_cleanup_leaves_nothing_of_the_iptables_mode() {
    leaves_nothing("iptables", &[], &["nft"]);
}

#[test]
fn a_cleanup_leaves_nothing_of_the_iptables_mode_in_the_older_iptables() {
    leaves_nothing("iptables", &[], &["nft", "legacy"]);
}

#[test]
fn a_cleanup_leaves_nothing_of_the_userspace_mode() {
    leaves_nothing("userspace", &["--userspace-capture=tproxy"], &["nft"]);
    leaves_nothing("userspace", &["--userspace-capture=redirect"], &["nft"]);
}

/// Returns how often `KUBE-FIREWALL` is in the filter table, and whether loopback addresses are routed.
fn firewall(node: &Namespace, save: &str) -> (usize, String) {
    let saved = node.output(save, &["-t", "filter"]).unwrap();
    let routed = node.output("cat", &["/proc/sys/net/ipv4/conf/all/route_localnet"]).unwrap();
    (saved.matches("KUBE-FIREWALL").count(), routed)
}

#[test]
fn the_chain_that_a_kubelet_shares_stays_where_there_is_one() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    node.output("iptables-nft", &["-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]).unwrap();
    drop(cluster.proxy_with("mode: iptables\n"));
    assert_eq!(firewall(node, "iptables-nft-save"), (4, "1\n".to_owned()));
    let (code, output) = ended(node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    // The chain, two jumps and the rule. A kubelet creates none of these in IPv6.
    assert_eq!(firewall(node, "iptables-nft-save"), (4, "0\n".to_owned()), "{output}");
    assert_eq!(firewall(node, "ip6tables-nft-save"), (0, "0\n".to_owned()), "{output}");
}

#[test]
fn the_chain_stays_while_loopback_addresses_are_routed_or_others_have_rules_in_it() {
    let node = Namespace::new("firewall").unwrap();
    let rules = "*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP\nCOMMIT\n";
    node.output_with_input("iptables-nft-restore", &["--noflush"], rules).unwrap();
    let (code, output) = ended(&node, BINARY, &["proxy", "--proxy-mode=iptables", "--init-only"]);
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(firewall(&node, "iptables-nft-save"), (3, "1\n".to_owned()), "{output}");
    let script = format!(
        "mount -o bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec {BINARY} cleanup"
    );
    let (code, output) =
        ended(&node, "unshare", &["--mount", "--propagation", "private", "sh", "-c", &script]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("sysctl -w net.ipv4.conf.all.route_localnet=0"), "{output}");
    assert!(
        output.contains("kept chain ip filter KUBE-FIREWALL (iptables-nft): it keeps packets"),
        "{output}"
    );
    assert_eq!(firewall(&node, "iptables-nft-save").0, 3, "{output}");
    node.output("iptables-nft", &["-A", "KUBE-FIREWALL", "-d", "203.0.113.1/32", "-j", "DROP"]).unwrap();
    let (code, output) = ended(&node, BINARY, &["cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("KUBE-FIREWALL (iptables-nft): it has rules of other programs"), "{output}");
    assert_eq!(firewall(&node, "iptables-nft-save"), (4, "0\n".to_owned()), "{output}");
    // Only the rule of another program is left.
    let ours = ["!", "-s", "127.0.0.0/8", "-d", "127.0.0.0/8", "-j", "DROP"];
    node.output("iptables-nft", &[&["-D", "KUBE-FIREWALL"], &ours[..]].concat()).unwrap();
    let (code, output) = ended(&node, BINARY, &["cleanup"]);
    assert_eq!((code, firewall(&node, "iptables-nft-save").0), (Some(0), 3), "{output}");
    node.output("iptables-nft", &[&["-A", "KUBE-FIREWALL"], &ours[..]].concat()).unwrap();
    node.output("iptables-nft", &["-D", "KUBE-FIREWALL", "-d", "203.0.113.1/32", "-j", "DROP"]).unwrap();
    let (code, output) = ended(&node, BINARY, &["cleanup"]);
    assert_eq!((code, firewall(&node, "iptables-nft-save").0), (Some(0), 0), "{output}");
}

#[test]
fn a_cleanup_logs_the_settings_that_it_puts_back() {
    let cluster = Cluster::new();
    let mut proxy = cluster.proxy_with("mode: iptables\n");
    logged(&mut proxy, "kernel setting written", 1);
    drop(proxy);
    let mut cleanup = cluster.run(&["cleanup"]);
    assert_eq!(cleanup.wait_for_end(PATIENCE).unwrap().code(), Some(0), "{}", cleanup.output());
    for setting in ["route_localnet\" value=0", "established\" value=432000", "close_wait\" value=60"] {
        assert!(cleanup.output().contains(setting), "{setting}: {}", cleanup.output());
    }
}
