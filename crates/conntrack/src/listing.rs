//! Lists the flows to one destination.

use std::net::{IpAddr, SocketAddr};

use portolan_model::Protocol;
use portolan_sock::{Protocol as Netlink, Socket, SocketError};
use portolan_wire::conntrack::{self, ConntrackEvent, Filter, Flow};
use portolan_wire::nfnetlink::Family;

use super::Error;

/// Number of attempts at a listing that changed while it was read, as in a clean-up.
const ATTEMPTS: u32 = 5;

/// How much of the table a listing showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    All,
    Some,
}

/// The flows to a destination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// The flows, at most as many as requested.
    pub flows: Vec<Flow>,
    /// True if some may be missing: there are more, or the table changed too much in each of five attempts.
    pub partial: bool,
}

/// Returns the flows to a destination, as their clients address it, in the network namespace of this thread. With `client`,
/// only flows from this address count. At most `limit` flows are kept; their number does not affect memory beyond that.
pub fn flows_to(
    destination: SocketAddr,
    protocol: Protocol,
    client: Option<IpAddr>,
    limit: usize,
) -> Result<Listed, Error> {
    let mut socket = Socket::open(Netlink::Netfilter).map_err(Error::Open)?;
    let family = if destination.is_ipv4() { Family::IPV4 } else { Family::IPV6 };
    let filter = Filter {
        destination: Some(destination.ip()),
        destination_port: Some(destination.port()),
        ..Filter::protocol(family, protocol.number())
    };
    // Kernels ignore parts of a filter that they do not know.
    let is_wanted = |flow: &Flow| {
        flow.original.protocol == protocol.number()
            && flow.original.destination == destination.ip()
            && flow.original.destination_port() == Some(destination.port())
            && client.is_none_or(|client| flow.original.source == client)
    };
    for _ in 1..ATTEMPTS {
        if let (listed, Seen::All) = list(&mut socket, &filter, &is_wanted, limit)? {
            return Ok(listed);
        }
    }
    let (listed, seen) = list(&mut socket, &filter, &is_wanted, limit)?;
    Ok(Listed { partial: listed.partial || seen == Seen::Some, ..listed })
}

fn list(
    socket: &mut Socket,
    filter: &Filter,
    is_wanted: &impl Fn(&Flow) -> bool,
    limit: usize,
) -> Result<(Listed, Seen), Error> {
    let mut listed = Listed::default();
    let outcome = socket.dump(&mut conntrack::list(filter), |frame| {
        match ConntrackEvent::decode(frame) {
            Ok(ConntrackEvent::New(flow)) if is_wanted(&flow) && listed.flows.len() < limit => {
                listed.flows.push(flow);
            }
            Ok(ConntrackEvent::New(flow)) => listed.partial |= is_wanted(&flow),
            Ok(_) => {}
            Err(_) => listed.partial = true,
        }
        Ok(())
    });
    match outcome {
        Ok(()) => Ok((listed, Seen::All)),
        Err(SocketError::Interrupted | SocketError::Overrun) => Ok((listed, Seen::Some)),
        Err(error) => Err(Error::ListTo(error)),
    }
}
