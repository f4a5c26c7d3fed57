//! ipsets and generic netlink families.

use portolan_sock::{Errno, Protocol, Socket};
use portolan_wire::ipset::{self, IpsetEvent, Listed, Member, SetOptions, Type};
use portolan_wire::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use portolan_wire::nfnetlink::{Family, Header, SUBSYSTEM_IPSET, message_type};
use portolan_wire::{Batch, Request, generic};

use super::{in_namespace, list};

const CREATE: u8 = 2;

/// Creates a set of ports.
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
        Ok(match IpsetEvent::decode(frame)? {
            IpsetEvent::Set { name, .. } => Some(name),
            IpsetEvent::Type { .. } | IpsetEvent::Other { .. } => None,
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

/// Adds and removes members in batches, twice each: adding a present member and removing an absent one must succeed.
#[test]
fn members_are_added_and_removed_in_batches() {
    in_namespace(|socket| {
        let address = "10.0.0.1".parse().unwrap();
        let members = [
            Member::IpPortNet(address, 6, 80, "10.1.0.0".parse().unwrap(), 16),
            Member::IpPortNet(address, 132, 81, "10.2.3.4".parse().unwrap(), 32),
        ];
        let mut revision = 0;
        let asked = socket.query(&mut ipset::find_type(Type::HashIpPortNet, Family::IPV4), |frame| {
            if let IpsetEvent::Type { revision: found } = IpsetEvent::decode(frame)? {
                revision = found;
            }
            Ok(())
        });
        asked.unwrap();
        assert!(revision >= Type::HashIpPortNet.known_revision(), "{revision}");
        socket
            .query(
                &mut ipset::create("set", Type::HashIpPortNet, Family::IPV4, revision, SetOptions::default()),
                |_| Ok(()),
            )
            .unwrap();
        let change = |socket: &mut Socket, write: fn(&mut Batch, &str, &Member)| {
            let mut batch = Batch::new(socket.next_sequence(2));
            for member in &members {
                write(&mut batch, "set", member);
            }
            batch.acknowledge_last();
            let replies = socket.submit(&batch).unwrap();
            assert!(replies.refusals.is_empty() && replies.acknowledged == 1, "{replies:?}");
        };
        let present = |socket: &mut Socket| {
            let mut present = Vec::new();
            let listed = socket.dump(&mut ipset::list("set"), |frame| {
                if let IpsetEvent::Set { members, .. } = IpsetEvent::decode(frame)? {
                    assert!(members.iter().all(|listed| listed.packets.is_none()));
                    present.extend(members.into_iter().map(|listed| listed.member));
                }
                Ok(())
            });
            listed.unwrap();
            present.sort();
            present
        };
        for _ in 0..2 {
            change(socket, ipset::add);
            assert_eq!(present(socket), members);
        }
        for _ in 0..2 {
            change(socket, ipset::remove);
            assert_eq!(present(socket), []);
        }
        let error = socket.dump(&mut ipset::list("none"), |_| Ok(())).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOENT), "{error}");
    });
}

/// A member counts from 0 when it is added, also in the place of another one.
#[test]
fn members_of_a_set_that_counts() {
    in_namespace(|socket| {
        let kind = Type::HashIpPort;
        let member = Member::IpPort("10.0.0.1".parse().unwrap(), 6, 80);
        let listed = |socket: &mut Socket, name: &str| {
            let mut found = None;
            let listed = socket.dump(&mut ipset::list(name), |frame| {
                if let IpsetEvent::Set { counts, members, .. } = IpsetEvent::decode(frame)? {
                    found = Some((counts, members));
                }
                Ok(())
            });
            listed.unwrap();
            found.unwrap()
        };
        let add = |socket: &mut Socket, name: &str, write: fn(&mut Batch, &str, &Member)| {
            let mut batch = Batch::new(socket.next_sequence(1));
            write(&mut batch, name, &member);
            batch.acknowledge_last();
            socket.submit(&batch).unwrap().refusals.len()
        };
        for (name, counts) in [("counting", true), ("plain", false)] {
            let revision = kind.known_revision();
            let options = SetOptions { counts, ..SetOptions::default() };
            socket
                .query(&mut ipset::create(name, kind, Family::IPV4, revision, options), |_| Ok(()))
                .unwrap();
        }
        assert_eq!(add(socket, "counting", ipset::add_counting), 0);
        assert_eq!(listed(socket, "counting"), (true, vec![Listed { member, packets: Some(0) }]));
        assert_eq!(add(socket, "plain", ipset::add_counting), 1, "the kernel refuses numbers there");
        assert_eq!(add(socket, "plain", ipset::add), 0);
        assert_eq!(listed(socket, "plain"), (false, vec![Listed { member, packets: None }]));
    });
}

/// A set with room for more members takes the place of another one, with its own members.
#[test]
fn two_sets_swap_their_names() {
    in_namespace(|socket| {
        let kind = Type::HashIpPort;
        let listed = |socket: &mut Socket, name: &str| {
            let mut found = None;
            let listed = socket.dump(&mut ipset::list(name), |frame| {
                if let IpsetEvent::Set { members_max, members, .. } = IpsetEvent::decode(frame)? {
                    found = Some((members_max, members.len()));
                }
                Ok(())
            });
            listed.unwrap();
            found.unwrap()
        };
        for (name, members_max) in [("small", 2), ("large", 1 << 22)] {
            let options = SetOptions { members_max, ..SetOptions::default() };
            let revision = kind.known_revision();
            socket
                .query(&mut ipset::create(name, kind, Family::IPV4, revision, options), |_| Ok(()))
                .unwrap();
        }
        let mut batch = Batch::new(socket.next_sequence(3));
        for port in [80, 81, 82] {
            ipset::add(&mut batch, "large", &Member::IpPort("10.0.0.1".parse().unwrap(), 6, port));
        }
        batch.acknowledge_last();
        assert_eq!(socket.submit(&batch).unwrap().refusals.len(), 0);
        socket.query(&mut ipset::swap("large", "small"), |_| Ok(())).unwrap();
        assert_eq!(listed(socket, "small"), (Some(1 << 22), 3));
        assert_eq!(listed(socket, "large"), (Some(2), 0));
    });
}

#[test]
fn a_family_has_a_number_or_is_not_there() {
    in_namespace(|_| {
        let mut socket = Socket::open(Protocol::Generic).unwrap();
        let mut found = Vec::new();
        let answer = socket.query(&mut generic::family("nlctrl"), |frame| {
            found.push(generic::GenericEvent::decode(frame)?);
            Ok(())
        });
        answer.unwrap();
        let family = generic::Family { id: generic::CONTROL, name: "nlctrl".into() };
        assert_eq!(found, [generic::GenericEvent::NewFamily(family)]);
        let error = socket.query(&mut generic::family("no-such"), |_| Ok(())).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOENT), "{error}");
    });
}
