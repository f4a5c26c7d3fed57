//! Endpoints whose connections fail are found from the kernel's notifications.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use portolan_conntrack::passive::{FAILURES, Failure, PassiveThread, SetAside};
use portolan_model::Family;
use portolan_testkit::close;

use super::in_net;
use super::net::{Net, Plan, V4, V6};

/// Longest wait for a report: longer than any machine takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Ports of the Service, and those of its endpoints.
const PORTS: [(u16, u16); 3] = [(81, 8081), (82, 8082), (83, 8083)];

/// Leads the ports of the frontend to endpoints: the first one refuses, the second one gets no packets, the third one answers.
fn lead(net: &Net) -> TcpListener {
    let Plan { family, frontend, gone, node, .. } = net.plan;
    let ip = if *family == Family::Ipv4 { "ip" } else { "ip6" };
    let at = |ip: &IpAddr, port| SocketAddr::new(*ip, port);
    let rule = |(from, to): (u16, SocketAddr)| {
        format!("add rule inet test translate {ip} daddr {frontend} tcp dport {from} dnat {ip} to {to}\n")
    };
    let [refuses, silent, sound] = PORTS;
    let to = [(refuses.0, at(gone, refuses.1)), (silent.0, at(gone, silent.1)), (sound.0, at(node, sound.1))];
    let rules: String = to.into_iter().map(rule).collect();
    let drop = format!(
        "add chain inet test silent {{ type filter hook input priority 0; }}\n\
         add rule inet test silent tcp dport {} drop\n",
        silent.1
    );
    net.nft(&(rules + &drop));
    TcpListener::bind(at(node, sound.1)).unwrap()
}

/// Returns the first report that has an endpoint.
fn report_of(reports: &Receiver<BTreeMap<SocketAddr, SetAside>>, endpoint: SocketAddr) -> (SetAside, usize) {
    loop {
        let report = reports.recv_timeout(PATIENCE).unwrap();
        if let Some(how) = report.get(&endpoint) {
            return (*how, report.len());
        }
    }
}

fn failing_endpoints_are_found(plan: &'static Plan) {
    in_net(plan, |net| {
        let _sound = lead(net);
        let (sender, reports) = channel();
        let thread = PassiveThread::spawn(move |aside| sender.send(aside).unwrap()).unwrap();
        let frontend = |(port, _): (u16, u16)| SocketAddr::new(plan.frontend, port);
        for _ in 0..FAILURES {
            assert!(TcpStream::connect(frontend(PORTS[2])).is_ok());
            // A connection past every Service does not count.
            assert!(TcpStream::connect(SocketAddr::new(plan.gone, 9999)).is_err());
            assert!(TcpStream::connect(frontend(PORTS[0])).is_err());
        }
        let pause = Duration::from_secs(10);
        let refused = report_of(&reports, SocketAddr::new(plan.gone, PORTS[0].1));
        assert_eq!(refused, (SetAside { failure: Failure::Refused, pause }, 1));
        for _ in 0..FAILURES {
            // Nothing would come later, either.
            let impatient = Duration::from_millis(100);
            assert!(TcpStream::connect_timeout(&frontend(PORTS[1]), impatient).is_err());
        }
        let (silent, _) = report_of(&reports, SocketAddr::new(plan.gone, PORTS[1].1));
        assert_eq!(silent, SetAside { failure: Failure::NoAnswer, pause });
        assert!(thread.is_running());
        drop(thread);
        let sound = SocketAddr::new(plan.node, PORTS[2].1);
        assert!(reports.try_iter().all(|report| !report.contains_key(&sound)));
    });
}

#[test]
fn an_endpoint_that_answers_now_and_then_is_not_set_aside() {
    in_net(&V4, |net| {
        close(&lead(net)).unwrap();
        let (sender, reports) = channel();
        let _thread = PassiveThread::spawn(move |aside| sender.send(aside).unwrap()).unwrap();
        let frontend = |(port, _): (u16, u16)| SocketAddr::new(V4.frontend, port);
        let endpoint = SocketAddr::new(V4.node, PORTS[2].1);
        // The connections that are answered stay open: the thread may ask the kernel for them much later.
        let mut open = Vec::new();
        for outcome in "FSFSFSFFSF".chars() {
            let listener = (outcome == 'S').then(|| TcpListener::bind(endpoint).unwrap());
            let client = TcpStream::connect(frontend(PORTS[2]));
            assert_eq!(client.is_ok(), listener.is_some());
            if let Some(listener) = listener {
                open.push((client, listener.accept().unwrap()));
                close(&listener).unwrap();
            }
        }
        for _ in 0..FAILURES {
            assert!(TcpStream::connect(frontend(PORTS[0])).is_err());
        }
        let (_, endpoints) = report_of(&reports, SocketAddr::new(V4.gone, PORTS[0].1));
        assert_eq!(endpoints, 1, "reports come in the order of the connections");
    });
}

/// Says that something is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_thread_ends_while_connections_keep_coming() {
    in_net(&V4, |net| {
        let _sound = lead(net);
        let refuses = SocketAddr::new(V4.frontend, PORTS[0].0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flood = || {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(TcpStream::connect(refuses).is_err());
                }
            };
            // Also ends them if the test fails.
            let over = Over(&is_over);
            let floods: Vec<_> = (0..3).map(|_| scope.spawn(flood)).collect();
            for _ in 0..5 {
                let (sender, reports) = channel();
                // The last reports are not received.
                let report = move |aside| sender.send(aside).unwrap_or_default();
                let thread = PassiveThread::spawn(report).unwrap();
                report_of(&reports, SocketAddr::new(V4.gone, PORTS[0].1));
                drop(thread);
            }
            drop(over);
            for flood in floods {
                flood.join().unwrap();
            }
        });
    });
}

#[test]
fn failing_endpoints_are_found_over_ipv4() {
    failing_endpoints_are_found(&V4);
}

#[test]
fn failing_endpoints_are_found_over_ipv6() {
    failing_endpoints_are_found(&V6);
}
