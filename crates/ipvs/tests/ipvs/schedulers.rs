//! Tests how each scheduler of IPVS chooses endpoints, by connections. None may be replaced with the default if the guest's
//! kernel has its module.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_engine::Driven;
use portolan_ipvs::Ipvs;
use portolan_model::{Change, Family, Forwarding, IpvsScheduler};
use portolan_sock::namespace::in_new_network_namespace;
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::example::{cluster_ip, put};
use super::support::{in_namespace, loaded, run, virtual_servers};

const ENDPOINTS: [&str; 3] = ["10.181.0.1:8080", "10.181.0.2:8080", "10.181.0.3:8080"];
/// The number of Services, each with its own cluster IP.
const SERVICES: u8 = 12;
/// The number of addresses from which clients connect.
const CLIENTS: u8 = 24;
const PATIENCE: Duration = Duration::from_secs(120);
/// If it is `1`, tests fail on a kernel without the scheduler `twos`. Without it, they are skipped there.
const TWOS_MUST_RUN: &str = "PORTOLAN_TEST_TWOS";

/// Services with one scheduler, and endpoints that accept connections.
struct Bench {
    listeners: Vec<TcpListener>,
    ipvs: Driven<Ipvs>,
    scheduler: IpvsScheduler,
}

/// A connection, and the number of the endpoint that accepted it.
struct Connection {
    endpoint: usize,
    client: TcpStream,
    _server: TcpStream,
}

impl Bench {
    fn new(scheduler: IpvsScheduler) -> Self {
        run("ip", "link add pods type dummy");
        run("ip", "link set pods up");
        for client in 1..=CLIENTS {
            run("ip", &format!("address add {}/32 dev pods", client_address(client)));
        }
        let listen = |place: &&str| {
            let place: SocketAddr = place.parse().unwrap();
            run("ip", &format!("address add {}/32 dev pods", place.ip()));
            let listener = TcpListener::bind(place).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let listeners = ENDPOINTS.iter().map(listen).collect();
        let mut bench = Self { listeners, ipvs: loaded(Family::Ipv4, &[]), scheduler };
        bench.set(&ENDPOINTS);
        for head in virtual_servers().iter().filter(|line| line.starts_with("TCP")) {
            assert_eq!(head.split(' ').nth(2), Some(scheduler.name()), "{head}");
        }
        bench
    }

    /// Gives all Services these endpoints.
    fn set(&mut self, endpoints: &[&str]) {
        let change = |number: u8| {
            let address = service_address(number).to_string();
            let forwarding = cluster_ip(&address, 80, endpoints);
            let forwarding = Forwarding { ipvs_scheduler: Some(self.scheduler), ..forwarding };
            put(&format!("web{number}"), "", forwarding)
        };
        let changes: Vec<Change> = (1..=SERVICES).map(change).collect();
        let commit = self.ipvs.apply(&changes).unwrap();
        assert_eq!(commit.refused, [], "{}", self.scheduler);
    }

    /// Connects to a Service, from the address of a client or from any address.
    fn connect(&self, service: u8, client: Option<u8>) -> Connection {
        self.connect_from(service, client.map(|client| SocketAddr::new(client_address(client), 0)))
    }

    /// Does the same from a port of an address.
    fn connect_from(&self, service: u8, source: Option<SocketAddr>) -> Connection {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_timeout(&fd, Timeout::Send, Some(PATIENCE)).unwrap();
        // A reset ends the kernel's entry of the connection, which otherwise counts for two minutes.
        set_socket_linger(&fd, Some(Duration::ZERO)).unwrap();
        if let Some(source) = source {
            bind(&fd, &source).unwrap();
        }
        connect(&fd, &SocketAddr::new(service_address(service), 80)).unwrap();
        let mut found = None;
        let accepts = || {
            found = self.listeners.iter().enumerate().find_map(|(endpoint, listener)| {
                listener.accept().ok().map(|(server, _)| (endpoint, server))
            });
            found.is_some()
        };
        portolan_testkit::eventually(PATIENCE, "an endpoint accepts", accepts).unwrap();
        let (endpoint, server) = found.unwrap();
        Connection { endpoint, client: TcpStream::from(fd), _server: server }
    }

    /// Connects so often to the first Service, and keeps the connections.
    fn keep(&self, times: usize) -> Vec<Connection> {
        (0..times).map(|_| self.connect(1, None)).collect()
    }
}

impl Connection {
    /// Sends something, and returns the error with which the connection ends.
    fn error_of_a_question(&mut self) -> ErrorKind {
        self.client.set_read_timeout(Some(PATIENCE)).unwrap();
        self.client.write_all(b"ping").unwrap();
        self.client.read(&mut [0]).unwrap_err().kind()
    }
}

fn service_address(number: u8) -> IpAddr {
    Ipv4Addr::new(172, 30, 20, number).into()
}

fn client_address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 182, 0, number).into()
}

