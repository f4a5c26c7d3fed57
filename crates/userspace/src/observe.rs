//! Reads what the rules of a redirect capture, and joins it with what the relay has.
//!
//! The rules hold frontends and source ranges. Endpoints and session affinity are in the relay's table, which is a value
//! here: this module does not ask a relay.

use std::collections::HashSet;
use std::sync::Arc;

use portolan_iptables::{Programs, Reading};
use portolan_model::observed::{Fact, Observed, ObservedEndpoint, ObservedEndpoints};
use portolan_model::{Family, Protocol, ServicePortName};

/// What the relay has of one Service port. The default is that of a Service port that it does not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Carried {
    /// The endpoints for traffic that may go to any node.
    pub cluster: Vec<ObservedEndpoint>,
    /// The endpoints for traffic that must stay on this node.
    pub local: Vec<ObservedEndpoint>,
    /// The timeout of session affinity in seconds; `None` if there is no affinity.
    pub affinity: Option<u32>,
}

/// The relay's table: returns what the relay has of a Service port.
pub type RelayTable<'a> = dyn Fn(&ServicePortName) -> Carried + 'a;

/// Reads the rules of a redirect in the network namespace of this thread; no relay needs to run. Without the relay's
/// table, endpoints and session affinity are unknown. Returns `None` if no rules lead to a relay.
///
/// # Errors
/// The program failed, or cannot print a table.
pub fn read_redirect(
    programs: &Programs,
    family: Family,
    relay: Option<&RelayTable<'_>>,
) -> Result<Option<Observed>, portolan_iptables::Error> {
    let reading = Reading::read(programs, family)?.filter(|reading| reading.listeners.is_some());
    Ok(reading.map(|reading| joined(reading.observed, relay)))
}

/// Adds what the relay has to what the rules capture. The relay carries no SCTP, so the endpoints of such a Service port
/// stay unknown.
pub(super) fn joined(mut observed: Observed, relay: Option<&RelayTable<'_>>) -> Observed {
    let Some(relay) = relay else { return observed };
    let mut seen: HashSet<Arc<ServicePortName>> = HashSet::new();
    for port in observed.ports.iter_mut().filter(|port| port.protocol != Protocol::Sctp) {
        // Only the first entry of a Service port gets the endpoints.
        let Some(name) = port.name.clone().filter(|name| !seen.contains(name)) else { continue };
        let Carried { cluster, local, affinity } = relay(&name);
        port.endpoints =
            ObservedEndpoints::Lists { cluster: Fact::Known(cluster), local: Fact::Known(local) };
        port.affinity = Fact::Known(affinity);
        seen.insert(name);
    }
    observed
}

#[cfg(test)]
mod tests {
    use portolan_model::observed::ObservedPort;

    use super::*;

    fn entry(protocol: Protocol) -> ObservedPort {
        let [namespace, service, port] = ["default", "web", ""].map(Arc::from);
        ObservedPort {
            name: Some(Arc::new(ServicePortName { namespace, service, port, protocol })),
            protocol,
            frontends: Vec::new(),
            endpoints: ObservedEndpoints::Unknown,
            affinity: Fact::Unknown,
            source_ranges: Fact::Unknown,
        }
    }

    #[test]
    fn one_entry_of_each_service_port_gets_what_the_relay_has() {
        let unnamed = ObservedPort { name: None, ..entry(Protocol::Tcp) };
        let ports = vec![entry(Protocol::Tcp), entry(Protocol::Tcp), entry(Protocol::Sctp), unnamed];
        let observed = Observed { family: Family::Ipv4, node_port_addresses: None, ports };
        assert_eq!(joined(observed.clone(), None), observed);
        let endpoint = ObservedEndpoint::at(([10, 0, 0, 1], 80).into());
        let relay = |_: &ServicePortName| Carried {
            cluster: vec![endpoint],
            affinity: Some(60),
            ..Carried::default()
        };
        let joined = joined(observed.clone(), Some(&relay));
        let lists =
            ObservedEndpoints::Lists { cluster: Fact::Known(vec![endpoint]), local: Fact::Known(vec![]) };
        assert_eq!((&joined.ports[0].endpoints, joined.ports[0].affinity), (&lists, Fact::Known(Some(60))));
        assert_eq!(joined.ports[1..], observed.ports[1..]);
    }
}
