use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};

use portolan_model::{Frontend, Protocol, ServicePortName};
use portolan_sock::{Errno, Refusal};
use portolan_wire::conntrack::Tuple;

use super::*;

/// Long enough for a busy machine.
const WITHIN: Duration = Duration::from_secs(120);
const FRONTEND: &str = "10.96.0.10:53";

type Script = Box<dyn FnMut(&Check, &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error> + Send>;

/// A kernel with these addresses, whose clean-ups run a script.
struct Fake {
    addresses: Vec<IpAddr>,
    script: Script,
}

impl Kernel for Fake {
    fn addresses(&mut self) -> Result<Vec<IpAddr>, SocketError> {
        Ok(self.addresses.clone())
    }

    fn clean(&mut self, check: &Check, spare: &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error> {
        (self.script)(check, spare)
    }
}

/// A time that stands still while the thread works, and jumps to the deadline when the thread waits for one.
#[derive(Clone)]
struct Paused(Arc<Mutex<Instant>>);

impl Paused {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Clock for Paused {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    fn take_before(&self, receiver: &Receiver<Mail>, due: Option<Instant>) -> Received<Mail> {
        let Some(due) = due else { return receiver.take_before(None) };
        if let Some(mail) = receiver.take() {
            return Received::Value(mail);
        }
        let mut now = self.0.lock().unwrap();
        *now = due.max(*now);
        Received::Late
    }
}

fn no_node_ports() -> PerFamily<NodePorts> {
    PerFamily::default()
}

fn start(
    script: impl FnMut(&Check, &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error> + Send + 'static,
) -> (CleanerThread, mpsc::Receiver<Cleaned>) {
    start_at(Paused::new(), script)
}

fn start_at(
    clock: Paused,
    script: impl FnMut(&Check, &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error> + Send + 'static,
) -> (CleanerThread, mpsc::Receiver<Cleaned>) {
    let (sender, reports) = channel();
    let kernel = Fake { addresses: Vec::new(), script: Box::new(script) };
    // A test that ends before the thread does not read the last reports.
    let report = move |cleaned| drop(sender.send(cleaned));
    (CleanerThread::spawn_with(kernel, clock, no_node_ports(), report).unwrap(), reports)
}

fn service(name: &str, frontend: Frontend, endpoint: &str) -> UdpService {
    let name = ServicePortName {
        namespace: "default".into(),
        service: name.into(),
        port: "".into(),
        protocol: Protocol::Udp,
    };
    UdpService::new(Arc::new(name), vec![frontend], vec![endpoint.parse().unwrap()])
}

/// A Service at [`FRONTEND`].
fn dns(endpoint: &str) -> UdpService {
    let frontend: SocketAddr = FRONTEND.parse().unwrap();
    service("dns", Frontend::ClusterIp(frontend.ip(), frontend.port()), endpoint)
}

fn flow(destination: &str, answers: &str) -> Flow {
    let parse = |text: &str| {
        let socket: SocketAddr = text.parse().unwrap();
        (socket.ip(), socket.port())
    };
    let client = parse("10.1.0.1:40000");
    Flow {
        original: Tuple::with_ports(17, client, parse(destination)),
        reply: Tuple::with_ports(17, parse(answers), client),
        status: 0,
        mark: None,
        id: None,
        timeout: None,
        zone: None,
        tcp_state: None,
    }
}

/// Returns which of three endpoints the check treats as serving [`FRONTEND`].
fn valid(check: &Check) -> Vec<&'static str> {
    let endpoints = ["10.1.0.4:53", "10.1.0.5:53", "10.1.0.6:53"];
    endpoints
        .into_iter()
        .filter(|endpoint| check.judge(&flow(FRONTEND, endpoint)) == Verdict::Valid)
        .collect()
}

fn refused() -> Report {
    let refusal = Refusal { sequence: 1, errno: Errno::EBUSY, text: None, offset: None, missing: None };
    Report { refused: 1, refusal: Some(refusal), ..Report::default() }
}

#[test]
fn a_request_is_cleaned_up_and_reported() {
    let (thread, reports) = start(|_, _| Ok(Report { deleted: 3, ..Report::default() }));
    thread.requests().request(Family::Ipv6, vec![dns("10.1.0.4:53")]);
    let cleaned = reports.recv_timeout(WITHIN).unwrap();
    assert_eq!((cleaned.family, cleaned.outcome.unwrap().deleted), (Family::Ipv6, 3));
    thread.requests().request(Family::Ipv6, Vec::new());
    drop(thread);
    assert!(reports.recv_timeout(WITHIN).is_err(), "nothing was asked for a second time");
}

#[test]
fn requests_that_wait_become_one_with_the_latest_of_each_service_port() {
    let (entered, inside) = channel();
    let (go, gate) = channel();
    let (thread, reports) = start(move |check, _| {
        entered.send(valid(check)).unwrap();
        gate.recv().unwrap();
        Ok(Report::default())
    });
    let requests = thread.requests();
    requests.request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    assert_eq!(inside.recv_timeout(WITHIN).unwrap(), ["10.1.0.4:53"]);
    requests.request(Family::Ipv4, vec![dns("10.1.0.5:53")]);
    requests.request(Family::Ipv4, vec![dns("10.1.0.6:53")]);
    go.send(()).unwrap();
    assert_eq!(inside.recv_timeout(WITHIN).unwrap(), ["10.1.0.6:53"]);
    go.send(()).unwrap();
    drop(thread);
    assert_eq!(reports.iter().count(), 2);
}

#[test]
fn a_failure_and_a_refusal_are_tried_again_with_the_same_request() {
    let (clock, seen) = (Paused::new(), Arc::new(Mutex::new(Vec::new())));
    let (begin, read, seen_inside) = (clock.now(), clock.clone(), Arc::clone(&seen));
    let (thread, reports) = start_at(clock, move |check, _| {
        let mut seen = seen_inside.lock().unwrap();
        seen.push((valid(check), read.now().duration_since(begin)));
        match seen.len() {
            1 => Err(Error::List(SocketError::Timeout)),
            2 => Ok(refused()),
            _ => Ok(Report::default()),
        }
    });
    thread.requests().request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    let outcomes: Vec<_> = (0..3).map(|_| reports.recv_timeout(WITHIN).unwrap().outcome).collect();
    assert!(matches!(&outcomes[..], [Err(Error::List(_)), Ok(again), Ok(_)] if again.refused == 1));
    drop(thread);
    // The second wait is twice as long.
    let attempts = [0, 1, 3].map(|waits| (vec!["10.1.0.4:53"], FIRST_RETRY * waits));
    assert_eq!(*seen.lock().unwrap(), attempts);
}

fn partial() -> Report {
    Report { partial: true, ..Report::default() }
}

#[test]
fn a_clean_up_that_did_not_see_every_flow_is_tried_again_with_the_same_request() {
    let (clock, seen) = (Paused::new(), Arc::new(Mutex::new(Vec::new())));
    let (begin, read, seen_inside) = (clock.now(), clock.clone(), Arc::clone(&seen));
    let (thread, reports) = start_at(clock, move |check, _| {
        let mut seen = seen_inside.lock().unwrap();
        seen.push((valid(check), read.now().duration_since(begin)));
        Ok(if seen.len() == 1 { partial() } else { Report::default() })
    });
    thread.requests().request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    let outcomes = [(); 2].map(|()| reports.recv_timeout(WITHIN).unwrap().outcome.unwrap());
    assert_eq!(outcomes, [partial(), Report::default()]);
    drop(thread);
    assert_eq!(reports.iter().count(), 0, "the second one saw every flow");
    assert_eq!(*seen.lock().unwrap(), [0, 1].map(|waits| (vec!["10.1.0.4:53"], FIRST_RETRY * waits)));
}

#[test]
fn a_clean_up_that_never_sees_every_flow_ends() {
    let (thread, reports) = start(|check, _| match check.family() {
        Family::Ipv4 => Ok(partial()),
        Family::Ipv6 => Ok(Report::default()),
    });
    let requests = thread.requests();
    let attempts = || {
        requests.request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
        let first = (0..=PARTIAL_RETRIES).map(|_| reports.recv_timeout(WITHIN).unwrap().family);
        assert!(first.collect::<Vec<_>>().iter().all(|family| *family == Family::Ipv4));
        // The other family's clean-up is the next one: nothing of this family waits any more.
        requests.request(Family::Ipv6, vec![dns("10.1.0.4:53")]);
        assert_eq!(reports.recv_timeout(WITHIN).unwrap().family, Family::Ipv6);
    };
    attempts();
    // A later request has as many attempts.
    attempts();
    drop(thread);
    assert_eq!(reports.iter().count(), 0);
}

#[test]
fn a_newer_request_replaces_a_failed_one_of_the_same_service_port_only() {
    let (entered, inside) = channel();
    let (go, gate) = channel();
    let other = service("other", Frontend::ClusterIp([10, 96, 0, 11].into(), 53), "10.1.0.9:53");
    let (thread, _reports) = start(move |check, _| {
        let other = check.judge(&flow("10.96.0.11:53", "10.1.0.8:53"));
        entered.send((valid(check), other)).unwrap();
        gate.recv().unwrap()
    });
    let requests = thread.requests();
    requests.request(Family::Ipv4, vec![dns("10.1.0.4:53"), other]);
    assert_eq!(inside.recv_timeout(WITHIN).unwrap(), (vec!["10.1.0.4:53"], Verdict::Stale));
    requests.request(Family::Ipv4, vec![dns("10.1.0.5:53")]);
    go.send(Err(Error::Delete(SocketError::Timeout))).unwrap();
    assert_eq!(inside.recv_timeout(WITHIN).unwrap(), (vec!["10.1.0.5:53"], Verdict::Stale));
    go.send(Ok(Report::default())).unwrap();
}

#[test]
fn a_failing_family_does_not_hold_up_the_other() {
    let (thread, reports) = start(|check, _| match check.family() {
        Family::Ipv4 => Err(Error::List(SocketError::Timeout)),
        Family::Ipv6 => Ok(Report::default()),
    });
    thread.requests().request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    assert!(reports.recv_timeout(WITHIN).unwrap().outcome.is_err());
    thread.requests().request(Family::Ipv6, vec![dns("10.1.0.4:53")]);
    let cleaned = reports.iter().find(|cleaned| cleaned.family == Family::Ipv6).unwrap();
    assert!(cleaned.outcome.is_ok());
}

#[test]
fn a_flow_that_a_newer_request_makes_valid_is_spared() {
    let (entered, inside) = channel();
    let (go, gate) = channel();
    let (answer, spared) = channel();
    let (thread, _reports) = start(move |_, spare| {
        entered.send(()).unwrap();
        gate.recv().unwrap();
        let flows = [
            flow(FRONTEND, "10.1.0.5:53"),
            flow(FRONTEND, "10.1.0.6:53"),
            flow("10.96.0.11:53", "10.1.0.6:53"),
        ];
        answer.send(flows.map(|flow| spare(&flow))).unwrap();
        Ok(Report::default())
    });
    let requests = thread.requests();
    requests.request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    inside.recv_timeout(WITHIN).unwrap();
    requests.request(Family::Ipv4, vec![dns("10.1.0.5:53")]);
    // This one is of the other family, so it does not affect these flows.
    requests.request(Family::Ipv6, vec![dns("10.1.0.6:53")]);
    go.send(()).unwrap();
    assert_eq!(spared.recv_timeout(WITHIN).unwrap(), [true, false, false]);
    for _ in 0..2 {
        inside.recv_timeout(WITHIN).unwrap();
        go.send(()).unwrap();
        assert_eq!(spared.recv_timeout(WITHIN).unwrap(), [false, false, false], "nothing newer");
    }
}

#[test]
fn dropping_the_thread_ends_a_clean_up_and_its_deletions() {
    let (entered, inside) = channel();
    let (thread, reports) = start(move |_, spare| {
        entered.send(()).unwrap();
        // Loops like a long list of stale flows, but ends if no flow is ever spared.
        let end = Instant::now() + WITHIN;
        while !spare(&flow(FRONTEND, "10.1.0.6:53")) {
            assert!(Instant::now() < end, "flows are not spared");
            std::thread::yield_now();
        }
        Ok(Report::default())
    });
    let requests = thread.requests();
    requests.request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    inside.recv_timeout(WITHIN).unwrap();
    requests.request(Family::Ipv4, vec![dns("10.1.0.5:53")]);
    drop(thread);
    assert_eq!(reports.iter().count(), 1, "what waited is forgotten");
}

#[test]
fn dropping_the_thread_during_a_clean_up_ends_it_if_nothing_else_waits() {
    let (entered, inside) = channel();
    let (thread, _reports) = start(move |_, spare| {
        entered.send(()).unwrap();
        while !spare(&flow(FRONTEND, "10.1.0.6:53")) {
            std::thread::yield_now();
        }
        Ok(Report::default())
    });
    let (ended, end) = channel();
    thread.requests().request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    inside.recv_timeout(WITHIN).unwrap();
    std::thread::spawn(move || {
        drop(thread);
        ended.send(()).unwrap();
    });
    end.recv_timeout(WITHIN).expect("the end of the thread");
}

/// Returns the verdicts of a check with a node port for a stale flow to that port, at three addresses.
fn node_port_verdicts(check: &Check) -> [Verdict; 3] {
    ["192.0.2.1:30053", "192.0.2.2:30053", "127.0.0.1:30053"].map(|at| check.judge(&flow(at, at)))
}

#[test]
fn node_ports_count_at_the_addresses_that_accept_them() {
    use Verdict::{Foreign, Stale};
    let (answer, verdicts) = channel();
    let script: Script = Box::new(move |check, _| {
        answer.send(node_port_verdicts(check)).unwrap();
        Ok(Report::default())
    });
    let addresses = ["192.0.2.2", "127.0.0.1"].map(|text| text.parse().unwrap()).to_vec();
    let kernel = Fake { addresses, script };
    let thread = CleanerThread::spawn_with(kernel, Paused::new(), no_node_ports(), |_| {}).unwrap();
    let requests = thread.requests();
    let first = NodePortAddresses::Addresses(vec!["192.0.2.1".parse().unwrap()]);
    let at = |addresses| Some(NodePorts { addresses, loopback: Vec::new() });
    let loopback = NodePorts { loopback: vec!["127.0.0.0/8".parse().unwrap()], ..NodePorts::default() };
    let cases = [
        (None, [Foreign, Foreign, Foreign]),
        (at(first), [Stale, Foreign, Foreign]),
        (at(NodePortAddresses::MatchAll), [Foreign, Stale, Foreign]),
        (Some(loopback), [Foreign, Foreign, Stale]),
    ];
    for (setting, want) in cases {
        if let Some(setting) = setting {
            requests.configure(Family::Ipv4, setting);
        }
        requests.request(Family::Ipv4, vec![service("dns", Frontend::NodePort(30053), "10.1.0.4:53")]);
        assert_eq!(verdicts.recv_timeout(WITHIN).unwrap(), want);
    }
}

#[test]
fn waits_after_failures_double_up_to_half_a_minute() {
    let now = Instant::now();
    let mut lane = lanes(no_node_ports(), now).ipv4;
    let waits: Vec<_> = (0..12).map(|_| lane.fail(vec![dns("10.1.0.4:53")], now).as_millis()).collect();
    assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000]);
    assert_eq!(lane.due(), Some(now + LONGEST_RETRY));
    lane.failures = u32::MAX;
    assert_eq!(lane.fail(Vec::new(), now), LONGEST_RETRY);
    lane.succeed(Duration::ZERO, now);
    assert_eq!(lane.fail(Vec::new(), now), FIRST_RETRY);
}

#[test]
fn newer_requests_do_not_wait_for_another_attempt_at_older_ones() {
    let (now, duration) = (Instant::now(), Duration::from_millis(1));
    let mut lane = lanes(no_node_ports(), now).ipv4;
    let old = || vec![dns("10.1.0.4:53")];
    for _ in 0..4 {
        lane.repeat(old(), duration, now);
        lane.pending.take();
    }
    assert_eq!((lane.partial, lane.not_before), (4, now + 8 * FIRST_RETRY));
    lane.hurry();
    assert_eq!(lane.not_before, now + rest(duration));
    lane.repeat(old(), duration, now);
    assert_eq!(lane.partial, 4, "it has not waited");
    assert_eq!(lane.not_before, now + 16 * FIRST_RETRY);
    // One that came during the attempt.
    lane.repeat(old(), duration, now);
    assert_eq!((lane.partial, lane.not_before), (5, now + rest(duration)));
    lane.fail(old(), now);
    let waits = lane.not_before;
    lane.hurry();
    assert_eq!(lane.not_before, waits, "a refusal is not hurried");
}

#[test]
fn a_clean_up_is_followed_by_nine_times_as_much_rest() {
    let now = Instant::now();
    let mut lane = lanes(no_node_ports(), now).ipv4;
    assert_eq!(lane.due(), None);
    lane.pending.add(vec![dns("10.1.0.4:53")]);
    assert_eq!(lane.due(), Some(now));
    lane.succeed(Duration::from_secs(2), now);
    assert_eq!(lane.due(), Some(now + Duration::from_secs(18)));
    lane.succeed(Duration::from_secs(4), now);
    assert_eq!(lane.due(), Some(now + LONGEST_RETRY), "at most");
}

#[test]
fn a_partial_clean_up_rests_before_the_next_attempt() {
    let now = Instant::now();
    let mut lane = lanes(no_node_ports(), now).ipv4;
    let mut repeat = |duration| lane.repeat(vec![dns("10.1.0.4:53")], duration, now);
    assert_eq!(repeat(Duration::ZERO), Some(FIRST_RETRY));
    assert_eq!(repeat(Duration::from_secs(2)), Some(Duration::from_secs(18)));
    assert_eq!(repeat(Duration::from_secs(9)), Some(LONGEST_RETRY));
    assert_eq!(lane.due(), Some(now + LONGEST_RETRY));
}

#[test]
fn a_thread_that_panicked_does_not_run() {
    let (thread, reports) = start(|_, _| panic!("on purpose"));
    assert!(thread.is_running());
    thread.requests().request(Family::Ipv4, vec![dns("10.1.0.4:53")]);
    // The sender of reports is dropped with the thread's closure.
    assert_eq!(reports.recv_timeout(WITHIN).unwrap_err(), RecvTimeoutError::Disconnected);
    let deadline = Instant::now() + WITHIN;
    while thread.is_running() {
        assert!(Instant::now() < deadline, "the thread has ended");
        std::thread::yield_now();
    }
}
