//! The desired state of the kernel: the needs of all Service ports together, and the objects that a change touches.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{Forwarding, ServicePortName, Settings};
use portolan_wire::ipset::Member;

use super::frontend::{Context, Key, Needs, Server, needs};
use super::set::Set;
use portolan_engine::table::{Changes, HealthCheckChange, Table};

/// The objects that the table requires.
///
/// Methods that take the table get the one after the last changes that [`Desired::apply`] got.
#[derive(Debug)]
pub(super) struct Desired {
    settings: Settings,
    node_addresses: Vec<IpAddr>,
    /// See [`Context::exclude`].
    exclude: Vec<IpNet>,
    /// See [`Context::foreign`].
    foreign: BTreeSet<Key>,
    /// Service ports of the table that do not fit into full sets. They need no objects.
    left_out: HashSet<Arc<ServicePortName>>,
    /// The full sets.
    full: BTreeSet<Set>,
    /// The virtual servers that Service ports need, the active one first. Mostly there is one for each key.
    servers: BTreeMap<Key, Vec<Server>>,
    /// Members of sets, with the number of Service ports that need each.
    members: BTreeMap<(Set, Member), u32>,
}

/// The former state of the objects that a change touches.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) servers: BTreeMap<Key, Option<Server>>,
    pub(super) members: BTreeMap<(Set, Member), bool>,
}

impl Desired {
    pub(super) fn new(settings: Settings, exclude: Vec<IpNet>) -> Self {
        Self {
            settings,
            node_addresses: Vec::new(),
            exclude,
            foreign: BTreeSet::new(),
            left_out: HashSet::new(),
            full: BTreeSet::new(),
            servers: BTreeMap::new(),
            members: BTreeMap::new(),
        }
    }

    pub(super) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes over the settings of the table. Returns true if they differ from the former ones.
    pub(super) fn configure(&mut self, table: &Table) -> bool {
        let differs = *table.settings() != self.settings;
        if differs {
            self.settings.clone_from(table.settings());
            self.again(table);
        }
        differs
    }

    /// Sets which virtual servers in these networks belong to other programs.
    pub(super) fn set_foreign(&mut self, foreign: BTreeSet<Key>, table: &Table) {
        if self.foreign != foreign {
            self.foreign = foreign;
            self.again(table);
        }
    }

