//! `--cleanup`, `--init-only`, the checks before the start, and the takeover from kube-proxy. Needs root, nft and
//! iptables, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "cleanup/as_before.rs"]
mod as_before;
mod common;
#[path = "cleanup/kernel_settings.rs"]
mod kernel_settings;
#[path = "cleanup/nothing_left.rs"]
mod nothing_left;
#[path = "cleanup/repeated.rs"]
mod repeated;
#[path = "cleanup/report.rs"]
mod report;
#[path = "cleanup/way_back.rs"]
mod way_back;
#[path = "cleanup/way_back_ipvs.rs"]
mod way_back_ipvs;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use portolan_testkit::{
    Family, Namespace, PortolanProcess, Protocol, Traffic, TrafficPlan, World, eventually,
};

use common::kernel::{add_rules, assert_no_legacy, nft};
use common::load::{assert_lossless, busy_services};
use common::{BINARY, Cluster, PATIENCE, at, load, objects, reaches};

/// Lists the tables of the older iptables. The file does not exist if the kernel does not have the older iptables.
const LEGACY_TABLES: &str = "/proc/thread-self/net/ip_tables_names";

/// Creates a table like that of kube-proxy's nftables mode, which leads one Service to one pod.
fn kube_proxy_table(node: &Namespace, pod: &str) {
    let rules = format!(
        "add table ip kube-proxy\n\
         add table ip6 kube-proxy\n\
         add chain ip kube-proxy services\n\
         add rule ip kube-proxy services ip daddr 10.96.0.10 meta l4proto {{ tcp, udp }} th dport 80 dnat to {pod}:8080\n\
         add chain ip kube-proxy nat-prerouting {{ type nat hook prerouting priority -100; }}\n\
         add rule ip kube-proxy nat-prerouting jump services\n\
         add chain ip kube-proxy nat-output {{ type nat hook output priority -100; }}\n\
         add rule ip kube-proxy nat-output jump services\n\
         add chain ip kube-proxy nat-postrouting {{ type nat hook postrouting priority 100; }}\n"
    );
    node.output_with_input("nft", &["-f", "-"], &rules).unwrap();
}

/// Returns the chains and jumps of kube-proxy's iptables mode for one Service, beside those of other programs.
fn iptables_rules(pod: &str) -> String {
    format!(
        "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n\
         *filter\n:KUBE-SERVICES - [0:0]\n:KUBE-FORWARD - [0:0]\n:KUBE-FIREWALL - [0:0]\n\
         -A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n\
         -A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A INPUT -j KUBE-FIREWALL\n\
         -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\nCOMMIT\n\
         *nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:KUBE-SEP-A - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:OTHERS - [0:0]\n\
         -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A PREROUTING -d 203.0.113.77/32 -j OTHERS\n\
         -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A\n\
         -A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 80 -j KUBE-SVC-A\n\
         -A KUBE-SVC-A -j KUBE-SEP-A\n\
         -A KUBE-SEP-A -s {pod}/32 -j KUBE-MARK-MASQ\n\
         -A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination {pod}:8080\n\
         -A KUBE-SEP-A -p udp -m udp -j DNAT --to-destination {pod}:8080\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\nCOMMIT\n"
    )
}

/// Returns the names of kube-proxy's chains.
fn kube_chains(node: &Namespace, save: &str) -> Vec<String> {
    let saved = node.output(save, &[]).unwrap();
    let chains = saved.lines().filter_map(|line| line.strip_prefix(":KUBE-")?.split(' ').next());
    let mut chains: Vec<String> = chains.map(str::to_owned).collect();
    chains.sort();
    chains
}

/// Creates a Service that works through kube-proxy's leftovers, under load from everywhere.
fn used_service(cluster: &Cluster) -> Vec<(&'static str, Traffic)> {
    service(cluster);
    use_service(cluster, load::plan("10.96.0.10:80"))
}

/// Creates a Service with one pod.
fn service(cluster: &Cluster) {
    cluster.service(objects::cluster_ip("v4", "10.96.0.10"), &[&cluster.world.pods()[0]]);
}

/// Starts load on the Service from everywhere.
fn use_service(cluster: &Cluster, plan: TrafficPlan) -> Vec<(&'static str, Traffic)> {
    use_service_from(cluster, plan, &["pod", "node", "client"])
}

