//! What kube-proxy's IPVS mode left: virtual servers, and a network device with every cluster IP.

use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::route::Event;
use portolan_wire::{generic, ipvs, route};

use super::{Error, consistently};

/// The network device of the IPVS mode. Its addresses make this host take in what is for cluster IPs.
pub const DEVICE: &str = "kube-ipvs0";

/// Removes all virtual servers in the network namespace of this thread, and then the device; says how many there were.
/// `None` says that there is no such device: without it, virtual servers are somebody else's.
pub(super) fn remove() -> Result<Option<usize>, Error> {
    let failed = |source| Error::Device { source };
    let mut links = Socket::open(Protocol::Route).map_err(failed)?;
    let Some(index) = index(&mut links).map_err(failed)? else { return Ok(None) };
    // The device tells whose they are, so it has to be there until they are gone.
    let virtual_servers = remove_virtual_servers()?;
    links.query(&mut route::delete_link(index), |_| Ok(())).map_err(failed)?;
    Ok(Some(virtual_servers))
}

fn index(socket: &mut Socket) -> Result<Option<u32>, SocketError> {
    consistently(|| {
        let mut found = None;
        socket.dump(&mut route::links(), |frame| {
            if let Event::NewLink(link) = Event::decode(frame)?
                && link.name == DEVICE
            {
                found = Some(link.index);
            }
            Ok(())
        })?;
        Ok(found)
    })
}

/// Removes all of them and answers how many there were.
fn remove_virtual_servers() -> Result<usize, Error> {
    let failed = |source| Error::VirtualServers { source };
    let mut socket = Socket::open(Protocol::Generic).map_err(failed)?;
    let Some(family) = family(&mut socket).map_err(failed)? else { return Ok(0) };
    let count = count(&mut socket, family).map_err(failed)?;
    if count == 0 {
        return Ok(0);
    }
    socket.query(&mut ipvs::flush(family), |_| Ok(())).map_err(failed)?;
    match self::count(&mut socket, family).map_err(failed)? {
        0 => Ok(count),
        left => Err(Error::VirtualServersLeft { count: left }),
    }
}

/// The number by which this kernel knows IPVS, if it has it.
fn family(socket: &mut Socket) -> Result<Option<u16>, SocketError> {
    let mut found = None;
    let asked = socket.query(&mut generic::family(ipvs::FAMILY), |frame| {
        if let generic::Event::NewFamily(family) = generic::Event::decode(frame)?
            && family.name == ipvs::FAMILY
        {
            found = Some(family.id);
        }
        Ok(())
    });
    match asked {
        Err(SocketError::Refused(refusal)) if refusal.errno == Errno::ENOENT => Ok(None),
        asked => asked.map(|()| found),
    }
}

fn count(socket: &mut Socket, family: u16) -> Result<usize, SocketError> {
    consistently(|| {
        let mut count = 0_usize;
        socket.dump(&mut ipvs::virtual_servers(family), |frame| {
            count = count.saturating_add(usize::from(ipvs::is_virtual_server(family, frame)?));
            Ok(())
        })?;
        Ok(count)
    })
}
