//! Rules of other programs.

use portolan_doctor::{Code, Severity, gather};
use portolan_firewall::Chain;
use portolan_node::sysctl::Host;
use portolan_testkit::{Namespace, assert_legacy_may_be_missing};

use super::support::{codes, is_found_and_mended, look, nft, node, only, shell};

#[test]
fn a_table_of_nft_whose_policy_drops() {
    let node = node("policy");
    nft(&node, "table inet fw { chain forward { type filter hook forward priority 0; policy drop; }; }");
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Error);
}

/// Returns the rules of the chains of a table, as they were read.
fn rules_of(node: &Namespace, table: &str) -> Vec<String> {
    let (rules, unread) = node.run(|| gather::ruleset(&Host::default())).expect("the namespace");
    assert_eq!(unread, []);
    let chains = rules.chains().iter().filter(|chain| chain.place.table == table);
    let line = |chain: &Chain| {
        let hook = chain.base.map_or_else(String::new, |base| format!("{}: ", base.hook));
        chain.rules.iter().map(|rule| format!("{hook}{rule}")).collect::<Vec<_>>()
    };
    chains.flat_map(line).collect()
}

#[test]
fn what_rules_of_nft_test() {
    let node = node("tests");
    nft(
        &node,
        "table inet mine {
             limit slow { rate 1/second; }
             counter seen { }
             chain c {
                 type filter hook input priority 0;
                 iif lo accept
                 limit name slow drop
                 counter name seen drop
                 fib daddr type local drop
                 fib saddr type local drop
                 tcp flags & (fin | syn | rst | ack) != syn drop
                 tcp flags syn / fin,syn,rst,ack drop
             }
         }",
    );
    let found = rules_of(&node, "mine");
    assert_eq!(
        found,
        [
            "input: iifname lo accept",
            "input: limit name slow drop",
            "input: drop",
            "input: fib daddr type local drop",
            "input: fib saddr type local drop",
            "input: tcp not tcp flags 0x02/0x17 drop",
            "input: tcp tcp flags 0x02/0x17 drop",
        ]
    );
    shell(
        &node,
        "iptables-nft -A INPUT -p tcp ! --syn -j DROP
         iptables-nft -A INPUT -m addrtype --dst-type LOCAL ! --src-type LOCAL -j DROP",
    );
    let found = rules_of(&node, "filter");
    assert!(found[0].contains("not tcp flags 0x02/0x17"), "{found:?}");
    assert!(
        found[1].contains("fib daddr type local") && found[1].contains("not fib saddr type local"),
        "{found:?}"
    );
}

#[test]
fn chains_of_devices() {
    let node = node("devices");
    let chain = "type filter hook ingress device eth0 priority 0;";
    nft(&node, &format!("table netdev edge {{ chain c {{ {chain} ip daddr 10.96.0.1 drop; }}; }}"));
    nft(&node, &format!("table inet edge {{ chain c {{ {chain} policy drop; }}; }}"));
    let mut found = rules_of(&node, "edge");
    found.sort();
    let rule = "ingress: { iifname eth0, through eth0 } IPv4 daddr 10.96.0.1/32 drop";
    assert_eq!(found, ["ingress: policy drop", rule]);
}

#[test]
fn iptables_with_a_policy_that_drops() {
    let node = node("iptables");
    shell(&node, "iptables-nft -P FORWARD DROP");
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Error);
    shell(&node, "ip6tables-nft -P FORWARD DROP");
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Error);
}

/// The kernel may lack the older iptables. Its programs have one lock for all namespaces, for which this one waits.
#[test]
fn the_older_iptables_with_a_policy_that_drops() {
    let node = node("legacy");
    if let Err(error) = node.output("iptables-legacy", &["-w", "-P", "FORWARD", "DROP"]) {
        let error = error.to_string();
        assert!(error.contains("does not exist"), "{error}");
        return assert_legacy_may_be_missing(&error);
    }
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Error);
    shell(&node, "iptables-legacy -t raw -A PREROUTING -i eth0 -p tcp -j CT --notrack");
    is_found_and_mended(&node, Code::NotTracked, Severity::Warning);
}

#[test]
fn a_ufw_that_drops_forwarded_packets() {
    let node = node("ufw");
    shell(
        &node,
        "iptables-nft -N ufw-before-forward
         iptables-nft -N ufw-user-forward
         iptables-nft -A FORWARD -j ufw-before-forward
         iptables-nft -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
         iptables-nft -A ufw-before-forward -p icmp --icmp-type echo-request -j ACCEPT
         iptables-nft -A ufw-before-forward -j ufw-user-forward
         iptables-nft -P FORWARD DROP",
    );
    let report = look(&node);
    assert!(codes(&report).contains(&(Code::FirewallPresent, Severity::Note)), "{:#?}", report.findings);
    // A rule accepts pings before.
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Warning);
}

#[test]
fn docker_drops_what_is_not_its_own() {
    let node = node("docker");
    shell(
        &node,
        "ip link add docker0 type bridge
         for chain in DOCKER-USER DOCKER DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2; do iptables-nft -N $chain; done
         iptables-nft -P FORWARD DROP
         iptables-nft -A FORWARD -j DOCKER-USER
         iptables-nft -A FORWARD -j DOCKER-ISOLATION-STAGE-1
         iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
         iptables-nft -A FORWARD -o docker0 -j DOCKER
         iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
         iptables-nft -A DOCKER-USER -j RETURN
         iptables-nft -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
         iptables-nft -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
    );
    let mend = only(&look(&node)).mend.clone();
    assert!(mend.contains("-I DOCKER-USER"), "{mend}");
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Error);
}

