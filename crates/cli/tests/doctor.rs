//! `portolan doctor` as a program: exit status, forms of the report, and `--fix`. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;
#[path = "doctor/leftovers.rs"]
mod leftovers;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use common::{BINARY, Cluster, NODE, PATIENCE};
use portolan_testkit::{Namespace, PortolanProcess};
use serde_json::Value;
use tempfile::TempDir;

/// Runs the program in a namespace. Returns its exit status and standard output.
fn doctor(node: &Namespace, arguments: &[&str]) -> (i32, String) {
    let mut command = node.command(env!("CARGO_BIN_EXE_portolan"));
    command.args(["doctor"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_exit_status_says_whether_there_are_errors() {
    let node = Namespace::new("doctor").unwrap();
    let forward = |value| node.write_sysctls(&[("net/ipv4/ip_forward".to_owned(), value)]).unwrap();
    forward("0");
    let (status, json) = doctor(&node, &["-o", "json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status, 1, "{json}");
    assert_eq!(report["findings"][0]["code"], "forwarding-off");
    let (status, yaml) = doctor(&node, &["-o", "yaml"]);
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!((status, &from_yaml["findings"][0]["code"]), (1, &"forwarding-off".into()), "{yaml}");
    let (status, text) = doctor(&node, &["--fix", "--dry-run"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("would do: sysctl -w net.ipv4.ip_forward=1"), "{text}");
    let (status, text) = doctor(&node, &["--fix"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("done: sysctl -w net.ipv4.ip_forward=1"), "{text}");
    assert_eq!(doctor(&node, &[]), (0, "nothing found\n".to_owned()));
}

/// Returns the findings with a code.
fn findings<'a>(report: &'a Value, code: &str) -> Vec<&'a str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.filter(|found| found["code"] == code).map(|found| found["title"].as_str().unwrap()).collect()
}

fn report(node: &Namespace, arguments: &[&str]) -> (i32, Value) {
    let (status, json) = doctor(node, &[&["-o", "json"], arguments].concat());
    (status, serde_json::from_str(&json).unwrap())
}

#[test]
fn the_api_server_is_asked_with_flags_of_the_proxy() {
    let mut cluster = Cluster::new();
    let master = format!("--master={}", cluster.master());
    let own = format!("--hostname-override={NODE}");
    let node = cluster.world.node().namespace();
    assert_eq!(findings(&report(node, &[]).1, "api-server"), [""; 0], "not without such flags");

    let (_, found) = report(node, &[&master, &own]);
    let [title] = findings(&found, "api-server")[..] else { panic!("{found:#}") };
    assert!(title.starts_with("the API server http://") && title.contains("; its version is v1."), "{title}");
    for code in ["api-lacks", "api-denied", "events-denied", "clock-skewed", "node-missing", "no-pod-cidr"] {
        assert_eq!(findings(&found, code), [""; 0], "{code}: {found:#}");
    }
    assert_eq!(found["unread"], Value::Null, "{found:#}");

    let (status, found) = report(node, &[&master, "--hostname-override=other"]);
    assert_eq!((status, findings(&found, "node-missing")), (1, vec!["there is no Node other"]), "{found:#}");

    let mut bare = common::objects::node(&cluster.world);
    bare["metadata"]["name"] = "bare".into();
    bare["spec"] = serde_json::json!({});
    cluster.apply(bare);
    let of_bare = [master.as_str(), "--hostname-override=bare"];
    let severity = |found: &Value| {
        let all = found["findings"].as_array().unwrap();
        all.iter().find(|one| one["code"] == "no-pod-cidr").map(|one| one["severity"].clone())
    };
    let (_, found) = report(node, &of_bare);
    assert_eq!(severity(&found), Some("note".into()), "{found:#}");
    let (status, found) = report(node, &[&of_bare[..], &["--detect-local-mode=NodeCIDR"]].concat());
    assert_eq!((status, severity(&found)), (1, Some("error".into())), "{found:#}");

    cluster.stop_server();
    let (status, found) = report(cluster.world.node().namespace(), &[&master, &own]);
    assert_eq!((status, findings(&found, "api-unreachable").len()), (1, 1), "{found:#}");
}

#[test]
fn services_and_ranges_of_the_cluster_are_examined() {
    let cluster = Cluster::new();
    let (node, pods) = (cluster.world.node().namespace(), cluster.all_pods());
    let (master, own) = (format!("--master={}", cluster.master()), format!("--hostname-override={NODE}"));
    let ask = || report(node, &[&master, &own]);
    cluster.service(common::objects::cluster_ip("fine", "10.96.0.20"), &pods);
    let (status, before) = ask();
    for code in ["endpoints-unready", "no-local-endpoint", "overlapping-ranges"] {
        assert_eq!(findings(&before, code), [""; 0], "{before:#}");
    }

    let asleep = common::objects::cluster_ip("asleep", "10.96.0.21");
    let mut slice = common::objects::slice("asleep", &pods[..1], &common::objects::ports(&asleep));
    slice["endpoints"][0]["conditions"] = serde_json::json!({"ready": false, "serving": false});
    cluster.apply_all(vec![asleep, slice]);
    let mut afar = common::objects::cluster_ip("afar", "10.96.0.22");
    afar["spec"]["internalTrafficPolicy"] = "Local".into();
    cluster.service(afar, &pods[2..]);
    let (same, found) = ask();
    assert_eq!(same, status, "these are no errors: {found:#}");
    let titles = ["all 1 endpoints of the Service default/asleep are unready"];
    assert_eq!(findings(&found, "endpoints-unready"), titles, "{found:#}");
    let titles = ["the Service default/afar has internalTrafficPolicy Local and no endpoint on this node"];
    assert_eq!(findings(&found, "no-local-endpoint"), titles, "{found:#}");

    let mut node = common::objects::node(&cluster.world);
    node["spec"]["podCIDRs"][0] = "10.96.128.0/24".into();
    cluster.overwrite_node(node);
    let (status, found) = ask();
    let title = "the Service range 10.96.0.0/16 and the pod range 10.96.128.0/24 overlap";
    assert_eq!(status, 1, "{found:#}");
    assert!(findings(&found, "overlapping-ranges").contains(&title), "{found:#}");
}

/// Returns a kubeconfig of the role that may read everything, but write nothing.
fn kubeconfig_of_reader(node: &Namespace, data: &str) -> String {
    let arguments = ["serve", "kubeconfig", "--role", "read-only", "--token", "--data-dir", data];
    let output = node.run(|| Command::new(BINARY).args(arguments).output().unwrap()).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn missing_permissions_are_named() {
    let (world, folder) = (common::world(), TempDir::new().unwrap());
    let node = world.node().namespace();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let kubeconfig = kubeconfig_of_reader(node, &at("data"));
    let arguments = ["serve", "--data-dir", &at("data")];
    let mut server = PortolanProcess::start(node, BINARY.as_ref(), &arguments).unwrap();
    server.wait_for_output(PATIENCE, "tls=true").unwrap();
    let ask = |kubeconfig: &str| {
        fs::write(at("kubeconfig"), kubeconfig).unwrap();
        report(node, &["--kubeconfig", &at("kubeconfig"), "--hostname-override", NODE]).1
    };

    let reader = ask(&kubeconfig);
    let titles = ["the API server does not permit: create events, patch events"];
    assert_eq!(findings(&reader, "events-denied"), titles, "{reader:#}");
    assert_eq!(findings(&reader, "api-denied"), [""; 0], "{reader:#}");

    let without_token = |line: &str| match line.split_once("token: ") {
        Some((before, _)) => format!("{before}token: wrong\n"),
        None => format!("{line}\n"),
    };
    let stranger = ask(&kubeconfig.lines().map(without_token).collect::<String>());
    let [title] = findings(&stranger, "api-denied")[..] else { panic!("{stranger:#}") };
    for resource in ["services", "endpointslices", "nodes", "servicecidrs"] {
        assert!(title.contains(&format!("list {resource}")), "{title}");
    }
    assert_eq!(findings(&stranger, "node-missing"), [""; 0], "nothing is known of it");
}

/// A server of HTTP that knows nothing, and whose clock shows the year 1994.
#[test]
fn a_server_that_is_no_api_server_and_has_another_time() {
    let node = Namespace::new("doctor").unwrap();
    node.ip("link set lo up\n").unwrap();
    let listener = node.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let master = format!("--master=http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let answer = "HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                          Content-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let (status, found) = report(&node, &[&master, "--hostname-override=n1"]);
    assert_eq!(status, 1, "{found:#}");
    let [skew] = findings(&found, "clock-skewed")[..] else { panic!("{found:#}") };
    assert!(skew.ends_with(" s ahead of the API server's"), "{skew}");
    let [lacks] = findings(&found, "api-lacks")[..] else { panic!("{found:#}") };
    assert!(lacks.ends_with(" has no services and no endpointslices and no nodes"), "{lacks}");
    assert_eq!(findings(&found, "node-missing"), [""; 0], "nothing is known of it");
}
