//! `portolan explain --kernel` beside the proxy: what is programmed is read from the kernel, in the mode that runs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::process::Command;

use common::{BINARY, Cluster, PATIENCE, at, objects, reaches};
use portolan_model::Family;
use portolan_testkit::{Namespace, Protocol};
use serde_json::{Value, json};
use tempfile::TempDir;

const CLUSTER_IP: &str = "10.96.0.10";
/// kube-proxy's table, as it writes it. Its Service demo/web has three endpoints.
const KUBE_PROXY_NFT: &str = include_str!("../../nftables/tests/kernel/upstream/ipv4.nft");

/// The objects of the cluster as a file, and the node.
struct Asked<'a> {
    folder: TempDir,
    node: &'a Namespace,
    client: String,
}

impl Asked<'_> {
    /// Returns the exit status and the report for a new connection of a pod to the Service.
    fn explain(&self) -> (Option<i32>, Value) {
        self.explain_to(&format!("{CLUSTER_IP}:80"), &[])
    }

    /// Returns the exit status and the report for a new connection of the client.
    fn explain_to(&self, to: &str, flags: &[&str]) -> (Option<i32>, Value) {
        let manifests = format!("--manifests={}", self.folder.path().display());
        let arguments = ["explain", &self.client, to, &manifests, "--kernel", "-o=json"];
        let run = || Command::new(BINARY).args(arguments).args(flags).output().unwrap();
        let output = self.node.run(run).unwrap();
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
        });
        (output.status.code(), report)
    }
}

fn explains_what_is_programmed(mode: &str, damage: Option<(&str, &[&str], &str)>) {
    explains_in(&Cluster::new(), mode, damage);
}

fn explains_in(cluster: &Cluster, mode: &str, damage: Option<(&str, &[&str], &str)>) {
    let node = cluster.world.node().namespace();
    let (pods, client) = (cluster.all_pods(), cluster.world.pods()[1].clone());
    let mut proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
    let service = objects::cluster_ip("web", CLUSTER_IP);
    cluster.service(service.clone(), &pods[..1]);
    reaches(client.namespace(), Protocol::Tcp, at(&format!("{CLUSTER_IP}:80")), &pods[..1]);
    let asked =
        Asked { folder: TempDir::new().unwrap(), node, client: client.address(Family::Ipv4).to_string() };
    let slices = objects::slice("web", &pods[..1], &objects::ports(&service));
    let items = json!([objects::node(&cluster.world), service, slices]);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    fs::write(asked.folder.path().join("objects.json"), list.to_string()).unwrap();

    let (status, report) = asked.explain();
    assert_eq!(report["mode"], mode, "the mode is found in the kernel: {report}");
    assert_eq!((status, &report["programmed"]["asWanted"]), (Some(0), &json!(true)), "{report}");
    if let Some((program, arguments, code)) = damage {
        // The rules stay, and are not mended.
        assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
        node.output(program, arguments).unwrap();
        let (status, report) = asked.explain();
        let found = &report["programmed"]["differences"][0]["code"];
        assert_eq!((status, found), (Some(5), &json!(code)), "{report}");
        assert_eq!(report["wanted"]["fate"], "delivered", "Services are not the reason");
    }
}

#[test]
fn in_nftables_mode() {
    let flush: &[&str] = &["flush", "map", "ip", "portolan", "services"];
    explains_what_is_programmed("nftables", Some(("nft", flush, "service-port-missing")));
}

#[test]
fn in_iptables_mode() {
    let flush: &[&str] = &["-t", "nat", "-F", "KUBE-SERVICES"];
    explains_what_is_programmed("iptables", Some(("iptables", flush, "frontend-missing")));
}

/// Left out without IPVS in the kernel.
#[test]
fn in_ipvs_mode() {
    let Some(cluster) = common::ipvs::cluster() else { return };
    explains_in(&cluster, "ipvs", Some(("ipvsadm", &["--clear"], "service-port-missing")));
}

#[test]
fn in_userspace_mode() {
    explains_what_is_programmed("userspace", None);
}

#[test]
fn of_kube_proxys_nftables_mode() {
    let node = Namespace::new("explain").unwrap();
    // The node has a way to the endpoints.
    node.ip("link set lo up\nlink add eth0 type veth peer name other0\naddr add 10.180.0.1/15 dev eth0\nlink set eth0 up\nlink set other0 up\n")
        .unwrap();
    node.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
    node.output_with_input("nft", &["-f", "-"], KUBE_PROXY_NFT).unwrap();
    let asked = Asked { folder: TempDir::new().unwrap(), node: &node, client: "10.180.0.99".to_owned() };
    let web = "172.30.10.1:80";
    let describe = |endpoints: &[&str]| {
        let endpoints: Vec<Value> = endpoints.iter().map(|address| json!({"addresses": [address]})).collect();
        let items = json!([
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "demo"},
                "spec": {"clusterIP": "172.30.10.1", "ports": [{"name": "http", "port": 80}]},
            },
            {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "web", "namespace": "demo", "labels": {"kubernetes.io/service-name": "web"}},
                "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
            },
        ]);
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        fs::write(asked.folder.path().join("objects.json"), list.to_string()).unwrap();
    };
    describe(&["10.180.0.11", "10.180.1.12", "10.180.1.13"]);
    for flags in [&[][..], &["--proxy-mode=nftables"][..]] {
        let (status, report) = asked.explain_to(web, flags);
        assert_eq!(report["mode"], "nftables", "the mode is found in the kernel: {report}");
        assert_eq!((status, &report["programmed"]["asWanted"]), (Some(0), &json!(true)), "{report}");
    }
    let (_, report) = asked.explain_to(web, &["--proxy-mode=iptables"]);
    assert_eq!(report["programmed"], Value::Null, "it is not of this mode: {report}");
    describe(&["10.180.0.11", "10.180.1.12", "10.180.1.14"]);
    let (status, report) = asked.explain_to(web, &[]);
    let codes: Vec<&Value> = report["programmed"]["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|difference| &difference["code"])
        .collect();
    assert_eq!(status, Some(5), "{report}");
    assert!(
        codes.contains(&&json!("endpoint-missing")) && codes.contains(&&json!("endpoint-extra")),
        "{codes:?}"
    );
}
