//! UDP flows: each has a socket that is connected to its backend, so that answers and ICMP errors reach the flow. Answers
//! leave through a socket bound to the virtual address, one for each address in use. If capture translates packets, they
//! leave through the listener.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Instant;

use portolan_model::{Capture, Family, Protocol};
use portolan_sock::original::{self, Received};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, bind, connect, recv, send, sendto, sockopt};

use crate::attempts::{Attempts, Failure};
use crate::destination::Destinations;
use crate::flows::{FlowId, Flows, Key};
use crate::listener::{Listener, bind_to_client, is_shortage, loopback, mark_own, socket};
use crate::options::{Counters, RelayOptions, can_keep_clients};
use crate::poll::{Poller, Readiness, Token};
use crate::share::Share;
use crate::slots::Slot;
use crate::table::{RelayTable, Scope, ServiceId};

/// Datagrams read from one socket before other events are handled.
const DATAGRAMS: usize = 64;
/// The port of the discard protocol, which never answers (RFC 863).
const DISCARD: u16 = 9;
/// The maximum length of a datagram in bytes (RFC 768).
const DATAGRAM_MAX: usize = 65_535;

/// A datagram exceeded the path MTU to the backend. The kernel has stored the MTU, and fragments the next datagram. So
/// this error is no reason to choose another backend.
const PATH: Errno = Errno::MSGSIZE;

#[derive(Debug)]
pub(crate) struct Udp {
    flows: Flows<Flow>,
    replies: HashMap<SocketAddr, Reply>,
    share: Share,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct Flow {
    fd: OwnedFd,
    /// The original destination of the client's datagrams.
    destination: SocketAddr,
    service: ServiceId,
    backend: SocketAddr,
}

/// A socket that sends from a virtual address, and the number of flows that use it.
#[derive(Debug)]
struct Reply {
    fd: OwnedFd,
    flows: usize,
}

impl Udp {
    pub(crate) fn new(options: &RelayOptions) -> Self {
        Self {
            flows: Flows::new(options.udp_idle),
            replies: HashMap::new(),
            share: Share::new(options.flows_max),
            buffer: vec![0; DATAGRAM_MAX].into(),
        }
    }

    /// Receives datagrams and sends them to backends. Returns true if more may be waiting.
    pub(crate) fn receive(&mut self, listener: &Listener, context: &mut Context<'_>) -> bool {
        for _ in 0..DATAGRAMS {
            match original::receive_with_destination(&listener.fd, &mut self.buffer) {
                Ok(Some(received)) => {
                    if self.pass_on(received, listener.scope, context).is_none() {
                        Counters::count(&context.counters.datagrams_lost);
                    }
                }
                Ok(None) => Counters::count(&context.counters.datagrams_lost),
                Err(_) => return false,
            }
        }
        true
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
        let Context { table, poller, options, counters, now, .. } = context;
        let now = *now;
        let id = FlowId(slot);
        let Some((&(client, here), flow)) = self.flows.using(id, now) else { return };
        let mut has_failed = false;
        for _ in 0..DATAGRAMS {
            match recv(&flow.fd, &mut *self.buffer, RecvFlags::DONTWAIT) {
                Ok((_, length)) => {
                    table.succeeded(flow.service, flow.backend);
                    let data = self.buffer.get(..length).unwrap_or_default();
                    let sent = match options.capture {
                        Capture::Tproxy => self.replies.get(&here).is_some_and(|reply| {
                            sendto(&reply.fd, data, SendFlags::DONTWAIT, &client).is_ok()
                        }),
                        Capture::Redirect => at(listeners, here).is_some_and(|listener| {
                            original::send_from(&listener.fd, data, here, client).is_ok()
                        }),
                    };
                    if sent {
                        Counters::add(&counters.bytes_to_clients, length);
                    } else {
                        Counters::count(&counters.datagrams_lost);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | PATH) => {}
                Err(_) => has_failed = true,
            }
        }
        if has_failed {
            table.failed(flow.service, flow.backend, &mut Attempts::default(), Failure::Refused, now);
            poller.forget(&flow.fd);
            self.end(id, table, counters);
        } else if readiness.failed() {
            // Each error is also in the error queue, and `EPOLLERR` is reported until the queue is empty.
            let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
            let taken = |_: &usize| recv(&flow.fd, &mut *self.buffer, flags).is_ok();
            let _ = (0..DATAGRAMS).take_while(taken).count();
        }
    }

    /// Ends idle flows.
    pub(crate) fn expire(&mut self, table: &mut RelayTable, counters: &Counters, now: Instant) {
        while let Some((key, flow)) = self.flows.take_idle(now) {
            self.give_back(key, &flow, table, counters);
        }
    }

    /// Returns when to call [`Self::expire`] again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.flows.next()
    }

