//! From names to addresses: who the client is, and which address and port the packet is sent to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::oracle::{FlowState, Origin, Packet};
use portolan_model::table::Entry;
use portolan_model::{Family, Frontend, LocalDetector, Protocol, ServicePortName};

use crate::facts::{Facts, FamilyView, Pod};
use crate::question::{Question, Sender, ServicePortRef, Target};
use crate::report::{Client, ClientKind, Note};

/// Examples of addresses outside of a cluster, from the ranges for documentation (RFC 5737, RFC 3849).
const EXAMPLES: [&str; 4] = ["203.0.113.1", "198.51.100.1", "192.0.2.1", "2001:db8:ffff::1"];

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    /// No pod has this name.
    #[error(
        "no pod `{0}` with an address is known; write its address instead: pods are known from Pods and EndpointSlices of \
         manifests and of the API server, and a running proxy knows none"
    )]
    NoPod(String),
    /// Several pods have this name.
    #[error("several pods match `{name}`; write one of: {}", choices.join(", "))]
    AmbiguousPod {
        /// The name.
        name: String,
        /// The pods that match.
        choices: Vec<String>,
    },
    /// No Service has this name.
    #[error(
        "no Service `{0}` with a cluster IP is known; headless Services, those of type ExternalName and those of another \
         proxy have none here"
    )]
    NoService(String),
    /// The Service does not have this port.
    #[error("`{target}`: the Service has no such port; write one of: {}", choices.join(", "))]
    NoServicePort {
        /// The destination.
        target: String,
        /// Its ports.
        choices: Vec<String>,
    },
    /// Several Services, ports or protocols match.
    #[error("`{target}` is ambiguous; write one of: {}", choices.join(", "))]
    AmbiguousService {
        /// The destination.
        target: String,
        /// The destinations that match.
        choices: Vec<String>,
    },
    /// The Service has no cluster IP of the client's family.
    #[error(
        "`{target}` has no {family} cluster IP, and the client has an {family} address; write another one"
    )]
    NoClusterIp {
        /// The destination.
        target: String,
        /// The client's family.
        family: Family,
    },
    /// The client and the destination have addresses of different families.
    #[error(
        "the client {client} and the destination {destination} are of different IP families; write addresses of one family"
    )]
    Families {
        /// The client.
        client: IpAddr,
        /// The destination.
        destination: IpAddr,
    },
    /// The pod has no address of the destination's family.
    #[error(
        "`{sender}` has no {family} address, and the destination has one; write a destination of the other family"
    )]
    NoAddress {
        /// The client.
        sender: String,
        /// The destination's family.
        family: Family,
    },
    /// This node does not serve the family.
    #[error("{0} is not served on this node")]
    FamilyNotServed(Family),
    /// The endpoint of an established flow is not known.
    #[error(
        "only conntrack knows where an established flow goes, and it was not read, not completely, or this mode keeps it \
         elsewhere; name the endpoint of the flow"
    )]
    FlowNotKnown,
}

/// A question with addresses in place of names.
pub(crate) struct Asked<'a> {
    pub(crate) client: Client,
    /// Name of the interface at which the packet arrives, if the question names it.
    pub(crate) input: Option<String>,
    pub(crate) destination: SocketAddr,
    pub(crate) protocol: Protocol,
    /// True if the destination is local to this node because Services have the address, and not an interface of its own.
    pub(crate) is_virtual: bool,
    pub(crate) family: Family,
    pub(crate) view: &'a FamilyView,
    /// True if the packet belongs to a flow that is established.
    pub(crate) established: bool,
    pub(crate) notes: Vec<Note>,
}

