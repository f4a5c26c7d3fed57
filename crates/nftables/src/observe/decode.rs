//! Decodes keys and comments of elements. Each function returns `None` for bytes that this mode does not write.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use portolan_model::observed::ObservedPlace;
use portolan_model::{Family, Frontend, Protocol, ServicePortName};

use super::super::changeset::COMMENT_MAX;
use super::super::element::{Key, Set, address_length, read_address};

/// Length in bytes of the fields for protocol and port.
const PROTOCOL_AND_PORT: usize = 8;

/// A comment of this length in bytes or more may have been cut: a cut one is up to three bytes shorter than the limit,
/// so that no character is divided.
const MAYBE_CUT: usize = COMMENT_MAX - 3;

/// The key of a frontend in the sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct At {
    pub(super) protocol: Protocol,
    pub(super) place: ObservedPlace,
}

/// Returns the frontend of a key. In the sets of node ports, the key has no address.
pub(super) fn frontend(family: Family, set: Set, key: &[u8]) -> Option<At> {
    let of_node_port =
        matches!(set, Set::NodePorts | Set::NoEndpointNodePorts | Set::NoLocalEndpointNodePorts);
    if of_node_port {
        let (protocol, port) = protocol_and_port(key)?;
        return Some(At { protocol, place: ObservedPlace::Frontend(Frontend::NodePort(port)) });
    }
    let (address, rest) = key.split_at_checked(address_length(family) as usize)?;
    let (protocol, port) = protocol_and_port(rest)?;
    let socket = SocketAddr::new(read_address(family, address)?, port);
    Some(At { protocol, place: ObservedPlace::Address(socket) })
}

/// Returns a load-balancer IP, and the source ranges that one element allows: one, if this mode has written it.
pub(super) fn source_range(family: Family, key: &Key, end: Option<&Key>) -> Option<(At, Vec<IpNet>)> {
    let length = address_length(family) as usize + PROTOCOL_AND_PORT;
    let (key, first) = key.as_slice().split_at_checked(length)?;
    let (end, last) = end.map_or(Some((key, first)), |end| end.as_slice().split_at_checked(length))?;
    let ranges = match (read_address(family, first)?, read_address(family, last)?) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect()
        }
        _ => return None,
    };
    // A range of load-balancer IPs is not written by this mode.
    if key == end { Some((frontend(family, Set::FirewallIps, key)?, ranges)) } else { None }
}

/// Returns the Service port that a comment names. `None` also if the comment may have been cut.
pub(super) fn name(comment: &str, protocol: Protocol) -> Option<Arc<ServicePortName>> {
    let (namespace, rest) = comment.split_once('/')?;
    let (service, port) = match rest.split_once(':') {
        Some((_, "")) => return None,
        Some((service, port)) => (service, port),
        None => (rest, ""),
    };
    let is_name = |text: &str| !text.is_empty() && !text.contains(['/', ':']);
    let is_whole = comment.len() < MAYBE_CUT;
    (is_whole && is_name(namespace) && is_name(service) && !port.contains(['/', ':'])).then(|| {
        let [namespace, service, port] = [namespace, service, port].map(Arc::from);
        Arc::new(ServicePortName { namespace, service, port, protocol })
    })
}

fn protocol_and_port(key: &[u8]) -> Option<(Protocol, u16)> {
    let &[number, _, _, _, high, low, _, _] = key else { return None };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol.number() == number)?;
    Some((protocol, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::element::{node_port_key, service_key};
    use super::*;

    fn address(bits: u128, v6: bool) -> IpAddr {
        let [.., a, b, c, d] = bits.to_be_bytes();
        if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from([a, b, c, d]) }
    }

    proptest! {
        #[test]
        fn keys_are_read_back(bits: u128, v6: bool, port: u16, length in 0..=128_u8, protocol in 0..3_usize) {
            let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp][protocol];
            let ip = address(bits, v6);
            let (family, key) = (Family::of(ip), service_key(ip, protocol, port));
            let at = At { protocol, place: ObservedPlace::Address(SocketAddr::new(ip, port)) };
            prop_assert_eq!(frontend(family, Set::Services, key.as_slice()), Some(at));
            let node_port = At { protocol, place: ObservedPlace::Frontend(Frontend::NodePort(port)) };
            let node_port_key = node_port_key(protocol, port);
            prop_assert_eq!(frontend(family, Set::NodePorts, node_port_key.as_slice()), Some(node_port));
            let range = IpNet::new(ip, length.min(if v6 { 128 } else { 32 })).unwrap().trunc();
            let (first, last) = (key.address(range.network()), key.address(range.broadcast()));
            prop_assert_eq!(source_range(family, &first, Some(&last)), Some((at, vec![range])));
        }

        #[test]
        fn any_bytes_are_a_frontend_or_not(bytes: Vec<u8>, end: Option<Vec<u8>>, v6: bool) {
            let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
            for set in Set::ALL {
                frontend(family, set, &bytes);
            }
            let end = end.map(|end| Key::from_kernel(&end).unwrap_or_default());
            source_range(family, &Key::from_kernel(&bytes).unwrap_or_default(), end.as_ref());
        }

        #[test]
        fn names_are_read_back(texts in ["[a-z0-9.-]{1,63}", "[a-z0-9.-]{1,63}", "[a-z0-9-]{0,15}"], udp: bool) {
            let [namespace, service, port] = texts.map(Arc::from);
            let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            let written = ServicePortName { namespace, service, port, protocol };
            let comment = written.to_string();
            let read = name(&comment, protocol);
            prop_assert_eq!(read, (comment.len() < MAYBE_CUT).then(|| Arc::new(written)));
        }
    }

    #[test]
    fn other_comments_are_no_names() {
        for comment in ["", "web", "/web", "demo/", "demo/web:", "demo/web/x", "demo/web:a:b", "d:e/web"] {
            assert_eq!(name(comment, Protocol::Tcp), None, "{comment}");
        }
        assert!(name("demo/web", Protocol::Tcp).is_some() && name("demo/web:http", Protocol::Tcp).is_some());
    }

    #[test]
    fn a_source_range_that_is_no_cidr_is_several() {
        let key = service_key(address(1, false), Protocol::Tcp, 80);
        let ends = |first, last| [key.address(address(first, false)), key.address(address(last, false))];
        let ranges = |[first, last]: [Key; 2]| source_range(Family::Ipv4, &first, Some(&last));
        let texts: Vec<String> = ranges(ends(1, 4)).unwrap().1.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["0.0.0.1/32", "0.0.0.2/31", "0.0.0.4/32"]);
        assert_eq!(ranges(ends(4, 1)), None);
        let other = service_key(address(2, false), Protocol::Tcp, 80).address(address(9, false));
        assert_eq!(ranges([ends(1, 4)[0], other]), None);
    }
}
