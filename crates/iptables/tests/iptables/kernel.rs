use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::Command;
use std::time::{Duration, Instant};

use portolan_engine::{Commit, Driven, HealthCheckPort, Table as Wanted};
use portolan_iptables::{
    Counted, Error, Iptables, IptablesOptions, Pieces, Planner, Present, Programs, Redirect, Rules, Variant,
    counted,
};
use portolan_model::{Change, Family, Settings};
use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::{Protocol, Socket};
use portolan_testkit::eventually;
use portolan_wire::netlink::NLM_F_ACK;
use portolan_wire::{Request, nfnetlink};

use super::example::{backends, ipv4, ipv6, put, settings};
use super::load::{driven, programs_of};
pub(crate) use edited::Edited;
use planned::Planned;

#[path = "edited.rs"]
mod edited;
#[path = "planned.rs"]
mod planned;

pub(crate) const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    in_new_network_namespace(test)
        .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace")
}

/// Returns the output of a save without comments and counters.
pub(crate) fn save(family: Family, variant: Variant) -> String {
    let program = match (family, variant) {
        (Family::Ipv4, Variant::Nft) => "iptables-nft-save",
        (Family::Ipv4, Variant::Legacy) => "iptables-legacy-save",
        (Family::Ipv6, Variant::Nft) => "ip6tables-nft-save",
        (Family::Ipv6, Variant::Legacy) => "ip6tables-legacy-save",
    };
    let mut text = String::new();
    for table in ["mangle", "filter", "nat"] {
        let output = Command::new(program).args(["-t", table]).output().expect("iptables is installed");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let line = match line.split_once(" [") {
                Some((chain, _)) if line.starts_with(':') => format!("{chain} [0:0]"),
                _ => line.to_owned(),
            };
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

/// Chains that Services share. The order of Services in them depends on the order of changes.
const SHARED: [&str; 4] =
    ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"];

/// Returns the rules of each chain by table. Sorts them where the order is free: in shared chains, and in the
/// kernel's own chains, where missing jumps are put first.
pub(crate) fn unordered(saved: &str) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut chains: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            chains.entry((table, chain.split(' ').next().unwrap())).or_default();
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").map(|rule| rule.split_once(' ').unwrap())
        {
            chains.get_mut(&(table, chain)).expect("chains come before rules").push(rule);
        }
    }
    for ((table, chain), rules) in &mut chains {
        let is_free = SHARED.contains(chain) || !chain.starts_with("KUBE-");
        let last = usize::from((*table, *chain) == ("nat", "KUBE-SERVICES"));
        if is_free && rules.len() > last {
            let end = rules.len() - last;
            rules[..end].sort_unstable();
        }
    }
    chains
}

/// Returns the number of rules in our chains of a table.
fn count(saved: &str, table: &str) -> usize {
    let chains = unordered(saved);
    let ours = chains.iter().filter(|((of, chain), _)| *of == table && chain.starts_with("KUBE-"));
    ours.map(|(_, rules)| rules.len()).sum()
}

fn planner(family: Family, changes: &[Change], health_checks: &[HealthCheckPort]) -> Planned {
    let mut planner = Planned::new(settings(family), IptablesOptions::default());
    planner.remember(changes, health_checks);
    planner
}

fn load(programs: &Programs, planner: &mut Planned, pieces: Pieces) {
    load_over(&programs.present().unwrap(), programs, planner, pieces);
    let again = planner.full(&programs.present().unwrap(), pieces);
    assert_eq!(again, "", "nothing is written twice");
}

fn load_over(present: &Present, programs: &Programs, planner: &mut Planned, pieces: Pieces) {
    let text = planner.full(present, pieces);
    programs.restore(|out| out.write_str(&text)).unwrap();
}

