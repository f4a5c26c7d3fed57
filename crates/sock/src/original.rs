//! Sockets that use addresses of other hosts, and datagrams with their original destination.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::net::SocketAddrAny;
use rustix::net::addr::SocketAddrStorage;

use crate::{Errno, SocketError};

/// Allows a socket to bind to, accept connections for and send from any address (`IP_TRANSPARENT`, `ip(7)`). Needs
/// `CAP_NET_ADMIN`.
pub fn set_transparent(fd: impl AsFd, ipv6: bool) -> Result<(), SocketError> {
    let (level, option) =
        if ipv6 { (libc::SOL_IPV6, libc::IPV6_TRANSPARENT) } else { (libc::SOL_IP, libc::IP_TRANSPARENT) };
    set(fd.as_fd(), level, option).map_err(system("setsockopt(IP_TRANSPARENT)"))
}

/// Defers the choice of a port from `bind` to `connect` if only an address is bound (`IP_BIND_ADDRESS_NO_PORT`,
/// `ip(7)`), so that several connections can share a port.
pub fn set_bind_address_no_port(fd: impl AsFd) -> Result<(), SocketError> {
    set(fd.as_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT)
        .map_err(system("setsockopt(IP_BIND_ADDRESS_NO_PORT)"))
}

/// Sets the priority of a socket's packets (`SO_PRIORITY`, `socket(7)`). Values above 6 need `CAP_NET_ADMIN`.
pub fn set_priority(fd: impl AsFd, priority: u32) -> Result<(), SocketError> {
    set_value(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, priority.cast_signed())
        .map_err(system("setsockopt(SO_PRIORITY)"))
}

/// Sets the mark of a socket's packets (`SO_MARK`, `socket(7)`), which rules and routes can match. Needs
/// `CAP_NET_ADMIN`.
pub fn set_mark(fd: impl AsFd, mark: u32) -> Result<(), SocketError> {
    set_value(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
        .map_err(system("setsockopt(SO_MARK)"))
}

/// Makes a UDP socket report the original destination of each datagram (`IP_RECVORIGDSTADDR`).
pub fn set_receive_original_destination(fd: impl AsFd, ipv6: bool) -> Result<(), SocketError> {
    let (level, option) = if ipv6 {
        (libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR)
    } else {
        (libc::SOL_IP, libc::IP_RECVORIGDSTADDR)
    };
    set(fd.as_fd(), level, option).map_err(system("setsockopt(IP_RECVORIGDSTADDR)"))
}

/// Makes a UDP socket report every ICMP error, not only those that mean for certain that the port is closed
/// (`IP_RECVERR`, `ip(7)`). The socket's error queue must then be read, too.
pub fn set_receive_errors(fd: impl AsFd, ipv6: bool) -> Result<(), SocketError> {
    let (level, option) =
        if ipv6 { (libc::SOL_IPV6, libc::IPV6_RECVERR) } else { (libc::SOL_IP, libc::IP_RECVERR) };
    set(fd.as_fd(), level, option).map_err(system("setsockopt(IP_RECVERR)"))
}

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes in the buffer. A longer datagram is truncated.
    pub length: usize,
    /// The sender's address.
    pub source: SocketAddr,
    /// The original destination.
    pub destination: SocketAddr,
}

/// Size of a buffer for one control message with a socket address, in bytes.
const CONTROL_LENGTH: usize = 64;

/// A buffer with the alignment of a control message's header.
#[repr(align(8))]
struct Control([u8; CONTROL_LENGTH]);

/// Receives a datagram with its original destination from a socket set up with [`set_receive_original_destination`].
/// Returns `None` if the datagram has no source or no destination. Does not wait.
pub fn receive_with_destination(fd: impl AsFd, buffer: &mut [u8]) -> Result<Option<Received>, Errno> {
    let mut name = [0_u8; size_of::<SocketAddrStorage>()];
    let mut control = Control([0; CONTROL_LENGTH]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros are a valid `msghdr`, with null pointers and no lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = libc::socklen_t::try_from(name.len()).unwrap_or_default();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LENGTH as _;
    // SAFETY: the descriptor is open for the borrow's lifetime. Every pointer in the message points to memory that
    // outlives the call, with its length beside it, and nothing else refers to that memory during the call.
    let length = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let Ok(length) = usize::try_from(length) else { return Err(last_error()) };
    let source = socket_address(name.get(..message.msg_namelen as usize).unwrap_or_default());
    let control = control.0.get(..message.msg_controllen as usize).unwrap_or_default();
    let received = source.zip(destination(control));
    Ok(received.map(|(source, destination)| Received {
        length: length.min(buffer.len()),
        source,
        destination,
    }))
}

/// Sends a datagram from an address of this host to which the socket need not be bound (`IP_PKTINFO`, `ip(7)`). The
/// scope of a link-local address selects the interface. Does not wait.
pub fn send_from(
    fd: impl AsFd,
    data: &[u8],
    source: SocketAddr,
    destination: SocketAddr,
) -> Result<(), Errno> {
    let mut control = Control([0; CONTROL_LENGTH]);
    let control_length = write_source(&mut control.0, source).ok_or(Errno(libc::EINVAL))?;
    let name = SocketAddrAny::from(destination);
    let mut part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: all zeros are a valid `msghdr`, with null pointers and no lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.as_ptr().cast_mut().cast();
    message.msg_namelen = name.addr_len();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_length as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open for the borrow's lifetime. Every pointer in the message points to memory that
    // outlives the call, with its length beside it, and the kernel only reads it.
    let sent = unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Writes a control message with `struct in_pktinfo` or `struct in6_pktinfo` and returns its length.
fn write_source(control: &mut [u8], source: SocketAddr) -> Option<usize> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let (level, kind, data) = match source {
        // The index of the interface, the source, and the destination, which the kernel ignores.
        SocketAddr::V4(source) => {
            (libc::SOL_IP, libc::IP_PKTINFO, [&[0; 4][..], &source.ip().octets(), &[0; 4]].concat())
        }
        SocketAddr::V6(source) => {
            let parts = [&source.ip().octets()[..], &source.scope_id().to_ne_bytes()];
            (libc::SOL_IPV6, libc::IPV6_PKTINFO, parts.concat())
        }
    };
    let length = HEADER.checked_add(data.len())?;
    let message = [&length.to_ne_bytes()[..HEADER - 8], &level.to_ne_bytes(), &kind.to_ne_bytes(), &data];
    control.get_mut(..length)?.copy_from_slice(&message.concat());
    Some(length)
}

/// Finds the destination among control messages. Each message has a header of length, level and type.
fn destination(mut control: &[u8]) -> Option<SocketAddr> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const LENGTH: usize = HEADER - 2 * size_of::<c_int>();
    while control.len() >= HEADER {
        let length = usize::from_ne_bytes(padded(control.get(..LENGTH)?));
        let number = |at: usize| control.get(at..at + 4)?.try_into().ok().map(c_int::from_ne_bytes);
        let (level, kind) = (number(LENGTH)?, number(LENGTH + 4)?);
        let data = control.get(HEADER..length)?;
        let wanted = (level == libc::SOL_IP && kind == libc::IP_RECVORIGDSTADDR)
            || (level == libc::SOL_IPV6 && kind == libc::IPV6_RECVORIGDSTADDR);
        if wanted {
            return socket_address(data);
        }
        control = control.get(length.next_multiple_of(size_of::<usize>())..)?;
    }
    None
}

