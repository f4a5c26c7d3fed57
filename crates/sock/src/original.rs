//! Options of sockets that use addresses of other hosts.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

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

/// Directs new connections to one of the listeners that share a port by `SO_REUSEPORT`: to that with this index, in the order
/// in which they were opened. If there are not that many, the kernel distributes connections over all
/// (`SO_ATTACH_REUSEPORT_CBPF`, `socket(7)`). The last call for any of the listeners counts.
pub fn direct_to_listener(fd: impl AsFd, index: u32) -> Result<(), SocketError> {
    attach(fd.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, index)
        .map_err(system("setsockopt(SO_ATTACH_REUSEPORT_CBPF)"))
}

/// Makes a socket receive nothing: the kernel drops the packets that arrive at it (`SO_ATTACH_FILTER`, `socket(7)`).
pub fn receive_nothing(fd: impl AsFd) -> Result<(), SocketError> {
    attach(fd.as_fd(), libc::SO_ATTACH_FILTER, 0).map_err(system("setsockopt(SO_ATTACH_FILTER)"))
}

/// Attaches a program that returns a constant.
fn attach(fd: BorrowedFd<'_>, option: c_int, value: u32) -> Result<(), Errno> {
    // `BPF_RET | BPF_K` of `linux/bpf_common.h`: returns a constant.
    let filter = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    let program = libc::sock_fprog { len: 1, filter: (&raw const filter).cast_mut() };
    let length = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or_default();
    // SAFETY: the descriptor is open for the borrow's lifetime. The pointer and the length describe `program`, and its
    // pointer and length describe `filter`. Both outlive the call, and the kernel only reads them.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
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
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn system(call: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::System { call, errno }
}
