//! What a start of the agent would change on this node, without an agent: for `portolan plan`.
//!
//! Everything here reads and writes nothing. The decisions are those of the modes' drivers.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_engine::Table;
use portolan_explain::NodeView;
use portolan_leftovers::{Found, Keep, Object};
use portolan_model::catalog::PerFamily;
use portolan_model::observed::{NodePortReach, Observed};
use portolan_model::{Catalog, Change, Family};
use portolan_nftables::{CAPTURE_TABLE, CONNECTIONS_TABLE, TABLE};
use portolan_node::address::NodeAddresses;
use portolan_node::sysctl::Host;

use super::agent::health_checks::all_of_family;
use super::modes::{self, MODES, Over};
use super::packets::Configured;
use super::{node_settings, settings};

/// Objects of one place that are named one by one in a report. Of more, only the first one is named.
const NAMED: usize = 3;

/// Rules for Services that the kernel has of one family.
#[derive(Debug, Clone)]
pub struct Programmed {
    /// Who writes such rules: a mode, or kube-proxy.
    pub owner: String,
    /// What they mean.
    pub observed: Observed,
}

/// A kernel setting that a start would write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its name, as sysctl has it.
    pub name: String,
    /// The present value.
    pub present: u64,
    /// The value that would be written.
    pub wanted: u64,
}

/// This node as a start would find it.
#[derive(Debug, Clone)]
pub struct ThisNode {
    ips: NodeAddresses,
    pod_cidrs: Vec<IpNet>,
    addresses: Vec<IpAddr>,
}

impl ThisNode {
    fn facts(&self) -> settings::Node<'_> {
        settings::Node { ips: &self.ips, pod_cidrs: &self.pod_cidrs, addresses: &self.addresses }
    }
}

impl Configured {
    /// Returns the node. The Catalog has this node's Node object, if there is one. `addresses` are those of the node's
    /// interfaces.
    pub fn this_node(&self, catalog: &Catalog, addresses: Vec<IpAddr>) -> ThisNode {
        let node = catalog.node();
        let own: Vec<IpAddr> = node
            .iter()
            .flat_map(|node| node.internal_addresses.iter().chain(&node.external_addresses))
            .copied()
            .collect();
        ThisNode {
            ips: settings::node_addresses(&own, self.configuration().bind_address),
            pod_cidrs: node.map(|node| node.pod_cidrs.clone()).unwrap_or_default(),
            addresses,
        }
    }

    /// Returns the rules for Services that the kernel has of each family, of this mode first, and what could not be read. May
    /// run programs.
    pub fn all_programmed(&self) -> (PerFamily<Vec<Programmed>>, Vec<String>) {
        let (mut all, mut faults) = (PerFamily::<Vec<Programmed>>::default(), Vec::new());
        let configuration = self.configuration();
        let (own, others): (Vec<_>, Vec<_>) =
            MODES.into_iter().partition(|driver| driver.is_configured(configuration));
        for family in settings::supported_families() {
            for driver in own.iter().chain(&others) {
                let owner = format!("the {} mode", driver.mode().name());
                match driver.read(family, None) {
                    Ok(Some(observed)) => all.get_mut(family).push(Programmed { owner, observed }),
                    Ok(None) => {}
                    Err(error) => faults.push(format!("cannot read the {family} rules of {owner}: {error}")),
                }
            }
            let owner = "kube-proxy's nftables mode".to_owned();
            match portolan_nftables::read_kube_proxy(family) {
                Ok(Some(observed)) => all.get_mut(family).push(Programmed { owner, observed }),
                Ok(None) => {}
                Err(error) => faults.push(format!("cannot read the {family} rules of {owner}: {error}")),
            }
        }
        (all, faults)
    }

    /// Returns the addresses that accept node ports in a family of the node.
    pub fn node_port_reach(&self, view: &NodeView, family: Family) -> Option<NodePortReach> {
        let view = view.families.get(family).as_ref()?;
        Some(NodePortReach {
            addresses: view.settings.node_port_addresses.clone(),
            loopback: view.differences.loopback_node_ports.clone(),
        })
    }

