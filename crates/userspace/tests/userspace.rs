//! The userspace mode beside other modes: no connection is lost while one mode takes over from another.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test program"
)]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_engine::Driven;
use portolan_iptables::{Programs, Variant};
use portolan_model::observed::Observed;
use portolan_model::{
    Backend, Capture, Change, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Protocol,
    ServicePortName, Settings,
};
use portolan_nftables::Nftables;
use portolan_relay::Options;
use portolan_sock::{Protocol as SocketProtocol, Socket};
use portolan_testkit::{
    Namespace, Probe, ProbeResult, Traffic, TrafficPlan, TrafficReport, World, eventually, probe_many,
};
use portolan_userspace::{Remains, Userspace, read_redirect, spawn_translated};
use portolan_wire::nftables::{Family as WireFamily, IfExists, Table, Transaction};

const FAMILY: Family = Family::Ipv4;
const PORT: u16 = 8080;
/// How long the traffic runs in each mode.
const WHILE: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(120);
/// A SYN that is repeated arrives within this time, but not one of a connection that the kernel refuses to track.
const SHORT: Duration = Duration::from_secs(20);

fn vip() -> SocketAddr {
    SocketAddr::from(([10, 96, 0, 1], 80))
}

fn settings() -> Settings {
    Settings {
        family: FAMILY,
        local_detector: LocalDetector::None,
        masquerade_all: true,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: None,
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
    }
}

fn service(backends: &[IpAddr]) -> Vec<Change> {
    let [namespace, service, port] = ["default", "web", ""].map(Arc::from);
    let name = |protocol| {
        let (namespace, service, port) = (Arc::clone(&namespace), Arc::clone(&service), Arc::clone(&port));
        Arc::new(ServicePortName { namespace, service, port, protocol })
    };
    let backend = |&address: &IpAddr| Backend { address, port: PORT, may_hairpin: false };
    let forwarding = |protocol| Forwarding::plain(vip(), protocol, backends.iter().map(backend).collect());
    let change = |protocol| {
        let new = Some(Arc::new(forwarding(protocol)));
        Change { name: name(protocol), family: FAMILY, old: None, new }
    };
    vec![change(Protocol::Tcp), change(Protocol::Udp)]
}

/// A node with a Service of two pods, and clients in a pod, on the node and outside.
struct Bed {
    world: World,
    changes: Vec<Change>,
}

impl Bed {
    fn new() -> Self {
        let world = World::builder().pods(3).remote_pods(1).build().unwrap();
        let backends: Vec<IpAddr> = world.pods().iter().take(2).map(|pod| pod.address(FAMILY)).collect();
        for pod in world.pods().iter().take(2) {
            world.serve(pod, Protocol::Tcp, PORT).unwrap();
            world.serve(pod, Protocol::Udp, PORT).unwrap();
        }
        Self { world, changes: service(&backends) }
    }

    /// Gives the Service one backend in the first pod, and returns its address. The test opens the listener.
    fn backend_of_its_own(&mut self) -> SocketAddr {
        let address = SocketAddr::new(self.world.pods()[0].address(FAMILY), PORT + 1);
        let backend = Backend { address: address.ip(), port: address.port(), may_hairpin: false };
        for change in &mut self.changes {
            let new = Forwarding::plain(vip(), change.name.protocol, Box::new([backend]));
            change.new = Some(Arc::new(new));
        }
        address
    }

    fn node(&self) -> &Namespace {
        self.world.node().namespace()
    }

    fn nftables(&self) -> Driven<Nftables> {
        self.at_node(|| {
            let mut plane = Driven::new(settings(), Nftables::open(settings()).unwrap());
            plane.apply(&self.changes).unwrap();
            plane.resync().unwrap();
            plane
        })
    }

    fn userspace(&self) -> Driven<Userspace> {
        self.userspace_with(Options::default())
    }

