//! Modes: which one runs, and changes while the proxy runs or between two runs, under load. Needs root, nft and
//! iptables, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use portolan_testkit::{Namespace, PortolanProcess, Protocol, eventually};

use common::kernel::{hint_at_legacy, nft};
use common::load::{assert_lossless, busy_services};
use common::{
    BINARY, COMPLETE, Cluster, PATIENCE, at, ends_as, in_sync, load, logged, objects, page, reaches,
};

const IPTABLES: &str = "mode: iptables\n";
const MENDED: &str = "another program had changed our table; mended";

/// Returns for each family whether Portolan's nftables mode has rules.
fn nftables_rules(node: &Namespace) -> [bool; 2] {
    let tables = nft(node, "list tables");
    ["table ip portolan", "table ip6 portolan"].map(|table| tables.lines().any(|line| line == table))
}

/// Returns for each family whether Portolan's iptables mode has rules. Chains shared with kubelet are ignored.
fn iptables_rules(node: &Namespace, variant: &str) -> [bool; 2] {
    ["iptables", "ip6tables"].map(|program| {
        let saved = node.output(&format!("{program}-{variant}-save"), &[]).unwrap();
        let kubelets = [":KUBE-FIREWALL ", ":KUBE-IPTABLES-HINT "];
        let is_ours =
            |line: &str| line.starts_with(":KUBE-") && !kubelets.iter().any(|own| line.starts_with(own));
        saved.lines().any(is_ours)
    })
}

/// Waits until exactly one mode has rules.
fn only(node: &Namespace, mode: &str, proxy: &PortolanProcess) {
    only_in(node, "nft", mode, proxy);
}

/// Does the same with a variant of iptables.
fn only_in(node: &Namespace, variant: &str, mode: &str, proxy: &PortolanProcess) {
    let wanted = [mode == "nftables", mode == "iptables"].map(|there| [there; 2]);
    let mut seen = wanted;
    let outcome = eventually(PATIENCE, "rules of one mode only", || {
        seen = [nftables_rules(node), iptables_rules(node, variant)];
        seen == wanted
    });
    assert!(outcome.is_ok(), "{mode}: {seen:?} {}", proxy.output());
}

#[test]
fn modes_change_under_load_and_nothing_is_lost() {
    modes_change("nft");
}

#[test]
fn the_older_iptables_changes_under_load_and_nothing_is_lost() {
    modes_change("legacy");
}

fn modes_change(variant: &str) {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    if variant == "legacy" && !hint_at_legacy(node) {
        return;
    }
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    let load = load::start(&cluster);
    for (round, yaml) in [IPTABLES, "", IPTABLES, ""].into_iter().enumerate() {
        let mode = if yaml == IPTABLES { "iptables" } else { "nftables" };
        cluster.configure(yaml);
        logged(&mut proxy, COMPLETE, 2 * (round + 1));
        only_in(node, variant, mode, &proxy);
        assert_eq!(page(&cluster, "/proxyMode"), mode);
        let shown =
            format!("portolan_proxy_mode{{mode=\"{mode}\",reason=\"configured\",wanted=\"{mode}\"}} 1");
        assert!(page(&cluster, "/metrics").lines().any(|line| line == shown), "{shown}");
        // The active mode gets the changes, and drift detection watches its rules.
        let backend = &cluster.world.pods()[round % 2];
        let address = format!("10.96.3.{round}");
        cluster.service(objects::cluster_ip(&format!("new-{round}"), &address), &[backend]);
        let to = at(&format!("{address}:80"));
        reaches(cluster.world.client().namespace(), Protocol::Tcp, to, &[backend]);
    }
    assert_lossless(load);
    nft(node, "delete table ip portolan");
    logged(&mut proxy, MENDED, 1);
    only_in(node, variant, "nftables", &proxy);
}

#[test]
fn restarts_in_iptables_mode_lose_nothing() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(IPTABLES);
    let node = cluster.world.node().namespace();
    let load = load::start(&cluster);
    let rules = || node.output("iptables-nft-save", &["-t", "nat"]).unwrap().matches("\n-A ").count();
    let before = rules();
    for round in 0..6 {
        if round % 2 == 0 {
            assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
        } else {
            proxy.kill().unwrap();
        }
        proxy = cluster.proxy_with(IPTABLES);
        assert_eq!(rules(), before, "{}", proxy.output());
    }
    assert_lossless(load);
}

