//! Follows packets that meet one hook before a transaction and the next hook after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_engine::table::Table;
use portolan_model::{Backend, Change, ExternalPolicy, Family, Protocol, Settings};
use portolan_wire::nftables::{NftablesEvent, Transaction};
use proptest::prelude::*;

use super::super::class::Class;
use super::super::encode;
use super::super::planner::Planner;
use super::super::planner::tests::{Edited, settings};
use super::super::readback::View;
use super::super::resync::Difference;
use super::super::skeleton;
use super::*;

/// The data of each element, by set and key.
type Elements = BTreeMap<(Set, Vec<u8>), Vec<u8>>;

/// A packet to a frontend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    key: Vec<u8>,
    is_for_node_port: bool,
    /// True if it is from a pod or from this node.
    is_internal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Translated,
    Stopped,
    /// It leaves as it came.
    Escaped,
}

/// What the kernel has after each transaction, and what is wanted in the end.
struct Generations {
    elements: Vec<Elements>,
    classes: BTreeMap<u16, Class>,
    /// Keys that are the address and port of one of their endpoints.
    leads_to_itself: BTreeSet<Vec<u8>>,
}

impl Generations {
    /// Returns what happens to a packet that meets the rules that translate in the first generation, and then those that drop and
    /// those that reject in the others.
    fn fate(&self, packet: &Packet, [nat, drops, rejects]: [usize; 3]) -> Fate {
        let [frontends, dropped, rejected] = if packet.is_for_node_port {
            [Set::NodePorts, Set::NoLocalEndpointNodePorts, Set::NoEndpointNodePorts]
        } else {
            [Set::Services, Set::NoLocalEndpointServices, Set::NoEndpointServices]
        };
        let get = |generation: usize, set: Set| self.elements[generation].get(&(set, packet.key.clone()));
        let class = get(nat, frontends).map(|data| self.classes[&Value(read_number(data).unwrap()).low()]);
        let is_translated = match class {
            None => false,
            Some(Class::Internal(_) | Class::External(_)) => true,
            Some(Class::ExternalLocal(_, local)) => packet.is_internal || local > 0,
        };
        let leads_to_itself = self.leads_to_itself.contains(&packet.key);
        let is_stopped = get(drops, dropped).is_some() || get(rejects, rejected).is_some();
        match (is_translated, is_stopped) {
            (true, true) if leads_to_itself => Fate::Stopped,
            (true, _) => Fate::Translated,
            (false, true) => Fate::Stopped,
            // It arrives at the endpoint.
            (false, false) if leads_to_itself => Fate::Translated,
            (false, false) => Fate::Escaped,
        }
    }

    fn packets(&self) -> BTreeSet<Packet> {
        let is_frontend = |set: Set| {
            let is_place = |(refusal, places): &(Set, &[Set])| *refusal == set || places.contains(&set);
            REFUSALS.iter().any(is_place)
        };
        let keys = self.elements.iter().flat_map(BTreeMap::keys).filter(|(set, _)| is_frontend(*set));
        keys.flat_map(|(set, key)| {
            let is_for_node_port =
                key.len() == content::frontend_key(Frontend::NodePort(1), Protocol::Tcp).0.as_slice().len();
            assert_eq!(is_for_node_port, set.name().contains("port"));
            [false, true].map(|is_internal| Packet { key: key.clone(), is_for_node_port, is_internal })
        })
        .collect()
    }

    /// Returns the packets that are astray: those that escape or are stopped between two generations, but would not be so in the
    /// first nor in the last one.
    fn astray(&self) -> Vec<String> {
        let last = self.elements.len() - 1;
        let mut astray = Vec::new();
        for packet in self.packets() {
            let ends = [0, last].map(|generation| self.fate(&packet, [generation; 3]));
            if ends.contains(&Fate::Escaped) {
                continue;
            }
            for first in 0..=last {
                for (drops, rejects) in [(0, 0), (0, 1), (1, 1)] {
                    let hooks = [first, (first + drops).min(last), (first + rejects).min(last)];
                    let fate = self.fate(&packet, hooks);
                    if fate == Fate::Escaped || (fate == Fate::Stopped && ends == [Fate::Translated; 2]) {
                        astray.push(format!("{ends:?}, {fate:?} in {hooks:?} of {last}: {packet:02x?}"));
                    }
                }
            }
        }
        astray
    }

