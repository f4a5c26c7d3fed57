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
use super::dataplane::Ipvs;
use super::kernel::{Kernel, device};
use super::observe::{Rows, observed};
use super::rules::{InForce, Present};
use super::set::Set;

/// Reads a family in the network namespace of this thread, as this mode or kube-proxy's IPVS mode wrote it. Returns
/// `None` if neither has written anything. No agent needs to run.
///
/// Fails if the kernel refuses a listing, if another program has made a set of another type with one of our names, or if
/// no iptables can be read.
///
/// The kernel does not hold `ipvs.excludeCIDRs`. So a virtual server that another program has in these networks, at an
/// address of our device, counts as ours; the rules refuse it unless a set of Services has its address and port.
pub fn read(family: Family) -> Result<Option<Observed>, Error> {
    let failed = Error::socket("listing network devices");
    let mut links = Socket::open(Protocol::Route).map_err(&failed)?;
    // Without the device, return before the kernel has to load its modules.
    if device(&mut links).map_err(&failed)?.is_none() {
        return Ok(None);
    }
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(None) };
    let rows = kernel.rows(&[], InForce::default())?;
    if rows.is_empty(&[]) {
        return Ok(None);
    }
    Ok(Some(observed(&Rows { rules: rules(family)?, ..rows }, &[])))
}

impl Ipvs {
    /// Reads what the kernel has in terms of Services. What the data plane has written does not matter. The addresses of
    /// node ports are those of its settings. Fails as [`read()`] does.
    pub fn observe(&mut self) -> Result<Observed, Error> {
        let rules = self.present_rules()?.in_force(self.desired.settings().family);
        let exclude = &self.options.exclude;
        let rows = self.kernel.rows(exclude, rules)?;
        let node_port_addresses = match &self.desired.settings().node_port_addresses {
            NodePortAddresses::MatchAll => rows.addresses.node.iter().copied().collect(),
            NodePortAddresses::Addresses(addresses) => addresses.clone(),
        };
        Ok(Observed { node_port_addresses: Some(node_port_addresses), ..observed(&rows, exclude) })
    }
}

impl Kernel {
    /// Reads everything but rules.
    fn rows(&mut self, exclude: &[IpNet], rules: InForce) -> Result<Rows, Error> {
        let device = self.device()?;
        // Index 0 is that of no device.
        let mut rows = Rows {
            family: self.family(),
            addresses: self.addresses(device.unwrap_or_default())?,
            local: addresses::list().map_err(Error::socket("listing addresses"))?.into_iter().collect(),
            sets: self.sets(&Set::ALL)?,
            servers: self.list_virtual_servers(|server| server)?,
            real: BTreeMap::new(),
            rules,
        };
        for key in rows.own(exclude) {
            let real = self.real_servers(&key)?;
            rows.real.insert(key, real);
        }
        Ok(rows)
    }
}

/// Returns what the rules of this mode do, in whichever iptables they are.
fn rules(family: Family) -> Result<InForce, Error> {
    let mut programs: Vec<Programs> = [Variant::Nft, Variant::Legacy]
        .into_iter()
        .filter_map(|variant| Programs::of(family, variant).ok())
        .collect();
    if programs.is_empty() {
        programs.push(Programs::find(family)?);
    }
    let (mut in_force, mut failed) = (InForce::default(), None);
    for programs in programs {
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
