//! Holds packets between two hooks: a queue of `nfnetlink_queue`, and rules that lead to it.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use portolan_model::Family;
use portolan_sock::{Protocol, Socket};
use portolan_testkit::eventually;
use portolan_wire::netlink::{Batch, Message, NLM_F_ACK};
use portolan_wire::nfnetlink::{HEADER_LENGTH, message_type};
use portolan_wire::{DecodeError, Frame};

/// Subsystem, operations and attributes of `nfnetlink_queue.h`.
const SUBSYSTEM: u8 = 3;
const PACKET: u8 = 0;
const VERDICT: u8 = 1;
const CONFIG: u8 = 2;
const CONFIG_COMMAND: u16 = 1;
const CONFIG_PARAMETERS: u16 = 2;
const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
/// `struct nfqnl_msg_config_cmd` that binds a queue, and `struct nfqnl_msg_config_params` that copies no packet.
const BIND: [u8; 4] = [1, 0, 0, 0];
const COPY_NOTHING: [u8; 5] = [0, 0, 0, 0, 1];
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// The number of the queue.
const NUMBER: u16 = 7;
/// `struct nfgenmsg` of a message about the queue.
const FAMILY_HEADER: [u8; 4] = [0, 0, NUMBER.to_be_bytes()[0], NUMBER.to_be_bytes()[1]];
/// The hooks after the translation of destinations. The chains of `mangle` come before those that refuse.
const CHAINS: [&str; 2] = ["FORWARD", "INPUT"];
const DEADLINE: Duration = Duration::from_secs(60);

/// Packets that wait for a verdict.
pub(super) struct Queue {
    socket: Socket,
    family: Family,
    held: BTreeSet<u32>,
}

impl Queue {
    /// Holds packets of new connections from outside, in this thread's network namespace.
    pub(super) fn open(family: Family) -> Self {
        let mut this =
            Self { socket: Socket::open(Protocol::Netfilter).unwrap(), family, held: BTreeSet::new() };
        this.send(CONFIG, |message| message.attr_bytes(CONFIG_COMMAND, &BIND));
        this.send(CONFIG, |message| message.attr_bytes(CONFIG_PARAMETERS, &COPY_NOTHING));
        let rest = ["-m", "conntrack", "--ctstate", "NEW", "-j", "NFQUEUE", "--queue-num", "7"];
        for (chain, packets) in CHAINS.into_iter().flat_map(|chain| [(chain, "tcp"), (chain, "udp")]) {
            this.iptables(&[&["-A", chain, "-p", packets][..], &rest].concat());
        }
        this
    }

    /// Waits until this number of packets are held.
    pub(super) fn wait_for(&mut self, packets: usize) {
        let Self { socket, held, .. } = self;
        eventually(DEADLINE, "all packets are held", || {
            let taken = socket.receive(|frame| {
                if frame.header.kind == message_type(SUBSYSTEM, PACKET) {
                    held.insert(packet_id(frame)?);
                }
                Ok(())
            });
            taken.unwrap();
            held.len() >= packets
        })
        .unwrap();
    }

    /// Lets all packets go on, and holds no others.
    pub(super) fn release(&mut self) {
        for chain in CHAINS {
            self.iptables(&["-F", chain]);
        }
        for id in std::mem::take(&mut self.held) {
            let verdict = [ACCEPT.to_be_bytes(), id.to_be_bytes()].concat();
            self.send(VERDICT, |message| message.attr_bytes(VERDICT_HEADER, &verdict));
        }
    }

    fn send(&mut self, operation: u8, content: impl FnOnce(&mut Message<'_>)) {
        let mut batch = Batch::new(self.socket.next_sequence(1));
        let mut message = batch.message(message_type(SUBSYSTEM, operation), NLM_F_ACK, &FAMILY_HEADER);
        content(&mut message);
        drop(message);
        let replies = self.socket.submit(&batch).unwrap();
        assert_eq!(
            (replies.refusals.len(), replies.acknowledged),
            (0, 1),
            "{replies:?}: is there nfnetlink_queue?"
        );
    }

    fn iptables(&self, arguments: &[&str]) {
        let program = match self.family {
            Family::Ipv4 => "iptables-nft",
            Family::Ipv6 => "ip6tables-nft",
        };
        let output = Command::new(program).args(["-w", "-t", "mangle"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn packet_id(frame: &Frame<'_>) -> Result<u32, DecodeError> {
    let attributes = frame.attributes("packet", HEADER_LENGTH)?.by_kind::<2>()?;
    // The id comes first in `struct nfqnl_msg_packet_hdr`.
    let [a, b, c, d, ..] = attributes.required(PACKET_HEADER)?.array::<7>()?;
    Ok(u32::from_be_bytes([a, b, c, d]))
}
