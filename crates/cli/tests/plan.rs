//! `portolan plan` as a program: exit status, forms of the report, what it says before and after a start of the agent, and
//! what a migration from kube-proxy would change. Most tests need root, and fail without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{BINARY, Cluster, NODE, PATIENCE, at, objects, reaches};
use portolan_testkit::{Namespace, Protocol, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const CLUSTER_IP: &str = "10.96.0.10";
/// kube-proxy's tables, as it writes them.
const KUBE_PROXY_NFT: &str = include_str!("../../nftables/tests/kernel/upstream/ipv4.nft");
const KUBE_PROXY_SAVE: &str = include_str!("../../iptables/src/observe/tests/kube-proxy.save");

/// Returns kube-proxy's chains without counters, which a new namespace does not have.
fn kube_proxy_save() -> String {
    let counters = ["localhost_nps_accepted_pkts", "ct_state_invalid_dropped_pkts"];
    counters.iter().fold(KUBE_PROXY_SAVE.to_owned(), |save, counter| {
        save.replace(&format!(" -m nfacct --nfacct-name  {counter}"), "")
    })
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr)))
}

/// Runs the program in a namespace.
fn plan(node: &Namespace, arguments: &[&str]) -> Output {
    node.run(|| Command::new(BINARY).arg("plan").args(arguments).output().unwrap()).unwrap()
}

/// Returns every rule and set of the namespace.
fn ruleset(node: &Namespace) -> String {
    let list = |program: &str, arguments: &[&str]| {
        let output = node.run(|| Command::new(program).args(arguments).output().unwrap()).unwrap();
        text(&output.stdout)
    };
    // Without counters, which packets change.
    let mut all = list("nft", &["-s", "list", "ruleset"]) + &list("ip", &["-br", "address"]);
    if node.run(|| Path::new("/proc/net/ip_vs").exists()).unwrap() {
        all += &list("ipvsadm", &["--save", "--numeric"]);
        let sets = list("ipset", &["save", "-sorted"]);
        all.extend(sets.lines().map(|line| line.split(" packets ").next().unwrap_or(line).to_owned() + "\n"));
    }
    all
}

/// A cluster, and the arguments of a plan that asks its API server.
struct Planned {
    cluster: Cluster,
    yaml: String,
}

impl Planned {
    fn new(mode: &str) -> Self {
        Self::on(Cluster::new(), mode)
    }

    fn on(cluster: Cluster, mode: &str) -> Self {
        let yaml = format!("mode: {mode}\n");
        cluster.configure(&yaml);
        let pods = cluster.all_pods();
        let service = objects::load_balancer("web", CLUSTER_IP, 30_080, "198.51.100.7");
        cluster.service(service, &pods[..2]);
        Self { cluster, yaml }
    }

    fn node(&self) -> &Namespace {
        self.cluster.world.node().namespace()
    }

    fn plan(&self, arguments: &[&str]) -> Output {
        let (file, master) = (self.cluster.configuration_file(), self.cluster.master());
        let own = ["--config", file.to_str().unwrap(), "--master", &master];
        plan(self.node(), &[&own, arguments].concat())
    }

    /// Waits until nothing would change: a start also removes what it does not need, after its first commit.
    fn no_change(&self) {
        self.becomes_no_change(&["--rules"]);
    }

    fn becomes_no_change(&self, arguments: &[&str]) {
        let mut last = None;
        let outcome = eventually(PATIENCE, "no change", || {
            let output = self.plan(arguments);
            let is_done = status(&output) == 0;
            last = Some(output);
            is_done
        });
        let last = last.unwrap();
        assert!(outcome.is_ok(), "{}{}", text(&last.stdout), text(&last.stderr));
        assert!(text(&last.stdout).ends_with("\nno change\n"), "{}", text(&last.stdout));
    }
}

/// The law of plans: what is planned is what a start does, and afterwards nothing is planned.
fn plan_start_plan(mode: &str, rule: &str) {
    plan_start_plan_of(&Planned::new(mode), mode, rule);
}

