//! Tests live connections: those to removed endpoints go on until the deadline.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use portolan_engine::{Condition, Driven};
use portolan_iptables::{Programs, Variant};
use portolan_ipvs::{Ipvs, IpvsOptions, Meter, Timeouts};
use portolan_model::{Change, Family, Forwarding, IpvsScheduler, Protocol};

use super::example::{cluster_ip, put, settings};
use super::schedulers::can_have;
use super::support::{
    addresses, in_namespace, ipvsadm, loaded, open, open_with, options, run, virtual_servers,
};

const SERVICE: &str = "172.30.10.1";
const ENDPOINTS: [&str; 2] = ["10.180.0.1:8080", "10.180.0.2:8080"];
/// Set in guests of `tests/vm`.
const GUEST: &str = "PORTOLAN_TEST_GUEST";

/// Listens at the endpoints, which are addresses of this namespace.
fn listeners() -> [TcpListener; 2] {
    run("ip", "link add pods type dummy");
    run("ip", "link set pods up");
    ENDPOINTS.map(|place| {
        let place: SocketAddr = place.parse().unwrap();
        run("ip", &format!("address add {}/32 dev pods", place.ip()));
        TcpListener::bind(place).unwrap()
    })
}

fn service(endpoints: &[&str]) -> Change {
    put("web", "", cluster_ip(SERVICE, 80, endpoints))
}

fn connect() -> TcpStream {
    let place = SocketAddr::new(SERVICE.parse().unwrap(), 80);
    TcpStream::connect_timeout(&place, Duration::from_secs(120)).unwrap()
}

fn works(client: &mut TcpStream, server: &mut TcpStream) -> bool {
    server.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut buffer = [0; 4];
    client.write_all(b"ping").is_ok() && server.read_exact(&mut buffer).is_ok()
}

fn weights() -> Vec<String> {
    virtual_servers().into_iter().filter(|line| line.starts_with(' ')).collect()
}

fn eventually(what: &str, condition: impl FnMut() -> bool) {
    portolan_testkit::eventually(Duration::from_secs(120), what, condition)
        .unwrap_or_else(|error| panic!("{error}: {}", run("ipvsadm", "--list --numeric --connection")));
}

#[test]
fn an_endpoint_ends_with_its_connections() {
    in_namespace(|| {
        let listeners = listeners();
        let timeouts = closed_for(2);
        let mut ipvs = open_with(settings(Family::Ipv4), IpvsOptions { timeouts, ..options() });
        ipvs.apply(&[service(&ENDPOINTS[..1])]).unwrap();
        ipvs.resync().unwrap();
        assert!(run("ipvsadm", "--list --timeout").contains("900 2 300"), "others stay as they are");
        let mut client = connect();
        let mut server = listeners[0].accept().unwrap().0;
        assert!(works(&mut client, &mut server));

        ipvs.apply(&[service(&ENDPOINTS[1..])]).unwrap();
        assert_eq!(weights(), ["  -> 10.180.0.1:8080 Masq weight 0", "  -> 10.180.0.2:8080 Masq weight 1"]);
        assert!(ipvs.draining() > 0);
        assert!(ipvs.collect().unwrap(), "its connection is there");
        assert!(works(&mut client, &mut server));
        let _second = connect();
        listeners[1].accept().unwrap();

        // A restart with a comparison leaves the draining endpoint.
        let mut ipvs = open_with(settings(Family::Ipv4), IpvsOptions { timeouts, ..options() });
        ipvs.apply(&[service(&ENDPOINTS[1..])]).unwrap();
        assert_eq!(ipvs.resync().unwrap().elements, 0);
        assert_eq!(ipvs.draining(), 1);
        assert!(ipvs.collect().unwrap());
        assert!(works(&mut client, &mut server));

        // The endpoint returns, and is removed again.
        ipvs.apply(&[service(&ENDPOINTS)]).unwrap();
        assert_eq!(weights(), ["  -> 10.180.0.1:8080 Masq weight 1", "  -> 10.180.0.2:8080 Masq weight 1"]);
        assert_eq!(ipvs.draining(), 0);
        assert!(works(&mut client, &mut server));
        ipvs.apply(&[service(&ENDPOINTS[1..])]).unwrap();
        // The kernel keeps a closed connection for two minutes, but not one that is reset.
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop((client, server));
        eventually("the endpoint is removed", || !ipvs.collect().unwrap());
        assert_eq!(weights(), ["  -> 10.180.0.2:8080 Masq weight 1"]);
        assert!(ipvs.is_intact().unwrap());
    });
}

