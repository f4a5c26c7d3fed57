//! Non-blocking sockets and the epoll loop of the responders, the probes and the traffic.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use portolan_model::{Family, Protocol};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, bind, connect, getsockname, ipproto, shutdown,
    socket_with, sockopt,
};

use crate::error::TestkitError;

/// Size for a burst of datagrams or ICMP errors: a batch of probes is answered within one scheduling delay.
const BUFFER_BYTES: usize = 4 << 20;
const EVENTS_AT_ONCE: usize = 256;

/// Ends a listener, so that the next connection is refused. Dropping it is not enough: a child process that another
/// test has just started holds a copy until it runs its program.
///
/// # Errors
/// [`TestkitError`] if the kernel refuses.
pub fn close(listener: &TcpListener) -> Result<(), TestkitError> {
    shutdown(listener, Shutdown::Both).map_err(TestkitError::system("end a listener"))
}

pub(crate) fn stream(family: Family) -> Result<OwnedFd, Errno> {
    open(family, SocketType::STREAM, ipproto::TCP)
}

pub(crate) fn datagram(family: Family) -> Result<OwnedFd, Errno> {
    open(family, SocketType::DGRAM, ipproto::UDP)
}

/// Opens a raw socket for SCTP packets. IPv4 packets arrive with their IP header, IPv6 packets without.
pub(crate) fn raw_sctp(family: Family) -> Result<OwnedFd, Errno> {
    roomy(open(family, SocketType::RAW, ipproto::SCTP)?)
}

/// Opens a raw socket for the ICMP messages that arrive in this namespace.
pub(crate) fn raw_icmp(family: Family) -> Result<OwnedFd, Errno> {
    let protocol = match family {
        Family::Ipv4 => ipproto::ICMP,
        Family::Ipv6 => ipproto::ICMPV6,
    };
    roomy(open(family, SocketType::RAW, protocol)?)
}

pub(crate) fn bind_to(fd: &OwnedFd, address: IpAddr, port: u16) -> Result<(), Errno> {
    bind(fd, &SocketAddr::new(address, port))
}

/// Returns the local address of a bound or connected socket.
pub(crate) fn local_address(fd: &OwnedFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(getsockname(fd)?).map_err(|_| Errno::AFNOSUPPORT)
}

/// Enlarges both buffers as far as the kernel allows for this user. A packet that waits for a processor still belongs to its
/// sender's buffer.
pub(crate) fn roomy(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    sockopt::set_socket_recv_buffer_size_force(&fd, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, BUFFER_BYTES))?;
    sockopt::set_socket_send_buffer_size_force(&fd, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&fd, BUFFER_BYTES))?;
    Ok(fd)
}

/// Connects over TCP with a blocking `connect()` that gives up after `patience` (`EINPROGRESS`). Closes the connection
/// with a reset.
pub(crate) fn connect_until(to: SocketAddr, from: Option<IpAddr>, patience: Duration) -> Result<(), Errno> {
    let family = match Family::of(to.ip()) {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(patience))?;
    if let Some(from) = from {
        bind_to(&fd, from, 0)?;
    }
    connect(&fd, &to)
}

fn open(family: Family, kind: SocketType, protocol: rustix::net::Protocol) -> Result<OwnedFd, Errno> {
    let address_family = match family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    socket_with(address_family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, Some(protocol))
}

/// The sockets that one thread waits for, each with a token.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll })
    }

    /// Reports `token` whenever `fd` is readable.
    pub(crate) fn watch_reads(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Reports `token` once for every change of `fd`: connected, readable, failed.
    pub(crate) fn watch_changes(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Waits for at most `timeout` (`None`: forever) and returns the tokens with events.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<u64>, Errno> {
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); EVENTS_AT_ONCE];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => Ok(ready.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }
}

/// A flow from the point of view of its sender: protocol, own port, destination.
pub(crate) type Flow = (Protocol, u16, SocketAddr);

/// Returns the answer of a responder: its own address that was reached, and the source that it has seen.
pub(crate) fn answer(reached: SocketAddr, seen_source: SocketAddr) -> String {
    format!("{reached} {seen_source}")
}

/// Parses an [`answer`]. The rest of the line is the sender's own payload.
pub(crate) fn parse_answer(text: &[u8]) -> Option<(SocketAddr, SocketAddr, &str)> {
    let mut parts = std::str::from_utf8(text).ok()?.splitn(3, [' ', '\n']);
    let reached = parts.next()?.parse().ok()?;
    let seen_source = parts.next()?.parse().ok()?;
    Some((reached, seen_source, parts.next().unwrap_or_default()))
}
