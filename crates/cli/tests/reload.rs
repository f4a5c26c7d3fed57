//! The configuration file changes while the proxy runs. Needs root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use portolan_testkit::{Pod, PortolanProcess, Probe, ProbeResult, Protocol, eventually};
use serde_json::Value;

use common::faulty::{Fault, FaultyServer};
use common::kernel::generation;
use common::load::{assert_lossless, busy_services};
use common::{Cluster, PATIENCE, at, configuration, ends_as, http, load, logged, objects, reaches};

const TAKEN: &str = "the changed configuration is in use";
const REFUSED: &str = "the changed configuration is refused";
const NOTHING: &str = "the configuration file changed, but nothing of what is in use";

/// Returns the configuration on `/configz`.
fn configz(cluster: &Cluster, metrics: &str) -> Option<Value> {
    let answer = http::get(cluster.world.node().namespace(), at(metrics), "/configz")?;
    let page: Value = serde_json::from_str(&answer.body).unwrap();
    Some(page["kubeproxy.config.k8s.io"].clone())
}

/// Replaces the configuration and waits until it is active.
fn reconfigure(cluster: &Cluster, proxy: &mut PortolanProcess, yaml: &str) {
    let before = proxy.output().matches(TAKEN).count();
    cluster.configure(yaml);
    logged(proxy, TAKEN, before + 1);
}

/// Writes a kubeconfig with this server. Returns its path.
fn kubeconfig(cluster: &Cluster, name: &str, server: &str) -> String {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    let path = cluster.configuration_file().with_file_name(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn seen_source(cluster: &Cluster, from: &Pod) -> IpAddr {
    let result = from.namespace().probe(Probe::new(Protocol::Tcp, at("10.96.0.10:80"))).unwrap();
    let source = result.seen_source();
    source.unwrap_or_else(|| panic!("{result:?} from {} of {:?}", from.namespace().name(), cluster.address))
}

#[test]
fn under_load_good_files_are_applied_bad_ones_refused_and_nothing_is_lost() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    let load = load::start(&cluster);
    let good = [
        "nftables: {masqueradeAll: true, minSyncPeriod: 0s}\n",
        "nftables: {masqueradeBit: 7, minSyncPeriod: 0s}\n",
        "detectLocalMode: NodeCIDR\n",
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}\n",
        "nodePortAddresses: [0.0.0.0/0, '::/0']\n",
        "nodePortAddresses: [192.168.100.0/24, 'fd00:192:168:100::/64']\n",
        "nftables: {syncPeriod: 10s, minSyncPeriod: 5s}\n",
        "conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 1h}\noomScoreAdj: -500\n",
        "portolan: {serviceCounters: true}\n",
        "",
    ];
    let bad = [
        ("nodePortAddresses: [everywhere]\nnftables: {masqueradeBit: 32}\n", "nftables.masqueradeBit"),
        ("hostnameOverride: other\n", "hostnameOverride"),
        ("mode: userspace\nportRange: '1'\n", "portRange"),
        ("healthzBindAddress: 203.0.113.99:10256\n", "healthzBindAddress: cannot listen"),
        ("clientConnection: {kubeconfig: /nowhere}\n", "/nowhere"),
        (": {\n", "not valid YAML"),
    ];
    for (round, yaml) in good.iter().enumerate() {
        reconfigure(&cluster, &mut proxy, yaml);
        let compared = 2 + proxy.output().matches("settings changed: comparing everything").count();
        logged(&mut proxy, common::IN_SYNC, compared);
        let shown = configz(&cluster, "127.0.0.1:10249").unwrap();
        let Some((yaml, reason)) = bad.get(round) else { continue };
        let generation = generation(cluster.world.node().namespace());
        let refused = proxy.output().matches(REFUSED).count();
        let text = configuration(yaml).replacen(
            "hostnameOverride: node1\n",
            "",
            usize::from(yaml.starts_with("hostname")),
        );
        fs::write(cluster.configuration_file(), text).unwrap();
        logged(&mut proxy, REFUSED, refused + 1);
        let output = proxy.output();
        let last = output.lines().rfind(|line| line.contains(REFUSED)).unwrap();
        assert!(last.contains(reason), "{last}");
        assert_eq!(configz(&cluster, "127.0.0.1:10249").unwrap(), shown, "the old one stays");
        // An applied configuration is followed by a comparison with the kernel. After a refused one, the kernel is
        // not even read.
        assert_eq!(common::kernel::generation(cluster.world.node().namespace()), generation, "{yaml}");
    }
    // The same values in other words, and then the same text again.
    let (taken, node) = (proxy.output().matches(TAKEN).count(), cluster.world.node().namespace());
    let before = generation(node);
    fs::write(cluster.configuration_file(), configuration("# in other words\n")).unwrap();
    logged(&mut proxy, NOTHING, 1);
    cluster.configure("# in other words\n");
    assert_eq!((proxy.output().matches(TAKEN).count(), generation(node)), (taken, before));
    assert_lossless(load);
}

