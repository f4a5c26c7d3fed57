use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::UNIX_EPOCH;

use portolan_web::testing::{Got, free_port, loopback, request, start, taken};
use tokio::runtime::Handle;

use super::*;
use crate::address::NodePortMatch;
use crate::metrics::BuildInfo;

const TIMEOUT: Duration = Duration::from_secs(60);
const GOOD_NODE: NodeState = NodeState { deleting: false, tainted: false };

/// A clock that a test sets. It starts at 2026-03-01T10:00:00Z.
struct Clock(Now);

impl Clock {
    fn new() -> Self {
        Self(Now { monotonic: Instant::now(), wall: UNIX_EPOCH + Duration::from_secs(1_772_359_200) })
    }

    fn after(&self, milliseconds: u64) -> Now {
        let passed = Duration::from_millis(milliseconds);
        Now { monotonic: self.0.monotonic + passed, wall: self.0.wall + passed }
    }
}

#[test]
fn a_family_is_late_when_a_change_waits_for_the_timeout() {
    let clock = Clock::new();
    let health = Health::new(TIMEOUT);
    assert!(health.is_healthy(clock.after(0)), "nothing is known yet");
    health.queued(Family::Ipv4, clock.after(0));
    assert!(health.is_healthy(clock.after(100_000)), "a family that never was updated does not count");
    health.updated(Family::Ipv4, clock.after(100_000).monotonic, clock.after(100_000));
    assert!(health.is_healthy(clock.after(900_000)), "nothing waits");
    health.queued(Family::Ipv4, clock.after(900_000));
    health.queued(Family::Ipv4, clock.after(959_000));
    assert!(health.is_healthy(clock.after(959_999)), "the oldest counts, and is not yet due");
    assert!(!health.is_healthy(clock.after(960_000)));
    health.updated(Family::Ipv6, clock.after(960_000).monotonic, clock.after(960_000));
    assert!(!health.is_healthy(clock.after(960_001)), "the other family does not help");
    health.updated(Family::Ipv4, clock.after(961_000).monotonic, clock.after(961_000));
    assert!(health.is_healthy(clock.after(2_000_000)));
}

#[test]
fn a_change_that_comes_during_a_commit_waits_for_the_next_one() {
    let clock = Clock::new();
    let health = Health::new(TIMEOUT);
    let commit =
        |began: u64, end| health.updated(Family::Ipv4, clock.after(began).monotonic, clock.after(end));
    commit(0, 0);
    health.queued(Family::Ipv4, clock.after(1_000));
    health.queued(Family::Ipv4, clock.after(5_000));
    commit(2_000, 9_000);
    assert!(health.is_healthy(clock.after(64_999)));
    assert!(!health.is_healthy(clock.after(65_000)), "the next commit does not end");
    commit(10_000, 90_000);
    assert!(health.is_healthy(clock.after(900_000)), "nothing waits");
}

#[test]
fn the_node_counts_for_healthz_alone() {
    let clock = Clock::new();
    let deleting = NodeState { deleting: true, tainted: false };
    let tainted = NodeState { deleting: false, tainted: true };
    let table = [(None, 503), (Some(GOOD_NODE), 200), (Some(deleting), 503), (Some(tainted), 503)];
    for (node, healthz) in table {
        let health = Health::new(TIMEOUT);
        health.node(node);
        let (healthz_got, livez_got) = (health.healthz(clock.0).0, health.livez(clock.0).0);
        assert_eq!((healthz_got, livez_got), (healthz, 200), "{node:?}");
    }
}

