//! UDP flows: each has a socket that is connected to its backend, so that answers and ICMP errors reach the flow. Answers
//! leave through a socket of the port where the client's datagrams arrive, one for each port in use. If capture translates
//! packets, they leave through the listener. Datagrams of a flow that arrive together are sent together. If a new flow finds
//! no free place, source port or descriptor, one that was answered ends in its favour ([`Flows::replaceable`]).

mod replies;
mod sending;

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_model::{Capture, Family, Protocol};
use portolan_sock::datagrams::{Addresses, BATCH, Batch};
use portolan_sock::original;
use rustix::io::Errno;
use rustix::net::{RecvFlags, connect, recv};

use crate::attempts::{Attempts, Failure};
use crate::destination::Destinations;
use crate::flows::{FlowId, Flows, Key};
use crate::listener::{Listener, bind_to_client, is_shortage, mark_own, socket};
use crate::log_limit::LogLimit;
use crate::options::{Counters, RelayOptions, can_keep_clients};
use crate::poll::{Poller, Readiness, Token};
use crate::share::Share;
use crate::slots::Slot;
use crate::table::{RelayTable, Scope, ServiceId};
use replies::Replies;
use sending::{Sending, after, errno};

pub use replies::can_answer_from_every_port;

/// A datagram exceeded the path MTU to the backend. The kernel has stored the MTU, and fragments the next datagram. So
/// this error is no reason to choose another backend.
const PATH: Errno = Errno::MSGSIZE;

#[derive(Debug)]
pub(crate) struct Udp {
    /// A flow without an error for this time shows that its backend works.
    trial: Duration,
    /// The datagrams that were received last.
    batch: Batch,
    /// When a client's datagram was last received.
    asked: Option<Instant>,
    flows: UdpFlows,
}

#[derive(Debug)]
struct UdpFlows {
    flows: Flows<ServiceId, Flow>,
    replies: Replies,
    share: Share,
    refusal_log: LogLimit,
}

#[derive(Debug)]
struct Flow {
    fd: OwnedFd,
    /// The original destination of the client's datagrams.
    destination: SocketAddr,
    service: ServiceId,
    backend: SocketAddr,
    began: Instant,
    /// The backend works: the flow has lasted, and no attempt has failed since it began.
    is_proven: bool,
    to_backend: Sending,
    to_client: Sending,
}

/// A place for a new flow.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// A free one.
    Free,
    /// That of a flow which ends when the new one begins.
    Of(FlowId),
}

/// Why a flow does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// No place is free, and no flow can end.
    NoPlace,
    /// This host has no descriptor, port or memory.
    Shortage(Errno),
    /// No backend is left, or no answer can leave.
    NoWay,
}

impl Udp {
    pub(crate) fn new(options: &RelayOptions) -> Self {
        let flows = UdpFlows {
            flows: Flows::new(options.udp_idle, |flow| flow.service),
            replies: Replies::default(),
            share: Share::new(options.flows_max),
            refusal_log: LogLimit::default(),
        };
        Self { trial: options.longest_attempt(), batch: Batch::default(), asked: None, flows }
    }

    /// Receives datagrams. Returns true if more may be waiting, and `None` if there are none.
    pub(crate) fn receive(&mut self, listener: &Listener) -> Option<bool> {
        self.batch.receive(&listener.fd).ok().map(|count| count == BATCH)
    }

    /// Sends the datagrams that were received last to backends.
    pub(crate) fn pass_on(&mut self, scope: Scope, context: &mut Context<'_>) {
        let count = self.batch.datagrams().count();
        self.asked = Some(context.now);
        let mut received: Vec<_> =
            self.batch.datagrams().filter_map(|it| Some((it.addresses()?, IoSlice::new(it.data)))).collect();
        let mut lost = count.saturating_sub(received.len());
        while let Some(&(key, _)) = received.first() {
            // All of one flow, in their order. The flow whose datagram arrived first is the first.
            let data: Vec<_> =
                received.extract_if(.., |(other, _)| *other == key).map(|(_, data)| data).collect();
            lost = lost.saturating_add(self.flows.pass_on(key, &data, scope, context));
        }
        Counters::add(&context.counters.datagrams_lost, lost);
    }

