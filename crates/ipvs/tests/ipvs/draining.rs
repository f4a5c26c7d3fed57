//! Tests what is reached at addresses of Services that stay on the device of a replaced mode for its connections.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use portolan_engine::{Boxed, Driven};
use portolan_iptables::{Iptables, IptablesOptions, Variant};
use portolan_ipvs::Ipvs;
use portolan_model::{Change, Family, Forwarding, Frontend, LocalDetector, Protocol, Settings};
use portolan_nftables::Nftables;
use portolan_testkit::{Namespace, World, eventually};

use super::example::{cluster_ip, ip, put};
use super::load::{programs, world_settings};
use super::support::{in_namespace, loaded_by, options, rules, run, write_settings};

const CLUSTER_IP: &str = "10.96.0.10";
const LOAD_BALANCER_IP: &str = "203.0.113.80";
/// A port of the node that no Service has.
const OF_NODE: u16 = 9999;
const PATIENCE: Duration = Duration::from_secs(60);

type Plane = Driven<Boxed>;

/// Without a detector of local traffic, packets of this node to cluster IPs are not masqueraded as those from outside.
fn settings() -> Settings {
    Settings { local_detector: LocalDetector::None, ..world_settings() }
}

fn ipvs() -> Boxed {
    write_settings();
    Box::new(Ipvs::open(programs(Variant::Nft), settings(), options()).unwrap())
}

fn nftables() -> Boxed {
    Box::new(Nftables::open(settings()).unwrap())
}

fn iptables() -> Boxed {
    Box::new(Iptables::new(programs(Variant::Nft), settings(), IptablesOptions::default()))
}

/// Returns Services whose endpoint is on another node.
fn services() -> Vec<Change> {
    let endpoints = ["10.244.2.11:8080"];
    let outside = Frontend::LoadBalancerIp(ip(LOAD_BALANCER_IP), 80);
    let web = cluster_ip(CLUSTER_IP, 80, &endpoints);
    let frontends: Box<[Frontend]> = web.frontends.iter().copied().chain([outside]).collect();
    vec![put("web", "", Forwarding { frontends, ..web })]
}

fn started(node: &Namespace, make: fn() -> Boxed) -> Plane {
    let work = move || {
        let mut plane = Driven::new(settings(), make());
        plane.apply(&services()).unwrap();
        plane.resync().unwrap();
        plane
    };
    node.run(work).unwrap()
}

/// A connection to a responder, which has answered.
struct Connection {
    stream: TcpStream,
    /// The answer, with the source address that the responder has seen.
    answer: String,
}

impl Connection {
    fn open(from: &Namespace, address: &str, port: u16) -> std::io::Result<Self> {
        let place = SocketAddr::new(address.parse().unwrap(), port);
        let stream = from.run(|| TcpStream::connect_timeout(&place, PATIENCE)).unwrap()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer)?;
        Ok(Self { stream, answer })
    }

    fn works(&mut self) -> bool {
        let mut buffer = [0; 4];
        self.stream.write_all(b"ping").is_ok()
            && self.stream.read_exact(&mut buffer).is_ok()
            && buffer == *b"ping"
    }

    /// The kernel keeps a closed connection for two minutes, but not one that is reset.
    fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }
}

fn world() -> World {
    let world = World::builder().pods(1).remote_pods(1).build().unwrap();
    world.serve(&world.remote_pods()[0], Protocol::Tcp, 8080).unwrap();
    world
}

