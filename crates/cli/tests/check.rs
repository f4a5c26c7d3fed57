//! `portolan check` as a program: what it finds, and that it changes nothing. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use common::load::busy_services;
use common::{BINARY, Cluster, NODE, PATIENCE, in_sync};
use portolan_testkit::{Namespace, PortolanProcess};
use serde_json::Value;
use tempfile::TempDir;

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

/// Runs the program in a namespace. Returns its exit status, standard output and standard error.
fn run(node: &Namespace, arguments: &[&str]) -> (i32, String, String) {
    let run = || Command::new(BINARY).args(arguments).output().unwrap();
    let output = node.run(run).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs the check in a namespace. Returns its exit status and report.
fn check(node: &Namespace, arguments: &[&str]) -> (i32, Value) {
    let (status, report, errors) = run(node, &[&["check", "-o", "json"], arguments].concat());
    (status, serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {errors}")))
}

/// Returns the items of a part with an outcome.
fn items<'a>(report: &'a Value, part: &str, outcome: &str) -> Vec<&'a str> {
    let items = report["items"].as_array().unwrap().iter();
    let items = items.filter(|item| item["part"] == part && item["outcome"] == outcome);
    items.map(|item| item["text"].as_str().unwrap()).collect()
}

/// Returns all that the kernel has in the namespace and that a start of a mode writes.
fn state(node: &Namespace) -> String {
    let mut all = String::new();
    for (program, arguments) in [
        // Without counters, which packets change.
        ("nft", &["-s", "list", "ruleset"][..]),
        ("iptables-legacy-save", &[]),
        ("ip6tables-legacy-save", &[]),
        ("ip", &["-br", "address"]),
        ("ipset", &["list"]),
        ("ipvsadm", &["--save", "--numeric"]),
        (
            "sysctl",
            &["-a", "--pattern", "^net\\.(ipv4\\.(ip_forward|conf|vs)|netfilter\\.nf_conntrack_(max|tcp))"],
        ),
    ] {
        let run = || Command::new(program).args(arguments).output();
        let printed = match node.run(run).unwrap() {
            // It is installed for the tests in a guest only.
            Err(error) if program == "ipvsadm" && error.kind() == ErrorKind::NotFound => continue,
            output => output.unwrap().stdout,
        };
        all += &String::from_utf8_lossy(&printed);
    }
    all
}

#[test]
fn a_node_with_kube_proxy_stays_as_it_is_in_every_mode() {
    let node = Namespace::new("check").unwrap();
    let folder = TempDir::new().unwrap();
    for (name, program, arguments, rules) in [
        ("nft", "nft", &["-f"][..], KUBE_PROXY_NFT),
        ("save", "iptables-nft-restore", &["-c"][..], &kube_proxy_save()),
    ] {
        let file = folder.path().join(name);
        fs::write(&file, rules).unwrap();
        node.output(program, &[arguments, &[file.to_str().unwrap()]].concat()).unwrap();
    }
    let before = state(&node);
    for mode in ["nftables", "iptables", "userspace", "ipvs"] {
        let (_, report) = check(&node, &["--offline", &format!("--proxy-mode={mode}")]);
        assert_eq!(state(&node), before, "{mode}");
        let tried = [items(&report, "mode", "ok"), items(&report, "mode", "failure")].concat();
        assert!(tried.len() >= 2 || mode == "ipvs", "the mode was tried: {report:#}");
    }
    let (status, report) = check(&node, &["--offline", "--proxy-mode=nftables"]);
    assert_eq!(status, 0, "{report:#}");
    let tried = items(&report, "mode", "ok");
    assert!(tried.iter().any(|text| text.starts_with("the trial succeeded: IPv4")), "{report:#}");
    let surroundings = items(&report, "surroundings", "ok");
    assert!(surroundings.iter().any(|text| text.starts_with("no-proxy")), "{report:#}");
}

/// Left out without IPVS in the kernel.
#[test]
fn nothing_changes_in_ipvs_mode() {
    let Some(cluster) = common::ipvs::cluster() else { return };
    let node = cluster.world.node().namespace();
    // Those of another program.
    node.output("ipvsadm", &["--add-service", "--tcp-service", "203.0.113.99:80"]).unwrap();
    node.output("ipset", &["create", "foreign", "hash:ip"]).unwrap();
    nothing_changes(node, &["-A -t 203.0.113.99:80", "Name: foreign"]);
    // Those of this mode.
    busy_services(&cluster);
    let mut proxy = cluster.proxy_with("mode: ipvs\n");
    in_sync(&mut proxy);
    proxy.terminate(PATIENCE).unwrap();
    let own =
        ["-A -t 10.96.0.10:80", "-A -t [fd00:96::10]:80", "Name: KUBE-CLUSTER-IP", "Name: KUBE-6-CLUSTER-IP"];
    nothing_changes(node, &own);
}