fn plan_start_plan_of(planned: &Planned, mode: &str, rule: &str) {
    let before = ruleset(planned.node());
    let output = planned.plan(&["--rules"]);
    let shown = text(&output.stdout);
    assert_eq!(status(&output), 2, "{shown}{}", text(&output.stderr));
    assert!(shown.contains("  + default/web:tcp (TCP): cluster IP 10.96.0.10:80"), "{shown}");
    assert!(shown.contains(rule), "{rule}: {shown}");
    assert_eq!(ruleset(planned.node()), before, "nothing is written");

    let mut proxy = planned.cluster.proxy_with(&planned.yaml);
    let pods = planned.cluster.all_pods();
    let client = planned.cluster.world.pods()[1].clone();
    let to = at(&format!("{CLUSTER_IP}:80"));
    reaches(client.namespace(), Protocol::Tcp, to, &pods[..2]);
    planned.no_change();

    assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    let service = objects::load_balancer("web", CLUSTER_IP, 30_080, "198.51.100.7");
    planned.cluster.apply(objects::slice("web", &pods[1..], &objects::ports(&service)));
    let before = ruleset(planned.node());
    let output = planned.plan(&["-o", "json"]);
    assert_eq!(status(&output), 2, "{}", text(&output.stderr));
    let report = json_of(&output);
    let (family, counts) = (&report["families"][0], &report["families"][0]["counts"]);
    assert_eq!(family["present"], format!("the {mode} mode"), "{report:#}");
    assert_eq!((&counts["changed"], &counts["added"]), (&json!(2), &json!(0)), "{report:#}");
    assert_eq!((&counts["endpointsAdded"], &counts["endpointsRemoved"]), (&json!(2), &json!(2)));
    let gone = common::backend(pods[0], to.ip());
    let texts = family["services"][0]["changes"].to_string();
    assert!(texts.contains(&format!("remove endpoint {gone}")), "{texts}");
    assert_ne!(family["rules"]["count"], json!(0));
    assert_eq!(ruleset(planned.node()), before, "nothing is written");

    let _proxy = planned.cluster.proxy_with(&planned.yaml);
    reaches(client.namespace(), Protocol::Tcp, to, &pods[1..]);
    planned.no_change();
}

#[test]
fn plan_start_plan_in_nftables_mode() {
    plan_start_plan(
        "nftables",
        "    add element ip portolan services { 10.96.0.10 . tcp . 80 comment \"default/web:tcp\"",
    );
}

#[test]
fn plan_start_plan_in_iptables_mode() {
    plan_start_plan("iptables", "    -A KUBE-SERVICES -m comment --comment \"default/web:tcp cluster IP\"");
}

/// Left out without IPVS in the kernel.
#[test]
fn plan_start_plan_in_ipvs_mode() {
    let Some(cluster) = common::ipvs::cluster() else { return };
    let rule = "    ipvsadm -A -t 10.96.0.10:80 -s rr";
    plan_start_plan_of(&Planned::on(cluster, "ipvs"), "ipvs", rule);
}

/// Services of the IPVS mode and of kube-proxy's are compared with those of another mode. Left out without IPVS in the kernel.
#[test]
fn another_mode_is_planned_in_ipvs_mode() {
    let Some(cluster) = common::ipvs::cluster() else { return };
    let mut planned = Planned::on(cluster, "ipvs");
    let mut proxy = planned.cluster.proxy_with(&planned.yaml);
    let (pods, to) = (planned.cluster.all_pods(), at(&format!("{CLUSTER_IP}:80")));
    reaches(planned.cluster.world.client().namespace(), Protocol::Tcp, to, &pods[..2]);
    planned.no_change();
    assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    planned.yaml = "mode: nftables\n".to_owned();
    planned.cluster.configure(&planned.yaml);
    is_planned_from_ipvs(&planned);

    // kube-proxy writes other chains. Its Services are the same.
    common::ipvs::kube_proxy(planned.node());
    is_planned_from_ipvs(&planned);
}