#[test]
fn the_next_run_in_another_mode_loses_nothing_and_removes_what_the_last_one_left() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(IPTABLES);
    let load = load::start(&cluster);
    for (yaml, mode) in [("", "nftables"), (IPTABLES, "iptables")] {
        proxy.terminate(PATIENCE).unwrap();
        proxy = cluster.proxy_with(yaml);
        only(node, mode, &proxy);
    }
    assert_lossless(load);
    proxy.terminate(PATIENCE).unwrap();
    let mut cleanup = cluster.run(&["proxy", "--cleanup"]);
    assert_eq!(cleanup.wait_for_end(PATIENCE).unwrap().code(), Some(0), "{}", cleanup.output());
    only(node, "none", &cleanup);
}

#[test]
fn a_mode_that_cannot_be_written_leaves_the_former_one_active() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let pods = cluster.world.pods();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[&pods[0]]);
    node.output("iptables-nft", &["-t", "nat", "-N", "KUBE-SERVICES"]).unwrap();
    let mut proxy = cluster.proxy();
    // The removal goes by names, and would remove the chains that follow.
    logged(&mut proxy, "removed what kube-proxy left", 1);
    // A chain of another program has a name that the mode needs, with another type: the rules cannot be loaded.
    node.output("iptables-nft", &["-t", "nat", "-N", "KUBE-SERVICES"]).unwrap();
    nft(node, "add chain ip nat KUBE-POSTROUTING { type nat hook postrouting priority 300 ; }");
    // The sync period is the longest back-off between two attempts.
    cluster.configure(&format!("{IPTABLES}iptables: {{syncPeriod: 1s}}\n"));
    logged(&mut proxy, "the former rules stay and are updated", 2);
    cluster.apply(objects::slice("web", &[&pods[1]], &[("tcp".to_owned(), portolan_testkit::Family::Ipv4)]));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[&pods[1]]);
    assert!(nftables_rules(node)[0], "{}", proxy.output());
    let metrics = |lines: [&str; 2]| {
        let page = page(&cluster, "/metrics");
        lines
            .iter()
            .all(|wanted| page.lines().any(|line| line.strip_prefix("portolan_proxy_mode") == Some(wanted)))
    };
    assert_eq!(page(&cluster, "/proxyMode"), "nftables", "IPv4 has its rules");
    let pending = "_pending{ip_family=\"IPv4\"} 1";
    assert!(metrics([pending, "{mode=\"nftables\",reason=\"configured\",wanted=\"nftables\"} 1"]));
    nft(node, "delete chain ip nat KUBE-POSTROUTING");
    logged(&mut proxy, COMPLETE, 2);
    only(node, "iptables", &proxy);
    assert_eq!(page(&cluster, "/proxyMode"), "iptables");
    let done = "_pending{ip_family=\"IPv4\"} 0";
    assert!(metrics([done, "{mode=\"iptables\",reason=\"configured\",wanted=\"iptables\"} 1"]));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[&pods[1]]);
}

#[test]
fn iptables_rules_that_another_program_flushes_are_restored() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let backend = &cluster.world.pods()[0];
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[backend]);
    let mut proxy = cluster.proxy_with(&format!("{IPTABLES}iptables: {{minSyncPeriod: 0s}}\n"));
    let client = cluster.world.client().namespace();
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &[backend]);
    // One restore does all, because the repair is faster than a second program. Repeated, because the kernel's
    // notifications may not have been subscribed to yet.
    let mended = eventually(PATIENCE, "a flush is mended", || {
        node.output_with_input("iptables-nft-restore", &["--noflush"], "*nat\n-F\n-X\nCOMMIT\n").unwrap();
        proxy.output().contains(MENDED)
    });
    assert!(mended.is_ok(), "{}", proxy.output());
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &[backend]);
    // The periodic check does not look at this chain, but the kernel sends a notification.
    let saved = node.output("iptables-nft-save", &["-t", "nat"]).unwrap();
    let chain = saved.lines().find_map(|line| line.strip_prefix(":KUBE-SEP-")?.split(' ').next()).unwrap();
    let before = proxy.output().matches(MENDED).count();
    node.output("iptables-nft", &["-t", "nat", "-F", &format!("KUBE-SEP-{chain}")]).unwrap();
    logged(&mut proxy, MENDED, before + 1);
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &[backend]);
}