pub(crate) fn apply(programs: &Programs, text: &str) {
    if !text.is_empty() {
        programs.restore(|out| out.write_str(text)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

/// Returns a save after a load of an example.
fn loaded(family: Family, variant: Variant, pieces: Pieces) -> String {
    let changes = match family {
        Family::Ipv4 => ipv4(),
        Family::Ipv6 => ipv6(),
    };
    let health_check = HealthCheckPort {
        namespace: "demo".into(),
        service: "dual".into(),
        port: Some(32222),
        local_ready: 1,
    };
    in_namespace(|| {
        let programs = programs_of(family, variant);
        let mut planner = planner(family, &changes, std::slice::from_ref(&health_check));
        load(&programs, &mut planner, pieces);
        save(family, variant)
    })
}

fn same_in_both(family: Family) -> String {
    let nft = loaded(family, Variant::Nft, Pieces::One);
    assert_eq!(loaded(family, Variant::Nft, Pieces::Of(NonZeroUsize::MIN)), nft);
    let legacy = loaded(family, Variant::Legacy, Pieces::One);
    assert_eq!(unordered(&legacy), unordered(&nft));
    nft
}

#[test]
fn an_example_in_ipv4() {
    insta::assert_snapshot!(same_in_both(Family::Ipv4));
}

#[test]
fn an_example_in_ipv6() {
    insta::assert_snapshot!(same_in_both(Family::Ipv6));
}

#[test]
fn changes_lead_to_the_same_rules_as_a_full_load() {
    for (seed, family) in (1..=4).zip(Family::BOTH.into_iter().cycle()) {
        for variant in VARIANTS {
            let mut edited = Edited::new(seed, 8);
            let (changes, health_checks) = edited.first();
            let (by_steps, expected, planner) = in_namespace(|| {
                let programs = programs_of(family, variant);
                let mut planner = planner(family, &changes, &health_checks);
                load(&programs, &mut planner, Pieces::One);
                for _ in 0..12 {
                    let (changes, health_checks) = edited.edit(4);
                    apply(&programs, &planner.plan(&changes, &health_checks));
                }
                let by_steps = save(family, variant);
                let expected = Rules { filter: count(&by_steps, "filter"), nat: count(&by_steps, "nat") };
                assert_eq!(planner.rules(), expected, "seed {seed}, {variant:?}");
                load(&programs, &mut planner, Pieces::One);
                let saved = save(family, variant);
                let expected = Rules { filter: count(&saved, "filter"), nat: count(&saved, "nat") };
                assert_eq!(planner.rules(), expected, "seed {seed}, {variant:?}");
                (by_steps, saved, planner)
            });
            assert_eq!(unordered(&by_steps), unordered(&expected), "seed {seed}, {variant:?}");
            let fresh = in_namespace(|| {
                let mut planner = planner;
                load(&programs_of(family, variant), &mut planner, Pieces::One);
                save(family, variant)
            });
            assert_eq!(unordered(&fresh), unordered(&expected), "seed {seed}, {variant:?}, in empty tables");
        }
    }
}

#[test]
fn a_load_replaces_rules_of_others_in_our_chains_and_leaves_theirs() {
    for variant in VARIANTS {
        in_namespace(|| {
            let programs = programs_of(Family::Ipv4, variant);
            let others = "*nat\n:MINE - [0:0]\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SERVICES - [0:0]\n\
                          -A MINE -j RETURN\n-A KUBE-SVC-OLD -j MINE\n-A KUBE-SERVICES -j KUBE-SVC-OLD\n\
                          -A OUTPUT -j MINE\nCOMMIT\n";
            apply(&programs, others);
            load(&programs, &mut planner(Family::Ipv4, &ipv4(), &[]), Pieces::One);
            let saved = save(Family::Ipv4, variant);
            assert!(!saved.contains("KUBE-SVC-OLD"), "{saved}");
            assert!(
                saved.contains("-A MINE -j RETURN\n") && saved.contains("-A OUTPUT -j MINE\n"),
                "{saved}"
            );
        });
    }
}

#[test]
fn rules_that_another_program_removes_are_restored() {
    for variant in VARIANTS {
        in_namespace(|| {
            let programs = programs_of(Family::Ipv4, variant);
            let mut iptables = driven(programs.clone(), settings(Family::Ipv4));
            iptables.apply(&ipv4()).unwrap();
            iptables.resync().unwrap();
            assert!(iptables.is_intact().unwrap());
            let loaded = save(Family::Ipv4, variant);
            for harm in [
                "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n",
                "*mangle\n-X KUBE-PROXY-CANARY\nCOMMIT\n",
                "*filter\n-D INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS\nCOMMIT\n",
                "*nat\n-F\n-X\nCOMMIT\n",
            ] {
                apply(&programs, harm);
                assert!(!iptables.is_intact().unwrap(), "{harm}");
                assert!(iptables.apply(&[]).unwrap().full);
                assert!(iptables.is_intact().unwrap());
                assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&loaded));
            }
        });
    }
}

#[test]
fn the_check_finds_every_rule_as_it_was_written() {
    let redirect = Redirect { own_mark: 4, ports: (10261, 10262) };
    let plain = IptablesOptions::default;
    let options = [
        plain(),
        IptablesOptions { localhost_node_ports: false, drop_invalid: false, ..plain() },
        IptablesOptions { loopback_addresses: vec!["127.0.0.1".parse().unwrap()], ..plain() },
        IptablesOptions { redirect: Some(redirect), ..plain() },
    ];
    for (variant, options) in VARIANTS.iter().flat_map(|variant| options.iter().map(move |it| (*variant, it)))
    {
        for masquerade_all in [false, true] {
            in_namespace(|| {
                let programs = programs_of(Family::Ipv4, variant);
                let settings = Settings { masquerade_all, ..settings(Family::Ipv4) };
                let mut iptables =
                    Driven::new(settings.clone(), Iptables::new(programs, settings, options.clone()));
                iptables.apply(&ipv4()).unwrap();
                iptables.resync().unwrap();
                assert!(iptables.is_intact().unwrap(), "{variant:?} {options:?}");
            });
        }
    }
}

/// The kernel keeps the list of an endpoint's clients for as long as a rule refers to it.
#[test]
fn session_affinity_outlives_loads_and_changes_of_other_endpoints() {
    for variant in VARIANTS {
        in_namespace(|| {
            let programs = programs_of(Family::Ipv4, variant);
            let mut iptables = driven(programs.clone(), settings(Family::Ipv4));
            let changes = ipv4();
            iptables.apply(&changes).unwrap();
            iptables.resync().unwrap();
            // The list of demo/shop:https for 10.180.0.31:9443.
            let list = "/proc/thread-self/net/xt_recent/KUBE-SEP-LOBYKJYHXWXZR562";
            std::fs::write(list, "+192.0.2.77\n").unwrap();
            let is_known = || std::fs::read_to_string(list).unwrap().contains("src=192.0.2.77 ");
            assert!(is_known());
            let more = "*nat\n-A KUBE-SEP-LOBYKJYHXWXZR562 -j RETURN\n-A KUBE-SVC-6RPHUCFPUBGIVHOV -j RETURN\nCOMMIT\n";
            apply(&programs, more);
            let commit = iptables.resync().unwrap();
            assert_eq!(commit.objects, 2, "both chains are written, and nothing else: {commit:?}");
            let left = save(Family::Ipv4, variant).matches("-j RETURN\n").count();
            assert_eq!(left, 1, "that of KUBE-POSTROUTING");
            assert!(is_known(), "after a load, {variant:?}");
            let mut shop = (**changes[2].new.as_ref().unwrap()).clone();
            shop.cluster = backends(&["10.180.0.31:9443", "10.180.1.33:9443"]);
            let commit = iptables.apply(&[put("shop", "https", shop)]).unwrap();
            assert!(!commit.full && is_known(), "after a change, {variant:?}");
        });
    }
}

#[test]
fn a_refused_line_is_named_and_nothing_of_its_table_is_written() {
    for variant in VARIANTS {
        in_namespace(|| {
            let programs = programs_of(Family::Ipv4, variant);
            let wrong = "*nat\n:MINE - [0:0]\n-A MINE -j NOWHERE-TO-GO\nCOMMIT\n";
            let error = programs.restore(|out| out.write_str(wrong)).unwrap_err();
            let Error::Failed { lines, .. } = &error else { panic!("{error}") };
            assert!(lines.contains(&(3, "-A MINE -j NOWHERE-TO-GO".to_owned())), "{error}");
            assert!(!save(Family::Ipv4, variant).contains("MINE"));
            let rule = "*nat\n-D OUTPUT -j ACCEPT\nCOMMIT\n";
            assert!(
                programs.restore(|out| out.write_str(rule)).is_err(),
                "what is to be removed is not there"
            );
        });
    }
}

/// Calls the data plane as the engine does: nothing is written before the start; then changes, a fault, and the end.
#[test]
fn a_data_plane_repairs_the_rules_after_a_failed_change() {
    for variant in VARIANTS {
        in_namespace(|| {
            let programs = programs_of(Family::Ipv4, variant);
            let before = save(Family::Ipv4, variant);
            let mut iptables = driven(programs.clone(), settings(Family::Ipv4));
            let meter = iptables.meter();
            let changes = ipv4();
            assert_eq!(iptables.apply(&changes).unwrap(), Commit::default(), "nothing before the start");
            assert_eq!(save(Family::Ipv4, variant), before);
            let commit = iptables.resync().unwrap();
            assert!(commit.full && commit.elements > 50 && commit.objects > 18, "{commit:?}");
            let loaded = save(Family::Ipv4, variant);
            let rules = Rules { filter: count(&loaded, "filter"), nat: count(&loaded, "nat") };
            let jumps = [("filter", 11), ("nat", 3)];
            let measured = meter.read();
            assert_eq!(measured.rules, rules);
            let written = jumps.map(|(table, jumps)| count(&loaded, table) + jumps);
            assert_eq!([measured.written.filter, measured.written.nat], written);
            assert_eq!(iptables.apply(&changes).unwrap(), Commit::default(), "nothing changed");
            let again = iptables.resync().unwrap();
            assert_eq!((again.full, again.elements, again.objects), (true, 0, 0), "all is there");

            apply(&programs, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
            let edge = Change { old: changes[1].new.clone(), new: None, ..changes[1].clone() };
            let error = iptables.apply(&[edge]).unwrap_err();
            assert!(error.mode_error::<Error>().is_some(), "{error:?}");
            assert_eq!((meter.read().restore_failures, meter.read().partial_restore_failures), (1, 1));
            assert_eq!(meter.read().rules, rules, "as after the last success");
            let commit = iptables.apply(&[]).unwrap();
            assert!(commit.full, "all is written after a failure");
            let saved = save(Family::Ipv4, variant);
            assert!(!saved.contains("demo/edge"));
            assert_eq!(meter.read().rules.nat, count(&saved, "nat"));
            assert!(!iptables.apply(&changes[1..2]).unwrap().full);
            assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&loaded));

            let health_check = |port| {
                [HealthCheckPort { namespace: "demo".into(), service: "edge".into(), port, local_ready: 1 }]
            };
            assert!(!iptables.open_health_check_ports(&health_check(Some(32222))).unwrap().full);
            assert!(save(Family::Ipv4, variant).contains("--dport 32222 -j ACCEPT"));
            assert!(!iptables.open_health_check_ports(&health_check(None)).unwrap().full);
            assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&loaded));
            iptables.resync().unwrap();
            assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&loaded));

            iptables.remove().unwrap();
            let left = save(Family::Ipv4, variant);
            let left: Vec<&str> = left.lines().filter(|line| line.contains("KUBE-")).collect();
            assert!(left.iter().all(|line| line.contains("KUBE-FIREWALL")) && left.len() == 4, "{left:?}");
            assert!(iptables.apply(&[]).unwrap().full);
            assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&loaded));
        });
    }
}

