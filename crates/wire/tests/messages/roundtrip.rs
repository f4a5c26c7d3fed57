//! Every object and expression decodes to what was encoded.

use super::worlds::{
    arbitrary_chain, arbitrary_element, arbitrary_rule, arbitrary_set, arbitrary_table, arbitrary_tuple,
};
use portolan_wire::conntrack::{self, Tuple};
use portolan_wire::netlink::Header;
use portolan_wire::nftables::*;
use portolan_wire::route::path::{self, Path};
use portolan_wire::route::policy::{
    MarkRule, add_local_route, add_rule, delete_local_route, delete_rule, is_local_route,
};
use portolan_wire::{
    Attributes, Batch, EncodeError, Frame, Frames, Request, compat, generic, ipset, ipvs, nfacct, route,
};
use proptest::prelude::*;

/// Passes the messages between the marks of a transaction to `check`.
fn messages(write: impl FnOnce(&mut Transaction), check: impl FnOnce(&[Frame<'_>])) {
    check(&changes(&transaction(write)));
}

fn transaction(write: impl FnOnce(&mut Transaction)) -> Batch {
    let mut transaction = Transaction::begin(7, Some(1));
    write(&mut transaction);
    transaction.finish().unwrap()
}

fn changes(batch: &Batch) -> Vec<Frame<'_>> {
    let frames: Vec<_> = Frames::new(batch.bytes().unwrap()).map(Result::unwrap).collect();
    frames[1..frames.len() - 1].to_vec()
}

/// Adds elements to a set.
fn add(transaction: &mut Transaction, elements: &[Element]) {
    let mut writer = transaction.elements(ElementsOperation::Add, Family::INET, "table", "set");
    for element in elements {
        writer.push(&element.as_ref());
    }
}

proptest! {
    #[test]
    fn tables(table in arbitrary_table()) {
        messages(
            |transaction| _ = transaction.new_table(&table, IfExists::Fail),
            |frames| assert_eq!(NftTable::decode(&frames[0]), Ok(table.clone())),
        );
    }

    #[test]
    fn chains(chain in arbitrary_chain()) {
        messages(
            |transaction| _ = transaction.new_chain(&chain, IfExists::Fail),
            |frames| assert_eq!(Chain::decode(&frames[0]), Ok(chain.clone())),
        );
    }

    #[test]
    fn rules(rule in arbitrary_rule()) {
        messages(
            |transaction| _ = transaction.append_rule(&rule),
            |frames| assert_eq!(Rule::decode(&frames[0]), Ok(rule.clone())),
        );
    }

    #[test]
    fn normalizing_twice_is_normalizing_once(rule in arbitrary_rule(), set in arbitrary_set()) {
        prop_assert_eq!(rule.clone().normalized().normalized(), rule.normalized());
        prop_assert_eq!(set.clone().normalized().normalized(), set.normalized());
    }

    #[test]
    fn sets(set in arbitrary_set()) {
        messages(
            |transaction| _ = transaction.new_set(&set, IfExists::Fail),
            |frames| assert_eq!(Set::decode(&frames[0]), Ok(set.clone())),
        );
    }

    #[test]
    fn elements(elements in prop::collection::vec(arbitrary_element(), 1..40)) {
        messages(
            |transaction| add(transaction, &elements),
            |frames| {
                let list = ElementList::decode(&frames[0]).unwrap();
                let found: Vec<_> = list.elements().map(|element| element.unwrap().to_owned()).collect();
                assert_eq!(found, elements);
            },
        );
    }

    #[test]
    fn an_offset_inside_an_element_finds_it(
        elements in prop::collection::vec(arbitrary_element(), 1..20),
        chosen in any::<prop::sample::Index>(),
    ) {
        messages(
            |transaction| add(transaction, &elements),
            |frames| {
                let chosen = chosen.index(elements.len());
                // Each element is a member of the list, which is the last attribute of the message.
                let list = Attributes::new("test", &frames[0].payload[4..], 4).last().unwrap().unwrap();
                let member = list.nested("test").nth(chosen).unwrap().unwrap();
                let offset = u32::try_from(member.offset + 16).unwrap();
                let found = element_at(&frames[0], offset).unwrap();
                assert_eq!(found.to_owned(), elements[chosen]);
            },
        );
    }

    #[test]
    fn tuples(tuple in arbitrary_tuple()) {
        let mut batch = Batch::new(1);
        let deleted = conntrack::Flow {
            original: tuple, reply: tuple, status: 0, mark: None, id: Some(5), timeout: None, zone: Some(6), tcp_state: None,
        };
        conntrack::delete(&mut batch, &deleted);
        let bytes = batch.bytes().unwrap();
        let frame = Frames::new(bytes).next().unwrap().unwrap();
        // A flow from the kernel has both tuples. The deletion names it by the reply tuple.
        let mut flow = frame.payload.to_vec();
        let mut original = Attributes::new("test", &frame.payload[4..], 0).next().unwrap().unwrap().payload.to_vec();
        let header = [u16::try_from(original.len() + 4).unwrap().to_ne_bytes(), 1_u16.to_ne_bytes()].concat();
        flow.extend_from_slice(&header);
        flow.append(&mut original);
        let flow = conntrack::Flow::decode(&Frame { payload: &flow, ..frame }).unwrap();
        let identity: (Tuple, Tuple, _, _) = (flow.original, flow.reply, flow.id, flow.zone);
        prop_assert_eq!(identity, (tuple, tuple, Some(5), Some(6)));
    }

    #[test]
    fn addresses(
        index in any::<u32>(),
        local in any::<std::net::IpAddr>(),
        prefix in 0..=128_u8,
        flags in any::<u32>(),
        scope in any::<u8>(),
    ) {
        let address = route::Address { index, local, peer: local, prefix, flags, scope: route::Scope(scope) };
        let mut request: Request = route::add_address(&address);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(route::RouteEvent::decode(&frame), Ok(route::RouteEvent::NewAddress(address)));
        prop_assert_eq!(frame.header.sequence, 3);
    }

    #[test]
    fn rules_with_a_mark(
        (family, priority, mark, mask, table, protocol) in any::<(u8, u32, u32, u32, u32, u8)>(),
    ) {
        let rule = MarkRule { family, priority, mark, mask, table, protocol };
        let mut request: Request = add_rule(&rule);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(MarkRule::decode(&frame), Ok(Some(rule)));
        let mut request: Request = delete_rule(&rule);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(MarkRule::decode(&frame), Ok(None), "that is no rule that is there");
    }

    #[test]
    fn routes_to_this_host((family, table) in any::<(u8, u32)>()) {
        let mut request: Request = add_local_route(family, table);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(is_local_route(&frame, family, table), Ok(true));
        prop_assert_eq!(is_local_route(&frame, family, table ^ 1), Ok(false));
        prop_assert_eq!(is_local_route(&frame, family ^ 1, table), Ok(false));
        prop_assert_eq!(Path::decode(&frame), Ok(Some(Path { interface: 1, source: None })));
        let mut question: Request = path::to([192, 0, 2, 1].into());
        let frame = Frames::new(question.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(Path::decode(&frame), Ok(None), "that is no answer");
        let mut request: Request = delete_local_route(family, table);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(is_local_route(&frame, family, table), Ok(false), "that is no route that is there");
    }

    #[test]
    fn names_of_ipsets(name in "[A-Za-z0-9:._-]{1,31}") {
        let mut request: Request = ipset::destroy(&name);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        // A list contains the name in the same attribute.
        let listed = Frame { header: Header { kind: 0x0607, ..frame.header }, ..frame };
        prop_assert_eq!(ipset::IpsetEvent::decode(&listed), Ok(ipset::IpsetEvent::Set { name, kind: None, references: None, counts: false, members_max: None, members: Vec::new() }));
        prop_assert_eq!(ipset::IpsetEvent::decode(&frame), Ok(ipset::IpsetEvent::Other { kind: 0x0603 }));
    }

    #[test]
    fn counters(name in "[A-Za-z0-9:._-]{1,31}", packets in any::<u64>(), bytes in any::<u64>()) {
        for (mut request, kind) in [(nfacct::create(&name), 0x0700), (nfacct::get(&name), 0x0701), (nfacct::delete(&name), 0x0703)] {
            let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
            prop_assert_eq!(frame.header.kind, kind);
            // The answer to a request contains the name in the same attribute, and numbers.
            let mut batch = Batch::new(1);
            let mut message = batch.message(0x0700, 0, &frame.payload[..4]);
            message.attr_u64_be(2, packets);
            message.attr_u64_be(3, bytes);
            drop(message);
            let mut answer = batch.frame(1).unwrap().payload.to_vec();
            answer.extend_from_slice(&frame.payload[4..]);
            let answer = Frame { header: Header { kind: 0x0700, ..frame.header }, payload: &answer };
            let counter = nfacct::Counter { name: name.clone(), packets, bytes };
            prop_assert_eq!(nfacct::NfacctEvent::decode(&answer), Ok(nfacct::NfacctEvent::Counter(counter)));
            let other = Frame { header: Header { kind: 0x0701, ..frame.header }, ..frame };
            prop_assert_eq!(nfacct::NfacctEvent::decode(&other), Ok(nfacct::NfacctEvent::Other { kind: 0x0701 }));
        }
    }

    #[test]
    fn matches(name in "[A-Za-z0-9_]{1,28}", revision in any::<u32>()) {
        let mut request = compat::find_match(&name, revision);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!((frame.header.kind, &frame.payload[..4]), (0x0b00, &[2, 0, 0, 0][..]));
        let attributes = Attributes::new("match", &frame.payload[4..], 4).collect::<Result<Vec<_>, _>>().unwrap();
        let [a_name, a_revision, kind] = attributes.as_slice() else { panic!("{attributes:?}") };
        prop_assert_eq!((a_name.kind, a_name.string()), (1, name));
        prop_assert_eq!((a_revision.kind, a_revision.u32_be().unwrap()), (2, revision));
        prop_assert_eq!((kind.kind, kind.u32_be().unwrap()), (3, 0));
    }

    #[test]
    fn generic_families(name in "[A-Za-z0-9_]{1,15}", id in any::<u16>()) {
        let mut request: Request = generic::family(&name);
        let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(generic::GenericEvent::decode(&frame), Ok(generic::GenericEvent::Other { kind: 0x10 }));
        // The answer contains the name in the same attribute, another command, and the number.
        let mut batch = Batch::new(1);
        let mut message = batch.message(0x10, 0, &[1, 2, 0, 0]);
        message.attr_bytes(1, &id.to_ne_bytes());
        drop(message);
        let mut answer = batch.frame(1).unwrap().payload.to_vec();
        answer.extend_from_slice(&frame.payload[4..]);
        let answer = Frame { payload: &answer, ..frame };
        prop_assert_eq!(generic::GenericEvent::decode(&answer), Ok(generic::GenericEvent::NewFamily(generic::Family { id, name })));
    }

    #[test]
    fn virtual_servers(id in 0x11..=u16::MAX, others in any::<u16>()) {
        for (mut request, command) in [(ipvs::virtual_servers(id), 4), (ipvs::flush(id), 17)] {
            let frame = Frames::new(request.bytes(3).unwrap()).next().unwrap().unwrap();
            prop_assert_eq!((frame.header.kind, frame.payload), (id, &[command, 1, 0, 0][..]));
            prop_assert_eq!(ipvs::is_virtual_server(id, &frame), Ok(false));
            let listed = Frame { payload: &[1, 1, 0, 0], ..frame };
            prop_assert_eq!(ipvs::is_virtual_server(id, &listed), Ok(true));
            prop_assert_eq!(ipvs::is_virtual_server(others, &listed), Ok(others == id));
        }
    }
}

#[test]
fn elements_are_split_over_messages_below_the_limit_of_an_attribute() {
    const COUNT: u32 = 20_000;
    let mut numbers = Vec::new();
    let batch = transaction(|transaction| {
        let mut writer = transaction.elements(ElementsOperation::Delete, Family::IPV4, "table", "set");
        numbers.extend((0..COUNT).map(|key| writer.push(&ElementRef::key(&key.to_be_bytes()))));
    });
    let frames = changes(&batch);
    let mut found = Vec::new();
    for frame in &frames {
        assert!(frame.payload.len() < 65_000, "{}", frame.payload.len());
        for element in ElementList::decode(frame).unwrap().elements() {
            found.push((frame.header.sequence, element.unwrap().key.to_vec()));
        }
    }
    let keys = (0..COUNT).map(|key| key.to_be_bytes().to_vec());
    assert!(found == numbers.into_iter().zip(keys).collect::<Vec<_>>());
    assert!(frames.len() > 5);
}

#[test]
fn a_value_that_is_too_long_is_an_error_and_nothing_is_sent() {
    let mut transaction = Transaction::begin(10, None);
    transaction.new_table(&NftTable::new(Family::IPV4, "fits"), IfExists::Keep);
    transaction.new_table(&NftTable::new(Family::IPV4, "x".repeat(70_000)), IfExists::Keep);
    let error = EncodeError::AttributeTooLong { sequence: 12, attribute: 1, length: 70_005 };
    assert_eq!(transaction.finish().err(), Some(error));

    let expressions = vec![Expr::verdict(Verdict::Drop); 2_000];
    let mut transaction = Transaction::begin(10, None);
    let sequence = transaction.append_rule(&Rule::new(Family::IPV4, "table", "chain", expressions));
    let error = transaction.finish().err();
    assert!(
        matches!(error, Some(EncodeError::AttributeTooLong { sequence: 11, attribute: 4, .. })),
        "{error:?}"
    );
    assert_eq!(sequence, 11);
}

#[test]
fn a_transaction_without_changes_is_empty() {
    let mut transaction = Transaction::begin(1, Some(9));
    assert!(transaction.is_empty());
    transaction.flush_set(Family::IPV4, "table", "set");
    assert!(!transaction.is_empty());
}

#[test]
fn a_comment_is_cut_where_nft_would_refuse_it() {
    let long = "ä".repeat(100);
    let data = UserData::comment(&long);
    assert_eq!(data.comment_text(), Some("ä".repeat(63).as_str()));
    assert_eq!(UserData::comment("with\0nul").comment_text(), Some("with"));
    let mut data = UserData::comment("one");
    assert!(data.push(200, &[1, 2]));
    assert_eq!(data.get(200), Some(&[1, 2][..]));
    assert!(!data.push(201, &[0; 256]), "longer than a length of one byte can say");
    assert!(!data.push(201, &[0; 250]), "longer than the kernel takes");
}

#[test]
fn registers_are_the_ones_that_the_kernel_reports() {
    assert_eq!(Register::word(0), Some(Register::R1));
    assert_eq!(Register::word(12), Some(Register::R4));
    assert_eq!(Register::word(16), None);
    assert_eq!(Register::R1.after(16), Some(Register::R2));
    assert_eq!(Register::R1.after(5), Register::word(2));
    assert_eq!(Register::R4.after(16), None);
    assert_eq!(Register::VERDICT.after(4), None);
}
