//! What the kernel of this node has besides rules of Services: firewall rules of other programs, and connections.

use std::net::SocketAddr;

use portolan_conntrack::flows_to;
use portolan_doctor::gather;
use portolan_explain::{Connection, Ends, Facts, Known, Question, Unanswerable, ends};
use portolan_firewall::Ruleset;
use portolan_model::Protocol;
use portolan_node::sysctl::Host;
use portolan_wire::conntrack::{Flow, Tuple, status};

/// Most connections of the client that are kept.
const MOST: usize = 10_000;

/// What was read. What could not be read is missing, with a fault.
#[derive(Debug)]
pub struct Kernel {
    rules: Option<Ruleset>,
    connections: Option<Vec<Connection>>,
    /// True if connections may be missing.
    partial: bool,
    faults: Vec<String>,
}

impl Kernel {
    /// Reads what concerns a question, in the network namespace of this thread. Blocks while programs run.
    ///
    /// # Errors
    /// The question cannot be answered.
    pub fn read(question: &Question, facts: &Facts<'_>) -> Result<Self, Unanswerable> {
        let Ends { client, destination, protocol } = ends(question, facts)?;
        let (rules, unread) = gather::ruleset(&Host::default());
        let mut faults: Vec<String> =
            unread.iter().map(|unread| format!("cannot read {}: {}", unread.what, unread.reason)).collect();
        // Without all rules, it is not known that none stops the packet.
        let rules = faults.is_empty().then_some(rules);
        let mut partial = false;
        let connections = match flows_to(destination, protocol, client, MOST) {
            Ok(listed) => {
                partial = listed.partial;
                if partial {
                    faults.push("not all connections could be read".to_owned());
                }
                Some(listed.flows.iter().filter_map(|flow| connection(flow, protocol)).collect())
            }
            Err(error) => {
                faults.push(error.to_string());
                None
            }
        };
        Ok(Self { rules, connections, partial, faults })
    }

    /// Adds what was read to the facts of an answer.
    #[must_use]
    pub fn added_to<'a>(&'a self, facts: Facts<'a>) -> Facts<'a> {
        let connections = self.connections.as_deref().map(|list| Known { list, partial: self.partial });
        Facts { connections, rules: self.rules.as_ref(), ..facts }
    }

    /// Returns what could not be read, each in one sentence.
    pub fn faults(&self) -> &[String] {
        &self.faults
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
