//! The IPVS mode end to end: changes of the mode and restarts under load, and the kernel settings and timeouts of the
//! mode. Needs root, and a kernel with IPVS, such as that of the guest of `tests/vm`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use portolan_ipvs::KernelVersion;
use portolan_testkit::{Namespace, PortolanProcess, Protocol, eventually};
use serde_json::json;

use common::ipvs::cluster;
use common::kernel::nft;
use common::load::{self, assert_lossless, assert_lossless_but_own, busy_services};
use common::{
    COMPLETE, PATIENCE, at, in_sync, logged, objects, page, programs, proxy_with_capabilities, reaches,
};

/// The sync period is short, so that each comparison would show a missing element soon.
const IPVS: &str = "mode: ipvs\nipvs: {minSyncPeriod: 0s, syncPeriod: 1s}\n";
const NOT_PROGRAMMED: &str = "this Service port cannot be programmed";

/// Returns the modes whose rules lead packets to Services.
fn entrances(node: &Namespace) -> Vec<&'static str> {
    let saved = node.output("iptables-nft-save", &["-t", "nat"]).unwrap();
    let found = [
        ("nftables", nft(node, "list tables").contains("table ip portolan")),
        ("iptables", saved.contains("KUBE-SVC-")),
        ("ipvs", saved.contains("--match-set KUBE-CLUSTER-IP")),
    ];
    found.into_iter().filter(|(_, is_there)| *is_there).map(|(mode, _)| mode).collect()
}

fn only(node: &Namespace, mode: &str, proxy: &PortolanProcess) {
    let mut seen = Vec::new();
    let outcome = eventually(PATIENCE, "rules of one mode only", || {
        seen = entrances(node);
        seen == [mode]
    });
    assert!(outcome.is_ok(), "{mode}: {seen:?} {}", proxy.output());
}

/// Reloads from another mode to IPVS and back, under load.
fn there_and_back(other: &str) {
    let Some(cluster) = cluster() else { return };
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(&format!("mode: {other}\n"));
    let load = load::start(&cluster);
    for (round, mode) in ["ipvs", other].into_iter().enumerate() {
        let yaml = if mode == "ipvs" { IPVS.to_owned() } else { format!("mode: {other}\n") };
        cluster.configure(&yaml);
        logged(&mut proxy, COMPLETE, 2 * (round + 1));
        only(node, mode, &proxy);
        assert_eq!(page(&cluster, "/proxyMode"), mode);
        // The active mode gets the changes.
        let backend = &cluster.world.pods()[round];
        let address = format!("10.96.3.{}", round + 1);
        cluster.service(objects::cluster_ip(&format!("new-{round}"), &address), &[backend]);
        let to = at(&format!("{address}:80"));
        reaches(cluster.world.client().namespace(), Protocol::Tcp, to, &[backend]);
    }
    assert_lossless_but_own(load);
}

/// Without the kernel setting of the mode, masqueraded packets would be lost.
#[test]
fn a_change_to_ipvs_is_refused_where_its_kernel_setting_cannot_be_written() {
    const REFUSED: &str = "the changed configuration is refused";
    const SETTING: &str = "/proc/sys/net/ipv4/vs/conntrack";
    let Some(cluster) = cluster() else { return };
    let node = cluster.world.node().namespace();
    node.run(|| std::fs::write(SETTING, "0")).unwrap().unwrap();
    let mut proxy = common::proxy_with_read_only_settings(&cluster, "mode: nftables\n");
    cluster.configure(IPVS);
    logged(&mut proxy, REFUSED, 1);
    assert!(proxy.output().contains(&format!("{SETTING}: wanted 1, is 0")), "{}", proxy.output());
    only(node, "nftables", &proxy);
    node.run(|| std::fs::write(SETTING, "1")).unwrap().unwrap();
    // The file is read again when it changes.
    cluster.configure(&format!("{IPVS}configSyncPeriod: 7m\n"));
    logged(&mut proxy, COMPLETE, 2);
    only(node, "ipvs", &proxy);
}