/// Starts load on the Service from some of these places.
fn use_service_from(cluster: &Cluster, plan: TrafficPlan, places: &[&str]) -> Vec<(&'static str, Traffic)> {
    let from = [
        ("pod", cluster.world.pods()[1].namespace()),
        ("node", cluster.world.node().namespace()),
        ("client", cluster.world.client().namespace()),
    ];
    let start = |namespace| Traffic::start(namespace, plan).unwrap();
    let from = from.into_iter().filter(|(name, _)| places.contains(name));
    from.map(|(name, namespace)| (name, start(namespace))).collect()
}

fn pod_address(world: &World) -> String {
    world.pods()[0].address(Family::Ipv4).to_string()
}

fn gone(node: &Namespace, proxy: &PortolanProcess) {
    let outcome = eventually(PATIENCE, "the end of kube-proxy's tables", || {
        !nft(node, "list tables").contains("kube-proxy")
    });
    assert!(outcome.is_ok(), "{}", proxy.output());
}

#[test]
fn the_nftables_mode_is_taken_over_without_a_loss() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    kube_proxy_table(node, &pod_address(&cluster.world));
    let load = used_service(&cluster);
    let proxy = cluster.proxy();
    gone(node, &proxy);
    assert!(nft(node, "list tables").contains("table ip portolan"));
    reaches(
        cluster.world.client().namespace(),
        Protocol::Tcp,
        at("10.96.0.10:80"),
        &[&cluster.world.pods()[0]],
    );
    assert_lossless(load);
}

#[test]
fn nothing_is_taken_over_before_the_first_commit() {
    let mut cluster = Cluster::new();
    let node = cluster.world.node().namespace().clone();
    kube_proxy_table(&node, &pod_address(&cluster.world));
    let load = used_service(&cluster);
    cluster.stop_server();
    let mut proxy = cluster.start_proxy("");
    common::logged(&mut proxy, "watch interrupted", 4);
    assert!(nft(&node, "list tables").contains("table ip kube-proxy"));
    cluster.restart_server();
    gone(&node, &proxy);
    assert_lossless(load);
}

#[test]
fn the_iptables_mode_is_taken_over_without_a_loss() {
    for (restore, save) in
        [("iptables-nft-restore", "iptables-nft-save"), ("iptables-legacy-restore", "iptables-legacy-save")]
    {
        let cluster = Cluster::new();
        let node = cluster.world.node().namespace();
        let rules = iptables_rules(&pod_address(&cluster.world));
        node.output(restore, &["--version"]).unwrap();
        if let Err(error) = add_rules(node, restore, &rules) {
            // A kernel without the older iptables has no rules in it to take over.
            assert!(restore.contains("legacy"), "{error}");
            assert_no_legacy(node, &error.to_string());
            continue;
        }
        assert_eq!(kube_chains(node, save).len(), 9, "{save}");
        let load = used_service(&cluster);
        let proxy = cluster.proxy();
        let kept = ["FIREWALL", "IPTABLES-HINT"];
        let outcome =
            eventually(PATIENCE, "the end of kube-proxy's chains", || kube_chains(node, save) == kept);
        assert!(outcome.is_ok(), "{:?} {}", kube_chains(node, save), proxy.output());
        let saved = node.output(save, &[]).unwrap();
        assert!(saved.contains("-A PREROUTING -d 203.0.113.77/32 -j OTHERS"), "{saved}");
        assert!(saved.contains("-A INPUT -j KUBE-FIREWALL"), "{saved}");
        assert_lossless(load);
    }
}

#[test]
fn in_iptables_mode_the_chains_are_taken_over_in_place_and_the_rest_is_removed() {
    for variant in ["nft", "legacy"] {
        let (restore, save) = (format!("iptables-{variant}-restore"), format!("iptables-{variant}-save"));
        let cluster = Cluster::new();
        let node = cluster.world.node().namespace();
        if variant == "legacy" && !add_legacy_table(node) {
            continue;
        }
        let rules = iptables_rules(&pod_address(&cluster.world));
        add_rules(node, &restore, &rules).unwrap();
        let ipvs = "*nat\n:KUBE-NODE-PORT - [0:0]\n-A KUBE-NODE-PORT -j KUBE-MARK-MASQ\nCOMMIT\n";
        add_rules(node, &restore, ipvs).unwrap();
        // A table of kube-proxy's nftables mode without effect.
        nft(node, "add table ip kube-proxy");
        let load = used_service(&cluster);
        let proxy = cluster.proxy_with("mode: iptables\n");
        gone(node, &proxy);
        let stale = ["SVC-A", "SEP-A", "NODE-PORT"];
        let outcome = eventually(PATIENCE, "the end of stale chains", || {
            !kube_chains(node, &save).iter().any(|chain| stale.contains(&chain.as_str()))
        });
        assert!(outcome.is_ok(), "{:?} {}", kube_chains(node, &save), proxy.output());
        let saved = node.output(&save, &["-t", "nat"]).unwrap();
        assert!(saved.contains("-A PREROUTING -d 203.0.113.77/32 -j OTHERS"), "{saved}");
        let jumps =
            saved.lines().filter(|line| line.starts_with("-A PREROUTING") && line.contains("KUBE-SERVICES"));
        assert_eq!(jumps.count(), 1, "{saved}");
        assert!(saved.contains("-A KUBE-SERVICES") && saved.contains(":KUBE-MARK-MASQ"), "{saved}");
        assert_lossless(load);
    }
}

