//! Sets, and families with names.

use portolan_sock::{Errno, Protocol, Socket};
use portolan_wire::ipset::{self, Event};
use portolan_wire::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use portolan_wire::nfnetlink::{Family, Header, SUBSYSTEM_IPSET, message_type};
use portolan_wire::{Request, generic};

use super::{in_namespace, list};

const CREATE: u8 = 2;

/// Makes a set of ports.
fn create(socket: &mut Socket, name: &str) {
    let kind = message_type(SUBSYSTEM_IPSET, CREATE);
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let mut request = Request::new(kind, flags, &Header::of(Family::IPV4), |message| {
        message.attr_u8(1, 6);
        message.attr_str(2, name);
        message.attr_str(3, "bitmap:port");
        message.attr_u8(4, 0);
        message.attr_u8(5, Family::UNSPECIFIED.0);
        message.nest(7, |message| {
            for (attribute, port) in [(4, 0_u16), (5, 65535)] {
                message.attr_bytes(attribute | 1 << 14, &port.to_be_bytes());
            }
        });
    });
    socket.query(&mut request, |_| Ok(())).unwrap();
}

fn names(socket: &mut Socket) -> Vec<String> {
    let mut names = list(socket, ipset::names(), |frame| {
        Ok(match Event::decode(frame)? {
            Event::Set { name } => Some(name),
            Event::Other { .. } => None,
        })
    });
    names.sort();
    names
}

#[test]
fn sets_are_listed_and_destroyed() {
    in_namespace(|socket| {
        assert_eq!(names(socket), <[&str; 0]>::default());
        create(socket, "one");
        create(socket, "two");
        assert_eq!(names(socket), ["one", "two"]);
        socket.query(&mut ipset::destroy("one"), |_| Ok(())).unwrap();
        assert_eq!(names(socket), ["two"]);
    });
}

#[test]
fn a_family_has_a_number_or_is_not_there() {
    in_namespace(|_| {
        let mut socket = Socket::open(Protocol::Generic).unwrap();
        let mut found = Vec::new();
        let answer = socket.query(&mut generic::family("nlctrl"), |frame| {
            found.push(generic::Event::decode(frame)?);
            Ok(())
        });
        answer.unwrap();
        let family = generic::Family { id: generic::CONTROL, name: "nlctrl".into() };
        assert_eq!(found, [generic::Event::NewFamily(family)]);
        let error = socket.query(&mut generic::family("no-such"), |_| Ok(())).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOENT), "{error}");
    });
}
