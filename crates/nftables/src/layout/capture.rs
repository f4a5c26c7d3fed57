//! The layout that sends packets to listeners on this node (`tproxy`) instead of translating them, for the userspace
//! mode.
//!
//! Each set of endpoints (cluster, local) is one listener. A packet mark makes the kernel deliver captured packets to
//! this node. Packets of this node itself are marked when they leave, so that they come back by the loopback interface.

use std::net::SocketAddr;

use portolan_model::{Protocol as Transport, RELAY_PRIORITY, Settings};
use portolan_wire::nftables::expr::MetaKey;
use portolan_wire::nftables::{ChainType, Hook};

use super::super::chain::{ChainBody, RuleBody, SERVICES, base, commented, refuse, rule};
use super::super::class::Class;
use super::super::element::Set;
use super::super::expression::{
    Side, accept, address_is_local, direction_is_reply, goto, has_priority, jump, map, protocol_is,
    reset_priority, service_key, set_connection_mark, set_mark, set_meta, socket_is_not_transparent,
    status_dnat, tproxy,
};
use super::{Kind, NAT_PRIORITY, external_local_rules};

/// The mode that captures packets, as in configuration files.
pub const MODE: &str = "userspace";

/// The name of the table, in either family.
pub const TABLE: &str = "portolan-userspace";

/// The priority of the chains that mark packets of the relay's connections: directly after the translation of
/// destinations. A connection that another mode translates, or has translated before, belongs to that mode.
pub(crate) const CONNECTIONS_PRIORITY: i32 = NAT_PRIORITY + 1;

/// After the chains that mark packets of the relay's connections.
const PRIORITY: i32 = CONNECTIONS_PRIORITY + 1;

pub(super) const KIND: Kind = Kind {
    mode: MODE,
    table: TABLE,
    first_chain: PREROUTING_CHAIN,
    holds_endpoints: false,
    modules: "nft_chain_nat, nft_ct, nft_fib_ipv4, nft_fib_ipv6, nft_reject_ipv4, nft_reject_ipv6, nft_socket and \
              nft_tproxy",
    leads_in,
};

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
        vec![rule(expressions), commented(vec![refuse()], "no listener")]
    }
}

/// Returns the mark of captured packets: a single bit.
pub const fn capture_mark(settings: &Settings) -> u32 {
    settings.capture_mark()
}

/// Returns true for the base chain that sends this node's packets back by loopback. Such packets need the prerouting
/// chain afterwards to reach a listener.
fn leads_in(chain: &str) -> bool {
    chain == OUTPUT_CHAIN
}

/// The chain that captures packets that this node receives.
const PREROUTING_CHAIN: &str = "capture-prerouting";

/// The chain that sends packets of this node back to it.
const OUTPUT_CHAIN: &str = "capture-output";

/// The chain of packets in the reply direction of a connection.
const REPLIES_CHAIN: &str = "replies";

/// Returns the chain that accepts answers. The prerouting chain jumps to it, so captured packets do not meet its rules.
///
/// The direction alone does not show that a datagram is an answer. If conntrack forgets a flow, the relay's next reply
/// starts a new entry, in which a client on this node sends in the reply direction. The client's datagrams must still be
/// captured. Answers to a socket of this node are told from them by the socket, which may have a node port as its own
/// port. A socket at `0.0.0.0` is also found for addresses of Services that this node does not have, so the address is
/// checked before. Sockets that have the client's address are transparent.
pub(super) fn own_chain() -> ChainBody {
    let tcp = [&protocol_is(Transport::Tcp)[..], &[accept()]].concat();
    let to_sockets =
        [&address_is_local(Side::Destination)[..], &socket_is_not_transparent(), &[accept()]].concat();
    let rules = vec![commented(tcp, "answers"), commented(to_sockets, "answers to this node's sockets")];
    ChainBody::regular(REPLIES_CHAIN, rules)
}

/// Returns the rule that lets packets of the relay's connections pass.
pub(super) fn relayed() -> RuleBody {
    commented([&has_priority(RELAY_PRIORITY)[..], &[accept()]].concat(), "of connections of the relay")
}

/// Returns the base chains that capture. Packets of the relay's connections leave by the first rule, because they are
/// more than all others.
pub(super) fn base_chains(settings: &Settings) -> [ChainBody; 3] {
    let translated = || commented([status_dnat(), vec![accept()]].concat(), "another's connections");
    // Only in prerouting: in the output chain only the Service lookup tells packets of a client on this node from
    // replies.
    let replies = rule([&direction_is_reply()[..], &[jump(REPLIES_CHAIN)]].concat());
    let prerouting = vec![relayed(), replies, translated(), rule(vec![jump(SERVICES)])];
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

/// Returns the rules of a class. Captured packets need no mark for masquerading: the relay chooses the source address
/// when it connects to the endpoint.
pub(super) fn class_rules(settings: &Settings, class: Class) -> Vec<RuleBody> {
    match class {
        Class::Internal(balance) | Class::External(balance) => {
            vec![rule(vec![goto(balance.to_string())])]
        }
        Class::ExternalLocal(cluster, local) => {
            // Packets of this node come back by loopback, so they have an input interface, too.
            external_local_rules(settings, address_is_local(Side::Source).to_vec(), cluster, local)
        }
    }
}
