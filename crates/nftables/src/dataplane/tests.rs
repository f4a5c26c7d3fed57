//! A change whose refusals end in a transaction of its own: packets on their way meanwhile, crashes and errors, notifications.

mod queue;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use portolan_model::{
    Backend, Change, ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, Protocol as Transport,
    ServicePortName,
};
use portolan_sock::namespace::in_new_network_namespace;
use portolan_testkit::{Namespace, Pod, Probe, ProbeResult, World};

use super::super::element::Key;
use super::*;
use portolan_engine::drift::DriftWatch;
use queue::Queue;

const PORT: u16 = 80;
const ENDPOINT_PORT: u16 = 8080;
const PROTOCOLS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// Two Services: one without endpoints, and one with policy Local without endpoints on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Empty,
    Elsewhere,
}

impl Service {
    const ALL: [Self; 2] = [Self::Empty, Self::Elsewhere];

    fn address(self, family: Family, kind: u8) -> IpAddr {
        let host = if self == Self::Empty { 1 } else { 2 };
        match (family, kind) {
            (Family::Ipv4, 0) => IpAddr::from([10, 96, 0, host]),
            (Family::Ipv4, _) => IpAddr::from([198, 51, 100, kind * 10 + host]),
            (Family::Ipv6, _) => Ipv6Addr::from([0xfd00, 0x96, 0, 0, 0, 0, kind.into(), host.into()]).into(),
        }
    }

    fn frontends(self, family: Family) -> [Frontend; 4] {
        [
            Frontend::ClusterIp(self.address(family, 0), PORT),
            Frontend::ExternalIp(self.address(family, 1), PORT),
            Frontend::LoadBalancerIp(self.address(family, 2), PORT),
            Frontend::NodePort(if self == Self::Empty { 30_001 } else { 30_002 }),
        ]
    }

    /// Returns its Service ports with these endpoints.
    fn put(self, family: Family, cluster: &[&Pod], local: &[&Pod]) -> [Change; 2] {
        let backends = |pods: &[&Pod]| -> Box<[Backend]> {
            let backend = |pod: &&Pod| Backend {
                address: pod.address(family),
                port: ENDPOINT_PORT,
                may_hairpin: false,
            };
            pods.iter().map(backend).collect()
        };
        PROTOCOLS.map(|protocol| {
            let frontend = SocketAddr::new(self.address(family, 0), PORT);
            let forwarding = Forwarding {
                frontends: Box::new(self.frontends(family)),
                local: backends(local),
                external_policy: match self {
                    Self::Empty => ExternalPolicy::Cluster,
                    Self::Elsewhere => ExternalPolicy::Local,
                },
                has_endpoints: !cluster.is_empty(),
                ..Forwarding::plain(frontend, protocol, backends(cluster))
            };
            let name = ServicePortName {
                namespace: "demo".into(),
                service: format!("{self:?}").to_lowercase().into(),
                port: "".into(),
                protocol,
            };
            Change { name: Arc::new(name), family, old: None, new: Some(Arc::new(forwarding)) }
        })
    }
}

/// Returns a probe to each frontend that clients outside of the cluster are refused at, each from a port of its own.
fn probes(world: &World, family: Family) -> Vec<(Service, Probe)> {
    let mut probes = Vec::new();
    for service in Service::ALL {
        // The cluster IP of the other Service has an endpoint.
        let refused = service.frontends(family).into_iter().skip(usize::from(service == Service::Elsewhere));
        for (frontend, protocol) in
            refused.flat_map(|frontend| PROTOCOLS.map(|protocol| (frontend, protocol)))
        {
            let to = match frontend {
                Frontend::NodePort(port) => SocketAddr::new(world.node().address(family), port),
                other => other.socket().unwrap(),
            };
            let port = 40_000 + u16::try_from(probes.len()).unwrap();
            let probe = Probe::new(protocol, to).from_port(port);
            // A datagram that is dropped has no answer.
            let is_silent = service == Service::Elsewhere && protocol == Transport::Udp;
            probes.push((service, if is_silent { probe.expecting_silence() } else { probe }));
        }
    }
    probes
}

/// A data plane with the table that it follows.
struct Running {
    nftables: Nftables,
    table: Table,
}

impl Running {
    fn start(settings: &Settings, first: Vec<Change>) -> Self {
        let mut nftables = Nftables::open(settings.clone()).unwrap();
        let mut table = Table::new(settings.clone());
        let changes = table.take(first, []);
        nftables.compare(&table, &changes).unwrap();
        Self { nftables, table }
    }

    /// Writes changes as [`Nftables::commit_plan`] does, with a pause between its transactions.
    fn apply(&mut self, changes: Vec<Change>, pause: impl FnOnce()) {
        let changes = self.table.take(changes, []);
        let plan = self.nftables.planner.plan(&changes.forwardings);
        self.nftables.commit_first(&plan).unwrap();
        self.nftables.commit_alone(&plan.elements).unwrap();
        pause();
        self.nftables.commit_alone(&plan.later).unwrap();
    }
}

