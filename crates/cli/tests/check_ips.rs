//! `portolan check-ips` and `portolan serve --repair-once` with objects that no server would have written.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use portolan_serve::json::{Value, json};
use portolan_serve::{Api, ApiConfig, Config, Draft, Resource, Server, Store, Transaction};
use portolan_store::{DurableStore, History};
use portolan_testkit::eventually_some;
use tempfile::TempDir;

/// Runs the binary. Returns exit code, stdout and stderr.
fn portolan(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_portolan")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}})
}

fn address(name: &str, service: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": name, "creationTimestamp": "2020-01-01T00:00:00Z", "labels": {
            "ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": service}}})
}

fn node(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
}

/// Returns a Service without its IPAddress, one with the address of another, one outside of the range, an IPAddress
/// without a Service, and a Node whose address is in the range.
fn corrupted() -> Vec<(Resource, Value)> {
    vec![
        (Resource::Service, service("lost", "10.96.0.2")),
        (Resource::Service, service("twin", "10.96.0.1")),
        (Resource::Service, service("outside", "10.200.0.1")),
        (Resource::IpAddress, address("10.96.0.9", "nobody")),
        (Resource::Node, node("inside", "10.96.0.20")),
    ]
}

fn corrupt(api: &Api) {
    api.blocking().apply(service("good", "10.96.0.1")).unwrap();
    for (resource, object) in corrupted() {
        let draft = Draft::new(resource, object.as_object().unwrap());
        api.blocking().commit(Transaction::put(resource, draft, None)).unwrap();
    }
}

const FOUND: [&str; 5] = [
    "lost ClusterIPNotAllocated",
    "outside ClusterIPOutOfRange",
    "twin ClusterIPAlreadyAllocated",
    "10.96.0.9 IPAddressNotAllocated",
    "inside NodeOverlapsServiceCIDR",
];

fn config() -> Config {
    let api = ApiConfig { service_ranges: "10.96.0.0/16".parse().unwrap(), ..ApiConfig::default() };
    Config { api, ..Config::default() }
}

#[test]
fn a_cluster_is_checked_without_being_touched() {
    let server = Server::start(config()).unwrap();
    let (code, text, _) = portolan(&["check-ips", "--master", &server.url()]);
    assert_eq!(code, 0, "{text}");
    assert!(text.ends_with("0 Services, 0 IPAddresses, 0 findings\n"), "{text}");
    corrupt(server.api());
    let before = server.store().revision();
    let folder = TempDir::new().unwrap();
    let kubeconfig = folder.path().join("config");
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "gone",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": ""}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url()}}]});
    fs::write(&kubeconfig, text.to_string()).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let (code, printed, _) =
        portolan(&["check-ips", "--kubeconfig", kubeconfig, "--context", "here", "-o", "json"]);
    assert_eq!(code, 2, "{printed}");
    let report: Value = serde_json::from_str(&printed).unwrap();
    let found: Vec<String> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["problem"].as_str().unwrap()))
        .collect();
    assert_eq!(found, FOUND);
    assert_eq!((&report["services"], &report["ipAddresses"]), (&json!(4), &json!(2)));
    assert_eq!(server.store().revision(), before, "nothing was written");
    let (code, printed, error) = portolan(&["check-ips", "--kubeconfig", kubeconfig]);
    assert_eq!((code, printed.as_str()), (1, ""));
    assert!(error.contains("gone"), "{error}");
}