/// As `deploy/kustomize/overlays/iptables` and the chart start it.
#[test]
fn the_capabilities_of_the_manifests_are_enough() {
    let Some(cluster) = cluster() else { return };
    busy_services(&cluster);
    let proxy = proxy_with_capabilities(&cluster, "+net_admin,+net_bind_service,+net_raw", IPVS, &[]);
    let (pods, client) = (cluster.world.pods(), cluster.world.client().namespace());
    let all = [&pods[0], &pods[1], &cluster.world.remote_pods()[0]];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(pods[0].namespace(), protocol, at("10.96.0.10:80"), &all);
        reaches(client, protocol, at("[2001:db8:100::7]:80"), &all);
        reaches(client, protocol, at("192.168.100.1:30080"), &all);
    }
    only(cluster.world.node().namespace(), "ipvs", &proxy);
}

#[test]
fn from_iptables_to_ipvs_and_back_while_in_use() {
    there_and_back("iptables");
}

#[test]
fn from_nftables_to_ipvs_and_back_while_in_use() {
    there_and_back("nftables");
}

#[test]
fn restarts_while_in_use_lose_nothing() {
    let Some(cluster) = cluster() else { return };
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(IPVS);
    let node = cluster.world.node().namespace();
    let listed = || node.output("ipvsadm", &["--save", "--numeric"]).unwrap();
    let before = listed();
    let load = load::start(&cluster);
    for round in 0..2 {
        if round % 2 == 0 {
            assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
        } else {
            proxy.kill().unwrap();
        }
        proxy = cluster.proxy_with(IPVS);
        assert_eq!(listed(), before, "{}", proxy.output());
    }
    let shown = "portolan_ipvs_draining_real_servers{ip_family=\"IPv4\"} 0";
    assert!(page(&cluster, "/metrics").contains(shown), "{}", page(&cluster, "/metrics"));
    assert_lossless(load);
}

#[test]
fn refusals_of_the_kernel_are_reported_once() {
    let Some(cluster) = cluster() else { return };
    let (pods, client) = (cluster.world.pods(), cluster.world.client().namespace());
    cluster.service(objects::cluster_ip("bad", "10.96.0.66"), &[&pods[0]]);
    let ports = [("tcp".to_owned(), portolan_testkit::Family::Ipv4)];
    let mut slice = objects::slice("bad", &[&pods[0]], &ports);
    slice["endpoints"].as_array_mut().unwrap().push(json!({"addresses": ["255.255.255.255"]}));
    cluster.apply(slice);
    let mut proxy = cluster.proxy_with(IPVS);
    logged(&mut proxy, NOT_PROGRAMMED, 1);
    let event = cluster.event("ServicePortNotProgrammed");
    assert_eq!(event["regarding"]["name"], "bad");
    assert!(event["note"].as_str().unwrap().contains("real server"), "{event}");
    // Other Services, and the rest of this one, are not affected.
    cluster.service(objects::cluster_ip("late", "10.96.0.78"), &[&pods[1]]);
    reaches(client, Protocol::Tcp, at("10.96.0.78:80"), &[&pods[1]]);
    reaches(client, Protocol::Tcp, at("10.96.0.66:80"), &[&pods[0]]);
    assert_eq!(proxy.output().matches(NOT_PROGRAMMED).count(), 1, "{}", proxy.output());
}

#[test]
fn the_kernel_has_the_settings_and_timeouts_of_the_configuration() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.world.node().namespace();
    let read = |path: &'static str| {
        node.run(move || std::fs::read_to_string(format!("/proc/sys/net/ipv4/{path}"))).unwrap().unwrap()
    };
    let timeouts = || node.output("ipvsadm", &["--list", "--timeout"]).unwrap();
    let of_kernel = timeouts();
    let strict = |wanted: bool| format!("ipvs: {{strictARP: {wanted}, syncPeriod: 1s");
    let mut proxy = cluster.proxy_with(&format!("mode: ipvs\n{}}}\n", strict(false)));
    let mode = ["vs/conntrack", "vs/expire_nodest_conn", "vs/expire_quiescent_template", "ip_forward"];
    for path in mode {
        assert_eq!(read(path), "1\n", "{path}: {}", proxy.output());
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: KernelVersion = release.parse().unwrap();
    let reuse = if version < KernelVersion(5, 9) { "0\n" } else { "1\n" };
    assert_eq!(read("vs/conn_reuse_mode"), reuse, "left as it is where the kernel does better: {version:?}");
    assert_eq!(
        (read("conf/all/arp_ignore").as_str(), read("conf/all/arp_announce").as_str()),
        ("0\n", "0\n")
    );
    assert_eq!(timeouts(), of_kernel, "nothing asks for others");

    // A changed configuration while the proxy runs.
    let values = "tcpTimeout: 1234s, tcpFinTimeout: 56s, udpTimeout: 78s";
    cluster.configure(&format!("mode: ipvs\n{}, {values}}}\n", strict(true)));
    logged(&mut proxy, "the changed configuration is in use", 1);
    let written = eventually(PATIENCE, "strictARP and timeouts", || {
        read("conf/all/arp_ignore") == "1\n"
            && read("conf/all/arp_announce") == "2\n"
            && timeouts().contains("1234 56 78")
    });
    assert!(written.is_ok(), "{} {}", timeouts(), proxy.output());
    // A restart that sets one timeout leaves the others.
    proxy.terminate(PATIENCE).unwrap();
    let proxy = cluster.proxy_with(&format!("mode: ipvs\n{}, tcpFinTimeout: 57s}}\n", strict(true)));
    assert!(timeouts().contains("1234 57 78"), "{} {}", timeouts(), proxy.output());
}

