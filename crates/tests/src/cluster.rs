//! A world of namespaces whose node runs the data plane.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use portolan_engine::{Boxed, Commit, Driven};
use portolan_model::catalog::{Changes, PerFamily};
use portolan_model::object::Kind;
use portolan_model::observed::Counted;
use portolan_model::oracle::ModeDifferences;
use portolan_model::verdict::Verdict;
use portolan_model::world::Edit;
use portolan_model::{
    Catalog, Change, Family, Forwarding, LocalDetector, NodePortAddresses, Protocol, ServicePortName,
    Settings,
};
use portolan_testkit::{Namespace, Probe, ProbeResult, Site, World, eventually};
use serde_json::json;

use crate::mode::{Mode, ModeOptions, Plane};
use crate::{Sender, SenderLocation};

/// Name of the node that runs the data plane. Its zone is `a`.
pub const NODE_NAME: &str = "n1";
/// Name of the other node.
pub const REMOTE_NODE_NAME: &str = "n2";
/// Number of pods on the node. The last one is never an endpoint.
pub const PODS: usize = 5;
/// Number of pods on the other node. The last one is never an endpoint.
pub const REMOTE_PODS: usize = 4;
/// The ports on which every pod and both nodes respond, in every protocol.
pub const TARGET_PORTS: [u16; 2] = [8080, 9090];
/// The ranges of all pods, by family.
pub const CLUSTER_CIDRS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];
/// The ranges of cluster IPs, by family.
pub const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/24", "fd00:10:96::/112"];

/// The discard port, on which nothing listens.
const CLOSED_PORT: u16 = 9;
/// Deadline for a new address to work.
const ADDRESS_WITHIN: Duration = Duration::from_secs(60);
/// First source port of probes, above all node ports.
const FIRST_SOURCE_PORT: u16 = 33_000;

/// What the flows of a sender to one destination have in common: the namespace, the source address, the protocol and the
/// destination.
pub(crate) type FlowKey = (u64, IpAddr, Protocol, SocketAddr);

/// A world, the objects in it, and a data plane for each family on its node.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) world: World,
    pub(crate) senders: Vec<Sender>,
    mode: Mode,
    options: ModeOptions,
    catalog: Catalog,
    planes: PerFamily<Plane>,
    settings: PerFamily<Settings>,
    source_ports: HashMap<(u64, Protocol), u16>,
    /// Source ports of refused packets.
    pub(crate) refused_ports: HashMap<FlowKey, u16>,
    version: u64,
    more_node_addresses: Vec<IpAddr>,
    outside: HashSet<SocketAddr>,
}

impl Cluster {
    /// Creates a cluster without Services, with [`Cluster::usual_settings`].
    pub fn new(mode: Mode) -> Self {
        let world = World::builder().pods(PODS).remote_pods(REMOTE_PODS).build().unwrap();
        respond_everywhere(&world);
        let settings = per_family(Self::usual_settings);
        let mut catalog = Catalog::new(NODE_NAME);
        let labels = json!({ "topology.kubernetes.io/zone": "a" });
        let node = json!({ "metadata": { "name": NODE_NAME, "resourceVersion": "1", "labels": labels } });
        catalog.apply(Edit::Upsert(Kind::Node, node).event().unwrap());
        let options = ModeOptions::default();
        let planes = per_family(|family| open(&world, mode, settings.get(family), options));
        let senders = Sender::all(&world);
        let mut cluster = Self {
            world,
            senders,
            mode,
            options,
            catalog,
            planes,
            settings,
            source_ports: HashMap::new(),
            refused_ports: HashMap::new(),
            version: 0,
            more_node_addresses: Vec::new(),
            outside: HashSet::new(),
        };
        cluster.resync();
        cluster
    }

    /// Returns the usual settings: local detector by cluster CIDR, node ports at the node's own address, everything
    /// known.
    pub fn usual_settings(family: Family) -> Settings {
        let node = Site::Local.node().of(family);
        Settings {
            family,
            local_detector: LocalDetector::Cidr(cidr(CLUSTER_CIDRS, family)),
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: NodePortAddresses::Addresses(vec![node]),
            node_ip: Some(node),
            service_cidrs: vec![cidr(SERVICE_CIDRS, family)],
            counters: false,
        }
    }

    /// Returns all senders.
    pub fn senders(&self) -> &[Sender] {
        &self.senders
    }

    /// Returns the sender with this name.
    pub fn sender(&self, name: &str) -> &Sender {
        self.senders.iter().find(|sender| sender.name == name).unwrap_or_else(|| panic!("no sender {name}"))
    }

    /// Returns the world of namespaces.
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Returns the settings of a family.
    pub const fn settings(&self, family: Family) -> &Settings {
        self.settings.get(family)
    }

