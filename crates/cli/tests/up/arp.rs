//! Who answers ARP for a load-balancer address, on the network of its clients.

use std::net::SocketAddr;

use portolan_testkit::{Family, Namespace, PortolanProcess, Probe, Protocol, World, eventually};

use crate::common::{self, PATIENCE, backends, reaches};
use crate::{Site, files, printed, service};

/// The address of the Service, in the network of the client.
const ADDRESS: &str = "203.0.113.200";
/// Another address of this network.
const OTHER: &str = "203.0.113.201";
/// The interface of the client.
const CLIENT_INTERFACE: &str = "eth0";

/// `tcpdump` at the client. Its output has a line for each ARP packet.
struct Capture(PortolanProcess);

impl Capture {
    /// Starts it. Returns `None` if this machine has no tcpdump and the Makefile does not provide it.
    fn start(client: &Namespace) -> Option<Self> {
        let program = files::tool("tcpdump")?;
        // It stays root: a process that changes its user is not killed with the test.
        let options = ["-n", "-e", "-l", "-t", "--immediate-mode", "-Z", "root"];
        let arguments = [&options[..], &["-i", CLIENT_INTERFACE, "arp"]].concat();
        let mut process = PortolanProcess::start(client, program.get_program().as_ref(), &arguments).unwrap();
        process.wait_for_output(PATIENCE, "listening on").unwrap();
        Some(Self(process))
    }

    /// Returns true if a Service asks for an address.
    fn is_asked(&self, address: &str) -> bool {
        self.0.output().contains(&format!("Request who-has {address} tell "))
    }

    /// Returns the replies for an address: the Ethernet address of each sender, and the one in the reply.
    fn replies(&self, address: &str) -> Vec<[String; 2]> {
        let reply = format!("Reply {address} is-at ");
        let output = self.0.output();
        let parse = |line: &str| {
            let (header, rest) = line.split_once(&reply)?;
            let (sender, named) = (header.split_whitespace().next()?, rest.split([',', ' ']).next()?);
            Some([sender.to_owned(), named.to_owned()])
        };
        output.lines().filter_map(parse).collect()
    }
}

/// Returns the Ethernet address of an interface.
fn ethernet_address(namespace: &Namespace, interface: &str) -> String {
    let text = namespace.output("ip", &["-o", "link", "show", "dev", interface]).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).unwrap().to_owned()
}

#[test]
fn the_network_finds_a_load_balancer_address_at_the_host_that_has_it() {
    let world: World = common::world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let pod = &world.pods()[0];
    let site = Site::new();
    let web = service("web=80", &[pod], Family::Ipv4);
    let range = format!("--load-balancer-ip-range={ADDRESS}/32");
    let mut up = site.up(node, &["--node-ip=192.168.100.1", &range, &web]);
    let to = SocketAddr::new(ADDRESS.parse().unwrap(), 80);
    assert!(printed(&up.output(), "default/web 80/TCP").contains(&to), "{}", up.output());
    let is_answered = || {
        let neighbours = client.output("ip", &["neigh", "show", "to", ADDRESS]).unwrap();
        neighbours.contains("lladdr")
    };
    let capture = Capture::start(client);
    let outside = node.output("ip", &["-o", "address", "show", "to", "203.0.113.1"]).unwrap();
    let interface = outside.split_whitespace().nth(1).unwrap();

    // The host does not announce the address, and does not answer ARP for it.
    assert!(backends(client, Protocol::Tcp, to).is_empty() && !is_answered());
    if let Some(capture) = &capture {
        // The reply for an address of the host arrives after everything that the requests before it caused.
        node.ip(&format!("addr add {OTHER}/32 dev {interface}\n")).unwrap();
        let closed = Probe::new(Protocol::Tcp, SocketAddr::new(OTHER.parse().unwrap(), 9));
        let is_seen = || {
            client.probe(closed).unwrap();
            !capture.replies(OTHER).is_empty()
        };
        eventually(PATIENCE, "a reply for another address", is_seen).unwrap();
        assert!(capture.is_asked(ADDRESS), "{}", capture.0.output());
        assert!(capture.replies(ADDRESS).is_empty(), "{}", capture.0.output());
    }

    node.ip(&format!("addr add {ADDRESS}/32 dev {interface}\n")).unwrap();
    reaches(client, Protocol::Tcp, to, &[pod]);
    assert!(is_answered());
    if let Some(capture) = &capture {
        eventually(PATIENCE, "a reply", || !capture.replies(ADDRESS).is_empty()).unwrap();
        let own = ethernet_address(node, interface);
        let is_own = |reply: &[String; 2]| reply.iter().all(|address| *address == own);
        assert!(capture.replies(ADDRESS).iter().all(is_own), "{own}: {}", capture.0.output());
    }
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}
