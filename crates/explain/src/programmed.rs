//! What the kernel has for a packet, compared with what is wanted.

use std::net::SocketAddr;

use portolan_model::observed::{Deviation, Difference, Observed, ObservedPlace, ObservedPort};
use portolan_model::table::Entry;
use portolan_model::verdict::Decision;
use portolan_model::{Frontend, Protocol};

use crate::facts::Facts;
use crate::report::{DifferenceReport, Programmed};
use crate::resolve::Asked;

/// Returns the differences that concern a packet: those of the Service port that decides, and what the kernel has at the
/// destination although no Service wants it there.
pub(crate) fn programmed(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    table: &[Entry],
    decided_by: Option<&Decision>,
    observed: &Observed,
) -> Programmed {
    let place =
        PacketDestination { socket: asked.destination, is_this_node: facts.node.has(asked.destination.ip()) };
    let is_relevant = |difference: &Difference| {
        difference.protocol == asked.protocol
            && (is_of(difference, decided_by) || place.is_met_by(difference, observed))
            && !is_refused_sctp(asked, difference)
    };
    let differences: Vec<DifferenceReport> =
        observed.difference(table).iter().filter(|difference| is_relevant(difference)).map(report).collect();
    Programmed { as_wanted: differences.is_empty(), differences }
}

fn is_of(difference: &Difference, decided_by: Option<&Decision>) -> bool {
    decided_by.is_some_and(|decision| difference.name.as_ref() == Some(&decision.name))
}

/// Returns true for what a mode without SCTP does not program, and for what its reader leaves out.
fn is_refused_sctp(asked: &Asked<'_>, difference: &Difference) -> bool {
    asked.view.differences.refuses_sctp
        && asked.protocol == Protocol::Sctp
        && matches!(
            difference.deviation,
            Deviation::EndpointMissing { .. } | Deviation::Affinity { .. } | Deviation::ServicePortMissing
        )
}

fn report(difference: &Difference) -> DifferenceReport {
    DifferenceReport {
        service: difference.name.as_ref().map(ToString::to_string),
        code: difference.deviation.code().to_owned(),
        text: difference.deviation.to_string(),
    }
}

/// The destination of the packet.
struct PacketDestination {
    socket: SocketAddr,
    is_this_node: bool,
}

impl PacketDestination {
    /// Returns true if a frontend in the kernel catches the packet.
    fn is(&self, place: &ObservedPlace) -> bool {
        match place {
            ObservedPlace::Frontend(Frontend::NodePort(port)) => {
                *port == self.socket.port() && self.is_this_node
            }
            ObservedPlace::Frontend(frontend) => frontend.socket() == Some(self.socket),
            ObservedPlace::Address(socket) | ObservedPlace::NodePortAt(socket) => *socket == self.socket,
        }
    }

    /// Returns true if the difference is something at this place that is not wanted.
    fn is_met_by(&self, difference: &Difference, observed: &Observed) -> bool {
        match &difference.deviation {
            Deviation::FrontendExtra(place) => self.is(place),
            Deviation::ServicePortExtra => {
                let is_it = |port: &&ObservedPort| {
                    port.name == difference.name && port.protocol == difference.protocol
                };
                let mut ports = observed.ports.iter().filter(is_it);
                ports.any(|port| port.frontends.iter().any(|frontend| self.is(&frontend.place)))
            }
            _ => false,
        }
    }
}
