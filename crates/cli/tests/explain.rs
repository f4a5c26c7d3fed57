//! `portolan explain` as a program: exit status, forms of the report, objects that cannot be read, and the settings of the
//! proxy's flags. The last tests need root, and fail without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "explain/colour.rs"]
mod colour;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

use portolan_testkit::Namespace;
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan");

/// Returns the page of the documentation.
fn page() -> String {
    fs::read_to_string(page_path()).unwrap()
}

fn page_path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/explain.md")
}

/// Returns the objects of the page.
fn objects(page: &str) -> &str {
    let (_, rest) = page.split_once("```yaml\n").expect("objects");
    rest.split_once("```").unwrap().0
}

/// Creates a folder with the objects of the page, `shop.yaml`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), objects(&page())).unwrap();
    folder
}

/// The exit status, standard output and standard error of a run.
struct Run {
    status: i32,
    out: String,
    err: String,
}

impl Run {
    fn of(mut command: Command, input: &str) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).arg("explain").args(arguments);
    command
}

fn explain(folder: &TempDir, arguments: &[&str]) -> Run {
    Run::of(command(folder.path(), arguments), "")
}

/// Asks about the objects of the page.
fn ask(from: &str, to: &str, more: &[&str]) -> Run {
    explain(&folder(), &[&[from, to, "--manifests", "shop.yaml"], more].concat())
}

/// Each example of the page prints what the page says. `UPDATE=1` writes the page.
#[test]
fn the_examples_of_the_page() {
    let (page, folder) = (page(), folder());
    let mut updated = String::new();
    let mut parts = page.split("```console\n");
    updated.push_str(parts.next().unwrap());
    let mut count = 0;
    for part in parts {
        let (block, rest) = part.split_once("```").unwrap();
        let line = block.lines().next().unwrap();
        let arguments: Vec<&str> =
            line.strip_prefix("$ portolan explain ").expect("a command").split(' ').collect();
        let run = explain(&folder, &arguments);
        assert_eq!(run.err, "", "{line}");
        write!(updated, "```console\n{line}\n{}```{rest}", run.out).unwrap();
        count += 1;
    }
    assert!(count >= 4, "{count} examples");
    if std::env::var_os("UPDATE").is_some() {
        // At once, because other tests read the page meanwhile.
        let new = page_path().with_extension("new");
        fs::write(&new, &updated).unwrap();
        fs::rename(&new, page_path()).unwrap();
        return;
    }
    assert_eq!(page, updated, "run with UPDATE=1");
}