    /// Changes the settings of both data planes.
    pub fn configure(&mut self, change: impl Fn(&mut Settings)) {
        for family in Family::BOTH {
            let settings = self.settings.get_mut(family);
            change(settings);
            self.planes.get_mut(family).driven.configure(settings.clone());
        }
        self.resync();
    }

    /// Applies changed objects, as one transaction of each family.
    pub fn apply(&mut self, edits: &[Edit]) -> Changes {
        for edit in edits {
            self.catalog.apply(edit.event().unwrap());
        }
        let changes = self.catalog.take_changes();
        for family in Family::BOTH {
            let own: Vec<Change> =
                changes.changes.iter().filter(|change| change.family == family).cloned().collect();
            let mut commit = self.at(family, |plane| plane.apply(&own)).unwrap();
            commit.refused.retain(|refusal| self.mode.carries(refusal.name.protocol));
            assert!(commit.refused.is_empty(), "{family}: {:?}", commit.refused);
        }
        changes
    }

    /// Changes the options of the mode, and restarts the data planes.
    pub fn set_options(&mut self, options: ModeOptions) {
        self.options = options;
        self.restart();
    }

    /// Replaces the data planes with new ones that have no state, as a restart of the program does.
    pub fn restart(&mut self) -> PerFamily<Commit> {
        for family in Family::BOTH {
            let mut plane = open(&self.world, self.mode, self.settings.get(family), self.options);
            let changes: Vec<Change> = self
                .table(family)
                .into_iter()
                .map(|(name, new)| Change { name, family, old: None, new: Some(new) })
                .collect();
            // The resync compares everything before the first write.
            plane.driven.apply(&changes).unwrap();
            *self.planes.get_mut(family) = plane;
        }
        self.resync()
    }

    /// Returns the differences between the forwarding table and what the mode reads back from the kernel.
    pub fn read_back(&self) -> Vec<String> {
        let mut differences = Vec::new();
        for family in Family::BOTH {
            let (settings, relay) = (self.settings.get(family), self.planes.get(family).relay.as_ref());
            let mode = self.mode;
            let observed = self.world.node().namespace().run(|| mode.read(settings, relay)).unwrap();
            let mut carried = self.table(family);
            carried.retain(|(name, _)| self.mode.carries(name.protocol));
            differences.extend(observed.difference(&carried).iter().map(|found| format!("{family} {found}")));
        }
        differences
    }

    /// Returns what each Service port has counted.
    pub fn counted(&self, family: Family) -> Vec<(Arc<ServicePortName>, Counted)> {
        let (settings, relay) = (self.settings.get(family), self.planes.get(family).relay.as_ref());
        let mode = self.mode;
        let observed = self.world.node().namespace().run(|| mode.read(settings, relay)).unwrap();
        let table = self.table(family);
        let counted = observed.counted(&table);
        table.into_iter().map(|(name, _)| name).zip(counted).collect()
    }

    /// Returns what the relay has counted, in modes with one.
    pub fn relay_counters(&self, family: Family) -> String {
        let relay = self.planes.get(family).relay.as_ref();
        relay.map_or_else(String::new, |relay| format!("; relay: {:?}", relay.counters()))
    }

    /// Reads the kernel's state back and writes the differences.
    pub fn resync(&mut self) -> PerFamily<Commit> {
        per_family(|family| self.at(family, Driven::resync).unwrap())
    }

    /// Removes everything that only former Services needed.
    pub fn collect(&mut self) {
        for family in Family::BOTH {
            self.at(family, |plane| while plane.collect().unwrap() {});
        }
    }

    /// Removes everything that the data planes wrote.
    pub fn remove(&mut self) {
        for family in Family::BOTH {
            self.at(family, Driven::remove).unwrap();
        }
    }

    /// Returns the forwarding table of a family.
    pub fn table(&self, family: Family) -> Vec<(Arc<ServicePortName>, Arc<Forwarding>)> {
        self.catalog.forwardings(family).collect()
    }

    /// Adds to a verdict why each endpoint of its Service port serves or not.
    pub(crate) fn with_endpoints(&self, verdict: Verdict, family: Family) -> Verdict {
        let decision = verdict.decided_by.as_ref();
        let explained = decision.and_then(|decision| self.catalog.explain(&decision.name, family));
        match explained {
            Some(explained) => verdict.with_endpoints(&explained.selection),
            None => verdict,
        }
    }

    /// Adds an address of each family to the node, and a sender that uses them.
    pub fn add_node_addresses(&mut self, name: &str, addresses: [IpAddr; 2]) {
        let [ipv4, ipv6] = addresses;
        let lines = format!("addr add {ipv4}/32 dev lo\naddr add {ipv6}/128 dev lo nodad\n");
        let namespace = self.world.node().namespace().clone();
        namespace.ip(&lines).unwrap();
        for address in addresses {
            wait_for_address(&namespace, address);
        }
        self.more_node_addresses.extend(addresses);
        self.senders.push(Sender {
            name: name.to_owned(),
            namespace,
            addresses,
            place: SenderLocation::Node,
        });
    }

