//! How datagrams of one flow leave: those of one length in one call, if the way allows it.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use portolan_sock::datagrams::{self, Addresses};
use rustix::io::Errno;

/// How datagrams are sent one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// Those of one length in one call.
    Together,
    /// Each by itself, because the route or the device does not allow more: a datagram is longer than the MTU, or the
    /// device cannot compute checksums.
    OneByOne,
}

impl Sending {
    /// Sends the first datagrams of a flow in one call. Returns how many were sent, or why the first one was not.
    pub(super) fn send(
        &mut self,
        fd: &OwnedFd,
        datagrams: &[IoSlice<'_>],
        addresses: Addresses,
    ) -> Result<usize, Errno> {
        let send_first = |count: usize| {
            let first = datagrams.get(..count).unwrap_or(datagrams);
            datagrams::send(fd, first, addresses).map(|()| count).map_err(errno)
        };
        let together = datagrams::together(datagrams);
        if *self == Self::Together && together > 1 {
            let sent = send_first(together);
            if !matches!(sent, Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE)) {
                return sent;
            }
            *self = Self::OneByOne;
        }
        send_first(1)
    }
}

pub(super) fn errno(errno: portolan_sock::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

/// Returns the number of bytes of the first `count` datagrams, and the datagrams after them.
pub(super) fn after<'a, 'b>(datagrams: &'a [IoSlice<'b>], count: usize) -> (usize, &'a [IoSlice<'b>]) {
    let (first, rest) = datagrams.split_at_checked(count).unwrap_or((datagrams, &[]));
    (first.iter().map(|datagram| datagram.len()).sum(), rest)
}