fn while_connections_drain(other: fn() -> Boxed) {
    if in_namespace(|| ()).is_none() {
        return;
    }
    let world = world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let _listener = node.run(|| TcpListener::bind(("0.0.0.0", OF_NODE)).unwrap()).unwrap();
    let mut former = started(node, ipvs);
    let mut own = Connection::open(node, CLUSTER_IP, 80).unwrap();
    let mut outside = Connection::open(client, LOAD_BALANCER_IP, 80).unwrap();
    let refused = || Connection::open(client, LOAD_BALANCER_IP, OF_NODE).map(|_| ()).unwrap_err().kind();
    assert_eq!(refused(), std::io::ErrorKind::ConnectionRefused);

    let new = started(node, other);
    let kept = new.about().claims;
    let mut step = || node.run(|| former.remove_part(kept).unwrap()).unwrap();
    let sets = || node.run(|| run("ipset", "list -n")).unwrap();
    let addresses =
        || node.run(|| run("ip", "-4 -oneline address show dev kube-ipvs0").lines().count()).unwrap();
    eventually(PATIENCE, "the sets are removed", || step() && sets().lines().count() == 2).unwrap();
    assert_eq!(sets(), "KUBE-IPVS-IPS\nPORTOLAN-VIRTUAL-SERVERS\n");
    for _ in 0..100 {
        assert!(step(), "connections are there");
    }
    assert_eq!(addresses(), 2);
    assert!(own.works() && outside.works());
    // New ones are those of the new mode.
    let mut new_own = Connection::open(node, CLUSTER_IP, 80).unwrap();
    assert!(new_own.works());
    // From the address of a Service, no answer would come back to this node in a cluster.
    let source =
        world.node().all_addresses().iter().any(|address| new_own.answer.contains(&address.to_string()));
    assert!(source && !new_own.answer.contains(CLUSTER_IP), "{}", new_own.answer);
    assert!(Connection::open(client, LOAD_BALANCER_IP, 80).unwrap().works());
    assert_eq!(refused(), std::io::ErrorKind::ConnectionRefused);
    // What the userspace mode has captured is let through: it has the mark of that mode.
    let mark = format!("--set-mark {:#x}", settings().capture_mark());
    let captured = format!("PREROUTING --protocol tcp --dport {OF_NODE} --jump MARK {mark}");
    node.run(|| run("iptables-nft", &format!("--table mangle --append {captured}"))).unwrap();
    let captured = client
        .run(|| TcpStream::connect_timeout(&SocketAddr::new(ip(LOAD_BALANCER_IP), OF_NODE), PATIENCE))
        .unwrap();
    drop(captured.unwrap());

    // The guards follow the addresses, and go with the last one.
    outside.reset();
    eventually(PATIENCE * 2, "one address is left", || step() && addresses() == 1).unwrap();
    assert!(step() && own.works() && new_own.works());
    own.reset();
    new_own.reset();
    eventually(PATIENCE * 2, "nothing is left", || !step()).unwrap();
    assert_eq!(sets(), "");
    let left = node.run(rules).unwrap();
    assert!(!left.contains("IPVS"), "{left}");
    assert!(!node.run(|| run("ip", "link")).unwrap().contains("kube-ipvs0"));
}

#[test]
fn this_node_reaches_services_of_the_nftables_mode() {
    while_connections_drain(nftables);
}

#[test]
fn this_node_reaches_services_of_the_iptables_mode() {
    while_connections_drain(iptables);
}

#[test]
fn guards_are_written_in_each_family_and_variant() {
    in_namespace(|| {
        for (family, six, address, endpoint) in [
            (Family::Ipv4, "", "172.30.10.9", "192.168.0.99:53"),
            (Family::Ipv6, "6", "fd00:172::9", "[fd00:192:168::99]:53"),
        ] {
            for (variant, name) in [(Variant::Nft, "nft"), (Variant::Legacy, "legacy")] {
                let dns = Forwarding { protocol: Protocol::Udp, ..cluster_ip(address, 53, &[endpoint]) };
                let mut ipvs = loaded_by(variant, family, &[put("dns", "", dns)]);
                // The kernel keeps a flow for five minutes.
                let socket = UdpSocket::bind(SocketAddr::new(ip(address), 0)).unwrap();
                socket.send_to(b"ping", (ip(address), 53)).unwrap();
                let saved = || run(&format!("ip{six}tables-{name}-save"), "--counters");
                let is_guarded =
                    || !saved().contains("KUBE-SERVICES") && saved().contains("KUBE-IPVS-FILTER");
                eventually(PATIENCE, "the rules are removed", || {
                    assert!(ipvs.remove_part(None).unwrap());
                    is_guarded()
                })
                .unwrap();
                let rules = saved();
                assert_eq!(rules.matches("--ctstatus CONFIRMED").count(), 3, "{rules}");
                // The mode may come back.
                drop(ipvs);
                let mut again = loaded_by(variant, family, &[]);
                assert!(!saved().contains("ctstatus"), "{}", saved());
                again.remove().unwrap();
                assert!(!saved().contains("KUBE"), "{}", saved());
                assert_eq!(run("ipset", "list -n"), "");
            }
        }
    });
}
