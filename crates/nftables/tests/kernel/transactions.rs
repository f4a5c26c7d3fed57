//! What a change does in the kernel, according to the kernel's notifications.

use std::net::IpAddr;

use portolan_engine::Driven;
use portolan_model::{Change, Family};
use portolan_nftables::Nftables;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{Data, Element, ElementList, NftablesEvent};

use super::support::{cluster_ip, collect, every_kind, gone, in_namespace, nft, programmed, put, settings};
use super::table::Table;

/// Multicast group of `nf_tables` changes (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 7;

/// Applies changes and returns the kernel's notifications, a line for each object.
fn notifications(nftables: &mut Driven<Nftables>, changes: &[Change]) -> String {
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    socket.subscribe(&[GROUP]).unwrap();
    let commit = nftables.apply(changes).unwrap();
    let mut text = format!("{} element operations, {} other objects\n", commit.elements, commit.objects);
    let handle = |frame: &portolan_wire::Frame<'_>| {
        let lines = match NftablesEvent::decode(frame)? {
            NftablesEvent::NewElements(list) => elements("+", &list),
            NftablesEvent::DeleteElements(list) => elements("-", &list),
            NftablesEvent::NewChain(chain) => format!("+ chain {}\n", chain.name),
            NftablesEvent::NewRule(rule) => format!("+ rule of {}\n", rule.chain),
            NftablesEvent::Generation(_) => "commit\n".to_owned(),
            other => format!("{other:?}\n"),
        };
        text.push_str(&lines);
        Ok(())
    };
    socket.receive(handle).unwrap();
    text
}

fn elements(sign: &str, list: &ElementList<'_>) -> String {
    let line = |element: Element| {
        let key = if list.set == "services" { address(&element.key) } else { numbers(&element.key) };
        let data = match &element.data {
            None => String::new(),
            Some(Data::Verdict(verdict)) => format!(" : {verdict:?}"),
            Some(Data::Value(bytes)) if list.set == "endpoints" => format!(" : {}", address(bytes)),
            Some(Data::Value(bytes)) => format!(" : {}", numbers(bytes)),
        };
        format!("{sign} {} {key}{data}\n", list.set)
    };
    list.elements().map(|element| line(element.unwrap().to_owned())).collect()
}

/// Formats an IPv4 address, a protocol if there is one, and a port.
fn address(bytes: &[u8]) -> String {
    let (address, rest) = bytes.split_at(4);
    let address: [u8; 4] = address.try_into().unwrap();
    let (protocol, port) = rest.split_at(rest.len() - 4);
    let protocol = protocol.first().map_or(String::new(), |number| format!(" . protocol {number}"));
    format!("{}{protocol} . {}", IpAddr::from(address), u16::from_be_bytes([port[0], port[1]]))
}

fn numbers(bytes: &[u8]) -> String {
    let words = bytes.chunks(4).map(|word| format!("{:#x}", u32::from_ne_bytes(word.try_into().unwrap())));
    words.collect::<Vec<_>>().join(" . ")
}

