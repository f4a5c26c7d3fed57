//! An SCTP association by packets of a raw socket (RFC 9260): its handshake, and heartbeats with a text each.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_model::Family;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};

use super::TrafficPlan;
use crate::ports;
use crate::sctp::{self, Chunk, Packet, strip_ipv4_header};
use crate::socket;

/// Time after which an unanswered packet of the handshake is sent again: RTO.Initial of RFC 9260 section 16.
const REPEAT: Duration = Duration::from_secs(1);

pub(super) struct Association {
    fd: OwnedFd,
    source_port: u16,
    destination: SocketAddr,
    initiate_tag: u32,
    handshake: Handshake,
    /// When a packet of the handshake was last sent.
    handshake_sent: Option<Instant>,
}

enum Handshake {
    /// The responder has to answer INIT.
    Init,
    /// The responder has to acknowledge its cookie.
    Cookie {
        tag: u32,
        cookie: Vec<u8>,
    },
    Done {
        tag: u32,
    },
}

impl Association {
    pub(super) fn new(destination: SocketAddr, plan: &TrafficPlan) -> Result<Self, Errno> {
        let fd = socket::raw_sctp(Family::of(destination.ip()))?;
        if let Some(source) = plan.source {
            socket::bind_to(&fd, source, 0)?;
        }
        // A raw socket has its protocol already: the port of the address must be zero.
        connect(&fd, &SocketAddr::new(destination.ip(), 0))?;
        let (turn, source_port) = ports::next();
        let initiate_tag = sctp::initiate_tag(turn);
        Ok(Self {
            fd,
            source_port,
            destination,
            initiate_tag,
            handshake: Handshake::Init,
            handshake_sent: None,
        })
    }

    pub(super) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Sends a heartbeat with this text. Returns false if the handshake is not done yet. It goes on instead.
    pub(super) fn send(&mut self, text: &str) -> bool {
        let Handshake::Done { tag } = self.handshake else {
            if self.handshake_sent.is_none_or(|sent| sent.elapsed() >= REPEAT) {
                // A cookie that comes late finds no conntrack entry any more, so the handshake begins anew.
                self.handshake = Handshake::Init;
                self.send_handshake();
            }
            return false;
        };
        self.send_chunk(tag, Chunk::Heartbeat { info: text.as_bytes().to_vec() });
        true
    }

    /// Reads a packet into the buffer. Returns the text of an acknowledged heartbeat.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Vec<u8>>, Errno> {
        let (_, length) = recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        let payload = if self.destination.is_ipv4() { strip_ipv4_header(bytes) } else { Some(bytes) };
        let Some(packet) = payload.and_then(Packet::decode).filter(|packet| self.is_own(packet)) else {
            return Ok(None);
        };
        match (packet.chunk, &self.handshake) {
            (Chunk::InitAck { initiate_tag, cookie }, Handshake::Init) => {
                self.handshake = Handshake::Cookie { tag: initiate_tag, cookie };
                self.send_handshake();
            }
            (Chunk::CookieAck, &Handshake::Cookie { tag, .. }) => self.handshake = Handshake::Done { tag },
            (Chunk::HeartbeatAck { info }, _) => return Ok(Some(info)),
            _ => {}
        }
        Ok(None)
    }

    /// The raw socket also gets the packets of other associations with the same destination.
    const fn is_own(&self, packet: &Packet) -> bool {
        packet.destination_port == self.source_port
            && packet.source_port == self.destination.port()
            && packet.verification_tag == self.initiate_tag
    }

    /// Sends the next packet of the handshake.
    fn send_handshake(&mut self) {
        self.handshake_sent = Some(Instant::now());
        let (tag, chunk) = match &self.handshake {
            Handshake::Init => (0, Chunk::Init { initiate_tag: self.initiate_tag }),
            Handshake::Cookie { tag, cookie } => (*tag, Chunk::CookieEcho { cookie: cookie.clone() }),
            Handshake::Done { .. } => return,
        };
        self.send_chunk(tag, chunk);
    }

    fn send_chunk(&self, verification_tag: u32, chunk: Chunk) {
        let (source_port, destination_port) = (self.source_port, self.destination.port());
        let packet = Packet { source_port, destination_port, verification_tag, chunk };
        // A packet that is dropped here counts as lost, like one that is lost on the way.
        let _ = send(&self.fd, &packet.encode(), SendFlags::NOSIGNAL);
    }
}
