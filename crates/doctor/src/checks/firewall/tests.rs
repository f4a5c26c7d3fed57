use super::*;
use crate::checks::testing::codes;
use crate::rules::{Base, Effect, Program, Rule, RuleId, Ruleset, TableFamily, TableId, saved};

pub(super) fn facts(saved: &str) -> Facts {
    Facts { rules: Ruleset::new(saved::chains(Family::Ipv4, saved)), ..Facts::default() }
}

/// Returns facts with a table `filter` of the older iptables, its FORWARD policy, and rules.
fn forward(policy: &str, rules: &[&str]) -> Facts {
    let chains = [
        "INPUT ACCEPT",
        &format!("FORWARD {policy}"),
        "OUTPUT ACCEPT",
        "MINE -",
        "DOCKER-USER -",
        "KUBE-FORWARD -",
    ];
    let chains = chains.iter().map(|chain| format!(":{chain} [0:0]"));
    let rules = rules.iter().map(|rule| format!("-A {rule}"));
    let lines: Vec<String> = chains.chain(rules).collect();
    facts(&format!("*filter\n{}\nCOMMIT\n", lines.join("\n")))
}

fn without_notes(facts: &Facts) -> Vec<Finding> {
    findings(facts).into_iter().filter(|finding| finding.severity != Severity::Note).collect()
}

fn link(index: u32, name: &str, has_default_route: bool) -> Link {
    Link { index, name: name.to_owned(), up: true, has_default_route, ..Link::default() }
}

const DROPPED: (Code, Severity) = (Code::ForwardDropped, Severity::Error);
const MAY_BE_DROPPED: (Code, Severity) = (Code::ForwardDropped, Severity::Warning);

#[test]
fn a_policy_that_drops() {
    let found = without_notes(&forward("DROP", &[]));
    assert_eq!(codes(&found), [DROPPED]);
    assert_eq!(
        found[0].title,
        "the policy of chain FORWARD of table ip filter (iptables-legacy) drops packets"
    );
    assert_eq!(without_notes(&forward("ACCEPT", &[])), []);
}

#[test]
fn rules_before_a_policy_may_accept() {
    let found = |rules: &[&str]| codes(&without_notes(&forward("DROP", rules)));
    assert_eq!(found(&["FORWARD -j ACCEPT"]), []);
    assert_eq!(found(&["FORWARD -s 10.244.0.0/16 -j ACCEPT"]), [MAY_BE_DROPPED]);
    let old = "FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
    assert_eq!(found(&[old]), [DROPPED], "a new connection is neither");
    assert_eq!(found(&["FORWARD -m conntrack --ctstate DNAT -j ACCEPT"]), []);
    assert_eq!(found(&["FORWARD -j MINE", "MINE -j ACCEPT"]), []);
    assert_eq!(found(&["FORWARD -j MINE", "MINE -j RETURN", "MINE -j ACCEPT"]), [DROPPED]);
    assert_eq!(found(&["FORWARD -p tcp -j MINE", "MINE -j ACCEPT"]), [MAY_BE_DROPPED]);
    assert_eq!(
        found(&["FORWARD -j KUBE-FORWARD"]),
        [MAY_BE_DROPPED],
        "the iptables mode accepts what it marks"
    );
}

#[test]
fn rules_that_drop_everything_or_a_whole_interface() {
    let found = |rules: &[&str]| codes(&without_notes(&forward("ACCEPT", rules)));
    assert_eq!(found(&["FORWARD -j DROP"]), [DROPPED]);
    assert_eq!(found(&["FORWARD -j MINE", "MINE -j REJECT"]), [DROPPED]);
    assert_eq!(found(&["FORWARD -i eth0 -j DROP"]), [MAY_BE_DROPPED]);
    assert_eq!(found(&["FORWARD ! -i eth0 -j DROP"]), [MAY_BE_DROPPED]);
    assert_eq!(found(&["FORWARD -s 192.0.2.1/32 -j DROP"]), [], "one client");
    assert_eq!(found(&["FORWARD -p tcp -m tcp --dport 25 -j REJECT"]), [], "one port");
    assert_eq!(found(&["FORWARD -m conntrack --ctstate INVALID -j DROP"]), []);
    assert_eq!(found(&["KUBE-FORWARD -j DROP", "FORWARD -j KUBE-FORWARD"]), [], "a proxy's own rule");
    assert_eq!(found(&["FORWARD -i eth0 -j MINE", "MINE -o eth1 -j DROP"]), [MAY_BE_DROPPED]);
    let recursive = ["FORWARD -j MINE", "MINE -j MINE"];
    assert_eq!(found(&recursive), [], "the kernel has no such loops, but a text may");
}