/// Finds the client and the destination of a question.
pub(crate) fn resolve<'a>(question: &Question, facts: &Facts<'a>) -> Result<Asked<'a>, Unanswerable> {
    let pod = match &question.from {
        Sender::Pod(name) => Some(find_pod(name, facts.pods)?),
        _ => None,
    };
    let mut families = Family::BOTH.to_vec();
    match (&question.from, pod) {
        (Sender::Address(address), _) => families = vec![Family::of(*address)],
        (_, Some(pod)) => families.retain(|family| address_of(pod, *family).is_some()),
        _ => {}
    }
    let (destination, protocol) = match &question.to {
        Target::Socket { socket, protocol } => (*socket, *protocol),
        Target::Service { .. } => find_service(&question.to, facts, &families)?,
    };
    let family = Family::of(destination.ip());
    let view = facts.node.families.get(family).as_ref().ok_or(Unanswerable::FamilyNotServed(family))?;
    let is_virtual = is_virtual(facts, view, destination.ip());
    let mut client = client(question, facts, view, pod, destination.ip(), is_virtual)?;
    let mut notes = Vec::new();
    interface(&mut client, question, facts, view, &mut notes);
    if client.kind == ClientKind::Pod && client.node.as_ref().is_some_and(|node| *node != facts.node.name) {
        let node = client.node.as_deref().unwrap_or_default();
        notes.push(Note::new(
            "client-on-other-node",
            format!(
                "the client is a pod of node {node}, whose own proxy handles its packets to Services; this is what would \
                 happen on node {}",
                facts.node.name
            ),
        ));
    }
    let input = question.interface.clone();
    Ok(Asked { client, input, destination, protocol, is_virtual, family, view, established: false, notes })
}

/// The packets that a question is about, with addresses in place of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The address of the client. `None` if the question names none, so that the packets of all clients are meant.
    pub client: Option<IpAddr>,
    /// The address and port of the destination.
    pub destination: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
}

/// Returns the packets that a question is about.
///
/// # Errors
/// As [`answer`](crate::answer).
pub fn ends(question: &Question, facts: &Facts<'_>) -> Result<Ends, Unanswerable> {
    let Asked { client, destination, protocol, .. } = resolve(question, facts)?;
    Ok(Ends { client: (!client.example).then_some(client.address), destination, protocol })
}

impl Asked<'_> {
    /// Returns the packet for the oracle.
    pub(crate) fn packet(&self, flow: FlowState) -> Packet<'_> {
        let input_interface = self.client.interface.as_deref().unwrap_or_default();
        let origin = match self.client.kind {
            ClientKind::Node => Origin::Node,
            ClientKind::Pod => Origin::Pod { input_interface },
            ClientKind::Outside => Origin::Remote { input_interface },
        };
        Packet {
            origin,
            source: self.client.address,
            destination: self.destination.ip(),
            protocol: self.protocol,
            port: self.destination.port(),
            flow,
        }
    }
}

/// Returns the pod that sends packets, if the sender is a pod or its address is that of only one pod.
///
/// # Errors
/// No pod has the name of the sender, or several pods have it.
pub fn sender_pod<'a>(from: &Sender, pods: &'a [Pod]) -> Result<Option<&'a Pod>, Unanswerable> {
    match from {
        Sender::Pod(name) => find_pod(name, pods).map(Some),
        Sender::Address(address) => Ok(pod_at(pods, *address)),
        Sender::Node | Sender::Outside => Ok(None),
    }
}

/// Returns the only pod with an address. Pods in the network of a node share its addresses, and those of an address that
/// several pods list are not told apart.
pub(crate) fn pod_at(pods: &[Pod], address: IpAddr) -> Option<&Pod> {
    let mut found = pods.iter().filter(|pod| pod.addresses.contains(&address));
    found.next().filter(|_| found.next().is_none())
}

/// Finds the pod with a name: `NAME`, or `NAME.NAMESPACE`. Names of pods may have dots.
fn find_pod<'a>(name: &str, pods: &'a [Pod]) -> Result<&'a Pod, Unanswerable> {
    let is_it = |pod: &&Pod| {
        let with_namespace = name.rsplit_once('.');
        pod.name == name || with_namespace == Some((pod.name.as_str(), pod.namespace.as_str()))
    };
    let found: Vec<&Pod> = pods.iter().filter(is_it).collect();
    match found.as_slice() {
        [] => Err(Unanswerable::NoPod(name.to_owned())),
        [pod] => Ok(pod),
        several => Err(Unanswerable::AmbiguousPod {
            name: name.to_owned(),
            choices: several.iter().map(|pod| format!("pod/{}", pod.full_name())).collect(),
        }),
    }
}

fn address_of(pod: &Pod, family: Family) -> Option<IpAddr> {
    pod.addresses.iter().copied().find(|address| Family::of(*address) == family)
}

