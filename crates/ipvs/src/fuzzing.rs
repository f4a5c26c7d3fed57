//! Writes what the kernel has to memory, and reads it, for fuzz targets: messages of netlink, then the text of `iptables-save`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_engine::table::Table;
use portolan_model::observed::Observed;
use portolan_model::{Family, IpvsScheduler, Settings};
use portolan_wire::ipset::{self, IpsetEvent, Listed, Member};
use portolan_wire::ipvs::{self, Counters, IpvsEvent, RealServer, VirtualServer};
use portolan_wire::nfnetlink::{
    Family as AnyFamily, Header, SUBSYSTEM_IPSET, message_type, subsystem_and_operation,
};
use portolan_wire::route::{self, Address, RouteEvent, Scope};
use portolan_wire::{Batch, Frame, Frames};

use super::desired::{Desired, Touched};
use super::device::Addresses;
use super::frontend::Key;
use super::observe::{Rows, observed};
use super::rules::{InForce, Part, Present, Rules};
use super::set::{Counts, Set, Sets};

/// The index of our network device in the messages.
const DEVICE_INDEX: u32 = 1;
/// The index of another device.
const OTHER_INDEX: u32 = 2;
/// The type of the messages of IPVS. The kernel chooses it.
const IPVS: u16 = 32;
/// Operation that lists sets (`IPSET_CMD_LIST` in `linux/netfilter/ipset/ip_set.h`).
const LIST: u8 = 7;
const SETNAME: u16 = 2;
const TYPENAME: u16 = 3;
const DATA: u16 = 7;
const ADT: u16 = 8;

/// Returns the messages and rules of a kernel to which a table was written, on a node with these addresses.
pub fn written(table: &Table, node: &[IpAddr]) -> (Vec<u8>, String) {
    let mut desired = Desired::new(table.settings().clone(), Vec::new());
    desired.apply(&table.all(), &mut Touched::default());
    let family = table.family();
    desired.set_node_addresses(node.iter().copied().filter(|it| Family::of(*it) == family).collect(), table);
    let mut batch = Batch::new(1);
    let mut put = |index, local| {
        let prefix = if family == Family::Ipv4 { 32 } else { 128 };
        let address = Address { index, local, peer: local, prefix, flags: 0, scope: Scope(0) };
        route::put_address(&mut batch, &address);
    };
    for address in node {
        put(OTHER_INDEX, *address);
    }
    for address in desired.members_of(Set::IpvsIps).filter_map(Member::address) {
        put(DEVICE_INDEX, address);
    }
    for set in Set::ALL {
        list(&mut batch, set, family, desired.members_of(set));
    }
    for (key, server) in desired.servers() {
        let config = server.config(IpvsScheduler::default(), &[]);
        let identity = key.identity();
        let server_of = VirtualServer {
            identity,
            scheduler: config.scheduler.name().to_owned(),
            flags: config.flags,
            timeout: config.timeout,
            counters: Counters::default(),
        };
        ipvs::new_virtual_server(&mut batch, IPVS, &server_of);
        for place in server.places() {
            ipvs::new_real_server(&mut batch, IPVS, &identity, &RealServer::new(place, 1));
        }
    }
    let (rules, present) = (Rules::new(table.settings()), Present::default());
    let rules = [Part::Before, Part::After].map(|part| rules.restore(&present, part)).concat();
    let rules = rules.lines().map(|line| line.replacen("-I ", "-A ", 1) + "\n").collect();
    (batch.bytes().unwrap_or_default().to_vec(), rules)
}

/// Writes the message with which the kernel lists a set.
fn list<'a>(batch: &mut Batch, set: Set, family: Family, members: impl Iterator<Item = &'a Member>) {
    let (header, name) = (Header::of(AnyFamily::UNSPECIFIED), set.name(family));
    let encoded = |member: &Member| {
        let mut batch = Batch::new(1);
        let add = if set.counts() { ipset::add_counting } else { ipset::add };
        add(&mut batch, &name, member);
        let frame = batch.frame(1)?;
        let mut attributes = frame.attributes("ipset", header.len()).ok()?.filter_map(Result::ok);
        attributes.find(|attribute| attribute.kind == DATA).map(|data| data.payload.to_vec())
    };
    let mut message = batch.message(message_type(SUBSYSTEM_IPSET, LIST), 0, &header);
    message.attr_str(SETNAME, &name);
    message.attr_str(TYPENAME, set.kind().name());
    message.nest(ADT, |message| {
        members.filter_map(encoded).for_each(|member| message.attr_bytes(DATA, &member));
    });
}

/// Returns what the messages and the rules mean, without and with excluded networks. Also compares the rules with those of
/// this mode.
///
/// Real servers belong to the last virtual server before them.
pub fn observe(family: Family, bytes: &[u8], exclude: &[IpNet]) -> [Observed; 2] {
    let mut present = Present::default();
    String::from_utf8_lossy(bytes).lines().for_each(|line| present.line(line));
    let rules = Rules::new(&Settings::plain(family));
    for part in [Part::Before, Part::After] {
        rules.restore(&present, part);
    }
    present.removal(|_, _| false);

    let mut reading = Reading::new(family, present.in_force(family));
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| reading.take(&frame));
    let rows = reading.rows;
    [observed(&rows, &[]), observed(&rows, exclude)]
}

/// What was read until now.
struct Reading {
    rows: Rows,
    /// The last virtual server.
    server: Option<Key>,
}

impl Reading {
    fn new(family: Family, rules: InForce) -> Self {
        let rows = Rows {
            family,
            addresses: Addresses::default(),
            local: [].into(),
            sets: Sets::new(),
            counts: Counts::new(),
            servers: BTreeMap::new(),
            real: BTreeMap::new(),
            rules,
        };
        Self { rows, server: None }
    }

    fn take(&mut self, frame: &Frame<'_>) {
        let kind = frame.header.kind;
        if subsystem_and_operation(kind).0 == SUBSYSTEM_IPSET {
            if let Ok(IpsetEvent::Set { name, members, .. }) = IpsetEvent::decode(frame) {
                self.members(&name, members);
            }
        } else if let Ok(RouteEvent::NewAddress(address)) = RouteEvent::decode(frame) {
            self.rows.local.insert(address.local);
            self.rows.addresses.add(&address, DEVICE_INDEX);
        } else {
            self.server(IpvsEvent::decode(kind, frame).ok());
        }
    }

    fn members(&mut self, name: &str, members: Vec<Listed>) {
        let family = self.rows.family;
        let Some(set) = Set::ALL.into_iter().find(|set| set.name(family) == name) else { return };
        // A set without members is there, too.
        let present = self.rows.sets.entry(set).or_default();
        for Listed { member, packets } in members {
            self.rows.counts.extend(packets.map(|packets| ((set, member), packets)));
            present.insert(member);
        }
    }

    fn server(&mut self, event: Option<IpvsEvent>) {
        match event {
            Some(IpvsEvent::VirtualServer(server)) => {
                let is_ours = |key: &Key| Family::of(key.address) == self.rows.family;
                self.server = Key::of(&server.identity).filter(is_ours);
                self.rows.servers.extend(self.server.map(|key| (key, server)));
            }
            Some(IpvsEvent::RealServer(real)) => {
                if let Some(key) = self.server {
                    self.rows.real.entry(key).or_default().push(real);
                }
            }
            _ => {}
        }
    }
}