    fn userspace_with(&self, options: Options) -> Driven<Userspace> {
        self.at_node(|| {
            let relay = portolan_relay::spawn(&[FAMILY], options).unwrap();
            let mut plane = Driven::new(settings(), Userspace::open(settings(), relay).unwrap());
            plane.apply(&self.changes).unwrap();
            plane.resync().unwrap();
            plane
        })
    }

    /// Opens a data plane that captures by redirect, with the kernel setting that the agent writes for it.
    fn redirect(&self) -> Driven<Userspace> {
        self.node().output("sysctl", &["-q", "-w", "net.ipv4.tcp_early_demux=0"]).unwrap();
        self.at_node(|| {
            let options = Options { capture: Capture::Redirect, ..Options::default() };
            let relay = spawn_translated(&[FAMILY], options).unwrap();
            let programs = Programs::of(FAMILY, Variant::Nft).unwrap();
            let plane =
                Userspace::open_redirect(programs, settings(), portolan_iptables::Options::default(), relay);
            let mut plane = Driven::new(settings(), plane);
            plane.apply(&self.changes).unwrap();
            plane.resync().unwrap();
            plane
        })
    }

    fn at_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.node().run(work).unwrap()
    }

    /// Starts traffic from a pod, from the node itself and from outside.
    fn traffic(&self) -> Vec<Traffic> {
        let [.., pod] = self.world.pods() else { panic!("no pod") };
        let from = [pod.namespace(), self.node(), self.world.client().namespace()];
        let plan = TrafficPlan { tcp: Some(vip()), ..TrafficPlan::default() };
        from.map(|namespace| Traffic::start(namespace, plan).unwrap()).into()
    }
}

fn assert_lossless(traffic: Vec<Traffic>) {
    let reports: Vec<TrafficReport> = traffic.into_iter().map(|traffic| traffic.stop().unwrap()).collect();
    for report in &reports {
        assert!(report.is_lossless() && report.connections_ok > 100, "{report}");
    }
}

/// Waits while the traffic goes on.
fn a_while() {
    let until = Instant::now() + WHILE;
    eventually(PATIENCE, "a while", || Instant::now() >= until).unwrap();
}

#[test]
fn modes_take_over_from_each_other_under_load_and_nothing_is_lost() {
    let bed = Bed::new();
    let mut nftables = bed.nftables();
    let traffic = bed.traffic();
    a_while();
    let mut userspace = bed.userspace();
    a_while();
    bed.at_node(|| nftables.remove()).unwrap();
    // Existing streams are still translated; new connections go through the relay.
    a_while();
    let later = bed.traffic();
    a_while();
    let flow = (bed.world.client().namespace(), Probe::new(Protocol::Udp, vip()).from_port(40_000));
    assert!(matches!(probe_many(&[flow]).unwrap()[..], [ProbeResult::Reached(_)]), "a flow of the relay");
    let mut nftables = bed.nftables();
    a_while();
    let chain =
        |name| bed.node().output("nft", &["list", "chain", "ip", "portolan-userspace", name]).unwrap();
    // Packets of this node that are already marked still reach the relay; new ones are not marked.
    let parted = || {
        assert!(bed.at_node(|| userspace.remove_part(None)).unwrap());
        !chain("capture-output").contains("mark set")
    };
    eventually(PATIENCE, "the first part of the capture is gone", parted).unwrap();
    assert!(chain("capture-prerouting").contains("jump services"), "{}", chain("capture-prerouting"));
    assert!(userspace.relay().is_captured_for());
    let ended = || {
        bed.at_node(|| userspace.remove_part(None)).unwrap();
        !userspace.relay().is_captured_for()
    };
    eventually(PATIENCE, "the end of the capture", ended).unwrap();
    assert!(
        matches!(probe_many(&[flow]).unwrap()[..], [ProbeResult::Reached(_)]),
        "the same flow in the other mode"
    );
    a_while();
    assert!(bed.at_node(|| userspace.remove_part(None)).unwrap(), "the relay has streams");
    assert_lossless(traffic);
    assert_lossless(later);
    let done = || !bed.at_node(|| userspace.remove_part(None)).unwrap();
    eventually(PATIENCE, "the end of the relay's work", done).unwrap();
    let rules =
        bed.node().output("ip", &["rule"]).unwrap() + &bed.node().output("nft", &["list", "tables"]).unwrap();
    assert!(!rules.contains("28783") && !rules.contains("portolan-"), "{rules}");
    bed.at_node(|| nftables.remove()).unwrap();
}