/// The kernel notifies of no change of virtual servers, so the comparison of each sync period finds it.
#[test]
fn virtual_servers_that_others_remove_are_written_again() {
    let Some(cluster) = cluster() else { return };
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(IPVS);
    let to = at("198.51.100.7:80");
    reaches(client, Protocol::Tcp, to, &cluster.all_pods());
    let virtual_servers = || node.output("ipvsadm", &["--save", "--numeric"]).unwrap();
    let before = virtual_servers();
    assert!(before.matches("-A ").count() >= 12, "{before}");
    node.output("ipvsadm", &["--clear"]).unwrap();
    let outcome = eventually(PATIENCE, "all virtual servers", || virtual_servers() == before);
    assert!(outcome.is_ok(), "{} {}", virtual_servers(), proxy.output());
    reaches(client, Protocol::Tcp, to, &cluster.all_pods());
    proxy.terminate(PATIENCE).unwrap();
}

/// A start in another mode removes chains of kube-proxy, which have the names of those that the former mode still needs.
#[test]
fn a_start_in_another_mode_leaves_what_guards_the_addresses_of_connections() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.world.node().namespace();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(IPVS);
    let connection = node.run(|| std::net::TcpStream::connect(at("10.96.0.10:80"))).unwrap().unwrap();
    proxy.terminate(PATIENCE).unwrap();
    node.output("iptables-nft", &["-t", "nat", "-N", "KUBE-XLB-OF-KUBE-PROXY"]).unwrap();
    let mut proxy = cluster.proxy_with("mode: nftables\n");
    logged(&mut proxy, "removed what kube-proxy left", 1);
    let saved = || node.output("iptables-nft-save", &[]).unwrap();
    let guards = || saved().matches("--ctstatus CONFIRMED").count();
    let written = eventually(PATIENCE, "the guards are written", || guards() == 3);
    assert!(written.is_ok(), "{} {}", saved(), proxy.output());
    only(node, "nftables", &proxy);
    let saved = saved();
    for jump in ["-A OUTPUT .* -j KUBE-IPVS-OUT-FILTER", "-A INPUT .* -j KUBE-IPVS-FILTER"] {
        let (from, to) = jump.split_once(".*").unwrap();
        let is_it = |line: &&str| line.starts_with(from) && line.ends_with(to);
        assert_eq!(saved.lines().filter(is_it).count(), 1, "{jump}: {saved}");
    }
    assert!(!saved.contains("KUBE-XLB"), "{saved}");
    assert!(!proxy.output().contains("chains of kube-proxy stay"), "{}", proxy.output());
    drop(connection);
}

