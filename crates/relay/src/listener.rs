//! The listeners: for each family and scope one TCP and one UDP socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use portolan_model::{Capture, Family, Protocol, RELAY_PRIORITY};
use portolan_sock::{SocketError, original};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, bind, connect, ipproto, listen, shutdown, socket_with,
    sockopt,
};

use crate::{RelayOptions, Scope};

/// The number of listeners for both families.
pub const LISTENERS: usize = 8;

/// The length of a listener's accept queue. The kernel limits it to `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 65_535;
/// The mark (`SO_MARK`) of packets to backends if captured packets are redirected. Neither Kubernetes nor the usual network
/// plug-ins use this bit. It is not one of the bits for captured packets either, since rules that an earlier run left may
/// still match these. If it is the masquerade bit, packets of the relay are masqueraded, which only replaces one address
/// of this node by another.
pub const OWN_MARK: u32 = 1 << 2;
/// The port of the discard protocol, which never answers (RFC 863).
const DISCARD: u16 = 9;
/// Bytes of a UDP listener's receive buffer: room for a burst of datagrams.
const RECEIVE_BUFFER: usize = 4 << 20;

/// An error of the relay's start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program uses a listener's port.
    #[error(
        "{protocol} {address} is in use: the userspace mode listens there; free it, or choose other ports with \
         --proxy-port-range"
    )]
    InUse {
        /// The listener's protocol.
        protocol: Protocol,
        /// The listener's address.
        address: SocketAddr,
    },
    /// A listener could not be opened.
    #[error("listen at {protocol} {address}: {source}")]
    Listen {
        /// The listener's protocol.
        protocol: Protocol,
        /// The listener's address.
        address: SocketAddr,
        /// The error.
        source: SocketError,
    },
    /// The thread could not be started.
    #[error("start the relay: {0}")]
    Start(std::io::Error),
}

/// A socket that captured connections or datagrams arrive at.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    pub(crate) protocol: Protocol,
    pub(crate) scope: Scope,
    pub(crate) address: SocketAddr,
}

impl Drop for Listener {
    /// Ends the listener also if a child of this process still has a copy of it, between `fork` and `exec`. Otherwise the
    /// kernel would pass new connections and datagrams to the copy, and reset or drop them when the child closes it. A
    /// datagram socket that is connected receives only from its peer.
    fn drop(&mut self) {
        let _ = match self.protocol {
            Protocol::Udp => {
                connect(&self.fd, &SocketAddr::new(loopback(Family::of(self.address.ip())), DISCARD))
            }
            _ => shutdown(&self.fd, Shutdown::Both),
        };
    }
}

/// Returns the loopback address of a family. Other hosts cannot reach a listener there.
pub(crate) const fn loopback(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Returns the address that listeners must be bound to.
const fn listening(family: Family, capture: Capture) -> IpAddr {
    match (capture, family) {
        (Capture::Tproxy, family) => loopback(family),
        (Capture::Redirect, Family::Ipv4) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (Capture::Redirect, Family::Ipv6) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Opens the listeners of the families, in the network namespace of this thread. Another relay may have the same
/// listeners open: it gets new connections until this one has a table ([`take_over`]).
pub(crate) fn open(families: &[Family], options: &RelayOptions) -> Result<Vec<Listener>, Error> {
    let ports = options.ports;
    let mut listeners = Vec::with_capacity(LISTENERS);
    for &family in families {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for (scope, port) in [(Scope::Cluster, ports.cluster), (Scope::Local, ports.local)] {
                let address = SocketAddr::new(listening(family, options.capture), port);
                let fd = open_one(protocol, address, options).map_err(|source| match source.errno() {
                    Some(portolan_sock::Errno(errno)) if errno == Errno::ADDRINUSE.raw_os_error() => {
                        Error::InUse { protocol, address }
                    }
                    _ => Error::Listen { protocol, address, source },
                })?;
                listeners.push(Listener { fd, protocol, scope, address });
            }
        }
    }
    Ok(listeners)
}

fn open_one(protocol: Protocol, address: SocketAddr, options: &RelayOptions) -> Result<OwnedFd, SocketError> {
    let family = Family::of(address.ip());
    let fd = socket(family, protocol).map_err(system("socket"))?;
    if family == Family::Ipv6 {
        sockopt::set_ipv6_v6only(&fd, true).map_err(system("setsockopt(IPV6_V6ONLY)"))?;
    }
    sockopt::set_socket_reuseaddr(&fd, true).map_err(system("setsockopt(SO_REUSEADDR)"))?;
    sockopt::set_socket_reuseport(&fd, true).map_err(system("setsockopt(SO_REUSEPORT)"))?;
    // With redirect, packets have an address of this node. On a transparent socket they would be lost if the kernel
    // translates their source port, too: it would pass them to the connection that they seemed to belong to before
    // (`nf_nat_ipv4_local_in`).
    if options.capture == Capture::Tproxy {
        original::set_transparent(&fd, family == Family::Ipv6)?;
    }
    if protocol == Protocol::Udp {
        original::set_receive_original_destination(&fd, family == Family::Ipv6)?;
        sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER))
            .map_err(system("setsockopt(SO_RCVBUF)"))?;
    } else {
        // Accepted sockets inherit this.
        sockopt::set_tcp_nodelay(&fd, true).map_err(system("setsockopt(TCP_NODELAY)"))?;
        limit_stall(&fd, options.stalled).map_err(system("setsockopt(TCP_USER_TIMEOUT)"))?;
    }
    bind(&fd, &address).map_err(system("bind"))?;
    if protocol == Protocol::Tcp {
        listen(&fd, BACKLOG).map_err(system("listen"))?;
        direct(&fd, OLDEST);
    }
    Ok(fd)
}

