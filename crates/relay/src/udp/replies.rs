//! The sockets from which answers leave, one for each port where datagrams of clients arrive.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_model::{Family, Protocol};
use portolan_sock::original;
use rustix::io::Errno;
use rustix::net::{bind, sockopt};

use super::Refusal;
use crate::listener::{is_shortage, socket};

/// Bytes of the send buffer of a port. All Services with this port share it. Answers that wait for a neighbour's address
/// count, too.
const SEND_BUFFER: usize = 4 << 20;
/// Addresses to which no packet is sent: the IPv4 dummy address (RFC 7600), and one of the discard-only addresses (RFC 6666).
const UNUSED_IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const UNUSED_IPV6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);
/// A port that needs `CAP_NET_BIND_SERVICE` if any does (`tcpmux`).
const LOWEST_PORT: u16 = 1;
/// How long no answer is tried from a port that cannot be used.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Replies {
    sockets: HashMap<Port, Reply>,
    /// Ports that cannot be used, and when to try again.
    unusable: HashMap<Port, Instant>,
}

/// A port from which answers leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Port {
    family: Family,
    number: u16,
}

/// A socket that sends from a port, and the number of flows that use it.
#[derive(Debug)]
struct Reply {
    fd: OwnedFd,
    flows: usize,
}

impl Replies {
    /// Returns the socket of the port of an address.
    pub(super) fn get(&self, here: SocketAddr) -> Option<&OwnedFd> {
        self.sockets.get(&Port::of(here)).map(|reply| &reply.fd)
    }

    /// Adds a flow to the socket of its port.
    pub(super) fn add(&mut self, here: SocketAddr, now: Instant) -> Result<(), Refusal> {
        let port = Port::of(here);
        if let Some(reply) = self.sockets.get_mut(&port) {
            reply.flows = reply.flows.saturating_add(1);
            return Ok(());
        }
        if self.unusable.get(&port).is_some_and(|&until| now < until) {
            return Err(Refusal::NoWay);
        }
        match reply_socket(port) {
            Ok(fd) => {
                self.unusable.remove(&port);
                self.sockets.insert(port, Reply { fd, flows: 1 });
                Ok(())
            }
            // A moment later there may be room.
            Err(errno) if is_shortage(errno) => Err(Refusal::Shortage(errno)),
            Err(errno) => {
                let is_new = self.unusable.insert(port, now + RETRY).is_none();
                if is_new {
                    let family = port.family;
                    tracing::warn!(%family, port = port.number, %errno, "no answer can leave from this UDP port: {}", mend(errno));
                }
                Err(Refusal::NoWay)
            }
        }
    }

    /// Removes a flow from the socket of its port. The last one closes it.
    pub(super) fn end(&mut self, here: SocketAddr) {
        let port = Port::of(here);
        if let Some(reply) = self.sockets.get_mut(&port) {
            reply.flows = reply.flows.saturating_sub(1);
            if reply.flows == 0 {
                self.sockets.remove(&port);
            }
        }
    }
}

impl Port {
    fn of(address: SocketAddr) -> Self {
        Self { family: Family::of(address.ip()), number: address.port() }
    }
}

/// Returns what an operator can do so that a socket can be bound to a port.
fn mend(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "it needs the capability CAP_NET_BIND_SERVICE",
        Errno::ADDRINUSE => "another program has it at all addresses; let it use its own addresses",
        _ => "datagrams to Services with this port are lost meanwhile",
    }
}

/// Returns true if answers may leave from every UDP port, also from those below `net.ipv4.ip_unprivileged_port_start`
/// (`CAP_NET_BIND_SERVICE`, `capabilities(7)`). Asks the kernel, in the network namespace of this thread.
pub fn can_answer_from_every_port() -> bool {
    reply_socket(Port { family: Family::Ipv4, number: LOWEST_PORT }).err() != Some(Errno::ACCESS)
}

/// Opens a socket that sends from a port, with any source address. It is bound to an address to which no packet is sent. A
/// socket bound to a virtual address would receive datagrams of clients there. It receives nothing from a program that
/// sends to the unused address, either. It is not connected: packets of a connected socket are one flow for queueing
/// disciplines.
fn reply_socket(port: Port) -> Result<OwnedFd, Errno> {
    let Port { family, number } = port;
    let fd = socket(family, Protocol::Udp)?;
    original::set_transparent(&fd, family == Family::Ipv6).map_err(|_| Errno::INVAL)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    let unused: IpAddr = match family {
        Family::Ipv4 => UNUSED_IPV4.into(),
        Family::Ipv6 => UNUSED_IPV6.into(),
    };
    sockopt::set_socket_send_buffer_size_force(&fd, SEND_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER))?;
    original::receive_nothing(&fd).map_err(|_| Errno::INVAL)?;
    bind(&fd, &SocketAddr::new(unused, number))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use portolan_testkit::{Namespace, eventually};

    use super::*;

    fn in_namespace(check: impl FnOnce() + Send) {
        Namespace::new("replies").expect("this test needs root").run(check).unwrap();
    }

    #[test]
    fn a_port_has_a_socket_until_the_last_flow_ends() {
        let mut replies = Replies::default();
        let places = ["127.0.0.1:5353", "127.0.0.2:5353", "[::1]:5353"].map(|text| text.parse().unwrap());
        in_namespace(|| {
            for (place, sockets) in places.into_iter().zip([1, 1, 2]) {
                assert!(replies.add(place, Instant::now()).is_ok());
                assert_eq!(replies.sockets.len(), sockets, "{place}");
            }
        });
        for (place, sockets) in places.into_iter().zip([2, 1, 0]) {
            replies.end(place);
            assert_eq!(replies.sockets.len(), sockets, "{place}");
        }
    }

    #[test]
    fn a_port_that_cannot_be_used_is_tried_again_after_a_second() {
        let (mut replies, now) = (Replies::default(), Instant::now());
        let place = "10.96.0.10:53".parse().unwrap();
        in_namespace(|| {
            let other = UdpSocket::bind("0.0.0.0:53").unwrap();
            assert!(replies.add(place, now).is_err());
            drop(other);
            assert!(replies.add(place, now + RETRY / 2).is_err());
            assert!(replies.add(place, now + RETRY).is_ok());
            assert!(replies.unusable.is_empty());
        });
    }

    #[test]
    fn the_socket_of_answers_receives_nothing() {
        let namespace = Namespace::new("replies").expect("this test needs root");
        namespace.ip(&format!("link set lo up\naddr add {UNUSED_IPV4}/32 dev lo")).unwrap();
        let dropped = namespace.run(|| {
            let _socket = reply_socket(Port { family: Family::Ipv4, number: 53 }).unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", (UNUSED_IPV4, 53)).unwrap();
            // The last column is the number of dropped datagrams (`proc(5)`).
            let drops = || {
                let sockets = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
                sockets.lines().any(|line| line.contains(":0035 ") && line.trim_end().ends_with(" 1"))
            };
            eventually(Duration::from_secs(120), "a dropped datagram", drops)
        });
        dropped.unwrap().unwrap();
    }
}
