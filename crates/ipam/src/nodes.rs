//! The networks of all Nodes, indexed by address.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
};

use crate::{check::NodeNetworks, range::AddressRange};

#[cfg(test)]
mod tests;

/// The networks of all Nodes. Finds an address, and the addresses in a range, without a search through all Nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    networks: BTreeMap<Box<str>, NodeNetworks>,
    /// How often the Nodes list each address. Two Nodes may have the same one.
    addresses: BTreeMap<IpAddr, usize>,
}

impl Nodes {
    /// Adds a Node, or replaces the one of this name.
    pub fn set(&mut self, name: &str, networks: NodeNetworks) {
        self.remove(name);
        for address in &networks.addresses {
            let count = self.addresses.entry(address.addr()).or_default();
            *count = count.saturating_add(1);
        }
        self.networks.insert(name.into(), networks);
    }

    /// Removes a Node.
    pub fn remove(&mut self, name: &str) {
        let Some(networks) = self.networks.remove(name) else { return };
        for address in networks.addresses {
            let Entry::Occupied(mut count) = self.addresses.entry(address.addr()) else { continue };
            match count.get().checked_sub(1) {
                None | Some(0) => drop(count.remove()),
                Some(rest) => *count.get_mut() = rest,
            }
        }
    }

    /// Returns the networks of the Node with this name.
    pub fn get(&self, name: &str) -> Option<&NodeNetworks> {
        self.networks.get(name)
    }

    /// Returns all Nodes by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &NodeNetworks)> {
        self.networks.iter().map(|(name, networks)| (&**name, networks))
    }

    /// Returns true if a Node has the address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Returns the addresses of Nodes that the range could allocate.
    pub fn addresses_in(&self, range: AddressRange) -> impl Iterator<Item = IpAddr> {
        let net = range.net();
        let inside = self.addresses.range(net.network()..=net.broadcast());
        inside.map(|(address, _)| *address).filter(move |address| range.accepts(*address))
    }
}
