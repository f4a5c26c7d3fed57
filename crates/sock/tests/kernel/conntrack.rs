//! Conntrack flows over the loopback interface of the test's namespace.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use portolan_sock::{Errno, Protocol, Socket};
use portolan_wire::Batch;
use portolan_wire::conntrack::{self, ConntrackEvent, Filter, Flow, Tuple};
use portolan_wire::nftables::expr::{Ct, CtKey};
use portolan_wire::nftables::{ChainType, Expr, Family, Hook, IfExists, Register, Rule};
use portolan_wire::route;

use super::{TABLE, base_chain, commit, in_namespace, is_linux, list, new_table};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The addresses of a flow's client and server.
type Ends = (SocketAddr, SocketAddr);

/// Brings the loopback interface up and adds a rule that loads the connection's state, which enables connection
/// tracking.
fn track(socket: &mut Socket, family: Family) {
    let mut request = route::set_link_flags(1, route::IFF_UP, route::IFF_UP);
    Socket::open(Protocol::Route).unwrap().query(&mut request, |_| Ok(())).unwrap();
    let load = Ct::Load { key: CtKey::STATE, destination: Register::R1, direction: None };
    commit(socket, |transaction| {
        new_table(transaction, family);
        let chain = base_chain(family, "input", ChainType::Filter, Hook::INPUT, 0);
        transaction.new_chain(&chain, IfExists::Fail);
        transaction.append_rule(&Rule::new(family, TABLE, "input", vec![Expr::Ct(load)]));
    });
}

fn flows(socket: &mut Socket, filter: &Filter) -> Vec<Flow> {
    list(socket, conntrack::list(filter), |frame| {
        Ok(match ConntrackEvent::decode(frame)? {
            ConntrackEvent::New(flow) => Some(flow),
            _ => None,
        })
    })
}

/// Sends a UDP packet and opens a TCP connection. Returns the ends of each, and the sockets of the connection: the kernel soon
/// forgets a connection whose socket is closed.
fn traffic(host: &str) -> ([Ends; 2], (TcpListener, TcpStream)) {
    let bind = || UdpSocket::bind((host, 0)).unwrap();
    let (client, server) = (bind(), bind());
    client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
    let listener = TcpListener::bind((host, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends = [
        (client.local_addr().unwrap(), server.local_addr().unwrap()),
        (stream.local_addr().unwrap(), stream.peer_addr().unwrap()),
    ];
    (ends, (listener, stream))
}

fn tuple(protocol: u8, (source, destination): Ends) -> Tuple {
    Tuple::with_ports(protocol, (source.ip(), source.port()), (destination.ip(), destination.port()))
}

fn listed_filtered_deleted(socket: &mut Socket, family: Family, host: &str) {
    track(socket, family);
    let ([udp, tcp], _open) = traffic(host);
    let (udp, tcp) = (tuple(UDP, udp), tuple(TCP, tcp));
    let mut all: Vec<_> = flows(socket, &Filter::family(family)).iter().map(|flow| flow.original).collect();
    all.sort_by_key(|tuple| tuple.protocol);
    assert_eq!(all, [tcp, udp]);

    let found = flows(socket, &Filter::protocol(family, UDP));
    let [flow] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(flow.original, udp);
    let reply = Tuple::with_ports(
        UDP,
        (udp.destination, udp.destination_port().unwrap()),
        (udp.source, udp.source_port().unwrap()),
    );
    assert_eq!(flow.reply, reply);
    assert_ne!(flow.status & conntrack::status::CONFIRMED, 0);
    assert!(flow.id.is_some() && flow.timeout.is_some());

    let at = |port| Filter {
        destination: Some(udp.destination),
        destination_port: port,
        ..Filter::protocol(family, UDP)
    };
    assert_eq!(flows(socket, &at(udp.destination_port())).len(), 1);
    assert_eq!(flows(socket, &at(udp.source_port())).len(), 0);
    // Linux before 5.15 ignores this part of a filter.
    if is_linux(5, 15) {
        listed_by_status(socket, family, tcp);
    }

    let mut batch = Batch::new(socket.next_sequence(3));
    let wrong = conntrack::delete(&mut batch, &Flow { id: flow.id.map(|id| id ^ 1), ..*flow });
    conntrack::delete(&mut batch, flow);
    let again = conntrack::delete(&mut batch, &Flow { id: None, ..*flow });
    let replies = socket.submit(&batch).unwrap();
    let refusals: Vec<_> = replies.refusals.iter().map(|refusal| (refusal.sequence, refusal.errno)).collect();
    assert_eq!(refusals, [(wrong, Errno::ENOENT), (again, Errno::ENOENT)]);
    assert_eq!(flows(socket, &Filter::family(family)).len(), 1);
}

fn listed_by_status(socket: &mut Socket, family: Family, answered_one: Tuple) {
    let translated = Filter { status: conntrack::status::DST_NAT, ..Filter::family(family) };
    assert_eq!(flows(socket, &translated), []);
    let answered = Filter { status: conntrack::status::SEEN_REPLY, ..Filter::family(family) };
    assert_eq!(flows(socket, &answered).iter().map(|flow| flow.original).collect::<Vec<_>>(), [answered_one]);
}

#[test]
fn ipv4_flows_are_listed_filtered_and_deleted() {
    in_namespace(|socket| listed_filtered_deleted(socket, Family::IPV4, "127.0.0.1"));
}

#[test]
fn ipv6_flows_are_listed_filtered_and_deleted() {
    in_namespace(|socket| listed_filtered_deleted(socket, Family::IPV6, "::1"));
}
