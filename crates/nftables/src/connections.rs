//! The table that delivers packets of the relay's connections to this node, beside the table that captures.

use portolan_model::{Family, Protocol as Transport, RELAY_PRIORITY, Settings};
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{ChainType, Hook, IfExists, Transaction};

use super::chain::{ChainBody, FamilyTable, base, commented};
use super::departure::{self, TableRemoval};
use super::encode;
use super::expression::{
    accept, connection_is_marked, direction_is_original, protocol_is, set_mark, set_priority,
    socket_is_transparent, state_established, state_not_established,
};
use super::layout::{CAPTURE, CONNECTIONS_PRIORITY, Layout, Target, capture_mark};
use super::readback::{self, same_rules};
use super::skeleton;
use portolan_engine::dataplane::Error;

/// The name of the table, in either family.
pub const TABLE: &str = "portolan-relay";

/// The table that delivers packets of the relay's connections to this node: packets of clients after their Service
/// port is gone or another mode has taken over, and replies to connections that the relay opened with the client's
/// address. Packets of this node's own clients are recognized by their connection mark, because a socket lookup finds
/// the client's socket.
#[derive(Debug)]
pub struct Connections {
    socket: Socket,
}

impl Connections {
    /// Opens a socket in the network namespace of this thread. Changes nothing.
    pub fn open() -> Result<Self, SocketError> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// Creates the table, or repairs it if it differs. Returns the number of objects written: 0 if nothing was wrong.
    pub fn ensure(&mut self, settings: &Settings) -> Result<usize, Error> {
        let place = place(settings.family);
        let view = readback::read(&mut self.socket, place)?;
        let bodies = chains(settings);
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
    pub fn remove(&mut self, family: Family) -> Result<(), Error> {
        self.remove_table(family, TABLE)
    }

    /// Removes a table of this mode.
    pub fn remove_table(&mut self, family: Family, table: &'static str) -> Result<(), Error> {
        let place = FamilyTable { family, table };
        departure::remove(&mut self.socket, place.wire(), place.table).map(|_| ())
    }

    /// Empties the base chain that sends this node's packets back by loopback. Returns true if the table may be
    /// removed.
    pub fn end_capture(&mut self, family: Family, departure: &mut TableRemoval) -> Result<bool, Error> {
        departure.advance(&mut self.socket, CAPTURE.place(family), CAPTURE.leads_in)
    }

    fn commit(&mut self, transaction: Transaction) -> Result<(), Error> {
        let batch = transaction.finish().map_err(SocketError::from)?;
        Ok(self.socket.commit(&batch)?)
    }
}

/// More messages than any transaction of this module has.
const ROOM: u32 = 64;

const fn place(family: Family) -> FamilyTable {
    FamilyTable { family, table: TABLE }
}

/// Returns the chains that the mode of a layout needs in this table.
pub(super) fn chains_of(layout: Layout<'_>) -> Vec<ChainBody> {
    match layout.target {
        Target::Endpoints => Vec::new(),
        Target::Relay(_) => chains(layout.settings).into(),
    }
}

/// Returns the chains of [`TABLE`]. Packets of established TCP connections get the priority of the
/// relay's own packets, by which the chains that capture skip them. The first packet of a connection does not get it:
/// the socket found may belong to a connection that has ended (`TIME_WAIT`).
fn chains(settings: &Settings) -> [ChainBody; 2] {
    let mark = capture_mark(settings);
    let [tcp, udp] = [Transport::Tcp, Transport::Udp].map(protocol_is);
    let found = [&socket_is_transparent()[..], &set_mark(mark)].concat();
    let known = [&set_priority(RELAY_PRIORITY)[..], &[accept()]].concat();
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