#[test]
fn a_restart_under_load_loses_no_new_connection() {
    let bed = Bed::new();
    let old = bed.userspace();
    let traffic = {
        let plan = TrafficPlan { tcp: Some(vip()), streams: 0, ..TrafficPlan::default() };
        let [.., pod] = bed.world.pods() else { panic!("no pod") };
        vec![Traffic::start(pod.namespace(), plan).unwrap()]
    };
    a_while();
    let new = bed.userspace();
    a_while();
    old.relay().drain(PATIENCE);
    drop(old);
    a_while();
    assert_lossless(traffic);
    drop(new);
}

#[test]
fn a_connection_outlasts_its_service() {
    let bed = Bed::new();
    let mut plane = bed.userspace();
    let [.., pod] = bed.world.pods() else { panic!("no pod") };
    let plan = TrafficPlan { tcp: Some(vip()), connections_per_second: 0, ..TrafficPlan::default() };
    let traffic = Traffic::start(pod.namespace(), plan).unwrap();
    let gone: Vec<Change> = bed
        .changes
        .iter()
        .map(|change| Change { old: change.new.clone(), new: None, ..change.clone() })
        .collect();
    for forgotten in [false, true] {
        if forgotten {
            bed.node().output("conntrack", &["-F"]).unwrap();
        } else {
            bed.at_node(|| plane.apply(&gone)).unwrap();
        }
        a_while();
    }
    let report = traffic.stop().unwrap();
    assert!(report.is_lossless() && report.stream_lines > 200, "{report}");
}

/// The relay's next answer then looks like the first packet of a connection.
#[test]
fn a_connection_of_this_node_survives_conntrack_deletion() {
    let mut bed = Bed::new();
    let address = bed.backend_of_its_own();
    let listener = bed.world.pods()[0].namespace().run(|| TcpListener::bind(address)).unwrap().unwrap();
    let _plane = bed.userspace();
    let mut client = bed.at_node(|| TcpStream::connect(vip())).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut read = [0];
    for _ in 0..3 {
        bed.node().output("conntrack", &["-F"]).unwrap();
        server.write_all(b"s").unwrap();
        client.read_exact(&mut read).unwrap();
        client.write_all(b"c").unwrap();
        server.read_exact(&mut read).unwrap();
    }
}

/// The relay's socket of the previous connection is still in `TIME_WAIT`, since the backend ended that connection first.
#[test]
fn a_client_uses_its_port_again_at_once() {
    let mut bed = Bed::new();
    let address = bed.backend_of_its_own();
    let [first, .., client] = bed.world.pods() else { panic!("no pods") };
    let listener = first.namespace().run(|| TcpListener::bind(address)).unwrap().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"bye");
        }
    });
    let plane = bed.userspace();
    let only_port = "net.ipv4.ip_local_port_range=45000 45000";
    client.namespace().output("sysctl", &["-q", "-w", only_port]).unwrap();
    for number in 1..=10 {
        let mut stream = client.namespace().run(|| TcpStream::connect(vip())).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut read = String::new();
        stream.read_to_string(&mut read).unwrap();
        assert_eq!(read, "bye");
        drop(stream);
        let waits = || {
            let ended = bed.node().output("ss", &["-Htan", "state", "time-wait"]).unwrap();
            ended.contains(&format!("{}:45000", client.address(FAMILY)))
        };
        eventually(PATIENCE, "the relay's side", waits).unwrap();
        assert_eq!(plane.relay().counters().accepted.load(Ordering::Relaxed), number);
    }
    // A client whose SYN matches such a socket would reset it and try again.
    let counters = client.namespace().output("nstat", &["-asz", "TcpOutRsts"]).unwrap();
    let resets = counters.lines().find_map(|line| line.strip_prefix("TcpOutRsts")).unwrap();
    assert_eq!(resets.split_whitespace().next(), Some("0"), "{counters}");
}