#[test]
fn packets_meet_the_changed_configuration() {
    let cluster = Cluster::new();
    let backend = &cluster.world.remote_pods()[0];
    cluster.service(objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7"), &[backend]);
    let mut proxy = cluster.proxy();
    let pod = &cluster.world.pods()[0];
    let client = cluster.world.client().namespace();
    let own = pod.addresses().both();
    assert!(own.contains(&seen_source(&cluster, pod)));
    cluster.configure("clusterCIDR: 203.0.113.0/24\nnodePortAddresses: [203.0.113.0/24]\n");
    let masqueraded = || !own.contains(&seen_source(&cluster, pod));
    assert!(eventually(PATIENCE, "another local detection", masqueraded).is_ok(), "{}", proxy.output());
    reaches(client, Protocol::Tcp, at("203.0.113.1:30080"), &[backend]);
    ends_as(client, Protocol::Tcp, at("192.168.100.1:30080"), ProbeResult::Refused);
    reconfigure(&cluster, &mut proxy, "");
    assert!(eventually(PATIENCE, "the first local detection", || !masqueraded()).is_ok());
    ends_as(client, Protocol::Tcp, at("203.0.113.1:30080"), ProbeResult::Refused);
    reaches(client, Protocol::Tcp, at("192.168.100.1:30080"), &[backend]);
}

/// The entry of such a flow is older than the rules for its address.
#[test]
fn udp_flows_reach_addresses_that_accept_node_ports_later() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with("nodePortAddresses: [203.0.113.0/24, 'fd00:192:168:100::/64']\n");
    let client = cluster.world.client().namespace();
    let probe = Probe::new(Protocol::Udp, at("192.168.100.1:30080")).from_port(40_000);
    assert_eq!(client.probe(probe).unwrap(), ProbeResult::Refused);
    reconfigure(&cluster, &mut proxy, "");
    let answered = || client.probe(probe).unwrap().backend().is_some();
    assert!(eventually(PATIENCE, "an answer", answered).is_ok(), "{}", proxy.output());
}

fn answers(cluster: &Cluster, address: &str, path: &str) -> Option<u16> {
    http::get(cluster.world.node().namespace(), at(address), path).map(|answer| answer.status)
}

/// Moves the health server under continuous requests, which try the former address first.
fn move_health(cluster: &Cluster, proxy: &mut PortolanProcess, yaml: &str, from: &str, to: &str) {
    let (moved, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // When the former address is closed, the new one must be open.
            while !moved.load(Ordering::Relaxed) {
                let answer = answers(cluster, from, "/livez").or_else(|| answers(cluster, to, "/livez"));
                assert_eq!(answer, Some(200), "from {from} to {to}");
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        reconfigure(cluster, proxy, yaml);
        let enough = asked.load(Ordering::Relaxed) + 2;
        let polled = eventually(PATIENCE, "an answer", || asked.load(Ordering::Relaxed) >= enough);
        moved.store(true, Ordering::Relaxed);
        assert!(polled.is_ok());
    });
    let output = proxy.output();
    let opened = output.rfind(&format!("\"listening\" server=\"health\" address=\"{to}\"")).expect(&output);
    let closed = output.rfind(&format!("\"stopped listening\" address=\"{from}\"")).expect(&output);
    assert!(opened < closed, "from {from} to {to}: {output}");
    assert_eq!(answers(cluster, from, "/livez"), None);
}

#[test]
fn servers_move_and_the_new_address_is_open_before_the_old_one_closes() {
    let cluster = Cluster::new();
    let here = ("127.0.0.1:10298", "healthzBindAddress: 127.0.0.1:10298\n");
    let there = (
        "192.168.100.1:10300",
        "healthzBindAddress: 192.168.100.1:10300\nmetricsBindAddress: 127.0.0.1:10301\n",
    );
    let mut proxy = cluster.proxy_with(here.1);
    for _ in 0..3 {
        move_health(&cluster, &mut proxy, there.1, here.0, there.0);
        assert_eq!(answers(&cluster, "127.0.0.1:10249", "/metrics"), None);
        let shown = configz(&cluster, "127.0.0.1:10301").unwrap();
        assert_eq!(shown["healthzBindAddress"], there.0);
        move_health(&cluster, &mut proxy, here.1, there.0, here.0);
    }
    // The same port of every address: the former listener has to close first.
    reconfigure(&cluster, &mut proxy, "healthzBindAddress: 0.0.0.0:10298\n");
    let everywhere = || answers(&cluster, "192.168.100.1:10298", "/livez") == Some(200);
    assert!(eventually(PATIENCE, "every address", everywhere).is_ok(), "{}", proxy.output());
    reconfigure(&cluster, &mut proxy, "");
    assert_eq!(answers(&cluster, "127.0.0.1:10256", "/livez"), Some(200));
    assert_eq!(answers(&cluster, "127.0.0.1:10298", "/livez"), None);
}

