//! Virtual servers and members of sets decode to what was encoded.

use std::net::{IpAddr, SocketAddr};

use portolan_wire::ipset::{self, Member};
use portolan_wire::ipvs::{self, Counters, Identity, RealServer, Timeouts, VirtualServer};
use portolan_wire::netlink::{Header, Message};
use portolan_wire::{Batch, Frame, Frames, Request, route};
use proptest::prelude::*;

const FAMILY: u16 = 0x22;

fn identity() -> impl Strategy<Value = Identity> {
    prop_oneof![
        (any::<u16>(), any::<IpAddr>(), any::<u16>())
            .prop_map(|(protocol, address, port)| Identity::Address { protocol, address, port }),
        any::<(bool, u32)>().prop_map(|(ipv6, mark)| Identity::Mark { ipv6, mark }),
    ]
}

fn member() -> impl Strategy<Value = Member> {
    let port = any::<(IpAddr, u8, u16)>();
    prop_oneof![
        any::<IpAddr>().prop_map(Member::Ip),
        port.clone().prop_map(|(address, protocol, port)| Member::IpPort(address, protocol, port)),
        (port.clone(), any::<IpAddr>()).prop_map(|((address, protocol, port), second)| Member::IpPortIp(
            address, protocol, port, second
        )),
        (port, any::<(IpAddr, u8)>()).prop_map(|((address, protocol, port), (second, prefix))| {
            Member::IpPortNet(address, protocol, port, second, prefix)
        }),
        any::<u16>().prop_map(Member::Port),
    ]
}

/// Returns the only message of a batch as if the kernel had sent it with this command.
fn answered(batch: &Batch, command: u8) -> Vec<u8> {
    let frame = batch.frame(1).unwrap();
    let mut payload = frame.payload.to_vec();
    payload[0] = command;
    payload
}

fn event(payload: &[u8]) -> ipvs::IpvsEvent {
    let header = Header { length: 0, kind: FAMILY, flags: 0, sequence: 1, port: 0 };
    ipvs::IpvsEvent::decode(FAMILY, &Frame { header, payload }).unwrap()
}

proptest! {
    #[test]
    fn virtual_servers(
        identity in identity(),
        scheduler in "[a-z]{1,15}",
        flags in any::<u32>(),
        timeout in any::<u32>(),
    ) {
        let server = VirtualServer { identity, scheduler, flags, timeout, counters: Counters::default() };
        for write in [ipvs::new_virtual_server, ipvs::set_virtual_server] {
            let mut batch = Batch::new(1);
            write(&mut batch, FAMILY, &server);
            prop_assert_eq!(event(&answered(&batch, 1)), ipvs::IpvsEvent::VirtualServer(server.clone()));
        }
    }

    #[test]
    fn real_servers(
        of in identity(),
        place in any::<SocketAddr>(),
        forward in any::<u32>(),
        weight in any::<u32>(),
        upper_threshold in any::<u32>(),
    ) {
        let place = SocketAddr::new(place.ip(), place.port());
        let server = RealServer { forward, upper_threshold, ..RealServer::new(place, weight) };
        for write in [ipvs::new_real_server, ipvs::set_real_server] {
            let mut batch = Batch::new(1);
            write(&mut batch, FAMILY, &of, &server);
            prop_assert_eq!(event(&answered(&batch, 5)), ipvs::IpvsEvent::RealServer(server));
        }
    }

    #[test]
    fn timeouts(tcp in any::<u32>(), tcp_fin in any::<u32>(), udp in any::<u32>()) {
        let timeouts = Timeouts { tcp, tcp_fin, udp };
        let mut request: Request = ipvs::set_timeouts(FAMILY, timeouts);
        let frame = Frames::new(request.bytes(1).unwrap()).next().unwrap().unwrap();
        prop_assert_eq!(event(frame.payload), ipvs::IpvsEvent::Timeouts(timeouts));
    }

    #[test]
    fn members(
        set in "[A-Z-]{1,31}",
        references in any::<Option<u32>>(),
        flags in any::<Option<u32>>(),
        members_max in any::<Option<u32>>(),
        members in prop::collection::vec((member(), any::<Option<u64>>()), 0..9),
    ) {
        let mut batch = Batch::new(1);
        for (member, _) in &members {
            ipset::add(&mut batch, &set, member);
        }
        // The kernel sends all members in one list, each in its written form.
        let mut list = Batch::new(1);
        let mut message = list.message(0x0607, 0, &[0; 4]);
        message.attr_str(2, &set);
        message.attr_str(3, "hash:ip");
        if references.is_some() || flags.is_some() || members_max.is_some() {
            message.nest(7, |message| {
                for (kind, number) in [(0x4019, references), (0x4008, flags), (0x4013, members_max)] {
                    if let Some(number) = number {
                        message.attr_u32_be(kind, number);
                    }
                }
            });
        }
        message.nest(8, |message| {
            for (frame, (_, packets)) in Frames::new(batch.bytes().unwrap()).zip(&members) {
                let frame = frame.unwrap();
                let data = frame.attributes("test", 4).unwrap().last().unwrap().unwrap();
                // The kernel writes bytes and packets after the member.
                let mut counters = Batch::new(1);
                let mut counted = counters.message(0, 0, &[0; 4]);
                if let Some(packets) = packets {
                    counted.attr_u64_be(0x4018, 1);
                    counted.attr_u64_be(0x4019, *packets);
                }
                drop(counted);
                let counted = counters.frame(1).unwrap().payload.get(4..).unwrap();
                message.attr_bytes(7 | 0x8000, &[data.payload, counted].concat());
            }
        });
        drop(message);
        let kind = Some("hash:ip".to_owned());
        let counts = flags.is_some_and(|flags| flags & 8 != 0);
        let members = members.into_iter().map(|(member, packets)| ipset::Listed { member, packets }).collect();
        prop_assert_eq!(
            ipset::IpsetEvent::decode(&list.frame(1).unwrap()),
            Ok(ipset::IpsetEvent::Set { name: set, kind, references, counts, members_max, members })
        );
    }

    #[test]
    fn addresses_in_a_batch(index in any::<u32>(), local in any::<IpAddr>()) {
        let address =
            route::Address { index, local, peer: local, prefix: 32, flags: 0, scope: route::Scope::UNIVERSE };
        let mut batch = Batch::new(1);
        route::put_address(&mut batch, &address);
        route::take_address(&mut batch, &address);
        prop_assert_eq!(route::RouteEvent::decode(&batch.frame(1).unwrap()), Ok(route::RouteEvent::NewAddress(address)));
        prop_assert_eq!(route::RouteEvent::decode(&batch.frame(2).unwrap()), Ok(route::RouteEvent::DeleteAddress(address)));
    }
}