    /// Returns the frontends that drop allowed clients between two generations: their check is there, and not all of the ranges that
    /// they have in the end. Only frontends count that have a check in one of the first and the last generation, not in both.
    fn without_ranges(&self) -> BTreeSet<Vec<u8>> {
        let ranges = |generation: usize, frontend: &[u8]| -> BTreeSet<Vec<u8>> {
            let of_set = self.elements[generation].keys().filter(|(set, _)| *set == Set::SourceRanges);
            of_set.filter(|(_, key)| key.starts_with(frontend)).map(|(_, key)| key.clone()).collect()
        };
        let is_checked = |generation: usize, frontend: &[u8]| {
            self.elements[generation].contains_key(&(Set::FirewallIps, frontend.to_vec()))
        };
        let last = self.elements.len() - 1;
        let checked =
            self.elements.iter().flat_map(BTreeMap::keys).filter(|(set, _)| *set == Set::FirewallIps);
        let mut without: BTreeSet<Vec<u8>> = checked.map(|(_, key)| key.clone()).collect();
        without.retain(|frontend| {
            let ends = [0, last].map(|generation| is_checked(generation, frontend));
            let all = if ends[0] { ranges(0, frontend) } else { ranges(last, frontend) };
            // While a transaction is committed, old kernels do not find its ranges, neither new ones nor those that go.
            let lacks = |generation: usize| {
                let before = ranges(generation.saturating_sub(1), frontend);
                let found: BTreeSet<_> =
                    ranges(generation, frontend).intersection(&before).cloned().collect();
                is_checked(generation, frontend) && found != all
            };
            ends[0] != ends[1] && (0..=last).any(lacks)
        });
        without
    }
}

/// How changes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Plan,
    Comparison,
    /// A comparison that creates the table anew.
    Rebuild,
    /// A plan in transactions of few bytes.
    Parts,
}

/// A planner, the table that it follows, and what the kernel has.
struct Written {
    planner: Planner,
    table: Table,
    elements: Elements,
    generations: Generations,
}

impl Written {
    fn new(settings: Settings, changes: &[Change]) -> Self {
        let planner = Planner::new(settings.clone());
        let generations =
            Generations { elements: Vec::new(), classes: BTreeMap::new(), leads_to_itself: BTreeSet::new() };
        let mut this = Self { planner, table: Table::new(settings), elements: Elements::new(), generations };
        this.write(changes, How::Comparison);
        this
    }

    /// Writes changes. Returns the number of transactions.
    fn write(&mut self, changes: &[Change], how: How) -> usize {
        let changes = self.table.take(changes.iter().cloned(), []).forwardings;
        let before = self.elements.clone();
        self.generations.elements = vec![before.clone()];
        match how {
            How::Plan | How::Parts => {
                let plan = self.planner.plan(&changes);
                assert_eq!(plan.refused, []);
                let limit = if how == How::Parts { 1_800 } else { usize::MAX };
                plan.all_elements().into_iter().for_each(|elements| self.commit(elements, limit));
            }
            How::Comparison | How::Rebuild => {
                self.planner.follow(&changes);
                let mut view = self.view(how == How::Rebuild);
                let difference = Difference::between(&mut self.planner, &self.table, &mut view);
                if difference.rebuild {
                    self.elements.clear();
                }
                self.commit(&difference.elements, usize::MAX);
                self.commit(&difference.later, usize::MAX);
            }
        }
        self.generations.classes = self.planner.classes.iter().collect();
        let all: Vec<_> = self.table.iter().collect();
        self.generations.leads_to_itself = all
            .iter()
            .flat_map(|(_, forwarding)| {
                let frontends = forwarding.frontends.iter().copied();
                let itself = frontends.filter(|frontend| leads_to_itself(forwarding, *frontend));
                itself.map(|frontend| {
                    content::frontend_key(frontend, forwarding.protocol).0.as_slice().to_vec()
                })
            })
            .collect();
        self.generations.elements.len() - 1
    }

