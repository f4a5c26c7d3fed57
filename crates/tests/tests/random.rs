//! Random worlds and random edits: the kernel treats every packet as the oracle does, and `portolan explain` says so.
//!
//! `PORTOLAN_SEED` sets the seed of the first world (each failure prints its own), `PORTOLAN_ROUNDS` the number of
//! worlds in each mode.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program: its helpers fail the test, too"
)]

mod explained;

use std::collections::BTreeSet;
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use portolan_model::catalog::PerFamily;
use portolan_model::object::Kind;
use portolan_model::world::{Edit, Pod, Ranges, Rng, World, random_edit};
use portolan_model::{
    Change, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Protocol, Settings,
};
use portolan_testkit::Site;
use portolan_tests::{
    Attempt, CLUSTER_CIDRS, Cluster, Mode, ModeOptions, NODE_NAME, REMOTE_NODE_NAME, SERVICE_CIDRS,
    TARGET_PORTS, in_every_mode,
};

in_every_mode!(the_kernel_agrees_with_the_oracle);

const FIRST_SEED: u64 = 1;
const ROUNDS: u64 = 40;
/// Rounds of modes in which a change runs programs.
const IPTABLES_ROUNDS: u64 = 12;
/// Worlds probed at the same time.
const WORKERS: usize = 4;
const SERVICES: usize = 6;
const EDITS: usize = 10;
/// Number of strays after each edit: packets to any virtual address.
const STRAYS: usize = 60;
const SENDERS: [&str; 9] = ["pod", "l1", "l4", "node", "gateway", "remote", "r1", "remote-node", "client"];
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
/// One of them is a target port: an external IP that is the node's address may lead to itself.
const PORTS: [u16; 3] = [53, 80, TARGET_PORTS[0]];
const NODE_PORTS: [u16; 3] = [30001, 30002, 30003];

fn the_kernel_agrees_with_the_oracle(mode: Mode) {
    let rounds = if mode == Mode::Nftables { ROUNDS } else { IPTABLES_ROUNDS };
    let first = number("PORTOLAN_SEED").unwrap_or(FIRST_SEED);
    let end = first + number("PORTOLAN_ROUNDS").unwrap_or(rounds);
    let next = AtomicU64::new(first);
    let work = || {
        let mut cluster = Cluster::new(mode);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| Round::new(&mut cluster, seed).run())) {
                eprintln!("to see this again: {mode:?}, PORTOLAN_SEED={seed} PORTOLAN_ROUNDS=1");
                resume_unwind(panic);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// The test of one world, from its start to its end.
struct Round<'a> {
    cluster: &'a mut Cluster,
    rng: Rng,
    ranges: Ranges,
    world: World,
    /// The edits and other events so far, for the message.
    history: Vec<String>,
}

impl<'a> Round<'a> {
    fn new(cluster: &'a mut Cluster, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let ranges = ranges(cluster);
        let world = World::random(&mut rng, SERVICES, &ranges);
        Self { cluster, rng, ranges, world, history: Vec::new() }
    }

    fn run(mut self) {
        self.change_settings();
        let edits = self.world.edits();
        let changed = self.apply(&edits);
        self.probe(&changed);
        for _ in 0..EDITS {
            let edit = random_edit(&mut self.rng, &mut self.world, &self.ranges);
            let changed = self.apply(std::slice::from_ref(&edit));
            self.disturb();
            self.probe(&changed);
        }
        let everything = self.everything();
        self.probe(&everything);
        self.assert_like_from_scratch();
        self.empty();
    }

    fn apply(&mut self, edits: &[Edit]) -> Vec<(Family, Forwarding)> {
        self.history.extend(edits.iter().map(in_words));
        let changes = self.cluster.apply(edits).changes;
        let sides = |change: Change| {
            [change.old, change.new].into_iter().flatten().map(move |side| (change.family, (*side).clone()))
        };
        changes.into_iter().flat_map(sides).collect()
    }

    /// Changes the data plane in other ways than by edits, at random.
    fn disturb(&mut self) {
        match self.rng.below(10) {
            0 => {
                let options = ModeOptions {
                    localhost_node_ports: self.rng.chance(70),
                    lists_loopback: self.rng.chance(50),
                };
                self.history.push(format!("restart with {options:?}"));
                self.cluster.set_options(options);
            }
            1 => self.change_settings(),
            2 => self.cluster.collect(),
            3 => {
                self.history.push("resync".to_owned());
                self.cluster.resync();
            }
            _ => {}
        }
    }

