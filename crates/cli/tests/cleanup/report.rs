//! The report of a clean-up: what others hold is named, and the exit status says whether something is left.

use std::io::Write as _;
use std::process::Stdio;

use portolan_testkit::{Namespace, PortolanProcess, eventually};
use serde_json::Value;

use crate::common::kernel::nft;
use crate::common::{BINARY, PATIENCE};
use crate::{ended, kube_chains};

/// Chains of kube-proxy, and a rule of another program that leads to one of them.
const HELD: &str = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:OTHERS - [0:0]\n\
     -A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -j KUBE-MARK-MASQ\n-A OTHERS -j KUBE-MARK-MASQ\nCOMMIT\n";

/// Runs a clean-up and returns its status, standard output and standard error.
fn clean(node: &Namespace, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = node.command(BINARY);
    command.args(["cleanup"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_chain_that_a_rule_of_another_program_leads_to_is_left() {
    let node = Namespace::new("held-chain").unwrap();
    node.output_with_input("iptables-nft-restore", &["--noflush"], HELD).unwrap();
    let (code, listed, errors) = clean(&node, &["--dry-run"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{listed}");
    let lines = "would remove jump ip nat PREROUTING to KUBE-SERVICES (iptables-nft)\n\
         would remove chain ip nat KUBE-SERVICES (iptables-nft)\n\
         cannot remove chain ip nat KUBE-MARK-MASQ (iptables-nft): a rule in chain OTHERS leads to it\n\
         would remove 2 and set 0; nothing was changed\n";
    assert_eq!(listed, lines);
    let (code, yaml, _) = clean(&node, &["--dry-run", "-o", "yaml"]);
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!((code, &from_yaml["dryRun"]), (Some(0), &true.into()), "{yaml}");
    assert_eq!(from_yaml["remove"][1]["name"], "KUBE-SERVICES", "{yaml}");
    assert_eq!(kube_chains(&node, "iptables-nft-save"), ["MARK-MASQ", "SERVICES"]);
    let (code, report, _) = clean(&node, &["-o", "json"]);
    assert_eq!(code, Some(1), "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["dryRun"], false);
    assert_eq!(report["remove"][1]["name"], "KUBE-SERVICES", "{report}");
    assert_eq!(report["remove"][1]["iptables"], "iptables-nft", "{report}");
    assert_eq!(report["left"][0]["what"], "chain ip nat KUBE-MARK-MASQ (iptables-nft)", "{report}");
    assert_eq!(report["left"].as_array().unwrap().len(), 1, "{report}");
    // For the flag that is no error, as in kube-proxy.
    let (code, output) = ended(&node, BINARY, &["proxy", "--cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    node.output("iptables-nft", &["-t", "nat", "-F", "OTHERS"]).unwrap();
    let (code, report, _) = clean(&node, &[]);
    assert_eq!(code, Some(0), "{report}");
    assert!(kube_chains(&node, "iptables-nft-save").is_empty(), "{report}");
}

/// A container of a `DaemonSet` that ends is started again, so it has to wait, and to end at a signal although it is the first process
/// of its namespace.
#[test]
fn it_waits_for_a_signal_if_nothing_is_left() {
    let node = Namespace::new("waiting").unwrap();
    nft(&node, "add table ip portolan");
    let arguments = ["--pid", "--fork", "--kill-child", BINARY, "cleanup", "--wait"];
    let mut cleanup = PortolanProcess::start(&node, "unshare".as_ref(), &arguments).unwrap();
    cleanup.wait_for_output(PATIENCE, "read again: nothing is left").unwrap();
    assert!(!nft(&node, "list tables").contains("portolan"));
    assert!(cleanup.ended().is_none(), "{}", cleanup.output());
    // The child of unshare, which has no other.
    let children = format!("/proc/{0}/task/{0}/children", cleanup.id());
    let child = std::fs::read_to_string(children).unwrap();
    assert!(std::process::Command::new("kill").arg(child.trim()).status().unwrap().success());
    assert!(cleanup.wait_for_end(PATIENCE).unwrap().success(), "{}", cleanup.output());
}

#[test]
fn a_table_that_a_running_process_owns_is_left() {
    let node = Namespace::new("owned").unwrap();
    let mut command = node.command("nft");
    let mut owner = command.args(["-i"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = owner.stdin.take().unwrap();
    input.write_all(b"add table ip portolan { flags owner; }\n").unwrap();
    eventually(PATIENCE, "the table", || nft(&node, "list tables").contains("portolan")).unwrap();
    let (code, listed, _) = clean(&node, &["--dry-run"]);
    assert_eq!(code, Some(0), "{listed}");
    let line = "table ip portolan: a running process owns it (flag owner): end that process\n";
    assert!(listed.contains(&format!("cannot remove {line}")), "{listed}");
    let (code, report, _) = clean(&node, &[]);
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains(&format!("left {line}")), "{report}");
    assert!(report.contains("failed: our nftables table (IPv4) cannot be removed: "), "{report}");
    drop(input);
    owner.wait().unwrap();
    let (code, report, _) = clean(&node, &[]);
    assert_eq!((code, report.as_str()), (Some(0), "removed 0, set 0; read again: nothing is left\n"));
}

#[test]
fn without_permission_nothing_is_listed_and_the_status_says_so() {
    let node = Namespace::new("not-permitted").unwrap();
    let drop = ["--bounding-set=-net_admin", "--inh-caps=-net_admin", "--", BINARY, "cleanup", "--dry-run"];
    let (code, output) = ended(&node, "setpriv", &drop);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("failed: our nftables tables (IPv4): "), "{output}");
}
