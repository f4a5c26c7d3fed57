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
        counters: false,
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
fn the_iptables_modes_way_into_the_shared_firewall_chain_goes_when_the_last_rules_are_written() {
    let rules = Rules::new(&settings(Family::Ipv4));
    let jump = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL";
    let filter = format!(
        "*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n-A INPUT {jump}\n-A OUTPUT {jump}\n-A FORWARD {jump}\n-A FORWARD {jump}\nCOMMIT\n"
    );
    let filled = "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j KUBE-SVC-XXXXXXXXXXXXXXXX\nCOMMIT\n";
    let counts = |saved: &str| {
        let present = present(saved);
        [Part::Before, Part::After].map(|part| {
            let text = rules.restore(&present, part);
            ["INPUT", "OUTPUT", "FORWARD"].map(|from| text.matches(&format!("-D {from} {jump}\n")).count())
        })
    };
    assert_eq!(counts(&filter), [[1, 1, 2], [0, 0, 0]]);
    assert_eq!(counts(&format!("{filter}{filled}")), [[0, 0, 0], [1, 1, 2]]);
    let present = present(&filter);
    let removal = present.removal(|_, _| false);
    assert!(removal.contains("-X KUBE-PROXY-FIREWALL\n") && removal.matches(jump).count() == 4, "{removal}");
    assert_eq!(present.removal(|_, chain| chain == "KUBE-PROXY-FIREWALL"), "");
}

/// If no address of this node accepts node ports, the iptables mode has rules of Services only.
#[test]
fn any_chain_of_a_service_shows_that_the_iptables_mode_has_filled_the_chain() {
    let rules = Rules::new(&settings(Family::Ipv4));
    let parts = |to: &str| {
        let rule = format!(
            "-d 10.96.0.1/32 -p tcp -m comment --comment \"default/kubernetes:https cluster IP\" -m tcp --dport 443 -j {to}"
        );
        let present = present(&format!("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES {rule}\nCOMMIT\n"));
        [Part::Before, Part::After].map(|part| rules.restore(&present, part))
    };
    for prefix in ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"] {
        let [before, after] = parts(&format!("{prefix}XXXXXXXXXXXXXXXX"));
        assert!(!before.contains(":KUBE-SERVICES"), "{prefix}: {before}");
        assert!(before.contains("-I PREROUTING"));
        assert!(after.starts_with("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES "), "{prefix}: {after}");
        assert_eq!(after.matches(":KUBE").count(), 1);
    }
    // Chains that this mode and kube-proxy's IPVS mode have, too, do not show it.
    for to in ["KUBE-MARK-MASQ", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"] {
        let [before, after] = parts(to);
        assert!(before.contains(":KUBE-SERVICES"), "{to}: {before}");
        assert_eq!(after, "");
    }
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

