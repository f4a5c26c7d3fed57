//! Differences between the modes that the oracle does not know: what becomes of pings, and of forwarded packets on a node whose
//! iptables drops those that no rule accepts. `docs/modes.md` lists them.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test program: its helpers fail the test, too"
)]

use std::net::SocketAddr;
use std::time::Duration;

use portolan_model::verdict::Fate;
use portolan_model::{Family, Protocol};
use portolan_testkit::{Namespace, Ping, Probe, ProbeResult, probe_many};
use portolan_tests::{
    At, Attempt, Cluster, Mode, SenderLocation, TARGET_PORTS, attempts_of, in_every_mode, service,
};

in_every_mode! {
    pings_to_addresses_of_services,
    forwarded_packets_that_a_policy_of_iptables_would_drop,
}

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time where no answer is expected.
const SILENCE: Duration = Duration::from_millis(200);

/// The client outside has the same addresses. The node's routes lead to it, so it answers a ping that the mode does not handle.
fn pings_to_addresses_of_services(mode: Mode) {
    let expected = match mode.name() {
        "nftables" | "userspace" => [Ping::Refused, Ping::Answered, Ping::Silent],
        "iptables" | "redirect" => [Ping::Answered, Ping::Answered, Ping::Answered],
        _ => [Ping::Refused, Ping::Refused, Ping::Answered],
    };
    let places = [At::ClusterIp, At::ExternalIp, At::Unallocated];
    let mut cluster = Cluster::new(mode);
    for place in places.iter().flat_map(|at| Family::BOTH.map(|family| at.socket(family))) {
        cluster.serve_outside(place);
    }
    cluster.put(&service().external(), "Rl1 Rr1");
    let mut faults = Vec::new();
    for (at, expected) in places.into_iter().zip(expected) {
        let within = if expected == Ping::Silent { SILENCE } else { PATIENCE };
        for sender in ["pod", "node", "remote", "remote-node"] {
            for to in Family::BOTH.map(|family| at.socket(family).ip()) {
                let result = cluster.sender(sender).namespace.ping(to, within).unwrap();
                if result != expected {
                    faults.push(format!("{sender} to {at:?} {to}: {result:?}, not {expected:?}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn forwarded_packets_that_a_policy_of_iptables_would_drop(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    drop_forwarded(&cluster);
    let mut faults = Vec::new();
    let mut counts = [0, 0];
    for endpoint in ["Rl1", "Rr1"] {
        cluster.put(&service().external(), endpoint);
        let senders = ["pod", "remote", "client", "node", "remote-node"];
        let to_services = [At::ClusterIp, At::ExternalIp];
        let attempts = senders.iter().flat_map(|name| attempts_of(cluster.sender(name), &to_services));
        let attempts: Vec<Attempt> = attempts.filter(|attempt| mode.carries(attempt.protocol)).collect();
        let verdicts = cluster.judge(&attempts);
        let expected: Vec<bool> = attempts
            .iter()
            .zip(&verdicts)
            .map(|(one, verdict)| is_accepted(mode, one, &verdict.fate))
            .collect();
        let probes: Vec<(&Namespace, Probe)> =
            attempts.iter().zip(&expected).map(|(one, reaches)| probe_of(one, *reaches)).collect();
        let results = probe_many(&probes).unwrap();
        for ((attempt, reaches), result) in attempts.iter().zip(expected).zip(results) {
            counts[usize::from(reaches)] += 1;
            if result.backend().is_some() != reaches {
                faults.push(format!("{attempt} to {endpoint}: {result:?}, expected an answer: {reaches}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let expected = match mode.name() {
        "nftables" => [96, 24],
        "iptables" => [24, 96],
        "ipvs" => [0, 120],
        _ => [0, 80],
    };
    assert_eq!(counts, expected, "connections without an answer, and with one");
}

/// Returns true if packets of this connection arrive although the policy is to drop what is forwarded. In the nftables mode that
/// policy decides alone. In the iptables mode only masqueraded packets have the mark that `KUBE-FORWARD` accepts, as with kube-proxy.
/// A relay and IPVS are endpoints of their own on the node, and what returns through IPVS belongs to a known connection.
fn is_accepted(mode: Mode, attempt: &Attempt, fate: &Fate) -> bool {
    let Fate::Backends { masqueraded, .. } = fate else { return false };
    attempt.sender.place == SenderLocation::Node
        || match mode.name() {
            "nftables" => false,
            "iptables" => masqueraded.iter().all(|masqueraded| *masqueraded),
            _ => true,
        }
}

fn probe_of(attempt: &Attempt, reaches: bool) -> (&Namespace, Probe) {
    let source = attempt.sender.address(attempt.family());
    let probe = Probe::new(attempt.protocol, attempt.destination).from(source);
    (&attempt.sender.namespace, if reaches { probe } else { probe.expecting_silence() })
}

/// Sets the policy of the iptables that the mode uses, or of the usual one. Then a pod does not even reach an endpoint itself.
fn drop_forwarded(cluster: &Cluster) {
    let variant = match cluster.mode() {
        Mode::IptablesLegacy | Mode::RedirectLegacy => "legacy",
        _ => "nft",
    };
    let (pod, endpoint) = (cluster.sender("pod"), cluster.sender("r1"));
    let to = Family::BOTH.map(|family| SocketAddr::new(endpoint.address(family), TARGET_PORTS[0]));
    for (base, to) in ["iptables", "ip6tables"].into_iter().zip(to) {
        let probe = Probe::new(Protocol::Tcp, to);
        assert_eq!(pod.namespace.probe(probe).unwrap().backend(), Some(to));
        let (program, arguments) = (format!("{base}-{variant}"), ["-w", "60", "-P", "FORWARD", "DROP"]);
        cluster.world().node().namespace().output(&program, &arguments).unwrap();
        assert_eq!(pod.namespace.probe(probe.expecting_silence()).unwrap(), ProbeResult::TimedOut);
    }
}