fn padded(bytes: &[u8]) -> [u8; size_of::<usize>()] {
    let mut padded = [0; size_of::<usize>()];
    padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    padded
}

/// Reads `struct sockaddr_in` or `struct sockaddr_in6` (`ip(7)`, `ipv6(7)`).
fn socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Some((Ipv4Addr::from(*rest.first_chunk::<4>()?), port).into()),
        libc::AF_INET6 => {
            let (ip, rest) = rest.get(4..)?.split_first_chunk::<16>()?;
            // The interface, which a link-local address requires.
            let scope = u32::from_ne_bytes(*rest.first_chunk::<4>()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope).into())
        }
        _ => None,
    }
}

fn set(fd: BorrowedFd<'_>, level: c_int, option: c_int) -> Result<(), Errno> {
    set_value(fd, level, option, 1)
}

fn set_value(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or_default();
    // SAFETY: the descriptor is open for the borrow's lifetime. The pointer and the length describe `value`, which
    // outlives the call, and the kernel only reads it.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or_default())
}

fn system(call: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::System { call, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let length = size_of::<libc::cmsghdr>() + data.len();
        let mut bytes = length.to_ne_bytes()[..size_of::<libc::cmsghdr>() - 8].to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
        bytes
    }

    fn ipv4(port: u16) -> Vec<u8> {
        let family = u16::try_from(libc::AF_INET).unwrap().to_ne_bytes();
        [&family[..], &port.to_be_bytes(), &[10, 96, 0, 1], &[0; 8]].concat()
    }

    #[test]
    fn the_destination_is_found_after_other_control_messages() {
        let other = message(libc::SOL_IP, libc::IP_TTL, &64_u32.to_ne_bytes());
        let wanted = message(libc::SOL_IP, libc::IP_RECVORIGDSTADDR, &ipv4(53));
        let expected = "10.96.0.1:53".parse().ok();
        assert_eq!(destination(&[other.clone(), wanted].concat()), expected);
        assert_eq!(destination(&other), None);
    }

    #[test]
    fn a_link_local_address_has_its_interface() {
        let family = u16::try_from(libc::AF_INET6).unwrap().to_ne_bytes();
        let ip = "fe80::1".parse::<Ipv6Addr>().unwrap().octets();
        let bytes = [&family[..], &53_u16.to_be_bytes(), &[0; 4], &ip, &7_u32.to_ne_bytes()].concat();
        assert_eq!(socket_address(&bytes), "[fe80::1%7]:53".parse().ok());
        assert_eq!(socket_address(&bytes[..27]), None);
    }

    #[test]
    fn a_datagram_is_sent_from_the_address_that_is_named() {
        use std::net::UdpSocket;

        for (any, from, peer) in [("0.0.0.0:0", "127.0.0.9", "127.0.0.1:0"), ("[::]:0", "::1", "[::1]:0")] {
            let (sender, receiver) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(peer).unwrap());
            let port = sender.local_addr().unwrap().port();
            let source = SocketAddr::new(from.parse().unwrap(), port);
            send_from(&sender, b"answer", source, receiver.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 16];
            let (length, seen) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], seen), (&b"answer"[..], source));
        }
    }

    #[test]
    fn malformed_control_messages_have_no_destination() {
        let wanted = message(libc::SOL_IP, libc::IP_RECVORIGDSTADDR, &ipv4(53));
        for end in 0..wanted.len() - 8 {
            assert_eq!(destination(&wanted[..end]), None, "{end}");
        }
        assert_eq!(destination(&[0; 64]), None, "lengths of zero end the search");
        assert_eq!(destination(&[0xff; 64]), None);
    }
}
