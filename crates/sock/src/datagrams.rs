//! Datagrams of UDP, several in one system call. Datagrams of one length that are sent together pass through the network
//! stack as one packet, which the kernel divides at the device (`UDP_SEGMENT`, `udp(7)`).

use std::ffi::c_int;
use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::net::SocketAddrAny;
use rustix::net::addr::SocketAddrStorage;

use crate::Errno;

/// The maximum number of datagrams in one call: the kernel divides a packet into as many (`UDP_MAX_SEGMENTS`,
/// `linux/udp.h`, 64 before Linux 6.9).
pub const BATCH: usize = 64;
/// Room for one datagram in bytes (RFC 768).
const DATAGRAM_MAX: usize = 1 << 16;
/// The maximum number of bytes that are sent as one packet: less than the maximum length of an IP packet with its headers.
const TOGETHER_MAX: usize = 65_000;
/// Room for control messages in bytes.
const CONTROL_LENGTH: usize = 96;
/// Length of a control message's header in bytes.
const HEADER: usize = size_of::<libc::cmsghdr>();

/// A buffer with the alignment of a control message's header.
#[derive(Clone, Copy)]
#[repr(align(8))]
struct Control([u8; CONTROL_LENGTH]);

/// A socket address as the kernel writes it.
type Name = [u8; size_of::<SocketAddrStorage>()];

/// The datagrams that one call received. Its 4 MiB are used only where datagrams are stored.
pub struct Batch {
    data: Box<[u8]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    lengths: Vec<Lengths>,
}

/// The lengths of a datagram, its sender's address and its control messages in bytes.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    data: usize,
    name: usize,
    control: usize,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("lengths", &self.lengths).finish_non_exhaustive()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            data: vec![0; BATCH * DATAGRAM_MAX].into(),
            names: vec![[0; size_of::<SocketAddrStorage>()]; BATCH].into(),
            controls: vec![Control([0; CONTROL_LENGTH]); BATCH].into(),
            lengths: Vec::with_capacity(BATCH),
        }
    }
}

impl Batch {
    /// Receives the datagrams that have arrived, at most [`BATCH`], in place of those received before. Returns their
    /// number. Does not wait.
    pub fn receive(&mut self, fd: impl AsFd) -> Result<usize, Errno> {
        self.lengths.clear();
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut parts = [empty; BATCH];
        // SAFETY: all zeros are valid, with null pointers and no lengths.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let buffers = self.data.chunks_exact_mut(DATAGRAM_MAX).zip(&mut self.names).zip(&mut self.controls);
        for ((message, part), ((data, name), control)) in messages.iter_mut().zip(&mut parts).zip(buffers) {
            *part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
            let header = &mut message.msg_hdr;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = libc::socklen_t::try_from(name.len()).unwrap_or_default();
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_LENGTH as _;
        }
        // SAFETY: the descriptor is open for the borrow's lifetime. Every pointer in the messages points to memory that
        // outlives the call, with its length beside it, and nothing else refers to that memory during the call.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                libc::c_uint::try_from(messages.len()).unwrap_or_default(),
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else { return Err(Errno::last()) };
        self.lengths.extend(messages.iter().take(count).map(|message| Lengths {
            data: message.msg_len as usize,
            name: message.msg_hdr.msg_namelen as usize,
            #[allow(clippy::unnecessary_cast, reason = "the C library decides about the type")]
            control: message.msg_hdr.msg_controllen as usize,
        }));
        Ok(self.lengths.len())
    }

    /// Returns the datagrams in the order of their arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let buffers = self.data.chunks_exact(DATAGRAM_MAX).zip(&self.names).zip(&self.controls);
        self.lengths.iter().zip(buffers).map(|(lengths, ((data, name), control))| Datagram {
            data: data.get(..lengths.data).unwrap_or_default(),
            name: name.get(..lengths.name).unwrap_or_default(),
            control: control.0.get(..lengths.control).unwrap_or_default(),
        })
    }
}

/// A received datagram.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    name: &'a [u8],
    control: &'a [u8],
}

