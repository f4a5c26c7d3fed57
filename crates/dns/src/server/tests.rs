use std::collections::HashMap;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::*;
use crate::forward::PATIENCE;
use crate::object::{Service, Slice};
use crate::zone::Settings;

/// A running server, which ends with the test.
struct Running {
    server: Arc<Server>,
    zone: Arc<RwLock<Zone>>,
    address: SocketAddr,
    task: JoinHandle<io::Result<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn service(last: u8) -> Service {
    let object = json!({"metadata": {"name": format!("s{last}"), "namespace": "shop"},
                        "spec": {"clusterIP": format!("10.96.0.{last}")}});
    Service::try_from(&object).unwrap()
}

fn start(forwarder: Option<Forwarder>, limits: Limits) -> Running {
    let mut zone = Zone::new(Settings::new("cluster.local").unwrap(), 1);
    zone.set_in_sync(true);
    (0..20).for_each(|last| zone.set_service(service(last)));
    let external = json!({"metadata": {"name": "site", "namespace": "shop"},
                          "spec": {"type": "ExternalName", "externalName": "www.example.com"}});
    zone.set_service(Service::try_from(&external).unwrap());
    let zone = Arc::new(RwLock::new(zone));
    let server = Arc::new(Server::new(Arc::clone(&zone), forwarder, limits));
    let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = sockets.address().unwrap();
    let task = tokio::spawn(Arc::clone(&server).serve(sockets));
    Running { server, zone, address, task }
}

fn request(id: u16, name: &str) -> Vec<u8> {
    request_of(RecordType::A, id, name)
}

fn request_of(kind: RecordType, id: u16, name: &str) -> Vec<u8> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn name(last: u16) -> String {
    format!("s{last}.shop.svc.cluster.local.")
}

async fn udp(to: SocketAddr, request: &[u8]) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(request, to).await.unwrap();
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).await.unwrap();
    Message::from_vec(&bytes[..length]).unwrap()
}

fn framed(request: &[u8]) -> Vec<u8> {
    [&u16::try_from(request.len()).unwrap().to_be_bytes(), request].concat()
}

async fn read(stream: &mut TcpStream) -> io::Result<Message> {
    let mut bytes = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(Message::from_vec(&bytes).unwrap())
}

fn addresses(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

#[tokio::test]
async fn both_transports_answer_and_a_change_is_answered_at_once() {
    let running = start(None, Limits::default());
    let answer = udp(running.address, &request(5, &name(7))).await;
    assert_eq!((answer.id, addresses(&answer)), (5, vec!["10.96.0.7".to_owned()]));
    running.zone.write().unwrap().remove_service(&service(7).name);
    assert_eq!(udp(running.address, &request(5, &name(7))).await.response_code, ResponseCode::NXDomain);
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&framed(&request(6, &name(8)))).await.unwrap();
    assert_eq!(addresses(&read(&mut stream).await.unwrap()), ["10.96.0.8"]);
    assert_eq!(udp(running.address, &request(1, "example.com.")).await.response_code, ResponseCode::Refused);
    let counted: Vec<_> = running
        .server
        .metrics()
        .answers()
        .map(|one| (one.transport, one.kind, one.code, one.count))
        .collect();
    assert_eq!(
        counted,
        [
            ("udp", "A", "NOERROR", 1),
            ("udp", "A", "NXDOMAIN", 1),
            ("udp", "A", "REFUSED", 1),
            ("tcp", "A", "NOERROR", 1)
        ]
    );
}

#[tokio::test]
async fn many_datagrams_and_garbage_among_them() {
    let running = start(None, Limits::default());
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(running.address).await.unwrap();
    for id in 0..100 {
        socket.send(b"garbage").await.unwrap();
        socket.send(&request(id, &name(id % 20))).await.unwrap();
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).await.unwrap();
        assert_eq!(Message::from_vec(&bytes[..length]).unwrap().id, id);
    }
    assert_eq!(running.server.metrics().dropped.load(Relaxed), 100);
}

