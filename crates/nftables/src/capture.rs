//! The rules that send packets of Services to listeners on this node (`tproxy`) instead of translating them.
//!
//! Sets, ids, classes and checks are those of the nftables mode, so both modes interpret a Service port in the same
//! way. Each set of endpoints (cluster, local) is one listener. A packet mark makes the kernel deliver captured
//! packets to this node. Packets of this node itself are marked when they leave, so that they come back by the
//! loopback interface.

use std::net::SocketAddr;

use portolan_model::{Family, Protocol as Transport, RELAY_PRIORITY, Settings};
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::expr::MetaKey;
use portolan_wire::nftables::{ChainType, Hook, IfExists, Transaction};

use super::departure::{self, TableRemoval};
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
use portolan_engine::dataplane::Error;

/// The mode that captures packets, as in configuration files.
pub const MODE: &str = "userspace";

/// The name of the table, in either family.
pub const TABLE: &str = "portolan-userspace";

/// `NF_IP_PRI_NAT_DST` (`netfilter_ipv4.h`).
const NAT_PRIORITY: i32 = -100;
/// Directly after the translation of destinations. A connection that another mode translates, or has translated
/// before, belongs to that mode.
const CONNECTIONS_PRIORITY: i32 = NAT_PRIORITY + 1;
/// After the chains of [`CONNECTIONS_TABLE`], which mark packets of the relay's connections.
const PRIORITY: i32 = CONNECTIONS_PRIORITY + 1;

/// The bit of the packet mark for captured packets, and the bit to use if the first one is `masqueradeBit`.
/// Kubernetes and its common network plug-ins use other bits: 7, 8 to 11, 13 to 15, and above.
const MARK_BITS: [u8; 2] = [12, 6];

/// The relay's listeners of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listeners {
    /// Receives traffic for the cluster's endpoints.
    pub cluster: SocketAddr,
    /// Receives traffic for this node's endpoints.
    pub local: SocketAddr,
}

impl Listeners {
    /// Returns the listener for local endpoints or for those of the cluster.
    pub const fn listener(&self, local: bool) -> SocketAddr {
        if local { self.local } else { self.cluster }
    }

    /// `tproxy to LISTENER mark set mark or MARK accept`
    ///
    /// If there is no listener, as after a crash, the next rule rejects the packet. Its TCP reset also ends
    /// connections of a relay that has crashed.
    pub(super) fn rules(self, settings: &Settings, local: bool) -> Vec<RuleBody> {
        let mut expressions = reset_priority(0).to_vec();
        expressions.extend(tproxy(settings.family, self.listener(local)));
        expressions.extend(set_mark(capture_mark(settings)));
        expressions.push(accept());
        vec![rule(expressions), commented(vec![skeleton::refuse()], "no listener")]
    }
}

/// Returns the mark of captured packets: a single bit.
pub fn capture_mark(settings: &Settings) -> u32 {
    let [usual, other] = MARK_BITS;
    1 << if settings.masquerade_bit == usual { other } else { usual }
}

/// Returns true for the base chain that sends this node's packets back by loopback. Such packets need the prerouting
/// chain afterwards to reach a listener.
pub(super) fn leads_in(chain: &str) -> bool {
    chain == OUTPUT_CHAIN
}

/// The chain that captures packets that this node receives.
pub(super) const PREROUTING_CHAIN: &str = "capture-prerouting";

/// The chain that sends packets of this node back to it.
const OUTPUT_CHAIN: &str = "capture-output";

/// Returns the base chains that capture. Packets of the relay's connections leave by the first rule, because they are
/// more than all others.
pub(super) fn base_chains(settings: &Settings) -> [ChainBody; 3] {
    let own_packets = has_priority(RELAY_PRIORITY);
    let relayed = || commented([&own_packets[..], &[accept()]].concat(), "of connections of the relay");
    let translated = || commented([status_dnat(), vec![accept()]].concat(), "another's connections");
    // Only in prerouting. If conntrack forgets a connection, the relay's next reply starts a new entry, in which a
    // client on this node sends in the reply direction. The client's packets must still be captured, and in the
    // output chain only the Service lookup tells them from replies.
    let answer = [&protocol_is(Transport::Tcp)[..], &direction_is_reply(), &[accept()]].concat();
    let prerouting =
        vec![relayed(), commented(answer, "answers"), translated(), rule(vec![jump(skeleton::SERVICES)])];
    let (key, _) = service_key(settings.family);
    // The value is not used, but nft cannot list a lookup whose result is not used.
    let found = vec![map(Set::Services, 0, 0), set_meta(MetaKey::PRIORITY, 0)];
    let mark = capture_mark(settings);
    let own = [&key[..], &found, &reset_priority(0), &set_mark(mark), &set_connection_mark(mark)].concat();
    let output = vec![relayed(), translated(), commented(own, "traffic of this node comes back by loopback")];
    [
        base(PREROUTING_CHAIN, ChainType::Filter, Hook::PREROUTING, PRIORITY, prerouting),
        base(OUTPUT_CHAIN, ChainType::Route, Hook::OUTPUT, PRIORITY, output),
        // Without any chain of this type the kernel stops translating, also for connections that another mode has started.
        base("nat-output", ChainType::Nat, Hook::OUTPUT, NAT_PRIORITY, Vec::new()),
    ]
}

/// The name, in either family, of the table that delivers packets of the relay's connections to the relay.
pub const CONNECTIONS_TABLE: &str = "portolan-relay";

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
    pub fn remove(&mut self, family: Family) -> Result<(), Error> {
        self.remove_table(family, CONNECTIONS_TABLE)
    }

    /// Removes a table of this mode.
    pub fn remove_table(&mut self, family: Family, table: &'static str) -> Result<(), Error> {
        let place = Place { family, table };
        departure::remove(&mut self.socket, place.wire(), place.table).map(|_| ())
    }

    /// Empties the base chain that sends this node's packets back by loopback. Returns true if the table may be
    /// removed.
    pub fn end_capture(&mut self, family: Family, departure: &mut TableRemoval) -> Result<bool, Error> {
        departure.advance(&mut self.socket, Place { family, table: TABLE }, leads_in)
    }

    fn commit(&mut self, transaction: Transaction) -> Result<(), Error> {
        let batch = transaction.finish().map_err(SocketError::from)?;
        Ok(self.socket.commit(&batch)?)
    }
}

/// More messages than any transaction of this module has.
const ROOM: u32 = 64;

const fn place(family: Family) -> Place {
    Place { family, table: CONNECTIONS_TABLE }
}

/// Returns the chains of [`CONNECTIONS_TABLE`]. Packets of established TCP connections get the priority of the
/// relay's own packets, by which the chains that capture skip them. The first packet of a connection does not get it:
/// the socket found may belong to a connection that has ended (`TIME_WAIT`).
pub(super) fn connections(settings: &Settings) -> [ChainBody; 2] {
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
