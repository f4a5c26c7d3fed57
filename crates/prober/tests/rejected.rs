//! Probes that a firewall or a route refuses, in a network namespace. Needs root.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_prober::HealthCheck;
use portolan_prober::annotations::{Wish, parse};
use portolan_prober::probe::{Begun, Client, Failure, ProbeOutcome, Probes as _, Wanted};
use portolan_testkit::Namespace;

/// Returns a check whose time is long enough for a busy machine.
fn check(probe: &str) -> Arc<HealthCheck> {
    let annotations = [("", probe), ("-interval", "1h"), ("-timeout", "5m")];
    let named =
        annotations.map(|(name, value)| (format!("portolan.dev/health-check{name}"), value.to_owned()));
    let parsed = parse(Some(&named.into()));
    let Wish::Valid(check) = parsed.wish else { panic!("{parsed:?}") };
    Arc::new(check)
}

/// Returns the outcomes of probes of each kind, each alone and begun together with the other.
fn outcomes(namespace: &Namespace, address: &str) -> Vec<ProbeOutcome> {
    let address: SocketAddr = address.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let probe = async || {
        let mut client = Client::new().unwrap();
        let checks = [check("tcp"), check("http /")];
        let wanted = checks.clone().map(|check| Wanted { endpoint: 0, address, check });
        let begun = client.begin(&wanted, 8);
        let mut outcomes = Vec::new();
        for check in &checks {
            outcomes.push(client.probe(address, check).await);
        }
        for begun in begun {
            outcomes.push(match begun {
                Begun::Ended(outcome) => outcome,
                Begun::Waits(rest) => rest.await,
            });
        }
        outcomes
    };
    namespace.run(|| runtime.block_on(probe())).unwrap()
}

#[test]
fn what_a_firewall_refuses_is_a_failure_of_the_endpoint() {
    let namespace = Namespace::new("refused").unwrap();
    namespace.output("ip", &["link", "set", "lo", "up"]).unwrap();
    for (reply, address) in [
        ("icmpv6 type admin-prohibited", "[::1]:8080"),
        ("icmpv6 type addr-unreachable", "[::1]:8080"),
        ("icmp type admin-prohibited", "127.0.0.1:8080"),
    ] {
        let rules = format!(
            "flush ruleset\n\
             add table inet firewall\n\
             add chain inet firewall input {{ type filter hook input priority filter; }}\n\
             add rule inet firewall input tcp dport 8080 reject with {reply}\n"
        );
        namespace.output_with_input("nft", &["-f", "-"], &rules).unwrap();
        for outcome in outcomes(&namespace, address) {
            assert!(matches!(outcome, ProbeOutcome::Failed(Failure::Unreachable(_))), "{reply}: {outcome:?}");
        }
    }
}

#[test]
fn what_this_node_itself_prohibits_decides_nothing() {
    let namespace = Namespace::new("prohibited").unwrap();
    namespace.output("ip", &["link", "set", "lo", "up"]).unwrap();
    for (network, address) in [("192.0.2.0/24", "192.0.2.1:8080"), ("2001:db8::/32", "[2001:db8::1]:8080")] {
        namespace.output("ip", &["route", "add", "prohibit", network]).unwrap();
        for outcome in outcomes(&namespace, address) {
            assert!(matches!(outcome, ProbeOutcome::Unable(_)), "{address}: {outcome:?}");
        }
    }
}
