//! What a planner writes is read back, and damage is read back as what it does to Services.

mod memory;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portolan_model::world::Rng;
use portolan_model::{Backend, Change, ExternalPolicy, Forwarding, Frontend, Settings};
use portolan_wire::nftables::{Data, Element, ElementRef, Expr, UserData, Verdict};
use proptest::prelude::*;

use super::super::layout::{Listeners, Target};
use super::super::memory::ElementPlace;
use super::super::planner::tests::{Edited, settings};
use super::*;
use memory::Written;

fn relay() -> Target {
    Target::Relay(Listeners { cluster: ([127, 0, 0, 1], 1).into(), local: ([127, 0, 0, 1], 2).into() })
}

fn family(v6: bool) -> Family {
    if v6 { Family::Ipv6 } else { Family::Ipv4 }
}

/// Returns settings in which the node's address is or is not in source ranges.
fn random_settings(seed: u64, family: Family) -> Settings {
    let node_ip = (!seed.is_multiple_of(3)).then(|| match family {
        Family::Ipv4 => IpAddr::from([10, 244, 0, 9]),
        Family::Ipv6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9]),
    });
    Settings { node_ip, counters: seed.is_multiple_of(2), ..settings(family) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// What was planned and committed reads back with no difference, whatever came before.
    #[test]
    fn what_is_written_is_read_back(seed: u64, v6: bool) {
        let family = family(v6);
        let mut edited = Edited::new(seed);
        let mut written = Written::new(random_settings(seed, family), Target::Endpoints, &edited.now(family));
        prop_assert_eq!(written.differences(), [""; 0], "at the start");
        for step in 0..12 {
            written.apply(&edited.edit(family));
            prop_assert_eq!(written.differences(), [""; 0], "step {}", step);
        }
        prop_assert!(!written.compare(), "the planner reads the same");
    }

    /// The rules that capture hold everything but endpoints and affinity.
    #[test]
    fn what_captures_is_read_back(seed: u64, v6: bool) {
        let family = family(v6);
        let edited = Edited::new(seed);
        let state = edited.now(family);
        let written = Written::new(random_settings(seed, family), relay(), &state);
        prop_assert_eq!(written.differences(), [""; 0]);
        let observed = written.observed();
        let known = |port: &ObservedPort| {
            matches!(port.endpoints, ObservedEndpoints::Lists { .. }) || port.affinity != Fact::Unknown
        };
        prop_assert!(!observed.ports.iter().any(known));
    }

    /// A missing element is a difference of the Service port that it belongs to, and of no other.
    #[test]
    fn a_missing_element_is_a_difference_of_its_service_port(seed: u64, v6: bool) {
        let family = family(v6);
        let edited = Edited::new(seed);
        let mut written = Written::new(random_settings(seed, family), Target::Endpoints, &edited.now(family));
        let names = names_of_ids(&written);
        for (place, element) in written.memory.elements.clone() {
            let Some(name) = owner(&names, &place, &element) else { continue };
            written.memory.elements.remove(&place);
            let differences = written.differences();
            written.memory.elements.insert(place.clone(), element);
            let of_others: Vec<_> = differences.iter().filter(|text| !text.starts_with(&name)).collect();
            prop_assert!(of_others.is_empty(), "{place:02x?}: {of_others:?}");
            prop_assert!(!differences.is_empty() || !is_alone(&written, &place), "{place:02x?} of {name}");
        }
    }

    /// A table that another program has filled at random is read without a panic.
    #[test]
    fn anything_can_be_read(seed: u64, v6: bool, capture: bool, size in 1..60_usize) {
        let family = family(v6);
        let edited = Edited::new(seed);
        let target = if capture { relay() } else { Target::Endpoints };
        let mut written = Written::new(random_settings(seed, family), target, &edited.now(family));
        let mut rng = Rng::new(seed);
        let mut bytes = |length: usize| -> Vec<u8> {
            (0..length).map(|_| u8::try_from(rng.below(256)).unwrap_or_default()).collect()
        };
        for (number, (_, mut element)) in (0..size).zip(written.memory.elements.clone()) {
            let [choice, at, ..] = bytes(2)[..] else { unreachable!() };
            let set = Set::ALL[usize::from(choice) % Set::ALL.len()];
            match number % 4 {
                0 => element.key = bytes(usize::from(at % 41)),
                1 => element.userdata = bytes(usize::from(at)),
                2 => element.data = Some(Data::Value(bytes(usize::from(at % 24)))),
                _ => element.key_end = Some(bytes(usize::from(at % 41))),
            }
            let place = (set, element.key.clone(), element.key_end.clone());
            written.memory.elements.insert(place, element);
        }
        written.differences();
    }
}

