//! Reads the rules of a namespace from the kernel without the data plane's own code.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::{fs, io};

use portolan_sock::{Protocol, Socket};
use portolan_testkit::{Family, Namespace, TestkitError, assert_legacy_may_be_missing};
use portolan_wire::Frame;
use portolan_wire::nftables::{NftablesEvent, request};
use serde_json::Value;

/// Returns the generation of the ruleset. Every commit of any program in the namespace increments it.
pub(crate) fn generation(namespace: &Namespace) -> u32 {
    let ask = || {
        let mut generation = None;
        let take = |frame: &Frame<'_>| {
            if let NftablesEvent::Generation(now) = NftablesEvent::decode(frame)? {
                generation = Some(now.id);
            }
            Ok(())
        };
        Socket::open(Protocol::Netfilter).unwrap().query(&mut request::generation(), take).unwrap();
        generation.unwrap()
    };
    namespace.run(ask).unwrap()
}

/// Runs an nft command line.
pub(crate) fn nft(namespace: &Namespace, command: &str) -> String {
    namespace.output("nft", &command.split(' ').collect::<Vec<_>>()).unwrap()
}

/// Adds rules with a program such as `iptables-nft-restore`. Without a wait, those of the older iptables fail while another test
/// has their lock, which is one for the whole machine.
pub(crate) fn add_rules(node: &Namespace, program: &str, rules: &str) -> Result<String, TestkitError> {
    let wait: &[&str] = if program.contains("legacy") { &["--wait", "60"] } else { &[] };
    node.output_with_input(program, &[wait, &["--noflush"]].concat(), rules)
}

/// Creates kubelet's hint chain in the older iptables. Returns false if the kernel does not have the older iptables, and
/// fails if it must have them.
pub(crate) fn hint_at_legacy(node: &Namespace) -> bool {
    let hinted = ["iptables-legacy", "ip6tables-legacy"].map(|program| {
        node.output(program, &["--version"]).unwrap();
        node.output(program, &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"])
    });
    if hinted.iter().all(Result::is_ok) {
        return true;
    }
    assert_no_legacy(node, &format!("{hinted:?}"));
    false
}

/// Checks that the kernel has no older iptables, because of which a program has failed, and that it may lack them.
pub(crate) fn assert_no_legacy(node: &Namespace, failure: &str) {
    let names = node.run(|| fs::metadata("/proc/thread-self/net/ip_tables_names")).unwrap();
    assert!(names.is_err_and(|error| error.kind() == io::ErrorKind::NotFound), "{failure}");
    assert_legacy_may_be_missing(failure);
    eprintln!("not tested: this kernel does not have the older iptables");
}

/// Backends by address, protocol and port of the frontend.
pub(crate) type Frontends = BTreeMap<(SocketAddr, String), BTreeSet<SocketAddr>>;

/// Returns the backends of each address in the `services` map.
pub(crate) fn frontends(namespace: &Namespace, family: Family) -> Frontends {
    let mut endpoints: BTreeMap<u64, BTreeSet<SocketAddr>> = BTreeMap::new();
    for (key, value) in map_elements(namespace, family, "endpoints") {
        let (id, index) = (number(&key[0]), number(&key[1]));
        // The map has each local endpoint a second time.
        if index < 0x1_0000 {
            endpoints.entry(id).or_default().insert(socket_address(&value["concat"]));
        }
    }
    let elements = map_elements(namespace, family, "services").into_iter();
    let frontend = |(key, value): (Vec<Value>, Value)| {
        let address: IpAddr = key[0].as_str().unwrap().parse().unwrap();
        let to = SocketAddr::new(address, u16::try_from(number(&key[2])).unwrap());
        let id = number(&value) & !0x3fff;
        ((to, key[1].as_str().unwrap().to_owned()), endpoints.get(&id).cloned().unwrap_or_default())
    };
    elements.map(frontend).collect()
}

fn map_elements(namespace: &Namespace, family: Family, map: &str) -> Vec<(Vec<Value>, Value)> {
    let table = match family {
        Family::Ipv4 => "ip portolan",
        Family::Ipv6 => "ip6 portolan",
    };
    let listing: Value =
        serde_json::from_str(&nft(namespace, &format!("-j list map {table} {map}"))).unwrap();
    let maps = listing["nftables"].as_array().unwrap();
    let found = maps.iter().find_map(|object| object.get("map")).unwrap();
    let elements = found["elem"].as_array().cloned().unwrap_or_default();
    elements.into_iter().map(|pair| (key(&pair[0]), pair[1].clone())).collect()
}

/// Returns the parts of a key, with or without a comment around them.
fn key(element: &Value) -> Vec<Value> {
    let value = element.get("elem").map_or(element, |element| &element["val"]);
    value["concat"].as_array().unwrap().clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn socket_address(parts: &Value) -> SocketAddr {
    let address: IpAddr = parts[0].as_str().unwrap().parse().unwrap();
    SocketAddr::new(address, u16::try_from(number(&parts[1])).unwrap())
}
