//! Stale UDP flows, cleaned up from the running kernel; each test in a network namespace of its own. Needs root,
//! and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;
use portolan_sock::{Protocol, Socket};
use portolan_testkit::Namespace;
use portolan_wire::conntrack::{self, Event, Filter};
use portolan_wire::nfnetlink::Family;

#[test]
fn measure() {
    let ns = Namespace::new("measure").unwrap();
    ns.ip("link set lo up\naddr add 10.0.0.1/24 dev lo\nroute add local 198.18.0.0/15 dev lo\n").unwrap();
    ns.output_with_input("nft", &["-f", "-"], "table inet t { chain out { type filter hook output priority 0; ct state new counter; }; }").unwrap();
    ns.write_sysctls(&[("net/netfilter/nf_conntrack_udp_timeout".to_owned(), "600")]).unwrap();
    ns.run(|| {
        let socket = UdpSocket::bind("10.0.0.1:40000").unwrap();
        let t = Instant::now();
        for i in 0..200_000u32 {
            let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + (i >> 8));
            socket.send_to(b"x", (ip, 1000 + (i & 255) as u16)).unwrap();
        }
        println!("fill {:?} count {}", t.elapsed(), std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap());
        let mut nl = Socket::open(Protocol::Netfilter).unwrap();
        let f = Family::IPV4;
        let one = Filter { destination: Some(IpAddr::from([198,18,0,7])), destination_port: Some(1007), ..Filter::protocol(f, 17) };
        let cases = [("all", Filter::family(f)), ("udp", Filter::protocol(f, 17)), ("port", Filter{destination: None, ..one}), ("ip+port", one), ("tcp(none)", Filter::protocol(f, 6))];
        for _ in 0..3 {
            for (name, filter) in &cases {
                let t = Instant::now();
                let c = cpu(); let mut n = 0;
                nl.dump(&mut conntrack::list(filter), |frame| { if let Event::New(_) = Event::decode(frame)? { n += 1; } Ok(()) }).unwrap();
                println!("{name}: {n} flows {:?} cpu {} us", t.elapsed(), (cpu()-c)/1000);
            }
        }
        use portolan_backend::conntrack::{Check, Cleaner};
        use portolan_model::{Frontend, ServicePortName};
        let service = |port: u16| portolan_model::catalog::UdpService { name: std::sync::Arc::new(ServicePortName { namespace: "a".into(), service: "b".into(), port: "c".into(), protocol: portolan_model::Protocol::Udp }),
            frontends: (0..782u32).map(|i| Frontend::ClusterIp(Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + i).into(), port)).collect(), serving: vec!["10.0.0.7:53".parse().unwrap()] };
        let mut cleaner = Cleaner::open(portolan_model::Family::Ipv4).unwrap();
        for count in [1, 4, 5, 128] {
            let services: Vec<_> = (0..count).map(|i| service(1000 + i)).collect();
            let check = Check::new(portolan_model::Family::Ipv4, &services, vec![]);
            let (t, c) = (Instant::now(), cpu());
            let report = cleaner.clean(&check).unwrap();
            println!("clean {count} ports: {report:?} {:?} cpu {} us", t.elapsed(), (cpu() - c) / 1000);
        }
        let _ = SocketAddr::from(([0,0,0,0],1));
    }).unwrap();
}

fn cpu() -> u64 { std::fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').next().unwrap().parse().unwrap() }
