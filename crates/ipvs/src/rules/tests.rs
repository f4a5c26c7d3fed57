use super::*;
use portolan_model::NodePortAddresses;

fn settings(family: Family) -> Settings {
    Settings {
        family,
        local_detector: LocalDetector::Cidr("10.180.0.0/16".parse().unwrap()),
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: None,
        service_cidrs: Vec::new(),
    }
}

/// Returns what a save prints after a restore.
fn saved(restore: &str, present: &str) -> String {
    let (mut lines, mut table) = (vec![present.to_owned()], "");
    for line in restore.lines() {
        if line.starts_with('*') {
            table = line;
        } else if let Some(jump) = line.strip_prefix("-I ") {
            lines.extend([table.to_owned(), format!("-A {jump}")]);
        } else {
            lines.extend([table.to_owned(), line.to_owned()]);
        }
    }
    lines.join("\n")
}

fn present(saved: &str) -> Present {
    let mut present = Present::default();
    saved.lines().for_each(|line| present.line(line));
    present
}

#[test]
fn rules_that_exist_are_not_written_again() {
    for family in Family::BOTH {
        let rules = Rules::new(&settings(family));
        let restore = rules.restore(&Present::default(), Part::Before);
        assert_eq!(restore.matches("COMMIT").count(), 3);
        assert_eq!(rules.restore(&Present::default(), Part::After), "");
        let present = present(&saved(&restore, ""));
        assert!(rules.are_in(&present));
        let removal = present.removal(|_, _| false);
        assert_eq!(removal.matches("\n-X ").count(), CHAINS.len());
        assert_eq!(removal.matches("\n-D ").count(), JUMPS.len());
    }
}

#[test]
fn a_rule_that_is_gone_makes_its_chain_be_written() {
    let rules = Rules::new(&settings(Family::Ipv4));
    let restore = rules.restore(&Present::default(), Part::Before);
    let saved = saved(&restore, "");
    let is_there = |line: &&str| !line.ends_with("-j REJECT --reject-with icmp-port-unreachable");
    let without = saved.lines().filter(is_there).collect::<Vec<_>>().join("\n");
    let text = rules.restore(&present(&without), Part::Before);
    assert!(text.starts_with("*filter\n:KUBE-IPVS-FILTER - [0:0]\n-A KUBE-IPVS-FILTER "), "{text}");
    assert_eq!(text.matches(":KUBE").count(), 1);
}

#[test]
fn the_chain_that_the_iptables_mode_has_filled_is_written_last() {
    let rules = Rules::new(&settings(Family::Ipv4));
    let present = present(
        "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -m comment --comment \"last\" -j KUBE-NODEPORTS\nCOMMIT\n",
    );
    let (before, after) = (rules.restore(&present, Part::Before), rules.restore(&present, Part::After));
    assert!(!before.contains(":KUBE-SERVICES"), "{before}");
    assert!(before.contains("-I PREROUTING"));
    assert!(after.starts_with("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES "), "{after}");
    assert!(after.contains("\n-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN\n"), "{after}");
    assert_eq!(after.matches(":KUBE").count(), 1);
}

#[test]
fn chains_of_another_mode_stay() {
    let rules = Rules::new(&settings(Family::Ipv4));
    let restore = rules.restore(&Present::default(), Part::Before);
    let removal =
        present(&saved(&restore, "")).removal(|table, chain| (table, chain) == ("nat", "KUBE-SERVICES"));
    assert!(!removal.contains("KUBE-SERVICES"), "{removal}");
    assert!(removal.contains("-X KUBE-NODE-PORT"));
}

/// The iptables mode enters that chain by rules with another comment.
#[test]
fn jumps_to_a_kept_chain_stay_only_if_both_modes_have_them() {
    let rules = Rules::new(&settings(Family::Ipv4));
    let present = present(&saved(&rules.restore(&Present::default(), Part::Before), ""));
    let removal = present.removal(portolan_iptables::is_own);
    for from in ["INPUT", "FORWARD"] {
        let jump =
            format!("-D {from} -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL");
        assert!(removal.contains(&jump), "{removal}");
    }
    for stays in ["-X KUBE-PROXY-FIREWALL", "-j KUBE-SERVICES", "-j KUBE-POSTROUTING", "-j KUBE-FORWARD"] {
        assert!(!removal.contains(stays), "{stays}: {removal}");
    }
}
