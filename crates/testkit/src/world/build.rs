//! Builds a world: first namespaces and kernel settings, then all links in the two nodes, then each participant's own
//! side, with one iproute2 process per namespace.

use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use portolan_model::Protocol;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Node, Pod, World};
use crate::plan::PODS_PER_NODE;
use crate::{
    Addresses, EchoServer, Namespace, Probe, ProbeResult, Site, TestkitError, eventually_some, probe_many,
};

/// The link-local gateway of pods, the same on each pod's interface.
const LINK_LOCAL_GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The Ethernet addresses of a link's two ends: that of the node (between the two nodes: the local one) and the
/// other. Every link is a wire of its own, so all can have the same addresses. Because both are known, no ARP or
/// neighbour discovery is needed, and no packet waits a second because the first request was lost.
const NEAR: &str = "02:00:00:00:00:01";
const FAR: &str = "02:00:00:00:00:02";
/// Maximum time until a new link or address takes packets.
pub(super) const LINKS_WITHIN: Duration = Duration::from_secs(60);
const LINK_PROBE_TIMEOUT: Duration = Duration::from_millis(20);
/// The discard port, where nothing listens.
pub(super) const CLOSED_PORT: u16 = 9;
/// The routing table of a node for packets from its pods.
const POD_TABLE: u8 = 100;
/// First interface index of links in the nodes. The kernel reports the carrier of a veth at once only if the two ends
/// have different indexes. Otherwise it may take a second, and packets are lost until then.
const FIRST_INDEX: usize = 100;

/// Kernel settings of every namespace. Reverse-path checks and redirects would interfere with asymmetric paths through
/// virtual addresses, duplicate address detection takes a second per address, and the rate limits of ICMP would
/// suppress refusals. High limits would do so, too: while one processor fills a namespace's empty bucket, another finds
/// it empty (`icmp_global_allow`). So refusals are excluded from the limits.
const SETTINGS: &[(&str, &str)] = &[
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratemask", "127"),
    // As on a host that has not loaded br_netfilter.
    ("net/bridge/bridge-nf-call-iptables", "0"),
    ("net/bridge/bridge-nf-call-ip6tables", "0"),
];
/// Kernel settings of each interface, set for `all` and for `default`.
const INTERFACE_SETTINGS: &[(&str, &str)] = &[
    ("net/ipv4/conf/*/rp_filter", "0"),
    ("net/ipv4/conf/*/send_redirects", "0"),
    ("net/ipv4/conf/*/accept_redirects", "0"),
    ("net/ipv6/conf/*/disable_ipv6", "0"),
    ("net/ipv6/conf/*/accept_dad", "0"),
    ("net/ipv6/conf/*/accept_ra", "0"),
    ("net/ipv6/conf/*/accept_redirects", "0"),
];
const FORWARDING: &[(&str, &str)] = &[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")];

/// The size of a [`World`].
#[derive(Clone, Copy, Debug)]
pub struct WorldBuilder {
    pods: usize,
    remote_pods: usize,
}

impl WorldBuilder {
    pub(super) const fn new() -> Self {
        Self { pods: 4, remote_pods: 2 }
    }

    /// Sets the number of pods on the node; at most 244.
    #[must_use]
    pub const fn pods(mut self, count: usize) -> Self {
        self.pods = count;
        self
    }

    /// Sets the number of pods on the remote node; at most 244.
    #[must_use]
    pub const fn remote_pods(mut self, count: usize) -> Self {
        self.remote_pods = count;
        self
    }

    /// Builds the world. After the return, all participants can reach each other.
    pub fn build(self) -> Result<World, TestkitError> {
        raise_file_limit();
        let names = self.names()?;
        let mut namespaces = in_parallel(&names, |name| create(name))?.into_iter();
        let mut next = |what: &'static str| {
            let nothing = TestkitError::TooMany { what, asked: 1, limit: 0 };
            namespaces.next().ok_or(nothing)
        };
        let node = Node { namespace: next("node")?, site: Site::Local };
        let remote_node = Node { namespace: next("remote node")?, site: Site::Remote };
        let client = Pod {
            namespace: next("client")?,
            addresses: Addresses::CLIENT,
            interface: "eth1".to_owned(),
            node: node.clone(),
        };
        let mut site_pods = |node: &Node, count: usize| {
            (1..=count).map(|number| Ok(pod(next("pod")?, node, number))).collect::<Result<Vec<_>, _>>()
        };
        let pods = site_pods(&node, self.pods)?;
        let remote_pods = site_pods(&remote_node, self.remote_pods)?;
        let world = World { echo: EchoServer::start()?, node, remote_node, client, pods, remote_pods };
        connect(&world)?;
        Ok(world)
    }

    fn names(self) -> Result<Vec<String>, TestkitError> {
        for (what, asked) in [("pods", self.pods), ("remote pods", self.remote_pods)] {
            if asked > PODS_PER_NODE {
                return Err(TestkitError::TooMany { what, asked, limit: PODS_PER_NODE });
            }
        }
        let fixed = ["node", "remote-node", "client"].map(str::to_owned).into_iter();
        let pods = (1..=self.pods).map(|number| format!("pod{number}"));
        let remote_pods = (1..=self.remote_pods).map(|number| format!("remote-pod{number}"));
        Ok(fixed.chain(pods).chain(remote_pods).collect())
    }
}

