//! One connection: the choice of a backend, the transfer in both directions, the end.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_model::{Family, Protocol};
use rustix::io::Errno;
use rustix::net::{Shutdown, connect, shutdown, sockopt};

use super::Relay;
use crate::attempts::{Attempts, Failure};
use crate::listener::{bind_to_client, is_shortage, limit_stall, mark_own, socket};
use crate::options::{Counters, RelayOptions, can_keep_clients};
use crate::poll::{Readiness, Token, attempt_has_ended};
use crate::slots::Slot;
use crate::stream::{Direction, End, Progress, reset};
use crate::table::{Scope, ServiceId};

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a connection")]
pub(super) struct Connection {
    pub(super) client: End,
    backend: Option<End>,
    up: Direction,
    down: Direction,
    client_address: SocketAddr,
    service: ServiceId,
    scope: Scope,
    /// The client connected to a cluster IP.
    pub(super) is_internal: bool,
    /// The connection's index among those of its Service port.
    pub(super) place: usize,
    /// The backend that is being tried, or that has accepted the connection.
    target: Option<SocketAddr>,
    is_open: bool,
    is_busy: bool,
    /// A backend has closed the connection in order, without a byte in either direction.
    saw_end: bool,
    /// The number of the current attempt.
    number: u8,
    /// The relay's round in which the backend's socket was opened.
    round: u32,
    /// The failed attempts; `None` before the first failure.
    attempts: Option<Box<Attempts>>,
    /// When the current attempt began.
    began: Instant,
    /// When the backend accepted the connection.
    opened: Instant,
    /// This connection has shown that the backend works, by its first byte, its orderly end or its length. The back-off has
    /// ended, if there was one.
    is_proven: bool,
    /// `TCP_USER_TIMEOUT` has been set on the backend's socket.
    is_limited: bool,
    /// When an event of the connection was last handled.
    used: Instant,
    /// When the connection ends because its endpoint has been removed.
    ends: Option<Instant>,
}

impl Connection {
    pub(super) fn new(
        client: OwnedFd,
        client_address: SocketAddr,
        service: ServiceId,
        scope: Scope,
        now: Instant,
    ) -> Self {
        Self {
            client: End::client(client),
            backend: None,
            up: Direction::default(),
            down: Direction::default(),
            client_address,
            service,
            scope,
            is_internal: false,
            place: 0,
            target: None,
            is_open: false,
            is_busy: false,
            saw_end: false,
            number: 0,
            round: 0,
            attempts: None,
            began: now,
            opened: now,
            is_proven: false,
            is_limited: false,
            used: now,
            ends: None,
        }
    }

    fn limit_stall(&mut self, stalled: Duration) {
        if let (Some(backend), false) = (&self.backend, self.is_limited) {
            // If the option cannot be set, TCP's own timeouts apply.
            let _ = limit_stall(&backend.fd, stalled);
            self.is_limited = true;
        }
    }

    /// Returns true if another backend can take over: no byte has gone in either direction.
    const fn is_untouched(&self) -> bool {
        !self.up.has_carried() && !self.down.has_carried()
    }
}

/// The side whose failure ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Client,
    Backend,
}