#[test]
fn one_endpoint_in_the_place_of_another_is_a_handful_of_elements_and_no_chain() {
    in_namespace(|| {
        let hosts = |last: u16| (1..10).chain([last]);
        let others = (1..40)
            .map(|number| put(&format!("other-{number}"), cluster_ip(Family::Ipv4, number, hosts(10))));
        let mut nftables = programmed(settings(Family::Ipv4), &[]);
        nftables.apply(&others.collect::<Vec<_>>()).unwrap();
        nftables.apply(&[put("web", cluster_ip(Family::Ipv4, 100, hosts(10)))]).unwrap();
        let notifications =
            notifications(&mut nftables, &[put("web", cluster_ip(Family::Ipv4, 100, hosts(77)))]);
        insta::assert_snapshot!(notifications, @r"
        2 element operations, 0 other objects
        - endpoints 0xa0000 . 0x9 : 10.244.0.10 . 8080
        + endpoints 0xa0000 . 0x9 : 10.244.0.77 . 8080
        commit
        ");
    });
}

#[test]
fn one_endpoint_less_is_a_handful_of_elements_and_no_chain_where_the_class_is_known() {
    in_namespace(|| {
        let mut nftables = programmed(settings(Family::Ipv4), &[]);
        nftables.apply(&[put("other", cluster_ip(Family::Ipv4, 1, 1..10))]).unwrap();
        nftables.apply(&[put("web", cluster_ip(Family::Ipv4, 100, 1..11))]).unwrap();
        let without_the_third = (1..11).filter(|&host| host != 3);
        let notifications =
            notifications(&mut nftables, &[put("web", cluster_ip(Family::Ipv4, 100, without_the_third))]);
        insta::assert_snapshot!(notifications, @r"
        5 element operations, 0 other objects
        - services 10.96.0.100 . protocol 6 . 80 : 0x8002
        - endpoints 0x8000 . 0x2 : 10.244.0.3 . 8080
        - endpoints 0x8000 . 0x9 : 10.244.0.10 . 8080
        + services 10.96.0.100 . protocol 6 . 80 : 0x8001
        + endpoints 0x8000 . 0x2 : 10.244.0.10 . 8080
        commit
        ");
    });
}

#[test]
fn the_first_service_with_four_endpoints_makes_their_chains() {
    in_namespace(|| {
        let mut nftables = programmed(settings(Family::Ipv4), &[]);
        nftables.apply(&[put("web", cluster_ip(Family::Ipv4, 1, 1..4))]).unwrap();
        let first = notifications(&mut nftables, &[put("web", cluster_ip(Family::Ipv4, 1, 1..5))]);
        insta::assert_snapshot!(first, @r#"
        3 element operations, 2 other objects
        + chain endpoints-4
        + rule of endpoints-4
        + rule of endpoints-4
        + rule of endpoints-4
        + chain internal-4
        + rule of internal-4
        + classes 0x2 : Goto("internal-4")
        commit
        - services 10.96.0.1 . protocol 6 . 80 : 0x4001
        + services 10.96.0.1 . protocol 6 . 80 : 0x4002
        + endpoints 0x4000 . 0x3 : 10.244.0.4 . 8080
        commit
        "#);
        let back = notifications(&mut nftables, &[put("web", cluster_ip(Family::Ipv4, 1, 1..4))]);
        insta::assert_snapshot!(back, @r"
        3 element operations, 0 other objects
        - services 10.96.0.1 . protocol 6 . 80 : 0x4002
        - endpoints 0x4000 . 0x3 : 10.244.0.4 . 8080
        + services 10.96.0.1 . protocol 6 . 80 : 0x4001
        commit
        ");
        collect(&mut nftables);
    });
}

/// Returns the chains that check source ranges.
fn checks(family: Family) -> Vec<String> {
    let table = Table::read(family);
    let is_check = |name: &&str| *name == "firewall-check" || name.ends_with("-pre-dnat");
    table.chains().into_iter().filter(is_check).map(str::to_owned).collect()
}

#[test]
fn source_ranges_are_checked_while_a_service_has_some() {
    const ALL: [&str; 3] = ["filter-output-pre-dnat", "filter-prerouting-pre-dnat", "firewall-check"];
    for family in Family::BOTH {
        in_namespace(|| {
            let has_ranges =
                |change: &Change| change.new.as_ref().is_some_and(|new| !new.source_ranges.is_empty());
            let (with, without): (Vec<Change>, _) = every_kind(family).into_iter().partition(has_ranges);
            let removed: Vec<Change> = with.iter().map(gone).collect();
            let mut nftables = programmed(settings(family), &without);
            let plain = Table::read(family).meaning();
            assert_eq!(checks(family), [""; 0]);
            let commit = nftables.apply(&with).unwrap();
            assert_eq!(checks(family), ALL);
            assert!(commit.objects >= ALL.len(), "{commit:?}");
            let whole = Table::read(family).meaning();
            nftables.apply(&removed).unwrap();
            let commit = nftables.resync().unwrap();
            assert_eq!((commit.bytes, checks(family).len()), (0, 3), "a collection removes them");
            // What another program did to them meanwhile does not last.
            nft(match family {
                Family::Ipv4 => "flush chain ip portolan firewall-check",
                Family::Ipv6 => "flush chain ip6 portolan firewall-check",
            });
            nftables.apply(&with).unwrap();
            assert_eq!(Table::read(family).meaning(), whole);
            nftables.apply(&removed).unwrap();
            collect(&mut nftables);
            assert_eq!(Table::read(family).meaning(), plain);
            // Chains of others with these names do not stay.
            let table = if family == Family::Ipv4 { "ip portolan" } else { "ip6 portolan" };
            let hook = "{ type filter hook prerouting priority -110 ; }";
            nft(&format!("add chain {table} filter-prerouting-pre-dnat {hook}"));
            nft(&format!("add rule {table} filter-prerouting-pre-dnat drop"));
            let commit = nftables.resync().unwrap();
            assert_eq!((commit.objects, checks(family)), (1, Vec::new()));
            // What another program did before the first ranges come again does not last either.
            nftables.apply(&with).unwrap();
            nftables.apply(&removed).unwrap();
            nft(&format!("flush chain {table} firewall-check"));
            nftables.apply(&with).unwrap();
            assert_eq!(Table::read(family).meaning(), whole);
            nftables.apply(&removed).unwrap();
            collect(&mut nftables);
            // A program that ends before it collects leaves them to the next one.
            nftables.apply(&with).unwrap();
            drop(nftables);
            let mut nftables = programmed(settings(family), &without);
            assert_eq!(checks(family), ALL);
            collect(&mut nftables);
            assert_eq!(Table::read(family).meaning(), plain);
        });
    }
}