#[test]
fn cleanup_leaves_nothing_of_ours_or_kube_proxys_and_needs_no_api_server() {
    let mut cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    proxy.terminate(PATIENCE).unwrap();
    cluster.stop_server();
    let node = cluster.world.node().namespace();
    kube_proxy_table(node, &pod_address(&cluster.world));
    let rules = iptables_rules(&pod_address(&cluster.world));
    node.output_with_input("iptables-nft-restore", &["--noflush"], &rules).unwrap();
    nft(node, "add table ip foreign");
    // The second run has nothing to remove and must not complain. `--cleanup` takes precedence over other actions.
    for arguments in [&["proxy", "--cleanup"][..], &["proxy", "--cleanup", "--init-only"]] {
        let mut cleanup = cluster.run(arguments);
        let status = cleanup.wait_for_end(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(0), "{}", cleanup.output());
        let tables = nft(node, "list tables");
        assert!(!tables.contains("portolan") && !tables.contains("kube-proxy"), "{tables}");
        assert!(tables.contains("table ip foreign"), "{tables}");
        assert_eq!(kube_chains(node, "iptables-nft-save"), ["FIREWALL", "IPTABLES-HINT"]);
    }
}

#[test]
fn cleanup_reports_what_stays_because_other_programs_use_it() {
    let node = Namespace::new("held").unwrap();
    let rules = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:OTHERS - [0:0]\n\
                 -A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -j KUBE-MARK-MASQ\n\
                 -A OTHERS -j KUBE-MARK-MASQ\nCOMMIT\n";
    node.output_with_input("iptables-nft-restore", &["--noflush"], rules).unwrap();
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    let line = "rules of other programs lead to them\" chains=\"KUBE-MARK-MASQ\"";
    assert!(output.contains(line), "{output}");
    assert_eq!(kube_chains(&node, "iptables-nft-save"), ["MARK-MASQ"]);
}

/// Creates a bare network namespace with a table of the older iptables. Returns `None` if the kernel does not have
/// it.
fn legacy_node(name: &str) -> Option<Namespace> {
    let node = Namespace::new(name).unwrap();
    add_legacy_table(&node).then_some(node)
}

/// Adds a chain of kube-proxy to the older iptables. Returns false if the kernel does not have it, and fails if it must.
fn add_legacy_table(node: &Namespace) -> bool {
    node.output("iptables-legacy-restore", &["--version"]).unwrap();
    if let Err(error) = node.output("iptables-legacy", &["-w", "-t", "nat", "-N", "KUBE-SERVICES"]) {
        assert_no_legacy(node, &error.to_string());
        return false;
    }
    let names = node.run(|| fs::read_to_string(LEGACY_TABLES)).unwrap().unwrap();
    assert!(names.contains("nat"), "{names}");
    true
}

fn ended(node: &Namespace, program: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut process = PortolanProcess::start(node, program.as_ref(), arguments).unwrap();
    let status = process.wait_for_end(PATIENCE).unwrap();
    (status.code(), process.output())
}

#[test]
fn cleanup_without_the_programs_of_the_older_iptables_says_what_may_be_left() {
    let Some(node) = legacy_node("no-iptables") else { return };
    let (code, output) = ended(&node, "env", &["PATH=/nowhere", BINARY, "proxy", "--cleanup"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("iptables-legacy-restore, which could remove chains"), "{output}");
    assert_eq!(kube_chains(&node, "iptables-legacy-save"), ["SERVICES"]);
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(kube_chains(&node, "iptables-legacy-save").is_empty());
}

#[test]
fn cleanup_by_a_user_who_cannot_see_the_older_iptables_says_what_may_be_left() {
    let Some(node) = legacy_node("unprivileged") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("portolan");
    common::copy_binary(&file);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let capabilities =
        ["--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin", "--bounding-set=-all,+net_admin"];
    let user = ["--reuid=65532", "--regid=65532", "--clear-groups"];
    let program = [file.to_str().unwrap(), "proxy", "--cleanup"];
    let (code, output) = ended(&node, "setpriv", &[&user[..], &capabilities, &program].concat());
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("ip_tables_names cannot be read (Permission denied"), "{output}");
    assert!(output.contains("as root on the node"), "{output}");
    assert_eq!(kube_chains(&node, "iptables-legacy-save"), ["SERVICES"]);
}

