//! Writes changes: reads what the kernel has of the changed Service ports, places them, and commits the difference as one
//! transaction, or as up to three (module `order`).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use portolan_engine::dataplane::{Commit, Error};
use portolan_model::{Change, Family, Forwarding, ServicePortName};
use portolan_sock::{CommitError, Socket, SocketError};
use portolan_wire::nftables::Transaction;

use super::super::changeset::{Changeset, comment_for};
use super::super::content;
use super::super::element::{Data, Element, Key, Set};
use super::super::encode;
use super::super::planner::{Plan, Planner};
use super::super::preview;
use super::super::readback::{Actual, View};
use super::super::resync;
use super::super::skeleton;

/// Sequence numbers of one transaction.
const SEQUENCE_ROOM: u32 = 1 << 16;

/// The sets whose keys are frontends with an address.
const OF_ADDRESSES: [Set; 5] = [
    Set::Services,
    Set::NoEndpointServices,
    Set::NoLocalEndpointServices,
    Set::FirewallIps,
    Set::SourceRangeDrops,
];
/// The sets whose keys are node ports.
const OF_NODE_PORTS: [Set; 3] = [Set::NodePorts, Set::NoEndpointNodePorts, Set::NoLocalEndpointNodePorts];

/// What became of changes.
pub(super) enum Written {
    /// They are in the kernel.
    All(Commit),
    /// They can be written later in the comparison.
    Later,
    /// The comparison has to write them.
    Nothing,
}

/// What is known of the kernel before changes are placed.
enum Prepared {
    /// Everything that the changes need.
    Known,
    /// Not enough before all frontends have been read.
    Later,
    /// Not enough.
    Unknown,
}

/// One plan of changes.
pub(super) struct Writing<'a> {
    planner: &'a mut Planner,
    view: &'a mut View,
    socket: &'a mut Socket,
    family: Family,
    /// The ids of the changed Service ports, before and after.
    ids: BTreeSet<u32>,
    /// What the kernel has of the changed Service ports, with these keys.
    found: View,
    keys: BTreeSet<(Set, Key)>,
    plan: Plan,
}

/// What is wanted of the changed Service ports, and what they may have in the kernel besides.
#[derive(Default)]
struct Wanted {
    elements: Vec<(Element, Arc<ServicePortName>)>,
    /// Elements that the changed Service ports have, or may have, in the kernel. Those that are not wanted are deleted.
    former: Vec<Element>,
}

/// An element that is wanted, or that was deleted.
struct Touched {
    element: Element,
    was_there: bool,
    /// What the kernel has after the commit.
    after: Option<Actual>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(planner: &'a mut Planner, view: &'a mut View, socket: &'a mut Socket) -> Self {
        let family = planner.settings.family;
        let (ids, found, keys, plan) = (BTreeSet::new(), View::default(), BTreeSet::new(), Plan::default());
        Self { planner, view, socket, family, ids, found, keys, plan }
    }

    /// Writes changes of Service ports, each once.
    pub(super) fn write(mut self, changes: &[Change]) -> Result<Written, Error> {
        let prepared = self.prepare(changes).inspect_err(|_| self.planner.follow(changes))?;
        match prepared {
            Prepared::Known => {}
            Prepared::Later => return Ok(Written::Later),
            Prepared::Unknown => return Ok(self.leave(changes)),
        }
        let wanted = self.place(changes);
        let fresh: BTreeSet<u32> = self.placed_ids(changes).filter(|id| !self.ids.contains(id)).collect();
        let all = wanted.elements.iter().map(|(element, _)| element).chain(&wanted.former);
        let is_known = self.read_ids(&fresh)? && self.read(&all.copied().collect::<Vec<_>>())?;
        if !is_known || !self.plan.refused.is_empty() || !self.plan_classes(changes) {
            return Ok(Written::Nothing);
        }
        let (difference, touched) = self.difference(&wanted);
        self.plan.elements = difference;
        self.plan.put_in_order(changes);
        let Some(commit) = self.commit()? else { return Ok(Written::Nothing) };
        self.note(&touched);
        Ok(Written::All(commit))
    }

