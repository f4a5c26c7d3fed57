//! Capture by redirect, and what differs from `tproxy` for a client.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_engine::Driven;
use portolan_iptables::{Programs, Variant};
use portolan_model::observed::Observed;
use portolan_model::{Backend, Change, Forwarding, Frontend, Protocol, ServicePortName};
use portolan_testkit::{Probe, ProbeResult, probe_many};
use portolan_userspace::{Userspace, read_redirect};

use crate::bed::*;

/// As with a pod in the host's network that serves behind an external IP of its node.
#[test]
fn a_backend_may_have_the_service_address() {
    serve_where_the_service_is(Bed::userspace);
}

#[test]
fn with_redirect_a_backend_may_have_the_service_address() {
    serve_where_the_service_is(Bed::redirect);
}

fn serve_where_the_service_is(open: impl Fn(&Bed) -> Driven<Userspace>) {
    let mut bed = Bed::new();
    let own = SocketAddr::from(([198, 51, 100, 77], PORT));
    for change in &mut bed.changes {
        let mut forwarding = Forwarding::clone(change.new.as_ref().unwrap());
        forwarding.cluster = Box::new([Backend { address: own.ip(), port: own.port(), may_hairpin: false }]);
        forwarding.frontends = Box::new([Frontend::ExternalIp(own.ip(), own.port())]);
        change.new = Some(Arc::new(forwarding));
    }
    bed.node().ip(&format!("addr add {}/32 dev lo", own.ip())).unwrap();
    bed.world.echo().listen(bed.node(), Protocol::Tcp, own).unwrap();
    let plane = open(&bed);
    let [.., pod] = bed.world.pods() else { panic!("no pod") };
    for _ in 0..4 {
        let probe = Probe::new(Protocol::Tcp, own);
        let results = probe_many(&[(pod.namespace(), probe)]).unwrap();
        assert!(matches!(results[..], [ProbeResult::Reached(_)]), "{results:?}");
    }
    let accepted = plane.relay().counters().accepted.load(Ordering::Relaxed);
    assert_eq!(accepted, 4, "the relay is not its own client");
}

/// All datagrams arrive at one port, and a client may use one port for all of them: conntrack has the original
/// destination.
#[test]
fn redirected_datagrams_of_one_client_find_their_services() {
    let mut bed = Bed::new();
    let others = [SocketAddr::from(([10, 96, 0, 2], 80)), SocketAddr::from(([10, 96, 0, 3], 81))];
    let udp = bed.changes[1].clone();
    let pods: Vec<IpAddr> = bed.world.pods().iter().take(2).map(|pod| pod.address(FAMILY)).collect();
    for (number, (at, pod)) in others.into_iter().zip(&pods).enumerate() {
        let mut forwarding = Forwarding::clone(udp.new.as_ref().unwrap());
        forwarding.cluster = Box::new([Backend { address: *pod, port: PORT, may_hairpin: false }]);
        forwarding.frontends = Box::new([Frontend::ClusterIp(at.ip(), at.port())]);
        let service = Arc::from(format!("other-{number}"));
        let name = Arc::new(ServicePortName { service, ..(*udp.name).clone() });
        bed.changes.push(Change { name, new: Some(Arc::new(forwarding)), ..udp.clone() });
    }
    let plane = bed.redirect();
    for from in [bed.world.client().namespace(), bed.node()] {
        for (at, pod) in [others, [others[1], others[0]]].concat().into_iter().zip([0, 1, 1, 0]) {
            let flow = (from, Probe::new(Protocol::Udp, at).from_port(40_000));
            let [ProbeResult::Reached(reached)] = probe_many(&[flow]).unwrap()[..] else {
                panic!("{at} is not reached");
            };
            assert_eq!(reached.backend.ip(), pods[pod], "{at}");
        }
    }
    drop(plane);
}