#[test]
fn a_damaged_table_is_mended() {
    let bed = Bed::new();
    let mut plane = bed.userspace();
    let same = |commit: portolan_engine::Commit| (commit.elements, commit.objects) == (0, 0);
    assert!(same(bed.at_node(|| plane.resync()).unwrap()));
    for damage in [
        "delete table ip portolan-relay",
        "flush chain ip portolan-relay prerouting",
        "delete table ip portolan-userspace",
        "flush map ip portolan-userspace services",
        "flush chain ip portolan-userspace capture-prerouting",
        "flush chain ip portolan-userspace capture-output",
    ] {
        bed.node().output("nft", &[damage]).unwrap();
        assert!(!same(bed.at_node(|| plane.resync()).unwrap()), "{damage}");
        assert!(same(bed.at_node(|| plane.resync()).unwrap()), "{damage}");
    }
    for damage in ["rule del pref 500", "route flush table 28783"] {
        bed.node().ip(damage).unwrap();
        assert!(!bed.at_node(|| plane.is_intact()).unwrap(), "{damage}");
        assert!(bed.at_node(|| plane.is_intact()).unwrap(), "looking has mended it");
        bed.node().ip(damage).unwrap();
        assert!(!same(bed.at_node(|| plane.resync()).unwrap()), "{damage}");
        assert!(same(bed.at_node(|| plane.resync()).unwrap()), "{damage}");
    }
    drop(plane);
    bed.at_node(|| Driven::new(settings(), Remains::new(FAMILY)).remove()).unwrap();
    let left = bed.node().output("nft", &["list", "ruleset"]).unwrap();
    assert!(!left.contains("portolan"), "{left}");
}

/// Gives the table of the relay's connections an owner. Other programs cannot change it while the owner's socket is open.
fn own_connections_table() -> Socket {
    const OWNED: u32 = 2;
    let mut owner = Socket::open(SocketProtocol::Netfilter).unwrap();
    let mut transaction = Transaction::begin(owner.next_sequence(2), None);
    transaction.delete_table(WireFamily::IPV4, "portolan-relay");
    let table = Table { flags: OWNED, ..Table::new(WireFamily::IPV4, "portolan-relay") };
    transaction.new_table(&table, IfExists::Fail);
    owner.commit(&transaction.finish().unwrap()).unwrap();
    owner
}

/// Rules are written only after the table that they depend on.
#[test]
fn changes_wait_for_the_table_of_connections() {
    let bed = Bed::new();
    let mut plane = bed.userspace();
    let gone: Vec<Change> = bed.changes.iter().map(|change| Change { new: None, ..change.clone() }).collect();
    let owner = bed.at_node(own_connections_table);
    for changes in [&gone[..], &bed.changes[..1]] {
        assert!(bed.at_node(|| plane.compare(changes)).is_err());
    }
    drop(owner);
    bed.at_node(|| plane.compare(&[])).unwrap();
    let rules = bed.node().output("nft", &["list", "map", "ip", "portolan-userspace", "services"]).unwrap();
    assert!(rules.contains("10.96.0.1 . tcp . 80") && !rules.contains("udp"), "{rules}");
}