/// Runs the proxy with only these programs in its `PATH`.
fn with_path(cluster: &Cluster, path: &Path) -> PortolanProcess {
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let path = format!("PATH={}", path.display());
    let arguments = [&path, BINARY, "proxy", "--config", file.to_str().unwrap(), "--master", &master];
    PortolanProcess::start(cluster.world.node().namespace(), "env".as_ref(), &arguments).unwrap()
}

#[test]
fn where_no_mode_is_named_it_is_iptables_or_else_nftables() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let mut proxy = cluster.proxy_with("mode: ''\n");
    only(node, "iptables", &proxy);
    assert_eq!(page(&cluster, "/proxyMode"), "iptables");
    let shown = "portolan_proxy_mode{mode=\"iptables\",reason=\"default\",wanted=\"\"} 1";
    assert!(page(&cluster, "/metrics").lines().any(|line| line == shown));
    proxy.terminate(PATIENCE).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let mut proxy = with_path(&cluster, folder.path());
    in_sync(&mut proxy);
    logged(&mut proxy, "cannot run iptables", 1);
    only(node, "nftables", &proxy);
    assert_eq!(page(&cluster, "/proxyMode"), "nftables");
    let shown = "portolan_proxy_mode{mode=\"nftables\",reason=\"no_iptables\",wanted=\"\"} 1";
    assert!(page(&cluster, "/metrics").lines().any(|line| line == shown));
}

/// No kernel has this scheduler.
const NO_SCHEDULER: &str = "mode: ipvs\nipvs: {scheduler: none}\n";

#[test]
fn where_ipvs_lacks_something_iptables_runs_in_its_place() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(NO_SCHEDULER);
    only(node, "iptables", &proxy);
    assert_eq!(proxy.output().matches("no scheduler is called `none`").count(), 1, "{}", proxy.output());
    assert_eq!(page(&cluster, "/proxyMode"), "iptables");
    let shown = "portolan_proxy_mode{mode=\"iptables\",reason=\"no_ipvs\",wanted=\"ipvs\"} 1";
    assert!(page(&cluster, "/metrics").lines().any(|line| line == shown));
    let event = cluster.event("ProxyModeFallback");
    assert_eq!((&event["type"], &event["regarding"]["kind"]), (&"Warning".into(), &"Node".into()), "{event}");
    assert!(event["note"].as_str().unwrap().contains("no scheduler is called"), "{event}");
    // The same while the proxy runs: packets are not affected.
    let load = load::start(&cluster);
    cluster.configure("mode: iptables\n");
    logged(&mut proxy, "the changed configuration is in use", 1);
    cluster.configure("");
    logged(&mut proxy, COMPLETE, 2);
    cluster.configure(NO_SCHEDULER);
    logged(&mut proxy, COMPLETE, 4);
    only(node, "iptables", &proxy);
    assert_lossless(load);
}

/// Runs on kernels without IPVS, and in guests without one of the modules that it needs. On other kernels IPVS runs.
#[test]
fn where_the_kernel_has_no_ipvs_iptables_runs_in_its_place() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with("mode: ipvs\n");
    in_sync(&mut proxy);
    let missing = std::env::var("PORTOLAN_TEST_WITHOUT").ok();
    if page(&cluster, "/proxyMode") == "ipvs" {
        assert_eq!(missing, None, "{}", proxy.output());
        return;
    }
    only(node, "iptables", &proxy);
    let shown = "portolan_proxy_mode{mode=\"iptables\",reason=\"no_ipvs\",wanted=\"ipvs\"} 1";
    assert!(page(&cluster, "/metrics").lines().any(|line| line == shown));
    let event = cluster.event("ProxyModeFallback");
    let text = event["note"].as_str().unwrap();
    assert!(text.contains(missing.as_deref().unwrap_or("ip_vs")), "{text}");
    assert_lossless(load::start(&cluster));
}

#[test]
#[ignore = "make vm-test runs it in a guest without nft_numgen"]
fn a_start_names_what_is_missing_where_the_kernel_has_no_numgen() {
    let cluster = Cluster::new();
    cluster.configure("mode: nftables\n");
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let mut proxy = cluster.run(&["proxy", "--config", file.to_str().unwrap(), "--master", &master]);
    assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(1), "{}", proxy.output());
    // The rule that the kernel refused, and the modules.
    let names = ["Numgen(", "nft_numgen"].map(|name| proxy.output().contains(name));
    assert_eq!(names, [true; 2], "{}", proxy.output());
    let node = cluster.world.node().namespace();
    assert_eq!((nftables_rules(node), iptables_rules(node, "nft")), ([false; 2], [false; 2]));
}