/// A plan finds all Services unchanged in the rules of an IPVS mode, and removes those. Node ports no longer answer at every address
/// of the node.
fn is_planned_from_ipvs(planned: &Planned) {
    let rules = ruleset(planned.node());
    let output = planned.plan(&["-o", "json"]);
    assert_eq!(status(&output), 2, "{}", text(&output.stderr));
    let report = json_of(&output);
    let family = &report["families"][0];
    assert_eq!(
        (&family["present"], &family["counts"]["unchanged"]),
        (&json!("the ipvs mode"), &json!(2)),
        "{report:#}"
    );
    let [change] = &family["nodePorts"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!(change["code"], "node-port-addresses", "{report:#}");
    let primary = planned.cluster.world.node().addresses().ipv4;
    let (after, before) = change["text"].as_str().unwrap().split_once(" instead of at ").unwrap();
    assert_eq!(after, format!("node ports answer at {primary}"), "{report:#}");
    for address in [primary, portolan_testkit::Addresses::OUTSIDE.ipv4] {
        assert!(before.split(", ").any(|served| served == address.to_string()), "{address}: {report:#}");
    }
    assert_ne!(report["removed"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert_eq!(ruleset(planned.node()), rules, "nothing is written");
}

/// In userspace mode, the relay has the endpoints, and the rules name its listeners: a plan compares the frontends.
#[test]
fn plan_start_plan_in_userspace_mode() {
    let planned = Planned::new("userspace");
    let before = ruleset(planned.node());
    let output = planned.plan(&[]);
    let shown = text(&output.stdout);
    assert_eq!(status(&output), 2, "{shown}{}", text(&output.stderr));
    assert!(shown.contains("  + default/web:tcp (TCP): cluster IP 10.96.0.10:80"), "{shown}");
    assert_eq!(ruleset(planned.node()), before, "nothing is written");

    let proxy = planned.cluster.proxy_with(&planned.yaml);
    let pods = planned.cluster.all_pods();
    let to = at(&format!("{CLUSTER_IP}:80"));
    reaches(planned.cluster.world.client().namespace(), Protocol::Tcp, to, &pods[..2]);
    planned.becomes_no_change(&[]);

    proxy.signal(Signal::STOP);
    planned.cluster.service(objects::cluster_ip("more", "10.96.0.11"), &pods[..1]);
    let output = planned.plan(&[]);
    let shown = text(&output.stdout);
    assert_eq!(status(&output), 2, "{shown}{}", text(&output.stderr));
    assert!(shown.contains("  + default/more:tcp (TCP): cluster IP 10.96.0.11:80"), "{shown}");
    assert!(!shown.contains("default/web"), "{shown}");
}

/// Rules that another program removes while the agent cannot notice it are planned again.
#[test]
fn removed_rules_are_a_change() {
    let removals: [(&str, &str, &[&str]); 4] = [
        ("nftables", "nft", &["flush", "map", "ip", "portolan", "endpoints"]),
        ("nftables", "nft", &["delete", "table", "ip", "portolan"]),
        ("iptables", "iptables-nft", &["-t", "nat", "-F", "KUBE-SERVICES"]),
        ("iptables", "iptables-nft", &["-t", "nat", "-F"]),
    ];
    for (mode, program, arguments) in removals {
        let planned = Planned::new(mode);
        let proxy = planned.cluster.proxy_with(&planned.yaml);
        planned.no_change();
        proxy.signal(Signal::STOP);
        planned.node().output(program, arguments).unwrap();
        let output = planned.plan(&[]);
        assert_eq!(status(&output), 2, "{program} {arguments:?}: {}", text(&output.stdout));
    }
}

/// The objects behind kube-proxy's tables, as manifests.
fn manifests() -> TempDir {
    let service = |name: &str, ip: &str, port: &str, number: u16| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "demo"},
            "spec": {
                "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                "ports": [{"name": port, "port": number, "protocol": "TCP"}],
            },
        })
    };
    let slice = |name: &str, port: &str, number: u16, endpoints: &[(&str, &str)]| {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(address, node)| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}}))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": port, "port": number, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    };
    let mut edge = service("edge", "172.30.10.2", "api", 443);
    edge["spec"]["type"] = "NodePort".into();
    edge["spec"]["externalTrafficPolicy"] = "Local".into();
    edge["spec"]["ports"][0]["nodePort"] = 30_443.into();
    let mut shop = service("shop", "172.30.10.3", "https", 443);
    shop["spec"]["type"] = "LoadBalancer".into();
    shop["spec"]["ports"][0]["nodePort"] = 30_555.into();
    shop["spec"]["sessionAffinity"] = "ClientIP".into();
    shop["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 600}});
    shop["spec"]["loadBalancerSourceRanges"] = json!(["192.168.0.0/24", "203.0.113.0/25"]);
    shop["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}});
    let mut empty = service("empty", "172.30.10.4", "dns", 53);
    empty["spec"]["ports"][0]["protocol"] = "UDP".into();
    let items = json!([
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.2"}]},
        }),
        service("web", "172.30.10.1", "http", 80),
        slice("web", "http", 8080, &[("10.180.0.11", NODE), ("10.180.1.12", "n2"), ("10.180.1.13", "n2")]),
        edge,
        slice("edge", "api", 8443, &[("10.180.0.21", NODE), ("10.180.1.22", "n2")]),
        shop,
        slice("shop", "https", 9443, &[("10.180.0.31", NODE), ("10.180.1.32", "n2")]),
        empty,
    ]);
    let folder = TempDir::new().unwrap();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    fs::write(folder.path().join("objects.json"), list.to_string()).unwrap();
    folder
}

