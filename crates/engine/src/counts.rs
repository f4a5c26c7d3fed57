//! Numbers of what is in a [`Table`](crate::Table).
//!
//! The table adds and subtracts them with each change, so that reading them costs nothing, whatever the number of Services.

use portolan_model::{Backend, Forwarding};

/// How much a table holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Services with at least one Service port in the table.
    pub services: usize,
    /// Service ports.
    pub service_ports: usize,
    /// Frontends of all Service ports.
    pub frontends: usize,
    /// Endpoints in use, counted once for each Service port that uses them.
    pub endpoints: usize,
    /// Of these, the ones to which traffic with policy Cluster goes.
    pub cluster_endpoints: usize,
    /// Of these, the ones to which traffic with policy Local goes.
    pub local_endpoints: usize,
    /// Service ports without a usable endpoint on any node. Their clients are refused.
    pub without_endpoints: usize,
}

/// Returns the endpoints of a Service port, each once, and whether policy Cluster and policy Local use it.
pub fn endpoints(forwarding: &Forwarding) -> impl Iterator<Item = (&Backend, bool, bool)> {
    let has = |list: &[Backend], backend: &Backend| {
        list.binary_search_by_key(&(backend.address, backend.port), |at| (at.address, at.port)).is_ok()
    };
    let cluster =
        forwarding.cluster.iter().map(move |backend| (backend, true, has(&forwarding.local, backend)));
    let local = forwarding.local.iter().filter(move |backend| !has(&forwarding.cluster, backend));
    cluster.chain(local.map(|backend| (backend, false, true)))
}

impl Counts {
    /// Returns the numbers of one Service port. `services` is 0: a Service is counted once, however many ports it has.
    pub(crate) fn of(forwarding: &Forwarding) -> Self {
        Self {
            services: 0,
            service_ports: 1,
            frontends: forwarding.frontends.len(),
            endpoints: endpoints(forwarding).count(),
            cluster_endpoints: forwarding.cluster.len(),
            local_endpoints: forwarding.local.len(),
            without_endpoints: usize::from(!forwarding.has_endpoints),
        }
    }

    /// Adds a Service port.
    pub(crate) fn add(&mut self, forwarding: &Forwarding) {
        self.merge(Self::of(forwarding), usize::saturating_add);
    }

    /// Subtracts a Service port that was added.
    pub(crate) fn subtract(&mut self, forwarding: &Forwarding) {
        self.merge(Self::of(forwarding), usize::saturating_sub);
    }

    fn merge(&mut self, other: Self, merged: impl Fn(usize, usize) -> usize) {
        *self = Self {
            services: merged(self.services, other.services),
            service_ports: merged(self.service_ports, other.service_ports),
            frontends: merged(self.frontends, other.frontends),
            endpoints: merged(self.endpoints, other.endpoints),
            cluster_endpoints: merged(self.cluster_endpoints, other.cluster_endpoints),
            local_endpoints: merged(self.local_endpoints, other.local_endpoints),
            without_endpoints: merged(self.without_endpoints, other.without_endpoints),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use portolan_model::{Change, Family, Frontend, Protocol, ServicePortName, Settings};
    use proptest::collection::{btree_set, vec};
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::Table;

    fn backend(last: u8) -> Backend {
        Backend { address: [10, 0, 0, last].into(), port: 80, may_hairpin: false }
    }

    fn forwarding(cluster: &BTreeSet<u8>, local: &BTreeSet<u8>, frontends: u16) -> Forwarding {
        let list = |numbers: &BTreeSet<u8>| numbers.iter().map(|&number| backend(number)).collect();
        let plain = Forwarding::plain(([10, 96, 0, 1], 80).into(), Protocol::Tcp, list(cluster));
        let frontends = (0..frontends).map(Frontend::NodePort).collect();
        Forwarding { frontends, local: list(local), has_endpoints: !cluster.is_empty(), ..plain }
    }

    /// Counts everything in a table.
    fn recount(table: &Table) -> Counts {
        let mut counts = Counts::default();
        let mut services = BTreeSet::new();
        for (name, forwarding) in table.iter() {
            services.insert((name.namespace.clone(), name.service.clone()));
            let all: BTreeSet<_> = forwarding.cluster.iter().chain(&forwarding.local).collect();
            counts.service_ports += 1;
            counts.frontends += forwarding.frontends.len();
            counts.endpoints += all.len();
            counts.cluster_endpoints += forwarding.cluster.len();
            counts.local_endpoints += forwarding.local.len();
            counts.without_endpoints += usize::from(forwarding.cluster.is_empty());
        }
        Counts { services: services.len(), ..counts }
    }

    fn a_forwarding() -> impl Strategy<Value = Arc<Forwarding>> {
        (btree_set(0..6_u8, 0..5), btree_set(0..6_u8, 0..5), 0..4_u16)
            .prop_map(|(cluster, local, frontends)| Arc::new(forwarding(&cluster, &local, frontends)))
    }

    /// Returns a change of one of 24 Service ports of 6 Services.
    fn a_change() -> impl Strategy<Value = Change> {
        let one_of = |texts: &'static [&'static str]| prop::sample::select(texts);
        let name = (one_of(&["a", "a-b"]), one_of(&["x", "x-1", "y"]), one_of(&["", "http"]), any::<bool>());
        let is_ours = prop::bool::weighted(0.9);
        (name, is_ours, option::of(a_forwarding())).prop_map(
            |((namespace, service, port, is_tcp), is_ours, new)| {
                let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
                let (namespace, service, port) = (namespace.into(), service.into(), port.into());
                let name = Arc::new(ServicePortName { namespace, service, port, protocol });
                let family = if is_ours { Family::Ipv4 } else { Family::Ipv6 };
                Change { name, family, old: None, new }
            },
        )
    }

    proptest! {
        #[test]
        fn the_counters_equal_a_recount(batches in vec(vec(a_change(), 0..4), 0..24)) {
            let mut table = Table::new(Settings::plain(Family::Ipv4));
            for batch in batches {
                let before = (table.clone(), recount(&table));
                table.take(batch, []);
                prop_assert_eq!(table.counts(), recount(&table));
                prop_assert_eq!(before.0.counts(), before.1, "a clone keeps its numbers");
                let entries = table.iter().map(|(name, forwarding)| (name.clone(), forwarding));
                let again = Table::with(Settings::plain(Family::Ipv4), entries);
                prop_assert_eq!(again.counts(), table.counts());
                prop_assert!(again.iter().eq(table.iter()));
            }
        }
    }

    #[test]
    fn each_endpoint_is_there_once() {
        let forwarding = forwarding(&[1, 2].into(), &[2, 3].into(), 1);
        let found: Vec<_> =
            endpoints(&forwarding).map(|(at, cluster, local)| (*at, cluster, local)).collect();
        assert_eq!(found, [(backend(1), true, false), (backend(2), true, true), (backend(3), false, true)]);
    }
}
