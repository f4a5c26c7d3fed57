//! The listeners: for each family one TCP and one UDP socket for each scope.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use portolan_model::{Family, Protocol};
use portolan_sock::{SocketError, original};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};

use crate::{Arrival, Options, Scope};

/// How many listeners there are.
pub const LISTENERS: usize = 8;

/// Connections that may wait to be taken in; the kernel limits it to `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 65_535;
/// The priority (`SO_PRIORITY`, `socket(7)`) of packets to backends: one that nobody else has ("port" in ASCII, but with
/// the lowest four bits zero, which queues take for best effort).
pub const OWN_PRIORITY: u32 = 0x706f_7270;
/// Room for a burst of datagrams.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Why the relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener's port is taken.
    #[error(
        "{protocol} {address} is in use: the userspace mode listens there; free it, or choose other ports with \
         --proxy-port-range"
    )]
    InUse {
        /// Its protocol.
        protocol: Protocol,
        /// Its address.
        address: SocketAddr,
    },
    /// A listener could not be opened.
    #[error("listen at {protocol} {address}: {source}")]
    Listen {
        /// Its protocol.
        protocol: Protocol,
        /// Its address.
        address: SocketAddr,
        /// Why.
        source: SocketError,
    },
    /// The thread could not be started.
    #[error("start the relay: {0}")]
    Start(std::io::Error),
}

/// A socket that captured traffic comes to.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    pub(crate) protocol: Protocol,
    pub(crate) scope: Scope,
    pub(crate) address: SocketAddr,
}

/// The loopback address of a family: nobody else reaches a listener there.
pub(crate) const fn loopback(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// The address where listeners have to be for what is captured to come there.
const fn listening(family: Family, arrival: Arrival) -> IpAddr {
    match (arrival, family) {
        (Arrival::Untouched, family) => loopback(family),
        (Arrival::Translated { .. }, Family::Ipv4) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (Arrival::Translated { .. }, Family::Ipv6) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Opens the listeners of the families, in the network namespace of this thread. Another relay may have the same ones:
/// new connections are shared between the two until one of them closes.
pub(crate) fn open(families: &[Family], options: &Options) -> Result<Vec<Listener>, Error> {
    let Options { ports, stalled, .. } = *options;
    let mut listeners = Vec::with_capacity(LISTENERS);
    for &family in families {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for (scope, port) in [(Scope::Cluster, ports.cluster), (Scope::Local, ports.local)] {
                let address = SocketAddr::new(listening(family, options.arrival), port);
                let fd =
                    open_one(family, protocol, address, stalled).map_err(|source| match source.errno() {
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

fn open_one(
    family: Family,
    protocol: Protocol,
    address: SocketAddr,
    stalled: Duration,
) -> Result<OwnedFd, SocketError> {
    let fd = socket(family, protocol).map_err(system("socket"))?;
    if family == Family::Ipv6 {
        sockopt::set_ipv6_v6only(&fd, true).map_err(system("setsockopt(IPV6_V6ONLY)"))?;
    }
    sockopt::set_socket_reuseaddr(&fd, true).map_err(system("setsockopt(SO_REUSEADDR)"))?;
    sockopt::set_socket_reuseport(&fd, true).map_err(system("setsockopt(SO_REUSEPORT)"))?;
    original::set_transparent(&fd, family == Family::Ipv6)?;
    if protocol == Protocol::Udp {
        original::set_receive_original_destination(&fd, family == Family::Ipv6)?;
        sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER))
            .map_err(system("setsockopt(SO_RCVBUF)"))?;
    } else {
        // What is accepted inherits it.
        sockopt::set_tcp_nodelay(&fd, true).map_err(system("setsockopt(TCP_NODELAY)"))?;
        limit_stall(&fd, stalled).map_err(system("setsockopt(TCP_USER_TIMEOUT)"))?;
    }
    bind(&fd, &address).map_err(system("bind"))?;
    if protocol == Protocol::Tcp {
        listen(&fd, BACKLOG).map_err(system("listen"))?;
    }
    Ok(fd)
}

/// A socket that does not block.
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

/// Ends a socket whose peer takes nothing, or acknowledges nothing, for too long (`TCP_USER_TIMEOUT`, `tcp(7)`): one with a
/// window of zero that answers would else stay for ever.
pub(crate) fn limit_stall(fd: &OwnedFd, stalled: Duration) -> Result<(), Errno> {
    sockopt::set_tcp_user_timeout(fd, u32::try_from(stalled.as_millis()).unwrap_or(u32::MAX))
}

/// Makes packets of a socket known as the relay's own: they are not captured, though a backend may be where a Service is,
/// such as a pod of the host's network behind an external IP of its node.
pub(crate) fn mark_own(fd: &OwnedFd, arrival: Arrival) -> Result<(), Errno> {
    if let Some(mark) = arrival.own_mark() {
        original::set_mark(fd, mark).map_err(|_| Errno::PERM)?;
    }
    original::set_priority(fd, OWN_PRIORITY).map_err(|_| Errno::PERM)
}

/// Gives a socket towards a backend the client's address. The port stays open until it connects, so that it is free for
/// other backends.
pub(crate) fn speak_for(fd: &OwnedFd, client: IpAddr) -> Result<(), Errno> {
    original::set_transparent(fd, client.is_ipv6()).map_err(|_| Errno::INVAL)?;
    original::set_bind_address_no_port(fd).map_err(|_| Errno::INVAL)?;
    bind(fd, &SocketAddr::new(client, 0))
}

/// Whether this host lacks something, rather than a peer saying no.
pub(crate) const fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC)
}

fn system(call: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::System { call, errno: errno.into() }
}