#[test]
fn the_page_has_the_exit_codes_of_the_help() {
    let run = explain(&folder(), &["--help"]);
    assert_eq!(run.status, 0);
    for part in
        ["0 reachable", "2 refused", "3 dropped", "4 not a Service's", "--manifests <PATH>", "--cluster-cidr"]
    {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
}

#[test]
fn the_exit_status_is_the_outcome() {
    let table = [
        ("10.244.1.10", "svc/web", 0, "reachable"),
        ("node", "svc/cart", 2, "refused"),
        ("pod/web-1", "10.96.7.7:80", 3, "dropped"),
        ("pod/web-1", "203.0.113.1:80", 4, "not-a-service"),
    ];
    for (from, to, status, outcome) in table {
        let run = ask(from, to, &["--proxy-mode=nftables", "-o", "json"]);
        assert_eq!(
            (run.status, run.json()["outcome"].as_str()),
            (status, Some(outcome)),
            "{to}: {}",
            run.err
        );
        assert_eq!(run.err, "");
    }
}

#[test]
fn the_forms_have_the_same_content() {
    let json = ask("outside", "192.0.2.1:30080", &["-o", "json"]);
    let yaml = ask("outside", "192.0.2.1:30080", &["--output=yaml"]);
    let from_yaml: Value = serde_saphyr::from_str(&yaml.out).unwrap();
    assert_eq!(json.json(), from_yaml);
    assert_eq!((json.json()["version"].as_u64(), json.status, yaml.status), (Some(1), 0, 0));
    let text = ask("outside", "192.0.2.1:30080", &[]);
    assert!(text.out.contains("node port 30080 of shop/web:http (TCP)"), "{}", text.out);
    assert!(!text.out.contains('\u{1b}'), "a pipe is no terminal");
}

#[test]
fn mistakes_end_with_1_and_say_what_to_write() {
    let folder = folder();
    fs::File::create(folder.path().join("large.yaml")).unwrap().set_len((256 << 20) + 1).unwrap();
    fs::write(folder.path().join("empty.yaml"), "# nothing\n").unwrap();
    fs::write(folder.path().join("broken.yaml"), "{ [\n").unwrap();
    let table: [(&[&str], &str); 21] = [
        (
            &["web", "svc/web", "--manifests=shop.yaml"],
            "`web` is no sender; write an IP address, `node`, `outside` or",
        ),
        (&["node", "10.96.0.80", "--manifests=shop.yaml"], "`10.96.0.80` has no port; write ADDRESS:PORT"),
        (&["node", "10.96.0.80:80/icmp", "--manifests=shop.yaml"], "write tcp, udp or sctp"),
        (
            &["node", "svc/web", "--control-socket=/nonexistent/s"],
            "no proxy answers at /nonexistent/s: No such file or directory",
        ),
        (
            &["node", "svc/web", "--control-socket=/nonexistent/s"],
            "\nThere are four ways to ask: on a node with a",
        ),
        (&["node", "svc/web", "--control-socket="], "the configuration has no control socket"),
        (&["node", "svc/web", "--kernel"], "--kernel compares the kernel with objects: name them with"),
        (&["node", "svc/web", "--kubeconfig=nowhere"], "kubeconfig nowhere: "),
        (&["node", "svc/web", "--manifests=shop.yaml", "--context=a"], "cannot be used with"),
        (&["node", "svc/web", "--manifests=nowhere"], "--manifests: cannot read nowhere"),
        (&["node", "10.96.0.80:80", "--manifests=/dev/null"], "cannot read /dev/null: this is a device"),
        (&["node", "10.96.0.80:80", "--manifests=large.yaml"], "more than the 268435456 bytes"),
        (
            &["node", "10.96.0.80:80", "--manifests=empty.yaml"],
            "--manifests: empty.yaml has no object; name a",
        ),
        (
            &["node", "10.96.0.80:80", "--manifests=broken.yaml"],
            "--manifests: broken.yaml has no object (broken.yaml:1",
        ),
        (&["node", "10.96.0.80:80", "--manifests=-"], "--manifests: - has no object; name a"),
        (
            &["node", "svc/nothing", "--manifests=shop.yaml"],
            "Error: no Service `svc/nothing` with a cluster IP is known",
        ),
        (&["node", "svc/web:81", "--manifests=shop.yaml"], "write one of: svc/web.shop:80/tcp"),
        (&["pod/db", "svc/web", "--manifests=shop.yaml"], "no pod `db` with an address is known"),
        (
            &["node", "svc/web", "--manifests=shop.yaml", "--cleanup"],
            "are actions of the proxy; leave them out",
        ),
        (&["node", "svc/web", "--manifests=shop.yaml", "--proxy-mode=fast"], "--proxy-mode"),
        (&["node", "svc/web", "--manifests=shop.yaml", "--established"], "name the endpoint of the flow"),
    ];
    for (arguments, part) in table {
        let run = explain(&folder, arguments);
        assert_eq!((run.status, run.out.as_str()), (1, ""), "{arguments:?}: {}", run.err);
        assert!(run.err.contains(part), "{arguments:?}: {}", run.err);
    }
}

#[test]
fn a_bad_object_is_a_warning_and_does_not_stop_the_others() {
    let folder = folder();
    let bad = "\
kind: Service
metadata: {name: [1]}
---
kind: Service
apiVersion: serving.knative.dev/v1
metadata: {name: knative}
---
metadata: {name: no-kind}
---
{ [
---
apiVersion: v1
kind: Service
metadata: {name: draft, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: odd, namespace: shop}
spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
";
    fs::write(folder.path().join("bad.yaml"), bad).unwrap();
    let run = explain(&folder, &["node", "svc/web", "--manifests=bad.yaml", "--manifests", "shop.yaml"]);
    assert_eq!(run.status, 0, "{}", run.err);
    let warnings: Vec<&str> = run.err.lines().collect();
    let parts = [
        "bad.yaml:1: Service has no usable metadata.name",
        "bad.yaml:7: there is no kind",
        "bad.yaml:9: ",
        "Service shop/draft: spec.clusterIP is missing",
        "Service shop/odd: spec.clusterIP",
    ];
    for part in parts {
        assert!(
            warnings.iter().any(|line| line.starts_with("Warning: ") && line.contains(part)),
            "{part}: {}",
            run.err
        );
    }
    assert_eq!(warnings.len(), parts.len(), "{}", run.err);
    assert!(!run.out.contains("bad.yaml"), "people have read the warnings: {}", run.out);

    let arguments = ["node", "svc/web", "--manifests=bad.yaml", "--manifests=shop.yaml", "-o=json"];
    let report = explain(&folder, &arguments).json();
    let notes = report["notes"].as_array().unwrap();
    for part in parts {
        let is_it = |note: &Value| {
            note["code"] == "object-not-usable" && note["text"].as_str().unwrap().contains(part)
        };
        assert!(notes.iter().any(is_it), "{part}: {notes:?}");
    }
    assert_eq!(notes.len(), parts.len(), "{notes:?}");
}

#[test]
fn control_characters_in_objects_are_not_printed() {
    let folder = folder();
    let slice = r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-a, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: "", port: 6379}]
endpoints:
- {addresses: [10.244.1.31], targetRef: {kind: Pod, name: "x\u001b[2Jy\nz"}}
---
metadata: {name: a}
kind: "\e[31m"
---
apiVersion: v1
kind: Service
metadata: {name: "n\u001b[2J"}
spec: {ports: [{port: 80}]}
"#;
    fs::write(folder.path().join("bad.yaml"), slice).unwrap();
    let run = explain(&folder, &["node", "svc/cart", "--manifests=shop.yaml", "--manifests=bad.yaml"]);
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(run.out.contains("10.244.1.31:6379 (pod x [2Jy z.shop)"), "{}", run.out);
    assert!(!run.out.contains('\u{1b}') && !run.err.contains('\u{1b}'), "{:?} {:?}", run.out, run.err);
}

#[test]
fn objects_come_from_files_folders_and_the_standard_input() {
    let (folder, page) = (folder(), page());
    let question = ["node", "svc/web", "-o", "json", "--manifests"];
    let with =
        |path: &str, input: &str| Run::of(command(folder.path(), &[&question[..], &[path]].concat()), input);
    let of_file = with("shop.yaml", "").json();
    assert_eq!(with("-", objects(&page)).json(), of_file);
    assert_eq!(with(".", "").json(), of_file);
    let list = r#"{"kind":"List","apiVersion":"v1","items":[
        {"kind":"Service","apiVersion":"v1","metadata":{"name":"one"},"spec":{"clusterIP":"10.96.0.9","ports":[{"port":1}]}}]}"#;
    let run = Run::of(command(folder.path(), &["node", "svc/one.default", "--manifests", "-"]), list);
    assert_eq!(run.status, 2, "{}", run.err);
    assert!(run.err.contains("there is no Node"), "{}", run.err);
}

