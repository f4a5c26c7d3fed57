//! One direction of a connection: moves data, the end and urgent data from one socket to the other.
//!
//! Small messages go through a buffer of the thread, which is faster than a pipe. A direction that fills this buffer goes
//! on with splice, which copies nothing to user space, as long as data keeps coming. Its pipe is returned as soon as it
//! is empty, so an idle connection has none.
//!
//! Packets are the main cost of a short connection. So data that a client has already sent goes to a backend with the
//! last packet of the handshake ([`Direction::has_first_words`]), and the last data is sent with the end that follows it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

/// Bytes of one read into the buffer.
pub(crate) const BUFFER: usize = 16 << 10;
/// Bytes of one read while much data waits for slow readers.
const SMALL: usize = 1 << 10;
/// Bytes that may wait for slow readers before reads become smaller.
const WAITING_MAX: usize = 32 << 20;
/// Bytes of one splice: more than a pipe holds.
const SPLICE: usize = 1 << 20;
/// Bytes that a direction may move before other connections have their turn.
const TURN: usize = 1 << 20;
/// Empty pipes kept for reuse.
const SPARE_PIPES: usize = 64;

/// One socket of a connection, and its state.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a socket")]
pub(crate) struct End {
    pub(crate) fd: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The end, an error or the urgent mark may follow the data: reading goes on until `EAGAIN`.
    pub(crate) ended: bool,
    /// The data is followed by the end, and by nothing else.
    pub(crate) is_last: bool,
    pub(crate) urgent: bool,
    /// An operation failed with `ETIMEDOUT`: the kernel gave up the peer.
    pub(crate) timed_out: bool,
    /// `TCP_NODELAY` is set: small packets are sent before earlier ones are acknowledged.
    pub(crate) prompt: bool,
    /// The socket is watched for room to write.
    pub(crate) watches_writable: bool,
}

impl End {
    /// Creates the end of an accepted client. It inherits `TCP_NODELAY` from its listener, and has room to write.
    pub(crate) const fn client(fd: OwnedFd) -> Self {
        let mut end = Self::backend(fd);
        (end.prompt, end.writable, end.watches_writable) = (true, true, false);
        end
    }

    /// Creates the end of a backend.
    pub(crate) const fn backend(fd: OwnedFd) -> Self {
        Self {
            fd,
            readable: false,
            writable: false,
            ended: false,
            is_last: false,
            urgent: false,
            timed_out: false,
            prompt: false,
            watches_writable: true,
        }
    }

    /// Sets `TCP_NODELAY` before the second send. The first one is never delayed.
    fn hasten(&mut self) {
        if !self.prompt {
            // If the option cannot be set, as on a closed socket, a later call would fail as well.
            let _ = sockopt::set_tcp_nodelay(&self.fd, true);
            self.prompt = true;
        }
    }

    pub(crate) fn take(&mut self, readiness: crate::poll::Readiness) {
        self.readable |= readiness.readable();
        self.writable |= readiness.writable();
        self.ended |= readiness.ended();
        self.is_last = readiness.only_ended();
        self.urgent |= readiness.urgent();
    }
}

/// What all directions share.
#[derive(Debug)]
pub(crate) struct Tools {
    buffer: Box<[u8]>,
    pipes: Vec<Pipe>,
    /// Pipes that may still be created.
    pipes_left: usize,
    /// Bytes in the [`Direction::rest`] of all directions.
    waiting: usize,
    /// Bytes sent since the last [`Self::take_carried`].
    carried: usize,
}

#[derive(Debug)]
struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Tools {
    pub(crate) fn new(pipes: usize) -> Self {
        Self { buffer: vec![0; BUFFER].into(), pipes: Vec::new(), pipes_left: pipes, waiting: 0, carried: 0 }
    }

    /// Returns the number of bytes sent since the last call.
    pub(crate) const fn take_carried(&mut self) -> usize {
        std::mem::replace(&mut self.carried, 0)
    }

    fn take_pipe(&mut self) -> Option<Box<Pipe>> {
        if let Some(pipe) = self.pipes.pop() {
            return Some(Box::new(pipe));
        }
        self.pipes_left = self.pipes_left.checked_sub(1)?;
        if let Ok((out, into)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            return Some(Box::new(Pipe { out, into }));
        }
        self.pipes_left = self.pipes_left.saturating_add(1);
        None
    }

    /// Keeps an empty pipe for reuse, or closes it.
    fn return_pipe(&mut self, pipe: Pipe) {
        if self.pipes.len() < SPARE_PIPES {
            self.pipes.push(pipe);
        } else {
            self.pipes_left = self.pipes_left.saturating_add(1);
        }
    }
}

/// One direction's state and data in flight.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pipe: Option<Box<Pipe>>,
    in_pipe: usize,
    rest: Vec<u8>,
    /// An urgent byte. It is sent after all data that precedes it.
    urgent: Option<u8>,
    flags: Flags,
}