/// Replaces an agent in this mode by one in another mode that finds its programs on this path, as a pod that is not root replaces one
/// that is. The connection goes on, and afterwards nothing of this mode is left.
fn replaced_by_an_agent_with(path: &str) {
    let Some(cluster) = cluster() else { return };
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with(IPVS);
    let connection = client.run(|| std::net::TcpStream::connect(at("198.51.100.7:80"))).unwrap().unwrap();
    assert!(connection.peek(&mut [0]).unwrap() > 0, "an endpoint has answered");
    proxy.terminate(PATIENCE).unwrap();
    cluster.configure("mode: nftables\n");
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let path = format!("PATH={path}");
    let arguments = [&path, common::BINARY, "proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let mut proxy = PortolanProcess::start(node, "env".as_ref(), &arguments).unwrap();
    in_sync(&mut proxy);
    let gone = |what: &str, is_gone: &dyn Fn() -> bool| {
        let outcome = eventually(PATIENCE, what, || {
            let output = proxy.output();
            assert!(!output.contains("rules of another mode cannot be removed"), "{output}");
            is_gone()
        });
        assert!(outcome.is_ok(), "{what}: {}", proxy.output());
    };
    let read = |program: &str, arguments: &[&str]| node.output(program, arguments).unwrap();
    let servers = || read("ipvsadm", &["--save", "--numeric"]);
    let sets = || read("ipset", &["list", "-n"]);
    gone("rules", &|| !read("iptables-nft-save", &[]).contains("KUBE-"));
    gone("rules of IPv6", &|| !read("ip6tables-nft-save", &[]).contains("KUBE-"));
    gone("virtual servers without connections", &|| servers().matches("-A ").count() == 1);
    gone("sets", &|| sets() == "PORTOLAN-VIRTUAL-SERVERS\n");
    only(node, "nftables", &proxy);
    assert!(servers().contains("-A -t 198.51.100.7:80 "), "its connection is there: {}", servers());
    // The endpoint's answer has not been read, so the connection is reset. The kernel forgets it early.
    drop(connection);
    gone("virtual servers", &|| servers().is_empty());
    gone("the device", &|| !read("ip", &["link"]).contains("kube-ipvs0"));
    gone("all sets", &|| sets().is_empty());
    logged(&mut proxy, "last connection has ended", 2);
}

#[test]
fn an_agent_without_iptables_removes_what_the_mode_left() {
    replaced_by_an_agent_with("/nowhere");
}

/// The programs inherit no capability from an agent that is not root.
#[test]
fn an_agent_whose_iptables_lacks_permissions_removes_what_the_mode_left() {
    let folder = tempfile::tempdir().unwrap();
    let endings = ["-save", "-restore", "-nft-save", "-nft-restore", "-legacy-save", "-legacy-restore"];
    programs::in_front(folder.path(), &endings, |_| {
        "echo 'Could not fetch rule set generation id: Permission denied (you must be root)' >&2\nexit 4\n"
            .to_owned()
    });
    replaced_by_an_agent_with(&programs::path(folder.path()));
}

#[test]
fn a_cleanup_puts_the_settings_back_whatever_ran_last() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.world.node().namespace();
    let settings = || {
        let paths = ["vs/conntrack", "vs/expire_nodest_conn", "vs/expire_quiescent_template"];
        let all = paths.into_iter().chain(["conf/all/arp_ignore", "conf/all/arp_announce"]);
        let read = |path| node.output("cat", &[&format!("/proc/sys/net/ipv4/{path}")]).unwrap();
        all.map(read).collect::<String>()
    };
    let before = settings();
    let mut proxy = cluster.proxy_with("mode: ipvs\nipvs: {strictARP: true}\n");
    assert_eq!(settings(), "1\n1\n1\n1\n2\n", "{}", proxy.output());
    cluster.configure("mode: nftables\n");
    logged(&mut proxy, COMPLETE, 2);
    only(node, "nftables", &proxy);
    proxy.terminate(PATIENCE).unwrap();
    // Nothing of the IPVS mode is left but its settings, and the first clean-up cannot write them.
    let clean = |script: &str| {
        let arguments = ["--mount", "--propagation", "private", "sh", "-c", script];
        let mut cleanup = PortolanProcess::start(node, "unshare".as_ref(), &arguments).unwrap();
        let status = cleanup.wait_for_end(PATIENCE).unwrap();
        (status.code(), cleanup.output())
    };
    let read_only = "mount -o bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys";
    let (code, output) = clean(&format!("{read_only} && exec {} cleanup", common::BINARY));
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("sysctl -w net.ipv4.conf.all.arp_announce=0"), "{output}");
    let (code, output) = clean(&format!("exec {} cleanup", common::BINARY));
    assert_eq!((code, settings()), (Some(0), before), "{output}");
}