impl Relay {
    /// Starts an attempt with the next backend. If every backend has failed, resets the client.
    pub(super) fn connect(&mut self, slot: Slot, now: Instant) {
        loop {
            let Some(connection) = self.connections.get_mut(slot) else { return };
            let (service, scope, client) = (connection.service, connection.scope, connection.client_address);
            let mut none = Attempts::default();
            let attempts = connection.attempts.as_deref_mut().unwrap_or(&mut none);
            let limits = &self.options.connect_limits;
            let chosen = self.table.choose(service, scope, client.ip(), attempts, limits, now);
            let Some((target, limit)) = chosen else {
                if connection.saw_end {
                    // Every backend closes at once, so this is what the Service does: the client sees the same end.
                    return self.end(slot);
                }
                let is_shortage = attempts.lacked_only_ports();
                let counter = if is_shortage { &self.counters.no_room } else { &self.counters.all_failed };
                Counters::count(counter);
                return self.abort(slot);
            };
            connection.target = Some(target);
            connection.began = now;
            // Of the endpoint before this one.
            connection.ends = None;
            connection.number = connection.number.wrapping_add(1);
            let is_internal = connection.is_internal;
            let keeps = can_keep_clients(self.options.capture)
                && self.table.keeps_client_address(service, client.ip(), target, || is_internal);
            let source = keeps.then_some(client.ip());
            if self.source_ports.are_exhausted((target, source), now) {
                self.has_no_port(slot, target, now);
                continue;
            }
            let has_data = connection.up.has_first_words(&mut connection.client);
            let started = start(target, &self.options, source, has_data)
                .and_then(|fd| self.poller.watch_stream(&fd, Token::Backend(slot)).map(|()| fd));
            match started {
                Ok(fd) => {
                    connection.backend = Some(End::backend(fd));
                    connection.is_limited = false;
                    connection.round = self.round;
                    self.limits.set(limit, (slot, connection.number), now);
                    return;
                }
                Err(errno) if is_shortage(errno) => {
                    // The shortage is this host's, not the backend's failure.
                    Counters::count(&self.counters.no_room);
                    self.undecided(slot, now);
                    return self.abort(slot);
                }
                Err(Errno::ADDRNOTAVAIL) => {
                    if self.source_ports.set_exhausted((target, source), now) {
                        tracing::warn!(endpoint = %target, "no source port is free for connections to this endpoint");
                    }
                    self.has_no_port(slot, target, now);
                }
                Err(_) => self.note_failure(slot, Failure::Refused, now),
            }
        }
    }

