//! Counts the expressions that packets meet: the tables of docs/performance.md.
//!
//! Evaluates the chains of an example as the kernel does (`nft_do_chain`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use portolan_model::{Family, LocalDetector, NodePortAddresses, Protocol, Settings};
use portolan_wire::nftables::expr::{
    Bitwise, BitwiseOperation, CmpOperation, Ct, CtKey, Immediate, Lookup, Meta, MetaKey, NatType,
    PayloadBase,
};
use portolan_wire::nftables::{ChainType, Data, Expr, Hook, Register, Verdict};

use super::chain::ChainBody;
use super::class::{Balance, Class};
use super::element::{Key, Set};
use super::layout::{Layout, Target};
use super::skeleton;
use super::value::Value;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 10);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 5);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The node, and a client outside of the cluster.
const NODE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const PORT: u16 = 80;
const NODE_PORT: u16 = 30080;
/// `NF_CT_STATE` bits of a new and of an established connection, and `IPS_DST_NAT` (`nf_conntrack_common.h`).
const NEW: u32 = 8;
const ESTABLISHED: u32 = 2;
const DNAT: u32 = 0x20;
const TEN: Balance = Balance { local: false, backends: 10, affinity: None };
/// The class of a number is that at its place, from 1 on: that of cluster IPs, and that of node ports with policy Local.
const CLASSES: [Class; 2] = [Class::Internal(TEN), Class::ExternalLocal(TEN, 3)];
/// The hooks of a forwarded packet, in order.
const FORWARDED: [(Hook, &str); 3] =
    [(Hook::PREROUTING, "prerouting"), (Hook::FORWARD, "forward"), (Hook::POSTROUTING, "postrouting")];

#[derive(Debug, Clone, Copy)]
struct Packet {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    port: u16,
    /// `NF_CT_STATE` bit of its connection.
    state: u32,
    status: u32,
    mark: u32,
    priority: u32,
}

impl Packet {
    fn first(destination: Ipv4Addr) -> Self {
        Self { source: CLIENT, destination, port: PORT, state: NEW, status: 0, mark: 0, priority: 0 }
    }

    fn first_from_outside() -> Self {
        Self { source: OUTSIDE, port: NODE_PORT, ..Self::first(NODE) }
    }

    /// A packet after the first of a connection to the Service, which the kernel translates before it meets rules.
    fn later() -> Self {
        Self { state: ESTABLISHED, status: DNAT, ..Self::first(ENDPOINT) }
    }
}

struct Machine<'a> {
    chains: &'a HashMap<String, ChainBody>,
    packet: Packet,
    registers: HashMap<Register, [u8; 4]>,
    /// The number of expressions that the packet has met.
    met: usize,
}

