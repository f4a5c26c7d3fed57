//! What a mode that holds every fact reads back of a table, for tests.

use super::{
    Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend, ObservedPlace, ObservedPort,
};
use crate::table::Entry;
use crate::{Backend, Family, Forwarding, Frontend};

/// Returns what a mode that holds every fact reads back of an IPv4 table. Which addresses have node ports is not known.
pub fn precise(table: &[Entry]) -> Observed {
    Observed {
        family: Family::Ipv4,
        node_port_addresses: None,
        node_ports: Fact::Unknown,
        ports: table.iter().map(port).collect(),
    }
}

fn port((name, forwarding): &Entry) -> ObservedPort {
    let frontend = |frontend: &Frontend| ObservedFrontend::at(ObservedPlace::Frontend(*frontend));
    ObservedPort {
        name: Some(name.clone()),
        protocol: forwarding.protocol,
        frontends: forwarding.frontends.iter().map(frontend).collect(),
        endpoints: ObservedEndpoints::Lists {
            cluster: Fact::Known(list(&forwarding.cluster)),
            local: Fact::Known(list(&forwarding.local)),
        },
        affinity: Fact::Known(forwarding.affinity),
        source_ranges: Fact::Known(if has_load_balancer_ip(forwarding) {
            forwarding.source_ranges.to_vec()
        } else {
            Vec::new()
        }),
        counters: None,
    }
}

fn list(backends: &[Backend]) -> Vec<ObservedEndpoint> {
    backends.iter().map(|backend| ObservedEndpoint::at(backend.socket())).collect()
}

/// Only frontends of this kind have source ranges.
fn has_load_balancer_ip(forwarding: &Forwarding) -> bool {
    forwarding.frontends.iter().any(|frontend| matches!(frontend, Frontend::LoadBalancerIp(..)))
}