#[test]
fn a_takeover_without_access_to_the_older_iptables_warns_and_goes_on() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    if !add_legacy_table(node) {
        return;
    }
    cluster.configure("");
    let file = cluster.configuration_file();
    let program = ["PATH=/nowhere", BINARY, "proxy", "--config", file.to_str().unwrap()];
    let master = cluster.master();
    let arguments = [&program[..], &["--master", &master]].concat();
    let mut proxy = PortolanProcess::start(node, "env".as_ref(), &arguments).unwrap();
    common::logged(&mut proxy, "iptables-legacy-restore, which could remove chains", 1);
    let output = proxy.output();
    let output = output.lines().find(|line| line.contains("which could remove chains")).unwrap();
    assert!(output.starts_with('W') && output.contains("what kube-proxy left cannot be removed"), "{output}");
    assert!(proxy.ended().is_none());
}

/// Creates the device, sets and rules of kube-proxy's IPVS mode, and a set of another program. Virtual servers are
/// tested in tests/vm.
fn ipvs_node(name: &str) -> Namespace {
    let node = Namespace::new(name).unwrap();
    node.ip("link add kube-ipvs0 type bridge\naddr add 10.96.0.10/32 dev kube-ipvs0\n").unwrap();
    let sets = "create KUBE-CLUSTER-IP hash:ip,port\nadd KUBE-CLUSTER-IP 10.96.0.10,tcp:80\n\
                create KUBE-IPVS-IPS hash:ip\ncreate KUBE-LOAD-BALANCER-FW hash:ip,port\n\
                create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6\n\
                create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\n\
                create KUBE-ROUTER-PODS hash:ip\n";
    node.output_with_input("ipset", &["restore"], sets).unwrap();
    let rules = "*filter\n:KUBE-IPVS-FILTER - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n:KUBE-SOURCE-RANGES-FIREWALL - [0:0]\n\
                 -A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER\n\
                 -A FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL\n\
                 -A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN\n\
                 -A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT\n\
                 -A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL\n\
                 -A KUBE-SOURCE-RANGES-FIREWALL -j DROP\nCOMMIT\n\
                 *nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODE-PORT - [0:0]\n:KUBE-LOAD-BALANCER - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
                 -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
                 -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT\n\
                 -A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ\n\
                 -A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ\nCOMMIT\n";
    node.output_with_input("iptables-nft-restore", &["--noflush"], rules).unwrap();
    node
}

#[test]
fn cleanup_removes_the_device_the_rules_and_the_sets_of_the_ipvs_mode() {
    let node = ipvs_node("ipvs");
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("chains=7 virtual_servers=0 devices=1 sets=5"), "{output}");
    assert!(!node.output("ip", &["address"]).unwrap().contains("10.96.0.10"));
    assert!(kube_chains(&node, "iptables-nft-save").is_empty());
    assert_eq!(node.output("ipset", &["list", "-n"]).unwrap(), "KUBE-ROUTER-PODS\n");
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(!output.contains("kube-proxy"), "{output}");
}

#[test]
fn ipvs_sets_in_use_by_other_rules_are_reported() {
    let node = ipvs_node("ipvs-in-use");
    let rule = "INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
    let iptables = |action| {
        let arguments: Vec<_> = [action].into_iter().chain(rule.split(' ')).collect();
        node.output("iptables-nft", &arguments).unwrap();
    };
    iptables("-A");
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("refers to ipsets of kube-proxy's IPVS mode (KUBE-CLUSTER-IP)"), "{output}");
    assert_eq!(node.output("ipset", &["list", "-n"]).unwrap(), "KUBE-CLUSTER-IP\nKUBE-ROUTER-PODS\n");
    iptables("-D");
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(node.output("ipset", &["list", "-n"]).unwrap(), "KUBE-ROUTER-PODS\n");
}

