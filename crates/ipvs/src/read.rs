//! Reads what the kernel has, to describe it in terms of Services.
//!
//! Reading changes nothing. The kernel has no snapshot of all of this: what is read while an agent writes may show a
//! part of the writes.

use std::collections::BTreeMap;

use ipnet::IpNet;
use portolan_iptables::{Programs, Variant};
use portolan_model::observed::Observed;
use portolan_model::{Family, NodePortAddresses};
use portolan_sock::{Protocol, Socket, addresses};

use super::Error;
use super::device::device;
use super::kernel::Kernel;
use super::observe::{Rows, observed};
use super::rules::{InForce, Present};

/// What the kernel does not hold, and an agent knows.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The networks whose virtual servers are those of other programs (`ipvs.excludeCIDRs`).
    pub exclude: &'a [IpNet],
    /// The addresses at which node ports are served.
    pub node_port_addresses: &'a NodePortAddresses,
    /// The iptables that has the rules. If it is not known, the rules of both count.
    pub variant: Option<Variant>,
}

/// Reads a family in the network namespace of this thread, as this mode or kube-proxy's IPVS mode wrote it. Returns
/// `None` if neither has written anything. `known` is what a running agent knows; no agent needs to run.
///
/// Fails if the kernel refuses a listing, if another program has made a set of another type with one of our names, or if
/// no iptables can be read.
///
/// Without `known`, a virtual server that another program has in the excluded networks, at an address of our device, counts as
/// ours; the rules refuse it unless a set of Services has its address and port. The addresses of node ports are then those
/// that have virtual servers.
pub fn read(family: Family, known: Option<Known<'_>>) -> Result<Option<Observed>, Error> {
    let exclude = known.map_or(&[][..], |known| known.exclude);
    let failed = Error::socket("listing network devices");
    let mut links = Socket::open(Protocol::Route).map_err(&failed)?;
    // Without the device, return before the kernel has to load its modules.
    if device(&mut links).map_err(&failed)?.is_none() {
        return Ok(None);
    }
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(None) };
    let rows = kernel.rows(exclude)?;
    if rows.is_empty(exclude) {
        return Ok(None);
    }
    let rows = Rows { rules: rules(family, known.and_then(|known| known.variant))?, ..rows };
    let observed = observed(&rows, exclude);
    let Some(Known { node_port_addresses, .. }) = known else { return Ok(Some(observed)) };
    let node_port_addresses = match node_port_addresses {
        NodePortAddresses::MatchAll => rows.addresses.node.into_iter().collect(),
        NodePortAddresses::Addresses(addresses) => addresses.clone(),
    };
    Ok(Some(Observed { node_port_addresses: Some(node_port_addresses), ..observed }))
}

impl Kernel {
    /// Reads everything but rules.
    fn rows(&mut self, exclude: &[IpNet]) -> Result<Rows, Error> {
        let device = self.device()?;
        let (sets, counts) = self.counted_sets()?;
        // Index 0 is that of no device.
        let mut rows = Rows {
            family: self.family(),
            addresses: self.addresses(device.unwrap_or_default())?,
            local: addresses::list().map_err(Error::socket("listing addresses"))?.into_iter().collect(),
            sets,
            counts,
            servers: self.list_virtual_servers(|server| server)?,
            real: BTreeMap::new(),
            rules: InForce::default(),
        };
        for key in rows.own(exclude) {
            let real = self.real_servers(&key)?;
            rows.real.insert(key, real);
        }
        Ok(rows)
    }
}

/// Returns what the rules of this mode do: those of a variant of iptables, or else in whichever they are.
fn rules(family: Family, variant: Option<Variant>) -> Result<InForce, Error> {
    let (mut in_force, mut failed) = (InForce::default(), None);
    for programs in Programs::to_read(family, variant)? {
        let mut present = Present::default();
        match programs.save(&[], |line| present.line(line)) {
            Ok(()) => in_force = in_force.or(present.in_force(family)),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        // A kernel without one of the two fails for its programs. The rules are in the other one then.
        Some(error) if in_force == InForce::default() => Err(error.into()),
        _ => Ok(in_force),
    }
}
