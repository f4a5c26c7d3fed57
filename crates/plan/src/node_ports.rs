//! Compares the addresses that accept node ports.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

use portolan_model::observed::NodePortReach;
use portolan_model::{Family, NodePortAddresses};

use crate::report::Change;

/// Returns the addresses of a family that all node ports are served at, if no address is excluded.
pub(crate) fn of_family(family: Family, addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    let is_excluded = |address: &IpAddr| {
        address.is_loopback()
            || match address {
                IpAddr::V4(address) => address.is_link_local(),
                IpAddr::V6(address) => address.is_unicast_link_local(),
            }
    };
    let own = addresses.iter().filter(|address| Family::of(**address) == family);
    own.filter(|address| !is_excluded(address)).copied().collect()
}

/// Returns what would change. `of_node` are the addresses of this node if each of them is programmed by itself: then all
/// addresses are the same as each address.
pub(crate) fn changes(
    present: &NodePortReach,
    wanted: &NodePortReach,
    of_node: Option<&BTreeSet<IpAddr>>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let is_same = match of_node {
        Some(of_node) => resolved(&present.addresses, of_node) == resolved(&wanted.addresses, of_node),
        None => present.addresses == wanted.addresses,
    };
    if !is_same {
        let (before, after) = (words(&present.addresses), words(&wanted.addresses));
        changes.push(Change::new(
            "node-port-addresses",
            format!("node ports answer {after} instead of {before}"),
        ));
    }
    if present.loopback != wanted.loopback {
        let text = match (listed(&present.loopback), listed(&wanted.loopback)) {
            (before, after) if after.is_empty() => {
                format!("node ports do not answer on loopback addresses ({before})")
            }
            (before, after) if before.is_empty() => {
                format!("node ports answer on loopback addresses ({after})")
            }
            (before, after) => {
                format!("node ports answer on the loopback addresses {after} instead of {before}")
            }
        };
        changes.push(Change::new("localhost-node-ports", text));
    }
    changes
}

/// Returns each address.
pub(crate) fn resolved(addresses: &NodePortAddresses, of_node: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    match addresses {
        NodePortAddresses::MatchAll => of_node.clone(),
        NodePortAddresses::Addresses(addresses) => addresses.iter().copied().collect(),
    }
}

fn words(addresses: &NodePortAddresses) -> String {
    match addresses {
        NodePortAddresses::MatchAll => "at every address of this node".to_owned(),
        NodePortAddresses::Addresses(addresses) if addresses.is_empty() => "at no address".to_owned(),
        NodePortAddresses::Addresses(addresses) => format!("at {}", listed(addresses)),
    }
}

fn listed(items: &[impl Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
