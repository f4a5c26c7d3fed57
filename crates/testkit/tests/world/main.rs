//! Tests of the world: reachability of all participants, each kind of refusal, and that nothing is left behind.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program: its helpers fail the test, too"
)]

mod leftovers;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_testkit::{Addresses, Family, Namespace, Probe, ProbeResult, Protocol, World, probe_many};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
const PORT: u16 = 8080;
/// Deadline of a wait. Only a failure takes longer.
const DEADLINE: Duration = Duration::from_secs(180);

fn virtual_address(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::from([10, 96, 0, 1]),
        Family::Ipv6 => "fd00:10:96::1".parse().unwrap(),
    }
}

fn every_protocol_and_family() -> impl Iterator<Item = (Protocol, Family)> {
    PROTOCOLS.into_iter().flat_map(|protocol| Family::BOTH.map(|family| (protocol, family)))
}

/// Adds rules on the node. `%` stands for the family's `ip` or `ip6`.
fn add_rules(world: &World, rules: &str) {
    for family in ["ip", "ip6"] {
        world.node().namespace().output_with_input("nft", &["-f", "-"], &rules.replace('%', family)).unwrap();
    }
}

/// Returns all senders: the node, the remote node, the client, a pod of each node.
fn senders(world: &World) -> Vec<(&Namespace, Addresses)> {
    let pods = [world.client(), &world.pods()[0], &world.remote_pods()[0]];
    let nodes = [world.node(), world.remote_node()].map(|node| (node.namespace(), node.addresses()));
    nodes.into_iter().chain(pods.map(|pod| (pod.namespace(), pod.addresses()))).collect()
}

/// Probes the virtual address from all senders, in every protocol and family, and returns the results.
fn probe_virtual_address(world: &World, timeout: Duration) -> Vec<(String, ProbeResult)> {
    let mut probes = Vec::new();
    for (namespace, _) in senders(world) {
        for (protocol, family) in every_protocol_and_family() {
            let destination = SocketAddr::new(virtual_address(family), PORT);
            probes.push((namespace, Probe::new(protocol, destination).timeout(timeout)));
        }
    }
    let names = probes
        .iter()
        .map(|(from, probe)| format!("{} {} {}", from.name(), probe.protocol, probe.destination));
    let names: Vec<_> = names.collect();
    names.into_iter().zip(probe_many(&probes).unwrap()).collect()
}

#[test]
fn everybody_reaches_every_pod_and_is_seen_as_itself() {
    let world = World::builder().pods(3).remote_pods(2).build().unwrap();
    let pods: Vec<_> = world.pods().iter().chain(world.remote_pods()).chain([world.client()]).collect();
    let mut probes = Vec::new();
    let mut expected = Vec::new();
    for pod in &pods {
        for protocol in PROTOCOLS {
            world.serve(pod, protocol, PORT).unwrap();
        }
    }
    for (namespace, own) in senders(&world) {
        for pod in &pods {
            for (protocol, family) in every_protocol_and_family() {
                let backend = SocketAddr::new(pod.address(family), PORT);
                probes.push((namespace, Probe::new(protocol, backend).from(own.of(family))));
                expected.push((backend, own.of(family)));
            }
        }
    }
    for ((probe, expected), result) in probes.iter().zip(expected).zip(probe_many(&probes).unwrap()) {
        let seen = result.backend().zip(result.seen_source());
        assert_eq!(seen, Some(expected), "{} {:?}: {result:?}", probe.0.name(), probe.1);
    }
}

#[test]
fn six_pods_two_nodes_and_a_client_are_up() {
    let world = World::builder().pods(6).remote_pods(2).build().unwrap();
    let ready = world.node().namespace().output("ip", &["-o", "link", "show", "up"]).unwrap();
    assert_eq!(ready.lines().count(), 9, "lo, two links, six pods: {ready}");
    assert!(ready.contains(" pod6@"), "{ready}");
}

#[test]
fn a_port_without_responder_refuses() {
    let world = World::builder().pods(2).remote_pods(0).build().unwrap();
    let (from, to) = (world.pods()[0].namespace(), &world.pods()[1]);
    world.serve(to, Protocol::Sctp, PORT).unwrap();
    for (protocol, family) in every_protocol_and_family() {
        let closed = SocketAddr::new(to.address(family), PORT + 1);
        assert_eq!(
            from.probe(Probe::new(protocol, closed)).unwrap(),
            ProbeResult::Refused,
            "{protocol} {closed}"
        );
    }
}