/// Creates a node with an address, on which another program writes rules.
fn node_with(program: &str, arguments: &[&str], rules: &str) -> Namespace {
    let node = Namespace::new("plan").unwrap();
    node.output("ip", &["address", "add", "192.168.0.2/24", "dev", "lo"]).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules");
    fs::write(&file, rules).unwrap();
    node.output(program, &[arguments, &[file.to_str().unwrap()]].concat()).unwrap();
    node
}

#[test]
fn from_kube_proxys_nftables_mode_only_the_rules_change() {
    let (node, folder) = (node_with("nft", &["-f"], KUBE_PROXY_NFT), manifests());
    let before = ruleset(&node);
    let arguments = ["--manifests", folder.path().to_str().unwrap(), "--proxy-mode=nftables", "-o=json"];
    let output = plan(&node, &arguments);
    assert_eq!(status(&output), 2, "{}", text(&output.stderr));
    let report = json_of(&output);
    let family = &report["families"][0];
    assert_eq!(family["present"], "kube-proxy's nftables mode");
    assert_eq!((family.get("services"), family.get("nodePorts")), (None, None), "{report:#}");
    assert_eq!(family["counts"]["unchanged"], json!(4), "{report:#}");
    let removed = report["removed"].as_array().unwrap();
    assert!(removed.contains(&json!("table ip kube-proxy")), "{report:#}");
    assert_eq!(ruleset(&node), before, "nothing is written");
    // With node ports at all addresses, as kube-proxy's iptables mode has them.
    let output = plan(&node, &[&arguments[..], &["--nodeport-addresses=0.0.0.0/0"]].concat());
    let report = json_of(&output);
    assert_eq!(
        report["families"][0]["nodePorts"],
        json!([{
            "code": "node-port-addresses",
            "text": "node ports answer at every address of this node instead of at 192.168.0.2",
        }])
    );
}

#[test]
fn from_kube_proxys_iptables_mode_node_ports_change() {
    let (node, folder) = (node_with("iptables-nft-restore", &["-c"], &kube_proxy_save()), manifests());
    let before = ruleset(&node);
    let manifests = folder.path().to_str().unwrap();
    let output = plan(&node, &["--manifests", manifests, "--proxy-mode=nftables", "-o=json"]);
    let report = json_of(&output);
    assert_eq!(report["families"][0]["present"], "the iptables mode", "{report:#}");
    let codes: Vec<&Value> =
        report["families"][0]["nodePorts"].as_array().unwrap().iter().map(|change| &change["code"]).collect();
    assert_eq!(codes, [&json!("node-port-addresses"), &json!("localhost-node-ports")], "{report:#}");
    let removed = report["removed"].to_string();
    assert!(removed.contains("chain ip nat KUBE-"), "{report:#}");
    // The iptables mode takes the chains over.
    let output = plan(&node, &["--manifests", manifests, "--proxy-mode=iptables", "-o=json"]);
    let report = json_of(&output);
    assert_eq!((status(&output), report["families"][0].get("nodePorts")), (2, None), "{report:#}");
    assert_eq!(ruleset(&node), before, "nothing is written");
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plan.md")
}

/// Creates a folder with the objects of the page, `before.yaml` and `after.yaml`.
fn folder(page: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut blocks = page.split("```yaml\n").skip(1).map(|part| part.split_once("```").unwrap().0);
    for name in ["before.yaml", "after.yaml"] {
        fs::write(folder.path().join(name), blocks.next().expect("objects")).unwrap();
    }
    folder
}