impl Machine<'_> {
    /// Evaluates a chain. Returns the verdict that ends the base chain, if there is one.
    fn chain(&mut self, name: &str) -> Option<Verdict> {
        let chains = self.chains;
        for rule in &chains[name].rules {
            match self.rule(&rule.expressions) {
                Verdict::Continue | Verdict::Break => {}
                Verdict::Return => return None,
                Verdict::Goto(chain) => return self.chain(&chain),
                Verdict::Jump(chain) => {
                    if let Some(verdict) = self.chain(&chain) {
                        return Some(verdict);
                    }
                }
                verdict => return Some(verdict),
            }
        }
        None
    }

    fn rule(&mut self, expressions: &[Expr]) -> Verdict {
        for expression in expressions {
            self.met += 1;
            match self.expression(expression) {
                Verdict::Continue => {}
                verdict => return verdict,
            }
        }
        Verdict::Continue
    }

    fn expression(&mut self, expression: &Expr) -> Verdict {
        match expression {
            Expr::Payload(load) => {
                let bytes = match (load.base, load.offset) {
                    (PayloadBase::NETWORK, 12) => self.packet.source.octets().to_vec(),
                    (PayloadBase::NETWORK, 16) => self.packet.destination.octets().to_vec(),
                    (PayloadBase::TRANSPORT, 2) => self.packet.port.to_be_bytes().to_vec(),
                    _ => panic!("{load:?}"),
                };
                self.write(load.destination, &bytes[..load.length as usize]);
            }
            Expr::Meta(meta) => self.meta(*meta),
            Expr::Ct(Ct::Load { key, destination, .. }) => {
                let value = match *key {
                    CtKey::STATE => self.packet.state,
                    CtKey::STATUS => self.packet.status,
                    key => panic!("{key:?}"),
                };
                self.write(*destination, &value.to_ne_bytes());
            }
            // No address is of this node: that of the node port is compared with a constant.
            Expr::Fib(fib) => self.write(fib.destination, &1_u32.to_ne_bytes()),
            Expr::Numgen(draw) => self.write(draw.destination, &draw.offset.to_ne_bytes()),
            Expr::Immediate(Immediate { data: Data::Verdict(verdict), .. }) => return verdict.clone(),
            Expr::Immediate(Immediate { destination, data: Data::Value(value) }) => {
                self.write(*destination, value);
            }
            Expr::Cmp(compare) => {
                let equal = self.read(compare.source, compare.data.len()) == compare.data;
                if equal != (compare.operation == CmpOperation::EQ) {
                    return Verdict::Break;
                }
            }
            Expr::Bitwise(bitwise) => self.bitwise(bitwise),
            Expr::Lookup(lookup) => return self.lookup(lookup),
            Expr::Nat(nat) if nat.kind == NatType::DNAT => {
                let address = self.read(nat.address_min.unwrap(), 4);
                self.packet.destination = <[u8; 4]>::try_from(address).unwrap().into();
                self.packet.status |= DNAT;
                return Verdict::Accept;
            }
            other => panic!("{other:?}"),
        }
        Verdict::Continue
    }

    fn meta(&mut self, meta: Meta) {
        match meta {
            Meta::Load { key, destination } => {
                let bytes = match key {
                    // Any but 0: the packet is forwarded.
                    MetaKey::IIF => 2_u32.to_ne_bytes().to_vec(),
                    MetaKey::L4PROTO => vec![Protocol::Tcp.number()],
                    MetaKey::MARK => self.packet.mark.to_ne_bytes().to_vec(),
                    MetaKey::PRIORITY => self.packet.priority.to_ne_bytes().to_vec(),
                    _ => panic!("{key:?}"),
                };
                self.write(destination, &bytes);
            }
            Meta::Set { key, source } => {
                let value = u32::from_ne_bytes(self.read(source, 4).try_into().unwrap());
                match key {
                    MetaKey::MARK => self.packet.mark = value,
                    MetaKey::PRIORITY => self.packet.priority = value,
                    _ => panic!("{key:?}"),
                }
            }
        }
    }

    fn bitwise(&mut self, bitwise: &Bitwise) {
        let BitwiseOperation::MaskXor { mask, xor } = &bitwise.operation else { panic!("{bitwise:?}") };
        let value = self.read(bitwise.source, mask.len());
        let result: Vec<u8> =
            value.iter().zip(mask).zip(xor).map(|((byte, mask), xor)| (byte & mask) ^ xor).collect();
        self.write(bitwise.destination, &result);
    }

    fn lookup(&mut self, lookup: &Lookup) -> Verdict {
        let set = Set::from_name(&lookup.set).unwrap();
        let found = self.element(set, lookup.source);
        match (found, lookup.inverted, lookup.destination) {
            (None, true, _) => Verdict::Continue,
            (None, false, _) | (Some(_), true, _) => Verdict::Break,
            (Some(Data::Verdict(verdict)), ..) => verdict,
            (Some(Data::Value(value)), _, destination) => {
                if let Some(register) = destination {
                    self.write(register, &value);
                }
                Verdict::Continue
            }
        }
    }

    /// Returns the data of an element of the example.
    fn element(&self, set: Set, source: Register) -> Option<Data> {
        match set {
            Set::Services => {
                let key = Key::EMPTY.address(SERVICE.into()).protocol(Protocol::Tcp).port(PORT);
                let value = Value::new(1, 1).0.to_ne_bytes().to_vec();
                (self.read(source, 12) == key.as_slice()).then_some(Data::Value(value))
            }
            Set::NodePorts => {
                let key = Key::EMPTY.protocol(Protocol::Tcp).port(NODE_PORT);
                let value = Value::new(2, 2).0.to_ne_bytes().to_vec();
                (self.read(source, 8) == key.as_slice()).then_some(Data::Value(value))
            }
            Set::Classes => {
                let number = self.read(source, 4).try_into().map(u32::from_ne_bytes).unwrap();
                let class = CLASSES[usize::try_from(number).unwrap() - 1];
                Some(Data::Verdict(Verdict::Goto(class.to_string())))
            }
            Set::Endpoints => {
                Some(Data::Value(Key::EMPTY.address(ENDPOINT.into()).port(8080).as_slice().to_vec()))
            }
            Set::ClusterIps => (self.read(source, 4) == SERVICE.octets()).then(|| Data::Value(Vec::new())),
            _ => None,
        }
    }

    /// Writes to as many registers as the value needs.
    fn write(&mut self, first: Register, value: &[u8]) {
        let mut register = Some(first);
        for part in value.chunks(4) {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            self.registers.insert(register.unwrap(), word);
            register = register.unwrap().after(4);
        }
    }

    fn read(&self, first: Register, length: usize) -> Vec<u8> {
        let registers = std::iter::successors(Some(first), |register| register.after(4));
        let bytes = registers.flat_map(|register| self.registers.get(&register).copied().unwrap_or_default());
        bytes.take(length).collect()
    }
}