#[test]
fn servers_that_have_to_listen_swap_their_addresses() {
    let cluster = Cluster::new();
    let yaml = |health: &str, metrics: &str| {
        format!("bindAddressHardFail: true\nhealthzBindAddress: {health}\nmetricsBindAddress: {metrics}\n")
    };
    let (one, other) = ("127.0.0.1:10401", "127.0.0.1:10402");
    let mut proxy = cluster.proxy_with(&yaml(one, other));
    for (health, metrics) in [(other, one), (one, other), ("0.0.0.0:10402", "0.0.0.0:10401"), (one, other)] {
        reconfigure(&cluster, &mut proxy, &yaml(health, metrics));
        let [health, metrics] = [health, metrics].map(|address| address.replace("0.0.0.0", "127.0.0.1"));
        let swapped = || {
            answers(&cluster, &health, "/livez") == Some(200)
                && answers(&cluster, &metrics, "/metrics") == Some(200)
        };
        let outcome = eventually(PATIENCE, "both servers", swapped);
        assert!(outcome.is_ok() && proxy.ended().is_none(), "{}", proxy.output());
        assert_eq!(answers(&cluster, &health, "/metrics"), Some(404));
    }
    // A server that stays is in the way of the other one.
    cluster.configure(&yaml(other, other));
    logged(&mut proxy, REFUSED, 1);
    // Another program is too, but this shows only when the proxy's own server is closed.
    let others =
        cluster.world.node().namespace().run(|| TcpListener::bind("192.168.100.1:10401").unwrap()).unwrap();
    reconfigure(&cluster, &mut proxy, &yaml("0.0.0.0:10401", other));
    logged(&mut proxy, "cannot listen; trying again", 1);
    assert_eq!(answers(&cluster, other, "/metrics"), Some(200));
    drop(others);
    let outcome = eventually(PATIENCE, "the address", || answers(&cluster, one, "/livez") == Some(200));
    assert!(outcome.is_ok() && proxy.ended().is_none(), "{}", proxy.output());
}

#[test]
fn a_reload_to_hard_fail_checks_that_the_server_can_listen() {
    let cluster = Cluster::new();
    let taken = || TcpListener::bind("127.0.0.1:10411").unwrap();
    let others = cluster.world.node().namespace().run(taken).unwrap();
    let mut proxy = cluster.proxy_with("metricsBindAddress: 127.0.0.1:10411\n");
    let hard_fail = "bindAddressHardFail: true\nmetricsBindAddress: 127.0.0.1:10411\n";
    cluster.configure(hard_fail);
    logged(&mut proxy, REFUSED, 1);
    assert!(
        proxy.output().contains("metricsBindAddress: cannot listen on 127.0.0.1:10411"),
        "{}",
        proxy.output()
    );
    portolan_testkit::close(&others).unwrap();
    drop(others);
    reconfigure(&cluster, &mut proxy, &format!("{hard_fail}oomScoreAdj: 5\n"));
    assert_eq!(answers(&cluster, "127.0.0.1:10411", "/metrics"), Some(200));
}

#[test]
fn a_node_without_pod_cidrs_keeps_its_local_detection() {
    let cluster = Cluster::new();
    let mut node = objects::node(&cluster.world);
    node["spec"]["podCIDRs"] = serde_json::json!([]);
    cluster.overwrite_node(node);
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    cluster.configure("detectLocalMode: NodeCIDR\n");
    logged(&mut proxy, REFUSED, 1);
    assert!(proxy.output().contains("the Node has no spec.podCIDRs"), "{}", proxy.output());
    let settings = "settings changed: comparing everything";
    assert!(!proxy.output().contains(settings), "{}", proxy.output());
    cluster.apply(objects::node(&cluster.world));
    logged(&mut proxy, "the Node's addresses or pod CIDRs changed", 1);
    reconfigure(&cluster, &mut proxy, "detectLocalMode: NodeCIDR\noomScoreAdj: 5\n");
}

#[test]
fn ignored_fields_of_a_changed_file_are_logged() {
    let cluster = Cluster::new();
    let mut proxy = cluster.proxy();
    reconfigure(&cluster, &mut proxy, "resourceContainer: /kube-proxy\noomScoreAdj: 5\n");
    let output = proxy.output();
    assert!(output.contains("resourceContainer"), "{output}");
}