    /// Reads what the kernel has of the changed Service ports. Places nothing.
    fn prepare(&mut self, changes: &[Change]) -> Result<Prepared, SocketError> {
        if self.view.has_frontends {
            // The Service ports that are not placed yet, and frontends that are not deleted yet, have these ids.
            self.planner.ids.reserve_to(self.view.highest_id());
        }
        let forwardings = changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
        let frontends: Vec<Element> =
            forwardings.flat_map(|forwarding| frontend_elements(forwarding)).collect();
        // A name that the comment does not show in full may be that of others, too.
        let is_shown = |change: &Change| {
            let text = change.name.to_string();
            comment_for(Set::Services, &text) == text
        };
        if !changes.iter().all(is_shown) || !self.read(&frontends)? {
            return Ok(Prepared::Unknown);
        }
        let ids = match self.known_ids(changes) {
            Ok(ids) => ids,
            Err(prepared) => return Ok(prepared),
        };
        let needs_id = |(change, id): (&Change, &Option<u32>)| id.is_none() && change.new.is_some();
        let fresh = changes.iter().zip(&ids).filter(|&pair| needs_id(pair)).count();
        if fresh > 0 && !self.view.has_frontends {
            return Ok(Prepared::Later);
        }
        if fresh > 0 && !self.planner.ids.has_unreserved(fresh) {
            return Ok(Prepared::Unknown);
        }
        let is_known = self.read_ids(&ids.into_iter().flatten().collect())?;
        Ok(if is_known { Prepared::Known } else { Prepared::Unknown })
    }

    /// Leaves changes to the comparison before they are placed. It places those that are not placed.
    fn leave(self, changes: &[Change]) -> Written {
        self.planner.follow(changes);
        Written::Nothing
    }