impl Datagram<'_> {
    /// Returns the sender's address.
    pub fn source(&self) -> Option<SocketAddr> {
        socket_address(self.name)
    }

    /// Returns the sender's address and the original destination, if the socket reports it
    /// ([`set_receive_original_destination`](crate::original::set_receive_original_destination)).
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.source().zip(destination(self.control))
    }
}

/// The addresses with which datagrams are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// Those of a connected socket.
    Connected,
    /// From the address of a bound socket.
    To(SocketAddr),
    /// From an address to which the socket need not be bound (`IP_PKTINFO`, `ip(7)`): one of this host, or any if the socket
    /// is transparent. The port is that of the socket. The scope of a link-local address selects the interface.
    Between {
        /// The sender's address.
        source: SocketAddr,
        /// The receiver's address.
        destination: SocketAddr,
    },
}

/// Returns how many of the first datagrams [`send`] can send together: those of the same length, and one shorter after
/// them.
pub fn together(datagrams: &[IoSlice<'_>]) -> usize {
    let Some(length) = datagrams.first().map(|first| first.len()).filter(|&length| length > 0) else {
        return datagrams.len().min(1);
    };
    let most = (TOGETHER_MAX / length).clamp(1, BATCH);
    let same = datagrams.iter().take(most).take_while(|datagram| datagram.len() == length).count();
    let shorter = datagrams.get(same).is_some_and(|next| (1..length).contains(&next.len()));
    same + usize::from(shorter && same < most)
}

/// Sends datagrams in one call, all or none of them. Several need to be [`together`], and there must be one. Does not wait.
///
/// # Errors
/// The kernel's error. Of several datagrams, `EINVAL`, `EIO` or `EMSGSIZE` may mean that these cannot be sent together:
/// each is longer than the MTU, or the device cannot compute checksums.
pub fn send(fd: impl AsFd, datagrams: &[IoSlice<'_>], addresses: Addresses) -> Result<(), Errno> {
    let mut control = Control([0; CONTROL_LENGTH]);
    let mut control_length = 0;
    let (source, destination) = match addresses {
        Addresses::Connected => (None, None),
        Addresses::To(destination) => (None, Some(destination)),
        Addresses::Between { source, destination } => (Some(source), Some(destination)),
    };
    let mut add = |level, kind, data: &[u8]| {
        let room = control.0.get_mut(control_length..).unwrap_or_default();
        control_length += write_control(room, level, kind, data).ok_or(Errno::EINVAL)?;
        Ok::<(), Errno>(())
    };
    if let (Some(first), true) = (datagrams.first(), datagrams.len() > 1) {
        let length = u16::try_from(first.len()).map_err(|_| Errno::EMSGSIZE)?;
        add(libc::SOL_UDP, libc::UDP_SEGMENT, &length.to_ne_bytes())?;
    }
    match source {
        // The index of the interface, the source, and the destination, which the kernel ignores.
        Some(SocketAddr::V4(source)) => {
            add(libc::SOL_IP, libc::IP_PKTINFO, &[&[0; 4][..], &source.ip().octets(), &[0; 4]].concat())?;
        }
        Some(SocketAddr::V6(source)) => {
            let parts = [&source.ip().octets()[..], &source.scope_id().to_ne_bytes()];
            add(libc::SOL_IPV6, libc::IPV6_PKTINFO, &parts.concat())?;
        }
        None => {}
    }
    let name = destination.map(SocketAddrAny::from);
    // SAFETY: all zeros are a valid `msghdr`, with null pointers and no lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(name) = &name {
        message.msg_name = name.as_ptr().cast_mut().cast();
        message.msg_namelen = name.addr_len();
    }
    // An `IoSlice` has the layout of an `iovec`.
    message.msg_iov = datagrams.as_ptr().cast_mut().cast();
    message.msg_iovlen = datagrams.len() as _;
    if control_length > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control_length as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open for the borrow's lifetime. Every pointer in the message points to memory that
    // outlives the call, with its length beside it, and the kernel only reads it.
    let sent = unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Writes a control message and returns its length with the padding after it.
fn write_control(room: &mut [u8], level: c_int, kind: c_int, data: &[u8]) -> Option<usize> {
    let length = HEADER.checked_add(data.len())?;
    let message = [&length.to_ne_bytes()[..HEADER - 8], &level.to_ne_bytes(), &kind.to_ne_bytes(), data];
    room.get_mut(..length)?.copy_from_slice(&message.concat());
    Some(length.next_multiple_of(size_of::<usize>()))
}

/// Finds the destination among control messages. Each message has a header of length, level and type.
fn destination(mut control: &[u8]) -> Option<SocketAddr> {
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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::original::set_receive_original_destination;

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

    /// Waits for a datagram, and receives those that have arrived.
    fn receive(batch: &mut Batch, receiver: &UdpSocket) {
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        receiver.peek_from(&mut [0; 1]).unwrap();
        batch.receive(receiver).unwrap();
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
        for (any, from, peer) in [("0.0.0.0:0", "127.0.0.9", "127.0.0.1:0"), ("[::]:0", "::1", "[::1]:0")] {
            let (sender, receiver) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(peer).unwrap());
            let port = sender.local_addr().unwrap().port();
            let source = SocketAddr::new(from.parse().unwrap(), port);
            let addresses = Addresses::Between { source, destination: receiver.local_addr().unwrap() };
            send(&sender, &[IoSlice::new(b"answer")], addresses).unwrap();
            let mut buffer = [0; 16];
            let (length, seen) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], seen), (&b"answer"[..], source));
        }
    }

    #[test]
    fn datagrams_that_are_sent_together_arrive_one_by_one() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let (sender, receiver) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            set_receive_original_destination(&receiver, any.starts_with('[')).unwrap();
            let (source, destination) = (sender.local_addr().unwrap(), receiver.local_addr().unwrap());
            let texts = ["first", "other", "third", "end"];
            let parts = texts.map(|text| IoSlice::new(text.as_bytes()));
            assert_eq!(together(&parts), parts.len());
            send(&sender, &parts, Addresses::To(destination)).unwrap();
            send(&sender, &parts, Addresses::Between { source, destination }).unwrap();
            sender.connect(destination).unwrap();
            send(&sender, &parts, Addresses::Connected).unwrap();

            let mut batch = Batch::default();
            let mut expected = texts.iter().cycle().take(3 * texts.len()).peekable();
            while expected.peek().is_some() {
                receive(&mut batch, &receiver);
                for datagram in batch.datagrams() {
                    assert_eq!(Some(datagram.data), expected.next().map(|text| text.as_bytes()));
                    assert_eq!(datagram.addresses(), Some((source, destination)));
                }
            }
            assert_eq!(batch.receive(&receiver), Err(Errno(libc::EAGAIN)));
            assert_eq!(batch.datagrams().count(), 0, "datagrams received before are gone");
        }
    }

    #[test]
    fn the_longest_and_the_shortest_datagrams_arrive() {
        let (sender, receiver) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let longest = vec![7; 65_507];
        for data in [&longest[..], &[]] {
            send(&sender, &[IoSlice::new(data)], Addresses::Connected).unwrap();
        }
        let (mut batch, mut lengths) = (Batch::default(), Vec::new());
        while lengths.len() < 2 {
            receive(&mut batch, &receiver);
            lengths.extend(batch.datagrams().map(|datagram| datagram.data.len()));
        }
        assert_eq!(lengths, [65_507, 0]);
    }

    #[test]
    fn datagrams_of_one_length_and_a_shorter_one_go_together() {
        let count = |lengths: &[usize]| {
            let data = vec![0; DATAGRAM_MAX];
            let parts: Vec<_> = lengths.iter().map(|&length| IoSlice::new(&data[..length])).collect();
            together(&parts)
        };
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[0, 0]), 1, "an empty datagram goes alone");
        assert_eq!(count(&[5, 5, 0]), 2);
        assert_eq!(count(&[5, 5, 3, 3]), 3);
        assert_eq!(count(&[5, 5, 6]), 2);
        assert_eq!(count(&[40_000, 5]), 1, "longer than one packet");
        assert_eq!(count(&[1_000; 80]), BATCH);
        assert_eq!(count(&[1_400; 80]), 46, "65,000 bytes at most");
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
