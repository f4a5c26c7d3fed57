//! This node: its Node object and its interface addresses, and the settings that follow from them.
//!
//! A change of either is handled like a change of the configuration: settings and data planes are derived again, and
//! what differs is handed over to the engine.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_engine::Dataplane;
use portolan_model::object::Node;
use portolan_model::{Event, Family, Settings};
use portolan_node::address::NodeAddresses;
use portolan_node::config::{Configuration, Mode};
use portolan_node::health::NodeState;
use portolan_sock::addresses;

use super::running::Plane;
use super::{Agent, Next, Running};
use crate::modes::{self, Blueprint, FoundPrograms, SharedParts};
use crate::{finding, settings};

/// The last known addresses and pod CIDRs of the Node object. If an update has no addresses or no pod CIDRs, the old
/// ones stay: a Node lacks them for a moment when it is recreated, and the old ones still describe this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnNode {
    addresses: Vec<IpAddr>,
    pod_cidrs: Vec<IpNet>,
}

impl OwnNode {
    pub(super) fn has_addresses(&self) -> bool {
        !self.addresses.is_empty()
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(super) fn pod_cidrs(&self) -> &[IpNet] {
        &self.pod_cidrs
    }

    /// Returns one address for each family. `bindAddress` of the configuration overrides the Node object.
    pub(super) fn ips(&self, configuration: &Configuration) -> NodeAddresses {
        settings::node_addresses(&self.addresses, configuration.bind_address)
    }

    /// Returns a Node object with the addresses and pod CIDRs in use where it has none.
    fn completed(&self, mut node: Node) -> Node {
        if node.internal_addresses.is_empty() && node.external_addresses.is_empty() {
            node.internal_addresses.clone_from(&self.addresses);
        }
        if node.pod_cidrs.is_empty() {
            node.pod_cidrs.clone_from(&self.pod_cidrs);
        }
        node
    }

    /// Stores the addresses and pod CIDRs of a Node object. Returns true if they changed.
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
    /// Completes this node's object before the Catalog gets it. The address guard would open if the Catalog forgot what
    /// the agent still uses.
    pub(super) fn complete_node(&self, event: &mut Event) {
        if let Event::Node(node) = event
            && *node.key.name == *self.catalog.node_name()
        {
            node.payload = self.node.completed(std::mem::take(&mut node.payload));
        }
    }

    pub(super) fn node_changed(&mut self) {
        let Some(node) = self.catalog.node() else { return };
        self.health.node(Some(NodeState { deleting: node.deleting, tainted: node.to_be_deleted }));
        self.progress.node(node);
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

    /// Reports new findings about the current configuration and Node object. A finding that is fatal at the start
    /// does not end a running proxy.
    pub(super) fn review_families(&mut self) {
        if self.running.is_none() {
            return;
        }
        let new = self.new_family_findings();
        finding::log(&new);
        if let Err(error) = finding::judge(&new) {
            tracing::error!("{error:#}; the running proxy does not end");
        }
    }

    pub(super) fn node_ips(&self) -> NodeAddresses {
        self.node.ips(&self.configuration)
    }

    /// Returns the node's addresses without those that the IPVS mode added. Returns `None` if they cannot be listed: what depends
    /// on them stays, and the caller tries again in a second.
    pub(super) fn interface_addresses(&self) -> Option<Vec<IpAddr>> {
        let listed = addresses::list_except(portolan_ipvs::DEVICE);
        if let Err(error) = &listed
            && !self.lacks.settings
            && !self.lacks.api_server
        {
            tracing::error!(%error, "the node's addresses cannot be listed; trying again every second");
        }
        listed.ok()
    }

    pub(super) fn settings(&self, addresses: &[IpAddr]) -> Vec<Settings> {
        let of_family = |&family: &Family| self.settings_of(&self.configuration, family, addresses);
        self.families.iter().map(of_family).collect()
    }

    /// Returns the settings that the configuration would have with another mode for each family. Some fields belong to a
    /// mode, and defaults of others depend on it.
    fn settings_with(&self, addresses: &[IpAddr], mode_of: impl Fn(&Plane) -> Mode) -> Vec<Settings> {
        let planes = self.running.as_ref().map(|running| running.planes.as_slice()).unwrap_or_default();
        let of_family = |&family: &Family| {
            let plane = planes.iter().find(|plane| plane.family == family);
            let mode = plane.map(&mode_of).or(self.configuration.mode);
            let configuration = Configuration { mode, ..self.configuration.clone() };
            self.settings_of(&configuration, family, addresses)
        };
        self.families.iter().map(of_family).collect()
    }

    fn settings_of(&self, configuration: &Configuration, family: Family, addresses: &[IpAddr]) -> Settings {
        let node_ips = self.node_ips();
        let node = settings::Node { ips: &node_ips, pod_cidrs: &self.node.pod_cidrs, addresses };
        let service_cidrs = self.catalog.service_cidrs(family);
        modes::configured(configuration).settings(configuration, family, &node, service_cidrs)
    }

    /// Returns the blueprints of the wanted data planes, in the order of the settings.
    pub(super) fn blueprints(&self, addresses: &[IpAddr]) -> Vec<Blueprint> {
        let node_ips = self.node_ips();
        let node = settings::Node { ips: &node_ips, pod_cidrs: &self.node.pod_cidrs, addresses };
        let of_family = |family: &Family| {
            let blueprint = Blueprint::new(&self.configuration, *family, &node);
            // While the process stops, a data plane that captures for a relay is replaced by one that does not. Other
            // modes stay, even if relays of an earlier mode are draining.
            if self.on_relays_drained.is_some() { blueprint.without_relay() } else { blueprint }
        };
        self.families.iter().map(of_family).collect()
    }

    /// Derives the settings and data planes again from the configuration, the node and its addresses. Hands over what
    /// differs. A data plane that calls programs waits for the search for them, and this function is called again then.
    /// Meanwhile the current data plane of its family gets the new settings of its own mode.
    pub(super) fn reconfigure(&mut self) {
        if self.running.is_none() {
            return;
        }
        let addresses = self.interface_addresses();
        self.lacks.settings = addresses.is_none();
        let Some(addresses) = addresses else { return };
        let (mut new, blueprints) = (self.settings(&addresses), self.blueprints(&addresses));
        let of_planned_modes = self.settings_with(&addresses, |plane| plane.blueprint.mode());
        let of_current_modes = self.settings_with(&addresses, |plane| plane.mode);
        let Some(running) = &mut self.running else { return };
        self.lacks.dataplane = false;
        let searched = running.needs_programs(&new, &blueprints).then(|| self.search.take());
        let is_searching = matches!(searched, Some(None));
        let mut programs = searched.flatten().unwrap_or_default();
        let (mut replacements, mut of_other_mode) = (Vec::new(), Vec::new());
        let of_modes = of_planned_modes.into_iter().zip(of_current_modes);
        for ((settings, (of_planned_mode, of_current_mode)), blueprint) in
            new.iter_mut().zip(of_modes).zip(blueprints)
        {
            let (family, wanted) = (settings.family, blueprint.mode());
            let step = if running.has_plane_of(family, &blueprint) {
                Step::Keep
            } else if running.is_held_back(&blueprint) || (is_searching && blueprint.calls_programs()) {
                Step::Wait
            } else {
                let programs = programs.get_mut(family).take();
                running.successor(settings, blueprint, programs, &mut self.shared)
            };
            self.lacks.dataplane |= matches!(step, Step::Retry);
            if matches!(step, Step::Wait | Step::Retry) {
                *settings = of_planned_mode;
                of_other_mode.extend(running.has_other_mode(family, wanted).then_some(family));
            }
            let is_new = !running.settings.contains(settings);
            // The data plane that runs until another mode takes over has its own settings.
            let of_current = if running.changes_mode(family) { of_current_mode } else { settings.clone() };
            let is_new_for_current = running.note_sent(family, &of_current);
            match step {
                Step::Replace(dataplane) => {
                    if running.changes_mode(family) && is_new_for_current {
                        running.engine.configure(of_current);
                    }
                    replacements.push((settings.clone(), dataplane));
                }
                Step::Keep | Step::Wait | Step::Retry if is_new || is_new_for_current => {
                    tracing::info!(%family, "settings changed: comparing everything");
                    running.engine.configure_both(of_current, settings.clone());
                }
                Step::Keep | Step::Wait | Step::Retry => {}
            }
        }
        running.settings = new;
        self.configure_flows(&addresses);
        // A warning about too little memory comes before the rules are loaded.
        self.review_memory();
        if let Some(running) = &self.running {
            for (settings, dataplane) in replacements {
                let family = settings.family;
                tracing::info!(%family, mode = dataplane.about().mode, "another data plane takes over: writing its rules");
                running.engine.replace_with(settings, dataplane);
            }
        }
        self.move_health_checks(&addresses, &of_other_mode);
    }
}

/// What happens to a family's current data plane.
enum Step {
    /// It is the wanted one.
    Keep,
    /// This one replaces it.
    Replace(Box<dyn Dataplane + Send>),
    /// It stays until the wanted one can be created.
    Wait,
    /// It stays, because the wanted one could not be created. The creation is retried.
    Retry,
}

impl Running {
    /// Returns true if a family's data plane has this blueprint.
    fn has_plane_of(&self, family: Family, blueprint: &Blueprint) -> bool {
        self.planes.iter().any(|plane| plane.family == family && plane.blueprint == *blueprint)
    }

    /// Returns true if a family's data plane is of another mode.
    fn has_other_mode(&self, family: Family, mode: Mode) -> bool {
        self.planes.iter().any(|plane| plane.family == family && plane.blueprint.mode() != mode)
    }

    /// Notes which settings a family's current data plane has, once they are sent. Returns true if it did not have them.
    fn note_sent(&mut self, family: Family, settings: &Settings) -> bool {
        let Some(plane) = self.planes.iter_mut().find(|plane| plane.family == family) else { return false };
        let is_new = plane.settings != *settings;
        plane.settings = settings.clone();
        is_new
    }

    /// Returns true if a data plane of another mode is to replace that of a family.
    fn changes_mode(&self, family: Family) -> bool {
        self.planes.iter().any(|plane| plane.family == family && plane.changes_mode())
    }

    /// Returns true if a data plane has to wait for the removal of kube-proxy's leftovers, which would also remove its
    /// rules.
    fn is_held_back(&self, blueprint: &Blueprint) -> bool {
        self.removes_leftovers && blueprint.has_names_of_kube_proxy()
    }

    /// Returns true if one of the data planes that are to be created calls programs of iptables.
    fn needs_programs(&self, settings: &[Settings], blueprints: &[Blueprint]) -> bool {
        let mut wanted = settings.iter().zip(blueprints);
        wanted.any(|(settings, blueprint)| {
            blueprint.calls_programs()
                && !self.is_held_back(blueprint)
                && !self.has_plane_of(settings.family, blueprint)
        })
    }

    /// Creates the data plane that replaces a family's current one.
    fn successor(
        &mut self,
        settings: &Settings,
        blueprint: Blueprint,
        programs: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Step {
        let family = settings.family;
        let Some(plane) = self.planes.iter_mut().find(|plane| plane.family == family) else {
            return Step::Keep;
        };
        match blueprint.make(settings.clone(), programs, shared) {
            Ok(modes::Made { dataplane, own }) => {
                let claims = dataplane.about().claims;
                let former = std::mem::replace(&mut plane.claims, claims);
                plane.next.push(Next { mode: blueprint.mode(), settings: settings.clone(), own });
                plane.blueprint = blueprint;
                self.note_former(former);
                Step::Replace(dataplane)
            }
            Err(error) => {
                tracing::error!(%family, %error, "the data plane stays as it is; trying again every second");
                Step::Retry
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
    fn a_node_without_addresses_and_pod_cidrs_keeps_the_last_ones() {
        let mut own = OwnNode::default();
        assert!(own.take(&node(&["192.0.2.1"], &["198.51.100.1"], &["10.0.0.0/24"])));
        assert!(!own.take(&node(&["192.0.2.1"], &["198.51.100.1"], &["10.0.0.0/24"])));
        assert!(!own.take(&node(&[], &[], &[])));
        assert!(own.has_addresses() && own.pod_cidrs().len() == 1);
        let in_use = node(&["192.0.2.1", "198.51.100.1"], &[], &["10.0.0.0/24"]);
        assert_eq!(own.completed(Node::default()), in_use);
        assert_eq!(
            own.completed(node(&[], &["192.0.2.9"], &[])),
            node(&[], &["192.0.2.9"], &["10.0.0.0/24"])
        );
        assert!(own.take(&node(&[], &["198.51.100.1"], &[])));
        assert!(own.take(&node(&[], &[], &["10.0.1.0/24"])));
    }
}