    pub(super) fn handle_client_events(&mut self, slot: Slot, readiness: Readiness, now: Instant) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        connection.client.take(readiness);
        if connection.is_open {
            self.go_on(slot, now);
        } else if readiness.failed() {
            self.undecided(slot, now);
            self.abort(slot);
        }
    }

    pub(super) fn handle_backend_events(&mut self, slot: Slot, readiness: Readiness, now: Instant) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(backend) = &mut connection.backend else { return };
        if connection.is_open {
            backend.take(readiness);
            return self.go_on(slot, now);
        }
        if connection.round == self.round {
            // The event is of the socket that this one has replaced.
        } else if readiness.failed() {
            self.try_another(slot, Failure::Refused, now);
        } else if readiness.writable() {
            backend.take(readiness);
            connection.is_open = true;
            connection.opened = now;
            connection.is_proven = false;
            if let Some(target) = connection.target {
                self.table.count(connection.service, target);
            }
            self.go_on(slot, now);
        }
    }

    /// Handles the deadline of an attempt.
    pub(super) fn attempt_is_over(&mut self, slot: Slot, number: u8, now: Instant) {
        let Some(connection) = self.connections.get(slot) else { return };
        let has_ended = || connection.backend.as_ref().is_some_and(|backend| attempt_has_ended(&backend.fd));
        if !connection.is_open && connection.number == number && !has_ended() {
            self.try_another(slot, Failure::TimedOut, now);
        }
    }

    /// Continues a connection that had more to do.
    pub(super) fn take_turn(&mut self, slot: Slot, now: Instant) {
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.is_busy = false;
            self.go_on(slot, now);
        }
    }

    /// Moves as many bytes as possible, in both directions.
    pub(super) fn go_on(&mut self, slot: Slot, now: Instant) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Connection { client, backend: Some(backend), up, down, is_open: true, .. } = connection else {
            return;
        };
        connection.used = now;
        let up_progress = up.pump(client, backend, &mut self.tools);
        Counters::add(&self.counters.bytes_to_backends, self.tools.take_carried());
        let down_progress = down.pump(backend, client, &mut self.tools);
        Counters::add(&self.counters.bytes_to_clients, self.tools.take_carried());
        if !(client.writable || client.watches_writable) {
            client.watches_writable = true;
            if self.poller.watch_writable(&client.fd, Token::Client(slot)).is_err() {
                return self.abort(slot);
            }
        }
        let progress = (up_progress, down_progress);
        // A backend that dies right after it has accepted closes in order, too. After the time of the longest attempt, a
        // close is deliberate.
        let trial = self.options.longest_attempt();
        if let (Progress::Waiting, Progress::End) = progress
            && !(up.has_carried() || down.has_carried() || down.end_forwarded())
            && now.saturating_duration_since(connection.opened) <= trial
        {
            connection.saw_end = true;
            return self.try_another(slot, Failure::Refused, now);
        }
        // That it accepts is no proof: the kernel accepts for a process that hangs, and a proxy for one that is dead.
        let has_ended = down_progress == Progress::End && up_progress != Progress::TargetFailed;
        if !connection.is_proven && (down.has_carried() || has_ended) {
            connection.is_proven = true;
            if let Some(target) = connection.target {
                self.table.succeeded(connection.service, target);
            }
        }
        match progress {
            (Progress::End, Progress::End) => self.end(slot),
            (Progress::SourceFailed | Progress::TargetFailed, _)
            | (_, Progress::SourceFailed | Progress::TargetFailed) => {
                up.let_go(backend);
                down.let_go(client);
                let is_of_client =
                    up_progress == Progress::SourceFailed || down_progress == Progress::TargetFailed;
                self.failed(slot, if is_of_client { Fault::Client } else { Fault::Backend }, now);
            }
            (up_progress, down_progress) => {
                // Forward the end. If the socket has failed already, an event reports it.
                if up_progress == Progress::End && up.forward_end() {
                    let _ = shutdown(&backend.fd, Shutdown::Write);
                }
                if down_progress == Progress::End && down.forward_end() {
                    let _ = shutdown(&client.fd, Shutdown::Write);
                }
                let has_more = up_progress == Progress::Turn || down_progress == Progress::Turn;
                if has_more && !connection.is_busy {
                    connection.is_busy = true;
                    self.busy.push_back(slot);
                }
            }
        }
    }

    /// Sets a deadline for connections of a Service port whose endpoint has been removed.
    pub(super) fn drain_endpoints(&mut self, service: ServiceId, now: Instant) {
        let ends = now + self.options.drain;
        for &slot in self.table.connections(service) {
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            let Some(target) = connection.target else { continue };
            connection.ends =
                if self.table.has_backend(service, target) { None } else { connection.ends.or(Some(ends)) };
        }
    }

    /// Resets connections whose time is over. Sets `TCP_USER_TIMEOUT` for those that have lasted until a sweep; shorter
    /// ones do not need it. Ends the back-off of backends whose connections are quiet, but have lasted longer than an
    /// attempt.
    pub(super) fn sweep(&mut self, now: Instant) {
        let trial = self.options.longest_attempt();
        for (_, connection) in self.connections.iter_mut() {
            connection.limit_stall(self.options.stalled);
            let has_lasted = connection.is_open && now.saturating_duration_since(connection.opened) > trial;
            if has_lasted
                && !connection.is_proven
                && let Some(target) = connection.target
            {
                connection.is_proven = self.table.lasted(connection.service, target, connection.began);
            }
        }
        let (idle, half_closed) = (self.options.idle, self.options.half_closed_idle);
        let over = |connection: &Connection| {
            let half = connection.up.is_at_end() || connection.down.is_at_end();
            let unused = now.saturating_duration_since(connection.used);
            connection.ends.is_some_and(|at| at <= now) || unused >= if half { half_closed } else { idle }
        };
        let expired: Vec<Slot> = self
            .connections
            .iter_mut()
            .filter(|(_, connection)| over(connection))
            .map(|(slot, _)| slot)
            .collect();
        for slot in expired {
            Counters::count(&self.counters.expired);
            self.abort(slot);
        }
    }

    /// Resets both sides of a connection and ends it.
    pub(super) fn abort(&mut self, slot: Slot) {
        if let Some(connection) = self.connections.get(slot) {
            reset(&connection.client.fd);
            connection.backend.iter().for_each(|backend| reset(&backend.fd));
        }
        self.end(slot);
    }

    fn end(&mut self, slot: Slot) {
        let Some(mut connection) = self.connections.remove(slot) else { return };
        connection.up.release(&mut self.tools);
        connection.down.release(&mut self.tools);
        self.share.give_back();
        let moved = self.table.leave(connection.service, connection.place);
        if let Some(moved) = moved.and_then(|moved| self.connections.get_mut(moved)) {
            moved.place = connection.place;
        }
        Counters::uncount(&self.counters.open);
    }

    fn failed(&mut self, slot: Slot, fault: Fault, now: Instant) {
        let Some(connection) = self.connections.get(slot) else { return };
        let has_timed_out =
            connection.client.timed_out || connection.backend.as_ref().is_some_and(|end| end.timed_out);
        if fault == Fault::Backend && connection.is_untouched() {
            return self.try_another(slot, Failure::Refused, now);
        }
        if fault == Fault::Backend && !connection.down.has_carried() {
            // The backend may have processed the client's data, so this connection is not repeated. Other connections
            // avoid the backend.
            self.note_failure(slot, Failure::Refused, now);
        }
        if has_timed_out {
            Counters::count(&self.counters.expired);
        }
        if fault == Fault::Client {
            self.undecided(slot, now);
        }
        self.abort(slot);
    }

    /// Records that an attempt ended without a result, because the client has left or this host lacks something. The next
    /// connection tries the backend.
    fn undecided(&mut self, slot: Slot, now: Instant) {
        let Some(connection) = self.connections.get(slot).filter(|connection| !connection.is_proven) else {
            return;
        };
        if let Some(target) = connection.target {
            self.table.undecided(connection.service, target, connection.began, now);
        }
    }

    fn try_another(&mut self, slot: Slot, failure: Failure, now: Instant) {
        self.note_failure(slot, failure, now);
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.is_open = false;
            if let Some(backend) = connection.backend.take() {
                reset(&backend.fd);
            }
            connection.up.retarget();
            connection.down.release(&mut self.tools);
            connection.down = Direction::default();
        }
        self.connect(slot, now);
    }

    /// Records that no source port is free for a backend, which has not failed itself.
    fn has_no_port(&mut self, slot: Slot, target: SocketAddr, now: Instant) {
        self.undecided(slot, now);
        let Some(connection) = self.connections.get_mut(slot) else { return };
        connection.attempts.get_or_insert_default().failed(target, Failure::NoPort);
    }

    fn note_failure(&mut self, slot: Slot, failure: Failure, now: Instant) {
        Counters::count(&self.counters.attempts_failed);
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(target) = connection.target.take() else { return };
        let attempts = connection.attempts.get_or_insert_default();
        self.table.failed(connection.service, target, attempts, failure, connection.began, now);
    }
}

/// Starts to connect. An event reports the result.
fn start(
    target: SocketAddr,
    options: &RelayOptions,
    source: Option<IpAddr>,
    has_data: bool,
) -> Result<OwnedFd, Errno> {
    let fd = socket(Family::of(target.ip()), Protocol::Tcp)?;
    mark_own(&fd, options.capture)?;
    if has_data {
        // The last packet of the handshake is then the first one with data. If the option cannot be set, one more packet
        // is sent.
        let _ = sockopt::set_tcp_quickack(&fd, false);
    }
    if let Some(source) = source {
        // If the address cannot be used, as a link-local one, the backend sees this node's address.
        let _ = bind_to_client(&fd, source);
    }
    match connect(&fd, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}
