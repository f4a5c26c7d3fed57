//! This node: what its Node object and its interfaces say, and what has to follow when they say something else.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_backend::Dataplane;
use portolan_backend::addresses::Addresses;
use portolan_model::object::Node;
use portolan_model::{Family, Settings};
use portolan_node::address::NodeAddresses;
use portolan_node::config::Configuration;
use portolan_node::health::NodeState;

use super::{Agent, Next, Running};
use crate::proxy::modes::{self, Blueprint, Shared};
use crate::proxy::{checks, settings};

/// What the Node object said last. A Node without addresses or pod CIDRs has lost them for a moment, as when it
/// is made anew: what it had before still describes what is on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnNode {
    addresses: Vec<IpAddr>,
    pod_cidrs: Vec<IpNet>,
}

impl OwnNode {
    pub(super) fn has_addresses(&self) -> bool {
        !self.addresses.is_empty()
    }

    pub(super) fn pod_cidrs(&self) -> &[IpNet] {
        &self.pod_cidrs
    }

    /// One address of each family, after the configuration had its say.
    pub(super) fn ips(&self, configuration: &Configuration) -> NodeAddresses {
        settings::node_addresses(&self.addresses, configuration.bind_address)
    }

    /// Takes the object in; says whether anything is different.
    fn take(&mut self, node: &Node) -> bool {
        let before = self.clone();
        let addresses: Vec<IpAddr> =
            node.internal_addresses.iter().chain(&node.external_addresses).copied().collect();
        if !addresses.is_empty() {
            self.addresses = addresses;
        }
        if !node.pod_cidrs.is_empty() {
            self.pod_cidrs.clone_from(&node.pod_cidrs);
        }
        *self != before
    }
}

impl Agent {
    pub(super) fn node_changed(&mut self) {
        let Some(node) = self.catalog.node() else { return };
        self.health.node(Some(NodeState { deleting: node.deleting, tainted: node.to_be_deleted }));
        let before = self.node.clone();
        if !self.node.take(node) {
            return;
        }
        if self.running.is_some() {
            let (addresses, pod_cidrs) = (&self.node.addresses, &self.node.pod_cidrs);
            tracing::info!(?addresses, ?pod_cidrs, ?before, "the Node's addresses or pod CIDRs changed");
        }
        self.review_families();
        self.reconfigure();
    }

    /// Tells what the configuration and the Node object, as they are now, leave to be desired. What would keep the
    /// proxy from starting does not end one that runs.
    pub(super) fn review_families(&mut self) {
        if self.running.is_none() {
            return;
        }
        let new = self.new_family_findings();
        checks::log(&new);
        if let Err(error) = checks::judge(&new) {
            tracing::error!("{error:#}; it goes on as well as it can");
        }
    }

    pub(super) fn node_ips(&self) -> NodeAddresses {
        self.node.ips(&self.configuration)
    }

    /// The node's addresses without those that the IPVS mode gave it, or nothing where they cannot be listed now: then what
    /// runs stays, and it is tried again.
    pub(super) fn interface_addresses(&mut self) -> Option<Vec<IpAddr>> {
        let listed = Addresses::open().and_then(|addresses| addresses.list_own());
        if let Err(error) = &listed
            && !self.addresses_unknown
        {
            tracing::error!(%error, "the node's addresses cannot be listed; trying again every second");
        }
        self.addresses_unknown = listed.is_err();
        listed.ok()
    }

    pub(super) fn settings(&self, addresses: &[IpAddr]) -> Vec<Settings> {
        let node_ips = self.node_ips();
        let of_family = |&family: &Family| {
            let cidrs = self.catalog.service_cidrs(family);
            let node = settings::Node { ips: &node_ips, pod_cidrs: &self.node.pod_cidrs, addresses };
            settings::settings(&self.configuration, family, &node, cidrs)
        };
        self.families.iter().map(of_family).collect()
    }

