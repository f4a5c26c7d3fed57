//! Health and metrics are answered, and settings are applied, while the proxy waits for a program of iptables. Needs root,
//! nft and iptables, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::path::Path;

use portolan_testkit::{PortolanProcess, ProbeResult, Protocol, eventually};
use serde_json::Value;
use tempfile::TempDir;

use common::gate::Gate;
use common::kernel::nft;
use common::{
    BINARY, COMPLETE, Cluster, PATIENCE, at, ends_as, http, in_sync, logged, objects, page, programs, reaches,
};

const HEALTH: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";

/// Programs in front of those of the node. While there is a gate, each waits at it before it runs.
struct Programs {
    folder: TempDir,
    gate: Gate,
}

impl Programs {
    /// Creates a program for each one of the node that restores rules.
    fn restoring() -> Self {
        Self::new(&["-restore", "-nft-restore", "-legacy-restore"])
    }

    /// Creates a program for each one of the node that only a search for programs calls, if kubelet has left no hint.
    fn searched() -> Self {
        Self::new(&["-nft", "-legacy"])
    }

    /// Creates a program for each one of the node with one of these endings.
    fn new(endings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gate = Gate::new(folder.path());
        let script = |own: &Path| format!("{}exec {} \"$@\"\n", gate.line(), own.display());
        programs::in_front(folder.path(), endings, script);
        Self { folder, gate }
    }

    /// Returns a `PATH` on which these programs are found first.
    fn path(&self) -> String {
        programs::path(self.folder.path())
    }
}

/// Starts the proxy with these programs, and waits until both families are in sync.
fn start(cluster: &Cluster, programs: &Programs) -> PortolanProcess {
    let (file, master, path) = (cluster.configuration_file(), cluster.master(), programs.path());
    let arguments = ["proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let (node, environment) = (cluster.world.node().namespace(), [("PATH", path.as_str())]);
    let started = PortolanProcess::start_with_environment(node, BINARY.as_ref(), &arguments, &environment);
    let mut proxy = started.unwrap();
    in_sync(&mut proxy);
    proxy
}

/// Returns the metrics page. Asserts that health and metrics are answered with status 200.
fn answers(cluster: &Cluster) -> String {
    let get = |to, path| http::get(cluster.world.node().namespace(), at(to), path).expect("an answer");
    for (to, path) in [(HEALTH, "/livez"), (HEALTH, "/healthz"), (METRICS, "/proxyMode")] {
        assert_eq!(get(to, path).status, 200, "{path}");
    }
    let metrics = get(METRICS, "/metrics");
    assert_eq!(metrics.status, 200);
    metrics.body
}

/// Returns the value of a field on `/configz`.
fn configured(cluster: &Cluster, field: &str) -> Value {
    let text = page(cluster, "/configz");
    let shown: Value = serde_json::from_str(&text).unwrap();
    shown["kubeproxy.config.k8s.io"][field].clone()
}

#[test]
fn health_and_metrics_are_answered_while_a_program_waits() {
    const REFUSED: &str = "the changed configuration is refused";
    let (cluster, programs) = (Cluster::new(), Programs::restoring());
    let [pod, other] = cluster.world.pods() else { panic!("two pods") };
    let client = cluster.world.client().namespace();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[pod]);
    cluster.configure("");
    let mut proxy = start(&cluster, &programs);

    programs.gate.hold();
    cluster.configure("mode: iptables\n");
    let held = programs.gate.held(&proxy);
    let metrics = answers(&cluster);
    assert!(metrics.contains("portolan_proxy_mode{mode=\"nftables\""), "{metrics}");
    // Changes of objects are programmed meanwhile, and a later file waits for its turn.
    cluster.service(objects::cluster_ip("db", "10.96.0.11"), &[other]);
    reaches(client, Protocol::Tcp, at("10.96.0.11:80"), &[other]);
    cluster.configure("mode: iptables\nconfigSyncPeriod: 7m\n");
    answers(&cluster);
    assert_eq!(configured(&cluster, "mode"), "nftables");

    programs.gate.release(held);
    logged(&mut proxy, COMPLETE, 2);
    let newest = || configured(&cluster, "configSyncPeriod") == "7m0s";
    assert!(eventually(PATIENCE, "the newest content", newest).is_ok(), "{}", proxy.output());
    assert_eq!(configured(&cluster, "mode"), "iptables");
    let metrics = answers(&cluster);
    assert!(metrics.contains("portolan_proxy_mode{mode=\"iptables\""), "{metrics}");
    assert!(!proxy.output().contains(REFUSED), "{}", proxy.output());
    for (to, pod) in [("10.96.0.10:80", pod), ("10.96.0.11:80", other)] {
        reaches(client, Protocol::Tcp, at(to), &[pod]);
    }
}

#[test]
fn settings_are_applied_while_a_new_data_plane_waits_for_the_search_for_programs() {
    const REPLACES: &str = "another data plane takes over: writing its rules";
    const NODE_PORTS: [&str; 2] = ["192.168.100.1:30080", "[fd00:192:168:100::1]:30081"];
    let (cluster, programs) = (Cluster::new(), Programs::searched());
    let [pod, other] = cluster.world.pods() else { panic!("two pods") };
    let client = cluster.world.client().namespace();
    cluster.service(objects::load_balancer("v4", "10.96.0.10", 30080, "198.51.100.7"), &[pod]);
    cluster.service(objects::load_balancer("v6", "fd00:96::10", 30081, "2001:db8:100::7"), &[pod]);
    // Its removal is logged. After that, no other search is under way.
    nft(cluster.world.node().namespace(), "add table ip kube-proxy");
    cluster.configure("mode: iptables\n");
    let mut proxy = start(&cluster, &programs);
    logged(&mut proxy, "removed what kube-proxy left", 1);
    for to in NODE_PORTS {
        reaches(client, Protocol::Tcp, at(to), &[pod]);
    }

    programs.gate.hold();
    // Node ports of IPv4 work on loopback no longer. This takes another data plane, and that one the programs.
    cluster.configure("mode: iptables\nnodePortAddresses: [10.244.0.0/16, 'fd00:10:244::/48']\n");
    let held = programs.gate.held(&proxy);
    for to in NODE_PORTS {
        ends_as(client, Protocol::Tcp, at(to), ProbeResult::Refused);
    }
    answers(&cluster);
    cluster.service(objects::cluster_ip("db", "10.96.0.11"), &[other]);
    reaches(client, Protocol::Tcp, at("10.96.0.11:80"), &[other]);
    assert!(!proxy.output().contains(REPLACES), "{}", proxy.output());

    programs.gate.release(held);
    logged(&mut proxy, REPLACES, 1);
    reaches(client, Protocol::Tcp, at("10.244.1.1:30080"), &[pod]);
    ends_as(client, Protocol::Tcp, at(NODE_PORTS[0]), ProbeResult::Refused);
}