/// Holds the first packet of each client between the hook that translates and the one that refuses, while the first endpoints
/// come.
fn held_packets_are_refused_or_served(world: &World, family: Family) {
    let node = world.node().namespace();
    let [near, far] = [&world.pods()[0], &world.remote_pods()[0]];
    let pods = match family {
        Family::Ipv4 => "10.244.0.0/16",
        Family::Ipv6 => "fd00:10:244::/48",
    };
    let settings =
        Settings { local_detector: LocalDetector::Cidr(pods.parse().unwrap()), ..Settings::plain(family) };
    let without =
        [Service::Empty.put(family, &[], &[]), Service::Elsewhere.put(family, &[far], &[])].concat();
    let with = [
        Service::Empty.put(family, &[near, far], &[]),
        Service::Elsewhere.put(family, &[near, far], &[near]),
    ];
    let probes = probes(world, family);
    let all: Vec<Probe> = probes.iter().map(|(_, probe)| *probe).collect();
    let (mut running, mut queue) =
        node.run(|| (Running::start(&settings, without), Queue::open(family))).unwrap();
    let client: &Namespace = world.client().namespace();
    let held = thread::scope(|scope| {
        let clients = scope.spawn(|| client.probe_many(&all).unwrap());
        queue.wait_for(all.len());
        node.run(|| running.apply(with.concat(), || queue.release())).unwrap();
        clients.join().unwrap()
    });
    for ((service, probe), result) in probes.iter().zip(held) {
        // A client that was dropped, or that repeated its SYN meanwhile, is served.
        let is_right = match (service, probe.protocol) {
            (_, Transport::Tcp) => matches!(result, ProbeResult::Refused | ProbeResult::Reached(_)),
            (Service::Empty, _) => result == ProbeResult::Refused,
            (Service::Elsewhere, _) => result == ProbeResult::TimedOut,
        };
        assert!(is_right, "{result:?} {service:?} {probe:?}");
    }
    // No entry of connection tracking keeps clients from the endpoints.
    let again = all
        .iter()
        .map(|probe| Probe { timeout: Probe::new(probe.protocol, probe.destination).timeout, ..*probe });
    for (probe, result) in all.iter().zip(client.probe_many(&again.collect::<Vec<_>>()).unwrap()) {
        assert!(matches!(result, ProbeResult::Reached(_)), "{result:?} afterwards: {probe:?}");
    }
    let Running { nftables, table } = &mut running;
    let commit = node.run(|| nftables.compare(table, &Changes::default()).unwrap()).unwrap();
    assert_eq!((commit.elements, commit.objects), (0, 0), "{:?}", commit.messages);
    node.run(|| nftables.remove_table().unwrap()).unwrap();
}

#[test]
fn packets_held_while_the_first_endpoint_comes_are_refused_or_served() {
    let world = World::builder().pods(1).remote_pods(1).build().expect("this test needs root");
    for pod in world.pods().iter().chain(world.remote_pods()) {
        for protocol in PROTOCOLS {
            world.serve(pod, protocol, ENDPOINT_PORT).unwrap();
        }
    }
    for family in Family::BOTH {
        held_packets_are_refused_or_served(&world, family);
    }
}

/// Returns the settings and the changes that begin and end without endpoints: those of both Services.
fn without_network(family: Family) -> (Settings, Vec<Change>, Vec<Change>) {
    let change = |service: Service, is_there: bool| {
        service.put(family, &[], &[]).map(|change| {
            let forwarding = change.new.as_deref().cloned().unwrap();
            let address = service.address(family, 9);
            let backend = Backend { address, port: ENDPOINT_PORT, may_hairpin: false };
            let cluster = if is_there { Box::from([backend]) } else { Box::default() };
            let new = Forwarding { has_endpoints: is_there, cluster, ..forwarding };
            Change { new: Some(Arc::new(new)), ..change }
        })
    };
    let all = |is_there| Service::ALL.into_iter().flat_map(|service| change(service, is_there)).collect();
    (Settings::plain(family), all(false), all(true))
}

#[test]
fn what_a_crash_or_an_error_between_two_transactions_leaves_is_mended_by_a_comparison() {
    for (family, is_crash) in Family::BOTH.into_iter().flat_map(|family| [(family, true), (family, false)]) {
        let (settings, without, with) = without_network(family);
        in_new_network_namespace(|| {
            let Running { mut nftables, mut table } = Running::start(&settings, without);
            let plan = nftables.planner.plan(&table.take(with, []).forwardings);
            let kept = plan.later.len();
            assert!(kept > 0 && !plan.elements.is_empty());
            nftables.commit_first(&plan).unwrap();
            nftables.commit_alone(&plan.elements).unwrap();
            if is_crash {
                nftables = Nftables::open(settings.clone()).unwrap();
            } else {
                // Another program has deleted one of them.
                let mut other = Nftables::open(settings.clone()).unwrap();
                let mut one = Changeset::default();
                let set = Set::NoEndpointNodePorts;
                let operation = plan.later.deletions(set).next().unwrap();
                one.delete(set, &Key::from_kernel(operation.key).unwrap(), None);
                other.commit_alone(&one).unwrap();
                assert!(matches!(
                    nftables.commit_alone(&plan.later),
                    Err(Error::Commit(CommitError::Refused(_)))
                ));
            }
            let commit = nftables.compare(&table, &Changes::default()).unwrap();
            assert_eq!(commit.elements, kept - usize::from(!is_crash), "{:?}", commit.messages);
            let commit = nftables.compare(&table, &Changes::default()).unwrap();
            assert_eq!((commit.elements, commit.objects), (0, 0), "{:?}", commit.messages);
        })
        .expect("this test needs root");
    }
}

#[test]
fn all_transactions_are_our_own_writes() {
    for family in Family::BOTH {
        let (settings, without, with) = without_network(family);
        in_new_network_namespace(|| {
            let Running { mut nftables, mut table } = Running::start(&settings, without.clone());
            let mut watch = DriftWatch::open(vec![nftables.own()]).unwrap();
            let mut generation = watch.generation();
            // Chains, elements, and the ends of refusals.
            for (changes, transactions) in [(with, 3), (without, 1)] {
                let changes = table.take(changes, []);
                nftables.apply(&table, &changes).unwrap();
                assert_eq!(watch.drifted().unwrap(), []);
                assert_eq!(watch.generation(), generation.wrapping_add(transactions));
                generation = watch.generation();
            }
        })
        .expect("this test needs root");
    }
}
