//! The userspace mode beside other modes: no connection is lost while one mode takes over from another.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test program"
)]

mod bed;
mod listing;
mod node_ports;
mod redirect;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_engine::Driven;
use portolan_model::{Change, Forwarding, Protocol, ServicePortName, Settings};
use portolan_relay::RelayOptions;
use portolan_sock::{Protocol as SocketProtocol, Socket};
use portolan_testkit::{Probe, ProbeResult, Traffic, TrafficPlan, eventually, probe_many};
use portolan_userspace::Remains;
use portolan_wire::nftables::{Family as WireFamily, IfExists, NftTable, Transaction};

use crate::bed::*;

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
fn another_mark_under_load_loses_nothing() {
    let bed = Bed::new();
    let mut plane = bed.userspace();
    let traffic = bed.traffic();
    for masquerade_bit in [12, 14].repeat(3) {
        a_while();
        plane.configure(Settings { masquerade_bit, ..settings() });
        bed.at_node(|| plane.resync()).unwrap();
        let rules = bed.node().output("ip", &["rule", "list", "table", "28783"]).unwrap();
        assert_eq!(rules.lines().count(), 1, "{rules}");
    }
    a_while();
    assert_lossless(traffic);
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
    assert!(report.is_lossless() && report.stream_lines > 30, "{report}");
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
    let table = NftTable { flags: OWNED, ..NftTable::new(WireFamily::IPV4, "portolan-relay") };
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
    // Another test's child may have a copy of the owner's socket for a moment.
    let is_free = || bed.at_node(|| plane.compare(&[])).is_ok();
    eventually(PATIENCE, "the table has no owner any more", is_free).unwrap();
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

/// Backends fail and recover all the time, and one always lives: every connection gets an answer. A backend takes with it only
/// those that it has answered.
#[test]
fn dying_backends_under_load_lose_no_connection_while_one_lives() {
    let mut bed = Bed::new();
    let pods: Vec<IpAddr> = bed.world.pods().iter().take(2).map(|pod| pod.address(FAMILY)).collect();
    // The third backend refuses, and the last one does not exist.
    let [.., pod] = bed.world.pods() else { panic!("no pod") };
    let all = [pods[0], pods[1], pod.address(FAMILY), "10.244.1.200".parse().unwrap()];
    bed.changes = service(&all);
    let quick = [50, 100, 200, 400].map(Duration::from_millis).to_vec();
    let plane = bed.userspace_with(RelayOptions { connect_limits: quick, ..RelayOptions::default() });
    let plan = TrafficPlan { tcp: Some(vip()), ..TrafficPlan::default() };
    let traffic = Traffic::start(bed.world.client().namespace(), plan).unwrap();
    let served = |address: SocketAddr| -> u64 {
        let entries = plane.relay().snapshot(FAMILY).unwrap();
        entries.iter().filter_map(|relayed| relayed.by_backend.get(&address)).sum()
    };
    for round in 0..6 {
        let dying = &bed.world.pods()[round % 2];
        let address = SocketAddr::new(dying.address(FAMILY), PORT);
        bed.world.echo().close(dying.namespace(), Protocol::Tcp, address).unwrap();
        let until = Instant::now() + WHILE / 3;
        eventually(PATIENCE, "a while", || Instant::now() >= until).unwrap();
        let before = served(address);
        bed.world.echo().listen(dying.namespace(), Protocol::Tcp, address).unwrap();
        // Until then, a connection that it has refused may still need the other backend.
        eventually(PATIENCE, "it serves again", || served(address) > before).unwrap();
    }
    let report = traffic.stop().unwrap();
    let without_backend = plane.relay().counters().all_failed.load(Ordering::Relaxed);
    assert_eq!(without_backend, 0, "one lives: {report}");
    assert_eq!(report.connections_failed, 0, "none fails before its first byte: {report}");
    assert!(report.connections_ok > 100, "{report}");
    // Streams have had their first byte, and each of both backends has died.
    assert_eq!(report.streams_broken, report.streams, "{report}");
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
