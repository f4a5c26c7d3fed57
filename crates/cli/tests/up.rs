//! `portolan up`: the API server and the node agent in one process, with real packets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "up/arp.rs"]
mod arp;
mod common;
#[path = "deploy/files.rs"]
#[allow(dead_code, reason = "most of it is for the tests of deploy/")]
mod files;
#[path = "up/places.rs"]
mod places;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::Client;
use kube::api::{Api, DeleteParams};
use portolan_testkit::{Family, Namespace, Pod, PortolanProcess, Probe, Protocol, World, eventually};
use rustix::process::Signal;
use tempfile::{TempDir, tempdir};

use common::{BACKEND_PORT, BINARY, NODE, PATIENCE, backends, in_sync, reaches};

const FORWARD: &str = "net/ipv4/ip_forward";
/// How the last line of the summary begins.
const LAST_LINE: &str = "Whether the rules are in place: ";
/// A line of a summary that lacks Services.
const PRINTED_AGAIN: &str = "  all Services are printed again when that is done\n";

/// A data folder, and the arguments that every start has.
struct Site {
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        Self { folder: tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let (data, socket) = (self.path("data"), self.path("proxy.sock"));
        let mut all = vec![
            "up".to_owned(),
            format!("--data-dir={}", data.display()),
            format!("--control-socket={}", socket.display()),
            "--proxy-mode=nftables".to_owned(),
            format!("--hostname-override={NODE}"),
        ];
        all.extend(more.iter().map(|&argument| argument.to_owned()));
        all
    }

