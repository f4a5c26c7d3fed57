use std::net::UdpSocket;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use portolan_api::{ApiConfig, Preconditions, Target, WriteOptions};
use portolan_schema::Resource;
use portolan_schema::json::{Value, json};
use portolan_testkit::{Namespace, eventually};

use super::*;
use crate::testing::assert_documented;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server, and what stops it.
struct Running {
    address: SocketAddr,
    readiness: Readiness,
    loaded: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    metrics: Sources,
}

fn start(api: &Arc<Api>) -> Running {
    start_at("127.0.0.1:0", api)
}

fn start_at(listen: &str, api: &Arc<Api>) -> Running {
    start_with(&config(listen, None), api)
}

fn config(listen: &str, forward: Option<Forward>) -> NamesConfig {
    let listen = vec![listen.parse().unwrap()];
    NamesConfig { listen, domain: "cluster.local".to_owned(), forward, service: true }
}

fn start_with(config: &NamesConfig, api: &Arc<Api>) -> Running {
    start_prepared(Prepared::new(config).unwrap(), api)
}

fn start_prepared(prepared: Prepared, api: &Arc<Api>) -> Running {
    let address = prepared.addresses()[0];
    let ((loaded, is_loaded), (stop, stopping)) = (watch::channel(false), watch::channel(false));
    let (mut tasks, metrics) = (JoinSet::new(), Sources::default());
    let readiness = prepared.start(api, is_loaded, &stopping, &mut tasks, &metrics).unwrap();
    Running { address, readiness, loaded, stop, tasks, metrics }
}

impl Running {
    /// Returns the response code and the records of the answer.
    fn ask(&self, name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
        self.try_ask(name, kind, PATIENCE).unwrap()
    }

    /// The same, or `None` without an answer in time.
    fn try_ask(&self, name: &str, kind: RecordType, within: Duration) -> Option<(ResponseCode, Vec<String>)> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(within)).unwrap();
        socket.send_to(&message.to_vec().unwrap(), self.address).unwrap();
        let mut bytes = [0; 4096];
        let (length, _) = socket.recv_from(&mut bytes).ok()?;
        let answer = Message::from_vec(&bytes[..length]).unwrap();
        let records = answer.answers.iter().map(|record| record.data.to_string()).collect();
        Some((answer.response_code, records))
    }

    /// Asks until the answer is as expected.
    fn answers(&self, name: &str, kind: RecordType, code: ResponseCode, records: &[&str]) {
        let mut answer = None;
        let met = eventually(PATIENCE, name, || {
            let (found_code, found) = answer.insert(self.ask(name, kind));
            *found_code == code && found == records
        });
        assert!(met.is_ok(), "{name} {kind}: {answer:?}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the value in place")]
fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

const WEB: &str = "web.default.svc.cluster.local.";

#[tokio::test]
async fn changes_are_answered() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    api.apply(service("web", json!({"clusterIP": "10.96.0.80", "ports": [{"port": 80}]}))).await.unwrap();
    // An address of its own: no other test gets its port when it is free again.
    let mut running = start_at("127.9.9.1:0", &api);
    // Before the folder of manifests is read, a known name is answered, and no name is said not to exist.
    running.answers(WEB, RecordType::A, ResponseCode::NoError, &["10.96.0.80"]);
    let none = "none.default.svc.cluster.local.";
    assert_eq!(running.ask(none, RecordType::A).0, ResponseCode::ServFail);
    assert_eq!(running.readiness.check(), Err("the names of Services are not known yet".to_owned()));
    running.loaded.send_replace(true);
    running.answers(none, RecordType::A, ResponseCode::NXDomain, &[]);
    assert_eq!(running.readiness.check(), Ok(()));

    // A reverse name in the range of cluster IPs does not exist; others belong to other servers.
    running.answers("80.0.96.10.in-addr.arpa.", RecordType::PTR, ResponseCode::NoError, &[WEB]);
    running.answers("81.0.96.10.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain, &[]);
    running.answers("1.2.0.192.in-addr.arpa.", RecordType::PTR, ResponseCode::Refused, &[]);

    let headless = service("db", json!({"clusterIP": "None", "ports": [{"port": 5432}]}));
    api.apply(headless).await.unwrap();
    let slice = |ready: bool| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
            "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": ready}}]})
    };
    let db = "db.default.svc.cluster.local.";
    api.apply(slice(true)).await.unwrap();
    running.answers(db, RecordType::A, ResponseCode::NoError, &["192.0.2.1"]);
    running.answers(db, RecordType::AAAA, ResponseCode::NoError, &[]);
    api.apply(slice(false)).await.unwrap();
    running.answers(db, RecordType::A, ResponseCode::NXDomain, &[]);
    api.apply(slice(true)).await.unwrap();
    running.answers(db, RecordType::A, ResponseCode::NoError, &["192.0.2.1"]);
    for (resource, name) in [(Resource::EndpointSlice, "db-1"), (Resource::Service, "web")] {
        let target = Target { resource, namespace: "default", name };
        api.delete(target, &Preconditions::default(), WriteOptions::default()).await.unwrap();
    }
    running.answers(db, RecordType::A, ResponseCode::NXDomain, &[]);
    running.answers(WEB, RecordType::A, ResponseCode::NXDomain, &[]);

    let page = running.metrics.render();
    assert_documented(&page, "dns.md", "portolan_dns_");
    assert!(
        page.contains("portolan_dns_answers_total{transport=\"udp\",type=\"AAAA\",code=\"NOERROR\"} "),
        "{page}"
    );
    assert!(page.contains("\nportolan_dns_in_sync 1\n"), "{page}");

    // The thread ends, and the port is free again.
    running.stop.send_replace(true);
    while running.tasks.join_next().await.is_some() {}
    Bound::new(running.address).unwrap();
    assert_eq!(running.readiness.check(), Err("the DNS server has ended".to_owned()));
}