#[test]
#[ignore = "make vm-test runs it in a guest without xt_statistic"]
fn a_start_names_what_is_missing_where_the_kernel_has_no_statistic() {
    let cluster = Cluster::new();
    the_start_names(&cluster, IPTABLES, "nft", "statistic");
    // The rules of the IPVS mode do not need it.
    let backend = &cluster.world.pods()[0];
    cluster.service(objects::cluster_ip("web", "10.96.3.1"), &[backend]);
    let mut proxy = cluster.proxy_with("mode: ipvs\n");
    in_sync(&mut proxy);
    assert_eq!(page(&cluster, "/proxyMode"), "ipvs", "{}", proxy.output());
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.3.1:80"), &[backend]);
}

#[test]
#[ignore = "make vm-test runs it in a guest without xt_MASQUERADE"]
fn a_start_names_what_is_missing_where_the_kernel_has_no_masquerade() {
    iptables_does_not_start("MASQUERADE", &[IPTABLES, "mode: ipvs\n"]);
}

#[test]
#[ignore = "make vm-test runs it in a guest without xt_nat"]
fn a_start_names_what_is_missing_where_the_kernel_has_no_dnat() {
    iptables_does_not_start("DNAT", &[IPTABLES]);
}

/// The kernel lacks a target of iptables: starts with these configurations fail, with both variants of iptables. Without a mode in
/// the configuration, the nftables mode runs.
fn iptables_does_not_start(missing: &str, configurations: &[&str]) {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    for yaml in configurations {
        the_start_names(&cluster, yaml, "nft", missing);
    }
    let mut proxy = cluster.proxy_with("mode: ''\n");
    only(node, "nftables", &proxy);
    proxy.terminate(PATIENCE).unwrap();
    cluster.run(&["proxy", "--cleanup"]).wait_for_end(PATIENCE).unwrap();
    if hint_at_legacy(node) {
        for yaml in configurations {
            the_start_names(&cluster, yaml, "legacy", missing);
        }
    }
}

/// A start fails, names for each family what is missing, and leaves no rules.
fn the_start_names(cluster: &Cluster, yaml: &str, variant: &str, missing: &str) {
    cluster.configure(yaml);
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let mut proxy = cluster.run(&["proxy", "--config", file.to_str().unwrap(), "--master", &master]);
    assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(1), "{}", proxy.output());
    // iptables says so. The rules that it also prints may have the name of one that is not missing.
    let named = proxy.output().matches(&format!("Extension {missing} ")).count();
    assert!(named >= 2, "{}", proxy.output());
    let node = cluster.world.node().namespace();
    assert_eq!((nftables_rules(node), iptables_rules(node, variant)), ([false; 2], [false; 2]));
}

#[test]
fn without_the_fall_back_what_ipvs_lacks_is_an_error() {
    let cluster = Cluster::new();
    cluster.configure(NO_SCHEDULER);
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let arguments =
        ["proxy", "--ipvs-fallback=false", "--config", file.to_str().unwrap(), "--master", &master];
    let mut proxy = cluster.run(&arguments);
    assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(1));
    assert!(proxy.output().contains("no scheduler is called `none`"), "{}", proxy.output());
    assert_eq!(nft(cluster.world.node().namespace(), "list tables"), "");
    // A reload is refused, and the current mode stays.
    cluster.configure("");
    let mut proxy = cluster.run(&arguments);
    in_sync(&mut proxy);
    cluster.configure(NO_SCHEDULER);
    logged(&mut proxy, "the changed configuration is refused", 1);
    only(cluster.world.node().namespace(), "nftables", &proxy);
}