#[test]
fn a_removal_leaves_chains_that_other_programs_use() {
    for variant in VARIANTS {
        in_namespace(|| {
            let programs = Programs::of(Family::Ipv4, variant).unwrap();
            let others = "*nat\n:MINE - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A MINE -j KUBE-MARK-MASQ\nCOMMIT\n";
            apply(&programs, others);
            let mut iptables = driven(programs, settings(Family::Ipv4));
            iptables.apply(&ipv4()).unwrap();
            iptables.resync().unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while iptables.remove_part(None).unwrap() {
                if variant == Variant::Nft {
                    let saved = save(Family::Ipv4, variant);
                    let has_way_in = saved.contains("-j KUBE-SERVICES");
                    assert!(!has_way_in || saved.contains("-j KUBE-SVC-"), "the way in goes first: {saved}");
                }
                assert!(Instant::now() < deadline, "a removal without end, {variant:?}");
            }
            let saved = save(Family::Ipv4, variant);
            let left: Vec<&str> = saved.lines().filter(|line| line.contains("KUBE-")).collect();
            let expected = ["KUBE-FIREWALL", "KUBE-MARK-MASQ"];
            assert!(left.iter().all(|line| expected.iter().any(|name| line.contains(name))), "{left:?}");
            assert!(left.contains(&"-A MINE -j KUBE-MARK-MASQ"), "{left:?}");
        });
    }
}

