use portolan_testkit::HttpClient;
use serde_json::Value;

use crate::site::{ADDRESS, PATIENCE, Site};

/// How often each document is fetched after the server has made it.
const ROUNDS: usize = 30;
/// Memory that the documents may take once each of them was fetched.
const MADE: u64 = 8 << 20;
/// Memory that further fetches of all of them may take: the allocator may keep more than before.
const FETCHED: u64 = 2 << 20;
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// A path and headers.
type Get<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Sends the requests, all on one connection. Returns the length of each body.
fn fetch(site: &Site, requests: &[Get<'_>]) -> Vec<usize> {
    let fetch = || {
        let mut client = HttpClient::new(ADDRESS.parse().unwrap(), PATIENCE);
        let lengths = requests.iter().map(|(path, headers)| {
            let answer = client.request("GET", path, headers, b"").unwrap();
            assert_eq!(answer.status, 200, "{path} {headers:?}");
            answer.body.len()
        });
        lengths.collect()
    };
    site.namespace.run(fetch).unwrap()
}

#[test]
fn openapi_does_not_make_the_server_grow() {
    let site = Site::new();
    let mut server = site.serve(&[], &["--in-memory"]);
    site.ready(&mut server);
    let before = server.resident().unwrap();
    let index: Value = serde_json::from_str(&site.ask("GET", "/openapi/v3", "").body).unwrap();
    let documents = index["paths"].as_object().unwrap().values();
    let documents: Vec<&str> = documents.map(|it| it["serverRelativeURL"].as_str().unwrap()).collect();
    assert!(documents.len() > 4, "{documents:?}");
    let mut requests: Vec<Get<'_>> = vec![
        ("/openapi/v2", &[]),
        ("/openapi/v2", &[("accept-encoding", "gzip")]),
        ("/openapi/v2", &[("accept", PROTOBUF)]),
        ("/openapi/v2", &[("accept", PROTOBUF), ("accept-encoding", "gzip")]),
        ("/openapi/v3", &[]),
    ];
    for document in &documents {
        requests.push((document, &[]));
        requests.push((document, &[("accept-encoding", "gzip")]));
    }
    let first = fetch(&site, &requests);
    assert!(
        first.iter().all(|length| *length > 100) && first[1] < first[0] && first[3] < first[2],
        "{first:?}"
    );
    let made = server.resident().unwrap();
    for _ in 0..ROUNDS {
        assert_eq!(fetch(&site, &requests), first);
    }
    let fetched = server.resident().unwrap();
    println!(
        "{} requests of {} bytes: {before}, {made}, {fetched}",
        requests.len(),
        first.iter().sum::<usize>()
    );
    assert!(made <= before + MADE, "{before} to {made} bytes for the first of each");
    assert!(fetched <= made + FETCHED, "{made} to {fetched} bytes in {ROUNDS} rounds");
}