/// A virtual server as Linux 6.1 sends it: 16 bytes for the address, and attributes that are not read.
#[test]
fn an_ipv4_address_in_sixteen_bytes() {
    let mut batch = Batch::new(1);
    let mut message = batch.message(FAMILY, 0, &[1, 1, 0, 0]);
    message.nest(1, |message| {
        message.attr_bytes(1, &2_u16.to_ne_bytes());
        message.attr_bytes(2, &6_u16.to_ne_bytes());
        message.attr_bytes(3, &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        message.attr_u16_be(4, 80);
        message.attr_str(6, "rr");
        message.attr_bytes(7, &[[3, 0, 0, 0].map(u8::to_le), [255; 4]].concat());
        message.attr_u32_ne(8, 600);
        message.attr_u32_ne(9, u32::MAX);
        counters_of_32_bits(message, 10);
    });
    drop(message);
    let ipvs::IpvsEvent::VirtualServer(server) = event(batch.frame(1).unwrap().payload) else { panic!() };
    let address = "10.96.0.1".parse().unwrap();
    assert_eq!(server.identity, Identity::Address { protocol: 6, address, port: 80 });
    assert_eq!((server.scheduler.as_str(), server.timeout), ("rr", 600));
    assert_eq!(server.counters, Counters { connections: 3, packets: 5, bytes: 700 });
}

/// Writes connections, packets in, packets out, bytes in and bytes out.
fn counters_of_32_bits(message: &mut Message<'_>, kind: u16) {
    message.nest(kind, |counters| {
        for (kind, number) in [(1, 3), (2, 5), (3, 6)] {
            counters.attr_u32_ne(kind, number);
        }
        for (kind, number) in [(4, 700_u64), (5, 800)] {
            counters.attr_bytes(kind, &number.to_ne_bytes());
        }
    });
}

/// A real server with the counters of 64 bits, which Linux sends besides the older ones since 4.1.
#[test]
fn counters_of_64_bits_go_before_those_of_32() {
    let mut batch = Batch::new(1);
    let mut message = batch.message(FAMILY, 0, &[5, 1, 0, 0]);
    message.nest(2, |message| {
        message.attr_bytes(1, &[10, 0, 0, 7]);
        message.attr_u16_be(2, 8080);
        message.attr_u32_ne(3, 0);
        message.attr_u32_ne(4, 1);
        counters_of_32_bits(message, 10);
        message.attr_bytes(11, &2_u16.to_ne_bytes());
        message.nest(12, |counters| {
            for (kind, number) in [(1, 3_u64), (2, 5_000_000_000), (3, 6), (4, 7_000_000_000), (5, 8)] {
                counters.attr_bytes(kind, &number.to_ne_bytes());
            }
        });
    });
    drop(message);
    let ipvs::IpvsEvent::RealServer(server) = event(batch.frame(1).unwrap().payload) else { panic!() };
    assert_eq!(server.place, "10.0.0.7:8080".parse().unwrap());
    assert_eq!(server.counters, Counters { connections: 3, packets: 5_000_000_000, bytes: 7_000_000_000 });
}