    /// The data planes that are wanted, in the order of the settings.
    pub(super) fn blueprints(&self, addresses: &[IpAddr]) -> Vec<Blueprint> {
        let node_ips = self.node_ips();
        let node = settings::Node { ips: &node_ips, pod_cidrs: &self.node.pod_cidrs, addresses };
        let of_family = |family: &Family| {
            match Blueprint::new(&self.configuration, *family, &node) {
                // Relays of an earlier mode may be there as well: the mode that runs needs no other in its place.
                blueprint if self.leaving.is_some() && blueprint.captures() => {
                    Blueprint::without_relay(&self.configuration, *family, &node)
                }
                blueprint => blueprint,
            }
        };
        self.families.iter().map(of_family).collect()
    }

    /// Derives anew what depends on the configuration, the node and its addresses, and hands over what became
    /// different.
    pub(super) fn reconfigure(&mut self) {
        if self.running.is_none() {
            return;
        }
        let Some(addresses) = self.interface_addresses() else { return };
        let (new, blueprints) = (self.settings(&addresses), self.blueprints(&addresses));
        let Some(running) = &mut self.running else { return };
        self.lacks_dataplane = false;
        let mut replacements = Vec::new();
        for (settings, blueprint) in new.iter().zip(blueprints) {
            let is_new = !running.settings.contains(settings);
            if is_new {
                running.flows.requests().configure(settings.family, settings.node_port_addresses.clone());
            }
            // It would be removed with what kube-proxy left, by whoever is about it.
            let waits = running.removes_leftovers && blueprint.has_names_of_kube_proxy();
            let replaced = if waits {
                Replaced::Unchanged
            } else {
                running.successor(settings, blueprint, &mut self.shared)
            };
            match replaced {
                Replaced::Unchanged if is_new => {
                    tracing::info!(family = %settings.family, "settings changed: comparing everything");
                    running.engine.configure(settings.clone());
                }
                Replaced::Unchanged => {}
                Replaced::By(dataplane) => replacements.push((settings.family, dataplane)),
                Replaced::Failed => self.lacks_dataplane = true,
            }
        }
        running.settings = new;
        // Where memory is short, that is told before rules are loaded.
        self.review_memory();
        if let Some(running) = &self.running {
            for (family, dataplane) in replacements {
                tracing::info!(%family, mode = dataplane.mode(), "another data plane is to do the work: writing its rules");
                running.engine.replace(family, dataplane);
            }
        }
        self.move_health_checks(&addresses);
    }
}

/// What is to become of the data plane of a family.
enum Replaced {
    /// The one there is is the one that is wanted.
    Unchanged,
    /// This one is to take its place.
    By(Box<dyn Dataplane + Send>),
    /// The other one could not be made.
    Failed,
}

impl Running {
    /// Makes the data plane that is to take the place of a family's, if another one is wanted.
    fn successor(&mut self, settings: &Settings, blueprint: Blueprint, shared: &mut Shared) -> Replaced {
        let family = settings.family;
        let plane = self.planes.iter_mut().find(|plane| plane.family == family);
        let Some(plane) = plane.filter(|plane| plane.blueprint != blueprint) else {
            return Replaced::Unchanged;
        };
        match blueprint.make(settings.clone(), shared) {
            Ok(modes::Made { dataplane, own, chains }) => {
                (plane.blueprint, plane.chains, plane.next) = (blueprint, chains, Some(Next { own }));
                Replaced::By(dataplane)
            }
            Err(error) => {
                tracing::error!(%family, %error, "the data plane stays as it is; trying again every second");
                Replaced::Failed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(internal: &[&str], external: &[&str], pod_cidrs: &[&str]) -> Node {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("an address")).collect();
        Node {
            internal_addresses: ips(internal),
            external_addresses: ips(external),
            pod_cidrs: pod_cidrs.iter().map(|text| text.parse().expect("a CIDR")).collect(),
            ..Node::default()
        }
    }

    #[test]
    fn a_node_that_lost_everything_is_as_it_was() {
        let mut own = OwnNode::default();
        assert!(own.take(&node(&["192.0.2.1"], &["198.51.100.1"], &["10.0.0.0/24"])));
        assert!(!own.take(&node(&["192.0.2.1"], &["198.51.100.1"], &["10.0.0.0/24"])));
        assert!(!own.take(&node(&[], &[], &[])));
        assert!(own.has_addresses() && own.pod_cidrs().len() == 1);
        assert!(own.take(&node(&[], &["198.51.100.1"], &[])));
        assert!(own.take(&node(&[], &[], &["10.0.1.0/24"])));
    }
}