/// Removes all counters that no rule refers to.
fn clear_counters() {
    const DELETE: u8 = 3;
    let kind = nfnetlink::message_type(nfnetlink::SUBSYSTEM_ACCT, DELETE);
    let header = nfnetlink::Header::of(nfnetlink::Family::UNSPECIFIED);
    let mut request = Request::new(kind, NLM_F_ACK, &header, |_| {});
    Socket::open(Protocol::Netfilter).unwrap().query(&mut request, |_| Ok(())).unwrap();
}

#[test]
fn rules_refer_to_counters_of_the_kernel() {
    for variant in VARIANTS {
        in_namespace(|| {
            assert_eq!(counted().unwrap(), Counted::default(), "nothing is made by a look");
            let programs = programs_of(Family::Ipv4, variant);
            let mut iptables = driven(programs, settings(Family::Ipv4));
            iptables.apply(&ipv4()).unwrap();
            iptables.resync().unwrap();
            let saved = save(Family::Ipv4, variant);
            for (table, text) in [
                ("filter", "--nfacct-name  ct_state_invalid_dropped_pkts -j DROP"),
                ("nat", "--nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-"),
            ] {
                let mut rules = unordered(&saved).into_iter().filter(|((of, _), _)| *of == table);
                assert!(rules.any(|(_, rules)| rules.iter().any(|rule| rule.contains(text))), "{saved}");
            }
            assert_eq!(counted().unwrap(), Counted { invalid: Some(0), localhost: Some(0) });
            assert!(!saved.contains("TRIAL"), "{saved}");
            assert_eq!(iptables.resync().unwrap().elements, 0, "nothing is written twice");

            clear_counters();
            assert_eq!(counted().unwrap(), Counted { invalid: Some(0), localhost: Some(0) }, "in use");
            iptables.remove().unwrap();
            // The kernel releases the counters a moment after the rules that refer to them are removed.
            let is_cleared = || {
                clear_counters();
                counted().unwrap() == Counted::default()
            };
            eventually(Duration::from_secs(60), "nothing refers to counters", is_cleared).unwrap();
            iptables.resync().unwrap();
            assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&saved));
        });
    }
}

#[test]
fn the_iptables_with_the_hint_of_kubelet_is_found() {
    for variant in VARIANTS {
        for family in Family::BOTH {
            in_namespace(|| {
                let programs = Programs::of(family, variant).unwrap();
                assert_eq!(programs.variant(), variant);
                apply(&programs, "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n");
                assert_eq!(Programs::find(family).unwrap(), programs);
                let other = Family::BOTH.into_iter().find(|other| *other != family).unwrap();
                assert_eq!(Programs::find(other).unwrap(), Programs::of(other, variant).unwrap());
            });
        }
    }
    let plain = in_namespace(|| Programs::find(Family::Ipv4).unwrap());
    assert_eq!(in_namespace(|| plain.present().unwrap()), Present::default());
}
