//! Source ports, used in turn.
//!
//! With random ports, a probe could match the conntrack entry of an earlier one (UDP: 30 s) and reach a backend that is no
//! longer in the rules. And IPVS confuses two connections of one client port to two virtual servers, if both have the same
//! backend and are not masqueraded.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::socket;

/// The ports are above the node ports.
const FIRST: u16 = 33_000;
const COUNT: u16 = 32_000;
/// Maximum ports that are tried in a row because other sockets use them.
const ATTEMPTS: usize = 100;

static TURN: AtomicU32 = AtomicU32::new(0);

/// Binds a socket to the next port that no other socket uses.
pub(crate) fn bind_next(fd: &OwnedFd, source: Option<IpAddr>, destination: SocketAddr) -> Result<(), Errno> {
    let source = source.unwrap_or_else(|| unspecified(destination));
    let mut attempts = (0..ATTEMPTS).map(|_| socket::bind_to(fd, source, next().1));
    attempts.find(|bound| *bound != Err(Errno::ADDRINUSE)).unwrap_or(Err(Errno::ADDRINUSE))
}

/// Returns a number that nothing else of this process has, and its source port.
pub(crate) fn next() -> (u32, u16) {
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let offset = u16::try_from(turn % u32::from(COUNT)).unwrap_or_default();
    (turn, FIRST + offset)
}

/// Returns the unspecified address of the destination's family.
pub(crate) fn unspecified(destination: SocketAddr) -> IpAddr {
    if destination.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}
