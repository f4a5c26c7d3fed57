//! Decodes ICMP errors: the flow that they refer to, and whether they refuse it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_model::{Family, Protocol};

use crate::probe::ProbeResult;
use crate::sctp::{strip_ipv4_header, u16_at};
use crate::socket::Flow;

/// Type "destination unreachable" and its code for ports, RFC 792.
const V4_UNREACHABLE: u8 = 3;
const V4_PORT: u8 = 3;
/// Type "destination unreachable" and its code for ports, RFC 4443 section 3.1.
const V6_UNREACHABLE: u8 = 1;
const V6_PORT: u8 = 4;

/// Length of the ICMP header, before the quoted packet.
const HEADER_BYTES: usize = 8;
const IPV6_HEADER_BYTES: usize = 40;

/// Decodes a message from a raw ICMP socket; `None` if it is not an error about a TCP, UDP or SCTP flow.
pub(crate) fn decode(family: Family, packet: &[u8]) -> Option<(Flow, ProbeResult)> {
    let (message, unreachable, port) = match family {
        Family::Ipv4 => (strip_ipv4_header(packet)?, V4_UNREACHABLE, V4_PORT),
        Family::Ipv6 => (packet, V6_UNREACHABLE, V6_PORT),
    };
    if *message.first()? != unreachable {
        return None;
    }
    let refused = *message.get(1)? == port;
    let flow = quoted_flow(family, message.get(HEADER_BYTES..)?)?;
    Some((flow, if refused { ProbeResult::Refused } else { ProbeResult::Unreachable }))
}

fn quoted_flow(family: Family, quoted: &[u8]) -> Option<Flow> {
    let (protocol, destination, transport): (u8, IpAddr, &[u8]) = match family {
        Family::Ipv4 => {
            let address: [u8; 4] = *quoted.get(16..)?.first_chunk()?;
            (*quoted.get(9)?, Ipv4Addr::from(address).into(), strip_ipv4_header(quoted)?)
        }
        Family::Ipv6 => {
            let address: [u8; 16] = *quoted.get(24..)?.first_chunk()?;
            (*quoted.get(6)?, Ipv6Addr::from(address).into(), quoted.get(IPV6_HEADER_BYTES..)?)
        }
    };
    let protocol =
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == protocol)?;
    let (source_port, destination_port) = (u16_at(transport, 0)?, u16_at(transport, 2)?);
    Some((protocol, source_port, SocketAddr::new(destination, destination_port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoting(kind: u8, code: u8, inner: &[u8]) -> Vec<u8> {
        [&[kind, code, 0, 0, 0, 0, 0, 0], inner].concat()
    }

    #[test]
    fn port_unreachable_refuses_the_quoted_flow() {
        let mut ip = [0_u8; 20];
        ip[0] = 0x45;
        let mut quoted = ip;
        quoted[9] = 17;
        quoted[16..20].copy_from_slice(&[10, 96, 0, 1]);
        let inner = [&quoted[..], &[0x9c, 0x40, 0, 53, 0, 0, 0, 0]].concat();
        let packet = |code| [&ip[..], &quoting(3, code, &inner)].concat();
        let flow = (Protocol::Udp, 40_000, "10.96.0.1:53".parse().unwrap());
        assert_eq!(decode(Family::Ipv4, &packet(3)), Some((flow, ProbeResult::Refused)));
        assert_eq!(decode(Family::Ipv4, &packet(1)), Some((flow, ProbeResult::Unreachable)));
        assert_eq!(decode(Family::Ipv4, &packet(3)[..40]), None);
    }

    #[test]
    fn other_messages_are_ignored() {
        assert_eq!(decode(Family::Ipv6, &quoting(135, 0, &[0; 48])), None);
    }
}
