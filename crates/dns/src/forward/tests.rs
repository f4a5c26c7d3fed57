use std::sync::Arc;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::TcpListener;

use super::*;

/// Longer than any of the tests needs; a server that is silent on purpose has [`SHORT`].
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(20);

fn request() -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii("www.example.com.").unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

/// The answer of a server, by its last octet.
fn answer(request: &[u8], last: u8) -> Message {
    let mut message = Message::from_vec(request).unwrap();
    message.metadata.message_type = MessageType::Response;
    let name = message.queries[0].name.clone();
    message.add_answer(Record::from_rdata(
        name,
        1,
        RData::A(std::net::Ipv4Addr::new(192, 0, 2, last).into()),
    ));
    message
}

/// Starts a UDP server that sends what `answers` returns for each request.
async fn server(answers: impl Fn(&[u8]) -> Vec<Message> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut bytes).await {
            for message in answers(&bytes[..length]) {
                socket.send_to(&message.to_vec().unwrap(), client).await.unwrap();
            }
        }
    });
    address
}

fn address_in(answer: &[u8]) -> String {
    Message::from_vec(answer).unwrap().answers[0].data.to_string()
}

#[tokio::test]
async fn ids_are_random_and_only_matching_answers_are_taken() {
    let ids = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    let server = server(move |bytes| {
        let right = answer(bytes, 1);
        seen.lock().unwrap().push(right.id);
        let mut other_id = answer(bytes, 2);
        other_id.metadata.id = right.id.wrapping_add(1);
        let mut other_name = answer(bytes, 3);
        other_name.queries[0].name = Name::from_ascii("www.example.org.").unwrap();
        let mut question = answer(bytes, 4);
        question.metadata.message_type = MessageType::Query;
        vec![other_id, other_name, question, right]
    })
    .await;
    let forwarder = Forwarder::new([server], LONG);
    for _ in 0..8 {
        assert_eq!(address_in(&forwarder.ask(&request(), Transport::Udp, &[]).await.unwrap()), "192.0.2.1");
    }
    let mut ids = ids.lock().unwrap().clone();
    ids.sort_unstable();
    ids.dedup();
    // Eight ids of 65,536 are the same once in 10^33 runs.
    assert!(ids.len() > 1);
}

#[tokio::test]
async fn a_silent_server_is_followed_by_the_next_which_is_then_the_first() {
    let silent_asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&silent_asked);
    let silent = server(move |_| {
        count.fetch_add(1, Relaxed);
        Vec::new()
    })
    .await;
    let good = server(|bytes| vec![answer(bytes, 5)]).await;
    let forwarder = Forwarder::new([silent, good], SHORT);
    // On a slow machine the good server may miss the time as well; then the request is made again.
    while forwarder.ask(&request(), Transport::Udp, &[]).await.is_err() {}
    assert!(silent_asked.load(Relaxed) > 0);
    assert_eq!(forwarder.preferred.load(Relaxed), 1);
}

#[tokio::test]
async fn a_server_that_refuses_is_followed_by_the_next() {
    let refuses = |code| {
        move |bytes: &[u8]| {
            let mut message = answer(bytes, 9);
            message.metadata.response_code = code;
            vec![message]
        }
    };
    let (first, second) =
        (server(refuses(ResponseCode::Refused)).await, server(refuses(ResponseCode::ServFail)).await);
    let none = server(refuses(ResponseCode::NXDomain)).await;
    let found = Forwarder::new([first, none], LONG).ask(&request(), Transport::Udp, &[]).await.unwrap();
    assert_eq!(Message::from_vec(&found).unwrap().response_code, ResponseCode::NXDomain);
    let found = Forwarder::new([first, second], LONG).ask(&request(), Transport::Udp, &[]).await.unwrap();
    assert_eq!(Message::from_vec(&found).unwrap().response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn without_servers_there_is_no_answer() {
    let asked = Forwarder::new([], LONG).ask(&request(), Transport::Udp, &[]).await;
    assert!(matches!(asked, Err(ForwardError::Unanswered)));
}

#[tokio::test]
async fn requests_that_wait_are_limited() {
    let silent = server(|_| Vec::new()).await;
    let forwarder = Arc::new(Forwarder::new([silent], LONG));
    let places = forwarder.waiting.acquire_many(u32::try_from(MAX_WAITING).unwrap()).await.unwrap();
    let asked = forwarder.ask(&request(), Transport::Udp, &[]).await;
    assert!(matches!(asked, Err(ForwardError::Busy)));
    drop(places);
    assert_eq!(forwarder.waiting.available_permits(), MAX_WAITING);
}

#[tokio::test]
async fn a_truncated_answer_is_fetched_over_tcp() {
    // Another test may have the same port for UDP.
    let (listener, socket) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
            break (listener, socket);
        }
    };
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 512];
        let (length, client) = socket.recv_from(&mut bytes).await.unwrap();
        let mut message = answer(&bytes[..length], 1);
        message.answers.clear();
        message.metadata.truncation = true;
        socket.send_to(&message.to_vec().unwrap(), client).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut bytes).await.unwrap();
        let whole = answer(&bytes, 6).to_vec().unwrap();
        stream.write_u16(u16::try_from(whole.len()).unwrap()).await.unwrap();
        stream.write_all(&whole).await.unwrap();
    });
    let found = Forwarder::new([address], LONG).ask_whole(&request(), &[]).await.unwrap();
    assert_eq!(address_in(&found), "192.0.2.6");
}

#[tokio::test]
async fn the_server_that_asks_is_left_out() {
    let (own, other) =
        (server(|bytes| vec![answer(bytes, 1)]).await, server(|bytes| vec![answer(bytes, 2)]).await);
    let forwarder = Forwarder::new([own, other], LONG);
    let found = forwarder.ask(&request(), Transport::Udp, &[own]).await.unwrap();
    assert_eq!(address_in(&found), "192.0.2.2");
    let found = forwarder.ask_whole(&request(), &[other]).await.unwrap();
    assert_eq!(address_in(&found), "192.0.2.1");
    let asked = forwarder.ask(&request(), Transport::Udp, &[own, other]).await;
    assert!(matches!(asked, Err(ForwardError::Unanswered)), "{asked:?}");
}