#[test]
fn load_balancer_addresses_are_checked() {
    // This server has no range, so it mends nothing.
    let server = Server::start(config()).unwrap();
    let check = |arguments: &[&str]| {
        let (code, text, error) =
            portolan(&[&["check-ips", "--master", &server.url()][..], arguments].concat());
        let finding = |line: &str| {
            let (subject, problem) = (line.split_once(": ")?.0, line.rsplit_once('[')?.1);
            Some(format!("{subject} {}", problem.trim_end_matches(']')))
        };
        let mut findings: Vec<String> = text.lines().filter_map(finding).collect();
        findings.sort();
        (code, findings, text + &error)
    };
    let put = |resource: Resource, object: &Value| {
        let draft = Draft::new(resource, object.as_object().unwrap());
        server.api().blocking().commit(Transaction::put(resource, draft, None)).unwrap();
    };
    let record = |ip: &str, owner: &str| {
        let mut object = address(ip, owner);
        object["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"] =
            "load-balancer.portolan.dev".into();
        put(Resource::IpAddress, &object);
    };
    let balanced = |name: &str, cluster_ip: &str, ip: &str| {
        let mut object = service(name, cluster_ip);
        object["spec"]["type"] = "LoadBalancer".into();
        object["status"] = json!({"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}});
        put(Resource::Service, &object);
        put(Resource::IpAddress, &address(cluster_ip, name));
    };
    // Once the server answers, its first repair has passed. It would mend what the writes below leave between them.
    let (code, _, text) = check(&[]);
    assert_eq!(code, 0, "{text}");
    balanced("good", "10.96.1.1", "192.0.2.1");
    record("192.0.2.1", "good");
    balanced("foreign", "10.96.1.2", "198.51.100.1");
    let range = ["--load-balancer-ip-range", "192.0.2.0/28"];
    let (code, findings, text) = check(&range);
    assert_eq!((code, findings), (0, vec![]), "{text}");
    // Another Service with the address, one with an address that is not recorded, one from a former range, and an
    // address without a Service.
    balanced("twin", "10.96.1.3", "192.0.2.1");
    balanced("lost", "10.96.1.4", "192.0.2.2");
    balanced("kept", "10.96.1.5", "203.0.113.9");
    record("203.0.113.9", "kept");
    record("192.0.2.9", "nobody");
    let (code, findings, text) = check(&range);
    let expected = [
        "IPAddress 192.0.2.9 IPAddressNotAllocated",
        "Service default/kept LoadBalancerIPOutOfRange",
        "Service default/lost LoadBalancerIPNotAllocated",
        "Service default/twin LoadBalancerIPAlreadyAllocated",
    ];
    assert_eq!((code, findings), (2, expected.map(str::to_owned).to_vec()), "{text}");
    // Without the ranges, only what is recorded can be judged.
    let (code, findings, text) = check(&[]);
    let expected =
        ["IPAddress 192.0.2.9 IPAddressNotAllocated", "Service default/twin LoadBalancerIPAlreadyAllocated"];
    assert_eq!((code, findings), (2, expected.map(str::to_owned).to_vec()), "{text}");
}

/// Starts an API server from before ServiceCIDRs: it has these Services and no other path. It ends with the test
/// process.
fn old_server(services: &[Value]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let list = json!({"apiVersion": "v1", "kind": "ServiceList", "metadata": {"resourceVersion": "7"}, "items": services});
    let unknown = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "the server could not find the requested resource"});
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap() <= 2 {
                    break;
                }
                lines.push(line);
            }
            let Some(first) = lines.first() else { continue };
            let (status, body) = if first.starts_with("GET /api/v1/services") {
                ("200 OK", list.to_string())
            } else {
                ("404 Not Found", unknown.to_string())
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            reader.get_mut().write_all((head + &body).as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn a_cluster_without_service_cidrs_is_checked_by_its_services() {
    let server = old_server(&[
        service("a", "10.96.0.1"),
        service("twin", "10.96.0.1"),
        service("outside", "10.200.0.1"),
        service("good", "10.96.0.2"),
    ]);
    let url = format!("http://{server}");
    let (code, printed, error) = portolan(&["check-ips", "--master", &url]);
    assert_eq!((code, printed.as_str()), (1, ""));
    assert!(error.contains("--service-cluster-ip-range"), "{error}");
    let range = ["--service-cluster-ip-range", "10.96.0.0/16"];
    let (code, printed, error) = portolan(&[&["check-ips", "--master", &url][..], &range].concat());
    assert_eq!(code, 2, "{printed}{error}");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("note: the API server has no IPAddresses"), "{printed}");
    let problems: Vec<&str> = lines.iter().filter_map(|line| line.rsplit_once(" [")).map(|it| it.1).collect();
    assert_eq!(problems, ["ClusterIPOutOfRange]", "ClusterIPAlreadyAllocated]"], "{printed}");
    assert_eq!(lines.last(), Some(&"4 Services, 0 IPAddresses, 2 findings"));
}

fn repair_once(folder: &Path) -> (i32, String, String) {
    let folder = folder.to_str().unwrap();
    portolan(&["serve", "--repair-once", "--data-dir", folder, "--service-cluster-ip-range", "10.96.0.0/16"])
}

/// Repairs a store that this process has closed. A program that another test starts at the same moment has the lock too,
/// between fork(2) and execve(2).
fn repair_closed(folder: &Path) -> (i32, String, String) {
    let repair =
        || Some(repair_once(folder)).filter(|(_, _, error)| !error.contains("in use by another process"));
    eventually_some(Duration::from_secs(60), "the end of the lock", repair).unwrap()
}

#[test]
fn a_store_is_repaired_while_no_server_has_it() {
    let folder = TempDir::new().unwrap();
    let open = || DurableStore::open(folder.path(), History::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let api = runtime.block_on(Api::open(std::sync::Arc::new(open()), &config().api)).unwrap();
    drop(api);
    let (code, text, error) = repair_closed(folder.path());
    assert_eq!((code, text.as_str()), (0, "0 Services, 0 IPAddresses, 0 findings\n"), "{error}");
    let api = runtime.block_on(Api::open(std::sync::Arc::new(open()), &config().api)).unwrap();
    corrupt(&api);
    let (code, text, error) = repair_once(folder.path());
    assert_eq!((code, text.as_str()), (1, ""), "someone else has it");
    assert!(error.contains("--data-dir"), "{error}");
    drop(api);
    let (code, text, error) = repair_closed(folder.path());
    assert_eq!(code, 2, "{text}{error}");
    let (found, left) = text.split_once("after repair:\n").unwrap();
    assert_eq!(found.lines().count(), FOUND.len() + 1, "{found}");
    assert_eq!(left.lines().count(), 4, "{left}");
    assert!(["twin", "outside", "inside"].iter().all(|name| left.contains(name)), "{left}");
    let store = open();
    assert!(store.get(Resource::IpAddress, "10.96.0.2").is_some());
    assert!(store.get(Resource::IpAddress, "10.96.0.9").is_none());
}
