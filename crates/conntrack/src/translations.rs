//! Looks up the original destination of translated datagrams in conntrack.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_model::Protocol;
use portolan_sock::{Socket, SocketError};
use portolan_wire::conntrack::{ConntrackEvent, Tuple, answered_by};

/// How long a result is cached. Later the kernel may have forgotten the flow, and the client may have started another
/// one from the same port.
const FRESH: Duration = Duration::from_secs(1);
/// Number of results cached at most.
const ANSWERS_MAX: usize = 16_384;

/// Lookups, with a cache, of the destinations of datagrams that the kernel has translated to an address of this node.
#[derive(Debug)]
pub struct Translations {
    socket: Socket,
    answers: HashMap<(SocketAddr, SocketAddr), (SocketAddr, Instant)>,
}

impl Translations {
    /// Opens a socket in the network namespace of this thread.
    pub fn open() -> Result<Self, SocketError> {
        Ok(Self { socket: Socket::open(portolan_sock::Protocol::Netfilter)?, answers: HashMap::new() })
    }

    fn ask(&mut self, client: SocketAddr, here: SocketAddr) -> Option<SocketAddr> {
        let ports = (here.ip(), here.port());
        let reply = Tuple::with_ports(Protocol::Udp.number(), ports, (client.ip(), client.port()));
        let mut found = None;
        let asked = self.socket.query(&mut answered_by(&reply), |frame| {
            if let ConntrackEvent::New(flow) = ConntrackEvent::decode(frame)?
                && flow.reply == reply
            {
                let port = flow.original.destination_port();
                found = port.map(|port| SocketAddr::new(flow.original.destination, port));
            }
            Ok(())
        });
        // Without a flow there is no destination. After any other error the client's next datagram repeats the
        // lookup.
        if let Err(error) = asked {
            tracing::debug!(%client, %here, %error, "the kernel does not say where a datagram was sent to");
        }
        found
    }
}

impl portolan_relay::Translations for Translations {
    fn destination(&mut self, client: SocketAddr, here: SocketAddr) -> Option<SocketAddr> {
        let (key, now) = ((client, here), Instant::now());
        let fresh = |&&(_, since): &&(SocketAddr, Instant)| now.saturating_duration_since(since) < FRESH;
        if let Some(&(destination, _)) = self.answers.get(&key).filter(fresh) {
            return Some(destination);
        }
        let destination = self.ask(client, here)?;
        if self.answers.len() >= ANSWERS_MAX && !self.answers.contains_key(&key) {
            self.answers.clear();
        }
        self.answers.insert(key, (destination, now));
        Some(destination)
    }
}
