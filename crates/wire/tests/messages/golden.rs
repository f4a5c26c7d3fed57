//! Messages that nft 1.0.6 sent, byte for byte: they decode to the expected objects, and the encoder writes the
//! same.

use portolan_wire::nftables::expr::*;
use portolan_wire::nftables::*;
use portolan_wire::{Batch, Frame, Frames};

const FAMILY: Family = Family::IPV4;

// add table ip t { comment "hi" ; }
const TABLE: &str = "0200000006000100740000000800020000000000090006000003686900000000";
// add chain ip t c { comment "cc" ; }
const CHAIN: &str = "0200000006000100740000000600030063000000\
     09000c000003636300000000";
// add chain ip t pre { type nat hook prerouting priority -100 ; }
const BASE_CHAIN: &str = "0200000006000100740000000800030070726500080007006e61740014000480\
     080001000000000008000200ffffff9c";
// add map ip t m { type ipv4_addr . inet_proto . inet_service : verdict ; comment "x" ; }
const MAP: &str = "020000000600010074000000060002006d00000008000300000000080800040000\
     00730d080005000000000c08000600ffffff00080007000000000008000a000000000124000d\
     00000400000000010400000000030800040d000000010006040000000007027800";
// add element ip t m { 10.0.0.1 . tcp . 443 comment "hi" : goto c }
const ELEMENT: &str = "020000000600010074000000060002006d0000000800040000000001400003803c\
     00018014000180100001000a0000010600000001bb0000180002801400028008000100ffffff\
     fc0600020063000000090006000003686900000000";
// add rule ip t pre ip daddr . meta l4proto . th dport vmap @m comment "rr"
const RULE: &str = "0200000006000100740000000800020070726500c4000480340001800c0001007061\
     796c6f616400240002800800010000000001080002000000000108000300000000100800040000\
     00000424000180090001006d657461000000001400028008000200000000100800010000000009\
     340001800c0001007061796c6f61640024000280080001000000000a0800020000000002080003\
     00000000020800040000000002340001800b0001006c6f6f6b7570000024000280080002000000\
     00010800030000000000060001006d0000000800040000000001090007000003727200000000";
// add rule ip t c meta mark set meta mark or 0x4000 fib saddr type local
const MARK_RULE: &str = "0200000006000100740000000600020063000000ec00048024000180090001006d65\
     74610000000014000280080002000000000308000100000000014c0001800c0001006269747769\
     7365003c0002800800010000000001080002000000000108000600000000000800030000000004\
     0c00048008000100ffbfffff0c000580080001000040000024000180090001006d657461000000\
     0014000280080002000000000308000300000000012800018008000100666962001c0002800800\
     03000000000108000200000000030800010000000001\
     2c00018008000100636d700020000280080001000000000108000200000000000c000380080001\
     0002000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
    digits.chunks_exact(2).map(|pair| (pair.first().unwrap() << 4) | pair.last().unwrap()).collect()
}

/// Returns a message of this operation with this payload, including the header.
fn message(operation: u8, payload: &str) -> Vec<u8> {
    let mut batch = Batch::new(0);
    drop(batch.message(0x0a00 | u16::from(operation), 0, &bytes(payload)));
    batch.bytes().unwrap().to_vec()
}

fn frame(message: &[u8]) -> Frame<'_> {
    Frames::new(message).next().unwrap().unwrap()
}

/// Returns the bytes that are written between the marks of a transaction.
fn written(write: impl FnOnce(&mut Transaction)) -> Vec<u8> {
    let mut transaction = Transaction::begin(0, None);
    write(&mut transaction);
    let batch = transaction.finish().unwrap();
    let frames: Vec<_> = Frames::new(batch.bytes().unwrap()).map(Result::unwrap).collect();
    let [begin, change, end] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!((begin.header.kind, begin.payload), (0x10, &[0, 0, 0, 10][..]));
    assert_eq!((end.header.kind, end.payload), (0x11, &[0, 0, 0, 10][..]));
    assert_eq!((begin.header.flags, change.header.flags & 0xff, end.header.flags), (1, 1 | 4, 1));
    assert_eq!([begin, change, end].map(|frame| frame.header.sequence), [0, 1, 2]);
    change.payload.to_vec()
}

#[test]
fn a_table() {
    let table = NftTable { userdata: UserData::comment("hi"), ..NftTable::new(FAMILY, "t") };
    assert_eq!(NftTable::decode(&frame(&message(0, TABLE))), Ok(table.clone()));
    assert_eq!(written(|transaction| _ = transaction.new_table(&table, IfExists::Keep)), bytes(TABLE));
}

