//! The addresses of this node's interfaces: lists them and reports changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::{Protocol, Socket, SocketError, retry_on_change};
use portolan_wire::route::{self, GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS, RouteEvent};

/// `AF_UNSPEC`: both families.
const BOTH_FAMILIES: u8 = 0;

/// A subscription to address changes of this node.
#[derive(Debug)]
pub struct Addresses {
    events: Socket,
    /// Name of a device whose addresses do not count.
    ignored: &'static str,
    /// Index of that device. `None` if no such device is known.
    device: Option<u32>,
}

impl Addresses {
    /// Subscribes in the network namespace of this thread. Addresses of the device with the name `ignored` do not count.
    pub fn open(ignored: &'static str) -> Result<Self, SocketError> {
        let events = Socket::open(Protocol::Route)?;
        events.subscribe(&[GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS])?;
        Ok(Self { events, ignored, device: None })
    }

    /// Reads the pending notifications. Returns true if addresses were added or removed, other than those of the
    /// ignored device.
    pub fn changed(&mut self) -> Result<bool, SocketError> {
        let (device, mut others) = (self.device, BTreeSet::new());
        let received = self.events.receive(|frame| {
            if let RouteEvent::NewAddress(address) | RouteEvent::DeleteAddress(address) =
                RouteEvent::decode(frame)?
                && Some(address.index) != device
            {
                others.insert(address.index);
            }
            Ok(())
        });
        match received {
            Ok(_) if others.is_empty() => Ok(false),
            Ok(_) => {
                // The device may have been created since. If that cannot be found out now, addresses count as changed: who lists
                // them leaves out those of the device.
                let socket = Socket::open(Protocol::Route);
                let Ok(found) = socket.and_then(|mut socket| device_index(&mut socket, self.ignored)) else {
                    return Ok(true);
                };
                self.device = found.or(device);
                Ok(others.iter().any(|index| Some(*index) != self.device))
            }
            Err(SocketError::Overrun | SocketError::Truncated { .. } | SocketError::Decode(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Addresses {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_fd().as_raw_fd()
    }
}

impl AsFd for Addresses {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// Returns every address of every interface in the network namespace of this thread, sorted.
pub fn list() -> Result<Vec<IpAddr>, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    retry_on_change(|| list_but(&mut socket, None))
}

/// Returns every address but those of the device with the name `ignored`, sorted.
pub fn list_except(ignored: &str) -> Result<Vec<IpAddr>, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let device = device_index(&mut socket, ignored)?;
    retry_on_change(|| list_but(&mut socket, device))
}

/// Returns every address with the name of its device, but those of the device with the name `ignored`, sorted by address.
/// Leaves out addresses of devices that came after the list of devices was read.
pub fn list_with_devices_except(ignored: &str) -> Result<Vec<(IpAddr, String)>, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    retry_on_change(|| {
        let mut names = BTreeMap::new();
        socket.dump(&mut route::links(), |frame| {
            if let RouteEvent::NewLink(link) = RouteEvent::decode(frame)?
                && link.name != ignored
            {
                names.insert(link.index, link.name);
            }
            Ok(())
        })?;
        let mut addresses = BTreeSet::new();
        socket.dump(&mut route::addresses(BOTH_FAMILIES), |frame| {
            if let RouteEvent::NewAddress(address) = RouteEvent::decode(frame)?
                && let Some(name) = names.get(&address.index)
            {
                addresses.insert((address.local, name.clone()));
            }
            Ok(())
        })?;
        Ok(addresses.into_iter().collect())
    })
}

/// Returns the index of the network device with this name, if it exists.
pub fn device_index(socket: &mut Socket, name: &str) -> Result<Option<u32>, SocketError> {
    retry_on_change(|| {
        let mut found = None;
        socket.dump(&mut route::links(), |frame| {
            if let RouteEvent::NewLink(link) = RouteEvent::decode(frame)?
                && link.name == name
            {
                found = Some(link.index);
            }
            Ok(())
        })?;
        Ok(found)
    })
}

/// Lists the addresses of all interfaces but the one with the index `device`.
fn list_but(socket: &mut Socket, device: Option<u32>) -> Result<Vec<IpAddr>, SocketError> {
    let mut addresses = Vec::new();
    socket.dump(&mut route::addresses(BOTH_FAMILIES), |frame| {
        if let RouteEvent::NewAddress(address) = RouteEvent::decode(frame)?
            && Some(address.index) != device
        {
            addresses.push(address.local);
        }
        Ok(())
    })?;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}