    /// Returns what the kernel has, with a set that this version does not know if the table cannot be mended.
    fn view(&self, is_beyond_repair: bool) -> View {
        let place = self.planner.layout().place();
        let mut view = View { table: Some(skeleton::table(place)), ..View::default() };
        if self.elements.is_empty() {
            return view;
        }
        for set in Set::ALL.into_iter().filter(|set| self.planner.layout().has_at_start(*set)) {
            view.sets.insert(set.name().to_owned(), skeleton::set(place, set));
        }
        if is_beyond_repair {
            view.sets.insert("other".to_owned(), skeleton::set(place, Set::Services));
        }
        for set in Set::ALL {
            let elements = self.elements.iter().filter(|((of, _), _)| *of == set);
            let elements: Vec<_> = elements
                .map(|((set, key), data)| {
                    (key.split_at(key.len() / if *set == Set::SourceRanges { 2 } else { 1 }), data)
                })
                .map(|((key, key_end), data)| portolan_wire::nftables::ElementRef {
                    key,
                    key_end: (!key_end.is_empty()).then_some(key_end),
                    data: (!data.is_empty()).then_some(portolan_wire::nftables::DataRef::Value(data)),
                    ..Default::default()
                })
                .collect();
            view.add_elements(place, set, &elements);
        }
        view
    }

    /// Replays changes as the kernel would, and keeps what it has after each transaction.
    fn commit(&mut self, changes: &Changeset, limit: usize) {
        if changes.is_empty() {
            return;
        }
        let place = self.planner.layout().place();
        let mut transactions = vec![Transaction::begin(1, None)];
        if limit == usize::MAX {
            encode::elements(&mut transactions[0], place, changes, false);
        } else {
            transactions =
                encode::elements_in_parts(place, changes, false, limit, || Transaction::begin(1, None));
        }
        for transaction in transactions {
            let batch = transaction.finish().unwrap();
            for frame in
                (batch.first_sequence()..batch.next_sequence()).filter_map(|number| batch.frame(number))
            {
                let (list, is_new) = match NftablesEvent::decode(&frame).unwrap() {
                    NftablesEvent::NewElements(list) => (list, true),
                    NftablesEvent::DeleteElements(list) => (list, false),
                    _ => continue,
                };
                let set = Set::from_name(list.set).unwrap();
                for element in list.elements().map(|element| element.unwrap()) {
                    let key = [element.key, element.key_end.unwrap_or_default()].concat();
                    let place = (set, key);
                    let data = match element.data {
                        Some(portolan_wire::nftables::DataRef::Value(data)) => data.to_vec(),
                        _ => Vec::new(),
                    };
                    if is_new {
                        assert_eq!(self.elements.insert(place.clone(), data), None, "{place:02x?} is there");
                    } else {
                        assert!(self.elements.remove(&place).is_some(), "{place:02x?} is not there");
                    }
                }
            }
            self.generations.elements.push(self.elements.clone());
        }
    }
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::Plan), Just(How::Comparison), Just(How::Rebuild), Just(How::Parts)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_packet_escapes_between_two_hooks(seed: u64, is_ipv6: bool, hows in proptest::collection::vec(how(), 8)) {
        let family = if is_ipv6 { Family::Ipv6 } else { Family::Ipv4 };
        let mut edited = Edited::new(seed);
        let mut written = Written::new(settings(family), &edited.now(family));
        for how in hows {
            written.write(&edited.edit(family), how);
            prop_assert_eq!(written.generations.astray(), [""; 0], "{:?}", how);
            // A comparison adds ranges in one transaction with their check.
            if matches!(how, How::Plan | How::Parts) {
                prop_assert_eq!(written.generations.without_ranges(), BTreeSet::new(), "{:?}", how);
            }
            let fresh = Written::new(settings(family), &edited.now(family));
            let refusals = |elements: &Elements| {
                let refusals = elements.keys().filter(|(set, _)| REFUSALS.iter().any(|(refusal, _)| refusal == set));
                refusals.cloned().collect::<Vec<_>>()
            };
            prop_assert_eq!(refusals(&written.elements), refusals(&fresh.elements), "{:?}", how);
        }
    }
}

fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([10, net, 0, host])
}

