//! `portolan explain` beside a running proxy and its API server: both answer as each other. Needs root and nft, and fails
//! without.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::TcpStream;
use std::process::Command;

use common::{BINARY, Cluster, NODE, PATIENCE, at, objects, reaches};
use portolan_model::Family;
use portolan_testkit::{Protocol, eventually};
use serde_json::{Value, json};

const CLUSTER_IP: &str = "10.96.0.10";
/// The flags of the proxy that mean the configuration of the cluster's proxy.
const SAME: [&str; 2] = ["--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"];

/// One run of `portolan explain` on the node.
struct Run {
    status: i32,
    out: String,
    err: String,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }
}

fn explain(cluster: &Cluster, arguments: &[&str]) -> Run {
    let run = || Command::new(BINARY).arg("explain").args(arguments).output().unwrap();
    let output = cluster.world.node().namespace().run(run).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn socket(cluster: &Cluster) -> String {
    format!("--control-socket={}", cluster.control_socket().display())
}

#[test]
fn the_running_proxy_and_the_api_server_answer_the_same() {
    let cluster = Cluster::new();
    let client = cluster.world.pods()[1].clone();
    let pods = cluster.all_pods();
    let _proxy = cluster.proxy();
    cluster.service(objects::cluster_ip("web", CLUSTER_IP), &pods);
    let vip = at(&format!("{CLUSTER_IP}:80"));
    reaches(client.namespace(), Protocol::Tcp, vip, &pods);
    // The probes end with a reset, and conntrack keeps such connections for seconds only.
    let _held = client.namespace().run(|| TcpStream::connect(vip).unwrap()).unwrap();

    let (from, socket, master) =
        (client.address(Family::Ipv4).to_string(), socket(&cluster), cluster.master());
    let question = [from.as_str(), "svc/web/tcp", "-o=json"];
    let running = explain(&cluster, &[&question[..], &[&socket]].concat());
    assert_eq!((running.status, running.err.as_str()), (0, ""));
    let running = running.json();
    assert_eq!((&running["source"], &running["mode"]), (&json!("agent"), &json!("nftables")));
    assert_eq!((&running["programmed"]["asWanted"], &running["firewall"]), (&json!(true), &json!([])));
    let connections = running["connections"]["count"].as_u64().unwrap();
    assert!(connections > 0, "the one that is held: {running:#}");

    let master = format!("--master={master}");
    // The node is that with the client's pod CIDR.
    let of_server = explain(&cluster, &[&question[..], &SAME, &[&master]].concat());
    assert_eq!((of_server.status, of_server.err.as_str()), (0, ""));
    let mut of_server = of_server.json();
    assert_eq!((&of_server["source"], &of_server["node"]), (&json!("api-server"), &json!(NODE)));
    assert_eq!(of_server["programmed"], Value::Null);
    // The proxy keeps no names of other nodes.
    let endpoints = of_server["wanted"]["endpoints"].as_array_mut().unwrap();
    assert_eq!(endpoints.len(), 3);
    for endpoint in endpoints {
        assert!(endpoint.as_object_mut().unwrap().remove("node").is_some(), "{endpoint}");
    }
    for part in ["wanted", "from", "to", "node", "mode", "outcome", "summary"] {
        assert_eq!(of_server[part], running[part], "{part}");
    }
    let with_kernel = explain(&cluster, &[&question[..], &SAME, &[&master, "--kernel"]].concat()).json();
    assert_eq!(with_kernel["programmed"]["asWanted"], json!(true), "{with_kernel:#}");

    let text = explain(&cluster, &[&from, "svc/web/tcp", &socket]);
    let sources = "wanted: from the running proxy; programmed: from the kernel, read by the proxy";
    assert_eq!(text.out.lines().nth(2), Some(sources), "{}", text.out);
    let without = explain(&cluster, &[&question[..], &[&socket, "--proxy-mode=ipvs", "--v=1"]].concat());
    assert_eq!((without.status, &without.json()["mode"]), (0, &json!("nftables")));
    assert!(without.err.contains("without effect: --proxy-mode, --v\n"), "{}", without.err);
    let other = explain(&cluster, &[&from, "svc/web/tcp", &socket, "--node=node2"]);
    assert_eq!(other.status, 1);
    assert!(other.err.starts_with("Error: the running proxy is that of node node1; ask"), "{}", other.err);
    let refused = explain(&cluster, &[&from, "svc/none", &socket]);
    assert_eq!(refused.status, 1);
    assert!(refused.err.starts_with("Error: no Service `svc/none` with a cluster IP"), "{}", refused.err);
    let pod = explain(&cluster, &["pod/web-1", "svc/web/tcp", &socket]);
    assert_eq!(pod.status, 1);
    for part in ["Error: no pod `web-1` ", "--kubeconfig FILE --kernel", "--manifests PATH"] {
        assert!(pod.err.contains(part), "{part}: {}", pod.err);
    }
    let nowhere = explain(&cluster, &["outside", "svc/web/tcp", &master, "--node=nowhere"]);
    assert_eq!((nowhere.status, nowhere.err.as_str()), (1, "Error: the cluster has no Node `nowhere`\n"));
}

#[test]
fn a_change_that_waits_is_not_as_wanted_and_the_note_says_so() {
    let cluster = Cluster::new();
    let pods = cluster.all_pods();
    let _proxy = cluster.proxy_with("nftables: {minSyncPeriod: 1h, syncPeriod: 2h}\n");
    let socket = socket(&cluster);
    let ask = || explain(&cluster, &["outside", &format!("{CLUSTER_IP}:80"), &socket, "-o=json"]);
    assert_eq!(ask().status, 3, "no Service has the cluster IP");
    cluster.service(objects::cluster_ip("web", CLUSTER_IP), &pods[..1]);
    let mut last = None;
    let outcome = eventually(PATIENCE, "the change", || {
        let run = ask();
        // A proxy that is too busy to answer in time prints no report.
        let report: Option<Value> = serde_json::from_str(&run.out).ok();
        let is_known = report.is_some_and(|report| report["wanted"]["fate"] == "delivered");
        last = Some(run);
        is_known
    });
    let last = last.unwrap();
    assert!(outcome.is_ok(), "{}{}", last.out, last.err);
    let report = last.json();
    assert_eq!((last.status, &report["outcome"]), (5, &json!("not-as-wanted")), "{report:#}");
    assert_eq!(report["programmed"]["differences"][0]["code"], "service-port-missing", "{report:#}");
    let codes: Vec<&Value> = report["notes"].as_array().unwrap().iter().map(|note| &note["code"]).collect();
    assert_eq!(codes, ["changes-pending"]);
}