    /// Makes the outside client respond at an additional address.
    pub fn serve_outside(&mut self, at: SocketAddr) {
        let namespace = self.world.client().namespace();
        let options = if at.is_ipv4() { "/32 dev lo" } else { "/128 dev lo nodad" };
        namespace.ip(&format!("addr add {}{options}\n", at.ip())).unwrap();
        wait_for_address(namespace, at.ip());
        let places = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| (protocol, at));
        self.world.echo().listen_many(namespace, &places).unwrap();
        self.outside.insert(at);
    }

    /// Returns everything that the kernel's tools list in the node's namespace.
    pub fn ruleset(&self) -> String {
        self.mode.ruleset(self.world.node().namespace())
    }

    /// Returns the mode of the data planes.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the objects.
    pub const fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns how the mode differs from the oracle's rules in a family.
    pub fn differences(&self, family: Family) -> ModeDifferences {
        self.mode.differences(self.settings(family), self.options)
    }

    /// Runs `work` on a data plane, in the node's network namespace.
    fn at<T: Send>(&mut self, family: Family, work: impl FnOnce(&mut Driven<Boxed>) -> T + Send) -> T {
        let plane = self.planes.get_mut(family);
        self.world.node().namespace().run(|| work(&mut plane.driven)).unwrap()
    }

    /// Returns the next resource version.
    pub(crate) const fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Returns true if a responder listens at this address and port.
    pub(crate) fn is_responder(&self, place: SocketAddr) -> bool {
        let nodes = [Site::Local, Site::Remote];
        let is_host =
            self.is_pod(place.ip()) || nodes.iter().any(|site| site.node().both().contains(&place.ip()));
        self.outside.contains(&place) || (is_host && TARGET_PORTS.contains(&place.port()))
    }

    pub(crate) fn is_pod(&self, address: IpAddr) -> bool {
        let mut pods = self.world.pods().iter().chain(self.world.remote_pods());
        pods.any(|pod| pod.address(Family::of(address)) == address)
    }

    pub(crate) fn is_node_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node_addresses().contains(&address)
    }

    pub(crate) fn node_addresses(&self) -> Vec<IpAddr> {
        let own = self.world.node().all_addresses();
        own.into_iter().chain(self.more_node_addresses.iter().copied()).collect()
    }

    /// Returns the source port of a refused packet to the same destination: the kernel must not track a flow from it. Otherwise
    /// returns one that no recent probe of this namespace has used, so that no flow that the kernel still tracks is continued.
    pub(crate) fn source_port(&mut self, flow: FlowKey) -> u16 {
        if let Some(port) = self.refused_ports.remove(&flow) {
            return port;
        }
        let (namespace, _, protocol, _) = flow;
        let next = self.source_ports.entry((namespace, protocol)).or_insert(FIRST_SOURCE_PORT);
        let port = *next;
        *next = next.checked_add(1).unwrap_or(FIRST_SOURCE_PORT);
        if *next == FIRST_SOURCE_PORT {
            // Other flows use these ports now.
            self.refused_ports.retain(|(other, _, of, _), _| (*other, *of) != (namespace, protocol));
        }
        port
    }
}

/// Makes every pod and both nodes respond at the target ports.
fn respond_everywhere(world: &World) {
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        for port in TARGET_PORTS {
            for pod in world.pods().iter().chain(world.remote_pods()) {
                world.serve(pod, protocol, port).unwrap();
            }
            for node in [world.node(), world.remote_node()] {
                world.serve_on(node, protocol, port).unwrap();
            }
        }
    }
    world.answer_remote_pods_through_node().unwrap();
}

fn open(world: &World, mode: Mode, settings: &Settings, options: ModeOptions) -> Plane {
    world.node().namespace().run(|| mode.open(settings, options)).unwrap()
}

/// Waits until the kernel has added the route of a new IPv6 address, which it does a moment later. Connections are
/// not refused before that.
fn wait_for_address(namespace: &Namespace, address: IpAddr) {
    let probe = Probe::new(Protocol::Tcp, SocketAddr::new(address, CLOSED_PORT));
    let refused = || namespace.probe(probe.expecting_silence()).unwrap() == ProbeResult::Refused;
    eventually(ADDRESS_WITHIN, "a new address takes packets", refused).unwrap();
}

fn cidr(texts: [&str; 2], family: Family) -> IpNet {
    texts[usize::from(family == Family::Ipv6)].parse().unwrap()
}

fn per_family<T>(mut make: impl FnMut(Family) -> T) -> PerFamily<T> {
    PerFamily { ipv4: make(Family::Ipv4), ipv6: make(Family::Ipv6) }
}
