//! What other modes left, and what the mode lacks: found by the program, and mended as it says.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use portolan_testkit::{Namespace, PortolanProcess, eventually};
use serde_json::Value;
use tempfile::TempDir;

use super::common::{BINARY, Cluster, NODE, PATIENCE, in_sync};
use super::{doctor, findings, report};

const KINDS: [&str; 5] = [
    "leftovers-of-another-mode",
    "leftovers-of-ipvs",
    "leftovers-of-kube-proxy",
    "leftovers-of-portolan",
    "leftovers-of-routing",
];

/// Returns the codes of findings about leftovers.
fn leftovers(node: &Namespace) -> Vec<&'static str> {
    let (_, report) = report(node, &[]);
    assert_eq!(report["unread"], Value::Null, "{report:#}");
    KINDS.into_iter().filter(|code| !findings(&report, code).is_empty()).collect()
}

/// Returns the mends of the findings with a code. None of them may have a fix.
fn mends(report: &Value, code: &str) -> Vec<String> {
    let found = report["findings"].as_array().unwrap().iter().filter(|found| found["code"] == code);
    let mend = |found: &Value| {
        assert_eq!(found["fix"], Value::Null, "{found:#}");
        found["mend"].as_str().unwrap().to_owned()
    };
    found.map(mend).collect()
}

/// Starts an agent whose command line names the mode.
fn agent(cluster: &Cluster, mode: &str) -> PortolanProcess {
    let (master, mode) = (format!("--master={}", cluster.master()), format!("--proxy-mode={mode}"));
    let own = format!("--hostname-override={NODE}");
    let mut proxy = cluster.run(&["proxy", &master, &mode, &own]);
    in_sync(&mut proxy);
    proxy
}

fn chains(node: &Namespace) -> String {
    let saved = node.output("iptables-nft-save", &["-t", "nat"]).unwrap();
    let lines = saved.lines().filter(|line| line.contains("KUBE-") && !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned() + "\n").collect()
}

#[test]
fn a_restart_removes_what_other_modes_left_and_keeps_the_rules_that_serve() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    let mut proxy = agent(&cluster, "iptables");
    assert_eq!(leftovers(node), [""; 0], "{}", proxy.output());
    let before = chains(node);
    assert!(before.contains("KUBE-SERVICES"), "{before}");

    let tables = "table ip portolan { chain services { }; }\ntable ip6 portolan-relay { }\n";
    node.output_with_input("nft", &["-f", "-"], tables).unwrap();
    node.ip("rule add priority 500 fwmark 0x1000/0x1000 lookup 28783\n\
             route add local default dev lo table 28783 proto static\n\
             link add kube-ipvs0 type bridge\n")
        .unwrap();
    let (_, found) = report(node, &[]);
    let titles = findings(&found, "leftovers-of-another-mode");
    assert!(titles.iter().any(|title| title.ends_with("left: table portolan")), "{found:#}");
    assert!(titles.iter().any(|title| title.ends_with("left: table portolan-relay")), "{found:#}");
    let [routing] = findings(&found, "leftovers-of-routing")[..] else { panic!("{found:#}") };
    for part in ["mark 0x1000/0x1000 to table 28783", "local default in table 28783"] {
        assert!(routing.contains(part), "{routing}");
    }
    let [ipvs] = findings(&found, "leftovers-of-ipvs")[..] else { panic!("{found:#}") };
    assert!(ipvs.contains("device kube-ipvs0"), "{ipvs}");
    for code in ["leftovers-of-another-mode", "leftovers-of-routing", "leftovers-of-ipvs"] {
        for mend in mends(&found, code) {
            assert!(mend.contains("restart Portolan") && !mend.contains("--cleanup"), "{mend}");
        }
    }
    assert_eq!(findings(&found, "leftovers-of-kube-proxy"), [""; 0], "{found:#}");
    doctor(node, &["--fix"]);
    assert_eq!(chains(node), before, "no fix removes them");

    proxy.terminate(PATIENCE).unwrap();
    let proxy = agent(&cluster, "iptables");
    let mut left = Vec::new();
    let outcome = eventually(PATIENCE, "nothing is left", || {
        left = leftovers(node);
        left.is_empty()
    });
    assert!(outcome.is_ok(), "{left:?}: {}", proxy.output());
    assert_eq!(chains(node), before);
    assert!(!node.output("nft", &["list", "tables"]).unwrap().contains("portolan"));
}

