//! Two proxies, and what they left.

use portolan_doctor::fix::FixState;
use portolan_doctor::{Code, Severity};

use super::support::{Proxy, codes, fix, look, node, own_table, shell, upstream_chains, upstream_table};

#[test]
fn two_proxies_run() {
    let node = node("two");
    let upstream = Proxy::start(&node, "kube-proxy");
    assert_eq!(codes(&look(&node)), [(Code::ProxyWithoutRules, Severity::Error)], "kube-proxy alone");
    upstream_chains(&node);
    assert_eq!(codes(&look(&node)), []);
    let own = Proxy::start(&node, "portolan");
    own_table(&node);
    let report = look(&node);
    assert_eq!(codes(&report), [(Code::TwoProxies, Severity::Error)]);
    assert!(report.findings[0].title.contains(&own.id().to_string()), "{}", report.findings[0].title);
    upstream.end();
    let left = look(&node);
    assert_eq!(codes(&left), [(Code::LeftoversOfKubeProxy, Severity::Warning)], "{:#?}", left.findings);
    own.end();
}

#[test]
fn a_proxy_of_another_namespace_is_not_seen() {
    let (node, other) = (node("here"), node("there"));
    let own = Proxy::start(&node, "portolan");
    own_table(&node);
    let upstream = Proxy::start(&other, "kube-proxy");
    assert_eq!(codes(&look(&node)), []);
    own.end();
    upstream.end();
}

#[test]
fn leftovers_of_kube_proxy_are_removed_and_nothing_else() {
    let node = node("leftovers");
    let own = Proxy::start(&node, "portolan");
    own_table(&node);
    upstream_table(&node);
    upstream_chains(&node);
    shell(&node, "iptables-nft -t nat -A PREROUTING -i nowhere -p tcp --dport 81 -j ACCEPT");
    let report = look(&node);
    assert_eq!(codes(&report), [(Code::LeftoversOfKubeProxy, Severity::Warning)]);
    let fixed = fix(&node);
    assert_eq!(codes(&fixed), [], "{:#?}", fixed.findings);
    assert_eq!(fixed.fixed[0].outcome, FixState::Done, "{:?}", fixed.fixed);
    let ruleset = node.output("nft", &["list", "ruleset"]).expect("the ruleset");
    assert!(ruleset.contains("table ip portolan") && ruleset.contains("nowhere"), "{ruleset}");
    assert!(!ruleset.contains("KUBE-") && !ruleset.contains("kube-proxy"), "{ruleset}");
    own.end();
}

#[test]
fn leftovers_stay_while_nothing_else_serves() {
    let node = node("unserved");
    own_table(&node);
    upstream_table(&node);
    let report = fix(&node);
    let expected = [(Code::LeftoversOfKubeProxy, Severity::Warning), (Code::NoProxy, Severity::Warning)];
    assert_eq!(codes(&report), expected);
    assert_eq!(report.fixed, []);
}

#[test]
fn tables_of_portolan_beside_a_running_kube_proxy() {
    let node = node("back");
    let upstream = Proxy::start(&node, "kube-proxy");
    own_table(&node);
    upstream_table(&node);
    assert_eq!(codes(&look(&node)), [(Code::LeftoversOfPortolan, Severity::Warning)]);
    upstream.end();
}

#[test]
fn k3s_may_program_the_rules() {
    let node = node("k3s");
    upstream_chains(&node);
    assert_eq!(codes(&look(&node)), [(Code::NoProxy, Severity::Warning)]);
    let k3s = Proxy::titled(&node, "k3s server");
    let report = look(&node);
    assert_eq!(codes(&report), [(Code::OtherServiceProxy, Severity::Note)], "{:#?}", report.findings);
    assert!(report.findings[0].title.contains(&k3s.id().to_string()), "{}", report.findings[0].title);
    k3s.end();
}