/// The guest's kernel refuses timeouts above `INT_MAX / HZ` seconds (`ip_vs_set_timeout` in `net/netfilter/ipvs/ip_vs_ctl.c`).
#[test]
fn a_timeout_that_the_kernel_refuses_stops_nothing_else() {
    in_namespace(|| {
        let timeouts = Timeouts { tcp: i32::MAX.unsigned_abs(), tcp_fin: 7, udp: 0 };
        let mut ipvs = open_with(settings(Family::Ipv4), IpvsOptions { timeouts, ..options() });
        ipvs.apply(&[service(&ENDPOINTS)]).unwrap();
        ipvs.resync().unwrap();
        assert!(run("ipvsadm", "--list --timeout").contains("900 7 300"));
        assert_eq!(virtual_servers()[0], format!("TCP {SERVICE}:80 rr"));
        assert_eq!(ipvs.resync().unwrap().elements, 0);
    });
}

fn closed_for(seconds: u32) -> Timeouts {
    Timeouts { tcp_fin: seconds, ..Timeouts::default() }
}

#[test]
fn an_endpoint_ends_at_its_deadline() {
    in_namespace(|| {
        let listeners = listeners();
        let mut ipvs =
            open_with(settings(Family::Ipv4), IpvsOptions { drain: Duration::from_millis(1), ..options() });
        ipvs.apply(&[service(&ENDPOINTS[..1])]).unwrap();
        ipvs.resync().unwrap();
        let _connection = (connect(), listeners[0].accept().unwrap());
        ipvs.apply(&[service(&ENDPOINTS[1..])]).unwrap();
        eventually("the endpoint is removed", || !ipvs.collect().unwrap());
        assert_eq!(weights(), ["  -> 10.180.0.2:8080 Masq weight 1"]);
    });
}

/// Returns the upper threshold of the first endpoint's real server, from which a restart reads the deadline.
fn bounds() -> Vec<String> {
    let listed = ipvsadm("--list --numeric --thresholds");
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&ENDPOINTS[0])).then(|| words[2].to_owned())
    };
    listed.lines().filter_map(of).collect()
}

