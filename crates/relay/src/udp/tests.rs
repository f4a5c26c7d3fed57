use std::net::UdpSocket;

use portolan_testkit::{Namespace, eventually};

use super::*;

fn in_namespace(check: impl FnOnce() + Send) {
    Namespace::new("replies").expect("this test needs root").run(check).unwrap();
}

#[test]
fn a_port_has_a_socket_until_the_last_flow_ends() {
    let mut flows = Udp::new(&RelayOptions::default()).flows;
    let places = ["127.0.0.1:5353", "127.0.0.2:5353", "[::1]:5353"].map(|text| text.parse().unwrap());
    in_namespace(|| {
        for (place, sockets) in places.into_iter().zip([1, 1, 2]) {
            assert_eq!(flows.add_reply(place, Capture::Tproxy, Instant::now()), Some(()));
            assert_eq!(flows.replies.len(), sockets, "{place}");
        }
    });
    for (place, sockets) in places.into_iter().zip([2, 1, 0]) {
        flows.end_reply(place);
        assert_eq!(flows.replies.len(), sockets, "{place}");
    }
}

#[test]
fn a_port_that_cannot_be_used_is_tried_again_after_a_second() {
    let mut flows = Udp::new(&RelayOptions::default()).flows;
    let (place, now) = ("10.96.0.10:53".parse().unwrap(), Instant::now());
    in_namespace(|| {
        let other = UdpSocket::bind("0.0.0.0:53").unwrap();
        assert_eq!(flows.add_reply(place, Capture::Tproxy, now), None);
        drop(other);
        assert_eq!(flows.add_reply(place, Capture::Tproxy, now + RETRY / 2), None);
        assert_eq!(flows.add_reply(place, Capture::Tproxy, now + RETRY), Some(()));
        assert!(flows.unusable.is_empty());
    });
}

#[test]
fn the_socket_of_answers_receives_nothing() {
    let namespace = Namespace::new("replies").expect("this test needs root");
    namespace.ip(&format!("link set lo up\naddr add {UNUSED_IPV4}/32 dev lo")).unwrap();
    let dropped = namespace.run(|| {
        let _socket = reply_socket(Port { family: Family::Ipv4, number: 53 }).unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", (UNUSED_IPV4, 53)).unwrap();
        // The last column is the number of dropped datagrams (`proc(5)`).
        let drops = || {
            let sockets = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
            sockets.lines().any(|line| line.contains(":0035 ") && line.trim_end().ends_with(" 1"))
        };
        eventually(Duration::from_secs(120), "a dropped datagram", drops)
    });
    dropped.unwrap().unwrap();
}
