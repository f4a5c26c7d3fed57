//! What the kernel of this node has besides rules of Services: firewall rules of other programs, connections, the route of its
//! own packets, routes to endpoints, and reverse-path filters.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use portolan_conntrack::flows_to;
use portolan_doctor::gather;
use portolan_explain::{Connection, Ends, Facts, Known, Note, Question, Routes, Sender, Unanswerable, ends};
use portolan_firewall::Ruleset;
use portolan_model::Protocol;
use portolan_node::sysctl::Host;
use portolan_wire::conntrack::{Flow, Tuple, status};

use super::routes::NodeRoutes;

/// Most connections of the client that are kept.
const MOST: usize = 10_000;

/// What was read. What could not be read is missing, with a note.
#[derive(Debug)]
pub struct Kernel {
    rules: Option<Ruleset>,
    connections: Option<Vec<Connection>>,
    /// True if connections may be missing.
    partial: bool,
    node_source: Option<IpAddr>,
    routes: Option<NodeRoutes>,
    notes: Vec<Note>,
}

impl Kernel {
    /// Reads what concerns a question, in the network namespace of this thread. Blocks while programs run.
    ///
    /// # Errors
    /// The question cannot be answered.
    pub fn read(question: &Question, facts: &Facts<'_>) -> Result<Self, Unanswerable> {
        let Ends { destination, protocol, .. } = ends(question, facts)?;
        let route = (question.from == Sender::Node).then(|| source_to(destination));
        let node_source = route.as_ref().and_then(|route| route.as_ref().ok().copied());
        let Ends { client, .. } = ends(question, &Facts { node_source, ..*facts })?;
        let (rules, unread) = gather::ruleset(&Host::default());
        // Without all rules, it is not known that none stops the packet.
        let rules = unread.is_empty().then_some(rules);
        let unread = unread.iter().map(|one| not_read(format!("cannot read {}: {}", one.what, one.reason)));
        let mut notes: Vec<Note> = unread.collect();
        let mut partial = false;
        let connections = match flows_to(destination, protocol, client, MOST) {
            Ok(listed) => {
                partial = listed.partial;
                if partial {
                    notes.push(not_read("not all connections could be read"));
                }
                Some(listed.flows.iter().filter_map(|flow| connection(flow, protocol)).collect())
            }
            Err(error) => {
                notes.push(not_read(error.to_string()));
                None
            }
        };
        if let Some(Err(error)) = route {
            notes.push(no_route(destination, &error));
        }
        let routes = match NodeRoutes::read() {
            Ok(routes) => Some(routes),
            Err(error) => {
                notes.push(not_read(format!("cannot read the interfaces and routes of this node: {error}")));
                None
            }
        };
        Ok(Self { rules, connections, partial, node_source, routes, notes })
    }

    /// Adds what was read to the facts of an answer.
    #[must_use]
    pub fn added_to<'a>(&'a self, facts: Facts<'a>) -> Facts<'a> {
        let connections = self.connections.as_deref().map(|list| Known { list, partial: self.partial });
        let routes = self.routes.as_ref().map(|routes| -> &dyn Routes { routes });
        Facts { connections, rules: self.rules.as_ref(), node_source: self.node_source, routes, ..facts }
    }

    /// Returns what could not be read, and whether a route is missing.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

fn connection(flow: &Flow, protocol: Protocol) -> Option<Connection> {
    let source = |tuple: &Tuple| Some(SocketAddr::new(tuple.source, tuple.source_port()?));
    let destination = |tuple: &Tuple| Some(SocketAddr::new(tuple.destination, tuple.destination_port()?));
    Some(Connection {
        protocol,
        source: source(&flow.original)?,
        destination: destination(&flow.original)?,
        reply_source: source(&flow.reply)?,
        reply_destination: destination(&flow.reply)?,
        replied: flow.status & status::SEEN_REPLY != 0,
        timeout: flow.timeout,
    })
}

fn not_read(text: impl Into<String>) -> Note {
    Note { code: "kernel-not-read".to_owned(), text: text.into() }
}

fn no_route(destination: SocketAddr, error: &io::Error) -> Note {
    let text = format!(
        "this node has no route to {}: {error}; its processes cannot send there, also if a Service has the address: add a \
         route, such as a default route",
        destination.ip()
    );
    Note { code: "no-route".to_owned(), text }
}

/// Returns the address from which a process of this node sends to a destination, as the routes say. Sends nothing.
fn source_to(destination: SocketAddr) -> io::Result<IpAddr> {
    let unspecified = match destination {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((unspecified, 0))?;
    // A connected datagram socket has the source of the route.
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}