#[test]
fn a_deadline_outlives_restarts() {
    in_namespace(|| {
        let listeners = listeners();
        let meter = Arc::<Meter>::default();
        assert_eq!(meter.draining(), None);
        let loaded = |drain: Duration, endpoints: &[&str]| {
            let programs = Programs::of(Family::Ipv4, Variant::Nft).unwrap();
            let ipvs =
                Ipvs::open(programs, settings(Family::Ipv4), IpvsOptions { drain, ..options() }).unwrap();
            let mut ipvs = Driven::new(settings(Family::Ipv4), ipvs.with_meter(Arc::clone(&meter)));
            ipvs.apply(&[service(endpoints)]).unwrap();
            let commit = ipvs.resync().unwrap();
            (ipvs, commit)
        };
        let hour = Duration::from_secs(3600);
        let (mut ipvs, _) = loaded(hour, &ENDPOINTS);
        // Each endpoint gets one connection.
        let _connections = ([connect(), connect()], listeners.map(|listener| listener.accept().unwrap()));
        let uptime = || rustix::system::sysinfo().uptime;
        let before = uptime();
        ipvs.apply(&[service(&ENDPOINTS[1..])]).unwrap();
        assert_eq!(meter.draining(), Some(1));
        let bound = bounds();
        let until: i64 = bound[0].parse().unwrap();
        assert!((before + 3600..=uptime() + 3600).contains(&until), "{until} at {before} to {}", uptime());
        // A restart with the same or a longer drain period keeps the deadline.
        for more in [hour, hour * 2] {
            let (mut ipvs, commit) = loaded(more, &ENDPOINTS[1..]);
            assert_eq!((commit.elements, bounds()), (0, bound.clone()));
            assert!(ipvs.collect().unwrap() && ipvs.draining() == 1);
        }
        // A real server of weight 0 that another program, such as kube-proxy, left gets a deadline once.
        let edit = format!("--edit-server --tcp-service {SERVICE}:80 --real-server {}", ENDPOINTS[0]);
        run("ipvsadm", &format!("{edit} --masquerading --weight 0"));
        assert_eq!(bounds(), ["0"]);
        assert_eq!(loaded(hour, &ENDPOINTS[1..]).1.elements, 1);
        assert_eq!(loaded(hour, &ENDPOINTS[1..]).1.elements, 0);
        // The endpoint serves again, without a threshold.
        loaded(hour, &ENDPOINTS);
        assert_eq!((bounds(), meter.draining()), (vec!["0".to_owned()], Some(0)));
        // After the deadline, a restart removes it in spite of its connection.
        run("ipvsadm", &format!("{edit} --masquerading --weight 0 --u-threshold 1"));
        let (mut ipvs, _) = loaded(hour, &ENDPOINTS[1..]);
        assert_eq!((bounds(), meter.draining()), (vec!["1".to_owned()], Some(1)));
        assert!(!ipvs.collect().unwrap());
        assert_eq!(weights(), ["  -> 10.180.0.2:8080 Masq weight 1"]);
        assert_eq!(meter.draining(), Some(0));
    });
}

#[test]
fn an_endpoint_of_udp_ends_at_once() {
    in_namespace(|| {
        let udp = |endpoints: &[&str]| {
            let forwarding = Forwarding { protocol: Protocol::Udp, ..cluster_ip(SERVICE, 53, endpoints) };
            put("dns", "", forwarding)
        };
        let mut ipvs = loaded(Family::Ipv4, &[udp(&ENDPOINTS)]);
        ipvs.apply(&[udp(&ENDPOINTS[1..])]).unwrap();
        assert_eq!(weights(), ["  -> 10.180.0.2:8080 Masq weight 1"]);
        assert_eq!(ipvs.draining(), 0);
    });
}

#[test]
fn a_retiring_data_plane_keeps_connections() {
    in_namespace(|| {
        let listeners = listeners();
        let mut ipvs = loaded(Family::Ipv4, &[service(&ENDPOINTS[..1])]);
        let (mut client, mut server) = (connect(), listeners[0].accept().unwrap().0);
        // Like rules of another mode, this one keeps conntrack active.
        run("iptables-nft", "--append INPUT --match conntrack --ctstate INVALID");
        assert!(ipvs.remove_part(None).unwrap());
        assert!(ipvs.removal_due().is_some(), "packets that were led in are waited for");
        assert!(super::support::rules().contains("KUBE-POSTROUTING"));
        eventually("rules are removed", || {
            assert!(ipvs.remove_part(None).unwrap());
            !super::support::rules().contains("KUBE-SERVICES")
        });
        for _ in 0..100 {
            assert!(ipvs.remove_part(None).unwrap(), "its connection is there");
        }
        assert!(ipvs.removal_due().is_some(), "it waits for the next look");
        assert!(works(&mut client, &mut server));
        assert_eq!(addresses()[0], format!("{SERVICE}/32"));
        // A data plane that takes over again finds the connection.
        let mut again = open(Family::Ipv4);
        again.apply(&[service(&ENDPOINTS[..1])]).unwrap();
        again.resync().unwrap();
        assert!(works(&mut client, &mut server));
        let mut again = open_with(settings(Family::Ipv4), IpvsOptions { drain: Duration::ZERO, ..options() });
        again.apply(&[service(&ENDPOINTS[..1])]).unwrap();
        again.resync().unwrap();
        eventually("all of it is removed", || !again.remove_part(None).unwrap());
        assert!(!run("ip", "link").contains("kube-ipvs0"));
    });
}

