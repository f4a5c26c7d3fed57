//! The packet priority carries a value between two rules and must not leave our chains.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use portolan_model::{ExternalPolicy, Family, Forwarding, Frontend};

use super::support::{backends, cluster_ip, in_namespace, ip, nft, programmed, put, settings};

/// Runs the program `ip`.
pub(super) fn run(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// Returns the number of packets of the counter with this comment.
fn packets(comment: &str) -> u64 {
    let rules = nft("list table inet watch");
    let rule = rules.lines().find(|line| line.contains(comment)).unwrap();
    let words: Vec<&str> = rule.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets").unwrap();
    words[at + 1].parse().unwrap()
}

#[test]
fn the_priority_is_none_after_translation() {
    for family in Family::BOTH {
        in_namespace(|| {
            // Without "nodad" an IPv6 address is tentative for a moment, and a listener cannot bind to it.
            let (endpoint, length) = (ip(family, 244, 1), if family == Family::Ipv4 { "32" } else { "128" });
            let flag = if family == Family::Ipv4 { "" } else { " nodad" };
            run("link set lo up");
            run(&format!("addr add {endpoint}/{length} dev lo{flag}"));
            run(if family == Family::Ipv4 {
                "route add default dev lo"
            } else {
                "-6 route add default dev lo"
            });
            let external = |number| Box::new([Frontend::ExternalIp(ip(family, 96, number), 80)]);
            let one = |number| cluster_ip(family, number, [1]);
            let local = ExternalPolicy::Local;
            let state = [
                put("plain", one(1)),
                put("affinity", Forwarding { affinity: Some(100), ..one(2) }),
                put("external", Forwarding { frontends: external(3), ..one(3) }),
                put(
                    "local",
                    Forwarding {
                        frontends: external(4),
                        external_policy: local,
                        local: backends(family, [1]),
                        ..one(4)
                    },
                ),
                put(
                    "local-elsewhere",
                    Forwarding { frontends: external(5), external_policy: local, ..one(5) },
                ),
            ];
            let _nftables = programmed(settings(family), &state);
            nft("add table inet watch");
            nft("add chain inet watch out { type filter hook postrouting priority -200 ; }");
            nft("add rule inet watch out meta priority != none counter comment \"leaked\"");
            nft("add rule inet watch out tcp dport { 80, 8080 } counter comment \"all\"");
            let _listener = TcpListener::bind(SocketAddr::new(endpoint, 8080)).unwrap();
            for number in 1..=5 {
                for _ in 0..3 {
                    let before = packets("all");
                    let service = SocketAddr::new(ip(family, 96, number), 80);
                    TcpStream::connect_timeout(&service, Duration::from_secs(60))
                        .unwrap_or_else(|error| panic!("Service {number}: {error}"));
                    assert!(packets("all") > before);
                    assert_eq!(packets("leaked"), 0, "Service {number}");
                }
            }
        });
    }
}
