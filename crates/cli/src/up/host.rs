//! The addresses of this host, for its Node: those of the default routes, as a kubelet chooses them, or else of an interface.
//! They are followed.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use portolan_model::Family;
use portolan_proxy::packets;
use portolan_sock::SocketError;
use portolan_sock::addresses::Addresses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

/// Addresses that no host has (RFC 5737, RFC 3849). The default route leads to them.
const ELSEWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// How often the addresses are chosen again if none of them changes: the default route may have changed.
const RECHECK: Duration = Duration::from_secs(10);

/// The folder with the interfaces of this host.
const INTERFACES: &str = "/sys/class/net";

/// The addresses of the Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// One of each family, the primary family first.
    pub(super) ips: Vec<IpAddr>,
    /// Those that no default route has.
    without_route: Vec<IpAddr>,
}

/// What kind of interface has an address. The last one is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A bridge, such as that of containers.
    Bridge,
    /// Another one without a device, such as a tunnel or a bond.
    Virtual,
    /// One of a network device.
    Device,
}

impl Kind {
    /// Returns that of the interface with this name. One that is not listed is virtual.
    fn of(interface: &str) -> Self {
        let has = |name| Path::new(INTERFACES).join(interface).join(name).exists();
        match (has("bridge"), has("device")) {
            (true, _) => Self::Bridge,
            (false, true) => Self::Device,
            (false, false) => Self::Virtual,
        }
    }
}

/// Returns the addresses of this host.
pub(super) fn addresses() -> Chosen {
    let all = packets::addresses_with_interfaces().unwrap_or_else(|error| {
        tracing::warn!(%error, "the addresses of this host cannot be listed: they are looked at again in 10 s");
        Vec::new()
    });
    let all: Vec<_> = all.into_iter().map(|(ip, interface)| (ip, Kind::of(&interface))).collect();
    choose(ELSEWHERE.map(source), &all)
}

/// Warns of addresses that no default route has.
fn warn(Chosen { without_route, .. }: &Chosen) {
    if !without_route.is_empty() {
        let mend = "if other hosts reach this one at other addresses, set --node-ip";
        let consequence = "the Node has addresses of interfaces";
        tracing::warn!(addresses = ?without_route, consequence, mend, "no default route of their family");
    }
}

/// Follows the addresses of this host on a thread of its own, which runs until the process ends.
pub(super) fn follow() -> std::io::Result<watch::Receiver<Vec<IpAddr>>> {
    let mut known = addresses();
    warn(&known);
    let (sender, receiver) = watch::channel(known.ips.clone());
    thread::Builder::new().name("addresses".to_owned()).spawn(move || {
        let mut changes = packets::address_changes();
        if let Err(error) = &changes {
            tracing::warn!(%error, "no notifications of changed addresses: they are looked at every 10 s");
        }
        loop {
            match changes.as_mut().map(wait) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "notifications of changed addresses end");
                    changes = Err(error);
                }
                Err(_) => {
                    thread::sleep(RECHECK);
                    changes = packets::address_changes();
                }
            }
            let present = addresses();
            if present.without_route != known.without_route {
                warn(&present);
            }
            if present.ips != known.ips {
                sender.send_replace(present.ips.clone());
            }
            known = present;
        }
    })?;
    Ok(receiver)
}

/// Waits until addresses change, at most for [`RECHECK`].
fn wait(events: &mut Addresses) -> Result<(), SocketError> {
    let timeout = Timespec::try_from(RECHECK).ok();
    let ready = poll(&mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN)], timeout.as_ref());
    // An error is a signal for this thread. Without an event, reading would wait.
    if ready.is_ok_and(|count| count > 0) {
        events.changed()?;
    }
    Ok(())
}

/// Returns the address from which this host sends to another one. Sends nothing.
fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Returns one address for each family: that of the default route, or else the lowest of the best kind of interface. A host
/// with neither has only loopback.
fn choose(of_routes: [Option<IpAddr>; 2], all: &[(IpAddr, Kind)]) -> Chosen {
    let mut chosen = Chosen::default();
    for family in Family::BOTH {
        let fits = |address: &IpAddr| Family::of(*address) == family && is_usable(*address);
        if let Some(ip) = of_routes.into_iter().flatten().find(fits) {
            chosen.ips.push(ip);
            continue;
        }
        let usable = all.iter().filter(|(ip, _)| fits(ip));
        if let Some((ip, _)) = usable.min_by_key(|(ip, kind)| (Reverse(*kind), *ip)) {
            chosen.ips.push(*ip);
            chosen.without_route.push(*ip);
        }
    }
    if chosen.ips.is_empty() {
        chosen.ips = all.iter().map(|(ip, _)| *ip).filter(IpAddr::is_loopback).take(1).collect();
    }
    chosen
}

/// Returns true if other hosts may reach the address.
fn is_usable(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || is_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(of_routes: [&str; 2], all: &[(&str, Kind)]) -> [Vec<String>; 2] {
        let of_routes = of_routes.map(|text| text.parse().ok());
        let all: Vec<_> = all.iter().map(|(text, kind)| (text.parse().unwrap(), *kind)).collect();
        let Chosen { ips, without_route } = choose(of_routes, &all);
        [ips, without_route].map(|ips| ips.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_default_route_decides_and_then_the_interfaces() {
        let all = ["10.0.0.1", "127.0.0.1", "169.254.0.1", "198.51.100.1", "::1", "2001:db8:1::1", "fe80::1"];
        let all = all.map(|text| (text, Kind::Virtual));
        let [ips, without_route] = chosen(["198.51.100.1", "2001:db8:1::1"], &all);
        assert_eq!(ips, ["198.51.100.1", "2001:db8:1::1"]);
        assert!(without_route.is_empty());
        let [ips, without_route] = chosen(["198.51.100.1", ""], &all);
        assert_eq!(
            (ips.as_slice(), without_route.join("")),
            (["198.51.100.1".to_owned(), "2001:db8:1::1".to_owned()].as_slice(), "2001:db8:1::1".to_owned())
        );
        let loopback = [("127.0.0.1", Kind::Virtual), ("fe80::1", Kind::Device)];
        assert_eq!(chosen(["127.0.0.1", "fe80::1"], &loopback), [vec!["127.0.0.1".to_owned()], Vec::new()]);
        assert_eq!(chosen(["", ""], &[]), [Vec::<String>::new(), Vec::new()]);
    }

    #[test]
    fn without_a_default_route_devices_come_before_bridges() {
        let mut all = vec![("10.0.0.1", Kind::Bridge), ("172.17.0.1", Kind::Bridge)];
        for (ip, kind) in
            [("172.20.0.1", Kind::Virtual), ("192.0.2.9", Kind::Device), ("192.0.2.7", Kind::Device)]
        {
            all.push((ip, kind));
            let [ips, without_route] = chosen(["", ""], &all);
            assert_eq!((ips.join(""), without_route), (ip.to_owned(), ips));
        }
        assert_eq!(chosen(["10.0.0.1", ""], &all), [vec!["10.0.0.1".to_owned()], Vec::new()]);
    }

    #[test]
    fn an_interface_that_is_not_listed_is_virtual() {
        assert_eq!(Kind::of("no-such-interface"), Kind::Virtual);
        assert_eq!(Kind::of("lo"), Kind::Virtual);
    }
}