/// Returns the start of the text of a Service port's differences, by its id.
fn names_of_ids(written: &Written) -> BTreeMap<u32, String> {
    let elements = written.memory.elements.iter();
    let values = elements.filter(|((set, ..), _)| matches!(set, Set::Services | Set::NodePorts));
    values
        .filter_map(|((set, key, _), element)| {
            let at = decode::frontend(written.place().family, *set, key)?;
            let Some(Data::Value(value)) = &element.data else { return None };
            Some((Value(read_number(value)?).id(), start(&comment(element), at.protocol)))
        })
        .collect()
}

fn start(name: &str, protocol: Protocol) -> String {
    format!("{name} ({protocol}): ")
}

fn comment(element: &Element) -> String {
    UserData::from_bytes(&element.userdata).comment_text().unwrap_or_default().to_owned()
}

/// Returns the start of the differences of the Service port to which an element belongs.
fn owner(names: &BTreeMap<u32, String>, place: &ElementPlace, element: &Element) -> Option<String> {
    let (set, key, _) = place;
    if ENDPOINTS.contains(set) {
        return names.get(&Value(read_number(key)?).id()).cloned();
    }
    let family = if key.len() > 20 { Family::Ipv6 } else { Family::Ipv4 };
    let name = comment(element);
    (!name.is_empty()).then_some(())?;
    Some(start(&name, decode::frontend(family, *set, key)?.protocol))
}

/// Returns true for an element without which a Service port cannot be complete: the only one for its frontend.
fn is_alone(written: &Written, (set, key, _): &ElementPlace) -> bool {
    let others = FRONTENDS.iter().filter(|other| *other != set);
    let mut others = others.map(|other| (*other, key.clone(), None));
    *set == Set::FirewallIps
        || (FRONTENDS.contains(set) && !others.any(|place| written.memory.elements.contains_key(&place)))
}

fn socket(net: u8, host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, net, 0, host], port))
}

/// Returns the Service port `demo/web` with a frontend of each kind and three endpoints, one of them on this node.
fn web() -> Forwarding {
    let backend = |host| Backend { address: socket(244, host, 0).ip(), port: 8080, may_hairpin: false };
    let plain = Forwarding::plain(socket(96, 1, 80), Protocol::Tcp, [1, 2, 3].map(backend).into());
    Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(socket(96, 1, 80).ip(), 80),
            Frontend::LoadBalancerIp(socket(2, 1, 80).ip(), 80),
            Frontend::NodePort(30080),
        ]),
        local: Box::new([backend(2)]),
        external_policy: ExternalPolicy::Local,
        source_ranges: Box::new(["10.0.0.0/8", "192.0.2.0/24"].map(|range| range.parse().unwrap())),
        ..plain
    }
}

fn change(service: &str, forwarding: Forwarding) -> Change {
    let [namespace, service, port] = ["demo", service, ""].map(Arc::from);
    let name = ServicePortName { namespace, service, port, protocol: forwarding.protocol };
    Change { name: name.into(), family: Family::Ipv4, old: None, new: Some(forwarding.into()) }
}

fn written(forwarding: Forwarding) -> Written {
    let settings = Settings { node_ip: Some(socket(0, 9, 0).ip()), ..settings(Family::Ipv4) };
    let written = Written::new(settings, Target::Endpoints, &[change("web", forwarding)]);
    assert_eq!(written.differences(), [""; 0]);
    written
}

/// Returns the differences after a change of the elements.
fn after(forwarding: Forwarding, damage: impl FnOnce(&mut BTreeMap<ElementPlace, Element>)) -> Vec<String> {
    let mut written = written(forwarding);
    damage(&mut written.memory.elements);
    written.differences()
}

fn key_of(place: Key) -> Vec<u8> {
    place.as_slice().to_vec()
}

