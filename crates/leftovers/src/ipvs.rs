//! What the IPVS mode left: virtual servers, and a network device with the addresses of Services.

use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::Family;
use portolan_sock::{Protocol, Socket};
use portolan_wire::route;

use super::Error;
use super::found::{Kind, Object};
pub use portolan_ipvs::DEVICE;
use portolan_ipvs::{Kernel, Owners, device};

/// What has been removed.
pub(super) struct Gone {
    pub(super) virtual_servers: usize,
    /// False if the device stays, because it has addresses in networks of other programs.
    pub(super) device: bool,
}

/// Removes the virtual servers of the IPVS mode in the network namespace of this thread, and then the device. Returns
/// `None` if the device is missing: all virtual servers belong to other programs then. So do those in `exclude`, with
/// their addresses, unless they are noted as ours.
pub(super) fn remove(exclude: &[IpNet]) -> Result<Option<Gone>, Error> {
    let failed = |source| Error::Device { source };
    let mut links = Socket::open(Protocol::Route).map_err(failed)?;
    let Some(index) = device(&mut links).map_err(failed)? else { return Ok(None) };
    // The device decides whose virtual servers are, so it goes after them.
    let (mut virtual_servers, mut stays) = (0_usize, false);
    for family in Family::BOTH {
        if let Some(mut kernel) = Kernel::open(family).map_err(servers)? {
            let (count, is_in_use) = remove_of(&mut kernel, index, exclude).map_err(servers)?;
            virtual_servers = virtual_servers.saturating_add(count);
            stays |= is_in_use;
        }
    }
    if !stays {
        links.query(&mut route::delete_link(index), |_| Ok(())).map_err(failed)?;
    }
    for family in Family::BOTH {
        let Some(mut kernel) = Kernel::open(family).map_err(servers)? else { continue };
        match kernel.owners(exclude).map_err(servers)?.own.len() {
            0 => {}
            left => return Err(Error::VirtualServersLeft { count: left }),
        }
    }
    Ok(Some(Gone { virtual_servers, device: !stays }))
}

/// Lists what [`remove`] would remove.
pub(super) fn find(exclude: &[IpNet]) -> Result<Vec<Object>, Error> {
    let failed = |source| Error::Device { source };
    let mut links = Socket::open(Protocol::Route).map_err(failed)?;
    let Some(index) = device(&mut links).map_err(failed)? else { return Ok(Vec::new()) };
    let (mut found, mut stays) = (Vec::new(), false);
    for family in Family::BOTH {
        let Some(mut kernel) = Kernel::open(family).map_err(servers)? else {
            continue;
        };
        let owners = kernel.owners(exclude).map_err(servers)?;
        let (own, others) = split(&mut kernel, index, &owners, exclude).map_err(servers)?;
        let server = |key| Object::new(Kind::VirtualServer, Some(family), format!("{key}"));
        found.extend(owners.own.iter().map(server));
        let address =
            |address: &IpAddr| Object::new(Kind::Address, Some(family), format!("{address} on {DEVICE}"));
        found.extend(own.iter().map(address));
        stays |= !others.is_empty();
    }
    if !stays {
        found.push(Object::new(Kind::Device, None, DEVICE));
    }
    Ok(found)
}

/// Returns the addresses of the device that are removed, and those that stay because they belong to other programs.
fn split(
    kernel: &mut Kernel,
    index: u32,
    owners: &Owners,
    exclude: &[IpNet],
) -> Result<(Vec<IpAddr>, Vec<IpAddr>), portolan_ipvs::Error> {
    let is_own = |address: &IpAddr| {
        owners.noted.contains(address) || !exclude.iter().any(|cidr| cidr.contains(address))
    };
    Ok(kernel.addresses(index)?.device.into_iter().partition(is_own))
}

const fn servers(source: portolan_ipvs::Error) -> Error {
    Error::VirtualServers { source }
}

/// Removes the virtual servers of a family and, if some addresses of the device stay, the other addresses. Returns
/// the number of virtual servers, and true if addresses stay.
fn remove_of(
    kernel: &mut Kernel,
    index: u32,
    exclude: &[IpNet],
) -> Result<(usize, bool), portolan_ipvs::Error> {
    let owners = kernel.owners(exclude)?;
    kernel.remove_virtual_servers(&owners.own)?;
    let (own, others) = split(kernel, index, &owners, exclude)?;
    if !exclude.is_empty() {
        kernel.remove_addresses(index, &own)?;
    }
    Ok((owners.own.len(), !others.is_empty()))
}