    /// Returns the Service ports that need a virtual server which another program has.
    pub(super) fn blocked<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = &'a Arc<ServicePortName>> {
        let all = (!self.foreign.is_empty()).then(|| table.iter()).into_iter().flatten();
        all.filter(|(_, forwarding)| !self.needs(forwarding).blocked.is_empty()).map(|(name, _)| name)
    }

    /// Returns the virtual servers of other programs that Service ports need.
    pub(super) fn blocking(&self, table: &Table) -> BTreeSet<Key> {
        let all = (!self.foreign.is_empty()).then(|| table.iter()).into_iter().flatten();
        all.flat_map(|(_, forwarding)| self.needs(&forwarding).blocked).collect()
    }

    /// Returns the Service ports that do not fit into full sets.
    pub(super) fn left_out(&self) -> impl Iterator<Item = &Arc<ServicePortName>> {
        self.left_out.iter()
    }

    /// Leaves out Service ports of the table, until they need other members of the full sets or `restore_left_out` is
    /// called. Returns true if any object is no longer needed.
    pub(super) fn leave_out(
        &mut self,
        names: impl Iterator<Item = Arc<ServicePortName>>,
        full: &BTreeSet<Set>,
        table: &Table,
    ) -> bool {
        self.full.clone_from(full);
        let mut touched = Touched::default();
        for name in names {
            if let Some(forwarding) = table.get(&name)
                && self.left_out.insert(name)
            {
                self.remove(&forwarding, &mut touched);
            }
        }
        !touched.servers.is_empty() || !touched.members.is_empty()
    }

    /// Adds the Service ports that were left out.
    pub(super) fn restore_left_out(&mut self, table: &Table) {
        self.full.clear();
        let mut touched = Touched::default();
        for name in std::mem::take(&mut self.left_out) {
            if let Some(forwarding) = table.get(&name) {
                self.add(&forwarding, &mut touched);
            }
        }
    }

    /// Returns true if these are the stored addresses of this node.
    pub(super) fn has_node_addresses(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        addresses.iter().eq(&self.node_addresses)
    }

    /// Stores the addresses of this node: sorted, without loopback addresses and those of our network device.
    pub(super) fn set_node_addresses(&mut self, addresses: Vec<IpAddr>, table: &Table) {
        if addresses != self.node_addresses {
            self.node_addresses = addresses;
            self.again(table);
        }
    }

    /// Applies changes of the table. Notes the former state of the objects that they touch.
    pub(super) fn apply(&mut self, changes: &Changes, touched: &mut Touched) {
        for change in &changes.forwardings {
            let was_left_out = self.left_out.remove(&change.name);
            if let Some(old) = change.old.as_ref().filter(|_| !was_left_out) {
                self.remove(old, touched);
            }
            let Some(new) = &change.new else { continue };
            if was_left_out && change.old.as_ref().is_some_and(|old| self.needs_same_room(old, new)) {
                self.left_out.insert(change.name.clone());
            } else {
                self.add(new, touched);
            }
        }
        for HealthCheckChange { old, new, .. } in &changes.health_checks {
            if let Some(port) = old {
                self.remove_member((Set::HealthCheckNodePort, Member::Port(*port)), touched);
            }
            if let Some(port) = new {
                self.add_member((Set::HealthCheckNodePort, Member::Port(*port)), touched);
            }
        }
    }

    /// Returns true if both need the same members of the full sets.
    fn needs_same_room(&self, one: &Arc<Forwarding>, other: &Arc<Forwarding>) -> bool {
        let [one, other] = [one, other].map(|forwarding| self.needs(forwarding).members);
        let in_full = |(set, _): &&(Set, Member)| self.full.contains(set);
        one.iter().filter(in_full).eq(other.iter().filter(in_full))
    }

    pub(super) fn server(&self, key: &Key) -> Option<&Server> {
        self.servers.get(key)?.first()
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = (&Key, &Server)> {
        self.servers.iter().filter_map(|(key, servers)| Some((key, servers.first()?)))
    }

    pub(super) fn has_member(&self, member: &(Set, Member)) -> bool {
        self.members.contains_key(member)
    }

    /// Returns the members of a set, in order.
    pub(super) fn members_of(&self, set: Set) -> impl Iterator<Item = &Member> {
        // The smallest member in the order of members.
        let first = (set, Member::Ip(IpAddr::from([0; 4])));
        self.members
            .range(first..)
            .map(|(member, _)| member)
            .take_while(move |(of, _)| *of == set)
            .map(|(_, member)| member)
    }

    /// Computes all objects from the table.
    fn again(&mut self, table: &Table) {
        self.servers.clear();
        self.members.clear();
        let mut touched = Touched::default();
        for (name, forwarding) in table.iter() {
            if !self.left_out.contains(name) {
                self.add(&forwarding, &mut touched);
                touched = Touched::default();
            }
        }
        for port in table.health_check_ports() {
            self.add_member((Set::HealthCheckNodePort, Member::Port(port)), &mut touched);
        }
    }

    /// Returns the needs of a Service port.
    pub(super) fn needs(&self, forwarding: &Arc<Forwarding>) -> Needs {
        let context = Context {
            settings: &self.settings,
            node_addresses: &self.node_addresses,
            exclude: &self.exclude,
            foreign: &self.foreign,
        };
        needs(context, forwarding)
    }

    fn add(&mut self, forwarding: &Arc<Forwarding>, touched: &mut Touched) {
        let needs = self.needs(forwarding);
        for (key, server) in needs.servers {
            self.touch(key, touched);
            let servers = self.servers.entry(key).or_default();
            let place = servers.partition_point(|other| !other.is_node_port || server.is_node_port);
            servers.insert(place, server);
        }
        for member in needs.members {
            self.add_member(member, touched);
        }
    }

    fn remove(&mut self, forwarding: &Arc<Forwarding>, touched: &mut Touched) {
        let needs = self.needs(forwarding);
        for (key, server) in needs.servers {
            self.touch(key, touched);
            if let Some(servers) = self.servers.get_mut(&key) {
                if let Some(index) = servers.iter().position(|other| other.is_same(&server)) {
                    servers.remove(index);
                }
                if servers.is_empty() {
                    self.servers.remove(&key);
                }
            }
        }
        for member in needs.members {
            self.remove_member(member, touched);
        }
    }

    fn touch(&self, key: Key, touched: &mut Touched) {
        touched.servers.entry(key).or_insert_with(|| self.server(&key).cloned());
    }

    fn add_member(&mut self, member: (Set, Member), touched: &mut Touched) {
        let count = self.members.entry(member).or_default();
        touched.members.entry(member).or_insert(*count > 0);
        *count = count.saturating_add(1);
    }

    fn remove_member(&mut self, member: (Set, Member), touched: &mut Touched) {
        let Some(count) = self.members.get_mut(&member) else { return };
        touched.members.entry(member).or_insert(true);
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.members.remove(&member);
        }
    }
}