fn element(key: &[u8], data: &[u8]) -> Element {
    Element { data: Some(Data::Value(data.to_vec())), ..ElementRef::key(key).to_owned() }
}

#[test]
fn a_comment_that_is_no_name_makes_a_frontend_nameless() {
    let rename = |to: &'static str| {
        move |elements: &mut BTreeMap<ElementPlace, Element>| {
            let services = elements.iter_mut().filter(|((set, ..), _)| *set == Set::Services);
            for (_, element) in services {
                element.userdata = UserData::comment(to).as_bytes().to_vec();
            }
        }
    };
    assert_eq!(after(web(), rename("other")), [""; 0], "found by its frontends");
    assert_eq!(
        after(web(), rename("demo/other")),
        [
            "demo/other (TCP): extra Service port",
            "demo/web (TCP): cluster IP 10.96.0.1:80 is not programmed",
            "demo/web (TCP): load-balancer IP 10.2.0.1:80 is not programmed",
        ]
    );
}

#[test]
fn endpoints_are_those_that_packets_reach() {
    let extra = |index| {
        move |elements: &mut BTreeMap<ElementPlace, Element>| {
            let key = key_of(choice_key(1, index));
            let data = super::super::element::endpoint_data(socket(9, 9, 0).ip(), 99);
            elements.insert((Set::Endpoints, key.clone(), None), element(&key, data.as_slice()));
        }
    };
    let texts = after(web(), extra(0));
    assert_eq!(
        texts,
        [
            "demo/web (TCP): endpoint 10.244.0.1:8080 is missing in the cluster list",
            "demo/web (TCP): extra endpoint 10.9.0.9:99 in the cluster list",
        ],
        "in place of the first"
    );
    let beyond = after(web(), extra(3));
    assert_eq!(beyond, ["demo/web (TCP): extra endpoint 10.9.0.9:99 in the cluster list"]);
    let local = after(web(), extra(LOCAL_OFFSET + 7));
    assert_eq!(local, ["demo/web (TCP): extra endpoint 10.9.0.9:99 in the local list"]);
    let of_no_id = |elements: &mut BTreeMap<ElementPlace, Element>| {
        let key = key_of(choice_key(77, 0));
        elements.insert((Set::Endpoints, key.clone(), None), element(&key, &[0; 8]));
    };
    assert_eq!(after(web(), of_no_id), [""; 0], "no packet reaches it");
}

#[test]
fn a_class_of_fewer_endpoints_does_not_reach_the_last() {
    let mut written = written(web());
    let two = Forwarding { cluster: web().cluster.iter().take(2).copied().collect(), ..web() };
    let mut other = change("other", Forwarding { frontends: Box::new([Frontend::NodePort(30090)]), ..two });
    written.apply(std::slice::from_ref(&other));
    other.new = None;
    let key = |port| {
        let key = key_of(super::super::element::node_port_key(Protocol::Tcp, port));
        (Set::NodePorts, key, None)
    };
    let elements = &mut written.memory.elements;
    let Some(Data::Value(value)) = elements[&key(30090)].data.clone() else { unreachable!() };
    let class = Value(read_number(&value).unwrap()).low();
    let ours = elements.get_mut(&key(30080)).unwrap();
    ours.data = Some(Data::Value(Value::new(1, class).0.to_ne_bytes().to_vec()));
    assert_eq!(
        written.differences(),
        ["demo/web (TCP): endpoint 10.244.0.3:8080 is missing in the cluster list"]
    );
}

#[test]
fn source_ranges_are_those_of_packets() {
    let without = |set: Set, last: &'static [u8]| {
        move |elements: &mut BTreeMap<ElementPlace, Element>| {
            elements.retain(|(of, key, _), _| *of != set || !key.ends_with(last));
        }
    };
    assert_eq!(
        after(web(), without(Set::SourceRanges, &[192, 0, 2, 0])),
        ["demo/web (TCP): source range 192.0.2.0/24 is missing"]
    );
    assert_eq!(
        after(web(), without(Set::FirewallIps, &[])),
        ["demo/web (TCP): all sources are allowed instead of the source ranges"]
    );
    assert_eq!(
        after(web(), without(Set::SourceRanges, &[])),
        [
            "demo/web (TCP): source range 10.0.0.0/8 is missing",
            "demo/web (TCP): source range 192.0.2.0/24 is missing",
        ],
        "no source is allowed"
    );
    assert_eq!(
        after(web(), without(Set::Services, &[])).len(),
        2,
        "two frontends, and nothing of the ranges"
    );
}

