//! The network interfaces, with their addresses and the default routes.

use ipnet::IpNet;
use portolan_node::sysctl::Host;
use portolan_sock::{Protocol, Socket, SocketError, retry_on_change};
use portolan_wire::netlink::AttributeMap;
use portolan_wire::{DecodeError, Frame, route};

use crate::facts::Link;

/// Attributes of an interface (`linux/if_link.h`) that `portolan_wire::route::Link` leaves out.
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// Length of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

/// Default routes of the network namespace of this thread.
const ROUTES_IPV4: &str = "/proc/thread-self/net/route";
const ROUTES_IPV6: &str = "/proc/thread-self/net/ipv6_route";
/// `RTF_REJECT` (`linux/route.h`): the route refuses packets.
const REJECT: u32 = 0x200;

/// Returns the interfaces of the network namespace of this thread, by index.
pub(super) fn read(host: &Host) -> Result<Vec<Link>, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let mut links = retry_on_change(|| list(&mut socket))?;
    let addresses = retry_on_change(|| addresses(&mut socket))?;
    let mut ways = default_routes_ipv4(&host.read(ROUTES_IPV4).unwrap_or_default());
    ways.extend(default_routes_ipv6(&host.read(ROUTES_IPV6).unwrap_or_default()));
    for link in &mut links {
        let own = addresses.iter().filter(|(index, _)| *index == link.index);
        link.addresses = own.map(|(_, address)| *address).collect();
        link.has_default_route = ways.contains(&link.name);
    }
    Ok(links)
}

fn list(socket: &mut Socket) -> Result<Vec<Link>, SocketError> {
    let mut links = Vec::new();
    socket.dump(&mut route::links(), |frame| {
        if let route::RouteEvent::NewLink(link) = route::RouteEvent::decode(frame)? {
            links.push(details(frame, link)?);
        }
        Ok(())
    })?;
    links.sort_by_key(|link| link.index);
    Ok(links)
}

fn details(frame: &Frame<'_>, link: route::Link) -> Result<Link, DecodeError> {
    let map: AttributeMap<'_, 19> = frame.attributes("rtnetlink link", LINK_HEADER)?.by_kind()?;
    let number = |kind| map.get(kind).map(|attribute| attribute.u32_ne()).transpose();
    let kind = match map.get(IFLA_LINKINFO) {
        Some(info) => info.nested("rtnetlink link information").by_kind::<2>()?.string(IFLA_INFO_KIND),
        None => None,
    };
    Ok(Link {
        index: link.index,
        name: link.name,
        mtu: number(IFLA_MTU)?.unwrap_or(0),
        kind: kind.unwrap_or_default(),
        master: number(IFLA_MASTER)?,
        up: link.flags & route::IFF_UP != 0,
        ..Link::default()
    })
}

fn addresses(socket: &mut Socket) -> Result<Vec<(u32, IpNet)>, SocketError> {
    let mut found = Vec::new();
    socket.dump(&mut route::addresses(route::AF_UNSPEC), |frame| {
        if let route::RouteEvent::NewAddress(address) = route::RouteEvent::decode(frame)?
            && let Ok(network) = IpNet::new(address.local, address.prefix)
        {
            found.push((address.index, network));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the interfaces of default routes: lines with destination and mask 0.
fn default_routes_ipv4(text: &str) -> Vec<String> {
    let way = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, "00000000", _, flags, _, _, _, "00000000", ..] = fields.as_slice() else { return None };
        (u32::from_str_radix(flags, 16).ok()? & REJECT == 0).then(|| (*name).to_owned())
    };
    text.lines().filter_map(way).collect()
}

/// Returns the interfaces of default routes: lines with a destination of length 0. Those of `lo` refuse packets.
fn default_routes_ipv6(text: &str) -> Vec<String> {
    let way = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", _, _, _, _, _, _, flags, name] = fields.as_slice() else { return None };
        let usable = u32::from_str_radix(flags, 16).ok()? & REJECT == 0 && *name != "lo";
        (usable && destination.bytes().all(|digit| digit == b'0')).then(|| (*name).to_owned())
    };
    text.lines().filter_map(way).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes() {
        let ipv4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    cni0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                    tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n";
        assert_eq!(default_routes_ipv4(ipv4), ["eth0"]);
        let zero = "0".repeat(32);
        let ipv6 = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n\
             fd000000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     cni0\n"
        );
        assert_eq!(default_routes_ipv6(&ipv6), ["eth0"]);
        assert!(default_routes_ipv4("x").is_empty() && default_routes_ipv6("x").is_empty());
    }
}