#[test]
fn the_settings_are_those_of_the_proxys_flags() {
    let mode = |more: &[&str]| {
        let report = ask("pod/web-1", "10.96.0.80:81", &[&["-o", "json"], more].concat()).json();
        format!("{} {}", report["mode"].as_str().unwrap(), report["wanted"]["fate"].as_str().unwrap())
    };
    assert_eq!(mode(&[]), "iptables not-affected");
    assert_eq!(mode(&["--proxy-mode=nftables"]), "nftables rejected");
    assert_eq!(mode(&["--proxy_mode=ipvs"]), "ipvs rejected");
    let folder = folder();
    let config = "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nmode: nftables\n\
                  clusterCIDR: 10.244.0.0/16\nhostnameOverride: node-1\n";
    fs::write(folder.path().join("config"), config).unwrap();
    let arguments = ["10.244.1.10", "svc/web", "--manifests=shop.yaml", "--config=config", "-o", "json"];
    let report = explain(&folder, &arguments).json();
    assert_eq!(report["mode"], "nftables");
    assert_eq!(report["wanted"]["masquerade"]["applies"], "never", "the source is in the clusterCIDR");
    let capture = |more: &[&str]| {
        ask("outside", "127.0.0.1:30080", &[&["--proxy-mode=userspace", "-o", "json"], more].concat()).json()
            ["wanted"]
            .clone()
    };
    assert_ne!(capture(&[]), capture(&["--userspace-capture=redirect", "--nodeport-addresses=127.0.0.0/8"]));
    let node = ask("pod/web-1", "svc/web", &["--hostname-override=node-2", "-o", "json"]);
    assert!(node.err.contains("there is no Node `node-2`"), "{}", node.err);
    let report = node.json();
    assert_eq!(report["notes"][0]["code"], "client-on-other-node");
    let local = |at: usize| report["wanted"]["endpoints"][at]["local"].as_bool();
    assert_eq!((local(0), local(1)), (Some(false), Some(true)));
}