/// Checks each mode on a node that has these objects. The IPVS mode can run.
fn nothing_changes(node: &Namespace, objects: &[&str]) {
    let before = state(node);
    for object in objects {
        assert!(before.contains(object), "{object}: {before}");
    }
    for mode in ["nftables", "iptables", "userspace", "ipvs"] {
        let (_, report) = check(node, &["--offline", &format!("--proxy-mode={mode}")]);
        assert_eq!(items(&report, "mode", "failure"), [""; 0], "{mode}: {report:#}");
        let (tried, after) = (items(&report, "mode", "ok"), state(node));
        assert!(tried.iter().any(|text| text.starts_with("the trial succeeded")), "{mode}: {report:#}");
        assert_eq!(after, before, "{mode}");
    }
}

#[test]
fn every_error_of_a_configuration_is_in_the_report() {
    let node = Namespace::new("check").unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.yaml");
    let wrong = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: fast\n\
                 oomScoreAdj: 2000\nclusterCIDRs: 10.0.0.0/8\n";
    fs::write(&file, wrong).unwrap();
    let (status, report) = check(&node, &["--config", file.to_str().unwrap()]);
    assert_eq!((status, &report["outcome"]), (1, &"failure".into()), "{report:#}");
    let failures = items(&report, "configuration", "failure");
    for field in ["mode (line 3", "oomScoreAdj (line 4", "clusterCIDRs (line 5"] {
        assert!(failures.iter().any(|text| text.starts_with(field)), "{field}: {report:#}");
    }
    let (status, yaml, _) = run(&node, &["check", "-o", "yaml", "--config", file.to_str().unwrap()]);
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!((status, items(&from_yaml, "configuration", "failure")), (1, failures), "{yaml}");
}

