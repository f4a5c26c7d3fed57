//! Connections of `tcp` probes that are begun together. On most networks an endpoint answers while the other connections
//! are being begun, so one poll(2) finds most answers, and their probes need no task, timer or registration with epoll.
//!
//! Two things make such a probe cheap for the kernel:
//! - The connection is reset before this node sends the last packet of the handshake, with which the kernel waits if
//!   `TCP_QUICKACK` is off. The endpoint's kernel then makes no connection and does not wake the program.
//! - A socket is used again. connect(2) with `AF_UNSPEC` resets the connection, frees its local port and keeps the socket.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::{Failure, ProbeOutcome, of_answer, socket};

/// A poll(2) that does not wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What poll(2) reported of a connection: empty while the endpoint has not answered.
pub(super) type Answer = PollFlags;

/// Sockets without a connection, to be used again.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    ipv4: Vec<OwnedFd>,
    ipv6: Vec<OwnedFd>,
}

impl Sockets {
    /// Begins a connection.
    pub(super) fn begin(&mut self, address: SocketAddr) -> Result<OwnedFd, ProbeOutcome> {
        let socket = match self.of(address).pop() {
            Some(socket) => socket,
            None => socket::new(address)?,
        };
        // If this fails, the endpoint gets a whole connection.
        let _ = sockopt::set_tcp_quickack(&socket, false);
        socket::begin(&socket, address)?;
        Ok(socket)
    }

    /// Ends a connection of which there is an answer. Returns the outcome.
    pub(super) fn end(&mut self, socket: OwnedFd, address: SocketAddr, answer: Answer) -> ProbeOutcome {
        let outcome = outcome(&socket, address, answer);
        if outcome == ProbeOutcome::Passed && rustix::net::connect_unspec(&socket).is_ok() {
            self.of(address).push(socket);
        } else {
            // If this fails, the socket waits for a minute, which does no harm.
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
        outcome
    }

    /// Closes all sockets but `most`.
    pub(super) fn keep(&mut self, most: usize) {
        self.ipv4.truncate(most);
        self.ipv6.truncate(most.saturating_sub(self.ipv4.len()));
    }

    /// Returns how many sockets are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.ipv4.len().saturating_add(self.ipv6.len())
    }

    fn of(&mut self, address: SocketAddr) -> &mut Vec<OwnedFd> {
        if address.is_ipv4() { &mut self.ipv4 } else { &mut self.ipv6 }
    }
}

/// Returns what is known of connections, in their order. Does not wait.
pub(super) fn answers<'a>(sockets: impl Iterator<Item = &'a OwnedFd>) -> Vec<Answer> {
    let mut polled: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
    // After an error nothing is known of any of them. Each is waited for.
    let _ = poll(&mut polled, Some(&AT_ONCE));
    polled.iter().map(PollFd::revents).collect()
}

fn outcome(socket: &OwnedFd, address: SocketAddr, answer: Answer) -> ProbeOutcome {
    if answer.intersects(PollFlags::ERR | PollFlags::HUP) {
        let error = sockopt::socket_error(socket).and_then(std::convert::identity);
        if let Err(errno) = error {
            return of_answer(&errno.into());
        }
    }
    let own = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    if own.is_ok_and(|own| socket::is_itself(own, address)) {
        return ProbeOutcome::Failed(Failure::Refused);
    }
    ProbeOutcome::Passed
}

/// Connects to an endpoint by itself.
pub(super) async fn probe(address: SocketAddr) -> Result<(), ProbeOutcome> {
    let socket = Sockets::default().begin(address)?;
    wait(socket, address).await
}

/// Waits for the answer of a connection that has begun.
pub(super) async fn wait(socket: OwnedFd, address: SocketAddr) -> Result<(), ProbeOutcome> {
    // The answer may be there, and the deadline over, before the runtime has looked at the socket.
    let answer = answers(std::iter::once(&socket)).pop().unwrap_or(Answer::empty());
    if !answer.is_empty() {
        let outcome = outcome(&socket, address, answer);
        let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        return if outcome == ProbeOutcome::Passed { Ok(()) } else { Err(outcome) };
    }
    socket::established(socket, address).await.map(socket::close)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_itself_is_refused() {
        let socket = socket::new(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let own = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        let _ = rustix::net::connect(&socket, &own);
        let mut sockets = Sockets::default();
        assert_eq!(sockets.end(socket, own, PollFlags::OUT), ProbeOutcome::Failed(Failure::Refused));
        assert!(sockets.ipv4.is_empty());
    }

    #[test]
    fn a_socket_is_used_again_after_a_probe_that_passed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let mut sockets = Sockets::default();
        let mut ports = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let socket = sockets.begin(open).unwrap();
            ports.insert(SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap().port());
            assert_eq!(sockets.end(socket, open, PollFlags::OUT), ProbeOutcome::Passed);
            assert_eq!(sockets.ipv4.len(), 1);
        }
        assert!(ports.len() > 1, "each connection has a local port of its own: {ports:?}");
        // A child process of another test may hold a copy, so that dropping it is not enough.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        let socket = sockets.begin(open).unwrap();
        let refused = sockets.end(socket, open, PollFlags::OUT | PollFlags::ERR);
        assert_eq!(refused, ProbeOutcome::Failed(Failure::Refused));
        assert!(sockets.ipv4.is_empty(), "a socket with an error is closed");
    }
}