#[derive(Debug, Default, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, of which there are many in memory")]
struct Flags {
    /// At least one byte has been sent.
    carried: bool,
    /// The source has reached its end.
    end: bool,
    /// The end has been forwarded to the target.
    end_forwarded: bool,
    /// The last read filled the buffer.
    bulk: bool,
    /// There was urgent data.
    marked: bool,
    /// The last data waits in the kernel (`MSG_MORE`) for the end that follows.
    held: bool,
}

/// The result of moving data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The direction waits for one of the sockets.
    Waiting,
    /// There is more to do, after other connections have had their turn.
    Turn,
    /// Everything was sent, and the source has ended.
    End,
    /// The source failed.
    SourceFailed,
    /// The target failed.
    TargetFailed,
}

impl Direction {
    /// Returns true if at least one byte has been sent to the target.
    pub(crate) const fn has_carried(&self) -> bool {
        self.flags.carried
    }

    /// Returns true if the source has ended.
    pub(crate) const fn is_at_end(&self) -> bool {
        self.flags.end
    }

    /// Returns true if the end has been forwarded to the target.
    pub(crate) const fn end_forwarded(&self) -> bool {
        self.flags.end_forwarded
    }

    /// Records that the end is forwarded. Returns false if it was recorded before.
    pub(crate) const fn forward_end(&mut self) -> bool {
        !std::mem::replace(&mut self.flags.end_forwarded, true)
    }

    /// Prepares the direction for another target, after one to which nothing was sent.
    pub(crate) const fn retarget(&mut self) {
        self.flags.end_forwarded = false;
    }

    /// Returns true if there is data to send to a target: already read, or ready to be read.
    pub(crate) fn has_first_words(&self, source: &mut End) -> bool {
        // `FIONREAD` does not count an urgent byte (`tcp(7)`), which is no ordinary data.
        let waits = !source.readable && ioctl_fionread(&source.fd).is_ok_and(|count| count > 0);
        source.readable |= waits;
        source.readable || !self.rest.is_empty()
    }

    /// Sends the last data, which was held back for the end, without the end.
    pub(crate) fn let_go(&mut self, target: &End) {
        if std::mem::take(&mut self.flags.held) {
            // Setting the option pushes pending data, even if it is already set (`tcp(7)`).
            let _ = sockopt::set_tcp_nodelay(&target.fd, true);
        }
    }

    /// Moves as much as possible. Held data is sent at once unless the end follows.
    pub(crate) fn pump(&mut self, source: &mut End, target: &mut End, tools: &mut Tools) -> Progress {
        let progress = self.move_on(source, target, tools);
        if progress != Progress::End {
            self.let_go(target);
        }
        progress
    }

    fn move_on(&mut self, source: &mut End, target: &mut End, tools: &mut Tools) -> Progress {
        let mut moved = 0;
        loop {
            if let Err(progress) = self.flush(target, tools) {
                return progress;
            }
            if self.flags.end {
                self.release(tools);
                return Progress::End;
            }
            if std::mem::take(&mut source.urgent) {
                self.take_urgent(source);
                continue;
            }
            if !source.readable {
                self.release(tools);
                return Progress::Waiting;
            }
            if moved >= TURN {
                return Progress::Turn;
            }
            match self.fill(source, target, tools) {
                Ok(count) => moved += count,
                Err(progress) => return progress,
            }
        }
    }

    /// Drops data in flight and returns the pipe, at the end of the direction or of the connection.
    pub(crate) fn release(&mut self, tools: &mut Tools) {
        tools.waiting = tools.waiting.saturating_sub(self.rest.len());
        self.rest = Vec::new();
        match self.pipe.take() {
            Some(pipe) if self.in_pipe == 0 => tools.return_pipe(*pipe),
            Some(_) => tools.pipes_left = tools.pipes_left.saturating_add(1),
            None => {}
        }
        self.in_pipe = 0;
    }

    /// Sends what was read earlier.
    fn flush(&mut self, target: &mut End, tools: &mut Tools) -> Result<(), Progress> {
        if self.flags.carried && (!self.rest.is_empty() || self.in_pipe > 0) {
            target.hasten();
        }
        while !self.rest.is_empty() {
            let sent = write(target, |fd| send(fd, &self.rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))?;
            self.flags.carried = true;
            tools.carried = tools.carried.saturating_add(sent);
            tools.waiting = tools.waiting.saturating_sub(sent);
            self.rest.drain(..sent.min(self.rest.len()));
        }
        while self.in_pipe > 0 {
            let Some(pipe) = &self.pipe else { break };
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let sent = write(target, |fd| splice(&pipe.out, None, fd, None, self.in_pipe, flags))?;
            self.flags.carried = true;
            tools.carried = tools.carried.saturating_add(sent);
            self.in_pipe = self.in_pipe.saturating_sub(sent);
        }
        if let Some(byte) = self.urgent {
            write(target, |fd| {
                send(fd, &[byte], SendFlags::NOSIGNAL | SendFlags::DONTWAIT | SendFlags::OOB)
            })?;
            self.flags.carried = true;
            tools.carried = tools.carried.saturating_add(1);
            self.urgent = None;
        }
        Ok(())
    }