    fn change_settings(&mut self) {
        let settings = PerFamily {
            ipv4: random_settings(&mut self.rng, self.cluster, Family::Ipv4),
            ipv6: random_settings(&mut self.rng, self.cluster, Family::Ipv6),
        };
        self.history.push(format!("{settings:?}"));
        self.cluster.configure(|current| *current = settings.get(current.family).clone());
    }

    fn everything(&self) -> Vec<(Family, Forwarding)> {
        let table = |family| self.cluster.table(family).into_iter().map(move |(_, f)| (family, (*f).clone()));
        Family::BOTH.into_iter().flat_map(table).collect()
    }

    /// Sends packets from all senders to every frontend of these, and packets from random senders to other places. Also
    /// reads the rules back.
    fn probe(&mut self, changed: &[(Family, Forwarding)]) {
        let mut targets = BTreeSet::new();
        for (family, forwarding) in changed {
            for frontend in &forwarding.frontends {
                for destination in self.destinations(*family, *frontend) {
                    targets.insert((forwarding.protocol, destination));
                }
            }
        }
        let mut attempts = Vec::new();
        for name in SENDERS {
            let sender = self.cluster.sender(name);
            let to = |&(protocol, destination): &(Protocol, SocketAddr)| {
                // Each sender has its own loopback addresses.
                let is_there = name == "node" || !destination.ip().is_loopback();
                is_there.then(|| Attempt { sender: sender.clone(), protocol, destination })
            };
            attempts.extend(targets.iter().filter_map(to));
        }
        attempts.extend((0..STRAYS).map(|_| self.stray()));
        let mut faults = self.cluster.faults_and(&attempts, explained::disagreement);
        faults.extend(self.cluster.read_back());
        if !faults.is_empty() {
            let history = self.history.join("\n");
            panic!(
                "{history}\n{} faults with {} packets:\n{}",
                faults.len(),
                attempts.len(),
                faults.join("\n")
            );
        }
    }

