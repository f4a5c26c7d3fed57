//! Addresses and links of the node.

use std::net::IpAddr;

use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::route::{self, Address, RouteEvent, Scope};

use super::{in_namespace, list};

fn address(local: &str, prefix: u8) -> Address {
    let local: IpAddr = local.parse().unwrap();
    Address { index: 1, local, peer: local, prefix, flags: route::IFA_F_PERMANENT, scope: Scope::UNIVERSE }
}

/// Clears the tentative flag, which an IPv6 address keeps until the kernel's duplicate address detection ends.
fn settled(address: Address) -> Address {
    Address { flags: address.flags & !route::IFA_F_TENTATIVE, ..address }
}

fn addresses(socket: &mut Socket, family: u8) -> Vec<Address> {
    list(socket, route::addresses(family), |frame| {
        Ok(match RouteEvent::decode(frame)? {
            RouteEvent::NewAddress(address) => Some(settled(address)),
            _ => None,
        })
    })
}

#[test]
fn addresses_are_listed_and_their_changes_noticed() {
    in_namespace(|_| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        assert!(socket.set_strict_checking().unwrap());
        let mut listener = Socket::open(Protocol::Route).unwrap();
        listener
            .subscribe(&[route::GROUP_LINK, route::GROUP_IPV4_ADDRESS, route::GROUP_IPV6_ADDRESS])
            .unwrap();
        assert_eq!(addresses(&mut socket, route::AF_UNSPEC), []);

        let (v4, v6) = (address("192.0.2.1", 24), address("2001:db8::1", 64));
        for address in [&v4, &v6] {
            socket.query(&mut route::add_address(address), |_| Ok(())).unwrap();
        }
        assert_eq!(addresses(&mut socket, route::AF_INET), [v4]);
        assert_eq!(addresses(&mut socket, route::AF_INET6), [v6]);
        assert_eq!(addresses(&mut socket, route::AF_UNSPEC), [v4, v6]);
        socket.query(&mut route::delete_address(&v4), |_| Ok(())).unwrap();
        assert_eq!(addresses(&mut socket, route::AF_UNSPEC), [v6]);

        let mut seen = Vec::new();
        listener
            .receive(|frame| {
                seen.push(match RouteEvent::decode(frame)? {
                    RouteEvent::NewAddress(address) => RouteEvent::NewAddress(settled(address)),
                    other => other,
                });
                Ok(())
            })
            .unwrap();
        // Ignores the second notification of the IPv6 address at the end of duplicate address detection. It may come
        // before or after the deletion.
        let settles = |index, event: &RouteEvent| index > 1 && *event == RouteEvent::NewAddress(v6);
        let mut index = 0..;
        seen.retain(|event| !settles(index.next().unwrap_or_default(), event));
        assert_eq!(
            seen,
            [RouteEvent::NewAddress(v4), RouteEvent::NewAddress(v6), RouteEvent::DeleteAddress(v4)]
        );

        let error = socket.query(&mut route::delete_address(&v4), |_| Ok(())).unwrap_err();
        assert_eq!(error.errno(), Some(Errno(libc::EADDRNOTAVAIL)));
    });
}

#[test]
fn links_are_listed_and_their_changes_noticed() {
    in_namespace(|_| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let mut listener = Socket::open(Protocol::Route).unwrap();
        listener.subscribe(&[route::GROUP_LINK]).unwrap();
        let links = |socket: &mut Socket| {
            list(socket, route::links(), |frame| {
                Ok(match RouteEvent::decode(frame)? {
                    RouteEvent::NewLink(link) => Some(link),
                    _ => None,
                })
            })
        };
        let found = links(&mut socket);
        let loopback = found.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!((loopback.index, loopback.flags & route::IFF_UP), (1, 0));
        let mut request = route::set_link_flags(1, route::IFF_UP, route::IFF_UP);
        socket.query(&mut request, |_| Ok(())).unwrap();
        let mut seen = Vec::new();
        listener
            .receive(|frame| {
                seen.push(RouteEvent::decode(frame)?);
                Ok(())
            })
            .unwrap();
        let up = |event: &RouteEvent| matches!(event, RouteEvent::NewLink(link) if link.index == 1 && link.flags & route::IFF_UP != 0);
        assert!(seen.iter().any(up), "{seen:?}");
        assert_ne!(links(&mut socket).first().unwrap().flags & route::IFF_UP, 0);
    });
}

#[test]
fn notifications_are_read_a_few_at_a_time() {
    in_namespace(|_| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let mut listener = Socket::open(Protocol::Route).unwrap();
        listener.subscribe(&[route::GROUP_IPV4_ADDRESS]).unwrap();
        for text in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
            socket.query(&mut route::add_address(&address(text, 24)), |_| Ok(())).unwrap();
        }
        assert_eq!(listener.receive_at_most(2, |_| Ok(())).unwrap(), 2);
        assert_eq!(listener.receive_at_most(2, |_| Ok(())).unwrap(), 1);
        assert_eq!(listener.receive_at_most(2, |_| Ok(())).unwrap(), 0);
    });
}

#[test]
fn nothing_to_receive_is_no_error() {
    in_namespace(|_| {
        let mut listener = Socket::open(Protocol::Route).unwrap();
        let count: Result<usize, SocketError> = listener.receive(|_| Ok(()));
        assert_eq!(count.unwrap(), 0);
    });
}