    /// Reads once. Data that goes through the buffer is sent at once.
    fn fill(&mut self, source: &mut End, target: &mut End, tools: &mut Tools) -> Result<usize, Progress> {
        if self.flags.bulk && self.pipe.is_none() {
            self.pipe = tools.take_pipe();
        }
        match &self.pipe {
            Some(pipe) if self.flags.bulk => {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                let count = read(source, |fd| splice(fd, None, &pipe.into, None, SPLICE, flags))?;
                self.in_pipe = count.unwrap_or_default();
                self.flags.bulk = self.in_pipe > 0;
                if count == Some(0) {
                    // The end, or an urgent byte, which splice does not cross. The next read tells which.
                    self.take_urgent(source);
                }
                Ok(self.in_pipe)
            }
            _ => self.copy(source, target, tools),
        }
    }

    fn copy(&mut self, source: &mut End, target: &mut End, tools: &mut Tools) -> Result<usize, Progress> {
        let room = if tools.waiting > WAITING_MAX { SMALL } else { BUFFER };
        let buffer = tools.buffer.get_mut(..room).unwrap_or_default();
        let Some(count) = read(source, |fd| recv_some(fd, buffer))? else { return Ok(0) };
        let is_all = count < room;
        // The event of the end came before this read.
        let is_last = source.is_last && is_all && !self.flags.marked && !source.urgent;
        self.flags.end = count == 0 || is_last;
        self.flags.bulk = count == BUFFER && !self.flags.marked;
        // A short read: nothing is left, and an event reports new data.
        source.readable = !is_all || source.ended;
        let data = buffer.get(..count).unwrap_or_default();
        let mut sent = 0;
        if target.writable && !data.is_empty() {
            if self.flags.carried {
                target.hasten();
            }
            let more = if is_last { SendFlags::MORE } else { SendFlags::empty() };
            match write(target, |fd| send(fd, data, SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more)) {
                Ok(count) => {
                    sent = count;
                    self.flags.held = is_last;
                    tools.carried = tools.carried.saturating_add(sent);
                    self.flags.carried = true;
                }
                Err(Progress::Waiting) => {}
                Err(progress) => {
                    // The data is kept: another backend may still get it.
                    self.keep(data.to_vec(), &mut tools.waiting);
                    return Err(progress);
                }
            }
        }
        let left = data.get(sent..).unwrap_or_default();
        if !left.is_empty() {
            let left = left.to_vec();
            self.keep(left, &mut tools.waiting);
        }
        Ok(count)
    }

    fn keep(&mut self, data: Vec<u8>, waiting: &mut usize) {
        *waiting = waiting.saturating_add(data.len());
        self.rest = data;
    }

    /// Takes the urgent byte out of the stream. It is sent as urgent after all data that was read before it. Data that
    /// precedes it and is not read yet is copied, since splice does not cross the byte's place.
    fn take_urgent(&mut self, source: &mut End) {
        let mut byte = [0];
        let flags = RecvFlags::OOB | RecvFlags::DONTWAIT;
        if let Ok((_, 1)) = recv(&source.fd, &mut byte, flags) {
            let [byte] = byte;
            self.urgent = Some(byte);
        }
        (self.flags.bulk, self.flags.marked) = (false, true);
        (source.readable, source.ended) = (true, true);
    }
}

fn recv_some(fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    recv(fd, buffer, RecvFlags::DONTWAIT).map(|(_, count)| count)
}

/// Reads. Returns `None` if there is nothing to read at present.
fn read(
    source: &mut End,
    mut call: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
) -> Result<Option<usize>, Progress> {
    loop {
        match call(&source.fd) {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                source.readable = false;
                return Ok(None);
            }
            Err(errno) => {
                source.timed_out |= errno == Errno::TIMEDOUT;
                return Err(Progress::SourceFailed);
            }
        }
    }
}

fn write(
    target: &mut End,
    mut call: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
) -> Result<usize, Progress> {
    if !target.writable {
        return Err(Progress::Waiting);
    }
    loop {
        match call(&target.fd) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                target.writable = false;
                return Err(Progress::Waiting);
            }
            Err(errno) => {
                target.timed_out |= errno == Errno::TIMEDOUT;
                return Err(Progress::TargetFailed);
            }
        }
    }
}

/// Makes the close of a socket send a reset instead of an orderly end.
pub(crate) fn reset(fd: impl AsFd) {
    // If the option cannot be set, the peer sees an orderly end.
    let _ = rustix::net::sockopt::set_socket_linger(fd, Some(std::time::Duration::ZERO));
}

#[cfg(test)]
mod tests;
