//! Tests a clean-up with `--only-ours` when kube-proxy has not taken over in the same way: it runs in the other
//! variant of iptables or in iptables mode, or an earlier clean-up was interrupted.

use std::io::Write as _;
use std::process::Stdio;

use portolan_iptables::Variant;
use portolan_leftovers::{remove_own, runs_ipvs, unserved};
use portolan_model::Family;

use super::support::{addresses, command, example, in_namespace, loaded_by, run, virtual_servers};

/// The rules of a kube-proxy in iptables mode, with its own jumps from built-in chains. It writes the last rule last.
const IPTABLES_MODE: &str = r#"*filter
:KUBE-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
"#;
const IPVS_MODE: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
COMMIT
";
const LAST: &str = "*filter
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
";
const BOTH: [Variant; 2] = [Variant::Nft, Variant::Legacy];

fn program(variant: Variant, rest: &str) -> String {
    format!("iptables-{}{rest}", if variant == Variant::Nft { "nft" } else { "legacy" })
}

fn restore(variant: Variant, text: &str) {
    let mut command = command(&program(variant, "-restore"));
    let mut child = command.arg("--noflush").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Returns the rules and chains of IPv4, each with its table, without counters, sorted.
fn saved(variant: Variant) -> Vec<String> {
    let tables = ["nat", "filter", "mangle"];
    let saved = tables.map(|table| run(&program(variant, "-save"), &format!("--table {table}"))).concat();
    let (mut table, mut lines) = ("", Vec::new());
    for line in saved.lines() {
        if line.starts_with('*') {
            table = line;
        } else if line.starts_with([':', '-']) {
            lines.push(format!("{table} {}", line.split(" [").next().unwrap()));
        }
    }
    lines.sort();
    lines
}

fn empty_nat(variant: Variant, six: &str) {
    let program = program(variant, "").replace("iptables", &format!("ip{six}tables"));
    for operation in ["--flush", "--delete-chain"] {
        run(&program, &format!("--table nat {operation}"));
    }
}

fn has_own_sets() -> bool {
    run("ipset", "list -n").contains("PORTOLAN-")
}

fn is_of_the_ipvs_mode_only(line: &str) -> bool {
    ["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS", "KUBE-SOURCE-RANGES", "kube-proxy firewall rules"]
        .iter()
        .any(|own| line.contains(own))
}

/// Removes what a clean-up removes first and, with `further`, all rules that refer to `PORTOLAN-REJECT`. Checks that
/// the next clean-up completes the removal.
fn is_interrupted(variant: Variant, further: bool) {
    in_namespace(|| {
        for (family, six) in [(Family::Ipv4, ""), (Family::Ipv6, "6")] {
            drop(loaded_by(variant, family, &example(family)));
            run("nft", &format!("add table ip{six} kube-proxy"));
            empty_nat(variant, six);
        }
        let tells = |line: &&String| line.contains(" --match-set PORTOLAN-REJECT ");
        for line in saved(variant).iter().filter(tells).filter(|_| further) {
            run(&program(variant, ""), &line.replace("*filter -A", "--table filter --delete"));
        }
        assert_eq!(saved(variant).iter().any(|line| tells(&line)), !further);
        assert!(saved(variant).iter().any(|line| line.contains("PORTOLAN-DROP")));
        assert_eq!(unserved().unwrap(), []);
        let (removed, errors) = remove_own(&[]);
        assert!(errors.is_empty() && removed.sets > 0, "{variant:?} {removed:?} {errors:?}");
        assert_eq!(run("ipset", "list -n"), "");
        let rules = saved(variant);
        assert!(!rules.iter().any(|line| line.contains("KUBE-")), "{variant:?} {rules:?}");
        assert!(virtual_servers().is_empty() && !run("ip", "link").contains("kube-ipvs0"));
        let (removed, errors) = remove_own(&[]);
        assert!(removed.is_empty() && errors.is_empty(), "{removed:?} {errors:?}");
    });
}

#[test]
fn an_interrupted_clean_up_is_completed() {
    is_interrupted(Variant::Nft, false);
    is_interrupted(Variant::Legacy, false);
    is_interrupted(Variant::Nft, true);
}

/// Checks that our rules in one variant are removed for a kube-proxy in the other one, also after an interruption.
fn gives_way(ours: Variant, theirs: Variant, mode: &str, interrupted: bool) {
    in_namespace(|| {
        let why = format!("{ours:?}, then {mode} in {theirs:?}");
        drop(loaded_by(ours, Family::Ipv4, &example(Family::Ipv4)));
        restore(theirs, mode);
        assert_eq!(unserved().unwrap(), [Family::Ipv4], "it has not come to its end: {why}");
        restore(theirs, LAST);
        if interrupted {
            empty_nat(ours, "");
        }
        let is_ipvs = mode == IPVS_MODE;
        assert_eq!((unserved().unwrap(), runs_ipvs().unwrap()), (Vec::new(), is_ipvs), "{why}");
        let before = (saved(theirs), virtual_servers(), addresses());
        let (removed, errors) = remove_own(&[]);
        assert!(errors.is_empty(), "{why}: {removed:?} {errors:?}");
        assert_eq!(saved(theirs), before.0, "{why}");
        let rules = saved(ours);
        assert!(!rules.iter().any(|line| line.contains("KUBE-")), "{why}: {rules:?}");
        assert!(!has_own_sets(), "{why}");
        if is_ipvs {
            assert_eq!((virtual_servers(), addresses()), (before.1, before.2), "{why}");
            assert!(run("ipset", "list -n").contains("KUBE-CLUSTER-IP"), "{why}");
        } else {
            assert!(virtual_servers().is_empty() && !run("ip", "link").contains("kube-ipvs0"), "{why}");
        }
    });
}

#[test]
fn our_rules_are_removed_for_a_kube_proxy_in_the_other_variant() {
    gives_way(Variant::Nft, Variant::Legacy, IPVS_MODE, false);
    gives_way(Variant::Nft, Variant::Legacy, IPTABLES_MODE, true);
    gives_way(Variant::Legacy, Variant::Nft, IPVS_MODE, false);
    gives_way(Variant::Legacy, Variant::Nft, IPTABLES_MODE, false);
}

#[test]
fn our_jumps_into_chains_of_the_iptables_mode_are_removed() {
    for variant in BOTH {
        in_namespace(|| {
            drop(loaded_by(variant, Family::Ipv4, &example(Family::Ipv4)));
            restore(variant, IPTABLES_MODE);
            restore(variant, LAST);
            assert_eq!((unserved().unwrap(), runs_ipvs().unwrap()), (Vec::new(), false), "{variant:?}");
            let mut kept = saved(variant);
            let ours =
                |line: &&String| line.ends_with("\"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL");
            assert_eq!(kept.iter().filter(ours).count(), 2, "{variant:?} {kept:?}");
            kept.retain(|line| !is_of_the_ipvs_mode_only(line));
            let (removed, errors) = remove_own(&[]);
            assert!(errors.is_empty() && removed.rules == 2, "{variant:?} {removed:?} {errors:?}");
            assert_eq!(saved(variant), kept, "{variant:?}");
            assert_eq!(run("ipset", "list -n"), "");
        });
    }
}
