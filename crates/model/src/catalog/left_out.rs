//! Frontends that Services claim and do not get, with the reason.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::claim::Claim;
use super::compile::{Obstacle, port_name};
use super::{AddressOwner, Catalog};
use crate::object::ObjectKey;
use crate::{Family, Frontend, Protocol, ServicePortName};

/// A frontend of a Service port that the table does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The Service port that claims it.
    pub name: Arc<ServicePortName>,
    /// The frontend.
    pub frontend: Frontend,
    /// Why the Service port does not get it.
    pub why: WhyLeftOut,
}

/// Why a Service port does not get a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhyLeftOut {
    /// This node reaches the API server there.
    ApiServer,
    /// The address belongs to something else, and the guard refuses it.
    Address(AddressOwner),
    /// Another Service has it.
    Conflict(ObjectKey),
}

impl fmt::Display for WhyLeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer => f.write_str("this node reaches the API server there"),
            Self::Address(owner) => write!(f, "{owner} (addressGuard.{})", owner.name()),
            Self::Conflict(winner) => write!(f, "it belongs to Service {winner}"),
        }
    }
}

impl Catalog {
    /// Returns the frontends at an address and port that Services claim and do not get, sorted by Service. Node ports
    /// are not among them. The cost is that of the Services which claim it.
    pub fn left_out_at(&self, destination: SocketAddr, protocol: Protocol) -> Vec<LeftOut> {
        let claim = Claim::of_socket(destination, Family::of(destination.ip()), protocol);
        let compiler = self.compiler();
        let claimants = self.claims.claimants(&claim, &self.services);
        let mut left_out: Vec<LeftOut> = claimants
            .filter_map(|(rank, id, record)| {
                let why = match compiler.obstacle(id, (claim, rank))? {
                    Obstacle::ApiServer => WhyLeftOut::ApiServer,
                    Obstacle::Guard(owner) => WhyLeftOut::Address(owner),
                    Obstacle::Rival(winner) => WhyLeftOut::Conflict(self.services.get(winner)?.key()),
                };
                let mut ports = record.service.as_ref()?.ports.iter();
                let port = ports.find(|port| port.protocol == protocol && port.port == destination.port())?;
                let name = Arc::new(port_name(record, port));
                Some(LeftOut { name, frontend: claim.frontend(rank), why })
            })
            .collect();
        left_out.sort_by(|a, b| a.name.cmp(&b.name));
        left_out.dedup();
        left_out
    }
}
