//! The relay's thread: waits for events, and advances each connection as far as its sockets allow.

mod connection;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_model::catalog::PerFamily;
use portolan_model::{Family, Protocol};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::commands::{Commands, SnapshotRequest};
use crate::deadlines::Deadlines;
use crate::destination::Destinations;
use crate::listener::{self, BACKLOG, Listener};
use crate::log_limit::LogLimit;
use crate::options::{Counters, RelayOptions};
use crate::poll::{Poller, Readiness, Token};
use crate::share::Share;
use crate::slots::{Slot, Slots};
use crate::source_ports::SourcePorts;
use crate::stream::{Tools, reset};
use crate::table::RelayTable;
use crate::udp::{Context, Udp};
use connection::Connection;

/// Connections accepted from one listener before other events are handled.
const ACCEPTS: usize = 64;
/// How long a relay that drains still accepts connections whose handshake had begun. Another relay, or other rules, get new
/// ones.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// How often connections are checked for their idle time and the end of their drain.
const SWEEP: Duration = Duration::from_secs(1);
/// How long nothing is accepted after descriptors or memory ran out.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Relay {
    poller: Poller,
    listeners: Vec<Listener>,
    commands: Arc<Mutex<Commands>>,
    wake: Arc<OwnedFd>,
    options: RelayOptions,
    destinations: Destinations,
    counters: Arc<Counters>,
    table: RelayTable,
    share: Share,
    source_ports: SourcePorts,
    connections: Slots<Connection>,
    udp: Udp,
    tools: Tools,
    /// Connections that have more to do. Each gets one turn in a round.
    busy: VecDeque<Slot>,
    /// How many times the thread has waited for events. Distinguishes events of a socket from those of the socket that it
    /// replaced.
    round: u32,
    /// Deadlines of attempts to connect, each with the number of the attempt.
    limits: Deadlines<(Slot, u8)>,
    sweep_at: Option<Instant>,
    /// True for families whose table is known. Their listeners are not watched before.
    has_table: PerFamily<bool>,
    /// When listeners are watched again; `None` if those of families with a table are watched.
    paused_until: Option<Instant>,
    pause_log: LogLimit,
    /// When the relay ends at the latest; `None` if it does not drain.
    drain_until: Option<Instant>,
    /// When a relay that drains closes its listeners.
    close_at: Option<Instant>,
    /// Until when a relay that has closed its listeners waits for answers to datagrams.
    answers_until: Option<Instant>,
}