fn offline(folder: &TempDir, arguments: &[&str]) -> Output {
    Command::new(BINARY).current_dir(folder.path()).arg("plan").args(arguments).output().unwrap()
}

/// Each example of the page prints what the page says. `UPDATE=1` writes the page.
#[test]
fn the_examples_of_the_page() {
    let page = fs::read_to_string(page_path()).unwrap();
    let folder = folder(&page);
    let mut updated = String::new();
    let mut parts = page.split("```console\n");
    updated.push_str(parts.next().unwrap());
    let mut count = 0;
    for part in parts {
        let (block, rest) = part.split_once("```").unwrap();
        let line = block.lines().next().unwrap();
        let arguments: Vec<&str> =
            line.strip_prefix("$ portolan plan ").expect("a command").split(' ').collect();
        let output = offline(&folder, &arguments);
        assert_eq!(text(&output.stderr), "", "{line}");
        write!(updated, "```console\n{line}\n{}```{rest}", text(&output.stdout)).unwrap();
        count += 1;
    }
    assert!(count >= 2, "{count} examples");
    if std::env::var_os("UPDATE").is_some() {
        let new = page_path().with_extension("new");
        fs::write(&new, &updated).unwrap();
        fs::rename(&new, page_path()).unwrap();
        return;
    }
    assert_eq!(page, updated, "run with UPDATE=1");
}

#[test]
fn the_forms_have_the_same_content() {
    let folder = folder(&fs::read_to_string(page_path()).unwrap());
    let arguments = ["--from=before.yaml", "--manifests=after.yaml", "--proxy-mode=nftables"];
    let run = |more: &[&str]| offline(&folder, &[&arguments[..], more].concat());
    let (json, yaml) = (run(&["-o", "json"]), run(&["--output=yaml"]));
    assert_eq!((status(&json), status(&yaml)), (2, 2));
    let from_yaml: Value = serde_saphyr::from_str(&text(&yaml.stdout)).unwrap();
    assert_eq!(json_of(&json), from_yaml);
    assert_eq!(from_yaml["version"], 1);
    let same = offline(&folder, &["--from=before.yaml", "--manifests=before.yaml", "--proxy-mode=nftables"]);
    assert_eq!(status(&same), 0, "{}", text(&same.stdout));
}

#[test]
fn every_mode_plans_against_nothing() {
    let folder = folder(&fs::read_to_string(page_path()).unwrap());
    for (mode, line) in [
        ("nftables", "add table ip portolan"),
        ("iptables", "*nat"),
        ("ipvs", "ip link add kube-ipvs0 type dummy"),
    ] {
        let mode = format!("--proxy-mode={mode}");
        let output = offline(&folder, &["--manifests=before.yaml", "--against=nothing", "--rules", &mode]);
        assert_eq!(status(&output), 2, "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(&format!("    {line}\n")), "{mode}: {}", text(&output.stdout));
    }
    let userspace = ["--manifests=before.yaml", "--against=nothing", "--proxy-mode=userspace"];
    let output = offline(&folder, &userspace);
    assert_eq!(status(&output), 2, "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("name the relay's listeners"), "{}", text(&output.stdout));
}

#[test]
fn mistakes_end_with_1_and_say_what_to_write() {
    let folder = folder(&fs::read_to_string(page_path()).unwrap());
    let table: [(&[&str], &str); 6] = [
        (&["--manifests=nowhere"], "--manifests: cannot read nowhere"),
        (&["--manifests=after.yaml", "--from=nowhere"], "--from: cannot read nowhere"),
        (&["--manifests=after.yaml", "--from=before.yaml", "--rules"], "cannot be used with"),
        (&["--manifests=after.yaml", "--against=memory"], "[possible values: kernel, nothing]"),
        (&["--manifests=after.yaml", "--cleanup"], "are actions of the proxy"),
        (&["--against=nothing", "--master=http://127.0.0.1:1"], "API server"),
    ];
    for (arguments, part) in table {
        let output = offline(&folder, arguments);
        let error = text(&output.stderr);
        assert_eq!((status(&output), text(&output.stdout).as_str()), (1, ""), "{arguments:?}: {error}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let help = text(&offline(&folder, &["--help"]).stdout);
    for part in ["0 nothing would change", "2 something would change", "--manifests <PATH>", "--cluster-cidr"]
    {
        assert!(help.contains(part), "{part}: {help}");
    }
}
