//! What each Service port of the table has counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::compare::Owners;
use super::{Counters, Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedPort, Refused};
use crate::table::Entry;

/// What was counted of one Service port of a family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counted {
    /// All of it.
    pub total: Total,
    /// What went to each endpoint of today. Several lists of the Service port may have the same one.
    pub endpoints: BTreeMap<SocketAddr, Counters>,
}

/// The sums of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Total {
    /// What went to endpoints, also to those that are gone, if the mode counts that. `None` if the mode does not count.
    pub passed: Option<Counters>,
    /// What was refused.
    pub refused: Refused,
}

impl Observed {
    /// Returns what each Service port of the table has counted, in the order of the table. What belongs to no Service port of
    /// the table is left out.
    pub fn counted(&self, table: &[Entry]) -> Vec<Counted> {
        let owners = Owners::of(table);
        let mut parts: Vec<Vec<&ObservedPort>> = vec![Vec::new(); table.len()];
        for port in &self.ports {
            if let Some(parts) = owners.find(self, port).and_then(|index| parts.get_mut(index)) {
                parts.push(port);
            }
        }
        parts.iter().map(|parts| Counted::of(parts)).collect()
    }
}

impl Counted {
    fn of(parts: &[&ObservedPort]) -> Self {
        let mut counted = Self::default();
        for endpoint in parts.iter().flat_map(|part| endpoints(&part.endpoints)) {
            if let Some(counters) = endpoint.counters {
                let sum = counted.endpoints.entry(endpoint.at).or_default();
                *sum = sum.and(counters);
            }
        }
        let frontends = || parts.iter().flat_map(|part| &part.frontends);
        let sum = |all: &mut dyn Iterator<Item = Counters>| all.reduce(Counters::and);
        let whole = sum(&mut parts.iter().filter_map(|part| part.counters));
        let of_frontends = || sum(&mut frontends().filter_map(|frontend| frontend.counters));
        let of_endpoints = sum(&mut counted.endpoints.values().copied());
        counted.total = Total {
            passed: whole.or_else(of_frontends).or(of_endpoints),
            refused: frontends().fold(Refused::default(), |sum, frontend| sum.and(frontend.refused)),
        };
        counted
    }
}

/// Returns the endpoints of all lists.
fn endpoints(of: &ObservedEndpoints) -> Vec<ObservedEndpoint> {
    match of {
        ObservedEndpoints::Unknown => Vec::new(),
        ObservedEndpoints::Shared(endpoints) => endpoints.clone(),
        ObservedEndpoints::Lists { cluster, local } => {
            let known = |list: &Fact<Vec<ObservedEndpoint>>| match list {
                Fact::Known(list) => list.clone(),
                Fact::Unknown => Vec::new(),
            };
            [known(cluster), known(local)].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ObservedFrontend, ObservedPlace, Traffic};
    use super::*;
    use crate::{Backend, Family, Forwarding, Frontend, Protocol, ServicePortName};

    fn at(net: u8, host: u8) -> SocketAddr {
        ([10, net, 0, host], 80).into()
    }

    /// Returns the Service port of `10.96.0.NUMBER` with two endpoints.
    fn entry(number: u8) -> Entry {
        let service = format!("web-{number}");
        let [namespace, service, port] = ["demo", &service, ""].map(Arc::from);
        let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
        let backend = |host| Backend { address: at(244, host).ip(), port: 80, may_hairpin: false };
        let cluster = [1, 2].map(backend).into();
        (Arc::new(name), Arc::new(Forwarding::plain(at(96, number), Protocol::Tcp, cluster)))
    }

    fn frontend(number: u8, counters: Option<Counters>, refused: Refused) -> ObservedFrontend {
        let at = at(96, number);
        let place = ObservedPlace::Frontend(Frontend::ClusterIp(at.ip(), at.port()));
        ObservedFrontend { place, counters, refused }
    }

    fn part(name: Option<&Entry>, frontends: Vec<ObservedFrontend>, hosts: &[(u8, u64)]) -> ObservedPort {
        let endpoint = |&(host, connections): &(u8, u64)| ObservedEndpoint {
            at: at(244, host),
            counters: Some(Counters::of_connections(connections)),
        };
        ObservedPort {
            name: name.map(|(name, _)| Arc::clone(name)),
            protocol: Protocol::Tcp,
            frontends,
            endpoints: ObservedEndpoints::Shared(hosts.iter().map(endpoint).collect()),
            affinity: Fact::Unknown,
            source_ranges: Fact::Unknown,
            counters: None,
        }
    }

    fn observed(ports: Vec<ObservedPort>) -> Observed {
        Observed { family: Family::Ipv4, node_port_addresses: None, node_ports: Fact::Unknown, ports }
    }

    #[test]
    fn parts_of_a_service_port_are_added_up_by_name_and_by_frontend() {
        let table = [entry(1), entry(2)];
        let refused = |no_endpoint| Refused { no_endpoint, ..Refused::default() };
        let of = |connections, bytes| {
            Some(Counters { connections, traffic: Some(Traffic { packets: connections, bytes }) })
        };
        let read = observed(vec![
            part(None, vec![frontend(2, of(4, 40), refused(None))], &[(1, 4)]),
            part(Some(&table[0]), vec![frontend(1, of(7, 70), refused(Some(2)))], &[(1, 3), (2, 4)]),
            part(Some(&table[0]), vec![frontend(9, of(1, 10), refused(Some(3)))], &[(1, 1)]),
            part(None, vec![frontend(99, of(50, 50), refused(Some(50)))], &[(1, 50)]),
        ]);
        let [one, two] = &read.counted(&table)[..] else { panic!("one for each entry") };
        assert_eq!((one.total.passed, one.total.refused), (of(8, 80), refused(Some(5))));
        let endpoints: Vec<u64> = one.endpoints.values().map(|counters| counters.connections).collect();
        assert_eq!(endpoints, [4, 4]);
        assert_eq!((two.total.passed, two.total.refused), (of(4, 40), Refused::default()));
    }

    #[test]
    fn the_count_of_the_whole_goes_before_those_of_parts() {
        let table = [entry(1)];
        let mut port = part(Some(&table[0]), vec![frontend(1, None, Refused::default())], &[(1, 3)]);
        let total = |port: &ObservedPort| observed(vec![port.clone()]).counted(&table)[0].total.passed;
        assert_eq!(total(&port), Some(Counters::of_connections(3)), "nothing else is counted");
        port.frontends[0].counters = Some(Counters::of_connections(5));
        assert_eq!(
            total(&port),
            Some(Counters::of_connections(5)),
            "also what went to endpoints that are gone"
        );
        port.counters = Some(Counters::of_connections(9));
        assert_eq!(total(&port), Some(Counters::of_connections(9)));
        let none = observed(Vec::new()).counted(&table);
        assert_eq!(none, [Counted::default()]);
    }
}