#[test]
fn interfaces_that_services_do_not_use_do_not_matter() {
    let of = |rules: &[&str]| Facts {
        links: vec![link(2, "eth0", true), link(3, "docker0", false)],
        ..forward("ACCEPT", rules)
    };
    assert_eq!(codes(&without_notes(&of(&["FORWARD -i docker0 -j DROP"]))), []);
    assert_eq!(codes(&without_notes(&of(&["FORWARD -i eth0 -j DROP"]))), [DROPPED], "there is no other");
    let docker = ["FORWARD -i docker0 ! -o docker0 -j ACCEPT"];
    let facts = Facts { links: vec![link(2, "eth0", true)], ..forward("DROP", &docker) };
    assert_eq!(codes(&without_notes(&facts)), [DROPPED], "what Docker accepts is its own");
}

#[test]
fn the_mend_accepts_what_was_translated_and_nothing_else() {
    let mend = |facts: &Facts| without_notes(facts)[0].mend.clone();
    let plain = "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n";
    assert_eq!(mend(&facts(plain)), "iptables-legacy -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT");
    assert_eq!(
        mend(&forward("DROP", &["FORWARD -j DOCKER-USER"])),
        "iptables-legacy -I DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT"
    );
    let place = TableId { program: Program::Nft, family: TableFamily::Inet, table: "my table".to_owned() };
    let base = |hook, priority| Base { hook, priority, nat: false, drops: true };
    let chain = |name: &str, base| {
        let rule = Rule { tests: Vec::new(), effect: Effect::Drop, id: RuleId::Handle(9) };
        Chain { place: place.clone(), name: name.to_owned(), base: Some(base), rules: vec![rule] }
    };
    let with = |chain| Facts { rules: Ruleset::new(vec![chain]), ..Facts::default() };
    assert_eq!(
        mend(&with(chain("forward", base(Hook::Forward, 0)))),
        "nft insert rule inet 'my table' forward ct status dnat accept"
    );
    assert_eq!(
        mend(&with(chain("early", base(Hook::Prerouting, -300)))),
        "nft delete rule inet 'my table' early handle 9",
        "nothing is translated there yet"
    );
    let empty = Chain { rules: Vec::new(), ..chain("early", base(Hook::Prerouting, -300)) };
    assert_eq!(mend(&with(empty)), "nft chain inet 'my table' early '{ policy accept ; }'");
}

#[test]
fn other_hooks() {
    let input = facts("*filter\n:INPUT DROP [0:0]\nCOMMIT\n");
    assert_eq!(codes(&findings(&input)), [(Code::InputDropped, Severity::Warning)]);
    let output = facts("*filter\n:OUTPUT DROP [0:0]\nCOMMIT\n");
    assert_eq!(codes(&findings(&output)), [(Code::OutputDropped, Severity::Error)]);
    let raw = facts("*raw\n:PREROUTING DROP [0:0]\nCOMMIT\n");
    assert_eq!(codes(&findings(&raw)), [(Code::PreroutingDropped, Severity::Error)]);
    assert_eq!(findings(&raw)[0].mend, "iptables-legacy -t raw -P PREROUTING ACCEPT");
    let postrouting = facts("*mangle\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j DROP\nCOMMIT\n");
    assert_eq!(codes(&findings(&postrouting)), [(Code::PostroutingDropped, Severity::Error)]);
}

#[test]
fn firewalls_are_named() {
    let found = findings(&forward("ACCEPT", &[]));
    assert_eq!(codes(&found), [(Code::FirewallPresent, Severity::Note)]);
    assert_eq!(found[0].title, "Docker has firewall rules on this node");
    let cilium = facts("*filter\n:CILIUM_FORWARD - [0:0]\nCOMMIT\n");
    assert_eq!(codes(&findings(&cilium)), [(Code::OtherServiceProxy, Severity::Note)]);
}

#[test]
fn known_addresses_of_pods_decide_about_rules_for_them() {
    use crate::facts::Cluster;

    let rules = ["FORWARD -s 10.244.0.0/16 -j ACCEPT", "FORWARD -d 10.244.0.0/16 -j ACCEPT"];
    let with = |rules: &[&str], pods: &str| {
        let pod_cidrs = vec![pods.parse().expect("a range")];
        let node = portolan_model::object::Node { pod_cidrs, ..Default::default() };
        let cluster = Cluster { node: Some(node), ..Cluster::default() };
        codes(&without_notes(&Facts { cluster: Some(cluster), ..forward("DROP", rules) }))
    };
    assert_eq!(with(&rules, "10.244.1.0/24"), []);
    assert_eq!(with(&rules[..1], "10.244.1.0/24"), [MAY_BE_DROPPED], "what comes from elsewhere");
    assert_eq!(with(&rules, "10.1.0.0/24").len(), 1, "other pods");
}
