//! Reads what the kernel has from memory, for fuzz targets: messages of netlink, then the text of `iptables-save`.

use std::collections::BTreeMap;

use ipnet::IpNet;
use portolan_model::observed::Observed;
use portolan_model::{Family, Settings};
use portolan_wire::ipset::{IpsetEvent, Listed};
use portolan_wire::ipvs::IpvsEvent;
use portolan_wire::nfnetlink::{SUBSYSTEM_IPSET, subsystem_and_operation};
use portolan_wire::route::RouteEvent;
use portolan_wire::{Frame, Frames};

use super::device::Addresses;
use super::frontend::Key;
use super::observe::{Rows, observed};
use super::rules::{InForce, Part, Present, Rules};
use super::set::{Counts, Set, Sets};

/// The index of our network device in the messages.
const DEVICE_INDEX: u32 = 1;

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
