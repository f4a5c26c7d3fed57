//! Opening a socket, its buffers and its numbers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, netlink};

use crate::option::{self, NetlinkOption};
use crate::{Errno, SocketError};

/// The kernel answers inside the call that asks; this only bounds a fault.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What the kernel needs of the send buffer besides the message (`netlink_sendmsg`).
const SEND_OVERHEAD: usize = 32;
/// Largest send buffer to ask for (the kernel's own limit is `INT_MAX / 2`).
const SEND_BUFFER_MAX: usize = 1 << 30;
/// Room for the refusals of a large batch, or for a burst of notifications; the kernel doubles it.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The kernel's dumps come in datagrams of at most this size.
const DATAGRAM_MAX: usize = 32 << 10;

/// What to talk about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Addresses, links, routes.
    Route,
    /// `nf_tables`, conntrack, ipset.
    Netfilter,
    /// Families that have a name instead of a number, IPVS among them.
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

    /// Bytes that may wait to be read (16 MiB at first): beyond that, answers and notifications are lost and
    /// reading reports it. Without privilege in the initial user namespace, `net.core.rmem_max` limits it.
    pub fn set_receive_capacity(&self, bytes: usize) -> Result<(), SocketError> {
        sockopt::set_socket_recv_buffer_size_force(&self.fd, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&self.fd, bytes))
            .map_err(SocketError::system("setsockopt(SO_RCVBUF)"))
    }

    /// Makes the kernel refuse dump filters of rtnetlink that it does not know, instead of ignoring them.
    pub fn set_strict_checking(&self) -> Result<(), SocketError> {
        option::set(self.fd.as_fd(), NetlinkOption::StrictCheck, 1)
    }

    /// Joins multicast groups (`GROUP_*` of `portolan-wire`). Keep such a socket for
    /// [`receive`](Self::receive): a flood of notifications must not drown answers.
    pub fn subscribe(&self, groups: &[u32]) -> Result<(), SocketError> {
        groups.iter().try_for_each(|&group| option::set(self.fd.as_fd(), NetlinkOption::AddMembership, group))
    }

    /// The socket's address. Notifications carry the port of the socket that caused them, which tells our own
    /// changes from those of others.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Bytes that can be sent at once now.
    pub fn send_capacity(&self) -> Result<usize, SocketError> {
        let size = sockopt::socket_send_buffer_size(&self.fd);
        let size = size.map_err(SocketError::system("getsockopt(SO_SNDBUF)"))?;
        Ok(size.saturating_sub(SEND_OVERHEAD))
    }

    /// Grows the send buffer so that `bytes` can be sent at once, as far as permitted, and answers how many can
    /// be: without privilege in the initial user namespace, `net.core.wmem_max` limits it.
    pub fn reserve_send_capacity(&self, bytes: usize) -> Result<usize, SocketError> {
        let capacity = self.send_capacity()?;
        if capacity >= bytes {
            return Ok(capacity);
        }
        // The kernel doubles the number that it gets.
        let size = bytes.saturating_add(SEND_OVERHEAD).div_ceil(2).min(SEND_BUFFER_MAX);
        if sockopt::set_socket_send_buffer_size_force(&self.fd, size).is_err() {
            sockopt::set_socket_send_buffer_size(&self.fd, size)
                .map_err(SocketError::system("setsockopt(SO_SNDBUF)"))?;
        }
        self.send_capacity()
    }

    /// A number for the first message of a batch of up to `messages` messages; answers to other batches on this
    /// socket cannot be mistaken for answers to this one.
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

    /// The receive buffer, to be given back with [`Self::return_buffer`]; made on first use.
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