/// Needs root.
#[test]
fn an_address_that_comes_later_is_listened_on_then() {
    let namespace = Namespace::new("late").unwrap();
    namespace.ip("link set lo up\n").unwrap();
    let test = || {
        let api = Arc::new(Api::new(&ApiConfig::default()));
        let running = start_at("192.0.2.53:53", &api);
        assert_eq!(running.address, "192.0.2.53:53".parse().unwrap());
        running.loaded.send_replace(true);
        namespace.ip("addr add 192.0.2.53/32 dev lo\n").unwrap();
        let within = Duration::from_millis(100);
        let answers =
            || running.try_ask(WEB, RecordType::A, within) == Some((ResponseCode::NXDomain, vec![]));
        eventually(PATIENCE, "an answer", answers).unwrap();
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    namespace.run(|| runtime.block_on(async { test() })).unwrap();
}

/// Needs root.
#[test]
fn it_is_known_which_addresses_are_answered() {
    let namespace = Namespace::new("answered").unwrap();
    namespace.ip("link set lo up\n").unwrap();
    let test = || {
        let api = Arc::new(Api::new(&ApiConfig::default()));
        let listen = ["127.0.0.9:53", "192.0.2.53:53", "[2001:db8::53]:53", "198.51.100.53:53"]
            .map(|it| it.parse().unwrap());
        // With this setting, sockets are bound to addresses that the host does not have.
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap();
        let prepared =
            Prepared::new(&NamesConfig { listen: listen.to_vec(), ..config("127.0.0.9:53", None) }).unwrap();
        let answering = prepared.answering();
        assert_eq!(*answering.borrow(), listen[..1]);
        let running = start_prepared(prepared, &api);
        let is_answering = |wanted: &[SocketAddr]| {
            eventually(PATIENCE, "the addresses", || {
                listen.iter().all(|address| answering.borrow().contains(address) == wanted.contains(address))
            })
            .unwrap();
        };
        namespace.ip("addr add 2001:db8::53/128 dev lo nodad\naddr add 192.0.2.53/32 dev lo\n").unwrap();
        // Not the first address of its network, so packets to it have another source.
        namespace.ip("addr add 198.51.100.1/24 dev lo\naddr add 198.51.100.53/24 dev lo\n").unwrap();
        is_answering(&listen);
        // The sockets stay bound when the address moves away.
        namespace.ip("addr del 192.0.2.53/32 dev lo\n").unwrap();
        is_answering(&[listen[0], listen[2], listen[3]]);
        let page = running.metrics.render();
        assert!(page.contains("portolan_dns_answering{address=\"127.0.0.9:53\"} 1\n"), "{page}");
        assert!(page.contains("portolan_dns_answering{address=\"192.0.2.53:53\"} 0\n"), "{page}");
        // A server that has ended answers nowhere.
        running.stop.send_replace(true);
        is_answering(&[]);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    namespace.run(|| runtime.block_on(async { test() })).unwrap();
}

/// Answers requests at an address without records, as another server would.
fn other_server(address: &str) {
    let socket = UdpSocket::bind(address).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok((length, client)) = socket.recv_from(&mut bytes) {
            let mut message = Message::from_vec(&bytes[..length]).unwrap();
            message.metadata.message_type = MessageType::Response;
            socket.send_to(&message.to_vec().unwrap(), client).unwrap();
        }
    });
}

