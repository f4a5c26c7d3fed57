//! Responders: a client that reaches one learns its address and the source address that it has seen.
//!
//! One thread answers for any number of addresses in any number of namespaces, because a socket belongs to
//! the namespace in which it was opened. TCP: a line with the answer upon connecting, then an echo of every
//! byte. UDP: the answer, then the datagram's payload. SCTP: INIT ACK with the answer as its state cookie, and
//! acknowledged heartbeats with the answer before their text. Other ports of the same address refuse with ABORT, as
//! an SCTP stack does.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use portolan_model::{Family, Protocol};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, SocketFlags, acceptfrom_with, connect, connect_unspec, listen, recv, recvfrom,
    send, sendto, sockopt,
};

use crate::pauses::{PULSE, Pulse};
use crate::sctp::{Packet, strip_ipv4_header};
use crate::socket::{self, Poller, answer};
use crate::{Namespace, TestkitError};

const WAKE: u64 = 0;
const BACKLOG: i32 = 1024;
const PACKET_BYTES: usize = 64 << 10;

/// A thread that answers at many addresses. When dropped, it ends and closes all of them.
#[derive(Debug)]
pub struct EchoServer {
    orders: Option<mpsc::Sender<Order>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The address of a responder: namespace ID, protocol, address and port.
type BoundAddress = (u64, Protocol, SocketAddr);

enum Order {
    Open(Vec<(BoundAddress, OwnedFd)>),
    /// A message is sent to the sender when the address is closed.
    Close(BoundAddress, mpsc::Sender<()>),
}

impl EchoServer {
    /// Starts the thread, without any addresses.
    pub fn start() -> Result<Self, TestkitError> {
        let fail = || TestkitError::system("start the responders");
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail())?);
        let poller = Poller::new().map_err(fail())?;
        poller.watch_reads(&*wake, WAKE).map_err(fail())?;
        let (orders, receiver) = mpsc::channel();
        let responder =
            Responder { poller, orders: receiver, wake: wake.clone(), sources: HashMap::new(), next: 1 };
        let thread = thread::Builder::new()
            .name("responders".to_owned())
            .spawn(move || responder.serve())
            .map_err(|source| TestkitError::System { action: "start the responders", source })?;
        Ok(Self { orders: Some(orders), wake, thread: Some(thread) })
    }

    /// Starts to answer at one address, which must be an address of the namespace.
    pub fn listen(
        &self,
        namespace: &Namespace,
        protocol: Protocol,
        address: SocketAddr,
    ) -> Result<(), TestkitError> {
        self.listen_many(namespace, &[(protocol, address)])
    }

    /// Starts to answer at many addresses of one namespace. After the return, none of them loses a packet.
    pub fn listen_many(
        &self,
        namespace: &Namespace,
        places: &[(Protocol, SocketAddr)],
    ) -> Result<(), TestkitError> {
        let open = |(protocol, address): &(Protocol, SocketAddr)| {
            let (protocol, address) = (*protocol, *address);
            open(protocol, address).map(|fd| ((namespace.id(), protocol, address), fd)).map_err(|errno| {
                let (namespace, source) = (namespace.name().to_owned(), errno.into());
                TestkitError::Listen { protocol, address, namespace, source }
            })
        };
        let opened = namespace.run(|| places.iter().map(open).collect::<Result<Vec<_>, _>>())??;
        self.order(Order::Open(opened))
    }

    /// Stops answering at an address and resets its TCP connections. Returns when that is done.
    pub fn close(
        &self,
        namespace: &Namespace,
        protocol: Protocol,
        address: SocketAddr,
    ) -> Result<(), TestkitError> {
        let (done, closed) = mpsc::channel();
        self.order(Order::Close((namespace.id(), protocol, address), done))?;
        closed.recv().map_err(|_| gone())
    }

    fn order(&self, order: Order) -> Result<(), TestkitError> {
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send(order).map_err(|_| gone())?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        // The write fails only if the counter is full. Then the thread is already awake.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.orders = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and has closed every open connection.
            let _ = thread.join();
        }
    }
}

fn gone() -> TestkitError {
    TestkitError::System { action: "reach the responders", source: io::ErrorKind::BrokenPipe.into() }
}