#[test]
fn healthz_shows_the_age_of_each_watch_without_effect() {
    let clock = Clock::new();
    let health = Health::new(TIMEOUT);
    health.node(Some(GOOD_NODE));
    health.watch_updated(Resource::Services, clock.after(0));
    health.watch_updated(Resource::Nodes, clock.after(1_000));
    health.watch_updated(Resource::Services, clock.after(2_000));
    let (status, body) = health.healthz(clock.after(3_602_900));
    assert_eq!(status, 200);
    insta::assert_snapshot!(body, @r#"{"lastUpdated":"2026-03-01T11:00:02.9Z","currentTime":"2026-03-01T11:00:02.9Z","nodeEligible":true,"healthy":true,"watches":{"services":{"lastHeard":"2026-03-01T10:00:02Z","ageSeconds":3600},"nodes":{"lastHeard":"2026-03-01T10:00:01Z","ageSeconds":3601}}}"#);
    assert!(!health.livez(clock.after(0)).1.contains("watches"));
    let later = clock.after(62_000).monotonic;
    assert_eq!(health.watch_age(Resource::Services, later), Some(Duration::from_secs(60)));
    assert_eq!(health.watch_age(Resource::EndpointSlices, later), None);
}

#[test]
fn failures_of_a_watch_count_until_it_is_updated() {
    let (clock, health) = (Clock::new(), Health::new(TIMEOUT));
    let failure = || health.watch_failure(Resource::Services);
    assert_eq!(failure(), None);
    health.watch_updated(Resource::Services, clock.after(0));
    let failed = |times, reason: &str, at| {
        health.watch_failed(Resource::Services, times, reason.to_owned(), clock.after(at));
    };
    failed(7, "broken", 500);
    failed(1, "refused", 1_000);
    failed(2, "no route", 3_000);
    let (since, last) = (clock.after(1_000), clock.after(3_000));
    let expected = WatchFailure { since, last, times: 2, reason: "no route".to_owned() };
    assert_eq!(failure(), Some(expected));
    assert_eq!(health.watch_failure(Resource::Nodes), None);
    let age = health.watch_age(Resource::Services, clock.after(3_000).monotonic);
    assert_eq!(age, Some(Duration::from_secs(3)), "a failure is no update");
    health.watch_updated(Resource::Services, clock.after(4_000));
    assert_eq!(failure(), None);
}

#[test]
fn bodies_are_those_of_kube_proxy() {
    let clock = Clock::new();
    let health = Health::new(TIMEOUT);
    let mut page = Vec::new();
    let mut show = |when: &str, (status, body): (u16, String)| page.push(format!("{when}: {status} {body}"));
    show("no family, no node", health.healthz(clock.after(0)));
    show("no family", health.livez(clock.after(0)));
    health.updated(Family::Ipv4, clock.after(0).monotonic, clock.after(0));
    health.updated(Family::Ipv6, clock.after(100).monotonic, clock.after(100));
    show("no node", health.healthz(clock.after(500)));
    health.node(Some(GOOD_NODE));
    show("good", health.healthz(clock.after(1_500)));
    health.queued(Family::Ipv6, clock.after(2_000));
    show("one late", health.healthz(clock.after(62_000)));
    show("one late", health.livez(clock.after(62_000)));
    insta::assert_snapshot!(page.join("\n"), @r#"
    no family, no node: 503 {"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-03-01T10:00:00Z","nodeEligible":false,"healthy":true}
    no family: 200 {"lastUpdated":"2026-03-01T10:00:00Z","currentTime":"2026-03-01T10:00:00Z","healthy":true}
    no node: 503 {"lastUpdated":"2026-03-01T10:00:00.1Z","currentTime":"2026-03-01T10:00:00.5Z","nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-03-01T10:00:00Z","healthy":true},"IPv6":{"lastUpdated":"2026-03-01T10:00:00.1Z","healthy":true}}}
    good: 200 {"lastUpdated":"2026-03-01T10:00:01.5Z","currentTime":"2026-03-01T10:00:01.5Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-03-01T10:00:00Z","healthy":true},"IPv6":{"lastUpdated":"2026-03-01T10:00:00.1Z","healthy":true}}}
    one late: 503 {"lastUpdated":"2026-03-01T10:00:00.1Z","currentTime":"2026-03-01T10:01:02Z","nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":"2026-03-01T10:00:00Z","healthy":true},"IPv6":{"lastUpdated":"2026-03-01T10:00:00.1Z","healthy":false}}}
    one late: 503 {"lastUpdated":"2026-03-01T10:00:00.1Z","currentTime":"2026-03-01T10:01:02Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-03-01T10:00:00Z","healthy":true},"IPv6":{"lastUpdated":"2026-03-01T10:00:00.1Z","healthy":false}}}
    "#);
}

