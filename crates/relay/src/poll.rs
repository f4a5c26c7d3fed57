//! The sockets that the thread waits for, each with a token.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::slots::Slot;

/// The receiver of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// The client's socket of a connection.
    Client(Slot),
    /// The backend's socket of a connection.
    Backend(Slot),
    /// The backend's socket of a UDP flow.
    Flow(Slot),
    /// A listener, by its index.
    Listener(u8),
    /// The eventfd: commands have arrived.
    Wake,
}

const KIND_SHIFT: u32 = 62;
const WAKE: u64 = 0xff;

impl Token {
    fn to_bits(self) -> u64 {
        let (kind, rest) = match self {
            Self::Client(slot) => (0, slot.to_bits()),
            Self::Backend(slot) => (1, slot.to_bits()),
            Self::Flow(slot) => (2, slot.to_bits()),
            Self::Listener(number) => (3, u64::from(number)),
            Self::Wake => (3, WAKE),
        };
        (kind << KIND_SHIFT) | rest
    }

    #[expect(clippy::cast_possible_truncation, reason = "the token was made of a u8")]
    fn from_bits(bits: u64) -> Self {
        let rest = bits & ((1 << KIND_SHIFT) - 1);
        match bits >> KIND_SHIFT {
            0 => Self::Client(Slot::from_bits(rest)),
            1 => Self::Backend(Slot::from_bits(rest)),
            2 => Self::Flow(Slot::from_bits(rest)),
            _ if rest == WAKE => Self::Wake,
            _ => Self::Listener(rest as u8),
        }
    }
}

/// The events of a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness(EventFlags);

impl Readiness {
    /// Returns true if there is something to read: data, the end, or an error.
    pub(crate) fn readable(self) -> bool {
        self.0.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns true if there is room to write, or if a write returns an error.
    pub(crate) fn writable(self) -> bool {
        self.0.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns true if the end or an error can be read after the data.
    pub(crate) fn ended(self) -> bool {
        self.0.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns true if the end can be read after the data, and no error.
    pub(crate) fn only_ended(self) -> bool {
        self.0.contains(EventFlags::RDHUP) && !self.0.intersects(EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns true if the socket failed. `SO_ERROR` has the reason.
    pub(crate) fn failed(self) -> bool {
        self.0.intersects(EventFlags::ERR | EventFlags::HUP)
    }

    /// Returns true if there is a byte of urgent data.
    pub(crate) fn urgent(self) -> bool {
        self.0.contains(EventFlags::PRI)
    }
}

/// Returns true if an attempt to connect has ended: the socket is connected, or failed. Its event may still be to come, because
/// this thread was not run for a while, or because it takes a limited number of events at once.
pub(crate) fn attempt_has_ended(socket: impl AsFd) -> bool {
    let mut sockets = [PollFd::new(&socket, PollFlags::OUT)];
    // Nothing is waited for. An error means that the socket cannot be asked; then the limit counts.
    poll(&mut sockets, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

const EVENTS_AT_ONCE: usize = 256;
/// Everything that can be read, edge-triggered.
const EACH_READ: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::PRI).union(EventFlags::ET);

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches a stream for everything, edge-triggered. The watch ends with the socket.
    pub(crate) fn watch_stream(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), EACH_READ | EventFlags::OUT)
    }

    /// Like [`Self::watch_stream`], without room to write: a connected socket has room at first, and most always have it.
    pub(crate) fn watch_connected(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), EACH_READ)
    }

    /// Watches a stream for room to write as well.
    pub(crate) fn watch_writable(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.to_bits()), EACH_READ | EventFlags::OUT)
    }

    /// Watches a socket for something to read, level-triggered.
    pub(crate) fn watch_reads(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), EventFlags::IN)
    }

    pub(crate) fn forget(&self, fd: impl AsFd) {
        // Fails only if the socket is not watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, at most for `timeout`, and appends them to `readiness`.
    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
        readiness: &mut Vec<(Token, Readiness)>,
    ) -> Result<(), Errno> {
        // Rounded up to milliseconds: a thread that wakes before its deadline has to wait again.
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_millis()) * 1_000_000
                + if time.subsec_nanos() % 1_000_000 > 0 { 999_999 } else { 0 },
        });
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                readiness.extend(
                    events.iter().map(|event| (Token::from_bits(event.data.u64()), Readiness(event.flags))),
                );
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rustix::net::{
        AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen, socket, socket_with,
    };

    use super::*;
    use crate::slots::Slots;

    #[test]
    fn tokens_are_read_back() {
        let mut slots = Slots::default();
        for _ in 0..3 {
            let slot = slots.insert(());
            for token in [
                Token::Client(slot),
                Token::Backend(slot),
                Token::Flow(slot),
                Token::Listener(7),
                Token::Wake,
            ] {
                assert_eq!(Token::from_bits(token.to_bits()), token);
            }
            slots.remove(slot);
        }
    }

    #[test]
    fn an_attempt_that_waits_for_its_answer_has_not_ended() {
        let to = |port| SocketAddr::from(([127, 0, 0, 1], port));
        // A listener that accepts nothing has room for two connections. It drops what more of them send.
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &to(0)).unwrap();
        listen(&listener, 0).unwrap();
        let port = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap().port();
        let start = |port| {
            let socket =
                socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            let _ = connect(&socket, &to(port));
            socket
        };
        let attempts: Vec<_> = (0..6).map(|_| start(port)).collect();
        assert!(attempt_has_ended(&attempts[0]), "connected");
        assert!(!attempt_has_ended(&attempts[5]), "not answered");
        drop(listener);
        assert!(attempt_has_ended(start(port)), "refused");
    }
}
