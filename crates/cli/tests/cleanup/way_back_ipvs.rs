//! The way back from the IPVS mode. Needs a kernel with IPVS, such as that of the guest of `tests/vm`. On other
//! kernels, these tests are skipped, unless `PORTOLAN_TEST_IPVS` requires them.

use portolan_testkit::{Namespace, Traffic, TrafficPlan, eventually};

use crate::common::ipvs::cluster;
use crate::common::kernel::nft;
use crate::common::migrate::{CLEANUP, run};
use crate::common::{COMPLETE, PATIENCE, load, logged, objects};
use crate::way_back::{kube_proxy as kube_proxy_in, leads_back_in};
use crate::{pod_address, service};

/// With short timeouts, the kernel forgets flows soon after their last packet.
pub(crate) const OPTIONS: &str =
    "ipvs: {minSyncPeriod: 0s, syncPeriod: 1s, tcpFinTimeout: 1s, udpTimeout: 1s}\n";
const SETTINGS: [&str; 3] = ["conntrack", "expire_nodest_conn", "expire_quiescent_template"];

/// Changes the endpoint of the Service's virtual servers, as kube-proxy does.
pub(crate) fn change_endpoint(node: &Namespace, pod: &str) {
    let old = virtual_servers(node);
    for protocol in ["tcp", "udp"] {
        let service = [&format!("--{protocol}-service"), "10.96.0.10:80"];
        for real in real_servers(&old, &format!("-{} 10.96.0.10:80", &protocol[..1])) {
            node.output("ipvsadm", &[&["--delete-server"], &service[..], &["--real-server", &real]].concat())
                .unwrap();
        }
        let new = format!("{pod}:8080");
        let add = [&["--add-server"], &service[..], &["--real-server", &new, "--masquerading"]].concat();
        node.output("ipvsadm", &add).unwrap();
    }
}

fn virtual_servers(node: &Namespace) -> String {
    node.output("ipvsadm", &["--save", "--numeric"]).unwrap()
}

/// Returns the real servers of a virtual server in the output of ipvsadm.
fn real_servers(saved: &str, server: &str) -> Vec<String> {
    let start = format!("-a {server} -r ");
    let lines = saved.lines().filter_map(|line| line.strip_prefix(&start)?.split(' ').next());
    lines.map(str::to_owned).collect()
}

fn device(node: &Namespace) -> String {
    let links = node.output("ip", &["-oneline", "address", "show"]).unwrap();
    links.split_inclusive('\n').filter(|line| line.contains("kube-ipvs0")).collect()
}

fn has_device(node: &Namespace) -> bool {
    node.output("ip", &["link"]).unwrap().contains("kube-ipvs0")
}

fn settings(node: &Namespace) -> String {
    let read = |name| node.output("cat", &[&format!("/proc/sys/net/ipv4/vs/{name}")]).unwrap();
    SETTINGS.map(read).concat()
}

/// Returns the chains and rules of both families, each with its table.
fn saved_rules(node: &Namespace) -> String {
    let saved = ["iptables-nft-save", "ip6tables-nft-save"].map(|save| node.output(save, &[]).unwrap());
    let (mut table, mut rules) = ("", String::new());
    // Without times and counters.
    let saved = saved.concat();
    for line in saved.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with('*') {
            table = line;
        }
        rules.extend([table, " ", line.split(" [").next().unwrap(), "\n"]);
    }
    rules
}

/// Returns the sorted members of all sets, and their names.
fn sets(node: &Namespace) -> String {
    let saved = node.output("ipset", &["save"]).unwrap();
    let mut lines: Vec<&str> = saved.lines().filter(|line| line.starts_with("add ")).collect();
    lines.sort_unstable();
    lines.join("\n") + "\n" + &node.output("ipset", &["list", "-n"]).unwrap()
}

/// Returns the state of the node.
pub(crate) fn everything(node: &Namespace) -> String {
    [virtual_servers(node), device(node), sets(node), saved_rules(node), settings(node)].concat()
}

