//! One direction of a connection: bytes, the end, and urgent data from one socket to the other.
//!
//! Small messages go through a buffer of the thread: that is quicker than a pipe. A direction that fills this buffer goes
//! on by splice, without its bytes in user space, for as long as bytes keep coming; its pipe is given back when none are
//! in flight, so that an idle connection has none.
//!
//! Packets are what a short connection costs most. So what a client has said already goes to a backend with the last packet
//! of the handshake ([`Direction::has_first_words`]), and last words go with the end that follows them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

/// Bytes read at once into the buffer.
pub(crate) const BUFFER: usize = 16 << 10;
/// Bytes read at once when much waits for slow readers already.
const SMALL: usize = 1 << 10;
/// Bytes that may wait for slow readers before less is read at once.
const WAITING_MAX: usize = 32 << 20;
/// Bytes for one splice: more than a pipe takes.
const SPLICE: usize = 1 << 20;
/// Bytes that a direction may move before others have their turn.
const TURN: usize = 1 << 20;
/// Unused pipes that are kept.
const SPARE_PIPES: usize = 64;

/// One socket of a connection, and what is known of it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a socket")]
pub(crate) struct End {
    pub(crate) fd: OwnedFd,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Something else may wait behind the data (the end, an error, a mark): reading goes on until there is nothing.
    pub(crate) ended: bool,
    /// Behind the data is the end, and nothing else.
    pub(crate) is_last: bool,
    pub(crate) urgent: bool,
    /// The kernel has given its peer up.
    pub(crate) timed_out: bool,
    /// Small packets do not wait for each other's acknowledgement (`TCP_NODELAY`).
    pub(crate) prompt: bool,
    /// An event tells when there is room to write again.
    pub(crate) hears_of_room: bool,
}

impl End {
    /// The socket of a client: what is accepted is as prompt as its listener, and has room.
    pub(crate) const fn client(fd: OwnedFd) -> Self {
        let mut end = Self::backend(fd);
        (end.prompt, end.writable, end.hears_of_room) = (true, true, false);
        end
    }

    /// The socket of a backend.
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
            hears_of_room: true,
        }
    }

    /// Makes it prompt before it sends for the second time: a first packet waits for nothing.
    fn hasten(&mut self) {
        if !self.prompt {
            // What cannot be set now, as at its end, is asked for in vain later as well.
            let _ = sockopt::set_tcp_nodelay(&self.fd, true);
            self.prompt = true;
        }
    }

    pub(crate) fn take(&mut self, news: crate::poll::News) {
        self.readable |= news.readable();
        self.writable |= news.writable();
        self.ended |= news.ended();
        self.is_last = news.only_ended();
        self.urgent |= news.urgent();
    }
}

/// What all directions share.
#[derive(Debug)]
pub(crate) struct Tools {
    buffer: Box<[u8]>,
    pipes: Vec<Pipe>,
    /// Pipes that may still be made.
    pipes_left: usize,
    /// Bytes that wait in [`Direction::rest`].
    waiting: usize,
    /// Bytes passed on.
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

    /// Bytes passed on since this was asked the last time.
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

    /// Takes an empty pipe back.
    fn return_pipe(&mut self, pipe: Pipe) {
        if self.pipes.len() < SPARE_PIPES {
            self.pipes.push(pipe);
        } else {
            self.pipes_left = self.pipes_left.saturating_add(1);
        }
    }
}

/// What one direction has in flight.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    pipe: Option<Box<Pipe>>,
    in_pipe: usize,
    rest: Vec<u8>,
    /// An urgent byte that goes once everything before it has gone.
    urgent: Option<u8>,
    flags: Flags,
}

#[derive(Debug, Default, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, of which there are many in memory")]
struct Flags {
    /// Anything has been passed on.
    carried: bool,
    /// The source has said that nothing more comes.
    end: bool,
    /// The other side has been told.
    told: bool,
    /// The last read filled the buffer.
    bulk: bool,
    /// There was urgent data.
    marked: bool,
    /// The last bytes wait in the kernel for the end that is about to follow.
    held: bool,
}

/// How far a direction got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits for one of the sockets.
    Waiting,
    /// There is more to do, after others.
    Turn,
    /// Everything was passed on, and the end came.
    End,
    /// The socket that is read from failed.
    SourceFailed,
    /// The socket that is written to failed.
    TargetFailed,
}

impl Direction {
    /// Whether a byte has reached the other socket.
    pub(crate) const fn has_carried(&self) -> bool {
        self.flags.carried
    }

    /// Whether the source has ended.
    pub(crate) const fn is_at_end(&self) -> bool {
        self.flags.end
    }

    /// Whether the other side knows of the end.
    pub(crate) const fn has_told(&self) -> bool {
        self.flags.told
    }

    /// Notes that the other side knows of the end.
    pub(crate) const fn tell(&mut self) -> bool {
        !std::mem::replace(&mut self.flags.told, true)
    }

    /// Makes it ready for another socket at the other side, none of which has got anything.
    pub(crate) const fn retarget(&mut self) {
        self.flags.told = false;
    }

    /// Whether there is something to send as soon as there is a target: read already, or about to be.
    pub(crate) fn has_first_words(&self, source: &mut End) -> bool {
        // Without an urgent byte, which is no beginning (`FIONREAD`, `tcp(7)`).
        let waits = !source.readable && ioctl_fionread(&source.fd).is_ok_and(|count| count > 0);
        source.readable |= waits;
        source.readable || !self.rest.is_empty()
    }

    /// Sends the last bytes without the end that they waited for.
    pub(crate) fn let_go(&mut self, target: &End) {
        if std::mem::take(&mut self.flags.held) {
            // Pushes what is there, also where it is set already (`tcp(7)`).
            let _ = sockopt::set_tcp_nodelay(&target.fd, true);
        }
    }

    /// Moves what can be moved.
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

    /// Gives back what it has, at its end or at the connection's.
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

    /// Passes on what was read before.
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

    /// Reads once, and passes on at once what went through the buffer.
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
                    // The end, or an urgent byte that a splice does not get past: a read tells.
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
        // The end was there before this was read.
        let is_last = source.is_last && is_all && !self.flags.marked && !source.urgent;
        self.flags.end = count == 0 || is_last;
        self.flags.bulk = count == BUFFER && !self.flags.marked;
        // Less than asked for: there is no more, and an event will tell of the next.
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
                    // Another backend may still get it.
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

    /// Takes the urgent byte out of the stream. It is passed on as urgent after all that has been read before it. What
    /// is before it and not yet read goes by copy: a splice does not get past the place where the byte was.
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

/// Reads; `None` says that there is nothing now.
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

/// Ends a socket with a reset instead of an orderly end.
pub(crate) fn reset(fd: impl AsFd) {
    // Without the option the peer sees an end instead: nothing better can be done.
    let _ = rustix::net::sockopt::set_socket_linger(fd, Some(std::time::Duration::ZERO));
}

#[cfg(test)]
mod tests;