#[test]
fn without_a_proxy_the_clean_up_removes_them() {
    let node = Namespace::new("doctor").unwrap();
    node.ip("link add kube-ipvs0 type bridge\n\
             rule add priority 500 fwmark 0x1000/0x1000 lookup 28783\n")
        .unwrap();
    node.output("ipset", &["create", "PORTOLAN-REJECT", "hash:ip,port"]).unwrap();
    let (_, found) = report(&node, &[]);
    // Each of them belongs to another mode.
    let [title] = findings(&found, "leftovers-of-another-mode")[..] else { panic!("{found:#}") };
    for part in ["device kube-ipvs0", "ipset PORTOLAN-REJECT", "rule 500: mark 0x1000/0x1000"] {
        assert!(title.contains(part), "{title}");
    }
    let mends = mends(&found, "leftovers-of-another-mode");
    assert!(mends.iter().all(|mend| mend.ends_with("portolan-proxy cleanup")), "{mends:?}");
    let mut cleanup = PortolanProcess::start(&node, BINARY.as_ref(), &["cleanup"]).unwrap();
    assert!(cleanup.wait_for_end(PATIENCE).unwrap().success(), "{}", cleanup.output());
    assert_eq!(leftovers(&node), [""; 0]);
    assert_eq!(node.output("ipset", &["list", "-n"]).unwrap(), "");
}

/// Plants objects of Portolan's modes and rules of a kube-proxy. They lead nowhere.
fn plant_beside_kube_proxy(node: &Namespace) {
    let names = ["portolan", "portolan-userspace", "portolan-relay", "kube-proxy"];
    let table = |family, name| format!("table {family} {name} {{ chain services {{ }}; }}\n");
    let tables: String = names.map(|name| table("ip", name) + &table("ip6", name)).concat();
    node.output_with_input("nft", &["-f", "-"], &tables).unwrap();
    node.ip("rule add priority 500 fwmark 0x1000/0x1000 lookup 28783\n\
             route add local default dev lo table 28783 proto static\n")
        .unwrap();
    for set in ["PORTOLAN-DROP", "KUBE-CLUSTER-IP"] {
        node.output("ipset", &["create", set, "hash:ip,port"]).unwrap();
    }
}

#[test]
fn beside_kube_proxy_the_printed_command_removes_what_portolan_left() {
    let (node, folder) = (Namespace::new("doctor").unwrap(), TempDir::new().unwrap());
    node.ip("link set lo up\n").unwrap();
    let [kube_proxy, portolan_proxy] = ["kube-proxy", "portolan-proxy"].map(|name| folder.path().join(name));
    symlink("/bin/sh", &kube_proxy).unwrap();
    symlink(BINARY, &portolan_proxy).unwrap();
    // It waits for the end of its input.
    let mut upstream = node.command(&kube_proxy);
    let mut upstream = upstream.args(["-c", "read end", "proxy"]).stdin(Stdio::piped()).spawn().unwrap();
    plant_beside_kube_proxy(&node);

    let (_, found) = report(&node, &[]);
    let [title] = findings(&found, "leftovers-of-portolan")[..] else { panic!("{found:#}") };
    let (_, left) = title.split_once(" left: ").unwrap();
    assert_eq!(
        left,
        "table portolan, tables portolan-relay, portolan-userspace, rule 500: mark 0x1000/0x1000 to table 28783, \
         route local default in table 28783, ipset PORTOLAN-DROP"
    );
    assert_eq!(leftovers(&node), ["leftovers-of-portolan"]);
    let [mend] = &mends(&found, "leftovers-of-portolan")[..] else { panic!("{found:#}") };
    let path = format!("PATH={}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    node.output("env", &[&path, "sh", "-ec", mend]).unwrap();
    assert_eq!(leftovers(&node), [""; 0], "after `{mend}`");
    let tables = node.output("nft", &["list", "tables"]).unwrap();
    assert_eq!(tables, "table ip kube-proxy\ntable ip6 kube-proxy\n");
    assert_eq!(node.output("ipset", &["list", "-n"]).unwrap(), "KUBE-CLUSTER-IP\n");
    assert!(!node.output("ip", &["rule"]).unwrap().contains("28783"));
    drop(upstream.stdin.take());
    upstream.wait().unwrap();
}

#[test]
fn a_mode_whose_programs_are_missing() {
    let node = Namespace::new("doctor").unwrap();
    let empty = node.output("nft", &["list", "ruleset"]).unwrap();
    assert_eq!(findings(&report(&node, &[]).1, "mode-cannot-run"), [""; 0]);
    assert_eq!(node.output("nft", &["list", "ruleset"]).unwrap(), empty, "a trial leaves nothing");
    node.output("iptables-nft", &["-t", "nat", "-N", "KUBE-SERVICES"]).unwrap();
    assert_eq!(findings(&report(&node, &[]).1, "mode-cannot-run"), [""; 0]);

    let arguments = ["PATH=/nowhere", BINARY, "doctor", "-o", "json"];
    let mut process = PortolanProcess::start(&node, "env".as_ref(), &arguments).unwrap();
    assert_eq!(process.wait_for_end(PATIENCE).unwrap().code(), Some(1), "{}", process.output());
    let found: Value = serde_json::from_str(&process.output()).unwrap();
    let titles = findings(&found, "mode-cannot-run");
    assert!(!titles.is_empty(), "{found:#}");
    for title in titles {
        assert!(
            title.starts_with("the iptables mode cannot run here with the programs of this host: IPv"),
            "{title}"
        );
    }
    assert!(
        mends(&found, "mode-cannot-run").iter().all(|mend| mend.starts_with("install iptables")),
        "{found:#}"
    );
}