/// A kernel module that cannot be found until this is dropped.
struct Hidden {
    file: PathBuf,
}

impl Hidden {
    /// Hides the module. Returns `None` outside the guest, so that no other host's modules are touched.
    fn new(module: &str) -> Option<Self> {
        std::env::var_os(GUEST)?;
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let is_guest = mounts.lines().any(|line| line.starts_with("rootfs / "));
        assert!(is_guest, "{GUEST} is set, and this is no guest: {mounts}");
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let folder = format!("/lib/modules/{}", release.trim());
        let found = run("find", &format!("{folder}/ -name {module}.ko*"));
        let file = PathBuf::from(found.lines().next().expect("the guest has every module of IPVS"));
        std::fs::rename(&file, file.with_extension("hidden")).unwrap();
        Some(Self { file })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = std::fs::rename(self.file.with_extension("hidden"), &self.file);
    }
}

#[test]
fn a_scheduler_is_used_once_the_kernel_has_it() {
    in_namespace(|| {
        let Some(hidden) = Hidden::new("ip_vs_nq") else {
            eprintln!("left out: modules are hidden in the guest of tests/vm only");
            return;
        };
        // Another test may use the module.
        eventually("it is unloaded", || {
            !Path::new("/sys/module/ip_vs_nq").exists()
                || Command::new("rmmod").arg("ip_vs_nq").status().is_ok_and(|status| status.success())
        });
        let wants =
            Forwarding { ipvs_scheduler: Some(IpvsScheduler::Nq), ..cluster_ip(SERVICE, 80, &ENDPOINTS) };
        let mut ipvs = loaded(Family::Ipv4, &[]);
        assert_eq!(ipvs.apply(&[put("web", "", wants)]).unwrap().refused.len(), 1);
        assert!(ipvs.is_intact().unwrap(), "as long as it is missing");
        assert_eq!(ipvs.resync().unwrap().refused.len(), 1);
        assert_eq!(virtual_servers()[0], format!("TCP {SERVICE}:80 rr"));
        drop(hidden);
        assert_eq!(ipvs.check().unwrap(), Condition::Outdated, "it is there now");
        assert_eq!(ipvs.resync().unwrap().refused, []);
        assert_eq!(virtual_servers()[0], format!("TCP {SERVICE}:80 nq"));
    });
}

#[test]
fn schedulers() {
    in_namespace(|| {
        let forwarding =
            |scheduler| Forwarding { ipvs_scheduler: Some(scheduler), ..cluster_ip(SERVICE, 80, &ENDPOINTS) };
        let mut ipvs = loaded(Family::Ipv4, &[]);
        for scheduler in IpvsScheduler::ALL {
            let change = put("web", "", forwarding(scheduler));
            let commit = ipvs.apply(&[change]).unwrap();
            let head = virtual_servers().remove(0);
            if !can_have(scheduler) {
                assert_eq!((commit.refused.len(), head), (1, format!("TCP {SERVICE}:80 rr")));
                continue;
            }
            assert_eq!(commit.refused, [], "{scheduler}");
            assert!(
                head.starts_with(&format!("TCP {SERVICE}:80 {}", scheduler.name())),
                "{scheduler}: {head}"
            );
        }
        let default = IpvsOptions { scheduler: IpvsScheduler::Lc, ..options() };
        let mut ipvs = open_with(settings(Family::Ipv4), default);
        ipvs.apply(&[Change { new: Some(Arc::new(cluster_ip(SERVICE, 80, &ENDPOINTS))), ..service(&[]) }])
            .unwrap();
        ipvs.resync().unwrap();
        assert_eq!(virtual_servers()[0], format!("TCP {SERVICE}:80 lc"));
    });
}