/// Needs root.
#[test]
fn a_file_that_names_no_server_is_read_until_it_names_one() {
    let namespace = Namespace::new("forward").unwrap();
    namespace.ip("link set lo up\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    std::fs::write(&file, "# written by the DHCP client later\n").unwrap();
    let test = || {
        other_server("127.0.0.9:53");
        let api = Arc::new(Api::new(&ApiConfig::default()));
        let running = start_with(&config("127.0.0.1:0", Some(Forward::File(file.clone()))), &api);
        let code = || running.ask("www.example.com.", RecordType::A).0;
        assert_eq!(code(), ResponseCode::Refused);
        std::fs::write(&file, "nameserver 127.0.0.9\n").unwrap();
        eventually(PATIENCE, "an answer of the other server", || code() == ResponseCode::NoError).unwrap();
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    namespace.run(|| runtime.block_on(async { test() })).unwrap();
}

/// Needs root.
#[test]
fn the_cluster_ips_of_the_server_are_not_asked_also_if_they_change() {
    let namespace = Namespace::new("own").unwrap();
    namespace.ip("link set lo up\naddr add 10.96.0.10/32 dev lo\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    std::fs::write(&file, "nameserver 10.96.0.10\n").unwrap();
    let test = || {
        other_server("10.96.0.10:53");
        let api = Arc::new(Api::new(&ApiConfig::default()));
        let mut kube_dns = service("kube-dns", json!({"clusterIP": "10.96.0.10", "ports": [{"port": 53}]}));
        kube_dns["metadata"]["namespace"] = "kube-system".into();
        api.blocking().apply(kube_dns.clone()).unwrap();
        let running = start_with(&config("127.0.0.1:0", Some(Forward::File(file.clone()))), &api);
        let code = || running.ask("www.example.com.", RecordType::A).0;
        assert_eq!(code(), ResponseCode::Refused);
        // The address is another server's now.
        let target = Target { resource: Resource::Service, namespace: "kube-system", name: "kube-dns" };
        api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()).unwrap();
        eventually(PATIENCE, "an answer of the other server", || code() == ResponseCode::NoError).unwrap();
        api.blocking().apply(kube_dns).unwrap();
        eventually(PATIENCE, "no answer", || code() == ResponseCode::ServFail).unwrap();
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    namespace.run(|| runtime.block_on(async { test() })).unwrap();
}

#[tokio::test]
async fn an_object_that_cannot_be_used_affects_only_itself() {
    let api = Arc::new(Api::new(&ApiConfig { validate: false, ..ApiConfig::default() }));
    let running = start(&api);
    running.loaded.send_replace(true);
    api.apply(service("bad", json!({"clusterIP": "10.96.0.1", "ports": 7}))).await.unwrap();
    api.apply(service("web", json!({"clusterIP": "10.96.0.80", "ports": [{"port": 80}]}))).await.unwrap();
    running.answers(WEB, RecordType::A, ResponseCode::NoError, &["10.96.0.80"]);
    // The names may be answered before all of them are known to be in sync.
    running.answers("bad.default.svc.cluster.local.", RecordType::A, ResponseCode::NXDomain, &[]);
    // An object that becomes unusable loses its names.
    api.apply(service("web", json!({"clusterIP": "10.96.0.80", "ports": 7}))).await.unwrap();
    running.answers(WEB, RecordType::A, ResponseCode::NXDomain, &[]);
}

#[test]
fn mistakes_name_the_flag_and_the_value() {
    let taken = Bound::new("127.0.0.1:0".parse().unwrap()).unwrap();
    let taken = (taken.address().unwrap(), taken);
    let good = config("127.0.0.1:0", None);
    let error = |config: &NamesConfig| Prepared::new(config).unwrap_err().to_string();
    let listen = error(&NamesConfig { listen: vec![taken.0], ..good.clone() });
    assert!(listen.starts_with(&format!("--dns-listen: cannot listen on {}: ", taken.0)), "{listen}");
    let every = error(&NamesConfig { listen: vec!["0.0.0.0:53".parse().unwrap()], ..good.clone() });
    assert!(every.starts_with("--dns-listen: 0.0.0.0:53 is every address"), "{every}");
    let domain = error(&NamesConfig { domain: "a..b".to_owned(), ..good.clone() });
    assert!(domain.starts_with("--cluster-domain: \"a..b\" is not a domain name"), "{domain}");
    let forward = Some(Forward::File("/nonexistent".into()));
    let forward = error(&NamesConfig { forward, ..good });
    assert!(forward.starts_with("--dns-forward: cannot read /nonexistent: "), "{forward}");
}