#[test]
fn endpoints_see_the_client_on_request() {
    let mut bed = Bed::new();
    let mut plane = bed.userspace();
    let ask = |bed: &Bed, protocol| {
        let [.., pod] = bed.world.pods() else { panic!("no pod") };
        let results = probe_many(&[(pod.namespace(), Probe::new(protocol, vip()))]).unwrap();
        results[0].seen_source().unwrap_or_else(|| panic!("{results:?}"))
    };
    let client = bed.world.pods().last().unwrap().address(FAMILY);
    for keep_client_address in [false, true, false] {
        for change in &mut bed.changes {
            let new = change.new.as_deref().unwrap().clone();
            change.new = Some(Arc::new(Forwarding { keep_client_address, ..new }));
        }
        bed.at_node(|| plane.apply(&bed.changes)).unwrap();
        for protocol in [Protocol::Tcp, Protocol::Udp].repeat(4) {
            let seen = ask(&bed, protocol);
            let own = bed.world.node().all_addresses().contains(&seen);
            assert_eq!(
                (seen == client, own),
                (keep_client_address, !keep_client_address),
                "{protocol} {seen}"
            );
        }
    }
}

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

/// Backends fail and recover all the time, and one always lives: no client is left without a backend.
#[test]
fn dying_backends_under_load_are_nobodys_loss_while_one_lives() {
    let mut bed = Bed::new();
    let pods: Vec<IpAddr> = bed.world.pods().iter().take(2).map(|pod| pod.address(FAMILY)).collect();
    // The third backend refuses, and the last one does not exist.
    let [.., pod] = bed.world.pods() else { panic!("no pod") };
    let all = [pods[0], pods[1], pod.address(FAMILY), "10.244.1.200".parse().unwrap()];
    bed.changes = service(&all);
    let quick = [50, 100, 200, 400].map(Duration::from_millis).to_vec();
    let plane = bed.userspace_with(Options { connect_limits: quick, ..Options::default() });
    let plan = TrafficPlan { tcp: Some(vip()), streams: 0, ..TrafficPlan::default() };
    let traffic = Traffic::start(bed.world.client().namespace(), plan).unwrap();
    for round in 0..6 {
        let dying = &bed.world.pods()[round % 2];
        let address = SocketAddr::new(dying.address(FAMILY), PORT);
        bed.world.echo().close(dying.namespace(), Protocol::Tcp, address).unwrap();
        let until = Instant::now() + WHILE / 3;
        eventually(PATIENCE, "a while", || Instant::now() >= until).unwrap();
        bed.world.echo().listen(dying.namespace(), Protocol::Tcp, address).unwrap();
    }
    let report = traffic.stop().unwrap();
    let nobody_left = plane.relay().counters().all_failed.load(Ordering::Relaxed);
    assert_eq!(nobody_left, 0, "one lives: {report}");
    // A backend takes the connections with it that it has begun to answer: few, unless the machine is slow.
    assert!(report.connections_failed * 20 <= report.connections_ok, "{report}");
    assert!(report.connections_ok > 100, "{report}");
    drop(plane);
}

#[test]
fn sctp_is_refused_with_a_reason() {
    let bed = Bed::new();
    let mut plane = bed.userspace();
    let sctp: Vec<Change> = bed.changes[..1]
        .iter()
        .map(|change| {
            let name = ServicePortName { protocol: Protocol::Sctp, ..(*change.name).clone() };
            let new = change.new.as_deref().map(|new| Forwarding { protocol: Protocol::Sctp, ..new.clone() });
            Change { name: Arc::new(name), family: FAMILY, old: None, new: new.map(Arc::new) }
        })
        .collect();
    let commit = bed.at_node(|| plane.apply(&sctp)).unwrap();
    let [refusal] = &commit.refused[..] else { panic!("{commit:?}") };
    assert!(refusal.name == sctp[0].name && refusal.reason.contains("SCTP"), "{refusal:?}");
    assert!(bed.at_node(|| plane.apply(&bed.changes)).unwrap().refused.is_empty(), "reported once");
    assert_eq!(bed.at_node(|| plane.resync()).unwrap().refused.len(), 1);
    let probe = Probe::new(Protocol::Sctp, vip());
    let outcome = probe_many(&[(bed.world.client().namespace(), probe)]).unwrap();
    assert!(matches!(outcome[..], [ProbeResult::Refused]), "{outcome:?}");
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
