//! What a kernel lists of tables of kube-proxy and of other programs, in files for fuzz targets. With `UPDATE=1` in the environment,
//! the files are written.

use std::path::Path;
use std::process::Command;

use portolan_model::Family;
use portolan_nftables::fuzzing;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{Family as WireFamily, NftablesEvent, request};
use portolan_wire::{Frame, Frames, Request};

use super::support::in_namespace;
use super::upstream::{IPV4, IPV6, ipv4, ipv6, load, texts};

/// Rules of programs that know nothing of Services.
const OTHER: &str = include_str!("listings/other.nft");
/// Arguments of `iptables-nft`.
const IPTABLES: [&str; 10] = [
    "-P FORWARD DROP",
    "-A FORWARD -m conntrack --ctstate INVALID -j DROP",
    "-A FORWARD -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -p tcp --dport 80:90 -j REJECT",
    "-A INPUT -i eth0 -p udp --sport 53 ! --dport 100 -m comment --comment dns -j ACCEPT",
    "-A INPUT -m state --state NEW -p tcp --syn -j DROP",
    "-A OUTPUT -d 10.96.0.0/12 -m mark --mark 0x1/0x1 -j RETURN",
    "-t raw -A PREROUTING -p udp -j CT --notrack",
    "-t raw -A OUTPUT -s 192.0.2.0/24 -j NOTRACK",
    "-t nat -A PREROUTING -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.1:80",
    "-t nat -A POSTROUTING -o eth+ -j MASQUERADE",
];

fn file(name: &str, read: impl FnOnce() -> Vec<u8>) -> bool {
    let updates = std::env::var_os("UPDATE").is_some();
    if updates {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fuzzing").join(name);
        std::fs::write(path, read()).unwrap();
    }
    updates
}

#[test]
fn the_listings_of_fuzz_targets_are_those_of_kube_proxys_tables() {
    for (family, text, wanted) in [(Family::Ipv4, IPV4, ipv4()), (Family::Ipv6, IPV6, ipv6())] {
        let name = format!("kube-proxy.{}.netlink", family.name().to_lowercase());
        if file(&name, || listing(|| load(text))) {
            continue;
        }
        let [.., observed] = fuzzing::observe(family, fuzzing::kube_proxy(family));
        assert_eq!(texts(&observed, &wanted), [""; 0], "run with UPDATE=1");
    }
}

#[test]
fn the_listing_of_other_programs_has_their_rules() {
    let write = || {
        load(OTHER);
        for arguments in IPTABLES {
            let status = Command::new("iptables-nft").args(arguments.split(' ')).status().unwrap();
            assert!(status.success(), "{arguments}");
        }
    };
    if file("other.netlink", || listing(write)) {
        return;
    }
    let rules = Frames::new(fuzzing::OTHER).filter(|frame| {
        let event = NftablesEvent::decode(frame.as_ref().expect("a message"));
        matches!(event, Ok(NftablesEvent::NewRule(_)))
    });
    let is_rule = |line: &&str| {
        let words = line.strip_prefix("    ").unwrap_or_default();
        !words.is_empty() && !["type ", "flags ", "elements "].iter().any(|start| words.starts_with(start))
    };
    // One of the arguments sets a policy.
    let written = OTHER.lines().filter(is_rule).count() + IPTABLES.len() - 1;
    assert_eq!(rules.count(), written, "run with UPDATE=1");
}

/// Returns what the kernel lists of the tables that `write` writes, in a namespace of its own.
fn listing(write: impl FnOnce() + Send) -> Vec<u8> {
    let mut bytes = Vec::new();
    in_namespace(|| {
        write();
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        for family in [WireFamily::IPV4, WireFamily::IPV6, WireFamily::INET] {
            for table in dump(&mut socket, request::tables(family), &mut bytes) {
                dump(&mut socket, request::rules(family, &table, None), &mut bytes);
                for set in dump(&mut socket, request::sets(family, &table), &mut bytes) {
                    dump(&mut socket, request::elements(family, &table, &set), &mut bytes);
                }
            }
            dump(&mut socket, request::chains(family), &mut bytes);
        }
    });
    bytes
}

/// Adds the messages of a listing, and returns the names of the tables or sets in it.
fn dump(socket: &mut Socket, mut request: Request, bytes: &mut Vec<u8>) -> Vec<String> {
    let mut names = Vec::new();
    let take = |frame: &Frame<'_>| {
        match NftablesEvent::decode(frame)? {
            NftablesEvent::NewTable(table) => names.push(table.name),
            NftablesEvent::NewSet(set) => names.push(set.name),
            _ => {}
        }
        let header = frame.header;
        bytes.extend(header.length.to_ne_bytes());
        bytes.extend([header.kind, header.flags].into_iter().flat_map(u16::to_ne_bytes));
        // Sequence number and port differ from run to run.
        bytes.extend([0; 8]);
        bytes.extend(frame.payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Ok(())
    };
    socket.dump(&mut request, take).unwrap();
    names
}
