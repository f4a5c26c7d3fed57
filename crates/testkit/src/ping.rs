//! Pings: one ICMP echo request, and whether it is answered, refused or neither.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use portolan_model::Family;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::probe::patience;
use crate::{Namespace, TestkitError};

/// The groups that may open sockets for pings: all.
const GROUPS: &str = "0 2147483647";
/// Types of an echo request, RFC 792 and RFC 4443 section 4.1. The kernel fills in the checksum and the identifier.
const V4_REQUEST: u8 = 8;
const V6_REQUEST: u8 = 128;
/// Types of an echo reply.
const V4_REPLY: u8 = 0;
const V6_REPLY: u8 = 129;

/// The result of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    /// An echo reply.
    Answered,
    /// An ICMP port unreachable.
    Refused,
    /// Neither, within the time.
    Silent,
}

impl Namespace {
    /// Sends one echo request, and waits at most this long (longer on an emulated machine) for what comes back.
    pub fn ping(&self, to: IpAddr, within: Duration) -> Result<Ping, TestkitError> {
        self.write_sysctls(&[("net/ipv4/ping_group_range".to_owned(), GROUPS)])?;
        let fail = |source| TestkitError::System { action: "ping", source };
        self.run(|| ping_here(to, patience(within)))?.map_err(fail)
    }
}

fn ping_here(to: IpAddr, within: Duration) -> io::Result<Ping> {
    let (socket, request, reply) = match Family::of(to) {
        Family::Ipv4 => (open(AddressFamily::INET, ipproto::ICMP)?, V4_REQUEST, V4_REPLY),
        Family::Ipv6 => (open(AddressFamily::INET6, ipproto::ICMPV6)?, V6_REQUEST, V6_REPLY),
    };
    socket.connect(SocketAddr::new(to, 0))?;
    let sent = Instant::now();
    if let Err(error) = socket.send(&[request, 0, 0, 0, 0, 0, 0, 0]) {
        match error.kind() {
            // A local rule does not let the packet leave. If the rule refuses it, the error is read below.
            io::ErrorKind::PermissionDenied => {}
            io::ErrorKind::ConnectionRefused => return Ok(Ping::Refused),
            _ => return Err(error),
        }
    }
    loop {
        // A timeout of zero would be none.
        let left = within.saturating_sub(sent.elapsed()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left))?;
        let mut packet = [0; 8];
        match socket.recv(&mut packet).map_err(|error| (error.kind(), error)) {
            Ok(_) if packet.first() == Some(&reply) => return Ok(Ping::Answered),
            Ok(_) => {}
            Err((io::ErrorKind::ConnectionRefused, _)) => return Ok(Ping::Refused),
            Err((io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, _)) => return Ok(Ping::Silent),
            Err((_, error)) => return Err(error),
        }
    }
}

fn open(family: AddressFamily, protocol: rustix::net::Protocol) -> Result<UdpSocket, Errno> {
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol)).map(UdpSocket::from)
}