/// Finds the cluster IP and port of a Service in the first family that has one.
fn find_service(
    target: &Target,
    facts: &Facts<'_>,
    families: &[Family],
) -> Result<(SocketAddr, Protocol), Unanswerable> {
    let Target::Service { name, namespace, port, protocol } = target else {
        return Err(Unanswerable::NoService(target.to_string()));
    };
    let of_service = |entry: &Entry| {
        *entry.0.service == **name && namespace.as_ref().is_none_or(|wanted| *entry.0.namespace == **wanted)
    };
    let all: Vec<Entry> = Family::BOTH
        .iter()
        .flat_map(|family| facts.services.table(*family))
        .filter(of_service)
        .filter(|(_, forwarding)| cluster_ip(&forwarding.frontends).is_some())
        .collect();
    if all.is_empty() {
        return Err(Unanswerable::NoService(target.to_string()));
    }
    let matches = |entry: &&Entry| {
        let has_port = match port {
            None => true,
            Some(ServicePortRef::Name(wanted)) => *entry.0.port == **wanted,
            Some(ServicePortRef::Number(wanted)) => {
                cluster_ip(&entry.1.frontends).is_some_and(|socket| socket.port() == *wanted)
            }
        };
        has_port && protocol.is_none_or(|wanted| entry.0.protocol == wanted)
    };
    let found: Vec<&Entry> = all.iter().filter(matches).collect();
    let mut names: Vec<&Arc<ServicePortName>> = found.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => Err(Unanswerable::NoServicePort { target: target.to_string(), choices: choices(all.iter()) }),
        [_] => {
            let sockets = || found.iter().filter_map(|(_, forwarding)| cluster_ip(&forwarding.frontends));
            let of = |family: &Family| sockets().find(|socket| Family::of(socket.ip()) == *family);
            let socket = families.iter().find_map(of);
            let family = families.first().copied().unwrap_or(Family::Ipv4);
            let socket =
                socket.ok_or_else(|| Unanswerable::NoClusterIp { target: target.to_string(), family })?;
            let protocol = found.first().map_or(Protocol::Tcp, |(name, _)| name.protocol);
            Ok((socket, protocol))
        }
        _ => Err(Unanswerable::AmbiguousService {
            target: target.to_string(),
            choices: choices(found.into_iter()),
        }),
    }
}

/// Returns the Service ports in the form in which a destination names them, each once.
fn choices<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<String> {
    let mut choices: Vec<String> = entries
        .filter_map(|(name, forwarding)| {
            let target = Target::Service {
                name: name.service.to_string(),
                namespace: Some(name.namespace.to_string()),
                port: Some(ServicePortRef::Number(cluster_ip(&forwarding.frontends)?.port())),
                protocol: Some(name.protocol),
            };
            Some(target.to_string())
        })
        .collect();
    choices.sort_unstable();
    choices.dedup();
    choices
}

fn cluster_ip(frontends: &[Frontend]) -> Option<SocketAddr> {
    let cluster_ip = frontends.iter().find(|frontend| matches!(frontend, Frontend::ClusterIp(..)));
    cluster_ip.and_then(|frontend| frontend.socket())
}

/// Returns true if an address is local to this node because a frontend of Services has it, and no interface of its own.
fn is_virtual(facts: &Facts<'_>, view: &FamilyView, address: IpAddr) -> bool {
    let has = |frontend: &Frontend| frontend.socket().is_some_and(|socket| socket.ip() == address);
    view.differences.refuses_at_virtual_addresses
        && !facts.node.has(address)
        && facts
            .services
            .table(Family::of(address))
            .iter()
            .any(|(_, forwarding)| forwarding.frontends.iter().any(has))
}

