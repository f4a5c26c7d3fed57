//! The addresses of this node's interfaces: lists them and reports changes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::route::{self, Event, GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS};

use crate::ipvs;
use crate::reading::retry_on_change;

/// `AF_UNSPEC`: both families.
const BOTH_FAMILIES: u8 = 0;

/// A subscription to address changes of this node.
#[derive(Debug)]
pub struct Addresses {
    events: Socket,
    /// Index of the device to which the IPVS mode adds the addresses of Services. `None` if no such device is known.
    device: Option<u32>,
}

impl Addresses {
    /// Subscribes in the network namespace of this thread.
    pub fn open() -> Result<Self, SocketError> {
        let events = Socket::open(Protocol::Route)?;
        events.subscribe(&[GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS])?;
        Ok(Self { events, device: None })
    }

    /// Returns every address of every interface, sorted.
    pub fn list(&self) -> Result<Vec<IpAddr>, SocketError> {
        let mut socket = Socket::open(Protocol::Route)?;
        retry_on_change(|| list(&mut socket))
    }

    /// Returns every address except those that the IPVS mode added to this node for Services, sorted.
    pub fn list_own(&self) -> Result<Vec<IpAddr>, SocketError> {
        let mut socket = Socket::open(Protocol::Route)?;
        let device = ipvs::device(&mut socket)?;
        retry_on_change(|| list_but(&mut socket, device))
    }

    /// Reads the pending notifications. Returns true if addresses were added or removed, other than those that the
    /// IPVS mode adds to this node for Services.
    pub fn changed(&mut self) -> Result<bool, SocketError> {
        let (device, mut others) = (self.device, BTreeSet::new());
        let received = self.events.receive(|frame| {
            if let Event::NewAddress(address) | Event::DeleteAddress(address) = Event::decode(frame)?
                && Some(address.index) != device
            {
                others.insert(address.index);
            }
            Ok(())
        });
        match received {
            Ok(_) if others.is_empty() => Ok(false),
            Ok(_) => {
                // The device may have been created since.
                let found = ipvs::device(&mut Socket::open(Protocol::Route)?)?;
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

fn list(socket: &mut Socket) -> Result<Vec<IpAddr>, SocketError> {
    list_but(socket, None)
}

/// Lists the addresses of all interfaces but the one with the index `device`.
fn list_but(socket: &mut Socket, device: Option<u32>) -> Result<Vec<IpAddr>, SocketError> {
    let mut addresses = Vec::new();
    socket.dump(&mut route::addresses(BOTH_FAMILIES), |frame| {
        if let Event::NewAddress(address) = Event::decode(frame)?
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