impl Relay {
    pub(crate) fn new(
        listeners: Vec<Listener>,
        options: RelayOptions,
        destinations: Destinations,
        counters: Arc<Counters>,
        commands: Arc<Mutex<Commands>>,
        wake: Arc<OwnedFd>,
    ) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        poller.watch_reads(&*wake, Token::Wake)?;
        Ok(Self {
            poller,
            listeners,
            commands,
            wake,
            destinations,
            counters,
            table: RelayTable::default(),
            share: Share::new(options.connections_max),
            source_ports: SourcePorts::default(),
            connections: Slots::default(),
            udp: Udp::new(&options),
            tools: Tools::new(options.connections_max / 8),
            busy: VecDeque::new(),
            round: 0,
            limits: Deadlines::default(),
            sweep_at: None,
            has_table: PerFamily::default(),
            paused_until: None,
            pause_log: LogLimit::default(),
            drain_until: None,
            close_at: None,
            answers_until: None,
            options,
        })
    }

    pub(crate) fn run(mut self) {
        let mut readiness = Vec::new();
        loop {
            if let Err(errno) = self.poller.wait(self.timeout(), &mut readiness) {
                tracing::error!(%errno, "the relay cannot wait for its sockets; it ends");
                return;
            }
            let now = Instant::now();
            self.round = self.round.wrapping_add(1);
            // Commands come before connections that were captured after the commands were sent.
            if !self.take_commands(now) {
                return;
            }
            for (token, what) in readiness.drain(..) {
                self.handle(token, what, now);
            }
            for _ in 0..self.busy.len() {
                if let Some(slot) = self.busy.pop_front() {
                    self.take_turn(slot, now);
                }
            }
            self.handle_time(now);
            self.counters.failing.store(self.table.failing() as u64, Ordering::Relaxed);
            if self.has_drained(now) {
                return;
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.busy.is_empty() {
            return Some(Duration::ZERO);
        }
        let ends = [self.paused_until, self.close_at, self.answers_until, self.drain_until];
        let next = [self.limits.next(), self.sweep_at, self.udp.next()].into_iter().chain(ends);
        next.flatten().min().map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Executes the commands that have arrived. Returns false if the relay must end.
    fn take_commands(&mut self, now: Instant) -> bool {
        // Read first: a command that is put after this wakes the thread again.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.apply_changes(now);
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let (drain, stop, has_table) = (commands.drain.take(), commands.stop, commands.has_table);
        let snapshots = std::mem::take(&mut commands.snapshots);
        drop(commands);
        if !snapshots.is_empty() {
            self.answer(snapshots, now);
        }
        for family in Family::BOTH {
            if *has_table.get(family) && !std::mem::replace(self.has_table.get_mut(family), true) {
                self.open(family, now);
            }
        }
        if let Some(until) = drain {
            self.drain_until = Some(until);
            self.close_at = Some(until.min(now + HANDSHAKE));
        }
        !stop
    }

    /// Answers requests for Service ports. Changes that were put before a request are applied first.
    fn answer(&mut self, requests: VecDeque<SnapshotRequest>, now: Instant) {
        self.apply_changes(now);
        for SnapshotRequest { family, reply } in requests {
            // An error means that the requester has gone.
            let _ = reply.try_send(self.table.entries(family));
        }
    }

    /// Applies the changes of the table that have been put.
    fn apply_changes(&mut self, now: Instant) {
        let changes =
            std::mem::take(&mut self.commands.lock().unwrap_or_else(PoisonError::into_inner).changes);
        let PerFamily { mut ipv4, mut ipv6 } = changes;
        for change in ipv4.take().iter().chain(&ipv6.take()) {
            if let Some(service) = self.table.apply(change) {
                self.drain_endpoints(service, now);
            }
        }
    }

    fn handle(&mut self, token: Token, readiness: Readiness, now: Instant) {
        match token {
            Token::Client(slot) => self.handle_client_events(slot, readiness, now),
            Token::Backend(slot) => self.handle_backend_events(slot, readiness, now),
            Token::Flow(slot) => {
                let (udp, listeners, mut context) = self.datagrams(now);
                udp.answer(slot, readiness, listeners, &mut context);
            }
            Token::Listener(number) => self.handle_listener_events(number, now),
            // It has woken the thread, which has taken the commands.
            Token::Wake => {}
        }
    }

    fn handle_listener_events(&mut self, number: u8, now: Instant) {
        let Some(listener) = self.listeners.get(usize::from(number)) else { return };
        if listener.protocol == Protocol::Udp {
            self.receive(usize::from(number), now);
        } else {
            self.accept(usize::from(number), now);
        }
    }

    /// Receives datagrams. Returns true if more may be waiting.
    fn receive(&mut self, number: usize, now: Instant) -> bool {
        let Some(listener) = self.listeners.get(number) else { return false };
        let scope = listener.scope;
        let Some(more) = self.udp.receive(listener) else { return false };
        // A datagram may have been captured after a change that was put since the thread woke.
        self.apply_changes(now);
        let (udp, _, mut context) = self.datagrams(now);
        udp.pass_on(scope, &mut context);
        more
    }

    /// Returns the flows of UDP, and what the handling of their datagrams needs.
    fn datagrams(&mut self, now: Instant) -> (&mut Udp, &[Listener], Context<'_>) {
        let Self { udp, listeners, table, destinations, poller, options, counters, .. } = self;
        (udp, listeners, Context { table, destinations, poller, options, counters, now })
    }

    /// Accepts connections. Returns true if more may be waiting.
    fn accept(&mut self, number: usize, now: Instant) -> bool {
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(number) else { return false };
            let scope = listener.scope;
            match acceptfrom_with(&listener.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((fd, client)) => {
                    if let Some(Ok(client)) = client.map(SocketAddr::try_from) {
                        self.admit(fd, client, scope, now);
                    }
                }
                Err(Errno::AGAIN) => return false,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.pause(now);
                    return false;
                }
                // The error is of the connection to be accepted, which is gone.
                Err(_) => {}
            }
        }
        true
    }

    fn admit(&mut self, fd: OwnedFd, client: SocketAddr, scope: crate::Scope, now: Instant) {
        // The connection may have been captured after a change that was put since the thread woke.
        self.apply_changes(now);
        let destination = self.destinations.of_connection(&fd);
        let found = destination
            .and_then(|destination| Some((self.table.find(Protocol::Tcp, destination)?, destination)));
        let Some((service, destination)) = found else {
            Counters::count(&self.counters.unknown);
            return reset(fd);
        };
        if !self.share.take(self.table.held(service)) {
            Counters::count(&self.counters.no_room);
            return reset(fd);
        }
        Counters::count(&self.counters.accepted);
        Counters::count(&self.counters.open);
        let mut connection = Connection::new(fd, client, service, scope, now);
        connection.is_internal = self.table.is_internal(service, destination);
        let slot = self.connections.insert(connection);
        let place = self.table.join(service, slot);
        if let Some(connection) = self.connections.get_mut(slot) {
            connection.place = place;
        }
        self.sweep_at.get_or_insert(now + SWEEP);
        let watched = self.connections.get(slot).is_some_and(|connection| {
            self.poller.watch_connected(&connection.client.fd, Token::Client(slot)).is_ok()
        });
        if watched {
            self.connect(slot, now);
        } else {
            self.abort(slot);
        }
    }

    fn pause(&mut self, now: Instant) {
        if self.paused_until.is_none() {
            if self.pause_log.is_due(now) {
                tracing::warn!("no descriptors or memory left: new connections wait");
            }
            self.listeners.iter().for_each(|listener| self.poller.forget(&listener.fd));
        }
        self.paused_until = Some(now + PAUSE);
    }

    /// Begins to accept in a family whose table is known, at the latest after the pause that is under way.
    fn open(&mut self, family: Family, now: Instant) {
        listener::take_over(&self.listeners, family);
        if self.paused_until.is_none() && self.watch_listeners(|of| of == family).is_err() {
            self.pause(now);
        }
    }

    /// Watches the listeners of all families whose table is known, or tries again after another pause.
    fn resume(&mut self, now: Instant) {
        if self.watch_listeners(|family| *self.has_table.get(family)).is_err() {
            self.pause(now);
        }
    }

    fn watch_listeners(&self, of: impl Fn(Family) -> bool) -> Result<(), Errno> {
        for (number, listener) in (0_u8..).zip(&self.listeners) {
            if of(Family::of(listener.address.ip())) {
                self.poller.watch_reads(&listener.fd, Token::Listener(number))?;
            }
        }
        Ok(())
    }

    /// Accepts connections that the kernel has already established, and receives datagrams that have arrived: closing the
    /// listener would reset and drop them.
    fn accept_pending(&mut self, now: Instant) {
        // At most a full backlog: what is beyond it has arrived since.
        let rounds = BACKLOG.unsigned_abs() as usize / ACCEPTS;
        for number in 0..self.listeners.len() {
            let is_udp =
                self.listeners.get(number).is_some_and(|listener| listener.protocol == Protocol::Udp);
            let mut more = || if is_udp { self.receive(number, now) } else { self.accept(number, now) };
            let _ = (0..=rounds).take_while(|_| more()).count();
        }
    }

    fn handle_time(&mut self, now: Instant) {
        while let Some((slot, number)) = self.limits.take_due(now) {
            self.attempt_is_over(slot, number, now);
        }
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep_at = None;
            self.sweep(now);
            if self.connections.len() > 0 {
                self.sweep_at = Some(now + SWEEP);
            }
        }
        self.udp.expire(&mut self.table, &self.counters, now);
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.resume(now);
        }
        if self.close_at.is_some_and(|at| at <= now) {
            self.close_at = None;
            self.accept_pending(now);
            self.listeners.iter().for_each(|listener| self.poller.forget(&listener.fd));
            self.listeners.clear();
            // No datagrams of clients arrive any more, so this is the last time.
            self.answers_until = self.udp.answers_until(&self.options);
        }
        if self.answers_until.is_some_and(|until| until <= now) {
            self.answers_until = None;
        }
    }

    fn has_drained(&self, now: Instant) -> bool {
        let awaits_answers = self.answers_until.is_some() && !self.udp.is_empty();
        let is_done = self.close_at.is_none() && self.connections.len() == 0 && !awaits_answers;
        self.drain_until.is_some_and(|until| until <= now || is_done)
    }
}