/// An address of the node that is also a load-balancer IP is left out if the address guard refuses it.
#[test]
fn the_address_guard_is_that_of_the_configuration() {
    let folder = folder();
    let service = "\
apiVersion: v1
kind: Service
metadata: {name: taken, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.82, ports: [{port: 443}]}
status: {loadBalancer: {ingress: [{ip: 198.51.100.7}]}}
";
    fs::write(folder.path().join("taken.yaml"), service).unwrap();
    let with = |guard: &str| {
        let config = format!(
            "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nmode: nftables\n{guard}"
        );
        fs::write(folder.path().join("config"), config).unwrap();
        let arguments =
            ["203.0.113.9", "198.51.100.7:443", "--manifests=shop.yaml", "--manifests=taken.yaml"];
        explain(&folder, &[&arguments[..], &["--config=config", "-o=json"]].concat()).json()
    };
    let frontend = |report: &Value| report["wanted"]["decidedBy"]["frontend"].clone();
    let (warned, refused) = (with("addressGuard: {nodeAddresses: Warn}\n"), with(""));
    assert_eq!(frontend(&warned), "load-balancer-ip", "{warned:#}");
    assert_eq!((frontend(&refused), &refused["wanted"]["fate"]), (Value::Null, &"not-affected".into()));
    let steps = refused["wanted"]["steps"].to_string();
    assert!(steps.contains("198.51.100.7") && steps.contains("shop/taken"), "{refused:#}");
}