/// The index of the listener that gets connections while another relay opens: the one that serves.
const OLDEST: u32 = 0;
/// The index of the second listener, which is that of the relay that takes over. Alone it gets all connections whatever the
/// index.
const SECOND: u32 = 1;

/// Directs all new connections to this relay, which knows its endpoints now. The listeners of one that it replaces get no more,
/// so that they can be closed: the kernel resets connections that a closed listener has not accepted.
pub(crate) fn take_over(listeners: &[Listener], family: Family) {
    for Listener { fd, protocol, address, .. } in listeners {
        if *protocol == Protocol::Tcp && Family::of(address.ip()) == family {
            direct(fd, SECOND);
        }
    }
}

/// Directs new connections to a listener of a group. If the kernel refuses, it distributes them.
fn direct(fd: &OwnedFd, index: u32) {
    if let Err(error) = original::direct_to_listener(fd, index) {
        tracing::debug!(%error, "new connections are distributed over two relays while one replaces the other");
    }
}

/// Opens a non-blocking socket.
pub(crate) fn socket(family: Family, protocol: Protocol) -> Result<OwnedFd, Errno> {
    let family = match family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    let (kind, number) = match protocol {
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        _ => (SocketType::STREAM, ipproto::TCP),
    };
    socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, Some(number))
}

/// Limits how long a peer may leave data unacknowledged or keep its window at zero (`TCP_USER_TIMEOUT`, `tcp(7)`).
/// Without the limit, a peer that answers with a window of zero keeps the connection open for ever.
pub(crate) fn limit_stall(fd: &OwnedFd, stalled: Duration) -> Result<(), Errno> {
    sockopt::set_tcp_user_timeout(fd, u32::try_from(stalled.as_millis()).unwrap_or(u32::MAX))
}

/// Marks packets of a socket as the relay's own, so that they are not captured. A backend may have the address of a
/// Service, such as a pod in the host's network behind an external IP of its node.
pub(crate) fn mark_own(fd: &OwnedFd, capture: Capture) -> Result<(), Errno> {
    // The rules of `tproxy` know these packets by their priority alone.
    if capture == Capture::Redirect {
        original::set_mark(fd, OWN_MARK).map_err(|_| Errno::PERM)?;
    }
    original::set_priority(fd, RELAY_PRIORITY).map_err(|_| Errno::PERM)
}

/// Binds a socket towards a backend to the client's address. The port is chosen when the socket connects, so that the
/// same port can be used towards several backends.
pub(crate) fn bind_to_client(fd: &OwnedFd, client: IpAddr) -> Result<(), Errno> {
    original::set_transparent(fd, client.is_ipv6()).map_err(|_| Errno::INVAL)?;
    original::set_bind_address_no_port(fd).map_err(|_| Errno::INVAL)?;
    bind(fd, &SocketAddr::new(client, 0))
}

/// Returns true if the error is a shortage of this host, not the answer of a peer. `EAGAIN` means that no UDP port is free.
pub(crate) const fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC | Errno::AGAIN)
}

fn system(call: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::System { call, errno: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpStream, UdpSocket};

    use portolan_sock::datagrams::Batch;
    use portolan_testkit::{Namespace, eventually};

    use super::*;

    fn copies(listeners: &[Listener]) -> Vec<OwnedFd> {
        listeners.iter().map(|listener| listener.fd.try_clone().unwrap()).collect()
    }

    #[test]
    fn a_closed_listener_ends_although_a_child_has_a_copy() {
        let namespace = Namespace::new("listener").expect("this test needs root");
        namespace.ip("link set lo up").unwrap();
        let check = || {
            let options = RelayOptions::default();
            let listeners = open(&[Family::Ipv4], &options).unwrap();
            let _copies = copies(&listeners);
            let at = (Ipv4Addr::LOCALHOST, options.ports.cluster);
            TcpStream::connect(at).unwrap();
            drop(listeners);
            TcpStream::connect(at).unwrap_err().kind()
        };
        assert_eq!(namespace.run(check).unwrap(), std::io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn datagrams_go_to_the_next_relay_although_a_child_has_a_copy_of_a_closed_listener() {
        const CLIENTS: usize = 100;
        let namespace = Namespace::new("listener").expect("this test needs root");
        namespace.ip("link set lo up").unwrap();
        let check = || {
            for family in Family::BOTH {
                let options = RelayOptions::default();
                let [former, next] = [(); 2].map(|()| open(&[family], &options).unwrap());
                let _copies = copies(&former);
                drop(former);
                let clients: Vec<UdpSocket> =
                    (0..CLIENTS).map(|_| UdpSocket::bind((loopback(family), 0)).unwrap()).collect();
                for client in &clients {
                    client.send_to(b"x", (loopback(family), options.ports.cluster)).unwrap();
                }
                let listener = next.iter().find(|it| it.protocol == Protocol::Udp).unwrap();
                let (mut batch, mut received) = (Batch::default(), 0);
                let all = || {
                    received += batch.receive(&listener.fd).unwrap_or_default();
                    received == CLIENTS
                };
                eventually(Duration::from_secs(120), "all datagrams", all).unwrap();
            }
        };
        namespace.run(check).unwrap();
    }
}
