//! Plans replayed on a model of the kernel's sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};

use portolan_engine::table::Table;
use portolan_model::{Backend, Family, LocalDetector, NodePortAddresses, world};

use super::super::class::Balance;
use super::super::element::{Set, read_number};
use super::super::load::Pieces;
use super::super::readback::View;
use super::super::resync::Difference;
use super::super::skeleton;
use super::super::value::{LOCAL_OFFSET, MAX_CLASS, MAX_ID};
use super::*;

/// Data and comment of each element, by set, key and end of the interval.
type Model = BTreeMap<ElementKey, Content>;
type ElementKey = (Set, Vec<u8>, Vec<u8>);
type Content = (Vec<u8>, String);

pub(crate) fn settings(family: Family) -> Settings {
    Settings {
        family,
        local_detector: LocalDetector::None,
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: Some(IpAddr::from([10, 244, 0, 9])),
        service_cidrs: Vec::new(),
        counters: false,
    }
}

/// Applies changes to the model as the kernel would. Panics if the kernel would refuse them.
fn replay(model: &mut Model, changes: &Changeset, context: &str) {
    for set in Set::ALL {
        for operation in changes.deletions(set) {
            let key = (set, operation.key.to_vec(), operation.key_end.to_vec());
            assert!(model.remove(&key).is_some(), "{context}: {key:02x?} is not there");
        }
    }
    for set in Set::ALL {
        for operation in changes.additions(set) {
            let key = (set, operation.key.to_vec(), operation.key_end.to_vec());
            let value = (operation.data.to_vec(), operation.comment.to_owned());
            assert_eq!(model.insert(key.clone(), value), None, "{context}: {key:02x?} is there");
        }
    }
}

/// Applies the transactions of a plan.
fn replay_plan(model: &mut Model, plan: &Plan, context: &str) {
    for elements in plan.all_elements() {
        replay(model, elements, context);
    }
}

/// Returns what the model means to packets, without ids, class numbers, order of indexes, and slots.
fn meaning(model: &Model, planner: &Planner) -> BTreeSet<String> {
    let classes: BTreeMap<u16, Class> = planner.classes.iter().collect();
    let mut backends = 0;
    let mut line = |((set, key, end), (data, comment)): (&ElementKey, &Content)| match set {
        Set::Services | Set::NodePorts => {
            let value = Value(read_number(data).unwrap());
            let class = classes[&value.low()];
            let [cluster, local] = [0, LOCAL_OFFSET].map(|first| endpoints(model, value.id(), first));
            check_counts(class, cluster.len(), local.len());
            Some(format!("{set:?} {key:02x?} {comment} {class} {cluster:02x?} {local:02x?}"))
        }
        Set::Endpoints | Set::AffinityChoices => {
            backends += 1;
            None
        }
        Set::AffinityEndpoints | Set::AffinityLocalEndpoints | Set::ServiceCounters => None,
        _ => Some(format!("{set:?} {key:02x?} {end:02x?} {comment}")),
    };
    let lines = model.iter().filter_map(&mut line).collect();
    let values = model.iter().filter(|((set, ..), _)| matches!(set, Set::Services | Set::NodePorts));
    let ids: BTreeSet<u32> = values.map(|(_, (data, _))| Value(read_number(data).unwrap()).id()).collect();
    let found =
        ids.iter().map(|&id| endpoints(model, id, 0).len() + endpoints(model, id, LOCAL_OFFSET).len());
    assert_eq!(found.sum::<usize>(), backends, "an endpoint that nothing leads to");
    lines
}

fn check_counts(class: Class, cluster: usize, local: usize) {
    for balance in class.balances() {
        assert_eq!(usize::from(balance.backends), if balance.local { local } else { cluster }, "{class}");
    }
}

