//! Tables that `iptables-nft-save` does not print.

use std::process::Command;

use portolan_iptables::{Programs, Variant};
use portolan_model::Family;

use super::example::{ipv4, settings};
use super::kernel::{apply, in_namespace, save, unordered};
use super::load::driven;

fn nft(arguments: &str) {
    let status = Command::new("nft").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "nft {arguments}");
}

/// `iptables-nft-save` does not print a table with a rule that iptables does not have.
#[test]
fn rules_that_a_save_cannot_print_are_no_reason_to_write_jumps_again() {
    in_namespace(|| {
        let programs = Programs::of(Family::Ipv4, Variant::Nft).unwrap();
        apply(
            &programs,
            "*nat\n:KUBE-SVC-STALE - [0:0]\n:KUBE-SVC-HELD - [0:0]\n:MINE - [0:0]\n-A MINE -j KUBE-SVC-HELD\nCOMMIT\n",
        );
        apply(&programs, "*filter\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n");
        nft("add rule ip filter INPUT ct state established accept");
        nft("add chain ip nat MORE");
        nft("add rule ip nat MORE ct state established accept");
        assert!(!save(Family::Ipv4, Variant::Nft).contains("*nat"), "the table is not printed");
        let mut iptables = driven(programs.clone(), settings(Family::Ipv4));
        iptables.apply(&ipv4()).unwrap();
        let rules = || {
            let listed = Command::new("nft").args(["list", "table", "ip", "filter"]).output().unwrap();
            String::from_utf8(listed.stdout).unwrap().lines().count()
        };
        iptables.resync().unwrap();
        let before = rules();
        for _ in 0..3 {
            iptables.resync().unwrap();
        }
        assert_eq!(rules(), before, "nothing is written twice while the table is not printed");
        nft("flush chain ip filter INPUT");
        nft("flush chain ip nat MORE");
        nft("delete chain ip nat MORE");
        let saved = save(Family::Ipv4, Variant::Nft);
        let jumps = |to: &str| saved.lines().filter(|line| line.ends_with(&format!("-j {to}"))).count();
        // From PREROUTING and OUTPUT of nat; FORWARD and OUTPUT of filter.
        assert_eq!(
            (jumps("KUBE-SERVICES"), jumps("KUBE-POSTROUTING"), jumps("KUBE-FORWARD")),
            (4, 1, 1),
            "{saved}"
        );
        assert!(!saved.contains("KUBE-SVC-STALE"), "{saved}");
        assert!(saved.contains("-A MINE -j KUBE-SVC-HELD"), "{saved}");
        iptables.resync().unwrap();
        let fresh = load_fresh();
        let mut expected = unordered(&fresh);
        expected.retain(|(_, chain), _| chain.starts_with("KUBE-SEP-"));
        let mut found = unordered(&saved);
        found.retain(|(_, chain), _| chain.starts_with("KUBE-SEP-"));
        assert_eq!(found, expected);
    });
}

/// Returns what a load into an empty namespace writes.
fn load_fresh() -> String {
    in_namespace(|| {
        let mut iptables = driven(Programs::of(Family::Ipv4, Variant::Nft).unwrap(), settings(Family::Ipv4));
        iptables.apply(&ipv4()).unwrap();
        iptables.resync().unwrap();
        save(Family::Ipv4, Variant::Nft)
    })
}

#[test]
fn what_a_save_cannot_print_is_asked_for() {
    in_namespace(|| {
        let programs = Programs::of(Family::Ipv4, Variant::Nft).unwrap();
        apply(
            &programs,
            "*filter\n:KUBE-A - [0:0]\n:MINE - [0:0]\n-A INPUT -j KUBE-A\n-A KUBE-A -i lo -j ACCEPT\n-A MINE -p tcp -j KUBE-A\nCOMMIT\n",
        );
        nft("add rule ip filter INPUT ct state established accept");
        let candidates = [
            ("filter", "KUBE-A", "-i lo -j ACCEPT"),
            ("filter", "KUBE-A", "-i lo -j DROP"),
            ("filter", "INPUT", "-j KUBE-A"),
            ("filter", "FORWARD", "-j KUBE-A"),
            ("filter", "KUBE-MISSING", "-j KUBE-A"),
        ];
        let mut lines = Vec::new();
        programs.save_all(&candidates, |line| lines.push(line.to_owned())).unwrap();
        let expected = [
            "# Table `filter' is incompatible, use 'nft' tool.",
            "*filter",
            ":INPUT - [0:0]",
            ":KUBE-A - [0:0]",
            ":MINE - [0:0]",
            "-A KUBE-A -i lo -j ACCEPT",
            "-A INPUT -j KUBE-A",
            "-A MINE -j KUBE-A",
        ];
        assert_eq!(lines, expected);
    });
}