#[test]
fn what_nothing_drops_is_incomplete() {
    let elsewhere = Forwarding { local: Box::default(), ..web() };
    let damage = |elements: &mut BTreeMap<ElementPlace, Element>| {
        elements.retain(|(set, ..), _| *set != Set::NoLocalEndpointNodePorts);
    };
    assert_eq!(after(elsewhere, damage), ["demo/web (TCP): node port 30080 is not programmed"]);
}

#[test]
fn a_class_that_leads_nowhere_has_no_endpoints() {
    let cluster_ip = || Forwarding { frontends: web().frontends.iter().take(1).copied().collect(), ..web() };
    let missing: Vec<String> = (1..=3)
        .map(|host| {
            format!("demo/web (TCP): endpoint 10.244.0.{host}:8080 is missing behind frontend 10.96.0.1:80")
        })
        .collect();
    let dropped = |elements: &mut BTreeMap<ElementPlace, Element>| {
        for ((set, ..), element) in elements {
            if *set == Set::Classes {
                element.data = Some(Data::Verdict(Verdict::Drop));
            }
        }
    };
    assert_eq!(after(cluster_ip(), dropped), missing);
    let gone = |elements: &mut BTreeMap<ElementPlace, Element>| {
        elements.retain(|(set, ..), _| *set != Set::Classes);
    };
    assert_eq!(after(cluster_ip(), gone), missing);
    for chain in ["internal-3", "endpoints-3"] {
        let mut written = written(cluster_ip());
        written.memory.rules.remove(chain);
        assert_eq!(written.differences(), missing, "{chain}");
    }
}

#[test]
fn endpoints_behind_the_rules_of_others_are_not_known() {
    let mut written = written(web());
    let rules = written.memory.rules.get_mut("endpoints-3").unwrap();
    rules[0].expressions = vec![Expr::verdict(Verdict::Accept)];
    let observed = written.observed();
    assert!(observed.ports.iter().all(|port| port.endpoints == ObservedEndpoints::Unknown), "{observed:#?}");
    assert_eq!(written.differences(), [""; 0]);
}

#[test]
fn a_table_without_effect_has_no_service_ports() {
    let nothing = ["demo/web (TCP): nothing is programmed"];
    let mut dormant = written(web());
    dormant.memory.table.as_mut().unwrap().flags = 1;
    assert_eq!(dormant.differences(), nothing);
    for chain in ["nat-prerouting", "services"] {
        let mut flushed = written(web());
        flushed.memory.rules.remove(chain);
        assert_eq!(flushed.differences(), nothing, "{chain}");
    }
    let mut loading = written(web());
    loading.memory.chains.remove("nat-prerouting");
    assert_eq!(loading.differences(), nothing);
}

#[test]
fn what_this_mode_does_not_write_has_no_name() {
    let foreign = |key: Vec<u8>| {
        move |elements: &mut BTreeMap<ElementPlace, Element>| {
            let data = Value::new(0, 1).0.to_ne_bytes();
            elements.insert((Set::Services, key.clone(), None), element(&key, &data));
        }
    };
    let other = super::super::element::service_key(socket(99, 9, 0).ip(), Protocol::Udp, 81);
    assert_eq!(after(web(), foreign(key_of(other))), ["no Service (UDP): extra frontend 10.99.0.9:81"]);
    let igmp = [10, 99, 0, 9, 2, 0, 0, 0, 0, 81, 0, 0];
    assert_eq!(after(web(), foreign(igmp.to_vec())), ["no Service (TCP): extra Service port"]);
    let guard = |elements: &mut BTreeMap<ElementPlace, Element>| {
        let key = key_of(super::super::element::service_key(socket(99, 9, 0).ip(), Protocol::Udp, 81));
        elements.insert((Set::FirewallIps, key.clone(), None), ElementRef::key(&key).to_owned());
    };
    assert_eq!(after(web(), guard), ["no Service (UDP): extra Service port"]);
}