#[tokio::test]
async fn requests_that_are_sent_together_and_in_pieces_are_answered_in_order() {
    let running = start(None, Limits::default());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let all: Vec<u8> = (0..50).flat_map(|id| framed(&request(id, &name(id % 20)))).collect();
    let (first, second) = all.split_at(all.len() / 2 + 1);
    stream.write_all(first).await.unwrap();
    assert_eq!(read(&mut stream).await.unwrap().id, 0);
    stream.write_all(second).await.unwrap();
    for id in 1..50 {
        assert_eq!(read(&mut stream).await.unwrap().id, id);
    }
}

#[tokio::test]
async fn the_answers_of_a_closed_direction_still_arrive() {
    let running = start(None, Limits::default());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&framed(&request(1, &name(1)))).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read(&mut stream).await.unwrap().id, 1);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn connections_without_a_whole_request_or_with_a_long_one_are_closed() {
    let limits = Limits { idle: Duration::from_millis(50), ..Limits::default() };
    let running = start(None, limits);
    for begin in [&b""[..], &[0], &[0, 40, 1, 2, 3], &[0xff, 0xff]] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(begin).await.unwrap();
        assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)));
    }
}

#[tokio::test]
async fn one_connection_too_many_closes_the_oldest() {
    let running = start(None, Limits { connections: 2, ..Limits::default() });
    let mut streams = Vec::new();
    for id in 0..3 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(&framed(&request(id, &name(1)))).await.unwrap();
        assert_eq!(read(&mut stream).await.unwrap().id, id);
        streams.push(stream);
    }
    assert!(matches!(streams[0].read(&mut [0]).await, Ok(0) | Err(_)));
    for stream in &mut streams[1..] {
        stream.write_all(&framed(&request(9, &name(1)))).await.unwrap();
        assert_eq!(read(stream).await.unwrap().id, 9);
    }
    assert_eq!(running.server.metrics().connections_closed.load(Relaxed), 1);
    assert_eq!(running.server.metrics().connections.load(Relaxed), 2);
}

/// Starts another server that answers each request over both transports, but `slow.` only when `slow` is notified.
fn other(slow: Arc<tokio::sync::Notify>) -> SocketAddr {
    let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = sockets.address().unwrap();
    let reply = |bytes: &[u8]| {
        let mut message = Message::from_vec(bytes).unwrap();
        message.metadata.message_type = MessageType::Response;
        let name = message.queries[0].name.clone();
        message.add_answer(Record::from_rdata(
            name,
            60,
            RData::A(std::net::Ipv4Addr::new(192, 0, 2, 1).into()),
        ));
        message.to_vec().unwrap()
    };
    let Sockets { udp, tcp } = sockets;
    tokio::spawn(async move {
        let mut bytes = [0; 512];
        loop {
            let (length, client) = udp.recv_from(&mut bytes).await.unwrap();
            udp.send_to(&reply(&bytes[..length]), client).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let slow = Arc::clone(&slow);
            tokio::spawn(async move {
                let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut bytes).await.unwrap();
                if Message::from_vec(&bytes).unwrap().queries[0].name.to_ascii() == "slow." {
                    slow.notified().await;
                }
                stream.write_all(&framed(&reply(&bytes))).await.unwrap();
            });
        }
    });
    address
}