#[test]
fn not_ready_before_the_first_complete_commit() {
    let clock = Clock::new();
    let health = Health::new(TIMEOUT);
    health.node(Some(GOOD_NODE));
    health.awaits(vec!["the list of Services".to_owned(), "Node \"n\"".to_owned()]);
    // The first commit is queued. `/healthz` and `/livez` keep kube-proxy's meaning.
    health.updated(Family::Ipv4, clock.after(0).monotonic, clock.after(0));
    let (status, body) = health.readyz(clock.after(0));
    insta::assert_snapshot!(format!("{status} {body}"), @r#"503 {"currentTime":"2026-03-01T10:00:00Z","ready":false,"waitingFor":["the list of Services","Node \"n\""]}"#);
    assert_eq!((health.healthz(clock.after(0)).0, health.livez(clock.after(0)).0), (200, 200));
    health.ready();
    assert_eq!(health.readyz(clock.after(500)), health.healthz(clock.after(500)));
    assert_eq!(health.readyz(clock.after(500)).0, 200);
    // After the first commit, it returns what `/healthz` returns.
    health.awaits(Vec::new());
    health.queued(Family::Ipv4, clock.after(1_000));
    assert_eq!(health.readyz(clock.after(70_000)), health.healthz(clock.after(70_000)));
    assert_eq!(health.readyz(clock.after(70_000)).0, 503);
}

#[tokio::test]
async fn the_health_server_answers_and_counts() {
    let health = Arc::new(Health::new(TIMEOUT));
    let metrics = Arc::new(ProxyMetrics::new(BuildInfo::of_version("v1.36.2")));
    let address = start(server(loopback(), true, Arc::clone(&health), Arc::clone(&metrics))).await;
    let ask = |path: &'static str| async move { request(address, "GET", path).await.expect("an answer") };
    assert_eq!(ask("/healthz").await.status, 503);
    health.node(Some(GOOD_NODE));
    let good = ask("/healthz?verbose").await;
    assert_eq!(good.status, 200);
    assert!(good.body.starts_with(r#"{"lastUpdated":"20"#), "{}", good.body);
    assert!(good.body.ends_with(r#"Z","nodeEligible":true,"healthy":true}"#), "{}", good.body);
    let length = format!("Content-Length: {}", good.body.len());
    let want = [length.as_str(), "Content-Type: application/json", "X-Content-Type-Options: nosniff"];
    assert_eq!(good.headers, want);
    assert_eq!(request(address, "DELETE", "/livez").await.expect("an answer").status, 200);
    let head = request(address, "HEAD", "/healthz").await.expect("an answer");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(ask("/readyz").await.status, 503);
    health.ready();
    assert_eq!(ask("/readyz").await.status, 200);
    for path in ["/", "/healthz/", "/metrics"] {
        assert_eq!(ask(path).await.status, 404, "{path}");
    }
    let page = metrics.page();
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 2",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1",
    ] {
        assert!(page.lines().any(|got| got == line), "{line} is not in\n{page}");
    }
}

fn service(name: &str) -> ServiceKey {
    ServiceKey { namespace: "ns".into(), name: name.into() }
}

fn port(name: &str, port: u16) -> BTreeMap<ServiceKey, u16> {
    BTreeMap::from([(service(name), port)])
}

fn count(name: &str, endpoints: usize) -> BTreeMap<ServiceKey, usize> {
    BTreeMap::from([(service(name), endpoints)])
}

fn v4_loopback() -> ListenAddresses {
    ListenAddresses::These(vec![Ipv4Addr::LOCALHOST.into()])
}

async fn probe(ip: impl Into<IpAddr>, port: u16) -> std::io::Result<Got> {
    request(SocketAddr::new(ip.into(), port), "GET", "/any/path").await
}

#[tokio::test]
async fn a_health_check_node_port_returns_the_local_endpoints() {
    let health = Arc::new(Health::new(TIMEOUT));
    let mut services = ServiceHealth::new(Handle::current(), v4_loopback(), Arc::clone(&health));
    let free = free_port();
    assert!(services.sync(&port("web", free), &count("web", 2)).is_empty());
    let good = probe(Ipv4Addr::LOCALHOST, free).await.expect("an answer");
    assert_eq!(good.status, 200);
    insta::assert_snapshot!(format!("{}\n\n{}", good.headers.join("\n"), good.body), @r#"
    Content-Length: 109
    Content-Type: application/json
    X-Content-Type-Options: nosniff
    X-Load-Balancing-Endpoint-Weight: 2

    {
    	"service": {
    		"namespace": "ns",
    		"name": "web"
    	},
    	"localEndpoints": 2,
    	"serviceProxyHealthy": true
    }
    "#);
    services.sync(&port("web", free), &BTreeMap::new());
    let empty = probe(Ipv4Addr::LOCALHOST, free).await.expect("an answer");
    assert_eq!(empty.status, 503);
    assert!(empty.headers.contains(&"X-Load-Balancing-Endpoint-Weight: 0".to_owned()), "{:?}", empty.headers);
    // A proxy with overdue changes must not attract traffic, whatever its counts.
    services.sync(&port("web", free), &count("web", 1));
    health.updated(Family::Ipv4, Instant::now(), Now::read());
    health.queued(Family::Ipv4, Now::read());
    health.set_timeout(Duration::ZERO);
    let late = probe(Ipv4Addr::LOCALHOST, free).await.expect("an answer");
    assert_eq!(late.status, 503);
    assert!(late.body.ends_with("\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}"));
}

#[tokio::test]
async fn ports_close_move_and_reopen() {
    let health = Arc::new(Health::new(TIMEOUT));
    let mut services = ServiceHealth::new(Handle::current(), v4_loopback(), health);
    let (first, second) = (free_port(), free_port());
    assert!(services.sync(&port("a", first), &count("a", 1)).is_empty());
    // Within one sync the port moves from one Service to another, and is free at once.
    for (name, number) in [("b", first), ("a", first), ("a", second)] {
        let failures = services.sync(&port(name, number), &count(name, 1));
        assert!(failures.is_empty(), "{failures:?}");
        let got = probe(Ipv4Addr::LOCALHOST, number).await.expect("an answer");
        assert!(got.body.contains(&format!("\"name\": \"{name}\"")), "{}", got.body);
    }
    assert!(services.sync(&BTreeMap::new(), &BTreeMap::new()).is_empty());
    assert!(probe(Ipv4Addr::LOCALHOST, second).await.is_err(), "it is closed");
}

#[tokio::test]
async fn a_taken_port_is_reported_and_tried_again() {
    let health = Arc::new(Health::new(TIMEOUT));
    // Neither address is open as long as one of them cannot be.
    let both = ListenAddresses::These(vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]);
    let mut services = ServiceHealth::new(Handle::current(), both, health);
    let (holder, address) = taken();
    let taken = address.port();
    let (wanted, counts) = (port("web", taken), count("web", 1));
    let failures = services.sync(&wanted, &counts);
    let failed: Vec<_> = failures.iter().map(|failure| (&failure.service, failure.address)).collect();
    assert_eq!(failed, [(&service("web"), address)]);
    assert!(probe(Ipv6Addr::LOCALHOST, taken).await.is_err(), "all addresses or none");
    let note = failures.first().map(|failure| failure.event_note("node-1"));
    let want = format!(
        "node node-1 failed to start healthcheck \"ns/web\" on port {taken}: listen on 127.0.0.1:{taken}: Address \
         already in use (os error 98)"
    );
    assert_eq!(note.as_deref(), Some(want.as_str()));
    assert_eq!(services.sync(&wanted, &counts).len(), 1);
    drop(holder);
    assert!(services.sync(&wanted, &counts).is_empty());
    for loopback in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        assert_eq!(probe(loopback, taken).await.expect("an answer").status, 200);
    }
}

#[tokio::test]
async fn listeners_follow_the_addresses_and_keep_their_connections() {
    let health = Arc::new(Health::new(TIMEOUT));
    let mut services = ServiceHealth::new(Handle::current(), v4_loopback(), health);
    let free = free_port();
    let (wanted, counts) = (port("web", free), count("web", 1));
    assert!(services.sync(&wanted, &counts).is_empty());
    // A connection that stays open.
    let mut open = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, free)).await.expect("a connection");
    services.listen_on(ListenAddresses::These(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]));
    assert!(services.sync(&wanted, &counts).is_empty());
    for loopback in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        assert_eq!(probe(loopback, free).await.expect("an answer").status, 200);
    }
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut open, request).await.expect("still open");
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut open, &mut answer).await.expect("still served");
    assert_eq!(&answer, b"HTTP/1.1 200");
    // An address that cannot be opened yet does not affect open ones.
    let foreign = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    services.listen_on(ListenAddresses::These(vec![Ipv4Addr::LOCALHOST.into(), foreign]));
    assert_eq!(services.sync(&wanted, &counts).len(), 1);
    assert_eq!(probe(Ipv4Addr::LOCALHOST, free).await.expect("an answer").status, 200);
    services.listen_on(ListenAddresses::These(vec![Ipv6Addr::LOCALHOST.into()]));
    assert!(services.sync(&wanted, &counts).is_empty());
    assert!(probe(Ipv4Addr::LOCALHOST, free).await.is_err(), "it is closed");
    assert_eq!(probe(Ipv6Addr::LOCALHOST, free).await.expect("an answer").status, 200);
}