#[test]
fn a_closed_responder_refuses_at_once_and_takes_its_connections_along() {
    let world = World::builder().pods(1).remote_pods(0).build().unwrap();
    let pod = &world.pods()[0];
    let at = SocketAddr::new(pod.address(Family::Ipv4), PORT);
    for protocol in PROTOCOLS {
        world.serve(pod, protocol, PORT).unwrap();
    }
    let mut stream = pod.namespace().run(|| TcpStream::connect(at)).unwrap().unwrap();
    let mut greeting = [0; 64];
    assert!(stream.read(&mut greeting).unwrap() > 0);
    for protocol in PROTOCOLS {
        let probe = Probe::new(protocol, at);
        world.echo().close(pod.namespace(), protocol, at).unwrap();
        assert_eq!(pod.namespace().probe(probe).unwrap(), ProbeResult::Refused, "{protocol} closed");
        world.echo().listen(pod.namespace(), protocol, at).unwrap();
        assert_eq!(pod.namespace().probe(probe).unwrap().backend(), Some(at), "{protocol} opened again");
    }
    assert_eq!(stream.read(&mut greeting).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_reject_rule_refuses_at_once_for_every_sender() {
    let world = World::new().unwrap();
    for hook in ["forward", "output"] {
        // The rule must not refuse all packets, because the refusals are packets, too.
        let rules = "tcp dport 8080 reject with tcp reset; meta l4proto { udp, sctp } th dport 8080 reject";
        add_rules(
            &world,
            &format!("table % t {{ chain {hook} {{ type filter hook {hook} priority 0; {rules}; }}; }}"),
        );
    }
    for (name, result) in probe_virtual_address(&world, Duration::from_millis(500)) {
        assert_eq!(result, ProbeResult::Refused, "{name}");
    }
}

#[test]
fn tcp_that_is_refused_by_an_icmp_error_is_refused_late() {
    let world = World::builder().pods(1).remote_pods(1).build().unwrap();
    for hook in ["forward", "output"] {
        let rule = "meta l4proto { tcp, udp } th dport 8080 reject";
        add_rules(
            &world,
            &format!("table % t {{ chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}; }}"),
        );
    }
    for namespace in [world.node().namespace(), world.pods()[0].namespace()] {
        for family in Family::BOTH {
            let at = SocketAddr::new(virtual_address(family), PORT);
            let result = |protocol| namespace.probe(Probe::new(protocol, at)).unwrap();
            assert_eq!(result(Protocol::Tcp), ProbeResult::RefusedLate, "{} {at}", namespace.name());
            assert_eq!(result(Protocol::Udp), ProbeResult::Refused, "{} {at}", namespace.name());
        }
    }
}

#[test]
fn five_hundred_refusals_at_once_are_all_noticed() {
    let world = World::builder().pods(1).remote_pods(0).build().unwrap();
    add_rules(
        &world,
        "table % t { chain forward { type filter hook forward priority 0; meta l4proto tcp reject with tcp reset; \
         meta l4proto { udp, sctp } reject; }; }",
    );
    let probes: Vec<_> = (0..750)
        .map(|number: u16| {
            let (protocol, family) = every_protocol_and_family().nth(usize::from(number % 6)).unwrap();
            Probe::new(protocol, SocketAddr::new(virtual_address(family), 1000 + number))
        })
        .collect();
    let results = world.client().namespace().probe_many(&probes).unwrap();
    let others: Vec<_> =
        probes.iter().zip(&results).filter(|(_, result)| **result != ProbeResult::Refused).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn dropped_packets_time_out_and_silence_does_not_hold_up_the_rest() {
    let world = World::new().unwrap();
    for hook in ["forward", "output"] {
        let rules = format!(
            "table % t {{ chain {hook} {{ type filter hook {hook} priority 0; th dport {PORT} drop; }}; }}"
        );
        add_rules(&world, &rules);
    }
    let silence =
        Probe::new(Protocol::Tcp, SocketAddr::new(virtual_address(Family::Ipv4), PORT)).expecting_silence();
    for (name, result) in probe_virtual_address(&world, silence.timeout) {
        assert_eq!(result, ProbeResult::TimedOut, "{name}");
    }
    // All probes wait at the same time. One after the other they would wait for longer than the deadline.
    let many = [silence.timeout(DEADLINE / 60); 100];
    let (client, (sender, results)) = (world.client().namespace().clone(), channel());
    std::thread::spawn(move || sender.send(client.probe_many(&many)));
    let results = results.recv_timeout(DEADLINE).unwrap().unwrap();
    assert!(results.iter().all(|result| *result == ProbeResult::TimedOut), "{results:?}");
}

#[test]
fn addresses_with_an_unreachable_route_are_unreachable() {
    let world = World::builder().pods(1).remote_pods(0).build().unwrap();
    let addresses = Family::BOTH.map(virtual_address);
    let routes = addresses.map(|address| format!("route add unreachable {address}\n")).concat();
    world.node().namespace().ip(&routes).unwrap();
    for (protocol, family) in every_protocol_and_family() {
        let probe = Probe::new(protocol, SocketAddr::new(virtual_address(family), PORT));
        for from in [world.client().namespace(), world.node().namespace()] {
            assert_eq!(
                from.probe(probe).unwrap(),
                ProbeResult::Unreachable,
                "{} {protocol} {family}",
                from.name()
            );
        }
    }
}

/// Rules written by hand, with the effect of Portolan's: all senders, including the backend pod itself, reach both
/// backends through a virtual address, with the node's address as the source.
#[test]
fn a_virtual_address_leads_to_local_and_remote_backends() {
    let world = World::new().unwrap();
    let backends = [&world.pods()[0], &world.remote_pods()[0]];
    for pod in backends {
        for protocol in PROTOCOLS {
            world.serve(pod, protocol, PORT).unwrap();
        }
    }
    for family in Family::BOTH {
        let (table, virtual_address) =
            (if family == Family::Ipv4 { "ip" } else { "ip6" }, virtual_address(family));
        let [one, two] = backends.map(|pod| pod.address(family));
        let nat = |hook, priority| {
            format!(
                "chain {hook} {{ type nat hook {hook} priority {priority}; {table} daddr {virtual_address} meta mark set 1 \
                 dnat to numgen inc mod 2 map {{ 0 : {one}, 1 : {two} }}; }};"
            )
        };
        let masquerade =
            "chain postrouting { type nat hook postrouting priority 100; meta mark 1 masquerade; };";
        let rules =
            format!("table {table} t {{ {} {} {masquerade} }}", nat("prerouting", -100), nat("output", -100));
        world.node().namespace().output_with_input("nft", &["-f", "-"], &rules).unwrap();
    }
    // Twice, so that each kind of sender reaches both backends in turn.
    let results: Vec<_> =
        (0..2).flat_map(|_| probe_virtual_address(&world, Duration::from_secs(2))).collect();
    for (name, result) in &results {
        let (backend, source) =
            result.backend().zip(result.seen_source()).unwrap_or_else(|| panic!("{name}: {result:?}"));
        assert!(
            backends.iter().any(|pod| pod.addresses().both().contains(&backend.ip())),
            "{name}: {backend}"
        );
        let own = world.node().all_addresses();
        assert!(own.contains(&source), "{name}: seen as {source}, not as one of the node's {own:?}");
    }
    for pod in backends {
        for family in Family::BOTH {
            let backend = SocketAddr::new(pod.address(family), PORT);
            assert!(
                results.iter().any(|(_, result)| result.backend() == Some(backend)),
                "{backend} never reached"
            );
        }
    }
}

#[test]
fn a_node_knows_all_of_its_addresses() {
    let world = World::new().unwrap();
    for node in [world.node(), world.remote_node()] {
        let shown = node.namespace().output("ip", &["-o", "addr", "show", "scope", "global"]).unwrap();
        let address = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok();
        let shown: BTreeSet<IpAddr> = shown.lines().filter_map(address).collect();
        assert_eq!(node.all_addresses().into_iter().collect::<BTreeSet<_>>(), shown);
    }
}

#[test]
fn added_addresses_answer_but_are_never_chosen_as_source() {
    let world = World::builder().pods(2).remote_pods(1).build().unwrap();
    let more: [IpAddr; 2] = ["10.244.1.200".parse().unwrap(), "fd00:10:244:1::c8".parse().unwrap()];
    let (pod, other) = (&world.pods()[0], &world.remote_pods()[0]);
    pod.add_addresses(&more).unwrap();
    for family in Family::BOTH {
        let added = *more.iter().find(|address| Family::of(**address) == family).unwrap();
        let (at, back) = (SocketAddr::new(added, PORT), SocketAddr::new(other.address(family), PORT));
        world.echo().listen(pod.namespace(), Protocol::Tcp, at).unwrap();
        world.echo().listen(other.namespace(), Protocol::Udp, back).unwrap();
        let result = other.namespace().probe(Probe::new(Protocol::Tcp, at)).unwrap();
        assert_eq!(result.backend(), Some(at));
        let probe = Probe::new(Protocol::Udp, back);
        assert_eq!(pod.namespace().probe(probe).unwrap().seen_source(), Some(pod.address(family)));
        assert_eq!(pod.namespace().probe(probe.from(added)).unwrap().seen_source(), Some(added));
    }
}

#[test]
fn nothing_is_left_of_a_dropped_world() {
    let world = World::new().unwrap();
    let ends = [world.node().namespace(), world.client().namespace(), world.remote_pods()[1].namespace()];
    let observer = leftovers::Observer::watch(&ends.map(Namespace::path));
    let mut child = world.node().namespace().command("sleep").args(["1000"]).spawn().unwrap();
    drop(world);
    observer.assert_gone();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "the kernel has killed it");
}

#[test]
fn nothing_is_left_of_a_killed_process() {
    let mut process = leftovers::start_world_with("sleep", &["1000"]);
    assert_eq!(process.namespaces().len(), 9, "two nodes, six pods, a client");
    let observer = leftovers::Observer::watch(process.namespaces());
    process.kill();
    observer.assert_gone();
    leftovers::assert_ended(process.grandchild());
}

#[test]
fn a_user_without_root_gets_a_world_in_a_user_namespace() {
    let this = std::env::current_exe().unwrap();
    let name = "everybody_reaches_every_pod_and_is_seen_as_itself";
    let output = portolan_testkit::user_namespace_command(this).args(["--exact", name]).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout} {stderr}");
}

#[test]
fn without_permission_the_error_says_what_to_do() {
    // Root without capabilities has the rights of an ordinary user.
    let arguments =
        ["--bounding-set=-all", "--inh-caps=-all", "--", env!("CARGO_BIN_EXE_portolan-world"), "true"];
    let output = std::process::Command::new("setpriv").args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("Run as root, or as a plain user under `unshare -Urn`"), "{stderr}");
}