fn endpoints(connections: &[Connection]) -> Vec<usize> {
    connections.iter().map(|connection| connection.endpoint).collect()
}

/// Returns true if each endpoint is chosen once in the first three choices, and the order stays.
fn takes_turns(order: &[usize]) -> bool {
    let (round, rest) = order.split_at(3);
    round.iter().collect::<BTreeSet<_>>().len() == 3 && rest.chunks(3).all(|next| round.starts_with(next))
}

/// Returns true if the guest's kernel can have the scheduler. Debian's kernel 6.1 was built without `twos`.
pub(crate) fn can_have(scheduler: IpvsScheduler) -> bool {
    if scheduler != IpvsScheduler::Twos {
        return true;
    }
    let has_it = !run("find", "/lib/modules/ -name ip_vs_twos.ko*").is_empty();
    if !has_it {
        let must_run = std::env::var(TWOS_MUST_RUN).is_ok_and(|value| value == "1");
        assert!(!must_run, "this kernel has no module ip_vs_twos, and {TWOS_MUST_RUN}=1 requires it");
        eprintln!("left out: this kernel has no module ip_vs_twos");
    }
    has_it
}

/// Runs a check with each of these schedulers.
fn with_each(schedulers: &[IpvsScheduler], check: impl Fn(&mut Bench) + Sync) {
    for &scheduler in schedulers {
        in_namespace(|| {
            if can_have(scheduler) {
                check(&mut Bench::new(scheduler));
            }
        });
    }
}

#[test]
fn in_turn() {
    with_each(&[IpvsScheduler::Rr, IpvsScheduler::Wrr], |bench| {
        let order = endpoints(&bench.keep(9));
        assert!(takes_turns(&order), "{}: {order:?}", bench.scheduler);
    });
}

/// An endpoint whose connections end is idle. Taking turns would use another one next.
#[test]
fn by_the_number_of_connections() {
    use IpvsScheduler::{Lc, Nq, Sed, Wlc};
    with_each(&[Lc, Wlc, Sed, Nq], |bench| {
        let mut kept = bench.keep(6);
        let spread =
            |kept: &[Connection]| [0, 1, 2].map(|of| endpoints(kept).iter().filter(|&&at| at == of).count());
        assert_eq!(spread(&kept), [2, 2, 2], "{}", bench.scheduler);
        let idle = kept[5].endpoint;
        kept.retain(|connection| connection.endpoint != idle);
        let active = || active_connections()[idle];
        portolan_testkit::eventually(PATIENCE, "connections end", || active() == 0).unwrap();
        let next = bench.keep(2);
        assert_eq!(endpoints(&next), [idle, idle], "{}", bench.scheduler);
    });
}

/// Returns the active connections of each endpoint of the first Service.
fn active_connections() -> [u32; 3] {
    let listed = run("ipvsadm", &format!("--list --numeric --tcp-service {}:80", service_address(1)));
    ENDPOINTS.map(|endpoint| {
        let line = listed.lines().find(|line| line.contains(endpoint)).unwrap();
        line.split_whitespace().nth(4).unwrap().parse().unwrap()
    })
}

#[test]
fn by_the_address_of_the_client() {
    with_each(&[IpvsScheduler::Sh], |bench| {
        let of = |client| bench.connect(1, Some(client)).endpoint;
        let first: Vec<usize> = (1..=CLIENTS).map(of).collect();
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3, "{first:?}");
        // In the other order, turns would give most clients another endpoint.
        let mut second: Vec<usize> = (1..=CLIENTS).rev().map(of).collect();
        second.reverse();
        assert_eq!(first, second);
    });
}

/// `mh` also hashes the client's port, as with kube-proxy, so connections of one client are spread.
#[test]
fn by_the_address_and_port_of_the_client() {
    with_each(&[IpvsScheduler::Mh], |bench| {
        let kept: Vec<Connection> = (0..CLIENTS).map(|_| bench.connect(1, Some(1))).collect();
        let first = endpoints(&kept);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3, "{first:?}");
        assert!(!takes_turns(&first), "{first:?}");
        let sources: Vec<SocketAddr> =
            kept.iter().map(|connection| connection.client.local_addr().unwrap()).collect();
        drop(kept);
        // The kernel's entry of a connection would lead the next one from its port to the same endpoint.
        portolan_testkit::eventually(PATIENCE, "the entries of connections end", || entries() == [""; 0])
            .unwrap();
        let again = |source: &SocketAddr| bench.connect_from(1, Some(*source)).endpoint;
        let mut second: Vec<usize> = sources.iter().rev().map(again).collect();
        second.reverse();
        assert_eq!(first, second);
    });
}

/// Returns the lines of the kernel's connections of IPVS.
fn entries() -> Vec<String> {
    let listed = run("ipvsadm", "--list --numeric --connection");
    listed.lines().skip(2).map(str::to_owned).collect()
}