/// Repeats the clean-up beside a kube-proxy in IPVS mode. Everything with Portolan's own names is removed, and
/// everything else stays.
pub(crate) fn only_what_is_ours_goes(node: &Namespace) {
    let ours = |line: &&str| {
        let of_ours =
            || line.contains("KUBE-IPVS-OUT-FILTER") || line.contains("KUBE-SOURCE-RANGES-FIREWALL");
        line.contains("PORTOLAN-") || (line.starts_with("*mangle ") && of_ours())
    };
    let without = |text: String| text.lines().filter(|line| !ours(line)).collect::<Vec<_>>().join("\n");
    let before = without(everything(node));
    assert!(before.contains("KUBE-CLUSTER-IP") && before.contains("10.96.0.10/32"), "{before}");
    // kube-proxy has chains of the same names in another table.
    let theirs = ["*filter -A KUBE-SOURCE-RANGES-FIREWALL -j DROP", "*filter :KUBE-IPVS-OUT-FILTER "];
    assert!(theirs.iter().all(|line| before.contains(line)), "{before}");
    // The kernel frees sets a while after the rules that refer to them.
    let outcome = eventually(PATIENCE, CLEANUP, || run(node, CLEANUP).0);
    assert!(outcome.is_ok(), "{:?}", run(node, CLEANUP));
    for _ in 0..2 {
        let (cleaned, output) = run(node, CLEANUP);
        assert!(cleaned, "{output}");
        assert_eq!(without(everything(node)), before, "{output}");
        let after = sets(node) + &saved_rules(node);
        assert!(!after.contains("PORTOLAN-"), "{after}");
        for program in ["iptables-nft-save", "ip6tables-nft-save"] {
            let mangle = node.output(program, &["-t", "mangle"]).unwrap();
            assert!(!mangle.contains("KUBE-IPVS-OUT-FILTER"), "{mangle}");
            let filter = node.output(program, &["-t", "filter"]).unwrap();
            assert!(filter.contains("-A OUTPUT") && filter.contains("-j KUBE-IPVS-OUT-FILTER"), "{filter}");
        }
    }
    assert_eq!(settings(node), "1\n1\n1\n");
}

/// Asserts that nothing of the IPVS mode is left.
pub(crate) fn assert_nothing_is_left(node: &Namespace, why: &str) {
    assert_eq!(virtual_servers(node), "", "{why}");
    assert!(!has_device(node), "{why}: {}", device(node));
    assert_eq!(node.output("ipset", &["list", "-n"]).unwrap(), "", "{why}");
    let rules = saved_rules(node);
    let own = ["KUBE-IPVS", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES", "--match-set"];
    for own in own.into_iter().chain(["ipvs access", "kube-proxy firewall rules"]) {
        assert!(!rules.contains(own), "{why}: {own}: {rules}");
    }
    assert_eq!(settings(node), "0\n0\n0\n", "{why}");
}

#[test]
fn the_page_leads_back_to_the_iptables_mode() {
    let Some(cluster) = cluster() else { return };
    leads_back_in(&cluster, "ipvs", "iptables");
}

#[test]
fn the_page_leads_back_to_the_nftables_mode() {
    let Some(cluster) = cluster() else { return };
    leads_back_in(&cluster, "ipvs", "nftables");
}

#[test]
fn the_page_leads_back_to_the_ipvs_mode() {
    let Some(cluster) = cluster() else { return };
    leads_back_in(&cluster, "ipvs", "ipvs");
}

/// Returns a plan with only one stream through a node port, which needs no address of the device.
fn stream() -> TrafficPlan {
    let plan = load::plan("192.168.100.1:30080");
    TrafficPlan { udp: None, streams: 1, connections_per_second: 0, ..plan }
}

#[test]
fn a_draining_virtual_server_is_removed_by_the_clean_up() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.world.node().namespace();
    service(&cluster);
    let pods = [&cluster.world.pods()[0]];
    cluster.service(objects::load_balancer("port", "10.96.0.11", 30080, "198.51.100.7"), &pods);
    let mut proxy = cluster.proxy_with(&format!("mode: ipvs\n{OPTIONS}"));
    let stream = Traffic::start(cluster.world.client().namespace(), stream()).unwrap();
    cluster.configure("mode: nftables\n");
    logged(&mut proxy, COMPLETE, 2);
    let only_the_port = || {
        let servers = virtual_servers(node);
        servers.contains(":30080") && servers.matches("-A ").count() == 1 && device(node).is_empty()
    };
    let outcome = eventually(PATIENCE, "only the node port is left", only_the_port);
    assert!(outcome.is_ok(), "{} {} {}", virtual_servers(node), device(node), proxy.output());
    assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    // The virtual server drains across a restart. The device marks it, and therefore stays.
    assert!(has_device(node), "{}", proxy.output());
    proxy = cluster.proxy_with("mode: nftables\n");
    assert!(only_the_port() && has_device(node), "{} {}", virtual_servers(node), proxy.output());
    assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    assert!(stream.stop().unwrap().is_lossless());
    kube_proxy_in(node, "nftables", &pod_address(&cluster.world));
    let others = ["--add-service", "--tcp-service", "203.0.113.1:80", "--scheduler", "rr"];
    node.output("ipvsadm", &others).unwrap();
    let (cleaned, output) = run(node, CLEANUP);
    assert!(cleaned && output.contains("removed what our ipvs mode left"), "{output}");
    assert_eq!(virtual_servers(node), "-A -t 203.0.113.1:80 -s rr\n", "{output}");
    assert_eq!(settings(node), "1\n1\n1\n", "what others have needs them: {output}");
    node.output("ipvsadm", &["--delete-service", "--tcp-service", "203.0.113.1:80"]).unwrap();
    let (cleaned, output) = run(node, CLEANUP);
    assert!(cleaned, "{output}");
    assert!(!nft(node, "list tables").contains("portolan"), "{output}");
    assert_nothing_is_left(node, &output);
}
