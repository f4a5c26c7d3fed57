//! Asks the kernel for the routes of single packets, in the network namespace of the thread that opens [`Routes`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use portolan_wire::Request;
use portolan_wire::route::path::{self, Path};
use portolan_wire::route::policy::{self, MarkRule};
use portolan_wire::route::{self, RouteEvent};

use crate::{Errno, Protocol, Refusal, Socket, SocketError, retry_on_change};

/// A socket for questions, and the interfaces.
#[derive(Debug)]
pub struct Routes {
    socket: RefCell<Socket>,
    links: BTreeMap<u32, Link>,
}

/// An interface.
#[derive(Debug)]
struct Link {
    name: String,
    has_carrier: bool,
}

/// Returns true if the kernel would deliver packets of this host for this address to this host: one of its interfaces has the
/// address. The kernel looks up one route.
pub fn is_local(address: IpAddr) -> Result<bool, SocketError> {
    let mut is_local = false;
    let asked = Socket::open(Protocol::Route)?.query(&mut path::of(address), |frame| {
        is_local |= path::is_local(frame);
        Ok(())
    });
    match asked {
        Ok(()) => Ok(is_local),
        Err(SocketError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What the kernel does with a packet by its routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lead {
    /// It delivers the packet to this host.
    Here,
    /// It sends the packet through an interface.
    Through {
        /// Name of the interface.
        interface: String,
        /// True if the interface has a carrier. Without, it drops what it is to send.
        has_carrier: bool,
    },
    /// It does not route the packet. ENETUNREACH means that there is no route; EHOSTUNREACH, EACCES and EINVAL are those of
    /// routes of the types `unreachable`, `prohibit` and `blackhole`.
    Refused(Errno),
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
        let links = retry_on_change(|| {
            let mut links = BTreeMap::new();
            socket.dump(&mut route::links(), |frame| {
                if let RouteEvent::NewLink(link) = RouteEvent::decode(frame)? {
                    let has_carrier = link.flags & route::IFF_LOWER_UP != 0;
                    links.insert(link.index, Link { name: link.name, has_carrier });
                }
                Ok(())
            })?;
            Ok(links)
        })?;
        Ok(Self { socket: RefCell::new(socket), links })
    }

    /// Returns the route of packets of this host to a destination. `None` if there is none.
    pub fn to(&self, destination: Ipv4Addr) -> Result<Option<Route>, SocketError> {
        let Some(Path { interface, source }) = self.ask(&mut path::to(destination))? else { return Ok(None) };
        // An interface may be newer than the list.
        let interface = self.links.get(&interface).ok_or(SocketError::Interrupted)?.name.clone();
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
        let Some((index, _)) = self.links.iter().find(|(_, link)| link.name == interface) else {
            return Ok(None);
        };
        Ok(Some(self.ask(&mut path::arriving(*index, source, destination))?.is_some()))
    }

    /// Returns what the kernel does with a packet of this host by its routes, before rules and without a mark.
    pub fn lead(&self, destination: IpAddr) -> Result<Lead, SocketError> {
        let (mut interface, mut is_here) = (None, false);
        let asked = self.socket.borrow_mut().query(&mut path::of(destination), |frame| {
            is_here |= path::is_local(frame);
            interface = path::leaves_through(frame)?.or(interface);
            Ok(())
        });
        match asked {
            Ok(()) if is_here => Ok(Lead::Here),
            Ok(()) => {
                // An interface may be newer than the list.
                let index = interface.ok_or(SocketError::Interrupted)?;
                let Link { name, has_carrier } = self.links.get(&index).ok_or(SocketError::Interrupted)?;
                Ok(Lead::Through { interface: name.clone(), has_carrier: *has_carrier })
            }
            Err(SocketError::Refused(Refusal { errno, .. })) => Ok(Lead::Refused(errno)),
            Err(error) => Err(error),
        }
    }

    /// Returns the rules that select routes by properties of a packet, besides its destination: of each the mark, if it
    /// selects by a mark only. `family` is `AF_INET` or `AF_INET6`.
    pub fn policies(&self, family: u8) -> Result<Vec<Option<MarkRule>>, SocketError> {
        retry_on_change(|| {
            let mut found = Vec::new();
            self.socket.borrow_mut().dump(&mut policy::rules(family), |frame| {
                if !policy::is_of_every_host(frame)? {
                    found.push(MarkRule::decode(frame)?);
                }
                Ok(())
            })?;
            Ok(found)
        })
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