fn pod(namespace: Namespace, node: &Node, number: usize) -> Pod {
    let addresses = node.site.pod(u8::try_from(number).unwrap_or(u8::MAX));
    Pod { namespace, addresses, interface: format!("pod{number}"), node: node.clone() }
}

/// Raises the limit of open files. A batch of probes with their connections at the responders needs more than the usual
/// soft limit of 1,024. If the limit cannot be raised, opening the files fails later.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn create(name: &str) -> Result<Namespace, TestkitError> {
    let namespace = Namespace::new(name)?;
    let per_interface = INTERFACE_SETTINGS
        .iter()
        .flat_map(|(key, value)| ["all", "default"].map(|interface| (key.replace('*', interface), *value)));
    let forwarding = if name.ends_with("node") { FORWARDING } else { &[] };
    let general = SETTINGS.iter().chain(forwarding).map(|(key, value)| ((*key).to_owned(), *value));
    namespace.write_sysctls(&per_interface.chain(general).collect::<Vec<_>>())?;
    Ok(namespace)
}

fn connect(world: &World) -> Result<(), TestkitError> {
    world.node.namespace.ip(&node_links(world))?;
    let mut sides = vec![(&world.remote_node.namespace, remote_node_side(world))];
    sides.push((&world.client.namespace, client_side()));
    sides.extend(world.pods.iter().map(|pod| (&pod.namespace, pod_side(pod))));
    in_parallel(&sides, |(namespace, lines)| namespace.ip(lines))?;
    remote_node_rules(world)?;
    // The remote pods' ends exist only after the remote node's links.
    in_parallel(&world.remote_pods, |pod| pod.namespace.ip(&pod_side(pod)))?;
    wait_for_links(world)
}

/// Waits until every link carries packets. The kernel drops packets that are sent before it notices that a link is up, so
/// each link is probed until a refusal comes back.
fn wait_for_links(world: &World) -> Result<(), TestkitError> {
    let pods = world.pods.iter().chain(&world.remote_pods);
    let mut ends: Vec<_> = pods.map(|pod| (&pod.namespace, pod.node.site.gateway())).collect();
    ends.push((&world.remote_node.namespace, Site::Local.node()));
    ends.push((&world.client.namespace, Addresses::OUTSIDE));
    let probe = |to| Probe::new(Protocol::Tcp, SocketAddr::new(to, CLOSED_PORT)).timeout(LINK_PROBE_TIMEOUT);
    let both = |(namespace, to): (_, Addresses)| to.both().map(|to| (namespace, probe(to)));
    let mut waiting: Vec<_> = ends.into_iter().flat_map(both).collect();
    eventually_some(LINKS_WITHIN, "the first packet over every link", || match probe_many(&waiting) {
        Ok(results) => {
            let mut results = results.into_iter();
            waiting.retain(|_| results.next() != Some(ProbeResult::Refused));
            waiting.is_empty().then_some(Ok(()))
        }
        Err(error) => Some(Err(error)),
    })?
}

/// Returns the commands for the node: links to the remote node, to the client and to its pods.
fn node_links(world: &World) -> String {
    let mut lines = Lines::default();
    lines.add(&"link set lo up");
    lines.link("eth0", FIRST_INDEX, &world.remote_node.namespace);
    lines.link("eth1", FIRST_INDEX + 1, &world.client.namespace);
    lines.subnet("eth0", Site::Local.node(), Site::Remote.node().both(), FAR);
    lines.subnet("eth1", Addresses::OUTSIDE, Addresses::CLIENT.both(), FAR);
    lines.pods(&world.pods, Site::Local, FIRST_INDEX + 2);
    let (own, client) = (Site::Local.node(), Addresses::CLIENT);
    lines.add(&format_args!("route add 0.0.0.0/0 via {} src {}", client.ipv4, own.ipv4));
    lines.add(&format_args!("route add ::/0 via {} src {}", client.ipv6, own.ipv6));
    let remote = Site::Remote.node();
    lines.add(&format_args!("route add 10.244.2.0/24 via {} src {}", remote.ipv4, own.ipv4));
    lines.add(&format_args!("route add fd00:10:244:2::/64 via {} src {}", remote.ipv6, own.ipv6));
    lines.0
}

/// Returns the commands for the remote node. Packets that are not for itself go to the node, and so do all packets of
/// its pods, even to each other, so that answers take the same path back.
fn remote_node_side(world: &World) -> String {
    let mut lines = Lines::default();
    lines.add(&"link set lo up");
    lines.subnet("eth0", Site::Remote.node(), Site::Local.node().both(), NEAR);
    lines.pods(&world.remote_pods, Site::Remote, FIRST_INDEX);
    for gateway in Site::Local.node().both() {
        let all = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        lines.add(&format_args!("route add {all} via {gateway}"));
        lines.add(&format_args!("route add {all} via {gateway} table {POD_TABLE}"));
    }
    lines.0
}

