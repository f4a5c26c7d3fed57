//! Receives replies to requests, dumps and notifications.

use portolan_wire::netlink::NLMSG_DONE;
use portolan_wire::nfnetlink::{self, SUBSYSTEM_NFTABLES, subsystem_and_operation};
use portolan_wire::{DecodeError, Frame, Frames, Request};
use rustix::io::Errno as Os;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, recvfrom};

use crate::{Refusal, Socket, SocketError};

/// How long a read waits for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Waits for the kernel's reply, at most for the socket's timeout.
    Answer,
    /// Does not wait: returns at once if no datagram is queued.
    No,
}

impl Socket {
    /// Sends a request that is not a dump and passes each reply to `handle`.
    pub fn query(
        &mut self,
        request: &mut Request,
        mut handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), SocketError> {
        let sequence = self.next_sequence(1);
        self.send(request.bytes(sequence)?)?;
        let port = self.port;
        let mut outcome = Ok(());
        self.drain(|frame| {
            if frame.header.sequence == sequence && frame.header.port == port && outcome.is_ok() {
                outcome = answer(frame, &mut handle);
            }
            Ok(())
        })?;
        outcome
    }

    /// Requests a dump and passes each entry to `handle` as it is received. The whole list is never held in memory.
    ///
    /// After [`SocketError::Interrupted`] or [`SocketError::Overrun`], the entries passed to `handle` may be
    /// inconsistent: discard them and dump again. After an error of `handle`, the remaining entries are read and
    /// dropped.
    pub fn dump(
        &mut self,
        request: &mut Request,
        mut handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), SocketError> {
        let sequence = self.next_sequence(1);
        self.send(request.bytes(sequence)?)?;
        let mut buffer = self.take_buffer();
        let outcome = self.read_dump(&mut buffer, sequence, &mut handle);
        self.return_buffer(buffer);
        outcome
    }

