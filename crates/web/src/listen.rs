//! Listening sockets with Go's meaning of an unspecified address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The meaning of an unspecified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildcard {
    /// Every address of both families.
    BothFamilies,
    /// Every address of its own family.
    OneFamily,
}

/// Opens a listening socket, close-on-exec and non-blocking.
pub fn listen(address: SocketAddr, wildcard: Wildcard) -> io::Result<TcpListener> {
    listen_with(address, wildcard, open)
}

/// Listens with `open`, whose arguments are an address and whether an IPv6 socket must not accept IPv4.
fn listen_with<T>(
    address: SocketAddr,
    wildcard: Wildcard,
    open: impl Fn(SocketAddr, bool) -> io::Result<T>,
) -> io::Result<T> {
    if wildcard == Wildcard::OneFamily || !address.ip().is_unspecified() {
        return open(address, true);
    }
    let any = |ip: IpAddr| SocketAddr::new(ip, address.port());
    match open(any(Ipv6Addr::UNSPECIFIED.into()), false) {
        // The host has no IPv6, or its IPv6 sockets cannot accept IPv4.
        Err(error) if without_dual_stack(&error) => open(any(Ipv4Addr::UNSPECIFIED.into()), true),
        opened => opened,
    }
}

fn open(address: SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn without_dual_stack(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT, Errno::NOPROTOOPT, Errno::ADDRNOTAVAIL].contains(&errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_ipv6_gets_an_ipv4_socket() {
        let open = |address: SocketAddr, v6_only| {
            if address.is_ipv6() { Err(io::Error::from(Errno::AFNOSUPPORT)) } else { Ok((address, v6_only)) }
        };
        let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 10256);
        for any in [v4, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 10256)] {
            let opened = listen_with(any, Wildcard::BothFamilies, open).expect("IPv4 is there");
            assert_eq!(opened, (v4, true), "{any}");
        }
        let v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 10256);
        let refused = listen_with(v6, Wildcard::BothFamilies, open).expect_err("nothing stands for it");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::AFNOSUPPORT));
    }

    #[test]
    fn a_taken_port_is_not_mistaken_for_a_missing_family() {
        let open = |_: SocketAddr, _| Err::<(), _>(io::Error::from(Errno::ADDRINUSE));
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 10256);
        let refused = listen_with(any, Wildcard::BothFamilies, open).expect_err("it is taken");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}
