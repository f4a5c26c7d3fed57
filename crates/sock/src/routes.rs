//! Asks the kernel for the routes of single IPv4 packets, in the network namespace of the thread that opens [`Routes`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use portolan_wire::Request;
use portolan_wire::route::path::{self, Path};
use portolan_wire::route::{self, RouteEvent};

use crate::{Protocol, Socket, SocketError, retry_on_change};

/// A socket for questions, and the names of the interfaces.
#[derive(Debug)]
pub struct Routes {
    socket: RefCell<Socket>,
    names: BTreeMap<u32, String>,
}

/// The route of packets of this host to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Name of the interface through which the packets leave.
    pub interface: String,
    /// Their source, if the kernel chooses it.
    pub source: Option<Ipv4Addr>,
}

impl Routes {
    /// Opens a socket, and lists the interfaces.
    pub fn open() -> Result<Self, SocketError> {
        let mut socket = Socket::open(Protocol::Route)?;
        let names = retry_on_change(|| {
            let mut names = BTreeMap::new();
            socket.dump(&mut route::links(), |frame| {
                if let RouteEvent::NewLink(link) = RouteEvent::decode(frame)? {
                    names.insert(link.index, link.name);
                }
                Ok(())
            })?;
            Ok(names)
        })?;
        Ok(Self { socket: RefCell::new(socket), names })
    }

    /// Returns the route of packets of this host to a destination. `None` if there is none.
    pub fn to(&self, destination: Ipv4Addr) -> Result<Option<Route>, SocketError> {
        let Some(Path { interface, source }) = self.ask(&mut path::to(destination))? else { return Ok(None) };
        // An interface may be newer than the list.
        let interface = self.names.get(&interface).ok_or(SocketError::Interrupted)?.clone();
        Ok(Some(Route { interface, source }))
    }

    /// Returns true if the kernel would deliver or forward a packet that arrives at an interface, before rules and without a
    /// mark. `None` if there is no such interface.
    pub fn accepts(
        &self,
        interface: &str,
        source: Ipv4Addr,
        destination: Ipv4Addr,
    ) -> Result<Option<bool>, SocketError> {
        let Some((index, _)) = self.names.iter().find(|(_, name)| *name == interface) else {
            return Ok(None);
        };
        Ok(Some(self.ask(&mut path::arriving(*index, source, destination))?.is_some()))
    }

    /// Returns the kernel's answer. `None` if it refuses.
    fn ask(&self, request: &mut Request) -> Result<Option<Path>, SocketError> {
        let mut found = None;
        let asked = self.socket.borrow_mut().query(request, |frame| {
            found = Path::decode(frame)?.or(found);
            Ok(())
        });
        match asked {
            Ok(()) => Ok(found),
            Err(SocketError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