    /// Returns the id of each changed Service port, as it was placed or as the kernel has it. Returns an error if the kernel's id
    /// is that of another Service port, or if the placed one is not in the kernel yet and may be in use there.
    fn known_ids(&self, changes: &[Change]) -> Result<Vec<Option<u32>>, Prepared> {
        let (mut ids, mut seen) = (Vec::with_capacity(changes.len()), BTreeSet::new());
        for change in changes {
            let placed = self.planner.placed.get(&change.name).map(|placed| placed.id).filter(|&id| id != 0);
            let mut forwardings = change.old.iter().chain(&change.new);
            let there = forwardings.find_map(|forwarding| self.own_id(&change.name, forwarding));
            match (placed, there) {
                (Some(placed), there) if there == Some(placed) => {}
                (Some(placed), _) => self.check_unwritten(placed)?,
                (None, Some(there)) if !self.planner.ids.can_adopt(there) => return Err(Prepared::Unknown),
                (None, _) => {}
            }
            let id = placed.or(there);
            if id.is_some_and(|id| !seen.insert(id)) {
                return Err(Prepared::Unknown);
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Returns an error if frontends of others may lead to an id that no frontend of its Service port leads to. An attempt that
    /// has failed may have placed a Service port there, and another program may have written that id since.
    fn check_unwritten(&self, id: u32) -> Result<(), Prepared> {
        if self.view.early_ids.contains(&id) {
            // It was checked when it was written.
            return Ok(());
        }
        match self.view.highest_id {
            Some(highest) if id > highest => Ok(()),
            Some(_) => Err(Prepared::Unknown),
            None => Err(Prepared::Later),
        }
    }

    fn own_id(&self, name: &ServicePortName, forwarding: &Forwarding) -> Option<u32> {
        resync::own_id(&self.found, name, forwarding)
    }

    fn placed_ids(&self, changes: &[Change]) -> impl Iterator<Item = u32> {
        let placed = changes.iter().filter_map(|change| self.planner.placed.get(&change.name));
        placed.map(|placed| placed.id).filter(|&id| id != 0)
    }

    /// Reads what the kernel has with the keys of elements. Returns false if that is not known.
    fn read(&mut self, elements: &[Element]) -> Result<bool, SocketError> {
        let is_single = |set: Set| set != Set::SourceRanges && !View::is_read_by_key(set);
        let wanted = elements.iter().filter(|element| is_single(element.set));
        let keys: BTreeSet<(Set, Key)> = wanted.map(|element| (element.set, element.key)).collect();
        let new: BTreeSet<(Set, Key)> = keys.difference(&self.keys).copied().collect();
        let place = self.planner.layout().place();
        self.keys.extend(&new);
        self.view.read_some(self.socket, place, &new, &mut self.found)
    }

    /// Reads what the kernel has with these ids. Returns false if that is not known.
    fn read_ids(&mut self, ids: &BTreeSet<u32>) -> Result<bool, SocketError> {
        let place = self.planner.layout().place();
        self.ids.extend(ids);
        self.view.read_ids(self.socket, place, ids, &mut self.found)
    }

    /// Places the changed Service ports, with the positions that the kernel has for them.
    fn place(&mut self, changes: &[Change]) -> Wanted {
        let mut wanted = Wanted::default();
        for change in changes {
            let base = change.old.as_ref().or(change.new.as_ref());
            if let Some(base) = base.filter(|_| !self.planner.placed.contains_key(&change.name)) {
                self.adopt(&change.name, base);
            }
            let old = base.filter(|_| self.planner.placed.contains_key(&change.name)).cloned();
            if let Some(old) = &old {
                wanted.former.extend(self.planner.elements_of(&change.name, old));
            }
            self.planner.plan_one(&Change { old, ..change.clone() }, &mut self.plan);
            if let Some(new) = &change.new {
                let elements = self.planner.elements_of(&change.name, new);
                wanted.elements.extend(elements.into_iter().map(|element| (element, change.name.clone())));
                if self.planner.placed.contains_key(&change.name) {
                    let shared = shared_elements(new).map(|element| (element, change.name.clone()));
                    wanted.elements.extend(shared);
                }
            }
            let forwardings = change.old.iter().chain(&change.new);
            for element in forwardings.flat_map(|forwarding| frontend_elements(forwarding)) {
                wanted.former.push(element);
                // The kernel may have ranges without this element, if only a part of a change was written.
                if element.set == Set::FirewallIps {
                    wanted.former.extend(self.view.ranges_of(&element.key));
                }
            }
        }
        wanted.former.extend(self.found.elements().filter(|element| View::is_read_by_key(element.set)));
        wanted
    }

    /// Places a Service port as the kernel has it, if it does.
    fn adopt(&mut self, name: &Arc<ServicePortName>, forwarding: &Forwarding) {
        let Some(id) = self.own_id(name, forwarding) else { return };
        if self.planner.ids.adopt(id) {
            let before = resync::before(&self.found, self.family, id);
            // If this is refused, the Service port is placed again as a new one, and that refusal is reported.
            self.planner.place(name.clone(), forwarding, &before, id, &mut Plan::default());
        }
    }

    /// Plans the classes that the kernel lacks. Returns false if one of its chains is in the way, or has other rules.
    fn plan_classes(&mut self, changes: &[Change]) -> bool {
        self.plan.classes.clear();
        for change in changes {
            let Some(new) = &change.new else { continue };
            for (number, class) in self.planner.classes_of(&change.name, new) {
                let name = class.to_string();
                match self.view.classes.get(&number) {
                    Some(there) if *there == name && resync::has_rules_of(self.view, self.planner, class) => {
                    }
                    None if !self.view.chains.contains_key(&name) => self.plan.classes.push((number, class)),
                    _ => return false,
                }
            }
        }
        self.plan.classes.sort_unstable_by_key(|&(number, _)| number);
        self.plan.classes.dedup_by_key(|&mut (number, _)| number);
        let has_bindings =
            !self.planner.needs(Set::Affinity) || self.view.sets.contains_key(Set::Affinity.name());
        let has_ranges = |change: &Change| change.new.as_deref().is_some_and(content::has_source_ranges);
        let is_checked =
            !changes.iter().any(has_ranges) || resync::has_source_range_chains(self.view, self.planner);
        has_bindings && is_checked
    }

    /// Returns the difference, and every element that is wanted or deleted.
    fn difference(&self, wanted: &Wanted) -> (Changeset, Vec<Touched>) {
        let counters = self.planner.settings.counters;
        let (mut changes, mut touched, mut seen) = (Changeset::default(), Vec::new(), HashSet::new());
        for (element, name) in &wanted.elements {
            if !seen.insert((element.set, element.key, element.key_end)) {
                continue;
            }
            let text = name.to_string();
            let comment = comment_for(element.set, &text);
            let (before, after) = (self.actual(element), Some(Actual::of(element, comment, counters)));
            if before != after {
                if before.is_some() {
                    changes.remove(element);
                }
                changes.add(element, comment);
            }
            touched.push(Touched { element: *element, was_there: before.is_some(), after });
        }
        for element in &wanted.former {
            let is_new = seen.insert((element.set, element.key, element.key_end));
            if is_new && self.actual(element).is_some() {
                changes.remove(element);
                touched.push(Touched { element: *element, was_there: true, after: None });
            }
        }
        (changes, touched)
    }

    /// Returns what the kernel has at the place of an element.
    fn actual(&self, element: &Element) -> Option<Actual> {
        match element.set {
            Set::SourceRanges => {
                let is_there = self.view.ranges.contains(&(element.key, element.key_end));
                is_there.then(Actual::default)
            }
            set => self.found.actual(set, &element.key),
        }
    }

    /// Commits the difference. Returns `None` if a transaction of it does not fit.
    fn commit(&mut self) -> Result<Option<Commit>, Error> {
        let [earlier, elements, later] = self.plan.all_elements();
        let all = [earlier, elements, later].map(Changeset::len).iter().sum();
        let mut commit = Commit { elements: all, objects: self.plan.classes.len(), ..Commit::default() };
        let mut classes = begin(self.socket, self.view);
        self.encode_classes(&mut classes);
        let fits = all <= SEQUENCE_ROOM as usize
            && self.fits(classes.len(), earlier)?
            && self.fits(0, elements)?
            && self.fits(0, later)?;
        if !fits {
            return Ok(None);
        }
        let (place, counters) = (self.planner.layout().place(), self.planner.settings.counters);
        let mut is_first = true;
        for (elements, has_classes) in [(earlier, true), (elements, false), (later, false)] {
            let mut transaction = begin(self.socket, self.view);
            if has_classes {
                self.encode_classes(&mut transaction);
            }
            encode::elements(&mut transaction, place, elements, counters);
            if transaction.is_empty() {
                continue;
            }
            // If another one of them is in the kernel, the view does not know it. Everything is read again.
            send(self.socket, self.view, transaction, &mut commit).map_err(|error| match error {
                Error::Commit(CommitError::Refused(_)) if !is_first => SocketError::Interrupted.into(),
                other => other,
            })?;
            is_first = false;
        }
        commit.messages.extend(preview::first_of_plan(self.planner.layout(), &self.plan));
        Ok(Some(commit))
    }

    /// Writes the new classes with their chains.
    fn encode_classes(&self, transaction: &mut Transaction) {
        let layout = self.planner.layout();
        for &(number, class) in &self.plan.classes {
            class.balances().for_each(|balance| encode::balance(transaction, layout, balance));
            encode::class(transaction, layout, number, class);
        }
    }

    /// Returns true if the send buffer is large enough for a transaction with the elements, besides other messages.
    fn fits(&self, others: usize, elements: &Changeset) -> Result<bool, SocketError> {
        let estimate = others + encode::estimate(elements, self.planner.settings.counters);
        Ok(self.socket.reserve_send_capacity(estimate)? >= estimate)
    }

    /// Notes in the view what the kernel has now.
    fn note(self, touched: &[Touched]) {
        for Touched { element, was_there, after } in touched {
            self.view.touch(element, *was_there, *after);
        }
        self.view.early_ids.extend(self.ids);
        let layout = self.planner.layout();
        for &(number, class) in &self.plan.classes {
            self.view.classes.insert(number, class.to_string());
            for body in skeleton::chains_of(layout, class) {
                self.view.note_chain(layout.place(), &body);
            }
        }
    }
}

/// Begins a transaction that the kernel refuses if another program has committed since the view was begun.
fn begin(socket: &mut Socket, view: &View) -> Transaction {
    Transaction::begin(socket.next_sequence(SEQUENCE_ROOM), Some(view.generation))
}

/// Commits a transaction, and adds it to what was written.
fn send(
    socket: &mut Socket,
    view: &mut View,
    transaction: Transaction,
    commit: &mut Commit,
) -> Result<(), Error> {
    let batch = transaction.finish().map_err(SocketError::from)?;
    let started = Instant::now();
    socket.commit(&batch)?;
    view.generation = view.generation.wrapping_add(1);
    commit.kernel += started.elapsed();
    commit.bytes += batch.len();
    Ok(())
}

/// Returns the elements of a Service port that it may share with others.
fn shared_elements(forwarding: &Forwarding) -> impl Iterator<Item = Element> {
    let addresses = content::cluster_ips(forwarding).map(content::cluster_ip_element);
    let hairpins = content::hairpins(forwarding);
    addresses.chain(hairpins.map(|(protocol, socket)| content::hairpin_element(protocol, socket)))
}

/// Returns every element that may have a frontend of a Service port as its key.
fn frontend_elements(forwarding: &Forwarding) -> impl Iterator<Item = Element> {
    forwarding.frontends.iter().flat_map(|frontend| {
        let (key, node_port) = content::frontend_key(*frontend, forwarding.protocol);
        let sets: &[Set] = if node_port { &OF_NODE_PORTS } else { &OF_ADDRESSES };
        sets.iter().map(move |&set| Element { set, key, key_end: None, data: Data::EMPTY })
    })
}