fn open(protocol: Protocol, address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = Family::of(address.ip());
    match protocol {
        Protocol::Tcp => {
            let fd = socket::stream(family)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            socket::bind_to(&fd, address.ip(), address.port())?;
            listen(&fd, BACKLOG)?;
            Ok(fd)
        }
        Protocol::Udp => {
            let fd = socket::roomy(socket::datagram(family)?)?;
            // As for TCP: a closed responder can be opened again at once.
            sockopt::set_socket_reuseaddr(&fd, true)?;
            socket::bind_to(&fd, address.ip(), address.port())?;
            Ok(fd)
        }
        Protocol::Sctp => {
            let fd = socket::raw_sctp(family)?;
            socket::bind_to(&fd, address.ip(), 0)?;
            Ok(fd)
        }
    }
}

/// The state of the thread.
struct Responder {
    poller: Poller,
    orders: mpsc::Receiver<Order>,
    wake: Arc<OwnedFd>,
    sources: HashMap<u64, Source>,
    next: u64,
}

enum Source {
    Listener(BoundAddress, OwnedFd),
    Connection(BoundAddress, OwnedFd),
    Datagrams(BoundAddress, OwnedFd),
    /// One raw socket for all ports of an address.
    Raw {
        namespace: u64,
        address: IpAddr,
        ports: HashSet<u16>,
        fd: OwnedFd,
    },
}

impl Responder {
    fn serve(mut self) {
        let mut buffer = vec![0; PACKET_BYTES];
        let pulse = Pulse::start();
        loop {
            // The wait fails only because of a defect in this crate. If the thread ends, probes are refused.
            let Ok(tokens) = self.poller.wait(Some(PULSE)) else { return };
            for token in tokens {
                if token != WAKE {
                    self.answer(token, &mut buffer);
                } else if !self.take_orders() {
                    return;
                }
            }
            pulse.beat();
        }
    }