    fn start(&self, node: &Namespace, more: &[&str]) -> PortolanProcess {
        let arguments = self.arguments(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        PortolanProcess::start(node, BINARY.as_ref(), &arguments).unwrap()
    }

    /// Starts the program and waits until the kernel has everything, and the whole summary is printed.
    fn up(&self, node: &Namespace, more: &[&str]) -> PortolanProcess {
        let mut up = self.start(node, more);
        in_sync(&mut up);
        summary(&mut up);
        up
    }

    /// Runs the program to its end. Returns its exit code and output.
    fn run(&self, node: &Namespace, more: &[&str]) -> (i32, String) {
        let mut up = self.start(node, more);
        let status = up.wait_for_end(PATIENCE).unwrap();
        (status.code().unwrap(), up.output())
    }

    /// Runs a client with the kubeconfig that the program has written.
    fn client<T: Send>(
        &self,
        node: &Namespace,
        work: impl AsyncFnOnce(Client) -> kube::Result<T> + Send,
    ) -> T {
        common::client::run(node, &self.path("data/admin.conf"), work)
    }

    /// Returns the `InternalIP`s of the Node.
    fn node_addresses(&self, node: &Namespace) -> Vec<String> {
        let found = self.client(node, async |client| Api::<Node>::all(client).get(NODE).await);
        let addresses = found.status.and_then(|status| status.addresses).unwrap_or_default();
        addresses.into_iter().filter(|it| it.type_ == "InternalIP").map(|it| it.address).collect()
    }

    /// Returns the first columns of `kubectl get nodes`: name and status.
    fn nodes(&self, node: &Namespace) -> Vec<String> {
        let mut kubectl = node.command("kubectl");
        let config = self.path("data/admin.conf");
        kubectl.args(["get", "nodes", "--no-headers", "--kubeconfig", config.to_str().unwrap()]);
        kubectl.env("HOME", self.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let output = kubectl.spawn().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().take(2).map(str::to_owned).collect()
    }
}

/// Returns an argument that serves these pods.
fn service(name: &str, pods: &[&Pod], family: Family) -> String {
    let at = |pod: &&Pod| SocketAddr::new(pod.address(family), BACKEND_PORT).to_string();
    format!("{name}:{}", pods.iter().map(at).collect::<Vec<_>>().join(","))
}

/// Waits until the summary is printed with all Services. On a busy machine one without them comes first.
fn summary(up: &mut PortolanProcess) {
    let outcome = eventually(PATIENCE, "the summary", || {
        let (ended, output) = (up.ended(), up.output());
        assert!(ended.is_none(), "it ended before the summary: {output}");
        output.matches(LAST_LINE).count() > output.matches(PRINTED_AGAIN).count()
    });
    assert!(outcome.is_ok(), "{}", up.output());
}

/// Returns where the last summary says that a Service is reached.
fn printed(output: &str, service: &str) -> Vec<SocketAddr> {
    let mut lines = output.lines().rev();
    let line = lines.find_map(|line| line.trim_start().strip_prefix(service)).unwrap_or_else(|| {
        panic!("no {service} in {output}");
    });
    let reached = line.split(" -> ").next().unwrap();
    reached.trim_start_matches(':').split(',').map(|at| at.trim().parse().unwrap()).collect()
}

#[test]
fn arguments_alone_make_services_that_outlive_a_restart() {
    let world: World = common::world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let (first, second, far) = (&world.pods()[0], &world.pods()[1], &world.remote_pods()[0]);
    let site = Site::new();
    let web = service("web=80", &[first, far], Family::Ipv4);
    let dns = service("shop/dns=53/udp", &[second], Family::Ipv4);
    let mut up = site.up(node, &[&web, &dns]);
    let output = up.output();
    let (web_at, dns_at) = (printed(&output, "default/web 80/TCP"), printed(&output, "shop/dns 53/UDP"));
    assert_eq!((web_at.len(), web_at[0].port(), dns_at[0].port()), (2, 80, 53), "{output}");
    assert!(output.contains(" -> 2 backends") && output.contains("portolan status --socket "), "{output}");
    for from in [node, client] {
        for at in &web_at {
            reaches(from, Protocol::Tcp, *at, &[first, far]);
        }
        reaches(from, Protocol::Udp, dns_at[1], &[second]);
    }
    reaches(second.namespace(), Protocol::Tcp, web_at[0], &[first, far]);

    // The rules stay while nothing runs, and the addresses over a restart.
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
    reaches(node, Protocol::Tcp, web_at[0], &[first, far]);
    let web = service("web=80", &[second], Family::Ipv4);
    let mut up = site.up(node, &[&web]);
    let output = up.output();
    assert_eq!(printed(&output, "default/web 80/TCP"), web_at, "{output}");
    assert!(!output.contains("shop/dns"), "{output}");
    reaches(client, Protocol::Tcp, web_at[1], &[second]);
    let is_gone = || backends(node, Protocol::Udp, dns_at[0]).is_empty();
    eventually(PATIENCE, "the end of the Service that is not given", is_gone).unwrap();

    // What a client deletes comes back, as with manifests.
    site.client(node, async |client| {
        Api::<Service>::namespaced(client, "default").delete("web", &DeleteParams::default()).await.map(drop)
    });
    let is_back = || {
        let found = site
            .client(node, async |client| Api::<Service>::namespaced(client, "default").get_opt("web").await);
        found.is_some()
    };
    eventually(PATIENCE, "the Service again", is_back).unwrap();
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());

    let (code, output) = site.run(node, &["--cleanup"]);
    assert_eq!(code, 0, "{output}");
    assert_eq!(node.output("nft", &["list", "tables"]).unwrap(), "");
    assert!(site.path("data").exists(), "the data stays");
}

#[test]
fn both_families_of_one_service() {
    let world: World = common::world();
    let node = world.node().namespace();
    let pod = &world.pods()[0];
    let site = Site::new();
    let backends = Family::BOTH.map(|family| SocketAddr::new(pod.address(family), BACKEND_PORT));
    let web = format!("web=80:{},{}", backends[0], backends[1]);
    let up = site.up(node, &["--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112", &web]);
    for at in printed(&up.output(), "default/web 80/TCP") {
        reaches(world.client().namespace(), Protocol::Tcp, at, &[pod]);
    }
}

/// Returns a host with one interface and no default route.
fn host(name: &str) -> Namespace {
    let host = Namespace::new(name).unwrap();
    host.ip("link set lo up\nlink add eth0 type veth peer name peer0\nlink set peer0 up\nlink set eth0 up\n\
         addr add 192.0.2.10/24 dev eth0\n")
        .unwrap();
    host
}

#[test]
fn a_start_that_waits_for_its_store_says_so() {
    let host = host("late");
    let site = Site::new();
    // An etcd that takes connections and never answers.
    let silent = host.run(|| TcpListener::bind("127.0.0.1:2379").unwrap()).unwrap();
    let mut up = site.start(&host, &["--etcd-servers=http://127.0.0.1:2379", "web=80:10.0.0.1:1"]);
    up.wait_for_output(PATIENCE, "The store is not open yet. The Services are printed when it is.\n")
        .unwrap();
    assert!(!up.output().contains("Services on"), "{}", up.output());
    drop(silent);
}

#[test]
fn the_node_follows_the_addresses_of_the_host() {
    let host = host("host");
    host.write_sysctls(&[(FORWARD.to_owned(), "0")]).unwrap();
    let site = Site::new();
    let mut up = site.up(&host, &["--listen=127.0.0.1:7443"]);
    let output = up.output();
    assert!(output.contains(&format!("Services on {NODE} (192.0.2.10")), "{output}");
    assert!(output.contains("  none yet") && !output.contains("is not passed on"), "{output}");
    assert_eq!(host.output("cat", &[&format!("/proc/sys/{FORWARD}")]).unwrap().trim(), "1");
    let has = |wanted: &[&str]| {
        let mut seen = Vec::new();
        let outcome = eventually(PATIENCE, "the addresses of the Node", || {
            seen = site.node_addresses(&host);
            seen == wanted
        });
        assert!(outcome.is_ok(), "wanted {wanted:?}, saw {seen:?}");
    };
    has(&["192.0.2.10"]);
    if files::tool("kubectl").is_some() {
        assert_eq!(site.nodes(&host), [NODE, "Ready"]);
    }
    host.ip("addr add 2001:db8:7::10/64 dev eth0 nodad\n").unwrap();
    has(&["192.0.2.10", "2001:db8:7::10"]);
    host.ip("addr add 198.51.100.20/24 dev eth0\naddr del 192.0.2.10/24 dev eth0\n").unwrap();
    has(&["198.51.100.20", "2001:db8:7::10"]);

    // The subcommand knows where the server of the data folder listens.
    let mut command = Command::new(BINARY);
    command.args(["serve", "kubeconfig", "--role", "read-only", "--data-dir"]).arg(site.path("data"));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("https://127.0.0.1:7443"), "{text}");

