//! Error numbers of the kernel with the names that operators search for.

use std::fmt;

/// A kernel error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The ruleset's generation changed: another program committed first.
    pub const ERESTART: Self = Self(libc::ERESTART);
    /// Not permitted: `CAP_NET_ADMIN` is missing.
    pub const EPERM: Self = Self(libc::EPERM);
    /// No such object.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// No such route.
    pub const ESRCH: Self = Self(libc::ESRCH);
    /// A signal arrived.
    pub const EINTR: Self = Self(libc::EINTR);
    /// The object exists.
    pub const EEXIST: Self = Self(libc::EEXIST);
    /// The kernel does not understand or does not support the request.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// A route of the type `prohibit`, or no permission.
    pub const EACCES: Self = Self(libc::EACCES);
    /// No route leads there.
    pub const ENETUNREACH: Self = Self(libc::ENETUNREACH);
    /// A route of the type `unreachable`.
    pub const EHOSTUNREACH: Self = Self(libc::EHOSTUNREACH);
    /// The object is in use.
    pub const EBUSY: Self = Self(libc::EBUSY);
    /// The kernel does not have the socket option.
    pub const ENOPROTOOPT: Self = Self(libc::ENOPROTOOPT);
    /// The operation is not supported.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// Messages were lost because the receive buffer was full.
    pub const ENOBUFS: Self = Self(libc::ENOBUFS);
    /// The message is longer than the send buffer.
    pub const EMSGSIZE: Self = Self(libc::EMSGSIZE);

    /// Returns the error of this thread's last system call.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or_default())
    }

    /// Returns the symbolic name, such as `ENOENT`, or `None` if it is not in the list below.
    pub fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::ESRCH => "ESRCH",
            libc::EIO => "EIO",
            libc::E2BIG => "E2BIG",
            libc::EBADF => "EBADF",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::ENOSPC => "ENOSPC",
            libc::EMLINK => "EMLINK",
            libc::ERANGE => "ERANGE",
            libc::ENAMETOOLONG => "ENAMETOOLONG",
            libc::ELOOP => "ELOOP",
            libc::EOVERFLOW => "EOVERFLOW",
            libc::ERESTART => "ERESTART",
            libc::EMSGSIZE => "EMSGSIZE",
            libc::ENOPROTOOPT => "ENOPROTOOPT",
            libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EAFNOSUPPORT => "EAFNOSUPPORT",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::ENETDOWN => "ENETDOWN",
            libc::ENOBUFS => "ENOBUFS",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::ECONNREFUSED => "ECONNREFUSED",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}