    /// Sends a backend's answers to the client. An ICMP error ends the flow after the answers before it, so that the
    /// client's next datagram goes to another backend.
    pub(crate) fn answer(
        &mut self,
        slot: Slot,
        readiness: Readiness,
        listeners: &[Listener],
        context: &mut Context<'_>,
    ) {
        let id = FlowId(slot);
        let Some((_, flow)) = self.flows.flows.using(id, context.now) else { return };
        let (service, backend, began) = (flow.service, flow.backend, flow.began);
        let mut has_failed = false;
        for _ in 0..BATCH {
            let Some((_, flow)) = self.flows.flows.using(id, context.now) else { return };
            match self.batch.receive(&flow.fd).map_err(errno) {
                Ok(_) => {
                    context.table.succeeded(service, backend);
                    self.flows.flows.answered(id, context.now);
                    let data: Vec<_> = self.batch.datagrams().map(|it| IoSlice::new(it.data)).collect();
                    self.flows.pass_back(id, &data, listeners, context);
                    // Without an error, the next event reports what arrives after these.
                    if !readiness.failed() {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | PATH) => {}
                Err(_) => has_failed = true,
            }
        }
        let Context { table, poller, counters, now, .. } = context;
        let Some((_, flow)) = self.flows.flows.using(id, *now) else { return };
        if has_failed {
            table.failed(service, backend, &mut Attempts::default(), Failure::Refused, began, *now);
            poller.forget(&flow.fd);
            self.flows.end(id, table, counters);
        } else if readiness.failed() {
            // Each error is also in the error queue, and `EPOLLERR` is reported until the queue is empty.
            let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
            let mut start = [0; 64];
            let taken = |_: &usize| recv(&flow.fd, &mut start, flags).is_ok();
            let _ = (0..BATCH).take_while(taken).count();
        }
    }

    /// Ends idle flows.
    pub(crate) fn expire(&mut self, table: &mut RelayTable, counters: &Counters, now: Instant) {
        while let Some((key, flow)) = self.flows.flows.take_idle(now) {
            // A backend that never answers works if no error came for some time.
            if now.saturating_duration_since(flow.began) >= self.trial {
                table.lasted(flow.service, flow.backend, flow.began);
            }
            self.flows.give_back(key, &flow, table, counters);
        }
    }

    /// Returns until when a relay that closes its listeners now waits for answers; `None` if no answer can leave then.
    pub(crate) fn answers_until(&self, options: &RelayOptions) -> Option<Instant> {
        match options.capture {
            Capture::Tproxy => self.asked.map(|at| at + options.udp_answers),
            // They leave through the listeners.
            Capture::Redirect => None,
        }
    }

    /// Returns true if there are no flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.flows.is_empty()
    }

    /// Returns when to call [`Self::expire`] again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.flows.flows.next()
    }
}