    // Two servers cannot have one data folder.
    let (code, output) = site.run(&host, &["--listen=127.0.0.1:7444"]);
    assert!(code == 1 && output.contains("is in use by another process"), "{output}");
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

#[test]
fn manifests_are_served_and_their_node_stays() {
    let world: World = common::world();
    let (host, client) = (world.node().namespace(), world.client().namespace());
    let site = Site::new();
    let manifests = site.path("manifests");
    fs::create_dir(&manifests).unwrap();
    let node = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {NODE}}}\n\
         status: {{addresses: [{{type: InternalIP, address: 192.0.2.77}}]}}\n"
    );
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                   spec: {clusterIP: 10.96.0.80, externalIPs: [192.0.2.77], ports: [{port: 80}]}\n";
    fs::write(manifests.join("node.yaml"), node).unwrap();
    fs::write(manifests.join("web.yaml"), service).unwrap();
    let slice = |pod: &Pod| {
        let text = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\n\
             ports: [{{port: {BACKEND_PORT}}}]\nendpoints: [{{addresses: [{}]}}]\n",
            pod.address(Family::Ipv4)
        );
        fs::write(manifests.join("slice.yaml"), text).unwrap();
    };
    slice(&world.pods()[0]);
    let folder = format!("--manifests={}", manifests.display());
    let mut up = site.up(host, &[&folder, "api=81:10.0.0.1:1"]);
    let output = up.output();
    let places = [[10, 96, 0, 80], [192, 0, 2, 77]].map(|ip| SocketAddr::new(IpAddr::from(ip), 80));
    assert_eq!(printed(&output, "default/web 80/TCP"), places);
    assert_eq!(printed(&output, "default/api 81/TCP")[1].ip(), IpAddr::from([192, 0, 2, 77]), "{output}");
    assert_eq!(site.node_addresses(host), ["192.0.2.77"]);
    let web = printed(&output, "default/web 80/TCP")[0];
    reaches(client, Protocol::Tcp, web, &[&world.pods()[0]]);
    // Unlike a node of a cluster, a host serves Services at its own address.
    reaches(client, Protocol::Tcp, places[1], &[&world.pods()[0]]);
    slice(&world.pods()[1]);
    reaches(client, Protocol::Tcp, web, &[&world.pods()[1]]);
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());

    // An argument does not take an object from the manifests.
    let (code, output) = site.run(host, &[&folder, "web=80:10.0.0.1:1"]);
    assert!(
        code == 1
            && output.contains(&format!("Service default/web of the command line of {NODE} exists already")),
        "{output}"
    );
}