#[test]
fn without_permission_cleanup_fails_and_the_start_names_the_capability() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let proxy = cluster.proxy();
    let node = cluster.world.node().namespace();
    let without = |arguments: &[&str]| {
        let drop = ["--bounding-set=-net_admin", "--inh-caps=-net_admin", "--", BINARY, "proxy"];
        let arguments = [&drop[..], arguments].concat();
        let mut process = PortolanProcess::start(node, "setpriv".as_ref(), &arguments).unwrap();
        let status = process.wait_for_end(PATIENCE).unwrap();
        (status.code(), process.output())
    };
    let (code, output) = without(&["--cleanup"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(nft(node, "list tables").contains("table ip portolan"));
    let (code, output) = without(&["--master", &cluster.master()]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("CAP_NET_ADMIN") && output.contains("securityContext"), "{output}");
    drop(proxy);
}

#[test]
fn init_only_sets_what_the_node_needs_and_touches_no_rules() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    cluster.configure("conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 1h2m3s, tcpBeLiberal: true}\n");
    let file = cluster.configuration_file();
    let arguments = ["proxy", "--init-only", "--config", file.to_str().unwrap()];
    let mut proxy = cluster.run(&arguments);
    let status = proxy.wait_for_end(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", proxy.output());
    let setting = |name: &str| node.output("cat", &[&format!("/proc/sys/net/netfilter/{name}")]).unwrap();
    assert_eq!(setting("nf_conntrack_tcp_timeout_established"), "3723\n");
    assert_eq!(setting("nf_conntrack_tcp_timeout_close_wait"), "3600\n");
    assert_eq!(setting("nf_conntrack_tcp_be_liberal"), "1\n");
    assert_eq!(nft(node, "list tables"), "");
    // Every setting already has its value.
    let mut proxy = cluster.run(&arguments);
    assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(0));
    assert!(!proxy.output().contains("kernel setting"), "{}", proxy.output());
    cluster.configure("mode: ipvs\nipvs: {scheduler: none}\n");
    let arguments = [&arguments[..], &["--ipvs-fallback=false"]].concat();
    assert_eq!(cluster.run(&arguments).wait_for_end(PATIENCE).unwrap().code(), Some(1));
}

#[test]
fn settings_that_cannot_be_written_are_reported_once_with_the_command_and_services_work() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let file = cluster.configuration_file();
    // As in a container: the same files, read-only.
    let script = format!(
        "mount -o bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && \
         exec {BINARY} proxy --config {} --master {}",
        file.display(),
        cluster.master()
    );
    let node = cluster.world.node().namespace();
    let arguments = ["--mount", "--propagation", "private", "sh", "-c", &script];
    let setting = "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=3600";
    // Also reported if another error ends the start, so that the operator can fix both.
    let lines = "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 1h}\n";
    cluster.configure(&format!("mode: ipvs\nipvs: {{scheduler: none}}\n{lines}"));
    let strictly = format!("{script} --ipvs-fallback=false");
    let (code, output) =
        ended(node, "unshare", &["--mount", "--propagation", "private", "sh", "-c", &strictly]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("no scheduler is called") && output.contains(setting), "{output}");
    cluster.configure(lines);
    let mut proxy = PortolanProcess::start(node, "unshare".as_ref(), &arguments).unwrap();
    common::in_sync(&mut proxy);
    let output = proxy.output();
    assert_eq!(output.matches("kernel settings cannot be written").count(), 1, "{output}");
    assert!(output.contains(setting), "{output}");
    assert!(output.contains("is 432000 (Read-only file system"), "{output}");
    let client = cluster.world.client().namespace();
    let pods: Vec<_> = cluster.world.pods().iter().chain(cluster.world.remote_pods()).collect();
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &pods);
}

#[test]
fn the_first_process_of_a_container_ends_on_a_signal() {
    let cluster = Cluster::new();
    cluster.configure("");
    let file = cluster.configuration_file();
    let node = cluster.world.node().namespace();
    let master = cluster.master();
    for signal in ["TERM", "INT"] {
        let arguments =
            ["--pid", "--fork", "--kill-child", BINARY, "proxy", "--config", file.to_str().unwrap()];
        let arguments = [&arguments[..], &["--master", &master]].concat();
        let mut proxy = PortolanProcess::start(node, "unshare".as_ref(), &arguments).unwrap();
        common::in_sync(&mut proxy);
        // The only child of unshare, which exits with the status of its child.
        let parent = proxy.id().to_string();
        let children = node.output("pgrep", &["--parent", &parent]).unwrap();
        node.output("kill", &["-s", signal, children.trim()]).unwrap();
        let status = proxy.wait_for_end(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(0), "{signal}: {}", proxy.output());
        assert!(nft(node, "list tables").contains("table ip portolan"), "what is programmed stays");
    }
}
