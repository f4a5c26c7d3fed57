//! Arbitrary bytes: every decoder returns a value or an error, and a decoded rule can be encoded again.

use super::worlds::{arbitrary_chain, arbitrary_element, arbitrary_rule, arbitrary_set, arbitrary_table};
use portolan_wire::netlink::Header;
use portolan_wire::nftables::{
    ElementRef, ElementsOperation, Family, IfExists, NftablesEvent, Transaction, element_at,
};
use portolan_wire::{
    Attributes, Batch, DecodeError, Frame, Frames, conntrack, generic, ipset, ipvs, nfacct, route,
};
use proptest::prelude::*;

/// Runs every decoder over a frame.
fn decode_everything(frame: &Frame<'_>) {
    if let Ok(NftablesEvent::NewElements(list) | NftablesEvent::DeleteElements(list)) =
        NftablesEvent::decode(frame)
    {
        list.elements().for_each(drop);
    }
    let _ = conntrack::ConntrackEvent::decode(frame);
    drop(route::RouteEvent::decode(frame));
    let _ = route::policy::MarkRule::decode(frame);
    let _ = route::policy::is_local_route(frame, 2, 28_783);
    let _ = route::path::Path::decode(frame);
    let _ = route::path::is_local(frame);
    drop(ipset::IpsetEvent::decode(frame));
    drop(nfacct::NfacctEvent::decode(frame));
    drop(generic::GenericEvent::decode(frame));
    drop(ipvs::IpvsEvent::decode(frame.header.kind, frame));
    drop(frame.acknowledgement());
    for offset in (0..200).step_by(7) {
        element_at(frame, offset);
    }
}

/// Generates message types that some decoder reads.
fn kind() -> impl Strategy<Value = u16> {
    prop_oneof![
        (0..34_u16).prop_map(|operation| 0x0a00 | operation),
        (0..4_u16).prop_map(|operation| 0x0100 | operation),
        (0..14_u16).prop_map(|operation| 0x0600 | operation),
        (0..5_u16).prop_map(|operation| 0x0700 | operation),
        0..36_u16
    ]
}

/// Generates real messages.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let objects =
        (arbitrary_table(), arbitrary_chain(), arbitrary_rule(), arbitrary_set(), arbitrary_element());
    objects.prop_map(|(table, chain, rule, set, element)| {
        let mut transaction = Transaction::begin(1, Some(2));
        transaction.new_table(&table, IfExists::Keep);
        transaction.new_chain(&chain, IfExists::Keep);
        transaction.new_set(&set, IfExists::Keep);
        transaction.append_rule(&rule);
        transaction.elements(ElementsOperation::Add, Family::IPV4, "table", "set").push(&element.as_ref());
        let mut bytes = transaction.finish().unwrap().bytes().unwrap().to_vec();
        bytes.extend_from_slice(others().bytes().unwrap());
        bytes
    })
}

/// Returns messages of virtual servers, members of sets and addresses.
fn others() -> Batch {
    let address = "10.96.0.1".parse().unwrap();
    let identity = ipvs::Identity::Address { protocol: 6, address, port: 80 };
    let counters = ipvs::Counters::default();
    let server =
        ipvs::VirtualServer { identity, scheduler: "rr".to_owned(), flags: 1, timeout: 600, counters };
    let mut batch = Batch::new(9);
    ipvs::new_virtual_server(&mut batch, 0x20, &server);
    let real = ipvs::RealServer::new("10.244.0.1:8080".parse().unwrap(), 1);
    ipvs::new_real_server(&mut batch, 0x20, &identity, &real);
    ipset::add(&mut batch, "SET", &ipset::Member::IpPortNet(address, 6, 80, address, 8));
    let mut message = batch.message(0x0607, 0, &[0; 4]);
    message.attr_str(2, "SET");
    message.nest(8, |list| {
        list.nest(7, |member| member.nest(1, |address| address.attr_bytes(1, &[10, 0, 0, 1])));
    });
    drop(message);
    batch
}

proptest! {
    #[test]
    fn noise(kind in kind(), flags in any::<u16>(), payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let header = Header { length: 0, kind, flags, sequence: 1, port: 2 };
        decode_everything(&Frame { header, payload: &payload });
        Frames::new(&payload).filter_map(Result::ok).for_each(|frame| decode_everything(&frame));
        Attributes::new("test", &payload, 0).for_each(drop);
    }

    #[test]
    fn messages_with_changed_bytes_do_not_panic(
        mut bytes in written(),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        for (index, byte) in wrong {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        Frames::new(&bytes).filter_map(Result::ok).for_each(|frame| decode_everything(&frame));
    }

    #[test]
    fn a_rule_that_can_be_read_can_be_written_and_read_again(
        mut bytes in written(),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
    ) {
        for (index, byte) in wrong {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        for frame in Frames::new(&bytes).filter_map(Result::ok) {
            let Ok(NftablesEvent::NewRule(rule)) = NftablesEvent::decode(&frame) else { continue };
            let mut transaction = Transaction::begin(1, None);
            transaction.append_rule(&rule);
            let batch = transaction.finish().unwrap();
            let again = NftablesEvent::decode(&batch.frame(2).unwrap());
            prop_assert!(matches!(again, Ok(NftablesEvent::NewRule(again)) if again == rule));
        }
    }
}

#[test]
fn errors_name_the_object_the_attribute_and_the_offset() {
    let mut transaction = Transaction::begin(1, None);
    transaction
        .elements(ElementsOperation::Add, Family::IPV4, "table", "set")
        .push(&ElementRef::key(&[1, 2, 3, 4]));
    let batch = transaction.finish().unwrap();
    let frame = batch.frame(2).unwrap();
    // Shorten the payload, so that the list of elements claims more bytes than there are.
    let short = Frame { payload: &frame.payload[..frame.payload.len() - 4], ..frame };
    let error = NftablesEvent::decode(&short).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Truncated { object: "nf_tables element list", offset: 24, needed: 20, have: 16 }
    );
    assert_eq!(error.to_string(), "nf_tables element list: cut short at byte 24: 20 bytes needed, 16 left");

    let mut batch = Batch::new(1);
    drop(batch.message(0x0a00, 0, &[2, 0, 0, 0]));
    let error = NftablesEvent::decode(&batch.frame(1).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "nf_tables table: attribute 1 is missing");
}

#[test]
fn an_extended_acknowledgement_is_read_with_and_without_the_failed_message() {
    for capped in [true, false] {
        let mut failed = Batch::new(77);
        failed.message(0x0a00, 0, &[2, 0, 0, 0]).attr_str(1, "table");
        let failed = failed.bytes().unwrap();
        let echoed = if capped { &failed[..16] } else { failed };
        let flags = 0x200 | if capped { 0x100 } else { 0 };
        let body = [&(-2_i32).to_ne_bytes()[..], echoed].concat();
        let mut batch = Batch::new(77);
        let mut message = batch.message(2, flags, &body);
        message.attr_str(1, "no such thing");
        message.attr_u32_ne(2, 20);
        drop(message);
        let acknowledgement = batch.frame(77).unwrap().acknowledgement().unwrap().unwrap();
        assert_eq!((acknowledgement.sequence, acknowledgement.errno), (77, 2));
        assert_eq!(acknowledgement.text.as_deref(), Some("no such thing"));
        assert_eq!(acknowledgement.offset, Some(20));
    }
}