#[test]
fn a_new_timeout_applies_to_waiting_changes() {
    let (clock, health) = (Clock::new(), Health::new(TIMEOUT));
    health.updated(Family::Ipv4, clock.after(0).monotonic, clock.after(0));
    health.queued(Family::Ipv4, clock.after(0));
    assert!(!health.is_healthy(clock.after(60_000)));
    health.set_timeout(TIMEOUT * 2);
    assert!(health.is_healthy(clock.after(60_000)));
}

#[tokio::test]
async fn the_families_of_a_service_have_separate_counts() {
    let health = Arc::new(Health::new(TIMEOUT));
    let open =
        |family| ServiceHealth::new(Handle::current(), ListenAddresses::All(family), Arc::clone(&health));
    let (mut v4, mut v6) = (open(Family::Ipv4), open(Family::Ipv6));
    let free = free_port();
    assert!(v4.sync(&port("web", free), &count("web", 1)).is_empty());
    assert!(v6.sync(&port("web", free), &count("web", 0)).is_empty());
    assert_eq!(probe(Ipv4Addr::LOCALHOST, free).await.expect("an answer").status, 200);
    assert_eq!(probe(Ipv6Addr::LOCALHOST, free).await.expect("an answer").status, 503);
}

#[test]
fn health_check_node_ports_listen_where_node_ports_do() {
    let here =
        [IpAddr::from(Ipv4Addr::new(192, 0, 2, 7)), Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let choose = |node_ports: &NodePortMatch| ListenAddresses::choose(node_ports, Family::Ipv4, &here);
    assert_eq!(choose(&NodePortMatch::MatchAll), ListenAddresses::All(Family::Ipv4));
    let inside = NodePortMatch::Cidrs(vec!["192.0.2.0/24".parse().expect("a CIDR")]);
    assert_eq!(choose(&inside), ListenAddresses::These(vec![Ipv4Addr::new(192, 0, 2, 7).into()]));
    let elsewhere = NodePortMatch::Cidrs(vec!["198.51.100.0/24".parse().expect("a CIDR")]);
    assert_eq!(choose(&elsewhere), ListenAddresses::These(Vec::new()));
    let link_local: [IpAddr; 2] = ["fe80::1", "2001:db8::1"].map(|text| text.parse().expect("an address"));
    let both = NodePortMatch::Cidrs(
        ["fe80::/10", "2001:db8::/32"].map(|text| text.parse().expect("a CIDR")).to_vec(),
    );
    let chosen = ListenAddresses::choose(&both, Family::Ipv6, &link_local);
    assert_eq!(chosen, ListenAddresses::These(vec!["2001:db8::1".parse().expect("an address")]));
}
