//! The layout in which packets of Services are given to listeners on this node (`tproxy`) instead of being translated.
//!
//! Sets, ids, classes and checks are those of the nftables mode: what a Service port means is decided there in both. Each
//! set of endpoints is one listener. A mark makes the kernel deliver to this node whatever a listener is to have; packets
//! of this node itself get it when they leave, so that they come back by the loopback interface.

use std::net::SocketAddr;

use portolan_model::{Family, Protocol as Transport, Settings};
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::expr::MetaKey;
use portolan_wire::nftables::{ChainType, Hook, IfExists, Transaction};

use super::departure::{self, Departure};
use super::element::Set;
use super::encode;
use super::expression::{
    accept, connection_is_marked, direction_is_original, direction_is_reply, has_priority, jump, map,
    protocol_is, reset_priority, service_key, set_connection_mark, set_mark, set_meta, set_priority,
    socket_is_transparent, state_established, state_not_established, status_dnat, tproxy,
};
use super::readback;
use super::resync::same_rules;
use super::skeleton::{self, ChainBody, Place, RuleBody, base, commented, rule};
use crate::dataplane::Error;

/// The mode that captures, as configurations spell it.
pub(crate) const MODE: &str = "userspace";

/// The name of the table in either family.
pub const TABLE: &str = "portolan-userspace";

/// `NF_IP_PRI_NAT_DST` (`netfilter_ipv4.h`).
const NAT_PRIORITY: i32 = -100;
/// Right after that: what another mode still translates, or has translated before, is its own.
const CONNECTIONS_PRIORITY: i32 = NAT_PRIORITY + 1;
/// And after that: packets of connections that the relay has are known by then.
const PRIORITY: i32 = CONNECTIONS_PRIORITY + 1;

/// Bit of the packet mark that captured packets have, and the one where that is the bit of masquerading. Kubernetes and
/// its usual network plug-ins use others: 7, 8 to 11, 13 to 15, and above.
const MARK_BITS: [u8; 2] = [12, 6];

/// The listeners of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capture {
    /// Has traffic that takes the cluster's endpoints.
    pub cluster: SocketAddr,
    /// Has traffic that takes this node's endpoints.
    pub local: SocketAddr,
}

impl Capture {
    /// The listener of a scope.
    pub const fn listener(&self, local: bool) -> SocketAddr {
        if local { self.local } else { self.cluster }
    }

    /// `tproxy to LISTENER mark set mark or MARK accept`. Without a listener, as after a crash, the packet goes on to the
    /// next rule and is refused; the reset ends connections, too, of which nobody knows any more.
    pub(super) fn rules(self, settings: &Settings, local: bool) -> Vec<RuleBody> {
        let mut expressions = reset_priority(0).to_vec();
        expressions.extend(tproxy(settings.family, self.listener(local)));
        expressions.extend(set_mark(capture_mark(settings)));
        expressions.push(accept());
        vec![rule(expressions), commented(vec![skeleton::refuse()], "no listener")]
    }
}

/// The mark of captured packets: a single bit.
pub(crate) fn capture_mark(settings: &Settings) -> u32 {
    let [usual, other] = MARK_BITS;
    1 << if settings.masquerade_bit == usual { other } else { usual }
}

/// Whether a base chain sends packets on a way that ends only where another one gives them to a listener.
pub(super) fn leads_in(chain: &str) -> bool {
    chain == MARKS
}

/// The chain that sends packets of this node back to it.
const MARKS: &str = "capture-output";

/// The chains that capture. Packets of connections that the relay has leave first: there are more of them than of all others.
pub(super) fn base_chains(settings: &Settings) -> [ChainBody; 3] {
    let own_packets = has_priority(portolan_relay::OWN_PRIORITY);
    let relayed = || commented([&own_packets[..], &[accept()]].concat(), "of connections of the relay");
    let translated = || commented([status_dnat(), vec![accept()]].concat(), "another's connections");
    // Not on the way out: where conntrack has forgotten a connection, the relay's next answer looks like its beginning, and
    // nothing but the Service tells what a client of this node says then from an answer.
    let answer = [&protocol_is(Transport::Tcp)[..], &direction_is_reply(), &[accept()]].concat();
    let prerouting =
        vec![relayed(), commented(answer, "answers"), translated(), rule(vec![jump("services")])];
    let (key, _) = service_key(settings.family);
    // What is found is of no use here, but nft cannot list a look-up without use.
    let found = vec![map(Set::Services, 0, 0), set_meta(MetaKey::PRIORITY, 0)];
    let mark = capture_mark(settings);
    let own = [&key[..], &found, &reset_priority(0), &set_mark(mark), &set_connection_mark(mark)].concat();
    let output = vec![relayed(), translated(), commented(own, "traffic of this node comes back by loopback")];
    [
        base("capture-prerouting", ChainType::Filter, Hook::PREROUTING, PRIORITY, prerouting),
        base(MARKS, ChainType::Route, Hook::OUTPUT, PRIORITY, output),
        // Where no chain of this type is left, the kernel translates nothing any more: no connection either that another
        // mode has begun.
        base("nat-output", ChainType::Nat, Hook::OUTPUT, NAT_PRIORITY, Vec::new()),
    ]
}

