//! Certificates and tokens that change while the client runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use portolan_watch::{ClientSettings, RequestDone, connect};
use tokio::time;

use crate::certificates::Authority;
use crate::home::{Home, failure, get, open};
use crate::server::{DEADLINE, Server};

#[tokio::test]
async fn a_new_authority_counts_for_new_connections_and_old_ones_go_on() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let server = Server::start(first.server(None)).await;
    let (home, stale) = (Home::new(), Home::new());
    let client = home.client(&server, &first, "").await;
    let stale = stale.client(&server, &first, "").await;
    let feed = server.stream("/watch");
    let mut watch = open(&client, "/watch").await.unwrap().into_body();

    server.state().tls = second.server(None);
    assert!(failure(&stale).await.contains("UnknownIssuer"), "the server has another certificate now");
    home.write("ca.crt", &second.pem);
    assert_eq!(get(&client, "/new").await, 200);

    feed.send("still here".to_owned()).unwrap();
    let frame = time::timeout(DEADLINE, watch.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "still here");
    let connections: Vec<usize> = server.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 1]);
    drop(feed);
    assert!(time::timeout(DEADLINE, watch.frame()).await.unwrap().is_none());
    assert_eq!(get(&client, "/more").await, 200);
    assert_eq!(server.requests()[2].connection, 1, "the old connection is not used again");
}

#[tokio::test]
async fn an_unusable_authority_changes_nothing() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = Home::new();
    let client = home.client(&server, &authority, "").await;
    for garbage in ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "half"] {
        home.write("ca.crt", garbage);
        // Text without a certificate is an empty list of authorities, which would make every connection fail.
        assert_eq!(get(&client, "/").await, 200, "{garbage}");
    }
}

#[tokio::test]
async fn a_rotated_token_counts_at_once() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = Home::new();
    home.write("token", "t1\n");
    let client = home.client(&server, &authority, "tokenFile: token").await;
    server.state().token = Some("t1".to_owned());
    assert_eq!(get(&client, "/").await, 200);
    server.state().token = Some("t2".to_owned());
    assert_eq!(get(&client, "/").await, 401);
    assert_eq!(server.requests().len(), 2, "the same token is not sent twice");
    home.write("token", "t2\n");
    assert_eq!(get(&client, "/").await, 200);
}

#[tokio::test]
async fn a_token_that_changes_under_a_request_is_read_again() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = Home::new();
    home.write("token", "t1");
    let done = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&done);
    let settings = ClientSettings {
        on_request: Some(Arc::new(move |request: &RequestDone| seen.lock().unwrap().push(request.clone()))),
        ..home.settings(&server, &authority, "tokenFile: token", "")
    };
    let client = connect(&settings).await.unwrap();
    let token = home.path("token");
    {
        let mut state = server.state();
        state.token = Some("t2".to_owned());
        state.on_unauthorized = Some(Box::new(move || std::fs::write(&token, "t2").unwrap()));
    }
    assert_eq!(get(&client, "/").await, 200);
    let codes: Vec<u16> = server.requests().iter().map(|request| request.code).collect();
    assert_eq!(codes, [401, 200]);
    let done = done.lock().unwrap();
    let reported: Vec<_> = done.iter().map(|done| (done.verb, &*done.host, done.code_label())).collect();
    let host = server.address.to_string();
    assert_eq!(reported, [("GET", &*host, "401".to_owned()), ("GET", &*host, "200".to_owned())]);
}

#[tokio::test]
async fn requests_wait_for_the_rate_limit() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = Home::new();
    let waits = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&waits);
    let settings = ClientSettings {
        qps: 2.0,
        burst: 2,
        on_request: Some(Arc::new(move |request: &RequestDone| seen.lock().unwrap().push(request.throttled))),
        ..home.settings(&server, &authority, "", "")
    };
    // A request that is held up on its way to the limit waits less there, or not at all, so one round without that is enough.
    let mut is_undisturbed = false;
    for _ in 0..20 {
        waits.lock().unwrap().clear();
        let client = connect(&settings).await.unwrap();
        let begun = Instant::now();
        futures::future::join_all((0..4).map(|_| get(&client, "/"))).await;
        assert!(begun.elapsed() >= Duration::from_secs(1), "the fourth one is sent a second after the first");
        let mut waits: Vec<u128> = waits.lock().unwrap().iter().map(Duration::as_millis).collect();
        waits.sort_unstable();
        assert_eq!(waits[..2], [0, 0]);
        assert!(waits[2] <= 500 && waits[3] <= 1000, "{waits:?}");
        is_undisturbed = waits[2] >= 1 && waits[3] >= 501;
        if is_undisturbed {
            break;
        }
    }
    assert!(is_undisturbed, "no request waited as long as the limit says");
}

#[tokio::test]
async fn requests_without_an_answer_are_counted_as_errors() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let server = Server::start(other.server(None)).await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&done);
    let home = Home::new();
    let settings = ClientSettings {
        on_request: Some(Arc::new(move |request: &RequestDone| seen.lock().unwrap().push(request.clone()))),
        ..home.settings(&server, &authority, "", "")
    };
    failure(&connect(&settings).await.unwrap()).await;
    let labels: Vec<String> = done.lock().unwrap().iter().map(RequestDone::code_label).collect();
    assert_eq!(labels, ["<error>"]);
}

#[tokio::test]
async fn a_client_certificate_is_required_and_rotated() {
    let (authority, clients) = (Authority::new("ca"), Authority::new("clients"));
    let server = Server::start(authority.server(Some(&clients))).await;
    let home = Home::new();
    let no_client = Home::new();
    failure(&no_client.client(&server, &authority, "").await).await;

    let leaves = [clients.client(), clients.client()];
    home.write_leaf(&leaves[0]);
    let user = "client-certificate: client.crt, client-key: client.key";
    let client = home.client(&server, &authority, user).await;
    assert_eq!(get(&client, "/").await, 200);
    home.write("client.crt", &leaves[1].certificate);
    assert_eq!(get(&client, "/").await, 200, "a certificate whose key has not come yet is not used");
    home.write("client.key", &leaves[1].key);
    assert_eq!(get(&client, "/").await, 200);
    let presented: Vec<Vec<u8>> =
        server.requests().into_iter().filter_map(|request| request.certificate).collect();
    let ders = leaves.map(|leaf| leaf.der().to_vec());
    assert_eq!(presented, [&ders[0], &ders[0], &ders[1]].map(Clone::clone));
}

#[tokio::test]
async fn an_inline_client_certificate() {
    use base64::Engine as _;
    let (authority, clients) = (Authority::new("ca"), Authority::new("clients"));
    let server = Server::start(authority.server(Some(&clients))).await;
    let leaf = clients.client();
    let [certificate, key] =
        [&leaf.certificate, &leaf.key].map(|pem| base64::engine::general_purpose::STANDARD.encode(pem));
    let user = format!("client-certificate-data: {certificate}, client-key-data: {key}");
    let client = Home::new().client(&server, &authority, &user).await;
    assert_eq!(get(&client, "/").await, 200);
}