    /// Processes the orders. Returns false if the owner is gone.
    fn take_orders(&mut self) -> bool {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        loop {
            match self.orders.try_recv() {
                Ok(Order::Open(opened)) => opened.into_iter().for_each(|(place, fd)| self.open(place, fd)),
                Ok(Order::Close(place, done)) => {
                    self.close(place);
                    // It does not matter if the sender no longer waits.
                    let _ = done.send(());
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn open(&mut self, place: BoundAddress, fd: OwnedFd) {
        let (namespace, protocol, at) = place;
        match protocol {
            Protocol::Tcp => self.watch(Source::Listener(place, fd)),
            Protocol::Udp => self.watch(Source::Datagrams(place, fd)),
            Protocol::Sctp => {
                if let Some(ports) = self.raw_ports(namespace, at.ip()) {
                    ports.insert(at.port());
                } else {
                    let ports = HashSet::from([at.port()]);
                    self.watch(Source::Raw { namespace, address: at.ip(), ports, fd });
                }
            }
        }
    }

    fn raw_ports(&mut self, wanted: u64, at: IpAddr) -> Option<&mut HashSet<u16>> {
        self.sources.values_mut().find_map(|source| match source {
            Source::Raw { namespace, address, ports, .. } if (*namespace, *address) == (wanted, at) => {
                Some(ports)
            }
            _ => None,
        })
    }

    fn close(&mut self, place: BoundAddress) {
        let (namespace, protocol, at) = place;
        if protocol == Protocol::Sctp {
            if let Some(ports) = self.raw_ports(namespace, at.ip()) {
                ports.remove(&at.port());
            }
            return;
        }
        self.sources.retain(|_, source| match source {
            Source::Listener(own, fd) | Source::Connection(own, fd) | Source::Datagrams(own, fd) => {
                let closed = *own == place;
                if closed {
                    silence(protocol, at, fd);
                }
                !closed
            }
            Source::Raw { .. } => true,
        });
    }

    fn watch(&mut self, source: Source) {
        let token = self.next;
        self.next += 1;
        let (Source::Listener(_, fd)
        | Source::Connection(_, fd)
        | Source::Datagrams(_, fd)
        | Source::Raw { fd, .. }) = &source;
        if self.poller.watch_reads(fd, token).is_ok() {
            self.sources.insert(token, source);
        }
    }

    fn answer(&mut self, token: u64, buffer: &mut [u8]) {
        match self.sources.get(&token) {
            Some(Source::Listener(place, fd)) => {
                for connection in accept_all(*place, fd) {
                    self.watch(connection);
                }
            }
            Some(Source::Connection(_, fd)) => {
                let goes_on = echo(fd, buffer);
                if !goes_on {
                    self.sources.remove(&token);
                }
            }
            Some(Source::Datagrams((.., at), fd)) => answer_datagrams(*at, fd, buffer),
            Some(Source::Raw { address, ports, fd, .. }) => answer_packets(*address, ports, fd, buffer),
            None => {}
        }
    }
}

/// Stops the activity of a socket before it is closed. While another thread starts a child process, the child
/// holds a copy of the socket for a moment, and closing alone would have no effect until the copy is closed.
fn silence(protocol: Protocol, at: SocketAddr, fd: &OwnedFd) {
    // Closing the socket makes up for any failure of these calls.
    let _ = match protocol {
        // Disconnecting stops a listener and resets a connection.
        Protocol::Tcp => connect_unspec(fd),
        // A socket that is connected to itself does not receive other datagrams.
        Protocol::Udp | Protocol::Sctp => connect(fd, &at),
    };
}

fn accept_all(place: BoundAddress, listener: &OwnedFd) -> Vec<Source> {
    let mut accepted = Vec::new();
    while let Ok((fd, peer)) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        let Some(Ok(peer)) = peer.map(SocketAddr::try_from) else { continue };
        let greeting = format!("{}\n", answer(place.2, peer));
        let options = sockopt::set_socket_linger(&fd, Some(std::time::Duration::ZERO))
            .and_then(|()| sockopt::set_tcp_nodelay(&fd, true));
        if options.is_ok() && send(&fd, greeting.as_bytes(), SendFlags::NOSIGNAL).is_ok() {
            accepted.push(Source::Connection(place, fd));
        }
    }
    accepted
}

/// Sends received bytes back. Returns false when the connection is over. A peer that does not read its echo
/// loses the connection, so that it does not block other peers.
fn echo(fd: &OwnedFd, buffer: &mut [u8]) -> bool {
    loop {
        let length = match recv(fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok((_, length)) => length,
            Err(errno) => return errno == Errno::AGAIN,
        };
        let read = buffer.get(..length).unwrap_or_default();
        if send(fd, read, SendFlags::NOSIGNAL) != Ok(length) {
            return false;
        }
    }
}

fn answer_datagrams(at: SocketAddr, fd: &OwnedFd, buffer: &mut [u8]) {
    // An error is an ICMP message about an earlier answer to another client. Datagrams may still wait.
    while let Ok((_, length, peer)) = recvfrom(fd, &mut *buffer, RecvFlags::DONTWAIT) {
        let Some(Ok(peer)) = peer.map(SocketAddr::try_from) else { continue };
        let mut reply = answer(at, peer).into_bytes();
        reply.push(b' ');
        reply.extend(buffer.iter().take(length));
        // The client notices a lost answer.
        let _ = sendto(fd, &reply, SendFlags::NOSIGNAL, &peer);
    }
}

fn answer_packets(address: IpAddr, ports: &HashSet<u16>, fd: &OwnedFd, buffer: &mut [u8]) {
    while let Ok((_, length, peer)) = recvfrom(fd, &mut *buffer, RecvFlags::DONTWAIT) {
        let Some(Ok(peer)) = peer.map(SocketAddr::try_from) else { continue };
        let packet = buffer.get(..length).unwrap_or_default();
        let payload = if address.is_ipv4() { strip_ipv4_header(packet) } else { Some(packet) };
        let Some(packet) = payload.and_then(Packet::decode) else { continue };
        if let Some(reply) = answer_packet(address, ports, &packet, peer.ip()) {
            let to = SocketAddr::new(peer.ip(), 0);
            // The client notices a lost answer.
            let _ = sendto(fd, &reply.encode(), SendFlags::NOSIGNAL, &to);
        }
    }
}

fn answer_packet(address: IpAddr, ports: &HashSet<u16>, packet: &Packet, peer: IpAddr) -> Option<Packet> {
    if !ports.contains(&packet.destination_port) {
        return packet.refuse();
    }
    let reached = SocketAddr::new(address, packet.destination_port);
    packet.accept(&answer(reached, SocketAddr::new(peer, packet.source_port)))
}
