//! The sockets that the thread waits for, each known by a token.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::slots::Slot;

/// Who an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// The client's socket of a connection.
    Client(Slot),
    /// The backend's socket of a connection.
    Backend(Slot),
    /// The backend's socket of a UDP flow.
    Flow(Slot),
    /// A listener, by its number.
    Listener(u8),
    /// There are commands.
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

/// What happened to a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct News(EventFlags);

impl News {
    /// There is something to read: data, the end, or an error.
    pub(crate) fn readable(self) -> bool {
        self.0.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// There is room to write, or an error to be had by writing.
    pub(crate) fn writable(self) -> bool {
        self.0.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// More than data waits to be read: the end or an error.
    pub(crate) fn ended(self) -> bool {
        self.0.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// The end waits to be read behind the data, and no error.
    pub(crate) fn only_ended(self) -> bool {
        self.0.contains(EventFlags::RDHUP) && !self.0.intersects(EventFlags::HUP | EventFlags::ERR)
    }

    /// It failed: `SO_ERROR` has the reason.
    pub(crate) fn failed(self) -> bool {
        self.0.intersects(EventFlags::ERR | EventFlags::HUP)
    }

    /// There is a byte of urgent data.
    pub(crate) fn urgent(self) -> bool {
        self.0.contains(EventFlags::PRI)
    }
}

const EVENTS_AT_ONCE: usize = 256;
/// All that can be read, once for each change.
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

    /// Tells of everything that a stream may do, once for each change. Ends with the socket.
    pub(crate) fn watch_stream(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), EACH_READ | EventFlags::OUT)
    }

    /// The same, but for room to write: a socket that is connected has that at first, and most never lack it.
    pub(crate) fn watch_connected(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), EACH_READ)
    }

    /// From now on also tells of room to write.
    pub(crate) fn watch_room(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.to_bits()), EACH_READ | EventFlags::OUT)
    }

    /// Tells that there is something to read for as long as there is.
    pub(crate) fn watch_reads(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), EventFlags::IN)
    }

    pub(crate) fn forget(&self, fd: impl AsFd) {
        // A socket that is not watched needs nothing.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, at most for `timeout`, and adds them to `news`.
    pub(crate) fn wait(&self, timeout: Option<Duration>, news: &mut Vec<(Token, News)>) -> Result<(), Errno> {
        // Rounded up: waking before a deadline would mean waking twice.
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_millis()) * 1_000_000
                + if time.subsec_nanos() % 1_000_000 > 0 { 999_999 } else { 0 },
        });
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                news.extend(
                    events.iter().map(|event| (Token::from_bits(event.data.u64()), News(event.flags))),
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
}
