//! The first load of a table, piece by piece.

use std::sync::Arc;

use portolan_model::{NodePortAddresses, ServicePortName};

use super::changeset::{Changeset, comment_for};
use super::content;
use super::element::Element;
use super::planner::Planner;
use portolan_engine::table::Table;

/// Number of Service ports in a piece.
const PIECE: usize = 2_048;

/// Yields every element that a table should have, in pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    shared: bool,
    /// The last Service port of the last piece.
    last: Option<Arc<ServicePortName>>,
}

impl Pieces {
    /// Returns the next piece, or `None` after the last. Planner and table must not change between two pieces.
    pub(super) fn next(&mut self, planner: &Planner, table: &Table) -> Option<Changeset> {
        let mut changes = Changeset::default();
        if !self.shared {
            self.shared = true;
            shared_elements(planner, |element| changes.add(&element, ""));
            return Some(changes);
        }
        let mut last = None;
        for (name, forwarding) in table.iter_after(self.last.as_ref()).take(PIECE) {
            let comment = name.to_string();
            for element in planner.elements_of(name, &forwarding) {
                changes.add(&element, comment_for(element.set, &comment));
            }
            last = Some(name);
        }
        let last = last.cloned();
        last.is_some().then(|| {
            self.last = last;
            changes
        })
    }
}

/// Passes every element that belongs to no single Service port to `take`.
pub(super) fn shared_elements(planner: &Planner, mut take: impl FnMut(Element)) {
    for address in planner.cluster_ips.iter() {
        take(content::cluster_ip_element(address));
    }
    for (protocol, socket) in planner.hairpins.iter() {
        take(content::hairpin_element(protocol, socket));
    }
    if let NodePortAddresses::Addresses(addresses) = &planner.settings.node_port_addresses {
        for &address in addresses {
            take(content::node_port_ip_element(address));
        }
    }
}