#[test]
fn pods_are_known_by_pods_and_slices() {
    let folder = folder();
    let pods = "\
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-1}
status: {phase: Running, podIP: 10.244.1.10, podIPs: [{ip: 10.244.1.10}, {ip: 'fd00::10'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: shop}
spec: {nodeName: node-1}
status: {phase: Succeeded, podIP: 10.244.1.11}
";
    fs::write(folder.path().join("pods.yaml"), pods).unwrap();
    let run = explain(&folder, &["pod/client", "svc/web", "--manifests=.", "-o=json"]);
    let report = run.json();
    assert_eq!(
        (report["from"]["pod"].as_str(), report["from"]["kind"].as_str()),
        (Some("client.shop"), Some("pod"))
    );
    let pod = |at: usize| report["wanted"]["endpoints"][at]["pod"].as_str();
    assert_eq!(
        (pod(0), pod(1)),
        (Some("web-1.shop"), Some("web-2.shop")),
        "a pod that has ended has no address"
    );
    assert_eq!(report["wanted"]["endpoints"][1]["node"], "node-2");
}

/// Anyone who may write EndpointSlices could give a pod another address.
#[test]
fn slices_do_not_change_pods() {
    let objects = "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-a, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: '', port: 6379}]
endpoints:
- {addresses: [10.244.2.66], nodeName: node-2, targetRef: {kind: Pod, name: client, namespace: shop}}
- {addresses: [10.244.2.67], nodeName: node-2, targetRef: {kind: Pod, name: other, namespace: bank}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-1}
status: {phase: Running, podIP: 10.244.1.10}
";
    let folder = folder();
    fs::write(folder.path().join("a.yaml"), objects).unwrap();
    let report = explain(&folder, &["pod/client.shop", "svc/web", "--manifests=.", "-o=json"]).json();
    let from = &report["from"];
    assert_eq!((&from["address"], &from["node"]), (&"10.244.1.10".into(), &"node-1".into()), "{from}");
    let other = explain(&folder, &["pod/other.bank", "svc/web", "--manifests=."]);
    assert!(other.err.contains("no pod `other.bank`"), "{}", other.err);
}

/// The address of another node is that of its processes, although a pod in the network of the node has it, too.
#[test]
fn another_node_is_no_pod() {
    let objects = "\
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop}
spec: {nodeName: node-2, hostNetwork: true}
status: {phase: Running, podIP: 192.0.2.2}
";
    let folder = folder();
    fs::write(folder.path().join("a.yaml"), objects).unwrap();
    let arguments = ["192.0.2.2", "svc/web", "--manifests=.", "--hostname-override=node-1", "-o=json"];
    let from = explain(&folder, &arguments).json()["from"].clone();
    assert_eq!((&from["kind"], &from["pod"]), (&"outside".into(), &Value::Null), "{from}");
}

/// A network namespace with an address of the node, a filter of packets, and connection tracking.
fn node() -> Namespace {
    let node = Namespace::new("explain").unwrap();
    for line in [
        "link set lo up",
        "link add up0 type veth peer name up1",
        "link set up0 up",
        "link set up1 up",
        "address add 192.0.2.1/24 dev up0",
    ] {
        node.output("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    node.output("nft", &["add table ip filter; add chain ip filter forward { type filter hook forward priority 0; }; \
        add chain ip filter output { type filter hook output priority 0; }; add rule ip filter output ct state new counter"]).unwrap();
    node
}

fn ask_in(node: &Namespace, folder: &TempDir, from: &str, to: &str) -> Run {
    let arguments = [from, to, "--manifests=shop.yaml", "--kernel", "--proxy-mode=nftables", "-o=json"];
    node.run(|| Run::of(command(folder.path(), &arguments), "")).unwrap()
}

#[test]
fn the_kernel_shows_rules_of_other_programs() {
    let (node, folder) = (node(), folder());
    let run = ask_in(&node, &folder, "10.244.1.10", "svc/web");
    let report = run.json();
    assert_eq!(report["firewall"].as_array().map(Vec::len), Some(0), "{}", run.err);
    // Nothing has programmed the Service there, and the node does not forward.
    assert_eq!((run.status, &report["programmed"]["asWanted"]), (5, &false.into()), "{report}");
    assert_eq!(report["routing"][0]["fault"], "forwarding-off", "{report}");
    assert!(run.err.contains("the kernel of this node has no rules for Services"), "{}", run.err);
    node.output("nft", &["add rule ip filter forward ip daddr 10.244.1.0/24 drop"]).unwrap();
    let run = ask_in(&node, &folder, "10.244.1.10", "svc/web");
    let report = run.json();
    assert_eq!(report["firewall"][0]["endpoints"][0], "10.244.1.11:8080", "{report}");
    node.output("nft", &["add rule ip filter forward ct state new drop"]).unwrap();
    let run = ask_in(&node, &folder, "10.244.1.10", "svc/web");
    let report = run.json();
    let other = &report["firewall"][1];
    assert_eq!(
        (&other["certain"], &other["endpoints"][0]),
        (&true.into(), &"10.244.2.12:8080".into()),
        "{report}"
    );
    assert_eq!(report["wanted"]["fate"], "delivered", "Services do not drop it");
}

#[test]
fn the_kernel_shows_connections_of_the_flow() {
    let (node, folder) = (node(), folder());
    let count = |to: &str| ask_in(&node, &folder, "node", to).json()["connections"]["count"].as_u64();
    assert_eq!(count("192.0.2.7:53/udp"), Some(0));
    node.run(|| {
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        socket.send_to(b"x", "192.0.2.7:53").unwrap();
    })
    .unwrap();
    assert_eq!(count("192.0.2.7:53/udp"), Some(1));
    assert_eq!(count("192.0.2.7:54/udp"), Some(0));
}