/// Returns a Service port with every kind of frontend.
fn put(service: &str, host: u8, cluster: &[IpAddr], local: &[IpAddr]) -> Change {
    let backends = |addresses: &[IpAddr]| {
        let backend = |&address: &IpAddr| Backend { address, port: 80, may_hairpin: false };
        addresses.iter().map(backend).collect::<Box<[_]>>()
    };
    let forwarding = Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip(96, host), 80),
            Frontend::ExternalIp(ip(1, host), 80),
            Frontend::NodePort(30_000 + u16::from(host)),
        ]),
        local: backends(local),
        external_policy: ExternalPolicy::Local,
        has_endpoints: !cluster.is_empty(),
        ..Forwarding::plain((ip(96, host), 80).into(), Protocol::Tcp, backends(cluster))
    };
    let name = portolan_model::ServicePortName {
        namespace: "demo".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    Change { name: Arc::new(name), family: Family::Ipv4, old: None, new: Some(Arc::new(forwarding)) }
}

#[test]
fn only_what_packets_may_still_look_for_goes_in_a_second_transaction() {
    let [near, far] = [ip(244, 1), ip(244, 2)];
    for how in [How::Plan, How::Comparison] {
        let mut written = Written::new(
            settings(Family::Ipv4),
            &[put("web", 1, &[], &[]), put("other", 2, &[near], &[near])],
        );
        let gone = |change: Change| Change { old: change.new, new: None, ..change };
        for (what, change, transactions) in [
            ("the first endpoint comes, on another node", vec![put("web", 1, &[far], &[])], 2),
            ("another one comes on this node", vec![put("web", 1, &[near, far], &[near])], 2),
            ("an endpoint goes", vec![put("web", 1, &[near], &[near])], 1),
            ("the last endpoint goes", vec![put("web", 1, &[], &[])], 1),
            ("other endpoints change", vec![put("other", 2, &[near, far], &[near])], 1),
            ("the first endpoint comes, on this node", vec![put("web", 1, &[near], &[near])], 2),
            // Packets may still look for it.
            ("the last local endpoint goes", vec![put("web", 1, &[far], &[])], 2),
            ("the last endpoint goes", vec![put("web", 1, &[], &[])], 1),
            ("the Service goes", vec![gone(put("web", 1, &[], &[]))], 1),
            ("it comes back without endpoints", vec![put("web", 1, &[], &[])], 1),
            (
                "another Service with endpoints gets its addresses",
                vec![gone(put("web", 1, &[], &[])), put("web-2", 1, &[near], &[near])],
                2,
            ),
        ] {
            assert_eq!(written.write(&change, how), transactions, "{what}, {how:?}");
            assert_eq!(written.generations.astray(), [""; 0], "{what}, {how:?}");
        }
    }
}

/// A pod on this node's network may serve at the address and port of a frontend. Its packets are not marked as translated, so they
/// meet refusals.
#[test]
fn a_frontend_that_is_its_own_endpoint_is_never_refused_when_it_is_served_before_and_after() {
    let (itself, far) = (ip(1, 1), ip(244, 2));
    let mut written = Written::new(settings(Family::Ipv4), &[put("web", 1, &[far], &[])]);
    assert_eq!(written.write(&[put("web", 1, &[far, itself], &[itself])], How::Plan), 2);
    let later = written.generations.elements[1].keys();
    let kept: Vec<Set> =
        later.map(|(set, _)| *set).filter(|set| REFUSALS.iter().any(|(refusal, _)| refusal == set)).collect();
    assert_eq!(kept, [Set::NoLocalEndpointNodePorts], "the external IP is not refused any more");
    assert_eq!(written.generations.astray(), [""; 0]);
}

