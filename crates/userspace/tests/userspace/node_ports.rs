//! UDP node ports, and sockets of the node itself that have one of them as their port: `net.ipv4.ip_local_port_range` may
//! include node ports.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use portolan_model::{Forwarding, Frontend, Protocol};
use portolan_testkit::{Namespace, Probe, ProbeResult, probe_many};

use crate::bed::*;

const NODE_PORT: u16 = 30_053;
const SERVER_PORT: u16 = 5353;

/// Gives the UDP port of the Service a node port. Returns the node's address with it.
fn with_node_port(bed: &mut Bed) -> SocketAddr {
    for change in bed.changes.iter_mut().filter(|change| change.name.protocol == Protocol::Udp) {
        let mut new: Forwarding = change.new.as_deref().unwrap().clone();
        new.frontends = new.frontends.iter().copied().chain([Frontend::NodePort(NODE_PORT)]).collect();
        change.new = Some(Arc::new(new));
    }
    SocketAddr::new(bed.world.node().address(FAMILY), NODE_PORT)
}

fn udp(namespace: &Namespace, address: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    socket
}

/// Receives a datagram and returns its text and its source.
fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buffer = [0; 100];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (String::from_utf8_lossy(&buffer[..length]).into_owned(), from)
}

#[test]
fn answers_reach_a_socket_of_this_node_that_has_a_node_port() {
    let mut bed = Bed::new();
    let node_port = with_node_port(&mut bed);
    let _plane = bed.userspace();
    let client = bed.world.client();
    let server = udp(client.namespace(), SocketAddr::new(client.address(FAMILY), SERVER_PORT));
    let asks = |address: SocketAddr| {
        let own = udp(bed.node(), address);
        own.send_to(b"question", server.local_addr().unwrap()).unwrap();
        let (question, from) = receive(&server);
        assert_eq!((&*question, from.port()), ("question", NODE_PORT));
        server.send_to(b"answer", from).unwrap();
        assert_eq!(receive(&own), ("answer".to_owned(), server.local_addr().unwrap()), "from {address}");
        own
    };
    let is_served = || {
        let probe = (client.namespace(), Probe::new(Protocol::Udp, node_port));
        let results = probe_many(&[probe]).unwrap();
        assert!(matches!(results[..], [ProbeResult::Reached(_)]), "{results:?}");
    };
    // While this socket is open, the relay cannot answer from the port.
    drop(asks(SocketAddr::from(([0, 0, 0, 0], NODE_PORT))));
    is_served();
    let _own = asks(node_port);
    is_served();
}

/// The relay's next answer then looks like the first packet of a flow, and the client's datagrams like answers.
#[test]
fn a_flow_to_a_node_port_survives_conntrack_deletion() {
    let mut bed = Bed::new();
    let backend = bed.backend_of_its_own();
    let node_port = with_node_port(&mut bed);
    let [first, .., pod] = bed.world.pods() else { panic!("no pods") };
    let server = udp(first.namespace(), backend);
    let client = udp(pod.namespace(), SocketAddr::new(pod.address(FAMILY), 0));
    let _plane = bed.userspace();
    client.send_to(b"first", node_port).unwrap();
    let (_, relay) = receive(&server);
    for round in 0..3 {
        bed.node().output("conntrack", &["-F"]).unwrap();
        server.send_to(b"answer", relay).unwrap();
        assert_eq!(receive(&client), ("answer".to_owned(), node_port), "round {round}");
        client.send_to(b"next", node_port).unwrap();
        assert_eq!(receive(&server), ("next".to_owned(), relay), "round {round}");
    }
}