    /// Passes the queued notifications to `handle` and returns their number. Does not wait: poll the descriptor.
    ///
    /// [`SocketError::Overrun`] means that notifications were lost. The remaining ones were passed to `handle` all
    /// the same.
    pub fn receive(
        &mut self,
        handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<usize, SocketError> {
        self.receive_at_most(usize::MAX, handle)
    }

    /// As [`receive`](Self::receive), but returns after this many datagrams even if more are queued. With it a caller that has
    /// something else to look at does so while notifications keep coming.
    pub fn receive_at_most(
        &mut self,
        datagrams: usize,
        mut handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<usize, SocketError> {
        let mut count = 0_usize;
        self.read_queued(datagrams, |frame| {
            count = count.saturating_add(1);
            handle(frame)
        })?;
        Ok(count)
    }

    /// Reads all queued datagrams. Continues after an overrun or an error of `handle` and returns that error at the
    /// end.
    pub(crate) fn drain(
        &mut self,
        handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), SocketError> {
        self.read_queued(usize::MAX, handle)
    }

    /// As [`drain`](Self::drain), for at most this many datagrams.
    fn read_queued(
        &mut self,
        datagrams: usize,
        mut handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), SocketError> {
        let mut buffer = self.take_buffer();
        let mut outcome = Ok(());
        for _ in 0..datagrams {
            match self.read(&mut buffer, Wait::No) {
                Ok(None) => break,
                Ok(Some(datagram)) => {
                    let result = Frames::new(datagram).try_for_each(|frame| handle(&frame?));
                    outcome = outcome.and(result.map_err(SocketError::from));
                }
                // An overrun takes precedence over a decode error.
                Err(error @ SocketError::Overrun) => outcome = Err(error),
                Err(error @ SocketError::Truncated { .. }) => outcome = outcome.and(Err(error)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.return_buffer(buffer);
        outcome
    }

    fn read_dump(
        &self,
        buffer: &mut [u8],
        sequence: u32,
        handle: &mut impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), SocketError> {
        let mut dump = Dump::new(sequence, self.port);
        loop {
            match self.read(buffer, Wait::Answer) {
                Ok(None) => {}
                Ok(Some(datagram)) => {
                    for frame in Frames::new(datagram) {
                        if let Some(end) = dump.frame(&frame?, handle) {
                            return end;
                        }
                    }
                }
                Err(SocketError::Overrun) => dump.overrun = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads one datagram from the kernel and skips those of other programs. Returns `None` if `wait` is [`Wait::No`]
    /// and none is queued.
    fn read<'b>(&self, buffer: &'b mut [u8], wait: Wait) -> Result<Option<&'b [u8]>, SocketError> {
        let flags = if wait == Wait::No { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        loop {
            let (length, sender) = match recvfrom(&self.fd, &mut *buffer, flags | RecvFlags::TRUNC) {
                Ok((_, length, sender)) => (length, sender),
                Err(Os::INTR) => continue,
                Err(Os::AGAIN) if wait == Wait::No => return Ok(None),
                Err(Os::AGAIN) => return Err(SocketError::Timeout),
                Err(Os::NOBUFS) => return Err(SocketError::Overrun),
                Err(errno) => return Err(SocketError::system("recvfrom")(errno)),
            };
            // Only the kernel has port 0. Other programs can send to this socket, too.
            let kernel = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if kernel.is_some_and(|sender| sender.pid() == 0) {
                return buffer.get(..length).map(Some).ok_or(SocketError::Truncated { length });
            }
        }
    }
}

/// The progress of a dump.
struct Dump {
    sequence: u32,
    port: u32,
    interrupted: bool,
    overrun: bool,
    generation: Option<u16>,
    wrong: Option<DecodeError>,
}

impl Dump {
    fn new(sequence: u32, port: u32) -> Self {
        Self { sequence, port, interrupted: false, overrun: false, generation: None, wrong: None }
    }

    /// Processes a frame. Returns the outcome at the end of the dump.
    fn frame(
        &mut self,
        frame: &Frame<'_>,
        handle: &mut impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Option<Result<(), SocketError>> {
        if frame.header.sequence != self.sequence || frame.header.port != self.port {
            return None;
        }
        self.interrupted |= frame.header.interrupted() || self.generation_moved(frame);
        match frame.acknowledgement() {
            None => {
                if self.wrong.is_none() {
                    self.wrong = handle(frame).err();
                }
                None
            }
            Some(Err(error)) => Some(Err(error.into())),
            Some(Ok(end)) if end.errno != 0 => {
                Some(Err(SocketError::Refused(Refusal::from_acknowledgement(end))))
            }
            // An acknowledgement without error precedes the entries if the request asked for one.
            Some(Ok(_)) if frame.header.kind != NLMSG_DONE => None,
            Some(Ok(_)) => Some(self.outcome()),
        }
    }

    /// Returns true if the ruleset's generation changed during the dump. Dumps of set elements lack the flag for this
    /// (kernel 6.18), but each message carries the low half of the generation's number.
    fn generation_moved(&mut self, frame: &Frame<'_>) -> bool {
        if subsystem_and_operation(frame.header.kind).0 != SUBSYSTEM_NFTABLES {
            return false;
        }
        let Ok(header) = nfnetlink::Header::decode(frame) else { return false };
        *self.generation.get_or_insert(header.resource) != header.resource
    }

    fn outcome(&self) -> Result<(), SocketError> {
        match self.wrong {
            _ if self.overrun => Err(SocketError::Overrun),
            _ if self.interrupted => Err(SocketError::Interrupted),
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

fn answer(
    frame: &Frame<'_>,
    handle: &mut impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
) -> Result<(), SocketError> {
    match frame.acknowledgement() {
        None => Ok(handle(frame)?),
        Some(acknowledgement) => match acknowledgement? {
            acknowledgement if acknowledgement.errno == 0 => Ok(()),
            refused => Err(SocketError::Refused(Refusal::from_acknowledgement(refused))),
        },
    }
}
