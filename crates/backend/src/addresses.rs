//! The addresses of this node's interfaces: listed, and watched for changes.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::route::{self, Event, GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS};

use crate::reading::consistently;

/// `AF_UNSPEC`: both families.
const BOTH_FAMILIES: u8 = 0;

/// A subscription to address changes, with the list of addresses.
#[derive(Debug)]
pub struct Addresses {
    events: Socket,
}

impl Addresses {
    /// Subscribes in the network namespace of this thread.
    pub fn open() -> Result<Self, SocketError> {
        let events = Socket::open(Protocol::Route)?;
        events.subscribe(&[GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS])?;
        Ok(Self { events })
    }

    /// Every address of every interface, sorted.
    pub fn list(&self) -> Result<Vec<IpAddr>, SocketError> {
        let mut socket = Socket::open(Protocol::Route)?;
        consistently(|| list(&mut socket))
    }

    /// Reads the notifications that are there now and says whether addresses came or went.
    pub fn changed(&mut self) -> Result<bool, SocketError> {
        match self.events.receive(|_| Ok(())) {
            Ok(count) => Ok(count > 0),
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
    let mut addresses = Vec::new();
    socket.dump(&mut route::addresses(BOTH_FAMILIES), |frame| {
        if let Event::NewAddress(address) = Event::decode(frame)? {
            addresses.push(address.local);
        }
        Ok(())
    })?;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}
