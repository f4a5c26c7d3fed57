//! Moves threads into network namespaces. A socket stays in the namespace of the thread that opened it.

use std::os::fd::AsFd;
use std::thread;

use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{SocketError, option};

/// Runs `work` on a separate thread in a new, empty network namespace and returns its result. The namespace ends when
/// the thread and all sockets opened in it are gone, also when `work` panics. The panic is passed on.
///
/// Needs root, or a user namespace of its own.
pub fn in_new_network_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, SocketError> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: `NEWNET` changes only which network devices and sockets this new thread sees; it shares
            // no descriptors, memory or file system state that other threads rely on.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(SocketError::system("unshare(CLONE_NEWNET)"))?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns a number of the network namespace of the calling thread. The kernel never gives it to another namespace
/// until the next boot. Needs Linux 5.14.
pub fn cookie() -> Result<u64, SocketError> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(SocketError::system("socket"))?;
    option::namespace(socket.as_fd())
}

/// Moves the calling thread into the network namespace of a descriptor of `/proc/PID/ns/net` or `/run/netns/NAME`.
/// The thread stays there.
pub fn enter_network_namespace(namespace: impl AsFd) -> Result<(), SocketError> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(SocketError::system("setns(CLONE_NEWNET)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_that_of_one_namespace() {
        let own = cookie().expect("a number");
        assert_eq!(cookie().expect("a number"), own);
        let Ok(others) = in_new_network_namespace(cookie) else { return };
        assert_ne!(others.expect("a number"), own);
    }
}