/// Adds the remote node's routing rules. The family of such a rule does not follow from an address, and iproute2 takes
/// it as an option of the process.
fn remote_node_rules(world: &World) -> Result<(), TestkitError> {
    let mut lines = Lines::default();
    for pod in &world.remote_pods {
        lines.add(&format_args!("rule add iif {} lookup {POD_TABLE}", pod.interface));
    }
    let namespace = &world.remote_node.namespace;
    in_parallel(&["-4", "-6"], |family| namespace.output_with_input("ip", &[family, "-batch", "-"], &lines.0))
        .map(drop)
}

/// Adds the remote node's routing rule for packets from its own addresses.
pub(super) fn remote_node_answers(world: &World) -> Result<(), TestkitError> {
    let namespace = &world.remote_node.namespace;
    for (option, address) in ["-4", "-6"].into_iter().zip(Site::Remote.node().both()) {
        let rule = format!("rule add from {address} lookup {POD_TABLE}\n");
        namespace.output_with_input("ip", &[option, "-batch", "-"], &rule)?;
    }
    Ok(())
}

fn client_side() -> String {
    let mut lines = Lines::default();
    lines.add(&"link set lo up");
    lines.subnet("eth0", Addresses::CLIENT, Addresses::OUTSIDE.both(), NEAR);
    lines.add(&format_args!("route add 0.0.0.0/0 via {}", Addresses::OUTSIDE.ipv4));
    lines.add(&format_args!("route add ::/0 via {}", Addresses::OUTSIDE.ipv6));
    lines.0
}

fn pod_side(pod: &Pod) -> String {
    let mut lines = Lines::default();
    let gateway = pod.node.site.gateway().ipv4;
    lines.add(&"link set lo up");
    lines.add(&"link set eth0 up");
    lines.host_addresses("eth0", pod.addresses);
    lines.neighbours("eth0", [gateway.into(), LINK_LOCAL_GATEWAY.into()], NEAR);
    lines.add(&format_args!("route add {gateway} dev eth0"));
    lines.add(&format_args!("route add 0.0.0.0/0 via {gateway}"));
    lines.add(&format_args!("route add ::/0 via {LINK_LOCAL_GATEWAY} dev eth0"));
    lines.0
}

/// Lines of iproute2 commands.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, line: &dyn std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn link(&mut self, interface: &str, index: usize, peer: &Namespace) {
        let path = peer.path();
        self.add(&format_args!("link add {interface} index {index} address {NEAR} type veth peer name eth0 address {FAR} netns {path}"));
    }

    /// Adds an interface with its addresses in a /24 and a /64 subnet, and its neighbours.
    fn subnet(&mut self, interface: &str, addresses: Addresses, peer: [IpAddr; 2], ethernet: &str) {
        self.add(&format_args!("link set {interface} up"));
        self.add(&format_args!("addr add {}/24 dev {interface}", addresses.ipv4));
        self.add(&format_args!("addr add {}/64 dev {interface} nodad", addresses.ipv6));
        self.neighbours(interface, peer, ethernet);
    }

    fn neighbours(&mut self, interface: &str, addresses: [IpAddr; 2], ethernet: &str) {
        for address in addresses {
            self.add(&format_args!("neigh add {address} lladdr {ethernet} dev {interface} nud permanent"));
        }
    }

    fn host_addresses(&mut self, interface: &str, addresses: Addresses) {
        self.add(&format_args!("addr add {}/32 dev {interface}", addresses.ipv4));
        self.add(&format_args!("addr add {}/128 dev {interface} nodad", addresses.ipv6));
    }

    /// Adds the node's ends of its pods' links, with a host route to each pod.
    fn pods(&mut self, pods: &[Pod], site: Site, first_index: usize) {
        for (number, pod) in pods.iter().enumerate() {
            let interface = &pod.interface;
            self.link(interface, first_index + number, &pod.namespace);
            self.add(&format_args!("link set {interface} up"));
            self.host_addresses(interface, site.gateway());
            self.add(&format_args!("addr add {LINK_LOCAL_GATEWAY}/64 dev {interface} nodad"));
            self.neighbours(interface, pod.addresses.both(), FAR);
            for address in pod.addresses.both() {
                self.add(&format_args!("route add {}", host_route(address, interface)));
            }
        }
    }
}

fn host_route(address: IpAddr, interface: &str) -> String {
    let length = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{length} dev {interface}")
}

fn in_parallel<I: Sync, T: Send>(
    items: &[I],
    work: impl Fn(&I) -> Result<T, TestkitError> + Sync,
) -> Result<Vec<T>, TestkitError> {
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> = items.iter().map(|item| scope.spawn(move || work(item))).collect();
        running.into_iter().map(|handle| handle.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
