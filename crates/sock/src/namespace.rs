//! Moves threads into network namespaces. A socket stays in the namespace of the thread that opened it.

use std::os::fd::AsFd;
use std::thread;

use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{Errno, SocketError, option};

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

/// Returns a number of the network namespace of the calling thread, which no other namespace has at the same time. Since
/// Linux 5.14, no other namespace has it until the next boot. Before, a later namespace may have it after this one ended.
pub fn number() -> Result<u64, SocketError> {
    match cookie() {
        Err(SocketError::System { errno: Errno(libc::ENOPROTOOPT), .. }) => inode(),
        result => result,
    }
}

/// Returns the number of the kernel's cookie. Needs Linux 5.14.
fn cookie() -> Result<u64, SocketError> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(SocketError::system("socket"))?;
    option::namespace(socket.as_fd())
}

/// Returns the number of the file that stands for the namespace. Cookies are counted from 1, and these numbers from
/// 0xf0000000, so that they do not meet.
fn inode() -> Result<u64, SocketError> {
    let file = rustix::fs::stat("/proc/thread-self/ns/net");
    file.map(|file| file.st_ino).map_err(SocketError::system("stat(/proc/thread-self/ns/net)"))
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
        for number in [number, cookie, inode] {
            let own = number().expect("a number");
            assert_eq!(number().expect("a number"), own);
            let Ok(others) = in_new_network_namespace(number) else { return };
            assert_ne!(others.expect("a number"), own);
        }
    }
}