/// The name, in either family, of the table that brings packets of its connections to the relay.
pub const CONNECTIONS_TABLE: &str = "portolan-relay";

/// A table that delivers to this node what belongs to a connection that the relay has: packets of clients when their
/// Service port is gone or another mode has taken over, and answers to connections in a client's name. This node's own
/// packets are known by the mark of their connection, since their socket is the client's.
#[derive(Debug)]
pub(crate) struct Connections {
    socket: Socket,
}

impl Connections {
    /// In the network namespace of this thread. Changes nothing.
    pub(crate) fn open() -> Result<Self, SocketError> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// Makes the table where it is not there or is another one. Answers how many objects were written.
    pub(crate) fn ensure(&mut self, settings: &Settings) -> Result<usize, Error> {
        let place = place(settings.family);
        let view = readback::read(&mut self.socket, place)?;
        let bodies = connections(settings);
        let has_base = |body: &ChainBody| {
            let there = view.chains.get(&body.name).map(|chain| chain.clone().normalized().base);
            there == Some(body.chain(place).normalized().base)
        };
        let is_awake = view.table.as_ref().is_some_and(|table| table.flags == 0);
        let is_mendable = is_awake && view.chains.len() == bodies.len() && bodies.iter().all(has_base);
        if is_mendable && bodies.iter().all(|body| same_rules(&view, body)) {
            return Ok(0);
        }
        let mut transaction = Transaction::begin(self.socket.next_sequence(ROOM), None);
        if is_mendable {
            for body in &bodies {
                encode::refill(&mut transaction, place, body);
            }
        } else {
            if view.table.is_some() {
                transaction.delete_table(place.wire(), place.table);
            }
            transaction.new_table(&skeleton::table(place), IfExists::Keep);
            for body in &bodies {
                encode::chain(&mut transaction, place, body);
            }
        }
        self.commit(transaction)?;
        Ok(1)
    }

    /// Removes the table.
    pub(crate) fn remove(&mut self, family: Family) -> Result<(), Error> {
        self.remove_table(family, CONNECTIONS_TABLE)
    }

    /// Removes a table of this mode.
    pub(crate) fn remove_table(&mut self, family: Family, table: &'static str) -> Result<(), Error> {
        let place = Place { family, table };
        departure::remove(&mut self.socket, place.wire(), place.table).map(|_| ())
    }

    /// Lets the table that captures lead nothing more in. Says whether it may be removed.
    pub(crate) fn end_capture(&mut self, family: Family, departure: &mut Departure) -> Result<bool, Error> {
        departure.go_on(&mut self.socket, Place { family, table: TABLE }, leads_in)
    }

    fn commit(&mut self, transaction: Transaction) -> Result<(), Error> {
        let batch = transaction.finish().map_err(SocketError::from)?;
        Ok(self.socket.commit(&batch)?)
    }
}

/// More messages than a transaction here has.
const ROOM: u32 = 64;

const fn place(family: Family) -> Place {
    Place { family, table: CONNECTIONS_TABLE }
}

/// The chains of that table. What it finds is known to the chains that capture by the priority of the relay's own packets,
/// but for the first packet of a connection: the socket that it finds may be one that has ended (`TIME_WAIT`).
pub(super) fn connections(settings: &Settings) -> [ChainBody; 2] {
    let mark = capture_mark(settings);
    let [tcp, udp] = [Transport::Tcp, Transport::Udp].map(protocol_is);
    let found = [&socket_is_transparent()[..], &set_mark(mark)].concat();
    let known = [&set_priority(portolan_relay::OWN_PRIORITY)[..], &[accept()]].concat();
    let prerouting = vec![
        commented([&tcp[..], &state_established(), &found, &known].concat(), "connections of the relay"),
        commented([&tcp[..], &state_not_established(), &found, &[accept()]].concat(), "not known to be"),
        commented([&udp[..], &found, &[accept()]].concat(), "answers to clients whose address it keeps"),
    ];
    let own = [&connection_is_marked(mark)[..], &tcp, &direction_is_original(), &set_mark(mark)].concat();
    let output = vec![commented(own, "this node's connections to the relay")];
    [
        base("prerouting", ChainType::Filter, Hook::PREROUTING, CONNECTIONS_PRIORITY, prerouting),
        base("output", ChainType::Route, Hook::OUTPUT, CONNECTIONS_PRIORITY, output),
    ]
}