/// A packet that found the old Service port's frontend before the transaction looks for its endpoints after it.
#[test]
fn endpoints_go_after_frontends_that_pass_to_another_service_port() {
    let [near, far] = [ip(244, 1), ip(244, 2)];
    let former = put("web", 1, &[near], &[near]);
    let mut written = Written::new(settings(Family::Ipv4), std::slice::from_ref(&former));
    let (key, _) = content::frontend_key(Frontend::ClusterIp(ip(96, 1), 80), Protocol::Tcp);
    let id = of_slot(&written.elements[&(Set::Services, key.as_slice().to_vec())]);
    let gone = Change { old: former.new.clone(), new: None, ..former };
    assert_eq!(written.write(&[gone, put("web-2", 1, &[far], &[far])], How::Plan), 2);
    let is_of_former =
        |(set, key): &(Set, Vec<u8>)| *set == Set::Endpoints && of_index(key).map(|it| it.0) == id;
    let has = |elements: &Elements| elements.keys().any(is_of_former);
    assert_eq!(written.generations.elements.iter().map(has).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn source_ranges_come_before_their_check_and_go_after_it() {
    let balancer = ip(1, 1);
    let ranged = |ranges: &[&str]| {
        let change = put("web", 1, &[ip(244, 1)], &[]);
        let forwarding = change.new.as_deref().cloned().unwrap();
        let new = Forwarding {
            frontends: Box::new([Frontend::LoadBalancerIp(balancer, 80)]),
            source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ..forwarding
        };
        [Change { new: Some(Arc::new(new)), ..change }]
    };
    let mut written = Written::new(settings(Family::Ipv4), &ranged(&[]));
    for (what, ranges, transactions) in [
        ("the first ranges come", &["198.51.100.0/24", "203.0.113.0/24"][..], 2),
        ("one more comes", &["198.51.100.0/24", "203.0.113.0/24", "192.0.2.0/24"], 1),
        ("one goes", &["198.51.100.0/24", "192.0.2.0/24"], 1),
        (
            "others that overlap take the place of one",
            &["198.51.100.0/25", "198.51.100.128/26", "192.0.2.0/24"],
            1,
        ),
        ("all go", &[], 2),
    ] {
        assert_eq!(written.write(&ranged(ranges), How::Plan), transactions, "{what}");
        assert_eq!(written.generations.without_ranges(), BTreeSet::new(), "{what}");
    }
}

#[test]
fn endpoints_under_other_keys_are_deleted_after_the_frontends_that_led_to_them() {
    let near = ip(244, 1);
    let with = |affinity: Option<u32>, policy: ExternalPolicy, cluster: &[IpAddr]| {
        let local: &[IpAddr] = if policy == ExternalPolicy::Local { &[near] } else { &[] };
        let change = put("web", 1, cluster, local);
        let forwarding = change.new.as_deref().cloned().unwrap();
        let new = Forwarding { affinity, external_policy: policy, ..forwarding };
        [Change { new: Some(Arc::new(new)), ..change }]
    };
    let (local, cluster) = (ExternalPolicy::Local, ExternalPolicy::Cluster);
    let [two, three] = [vec![near, ip(244, 2)], vec![near, ip(244, 2), ip(244, 3)]];
    let mut written = Written::new(settings(Family::Ipv4), &with(None, local, &two));
    for (what, change, transactions) in [
        ("session affinity begins", with(Some(60), local, &two), 2),
        ("session affinity ends", with(None, local, &two), 2),
        ("an endpoint comes", with(None, local, &three), 1),
        ("an endpoint goes", with(None, local, &two), 1),
        ("local endpoints are not used any more", with(None, cluster, &two), 2),
        ("session affinity begins, with local endpoints", with(Some(60), local, &two), 2),
        ("local endpoints with session affinity are not used any more", with(Some(60), cluster, &two), 2),
    ] {
        assert_eq!(written.write(&change, How::Plan), transactions, "{what}");
        let generations = &written.generations.elements;
        let endpoints = |generation: usize| {
            let of_sets =
                [Set::Endpoints, Set::AffinityChoices, Set::AffinityEndpoints, Set::AffinityLocalEndpoints];
            let keys = generations[generation].keys().filter(|(set, _)| of_sets.contains(set));
            keys.cloned().collect::<BTreeSet<_>>()
        };
        if transactions == 2 {
            assert!(endpoints(0).is_subset(&endpoints(1)), "{what}");
        }
    }
    let gone = put("web", 1, &[], &[]);
    let gone = Change { old: gone.new, new: None, ..gone };
    assert_eq!(written.write(&[gone], How::Plan), 1, "nothing leads to its id");
}
