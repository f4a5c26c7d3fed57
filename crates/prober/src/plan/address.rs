//! Which address and port of an endpoint is probed.

use std::net::{IpAddr, SocketAddr};

use crate::annotations::PortChoice;
use crate::annotations::{Wish, parse};
use crate::object::{Endpoint, EndpointSlice, Service};

/// Returns, for each endpoint of a slice, true if it is not ready before its first result: it is probed, and nothing else
/// makes it ready. `None` if the prober does not judge the slice.
pub fn awaiting(service: &Service, slice: &EndpointSlice) -> Option<Vec<bool>> {
    if slice.is_managed() {
        return None;
    }
    let port = match parse(service.metadata.annotations.as_ref()).wish {
        Wish::Absent => return None,
        // The last valid check may be in force.
        Wish::Invalid => None,
        Wish::Valid(check) => {
            port_of(slice, &check.port).filter(|_| !service.spec.publish_not_ready_addresses)
        }
    };
    let is_probed = |endpoint: &Endpoint| {
        port.is_some_and(|port| address_of(endpoint, &slice.address_type, port, false).is_some())
    };
    Some(slice.endpoints.iter().map(is_probed).collect())
}

/// Returns the port of a slice that is probed, or `None` if the slice does not have it.
pub(super) fn port_of(slice: &EndpointSlice, choice: &PortChoice) -> Option<u16> {
    let number = match choice {
        PortChoice::Number(number) => Some(*number),
        PortChoice::First => slice.ports.iter().find(|port| port.is_tcp()).and_then(|port| port.port),
        PortChoice::Name(name) => {
            slice.ports.iter().find(|port| port.is_tcp() && port.name == *name).and_then(|port| port.port)
        }
    };
    number.filter(|number| *number > 0)
}

/// Returns the address of an endpoint that is probed: the first one, as proxies use it. `None` if it is not an address
/// of the slice's type, or one that is not the endpoint's alone.
pub(super) fn address_of(
    endpoint: &Endpoint,
    address_type: &str,
    port: u16,
    any_address: bool,
) -> Option<SocketAddr> {
    let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let fits = match address_type {
        "IPv4" => address.is_ipv4(),
        "IPv6" => address.is_ipv6(),
        _ => false,
    };
    (fits && (any_address || !is_of_this_node(address)) && !is_of_many(address))
        .then_some(SocketAddr::new(address, port))
}

/// Returns true for addresses that are always this node's or its link's. Kubernetes refuses them in EndpointSlices.
fn is_of_this_node(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

fn is_of_many(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_unspecified() || address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unspecified() || address.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, address_type: &str) -> Option<String> {
        let endpoint = Endpoint { addresses: vec![text.to_owned(), "10.9.9.9".to_owned()], conditions: None };
        address_of(&endpoint, address_type, 80, false).map(|address| address.to_string())
    }

    #[test]
    fn the_first_address_is_probed_if_it_is_the_endpoints_own() {
        assert_eq!(address("10.0.0.1", "IPv4").unwrap(), "10.0.0.1:80");
        assert_eq!(address("2001:db8::1", "IPv6").unwrap(), "[2001:db8::1]:80");
        for (text, address_type) in [
            ("10.0.0.1", "IPv6"),
            ("2001:db8::1", "IPv4"),
            ("example.com", "FQDN"),
            ("10.0.0.1", "FQDN"),
            ("", "IPv4"),
            ("127.0.0.1", "IPv4"),
            ("169.254.169.254", "IPv4"),
            ("0.0.0.0", "IPv4"),
            ("224.0.0.1", "IPv4"),
            ("255.255.255.255", "IPv4"),
            ("::1", "IPv6"),
            ("::", "IPv6"),
            ("fe80::1", "IPv6"),
            ("ff02::1", "IPv6"),
            ("::ffff:127.0.0.1", "IPv6"),
        ] {
            assert_eq!(address(text, address_type), None, "{text} {address_type}");
        }
        let loopback = Endpoint { addresses: vec!["127.0.0.1".to_owned()], conditions: None };
        assert!(address_of(&loopback, "IPv4", 80, true).is_some());
        assert_eq!(address_of(&Endpoint::default(), "IPv4", 80, true), None);
    }

    #[test]
    fn endpoints_that_are_probed_await_their_first_result() {
        let of = |service: &str, slice: &str| {
            let service: Service = serde_json::from_str(service).unwrap();
            awaiting(&service, &serde_json::from_str(slice).unwrap())
        };
        let service = r#"{"metadata": {"annotations": {"portolan.dev/health-check": "tcp"}}}"#;
        let slice = r#"{"addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["239.1.2.3"]}, {"addresses": ["fd00::1"]}]}"#;
        assert_eq!(of(service, slice), Some(vec![true, false, false]), "only the first one is probed");
        let one =
            r#"{"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}]}"#;
        for (other, wanted) in [
            ("{}", None),
            (r#"{"metadata": {"annotations": {"portolan.dev/health-check": "icmp"}}}"#, Some(vec![false])),
            (
                r#"{"metadata": {"annotations": {"portolan.dev/health-check": "tcp"}}, "spec": {"publishNotReadyAddresses": true}}"#,
                Some(vec![false]),
            ),
        ] {
            assert_eq!(of(other, one), wanted, "{other}");
        }
        let controlled = r#"{"metadata": {"ownerReferences": [{"controller": true}]}}"#;
        assert_eq!(of(service, controlled), None);
        let udp = r#"{"addressType": "IPv4", "ports": [{"port": 53, "protocol": "UDP"}], "endpoints": [{"addresses": ["10.0.0.1"]}]}"#;
        assert_eq!(of(service, udp), Some(vec![false]), "it lacks the port");
    }

    #[test]
    fn the_port_is_the_chosen_one() {
        let slice: EndpointSlice = serde_json::from_str(
            r#"{"ports": [{"name":"dns","port":53,"protocol":"UDP"}, {"name":"web","port":80}, {"name":"x","port":90,"protocol":"TCP"}]}"#,
        )
        .unwrap();
        assert_eq!(port_of(&slice, &PortChoice::First), Some(80));
        assert_eq!(port_of(&slice, &PortChoice::Name("x".to_owned())), Some(90));
        assert_eq!(
            port_of(&slice, &PortChoice::Name("dns".to_owned())),
            None,
            "UDP has no answer to wait for"
        );
        assert_eq!(port_of(&slice, &PortChoice::Number(9000)), Some(9000));
        assert_eq!(port_of(&EndpointSlice::default(), &PortChoice::First), None);
        let all: EndpointSlice = serde_json::from_str(r#"{"ports": [{"name":"","port":null}]}"#).unwrap();
        assert_eq!(port_of(&all, &PortChoice::First), None);
    }
}
