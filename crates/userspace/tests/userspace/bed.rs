//! A node with pods and a Service, and the data planes that the tests run on it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_engine::Driven;
use portolan_iptables::{Programs, Variant};
use portolan_model::{
    Backend, Capture, Change, Family, Forwarding, LocalDetector, NodePortAddresses, Protocol,
    ServicePortName, Settings,
};
use portolan_nftables::Nftables;
use portolan_relay::RelayOptions;
use portolan_testkit::{Namespace, Traffic, TrafficPlan, TrafficReport, World, eventually};
use portolan_userspace::{Userspace, spawn_translated};

pub(crate) const FAMILY: Family = Family::Ipv4;
pub(crate) const PORT: u16 = 8080;
/// How long the traffic runs in each mode.
pub(crate) const WHILE: Duration = Duration::from_millis(1500);
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// A SYN that is repeated arrives within this time, but not one of a connection that the kernel refuses to track.
pub(crate) const SHORT: Duration = Duration::from_secs(20);

pub(crate) fn vip() -> SocketAddr {
    SocketAddr::from(([10, 96, 0, 1], 80))
}

pub(crate) fn settings() -> Settings {
    Settings {
        family: FAMILY,
        local_detector: LocalDetector::None,
        masquerade_all: true,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: None,
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        counters: false,
    }
}

pub(crate) fn service(backends: &[IpAddr]) -> Vec<Change> {
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
pub(crate) struct Bed {
    pub(crate) world: World,
    pub(crate) changes: Vec<Change>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let world = World::builder().pods(3).remote_pods(1).build().unwrap();
        let backends: Vec<IpAddr> = world.pods().iter().take(2).map(|pod| pod.address(FAMILY)).collect();
        for pod in world.pods().iter().take(2) {
            world.serve(pod, Protocol::Tcp, PORT).unwrap();
            world.serve(pod, Protocol::Udp, PORT).unwrap();
        }
        Self { world, changes: service(&backends) }
    }

    /// Gives the Service one backend in the first pod, and returns its address. The test opens the listener.
    pub(crate) fn backend_of_its_own(&mut self) -> SocketAddr {
        let address = SocketAddr::new(self.world.pods()[0].address(FAMILY), PORT + 1);
        let backend = Backend { address: address.ip(), port: address.port(), may_hairpin: false };
        for change in &mut self.changes {
            let new = Forwarding::plain(vip(), change.name.protocol, Box::new([backend]));
            change.new = Some(Arc::new(new));
        }
        address
    }

    pub(crate) fn node(&self) -> &Namespace {
        self.world.node().namespace()
    }

    pub(crate) fn nftables(&self) -> Driven<Nftables> {
        self.at_node(|| {
            let mut plane = Driven::new(settings(), Nftables::open(settings()).unwrap());
            plane.apply(&self.changes).unwrap();
            plane.resync().unwrap();
            plane
        })
    }

    pub(crate) fn userspace(&self) -> Driven<Userspace> {
        self.userspace_with(RelayOptions::default())
    }

    pub(crate) fn userspace_with(&self, options: RelayOptions) -> Driven<Userspace> {
        self.at_node(|| {
            let relay = portolan_relay::spawn(&[FAMILY], options).unwrap();
            let mut plane = Driven::new(settings(), Userspace::open(settings(), relay).unwrap());
            plane.apply(&self.changes).unwrap();
            plane.resync().unwrap();
            plane
        })
    }

    /// Opens a data plane that captures by redirect, with the kernel setting that the agent writes for it.
    pub(crate) fn redirect(&self) -> Driven<Userspace> {
        self.node().output("sysctl", &["-q", "-w", "net.ipv4.tcp_early_demux=0"]).unwrap();
        self.at_node(|| {
            let options = RelayOptions { capture: Capture::Redirect, ..RelayOptions::default() };
            let relay = spawn_translated(&[FAMILY], options).unwrap();
            let programs = Programs::of(FAMILY, Variant::Nft).unwrap();
            let plane = Userspace::open_redirect(
                programs,
                settings(),
                portolan_iptables::IptablesOptions::default(),
                relay,
            );
            let mut plane = Driven::new(settings(), plane);
            plane.apply(&self.changes).unwrap();
            plane.resync().unwrap();
            plane
        })
    }

    pub(crate) fn at_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.node().run(work).unwrap()
    }

    /// Starts traffic from a pod, from the node itself and from outside.
    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        let [.., pod] = self.world.pods() else { panic!("no pod") };
        let from = [pod.namespace(), self.node(), self.world.client().namespace()];
        let plan = TrafficPlan { tcp: Some(vip()), ..TrafficPlan::default() };
        from.map(|namespace| Traffic::start(namespace, plan).unwrap()).into()
    }
}

pub(crate) fn assert_lossless(traffic: Vec<Traffic>) {
    let reports: Vec<TrafficReport> = traffic.into_iter().map(|traffic| traffic.stop().unwrap()).collect();
    for report in &reports {
        assert!(report.is_lossless() && report.connections_ok > 100, "{report}");
    }
}

/// Waits while the traffic goes on.
pub(crate) fn a_while() {
    let until = Instant::now() + WHILE;
    eventually(PATIENCE, "a while", || Instant::now() >= until).unwrap();
}