/// Returns the endpoints of an id, from index `first` to the first gap.
fn endpoints(model: &Model, id: u32, first: u32) -> BTreeSet<Vec<u8>> {
    let slots = if first == 0 { Set::AffinityEndpoints } else { Set::AffinityLocalEndpoints };
    let endpoint = |index: u32| {
        let key = super::super::readback::choice_key(id, index).as_slice().to_vec();
        if let Some((endpoint, _)) = model.get(&(Set::Endpoints, key.clone(), Vec::new())) {
            return Some(endpoint.clone());
        }
        let (slot, _) = model.get(&(Set::AffinityChoices, key, Vec::new()))?;
        assert_eq!(Value(read_number(slot).unwrap()).id(), id);
        Some(model[&(slots, slot.clone(), Vec::new())].0.clone())
    };
    (first..).map_while(endpoint).collect()
}

/// A planner with the table that it follows.
struct Planned {
    planner: Planner,
    table: Table,
}

impl Planned {
    /// Plans changes, with the former states that the table has.
    fn plan(&mut self, changes: &[Change]) -> Plan {
        let changes = self.table.take(changes.iter().cloned(), []);
        self.planner.plan(&changes.forwardings)
    }
}

impl Deref for Planned {
    type Target = Planner;

    fn deref(&self) -> &Planner {
        &self.planner
    }
}

impl DerefMut for Planned {
    fn deref_mut(&mut self) -> &mut Planner {
        &mut self.planner
    }
}

/// Returns a planner that has been compared with a table without sets, and the model of what it wrote.
fn from_scratch(settings: Settings, state: &[Change]) -> (Planned, Model) {
    let mut planner = Planner::new(settings.clone());
    let mut table = Table::new(settings);
    table.take(state.iter().cloned(), []);
    // A table that exists, but without its sets.
    let there = Some(skeleton::table(planner.layout().place()));
    let difference = Difference::between(&mut planner, &table, &mut View { table: there, ..View::default() });
    assert!(difference.rebuild && difference.plan.refused.is_empty());
    let mut model = Model::new();
    replay(&mut model, &difference.elements, "first");
    let (mut in_pieces, mut pieces) = (Model::new(), Pieces::default());
    while let Some(piece) = pieces.next(&planner, &table) {
        replay(&mut in_pieces, &piece, "piece");
    }
    assert_eq!(in_pieces, model, "a first load in pieces");
    (Planned { planner, table }, model)
}

/// A random world of ten Services, whose changes are those of one family.
pub(crate) struct Edited(world::Edited);

impl Edited {
    pub(crate) fn new(seed: u64) -> Self {
        let mut edited = world::Edited::new(seed, 10);
        edited.first();
        Self(edited)
    }

    pub(crate) fn edit(&mut self, family: Family) -> Vec<Change> {
        let count = 1 + self.0.rng().below(5);
        let mut changes = self.0.edit(count).changes;
        changes.retain(|change| change.family == family);
        changes
    }

    pub(crate) fn now(&self, family: Family) -> Vec<Change> {
        self.0.now(family)
    }
}

#[test]
fn plans_fit_the_kernel_and_end_where_a_start_from_scratch_does() {
    for seed in 0..400 {
        let family = if seed % 2 == 0 { Family::Ipv4 } else { Family::Ipv6 };
        let settings = Settings { counters: seed % 3 == 0, ..settings(family) };
        let mut edited = Edited::new(seed);
        let (mut planner, mut model) = from_scratch(settings.clone(), &edited.now(family));
        for step in 0..15 {
            let plan = planner.plan(&edited.edit(family));
            assert_eq!(plan.refused, []);
            replay_plan(&mut model, &plan, &format!("seed {seed} step {step}"));
            if step % 5 == 4 {
                planner.classes.take_idle();
            }
        }
        let (fresh, fresh_model) = from_scratch(settings, &edited.now(family));
        assert_eq!(meaning(&model, &planner), meaning(&fresh_model, &fresh), "seed {seed}");
        planner.classes.take_idle();
        let classes =
            |planner: &Planner| planner.classes.iter().map(|(_, class)| class).collect::<BTreeSet<_>>();
        assert_eq!(classes(&planner), classes(&fresh), "seed {seed}: classes in use");
        let all_gone: Vec<Change> = edited
            .now(family)
            .into_iter()
            .map(|change| Change { old: change.new, new: None, ..change })
            .collect();
        let plan = planner.plan(&all_gone);
        replay_plan(&mut model, &plan, "the end");
        assert_eq!(model, Model::new());
        planner.classes.take_idle();
        assert_eq!(planner.classes.iter().count() + planner.classes.balances().count(), 0);
    }
}

