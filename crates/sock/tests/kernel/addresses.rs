//! Changes of the node's addresses are reported, except for those of an ignored device.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portolan_sock::addresses::{self, Addresses};
use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::{Protocol, Socket};
use portolan_wire::route::path;

const IGNORED: &str = "kube-ipvs0";

fn run(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}

/// Runs many commands of `ip` in one process.
fn run_all(lines: impl Iterator<Item = String>) {
    let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = ip.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    assert!(ip.wait().unwrap().success());
}

#[test]
fn addresses_of_the_ignored_device_are_no_change() {
    in_new_network_namespace(|| {
        run("link add other type veth peer name peer");
        let mut addresses = Addresses::open(IGNORED).unwrap();
        // The device is created after that, as when the mode changes. It is recognized by its name; here it is no
        // dummy device, because not every kernel has those.
        run("link add kube-ipvs0 type veth peer name unused");
        run("addr add 10.96.0.1/32 dev kube-ipvs0");
        assert!(!addresses.changed().unwrap(), "the first");
        run_all((2..100).map(|last| format!("addr add 10.96.0.{last}/32 dev kube-ipvs0")));
        run("addr add fd00:10:96::1/128 dev kube-ipvs0");
        run("addr del 10.96.0.1/32 dev kube-ipvs0");
        assert!(!addresses.changed().unwrap());
        run("addr add 192.0.2.1/32 dev other");
        assert!(addresses.changed().unwrap());
        assert!(!addresses::list_except(IGNORED).unwrap().contains(&"10.96.0.2".parse().unwrap()));
        run("link del kube-ipvs0");
        assert!(!addresses.changed().unwrap(), "all of its addresses went");
        run("addr del 192.0.2.1/32 dev other");
        assert!(addresses.changed().unwrap());
    })
    .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace");
}

#[test]
fn a_new_ipv6_address_takes_packets_when_it_has_a_local_route() {
    in_new_network_namespace(|| {
        run("link add kube-ipvs0 type veth peer name unused");
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let mut is_local = |address: &str| {
            let mut found = false;
            let asked = socket.query(&mut path::to_ipv6(address.parse().unwrap()), |frame| {
                found |= path::is_local(frame);
                Ok(())
            });
            asked.is_ok() && found
        };
        assert!(!is_local("fd00:10:96::1"));
        run("addr add fd00:10:96::1/128 dev kube-ipvs0 nodad");
        run("link set kube-ipvs0 up");
        run("link set unused up");
        run("route add default dev unused");
        run("-6 route add default dev unused");
        let start = Instant::now();
        while !is_local("fd00:10:96::1") {
            assert!(start.elapsed() < Duration::from_secs(120), "no local route");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is_local("fd00:10:96::2"), "by the default route");
    })
    .unwrap();
}