/// Returns the argument for a Service with two backends, of which the second one refuses connections.
fn with_a_backend_that_refuses(world: &World) -> String {
    let (first, second) = (&world.pods()[0], &world.pods()[1]);
    let place = SocketAddr::new(second.address(Family::Ipv4), BACKEND_PORT);
    world.echo().close(second.namespace(), Protocol::Tcp, place).unwrap();
    service("web=80", &[first, second], Family::Ipv4)
}

#[test]
fn services_of_arguments_are_checked_and_get_a_load_balancer_address() {
    let world: World = common::world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let site = Site::new();
    let web = with_a_backend_that_refuses(&world);
    let mut up = site.up(node, &["--health-checks", "--load-balancer-ip-range=198.51.100.9/32", &web]);
    // A new endpoint is not ready until a probe has passed, and the second one refuses every connection.
    let probe = Probe::new(Protocol::Tcp, "198.51.100.9:80".parse().unwrap());
    let answered = || {
        let results = client.probe_many(&[probe.timeout(Duration::from_millis(250)); 24]).unwrap();
        results.iter().all(|result| result.backend().is_some())
    };
    eventually(PATIENCE, "the first backend answers alone", answered).unwrap();
    let output = up.output();
    assert!(printed(&output, "default/web 80/TCP").contains(&probe.destination), "{output}");
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

#[test]
fn passive_checks_need_no_health_check() {
    let world: World = common::world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let site = Site::new();
    let web = with_a_backend_that_refuses(&world);
    let mut up = site.up(node, &["--passive-health-checks", &web]);
    let node_port = printed(&up.output(), "default/web 80/TCP")[1];
    let probe = Probe::new(Protocol::Tcp, node_port).timeout(PATIENCE);
    let answered = || {
        let results = client.probe_many(&[probe; 24]).unwrap();
        results.iter().all(|result| result.backend().is_some())
    };
    eventually(PATIENCE, "the first backend answers alone", answered).unwrap();
    up.wait_for_output(PATIENCE, "an endpoint is set aside").unwrap();
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

#[test]
fn the_services_of_arguments_stay_when_the_host_has_another_name() {
    let (host, site) = (host("renamed"), Site::new());
    let mut up = site.up(&host, &["web=80:10.0.0.1:1", "old=81:10.0.0.1:1"]);
    let cluster_ip = printed(&up.output(), "default/web 80/TCP")[0];
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
    let arguments = site.arguments(&["web=80:10.0.0.2:1"]);
    let is_name = |argument: &str| argument.starts_with("--hostname-override=");
    let renamed = |argument| if is_name(argument) { "--hostname-override=another" } else { argument };
    let arguments: Vec<&str> = arguments.iter().map(|it| renamed(it.as_str())).collect();
    let mut up = PortolanProcess::start(&host, BINARY.as_ref(), &arguments).unwrap();
    summary(&mut up);
    let output = up.output();
    assert_eq!(printed(&output, "default/web 80/TCP")[0], cluster_ip);
    assert!(output.contains("Services on another") && !output.contains("default/old"), "{output}");
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

#[test]
fn the_end_of_the_terminal_leaves_no_control_socket() {
    let (host, site) = (host("hangup"), Site::new());
    let mut up = site.up(&host, &[]);
    let socket = site.path("proxy.sock");
    eventually(PATIENCE, "the control socket", || socket.exists()).unwrap();
    up.signal(Signal::HUP);
    let status = up.wait_for_end(PATIENCE).unwrap();
    assert!(status.success() && !socket.exists(), "{status}: {}", up.output());
    // `nohup` has the signal ignored.
    let arguments = [vec![BINARY.to_owned()], site.arguments(&[])].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut up = PortolanProcess::start(&host, "nohup".as_ref(), &arguments).unwrap();
    in_sync(&mut up);
    up.signal(Signal::HUP);
    let status = fs::read_to_string(format!("/proc/{}/status", up.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "{status}");
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

#[test]
fn a_dry_run_leaves_no_trace() {
    let host = host("dry");
    let site = Site::new();
    let addons = [
        "--health-checks",
        "--passive-health-checks",
        "--dns-listen=192.0.2.10:10053",
        "--dns-forward=192.0.2.53",
        "--load-balancer-ip-range=198.51.100.0/28",
    ];
    let arguments = [&["--dry-run", "shop/web=80:10.0.0.11:8080,10.0.0.12:8080"][..], &addons].concat();
    let (code, output) = site.run(&host, &arguments);
    assert_eq!(code, 0, "{output}");
    for part in [
        "which it makes",
        "serve the Kubernetes API at 127.0.0.1:6443",
        &format!("register Node {NODE} with 192.0.2.10"),
        "mode nftables",
        "turn on the forwarding of packets",
        "shop/web 80/TCP, with a node port -> 2 backends",
        "answer DNS requests for names below cluster.local at 192.0.2.10:10053, and forward other names",
        "probe the endpoints of Services that have an annotation",
        "give Services of type LoadBalancer addresses of 198.51.100.0/28",
        "set endpoints aside for a while if connections to them fail",
        "Objects that are stored already were not compared",
        "Nothing was changed",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert_eq!(fs::read_dir(site.folder.path()).unwrap().count(), 0);
    assert_eq!(host.output("nft", &["list", "tables"]).unwrap(), "");
    fs::write(
        site.path("bad.yaml"),
        "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {ports: [{port: 0}]}\n",
    )
    .unwrap();
    let folder = format!("--manifests={}", site.folder.path().display());
    let (code, output) = site.run(&host, &["--dry-run", &folder]);
    assert!(
        code == 0 && output.contains("bad.yaml: document 1, line 1: Service \"b\" is invalid"),
        "{output}"
    );
    let (code, output) = site.run(&host, &["--dry-run", "Web=80:10.0.0.11:8080"]);
    assert!(code == 1 && output.contains("metadata.name"), "{output}");
}

#[test]
fn wrong_arguments_and_missing_folders_are_one_error() {
    let host = host("mistakes");
    let site = Site::new();
    fs::write(site.path("file"), "").unwrap();
    let data = format!("--data-dir={}", site.path("file/data").display());
    let manifests = format!("--manifests={}", site.path("nowhere").display());
    let of_others = "clusters: [{name: work, cluster: {server: \"https://192.0.2.1\"}}]\n";
    fs::write(site.path("config"), of_others).unwrap();
    let kubeconfig = format!("--write-kubeconfig={}", site.path("config").display());
    for (arguments, part) in [
        (&["web"][..], "write [NAMESPACE/]NAME=PORT[/PROTOCOL]:BACKEND[,BACKEND...], such as web=80:"),
        (&["web=80:10.0.0.1"], "`10.0.0.1` is no backend"),
        (&["web=80:10.0.0.1:1", "web=80:10.0.0.2:1"], "port 80/TCP is given twice"),
        (&["web=80:[2001:db8::1]:1"], "has no IPv6 range"),
        (
            &["web=80:127.0.0.1:1"],
            r#"endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range"#,
        ),
        (&["--node-ip=192.0.2.1,192.0.2.2"], "--node-ip: 2 IPv4 addresses"),
        (&["--listen=192.0.2.99:6443"], "this host does not have the address"),
        (&[&manifests], "cannot follow the manifests folder"),
        (&["--write-kubeconfig=/nonexistent/a"], "name another file with --write-kubeconfig"),
        (&[&kubeconfig], "has other clusters (work)"),
    ] {
        let (code, output) = site.run(&host, arguments);
        assert!(code == 1 && output.contains(part), "{arguments:?}: {output}");
        assert_eq!(host.output("nft", &["list", "tables"]).unwrap(), "", "{arguments:?}");
    }
    assert_eq!(fs::read_to_string(site.path("config")).unwrap(), of_others);
    let mut up = PortolanProcess::start(&host, BINARY.as_ref(), &["up", &data, "--control-socket="]).unwrap();
    assert!(!up.wait_for_end(PATIENCE).unwrap().success());
    assert!(up.output().contains("--data-dir"), "{}", up.output());
}