/// The table of these schedulers has the places of a draining endpoint, too.
#[test]
fn by_the_client_while_an_endpoint_drains() {
    with_each(&[IpvsScheduler::Sh, IpvsScheduler::Mh], |bench| {
        let kept: Vec<Connection> = (1..=CLIENTS).map(|client| bench.connect(1, Some(client))).collect();
        let used = endpoints(&kept);
        assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), 3, "{}: {used:?}", bench.scheduler);
        let removed = used[0];
        let mut left = ENDPOINTS.to_vec();
        left.remove(removed);
        bench.set(&left);
        assert!(active_connections()[removed] > 0, "{}: it drains", bench.scheduler);
        let next: Vec<usize> =
            (1..=CLIENTS).chain(1..=CLIENTS).map(|client| bench.connect(1, Some(client)).endpoint).collect();
        assert!(!next.contains(&removed), "{}: {next:?}", bench.scheduler);
    });
}

/// With `dh`, connections to a removed endpoint end at once: a draining one would still get the connections to its
/// addresses.
#[test]
fn by_the_address_of_the_service() {
    in_namespace(|| {
        let mut bench = Bench::new(IpvsScheduler::Dh);
        let of = |bench: &Bench, client| {
            (1..=SERVICES).map(|service| bench.connect(service, Some(client)).endpoint).collect::<Vec<_>>()
        };
        let first = of(&bench, 1);
        assert!((2..4).all(|client| of(&bench, client) == first), "{first:?}");
        assert!(first.iter().collect::<BTreeSet<_>>().len() > 1, "{first:?}");
        let mut open = bench.connect(1, Some(1));
        let removed = open.endpoint;
        let mut left = ENDPOINTS.to_vec();
        left.remove(removed);
        bench.set(&left);
        assert!(!virtual_servers().iter().any(|line| line.contains(ENDPOINTS[removed])));
        assert!(of(&bench, 1).iter().all(|endpoint| *endpoint != removed));
        assert_eq!(open.error_of_a_question(), ErrorKind::ConnectionReset);
        let port = open.client.local_addr().unwrap().port();
        assert!(!entries().iter().any(|entry| entry.contains(&format!(":{port} "))), "{:?}", entries());
    });
}

/// The schedulers for caches use the endpoint of a destination again while it is not overloaded.
#[test]
fn by_the_address_of_the_service_while_the_endpoint_is_not_overloaded() {
    with_each(&[IpvsScheduler::Lblc, IpvsScheduler::Lblcr], |bench| {
        let first = bench.connect(1, None).endpoint;
        for client in 1..=9 {
            portolan_testkit::eventually(PATIENCE, "connections end", || active_connections() == [0; 3])
                .unwrap();
            assert_eq!(bench.connect(1, Some(client)).endpoint, first, "{}", bench.scheduler);
        }
    });
}

#[test]
fn one_endpoint_until_it_fails_or_is_full() {
    with_each(&[IpvsScheduler::Fo], |bench| {
        let order = endpoints(&bench.keep(6));
        assert_eq!(order, [order[0]; 6]);
    });
    // The weight of every endpoint is 1. An endpoint is full with more connections than its weight.
    with_each(&[IpvsScheduler::Ovf], |bench| {
        let order = endpoints(&bench.keep(6));
        assert!(order.chunks(2).all(|pair| pair[0] == pair[1]), "{order:?}");
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 3, "{order:?}");
    });
}

/// Of two random endpoints the one with fewer connections is used, so none is left out and none gets most of them.
#[test]
fn the_better_of_two_random_endpoints() {
    with_each(&[IpvsScheduler::Twos], |bench| {
        let order = endpoints(&bench.keep(60));
        assert!(!takes_turns(&order), "{order:?}");
        for endpoint in 0..3 {
            let times = order.iter().filter(|&&at| at == endpoint).count();
            assert!((10..=30).contains(&times), "{order:?}");
        }
    });
}

/// Sets the flag when it is dropped.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The kernel must not load these modules itself: while a namespace ends, it would lock up. This test would then not end.
#[test]
fn modules_are_loaded_while_namespaces_end() {
    let schedulers = [IpvsScheduler::Lblc, IpvsScheduler::Lblcr];
    in_namespace(|| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Also if this thread panics: the scope waits for the other one.
            let _end = OnDrop(&over);
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    in_new_network_namespace(|| ()).unwrap();
                }
            });
            let mut ipvs = loaded(Family::Ipv4, &[]);
            for scheduler in schedulers.repeat(5) {
                let forwarding = cluster_ip("172.30.20.1", 80, &ENDPOINTS);
                let wants = Forwarding { ipvs_scheduler: Some(scheduler), ..forwarding };
                let change = put("web", "", wants);
                let gone = Change { new: None, ..change.clone() };
                assert_eq!(ipvs.apply(&[change]).unwrap().refused, [], "{scheduler}");
                ipvs.apply(&[gone]).unwrap();
                // Another test may use the module.
                let _ = Command::new("rmmod").arg(format!("ip_vs_{scheduler}")).status();
            }
        });
    });
}