/// Returns what a save prints after a removal of the same chains: the jumps to them are gone.
fn after(removal: &str, saved: &str) -> String {
    let (mut gone, mut table) = (Vec::new(), "");
    for line in removal.lines() {
        if line.starts_with('*') {
            table = line;
        } else if let Some(jump) = line.strip_prefix("-D ") {
            gone.push((table, format!("-A {jump}")));
        } else if let Some(chain) = line.strip_prefix(':').and_then(|chain| chain.split(' ').next()) {
            gone.push((table, format!("-A {chain} ")));
        } else if let Some(chain) = line.strip_prefix("-X ") {
            gone.push((table, format!(":{chain} ")));
        }
    }
    let (mut lines, mut table) = (Vec::new(), "");
    for line in saved.lines() {
        if line.starts_with('*') {
            table = line;
        }
        if !gone.iter().any(|(of, start)| *of == table && line.starts_with(start)) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// The kernel refuses to remove such a chain, and with it everything else in the table.
#[test]
fn a_chain_that_rules_of_other_programs_lead_to_is_emptied_and_stays() {
    for way in ["-j", "-p tcp -m comment --comment \"masquerade\" -g"] {
        let others = format!("*nat\n:OTHERS - [0:0]\n-A OTHERS {way} KUBE-MARK-MASQ");
        let saved = format!("{}\n{others}", all_saved(Family::Ipv4));
        let (there, none) = (present(&saved), |_: &str, _: &str| false);
        assert_eq!(there.staying(none), ["KUBE-MARK-MASQ"]);
        let removal = there.removal(none);
        assert!(!removal.contains("-X KUBE-MARK-MASQ"), "{removal}");
        assert!(removal.contains("\n:KUBE-MARK-MASQ - [0:0]\n"), "{removal}");
        assert_eq!(removal.matches("\n-X ").count(), CHAINS.len() - 1);
        assert_eq!(removal.matches("\n-D ").count(), JUMPS.len());
        let left = after(&removal, &saved);
        assert!(left.contains(":KUBE-MARK-MASQ") && left.contains("-A OTHERS"), "{left}");
        assert_eq!(present(&left).removal(none), "");
        // When the other program is gone, the chain goes, too.
        let without = left.replace(&others, "");
        assert_eq!(
            present(&without).removal(none),
            "*nat\n:KUBE-MARK-MASQ - [0:0]\n-X KUBE-MARK-MASQ\nCOMMIT\n"
        );
    }
}

/// A jump to a chain that stays goes, too, so that packets no longer enter it. So does one that exists twice.
#[test]
fn jumps_to_a_chain_that_stays_are_removed() {
    let jump = format!("-A PREROUTING {}", JUMPS[1].rule());
    let others = "-A OTHERS -j KUBE-SERVICES\n-A PREROUTING -i eth0 -j KUBE-SERVICES";
    let removal =
        present(&format!("{}\n*nat\n{jump}\n{others}", all_saved(Family::Ipv4))).removal(|_, _| false);
    assert!(!removal.contains("-X KUBE-SERVICES"), "{removal}");
    assert!(!removal.contains("eth0"), "{removal}");
    assert_eq!(removal.matches(&jump.replacen("-A", "-D", 1)).count(), 2, "{removal}");
    assert_eq!(removal.matches("\n-D ").count(), JUMPS.len() + 1);
}

/// A rule of the same table only, and one that leads there: a comment or another target does not count.
#[test]
fn other_rules_do_not_keep_a_chain() {
    let others = "*filter\n-A OTHERS -j KUBE-MARK-MASQ\n*raw\n-A OTHERS -j KUBE-MARK-MASQ\n*nat\n-A OTHERS -m comment \
                  --comment \"-j KUBE-MARK-MASQ\" -j ACCEPT\n-A OTHERS -j KUBE-MARK-MASQ-2\n-A OTHERS";
    let removal = present(&format!("{}\n{others}", all_saved(Family::Ipv4))).removal(|_, _| false);
    assert_eq!(removal.matches("\n-X ").count(), CHAINS.len());
}

/// The rules of a kept chain stay, so they keep the chains that they lead to.
#[test]
fn a_chain_that_a_kept_chain_leads_to_stays() {
    let kept = |table: &str, chain: &str| (table, chain) == ("nat", "KUBE-SERVICES");
    let removal = present(&all_saved(Family::Ipv4)).removal(kept);
    for chain in ["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"] {
        let nat = removal.split("*nat").nth(1).unwrap();
        assert!(nat.contains(&format!(":{chain} ")) && !nat.contains(&format!("-X {chain}\n")), "{nat}");
    }
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

/// Returns what a save prints of the rules for these settings.
fn all_saved(family: Family) -> String {
    let rules = Rules::new(&settings(family));
    saved(&rules.restore(&Present::default(), Part::Before), "")
}

#[test]
fn rules_restrict_and_refuse_only_if_packets_enter_them() {
    let full = InForce { restrict_sources: true, refuse_what_is_in_no_set: true };
    for family in Family::BOTH {
        let saved = all_saved(family);
        assert_eq!(present(&saved).in_force(family), full);
        let without = |text: &str| {
            let lines: Vec<&str> = saved.lines().filter(|line| !line.contains(text)).collect();
            assert!(lines.len() < saved.lines().count(), "{text}");
            present(&lines.join("\n")).in_force(family)
        };
        let unrestricted = InForce { restrict_sources: false, ..full };
        assert_eq!(without("-A INPUT -m comment --comment \"kube-proxy firewall rules\""), unrestricted);
        assert_eq!(without(&format!("{} dst,dst -j", Set::LoadBalancerFirewall.name(family))), unrestricted);
        assert_eq!(without("-A KUBE-SOURCE-RANGES-FIREWALL -j DROP"), unrestricted);
        let unrefused = InForce { refuse_what_is_in_no_set: false, ..full };
        assert_eq!(without("-j KUBE-IPVS-FILTER"), unrefused);
        assert_eq!(without("-A KUBE-IPVS-FILTER"), unrefused);
    }
    assert_eq!(Present::default().in_force(Family::Ipv4), InForce::default());
    // The rules of one family do not refer to the sets of the other.
    assert_eq!(present(&all_saved(Family::Ipv4)).in_force(Family::Ipv6), InForce::default());
}

/// A save of kube-proxy 1.36 in IPVS mode.
#[test]
fn rules_of_kube_proxy_do_the_same() {
    let saved = "*filter
:KUBE-IPVS-FILTER - [0:0]
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable
-A KUBE-PROXY-FIREWALL -m comment --comment \"Kubernetes service load balancer ip + port for load balancer with sourceRange\" -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -m comment --comment \"Kubernetes service load balancer ip + port + source cidr for packet filter purpose\" -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
COMMIT
";
    let full = InForce { restrict_sources: true, refuse_what_is_in_no_set: true };
    assert_eq!(present(saved).in_force(Family::Ipv4), full);
    // Without a Service with source ranges, the rule that leads there is missing.
    let lines: Vec<&str> = saved.lines().filter(|line| !line.contains("KUBE-LOAD-BALANCER-FW")).collect();
    let unrestricted = InForce { restrict_sources: false, ..full };
    assert_eq!(present(&lines.join("\n")).in_force(Family::Ipv4), unrestricted);
}

#[test]
fn guards_take_the_place_of_the_rules_and_go_last() {
    for family in Family::BOTH {
        let everything = present(&all_saved(family));
        let guards = Rules::of_guards(&Settings { masquerade_bit: 12, ..settings(family) });
        let text = guards.restore(&everything, Part::Before);
        assert!(!text.contains("-I "), "the jumps are there: {text}");
        for chain in ["*mangle\n:KUBE-IPVS-OUT-FILTER ", "*filter\n:KUBE-IPVS-FILTER "] {
            assert!(text.contains(chain), "{text}");
        }
        assert_eq!(text.matches("\n:").count(), 2);
        assert!(text.contains("src -j MARK --set-xmark 0x1000/0x1000\n"), "{text}");
        assert!(text.contains("-A KUBE-IPVS-FILTER -m mark --mark 0x40/0x40 -j RETURN\n"), "{text}");

        let removal = everything.removal_beside_guards(|_, _| false);
        assert_eq!(removal.matches("\n-X ").count(), CHAINS.len() - 2);
        assert_eq!(removal.matches("\n-D ").count(), JUMPS.len() - 2);
        assert!(!removal.contains("-X KUBE-IPVS-FILTER"), "{removal}");
        // The chain of the same name in the other table goes.
        assert_eq!(removal.matches("-X KUBE-IPVS-OUT-FILTER").count(), 1, "{removal}");

        let written = guards.restore(&Present::default(), Part::Before);
        assert_eq!(written.matches("-I ").count(), 2, "{written}");
        let left = present(&saved(&written, "")).removal(|_, _| false);
        assert_eq!((left.matches("\n-X ").count(), left.matches("\n-D ").count()), (2, 2), "{left}");
    }
}