    fn destinations(&self, family: Family, frontend: Frontend) -> Vec<SocketAddr> {
        match frontend {
            Frontend::ClusterIp(address, port)
            | Frontend::ExternalIp(address, port)
            | Frontend::LoadBalancerIp(address, port) => vec![SocketAddr::new(address, port)],
            Frontend::NodePort(port) => {
                let mut addresses = self.cluster.world().node().all_addresses();
                addresses.extend([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
                addresses.retain(|address| Family::of(*address) == family);
                addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()
            }
        }
    }

    /// Returns a packet to any virtual address, any address of the node, or a pod.
    fn stray(&mut self) -> Attempt {
        let Ranges { cluster_ips, external_ips, load_balancer_ips, .. } = &self.ranges;
        let node = self.cluster.world().node().all_addresses();
        let unallocated = SERVICE_CIDRS.map(|cidr| cidr.parse::<ipnet::IpNet>().unwrap().broadcast());
        let pod = self.cluster.world().pods()[1].addresses().both();
        let addresses: [&[IpAddr]; 7] = [
            &cluster_ips.ipv4,
            &cluster_ips.ipv6,
            external_ips,
            load_balancer_ips,
            &node,
            &unallocated,
            &pod,
        ];
        let address = **self.rng.pick(&addresses).and_then(|list| self.rng.pick(list)).as_ref().unwrap();
        let ports: [&[u16]; 4] = [&PORTS, &[81], &NODE_PORTS, &TARGET_PORTS];
        let port = *self.rng.pick(&ports).and_then(|list| self.rng.pick(list)).unwrap();
        let protocol = *self.rng.pick(&PROTOCOLS).unwrap();
        let sender = self.cluster.sender(self.rng.pick(&SENDERS).unwrap()).clone();
        Attempt { sender, protocol, destination: SocketAddr::new(address, port) }
    }

    /// Checks that a restarted data plane finds nothing to write.
    fn assert_like_from_scratch(&mut self) {
        self.cluster.collect();
        let commits = self.cluster.restart();
        for commit in [commits.ipv4, commits.ipv6] {
            assert_eq!((commit.elements, commit.objects), (0, 0), "{}\n{commit:?}", self.history.join("\n"));
        }
    }

    /// Deletes all Services and checks that nothing is left of them.
    fn empty(&mut self) {
        let services = self.world.services.keys().map(|key| Edit::Delete(Kind::Service, key.clone()));
        let slices = self.world.slices.keys().map(|key| Edit::Delete(Kind::EndpointSlice, key.clone()));
        let edits: Vec<_> = services.chain(slices).collect();
        self.apply(&edits);
        self.cluster.collect();
        self.cluster.configure(|settings| *settings = Cluster::usual_settings(settings.family));
        // What only counters needed.
        self.cluster.collect();
        let left = self.cluster.ruleset();
        self.cluster.remove();
        self.cluster.resync();
        let fresh = self.cluster.ruleset();
        assert_eq!(left, fresh, "{}", self.history.join("\n"));
    }
}

fn in_words(edit: &Edit) -> String {
    match edit {
        Edit::Upsert(kind, object) => format!("{kind:?} {object}"),
        Edit::Delete(kind, key) => format!("{kind:?} {key} deleted"),
    }
}

/// Returns the ranges of a small world in the testkit's address plan, with all kinds of clashes.
fn ranges(cluster: &Cluster) -> Ranges {
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    let (world, own) = (cluster.world(), cluster.world().node().addresses());
    let pod = |node: &str, number: usize, pod: &portolan_testkit::Pod| Pod {
        addresses: PerFamily { ipv4: Some(pod.address(Family::Ipv4)), ipv6: Some(pod.address(Family::Ipv6)) },
        // The endpoint of the second pod of each node has no node name.
        node: (number != 1).then(|| node.to_owned()),
    };
    let site = |node: &'static str, pods: &[portolan_testkit::Pod]| {
        let endpoints = pods.iter().take(pods.len() - 1).enumerate();
        endpoints.map(|(number, own)| pod(node, number, own)).collect::<Vec<_>>()
    };
    // Pods with `hostNetwork`. Slices of the API server name no node.
    let host = |site: Site, node: Option<&str>| {
        let [ipv4, ipv6] = site.node().both().map(Some);
        Pod { addresses: PerFamily { ipv4, ipv6 }, node: node.map(str::to_owned) }
    };
    let hosts = vec![
        host(Site::Local, Some(NODE_NAME)),
        host(Site::Local, None),
        host(Site::Remote, Some(REMOTE_NODE_NAME)),
        host(Site::Remote, None),
    ];
    let pods = [site(NODE_NAME, world.pods()), site(REMOTE_NODE_NAME, world.remote_pods()), hosts].concat();
    let source_ranges = [
        "10.244.1.0/24",
        "203.0.113.0/24",
        "192.168.100.0/24",
        "0.0.0.0/0",
        "fd00:10:244:1::/64",
        "2001:db8:113::/64",
    ];
    Ranges {
        namespace: "default".to_owned(),
        cluster_ips: PerFamily {
            ipv4: (1..=7).map(|host| parse(&format!("10.96.0.{host}"))).collect(),
            ipv6: (1..=7).map(|host| parse(&format!("fd00:10:96::{host}"))).collect(),
        },
        external_ips: ["10.96.0.2", "198.51.100.1", "198.51.100.2", "2001:db8:51::1"]
            .map(parse)
            .into_iter()
            .chain(own.both())
            .collect(),
        load_balancer_ips: [
            "198.51.100.2",
            "198.51.100.3",
            "2001:db8:51::1",
            "2001:db8:51::3",
            "203.0.113.1",
        ]
        .map(parse)
        .into_iter()
        .chain(own.both())
        .collect(),
        source_ranges: source_ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ports: PORTS.to_vec(),
        node_ports: NODE_PORTS.to_vec(),
        target_ports: TARGET_PORTS.to_vec(),
        pods,
        nodes: ["n1", "n2", "n3"].map(str::to_owned).to_vec(),
        zones: ["a", "b"].map(str::to_owned).to_vec(),
    }
}

fn random_settings(rng: &mut Rng, cluster: &Cluster, family: Family) -> Settings {
    let usual = Cluster::usual_settings(family);
    let mut addresses = cluster.world().node().all_addresses();
    addresses.retain(|address| Family::of(*address) == family);
    addresses.sort_unstable();
    let own_pods = ["10.244.1.0/24", "fd00:10:244:1::/64"][usize::from(family == Family::Ipv6)];
    let cluster_cidr = CLUSTER_CIDRS[usize::from(family == Family::Ipv6)];
    Settings {
        local_detector: match rng.below(5) {
            0 => LocalDetector::None,
            1 => LocalDetector::Cidr(cluster_cidr.parse().unwrap()),
            2 => LocalDetector::Cidr(own_pods.parse().unwrap()),
            3 => LocalDetector::Interface("pod1".into()),
            _ => LocalDetector::InterfacePrefix("pod".into()),
        },
        masquerade_all: rng.chance(20),
        masquerade_bit: u8::try_from(rng.below(32)).unwrap(),
        node_port_addresses: if rng.chance(40) {
            NodePortAddresses::MatchAll
        } else {
            NodePortAddresses::Addresses(rng.some(&addresses, 3).into_iter().copied().collect())
        },
        node_ip: usual.node_ip.filter(|_| rng.chance(70)),
        service_cidrs: if rng.chance(70) { usual.service_cidrs } else { Vec::new() },
        counters: rng.chance(30),
        family,
    }
}
