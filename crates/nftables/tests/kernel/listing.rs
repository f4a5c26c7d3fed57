//! What `nft list table` shows. nft 1.0.6 of Debian 12 aborts on some valid rules; it must list ours. `make nft-versions` runs
//! this with other versions.

use std::fmt::Write as _;
use std::process::Command;

use portolan_model::{Change, ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, Settings};

use super::support::{
    Edited, backends, cluster_ip, every_kind, in_namespace, ip, list, nft, of, programmed, put, settings,
};

#[test]
fn nft_lists_every_kind_of_service() {
    for (family, counters) in Family::BOTH.into_iter().flat_map(|family| [(family, false), (family, true)]) {
        let settings = Settings { counters, ..settings(family) };
        in_namespace(|| {
            drop(programmed(settings.clone(), &every_kind(family)));
            let listing = list(family);
            for name in ["demo/web", "demo/ranges", "demo/internal-local-elsewhere"] {
                assert!(listing.contains(&format!("comment \"{name}\"")), "{name}");
            }
            drop(programmed(settings, &of(family, &Edited::new(7, 12).first().changes)));
            assert!(list(family).contains("comment \"default/svc-"), "of random Services, too");
        });
    }
}

/// Returns settings and three Services: with a cluster IP, with a load balancer and every option, and without
/// endpoints.
fn example(family: Family) -> (Settings, Vec<Change>) {
    let text = |v4: &str, v6: &str| if family == Family::Ipv4 { v4.to_owned() } else { v6.to_owned() };
    let cidr = text("10.244.0.0/16", "2001:db8:f4::/48").parse().unwrap();
    let service_cidrs = vec![text("10.96.0.0/12", "2001:db8:60::/108").parse().unwrap()];
    let settings = Settings { local_detector: LocalDetector::Cidr(cidr), service_cidrs, ..settings(family) };
    let mut web = cluster_ip(family, 1, [1, 2]);
    web.cluster[0].may_hairpin = true;
    let shop = Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip(family, 96, 2), 80),
            Frontend::LoadBalancerIp(ip(family, 2, 2), 80),
            Frontend::NodePort(30080),
        ]),
        external_policy: ExternalPolicy::Local,
        local: backends(family, [3]),
        affinity: Some(10_800),
        // nft 0.9.8 shows a /64 for most prefixes of IPv6.
        source_ranges: Box::new([text("192.0.2.0/24", "2001:db8:1::/64").parse().unwrap()]),
        ..cluster_ip(family, 2, [3, 4])
    };
    let gone = Forwarding { cluster: Box::default(), has_endpoints: false, ..cluster_ip(family, 3, []) };
    (settings, vec![put("web", web), put("shop", shop), put("gone", gone)])
}

fn example_listing(family: Family, counters: bool) -> String {
    in_namespace(|| {
        let (settings, changes) = example(family);
        let settings = Settings { counters, ..settings };
        let mut nftables = programmed(settings, &[]);
        nftables.apply(&changes).unwrap();
        as_any_version(&list(family))
    })
}

/// Returns a listing without what differs between versions of nft: the order of elements and how many stand on a line, names of
/// priorities, and whether the type of a NAT map and the number of a set's elements are shown.
fn as_any_version(listing: &str) -> String {
    let mut lines = listing.lines();
    let mut result = String::new();
    while let Some(line) = lines.next() {
        if let Some((indent, first)) = line.split_once("elements = { ") {
            let mut elements = first.to_owned();
            while !elements.ends_with(" }") {
                elements.push(' ');
                elements.push_str(lines.next().unwrap().trim());
            }
            let mut elements: Vec<&str> = elements.strip_suffix(" }").unwrap().split(", ").collect();
            elements.sort_unstable();
            let separator = format!(",\n{indent}\t");
            writeln!(result, "{indent}elements = {{\n{indent}\t{} }}", elements.join(&separator)).unwrap();
        } else {
            // The number of elements is a comment behind the size.
            let line = line.split_once("\t# count ").map_or(line, |(size, _)| size);
            let line = line
                .replace(" addr . port to ", " to ")
                .replace("hook output priority dstnat - 10;", "hook output priority -110;")
                .replace("hook output priority dstnat;", "hook output priority -100;");
            writeln!(result, "{line}").unwrap();
        }
    }
    result
}

#[test]
fn an_example_in_ipv4() {
    insta::assert_snapshot!(example_listing(Family::Ipv4, false));
}

#[test]
fn an_example_in_ipv6() {
    insta::assert_snapshot!(example_listing(Family::Ipv6, false));
}

#[test]
fn an_example_with_counters() {
    insta::assert_snapshot!(example_listing(Family::Ipv4, true));
}

/// The page with the commands that save a ruleset.
const PAGE: &str = include_str!("../../../../docs/troubleshooting.md");

/// nft loads a file as a whole or not at all, and it cannot load what it lists of our tables.
#[test]
fn the_commands_of_the_page_save_a_ruleset_that_nft_loads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nftables.conf");
    let (_, section) = PAGE.split_once("## Saving the ruleset").unwrap();
    let commands = section.split("```").nth(1).unwrap();
    let commands = commands.replace("/etc/nftables.conf", file.to_str().unwrap());
    let others = || [nft("list table inet filter"), nft("list table ip mine")];
    let saved = in_namespace(|| {
        nft("add table inet filter");
        nft("add chain inet filter input { type filter hook input priority 0 ; policy drop ; }");
        nft("add rule inet filter input tcp dport { 22, 443 } accept");
        nft("add table ip mine");
        nft("add set ip mine allowed { type ipv4_addr ; elements = { 192.0.2.1 } ; }");
        for family in Family::BOTH {
            drop(programmed(settings(family), &every_kind(family)));
        }
        nft("add table ip portolan-userspace");
        nft("add table ip6 portolan-relay");
        let output = Command::new("sh").args(["-ec", &commands]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        others()
    });
    let load = format!("-f {}", file.display());
    in_namespace(|| {
        nft("add table ip portolan");
        // At boot, and at a reload.
        for _ in 0..2 {
            nft(&load);
            assert_eq!(others(), saved);
        }
        let tables = nft("list tables");
        assert_eq!(tables.lines().count(), 3, "nothing else: {tables}");
    });
}