/// Both connections have the same tuple of replies once they are translated to the relay's listener.
#[test]
fn a_client_uses_one_port_for_two_services() {
    for open in [Bed::userspace, Bed::redirect] {
        let mut bed = Bed::new();
        let other = SocketAddr::from(([10, 96, 0, 2], 80));
        let tcp = bed.changes[0].clone();
        let mut forwarding = Forwarding::clone(tcp.new.as_ref().unwrap());
        forwarding.frontends = Box::new([Frontend::ClusterIp(other.ip(), other.port())]);
        let name = Arc::new(ServicePortName { service: Arc::from("other"), ..(*tcp.name).clone() });
        bed.changes.push(Change { name, new: Some(Arc::new(forwarding)), ..tcp });
        let _plane = open(&bed);
        let clients = [bed.world.client().namespace(), bed.world.pods()[2].namespace(), bed.node()];
        for (number, client) in clients.into_iter().enumerate() {
            client.output("sysctl", &["-q", "-w", "net.ipv4.ip_local_port_range=45000 45000"]).unwrap();
            let connect = |to| client.run(|| TcpStream::connect_timeout(&to, SHORT)).unwrap();
            let _first = connect(vip()).unwrap();
            let second = connect(other);
            assert!(second.is_ok(), "client {number}: {second:?}");
        }
    }
}

#[test]
fn the_listeners_are_reachable_through_services_only() {
    let bed = Bed::new();
    let plane = bed.redirect();
    let address = bed.world.node().address(FAMILY);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for from in [bed.world.client().namespace(), bed.node()] {
            for port in [plane.relay().options().ports.cluster, plane.relay().options().ports.local] {
                let probe = Probe::new(protocol, SocketAddr::new(address, port));
                let results = probe_many(&[(from, probe)]).unwrap();
                assert!(matches!(results[..], [ProbeResult::Refused]), "{protocol} {port}: {results:?}");
            }
        }
    }
    let strays = plane.relay().counters().unknown.load(Ordering::Relaxed);
    assert_eq!(strays, 0, "the kernel refuses");
}

/// The rules hold the frontends; the relay's table has the endpoints.
#[test]
fn the_rules_of_a_redirect_read_back_with_and_without_the_relays_table() {
    let bed = Bed::new();
    let plane = bed.redirect();
    let table: Vec<_> =
        bed.changes.iter().filter_map(|change| Some((change.name.clone(), change.new.clone()?))).collect();
    let texts = |observed: &Observed| -> Vec<String> {
        observed.difference(&table).iter().map(ToString::to_string).collect()
    };
    bed.at_node(|| {
        let programs = Programs::of(FAMILY, Variant::Nft).unwrap();
        let differences = |relay| texts(&read_redirect(&programs, FAMILY, relay).unwrap().unwrap());
        assert_eq!(differences(None), [""; 0]);
        assert_eq!(differences(Some(plane.relay())), [""; 0]);
        let without = |change: &Change| {
            let new =
                Forwarding { cluster: Box::default(), ..Forwarding::clone(change.new.as_ref().unwrap()) };
            Change { new: Some(Arc::new(new)), ..change.clone() }
        };
        plane.relay().apply(FAMILY, bed.changes.iter().map(without).collect());
        assert_eq!(differences(Some(plane.relay())).len(), 4, "two endpoints of two protocols");
        plane.relay().apply(FAMILY, bed.changes.clone());
        assert_eq!(portolan_iptables::read(&programs, FAMILY).unwrap(), None, "it is not the iptables mode");
        let flush = "*nat\n-F KUBE-SERVICES\nCOMMIT\n";
        programs.restore(|out| out.write_str(flush)).unwrap();
        let missing = [
            "default/web (TCP): cluster IP 10.96.0.1:80 is not programmed",
            "default/web (UDP): cluster IP 10.96.0.1:80 is not programmed",
        ];
        assert_eq!(differences(None), missing);
        assert_eq!(differences(Some(plane.relay())), missing);
    });
}