fn web(number: u16, backends: u16) -> Change {
    let ip = |net: u8| {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([10, net, high, low])
    };
    let backend = |port| Backend { address: ip(244), port, may_hairpin: false };
    let cluster = (1..=backends).map(backend).collect();
    let forwarding = Forwarding {
        has_endpoints: backends > 0,
        ..Forwarding::plain(SocketAddr::new(ip(96), 80), Protocol::Tcp, cluster)
    };
    let name = ServicePortName {
        namespace: "demo".into(),
        service: format!("web-{number}").into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    Change { name: name.into(), family: Family::Ipv4, old: None, new: Some(forwarding.into()) }
}

#[test]
fn without_a_free_id_a_service_port_is_refused_and_the_others_are_not() {
    let (mut planner, mut model) = from_scratch(settings(Family::Ipv4), &[web(1, 2)]);
    let all = std::iter::from_fn(|| planner.ids.allocate()).count();
    assert_eq!(all, MAX_ID as usize - 1);
    let plan = planner.plan(&[web(2, 2), web(1, 3)]);
    assert_eq!(
        plan.refused.iter().map(|refusal| refusal.name.to_string()).collect::<Vec<_>>(),
        ["demo/web-2"]
    );
    assert!(plan.refused[0].reason.contains("262,143 ids"), "{}", plan.refused[0].reason);
    replay_plan(&mut model, &plan, "one refused");
    planner.ids.release(77);
    let plan = planner.plan(&[web(2, 2)]);
    assert_eq!(plan.refused, []);
    replay_plan(&mut model, &plan, "one id is free again");
    let (fresh, fresh_model) = from_scratch(settings(Family::Ipv4), &[web(1, 3), web(2, 2)]);
    assert_eq!(meaning(&model, &planner), meaning(&fresh_model, &fresh));
}

#[test]
fn without_a_free_class_a_service_port_is_refused_and_programmed_no_more() {
    let (mut planner, mut model) = from_scratch(settings(Family::Ipv4), &[web(1, 2), web(2, 2)]);
    let class = |backends| Class::External(Balance { local: false, backends, affinity: None });
    let others: Vec<Class> = (1..MAX_CLASS).map(class).collect();
    assert!(others.iter().all(|&class| planner.classes.acquire(class).is_some()));
    let ids = planner.ids.allocate().unwrap();
    planner.ids.release(ids);
    let plan = planner.plan(&[web(1, 3)]);
    assert_eq!(plan.refused.len(), 1);
    assert!(plan.refused[0].reason.contains("16,383 combinations"), "{}", plan.refused[0].reason);
    replay_plan(&mut model, &plan, "refused");
    let (_, fresh_model) = from_scratch(settings(Family::Ipv4), &[web(2, 2)]);
    assert_eq!(model.len(), fresh_model.len(), "nothing of the refused one is left");
    planner.classes.release(others[7]);
    planner.classes.take_idle();
    let plan = planner.plan(&[web(1, 3)]);
    assert_eq!(plan.refused, []);
    assert_eq!(plan.classes.len(), 1);
    replay_plan(&mut model, &plan, "a class is free again");
}

#[test]
fn a_service_port_with_the_usual_placement_takes_16_bytes() {
    assert_eq!(size_of::<Placed>(), 16);
    let usual = Placement::of_usual(3);
    let stored = Placed::new(usual.clone(), 7);
    assert!(stored.other.is_none() && *stored.placement() == usual && stored.id == 7);
    let before = Before { next_slot: 5, ..Before::default() };
    let other = Placement::after(&before, &web(1, 3).new.unwrap(), Slots::ForAffinity);
    let stored = Placed::new(other.clone(), 7);
    assert!(other.usual().is_none() && *stored.placement() == other);
}