#[test]
fn a_chain() {
    let chain = Chain { userdata: UserData::comment("cc"), ..Chain::regular(FAMILY, "t", "c") };
    assert_eq!(Chain::decode(&frame(&message(3, CHAIN))), Ok(chain.clone()));
    assert_eq!(written(|transaction| _ = transaction.new_chain(&chain, IfExists::Keep)), bytes(CHAIN));
}

#[test]
fn a_base_chain() {
    let (kind, hook, policy) = (ChainType::Nat, Hook::PREROUTING, Policy::Accept);
    let base = Some(BaseChain { kind, hook, priority: -100, policy, devices: Vec::new() });
    let chain = Chain { base, ..Chain::regular(FAMILY, "t", "pre") };
    assert_eq!(Chain::decode(&frame(&message(3, BASE_CHAIN))), Ok(chain));
}

#[test]
fn a_map() {
    let set = Set::decode(&frame(&message(9, MAP))).unwrap();
    let key = concatenated(&[DataType::IPV4_ADDR, DataType::INET_PROTO, DataType::INET_SERVICE]);
    assert_eq!(set.userdata.set_comment_text(), Some("x"));
    let userdata = set.userdata.clone();
    let expected =
        Set { id: 1, data: Some(SetData::Verdict), userdata, ..Set::new(FAMILY, "t", "m", key, 12) };
    assert_eq!(set, expected);
}

#[test]
fn an_element() {
    let comment = UserData::comment("hi");
    let element = ElementRef {
        userdata: comment.as_bytes(),
        ..ElementRef::mapping(&[10, 0, 0, 1, 6, 0, 0, 0, 1, 187, 0, 0], DataRef::Verdict(Verdict::Goto("c")))
    };
    let message = message(12, ELEMENT);
    let list = ElementList::decode(&frame(&message)).unwrap();
    assert_eq!((list.family, list.table, list.set), (FAMILY, "t", "m"));
    assert_eq!(list.elements().collect::<Vec<_>>(), [Ok(element)]);
    let ours = written(|transaction| {
        transaction.elements(ElementsOperation::Add, FAMILY, "t", "m").push(&element);
    });
    // nft also sends the map's id in the transaction, which takes eight more bytes.
    let theirs = bytes(ELEMENT);
    assert_eq!(ours.get(..20), theirs.get(..20));
    assert_eq!(ours.get(20..), theirs.get(28..));
}

#[test]
fn a_rule_of_loads_and_a_lookup() {
    let after = Register::R1.after(4).unwrap();
    let load =
        |destination, base, offset, length| Expr::Payload(Payload { destination, base, offset, length });
    let lookup = Lookup {
        set: "m".into(),
        set_id: Some(1),
        source: Register::R1,
        destination: Some(Register::VERDICT),
        inverted: false,
    };
    let expressions = vec![
        load(Register::R1, PayloadBase::NETWORK, 16, 4),
        Expr::Meta(Meta::Load { key: MetaKey::L4PROTO, destination: after }),
        load(after.after(1).unwrap(), PayloadBase::TRANSPORT, 2, 2),
        Expr::Lookup(lookup),
    ];
    let rule = Rule { userdata: UserData::comment("rr"), ..Rule::new(FAMILY, "t", "pre", expressions) };
    assert_eq!(Rule::decode(&frame(&message(6, RULE))), Ok(rule));
}

#[test]
fn a_rule_of_marks_and_routes() {
    let source = Register::R1;
    let expressions = vec![
        Expr::Meta(Meta::Load { key: MetaKey::MARK, destination: source }),
        Expr::Bitwise(Bitwise::mask_xor(source, (!0x4000_u32).to_ne_bytes(), 0x4000_u32.to_ne_bytes())),
        Expr::Meta(Meta::Set { key: MetaKey::MARK, source }),
        Expr::Fib(Fib { destination: source, result: FibResult::ADDRTYPE, flags: FibFlags::SADDR }),
        Expr::Cmp(Cmp { source, operation: CmpOperation::EQ, data: 2_u32.to_ne_bytes().to_vec() }),
    ];
    assert_eq!(Rule::decode(&frame(&message(6, MARK_RULE))), Ok(Rule::new(FAMILY, "t", "c", expressions)));
}