/// Returns the client of a question, without its interface.
fn client(
    question: &Question,
    facts: &Facts<'_>,
    view: &FamilyView,
    pod: Option<&Pod>,
    destination: IpAddr,
    is_virtual: bool,
) -> Result<Client, Unanswerable> {
    let family = Family::of(destination);
    let client =
        |kind, address| Client { kind, address, example: false, pod: None, node: None, interface: None };
    let address = match &question.from {
        Sender::Node => return Ok(node(facts, view, destination, is_virtual)),
        Sender::Outside => {
            return Ok(Client { example: true, ..client(ClientKind::Outside, example(facts, view, family)) });
        }
        Sender::Address(address) => *address,
        Sender::Pod(name) => pod
            .and_then(|pod| address_of(pod, family))
            .ok_or_else(|| Unanswerable::NoAddress { sender: format!("pod/{name}"), family })?,
    };
    if Family::of(address) != family {
        return Err(Unanswerable::Families { client: address, destination });
    }
    if facts.node.has(address) {
        return Ok(Client { node: Some(facts.node.name.clone()), ..client(ClientKind::Node, address) });
    }
    // The address of a Node is that of its processes, too, not only of a pod in its network.
    let of_node = facts.node_addresses.contains(&address);
    let pod = pod.or_else(|| pod_at(facts.pods, address).filter(|_| !of_node));
    let here = facts.node.pod_cidrs.iter().any(|cidr| cidr.contains(&address));
    if pod.is_none() && !here && !is_in_detected_cidr(view, address) {
        return Ok(client(ClientKind::Outside, address));
    }
    let here = here.then(|| facts.node.name.clone());
    Ok(Client {
        pod: pod.map(Pod::full_name),
        node: pod.and_then(|pod| pod.node.clone()).or(here),
        ..client(ClientKind::Pod, address)
    })
}

fn is_in_detected_cidr(view: &FamilyView, address: IpAddr) -> bool {
    matches!(&view.settings.local_detector, LocalDetector::Cidr(cidr) if cidr.contains(&address))
}

/// Returns this node as the client. Packets to its own addresses have the same address as source, others the one that the
/// route to the destination says. If that is not known, it is the destination if the node has this address for Services, or else
/// the node's own address.
fn node(facts: &Facts<'_>, view: &FamilyView, destination: IpAddr, is_virtual: bool) -> Client {
    let family = Family::of(destination);
    let listed = || facts.node.addresses.iter().copied().find(|address| Family::of(*address) == family);
    let own = is_virtual.then_some(destination).or(view.settings.node_ip).or_else(listed);
    let by_route = facts.node_source.filter(|source| Family::of(*source) == family);
    let address = if facts.node.has(destination) { Some(destination) } else { by_route.or(own) };
    let unspecified = match family {
        Family::Ipv4 => IpAddr::from([0_u8; 4]),
        Family::Ipv6 => IpAddr::from([0_u8; 16]),
    };
    Client {
        kind: ClientKind::Node,
        address: address.unwrap_or(unspecified),
        example: address.is_none(),
        pod: None,
        node: Some(facts.node.name.clone()),
        interface: None,
    }
}

/// Returns an address that belongs neither to the node nor to pods.
fn example(facts: &Facts<'_>, view: &FamilyView, family: Family) -> IpAddr {
    let is_free = |address: &IpAddr| {
        let is_of_pods = facts.node.pod_cidrs.iter().any(|cidr| cidr.contains(address));
        !facts.node.has(*address) && !is_of_pods && !is_in_detected_cidr(view, *address)
    };
    let mut examples = EXAMPLES
        .iter()
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .filter(|address| Family::of(*address) == family);
    let first = examples.clone().next();
    let found = examples.find(is_free).or(first);
    // There is an example of each family.
    found.unwrap_or(IpAddr::from([203, 0, 113, 1]))
}

/// Sets the interface at which the packet arrives. Where pods are recognised by their interface, that of a pod of this
/// node is assumed to be one that is recognised.
fn interface(
    client: &mut Client,
    question: &Question,
    facts: &Facts<'_>,
    view: &FamilyView,
    notes: &mut Vec<Note>,
) {
    if client.kind == ClientKind::Node {
        return;
    }
    client.interface.clone_from(&question.interface);
    let recognised = match &view.settings.local_detector {
        LocalDetector::Interface(name) => name.to_string(),
        LocalDetector::InterfacePrefix(prefix) => format!("{prefix}0"),
        LocalDetector::None | LocalDetector::Cidr(_) => return,
    };
    if client.interface.is_some() {
        return;
    }
    let is_pod_here =
        client.kind == ClientKind::Pod && client.node.as_ref().is_none_or(|node| *node == facts.node.name);
    let text = if is_pod_here {
        client.interface = Some(recognised.clone());
        format!(
            "pods are recognised by their interface; it is assumed that packets of this one arrive at {recognised}"
        )
    } else {
        format!(
            "pods are recognised by their interface; it is assumed that these packets do not arrive at one like {recognised}"
        )
    };
    notes.push(Note::new("interface-assumed", text));
}