/// Returns the number of expressions that a packet meets in each base chain.
fn counts(chains: &HashMap<String, ChainBody>, mut packet: Packet) -> Vec<(String, usize)> {
    let mut counts = Vec::new();
    for (hook, hook_name) in FORWARDED {
        let of_hook = |chain: &&ChainBody| chain.base.as_ref().is_some_and(|base| base.hook == hook);
        let mut bases: Vec<&ChainBody> = chains.values().filter(of_hook).collect();
        bases.sort_by_key(|chain| chain.base.as_ref().unwrap().priority);
        for chain in bases {
            let is_nat = chain.base.as_ref().unwrap().kind == ChainType::Nat;
            let kind = if is_nat { "nat" } else { "filter" };
            let mut machine = Machine { chains, packet, registers: HashMap::new(), met: 0 };
            // The kernel evaluates chains of type nat only for the first packet of a connection.
            if !is_nat || packet.state == NEW {
                machine.chain(&chain.name);
            }
            packet = machine.packet;
            counts.push((format!("{hook_name}, {kind}"), machine.met));
        }
        if hook == Hook::PREROUTING {
            // `ip_forward` sets it from the type of service.
            packet.priority = 0;
        }
    }
    counts
}

#[test]
fn the_table_of_the_page() {
    let settings = Settings {
        local_detector: LocalDetector::Cidr("10.244.0.0/16".parse().unwrap()),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        node_port_addresses: NodePortAddresses::Addresses(vec![NODE.into()]),
        ..Settings::plain(Family::Ipv4)
    };
    let layout = Layout { settings: &settings, target: Target::Endpoints, has_source_ranges: false };
    let mut all = skeleton::chains(layout);
    all.extend(CLASSES.into_iter().flat_map(|class| skeleton::chains_of(layout, class)));
    let chains: HashMap<String, ChainBody> =
        all.into_iter().map(|chain| (chain.name.clone(), chain)).collect();
    let packets =
        [Packet::first(SERVICE), Packet::first_from_outside(), Packet::first(OTHER), Packet::later()];
    let columns = packets.map(|packet| counts(&chains, packet));
    let mut table = String::from(
        "| hook and type of chain | first packet to a cluster IP | first packet to a node port | first packet to another address | later packets |\n|---|---:|---:|---:|---:|\n",
    );
    for (row, (name, _)) in columns[0].iter().enumerate() {
        let cells = columns.iter().map(|column| column[row].1.to_string());
        writeln!(table, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | ")).unwrap();
    }
    let sums = columns.iter().map(|column| column.iter().map(|(_, count)| count).sum::<usize>().to_string());
    writeln!(table, "| all | {} |", sums.collect::<Vec<_>>().join(" | ")).unwrap();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md"));
    assert!(page.unwrap().contains(&table), "docs/performance.md lacks this table:\n{table}");
}