    /// Returns what a start would write for the Services of a Catalog in a family, as lines. `over_kernel` tells whether what
    /// the kernel has stays if it is right; otherwise the kernel has nothing. May run programs.
    ///
    /// # Errors
    /// The kernel cannot be read, or the mode has no such lines.
    pub fn preview(
        &self,
        view: &NodeView,
        node: &ThisNode,
        catalog: &Catalog,
        family: Family,
        over_kernel: bool,
    ) -> Result<Vec<String>, String> {
        let Some(of_family) = view.families.get(family) else { return Ok(Vec::new()) };
        let mut table = Table::new(of_family.settings.clone());
        let new = |(name, forwarding)| Change { name, family, old: None, new: Some(forwarding) };
        table.take(catalog.forwardings(family).map(new), all_of_family(&catalog.health_checks(), family));
        let over = if over_kernel { Over::Kernel } else { Over::Nothing };
        let driver = modes::configured(self.configuration());
        driver.preview(self.configuration(), &node.facts(), &table, over).map_err(|error| error.to_string())
    }

    /// Returns the kernel settings that a start would write, and why others cannot be written.
    pub fn pending_settings(&self, node: &ThisNode) -> (Vec<Pending>, Vec<String>) {
        let (configuration, host) = (self.configuration(), Host::default());
        let mut wanted = node_settings::wanted(configuration, &host);
        wanted.extend(modes::configured(configuration).kernel_settings(configuration, &node.facts()));
        let refused = host.refusals(&wanted);
        wanted.retain(|wanted| !refused.iter().any(|refused| refused.wanted.path == wanted.path));
        let pending = host.pending(&wanted).into_iter().map(|(wanted, present)| Pending {
            name: wanted.name(),
            present,
            wanted: wanted.value,
        });
        (pending.collect(), refused.iter().map(ToString::to_string).collect())
    }

    /// Returns what a start would remove after its first commit: rules of other modes, and what kube-proxy left. Each line is
    /// one object, or some of one place. Also returns what could not be read. May run programs.
    pub fn to_be_removed(&self) -> (Vec<String>, Vec<String>) {
        let configuration = self.configuration();
        let driver = modes::configured(configuration);
        let families = settings::supported_families();
        let chains = families.iter().filter_map(|&family| driver.claims(configuration, family)).collect();
        let keep = Keep {
            chains,
            ipvs: driver.adds_addresses(),
            firewall: true,
            exclude: configuration.ipvs.exclude_cidrs.clone(),
        };
        let (mut found, errors) = portolan_leftovers::find(&keep);
        let mut faults: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let unused: Vec<&str> = [TABLE, CAPTURE_TABLE, CONNECTIONS_TABLE]
            .into_iter()
            .filter(|table| !driver.tables(configuration).contains(table))
            .collect();
        for family in families {
            if let Err(error) = portolan_leftovers::find_tables(family, &unused, &mut found) {
                faults.push(format!("our nftables tables ({family}): {error}"));
            }
        }
        let Found { objects, .. } = found;
        (summary(&objects), faults)
    }
}

/// Names objects. Of many at one place, names the first one and counts the others.
fn summary(objects: &[Object]) -> Vec<String> {
    let is_beside = |a: &Object, b: &Object| {
        (a.kind, a.family, &a.table) == (b.kind, b.family, &b.table) && a.variant == b.variant
    };
    let mut lines = Vec::new();
    for objects in objects.chunk_by(is_beside) {
        match objects {
            [first, others @ ..] if objects.len() > NAMED => {
                lines.push(format!("{first} and {} other {}s there", others.len(), first.kind.name()));
            }
            _ => lines.extend(objects.iter().map(ToString::to_string)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use portolan_leftovers::Kind;

    use super::*;

    #[test]
    fn many_objects_of_one_place_are_counted() {
        let chain = |name: &str| Object {
            table: Some("nat".to_owned()),
            ..Object::new(Kind::Chain, Some(Family::Ipv4), name)
        };
        let mut objects = vec![Object::new(Kind::Table, Some(Family::Ipv4), "kube-proxy")];
        objects.extend(["A", "B", "C"].map(chain));
        assert_eq!(
            summary(&objects),
            ["table ip kube-proxy", "chain ip nat A", "chain ip nat B", "chain ip nat C"]
        );
        objects.extend(["D", "E"].map(chain));
        assert_eq!(summary(&objects), ["table ip kube-proxy", "chain ip nat A and 4 other chains there"]);
    }
}