#[tokio::test]
async fn other_names_are_forwarded_over_the_clients_transport() {
    let slow = Arc::new(tokio::sync::Notify::new());
    let forwarder = Forwarder::new([other(Arc::clone(&slow))], PATIENCE * 10);
    let running = start(Some(forwarder), Limits::default());
    let answer = udp(running.address, &request(5, "www.example.com.")).await;
    assert_eq!((answer.id, addresses(&answer)), (5, vec!["192.0.2.1".to_owned()]));
    let answer = udp(running.address, &request(6, "site.shop.svc.cluster.local.")).await;
    assert_eq!(addresses(&answer), ["www.example.com.", "192.0.2.1"]);

    // An answer of the zone does not wait for one of another server that was asked for before it.
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&[framed(&request(1, "slow.")), framed(&request(2, &name(2)))].concat()).await.unwrap();
    assert_eq!(read(&mut stream).await.unwrap().id, 2);
    slow.notify_one();
    assert_eq!(read(&mut stream).await.unwrap().id, 1);
    assert_eq!(running.server.metrics().forwarded.load(Relaxed), 3);
}

#[tokio::test]
async fn without_an_answer_of_another_server_the_client_gets_an_error() {
    // Nothing listens at this port: it was free a moment before.
    let closed = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap().address().unwrap();
    let running = start(Some(Forwarder::new([closed], Duration::from_millis(50))), Limits::default());
    let answer = udp(running.address, &request(5, "www.example.com.")).await;
    assert_eq!((answer.id, answer.response_code), (5, ResponseCode::ServFail));
    assert_eq!(running.server.metrics().forward_failed.load(Relaxed), 1);
}

/// Returns a server for the headless Service `shop/db` with as many IPv4 endpoints. Its answers are the same in each run.
fn headless(endpoints: u8) -> Server {
    let mut zone = Zone::new(Settings::new("cluster.local").unwrap(), 1);
    zone.set_in_sync(true);
    let service = json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": {"clusterIP": "None"}});
    zone.set_service(Service::try_from(&service).unwrap());
    let endpoints: Vec<_> =
        (0..endpoints).map(|last| json!({"addresses": [format!("10.1.0.{last}")]})).collect();
    let labels = json!({"kubernetes.io/service-name": "db"});
    let metadata = json!({"name": "db-1", "namespace": "shop", "labels": labels});
    let slice = json!({"metadata": metadata, "endpoints": endpoints});
    zone.set_slice(Slice::try_from(&slice).unwrap());
    let mut server = Server::new(Arc::new(RwLock::new(zone)), None, Limits::default());
    server.turns = Turns::new(1);
    server
}

#[test]
fn each_endpoint_comes_first_equally_often_whatever_the_pattern_of_requests() {
    // A client asks for A only; for A and AAAA, as getaddrinfo does; and for both with a search list, where the first
    // name does not exist.
    let alone = vec![request(1, "db.shop.svc.cluster.local.")];
    let pair = [alone.clone(), vec![request_of(RecordType::AAAA, 2, "db.shop.svc.cluster.local.")]].concat();
    let absent = "db.shop.svc.cluster.local.shop.svc.cluster.local.";
    let search = [vec![request(3, absent), request_of(RecordType::AAAA, 4, absent)], pair.clone()].concat();
    // The number of endpoints, and the limit of the chi-square statistic that equal chances exceed once in 1000 times.
    for (endpoints, limit) in [(2, 10.83), (3, 13.82), (4, 16.27), (8, 24.32)] {
        for pattern in [&alone, &pair, &search] {
            let server = headless(endpoints);
            let mut first: HashMap<String, u32> = HashMap::new();
            let mut out = Vec::new();
            for request in pattern.iter().cycle().take(pattern.len() * 4000) {
                server.ask_zone(request, Transport::Udp, &mut out);
                let found = addresses(&Message::from_vec(&out).unwrap());
                found.into_iter().take(1).for_each(|address| *first.entry(address).or_default() += 1);
            }
            let expected = 4000.0 / f64::from(endpoints);
            let squares = first.values().map(|times| (f64::from(*times) - expected).powi(2)).sum::<f64>();
            let chi_square = squares / expected;
            assert_eq!(first.len(), usize::from(endpoints), "{} requests: {first:?}", pattern.len());
            assert!(chi_square < limit, "{} requests: {chi_square}, {first:?}", pattern.len());
        }
    }
}
