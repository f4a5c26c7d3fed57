//! What the IPVS mode left: virtual servers, and a network device with every cluster IP.

use portolan_model::Family;
use portolan_sock::{Protocol, Socket};
use portolan_wire::route;

use super::Error;
pub use crate::ipvs::DEVICE;
use crate::ipvs::{Kernel, device};

/// Removes the virtual servers of the IPVS mode in the network namespace of this thread, and then the device; says how
/// many there were. `None` says that there is no such device: without it, virtual servers are somebody else's.
pub(super) fn remove() -> Result<Option<usize>, Error> {
    let failed = |source| Error::Device { source };
    let mut links = Socket::open(Protocol::Route).map_err(failed)?;
    let Some(index) = device(&mut links).map_err(failed)? else { return Ok(None) };
    // The device tells whose they are, so it has to be there until they are gone.
    let mut count = 0_usize;
    for family in Family::BOTH {
        count = count.saturating_add(remove_virtual_servers(family)?);
    }
    links.query(&mut route::delete_link(index), |_| Ok(())).map_err(failed)?;
    Ok(Some(count))
}

/// Removes those of a family and answers how many there were.
fn remove_virtual_servers(family: Family) -> Result<usize, Error> {
    let failed = |source| Error::VirtualServers { source };
    let Some(mut kernel) = Kernel::open(family).map_err(failed)? else { return Ok(0) };
    let own = kernel.own().map_err(failed)?;
    kernel.remove_virtual_servers(&own).map_err(failed)?;
    match kernel.own().map_err(failed)?.len() {
        0 => Ok(own.len()),
        left => Err(Error::VirtualServersLeft { count: left }),
    }
}