    /// Sends a datagram to its backend. Returns `None` if the datagram is lost.
    fn pass_on(&mut self, received: Received, scope: Scope, context: &mut Context<'_>) -> Option<()> {
        let key = (received.source, received.destination);
        let destination = context.destinations.of_datagram(received.source, received.destination)?;
        let mut attempts = Attempts::default();
        let mut is_repeated = false;
        loop {
            let id = match self.flows.find(&key).filter(|&id| self.is_current(id, destination, context)) {
                Some(id) => id,
                None => self.begin(key, destination, scope, &mut attempts, context)?,
            };
            let (_, flow) = self.flows.using(id, context.now)?;
            let data = self.buffer.get(..received.length)?;
            match send(&flow.fd, data, SendFlags::DONTWAIT) {
                Ok(count) => {
                    Counters::add(&context.counters.bytes_to_backends, count);
                    return Some(());
                }
                // The error may be of the previous datagram.
                Err(PATH) if !is_repeated => is_repeated = true,
                Err(Errno::AGAIN | Errno::NOBUFS | PATH) => return None,
                Err(_) => {
                    let (service, backend) = (flow.service, flow.backend);
                    context.table.failed(service, backend, &mut attempts, Failure::Refused, context.now);
                    self.end(id, context.table, context.counters);
                }
            }
        }
    }

    /// Returns true if a flow may be used. Ends a flow whose backend has been removed (datagrams have no connection to
    /// drain), or whose client has another original destination.
    fn is_current(&mut self, id: FlowId, destination: SocketAddr, context: &mut Context<'_>) -> bool {
        let there = self.flows.using(id, context.now).is_some_and(|(_, flow)| {
            flow.destination == destination && context.table.has_backend(flow.service, flow.backend)
        });
        if !there {
            self.end(id, context.table, context.counters);
        }
        there
    }

    fn begin(
        &mut self,
        key: Key,
        destination: SocketAddr,
        scope: Scope,
        attempts: &mut Attempts,
        context: &mut Context<'_>,
    ) -> Option<FlowId> {
        let (client, here) = key;
        let Context { table, poller, options, counters, now, .. } = context;
        let service = table.find(Protocol::Udp, destination)?;
        if !self.share.take(table.held(service)) {
            Counters::count(&counters.no_room);
            return None;
        }
        table.hold(service);
        let limits = &options.connect_limits;
        let mut open = || loop {
            let (backend, _) = table.choose(service, scope, client.ip(), attempts, limits, *now)?;
            let keeps = can_keep_clients(options.capture)
                && table.keeps_client_address(service, client.ip(), backend, || {
                    table.is_internal(service, destination)
                });
            match connected(backend, options.capture, keeps.then_some(client.ip())) {
                Ok(fd) => return Some((fd, backend)),
                // The shortage is this host's, not the backend's failure.
                Err(errno) if is_shortage(errno) => return None,
                Err(_) => table.failed(service, backend, attempts, Failure::Refused, *now),
            }
        };
        let flow = open().and_then(|(fd, backend)| {
            self.add_reply(here, options.capture).map(|()| Flow { fd, destination, service, backend })
        });
        let Some(flow) = flow else {
            self.share.give_back();
            table.let_go(service);
            return None;
        };
        let id = self.flows.insert(key, flow, *now);
        Counters::count(&counters.flows_open);
        Counters::count(&counters.flows);
        let watched = self
            .flows
            .using(id, *now)
            .is_some_and(|(_, flow)| poller.watch_reads(&flow.fd, Token::Flow(id.0)).is_ok());
        if watched {
            return Some(id);
        }
        self.end(id, table, counters);
        None
    }

    fn add_reply(&mut self, here: SocketAddr, capture: Capture) -> Option<()> {
        if capture != Capture::Tproxy {
            return Some(());
        }
        if let Some(reply) = self.replies.get_mut(&here) {
            reply.flows = reply.flows.saturating_add(1);
            return Some(());
        }
        match reply_socket(here) {
            Ok(fd) => {
                self.replies.insert(here, Reply { fd, flows: 1 });
                Some(())
            }
            Err(errno) => {
                tracing::warn!(address = %here, %errno, "cannot answer from this address");
                None
            }
        }
    }

    fn end(&mut self, id: FlowId, table: &mut RelayTable, counters: &Counters) {
        if let Some((key, flow)) = self.flows.remove(id) {
            self.give_back(key, &flow, table, counters);
        }
    }

    fn give_back(&mut self, (_, destination): Key, flow: &Flow, table: &mut RelayTable, counters: &Counters) {
        self.share.give_back();
        table.let_go(flow.service);
        Counters::uncount(&counters.flows_open);
        if let Some(reply) = self.replies.get_mut(&destination) {
            reply.flows = reply.flows.saturating_sub(1);
            if reply.flows == 0 {
                self.replies.remove(&destination);
            }
        }
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

/// Opens a socket that sends from a virtual address. It is connected to the discard port: otherwise it would receive
/// datagrams to a former node port, which the node should refuse.
fn reply_socket(destination: SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = socket(Family::of(destination.ip()), Protocol::Udp)?;
    original::set_transparent(&fd, destination.is_ipv6()).map_err(|_| Errno::INVAL)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    bind(&fd, &destination)?;
    connect(&fd, &SocketAddr::new(loopback(Family::of(destination.ip())), DISCARD))?;
    Ok(fd)
}