#[test]
fn a_control_socket_that_cannot_be_opened_is_a_warning() {
    let node = Namespace::new("check").unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let found = |path: &str| {
        let socket = format!("--control-socket={}", folder.path().join(path).display());
        let (_, report) = check(&node, &["--offline", &socket]);
        items(&report, "ports", "warning").join("; ")
    };
    assert_eq!(found("new/proxy.sock"), "");
    assert!(found("file/proxy.sock").ends_with("/file: it is not a folder"));
    assert!(found("file").contains("/file exists and is not a socket"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made");
}

#[test]
fn the_api_server_is_asked() {
    let mut cluster = Cluster::new();
    cluster.configure("");
    let file = cluster.configuration_file();
    let (file, master) = (file.to_str().unwrap(), cluster.master());
    let arguments = ["--config", file, "--master", &master];
    let node = cluster.world.node().namespace();
    let (status, report) = check(node, &arguments);
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(items(&report, "api", "ok").len(), 1, "{report:#}");
    let other = [&arguments[..], &["--hostname-override=elsewhere"]].concat();
    let (_, report) = check(node, &other);
    let missing = items(&report, "surroundings", "failure");
    assert!(missing.iter().any(|text| text.contains("there is no Node elsewhere")), "{report:#}");
    assert!(!report.to_string().contains(&format!("Node {NODE}")));

    cluster.stop_server();
    let (status, report) = check(cluster.world.node().namespace(), &arguments);
    assert_eq!(status, 1, "{report:#}");
    assert_eq!(items(&report, "api", "failure").len(), 1, "{report:#}");
}

/// On a node, the configuration of a pod names files that only the pod has.
#[test]
fn the_api_server_is_asked_with_another_kubeconfig() {
    let cluster = Cluster::new();
    cluster.configure("clientConnection: {kubeconfig: /nonexistent/kubeconfig.conf}\n");
    let file = cluster.configuration_file();
    let folder = TempDir::new().unwrap();
    let kubeconfig = folder.path().join("kubeconfig.conf");
    fs::write(&kubeconfig, portolan_testkit::kubeconfig(&cluster.master())).unwrap();
    let node = cluster.world.node().namespace();
    let config = ["--config", file.to_str().unwrap()];
    let arguments = [&config[..], &["--kubeconfig", kubeconfig.to_str().unwrap()]].concat();
    let (_, report) = check(node, &arguments);
    assert_eq!(items(&report, "api", "ok").len(), 1, "{report:#}");
    let (status, _, errors) = run(node, &[&["plan"], &arguments[..]].concat());
    assert!(matches!(status, 0 | 2), "{errors}");
    assert!(!errors.contains("--kubeconfig"), "the flag is not ignored: {errors}");
    let (status, _, errors) = run(node, &[&["plan"], &config[..]].concat());
    assert!(status == 1 && errors.contains("/nonexistent"), "{errors}");
}

#[test]
fn writes_to_the_node_that_are_not_permitted_are_found() {
    let (world, folder) = (common::world(), TempDir::new().unwrap());
    let node = world.node().namespace();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let credentials =
        |role| run(node, &["serve", "kubeconfig", "--role", role, "--token", "--data-dir", &at("data")]).1;
    let of_roles = ["proxy", "admin"].map(credentials);
    let arguments = ["serve", "--data-dir", &at("data")];
    let mut server = PortolanProcess::start(node, BINARY.as_ref(), &arguments).unwrap();
    server.wait_for_output(PATIENCE, "tls=true").unwrap();
    let ask = |kubeconfig: &str, flags: &[&str]| {
        fs::write(at("kubeconfig"), kubeconfig).unwrap();
        let own = ["--kubeconfig", &at("kubeconfig"), "--hostname-override", NODE];
        let (_, report) = check(node, &[&own[..], flags].concat());
        assert_eq!(items(&report, "api", "failure"), [""; 0], "{report:#}");
        let warnings = items(&report, "api", "warning").into_iter().map(str::to_owned);
        warnings.filter(|text| text.starts_with("the API server does not permit")).collect::<Vec<_>>()
    };
    let [proxy, admin] = of_roles;
    let taint = "--readiness-taint=portolan.dev/agent-not-ready";
    let condition = "--readiness-condition=ServicesUnavailable";
    assert_eq!(ask(&proxy, &[]), [""; 0], "the node is not written");
    assert_eq!(ask(&admin, &[taint, condition]), [""; 0]);
    let of_taint = "the API server does not permit: patch nodes, so the taint portolan.dev/agent-not-ready stays on the Node";
    assert_eq!(ask(&proxy, &[taint]), [of_taint]);
    let of_condition = "the API server does not permit: patch nodes/status, so the Node does not get the condition ServicesUnavailable";
    assert_eq!(ask(&proxy, &[taint, condition]), [of_taint, of_condition]);
}

/// The check runs in a namespace of its own, where low ports need the capability unless the node says otherwise.
#[test]
fn ports_from_which_the_userspace_mode_cannot_answer_are_found() {
    let node = Namespace::new("check").unwrap();
    node.ip("link set lo up").unwrap();
    let check = || {
        let capabilities = ["--bounding-set=-all,+net_admin,+sys_admin", "--inh-caps=-all", "--"];
        let check = [BINARY, "check", "-o", "json", "--proxy-mode=userspace", "--userspace-capture=tproxy"];
        let run = || Command::new("setpriv").args(capabilities).args(check).output().unwrap();
        let output = node.run(run).unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        items(&report, "mode", "warning").iter().any(|text| text.contains("CAP_NET_BIND_SERVICE"))
    };
    assert!(check());
    node.write_sysctls(&[("net/ipv4/ip_unprivileged_port_start".to_owned(), "0")]).unwrap();
    assert!(!check());
}

#[test]
fn a_running_agent_and_its_ports_are_found() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let file = cluster.configuration_file();
    let (master, socket) = (cluster.master(), cluster.control_socket());
    let arguments = ["--config", file.to_str().unwrap(), "--master", &master];
    let socket = ["--control-socket", socket.to_str().unwrap()];
    let node = cluster.world.node().namespace();
    let before = state(node);
    let (status, report) = check(node, &[&arguments[..], &socket].concat());
    assert_eq!(status, 0, "{report:#}");
    let taken = items(&report, "ports", "warning");
    assert_eq!(taken.len(), 3, "{report:#}");
    assert!(taken.iter().any(|text| text.contains(": another process listens on ")), "{report:#}");
    let proxies = items(&report, "surroundings", "ok");
    assert!(proxies.iter().any(|text| text.starts_with("Portolan (process ")), "{report:#}");
    assert_eq!(state(node), before);
}
