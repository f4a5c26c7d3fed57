//! Wrong, huge or deeply nested bodies and queries: each gets one clear response, and the server's memory stays
//! within limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan_testkit::HttpClient;

use crate::site::{Backing, PATIENCE, Site};

const SERVICES: &str = "/api/v1/namespaces/default/services";
/// The maximum length of a body, as upstream.
const LIMIT: usize = 3 << 20;
/// The server's memory limit while all of these requests run concurrently: half for bodies, half for everything else.
const MEMORY: u64 = 128 << 20;
const CLIENTS: usize = 2;
/// Growth of the high-water mark that is printed.
const STEP: u64 = 10 << 20;
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

struct Bad {
    name: String,
    request: Vec<u8>,
}

#[test]
fn bad_requests_are_refused_within_the_limit_of_memory() {
    let site = Arc::new(Site::start(Backing::File, &[]).unwrap());
    let address = site.addresses()[0];
    let before = site.server(0).resident_high_water().unwrap();
    let all: Arc<Vec<Bad>> = Arc::new(bodies().into_iter().chain(queries()).collect());
    let highest = Arc::new(AtomicU64::new(before));
    let clients = (0..CLIENTS).map(|client| {
        let (all, watched, highest) = (Arc::clone(&all), Arc::clone(&site), Arc::clone(&highest));
        let work = move || {
            // Each client begins at another request.
            for index in 0..all.len() {
                let Bad { name, request } = &all[(index + client * all.len() / CLIENTS) % all.len()];
                let answer = HttpClient::new(address, PATIENCE).send(request);
                let high_water = watched.server(0).resident_high_water().unwrap_or_default();
                if highest.fetch_max(high_water, Ordering::SeqCst) + STEP < high_water {
                    println!("{} MiB after {name}", high_water >> 20);
                }
                let status = answer.as_ref().map(|answer| answer.status);
                assert!(
                    status.is_ok_and(|status| (400..500).contains(&status)),
                    "{name}: {:?}",
                    answer.map(|answer| (
                        answer.head,
                        String::from_utf8_lossy(&answer.body).chars().take(300).collect::<String>()
                    ))
                );
            }
        };
        site.namespace.spawn_thread("client", work).unwrap()
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap();
    }
    let after = site.server(0).resident_high_water().unwrap();
    println!("{} requests; high-water {} MiB, {} MiB before", all.len() * CLIENTS, after >> 20, before >> 20);
    assert!(after <= MEMORY, "{} MiB", after >> 20);
    site.wait_for(0);
}

fn bodies() -> Vec<Bad> {
    let mut bad = Vec::new();
    let texts = json_texts();
    for (name, body) in &texts {
        for media_type in [JSON, YAML] {
            bad.push(post(&format!("{name} as {media_type}"), media_type, body));
        }
        for media_type in PATCHES {
            bad.push(patch(&format!("{name} as {media_type}"), media_type, body));
        }
        bad.push(delete(&format!("{name} as DeleteOptions"), body));
    }
    bad.extend(yaml_texts().iter().map(|(name, body)| post(name, YAML, body)));
    bad.extend(protobufs().iter().map(|(name, body)| post(name, PROTOBUF, body)));
    bad.push(post("an unknown media type", "text/plain", b"{}"));
    bad
}

/// Returns bodies that are wrong in every format, and as every patch.
fn json_texts() -> Vec<(&'static str, Vec<u8>)> {
    let fill = |text: &str| text.repeat(LIMIT / text.len() - 2).into_bytes();
    let around =
        |open: &str, inner: Vec<u8>, close: &str| [open.as_bytes(), &inner, close.as_bytes()].concat();
    let keys: Vec<String> = (0..180_000).map(|number| format!("\"k{number}\":0")).collect();
    vec![
        ("nothing closed", b"{\"metadata\":".to_vec()),
        ("no UTF-8", b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec()),
        ("a lone surrogate", br#"{"metadata":{"name":"\ud800"}}"#.to_vec()),
        ("zeros", vec![0; 1000]),
        ("deep lists", "[".repeat(300_000).into_bytes()),
        ("deep objects", "{\"a\":".repeat(100_000).into_bytes()),
        ("deep lists, closed", [vec![b'['; 100_000], vec![b']'; 100_000]].concat()),
        ("deep in a field", around("{\"metadata\":", [vec![b'['; 50_000], vec![b']'; 50_000]].concat(), "}")),
        ("many numbers", around("[", fill("0,"), "0]")),
        ("many empty objects", around("[", fill("{},"), "{}]")),
        (
            "many numbers in a field",
            around(
                "{\"spec\":{\"ports\":[",
                vec![b' '; 10].into_iter().chain("0,".repeat(LIMIT / 2 - 40).into_bytes()).collect(),
                "0]}}",
            ),
        ),
        ("many keys in spec", format!("{{\"metadata\":1,\"spec\":{{{}}}}}", keys.join(",")).into_bytes()),
        ("a long name", around("{\"metadata\":{\"name\":\"", fill("a").split_off(100), "\"}, \"spec\": 1}")),
        (
            "a huge number",
            around(
                "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"ports\":[{\"port\":",
                vec![b'9'; 100_000],
                "}]}}",
            ),
        ),
        ("too long", vec![b' '; LIMIT + 1]),
        ("far too long", around("\"", vec![b'a'; 2 * LIMIT], "\"")),
    ]
}

fn yaml_texts() -> Vec<(&'static str, Vec<u8>)> {
    let level = |level: usize| {
        let uses = vec![format!("*a{}", level - 1); 9].join(", ");
        format!("a{level}: &a{level} [{uses}]\n")
    };
    let first = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    let laughs: String = std::iter::once(first).chain((1..12).map(level)).collect();
    vec![
        ("a YAML anchor in itself", b"&a [*a]".to_vec()),
        ("a billion laughs", laughs.into_bytes()),
        ("deep YAML", "- ".repeat(100_000).into_bytes()),
        ("deep flow YAML", "[".repeat(300_000).into_bytes()),
        ("YAML of tabs", "\t:".repeat(1000).into_bytes()),
        ("many documents", "---\n{}\n".repeat(100_000).into_bytes()),
        ("a YAML tag", b"!!python/object/apply:os.system ['true']".to_vec()),
    ]
}

#[expect(clippy::cast_possible_truncation, reason = "the last seven bits are left")]
fn protobufs() -> Vec<(&'static str, Vec<u8>)> {
    let wrapped = |raw: &[u8]| {
        let kind = b"\x0a\x0d\x0a\x02v1\x12\x07Service";
        let mut bytes = [b"k8s\0".as_slice(), kind, b"\x12"].concat();
        let mut length = raw.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        [bytes, raw.to_vec()].concat()
    };
    // Each level is a length-delimited field 1 that contains the rest.
    let mut nested = vec![0x0a, 0];
    while nested.len() < 60_000 {
        let length = nested.len();
        nested = [
            vec![0x0a, length as u8 & 0x7f | 0x80, (length >> 7) as u8 & 0x7f | 0x80, (length >> 14) as u8],
            nested,
        ]
        .concat();
    }
    vec![
        ("no magic", b"Service".to_vec()),
        ("magic alone", b"k8s\0".to_vec()),
        ("a length beyond the end", b"k8s\0\x0a\xff\xff\xff\xff\x0f".to_vec()),
        ("a length of ten bytes and more", [b"k8s\0\x0a".as_slice(), &[0xff; 30]].concat()),
        ("groups in groups", wrapped(&vec![0x0b; 1 << 20])),
        ("deep messages", wrapped(&nested)),
        (
            "many empty ports",
            wrapped(&[vec![0x12, 0x80, 0x80, 0x80, 0x01], [0x0a, 0x00].repeat(1 << 20)].concat()),
        ),
        ("a field of a wrong type", wrapped(&[0x0d, 1, 2, 3, 4])),
        ("a wire type that is none", wrapped(&[0x0f, 1, 2, 3, 4])),
        ("a content encoding", [b"k8s\0".as_slice(), b"\x1a\x04gzip"].concat()),
    ]
}

fn queries() -> Vec<Bad> {
    let deep = "%28".repeat(2_000);
    let long = format!("labelSelector=a+in+%28{}%29", "x,".repeat(4_000));
    let queries = [
        "labelSelector=a+in+(".to_owned(),
        "labelSelector=%3D%3D%3D".to_owned(),
        format!("labelSelector={deep}"),
        format!("{long}%20bad"),
        "fieldSelector=spec.nonsense%3D1".to_owned(),
        format!("fieldSelector={deep}"),
        "limit=-1".to_owned(),
        "limit=many".to_owned(),
        "resourceVersion=new".to_owned(),
        "resourceVersion=99999999999999999999999".to_owned(),
        "resourceVersionMatch=Exact".to_owned(),
        "continue=nonsense".to_owned(),
        format!("continue={}", "A".repeat(8_000)),
        "continue=%FF%FE%00".to_owned(),
        "watch=1&resourceVersion=-5".to_owned(),
        "watch=1&timeoutSeconds=soon".to_owned(),
        "watch=1&sendInitialEvents=true".to_owned(),
        "labelSelector=%zz".to_owned(),
        format!("labelSelector={}", "a".repeat(1 << 20)),
    ];
    let get = |query: String| {
        let name = query.chars().take(60).collect();
        Bad { name, request: HttpClient::prepare("GET", &format!("{SERVICES}?{query}"), &[], b"") }
    };
    let paths = [
        "/api/v1/namespaces/%2e%2e/services/x",
        "/api/v1/%ff%fe",
        "/apis/a/b/c/d/e/f/g/h",
        "//",
        "/api/v1/namespaces//services",
    ];
    let paths =
        paths.map(|path| Bad { name: path.to_owned(), request: HttpClient::prepare("GET", path, &[], b"") });
    queries.into_iter().map(get).chain(paths).collect()
}

fn post(name: &str, media_type: &str, body: &[u8]) -> Bad {
    let headers = [("content-type", media_type)];
    Bad { name: format!("POST of {name}"), request: HttpClient::prepare("POST", SERVICES, &headers, body) }
}

fn patch(name: &str, media_type: &str, body: &[u8]) -> Bad {
    let path = "/api/v1/namespaces/default/services/kubernetes?fieldManager=test";
    Bad {
        name: format!("PATCH with {name}"),
        request: HttpClient::prepare("PATCH", path, &[("content-type", media_type)], body),
    }
}

fn delete(name: &str, body: &[u8]) -> Bad {
    let path = format!("{SERVICES}/none");
    Bad {
        name: format!("DELETE with {name}"),
        request: HttpClient::prepare("DELETE", &path, &[("content-type", JSON)], body),
    }
}