impl UdpFlows {
    /// Sends datagrams of one flow to its backend. Returns how many are lost.
    fn pass_on(&mut self, key: Key, data: &[IoSlice<'_>], scope: Scope, context: &mut Context<'_>) -> usize {
        let Some(destination) = context.destinations.of_datagram(key.0, key.1) else { return data.len() };
        // Of the datagram that is the next one.
        let (mut attempts, mut has_failed, mut is_repeated) = (Attempts::default(), false, false);
        let (mut rest, mut lost) = (data, 0_usize);
        while !rest.is_empty() {
            let found = self.flows.find(&key).filter(|&id| self.is_current(id, destination, context));
            let id = found.or_else(|| self.begin(key, destination, scope, &mut attempts, context));
            let Some((_, flow)) = id.and_then(|id| self.flows.using(id, context.now)) else {
                if !has_failed {
                    return lost.saturating_add(rest.len());
                }
                // The error may be of an earlier datagram, so the others get their own attempts.
                lost = lost.saturating_add(1);
                (rest, attempts, has_failed) = (after(rest, 1).1, Attempts::default(), false);
                continue;
            };
            // The first one of a flow is sent alone: if the endpoint refuses it, the others go to another endpoint.
            let next = if found.is_some() { rest } else { rest.get(..1).unwrap_or(rest) };
            match flow.to_backend.send(&flow.fd, next, Addresses::Connected) {
                Ok(count) => {
                    let (bytes, others) = after(rest, count);
                    Counters::add(&context.counters.bytes_to_backends, bytes);
                    let trial = context.options.longest_attempt();
                    if !flow.is_proven && context.now.saturating_duration_since(flow.began) > trial {
                        flow.is_proven = context.table.lasted(flow.service, flow.backend, flow.began);
                    }
                    (rest, attempts, has_failed, is_repeated) = (others, Attempts::default(), false, false);
                }
                // The error may be of the previous datagram.
                Err(PATH) if !is_repeated => is_repeated = true,
                Err(Errno::AGAIN | Errno::NOBUFS | PATH) => {
                    lost = lost.saturating_add(1);
                    (rest, is_repeated) = (after(rest, 1).1, false);
                }
                Err(_) => {
                    let (service, backend, began) = (flow.service, flow.backend, flow.began);
                    has_failed = true;
                    context.table.failed(
                        service,
                        backend,
                        &mut attempts,
                        Failure::Refused,
                        began,
                        context.now,
                    );
                    if let Some(id) = id {
                        self.end(id, context.table, context.counters);
                    }
                }
            }
        }
        lost
    }

    /// Sends a backend's answers to the client.
    fn pass_back(&mut self, id: FlowId, data: &[IoSlice<'_>], listeners: &[Listener], context: &Context<'_>) {
        let Some((&(client, here), flow)) = self.flows.using(id, context.now) else { return };
        let fd = match context.options.capture {
            Capture::Tproxy => self.replies.get(here),
            Capture::Redirect => at(listeners, here).map(|listener| &listener.fd),
        };
        let addresses = Addresses::Between { source: here, destination: client };
        let mut rest = data;
        while !rest.is_empty() {
            let sent = fd.map_or(Err(Errno::NOTCONN), |fd| flow.to_client.send(fd, rest, addresses));
            let (bytes, others) = after(rest, sent.unwrap_or(1));
            match sent {
                Ok(_) => Counters::add(&context.counters.bytes_to_clients, bytes),
                Err(_) => Counters::count(&context.counters.datagrams_lost),
            }
            rest = others;
        }
    }

    /// Returns true if a flow may be used. Ends a flow whose backend has been removed (datagrams have no connection to
    /// drain), whose client has another original destination, or whose destination belongs to another Service port now.
    fn is_current(&mut self, id: FlowId, destination: SocketAddr, context: &mut Context<'_>) -> bool {
        let there = self.flows.using(id, context.now).is_some_and(|(_, flow)| {
            flow.destination == destination
                && context.table.find(Protocol::Udp, destination) == Some(flow.service)
                && context.table.has_backend(flow.service, flow.backend)
        });
        if !there {
            self.end(id, context.table, context.counters);
        }
        there
    }

    /// Begins a flow. If that is refused, its datagram is lost.
    fn begin(
        &mut self,
        key: Key,
        destination: SocketAddr,
        scope: Scope,
        attempts: &mut Attempts,
        context: &mut Context<'_>,
    ) -> Option<FlowId> {
        let service = context.table.find(Protocol::Udp, destination)?;
        let begun = self.try_to_begin(key, destination, service, scope, attempts, context);
        begun.map_err(|refusal| self.report(refusal, service, context)).ok()
    }

    fn try_to_begin(
        &mut self,
        key: Key,
        destination: SocketAddr,
        service: ServiceId,
        scope: Scope,
        attempts: &mut Attempts,
        context: &mut Context<'_>,
    ) -> Result<FlowId, Refusal> {
        let place = self.place(service, context).ok_or(Refusal::NoPlace)?;
        let mut opened = self.open(key, destination, service, scope, attempts, context);
        // A flow ends only if the new one can begin, or if its port or descriptor may be what is missing.
        let ending = match (&opened, place) {
            (Ok(_) | Err(Refusal::Shortage(_)), Place::Of(id)) => Some(id),
            (Err(Refusal::Shortage(_)), Place::Free) => self.flows.replaceable(service, context.now),
            _ => None,
        };
        if let Some(id) = ending {
            Counters::count(&context.counters.flows_replaced);
            self.end(id, context.table, context.counters);
            if opened.is_err() {
                opened = self.open(key, destination, service, scope, attempts, context);
            }
        }
        let (fd, backend) = opened?;
        let Context { table, poller, counters, now, .. } = context;
        self.share.occupy();
        table.hold(service);
        let (to_backend, to_client) = (Sending::Together, Sending::Together);
        let flow =
            Flow { fd, destination, service, backend, began: *now, is_proven: false, to_backend, to_client };
        let id = self.flows.insert(key, flow, *now);
        Counters::count(&counters.flows_open);
        Counters::count(&counters.flows);
        table.count(service, backend);
        let (_, flow) = self.flows.using(id, *now).ok_or(Refusal::NoWay)?;
        let watched = poller.watch_reads(&flow.fd, Token::Flow(id.0));
        watched.map(|()| id).map_err(|errno| {
            self.end(id, table, counters);
            Refusal::Shortage(errno)
        })
    }

    /// Opens the sockets of a new flow: the one that answers to its clients, and one that is connected to a backend. Returns
    /// the second one, and the backend.
    fn open(
        &mut self,
        (client, here): Key,
        destination: SocketAddr,
        service: ServiceId,
        scope: Scope,
        attempts: &mut Attempts,
        context: &mut Context<'_>,
    ) -> Result<(OwnedFd, SocketAddr), Refusal> {
        if context.options.capture == Capture::Tproxy {
            self.replies.add(here, context.now)?;
        }
        open(service, client.ip(), destination, scope, attempts, context)
            .inspect_err(|_| self.replies.end(here))
    }

    /// Returns a place for a new flow of a Service port.
    fn place(&self, service: ServiceId, context: &Context<'_>) -> Option<Place> {
        if self.share.has_room(context.table.held(service)) {
            return Some(Place::Free);
        }
        self.flows.replaceable(service, context.now).map(Place::Of)
    }

    /// Counts and logs that a flow did not begin, if that is for lack of room.
    fn report(&mut self, refusal: Refusal, service: ServiceId, context: &Context<'_>) {
        if refusal == Refusal::NoWay {
            return;
        }
        Counters::count(&context.counters.no_room);
        if self.refusal_log.is_due(context.now) {
            let reason = match refusal {
                Refusal::Shortage(Errno::AGAIN) => "no source port is free".into(),
                Refusal::Shortage(errno) => errno.to_string(),
                _ => {
                    "no place is free, and every flow waits for its first answer or was used just now".into()
                }
            };
            let (flows, service) = (self.flows.len(), context.table.name(service).map(ToString::to_string));
            tracing::warn!(service, flows, reason, "no room for new UDP flows: their datagrams are lost");
        }
    }

    fn end(&mut self, id: FlowId, table: &mut RelayTable, counters: &Counters) {
        if let Some((key, flow)) = self.flows.remove(id) {
            self.give_back(key, &flow, table, counters);
        }
    }

    fn give_back(&mut self, (_, here): Key, flow: &Flow, table: &mut RelayTable, counters: &Counters) {
        self.share.give_back();
        table.let_go(flow.service);
        Counters::uncount(&counters.flows_open);
        self.replies.end(here);
    }
}

/// Returns the listener where datagrams arrive, which sends the answers to them. A separate socket bound to its address
/// would receive some of its datagrams until it is connected.
fn at(listeners: &[Listener], here: SocketAddr) -> Option<&Listener> {
    let is_it = |listener: &&Listener| {
        let address = listener.address;
        listener.protocol == Protocol::Udp
            && address.port() == here.port()
            && address.is_ipv4() == here.is_ipv4()
    };
    listeners.iter().find(is_it)
}

/// What the handling of a datagram needs.
pub(crate) struct Context<'a> {
    pub(crate) table: &'a mut RelayTable,
    pub(crate) destinations: &'a mut Destinations,
    pub(crate) poller: &'a Poller,
    pub(crate) options: &'a RelayOptions,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Instant,
}

/// Opens a socket that is connected to the backend of a new flow.
fn open(
    service: ServiceId,
    client: IpAddr,
    destination: SocketAddr,
    scope: Scope,
    attempts: &mut Attempts,
    context: &mut Context<'_>,
) -> Result<(OwnedFd, SocketAddr), Refusal> {
    let Context { table, options, now, .. } = context;
    let limits = &options.connect_limits;
    loop {
        let (backend, _) =
            table.choose(service, scope, client, attempts, limits, *now).ok_or(Refusal::NoWay)?;
        let keeps = can_keep_clients(options.capture)
            && table
                .keeps_client_address(service, client, backend, || table.is_internal(service, destination));
        match connected(backend, options.capture, keeps.then_some(client)) {
            Ok(fd) => return Ok((fd, backend)),
            // The shortage is this host's, not the backend's failure.
            Err(errno) if is_shortage(errno) => return Err(Refusal::Shortage(errno)),
            Err(_) => table.failed(service, backend, attempts, Failure::Refused, *now, *now),
        }
    }
}

/// Opens a socket that is connected to a backend.
fn connected(backend: SocketAddr, capture: Capture, source: Option<IpAddr>) -> Result<OwnedFd, Errno> {
    let fd = socket(Family::of(backend.ip()), Protocol::Udp)?;
    mark_own(&fd, capture)?;
    original::set_receive_errors(&fd, backend.is_ipv6()).map_err(|_| Errno::INVAL)?;
    if let Some(source) = source {
        // If the address cannot be used, as a link-local one, the backend sees this node's address.
        let _ = bind_to_client(&fd, source);
    }
    connect(&fd, &backend)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
