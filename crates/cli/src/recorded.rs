//! A snapshot in the place of a cluster, a configuration and a kernel: for `explain` and `plan`.

use std::path::Path;

use anyhow::{anyhow, ensure};
use portolan_model::catalog::{ApiServer, PerFamily};
use portolan_model::observed::Observed;
use portolan_model::{Catalog, Family};
use portolan_proxy::packets::Configured;
use portolan_snapshot::Snapshot;

use crate::objects::Objects;
use crate::snapshot::PROGRAMMED;

/// A snapshot, and what it means.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// The snapshot.
    pub(crate) snapshot: Snapshot,
    /// Its objects.
    pub(crate) objects: Objects,
    /// What was programmed, as far as it was read.
    pub(crate) programmed: PerFamily<Option<Observed>>,
}

impl Recorded {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no snapshot, or does not name its node, or this version does not know what was programmed.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let snapshot = Snapshot::read(file)?;
        ensure!(!snapshot.node.name.is_empty(), "{} does not name its node", file.display());
        let (objects, programmed) = (Objects::of_snapshot(&snapshot), programmed(&snapshot)?);
        Ok(Self { snapshot, objects, programmed })
    }

    /// Returns the Catalog of the node with this configuration, and what in the objects cannot be used.
    pub(crate) fn catalog(&self, configured: &Configured) -> (Catalog, Vec<String>) {
        let api_server = ApiServer::from(&self.snapshot.api_server);
        let (mut catalog, faults) = self.objects.catalog(&self.snapshot.node.name, configured, api_server);
        if configured.sets_aside() {
            catalog.set_aside(self.snapshot.set_aside.clone());
            catalog.drain_changes(|_| {});
        }
        (catalog, faults)
    }

    /// Returns the mode in which a family was programmed, if it is recorded: with what was programmed, or else in the state.
    pub(crate) fn mode(&self, family: Family) -> Option<&str> {
        mode(&self.snapshot, family)
    }

    /// Returns why not all that is programmed could be read; empty if all was.
    pub(crate) fn unread_programmed(&self) -> Vec<String> {
        let unread = self.snapshot.unread.iter().filter(|unread| unread.what == PROGRAMMED);
        unread.map(|unread| unread.reason.clone()).collect()
    }

    /// Returns what could not be read on the node.
    pub(crate) fn unread(&self) -> Vec<String> {
        let unread = self.snapshot.unread.iter();
        unread.map(|unread| format!("cannot read {}: {}", unread.what, unread.reason)).collect()
    }
}

fn mode(snapshot: &Snapshot, family: Family) -> Option<&str> {
    let read = snapshot.programmed.iter().find(|read| read.family == family.name());
    let lane = || snapshot.state.families.iter().find(|lane| lane.family == family.name());
    let mode = read.and_then(|read| read.mode.as_deref());
    mode.or_else(|| lane().map(|lane| lane.mode.as_str()))
}

fn programmed(snapshot: &Snapshot) -> anyhow::Result<PerFamily<Option<Observed>>> {
    let mut programmed = PerFamily::default();
    for of_family in &snapshot.programmed {
        let observed = of_family.observed().map_err(|error| anyhow!("programmed: {error}"))?;
        let family = observed.family;
        *programmed.get_mut(family) = Some(observed);
    }
    Ok(programmed)
}

#[cfg(test)]
mod tests {
    use portolan_model::table::Entry;
    use portolan_snapshot::programmed::Programmed;
    use portolan_snapshot::{FORMAT, VERSION, create};
    use serde_json::json;

    use super::*;

    /// Returns a snapshot of an agent with a Service of two endpoints, of which the first is set aside.
    fn with_one_set_aside() -> Snapshot {
        let mut snapshot = Snapshot { format: FORMAT.into(), version: VERSION, ..Snapshot::default() };
        snapshot.node.name = "n1".into();
        snapshot.set_aside = ["10.0.0.1:8080".parse().expect("a socket")].into();
        snapshot.objects = vec![
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "a", "name": "web"},
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "a", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
                },
                "addressType": "IPv4", "ports": [{"name": "", "port": 8080}],
                "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
            }),
        ];
        snapshot
    }

    /// An agent that sets none aside uses all endpoints.
    #[test]
    fn endpoints_that_were_set_aside_get_no_connections() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("s.json.gz");
        create(&file, &with_one_set_aside(), false).expect("a file");
        let recorded = Recorded::read(&file).expect("a snapshot");
        let endpoints = |mode: &str, passive: bool| {
            let mut state = recorded.snapshot.state.clone();
            state.configuration = json!({
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
                "mode": mode, "portolan": {"passiveHealthChecks": passive},
            });
            let configured = Configured::of_agent(&state).expect("a configuration");
            let (catalog, faults) = recorded.catalog(&configured);
            assert_eq!(faults, Vec::<String>::new());
            let of = |(_, forwarding): Entry| {
                forwarding.cluster.iter().map(|backend| backend.socket().to_string()).collect::<Vec<_>>()
            };
            catalog.forwardings(Family::Ipv4).flat_map(of).collect::<Vec<_>>()
        };
        let both = ["10.0.0.1:8080", "10.0.0.2:8080"];
        assert_eq!(endpoints("nftables", true), both[1..]);
        assert_eq!(endpoints("nftables", false), both);
        assert_eq!(endpoints("userspace", true), both);
    }

    #[test]
    fn the_mode_of_a_family_is_the_one_that_programmed_it() {
        let mut snapshot = Snapshot::default();
        let lanes = [("IPv4", "nftables"), ("IPv6", "iptables")];
        let lanes = lanes.map(|(family, mode)| serde_json::json!({"family": family, "mode": mode}));
        snapshot.state =
            serde_json::from_value(serde_json::json!({ "families": lanes })).expect("a state document");
        snapshot.programmed = vec![Programmed {
            family: "IPv4".into(),
            mode: Some("ipvs".into()),
            node_port_addresses: None,
            node_ports: None,
            ports: Vec::new(),
        }];
        let found = Family::BOTH.map(|family| mode(&snapshot, family));
        assert_eq!(found, [Some("ipvs"), Some("iptables")]);
    }
}
