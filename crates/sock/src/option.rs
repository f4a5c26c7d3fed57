//! The socket options that rustix does not wrap.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::{Errno, SocketError};

/// An option of level `SOL_NETLINK` whose value is an integer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NetlinkOption {
    /// Join a multicast group.
    AddMembership,
    /// Error replies hold only the header of the failed message.
    CapAck,
    /// Error replies carry a text and the offset of the wrong attribute.
    ExtAck,
    /// The kernel refuses dump filters that it does not know.
    StrictCheck,
}

impl NetlinkOption {
    fn number(self) -> c_int {
        match self {
            Self::AddMembership => libc::NETLINK_ADD_MEMBERSHIP,
            Self::CapAck => libc::NETLINK_CAP_ACK,
            Self::ExtAck => libc::NETLINK_EXT_ACK,
            Self::StrictCheck => libc::NETLINK_GET_STRICT_CHK,
        }
    }
}

/// Sets an option of a netlink socket.
pub(crate) fn set(fd: BorrowedFd<'_>, option: NetlinkOption, value: u32) -> Result<(), SocketError> {
    let length = libc::socklen_t::try_from(size_of::<u32>()).unwrap_or_default();
    // SAFETY: the descriptor is open for the borrow's lifetime; the pointer and the length describe `value`,
    // which outlives the call, and the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option.number(),
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
    Err(SocketError::System { call: "setsockopt(SOL_NETLINK)", errno: Errno(errno) })
}

/// Returns the number of the network namespace of a socket. The kernel never gives it to another namespace until the
/// next boot. Needs Linux 5.14.
pub(crate) fn namespace(fd: BorrowedFd<'_>) -> Result<u64, SocketError> {
    let mut value = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or_default();
    // SAFETY: the descriptor is open for the borrow's lifetime; the pointers and the length describe `value` and
    // `length`, which outlive the call, and the kernel writes at most that many bytes.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok(value);
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
    Err(SocketError::System { call: "getsockopt(SO_NETNS_COOKIE)", errno: Errno(errno) })
}
