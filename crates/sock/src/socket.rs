//! Opens sockets and manages their buffers and sequence numbers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, netlink};

use crate::option::{self, NetlinkOption};
use crate::{Errno, SocketError};

/// Limits the wait for a reply. The kernel replies within the call that sends, so only a fault reaches this limit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the send buffer that the kernel needs besides the message (`netlink_sendmsg`).
const SEND_OVERHEAD: usize = 32;
/// Largest send buffer to request, in bytes (the kernel's limit is `INT_MAX / 2`).
const SEND_BUFFER_MAX: usize = 1 << 30;
/// Receive buffer to request, in bytes; the kernel doubles it. It holds the refusals of a large batch or a burst of
/// notifications.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Largest datagram of a kernel dump, in bytes.
const DATAGRAM_MAX: usize = 32 << 10;

/// The netlink protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Addresses, links, routes.
    Route,
    /// `nf_tables`, conntrack, ipset.
    Netfilter,
    /// Families that are looked up by name, among them IPVS.
    Generic,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) port: u32,
    pub(crate) buffer: Vec<u8>,
    sequence: u32,
}

impl Socket {
    /// Opens a socket with extended acknowledgements.
    pub fn open(protocol: Protocol) -> Result<Self, SocketError> {
        let protocol = match protocol {
            Protocol::Route => None,
            Protocol::Netfilter => Some(netlink::NETFILTER),
            Protocol::Generic => Some(netlink::GENERIC),
        };
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)
            .map_err(SocketError::system("socket(AF_NETLINK)"))?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(SocketError::system("bind"))?;
        option::set(fd.as_fd(), NetlinkOption::ExtAck, 1)?;
        option::set(fd.as_fd(), NetlinkOption::CapAck, 1)?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(SocketError::system("setsockopt(SO_RCVTIMEO)"))?;
        let port = port(&fd)?;
        let socket = Self { fd, port, buffer: Vec::new(), sequence: 0 };
        socket.set_receive_capacity(RECEIVE_BUFFER)?;
        Ok(socket)
    }

    /// Sets the receive buffer to twice `bytes`, the kernel's doubling included (16 MiB initially). When it is full,
    /// the kernel drops replies and notifications, and the next read reports this. Without privilege in the initial
    /// user namespace, `net.core.rmem_max` limits it.
    pub fn set_receive_capacity(&self, bytes: usize) -> Result<(), SocketError> {
        sockopt::set_socket_recv_buffer_size_force(&self.fd, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&self.fd, bytes))
            .map_err(SocketError::system("setsockopt(SO_RCVBUF)"))
    }

    /// Makes the kernel apply dump filters of rtnetlink, and refuse those that it does not know, instead of ignoring them.
    /// Returns false if the kernel cannot do that (before Linux 4.20): its dumps list everything.
    pub fn set_strict_checking(&self) -> Result<bool, SocketError> {
        is_known_option(option::set(self.fd.as_fd(), NetlinkOption::StrictCheck, 1))
    }

    /// Joins multicast groups (`GROUP_*` of `portolan-wire`). Use such a socket only for [`receive`](Self::receive):
    /// a flood of notifications could displace replies.
    pub fn subscribe(&self, groups: &[u32]) -> Result<(), SocketError> {
        groups.iter().try_for_each(|&group| option::set(self.fd.as_fd(), NetlinkOption::AddMembership, group))
    }

    /// Returns the socket's address. A notification carries the port of the socket that caused it, which
    /// distinguishes this program's changes from those of others.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Returns the maximum number of bytes of a datagram in the send buffer.
    pub fn send_capacity(&self) -> Result<usize, SocketError> {
        let size = sockopt::socket_send_buffer_size(&self.fd);
        let size = size.map_err(SocketError::system("getsockopt(SO_SNDBUF)"))?;
        Ok(size.saturating_sub(SEND_OVERHEAD))
    }

    /// Grows the send buffer so that `bytes` fit into one datagram, as far as permitted. Returns the resulting
    /// [capacity](Self::send_capacity). Without privilege in the initial user namespace, `net.core.wmem_max` limits
    /// it.
    pub fn reserve_send_capacity(&self, bytes: usize) -> Result<usize, SocketError> {
        let capacity = self.send_capacity()?;
        if capacity >= bytes {
            return Ok(capacity);
        }
        // The kernel doubles the requested size.
        let size = bytes.saturating_add(SEND_OVERHEAD).div_ceil(2).min(SEND_BUFFER_MAX);
        if sockopt::set_socket_send_buffer_size_force(&self.fd, size).is_err() {
            sockopt::set_socket_send_buffer_size(&self.fd, size)
                .map_err(SocketError::system("setsockopt(SO_SNDBUF)"))?;
        }
        self.send_capacity()
    }

    /// Returns a sequence number for the first message of a batch of up to `messages` messages. Replies to other
    /// batches on this socket have other numbers.
    pub fn next_sequence(&mut self, messages: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(messages.max(1));
        first
    }

    /// Sends bytes in one datagram.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), SocketError> {
        let capacity = self.reserve_send_capacity(bytes.len())?;
        let too_long = SocketError::TooLong { length: bytes.len(), capacity };
        if capacity < bytes.len() {
            return Err(too_long);
        }
        loop {
            match rustix::net::send(&self.fd, bytes, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::MSGSIZE) => return Err(too_long),
                Err(errno) => return Err(SocketError::System { call: "send", errno: Errno::from(errno) }),
            }
        }
    }

    /// Takes the receive buffer, which is allocated on first use. Return it with [`Self::return_buffer`].
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(DATAGRAM_MAX, 0);
        buffer
    }

    pub(crate) fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn port(fd: &OwnedFd) -> Result<u32, SocketError> {
    let address = rustix::net::getsockname(fd).map_err(SocketError::system("getsockname"))?;
    let address = SocketAddrNetlink::try_from(address).map_err(SocketError::system("getsockname"))?;
    Ok(address.pid())
}

/// Returns false if the kernel does not have a socket option.
fn is_known_option(outcome: Result<(), SocketError>) -> Result<bool, SocketError> {
    match outcome {
        Err(error) if error.errno() == Some(Errno::ENOPROTOOPT) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_socket_option_is_no_error() {
        let refused = |errno| is_known_option(Err(SocketError::System { call: "setsockopt", errno }));
        assert!(is_known_option(Ok(())).unwrap());
        assert!(!refused(Errno::ENOPROTOOPT).unwrap());
        assert_eq!(refused(Errno::EPERM).unwrap_err().errno(), Some(Errno::EPERM));
    }
}
