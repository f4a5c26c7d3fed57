//! What the kernel does with single packets by its routes.

use std::process::Command;
use std::time::{Duration, Instant};

use portolan_sock::Errno;
use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::routes::{Lead, Routes, is_local};
use portolan_wire::route::{AF_INET, AF_INET6};

fn run(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// Waits until these addresses are local. The kernel adds the routes of new IPv6 addresses in the background.
fn wait_for(addresses: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    for address in addresses {
        while !is_local(address.parse().unwrap()).unwrap() {
            assert!(Instant::now() < deadline, "{address} is not local");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn which_addresses_are_local() {
    in_new_network_namespace(|| {
        run("link set lo up");
        run("link add eth0 type veth peer name other");
        run("link set eth0 up");
        run("link set other up");
        for address in ["192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64 nodad", "2001:db8::2/64 nodad"] {
            run(&format!("addr add {address} dev eth0"));
        }
        run("route add unreachable 198.51.100.1");
        wait_for(&["2001:db8::1", "2001:db8::2"]);
        let local = ["127.0.0.1", "127.0.0.9", "::1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];
        let others =
            ["192.0.2.3", "192.0.2.255", "2001:db8::3", "198.51.100.1", "203.0.113.9", "2001:db8:9::9"];
        for (address, expected) in local.map(|it| (it, true)).into_iter().chain(others.map(|it| (it, false)))
        {
            assert_eq!(is_local(address.parse().unwrap()).unwrap(), expected, "{address}");
        }
    })
    .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace");
}

#[test]
fn where_packets_are_led() {
    in_new_network_namespace(|| {
        run("link set lo up");
        run("link add eth0 type veth peer name other");
        run("link add cali1 type veth peer name end");
        for link in ["eth0", "other", "cali1"] {
            run(&format!("link set {link} up"));
        }
        run("addr add 192.0.2.1/24 dev eth0");
        run("addr add 2001:db8::1/64 dev eth0 nodad");
        wait_for(&["2001:db8::1"]);
        run("route add 10.244.1.2 dev cali1");
        run("-6 route add 2001:db8:1::2 dev cali1");
        for (kind, last) in [("unreachable", 3), ("prohibit", 4), ("blackhole", 5)] {
            run(&format!("route add {kind} 10.244.1.{last}"));
            run(&format!("-6 route add {kind} 2001:db8:1::{last}"));
        }
        let routes = Routes::open().unwrap();
        let leads = |ipv4: &str, ipv6: &str| {
            [ipv4, ipv6].map(|address| routes.lead(address.parse().unwrap()).unwrap())
        };
        let both = |lead: &Lead| [lead.clone(), lead.clone()];
        let through =
            |interface: &str, has_carrier| Lead::Through { interface: interface.to_owned(), has_carrier };
        assert_eq!(leads("192.0.2.1", "2001:db8::1"), both(&Lead::Here));
        assert_eq!(leads("192.0.2.2", "2001:db8::2"), both(&through("eth0", true)));
        assert_eq!(leads("10.244.1.2", "2001:db8:1::2"), both(&through("cali1", false)));
        for (last, errno) in [(3, Errno::EHOSTUNREACH), (4, Errno::EACCES), (5, Errno::EINVAL)] {
            let found = leads(&format!("10.244.1.{last}"), &format!("2001:db8:1::{last}"));
            assert_eq!(found, both(&Lead::Refused(errno)), "{last}");
        }
        assert_eq!(leads("203.0.113.9", "2001:db8:9::9"), both(&Lead::Refused(Errno::ENETUNREACH)));
        for family in [AF_INET, AF_INET6] {
            assert_eq!(routes.policies(family).unwrap(), [], "those of every host do not count");
        }
        run("rule add from 192.0.2.0/24 table 100");
        run("rule add fwmark 0x10/0x10 table 100 priority 500");
        let policies = routes.policies(AF_INET).unwrap();
        let priorities: Vec<_> = policies.iter().map(|rule| rule.map(|rule| rule.priority)).collect();
        assert!(
            priorities.contains(&None) && priorities.contains(&Some(500)) && priorities.len() == 2,
            "{policies:?}"
        );
    })
    .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace");
}