#[test]
fn a_firewalld_that_accepts_what_was_translated() {
    let node = node("firewalld");
    nft(
        &node,
        "table inet firewalld {
            chain filter_FORWARD {
                type filter hook forward priority 10; policy accept;
                ct state { established, related } accept
                ct status dnat accept
                iifname \"lo\" accept
                ct state invalid drop
                reject with icmpx type admin-prohibited
            }
        }",
    );
    assert_eq!(codes(&look(&node)), [(Code::FirewallPresent, Severity::Note)]);
}

#[test]
fn rules_that_drop_a_whole_interface() {
    let node = node("interface");
    nft(
        &node,
        "table inet fw {
            chain forward {
                type filter hook forward priority 0;
                iifname \"eth0\" tcp dport 25 drop
                ip saddr 203.0.113.0/24 drop
                iifname \"eth0\" drop
            }
        }",
    );
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Warning);
}

#[test]
fn packets_dropped_before_they_are_translated() {
    let node = node("raw");
    nft(&node, "table ip early { chain raw { type filter hook prerouting priority -300; drop; }; }");
    is_found_and_mended(&node, Code::PreroutingDropped, Severity::Error);
}

#[test]
fn packets_dropped_after_they_are_translated() {
    let node = node("leaving");
    nft(&node, "table inet fw { chain out { type filter hook postrouting priority 0; policy drop; }; }");
    is_found_and_mended(&node, Code::PostroutingDropped, Severity::Error);
}

#[test]
fn chains_of_another_proxy_of_services() {
    let node = node("cilium");
    shell(&node, "iptables-nft -N CILIUM_FORWARD");
    assert_eq!(codes(&look(&node)), [(Code::OtherServiceProxy, Severity::Note)]);
    shell(&node, "iptables-nft -X CILIUM_FORWARD");
    assert_eq!(codes(&look(&node)), []);
}

#[test]
fn input_and_output() {
    let node = node("ends");
    nft(&node, "table inet fw { chain input { type filter hook input priority 0; policy drop; }; }");
    is_found_and_mended(&node, Code::InputDropped, Severity::Warning);
    nft(&node, "table inet fw { chain output { type filter hook output priority 0; policy drop; }; }");
    is_found_and_mended(&node, Code::OutputDropped, Severity::Error);
}

#[test]
fn a_dormant_table_does_nothing() {
    let node = node("dormant");
    nft(
        &node,
        "table ip fw { flags dormant; chain forward { type filter hook forward priority 0; policy drop; }; }",
    );
    assert_eq!(codes(&look(&node)), []);
}

#[test]
fn packets_that_are_not_tracked() {
    let node = node("notrack");
    nft(&node, "table ip fast { chain raw { type filter hook prerouting priority -300; notrack; }; }");
    is_found_and_mended(&node, Code::NotTracked, Severity::Error);
    shell(&node, "iptables-nft -t raw -A OUTPUT -p tcp -j CT --notrack");
    is_found_and_mended(&node, Code::NotTracked, Severity::Warning);
    shell(&node, "iptables-nft -t raw -A OUTPUT -d 169.254.20.10 -p udp --dport 53 -j CT --notrack");
    assert_eq!(codes(&look(&node)), [(Code::NotTracked, Severity::Note)], "NodeLocal DNSCache");
}

#[test]
fn translations_of_other_programs() {
    let node = node("dnat");
    shell(
        &node,
        "iptables-nft -t nat -A PREROUTING -p tcp --dport 8080 -d 192.0.2.1 -j DNAT --to-destination 172.17.0.2:80",
    );
    assert_eq!(codes(&look(&node)), [], "a port of a container outside of the node ports");
    shell(
        &node,
        "iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 30080 \
             -j DNAT --to-destination 172.17.0.2:80",
    );
    let report = look(&node);
    let finding = only(&report);
    assert_eq!((finding.code, finding.severity), (Code::NodePortTaken, Severity::Warning), "{finding:#?}");
    assert!(finding.title.contains("30080"), "{}", finding.title);
    let (_, command) = finding.mend.split_once("publish it at a port below 30000, or ").expect("a command");
    shell(&node, command);
    assert_eq!(codes(&look(&node)), [], "after `{command}`");
    let left = node.output("iptables-nft", &["-t", "nat", "-S", "PREROUTING"]).expect("the chain");
    assert!(left.contains("--dport 8080") && !left.contains("30080"), "only that rule is gone: {left}");
    nft(
        &node,
        "table ip proxy { chain p { type nat hook prerouting priority -110; iifname \"veth1\" dnat to 10.0.0.9; }; }",
    );
    is_found_and_mended(&node, Code::ServiceAddressTaken, Severity::Warning);
}

#[test]
fn sets_and_maps_of_a_firewall_are_understood() {
    let node = node("sets");
    nft(
        &node,
        "table inet fw {
            chain forward {
                type filter hook forward priority 0; policy drop;
                ct state vmap { established : accept, related : accept, invalid : drop }
                iifname { \"docker0\", \"wg0\" } accept
                tcp dport { 22, 443 } ct state { established } accept
            }
        }",
    );
    is_found_and_mended(&node, Code::ForwardDropped, Severity::Error);
    nft(
        &node,
        "flush ruleset
         table inet fw {
            chain forward {
                type filter hook forward priority 0; policy drop;
                ct state vmap { established : accept, new : jump new }
            }
            chain new {
                iifname { \"eth0\", \"veth1\", \"pod1\" } accept
            }
        }",
    );
    assert_eq!(codes(&look(&node)), [], "what arrives at these interfaces is accepted");
}