#[test]
fn a_mode_that_the_node_cannot_run_is_refused() {
    let cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    cluster.configure(IPTABLES);
    let mut proxy = with_path(&cluster, folder.path());
    assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(1));
    for program in ["iptables", "ip6tables"] {
        assert!(proxy.output().contains(&format!("cannot run {program}:")), "{}", proxy.output());
    }
    // The current mode is not given up for it.
    cluster.configure("");
    let mut proxy = with_path(&cluster, folder.path());
    in_sync(&mut proxy);
    cluster.configure(IPTABLES);
    logged(&mut proxy, "the changed configuration is refused", 1);
    assert_eq!(page(&cluster, "/proxyMode"), "nftables");
    // A family without iptables is left out, if it is not the primary one.
    drop(proxy);
    for program in ["iptables", "iptables-save", "iptables-restore"] {
        let file = ["/usr/sbin", "/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(program));
        let file = file.into_iter().find(|file| file.exists()).unwrap();
        symlink(file, folder.path().join(program)).unwrap();
    }
    cluster.configure(IPTABLES);
    let backend = &cluster.world.pods()[0];
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[backend]);
    let mut proxy = with_path(&cluster, folder.path());
    logged(&mut proxy, "IPv6 is left out", 1);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[backend]);
}

#[test]
fn a_lock_held_by_another_program_only_delays_the_start() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    if !hint_at_legacy(node) {
        return;
    }
    let backend = &cluster.world.pods()[0];
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[backend]);
    cluster.configure("mode: ''\n");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let lock = fs::File::create(&path).unwrap();
    lock.lock().unwrap();
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let arguments = ["proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let environment = [("XTABLES_LOCKFILE", path.to_str().unwrap())];
    let mut proxy =
        PortolanProcess::start_with_environment(node, BINARY.as_ref(), &arguments, &environment).unwrap();
    logged(&mut proxy, "which another program holds", 1);
    lock.unlock().unwrap();
    in_sync(&mut proxy);
    only_in(node, "legacy", "iptables", &proxy);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[backend]);
}

#[test]
fn the_mode_decides_on_which_addresses_node_ports_are_served() {
    use portolan_testkit::ProbeResult::Refused;
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let backend = &cluster.world.pods()[0];
    cluster.service(objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7"), &[backend]);
    let mut proxy = cluster.proxy();
    let client = cluster.world.client().namespace();
    // Without a list, node ports are served on the primary address and not on loopback in the nftables mode, and on
    // every address in the iptables mode.
    ends_as(client, Protocol::Tcp, at("203.0.113.1:30080"), Refused);
    ends_as(node, Protocol::Tcp, at("127.0.0.1:30080"), Refused);
    cluster.configure(IPTABLES);
    logged(&mut proxy, COMPLETE, 2);
    reaches(client, Protocol::Tcp, at("203.0.113.1:30080"), &[backend]);
    reaches(node, Protocol::Tcp, at("127.0.0.1:30080"), &[backend]);
    cluster.configure(&format!("{IPTABLES}iptables: {{localhostNodePorts: false, minSyncPeriod: 0s}}\n"));
    logged(&mut proxy, COMPLETE, 3);
    ends_as(node, Protocol::Tcp, at("127.0.0.1:30080"), Refused);
    reaches(client, Protocol::Tcp, at("203.0.113.1:30080"), &[backend]);
    only(node, "iptables", &proxy);
}

/// The kernel's file of a list takes lines with clients.
#[test]
fn a_start_warns_of_endpoints_that_forget_clients() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let mut service = objects::cluster_ip("web", "10.96.0.10");
    service["spec"]["sessionAffinity"] = "ClientIP".into();
    cluster.service(service, &[&cluster.world.pods()[0]]);
    let mut proxy = cluster.proxy_with(IPTABLES);
    let limit = fs::read_to_string("/sys/module/xt_recent/parameters/ip_list_tot").unwrap();
    let limit: u32 = limit.trim().parse().unwrap();
    let fill = || {
        for file in fs::read_dir("/proc/thread-self/net/xt_recent").unwrap() {
            let file = file.unwrap().path();
            for number in 1..=limit {
                let client = std::net::Ipv4Addr::from(0x0a00_0000 + number);
                fs::write(&file, format!("+{client}\n")).unwrap();
            }
        }
    };
    node.run(fill).unwrap();
    proxy.terminate(PATIENCE).unwrap();
    let warning = format!("has {limit} clients with session affinity, the limit");
    assert!(!proxy.output().contains(&warning), "{}", proxy.output());
    let mut proxy = cluster.proxy_with(IPTABLES);
    logged(&mut proxy, &format!("ip_list_tot={}", 10 * limit), 1);
    assert_eq!(proxy.output().matches(&warning).count(), 1, "{}", proxy.output());
}