#[test]
fn another_kubeconfig_is_followed_without_a_gap() {
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[one]);
    let yaml = |name: &str, server: &str| {
        format!("clientConnection: {{kubeconfig: {}}}\n", kubeconfig(&cluster, name, server))
    };
    let first = yaml("first", &cluster.master());
    let nowhere = yaml("nowhere", "http://127.0.0.1:1");
    let second = yaml("second", &cluster.master());
    cluster.configure(&first);
    let file = cluster.configuration_file();
    let mut proxy = cluster.run(&["proxy", "--config", file.to_str().unwrap()]);
    common::in_sync(&mut proxy);
    let client = cluster.world.client().namespace();
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &[one]);
    let traffic = load::plan("10.96.0.10:80");
    let load = vec![("client", portolan_testkit::Traffic::start(client, traffic).unwrap())];
    reconfigure(&cluster, &mut proxy, &nowhere);
    reconfigure(&cluster, &mut proxy, &second);
    let pods = [one, other];
    cluster.apply(objects::slice("web", &pods, &objects::ports(&objects::cluster_ip("web", "10.96.0.10"))));
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &pods);
    assert_lossless(load);
}

/// The watcher of the new `clientConnection` gets the known objects of the former one.
#[test]
fn an_empty_list_of_another_api_server_is_not_believed_alone() {
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[one]);
    cluster.service(objects::cluster_ip("api", "10.96.0.11"), &[other]);
    let yaml = |name: &str, server: &str| {
        format!("clientConnection: {{kubeconfig: {}}}\n", kubeconfig(&cluster, name, server))
    };
    cluster.configure(&yaml("first", &cluster.master()));
    let file = cluster.configuration_file();
    let mut proxy = cluster.run(&["proxy", "--config", file.to_str().unwrap()]);
    common::in_sync(&mut proxy);
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &[one]);
    reaches(client, Protocol::Tcp, at("10.96.0.11:80"), &[other]);
    let before = generation(node);
    let port = common::listen(node, 0).local_addr().unwrap().port();
    let empty = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#;
    let _faulty = FaultyServer::start(node, port, Fault::Lists(empty));
    reconfigure(&cluster, &mut proxy, &yaml("empty", &format!("http://127.0.0.1:{port}")));
    let held = r#"portolan_watch_empty_lists_held_total{resource="services"} 1"#;
    let held = || common::page(&cluster, "/metrics").contains(held);
    assert!(eventually(PATIENCE, "the metric", held).is_ok(), "{}", proxy.output());
    reaches(client, Protocol::Tcp, at("10.96.0.10:80"), &[one]);
    reaches(client, Protocol::Tcp, at("10.96.0.11:80"), &[other]);
    assert_eq!(generation(node), before, "nothing is written");
}

#[test]
fn a_mounted_config_map_is_followed() {
    let cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    let at_name = |name: &str| folder.path().join(name);
    let publish = |version: &str, yaml: &str| {
        fs::create_dir(at_name(version)).unwrap();
        fs::write(at_name(version).join("config.conf"), configuration(yaml)).unwrap();
        symlink(version, at_name("..data_tmp")).unwrap();
        fs::rename(at_name("..data_tmp"), at_name("..data")).unwrap();
    };
    publish("..1", "");
    symlink("..data/config.conf", at_name("config.conf")).unwrap();
    let config = at_name("config.conf");
    let arguments = ["proxy", "--config", config.to_str().unwrap(), "--master", &cluster.master()];
    let mut proxy = cluster.run(&arguments);
    common::in_sync(&mut proxy);
    let mut before = "..1".to_owned();
    for version in 2..5 {
        let name = format!("..{version}");
        publish(&name, &format!("oomScoreAdj: {version}\n"));
        logged(&mut proxy, TAKEN, version - 1);
        fs::remove_dir_all(at_name(&before)).unwrap();
        before = name;
        let shown = configz(&cluster, "127.0.0.1:10249").unwrap();
        assert_eq!(shown["oomScoreAdj"], version);
        let score = || fs::read_to_string(format!("/proc/{}/oom_score_adj", proxy.id())).unwrap();
        assert!(eventually(PATIENCE, "the score", || score().trim() == version.to_string()).is_ok());
    }
    // With `--config-reload=false`, the proxy ends like kube-proxy, also after a swapped symlink.
    proxy.terminate(PATIENCE).unwrap();
    let mut proxy = cluster.run(&[&arguments[..], &["--config-reload=false"]].concat());
    common::in_sync(&mut proxy);
    publish("..5", "oomScoreAdj: 5\n");
    let status = proxy.wait_for_end(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(1), "{}", proxy.output());
    let said = "content of the proxy server's configuration file was updated";
    assert!(proxy.output().contains(said), "{}", proxy.output());
}
